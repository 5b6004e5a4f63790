"""``record`` and ``[shadow]``: what is written down of requests, and learnt from plain answers.

Knows how they are written and their defaults; nothing of what is done with them.
"""

from __future__ import annotations

from collections.abc import Mapping

from specroute import tables
from specroute.config.origins import Origins
from specroute.config.values import Record, Shadow


def read_record(root: tables.Table, origins: Origins) -> Record | None:
    """The file that requests are recorded in; ``None``: nowhere."""
    value = root.raw("record")
    if value is None:
        return None
    if isinstance(value, Mapping):
        table = root.table("record")
        path, texts = table.get("path", tables.text, ""), table.get("texts", tables.boolean, False)
        if table.lacks("path"):
            table.problem("required: the file to record requests in", "path")
        origins.note(table, "path")
        origins.note(table, "texts")
        table.finish()
        return Record(path, texts)
    path = root.get("record", tables.text, "")
    origins.note(root, "record")
    return Record(path) if path else None


def read_shadow(root: tables.Table, origins: Origins) -> Shadow:
    """What plain answers may be used for."""
    table, default = root.table("shadow"), Shadow()
    found = Shadow(
        share=table.get("share", _share, default.share),
        paid=table.get("paid", tables.boolean, default.paid),
    )
    origins.note(table, "share")
    origins.note(table, "paid")
    table.finish()
    return found


def _share(value: object) -> float:
    found = tables.number(value, at_least=0)
    if found > 1:
        raise tables.Expected("a share from 0 to 1")
    return found
