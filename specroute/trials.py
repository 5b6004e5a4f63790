"""Trials for a lossy rule: prompts drafted whole, scored by the target, beside its plain answers.

Knows how a client's router is asked for both. Chooses nothing: ``acceptance.agreement`` does.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specroute.acceptance.agreement import Trial
from specroute.client import AsyncSpecRoute
from specroute.errors import RequestError
from specroute.exchange import RouterRequest, TextCall
from specroute.http.deadline import Deadline
from specroute.ledger import booked
from specroute.method.cascade import evidence
from specroute.reporting import ReportHandle, new_id, report
from specroute.request import CHAT, COMPLETIONS, Options
from specroute.speculation.scoring import Scored
from specroute.speculation.speculator import Speculator
from specroute.types import Report

PLAIN: dict[str, Any] = {"preset": "fixed", "method": "plain"}


@dataclass(frozen=True, slots=True)
class Asked:
    """One line of a file: what was asked, and the plain answer where it was recorded."""

    body: Mapping[str, Any]
    answer: str | None = None


@dataclass(slots=True)
class Made:
    """One trial, or why there is none, and what it cost."""

    trial: Trial | None = None
    problem: str = ""
    reports: list[Report] = field(default_factory=list)


def read(path: Path) -> list[Asked]:
    """Prompts from JSON lines: ``{"messages": […]}`` or ``{"prompt": "…"}``, with ``"answer"``
    where the target's plain answer is known (as recorded with ``texts``; lines of such a file that
    are no whole answers are passed over). :class:`RequestError` names a bad line."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise RequestError(f"{path}, line {number}: not JSON ({error})") from error
        if isinstance(value, dict) and (
            value.get("kind", "request") != "request" or value.get("complete") is False
        ):
            continue
        wanted = ("messages", "prompt")
        asked = {k: value[k] for k in wanted if isinstance(value, dict) and value.get(k)}
        if not asked:
            raise RequestError(
                f'{path}, line {number}: expected {{"messages": […]}} or {{"prompt": "…"}}, with '
                '"answer" where it is known (a record has them with texts = true)'
            )
        answer = value.get("answer")
        recorded = isinstance(answer, str) and value.get("method", "plain") == "plain"
        found.append(Asked(asked, answer if recorded else None))
    return found


async def trials(
    client: AsyncSpecRoute, model: str, asked: list[Asked], max_tokens: int
) -> AsyncIterator[Made]:
    """Each prompt's trial, greedy: one call that scores the draft, and one for the plain answer
    where none was recorded."""
    plain = client.with_options(policy=PLAIN)
    for each in asked:
        body = {**each.body, "temperature": 0, "max_tokens": max_tokens}
        made = Made()
        answer = each.answer
        if answer is None:
            answer, shown = await _plain(plain, model, body)
            made.reports.append(shown)
        scored = await _score(client, model, body)
        made.reports.append(scored.report)
        if isinstance(scored.found, str):
            made.problem = scored.found
        else:
            made.trial = _trial(scored.found, answer)
        yield made


@dataclass(frozen=True, slots=True)
class _Scoring:
    found: Scored | str
    report: Report


async def _plain(client: AsyncSpecRoute, model: str, body: dict[str, Any]) -> tuple[str, Report]:
    create: Any = (
        client.chat.completions.create if "messages" in body else client.completions.create
    )
    answer = await create(model=model, **body)
    choice = answer.choices[0]
    text = choice.message.content if "messages" in body else choice.text
    return text or "", report(answer)


async def _score(client: AsyncSpecRoute, model: str, body: dict[str, Any]) -> _Scoring:
    router = client.router
    speculation = router.speculation
    if not isinstance(speculation, Speculator):
        raise RequestError("no model of this config has drafts: there is nothing to calibrate")
    resolved = router.routes.resolve(model)
    path = CHAT if "messages" in body else COMPLETIONS
    handle = ReportHandle(Report(id=new_id(), model=model, target=str(resolved.target)))
    timeouts = router.routes.timeouts(resolved.provider, RouterRequest("POST", path))
    call = TextCall(
        path=path,
        body={**body, "model": resolved.target.model},
        resolved=resolved,
        options=Options(),
        policy=None,
        deadline=Deadline(timeouts),
        max_retries=0,
        headers=(),
        handle=handle,
        http=router.http(resolved.provider),
        announce=lambda _: None,
    )
    found, attempts = await speculation.scored(call)
    return _Scoring(found, booked(handle.report, attempts, router.routes.price_of))


def _trial(scored: Scored, plain: str) -> Trial:
    ends, end = [], 0
    for text in scored.texts:
        end += len(text)
        ends.append(end)
    draft, seen = "".join(scored.texts), tuple(evidence(scored.view))
    return Trial(draft, tuple(ends), seen, plain, scored.ended)
