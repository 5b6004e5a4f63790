"""The sale day: more requests than the target can answer, with specroute and without.

    python -m bench.sale [--requests 320] [--only 'NAME; NAME'] [--write docs/benchmarks.md]
    python -m bench.sale --rise [--write docs/benchmarks.md]

Held-out customer-service questions arrive (Poisson, seeded) at four times the rate c at which the
paced target can answer them one token a step; with ``--rise``, a third of them with some of the
settings, at two thirds of c and suddenly at four times it. Every setting gets the same questions at
the same moments and fresh servers. The pace is simulated: a step takes ``max(tpot, load ·
sequences)`` seconds, and prompt tokens that the prefix cache doesn't hold ``1 / prefill`` seconds
each, in the step that they join; at most 256 sequences step together. So scoring a draft costs the
target what reading it costs. Cut off (Ctrl-C), it prints and writes the rows that it has.
Exits 1 where a criterion doesn't hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from bench.sale import publish
from bench.sale.judging import Plain, Row, row
from bench.sale.running import TARGET, Outcome, run
from bench.sale.settings import ALONE, BESIDE, PLAIN, RISING, Setting, named
from bench.sale.traffic import Messages, arrivals, capacity, questions
from bench.sale.truth import truth
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


@dataclass(slots=True)
class Found:
    """What has been measured so far, in the order in which it was."""

    alone: list[Outcome] = field(default_factory=list)
    beside: list[Outcome] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def groups(self, own: Sequence[str]) -> Iterator[list[Row]]:
        """Rows that are compared with the same runs of ``AsyncOpenAI``; none without one."""
        for outcomes in (self.alone, self.beside):
            plain = [each for each in outcomes if each.setting.policy is None]
            if plain:
                yield [row(each, Plain.of(*plain), own) for each in outcomes]


Turn = tuple[bool, list[Setting]]
"""(whether it runs alone, what runs together)."""


def turns(only: Sequence[str] | None) -> list[Turn]:
    """What runs when: those that run alone between two runs of ``AsyncOpenAI``, then pairs."""
    plain = named(PLAIN)
    alone = [s for s in ALONE if s is not plain and (only is None or s.name in only)]
    pairs = [[s for s in pair if only is None or s.name in only] for pair in BESIDE]
    found: list[Turn] = [(True, [s]) for s in alone]
    if found or not any(pairs):
        found = [(True, [plain]), *found, (True, [replace(plain, name=f"{PLAIN}, again")])]
    if any(pairs):
        pairs[0] = [replace(plain, name=f"{PLAIN}, beside"), *pairs[0]]
    return [*found, *((False, pair) for pair in pairs if pair)]


async def overloaded(
    todo: Sequence[Turn], pace: str, asked: Sequence[Messages], c: float, found: Found
) -> None:
    """All settings at four times c, into ``found``."""
    moments = arrivals([OVERLOAD * c] * len(asked))
    start, count = time.perf_counter(), sum(len(together) for _, together in todo)
    done = 0

    async def measure(setting: Setting, into: list[Outcome]) -> None:
        nonlocal done
        began = time.perf_counter()
        shown = progress(setting.name, len(asked))
        try:
            outcome = await run(setting, pace, asked, moments, CALM * c, shown)
        except Exception as error:  # noqa: BLE001 - the others' minutes are not lost for it
            say(f"  {setting.name}: broke off: {type(error).__name__}: {error}")
            found.broken.append(setting.name)
            return
        finally:
            done += 1
        into.append(outcome)
        now = time.perf_counter()
        say(
            f"  {done}/{count} {setting.name}: {outcome.seconds:.1f} s for all answers (took "
            f"{now - began:.0f} s; {(now - start) / 60:.1f} min so far)"
        )

    for alone, together in todo:
        into = found.alone if alone else found.beside
        await asyncio.gather(*(measure(setting, into) for setting in together))


async def risen(
    settings: Sequence[Setting], pace: str, asked: Sequence[Messages], own: Sequence[str], c: float
) -> tuple[list[Row], list[Row]]:
    """Rows of the requests before and after the rise, a quarter and three quarters of them."""
    calm = len(asked) // 4
    moments = arrivals([CALM * c] * calm + [OVERLOAD * c] * (len(asked) - calm))
    plain: Outcome | None = None
    before, after = [], []
    for setting in settings:
        shown = progress(setting.name, len(asked))
        found = await run(setting, pace, asked, moments, CALM * c, shown)
        plain = plain or found
        for rows, first, last in ((before, 0, calm), (after, calm, None)):
            part, whole = (each.part(first, last, moments) for each in (found, plain))
            rows.append(row(part, Plain.of(whole), own[first:last]))
        say(f"  {setting.name}: {found.seconds:.1f} s")
    return before, after


async def main(options: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    os.environ["SPECROUTE_CACHE_DIR"] = ""  # No setting learns from the one before it.
    pace = f"tpot={options.tpot},rtt={options.rtt},prefill={options.prefill},load={options.load}"
    only = [named(name.strip()).name for name in options.only.split(";")] if options.only else None
    asked = questions(options.requests)
    answers = await truth(asked, progress("the target's own answers", len(asked)))
    prompt = statistics.mean(a.prompt_tokens for a in answers)
    length = statistics.mean(a.tokens for a in answers)
    c = capacity(Pace.parse(pace), prompt, length)
    about = (
        f"{len(asked)} requests (prompt {prompt:.0f}, answer {length:.0f} tokens on average), pace "
        f"`{pace}`: c = {c:.2f} requests/s, "
    )
    own = [answer.text for answer in answers]
    if options.rise:
        return await the_rise(options, pace, asked, own, c, only)
    about += (
        f"arriving at {OVERLOAD * c:.2f}/s. Prices per million tokens, target: input "
        f"{TARGET['input']:g}, cached {TARGET['cached_input']:g}, output {TARGET['output']:g}; "
        "draft 0.50, 0.05, 2.50."
    )
    say(about)
    found, todo, cut = Found(), turns(only), False
    try:
        await overloaded(todo, pace, asked, c, found)
    except asyncio.CancelledError:  # Ctrl-C: what is there isn't lost.
        cut = True
    groups = list(found.groups(own))
    if not groups:
        say("cut off before AsyncOpenAI's first run had ended: there is nothing to compare with")
        return 1
    lines, good = [], not found.broken and not cut
    for rows in groups:
        said, held = publish.criteria(rows)
        lines += said
        good = good and held
    lines += [f"FAIL  {name}: it broke off" for name in found.broken]
    if cut:
        ran = len(found.alone) + len(found.beside)
        lines.append(f"FAIL  cut off: {ran} of {sum(len(t) for _, t in todo)} runs")
    tables = [publish.table(rows, article=rows is groups[0]) for rows in groups]
    parts = [about, *tables, *map(publish.work, groups)]
    text = "\n\n".join([*parts, "```text\n" + "\n".join(lines) + "\n```"])
    every = [each for rows in groups for each in rows]
    if options.json:
        print(json.dumps({"pace": pace, "capacity_rps": c, "overload": [asdict(r) for r in every]}))
    else:
        print(text)
    if options.write:
        picture = options.write.parent / "sale-day.png"
        publish.plot(every, picture)
        shown = f"![the three figures of every setting]({picture.name})"
        publish.write(options.write, "sale-day", f"{text}\n\n{shown}")
    return 0 if good else 1


async def the_rise(
    options: argparse.Namespace,
    pace: str,
    asked: Sequence[Messages],
    own: Sequence[str],
    c: float,
    only: Sequence[str] | None,
) -> int:
    """Before and after: two tables, no criteria."""
    names = [name for name in RISING if name == PLAIN or only is None or name in only]
    count = len(asked) // 3
    calm = count // 4
    said = (
        f"The rise, pace `{pace}`: {calm} requests at {CALM * c:.2f}/s, then {count - calm} at "
        f"{OVERLOAD * c:.2f}/s."
    )
    say(said)
    before, after = await risen([named(n) for n in names], pace, asked[:count], own[:count], c)
    text = (
        f"{said} Before:\n\n{publish.table(before, article=False)}\n\nAfter:\n\n"
        f"{publish.table(after, article=False)}"
    )
    if options.json:
        kept = {"before": [asdict(r) for r in before], "after": [asdict(r) for r in after]}
        print(json.dumps({"pace": pace, "capacity_rps": c, **kept}))
    else:
        print(text)
    if options.write:
        publish.write(options.write, "sale-rise", text)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=320)
    parser.add_argument("--tpot", default="40ms")
    parser.add_argument("--rtt", default="10ms")
    parser.add_argument("--prefill", default="20000", help="prompt tokens a second")
    parser.add_argument("--load", default="4ms", help="seconds a sequence adds to a step")
    parser.add_argument("--only", help="settings, separated by semicolons")
    parser.add_argument("--rise", action="store_true", help="from two thirds of c to four times it")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path, help="the page to put the table and the plot into")
    sys.exit(asyncio.run(main(parser.parse_args())))
