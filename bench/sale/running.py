"""One setting on fresh servers: everybody arrives, and what it took is written down.

Knows servers, clients and clocks. The dollars are the servers' own bills, from their access logs:
nothing that the client says of itself goes into them. Knows no criteria.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import openai

from bench.sale.settings import FLEET, LOCAL, NGRAM, Setting
from bench.sale.traffic import Answer, Messages, arrivals, ask, warming
from specroute import AsyncSpecRoute
from specroute.reference.access_log import Record
from specroute.reference.bundled import draft_dir, target_dir
from specroute.reference.running import ReferenceServer

TARGET = {"input": 3.0, "cached_input": 0.3, "output": 15.0}
DRAFT = {"input": 0.5, "cached_input": 0.05, "output": 2.5}
"""Dollars a million tokens. The articles' prices are those of output, 15 and 2.50; input costs a
fifth of it and cached input a tenth of that, as at large providers."""
DRAFT_PACE = "tpot=4ms,rtt=10ms,prefill=200000,load=0.1ms"
"""The fleet's: a tenth of the target's step, and room for all."""
WARMING = 12
"""Calm requests before, for a policy that learns: one that has seen nothing yet goes plain."""
MAX_BATCH = 256
"""Sequences that a server steps together, as vLLM's ``max_num_seqs``; others queue."""


@dataclass(frozen=True, slots=True)
class Bill:
    """What one server was asked for, all requests counted, and what that costs in dollars."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    usd: float
    input_usd: float
    """Of it, for input."""

    @classmethod
    def of(cls, records: Sequence[Record], prices: Mapping[str, float]) -> Bill:
        # What was never looked at (cancelled in the queue) is on no bill.
        counted = [r for r in records if r.charged_prompt_tokens or r.completion_tokens]
        prompt = sum(r.prompt_tokens for r in counted)
        cached = sum(r.cached_tokens for r in counted)
        made = sum(r.completion_tokens for r in counted)
        read = ((prompt - cached) * prices["input"] + cached * prices["cached_input"]) / 1e6
        return cls(len(counted), prompt, cached, made, read + made * prices["output"] / 1e6, read)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one setting came to."""

    setting: Setting
    answers: list[Answer]
    seconds: float
    """From the first moment to the last answer's end."""
    target: Bill
    draft: Bill
    overrun: float
    """The share of the target's time that its real computing took beyond the pace."""
    client_cpu: float
    """The share of a core that the client's process used."""

    @property
    def usd(self) -> float:
        return self.target.usd + self.draft.usd

    def part(self, first: int, last: int | None, moments: Sequence[float]) -> Outcome:
        """Some of the requests, and the time from the first one's moment to the last one's end.
        Bills are by the client's reports, as a server's log does not say whose a call was."""
        answers = self.answers[first:last]
        ends = [m + a.total_s for m, a in zip(moments[first:last], answers, strict=True)]
        return replace(
            self,
            answers=answers,
            seconds=max(ends) - moments[first],
            target=_reported(answers, "lab:target", TARGET),
            draft=_reported(answers, "fleet:draft", DRAFT)
            if self.setting.draft == FLEET
            else _as_if_bought(answers, None),
        )


def config(target: str, fleet: str, setting: Setting) -> dict[str, Any]:
    """The client's, for servers at these addresses."""
    draft = setting.draft
    limits = {"first_token": 600, "stall": 600}
    lab: dict[str, Any] = {
        "profile": "reference",
        "base_url": target,
        "probe": False,
        "prices": TARGET,
        # The dialect that reads the server's prefix cache, SGLang's own endpoint.
        "capabilities": {"score": ["generate"]},
        "timeouts": limits,
    }
    fleets: dict[str, Any] = {
        "profile": "reference",
        "base_url": fleet,
        "probe": False,
        "prices": DRAFT,
        "timeouts": limits,
    }
    drafts: dict[str, Any] = {
        LOCAL: {"kind": "local", "model": str(draft_dir()), "device": "cpu"},
        FLEET: {"kind": "remote", "provider": "fleet", "model": "draft"},
        NGRAM: {"kind": "ngram"},
    }
    model = {
        "targets": ["lab:target"],
        "drafts": [draft],
        "policy": dict(setting.policy or {}),
        "tokenizer": str(target_dir()),
    }
    return {
        "version": 1,
        "providers": {"lab": lab, **({"fleet": fleets} if draft == FLEET else {})},
        "drafts": {draft: {**drafts[draft], **setting.options}},
        "models": {"smart": model},
    }


