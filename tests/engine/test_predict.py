"""Predicted outputs: sent where a target takes them, counted, and never in the way of a plain call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from specroute import AsyncSpecRoute, report
from specroute.reference.running import ReferenceServer
from tests.engine.answers import VOCABULARY, EchoDrafter, ask
from tests.engine.world import World, speculating
from tests.support.proxy import Fault, Proxy

OLD = (
    "one, two, three, four; one, two, six. The quick brown fox jumps over the lazy dog and rests. "
    * 3
)
NEW = OLD.replace("quick", "lazy", 1)
PROMPT = f"Change one word of this text.\n\n{OLD}"
PREDICT = {"preset": "fixed", "method": "predict"}


def spec(text: str = NEW) -> dict[str, Any]:
    return {"name": "chain", "vocabulary": VOCABULARY, "answers": [{"text": text}]}


@asynccontextmanager
async def predicting(
    server: ReferenceServer | Proxy, policy: Mapping[str, Any] = PREDICT, **capabilities: Any
) -> AsyncIterator[AsyncSpecRoute]:
    """A client with the n-gram drafter at a server whose profile says that it takes predictions."""
    config = {
        "version": 1,
        "providers": {
            "lab": {
                "profile": "generic",
                "base_url": server.base_url,
                "capabilities": {"prediction": True, "stream_usage": True, **capabilities},
                "prices": {"input": 1.0, "output": 4.0},
            }
        },
        "models": {"m": {"targets": ["lab:chain"], "drafts": ["ngram"], "policy": policy}},
    }
    async with AsyncSpecRoute(config=config) as client:
        yield client


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_the_passage_is_sent_and_the_answer_and_its_usage_are_the_plain_ones(
    stream: bool,
) -> None:
    """The report has what was accepted, rejected and billed."""
    with ReferenceServer(spec()) as server:
        async with predicting(server) as client:
            plain = client.with_options(policy={"preset": "fixed", "method": "plain"})
            expected = await ask(plain, prompt=PROMPT, stream=stream)
            got = await ask(client, prompt=PROMPT, stream=stream)
    assert (got.text, got.finish, got.usage) == (NEW, "stop", expected.usage)
    shown = got.report
    assert shown is not None
    assert (shown.method, shown.exactness, shown.drafter) == ("predict", "exact-greedy", "ngram")
    assert shown.rounds == 1
    assert shown.accepted > 10 * shown.rejected > 0
    assert shown.drafted == shown.accepted + shown.rejected
    record = server.log[-1]
    assert (record.accepted_prediction_tokens, record.rejected_prediction_tokens) == (
        shown.accepted,
        shown.rejected,
    )
    (attempt,) = shown.attempts
    assert attempt.purpose == "predict"
    assert attempt.usage.rejected_prediction_tokens == shown.rejected
    assert expected.usage is not None
    assert shown.billed_completion_tokens == expected.usage[1] + shown.rejected


async def test_a_prediction_is_no_longer_than_the_answer_may_be() -> None:
    """With max_tokens, no more is sent, and the answer is cut where a plain one is."""
    with ReferenceServer(spec()) as server:
        async with predicting(server) as client:
            plain = client.with_options(policy={"preset": "fixed", "method": "plain"})
            expected = await ask(plain, prompt=PROMPT, max_tokens=9)
            got = await ask(client, prompt=PROMPT, max_tokens=9)
    assert got.content == expected.content
    assert got.report is not None
    assert got.report.drafted < 20


async def test_a_refused_prediction_is_not_sent_again() -> None:
    """The call goes plain, says why, and the next one doesn't try."""
    with ReferenceServer(spec(), disable=["prediction"]) as server:
        async with predicting(server) as client:
            first = await ask(client, prompt=PROMPT)
            second = await ask(client, prompt=PROMPT)
    for got in (first, second):
        assert (got.text, got.finish) == (NEW, "stop")
        assert got.report is not None
        assert got.report.method == "plain"
        assert "refused a prediction" in got.report.plan_reason
    assert [r.status for r in server.log].count(400) == 1


async def test_a_request_that_is_wrong_itself_says_nothing_of_predictions() -> None:
    """Its error is the caller's, and the next request is sent with a prediction."""
    with ReferenceServer(spec()) as server:
        async with predicting(server) as client:
            with pytest.raises(openai.BadRequestError, match="top_p"):
                await ask(client, prompt=PROMPT, top_p=7)
            got = await ask(client, prompt=PROMPT)
            assert got.report is not None and got.report.method == "predict"


