"""Finished answers show what drafts would have done: from real starts, when idle, within a share."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

from specroute import AsyncSpecRoute, report
from specroute.config import Shadow as Config
from specroute.context import Committed, Prompt
from specroute.draft.base import Drafter, DraftSession, Proposal
from specroute.draft.ngram import NgramDrafter
from specroute.http.supervisor import Supervisor
from specroute.measure import Measurements
from specroute.overheard import Heard
from specroute.reference.running import ReferenceServer
from specroute.shadow import Finished, Shadow
from specroute.shadow_rounds import K, matched, rejected
from specroute.speculation.speculator import Speculator
from specroute.types import Attempt, Usage
from tests.engine.world import World, chain, speculating

WORLD = World(chain(end=0.0))


class Knows:
    """Drafts an answer it was told, by text: right but for the words that are marked."""

    vocabulary = None

    def __init__(self, says: str, name: str = "knows", usage: Usage | None = None) -> None:
        self.says, self.name, self.usage = says, name, usage
        self.asked: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.entered = asyncio.Event()

    async def load(self) -> None: ...

    async def open(self, prompt: Prompt, target_vocabulary: Any) -> DraftSession:
        return self

    async def propose(self, committed: Committed, k: int, temperature: float = 0.0) -> Proposal:
        self.entered.set()
        await self.gate.wait()
        self.asked.append(committed.text)
        rest = self.says[len(committed.text) :]
        if not rest:
            return Proposal("")
        text = " ".join(rest.split(" ")[: k + rest.startswith(" ")])
        return Proposal(text, seconds=0.001 * k, usage=self.usage)

    async def aclose(self) -> None: ...


async def rounds(says: str, said: str) -> list[tuple[int, int]]:
    return (await matched(Knows(says), said, None)).rounds


ANSWER = "one two three four five six seven eight nine ten"


async def test_a_round_starts_where_the_last_one_ended() -> None:
    """After what was accepted and one word of the target's own."""
    drafter = Knows(ANSWER.replace("three", "THREE").replace("seven", "SEVEN"))
    seen = await matched(drafter, ANSWER, None)
    assert seen.rounds == [(2, 3), (3, 4), (3, 3)]
    assert "".join(seen.hits) == "110" + "1110" + "111"


async def test_the_end_of_the_answer_censors() -> None:
    """What held to the end says nothing of a next token."""
    assert await rounds(ANSWER, ANSWER) == [(10, 10)]


async def test_a_long_run_is_cut_at_k() -> None:
    """The token after it is the target's own, as in a round."""
    text = " ".join(f"w{i}" for i in range(K + 10))
    assert await rounds(text, text) == [(K, K), (9, 9)]


async def test_nothing_drafted_is_a_draft_refused() -> None:
    """As in a round; and the target says its token."""
    drafter = NgramDrafter()
    session = await drafter.open(Prompt(None, "quite new"), None)
    seen = await matched(session, "red green blue", None)
    assert seen.rounds == [(0, 1), (0, 1), (0, 1)]


async def test_a_draft_without_ids_is_held_against_the_text() -> None:
    """Also where the target's vocabulary is known; each token of the answer is one round's."""
    words = WORLD.vocabulary
    text = words.decode([0, 1, 2, 3, 0, 1, 2, 3])
    silent = await matched(Knows(""), text, words)
    assert silent.rounds == [(0, 1)] * len(words.encode(text))


async def test_a_long_answer_is_gone_into_anywhere() -> None:
    """What is different in its second half is seen; the first round there isn't counted."""
    right = " ".join(f"w{i}" for i in range(400))
    drafter = Knows(" ".join(f"w{i}" if i < 200 else f"x{i}" for i in range(400)))
    beginning = await matched(drafter, right, None)
    assert all(a == n for a, n in beginning.rounds)
    rng, seen = random.Random(3), set()
    for _ in range(12):
        found = await matched(drafter, right, None, rng=rng)
        seen |= {a == n for a, n in found.rounds}
    assert seen == {True, False}


async def test_a_look_up_is_held_against_what_it_repeats() -> None:
    """The prompt's own words again: the first are new, the rest are drafted."""
    text = "the quick brown fox jumps over the lazy dog while the small cat sleeps"
    session = await NgramDrafter().open(Prompt(None, f"Repeat: {text} ."), None)
    seen = await matched(session, text, None)
    assert sum(a for a, _ in seen.rounds) >= 8


class Draws:
    """Draws from q, whatever was committed; ``q`` by id."""

    def __init__(self, q: Sequence[float]) -> None:
        self.q = q

    async def propose(self, committed: Committed, k: int, temperature: float = 0.0) -> Proposal:
        return Proposal("", (0,), (dict(enumerate(self.q)),))

    async def aclose(self) -> None: ...


