"""Canary keys on the paths beside the plain one: speculation, fallback, the synchronous client,
stores, telemetry, records. And what the package never does."""

from __future__ import annotations

import ast
import asyncio
import json
import logging
import ssl
from pathlib import Path
from typing import Any

import openai
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import specroute
from specroute import AsyncSpecRoute, SpecRoute, reports
from specroute.config import TelemetryConfig, parse
from specroute.router import Router
from specroute.store import MemoryStore
from specroute.telemetry.otel import OpenTelemetry
from tests.client.test_secrets import CANARIES, echoing, texts_of
from tests.client.world import KEYS, MESSAGES, config
from tests.support.loopback import DONE, Exchange, Loopback, chunk

PACKAGE = Path(specroute.__file__).parent


def leaked(*shown: object) -> list[str]:
    """The canaries that are in any of these texts."""
    text = "".join(map(str, shown))
    return [c for c in CANARIES if c in text]


def echo(kind: str) -> Any:
    """Answers streams well, and quotes the key to whatever else speculation asks."""

    async def handle(exchange: Exchange) -> None:
        key = exchange.headers["authorization"]
        said = json.dumps({"error": {"message": f"bad key {key}", "hint": [key]}}).encode()
        if exchange.json.get("stream") and kind != "broken stream":
            await exchange.stream([chunk("Hel"), chunk("lo"), chunk(finish="stop"), DONE])
        elif exchange.json.get("stream"):
            await exchange.start()
            await exchange.piece(chunk("Hel"))
            await exchange.piece(b"data: " + said + b"\n\n")
            await exchange.finish()
        elif kind == "status":
            await exchange.send(400, said)
        elif kind == "error in a 200":
            await exchange.send(200, said)
        else:
            await exchange.send(200, b"<p>" + key.encode(), kind="text/html")

    return handle


