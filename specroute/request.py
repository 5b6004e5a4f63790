"""A chat or completions request, read for what speculation needs to know of it.

Pure. Knows which bodies can be speculated on and says, for the others, which field stands in the
way; deliberately cautious: a field it does not know means a plain call. Knows nothing of targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specroute.errors import RequestError

# Fields whose meaning is understood here or which do not touch the text of the answer.
_UNDERSTOOD = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "metadata",
        "min_p",
        "model",
        "n",
        "presence_penalty",
        "prompt",
        "prompt_cache_key",
        "response_format",
        "safety_identifier",
        "seed",
        "stop",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "tool_choice",
        "tools",
        "top_k",
        "top_logprobs",
        "top_p",
        "user",
    }
)

CHAT = "/chat/completions"
OWN_PREDICTION = "the request brings its own 'prediction', which is passed on"
COMPLETIONS = "/completions"


@dataclass(frozen=True, slots=True)
class TextRequest:
    """One request on ``path`` (``/chat/completions`` or ``/completions``), to a known target.

    ``body`` is the caller's JSON with the target's own model name in ``model`` and without
    ``specroute``. ``None`` in a sampling field means that the caller left it to the server.
    """

    path: str
    body: Mapping[str, Any]
    messages: tuple[Mapping[str, Any], ...] | None
    prompt: str | tuple[int, ...] | None
    stream: bool
    include_usage: bool
    max_tokens: int | None
    stop: tuple[str, ...]
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    obstacle: str | None = field(default=None)
    """Why this request can only be plain; ``None``: nothing stands in the way."""

    @property
    def about_tokens(self) -> int:
        """About how many tokens the prompt has: four characters each, where ids aren't given."""
        if isinstance(self.prompt, tuple):
            return len(self.prompt)
        texts = [self.prompt or "", *(str(m.get("content")) for m in self.messages or ())]
        return sum(map(len, texts)) // 4

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @classmethod
    def read(cls, path: str, body: Mapping[str, Any]) -> TextRequest:
        """Read a body. A value of the wrong type is left to the provider to refuse: it becomes
        the obstacle, and the plain call brings the provider's own error."""
        obstacle = _obstacle(path, body)
        messages = body.get("messages")
        prompt = body.get("prompt")
        options = body.get("stream_options")
        stop = body.get("stop")
        limit = body.get("max_completion_tokens")
        if limit is None:
            limit = body.get("max_tokens")
        good = obstacle is None
        return cls(
            path=path,
            body=body,
            messages=tuple(messages) if isinstance(messages, list) else None,
            prompt=tuple(prompt) if isinstance(prompt, list) and good else _str_or_none(prompt),
            stream=body.get("stream") is True,
            include_usage=isinstance(options, dict) and options.get("include_usage") is True,
            max_tokens=limit if good else None,
            stop=((stop,) if isinstance(stop, str) else tuple(stop or ())) if good else (),
            temperature=_number(body.get("temperature")),
            top_p=_number(body.get("top_p")),
            top_k=body.get("top_k") if good else None,
            min_p=_number(body.get("min_p")),
            obstacle=obstacle,
        )


