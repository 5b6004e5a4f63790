"""The sale day: more requests than the target can answer, with specroute and without.

    python -m bench.sale [--requests 320] [--only 'NAME; NAME'] [--write docs/benchmarks.md]

Held-out customer-service questions arrive (Poisson, seeded) at four times the rate c at which the
paced target can answer them one token a step; then, with some of the settings, at two thirds of c
and suddenly at four times it. Every setting gets the same questions at the same moments and fresh
servers. The pace is simulated: a step takes ``max(tpot, load · sequences)`` seconds, and prompt
tokens that the prefix cache doesn't hold ``1 / prefill`` seconds each, in the step that they join;
at most 256 sequences step together. So scoring a draft costs the target what reading it costs.
Exits 1 where a criterion doesn't hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import openai
import torch

from bench.sale import publish
from bench.sale.judging import Row, row
from bench.sale.running import TARGET, Outcome, run, server
from bench.sale.settings import PLAIN, RISING, SETTINGS, Setting, named
from bench.sale.traffic import Answer, Messages, arrivals, ask, capacity, questions
from specroute.reference.bundled import target_dir
from specroute.reference.pace import Pace

OVERLOAD = 4.0
CALM = 2 / 3
"""Times c: before the rise, which is the article's, 200 to 1200 requests a second, sixfold."""


def progress(name: str, of: int) -> Callable[[int], None]:
    """Counts answers on a terminal; a line a tenth elsewhere would be noise."""

    def show(done: int) -> None:
        if sys.stderr.isatty():
            print(f"\r  {name}: {done}/{of} ", end="" if done < of else "\n", file=sys.stderr)

    return show


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def truth(asked: Sequence[Messages]) -> list[Answer]:
    """The target's own greedy answers, one at a time and without a pace."""
    with server(target_dir(), "", "target") as alone:
        async with openai.AsyncOpenAI(base_url=alone.base_url, api_key="none") as client:
            found = []
            for i, messages in enumerate(asked, 1):
                found.append(await ask(client, "target", messages, time.perf_counter()))
                progress("the target's own answers", len(asked))(i)
            return found


async def overloaded(
    settings: Sequence[Setting], pace: str, asked: Sequence[Messages], own: Sequence[str], c: float
) -> list[Row]:
    """All settings at four times c."""
    moments = arrivals([OVERLOAD * c] * len(asked))
    found: dict[str, Outcome] = {}

    async def measure(setting: Setting) -> None:
        began = time.perf_counter()
        shown = progress(setting.name, len(asked))
        try:
            outcome = await run(setting, pace, asked, moments, CALM * c, shown)
        except Exception as error:  # noqa: BLE001 - the others' minutes are not lost for it
            say(f"  {setting.name}: broke off: {type(error).__name__}: {error}")
            return
        found[setting.name] = outcome
        took = time.perf_counter() - began
        say(f"  {setting.name}: {outcome.seconds:.1f} s (took {took:.0f} s)")

    for together in _taking_turns(settings):
        await asyncio.gather(*map(measure, together))
    plain = found[settings[0].name]
    return [row(found[s.name], plain, own) for s in settings if s.name in found]


def _taking_turns(settings: Sequence[Setting]) -> list[list[Setting]]:
    """Slow ones two at a time, the others alone."""
    turns: list[list[Setting]] = []
    for setting in settings:
        if setting.slow and turns and len(turns[-1]) == 1 and turns[-1][0].slow:
            turns[-1].append(setting)
        else:
            turns.append([setting])
    return turns


