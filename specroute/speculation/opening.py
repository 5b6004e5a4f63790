"""A session is opened: the prompt rendered, the evidence chosen, what the plan needs at hand.

Knows what has to be there before a method can run, and says in one sentence what is missing.
"""

from __future__ import annotations

import random
from dataclasses import replace

from specroute.acceptance import MeanLogprob, Ratio
from specroute.answer import Answer
from specroute.book import Book
from specroute.candidates import Judge, server_of
from specroute.config import (
    ModelConfig,
)
from specroute.drafting import MOST_PATIENCE_S, PATIENCE
from specroute.measure import Measurements
from specroute.policy.base import Plan, Policy
from specroute.pool import Pool
from specroute.request import TextRequest
from specroute.session import (
    SCORED,
    UNRENDERED,
    Session,
)
from specroute.speculation.calls import TextCall
from specroute.speculation.planning import trust_in
from specroute.target import templates
from specroute.target.target import Target
from specroute.types import Method


async def open_session(
    pool: Pool,
    measurements: Measurements,
    call: TextCall,
    request: TextRequest,
    target: Target,
    model: ModelConfig,
    policy: Policy,
    plan: Plan,
    judge: Judge | None,
    book: Book,
    traffic: str,
) -> Session | str:
    learned, trusted = target.learned, None
    if plan.method in SCORED:
        trusted = learned.sampler if judge is Judge.DRAWS else learned.dialect
        if trusted is None:
            return "the target's scoring is no longer trusted"
    form = trusted[1] if trusted is not None else None
    try:
        if plan.method in UNRENDERED:
            prompt = templates.unrendered(request)
        else:
            patient = call.deadline.part(PATIENCE, MOST_PATIENCE_S)
            prompt = await templates.render(target, request, book, patient)
    except templates.NoTemplate:
        if form not in (None, "chat"):
            raise
        prompt = templates.unrendered(request)
    if form is not None and not prompt.has(form):
        return f"the target is scored on prompts as {_FORMS[form]}, which this request has not"
    if plan.method not in UNRENDERED and target.can_continue(request, prompt) is None:
        return (
            "the answer could not be taken up in plain mid-text: send max_tokens, so that "
            "/completions can be given the rest of it"
        )
    lossy = policy.lossy if judge is Judge.RULES else None
    if plan.method is not Method.CASCADE:
        if isinstance(lossy, MeanLogprob):
            lossy = None  # It speaks of whole drafts.
        elif isinstance(lossy, Ratio):
            lossy = replace(lossy, agreement=None)  # That does.
    elif isinstance(lossy, Ratio | MeanLogprob) and not request.greedy:
        lossy = replace(lossy, agreement=None)  # It was found on greedy answers.
    name = plan.drafter or ""
    drafts = [pool.draft_config(each) for each in model.drafts]
    longest = target.learned.max_context
    room = None if longest is None or prompt.ids is None else longest - len(prompt.ids)
    if room is not None and (room < 1 or (request.max_tokens or 0) > room):
        return "prompt and answer may not fit into the model's context: the provider will say"
    limit = request.max_tokens if request.max_tokens is not None else room
    answer = Answer(max_tokens=limit, stop=request.stop)
    if target.learned.vocabulary is not None:
        answer.use(target.learned.vocabulary)
    seed = call.options.seed
    return Session(
        request=request,
        target=target,
        drafter=pool.drafter(name),
        others=tuple(pool.drafter(other) for other in model.drafts if other != name),
        plan=plan,
        policy=policy,
        measurements=measurements,
        traffic=traffic,
        book=book,
        deadline=call.deadline,
        standby=call.standby,
        rng=random.Random(seed),
        prompt=prompt,
        answer=answer,
        price_of=pool.price_of,
        draft_targets={d.name: f"{d.provider}:{d.model}" for d in drafts if d.kind == "remote"},
        draft_temperatures={d.name: d.temperature for d in drafts},
        resting=pool.resting,
        judge=judge,
        trusted=trusted,
        scores_by_ids=trusted is not None and trusted[1] == "ids",
        server=server_of(target.capabilities, trust_in(target)),
        lossy=lossy,
        loose=getattr(policy, "loose", False),
        min_accept=getattr(policy, "min_accept", 0.7),
        hedge=getattr(policy, "hedge", 0.0),
        drafted=call.drafted,
    )


_FORMS = {"ids": "token ids", "text": "text", "chat": "messages"}
