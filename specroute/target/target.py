"""One target: a model at a provider, what it can do, what was learned of it, how it goes on.

Knows how an answer is streamed, from its start or from what is committed. Knows no scoring
(``scoring``), no rounds and no policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specroute.alignment import split_trailing_space
from specroute.context import Committed, Prompt
from specroute.profiles import Capabilities
from specroute.request import CHAT, COMPLETIONS, TextRequest
from specroute.target import prediction, prefill
from specroute.target.hedging import Hedging
from specroute.target.joint import Joint
from specroute.target.learned import Learned
from specroute.target.stream import Piece, pieces
from specroute.types import TargetRef
from specroute.vocabulary import Vocabulary

if TYPE_CHECKING:
    from specroute.book import Book
    from specroute.http.client import HttpClient
    from specroute.http.deadline import Deadline

_STOP_TAIL = 64
"""Committed ids whose text is searched for the beginning of a stop string."""


class Target:
    """``ref`` at ``http``. ``tokenizer`` is the one the config names for the model, if any."""

    def __init__(
        self,
        ref: TargetRef,
        http: HttpClient,
        capabilities: Capabilities,
        tokenizer: Vocabulary | None = None,
    ) -> None:
        self.ref = ref
        self.http = http
        self.capabilities = capabilities
        self.tokenizer = tokenizer
        self.learned = Learned()
        self.hedging = Hedging()
        self.joint = Joint(http, ref)
        self.calibrating = asyncio.Lock()

    @property
    def by_ids(self) -> bool:
        """Streams go on from ids and name theirs, in a vocabulary that is known here."""
        caps = self.capabilities
        return bool(caps.id_prompts and caps.ids_asked and self.learned.vocabulary)

    def can_continue(self, request: TextRequest, prompt: Prompt | None) -> str | None:
        """How an answer can be taken up mid-text: ``completions``, ``prefill`` or ``None``."""
        caps = self.capabilities
        rendered = prompt is not None and bool(
            prompt.text or (prompt.ids and self.learned.vocabulary)
        )
        limited = request.max_tokens is not None or self.learned.max_context is not None
        if caps.completions and rendered and limited:
            return "completions"
        if request.path == CHAT and caps.prefill:
            return "prefill"
        return None

    def goes_on_by_ids(self, request: TextRequest, prompt: Prompt) -> bool:
        """Whether :meth:`stream` takes an answer up from its ids, not from its text."""
        return prompt.ids is not None and self.can_continue(request, prompt) == "completions"

    def stream(
        self,
        request: TextRequest,
        prompt: Prompt | None,
        committed: Committed,
        *,
        used: int,
        purpose: str,
        book: Book,
        deadline: Deadline,
        show_tokens: bool = False,
        predicted: str = "",
        beyond: int | None = None,
    ) -> AsyncGenerator[Piece]:
        """The target's own answer from the end of ``committed`` on, as a plain stream.

        ``used`` tokens of ``max_tokens`` are already committed. With nothing committed it is the
        caller's own request, streamed. ``show_tokens`` asks for each token's own string and, where
        the server has them, ids. ``predicted``: the text that the whole answer is expected to be.
        ``beyond``: about how many tokens ``committed`` is, where that isn't ``used``.
        """
        path, payload, strip = self._continuation(request, prompt, committed, used, show_tokens)
        if predicted:
            payload.update(prediction.sent(path, predicted))
        sent = payload.get("prompt")
        found = pieces(
            self.http,
            path,
            payload,
            target=str(self.ref),
            purpose=purpose,
            book=book,
            deadline=deadline,
            prompt_tokens=len(sent) if isinstance(sent, list) else None,
            beyond=used if beyond is None else beyond,
        )
        for repeated in strip:
            # The last is white space that was left out of the prefill: it is generated anew.
            found = _stripped(found, repeated, generated=repeated is strip[-1])
        return found

    def _continuation(
        self,
        request: TextRequest,
        prompt: Prompt | None,
        committed: Committed,
        used: int,
        show_tokens: bool,
    ) -> tuple[str, dict[str, Any], tuple[str, ...]]:
        """(path, body, what the reply may begin with that is not new)."""
        caps = self.capabilities
        body: dict[str, Any] = {**request.body, "model": self.ref.model, "stream": True}
        if caps.stream_usage:
            body["stream_options"] = {"include_usage": True}
        else:
            body.pop("stream_options", None)
        begun = bool(committed.text or committed.ids)
        how = self.can_continue(request, prompt)
        if not begun and not (show_tokens and how == "completions" and self.by_ids):
            path = request.path
            if show_tokens and path == CHAT and caps.chat_max_logprobs:
                body["logprobs"] = True
            elif show_tokens and path == COMPLETIONS and caps.echo_max_logprobs:
                body["logprobs"] = 1
            return path, body, ()
        if how == "completions" and prompt is not None:
            body.pop("messages", None)
            body.pop("max_completion_tokens", None)
            if begun and self._may_straddle(request, committed):
                body.pop("stop", None)
            ids = self._ids_of(prompt, committed)
            if ids is not None:
                body["prompt"] = ids
                context = len(ids)
            else:
                body["prompt"] = (prompt.text or "") + committed.text
                context = len(prompt.ids or ()) + used
            limit = request.max_tokens
            body["max_tokens"] = (
                limit - used if limit is not None else (self.learned.max_context or 0) - context
            )
            if show_tokens and (self.by_ids or caps.echo_max_logprobs):
                body["logprobs"] = 1
                if prompt.ids is not None:
                    body |= caps.ids_asked
            return COMPLETIONS, body, ()
        if how == "prefill":
            if self._may_straddle(request, committed):
                body.pop("stop", None)
            # Servers and templates strip it, and models go on better with it still to be said.
            text, kept = split_trailing_space(committed.text)
            body = prefill.continued(body, text, caps.prefill or "")
            if request.max_tokens is not None:
                name = "max_completion_tokens"
                body[name if name in body else "max_tokens"] = request.max_tokens - used
            if show_tokens and caps.chat_max_logprobs:
                body["logprobs"] = True
            repeated = "" if caps.prefill_repeats is False else text
            return CHAT, body, (repeated, kept)
        raise RuntimeError("a continuation was asked for where can_continue() gave none")

    def _may_straddle(self, request: TextRequest, committed: Committed) -> bool:
        """Whether a stop string may begin in what is committed: then its server must not look for
        stop strings in the rest alone, where it could find a later one first."""
        text = committed.text
        if not text and committed.ids and self.learned.vocabulary is not None:
            text = self.learned.vocabulary.decode(committed.ids[-_STOP_TAIL:])
        return any(
            text.endswith(stop[:size]) for stop in request.stop for size in range(1, len(stop))
        )

    def _ids_of(self, prompt: Prompt, committed: Committed) -> list[int] | None:
        """Prompt + committed as ids; ``None`` where they go as text."""
        if prompt.ids is None:
            return None
        if committed.ids is not None or not committed.text:
            return [*prompt.ids, *(committed.ids or ())]
        vocabulary = self.learned.vocabulary
        if prompt.text is None and vocabulary is not None:
            return [*prompt.ids, *vocabulary.encode(committed.text)]
        return None


async def _stripped(
    found: AsyncGenerator[Piece], prefix: str, *, generated: bool
) -> AsyncGenerator[Piece]:
    """Take a repeated prefill off the first pieces. ``generated``: it is among the server's count
    of completion tokens; the piece with the count says how many."""
    strip = prefill.PrefixEcho(prefix)
    again = 0
    async with aclosing(found):
        async for piece in found:
            text = strip.feed(piece.text)
            if piece.finish is not None:
                text += strip.flush()
            again += bool(generated and piece.text and not text)
            if piece.usage is not None and again:
                piece = replace(piece, again=again)
            if text == piece.text:
                yield piece
            elif text or piece.finish or piece.extra or piece.usage:
                yield replace(piece, text=text, ids=None, texts=None)
