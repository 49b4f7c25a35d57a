"""A file of record batches for people: a table on a terminal, plain columns in a pipe.

In a pipe every batch is one line of columns without spaces inside, written as it is read. A terminal gets
a table that leaves out what says nothing and what does not fit, and of a long file only its ends.
"""

from __future__ import annotations

import shutil
import sys
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from ..segment import batch
from .log_reader import Batch, Findings, LogReader, Summary, batches_of
from .output import error, plural, printable, quoted, talk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.text import Text

# A terminal shows this many batches or records unless told otherwise; of batches, so many are the last.
SHOWN_ON_TERMINAL: Final = 50
LAST_ON_TERMINAL: Final = 10
# Laying out a table takes time: beyond this the rows are plain there, too.
TABLE_ROWS_MAX: Final = 1000
# Characters of keys and header values on a terminal, and room for the length behind one that was cut.
SHORT_CONTENT: Final = 24
LENGTH_REMARK: Final = len('""… (1,000,000 bytes)')
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None)


class Column(NamedTuple):
    title: str
    is_number: bool = False
    dull: str = "-"  # a table leaves the column out where every cell says this
    rank: int = 0  # in a narrow terminal the highest rank goes first; 0 stays


COLUMNS: Final = (
    Column("offsets"),
    Column("records", is_number=True),
    Column("kind", dull="data"),
    Column("time"),
    Column("stamped", dull="create", rank=3),
    Column("producer", is_number=True, rank=1),
    Column("epoch", is_number=True, rank=4),
    Column("sequence", rank=6),
    Column("codec"),
    Column("bytes", is_number=True, rank=2),
    Column("position", is_number=True, rank=5),
    Column("leader", is_number=True, rank=8),
    Column("horizon", rank=7),
    Column("crc"),
)
TITLES: Final = tuple(column.title for column in COLUMNS)
TIME: Final = TITLES.index("time")


def cells(header: Batch) -> tuple[str, ...]:
    """One batch as the cells of COLUMNS."""
    has_producer = header.producer_id >= 0
    horizon = header.delete_horizon
    return (
        span(header.base_offset, header.last_offset),
        str(header.record_count),
        kind_of(header),
        time_of(header.max_timestamp),
        "append" if header.is_append_time else "create",
        str(header.producer_id) if has_producer else "-",
        str(header.producer_epoch) if has_producer else "-",
        span(header.base_sequence, header.last_sequence) if header.base_sequence >= 0 else "-",
        header.codec,
        str(header.size),
        str(header.position),
        str(header.partition_leader_epoch),
        "-" if horizon is None else time_of(horizon),
        {1: "ok", 0: "BAD"}.get(header.crc_ok, "-"),
    )


def span(first: int, last: int) -> str:
    """Numbers from first to last, or the one that is both."""
    return str(first) if first == last else f"{first}..{last}"


def kind_of(header: Batch) -> str:
    """What a batch is there for: data, txn (data of a transaction), or a control record's type."""
    if header.is_control:
        return header.control
    return "txn" if header.is_transactional else "data"


def time_of(timestamp_ms: int) -> str:
    """Milliseconds since 1970 as ISO 8601; as a number where no calendar reaches."""
    if timestamp_ms == -1:
        return "-"
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds") + "Z"


def write(reader: LogReader, title: str = "") -> None:
    """One file on stdout, with remarks on stderr."""
    is_terminal = sys.stdout.isatty()
    if title:
        sys.stdout.write(f"{title}\n")
    shown_max = reader.request.shown_max
    if shown_max is None and is_terminal:
        shown_max = SHOWN_ON_TERMINAL
    noun = "records" if reader.request.records else "batches"
    left_out: list[str] = []
    if reader.request.records:
        hidden = _write_records(reader, shown_max, is_terminal)
    elif is_terminal and shown_max and shown_max <= TABLE_ROWS_MAX:
        hidden, left_out = _write_table(reader, shown_max)
    else:
        hidden = _write_columns(reader, shown_max)
    for line in summary_lines(reader.summary, reader.findings.damage_count):
        sys.stdout.write(f"{line}\n")
    if left_out:
        talk(
            f"Too narrow for: {', '.join(left_out)}. A wider terminal, a pipe or --json shows them."
        )
    if hidden and reader.request.shown_max is None:
        talk(
            f"{hidden:,} {noun} are not shown: --max 0 shows all, --from-offset N starts elsewhere."
        )
    _tell(reader.findings)


