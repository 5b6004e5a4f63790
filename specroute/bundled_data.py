"""Where the bundled TOML files are: in the installed package, else in the checkout beside it.

Knows folders and file names; deliberately nothing of what the files say.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path


@cache
def folder(kind: str) -> Traversable:
    """The folder of bundled files of one kind, ``providers`` or ``policies``.

    A wheel has it inside the package; an editable install has only the checkout's own folder.
    """
    installed = files("specroute") / "_bundled" / kind
    if installed.is_dir():
        return installed
    return Path(__file__).resolve().parent.parent / kind


@cache
def names(kind: str) -> tuple[str, ...]:
    """The bundled files' names without ``.toml``, sorted; empty where there is no folder."""
    place = folder(kind)
    if not place.is_dir():
        return ()
    found = (entry.name for entry in place.iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml")))


def read(kind: str, name: str) -> str:
    """The text of one bundled file; ``FileNotFoundError`` where there is none."""
    return (folder(kind) / f"{name}.toml").read_text(encoding="utf-8")
