"""How far a batch is: a bar for a terminal, or whatever the caller makes of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from specroute.batch.results import BatchItem

OnItem = Callable[[BatchItem, "Progress"], None]
"""Called after each item with the item and the count so far."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Counts of a running batch."""

    total: int
    done: int = 0
    failed: int = 0
    resumed: int = 0
    cost_usd: float = 0.0
    """Dollars of this run's answers whose price is known."""
    unpriced: int = 0
    """Answers of this run whose price is not known."""

    def after(self, item: BatchItem) -> Progress:
        """With one more item."""
        cost = None
        new = item.ok and not item.resumed
        if new and item.report is not None:
            cost = item.report.cost_usd
        return Progress(
            self.total,
            self.done + 1,
            self.failed + (not item.ok),
            self.resumed + item.resumed,
            self.cost_usd + (cost or 0.0),
            self.unpriced + (new and cost is None),
        )

    @property
    def cost(self) -> str:
        """Dollars for a reader: what isn't known is not shown as 0."""
        if not self.unpriced:
            return f"${self.cost_usd:.4f}"
        return f"${self.cost_usd:.4f} and unknown" if self.cost_usd else "cost unknown"


def watching(progress: bool | OnItem | None, total: int) -> AbstractContextManager[OnItem | None]:
    """A context whose value is called after each item: the caller's own function, a bar on stderr
    (``True``, or ``None`` where that is a terminal), or nothing."""
    if progress is False or (progress is None and not sys.stderr.isatty()):
        return nullcontext(None)
    if progress is None or progress is True:
        return _Bar(total)
    return nullcontext(progress)


class _Bar(AbstractContextManager[OnItem]):
    def __init__(self, total: int) -> None:
        self._total = total

    def __enter__(self) -> OnItem:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as RichProgress

        self._rich = RichProgress(
            TextColumn("batch"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[failed]} failed, {task.fields[cost]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._rich.start()
        self._task = self._rich.add_task("batch", total=self._total, failed=0, cost="$0.0000")
        return self._shown

    def _shown(self, _: BatchItem, so_far: Progress) -> None:
        self._rich.update(self._task, completed=so_far.done, failed=so_far.failed, cost=so_far.cost)

    def __exit__(self, *_: Any) -> None:
        self._rich.stop()
