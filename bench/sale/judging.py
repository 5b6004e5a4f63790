"""What a setting came to against plain, and which criteria that meets. Pure.

An exact setting must beat plain's time to the first token and not lower its throughput. A lossy
one that agrees with the target at least :data:`AGREES` of the time is held to all three of the
article's figures. Every setting shows those three; what is not had comes with the reason, in
figures of the run.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.sale.running import Outcome

ARTICLE = {"TTFT": -65.5, "throughput": 240.0, "cost": 12.0}
"""What the article reports against plain, in per cent."""
AGREES = 0.95
SAME = 1.0
"""Per cent by which two runs of the same calls differ at least: "not lower" means by no more than
this, or than what plain's own two runs are apart."""
RARELY = 0.05
"""A setting that drafts for fewer of its requests sends plain's calls, whose first token is
plain's: it is held to plain's throughput."""
BUSY = 0.85
"""Of a core: a client that uses more than this is itself what the requests wait for."""


@dataclass(frozen=True, slots=True)
class Plain:
    """What ``AsyncOpenAI`` came to: what the others are compared with. Means of its runs."""

    ttft_s: float
    seconds: float
    usd: float
    apart: float = 0.0
    """Per cent that the slower of two runs took longer; 0: it ran once."""

    @classmethod
    def of(cls, *runs: Outcome) -> Plain:
        seconds = [run.seconds for run in runs]
        return cls(
            statistics.mean(a.ttft_s for run in runs for a in run.answers),
            statistics.mean(seconds),
            statistics.mean(run.usd for run in runs),
            100 * (max(seconds) / min(seconds) - 1),
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One setting. Seconds; changes are per cent against plain."""

    name: str
    label: str
    lossy: bool
    """Whether it allows answers other than the target's own; its label says whether any came."""
    ttft_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    rps: float
    usd: float
    identical: float
    ttft: float
    throughput: float
    cost: float
    rounds: float
    """Scoring rounds a request."""
    accepted: float | None
    """Of the drafted tokens."""
    generated: float
    """Tokens a request that the target generated one a step."""
    speculated: float
    """The share of requests that were drafted for."""
    target_usd: float
    draft_usd: float
    input_usd: float
    """Of it, what prompts and drafts cost as the target's input."""
    overrun: float
    client_cpu: float
    failed: tuple[str, ...]
    """Why requests failed, one each."""
    notes: tuple[str, ...]
    """What the reports say most often of how requests fell back."""
    same: float = SAME
    """Per cent of throughput that is no loss."""
    reference: bool = False
    """It is ``AsyncOpenAI`` itself."""
    whole: bool = False
    """Answers are drafted to their end before anything is scored."""
    plan: str = ""
    """What the reports say most often of why a request went plain."""


def quantile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def row(outcome: Outcome, plain: Plain, own: Sequence[str]) -> Row:
    """``own``: the target's own answers, in the order of the requests."""
    answers = outcome.answers
    reports = [a.report for a in answers if a.report is not None]
    total = [a.total_s for a in answers]
    ttft = statistics.mean(a.ttft_s for a in answers)
    drafted = sum(r.drafted for r in reports)
    rounds = sum(r.rounds for r in reports)
    return Row(
        name=outcome.setting.name,
        label=_label({r.exactness for r in reports}),
        lossy=outcome.setting.lossy,
        ttft_s=ttft,
        p50_s=quantile(total, 0.5),
        p95_s=quantile(total, 0.95),
        p99_s=quantile(total, 0.99),
        rps=len(answers) / outcome.seconds,
        usd=outcome.usd,
        identical=sum(a.text == text for a, text in zip(answers, own, strict=True)) / len(own),
        ttft=100 * (ttft / plain.ttft_s - 1),
        throughput=100 * (plain.seconds / outcome.seconds - 1),
        cost=100 * (outcome.usd / plain.usd - 1),
        rounds=rounds / len(answers),
        accepted=sum(r.accepted for r in reports) / drafted if drafted else None,
        generated=outcome.target.completion_tokens / len(answers),
        speculated=sum(r.drafted > 0 for r in reports) / len(answers),
        target_usd=outcome.target.usd,
        draft_usd=outcome.draft.usd,
        input_usd=outcome.target.input_usd,
        overrun=outcome.overrun,
        client_cpu=outcome.client_cpu,
        failed=tuple(a.error for a in answers if a.error is not None),
        notes=_common([note for r in reports for note in r.notes]),
        same=max(SAME, plain.apart),
        reference=outcome.setting.policy is None,
        whole=outcome.setting.whole,
        plan=next(iter(_common([_unloaded(r.plan_reason) for r in reports if not r.drafted])), ""),
    )


def _label(found: set[str]) -> str:
    """The loosest of the answers' labels: what the whole setting can promise."""
    for label in ("heuristic", "bounded", "exact-greedy"):
        if label in found:
            return label
    return "exact"


def _common(notes: Sequence[str]) -> tuple[str, ...]:
    counts: dict[str, int] = {}
    for note in notes:
        said = "".join("N" if c.isdigit() else c for c in note)
        while "NN" in said:
            said = said.replace("NN", "N")
        counts[said] = counts.get(said, 0) + 1
    ranked = sorted(counts.items(), key=lambda item: -item[1])[:3]
    return tuple(f"{count}x {note}" for note, count in ranked)


def _unloaded(reason: str) -> str:
    """A plan's reason without the load that it was made at."""
    before, _, after = reason.partition(" requests in flight")
    return after.partition(": ")[2] if after and before.isdigit() else reason


@dataclass(frozen=True, slots=True)
class Verdict:
    """One criterion of one setting. ``held`` ``None``: it isn't held to it."""

    said: str
    held: bool | None
    reason: str = ""


def figures(row: Row, plain: Row) -> dict[str, str]:
    """Each of the article's three figures → why it isn't had; only those that aren't."""
    missed = {}
    if row.ttft > ARTICLE["TTFT"]:
        missed["TTFT"] = _why_late(row, plain)
    if row.throughput < ARTICLE["throughput"]:
        missed["throughput"] = _why_slow(row, plain)
    if row.cost > ARTICLE["cost"]:
        missed["cost"] = _why_dear(row, plain)
    return missed


def verdicts(row: Row, plain: Row) -> list[Verdict]:
    """What the setting is held to."""
    if row.failed:
        said = f"no request may fail, {len(row.failed)} did"
        return [Verdict(said, False, row.failed[0])]
    if row.reference:
        return []
    if row.lossy and not row.speculated:
        return [Verdict("not had: no draft was ever used" + _said(row), None)]
    if not row.lossy:
        held = row.throughput >= -row.same
        throughput = Verdict(
            f"throughput {row.throughput:+.1f} % must not be lower", held, _why_slow(row, plain)
        )
        if row.speculated < RARELY:
            why = f" ({row.plan})" if row.plan else ""
            said = f"{1 - row.speculated:.0%} plain calls{why}: an earlier first token is not had"
            return [Verdict(said, None), throughput]
        if row.whole and row.ttft >= 0:
            said = (
                f"TTFT {row.ttft:+.1f} %: an earlier first token is not had, as nothing is shown "
                "before the whole answer has been drafted and scored"
            )
            return [Verdict(said, None), throughput]
        said = f"TTFT {row.ttft:+.1f} % must beat plain's"
        return [Verdict(said, row.ttft < 0, _why_late(row, plain)), throughput]
    if row.identical < AGREES:
        said = f"lossy, {row.identical:.1%} as the target's own: not held to the article's figures"
        return [Verdict(said, None)]
    missed = figures(row, plain)
    found = {"TTFT": row.ttft, "throughput": row.throughput, "cost": row.cost}
    return [
        Verdict(f"{name} {value:+.1f} % ({ARTICLE[name]:+.1f} %)", name not in missed,
                missed.get(name, ""))
        for name, value in found.items()
    ]  # fmt: skip


def _why_late(row: Row, plain: Row) -> str:
    if not row.speculated:
        return "the first token is the target's own, and it waits for a step like plain's"
    if row.speculated < 0.99:
        return (
            f"{1 - row.speculated:.0%} of the requests went plain, and waited for the target's "
            f"steps with {row.generated:.0f} generated tokens a request ({plain.generated:.0f})"
        )
    return (
        f"the first token waits for the draft and a scoring round, {row.ttft_s:.2f} s; the target "
        f"generated {row.generated:.0f} tokens a request ({plain.generated:.0f})" + _busy(row)
    )


def _why_slow(row: Row, plain: Row) -> str:
    return (
        f"the target generated {row.generated:.0f} tokens a request, rounds' own included "
        f"({plain.generated:.0f} in plain)" + _busy(row)
    )


def _why_dear(row: Row, plain: Row) -> str:
    return (
        f"of the target's {row.target_usd:.3f} $ the input of {row.rounds:.1f} rounds a request is "
        f"{row.input_usd:.3f} ({plain.input_usd:.3f} in plain), and the draft {row.draft_usd:.3f} $"
    )


def _said(row: Row) -> str:
    return f"; {row.notes[0]}" if row.notes else ""


def _busy(row: Row) -> str:
    said = ""
    if row.overrun > 0.05:
        said += f"; the toy's real computing took {row.overrun:.0%} beyond the pace"
    if row.client_cpu > BUSY:
        said += f"; the client used {row.client_cpu:.0%} of a core"
    return said
