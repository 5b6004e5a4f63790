"""Whether a request is speculated on, and with what: the policy is asked, a session opened.

Knows the policies and what was measured; which targets and drafters there are, ``pool`` does. Knows
no HTTP answer shapes and no methods.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from specroute import ledger
from specroute.acceptance import MeanLogprob, Ratio
from specroute.aftermath import Aftermath
from specroute.alignment import TextStream
from specroute.answer import Answer
from specroute.book import Book
from specroute.candidates import Candidate, Candidates, Judge, Trust, candidates, server_of
from specroute.config import (
    Config,
    ModelConfig,
    PolicyConfig,
    ProviderConfig,
)
from specroute.continuing import Standby
from specroute.delivery import Delivery, SpeculativeStream
from specroute.draft.ahead import Ahead
from specroute.draft.base import Drafter
from specroute.engine import NothingCommitted
from specroute.errors import DraftError, ProviderError
from specroute.http.client import HttpClient
from specroute.http.deadline import Deadline
from specroute.http.supervisor import Supervisor
from specroute.limits.purse import current
from specroute.measure import Measurements, Snapshot, traffic_class
from specroute.measured import Kept
from specroute.meter import priced
from specroute.method.cascade import seen
from specroute.overheard import Overheard
from specroute.policy.account import Account
from specroute.policy.base import Accounting, Ask, Forecast, Plan, Policy
from specroute.policy.fixed import Fixed
from specroute.policy.make import make_policy
from specroute.pool import Announce, Pool
from specroute.recorder import Trace
from specroute.reporting import ReportHandle, new_id
from specroute.request import OWN_PREDICTION, Options, TextRequest
from specroute.session import (
    MOST_PATIENCE_S,
    PATIENCE,
    SCORED,
    UNRENDERED,
    UNSCORED,
    Session,
    measured_as,
)
from specroute.shadow import Shadow
from specroute.target import templates
from specroute.target.calibration import calibrate
from specroute.target.target import Target
from specroute.target.view import BadEvidence, View
from specroute.types import Attempt, Exactness, Method, Report, TargetRef

KEEP_EVERY_S = 60.0
"""Between two writes of what was measured."""
_MOST_POLICIES = 256
"""Policies that are kept (requests may bring their own),"""
_MOST_ACCOUNTS = 4096
"""and traffic classes of each."""


class ResolvedModel(Protocol):
    """What ``model=`` stands for."""

    @property
    def asked(self) -> str: ...
    @property
    def target(self) -> TargetRef: ...
    @property
    def provider(self) -> ProviderConfig: ...
    @property
    def model(self) -> ModelConfig | None: ...


class TextCall(Protocol):
    """A chat or completions call, as the router hands it over."""

    path: str
    body: dict[str, Any]
    options: Options
    policy: PolicyConfig | None
    deadline: Deadline
    handle: ReportHandle
    http: HttpClient
    standby: Standby | None
    substitute: tuple[Exactness, str] | None
    failed: ProviderError | None

    @property
    def announce(self) -> Callable[[ReportHandle], None]:
        """Told of a report that belongs to no request of the caller's (calibration)."""
        ...

    @property
    def trace(self) -> Trace | None:
        """This request's line, where requests are recorded."""
        ...

    overheard: Overheard | None
    """Set here: keeps the plain answer, to be read afterwards."""

    @property
    def drafted(self) -> Callable[[int, str], None] | None:
        """Told of each draft, where the caller wants to see it."""
        ...

    @property
    def resolved(self) -> ResolvedModel: ...


@dataclass(slots=True)
class _Chosen:
    """A policy, the loosest label it allows, and its accounts by (target, traffic class)."""

    policy: Policy
    floor: Exactness
    accounts: dict[tuple[str, str], Account] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scored:
    """A whole draft as its target sees it; ``texts``: each token's own."""

    view: View
    texts: tuple[str, ...]


def _texts(session: Session, view: View) -> tuple[str, ...]:
    vocabulary = session.target.learned.vocabulary
    if not session.scores_by_ids or vocabulary is None:
        return tuple(str(position.key) for position in view.positions)
    stream = TextStream(vocabulary.decode)
    ids = [int(position.key) for position in view.positions]
    return tuple("" if i in vocabulary.eos_ids else stream.push((i,)) for i in ids)


