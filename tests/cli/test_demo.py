"""``specroute demo``: plain beside a client that pays for tokens and one that doesn't."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from specroute.cli import app, demo_table
from specroute.cli.demo_plan import PACE, Plan, sides
from specroute.cli.demo_table import Outcome
from specroute.comparison import Pair, Run, Traffic
from specroute.types import Report

PLAN = Plan(None, None, None, "reference", None, "balanced", 1, 160, PACE)


def pair(cost: float, rounds: int, seconds: float, text: str = "an answer") -> Pair:
    told = Report(
        "r", "demo", method="score", exactness="exact-greedy", rounds=rounds, drafted=9 * rounds,
        accepted=8 * rounds, prompt_tokens=200, billed_prompt_tokens=200 * (rounds + 1),
        billed_completion_tokens=rounds + 1, cost_usd=cost, plan_reason="it is a test",
    )  # fmt: skip
    plain = Run("an answer", "stop", 100, 4.0, 0.05)
    return Pair(plain, Run(text, "stop", 100, seconds, 0.05, told))


def outcome(text: str = "an answer") -> Outcome:
    found = Outcome()
    own, priced = sides(PLAN)
    for name in ("customer-service", "python-code"):
        found.classes[name] = {
            own: Traffic(name, [pair(0.0, 12, 1.0, text)]),
            priced: Traffic(name, [pair(0.0023, 0, 4.0)]),
        }
    return found


def shown(found: Outcome) -> str:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    demo_table.show(PLAN, sides(PLAN), found, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_fits_a_terminal_and_tells_both_prices() -> None:
    """Seconds, dollars and the label of each side, and what the quick one would have cost."""
    text = shown(outcome())
    assert "…" not in text
    own, priced = (line for line in text.splitlines()[:8] if line.startswith(("own", "at $3")))
    assert own.split()[3:] == ["1.00", "4.00x", "50", "ms", "12", "89%", "0", "exact-greedy", "1/1"]
    assert "4.00 1.00x" in priced
    assert "0.0023" in priced
    # 2600 prompt and 13 output tokens against plain's 200 and 100.
    assert "would have cost $0.0080, 3.8 times plain's" in " ".join(text.split())


def test_a_difference_is_said_and_fails() -> None:
    """Which prompt, on which side."""
    found = outcome("another answer")
    assert not found.lossless
    assert "customer-service 1, own server, $0, differs: NOT explained" in shown(found)


@pytest.mark.parametrize("base_url", [None, "http://127.0.0.1:1/v1"])
def test_prices_of_a_server_that_is_not_ours_are_not_made_up(base_url: str | None) -> None:
    """One side there; two on the paced server, told apart by what they pay."""
    found = sides(Plan(base_url, "m", None, "vllm", None, "balanced", 1, 8, PACE))
    prices = [side.prices for side in found.values()]
    assert prices == (
        [{}] if base_url else [{"input": 0.0, "output": 0.0}, {"input": 3.0, "output": 15.0}]
    )


def test_it_runs() -> None:
    """Two classes, each plain and on both sides, every answer the plain one."""
    pytest.importorskip("torch")
    argv = ["demo", "--prompts", "1", "--max-tokens", "12", "--pace", "tpot=2ms", "--json"]
    result = CliRunner().invoke(app, argv)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["lossless"]
    assert [each["name"] for each in told["classes"]] == ["customer-service", "python-code"]
    for each in told["classes"]:
        assert each["plain"]["tokens"] == 12
        assert [side["identical"] for side in each["sides"].values()] == [True, True]
        own, priced = each["sides"].values()
        assert own["speculative"]["cost_usd"] == 0
        assert priced["speculative"]["cost_usd"] > 0
