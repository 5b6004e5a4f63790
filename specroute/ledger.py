"""Prices, and what a request cost. No I/O.

Knows dollars per million tokens, from the config or from genai-prices, and sums. Deliberately
knows nothing of budgets, of who called, or of the network. What isn't known is ``None`` and makes
every sum that it belongs to ``None``; it is never 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from specroute.types import Attempt, Report, Usage

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens. Prompts longer than a tier's start pay that tier for every token."""

    input: float
    output: float
    cached_input: float | None = None
    """Prompt tokens read from the server's cache; ``None``: not known."""
    tiers: tuple[tuple[int, Price], ...] = ()
    """(prompt tokens, price beyond them), ascending."""

    def at(self, prompt_tokens: int) -> Price:
        """The price for a prompt of that length."""
        applies = self
        for start, price in self.tiers:
            if prompt_tokens > start:
                applies = price
        return applies


class PricedProvider(Protocol):
    """What :func:`price_for` needs of a provider's config."""

    @property
    def base_url(self) -> str:
        """Where calls go."""

    @property
    def prices(self) -> Mapping[str, Any]:
        """Overrides: ``input``, ``output``, ``cached_input``, or tables of them keyed by model."""


class PricingProfile(Protocol):
    """What :func:`price_for` needs of a profile."""

    @property
    def price_provider(self) -> str | None:
        """The provider's id in genai-prices."""

    @property
    def base_url(self) -> str | None:
        """The provider's one address, ``None`` where each user has an own one."""

    def owns(self, base_url: str) -> bool:
        """Whether that is the provider's own address."""


def warm() -> None:
    """Load genai-prices' data (0.2 s, once): call it off the event loop, before any look-up."""
    from genai_prices.data_snapshot import get_snapshot

    get_snapshot()


def price_for(
    provider: PricedProvider, profile: PricingProfile, model: str, *, at: datetime | None = None
) -> Price | None:
    """What ``model`` costs at a provider; ``None`` unless both input and output prices are known.

    The config's word first, field by field: a table for the model (its name, else a matching
    pattern), then the provider's own numbers. What they leave open comes from genai-prices, for the
    time ``at`` (now) where prices change by date or hour, and only when calls go to the provider's
    own address: a gateway in front of it sets its own prices. Look-ups are cached.
    """
    stated = _stated(provider.prices, model)
    known = None
    if "input" not in stated or "output" not in stated:
        known = _published(provider, profile, model, at)
        if known is None:
            return None
    elif "cached_input" not in stated:
        known = _published(provider, profile, model, at)
    if not stated:
        return known
    return Price(
        input=stated["input"] if "input" in stated or known is None else known.input,
        output=stated["output"] if "output" in stated or known is None else known.output,
        cached_input=stated.get("cached_input", known.cached_input if known else None),
        tiers=() if known is None else _retiered(known.tiers, stated),
    )


def cost(usage: Usage, price: Price | None) -> float | None:
    """Dollars for one call, ``None`` when its tokens or the price aren't known.

    Where the server doesn't say how much of the prompt it read from its cache, or what that costs
    isn't known, those tokens count at the full input price: an upper bound.
    """
    if price is None or usage.prompt_tokens is None or usage.completion_tokens is None:
        return None
    price = price.at(usage.prompt_tokens)
    cached = min(usage.cached_tokens or 0, usage.prompt_tokens)
    cached_price = price.input if price.cached_input is None else price.cached_input
    return (
        math.fsum(
            (
                (usage.prompt_tokens - cached) * price.input,
                cached * cached_price,
                usage.completion_tokens * price.output,
            )
        )
        / 1e6
    )


