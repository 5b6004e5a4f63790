"""Honest answers in every dialect's shape, all telling the same small truth.

Written from the formats that the servers document; each function names its source. ``truth`` is
what the target thinks: at each place after "The capital is" its three most probable tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

WORDS = [
    "<s>",
    "The",
    " capital",
    " is",
    " Paris",
    " Rome",
    ".",
    "!",
    " not",
    " a",
    "\ufffd",
    "</s>",
]
BOS, THE, CAPITAL, IS, PARIS, ROME, DOT, BANG, NOT, A, HALF, EOS = range(len(WORDS))
CONTEXT = (THE, CAPITAL, IS)
TEXT = "The capital is"
PLACES: list[dict[int, float]] = [
    {PARIS: 0.6, ROME: 0.2, A: 0.1, NOT: 0.05, BANG: 0.05},
    {DOT: 0.5, BANG: 0.5},
    {EOS: 0.7, A: 0.2, NOT: 0.1},
]
"""After TEXT, after one more token, after two more; whatever was drafted there."""
NEVER = -9999.0
MESSAGES = ({"role": "user", "content": "Which one?"},)
HEADER = ("<s>", "[Q]", "Which", " one?", "[A]")
"""How the chat's template looks in the server's tokens (which have ids from 100 on)."""


def logprob(place: int, token: int) -> float:
    p = PLACES[place].get(token, 0.0)
    return math.log(p) if p else NEVER


def top(place: int, n: int) -> list[tuple[int, float]]:
    """The n most probable, ties by id."""
    row = PLACES[place]
    best = sorted(row, key=lambda token: (-row[token], token))[:n]
    return [(token, math.log(row[token])) for token in best]


def usage(prompt: int, made: int = 1) -> dict[str, int]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
    }


def text_of(tokens: Sequence[int]) -> str:
    return "".join("" if token == EOS else WORDS[token] for token in tokens)


def completion(choice: dict[str, Any], prompt_tokens: int, **more: Any) -> dict[str, Any]:
    base = {"index": 0, "finish_reason": "length", "stop_reason": None}
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [{**base, **choice}],
        "usage": usage(prompt_tokens),
        **more,
    }


def echo(
    draft: Sequence[int], n: int, *, by_ids: bool = True, bos: bool = False, made: int = A
) -> dict[str, Any]:
    """vLLM 0.33 source, ``_create_completion_logprobs``: parallel lists, the first entry null, the
    token itself first among its alternatives and then the top n. With
    ``return_tokens_as_token_ids`` tokens and keys are ``token_id:N``."""

    def name(token: int) -> str:
        return f"token_id:{token}" if by_ids else WORDS[token]

    sent = [*([BOS] if bos else []), *CONTEXT, *draft]
    tokens = [*sent, made]
    values: list[float | None] = [None]
    tops: list[dict[str, float] | None] = [None]
    first = len(sent) - len(draft)
    for i, token in enumerate(tokens[1:], 1):
        if i < first:
            values.append(-1.5)
            tops.append({name(token): -1.5, name(HALF): -2.5})
            continue
        value = logprob(i - first, token)
        values.append(value)
        tops.append({name(token): value, **{name(other): lp for other, lp in top(i - first, n)}})
    shown = {
        "tokens": [name(token) for token in tokens],
        "token_logprobs": values,
        "top_logprobs": tops,
        "text_offset": [0] * len(tokens),
    }
    return completion({"text": TEXT + text_of([*draft, made]), "logprobs": shown}, len(sent))


def objects(
    place: int, token: int, n: int, id_field: str | None, *, own: bool = False
) -> dict[str, Any]:
    """An entry in chat's layout; ``own``: the token is added to its alternatives if need be."""

    def one(token: int, value: float) -> dict[str, Any]:
        raw = list(WORDS[token].encode()) if token != EOS else []
        entry: dict[str, Any] = {"token": WORDS[token], "logprob": value, "bytes": raw}
        return {**entry, id_field: token} if id_field else entry

    others = top(place, n)
    if own and token not in dict(others):
        others.append((token, logprob(place, token)))
    tops = [one(other, value) for other, value in others]
    return {**one(token, logprob(place, token)), "top_logprobs": tops}


