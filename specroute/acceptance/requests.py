"""What a rule may ask of the target while it judges, and what it is told.

Rules that need the target's help are generators: they yield one of these requests and are sent the
draws that answer it, so that a client over a network and a test over a table drive the same code.
Knows no transport and no rule.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from specroute.acceptance.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Draw:
    """``count`` independent tokens after ``drafted[:position]``, under the caller's own sampling.

    Never with a seed: several draws with one seed are one draw. With ``with_logprobs`` each draw
    carries its raw logprob.
    """

    position: int
    count: int = 1
    with_logprobs: bool = False
    mid_rejection: bool = False
    """True: a rejection is under way, and leaving now biases the answer (label it heuristic).
    False: nothing about this position is decided; the target may as well go on by itself."""


@dataclass(frozen=True, slots=True)
class TailDraw:
    """One token after ``drafted[:position]`` at temperature 1, nothing cut, none of ``banned``.

    ``logit_bias`` of -100 on the banned ids does it. An answer that is banned all the same is
    thrown away and asked for again, which makes it a draw from the tail whether or not the server
    heeds the bias, and however firmly.
    """

    position: int
    banned: tuple[int, ...]
    with_logprobs: bool = False
    mid_rejection: bool = True


@dataclass(frozen=True, slots=True)
class Drawn:
    """One token that the target drew.

    ``logprob`` is raw: of the whole distribution at temperature 1, before any bias, as prompt
    scoring would show it at that place.
    """

    token: int
    logprob: float | None = None


Request: TypeAlias = Draw | TailDraw
Asking: TypeAlias = Generator[Request, Sequence[Drawn], int | None]
"""Judges one position. Returns the token to commit; ``None`` where it can't be judged."""
Judging: TypeAlias = Generator[Request, Sequence[Drawn], Outcome]
"""Judges a draft. At a request everything before its ``position`` has been accepted."""


def step(judging: Judging, answer: Sequence[Drawn] | None = None) -> Request | Outcome:
    """Start ``judging`` (no answer yet) or send it the draws it asked for.

    Returns the next request, or the outcome when it is done. Raises ``ValueError`` where the
    answer is none: no draws, or no logprob where one was needed.
    """
    try:
        return next(judging) if answer is None else judging.send(answer)
    except StopIteration as end:
        outcome: Outcome = end.value
        return outcome


def first(answer: Sequence[Drawn]) -> Drawn:
    """The first draw; ``ValueError`` for none."""
    if not answer:
        raise ValueError("the target was asked for a token and gave none")
    return answer[0]
