"""A tokenizer seen from outside: text to ids, ids to text, a chat template, the end tokens.

Knows how to load one through transformers (lazily: nothing heavy is imported until then) and how
to tell whether two are the same, also when one of them is only seen through a server's answers.
Knows nothing of servers or drafts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from specroute.token_bytes import token_bytes


class Vocabulary(Protocol):
    """One tokenizer's ids. Two with equal ``fingerprint`` give the same ids for every text."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a sequence (tokenizer and generation config)."""
        ...

    @property
    def special_ids(self) -> frozenset[int]: ...

    @property
    def end_id(self) -> int | None:
        """Of ``eos_ids`` the one that closes an answer: which the chat template puts after one,
        else the tokenizer's own."""
        ...

    @property
    def bos_id(self) -> int | None:
        """The token to put before a text that is no rendered chat; ``None`` if there is none."""
        ...

    @property
    def tokens(self) -> tuple[bytes | None, ...]:
        """The bytes that each id stands for in the middle of a text, ``None`` for those that stand
        for none (special tokens, gaps). Made on first use, which takes a second for a large one."""
        ...

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of ``text``, no special token added."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids``; special tokens give no text; an unfinished UTF-8 character at the end
        comes out as U+FFFD."""
        ...

    def render(self, messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """Ids of a chat prompt, generation prompt included. ``ValueError`` without a template."""
        ...

    def render_text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The text of a chat prompt, generation prompt included; ``ValueError`` as above."""
        ...


PROBE_TEXTS: tuple[str, ...] = (
    "The quick brown fox's 3rd jump — isn't it 12,345.67 km?",
    "  two  spaces, a tab\tand\n\n\nnewlines \r\n",
    "def f(x: int) -> str:\n    return f'{x!r:>8}'  # naïve",
    "您好，订单 20240618-7731 的退款将在三个工作日内到账。",
    "ありがとう、한국어, Ελληνικά, عربى, e\u0301 vs é",
    "👩🏽‍🚀🎉 zero\u200bwidth \ufb01 ½ ſ",
    "aaaaaaaaaaaaaaaaaaaaaaaa ANTIDISESTABLISHMENTARIANISM _x__y",
)
"""Texts on which tokenizers differ: digits, spaces, code, scripts, emoji, normalisation, merges."""


def agrees(vocabulary: Vocabulary, answers: Mapping[str, Sequence[int]]) -> bool:
    """Whether a server's ids for some texts (such as :data:`PROBE_TEXTS`) are this vocabulary's.

    One special token that the server puts before every text (BOS) is overlooked. No answers agree
    with nothing.
    """
    ids = {text: tuple(got) for text, got in answers.items()}
    first = {got[0] if got else -1 for got in ids.values()}
    if len(first) == 1 and first <= vocabulary.special_ids:
        ids = {text: got[1:] for text, got in ids.items()}
    return bool(ids) and all(vocabulary.encode(text) == got for text, got in ids.items())


ALIKE = 0.9
"""The share of ids in common from which on two cuts of one text are the same vocabulary's."""


def reads(vocabulary: Vocabulary, text: str, ids: Sequence[int]) -> bool:
    """Whether a server's ``ids`` for ``text`` are this vocabulary's tokens.

    They may be cut a little differently: llama.cpp splits a few rare characters (a ligature, say)
    into other tokens of the same vocabulary than the tokenizer that the model was made with.
    """
    own = vocabulary.encode(text)
    if own == tuple(ids):
        return True
    if not all(0 <= token < vocabulary.size for token in ids) or vocabulary.decode(ids) != text:
        return False
    return SequenceMatcher(None, own, tuple(ids), autojunk=False).ratio() >= ALIKE


def load_vocabulary(name_or_dir: str | Path) -> Vocabulary:
    """The tokenizer of a model folder or hub id. Runs no code from it; may download a hub id.

    Blocking: seconds for a large one. Raises ``ValueError``, saying what to do, where transformers
    is missing, nothing is found, or there is no fast tokenizer to be had.
    """
    name = str(name_or_dir)
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ValueError(
            f"tokenizer {name!r} needs transformers: pip install 'specroute[local]'"
        ) from error
    local = Path(name).expanduser().is_dir()
    source = str(Path(name).expanduser()) if local else name
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source, trust_remote_code=False, local_files_only=local
        )
    except Exception as error:
        raise ValueError(
            f"no tokenizer could be loaded from {name!r} ({_first_line(error)}): expected a folder "
            "with tokenizer.json or a Hugging Face model id"
        ) from error
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f"the tokenizer of {name!r} has no fast form (tokenizer.json), which specroute needs"
        )
    return _Loaded(tokenizer, _generation_eos(source, local))


class _Loaded:
    """A transformers tokenizer with a ``tokenizers`` backend, which is safe to use from threads."""

    def __init__(self, tokenizer: Any, eos_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        spec = json.loads(self._backend.to_str())
        added = [t for t in spec.get("added_tokens") or [] if t.get("special")]
        self._own_end: int | None = tokenizer.eos_token_id
        own = {self._own_end} - {None}
        self.eos_ids: frozenset[int] = eos_ids | own
        self.special_ids: frozenset[int] = frozenset(t["id"] for t in added) | self.eos_ids
        self.size: int = len(tokenizer)
        self.fingerprint: str = _fingerprint(spec)

    @cached_property
    def tokens(self) -> tuple[bytes | None, ...]:
        found = token_bytes(json.loads(self._backend.to_str()), self.size, self.decode)
        return tuple(None if i in self.special_ids else b for i, b in enumerate(found))

    @cached_property
    def end_id(self) -> int | None:
        chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        try:
            closing = [i for i in self.render(chat) if i in self.eos_ids]
        except ValueError:
            closing = []
        return closing[-1] if closing else self._own_end

    @cached_property
    def bos_id(self) -> int | None:
        plain = self.encode("a")
        ids = tuple(self._backend.encode("a", add_special_tokens=True).ids)
        opened = len(ids) > len(plain) and ids[1 : 1 + len(plain)] == plain
        return ids[0] if opened else None

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._backend.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._backend.decode(list(ids), skip_special_tokens=True)
        return text

    def render(self, messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        return self.encode(self.render_text(messages))

    def render_text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        if not self._tokenizer.chat_template:
            raise ValueError("the tokenizer has no chat template, and one is never guessed")
        try:
            text: str = self._tokenizer.apply_chat_template(
                [_flat(message) for message in messages], add_generation_prompt=True, tokenize=False
            )
        except Exception as error:
            raise ValueError(
                f"the chat template can't render this chat: {_first_line(error)}"
            ) from error
        return text


def _flat(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with content parts joined, if all of them are text: templates expect a string."""
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(p, dict) and "text" in p for p in content):
        return {**message, "content": "".join(p["text"] for p in content)}
    return dict(message)


def _fingerprint(spec: Mapping[str, Any]) -> str:
    """A hash of all that decides which ids a text gets: normaliser, splitter, model, added."""
    deciding = {key: spec.get(key) for key in ("normalizer", "pre_tokenizer", "model")}
    deciding["added_tokens"] = sorted(spec.get("added_tokens") or [], key=lambda t: t["id"])
    text = json.dumps(deciding, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _generation_eos(source: str, local: bool) -> frozenset[int]:
    """End tokens of generation_config.json, where there is one."""
    from transformers import GenerationConfig

    try:
        eos = GenerationConfig.from_pretrained(source, local_files_only=local).eos_token_id
    except (OSError, ValueError):
        return frozenset()
    if eos is None:
        return frozenset()
    return frozenset({eos} if isinstance(eos, int) else eos)


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
