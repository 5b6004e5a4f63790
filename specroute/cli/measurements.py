"""``specroute measurements``: everything that was measured and kept for a config's targets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from specroute.measure import Estimate, Measurements

SHOWN_K = 8
"""Positions of a survival curve that the table shows."""


def measurements(
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="The config [looked up].")
    ] = None,
    override: Annotated[
        list[str] | None, typer.Option("-c", help="a.b=value, laid over the config.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Show what was measured: each figure with its 90 % interval, its weight and its age; of
    workers that share a Redis, what they know together."""
    from specroute.cli.tables import print_table

    seen, path = kept(file, override or ())
    found = figures(seen, time.time())
    if as_json:
        import json

        shown = {"file": None if path is None else str(path), "figures": list(found)}
        typer.echo(json.dumps(shown, ensure_ascii=False, indent=2))
        return
    rows = [_row(figure) for figure in found]
    if not rows:
        where = "keeping is switched off (SPECROUTE_CACHE_DIR is empty)" if path is None else path
        typer.echo(f"Nothing was measured yet for the targets of this config: {where}")
        return
    print_table(("figure", "of", "class", "mean", "90 %", "weight", "age"), rows, title=str(path))


def kept(file: Path | None, overrides: list[str] | tuple[str, ...]) -> tuple[Measurements, Any]:
    """What was measured for a config, and where it is: at the Redis that its workers share, as
    seen from this machine, else in this machine's file."""
    import asyncio

    from specroute import config as configs
    from specroute.measure import Measurements
    from specroute.measured import Kept
    from specroute.sharing import Sharing, shared

    loaded = configs.load(file, overrides=overrides)
    where, seen = Kept(loaded), Measurements()
    if shared(loaded):
        sharing = Sharing(loaded, where, seen)
        problem = asyncio.run(sharing.look())
        if problem is None:
            return seen, f"shared at {sharing.shown}"
        typer.echo(f"{sharing.shown} can't be read ({problem}): this machine's own", err=True)
        seen = Measurements()
    where.load(seen)
    return seen, where.path


def figures(seen: Measurements, now: float) -> Iterator[dict[str, Any]]:
    """Every figure as one JSON-ready object: ``figure``, ``of``, ``class``, ``unit``, the estimate,
    ``age_s``. Laws are shown at ordinary x and y, with their coefficients."""
    for name, target in seen.targets.items():
        for label, law in (("ttft", target.ttft), ("tpot", target.tpot)):
            yield from _law(label, name, law, now - target.seen_at, ("context", "in_flight"))
        for label, share in (("failures", target.failed), ("refused_429", target.limited)):
            yield from _figure(label, name, "", "share", share.estimate(), now - target.seen_at)
        for purpose, share in target.cached.items():
            of, age = f"{name} {purpose}", now - target.seen_at
            yield from _figure("cached_input", of, "", "share", share.estimate(), age)
    for (name, traffic), own in seen.classes.items():
        age = now - own.seen_at
        yield from _figure("answer", name, traffic, "tokens", own.answer.estimate(), age)
        if traffic:
            for label, factor, law in (
                ("ttft_factor", own.ttft, seen.targets[name].ttft),
                ("tpot_factor", own.tpot, seen.targets[name].tpot),
            ):
                estimate = factor.estimate(law.epoch)
                if estimate.weight:
                    yield from _figure(label, name, traffic, "times", estimate, age)
    for (name, how), judged in seen.judged.items():
        of, age = f"{name} {how}", now - judged.seen_at
        yield from _law("round", of, judged.law, age, ("context", "k"))
        yield from _figure("draws_per_judged", of, "", "tokens", judged.draws.estimate(), age)
        yield from _figure("draw", of, "", "s", judged.draw.estimate(), age)
    for name, draft in seen.drafts.items():
        age = now - draft.seen_at
        yield from _figure("draft_per_token", name, "", "s", draft.token.estimate(), age)
        yield from _law("first_draft", name, draft.first, age, ("context", ""))
    for (name, drafter, how, traffic), rounds in seen.rounds.items():
        of, age = f"{name} {drafter} {how}", now - rounds.seen_at
        for label, shadow in (("acceptance", False), ("shadow_acceptance", True)):
            evidence = rounds.own(shadow=shadow)
            if evidence.weight >= 0.5:
                survival = evidence.estimates(min(SHOWN_K, len(evidence.judged)))
                yield {
                    "figure": label,
                    "of": of,
                    "class": traffic,
                    "unit": "share",
                    **_estimate(survival[0]),
                    "alpha": evidence.rate,
                    "survival": [_estimate(each) for each in survival],
                    "dispersion": evidence.dispersion,
                    "age_s": age,
                }
    for (name, drafter, how, temperature), rounds in seen.temperatures.items():
        evidence = rounds.own()
        if evidence.weight >= 0.5:
            first, age = evidence.estimates(1)[0], now - rounds.seen_at
            of = f"{name} {drafter} {how} T={temperature:g}"
            yield from _figure("acceptance_at_temperature", of, "", "share", first, age)
    for (name, drafter, traffic), prediction in seen.predictions.items():
        of, age = f"{name} {drafter}", now - prediction.seen_at
        taken = prediction.taken.estimate()
        yield from _figure("predicted_taken", of, traffic, "share", taken, age)


def _figure(
    label: str, of: str, traffic: str, unit: str, estimate: Estimate | None, age: float
) -> Iterator[dict[str, Any]]:
    if estimate is not None and estimate.weight > 0:
        shown = {"figure": label, "of": of, "class": traffic, "unit": unit}
        yield {**shown, **_estimate(estimate), "age_s": age}


def _law(
    label: str, of: str, law: Any, age: float, names: tuple[str, str]
) -> Iterator[dict[str, Any]]:
    estimate, found = law.at_ordinary(), law.law()
    if estimate is not None and found is not None:
        per = {f"per_{n}": v for n, v in zip(names, (found.per_x, found.per_y), strict=True) if n}
        at = {f"at_{n}": v for n, v in zip(names, law.ordinary, strict=True) if n}
        shown = {"figure": label, "of": of, "class": "", "unit": "s", **_estimate(estimate)}
        yield {**shown, "base": found.base, **per, **at, "age_s": age}


def _estimate(estimate: Estimate) -> dict[str, float]:
    return {
        "mean": estimate.mean,
        "low": estimate.low,
        "high": estimate.high,
        "weight": estimate.weight,
    }


def _row(figure: dict[str, Any]) -> tuple[str, ...]:
    unit, label = figure["unit"], figure["figure"]
    if "survival" in figure:
        label += " S(1..)"
        mean = " ".join(f"{each['mean']:.2f}" for each in figure["survival"])
        interval = " ".join(
            f"{each['low']:.2f}–{each['high']:.2f}" for each in figure["survival"][:3]
        )
    else:
        mean = _text(figure["mean"], unit)
        interval = f"{_text(figure['low'], unit)} – {_text(figure['high'], unit)}"
    return (
        label,
        figure["of"],
        figure["class"] or "all",
        mean,
        interval,
        f"{figure['weight']:.0f}",
        _age(figure["age_s"]),
    )


def _text(value: float, unit: str) -> str:
    if unit == "s":
        return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.2f} s"
    if unit == "share":
        return f"{100 * value:.1f} %"
    return f"{value:.0f} {unit}" if unit == "tokens" and value >= 10 else f"{value:.2f} {unit}"


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
