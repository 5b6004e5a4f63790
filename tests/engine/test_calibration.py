"""Scoring is trusted only after the target's own tokens came back as it had made them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from specroute.reference.running import ReferenceServer
from tests.engine.answers import TEXT, EchoDrafter, ask, script
from tests.engine.test_faults import through
from tests.engine.world import World, chain, speculating
from tests.support.proxy import Fault, Proxy

NO_IDS = {"id_prompts": False, "template": "apply-template"}


def edited(path: str, change: Any) -> Any:
    """A judge that changes every answer on ``path``."""

    def judge(asked: str, body: Mapping[str, Any], n: int) -> Fault | None:
        return Fault("edit", value=change) if asked.endswith(path) else None

    return judge


def _one_more(data: Any) -> None:
    data["usage"]["prompt_tokens"] += 1


def _penalised(data: Any) -> None:
    """As if tokens seen before were less likely when generating."""
    shown = data["choices"][0].get("logprobs") or {}
    for i, entry in enumerate(shown.get("content") or ()):
        if i > 2:
            entry["logprob"] -= 1.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"quirks": ["echo_shifted"]}, "scored"),
        ({"ignore": ["echo"]}, "left out"),
        ({"disable": ["echo"]}, "the server refused echo"),
        ({"disable": ["completions"]}, "the server refused echo"),
        ({"disable": ["id_prompts"]}, "the server refused echo"),
        ({"disable": ["tokenize"]}, "refused /tokenize"),
        ({"ignore": ["logprobs"]}, "logprobs"),
        ({"ignore": ["token_id_names"]}, ""),
    ],
    ids=str,
)
async def test_a_server_that_cannot_be_believed_is_not_scored_on(
    options: dict[str, Any], said: str
) -> None:
    """The answer is plain and the reason clear, for the second request as well."""
    world = World(chain(end=0.0))
    with ReferenceServer(world.spec, **options) as server:
        async with speculating(world, server) as client:
            for _ in range(2):
                before = len(server.log)
                got = await ask(client, max_tokens=12)
                assert got.report is not None
                assert got.report.method == "plain"
                assert got.report.exactness == "exact"
                assert said in got.report.plan_reason
                assert "not trusted" in got.report.plan_reason
            assert len(server.log) == before + 1
            plain = client.with_options(policy={"preset": "fixed", "method": "plain"})
            assert (await ask(plain, max_tokens=12)).content == got.content


@pytest.mark.parametrize(
    ("judge", "said"),
    [
        (edited("/chat/completions", _one_more), "counted 37 prompt tokens"),
        (edited("/chat/completions", _penalised), "was generated at log-probability"),
    ],
    ids=["another prompt", "repetition penalty"],
)
async def test_a_server_that_makes_something_else_of_the_request_is_not_scored_on(
    judge: Any, said: str
) -> None:
    """It counts another prompt, or generates at other probabilities than it scores."""
    with ReferenceServer(script()) as server:
        async with through(server, judge) as (client, _):
            got = await ask(client, stream=False)
            assert got.text == TEXT
            assert got.report is not None
            assert got.report.method == "plain"
            assert said.partition(" 37")[0] in got.report.plan_reason


@pytest.mark.parametrize("penalises", [True, False])
async def test_a_penalty_that_no_logprob_shows_is_found_out(penalises: bool) -> None:
    """As vLLM applies a model folder's repetition_penalty, with raw log-probabilities: of two
    tokens that are equally wanted the server then says the one that wasn't said before."""

    def judge(path: str, body: Mapping[str, Any], n: int) -> Fault | None:
        bias = body.get("logit_bias") or {}
        if not (bias and penalises):
            return None
        _, new = sorted(map(int, bias), key=lambda token: token not in body["prompt"])
        assert new not in body["prompt"]

        def penalised(data: Any) -> None:
            data["choices"][0]["logprobs"]["tokens"] = [f"token_id:{new}"]

        return Fault("edit", value=penalised)

    world = World()
    with ReferenceServer(world.spec) as server:
        async with Proxy(server.base_url, judge) as proxy:
            provider = {"capabilities": {"score": ["echo"]}, "base_url": proxy.base_url}
            async with speculating(world, server, provider=provider) as client:
                got = await ask(client, max_tokens=12)
                assert got.report is not None
                assert got.report.method == ("plain" if penalises else "score")
                assert ("less likely by a default" in got.report.plan_reason) is penalises
                lifted = [body for _, body in proxy.asked if "logit_bias" in body]
                assert len(lifted) == 1


