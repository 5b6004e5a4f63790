"""The parts of ``prefix``: what follows a draft, where a lane must start, and lanes as they go."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from specroute.context import Committed
from specroute.draft.base import Proposal
from specroute.method.drafted import Drafted
from specroute.method.fleet import MARGIN, Fleet, Tempo
from specroute.reference.running import ReferenceServer
from tests.engine.answers import EchoDrafter, ask
from tests.engine.test_exits import quiet
from tests.engine.world import World, speculating

pytestmark = pytest.mark.alone

OLD = " ".join(f"the {a} {b} of {a} and {b}" for a in ("brown", "lazy", "quick", "over")
               for b in ("fox", "dog", "rests", "jumps"))  # fmt: skip
NEW = OLD.replace("lazy dog of", "quick six of", 1)
CLOSED = {"id_prompts": False, "completions": False, "score": [], "chat_max_logprobs": 0,
          "template": "apply-template"}  # fmt: skip
DISABLED = ["completions", "logprobs", "tokenize", "apply_template"]


def by_text(text: str, *, loose: bool = False, ended: bool = False) -> Drafted:
    draft = Drafted(0, Committed(), by_ids=False, loose=loose)
    draft.grow(Proposal(text, ended=ended))
    return draft


def test_a_draft_is_followed_until_the_answer_leaves_it() -> None:
    """By text, in whatever pieces; what comes behind its end is not judged before it has grown."""
    draft = by_text("one two")
    assert draft.follow("on")
    assert draft.follow("e two th")
    assert draft.place == len("one two")
    draft.grow(Proposal(" three four"))
    assert draft.catch_up("one two th")
    assert draft.place == len("one two th")
    assert not draft.follow("ought")


def test_a_draft_by_ids_is_followed_token_by_token() -> None:
    """An end token is no place for a lane: it isn't part of it, and nothing comes behind it."""
    draft = Drafted(5, Committed("", (9,) * 5), by_ids=True)
    assert draft.grow(Proposal("ab", (1, 2)))
    assert draft.follow_id(1)
    assert draft.grow(Proposal("c", (3, 0), ended=True))
    assert draft.begun(1).ids == (9,) * 5 + (1,)
    assert [draft.follow_id(token) for token in (2, 3)] == [True, True]
    assert draft.used_up
    assert not draft.follow_id(0)


@pytest.mark.parametrize(
    ("said", "follows"),
    [
        ("The Quick, brown", True),
        ("the quick brown fox.", True),
        ("the quickest", False),
        ("the quick red ", False),
    ],
)
def test_loose_words_are_alike_but_for_case_and_end_punctuation(said: str, follows: bool) -> None:
    """Article 2's comparison, word by word."""
    draft = by_text("the quick brown fox jumps", loose=True, ended=True)
    parts = [said[i : i + 3] for i in range(0, len(said), 3)]
    assert all(draft.follow(part) for part in parts) == follows


def test_a_loose_draft_is_at_a_words_end_when_a_space_follows() -> None:
    """There a lane's start is reached."""
    draft = by_text("the quick brown fox jumps", loose=True)
    assert draft.follow("The quick.")
    draft.settle(" brown")
    assert draft.place == len("the quick")


def test_lanes_by_text_begin_where_a_token_boundary_is_sure() -> None:
    """Before a space between words, at or behind the wanted place; also when the draft grows."""
    draft = by_text("one two thr")
    assert [draft.cut_from(i) for i in (0, 3, 4, 8)] == [3, 3, 7, None]
    draft.grow(Proposal("ee four."))
    assert draft.cut_from(8) == len("one two three")


class Still:
    """A lane of a fleet, as far as times and places go."""

    broken = False
    waiting = 0

    def __init__(self, start: int, started_at: float, ready_at: float | None = None) -> None:
        self.start, self.started_at, self.ready_at = start, started_at, ready_at


def test_a_lane_starts_where_the_leading_stream_will_be_when_it_is_ready() -> None:
    """Not where it is now; further lanes follow at their spacing, and where lanes will take over,
    beyond what they will have written."""
    lead: Any = Still(0, 0.0, 0.3)
    fleet = Fleet(8, 4, Tempo(0.3, 0.02))
    first = fleet.next_start(lead, 10, 1.0, 1.0)
    assert first == pytest.approx(10 + (MARGIN * 0.3 + 0.02) / 0.02)
    lane: Any = Still(30, 1.0)
    fleet.lanes.append(lane)
    assert fleet.next_start(lead, 10, 1.0, 1.0) == 34
    # Half a second later it has been reached and has gone on by itself.
    assert fleet.next_start(lead, 30, 1.5, 1.0) == pytest.approx(30 + (MARGIN * 0.3 + 0.02) / 0.02)


def test_before_anything_was_measured_lanes_are_spaced_from_the_start() -> None:
    """They begin together with the plain stream."""
    lead: Any = Still(0, 0.0)
    assert Fleet(3, 4, Tempo()).next_start(lead, 0, 0.0, 4.0) == 16