@pytest.mark.parametrize("kind", ["status", "error in a 200", "a page", "broken stream"])
@pytest.mark.parametrize("method", ["score", "prefix"])
async def test_speculation_shows_no_key(
    kind: str, method: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Not in reports, notes, plans' reasons, logs, warm-up's sentences, recorded traces or spans."""
    caplog.set_level(logging.DEBUG)
    exporter, traces = InMemorySpanExporter(), TracerProvider()
    traces.add_span_processor(SimpleSpanProcessor(exporter))
    record = tmp_path / "traces.jsonl"
    told: list[specroute.Report] = []
    async with Loopback(echo(kind)) as server:
        tables = config(server.url, record={"path": str(record), "texts": True})
        tables["providers"]["lab"] |= {
            "headers": {"X-Api-Key": CANARIES[2]},
            "capabilities": {
                "score": ["echo"],
                "completions": True,
                "prefill": "continue_final_message",
            },
            "probe": False,
        }
        policy = {"preset": "fixed", "method": method, "num_speculative_tokens": 4}
        tables["models"]["smart"] |= {"drafts": ["ngram"], "policy": policy}
        found = parse(tables, environ=KEYS)
        shown: list[object] = []
        async with AsyncSpecRoute(config=found, on_report=told.append) as client:
            client._seam.connections.answer_with(
                lambda up, store: Router(
                    found,
                    http_client=up,
                    store=store,
                    telemetry=OpenTelemetry(
                        TelemetryConfig(log="info"),
                        found.providers.get,
                        traces.get_tracer("t"),
                    ),
                ),
                MemoryStore(),
            )
            shown += await client.warm_up()
            with reports() as seen:
                try:
                    stream = await client.chat.completions.create(
                        model="smart", messages=MESSAGES, stream=True, max_tokens=20
                    )
                    shown += [c async for c in stream]
                except openai.OpenAIError as error:
                    shown += [*texts_of(error), error.__dict__]
            shown += [list(seen), told, client, client.router]
        shown += [caplog.text, [r.__dict__ for r in caplog.records]]
        shown += [s.to_json() for s in exporter.get_finished_spans()]
        assert server.seen and leaked(*(s.headers for s in server.seen))
    assert exporter.get_finished_spans()
    if record.exists():
        shown.append(await asyncio.to_thread(record.read_text, "utf-8"))
    assert leaked(*shown) == []


@pytest.mark.parametrize("status", [1, 2, 200, 401, 500])
async def test_a_fallback_shows_no_key_of_either(status: int) -> None:
    """Two targets that both quote the key they were sent."""
    async with Loopback(echoing(status)) as lab, Loopback(echoing(status)) as hub:
        tables = config(lab.url, hub.url)
        tables["models"]["smart"]["targets"] = ["lab:lab-model", "hub:hub-model"]
        async with AsyncSpecRoute(config=tables, max_retries=0) as client:
            with reports() as seen, pytest.raises(openai.OpenAIError) as caught:
                stream = await client.chat.completions.create(
                    model="smart", messages=MESSAGES, stream=True
                )
                async for _ in stream:
                    pass
        assert leaked(*(s.headers for s in lab.seen))
    assert leaked(*texts_of(caught.value), list(seen), [r.as_dict() for r in seen]) == []


@pytest.mark.parametrize("status", [1, 2, 200, 401, 500])
async def test_the_synchronous_client_shows_no_key(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages, notes, causes, reports, reprs, logs."""
    caplog.set_level(logging.DEBUG)
    async with Loopback(echoing(status)) as server:

        def work() -> list[object]:
            with SpecRoute(config=config(server.url), max_retries=0) as client:
                with reports() as seen, pytest.raises(openai.APIError) as caught:
                    for _ in client.chat.completions.create(
                        model="smart", messages=MESSAGES, stream=True
                    ):
                        pass
                return [*texts_of(caught.value), list(seen), client, client.router.config]

        shown = await asyncio.to_thread(work)
    assert leaked(*shown, caplog.text) == []


async def test_a_store_holds_no_key(tmp_path: Path) -> None:
    """Names of providers and numbers alone."""
    path = tmp_path / "limits.sqlite3"
    async with Loopback(echoing(401)) as server:
        tables = config(server.url, store={"kind": "file", "path": str(path)})
        tables["providers"]["lab"]["limits"] = {"rpm": 100, "tpm": 100_000}
        async with AsyncSpecRoute(config=tables, max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError):
                await client.chat.completions.create(model="smart", messages=MESSAGES)
    files = [f.read_bytes() for f in tmp_path.glob("limits.sqlite3*")]  # noqa: ASYNC240
    assert files and b"lab/rpm" in b"".join(files)
    assert leaked(*(f.decode("latin-1") for f in files)) == []


async def test_a_bad_reload_shows_no_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A key that somebody wrote into the file is refused and not quoted; the old config stays."""
    caplog.set_level(logging.DEBUG)
    good = config("http://127.0.0.1:1/v1")
    async with AsyncSpecRoute(config=good) as client:
        for wrong in (
            {"api_key": KEYS["LAB_KEY"]},
            {"env_key": KEYS["LAB_KEY"]},
            {"base_url": f"http://user:{KEYS['LAB_KEY']}@h/v1"},
            {"headers": {"X-Api-Key": [KEYS["LAB_KEY"]]}},
            {"timeouts": {"total": KEYS["LAB_KEY"]}},
        ):
            bad = config("http://127.0.0.1:1/v1")
            bad["providers"]["lab"] |= wrong
            before = client.router
            with pytest.raises(specroute.ConfigError) as caught:
                client.reload(bad)
            assert client.router is before
            assert leaked(*texts_of(caught.value), caught.value.__dict__, caplog.text) == []


async def test_certificates_are_checked() -> None:
    """By every client that is made here, and nothing in a config can turn it off."""
    client = AsyncSpecRoute(api_key="k", base_url="https://127.0.0.1:1/v1")
    sync = SpecRoute(api_key="k", base_url="https://127.0.0.1:1/v1")
    own = Router(parse(config("http://h/v1"), environ=KEYS))
    for upstream in (
        client._seam.connections.shown,
        sync._seam.connections.shown,
        own.http_client,
    ):
        context: Any = upstream._transport._pool._ssl_context  # type: ignore[attr-defined]
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    for made in (client, own):
        await (made.close() if isinstance(made, AsyncSpecRoute) else made.aclose())
    sync.close()


def sources() -> list[tuple[Path, ast.AST]]:
    return [(p, ast.parse(p.read_text(encoding="utf-8"))) for p in PACKAGE.rglob("*.py")]


def test_nothing_is_unpickled_evaluated_or_trusted() -> None:
    """No pickle and its kin, no eval or exec, no shell, no remote code, no unchecked TLS; torch
    loads weights only."""
    found: list[str] = []
    for path, tree in sources():
        for node in ast.walk(tree):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            found += [
                f"{path.name}: import {n}"
                for n in names
                if n.split(".")[0] in {"pickle", "cloudpickle", "dill", "shelve", "marshal"}
            ]
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            given = {k.arg: ast.unparse(k.value) for k in node.keywords}
            wrong = (
                called in ("eval", "exec", "os.system", "yaml.load")
                or given.get("trust_remote_code", "False") != "False"
                or given.get("shell", "False") != "False"
                or given.get("verify") == "False"
                or (called == "torch.load" and given.get("weights_only") != "True")
            )
            if wrong:
                found.append(f"{path.name}:{node.lineno}: {called}")
    assert found == []


def test_no_code_of_a_model_is_run() -> None:
    """Every loader that could says that it must not."""
    calls = [
        (path.name, {k.arg: ast.unparse(k.value) for k in node.keywords})
        for path, tree in sources()
        if "reference" not in path.parts
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith(".from_pretrained")
        and "GenerationConfig" not in ast.unparse(node.func)  # JSON, whatever it names.
    ]
    assert calls
    assert [name for name, given in calls if given.get("trust_remote_code") != "False"] == []
