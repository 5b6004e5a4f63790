"""The rounds that a finished answer would have had with a draft: shadow acceptance.

The answer's own text is the target's word on every draft after any of its beginnings, so nothing is
asked of the target. Rounds are replayed from the starts that real ones would have had (after the
accepted tokens and one of the target's own), never from every position: tokens right after a
rejection are harder, and an average over all positions overstates how far rounds get. Knows
drafters and texts; knows no estimators and not when it may run.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from specroute.alignment import matched_pieces
from specroute.context import Committed
from specroute.draft.base import DraftSession, Proposal, common_prefix
from specroute.draft.ngram import split_pieces
from specroute.measure import MAX_K
from specroute.types import Usage
from specroute.vocabulary import Vocabulary

K = MAX_K
"""Tokens of a shadow round. Acceptance by position from it holds for every smaller K: the rounds of
a smaller one are these, censored."""
STEP = 4
"""Tokens drafted at a time: a round ends at the first that is refused."""
AHEAD = 128
"""Tokens that are left, at least, where a long answer is gone into."""
MOST_DRAFTED = 160
"""Drafted tokens of one answer with one draft, about."""


@dataclass(slots=True)
class Shadowed:
    """What one answer has shown of one draft."""

    rounds: list[tuple[int, int]] = field(default_factory=list)
    """(accepted, judged) of each round."""
    hits: list[str] = field(default_factory=list)
    """The same token by token: ``1`` was drafted as the target said it, ``0`` was not."""
    drafted: int = 0
    seconds: float = 0.0
    timed: int = 0
    """Tokens behind ``seconds``: those after a session's first draft, which reads the prompt."""
    usages: list[Usage] = field(default_factory=list)
    """Of drafts that are billed."""

    @property
    def draft_s(self) -> float | None:
        """Seconds per drafted token."""
        return self.seconds / self.timed if self.timed else None

    def end(self, accepted: int, judged: int) -> None:
        """A round is over."""
        self.rounds.append((accepted, judged))
        self.hits.append("1" * accepted + "0" * (judged - accepted))

    def note(self, proposal: Proposal, tokens: int, *, first: bool) -> None:
        self.drafted += tokens
        if not first:
            self.seconds += proposal.seconds
            self.timed += tokens
        if proposal.usage is not None:
            self.usages.append(proposal.usage)


class _Said:
    """The answer, in the target's ids where they are known; by text once a draft has none."""

    def __init__(self, text: str, vocabulary: Vocabulary | None) -> None:
        self.text, self.vocabulary = text, vocabulary
        self.ids = () if vocabulary is None else vocabulary.encode(text)

    @property
    def by_ids(self) -> bool:
        return self.vocabulary is not None

    @property
    def size(self) -> int:
        """Where it ends: in ids, or in characters."""
        return len(self.ids) if self.by_ids else len(self.text)

    def go_by_text(self, at: int) -> int:
        """From here on by text; the place ``at`` in characters."""
        assert self.vocabulary is not None
        place, self.vocabulary = len(self.vocabulary.decode(self.ids[:at])), None
        return place

    def until(self, at: int) -> Committed:
        """Its beginning."""
        if self.vocabulary is None:
            return Committed(self.text[:at])
        return Committed(self.vocabulary.decode(self.ids[:at]), tuple(self.ids[:at]))

    def judge(self, proposal: Proposal, at: int) -> tuple[int, int, int]:
        """(tokens that pass, tokens drafted, how far that is)."""
        if not self.by_ids:
            pieces = split_pieces(proposal.text)
            passed, length = matched_pieces(pieces, self.text[at:])
            return passed, len(pieces), length
        drafted = proposal.ids or ()
        passed = common_prefix(drafted, self.ids[at : at + len(drafted)])
        return passed, min(len(drafted), len(self.ids) - at), passed

    def one(self, at: int) -> int:
        """How far the target's own token after a round is."""
        if self.by_ids:
            return 1
        rest = split_pieces(self.text[at : at + 64])
        return len(rest[0]) if rest else 1

    def somewhere(self, rng: random.Random) -> int:
        """A place with enough of the answer after it."""
        if self.by_ids:
            return rng.randrange(max(len(self.ids) - AHEAD, 0) + 1)
        pieces = split_pieces(self.text)
        return len("".join(pieces[: rng.randrange(max(len(pieces) - AHEAD, 0) + 1)]))