def summary_lines(summary: Summary, damaged: int) -> Iterator[str]:
    """What the batches add up to, in two lines."""
    if not summary.batches or summary.first_offset is None or summary.last_offset is None:
        yield "no batches"
        return
    missing = f" ({summary.missing_offsets:,} of them gone)" if summary.missing_offsets else ""
    times = ""
    if summary.min_timestamp is not None and summary.max_timestamp is not None:
        first, last = time_of(summary.min_timestamp), time_of(summary.max_timestamp)
        times = f"; {first}" if first == last else f"; {first} .. {last.removeprefix(first[:11])}"
    yield (
        f"{plural(summary.batches, 'batch', 'batches')}, {plural(summary.records, 'record')}, "
        f"{plural(summary.bytes, 'byte')}; offsets {span(summary.first_offset, summary.last_offset)}{missing}{times}"
    )
    parts = [", ".join(f"{name} {count:,}" for name, count in summary.codecs.most_common())]
    if summary.transactional:
        parts.append(f"{summary.transactional:,} transactional")
    if summary.control:
        types = ", ".join(f"{name} {count:,}" for name, count in summary.control.most_common())
        parts.append(f"{summary.control.total():,} control ({types})")
    if damaged:
        parts.append(f"{damaged:,} damaged")
    elif summary.crc_checked:
        parts.append("checksums ok")
    else:
        parts.append("checksums not verified")
    yield "; ".join(parts)


def _tell(findings: Findings) -> None:
    if findings.gap_count:
        talk(
            f"{findings.file}: {plural(findings.gap_count, 'gap')} in the offsets, as compaction leaves them"
        )
        for last, following in findings.gaps:
            talk(f"  {last} is followed by {following}")
        if findings.gap_count > len(findings.gaps):
            talk(f"  and {findings.gap_count - len(findings.gaps):,} more")
    tell_damage(findings)


def tell_damage(findings: Findings) -> None:
    """What is wrong on stderr, where and what to do; in JSON mode, too."""
    for fault in findings.damage:
        error(f"{fault}.")
    if findings.damage_count > len(findings.damage):
        error(f"{findings.damage_count - len(findings.damage):,} more batches are damaged.")


# ---------------------------------------------------------------- batches in a pipe


def _write_columns(reader: LogReader, shown_max: int | None) -> int:
    left = shown_max or sys.maxsize
    layout = ""
    hidden = 0
    for rows in reader:
        shown = rows[:left]
        left -= len(shown)
        hidden += len(rows) - len(shown)
        if len(shown) and not layout:
            # The first rows tell the widths; a wider cell later on shifts its line.
            layout = _layout([*map(cells, batches_of(shown[:TABLE_ROWS_MAX]))])
            sys.stdout.write(layout.format(*TITLES))
        sys.stdout.writelines(layout.format(*cells(header)) for header in batches_of(shown))
    return hidden


def _layout(rows: Sequence[Sequence[str]]) -> str:
    """A format string for one line; made once, because a line costs less than its padding done by hand."""
    widths = [max(map(len, texts)) for texts in zip(TITLES, *rows, strict=True)]
    widths[-1] = 0  # nothing follows that would have to be aligned
    sides = (">" if column.is_number else "<" for column in COLUMNS)
    return (
        "  ".join(f"{{:{side}{width or ''}}}" for side, width in zip(sides, widths, strict=True))
        + "\n"
    )


# ---------------------------------------------------------------- batches on a terminal


def _write_table(reader: LogReader, shown_max: int) -> tuple[int, list[str]]:
    """A table of the first batches and, where nobody asked for a number, of the last ones.

    Returns how many batches lie between them, and the columns for which the terminal is too narrow.
    """
    last_max = LAST_ON_TERMINAL if reader.request.shown_max is None else 0
    first: list[tuple[str, ...]] = []
    last: deque[Batch] = deque(maxlen=last_max)
    count = 0
    for rows in reader:
        count += len(rows)
        room = shown_max - last_max - len(first)
        first += map(cells, batches_of(rows[:room]))
        if last_max:
            last.extend(batches_of(rows[max(room, 0) :][-last_max:]))
    hidden = count - len(first) - len(last)
    return hidden, _print_table(first, [*map(cells, last)], hidden) if count else []


def _print_table(
    first: list[tuple[str, ...]], last: list[tuple[str, ...]], hidden: int
) -> list[str]:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    rows, titles = _with_short_times([*first, *last])
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    kept = [
        index
        for index, column in enumerate(COLUMNS)
        if any(row[index] != column.dull for row in rows)
    ]
    left_out = []
    while sum(widths[index] + 2 for index in kept) - 1 > console.width:
        index = max(kept, key=lambda index: COLUMNS[index].rank)
        if not COLUMNS[index].rank:
            break
        kept.remove(index)
        left_out.append(COLUMNS[index].title)
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        header_style="bold",
    )
    for index in kept:
        table.add_column(
            titles[index], justify="right" if COLUMNS[index].is_number else "left", no_wrap=True
        )
    for number, row in enumerate(rows):
        if hidden and number == len(first):
            table.add_row(f"… {hidden:,} more")
        table.add_row(*(_styled(COLUMNS[index].title, row[index]) for index in kept))
    console.print(table)
    return left_out


