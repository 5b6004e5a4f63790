"""Prices are known or None, and a ledger's sums are the sums of its parts."""

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specroute.config import parse
from specroute.ledger import Ledger, Price, cost, price_for, warm
from specroute.profiles import load_profile
from specroute.types import Attempt, Usage

PRICE = Price(input=2.0, output=8.0, cached_input=0.5)


def provider(name: str, **table: object):
    table = {"env_key": "", **table}
    return parse({"providers": {name: table}}, environ={}).providers[name]


def test_prices_come_from_genai_prices() -> None:
    """A known model at its own provider has a published price."""
    warm()
    assert price_for(provider("openai"), load_profile("openai"), "gpt-4.1") == PRICE


@pytest.mark.parametrize(
    ("name", "table", "model"),
    [
        ("openai", {}, "no-such-model"),
        ("generic", {"base_url": "http://h/v1"}, "gpt-4.1"),
        ("vllm", {"base_url": "http://h/v1"}, "gpt-4.1"),
        ("openai", {"base_url": "https://gateway.example/v1"}, "gpt-4.1"),
        ("openai", {"base_url": "https://gateway.example/v1", "prices": {"input": 1}}, "gpt-4.1"),
    ],
)
def test_an_unknown_price_is_none(name: str, table: dict[str, object], model: str) -> None:
    """Unknown models, own servers and gateways have no price, rather than 0 or a guess."""
    assert price_for(provider(name, **table), load_profile(name), model) is None


def test_the_configs_prices_come_first() -> None:
    """By model, by pattern, for the provider; what they leave open is the published price."""
    prices = {
        "input": 1,
        "output": 4,
        "gpt-4.1": {"output": 3},
        "gpt-4o*": {"input": 9, "output": 9, "cached_input": 9},
    }
    openai = provider("openai", prices=prices)
    profile = load_profile("openai")
    assert price_for(openai, profile, "gpt-4.1") == Price(1.0, 3.0, 0.5)
    assert price_for(openai, profile, "gpt-4o-mini") == Price(9.0, 9.0, 9.0)
    assert price_for(openai, profile, "unheard-of") == Price(1.0, 4.0, None)
    free = provider("vllm", base_url="http://h/v1", prices={"input": 0, "output": 0})
    assert price_for(free, load_profile("vllm"), "m") == Price(0.0, 0.0)


def test_a_price_is_that_of_its_time() -> None:
    """Where prices change with the hour, the hour of the call counts."""
    deepseek, profile = provider("deepseek"), load_profile("deepseek")
    night = price_for(deepseek, profile, "deepseek-chat", at=datetime(2025, 7, 1, 20, tzinfo=UTC))
    day = price_for(deepseek, profile, "deepseek-chat", at=datetime(2025, 7, 1, 10, tzinfo=UTC))
    assert night is not None
    assert day is not None
    assert night.input < day.input


def test_long_prompts_pay_their_tier_for_every_token() -> None:
    """A tier's price holds for the whole call, from one token beyond its start."""
    price = price_for(provider("gemini"), load_profile("gemini"), "gemini-2.5-pro")
    assert price is not None
    ((start, beyond),) = price.tiers
    assert cost(Usage(start, 0, 0), price) == pytest.approx(start * price.input / 1e6)
    assert cost(Usage(start + 1, 0, 0), price) == pytest.approx((start + 1) * beyond.input / 1e6)


def test_cached_input_is_counted_at_its_own_price() -> None:
    """Unknown caching, or an unknown price for it, counts in full: an upper bound."""
    assert cost(Usage(1000, 100, 600), PRICE) == pytest.approx(
        (400 * 2 + 600 * 0.5 + 100 * 8) / 1e6
    )
    full = (1000 * 2 + 100 * 8) / 1e6
    assert cost(Usage(1000, 100, None), PRICE) == pytest.approx(full)
    assert cost(Usage(1000, 100, 600), Price(2.0, 8.0)) == pytest.approx(full)


@pytest.mark.parametrize(
    ("usage", "price"),
    [(Usage(), PRICE), (Usage(1, None), PRICE), (Usage(None, 1), PRICE), (Usage(1, 1), None)],
)
def test_a_cost_that_isnt_known_is_none(usage: Usage, price: Price | None) -> None:
    """Neither tokens nor prices are guessed."""
    assert cost(usage, price) is None


def attempt(usage: Usage, outcome: str = "ok") -> Attempt:
    return Attempt("p:m", "plain", outcome, 0.1, usage)


def test_an_unknown_part_makes_the_sum_unknown() -> None:
    """A cancelled call without usage leaves the bill open; one that never arrived doesn't."""
    ledger = Ledger()
    ledger.add(attempt(Usage(10, 5, 0)), PRICE)
    ledger.add(attempt(Usage(), "connect"), PRICE)
    ledger.add(attempt(Usage(), "status 429"), PRICE)
    assert (ledger.prompt_tokens, ledger.completion_tokens) == (10, 5)
    assert ledger.cost_usd == pytest.approx((10 * 2 + 5 * 8) / 1e6)
    ledger.add(attempt(Usage(), "cancelled"), PRICE)
    assert (ledger.prompt_tokens, ledger.completion_tokens, ledger.cost_usd) == (None, None, None)


def test_an_empty_ledger_is_nothing_billed() -> None:
    """No calls cost nothing: that much is known."""
    assert (Ledger().prompt_tokens, Ledger().cost_usd) == (0, 0.0)


counts = st.one_of(st.none(), st.integers(0, 10**6))
usages = st.builds(
    lambda p, c, share: Usage(p, c, None if p is None or share is None else int(p * share)),
    counts,
    counts,
    st.one_of(st.none(), st.floats(0, 1)),
)
dollars = st.floats(0, 1000, allow_nan=False)
prices = st.one_of(st.none(), st.builds(Price, dollars, dollars, st.one_of(st.none(), dollars)))


@given(st.lists(st.tuples(usages, prices), max_size=8), st.randoms())
def test_sums_are_the_sums_of_the_parts(lines, random) -> None:
    """In any order; and None exactly when a part is None."""
    ledger = Ledger()
    for usage, price in lines:
        ledger.add(attempt(usage), price)
    for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
        parts = [getattr(usage, name) for usage, _ in lines]
        assert getattr(ledger, name) == (None if None in parts else sum(parts))
    costs = [cost(usage, price) for usage, price in lines]
    assert ledger.cost_usd == (None if None in costs else math.fsum(costs))
    shuffled = Ledger(random.sample(ledger.lines, len(ledger.lines)))
    assert shuffled.cost_usd == ledger.cost_usd


@given(usages, prices)
def test_a_cost_is_never_negative_and_never_above_full_price(usage, price) -> None:
    """Caching can only make a call cheaper, as long as cached input is the cheaper one."""
    found = cost(usage, price)
    if found is None:
        assert price is None or None in (usage.prompt_tokens, usage.completion_tokens)
        return
    dearest = max(price.input, price.cached_input or 0)
    full = (usage.prompt_tokens * dearest + usage.completion_tokens * price.output) / 1e6
    assert 0 <= found <= full * (1 + 1e-9)
