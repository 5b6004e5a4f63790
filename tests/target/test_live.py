"""The dialects against a running server whose probabilities are known."""

from __future__ import annotations

import random
from collections.abc import Iterator

import httpx2
import pytest

from specroute.profiles import load_profile
from specroute.reference.running import ReferenceServer
from specroute.target.dialects import DIALECTS, Ask, agreement
from specroute.target.view import BadEvidence, View
from tests.engine.world import World

WORLD = World()
CAPS = load_profile("reference").capabilities
PROMPT = (3, 7, 1)


@pytest.fixture(scope="module")
def server() -> Iterator[ReferenceServer]:
    with ReferenceServer(WORLD.spec) as server:
        yield server


def score(server: ReferenceServer, name: str, ask: Ask) -> View:
    """Put the question and read the answer."""
    dialect = DIALECTS[name]
    request = dialect.request(ask)
    base = server.url if request.root else server.base_url
    with httpx2.Client(timeout=20, verify=False) as client:
        answer = client.post(base + request.path, json=request.payload)
    assert answer.status_code == 200, answer.text
    return dialect.view(answer.json(), ask, 0.0)


def by_ids(server: ReferenceServer, draft: tuple[int, ...], **options: object) -> Ask:
    base = {"capabilities": CAPS, "sampling": {"temperature": 0}, "logprobs": 5, **options}
    return Ask(server.model, draft, ids=PROMPT, **base)  # type: ignore[arg-type]


def greedy(length: int) -> tuple[int, ...]:
    """What the target itself says after PROMPT at temperature 0."""
    said: list[int] = []
    last = PROMPT[-1]
    for _ in range(length):
        row = WORLD.p(last)
        last = max(row, key=lambda token: (row[token], -token))
        said.append(last)
    return tuple(said)


@pytest.mark.parametrize("seed", range(20))
def test_fanout_draws_what_echo_calls_most_probable(server: ReferenceServer, seed: int) -> None:
    """At T = 0, at every place of random drafts; and both see the same alternatives."""
    rng = random.Random(seed)
    draft = tuple(rng.choices(WORLD.tokens[:-1], k=rng.randint(1, 6)))
    echo = score(server, "echo", by_ids(server, draft))
    fanout = score(server, "fanout", by_ids(server, draft))
    assert [s.tokens[0] for s in fanout.samples[:-1]] == [p.argmax for p in echo.positions]
    assert fanout.bonus == echo.bonus
    assert [p.key for p in fanout.positions] == [p.key for p in echo.positions] == list(draft)
    for a, b in zip(fanout.positions, echo.positions, strict=True):
        assert dict(a.top) == pytest.approx(dict(b.top))
        assert a.logprob in (None, pytest.approx(b.logprob))
    assert echo.before == fanout.before == len(PROMPT)


@pytest.mark.parametrize("seed", range(5))
def test_text_and_ids_tell_the_same(server: ReferenceServer, seed: int) -> None:
    """One character is one token here."""
    rng = random.Random(seed)
    draft = tuple(rng.choices(WORLD.tokens[:-1], k=4))
    text = WORLD.vocabulary.decode
    asked = Ask(
        server.model,
        text(draft),
        text=text(PROMPT),
        pieces=tuple(text([token]) for token in draft),
        capabilities=CAPS,
        sampling={"temperature": 0},
    )
    ids = score(server, "echo", by_ids(server, draft, logprobs=1))
    for name in ("echo", "fanout"):
        view = score(server, name, asked)
        assert [p.key for p in view.positions] == [text([token]) for token in draft]
        assert [p.top[0][1] for p in view.positions] == [p.top[0][1] for p in ids.positions]
    # an end token has a name and no text
    said = text([token for token in ids.bonus if isinstance(token, int)])
    assert "".join(map(str, view.bonus)) == said


@pytest.mark.parametrize("name", ["prompt_logprobs", "generate"])
@pytest.mark.parametrize("seed", range(5))
def test_other_dialects_see_what_echo_sees(server: ReferenceServer, name: str, seed: int) -> None:
    """The same positions, the same token behind them."""
    rng = random.Random(seed)
    draft = tuple(rng.choices(WORLD.tokens[:-1], k=rng.randint(1, 6)))
    echo = score(server, "echo", by_ids(server, draft))
    other = score(server, name, by_ids(server, draft))
    assert other.positions == echo.positions
    assert (other.bonus, other.finish, other.before) == (echo.bonus, echo.finish, echo.before)
    assert other.usage.prompt_tokens == echo.usage.prompt_tokens


