"""Calibrate before trusting: score a few tokens that the target itself has just generated.

Finds servers that ignore echo, shift it by one, penalise repetition by default, report
log-probabilities after temperature, or render another prompt than the one we send; those are not
scored on. Costs one short chat call and one echo call per (host, model) and client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specroute.context import Committed, Prompt
from specroute.errors import ProviderError, StatusError
from specroute.request import CHAT, COMPLETIONS, TextRequest
from specroute.target import templates
from specroute.target.dialects import agreement
from specroute.target.view import BadEvidence, checked_logprob
from specroute.types import Usage
from specroute.vocabulary import PROBE_TEXTS, Vocabulary

if TYPE_CHECKING:
    from specroute.book import Book
    from specroute.http.deadline import Deadline
    from specroute.target.target import Target

QUESTION = "Write the numbers from one to twelve as words, with a comma after each."
"""Repeats commas, so that a repetition penalty the server applies by default shows."""
NO_ECHO = "the target is not known to score prompts (echo with logprobs)"
TOKENS = 12


async def calibrate(
    target: Target, vocabularies: Sequence[Vocabulary], book: Book, deadline: Deadline
) -> None:
    """Decide ``target.learned.scoring``; a provider that can't be reached leaves it unknown.

    ``vocabularies``: tokenizers that may be the target's (the configured one, the local drafts');
    the first whose ids prove to be the server's is kept. Runs once: later calls return at once.
    """
    async with target.calibrating:
        learned = target.learned
        if learned.scoring != "unknown" or learned.resting(deadline.clock()):
            return
        try:
            await _calibrate(target, vocabularies, book, deadline)
        except (BadEvidence, templates.NoTemplate) as error:
            target.refuse_scoring(str(error))
        except ProviderError as error:
            if isinstance(error, StatusError) and not _passing(error.status):
                target.refuse_scoring(f"the server refused a calibration call: {error}")
                return
            learned.rest(deadline.clock(), f"could not be calibrated yet: {error}")
        else:
            learned.scoring = "trusted"
            learned.reason, learned.failures = "", 0


def _passing(status: int) -> bool:
    """Whether an error status says nothing of what the server can do."""
    return status in (401, 403, 408, 409, 429) or status >= 500


async def _calibrate(
    target: Target, vocabularies: Sequence[Vocabulary], book: Book, deadline: Deadline
) -> None:
    caps = target.capabilities
    messages = [{"role": "user", "content": QUESTION}]
    body: dict[str, Any] = {"model": target.ref.model, "messages": messages, "temperature": 0}
    body["max_tokens"] = max(TOKENS, caps.min_max_tokens)
    request = TextRequest.read(CHAT, body)
    scores = caps.completions and "echo" in caps.score
    if caps.id_prompts and caps.token_ids_param:
        target.learned.vocabulary = await _vocabulary(target, vocabularies, book, deadline)
    if not (scores or target.by_ids):
        raise BadEvidence(NO_ECHO)
    if "echo" not in caps.score or not caps.completions:
        raise BadEvidence("the target is not known to score prompts (echo with logprobs)")
    prompt = await templates.render(target, request, book, deadline)
    if target.by_ids and prompt.ids is None:
        raise BadEvidence("the prompt could be rendered only as text at a server that takes ids")
    if not target.by_ids and prompt.text is None:
        raise templates.NoTemplate("no vocabulary is known whose ids are the server's")
    tokens, logprobs, prompt_tokens = await _generate(target, body, prompt, book, deadline)
    if prompt.ids is not None and prompt_tokens not in (None, len(prompt.ids)):
        target.learned.vocabulary = None
        raise BadEvidence(
            f"the chat call counted {prompt_tokens} prompt tokens, the rendered prompt has "
            f"{len(prompt.ids)}: it is not the prompt that the target sees"
        )
    if len(tokens) < 3:
        raise BadEvidence(f"the target generated only {len(tokens)} tokens to calibrate on")
    draft: Sequence[int] | str
    if target.by_ids:
        draft = [t for t in tokens[:-1] if isinstance(t, int)]
        if len(draft) != len(tokens) - 1:
            raise BadEvidence("generated tokens came without ids")
    else:
        draft = "".join(str(t) for t in tokens[:-1])
    if not scores:  # The chat call has told whether the ids are the server's, for ``prefix``.
        raise BadEvidence(NO_ECHO)
    view = await target.score(
        prompt,
        Committed("", ()),
        draft,
        logprobs=1,
        sampling={"temperature": 0},
        book=book,
        deadline=deadline,
        purpose="calibrate",
    )
    agreement.check(view, tokens, logprobs, processed=caps.logprobs == "processed")


async def _vocabulary(
    target: Target, vocabularies: Sequence[Vocabulary], book: Book, deadline: Deadline
) -> Vocabulary | None:
    """The first vocabulary whose ids are the server's, by its own ``/tokenize`` where it has one;
    without one the configured tokenizer is taken at its word and the scored ids must agree."""
    if target.capabilities.template != "tokenize":
        return target.tokenizer
    text = "\n".join(PROBE_TEXTS)
    ids, _ = await templates.tokenize(
        target, {"prompt": text, "add_special_tokens": False}, book, deadline
    )
    candidates = [target.tokenizer, *vocabularies] if target.tokenizer else list(vocabularies)
    return next((v for v in candidates if v.encode(text) == ids), None)


async def _generate(
    target: Target, body: Mapping[str, Any], prompt: Prompt, book: Book, deadline: Deadline
) -> tuple[list[int | str], list[float], int | None]:
    """(the target's own greedy tokens, their log-probabilities, its count of prompt tokens)."""
    caps = target.capabilities
    call = dict(body)
    if caps.chat_max_logprobs:
        path = CHAT
        call["logprobs"] = True
    else:
        path = COMPLETIONS
        del call["messages"]
        call["prompt"] = list(prompt.ids) if prompt.ids is not None else prompt.text
        call["logprobs"] = 1
    if caps.token_ids_param and target.by_ids:
        call[caps.token_ids_param] = True
    with book.attempt(str(target.ref), "calibrate") as entry:
        reply = await target.http.post_json(path, call, deadline)
        entry.request_id = reply.request_id
        entry.usage = Usage.from_wire(reply.data.get("usage"))
    try:
        shown = reply.data["choices"][0]["logprobs"]
        if path == CHAT:
            names = [entry["token"] for entry in shown["content"]]
            values = [entry["logprob"] for entry in shown["content"]]
        else:
            names, values = shown["tokens"], shown["token_logprobs"]
    except (KeyError, IndexError, TypeError) as error:
        raise BadEvidence("the calibration call showed no logprobs") from error
    keys: list[int | str] = []
    for name in names:
        head, _, number = str(name).partition("token_id:")
        keys.append(int(number) if not head and number.isdigit() else str(name))
    if path == CHAT:
        _check_text(target, reply.data["choices"][0], keys)
    return (
        keys,
        [checked_logprob(v, f"generated token {i}") for i, v in enumerate(values)],
        entry.usage.prompt_tokens,
    )


def _check_text(target: Target, choice: Mapping[str, Any], keys: Sequence[int | str]) -> None:
    """Refuse a chat whose text is not its tokens' text: its server takes answers apart (reasoning,
    tool calls), so an answer made of tokens would show what a plain one hides."""
    message = choice.get("message")
    shown = message.get("content") if isinstance(message, Mapping) else None
    vocabulary = target.learned.vocabulary
    ids = [key for key in keys if isinstance(key, int)]
    if vocabulary is not None and len(ids) == len(keys):
        text, least = vocabulary.decode(ids), vocabulary.decode(ids)
    else:  # An end token has a name of its own and no text.
        text = "".join(map(str, keys))
        least = "".join(map(str, keys[:-1])) if choice.get("finish_reason") == "stop" else text
    shown = shown.rstrip("\ufffd") if isinstance(shown, str) else ""
    if not (text.startswith(shown) and shown.startswith(least.rstrip("\ufffd"))):
        target.learned.vocabulary = None
        raise BadEvidence(
            f"the chat call shows the text {shown[:40]!r} for tokens that say {text[:40]!r}: "
            "its server takes answers apart"
        )
