"""Each point of the seam to the real openai package."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import openai
import pytest

import specroute
from specroute import AsyncSpecRoute, report
from specroute.config import load
from specroute.exchange import RouterRequest
from specroute.router import Router
from specroute.transport import SpecRouteTransport
from tests.client.world import MESSAGES, answer, config, configured, plain
from tests.support.loopback import DONE, Exchange, Loopback, chunk, chunks, completion


async def test_it_is_an_async_openai() -> None:
    """Libraries that check the type accept it."""
    async with plain() as (_, client):
        assert isinstance(client, openai.AsyncOpenAI)


async def test_a_copy_keeps_config_connections_and_learned_things() -> None:
    """``with_options`` rebuilds the client; the copy has the same router and closes with it."""
    async with configured() as (server, client):
        copy = client.with_options(timeout=3, max_retries=7)
        assert type(copy) is AsyncSpecRoute
        assert copy.router is client.router
        assert (copy.timeout, copy.max_retries) == (3, 7)
        assert (client.copy().router, copy.with_options().timeout) == (client.router, 3)
        await copy.chat.completions.create(model="smart", messages=MESSAGES)
        await client.chat.completions.create(model="smart", messages=MESSAGES)
        assert server.connections == 1
    assert copy.is_closed()


async def test_a_policy_for_every_call_of_a_copy() -> None:
    """``with_options(policy=…)`` takes a preset or a table over one, and refuses a wrong one."""
    async with configured() as (_, client):
        copy = client.with_options(policy="fixed")
        assert copy._policy.preset == "fixed"
        assert copy.with_options(timeout=1)._policy.preset == "fixed"
        assert client._policy is None
        with pytest.raises(specroute.ConfigError, match="nonsense") as caught:
            client.with_options(policy="nonsense")
        assert isinstance(caught.value, openai.OpenAIError)


async def test_a_configured_client_takes_no_other_address_or_key() -> None:
    """Providers and keys come from the config alone."""
    async with configured() as (server, client):
        with pytest.raises(specroute.ConfigError, match=r"with_options\(base_url=…\)"):
            client.with_options(base_url="http://elsewhere/v1")
        with pytest.raises(specroute.ConfigError, match="api_key"):
            AsyncSpecRoute(config=config(server.url), api_key="k")


async def test_a_plain_copy_may_go_elsewhere() -> None:
    """``with_options(base_url=…, api_key=…)`` as openai has it."""
    async with Loopback(answer) as other, plain() as (server, client):
        copy = client.with_options(base_url=other.url, api_key="sk-other")
        await copy.chat.completions.create(model="m", messages=MESSAGES)
        assert (len(server.seen), len(other.seen)) == (0, 1)
        assert other.seen[0].headers["authorization"] == "Bearer sk-other"


async def test_a_copy_may_have_connections_of_its_own() -> None:
    """``with_options(http_client=…)`` keeps the config and leaves the first client open."""
    for make in (configured, plain):
        async with make() as (server, client):
            async with client.with_options(http_client=httpx2.AsyncClient()) as copy:
                await copy.chat.completions.create(model="smart", messages=MESSAGES)
            await client.chat.completions.create(model="smart", messages=MESSAGES)
            assert server.connections == 2
            keys = {seen.headers["authorization"] for seen in server.seen}
            assert len(keys) == 1


async def test_a_copy_that_goes_elsewhere_is_told_by_its_own_address() -> None:
    """What is known of the first address (stream options, name, prices) is not of the second."""
    async with Loopback(answer) as other:
        first = AsyncSpecRoute(api_key="sk-old", base_url="https://api.openai.com/v1")
        copy = first.with_options(base_url=other.url)
        assert first.with_options(timeout=1).router is first.router
        del first
        stream = await copy.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        async for _ in stream:
            pass
        assert "stream_options" not in other.seen[0].json
        assert specroute.report(stream).target == "generic:m"
        await copy.close()
        assert copy.is_closed()


@pytest.mark.parametrize("how", ["function", "admin"])
async def test_credentials_other_than_a_key_are_enough(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a known provider, too: openai's own constructor decides what is enough."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)

    async def key() -> str:
        return "sk-made"

    def handle(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json={"sent": request.headers["authorization"]})

    options: dict[str, Any] = {"api_key": key} if how == "function" else {"admin_api_key": "sk-a"}
    upstream = httpx2.AsyncClient(transport=httpx2.MockTransport(handle))
    async with AsyncSpecRoute(http_client=upstream, **options) as client:
        path = "/models" if how == "function" else "/organization/users"
        got: Any = await client.get(path, cast_to=object)
    assert got["sent"] == ("Bearer sk-made" if how == "function" else "Bearer sk-a")


@pytest.mark.parametrize("make", [plain, configured])
async def test_a_path_may_hold_a_query_and_any_letter(make: Any) -> None:
    """``client.post("/path?a=b")`` asks what openai's own client asks."""
    async with make() as (server, client):
        body = {"model": "smart", "messages": MESSAGES}
        await client.post("/chat/completions?a=b", body=body, cast_to=object)
        await client.get("/é/models?c=d", cast_to=object)
    assert [(s.path, s.query) for s in server.seen] == [
        ("/v1/chat/completions", {"a": "b"}),
        ("/v1/%C3%A9/models", {"c": "d"}),
    ]


