"""What the demo found, as JSON and as a table: each class plain, and on each side.

Knows what stands where, and what a side's calls would have cost at other prices. Times nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specroute.cli.demo_plan import PRICES, Plan, Side

if TYPE_CHECKING:
    from rich.console import Console

    from specroute.comparison import Traffic


@dataclass(slots=True)
class Outcome:
    """What the demo found: of each class of prompts, each side's pairs with the same plain runs."""

    classes: dict[str, dict[str, Traffic]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def lossless(self) -> bool:
        return all(
            pair.agrees
            for sides in self.classes.values()
            for traffic in sides.values()
            for pair in traffic.pairs
        )


def as_json(plan: Plan, sides: Mapping[str, Side], outcome: Outcome) -> dict[str, Any]:
    """Everything, for programs."""
    classes = []
    for name, found in outcome.classes.items():
        shown = {side: traffic.as_dict() for side, traffic in found.items()}
        first = next(iter(shown.values()))
        each = {
            side: {k: v for k, v in data.items() if k not in ("name", "prompts", "plain")}
            for side, data in shown.items()
        }
        classes.append(
            {"name": name, "prompts": first["prompts"], "plain": first["plain"], "sides": each}
        )
    return {
        "pace": plan.pace if plan.paced else None,
        "simulated": plan.paced,
        "policy": plan.policy,
        "prices": {name: side.prices for name, side in sides.items()},
        "warnings": outcome.warnings,
        "classes": classes,
        "lossless": outcome.lossless,
    }


COLUMNS = ("", "seconds", "speed", "TTFT", "rounds", "accepted", "dollars", "label", "same")


def show(plan: Plan, sides: Mapping[str, Side], outcome: Outcome, console: Console) -> None:
    """The table, and below it what of it needs a sentence."""
    from rich.table import Table

    console.print(f"plain AsyncOpenAI against AsyncSpecRoute ({plan.policy}), greedy")
    for name, found in outcome.classes.items():
        first = next(iter(found.values()))
        tokens = int(first.plain(lambda run: run.tokens))
        table = Table(
            title=f"{name}: {len(first.pairs)} prompts, {tokens} tokens",
            title_justify="left",
            box=None,
            padding=(0, 1, 0, 0),
        )
        for column in COLUMNS:
            words = column in ("", "label")
            table.add_column(column, justify="left" if words else "right", no_wrap=True)
        table.add_row(*_plain(plan, first))
        for side, traffic in found.items():
            table.add_row(*_speculative(side, traffic))
        console.print(table)
    for warning in outcome.warnings:
        console.print(f"note: {warning}", markup=False)
    for name, found in outcome.classes.items():
        for side, traffic in found.items():
            for i, pair in enumerate(traffic.pairs):
                if not pair.identical:
                    why = pair.excuse or "NOT explained by the target's own disagreement"
                    console.print(f"{name} {i + 1}, {side}, differs: {why}", markup=False)
            (reason,) = [r.plan_reason for r in traffic.reports][-1:]
            console.print(f"{name}, {side}, last plan: {reason}", markup=False)
    if not plan.paced:
        return
    for name, found in outcome.classes.items():
        for side, traffic in found.items():
            said = None if any(sides[side].prices.values()) else _dearer(traffic)
            if said is not None:
                console.print(f"{name}, {side}: {said}", markup=False)
    console.print(
        f"The target's pace is simulated ({plan.pace}) and the models are tiny toys. The policy is "
        "the same on all sides; only the prices that it is told differ."
    )


def _plain(plan: Plan, traffic: Traffic) -> list[str]:
    found = traffic.as_dict()["plain"]
    cost = _plain_cost(traffic) if plan.paced else None
    return [*_figures("plain", found, 1.0), "–", "–", _dollars(cost), "exact", "–"]


def _speculative(side: str, traffic: Traffic) -> list[str]:
    found = traffic.as_dict()
    own = found["speculative"]
    rate = f"{own['accepted'] / own['drafted']:.0%}" if own["drafted"] else "–"
    same = f"{sum(pair.identical for pair in traffic.pairs)}/{len(traffic.pairs)}"
    return [
        *_figures(side, own, found["speedup"]),
        str(own["rounds"]),
        rate,
        _dollars(own["cost_usd"]),
        own["exactness"],
        same,
    ]


def _figures(name: str, row: Mapping[str, Any], speedup: float) -> list[str]:
    ttft = f"{row['ttft_s'] * 1e3:.0f} ms"
    return [name, f"{row['seconds']:.2f}", f"{speedup:.2f}x", ttft]


def _plain_cost(traffic: Traffic) -> float | None:
    """What the plain answers cost: the prompts' length is known from the other side's usage."""
    prompts = [r.prompt_tokens for r in traffic.reports]
    if None in prompts:
        return None
    return _at_prices(
        sum(p for p in prompts if p is not None), int(traffic.plain(lambda run: run.tokens))
    )


def _dearer(traffic: Traffic) -> str | None:
    """What its calls would have cost where tokens have a price."""
    own, plain = traffic.as_dict()["speculative"], _plain_cost(traffic)
    sent, made = own["billed_prompt_tokens"], own["billed_completion_tokens"]
    if not own["rounds"] or plain is None or sent is None or made is None:
        return None
    cost = _at_prices(sent, made)
    return (
        f"at ${PRICES['input']:g}/${PRICES['output']:g} per million tokens the same calls would "
        f"have cost ${cost:.4f}, {cost / plain:.1f} times plain's: each round sends the prompt "
        "again"
    )


def _at_prices(prompt: int, completion: int) -> float:
    return (prompt * PRICES["input"] + completion * PRICES["output"]) / 1e6


def _dollars(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}" if value else "0"
