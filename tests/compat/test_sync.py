"""openai-python's synchronous client, case by case, through ``OpenAI`` and through ``SpecRoute``
against the same server: the results must be equal."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import openai
import pytest
from openai import OpenAI

from specroute import SpecRoute
from tests.compat.server import Server
from tests.compat.test_compat import HELLO, Word, _body, _portless, headers, plain
from tests.support.loopback import Loopback

Case = Callable[[OpenAI], Any]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def error_of(call: Callable[[], Any]) -> dict[str, Any]:
    """All of an error that openai documents."""
    try:
        got = call()
        if isinstance(got, openai.Stream):
            list(got)
    except openai.OpenAIError as error:
        kind = next(k for k in type(error).__mro__ if k.__module__ == "openai")
        names = ("message", "body", "code", "param", "type", "status_code", "request_id")
        out = {name: getattr(error, name, None) for name in names}
        response = getattr(error, "response", None)
        if response is not None:
            out["response"] = (response.status_code, response.content, headers(response))
        return {**out, "kind": kind.__name__, "text": str(error)}
    return {"no": "error", "got": plain(got)}


def chat(client: OpenAI, model: str = "m", **more: Any) -> Any:
    return client.chat.completions.create(model=model, messages=HELLO, **more)


def listed(stream: Any) -> list[Any]:
    return [plain(part) for part in stream]


@case
def create(client: OpenAI) -> Any:
    got = chat(client)
    return plain(got), got.choices[0].message.content, got._request_id, got.own_field


@case
def create_with_everything(client: OpenAI) -> Any:
    return chat(
        client,
        "headers",
        temperature=0.5,
        stop=["a"],
        logit_bias={"5": -100},
        extra_headers={"X-Call": "c"},
        extra_query={"q": "1"},
        extra_body={"own": [1, {"a": None}]},
    )


@case
def completions(client: OpenAI) -> Any:
    whole = client.completions.create(model="m", prompt="p")
    return plain(whole), listed(client.completions.create(model="m", prompt="p", stream=True))


@case
def from_many_threads(client: OpenAI) -> Any:
    with ThreadPoolExecutor(10) as pool:
        return list(pool.map(lambda _: plain(chat(client)), range(20)))


@case
def stream(client: OpenAI) -> Any:
    got = chat(client, stream=True)
    parts = listed(got)
    return type(got).__name__, parts, headers(got.response), got.response.status_code


@case
def stream_usage(client: OpenAI) -> Any:
    return listed(chat(client, stream=True, stream_options={"include_usage": True}))


@case
def stream_odd(client: OpenAI) -> Any:
    return [listed(chat(client, m, stream=True)) for m in ("odd", "tools", "two", "unicode")]


@case
def stream_in_a_context(client: OpenAI) -> Any:
    with chat(client, stream=True) as got:
        first = plain(next(iter(got)))
    got.close()
    return first, got.response.is_closed


@case
def stream_error(client: OpenAI) -> Any:
    return error_of(lambda: chat(client, "error-event", stream=True))


@case
def stream_helper(client: OpenAI) -> Any:
    kinds = []
    with client.chat.completions.stream(model="m", messages=HELLO) as events:
        for item in events:
            kinds.append((item.type, plain(getattr(item, "delta", None))))
        return kinds, plain(events.get_final_completion())


@case
def parse(client: OpenAI) -> Any:
    got = client.chat.completions.parse(model="parse", messages=HELLO, response_format=Word)
    assert isinstance(got.choices[0].message.parsed, Word)
    with client.chat.completions.stream(
        model="parse", messages=HELLO, response_format=Word
    ) as events:
        kinds = [item.type for item in events]
        final = events.get_final_completion()
    return got, kinds, plain(final)


@case
def raw(client: OpenAI) -> Any:
    got = client.chat.completions.with_raw_response.create(model="m", messages=HELLO)
    return (
        type(got).__name__,
        got.status_code,
        headers(got),
        got.request_id,
        got.retries_taken,
        got.text,
        got.content,
        plain(got.parse()),
        got.http_response.is_closed,
        got.elapsed.total_seconds() > 0,
    )


@case
def raw_stream(client: OpenAI) -> Any:
    got = client.chat.completions.with_raw_response.create(model="m", messages=HELLO, stream=True)
    return headers(got), listed(got.parse())


@case
def streaming_response(client: OpenAI) -> Any:
    out: list[Any] = []
    make = client.chat.completions.with_streaming_response.create
    for how in ("json", "text", "read", "parse", "iter_bytes", "iter_text", "iter_lines"):
        with make(model="m", messages=HELLO) as got:
            method = getattr(got, how)
            if how.startswith("iter"):
                parts = list(method())
                out.append(parts if how == "iter_lines" else parts[0][:0].join(parts))
            else:
                out.append(plain(method()))
        out.append((got.is_closed, got.status_code, got.retries_taken, headers(got)))
    with make(model="m", messages=HELLO, stream=True) as got:
        out.append(list(got.iter_lines()))
    return out


@case
def errors(client: OpenAI) -> Any:
    statuses = (400, 401, 403, 404, 409, 418, 422, 429, 500)
    few = client.with_options(max_retries=0)
    return [
        error_of(lambda s=s, t=t: chat(few, f"status-{s}", stream=t))  # type: ignore[misc]
        for s in statuses
        for t in (False, True)
    ]


@case
def error_pages(client: OpenAI) -> Any:
    return [
        error_of(lambda: chat(client, "page")),
        error_of(lambda: chat(client, "google")),
        error_of(lambda: client.models.retrieve("missing")),
        error_of(lambda: chat(client, "no-retry")),
    ]


@case
def retries(client: OpenAI) -> Any:
    got = client.chat.completions.with_raw_response.create(model="flaky-2", messages=HELLO)
    sent = got.http_request.headers["x-stainless-retry-count"]
    return plain(got.parse()), got.retries_taken, sent


@case
def timeout(client: OpenAI) -> Any:
    quick = client.with_options(max_retries=0)

    def late(stream: bool) -> Any:
        chat(quick)  # A connection: only the answer is waited for.
        return error_of(lambda: chat(quick, "silent", timeout=0.2, stream=stream))["kind"]

    return [late(stream) for stream in (False, True)]


@case
def not_there(client: OpenAI) -> Any:
    lost = client.with_options(base_url="http://127.0.0.1:1/v1", max_retries=0)
    with pytest.raises(openai.APIConnectionError) as caught:
        chat(lost)
    return caught.value.body, str(caught.value.request.url)


@case
def with_options(client: OpenAI) -> Any:
    copy = client.with_options(
        timeout=3, max_retries=1, default_headers={"X-Default": "d"}, default_query={"v": "2"}
    )
    again = copy.copy(set_default_headers={}, organization="org", project="proj")
    return [
        (c.timeout, c.max_retries, c.organization, c.project, str(c.base_url))
        for c in (client, copy, again)
    ] + [plain(chat(c, "headers")) for c in (copy, again)]


@case
def context(client: OpenAI) -> Any:
    with client.copy(http_client=openai.DefaultHttpxClient()) as inner:
        chat(inner)
    return inner.is_closed(), client.is_closed()


@case
def own_request(client: OpenAI) -> Any:
    got = client.post("/own", cast_to=object, body={"a": 1}, options={"params": {"b": "2"}})
    return got, client.get("/own", cast_to=httpx2.Response, options={}) is not None


@case
def uploaded_pieces(client: OpenAI) -> Any:
    def pieces() -> Iterator[bytes]:
        yield b'{"a":'
        yield b"1}"

    return client.post(
        "/own",
        cast_to=object,
        content=pieces(),
        options={"headers": {"content-type": "application/json"}},
    )


@case
def everything_else(client: OpenAI) -> Any:
    file = io.BytesIO(b"x" * 100_000 + b"flaky")
    made = client.files.create(file=("a.bin", file), purpose="batch")
    pages = [plain(f) for f in client.files.list()]
    content = client.files.content("f1")
    with client.files.with_streaming_response.content("f1") as got:
        streamed = b"".join(got.iter_bytes(100))
    return (
        plain(client.embeddings.create(model="emb", input=["a"], encoding_format="float")),
        [plain(m) for m in client.models.list()],
        (plain(made), pages, content.content, content.read(), streamed),
        client.audio.speech.create(model="t", voice="alloy", input="hi").content,
        client.responses.create(model="m", input="hi").output_text,
        listed(client.responses.create(model="m", input="hi", stream=True)),
    )


def plain_client(url: str, **options: Any) -> OpenAI:
    return SpecRoute(api_key="sk-test", base_url=url, **options)


def configured_client(url: str, **options: Any) -> OpenAI:
    provider = {"profile": "generic", "base_url": url, "env_key": "LAB_KEY"}
    tables = {"version": 1, "providers": {"lab": provider}, "default_provider": "lab"}
    return SpecRoute(config=tables, **options)


def theirs(url: str, **options: Any) -> OpenAI:
    return OpenAI(api_key="sk-test", base_url=url, **options)


async def outcome(make: Callable[..., OpenAI], function: Case, http_client: Any) -> Any:
    async with Loopback(Server()) as server:

        def work() -> Any:
            http = http_client() if http_client else None
            with make(server.url, http_client=http) as client:
                return plain(function(client))

        got = await asyncio.to_thread(work)
        sent = [
            (s.method, s.path, s.query, sorted(set(s.headers) - {"connection"}), _body(s))
            for s in server.seen
        ]
        return _portless([got, sent], server.port)


NOT_WITH_A_CONFIG = {"not_there", "with_options", "context"}
# The user's own client sends in worker threads: what reads a body or waits shows whether that works.
WITH_OWN_HTTP = {
    "create",
    "from_many_threads",
    "stream",
    "stream_in_a_context",
    "streaming_response",
    "errors",
    "timeout",
    "not_there",
    "uploaded_pieces",
    "everything_else",
}
expected: dict[str, Any] = {}


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize(
    ("make", "http_client"),
    [
        pytest.param(plain_client, None, id="plain"),
        pytest.param(plain_client, openai.DefaultHttpxClient, id="plain-own-http"),
        pytest.param(configured_client, None, id="configured"),
    ],
)
async def test_it_is_the_same(make: Any, name: str, http_client: Any) -> None:
    """The caller sees the same, and the server is asked the same, request by request."""
    if make is configured_client and name in NOT_WITH_A_CONFIG:
        return
    if http_client and name not in WITH_OWN_HTTP:
        return
    function = CASES[name]
    if name not in expected:
        expected[name] = await outcome(theirs, function, None)
    assert await outcome(make, function, http_client) == expected[name]
