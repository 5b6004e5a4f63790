"""What behaviour has shown of one target; shared by all requests of a client.

Knows which dialects have proven themselves and which have failed, and how long to wait after a call
that failed for reasons of its own. Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from specroute.target.dialects import Dialect, Form
from specroute.vocabulary import Vocabulary

FIRST_REST_S = 5.0
MOST_REST_S = 300.0
"""The shortest and the longest wait after a scoring call that failed."""

Trusted = tuple[Dialect, Form]


def says_nothing(status: int) -> bool:
    """Whether an error status says nothing of what the server can do."""
    return status in (401, 403, 408, 409, 429) or status >= 500


@dataclass(slots=True)
class Learned:
    """Empty until :mod:`specroute.target.calibration` has run."""

    calibrated: bool = False
    dialect: Trusted | None = None
    """The dialect that shows log-probabilities, and the form its context takes."""
    sampler: Trusted | None = None
    """The dialect that draws at every position (``fanout``), where the target speaks it."""
    joins: set[str] = field(default_factory=set)
    """Dialects in which rounds of several requests have been seen to be answered in one."""
    refused: dict[str, str] = field(default_factory=dict)
    """Dialect → why it is not used."""
    reason: str = ""
    """Why there is nothing to score with, or why not now."""
    draw_logprobs: bool = False
    """A generated token's log-probability is raw: it can be held against scored ones."""
    no_draws: str = ""
    """Why it is not asked for draws in the middle of judging: an answer to that was none."""
    prediction_refused: str = ""
    """What the target said when it refused a prediction."""
    predictions_refused: int = 0
    """Requests with a prediction in a row that were refused for a reason that doesn't name it."""
    schema_refused: bool = False
    """It answered a ``response_format`` with an error."""
    vocabulary: Vocabulary | None = None
    """A vocabulary whose ids were seen to be the server's."""
    max_context: int | None = None
    """Longest prompt + answer in tokens, as the server states it."""
    not_before: float = 0.0
    """When scoring (or calibrating) may be tried again after a call failed."""
    failures: int = 0
    """Such failures in a row."""

    @property
    def scoring(self) -> str:
        """``unknown`` (to be calibrated), ``trusted`` or ``refused``."""
        if not self.calibrated:
            return "unknown"
        return "trusted" if self.dialect or self.sampler else "refused"

    def trusts(self, using: Trusted) -> bool:
        """Whether that dialect, in that form, is what is used now."""
        return using in (self.dialect, self.sampler)

    def refuse(self, reason: str, dialect: str | None = None) -> None:
        """Evidence failed: that dialect (``None``: scoring as a whole) is not used again.

        With a dialect lost, the target is calibrated anew, for what is left.
        """
        self.reason = reason
        if dialect is not None:
            self.refused[dialect] = reason
            self.calibrated = False
        else:
            self.calibrated = True
        self.dialect = self.sampler = None

    def rest(self, now: float, reason: str) -> None:
        """A call failed in a way that says nothing of the evidence: wait, longer each time."""
        self.reason = reason
        self.not_before = now + min(FIRST_REST_S * 2 ** min(self.failures, 30), MOST_REST_S)
        self.failures += 1

    def resting(self, now: float) -> bool:
        """Whether it is too early to try again."""
        return now < self.not_before
