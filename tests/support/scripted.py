"""A scripted world: a vocabulary over the reference server's script, and a drafter over a table.

Both know every probability, so that what comes out of the client can be held against them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from specroute.context import Committed, Prompt
from specroute.draft.base import Proposal
from specroute.reference.script import Script
from specroute.vocabulary import Vocabulary


class ScriptVocabulary:
    """The reference script's own tokenizer, seen as a vocabulary."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.fingerprint = f"script-{script.name}"
        self.size = script.size
        self.eos_ids = frozenset(script.eos)
        self.special_ids = frozenset(t for t in range(script.size) if script.is_special(t))
        self.end_id = min(self.eos_ids, default=None)
        self.bos_id = None
        self.tokens = tuple(
            None if t in self.special_ids else script.piece(t) for t in range(script.size)
        )

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._script.encode(text, False))

    def decode(self, ids: Sequence[int]) -> str:
        pieces = (self._script.piece(t) for t in ids if t not in self.special_ids)
        return b"".join(pieces).decode("utf-8", "replace")

    def render(self, messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        return self.encode(self.render_text(messages))

    def render_text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        return self._script.render(
            [dict(m) for m in messages], generate=True, prefill=None, tools=None
        )


class TableDrafter:
    """Drafts from ``q``: token id → its successor's distribution (a dict over ids).

    ``fail_after``: proposals that work before every further one raises.
    """

    name = "table"

    def __init__(
        self,
        vocabulary: Vocabulary,
        q: Mapping[int, Mapping[int, float]],
        *,
        seed: int = 0,
        text_only: bool = False,
        fail_after: int | None = None,
    ) -> None:
        self.vocabulary: Vocabulary | None = vocabulary
        self.q = {
            token: Row({t: p / sum(row.values()) for t, p in row.items()})
            for token, row in q.items()
        }
        self.rng = random.Random(seed)
        self.text_only = text_only
        self.fail_after = fail_after
        self.proposals = 0
        self.open_sessions = 0
        self.closed = 0

    async def load(self) -> None:
        pass

    async def open(self, prompt: Prompt, target_vocabulary: Vocabulary | None) -> TableSession:
        self.open_sessions += 1
        return TableSession(self, prompt)

    async def aclose(self) -> None:
        self.closed += 1


class Row(dict[int, float]):
    """A distribution: 0 for what it doesn't list."""

    def __missing__(self, token: int) -> float:
        return 0.0


class TableSession:
    def __init__(self, drafter: TableDrafter, prompt: Prompt) -> None:
        self.drafter = drafter
        self.prompt = prompt
        self.closed = False

    async def propose(self, committed: Committed, k: int, temperature: float = 0.0) -> Proposal:
        from specroute.errors import DraftError

        drafter = self.drafter
        drafter.proposals += 1
        if drafter.fail_after is not None and drafter.proposals > drafter.fail_after:
            raise DraftError("the table has burnt")
        vocabulary = drafter.vocabulary
        assert vocabulary is not None
        if committed.ids is not None and self.prompt.ids is not None:
            last = (*self.prompt.ids, *committed.ids)[-1]
        else:
            last = (vocabulary.encode(committed.text) or (None,))[-1]
        ids: list[int] = []
        rows: list[Row] = []
        ended = False
        for _ in range(k):
            row = drafter.q.get(last) or drafter.q[-1]
            if temperature == 0:
                token = max(row, key=lambda t: (row[t], -t))
            else:
                row = Row({t: p ** (1 / temperature) for t, p in row.items() if p > 0})
                total = sum(row.values())
                row = Row({t: p / total for t, p in row.items()})
                token = drafter.rng.choices(list(row), list(row.values()))[0]
            ids.append(token)
            rows.append(row)
            last = token
            if token in vocabulary.eos_ids:
                ended = True
                break
        text = vocabulary.decode(ids)
        if drafter.text_only:
            return Proposal(text)
        return Proposal(
            text, tuple(ids), tuple(rows) if temperature > 0 else None, ended=ended, seconds=0.0
        )

    async def aclose(self) -> None:
        if not self.closed:
            self.closed = True
            self.drafter.open_sessions -= 1
