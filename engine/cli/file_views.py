"""Kafka's files beside the logs, each read into a Listing: indexes, snapshots, checkpoints and the like.

Entries are shown as Kafka's dump tool shows them, and those of an index are compared with the .log beside it, if
there is one: what they lead to must be there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
import numpy as np

from ..base import disk
from ..base.errors import CorruptFileError
from ..log import checkpoint
from ..partition.producer_snapshot import decode_snapshot
from ..partition.verify_derived import OFFSET_ENTRY, TIME_ENTRY, last_offsets
from ..segment.batch import ControlType, scan_prefix, sequence_after
from ..segment.names import LOG, OFFSET_INDEX, SNAPSHOT, TIME_INDEX, TXN_INDEX, parse_file
from ..segment.txn_index import ENTRY as TXN_ENTRY
from .listing import Column, Fault, Listing
from .log_text import span, time_of
from .output import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Rows = NDArray[np.void]

REBUILD: Final = "It can be made anew from the log; oncelog verify says how"
REBUILD_TXN: Final = "Do not remove it, or aborted records are shown: it is made anew with the .index, see oncelog verify"


class IndexRequest(NamedTuple):
    """Which entries of an index to show, and whether to hold them against the log."""

    from_offset: int
    to_offset: int
    check: bool


class Headers(NamedTuple):
    """Of all batches of a log: where they lie and what an index says of them."""

    positions: NDArray[np.int64]
    bases: NDArray[np.int64]
    lasts: NDArray[np.int64]
    max_timestamps: NDArray[np.int64]
    producers: NDArray[np.int64]
    control_types: NDArray[Any]


def _headers_beside(path: Path, suffix: str) -> Headers | None:
    """The batches of the .log to which an index belongs; None if there is none."""
    log = path.with_name(path.name.replace(suffix, LOG, 1))
    if not disk.exists(log):
        return None
    view = memoryview(disk.map_file(log))
    parts: list[Rows] = []
    position = 0
    while position < len(view):
        rows, end, fault = scan_prefix(view, position, bytes_max=8 << 20, check_crc=False)
        parts.append(rows)
        if fault is not None or end == position:
            break
        position = end
    names = ("position", "base_offset", "max_timestamp", "producer_id", "control_type")
    columns = {
        name: np.concatenate([rows[name] for rows in parts]) if parts else np.empty(0, np.int64)
        for name in names
    }
    lasts = [last_offsets(rows) for rows in parts]
    return Headers(
        columns["position"],
        columns["base_offset"],
        np.concatenate(lasts) if lasts else np.empty(0, np.int64),
        columns["max_timestamp"],
        columns["producer_id"],
        columns["control_type"],
    )


def _base_offset(path: Path) -> int | None:
    name = path.name
    while (parsed := parse_file(name)) is None and "." in name:
        name = name.rpartition(".")[0]
    return parsed[0] if parsed else None


class _Entries(NamedTuple):
    """Entries of an index file without the zeros behind them."""

    rows: Rows
    size: int
    zeros: int
    faults: list[Fault]


def _entries(path: Path, dtype: np.dtype[np.void]) -> _Entries:
    data = memoryview(disk.map_file(path))
    width = dtype.itemsize
    faults = []
    if len(data) % width:
        what = f"{len(data):,} bytes are not a multiple of {width}"
        faults.append(Fault(what, len(data) // width * width, REBUILD))
    rows = np.frombuffer(data[: len(data) // width * width], dtype)
    used = np.flatnonzero(np.frombuffer(data[: len(rows) * width], np.uint8))
    count = int(used[-1]) // width + 1 if len(used) else 0
    if not count and len(rows) == 1:
        count = 1  # one entry of zeros is an entry: a record of time 0
    return _Entries(rows[:count], len(data), len(rows) - count, faults)


def _index(
    path: Path,
    suffix: str,
    kind: str,
    entries: _Entries,
    columns: tuple[Column, ...],
    verdicts: NDArray[np.bool_] | None,
    shown: NDArray[np.int64],
    row_cells: Callable[[int], tuple[str, ...]],
    row_fields: Callable[[int], dict[str, Any]],
) -> Listing:
    """A listing of index entries; each ends with the verdict on it."""

    def verdict(slot: int) -> str:
        return "-" if verdicts is None else "ok" if verdicts[slot] else "BAD"

    def cells(start: int, stop: int) -> Iterator[tuple[str, ...]]:
        return ((*row_cells(slot), verdict(slot)) for slot in shown[start:stop].tolist())

    def fields(start: int, stop: int) -> Iterator[dict[str, Any]]:
        for slot in shown[start:stop].tolist():
            yield row_fields(slot) | {"isValid": None if verdicts is None else bool(verdicts[slot])}

    checked = "compared with the log" if verdicts is not None else "not compared with a log"
    listing = Listing(
        click.format_filename(path),
        kind,
        entries.size,
        (*columns, Column("check")),
        len(shown),
        cells,
        fields,
        [
            f"{plural(len(entries.rows), 'entry', 'entries')}, {plural(entries.size, 'byte')}; {checked}"
        ],
        {"zeroEntries": entries.zeros, "checked": verdicts is not None},
    )
    if entries.zeros:
        listing.remarks.append(
            f"{plural(entries.zeros, 'entry', 'entries')} of zeros behind the last: space that Kafka reserves in an "
            "index while its segment is written, and cuts when the segment is rolled or stopped cleanly"
        )
    if verdicts is None and not disk.exists(path.with_name(path.name.replace(suffix, LOG, 1))):
        listing.remarks.append("there is no .log beside it to compare it with")
    if _base_offset(path) is None:
        listing.remarks.append("the name tells no base offset: offsets are relative to it")
    for fault in entries.faults:
        listing.add(fault)
    return listing


def offset_index(path: Path, request: IndexRequest) -> Listing:
    """.index: offset and position."""
    entries = _entries(path, OFFSET_ENTRY)
    offsets = entries.rows["relative_offset"].astype(np.int64) + (_base_offset(path) or 0)
    positions = entries.rows["position"].astype(np.int64)
    headers = _headers_beside(path, OFFSET_INDEX) if request.check else None
    rises = np.ones(len(offsets), bool)
    rises[1:] = (np.diff(offsets) > 0) & (np.diff(positions) > 0)
    verdicts = None
    found = np.full(len(offsets), -1, np.int64)
    if headers is not None:
        at = np.searchsorted(headers.positions, positions, "right") - 1
        is_start = at >= 0
        is_start[is_start] = headers.positions[at[is_start]] == positions[is_start]
        found[is_start] = headers.lasts[at[is_start]]
        verdicts = rises & (found == offsets)
    listing = _index(
        path,
        OFFSET_INDEX,
        "offset index",
        entries,
        (Column("entry", True), Column("offset", True), Column("position", True)),
        verdicts,
        np.flatnonzero((offsets >= request.from_offset) & (offsets < request.to_offset)),
        lambda slot: (str(slot), str(offsets[slot]), str(positions[slot])),
        lambda slot: {"offset": int(offsets[slot]), "position": int(positions[slot])},
    )
    for slot in np.flatnonzero(~rises).tolist():
        listing.add(Fault(f"entry {slot} does not rise above the one before it", slot * 8, REBUILD))
    for slot in np.flatnonzero(rises & (found != offsets)).tolist() if headers is not None else ():
        there = f"ends with offset {found[slot]}" if found[slot] >= 0 else "does not start"
        what = f"entry {slot} leads offset {offsets[slot]} to position {positions[slot]}, where a batch {there}"
        listing.add(Fault(what, slot * 8, REBUILD))
    return listing


def time_index(path: Path, request: IndexRequest) -> Listing:
    """.timeindex: timestamp and offset."""
    entries = _entries(path, TIME_ENTRY)
    times = entries.rows["timestamp"].astype(np.int64)
    offsets = entries.rows["relative_offset"].astype(np.int64) + (_base_offset(path) or 0)
    headers = _headers_beside(path, TIME_INDEX) if request.check else None
    rises = np.ones(len(times), bool)
    rises[1:] = (times[1:] > times[:-1]) & (offsets[1:] >= offsets[:-1])
    verdicts = None
    found = np.full(len(times), -2, np.int64)
    if headers is not None:
        at = np.searchsorted(headers.lasts, offsets)
        is_there = at < len(headers.lasts)
        is_there[is_there] = headers.bases[at[is_there]] <= offsets[is_there]
        found[is_there] = headers.max_timestamps[at[is_there]]
        verdicts = rises & (found == times)
    listing = _index(
        path,
        TIME_INDEX,
        "time index",
        entries,
        (Column("entry", True), Column("time"), Column("timestamp", True), Column("offset", True)),
        verdicts,
        np.flatnonzero((offsets >= request.from_offset) & (offsets < request.to_offset)),
        lambda slot: (str(slot), time_of(int(times[slot])), str(times[slot]), str(offsets[slot])),
        lambda slot: {"timestamp": int(times[slot]), "offset": int(offsets[slot])},
    )
    for slot in np.flatnonzero(~rises).tolist():
        listing.add(
            Fault(f"entry {slot} does not rise above the one before it", slot * 12, REBUILD)
        )
    for slot in np.flatnonzero(rises & (found != times)).tolist() if headers is not None else ():
        there = f"has {found[slot]}" if found[slot] > -2 else "is not in the log"
        what = f"entry {slot} gives timestamp {times[slot]} to offset {offsets[slot]}, whose batch {there}"
        listing.add(Fault(what, slot * 12, REBUILD))
    return listing


def txn_index(path: Path, request: IndexRequest) -> Listing:
    """.txnindex: aborted transactions in the order of their markers."""
    names = ("producer_id", "first_offset", "last_offset", "last_stable_offset")
    dtype = np.dtype([("version", ">i2"), *((name, ">i8") for name in names)])
    data = memoryview(disk.map_file(path))
    count = len(data) // TXN_ENTRY.size
    raw = np.frombuffer(data[: count * TXN_ENTRY.size], dtype)
    faults = []
    if len(data) % TXN_ENTRY.size:
        what = f"{len(data):,} bytes are not a multiple of {TXN_ENTRY.size}"
        faults.append(Fault(what, count * TXN_ENTRY.size, REBUILD_TXN))
    entries = _Entries(raw, len(data), 0, faults)
    firsts, lasts = raw["first_offset"].astype(np.int64), raw["last_offset"].astype(np.int64)
    is_sane = (raw["version"] == 0) & (raw["producer_id"] >= 0) & (firsts >= 0) & (firsts <= lasts)
    is_sane[1:] &= lasts[1:] > lasts[:-1]
    headers = _headers_beside(path, TXN_INDEX) if request.check else None
    verdicts = None
    has_marker = np.ones(count, bool)
    if headers is not None:
        at = np.searchsorted(headers.bases, lasts)
        has_marker = at < len(headers.bases)
        here = at[has_marker]
        has_marker[has_marker] = (
            (headers.bases[here] == lasts[has_marker])
            & (headers.producers[here] == raw["producer_id"][has_marker])
            & (headers.control_types[here] == ControlType.ABORT)
        )
        verdicts = is_sane & has_marker
    listing = _index(
        path,
        TXN_INDEX,
        "transaction index",
        entries,
        tuple(
            Column(title, True)
            for title in ("entry", "producer", "first_offset", "last_offset", "last_stable_offset")
        ),
        verdicts,
        np.flatnonzero((lasts >= request.from_offset) & (firsts < request.to_offset)),
        lambda slot: (str(slot), *(str(int(raw[name][slot])) for name in names)),
        lambda slot: {
            "version": int(raw["version"][slot]),
            "producerId": int(raw["producer_id"][slot]),
            "firstOffset": int(firsts[slot]),
            "lastOffset": int(lasts[slot]),
            "lastStableOffset": int(raw["last_stable_offset"][slot]),
        },
    )
    for slot in np.flatnonzero(~is_sane).tolist():
        what = f"entry {slot} cannot be one: its version, its producer, or its offsets, which must rise"
        listing.add(Fault(what, slot * TXN_ENTRY.size, REBUILD_TXN))
    for slot in np.flatnonzero(is_sane & ~has_marker).tolist():
        what = (
            f"entry {slot} names an ABORT marker of producer {int(raw['producer_id'][slot])} at offset {lasts[slot]}, "
            "which the log does not have"
        )
        listing.add(Fault(what, slot * TXN_ENTRY.size, REBUILD_TXN))
    return listing


def _simple(
    path: Path,
    kind: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    documents: Sequence[dict[str, Any]],
    summary: str,
) -> Listing:
    def cells(start: int, stop: int) -> Iterable[tuple[str, ...]]:
        return (tuple(row) for row in rows[start:stop])

    def fields(start: int, stop: int) -> Iterable[dict[str, Any]]:
        return documents[start:stop]

    size = len(disk.read_file(path))
    return Listing(
        click.format_filename(path), kind, size, tuple(columns), len(rows), cells, fields, [summary]
    )


def _broken(path: Path, kind: str, what: str, advice: str) -> Listing:
    listing = _simple(path, kind, (Column("entry"),), (), (), f"not readable as a {kind}")
    listing.add(Fault(what, advice=advice))
    return listing


def snapshot(path: Path, _: IndexRequest) -> Listing:
    """.snapshot: what was known of each producer, as Kafka's dump tool names it."""
    kind = "producer snapshot"
    try:
        producers = decode_snapshot(disk.read_file(path))
    except CorruptFileError as fault:
        return _broken(
            path, kind, fault.what, "Remove it: an older one and the log behind it say the same"
        )
    documents, rows = [], []
    for row in producers:
        has_batch = int(row["last_offset"]) >= 0
        last, delta = int(row["last_sequence"]), int(row["offset_delta"])
        first = sequence_after(last, -delta) if has_batch else None
        open_from = int(row["current_txn_first_offset"])
        documents.append(
            {
                "producerId": int(row["producer_id"]),
                "producerEpoch": int(row["producer_epoch"]),
                "coordinatorEpoch": int(row["coordinator_epoch"]),
                "currentTxnFirstOffset": open_from if open_from >= 0 else None,
                "lastTimestamp": int(row["timestamp"]),
                "firstSequence": first,
                "lastSequence": last if has_batch else None,
                "lastOffset": int(row["last_offset"]) if has_batch else None,
                "offsetDelta": delta if has_batch else None,
                "timestamp": int(row["timestamp"]) if has_batch else None,
            }
        )
        rows.append(
            (
                str(row["producer_id"]),
                str(row["producer_epoch"]),
                "-" if first is None else span(first, last),
                span(int(row["last_offset"]) - delta, int(row["last_offset"]))
                if has_batch
                else "-",
                time_of(int(row["timestamp"])),
                str(open_from) if open_from >= 0 else "-",
                str(row["coordinator_epoch"]) if int(row["coordinator_epoch"]) >= 0 else "-",
            )
        )
    offset = _base_offset(path)
    opened = sum(document["currentTxnFirstOffset"] is not None for document in documents)
    before = "" if offset is None else f" of all below offset {offset}"
    return _simple(
        path,
        kind,
        (
            Column("producer", True),
            Column("epoch", True),
            Column("sequence"),
            Column("offsets"),
            Column("time"),
            Column("open_from", True),
            Column("coordinator", True),
        ),
        rows,
        documents,
        f"{plural(len(rows), 'producer')}{before}, {opened:,} with an open transaction; checksum ok",
    )


