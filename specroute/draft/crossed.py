"""Drafting for a target with another vocabulary: token by token (TLI) or as text (SLEM).

Timor et al., arXiv 2502.05202. TLI: the draft is restricted to the tokens that both vocabularies
have and q renormalised over them, so that a drawn draft is judged by rejection sampling as any
other. SLEM: the draft is written greedily in the model's own tokens and re-encoded in the target's
(ids with a point mass for q; a re-encoded text that was *drawn* has no tractable q), or stays text
where the target's vocabulary isn't known. Both are lossless under every rule that admits their q.
Knows vocabularies and logits; deliberately no acceptance and no model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from specroute.crossing import Crossing, said_after, unfinished
from specroute.draft.base import Committed, Proposal
from specroute.draft.drawing import draw, unsure
from specroute.draft.own_ids import OwnIds
from specroute.draft.speech import LEAD_IN, Steps, text_after
from specroute.vocabulary import Vocabulary

Way = Literal["auto", "tli", "slem"]

MEASURED = 64
"""Drafted tokens on which the shared vocabulary's share of q is measured."""
ENOUGH = 0.5
"""Shared mass of draft times target from which a drawn draft is worth more than a greedy text."""
BEFORE = 64
"""Characters of the committed text that a draft is re-encoded with."""
LOOK_ON = 3
"""Tokens that a text may go on for, so that it doesn't end in whitespace."""


class Pair:
    """One draft and one target: what they share, and how much of what both say that is.

    Shared by all sessions; the figures may be read and written from any thread.
    """

    def __init__(self, own: Vocabulary, target: Vocabulary, outputs: int) -> None:
        """``outputs``: how many logits the model gives."""
        self.crossing = Crossing.between(
            own.tokens[:outputs], target.tokens, (own.end_id, target.end_id)
        )
        self.fragments = {
            piece: i for i, piece in enumerate(own.tokens[:outputs]) if piece and len(piece) <= 3
        }
        """The model's short tokens, to spell the beginning of a character."""
        self._lock = threading.Lock()
        self._mass = self._asked = 0.0
        self._held = self._said = 0.0
        self._index: Any = None

    @property
    def mass(self) -> float:
        """The shared tokens' part of the draft's probability (the first drafts' mean)."""
        return self._mass / self._asked if self._asked else 1.0

    @property
    def cover(self) -> float:
        """The part of the target's own tokens that are shared: what TLI can hit at most."""
        return self._held / self._said if self._said else 1.0

    def shared(self, logits: Any) -> Any:
        """The logits of the shared tokens, in the crossing's order."""
        import torch

        if self._index is None or self._index.device != logits.device:
            self._index = torch.from_numpy(self.crossing.own).to(logits.device)
        return logits.index_select(0, self._index)

    def weigh(self, logits: Any) -> None:
        """Measure ``mass`` on a position's logits, as long as that is of interest."""
        if self._asked >= MEASURED or not len(self.crossing):
            return
        shared = self.shared(logits).float().logsumexp(0)
        mass = float((shared - logits.float().logsumexp(0)).exp())
        with self._lock:
            self._mass += mass
            self._asked += 1

    def hear(self, ids: Sequence[int]) -> None:
        """Tokens that the target committed."""
        with self._lock:
            self._said += len(ids)
            self._held += sum(map(self.crossing.holds, ids))

    def way(self, temperature: float) -> Way:
        """Which of the two to draft by: see :data:`ENOUGH`."""
        if temperature <= 0 or not len(self.crossing):
            return "slem"
        return "tli" if self.mass * self.cover >= ENOUGH else "slem"


