"""``cascade``: one scoring of a whole draft; what stands is kept, and the bill is the formula's."""

from __future__ import annotations

import asyncio
import random
from math import log
from typing import Any

import pytest

from specroute import Commit, Done, Provisional, Report, reports
from specroute.acceptance import MeanLogprob, Ratio
from specroute.candidates import PLAIN as PLAIN_PLAN
from specroute.candidates import Candidate, Candidates
from specroute.config import parse_policy
from specroute.measure import Acceptance, Pace, Snapshot
from specroute.policy.base import Ask
from specroute.policy.forecast_cascade import cascade as forecast
from specroute.policy.make import make_policy
from specroute.policy.objective import Objective
from specroute.reference.running import ReferenceServer
from specroute.types import Exactness, Method
from tests.engine.answers import TEXT, EchoDrafter, ask, script
from tests.engine.test_exits import LONG, quiet
from tests.engine.world import World, speculating
from tests.provisional.test_speculate import CHAT

CASCADE = {"preset": "fixed", "method": "cascade"}
PLAIN = {"preset": "fixed", "method": "plain"}
BY_TEXT = {"capabilities": {"score": ["echo"], "id_prompts": False, "template": "apply-template"}}


class UpTo(EchoDrafter):
    """Right for the first ``right`` tokens, then wrong."""

    def __init__(self, spec: Any, right: int, **options: Any) -> None:
        super().__init__(spec, **options)
        other = self.answer[0]
        self.answer = [
            token if i < right else other if token != other else self.answer[1]
            for i, token in enumerate(self.answer)
        ]


@pytest.mark.parametrize("by", ["ids", "text"])
@pytest.mark.parametrize("wrong", [0.0, 0.05, 0.3, 1.0])
async def test_the_answer_is_the_plain_one(wrong: float, by: str) -> None:
    """Greedy, with the exact rule: a prefix is kept, the target goes on; one scoring request."""
    spec = script()
    provider = {} if by == "ids" else BY_TEXT
    with ReferenceServer(spec) as server:
        drafter = EchoDrafter(spec, wrong=wrong, seed=5, text_only=by == "text")
        async with speculating(
            World(spec), server, drafter=drafter, policy=CASCADE, provider=provider
        ) as client:
            await client.warm_up()
            plain = client.with_options(policy=PLAIN)
            for more in ({}, {"max_tokens": 11}, {"stop": " fox jumps"}):
                expected = await ask(plain, **more)
                got = await ask(client, **more)
                report = got.report
                assert report is not None
                assert (got.text, got.finish) == (expected.text, expected.finish)
                scored = [a for a in report.attempts if a.purpose == "score"]
                assert len(scored) == 1
                if report.method == "cascade":
                    assert report.rounds == 1
                    assert report.exactness == ("exact-greedy" if by == "ids" else "bounded")
                    assert got.usage == expected.usage or by == "text"
            await quiet(server)
        assert not drafter.open_sessions


async def test_a_draft_that_is_kept_whole_costs_one_call() -> None:
    """Its end as well: nothing is left to generate."""
    spec = script()
    with ReferenceServer(spec) as server:
        async with speculating(
            World(spec), server, drafter=EchoDrafter(spec), policy=CASCADE
        ) as client:
            await client.warm_up()
            got = await ask(client)
            assert got.report is not None
            assert [a.purpose for a in got.report.attempts if a.purpose != "render"] == ["score"]
            assert got.report.billed_completion_tokens == 1
            assert got.report.accepted == got.report.drafted


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize(("kept", "with_cache", "without"), [
    (0.5, 0.82, 1.14), (0.75, 0.65, 1.00), (0.9, 0.54, 0.92), (1.0, 0.43, 0.43),
])  # fmt: skip
async def test_dollars_against_plain_follow_the_formula(
    kept: float, with_cache: float, without: float, cached: bool
) -> None:
    """Prompt 1000, answer 500 tokens, output at five times the input's price: within 5 %, by the
    server's own bill, and the forecast says the same."""
    words = [f"w{i} " for i in range(500)]
    spec = {
        "name": "chain",
        "vocabulary": [*words, "p "],
        "answers": [{"when": "p ", "text": "".join(words[:499])}],
    }
    price = {"input": 1.0, "output": 5.0, "cached_input": 0.1 if cached else 1.0}
    with ReferenceServer(spec) as server:
        # Each prompt is new to the server: it begins with another word.
        async with speculating(
            World(spec),
            server,
            drafter=UpTo(spec, round(kept * 500)),
            policy=CASCADE,
            provider={"prices": price},
        ) as client:
            await client.warm_up()
            plain = client.with_options(policy=PLAIN)
            prompts = (words[i] + "p " * 994 for i in (1, 2))
            a = (await ask(plain, prompt=next(prompts))).report
            b = (await ask(client, prompt=next(prompts))).report
            assert a is not None and b is not None
            assert (a.prompt_tokens, a.completion_tokens) == (998, 500)
            assert b.completion_tokens == 500
            assert billed(b, server)
            assert a.cost_usd and b.cost_usd
            expected = with_cache if cached else without
            assert b.cost_usd / a.cost_usd == pytest.approx(expected, rel=0.05)
            assert said(kept, cached) == pytest.approx(expected, rel=0.05)