class Speculator:
    """Shared by all requests of a client. ``http`` gives the client for a provider.

    ``drafters``: ready-made ones, by the name of their ``[drafts.…]`` table. ``before``: that of an
    older config, whose measurements, drafters and findings are taken over as far as they apply.
    """

    def __init__(
        self,
        config: Config,
        http: Callable[[ProviderConfig], HttpClient],
        supervisor: Supervisor,
        drafters: Mapping[str, Drafter] | None = None,
        before: Speculator | None = None,
    ) -> None:
        self._supervisor = supervisor
        self._under_way = 0
        self._retired = False
        self._policies: dict[object, _Chosen] = {}
        self._kept = Kept(config)
        self.measurements: Measurements = (
            self._kept.loaded()
            if before is None
            else self._kept.handed_over(before._kept, before.measurements)
        )
        self._keeping: asyncio.Task[None] | None = None
        self._rng = random.Random()
        for model in config.models.values():
            self._policy(model.policy)  # A policy that can't be is an error now, not later.
        old = None if before is None else before.pool
        self.pool: Pool = Pool(config, http, supervisor, self.measurements, drafters, old)
        self.shadow = Shadow(
            config.shadow,
            supervisor,
            self.measurements,
            self.pool.ready,
            {d.name: f"{d.provider}:{d.model}" for d in config.drafts.values() if d.provider},
        )

    async def try_run(self, call: TextCall) -> bytes | SpeculativeStream | str:
        """A body (a JSON answer or a stream of chunks), or one sentence why the call goes plain.

        Provider errors do not come out of here before the first text: the plain call brings them.
        """
        if self._keeping is None and self._kept.path is not None:
            self._keeping = self._supervisor.spawn(
                self._keep_measured(), name="measurements", apart=True
            )
        self._under_way += 1
        call.handle.on_finish(self._ended)
        request = TextRequest.read(call.path, call.body)
        traffic = traffic_class(request)
        after = self._watch(call, request, traffic)
        book = Book()
        try:
            return await self._try(call, request, traffic, book, after)
        except BaseException as error:
            # Nobody will answer this request any more, but what it has used is on its bill.
            left = isinstance(error, asyncio.CancelledError)
            said = "closed by the caller" if left else str(error) or type(error).__name__
            report = ledger.booked(call.handle.base, book.attempts, self.pool.price_of)
            call.handle.finish(replace(report, error=said))
            raise

    async def _try(
        self, call: TextCall, request: TextRequest, traffic: str, book: Book, after: Aftermath
    ) -> bytes | SpeculativeStream | str:
        model, ref = call.resolved.model, call.resolved.target
        if model is None:
            return "the model has no drafts configured"
        chosen = self._policy(call.policy or model.policy)
        fixed = getattr(chosen.policy, "method", None)
        if not model.drafts and fixed is not Method.HEDGE:
            return "the model has no drafts configured"
        if request.obstacle == OWN_PREDICTION:
            call.handle.update(method=Method.PREDICT.value, drafter="caller")
        if request.obstacle is not None:
            after.logprobs(self.pool.target(ref, call.resolved.provider, model))
            return f"not speculated on: {request.obstacle}"
        policy, floor = chosen.policy, chosen.floor
        target = self.pool.target(ref, call.resolved.provider, model)
        try:
            if target.learned.scoring == "unknown" and fixed not in UNSCORED:
                if target.learned.resting(call.deadline.clock()):
                    return f"not speculated on: the target {target.learned.reason}"
                if not policy.eager:
                    self.pool.calibrate_beside(target, model, call.deadline.timeouts, call.announce)
                    return "the target is being calibrated beside this call"
                patient = call.deadline.part(PATIENCE, MOST_PATIENCE_S)
                vocabularies = await self.pool.vocabularies(target, model, patient)
                await calibrate(target, vocabularies, book, patient)
                self.pool.time_scoring(target, book)
                self.pool.look_beside(target, call.resolved.asked, call.announce)
                if target.learned.scoring == "unknown":
                    self._keep(call, book, [])
                    return f"not speculated on: the target {target.learned.reason}"
            resting = target.learned.resting(call.deadline.clock())
            options = self._options(request, target, model, policy, floor, resting)
            after.options(options, target)
            plan = self._plan(call.handle, request, target, model, chosen, options, traffic)
            undrafted = plan.drafter is None and plan.method is not Method.HEDGE
            if plan.method is Method.PLAIN or undrafted:
                self._keep(call, book, [])
                return plan.reason
            session = await self._open(
                call,
                request,
                target,
                model,
                policy,
                plan,
                options.judge_of(plan.method),
                book,
                traffic,
            )
        except templates.NoTemplate as error:
            self._keep(call, book, [])
            return str(error)
        except (DraftError, ProviderError) as error:
            self._keep(call, book, [f"speculation could not start: {error}"])
            return f"speculation could not start: {error}"
        if isinstance(session, str):
            self._keep(call, book, [])
            return session
        after.session = session
        self.shadow.begin()
        if call.trace is not None:
            call.trace.how, call.trace.rounds = session.meter.how, session.meter.log
            call.trace.answer = lambda: session.answer.text
        if call.substitute is not None:
            session.loosen(*call.substitute)
        try:
            return await Delivery(session, call.handle, self._supervisor).start()
        except (NothingCommitted, ProviderError) as error:
            call.failed = error if isinstance(error, ProviderError) else None
            self._keep(call, book, session.notes)
            return f"{plan.method} gave no text: {error}"

    def _keep(self, call: TextCall, book: Book, notes: Sequence[str]) -> None:
        """What was tried before the plain call stays in the request's report."""
        call.handle.update(attempts=tuple(book.attempts), notes=tuple(notes))

    # --- the plan ---------------------------------------------------------------------------

    def _options(
        self,
        request: TextRequest,
        target: Target,
        model: ModelConfig,
        policy: Policy,
        floor: Exactness,
        resting: bool,
    ) -> Candidates:
        trust = trust_in(target)
        if resting:
            trust = replace(trust, scoring="refused")
        lossy = policy.lossy if floor is Exactness.HEURISTIC else None
        loose = getattr(policy, "loose", False)  # A policy of one's own needn't know of it.
        found = candidates(request, target.capabilities, model.drafts, trust, lossy, loose)
        return found.at_least(floor)

    def _plan(
        self,
        handle: ReportHandle,
        request: TextRequest,
        target: Target,
        model: ModelConfig,
        chosen: _Chosen,
        options: Candidates,
        traffic: str,
    ) -> Plan:
        price = self.pool.price_of(str(target.ref))
        context = request.about_tokens

        def figures(candidate: Candidate) -> Snapshot:
            how = measured_as(candidate.method, options.judge_of(candidate.method))
            found = self.measurements.snapshot(
                str(target.ref), candidate.drafter or "", traffic, how, prompt_tokens=context
            )
            each = candidate.method is Method.SCORE and options.judge is Judge.DRAWS
            found = replace(found, context=context, prompt_per_token=each)
            return self.pool.draft_priced(priced(found, price), candidate.drafter)

        account = chosen.accounts.get((str(target.ref), traffic), Account())
        purse = current.get()
        dollars = None if purse is None else purse.left
        ask = Ask(context, request.max_tokens, dollars=dollars, account=account)
        plan = chosen.policy.plan(ask, options, figures, self._rng)
        how = measured_as(Method.SCORE, options.judge)
        for name in model.drafts:
            tried = plan.method is not Method.PLAIN and plan.drafter == name
            self.measurements.planned(str(target.ref), name, traffic, tried=tried, how=how)
        if plan.plain is not None and plan.predicted is not None:
            handle.update(
                predicted_s=plan.predicted.seconds,
                predicted_usd=plan.predicted.dollars,
                plain_s=plan.plain.seconds,
                plain_usd=plan.plain.dollars,
            )
        if isinstance(chosen.policy, Accounting):
            handle.on_finish(
                lambda report: self._settle(report, chosen, plan, (str(target.ref), traffic))
            )
        return plan

    def _settle(self, report: Report, chosen: _Chosen, plan: Plan, key: tuple[str, str]) -> None:
        """Enter what a request took into its policy's account."""
        took, tokens = report.total_s, report.completion_tokens
        if not report.complete or took is None or tokens is None or report.plain_s is None:
            return
        if not isinstance(chosen.policy, Accounting):
            return
        spent, plain = Forecast(took, report.cost_usd), Forecast(report.plain_s, report.plain_usd)
        if spent.dollars is None or plain.dollars is None:
            spent, plain = Forecast(took), Forecast(plain.seconds)
        account = chosen.accounts.get(key, Account())
        chosen.accounts[key] = chosen.policy.settle(account, plan, spent, plain)
        if len(chosen.accounts) > _MOST_ACCOUNTS:
            chosen.accounts.pop(next(iter(chosen.accounts)))

    def _policy(self, config: PolicyConfig) -> _Chosen:
        key = (config.preset, *sorted(config.params.items()))
        found = self._policies.get(key)
        if found is None:
            found = self._policies[key] = _Chosen(*make_policy(config))
            if len(self._policies) > _MOST_POLICIES:
                self._policies.pop(next(iter(self._policies)))
        return found

    # --- the session ------------------------------------------------------------------------

    async def _open(
        self,
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
        lossy = policy.lossy
        if isinstance(lossy, MeanLogprob) and plan.method is not Method.CASCADE:
            lossy = None  # It speaks of whole drafts.
        name = plan.drafter or ""
        drafts = [self.pool.draft_config(each) for each in model.drafts]
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
            drafter=self.pool.drafter(name),
            others=tuple(self.pool.drafter(other) for other in model.drafts if other != name),
            plan=plan,
            policy=policy,
            measurements=self.measurements,
            traffic=traffic,
            book=book,
            deadline=call.deadline,
            standby=call.standby,
            rng=random.Random(seed),
            prompt=prompt,
            answer=answer,
            price_of=self.pool.price_of,
            draft_targets={d.name: f"{d.provider}:{d.model}" for d in drafts},
            draft_temperatures={d.name: d.temperature for d in drafts},
            resting=self.pool.resting,
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

    def ahead(
        self, call: TextCall, booked: Callable[[Attempt], None], note: Callable[[str], None]
    ) -> Ahead | None:
        """Drafting beside a plain answer, for the screen; ``None`` without drafts or where the
        answer is more than text."""
        model = call.resolved.model
        request = TextRequest.read(call.path, call.body)
        if model is None or not model.drafts or request.obstacle is not None:
            return None
        drafts = [self.pool.draft_config(name) for name in model.drafts]
        remote = {d.name: f"{d.provider}:{d.model}" for d in drafts if d.kind == "remote"}
        found = [self.pool.drafter(name) for name in model.drafts]
        return Ahead(found, templates.unrendered(request), remote, booked, note)

    async def scored(self, call: TextCall) -> tuple[Scored | str, tuple[Attempt, ...]]:
        """(a whole draft and the target's view of it, or why there is none; the calls for it).

        For calibrating a lossy rule: nothing is answered, nothing measured.
        """
        model = call.resolved.model
        request = TextRequest.read(call.path, call.body)
        if model is None or not model.drafts:
            return "the model has no drafts configured", ()
        if request.obstacle is not None:
            return request.obstacle, ()
        target = self.pool.target(call.resolved.target, call.resolved.provider, model)
        policy = Fixed(Method.CASCADE, lossy=Ratio(1.0))
        book = Book()
        session: Session | str | None = None
        try:
            if target.learned.scoring == "unknown":
                vocabularies = await self.pool.vocabularies(target, model, call.deadline)
                await calibrate(target, vocabularies, book, call.deadline)
            options = self._options(request, target, model, policy, Exactness.HEURISTIC, False)
            plan = policy.plan(Ask(), options, lambda _: Snapshot(), self._rng)
            judge = options.judge_of(plan.method)
            if plan.method is not Method.CASCADE or judge is None:
                return plan.reason, tuple(book.attempts)
            session = await self._open(call, request, target, model, policy, plan, judge, book, "")
            if isinstance(session, str):
                return session, tuple(book.attempts)
            proposal = await session.draft(session.longest, greedy=True, whole=True)
            if not proposal:
                return "the draft has nothing to propose", tuple(book.attempts)
            view = await seen(session, proposal)
            return Scored(view, _texts(session, view)), tuple(book.attempts)
        except (templates.NoTemplate, DraftError, ProviderError, BadEvidence) as error:
            return str(error), tuple(book.attempts)
        finally:
            if isinstance(session, Session):
                await session.aclose()

    # --- learning ---------------------------------------------------------------------------

    def _watch(self, call: TextCall, request: TextRequest, traffic: str) -> Aftermath:
        """Measure the call from here to its end, however it is answered."""
        target = str(call.resolved.target)
        others = self.measurements.begin(target)
        model = call.resolved.model
        after = Aftermath(request, traffic, () if model is None else model.drafts)
        if call.trace is not None:
            call.trace.in_flight = others
        if self.shadow.on and after.drafts:
            kept = None if call.trace is None else call.trace.overheard
            call.overheard = after.overheard = kept or Overheard()

        def learn(report: Report) -> None:
            self.measurements.end(target)
            # Another target may have answered in its place.
            self._learn(report, report.target or target, traffic, request.about_tokens, others)
            if after.session is not None:
                self.shadow.end()
            self._offer(call, after, report)

        call.handle.on_finish(learn)
        return after

    def _offer(self, call: TextCall, after: Aftermath, report: Report) -> None:
        """Let a finished answer of the target's own show what other drafts would have done."""
        finished = after.finished(report, call)
        if finished is None:
            return

        def billed(attempts: Sequence[Attempt]) -> None:
            why = f"shadow acceptance on {finished.target}"
            start = Report(id=new_id(), model=call.resolved.asked, target=finished.target)
            handle = ReportHandle(start)
            call.announce(handle)
            done = ledger.booked(start, attempts, self.pool.price_of)
            handle.finish(replace(done, plan_reason=why, complete=True))

        self.shadow.offer(replace(finished, billed=billed))

    def _learn(
        self, report: Report, target: str, traffic: str, prompt_tokens: int, others: int
    ) -> None:
        """A finished answer's pace and length, and what became of its calls."""
        seen, at = self.measurements, time.time()
        seen.attempted(report.attempts, at)
        tokens = report.completion_tokens
        if not report.complete or tokens is None:
            return
        alone = len(report.attempts) == 1 and report.attempts[0].purpose == "plain"
        if report.method != Method.PLAIN or not alone or report.ttft_s is None:
            # Otherwise its clock holds what was tried before: no measure of a plain call.
            seen.answer(target, traffic, tokens, at)
            return
        prompt = report.prompt_tokens or prompt_tokens
        if report.tpot_s is not None:
            seen.plain(
                target,
                traffic,
                ttft_s=report.ttft_s,
                tpot_s=report.tpot_s,
                tokens=tokens,
                prompt_tokens=prompt,
                in_flight=others,
                at=at,
            )
        elif report.total_s is not None:
            seen.whole(
                target,
                traffic,
                total_s=report.total_s,
                tokens=tokens,
                prompt_tokens=prompt,
                in_flight=others,
                at=at,
            )

    async def _keep_measured(self) -> None:
        """Write what was measured to the file, every so often; the disk may take its time."""
        while True:
            await asyncio.sleep(KEEP_EVERY_S)
            await asyncio.to_thread(self._kept.write, self._kept.collect(self.measurements))

    async def warm_up(self, announce: Announce) -> list[str]:
        """As :meth:`Pool.warm_up`."""
        return await self.pool.warm_up(announce)

    def retire(self) -> None:
        """A later one answers from now on: free what only this one has after its last request."""
        self._retired = True
        keeping, self._keeping = self._keeping, None
        if keeping is not None:  # The later one keeps what was measured.
            keeping.get_loop().call_soon_threadsafe(keeping.cancel)
        self._free()

    def _ended(self, report: Report) -> None:
        self._under_way -= 1
        self._free()

    def _free(self) -> None:
        if self._retired and self._under_way <= 0:
            with suppress(RuntimeError):  # No loop runs: it is freed when the client is closed.
                asyncio.get_running_loop()
                self._supervisor.spawn(
                    self.pool.aclose(), name="end of an older config's drafts", apart=True
                )

    async def aclose(self) -> None:
        """Free the drafters, keep what was measured; idempotent."""
        await self.pool.aclose()
        if self._keeping is not None:  # Something was asked.
            self._keeping = None
            self._kept.write(self._kept.collect(self.measurements))


def trust_in(target: Target) -> Trust:
    """What of a target's evidence may be used, as a frozen value."""
    learned = target.learned
    dialect, sampler = learned.dialect, learned.sampler
    return Trust(
        scoring=learned.scoring,
        reason=learned.reason,
        evidence=dialect[1] if dialect else None,
        argmax=dialect[0].shows.argmax if dialect else False,
        top_n=dialect[0].shows.top_n if dialect else False,
        draws=sampler[1] if sampler else None,
        draw_logprobs=learned.draw_logprobs,
        no_draws=learned.no_draws,
        by_ids=target.by_ids,
        prediction_refused=learned.prediction_refused,
    )


_FORMS = {"ids": "token ids", "text": "text", "chat": "messages"}
