"""Limits and budgets at the one place that every call passes: reserved before, settled after.

Knows who waits and in which order. What a window holds, ``window`` says; what a call may come to,
``estimate``; what a request may cost, its ``purse``. Knows no HTTP.

Calls that an answer can't do without wait in line, first come first served, within their own
deadline, unless they may go to another target instead. Calls that only make it faster (rounds,
lanes, drafts, calibration) never wait and never overtake: where there is no room at once they don't
leave, and the answer goes on plain.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf, isfinite

from specroute.config import ProviderConfig
from specroute.errors import (
    BudgetExceeded,
    ConnectFailed,
    CostTooHigh,
    DeadlineExceeded,
    LimitReached,
)
from specroute.http.gate import Departure, Permit
from specroute.ledger import Price, cost
from specroute.limits.estimate import Estimate, estimate
from specroute.limits.purse import Purse, current
from specroute.store import Store
from specroute.store.window import DAY, MINUTE, Change, Refusal, Want
from specroute.types import Usage

NEEDED = frozenset({"plain", "handover", "resume", "predict", "draw", "probe", "other"})
"""The purposes that an answer can't do without; ``other``: whatever is passed through."""
BEGUN = frozenset({"handover", "resume", "draw"})
"""Those of an answer that has begun: a budget doesn't stop them, or it would spoil the answer."""
UNCOUNTED = frozenset({"render"})
"""Local helpers of a server (a tokenizer), which no provider limits or bills."""
LEAST_WAIT_S, MOST_WAIT_S = 0.005, 1.0
"""How soon and how late to look again: others may take the room first, or give theirs back."""

OPTIONAL_SHARE = 0.9
"""How much of a limit calls may take that an answer can do without: the rest is for plain answers,
those among them that take over where such a call found no room."""

USD = "usd"