async def risen(
    settings: Sequence[Setting], pace: str, asked: Sequence[Messages], own: Sequence[str], c: float
) -> tuple[list[Row], list[Row]]:
    """Rows of the requests before and after the rise, a quarter and three quarters of them."""
    calm = len(asked) // 4
    moments = arrivals([CALM * c] * calm + [OVERLOAD * c] * (len(asked) - calm))
    plain: Outcome | None = None
    before, after = [], []
    for setting in settings:
        found = await run(
            setting, pace, asked, moments, CALM * c, progress(setting.name, len(asked))
        )
        plain = plain or found
        first, second = (row(part, whole, texts) for part, whole, texts in (
            (found.part(0, calm, moments), plain.part(0, calm, moments), own[:calm]),
            (found.part(calm, None, moments), plain.part(calm, None, moments), own[calm:]),
        ))  # fmt: skip
        before.append(first)
        after.append(second)
        say(f"  {setting.name}: {found.seconds:.1f} s")
    return before, after


async def main(options: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    pace = f"tpot={options.tpot},rtt={options.rtt},prefill={options.prefill},load={options.load}"
    only = [name.strip() for name in options.only.split(";")] if options.only else None
    settings = SETTINGS if only is None else [named(name) for name in only]
    rising = [s for s in settings if s.name in RISING] if options.rise else []
    if settings[0].name != PLAIN:
        settings = [named(PLAIN), *settings]
    if rising and rising[0].name != PLAIN:
        rising = [named(PLAIN), *rising]
    asked = questions(options.requests)
    say(f"{len(settings)} settings, {len(asked)} requests each")
    answers = await truth(asked)
    own = [answer.text for answer in answers]
    prompt = statistics.mean(a.prompt_tokens for a in answers)
    length = statistics.mean(a.tokens for a in answers)
    c = capacity(Pace.parse(pace), prompt, length)
    about = (
        f"{len(asked)} requests (prompt {prompt:.0f}, answer {length:.0f} tokens on average), pace "
        f"`{pace}`: c = {c:.2f} requests/s, arriving at {OVERLOAD * c:.2f}/s. Prices per million "
        f"tokens, target: input {TARGET['input']:g}, cached {TARGET['cached_input']:g}, output "
        f"{TARGET['output']:g}; draft 0.50, 0.05, 2.50."
    )
    say(about)
    rows = await overloaded(settings, pace, asked, own, c)
    lines, good = publish.criteria(rows)
    broken = [setting.name for setting in settings if setting.name not in {r.name for r in rows}]
    lines += [f"FAIL  {name}: it broke off" for name in broken]
    good = good and not broken
    shown = "\n".join(lines)
    parts = [about, publish.table(rows), publish.work(rows), f"```text\n{shown}\n```"]
    before: list[Row] = []
    after: list[Row] = []
    if rising:
        count = len(asked) // 3
        say(f"The load rises from {CALM * c:.2f}/s to {OVERLOAD * c:.2f}/s")
        before, after = await risen(rising, pace, asked[:count], own[:count], c)
        calm = count // 4
        parts.append(
            f"The rise: {calm} requests at {CALM * c:.2f}/s, then {count - calm} at "
            f"{OVERLOAD * c:.2f}/s. Before:\n\n{publish.table(before, article=False)}\n\nAfter:\n\n"
            f"{publish.table(after, article=False)}"
        )
    text = "\n\n".join(parts)
    if options.json:
        found = {"overload": rows, "before": before, "after": after}
        kept = {name: [asdict(r) for r in each] for name, each in found.items()}
        print(json.dumps({"pace": pace, "capacity_rps": c, **kept}, indent=2))
    else:
        print(text)
    if options.write:
        picture = options.write.parent / "sale-day.png"
        publish.plot(rows, picture)
        shown = f"![the three figures of every setting]({picture.name})"
        publish.write(options.write, "sale-day", f"{text}\n\n{shown}")
    return 0 if good else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=320)
    parser.add_argument("--tpot", default="40ms")
    parser.add_argument("--rtt", default="10ms")
    parser.add_argument("--prefill", default="20000", help="prompt tokens a second")
    parser.add_argument("--load", default="4ms", help="seconds a sequence adds to a step")
    parser.add_argument("--only", help="settings, separated by semicolons")
    parser.add_argument("--no-rise", dest="rise", action="store_false", help="four times c only")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path, help="the page to put the table and the plot into")
    sys.exit(asyncio.run(main(parser.parse_args())))
