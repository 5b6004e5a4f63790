"""Breaker, cooling, faults and itinerary as pure values; health over them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from specroute.config import FALLBACK_ON, ProviderConfig, Timeouts
from specroute.errors import (
    BadAnswer,
    BudgetExceeded,
    ConnectFailed,
    DeadlineExceeded,
    ErrorInBody,
    LimitReached,
    ProviderError,
    StatusError,
    StreamTruncated,
)
from specroute.health import Health
from specroute.http import faults
from specroute.http.breaker import Breaker, State
from specroute.http.cooling import cooling, until
from specroute.http.deadline import Deadline
from specroute.http.faults import Fault
from specroute.http.gate import Departure
from specroute.itinerary import Itinerary, substitute
from specroute.types import TargetRef

NOW = 1_800_000_000.0
A, B, C = (TargetRef(name, "m") for name in "abc")


def failing(breaker: Breaker, times: int, now: float = 0.0) -> None:
    for _ in range(times):
        breaker.failed(now)


def test_a_breaker_opens_after_failures_in_a_row() -> None:
    """One success in between starts the count anew."""
    breaker = Breaker(failures=3, open_s=(10, 40))
    failing(breaker, 2)
    breaker.succeeded()
    failing(breaker, 2)
    assert breaker.state is State.CLOSED
    breaker.failed(5.0)
    assert (breaker.state, breaker.due, breaker.allows(14.9)) == (State.OPEN, 15.0, False)


def test_one_call_probes() -> None:
    """The first after the time is up; others go elsewhere until it is known."""
    breaker = Breaker(failures=1, open_s=(10, 40))
    breaker.failed(0.0)
    assert not breaker.enter(9.0)
    assert breaker.allows(10.0)
    assert breaker.enter(10.0)
    assert breaker.state is State.HALF_OPEN
    assert not breaker.allows(10.0)
    assert not breaker.enter(10.0)
    breaker.succeeded()
    assert breaker.allows(10.0)


def test_failed_probes_double_the_time_up_to_the_longest() -> None:
    """And a success makes it short again."""
    breaker = Breaker(failures=1, open_s=(10, 40))
    now, spans = 0.0, []
    breaker.failed(now)
    for _ in range(4):
        spans.append(breaker.due - now)
        now = breaker.due
        assert breaker.enter(now)
        breaker.failed(now)
    assert spans == [10, 20, 40, 40]
    breaker.succeeded()
    breaker.failed(now)
    assert breaker.due == now + 10


def test_a_probe_that_says_nothing_leaves_its_turn_to_the_next() -> None:
    """Its caller went away."""
    breaker = Breaker(failures=1)
    breaker.failed(0.0)
    assert breaker.enter(10.0)
    breaker.released(11.0)
    assert breaker.enter(11.0)


def test_a_probe_that_begins_to_answer_lets_calls_leave_on_probation() -> None:
    """The next failure opens it at once."""
    breaker = Breaker(failures=5)
    failing(breaker, 5)
    breaker.enter(10.0)
    breaker.answered()
    assert breaker.allows(10.0)
    breaker.failed(11.0)
    assert breaker.state is State.OPEN


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1s", 1),
        ("6m0s", 360),
        ("17ms", 0.017),
        ("1h2m3.5s", 3723.5),
        ("12", 12),
        ("0.25", 0.25),
        ("2027-01-15T08:01:00Z", 60),
        ("2027-01-15T09:01:00+01:00", 60),
        (str(int(NOW + 30)), 30),
        (str(int((NOW + 30) * 1000)), 30),
        ("soon", None),
        ("1s later", None),
        ("", None),
        (None, None),
        ("nan", None),
        ("inf", None),
    ],
)
def test_resets_are_read_in_every_form(value: str | None, seconds: float | None) -> None:
    """Durations, plain seconds, dates and both epochs."""
    found = until(value, NOW)
    assert found == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (429, {"retry-after": "7"}, (7, "retry-after", True)),
        (503, {"retry-after-ms": "250"}, (0.25, "retry-after", True)),
        (429, {"retry-after": "Fri, 15 Jan 2027 08:00:20 GMT"}, (20, "retry-after", True)),
        (200, {"retry-after": "7"}, None),
        (
            200,
            {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m3s"},
            (63, "x-ratelimit-reset-requests", False),
        ),
        (
            429,
            {
                "x-ratelimit-remaining-requests": "5",
                "x-ratelimit-reset-requests": "9m",
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-tokens": "2s",
            },
            (2, "x-ratelimit-reset-tokens", False),
        ),
        (
            200,
            {
                "anthropic-ratelimit-input-tokens-remaining": "0",
                "anthropic-ratelimit-input-tokens-reset": "2027-01-15T08:00:05Z",
            },
            (5, "anthropic-ratelimit-input-tokens-reset", False),
        ),
        (429, {}, (1, "429", False)),
        (429, {"retry-after": "soon"}, (1, "429", False)),
        (429, {"retry-after": "-3"}, (1, "429", False)),
        (500, {}, None),
        (200, {"x-ratelimit-remaining-requests": "0"}, None),
    ],
)
def test_what_headers_ask_for(
    status: int, headers: dict[str, str], expected: tuple[float, str, bool] | None
) -> None:
    """How long, by which word, and whether calling earlier is in vain."""
    found = cooling(status, headers, NOW)
    shown = None if found is None else (pytest.approx(found.seconds), found.said, found.asked)
    assert shown == expected


def test_wordless_429s_cool_longer_each_time() -> None:
    """Up to half a minute."""
    waits = [found.seconds for n in range(1, 8) if (found := cooling(429, {}, NOW, n))]
    assert waits == [1, 2, 4, 8, 16, 30, 30]


def deadline(which: str) -> DeadlineExceeded:
    return DeadlineExceeded("", provider="p", which=which, seconds=1)


def body(error: Any) -> bytes:
    return json.dumps({"error": error}).encode()


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (StatusError("", provider="p", status=429, headers={}, body=b""), Fault.RATE),
        (StatusError("", provider="p", status=529, headers={}, body=b""), Fault.SERVER),
        (StatusError("", provider="p", status=408, headers={}, body=b""), Fault.SERVER),
        (StatusError("", provider="p", status=400, headers={}, body=b""), None),
        (StatusError("", provider="p", status=422, headers={}, body=b""), None),
        (StatusError("", provider="p", status=401, headers={}, body=b""), Fault.REFUSED),
        (
            StatusError(
                "", provider="p", status=429, headers={}, body=body({"code": "insufficient_quota"})
            ),
            Fault.REFUSED,
        ),
        (
            StatusError("", provider="p", status=429, headers={}, body=body("insufficient_quota?")),
            Fault.RATE,
        ),
        (ConnectFailed("", provider="p"), Fault.CONNECT),
        (deadline("connect"), Fault.CONNECT),
        (deadline("first_token"), Fault.FIRST_TOKEN),
        (deadline("stall"), Fault.STALL),
        (deadline("total"), None),
        (StreamTruncated("", provider="p"), Fault.TRUNCATED),
        (BadAnswer("", provider="p"), Fault.SERVER),
        (ErrorInBody("", provider="p", body="no"), Fault.SERVER),
        (ErrorInBody("", provider="p", body={"message": "x"}), Fault.SERVER),
        (ErrorInBody("", provider="p", body={"code": 429}), Fault.RATE),
        (ErrorInBody("", provider="p", body={"code": "503"}), Fault.SERVER),
        (ErrorInBody("", provider="p", body={"status": 400}), None),
        (ErrorInBody("", provider="p", body={"type": "insufficient_quota"}), Fault.REFUSED),
        (ErrorInBody("", provider="p", body={"type": "rate_limit_error"}), Fault.RATE),
        (ErrorInBody("", provider="p", body={"type": "authentication_error"}), Fault.REFUSED),
        (ErrorInBody("", provider="p", body={"type": "invalid_request_error"}), None),
        (LimitReached("", provider="p", limit="rpm"), Fault.RATE),
        (BudgetExceeded("", provider="p", limit="budgets"), None),
        (ProviderError("", provider="p"), None),
        (ValueError(), None),
    ],
)
def test_faults_of_errors(error: BaseException, fault: Fault | None) -> None:
    """What another target may make good; the request's own faults are none."""
    assert faults.of_error(error) is fault


