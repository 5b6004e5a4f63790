"""Are two rounds in one request answered as each would be by itself? Calibration's look at lists.

A server may ignore all but the first prompt, answer in another order than its indices say, or not
take lists at all. So two drafts of different lengths, both of what the target itself has said, are
scored in one request, and each part is held against what was said. Knows how that is asked; what
agreement is, ``dialects.agreement`` knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specroute.context import Committed, Prompt
from specroute.errors import StatusError
from specroute.target.dialects import agreement, joining
from specroute.target.learned import Trusted, says_nothing
from specroute.target.scoring import ask_of
from specroute.target.view import BadEvidence
from specroute.types import Usage

if TYPE_CHECKING:
    from specroute.book import Book
    from specroute.http.deadline import Deadline
    from specroute.target.target import Target


async def apart(
    target: Target,
    using: Trusted,
    prompt: Prompt,
    said: Sequence[int | str],
    logprobs: Sequence[float],
    book: Book,
    deadline: Deadline,
) -> str:
    """Why rounds in that dialect can't share a request; empty where they can. ``said``: what the
    target generated greedily after ``prompt``, as ids or texts, with its log-probabilities. One
    call; what fails for reasons of the host's own is raised."""
    dialect, form = using
    halves = [n for n in range(2, len(said) - 1) if said[n] != said[-1]]
    if not halves:
        return "the target said the same all along: its answers could not be told apart"
    asks = []
    for size in (len(said), halves[len(halves) // 2] + 1):
        own = said[: size - 1]
        ids = [token for token in own if isinstance(token, int)]
        draft = ids if form == "ids" else "".join(map(str, own))
        sampling = {"temperature": 0}
        asks.append(ask_of(target, form, prompt, Committed("", ()), draft, 1, sampling))
    requests = [dialect.request(ask) for ask in asks]
    if any(joining.alike(request) is None for request in requests):
        return f"{dialect.name} has no lists"
    shared = joining.joined(requests)
    try:
        with book.attempt(str(target.ref), "calibrate") as entry:
            reply = await target.http.post_json(
                shared.path,
                shared.payload,
                deadline,
                root=shared.root,
                listed=shared.listed,
                purpose="calibrate",
                model=target.ref.model,
            )
            entry.request_id = reply.request_id
            parts = joining.parted(reply.data, requests)
            entry.usage = Usage.from_wire(reply.data.get("usage"))
            views = []
            for ask, part in zip(asks, parts, strict=True):
                if part.data is None:
                    raise BadEvidence("a list of two rounds came back without one of them")
                views.append(dialect.view(part.data, ask, reply.seconds))
            if None in (entry.usage.prompt_tokens, entry.usage.completion_tokens):
                entry.usage = Usage.sum(view.usage for view in views)
        processed = target.capabilities.logprobs == "processed"
        for view in views:
            size = len(view.positions) + 1
            agreement.check(view, said[:size], logprobs[:size], processed=processed)
    except BadEvidence as error:
        return str(error)
    except StatusError as error:
        if says_nothing(error.status) and error.status != 500:
            raise
        return f"the server refused a list of two rounds: {error}"
    return ""
