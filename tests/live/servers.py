"""Starts the servers of the live suite and stops them: a free port, a deadline, a log.

Knows each one's command line and profile; what their answers should be, it doesn't.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests.live import setup

NAME = "smol"
START_S = {"llama": 60.0, "vllm": 240.0, "llama-cpp-python": 60.0}


@dataclass(frozen=True)
class Server:
    """A running server. ``extra``: what every request must say for greedy to be greedy."""

    name: str
    profile: str
    url: str
    started_s: float
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"


@contextmanager
def llama() -> Iterator[Server]:
    """llama.cpp's own server."""
    command = [
        setup.python_of("llama"),
        setup.HERE / "serve_llama.py",
        setup.gguf(),
        "{port}",
        NAME,
    ]
    with _running("llama", "llama-server", command, "/health") as server:
        yield server


@contextmanager
def vllm(*more: str) -> Iterator[Server]:
    """vLLM's CPU build; ``more``: further arguments."""
    command = [
        setup.python_of("vllm"), "-m", "vllm.entrypoints.openai.api_server",
        "--model", setup.MODEL, "--served-model-name", NAME, "--host", "127.0.0.1",
        "--port", "{port}", "--max-model-len", "2048", "--enforce-eager", "--dtype", "float32", *more,
    ]  # fmt: skip
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    with _running("vllm", "vllm", command, "/health", env) as server:
        yield server


@contextmanager
def llama_cpp_python() -> Iterator[Server]:
    """llama-cpp-python's server. It penalises repetition unless told not to."""
    command = [
        setup.python_of("llama-cpp-python"), "-m", "llama_cpp.server", "--model", setup.gguf(),
        "--model_alias", NAME, "--port", "{port}", "--logits_all", "true", "--n_ctx", "2048",
    ]  # fmt: skip
    with _running(
        "llama-cpp-python", "llama-cpp-python", command, "/v1/models",
        extra={"repeat_penalty": 1.0},
    ) as server:  # fmt: skip
        yield server


@contextmanager
def _running(
    name: str,
    profile: str,
    command: Sequence[object],
    ready: str,
    env: Mapping[str, str] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Iterator[Server]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    log = setup.CACHE / f"{name}.log"
    began = time.monotonic()
    with log.open("w") as out:
        process = subprocess.Popen(
            [str(part).replace("{port}", str(port)) for part in command],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=os.environ | {"HF_HUB_OFFLINE": "1"} | dict(env or {}),
            cwd=setup.CACHE,
            start_new_session=True,
        )
    try:
        _wait(process, url + ready, began + START_S[name], log)
        yield Server(name, profile, url, time.monotonic() - began, extra or {})
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], url: str, until: float, log: Path) -> None:
    with httpx2.Client(timeout=5, trust_env=False) as client:
        while time.monotonic() < until:
            if process.poll() is not None:
                raise DidNotStart(f"it ended with {process.returncode}: {_tail(log)}")
            try:
                if client.get(url).status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            time.sleep(0.2)
    raise DidNotStart(f"{url} did not answer in time: {_tail(log)}")


class DidNotStart(Exception):
    """A server that is installed did not come up; says what it printed last."""


def _tail(log: Path) -> str:
    return " | ".join(log.read_text(errors="replace").splitlines()[-3:])
