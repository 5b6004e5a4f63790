"""What a request body asks for: JSON becomes frozen values, or a refusal that names the value.

Knows the parameters of ``/v1/completions`` and ``/v1/chat/completions`` and which of them this
server has; deliberately not tokens, models or answers. Parameters it doesn't know are ignored, as
most servers do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from specroute.reference.backend import Message
from specroute.reference.errors import Refusal, invalid
from specroute.reference.options import PARAMETERS, Options
from specroute.reference.sampling import Settings

GREEDY_BELOW = 1e-5
"""Lower temperatures are greedy, as in vLLM."""

NEUTRAL: dict[str, Any] = {"n": 1, "top_k": 0, "presence_penalty": 0, "frequency_penalty": 0}
"""Values that ask for nothing, where leaving the parameter out is not the only way to."""

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


@dataclass(frozen=True, slots=True)
class Generate:
    """What both generating endpoints share."""

    model: str
    n: int
    max_tokens: int | None
    """``None`` is as many as fit."""
    settings: Settings
    bias: dict[int, float]
    seed: int | None
    stop: tuple[str, ...]
    stop_ids: frozenset[int]
    ignore_eos: bool
    top: int | None
    """Alternatives to report beside each token; ``None`` without logprobs."""
    id_names: bool
    """Tokens are called ``token_id:N``."""
    shows_ids: bool
    """Answers carry their tokens' ids."""
    stream: bool
    include_usage: bool


@dataclass(frozen=True, slots=True)
class Completion:
    """A ``/v1/completions`` request."""

    generate: Generate
    prompts: tuple[str | list[int], ...]
    echo: bool
    special: bool
    """Whether text prompts get what the tokenizer puts around them."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A ``/v1/chat/completions`` request (or the part of it that makes a prompt)."""

    messages: list[Message]
    """Without the prefilled one."""
    prefill: str | None
    opening: bool
    """Whether the assistant's turn is opened where there is no prefill."""
    tools: list[Any] | None
    prediction: str | None = None
    """The text that the caller expects the answer to be."""


def read_completion(body: Mapping[str, Any], options: Options) -> Completion:
    """Read ``body``; raises :class:`Refusal`."""
    body = _allowed(body, options)
    top = integer(body, "logprobs", 0, None)
    if top is not None and top > options.max_logprobs:
        raise invalid("logprobs", top, f"at most {options.max_logprobs}")
    echo = boolean(body, "echo")
    prompts = _prompts(body.get("prompt"), options)
    generate = _generate(body, top, integer(body, "max_tokens", 0, 16))
    if generate.max_tokens == 0 and not echo:
        raise invalid("max_tokens", 0, "at least 1 (0 only together with echo)")
    if body.get("suffix"):
        raise invalid("suffix", body["suffix"], "no suffix: this server doesn't insert")
    best_of = integer(body, "best_of", 1, None)
    if best_of not in (None, generate.n):
        raise invalid("best_of", best_of, f"n ({generate.n}), or nothing")
    if len(prompts) * generate.n > 1024:
        raise invalid("n", generate.n, f"at most {1024 // len(prompts)} for {len(prompts)} prompts")
    return Completion(generate, prompts, echo, boolean(body, "add_special_tokens", True))


def read_chat(body: Mapping[str, Any], options: Options) -> tuple[Generate, Chat]:
    """Read ``body``; raises :class:`Refusal`."""
    body = _allowed(body, options)
    top: int | None = None
    if boolean(body, "logprobs"):
        top = integer(body, "top_logprobs", 0, 0)
        if top is not None and top > options.max_logprobs:
            raise invalid("top_logprobs", top, f"at most {options.max_logprobs}")
    elif body.get("top_logprobs"):
        raise invalid("top_logprobs", body["top_logprobs"], "logprobs: true beside it")
    limit = integer(body, "max_completion_tokens", 1, None)
    if limit is None:
        limit = integer(body, "max_tokens", 1, None)
    generate = _generate(body, top, limit)
    if generate.stream and generate.shows_ids:  # SGLang refuses it with these words' sense.
        raise invalid("return_token_ids", True, "nothing beside a chat's stream")
    return generate, replace(read_messages(body, options), prediction=_prediction(body, generate))


