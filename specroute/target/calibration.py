"""Calibrate before trusting: score a few tokens that the target itself has just generated.

Finds servers that ignore echo, shift it by one, penalise repetition by default, report
log-probabilities after temperature, or render another prompt than the one we send; those are not
scored on. Costs one short chat call, one scoring call a dialect (two where rounds may share one)
and, where penalties are looked for, two calls of one token, per (host, model) and client.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specroute.context import Committed, Prompt
from specroute.errors import ProviderError, StatusError
from specroute.request import CHAT, COMPLETIONS, TextRequest
from specroute.target import templates
from specroute.target.dialects import Dialect, Form, agreement, dialects_of, entries
from specroute.target.learned import says_nothing
from specroute.target.penalties import penalised
from specroute.target.proving import apart
from specroute.target.scoring import score
from specroute.target.view import BadEvidence, checked_logprob
from specroute.types import Usage
from specroute.vocabulary import PROBE_TEXTS, Vocabulary, reads

if TYPE_CHECKING:
    from specroute.book import Book
    from specroute.http.deadline import Deadline
    from specroute.target.target import Target

log = logging.getLogger("specroute")

QUESTION = "Write the numbers from one to twelve as words, with a comma after each."
"""Repeats commas, so that a repetition penalty the server applies by default shows."""
NO_DIALECT = "the target is not known to score prompts in any way that is spoken here"
TOKENS = 12


async def calibrate(
    target: Target, vocabularies: Sequence[Vocabulary], book: Book, deadline: Deadline
) -> None:
    """Find the dialects that ``target`` can be trusted in; see ``target.learned``.

    A provider that can't be reached leaves it unknown. ``vocabularies``: tokenizers that may be the
    target's (the configured one, the local drafts'); the first whose ids prove to be the server's
    is kept. Runs once, and again when a trusted dialect has failed: else it returns at once.
    """
    async with target.calibrating:
        learned = target.learned
        if learned.calibrated or learned.resting(deadline.clock()):
            return
        log.info(
            "calibrating %s: one call of about %d generated tokens, one scoring call a dialect "
            "(two where rounds may share one), two calls of one token",
            target.ref,
            max(TOKENS, target.capabilities.min_max_tokens),
        )
        try:
            await _calibrate(target, vocabularies, book, deadline)
        except (BadEvidence, templates.NoTemplate) as error:
            learned.refuse(str(error))
        except ProviderError as error:
            if isinstance(error, StatusError) and not says_nothing(error.status):
                learned.refuse(f"the server refused a calibration call: {error}")
                return
            learned.rest(deadline.clock(), f"could not be calibrated yet: {error}")
        else:
            learned.calibrated = True
            learned.failures = 0


async def _calibrate(
    target: Target, vocabularies: Sequence[Vocabulary], book: Book, deadline: Deadline
) -> None:
    caps, learned = target.capabilities, target.learned
    body: dict[str, Any] = {"model": target.ref.model, "temperature": 0}
    body["messages"] = [{"role": "user", "content": QUESTION}]
    body["max_tokens"] = max(TOKENS, caps.min_max_tokens)
    offered = [(d, forms) for d, forms in dialects_of(caps) if d.name not in learned.refused]
    if caps.id_prompts:
        learned.vocabulary = await _vocabulary(target, vocabularies, book, deadline)
    if not (offered or target.by_ids):
        raise BadEvidence("; ".join(learned.refused.values()) or NO_DIALECT)
    request = TextRequest.read(CHAT, body)
    prompt, no_template = Prompt(request.messages, None), ""
    try:
        prompt = await templates.render(target, request, book, deadline)
    except templates.NoTemplate as error:
        no_template = str(error)
    said = await _generate(target, body, prompt, book, deadline)
    if prompt.ids is not None and said.prompt_tokens not in (None, len(prompt.ids)):
        learned.vocabulary = None
        raise BadEvidence(
            f"the chat call counted {said.prompt_tokens} prompt tokens, the rendered prompt has "
            f"{len(prompt.ids)}: it is not the prompt that the target sees"
        )
    if len(said.names) < 3:
        raise BadEvidence(f"the target generated only {len(said.names)} tokens to calibrate on")
    why: list[str] = [no_template] if no_template else []
    for dialect, forms in offered:
        # One that shows log-probabilities, and one that draws, are all that is ever used.
        if learned.sampler if dialect.shows.samples else learned.dialect:
            continue
        form, problem = await _first_form(target, dialect, forms, prompt, said, book, deadline)
        if form is None:
            learned.refused[dialect.name] = problem
            why.append(problem)
        elif dialect.shows.samples:
            learned.sampler = (dialect, form)
        else:
            learned.dialect = (dialect, form)
    if learned.dialect is not None and prompt.ids is not None and said.ids is not None:
        problem = await penalised(target, prompt.ids, said.ids, book, deadline)
        if problem:
            learned.refused[learned.dialect[0].name] = problem
            learned.dialect = None
            why.append(problem)
    await _see_joins(target, prompt, said, book, deadline)
    learned.draw_logprobs = caps.logprobs == "raw" and learned.dialect is not None
    trusted = learned.dialect or learned.sampler
    learned.reason = "" if trusted else "; ".join(dict.fromkeys(why)) or NO_DIALECT


async def _see_joins(
    target: Target, prompt: Prompt, said: _Said, book: Book, deadline: Deadline
) -> None:
    """In which of the trusted dialects two rounds can share a request."""
    learned = target.learned
    learned.joins = set()
    for using in (learned.dialect, learned.sampler):
        if not target.capabilities.joint_rounds or using is None:
            continue
        tokens = said.ids if using[1] == "ids" and said.ids else said.texts
        problem = await apart(target, using, prompt, tokens, said.logprobs, book, deadline)
        if problem:
            log.info("%s: %s rounds share no request: %s", target.ref, using[0].name, problem)
        else:
            learned.joins.add(using[0].name)


async def _first_form(
    target: Target,
    dialect: Dialect,
    forms: Sequence[Form],
    prompt: Prompt,
    said: _Said,
    book: Book,
    deadline: Deadline,
) -> tuple[Form | None, str]:
    """(the best form of the context in which the dialect agrees with what the target said, or
    ``None`` and why there is none)."""
    problem = (
        f"{dialect.name} needs token ids, and no vocabulary is known whose ids are the server's "
        "(name the model's 'tokenizer' in the config)"
    )
    for form in forms:
        if form == "ids" and (said.ids is None or prompt.ids is None):
            continue
        if form == "text" and prompt.text is None:
            continue
        named: Sequence[int | str] = said.ids if form == "ids" and said.ids else said.texts
        draft: Sequence[int] | str
        if form == "ids" and said.ids is not None:
            draft = said.ids[:-1]
        else:
            draft = "".join(said.texts[:-1])
        try:
            view = await score(
                target,
                (dialect, form),
                prompt,
                Committed("", ()),
                draft,
                logprobs=1,
                sampling={"temperature": 0},
                book=book,
                deadline=deadline,
                purpose="calibrate",
            )
            processed = target.capabilities.logprobs == "processed"
            agreement.check(view, named, said.logprobs, processed=processed)
        except BadEvidence as error:
            problem = str(error)
        except StatusError as error:
            if says_nothing(error.status):
                raise
            problem = f"the server refused {dialect.name}: {error}"
        else:
            return form, ""
    return None, problem


async def _vocabulary(
    target: Target, vocabularies: Sequence[Vocabulary], book: Book, deadline: Deadline
) -> Vocabulary | None:
    """The first vocabulary whose ids are the server's, by its own ``/tokenize`` where it has one;
    without one the configured tokenizer is taken at its word and the scored ids must agree."""
    if templates.tokenizes(target.capabilities) is None:
        return target.tokenizer
    text = "\n".join(PROBE_TEXTS)
    try:
        ids = await templates.text_ids(target, text, book, deadline, special=False)
    except templates.NoTemplate:
        return target.tokenizer
    candidates = [target.tokenizer, *vocabularies] if target.tokenizer else list(vocabularies)
    return next((v for v in candidates if reads(v, text, ids)), None)


@dataclass(frozen=True, slots=True)
class _Said:
    """What the target generated greedily, token by token."""

    names: tuple[int | str, ...]
    ids: tuple[int, ...] | None
    texts: tuple[str, ...]
    logprobs: tuple[float, ...]
    prompt_tokens: int | None
    """The server's own count of the prompt."""