async def run(
    setting: Setting,
    pace: str,
    asked: Sequence[Messages],
    moments: Sequence[float],
    calm_rate: float,
    progress: Callable[[int], None],
) -> Outcome:
    """Start the servers, let some come at the calm rate, then everybody at their moments."""
    with ExitStack() as stack:
        target = stack.enter_context(server(target_dir(), pace, "target"))
        fleet = None
        if setting.draft == FLEET and setting.policy is not None:
            fleet = stack.enter_context(server(draft_dir(), DRAFT_PACE, "draft"))
        if setting.policy is None:
            client: Any = openai.AsyncOpenAI(base_url=target.base_url, api_key="none")
            model = "target"
        else:
            where = fleet.base_url if fleet else ""
            made = config(target.base_url, where, setting)
            client, model = AsyncSpecRoute(config=made, max_retries=0), "smart"
        async with client:
            if setting.policy is not None:
                for problem in await client.warm_up():
                    print(f"  {setting.name}: {problem}", file=sys.stderr)
            now, count = time.perf_counter(), WARMING if setting.learns else 3
            calm = zip(warming(count), arrivals([calm_rate] * count), strict=True)
            await asyncio.gather(*(ask(client, model, m, now + at) for m, at in calm))
            read = _forwarded(client)
            cpu = _cpu()
            began, start = time.time(), time.perf_counter() + 0.2
            done = 0

            async def one(messages: Messages, at: float) -> Answer:
                nonlocal done
                answer = await ask(client, model, messages, start + at)
                done += 1
                progress(done)
                return answer

            answers = await asyncio.gather(*map(one, asked, moments))
            seconds = time.perf_counter() - start
            cpu = _cpu() - cpu
            read = _forwarded(client) - read
    # The servers have ended: every call's line is there, those of cancelled ones as well.
    logs = [[r for r in each.log if r.time >= began] for each in (target, fleet) if each]
    bill = Bill.of(logs[1], DRAFT) if fleet else Bill(0, 0, 0, 0, 0.0, 0.0)
    if setting.draft == LOCAL and setting.policy is not None:
        ahead = setting.policy.get("rounds_in_flight", 1) > 1
        bill = _as_if_bought(answers, read if ahead else None)
    took = sum(r.seconds for r in logs[0])
    return Outcome(
        setting,
        list(answers),
        seconds,
        Bill.of(logs[0], TARGET),
        bill,
        sum(r.overrun_s for r in logs[0]) / took if took else 0.0,
        cpu / seconds,
    )


def server(folder: Any, pace: str, name: str) -> ReferenceServer:
    return ReferenceServer(
        folder, pace=pace, names=[name], process=True, threads=1, max_batch=MAX_BATCH
    )


def _as_if_bought(answers: Sequence[Answer], read: int | None) -> Bill:
    """A local draft costs no dollars: here every drafted token is paid for as the article's draft
    was, and every drafted request's prompt once. Rounds in flight throw drafts away that no report
    counts: there all that the draft has ``read`` beyond the prompts is paid for as drafted."""
    drafted = [a for a in answers if a.report is not None and a.report.drafted]
    prompts = sum(a.prompt_tokens for a in drafted)
    tokens = sum(a.report.drafted for a in drafted if a.report is not None)
    if read is not None:
        tokens = max(tokens, read - prompts)
    read_usd = prompts * DRAFT["input"] / 1e6
    return Bill(0, prompts, 0, tokens, read_usd + tokens * DRAFT["output"] / 1e6, read_usd)


def _reported(answers: Sequence[Answer], target: str, prices: Mapping[str, float]) -> Bill:
    """What the reports say of one target; of plain answers, what their usage says."""
    prompt = cached = made = count = 0
    for answer in answers:
        if answer.report is None:
            prompt, made, count = prompt + answer.prompt_tokens, made + answer.tokens, count + 1
            cached += answer.cached_tokens
            continue
        for attempt in answer.report.attempts:
            if attempt.target == target and attempt.usage is not None:
                count += 1
                prompt += attempt.usage.prompt_tokens or 0
                cached += attempt.usage.cached_tokens or 0
                made += attempt.usage.completion_tokens or 0
    read = ((prompt - cached) * prices["input"] + cached * prices["cached_input"]) / 1e6
    return Bill(count, prompt, cached, made, read + made * prices["output"] / 1e6, read)


def _forwarded(client: Any) -> int:
    """Tokens that the local draft has read so far, if there is one."""
    if not isinstance(client, AsyncSpecRoute):
        return 0
    return getattr(client.router.speculation.pool.drafter(LOCAL), "forwarded", 0)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
