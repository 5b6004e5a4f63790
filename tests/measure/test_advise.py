"""Advice names what to change and the figure behind it, and keeps quiet where there is none."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from specroute.advice import Advice, advise
from specroute.config import Config, parse
from specroute.ledger import Price
from specroute.measure import Measurements
from specroute.measured import Kept
from specroute.types import Attempt, Usage
from tests.measure.test_cli import CONFIG, run
from tests.measure.test_kept import measured

PRICE = Price(1.0, 4.0, 0.1)


def config(policy: Any = "balanced", drafts: tuple[str, ...] = ("big", "ngram")) -> Config:
    return parse(
        {
            "version": 1,
            "providers": {"lab": {"profile": "vllm", "base_url": "http://10.0.0.5/v1"}},
            "drafts": {"big": {"kind": "local", "model": "some/model"}},
            "models": {"m": {"targets": ["lab:x"], "drafts": list(drafts), "policy": policy}},
        },
        environ={},
    )


def seen(
    alphas: dict[str, float],
    *,
    verify_s: float = 0.03,
    tpot_s: float = 0.03,
    draft_s: float = 0.003,
    prompt: int = 500,
) -> Measurements:
    rng, found = random.Random(1), Measurements()
    for _ in range(30):
        found.plain("lab:x", "c", ttft_s=0.1, tpot_s=tpot_s, tokens=100, prompt_tokens=prompt)
    for draft, alpha in alphas.items():
        for n in range(60):
            for _ in range(5):
                accepted = 0
                while accepted < 8 and rng.random() < alpha:
                    accepted += 1
                found.round(
                    "lab:x", draft, "c", drafted=8, accepted=accepted,
                    judged=min(accepted + 1, 8), draft_s=8 * draft_s, verify_s=verify_s,
                    how="argmax", context=500, answer=n,
                )  # fmt: skip
            found.over("lab:x", draft, "c", n, "argmax")
    return found


def topics(measured: Measurements, made: Config | None = None, **price: Any) -> dict[str, Advice]:
    known = price.get("price", PRICE)
    return {each.topic: each for each in advise(measured, made or config(), lambda _: known)}


def test_good_figures_need_no_advice() -> None:
    """A good draft on a near target, and look-up that is worse."""
    assert topics(seen({"big": 0.9, "ngram": 0.4})) == {}


def test_low_acceptance_asks_for_another_draft() -> None:
    """With the rate and its interval."""
    found = topics(seen({"big": 0.25, "ngram": 0.2}))["acceptance"]
    assert "of its judged tokens pass" in found.figure
    assert "%" in found.figure
    assert "own family" in found.change


def test_a_k_that_is_too_large_is_named() -> None:
    """Where the policy is told K; one that chooses it needs no telling."""
    fixed = {"preset": "fixed", "num_speculative_tokens": 8}
    low = seen({"big": 0.45, "ngram": 0.3}, verify_s=0.02)
    found = topics(low, config(fixed))["K"]
    assert "K = 8" in found.figure
    assert "num_speculative_tokens = " in found.change
    assert "K" not in topics(low)


def test_a_round_trip_that_is_too_long_is_named() -> None:
    """In milliseconds and in tokens' time."""
    found = topics(seen({"big": 0.7, "ngram": 0.5}, verify_s=0.43))["round trip"]
    assert "430 ms, 14 tokens' time" in found.figure


def test_a_model_that_brings_no_more_than_look_up_is_named() -> None:
    """It costs memory."""
    found = topics(seen({"big": 0.7, "ngram": 0.8}, draft_s=0.001))
    assert "leave 'big' out" in found["look-up"].change


def test_a_better_draft_further_down_is_named() -> None:
    """By what both are predicted to bring."""
    found = topics(seen({"big": 0.9, "ngram": 0.5}), config(drafts=("ngram", "big")))
    assert "put 'big' first" in found["order"].change


def test_a_better_temperature_of_the_draft_is_named() -> None:
    """Where both were tried, and the intervals are apart."""
    found = seen({"big": 0.9, "ngram": 0.4})
    for n in range(60):
        for temperature, accepted in ((0.9, 6), (0.3, 2)):
            found.round(
                "lab:x", "big", "c", drafted=8, accepted=accepted, judged=accepted + 1,
                draft_s=None, verify_s=None, how="rules", temperature=temperature, answer=n,
            )  # fmt: skip
    advice = topics(found)["temperature"]
    assert "set temperature = 0.9 in [drafts.big]" in advice.change
    assert "86 %" in advice.figure
    assert "67 %" in advice.figure


def test_a_draft_that_was_never_tried_is_named() -> None:
    """With its target."""
    assert topics(seen({"big": 0.9}))["untried"].about == "draft 'ngram' on lab:x"


def test_prices_cache_refusals_and_failures() -> None:
    """Each from its own figure."""
    measured = seen({"big": 0.9, "ngram": 0.4}, prompt=3000)
    ok = Attempt("lab:x", "plain", "ok", 1.0, Usage(3000, 100, 0))
    refused = Attempt("lab:x", "plain", "status 429", 0.1)
    broken = Attempt("lab:x", "plain", "status 500", 0.1)
    measured.attempted([*[ok] * 20, *[refused] * 8, *[broken] * 8, *[ok] * 10])
    found = topics(measured)
    assert {"cache", "refusals", "failures"} <= set(found)
    assert "3000 a request" in found["cache"].figure
    assert "429" in found["refusals"].figure
    assert "prices" in topics(measured, price=None)


def test_nothing_measured_gives_no_advice() -> None:
    """Not even about prices."""
    assert topics(Measurements(), price=None) == {}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECROUTE_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "specroute.toml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def test_the_command_reads_what_was_kept(file: Path) -> None:
    """As text and as JSON; with nothing kept it says so."""
    assert "Nothing was measured yet" in run("advise", "--file", str(file))
    from specroute.config import load

    Kept(load(file)).save(measured())
    assert "measured:" in run("advise", "--file", str(file))
    found = json.loads(run("advise", "--file", str(file), "--json"))
    assert {"topic", "about", "figure", "change"} == set(found[0])
