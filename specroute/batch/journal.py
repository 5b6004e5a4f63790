"""The journal of a batch: a line for each end, so that a run that was killed can be resumed.

Knows one file, appended to and never rewritten. A line that was being written when the process died
is dropped when the file is opened again. Holds answers in full, and no keys.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from specroute.batch.items import BatchRequest
from specroute.batch.results import BatchItem
from specroute.errors import RequestError, StoreFailed
from specroute.reporting import from_wire, to_wire

_HEAD = {"specroute_batch": 1}


class Journal:
    """``with Journal(path) as journal``: made if it isn't there, locked while it is open.

    Raises :class:`RequestError` for a file that is no journal or that another process has open,
    :class:`StoreFailed` where it can't be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._done: dict[str, tuple[str, BatchItem]] = {}
        self._sent: dict[str, str] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        """Jobs at providers that are not known to have ended, by key: ``job`` (their id, ``None``
        if none came), ``ids``, ``digests``."""
        self._file: io.FileIO | None = None

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: what could not be written is not tried again when the file is closed.
            self._file = io.FileIO(self.path, "a+")
        except OSError as error:
            raise RequestError(
                f"the journal {str(self.path)!r} can't be opened: {error}"
            ) from error
        try:
            self._lock(self._file)
            self._read(self._file)
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        try:
            os.fsync(file.fileno())
        except OSError as error:
            if kind is None:  # Otherwise what ended the run is said.
                raise self._failed(error) from error
        finally:
            file.close()

    def _lock(self, file: io.FileIO) -> None:
        try:
            import fcntl
        except ImportError:  # pragma: no cover - Windows: two runs on one journal are not noticed
            return
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RequestError(
                f"the journal {str(self.path)!r} is in use by another run: wait for it, or give "
                "this one a journal of its own"
            ) from error

    def _read(self, file: io.FileIO) -> None:
        file.seek(0)
        data = file.read()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            file.truncate(whole)  # Cut off in the middle of a line.
        lines = data[:whole].splitlines()
        if not lines:
            self._write(_HEAD)
            return
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
            except ValueError as error:
                raise self._unreadable(number, "is no JSON") from error
            if number == 1:
                if entry != _HEAD:
                    raise self._unreadable(1, f"is not {json.dumps(_HEAD)}")
                continue
            try:
                self._enter(entry)
            except (KeyError, TypeError, AttributeError) as error:
                raise self._unreadable(number, "is no entry of a journal") from error

    def _unreadable(self, number: int, why: str) -> RequestError:
        return RequestError(
            f"{str(self.path)!r} is not a batch journal: line {number} {why}. Give another path"
        )

    def _enter(self, entry: Mapping[str, Any]) -> None:
        if "job_key" in entry:
            digests = dict(entry["requests"])
            self.jobs[entry["job_key"]] = {
                "job": entry["job"],
                "ids": list(digests),
                "digests": digests,
            }
            return
        custom_id, digest = entry["id"], entry["digest"]
        if "body" in entry:
            item = BatchItem(
                custom_id,
                body=entry["body"],
                status=entry["status"],
                request_id=entry["request_id"],
                attempts=0,
                resumed=True,
                report=from_wire(entry["report"]) if "report" in entry else None,
            )
            self._done[custom_id] = (digest, item)
            self._sent.pop(custom_id, None)
            self._settle(custom_id)
        elif "error" in entry:
            self._sent.pop(custom_id, None)
            self._settle(custom_id)
        else:
            self._sent[custom_id] = digest

    def _settle(self, custom_id: str) -> None:
        """A request has an end: a job all of whose requests have one is over."""
        for key, job in list(self.jobs.items()):
            if custom_id in job["ids"]:
                job["ids"].remove(custom_id)
                if not job["ids"]:
                    del self.jobs[key]

    def job(self, key: str, requests: Sequence[BatchRequest], job: str | None) -> None:
        """A job is about to be made (``job`` is ``None``), or has been."""
        entry = {
            "job_key": key,
            "job": job,
            "requests": [[r.custom_id, r.digest] for r in requests],
        }
        self._write(entry)

    def answered(self, request: BatchRequest) -> BatchItem | None:
        """The answer that an earlier run got to the very same request."""
        digest, item = self._done.get(request.custom_id, (None, None))
        return item if digest == request.digest else None

    @property
    def unfinished(self) -> int:
        """Requests that had been sent and had no end when the last run stopped: only these may be
        paid for twice."""
        return len(self._sent)

    def sent(self, request: BatchRequest) -> None:
        """A request leaves."""
        self._write({"id": request.custom_id, "digest": request.digest})

    def ended(self, request: BatchRequest, item: BatchItem) -> None:
        """A request has its answer or its final error; the line is with the system when this
        returns, so that the process may be killed."""
        entry: dict[str, Any] = {"id": request.custom_id, "digest": request.digest}
        if item.body is not None and item.ok:
            entry |= {"status": item.status, "request_id": item.request_id, "body": item.body}
            if item.report is not None:
                entry["report"] = to_wire(item.report)
        else:
            entry["error"] = item.error
        self._write(entry)

    def _write(self, entry: Mapping[str, Any]) -> None:
        assert self._file is not None, "the journal is not open"
        line = json.dumps(entry, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
        before = os.fstat(self._file.fileno()).st_size
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            with suppress(OSError):  # Another request's line may still follow: not half of this.
                self._file.truncate(before)
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> StoreFailed:
        return StoreFailed(
            f"the journal {str(self.path)!r} can't be written: {error}; nothing more is sent. Run "
            "again with the same journal: what it holds isn't asked for again"
        )
