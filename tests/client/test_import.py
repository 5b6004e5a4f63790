"""``import specroute`` is quick and silent."""

from __future__ import annotations

import subprocess
import sys

import pytest

import specroute

pytestmark = pytest.mark.alone

PROBE = """
import sys, time
start = time.perf_counter()
import specroute
seconds = time.perf_counter() - start
heavy = [m for m in ("torch", "transformers", "openai", "httpx2", "numpy") if m in sys.modules]
print(seconds, ",".join(heavy))
"""


def test_importing_is_quick_and_loads_nothing_heavy() -> None:
    """Under 150 ms, and neither torch, transformers nor openai."""
    runs = [
        subprocess.run(
            [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=60
        )
        for _ in range(3)
    ]
    assert {run.stderr for run in runs} == {""}
    assert {run.stdout.split(" ")[1].strip() for run in runs} == {""}
    assert min(float(run.stdout.split(" ")[0]) for run in runs) < 0.15


def test_the_client_loads_no_model_library() -> None:
    """AsyncSpecRoute itself needs openai and httpx2 only."""
    probe = (
        "import sys; from specroute import AsyncSpecRoute, report, reports\n"
        "AsyncSpecRoute(api_key='k', base_url='http://h/v1')\n"
        "print([m for m in ('torch', 'transformers', 'numpy', 'starlette') if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-W", "error", "-c", probe], capture_output=True, text=True, check=True
    )
    assert (out.stdout.strip(), out.stderr) == ("[]", "")


def test_public_names() -> None:
    """Each is there, and an unknown one is an AttributeError."""
    for name in specroute.__all__:
        assert getattr(specroute, name) is not None
        assert name in dir(specroute)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = specroute.nonsense
