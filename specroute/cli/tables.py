"""How the commands show tables: on a terminal with rich, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def print_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None
) -> None:
    """Print a table; long cells are folded, never cut."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title and escape(title), title_justify="left", box=None, pad_edge=False)
    for name in head:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=2000)  # piped: one line per row
    console.print(table)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The same as a Markdown table."""
    lines = [_line(head), _line(["---"] * len(head))]
    lines += [_line(row) for row in rows]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