@pytest.mark.parametrize(
    ("p", "q"), [((0.7, 0.2, 0.1), (0.3, 0.4, 0.3)), ((0.5, 0.3, 0.2), (0.5, 0.3, 0.2))]
)
async def test_rejection_sampling_is_estimated_without_bias(
    p: Sequence[float], q: Sequence[float]
) -> None:
    """From the target's own tokens and their p: Σ min(p, q), over many answers."""
    rng, words = random.Random(2), WORLD.vocabulary
    accepted = judged = 0
    for _ in range(60):
        said = rng.choices(range(3), p, k=120)
        shown = [(words.decode((x,)), math.log(p[x])) for x in said]
        seen = await rejected(Draws(q), shown, words, rng)
        accepted += sum(a for a, _ in seen.rounds)
        judged += sum(n for _, n in seen.rounds)
    overlap = sum(map(min, p, q))
    assert accepted / judged == pytest.approx(overlap, abs=0.02)


# When


def finished(text: str = ANSWER, **more: Any) -> Finished:
    made: dict[str, Any] = {
        "target": "t",
        "traffic": "c",
        "hows": ("argmax",),
        "drafts": ("knows",),
        "prompt": Prompt(None, "count"),
        "vocabulary": None,
        "heard": lambda: Heard(text),
    }
    return Finished(**{**made, **more})


class Bench:
    """A shadow with drafters of its own."""

    def __init__(self, *drafters: Drafter, share: float = 1.0, **more: Any) -> None:
        self.supervisor, self.seen = Supervisor(), Measurements()
        by_name = {d.name: d for d in drafters}
        self.shadow = Shadow(
            Config(share, paid=more.pop("paid", False)),
            self.supervisor,
            self.seen,
            by_name.get,
            more.pop("remote", {}),
            rng=random.Random(1),
            **more,
        )

    def weight(self, drafter: str = "knows") -> float:
        return self.seen.snapshot("t", drafter, "c", "argmax").shadow.weight


@pytest.fixture
async def closing() -> AsyncIterator[list[Bench]]:
    made: list[Bench] = []
    yield made
    for bench in made:
        await bench.supervisor.aclose()


async def test_every_draft_is_scored(closing: list[Bench]) -> None:
    """And timed; one that isn't ready is left out."""
    bench = Bench(Knows(ANSWER), Knows("zero two", "other"))
    closing.append(bench)
    bench.shadow.offer(finished(drafts=("knows", "other", "not ready")))
    await bench.shadow.idle()
    assert bench.weight("knows") == pytest.approx(10, abs=0.1)
    assert bench.seen.snapshot("t", "other", "c", "argmax").shadow.rate != 1
    assert bench.seen.snapshot("t", "knows", "c", "argmax").draft_s is not None
    assert bench.shadow.scored == 1


async def test_nothing_runs_while_a_request_drafts(closing: list[Bench]) -> None:
    """What is under way is ended at once; afterwards the next answer is used."""
    drafter = Knows(ANSWER)
    bench = Bench(drafter)
    closing.append(bench)
    drafter.gate.clear()
    bench.shadow.offer(finished())
    await drafter.entered.wait()
    scoring = bench.shadow._scoring
    assert scoring is not None
    bench.shadow.begin()
    await asyncio.wait({scoring})
    assert scoring.cancelled()
    drafter.gate.set()
    bench.shadow.offer(finished())
    for _ in range(20):
        await asyncio.sleep(0)
    assert drafter.asked == []
    bench.shadow.end()
    await bench.shadow.idle()
    assert bench.weight() > 0


async def test_it_keeps_to_its_share(closing: list[Bench]) -> None:
    """After an answer that took three seconds, a twentieth's share rests for nineteen times that."""
    now, rests = 0.0, []

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        rests.append(seconds)

    class Slow(Knows):
        async def propose(self, committed: Committed, k: int, temperature: float = 0) -> Proposal:
            nonlocal now
            now += 1.0
            return await super().propose(committed, k, temperature)

    drafter = Slow(ANSWER)
    bench = Bench(drafter, share=0.05, clock=lambda: now, sleep=sleep)
    closing.append(bench)
    for _ in range(3):
        bench.shadow.offer(finished())
    await bench.shadow.idle()
    asked = len(drafter.asked) / 3
    assert rests == [0.0, pytest.approx(19 * asked), pytest.approx(19 * asked)]


async def test_a_quick_draft_sees_more_answers(closing: list[Bench]) -> None:
    """Drafts share the time equally: a slow one doesn't keep the others from looking."""
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    class Slow(Knows):
        def __init__(self, name: str, each: float) -> None:
            super().__init__(ANSWER)
            self.name, self.each = name, each

        async def propose(self, committed: Committed, k: int, temperature: float = 0) -> Proposal:
            nonlocal now
            now += self.each
            return await super().propose(committed, k, temperature)

    quick, slow = Slow("quick", 0.01), Slow("slow", 1.0)
    bench = Bench(quick, slow, share=0.05, clock=lambda: now, sleep=sleep)
    closing.append(bench)
    for _ in range(8):
        bench.shadow.offer(finished(drafts=("quick", "slow")))
        await bench.shadow.idle()
    assert len(quick.asked) == 8 * len(slow.asked)


