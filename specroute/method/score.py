"""``score``: rounds of drafted tokens, judged by the target.

Each round sends prompt + committed + draft in one request and commits what stands of the draft and
one token of the target's own. Who judges is ``session.judge``: the target's argmax (T = 0), the
acceptance rules on its log-probabilities (they may ask for draws), or its own draws. Exact as the
rules are (docs/verification.md). Needs a dialect that passed calibration. Costs a request, and the
prompt as input, a round (``fanout``: one prompt per drafted token and one more). Where a draft that
is free to ask has nothing to propose, the target's own stream runs until it has (``listen``).
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specroute.acceptance import Drawn, Evidence, Outcome, Request, judging, step
from specroute.candidates import Judge, sampling_of
from specroute.draft.base import Proposal
from specroute.errors import DraftError, ProviderError
from specroute.events import Commit, Event, Handover, RoundDone
from specroute.method.base import UNDONE, undone
from specroute.method.flight import ALONE, Flights, Scored
from specroute.method.listen import can_listen, listen
from specroute.target.view import BadEvidence, Position, View
from specroute.types import Exactness

if TYPE_CHECKING:
    from specroute.session import Session

_NAME = re.compile(r"\s*(<.+>|\[.+\])\s*", re.DOTALL)
"""How special tokens are called: ``</s>``, ``<|im_end|>``, ``[EOS]``."""
RETOKENISED = "retokenised: the target saw the committed text cut into tokens by its server"
REDRAWN = "a token that the target had drawn was not shown, and drawn anew"
WORTH = 2
"""Accepted tokens a round that make up for ending a stream."""
UNFINISHED = "a rejection was left unfinished: its residual token could not be drawn"

Key = int | str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What of a round stands. ``last``: the tokens that follow the accepted ones, all known to be
    right; empty where none is known. ``ended``: the target ended the answer there. ``cut``: why
    the method can't go on after this."""

    outcome: Outcome
    last: tuple[Key, ...] = ()
    ended: bool = False
    cut: str | None = None


@dataclass(frozen=True, slots=True)
class Spell:
    """The rounds since a stream was last ended for them: the tally as it stood then."""

    rounds: int = 0
    accepted: int = 0
    begun: bool = False

    @classmethod
    def after(cls, session: Session) -> Spell:
        return cls(session.tally.rounds, session.tally.accepted, True)

    def paid(self, session: Session) -> bool:
        """Whether they were worth the request that another stream costs: another spell is only
        tried after one that was."""
        tally = session.tally
        rounds = max(tally.rounds - self.rounds, 1)
        return not self.begun or tally.accepted - self.accepted >= WORTH * rounds


async def run(session: Session) -> AsyncGenerator[Event]:
    """Rounds until the answer ends, the policy says K = 0, or something fails.

    Never raises a provider's, a draft's or an evidence error: it hands over, with the reason.
    """
    if not session.scores_by_ids:
        session.loosen(Exactness.BOUNDED, RETOKENISED)
    if session.lossy is not None and session.judge is Judge.RULES:
        session.loosen(Exactness.HEURISTIC, f"accepted by {session.lossy}")
    depth = session.plan.depth if session.scores_by_ids else 1
    flights = Flights(session, depth) if depth > 1 else None
    try:
        with session.meter.in_rounds():
            async with aclosing(_rounds(session, flights)) as events:
                async for event in events:
                    yield event
    finally:
        if flights is not None:
            await flights.aclose()


