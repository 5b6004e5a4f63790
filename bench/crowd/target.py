"""The target: the reference server over answers that are known by heart, in a process of its own.

It speaks the bundled draft's tokens, so drafts are scored by their ids; a look-up takes
microseconds, so what the run costs is HTTP and the code under test. Knows the questions' answers;
knows nothing of who asks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from bench.crowd.questions import PROMPT, Question, questions, vocabulary
from specroute.reference.backend import Backend, InvalidPrompt, Message, State, Work
from specroute.reference.running import ReferenceServer
from specroute.reference.sampling import NEVER, Table

P = 0.9
"""The probability of each of an answer's tokens; others share the rest."""
ELSE = "I am a target that knows some answers by heart, and this is what it says to all others. "
"""What it says to any other prompt, again and again."""


@dataclass(slots=True, eq=False)
class _Said(State):
    """How far a sequence has come; ``seen`` ids are covered."""

    seen: int = 0
    known: _Known | None = None
    text: bytearray = field(default_factory=bytearray)
    """Of the answer."""


class _Known:
    """An answer as a text: what follows a beginning of it, however that was cut into tokens."""

    def __init__(self, question: Question, pieces: Sequence[bytes], end: int) -> None:
        self.text = b"".join(pieces[i] for i in question.answer)
        self.at = {len(self.text): end}
        place = 0
        for token in question.answer:
            self.at[place] = token
            place += len(pieces[token])


class ByHeart(Backend):
    """Gives each question its answer. After a word that isn't the answer's it says its end."""

    name = "target"
    inline = True
    max_len = 4096
    memory = 1 << 20

    def __init__(self, known: Sequence[Question]) -> None:
        own = self._own = vocabulary()
        self.size, self.eos = own.size, own.eos_ids
        named = {i: f"<special {i}>".encode() for i in own.special_ids}
        self._pieces = [named.get(i) or piece or b"" for i, piece in enumerate(own.tokens)]
        self._end = own.end_id or 0
        self._known = {q.prompt: _Known(q, self._pieces, self._end) for q in known}
        said = own.encode(ELSE)
        self._after = dict(zip(said, (*said[1:], said[0]), strict=True))
        self._first = said[0]
        self._others = list(dict.fromkeys(said))
        self._tables: dict[int, Table] = {}

    def encode(self, text: str, special: bool) -> list[int]:
        """Ids of a rendered chat or of a text."""
        return list(self._own.encode(text))

    def piece(self, token: int) -> bytes:
        """A token's bytes."""
        return self._pieces[token]

    def is_special(self, token: int) -> bool:
        """What generated text leaves out."""
        return token in self._own.special_ids

    def render(
        self,
        messages: Sequence[Message],
        *,
        generate: bool,
        prefill: str | None,
        tools: list[Any] | None,
    ) -> str:
        """The bundled models' template."""
        try:
            return self._own.render_text(messages) + (prefill or "")
        except ValueError as error:
            raise InvalidPrompt(str(error)) from error

    def new_state(self, ids: list[int]) -> State:
        """Nothing is read yet."""
        return _Said(ids)

    def run(self, works: Sequence[Work]) -> None:
        """Look up what follows; where a prompt is scored, after each of its tokens."""
        for work in works:
            state = work.state
            assert isinstance(state, _Said)
            if work.score is not None:
                for n in range(1, len(state.ids)):
                    table = self._table(state, n)
                    own = max(table.logprob(state.ids[n]), NEVER)
                    work.scored.append((own, table.top(work.score)))
            work.scores = self._table(state, len(state.ids))

    def tool_name(self, prompt: str) -> str | None:
        """It calls none."""
        return None

    def _table(self, state: _Said, n: int) -> Table:
        """The distribution after the first ``n`` ids; ``n`` only grows."""
        ids = state.ids
        if n >= PROMPT and state.seen < PROMPT:
            state.known, state.seen = self._known.get(tuple(ids[:PROMPT])), PROMPT
        known = state.known
        if known is None:
            token = self._after.get(ids[n - 1], self._first)
        else:
            for i in ids[state.seen : n]:
                state.text += self._pieces[i]
            state.seen = max(state.seen, n)
            token = self._next(known, state.text)
        found = self._tables.get(token)
        if found is None:
            others = [i for i in self._others if i != token]
            weights = dict.fromkeys(others, (1 - P) / len(others))
            found = self._tables[token] = Table({**weights, token: P})
        return found

    def _next(self, known: _Known, said: bytearray) -> int:
        place = len(said)
        if not known.text.startswith(said):
            return self._end
        token = known.at.get(place)
        if token is None:  # Cut elsewhere than the answer's own tokens.
            rest = known.text[place:].decode("utf-8", "replace")
            token = known.at[place] = self._own.encode(rest)[0]
        return token


class Target:
    """The target's process: ``with Target(1000, 32, "tpot=400ms") as target: target.url``."""

    def __init__(self, requests: int, tokens: int, pace: str) -> None:
        command = [sys.executable, "-m", "bench.crowd.target"]
        self._process = subprocess.Popen(
            [*command, json.dumps([requests, tokens, pace])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            raise SystemExit("the target did not start")

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def main(requests: int, tokens: int, pace: str) -> None:
    """Serve until the input ends."""
    backend = ByHeart(questions(requests, tokens))
    with ReferenceServer(
        backend, pace=pace, names=["target"], max_batch=16 * max(requests, 64)
    ) as server:
        print(server.base_url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