async def test_only_the_last_few_answers_wait(closing: list[Bench]) -> None:
    """The newest first."""
    drafter = Knows(ANSWER)
    bench = Bench(drafter)
    closing.append(bench)
    bench.shadow.begin()
    for i in range(9):
        bench.shadow.offer(finished(f"answer {i} was this"))
    bench.shadow.end()
    await bench.shadow.idle()
    assert bench.shadow.scored == 4


@pytest.mark.parametrize("paid", [False, True])
async def test_remote_drafts_are_scored_only_where_that_may_cost(
    closing: list[Bench], paid: bool
) -> None:
    """And are billed then."""
    drafter = Knows(ANSWER, usage=Usage(10, 4))
    bench = Bench(drafter, paid=paid, remote={"knows": "far:mini"})
    closing.append(bench)
    bills: list[Attempt] = []
    bench.shadow.offer(finished(billed=bills.extend))
    await bench.shadow.idle()
    assert (bench.weight() > 0) is paid
    assert {(b.target, b.purpose) for b in bills} == ({("far:mini", "shadow")} if paid else set())


async def test_a_share_of_zero_switches_it_off(closing: list[Bench]) -> None:
    """Nothing is asked of anybody."""
    bench = Bench(Knows(ANSWER), share=0.0)
    closing.append(bench)
    bench.shadow.offer(finished())
    await bench.shadow.idle()
    assert bench.weight() == 0


# Live


@pytest.fixture(scope="module")
def server() -> Iterator[ReferenceServer]:
    with ReferenceServer(WORLD.script) as running:
        yield running


async def ask(client: AsyncSpecRoute, policy: Any, n: int, **more: Any) -> Any:
    done = None
    for i in range(n):
        stream = await client.completions.create(
            model="m", prompt=f"a b {'cdefgh'[i % 6]}", max_tokens=60, stream=True,
            extra_body={"specroute": {"policy": policy}}, **{"temperature": 0, **more},
        )  # fmt: skip
        async for _ in stream:
            pass
        done = report(stream)
    return done


PLAIN = {"preset": "fixed", "method": "plain"}
SCORE = {"preset": "fixed", "method": "score", "num_speculative_tokens": 4}


async def test_plain_answers_tell_what_rounds_would_have(server: ReferenceServer) -> None:
    """Greedy answers of a known chain: the shadow's rate is that of real rounds."""
    async with speculating(WORLD, server, shadow=1.0) as client:
        found = client.router.speculation
        assert isinstance(found, Speculator)
        await client.router.warm_up()
        for _ in range(3):
            done = await ask(client, PLAIN, 2)
            await found.shadow.idle()
        assert (done.method, done.drafted) == ("plain", 0)
        traffic = "completions#none/prose/256"
        shadow = found.measurements.snapshot("lab:chain", "table", traffic, "argmax")
        assert shadow.rounds_seen.weight == 0
        assert shadow.shadow.weight > 50
        await ask(client, SCORE, 6)
        real = found.measurements.snapshot("lab:chain", "table", traffic, "argmax")
        assert shadow.shadow.rate == pytest.approx(real.rounds_seen.rate, abs=0.12)
        prefix = found.measurements.snapshot("lab:chain", "table", traffic, "prefix")
        assert prefix.shadow.rate == pytest.approx(shadow.shadow.rate)


async def test_log_probabilities_that_the_caller_asked_for_are_used(
    server: ReferenceServer,
) -> None:
    """At T = 1 without truncation: evidence on rejection sampling, for requests that can't be
    speculated on themselves."""
    async with speculating(WORLD, server, shadow=1.0) as client:
        found = client.router.speculation
        assert isinstance(found, Speculator)
        await client.router.warm_up()
        for _ in range(4):
            await ask(client, SCORE, 1, temperature=1, logprobs=1)
            await found.shadow.idle()
        traffic = "completions#none/prose/256"
        seen = found.measurements.snapshot("lab:chain", "table", traffic, "rules").shadow
        assert seen.weight > 30
        assert 0.5 < (seen.rate or 0) <= 1


async def test_what_nobody_asked_for_is_not_asked_of_the_target(server: ReferenceServer) -> None:
    """A plain request is the caller's own, byte by byte: no log-probabilities are added to it."""
    async with speculating(WORLD, server, shadow=1.0) as client:
        await client.router.warm_up()
        stream = await client.completions.create(
            model="m", prompt="a b", max_tokens=5, stream=True, temperature=0,
            extra_body={"specroute": {"policy": PLAIN}},
        )  # fmt: skip
        chunks = [chunk async for chunk in stream if chunk.choices]
        assert all(chunk.choices[0].logprobs is None for chunk in chunks)
