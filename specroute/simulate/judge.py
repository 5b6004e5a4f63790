"""How policies did against plain, the best fixed plan and each other; what must hold.

Knows sums and thresholds. Runs nothing but what it is asked to judge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from specroute.policy.base import Policy
from specroute.simulate.oracle import best, fixed_plans
from specroute.simulate.run import Outcome, run
from specroute.simulate.scenario import STEP_AT, Scenario
from specroute.simulate.world import Synthetic

LATE = (200, 400)
"""The requests of which a policy must have learnt what there is to learn."""
AFTER_STEP = (STEP_AT + 50, STEP_AT + 100)
EARLY = (8, 20, 50)
"""Short runs: so many requests from the first one on."""


@dataclass(frozen=True, slots=True)
class Score:
    """One policy in one scenario; ratios of means."""

    seconds: float
    """Against plain, all requests,"""
    dollars: float
    late_seconds: float
    """against the best fixed plan of the late requests,"""
    late_dollars: float
    late_dollars_plain: float
    """and against plain there."""
    after_step: float
    """Seconds against the best fixed plan after the step."""
    speculated: float
    """The share of requests that were speculated on."""
    early_seconds: tuple[float, ...] = ()
    """Against plain, over the first ``EARLY`` requests;"""
    early_dollars: tuple[float, ...] = ()
    parted: tuple[float, float] | None = None
    """(seconds, dollars) against plain where the requests are of many traffic classes."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One scenario, judged."""

    scenario: Scenario
    oracle: str
    """The best fixed plan in seconds, of the late requests,"""
    oracle_seconds: float
    """and against plain there;"""
    oracle_dollars: float
    """the best in dollars against plain."""
    scores: Mapping[str, Score]


def judge(
    scenario: Scenario,
    policies: Mapping[str, Callable[[], Policy]],
    unmeasured: Mapping[str, Callable[[], Policy]],
    classes: int = 0,
) -> Cell:
    """Run every policy through one scenario. ``unmeasured`` look at no figures. ``classes``: the
    others once more, with the requests in so many traffic classes."""
    world = Synthetic(scenario)
    parted_world = Synthetic(replace(scenario, classes=classes)) if classes else None
    plans = fixed_plans(world)
    plain = next(outcome for plan, outcome in plans.items() if plan.k == 0)
    first, last = _window(LATE, scenario)
    oracle, late_s = best(plans, first, last)
    _, late_usd = best(plans, first, last, dollars=True)
    step = _window(AFTER_STEP, scenario)
    _, step_s = best(plans, *step)
    plain_s, plain_usd = fmean(plain.seconds[first:last]), fmean(plain.dollars[first:last])
    scores = {}
    for group, measured in ((policies, True), (unmeasured, False)):
        for name, make in group.items():
            outcome = run(world, make(), measured=measured)
            parted = None
            if parted_world is not None and measured:
                apart = run(parted_world, make())
                parted = (
                    _ratio(apart.seconds, plain.seconds),
                    _ratio(apart.dollars, plain.dollars),
                )
            late_dollars = fmean(outcome.dollars[first:last])
            scores[name] = Score(
                _ratio(outcome.seconds, plain.seconds),
                _ratio(outcome.dollars, plain.dollars),
                fmean(outcome.seconds[first:last]) / late_s,
                late_dollars / late_usd,
                late_dollars / plain_usd,
                fmean(outcome.seconds[slice(*step)]) / step_s,
                _speculated(outcome),
                tuple(_ratio(outcome.seconds[:n], plain.seconds[:n]) for n in EARLY),
                tuple(_ratio(outcome.dollars[:n], plain.dollars[:n]) for n in EARLY),
                parted,
            )
    return Cell(scenario, str(oracle), late_s / plain_s, late_usd / plain_usd, scores)


def _window(window: tuple[int, int], scenario: Scenario) -> tuple[int, int]:
    """The same part of a shorter run."""
    if scenario.requests >= window[1]:
        return window
    return scenario.requests // 2, scenario.requests


