"""A batch by the provider's own Batch API: cheaper, and done within a day.

Knows files, jobs and their states (OpenAI API reference, Batch): upload, create, poll, download.
Jobs are written into the journal, so that a run that ends before they do can be taken up again. A
request of a job has a report only where the answer itself carries one: nobody here was its client.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import openai

from specroute.batch.items import BatchRequest, read_requests
from specroute.batch.journal import Journal
from specroute.batch.progress import OnItem, Progress, watching
from specroute.batch.results import BatchItem, BatchResult
from specroute.errors import RequestError

KEY = "specroute_batch"
"""The metadata entry by which a job is found again that was made just before a crash."""
MOST_REQUESTS = 50_000
"""Of one job (OpenAI API reference, Batch: create); a larger batch becomes several."""
MOST_BYTES = 200 * 10**6
"""Of one input file (ibid.)."""
POLL_FAILURES = 20
"""Failed looks in a row after which a job is given up on here; the journal keeps it."""
_OVER = frozenset({"completed", "failed", "expired", "cancelled"})


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request's job goes: a plain client for the provider, and the model's name there."""

    provider: str
    model: str
    client: openai.AsyncOpenAI


class _Unknown(Exception):
    """A job of an earlier run that its provider knows no more, or a file of its answers."""

    def __init__(self, provider: str, what: str) -> None:
        super().__init__(
            f"{provider} no longer knows {what} (404), so its answers can't be had; another run "
            "with this journal asks in a new job"
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """The requests of one job."""

    place: Place
    path: str
    requests: tuple[BatchRequest, ...]
    known: str = ""
    """The key of the job that an earlier run put them into."""

    @property
    def key(self) -> str:
        if self.known:
            return self.known  # Some of its requests may have had their end already.
        digest = hashlib.blake2b(digest_size=12)
        for request in self.requests:
            digest.update(f"{request.custom_id}\0{request.digest}\0".encode())
        return digest.hexdigest()

    def file(self) -> bytes:
        return b"".join(_line(request, self.place.model) for request in self.requests)


async def run_jobs(
    place_of: Callable[[str], Place],
    requests: Iterable[Mapping[str, Any]],
    *,
    journal: Any = None,
    window: str = "24h",
    metadata: Mapping[str, str] | None = None,
    poll_s: float = 30.0,
    progress: bool | OnItem | None = None,
) -> BatchResult:
    """Answer a batch by jobs; see :meth:`specroute.AsyncSpecRoute.batch_job`.

    ``place_of`` says where a model name's job goes, and raises for a provider without a Batch API.
    """
    if isinstance(poll_s, bool) or not isinstance(poll_s, int | float) or poll_s <= 0:
        raise RequestError(f"poll_s must be seconds > 0, got {poll_s!r}")
    asked = read_requests(requests)
    found: dict[str, BatchItem] = {}
    places = {name: place_of(name) for name in {str(r.body["model"]) for r in asked}}
    kept: Journal | None
    with (
        nullcontext() if journal is None else Journal(journal) as kept,
        watching(progress, len(asked)) as tell,
    ):
        so_far = Progress(len(asked))

        def ended(request: BatchRequest, item: BatchItem) -> None:
            nonlocal so_far
            found[request.custom_id] = item
            if kept is not None and not item.resumed:
                kept.ended(request, item)
            so_far = so_far.after(item)
            if tell is not None:
                tell(item, so_far)

        left = []
        for request in asked:
            item = None if kept is None else kept.answered(request)
            if item is None:
                left.append(request)
            else:
                ended(request, item)
        try:
            async with asyncio.TaskGroup() as group:
                for part in _parts(left, places, {} if kept is None else kept.jobs):
                    group.create_task(_job(part, kept, window, dict(metadata or {}), poll_s, ended))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
    return BatchResult([found[request.custom_id] for request in asked])


def _parts(
    requests: Sequence[BatchRequest], places: Mapping[str, Place], jobs: Mapping[str, Any]
) -> Iterator[_Part]:
    """One job for each provider, model and path, not larger than they may be. Requests that an
    earlier run has put into a job stay together, so that its key is the same again."""
    groups: dict[tuple[str, str, str, str], list[BatchRequest]] = {}
    where = {name: key for key, job in jobs.items() for name in job["ids"]}
    for request in requests:
        place = places[str(request.body["model"])]
        known = where.get(request.custom_id, "")
        same = known and jobs[known]["digests"].get(request.custom_id) == request.digest
        group = (place.provider, place.model, request.path, known if same else "")
        groups.setdefault(group, []).append(request)
    for (_, _, path, known), members in groups.items():
        place = places[str(members[0].body["model"])]
        some: list[BatchRequest] = []
        size = 0
        for request in members:
            length = len(_line(request, place.model))
            if some and not known and (len(some) == MOST_REQUESTS or size + length > MOST_BYTES):
                yield _Part(place, path, tuple(some))
                some, size = [], 0
            some.append(request)
            size += length
        yield _Part(place, path, tuple(some), known)


async def _job(
    part: _Part,
    journal: Journal | None,
    window: str,
    metadata: dict[str, str],
    poll_s: float,
    ended: Callable[[BatchRequest, BatchItem], None],
) -> None:
    try:
        job = await _over(part, await _begun(part, journal, window, metadata), poll_s)
    except _Unknown as unknown:
        for each in part.requests:
            ended(each, BatchItem(each.custom_id, error=_gone(unknown)))
        return
    lost: _Unknown | None = None
    by_id = {request.custom_id: request for request in part.requests}
    for file in (job.output_file_id, job.error_file_id):
        if file is None:
            continue
        try:
            content = await part.place.client.files.content(file)
        except openai.NotFoundError:  # Files are kept for a shorter time than jobs.
            lost = lost or _Unknown(part.place.provider, f"the file {file} of the job {job.id}")
            continue
        # Not splitlines(): a text may hold what else ends a line for Python.
        for line in content.content.split(b"\n"):
            if not line.strip():
                continue
            item = _item(line)
            request = by_id.pop(item.custom_id, None) if item is not None else None
            if request is not None and item is not None:
                ended(request, item)
    said = f"the job {job.id} has no answer to it"
    if job.errors is not None and job.errors.data:
        said += ": " + "; ".join(str(error.message) for error in job.errors.data[:3])
    for request in by_id.values():
        error = {"code": f"batch_{job.status}", "message": said} if lost is None else _gone(lost)
        ended(request, BatchItem(request.custom_id, error=error))


def _gone(unknown: _Unknown) -> dict[str, str]:
    return {"code": "batch_unknown", "message": str(unknown)}


async def _begun(
    part: _Part, journal: Journal | None, window: str, metadata: dict[str, str]
) -> openai.types.Batch:
    """The job: one that an earlier run made, or a new one."""
    client, key = part.place.client, part.key
    if journal is not None:
        known = journal.jobs.get(key)
        if known is not None:
            if known["job"] is not None:
                try:
                    return await client.batches.retrieve(known["job"])
                except openai.NotFoundError as error:
                    raise _Unknown(part.place.provider, f"the job {known['job']}") from error
            # Written down before it was made; it may have been made all the same.
            async for job in client.batches.list(limit=100):
                if (job.metadata or {}).get(KEY) == key:
                    journal.job(key, part.requests, job.id)
                    return job
        journal.job(key, part.requests, None)
    file = await client.files.create(file=(f"{key}.jsonl", part.file()), purpose="batch")
    job = await client.batches.create(
        input_file_id=file.id,
        endpoint=f"/v1{part.path}",  # type: ignore[arg-type]
        completion_window=window,  # type: ignore[arg-type]
        metadata={**metadata, KEY: key},
    )
    if journal is not None:
        journal.job(key, part.requests, job.id)
    return job


async def _over(part: _Part, job: openai.types.Batch, poll_s: float) -> openai.types.Batch:
    """Wait until the job has ended; looks that fail are repeated."""
    failures = 0
    while job.status not in _OVER:
        await asyncio.sleep(poll_s)
        try:
            job = await part.place.client.batches.retrieve(job.id)
            failures = 0
        except (openai.APIConnectionError, openai.InternalServerError, openai.RateLimitError):
            failures += 1
            if failures >= POLL_FAILURES:
                raise
    return job


def _line(request: BatchRequest, model: str) -> bytes:
    line = {
        "custom_id": request.custom_id,
        "method": "POST",
        "url": f"/v1{request.path}",
        "body": {**request.body, "model": model},
    }
    return json.dumps(line, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def _item(line: bytes) -> BatchItem | None:
    """A line of an output or error file; ``None`` for one that is none."""
    try:
        data = json.loads(line)
        custom_id, response, error = data["custom_id"], data.get("response"), data.get("error")
        status = response.get("status_code") if response else None
        body = response.get("body") if response else None
        request_id = response.get("request_id") if response else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if error is None and isinstance(body, dict) and "error" in body:
        error = body["error"]
    if error is None and (not isinstance(body, dict) or (status or 200) >= 400):
        error = {"code": f"status {status}", "message": "no answer"}
    if error is not None:
        error = error if isinstance(error, dict) else {"message": str(error)}
        error = {"code": str(error.get("code")), "message": str(error.get("message"))}
        return BatchItem(custom_id, status=status, request_id=request_id, error=error)
    return BatchItem(custom_id, body=body, status=status, request_id=request_id)