async def test_an_ngram_draft_joins_when_the_answer_begins_to_repeat_the_prompt() -> None:
    """Nothing to look up at the start; then lanes start mid-stream, take over and are refilled.
    What they cost is booked, prompts that no server counted included."""
    spec = {"name": "chain", "vocabulary": [*dict.fromkeys(["yes:", *(f" {word}" for word in OLD.split())])],
            "answers": [{"text": f"yes: {NEW}"}]}  # fmt: skip
    prompt = f"say this again: {OLD}"
    policy = {"preset": "fixed", "method": "prefix", "num_speculative_tokens": 4, "lanes": 4}
    with ReferenceServer(spec, pace="ttft=30ms,tpot=10ms", disable=DISABLED) as server:
        async with speculating(
            World(spec),
            server,
            policy=policy,
            provider={"capabilities": CLOSED, "prices": {"input": 1.0, "output": 4.0}},
        ) as client:
            del client.drafter  # type: ignore[attr-defined]
            router = client.router
            from specroute.speculation.speculator import Speculator

            router.speculation = Speculator(router.config, router.http, router.supervisor)
            got = [await ask(client, prompt=prompt) for _ in range(2)]
            await quiet(server)
    assert {each.text for each in got} == {f"yes: {NEW}"}
    reports = [each.report for each in got if each.report is not None]
    for shown in reports:
        lanes = [a for a in shown.attempts if a.purpose == "lane"]
        assert len(lanes) > 4
        assert shown.cost_usd is not None
        assert all(a.usage.prompt_tokens for a in lanes)
    # A lane took over from the plain stream, which was ended for it.
    assert {a.outcome for r in reports for a in r.attempts if a.purpose == "plain"} == {"cancelled"}


async def test_a_loose_match_is_heuristic_and_only_on_request() -> None:
    """The draft differs in case: it is followed, and the label says so. A policy that
    doesn't allow the label is refused."""
    text = "One two three four one two six the quick brown fox jumps over the lazy dog and rests"
    words = [" " + w for w in text.split()[1:]]
    spec = {"name": "chain", "vocabulary": [*dict.fromkeys(["One", "ONE", *words, *map(str.upper, words)])],
            "answers": [{"text": text}]}  # fmt: skip
    policy = {"preset": "fixed", "method": "prefix", "num_speculative_tokens": 4,
              "match": "loose", "exactness": "heuristic"}  # fmt: skip
    drafter: Any = Shouting(text)
    with ReferenceServer(spec, pace="tpot=10ms", disable=DISABLED) as server:
        async with speculating(
            World(spec), server, policy=policy, drafter=drafter, provider={"capabilities": CLOSED}
        ) as client:
            got = await ask(client)
            with pytest.raises(Exception, match="match = 'loose'"):
                await ask(
                    client, extra_body={"specroute": {"policy": {**policy, "exactness": "exact"}}}
                )
    assert got.report is not None
    assert got.report.exactness == "heuristic"
    assert got.report.accepted > 4
    assert got.text.casefold() == text.casefold()


class Shouting:
    """A drafter that knows the words, but not how they are written."""

    name, vocabulary = "table", None

    def __init__(self, text: str) -> None:
        self.words = text.upper().split()

    async def load(self) -> None:
        pass

    async def open(self, prompt: Any, target_vocabulary: Any) -> Shouting:
        return self

    async def propose(self, committed: Committed, k: int, temperature: float = 0) -> Proposal:
        at = len(committed.text.split())
        words = self.words[at : at + k]
        space = " " if at and words else ""
        return Proposal(space + " ".join(words), ended=at + k >= len(self.words))

    async def aclose(self) -> None:
        pass


class Slow(EchoDrafter):
    """A model that takes 20 ms a proposal, whatever its length, and says so."""

    async def open(self, prompt: Any, target_vocabulary: Any) -> Any:
        session = await super().open(prompt, target_vocabulary)
        propose = session.propose

        async def slowly(committed: Committed, k: int, temperature: float = 0.0) -> Proposal:
            await asyncio.sleep(0.02)
            return replace(await propose(committed, k, temperature), seconds=0.02)

        session.propose = slowly  # type: ignore[method-assign]
        return session


async def test_lanes_start_as_a_slow_draft_grows() -> None:
    """One lane's tokens at a time, each after the one before; the first lanes don't wait for the
    last."""
    spec = {"name": "chain", "vocabulary": ["the", *dict.fromkeys(f" {w}" for w in OLD.split())],
            "answers": [{"text": OLD}]}  # fmt: skip
    policy = {"preset": "fixed", "method": "prefix", "num_speculative_tokens": 3, "lanes": 4}
    drafter = Slow(spec)
    with ReferenceServer(spec, pace="tpot=10ms,ttft=20ms") as server:
        async with speculating(World(spec), server, policy=policy, drafter=drafter) as client:
            got = await ask(client, max_tokens=60)
            await quiet(server)
    assert OLD.startswith(got.text)
    assert got.report is not None
    assert got.report.exactness == "exact-greedy"
    calls = [k for session in drafter.sessions for k in session.calls]
    assert len(calls) > 5
    assert max(calls) == 3
    assert sum(a.purpose == "lane" for a in got.report.attempts) > 4
    assert got.report.rounds == 1  # all of it one draft, followed to the end
