"""What one request's speculation takes from the others at the same target and the same drafter.

Both step all that is there together, so whatever lengthens a step keeps everybody waiting. The
crowd's throughput Θ = Σ_j E_j / T_j (tokens a second: what a round commits over what it takes) is
what is to be as large as can be, not one request's own E / T. Let a round of mine lengthen by ε
seconds what each other request j is in the middle of; j then loses ε·E_j / T_j tokens, and of Θ I
gain, per second of mine,

    g(K) = (E(K) - ε(K)·Ω) / T(K),      Ω = Σ_{j≠i} E_j / T_j over those at the target,

and plain, which is E = 1, T = TPOT and its own ε, gains g0. Speculate iff g(K) > g0, with the K
that makes g largest. By Dinkelbach's rule for a ratio (Management Science 13, 1967) token k+1 is
drafted iff

    S(k+1) - Ω·Δε > g·ΔT:

its survival, less the tokens that its time at the target and the drafter takes from the others,
exceeds what its own time is worth. Since S only falls, the first token that fails ends the search.
Where rounds are in lockstep and drafting is free, that is DSpark's hardware-aware prefix scheduler
(arXiv 2607.05147): sort all requests' tokens by survival, admit them while Θ = τ·SPS(B) grows; the
last one admitted has S > Θ·Δ(step time), the same threshold for all. Each request can work that
out alone from two slopes that are measured (``measure.crowd``), so nothing is scheduled and nobody
waits: a request that isn't to speculate is a plain call at once. With nobody else there Ω = 0 and
the rule is the one of a single request (``forecast.best_round``).

All of that rests on figures, and figures on the load at which they were taken. So no more than
twice as many requests follow a plan at the same time as have been seen to win by it together
(``measure.together``). Whatever they share, the client's own event loop, a drafter, the target,
serves a round each in T(m) seconds when m are there. Where it serves them in turn, T(m) = max(T(1),
m·c), so that T(2m) <= 2·T(m): a doubling makes those who follow the plan at most twice as late, for
about one round each, and then it is seen; a crowd that is let in at once is m times as late for
whole answers. From A_FEW to n takes log2(n / A_FEW) times about a round. A number at which they
lost is neared by a tenth at a time. This is the slow start and the congestion avoidance of TCP
(Jacobson, SIGCOMM 1988; RFC 5681), with answers in the place of acknowledgements. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from specroute.measure import Snapshot
from specroute.measure.crowd import WAITS, Crowd
from specroute.measure.together import Room

TIMES = 2.0
"""How many times as many requests as were seen to win by a plan together may follow it,"""
STEP = 1.1
"""and how many times as many (one more at least) near a number that was seen to lose."""
A_FEW = 8
"""So many always may: what they can lose isn't worth holding back a small client for."""


@dataclass(frozen=True, slots=True)
class Toll:
    """Tokens that the others lose meanwhile, by what they are taken for."""

    per_round: float = 0.0
    """A scoring request, its context read; without drafted tokens."""
    per_draft: float = 0.0
    """Each token drafted and read."""
    per_token: float = 0.0
    """Each token of a plain stream."""
    per_prompt: float = 0.0
    """A plain call's prompt."""
    per_drafted: float = 0.0
    """Each token drafted, read by no target."""

    def stream(self, tokens: float) -> float:
        """A plain call with an answer of so many tokens."""
        return self.per_prompt + tokens * self.per_token

    def round(self, k: float) -> float:
        """A scoring round of ``k`` drafted tokens."""
        return self.per_round + k * self.per_draft


FREE = Toll()


def toll(figures: Snapshot, tpot_s: float | None, round_s: float, context: float) -> Toll:
    """What the crowd as it is now has to bear. ``tpot_s``, ``round_s``: a plain token's seconds and
    a scoring request's, where the crowd itself hasn't shown them."""
    crowd = figures.crowd
    if crowd.others < 1:
        return FREE
    plain = crowd.tpot_s or tpot_s
    took = crowd.round_s + crowd.waits_s if crowd.round_s else round_s
    if not plain or not took:
        return FREE
    streams, scoring = rates(crowd, plain)
    token = crowd.per_token.mean
    # One more sequence lengthens a stream's every token, and a scoring request that it overlaps.
    per_sequence = crowd.per_sequence.mean
    held = per_sequence * WAITS
    sequence = streams * per_sequence * took / plain + scoring * held
    read = (streams + scoring) * token
    rereads = crowd.rereads
    if rereads is None:  # Where it caches prompts it is taken to cache contexts as well.
        rereads = 1.0 if figures.cached is None else 0.0
    round_read = read * rereads * context
    per_round, per_draft = sequence + round_read, read
    if figures.prompt_per_token:
        per_draft = sequence + round_read
    drafted = 0.0
    if crowd.drafting and crowd.rate:
        drafted = crowd.drafting * crowd.rate * crowd.per_drafted.mean
        per_draft += drafted
    return Toll(
        per_round,
        per_draft,
        streams * per_sequence + scoring * held * plain / took,
        read * context * (1.0 if figures.cached is None else 1.0 - figures.cached.mean),
        drafted,
    )


def rates(crowd: Crowd, tpot_s: float) -> tuple[float, float]:
    """Ω in two parts, tokens a second: of the others' plain streams, and of those that wait for
    scoring requests."""
    speculating = min(crowd.speculating, crowd.others)
    streams = (crowd.others - speculating) / tpot_s
    return streams, speculating * crowd.scoring * (crowd.rate or 1 / tpot_s)


def gain_of_all(tokens: float, plain_j: float, plain_lost: float, j: float, lost: float) -> float:
    """By how many times the crowd is better off with a plan than with plain, for ``tokens`` of an
    answer: (g0·J + lost) of plain over that of the plan, g0 being what plain brings the crowd per
    second of J. With nobody else there it is J over J; 1 is where g(K) = g0."""
    worth = max(tokens - plain_lost, 0.0) / plain_j
    with_it = worth * j + lost
    return (worth * plain_j + plain_lost) / with_it if with_it > 0 else float("inf")


def joins(room: Room) -> bool:
    """Whether one more may follow a plan at the same time as those who do so already."""
    return room.others + 1 <= max(A_FEW, most_together(room))


def most_together(room: Room) -> float:
    """How many may follow a plan at the same time, by what was seen of those who did."""
    near = max(STEP * room.proven, room.proven + 1, room.lost / TIMES)
    return min(TIMES * room.proven, near)
