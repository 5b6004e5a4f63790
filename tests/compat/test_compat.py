"""openai-python's documented behaviour, case by case, through ``AsyncOpenAI`` and through
``AsyncSpecRoute`` against the same server: the results must be equal."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2
import openai
import pydantic
import pytest
from openai import AsyncOpenAI

from specroute import AsyncSpecRoute
from tests.compat.server import Server
from tests.support.loopback import Loopback

pytestmark = pytest.mark.alone

Case = Callable[[AsyncOpenAI], Awaitable[Any]]
CASES: dict[str, Case] = {}
HELLO: Any = [{"role": "user", "content": "Hello?"}]


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def plain(value: Any) -> Any:
    """A model, or anything holding models, as plain data without the report."""
    if isinstance(value, pydantic.BaseModel):
        value = value.model_dump(warnings=False)
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if k != "specroute"}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def headers(response: Any) -> dict[str, str]:
    return dict(response.headers)


async def error_of(call: Awaitable[Any]) -> dict[str, Any]:
    """All of an error that openai documents."""
    try:
        got = await call
        if hasattr(got, "__aiter__"):
            async for _ in got:
                pass
    except openai.OpenAIError as error:
        kind = next(k for k in type(error).__mro__ if k.__module__ == "openai")
        names = ("message", "body", "code", "param", "type", "status_code", "request_id")
        out = {name: getattr(error, name, None) for name in names}
        response = getattr(error, "response", None)
        if response is not None:
            out["response"] = (response.status_code, response.content, headers(response))
        return {**out, "kind": kind.__name__, "text": str(error)}
    return {"no": "error", "got": plain(got)}


async def chat(client: AsyncOpenAI, model: str = "m", **more: Any) -> Any:
    return await client.chat.completions.create(model=model, messages=HELLO, **more)


async def listed(stream: AsyncIterator[Any]) -> list[Any]:
    return [plain(part) async for part in stream]


# Answers


@case
async def create(client: AsyncOpenAI) -> Any:
    got = await chat(client)
    return plain(got), got.choices[0].message.content, got._request_id, got.own_field


@case
async def create_with_everything(client: AsyncOpenAI) -> Any:
    return await chat(
        client,
        "headers",
        temperature=0.5,
        max_tokens=9,
        stop=["a"],
        seed=1,
        logit_bias={"5": -100},
        response_format={"type": "json_object"},
        extra_headers={"X-Call": "c"},
        extra_query={"q": "1"},
        extra_body={"own": [1, {"a": None}]},
        user="u",
    )


@case
async def create_tools(client: AsyncOpenAI) -> Any:
    return await chat(
        client, "tools", tools=[{"type": "function", "function": {"name": "weather"}}]
    )


@case
async def create_two(client: AsyncOpenAI) -> Any:
    return await chat(client, "two", n=2)


@case
async def completions(client: AsyncOpenAI) -> Any:
    whole = await client.completions.create(model="m", prompt="p")
    stream = await client.completions.create(model="m", prompt="p", stream=True)
    return plain(whole), await listed(stream)


@case
async def concurrent(client: AsyncOpenAI) -> Any:
    import asyncio

    return await asyncio.gather(*(chat(client) for _ in range(20)))


# Streams


@case
async def stream(client: AsyncOpenAI) -> Any:
    got = await chat(client, stream=True)
    parts = await listed(got)
    return type(got).__name__, parts, headers(got.response), got.response.status_code


@case
async def stream_usage(client: AsyncOpenAI) -> Any:
    return await listed(await chat(client, stream=True, stream_options={"include_usage": True}))


@case
async def stream_tools(client: AsyncOpenAI) -> Any:
    return await listed(await chat(client, "tools", stream=True))


@case
async def stream_two(client: AsyncOpenAI) -> Any:
    return await listed(await chat(client, "two", stream=True, n=2))


@case
async def stream_without_done(client: AsyncOpenAI) -> Any:
    return await listed(await chat(client, "no-done", stream=True))


@case
async def stream_odd(client: AsyncOpenAI) -> Any:
    return await listed(await chat(client, "odd", stream=True))


@case
async def stream_unicode(client: AsyncOpenAI) -> Any:
    return await listed(await chat(client, "unicode", stream=True))


@case
async def stream_in_a_context(client: AsyncOpenAI) -> Any:
    async with await chat(client, stream=True) as got:
        first = plain(await anext(aiter(got)))
    await got.close()
    await got.aclose()
    return first, got.response.is_closed


@case
async def stream_error(client: AsyncOpenAI) -> Any:
    return await error_of(chat(client, "error-event", stream=True))


@case
async def stream_helper(client: AsyncOpenAI) -> Any:
    kinds = []
    async with client.chat.completions.stream(model="m", messages=HELLO) as events:
        async for item in events:
            kinds.append((item.type, plain(getattr(item, "delta", None))))
        return kinds, plain(await events.get_final_completion())


@case
async def stream_helper_tools(client: AsyncOpenAI) -> Any:
    async with client.chat.completions.stream(model="tools", messages=HELLO) as events:
        return (
            plain(await events.until_done().get_final_completion())
            if False
            else plain(await events.get_final_completion())
        )


class Word(pydantic.BaseModel):
    word: str
    count: int


@case
async def parse(client: AsyncOpenAI) -> Any:
    got = await client.chat.completions.parse(model="parse", messages=HELLO, response_format=Word)
    assert isinstance(got.choices[0].message.parsed, Word)
    return got


@case
async def parse_stream(client: AsyncOpenAI) -> Any:
    async with client.chat.completions.stream(
        model="parse", messages=HELLO, response_format=Word
    ) as events:
        kinds = [item.type async for item in events]
        final = await events.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Word)
    return kinds, plain(final)


@case
async def parse_length(client: AsyncOpenAI) -> Any:
    return await error_of(
        client.chat.completions.parse(model="length", messages=HELLO, response_format=Word)
    )


# Raw responses


@case
async def raw(client: AsyncOpenAI) -> Any:
    got = await client.chat.completions.with_raw_response.create(model="m", messages=HELLO)
    return (
        type(got).__name__,
        got.status_code,
        headers(got),
        got.request_id,
        got.retries_taken,
        got.text,
        got.content,
        got.http_response.num_bytes_downloaded,
        got.method,
        str(got.url),
        plain(got.parse()),
        got.http_response.is_closed,
        got.elapsed.total_seconds() > 0,
    )


@case
async def raw_stream(client: AsyncOpenAI) -> Any:
    got = await client.chat.completions.with_raw_response.create(
        model="m", messages=HELLO, stream=True
    )
    return headers(got), await listed(got.parse())


@case
async def streaming_response(client: AsyncOpenAI) -> Any:
    out: list[Any] = []
    make = client.chat.completions.with_streaming_response.create
    for how in ("json", "text", "read", "parse", "iter_bytes", "iter_text", "iter_lines"):
        async with make(model="m", messages=HELLO) as got:
            method = getattr(got, how)
            if how.startswith("iter"):
                parts = [part async for part in method()]
                out.append(parts if how == "iter_lines" else parts[0][:0].join(parts))
            else:
                out.append(plain(await method()))
        out.append((got.is_closed, got.status_code, got.retries_taken, headers(got)))
    return out


@case
async def streaming_response_lines(client: AsyncOpenAI) -> Any:
    async with client.chat.completions.with_streaming_response.create(
        model="m", messages=HELLO, stream=True
    ) as got:
        return [line async for line in got.iter_lines()], headers(got)


@case
async def raw_client(client: AsyncOpenAI) -> Any:
    got = await client.with_raw_response.models.list()
    return got.text, plain(got.parse().data)


# Errors, retries, timeouts


def _status(status: int) -> None:
    @case
    async def errors(client: AsyncOpenAI) -> Any:
        return [
            await error_of(chat(client, f"status-{status}", stream=stream))
            for stream in (False, True)
        ]

    CASES[f"error_{status}"] = CASES.pop("errors")


for _code in (300, 400, 401, 403, 404, 408, 409, 418, 422, 429, 500, 503):
    _status(_code)


@case
async def error_page(client: AsyncOpenAI) -> Any:
    return await error_of(chat(client, "page"))


@case
async def error_list(client: AsyncOpenAI) -> Any:
    return await error_of(chat(client, "google"))


@case
async def error_elsewhere(client: AsyncOpenAI) -> Any:
    return await error_of(client.models.retrieve("missing"))


@case
async def retries(client: AsyncOpenAI) -> Any:
    got = await client.chat.completions.with_raw_response.create(model="flaky-2", messages=HELLO)
    sent = got.http_request.headers["x-stainless-retry-count"]
    return plain(got.parse()), got.retries_taken, sent


@case
async def retries_of_a_call(client: AsyncOpenAI) -> Any:
    more = client.with_options(max_retries=4)
    return plain(await chat(more, "flaky-4")), await error_of(
        chat(client.with_options(max_retries=0), "status-500")
    )


@case
async def retry_header_of_the_caller(client: AsyncOpenAI) -> Any:
    omitted = await chat(
        client, "flaky-1", extra_headers={"x-stainless-retry-count": openai.Omit()}
    )
    own = await chat(client, "flaky-1 ", extra_headers={"x-stainless-retry-count": "42"})
    return plain(omitted), plain(own)


@case
async def retry_refused_by_the_server(client: AsyncOpenAI) -> Any:
    return await error_of(chat(client, "no-retry"))


def _timeout(name: str, **options: Any) -> None:
    @case
    async def timeouts(client: AsyncOpenAI) -> Any:
        quick = client.with_options(max_retries=0)
        await chat(quick)  # A connection: only the answer is waited for.
        got = await error_of(chat(quick, "silent", timeout=0.2, **options))
        return got["kind"]

    CASES[name] = CASES.pop("timeouts")


_timeout("timeout")
_timeout("timeout_stream", stream=True)


@case
async def timeout_object(client: AsyncOpenAI) -> Any:
    quick = client.with_options(timeout=httpx2.Timeout(5, read=0.2), max_retries=0)
    await chat(quick, timeout=None)  # A connection, as above.
    return (await error_of(chat(quick, "silent")))["kind"], quick.timeout


@case
async def not_there(client: AsyncOpenAI) -> Any:
    # Over aiohttp openai calls this a timeout, which is a connection error, too.
    lost = client.with_options(base_url="http://127.0.0.1:1/v1", max_retries=0)
    with pytest.raises(openai.APIConnectionError) as caught:
        await chat(lost)
    return caught.value.body, str(caught.value.request.url)


# Options


@case
async def with_options(client: AsyncOpenAI) -> Any:
    copy = client.with_options(
        timeout=3, max_retries=1, default_headers={"X-Default": "d"}, default_query={"v": "2"}
    )
    again = copy.copy(set_default_headers={}, organization="org", project="proj")
    return [
        (c.timeout, c.max_retries, c.organization, c.project, str(c.base_url))
        for c in (client, copy, again)
    ] + [plain(await chat(c, "headers")) for c in (copy, again)]


@case
async def own_request(client: AsyncOpenAI) -> Any:
    got = await client.post("/own", cast_to=object, body={"a": 1}, options={"params": {"b": "2"}})
    return got, await client.get("/own", cast_to=httpx2.Response, options={}) is not None


@case
async def idempotency(client: AsyncOpenAI) -> Any:
    return await chat(client, "headers", extra_headers={"Idempotency-Key": "k"})


@case
async def context(client: AsyncOpenAI) -> Any:
    async with client.copy(http_client=openai.DefaultAsyncHttpxClient()) as inner:
        await chat(inner)
    return inner.is_closed(), client.is_closed()


# Everything else


@case
async def embeddings(client: AsyncOpenAI) -> Any:
    return [
        plain(await client.embeddings.create(model="emb", input=["a"], encoding_format="float")),
    ]


@case
async def models(client: AsyncOpenAI) -> Any:
    return (
        [plain(m) async for m in client.models.list()],
        plain(await client.models.retrieve("m1")),
        plain(await client.models.delete("m1")),
    )


@case
async def files(client: AsyncOpenAI) -> Any:
    file = io.BytesIO(b"x" * 100_000 + b"flaky")
    made = await client.files.create(file=("a.bin", file), purpose="batch")
    pages = [plain(f) async for f in client.files.list()]
    content = await client.files.content("f1")
    async with client.files.with_streaming_response.content("f1") as got:
        streamed = b"".join([part async for part in got.iter_bytes(100)])
    return plain(made), pages, content.content, content.read(), streamed


@case
async def speech(client: AsyncOpenAI) -> Any:
    got = await client.audio.speech.create(model="t", voice="alloy", input="hi")
    return got.content, headers(got.response)


@case
async def responses(client: AsyncOpenAI) -> Any:
    whole = await client.responses.create(model="m", input="hi")
    stream = await client.responses.create(model="m", input="hi", stream=True)
    return whole.output_text, plain(whole), await listed(stream)


def plain_client(url: str, **options: Any) -> AsyncOpenAI:
    return AsyncSpecRoute(api_key="sk-test", base_url=url, **options)


def configured_client(url: str, **options: Any) -> AsyncOpenAI:
    provider = {"profile": "generic", "base_url": url, "env_key": "LAB_KEY"}
    tables = {"version": 1, "providers": {"lab": provider}, "default_provider": "lab"}
    return AsyncSpecRoute(config=tables, **options)


def theirs(url: str, **options: Any) -> AsyncOpenAI:
    return AsyncOpenAI(api_key="sk-test", base_url=url, **options)


async def outcome(make: Callable[..., AsyncOpenAI], function: Case, http_client: Any) -> Any:
    async with (
        Loopback(Server()) as server,
        make(server.url, http_client=http_client() if http_client else None) as client,
    ):
        got = plain(await function(client))
        sent = [
            (
                s.method,
                s.path,
                s.query,
                sorted(set(s.headers) - {"content-length", "connection"}),
                _body(s),
            )
            for s in server.seen
        ]
        return _portless([got, sent], server.port), server.connections


def _body(seen: Any) -> Any:
    kind = seen.headers.get("content-type", "")
    return seen.body if not kind.startswith("multipart") else len(seen.body)


def _portless(value: Any, port: int) -> Any:
    if isinstance(value, str):
        return value.replace(str(port), "PORT")
    if isinstance(value, list | tuple):
        return [_portless(v, port) for v in value]
    if isinstance(value, dict):
        return {k: _portless(v, port) for k, v in value.items()}
    return value


# What a config decides instead: other addresses, OpenAI's organisations, and what is connected to.
NOT_WITH_A_CONFIG = {"not_there", "with_options", "context"}


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize(
    ("make", "http_client"),
    [
        pytest.param(plain_client, None, id="plain-httpx2"),
        pytest.param(plain_client, openai.DefaultAioHttpClient, id="plain-aiohttp"),
        pytest.param(configured_client, None, id="configured-httpx2"),
    ],
)
async def test_it_is_the_same(make: Any, name: str, http_client: Any) -> None:
    """The caller sees the same, and the server is asked the same, request by request."""
    if make is configured_client and name in NOT_WITH_A_CONFIG:
        return
    function = CASES[name]
    expected, their_connections = await outcome(theirs, function, http_client)
    got, our_connections = await outcome(make, function, http_client)
    assert expected == got
    assert our_connections <= their_connections
