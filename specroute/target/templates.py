"""From a request to the prompt its target really sees: the target's own template, never a guess.

Asks the server where it can render (``/tokenize``, ``/apply-template``), else the tokenizer that
the config names. Says why when neither is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specroute.context import Prompt
from specroute.errors import StatusError
from specroute.profiles import Capabilities
from specroute.request import CHAT, TextRequest
from specroute.types import Usage

if TYPE_CHECKING:
    from specroute.book import Book
    from specroute.http.deadline import Deadline
    from specroute.target.target import Target


class NoTemplate(Exception):
    """The request can't be turned into the target's prompt; says why."""


async def render(target: Target, request: TextRequest, book: Book, deadline: Deadline) -> Prompt:
    """The prompt as ids where the server takes ids, else as text.

    Raises :class:`NoTemplate`; provider errors pass through.
    """
    if request.path != CHAT:
        return await _completion(target, request, book, deadline)
    kind = target.capabilities.template
    if kind == "tokenize" and target.capabilities.id_prompts:
        # Nothing is said of the generation prompt: SGLang then renders as for a chat answer, with a
        # template that isn't Jinja's as well; vLLM adds it by default.
        try:
            ids = await tokenize(target, {"messages": list(request.messages or ())}, book, deadline)
        except NoTemplate as error:
            # A server that only cuts texts: the config's own tokenizer renders.
            if target.tokenizer is None:
                raise NoTemplate(f"{error} (name the model's 'tokenizer' in the config)") from error
        else:
            return Prompt(request.messages, None, ids)
    if kind == "apply-template":
        text = await apply_template(target, request, book, deadline)
        return Prompt(request.messages, text, await _useful_ids(target, text, book, deadline))
    if target.tokenizer is not None:
        if any(not isinstance(m.get("content"), str) for m in request.messages or ()):
            raise NoTemplate("a message's content is a list of parts, which only a server renders")
        try:
            if target.capabilities.id_prompts:
                return Prompt(
                    request.messages, None, target.tokenizer.render(request.messages or ())
                )
            return Prompt(request.messages, target.tokenizer.render_text(request.messages or ()))
        except ValueError as error:
            raise NoTemplate(f"the configured tokenizer can't render the chat: {error}") from error
    raise NoTemplate(
        "the target's chat template is not known: its server can't render prompts and the config "
        "names no 'tokenizer' for the model"
    )


def unrendered(request: TextRequest) -> Prompt:
    """The prompt of a request whose template stays the server's own affair (lanes by prefill)."""
    return Prompt(request.messages, request.prompt if isinstance(request.prompt, str) else None)


async def _completion(
    target: Target, request: TextRequest, book: Book, deadline: Deadline
) -> Prompt:
    if isinstance(request.prompt, tuple):
        return Prompt(None, None, request.prompt)
    text = request.prompt or ""
    return Prompt(None, text, await _useful_ids(target, text, book, deadline))


async def _useful_ids(
    target: Target, text: str, book: Book, deadline: Deadline
) -> tuple[int, ...] | None:
    """The server's own ids of a whole prompt; ``None`` where it takes none or gives none, or where
    nobody here could read them."""
    caps = target.capabilities
    known = target.learned.vocabulary is not None or caps.template == "tokenize"
    if not (caps.id_prompts and known and tokenizes(caps)):
        return None
    return await text_ids(target, text, book, deadline, special=True)


def tokenizes(capabilities: Capabilities) -> str | None:
    """The field in which /tokenize takes a text, ``None`` where it takes none."""
    return capabilities.tokenize or ("prompt" if capabilities.template == "tokenize" else None)


async def text_ids(
    target: Target, text: str, book: Book, deadline: Deadline, *, special: bool
) -> tuple[int, ...]:
    """A text's ids, by the server; ``special``: with what the server puts before a prompt (BOS)."""
    if tokenizes(target.capabilities) == "content":
        what = {"content": text, "add_special": special, "parse_special": True}
    else:
        what = {"prompt": text, "add_special_tokens": special}
    return await tokenize(target, what, book, deadline)


async def tokenize(
    target: Target, what: Mapping[str, Any], book: Book, deadline: Deadline
) -> tuple[int, ...]:
    """``POST /tokenize``: the ids. Takes note of the model's longest context where it is said."""
    body = {"model": target.ref.model, **what}
    data = await _ask(target, "/tokenize", body, book, deadline)
    ids, limit = data.get("tokens"), data.get("max_model_len")
    if not (isinstance(ids, list) and ids and all(isinstance(i, int) for i in ids)):
        raise NoTemplate("the server's /tokenize answered without a list of token ids")
    if target.capabilities.tokenize_limit is not False and isinstance(limit, int) and limit > 0:
        target.learned.max_context = limit
    return tuple(ids)


async def apply_template(
    target: Target, request: TextRequest, book: Book, deadline: Deadline
) -> str:
    """llama.cpp's ``POST /apply-template``: the rendered prompt."""
    body = {"messages": list(request.messages or ())}
    text = (await _ask(target, "/apply-template", body, book, deadline)).get("prompt")
    if not (isinstance(text, str) and text):
        raise NoTemplate("the server's /apply-template answered without a prompt")
    return text


async def _ask(
    target: Target, path: str, body: Mapping[str, Any], book: Book, deadline: Deadline
) -> dict[str, Any]:
    """One rendering call: no tokens are billed. A server that refuses it has no template."""
    try:
        with book.attempt(str(target.ref), "render") as entry:
            entry.usage = Usage(0, 0, 0)
            reply = await target.http.post_json(path, body, deadline, root=True, purpose="render")
            entry.request_id = reply.request_id
    except StatusError as error:
        if error.status in (401, 403, 408, 409, 429) or error.status >= 500:
            raise
        raise NoTemplate(f"the server refused {path}: {error}") from error
    return reply.data
