"""Who watches the calls to providers: asked before one leaves, told of its headers and its end.

Limits, budgets and the health of deployments plug in here, once for every call there is: plain
ones, scoring rounds, lanes, drafts. Values and Protocols alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from specroute.config import ProviderConfig
from specroute.http.deadline import Deadline
from specroute.types import Usage


@dataclass(frozen=True, slots=True)
class Departure:
    """One call that is about to leave."""

    provider: ProviderConfig
    model: str
    """The provider's own name for it; ``""`` where the path has none (files, rendering)."""
    purpose: str
    """As in :class:`~specroute.types.Attempt`; ``other`` for paths that are passed through."""
    content: bytes | None
    """The body, ``None`` where it is none or is streamed."""
    deadline: Deadline
    """The call's own; whoever waits here waits on it."""
    waits: bool = True
    """False: rather than wait here it goes to somebody else."""


class Permit(Protocol):
    """One call under way. Neither method may raise or wait."""

    def arrived(self, status: int, headers: Mapping[str, str]) -> None:
        """The headers came. Not called where the call ended before them."""
        ...

    def settle(self, usage: Usage | None, error: BaseException | None) -> None:
        """The call is over; called once. ``usage``: the server's own count, or ours where that
        never came (a stream ended early), ``None``: not known. ``error``: what ended it early (a
        cancellation, too), also one found in an answer that looked well."""
        ...


class Gate(Protocol):
    """Lets calls leave. One that most calls needn't stop at is :class:`Selective`, too."""

    async def enter(self, departure: Departure) -> Permit:
        """Wait until the call may leave, or raise a :class:`~specroute.errors.SpecRouteError`."""
        ...


class Selective(Protocol):
    """A gate that says which calls are its business, so that the others pass without a stop."""

    def concerns(self, provider: ProviderConfig, purpose: str) -> bool:
        """Whether to ask it about such a call; ``purpose`` as in :class:`Departure`."""
        ...


class Gates:
    """Those that every call to one provider passes, in this order."""

    __slots__ = ("_gates", "_provider")

    def __init__(self, provider: ProviderConfig, gates: Sequence[Gate]) -> None:
        self._provider = provider
        self._gates = [(gate, getattr(gate, "concerns", _always)) for gate in gates]

    def asked(self, purpose: str) -> list[Gate]:
        """Those whose business such a call is."""
        provider = self._provider
        return [gate for gate, concerns in self._gates if concerns(provider, purpose)]


def _always(provider: ProviderConfig, purpose: str) -> bool:
    return True


class Permits:
    """The permits of one call, settled together and once."""

    __slots__ = ("_permits",)

    def __init__(self, permits: list[Permit]) -> None:
        self._permits: list[Permit] | None = permits

    def arrived(self, status: int, headers: Mapping[str, str]) -> None:
        for permit in self._permits or ():
            permit.arrived(status, headers)

    def settle(self, usage: Usage | None = None, error: BaseException | None = None) -> None:
        permits, self._permits = self._permits, None
        for permit in permits or ():
            permit.settle(usage, error)


async def enter(gates: Sequence[Gate], departure: Departure) -> Permits:
    """Pass every gate in turn; what was passed is settled if a later one refuses."""
    permits: list[Permit] = []
    try:
        for gate in gates:
            permits.append(await gate.enter(departure))
    except BaseException as error:
        Permits(permits).settle(None, error)
        raise
    return Permits(permits)