def _str_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _obstacle(path: str, body: Mapping[str, Any]) -> str | None:
    if body.get("prediction") is not None:
        return OWN_PREDICTION
    unknown = sorted(k for k in body if k not in _UNDERSTOOD and body[k] is not None)
    if unknown:
        return f"{unknown[0]!r} in the request is not one of the fields speculation understands"
    for name in ("tools", "logit_bias", "tool_choice"):
        if body.get(name):
            return f"the request has {name!r}"
    if body.get("n") not in (None, 1):
        return "the request asks for n > 1"
    for name in ("presence_penalty", "frequency_penalty"):
        if body.get(name):
            return f"the request has a {name!r}"
    logprobs = body.get("logprobs")  # 0 asks for them, too, on /completions
    if not (logprobs is None or logprobs is False) or body.get("top_logprobs"):
        return "the request asks for logprobs"
    form = body.get("response_format")
    if form is not None and form != {"type": "text"}:
        return "the request has a 'response_format' other than text"
    if body.get("seed") is not None and _number(body.get("temperature")) != 0:
        return "the request has a 'seed' at a temperature above 0"
    for name in ("temperature", "top_p", "min_p"):
        if body.get(name) is not None and _number(body[name]) is None:
            return f"{name!r} is not a number"
    temperature = _number(body.get("temperature"))
    if temperature is not None and not 0 <= temperature <= 2:
        return "'temperature' is outside 0 to 2"
    top_p, min_p = _number(body.get("top_p")), _number(body.get("min_p"))
    if top_p is not None and not 0 < top_p <= 1:
        return "'top_p' is outside 0 to 1"
    if min_p is not None and not 0 <= min_p <= 1:
        return "'min_p' is outside 0 to 1"
    for name in ("max_tokens", "max_completion_tokens"):
        value = body.get(name)
        if value is not None and (not _is_int(value) or value < 1):
            return f"{name!r} is not a positive integer"
    if body.get("top_k") is not None and not _is_int(body["top_k"]):
        return "'top_k' is not an integer"
    stop = body.get("stop")
    texts = [stop] if isinstance(stop, str) else stop
    if texts is not None and not (
        isinstance(texts, list) and all(isinstance(s, str) and s for s in texts)
    ):
        return "'stop' is not a string or a list of non-empty strings"
    if path == CHAT:
        return _chat_obstacle(body.get("messages"))
    if body.get("max_tokens") is None:
        return "'max_tokens' is left to the server, and /completions has small defaults of its own"
    prompt = body.get("prompt")
    if isinstance(prompt, str) and prompt:
        return None
    if isinstance(prompt, list) and prompt and all(_is_int(t) for t in prompt):
        return None
    return "'prompt' is not one text or one list of token ids"


def _chat_obstacle(messages: Any) -> str | None:
    if not isinstance(messages, list) or not messages:
        return "'messages' is not a non-empty list"
    for message in messages:
        if not isinstance(message, dict):
            return "a message is not an object"
        extra = set(message) - {"role", "content", "name"}
        if any(message[k] is not None for k in extra):
            return f"a message has {sorted(extra)[0]!r}"
        if message.get("role") not in ("system", "developer", "user", "assistant"):
            return f"a message has the role {message.get('role')!r}"
        content = message.get("content")
        if isinstance(content, list):
            kinds = {p.get("type") if isinstance(p, dict) else None for p in content}
            if kinds != {"text"}:
                other = sorted(str(k) for k in kinds - {"text"})
                return f"a message has {other[0] if other else 'empty'} content"
        elif not isinstance(content, str):
            return "a message has no text content"
    if messages[-1].get("role") == "assistant":
        return "the last message is the assistant's own (a prefill of the caller's)"
    return None


@dataclass(frozen=True, slots=True)
class Options:
    """``extra_body={"specroute": {…}}``: what one request may set for itself."""

    policy: Any = None
    """A preset's name or a table over a preset, as in the config file."""
    seed: int | None = None
    """Seeds the client's own coins (not the server's), for reproducible tests."""
    provisional: bool = False
    """Chunks of drafted text, which may be taken back, come between those of the answer."""
    max_cost_usd: float | None = None
    """What all calls of the request together may cost."""

    @classmethod
    def read(cls, value: Any) -> Options:
        """Check the table; :class:`RequestError` names the key, what was seen and what is known."""
        if value is None:
            return cls()
        if not isinstance(value, dict):
            raise RequestError(
                f'\'specroute\' must be an object such as {{"policy": "balanced"}}, got {value!r}',
                param="specroute",
            )
        known = ("policy", "seed", "provisional", "max_cost_usd")
        for key in value:
            if key not in known:
                raise RequestError(
                    f"'specroute.{key}' is not known; known keys: {', '.join(known)}",
                    param=f"specroute.{key}",
                )
        policy, seed = value.get("policy"), value.get("seed")
        if policy is not None and not isinstance(policy, str | dict):
            raise RequestError(
                f"'specroute.policy' must be a preset's name or an object, got {policy!r}",
                param="specroute.policy",
            )
        if seed is not None and not _is_int(seed):
            raise RequestError(
                f"'specroute.seed' must be an integer, got {seed!r}", param="specroute.seed"
            )
        provisional = value.get("provisional", False)
        if not isinstance(provisional, bool):
            raise RequestError(
                f"'specroute.provisional' must be true or false, got {provisional!r}",
                param="specroute.provisional",
            )
        most = value.get("max_cost_usd")
        if most is not None and not (_number(most) or 0) > 0:
            raise RequestError(
                f"'specroute.max_cost_usd' must be a number of dollars > 0, got {most!r}",
                param="specroute.max_cost_usd",
            )
        return cls(policy, seed, provisional, _number(most))
