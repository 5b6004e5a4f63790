"""Runs a speech's drafting on a function that gives logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from specroute.draft.base import Proposal
from specroute.draft.speech import Steps


def driven(step: Callable[[Sequence[int]], Any], drafting: Steps) -> Proposal:
    """What is drafted when ``step`` answers every forward."""
    logits = None
    while True:
        try:
            ids = drafting.send(logits)
        except StopIteration as end:
            proposal: Proposal = end.value
            return proposal
        logits = step(ids)
