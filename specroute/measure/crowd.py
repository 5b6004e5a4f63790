"""What a target does to many requests at a time: measured over windows of a quarter of a second.

A server that steps all its sequences together takes longer for a step the more of them there are,
and the more prompt tokens it reads in it. So in every window the pace of plain streams and the time
of a scoring request are set against two things that this client knows: how many of its sequences
were at the server, and how many tokens it had it read per step. What others do to the server moves
the level alone. By Little's law no call need be followed: a mean over a window is an integral of a
count, divided by what came of it.

Knows counts, windows and two laws, and no clock: ``now`` is seconds on the caller's. Knows no
policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from specroute.measure.drafting import Drafting
from specroute.measure.estimate import Estimate, Law, Z
from specroute.measure.regression import Regression

WINDOW_S = 0.25
"""The shortest window;"""
STEPS = 4.0
"""one lasts at least as long as so many tokens: what is read in a step shows at its end;"""
LONGEST_S = 8.0
"""one in which too little came by then is left out."""
FEWEST = 8
"""Tokens of streams, or half as many scoring requests, that make a window tell anything."""
_LATE = 0.5
"""What the last window counts of what is so as of late."""
WAITS = 1.5
"""Steps that a scoring request takes: what is left of the one under way, and its own."""
_LEARNS = 0.2
"""What a stream's own tokens per piece count."""
_COUNTS = 0.25
"""What a window's pace counts beside a finished answer's."""
KEEPS = 0.85
"""What the rates keep of their weight from window to window."""

