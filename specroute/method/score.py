"""``score``: rounds of drafted tokens, judged by the target's prompt logprobs.

Each round sends prompt + committed + draft in one request and commits the accepted tokens, and the
recovered or the bonus token. At T = 0 exact by the target's own argmax (``exact-greedy``); above it
exact by rejection sampling where everything that matters is visible (``acceptance.visible``), and
where one position is not, that token is the target's own draw. Needs prompt logprobs that passed
calibration. Costs a request, and the prompt as input, a round.
"""

from __future__ import annotations

import re
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

_NAME = re.compile(r"\s*(<.+>|\[.+\])\s*", re.DOTALL)
"""How special tokens are called: ``</s>``, ``<|im_end|>``, ``[EOS]``."""


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
                one = await _one(session)
                yield one
                if isinstance(one, Handover):
                    return
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
            unseen = outcome.verdict == "unseen" or (last is None and outcome.verdict == "rejected")
        except DraftError as error:
            yield Handover(f"the draft failed: {error}")
            return
        except BadEvidence as error:
            session.target.refuse_scoring(str(error))
            yield Handover(f"the target's evidence was refused: {error}")
            return
        except ProviderError as error:
            session.target.learned.rest(session.deadline.clock(), f"a call failed lately: {error}")
            yield Handover(f"a scoring request failed: {error}")
            return
        session.target.learned.failures = 0
        drafted = len(view.positions)
        yield RoundDone(
            drafted=drafted,
            accepted=outcome.accepted,
            judged=outcome.accepted + (outcome.verdict == "rejected"),
            draft_seconds=drafted_at - started,
            verify_seconds=session.clock() - drafted_at,
            context=session.context,
        )
        commits, end = _commits(session, view, outcome, last)
        for commit in commits:
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
    return await session.score(draft, logprobs=n)


def _verdict(session: Session, proposal: Proposal, view: View) -> tuple[Outcome, int | str | None]:
    """(what of the draft stands, the token that follows it or ``None``)."""
    if not session.target.by_ids:
        outcome, last = _greedy(view.positions, view.bonus)
        # What looks like a special token's name may be one, or be text: the server will say.
        named = outcome.verdict == "rejected" and _NAME.fullmatch(str(last))
        return outcome, None if named else last
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


def _commits(
    session: Session, view: View, outcome: Outcome, last: int | str | None
) -> tuple[list[Commit], Handover | None]:
    """What stands of the round, and a hand-over where only the server can say how it goes on."""
    keys = [position.key for position in view.positions[: outcome.accepted]]
    if last is not None:
        keys.append(last)
    finish = None
    if outcome.verdict == "all" and last is None and view.finish == "stop":
        finish = "stop"  # the end token came without an entry of its own
    if not session.target.by_ids:
        return _text_commits([str(key) for key in keys[: session.answer.remaining]], finish)
    vocabulary = session.target.learned.vocabulary
    assert vocabulary is not None
    ids: list[int] = []
    end = None
    for i, key in enumerate(keys):
        token = int(key)
        if token in vocabulary.special_ids and token not in vocabulary.eos_ids:
            if i == outcome.accepted and outcome.verdict == "all" and _ended(view):
                ids.append(token)
                finish = "stop"
                break
            # Whether this one ends the answer, only the server knows: it is asked, not guessed.
            if not session.request.greedy:
                session.loosen(
                    Exactness.HEURISTIC, "a special token was drawn anew by the target's server"
                )
            end = Handover("the target chose a special token")
            break
        ids.append(token)
        if token in vocabulary.eos_ids:
            break
    if ids:
        return [Commit(ids=tuple(ids), finish=finish)], end
    return [Commit(tokens=1, finish=finish)] if finish else [], end


def _text_commits(texts: list[str], finish: str | None) -> tuple[list[Commit], Handover | None]:
    """A commit a token. Token strings that are not whole text (a split character, a special token
    shown empty) end the round before them."""
    commits: list[Commit] = []
    for text in texts:
        if not text or "\ufffd" in text:
            return commits, Handover("a token without readable text of its own")
        commits.append(Commit(text, None, 1))
    if finish:
        commits.append(Commit(tokens=1, finish=finish))
    return commits, None


async def _one(session: Session) -> Commit | Handover:
    """One token of the target's own, drawn by its server under the caller's sampling settings."""
    view = await session.score(() if session.target.by_ids else "", logprobs=1)
    if not view.bonus:
        if view.finish == "stop":
            return Commit(tokens=1, finish="stop")
        return Handover("a token without readable text of its own")
    first = view.bonus[0]
    if isinstance(first, int):
        return Commit(ids=(first,), finish="stop" if _ended(view) else None)
    commits, end = _text_commits([first], None)
    return end or commits[0]


def _ended(view: View) -> bool:
    """Whether the first generated token ended the answer."""
    return view.finish == "stop" and len(view.bonus) == 1
