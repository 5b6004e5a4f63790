"""One token's line of evidence, whatever shape it came in, and what makes it impossible.

Reads the two layouts of log-probabilities that servers share: the parallel lists of the legacy
completions API and chat's list of objects. A truthful server's evidence passes for *every* drafted
token: ties, clamped probabilities and a drafted token listed beside the top N are no faults, so
that whether evidence is refused never depends on which token was drafted. Knows no endpoint and no
rule of acceptance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specroute.acceptance.logprobs import LEAST_BEST
from specroute.target.view import BadEvidence, Position, checked_logprob

Key = int | str

NEAR = 1e-3
"""Nats within which two statements of one log-probability agree (servers round)."""
CLAMPED = -9000.0
"""At or below it stands no probability but a clamped -inf: vLLM's -9999, SGLang's -3.4e38."""
_ID = "token_id:"


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token and its claimed log-probability, not checked yet."""

    text: str | None
    id: int | None
    logprob: Any


@dataclass(frozen=True, slots=True)
class Entry:
    """One token of the answer or of the echoed prompt, not checked yet."""

    text: str | None
    id: int | None
    logprob: Any
    shown: tuple[Alternative, ...] | Mapping[str, Any] | None = None
    """Alternatives as they came, which are read for the few entries that are looked at: a server
    shows those of every prompt token. ``None`` where it shows none."""
    raw: bytes | None = None
    rank: int | None = None
    """1 for the most probable, where the server says."""

    @property
    def said(self) -> bytes:
        """The token's own bytes."""
        return self.raw if self.raw is not None else (self.text or "").encode("utf-8", "replace")

    @property
    def top(self) -> tuple[Alternative, ...] | None:
        """The alternatives; ``None`` where the server shows none."""
        if isinstance(self.shown, Mapping):
            return tuple(Alternative(n, named_id(n), value) for n, value in self.shown.items())
        return self.shown

    def key(self, by_ids: bool, where: str) -> Key:
        """What the token is called."""
        return _key(self, by_ids, where)


