"""Asking a target about a draft: its view, in a dialect it is trusted in, and draws of its own.

Knows how a question becomes one request and an answer's usage. Knows no rule of acceptance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specroute.acceptance import Draw, Drawn, Request, TailDraw
from specroute.context import Committed, Prompt
from specroute.request import COMPLETIONS
from specroute.target.dialects import Ask, Dialect, entries
from specroute.target.joint import LeftOut
from specroute.target.learned import Trusted
from specroute.target.view import BadEvidence, View
from specroute.types import Usage

if TYPE_CHECKING:
    from specroute.book import Book, Entry
    from specroute.http.client import JsonReply
    from specroute.http.deadline import Deadline
    from specroute.target.target import Target

NEUTRAL: Mapping[str, Any] = {"temperature": 1, "top_p": 1}
"""Sampling as it is, for a draw from the whole tail."""


async def score(
    target: Target,
    using: Trusted,
    prompt: Prompt,
    committed: Committed,
    draft: Sequence[int] | str,
    *,
    logprobs: int,
    sampling: Mapping[str, Any],
    book: Book,
    deadline: Deadline,
    purpose: str = "score",
) -> View:
    """The target's view of ``draft`` after prompt + committed, asked for in ``using``.

    Raises :class:`~specroute.target.view.BadEvidence` and provider errors.
    """
    dialect, form = using
    ask = ask_of(target, form, prompt, committed, draft, logprobs, sampling)
    request = dialect.request(ask)
    sends, drafted = None, len(draft)
    if isinstance(draft, str):
        drafted = len(draft) // 4
        sends = (len(committed.text) + len(draft)) // 4
    elif committed.ids is not None:
        sends = len(committed.ids) + len(draft)
    place = str(target.ref)
    seat = None
    if dialect.name in target.learned.joins:
        seat = await target.joint.seat(request, deadline, purpose)
    if seat is not None:
        try:
            with book.attempt(place, purpose) as entry:
                entry.sends, entry.drafted = sends, drafted
                try:
                    data, reply = await seat.reply(target.ref.provider)
                except LeftOut as left:
                    entry.usage = left.usage
                    raise
                return _read(entry, dialect, ask, data, reply)
        except LeftOut:
            pass  # It asks by itself; its line in the book says what this came to.
        except BadEvidence as error:
            target.joint.distrust(str(error))
    with book.attempt(place, purpose) as entry:
        entry.sends, entry.drafted = sends, drafted
        reply = await target.http.post_json(
            request.path,
            request.payload,
            deadline,
            root=request.root,
            listed=request.listed,
            purpose=purpose,
            model=target.ref.model,
        )
        return _read(entry, dialect, ask, reply.data, reply)


def _read(
    entry: Entry, dialect: Dialect, ask: Ask, data: Mapping[str, Any], reply: JsonReply
) -> View:
    """The view in an answer, whose usage is noted whatever it is worth."""
    entry.request_id = reply.request_id
    entry.usage = Usage.from_wire(data.get("usage"))
    view = dialect.view(data, ask, reply.seconds)
    entry.usage = view.usage
    return view


def ask_of(
    target: Target,
    form: str,
    prompt: Prompt,
    committed: Committed,
    draft: Sequence[int] | str,
    logprobs: int,
    sampling: Mapping[str, Any],
) -> Ask:
    """The question about ``draft``, its context in ``form``. Raises :class:`BadEvidence`."""
    caps = target.capabilities
    common: dict[str, Any] = {
        "model": target.ref.model,
        "logprobs": logprobs,
        "max_tokens": caps.min_max_tokens,
        "sampling": sampling,
        "capabilities": caps,
    }
    if form == "ids":
        if isinstance(draft, str) or prompt.ids is None or committed.ids is None:
            raise BadEvidence("token ids are asked for where only text is known")
        return Ask(draft=tuple(draft), ids=(*prompt.ids, *committed.ids), **common)
    if not isinstance(draft, str):
        raise BadEvidence("text is asked for where token ids were drafted")
    if form == "text":
        if prompt.text is None:
            raise BadEvidence("the prompt's text is not known")
        templated = prompt.messages is not None
        return Ask(draft=draft, text=prompt.text + committed.text, templated=templated, **common)
    if prompt.messages is None:
        raise BadEvidence("the prompt's messages are not known")
    return Ask(draft=draft, messages=prompt.messages, committed=committed.text, **common)


async def draw(
    target: Target,
    request: Request,
    prompt: Prompt,
    committed: Sequence[int],
    *,
    sampling: Mapping[str, Any],
    book: Book,
    deadline: Deadline,
) -> list[Drawn]:
    """What a rule asks for in the middle of judging: draws after prompt + ``committed`` ids.

    A :class:`Draw` is the server's own, under the caller's settings; a :class:`TailDraw` is at
    temperature 1, nothing cut, with the banned ids biased away. Neither carries a seed. Raises
    :class:`~specroute.target.view.BadEvidence` and provider errors.
    """
    caps = target.capabilities
    body: dict[str, Any] = {
        "model": target.ref.model,
        "prompt": [*(prompt.ids or ()), *committed],
        "max_tokens": 1,
        "logprobs": 1,
    }
    if isinstance(request, Draw):
        body.update({k: v for k, v in sampling.items() if k != "seed"})
        if request.count > 1:
            body["n"] = request.count
    else:
        body.update(NEUTRAL)
        body["logit_bias"] = {str(token): -100 for token in request.banned}
    body |= caps.ids_asked
    with book.attempt(str(target.ref), "draw") as entry:
        reply = await target.http.post_json(COMPLETIONS, body, deadline, purpose="draw")
        entry.request_id = reply.request_id
        entry.usage = Usage.from_wire(reply.data.get("usage"))
        return _drawn(target, reply.data, request)


def _drawn(target: Target, data: Mapping[str, Any], request: Draw | TailDraw) -> list[Drawn]:
    choices = data.get("choices")
    wanted = request.count if isinstance(request, Draw) else 1
    if not isinstance(choices, list) or len(choices) != wanted:
        raise BadEvidence(f"{wanted} draws were asked for, the answer has other choices")
    found = []
    for choice in choices:
        shown = entries.generated_of(choice) if choice.get("logprobs") else []
        if shown and shown[0].id is not None:
            raw = shown[0].logprob
            found.append(Drawn(shown[0].id, raw if isinstance(raw, float | int) else None))
        elif not shown and choice.get("finish_reason") == "stop":
            found.append(Drawn(_end_token(target)))
        else:
            raise BadEvidence("a drawn token came without its id")
    return found


def _end_token(target: Target) -> int:
    vocabulary = target.learned.vocabulary
    ends = vocabulary.eos_ids if vocabulary is not None else frozenset()
    if len(ends) != 1:
        raise BadEvidence("an end token was drawn without being named")
    return next(iter(ends))
