"""Predicted outputs on the wire: the expected answer, sent along with the request.

On chat all vendors that have it take OpenAI's form (OpenAI and Azure OpenAI: guide to predicted
outputs; Mistral: API reference, ``prediction``; Cerebras: inference docs; Fireworks: API
reference); Fireworks takes a ``speculation`` on /completions. Knows no streams and no counts.
"""

from __future__ import annotations

from typing import Any

from specroute.request import CHAT


def sent(path: str, text: str) -> dict[str, Any]:
    """The field that carries ``text`` on ``path``."""
    if path == CHAT:
        return {"prediction": {"type": "content", "content": text}}
    return {"speculation": text}