_NONE = Estimate(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Crowd:
    """One client's requests at one target now, and what each costs the others. Seconds, tokens.

    ``None`` is unknown.
    """

    target: str = ""
    """``provider:model``."""
    others: int = 0
    """Requests under way beside the one that asks."""
    speculating: int = 0
    """Those of them that make scoring rounds."""
    scoring: float = 0.0
    """Share of its time that one of those waits for its scoring request."""
    rate: float | None = None
    """Tokens a second that one of those commits."""
    tpot_s: float | None = None
    """Seconds a token of a plain stream, at the present load."""
    round_s: float | None = None
    """Seconds of a scoring request, at the present load."""
    per_sequence: Estimate = _NONE
    """Seconds by which one more sequence at the server lengthens everybody's step; a scoring
    request takes ``WAITS`` of them."""
    per_token: Estimate = _NONE
    """Seconds by which each token that the server reads holds up everybody that is there."""
    waits_s: float = 0.0
    """Seconds that a scoring request takes longer now than when some were last timed: steps have
    become longer meanwhile, or the turns of the caller's own loop are long."""
    rereads: float | None = None
    """The share of a context that the server reads anew for a scoring request."""
    drafting: float = 0.0
    """Drafts that the drafter has under way, as of late,"""
    per_drafted: Estimate = _NONE
    """and the seconds by which each drafted token of one more lengthens theirs."""


NOBODY = Crowd()


class Crowding:
    """The estimators of one target."""

    __slots__ = (
        "_area",
        "_at",
        "_begun",
        "_committed",
        "_counts",
        "_kept",
        "_read",
        "_scored",
        "_span",
        "_streamed",
        "_tempo",
        "_timed",
        "pace",
        "passes",
        "per_piece",
        "rereads",
        "tempo",
    )

    def __init__(self, pace: Regression) -> None:
        """``pace``: the target's seconds per token by (context, others in flight), which windows
        are entered into as well: under load the first answer's end is far away."""
        self.pace = pace
        self.tempo = Regression((10.0, 100.0), (0.05, 0.05), decay=0.98)
        """Seconds a token of plain streams, by (sequences at the server, tokens read per step)."""
        self.passes = Regression((10.0, 1000.0), (0.05, 0.5), decay=0.98)
        """Seconds of a scoring request, by (the same, tokens read while one is under way)."""
        self.rereads: float | None = None
        """The share of a scoring request's context that isn't in the server's cache."""
        self.per_piece = 1.0
        """Tokens in each piece of a stream."""
        self._counts = [0, 0, 0, 0]
        """Requests, speculating ones, scoring requests, streams that have begun: now,"""
        self._area = [0.0] * 5
        """and their integrals over time, of the window; the last is the requests', for ever."""
        self._at: float | None = None
        self._begun = 0.0
        self._span = WINDOW_S
        self._tempo = self._timed = 0.0
        """Seconds a token of streams as of late, and when scoring requests were last timed; 0:
        unknown."""
        self._streamed = self._committed = self._read = self._scored = 0.0
        """Tokens streamed, committed by rounds, read by the server, scoring requests that ended:
        of the window."""
        self._kept = [0.0] * 3
        """Discounted over windows: tokens committed by rounds, seconds of speculating requests,
        seconds of their scoring requests."""

    # --- what happens -----------------------------------------------------------------------

    def begin(self, now: float, tokens: float = 0.0) -> None:
        """A request begins, with a prompt of which ``tokens`` aren't cached."""
        self._move(now, 0, 1)
        self._read += tokens

    def end(self, now: float) -> None:
        self._move(now, 0, -1)

    def speculates(self, now: float, yes: bool) -> None:
        """A request that has begun makes scoring rounds from now on, or no more."""
        self._move(now, 1, 1 if yes else -1)

    def scoring(self, now: float, tokens: float, sequences: int = 1) -> None:
        """A scoring request leaves, of whose prompts and draft ``tokens`` aren't cached."""
        self._move(now, 2, sequences)
        self._read += tokens

    def scored(self, now: float, sequences: int = 1) -> None:
        """It is over."""
        self._move(now, 2, -sequences)
        self._scored += sequences

    def reread(self, share: float) -> None:
        """Of a context that an earlier request had the server read, it read this share anew."""
        before = self.rereads
        self.rereads = share if before is None else before + _LEARNS * (share - before)

    def committed(self, tokens: int) -> None:
        """A round's tokens."""
        self._committed += tokens

    def streams(self, now: float, yes: bool) -> None:
        """A plain stream's first token is there, or its last."""
        self._move(now, 3, 1 if yes else -1)

    def streamed(self, now: float, pieces: float) -> None:
        """Further pieces of such streams."""
        self._streamed += pieces * self.per_piece
        self._move(now, 3, 0)

    def counted(self, tokens: int, pieces: int) -> None:
        """A stream has ended, whose server counted ``tokens`` in its ``pieces``."""
        if pieces >= FEWEST:
            self.per_piece += _LEARNS * (tokens / pieces - self.per_piece)

    # --- windows ----------------------------------------------------------------------------

    def _move(self, now: float, which: int, by: int) -> None:
        counts, area, at = self._counts, self._area, self._at
        if at is None:
            self._at = self._begun = at = now
        passed = now - at
        if passed > 0:
            self._at = now
            area[0] += counts[0] * passed
            area[1] += counts[1] * passed
            area[2] += counts[2] * passed
            area[3] += counts[3] * passed
            area[4] += counts[0] * passed
            if now - self._begun >= self._span:
                self._close(now)
        counts[which] = max(0, counts[which] + by)
        if which == 0 and not counts[0]:
            self._open(now)  # Nothing is under way: what comes next is another crowd.

    def _close(self, now: float) -> None:
        """Take in a window that tells something."""
        lasted, area = now - self._begun, self._area
        told, rounds = self._streamed >= FEWEST, self._scored >= FEWEST / 2
        if not (told or rounds) and lasted < LONGEST_S:
            return
        sequences = max(area[0] - area[1] + area[2], 0.0) / lasted
        if told and area[3] > 0:
            tpot = area[3] / self._streamed
            self._tempo += (_LATE if self._tempo else 1.0) * (tpot - self._tempo)
            self._timed = self._timed or self._tempo
            self._span = min(max(WINDOW_S, STEPS * tpot), LONGEST_S)
            self.tempo.add(sequences, self._read * tpot / lasted, tpot)
            others = max(area[0] / lasted - 1, 0.0)
            self.pace.add(self.pace.ordinary[0], others, tpot, _COUNTS)
        if rounds and area[2] > 0:
            took = area[2] / self._scored
            self._timed += _LATE * (self._tempo - self._timed)
            self.passes.add(sequences, self._read * took / lasted, took)
        kept = self._kept
        kept[0] = KEEPS * kept[0] + self._committed
        kept[1] = KEEPS * kept[1] + area[1]
        kept[2] = KEEPS * kept[2] + area[2]
        self._open(now)

    def _open(self, now: float) -> None:
        self._begun = now
        self._area[:4] = [0.0] * 4
        self._streamed = self._committed = self._read = self._scored = 0.0

    # --- reading ----------------------------------------------------------------------------

    @property
    def others(self) -> int:
        """Requests under way beside one that asks."""
        return max(self._counts[0] - 1, 0)

    @property
    def streaming(self) -> bool:
        """Whether a plain stream is under way whose first token is there."""
        return self._counts[3] > 0

    def tpot(self) -> float | None:
        """Seconds a token of a plain stream, at the present load; ``None``: unknown."""
        sequences = self._counts[0] - self._counts[1] + self._counts[2]
        tempo, passes = self.tempo.law(), self.passes.law()
        each = _pooled(_slope(tempo, 1), _slope(passes, 1, 1 / WAITS)).mean
        return _beside(tempo, self.tempo.ordinary, sequences, each)

    def mark(self, now: float) -> tuple[float, float]:
        """To tell later how many others were under way since."""
        self._move(now, 3, 0)
        return now, self._area[4]

    def others_since(self, mark: tuple[float, float], now: float) -> float:
        """The mean over time of the requests beside the one that took the mark."""
        self._move(now, 3, 0)
        lasted = now - mark[0]
        if lasted <= 0:
            return max(self._counts[0] - 1, 0)
        return max((self._area[4] - mark[1]) / lasted - 1, 0.0)

    def frozen(
        self,
        target: str = "",
        drafting: Drafting | None = None,
        *,
        speculates: bool = False,
        late_s: float = 0.0,
    ) -> Crowd:
        """The crowd as it is now beside a request that has begun, at its drafter as well;
        ``speculates``: it makes rounds already; ``late_s``: by how much its rounds are kept waiting
        here (``turns``)."""
        requests, speculating = self._counts[0], self._counts[1]
        committed, seconds, scoring = self._kept
        sequences = requests - speculating + self._counts[2]
        tempo, passes = self.tempo.law(), self.passes.law()
        per_sequence = _pooled(_slope(tempo, 1), _slope(passes, 1, 1 / WAITS))
        each = per_sequence.mean
        return Crowd(
            target,
            max(requests - 1, 0),
            max(speculating - speculates, 0),
            min(1.0, scoring / seconds) if seconds else 0.0,
            committed / seconds if seconds and committed else None,
            _beside(tempo, self.tempo.ordinary, sequences, each),
            _beside(passes, self.passes.ordinary, sequences, each * WAITS),
            per_sequence,
            _pooled(_slope(tempo, 2), _slope(passes, 2)),
            WAITS * max(self._tempo - self._timed, 0.0) + late_s,
            self.rereads,
            0.0 if drafting is None else drafting.others(speculating - speculates),
            _NONE if drafting is None else drafting.slope(),
        )


def _beside(
    law: Law | None, ordinary: tuple[float, float], sequences: float, each: float
) -> float | None:
    """A law's seconds at so many sequences. Where there are more than it has seen, each further one
    adds what both laws show together: while all speculate no stream is timed, and while all stream
    no scoring request is."""
    if law is None:
        return None
    x, y = ordinary
    if sequences <= x:
        return law.mean_at(sequences, y)
    return law.mean_at(x, y) + max(each, law.per_x) * (sequences - x)


def _slope(law: Law | None, which: int, unit: float = 1.0) -> Estimate | None:
    """The slope on sequences (1) or tokens (2), no less than 0."""
    if law is None:
        return None
    mean = law.per_x if which == 1 else law.per_y
    variance = law.covariance[3 if which == 1 else 5]
    return Estimate.around(mean, math.sqrt(max(variance, 0.0)), law.weight).times(unit)


def _pooled(*found: Estimate | None) -> Estimate:
    """Two measurements of one slope, each by how sure it is."""
    known = [each for each in found if each is not None]
    if not known:
        return _NONE
    precisions = [1 / max((each.high - each.mean) / Z, 1e-9) ** 2 for each in known]
    total = sum(precisions)
    mean = sum(p * each.mean for p, each in zip(precisions, known, strict=True)) / total
    return Estimate.around(mean, 1 / math.sqrt(total), sum(each.weight for each in known))


class Pulse:
    """One plain stream, piece by piece: told how many came, and at last how many tokens it had."""

    __slots__ = ("_clock", "_crowd", "_pieces")

    def __init__(self, crowd: Crowding, clock: Callable[[], float]) -> None:
        self._crowd, self._clock = crowd, clock
        self._pieces = 0

    def __call__(self, pieces: int) -> None:
        if not self._pieces:
            self._crowd.streams(self._clock(), True)
            pieces -= 1  # What the first one took isn't a token's time.
            self._pieces = 1
        self._pieces += pieces
        self._crowd.streamed(self._clock(), pieces)

    def end(self, tokens: int | None = None) -> None:
        """The stream has ended, however."""
        pieces, self._pieces = self._pieces, 0
        if pieces:
            self._crowd.streams(self._clock(), False)
            if tokens:
                self._crowd.counted(tokens, pieces)
