"""What has been measured, per (target, drafter, traffic class), and frozen snapshots of it.

Pure: no I/O and no clock. Estimators are discounted, so that drift is followed. Knows nothing of
what a policy makes of the figures.
"""

from __future__ import annotations

from collections import defaultdict

from specroute.measure.acceptance import MAX_K, Acceptance
from specroute.measure.figures import Pace, Snapshot

_DECAY_ROUND = 0.98
_DECAY_REQUEST = 0.95


class Mean:
    """A discounted mean; ``None`` until something was seen. With ``most``, a value counts as at
    most that many times the mean so far: one stalled request shouldn't rule the next ones."""

    __slots__ = ("_decay", "_most", "_sum", "weight")

    def __init__(self, decay: float, most: float | None = None) -> None:
        self._decay = decay
        self._most = most
        self._sum = 0.0
        self.weight = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        if self._most is not None and self.weight:
            value = min(value, self._most * self._sum / self.weight)
        self._sum = self._sum * self._decay + value * weight
        self.weight = self.weight * self._decay + weight

    @property
    def value(self) -> float | None:
        return self._sum / self.weight if self.weight else None


class AcceptanceCounts:
    """The mutable side of :class:`Acceptance`."""

    __slots__ = ("_decay", "_judged", "_passed")

    def __init__(self, decay: float = 1.0) -> None:
        self._decay = decay
        self._passed: list[float] = []
        self._judged: list[float] = []

    def add(self, accepted: int, judged: int) -> None:
        """One round: of ``judged`` tokens the first ``accepted`` passed."""
        if self._decay < 1:
            self._passed = [v * self._decay for v in self._passed]
            self._judged = [v * self._decay for v in self._judged]
        for j in range(min(judged, MAX_K)):
            if j == len(self._judged):
                self._passed.append(0.0)
                self._judged.append(0.0)
            self._judged[j] += 1
            self._passed[j] += j < accepted

    def frozen(self) -> Acceptance:
        return Acceptance(tuple(self._passed), tuple(self._judged))


class Measurements:
    """All counters of one client. Updates are O(K); reading gives frozen values."""

    def __init__(self) -> None:
        self._pace: dict[tuple[str, str], tuple[Mean, Mean, Mean]] = defaultdict(
            lambda: (Mean(_DECAY_REQUEST), Mean(_DECAY_REQUEST), Mean(_DECAY_REQUEST))
        )
        self._acceptance: dict[tuple[str, str, str, str], AcceptanceCounts] = defaultdict(
            lambda: AcceptanceCounts(_DECAY_ROUND)
        )
        self._verify: dict[tuple[str, str], Mean] = defaultdict(lambda: Mean(0.9, most=2))
        self._draft: dict[str, Mean] = defaultdict(lambda: Mean(0.9, most=2))
        self._since: dict[tuple[str, str, str], int] = defaultdict(int)

    def plain(
        self, target: str, traffic: str, *, ttft_s: float, tpot_s: float | None, tokens: int
    ) -> None:
        """A finished plain answer of ``tokens`` tokens."""
        for key in (traffic, ""):
            ttft, tpot, length = self._pace[target, key]
            ttft.add(ttft_s)
            if tpot_s is not None:
                tpot.add(tpot_s, max(tokens - 1, 1))
            length.add(tokens)

    def first_pace(self, target: str, *, ttft_s: float, tpot_s: float) -> None:
        """A rough plain pace to start from; counts as much as one token of a plain answer."""
        ttft, tpot, _ = self._pace[target, ""]
        ttft.add(ttft_s)
        tpot.add(tpot_s)

    def answer(self, target: str, traffic: str, tokens: int) -> None:
        """The length of an answer that was not plain."""
        for key in (traffic, ""):
            self._pace[target, key][2].add(tokens)

    def verify_time(self, target: str, how: str, seconds: float) -> None:
        """One scoring request's time, calibration's included. ``how``: as in :meth:`round`."""
        self._verify[target, how].add(seconds)

    def draft_time(self, drafter: str, seconds: float) -> None:
        """Seconds per drafted token, timed outside any request."""
        self._draft[drafter].add(seconds)

    def round(
        self,
        target: str,
        drafter: str,
        traffic: str,
        *,
        drafted: int,
        accepted: int,
        judged: int,
        draft_s: float | None,
        verify_s: float | None,
        how: str = "",
    ) -> None:
        """One verification round. ``how``: who judged; kinds that differ in it share nothing but
        the draft's time. ``draft_s``, ``verify_s``: ``None`` where a round doesn't tell
        (the first draft also reads the prompt; lanes are no scoring request)."""
        for key in (traffic, ""):
            self._acceptance[target, drafter, key, how].add(accepted, judged)
        if verify_s is not None:
            self._verify[target, how].add(verify_s)
        if drafted and draft_s is not None:
            self._draft[drafter].add(draft_s / drafted)

    def planned(self, target: str, drafter: str, traffic: str, *, tried: bool) -> None:
        """A plan was made; ``tried``: with speculation."""
        key = (target, drafter, traffic)
        self._since[key] = 0 if tried else self._since[key] + 1

    def snapshot(self, target: str, drafter: str, traffic: str, how: str = "") -> Snapshot:
        """The figures for one class; a class with little of its own borrows from all of them."""
        own, pooled = self._pace[target, traffic], self._pace[target, ""]
        ttft, tpot, length = (
            a.value if a.value is not None else b.value for a, b in zip(own, pooled, strict=True)
        )
        seen = self._acceptance[target, drafter, traffic, how].frozen()
        lent = self._acceptance[target, drafter, "", how].frozen()
        first = seen.judged[0] if seen.judged else 0.0
        acceptance = seen.plus(lent.lending(8 - first / 2))
        return Snapshot(
            Pace(ttft, tpot, length),
            acceptance,
            self._verify[target, how].value,
            self._draft[drafter].value,
            self._verify[target, how].weight,
            self._since[target, drafter, traffic],
        )
