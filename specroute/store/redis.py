"""A store for processes of many machines: Redis or Valkey.

Knows scripts, connections and what to do while there is none. The arithmetic of a booking is the
script's, atomic on the server; ``window``'s is used for what it refused and while the server is
away.

Away: each process goes on by itself, from the last sums that it saw of everybody, and books what it
took at the server as soon as that is back. Until then a limit holds for each process alone. A
server that answers and can't book (it is full, only a replica, or its own disk fails) is away too.
One that hung may do later what nobody waits for any more: each booking leaves its number in the
process's mark, so that none is made twice.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from specroute.errors import ConfigError, StoreFailed
from specroute.store.memory import MemoryStore
from specroute.store.threaded import ThreadedStore
from specroute.store.window import Change, Refusal, Want, refusal

if TYPE_CHECKING:
    import redis

log = logging.getLogger("specroute")

ANSWER_S = 0.5
"""How long the server may take to answer before it counts as away."""
AWAY_S = 2.0
"""After that it is asked again."""
PREFIX = "specroute:sums:"
SKEW_S = 60.0
"""How long the difference between the server's clock and this machine's is believed."""
_UNABLE = re.compile(
    r"\b(OOM|READONLY|MISCONF|NOREPLICAS|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|LOADING)\b"
)
"""Codes of a server that can't write for now (redis.io, "Redis serialization protocol", errors);
redis-py has classes for some, and drops their codes."""

_MARK = """
redis.call('HSET', ARGV[#ARGV - 1], 'number', ARGV[#ARGV])
redis.call('EXPIRE', ARGV[#ARGV - 1], 172800)
"""
_TAKE = f"""
-- ARGV: for each key its running slot, its oldest slot, the amount, the room, seconds to live;
-- then this process's mark and the booking's number.
local function booked(i)
  local sums, used, oldest = redis.call('HGETALL', KEYS[i]), 0, tonumber(ARGV[5 * i - 3])
  for j = 1, #sums, 2 do
    if tonumber(sums[j]) < oldest then
      redis.call('HDEL', KEYS[i], sums[j])
    else
      used = used + tonumber(sums[j + 1])
    end
  end
  return math.max(used, 0), sums
end
local totals = {{}}
for i = 1, #KEYS do
  local used, sums = booked(i)
  local amount, room = tonumber(ARGV[5 * i - 2]), tonumber(ARGV[5 * i - 1])
  if used + amount > room then
    table.insert(sums, 1, tostring(i))
    return sums
  end
  totals[i + 1] = string.format('%.17g', used + amount)
end
for i = 1, #KEYS do
  redis.call('HINCRBYFLOAT', KEYS[i], ARGV[5 * i - 4], ARGV[5 * i - 2])
  redis.call('EXPIRE', KEYS[i], ARGV[5 * i])
end
{_MARK}
totals[1] = '0'
return totals
"""

_CHANGE = f"""
-- ARGV: for each key its slot, the amount, and whether to book it where nothing is; then as above.
for i = 1, #KEYS do
  local slot, amount = ARGV[3 * i - 2], ARGV[3 * i - 1]
  if ARGV[3 * i] == '1' or redis.call('HEXISTS', KEYS[i], slot) == 1 then
    if tonumber(redis.call('HINCRBYFLOAT', KEYS[i], slot, amount)) < 0 then
      redis.call('HSET', KEYS[i], slot, '0')
    end
    if redis.call('TTL', KEYS[i]) < 0 then
      redis.call('EXPIRE', KEYS[i], 172800)
    end
  end
end
{_MARK}
"""


class RedisStore(ThreadedStore):
    """Sums in the Redis or Valkey server at ``url`` (``redis://``, ``rediss://``, ``unix://``).

    ``clock`` is monotonic seconds, for when to ask a server again that was away; ``wall`` is
    this machine's time of day.
    """

    def __init__(
        self,
        url: str,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._url = url
        self._clock = clock
        self._wall = wall
        self._ahead_s = 0.0
        self._ahead_until = -math.inf
        self._client: redis.Redis | None = None
        self._scripts: tuple[Any, Any] | None = None
        self._away_until = 0.0
        self._local = MemoryStore()
        super().__init__()

    def __repr__(self) -> str:
        parts = urlsplit(self._url)
        return f"RedisStore({parts.hostname or parts.path!r})"

    def _reset(self) -> None:
        self._client = self._scripts = None
        self._owed: dict[str, dict[int, float]] = {}
        """What was booked here alone, by key and slot: the server gets it when it is back. A parent
        books its own."""
        self._mark = f"{PREFIX}by:{uuid.uuid4().hex}"
        self._number = 0
        self._doubt: tuple[int, tuple[Change, ...]] | None = None
        """The last booking, while nobody knows whether the server has made it."""
        super()._reset()

    @property
    def away(self) -> bool:
        """Whether the server could not be reached lately."""
        return self._clock() < self._away_until

    def _take(self, wants: Sequence[Want], now: float) -> Refusal | None:
        args: list[Any] = []
        for want in wants:
            window = want.window
            args += [
                window.slot(now),
                window.oldest(now),
                repr(want.amount),
                repr(want.limit * (1 + 1e-6)),
                2 * window.slots * window.slot_s,
            ]
        booked = [Change(want.key, want.window.slot(now), want.amount) for want in wants]
        found = self._asked(0, booked, args)
        if found is None:
            return self._taken_here(wants, now)
        if int(found[0]):
            want = wants[int(found[0]) - 1]
            sums = {int(k): float(v) for k, v in zip(found[1::2], found[2::2], strict=True)}
            # Never None but for rounding; then the next try tells.
            return refusal(want, sums, now) or Refusal(want, sum(sums.values()), 0.0)
        for want, total in zip(wants, found[1:], strict=True):
            self._local.learn(want.key, want.window.slot(now), float(total))
        return None

    def _taken_here(self, wants: Sequence[Want], now: float) -> Refusal | None:
        refused = self._local.take_now(wants, now)
        if refused is None:
            for want in wants:
                self._owe(want.key, want.window.slot(now), want.amount)
                owed = self._owed[want.key]
                for slot in [slot for slot in owed if slot < want.window.oldest(now)]:
                    del owed[slot]  # Nobody counts it any more.
        return refused

    def _owe(self, key: str, slot: int, amount: float) -> None:
        owed = self._owed.setdefault(key, {})
        owed[slot] = owed.get(slot, 0.0) + amount

    def _change(self, changes: Sequence[Change]) -> None:
        if not changes:
            return
        args: list[Any] = []
        for change in changes:
            args += [change.slot, repr(change.amount), "0"]
        self._local.change(changes)
        if self._asked(1, changes, args) is None:
            for change in changes:
                self._owe(change.key, change.slot, change.amount)

    async def ahead(self) -> float:
        """Seconds that the server's clock is ahead of this machine's: windows are those of the
        server's clock, so that machines whose clocks differ count the same minute. What was last
        known, while the server is away."""
        if self._clock() >= self._ahead_until and not self.away:
            await asyncio.wrap_future(self._worker().submit(self._measure))
        return self._ahead_s

    def _measure(self) -> None:
        import redis

        if self._clock() < self._ahead_until or self.away:
            return  # Measured, or found to be away, for another caller meanwhile.
        try:
            client = self._connected()[2]
            before = self._wall()
            seconds, micros = client.time()
            self._ahead_s = seconds + micros / 1e6 - (before + self._wall()) / 2
            self._ahead_until = self._clock() + SKEW_S
        except (redis.ConnectionError, redis.TimeoutError) as error:
            self._lost(error)
        except redis.RedisError:  # It may not be asked for its time.
            self._ahead_until = self._clock() + SKEW_S

    def _lost(self, error: Exception) -> None:
        if not self._away_until:
            log.warning("%r is away (%s): each process keeps limits alone", self, error)
        self._away_until = self._clock() + AWAY_S

    def _asked(
        self, script: int, booked: Sequence[Change], args: Sequence[Any]
    ) -> list[Any] | None:
        """The script's answer; ``None``: the server is away."""
        import redis

        if self.away:
            return None
        try:
            scripts = self._connected()
            self._settle(scripts[2])
            if self._owed:
                self._pay(scripts[1])
            found = self._booked(scripts[script], booked, args)
        except (redis.ConnectionError, redis.TimeoutError) as error:
            self._lost(error)
            return None
        except redis.RedisError as error:
            if _unable(error):
                self._lost(error)
                return None
            raise StoreFailed(
                f"{self!r}: {error}; limits and budgets can't be kept without it"
            ) from error
        if self._away_until:
            log.warning("%r is back", self)
            self._away_until = 0.0
        return found or []

    def _pay(self, change: Any) -> None:
        """Book at the server what was booked here while it was away."""
        changes = [
            Change(key, slot, amount)
            for key, owed in self._owed.items()
            for slot, amount in owed.items()
        ]
        args = [word for each in changes for word in (each.slot, repr(each.amount), "1")]
        self._booked(change, changes, args)
        self._owed.clear()

    def _booked(self, script: Any, changes: Sequence[Change], args: Sequence[Any]) -> Any:
        """Run a script that books ``changes``."""
        self._number += 1
        self._doubt = self._number, tuple(changes)
        keys = [PREFIX + change.key for change in changes]
        found = script(keys=keys, args=[*args, self._mark, self._number])
        self._doubt = None
        return found

    def _settle(self, client: Any) -> None:
        """What was answered too late and made all the same is not booked again."""
        if self._doubt is None:
            return
        number, changes = self._doubt
        made = list(client.hgetall(self._mark).values())
        if made and int(made[0]) == number:
            for change in changes:
                self._owe(change.key, change.slot, -change.amount)
        self._doubt = None

    def _connected(self) -> tuple[Any, Any, Any]:
        """Both scripts and the client."""
        if self._client is None or self._scripts is None:
            import redis

            self._client = redis.Redis.from_url(
                self._url, socket_timeout=ANSWER_S, socket_connect_timeout=ANSWER_S
            )
            register = self._client.register_script
            self._scripts = (register(_TAKE), register(_CHANGE))
        return (*self._scripts, self._client)

    def _close(self) -> None:
        client, self._client, self._scripts = self._client, None, None
        if client is not None:
            client.close()


def _unable(error: redis.RedisError) -> bool:
    """Whether the server answers and can't write for now, through no fault of the asking."""
    from redis import exceptions as e

    kinds = (e.ReadOnlyError, e.OutOfMemoryError, e.ClusterDownError, e.MasterDownError)
    return isinstance(error, (*kinds, e.TryAgainError)) or _UNABLE.search(str(error)) is not None


def check_installed() -> None:
    """:class:`ConfigError` where redis-py is missing."""
    try:
        import redis  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError(
            "store.kind = 'redis' needs redis-py: pip install 'specroute[redis]'"
        ) from error
