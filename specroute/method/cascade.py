"""``cascade``: a draft writes the whole answer, the target scores it once and goes on from there.

One scoring request for all of it; what stands is the longest beginning that the acceptance rule
passes, and the rest comes as one plain stream. Exact with the exact rule, as ``score`` is. With
``ratio`` or ``mean_logprob`` it is heuristic: what is kept is then the draft's, where the target
finds it likely enough (``specroute calibrate`` chooses how likely). The gain is money: drafted
tokens are billed as input. Costs the prompt and the draft as input, and, where not all of it is
kept, the prompt once more for the rest.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from math import log
from typing import TYPE_CHECKING

from specroute.acceptance import MeanLogprob, Outcome, Ratio
from specroute.candidates import Judge
from specroute.draft.base import Proposal
from specroute.errors import DraftError
from specroute.events import Event, Handover, RoundDone
from specroute.method.base import UNDONE, undone
from specroute.method.score import RETOKENISED, Verdict, bonus, commits_of, verdict_on
from specroute.target.view import BadEvidence, View
from specroute.types import Exactness

if TYPE_CHECKING:
    from specroute.session import Session


async def run(session: Session) -> AsyncGenerator[Event]:
    """One round over the whole draft, then a hand-over unless the answer has ended.

    Never raises a provider's, a draft's or an evidence error: it hands over, with the reason.
    """
    try:
        started = session.clock()
        proposal = await session.draft(session.longest, whole=True)
        drafted_at = session.clock()
        if not proposal:
            yield Handover("the draft has nothing to propose")
            return
        view = await seen(session, proposal)
        verdict = await _verdict(session, proposal, view)
    except UNDONE as error:
        yield undone(session, error)
        return
    session.target.learned.failures = 0
    if not session.scores_by_ids:
        session.loosen(Exactness.BOUNDED, RETOKENISED)
    if session.lossy is not None:
        session.loosen(Exactness.HEURISTIC, f"kept by {session.lossy}")
    drafted, kept = len(view.positions), verdict.outcome.accepted
    yield RoundDone(
        drafted=drafted,
        accepted=kept,
        judged=min(kept + 1, drafted),
        draft_seconds=drafted_at - started,
        verify_seconds=session.clock() - drafted_at,
        context=session.context,
    )
    commits, end = commits_of(session, view, verdict)
    for commit in commits:
        yield commit
    said = f"the target goes on: {kept} of {drafted} drafted tokens were kept"
    yield end or Handover(verdict.cut or said)


async def seen(session: Session, proposal: Proposal) -> View:
    """The target's view of the whole draft, with each position's most probable token."""
    draft = proposal.ids if session.scores_by_ids else proposal.text
    if draft is None:
        raise DraftError("the draft's tokens are not in the target's vocabulary")
    n = 1 if session.judge is Judge.ARGMAX else session.top_n
    return await session.score(draft, logprobs=n)


async def _verdict(session: Session, proposal: Proposal, view: View) -> Verdict:
    rule = session.lossy
    if not isinstance(rule, Ratio | MeanLogprob):
        return await verdict_on(session, proposal, view)
    kept = rule.keeps(evidence(view, proposal))
    if kept == len(view.positions):
        return bonus(view)
    return Verdict(Outcome(kept, None, "unseen"))


def evidence(view: View, proposal: Proposal | None = None) -> list[tuple[float, float]]:
    """Each drafted token's (log p, log of what p is compared with): its q where it was drawn from
    one that is known, else the most probable token's. Raises :class:`BadEvidence`."""
    q = proposal.q if proposal is not None else None
    found = []
    for i, position in enumerate(view.positions):
        if position.logprob is None:
            raise BadEvidence("a drafted token's log-probability is not shown")
        own = q[i] if q is not None else None
        if own is not None and proposal is not None and proposal.ids is not None:
            found.append((position.logprob, log(own[proposal.ids[i]])))
        elif position.top:
            found.append((position.logprob, position.top[0][1]))
        else:
            raise BadEvidence("only the drafted token's log-probability is shown")
    return found
