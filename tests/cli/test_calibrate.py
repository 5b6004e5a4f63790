"""``specroute calibrate``: a setting is chosen from traffic, with a bound, or none is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from specroute.acceptance.agreement import Setting, Trial, loosest, lower_bound, needed, tried
from specroute.cli import app
from specroute.errors import RequestError
from specroute.reference.bundled import draft_dir, target_dir
from specroute.reference.corpus import held_out
from specroute.reference.running import ReferenceServer
from specroute.trials import read


@pytest.mark.parametrize(
    ("successes", "trials", "bound"),
    [(0, 10, 0.0), (10, 10, 0.7411), (9, 10, 0.6058), (95, 100, 0.8977), (50, 50, 0.9418)],
)
def test_the_bound_is_clopper_and_pearsons(successes: int, trials: int, bound: float) -> None:
    """One-sided at 95 %, against tabled values."""
    assert lower_bound(successes, trials, 0.95) == pytest.approx(bound, abs=1e-4)


def test_the_bound_covers_as_often_as_it_says() -> None:
    """Over all outcomes of 30 trials at a true share of .9."""
    import math

    def chance(k: int) -> float:
        return math.comb(30, k) * 0.9**k * 0.1 ** (30 - k)

    covered = sum(chance(k) for k in range(31) if lower_bound(k, 30, 0.95) <= 0.9)
    assert covered >= 0.95


def test_so_many_prompts_are_needed() -> None:
    """If all agree, one fewer is not enough."""
    n = needed(0.9, 0.95)
    assert lower_bound(n, n, 0.95) >= 0.9 > lower_bound(n - 1, n - 1, 0.95)


def setting(value: float, at_least: float) -> Setting:
    return Setting(value, 100, 0, 0.0, at_least)


def test_the_loosest_before_the_first_failure_is_chosen() -> None:
    """A later setting that passes by luck is not."""
    found = [setting(1, 0.97), setting(0.5, 0.93), setting(0.3, 0.89), setting(0.1, 0.95)]
    assert loosest(found, 0.9) == found[1]
    assert loosest(found, 0.98) is None


def test_an_answer_agrees_while_its_kept_part_is_the_targets_own_beginning() -> None:
    """The looser the rule, the more is kept and the fewer agree."""
    likely, unlikely = (-0.01, -0.01), (-2.0, -0.1)
    right = Trial("ab", (1, 2), (likely, likely), "ab and more")
    wrong = Trial("ax", (1, 2), (likely, unlikely), "ab")
    found = tried("ratio", [right, wrong], 0.95)
    assert [(s.agreeing, s.kept) for s in (found[0], found[-1])] == [(2, 0.75), (1, 1.0)]
    kept = [s.kept for s in found]
    assert kept == sorted(kept)


def test_a_draft_that_is_kept_with_its_end_has_to_be_all_of_the_answer() -> None:
    """Nothing goes on from there: an answer cut short is not the target's own."""
    likely = (-0.01, -0.01)
    short = Trial("ab", (1, 2, 2), (likely, likely, likely), "ab and more", ended=True)
    whole = Trial("ab", (1, 2, 2), (likely, likely, likely), "ab", ended=True)
    assert [short.agrees(kept) for kept in range(4)] == [True, True, True, False]
    assert whole.agrees(3)


def test_bad_lines_are_named(tmp_path: Path) -> None:
    """With their number; other kinds of a record are passed over."""
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        '{"kind": "shadow"}\n{"prompt": "a", "complete": false}\n{"prompt": "a", "answer": "b"}\n{"kind": "request"}\n'
    )
    with pytest.raises(RequestError, match="line 4: expected"):
        read(path)
    path.write_text('{"prompt": "a", "answer": "b", "method": "score"}\n{"prompt": "a"}\n')
    assert [asked.answer for asked in read(path)] == [None, None]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A config of the bundled models, and held-out prompts."""
    folder = tmp_path_factory.mktemp("calibrate")
    with ReferenceServer(target_dir(), names=["target"]) as server:
        (folder / "specroute.toml").write_text(
            f"""version = 1
[providers.lab]
profile = "reference"
base_url = "{server.base_url}"
prices = {{ input = 1.0, output = 5.0 }}
[drafts.d]
kind = "local"
model = "{draft_dir()}"
device = "cpu"
[models.m]
targets = ["lab:target"]
drafts = ["d"]
"""
        )
        prompts = folder / "prompts.jsonl"
        messages = held_out("customer-service", 12, 3)
        prompts.write_text("".join(json.dumps({"messages": list(m)}) + "\n" for m in messages))
        yield folder / "specroute.toml", prompts


def run(files: tuple[Path, Path], *more: str) -> Any:
    command = ["calibrate", "m", str(files[1]), "--file", str(files[0]), "--max-tokens", "24"]
    return CliRunner().invoke(app, [*command, *more])


def test_a_setting_is_chosen_from_real_logits(files: tuple[Path, Path]) -> None:
    """The policy it prints is one, and says no more than was shown."""
    from specroute.config import parse_policy
    from specroute.policy.make import make_policy

    found = run(files, "--agreement", "0.5", "--json")
    assert found.exit_code == 0, found.output
    out = json.loads(found.stdout)
    assert out["trials"] == 12 and out["left_out"] == 0
    assert out["cost_usd"] > 0
    strict = out["settings"][0]
    assert strict["value"] == 1.0 and strict["agreeing"] == 12  # the argmax: the target's own
    assert out["settings"][-1]["kept"] > strict["kept"]
    policy, _ = make_policy(parse_policy(out["policy"]))
    chosen = next(s for s in out["settings"] if s["value"] == out["policy"]["tau"])
    assert 0.5 <= policy.lossy.agreement <= chosen["at_least"]  # type: ignore[union-attr]


def test_too_few_prompts_are_said(files: tuple[Path, Path]) -> None:
    """And how many it would take."""
    found = run(files, "--agreement", "0.95", "--limit", "3", "--rule", "mean_logprob")
    assert found.exit_code == 1
    assert "it takes at least 59 prompts" in found.output.replace("\n", " ")
