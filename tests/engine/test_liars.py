"""A server that was honest when it was calibrated and lies later: never a wrong token.

In every dialect that the reference server speaks: the evidence is refused, the report says so, the
answer is the plain one from what was committed before, and the dialect isn't used again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from specroute.reference.running import ReferenceServer
from tests.engine.answers import TEXT, EchoDrafter, ask, script
from tests.engine.test_faults import through
from tests.support.proxy import Fault

Lie = Callable[[dict[str, Any]], Any]


def scoring(path: str, body: Mapping[str, Any]) -> bool:
    prompt = body.get("prompt")
    many = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], list)
    return path == "/generate" or "prompt_logprobs" in body or bool(body.get("echo")) or many


# --- what each shape calls its entries ----------------------------------------------------------


def _prompt(data: dict[str, Any]) -> list[Any]:
    found: list[Any] = data["choices"][0]["prompt_logprobs"]
    return found


def _input(data: dict[str, Any]) -> list[Any]:
    found: list[Any] = data["meta_info"]["input_token_logprobs"]
    return found


def _drawn(data: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = data["choices"][0]["logprobs"]
    return found


def _each(value: float | None) -> Lie:
    """Every log-probability of the prompt is ``value``."""

    def lie(data: dict[str, Any]) -> None:
        for entry in _prompt(data)[1:]:
            for named in entry.values():
                named["logprob"] = value

    return lie


def _inputs(value: float | None) -> Lie:
    def lie(data: dict[str, Any]) -> None:
        for entry in _input(data):
            entry[0] = value

    return lie


def _draws(value: float | None) -> Lie:
    def lie(data: dict[str, Any]) -> None:
        shown = _drawn(data)
        shown["token_logprobs"] = [value] * len(shown["tokens"])

    return lie


def _shift_prompt(data: dict[str, Any]) -> None:
    shown = _prompt(data)
    shown[1:] = [*shown[2:], shown[-1]]


def _shift_values(data: dict[str, Any]) -> None:
    """The drafted tokens keep their ids, but have their neighbours' log-probabilities."""
    shown = _input(data)
    values = [entry[0] for entry in shown]
    for entry, value in zip(shown[1:], [*values[2:], -3.0], strict=True):
        entry[0] = value


def _swap(data: dict[str, Any]) -> None:
    a, b = data["choices"][:2]
    a["index"] = b["index"]


def _strange(data: dict[str, Any]) -> None:
    """The target's own token is one that no vocabulary has."""
    choice = data["choices"][0]
    choice["logprobs"]["tokens"] = ["token_id:1000000"]
    for entry in choice["prompt_logprobs"][-4:]:
        best = max(entry, key=lambda name: float(entry[name]["logprob"]))
        if len(entry) > 1:
            entry["1000000"] = entry.pop(best)


LIES: list[tuple[str, str, Lie]] = [
    ("prompt_logprobs", "generated only", lambda d: d["choices"][0].pop("prompt_logprobs")),
    ("prompt_logprobs", "none", lambda d: d["choices"][0].update(prompt_logprobs=None)),
    ("prompt_logprobs", "shifted", _shift_prompt),
    ("prompt_logprobs", "positive", _each(0.4)),
    ("prompt_logprobs", "nulls", _each(None)),
    ("prompt_logprobs", "fewer", lambda d: _prompt(d).pop()),
    ("prompt_logprobs", "more", lambda d: _prompt(d).append(_prompt(d)[-1])),
    ("prompt_logprobs", "nothing probable", _each(-20.0)),
    ("prompt_logprobs", "no token of the model's", _strange),
    ("generate", "generated only", lambda d: d["meta_info"].pop("input_token_logprobs")),
    ("generate", "shifted", lambda d: _input(d).insert(0, _input(d).pop())),
    ("generate", "shifted values", _shift_values),
    ("generate", "positive", _inputs(0.4)),
    ("generate", "nulls", _inputs(None)),
    ("generate", "fewer", lambda d: _input(d).pop()),
    ("generate", "fewer tops", lambda d: d["meta_info"]["input_top_logprobs"].pop()),
    ("fanout", "no logprobs", lambda d: d["choices"][0].update(logprobs=None)),
    ("fanout", "positive", _draws(0.4)),
    ("fanout", "nulls", _draws(None)),
    ("fanout", "fewer", lambda d: d["choices"].pop()),
    ("fanout", "more", lambda d: d["choices"].append(dict(d["choices"][-1], index=9))),
    ("fanout", "one index twice", _swap),
    ("fanout", "no ids", lambda d: _drawn(d).update(tokens=["one"] * len(_drawn(d)["tokens"]))),
]


@pytest.fixture(scope="module")
def server() -> Any:
    with ReferenceServer(script()) as running:
        yield running


@pytest.mark.parametrize(
    ("dialect", "lie"), [pytest.param(d, lie, id=f"{d}: {name}") for d, name, lie in LIES]
)
async def test_a_lie_in_the_middle_of_an_answer_commits_nothing(
    server: ReferenceServer, dialect: str, lie: Lie
) -> None:
    """The third round lies, after one call of calibration and two honest rounds."""
    told = False

    def tell(data: dict[str, Any]) -> None:
        nonlocal told
        told = True
        lie(data)

    def judge(path: str, body: Mapping[str, Any], n: int) -> Fault | None:
        nonlocal seen
        seen += scoring(path, body)
        return Fault("edit", value=tell) if scoring(path, body) and seen == 4 else None

    seen = 0
    drafter = EchoDrafter(script(), wrong=0.2)
    caps = {"score": [dialect]}
    async with through(server, judge, drafter=drafter, capabilities=caps) as (client, _):
        got = await ask(client)
        assert told
        assert (got.text, got.finish, got.usage) == (TEXT, "stop", (5, 27))
        assert got.report is not None
        assert (got.report.method, got.report.exactness) == ("score", "exact-greedy")
        assert got.report.rounds == 2
        assert "evidence was refused" in got.report.notes[-1]
        after = await ask(client)
        assert after.text == TEXT
        assert after.report is not None
        assert after.report.method == "plain"
        assert "not trusted" in after.report.plan_reason
