"""``score``: rounds of drafted tokens, judged by the target's prompt logprobs.

Each round sends prompt + committed + draft in one request and commits the accepted tokens, and the
recovered or the bonus token. At T = 0 exact by the target's own argmax (``exact-greedy``); above it
exact by rejection sampling where everything that matters is visible (``acceptance.visible``), and
where one position is not, that token is the target's own draw. Needs prompt logprobs that passed
calibration. Costs a request, and the prompt as input, a round.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING

from specroute.acceptance import Outcome, Sampling, verify, visible
from specroute.draft.base import Proposal
from specroute.errors import DraftError, ProviderError
from specroute.events import Commit, Event, Handover, RoundDone
from specroute.target.view import BadEvidence, Position, View
from specroute.types import Exactness

if TYPE_CHECKING:
    from specroute.session import Session


async def run(session: Session) -> AsyncGenerator[Event]:
    """Rounds until the answer ends, the policy says K = 0, or something fails.

    Never raises a provider's, a draft's or an evidence error: it hands over, with the reason.
    """
    if not session.target.by_ids:
        session.loosen(
            Exactness.BOUNDED,
            "retokenised: the target saw the committed text cut into tokens by its server",
        )
    unseen = False
    while session.answer.finish is None:
        k = session.next_k()
        if k == 0 and session.answer.remaining != 1:
            yield Handover("a plain stream is faster from here on")
            return
        try:
            if k == 0 or unseen:
                yield await _one(session)
                unseen = False
                continue
            started = session.clock()
            proposal = await session.draft(k)
            drafted_at = session.clock()
            if not proposal:
                yield Handover("the draft has nothing to propose")
                return
            view = await _score(session, proposal)
            outcome, last = _verdict(session, proposal, view)
        except DraftError as error:
            yield Handover(f"the draft failed: {error}")
            return
        except BadEvidence as error:
            session.target.refuse_scoring(str(error))
            yield Handover(f"the target's evidence was refused: {error}")
            return
        except ProviderError as error:
            yield Handover(f"a scoring request failed: {error}")
            return
        drafted = len(view.positions)
        yield RoundDone(
            drafted=drafted,
            accepted=outcome.accepted,
            judged=outcome.accepted + (outcome.verdict == "rejected"),
            draft_seconds=drafted_at - started,
            verify_seconds=session.clock() - drafted_at,
            context=session.context,
        )
        unseen = outcome.verdict == "unseen"
        commit, end = _commit(session, view, outcome, last)
        if commit is not None:
            yield commit
        if end is not None:
            yield end
            return


async def _score(session: Session, proposal: Proposal) -> View:
    caps = session.target.capabilities
    n = 1 if session.request.greedy else min(caps.echo_max_logprobs or 1, 20)
    draft = proposal.ids if session.target.by_ids else proposal.text
    if draft is None:
        raise DraftError("the draft's tokens are not in the target's vocabulary")
    return await session.target.score(
        session.prompt,
        session.committed,
        draft,
        logprobs=n,
        sampling=session.sampling,
        book=session.book,
        deadline=session.deadline,
    )


def _verdict(session: Session, proposal: Proposal, view: View) -> tuple[Outcome, int | str | None]:
    """(what of the draft stands, the token that follows it or ``None``)."""
    if not session.target.by_ids:
        return _greedy(view.positions, view.bonus)
    drafted = proposal.ids or ()
    if session.request.greedy:
        return _greedy(view.positions, view.bonus)
    try:
        p = [_visible(session, position) for position in view.positions]
    except ValueError as error:
        raise BadEvidence(str(error)) from error
    outcome = verify(drafted, p, proposal.q, session.rng)
    if outcome.verdict == "all":
        return outcome, view.bonus[0] if view.bonus else None
    return outcome, outcome.token


def _greedy(
    positions: tuple[Position, ...], bonus: tuple[int | str, ...]
) -> tuple[Outcome, int | str | None]:
    """T = 0: accept while the drafted token is the target's argmax."""
    for i, position in enumerate(positions):
        if position.key != position.argmax:
            return Outcome(i, None, "rejected"), position.argmax
    return Outcome(len(positions), None, "all"), bonus[0] if bonus else None


def _visible(session: Session, position: Position) -> Mapping[int, float] | None:
    request, caps = session.request, session.target.capabilities
    return visible(
        [(key, logprob) for key, logprob in position.top if isinstance(key, int)],
        Sampling(
            temperature=request.temperature if request.temperature is not None else 1.0,
            top_p=request.top_p if request.top_p is not None else 1.0,
            top_k=request.top_k or 0,
            min_p=request.min_p or 0.0,
        ),
        min(caps.echo_max_logprobs or 1, 20),
    )


def _commit(
    session: Session, view: View, outcome: Outcome, last: int | str | None
) -> tuple[Commit | None, Handover | None]:
    """What stands of the round, and a hand-over where only the server can say how it goes on."""
    keys = [position.key for position in view.positions[: outcome.accepted]]
    if last is not None:
        keys.append(last)
    finish = None
    if outcome.verdict == "all" and last is None and view.finish == "stop":
        finish = "stop"  # the end token came without an entry of its own
    if not session.target.by_ids:
        return _commit_text([str(key) for key in keys], finish)
    vocabulary = session.target.learned.vocabulary
    assert vocabulary is not None
    ids: list[int] = []
    for key in keys:
        token = int(key)
        if token in vocabulary.special_ids and token not in vocabulary.eos_ids:
            # Whether this one ends the answer, only the server knows: it is asked, not guessed.
            end = Handover("the target chose a special token")
            return (Commit(ids=tuple(ids)) if ids else None), end
        ids.append(token)
        if token in vocabulary.eos_ids:
            break
    if not ids and finish is None:
        return None, None
    return Commit(ids=tuple(ids), finish=finish), None


def _commit_text(texts: list[str], finish: str | None) -> tuple[Commit | None, Handover | None]:
    """Token strings that are not whole text (a split character, a special token shown empty) end
    the round before them."""
    good: list[str] = []
    for text in texts:
        if not text or "\ufffd" in text:
            end = Handover("a token without readable text of its own")
            return (Commit("".join(good), None, len(good)) if good else None), end
        good.append(text)
    if not good and finish is None:
        return None, None
    return Commit("".join(good), None, len(good), finish), None


async def _one(session: Session) -> Commit:
    """One token of the target's own, drawn by its server under the caller's sampling settings."""
    view = await session.target.score(
        session.prompt,
        session.committed,
        () if session.target.by_ids else "",
        logprobs=1,
        sampling=session.sampling,
        book=session.book,
        deadline=session.deadline,
    )
    if not view.bonus:
        if view.finish == "stop":
            return Commit(tokens=1, finish="stop")
        raise BadEvidence("the target generated nothing when asked for one token")
    first = view.bonus[0]
    if isinstance(first, int):
        return Commit(ids=(first,))
    return Commit(first, None, 1)
