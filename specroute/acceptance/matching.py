"""Sample-and-match (rule 3): what the server itself drew decides.

Knows two token sequences; needs no probability at all, so it is exact where p is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

from specroute.acceptance.outcome import Outcome


def match(drafted: Sequence[int], sampled: Sequence[int]) -> Outcome:
    """Sample-and-match: the server drew ``sampled[i]`` after ``drafted[:i]``; commit what it drew.

    A draft is accepted iff the server drew the same token. Exact whatever p and the draft are,
    since every committed token is the server's own; draft greedily for it, because a drawn draft
    matches with probability Σ p·q only. With one more sample than drafts, a full match brings the
    bonus token.
    """
    for i, x in enumerate(drafted):
        if i >= len(sampled):
            return Outcome(i, None, "unseen")
        if sampled[i] != x:
            return Outcome(i, sampled[i], "rejected")
    k = len(drafted)
    return Outcome(k, sampled[k] if len(sampled) > k else None, "all")
