"""``AsyncSpecRoute`` and ``SpecRoute``: openai's two clients, answered by a router.

Knows what differs between the two; ``drop_in`` knows all that they share.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import httpx2
import openai

from specroute import errors, openai_errors
from specroute.openai_seam.drop_in import DropIn
from specroute.openai_seam.provisional_stream import (
    ProvisionalStream,
    SyncProvisionalStream,
    asking,
)
from specroute.openai_seam.seam import AsyncSeam, SyncSeam
from specroute.transport import RETRIES, SpecRouteTransport

if TYPE_CHECKING:
    from specroute.batch import BatchResult
    from specroute.batch.progress import OnItem


class AsyncSpecRoute(DropIn, openai.AsyncOpenAI):
    """An ``openai.AsyncOpenAI`` over any OpenAI-format provider.

    Every argument of ``AsyncOpenAI`` means the same here. ``config``: a ``specroute.toml``'s path,
    a dict of its structure, or a :class:`~specroute.config.Config`. ``on_report``: called with
    each chat or completions call's final :class:`~specroute.types.Report`; may be async. ``watch``:
    look at the config's file every second and :meth:`reload` it when it has changed; one that is
    wrong is logged and changes nothing.

    With ``api_key``, ``base_url`` or another of openai's credentials it is a plain client for that
    address; with none of them and no ``config`` it looks for a config file, and failing that is a
    plain client by the ``OPENAI_*`` variables. ``http_client`` becomes the client that reaches the
    providers, and is closed with this one, as openai does. asyncio only.

    One client may be used from several event loops and threads, and in a forked child: each loop
    gets connections, drafts and measurements of its own. With ``http_client`` it belongs to one
    loop at a time, and a second raises ``RuntimeError``.

    Raises :class:`openai.OpenAIError` for missing credentials and for a wrong config (then also
    :class:`specroute.ConfigError`, which lists every problem).
    """

    _seam_class = AsyncSeam

    async def warm_up(self) -> list[str]:
        """Load the drafts and calibrate the targets of every configured model now, instead of
        beside its first requests.

        Costs two short calls a target. Returns one sentence for each thing that is not to be had
        (a draft that doesn't load, a target whose scoring can't be trusted): such requests are
        answered plainly.
        """
        return await self._seam.connections.router.warm_up(self._on_report)

    def speculate(self, **create: Any) -> ProvisionalStream:
        """One answer as events for a screen: drafted text at once, corrected as the answer comes.

        Arguments are those of ``chat.completions.create`` (with ``prompt``: of
        ``completions.create``); ``stream`` goes without saying. Yields ``Provisional``,
        ``Rollback`` and ``Commit``, at last ``Done`` with the report. Committed text is what the
        plain stream would show. Without a draft for the model there is no provisional text.

        Raises :class:`specroute.RequestError` for ``n`` > 1 or ``stream=False``; the iteration
        raises what ``create`` and its stream do.
        """
        arguments = _asking(self, create)
        target: Any = self.completions if "prompt" in create else self.chat.completions
        return ProvisionalStream(lambda: target.create(**arguments))

    async def batch(
        self,
        requests: Iterable[Mapping[str, Any]],
        *,
        concurrency: int = 32,
        method: str | None = None,
        policy: str | Mapping[str, Any] | None = None,
        journal: str | os.PathLike[str] | None = None,
        attempts: int = 4,
        timeout: float | None = None,
        progress: bool | OnItem | None = None,
    ) -> BatchResult:
        """Answer many requests; the items come in the order of ``requests``, an error for each
        that could not be answered.

        ``requests``: arguments of ``chat.completions.create`` or ``completions.create``, or lines
        of OpenAI's batch file format. ``concurrency``: requests under way at once. ``method`` (as
        in a ``fixed`` policy) or ``policy``: for every request. ``journal``: a file that remembers
        the answers, so that a run with the same file after a crash asks only for the rest; a
        prompt that was under way when the process died is asked again, no other. ``attempts``: of
        each request, with growing waits and (with ``timeout``, seconds of the first) a doubled
        timeout, the last one plain; one 429 holds back all requests for that model. A refused key
        or an exhausted quota ends a model's requests at once. ``progress``: a bar on stderr
        (``None``: if that is a terminal), or a function of each item and the counts so far.

        Raises :class:`specroute.RequestError` before anything is sent: a request that is none,
        an id used twice, a file that is no journal or is in use; :class:`specroute.StoreFailed`
        where the journal can't be written (the disk is full, say): what is in it stays.
        """
        from specroute.batch import run_batch

        try:
            return await run_batch(
                self,
                requests,
                concurrency=concurrency,
                method=method,
                policy=policy,
                journal=journal,
                attempts=attempts,
                timeout=timeout,
                progress=progress,
            )
        except errors.SpecRouteError as error:
            raise openai_errors.translate(
                error, httpx2.Request("POST", str(self.base_url))
            ) from error

    async def batch_job(
        self,
        requests: Iterable[Mapping[str, Any]],
        *,
        journal: str | os.PathLike[str] | None = None,
        window: str = "24h",
        metadata: Mapping[str, str] | None = None,
        poll_s: float = 30.0,
        progress: bool | OnItem | None = None,
    ) -> BatchResult:
        """As :meth:`batch`, by the providers' own Batch API: cheaper, and done within ``window``.

        One job for each model and path, on the model's first target; nothing is speculated on and
        no limit or budget of the config counts. With ``journal`` a run that ended early takes its
        jobs up again instead of making new ones. ``poll_s``: seconds between two looks. What a job
        leaves unanswered (it expired, was cancelled, a request was refused) is an item's error.

        Raises :class:`specroute.RequestError` as ``batch`` does, and for a provider that is not
        known to have a Batch API; openai's errors where the job can't be made or seen.
        """
        from specroute.batch import run_jobs
        from specroute.batch.place import place_of

        try:
            return await run_jobs(
                lambda model: place_of(self._seam.connections.router.routes, model),
                requests,
                journal=journal,
                window=window,
                metadata=metadata,
                poll_s=poll_s,
                progress=progress,
            )
        except errors.SpecRouteError as error:
            raise openai_errors.translate(
                error, httpx2.Request("POST", str(self.base_url))
            ) from error

    async def _process_response(self, *, response: Any, retries_taken: int = 0, **more: Any) -> Any:
        retries = response.extensions.get(RETRIES, retries_taken)
        return await super()._process_response(response=response, retries_taken=retries, **more)


class SpecRoute(DropIn, openai.OpenAI):  # type: ignore[misc]
    """An ``openai.OpenAI`` over any OpenAI-format provider: ``AsyncSpecRoute`` for code that isn't
    async.

    Arguments and errors are ``AsyncSpecRoute``'s. The work is done on one loop thread, which all
    of a process's ``SpecRoute`` clients share and which ends with the last of them; any number of
    threads may use one client at once. In a forked child everything is made anew.

    ``http_client`` is an ``httpx2.Client`` as for ``openai.OpenAI``: it sends in worker threads,
    where a wait can't be interrupted, so a call that is given up may keep its connection until the
    next byte or that client's own timeout. ``on_report`` is called on the loop thread and must not
    call this client.
    """

    _seam_class = SyncSeam

    def warm_up(self) -> list[str]:
        """As :meth:`AsyncSpecRoute.warm_up`."""
        seam = self._seam
        assert isinstance(seam, SyncSeam)
        found: list[str] = seam.run(lambda router: router.warm_up(self._on_report))
        return found

    def speculate(self, **create: Any) -> SyncProvisionalStream:
        """As :meth:`AsyncSpecRoute.speculate`, for an ordinary ``for``."""
        arguments = _asking(self, create)
        target: Any = self.completions if "prompt" in create else self.chat.completions
        return SyncProvisionalStream(lambda: target.create(**arguments))

    def _process_response(self, *, response: Any, retries_taken: int = 0, **more: Any) -> Any:
        retries = response.extensions.get(RETRIES, retries_taken)
        return super()._process_response(response=response, retries_taken=retries, **more)


def _asking(client: Any, create: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return asking(create)
    except errors.RequestError as error:
        request = httpx2.Request("POST", str(client.base_url))
        raise openai_errors.translate(error, request) from error


__all__ = ["AsyncSpecRoute", "SpecRoute", "SpecRouteTransport"]
