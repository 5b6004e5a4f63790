"""A store for several processes of one machine: an SQLite file.

Knows SQL and who writes when. The arithmetic is ``window``'s, inside one transaction.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from specroute.errors import StoreFailed
from specroute.store.threaded import ThreadedStore
from specroute.store.window import Change, Refusal, Want, refusal

T = TypeVar("T")

BUSY_S = 10.0
"""How long to wait for another process's transaction; each lasts well under a millisecond."""

_TABLE = """
CREATE TABLE IF NOT EXISTS sums (
    key TEXT NOT NULL, slot INTEGER NOT NULL, amount REAL NOT NULL, PRIMARY KEY (key, slot)
) WITHOUT ROWID
"""
_ADD = """
INSERT INTO sums (key, slot, amount) VALUES (?, ?, ?)
ON CONFLICT (key, slot) DO UPDATE SET amount = max(amount + excluded.amount, 0)
"""
_CHANGE = "UPDATE sums SET amount = max(amount + ?, 0) WHERE key = ? AND slot = ?"


class FileStore(ThreadedStore):
    """Sums in the file ``path``, made with its folder when first used.

    A reservation that a process dies with stays booked: what the call cost is not known, and
    counting it keeps the limit.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser()
        self._connection: sqlite3.Connection | None = None
        super().__init__()

    def _reset(self) -> None:
        if self._connection is not None:
            _parents.append(self._connection)  # Not this process's to close.
        self._connection = None
        super()._reset()

    def _take(self, wants: Sequence[Want], now: float) -> Refusal | None:
        return self._guarded(lambda db: _take(db, wants, now))

    def _change(self, changes: Sequence[Change]) -> None:
        self._guarded(lambda db: _change(db, changes))

    def _guarded(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            if self._connection is None:
                self._connection = _open(self.path)
            return work(self._connection)
        except (sqlite3.Error, OSError) as error:
            raise StoreFailed(
                f"store {self.path}: {error}; limits and budgets can't be kept without it"
            ) from error

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


_parents: list[object] = []


def _open(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        _use_wal(db)
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(_TABLE)
    except BaseException:
        db.close()
        raise
    return db


def _use_wal(db: sqlite3.Connection) -> None:
    """Several processes may open a new file at once, and SQLite doesn't wait for a lock while it
    changes the journal (sqlite.org/pragma.html#pragma_journal_mode, /c3ref/busy_handler.html)."""
    ends = time.monotonic() + BUSY_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > ends:
                raise
            time.sleep(0.01)


def _take(db: sqlite3.Connection, wants: Sequence[Want], now: float) -> Refusal | None:
    db.execute("BEGIN IMMEDIATE")
    try:
        for want in wants:
            oldest = want.window.oldest(now)
            db.execute("DELETE FROM sums WHERE key = ? AND slot < ?", (want.key, oldest))
            booked = dict(
                db.execute("SELECT slot, amount FROM sums WHERE key = ?", (want.key,)).fetchall()
            )
            refused = refusal(want, booked, now)
            if refused is not None:
                return refused
        for want in wants:
            db.execute(_ADD, (want.key, want.window.slot(now), want.amount))
        return None
    finally:
        db.execute("COMMIT")


def _change(db: sqlite3.Connection, changes: Sequence[Change]) -> None:
    db.execute("BEGIN IMMEDIATE")
    try:
        for change in changes:
            db.execute(_CHANGE, (change.amount, change.key, change.slot))
    finally:
        db.execute("COMMIT")
