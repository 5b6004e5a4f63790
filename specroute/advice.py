"""What to change in a config, by what was measured with it: each piece of advice has its figure.

Pure. Measurements, config and prices in, sentences out; what isn't measured well enough gives no
advice. The recommendations for low acceptance (a draft of the target's own family, a smaller K,
temperatures set apart) are those of practice; here a figure decides which of them applies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from specroute import speedup
from specroute.config import Config, ModelConfig
from specroute.ledger import Price
from specroute.measure import Acceptance, Estimate, Measurements, Snapshot

ENOUGH = 50.0
"""Judged tokens (or calls) behind a figure that advice may rest on."""
LOW = 0.4
"""Acceptance under which another draft is worth looking for."""
BETTER = 1.05
"""How much faster something must be to be advised."""
OFTEN = 0.02
"""The share of calls that fail, or are refused, from which it matters."""
CACHEABLE = 1024.0
"""Prompt tokens from which providers keep a prompt's beginning."""
SEEN_K = 16
UNTRIED_DRAFT_S = 0.004


@dataclass(frozen=True, slots=True)
class Advice:
    """``about``: what it is about (a target, a draft on a target); ``figure``: what was measured;
    ``change``: what to do about it."""

    topic: str
    about: str
    figure: str
    change: str


@dataclass(frozen=True, slots=True)
class _Use:
    """One draft used in one way on one target, and what that is predicted to bring."""

    draft: str
    how: str
    figures: Snapshot
    k: int
    gain: float
    """Times as fast as plain; 0 where the figures don't suffice."""


def advise(
    seen: Measurements, config: Config, price_of: Callable[[str], Price | None]
) -> list[Advice]:
    """All advice for the models of a config."""
    found: list[Advice] = []
    for model in config.models.values():
        target = str(model.targets[0])
        found += _target(seen, target, price_of(target))
        if model.drafts:
            uses = [
                _use(seen, target, d, how) for d in model.drafts for how in _hows(seen, target, d)
            ]
            for use in uses:
                found += _acceptance(target, use)
                found += _temperature(target, use)
            found += _rounds(target, model, uses)
            found += _drafts(seen, target, model, config, uses)
    return list(dict.fromkeys(found))


# --- the target ---------------------------------------------------------------------------------


def _target(seen: Measurements, target: str, price: Price | None) -> Iterator[Advice]:
    known = seen.targets.get(target)
    if known is None or known.ttft.weight < 5:
        return
    if price is None:
        yield Advice(
            "prices",
            target,
            "its prices are not known, so no cost limit can be kept and dollars don't count",
            "set prices = { input = …, output = …, cached_input = … } (USD per million tokens) "
            "for its provider; 0 where it costs nothing",
        )
    figures = seen.snapshot(target, "", "")
    for topic, rate, change in (
        (
            "refusals",
            figures.limited,
            "ask for a higher limit, or give the model a second target to fall back to",
        ),
        (
            "failures",
            figures.failures,
            "look at the errors in the reports; a second target in targets = […] takes over",
        ),
    ):
        if rate is not None and rate.weight >= ENOUGH / 2 and rate.low > OFTEN:
            what = "are refused with 429" if topic == "refusals" else "fail"
            yield Advice(topic, target, f"{_share(rate)} of its calls {what}", change)
    prompt = known.ttft.ordinary[0]
    cached, round_cached = figures.cached, figures.round_cached
    if price is not None and price.cached_input is not None and prompt >= CACHEABLE:
        if cached is not None and cached.weight >= 10 and cached.high < 0.2:
            yield Advice(
                "cache",
                target,
                f"{_share(cached)} of the prompt tokens (about {prompt:.0f} a request) are read "
                "from its cache",
                "keep the beginning of the prompts the same, byte by byte, and put what changes "
                "at their end",
            )
        low = round_cached is not None and round_cached.weight >= 10 and round_cached.high < 0.2
        if cached is not None and round_cached is not None and low and cached.low > 0.4:
            yield Advice(
                "cache",
                target,
                f"plain requests read {_share(cached)} of their prompt from its cache, scoring "
                f"requests {_share(round_cached)}",
                "each round is billed the whole prompt: prefer a larger K with max_rounds = 1, or "
                "a policy with max_cost_ratio",
            )


# --- a draft ------------------------------------------------------------------------------------


def _hows(seen: Measurements, target: str, draft: str) -> list[str]:
    return sorted(
        {how for t, d, how, traffic in seen.rounds if (t, d, traffic) == (target, draft, "")}
    )


def _use(seen: Measurements, target: str, draft: str, how: str) -> _Use:
    figures = seen.snapshot(target, draft, "", how)
    tpot, verify_s = figures.pace.tpot_s, figures.verify_s
    if tpot is None or verify_s is None or figures.acceptance.weight < ENOUGH:
        return _Use(draft, how, figures, 0, 0.0)
    each = figures.draft_s if figures.draft_s is not None else UNTRIED_DRAFT_S
    best = speedup.best_k(figures.acceptance.survival(SEEN_K), verify_s, each)
    return _Use(draft, how, figures, best.k, tpot / best.j)


