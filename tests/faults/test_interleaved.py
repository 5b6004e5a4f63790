"""Faults, questions, half-read streams and failing drafts in any order: what holds after each."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from specroute.testing import FaultServer, On, Sometimes, faults
from specroute.testing.edits import LIES
from tests.engine.answers import TEXT
from tests.engine.test_exits import until
from tests.faults.cells import GRACE_S, MESSAGES, SETUPS, World, ask, own, world

TIMEOUTS = {"connect": 1, "first_token": 0.6, "stall": 0.25, "total": 1.2}
FAULTS = [*faults.EVERY, *map(faults.lies, LIES)]
some_faults = st.lists(st.sampled_from(FAULTS), min_size=1, max_size=5)
DRAFTS = ["ok", "raise", "crash", "empty", "long", "foreign", "bad_q"]


class Days(RuleBasedStateMachine):
    """One client through good and bad days."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.broken: list[str] = []
        self.asked = 0

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run(work)

    @initialize(name=st.sampled_from([*SETUPS]), wrong=st.sampled_from([0.1, 0.5]))
    def begin(self, name: str, wrong: float) -> None:
        self.entered = world(
            SETUPS[name], wrong=wrong * bool(SETUPS[name].wrong), timeouts=TIMEOUTS
        )
        self.world: World = self.do(self.entered.__aenter__())

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.do(self.entered.__aexit__(None, None, None))
        self.loop.close()

    @property
    def target(self) -> FaultServer:
        return self.world.servers[0]

    # What happens

    @rule(script=some_faults)
    def bad_moments(self, script: list[Any]) -> None:
        """The next requests meet these, one after another."""
        self.target.play(*script)

    @rule(fault=st.sampled_from(FAULTS), skip=st.integers(0, 6))
    def a_bad_day(self, fault: Any, skip: int) -> None:
        """After some requests, all meet this one."""
        self.target.play(On(fault, skip=skip))

    @rule(some=some_faults, share=st.sampled_from([0.1, 0.5]), seed=st.integers(0, 99))
    def bad_luck(self, some: list[Any], share: float, seed: int) -> None:
        self.target.play(Sometimes(share, some, seed=seed))

    @rule()
    def good_days(self) -> None:
        self.target.play()

    @rule(mode=st.sampled_from(DRAFTS), after=st.integers(0, 3))
    def drafts_behave(self, mode: str, after: int) -> None:
        drafter = self.world.drafter
        drafter.mode, drafter.after = mode, drafter.proposals + after
        # A drafter that broke rests; here time does not pass for it.
        if self.world.client.router.speculation is not None:
            self.world.client.router.speculation.pool.resting.clear()  # type: ignore[attr-defined]

    @rule(streams=st.lists(st.booleans(), min_size=1, max_size=3))
    def questions(self, streams: list[bool]) -> None:
        """Asked at once: each gets its right answer or a typed error, in time."""
        self.asked += len(streams)
        self.do(self._questions(streams))

    async def _questions(self, streams: list[bool]) -> None:
        for out in await asyncio.gather(*(ask(self.world, stream=each) for each in streams)):
            # Reports of requests beside each other mix; each alone is judged in the table.
            self.broken += [b for b in out.broken if "reports of" not in b and "draft" not in b]
            if out.seconds > TIMEOUTS["total"] + GRACE_S + LOAD_S:
                self.broken.append(f"{out.seconds:.2f} s: {out}")
        if self.world.drafter.open_sessions:
            self.broken.append("draft sessions left open")

    @rule(after=st.integers(0, 6), how=st.sampled_from(["close", "cancel", "drop"]))
    def a_reader_leaves(self, after: int, how: str) -> None:
        """In the middle of a stream: nothing of it is under way a tenth of a second later."""
        self.asked += 1
        self.do(self._leaves(after, how))

    async def _leaves(self, after: int, how: str) -> None:
        read = ""
        holder: list[Any] = []

        async def reader() -> None:
            nonlocal read
            stream = await self.world.client.chat.completions.create(
                model="m", messages=MESSAGES, stream=True, temperature=0
            )
            holder.append(stream)
            for _ in range(after):
                chunk = await anext(stream, None)
                if chunk is None:
                    break
                read += "".join(c.delta.content or "" for c in chunk.choices)
            if how == "close":
                await stream.close()
            elif how == "cancel":
                await asyncio.Event().wait()

        task = asyncio.ensure_future(reader())
        await asyncio.wait([task], timeout=0.05 if how == "cancel" else None)
        task.cancel()
        with suppress(Exception, asyncio.CancelledError):
            await task
        del task
        holder.clear()
        if how == "drop":
            gc.collect()
        if not TEXT.startswith(read):
            self.broken.append(f"not a beginning: {read!r}")
        try:
            await self.target.idle(GRACE_S + LOAD_S)
        except TimeoutError as error:
            self.broken.append(f"{how} after {after}: {error}")
        await until(lambda: not any(t.get_name() == "speculation" for t in asyncio.all_tasks()))

    async def _reported(self) -> None:
        """Every request has its report, a dropped one's too: that comes when it is collected."""

        async with asyncio.timeout(10):
            while len(own(self.world.reports)) < self.asked:
                gc.collect()
                await asyncio.sleep(0.01)

    # What holds

    @invariant()
    def nothing_is_broken(self) -> None:
        assert self.broken == []

    @invariant()
    def what_is_billed_is_booked(self) -> None:
        """Every answer that the server's log has is an attempt in some report, and where the
        server's count came over, it is the same number."""
        if not hasattr(self, "world") or self.target.under_way:
            return
        self.do(self._reported())
        attempts = [a for r in self.world.reports for a in r.attempts]
        booked = {a.request_id: a for a in attempts if a.request_id is not None}
        text = [r for r in self.target.bill if r.path != "/tokenize"]
        unseen = [r for r in text if r.id not in booked]
        unnamed = [a for a in attempts if a.request_id is None and a.purpose != "render"]
        assert len(unseen) <= len(unnamed), (unseen, unnamed)
        for record in text:
            attempt = booked.get(record.id)
            if attempt is None or attempt.estimated or attempt.outcome != "ok":
                continue
            assert (attempt.usage.prompt_tokens, attempt.usage.completion_tokens) == (
                record.prompt_tokens,
                record.completion_tokens,
            )


LOAD_S = 1.0
"""What a machine that does other things may add; the table holds the bound itself, alone."""

TestDays = Days.TestCase
TestDays.settings = settings(
    max_examples=8,
    stateful_step_count=8,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
