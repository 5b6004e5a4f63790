"""Who speculates with what: one client's targets, drafters, policies and measurements.

Decides for each request, by asking the policy, whether it is speculated on, and opens its session.
Knows no HTTP answer shapes and no methods.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any, Protocol

from specroute.answer import Answer
from specroute.book import Book
from specroute.candidates import Candidates, Judge, Trust, candidates, server_of
from specroute.config import (
    Config,
    DraftConfig,
    ModelConfig,
    PolicyConfig,
    ProviderConfig,
    provider_for,
)
from specroute.delivery import Delivery, SpeculativeStream
from specroute.draft.base import Drafter
from specroute.engine import NothingCommitted
from specroute.errors import DraftError, ProviderError
from specroute.http.client import HttpClient
from specroute.http.deadline import UNLIMITED, Deadline
from specroute.http.supervisor import Supervisor
from specroute.ledger import Price, booked, price_for
from specroute.measure import Measurements, Snapshot
from specroute.policy.adaptive import Adaptive
from specroute.policy.base import Plan
from specroute.policy.fixed import Fixed
from specroute.policy.make import make_policy
from specroute.probed import refined
from specroute.profiles import capabilities_for, load_profile
from specroute.reporting import ReportHandle, new_id
from specroute.request import Options, TextRequest
from specroute.session import PATIENCE, Session, priced
from specroute.target import prefill, templates
from specroute.target.calibration import calibrate
from specroute.target.target import Target
from specroute.types import Exactness, Method, Report, TargetRef
from specroute.vocabulary import Vocabulary, load_vocabulary


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

    @property
    def announce(self) -> Callable[[ReportHandle], None]:
        """Told of a report that belongs to no request of the caller's (calibration)."""
        ...

    @property
    def resolved(self) -> ResolvedModel: ...


