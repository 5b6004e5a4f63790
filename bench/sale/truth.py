"""The target's own greedy answers, one at a time and without a pace: what "identical" means.

They are the same for the same model and questions, so they are kept in ``.cache`` under a hash of
both, and of what computes them. Knows no settings.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import openai
import torch

from bench.sale.running import server
from bench.sale.traffic import MAX_TOKENS, Answer, Messages, ask
from specroute.reference.bundled import target_dir

ROOT = Path(__file__).parents[2]
KEPT = ROOT / ".cache"
CODE = ROOT / "specroute" / "reference"


async def truth(asked: Sequence[Messages], progress: Callable[[int], None]) -> list[Answer]:
    """In the order of the questions."""
    path = KEPT / f"sale-{_key(asked)}.json"
    if path.exists():
        return [Answer(**each) for each in json.loads(path.read_text(encoding="utf-8"))]
    found = []
    with server(target_dir(), "", "target") as alone:
        async with openai.AsyncOpenAI(base_url=alone.base_url, api_key="none") as client:
            for i, messages in enumerate(asked, 1):
                found.append(await ask(client, "target", messages, time.perf_counter()))
                progress(i)
    failed = next((answer.error for answer in found if answer.error is not None), None)
    if failed is not None:
        raise RuntimeError(f"the target's own answer could not be had: {failed}")
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps([asdict(answer) for answer in found]), encoding="utf-8")
    partial.replace(path)
    return found


def _key(asked: Sequence[Messages]) -> str:
    """The same only for the same weights, code, torch and questions."""
    digest = hashlib.blake2b(f"{torch.__version__} {MAX_TOKENS}".encode(), digest_size=12)
    for path in sorted([*target_dir().rglob("*"), *CODE.rglob("*.py")]):
        if path.is_file():
            digest.update(path.read_bytes())
    digest.update(json.dumps(asked).encode())
    return digest.hexdigest()
