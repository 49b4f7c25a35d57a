"""A directory at a glance: each partition's offsets, segments, producers, transactions, and what recovery would do."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from ..base.clock import now_ms
from ..base.errors import BatchError, OncelogError
from ..log.checkpoint import CLEAN_SHUTDOWN, read_clean_shutdown
from ..partition.data_directory import DataDirectory
from ..partition.verify import is_partition
from ..segment.names import parse_directory
from .listing import Column, Fault, Listing
from .output import Misuse, plural

if TYPE_CHECKING:
    from pathlib import Path

    from ..segment.names import TopicPartition

COLUMNS: Final = (
    Column("partition"),
    Column("start", True),
    Column("end", True),
    Column("LSO", True),
    Column("segments", True),
    Column("bytes", True),
    Column("producers", True),
    Column("open", True),
    Column("aborted", True),
    Column("state"),
)


class Row(NamedTuple):
    """One partition."""

    partition: str
    log_start_offset: int | None
    log_end_offset: int | None
    last_stable_offset: int | None
    segments: int
    bytes: int
    producers: int | None
    open_transactions: int | None
    aborted_transactions: int | None
    state: str
    fault: Fault | None = None

    def cells(self) -> tuple[str, ...]:
        return tuple("-" if value is None else str(value) for value in self[:-1])

    def fields(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "logStartOffset": self.log_start_offset,
            "logEndOffset": self.log_end_offset,
            "lastStableOffset": self.last_stable_offset,
            "segments": self.segments,
            "bytes": self.bytes,
            "producers": self.producers,
            "openTransactions": self.open_transactions,
            "abortedTransactions": self.aborted_transactions,
            "state": self.state,
        }


def overview(path: Path) -> Listing:
    """The partitions of a data directory, or the one whose directory this is."""
    name = click.format_filename(path)
    is_alone = is_partition(str(path))
    if is_alone:
        _check_name(path)
    data = DataDirectory(path, now_ms=now_ms)
    try:
        if not data.partitions:
            raise Misuse(
                f"{name} is not a directory of logs: there is no <topic>-<partition> with .log files in it."
            )
        rows = [_row(data, key) for key in data.partitions]
        epoch = read_clean_shutdown(f"{path}/{CLEAN_SHUTDOWN}")
    finally:
        data.close()
    total = sum(row.bytes for row in rows)
    if is_alone:
        said = "no checkpoint speaks for it, so all batches were proven"
    elif epoch is None:
        said = "not stopped cleanly: this is what recovery would keep"
    else:
        said = "stopped cleanly, and taken at its word: oncelog verify proves it"
    listing = Listing(
        name,
        "partition" if is_alone else "data directory",
        total,
        COLUMNS,
        len(rows),
        lambda start, stop: (row.cells() for row in rows[start:stop]),
        lambda start, stop: (row.fields() for row in rows[start:stop]),
        [f"{plural(len(rows), 'partition')}, {plural(total, 'byte')}; {said}"],
        {"isClean": None if is_alone else epoch is not None},
        tells_file=False,
    )
    for row in rows:
        if row.fault is not None:
            listing.add(row.fault)
    return listing


def _check_name(path: Path) -> None:
    """A directory with .log files is a partition's, which its name must tell."""
    try:
        parse_directory(path.resolve().name)
    except OncelogError:
        example = click.format_filename(min(path.glob("*.log")))
        raise Misuse(
            f"{click.format_filename(path)} holds .log files but is not named <topic>-<partition>. "
            f"Rename it, or name a file in it, for example {example}"
        ) from None


def _cut_sentence(directory: str, end_offset: int, cut: OncelogError) -> str:
    why = str(cut)
    if isinstance(cut, BatchError):
        why = f"{cut.what}, position {cut.position} of {PurePath(cut.file).name}"
    return f"recovery would end {directory} at offset {end_offset}: {why}"


def _row(data: DataDirectory, key: TopicPartition) -> Row:
    try:
        partition = data.get(key)
        segments = partition.log.segments
        table = partition.need_state().table
        cut = partition.damage[0] if partition.damage else None
        state = "clean" if data.is_clean else "whole"
        fault = None
        if cut is not None:
            state = f"cut_at_{partition.log_end_offset}"
            fault = Fault(_cut_sentence(key.directory, partition.log_end_offset, cut))
        return Row(
            key.directory,
            partition.log_start_offset,
            partition.log_end_offset,
            partition.last_stable_offset,
            len(segments),
            sum(segment.size for segment in segments),
            len(table),
            len(table.open_transactions()),
            sum(len(segment.txn_index) for segment in segments),
            state,
            fault,
        )
    except OncelogError as error:
        what = f"{key.directory} cannot be opened: {error}"
        return Row(
            key.directory, None, None, None, 0, 0, None, None, None, "unreadable", Fault(what)
        )