def _prediction(body: Mapping[str, Any], generate: Generate) -> str | None:
    """The predicted text; it doesn't go together with everything (OpenAI's guide)."""
    given = body.get("prediction")
    if given is None:
        return None
    if not isinstance(given, dict) or given.get("type") != "content":
        raise invalid("prediction", given, 'an object with type "content"')
    penalties = (generate.settings.presence_penalty, generate.settings.frequency_penalty)
    for name, present in (
        ("tools", bool(body.get("tools"))),
        ("n", generate.n > 1),
        ("logprobs", generate.top is not None),
        ("presence_penalty", penalties[0] > 0),
        ("frequency_penalty", penalties[1] > 0),
    ):
        if present:
            raise invalid(name, body[name], "nothing beside a prediction")
    content = given.get("content")
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else None for part in content]
        if all(isinstance(part, str) for part in parts):
            content = "".join(part for part in parts if part)
    if not isinstance(content, str):
        raise invalid("prediction.content", content, "a string or a list of text parts")
    return content


def read_messages(body: Mapping[str, Any], options: Options) -> Chat:
    """Read what makes a chat's prompt, in every prefill dialect that is on."""
    ignored = "prefill" in options.ignore
    on = frozenset() if ignored or "prefill" in options.disable else options.prefill
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise invalid("messages", given, "a non-empty list of messages")
    messages = [_message(i, m) for i, m in enumerate(given)]
    last = messages[-1]
    opening = ignored or boolean(body, "add_generation_prompt", True)
    resumes = boolean(body, "continue_final_message") and not ignored
    prefill: str | None = None
    if resumes and "continue_final_message" not in on:
        raise invalid("continue_final_message", True, "nothing: this server has no such prefill")
    if resumes:
        if opening and "add_generation_prompt" in body:
            raise invalid(
                "add_generation_prompt", True, "false together with continue_final_message"
            )
        if last["role"] != "assistant":
            raise invalid("messages", last["role"], "an assistant message at the end to continue")
        prefill = messages.pop()["content"]
    elif isinstance(body.get("prefix"), str) and "body_prefix" in on:
        prefill = body["prefix"]
    elif last["role"] == "assistant" and (
        "trailing_assistant" in on
        or ("prefix" in on and given[-1].get("prefix") is True)
        or ("partial" in on and given[-1].get("partial") is True)
    ):
        prefill = messages.pop()["content"]
    elif "prefill" in options.disable and (
        given[-1].get("prefix") is True or given[-1].get("partial") is True
    ):
        raise Refusal(400, "messages: prefill is not supported by this server", param="messages")
    if prefill is not None and options.prefill_trims:
        prefill = prefill.rstrip()
    tools = body.get("tools")
    if tools is not None and not (
        isinstance(tools, list) and all(isinstance(t, dict) for t in tools)
    ):
        raise invalid("tools", tools, "a list of tools")
    return Chat(messages, prefill, opening, tools or None)


def _generate(body: Mapping[str, Any], top: int | None, max_tokens: int | None) -> Generate:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise invalid("model", model, "the model's name")
    temperature = number(body, "temperature", 0, 2, 1.0)
    top_k = integer(body, "top_k", -1, 0)
    options = body.get("stream_options")
    stream = boolean(body, "stream")
    if options is not None:
        if not isinstance(options, dict):
            raise invalid("stream_options", options, "an object")
        if not stream:
            raise invalid("stream_options", options, "stream: true beside it")
    repetition = number(body, "repetition_penalty", 0, 100, 1.0)
    if repetition != 1:
        raise invalid("repetition_penalty", repetition, "1: this server has no such penalty")
    top_p = number(body, "top_p", 0, 1, 1.0)
    if top_p == 0:
        raise invalid("top_p", 0, "more than 0")
    return Generate(
        model=model,
        n=integer(body, "n", 1, 1, 128) or 1,
        max_tokens=max_tokens,
        settings=Settings(
            temperature=0.0 if temperature < GREEDY_BELOW else temperature,
            top_k=max(top_k or 0, 0),
            top_p=top_p,
            presence_penalty=number(body, "presence_penalty", -2, 2, 0.0),
            frequency_penalty=number(body, "frequency_penalty", -2, 2, 0.0),
        ),
        bias=_bias(body.get("logit_bias")),
        seed=integer(body, "seed", None, None),
        stop=_stop(body.get("stop")),
        stop_ids=frozenset(_ids(body.get("stop_token_ids") or [], "stop_token_ids")),
        ignore_eos=boolean(body, "ignore_eos"),
        top=top,
        id_names=boolean(body, "return_tokens_as_token_ids"),
        shows_ids=boolean(body, "return_token_ids"),
        stream=stream,
        include_usage=boolean(options or {}, "include_usage"),
    )


