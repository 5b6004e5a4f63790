"""What the top N say about p where a tail stays hidden: an envelope that can be sampled from.

Knows raw logprobs and a temperature T <= 1 without cuts; deliberately no draft and no server.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specroute.acceptance.logprobs import checked
from specroute.acceptance.sampling import Sampling

FAR_ABOVE = 0.5
"""Nats by which generating and scoring one token may differ on a server (they use other kernels);
a tail token this much likelier than the least visible one is not raw evidence."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """One proposal of rule 6: a visible id, or the tail.

    With raw probabilities p, the N visible ids, tail mass t and least visible probability p_(N),
    E = Σ_N p_i^(1/T) + t·p_(N)^(1/T-1) bounds Z = Σ p_v^(1/T), since no hidden token is likelier
    than p_(N). ``visible[i]`` is p_i^(1/T)/E, ``hidden`` the rest. At T = 1 E = Z = 1 and the
    envelope is p itself.
    """

    visible: Mapping[int, float]
    hidden: float
    power: float = 0.0
    """1/T - 1: 0 at T = 1."""
    edge: float = 0.0
    """log p_(N)."""
    log_total: float = 0.0
    """log E."""

    @property
    def ids(self) -> tuple[int, ...]:
        """The visible ids, most likely first."""
        return tuple(self.visible)

    def share(self, logprob: float) -> float:
        """p_v^(1/T)/E of a token with this raw logprob: how often a proposal ends in it."""
        return math.exp(logprob * (1 + self.power) - self.log_total)

    def claimed(self, logprob: float) -> float:
        """p_v·p_(N)^(1/T-1)/E of a hidden token: how often a proposal draws it from the tail."""
        return math.exp(logprob + self.edge * self.power - self.log_total)

    def mass(self) -> float:
        """Σ p_i of the visible ids, raw."""
        return math.fsum(
            math.exp((math.log(share) + self.log_total) / (1 + self.power))
            for share in self.visible.values()
            if share > 0
        )

    def kept(self, logprob: float) -> float:
        """(p_v/p_(N))^(1/T-1): the chance that a token drawn from the tail is kept."""
        if logprob > self.edge + FAR_ABOVE:
            raise ValueError(
                f"a token of the tail has logprob {logprob:.3f}, but the least likely visible one "
                f"{self.edge:.3f}: not raw logprobs"
            )
        return min(1.0, math.exp((logprob - self.edge) * self.power))

    @classmethod
    def of(
        cls, top: Sequence[tuple[int, float]], sampling: Sampling, n: int | None = None
    ) -> Envelope | None:
        """The envelope of p from a raw top N; ``None`` at T > 1, at T = 0, or with cuts.

        ``top``, ``n`` and what raises ``ValueError`` are as in
        :func:`~specroute.acceptance.visible`.
        """
        logprobs, tail = checked(top, n)
        if sampling.greedy or sampling.temperature > 1 or sampling.cut:
            return None
        power = 1 / sampling.temperature - 1
        best, edge = logprobs[0][1], logprobs[-1][1]
        weights = {i: math.exp((value - best) * (1 + power)) for i, value in logprobs}
        hidden = tail * math.exp(edge * power - best * (1 + power))
        total = math.fsum(weights.values()) + hidden
        return cls(
            {i: weight / total for i, weight in weights.items()},
            hidden / total,
            power,
            edge,
            math.log(total) + best * (1 + power),
        )


NOTHING_VISIBLE = Envelope({}, 1.0)
"""T = 1 with no top logprobs at all: everything is tail (rule 2)."""