_CHECKPOINTS: Final = {
    checkpoint.RECOVERY_POINT: ("recovery points", "what lies below is known to be on disk"),
    checkpoint.HIGH_WATERMARK: ("high watermarks", "what lies below is replicated"),
    checkpoint.LOG_START: ("log starts", "what lies below was deleted"),
    checkpoint.CLEANER: ("cleaner offsets", "what lies below was compacted"),
}


def offsets(path: Path, _: IndexRequest) -> Listing:
    """One of the four checkpoints of a data directory."""
    kind, meaning = _CHECKPOINTS[path.name]
    try:
        found = sorted(checkpoint.read_offsets(str(path)).items())
    except CorruptFileError as fault:
        return _broken(path, kind, fault.what, "oncelog verify says what it is good for")
    return _simple(
        path,
        kind,
        (Column("topic"), Column("partition", True), Column("offset", True)),
        [(key.topic, str(key.partition), str(offset)) for key, offset in found],
        [
            {"topic": key.topic, "partition": key.partition, "offset": offset}
            for key, offset in found
        ],
        f"{plural(len(found), 'partition')}: {meaning}",
    )


def leader_epochs(path: Path, _: IndexRequest) -> Listing:
    """leader-epoch-checkpoint: which leader wrote from which offset on."""
    kind = "leader epochs"
    try:
        found = checkpoint.read_epochs(str(path))
    except CorruptFileError as fault:
        return _broken(path, kind, fault.what, "The epochs can be found in the batches again")
    return _simple(
        path,
        kind,
        (Column("epoch", True), Column("start_offset", True)),
        [(str(entry.epoch), str(entry.start_offset)) for entry in found],
        [{"epoch": entry.epoch, "startOffset": entry.start_offset} for entry in found],
        plural(len(found), "leader epoch"),
    )


