"""An answer that broke off after something of it was delivered: taken up from its text, or said."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import openai
import pytest

import specroute
from tests.client.test_fallback import SHORT, two
from tests.client.world import MESSAGES
from tests.support.loopback import DONE, Exchange, Handler, event

TEXT = "The quick brown fox jumps over the lazy dog, and then it does so once more.\n  Done. "
PIECES = [TEXT[i : i + 3] for i in range(0, len(TEXT), 3)]
PREFILL = {"prefill": "continue_final_message", "stream_usage": True, "prefill_repeats": False}


class Writer:
    """A server that says ``TEXT`` from wherever it is told to go on, in pieces of its own.

    ``faults``: what becomes of each request in turn, a piece's number and a kind; ``None``: well.
    """

    def __init__(self, name: str, faults: Iterator[tuple[int, str] | None], size: int = 3) -> None:
        self.name, self.size = name, size
        self.faults = faults
        self.bodies: list[Any] = []

    async def __call__(self, exchange: Exchange) -> None:
        body = exchange.json
        self.bodies.append(body)
        said = ""
        if "prompt" in body:
            said = body["prompt"].removeprefix("Say it: ")
        elif body["messages"][-1]["role"] == "assistant":
            said = body["messages"][-1]["content"]
        assert TEXT.startswith(said)
        rest = TEXT[len(said) :]
        pieces = [rest[i : i + self.size] for i in range(0, len(rest), self.size)]
        at, kind = next(self.faults, None) or (len(pieces) + 1, "")
        if kind == "500":
            await exchange.json_answer({"error": {"message": "no"}}, 500)
            return
        await exchange.start()
        await exchange.piece(self.chunk(body, {"role": "assistant", "content": ""}))
        for piece in pieces[:at]:
            await exchange.piece(self.chunk(body, {"content": piece}))
        if at < len(pieces):
            await self.fail(exchange, kind)
            return
        await exchange.piece(self.chunk(body, {}, "stop"))
        used = {"prompt_tokens": 10 + len(said) // 3, "completion_tokens": len(pieces)}
        last = {"choices": [], "usage": {**used, "total_tokens": 0}}
        await exchange.piece(event({"id": self.name, "object": "x", **last}))
        await exchange.piece(DONE)
        await exchange.finish()

    def chunk(self, body: Any, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
        if "prompt" in body:
            choice["text"] = delta.get("content", "")
        else:
            choice["delta"] = delta
        kind = "text_completion" if "prompt" in body else "chat.completion.chunk"
        head = {"id": f"id-{self.name}", "object": kind, "created": 7, "model": body["model"]}
        return event({**head, "choices": [choice]})

    async def fail(self, exchange: Exchange, kind: str) -> None:
        if kind == "cut":
            exchange.cut()
        elif kind == "end":
            await exchange.finish()
        elif kind == "error":
            await exchange.piece(event({"error": {"message": "overloaded"}}))
            await exchange.finish()
        elif kind == "garbage":
            await exchange.piece(b'data: {"choices": [{"delta": {"content": "x\n\n')
            await exchange.finish()
        elif kind == "half":
            await exchange.piece(b'data: {"choices": [{"delta": {"content": "x')
            exchange.cut()
        else:
            await exchange.gone.wait()


def once(at: int, kind: str) -> Iterator[tuple[int, str] | None]:
    return iter([(at, kind)])


def well() -> Iterator[tuple[int, str] | None]:
    return iter([])


async def read(client: Any, **more: Any) -> tuple[list[Any], Any]:
    stream = await client.chat.completions.create(
        model="smart", messages=MESSAGES, stream=True, **more
    )
    return [c async for c in stream], specroute.report(stream)


def text_of(got: list[Any]) -> str:
    return "".join(c.choices[0].delta.content or "" for c in got if c.choices)


KINDS = ["cut", "end", "error", "garbage", "half", "stall"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("retries", [0, 2])
async def test_the_answer_goes_on_from_its_text(kind: str, retries: int) -> None:
    """On the same target where a retry is left, else on the next; one answer to its reader."""
    lab, hub = Writer("lab", once(5, kind)), Writer("hub", well(), size=4)
    limits = SHORT if kind == "stall" and not retries else {"stall": 1}
    async with two(lab, hub, capabilities=PREFILL, max_retries=retries, timeouts=limits) as (
        _,
        _,
        client,
    ):
        got, told = await read(client, stream_options={"include_usage": True})
    assert text_of(got) == TEXT
    assert {(c.id, c.model, c.created) for c in got} == {("id-lab", "one", 7)}
    assert [c.choices[0].delta.role for c in got if c.choices].count("assistant") == 1
    assert [c.choices[0].finish_reason for c in got if c.choices][-1] == "stop"
    goes_on = hub if retries == 0 else lab
    body = goes_on.bodies[-1]
    assert body["messages"][-1] == {"role": "assistant", "content": "".join(PIECES[:5]).rstrip()}
    assert body["continue_final_message"] is True
    place = "hub:two" if retries == 0 else "lab:one"
    assert [a.target for a in told.attempts] == ["lab:one", place]
    assert [a.purpose for a in told.attempts] == ["plain", "resume"]
    assert told.attempts[0].estimated
    assert told.attempts[0].usage.completion_tokens == 5
    assert (told.target, told.complete, told.finish_reason) == (place, True, "stop")
    if retries == 0:
        assert told.exactness == "heuristic"
        assert told.exactness_reason == "begun by lab:one, finished by hub:two"
    else:
        assert told.exactness == "bounded"
    (usage,) = [c.usage for c in got if c.usage]
    after = told.attempts[1].usage.completion_tokens
    assert usage.completion_tokens == 5 + after == told.completion_tokens
    assert usage.prompt_tokens == 10 == told.prompt_tokens
    assert told.billed_completion_tokens == 5 + after


async def test_a_completion_goes_on_from_its_prompt() -> None:
    """/completions has the text at the end of its prompt, and what is left of max_tokens."""
    lab, hub = Writer("lab", once(5, "end")), Writer("hub", well())
    async with two(lab, hub, capabilities={"completions": True}) as (_, _, client):
        stream = await client.completions.create(
            model="smart", prompt="Say it: ", max_tokens=100, stream=True
        )
        got = [c async for c in stream]
    assert "".join(c.choices[0].text for c in got if c.choices) == TEXT
    assert hub.bodies[0]["prompt"] == "Say it: " + "".join(PIECES[:5])
    assert hub.bodies[0]["max_tokens"] == 95
    assert {(c.id, c.object) for c in got} == {("id-lab", "text_completion")}


async def test_without_prefill_it_is_an_error() -> None:
    """A truncated answer is never shown as a whole one."""
    lab, hub = Writer("lab", once(5, "end")), Writer("hub", well())
    async with two(lab, hub) as (_, _, client):
        with specroute.reports() as reports, pytest.raises(specroute.StreamTruncated) as caught:
            await read(client)
    assert isinstance(caught.value, openai.APIConnectionError)
    assert hub.bodies == []
    assert [a.outcome for a in reports[0].attempts] == ["truncated"]
    assert not reports[0].complete


@pytest.mark.parametrize(
    "field",
    [
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
        {"logprobs": True},
        {"n": 2},
    ],
)
async def test_never_through_tools_json_or_choices(field: dict[str, Any]) -> None:
    """What is more than its text can't be gone on with from its text."""
    lab, hub = Writer("lab", once(5, "end")), Writer("hub", well())
    async with two(lab, hub, capabilities=PREFILL, max_retries=2) as (_, _, client):
        with pytest.raises(specroute.StreamTruncated):
            await read(client, **field)
    assert (len(lab.bodies), len(hub.bodies)) == (1, 0)


