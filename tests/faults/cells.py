"""One cell of the fault table: a method, a fault, when it comes, and what became of the answer.

Knows how to ask one question of a client whose servers fail on demand, and everything that must
hold whatever happens. Deliberately no expectations about single faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import openai

import specroute
from specroute import AsyncSpecRoute, Report
from specroute.speculation.speculator import Speculator
from specroute.testing import Fault, FaultServer, On
from specroute.testing.script import Rule
from tests.engine.answers import TEXT, EchoDrafter, script

SPEC = script()
SPEC["answers"][0]["anywhere"] = True
SHORT = {"connect": 2, "first_token": 0.9, "stall": 0.3, "total": 2.5}
"""For faults that only a deadline ends."""
PATIENT = {"connect": 10, "first_token": 10, "stall": 5, "total": 20}
"""For all others: whatever the machine does beside, none of these may pass."""
WAITING = ("silence", "stall", "keep_alives")
GRACE_S = 0.1
"""How much later than its deadline an answer or an error may come."""
FALL_BACK = ["429", "5xx", "connect", "first_token", "stall", "truncated"]
MESSAGES: Any = [{"role": "user", "content": "go"}]


@dataclass(frozen=True)
class Setup:
    """How requests of one kind are made: the policy, what the target can do, sampling."""

    policy: Mapping[str, Any]
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    drafts: bool = True
    wrong: float = 0.2
    """The share of drafted tokens that are not the answer's."""
    warm: bool = False
    """Calibrate first: the policy would do it beside the request."""


def _fixed(method: str, **more: Any) -> dict[str, Any]:
    return {"preset": "fixed", "method": method, "num_speculative_tokens": 3, **more}


SETUPS: dict[str, Setup] = {
    "plain": Setup({}, drafts=False),
    **{
        f"score/{dialect}": Setup(_fixed("score"), {"score": [dialect]})
        for dialect in ("echo", "prompt_logprobs", "generate", "fanout")
    },
    "score/sampled": Setup(_fixed("score"), {"score": ["echo"]}, {"temperature": 1}),
    "prefix": Setup(_fixed("prefix", lanes=2)),
    "score/in flight": Setup(_fixed("score", rounds_in_flight=3), {"score": ["echo"]}),
    "predict": Setup(_fixed("predict")),
    "cascade": Setup(_fixed("cascade"), {"score": ["echo"]}),
    # The toy model judges with its one answer, which is no judgement: the draft is never taken.
    "judge": Setup(_fixed("judge", exactness="heuristic")),
    # A race may answer with the draft.
    "race": Setup(_fixed("race", exactness="heuristic"), wrong=0),
    "hedge": Setup(_fixed("hedge", hedge=1)),
    "balanced": Setup({"preset": "balanced"}, warm=True),
}


@dataclass
class Outcome:
    """What a caller saw of one request, and what was said about it."""

    text: str = ""
    finish: str | None = None
    error: BaseException | None = None
    seconds: float = 0.0
    reports: list[Report] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """The rules that did not hold, in words."""

    @property
    def right(self) -> bool:
        return self.error is None and self.text == TEXT

    @property
    def report(self) -> Report:
        """The request's own report."""
        (report,) = self.own
        return report

    @property
    def own(self) -> list[Report]:
        """Its reports; those of calibration beside it left out."""
        return own(self.reports)

    @property
    def failed_plain(self) -> bool:
        """The plain call itself met the fault: nothing on this target could have helped."""
        last = self.report.attempts[-1]
        return last.purpose in ("plain", "handover") and last.outcome != "ok"

    def __str__(self) -> str:
        if self.error is not None:
            return f"{type(self.error).__name__}: {self.error}"
        return "right" if self.right else repr(self.text)


BESIDE = {"calibrate", "render", "probe"}
"""Purposes of calls that are made beside requests."""


def own(reports: Sequence[Report]) -> list[Report]:
    """The reports of requests: what is found out beside them has others."""
    return [
        r
        for r in reports
        if r.error == "closed by the caller"
        or not r.attempts
        or not {a.purpose for a in r.attempts} <= BESIDE
    ]


@dataclass
class World:
    """A client, its servers (in the order of its targets) and its drafter."""

    client: AsyncSpecRoute
    servers: Sequence[FaultServer]
    drafter: EchoDrafter
    reports: list[Report]
    setup: Setup


