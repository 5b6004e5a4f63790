"""A known distribution, given as a table in a file: exact, seeded, instant, without torch.

Knows the file format below and how a context picks its row; deliberately not how requests arrive or
how a draw is made from a row (``sampling.py``). Everything is a pure function of the token ids, so
scoring a text and generating it see the same numbers.

The file is TOML or JSON::

    name = "table"                       # the model's name; default: the file's
    max_len = 8192
    vocabulary = ["a", "b", " ", "你好", "</s>"]
    eos = "</s>"                         # default: an extra token "<|end|>"

    default = { a = 0.5, b = 0.3, "</s>" = 0.2 }   # where no row matches

    [[rows]]                             # next-token weights after these tokens;
    after = ["a"]                        # the longest match wins, so orders may be mixed
    next = { a = 0.1, b = 0.9 }

    [[answers]]                          # an exact text, for edit tasks
    when = "rename x to y"               # the first answer whose `when` is in the prompt
    text = "y = 1\\nprint(y)\\n"           # (or `file = "new.py"`, beside the script)
    p = 0.95                             # probability of each of its tokens; the rest is
                                         # `default`'s. Then the end token, with certainty.
    # tool = "get_weather"               # `text` is then the arguments of a call of it
    # anywhere = true                    # also after a prompt with neither `when` nor a role

Weights are normalised. A row is a table, token string to weight; a string may be any token of the
vocabulary, ``eos``, or a role marker. Without ``vocabulary`` it is the words of the answers;
without ``default`` all of the vocabulary and the end token are equally likely. A token without
weight has probability 0, which no ``logit_bias`` raises. Text becomes tokens by longest match;
bytes that no token covers become one token each, after the vocabulary. A chat is rendered as
``<|user|>text<|end|><|assistant|>``, with ``eos`` in the place of ``<|end|>``.

An answer starts after the last ``<|assistant|>``, or, in a prompt without one, after the text
``when``. While what was said is a prefix of it, the next token is the longest match of what
remains; after a token that isn't the answer's, it goes on by position. One that may begin
``anywhere`` goes on from as much of it (a token at least) as the text so far ends with.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from specroute.reference.backend import InvalidPrompt, Message, State, Work
from specroute.reference.sampling import NEVER, Table

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_WORDS = re.compile(r"[^\S\n]*\w+|[^\S\n]*[^\w\s]+|\n[^\S\n]*|\s+")


class InvalidScript(ValueError):
    """The script file says something impossible; the message names it."""


@dataclass(slots=True)
class _Answer:
    when: bytes
    text: bytes
    p: float
    tool: str | None
    anywhere: bool
    tokens: list[int]
    """The canonical tokens of ``text``."""
    at: dict[int, int]
    """Byte offset to the token that starts there; other offsets are added as they occur."""


@dataclass(slots=True, eq=False)
class _ScriptState(State):
    seen: int = 0
    """How many ids the fields below cover."""
    text: bytearray = field(default_factory=bytearray)
    answer: _Answer | None = None
    offset: int | None = 0
    """Bytes of the answer said so far; ``None`` after a token that wasn't the answer's."""
    count: int = 0
    """Tokens said since the answer began."""
    roles: bool = False
    """A role marker has come."""


class Script:
    """A backend over a table. Read one with :meth:`load`, or build it from the same structure.

    Raises :class:`InvalidScript` for unknown keys, unknown tokens and weights without a sum.
    """

    inline = True
    memory = 262_144

    def __init__(self, spec: Mapping[str, Any], folder: Path | None = None) -> None:
        _known(
            spec, "script", {"name", "max_len", "vocabulary", "eos", "default", "rows", "answers"}
        )
        answers = [self._answer_spec(i, a, folder) for i, a in enumerate(spec.get("answers", []))]
        words = spec.get("vocabulary")
        if words is None:
            words = list(dict.fromkeys(w for a in answers for w in _WORDS.findall(a["text"])))
        if not (isinstance(words, list) and all(isinstance(w, str) and w for w in words)):
            raise InvalidScript("vocabulary: expected a list of non-empty strings")
        if len(set(words)) < len(words):
            raise InvalidScript("vocabulary: the same token stands there twice")
        self.name: str = spec.get("name", "script")
        end: str = spec.get("eos", "<|end|>")
        for key, value in (("name", self.name), ("eos", end)):
            if not (isinstance(value, str) and value):
                raise InvalidScript(f"{key}: expected a non-empty string, got {value!r}")
        self.max_len: int = spec.get("max_len", 8192)
        if not (isinstance(self.max_len, int) and self.max_len > 0):
            raise InvalidScript(f"max_len: expected a positive integer, got {self.max_len!r}")
        names = list(dict.fromkeys([*words, end]))
        bytes_from = len(names)
        pieces = [w.encode() for w in names] + [bytes([b]) for b in range(256)]
        markers = [f"<|{role}|>" for role in ROLES if f"<|{role}|>" not in names]
        pieces += [m.encode() for m in markers]
        self._pieces: list[bytes] = pieces
        self.size = len(pieces)
        self._by_piece: dict[bytes, int] = {}
        for i, piece in enumerate(pieces):
            self._by_piece.setdefault(piece, i)  # the vocabulary's own before the single bytes
        self._lengths: dict[int, list[int]] = {}
        for piece in self._by_piece:
            self._lengths.setdefault(piece[0], []).append(len(piece))
        self._lengths = {b: sorted(set(ns), reverse=True) for b, ns in self._lengths.items()}
        self._end = self._by_piece[end.encode()]
        self.eos = frozenset({self._end})
        self._roles = {self._by_piece[f"<|{role}|>".encode()]: role for role in ROLES}
        self._assistant = self._by_piece[b"<|assistant|>"]
        self._special = frozenset({self._end, *self._roles})
        self._byte_tokens = range(bytes_from, bytes_from + 256)
        self._encode = lru_cache(maxsize=256)(self._match_pieces)

        default = spec.get("default")
        if default is None:
            default = dict.fromkeys(names, 1.0)
        self._default_weights = self._weights(default, "default")
        self._default = Table(self._default_weights)
        self._rows: dict[tuple[int, ...], Table] = {}
        for i, row in enumerate(spec.get("rows", [])):
            where = f"rows[{i}]"
            _known(row, where, {"after", "next"})
            after = row.get("after")
            if isinstance(after, str):
                after = [after]
            if not (isinstance(after, list) and after):
                raise InvalidScript(f"{where}.after: expected a list of tokens")
            context = tuple(self._token(t, f"{where}.after") for t in after)
            self._rows[context] = Table(self._weights(row.get("next"), f"{where}.next"))
        self._orders = sorted({len(context) for context in self._rows}, reverse=True)
        self._answers = [self._compile(a) for a in answers]
        self._openers = [a for a in self._answers if a.when]
        self._anywhere = next((a for a in self._answers if a.anywhere and a.tokens), None)
        self._answer_rows: dict[tuple[int, float], Table] = {}

    @classmethod
    def load(cls, path: str | Path) -> Script:
        """Read a ``.toml`` or ``.json`` file."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise InvalidScript(f"can't read the script {path}: {error.strerror}") from error
        try:
            spec = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        except ValueError as error:
            raise InvalidScript(
                f"{path} is not valid {path.suffix[1:].upper()}: {error}"
            ) from error
        if not isinstance(spec, dict):
            raise InvalidScript(f"{path}: expected a table at the top")
        return cls({"name": path.stem, **spec}, path.parent)

    # -- reading the file ------------------------------------------------------------------------

    @staticmethod
    def _answer_spec(i: int, answer: Any, folder: Path | None) -> dict[str, Any]:
        where = f"answers[{i}]"
        _known(answer, where, {"when", "text", "file", "p", "tool", "anywhere"})
        if ("text" in answer) == ("file" in answer):
            raise InvalidScript(f"{where}: expected either `text` or `file`")
        text = answer.get("text")
        if text is None:
            path = (folder or Path()) / str(answer["file"])
            try:
                text = path.read_text(encoding="utf-8")
            except OSError as error:
                raise InvalidScript(f"{where}.file: can't read {path}: {error.strerror}") from error
        p = answer.get("p", 1.0)
        if not (isinstance(p, int | float) and 0 < p <= 1):
            raise InvalidScript(f"{where}.p: expected a probability in (0, 1], got {p!r}")
        when, tool = answer.get("when", ""), answer.get("tool")
        for key, value in (("when", when), ("text", text), ("tool", tool)):
            if not (isinstance(value, str) or (key == "tool" and value is None)):
                raise InvalidScript(f"{where}.{key}: expected a string, got {value!r}")
        anywhere = answer.get("anywhere", False)
        if not isinstance(anywhere, bool):
            raise InvalidScript(f"{where}.anywhere: expected true or false, got {anywhere!r}")
        return {"when": when, "text": text, "p": float(p), "tool": tool, "anywhere": anywhere}

    def _compile(self, spec: dict[str, Any]) -> _Answer:
        text = spec["text"].encode()
        tokens = list(self._match_pieces(spec["text"]))
        offsets, at = 0, {}
        for token in tokens:
            at[offsets] = token
            offsets += len(self._pieces[token])
        return _Answer(
            spec["when"].encode(), text, spec["p"], spec["tool"], spec["anywhere"], tokens, at
        )

    def _token(self, text: Any, where: str) -> int:
        token = self._by_piece.get(text.encode()) if isinstance(text, str) else None
        if token is None:
            raise InvalidScript(f"{where}: {text!r} is not in the vocabulary; add it there")
        return token

    def _weights(self, row: Any, where: str) -> dict[int, float]:
        if not isinstance(row, Mapping):
            raise InvalidScript(f"{where}: expected a table of token = weight")
        weights = {self._token(t, where): w for t, w in row.items()}
        if not all(isinstance(w, int | float) and 0 <= w < 1e300 for w in weights.values()):
            raise InvalidScript(f"{where}: expected weights ≥ 0")
        if not sum(weights.values()) > 0:
            raise InvalidScript(f"{where}: expected at least one positive weight")
        return weights

    # -- tokens ----------------------------------------------------------------------------------

    def encode(self, text: str, special: bool) -> list[int]:
        """Longest match over the vocabulary; there is no BOS, so ``special`` changes nothing."""
        return list(self._encode(text))

    def _match_pieces(self, text: str) -> tuple[int, ...]:
        data, at, out = text.encode("utf-8", "replace"), 0, []
        by_piece, lengths = self._by_piece, self._lengths
        while at < len(data):
            for n in lengths[data[at]]:
                token = by_piece.get(data[at : at + n])
                if token is not None:
                    out.append(token)
                    at += n
                    break
        return tuple(out)

    def piece(self, token: int) -> bytes:
        """The bytes that ``token`` stands for."""
        return self._pieces[token]

    def is_special(self, token: int) -> bool:
        """The end token and the role markers."""
        return token in self._special

    def render(
        self,
        messages: Sequence[Message],
        *,
        generate: bool,
        prefill: str | None,
        tools: list[Any] | None,
    ) -> str:
        """``<|role|>content<|end|>`` for each message, then the assistant's opening."""
        end = self._pieces[self._end].decode()
        parts = []
        for message in messages:
            if message["role"] not in ROLES:
                raise InvalidPrompt(f"expected a role out of {', '.join(ROLES)}")
            parts.append(f"<|{message['role']}|>{message['content']}{end}")
        if prefill is not None:
            parts.append(f"<|assistant|>{prefill}")
        elif generate:
            parts.append("<|assistant|>")
        return "".join(parts)

    def tool_name(self, prompt: str) -> str | None:
        """The tool that the answer to ``prompt`` calls, if the script says so."""
        answer = self._find(prompt.encode("utf-8", "replace"))
        return answer.tool if answer else None

    # -- distributions ---------------------------------------------------------------------------

    def new_state(self, ids: list[int]) -> State:
        """A state over ``ids``; nothing is computed before :meth:`run`."""
        return _ScriptState(ids)

    def run(self, works: Sequence[Work]) -> None:
        """Look up the row of each sequence; with ``score``, of every position in it."""
        for work in works:
            state = work.state
            assert isinstance(state, _ScriptState)
            if work.score is not None:
                for n in range(1, len(state.ids)):
                    row, token = self._row(state, n), state.ids[n]
                    work.scored.append((max(row.logprob(token), NEVER), row.top(work.score)))
            work.scores = self._row(state, len(state.ids))

    def row(self, ids: Iterable[int]) -> Table:
        """The distribution after ``ids``: what a test compares frequencies with."""
        state = _ScriptState(list(ids))
        return self._row(state, len(state.ids))

    def _row(self, state: _ScriptState, n: int) -> Table:
        ids = state.ids
        if self._answers:
            while state.seen < n:
                self._advance(state, ids[state.seen])
                state.seen += 1
            if state.answer is not None:
                return self._answer_row(state.answer, state.offset, state.count)
            if self._anywhere is not None and not state.roles:
                return self._answer_row(self._anywhere, self._said(self._anywhere, state.text), 0)
        for order in self._orders:
            if order <= n:
                row = self._rows.get(tuple(ids[n - order : n]))
                if row is not None:
                    return row
        return self._default

    def _advance(self, state: _ScriptState, token: int) -> None:
        piece = self._pieces[token]
        if token in self._roles:
            state.roles = True
            state.answer = self._find(state.text) if token == self._assistant else None
            state.offset, state.count = 0, 0
        elif state.answer is not None:
            state.count += 1
            if state.offset is not None:
                on_script = state.answer.text.startswith(piece, state.offset)
                state.offset = state.offset + len(piece) if on_script else None
        state.text += piece
        if state.answer is None and token not in self._roles:
            for answer in self._openers:
                if (
                    state.text.find(
                        answer.when, max(0, len(state.text) - len(piece) - len(answer.when))
                    )
                    >= 0
                ):
                    state.answer, state.offset, state.count = answer, 0, 0
                    break

    def _find(self, text: bytes | bytearray) -> _Answer | None:
        return next((a for a in self._answers if a.when in text), None)

    def _said(self, answer: _Answer, text: bytearray) -> int:
        """How many bytes of ``answer`` the text ends with."""
        least = len(self._pieces[answer.tokens[0]])
        for size in range(min(len(text), len(answer.text)), least - 1, -1):
            if text.endswith(answer.text[:size]):
                return size
        return 0

    def _answer_row(self, answer: _Answer, offset: int | None, count: int) -> Table:
        if offset is None:
            token = self._end if count >= len(answer.tokens) else answer.tokens[count]
        elif offset >= len(answer.text):
            token = self._end
        else:
            known = answer.at.get(offset)
            if known is None:
                data = answer.text
                known = next(
                    t
                    for n in self._lengths[data[offset]]
                    if (t := self._by_piece.get(data[offset : offset + n])) is not None
                )
                answer.at[offset] = known
            token = known
        p = 1.0 if token == self._end else answer.p
        row = self._answer_rows.get((token, p))
        if row is None:
            total = sum(self._default_weights.values())
            weights = {i: (1 - p) * w / total for i, w in self._default_weights.items()}
            weights[token] = weights.get(token, 0.0) + p
            row = self._answer_rows[token, p] = Table(weights)
        return row


def _known(table: Any, where: str, keys: set[str]) -> None:
    if not isinstance(table, Mapping):
        raise InvalidScript(f"{where}: expected a table, got {type(table).__name__}")
    for key in table:
        if key not in keys:
            raise InvalidScript(f"{where}: unknown key {key!r}; expected {', '.join(sorted(keys))}")
