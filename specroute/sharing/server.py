"""What the workers leave at the Redis or Valkey server, and how it is read. The only Redis here.

All under ``specroute:learned:{id}``: the stream ``:notes`` of messages, bounded; ``:whole`` and
``:whole:HOST``, one worker's figures as they were at a place in the stream, for who comes later;
``:turn:HOST``, whose turn it is to write those; ``:leave:KEY``, who may explore. Whatever isn't
used any more expires.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specroute.sharing.accounts import LEAVE_S, Key
from specroute.sharing.names import VERSION

if TYPE_CHECKING:
    from redis.asyncio import Redis

PREFIX = "specroute:learned:"
MOST_MESSAGES = 8192
"""Messages that the stream keeps, about; a worker that falls behind by more takes the figures."""
READ = 256
"""Messages read at once."""
ANSWER_S = 1.0
"""How long the server may take to answer before it counts as away."""
TURN_S = 30.0
"""Between two writes of the figures."""
KEPT_S = 7 * 24 * 3600

_TELL = """
-- KEYS: stream. ARGV: most messages, seconds to live, fields and values.
local id = redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', unpack(ARGV, 3))
redis.call('EXPIRE', KEYS[1], ARGV[2])
return id
"""

_LEAVES = """
-- KEYS: leaves. ARGV: worker, milliseconds. 1 for each that is the worker's now.
local found = {}
for i, key in ipairs(KEYS) do
  local whose = redis.call('GET', key)
  if not whose or whose == ARGV[1] then
    redis.call('SET', key, ARGV[1], 'PX', ARGV[2])
    found[i] = 1
  else
    found[i] = 0
  end
end
return found
"""

_WRITE = """
-- KEYS: turn, figures, the host's figures. ARGV: worker, figures, seconds to live.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[2], ARGV[2], 'EX', ARGV[3])
redis.call('SET', KEYS[3], ARGV[2], 'EX', ARGV[3])
return 1
"""


@dataclass(frozen=True, slots=True)
class Message:
    """One entry of the stream; ``at``: when it came, seconds on the server's clock."""

    place: str
    at: float
    fields: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Seen:
    """What one visit brings."""

    now: float
    """Seconds on the server's clock."""
    messages: list[Message]
    leaves: list[bool]
    """Of each that was asked for, whether it was given."""
    turn: bool
    """It is this worker's to write the figures."""

    @property
    def behind(self) -> bool:
        """There may be more messages."""
        return len(self.messages) >= READ


@dataclass(frozen=True, slots=True)
class Start:
    """What a worker finds that comes, or comes back."""

    now: float
    figures: list[bytes]
    """This host's and anybody's, as far as there are any."""
    first: str | None
    """The places of the stream's first and last message."""
    last: str | None


class Server:
    """One worker's connection. Raises redis-py's errors, and nothing but those and OSError."""

    def __init__(self, url: str, id: str, host: str, worker: str) -> None:
        self._url = url
        self._key = f"{PREFIX}{{{id}}}"
        self._host = host
        self.worker = worker
        self._client: Redis | None = None

    def _connected(self) -> Redis:
        if self._client is None:
            from redis.asyncio import Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff

            self._client = Redis.from_url(
                self._url,
                socket_timeout=ANSWER_S,
                socket_connect_timeout=ANSWER_S,
                retry=Retry(NoBackoff(), 0),
                protocol=2,
            )
        return self._client

    async def start(self) -> Start:
        """What there is."""
        pipe = self._connected().pipeline(transaction=False)
        pipe.time()
        pipe.get(f"{self._key}:whole:{self._host}")
        pipe.get(f"{self._key}:whole")
        pipe.xrange(f"{self._key}:notes", count=1)
        pipe.xrevrange(f"{self._key}:notes", count=1)
        time, own, whole, first, last = await pipe.execute()
        return Start(
            _seconds(time),
            [data for data in (own, whole) if data is not None],
            first[0][0].decode() if first else None,
            last[0][0].decode() if last else None,
        )

    async def visit(
        self, place: str, tell: dict[str, Any] | None = None, leaves: Sequence[Key] = ()
    ) -> Seen:
        """Tell one message, ask for leaves, read what came after ``place``: in this order, one
        round trip. The turn to write figures is asked for where there is something to tell."""
        pipe = self._connected().pipeline(transaction=False)
        stream = f"{self._key}:notes"
        if tell is not None:
            fields = [each for pair in tell.items() for each in pair]
            pipe.eval(_TELL, 1, stream, MOST_MESSAGES, KEPT_S, *fields)
            pipe.set(self._turn, self.worker, nx=True, px=int(TURN_S * 1000))
        if leaves:
            keys = [self._leave(key) for key in leaves]
            pipe.eval(_LEAVES, len(keys), *keys, self.worker, int(LEAVE_S * 1000))
        pipe.time()
        pipe.xread({stream: place}, count=READ)
        answers = await pipe.execute()
        turn = tell is not None and bool(answers[1])
        given = [bool(each) for each in answers[-3]] if leaves else []
        return Seen(_seconds(answers[-2]), _messages(answers[-1]), given, turn)

    async def write(self, figures: bytes) -> bool:
        """Leave the figures, as long as it is this worker's turn."""
        keys = (self._turn, f"{self._key}:whole", f"{self._key}:whole:{self._host}")
        return bool(await self._connected().eval(_WRITE, 3, *keys, self.worker, figures, KEPT_S))

    @property
    def _turn(self) -> str:
        return f"{self._key}:turn:{self._host}"

    def _leave(self, key: Key) -> str:
        text = "\n".join(key)
        return f"{self._key}:leave:{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}"

    async def aclose(self) -> None:
        """Let go of the connection, whatever state it is in."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None  # Not before: whoever is cancelled here closes it again.


def _seconds(time: Any) -> float:
    return float(time[0]) + float(time[1]) / 1e6


def _messages(read: Any) -> list[Message]:
    return [
        Message(
            place.decode(),
            int(place.partition(b"-")[0]) / 1000,
            {name.decode("utf-8", "replace"): value for name, value in (fields or {}).items()},
        )
        for _, entries in read or ()
        for place, fields in entries
    ]


def fields(worker: str, host: str, number: int, data: bytes) -> dict[str, Any]:
    """A message as the stream has it. ``number`` counts a worker's messages, so that one that was
    told twice is heard once."""
    return {"v": VERSION, "w": worker, "h": host, "n": number, "d": data}


def after(place: str, other: str) -> bool:
    """Whether ``place`` in the stream comes after ``other``."""
    return _numbers(place) > _numbers(other)


def _numbers(place: str) -> tuple[int, int]:
    milliseconds, _, number = place.partition("-")
    return int(milliseconds), int(number or 0)
