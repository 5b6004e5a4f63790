"""What can be done for this request at this target: the plans a policy may choose among.

Pure. Capabilities, what was learned and the request in; candidates and, for each method that is out
of the question, the reason, out. Knows no figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specroute.profiles import Capabilities
from specroute.request import TextRequest
from specroute.types import Exactness, Method


@dataclass(frozen=True, slots=True)
class Candidate:
    """One plan that would work: a method and a drafter (``None`` for plain)."""

    method: Method
    drafter: str | None
    exactness: Exactness


@dataclass(frozen=True, slots=True)
class Candidates:
    """``plans`` always holds plain; ``reasons`` says why a method is not among them."""

    plans: tuple[Candidate, ...]
    reasons: tuple[tuple[Method, str], ...] = ()

    def of(self, method: Method) -> tuple[Candidate, ...]:
        return tuple(plan for plan in self.plans if plan.method is method)

    def at_least(self, floor: Exactness) -> Candidates:
        """Without the plans whose label is looser than ``floor``."""
        kept = tuple(plan for plan in self.plans if plan.exactness.rank <= floor.rank)
        lost = {plan.method for plan in self.plans} - {plan.method for plan in kept}
        why = f"its answers would only be {Exactness.BOUNDED}, the policy asks for {floor}"
        return Candidates(kept, (*self.reasons, *((method, why) for method in sorted(lost))))

    def why_not(self, method: Method) -> str:
        return next((why for m, why in self.reasons if m is method), "")


PLAIN = Candidate(Method.PLAIN, None, Exactness.EXACT)


def candidates(
    request: TextRequest,
    capabilities: Capabilities,
    drafters: Sequence[str],
    *,
    scoring: str,
    scoring_reason: str,
    by_ids: bool,
) -> Candidates:
    """The plans for one request without an obstacle. ``scoring``: ``unknown | trusted | refused``;
    ``by_ids``: the target takes and shows ids of a vocabulary that is known here."""
    plans: list[Candidate] = [PLAIN]
    reasons: list[tuple[Method, str]] = []
    label = Exactness.EXACT_GREEDY if request.greedy else Exactness.EXACT
    if not by_ids:
        label = Exactness.BOUNDED
    why = _no_score(request, capabilities, scoring, scoring_reason, by_ids)
    if why is None:
        plans += [Candidate(Method.SCORE, name, label) for name in drafters]
    else:
        reasons.append((Method.SCORE, why))
    why = _no_prefix(request, capabilities, by_ids)
    if why is None:
        plans += [Candidate(Method.PREFIX, name, label) for name in drafters]
    else:
        reasons.append((Method.PREFIX, why))
    return Candidates(tuple(plans), tuple(reasons))


def _no_score(
    request: TextRequest, capabilities: Capabilities, scoring: str, reason: str, by_ids: bool
) -> str | None:
    if not capabilities.completions or "echo" not in capabilities.score:
        return "the target is not known to score prompts (echo with logprobs)"
    if scoring == "refused":
        return f"the target's scoring is not trusted: {reason}"
    if request.temperature is None:
        return "'temperature' is left to the server, so its distribution is not known"
    if request.greedy:
        return None
    if not by_ids:
        return "at a temperature above 0 only tokens whose ids are known can be judged"
    known = capabilities.sampling_defaults == "openai"
    if not known and (request.top_p is None or request.top_k is None):
        return (
            "at a temperature above 0 the server's own defaults for top_p and top_k are not known; "
            "send both"
        )
    n = capabilities.echo_max_logprobs or 0
    if request.top_k is not None and 0 < request.top_k <= n:
        return None
    if request.top_p is not None and request.top_p < 1:
        return None
    return (
        "at a temperature above 0 only what top_k or top_p cuts off inside the server's top "
        f"{n} log-probabilities can be judged exactly"
    )


def _no_prefix(request: TextRequest, capabilities: Capabilities, by_ids: bool) -> str | None:
    if by_ids and capabilities.completions:
        return None
    if request.path == "/chat/completions" and capabilities.prefill:
        return None
    return "the target is not known to continue a given beginning of its answer"
