"""What a method is: one way to use a target, as a stream of events the engine applies.

A method decides nothing about stop strings, ``max_tokens``, end tokens or usage: it reports what
the target has confirmed, and the engine applies it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Protocol

from specroute.errors import DraftError, ProviderError
from specroute.events import Event, Handover
from specroute.target.view import BadEvidence

if TYPE_CHECKING:
    from specroute.session import Session


class MethodRun(Protocol):
    """``run(session)``: yields events until the answer ends or it hands over.

    After the commit that ends the answer it may be asked for more: it then reads what still tells
    of the bill (the end of a stream) and returns.
    """

    def __call__(self, session: Session) -> AsyncGenerator[Event]: ...


UNDONE = (DraftError, BadEvidence, ProviderError)
"""What ends scoring in the middle of an answer."""


def undone(session: Session, error: DraftError | BadEvidence | ProviderError) -> Handover:
    """What follows from it: evidence that was refused is not used again, a target that failed rests
    for a while, and in every case the rest of the answer is plain."""
    if isinstance(error, DraftError):
        return Handover(f"the draft failed: {error}")
    if isinstance(error, BadEvidence):
        session.refuse(str(error))
        return Handover(f"the target's evidence was refused: {error}")
    session.rest(error)
    return Handover(f"a scoring request failed: {error}")
