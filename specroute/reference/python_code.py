"""Python's standard library as text: training chunks and held-out snippets.

Knows which files of the running interpreter's library count, and that one file in eight (by a
hash of its path) is never trained on. Doesn't know tokenizers, models or chat templates.

Training reads the installed library. The held-out snippets ship in `held_out_code.json`, short
excerpts of CPython 3.11 under the PSF licence, so that they are the same everywhere;
`python -m specroute.reference.python_code` writes that file anew.
"""

from __future__ import annotations

import json
import random
import sysconfig
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from zlib import crc32

Message = dict[str, str]
SYSTEM = "Continue the Python file."
SNIPPETS = "held_out_code.json"
SNIPPET_CHARS = 420  # about 150 tokens of the bundled tokenizer
CHUNK_CHARS = 1500
MAX_FILE_BYTES = 200_000
SKIPPED = frozenset(
    {"site-packages", "test", "tests", "idle_test", "encodings", "pydoc_data", "lib2to3"}
    | {"__pycache__", "turtledemo", "ensurepip"}
)
SKIPPED_PREFIXES = ("_sysconfigdata", "config-")


def is_held_out(name: str) -> bool:
    """Whether the library file `name`, a relative path with slashes, is kept from training."""
    return crc32(name.encode()) % 8 == 0


@cache
def library() -> dict[str, str]:
    """Path inside the standard library to source text, for every file that counts.

    Tests, bundled third-party packages, character tables and files over 200 kB are left out.
    """
    root = Path(sysconfig.get_path("stdlib"))
    found: dict[str, str] = {}
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if SKIPPED.intersection(inside.parts) or inside.parts[0].startswith(SKIPPED_PREFIXES):
            continue
        if not 400 <= path.stat().st_size <= MAX_FILE_BYTES:
            continue
        try:
            found[inside.as_posix()] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    return found


def training_files() -> dict[str, str]:
    """The library without its held-out files."""
    return {name: text for name, text in library().items() if not is_held_out(name)}


def conversations(seed: int) -> Iterator[list[Message]]:
    """Endless training conversations: a stretch of a file, cut in two at a line's end.

    Where files are drawn, longer ones are drawn more often. The user shows the first part and
    the assistant goes on with the second, which ends where the chunk ends, not where the code
    would: callers shouldn't teach an end of text after it.
    """
    rng = random.Random(f"code-train-{seed}")
    texts = [text.splitlines(keepends=True) for text in training_files().values()]
    weights = [sum(map(len, lines)) for lines in texts]
    while True:
        lines = rng.choices(texts, weights)[0]
        start = 0 if rng.random() < 0.15 else rng.randrange(len(lines))
        head, at = _take(lines, start, rng.randint(250, 650))
        tail, _ = _take(lines, at, CHUNK_CHARS - len(head))
        if len(head) > 100 and len(tail) > 100:
            yield [*_prompt(head), {"role": "assistant", "content": tail}]


def held_out_prompts() -> list[list[Message]]:
    """Every shipped held-out snippet as a prompt, in the file's order."""
    return [_prompt(snippet["text"]) for snippet in _shipped()]


def shipped_names() -> list[str]:
    """The library files that the shipped snippets are from."""
    return [snippet["file"] for snippet in _shipped()]


def _shipped() -> list[dict[str, str]]:
    path = files("specroute.reference") / SNIPPETS
    snippets: list[dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))["snippets"]
    return snippets


def _prompt(head: str) -> list[Message]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": head}]


def _take(lines: list[str], start: int, chars: int) -> tuple[str, int]:
    """Whole lines from `start` on, at most `chars` characters, and where they end."""
    end, size = start, 0
    while end < len(lines) and size + len(lines[end]) <= chars:
        size += len(lines[end])
        end += 1
    return "".join(lines[start:end]), end


def make_snippets() -> list[dict[str, str]]:
    """Two excerpts of each held-out file: its head, and one that opens a later definition."""
    snippets = []
    for name, text in library().items():
        if not is_held_out(name):
            continue
        lines = text.splitlines(keepends=True)
        later = [
            n for n, line in enumerate(lines) if n > 40 and line.startswith(("def ", "class "))
        ]
        for start in [0, *later[len(later) // 2 :][:1]]:
            head, _ = _take(lines, start, SNIPPET_CHARS)
            if len(head) > 0.7 * SNIPPET_CHARS and head.isascii() and "opyright" not in head:
                snippets.append({"file": name, "text": head})
    return snippets


def main() -> None:
    """Write the shipped snippets from the running interpreter's library."""
    note = (
        "Excerpts of the CPython 3.11 standard library. Copyright (c) 2001-2023 Python Software "
        "Foundation; All Rights Reserved. Under the PSF License Agreement, version 2 (PSF-2.0)."
    )
    text = json.dumps({"licence": note, "snippets": make_snippets()}, indent=0)
    Path(__file__).with_name(SNIPPETS).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
