"""Frameworks that take an openai client take this one: a structured and a streamed answer each."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from specroute.reference.running import ReferenceServer
from tests.frameworks import setup

HERE = Path(__file__).parent
CITY = {"name": "Oslo", "country": "Norway"}
ANSWER = "Your order has left the warehouse and will be with you on Tuesday."
SCRIPT = {
    "name": "smart",
    "answers": [
        {"when": "city", "text": json.dumps(CITY)},
        {"when": "order", "text": ANSWER},
    ],
}


@pytest.mark.parametrize("framework", ["instructor", "langchain", "pydantic_ai"])
def test_a_structured_and_a_streamed_call(framework: str) -> None:
    """The object and the text that the server said, and a report of every call."""
    if why := setup.why_not():
        pytest.skip(why)
    with ReferenceServer(SCRIPT) as server:
        done = subprocess.run(
            [setup.PYTHON, str(HERE / f"ask_{framework}.py"), server.base_url],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONPATH": f"{setup.ROOT}{os.pathsep}{HERE}"},
        )
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout.splitlines()[-1])
    assert got["structured"] == CITY
    assert got["streamed"] == ANSWER
    assert len(got["reports"]) >= 2
    assert all(r["complete"] and r["target"] == "lab:smart" for r in got["reports"])
    assert "prefix" in {r["method"] for r in got["reports"]}