def _acceptance(target: str, use: _Use) -> Iterator[Advice]:
    evidence = use.figures.acceptance
    alpha = evidence.rate
    if alpha is None or evidence.weight < ENOUGH or alpha >= LOW:
        return
    interval = _rate(evidence)
    if interval.high < LOW:
        yield Advice(
            "acceptance",
            f"draft {use.draft!r} on {target} ({use.how})",
            f"{_share(interval)} of its judged tokens pass",
            "use a draft of the target's own family (the same training data and tokenizer), or "
            "one tuned on this traffic; n-gram look-up where answers repeat the prompt",
        )


def _temperature(target: str, use: _Use) -> Iterator[Advice]:
    tried = [
        (temperature, _rate(evidence))
        for temperature, evidence in use.figures.by_temperature
        if evidence.weight >= ENOUGH
    ]
    if len(tried) < 2:
        return
    tried.sort(key=lambda pair: -pair[1].mean)
    (best, high), (other, low) = tried[0], tried[-1]
    if high.low > low.high:
        yield Advice(
            "temperature",
            f"draft {use.draft!r} on {target} ({use.how})",
            f"drawn at {best:g} it passes at {_share(high)}, at {other:g} at {_share(low)}",
            f"set temperature = {best:g} in [drafts.{use.draft}]: the answers stay exact",
        )


def _rounds(target: str, model: ModelConfig, uses: list[_Use]) -> Iterator[Advice]:
    scored = [use for use in uses if use.gain and use.how not in ("prefix", "predict")]
    if not scored:
        return
    best = max(scored, key=lambda use: use.gain)
    tpot, verify_s = best.figures.pace.tpot_s or 0.0, best.figures.verify_s or 0.0
    if best.gain < 1:
        yield Advice(
            "round trip",
            target,
            f"a scoring request takes {_ms(verify_s)}, {verify_s / tpot:.0f} tokens' time; with "
            f"the best draft ({best.draft!r}, K = {best.k}) rounds run at {best.gain:.2f} times "
            "the plain pace",
            "score won't pay here: serve the target nearer, or use prefix or predict for answers "
            "that can be drafted well",
        )
    policy = model.policy
    fixed = policy.params.get("num_speculative_tokens", 4) if policy.preset == "fixed" else None
    for use in scored:
        if fixed and use.draft == model.drafts[0] and use.k and fixed >= 2 * use.k:
            survival = use.figures.acceptance.survival(max(fixed, use.k))
            yield Advice(
                "K",
                f"draft {use.draft!r} on {target} ({use.how})",
                f"of K = {fixed} drafted tokens {sum(survival[:fixed]):.1f} pass in the mean",
                f"set num_speculative_tokens = {use.k}, or a policy that chooses K itself",
            )


def _drafts(
    seen: Measurements, target: str, model: ModelConfig, config: Config, uses: list[_Use]
) -> Iterator[Advice]:
    for draft in model.drafts:
        if not any(use.draft == draft for use in uses) and seen.targets.get(target):
            yield Advice(
                "untried",
                f"draft {draft!r} on {target}",
                "nothing was measured of it",
                "leave shadow.share above 0, so that plain answers show what it would have done"
                if not config.shadow.share
                else "it is scored on plain answers once it is loaded and idle; if that never "
                "happens, see the notes in the reports",
            )
    ways = sorted({use.how for use in uses})
    for how in ways:
        ranked = sorted((u for u in uses if u.how == how and u.gain), key=lambda u: -u.gain)
        if len(ranked) < 2:
            continue
        best = ranked[0]
        first = next((use for use in ranked if use.draft == model.drafts[0]), None)
        if first is not None and best.gain > BETTER * first.gain and best.gain > 1:
            yield Advice(
                "order",
                f"drafts on {target} ({how})",
                f"{best.draft!r} would run at {best.gain:.2f} times the plain pace, "
                f"{first.draft!r} at {first.gain:.2f}",
                f"put {best.draft!r} first in drafts of model {model.name!r}",
            )
        look_up = next((u for u in ranked if _kind(config, u.draft) == "ngram"), None)
        for use in ranked:
            if look_up is None or _kind(config, use.draft) == "ngram" or use.gain < 1:
                continue
            if look_up.gain >= use.gain:
                yield Advice(
                    "look-up",
                    f"draft {use.draft!r} on {target} ({how})",
                    f"n-gram look-up runs at {look_up.gain:.2f} times the plain pace, this draft "
                    f"at {use.gain:.2f}",
                    f"leave {use.draft!r} out: it costs memory and brings nothing here",
                )


def _kind(config: Config, draft: str) -> str:
    found = config.drafts.get(draft)
    return "ngram" if found is None else found.kind


# --- in words -----------------------------------------------------------------------------------


def _rate(evidence: Acceptance) -> Estimate:
    passed, judged = sum(evidence.passed), evidence.weight
    each = evidence.dispersion
    return Estimate.of_rate((passed + 0.5) / each, (judged - passed + 0.5) / each)


def _share(rate: Estimate) -> str:
    return f"{100 * rate.mean:.0f} % ({100 * rate.low:.0f}–{100 * rate.high:.0f})"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"