async def test_no_key_is_needed_with_a_config() -> None:
    """openai's constructor wants a key: a placeholder, which never leaves."""
    async with configured() as (server, client):
        await client.chat.completions.create(model="smart", messages=MESSAGES)
        assert server.seen[0].headers["authorization"] == "Bearer sk-canary-lab-0001"
        assert client.api_key not in str(server.seen[0].headers)


def test_without_anything_openais_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """No argument, no file, no variable: the same error as openai's."""
    errors = []
    for kind in (openai.AsyncOpenAI, AsyncSpecRoute):
        with pytest.raises(openai.OpenAIError) as caught:
            kind()
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[1]


async def test_without_arguments_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ``OPENAI_*`` variables, exactly as openai reads them."""
    async with Loopback(answer) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-env")
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
        monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")
        monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Env: yes")
        for kind in (openai.AsyncOpenAI, AsyncSpecRoute):
            async with kind() as client:
                await client.chat.completions.create(model="m", messages=MESSAGES)
        first, second = (dict(seen.headers) for seen in server.seen)
        first.pop("user-agent"), second.pop("user-agent")
        assert first == second
        assert first["openai-organization"] == "org-1"
        assert first["x-env"] == "yes"


async def test_a_file_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Neither address nor key: the usual look-up; an explicit address needs no file."""
    async with Loopback(answer) as server:
        (tmp_path / "specroute.toml").write_text(
            f'version = 1\n[providers.lab]\nprofile = "generic"\nbase_url = "{server.url}"\n'
            'env_key = "LAB_KEY"\n[models.smart]\ntargets = ["lab:lab-model"]\n'
        )
        async with AsyncSpecRoute() as client:
            got = await client.chat.completions.create(model="smart", messages=MESSAGES)
            assert report(got).target == "lab:lab-model"
        async with AsyncSpecRoute(api_key="k", base_url=server.url) as client:
            assert client.router.direct
        async with AsyncSpecRoute.from_config(tmp_path / "specroute.toml") as client:
            assert "smart" in client.router.config.models


async def test_openais_headers_of_the_environment_reach_no_other_provider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a config: no organisation, project, custom header, cookie or key from elsewhere."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-env")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Env: yes\nAuthorization: Bearer sk-env2")
    async with configured(default_headers={"X-Mine": "mine"}) as (server, client):
        await client.with_options(timeout=9).chat.completions.create(
            model="smart",
            messages=MESSAGES,
            extra_headers={"X-Call": "c", "Authorization": "Bearer sk-call", "Cookie": "a=b"},
        )
        headers = server.seen[0].headers
    assert (headers["x-mine"], headers["x-call"]) == ("mine", "c")
    assert headers["authorization"] == "Bearer sk-canary-lab-0001"
    assert headers["host"] == f"127.0.0.1:{server.port}"
    assert not {"openai-organization", "openai-project", "x-env", "cookie"} & set(headers)


