"""Runs a reference server for a test, a demo or a benchmark: a context manager with a base_url.

Knows sockets, threads, subprocesses and when the server is ready; deliberately not what it answers.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import uvicorn

from specroute.reference.access_log import AccessLog, Record
from specroute.reference.backend import Backend
from specroute.reference.options import Options
from specroute.reference.pace import Pace
from specroute.reference.script import Script
from specroute.reference.server import Server

STOPPING_S = 60
"""Seconds that a process may take to end: a busy machine has much else to do."""
ACCEPTING = 10
"""Turns of the loop in which an accepted socket becomes a connection."""


class Listener(uvicorn.Server):
    """uvicorn around one application, which says when it is ready and stops at once."""

    def __init__(self, server: Server) -> None:
        config = uvicorn.Config(
            server.app,
            interface="asgi3",
            access_log=False,
            log_level="error",
            lifespan="on",
            ws="none",
            server_header=False,
            date_header=False,
            timeout_keep_alive=75,
        )
        super().__init__(config)
        self.ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, then say so."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        await super().startup(sockets)
        self.ready.set()

    async def main_loop(self) -> None:
        """Wait to be stopped, instead of looking ten times a second."""
        assert self._stop is not None
        await self._stop.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drop what is under way: clients see a closed connection, records say cancelled."""
        # Closed at once, asyncio would leak a socket that it has accepted but not yet wrapped.
        loop = asyncio.get_running_loop()
        for sock in sockets or []:
            loop.remove_reader(sock)
        for _ in range(ACCEPTING):
            await asyncio.sleep(0)
        for listening in self.servers:
            listening.close()
        for sock in sockets or []:
            sock.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        if self.server_state.tasks:
            await asyncio.wait(set(self.server_state.tasks), timeout=1)
        await self.lifespan.shutdown()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """In a main thread, SIGINT and SIGTERM end the server in good order."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = (signal.SIGINT, signal.SIGTERM)
        before = {s: signal.signal(s, lambda *_: self.stop()) for s in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """Stop, from any thread."""
        if self._loop and self._stop:
            self._loop.call_soon_threadsafe(self._stop.set)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 picks a free one. ``OSError`` where that can't be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # named as TCP, because asyncio switches Nagle off only on sockets that say so
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(1024)
    except OSError:
        sock.close()
        raise
    return sock


class ReferenceServer:
    """A running reference server, in a thread or (``process=True``) in a process of its own.

    >>> with ReferenceServer({"vocabulary": ["a", "b"]}) as server:
    ...     server.base_url
    'http://127.0.0.1:…/v1'

    It is ready when ``with`` returns. A thread starts in milliseconds and suits scripts; a process
    keeps a model's computing off the interpreter lock that the code under test needs.
    """

    def __init__(
        self,
        source: Backend | Mapping[str, Any] | str | Path,
        *,
        pace: Pace | str = "",
        names: Iterable[str] = (),
        disable: Iterable[str] = (),
        ignore: Iterable[str] = (),
        prefill: Iterable[str] = ("continue_final_message",),
        prefill_repeats: bool = False,
        prefill_trims: bool = False,
        quirks: Iterable[str] = (),
        max_logprobs: int = 20,
        api_key: str | None = None,
        seed: int = 0,
        max_batch: int = 256,
        process: bool = False,
        threads: int = 1,
        startup_s: float = 120.0,
    ) -> None:
        """Nothing runs before ``with``. ``source`` is a script (its structure, or a ``.toml`` or
        ``.json`` file), a model's folder, or a backend (only in a thread). ``threads`` are torch's;
        the rest is as in :class:`Options`. ``ValueError`` names a bad option.
        """
        self._source, self._process, self._threads = source, process, threads
        self._startup_s = startup_s
        self._options = Options(
            names=tuple(names),
            pace=Pace.parse(pace) if isinstance(pace, str) else pace,
            disable=frozenset(disable),
            ignore=frozenset(ignore),
            prefill=frozenset(prefill),
            prefill_repeats=prefill_repeats,
            prefill_trims=prefill_trims,
            quirks=frozenset(quirks),
            max_logprobs=max_logprobs,
            api_key=api_key,
            seed=seed,
            max_batch=max_batch,
        )
        self.url = ""
        """``http://host:port``, without ``/v1``: for ``/tokenize`` and the like."""
        self.model = ""
        """The first of its model names."""
        self.backend: Backend | None = None
        """The distribution itself, in a thread; ``None`` for a process."""
        self.server: Server | None = None
        """The application, in a thread; ``None`` for a process."""
        self._log = AccessLog()
        self._close: Callable[[], None] = lambda: None

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes."""
        return f"{self.url}/v1"

    @property
    def log(self) -> list[Record]:
        """The access records so far, in order of completion."""
        return list(self._log.records)

    def wait_for(
        self, enough: Callable[[list[Record]], bool], timeout: float = 10.0
    ) -> list[Record]:
        """Block until ``enough(log)``; only needed for what the client didn't read to its end.

        ``TimeoutError`` after ``timeout`` seconds.
        """
        self._log.wait_for(enough, timeout)
        return self.log

    def __enter__(self) -> Self:
        if self._process:
            self._start_process()
        else:
            self._start_thread()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop now; streams under way are cut. Leaving ``with`` does the same."""
        close, self._close = self._close, lambda: None
        close()

    # -- in a thread -----------------------------------------------------------------------------

    def _start_thread(self) -> None:
        self.backend = open_backend(self._source, threads=self._threads)
        self.server = Server(self.backend, self._options, self._log)
        self.model = self.server.served.names[0]
        sock = bind("127.0.0.1", 0)
        listener = Listener(self.server)
        thread = threading.Thread(
            target=listener.run, args=([sock],), name="reference-server", daemon=True
        )
        thread.start()
        if not listener.ready.wait(self._startup_s):
            raise TimeoutError("the reference server didn't start")
        self.url = f"http://127.0.0.1:{sock.getsockname()[1]}"

        def close() -> None:
            listener.stop()
            thread.join(10)
            sock.close()

        self._close = close

    # -- in a process ----------------------------------------------------------------------------

    def _start_process(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="reference-server-")
        command = [
            sys.executable,
            "-m",
            "specroute.reference",
            "--until-eof",
            "--log",
            "-",
            *self._flags(Path(folder.name)),
        ]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
        )
        stdout = process.stdout
        assert stdout is not None
        listening = threading.Event()

        def read() -> None:
            for line in stdout:
                if line.startswith("{"):
                    self._log.add(Record(**json.loads(line)))
                elif line.startswith("listening on "):
                    self.url = line.split()[2].removesuffix("/v1")
                    self.model = line.split()[4]
                    listening.set()
            listening.set()  # it has ended: don't wait any longer

        reader = threading.Thread(target=read, name="reference-server-log", daemon=True)
        reader.start()

        def close() -> None:
            if process.stdin:
                process.stdin.close()
            process.wait(STOPPING_S)
            reader.join(STOPPING_S)
            stdout.close()
            folder.cleanup()

        self._close = close
        if not listening.wait(self._startup_s) or not self.url:
            close()
            raise RuntimeError(f"the reference server didn't start: {' '.join(command)}")

    def _flags(self, folder: Path) -> list[str]:
        options, source = self._options, self._source
        if isinstance(source, Mapping):
            path = folder / "script.json"
            path.write_text(json.dumps({"name": "script", **source}), encoding="utf-8")
            source = path
        if not isinstance(source, str | Path):
            raise ValueError(
                "a backend object can't move to another process; give a file or folder"
            )
        kind = "--model" if Path(source).is_dir() else "--script"
        flags = [
            kind,
            os.fspath(source),
            "--port",
            "0",
            "--pace",
            str(options.pace),
            "--seed",
            str(options.seed),
        ]
        flags += [
            "--max-logprobs",
            str(options.max_logprobs),
            "--max-batch",
            str(options.max_batch),
        ]
        for flag, values in (
            ("--disable", options.disable),
            ("--ignore", options.ignore),
            ("--prefill", options.prefill),
            ("--quirk", options.quirks),
        ):
            flags += [flag, ",".join(sorted(values))]
        for name in options.names:
            flags += ["--name", name]
        flags += ["--prefill-repeats"] * options.prefill_repeats
        flags += ["--prefill-trims"] * options.prefill_trims
        if options.api_key is not None:
            flags += ["--api-key", options.api_key]
        flags += ["--threads", str(self._threads)]
        return flags


def open_backend(
    source: Backend | Mapping[str, Any] | str | Path, *, device: str = "cpu", threads: int = 1
) -> Backend:
    """A backend from a script's structure or file, or from a model's folder.

    Only a folder loads torch. Raises ``InvalidScript``, or ``ValueError`` for what is neither.
    """
    if isinstance(source, Mapping):
        return Script(source)
    if not isinstance(source, str | Path):
        return source
    path = Path(source)
    if path.is_dir():
        from specroute.reference.model import Model

        return Model.load(path, device, threads)
    if path.suffix in (".toml", ".json"):
        return Script.load(path)
    raise ValueError(f"expected a model's folder or a .toml or .json script, got {str(path)!r}")
