"""What became of a draft. Knows no rule and no probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a draft.

    ``accepted`` drafted tokens stand. ``token`` is the one that follows them, where it is known:
    the recovered token after a rejection, or the bonus token in :func:`match`. ``verdict`` is
    ``rejected`` (the next drafted token was judged and refused), ``all`` (every one was accepted)
    or ``unseen`` (the next one could not be judged; nothing about it has been decided).
    """

    accepted: int
    token: int | None
    verdict: Literal["rejected", "all", "unseen"]
