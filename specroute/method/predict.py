"""``predict``: one call that carries the drafted answer; the server verifies it by itself.

The draft is asked for once, before the call leaves: by prompt lookup the passage of the prompt that
the answer will repeat (a file to edit), else the draft's own answer. Exact as the server is: a
prediction changes how fast an answer comes, not which. Costs one call, and the rejected tokens as
output. Which tokens were accepted isn't shown, only how many, and they are not tied to a place.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from specroute.errors import DraftError, StatusError
from specroute.events import Commit, Event, Handover, RoundDone
from specroute.types import Exactness, Usage

if TYPE_CHECKING:
    from specroute.session import Session

REFUSED = (400, 422)
"""Statuses by which a server says that it takes no prediction, or not with this request."""
NAMES = (b"prediction", b"speculation")
UNNAMED = 3
"""Refusals in a row that don't name it, after which it is taken to be the reason: the caller's own
request may be what is wrong."""
CUT = "cut early: the server counted rejected predicted tokens against max_tokens"


async def run(session: Session) -> AsyncGenerator[Event]:
    """Stream to the end. A refused prediction becomes a hand-over, and where it was the reason the
    target isn't sent one again; other provider errors pass through, as a plain call's would."""
    started = session.clock()
    try:
        proposal = await session.draft(session.predicted_tokens, greedy=True)
    except DraftError as error:
        yield Handover(f"the draft failed: {error}")
        return
    if not proposal.text:
        yield Handover("the draft has nothing to predict with")
        return
    drafted_s = session.clock() - started
    usage, finish = Usage(), None
    first = last = 0.0
    learned = session.target.learned
    stream = session.stream("predict", predicted=proposal.text)
    try:
        async with aclosing(stream):
            async for piece in stream:
                finish = piece.finish or finish
                usage = piece.usage or usage
                if piece.text:
                    last = session.clock()
                    first = first or last
                tokens = piece.tokens if piece.tokens is not None else int(bool(piece.text))
                if piece.text or piece.extra:
                    yield Commit(piece.text, None, tokens, None, piece.extra, limited=False)
    except StatusError as error:
        if error.status not in REFUSED or session.answer.tokens:
            raise
        said = f"the target refused a prediction: {error}"
        learned.predictions_refused += 1
        named = any(name in error.body.lower() for name in NAMES)
        if named or learned.predictions_refused >= UNNAMED:
            learned.prediction_refused = said
        yield Handover(said)
        return
    learned.predictions_refused = 0
    rejected = usage.rejected_prediction_tokens or 0
    accepted = usage.accepted_prediction_tokens
    made = usage.completion_tokens
    # The caller sees the usage of a plain call; what was rejected stands in the report.
    own = None if made is None else made - rejected
    if accepted is not None:
        yield RoundDone(
            drafted=accepted + rejected,
            accepted=accepted,
            judged=accepted + rejected,
            draft_seconds=drafted_s,
            verify_seconds=None,
            context=session.context,
            predicted=True,
            tpot_s=(last - first) / (own - 1) if own is not None and own > 1 else None,
        )
    limit = session.request.max_tokens
    if finish == "length" and rejected and limit is not None and own is not None and own < limit:
        if session.target.can_continue(session.request, session.prompt) is not None:
            yield Commit("", None, own - session.answer.tokens, limited=False)
            yield Handover(CUT)
            return
        session.loosen(Exactness.BOUNDED, CUT)
    missing = 0 if own is None else own - session.answer.tokens
    yield Commit("", None, missing, finish or "stop", limited=False)
