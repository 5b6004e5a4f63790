"""openai's objects made from JSON the short way: its two chat types, by pydantic's own validator.

openai walks through the annotations in Python for each object, which is most of what reading a
stream costs. Strict validation of data that is as it should be gives the same object in a
twentieth of the time. Deliberately mends nothing: whatever is not exactly so (another type, an
unknown finish_reason, a field missing) is left to openai's own way, which takes anything.
"""

from __future__ import annotations

from typing import Any

import pydantic
from openai.types.chat import ChatCompletion, ChatCompletionChunk


def made(kind: object, data: object) -> ChatCompletion | ChatCompletionChunk | None:
    """What openai makes of ``data`` for ``kind``; ``None``: leave it to openai."""
    model: type[ChatCompletion | ChatCompletionChunk]
    if kind is ChatCompletionChunk:
        model, said = ChatCompletionChunk, "delta"
    elif kind is ChatCompletion:
        model, said = ChatCompletion, "message"
    else:
        return None
    try:
        found = model.model_validate(data, strict=True)
    except pydantic.ValidationError:
        return None  # openai makes something of it.
    _known_only(found)
    for choice in found.choices:
        _known_only(choice)
        _known_only(getattr(choice, said))
    return found


def _known_only(model: Any) -> None:
    """openai counts no extra fields among those that were set, pydantic does. Of what stands in
    optional fields both do: there openai validates, too."""
    extra = model.__pydantic_extra__
    if extra:
        model.__pydantic_fields_set__.difference_update(extra)