async def test_plain_credentials_are_openais(monkeypatch: pytest.MonkeyPatch) -> None:
    """Organisation, project, an async key and custom headers go out as openai sends them."""

    async def key() -> str:
        return "sk-fresh"

    options: dict[str, Any] = {
        "api_key": key,
        "organization": "o",
        "project": "p",
        "default_headers": {"X-Mine": "mine"},
        "default_query": {"v": "1"},
    }
    async with Loopback(answer) as server:
        for kind in (openai.AsyncOpenAI, AsyncSpecRoute):
            async with kind(base_url=server.url, **options) as client:
                await client.chat.completions.create(
                    model="m", messages=MESSAGES, extra_headers={"X-Call": "c"}
                )
        first, second = server.seen
    assert second.headers["authorization"] == "Bearer sk-fresh"
    names = set(first.headers) - {"user-agent"}
    assert {n: first.headers[n] for n in names} == {n: second.headers[n] for n in names}
    assert (first.query, first.body) == (second.query, second.body)


@pytest.mark.parametrize("retries", [0, 2])
async def test_retries_are_counted_once(retries: int) -> None:
    """A 503 is tried max_retries times more, and not by two loops one inside the other."""

    async def busy(exchange: Exchange) -> None:
        await exchange.json_answer({"error": {"message": "busy"}}, 503, {"retry-after-ms": "1"})

    async with plain(busy, max_retries=retries) as (server, client):
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(model="m", messages=MESSAGES)
        counts = [seen.headers["x-stainless-retry-count"] for seen in server.seen]
    assert counts == [str(n) for n in range(retries + 1)]


async def test_a_request_may_set_its_own_retries() -> None:
    """``with_options(max_retries=…)`` holds for that call."""

    async def busy(exchange: Exchange) -> None:
        await exchange.json_answer({}, 500, {"retry-after-ms": "1"})

    async with configured(busy) as (server, client):
        with pytest.raises(openai.InternalServerError):
            await client.with_options(max_retries=4).chat.completions.create(
                model="smart", messages=MESSAGES
            )
        assert len(server.seen) == 5
        assert [s.headers["x-stainless-retry-count"] for s in server.seen] == list("01234")


async def test_nothing_is_retried_once_something_was_delivered() -> None:
    """A stream that breaks after its first byte is an error."""

    async def breaks(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.piece(chunk("a"))
        exchange.cut()

    async with plain(breaks) as (server, client):
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIConnectionError) as caught:
            async for _ in stream:
                pass
        assert isinstance(caught.value, specroute.StreamTruncated)
        assert len(server.seen) == 1


async def test_an_unset_timeout_leaves_the_configs() -> None:
    """5 and 600 are openai's defaults, which mean: not set."""

    async def silent(exchange: Exchange) -> None:
        await exchange.gone.wait()

    limits = {"first_token": 0.2, "stall": 0.2}
    async with configured(silent, timeouts=limits, max_retries=0) as (_, client):
        with pytest.raises(openai.APITimeoutError) as caught:
            await client.chat.completions.create(model="smart", messages=MESSAGES)
        assert isinstance(caught.value, specroute.DeadlineExceeded)
        assert (caught.value.which, caught.value.seconds) == ("first_token", 0.2)