def echo_last(draft: Sequence[int], n: int, *, more: int = 0) -> dict[str, Any]:
    """Fireworks SDK 1.2 types (``NewLogProbs``: token, token_id, bytes, logprob, sampling_logprob,
    text_offset, top_logprobs) and its reader of echoed suffixes: echo_last entries, then the
    generated. ``more``: context tokens that come with it."""
    context = [
        {
            "token": WORDS[token],
            "bytes": list(WORDS[token].encode()),
            "logprob": -1.5,
            "token_id": token,
            "text_offset": 0,
            "top_logprobs": [],
        }
        for token in CONTEXT[len(CONTEXT) - more :]
    ]
    entries = [
        {**objects(i, token, n, "token_id", own=True), "text_offset": 0, "sampling_logprob": 0.0}
        for i, token in enumerate([*draft, A])
    ]
    said = text_of([*CONTEXT[len(CONTEXT) - more :], *draft, A])
    return completion({"text": said, "logprobs": {"content": [*context, *entries]}}, 3 + len(draft))


def item(place: int, token: int, n: int) -> dict[str, Any]:
    """One item of vLLM's prompt_logprobs: the prompt's own token, then the n best by rank."""
    row = PLACES[place]
    own = logprob(place, token)
    rank = sum(math.log(p) >= own for p in row.values()) or 1
    if token not in row:
        rank = len(row) + 7
    found = {str(token): {"logprob": own, "rank": rank, "decoded_token": WORDS[token]}}
    for i, (other, value) in enumerate(top(place, n), 1):
        found.setdefault(str(other), {"logprob": value, "rank": i, "decoded_token": WORDS[other]})
    return found


def prompt_logprobs(draft: Sequence[int], n: int) -> dict[str, Any]:
    """vLLM 0.33 source: ``choices[i].prompt_logprobs`` on completions, null first; its test suite
    shows ``{"872": {"decoded_token", "logprob", "rank"}}``."""
    shown: list[Any] = [None]
    for token in CONTEXT[1:]:
        shown.append({str(token): {"logprob": -1.5, "rank": 2, "decoded_token": WORDS[token]}})
    shown += [item(i, token, n) for i, token in enumerate(draft)]
    made = {
        "tokens": [f"token_id:{A}"],
        "token_logprobs": [logprob(len(draft), A)],
        "top_logprobs": [{f"token_id:{A}": logprob(len(draft), A)}],
        "text_offset": [0],
    }
    choice = {"text": WORDS[A], "logprobs": made, "prompt_logprobs": shown}
    return completion(choice, 3 + len(draft))


def chat(said: str, logprobs: Any, prompt: int, **more: Any) -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": said},
        "logprobs": logprobs,
        "finish_reason": "length",
    }
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{**choice, **more.pop("choice", {})}],
        "usage": usage(prompt),
        **more,
    }


def chat_prompt_logprobs(draft: Sequence[int], n: int, *, with_ids: bool = True) -> dict[str, Any]:
    """vLLM 0.33 source, ``ChatCompletionResponse``: prompt_logprobs and (asked for with
    ``return_token_ids``) prompt_token_ids at the top of the answer."""
    ids = [*range(100, 100 + len(HEADER)), *CONTEXT, *draft]
    shown: list[Any] = [None]
    for id, text in zip(ids[1:], [*HEADER[1:], *(WORDS[t] for t in CONTEXT)], strict=False):
        shown.append({str(id): {"logprob": -1.5, "rank": 2, "decoded_token": text}})
    shown += [item(i, token, n) for i, token in enumerate(draft)]
    made = {"content": [objects(len(draft), A, n, None)]}
    more: dict[str, Any] = {"prompt_token_ids": ids} if with_ids else {}
    return chat(WORDS[A], made, len(ids), prompt_logprobs=shown, **more)


def generate(draft: Sequence[int], n: int) -> dict[str, Any]:
    """SGLang 0.5.23 source, ``meta_info``; sglang-jax pull request 13 shows such an answer: the
    entry at logprob_start_len is null, alternatives never include a token for its own sake."""
    inputs: list[Any] = [[None, CONTEXT[-1], None]]
    inputs += [[logprob(i, token), token, None] for i, token in enumerate(draft)]
    tops: list[Any] = [None]
    tops += [[[value, other, None] for other, value in top(i, n)] for i in range(len(draft))]
    last = len(draft)
    return {
        "text": WORDS[A],
        "output_ids": [A],
        "meta_info": {
            "id": "26223ea355df4c0ab45e5af04505ed67",
            "finish_reason": {"type": "length", "length": 1},
            "prompt_tokens": 3 + len(draft),
            "completion_tokens": 1,
            "cached_tokens": 2,
            "input_token_logprobs": inputs,
            "output_token_logprobs": [[logprob(last, A), A, None]],
            "input_top_logprobs": tops,
            "output_top_logprobs": [[[value, other, None] for other, value in top(last, n)]],
        },
    }


