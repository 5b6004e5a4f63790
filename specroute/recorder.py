"""``record = "traces.jsonl"``: one JSON line a finished request, to be replayed by a simulator.

Knows the lines and when they are written: from a thread, a moment after, and at close. Features and
figures only; texts where the config asks for them (``record = {path = …, texts = true}``), keys
never. docs/measurement.md describes the fields.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specroute.config import Record
from specroute.http.supervisor import Supervisor
from specroute.ledger import Price
from specroute.measure import traffic_class
from specroute.overheard import Overheard
from specroute.request import TextRequest
from specroute.types import Report

log = logging.getLogger("specroute")

VERSION = 1
FLUSH_S = 0.5
"""How long a line may wait for others to be written with."""


@dataclass(slots=True)
class Trace:
    """One request's line while it comes about; whoever knows more than the report fills it in."""

    path: str
    body: Mapping[str, Any]
    how: str | None = None
    """What its rounds are measured as."""
    in_flight: int | None = None
    rounds: list[tuple[Any, ...]] = field(default_factory=list)
    """(drafted, accepted, judged, scoring seconds or ``None``, drafting seconds) of each."""
    overheard: Overheard | None = None
    """Where texts are recorded: the plain answer."""
    answer: Callable[[], str] | None = None
    """The speculated answer's text."""
    shadow: Callable[[Mapping[str, Any]], None] | None = None
    """Takes what the finished answer shows of a draft."""


class Recorder:
    """Writes lines to one file. ``price_of``: the price of a ``provider:model``."""

    def __init__(
        self,
        record: Record,
        supervisor: Supervisor,
        price_of: Callable[[str], Price | None],
    ) -> None:
        self.record = record
        self._supervisor = supervisor
        self._price_of = price_of
        self._waiting: list[Callable[[], dict[str, Any]]] = []
        self._task: asyncio.Task[None] | None = None
        self._failed = False

    def trace(self, path: str, body: Mapping[str, Any]) -> Trace:
        """A request's line to be."""
        found = Trace(path, body, shadow=self._shadow)
        if self.record.texts:
            found.overheard = Overheard()
        return found

    def finished(self, report: Report, trace: Trace) -> None:
        """A request has ended; its line is made and written later, elsewhere."""
        at = time.time()
        self._add(lambda: self._request(report, trace, at))

    def _shadow(self, line: Mapping[str, Any]) -> None:
        at = time.time()
        self._add(lambda: {"v": VERSION, "kind": "shadow", "at": at, **line})

    def _add(self, make: Callable[[], dict[str, Any]]) -> None:
        self._waiting.append(make)
        if self._task is None or self._task.done():
            self._task = self._supervisor.spawn(self._later(), name="recorder")

    async def _later(self) -> None:
        await asyncio.sleep(FLUSH_S)
        lines, self._waiting = self._waiting, []
        await asyncio.shield(asyncio.to_thread(self._write, lines))

    async def aclose(self) -> None:
        """Write what still waits."""
        lines, self._waiting = self._waiting, []
        if lines:
            await asyncio.to_thread(self._write, lines)

    def _write(self, lines: list[Callable[[], dict[str, Any]]]) -> None:
        text = "".join(
            json.dumps(make(), ensure_ascii=False, separators=(",", ":"), default=str) + "\n"
            for make in lines
        )
        path = Path(self.record.path).expanduser()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            if not self._failed:
                log.warning("requests can't be recorded in %s: %s", path, error)
            self._failed = True

    def _request(self, report: Report, trace: Trace, at: float) -> dict[str, Any]:
        request = TextRequest.read(trace.path, trace.body)
        price = None if report.target is None else self._price_of(report.target)
        if price is not None:
            price = price.at(report.prompt_tokens or request.about_tokens)
        line: dict[str, Any] = {
            "v": VERSION,
            "kind": "request",
            "id": report.id,
            "at": at,
            "model": report.model,
            "target": report.target,
            "traffic": traffic_class(request),
            "how": trace.how,
            "method": report.method,
            "drafter": report.drafter,
            "complete": report.complete,
            "finish_reason": report.finish_reason,
            "temperature": request.temperature,
            "max_tokens": request.max_tokens,
            "prompt_tokens": report.prompt_tokens,
            "about_prompt_tokens": request.about_tokens,
            "answer_tokens": report.completion_tokens,
            "in_flight": trace.in_flight,
            "ttft_s": report.ttft_s,
            "tpot_s": report.tpot_s,
            "total_s": report.total_s,
            "draft_s": report.draft_s,
            "cost_usd": report.cost_usd,
            "usd_in": _each(price, "input"),
            "usd_out": _each(price, "output"),
            "usd_cached": _each(price, "cached_input"),
            "billed": [
                report.billed_prompt_tokens,
                report.billed_cached_tokens,
                report.billed_completion_tokens,
            ],
            "rounds": [list(each) for each in trace.rounds],
            "calls": [
                [
                    call.target,
                    call.purpose,
                    call.outcome,
                    call.seconds,
                    call.usage.prompt_tokens,
                    call.usage.cached_tokens,
                    call.usage.completion_tokens,
                ]
                for call in report.attempts
            ],
        }
        if self.record.texts:
            line["messages"] = trace.body.get("messages")
            line["prompt"] = trace.body.get("prompt")
            line["answer"] = _answer(trace)
        return line


def _answer(trace: Trace) -> str | None:
    if trace.answer is not None:
        return trace.answer()
    try:
        heard = None if trace.overheard is None else trace.overheard.read()
    except (ValueError, LookupError, AttributeError, TypeError):
        return None  # An answer of a shape of its own.
    return None if heard is None else heard.text


def _each(price: Price | None, name: str) -> float | None:
    found = None if price is None else getattr(price, name)
    return None if found is None else float(found) / 1e6
