"""Finding and collecting reports: ``report(obj)``, ``with reports()``, and the handle behind both.

Knows where a report travels (the extra field ``specroute`` of a JSON answer, the ``extensions`` of
a streamed one) and looks there by shape, without loading openai. Deliberately knows nothing of how
a report comes about.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, fields, replace
from typing import Any, overload

from specroute.types import Attempt, Report

FIELD = "specroute"
"""The name of the extra field in a JSON answer and of the entry in ``response.extensions``."""

_counter = itertools.count(1)
_prefix = os.urandom(4).hex()


def new_id() -> str:
    """An id for a report, unique within and (very likely) across processes."""
    return f"sr-{_prefix}-{next(_counter):x}"


class ReportHandle:
    """One request's report while it comes about.

    ``start``: what is known at the start, or a function that gives it when somebody asks. Whoever
    answers the request sets ``live`` (a function that gives the report as it stands) or calls
    :meth:`update`, and at the end :meth:`finish`, before ``[DONE]`` is handed on. ``amend``: what
    the final report gets that only its whole tells.
    """

    __slots__ = ("__weakref__", "_base", "_final", "_listeners", "amend", "held", "live", "updated")

    def __init__(self, start: Report | Callable[[], Report]) -> None:
        self._base = start
        self._final: Report | Callable[[], Report] | None = None
        self._listeners: list[Callable[[Report], object]] | None = None
        self.live: Callable[[], Report] | None = None
        self.amend: Callable[[Report], Report] | None = None
        self.updated = False
        """Whether :meth:`update` was called."""
        self.held = False
        """Its caller has left, and whoever answers still enters what was under way: only that one
        can finish it, who first unsets this."""

    def __repr__(self) -> str:
        return f"ReportHandle({self.report!r})"

    @property
    def report(self) -> Report:
        """The report as it stands; final once :attr:`done`."""
        if self._final is not None:
            if not isinstance(self._final, Report):
                self._final = self._final()
            return self._final
        return self.base if self.live is None else self.live()

    @property
    def base(self) -> Report:
        """The report without what is still live."""
        if not isinstance(self._base, Report):
            self._base = self._base()
        return self._base

    @property
    def done(self) -> bool:
        """Whether the report is final."""
        return self._final is not None

    def on_finish(self, listener: Callable[[Report], object]) -> None:
        """Call ``listener`` with the final report; it must not raise."""
        if self._listeners is None:
            self._listeners = []
        self._listeners.append(listener)

    def update(self, **changes: Any) -> None:
        """Change fields of the base; ignored once finished."""
        if self._final is None:
            self._base = replace(self.base, **changes)
            self.updated = True

    def finish(self, report: Report | Callable[[], Report]) -> None:
        """Fix the final report and tell the listeners; later calls do nothing, nor does one while
        it is :attr:`held`.

        A function is asked at most once, and only when somebody listens or looks.
        """
        if self._final is not None or self.held:
            return
        amend, made = self.amend, report
        if amend is not None:
            self.amend = None
            report = lambda: amend(made if isinstance(made, Report) else made())  # noqa: E731
        self._final = report
        self.live = None
        if not self.updated:
            self._base = report  # Whoever made the start may go.
        if self._listeners:
            listeners, self._listeners = self._listeners, None
            final = self.report
            for listener in listeners:
                listener(final)


class Reports(Sequence[Report]):
    """The reports of the requests made inside ``with reports()``, in the order of their start.

    A live view: a stream's report changes until it has ended.
    """

    def __init__(self) -> None:
        self._handles: list[ReportHandle] = []

    @overload
    def __getitem__(self, index: int) -> Report: ...
    @overload
    def __getitem__(self, index: slice) -> list[Report]: ...
    def __getitem__(self, index: int | slice) -> Report | list[Report]:
        if isinstance(index, slice):
            return [handle.report for handle in self._handles[index]]
        return self._handles[index].report

    def __len__(self) -> int:
        return len(self._handles)

    def __repr__(self) -> str:
        return f"Reports({list(self)!r})"


_active: ContextVar[tuple[Reports, ...]] = ContextVar("specroute_reports", default=())


@contextmanager
def reports() -> Iterator[Reports]:
    """Collect the reports of every request made inside, tasks started inside included.

    For libraries that hide both the answer's extra fields and its response. Blocks may nest.
    """
    collected = Reports()
    token = _active.set((*_active.get(), collected))
    try:
        yield collected
    finally:
        _active.reset(token)


def register(handle: ReportHandle) -> None:
    """Show ``handle`` to the ``reports()`` blocks around the caller."""
    for collected in _active.get():
        collected._handles.append(handle)


def report(source: object) -> Report:
    """The report of an answer: what was done for it, what it cost, what is guaranteed.

    ``source``: a completion, a parsed completion, a stream, the object or event manager of
    ``.stream()``, a raw or streaming raw response, or the response itself. A stream's report is
    live: its numbers are final once the stream has ended. Raises ``LookupError`` for an object
    that did not come from an ``AsyncSpecRoute``.
    """
    handle = _handle_of(source)
    if handle is not None:
        return handle.report
    extra = getattr(source, "model_extra", None)
    found = extra.get(FIELD) if isinstance(extra, Mapping) else None
    if found is None and isinstance(source, Mapping):
        found = source.get(FIELD)
    if isinstance(found, Mapping):
        return from_wire(found)
    raise LookupError(
        f"no report on this {type(source).__name__}: report() takes an answer, a stream or a raw "
        "response of AsyncSpecRoute; where a library hides them use `with specroute.reports()`"
    )


def _handle_of(source: object) -> ReportHandle | None:
    for name in (None, "response", "http_response", "_response", "_raw_stream"):
        response = source if name is None else getattr(source, name, None)
        extensions = getattr(response, "extensions", None)
        if isinstance(extensions, Mapping):
            handle = extensions.get(FIELD)
            return handle if isinstance(handle, ReportHandle) else None
    return None


_DEFAULTS: tuple[tuple[str, Any], ...] = tuple(
    (f.name, () if f.default_factory is not MISSING else f.default) for f in fields(Report)
)


def to_wire(value: Report) -> dict[str, Any]:
    """The fields that differ from their defaults, JSON-ready: what an answer's body carries."""
    out: dict[str, Any] = {}
    for name, default in _DEFAULTS:
        current = getattr(value, name)
        if current is not default and current != default:
            out[name] = current
    attempts = out.get("attempts")
    if attempts:
        out["attempts"] = [_attempt_to_wire(attempt) for attempt in attempts]
    return out


def _attempt_to_wire(attempt: Attempt) -> dict[str, Any]:
    usage = attempt.usage
    out: dict[str, Any] = {
        "target": attempt.target,
        "purpose": attempt.purpose,
        "outcome": attempt.outcome,
        "seconds": attempt.seconds,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
        },
    }
    for name in ("accepted_prediction_tokens", "rejected_prediction_tokens"):
        if getattr(usage, name) is not None:
            out["usage"][name] = getattr(usage, name)
    if attempt.request_id is not None:
        out["request_id"] = attempt.request_id
    if attempt.estimated:
        out["estimated"] = True
    return out


def from_wire(data: Mapping[str, Any]) -> Report:
    """The inverse of :func:`to_wire`."""
    return Report.from_dict(dict(data))