def _with_short_times(rows: list[tuple[str, ...]]) -> tuple[list[tuple[str, ...]], list[str]]:
    """Where all times are of one day, the day moves into the title."""
    titles = list(TITLES)
    days = {row[TIME][:10] for row in rows if "T" in row[TIME]}
    if len(days) != 1:
        return rows, titles
    (day,) = days
    titles[TIME] = f"{day} UTC"
    return [
        (*row[:TIME], row[TIME].removeprefix(f"{day}T").removesuffix("Z"), *row[TIME + 1 :])
        for row in rows
    ], titles


_STYLES: Final = {
    ("kind", "COMMIT"): "green",
    ("kind", "ABORT"): "yellow",
    ("crc", "ok"): "green",
    ("crc", "BAD"): "bold red",
}


def _styled(title: str, cell: str) -> Text:
    from rich.text import Text

    return Text(cell, style=_STYLES.get((title, cell), "dim" if cell == "-" else ""))


# ---------------------------------------------------------------- records


def _write_records(reader: LogReader, shown_max: int | None, is_terminal: bool) -> int:
    """Each batch in a line of words, its records below it. Returns how many records are left out."""
    left = shown_max or sys.maxsize
    width = shutil.get_terminal_size().columns if is_terminal else None
    hidden = 0
    for rows in reader:
        for header, records in reader.records(rows):
            if left <= 0:
                hidden += header.record_count
                continue
            sys.stdout.write(f"{_batch_words(header)}\n")
            shown = 0
            for record in records:
                if left <= 0:
                    break
                sys.stdout.write(f"{_record_words(header, record, reader.request.values, width)}\n")
                shown, left = shown + 1, left - 1
            if left <= 0:
                hidden += max(0, header.record_count - shown)
    return hidden


def _batch_words(header: Batch) -> str:
    parts = [
        f"offset {header.base_offset}"
        if header.base_offset == header.last_offset
        else f"offsets {span(header.base_offset, header.last_offset)}",
        plural(header.record_count, "record"),
    ]
    if header.is_transactional or header.is_control:
        parts.append(kind_of(header))
    if header.producer_id >= 0:
        parts.append(f"producer {header.producer_id} epoch {header.producer_epoch}")
    if header.base_sequence >= 0:
        parts.append(f"sequence {span(header.base_sequence, header.last_sequence)}")
    if header.is_control and header.coordinator_epoch >= 0:
        parts.append(f"coordinator epoch {header.coordinator_epoch}")
    parts += [header.codec, f"{plural(header.size, 'byte')} at {header.position}"]
    if header.delete_horizon is not None:
        parts.append(f"delete horizon {time_of(header.delete_horizon)}")
    if header.crc_ok >= 0:
        parts.append("crc ok" if header.crc_ok else "crc BAD")
    return "  ".join(parts)


def _record_words(header: Batch, record: batch.Record, values: bool, width: int | None) -> str:
    stamp = "append" if record.timestamp_type else "create"
    parts = [f"| offset {record.offset}", f"{stamp} {time_of(record.timestamp)}"]
    if header.is_control:
        control = batch.control_record(record.key, record.value)
        parts.append(control.type.name)
    elif header.base_sequence >= 0:
        parts.append(f"sequence {header.sequence(record.offset)}")
    if not values:
        parts += [f"key {_size(record.key)}", f"value {_size(record.value)}"]
        if record.headers:
            parts.append("headers " + ", ".join(_name(name) for name, _ in record.headers))
        return "  ".join(parts)
    # On a terminal the value gets what is left of the line; a pipe gets everything whole.
    short = None if width is None else SHORT_CONTENT
    start = "  ".join([*parts, f"key {quoted(record.key, short)}", "value "])
    pairs = ", ".join(f"{_name(name)}={quoted(data, short)}" for name, data in record.headers)
    end = f"  headers {pairs}" if pairs else ""
    left = (
        None
        if width is None
        else max(SHORT_CONTENT - 8, width - len(start) - len(end) - LENGTH_REMARK)
    )
    return f"{start}{quoted(record.value, left)}{end}"


def _size(data: bytes | None) -> str:
    return "null" if data is None else f"{len(data)} B"


def _name(name: str) -> str:
    return (printable(name) if name else None) or quoted(name.encode())
