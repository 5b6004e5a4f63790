"""The simulator: its worlds are fair, its clock is virtual, and traces can be replayed."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specroute.candidates import Candidate
from specroute.cli import app
from specroute.config import parse_policy
from specroute.errors import ConfigError
from specroute.measure import Acceptance, Snapshot
from specroute.policy.base import RoundView
from specroute.policy.make import make_policy
from specroute.simulate.feed import Feed
from specroute.simulate.grid import MOST, grid
from specroute.simulate.oracle import FixedPlan, _Always, best, fixed, fixed_plans
from specroute.simulate.peers import FixedFive, Heuristic
from specroute.simulate.run import plain_outcome, run
from specroute.simulate.scenario import (
    ALPHAS,
    DRAFTERS,
    ROUND_TRIPS_S,
    TPOTS_S,
    VERIFY_PER_TOKEN_S,
    Scenario,
)
from specroute.simulate.trace import read_trace
from specroute.simulate.world import Synthetic, runs_of
from specroute.types import Exactness, Method

SMALL = Scenario(alpha=0.8, r=0.02, requests=30, tokens=120, shape="heavy", cached=0.1)


def test_the_grid_covers_all_pairs_and_corners() -> None:
    """Of α, R and TPOT, with no more scenarios than it may have."""
    for per_pair in (1, 2):
        cells = grid(per_pair)
        assert len(cells) <= MOST
        assert {(c.alpha, c.r) for c in cells} == {(a, r) for a in ALPHAS for r in ROUND_TRIPS_S}
        assert {(c.alpha, c.tpot) for c in cells} == {(a, t) for a in ALPHAS for t in TPOTS_S}
        assert {(c.r, c.tpot) for c in cells} == {(r, t) for r in ROUND_TRIPS_S for t in TPOTS_S}
        ends = [(v[0], v[-1]) for v in (ALPHAS, ROUND_TRIPS_S, TPOTS_S)]
        corners = {(a, r, t) for a in ends[0] for r in ends[1] for t in ends[2]}
        assert corners <= {(c.alpha, c.r, c.tpot) for c in cells}
        for name in ("shape", "out_in", "cached", "drift", "steps", "interchangeable", "shadow"):
            assert len({getattr(c, name) for c in cells}) > 1


@pytest.mark.parametrize("shape", ["geometric", "heavy"])
@pytest.mark.parametrize("alpha", [0.5, 0.8, 0.95])
def test_worlds_have_the_acceptance_they_say(shape: str, alpha: float) -> None:
    """Over all tokens; in the heavy shape fewer at a round's start and more after a hit."""
    world = Synthetic(Scenario(alpha=alpha, shape=shape, requests=400))
    runs = [world.runs(i, DRAFTERS[0], world.targets[0]) for i in range(400)]
    hits = [run > 0 for each in runs for run in each]
    assert sum(hits) / len(hits) == pytest.approx(alpha, abs=0.03)
    after_miss = [r[j] > 0 for r in runs for j in range(1, len(r)) if r[j - 1] == 0]
    rate = sum(after_miss) / len(after_miss)
    assert (rate < alpha - 0.1) == (shape == "heavy")


def test_luck_does_not_depend_on_the_policy() -> None:
    """Two worlds of one scenario are the same, whatever was asked of one of them before."""
    one, other = Synthetic(SMALL), Synthetic(SMALL)
    run(one, FixedFive(), measured=False)
    target = one.targets[0]
    assert plain_outcome(one, target) == plain_outcome(other, target)
    assert one.runs(7, DRAFTERS[1], target) == other.runs(7, DRAFTERS[1], target)


@pytest.mark.parametrize("k", [1, 5, 24])
def test_the_oracle_counts_as_a_run_does(k: int) -> None:
    """Its short cut gives what running the fixed plan gives."""
    world = Synthetic(SMALL)
    for drafter in DRAFTERS:
        quick = fixed(world, drafter, world.targets[0], k)
        slow = run(world, _Always(FixedPlan(None, drafter.name, k)), measured=False)
        assert quick.rounds == slow.rounds
        assert quick.seconds == pytest.approx(slow.seconds, rel=1e-9)
        assert quick.dollars == pytest.approx(slow.dollars, rel=1e-9)


def test_a_policy_meets_the_same_world_twice() -> None:
    """A run can be repeated to the last digit."""
    policy = make_policy(parse_policy("latency"))[0]
    assert run(Synthetic(SMALL), policy) == run(Synthetic(SMALL), policy)


def test_shadow_evidence_keeps_to_its_share_of_the_time() -> None:
    """Of answers that end faster than drafts of them may be made, some are passed over."""
    world = Synthetic(SMALL)
    feed, target = Feed(world), world.targets[0]
    seen = []
    for i, seconds in enumerate((1.0, 1.0, 1000.0)):
        feed.at += seconds
        feed.answered(
            i, target, ttft_s=0.1, tpot_s=0.01, streamed=120, context=300, rounds=(0, 0),
            drafter=None,
        )  # fmt: skip
        plan = Candidate(Method.SCORE, DRAFTERS[0].name, Exactness.EXACT)
        seen.append(feed.figures(i, plan).shadow.weight)
    assert 0 < seen[0] == seen[1] < seen[2]


def test_the_heuristic_schedule_keeps_its_k_between_requests() -> None:
    """All of a draft accepted two more, else one fewer, as transformers does."""
    peer = Heuristic()
    whole, part = (RoundView(1, 0, None, Acceptance(), None, None, last=(5, n)) for n in (5, 2))
    new = RoundView(0, 0, None, Acceptance(), None, None)
    assert [peer.next_k(view, Snapshot()) for view in (new, whole, new, part)] == [5, 7, 7, 6]


