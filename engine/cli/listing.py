"""Rows of a small file for people and for programs: a table on a terminal, plain columns in a pipe, JSON.

What `oncelog inspect` shows of anything but batches is a Listing. In a pipe every row is one line of columns without
spaces inside; a terminal gets a table, and of a long one its ends.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .output import error, talk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

# A terminal shows this many rows unless told otherwise; so many of them are the last.
SHOWN_ON_TERMINAL: Final = 50
LAST_ON_TERMINAL: Final = 10
# Laying out a table takes time: beyond this the rows are plain there, too.
TABLE_ROWS_MAX: Final = 1000
# What is wrong is told in full this many times; then it is counted.
TOLD_MAX: Final = 10
_STYLES: Final = {
    "ok": "green",
    "clean": "green",
    "whole": "green",
    "BAD": "bold red",
    "-": "dim",
    "open": "yellow",
}


class Column(NamedTuple):
    title: str
    is_number: bool = False


class Fault(NamedTuple):
    """What is wrong, where in the file, and what to do."""

    what: str
    position: int = -1
    advice: str = ""


@dataclass
class Listing:
    """One file, read: its rows, what they add up to, and what is wrong with it."""

    file: str
    kind: str
    size: int
    columns: tuple[Column, ...]
    count: int
    # From ``start`` to ``stop``: rows as cells, and as the members of JSON objects.
    cells: Callable[[int, int], Iterable[tuple[str, ...]]]
    fields: Callable[[int, int], Iterable[dict[str, Any]]]
    summary: list[str]
    summary_fields: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    damage: list[Fault] = field(default_factory=list)
    damage_count: int = 0
    tells_file: bool = True  # in errors; those of a directory name their own

    def add(self, fault: Fault) -> None:
        self.damage_count += 1
        if len(self.damage) < TOLD_MAX:
            self.damage.append(fault)


def write_json(listing: Listing, shown_max: int | None) -> None:
    """One document, one row a line."""
    head = {"file": listing.file, "size": listing.size, "kind": listing.kind}
    sys.stdout.write(f'{json.dumps(head)[:-1]}, "entries": [')
    separator = "\n"
    for fields in listing.fields(0, min(shown_max or listing.count, listing.count)):
        sys.stdout.write(separator + json.dumps(fields))
        separator = ",\n"
    damage = [
        {"what": what, "position": None if position < 0 else position, "advice": advice}
        for what, position, advice in listing.damage
    ]
    summary = {"entries": listing.count, **listing.summary_fields, "damaged": listing.damage_count}
    rest = {"summary": summary, "damage": damage}
    sys.stdout.write(f"\n], {json.dumps(rest)[1:-1]}}}\n")
    _tell_damage(listing)


def write_text(listing: Listing, shown_max: int | None, title: str = "") -> None:
    """The rows on stdout, remarks and damage on stderr."""
    is_terminal = sys.stdout.isatty()
    if title:
        sys.stdout.write(f"{title}\n")
    wanted = shown_max
    if wanted is None and is_terminal:
        wanted = SHOWN_ON_TERMINAL
    shown = min(wanted or listing.count, listing.count)
    if not listing.count:
        pass
    elif is_terminal and shown <= TABLE_ROWS_MAX:
        last = LAST_ON_TERMINAL if shown_max is None and shown < listing.count else 0
        first_rows = list(listing.cells(0, shown - last))
        last_rows = list(listing.cells(listing.count - last, listing.count)) if last else []
        print_table(listing.columns, first_rows, last_rows, listing.count - shown)
    else:
        write_columns(listing.columns, listing.cells(0, shown))
    for line in listing.summary:
        sys.stdout.write(f"{line}\n")
    if shown < listing.count and shown_max is None:
        talk(f"{listing.count - shown:,} entries are not shown: --max 0 shows all.")
    for remark in listing.remarks:
        talk(f"{listing.file}: {remark}")
    _tell_damage(listing)


def _tell_damage(listing: Listing) -> None:
    for what, position, advice in listing.damage:
        place = f"{listing.file}, position {position}" if position >= 0 else listing.file
        place = f" ({place})" if listing.tells_file else ""
        error(f"{what}{place}.{f' {advice}.' if advice else ''}")
    if listing.damage_count > len(listing.damage):
        error(f"{listing.damage_count - len(listing.damage):,} more entries are damaged.")


def write_rows(columns: Sequence[Column], rows: Sequence[tuple[str, ...]]) -> None:
    """Rows of an answer: a table on a terminal that is wide enough, else plain columns; nothing where there are none."""
    if not rows:
        return
    titles = tuple(column.title for column in columns)
    width = sum(2 + max(map(len, cells)) for cells in zip(titles, *rows, strict=True))
    # A table that is squeezed would cut figures off; lines that are too long only wrap.
    if sys.stdout.isatty() and len(rows) <= TABLE_ROWS_MAX and width <= _terminal_columns():
        print_table(columns, list(rows))
    else:
        write_columns(columns, rows)


def _terminal_columns() -> int:
    import shutil  # for those who look at a terminal

    return shutil.get_terminal_size().columns


def json_rows(rows: Iterable[dict[str, Any]]) -> None:
    """Rows of an answer as one JSON array, one row a line."""
    body = ",\n".join(map(json.dumps, rows))
    sys.stdout.write(f"[\n{body}\n]\n" if body else "[]\n")


def write_columns(columns: Sequence[Column], rows: Iterable[tuple[str, ...]]) -> None:
    """Plain columns; the first rows tell the widths."""
    rows = iter(rows)
    head = list(islice(rows, TABLE_ROWS_MAX))
    titles = [column.title for column in columns]
    widths = [max(map(len, texts)) for texts in zip(titles, *head, strict=True)]
    widths[-1] = 0 if not columns[-1].is_number else widths[-1]
    sides = (">" if column.is_number else "<" for column in columns)
    layout = "  ".join(
        f"{{:{side}{width or ''}}}" for side, width in zip(sides, widths, strict=True)
    )
    for row in ([*titles], *head):
        sys.stdout.write(layout.format(*row).rstrip() + "\n")
    for row in rows:
        sys.stdout.write(layout.format(*row).rstrip() + "\n")


def print_table(
    columns: Sequence[Column],
    first: list[tuple[str, ...]],
    last: list[tuple[str, ...]] | None = None,
    hidden: int = 0,
) -> None:
    """A table for a terminal; a column in which no row says anything is left out, a long last one wraps."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = [*first, *(last or [])]
    kept = [
        index
        for index in range(len(columns))
        if index == 0 or any(row[index] != "-" for row in rows)
    ]
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        header_style="bold",
    )
    for index in kept:
        is_last = index == kept[-1] and not columns[index].is_number
        table.add_column(
            columns[index].title,
            justify="right" if columns[index].is_number else "left",
            no_wrap=not is_last,
        )
    for number, row in enumerate(rows):
        if hidden and number == len(first):
            table.add_row(f"… {hidden:,} more")
        table.add_row(*(Text(row[index], style=_STYLES.get(row[index], "")) for index in kept))
    Console(highlight=False).print(table)
