"""Drafts by ids: who is asked so, which leave together, and what each gets of the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from specroute import AsyncSpecRoute
from specroute.context import Committed, Prompt
from specroute.draft.by_ids import LOOK_S, IdDrafts
from specroute.draft.remote import RemoteDrafter
from specroute.errors import ConnectFailed, DraftError, StatusError
from specroute.profiles import Capabilities
from specroute.reference.running import ReferenceServer
from specroute.reference.script import Script
from tests.support.scripted import ScriptVocabulary
from tests.support.tiny import save_model, save_tokenizer

CAPS = Capabilities(
    completions=True,
    id_prompts=True,
    list_prompts=True,
    template="tokenize",
    answer_ids_param="return_token_ids",
    prefill="prefix",
)
CHAT = ({"role": "user", "content": "hi"},)
PROMPT = Prompt(CHAT, None, (7, 8))


class Fleet:
    """A provider whose model counts up from a prompt's last id."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.arrived = asyncio.Event()
        self.rendered: Any = [7, 8]
        self.refuse: Any = lambda prompt: None
        self.wait: asyncio.Event | None = None
        self.cancelled = False
        self.reverse = False
        self.now = 0.0

    async def post(self, path: str, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        prompt, k = payload.get("prompt"), payload.get("max_tokens", 1)
        self.asked.append((path, prompt, k))
        if path != "/completions":
            return {"choices": [{"message": {"content": "by text"}, "finish_reason": "length"}]}
        if (error := self.refuse(prompt)) is not None:
            raise error
        if self.wait is not None:
            self.arrived.set()
            try:
                await self.wait.wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise
        prompts = prompt if isinstance(prompt[0], list) else [prompt]
        choices = [
            {"index": i, "text": f"after {p[-1]}", "token_ids": [p[-1] + j + 1 for j in range(k)]}
            for i, p in enumerate(prompts)
        ]
        made = len(prompts) * k
        usage = {"prompt_tokens": sum(map(len, prompts)), "completion_tokens": made}
        return {"choices": choices[:: -1 if self.reverse else 1], "usage": usage}

    async def tokenize(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked.append(("/tokenize", payload["messages"], 0))
        if isinstance(self.rendered, Exception):
            raise self.rendered
        return {"tokens": self.rendered}

    async def together(self, path: str, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self.post(path, payload)


def status(code: int) -> StatusError:
    return StatusError("no", provider="p", status=code, headers={}, body=b"")


def drafts(fleet: Fleet) -> IdDrafts:
    return IdDrafts("fleet", "small", CAPS, fleet, lambda: fleet.now)


def drafter(fleet: Fleet, made: IdDrafts | None = None) -> RemoteDrafter:
    by_ids = made or drafts(fleet)
    return RemoteDrafter("fleet", "small", fleet.post, CAPS, _continued, by_ids=by_ids)


def _continued(body: Mapping[str, Any], text: str, dialect: str) -> dict[str, Any]:
    return {**body, "prefill": text}


WORDS = [f"w{i} " for i in range(20)]
VOCABULARY = ScriptVocabulary(Script({"vocabulary": WORDS, "default": dict.fromkeys(WORDS, 1.0)}))
"""Ids are the words' numbers; 20 ends an answer."""


async def test_the_same_vocabulary_is_seen_and_not_believed() -> None:
    """Its /tokenize renders the target's very prompt: asked once, and then by ids."""
    fleet = Fleet()
    made = drafter(fleet)
    for _ in range(2):
        session = await made.open(PROMPT, VOCABULARY)
        proposal = await session.propose(Committed("w9 ", (9,)), 3)
    assert (proposal.ids, proposal.text) == ((10, 11, 12), "w10 w11 w12 ")
    assert [path for path, _, _ in fleet.asked] == ["/tokenize", "/completions", "/completions"]
    assert fleet.asked[-1][1] == [7, 8, 9]


@pytest.mark.parametrize(
    ("rendered", "looks"),
    [
        ([7, 9], 1),
        (None, 1),
        (status(404), 1),
        (status(503), 2),
        (ConnectFailed("x", provider="p"), 2),
    ],
    ids=["another prompt", "no ids", "no such path", "busy", "away"],
)
async def test_a_model_that_may_not_speak_it_is_asked_by_text(rendered: Any, looks: int) -> None:
    """What has answered is not asked again; what could not is."""
    fleet = Fleet()
    fleet.rendered = rendered
    made = drafter(fleet)
    for _ in range(2):
        # The second has waited for the first one's look, and takes what it found.
        sessions = await asyncio.gather(*(made.open(PROMPT, VOCABULARY) for _ in range(2)))
        await sessions[1].propose(Committed("w9 ", (9,)), 3)
        fleet.now += LOOK_S
    paths = [path for path, _, _ in fleet.asked]
    assert paths.count("/tokenize") == looks and paths.count("/chat/completions") == 2


async def test_a_draft_ends_with_the_end_token() -> None:
    """Which has an id and no text; what comes after it is no draft."""
    session = await drafter(Fleet()).open(PROMPT, VOCABULARY)
    proposal = await session.propose(Committed("w17 ", (17,)), 4)
    assert (proposal.ids, proposal.text, proposal.ended) == ((18, 19, 20), "w18 w19 ", True)


@pytest.mark.parametrize(
    ("shown", "ids"),
    [
        ({"logprobs": {"tokens": ["token_id:3", "token_id:4"]}}, (3, 4)),
        ({"logprobs": {"tokens": ["w3 ", "w4 "]}}, (3, 4)),
        ({"logprobs": None}, (3, 4)),
    ],
    ids=["named by id", "named by text", "not shown"],
)
async def test_ids_are_read_where_they_are_shown(shown: Any, ids: tuple[int, ...]) -> None:
    """Otherwise the text is put into the target's ids."""
    fleet = Fleet()

    async def post(path: str, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"choices": [{"text": "w3 w4 ", "finish_reason": "length", **shown}]}

    fleet.post = post  # type: ignore[method-assign]
    session = await drafter(fleet).open(PROMPT, VOCABULARY)
    proposal = await session.propose(Committed("w2 ", (2,)), 2)
    assert (proposal.ids, proposal.text) == (ids, "w3 w4 ")


async def test_ids_that_are_refused_leave_text() -> None:
    """Within the same draft, and for good."""
    fleet = Fleet()
    fleet.refuse = lambda prompt: status(422)
    made = drafter(fleet)
    for _ in range(2):
        session = await made.open(PROMPT, VOCABULARY)
        assert await session.propose(Committed("w9 ", (9,)), 3) is not None
    paths = [path for path, _, _ in fleet.asked]
    assert paths == ["/tokenize", "/completions", "/chat/completions", "/chat/completions"]


async def test_what_is_too_long_by_ids_takes_them_from_no_other_prompt() -> None:
    """A draft's model may hold less than its target: only as long prompts are asked by text."""
    fleet = Fleet()
    made = drafter(fleet)

    async def path_of(length: int) -> list[str]:
        before = len(fleet.asked)
        session = await made.open(PROMPT, VOCABULARY)
        await session.propose(Committed("w9 " * length, (9,) * length), 3)
        return [path for path, _, _ in fleet.asked[before:]]

    await path_of(1)
    fleet.refuse = lambda prompt: status(400) if len(prompt) > 10 else None
    assert await path_of(20) == ["/completions", "/chat/completions"]
    assert await path_of(2) == ["/completions"]
    assert await path_of(30) == ["/chat/completions"]


async def test_a_look_that_takes_too_long_keeps_nobody_from_a_draft_by_text() -> None:
    """Who has no patience for it is the last one to wait for it, for a hundred times as long."""
    fleet = Fleet()
    made, asked, never = drafter(fleet), asyncio.Event(), asyncio.Event()

    async def hang(payload: Mapping[str, Any]) -> Mapping[str, Any]:
        asked.set()
        await never.wait()
        return {}

    fleet.tokenize = hang  # type: ignore[method-assign]
    first, second = (asyncio.ensure_future(made.open(PROMPT, VOCABULARY)) for _ in range(2))
    await asked.wait()
    fleet.now += 2
    first.cancel()
    await second  # It had been waiting for the first one's look.
    fleet.now += 190
    session = await made.open(PROMPT, VOCABULARY)
    await session.propose(Committed("w9 ", (9,)), 3)
    assert [path for path, _, _ in fleet.asked] == ["/chat/completions"]
    asked.clear()
    fleet.now += 20
    again = asyncio.ensure_future(made.open(PROMPT, VOCABULARY))
    await asked.wait()
    again.cancel()


async def test_a_fleet_that_fails_rests() -> None:
    """As any other remote draft."""
    fleet = Fleet()
    made = drafter(fleet)
    session = await made.open(PROMPT, VOCABULARY)
    fleet.refuse = lambda prompt: ConnectFailed("gone", provider="p")
    with pytest.raises(DraftError, match="gone"):
        await session.propose(Committed("", ()), 3)
    with pytest.raises(DraftError):
        await made.open(PROMPT, VOCABULARY)


async def test_a_fleet_drafts_for_a_crowd_in_lists_of_ids(tmp_path: Path) -> None:
    """Two servers of one model: every draft is right, the answers are the target's own, the bills
    are the servers', and drafts shared requests."""
    torch.set_num_threads(1)
    save_tokenizer(tmp_path)
    save_model(tmp_path, eos=None)
    lab, small = (
        ReferenceServer(tmp_path, names=[name], pace="tpot=10ms") for name in ("big", "small")
    )
    with lab as target, small as fleet:
        tables = {
            "version": 1,
            "providers": {
                "lab": {
                    "profile": "reference",
                    "base_url": target.base_url,
                    "capabilities": {"joint_rounds": True},
                },
                "fleet": {"profile": "reference", "base_url": fleet.base_url},
            },
            "drafts": {"fleet": {"kind": "remote", "provider": "fleet", "model": "small"}},
            "models": {
                "demo": {
                    "targets": ["lab:big"],
                    "drafts": ["fleet"],
                    "tokenizer": str(tmp_path),
                    "policy": {"preset": "fixed", "method": "score", "num_speculative_tokens": 5},
                }
            },
            "shadow": {"share": 0.0},
        }
        requests = [
            {
                "model": "demo",
                "messages": [{"role": "user", "content": f"Order {n}: where is it?"}],
                "max_tokens": 24,
                "temperature": 0,
            }
            for n in range(8)
        ]
        async with AsyncSpecRoute(config=tables) as client:
            await client.warm_up()
            plain = await client.batch(requests, method="plain", progress=False)
            before = len(fleet.log)
            result = await client.batch(requests, progress=False)
        records = [r for r in fleet.log[before:] if r.completion_tokens]
    assert [item.text for item in result] == [item.text for item in plain]
    reports = [item.report for item in result]
    assert {report.method for report in reports} == {"score"}
    assert sum(r.drafted for r in reports) == sum(r.accepted for r in reports)
    assert {record.path for record in records} == {"/v1/completions"}
    assert max(record.prompts for record in records) > 1
    attempts = [a for r in reports for a in r.attempts if a.purpose == "draft"]
    for kind in ("prompt_tokens", "completion_tokens"):
        billed = sum(getattr(a.usage, kind) for a in attempts)
        assert billed == sum(getattr(record, kind) for record in records)
