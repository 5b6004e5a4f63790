"""All that one worker knows, left for those who come later: how it is written, read and entered.

Ages are taken on the server's clock, so that no worker has to trust another's. Knows no Redis.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specroute.measure import Measurements
from specroute.measure.dump import elsewhere, load
from specroute.policy.account import Account
from specroute.sharing.names import VERSION

if TYPE_CHECKING:
    from specroute.sharing.worker import Sharing

MOST_BYTES = 64 * 2**20
"""Of figures, unpacked."""
MOST_ENTRIES = 4096
"""Figures that are left, the newest."""
LIVELY_S = 300.0
"""Figures that were left within this time are those of workers at work: they are believed before
one's own of the same things. Of older ones the newer are."""


@dataclass(frozen=True, slots=True)
class Left:
    """One worker's figures. They hold its messages up to ``number``, and everybody's up to
    ``place``."""

    worker: str
    host: str
    number: int
    place: str
    wall: float
    """When they were left, seconds on the worker's clock,"""
    server: float
    """and on the server's."""
    dump: dict[str, Any]
    accounts: list[list[Any]]


def packed(left: Left) -> bytes:
    """As bytes; takes milliseconds."""
    entries = sorted(left.dump["entries"], key=lambda entry: -float(entry["at"]))
    data = {
        "version": VERSION,
        **{name: getattr(left, name) for name in _PLAIN},
        "dump": {**left.dump, "entries": entries[:MOST_ENTRIES]},
        "accounts": left.accounts,
    }
    return zlib.compress(as_json(data), 1)


_PLAIN = ("worker", "host", "number", "place", "wall", "server")


def read(data: bytes) -> Left:
    """From bytes. Raises one of ``hearing.BAD`` for what isn't figures, or newer ones."""
    try:
        unpack = zlib.decompressobj()
        text = unpack.decompress(data, MOST_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    found = from_json(text)
    if found["version"] != VERSION:
        raise ValueError(f"version {found['version']!r}, this one reads {VERSION}")
    place, _, number = found["place"].partition("-")
    int(place), int(number or 0)
    return Left(
        str(found["worker"]),
        str(found["host"]),
        int(found["number"]),
        str(found["place"]),
        float(found["wall"]),
        float(found["server"]),
        dict(found["dump"]),
        list(found["accounts"]),
    )


def enter(left: Left, sharing: Sharing, now: float, wall: float) -> None:
    """Have the figures, where they are of anything, in the place of one's own. ``now``: on the
    server's clock, ``wall``: on this machine's. What is wrong with them is raised before anything
    is changed."""
    names, seen = sharing.names, sharing.measurements
    age = max(0.0, now - left.server)
    entries = []
    for entry in left.dump["entries"]:
        if left.host != names.host:
            entry = elsewhere(entry, names.remote)
            if entry is None:
                continue
        entries.append(_moved(entry, wall - age - left.wall))
    own = {_key(entry): entry for entry in names.kept.collect(seen)["entries"]}
    lively = age < LIVELY_S
    for entry in entries:
        mine = own.get(_key(entry))
        if mine is None or lively or float(mine["at"]) <= float(entry["at"]):
            own[_key(entry)] = entry
    whole = {**left.dump, "entries": list(own.values())}
    fresh = Measurements()
    load(fresh, whole, names.kept.targets, names.kept.drafts, wall)
    accounts = [
        ((str(policy), name, str(traffic)), _account(row))
        for policy, target, traffic, *row in left.accounts
        for name in names.targets_at(int(target))
    ]
    seen.take_over(fresh)
    for key_, account in accounts:
        sharing.accounts.load(key_, account)


def _key(entry: dict[str, Any]) -> str:
    return json.dumps([entry["kind"], entry["key"]])


def _moved(entry: dict[str, Any], by: float) -> dict[str, Any]:
    """With its times on another clock."""
    moved = {**entry, "at": float(entry["at"]) + by}
    data = entry["data"]
    if isinstance(data, dict) and "at" in data:
        moved["data"] = {**data, "at": float(data["at"]) + by}
    return moved


def account_row(account: Account) -> list[float]:
    """An account as JSON values."""
    return [
        account.allowance,
        account.dollars,
        account.lent,
        account.spent,
        account.yardstick,
        account.strayed,
        account.timed,
    ]


def _account(row: list[Any]) -> Account:
    allowance, dollars, lent, spent, yardstick, strayed, timed = (float(v) for v in row)
    return Account(allowance, dollars, lent, spent, yardstick, strayed, timed)


def as_json(data: Any) -> bytes:
    """Short JSON; infinite numbers are refused."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode()


def from_json(text: bytes) -> dict[str, Any]:
    """An object from JSON. ``ValueError`` for anything else, NaN and endless numbers included."""
    found = json.loads(text, parse_constant=_no_number)
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no figure")
