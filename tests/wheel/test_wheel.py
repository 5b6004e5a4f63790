"""The installed wheel works with the source tree out of reach, without torch."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import specroute

SCRIPT = {"name": "echo", "answers": [{"when": "ping", "text": "pong pong"}]}


def test_it_is_the_installed_package() -> None:
    """What is tested lies in this environment, not in the checkout."""
    package = Path(specroute.__file__)
    assert Path(os.environ["SPECROUTE_SOURCE_TREE"]) not in package.parents
    assert Path(sys.prefix) in package.parents


def test_data_and_types_ship() -> None:
    """Profiles, presets, the bundled models and the typing marker are in the wheel."""
    root = files("specroute")
    assert (root / "py.typed").is_file()
    assert (root / "_bundled" / "providers" / "vllm.toml").is_file()
    assert (root / "_bundled" / "policies" / "balanced.toml").is_file()
    assert (root / "cli" / "page" / "page.html").is_file()
    for role in ("target", "draft"):
        assert (root / "reference" / "weights" / role / "model.safetensors").is_file()


def test_nothing_heavy_is_needed() -> None:
    """The base install has no torch, and importing specroute loads neither it nor openai."""
    code = "import sys, specroute; print({'torch', 'transformers', 'openai'} & set(sys.modules))"
    shown = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "set()"
    missing = subprocess.run([sys.executable, "-I", "-c", "import torch"], capture_output=True)
    assert missing.returncode != 0


def test_the_command_runs() -> None:
    """``specroute`` lists its providers from the bundled files."""
    command = Path(sys.executable).with_name("specroute")
    shown = subprocess.run(
        [command, "providers", "--json"], capture_output=True, text=True, check=True
    )
    assert '"vllm"' in shown.stdout


def test_a_call_goes_through() -> None:
    """A config, the scripted reference server, one answer with its report."""
    from specroute.reference.running import ReferenceServer

    async def call(base_url: str) -> tuple[str | None, str]:
        config = {
            "version": 1,
            "providers": {"lab": {"profile": "reference", "base_url": base_url}},
            "models": {"m": {"targets": ["lab:echo"]}},
        }
        async with specroute.AsyncSpecRoute(config=config) as client:
            answer = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "ping"}]
            )
            return answer.choices[0].message.content, specroute.report(answer).method

    with ReferenceServer(SCRIPT) as server:
        assert asyncio.run(call(server.base_url)) == ("pong pong", "plain")
