"""The ``echo`` dialect of scoring: ``/completions`` with ``echo: true`` and ``logprobs: N``.

One request carries prompt + committed + draft and returns a log-probability for each of its tokens,
then ``max_tokens >= 1`` generated ones (0 means different things to different servers). Documented
for OpenAI's legacy completions API and implemented by vLLM, SGLang and others. Knows the request
and the answer's shape; whether the server is to be believed is calibration's matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specroute.target.view import BadEvidence, Position, View, checked_logprob
from specroute.types import Usage

_ID = "token_id:"


def payload(
    *,
    model: str,
    prompt: Sequence[int] | str,
    logprobs: int,
    max_tokens: int,
    sampling: Mapping[str, Any],
    token_ids_param: str | None,
) -> dict[str, Any]:
    """The request body. ``sampling`` are the caller's own fields, for the generated tokens."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt if isinstance(prompt, str) else list(prompt),
        "echo": True,
        "logprobs": logprobs,
        "max_tokens": max_tokens,
        **sampling,
    }
    if token_ids_param and not isinstance(prompt, str):
        body[token_ids_param] = True
    return body


def view_of_ids(data: Mapping[str, Any], sent: Sequence[int], drafted: int, seconds: float) -> View:
    """Read the answer to an id prompt whose last ``drafted`` ids are the draft.

    Raises :class:`BadEvidence` unless every entry names the id that was sent at its place.
    """
    choice, tokens, values, tops = _lists(data)
    if len(tokens) < len(sent):
        raise BadEvidence(
            f"{len(tokens)} log-probability entries for {len(sent)} prompt tokens: "
            "the prompt's own were left out"
        )
    start = len(sent) - drafted
    positions = []
    for i in range(start, len(sent)):
        if _key(tokens[i]) != sent[i]:
            raise BadEvidence(f"entry {i} is {tokens[i]!r}, but the token sent there is {sent[i]}")
        positions.append(_position(i, sent[i], values[i], tops[i]))
    bonus = tuple(_key(token) for token in tokens[len(sent) :])
    if any(not isinstance(token, int) for token in bonus):
        raise BadEvidence(f"generated tokens came without ids: {tokens[len(sent) :]!r}")
    return View(
        tuple(positions),
        bonus,
        choice.get("finish_reason"),
        Usage.from_wire(data.get("usage")),
        seconds,
        start,
    )


def view_of_text(data: Mapping[str, Any], sent: str, draft: str, seconds: float) -> View:
    """Read the answer to a text prompt ``sent`` that ends with ``draft``, in the server's tokens.

    The entries' strings must join to the end of ``sent``, and one of their boundaries must fall on
    the draft's start; :class:`BadEvidence` otherwise (a token straddles it, or the strings are not
    the prompt's).
    """
    choice, tokens, values, tops = _lists(data)
    generated = choice.get("text", "")
    if not isinstance(generated, str) or not generated.startswith(sent):
        raise BadEvidence("the answer's text does not begin with the prompt that was sent")
    joined, first_generated = "", 0
    for token in tokens:
        if len(joined) >= len(sent):
            break
        joined += token
        first_generated += 1
    if joined != sent:
        raise BadEvidence("the entries' strings do not join to the prompt that was sent")
    start, length = first_generated, 0
    while length < len(draft):
        start -= 1
        length += len(tokens[start])
    if length != len(draft):
        raise BadEvidence("a token straddles the border between committed text and draft")
    positions = tuple(
        _position(i, tokens[i], values[i], tops[i]) for i in range(start, first_generated)
    )
    return View(
        positions,
        _bonus(tokens[first_generated:], generated[len(sent) :], choice.get("finish_reason")),
        choice.get("finish_reason"),
        Usage.from_wire(data.get("usage")),
        seconds,
        start,
    )


def _bonus(tokens: Sequence[str], text: str, finish: Any) -> tuple[str, ...]:
    """The generated tokens' strings, as far as the text bears them out: an end token has a name of
    its own but no text."""
    if finish == "stop" and tokens and ("".join(tokens) != text or not tokens[-1]):
        tokens = tokens[:-1]
    return tuple(tokens) if "".join(tokens) == text else ()


def _lists(data: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str], list[Any], list[Any]]:
    choices = data.get("choices")
    if not (isinstance(choices, list) and choices and isinstance(choices[0], dict)):
        raise BadEvidence("the answer has no choice")
    shown = choices[0].get("logprobs")
    if not isinstance(shown, dict):
        raise BadEvidence("the answer has no logprobs")
    tokens, values, tops = (
        shown.get(name) for name in ("tokens", "token_logprobs", "top_logprobs")
    )
    if not (isinstance(tokens, list) and isinstance(values, list) and isinstance(tops, list)):
        raise BadEvidence(
            "the logprobs are not in the shape of tokens, token_logprobs, top_logprobs"
        )
    if not len(tokens) == len(values) == len(tops):
        raise BadEvidence(
            f"{len(tokens)} tokens, {len(values)} log-probabilities, {len(tops)} alternatives"
        )
    if not all(isinstance(token, str) for token in tokens):
        raise BadEvidence("a token is not a string")
    return choices[0], tokens, values, tops


def _position(i: int, key: int | str, value: Any, top: Any) -> Position:
    logprob = checked_logprob(value, f"entry {i}")
    if not isinstance(top, dict) or not top:
        raise BadEvidence(f"entry {i} shows no alternatives")
    ranked = sorted(
        ((_key(k), checked_logprob(v, f"an alternative of entry {i}")) for k, v in top.items()),
        key=lambda pair: -pair[1],
    )
    if logprob > ranked[0][1] + 1e-6:
        raise BadEvidence(f"entry {i} is more probable than its most probable alternative")
    return Position(key, logprob, tuple(ranked))


def _key(token: Any) -> int | str:
    if isinstance(token, str) and token.startswith(_ID) and token[len(_ID) :].isdigit():
        return int(token[len(_ID) :])
    return str(token)
