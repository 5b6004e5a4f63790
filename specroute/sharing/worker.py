"""One worker among those that learn together: a task beside the requests that tells and hears.

Knows the order of things: what was measured here is told in messages, others' are entered within a
share of the time, who comes later starts from figures that one worker leaves now and then. While
the server is away everything goes on with what is measured here, and what is told waits.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from specroute.config import Config
from specroute.http.supervisor import Supervisor
from specroute.measure import Measurements
from specroute.measure.files import Note
from specroute.measured import Kept
from specroute.sharing import figures, hearing, server
from specroute.sharing.accounts import LEAVE_S, Accounts, Change, Key, Leaves
from specroute.sharing.names import VERSION, Names
from specroute.sharing.server import Message, Server
from specroute.sharing.telling import Telling, sampled

log = logging.getLogger("specroute")

PERIOD_S = 0.5
"""Between two visits to the server."""
MOST_WAITING = 10_000
"""Observations that wait to be told; of more, the oldest are let go of."""
AT_ONCE = 500
"""Of them, those that are gathered before anything else has its turn: about a millisecond."""
BUSY_S = 0.025
"""The time that entering what others measured may take, each visit: 5 % of one core."""
EACH_S = 30e-6
"""About what one observation takes to enter."""
TICK_S = 0.002
"""The longest that entering keeps the loop from anything else, about."""
LEAST_WAIT_S, MOST_WAIT_S = 0.5, 10.0
"""Between two tries to reach a server that is away."""
JOIN_S = 2.0
"""How long warming up waits for what others have measured."""


class State(StrEnum):
    """How a worker stands with the others."""

    JOINING = "joining"
    """It has not heard from them yet,"""
    SHARED = "shared"
    """it has,"""
    AWAY = "away"
    """or the server can't be reached: it is alone."""