async def test_a_fault_that_is_not_listed_is_an_error() -> None:
    """``fallback_on`` decides here, too."""
    lab, hub = Writer("lab", once(5, "end")), Writer("hub", well())
    model = {"fallback_on": ["429"]}
    async with two(lab, hub, capabilities=PREFILL, model=model) as (_, _, client):
        with pytest.raises(specroute.StreamTruncated):
            await read(client)


async def test_everything_was_said_when_max_tokens_were() -> None:
    """An answer that lacks nothing but its end needs no further call."""
    lab, hub = Writer("lab", once(5, "cut")), Writer("hub", well())
    async with two(lab, hub, capabilities=PREFILL) as (_, _, client):
        got, told = await read(client, max_tokens=5)
    assert text_of(got) == "".join(PIECES[:5])
    assert (told.finish_reason, hub.bodies) == ("length", [])


async def test_a_repeated_prefix_is_left_out() -> None:
    """A server that says the prefilled text again is heard from where it is new."""

    async def repeats(exchange: Exchange) -> None:
        writer = Writer("hub", well())
        await exchange.start()
        for piece in PIECES:
            await exchange.piece(writer.chunk(exchange.json, {"content": piece}))
        await exchange.piece(writer.chunk(exchange.json, {}, "stop"))
        await exchange.piece(DONE)
        await exchange.finish()

    prefill = {**PREFILL, "prefill_repeats": True}
    async with two(Writer("lab", once(7, "cut")), repeats, capabilities=prefill) as (_, _, client):
        got, _ = await read(client)
    assert text_of(got) == TEXT