def choice_of(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer's only choice."""
    choices = data.get("choices")
    if not (isinstance(choices, list) and choices and isinstance(choices[0], Mapping)):
        raise BadEvidence("the answer has no choice")
    if len(choices) != 1:
        raise BadEvidence(f"the answer has {len(choices)} choices, one was asked for")
    return choices[0]


def finish_of(choice: Mapping[str, Any]) -> str | None:
    """The finish reason, where it is one; ``eos`` (Together, TGI) is ``stop``."""
    finish = choice.get("finish_reason")
    return {"eos": "stop"}.get(finish, finish) if isinstance(finish, str) else None


def read(shown: Any) -> list[Entry]:
    """The entries of a ``logprobs`` object in either layout."""
    if not isinstance(shown, Mapping):
        raise BadEvidence("the answer has no logprobs")
    if isinstance(shown.get("content"), list):
        return [_of_object(item, i) for i, item in enumerate(shown["content"])]
    return _of_lists(shown)


def generated_of(choice: Mapping[str, Any]) -> list[Entry]:
    """The entries of a choice that shows generated tokens alone, with the ids that stand beside
    the answer (``token_ids``) where the entries have none."""
    found, ids = read(choice.get("logprobs")), choice.get("token_ids")
    if not (isinstance(ids, list) and len(ids) == len(found)):
        return found
    return [
        replace(entry, id=an_id(token)) if entry.id is None else entry
        for entry, token in zip(found, ids, strict=True)
    ]


def position(entry: Entry, n: int, *, by_ids: bool, where: str) -> Position:
    """The checked position of a drafted token. ``n``: alternatives that were asked for."""
    key, logprob = entry.key(by_ids, where), checked_logprob(entry.logprob, where)
    return Position(key, logprob, ranked(entry, n, by_ids=by_ids, where=where))


def ranked(entry: Entry, n: int, *, by_ids: bool, where: str) -> tuple[tuple[Key, float], ...]:
    """The server's n most probable tokens at this place, most probable first.

    The entry's own token, which servers add where it is not among them, is taken out again: what
    is visible never depends on it. Clamped ones are no information and go as well.
    """
    top = entry.top
    if not top:
        raise BadEvidence(f"{where} shows no alternatives")
    own, value = _key(entry, by_ids, where), checked_logprob(entry.logprob, where)
    found: dict[Key, float] = {}
    for other in top:
        key = _key(other, by_ids, f"an alternative of {where}")
        logprob = checked_logprob(other.logprob, f"an alternative of {where}")
        if key in found:
            if not _unreadable(key):
                raise BadEvidence(f"two alternatives of {where} are called {key!r}")
            logprob = max(logprob, found[key])
        found[key] = logprob
    best = max(found.values())
    if best < LEAST_BEST - NEAR:
        raise BadEvidence(
            f"the most probable alternative of {where} has the log-probability {best:.2f}, and no "
            f"vocabulary is so large that none is above {LEAST_BEST:.2f}"
        )
    if value > best + NEAR:
        raise BadEvidence(f"{where} is more probable than its most probable alternative")
    if by_ids and abs(found.get(own, value) - value) > NEAR:
        raise BadEvidence(f"{where} has two log-probabilities: {value} and {found[own]}")
    if len(found) > n + 1 or (len(found) == n + 1 and own not in found):
        raise BadEvidence(f"{where} shows {len(found)} alternatives, {n} were asked for")
    if entry.rank is not None:
        _check_rank(entry.rank, value, found, where)
    if len(found) == n + 1:
        if value > min(found.values()) + NEAR:
            raise BadEvidence(f"{where} shows {n + 1} alternatives, but not for the token's sake")
        del found[own]
    if math.fsum(map(math.exp, found.values())) > 1 + NEAR:
        raise BadEvidence(f"the alternatives of {where} have more than all probability")
    pairs = sorted(found.items(), key=lambda pair: -pair[1])
    return (pairs[0], *(pair for pair in pairs[1:] if pair[1] > CLAMPED))


def generated(entries: Sequence[Entry], limit: int, *, by_ids: bool) -> tuple[Key, ...]:
    """The keys of generated tokens, at most ``limit`` of them."""
    if len(entries) > limit:
        raise BadEvidence(f"{len(entries)} tokens were generated, {limit} were asked for")
    for i, entry in enumerate(entries):
        checked_logprob(entry.logprob, f"generated token {i}")
    return tuple(entry.key(by_ids, f"generated token {i}") for i, entry in enumerate(entries))


def borne_out(
    keys: Sequence[Key], text: str, finish: str | None
) -> tuple[tuple[Key, ...], str | None]:
    """(generated token strings, finish), if they are the generated text: an end token has a name of
    its own and no text, and a split character is no string. What isn't borne out tells nothing, its
    end included: there was text before it."""
    said = [str(key) for key in keys]
    if finish == "stop" and said and "".join(said) != text:
        said.pop()
    return (tuple(said), finish) if "".join(said) == text else ((), None)


def border(found: Sequence[Entry], draft: str, before: str, *, whole: bool) -> int:
    """Where the draft begins among the prompt's tokens ``found``, which end with it.

    ``before`` is the text in front of the draft: all of the prompt (``whole``; one leading token
    that is not in the text may stand before it), or as much as is known of its end. The parts of a
    split character may come as empty strings before the whole one: they belong to it. Raises
    :class:`BadEvidence` unless the tokens join to it and one of their boundaries falls on the
    draft's start.
    """
    said = [entry.said for entry in found]
    start, left = len(said), draft.encode("utf-8", "replace")
    while left:
        start -= 1
        if start < 0:
            raise BadEvidence("the prompt's tokens end before the draft begins")
        name = said[start]
        if not left.endswith(name):
            if name.endswith(left):
                raise BadEvidence("a token straddles the border between committed text and draft")
            raise BadEvidence("the tokens' strings do not join to the draft that was sent")
        left = left.removesuffix(name)
    if start < len(said) and not said[start].isascii():
        while start and not said[start - 1] and found[start - 1].raw is None:
            start -= 1
    rest = before.encode("utf-8", "replace")
    first = start
    while rest:
        first -= 1
        if first < 0 or not rest.endswith(said[first]):
            if first >= 0 and not whole and said[first].endswith(rest):
                break
            raise BadEvidence("the tokens' strings do not join to the prompt that was sent")
        rest = rest.removesuffix(said[first])
    if whole and first > 1:
        raise BadEvidence(f"{first} tokens stand before the prompt that was sent")
    return start


def _unreadable(key: Key) -> bool:
    return isinstance(key, str) and (not key or "\ufffd" in key)


def _check_rank(rank: int, value: float, found: Mapping[Key, float], where: str) -> None:
    better = sum(other > value + NEAR for other in found.values())
    if rank < better + 1:
        raise BadEvidence(f"{where} has rank {rank}, but {better} alternatives are more probable")


def _key(named: Entry | Alternative, by_ids: bool, where: str) -> Key:
    if by_ids:
        if named.id is None:
            raise BadEvidence(f"{where} came without an id ({named.text!r})")
        return named.id
    if named.text is None:
        raise BadEvidence(f"{where} came without a string")
    return named.text


def named_id(text: str) -> int | None:
    """N of ``token_id:N`` (vLLM's ``return_tokens_as_token_ids``)."""
    number = text.removeprefix(_ID)
    return int(number) if number != text and number.isascii() and number.isdigit() else None


def an_id(value: Any) -> int | None:
    """A token id; JSON may have it as a float."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return int(value) if value >= 0 and value == int(value) else None


def _of_lists(shown: Mapping[str, Any]) -> list[Entry]:
    tokens, values = shown.get("tokens"), shown.get("token_logprobs")
    if not (isinstance(tokens, list) and isinstance(values, list)):
        raise BadEvidence("the logprobs have neither content nor tokens and token_logprobs")
    tops = shown.get("top_logprobs")
    if not isinstance(tops, list):
        tops = [None] * len(tokens)
    ids = shown.get("token_ids")
    if not isinstance(ids, list):
        ids = [named_id(token) if isinstance(token, str) else None for token in tokens]
    if not len(tokens) == len(values) == len(tops) == len(ids):
        raise BadEvidence(
            f"{len(tokens)} tokens, {len(values)} log-probabilities, {len(tops)} alternatives, "
            f"{len(ids)} ids"
        )
    if not all(isinstance(token, str) for token in tokens):
        raise BadEvidence("a token is not a string")
    return [
        Entry(
            token,
            an_id(id) if id is not None else None,
            value,
            top if isinstance(top, Mapping) else None,
        )
        for token, id, value, top in zip(tokens, ids, values, tops, strict=True)
    ]


def _of_object(item: Any, i: int) -> Entry:
    if not isinstance(item, Mapping) or not isinstance(item.get("token"), str):
        raise BadEvidence(f"entry {i} has no token")
    top = item.get("top_logprobs")
    others = None
    if isinstance(top, list):
        if not all(isinstance(o, Mapping) and isinstance(o.get("token"), str) for o in top):
            raise BadEvidence(f"an alternative of entry {i} has no token")
        others = tuple(Alternative(o["token"], _id_of(o), o.get("logprob")) for o in top)
    raw = item.get("bytes")
    try:
        said = bytes(raw) if isinstance(raw, list) else None
    except (TypeError, ValueError) as error:
        raise BadEvidence(f"the bytes of entry {i} are none") from error
    return Entry(item["token"], _id_of(item), item.get("logprob"), others, said)


def _id_of(item: Mapping[str, Any]) -> int | None:
    """llama.cpp calls it ``id``, Mistral and Fireworks ``token_id``, vLLM names tokens by it."""
    value = item.get("id", item.get("token_id"))
    return named_id(item["token"]) if value is None else an_id(value)
