"""Where the two bundled models are, and what they are.

Knows their folders and what was measured about them when they were trained. Doesn't load them:
the folders are plain Hugging Face ones, for `AutoModelForCausalLM` and `AutoTokenizer`.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

ACCEPTANCE = {"customer-service": 0.917, "python-code": 0.613}
"""Measured greedy α̂ at K = 4 per class of traffic, by `specroute.reference.acceptance_check`."""


def target_dir() -> Path:
    """The bundled target's folder; FileNotFoundError, saying what to do, if it isn't there."""
    return _folder("target")


def draft_dir() -> Path:
    """The bundled draft's folder; FileNotFoundError, saying what to do, if it isn't there."""
    return _folder("draft")


def describe() -> str:
    """In plain words, what the bundled models are, what they aren't, and how often they agree."""
    measured = ", ".join(f"{value:.2f} on {name}" for name, value in ACCEPTANCE.items())
    return (
        "The bundled models are toys: a target of 4.1 M and a draft of 0.9 M parameters, trained "
        "in under an hour on one CPU core, on generated customer-service conversations and "
        "Python's standard library. They know nothing else and are often wrong there too (order "
        "numbers nearly always); they exist to exercise the machinery. Measured greedy acceptance "
        f"at K = 4 on held-out prompts: {measured} (nearly all code answers repeat themselves, "
        "which flatters the latter)."
    )


def _folder(role: str) -> Path:
    # A wheel is unpacked when it is installed, so a resource that exists is a real path.
    path = Path(str(files("specroute.reference"))) / "weights" / role
    if not (path / "model.safetensors").is_file():
        raise FileNotFoundError(
            f"the bundled {role} model isn't in {path}: install specroute from a wheel or a full "
            "checkout (not a zipped copy), or train one with "
            "`python -m specroute.reference.train --out DIR` and use the folder it names"
        )
    return path