def billed(report: Report, server: ReferenceServer) -> bool:
    """The report's tokens are those of the server's records."""
    ids = {a.request_id for a in report.attempts if a.purpose in ("score", "handover")}
    records = [r for r in server.log if r.id in ids]
    assert len(records) == len(ids)
    assert report.billed_prompt_tokens == sum(r.prompt_tokens for r in records)
    assert report.billed_cached_tokens == sum(r.cached_tokens for r in records)
    assert report.billed_completion_tokens == sum(r.completion_tokens for r in records)
    return True


def figures(kept: float, n: int, **more: Any) -> Snapshot:
    """Acceptance that keeps exactly so much of every draft."""

    right = round(kept * n)
    judged = tuple(1e9 if i <= right else 0.0 for i in range(min(n, right + 1)))
    passed = tuple(1e9 if i < right else 0.0 for i in range(len(judged)))
    return Snapshot(Pace(0.3, 0.02, float(n)), Acceptance(passed, judged), **more)


def said(kept: float, cached: bool) -> float:
    """The forecast's dollars over a plain call's."""
    seen = figures(kept, 500, usd_in=1e-6, usd_out=5e-6, usd_cached=1e-7 if cached else 1e-6)
    offer = forecast(seen, Ask(1000, 500), Objective())
    assert offer is not None and offer.forecast.dollars is not None
    return offer.forecast.dollars / (1000e-6 + 500 * 5e-6)


def test_the_forecast_knows_no_dollars_without_prices() -> None:
    """Seconds alone: drafting, one scoring, and the rest in plain."""
    offer = forecast(figures(0.5, 100, draft_s=0.01), Ask(100), Objective())
    assert offer is not None and offer.forecast.dollars is None
    assert offer.k == 100
    assert offer.forecast.seconds == pytest.approx(100 * 0.01 + 0.3 + 0.3 + 50 * 0.02)


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        (Ratio(1.0), 1),
        (Ratio(0.5), 2),
        (Ratio(0.01), 4),
        (MeanLogprob(-0.2), 1),
        (MeanLogprob(-1.2), 4),
        (MeanLogprob(-9), 4),
    ],
)
def test_what_a_rule_keeps(rule: Ratio | MeanLogprob, kept: int) -> None:
    """Of four tokens; each with what its p is compared to."""
    evidence = [(log(0.9), log(0.9)), (log(0.3), log(0.5)), (log(0.04), log(0.9)), (log(0.9), 0.0)]
    assert rule.keeps(evidence) == kept
    assert rule.keeps([]) == 0


@pytest.mark.parametrize("by", ["ids", "text"])
@pytest.mark.parametrize("rule", [
    {"acceptance": "ratio", "tau": 0.02, "agreement": 0.9},
    {"acceptance": "mean_logprob", "mean_logprob": -2.5, "agreement": 0.9},
])  # fmt: skip
async def test_a_lossy_rule_keeps_more_and_says_so(rule: dict[str, Any], by: str) -> None:
    """What the target finds likely enough stands; label and expected agreement are in the report."""
    spec = script()
    spec["answers"][0]["p"] = 0.6
    spec["default"] = dict.fromkeys(spec["vocabulary"], 1.0)
    provider = {} if by == "ids" else BY_TEXT
    with ReferenceServer(spec) as server:
        drafter = UpTo(spec, 9, text_only=by == "text")
        async with speculating(
            World(spec),
            server,
            drafter=drafter,
            policy={**CASCADE, "exactness": "heuristic", **rule},
            provider=provider,
        ) as client:
            await client.warm_up()
            exact = client.with_options(policy=CASCADE)
            few, more = (await ask(exact)).report, (await ask(client)).report
            assert few is not None and more is not None
            assert few.accepted == 9
            assert more.accepted > 9
            assert more.exactness == "heuristic"
            assert more.expected_agreement == 0.9
            assert "expected agreement at least 90%" in (more.exactness_reason or "")
            assert few.expected_agreement is None


