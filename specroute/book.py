"""The book of one request: every call that left for a provider, what came of it and what it used.

Pure but for the clock passed in. Knows no prices (``ledger`` does) and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter

from specroute.errors import ProviderError
from specroute.types import Attempt, Usage


class Entry:
    """One open line of the book; fill in ``usage`` and ``request_id`` as they become known."""

    __slots__ = ("beyond", "drafted", "estimated", "request_id", "sends", "usage")

    def __init__(self) -> None:
        self.usage = Usage()
        self.request_id: str | None = None
        self.estimated = False
        """True: the usage was counted here because the server's own count never came."""
        self.drafted = 0
        """Of the prompt, the tokens of a draft."""
        self.beyond: int | None = None
        """Of a call whose prompt was the request's own and the answer's beginning: about how many
        tokens of that. Its prompt can be counted once the request's own is known."""
        self.sends: int | None = None
        """The same of a call whose answer comes all at once: what it is taken to have used if it
        is ended before that. What it had said by then nobody knows, it counts as nothing."""


class Book:
    """Collects :class:`Attempt` lines in the order in which calls ended."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self.attempts: list[Attempt] = []
        self._beyond: dict[int, int] = {}

    def with_prompts(self, prompt_tokens: int) -> list[Attempt]:
        """The lines, prompts that no server has counted reckoned from the request's own."""
        lines = list(self.attempts)
        for i, beyond in self._beyond.items():
            usage = replace(lines[i].usage, prompt_tokens=prompt_tokens + beyond)
            lines[i] = replace(lines[i], usage=usage, estimated=True)
        return lines

    @contextmanager
    def attempt(self, target: str, purpose: str) -> Iterator[Entry]:
        """Time one call; its line is written when the block ends, whatever ended it."""
        started = self._clock()
        entry = Entry()
        outcome = "ok"
        try:
            yield entry
        except ProviderError as error:
            outcome = error.outcome
            raise
        except BaseException as error:
            outcome = "cancelled" if _is_cancel(error) else type(error).__name__
            if _is_cancel(error) and entry.sends is not None and entry.usage == Usage():
                entry.usage, entry.beyond, entry.estimated = Usage(None, 0), entry.sends, True
            raise
        finally:
            if entry.usage.prompt_tokens is None and entry.beyond is not None:
                self._beyond[len(self.attempts)] = entry.beyond
            self.attempts.append(
                Attempt(
                    target=target,
                    purpose=purpose,
                    outcome=outcome,
                    seconds=self._clock() - started,
                    usage=entry.usage,
                    request_id=entry.request_id,
                    estimated=entry.estimated,
                    drafted=entry.drafted,
                )
            )


def _is_cancel(error: BaseException) -> bool:
    return type(error).__name__ in ("CancelledError", "GeneratorExit")