def _allowed(body: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """Drop the parameters that are ignored; refuse those that are off and asked for."""
    allowed = dict(body)
    for capability in options.ignore:
        for name in PARAMETERS[capability]:
            allowed.pop(name, None)
    for capability in options.disable & PARAMETERS.keys():
        for name in PARAMETERS[capability]:
            value = allowed.get(name)
            if value is not None and value is not False and value != NEUTRAL.get(name):
                raise Refusal(
                    400,
                    f"{name} is not supported by this server; leave it out",
                    param=name,
                    code="unsupported_parameter",
                )
    return allowed


def _prompts(given: Any, options: Options) -> tuple[str | list[int], ...]:
    if isinstance(given, str):
        prompts: list[str | list[int]] = [given]
    elif isinstance(given, list) and given and all(_is_int(t) for t in given):
        prompts = [_ids(given, "prompt")]
    elif isinstance(given, list) and given:
        prompts = [
            p if isinstance(p, str) else _ids(p, f"prompt[{i}]") for i, p in enumerate(given)
        ]
        if "list_prompts" in options.disable:
            raise invalid(
                "prompt", f"{len(prompts)} prompts", "one prompt: this server takes no list"
            )
    else:
        raise invalid("prompt", given, "a string, a list of token ids, or a list of either")
    if "id_prompts" in options.disable and not all(isinstance(p, str) for p in prompts):
        raise invalid("prompt", given, "text: this server takes no token ids")
    for prompt in prompts:
        if not prompt:
            raise invalid("prompt", prompt, "at least one token")
    return tuple(prompts)


def _message(i: int, message: Any) -> Message:
    where = f"messages[{i}]"
    if not isinstance(message, dict):
        raise invalid(where, message, "an object with role and content")
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise invalid(f"{where}.role", role, f"one of {', '.join(ROLES)}")
    if isinstance(content, list):
        texts = []
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else None
            text = part.get("text") if isinstance(part, dict) else None
            if kind != "text" or not isinstance(text, str):
                raise invalid(f"{where}.content", part, "text parts only")
            texts.append(text)
        content = "".join(texts)
    elif content is None and role == "assistant":
        content = ""
    if not isinstance(content, str):
        raise invalid(f"{where}.content", content, "a string or a list of text parts")
    return {**message, "content": content}


def _bias(given: Any) -> dict[int, float]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise invalid("logit_bias", given, "an object of token id to number")
    bias = {}
    for key, value in given.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise invalid("logit_bias", key, "token ids as keys")
        if not _is_number(value) or not -100 <= value <= 100:
            raise invalid(f"logit_bias.{key}", value, "a number from -100 to 100")
        bias[int(key)] = float(value)
    return bias


def _stop(given: Any) -> tuple[str, ...]:
    if given is None:
        return ()
    stop = [given] if isinstance(given, str) else given
    if (
        not isinstance(stop, list)
        or len(stop) > 16
        or not all(isinstance(s, str) and s for s in stop)
    ):
        raise invalid("stop", given, "a non-empty string, or up to 16 of them")
    return tuple(stop)


def _ids(given: Any, where: str) -> list[int]:
    if not isinstance(given, list) or not all(_is_int(t) for t in given):
        raise invalid(where, given, "token ids")
    return list(given)


def integer(
    body: Mapping[str, Any],
    name: str,
    low: int | None,
    default: int | None,
    high: int | None = None,
) -> int | None:
    """``body[name]`` as an integer in range; ``default`` where it is missing or null."""
    value = body.get(name)
    if value is None:
        return default
    if (
        not _is_int(value)
        or (low is not None and value < low)
        or (high is not None and value > high)
    ):
        ranged = "" if low is None else f" ≥ {low}" if high is None else f" from {low} to {high}"
        raise invalid(name, value, f"an integer{ranged}")
    return int(value)


def number(body: Mapping[str, Any], name: str, low: float, high: float, default: float) -> float:
    """``body[name]`` as a finite number in range; ``default`` where it is missing or null."""
    value = body.get(name)
    if value is None:
        return default
    if not _is_number(value) or not low <= value <= high:
        raise invalid(name, value, f"a number from {low:g} to {high:g}")
    return float(value)


def boolean(body: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """``body[name]`` as a boolean; ``default`` where it is missing or null."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise invalid(name, value, "true or false")
    return value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return _is_int(value) and abs(value) < 1e300