class Speculator:
    """Shared by all requests of a client. ``http`` gives the client for a provider.

    ``drafters``: ready-made ones, by the name of their ``[drafts.…]`` table.
    """

    def __init__(
        self,
        config: Config,
        http: Callable[[ProviderConfig], HttpClient],
        supervisor: Supervisor,
        drafters: Mapping[str, Drafter] | None = None,
    ) -> None:
        self._config = config
        self._http = http
        self._supervisor = supervisor
        self._targets: dict[tuple[TargetRef, str | None], Target] = {}
        self._drafters: dict[str, Drafter] = dict(drafters or {})
        self._policies: dict[int, tuple[PolicyConfig, tuple[Fixed | Adaptive, Exactness]]] = {}
        self._calibrating: set[TargetRef] = set()
        self._loads: dict[str, asyncio.Task[DraftError | None]] = {}
        self.measurements = Measurements()
        for model in config.models.values():
            self._policy(model.policy)  # A policy that can't be is an error now, not later.

    async def try_run(self, call: TextCall) -> bytes | SpeculativeStream | str:
        """A body (a JSON answer or a stream of chunks), or one sentence why the call goes plain.

        Provider errors do not come out of here before the first text: the plain call brings them.
        """
        model, ref = call.resolved.model, call.resolved.target
        request = TextRequest.read(call.path, call.body)
        traffic = traffic_class(request)
        call.handle.on_finish(lambda report: self._learn(report, str(ref), traffic))
        if model is None or not model.drafts:
            return "the model has no drafts configured"
        if request.obstacle is not None:
            return f"not speculated on: {request.obstacle}"
        policy, floor = self._policy(call.policy or model.policy)
        target = self._target(ref, call.resolved.provider, model)
        book = Book()
        try:
            if target.learned.scoring == "unknown":
                if target.learned.resting(call.deadline.clock()):
                    return f"not speculated on: the target {target.learned.reason}"
                if not policy.eager:
                    self._calibrate_beside(target, model, call)
                    return "the target is being calibrated beside this call"
                patient = call.deadline.part(PATIENCE)
                vocabularies = await self._vocabularies(target, model, patient)
                await calibrate(target, vocabularies, book, patient)
                self._time_scoring(target, book)
                if target.learned.scoring == "unknown":
                    self._keep(call, book, [])
                    return f"not speculated on: the target {target.learned.reason}"
            resting = target.learned.resting(call.deadline.clock())
            options = self._options(request, target, model, policy, floor, resting)
            plan = self._plan(request, target, model, policy, options, traffic)
            if plan.method is Method.PLAIN or plan.drafter is None:
                self._keep(call, book, [])
                return plan.reason
            session = await self._open(
                call, request, target, policy, plan, options.judge, book, traffic
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
        try:
            return await Delivery(session, call.handle, self._supervisor).start()
        except (NothingCommitted, ProviderError) as error:
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
        policy: Fixed | Adaptive,
        floor: Exactness,
        resting: bool,
    ) -> Candidates:
        trust = trust_in(target)
        if resting:
            trust = replace(trust, scoring="refused")
        lossy = policy.lossy if floor is Exactness.HEURISTIC else None
        found = candidates(request, target.capabilities, model.drafts, trust, lossy)
        return found.at_least(floor)

    def _plan(
        self,
        request: TextRequest,
        target: Target,
        model: ModelConfig,
        policy: Fixed | Adaptive,
        options: Candidates,
        traffic: str,
    ) -> Plan:
        price = self.price_of(str(target.ref))
        how = str(options.judge) if options.judge is not None else ""

        def snapshot(drafter: str) -> Snapshot:
            found = self.measurements.snapshot(str(target.ref), drafter, traffic, how)
            return priced(replace(found, context=_rough_tokens(request)), price)

        plan = policy.plan(options, snapshot)
        for name in model.drafts:
            tried = plan.method is not Method.PLAIN and plan.drafter == name
            self.measurements.planned(str(target.ref), name, traffic, tried=tried)
        return plan

    def _policy(self, config: PolicyConfig) -> tuple[Fixed | Adaptive, Exactness]:
        found = self._policies.get(id(config))
        if found is None or found[0] is not config:
            found = self._policies[id(config)] = (config, make_policy(config))
            if len(self._policies) > 256:
                self._policies.pop(next(iter(self._policies)))
        return found[1]

    # --- the session ------------------------------------------------------------------------

    async def _open(
        self,
        call: TextCall,
        request: TextRequest,
        target: Target,
        policy: Fixed | Adaptive,
        plan: Plan,
        judge: Judge | None,
        book: Book,
        traffic: str,
    ) -> Session | str:
        try:
            patient = call.deadline.part(PATIENCE)
            prompt = await templates.render(target, request, book, patient)
        except templates.NoTemplate:
            if plan.method is not Method.PREFIX:
                raise
            prompt = templates.unrendered(request)
        if target.can_continue(request, prompt) is None:
            return (
                "the answer could not be taken up in plain mid-text: send max_tokens, so that "
                "/completions can be given the rest of it"
            )
        name = plan.drafter or ""
        draft = self._draft_config(name)
        longest = target.learned.max_context
        room = None if longest is None or prompt.ids is None else longest - len(prompt.ids)
        if room is not None and (room < 1 or (request.max_tokens or 0) > room):
            return "prompt and answer may not fit into the model's context: the provider will say"
        limit = request.max_tokens if request.max_tokens is not None else room
        answer = Answer(max_tokens=limit, stop=request.stop)
        if target.learned.vocabulary is not None:
            answer.use(target.learned.vocabulary)
        seed = call.options.seed
        learned, trust = target.learned, trust_in(target)
        trusted = learned.sampler if judge is Judge.DRAWS else learned.dialect
        return Session(
            request=request,
            target=target,
            drafter=self._drafter(name),
            plan=plan,
            policy=policy,
            measurements=self.measurements,
            traffic=traffic,
            book=book,
            deadline=call.deadline,
            rng=random.Random(seed),
            prompt=prompt,
            answer=answer,
            price_of=self.price_of,
            draft_target=f"{draft.provider}:{draft.model}",
            draft_temperature=draft.temperature,
            judge=judge,
            scores_by_ids=trusted is not None and trusted[1] == "ids",
            server=server_of(target.capabilities, trust),
            lossy=policy.lossy,
        )

    def _target(self, ref: TargetRef, provider: ProviderConfig, model: ModelConfig) -> Target:
        key = (ref, model.tokenizer)
        found = self._targets.get(key)
        if found is None:
            profile = load_profile(provider.profile)
            found = self._targets[key] = Target(
                ref,
                self._http(provider),
                refined(
                    capabilities_for(profile, provider, ref.model),
                    provider.base_url,
                    ref.model,
                    provider.capabilities,
                ),
            )
        return found

    def _draft_config(self, name: str) -> DraftConfig:
        return self._config.drafts.get(name) or DraftConfig(name, "ngram")

    def _drafter(self, name: str) -> Drafter:
        found = self._drafters.get(name)
        if found is None:
            from specroute.draft.factory import make_drafter

            found = self._drafters[name] = make_drafter(
                self._draft_config(name), self._draft_http, prefill.continued
            )
        return found

    def _draft_http(self, provider: str) -> HttpClient:
        return self._http(provider_for(self._config, provider))

    def price_of(self, target: str) -> Price | None:
        """What a ``provider:model`` costs now; ``None`` where that isn't known."""
        ref = TargetRef.parse(target)
        provider = provider_for(self._config, ref.provider)
        return price_for(provider, load_profile(provider.profile), ref.model)

    # --- calibration ------------------------------------------------------------------------

    async def warm_up(self, announce: Callable[[ReportHandle], None]) -> list[str]:
        """Load every drafter and calibrate every configured model's target now, rather than beside
        its first requests. ``announce`` is told of the calibrations' reports. Returns one sentence
        for each thing that is not to be had."""
        problems: list[str] = []
        for model in self._config.models.values():
            provider = provider_for(self._config, model.targets[0].provider)
            target = self._target(model.targets[0], provider, model)
            for name in model.drafts:
                error = await self._load(name, Deadline(UNLIMITED))
                if error is not None:
                    problems.append(f"draft {name!r}: {error}")
            if model.drafts:
                handle = self._calibration_report(target, model.name)
                announce(handle)
                await self._calibrate(target, model, handle, Deadline(provider.timeouts))
                if target.learned.scoring != "trusted":
                    problems.append(f"{target.ref} is not scored on: {target.learned.reason}")
        return problems

    async def _vocabularies(
        self, target: Target, model: ModelConfig, deadline: Deadline
    ) -> list[Vocabulary]:
        """Tokenizers that may be the target's: the configured one and the drafts' own.

        :class:`DraftError` if one of the drafts is not ready in time, or none can be had at all.
        """
        if model.tokenizer is not None and target.tokenizer is None:
            try:
                target.tokenizer = await asyncio.to_thread(load_vocabulary, model.tokenizer)
            except (DraftError, ValueError) as error:
                target.learned.refuse(f"tokenizer {model.tokenizer!r}: {error}")
                return []
        found: list[Vocabulary] = []
        failed: list[DraftError] = []
        for name in model.drafts:
            problem = await self._load(name, deadline)
            vocabulary = self._drafter(name).vocabulary
            if problem is not None:
                failed.append(problem)  # Noted when the drafter is asked to draft.
            elif vocabulary is not None:
                found.append(vocabulary)
        if len(failed) == len(model.drafts):
            raise failed[0]
        return found

    async def _load(self, name: str, deadline: Deadline) -> DraftError | None:
        """Make a drafter ready. What takes longer than ``deadline`` goes on without its waiter,
        who gets a :class:`DraftError`; what failed is returned."""
        task = self._loads.get(name)
        if task is None or task.done():
            task = self._supervisor.spawn(_loaded(self._drafter(name)), name=f"load {name}")
            if task is None:
                raise DraftError("the client is closed")
            self._loads[name] = task
        left = deadline.remaining("first_token")
        await asyncio.wait({task}, timeout=None if left == inf else max(left, 0.0))
        if not task.done():
            raise DraftError(f"draft {name!r} is still being loaded")
        return task.result()

    def _calibrate_beside(self, target: Target, model: ModelConfig, call: TextCall) -> None:
        if target.ref not in self._calibrating:
            self._calibrating.add(target.ref)
            deadline = Deadline(call.deadline.timeouts)
            handle = self._calibration_report(target, call.resolved.asked)
            call.announce(handle)
            self._supervisor.spawn(
                self._calibrate(target, model, handle, deadline), name="calibration"
            )

    def _calibration_report(self, target: Target, asked: str) -> ReportHandle:
        return ReportHandle(Report(id=new_id(), model=asked, target=str(target.ref)))

    async def _calibrate(
        self, target: Target, model: ModelConfig, handle: ReportHandle, deadline: Deadline
    ) -> None:
        """Calibrate outside any request; its calls have a report of their own."""
        book = Book()
        try:
            vocabularies = await self._vocabularies(target, model, _loading(deadline))
            await calibrate(target, vocabularies, book, deadline)
            self._time_scoring(target, book)
        except DraftError as error:
            target.learned.reason = f"could not be calibrated yet: {error}"
        finally:
            self._calibrating.discard(target.ref)
            if book.attempts:
                found = target.learned.reason or "its scoring can be trusted"
                why = f"calibration of {target.ref}: {found}"
                report = booked(handle.report, book.attempts, self.price_of)
                handle.finish(replace(report, plan_reason=why, complete=True))

    def _time_scoring(self, target: Target, book: Book) -> None:
        """Calibration's two calls are the first figures: a round's time, and the plain pace.

        Both start alike (round trip, prefill, one step), so the generating call is longer by its
        further tokens alone.
        """
        calls = [a for a in book.attempts if a.purpose == "calibrate" and a.outcome == "ok"]
        if target.learned.scoring != "trusted" or len(calls) < 2:
            return
        generated, scored = calls[0], calls[1]
        name = str(target.ref)
        evidence = target.learned.dialect is not None
        for how in (Judge.ARGMAX, Judge.RULES) if evidence else ():
            self.measurements.verify_time(name, how, scored.seconds)
        if target.learned.sampler is not None:
            self.measurements.verify_time(name, Judge.DRAWS, calls[-1].seconds)
        steps = (generated.usage.completion_tokens or 1) - 1
        if steps > 0 and generated.seconds > scored.seconds:
            tpot = (generated.seconds - scored.seconds) / steps
            self.measurements.first_pace(name, ttft_s=scored.seconds, tpot_s=tpot)

    # --- learning ---------------------------------------------------------------------------

    def _learn(self, report: Report, target: str, traffic: str) -> None:
        """A finished answer's pace and length."""
        if not report.complete or report.completion_tokens is None:
            return
        if report.method != Method.PLAIN:
            self.measurements.answer(target, traffic, report.completion_tokens)
        elif report.ttft_s is not None and report.tpot_s is not None:
            self.measurements.plain(
                target,
                traffic,
                ttft_s=report.ttft_s,
                tpot_s=report.tpot_s,
                tokens=report.completion_tokens,
            )

    async def aclose(self) -> None:
        """Free the drafters; idempotent."""
        drafters, self._drafters = self._drafters, {}
        for drafter in drafters.values():
            await drafter.aclose()


