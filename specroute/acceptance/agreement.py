"""How far a lossy rule may go: the loosest setting whose answers agree with the target's own.

Pure. Knows whole drafts, what the target thought of their tokens, and the target's plain answers;
deliberately not how they were had.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specroute.acceptance.lossy import MeanLogprob, Ratio

Whole = Ratio | MeanLogprob

RULES: dict[str, tuple[Callable[[float], Whole], tuple[float, ...]]] = {
    "ratio": (
        Ratio,
        (1.0, 0.7, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02, 0.01, 0.005, 0.002, 1e-3),
    ),
    "mean_logprob": (
        MeanLogprob,
        (-0.005, -0.01, -0.02, -0.05, -0.1, -0.15, -0.2, -0.3, -0.4, -0.5, -0.75, -1.0, -1.5, -2.0),
    ),
}
"""The rules that can be calibrated: how one is made, and the settings tried, strict to loose."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One prompt: the draft, the target's evidence on its tokens, and the plain answer.

    ``evidence`` as in :meth:`Ratio.keeps`; ``ends[i]``: characters of ``draft`` up to and with
    token i; ``ended``: the last token ends the answer.
    """

    draft: str
    ends: tuple[int, ...]
    evidence: tuple[tuple[float, float], ...]
    plain: str
    ended: bool = False

    def agrees(self, kept: int) -> bool:
        """Whether the kept part is word for word how the target's own answer begins. Going on from
        there greedily, the target gives its own answer. A draft that is kept with its end has to be
        all of it: nothing goes on from there."""
        if self.ended and kept == len(self.ends):
            return self.plain == self.draft
        return self.plain.startswith(self.draft[: self.ends[kept - 1]] if kept else "")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting over all trials."""

    value: float
    trials: int
    agreeing: int
    kept: float
    """The mean share of the draft's tokens that it keeps."""
    at_least: float
    """The lower confidence bound of the share of answers that agree."""


def tried(name: str, trials: Sequence[Trial], confidence: float) -> list[Setting]:
    """Every setting of the rule ``name``, strict to loose."""
    make, values = RULES[name]
    found = []
    for value in values:
        rule = make(value)
        kept = [rule.keeps(trial.evidence) for trial in trials]
        agreeing = sum(trial.agrees(k) for trial, k in zip(trials, kept, strict=True))
        share = math.fsum(
            k / max(len(t.evidence), 1) for t, k in zip(trials, kept, strict=True)
        ) / max(len(trials), 1)
        bound = lower_bound(agreeing, len(trials), confidence)
        found.append(Setting(value, len(trials), agreeing, share, bound))
    return found


def loosest(settings: Sequence[Setting], wanted: float) -> Setting | None:
    """The loosest setting whose bound, and that of every stricter one, is at least ``wanted``.

    Tested in a fixed order and stopped at the first that fails, so the bound holds for the chosen
    one although many were tried (fixed-sequence testing, as in Learn then Test, arXiv 2110.01052).
    """
    chosen = None
    for setting in settings:
        if setting.at_least < wanted:
            break
        chosen = setting
    return chosen


def needed(wanted: float, confidence: float) -> int:
    """Trials without which no setting can reach ``wanted``: all of so many would have to agree."""
    return math.ceil(math.log(1 - confidence) / math.log(wanted))


def lower_bound(successes: int, trials: int, confidence: float) -> float:
    """The one-sided Clopper–Pearson bound: the share p at which so many successes or more would
    have a chance of ``1 - confidence`` (Clopper and Pearson, Biometrika 26, 1934)."""
    if not 0 <= successes <= trials or not 0 < confidence < 1:
        raise ValueError(
            f"successes={successes!r}, trials={trials!r}, confidence={confidence!r}: expected "
            "0 <= successes <= trials and a confidence inside 0 to 1"
        )
    if successes == 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(60):
        p = (low + high) / 2
        if _at_least(successes, trials, p) < 1 - confidence:
            low = p
        else:
            high = p
    return low


def _at_least(successes: int, trials: int, p: float) -> float:
    """P(X >= successes) of a binomial."""
    if p <= 0 or p >= 1:
        return float(p >= 1)
    whole = math.lgamma(trials + 1)
    return math.fsum(
        math.exp(
            whole
            - math.lgamma(i + 1)
            - math.lgamma(trials - i + 1)
            + i * math.log(p)
            + (trials - i) * math.log1p(-p)
        )
        for i in range(successes, trials + 1)
    )