class Sharing:
    """What one client tells and hears. ``clock``: monotonic seconds; ``wall``: since 1970."""

    def __init__(
        self,
        config: Config,
        kept: Kept,
        measurements: Measurements,
        supervisor: Supervisor | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        assert config.store.url is not None
        parts = urlsplit(config.store.url)
        self.shown = parts.hostname or parts.path
        self.names = Names(config, kept)
        self.measurements = measurements
        self.accounts = Accounts(telling=True)
        self.state = State.JOINING
        self.counts: Counter[str] = Counter()
        """``told``, ``told_bytes``: messages; ``heard``: others'; ``entered``, ``left_out``: their
        observations; ``lost``: own ones, when nobody could be told for long; ``skipped``: what
        couldn't be read; ``gaps``: when others' messages were missed; ``failed``: visits."""
        self._supervisor = supervisor or Supervisor()
        self._clock, self._wall = clock, wall
        self._rng = rng or random.Random()
        self._leaves = Leaves(clock)
        self._server = Server(config.store.url, self.names.id, self.names.host, uuid.uuid4().hex)
        self._waiting: deque[Note] = deque(maxlen=MOST_WAITING)
        self._telling = Telling(self.names)
        self._number = 0
        """Of the message told last,"""
        self._unsure: tuple[int, bytes] | None = None
        """and one that may not have arrived."""
        self._place: str | None = None
        """Up to where the stream was heard,"""
        self._heard: dict[str, int] = {}
        """and which message of each worker was the last."""
        self._server_now = 0.0
        """Seconds on the server's clock, when it was last heard."""
        self._turn = False
        self._warned: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._met = asyncio.Event()
        measurements.heard = self.told

    def __repr__(self) -> str:
        return f"Sharing({self.shown!r}, {str(self.state)!r})"

    def goes_on_as(self, other: Sharing) -> bool:
        """Whether the other one would tell and hear the same, of the same measurements."""
        mine, theirs = self.names, other.names
        return self.measurements is other.measurements and (
            (mine.id, mine.host, mine.kept.targets, mine.kept.drafts)
            == (theirs.id, theirs.host, theirs.kept.targets, theirs.kept.drafts)
        )

    # --- on a request's way -------------------------------------------------------------------

    def told(self, note: Note) -> None:
        """One observation: nothing but an append."""
        if len(self._waiting) == MOST_WAITING:
            self.counts["lost"] += 1
        self._waiting.append(note)

    def withheld(self, key: Key) -> str:
        """Whoever can't reach the others explores alone, on what its account then holds."""
        why = self._leaves.withheld(self._common(key))
        return "" if self.state is State.AWAY else why

    def exploring(self, key: Key) -> Callable[[object], None]:
        """As :meth:`Leaves.exploring`."""
        return self._leaves.exploring(self._common(key))

    def _common(self, key: Key) -> Key:
        """With the target's name that all have for it."""
        policy, target, traffic = key
        return policy, self.names.kept.targets.get(target, target), traffic

    # --- beside the requests ------------------------------------------------------------------

    def start(self) -> None:
        """Begin, on the running loop, unless that was done."""
        if self._task is None:
            self._task = self._supervisor.spawn(self._run(), name="shared measurements", apart=True)

    async def met(self) -> None:
        """Until the others were heard once or can't be reached, :data:`JOIN_S` at most."""
        self.start()
        try:
            async with asyncio.timeout(JOIN_S):
                await self._met.wait()
        except TimeoutError:
            return

    async def _run(self) -> None:
        try:
            await self._go_on()
        finally:
            await self._server.aclose()

    async def _go_on(self) -> None:
        wait, task = LEAST_WAIT_S, asyncio.current_task()
        assert task is not None
        # redis-py may answer though its caller was cancelled meanwhile, or say that it timed out.
        while not task.cancelling():
            try:
                await self._join()
                wait = LEAST_WAIT_S
                while not task.cancelling():
                    await self.visit()
                    if not task.cancelling():
                        await asyncio.sleep(PERIOD_S)
            except Exception as error:  # noqa: BLE001 - no trouble of the store's is a request's
                if task.cancelling():
                    return
                self._gone(error)
                await self._server.aclose()
                await asyncio.sleep(wait * self._rng.uniform(0.75, 1.25))
                wait = min(2 * wait, MOST_WAIT_S)

    def _gone(self, error: Exception) -> None:
        self.counts["failed"] += 1
        if self.state is not State.AWAY:
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            log.warning("measurements are not shared, %s is away (%s)", self.shown, said)
        self.state = State.AWAY
        self._leaves.lost()
        self._met.set()

    async def _join(self) -> None:
        """Find a place in the stream: that of the figures that somebody left, or the beginning; the
        old one, as long as nothing after it is gone."""
        start = await self._server.start()
        place = self._place
        if place is not None and start.last is not None and not server.after(place, start.last):
            gone = start.first is None or server.after(start.first, place)
            if not gone:
                return
            self.counts["gaps"] += 1
        for data in start.figures:
            try:
                found = figures.read(data)
                if place is not None and server.after(place, found.place):
                    continue
                figures.enter(found, self, start.now, self._wall())
                self._enter_own()
            except hearing.BAD as error:
                self._warn("figures", error)
                continue
            self._place = found.place
            self._heard[found.worker] = max(found.number, self._heard.get(found.worker, 0))
            return
        if place is None or start.last is None or server.after(place, start.last):
            self._place = "0"  # The stream is new, or another one.

    def _enter_own(self) -> None:
        """What was measured here and told to nobody yet isn't in the figures of others."""
        message = self._message()
        if message is not None:
            data, at = figures.from_json(message[1]), self._wall()
            for n, enter in hearing.heard(self.measurements, data, self.names, alike=True, at=at):
                self._enter(n, enter)

    async def visit(self) -> None:
        """Tell what waits, hear what is new; leave figures where it is this worker's turn."""
        # What waits behind a message that may not have arrived isn't told with this one.
        turn = self._turn and self._unsure is None
        self._turn = self._turn and not turn
        while self._unsure is None and len(self._waiting) > AT_ONCE:
            self._gather(AT_ONCE)
            await asyncio.sleep(0)
        message = self._message(cut=turn)
        left = self._figures() if turn else None
        leaves = self._leaves.wanted()
        asked_at = self._clock()
        assert self._place is not None
        tell = None
        if message is not None:
            tell = server.fields(self._server.worker, self.names.host, *message)
        seen = await self._server.visit(self._place, tell, leaves)
        if message is not None:
            self._unsure = None
            self.counts["told"] += 1
            self.counts["told_bytes"] += len(message[1])
        self._turn = self._turn or seen.turn
        given = [key for key, mine in zip(leaves, seen.leaves, strict=True) if mine]
        refused = [key for key, mine in zip(leaves, seen.leaves, strict=True) if not mine]
        await self._hear(seen)
        while seen.behind:
            seen = await self._server.visit(self._place)
            await self._hear(seen)
        # Whoever had a leave before has told what it lost: it was heard just now.
        self._leaves.given(given, asked_at + LEAVE_S - server.ANSWER_S, refused)
        if self.state is not State.SHARED:
            if self.state is State.AWAY:
                log.warning("measurements are shared again, %s is back", self.shown)
            self.state = State.SHARED
            self._met.set()
        if left is not None:
            await self._server.write(await asyncio.to_thread(figures.packed, left))

    def _gather(self, n: int) -> None:
        """The ``n`` oldest observations that wait are made part of the next message."""
        for _ in range(n):
            self._telling.add(self._waiting.popleft())

    def _message(self, *, cut: bool = False) -> tuple[int, bytes] | None:
        """The next message and its number; first the one that may not have arrived. ``cut``: with
        the rounds of answers that haven't ended, since figures are left: whoever starts from those
        has these rounds, and must not hear them later."""
        if self._unsure is None:
            self._gather(len(self._waiting))
            if cut:
                self._telling.cut()
            data = self._telling.taken(self._rng)
            changes = self.accounts.untold()
            if changes:
                data["accounts"] = self._rows(changes)
            if data:
                self._number += 1
                self._unsure = (self._number, figures.as_json(data))
        return self._unsure

    def _rows(self, changes: Mapping[Key, Change]) -> list[list[Any]]:
        places = self.names.target_places
        return [
            [policy, places[target], traffic, *change.row()]
            for (policy, target, traffic), change in changes.items()
            if target in places
        ]

    def _figures(self) -> figures.Left:
        """What is known here, as of the message told next and the place heard up to."""
        assert self._place is not None
        return figures.Left(
            worker=self._server.worker,
            host=self.names.host,
            number=self._number,
            place=self._place,
            wall=self._wall(),
            server=self._server_now,
            dump=self.names.kept.collect(self.measurements),
            accounts=[
                [p, self.names.target_places[t], c, *figures.account_row(account)]
                for (p, t, c), account in self.accounts.dump()
                if t in self.names.target_places
            ],
        )

    async def _hear(self, seen: server.Seen) -> None:
        """Enter others' messages, within the share of the time that there is for it."""
        self._server_now = seen.now
        entries: list[hearing.Entry] = []
        ticked = self._clock()
        for message in seen.messages:
            self._place = message.place
            entries += self._read(message, seen.now)
            ticked = await self._tick(ticked)
        total, most = sum(n for n, _ in entries), BUSY_S / EACH_S
        if total > most:
            kept = sampled(entries, int(len(entries) * most / total), self._rng)
            self.counts["left_out"] += total - sum(n for n, _ in kept)
            entries = kept
        for n, enter in entries:
            self._enter(n, enter)
            ticked = await self._tick(ticked)

    async def _tick(self, since: float) -> float:
        if self._clock() - since < TICK_S:
            return since
        await asyncio.sleep(0)
        return self._clock()

    def _read(self, message: Message, now: float) -> list[hearing.Entry]:
        """What there is to enter of a message; its accounts' changes are entered at once."""
        try:
            fields = message.fields
            worker, number = fields["w"].decode(), int(fields["n"])
            if worker == self._server.worker or number <= self._heard.get(worker, 0):
                return []
            if int(fields["v"]) > VERSION:
                self._warn("newer", f"version {int(fields['v'])}, this one reads {VERSION}")
                return []
            data = figures.from_json(fields["d"])
            alike = fields["h"].decode() == self.names.host
            at = self._wall() - max(0.0, now - message.at)
            found = hearing.heard(self.measurements, data, self.names, alike=alike, at=at)
            changes = [
                ((str(policy), name, str(traffic)), Change.read(row))
                for policy, target, traffic, *row in data.get("accounts", ())
                for name in self.names.targets_at(target)
            ]
        except hearing.BAD as error:
            self._warn("message", error)
            return []
        self._heard[worker] = number
        for key, change in changes:
            self.accounts.hear(key, change)
        self.counts["heard"] += 1
        return found

    def _enter(self, n: int, enter: Callable[[], None]) -> None:
        try:
            with self.measurements.unheard():
                enter()
            self.counts["entered"] += n
        except hearing.BAD as error:
            self._warn("message", error)

    def _warn(self, what: str, error: object) -> None:
        """Say once what is skipped from now on."""
        self.counts["skipped"] += 1
        if what not in self._warned:
            self._warned.add(what)
            kind = f"{type(error).__name__}: " if isinstance(error, Exception) else ""
            log.warning(
                "of what other workers share at %s, some is skipped (%s): %s%.200s",
                self.shown, what, kind, error,
            )  # fmt: skip

    async def look(self) -> str | None:
        """Hear all there is, and tell nothing; why it can't be had, where it can't."""
        try:
            await self._join()
            assert self._place is not None
            while True:
                seen = await self._server.visit(self._place)
                await self._hear(seen)
                if not seen.behind:
                    return None
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the store is said
            return f"{type(error).__name__}: {error}".splitlines()[0]
        finally:
            await self._server.aclose()

    def stop(self) -> None:
        """Tell and hear nothing more; from any thread."""
        task, self._task = self._task, None
        if task is not None:
            task.get_loop().call_soon_threadsafe(task.cancel)

    async def aclose(self) -> None:
        """Tell what waits, if the server is there; idempotent."""
        task, self._task = self._task, None
        if self.measurements.heard == self.told:
            self.measurements.heard = None
        if task is None:
            await self._server.aclose()
            return
        task.cancel()
        await asyncio.wait({task})
        await self._server.aclose()  # It may have been ended in the middle of an answer.
        if self.state is State.SHARED:
            try:
                async with asyncio.timeout(server.ANSWER_S):
                    await self.visit()
            except Exception as error:  # noqa: BLE001 - what waits is lost, and nothing else
                log.debug("the last measurements are not shared: %s", error)
            await self._server.aclose()


def shared(config: Config) -> bool:
    """Whether a config's workers are to learn together."""
    return config.store.kind == "redis" and config.store.measurements