async def _rounds(session: Session, flights: Flights | None) -> AsyncGenerator[Event]:
    alone, spell = False, Spell()
    while session.answer.finish is None:
        k = session.next_k()
        if k == 0 and session.answer.remaining != 1:
            yield Handover("a plain stream is faster from here on")
            return
        try:
            if k == 0 or alone:
                if flights is not None:
                    flights.clear()
                one = await _one(session)
                if isinstance(one, Handover):
                    _loosen_for_redrawing(session)
                    yield one
                    return
                yield one
                alone = False
                continue
            if flights is not None:
                scored = await flights.next()
            else:
                scored = await _one_round(session, k)
            proposal, view = scored.proposal, scored.view
            if not proposal and not (spell.paid(session) and can_listen(session)):
                yield Handover("the draft has nothing to propose")
                return
            judging_at = session.clock()
            verdict = await verdict_on(session, proposal, view) if view else None
        except UNDONE as error:
            yield undone(session, error)
            return
        if view is None or verdict is None:
            if flights is not None:
                flights.clear()
            async with aclosing(listen(session)) as events:
                async for event in events:
                    yield event
            spell = Spell.after(session)
            continue
        session.target.learned.failures = 0
        outcome = verdict.outcome
        alone = outcome.verdict == "unseen" or (
            outcome.verdict == "rejected" and not verdict.last and not verdict.ended
        )
        drafted = len(view.positions)
        settled = ALONE
        if flights is not None:
            settled = flights.settled(outcome.accepted, drafted, verdict.last)
        yield RoundDone(
            drafted=drafted,
            accepted=outcome.accepted,
            judged=outcome.accepted + (outcome.verdict == "rejected" or settled.refuted),
            draft_seconds=scored.draft_s,
            verify_seconds=scored.verify_s + session.clock() - judging_at,
            context=session.context,
            start=settled.start,
        )
        if settled.goes_on:
            verdict = replace(verdict, last=(), ended=False)
        commits, end = commits_of(session, view, verdict)
        for commit in commits:
            yield commit
        if verdict.cut is not None or end is not None:
            if session.judge is Judge.DRAWS:
                _loosen_for_redrawing(session)
            yield end or Handover(verdict.cut or "")
            return
        # A draft of nothing but space may be held back whole: another would be as well.
        alone = alone or not commits


def _loosen_for_redrawing(session: Session) -> None:
    """A hand-over draws anew what the target drew and did not show in full: above T = 0 tokens that
    can be shown are then a little too likely."""
    if not session.request.greedy:
        session.redraws(REDRAWN)


async def _one_round(session: Session, k: int) -> Scored:
    """Draft and score, one after the other."""
    started = session.clock()
    proposal = await session.draft(k, greedy=session.judge is Judge.DRAWS)
    drafted_at = session.clock()
    view = await _score(session, proposal) if proposal else None
    return Scored(proposal, view, drafted_at - started, session.clock() - drafted_at)


async def _score(session: Session, proposal: Proposal) -> View:
    draft = proposal.ids if session.scores_by_ids else proposal.text
    if draft is None:
        raise DraftError("the draft's tokens are not in the target's vocabulary")
    n = 1 if session.judge is Judge.ARGMAX else session.top_n
    return await session.score(draft, logprobs=n)


async def verdict_on(session: Session, proposal: Proposal, view: View) -> Verdict:
    """What of the draft stands, by the request's judge. Raises :class:`BadEvidence`."""
    if session.judge is Judge.DRAWS:
        verdict = _drawn(view)
    elif session.judge is Judge.ARGMAX:
        verdict = _greedy(view, by_text=not session.scores_by_ids)
    else:
        verdict = await _ruled(session, proposal, view)
    _check_known(session, verdict.last)
    return verdict


def _check_known(session: Session, keys: Sequence[Key]) -> None:
    """Refuse ids that are no tokens: they would have no text, and no server would take them back.
    The target's own word on the place is lost with them, and drawn anew."""
    vocabulary = session.target.learned.vocabulary
    for key in keys:
        if isinstance(key, int) and vocabulary is not None and not key < vocabulary.size:
            if not session.request.greedy:
                session.redraws(REDRAWN)
            raise BadEvidence(
                f"the target named token {key}, and its vocabulary ends before {vocabulary.size}"
            )


# --- the three judges ---------------------------------------------------------------------------


def _greedy(view: View, *, by_text: bool) -> Verdict:
    """T = 0: accept while the drafted token is the target's argmax."""
    for i, position in enumerate(view.positions):
        best = position.argmax
        if position.key != best:
            # What looks like a special token's name may be one, or be text: the server will say.
            named = by_text and _NAME.fullmatch(str(best))
            return Verdict(Outcome(i, None, "rejected"), () if named else (best,))
    return bonus(view)


def _drawn(view: View) -> Verdict:
    """Rule 3: the target drew after every drafted beginning; what it drew is committed."""
    for i, (position, sample) in enumerate(zip(view.positions, view.samples, strict=False)):
        if not sample.tokens:
            if sample.finish == "stop":
                return Verdict(Outcome(i, None, "rejected"), (), ended=True)
            return Verdict(Outcome(i, None, "unseen"), cut="a token without readable text")
        if sample.tokens[0] != position.key:
            ended = sample.finish == "stop"
            return Verdict(Outcome(i, None, "rejected"), sample.tokens, ended=ended)
        if sample.finish == "stop" and len(sample.tokens) == 1:
            # The drafted token is the one that ends the answer.
            return Verdict(Outcome(i + 1, None, "all"), ended=True)
    return bonus(view)