async def _generate(
    target: Target, body: Mapping[str, Any], prompt: Prompt, book: Book, deadline: Deadline
) -> _Said:
    """The target's own greedy tokens, by a chat call where chat shows log-probabilities."""
    caps = target.capabilities
    call = dict(body)
    if caps.chat_max_logprobs:
        path = CHAT
        # llama-cpp-python shows no logprobs at all unless alternatives are asked for.
        call |= {"logprobs": True, "top_logprobs": 1}
    else:
        if prompt.ids is None and prompt.text is None:
            raise BadEvidence("chat shows no log-probabilities, and the prompt is not known")
        path = COMPLETIONS
        del call["messages"]
        call["prompt"] = list(prompt.ids) if prompt.ids is not None else prompt.text
        call["logprobs"] = 1
    vocabulary = target.learned.vocabulary
    if vocabulary is not None:
        call |= caps.ids_asked
    with book.attempt(str(target.ref), "calibrate") as entry:
        reply = await target.http.post_json(path, call, deadline, purpose="calibrate")
        entry.request_id = reply.request_id
        entry.usage = Usage.from_wire(reply.data.get("usage"))
    choice = entries.choice_of(reply.data)
    found = entries.generated_of(choice)
    values = [checked_logprob(e.logprob, f"generated token {i}") for i, e in enumerate(found)]
    named = [e.id for e in found]
    ids = None
    if vocabulary is not None and all(token is not None for token in named):
        ids = tuple(token for token in named if token is not None)
    elif target.by_ids:
        raise BadEvidence("generated tokens came without ids")
    if ids is not None and vocabulary is not None:
        texts = tuple(vocabulary.decode((token,)) for token in ids)
    else:
        texts = tuple(e.text or "" for e in found)
    keys: tuple[int | str, ...] = ids if ids is not None else texts
    if path == CHAT:
        _check_text(target, choice, keys)
    return _Said(keys, ids, texts, tuple(values), entry.usage.prompt_tokens)


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