@asynccontextmanager
async def world(
    setup: Setup,
    *rules: Rule,
    spare: Sequence[Rule] | None = None,
    wrong: float | None = None,
    timeouts: Mapping[str, float] = PATIENT,
    pace: str = "",
    max_retries: int = 1,
    seed: int = 0,
    provider: Mapping[str, Any] | None = None,
    daily_usd: float | None = None,
    **model: Any,
) -> AsyncIterator[World]:
    """A client of one failing target and, with ``spare`` rules, of a second one behind it.
    ``provider``: what else is configured of both."""
    async with AsyncExitStack() as stack:
        scripts = [rules] if spare is None else [rules, spare]
        servers = [
            await stack.enter_async_context(FaultServer(*each, answer=SPEC, pace=pace))
            for each in scripts
        ]
        names = ["lab", "hub"][: len(servers)]
        config: dict[str, Any] = {
            "version": 1,
            "providers": {
                name: {
                    "profile": "reference",
                    "base_url": server.base_url,
                    "timeouts": dict(timeouts),
                    "capabilities": dict(setup.capabilities),
                    **(provider or {}),
                }
                for name, server in zip(names, servers, strict=True)
            },
            "models": {"m": {"targets": [f"{name}:chain" for name in names], **model}},
            "budgets": {} if daily_usd is None else {"daily": {"usd": daily_usd}},
        }
        if setup.drafts:
            config["drafts"] = {"table": {"kind": "ngram"}}
            config["models"]["m"].update(drafts=["table"], policy=setup.policy)
        reports: list[Report] = []
        client = await stack.enter_async_context(
            AsyncSpecRoute(config=config, max_retries=max_retries, on_report=reports.append)
        )
        drafter = EchoDrafter(SPEC, wrong=setup.wrong if wrong is None else wrong, seed=seed)
        if setup.drafts:
            router = client.router
            router.speculation = Speculator(
                router.config, router.http, router.supervisor, drafters={"table": drafter}
            )
        if setup.warm:
            for server in servers:
                server.play()
            await client.warm_up()
            for server, each in zip(servers, scripts, strict=True):
                await server.idle()
                server.forget()
                server.play(*each)
            reports.clear()
        yield World(client, servers, drafter, reports, setup)


async def ask(world: World, *, stream: bool, **body: Any) -> Outcome:
    """One request, and the rules that hold for every one of them."""
    loop = asyncio.get_running_loop()
    out = Outcome()
    before = len(world.reports)
    started = loop.time()
    sent = {"temperature": 0, **world.setup.body, **body}
    try:
        answer = await world.client.chat.completions.create(
            model="m", messages=MESSAGES, stream=stream, **sent
        )
        if stream:
            async for chunk in answer:
                for choice in chunk.choices:
                    out.text += choice.delta.content or ""
                    out.finish = choice.finish_reason or out.finish
        else:
            out.text = answer.choices[0].message.content or ""
            out.finish = answer.choices[0].finish_reason
    except Exception as error:  # noqa: BLE001 - judged below
        out.error = error
    out.seconds = loop.time() - started
    out.reports = world.reports[before:]
    out.broken = _broken(world, out)
    return out


def _broken(world: World, out: Outcome) -> list[str]:
    broken = []
    if out.error is None:
        if (out.text, out.finish) != (TEXT, "stop"):
            broken.append(f"a wrong answer passes for complete: {out.text!r} ({out.finish})")
    else:
        if not isinstance(out.error, openai.APIError):
            broken.append(f"not openai's kind of error: {out.error!r}")
        if not isinstance(out.error, specroute.SpecRouteError):
            broken.append(f"not our kind of error: {out.error!r}")
        if not TEXT.startswith(out.text):
            broken.append(f"not the beginning of the answer: {out.text!r}")
    if len(out.own) != 1:
        broken.append(f"{len(out.own)} reports of one request")
    else:
        report = out.report
        if report.complete != (out.error is None):
            broken.append(f"complete={report.complete} in the report")
        if (report.error is None) != (out.error is None):
            broken.append(f"error={report.error!r} in the report")
        if not report.attempts:
            broken.append("no attempt in the report")
    if world.drafter.open_sessions:
        broken.append(f"{world.drafter.open_sessions} draft sessions left open")
    return broken


async def settled(world: World) -> list[str]:
    """What is still under way at the servers a tenth of a second after an answer's end."""
    broken = []
    for server in world.servers:
        try:
            await server.idle(GRACE_S)
        except TimeoutError as error:
            broken.append(str(error))
    return broken


@dataclass(frozen=True)
class Cell:
    """``fault`` for the ``nth`` text request at the first target: once, or from then on."""

    setup: str
    stream: bool
    fault: Fault
    nth: int = 1
    once: bool = True
    spare: bool = False

    def __str__(self) -> str:
        return (
            f"{self.setup} {'stream' if self.stream else 'whole'} {self.fault!r} "
            f"{'at' if self.once else 'from'} {self.nth}{' +spare' if self.spare else ''}"
        )

    @property
    def waits(self) -> bool:
        """Only a deadline ends it."""
        return repr(self.fault).removeprefix("faults.").startswith(WAITING)

    async def run(self) -> Outcome:
        """Ask once under this fault."""
        rule = On(self.fault, skip=self.nth - 1, times=1 if self.once else None)
        spare: Sequence[Rule] | None = () if self.spare else None
        more = {"fallback_on": FALL_BACK} if self.spare else {}
        limits = SHORT if self.waits else PATIENT
        setup = SETUPS[self.setup]
        async with world(setup, rule, spare=spare, timeouts=limits, **more) as made:
            out = await ask(made, stream=self.stream)
            out.broken += await settled(made)
            if out.seconds > limits["total"] + GRACE_S:
                out.broken.append(f"late: {out.seconds:.2f} s")
            return out
