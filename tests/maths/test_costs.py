"""What each rule asks of the target: measured, equal to the formulas, and as the page says."""

import math
import random
import re
from pathlib import Path

import pytest

from specroute.acceptance import Outcome, Sampling, Server, judging, step
from tests.maths.world import Target, good, greedy, raw, stream

PAGE = Path(__file__).parents[2] / "docs" / "verification.md"
COLD, ONE, HOT = Sampling(0.7), Sampling(1.0), Sampling(1.3)
BIAS, DRAWS = Server(logit_bias=True), Server()
POSITIONS, CONTEXT = 20_000, 0

ROWS = {
    "5, everything visible": (Sampling(1.0, top_k=12), 20, BIAS, good),
    "4, T = 1, drawn draft": (ONE, 12, BIAS, good),
    "4, T = 1, greedy draft": (ONE, 12, BIAS, greedy),
    "6, T = 0.7, drawn draft": (COLD, 12, BIAS, good),
    "6, T = 0.7, greedy draft": (COLD, 12, BIAS, greedy),
    "2, T = 1, drawn draft, 4 draws a request": (ONE, 0, DRAWS, good),
    "2, T = 1, greedy draft, logit_bias": (ONE, 0, BIAS, greedy),
    "3, T = 1.3, drawn draft": (HOT, 12, BIAS, good),
    "3, T = 1.3, greedy draft": (HOT, 12, BIAS, greedy),
}


def measured(sampling, n, server, draft):
    """(share accepted, requests a position, requests a rejection) at one place of the target."""
    target, rng = Target(sampling, n, seed=3), random.Random(4)
    q = draft(CONTEXT)
    drafts, accepted = stream(q, target.rng), 0
    for _ in range(POSITIONS):
        x = next(drafts)
        going = judging(
            [x],
            [target.evidence(CONTEXT, x)],
            None if draft is greedy else [q],
            sampling,
            server,
            rng,
        )
        found = step(going)
        while not isinstance(found, Outcome):
            found = step(going, target.answer(found, CONTEXT))
        accepted += found.accepted
    requests = target.requests.total()
    return accepted / POSITIONS, requests / POSITIONS, requests / (POSITIONS - accepted)


def test_the_page_says_what_is_measured():
    """The cost table of the page, row by row."""
    rows = re.findall(
        r"^\| (\d, .+?) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$",
        PAGE.read_text(encoding="utf-8"),
        flags=re.M,
    )
    assert {name: tuple(figures) for name, *figures in rows} == {
        name: tuple(f"{figure:.2f}" for figure in measured(*row)) for name, row in ROWS.items()
    }


def test_the_tail_costs_what_the_formula_says():
    """A position costs as many tail draws as the envelope's tail weighs, and below T = 1 a plain
    draw with probability 1 - Z/E; accepted is Σ min(q, p̃)."""
    for sampling in (ONE, COLD):
        shown = Target(sampling, 6).evidence(CONTEXT, 0).shown
        q, heat = good(CONTEXT), 1 / sampling.temperature
        kept = math.fsum(p**heat for p in raw(CONTEXT)) / math.exp(shown.log_total)
        accepted, per_position, _ = measured(sampling, 6, BIAS, good)
        assert per_position == pytest.approx(shown.hidden + 1 - kept, abs=0.01)
        overlap = math.fsum(min(q[v], shown.share(math.log(raw(CONTEXT)[v]))) for v in q)
        assert accepted == pytest.approx(overlap, abs=0.015)
