"""Which drafted tokens stand: the acceptance rules, as pure functions and generators.

Knows the target's distribution p as far as a server shows it, the draft's q, and a source of
randomness that is passed in. Deliberately knows nothing of servers, dialects, texts or drafters:
evidence that doesn't parse was refused before it came here, and what a rule needs from the target
in the middle of judging it yields as a request.

One rule a file:

- greedy (1) and everything visible (5): ``rejection``, on p from ``visibility``;
- only the drafted token's logprob (2), a hidden tail at T = 1 (4) and below it (6): ``tail``, on
  the ``envelope``;
- match (3): the server's own draws decide, ``matching``;
- ``lossy``: ``ratio``, ``typical`` and, for whole drafts, ``mean_logprob``, heuristic.

``rules`` chooses among them, ``round`` judges a draft by them. p is the distribution that the
*server* would sample from; q the one that the drafted token was drawn from, a point mass for drafts
that are not drawn. One coin is tossed a position, and a rejection is finished before anything else
happens.
"""

from specroute.acceptance.envelope import Envelope
from specroute.acceptance.evidence import Evidence, Sees
from specroute.acceptance.lossy import Lossy, MeanLogprob, Ratio, Typical
from specroute.acceptance.matching import match
from specroute.acceptance.outcome import Outcome
from specroute.acceptance.rejection import Distribution, draw, judge, verify
from specroute.acceptance.requests import Draw, Drawn, Judging, Request, TailDraw, step
from specroute.acceptance.round import judging
from specroute.acceptance.rules import Choice, Rule, Server, choose_rule
from specroute.acceptance.sampling import GREEDY_BELOW, Sampling
from specroute.acceptance.visibility import visible

__all__ = [
    "GREEDY_BELOW",
    "Choice",
    "Distribution",
    "Draw",
    "Drawn",
    "Envelope",
    "Evidence",
    "Judging",
    "Lossy",
    "MeanLogprob",
    "Outcome",
    "Ratio",
    "Request",
    "Rule",
    "Sampling",
    "Sees",
    "Server",
    "TailDraw",
    "Typical",
    "choose_rule",
    "draw",
    "judge",
    "judging",
    "match",
    "step",
    "verify",
    "visible",
]
