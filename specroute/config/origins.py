"""Where each value of a config came from.

Knows which keys a file, ``-c`` or nobody set; deliberately not what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from specroute import tables


@dataclass
class Origins:
    """Collects dotted key → origin while a config is parsed."""

    source: str
    overridden: frozenset[tuple[str, ...]] = frozenset()
    found: dict[str, str] = field(default_factory=dict)

    def note(self, table: tables.Table, key: str, otherwise: str = "default") -> None:
        """``key`` of ``table`` came from where the table has it from, else from ``otherwise``."""
        path = (*table.path, key)
        origin = self._origin(path) if key in table else otherwise
        self.found[tables.dotted(path)] = origin

    def note_below(self, table: tables.Table) -> None:
        """Every key that ``table`` has itself, nested tables by their leaves."""
        self._walk(table.path, table.data)

    def _walk(self, path: tuple[str, ...], value: Any) -> None:
        if isinstance(value, dict) and value:
            for key, below in value.items():
                self._walk((*path, str(key)), below)
        else:
            self.found[tables.dotted(path)] = self._origin(path)

    def _origin(self, path: tuple[str, ...]) -> str:
        return "-c" if path in self.overridden else self.source