# --- traces -------------------------------------------------------------------------------------


def trace_of(path: Path, requests: int = 60, alpha: float = 0.9, shadows: bool = True) -> Path:
    """As the recorder writes it: half plain, half speculated."""
    rng = random.Random(5)
    lines = []
    for i in range(requests):
        plain = i % 2 == 0
        line = {
            "v": 1, "kind": "request", "id": f"r{i}", "at": 1.0 * i, "model": "m",
            "target": "lab:x", "traffic": "c", "method": "plain" if plain else "score",
            "drafter": None if plain else "tiny", "complete": True, "prompt_tokens": 300,
            "answer_tokens": 200, "ttft_s": 0.05, "tpot_s": 0.04 if plain else 0.02,
            "usd_in": 1e-6, "usd_out": 4e-6, "usd_cached": None,
            "rounds": [] if plain else [[4, 3, 4, 0.06, 0.016], [4, 4, 4, 0.06, 0.016]],
        }  # fmt: skip
        lines.append(line)
        if plain and shadows:
            hits = "".join("1" if rng.random() < alpha else "0" for _ in range(200))
            lines.append(
                {"v": 1, "kind": "shadow", "id": f"r{i}", "drafter": "tiny", "hits": hits,
                 "draft_s": 0.004}
            )  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_trace_becomes_a_world(tmp_path: Path) -> None:
    """What one request doesn't show comes from the nearest that does."""
    world = read_trace(trace_of(tmp_path / "t.jsonl"))
    assert (world.requests, world.targets) == (60, ("lab:x",))
    (drafter,) = world.drafters
    assert (drafter.name, drafter.token_s) == ("tiny", 0.004)
    target = world.targets[0]
    assert (world.ttft(3, 0, target), world.tpot(3, target)) == (0.05, 0.04)
    assert world.round_s(0, 0, 4, target) == pytest.approx(0.06)
    shown = [True] * 3 + [False] + [True] * 4
    assert world.runs(1, drafter, target) == runs_of((shown * 26)[:200])
    assert world.prices(target) == (1e-6, 4e-6, None)


@pytest.mark.parametrize(
    ("rounds", "ttft_s"), [(True, 0.06 - 4 * VERIFY_PER_TOKEN_S), (False, 8.06 / 200)]
)
def test_answers_that_were_not_streamed_tell_a_pace_too(
    tmp_path: Path, rounds: bool, ttft_s: float
) -> None:
    """Their start is a scoring request's time where any is known, else as any further token."""
    path = trace_of(tmp_path / "t.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line.get("method") == "plain":
            line |= {"ttft_s": None, "tpot_s": None, "total_s": 8.06}
    kept = [line for line in lines if rounds or line.get("method") != "score"]
    path.write_text("".join(json.dumps(line) + "\n" for line in kept))
    world = read_trace(path)
    target = world.targets[0]
    assert world.ttft(0, 0, target) == pytest.approx(ttft_s)
    assert world.ttft(0, 0, target) + 199 * world.tpot(0, target) == pytest.approx(8.06)


def test_policies_replay_a_trace(tmp_path: Path) -> None:
    """They find out by themselves that it pays there."""
    world = read_trace(trace_of(tmp_path / "t.jsonl"))
    plain = plain_outcome(world, world.targets[0])
    outcome = run(world, make_policy(parse_policy("latency"))[0])
    _, least = best(fixed_plans(world), 0, world.requests)
    assert sum(outcome.seconds) < 0.5 * sum(plain.seconds)
    assert sum(outcome.seconds) / world.requests < 1.1 * least


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no complete request"),
        ("hello\n", "line 1: no line of a trace"),
        ('{"v": 7, "kind": "request"}\n', "version 7, expected 1"),
    ],
)
def test_what_is_no_trace_is_said(tmp_path: Path, text: str, said: str) -> None:
    """With the line."""
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_trace(path)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--alpha", "2", "--alpha: expected between 0 and 1, got 2"),
        ("--alpha", "nan", "--alpha: expected between 0 and 1, got nan"),
        ("--r-ms", "-5", "--r-ms: expected more than 0, got -5"),
        ("--r-ms", "nan", "--r-ms: expected more than 0, got nan"),
        ("--tpot-ms", "inf", "--tpot-ms: expected more than 0, got inf"),
        ("--out-in", "-3", "--out-in: expected more than 0, got -3"),
        ("--cached", "5", "--cached: expected 0 to 1, got 5"),
        ("--requests", "0", "--requests: expected more than 0, got 0"),
    ],
)
def test_an_impossible_scenario_is_refused(option: str, value: str, said: str) -> None:
    """By the option's name and in its own unit."""
    shown = CliRunner().invoke(app, ["simulate", option, value])
    assert shown.exit_code != 0
    assert said in shown.output + str(shown.exception)


def test_the_command_prints_a_table_and_json(tmp_path: Path) -> None:
    """Of a trace and of synthetic traffic, for presets and tables over them."""
    trace = str(trace_of(tmp_path / "t.jsonl"))
    told = CliRunner().invoke(
        app, ["simulate", trace, "--policy", "latency", "--policy", "{preset = 'fixed'}", "--json"]
    )
    assert told.exit_code == 0, told.output
    rows = {row["policy"]: row for row in json.loads(told.output)}
    assert rows["plain"]["seconds_ratio"] == 1
    assert rows["latency"]["seconds_ratio"] < 0.8
    assert rows["{preset = 'fixed'}"]["speculated"] == 1
    shown = CliRunner().invoke(app, ["simulate", "--requests", "20", "--policy", "cost"])
    assert shown.exit_code == 0
    assert "best fixed in seconds" in shown.output