class LimitGate:
    """Keeps every provider's ``limits``, the day's budget and each request's own.

    ``price_of``: the price of a ``provider:model``. ``daily_usd``: the budget in force, ``None``
    for none. ``clock``: seconds since the epoch.
    """

    def __init__(
        self,
        store: Store,
        price_of: Callable[[str], Price | None],
        *,
        daily_usd: Callable[[], float | None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._price_of = price_of
        self._daily = daily_usd
        self._clock = clock
        self._lines: dict[str, _Line] = {}

    async def _now(self) -> float:
        """Seconds since the epoch, by the clock of whoever holds the sums."""
        ahead = getattr(self._store, "ahead", None)  # A store of one machine has none.
        return self._clock() + (0.0 if ahead is None else await ahead())

    def concerns(self, provider: ProviderConfig, purpose: str) -> bool:
        """Calls that some limit, budget or purse counts."""
        if not (provider.limits or self._daily() is not None or current.get()):
            return False
        return purpose not in UNCOUNTED

    async def enter(self, departure: Departure) -> Permit:
        """Reserve what the call may come to.

        Raises :class:`LimitReached`, :class:`BudgetExceeded`, :class:`CostTooHigh` and
        :class:`~specroute.errors.StoreFailed`.
        """
        if not self.concerns(departure.provider, departure.purpose):
            return FREE
        purse, daily = current.get(), self._daily()
        guess = estimate(departure.content)
        budgeted = (daily is not None or purse is not None) and bool(departure.model)
        price = self._price(departure) if budgeted else None
        usd = guess.usd(price) if price is not None else 0.0
        wants = self._wants(departure, guess, usd, daily)
        booking = _Booking(self._store, guess, price, usd, wants)
        if purse is not None and price is not None:
            booking.hold(purse, departure)
        try:
            await self._pass(departure, booking)
        except BaseException:
            booking.give_up()
            raise
        return booking

    def _price(self, departure: Departure) -> Price:
        name = departure.provider.name
        target = f"{name}:{departure.model}"
        price = self._price_of(target)
        if price is not None:
            return price
        said = (
            f"what {target} costs is not known, so no budget can be kept for it: state it in "
            f"providers.{name}.prices (input = 0, output = 0 for a server of your own)"
        )
        if departure.purpose in NEEDED:
            raise CostTooHigh(said, param="prices", code="price_unknown")
        raise LimitReached(said, provider=name, limit="prices")

    def _wants(
        self, departure: Departure, guess: Estimate, usd: float, daily: float | None
    ) -> list[Want]:
        provider, limits = departure.provider.name, departure.provider.limits
        wants = []
        if limits.get("rpm") is not None:
            wants.append(Want(f"{provider}/rpm", 1.0, limits["rpm"], MINUTE))
        tpm = limits.get("tpm")
        if tpm is not None:
            if guess.prompt > tpm:
                raise LimitReached(
                    f"the prompt has up to {guess.prompt} tokens, more than "
                    f"providers.{provider}.limits.tpm = {tpm:g} lets through in a minute",
                    provider=provider,
                    limit=f"providers.{provider}.limits.tpm",
                    wait_s=inf,
                )
            wants.append(Want(f"{provider}/tpm", min(guess.tokens, tpm), tpm, MINUTE))
        if daily is not None and departure.model:
            limit = inf if departure.purpose in BEGUN else daily
            wants.append(Want(USD, usd, limit, DAY))
        if departure.purpose not in NEEDED:
            wants = [replace(want, limit=OPTIONAL_SHARE * want.limit) for want in wants]
        return wants

    async def _pass(self, departure: Departure, booking: _Booking) -> None:
        """Book, waiting in line for room where the call is needed."""
        if not booking.wants:
            return
        name = departure.provider.name
        line = self._lines.setdefault(name, _Line())
        optional = departure.purpose not in NEEDED
        if optional or not departure.waits:
            if line.full and line.queue:
                why = "can be done without" if optional else "may go to another target"
                raise LimitReached(
                    f"{name}: other calls wait for room under its limits, and a "
                    f"{departure.purpose} call {why}",
                    provider=name,
                    limit=f"providers.{name}.limits",
                )
            refused = await booking.take(await self._now())
            if refused is not None:
                share = OPTIONAL_SHARE if optional else 1.0
                raise _refused(refused, name, waited=0.0, share=share)
            return
        deadline = departure.deadline
        began, left = deadline.clock(), deadline.remaining("first_token")
        line.queue += 1
        try:
            async with asyncio.timeout(max(left, 0.0) if isfinite(left) else None), line.lock:
                while (refused := await booking.take(await self._now())) is not None:
                    line.refused, line.full = refused, True
                    if refused.wait_s > deadline.remaining("first_token"):
                        raise _refused(refused, name, waited=deadline.clock() - began)
                    await asyncio.sleep(min(max(refused.wait_s, LEAST_WAIT_S), MOST_WAIT_S))
                line.full = False
        except TimeoutError:
            if line.refused is None:
                raise LimitReached(
                    f"{name}: no answer about its limits within {left:g} s",
                    provider=name,
                    limit=f"providers.{name}.limits",
                ) from None
            raise _refused(line.refused, name, waited=deadline.clock() - began) from None
        finally:
            line.queue -= 1


class _Line:
    """Who waits for room at one provider, and what the first in line was told last."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.refused: Refusal | None = None
        self.full = False
        """The last that asked found no room."""
        self.queue = 0
        """Calls in line, the first included."""


def _refused(refusal: Refusal, provider: str, *, waited: float, share: float = 1.0) -> LimitReached:
    want, after = refusal.want, f" after waiting {waited:.1f} s" if waited > 0.05 else ""
    value = f"{want.limit / share:g}"
    if share < 1:
        value += f", {want.limit:g} of it for calls that can be left out"
    if want.key == USD:
        return BudgetExceeded(
            f"budgets.daily.usd = {value}: {refusal.used:.6g} is spent or reserved today "
            f"(UTC), and this call to {provider} may come to {want.amount:.6g}{after}",
            provider=provider,
            limit="budgets.daily.usd",
            wait_s=refusal.wait_s,
        )
    which = want.key.rpartition("/")[2]
    limit = f"providers.{provider}.limits.{which}"
    what = "calls" if which == "rpm" else "tokens"
    more = "one more" if which == "rpm" else f"{want.amount:g} more"
    return LimitReached(
        f"{limit} = {value}: {refusal.used:g} {what} in the last minute leave no room for "
        f"{more}{after}; there is room in {refusal.wait_s:.1f} s",
        provider=provider,
        limit=limit,
        wait_s=refusal.wait_s,
    )


def _never_left(error: BaseException | None) -> bool:
    """No connection, or another gate refused."""
    no_connection = isinstance(error, DeadlineExceeded) and error.which == "connect"
    return no_connection or isinstance(error, ConnectFailed | LimitReached)


class _Free:
    """A call that nothing counts."""

    def arrived(self, status: int, headers: Mapping[str, str]) -> None:
        """Nothing to note."""

    def settle(self, usage: Usage | None, error: BaseException | None) -> None:
        """Nothing to settle."""


FREE = _Free()


class _Booking:
    """What one call has reserved; the permit that settles it."""

    __slots__ = (
        "_arrived",
        "_guess",
        "_needed",
        "_price",
        "_purse",
        "_slots",
        "_status",
        "_store",
        "_usd",
        "wants",
    )

    def __init__(
        self, store: Store, guess: Estimate, price: Price | None, usd: float, wants: list[Want]
    ) -> None:
        self.wants = wants
        self._store = store
        self._guess = guess
        self._price = price
        self._usd = usd
        self._slots: list[int] = []
        self._purse: Purse | None = None
        self._needed = True
        self._arrived = False
        self._status = 0

    async def take(self, now: float) -> Refusal | None:
        refused = await self._store.take(self.wants, now)
        if refused is None:
            self._slots = [want.window.slot(now) for want in self.wants]
        return refused

    def hold(self, purse: Purse, departure: Departure) -> None:
        """Reserve in the request's own purse, or raise."""
        self._needed = departure.purpose in NEEDED
        if departure.purpose not in BEGUN and not purse.fits(self._usd, needed=self._needed):
            said = (
                f"max_cost_usd = {purse.limit:g}: {purse.spent:.6g} is spent and "
                f"{purse.reserved:.6g} reserved of it, and a {departure.purpose} call to "
                f"{departure.provider.name}:{departure.model} may come to {self._usd:.6g}"
            )
            if self._needed:
                raise CostTooHigh(said, param="max_cost_usd", code="max_cost_exceeded")
            raise LimitReached(said, provider=departure.provider.name, limit="max_cost_usd")
        purse.reserve(self._usd, needed=self._needed)
        self._purse = purse

    def give_up(self) -> None:
        """It does not leave."""
        self._end(0, 0.0, calls=0)

    def arrived(self, status: int, headers: Mapping[str, str]) -> None:
        self._arrived, self._status = True, status

    def settle(self, usage: Usage | None, error: BaseException | None) -> None:
        if not self._arrived and _never_left(error):
            self._end(0, 0.0, calls=0)
            return
        if self._status >= 300:
            self._end(0, 0.0)  # Refused: counted as a call, billed nothing.
            return
        used = self._used(usage, error)
        usd = self._usd if self._price is None else cost(used, self._price) or 0.0
        self._end((used.prompt_tokens or 0) + (used.completion_tokens or 0), usd)

    def _used(self, usage: Usage | None, error: BaseException | None) -> Usage:
        """What is known, else the upper estimate; of an answer that ended early its prompt, and as
        much of it as was seen."""
        usage = usage or Usage()
        prompt, completion = usage.prompt_tokens, usage.completion_tokens
        if completion is None:
            completion = self._guess.output if error is None else 0
        if prompt is None:
            prompt = self._guess.prompt
        return Usage(prompt, completion, usage.cached_tokens)

    def _end(self, tokens: int, usd: float, calls: int = 1) -> None:
        purse, self._purse = self._purse, None
        if purse is not None:
            purse.settle(self._usd, usd, needed=self._needed)
        actual = {"rpm": float(calls), "tpm": float(tokens), USD: usd}
        changes = []
        for want, slot in zip(self.wants, self._slots, strict=False):
            change = actual[want.key.rpartition("/")[2]] - want.amount
            if change:
                changes.append(Change(want.key, slot, change))
        self._slots = []
        if changes:
            self._store.change(changes)
