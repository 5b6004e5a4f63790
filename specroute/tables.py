"""Typed reading of untyped tables (TOML or dict), gathering every problem with its key path.

Knows types, key paths, suggestions and which values must not be shown; deliberately nothing of
what any key means.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
D = TypeVar("D")

NOT_SHOWN = "a value that is not shown here"

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+(\[\d+\])?\Z")
_SECRET_NAME = re.compile(
    r"(?i)(^|[-_.])(api[-_]?key|apikey|key|token|secret|password|passwd|auth|authorization|bearer"
    r"|credentials?|sig|signature|cookie)s?($|[-_.])"
)
# Prefixes that vendors give their keys, and long unbroken runs that mix letters and digits.
_SECRET_VALUE = re.compile(
    r"(?<![A-Za-z0-9])(sk|pk|rk|gsk|csk|xai|hf|fw|tgp|r8|ghp|glpat|AIza|Bearer|Basic)[-_ ]?"
    r"(?=[A-Za-z0-9_-]*[0-9A-Z_-])[A-Za-z0-9_+/=.-]{12,}"
    r"|(?<![A-Za-z0-9])(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[A-Za-z0-9+=]{32,}(?![A-Za-z0-9])"
)


class Expected(Exception):
    """A reader's refusal: what it expected, and perhaps what to do."""

    def __init__(self, what: str, hint: str = "", *, shown: bool = True) -> None:
        self.what = what
        self.hint = hint
        self.shown = shown
        super().__init__(what)


def dotted(path: Iterable[str]) -> str:
    """``models."gpt-4.1".targets``: a key path as TOML writes it."""
    return ".".join(key if _BARE_KEY.match(key) else f'"{key}"' for key in path)


def suggest(word: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)``, or an empty string when nothing known is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def listed(names: Iterable[str]) -> str:
    """``a, b, c`` for messages; ``none`` when there is none."""
    return ", ".join(names) or "none"


def secret_name(name: str) -> bool:
    """Whether a header, query or key of this name carries a credential."""
    return bool(_SECRET_NAME.search(name))


def looks_secret(text: str) -> bool:
    """Whether a text contains something shaped like a key (errs towards yes)."""
    return bool(_SECRET_VALUE.search(text))


def show(value: Any, key: str = "") -> str:
    """A value for an error message: short, and never something that could be a credential."""
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value)
    if (secret_name(key) and not isinstance(value, int | float)) or looks_secret(text):
        return NOT_SHOWN
    return text if len(text) <= 80 else f"{text[:77]}…"


def text(value: Any) -> str:
    """A non-empty string."""
    if not isinstance(value, str):
        raise Expected("a string")
    if not value.strip():
        raise Expected("a non-empty string")
    return value


def boolean(value: Any) -> bool:
    """``true`` or ``false``."""
    if not isinstance(value, bool):
        raise Expected("true or false")
    return value


def integer(value: Any, *, at_least: int | None = None) -> int:
    """A whole number, never a bool."""
    what = "a whole number" + ("" if at_least is None else f" ≥ {at_least}")
    if isinstance(value, bool) or not isinstance(value, int):
        raise Expected(what)
    if at_least is not None and value < at_least:
        raise Expected(what)
    return value


def number(
    value: Any,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
) -> float:
    """A finite number; whole numbers become floats."""
    what = "a number"
    if at_least is not None:
        what += f" ≥ {at_least:g}"
    if above is not None:
        what += f" > {above:g}"
    if at_most is not None:
        what += f" ≤ {at_most:g}" if at_least is None else f" and ≤ {at_most:g}"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Expected(what)
    if at_most is not None and value > at_most:
        raise Expected(what)
    if (at_least is not None and value < at_least) or (above is not None and value <= above):
        raise Expected(what)
    return float(value)


def strings(value: Any) -> tuple[str, ...]:
    """A list of non-empty strings."""
    if isinstance(value, str):
        raise Expected("a list of strings", "write it in [ ]")
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) and v for v in value):
        raise Expected("a list of strings")
    return tuple(value)


def string_table(value: Any) -> dict[str, str]:
    """A table of strings."""
    if not isinstance(value, Mapping) or not all(
        isinstance(k, str) and isinstance(v, str) for k, v in value.items()
    ):
        raise Expected("a table of strings", shown=False)
    return dict(value)


def one_of(*choices: str) -> Callable[[Any], str]:
    """A reader of one of a few words."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            hint = suggest(value, choices) if isinstance(value, str) else ""
            raise Expected(f"one of {', '.join(map(repr, choices))}", hint)
        return value

    return read


class Table:
    """One table being read: hands out typed values, then reports the keys nobody asked for."""

    def __init__(self, data: Any, path: tuple[str, ...], problems: list[str]) -> None:
        self.path = path
        self.problems = problems
        self.ok = isinstance(data, Mapping)
        """False for something that is no table (and noted): then nothing in it is missing."""
        self._asked: set[str] = set()
        if isinstance(data, Mapping):
            bad = [key for key in data if not isinstance(key, str)]
            for key in bad:
                self.problem(f"expected keys that are strings, got {show(key)}")
            self.data: dict[str, Any] = {k: v for k, v in data.items() if isinstance(k, str)}
        else:
            self.problem(f"expected a table, got {show(data, path[-1] if path else '')}")
            self.data = {}

    def problem(self, message: str, *keys: str) -> None:
        """Note what is wrong at this table, or at a key below it."""
        where = dotted((*self.path, *keys))
        self.problems.append(f"{where}: {message}" if where else message)

    def __contains__(self, key: str) -> bool:
        return key in self.data

    def raw(self, key: str) -> Any:
        """The unread value, ``None`` when absent; counts as asked for."""
        self._asked.add(key)
        return self.data.get(key)

    def lacks(self, key: str) -> bool:
        """Whether the table is one and has no such key."""
        return self.ok and key not in self.data

    def get(self, key: str, read: Callable[[Any], T], default: D) -> T | D:
        """The value at ``key`` read by ``read``; the default when absent or wrong (and noted)."""
        self._asked.add(key)
        if key not in self.data:
            return default
        value = self.data[key]
        try:
            return read(value)
        except Expected as refused:
            self.refuse(refused, value, key)
            return default

    def refuse(self, refused: Expected, value: Any, *keys: str) -> None:
        """Note a reader's refusal of ``value``."""
        seen = show(value, keys[-1] if keys else "") if refused.shown else NOT_SHOWN
        hint = "" if looks_secret(refused.hint) else refused.hint
        if hint and not hint.startswith(" ("):
            hint = f"; {hint}"
        self.problem(f"expected {refused.what}, got {seen}{hint}", *keys)

    def table(self, key: str) -> Table:
        """The sub-table at ``key``; empty when absent."""
        self._asked.add(key)
        return Table(self.data.get(key, {}), (*self.path, key), self.problems)

    def tables(self) -> Iterator[tuple[str, Table]]:
        """Every entry as a named sub-table."""
        for name, value in self.data.items():
            self._asked.add(name)
            yield name, Table(value, (*self.path, name), self.problems)

    def finish(self, not_yet: Mapping[str, str] | None = None) -> None:
        """Report every key that was never asked for; ``not_yet`` maps keys to come to a phrase."""
        for key in self.data:
            if key in self._asked:
                continue
            if not_yet and key in not_yet:
                self.problem(
                    f"{not_yet[key]} is not available in this version of specroute; remove it", key
                )
                continue
            known = sorted(self._asked)
            self.problem(f"unknown key{suggest(key, known)}; known: {listed(known)}", key)
