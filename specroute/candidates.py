"""What can be done for this request at this target: the plans a policy may choose among.

Pure. Capabilities, what was learned and the request in; candidates and, for each method that is out
of the question, the reason, out. Knows no figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from specroute.acceptance import (
    Lossy,
    MeanLogprob,
    Ratio,
    Rule,
    Sampling,
    Sees,
    Server,
    choose_rule,
)
from specroute.profiles import Capabilities
from specroute.request import CHAT, TextRequest
from specroute.types import Exactness, Method


class Judge(StrEnum):
    """Who decides in ``score`` what of a draft stands."""

    ARGMAX = "argmax"
    """T = 0: the target's most probable token at each position (rule 1)."""
    RULES = "rules"
    """The acceptance rules, on the target's log-probabilities (rules 2, 4, 5, 6, and lossy)."""
    DRAWS = "draws"
    """The target's own draw at each position (rule 3)."""


@dataclass(frozen=True, slots=True)
class Trust:
    """What of a target's evidence may be used, as calibration has found."""

    scoring: str = "unknown"
    """``unknown | trusted | refused``."""
    reason: str = ""
    evidence: str | None = None
    """The form (``ids | text | chat``) of the dialect that shows log-probabilities."""
    argmax: bool = True
    top_n: bool = True
    """That dialect shows the most probable token, and the top N."""
    draws: str | None = None
    """The form of the dialect that draws at every position."""
    draw_logprobs: bool = False
    no_draws: str = ""
    """Why the target can't be asked for draws in the middle of judging, as was seen."""
    prediction_refused: str = ""
    """Why the target took no prediction, when it was sent one."""
    by_ids: bool = False
    """Streams go on from ids of a vocabulary that is known here."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One plan that would work: a method and a drafter (``None`` for plain and hedge)."""

    method: Method
    drafter: str | None
    exactness: Exactness
    target: str | None = None
    """``provider:model``, where it is another than the request's own (``interchangeable``)."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """``plans`` always holds plain; ``reasons`` says why a method is not among them. ``judge``:
    who would decide in ``score``."""

    plans: tuple[Candidate, ...]
    reasons: tuple[tuple[Method, str], ...] = ()
    judge: Judge | None = None
    whole_judge: Judge | None = None
    """Who would decide in ``cascade``."""

    def judge_of(self, method: Method) -> Judge | None:
        """Who would decide what of a draft stands; ``None`` for methods that score nothing."""
        return {Method.SCORE: self.judge, Method.CASCADE: self.whole_judge}.get(method)

    def of(self, method: Method) -> tuple[Candidate, ...]:
        return tuple(plan for plan in self.plans if plan.method is method)

    def at_least(self, floor: Exactness) -> Candidates:
        """Without the plans whose label is looser than ``floor``."""
        kept = tuple(plan for plan in self.plans if plan.exactness.rank <= floor.rank)
        reasons = list(self.reasons)
        for method in sorted({plan.method for plan in self.plans} - {p.method for p in kept}):
            label = self.of(method)[0].exactness
            reasons.append(
                (method, f"its answers would only be {label}, the policy asks for {floor}")
            )
        return Candidates(kept, tuple(reasons), self.judge, self.whole_judge)

    def why_not(self, method: Method) -> str:
        return next((why for m, why in self.reasons if m is method), "")


PLAIN = Candidate(Method.PLAIN, None, Exactness.EXACT)


def candidates(
    request: TextRequest,
    capabilities: Capabilities,
    drafters: Sequence[str],
    trust: Trust,
    lossy: Lossy | None = None,
    loose: bool = False,
) -> Candidates:
    """The plans for one request without an obstacle. ``lossy`` and ``loose`` (lanes follow words
    that only resemble the draft's) only where the config allows them."""
    plans: list[Candidate] = [PLAIN]
    reasons: list[tuple[Method, str]] = []
    # ``mean_logprob`` speaks of whole drafts: rounds keep the exact rules.
    rounds = None if isinstance(lossy, MeanLogprob) else lossy
    found = judged_by(request, capabilities, trust, rounds)
    judge = whole_judge = None
    if isinstance(found, str):
        reasons.append((Method.SCORE, found))
    else:
        judge, label = found
        plans += [Candidate(Method.SCORE, name, label) for name in drafters]
    found = _cascaded_by(request, capabilities, trust, lossy)
    if isinstance(found, str):
        reasons.append((Method.CASCADE, found))
    else:
        whole_judge, label = found
        plans += [Candidate(Method.CASCADE, name, label) for name in drafters]
    why = _no_prefix(request, capabilities, trust.by_ids)
    if why is None:
        label = _exact(request) if trust.by_ids else Exactness.BOUNDED
        label = Exactness.HEURISTIC if loose else label
        plans += [Candidate(Method.PREFIX, name, label) for name in drafters]
    else:
        reasons.append((Method.PREFIX, why))
    why = trust.prediction_refused or _no_prediction(request, capabilities)
    if not why:
        plans += [Candidate(Method.PREDICT, name, _exact(request)) for name in drafters]
    else:
        reasons.append((Method.PREDICT, why))
    if request.path == CHAT:
        plans += [Candidate(Method.JUDGE, name, Exactness.HEURISTIC) for name in drafters]
    else:
        reasons.append((Method.JUDGE, "the target can only be asked for its opinion in a chat"))
    plans += [Candidate(Method.RACE, name, Exactness.HEURISTIC) for name in drafters]
    plans.append(Candidate(Method.HEDGE, None, _exact(request)))
    return Candidates(tuple(plans), tuple(reasons), judge, whole_judge)


def judged_by(
    request: TextRequest, capabilities: Capabilities, trust: Trust, lossy: Lossy | None
) -> tuple[Judge, Exactness] | str:
    """(who judges a draft for this request, the label that gives), or why nobody can."""
    if trust.scoring == "refused":
        return f"the target's scoring is not trusted: {trust.reason}"
    if trust.scoring == "unknown":
        return "the target has not been calibrated"
    draws = trust.draws
    by_draws = (Judge.DRAWS, _exact(request) if draws == "ids" else Exactness.BOUNDED)
    ids = trust.evidence == "ids"
    if request.greedy:
        if lossy is not None and ids:
            return Judge.RULES, Exactness.HEURISTIC
        if trust.evidence is not None and trust.argmax:
            return Judge.ARGMAX, Exactness.EXACT_GREEDY if ids else Exactness.BOUNDED
        return by_draws if draws else "the target shows neither its argmax nor its own draws"
    why = _hidden_settings(request, capabilities)
    if why is None and ids:
        label = _rules_label(request, capabilities, trust, lossy)
        if label is not None:
            return Judge.RULES, label
        why = "the target shows too little of its distribution for these sampling settings"
        if trust.no_draws:
            why += f", and its draws are not trusted: {trust.no_draws}"
    if draws:
        return by_draws
    return why or "at a temperature above 0 only tokens whose ids are known can be judged"


def _cascaded_by(
    request: TextRequest, capabilities: Capabilities, trust: Trust, lossy: Lossy | None
) -> tuple[Judge, Exactness] | str:
    """As :func:`judged_by`, for a whole draft at once: draws at each of its positions would be as
    many prompts. ``ratio`` and ``mean_logprob`` need no ids for it."""
    if isinstance(lossy, MeanLogprob | Ratio) and trust.scoring == "trusted":
        if trust.evidence is None or not trust.argmax:
            return "the target doesn't show the log-probabilities of a draft"
        return Judge.RULES, Exactness.HEURISTIC
    found = judged_by(request, capabilities, trust, lossy)
    if not isinstance(found, str) and found[0] is Judge.DRAWS:
        return "the target judges by its own draws, a prompt for each drafted token"
    return found


def sampling_of(request: TextRequest) -> Sampling:
    """The request's sampling settings, OpenAI's defaults where it has none."""
    return Sampling(
        temperature=request.temperature if request.temperature is not None else 1.0,
        top_p=request.top_p if request.top_p is not None else 1.0,
        top_k=request.top_k or 0,
        min_p=request.min_p or 0.0,
    )


def server_of(capabilities: Capabilities, trust: Trust) -> Server:
    """What the target can be asked for in the middle of judging."""
    return Server(
        draws=bool(capabilities.completions and capabilities.id_prompts) and not trust.no_draws,
        draw_logprobs=trust.draw_logprobs,
        logit_bias=capabilities.logit_bias is True,
    )


def _hidden_settings(request: TextRequest, capabilities: Capabilities) -> str | None:
    if request.temperature is None:
        return "'temperature' is left to the server, so its distribution is not known"
    known = capabilities.sampling_defaults == "openai"
    if not known and None in (request.top_p, request.top_k, request.min_p):
        return (
            "at a temperature above 0 the server's own defaults for top_p, top_k and min_p are not "
            "known; send all three"
        )
    return None


def _rules_label(
    request: TextRequest, capabilities: Capabilities, trust: Trust, lossy: Lossy | None
) -> Exactness | None:
    """The label under the acceptance rules; ``None`` where every position would need a draw."""
    sampling, n = sampling_of(request), capabilities.echo_max_logprobs or 0
    sees = Sees.TOP if trust.top_n else Sees.DRAFTED
    if trust.top_n and 0 < sampling.top_k < n:  # at top_k == N a tie beyond it may be hidden
        sees = Sees.ALL
    choice = choose_rule(sees, sampling, server_of(capabilities, trust), drawn=True, lossy=lossy)
    if choice.rule not in (Rule.MATCH, Rule.PLAIN):
        return choice.exactness
    nucleus = trust.top_n and sampling.top_p < 1
    return Exactness.EXACT if nucleus else None


def _exact(request: TextRequest) -> Exactness:
    return Exactness.EXACT_GREEDY if request.greedy else Exactness.EXACT


def _no_prefix(request: TextRequest, capabilities: Capabilities, by_ids: bool) -> str | None:
    if capabilities.completions and (by_ids or isinstance(request.prompt, str)):
        return None
    if request.path == CHAT and capabilities.prefill:
        return None
    return "the target is not known to continue a given beginning of its answer"


def _no_prediction(request: TextRequest, capabilities: Capabilities) -> str:
    """Why a drafted answer can't be sent as ``prediction``; empty where it can."""
    chat = request.path == CHAT
    if not (capabilities.prediction if chat else capabilities.speculation):
        return "the target is not known to take a prediction" + ("" if chat else " on /completions")
    for name in capabilities.prediction_without:
        value = request.body.get(name)
        neutral = 1 if name == "n" else 0
        asked = value > neutral if isinstance(value, int | float) else bool(value)
        if asked:
            return f"the target takes no prediction together with {name!r}"
    return ""
