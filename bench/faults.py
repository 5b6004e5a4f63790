"""One table of faults against three clients: AsyncSpecRoute, AsyncOpenAI, LiteLLM's Router.

``make bench-faults`` runs it. Every client has its retries on (two), the same time limits, and,
where it can use one, a second healthy deployment. Each cell is one request against fault servers
(``specroute.testing``) whose answer is known, so that what comes is judged character by character:
``right``; an error's class; ``CUT`` (an incomplete answer passes for a complete one); ``hang``.
``--markdown`` prints the tables of docs/reliability.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import openai

from specroute import AsyncSpecRoute
from specroute.testing import DEFAULT_ANSWER, Fault, FaultServer, On, faults

sys.path.insert(0, str(Path(__file__).resolve().parent))
from overhead import PEER_VENV, PEER_VERSION, install_peer

HERE = Path(__file__).resolve().parent
MESSAGES: Any = [{"role": "user", "content": "How was the day?"}]
TIMEOUT_S = 1.0
"""For the first token, and between two."""
LIMIT_S = 15.0
"""After this a call counts as hanging."""
TABLE: dict[str, Fault] = {
    "never answers": faults.silence(),
    "connection reset": faults.reset(),
    "connection closed": faults.hang_up(),
    "500": faults.status(500),
    "503": faults.status(503),
    "429": faults.rate_limited(),
    "429, Retry-After: 1": faults.rate_limited(retry_after=1),
    "429, retry-after-ms: 50": faults.rate_limited(retry_after_ms=50),
    "401": faults.unauthorized(),
    "insufficient_quota": faults.insufficient_quota(),
    "a web page, 200": faults.html(),
    "an empty body, 200": faults.empty(),
    "half a JSON, 200": faults.invalid_json(),
    "a list, 200": faults.wrong_shape(),
    "an error object, 200": faults.error_in_200(),
    "cut before a token": faults.cut(0),
    "cut after 5 tokens": faults.cut(5),
    "ends early, no token": faults.ends_early(0),
    "ends early, 5 tokens": faults.ends_early(5),
    "silence after 5 tokens": faults.stall(5),
    "only comments after 5": faults.keep_alives(5),
    "malformed event after 5": faults.malformed_event(5),
    "error event after 5": faults.error_event(5),
    "no [DONE]": faults.no_done(),
    "JSON for a stream": faults.whole_answer(),
    "stream as text/plain": faults.wrong_content_type(),
}

Result = dict[str, Any]
Ask = Callable[[list[str], bool], Awaitable[Result]]


async def read(create: Any, stream: bool, **more: Any) -> Result:
    """One call of an openai-like client."""
    out: Result = {"text": "", "finish": None, "error": None}
    started = time.perf_counter()
    try:
        async with asyncio.timeout(LIMIT_S):
            got = await create(messages=MESSAGES, stream=stream, **more)
            if stream:
                async for chunk in got:
                    for choice in chunk.choices:
                        out["text"] += choice.delta.content or ""
                        out["finish"] = choice.finish_reason or out["finish"]
            else:
                out["text"] = got.choices[0].message.content or ""
                out["finish"] = got.choices[0].finish_reason
    except TimeoutError:
        out["error"] = "hang"
    except Exception as error:  # noqa: BLE001 - what it is, is the result
        out["error"] = type(error).__name__
    out["seconds"] = time.perf_counter() - started
    return out


async def ask_openai(urls: list[str], stream: bool) -> Result:
    client = openai.AsyncOpenAI(api_key="any", base_url=urls[0], timeout=TIMEOUT_S, max_retries=2)
    async with client:
        return await read(client.chat.completions.create, stream, model="toy")


async def ask_specroute(urls: list[str], stream: bool) -> Result:
    limits = {"connect": 1, "first_token": TIMEOUT_S, "stall": TIMEOUT_S, "total": 10}
    providers = {
        f"p{i}": {"profile": "reference", "base_url": url, "timeouts": limits}
        for i, url in enumerate(urls)
    }
    model = {
        "targets": [f"{name}:toy" for name in providers],
        "fallback_on": ["429", "5xx", "connect", "first_token", "stall", "truncated"],
    }
    config = {"version": 1, "providers": providers, "models": {"toy": model}}
    async with AsyncSpecRoute(config=config, max_retries=2) as client:
        return await read(client.chat.completions.create, stream, model="toy")


class Peer:
    """LiteLLM's Router in its own process and environment."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [str(PEER_VENV / "bin" / "python"), str(HERE / "litellm_faults.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        )

    async def ask(self, urls: list[str], stream: bool) -> Result:
        call = {
            "urls": urls,
            "stream": stream,
            "messages": MESSAGES,
            "timeout": TIMEOUT_S,
            "limit": LIMIT_S,
        }

        def exchange() -> Result:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.write(json.dumps(call) + "\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith("=> "):
                    found: Result = json.loads(line[3:])
                    return found
            raise RuntimeError("the peer has ended")

        return await asyncio.to_thread(exchange)

    def close(self) -> None:
        self._process.terminate()  # Its own threads may outlive the end of its input.
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def verdict(out: Result) -> str:
    """What became of a call, in a word."""
    if out["error"] is not None:
        return str(out["error"])
    if out["text"] == DEFAULT_ANSWER and out["finish"] == "stop":
        return "right"
    return "CUT" if DEFAULT_ANSWER.startswith(out["text"]) else "WRONG"


async def cell(ask: Ask, fault: Fault, stream: bool, good: bool) -> tuple[str, float]:
    """``good``: the first deployment fails for good and a second one is healthy; otherwise the
    only one fails once."""
    async with AsyncExitStack() as stack:
        rule = On(fault, times=None if good else 1)
        servers = [await stack.enter_async_context(FaultServer(rule))]
        if good:
            servers.append(await stack.enter_async_context(FaultServer()))
        out = await ask([server.base_url for server in servers], stream)
        return verdict(out), out["seconds"]


async def table(asks: dict[str, Ask], good: bool, stream: bool, markdown: bool) -> Counter[str]:
    names = list(asks)
    kind = "streamed" if stream else "whole"
    head = "fails for good, a healthy one behind it" if good else "fails once"
    print(f"\n{'### ' if markdown else ''}The first deployment {head}; {kind}\n")
    if markdown:
        print(f"| fault | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    else:
        print(f"{'fault':26}" + "".join(f"{name:34}" for name in names))
    counts: Counter[str] = Counter()
    for name, fault in TABLE.items():
        found = {peer: await cell(ask, fault, stream, good) for peer, ask in asks.items()}
        shown = [f"{word} ({seconds:.1f} s)" for word, seconds in found.values()]
        if markdown:
            print(f"| {name} | {' | '.join(shown)} |", flush=True)
        else:
            print(f"{name:26}" + "".join(f"{each:34}" for each in shown), flush=True)
        for peer, (word, _) in found.items():
            counts[f"{peer}:{word if word in ('right', 'CUT', 'WRONG', 'hang') else 'error'}"] += 1
    return counts


async def main(options: argparse.Namespace) -> None:
    os.environ["SPECROUTE_CACHE_DIR"] = ""  # Nothing learned before, nothing left behind.
    asks: dict[str, Ask] = {"AsyncSpecRoute": ask_specroute, "AsyncOpenAI": ask_openai}
    peer = None
    if not options.without_litellm:
        install_peer()
        peer = Peer()
        asks["LiteLLM Router"] = peer.ask
        await peer.ask(["http://127.0.0.1:9/v1"], False)
    print(f"openai {openai.__version__}, {PEER_VERSION}; limits {TIMEOUT_S:g} s, two retries")
    try:
        total: Counter[str] = Counter()
        for good in (False, True):
            for stream in (True, False):
                # AsyncOpenAI has one deployment: where that fails for good it can but say so.
                total += await table(asks, good, stream, options.markdown)
    finally:
        if peer is not None:
            peer.close()
    words = ("right", "error", "CUT", "WRONG", "hang")
    print(f"\n{'### In all' if options.markdown else 'in all'}\n")
    if options.markdown:
        print(f"| | {' | '.join(words)} |\n|---|{'---:|' * len(words)}")
    for name in asks:
        row = [str(total[f"{name}:{word}"]) for word in words]
        if options.markdown:
            print(f"| {name} | {' | '.join(row)} |")
        else:
            print(f"{name:20}" + "".join(f"{w} {n:8}" for w, n in zip(words, row, strict=True)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--without-litellm", action="store_true")
    asyncio.run(main(parser.parse_args()))