@dataclass
class Ledger:
    """The books of one request: every call that was made for it, and what it was billed.

    A sum is ``None`` as soon as one part is not known. Calls that never reached a provider
    (no connection, no room under a limit), or that it refused with an error status, bill nothing.
    """

    lines: list[tuple[Attempt, Price | None]] = field(default_factory=list)

    def add(self, attempt: Attempt, price: Price | None) -> None:
        """Enter one call; ``price`` is that of its own target."""
        self.lines.append((attempt, price))

    @property
    def prompt_tokens(self) -> int | None:
        """Prompt tokens of every call together."""
        return _total(attempt.usage.prompt_tokens for attempt, _ in self._billed())

    @property
    def cached_tokens(self) -> int | None:
        """Those of them that were read from a cache."""
        return _total(attempt.usage.cached_tokens for attempt, _ in self._billed())

    @property
    def completion_tokens(self) -> int | None:
        """Generated tokens of every call together."""
        return _total(attempt.usage.completion_tokens for attempt, _ in self._billed())

    @property
    def cost_usd(self) -> float | None:
        """Dollars of every call together."""
        parts = [cost(attempt.usage, price) for attempt, price in self._billed()]
        known = [part for part in parts if part is not None]
        return math.fsum(known) if len(known) == len(parts) else None

    def _billed(self) -> list[tuple[Attempt, Price | None]]:
        return [line for line in self.lines if not _free(line[0])]


def booked(
    report: Report, attempts: Sequence[Attempt], price_of: Callable[[str], Price | None]
) -> Report:
    """``report`` with its attempts, what they were billed and what that cost.

    ``price_of`` gives the price of an attempt's ``provider:model``.
    """
    ledger = Ledger()
    for attempt in attempts:
        ledger.add(attempt, price_of(attempt.target))
    return replace(
        report,
        attempts=tuple(attempts),
        billed_prompt_tokens=ledger.prompt_tokens,
        billed_cached_tokens=ledger.cached_tokens,
        billed_completion_tokens=ledger.completion_tokens,
        cost_usd=ledger.cost_usd,
    )


def _free(attempt: Attempt) -> bool:
    nothing_used = attempt.usage == Usage()
    return nothing_used and (
        attempt.outcome in ("connect", "limit") or attempt.outcome.startswith("status ")
    )


def _total(parts: Any) -> int | None:
    total = 0
    for part in parts:
        if part is None:
            return None
        total += part
    return total


def _stated(prices: Mapping[str, Any], model: str) -> dict[str, float]:
    general = {key: value for key, value in prices.items() if not isinstance(value, Mapping)}
    tables = {key: value for key, value in prices.items() if isinstance(value, Mapping)}
    own = tables.get(model)
    if own is None:
        own = next((v for k, v in tables.items() if fnmatchcase(model, k)), {})
    return {**general, **own}


def _retiered(
    tiers: tuple[tuple[int, Price], ...], stated: Mapping[str, float]
) -> tuple[tuple[int, Price], ...]:
    return tuple(
        (
            start,
            Price(
                input=stated.get("input", tier.input),
                output=stated.get("output", tier.output),
                cached_input=stated.get("cached_input", tier.cached_input),
            ),
        )
        for start, tier in tiers
    )


def _published(
    provider: PricedProvider, profile: PricingProfile, model: str, at: datetime | None
) -> Price | None:
    if profile.price_provider is None:
        return None
    if profile.base_url is not None and not profile.owns(provider.base_url):
        return None
    info = _info(profile.price_provider, model)
    if info is None:
        return None
    return _price(info.get_prices(at or datetime.now(tz=UTC)))


@lru_cache(maxsize=4096)
def _info(provider: str, model: str) -> ModelInfo | None:
    from genai_prices.data_snapshot import get_snapshot

    try:
        return get_snapshot().find_provider_model(model, None, provider, None)[1]
    except LookupError:
        return None


def _price(found: ModelPrice) -> Price | None:
    from genai_prices.types import TieredPrices

    if found.requests_kcount:
        return None  # a price per request, too, has no place in a price per token
    kinds = (found.input_mtok, found.output_mtok, found.cache_read_mtok)
    starts = sorted(
        {tier.start for kind in kinds if isinstance(kind, TieredPrices) for tier in kind.tiers}
    )

    def value(kind: Any, prompt_tokens: int) -> float | None:
        if not isinstance(kind, TieredPrices):
            return None if kind is None else float(kind)
        reached = [tier.price for tier in kind.tiers if prompt_tokens >= tier.start]
        return float(reached[-1] if reached else kind.base)

    def flat(prompt_tokens: int) -> Price | None:
        paid, made, cached = (value(kind, prompt_tokens) for kind in kinds)
        return None if paid is None or made is None else Price(paid, made, cached)

    base = flat(-1)
    if base is None:
        return None
    tiers = tuple((start, tier) for start in starts if (tier := flat(start)) is not None)
    return Price(base.input, base.output, base.cached_input, tiers)
