"""LiteLLM's Router as a contender of ``faults.py``: reads one JSON call a line, prints what came.

Two deployments, retries and fallback on; a fresh Router for each call, so that no cooldown of one
reaches the next. Runs in an environment of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from litellm import Router


def make_router(call: dict[str, Any]) -> Router:
    def deployment(name: str, url: str) -> dict[str, Any]:
        params = {"model": "openai/toy", "api_base": url, "api_key": "any"}
        return {"model_name": name, "litellm_params": params}

    models = [deployment("main", call["urls"][0])]
    options: dict[str, Any] = {}
    if len(call["urls"]) > 1:
        models.append(deployment("spare", call["urls"][1]))
        options["fallbacks"] = [{"main": ["spare"]}]
    return Router(
        model_list=models,
        num_retries=2,
        timeout=call["timeout"],
        stream_timeout=call["timeout"],
        **options,
    )


async def answer(call: dict[str, Any]) -> dict[str, Any]:
    router = make_router(call)
    out: dict[str, Any] = {"text": "", "finish": None, "error": None}
    started = time.perf_counter()
    try:
        async with asyncio.timeout(call["limit"]):
            got = await router.acompletion(
                model="main", messages=call["messages"], stream=call["stream"]
            )
            if call["stream"]:
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


async def main() -> None:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print("\n" + "=> " + json.dumps(await answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
