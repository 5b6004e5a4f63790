"""Measurements survive a restart: by server and model, old ones for less, bad files left aside."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from specroute.config import Config
from specroute.config.parse import parse
from specroute.measure import Measurements
from specroute.measure.dump import MAX_AGE_S, MAX_ENTRIES, dump, load, merged
from specroute.measure.lending import HALF_LIFE_S
from specroute.measured import FILE, Kept

A, B = "chat#a/prose/1k", "chat#b/prose/1k"
NAMES = {"t": "server t"}, {"d": "ngram"}


def full(at: float = 1000.0) -> Measurements:
    seen = Measurements()
    for i in range(60):
        for traffic, accepted in ((A, 3), (B, 1)):
            seen.round(
                "t", "d", traffic, drafted=4, accepted=accepted, judged=accepted + 1, draft_s=0.02,
                verify_s=0.05 + 1e-5 * i, how="rules", context=100 + i, draws=1, draws_s=0.03,
                temperature=0.7, at=at,
            )  # fmt: skip
            seen.plain(
                "t", traffic, ttft_s=0.1, tpot_s=0.03, tokens=80, prompt_tokens=100 + i, at=at
            )
        seen.first_draft("d", 0.05, context=100, drafted=4, at=at)
        seen.predicted("t", "d", A, drafted=10, accepted=7, at=at)
    return seen


def test_a_dump_taken_over_gives_the_same_figures() -> None:
    """Through JSON, at once."""
    seen = full()
    data = json.loads(json.dumps(dump(seen, *NAMES)))
    again = Measurements()
    assert load(again, data, *NAMES, now=1000.0) > 0
    for traffic in (A, B, "chat#c/prose/1k"):
        old = seen.snapshot("t", "d", traffic, "rules", prompt_tokens=150)
        new = again.snapshot("t", "d", traffic, "rules", prompt_tokens=150)
        assert new.pace.tpot_s == pytest.approx(old.pace.tpot_s)
        assert new.pace.ttft_s == pytest.approx(old.pace.ttft_s)
        assert new.pace.answer_tokens == pytest.approx(old.pace.answer_tokens)
        assert new.acceptance.survival(4) == pytest.approx(old.acceptance.survival(4), abs=0.01)
        before, after = old.round_time(150, 4), new.round_time(150, 4)
        assert before is not None
        assert after is not None
        assert (after.mean, after.high) == pytest.approx((before.mean, before.high))
        assert new.draft_s == pytest.approx(old.draft_s)
        assert new.verify_s == pytest.approx(old.verify_s)
        assert new.draws is not None
        assert old.draws is not None
        assert new.draws.mean == pytest.approx(old.draws.mean)
        assert new.predicted is not None
        assert old.predicted is not None
        assert new.predicted.mean == pytest.approx(old.predicted.mean)
        assert [t for t, _ in new.by_temperature] == [0.7]


def test_age_takes_weight_and_leaves_rates() -> None:
    """Half of it in a day; after a month nothing is taken over."""
    data = dump(full(), *NAMES)
    aged = Measurements()
    load(aged, data, *NAMES, now=1000.0 + HALF_LIFE_S)
    fresh = full().snapshot("t", "d", A, "rules")
    old = aged.snapshot("t", "d", A, "rules")
    assert old.rounds_seen.weight == pytest.approx(0.5 * fresh.rounds_seen.weight, rel=0.01)
    assert old.rounds_seen.rate == pytest.approx(fresh.rounds_seen.rate)
    assert load(Measurements(), data, *NAMES, now=1001.0 + MAX_AGE_S) == 0


def test_of_two_processes_the_newer_figures_stay() -> None:
    """And those that only one of them has."""
    older, newer = full(at=1000.0), Measurements()
    newer.plain("t", A, ttft_s=0.5, tpot_s=0.1, tokens=80, at=2000.0)
    both = merged(dump(newer, *NAMES), dump(older, *NAMES), now=2000.0)
    again = Measurements()
    load(again, both, *NAMES, now=2000.0)
    found = again.snapshot("t", "d", A, "rules")
    assert found.pace.ttft_s == pytest.approx(0.5, rel=0.1)
    assert found.rounds_seen.weight > 100


def test_the_newest_figures_are_kept() -> None:
    """Of servers that come and go the file holds no more than so many."""
    own, kept = dump(full(at=1000.0), *NAMES), dump(full(at=1000.0), *NAMES)
    share = -(-MAX_ENTRIES // len(kept["entries"]))
    one_a_second = [
        {**entry, "key": [f"server-{n}", *entry["key"][1:]], "at": float(n)}
        for n in range(share)
        for entry in kept["entries"]
    ]
    found = merged(own, {**kept, "entries": one_a_second}, now=2000.0)["entries"]
    assert len(found) == MAX_ENTRIES
    assert all(entry in found for entry in own["entries"])
    oldest = min(entry["at"] for entry in found)
    assert sum(entry["at"] > oldest for entry in one_a_second) == sum(
        entry["at"] > oldest for entry in found if entry not in own["entries"]
    )


def test_what_a_clock_that_was_ahead_has_dated_does_not_stay_the_newest() -> None:
    """It is taken as from now: what is measured later replaces it, and it ages."""
    ahead, newer = full(at=9e9), Measurements()
    newer.plain("t", A, ttft_s=0.5, tpot_s=0.1, tokens=80, at=2000.0)
    both = merged(dump(newer, *NAMES), dump(ahead, *NAMES), now=2000.0)
    again = Measurements()
    load(again, both, *NAMES, now=2000.0)
    assert again.snapshot("t", "d", A, "rules").pace.ttft_s == pytest.approx(0.5, rel=0.1)
    assert max(entry["at"] for entry in both["entries"]) == 2000.0
    assert load(Measurements(), both, *NAMES, now=2001.0 + MAX_AGE_S) == 0


def config(base_url: str = "http://10.0.0.5/v1", provider: str = "lab") -> Config:
    return parse(
        {
            "version": 1,
            "providers": {provider: {"profile": "vllm", "base_url": base_url}},
            "models": {"smart": {"targets": [f"{provider}:big"], "drafts": ["ngram"]}},
        },
        environ={},
    )


def measured(provider: str = "lab") -> Measurements:
    seen = Measurements()
    for _ in range(10):
        seen.plain(f"{provider}:big", A, ttft_s=0.1, tpot_s=0.03, tokens=80, at=time.time())
        seen.round(
            f"{provider}:big", "ngram", A, drafted=4, accepted=2, judged=3, draft_s=None,
            verify_s=0.05, how="argmax", at=time.time(),
        )  # fmt: skip
    return seen


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECROUTE_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_figures_belong_to_a_server_not_to_a_name(folder: Path) -> None:
    """A renamed provider finds them; another server under the old name doesn't."""
    assert Kept(config()).save(measured()) == folder / FILE
    renamed, moved = Measurements(), Measurements()
    assert Kept(config(provider="home")).load(renamed) > 0
    assert renamed.snapshot("home:big", "ngram", A, "argmax").pace.tpot_s == pytest.approx(0.03)
    Kept(config(base_url="http://10.0.0.6/v1")).load(moved)
    assert moved.snapshot("lab:big", "ngram", A, "argmax").pace.tpot_s is None


