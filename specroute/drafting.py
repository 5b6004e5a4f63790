"""One request's drafts: who is asked for them, for how long, and what of them can be judged.

Knows drafters and their patience; knows no scoring and no rounds (``session`` does).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from specroute.context import Committed
from specroute.continuing import Continuing
from specroute.draft.backoff import Backoff
from specroute.draft.base import Distribution, Drafter, DraftSession, Proposal
from specroute.draft.whole import some as some_draft
from specroute.draft.whole import whole as whole_draft
from specroute.errors import DraftError
from specroute.http.deadline import Deadline
from specroute.meter import Meter
from specroute.policy.base import Plan
from specroute.vocabulary import Vocabulary

PATIENCE = 0.5
"""The share of the time left that drafting or scoring may take before a plain call takes over,"""
MOST_PATIENCE_S = 20.0
"""and the most seconds: far above any round that could still pay."""
REST_S = (10.0, 300.0)
"""The shortest and the longest time for which a drafter that came too late or broke isn't asked."""


@dataclass(slots=True)
class Tally:
    """What this request's rounds came to; the report's figures."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    draft_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class Drafting(Continuing):
    """An answer that drafts can be asked for."""

    drafter: Drafter
    plan: Plan
    others: tuple[Drafter, ...] = ()
    """Further drafters, asked in turn where ``drafter`` has nothing to propose."""
    draft_targets: Mapping[str, str] = field(default_factory=dict)
    """``provider:model`` of remote drafts, by drafter."""
    draft_temperatures: Mapping[str, float | None] = field(default_factory=dict)
    """The drafts' own temperatures, by drafter."""
    resting: dict[str, Backoff] = field(default_factory=dict)
    """Drafters that came too late or broke, by name; shared by all requests of a client."""
    drafted: Callable[[int, str], None] | None = None
    """Told of each draft: after how many characters of what the caller has, and its text."""
    tally: Tally = field(default_factory=Tally)
    _drafting: dict[str, DraftSession] = field(default_factory=dict)
    meter: Meter = field(init=False)
    """What it tells the measurements, and has seen for itself."""
    _sampled_at: float = 0.0
    """The temperature of the last draft; 0: greedy."""

    async def draft(
        self,
        k: int,
        *,
        greedy: bool = False,
        after: Committed | None = None,
        ask: bool = True,
        whole: bool = False,
        told: Callable[[Proposal], None] | None = None,
    ) -> Proposal:
        """Up to K drafted tokens after what is committed, by the first drafter that has any.
        ``whole``: a long draft, which is shown piece by piece as it is made; ``told`` is told of
        what there is of it.

        ``after``: from there instead, what is committed with a draft that has not been judged. Not
        ``ask``: it is only looked whether there is anything; nothing is no evidence then.

        Raises :class:`DraftError`, also for whatever else a drafter raises, for one that takes too
        long, and for a proposal that can't be judged.
        """
        failed: DraftError | None = None
        before = self.committed
        for drafter in (self.drafter, *self.others):
            try:
                proposal = await self._draft_with(drafter, k, greedy, after or before, whole, told)
            except DraftError as error:
                failed = error
                said = str(error)  # Ours name the draft themselves.
                named = said.startswith(f"draft {drafter.name!r}")
                self.notes.append(said if named else f"draft {drafter.name!r} failed: {said}")
                continue
            if proposal:
                # It goes on from here; one that had nothing gets its turn when this has none.
                rest = (d for d in (self.drafter, *self.others) if d is not drafter)
                self.drafter, self.others = drafter, tuple(rest)
                self.show((after or before).text, self._text_of(proposal))
                return proposal
        if failed is not None:
            raise failed
        if ask:
            self.meter.nothing_drafted(self.drafter.name)
        return Proposal("")

    def _text_of(self, proposal: Proposal) -> str:
        vocabulary = self.target.learned.vocabulary
        if proposal.text or vocabulary is None:
            return proposal.text
        return vocabulary.decode(proposal.ids or ())

    def show(self, before: str, draft: str) -> None:
        """Show ``draft`` as what may follow ``before``, the committed text it was made for. What
        is held back for a stop string is the caller's to see only with the rest of it."""
        if self.drafted is None:
            return
        released = len(self.answer.text) - len(self.answer.held)
        text = before + draft
        ends = [at for stop in self.request.stop if (at := text.find(stop)) >= 0]
        at = min(released, len(before))
        self.drafted(at, text[at : min(ends, default=len(text))])

    @property
    def free_drafters(self) -> tuple[Drafter, ...]:
        """Those that may be asked at every token."""
        return tuple(d for d in (self.drafter, *self.others) if getattr(d, "free", False))

    async def look_up(self, k: int) -> Proposal:
        """Up to K tokens after what is committed, by the drafts that cost nothing to ask. Raises
        :class:`DraftError`."""
        for drafter in self.free_drafters:
            if proposal := await self._draft_with(drafter, k, True, self.committed):
                return proposal
        return Proposal("")

    async def _draft_with(
        self,
        drafter: Drafter,
        k: int,
        greedy: bool,
        committed: Committed,
        whole: bool = False,
        told: Callable[[Proposal], None] | None = None,
    ) -> Proposal:
        temperature = 0.0
        if not greedy and not self.request.greedy:
            own = self.plan.draft_temperature
            if own is None:
                own = self.draft_temperatures.get(drafter.name)
            temperature = own if own is not None else self.request.temperature or 1.0
        self._sampled_at = temperature
        limit = self.patience()
        if drafter.name in self.resting:
            self.resting[drafter.name].check()
        vocabulary = self.target.learned.vocabulary
        if vocabulary is None:
            committed = Committed(committed.text)
        try:
            async with asyncio.timeout(None if limit == inf else limit):
                drafting = self._drafting.get(drafter.name)
                if drafting is None:
                    # Ids that nobody here can read would only bring ids that nobody can use.
                    prompt = self.prompt if vocabulary else replace(self.prompt, ids=None)
                    drafting = self._drafting[drafter.name] = await drafter.open(prompt, vocabulary)
                place = self.draft_targets.get(drafter.name, "")
                if whole:

                    def show(made: Proposal) -> None:
                        self.show(committed.text, self._text_of(made))
                        if told is not None:
                            told(made)

                    proposal = await whole_draft(
                        drafting, committed, k, temperature, vocabulary, show, self.book, place
                    )
                else:
                    with self.meter.drafting(drafter.name) as drafted:
                        proposal = await some_draft(
                            drafting, committed, k, temperature, self.book, place
                        )
                        drafted[0] = len(proposal)
        except DraftError:
            raise
        except TimeoutError as error:
            said = f"no draft within {limit:.1f} s"
            if limit < self._fair_patience:
                raise DraftError(said) from error
            raise self._rests(drafter, said) from error
        except Exception as error:
            raise self._rests(drafter, f"{type(error).__name__}: {error}") from error
        self.resting.pop(drafter.name, None)
        self.tally.draft_s += proposal.seconds
        return _judgeable(proposal, k, vocabulary)

    def _rests(self, drafter: Drafter, said: str) -> DraftError:
        """The drafter is left alone for a while, by other requests as well."""
        backoff = self.resting.setdefault(drafter.name, Backoff(self.deadline.clock, *REST_S))
        return backoff.failed(said)

    @property
    def _fair_patience(self) -> float:
        """Less than this tells of a request in a hurry, not of a drafter that is slow."""
        timeouts = self.deadline.timeouts
        return min(timeouts.first_token, timeouts.stall) * PATIENCE / 2

    def patience(self) -> float:
        """Seconds that a draft may take now, so that a plain call could still answer in time."""
        deadline = self.optional_deadline
        return min(deadline.remaining("first_token"), deadline.timeouts.stall)

    @property
    def optional_deadline(self) -> Deadline:
        """The deadline of what a plain call can replace."""
        return (self.deadline.resumed() if self.answer.tokens else self.deadline).part(
            PATIENCE, MOST_PATIENCE_S
        )


def _judgeable(proposal: Proposal, k: int, vocabulary: Vocabulary | None) -> Proposal:
    """The first K tokens of a proposal; :class:`DraftError` for ids that are no tokens of the
    target's and for a q that does not belong to them."""
    ids, q = proposal.ids, proposal.q
    if ids is None:
        return proposal
    if vocabulary is not None and any(not 0 <= token < vocabulary.size for token in ids):
        raise DraftError("a drafted id is outside the target's vocabulary")
    if q is not None and (len(q) != len(ids) or not all(map(_possible, q, ids))):
        raise DraftError("the draft's q gives its own tokens no probability")
    if len(ids) <= k:
        return proposal
    text = proposal.text if vocabulary is None else vocabulary.decode(ids[:k])
    return replace(proposal, text=text, ids=ids[:k], q=q and q[:k], ended=False)


def _possible(q: Distribution | None, token: int) -> bool:
    try:
        return q is not None and q[token] > 0
    except LookupError:
        return False
