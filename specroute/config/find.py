"""Where a config comes from: the argument, a variable, the working folder, the user's folder.

Knows the look-up order and how a file becomes tables; deliberately not what the tables mean.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specroute.config import overrides as overriding
from specroute.config.parse import parse
from specroute.config.values import Config
from specroute.errors import ConfigError

VARIABLE = "SPECROUTE_CONFIG"
FILE = "specroute.toml"


def find(*, environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> Path | None:
    """The config file that :func:`load` would read without an argument; ``None`` if there is none.

    In order: ``SPECROUTE_CONFIG``, ``./specroute.toml``, ``[tool.specroute]`` in
    ``./pyproject.toml``, ``specroute.toml`` in the user's config folder.
    """
    environ = os.environ if environ is None else environ
    here = Path.cwd() if cwd is None else cwd
    if named := environ.get(VARIABLE):
        path = here / Path(named).expanduser()
        if not path.is_file():
            raise ConfigError(
                f"{VARIABLE} names {named!r}, and there is no such file; correct it or unset it"
            )
        return path
    if (local := here / FILE).is_file():
        return local
    pyproject = here / "pyproject.toml"
    if pyproject.is_file() and _tool_table(_read(pyproject)) is not None:
        return pyproject
    users = _user_file()
    return users if users.is_file() else None


def load(
    source: str | Path | Mapping[str, Any] | None = None,
    *,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Config:
    """Read a config from a file, a dict of the same structure, or wherever :func:`find` finds one.

    ``overrides`` are ``a.b=value`` texts laid over it. :class:`ConfigError` with every problem of
    the file at once, or when there is nothing to read.
    """
    environ = os.environ if environ is None else environ
    here = Path.cwd() if cwd is None else cwd
    data: Mapping[str, Any]
    if isinstance(source, Mapping):
        data, name = source, "argument"
    else:
        path = here / Path(source).expanduser() if source is not None else None
        path = path or find(environ=environ, cwd=here)
        if path is not None:
            data, name = _tables_of(path), _name(path, here)
        elif overrides:
            data, name = {"version": 1}, "-c"
        else:
            raise ConfigError(
                f"no configuration found: no {VARIABLE}, no ./{FILE}, no [tool.specroute] in "
                f"./pyproject.toml, and no {_user_file()}; write one, or pass base_url= to do "
                "without"
            )
    laid, paths = overriding.apply(data, overrides)
    return parse(laid, name, environ, overridden=paths, versioned=not isinstance(source, Mapping))


def _tables_of(path: Path) -> Mapping[str, Any]:
    data = _read(path)
    if path.name != "pyproject.toml":
        return data
    table = _tool_table(data)
    if table is None:
        raise ConfigError("no [tool.specroute] table in it", str(path))
    return table


def _tool_table(pyproject: Mapping[str, Any]) -> Mapping[str, Any] | None:
    tool = pyproject.get("tool")
    table = tool.get("specroute") if isinstance(tool, Mapping) else None
    return table if isinstance(table, Mapping) else None


def _read(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"can't be read: {error.strerror or error}", str(path)) from error
    except UnicodeDecodeError:
        # Neither the bytes nor the text go into the message: the file may hold a key.
        raise ConfigError("not UTF-8; save it as UTF-8", str(path)) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not valid TOML: {_clean(str(error))}", str(path)) from None


def _clean(message: str) -> str:
    """A decoder's message without what it quotes from the file beyond one character."""
    return message if len(message) <= 120 else f"{message[:117]}…"


def _name(path: Path, here: Path) -> str:
    try:
        return path.relative_to(here).as_posix()
    except ValueError:
        return str(path)


def _user_file() -> Path:
    import platformdirs

    return platformdirs.user_config_path("specroute") / FILE
