"""Does a view agree with what the target itself generated at temperature 0? Pure.

Knows the three kinds of evidence (alternatives, the drafted token's value, the server's own draws)
and compares what there is. Deliberately knows no dialect by name, and not how either side was
obtained: calibration asks for both.
"""

from __future__ import annotations

from collections.abc import Sequence

from specroute.target.view import BadEvidence, Position, Sample, View

TOLERANCE = 0.2
"""Nats. Prefill and decode kernels differ by a few hundredths; a shift by one, by whole nats."""


def check(
    view: View,
    tokens: Sequence[int | str],
    logprobs: Sequence[float],
    *,
    processed: bool,
    tolerance: float = TOLERANCE,
) -> None:
    """Hold the scored ``tokens[:-1]`` and what was generated behind them against the generation.

    ``logprobs``: those of the generated tokens; ``processed``: after temperature and truncation, so
    that the values can't be compared. Raises :class:`BadEvidence` with what differs, and where a
    view shows too little to be compared at all.
    """
    if len(view.positions) != len(tokens) - 1:
        raise BadEvidence(
            f"{len(tokens) - 1} generated tokens came back as {len(view.positions)} when scored"
        )
    for i, (position, token) in enumerate(zip(view.positions, tokens, strict=False)):
        if position.key != token:
            raise BadEvidence(f"token {i} was generated as {token!r}, scored as {position.key!r}")
        _check_best(i, position, tolerance)
        if not processed:
            _check_value(i, position, logprobs[i], tolerance)
        elif not position.top:
            raise BadEvidence("neither alternatives nor comparable log-probabilities are shown")
    for i, sample in enumerate(view.samples[: len(view.positions)]):
        _check_draw(i, sample, view.positions[i], tolerance)
    if view.bonus and view.bonus[0] != tokens[-1]:
        raise BadEvidence(
            f"after its own tokens the target generated {view.bonus[0]!r}, before it was "
            f"{tokens[-1]!r}"
        )


def _check_best(i: int, position: Position, tolerance: float) -> None:
    if not position.top:
        return
    best = position.top[0][1]
    if position.logprob is None or position.logprob < best - tolerance:
        own = "below all shown" if position.logprob is None else f"{position.logprob:.2f}"
        raise BadEvidence(
            f"token {i}, the target's own greedy choice, is scored {own}, the most probable one "
            f"there {best:.2f}"
        )


def _check_value(i: int, position: Position, generated: float, tolerance: float) -> None:
    if position.logprob is None:
        raise BadEvidence(f"token {i} has no log-probability when scored")
    if abs(position.logprob - generated) > tolerance:
        raise BadEvidence(
            f"token {i} was generated at log-probability {generated:.2f} and is scored "
            f"{position.logprob:.2f}"
        )


def _check_draw(i: int, sample: Sample, position: Position, tolerance: float) -> None:
    """A draw at temperature 0 is the token again, or one that is as probable."""
    drawn = sample.tokens[0] if sample.tokens else None
    if drawn == position.key:
        return
    shown = dict(position.top)
    if drawn is None or shown.get(drawn, -1e9) < position.top[0][1] - tolerance:
        raise BadEvidence(
            f"in the place of token {i}, {position.key!r}, the target drew {drawn!r} when asked"
        )
