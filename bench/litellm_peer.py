"""LiteLLM's Router as a contender of ``overhead.py``: reads ``[stream, at_once, calls]`` lines,
makes the calls, prints ``[seconds, seconds of CPU]``. Runs in an environment of its own."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from typing import Any

from litellm import Router

MESSAGES: Any = [{"role": "user", "content": "Say a few words about the weather today, please."}]


async def make_calls(router: Any, stream: bool, at_once: int, calls: int) -> tuple[float, float]:
    left = iter(range(calls))

    async def worker() -> None:
        for _ in left:
            answer = await router.acompletion(model="bench", messages=MESSAGES, stream=stream)
            if stream:
                async for _chunk in answer:
                    pass

    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(worker() for _ in range(at_once)))
    return time.perf_counter() - wall, time.process_time() - cpu


async def main(url: str) -> None:
    params = {"model": "openai/bench-model", "api_base": url, "api_key": "bench"}
    router = Router(model_list=[{"model_name": "bench", "litellm_params": params}], num_retries=0)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(await make_calls(router, *json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
