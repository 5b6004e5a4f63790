"""A client's targets and drafters: made once, loaded, calibrated and timed.

Knows which exist and whether they are ready. Knows no request and chooses nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf

from specroute.book import Book
from specroute.candidates import Judge
from specroute.config import (
    Config,
    DraftConfig,
    ModelConfig,
    ProviderConfig,
    Timeouts,
    provider_for,
)
from specroute.context import Committed, Prompt
from specroute.draft.backoff import Backoff
from specroute.draft.base import Drafter
from specroute.errors import DraftError
from specroute.http.client import HttpClient
from specroute.http.deadline import UNLIMITED, Deadline
from specroute.http.supervisor import Supervisor
from specroute.ledger import Price, booked, price_for
from specroute.measure import Measurements, Snapshot
from specroute.meter import draft_priced
from specroute.probed import refined
from specroute.profiles import capabilities_for, load_profile
from specroute.reporting import ReportHandle, new_id
from specroute.target import first_look, prefill
from specroute.target.calibration import QUESTION, calibrate
from specroute.target.shared_post import SharedPost
from specroute.target.target import Target
from specroute.types import Report, TargetRef
from specroute.vocabulary import Vocabulary, load_vocabulary

TIMED_DRAFT = 8
"""Tokens that a local draft is timed on before its first request."""

Announce = Callable[[ReportHandle], None]
"""Told of a report that belongs to no request of the caller's (calibration)."""


