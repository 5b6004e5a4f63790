"""Scoring requests become one and its answer comes apart again, bill and all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specroute.profiles import Capabilities
from specroute.target.dialects import DIALECTS, Ask
from specroute.target.dialects.base import Joins, Request
from specroute.target.dialects.joining import alike, joined, parted, prompts_of, shares, size_of
from specroute.types import Usage

CAPS = Capabilities(
    completions=True,
    id_prompts=True,
    list_prompts=True,
    token_ids_param="return_tokens_as_token_ids",
)


def one(*prompt: int, **more: Any) -> Request:
    """A request of one id prompt."""
    return Request("/completions", {"prompt": list(prompt), **more}, joins=Joins())


def answer(*places: int, usage: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """An answer with a choice for each of the places, said in that order."""
    choices = [{"index": place, "text": f"to {place}"} for place in places]
    return {"choices": choices, **({"usage": usage} if usage else {}), **more}


def texts(data: dict[str, Any] | None) -> list[str] | None:
    return None if data is None else [choice["text"] for choice in data["choices"]]


@pytest.mark.parametrize("name", ["echo", "prompt_logprobs", "generate", "fanout", "native_fanout"])
def test_requests_of_a_dialect_are_alike_but_for_their_prompts(name: str) -> None:
    """Another prompt or draft is alike; another model, temperature, N or length is not."""

    def asked(ids: tuple[int, ...] = (1, 2), draft: tuple[int, ...] = (3,), **more: Any) -> Request:
        fields: dict[str, Any] = {"model": "m", "sampling": {"temperature": 0}, **more}
        return DIALECTS[name].request(Ask(draft=draft, ids=ids, capabilities=CAPS, **fields))

    first = alike(asked())
    assert first is not None
    assert first == alike(asked((4, 5, 6), (7, 8)))
    others = (
        {"sampling": {"temperature": 1}},
        {"sampling": {"temperature": 0, "seed": 3}} if "fanout" not in name else {"logprobs": 5},
        {"logprobs": 2},
        {"max_tokens": 2},
    )
    for other in others:
        assert first != alike(asked(**other)), other
    if name != "generate":  # Its body names no model.
        assert first != alike(asked(model="n"))


@pytest.mark.parametrize("name", ["echo_last", "together"])
def test_a_dialect_that_is_not_known_to_take_lists_has_none(name: str) -> None:
    """Its request goes by itself."""
    ask = Ask(model="m", text="a", draft="b", capabilities=CAPS)
    assert alike(DIALECTS[name].request(ask)) is None


def test_prompts_are_put_in_a_row() -> None:
    """One prompt, several of a fan-out, and what else every prompt has of its own."""
    fan = Request("/completions", {"prompt": [[3], [3, 4]], "model": "m"}, joins=Joins())
    assert joined([one(1, 2, model="m"), fan]).payload == {
        "prompt": [[1, 2], [3], [3, 4]],
        "model": "m",
    }
    words = Request("/completions", {"prompt": "ab"}, joins=Joins())
    assert joined([words, words]).payload == {"prompt": ["ab", "ab"]}
    joins = Joins(("input_ids", "start"), answers="bare", numbered=False)
    native = [Request("/g", {"input_ids": [n], "start": n}, joins=joins) for n in (7, 9)]
    assert joined(native).payload == {"input_ids": [[7], [9]], "start": [7, 9]}
    assert joined(native).listed
    assert (prompts_of(fan), size_of(fan), size_of(words)) == ([[3], [3, 4]], 18, 2)


def test_answers_are_told_apart_by_index_in_whatever_order_they_come() -> None:
    """Each part counts its answers from 0."""
    fan = Request("/completions", {"prompt": [[3], [3, 4]]}, joins=Joins())
    parts = parted(answer(2, 0, 1, model="m"), [fan, one(1)])
    assert [texts(part.data) for part in parts] == [["to 0", "to 1"], ["to 2"]]
    assert [[c["index"] for c in part.data["choices"]] for part in parts if part.data] == [
        [0, 1],
        [0],
    ]
    assert all(part.data and part.data["model"] == "m" for part in parts)


@pytest.mark.parametrize(
    ("places", "kept"),
    [
        ((0,), [True, False, False]),
        ((2, 0), [True, False, True]),
        ((), [False, False, False]),
        ((0, 0, 1), [False, False, False]),
        ((0, 1, 3), [False, False, False]),
    ],
)
def test_a_round_without_its_own_answer_has_none(places: tuple[int, ...], kept: list[bool]) -> None:
    """Missing ones are missed; where a number comes twice or is none, none counts."""
    parts = parted(answer(*places), [one(1), one(2), one(3)])
    assert [part.data is not None for part in parts] == kept


@pytest.mark.parametrize("data", [{}, {"choices": None}, {"choices": [3]}, {"choices": [{}, {}]}])
def test_an_answer_that_is_none_answers_nobody(data: dict[str, Any]) -> None:
    """Nothing is guessed."""
    assert [part.data for part in parted(data, [one(1), one(2)])] == [None, None]


def test_answers_without_numbers_come_in_the_order_of_the_prompts() -> None:
    """SGLang's list; each is handed on as a single answer is."""
    joins = Joins(("input_ids",), answers="bare", numbered=False)
    requests = [Request("/g", {"input_ids": [n]}, joins=joins) for n in (7, 9)]
    parts = parted({"answers": [{"text": "a"}, {"text": "b"}]}, requests)
    assert [part.data and part.data["text"] for part in parts] == ["a", "b"]


