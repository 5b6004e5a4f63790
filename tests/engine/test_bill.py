"""Every report adds up to what the reference server's own access log says, to the token."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from specroute import Report, reports
from specroute.reference.access_log import Record
from specroute.reference.running import ReferenceServer
from tests.engine.answers import TEXT, EchoDrafter, ask, script
from tests.engine.test_exits import quiet, until
from tests.engine.test_faults import on_score
from tests.engine.world import World, speculating
from tests.support.proxy import Fault, Proxy


def agrees(report: Report, records: Sequence[Record]) -> None:
    """The report's attempts are these records, one for one."""
    assert report.drafted >= report.accepted + report.rejected
    attempts = {a.request_id: a for a in report.attempts}
    assert len(attempts) == len(report.attempts) == len(records)
    for record in records:
        usage = attempts[record.id].usage
        if record.path == "/tokenize":
            assert usage.prompt_tokens == usage.completion_tokens == 0
            continue
        assert not attempts[record.id].estimated
        assert usage.prompt_tokens == record.prompt_tokens
        assert usage.completion_tokens == record.completion_tokens
        assert usage.cached_tokens == record.cached_tokens
    assert report.billed_prompt_tokens == sum(r.prompt_tokens for r in records)
    assert report.billed_completion_tokens == sum(r.completion_tokens for r in records)
    assert report.billed_cached_tokens == sum(r.cached_tokens for r in records)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("rounds", [0, 1, 3])
@pytest.mark.parametrize("k", [1, 3, 8])
async def test_scoring_is_billed_as_the_log_says(k: int, rounds: int, stream: bool) -> None:
    """Rounds, hand-over and calibration; each request has its own lines."""
    world = World(script())
    with ReferenceServer(world.spec) as server:
        policy = {
            "preset": "fixed",
            "method": "score",
            "num_speculative_tokens": k,
            "max_rounds": rounds,
        }
        drafter = EchoDrafter(world.spec, wrong=0.3)
        async with speculating(world, server, drafter=drafter, policy=policy) as client:
            before = 0
            for _ in range(3):
                got = await ask(client, stream=stream)
                records = server.log
                assert got.report is not None
                agrees(got.report, records[before:])
                assert got.report.completion_tokens == 27
                if rounds:
                    assert got.report.rounds == rounds
                    assert [a.purpose for a in got.report.attempts][-1] == "handover"
                before = len(records)


async def test_a_calibration_beside_a_request_has_its_own_report() -> None:
    """The first request goes plain; what calibration used is on no request's bill."""
    world = World(script())
    with ReferenceServer(world.spec) as server:
        told: list[Report] = []
        async with speculating(
            world,
            server,
            drafter=EchoDrafter(world.spec),
            policy={"preset": "balanced"},
            on_report=told.append,
        ) as client:
            got = await ask(client)
            assert got.report is not None
            assert got.report.method == "plain"
            assert "beside" in got.report.plan_reason
            await until(lambda: len(told) == 2)
            (own,) = (r for r in told if r.id != got.report.id)
            plain = [r for r in server.log if r.id == got.report.attempts[0].request_id]
            agrees(got.report, plain)
            agrees(own, [r for r in server.log if r not in plain])
            assert {a.purpose for a in own.attempts} == {"render", "calibrate"}


async def test_what_was_tried_before_a_plain_call_is_on_its_bill() -> None:
    """A refused scoring call bills nothing, the calls around it do."""
    world = World(script())
    with ReferenceServer(world.spec) as server:
        async with Proxy(server.base_url, on_score(Fault("status", 500), 1)) as proxy:
            options = {"base_url": proxy.base_url}
            async with speculating(
                world, server, drafter=EchoDrafter(world.spec), provider=options
            ) as client:
                got = await ask(client, stream=False)
                report = got.report
                assert report is not None
                assert report.method == "plain"
                outcomes = [(a.purpose, a.outcome) for a in report.attempts]
                assert ("score", "status 500") in outcomes
                assert outcomes[-1] == ("plain", "ok")
                records = server.log
                assert report.billed_prompt_tokens == sum(r.prompt_tokens for r in records)
                assert report.billed_completion_tokens == sum(r.completion_tokens for r in records)


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completions"])
@pytest.mark.parametrize("wrong", [0.0, 0.2, 1.0])
async def test_lanes_are_billed_as_the_log_says_but_for_a_step(wrong: float, chat: bool) -> None:
    """Streams that were ended early are estimated: prompts to the token, completions to within the
    tokens under way when the cancellation came, two a cancelled stream."""
    world = World(script())
    with ReferenceServer(world.spec, pace="tpot=40ms") as server:
        drafter = EchoDrafter(world.spec, wrong=wrong)
        async with speculating(world, server, method="prefix", k=3, drafter=drafter) as client:
            prompt = "go" if chat else "<|assistant|>"
            await client.warm_up()
            before = len(server.log)
            with reports() as seen:
                got = await ask(client, chat=chat, prompt=prompt, max_tokens=30)
            assert got.text == TEXT
            (report,) = seen
            assert report.method == "prefix"
            if wrong == 0.0:
                assert report.accepted
            ids = {a.request_id for a in report.attempts} - {None}
            server.wait_for(lambda log: ids <= {r.id for r in log})
            await quiet(server)
            records = server.log[before:]
            by_id = {r.id: r for r in records}
            for attempt in report.attempts:
                record = by_id.pop(attempt.request_id or "", None)
                if record is None:  # ended before its first token: no answer, so no id came
                    assert attempt.request_id is None
                    assert (attempt.outcome, attempt.usage.completion_tokens) == ("cancelled", 0)
                    continue
                # Ended here, a lane may just have come to its end there.
                assert attempt.estimated or not record.cancelled
                made = attempt.usage.completion_tokens or 0
                assert 0 <= record.completion_tokens - made <= (2 if attempt.estimated else 0)
                if record.path != "/tokenize":
                    assert attempt.usage.prompt_tokens == record.prompt_tokens
            # What was ended before its first token may not even have reached the server: such
            # prompts are counted, so the report may say more than the log, never less.
            assert all(r.cancelled and r.completion_tokens <= 2 for r in by_id.values())
            unnamed = [a for a in report.attempts if a.request_id is None]
            assert len(by_id) <= len(unnamed)
            assert report.billed_prompt_tokens is not None
            assert report.billed_prompt_tokens >= sum(r.prompt_tokens for r in records)


def test_figures_of_rounds() -> None:
    """What was drafted is accepted, rejected or was never judged."""
    from specroute.measure import AcceptanceCounts

    counts = AcceptanceCounts()
    counts.add(4, 4)
    counts.add(1, 2)
    frozen = counts.frozen()
    assert frozen.judged == (2, 2, 1, 1)
    assert frozen.passed == (2, 1, 1, 1)