async def test_refusals_that_give_no_reason_are_believed_at_the_third() -> None:
    """Each such request is answered by a plain call."""
    with ReferenceServer(spec()) as server:
        vague = Fault("status", status=400)
        fault = lambda path, body, n: vague if body.get("prediction") else None  # noqa: E731
        async with Proxy(server.base_url, fault) as proxy, predicting(proxy) as client:
            for _ in range(5):
                assert (await ask(client, prompt=PROMPT)).text == NEW
            assert proxy.count(lambda path, body: bool(body.get("prediction"))) == 3


async def test_a_server_that_ignores_the_prediction_still_answers() -> None:
    """Nothing is counted then."""
    with ReferenceServer(spec(), ignore=["prediction"]) as server:
        async with predicting(server) as client:
            got = await ask(client, prompt=PROMPT)
    assert (got.text, got.finish) == (NEW, "stop")
    assert got.report is not None
    assert (got.report.drafted, got.report.accepted) == (0, 0)


async def test_fields_that_do_not_go_together_lead_to_a_plain_call() -> None:
    """By the profile's list; the reason names the field."""
    with ReferenceServer(spec()) as server:
        async with predicting(server, prediction_without=["max_completion_tokens"]) as client:
            got = await ask(client, prompt=PROMPT, max_completion_tokens=5)
    assert got.report is not None
    assert got.report.method == "plain"
    assert "'max_completion_tokens'" in got.report.plan_reason


async def test_a_prompt_without_a_passage_goes_plain() -> None:
    """There is nothing to predict with; the report says so."""
    with ReferenceServer(spec()) as server:
        async with predicting(server) as client:
            got = await ask(client, prompt="go")
    assert got.text == NEW
    assert got.report is not None
    assert got.report.method == "plain"
    assert any("nothing to predict with" in note for note in got.report.notes)


async def test_a_draft_that_had_nothing_to_predict_with_is_known_for_it() -> None:
    """As one of which the server took nothing, at plain's pace: else each request would try it
    anew."""
    with ReferenceServer(spec()) as server:
        async with predicting(server) as client:
            for _ in range(3):
                await ask(client, prompt="go", stream=True)
            speculation = client.router.speculation
            assert speculation is not None
            found = speculation.measurements.snapshot(
                "lab:chain", "ngram", "chat#none/prose/256", "predict", prompt_tokens=5
            )
    assert found.predicted is not None
    assert found.predicted.mean < 0.3
    assert found.predicted_tpot is not None
    assert found.pace.tpot_s is not None
    assert found.predicted_tpot.mean == pytest.approx(found.pace.tpot_s, rel=0.9)


async def test_the_callers_own_prediction_is_passed_on_and_counted() -> None:
    """As it is, whatever the policy; usage shows what the provider said."""
    with ReferenceServer(spec()) as server:
        async with predicting(server) as client:
            answer = await client.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": "go"}],
                temperature=0,
                prediction={"type": "content", "content": OLD},
            )
    shown = report(answer)
    assert answer.choices[0].message.content == NEW
    assert answer.usage is not None
    details = answer.usage.completion_tokens_details
    assert details is not None
    assert (shown.method, shown.drafter) == ("predict", "caller")
    assert (shown.accepted, shown.rejected) == (
        details.accepted_prediction_tokens,
        details.rejected_prediction_tokens,
    )
    assert shown.accepted > 0


async def test_a_models_own_draft_is_sent_where_the_prompt_has_no_passage() -> None:
    """Drafted once, before the call leaves; what is wrong in it is rejected, the answer is the
    target's."""
    target = spec(
        "one, two, three, four; one, two, six. The quick brown fox jumps over the lazy dog"
    )
    drafter = EchoDrafter(target, wrong=0.1, seed=3)
    provider = {"capabilities": {"prediction": True}}
    with ReferenceServer(target) as server:
        async with speculating(
            World(target), server, method="predict", drafter=drafter, provider=provider
        ) as client:
            got = await ask(client)
    assert got.text == target["answers"][0]["text"]
    assert got.report is not None
    assert got.report.method == "predict"
    assert got.report.accepted > 5
    assert drafter.proposals == 1
    assert not drafter.open_sessions