class Pool:
    """Shared by all requests of a client. ``http`` gives the client for a provider.

    ``drafters``: ready-made ones, by the name of their ``[drafts.…]`` table. ``before``: the pool
    of an older config, whose drafters and findings are kept where their tables have not changed.
    """

    def __init__(
        self,
        config: Config,
        http: Callable[[ProviderConfig], HttpClient],
        supervisor: Supervisor,
        measurements: Measurements,
        drafters: Mapping[str, Drafter] | None = None,
        before: Pool | None = None,
    ) -> None:
        self._config = config
        self._http = http
        self._supervisor = supervisor
        self.measurements = measurements
        self.targets: dict[tuple[TargetRef, str | None], Target] = {}
        self._drafters: dict[str, Drafter] = dict(drafters or {})
        self._calibrating: set[TargetRef] = set()
        self._looked_at: set[TargetRef] = set()
        self.resting: dict[str, Backoff] = {}
        """Drafters that came too late or broke, by name."""
        self._loads: dict[str, asyncio.Task[DraftError | None]] = {}
        self._found: dict[tuple[TargetRef, str | None], Target] = {}
        """Targets of the config before, for what was learned of them."""
        self._lent: set[str] = set()
        """Drafters that a later pool goes on with."""
        if before is not None:
            self._take_over(before)

    def _take_over(self, before: Pool) -> None:
        for key, target in {**before._found, **before.targets}.items():
            name = key[0].provider
            if _same_server(self._config.providers.get(name), before._config.providers.get(name)):
                self._found[key] = target
        for name, drafter in before._drafters.items():
            own = self.draft_config(name)
            if own != before.draft_config(name) or (
                own.provider is not None
                and self._config.providers.get(own.provider)
                != before._config.providers.get(own.provider)
            ):
                continue
            before._lent.add(name)
            self._drafters[name] = drafter
            if name in before.resting:
                self.resting[name] = before.resting[name]
            if name in before._loads:
                self._loads[name] = before._loads[name]

    def target(self, ref: TargetRef, provider: ProviderConfig, model: ModelConfig) -> Target:
        key = (ref, model.tokenizer)
        found = self.targets.get(key)
        if found is None:
            profile = load_profile(provider.profile)
            found = self.targets[key] = Target(
                ref,
                self._http(provider),
                refined(
                    capabilities_for(profile, provider, ref.model),
                    provider.base_url,
                    ref.model,
                    provider.capabilities,
                ),
            )
            known = self._found.pop(key, None)
            if known is not None:
                found.learned, found.tokenizer = known.learned, known.tokenizer
                found.calibrating = known.calibrating
        return found

    def draft_config(self, name: str) -> DraftConfig:
        return self._config.drafts.get(name) or DraftConfig(name, "ngram")

    def drafter(self, name: str) -> Drafter:
        found = self._drafters.get(name)
        if found is None:
            from specroute.draft.factory import make_drafter

            found = self._drafters[name] = make_drafter(
                self.draft_config(name), self._draft_http, prefill.continued, SharedPost
            )
        return found

    def ready(self, name: str) -> Drafter | None:
        """A drafter that can be asked at once; ``None``: not loaded yet, or resting."""
        drafter = self.drafter(name)
        if name in self.resting:
            return None
        loaded = drafter.vocabulary is not None or self.draft_config(name).kind != "local"
        return drafter if loaded else None

    def _draft_http(self, provider: str) -> HttpClient:
        return self._http(provider_for(self._config, provider))

    def price_of(self, target: str) -> Price | None:
        """What a ``provider:model`` costs now; ``None`` where that isn't known."""
        ref = TargetRef.parse(target)
        provider = provider_for(self._config, ref.provider)
        return price_for(provider, load_profile(provider.profile), ref.model)

    def draft_priced(self, figures: Snapshot, drafter: str | None) -> Snapshot:
        """``figures`` with what a remote draft's own provider bills per token."""
        draft = None if drafter is None else self._config.drafts.get(drafter)
        if draft is None or draft.kind != "remote":
            return figures
        price = self.price_of(f"{draft.provider}:{draft.model}")
        if price is None:
            return replace(figures, usd_draft_in=None, usd_draft_out=None, usd_draft_again=None)
        return draft_priced(figures, price)

    async def warm_up(self, announce: Announce) -> list[str]:
        """Load every drafter and calibrate every configured model's target now, rather than beside
        its first requests. ``announce`` is told of the calibrations' reports. Returns one sentence
        for each thing that is not to be had."""
        problems: list[str] = []
        for model in self._config.models.values():
            provider = provider_for(self._config, model.targets[0].provider)
            target = self.target(model.targets[0], provider, model)
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

    async def vocabularies(
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
            vocabulary = self.drafter(name).vocabulary
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
            task = self._supervisor.spawn(
                _loaded(self.drafter(name)), name=f"load {name}", apart=True
            )
            if task is None:
                raise DraftError("the client is closed")
            self._loads[name] = task
        left = deadline.remaining("first_token")
        await asyncio.wait({task}, timeout=None if left == inf else max(left, 0.0))
        if not task.done():
            raise DraftError(f"draft {name!r} is still being loaded")
        return task.result()

    async def _time_drafts(self, model: ModelConfig) -> None:
        """Draft a few tokens with each local model, so that the first plan knows how long one
        takes; the first call reads the prompt and isn't timed."""
        question = ({"role": "user", "content": QUESTION},)
        for name in model.drafts:
            if self.draft_config(name).kind != "local":
                continue
            try:
                drafting = await self.drafter(name).open(Prompt(question, QUESTION), None)
                try:
                    begun = await drafting.propose(Committed(), 1)
                    further = await drafting.propose(Committed(begun.text), TIMED_DRAFT)
                finally:
                    await drafting.aclose()
            except DraftError:
                continue  # It will be said when it is asked to draft in earnest.
            if further:
                self.measurements.draft_time(name, further.seconds / TIMED_DRAFT, time.time())

    def calibrate_beside(
        self, target: Target, model: ModelConfig, timeouts: Timeouts, announce: Announce
    ) -> None:
        """Start to calibrate in the background, unless that is under way."""
        if target.ref not in self._calibrating:
            self._calibrating.add(target.ref)
            deadline = Deadline(timeouts)
            handle = self._calibration_report(target, model.name)
            announce(handle)
            self._supervisor.spawn(
                self._calibrate(target, model, handle, deadline), name="calibration", apart=True
            )

    def look_beside(self, target: Target, asked: str, announce: Announce) -> None:
        """Start the first look at a target in the background, if there is to be one."""
        if self._to_be_looked_at(target):
            handle = ReportHandle(Report(id=new_id(), model=asked, target=str(target.ref)))
            announce(handle)
            self._supervisor.spawn(self._look_alone(target, handle), name="first look", apart=True)

    async def _look_alone(self, target: Target, handle: ReportHandle) -> None:
        book = Book()
        try:
            await self._look(target, book)
        finally:
            report = booked(handle.report, book.attempts, self.price_of)
            why = f"a first look at {target.ref}"
            handle.finish(replace(report, plan_reason=why, complete=True))

    def _to_be_looked_at(self, target: Target) -> bool:
        provider = provider_for(self._config, target.ref.provider)
        return (
            provider.probe
            and target.ref not in self._looked_at
            and first_look.wanted(target, provider.base_url)
        )

    async def _look(self, target: Target, book: Book) -> None:
        if not self._to_be_looked_at(target):
            return
        self._looked_at.add(target.ref)
        provider = provider_for(self._config, target.ref.provider)
        await first_look.look(
            target,
            provider.base_url,
            provider.capabilities,
            book,
            lambda: Deadline(provider.timeouts),
        )

    def _calibration_report(self, target: Target, asked: str) -> ReportHandle:
        return ReportHandle(Report(id=new_id(), model=asked, target=str(target.ref)))

    async def _calibrate(
        self, target: Target, model: ModelConfig, handle: ReportHandle, deadline: Deadline
    ) -> None:
        """Calibrate outside any request; its calls have a report of their own."""
        book = Book()
        try:
            vocabularies = await self.vocabularies(target, model, loading(deadline))
            await calibrate(target, vocabularies, book, deadline)
            self.time_scoring(target, book)
            await self._time_drafts(model)
            await self._look(target, book)
        except DraftError as error:
            target.learned.reason = f"could not be calibrated yet: {error}"
        finally:
            self._calibrating.discard(target.ref)
            if book.attempts:
                found = target.learned.reason or "its scoring can be trusted"
                why = f"calibration of {target.ref}: {found}"
                report = booked(handle.report, book.attempts, self.price_of)
                handle.finish(replace(report, plan_reason=why, complete=True))

    def time_scoring(self, target: Target, book: Book) -> None:
        """Calibration's two calls are the first figures: a round's time, and the plain pace.

        Both start alike (round trip, prefill, one step), so the generating call is longer by its
        further tokens alone.
        """
        calls = [a for a in book.attempts if a.purpose == "calibrate" and a.outcome == "ok"]
        if target.learned.scoring != "trusted" or len(calls) < 2:
            return
        generated, scored = calls[0], calls[1]
        name, at = str(target.ref), time.time()
        evidence = target.learned.dialect is not None
        for how in (Judge.ARGMAX, Judge.RULES) if evidence else ():
            context = scored.usage.prompt_tokens or 0
            self.measurements.verify_time(name, how, scored.seconds, context=context, at=at)
        self.measurements.read_again(name, scored, at)
        if target.learned.sampler is not None:
            self.measurements.verify_time(name, Judge.DRAWS, calls[-1].seconds, at=at)
        steps = (generated.usage.completion_tokens or 1) - 1
        if steps > 0 and generated.seconds > scored.seconds:
            tpot = (generated.seconds - scored.seconds) / steps
            self.measurements.first_pace(name, ttft_s=scored.seconds, tpot_s=tpot, at=at)

    async def aclose(self) -> None:
        """Free the drafters that no later pool goes on with; idempotent."""
        drafters, self._drafters = self._drafters, {}
        for name, drafter in drafters.items():
            if name not in self._lent:
                await drafter.aclose()


def _same_server(a: ProviderConfig | None, b: ProviderConfig | None) -> bool:
    """Whether what was learned at one holds for the other: limits, prices and keys may differ."""
    if a is None or b is None:
        return False
    each = [(p.base_url, p.profile, p.capabilities, p.query) for p in (a, b)]
    return each[0] == each[1]


async def _loaded(drafter: Drafter) -> DraftError | None:
    try:
        await drafter.load()
    except DraftError as error:
        return error
    except Exception as error:  # noqa: BLE001 - whatever a drafter raises, answers go plain
        return DraftError(f"{type(error).__name__}: {error}")
    return None


def loading(deadline: Deadline) -> Deadline:
    """Beside the requests, a model may take all its time to load."""
    return Deadline(UNLIMITED, deadline.clock)