async def matched(
    session: DraftSession,
    text: str,
    vocabulary: Vocabulary | None,
    *,
    k: int = K,
    rng: random.Random | None = None,
) -> Shadowed:
    """Greedy drafts against the answer, where matching decides (the target's argmax at T = 0, its
    own draws, lanes): a token passes iff it is the one that the target said.

    In the target's ids where its ``vocabulary`` is known, else by text, in pieces of about a token.
    With ``rng``, a long answer is gone into at any place; the round there isn't counted, since no
    real one need have started there. Raises :class:`specroute.errors.DraftError`.
    """
    found, first, said = Shadowed(), True, _Said(text, vocabulary)
    at = 0 if rng is None else said.somewhere(rng)
    counts = not at
    while found.drafted < MOST_DRAFTED and at < said.size:
        accepted, start, refused = 0, at, False
        while accepted < k and not refused and at < said.size:
            proposal = await session.propose(said.until(at), min(STEP, k - accepted))
            if said.by_ids and proposal.ids is None and proposal.text:
                at = start = said.go_by_text(at)
            passed, drafted, length = said.judge(proposal, at)
            found.note(proposal, max(drafted, 1), first=first)
            first = False
            accepted, at = accepted + passed, at + length
            # A draft with nothing to say is as good as one refused, but no end of one that held.
            refused = passed < drafted or not (drafted or accepted)
            await asyncio.sleep(0)  # A draft that costs nothing must not hold the loop.
            if not drafted:
                break
        if counts and (at > start or refused):
            found.end(accepted, accepted + (refused and at < said.size))
        counts = True
        at += said.one(at)
    return found


async def rejected(
    session: DraftSession,
    tokens: Sequence[tuple[str, float]],
    vocabulary: Vocabulary,
    rng: random.Random,
    *,
    temperature: float = 1.0,
    k: int = K,
) -> Shadowed:
    """Drafts drawn at ``temperature`` against an answer sampled at T = 1 without truncation, whose
    tokens' log-probabilities ln p are known: rejection sampling.

    The target said x ~ p; a draft would have passed there with probability Σ min(p, q), of which
    min(1, q(x)/p(x)) is an unbiased estimate. Each position's is tossed for, and rounds run from
    the starts that those coins give. Positions whose token isn't one id end the replay.
    """
    found, at, first = Shadowed(), 0, True
    ids: list[int] = []
    while at < len(tokens) and found.drafted < MOST_DRAFTED:
        accepted, refused = 0, False
        while accepted < k and not refused and at < len(tokens):
            text, logprob = tokens[at]
            own = vocabulary.encode(text)
            if len(own) != 1:
                return found
            before = Committed(vocabulary.decode(ids), tuple(ids))
            proposal = await session.propose(before, 1, temperature)
            if proposal.q is None or not proposal.q:
                return found
            found.note(proposal, 1, first=first)
            first = False
            p, q = math.exp(min(logprob, 0.0)), _probability(proposal, own[0])
            ids.append(own[0])
            at += 1
            refused = rng.random() >= min(1.0, q / p if p > 0 else 1.0)
            accepted += not refused
            await asyncio.sleep(0)
        if accepted or refused:
            found.end(accepted, accepted + refused)
        if not refused and at < len(tokens):
            own = vocabulary.encode(tokens[at][0])
            if len(own) != 1:
                return found
            ids.append(own[0])
            at += 1
    return found


def _probability(proposal: Proposal, token: int) -> float:
    q = proposal.q[0] if proposal.q is not None else None
    assert q is not None
    try:
        return float(q[token])
    except LookupError:
        return 0.0