def test_the_configs_words_are_the_faults() -> None:
    """All but a refusal, which always moves on."""
    assert set(FALLBACK_ON) == {fault.value for fault in Fault} - {"refused"}


def asked(targets: list[TargetRef], retries: int = 0, on: Any = FALLBACK_ON) -> Itinerary:
    itinerary = Itinerary(targets, on, retries)
    itinerary.go(targets[0])
    return itinerary


@pytest.mark.parametrize(
    ("retries", "on", "fault", "resuming", "expected"),
    [
        (0, FALLBACK_ON, Fault.SERVER, False, [B, C]),
        (1, FALLBACK_ON, Fault.SERVER, False, [B, C, A]),
        (1, FALLBACK_ON, Fault.SERVER, True, [A, B, C]),
        (0, FALLBACK_ON, Fault.STALL, True, [B, C]),
        (1, FALLBACK_ON, Fault.STALL, True, [A, B, C]),
        (1, FALLBACK_ON, Fault.STALL, False, [B, C]),
        (1, FALLBACK_ON, Fault.REFUSED, False, [B, C]),
        (1, FALLBACK_ON, Fault.REFUSED, True, [B, C]),
        (1, ("429",), Fault.SERVER, False, [A]),
        (0, ("429",), Fault.SERVER, False, []),
        (1, ("429",), Fault.REFUSED, False, [B, C]),
        (1, (), Fault.REFUSED, False, []),
        (1, FALLBACK_ON, None, False, [A]),
        (0, FALLBACK_ON, None, False, []),
    ],
)
def test_who_may_be_asked_next(
    retries: int, on: Any, fault: Fault | None, resuming: bool, expected: list[TargetRef]
) -> None:
    """Others first, unless an answer is taken up; the same one only for a retry."""
    assert asked([A, B, C], retries, on).options(fault, resuming=resuming) == expected