async def _loaded(drafter: Drafter) -> DraftError | None:
    try:
        await drafter.load()
    except DraftError as error:
        return error
    except Exception as error:  # noqa: BLE001 - whatever a drafter raises, answers go plain
        return DraftError(f"{type(error).__name__}: {error}")
    return None


def _loading(deadline: Deadline) -> Deadline:
    """Beside the requests, a model may take all its time to load."""
    return Deadline(UNLIMITED, deadline.clock)


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
        by_ids=target.by_ids,
    )


def traffic_class(request: TextRequest) -> str:
    """Requests with the same endpoint and the same beginning of the system prompt are one class.

    The beginning: what follows it is often the customer's own data.
    """
    system = [
        str(m.get("content"))[:_SYSTEM_HEAD]
        for m in request.messages or ()
        if m.get("role") in _SYSTEM
    ]
    digest = hashlib.blake2b("\n".join(system).encode(), digest_size=6).hexdigest()
    return f"{request.path}#{digest if system else 'none'}"


_SYSTEM = ("system", "developer")
_SYSTEM_HEAD = 40


def _rough_tokens(request: TextRequest) -> int:
    """About how many prompt tokens: four characters each. Only weighs dollars in a plan."""
    if isinstance(request.prompt, tuple):
        return len(request.prompt)
    texts = [request.prompt or "", *(str(m.get("content")) for m in request.messages or ())]
    return sum(map(len, texts)) // 4
