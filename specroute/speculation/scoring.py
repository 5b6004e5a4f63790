"""A whole draft and the target's view of it, for calibrating a lossy rule.

Answers nothing and measures nothing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from specroute.acceptance import Ratio
from specroute.alignment import TextStream
from specroute.book import Book
from specroute.errors import DraftError, ProviderError
from specroute.measure import Measurements, Snapshot
from specroute.method.cascade import seen
from specroute.policy.base import Ask
from specroute.policy.fixed import Fixed
from specroute.pool import Pool
from specroute.request import TextRequest
from specroute.session import (
    Session,
)
from specroute.speculation.calls import TextCall
from specroute.speculation.opening import open_session
from specroute.speculation.planning import Planning
from specroute.target import templates
from specroute.target.calibration import calibrate
from specroute.target.view import BadEvidence, View
from specroute.types import Attempt, Exactness, Method


@dataclass(frozen=True, slots=True)
class Scored:
    """A whole draft as its target sees it; ``texts``: each token's own. ``ended``: the last of them
    is an end token."""

    view: View
    texts: tuple[str, ...]
    ended: bool = False


def _texts(session: Session, view: View) -> tuple[str, ...]:
    vocabulary = session.target.learned.vocabulary
    if not session.scores_by_ids or vocabulary is None:
        return tuple(str(position.key) for position in view.positions)
    stream = TextStream(vocabulary.decode)
    ids = [int(position.key) for position in view.positions]
    return tuple("" if i in vocabulary.eos_ids else stream.push((i,)) for i in ids)


def _ended(session: Session, view: View) -> bool:
    vocabulary = session.target.learned.vocabulary
    if not session.scores_by_ids or vocabulary is None or not view.positions:
        return False
    return int(view.positions[-1].key) in vocabulary.eos_ids


async def scored(
    pool: Pool, planning: Planning, measurements: Measurements, call: TextCall
) -> tuple[Scored | str, tuple[Attempt, ...]]:
    """(a whole draft and the target's view of it, or why there is none; the calls for it).

    For calibrating a lossy rule: nothing is answered, nothing measured.
    """
    model = call.resolved.model
    request = TextRequest.read(call.path, call.body)
    if model is None or not model.drafts:
        return "the model has no drafts configured", ()
    if request.obstacle is not None:
        return request.obstacle, ()
    target = pool.target(call.resolved.target, call.resolved.provider, model)
    policy = Fixed(Method.CASCADE, lossy=Ratio(1.0))
    book = Book()
    session: Session | str | None = None
    try:
        if target.learned.scoring == "unknown":
            vocabularies = await pool.vocabularies(target, model, call.deadline)
            await calibrate(target, vocabularies, book, call.deadline)
        options = planning.options(request, target, model, policy, Exactness.HEURISTIC, False)
        plan = policy.plan(Ask(), options, lambda _: Snapshot(), random.Random())
        judge = options.judge_of(plan.method)
        if plan.method is not Method.CASCADE or judge is None:
            return plan.reason, tuple(book.attempts)
        session = await open_session(
            pool, measurements, call, request, target, model, policy, plan, judge, book, ""
        )
        if isinstance(session, str):
            return session, tuple(book.attempts)
        proposal = await session.draft(session.longest, greedy=True, whole=True)
        if not proposal:
            return "the draft has nothing to propose", tuple(book.attempts)
        view = await seen(session, proposal)
        return Scored(view, _texts(session, view), _ended(session, view)), tuple(book.attempts)
    except (templates.NoTemplate, DraftError, ProviderError, BadEvidence) as error:
        return str(error), tuple(book.attempts)
    finally:
        if isinstance(session, Session):
            await session.aclose()