def test_two_names_of_one_draft_are_kept_once(folder: Path) -> None:
    """By what was seen last; the same model run in another way is another draft."""

    def kept(**drafts: Any) -> Kept:
        local = {"kind": "local", "model": "org/small"}
        tables = {name: {**local, **more} for name, more in drafts.items()}
        providers = {"lab": {"profile": "vllm", "base_url": "http://10.0.0.5/v1"}}
        return Kept(parse({"version": 1, "providers": providers, "drafts": tables}, environ={}))

    half = kept(a={}, b={"dtype": "float16"}, c={"temperature": 0.5}, d={"min_probability": 0.2})
    assert len({half.drafts[name] for name in "abcd"}) == 4
    seen = Measurements()
    for name, seconds, at in (("a", 0.02, time.time()), ("b", 0.01, time.time() - 60)):
        for _ in range(10):
            seen.draft_time(name, seconds, at)
    for names, expected in ((kept(a={}, b={}), 0.02), (half, 0.01)):
        for _ in range(3):  # as often as a config is reloaded
            again = Measurements()
            assert load(again, names.collect(seen), names.targets, names.drafts, time.time())
            assert again.drafts["b"].token.value == pytest.approx(expected)
            assert again.drafts["a"].token.value == pytest.approx(0.02)
            weight = again.drafts["a"].token.estimate()
            assert weight is not None and weight.weight <= 10


def test_what_another_config_has_kept_stays(folder: Path) -> None:
    """Both in one file."""
    Kept(config()).save(measured())
    Kept(config(base_url="http://10.0.0.6/v1")).save(measured())
    assert Kept(config()).load(Measurements()) > 0
    assert [path.name for path in folder.iterdir()] == [FILE]


@pytest.mark.parametrize(
    "content",
    [
        "no json",
        "[]",
        '{"version": 99, "entries": []}',
        '{"version": 1}',
        '{"version": 1, "entries": [], "more": NaN}',
        '{"version": 1, "entries": [], "more": 1e400}',
        f'{{"version": 1, "entries": [{{"kind": "x", "key": [""], "at": {10**400}}}]}}',
        '{"version": 1, "entries": [{"kind": "target", "key": ["10.0.0.5:http/v1 big"], "at": 0}]}',
    ],
)
def test_a_bad_file_is_left_aside_and_said(
    folder: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    """Nothing is taken over from it; the next save replaces it."""
    text = content.replace('"at": 0', f'"at": {time.time()}')
    (folder / FILE).write_text(text, encoding="utf-8")
    seen = Measurements()
    with caplog.at_level(logging.WARNING, "specroute"):
        assert Kept(config()).load(seen) == 0
    assert FILE in caplog.text
    Kept(config()).save(measured())
    assert Kept(config()).load(Measurements()) > 0


def test_nothing_is_kept_without_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty SPECROUTE_CACHE_DIR."""
    monkeypatch.setenv("SPECROUTE_CACHE_DIR", "")
    assert Kept(config()).save(measured()) is None
    assert Kept(config()).load(Measurements()) == 0