def _pairs(path: Path, kind: str, pairs: dict[str, str], summary: str) -> Listing:
    return _simple(
        path,
        kind,
        (Column("name"), Column("value")),
        list(pairs.items()),
        [{"name": name, "value": value} for name, value in pairs.items()],
        summary,
    )


def partition_metadata(path: Path, _: IndexRequest) -> Listing:
    """partition.metadata: the id of the topic."""
    kind = "partition metadata"
    try:
        topic_id = checkpoint.read_topic_id(str(path)) or ""
    except CorruptFileError as fault:
        return _broken(path, kind, fault.what, "Copy it from another partition of the topic")
    return _pairs(path, kind, {"version": "0", "topic_id": topic_id}, "the partition's topic")


def properties(path: Path, _: IndexRequest) -> Listing:
    """meta.properties: whose directory this is."""
    found = checkpoint.read_properties(str(path))
    kind = "directory properties"
    if not found:
        return _broken(path, kind, "it holds no key=value lines", "Restore it from a copy")
    return _pairs(
        path, kind, found, f"{plural(len(found), 'property', 'properties')} of the directory"
    )


def clean_shutdown(path: Path, _: IndexRequest) -> Listing:
    """.kafka_cleanshutdown: that there was a clean stop."""
    epoch = checkpoint.read_clean_shutdown(str(path))
    return _pairs(
        path,
        "clean shutdown marker",
        {"broker_epoch": str(epoch)},
        "the directory was stopped cleanly: its files are taken at their word",
    )


BY_SUFFIX: Final[dict[str, Callable[[Path, IndexRequest], Listing]]] = {
    OFFSET_INDEX: offset_index,
    TIME_INDEX: time_index,
    TXN_INDEX: txn_index,
    SNAPSHOT: snapshot,
}
BY_NAME: Final[dict[str, Callable[[Path, IndexRequest], Listing]]] = {
    **dict.fromkeys(_CHECKPOINTS, offsets),
    checkpoint.LEADER_EPOCH: leader_epochs,
    checkpoint.PARTITION_METADATA: partition_metadata,
    checkpoint.META_PROPERTIES: properties,
    checkpoint.CLEAN_SHUTDOWN: clean_shutdown,
}
