"""What a batch gives back: one item per request, in the order of the requests.

Pure. Knows how an item is written as a line of an OpenAI batch output file (OpenAI API reference,
Batch: "the request output object").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specroute.reporting import FIELD, to_wire
from specroute.types import Report


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One request's end: an answer, or an error."""

    custom_id: str
    body: Mapping[str, Any] | None = None
    """The answer's JSON; ``None`` where there is none."""
    status: int | None = None
    """The HTTP status of the last attempt; ``None`` where nothing was answered."""
    request_id: str | None = None
    error: Mapping[str, Any] | None = None
    """``{"code", "message"}``: why there is no answer."""
    attempts: int = 1
    """Requests made for it in this run, those inside the client not counted."""
    resumed: bool = False
    """Read from the journal, not asked for in this run."""
    report: Report | None = None
    """Of the call that brought the answer; ``None`` where it is no chat or completions call."""

    @property
    def ok(self) -> bool:
        """Whether it was answered."""
        return self.error is None

    @property
    def text(self) -> str | None:
        """The first choice's text; ``None`` where there is none."""
        choices = (self.body or {}).get("choices") or [{}]
        message = choices[0].get("message") or {}
        content = message.get("content", choices[0].get("text"))
        return content if isinstance(content, str) else None

    def line(self) -> dict[str, Any]:
        """A line of an output file. What a provider refused has its status and words in both
        places where clients look: ``response`` and ``error``."""
        response = None
        if self.body is not None:
            body = dict(self.body)
            if self.report is not None:
                body[FIELD] = to_wire(self.report)
            response = {"status_code": self.status, "request_id": self.request_id, "body": body}
        elif self.status is not None:
            refusal = {"error": self.error}
            response = {"status_code": self.status, "request_id": self.request_id, "body": refusal}
        return {
            "id": f"batch_req_{self.custom_id}",
            "custom_id": self.custom_id,
            "response": response,
            "error": self.error,
        }


class BatchResult(Sequence[BatchItem]):
    """The items of a batch, in the order of its requests."""

    def __init__(self, items: Sequence[BatchItem]) -> None:
        self._items = tuple(items)

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[BatchItem]:
        return iter(self._items)

    def __repr__(self) -> str:
        return f"BatchResult({len(self)} items, {len(self.failed)} failed)"

    @property
    def failed(self) -> tuple[BatchItem, ...]:
        """The items without an answer."""
        return tuple(item for item in self._items if not item.ok)

    @property
    def cost_usd(self) -> float | None:
        """Dollars of this run's answers, those from the journal not counted; ``None`` where one's
        price is unknown. What a failed attempt cost is in the client's own reports only."""
        total = 0.0
        for item in self._items:
            if item.ok and not item.resumed:
                cost = item.report.cost_usd if item.report is not None else None
                if cost is None:
                    return None
                total += cost
        return total
