"""Whether a request is speculated on, from its call to its delivery.

Knows the order of the steps; what to do, ``planning`` says, how a session comes about, ``opening``,
what is learned of it, ``learning``. Targets and drafters are ``pool``'s. Knows no HTTP answer
shapes and no methods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from specroute import ledger
from specroute.aftermath import Aftermath
from specroute.book import Book
from specroute.candidates import Judge
from specroute.config import (
    Config,
    ModelConfig,
    PolicyConfig,
    ProviderConfig,
)
from specroute.delivery import Delivery, SpeculativeStream
from specroute.draft.ahead import Ahead
from specroute.draft.base import Drafter
from specroute.drafting import MOST_PATIENCE_S, PATIENCE
from specroute.engine import NothingCommitted
from specroute.errors import DraftError, ProviderError
from specroute.http.client import HttpClient
from specroute.http.supervisor import Supervisor
from specroute.measure import Measurements, traffic_class
from specroute.measured import Kept
from specroute.meter import look
from specroute.policy.base import Plan, Policy
from specroute.pool import Announce, Pool
from specroute.request import OWN_PREDICTION, TextRequest
from specroute.session import (
    UNSCORED,
)
from specroute.shadow import Shadow
from specroute.sharing import Sharing, shared
from specroute.speculation.calls import TextCall
from specroute.speculation.learning import Learning
from specroute.speculation.opening import open_session
from specroute.speculation.planning import Planning
from specroute.speculation.reckoning import Reckoning
from specroute.speculation.scoring import Scored, scored
from specroute.target import templates
from specroute.target.calibration import calibrate
from specroute.target.target import Target
from specroute.types import Attempt, Exactness, Method, Report, TargetRef

KEEP_EVERY_S = 60.0
"""Between two writes of what was measured."""


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
        self._kept = Kept(config)
        self.measurements: Measurements = (
            self._kept.loaded()
            if before is None
            else self._kept.handed_over(before._kept, before.measurements)
        )
        self._keeping: asyncio.Task[None] | None = None
        self.sharing: Sharing | None = self._shared(config, before)
        old = None if before is None else before.pool
        self.pool: Pool = Pool(config, http, supervisor, self.measurements, drafters, old)
        self.shadow = Shadow(
            config.shadow,
            supervisor,
            self.measurements,
            self.pool.ready,
            {d.name: f"{d.provider}:{d.model}" for d in config.drafts.values() if d.provider},
        )
        together = self.sharing
        accounts = None if together is None else together.accounts
        self._planning = Planning(config, self.pool, self.measurements, accounts, together)
        self._learning = Learning(self.pool, self.measurements, self.shadow)

    def _shared(self, config: Config, before: Speculator | None) -> Sharing | None:
        """The exchange with other workers: that of the config before, where nothing of what is
        measured has changed; ``None``: there is none."""
        if not shared(config):
            return None
        made = Sharing(config, self._kept, self.measurements, self._supervisor)
        old = None if before is None else before.sharing
        if old is not None and before is not None and old.goes_on_as(made):
            self.measurements.heard = old.told
            before.sharing = None
            return old
        return made

    def preferred(
        self,
        path: str,
        body: Mapping[str, Any],
        targets: Sequence[TargetRef],
        model: ModelConfig,
        policy: PolicyConfig | None,
    ) -> TargetRef:
        """Of a model's interchangeable targets the one that the policy chooses for a request."""
        request = TextRequest.read(path, dict(body))
        return self._planning.target(request, targets, model, traffic_class(request), policy)

    async def try_run(self, call: TextCall) -> bytes | SpeculativeStream | str:
        """A body (a JSON answer or a stream of chunks), or one sentence why the call goes plain.

        Provider errors do not come out of here before the first text: the plain call brings them.
        """
        if self._keeping is None and self._kept.path is not None:
            self._keeping = self._supervisor.spawn(
                self._keep_measured(), name="measurements", apart=True
            )
        if self.sharing is not None:
            self.sharing.start()
        self._under_way += 1
        call.handle.on_finish(self._ended)
        request = TextRequest.read(call.path, call.body)
        traffic = traffic_class(request)
        after = self._learning.watch(call, request, traffic)
        book = Book()
        try:
            return await self._try(call, request, traffic, book, after)
        except BaseException as error:
            # Nobody will answer this request any more, but what it has used is on its bill.
            left = isinstance(error, asyncio.CancelledError)
            said = "closed by the caller" if left else str(error) or type(error).__name__
            lines = book.with_prompts(request.about_tokens)
            report = ledger.booked(call.handle.base, lines, self.pool.price_of)
            call.handle.finish(replace(report, error=said))
            raise

    async def _try(
        self, call: TextCall, request: TextRequest, traffic: str, book: Book, after: Aftermath
    ) -> bytes | SpeculativeStream | str:
        model, ref = call.resolved.model, call.resolved.target
        if model is None:
            return "the model has no drafts configured"
        chosen = self._planning.policy(call.policy or model.policy)
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
                    self._keep(call, request, book, [])
                    return f"not speculated on: the target {target.learned.reason}"
            resting = target.learned.resting(call.deadline.clock())
            options = self._planning.options(request, target, model, policy, floor, resting)
            after.options(options, target)
            look(self.measurements.turns)
            reckoning = self._planning.plan(
                call.handle,
                request,
                target,
                model,
                chosen,
                options,
                traffic,
                call.deadline.remaining("total"),
            )
        except (DraftError, ProviderError) as error:
            self._keep(call, request, book, [f"speculation could not start: {error}"])
            return f"speculation could not start: {error}"
        judge = options.judge_of(reckoning.plan.method)
        outcome: bytes | SpeculativeStream | str = await self._in_a_burst(reckoning.plan)
        if not outcome:
            outcome = await self._carry_out(
                call, request, traffic, book, after, target, model, policy, judge, reckoning
            )
        if isinstance(outcome, str):
            reckoning.member.end()
            reckoning.gave_way_s = call.deadline.clock() - call.deadline.started
        return outcome

    async def _in_a_burst(self, plan: Plan) -> str:
        """Why a plan is left before it begins: the first of a thousand that come together is made
        when nobody knows of the others; once each has had its turn, that turn is known."""
        if plan.method is Method.PLAIN or plan.plain is None:
            return ""
        await asyncio.sleep(0)
        turns = self.measurements.turns
        look(turns)
        waits_s = turns.per_round()
        if waits_s < plan.plain.seconds:
            return ""
        return (
            f"not speculated on: each round would wait {waits_s:.2g} s for this client's own loop"
        )

    async def _carry_out(
        self,
        call: TextCall,
        request: TextRequest,
        traffic: str,
        book: Book,
        after: Aftermath,
        target: Target,
        model: ModelConfig,
        policy: Policy,
        judge: Judge | None,
        reckoning: Reckoning,
    ) -> bytes | SpeculativeStream | str:
        """Do what was planned."""
        plan = reckoning.plan
        undrafted = plan.drafter is None and plan.method is not Method.HEDGE
        if plan.method is Method.PLAIN or undrafted:
            self._keep(call, request, book, [])
            return plan.reason
        try:
            session = await open_session(
                self.pool,
                self.measurements,
                call,
                request,
                target,
                model,
                policy,
                plan,
                judge,
                book,
                traffic,
            )
        except templates.NoTemplate as error:
            self._keep(call, request, book, [])
            return str(error)
        except (DraftError, ProviderError) as error:
            self._keep(call, request, book, [f"speculation could not start: {error}"])
            return f"speculation could not start: {error}"
        if isinstance(session, str):
            self._keep(call, request, book, [])
            return session
        after.session, session.member = session, reckoning.member
        self.shadow.begin()
        if call.trace is not None:
            call.trace.how, call.trace.rounds = session.meter.how, session.meter.log
            call.trace.answer = lambda: session.answer.text
        if call.substitute is not None:
            session.loosen(*call.substitute)
        try:
            delivery = Delivery(session, call.handle, self._supervisor)
            reckoning.beyond_s = lambda: delivery.beyond_s
            return await delivery.start()
        except (NothingCommitted, ProviderError) as error:
            if call.handle.done:
                raise  # Ended from elsewhere: the client was closed, and nobody asks any more.
            call.failed = error if isinstance(error, ProviderError) else None
            self._keep(call, request, book, session.notes)
            if session.redrawn is not None:
                call.handle.update(
                    exactness=Exactness.HEURISTIC.value, exactness_reason=session.redrawn
                )
            return f"{plan.method} gave no text: {error}"

    def _keep(self, call: TextCall, request: TextRequest, book: Book, notes: Sequence[str]) -> None:
        """What was tried before the plain call stays in the request's report."""
        lines = book.with_prompts(request.about_tokens)
        call.handle.update(attempts=tuple(lines), notes=tuple(notes))

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
        """A whole draft of the call and the target's view of it; see :func:`scoring.scored`."""
        return await scored(self.pool, self._planning, self.measurements, call)

    async def _keep_measured(self) -> None:
        """Write what was measured to the file, every so often; the disk may take its time."""
        while True:
            await asyncio.sleep(KEEP_EVERY_S)
            await asyncio.to_thread(self._kept.write, self._kept.collect(self.measurements))

    async def warm_up(self, announce: Announce) -> list[str]:
        """As :meth:`Pool.warm_up`, with what other workers have measured."""
        if self.sharing is not None:
            await self.sharing.met()
        return await self.pool.warm_up(announce)

    def retire(self) -> None:
        """A later one answers from now on: free what only this one has after its last request."""
        self._retired = True
        keeping, self._keeping = self._keeping, None
        if keeping is not None:  # The later one keeps what was measured.
            keeping.get_loop().call_soon_threadsafe(keeping.cancel)
        if self.sharing is not None:
            self.sharing.stop()
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
        if self.sharing is not None:
            await self.sharing.aclose()
        if self._keeping is not None:  # Something was asked.
            self._keeping = None
            self._kept.write(self._kept.collect(self.measurements))