class TwoVocabularies:
    """One request's drafting across. ``pair`` is ``None`` where the target's vocabulary isn't
    known: then text is proposed. ``rng`` gives a numpy generator. ``lead`` is the prompt where it
    is text: it is read, and its end re-encoded, together with the answer. ``least``: the
    probability below which a token is the draft's last."""

    def __init__(
        self,
        own: Vocabulary,
        target: Vocabulary | None,
        pair: Pair | None,
        rng: Callable[[], Any],
        way: Way = "auto",
        lead: str = "",
        least: float = 0.0,
    ) -> None:
        self._own, self._target, self._pair = own, target, pair
        self._rng, self._way, self._lead = rng, way, lead
        self._ids, self._least = OwnIds(own), least
        self._heard = 0

    @property
    def by_ids(self) -> bool:
        return self._target is not None

    def read(self, committed: Committed) -> tuple[int, ...]:
        """The committed text in the model's ids, and the bytes of a character that is not whole
        yet spelled out."""
        ids, begun = self._ids.of(self._lead + committed.text), self._begun(committed)
        return ids + _spelled(self._pair.fragments, begun) if begun and self._pair else ids

    def draft(
        self,
        pending: Sequence[int],
        committed: Committed,
        k: int,
        room: int,
        temperature: float,
    ) -> Steps:
        target, pair = self._target, self._pair
        if target is None or pair is None or committed.ids is None:
            return (yield from self._text(pending, committed, k, room))
        pair.hear(committed.ids[self._heard :])
        self._heard = len(committed.ids)
        way = pair.way(temperature) if self._way == "auto" else self._way
        if way == "tli":
            ids, most = committed.ids, min(k, room)
            return (yield from self._tli(target, pair, pending, ids, most, temperature))
        return (yield from self._slem(target, pair, pending, committed, k, room))

    def _tli(
        self,
        target: Vocabulary,
        pair: Pair,
        pending: Sequence[int],
        committed: Sequence[int],
        k: int,
        temperature: float,
    ) -> Steps:
        """Tokens drawn from q' (greedy: its argmax), in the target's ids."""
        crossing = pair.crossing
        ids: list[int] = []
        qs: list[Any] = []
        rng = self._rng() if temperature > 0 else None
        for _ in range(k if len(crossing) else 0):
            logits = yield pending
            pair.weigh(logits)
            shared = pair.shared(logits)
            place, shares = draw(shared, temperature, rng)
            ids.append(int(crossing.target[place]))
            qs.append(None if shares is None else crossing.distribution(shares))
            if ids[-1] in target.eos_ids or unsure(shared, shares, place, self._least):
                break
            pending = (int(crossing.own[place]),)
        return Proposal(
            text_after(target, committed, ids),
            tuple(ids),
            tuple(qs) if temperature > 0 else None,
            bool(ids) and ids[-1] in target.eos_ids,
        )

    def _slem(
        self,
        target: Vocabulary,
        pair: Pair,
        pending: Sequence[int],
        committed: Committed,
        k: int,
        room: int,
    ) -> Steps:
        """The model's own greedy text in the target's ids.

        Goes on until the k-th id is followed by another, since the last one could still become part
        of a longer token; what the model would say no more about is proposed as it is.
        """
        text = (self._lead[-BEFORE:] + committed.text)[-BEFORE:]
        before = text.encode() + self._begun(committed)
        said = b""
        ids: tuple[int, ...] = ()
        ended = False
        look = 1  # long drafts are not encoded again at every token
        for drafted in range(1, min(room, 4 * k + 8) + 1):
            logits = yield pending
            pair.weigh(logits)
            token = int(logits.argmax())
            ended = token in self._own.eos_ids
            piece = self._own.tokens[token] if token < self._own.size else None
            if piece is None:  # the end, or another special token: no text
                break
            said += self._opened(piece) if not said and not before else piece
            if drafted >= look:
                ids = said_after(target.encode, target.tokens, before, said)
                if len(ids) > k:
                    break
                look = drafted + max(1, (k - len(ids)) // 4)
            if unsure(logits, None, token, self._least):
                break
            pending = (token,)
        ids = said_after(target.encode, target.tokens, before, said)
        ended = ended and len(ids) < k and target.end_id is not None
        ids = ids[:k]
        if ended and target.end_id is not None:
            ids += (target.end_id,)
        return Proposal(text_after(target, committed.ids or (), ids), ids, None, ended)

    def _text(self, pending: Sequence[int], committed: Committed, k: int, room: int) -> Steps:
        """The model's own greedy text. What it ends with in whitespace is left for the next round:
        tokenizers join it with the word that follows."""
        said = b""
        ended = False
        for drafted in range(1, min(room, k + LOOK_ON) + 1):
            logits = yield pending
            token = int(logits.argmax())
            ended = token in self._own.eos_ids
            piece = self._own.tokens[token] if token < self._own.size else None
            if piece is None:
                break
            first = not (said or self._lead or committed.text)
            said += self._opened(piece) if first else piece
            enough = drafted >= k or unsure(logits, None, token, self._least)
            if enough and not said[-1:].isspace():
                break
            pending = (token,)
        text = said[: len(said) - len(unfinished(said))].decode(errors="replace")
        return Proposal((not ended and text.rstrip()) or text, None, None, ended)

    def _opened(self, piece: bytes) -> bytes:
        """The first piece of an answer, without the space that its tokenizer begins texts with."""
        return piece.removeprefix(b" ") if self._ids.opens else piece

    def _begun(self, committed: Committed) -> bytes:
        """The bytes of a character that the target has begun but not finished."""
        if self._target is None or not committed.ids:
            return b""
        tokens = self._target.tokens
        return unfinished(b"".join(tokens[i] or b"" for i in committed.ids[-LEAD_IN:]))


def _spelled(fragments: Mapping[bytes, int], data: bytes) -> tuple[int, ...]:
    """``data``, up to three bytes, in the longest tokens; nothing where there are none."""
    ids: list[int] = []
    while data:
        size = next((n for n in range(len(data), 0, -1) if data[:n] in fragments), 0)
        if not size:
            return ()
        ids.append(fragments[data[:size]])
        data = data[size:]
    return tuple(ids)