async def test_a_whole_answer_has_the_total_to_come() -> None:
    """Nothing of it comes before all of it is made; ``first_token`` counts where it is set."""

    async def silent(exchange: Exchange) -> None:
        await exchange.gone.wait()

    async def limit(stream: bool, **limits: float) -> tuple[str, float]:
        async with configured(silent, timeouts=limits, max_retries=0) as (_, client):
            with pytest.raises(specroute.DeadlineExceeded) as caught:
                await client.chat.completions.create(
                    model="smart", messages=MESSAGES, stream=stream
                )
            with pytest.raises(specroute.DeadlineExceeded) as other:
                await client.embeddings.create(model="smart", input="x")
        if not stream:
            assert other.value.which == caught.value.which
        return caught.value.which, caught.value.seconds

    assert await limit(False, total=0.2) == ("total", 0.2)
    assert await limit(False, total=9, first_token=0.2) == ("first_token", 0.2)
    async with configured() as (_, client):
        routes = client.router.routes
        request = RouterRequest("POST", "/x")
        lab = routes.config.providers["lab"]
        assert routes.timeouts(lab, request).first_token == 600
        assert routes.timeouts(lab, request, streamed=False).first_token == float("inf")
        assert routes.timeouts(lab, request, streamed=False).total == 3600


@pytest.mark.parametrize("where", ["client", "options", "call"])
async def test_a_callers_timeout_caps_the_configs(where: str) -> None:
    """On the client, on a copy or on the call."""

    async def silent(exchange: Exchange) -> None:
        await exchange.gone.wait()

    async with configured(
        silent, max_retries=0, **({"timeout": 0.2} if where == "client" else {})
    ) as (_, client):
        if where == "options":
            client = client.with_options(timeout=0.2)
        extra = {"timeout": 0.2} if where == "call" else {}
        with pytest.raises(openai.APITimeoutError) as caught:
            await client.chat.completions.create(model="smart", messages=MESSAGES, **extra)
        assert caught.value.seconds == 0.2


async def test_a_plain_clients_timeouts_are_openais() -> None:
    """600 seconds between two bytes and no total at all, unless the caller says otherwise."""
    async with plain() as (_, client):
        provider = next(iter(client.router.config.providers.values()))

        def limits(**options: Any) -> Any:
            request = client.with_options(**options)._build_request(_options())
            timeout = request.extensions["timeout"]
            return client.router.routes.timeouts(
                provider,
                RouterRequest("POST", "/x", connect_s=timeout["connect"], read_s=timeout["read"]),
            )

        unset, set_, none = limits(), limits(timeout=7), limits(timeout=None)
    inf = float("inf")
    assert (unset.connect, unset.first_token, unset.stall, unset.total) == (5, 600, 600, inf)
    assert (set_.connect, set_.first_token, set_.stall, set_.total) == (7, 7, 7, inf)
    assert (none.connect, none.first_token, none.stall, none.total) == (inf, inf, inf, inf)


def _options() -> Any:
    from openai._models import FinalRequestOptions

    return FinalRequestOptions.construct(method="post", url="/x", json_data={})


async def test_refusals_surface_from_create() -> None:
    """A 401 or 429 to a streamed call is raised by ``create``, not by the iteration."""

    async def refuse(exchange: Exchange) -> None:
        await exchange.json_answer({"error": {"message": "who?"}}, 401)

    async with plain(refuse) as (_, client):
        with pytest.raises(openai.AuthenticationError, match="who"):
            await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)


async def test_create_returns_at_the_headers() -> None:
    """The stream is there before its first event."""
    release = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        await exchange.start()
        await release.wait()
        for piece in chunks("a"):
            await exchange.piece(piece)
        await exchange.finish()

    async with plain(slow) as (_, client):
        async with asyncio.timeout(5):
            stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        release.set()
        assert [c.choices[0].delta.content async for c in stream] == ["", "a", None]


async def test_no_drain_after_done_and_the_connection_is_reused() -> None:
    """openai is told HTTP/2; the drain was done before [DONE]."""
    async with plain() as (server, client):
        for _ in range(5):
            stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            assert stream.response.http_version == "HTTP/2"
            assert [c.choices[0].delta.content async for c in stream] == ["", "Hel", "lo", None]
        assert server.connections == 1