@pytest.mark.parametrize("draft", ["ab", "q", " x", "cab ", " "])
def test_a_chat_is_scored_without_its_template(server: ReferenceServer, draft: str) -> None:
    """The server renders the prompt; space at the end is held back, and nothing behind it counts."""
    asked = Ask(
        server.model,
        draft,
        messages=({"role": "user", "content": "Say it."},),
        committed="fine",
        capabilities=CAPS,
        logprobs=3,
        sampling={"temperature": 0},
    )
    view = score(server, "prompt_logprobs", asked)
    sent = draft.rstrip()
    assert [position.key for position in view.positions] == [*sent]
    after = "e" + sent
    for before, position in zip(after, view.positions, strict=False):
        row = WORLD.p(WORLD.spec["vocabulary"].index(before))
        best = max(row, key=lambda token: (row[token], -token))
        assert position.argmax == WORLD.vocabulary.decode([best])
    assert bool(view.bonus) is (sent == draft and view.finish != "stop")


def test_generate_keeps_the_servers_prefix_cache(server: ReferenceServer) -> None:
    """Echo gives it up."""
    own = greedy(6)
    score(server, "echo", by_ids(server, own))
    kept = score(server, "generate", by_ids(server, own))
    assert kept.usage.cached_tokens == len(PROMPT) - 1
    assert score(server, "echo", by_ids(server, own)).usage.cached_tokens == 0


def test_fanout_continues_from_the_first_disagreement(server: ReferenceServer) -> None:
    """All m tokens of that answer are what the target says there."""
    own = greedy(6)
    wrong = next(token for token in WORLD.tokens if token != own[2])
    view = score(server, "fanout", by_ids(server, (*own[:2], wrong, own[0]), max_tokens=3))
    assert [sample.tokens[0] for sample in view.samples[:3]] == list(own[:3])
    assert view.samples[2].tokens == own[2:5]


def test_fanout_bills_a_prompt_per_place(server: ReferenceServer) -> None:
    """The server's count, and what the dialect says of itself."""
    view = score(server, "fanout", by_ids(server, greedy(4), max_tokens=2))
    shows = DIALECTS["fanout"].shows
    assert view.usage.prompt_tokens == sum(len(PROMPT) + i for i in range(shows.prompts(4)))
    assert view.usage.completion_tokens == shows.output_tokens(4, 2)
    assert view.usage.cached_tokens


@pytest.mark.parametrize("name", ["echo", "fanout"])
def test_a_truthful_server_agrees_with_itself(server: ReferenceServer, name: str) -> None:
    """Its greedy tokens, scored by it."""
    own = greedy(6)
    values = [position.logprob for position in score(server, "echo", by_ids(server, own)).positions]
    view = score(server, name, by_ids(server, own[:-1]))
    known = [value for value in values if value is not None]
    agreement.check(view, own, known, processed=False)
    agreement.check(view, own, [-1.0] * 6, processed=True)
    with pytest.raises(BadEvidence, match="was generated at log-probability -9"):
        agreement.check(view, own, [-9.0] * 6, processed=False)


def test_a_shifted_server_does_not_agree_with_itself() -> None:
    """Each echoed entry is the next token's, as llama-cpp-python has it."""
    own = greedy(6)
    with ReferenceServer(WORLD.spec, quirks=["echo_shifted"]) as shifted:
        asked = by_ids(shifted, own[:-1], logprobs=20)
        with pytest.raises(BadEvidence):
            agreement.check(score(shifted, "echo", asked), own, [-1.0] * 6, processed=True)


@pytest.mark.parametrize("capability", ["echo", "logprobs"])
def test_a_server_that_ignores_what_was_asked_is_found_out(capability: str) -> None:
    """200, but no prompt logprobs; 200, but none at all."""
    with ReferenceServer(WORLD.spec, ignore=[capability]) as liar:
        with pytest.raises(BadEvidence, match=r"left out|no logprobs"):
            score(liar, "echo", by_ids(liar, greedy(3)))
        if capability == "logprobs":
            with pytest.raises(BadEvidence, match="no logprobs"):
                score(liar, "fanout", by_ids(liar, greedy(3)))