def bonus(view: View) -> Verdict:
    """All of the draft stands, and what the target said after it."""
    outcome = Outcome(len(view.positions), None, "all")
    return Verdict(outcome, view.bonus, ended=view.finish == "stop")


async def _ruled(session: Session, proposal: Proposal, view: View) -> Verdict:
    """The acceptance rules. A request that fails in the middle of a rejection is asked once more;
    then the answer is labelled for it."""
    drafted = proposal.ids or ()
    try:
        evidence = [_evidence(session, position) for position in view.positions]
    except ValueError as error:
        raise BadEvidence(str(error)) from error
    going = judging(
        drafted,
        evidence,
        proposal.q,
        sampling_of(session.request),
        session.server,
        session.rng,
        lossy=session.lossy,
    )
    found = step(going)
    while not isinstance(found, Outcome):
        request = found
        try:
            found = step(going, await _ask(session, request, drafted))
        except (BadEvidence, ProviderError, ValueError) as error:
            if request.mid_rejection:
                session.redraws(UNFINISHED)
            session.draws_failed(error)
            kept = Outcome(request.position, None, "unseen")
            return Verdict(kept, cut=f"the target could not be asked for a token: {error}")
    if found.verdict == "all":
        return bonus(view)
    return Verdict(found, () if found.token is None else (found.token,))


def _evidence(session: Session, position: Position) -> Evidence:
    top = [(key, logprob) for key, logprob in position.top if isinstance(key, int)]
    return Evidence.of(top, position.logprob, sampling_of(session.request), session.top_n)


async def _ask(session: Session, request: Request, drafted: tuple[int, ...]) -> list[Drawn]:
    try:
        return await session.draw(request, drafted[: request.position])
    except ProviderError:
        if not request.mid_rejection:
            raise
        return await session.draw(request, drafted[: request.position])


# --- commits ------------------------------------------------------------------------------------


def commits_of(
    session: Session, view: View, verdict: Verdict
) -> tuple[list[Commit], Handover | None]:
    """What stands of the round, and a hand-over where only the server can say how it goes on."""
    accepted = verdict.outcome.accepted
    keys: list[Key] = [position.key for position in view.positions[:accepted]]
    keys += verdict.last
    # Only the last of the target's own tokens can be the one that ended the answer.
    finish = "stop" if verdict.ended else None
    if not session.scores_by_ids:
        ends_bare = verdict.ended and not verdict.last
        return _text_commits([str(key) for key in keys[: session.answer.remaining]], ends_bare)
    vocabulary = session.target.learned.vocabulary
    assert vocabulary is not None
    ids: list[int] = []
    end = None
    for i, key in enumerate(keys):
        token = int(key)
        if token in vocabulary.special_ids and token not in vocabulary.eos_ids:
            if verdict.ended and i == len(keys) - 1:
                ids.append(token)
                break
            # Whether this one ends the answer, only the server knows: it is asked, not guessed.
            if not session.request.greedy:
                session.redraws("a special token was drawn anew by the target's server")
            end = Handover("the target chose a special token")
            finish = None
            break
        ids.append(token)
        if token in vocabulary.eos_ids:
            break
    if ids and finish and not verdict.last and ids[-1] not in vocabulary.eos_ids:
        # The end token came without an entry of its own: it still counts.
        return [Commit(ids=tuple(ids)), Commit(tokens=1, finish=finish)], None
    if ids:
        return [Commit(ids=tuple(ids), finish=finish)], end
    return [Commit(tokens=1, finish=finish)] if finish else [], end


def _text_commits(texts: list[str], ended: bool) -> tuple[list[Commit], Handover | None]:
    """A commit a token. Token strings that are not whole text (a split character, a special token
    shown empty) end the round before them."""
    commits: list[Commit] = []
    for text in texts:
        if not text or "\ufffd" in text:
            return commits, Handover("a token without readable text of its own")
        commits.append(Commit(text, None, 1))
    if ended:
        commits.append(Commit(tokens=1, finish="stop"))
    return commits, None


async def _one(session: Session) -> Commit | Handover:
    """One token of the target's own, drawn by its server under the caller's sampling settings."""
    view = await session.score(() if session.scores_by_ids else "", logprobs=1)
    if not view.bonus:
        if view.finish == "stop":
            return Commit(tokens=1, finish="stop")
        return Handover("a token without readable text of its own")
    first = view.bonus[0]
    _check_known(session, (first,))
    if isinstance(first, int):
        ended = view.finish == "stop" and len(view.bonus) == 1
        return Commit(ids=(first,), finish="stop" if ended else None)
    commits, end = _text_commits([first], False)
    return end or commits[0]