async def test_books_are_settled_before_done() -> None:
    """When the last chunk's turn comes, the report is final."""
    done: list[bool] = []
    async with plain() as (_, client):
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        decoder = stream._decoder
        original = decoder.aiter_bytes

        async def watched(iterator: Any) -> Any:
            async for item in original(iterator):
                if item.data.startswith("[DONE]"):
                    done.append(report(stream).complete)
                yield item

        decoder.aiter_bytes = watched
        async for _ in stream:
            pass
    assert done == [True]


@pytest.mark.parametrize("kind", [openai.DefaultAsyncHttpxClient, openai.DefaultAioHttpClient])
async def test_a_users_http_client_is_the_upstream_client(kind: Any) -> None:
    """Its headers, hooks and timeouts count, and closing closes it, as openai does."""
    calls: list[str] = []

    async def hook(request: httpx2.Request) -> None:
        calls.append(request.url.path)

    upstream = kind(headers={"X-Corp": "c"}, event_hooks={"request": [hook]}, timeout=77)
    async with plain(http_client=upstream) as (server, client):
        await client.chat.completions.create(model="m", messages=MESSAGES)
        assert server.seen[0].headers["x-corp"] == "c"
        assert calls == ["/v1/chat/completions"]
        assert client.timeout == httpx2.Timeout(77)
    assert upstream.is_closed
    assert client.is_closed()


def test_another_kind_of_http_client_is_refused() -> None:
    """httpx's own, or anything else: a clear error."""
    with pytest.raises(TypeError, match=r"httpx2\.AsyncClient"):
        AsyncSpecRoute(api_key="k", http_client=object())  # type: ignore[arg-type]


async def test_closing_twice_is_fine_and_ends_the_client() -> None:
    """Afterwards a call fails as openai's does."""
    async with plain() as (_, client):
        await client.close()
        await client.close()
        with pytest.raises(RuntimeError, match="closed"):
            await client.chat.completions.create(model="m", messages=MESSAGES)


async def test_bytes_are_forwarded_as_they_are() -> None:
    """Unusual spacing, unknown fields and comments come through untouched."""
    strange = b': hello\n\ndata:  {"choices" : [ {"delta": {"content" : "x"}, "own":1} ] }\n\n'

    async def odd(exchange: Exchange) -> None:
        await exchange.stream([strange, chunk(finish="stop"), DONE])

    async with (
        plain(odd) as (_, client),
        client.chat.completions.with_streaming_response.create(
            model="m", messages=MESSAGES, stream=True
        ) as response,
    ):
        body = b"".join([part async for part in response.iter_bytes()])
    assert body == strange + chunk(finish="stop") + DONE


async def test_the_transport_serves_any_client() -> None:
    """A foreign AsyncOpenAI over the transport: answers, the report in the body, no second retry."""
    fail = {"count": 0}

    async def handle(exchange: Exchange) -> None:
        if exchange.json["model"] == "bad":
            fail["count"] += 1
            await exchange.json_answer({"error": {"message": "busy"}}, 503, {"retry-after-ms": "1"})
        else:
            await exchange.json_answer(completion("Hello"))

    async with Loopback(handle) as server:
        tables = config(server.url, default_provider="lab")
        router = Router(load(tables))
        http = httpx2.AsyncClient(transport=SpecRouteTransport(router))
        async with openai.AsyncOpenAI(
            api_key="x", base_url="http://specroute/v1", http_client=http
        ) as client:
            got = await client.chat.completions.create(model="smart", messages=MESSAGES)
            assert report(got).target == "lab:lab-model"
            assert server.seen[0].json["model"] == "lab-model"
            with pytest.raises(openai.InternalServerError) as caught:
                await client.chat.completions.create(model="bad", messages=MESSAGES)
            assert caught.value.response.headers["x-should-retry"] == "false"
            with pytest.raises(openai.OpenAIError):
                await client.chat.completions.create(
                    model="smart", messages=MESSAGES, extra_body={"specroute": {"nonsense": 1}}
                )
        await router.aclose()
    assert fail["count"] == 3
