"""What a local draft reads before the answer: the prompt in its own ids, and how it will speak.

Knows prompts and vocabularies; nothing of models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specroute.draft.base import Prompt
from specroute.draft.crossed import TwoVocabularies, Way
from specroute.draft.speech import OneVocabulary, Speech
from specroute.errors import DraftError
from specroute.vocabulary import Vocabulary

if TYPE_CHECKING:
    from specroute.draft.model import Model


def begin(
    prompt: Prompt,
    loaded: Model,
    target: Vocabulary | None,
    rng: Callable[[], Any],
    way: Way,
    least: float = 0.0,
) -> tuple[tuple[int, ...], Speech]:
    """(the prompt in the draft's ids, how it speaks to the target). In the worker thread: a large
    tokenizer takes its time."""
    own = loaded.vocabulary
    if target is not None and target.fingerprint == own.fingerprint:
        speech = OneVocabulary(own, rng, least)
        if prompt.ids is not None:
            return prompt.ids, speech
        opening, text = _render(prompt, own)
        return (*opening, *own.encode(text)), speech
    pair = None
    if target is not None:
        pair = loaded.pair(target)
        if prompt.messages is None and prompt.text is None and prompt.ids is not None:
            prompt = replace(prompt, text=target.decode(prompt.ids))
    opening, text = _render(prompt, own)
    return opening, TwoVocabularies(own, target, pair, rng, way, text, least)


def _render(prompt: Prompt, vocabulary: Vocabulary) -> tuple[tuple[int, ...], str]:
    """The prompt in the draft's own vocabulary: (a chat by its own template, ""), or (the start
    token, if there is one, and the text)."""
    try:
        if prompt.messages is not None:
            return vocabulary.render(prompt.messages), ""
    except ValueError as error:
        if prompt.text is None:
            raise DraftError(f"the draft can't render this chat: {error}") from error
    if prompt.text is None:
        raise DraftError("nothing to draft from: neither messages nor text is known")
    bos = vocabulary.bos_id
    if bos is None or vocabulary.encode(prompt.text[:64])[:1] == (bos,):
        return (), prompt.text
    return (bos,), prompt.text
