"""Several scoring requests as one, and its answer taken apart again. Pure.

Knows which parts of a body every prompt has for itself, how answers are told apart, and how a bill
for all of them is divided. Deliberately knows no dialect by name, no HTTP and no clock.

**The bill.** A server counts what a request used, not what each of its prompts did. Prompt tokens
are divided by the tokens that each round sent (by their characters, where text was sent),
completion tokens by those that each round's answers show, cached tokens as prompt tokens are. A
share is rounded down, and what that leaves goes to the shares with the largest remainders, the
earlier first: the shares add up to the bill, token by token, and are each round's own wherever the
server counts as we do. A round that was not answered pays nothing as long as another was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specroute.target.dialects import entries
from specroute.target.dialects.base import Request
from specroute.types import Usage

BYTES_PER_ID = 6
"""What a token id and its comma take in a body, about."""


def alike(request: Request) -> tuple[Any, ...] | None:
    """Equal for requests that may go together; ``None``: it goes by itself."""
    if request.joins is None:
        return None
    each = request.joins.each
    rest = repr({name: value for name, value in request.payload.items() if name not in each})
    return request.path, request.root, request.joins, rest


def prompts_of(request: Request) -> list[Any]:
    """Its prompts: one, or those of a fan-out."""
    assert request.joins is not None
    given = request.payload[request.joins.each[0]]
    return given if _several(given) else [given]


def _several(given: Any) -> bool:
    return isinstance(given, list) and not (given and isinstance(given[0], int))


def size_of(request: Request) -> int:
    """About how many bytes its prompts take."""
    return sum(
        len(prompt) * (BYTES_PER_ID if isinstance(prompt, list) else 1)
        for prompt in prompts_of(request)
    )


def joined(requests: Sequence[Request]) -> Request:
    """One request for all, which have to be :func:`alike`."""
    first = requests[0]
    assert first.joins is not None
    name, *others = first.joins.each
    payload = dict(first.payload)
    payload[name] = [prompt for request in requests for prompt in prompts_of(request)]
    for other in others:
        payload[other] = [request.payload[other] for request in requests]
    listed = first.listed or first.joins.answers != "choices"
    return replace(first, payload=payload, listed=listed)


@dataclass(frozen=True, slots=True)
class Part:
    """One round's part of an answer: what its dialect reads as an answer of its own, ``None``
    where there is none, and its share of the bill."""

    data: dict[str, Any] | None
    usage: Usage


def parted(data: Mapping[str, Any], requests: Sequence[Request]) -> list[Part]:
    """The parts of the answer to :func:`joined`, in the requests' order.

    Answers are told apart by ``index`` (SGLang's have none and come in the order of the prompts).
    Where an index is missing or there twice, nobody knows whose answer is whose: none counts.
    """
    joins = requests[0].joins
    assert joins is not None
    answers = _by_place(data.get(joins.answers_in), numbered=joins.numbered)
    sizes = [len(prompts_of(request)) for request in requests]
    if answers is None or (answers and max(answers) >= sum(sizes)):
        answers = {}
    found: list[list[Mapping[str, Any]] | None] = []
    start = 0
    for size in sizes:
        places = range(start, start + size)
        whole = all(place in answers for place in places)
        found.append([answers[place] for place in places] if whole else None)
        start += size
    bill = data.get("usage")
    shares = _divided(Usage.from_wire(bill), requests, found)
    parts = []
    for own, usage in zip(found, shares, strict=True):
        if own is None:
            parts.append(Part(None, usage))
            continue
        mine = [{**answer, "index": i} for i, answer in enumerate(own)]
        if joins.answers == "bare":
            parts.append(Part(mine[0], usage))
            continue
        made: dict[str, Any] = {**data, joins.answers_in: mine}
        if isinstance(bill, Mapping):
            made["usage"] = on_the_wire(usage)
        parts.append(Part(made, usage))
    return parts


def _by_place(answers: Any, *, numbered: bool) -> dict[int, Mapping[str, Any]] | None:
    """Answers by the place of their prompt; ``None`` where that can't be told."""
    if not isinstance(answers, list) or not all(isinstance(a, Mapping) for a in answers):
        return None
    if not numbered:
        return dict(enumerate(answers))
    found: dict[int, Mapping[str, Any]] = {}
    for answer in answers:
        place = entries.an_id(answer.get("index"))
        if place is None or place in found:
            return None
        found[place] = answer
    return found


def _divided(
    bill: Usage, requests: Sequence[Request], found: Sequence[list[Mapping[str, Any]] | None]
) -> list[Usage]:
    """Each request's share of ``bill``."""
    answered = any(own is not None for own in found)
    pays = [own is not None or not answered for own in found]
    sent = [
        sum(map(len, prompts_of(request))) if pay else 0
        for request, pay in zip(requests, pays, strict=True)
    ]
    made = [
        sum(
            _made(answer, prompt if request.payload.get("echo") else ())
            for answer, prompt in zip(own, prompts_of(request), strict=True)
        )
        if own is not None
        else 0
        for request, own in zip(requests, found, strict=True)
    ]
    if not any(made):
        made = [int(pay) for pay in pays]
    prompt = shares(bill.prompt_tokens, sent)
    completion = shares(bill.completion_tokens, made)
    cached = shares(bill.cached_tokens, sent)
    return [Usage(*each) for each in zip(prompt, completion, cached, strict=True)]


def _made(answer: Mapping[str, Any], echoed: Any) -> int:
    """Tokens that an answer shows as generated; one where that can't be told."""
    ids = answer.get("token_ids")
    if isinstance(ids, list) and not echoed:
        return len(ids)
    shown = answer.get("logprobs")
    shown = shown if isinstance(shown, Mapping) else {}
    tokens = next((shown[n] for n in ("tokens", "content") if isinstance(shown.get(n), list)), None)
    if tokens is None or isinstance(echoed, str):
        return 1
    return max(len(tokens) - len(echoed), 0)


def shares(total: int | None, weights: Sequence[int]) -> list[int | None]:
    """``total`` divided by ``weights``, in whole numbers that add up to it."""
    if total is None:
        return [None] * len(weights)
    of = sum(weights)
    if not of:
        weights, of = [1] * len(weights), len(weights)
    parts = [total * weight // of for weight in weights]
    rest = [total * weight % of for weight in weights]
    order = sorted(range(len(weights)), key=lambda i: -rest[i])
    for i in order[: total - sum(parts)]:
        parts[i] += 1
    return list(parts)


def on_the_wire(usage: Usage) -> dict[str, Any]:
    told: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
    }
    if usage.cached_tokens is not None:
        told["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    return told