@pytest.mark.parametrize(("method", "more"), [
    ("cascade", {"temperature": 1.0, "top_p": 1.0}), ("score", {}), ("prefix", {}),
])  # fmt: skip
async def test_the_expected_agreement_is_that_of_greedy_whole_drafts(
    method: str, more: dict[str, Any]
) -> None:
    """It was found on those: what is sampled, and rounds, promise nothing."""
    spec = script()
    lossy = {"exactness": "heuristic", "acceptance": "ratio", "tau": 0.5, "agreement": 0.9}
    with ReferenceServer(spec) as server:
        async with speculating(
            World(spec),
            server,
            drafter=EchoDrafter(spec),
            policy={**CASCADE, **lossy, "method": method},
        ) as client:
            await client.warm_up()
            report = (await ask(client, **more)).report
            assert report is not None and report.method == method and report.rounds
            assert report.expected_agreement is None
            assert "agreement" not in (report.exactness_reason or "")


async def test_a_lossy_rule_needs_the_label() -> None:
    """The policy's floor decides, as for every heuristic."""
    from specroute import ConfigError

    policy = {**CASCADE, "acceptance": "mean_logprob"}
    with (
        ReferenceServer(script()) as server,
        pytest.raises(ConfigError, match="exactness = 'heuristic'"),
    ):
        async with speculating(World(script()), server, policy=policy):
            pass


async def test_the_draft_is_on_the_screen_while_it_is_scored() -> None:
    """Piece by piece; then it turns into the answer."""
    spec = script()
    with ReferenceServer(spec, pace="ttft=150ms") as server:
        async with speculating(
            World(spec), server, drafter=EchoDrafter(spec), policy=CASCADE
        ) as client:
            await client.warm_up()
            events = [e async for e in client.speculate(model="m", messages=CHAT, temperature=0)]
            first = next(i for i, e in enumerate(events) if isinstance(e, Commit))
            before = events[:first]
            assert len(before) > 2 and all(isinstance(e, Provisional) for e in before)
            assert "".join(e.text for e in before) == TEXT  # type: ignore[union-attr]
            assert isinstance(events[-1], Done) and events[-1].report.first_text_s is not None


@pytest.mark.parametrize("after", [0.0, 0.05, 0.15, 0.25])
async def test_leaving_at_any_point_ends_every_call(after: float) -> None:
    """While it drafts, while it is scored, and in the target's own part."""
    spec = script(LONG)
    with ReferenceServer(spec, pace="ttft=100ms,tpot=10ms") as server:
        drafter = UpTo(spec, 30)
        async with speculating(World(spec), server, drafter=drafter, policy=CASCADE) as client:
            await client.warm_up()
            with reports() as seen:
                task = asyncio.create_task(ask(client, stream=False))
                await asyncio.sleep(after)
                task.cancel()
                await asyncio.wait([task])
            await quiet(server)
            assert not drafter.open_sessions
            assert all(report.billed_prompt_tokens is not None for report in seen)


@pytest.mark.parametrize("mode", ["raise", "crash", "empty", "foreign"])
async def test_a_failing_draft_leaves_the_plain_answer(mode: str) -> None:
    """Nothing is committed before it is scored."""
    spec = script()
    with ReferenceServer(spec) as server:
        async with speculating(
            World(spec), server, drafter=EchoDrafter(spec, mode=mode), policy=CASCADE
        ) as client:
            await client.warm_up()
            got = await ask(client)
            assert got.text == TEXT
            assert got.report is not None and got.report.method == "plain"


@pytest.mark.parametrize(("kept", "cached", "chosen"), [
    (0.9, True, "cascade"), (0.75, True, "cascade"), (0.9, False, "cascade"),
    (0.4, False, "plain"), (0.1, True, "plain"),
])  # fmt: skip
def test_the_policy_uses_it_only_where_it_saves(kept: float, cached: bool, chosen: str) -> None:
    """The preset ``cost``, from well-measured figures; no other method is to be had."""
    price = {"usd_in": 1e-6, "usd_out": 5e-6, "usd_cached": 1e-7 if cached else 1e-6}
    seen = figures(kept, 500, draft_s=0.004, rounds=500.0, verify_s=0.4, **price)
    policy, _ = make_policy(parse_policy({"preset": "cost", "exploration": 0}))
    options = Candidates((PLAIN_PLAN, Candidate(Method.CASCADE, "d", Exactness.EXACT)))
    plans = {
        policy.plan(Ask(1000, 500), options, lambda _: seen, random.Random(i)).method
        for i in range(20)
    }
    assert plans == {Method(chosen)}
