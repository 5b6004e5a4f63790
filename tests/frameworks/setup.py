"""Makes the environment that the frameworks run in, ``.cache/frameworks``.

``python tests/frameworks/setup.py`` installs and prints, where that can't be had, why. One
environment is enough: instructor pins older versions of jiter and rich than openai and this project
want, and goes in without its dependencies. Imports nothing from here, so that it runs as a script.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CACHE = ROOT / ".cache" / "frameworks"
PYTHON = CACHE / "bin" / "python"
REASON = ROOT / ".cache" / "frameworks.not-installed"

INSTALLS: tuple[tuple[str, ...], ...] = (
    (
        "langchain-openai==1.7.4",
        "pydantic-ai-slim[openai]==2.68.0",
        "openai==3.57.0",
        "genai-prices>=0.2.3",
        "platformdirs>=4.2",
        "rich>=13.7",
        "typer>=0.15",
        # Of instructor's dependencies, those that it imports.
        "aiohttp>=3.14.3",
        "docstring-parser>=0.16",
        "jinja2>=3.1.4",
    ),
    ("--no-deps", "instructor==1.17.0"),
)
"""Each is one pip install."""


def why_not() -> str:
    """Why the suite can't be run, ``""`` if it can."""
    if REASON.exists():
        return REASON.read_text(encoding="utf-8")
    return "" if (CACHE / ".ready").exists() else "not installed (run: make test-frameworks)"


def install() -> str:
    """Make the environment unless it is there as it should be; why not, or ``""``."""
    stamp = hashlib.sha256(f"{sys.version_info[:2]} {INSTALLS}".encode()).hexdigest()
    ready = CACHE / ".ready"
    if ready.exists() and ready.read_text(encoding="utf-8") == stamp:
        return ""
    shutil.rmtree(CACHE, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", CACHE], check=True)
    for arguments in INSTALLS:
        command = [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "-q", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            shutil.rmtree(CACHE, ignore_errors=True)
            errors = [line for line in done.stderr.splitlines() if "ERROR" in line]
            return f"pip install {arguments[0]} … failed: {(errors or ['no message'])[-1]}"
    ready.write_text(stamp, encoding="utf-8")
    return ""


def main() -> None:
    REASON.parent.mkdir(parents=True, exist_ok=True)
    reason = install()
    if reason:
        REASON.write_text(reason, encoding="utf-8")
        print(f"The frameworks can't be had here: {reason}")
    else:
        REASON.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
