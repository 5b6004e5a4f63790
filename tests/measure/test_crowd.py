"""What requests cost each other at a target, told from a server that steps them together."""

from __future__ import annotations

import random
import time

import pytest

from specroute.measure import Measurements
from specroute.measure.crowd import Crowding, Pulse
from specroute.measure.drafting import Drafting, Mark
from specroute.measure.kinds import Target

pytestmark = pytest.mark.alone


def served(*, load: float, prefill: float, others: float = 0.0, seconds: float = 60.0) -> Crowding:
    """Streams that come and go at a server whose step takes ``load`` a sequence and 1 / ``prefill``
    a prompt token; ``others``: seconds that somebody else adds to every step."""
    crowd, rng, now = Target().crowd, random.Random(3), 0.0
    running: list[list[int]] = []
    pulses: dict[int, Pulse] = {}
    clock = lambda: now  # noqa: E731
    while now < seconds:
        read = 0
        if rng.random() < 0.35 or not running:
            tokens = rng.randrange(100, 600)
            read += tokens
            crowd.begin(now, tokens)
            running.append([rng.randrange(20, 120), len(pulses)])
            pulses[len(pulses)] = Pulse(crowd, clock)
        now += others + max(0.01, load * len(running)) + read / prefill
        for stream in running:
            stream[0] -= 1
            pulses[stream[1]](1)
        for stream in [each for each in running if not each[0]]:
            running.remove(stream)
            pulses[stream[1]].end()
            crowd.end(now)
    for stream in running:
        pulses[stream[1]].end()
    return crowd


def test_a_sequence_and_a_token_read_are_told_apart() -> None:
    """1 ms a sequence, 0.1 ms a prompt token."""
    found = served(load=0.001, prefill=10_000).frozen()
    assert found.per_sequence.mean == pytest.approx(0.001, rel=0.2)
    assert found.per_token.mean == pytest.approx(1e-4, rel=0.2)


def test_what_others_do_to_the_server_is_not_taken_for_ones_own_doing() -> None:
    """Every step takes 30 ms more, and neither slope changes."""
    found = served(load=0.001, prefill=10_000, others=0.03, seconds=120).frozen()
    assert found.per_sequence.mean == pytest.approx(0.001, rel=0.3)
    assert found.per_token.mean == pytest.approx(1e-4, rel=0.3)


def test_a_server_with_room_is_no_slower_for_one_more() -> None:
    """Steps of 10 ms whoever is there, prompts for nothing."""
    found = served(load=0.0, prefill=1e12).frozen()
    assert found.per_sequence.mean < 2e-5
    assert found.per_token.mean < 2e-6


def test_scoring_requests_show_what_a_stream_would_take_beside_them() -> None:
    """Streams were timed while there were three, in steps of 20 ms. Then all speculate: of 50
    scoring requests each takes one and a half steps of 2.5 ms a request. Nobody streams, and yet it
    is known that a stream's token would take far longer than 20 ms."""
    crowd, now = Target().crowd, 0.0
    pulses = [Pulse(crowd, lambda: now) for _ in range(3)]
    for _ in pulses:
        crowd.begin(now)
    for _ in range(400):
        now += 0.02
        for pulse in pulses:
            pulse(1)
    for pulse in pulses:
        pulse.end()
    for _ in pulses:
        crowd.speculates(now, True)
    for n in range(4, 51):
        crowd.begin(now)
        crowd.speculates(now, True)
        for _ in range(4):
            for _ in range(n):
                crowd.scoring(now, 8)
            now += 1.5 * max(0.02, 0.0025 * n) + 0.01
            for _ in range(n):
                crowd.scored(now)
    for _ in range(50):
        crowd.scoring(now, 8)
    found = crowd.frozen()
    assert found.tpot_s is not None
    assert 0.06 < found.tpot_s < 0.14


def test_a_pace_is_not_stale_while_streams_are_under_way() -> None:
    """Nobody needs to go plain only to time one then."""
    seen = Measurements()
    seen.plain("t", "", ttft_s=0.1, tpot_s=0.04, tokens=50)
    for _ in range(9):
        seen.planned("t", "d", "", tried=True)
    assert seen.snapshot("t", "d", "").idle == 9
    pulse = Pulse(seen.targets["t"].crowd, lambda: 1.0)
    pulse(1)
    assert seen.snapshot("t", "d", "").idle == 0
    pulse.end()
    assert seen.snapshot("t", "d", "").idle == 9


def test_counts_leave_out_the_one_that_asks() -> None:
    """Three requests, of which two make rounds."""
    seen = Measurements()
    for now in (0.0, 0.1, 0.2):
        seen.begin("lab:m", now)
    crowd = seen.targets["lab:m"].crowd
    crowd.speculates(0.3, True)
    crowd.speculates(0.3, True)
    assert (seen.crowd("lab:m", "d").others, seen.crowd("lab:m", "d").speculating) == (2, 2)
    assert seen.crowd("lab:m", "d", speculates=True).speculating == 1
    for _ in range(2):
        seen.end("lab:m", 0.4)
    assert seen.crowd("lab:m", "d").others == 0


def test_others_are_counted_over_all_of_a_requests_time() -> None:
    """Alone for a second, then with two for another."""
    crowd = Target().crowd
    crowd.begin(0.0)
    mark = crowd.mark(0.0)
    crowd.begin(1.0)
    crowd.begin(1.0)
    assert crowd.others_since(mark, 2.0) == pytest.approx(1.0)


def test_drafts_beside_each_other_take_longer() -> None:
    """A step of 2 ms and 0.5 ms a draft."""
    drafting, rng, now = Drafting(), random.Random(2), 0.0
    left: list[tuple[list[int], int, Mark]] = []
    while now < 120:
        if rng.random() < 0.4 or not left:
            k = rng.randrange(4, 20)
            left.append(([k], k, drafting.begin(now)))
        now += 0.002 + 0.0005 * len(left)
        for still, k, mark in left:
            still[0] -= 1
            if not still[0]:
                drafting.end(now, k, mark)
        left = [draft for draft in left if draft[0][0]]
    assert drafting.slope().mean == pytest.approx(0.0005, rel=0.35)


def test_drafts_longer_than_a_window_show_the_same_slope() -> None:
    """A rush: up to 40 drafts of 16 tokens, steps of 4 ms and 0.7 ms a draft, so that each takes
    half a second and few end in a window."""
    drafting, rng, now = Drafting(), random.Random(5), 0.0
    left: list[tuple[list[int], Mark]] = []
    while now < 30:
        if rng.random() < min(0.05 + now / 10, 2.5) and len(left) < 40:
            left.append(([16], drafting.begin(now)))
        now += 0.004 + 0.0007 * len(left)
        for still, mark in left:
            still[0] -= 1
            if not still[0]:
                drafting.end(now, 16, mark)
        left = [draft for draft in left if draft[0][0]]
    assert drafting.slope().mean == pytest.approx(0.0007, rel=0.1)


def test_an_update_takes_less_than_fifty_microseconds() -> None:
    """A token of a stream, a scoring request; windows included."""
    crowd, now = Target().crowd, [0.0]
    crowd.begin(0.0)
    pulse = Pulse(crowd, lambda: now[0])
    best = float("inf")
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(100):
            now[0] += 0.02
            pulse(1)
            crowd.scoring(now[0], 300)
            crowd.scored(now[0])
        best = min(best, (time.perf_counter() - began) / 100)
    assert best < 50e-6