def test_retries_are_counted_over_all_targets() -> None:
    """A target's first call is free."""
    itinerary = asked([A, B], retries=1)
    itinerary.options(Fault.SERVER)
    itinerary.go(B)
    assert itinerary.options(Fault.SERVER) == [A, B]
    itinerary.go(A)
    assert itinerary.options(Fault.SERVER) == []


def test_what_a_substitute_is_worth() -> None:
    """Nothing is promised of another model; little of the same one elsewhere."""
    assert substitute(A, A) is None
    assert substitute(A, B) is not None
    found = [substitute(A, other) for other in (B, TargetRef("a", "other"))]
    assert [each[0].value for each in found if each] == ["bounded", "heuristic"]


class Told:
    """A health with clocks that stand still, and calls that end as told."""

    def __init__(self) -> None:
        self.now = 0.0
        self.health = Health(lambda: self.now, lambda: NOW + self.now)
        self.provider = ProviderConfig(
            "lab", "generic", "http://h/v1", timeouts=Timeouts(first_token=2)
        )
        self.deployment = self.health.of(self.provider, "m")

    async def call(
        self,
        status: int = 0,
        headers: Any = None,
        error: BaseException | None = None,
        purpose: str = "plain",
    ) -> None:
        departure = Departure(self.provider, "m", purpose, None, Deadline(Timeouts()))
        permit = await self.health.enter(departure)
        if status:
            permit.arrived(status, headers or {})
        permit.settle(None, error)


@pytest.mark.parametrize(
    ("how", "opens"),
    [
        ({"status": 500}, True),
        ({"error": ConnectFailed("", provider="lab")}, True),
        ({"status": 200, "error": StreamTruncated("", provider="lab")}, True),
        ({"status": 200, "error": BadAnswer("", provider="lab")}, True),
        ({"status": 429}, False),
        ({"status": 400}, False),
        ({"status": 200, "error": asyncio.CancelledError()}, False),
        ({"error": DeadlineExceeded("", provider="", which="first_token", seconds=2)}, True),
        ({"error": DeadlineExceeded("", provider="", which="first_token", seconds=0.1)}, False),
        ({"status": 500, "purpose": "score"}, False),
        ({"error": ConnectFailed("", provider="lab"), "purpose": "score"}, True),
    ],
)
async def test_what_counts_against_a_deployment(how: dict[str, Any], opens: bool) -> None:
    """Its own faults; not a caller's haste, its requests or a scoring call that fails alone."""
    told = Told()
    for _ in range(5):
        await told.call(**how)
    assert (told.deployment.breaker.state is State.OPEN) is opens


async def test_a_refused_key_opens_at_once_and_a_probe_closes() -> None:
    """Every further call would be refused, too; a success of a later call ends it."""
    told = Told()
    await told.call(status=401)
    assert not told.deployment.ready(told.now)
    told.now = 11
    assert told.deployment.ready(told.now)
    await told.call(status=200)
    assert told.deployment.breaker.state is State.CLOSED


async def test_a_probe_that_is_cancelled_does_not_hold_the_place() -> None:
    """The next call may probe."""
    told = Told()
    await told.call(status=401)
    told.now = 11
    await told.call(error=asyncio.CancelledError())
    assert told.deployment.ready(told.now)


async def test_cooling_ends_by_itself() -> None:
    """And what was only hinted at never closes a deployment."""
    told = Told()
    await told.call(status=429, headers={"retry-after": "5"})
    assert (told.deployment.ready(4.9), told.deployment.wait(1.0)) == (False, 4.0)
    assert "cools for 4.0 s (retry-after)" in told.deployment.why(1.0)
    assert told.deployment.ready(5.0)
    told.now = 10
    hint = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "9s"}
    await told.call(status=200, headers=hint)
    assert (told.deployment.ready(18.0), told.deployment.wait(18.0)) == (False, 0.0)
