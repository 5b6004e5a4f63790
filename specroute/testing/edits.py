"""Changes to a decoded answer that make its logprobs lie, as servers in the wild do.

Pure functions over the legacy layout (``choices[i].logprobs`` with parallel lists).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def _each(change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Callable[[Any], Any]:
    def edit(data: Any) -> Any:
        for choice in data.get("choices") or ():
            shown = choice.get("logprobs")
            if isinstance(shown, dict) and isinstance(shown.get("tokens"), list):
                change(choice, shown)
        return data

    return edit


def _generated_only(choice: dict[str, Any], shown: dict[str, Any]) -> None:
    for name in _LISTS:
        if isinstance(shown.get(name), list):
            shown[name] = shown[name][-1:]


def _shifted(choice: dict[str, Any], shown: dict[str, Any]) -> None:
    for name in ("token_logprobs", "top_logprobs"):
        values = shown.get(name)
        if isinstance(values, list) and values:
            shown[name] = [*values[1:], values[-1]]


def _positive(choice: dict[str, Any], shown: dict[str, Any]) -> None:
    shown["token_logprobs"] = [0.7] * len(shown["tokens"])


def _nulls(choice: dict[str, Any], shown: dict[str, Any]) -> None:
    shown["token_logprobs"] = [None] * len(shown["tokens"])
    shown["top_logprobs"] = [None] * len(shown["tokens"])


def _fewer(choice: dict[str, Any], shown: dict[str, Any]) -> None:
    for name in _LISTS:
        if isinstance(shown.get(name), list):
            del shown[name][:1]


def _uneven(choice: dict[str, Any], shown: dict[str, Any]) -> None:
    shown["token_logprobs"].append(-0.1)


def _missing(choice: dict[str, Any], shown: dict[str, Any]) -> None:
    choice["logprobs"] = None


def _other_tokens(choice: dict[str, Any], shown: dict[str, Any]) -> None:
    shown["tokens"] = ["token_id:1"] * len(shown["tokens"])


LIES: dict[str, Callable[[Any], Any]] = {
    "generated_only": _each(_generated_only),
    "shifted": _each(_shifted),
    "positive": _each(_positive),
    "nulls": _each(_nulls),
    "fewer": _each(_fewer),
    "uneven": _each(_uneven),
    "missing": _each(_missing),
    "other_tokens": _each(_other_tokens),
}
