"""The part of a page that a command writes: what stands between its two marks."""

from __future__ import annotations

from pathlib import Path

BEGIN, END = "<!-- {}: written by {} -->", "<!-- /{} -->"


def write(path: Path, name: str, by: str, text: str) -> None:
    """Put ``text`` between the marks of ``name``, written ``by`` that command. ``ValueError`` where
    they are missing."""
    begin, end = BEGIN.format(name, by), END.format(name)
    page = path.read_text(encoding="utf-8")
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"{path} needs the lines {begin!r} and {end!r}, once each")
    before, _, rest = page.partition(begin)
    after = rest.partition(end)[2]
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
