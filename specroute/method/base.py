"""What a method is: one way to use a target, as a stream of events the engine applies.

A method decides nothing about stop strings, ``max_tokens``, end tokens or usage: it reports what
the target has confirmed, and the engine applies it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Protocol

from specroute.events import Event

if TYPE_CHECKING:
    from specroute.session import Session


class MethodRun(Protocol):
    """``run(session)``: yields events until the answer ends or it hands over.

    After the commit that ends the answer it may be asked for more: it then reads what still tells
    of the bill (the end of a stream) and returns.
    """

    def __call__(self, session: Session) -> AsyncGenerator[Event]: ...