def test_the_bill_is_divided_by_what_each_sent_and_got() -> None:
    """Prompts by their tokens, answers by the tokens that they show; cached as prompts are."""
    bill = {
        "prompt_tokens": 6,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    data = answer(0, 1, usage=bill)
    for choice, count in zip(data["choices"], (3, 6), strict=True):
        choice["logprobs"] = {"tokens": ["x"] * count}
    requests = [one(1, 2, echo=True), one(1, 2, 3, 4, echo=True)]
    parts = parted(data, requests)
    assert [part.usage for part in parts] == [Usage(2, 1, 1), Usage(4, 2, 2)]
    assert [Usage.from_wire(p.data and p.data["usage"]) for p in parts] == [p.usage for p in parts]


def test_who_was_not_answered_pays_nothing_unless_nobody_was() -> None:
    """A server that reads the first prompt alone bills that one."""
    usage = {"prompt_tokens": 2, "completion_tokens": 1}
    parts = parted(answer(0, usage=usage), [one(1, 2), one(1, 2, 3)])
    assert [part.usage for part in parts] == [Usage(2, 1), Usage(0, 0)]
    nobody = parted(answer(usage={"prompt_tokens": 5, "completion_tokens": 2}), [one(1), one(2)])
    assert [part.usage for part in nobody] == [Usage(3, 1), Usage(2, 1)]


@given(st.integers(0, 10_000), st.lists(st.integers(0, 500), min_size=1, max_size=70))
def test_shares_are_fair_and_add_up(total: int, weights: list[int]) -> None:
    """To the token; nobody is a whole token away from an even share; no weight, no share."""
    found = [part or 0 for part in shares(total, weights)]
    assert sum(found) == total
    of = sum(weights)
    for part, weight in zip(found, weights, strict=True):
        fair = total * weight / of if of else total / len(weights)
        assert abs(part - fair) < 1
        assert weight or not of or part == 0


def test_an_unknown_total_has_unknown_shares() -> None:
    """Nothing is made up."""
    assert shares(None, [1, 2]) == [None, None]


def test_usages_add_up_as_far_as_they_are_known() -> None:
    """What one of several calls doesn't say is unknown of all."""
    assert Usage.sum([Usage(3, 1, 2), Usage(4, 1, None)]) == Usage(7, 2, None)
    assert Usage.sum([]) == Usage()
