"""Posting prompts to ``/completions``, of which those that leave together may share a request.

For whoever wants an answer's JSON and no scores (a draft's provider). Knows the list's way and the
single one; ``joint`` knows who leaves together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from specroute.http.deadline import Deadline
from specroute.target.dialects.base import Joins, Request
from specroute.target.dialects.joining import on_the_wire
from specroute.target.joint import Joint, LeftOut
from specroute.types import TargetRef, Usage

if TYPE_CHECKING:
    from specroute.http.client import HttpClient

JOINS = Joins()
PURPOSE = "draft"


class SharedPost:
    """Posts for one model. Raises what :meth:`HttpClient.post_json` raises."""

    def __init__(self, http: HttpClient, model: str, deadline: Callable[[], Deadline]) -> None:
        self._http, self._model, self._deadline = http, model, deadline
        self.joint = Joint(http, TargetRef(http.provider.name, model), "drafts")

    async def __call__(self, path: str, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """One prompt's answer. What a shared request was billed for nothing is added to the bill
        of the one that follows."""
        deadline, wasted = self._deadline(), Usage()
        request = Request(path, dict(payload), joins=JOINS)
        seat = await self.joint.seat(request, deadline, PURPOSE)
        if seat is not None:
            try:
                return (await seat.reply(self._http.provider.name))[0]
            except LeftOut as left:
                wasted = left.usage
        reply = await self._http.post_json(
            path, payload, deadline, purpose=PURPOSE, model=self._model
        )
        if wasted == Usage():
            return reply.data
        usage = Usage.from_wire(reply.data.get("usage"))
        return {**reply.data, "usage": on_the_wire(Usage.sum((usage, wasted)))}
