"""Whether a plain answer fits into ``max_cost_usd``, decided before anything is sent. Pure.

Where the request leaves the length of its answer open, the limit closes it: ``max_tokens`` is set
to what the money lasts for, since only the provider can end an answer at its price.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specroute.errors import CostTooHigh
from specroute.ledger import Price
from specroute.limits.estimate import Estimate, of_body
from specroute.limits.purse import Purse


def purse_for(
    most: float, body: Mapping[str, Any], price: Price | None, target: str
) -> tuple[Purse, int | None]:
    """The purse of a request, and the ``max_tokens`` to add to it (``None``: it has its own).

    ``most``: its limit in dollars; ``price``: that of ``target``. :class:`CostTooHigh` shows the
    numbers where not even a plain answer fits, and where the price is not known.
    """
    if price is None:
        provider = target.partition(":")[0]
        raise CostTooHigh(
            f"max_cost_usd = {most:g} can't be kept: what {target} costs is not known. State it in "
            f"providers.{provider}.prices (input = 0, output = 0 for a server of your own)",
            param="max_cost_usd",
            code="price_unknown",
        )
    guess = of_body(body)
    prompt_usd = Estimate(guess.prompt, 0).usd(price)
    whole_usd = guess.usd(price)
    affordable = _affordable(most - prompt_usd, guess, whole_usd - prompt_usd)
    if guess.limited and whole_usd <= most:
        return Purse(most, whole_usd), None
    if guess.limited or affordable < 1:
        advice = f"; max_tokens = {affordable} would fit" if affordable >= 1 else ""
        raise CostTooHigh(
            f"a plain answer by {target} may cost {whole_usd:.6g} USD, more than max_cost_usd = "
            f"{most:g}: up to {guess.prompt} prompt tokens for {prompt_usd:.6g} and {guess.output} "
            f"of the answer for {whole_usd - prompt_usd:.6g}{advice}",
            param="max_cost_usd",
            code="max_cost_exceeded",
        )
    return Purse(most, most), affordable


def _affordable(usd: float, guess: Estimate, output_usd: float) -> int:
    """Tokens of each answer that ``usd`` lasts for; a million where they cost nothing."""
    if usd <= 0:
        return 0
    each = output_usd / max(guess.output, 1)
    return 1_000_000 if each <= 0 else min(int(usd / each / guess.answers + 1e-6), 1_000_000)