def together(draft: Sequence[int], n: int, *, tops: bool = False) -> dict[str, Any]:
    """Together SDK 3.1 types: ``prompt: [{text, logprobs: {tokens, token_ids, token_logprobs,
    top_logprobs}}]`` beside choices; a chat answer in the wild has one dictionary of alternatives
    per token."""
    tokens = [BOS, *CONTEXT, *draft]
    values = [None, -3.0, -1.5, -1.5, *(logprob(i, token) for i, token in enumerate(draft))]
    shown: dict[str, Any] = {
        "tokens": [WORDS[token] for token in tokens],
        "token_ids": [float(token) for token in tokens],
        "token_logprobs": values,
    }
    if tops:
        shown["top_logprobs"] = [
            *({WORDS[token]: -1.5} for token in tokens[:4]),
            *({WORDS[other]: value for other, value in top(i, n)} for i in range(len(draft))),
        ]
    made = {"tokens": [WORDS[A]], "token_logprobs": [logprob(len(draft), A)], "token_ids": [A]}
    text = TEXT + text_of(draft)
    return completion(
        {"text": WORDS[A], "logprobs": made},
        len(tokens),
        object="text.completion",
        prompt=[{"text": text, "logprobs": shown}],
    )


def mistral(draft: Sequence[int], n: int) -> dict[str, Any]:
    """Mistral SDK 3.7 types: ``ChatCompletionChoice.prompt_logprobs.content``, a list of
    ``{token, token_id, bytes, logprob, top_logprobs}``."""
    content: list[Any] = [
        {"token": text, "logprob": -1.5, "bytes": list(text.encode()), "token_id": 100 + i}
        for i, text in enumerate([*HEADER[1:], *(WORDS[t] for t in CONTEXT)])
    ]
    content += [objects(i, token, n, "token_id") for i, token in enumerate(draft)]
    made = {"content": [objects(len(draft), A, n, "token_id")]}
    more = {"prompt_logprobs": {"content": content}}
    return chat(WORDS[A], made, 8 + len(draft), choice=more)


def fanout(
    draft: Sequence[int], n: int, draws: Sequence[Sequence[int]] = ((PARIS,), (BANG,), (A,))
) -> dict[str, Any]:
    """llama.cpp server b11549, answer to a list of two prompts: chat's layout on /completions with
    ids, alternatives never extended by the token itself, usage of one prompt alone."""
    choices = []
    for i, draw in enumerate(draws[: len(draft) + 1]):
        content = [objects(i + j, token, n, "id") for j, token in enumerate(draw)]
        choices.append(
            {
                "text": text_of(draw),
                "index": i,
                "logprobs": {"content": content},
                "finish_reason": "stop" if draw[-1] == EOS else "length",
            }
        )
    return {"choices": choices, "object": "text_completion", "model": "m", "usage": usage(3)}


def native_fanout(
    draft: Sequence[int], n: int, draws: Sequence[Sequence[int]] = ((PARIS,), (BANG,), (A,))
) -> dict[str, Any]:
    """llama.cpp server b11549, POST /completion with ``return_tokens``, several prompts: a list,
    here as the client hands it on."""
    answers = []
    for i, draw in enumerate(draws[: len(draft) + 1]):
        content = [objects(i + j, token, n, "id") for j, token in enumerate(draw)]
        answers.append(
            {
                "index": i,
                "content": text_of(draw),
                "tokens": list(draw),
                "tokens_predicted": len(draw),
                "tokens_evaluated": len(CONTEXT) + i,
                "truncated": False,
                "stop_type": "eos" if draw[-1] == EOS else "limit",
                "timings": {"cache_n": 2},
                "completion_probabilities": content,
            }
        )
    return {"answers": answers}
