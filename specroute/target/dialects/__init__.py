"""The dialects of ``score``: ways of getting a target's view of a draft, one small file each.

Knows which dialect a profile's words mean and which of them a server can take. Knows no wire format
(each file does) and not which dialect a target has proven to speak (``Learned`` does).
"""

from __future__ import annotations

from collections.abc import Mapping

from specroute.profiles import Capabilities
from specroute.target.dialects.base import Ask, Dialect, Form, Request, Shows
from specroute.target.dialects.echo import Echo
from specroute.target.dialects.echo_last import EchoLast
from specroute.target.dialects.fanout import Fanout
from specroute.target.dialects.generate import Generate
from specroute.target.dialects.mistral import Mistral
from specroute.target.dialects.native_fanout import NativeFanout
from specroute.target.dialects.prompt_logprobs import PromptLogprobs
from specroute.target.dialects.together import Together

__all__ = ["DIALECTS", "Ask", "Dialect", "Form", "Request", "Shows", "dialects_of"]

DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Echo(),
        EchoLast(),
        PromptLogprobs(),
        Generate(),
        Together(),
        Mistral(),
        NativeFanout(),
        Fanout(),
    )
}
"""Name → dialect."""


def dialects_of(capabilities: Capabilities) -> tuple[tuple[Dialect, tuple[Form, ...]], ...]:
    """The dialects of a profile's ``score``, best first, each with the forms its context may take.

    Left out are those that such a server can't take in any form.
    """
    found = []
    for name in capabilities.score:
        if name == "echo" and capabilities.echo_shape == "prompt":
            name = "together"
        dialect = DIALECTS.get(name)
        if dialect is not None and (forms := dialect.forms(capabilities)):
            found.append((dialect, forms))
    return tuple(found)
