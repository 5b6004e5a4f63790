"""``judge``: the target reads a drafted answer and says how far it is good enough.

One chat request shows the conversation and the draft in numbered parts; a short JSON object comes
back: how many parts from the start are acceptable, and what should follow them. Where at least
``min_accept`` of the draft is acceptable, those parts and the correction are the answer; else, and
for any verdict that can't be read, a plain call is made. Always heuristic: the target gives an
opinion of the text, it doesn't say that it would have written it. Costs the conversation and the
draft as input and a few tokens of output; where the draft is refused, a plain call on top.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specroute.draft.base import filled
from specroute.draft.ngram import split_pieces
from specroute.errors import BadAnswer, DraftError, ProviderError, StatusError
from specroute.events import Commit, Event, Handover, RoundDone
from specroute.types import Exactness, Usage

if TYPE_CHECKING:
    from specroute.session import Session

TASK = """\
Another assistant has drafted an answer to the conversation above. It is given below in numbered
parts. Judge it as the answer you would give: is each part correct, complete and in place? Reply
with one JSON object and nothing else:
{"accepted": N, "correction": TEXT}
N is the number of parts, counted from the first, that can stay as they are; stop counting at the
first part that can't. TEXT is the text that must follow those parts in place of the rest, in the
answer's own words and ready to be sent, or "" if nothing must follow. If most of the draft can't
stay, give "" as TEXT."""
SCHEMA: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {
        "name": "verdict",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {
                "accepted": {"type": "integer", "minimum": 0},
                "correction": {"type": "string"},
            },
            "required": ["accepted", "correction"],
            "additionalProperties": False,
        },
    },
}
VERDICT_TOKENS = 48
"""What a verdict without a correction takes at most."""
REFUSED = (400, 422)
"""Statuses by which a server says that it takes no schema."""

_PART = re.compile(r"(?<=[.!?。！？])\s+|\n+")
_FENCE = re.compile(r"^\s*```[a-z]*\s*\n?(.*?)\n?\s*```\s*$", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Opinion:
    """What the target said: so many parts stand, and ``correction`` follows them."""

    accepted: int
    correction: str


async def run(session: Session) -> AsyncGenerator[Event]:
    """One verdict; the answer, or a hand-over with nothing committed. Never raises a provider's or
    a draft's error."""
    try:
        started = session.clock()
        proposal = await session.draft(session.predicted_tokens, whole=True)
        drafted_at = session.clock()
        cut = filled(proposal, session.answer.remaining)
        if not proposal.text:
            yield Handover("the draft has nothing to propose")
            return
        if not proposal.ended and not cut:
            yield Handover("the draft did not come to an end")
            return
        pieces = parts(proposal.text)
        opinion = read(await _verdict(session, pieces), len(pieces))
    except DraftError as error:
        yield Handover(f"the draft failed: {error}")
        return
    except ProviderError as error:
        yield Handover(f"the draft could not be judged: {error}")
        return
    session.loosen(Exactness.HEURISTIC, "the target found the draft good enough")
    kept = "".join(pieces[: opinion.accepted])
    share = len(kept) / len(proposal.text)
    tokens = len(proposal.ids) if proposal.ids is not None else _count(proposal.text)
    yield RoundDone(
        drafted=tokens,
        accepted=round(share * tokens),
        judged=tokens if share == 1 else min(round(share * tokens) + 1, tokens),
        draft_seconds=drafted_at - started,
        verify_seconds=session.clock() - drafted_at,
        context=session.context,
    )
    said = f"{opinion.accepted} of {len(pieces)} parts ({share:.0%} of the draft) were accepted"
    whole = share == 1
    if share < session.min_accept or (not whole and not opinion.correction):
        yield Handover(f"{said}; the answer is made anew")
        return
    session.notes.append(said)
    text = kept + (opinion.correction if not whole else "")
    finish = "length" if whole and cut else "stop"
    room = session.answer.remaining
    if not whole and room is not None and _count(text) > room:
        text, finish = "".join(split_pieces(text)[:room]), "length"
    yield Commit(text, None, tokens if whole else _count(text), finish)


def parts(text: str) -> list[str]:
    """The draft in sentences and lines; together they are the draft."""
    ends = [match.end() for match in _PART.finditer(text)]
    starts = [0, *ends]
    found = [text[a:b] for a, b in zip(starts, [*ends, len(text)], strict=True)]
    return [part for part in found if part]


def question(messages: Sequence[Any], pieces: Sequence[str]) -> list[Any]:
    """The conversation, then the draft and what is asked of it."""
    numbered = "\n".join(f"[{i}] {part.rstrip()}" for i, part in enumerate(pieces, 1))
    return [*messages, {"role": "user", "content": f"{TASK}\n\nThe draft:\n{numbered}"}]


def read(text: str, count: int) -> Opinion:
    """The verdict in an answer, fenced or not. :class:`BadAnswer` for anything else: no JSON, JSON
    that was cut short, another shape, more parts than there are."""
    fenced = _FENCE.match(text)
    try:
        value = json.loads(fenced.group(1) if fenced else text)
    except (ValueError, RecursionError) as error:
        raise BadAnswer(f"the verdict is not JSON: {text[:60]!r}", provider="judge") from error
    accepted = value.get("accepted") if isinstance(value, dict) else None
    correction = value.get("correction", "") if isinstance(value, dict) else None
    if not isinstance(accepted, int) or isinstance(accepted, bool) or not 0 <= accepted <= count:
        raise BadAnswer(
            f"the verdict accepts {accepted!r} parts, expected 0 to {count}", provider="judge"
        )
    if not isinstance(correction, str):
        raise BadAnswer(f"the verdict's correction is {correction!r}", provider="judge")
    return Opinion(accepted, correction)


async def _verdict(session: Session, pieces: Sequence[str]) -> str:
    target, caps = session.target, session.target.capabilities
    rest = (1 - session.min_accept) * _count("".join(pieces))
    body: dict[str, Any] = {
        "model": target.ref.model,
        "messages": question(session.request.messages or (), pieces),
        "temperature": 0,
        caps.max_tokens_param: VERDICT_TOKENS + round(1.5 * rest),
    }
    if not target.learned.schema_refused:
        try:
            return await _ask(session, {**body, "response_format": SCHEMA})
        except StatusError as error:
            if error.status not in REFUSED:
                raise
            target.learned.schema_refused = True
    return await _ask(session, body)


async def _ask(session: Session, body: dict[str, Any]) -> str:
    target = session.target
    with session.book.attempt(str(target.ref), "judge") as entry:
        entry.sends = _count(body["messages"][-1]["content"])
        reply = await target.http.post_json(
            "/chat/completions", body, session.optional_deadline, purpose="judge"
        )
        entry.request_id = reply.request_id
        entry.usage = Usage.from_wire(reply.data.get("usage"))
    try:
        text = reply.data["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError) as error:
        raise BadAnswer("the verdict has no message", provider=target.ref.provider) from error
    return text if isinstance(text, str) else ""


def _count(text: str) -> int:
    """About how many tokens."""
    return len(split_pieces(text))