async def test_scaled_logprobs_are_found_out_or_harmless() -> None:
    """Generated tokens' log-probabilities after temperature don't touch what is scored."""
    world = World(script())
    with ReferenceServer(world.spec, quirks=["scaled_logprobs"]) as server:
        async with speculating(world, server, drafter=EchoDrafter(world.spec)) as client:
            got = await ask(client)
            assert got.text == TEXT
            assert got.report is not None
            assert got.report.method == "score"


async def test_twenty_first_requests_calibrate_once() -> None:
    """The others wait for the one."""
    world = World(script())
    with ReferenceServer(world.spec) as server:
        async with speculating(world, server, drafter=EchoDrafter(world.spec)) as client:
            answers = await asyncio.gather(*(ask(client) for _ in range(20)))
            assert {a.text for a in answers} == {TEXT}
            assert {a.report.method for a in answers if a.report} == {"score"}
            assert sum(r.path == "/v1/chat/completions" for r in server.log) == 1


async def test_a_target_out_of_reach_is_not_asked_again_at_once() -> None:
    """Calibration that got no answer is put off, not refused for good."""

    def judge(path: str, body: Mapping[str, Any], n: int) -> Fault | None:
        return Fault("status", 503) if path == "/tokenize" else None

    with ReferenceServer(script()) as server:
        async with through(server, judge) as (client, proxy):
            for _ in range(3):
                got = await ask(client)
                assert got.text == TEXT
                assert got.report is not None
                assert "could not be calibrated yet" in got.report.plan_reason
            assert proxy.count(lambda path, body: path == "/tokenize") == 1


# Where ids are not known, text alone is compared


async def test_text_alone_is_enough_at_temperature_zero() -> None:
    """With an n-gram draft and no tokenizer; the label says what that leaves open."""
    world = World(script())
    config = {
        "version": 1,
        "models": {
            "m": {
                "targets": ["lab:chain"],
                "drafts": ["ngram"],
                "policy": {"preset": "fixed", "method": "score", "num_speculative_tokens": 4},
            }
        },
    }
    from specroute import AsyncSpecRoute

    said = "one, two, three, four; say: "
    with ReferenceServer(world.spec, disable=["id_prompts", "tokenize"]) as server:
        provider = {"profile": "reference", "base_url": server.base_url, "capabilities": NO_IDS}
        async with AsyncSpecRoute(config={**config, "providers": {"lab": provider}}) as client:
            plain = client.with_options(policy={"preset": "fixed", "method": "plain"})
            for prompt in (said, said + TEXT, "nothing of it"):
                for limit in (None, 1, 2, 5, 9):
                    body = {} if limit is None else {"max_tokens": limit}
                    expected = await ask(plain, prompt=prompt, **body)
                    got = await ask(client, prompt=prompt, **body)
                    assert got.content == expected.content
                    report = got.report
                    assert report is not None
                    assert report.drafted >= report.accepted + report.rejected
                    if report.method == "score":
                        assert report.exactness == "bounded"
                        assert "retokenised" in (report.exactness_reason or "")
            assert (await ask(client, prompt=said + TEXT, max_tokens=9)).report.accepted  # type: ignore[union-attr]
            warm = await ask(client, prompt=said, temperature=0.8, max_tokens=5)
            assert warm.report is not None
            assert warm.report.method == "plain"
            assert "only tokens whose ids are known" in warm.report.plan_reason
