"""Which rule applies: the strongest that the request, the evidence and the server allow.

A table, pure. Knows what each rule needs and what it guarantees; deliberately not how it works.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from specroute.acceptance.evidence import Sees
from specroute.acceptance.lossy import Lossy, Ratio, Typical
from specroute.acceptance.sampling import Sampling
from specroute.types import Exactness


class Rule(StrEnum):
    """The acceptance rules, by the names that reports use."""

    GREEDY = "greedy"
    """1: the argmax decides."""
    VISIBLE = "visible"
    """5: rejection sampling, everything is visible."""
    TAIL = "tail"
    """4 and 6: rejection sampling, the hidden tail is asked for when it is drawn."""
    SELF_REJECTION = "self-rejection"
    """2: rejection sampling from the drafted token's logprob alone."""
    MATCH = "match"
    """3: the server draws, the draft stands where it is the same."""
    RATIO = "ratio"
    TYPICAL = "typical"
    PLAIN = "plain"
    """Nothing can be judged: the target goes on by itself."""


@dataclass(frozen=True, slots=True)
class Server:
    """What a server can be asked for at a position in the middle of judging."""

    draws: bool = True
    """One more token after a given beginning, under the caller's own sampling."""
    draw_logprobs: bool = True
    """With its raw logprob."""
    logit_bias: bool = False
    """With ``logit_bias``, and sampling settings of our own."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A rule and the label it earns."""

    rule: Rule
    exactness: Exactness


def choose_rule(
    sees: Sees, sampling: Sampling, server: Server, *, drawn: bool, lossy: Lossy | None = None
) -> Choice:
    """The rule for one position, or, before a request, for the least that it will show.

    ``drawn``: the draft is drawn from a q that is known for every token. Any other draft, a drawn
    one of unknown q included, counts as a point mass on its token. ``lossy`` is given only where
    the caller allows heuristic answers; where its evidence is missing, the exact rules apply.

    None of the arguments may depend on which token was drafted.
    """
    some = sees is not Sees.NOTHING
    top = sees in (Sees.TOP, Sees.ALL)
    if isinstance(lossy, Ratio) and (top or (some and drawn)):
        return Choice(Rule.RATIO, Exactness.HEURISTIC)
    if isinstance(lossy, Typical) and top:
        return Choice(Rule.TYPICAL, Exactness.HEURISTIC)
    if sampling.greedy:
        rule = Rule.GREEDY if top else Rule.MATCH if server.draws else Rule.PLAIN
        return Choice(rule, Exactness.EXACT_GREEDY)
    return Choice(_drawing(sees, sampling, server, drawn), Exactness.EXACT)


def _drawing(sees: Sees, sampling: Sampling, server: Server, drawn: bool) -> Rule:
    """T > 0."""
    if sees is Sees.ALL:
        return Rule.VISIBLE
    if not server.draws:
        return Rule.PLAIN
    logprobs = server.draw_logprobs or not drawn  # a point mass never asks what a draw's p is
    if sees is Sees.NOTHING or sampling.cut or sampling.temperature > 1:
        return Rule.MATCH
    if sampling.temperature < 1:
        told = sees is Sees.TOP and server.logit_bias and server.draw_logprobs
        return Rule.TAIL if told else Rule.MATCH
    if sees is Sees.TOP and server.logit_bias and logprobs:
        return Rule.TAIL
    return Rule.SELF_REJECTION if logprobs else Rule.MATCH