async def test_thoughts_are_not_thought_twice() -> None:
    """A model that thinks first and breaks off in the middle of its text."""

    async def thinks(exchange: Exchange) -> None:
        writer = Writer("lab", well())
        body = exchange.json
        await exchange.start()
        await exchange.piece(writer.chunk(body, {"reasoning_content": "Hm."}))
        if body["messages"][-1]["role"] != "assistant":
            await exchange.piece(writer.chunk(body, {"content": TEXT[:10]}))
            exchange.cut()
            return
        await exchange.piece(writer.chunk(body, {"content": TEXT[9:]}))
        await exchange.piece(writer.chunk(body, {}, "stop"))
        await exchange.piece(DONE)
        await exchange.finish()

    async with two(thinks, capabilities=PREFILL, max_retries=1) as (_, _, client):
        got, _ = await read(client)
    assert text_of(got) == TEXT
    thoughts = [getattr(c.choices[0].delta, "reasoning_content", None) for c in got]
    assert [t for t in thoughts if t] == ["Hm."]


async def test_a_break_in_the_thoughts_is_an_error() -> None:
    """Thoughts can't be prefilled, and thinking anew would repeat them."""

    async def thinks(exchange: Exchange) -> None:
        writer = Writer("lab", well())
        await exchange.start()
        await exchange.piece(writer.chunk(exchange.json, {"reasoning_content": "Hm"}))
        exchange.cut()

    async with two(thinks, capabilities=PREFILL, max_retries=1) as (_, _, client):
        with pytest.raises(specroute.StreamTruncated):
            await read(client)


async def test_a_stop_string_across_the_break_ends_it() -> None:
    """Its first characters came before, the rest after."""
    lab, hub = Writer("lab", once(5, "cut")), Writer("hub", well())
    stop = TEXT[13:18]
    async with two(lab, hub, capabilities=PREFILL) as (_, _, client):
        got, told = await read(client, stop=stop)
    assert text_of(got) == "".join(PIECES[:5])
    assert told.finish_reason == "stop"
    assert "stop" not in hub.bodies[0]


@pytest.mark.parametrize("seed", range(40))
async def test_no_character_is_lost_or_said_twice(seed: int) -> None:
    """Whatever breaks where, and however often."""
    rng = random.Random(seed)

    def faults(share: float) -> Iterator[tuple[int, str] | None]:
        while True:
            kinds = ["cut", "end", "error", "garbage", "half", "500"]
            yield (rng.randrange(30), rng.choice(kinds)) if rng.random() < share else None

    handlers: list[Handler] = [
        Writer("lab", faults(0.7), rng.randint(1, 5)),
        Writer("hub", faults(0.3), rng.randint(1, 5)),
    ]
    async with two(*handlers, capabilities=PREFILL, max_retries=3) as (_, _, client):
        shown: list[Any] = []
        try:
            stream = await client.chat.completions.create(
                model="smart", messages=MESSAGES, stream=True
            )
            async for part in stream:
                shown.append(part)
        except openai.APIError:
            assert TEXT.startswith(text_of(shown))
        else:
            assert text_of(shown) == TEXT
            assert shown[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("capable", [True, False])
async def test_what_came_with_an_error_is_handed_on(capable: bool) -> None:
    """Content and an error in one piece of the stream: the content is not lost, nor said twice."""

    async def bursts(exchange: Exchange) -> None:
        writer = Writer("lab", well())
        body = exchange.json
        parts = [
            writer.chunk(body, {"role": "assistant"}),
            writer.chunk(body, {"content": TEXT[:9]}),
        ]
        error = event({"error": {"message": "overloaded"}})
        await exchange.start()
        await exchange.piece(b"".join([*parts, error]))
        await exchange.finish()

    hub = Writer("hub", well())
    shown: list[Any] = []
    async with two(bursts, hub, capabilities=PREFILL if capable else {}) as (_, _, client):
        stream = await client.chat.completions.create(model="smart", messages=MESSAGES, stream=True)
        try:
            async for part in stream:
                shown.append(part)
        except openai.APIError:
            assert not capable
    assert text_of(shown) == (TEXT if capable else TEXT[:9])
