"""What a report says of how its plan was chosen: a sentence for each outcome of the choice.

Knows the words; ``adaptive`` knows when. Pure.
"""

from __future__ import annotations

from specroute.candidates import Candidate, Candidates
from specroute.measure.crowd import Crowd
from specroute.measure.together import Room
from specroute.policy.objective import Forecast
from specroute.policy.offer import Offer


def named(candidate: Candidate) -> str:
    """A plan: method, drafter, target."""
    with_ = f" with {candidate.drafter!r}" if candidate.drafter else ""
    at = f" at {candidate.target}" if candidate.target else ""
    return f"{candidate.method}{with_}{at}"


def no_reason(options: Candidates) -> str:
    """No plan is possible: the first obstacle."""
    return next((why for _, why in options.reasons), "")


def at_k(candidate: Candidate, offer: Offer) -> str:
    """A plan and its K."""
    k = f", K = {offer.k}" if offer.k else ""
    return f"{named(candidate)}{k}"


def chosen(candidate: Candidate, offer: Offer, plain: Forecast) -> str:
    """It is expected to win."""
    predicted = amount(offer.forecast)
    return (
        f"{at_k(candidate, offer)} is predicted to take {predicted} against plain's {amount(plain)}"
    )


def tried(candidate: Candidate, offer: Offer, gain: float, plain: Forecast, *, new: bool) -> str:
    """It is a trial; ``new``: for want of knowing its class."""
    known = f"it is predicted at {gain:.2f} times the plain pace, and may be better than that"
    if new:
        known = (
            f"it is predicted at {gain:.2f} times the plain pace, and little is known of its class "
            "yet"
        )
    elif not gain:
        known = "it may be better than plain"
    return f"{at_k(candidate, offer)} is tried: {known}; {expected(plain)}"


def expected(plain: Forecast) -> str:
    """What a plain call is to take."""
    return f"plain is predicted to take {amount(plain)}"


def wins(gain: float) -> str:
    """Plain is asked though a plan would win."""
    return f"others are predicted at {gain:.2f} times its pace"


def loses(candidate: Candidate, gain: float) -> str:
    """It is expected to be slower."""
    return f"{named(candidate)} is predicted to run at {gain:.2f} times the plain pace"


def hopes(candidate: Candidate, gain: float) -> str:
    """It may win, but nobody knows."""
    return (
        f"{named(candidate)} may run at {gain:.2f} times the plain pace, but nothing of it was "
        "judged yet, and trying it could lose more than may be lost"
    )


def lowers(candidate: Candidate, own: float, of_all: float) -> str:
    """It would win, and others would lose more."""
    return (
        f"{named(candidate)} would answer this at {own:.2f} times the plain pace, and all of them "
        f"at {of_all:.2f} times"
    )


def full(candidate: Candidate, gain: float, room: Room) -> str:
    """It would win, but enough others do so."""
    return (
        f"{named(candidate)} is predicted at {gain:.2f} times the plain pace, but {room.others} "
        f"requests do so now, and no more than {room.proven:.0f} at a time have been seen to win"
    )


def all_full(room: Room, plain: Forecast) -> str:
    """Whatever it is, enough others do so."""
    return (
        f"{room.others} requests speculate so now, and no more than {room.proven:.0f} at a time "
        f"have been seen to win; {expected(plain)}"
    )


def kept_waiting(waits_s: float, plain: Forecast) -> str:
    """Rounds would wait longer than a plain answer takes."""
    return (
        f"a scoring request would now take {waits_s:.2g} s longer than it was timed at; "
        f"{expected(plain)}"
    )


def alike(reason: str) -> str:
    """Decided of another request of the same moment and kind."""
    return f"as a request like it that came in the same moment: {reason}"


def beside(crowd: Crowd) -> str:
    """The load that a plan was made at."""
    if crowd.others < 1:
        return ""
    at = f" at {crowd.target}" if crowd.target else ""
    return f"{crowd.others + 1} requests in flight{at}: "


def amount(forecast: Forecast) -> str:
    """Seconds, and dollars where they are known."""
    dollars = "" if forecast.dollars is None else f" and ${forecast.dollars:.2g}"
    return f"{forecast.seconds:.2g} s{dollars}"
