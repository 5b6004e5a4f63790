"""Does a server penalise what was said before, by a default of its own? Calibration's last step.

A model folder may set ``repetition_penalty``, and vLLM then applies it to every request that says
nothing of it (``--generation-config auto``), while its log-probabilities stay raw: they are not
what it samples from, and no comparison of values shows it. So a token that was said and one that
was not are lifted far above all others by ``logit_bias``, the said one ahead by a little: a server
that generates the other one penalises. Knows penalties that count the prompt; those that count only
what was generated in the same call (``presence_penalty``, ``frequency_penalty``) it can't see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specroute.errors import StatusError
from specroute.request import COMPLETIONS
from specroute.target.dialects import entries
from specroute.target.learned import says_nothing
from specroute.target.view import BadEvidence
from specroute.types import Usage

if TYPE_CHECKING:
    from specroute.book import Book
    from specroute.http.deadline import Deadline
    from specroute.target.target import Target

LIFT, AHEAD = 50.0, 0.5
"""Nats: above what is probable by itself; and what a penalty has to overcome. Bias comes before
penalties in vLLM, so that the lift enlarges them; two calls for one token differ by far less."""


async def penalised(
    target: Target, before: Sequence[int], said: Sequence[int], book: Book, deadline: Deadline
) -> str:
    """Why the target's raw log-probabilities are not what it samples from; empty where they are, or
    where it can't be told. ``said``: ids that it has generated after ``before``. Two calls of one
    token."""
    caps = target.capabilities
    if not (caps.completions and caps.id_prompts and caps.logit_bias and caps.token_ids_param):
        return ""
    body: dict[str, Any] = {
        "model": target.ref.model,
        "prompt": [*before, *said],
        "max_tokens": caps.min_max_tokens,
        "temperature": 0,
        "logprobs": min(caps.echo_max_logprobs or 1, 20),
        caps.token_ids_param: True,
    }
    try:
        shown = await _first(target, body, book, deadline)
        others = {o.id: o.logprob for o in shown.top or () if isinstance(o.logprob, float | int)}
        old = [i for i in others if i in said]
        new = [i for i in others if i is not None and i not in said and i not in before]
        if not (old and new):
            return ""
        a, b = max(old, key=lambda i: others[i]), max(new, key=lambda i: others[i])
        lead = others[b] - others[a] + AHEAD
        if abs(lead) > LIFT:
            return ""
        body |= {"logprobs": 1, "logit_bias": {str(a): LIFT + lead, str(b): LIFT}}
        drawn = (await _first(target, body, book, deadline)).id
    except BadEvidence:
        return ""
    except StatusError as error:
        if says_nothing(error.status):
            raise
        return ""
    if drawn != b:  # The other one, or one that shows that no bias is heeded.
        return ""
    return (
        "the server makes what was said before less likely by a default of its own (a "
        "repetition_penalty of the model's generation config?), and its log-probabilities don't "
        "show that"
    )


async def _first(
    target: Target, body: dict[str, Any], book: Book, deadline: Deadline
) -> entries.Entry:
    """The first generated token's entry."""
    with book.attempt(str(target.ref), "calibrate") as entry:
        reply = await target.http.post_json(COMPLETIONS, body, deadline, purpose="calibrate")
        entry.request_id = reply.request_id
        entry.usage = Usage.from_wire(reply.data.get("usage"))
    found = entries.read(entries.choice_of(reply.data).get("logprobs"))
    if not found:
        raise BadEvidence("no token was generated")
    return found[0]