def _ratio(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(a) / sum(b)


def _speculated(outcome: Outcome) -> float:
    return fmean(method != "plain" for method in outcome.methods)


# --- what must hold ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """One thing that must hold, and whether it does."""

    holds: bool
    said: str
    figure: str


def mean_and_worst_decile(values: Sequence[float]) -> tuple[float, float]:
    """(the mean, the mean of the worst tenth)."""
    worst = sorted(values)[-max(1, len(values) // 10) :]
    return fmean(values), fmean(worst)


def sees_step(scenario: Scenario) -> bool:
    """Whether plain calls or shadow evidence can see the scenario's step."""
    return scenario.drift == "step" and (scenario.steps == "r" or scenario.shadow)


def verdicts(cells: Sequence[Cell], peers: Sequence[str]) -> list[Verdict]:
    """Everything that must hold of the presets."""
    of = {name: [cell.scores[name] for cell in cells] for name in cells[0].scores}
    late = fmean(s.late_seconds for s in of["latency"])
    worst = max(s.late_seconds for s in of["latency"])
    slowest = max(s.seconds for s in of["latency"])
    dearest = max(s.dollars for s in of["cost"])
    saving = [c for c in cells if c.oracle_dollars < 0.99]
    shares = [(1 - c.scores["cost"].late_dollars_plain) / (1 - c.oracle_dollars) for c in saving]
    balanced = max(s.dollars for s in of["balanced"])
    steps = [c.scores["latency"].after_step for c in cells if sees_step(c.scenario)]
    found = [
        Verdict(
            late <= 1.05,
            "latency: mean seconds of requests 201-400 within 5 % of the best fixed plan",
            f"{late:.3f} in the mean of scenarios (worst {worst:.3f}, "
            f"{sum(s.late_seconds > 1.05 for s in of['latency'])} of {len(cells)} above 1.05)",
        ),
        Verdict(
            slowest <= 1.02,
            "latency: never more than 2 % slower than plain in any scenario, requests 1-400",
            f"{slowest:.4f} at worst",
        ),
        Verdict(
            dearest <= 1.01,
            "cost: never more than 1 % dearer than plain in any scenario, requests 1-400",
            f"{dearest:.4f} at worst",
        ),
    ]
    if shares:
        total = sum(1 - c.scores["cost"].late_dollars_plain for c in saving)
        share = total / sum(1 - c.oracle_dollars for c in saving)
        found.append(
            Verdict(
                share >= 0.9,
                "cost: saves at least 90 % of what the cheapest fixed plan saves, 201-400",
                f"{share:.3f} of all savings, in {len(saving)} scenarios (worst {min(shares):.3f}, "
                f"{sum(s < 0.9 for s in shares)} below .9)",
            )
        )
    found.append(
        Verdict(
            balanced <= 1.12,
            "balanced: keeps max_cost_ratio = 1.12 in the mean of every scenario",
            f"{balanced:.4f} at worst",
        )
    )
    if steps:
        found.append(
            Verdict(
                max(steps) <= 1.10,
                "latency: within 10 % of the new best fixed plan 50 requests after a step that "
                "plain calls or shadow evidence can see",
                f"{max(steps):.3f} at worst of {len(steps)}, {fmean(steps):.3f} in the mean",
            )
        )
    found += _short_runs(of)
    ours = mean_and_worst_decile([s.seconds for s in of["latency"]])
    for peer in peers:
        theirs = mean_and_worst_decile([s.seconds for s in of[peer]])
        found.append(
            Verdict(
                ours[0] < theirs[0] and ours[1] < theirs[1],
                f"latency: better than {peer} in the mean and in the worst decile",
                f"{ours[0]:.3f} / {ours[1]:.3f} against {theirs[0]:.3f} / {theirs[1]:.3f}",
            )
        )
    return found


def _short_runs(of: Mapping[str, Sequence[Score]]) -> list[Verdict]:
    """First requests, and many classes of few requests, against plain."""
    found = []
    for name in ("latency", "balanced", "cost"):
        dollars = name == "cost"
        most, unit = (1.01, "dearer") if dollars else (1.02, "slower")
        early = [s.early_dollars if dollars else s.early_seconds for s in of[name]]
        worst = [max(column) for column in zip(*early, strict=True)]
        if worst:
            found.append(
                Verdict(
                    max(worst) <= most,
                    f"{name}: the first 8, 20 and 50 requests no more than {most - 1:.0%} {unit} "
                    "than plain in any scenario",
                    " / ".join(f"{value:.4f}" for value in worst) + " at worst",
                )
            )
        parted = [s.parted[dollars] for s in of[name] if s.parted is not None]
        if parted:
            found.append(
                Verdict(
                    max(parted) <= most,
                    f"{name}: the same of many traffic classes with a few requests each",
                    f"{max(parted):.4f} at worst of {len(parted)}, {fmean(parted):.3f} in the mean",
                )
            )
    return found
