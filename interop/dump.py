"""What Kafka's DumpLogSegments prints for our files, beside what it would print if it saw what we see."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from oncelog._native.txn_index import ENTRY_DTYPE
from oncelog.partition.producer_snapshot import decode_snapshot
from oncelog.segment.batch import (
    Attributes,
    Codec,
    ControlType,
    control_record,
    records,
    scan,
    sequence_after,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .kafka import Kafka

DATA: Final = (".log",)
INDEXES: Final = (".index", ".timeindex")
OTHERS: Final = (".txnindex", ".snapshot")

DUMPING: Final = re.compile(rb"^Dumping (\S+)\n", re.MULTILINE)
ENTRY: Final = re.compile(r"^(?=baseOffset: |\| offset: )", re.MULTILINE)
# Kafka 4 says so of its own segments, too, when they do not start at offset 0, and of every compacted one.
HABIT: Final = re.compile(
    r"Non-consecutive offsets in (?:"
    r"\S+/compacted-\d+/\S+\n(?:  -?\d+ is followed by \d+\n)+|"
    r"\S+\n  -1 is followed by [1-9]\d*\n)"
)


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def log_entries(path: Path) -> Iterator[str]:
    """Batches and their records."""
    data = path.read_bytes()
    for row in scan(data, file=str(path)):
        attributes = int(row["attributes"])
        is_control = bool(attributes & Attributes.CONTROL)
        clock = "LogAppendTime" if attributes & Attributes.LOG_APPEND_TIME else "CreateTime"
        first = int(row["base_sequence"])
        last = sequence_after(first, int(row["last_offset_delta"])) if first >= 0 else -1
        horizon = "OptionalLong.empty"
        if attributes & Attributes.DELETE_HORIZON:
            horizon = f"OptionalLong[{row['base_timestamp']}]"
        codec = Codec(attributes & Attributes.CODEC_MASK).name.lower()
        yield (
            f"baseOffset: {row['base_offset']} "
            f"lastOffset: {row['base_offset'] + row['last_offset_delta']} "
            f"count: {row['record_count']} baseSequence: {first} lastSequence: {last} "
            f"producerId: {row['producer_id']} producerEpoch: {row['producer_epoch']} "
            f"partitionLeaderEpoch: {row['partition_leader_epoch']} "
            f"isTransactional: {str(bool(attributes & Attributes.TRANSACTIONAL)).lower()} "
            f"isControl: {str(is_control).lower()} deleteHorizonMs: {horizon} "
            f"position: {row['position']} {clock}: {row['max_timestamp']} size: {row['size']} "
            f"magic: 2 compresscodec: {codec} crc: {row['crc']} isvalid: true"
        )
        part = data[int(row["position"]) : int(row["position"] + row["size"])]
        for record in records(part, include_control=True):
            delta = record.offset - int(row["base_offset"])
            sequence = sequence_after(first, delta) if first >= 0 else -1
            names = ",".join(name for name, _ in record.headers)
            line = (
                f"| offset: {record.offset} {clock}: {record.timestamp} "
                f"keySize: {-1 if record.key is None else len(record.key)} "
                f"valueSize: {-1 if record.value is None else len(record.value)} "
                f"sequence: {sequence} headerKeys: [{names}]"
            )
            if is_control:
                marker = control_record(record.key, record.value)
                kind = ControlType(marker.type).name
                line += f" endTxnMarker: {kind} coordinatorEpoch: {marker.coordinator_epoch}"
            else:
                line += "" if record.key is None else f" key: {_text(record.key)}"
                line += "" if record.value is None else f" payload: {_text(record.value)}"
            yield line


def index_entries(path: Path) -> Iterator[str]:
    """Entries of an offset or a time index."""
    base, data = int(path.stem), path.read_bytes()
    if path.suffix == ".index":
        if not data:
            yield f"{path} is empty."
        for relative, position in np.frombuffer(data, [("o", ">i4"), ("p", ">i4")]):
            yield f"offset: {base + int(relative)} position: {position}"
    else:
        for timestamp, relative in np.frombuffer(data, [("t", ">i8"), ("o", ">i4")]):
            yield f"timestamp: {timestamp} offset: {base + int(relative)}"


def txn_entries(path: Path) -> Iterator[str]:
    for row in np.frombuffer(path.read_bytes(), ENTRY_DTYPE):
        yield (
            f"version: {row['version']} producerId: {row['producer_id']} "
            f"firstOffset: {row['first_offset']} lastOffset: {row['last_offset']} "
            f"lastStableOffset: {row['last_stable_offset']}"
        )


def snapshot_entries(path: Path) -> Iterator[str]:
    for row in decode_snapshot(path.read_bytes(), str(path)):
        first = int(row["current_txn_first_offset"])
        line = (
            f"producerId: {row['producer_id']} producerEpoch: {row['producer_epoch']} "
            f"coordinatorEpoch: {row['coordinator_epoch']} currentTxnFirstOffset: "
            f"{'OptionalLong.empty' if first < 0 else f'OptionalLong[{first}]'} "
            f"lastTimestamp: {row['timestamp']}"
        )
        if row["last_offset"] >= 0:
            sequence = sequence_after(int(row["last_sequence"]), -int(row["offset_delta"]))
            line += (
                f" firstSequence: {sequence} lastSequence: {row['last_sequence']} "
                f"lastOffset: {row['last_offset']} offsetDelta: {row['offset_delta']} "
                f"timestamp: {row['timestamp']}"
            )
        yield line


EXPECTED: Final = {
    ".log": log_entries,
    ".index": index_entries,
    ".timeindex": index_entries,
    ".txnindex": txn_entries,
    ".snapshot": snapshot_entries,
}


def _dumped(output: bytes) -> dict[Path, str]:
    parts = DUMPING.split(output)
    return {
        Path(name.decode()): _text(text)
        for name, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def _lines(suffix: str, text: str) -> list[str]:
    if suffix != ".log":
        return text.splitlines()
    _, *entries = ENTRY.split(text)  # before the first: "Log starting offset: n"
    return [entry.removesuffix("\n") for entry in entries]


def check(kafka: Kafka, directory: Path) -> dict[str, tuple[int, int]]:
    """Compares every file of a data directory; returns files and entries seen, by suffix."""
    seen: dict[str, tuple[int, int]] = {}
    for suffixes, options in (
        (DATA, ["--deep-iteration", "--print-data-log"]),
        (INDEXES, ["--deep-iteration"]),
        (INDEXES, ["--index-sanity-check"]),
        (OTHERS, []),
    ):
        paths = sorted(path for path in directory.glob("*/*") if path.suffix in suffixes)
        output, complaints = kafka.tool(
            "DumpLogSegments", "--files", ",".join(map(str, paths)), *options
        )
        if rest := HABIT.sub("", complaints).strip():
            raise AssertionError(f"DumpLogSegments complains:\n{rest}")
        dumped = _dumped(output)
        if set(dumped) != set(paths):
            raise AssertionError(f"not dumped: {sorted(set(paths) - set(dumped))}")
        for path, text in dumped.items():
            if "--index-sanity-check" in options:
                empty = path.suffix == ".index" and not path.stat().st_size
                if text != f"{path} {'is empty' if empty else 'passed sanity check'}.\n":
                    raise AssertionError(f"{path}: {text}")
                continue
            expected = list(EXPECTED[path.suffix](path))
            found = _lines(path.suffix, text)
            if found != expected:
                differing = [
                    pair for pair in zip(found, expected, strict=False) if pair[0] != pair[1]
                ]
                raise AssertionError(
                    f"{path}: Kafka finds {len(found)} entries, we {len(expected)}; first difference:\n"
                    + "\n".join(differing[0] if differing else ())
                )
            files, entries = seen.get(path.suffix, (0, 0))
            seen[path.suffix] = (files + 1, entries + len(found))
    return seen
