"""A batch with a local draft: one engine for all of it, and rounds that share requests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from specroute import AsyncSpecRoute
from specroute.batch import BatchResult
from specroute.draft.local import LocalDrafter
from specroute.reference.running import ReferenceServer
from tests.support.tiny import save_model, save_tokenizer

COUNT, TOKENS = 16, 24
REQUESTS = [
    {
        "model": "demo",
        "messages": [{"role": "user", "content": f"Order {n}: where is it?"}],
        "max_tokens": TOKENS,
        "temperature": 0,
    }
    for n in range(COUNT)
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReferenceServer]:
    """A random model; as its own draft it is always right."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("model")
    save_tokenizer(folder)
    save_model(folder, eos=None)
    # Steps of a length of their own: what is asked in one is answered, and drafted after, together.
    with ReferenceServer(folder, names=["tiny"], pace="tpot=30ms") as running:
        running.folder = folder  # type: ignore[attr-defined]
        yield running


def config(server: ReferenceServer, joint: bool, policy: Any = "balanced") -> dict[str, Any]:
    folder: Path = server.folder  # type: ignore[attr-defined]
    return {
        "version": 1,
        "providers": {
            "lab": {
                "profile": "reference",
                "base_url": server.base_url,
                "capabilities": {"joint_rounds": joint},
            }
        },
        "drafts": {"draft": {"kind": "local", "model": str(folder), "device": "cpu"}},
        "models": {"demo": {"targets": ["lab:tiny"], "drafts": ["draft"], "policy": policy}},
        "shadow": {"share": 0.0},
    }


async def plain(server: ReferenceServer) -> list[str | None]:
    async with AsyncSpecRoute(config=config(server, joint=False)) as client:
        result = await client.batch(REQUESTS, method="plain", progress=False)
    return [item.text for item in result]


def ok(result: BatchResult) -> None:
    for item in result:
        assert item.ok, item.error
        assert item.report is not None
        assert item.report.method == "score", item.report
        assert item.report.exactness == "exact-greedy"


@pytest.mark.parametrize("joint", [False, True], ids=["separate", "joint"])
async def test_a_batch_drafts_through_one_engine_many_at_a_step(
    server: ReferenceServer, joint: bool
) -> None:
    """Without a warm-up: the draft is loaded once, a step of it drafts for two requests and more in
    the mean, prompts read included, and where rounds may share a request most of them do."""
    answers = await plain(server)
    before = {thread.name for thread in threading.enumerate()}
    async with AsyncSpecRoute(config=config(server, joint)) as client:
        result = await client.batch(REQUESTS, concurrency=COUNT, method="score", progress=False)
        pool = client.router.speculation.pool
        drafter = pool.drafter("draft")
        (target,) = pool.targets.values()
        assert isinstance(drafter, LocalDrafter)
        assert drafter._stepper is not None
        new = {thread.name for thread in threading.enumerate()} - before
        assert sum(name.startswith("specroute-step-") for name in new) == 1
        reports = [item.report for item in result if item.report is not None]
        passes = drafter._stepper.steps
    ok(result)
    drafted, rounds = sum(r.drafted for r in reports), sum(r.rounds for r in reports)
    assert [item.text for item in result] == answers
    assert drafted >= 0.7 * COUNT * TOKENS
    # As its own draft the model is always right: no token is drafted twice.
    assert drafted < COUNT * TOKENS
    # One after another each drafted token is a pass of its own, and prompts are more of them.
    assert 2 * passes <= drafted
    if joint:
        assert target.joint.rounds > rounds / 2
        assert 2 * target.joint.requests <= target.joint.rounds
    else:
        assert target.joint.requests == 0


async def test_one_at_a_time_no_pass_is_shared(server: ReferenceServer) -> None:
    """What the figures above are held against: a pass a drafted token, a request a round."""
    async with AsyncSpecRoute(config=config(server, joint=True)) as client:
        result = await client.batch(REQUESTS[:3], concurrency=1, method="score", progress=False)
        pool = client.router.speculation.pool
        drafter = pool.drafter("draft")
        (target,) = pool.targets.values()
        assert isinstance(drafter, LocalDrafter)
        assert drafter._stepper is not None
        drafted = sum(item.report.drafted for item in result if item.report is not None)
        assert drafter._stepper.steps >= drafted
        assert target.joint.requests == 0
    ok(result)
    asked = sum(
        attempt.purpose == "score" for i in result if i.report for attempt in i.report.attempts
    )
    assert asked == sum(item.report.rounds for item in result if item.report is not None)
