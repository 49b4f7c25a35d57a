"""Small text files beside the logs, each replaced whole.

recovery-point-offset-checkpoint, replication-offset-checkpoint (high watermarks),
log-start-offset-checkpoint, cleaner-offset-checkpoint
        in the data directory: a line with version 0, a line with the count of rows, then rows
        ``topic partition offset``
leader-epoch-checkpoint
        in a partition's directory: version 0, the count, then rows ``epoch start_offset``, both rising
partition.metadata
        in a partition's directory: ``version: 0`` and ``topic_id: <22 characters of base64url>``
meta.properties
        in the data directory: Java properties with cluster.id, node.id, directory.id, version
.kafka_cleanshutdown
        in the data directory after a clean stop: ``{"version":0,"brokerEpoch":n}``
"""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from ..base.disk import exists, read_file
from ..base.errors import CorruptFileError
from ..segment.names import OFFSET_MAX, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..base.disk import Disk

RECOVERY_POINT: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARK: Final = "replication-offset-checkpoint"
LOG_START: Final = "log-start-offset-checkpoint"
CLEANER: Final = "cleaner-offset-checkpoint"
LEADER_EPOCH: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
META_PROPERTIES: Final = "meta.properties"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
VERSION: Final = "0"


class EpochEntry(NamedTuple):
    """A leader epoch and the offset of its first batch."""

    epoch: int
    start_offset: int


def _is_number(text: str, least: int = 0) -> bool:
    """Whether a text is an int64 of at least this."""
    digits = text.removeprefix("-")
    is_plain = digits.isascii() and digits.isdigit() and len(digits) <= 19
    return is_plain and least <= int(text) <= OFFSET_MAX


def _rows(path: str) -> list[list[str]]:
    """The rows of a checkpoint; none for a file that is missing or empty."""
    if not exists(path):
        return []
    try:
        lines = read_file(path).decode().split("\n")
    except UnicodeDecodeError as error:
        raise CorruptFileError("the file is not text", file=path) from error
    if lines == [""]:
        return []
    if lines[-1].strip():  # every line ends in a newline, so this one may be half a number
        raise CorruptFileError("the last line was cut off", file=path)
    if lines[0].strip() != VERSION:
        raise CorruptFileError(f"unknown version {lines[0].strip()!r}", file=path)
    if len(lines) < 2 or not _is_number(lines[1].strip()):
        raise CorruptFileError("the count of rows is missing", file=path)
    rows = [line.split() for line in lines[2:] if line.strip()]
    if len(rows) != int(lines[1]):
        raise CorruptFileError(f"{len(rows)} rows where {lines[1].strip()} are promised", file=path)
    return rows


def _write(disk: Disk, path: str, rows: Iterable[str]) -> None:
    lines = list(rows)
    disk.replace(path, "".join(f"{line}\n" for line in (VERSION, len(lines), *lines)).encode())


def read_offsets(path: str) -> dict[TopicPartition, int]:
    """Offsets by partition of one of the four checkpoints in a data directory."""
    found = {}
    for row in _rows(path):
        if len(row) != 3 or not _is_number(row[1]) or not _is_number(row[2], -1):
            raise CorruptFileError(f"a row reads {' '.join(row)!r}", file=path)
        found[TopicPartition(row[0], int(row[1]))] = int(row[2])
    return found


def write_offsets(disk: Disk, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    _write(
        disk,
        path,
        (f"{key.topic} {key.partition} {value}" for key, value in sorted(offsets.items())),
    )


def read_epochs(path: str) -> list[EpochEntry]:
    """Leader epochs of a partition, rising."""
    found: list[EpochEntry] = []
    for row in _rows(path):
        if len(row) != 2 or not all(_is_number(part) for part in row):
            raise CorruptFileError(f"a row reads {' '.join(row)!r}", file=path)
        found.append(EpochEntry(int(row[0]), int(row[1])))
    for left, right in itertools.pairwise(found):
        if left.epoch >= right.epoch or left.start_offset >= right.start_offset:
            raise CorruptFileError("epochs and their offsets do not rise", file=path)
    return found


def write_epochs(disk: Disk, path: str, epochs: Iterable[EpochEntry]) -> None:
    _write(disk, path, (f"{entry.epoch} {entry.start_offset}" for entry in epochs))


def read_topic_id(path: str) -> str | None:
    """The topic id in a partition.metadata; None if there is no such file."""
    if not exists(path):
        return None
    fields = dict(
        line.split(": ", 1)
        for line in read_file(path).decode(errors="replace").splitlines()
        if ": " in line
    )
    if fields.get("version") != VERSION or len(fields.get("topic_id", "")) != 22:
        raise CorruptFileError("version 0 and a topic id are expected", file=path)
    return fields["topic_id"]


def write_topic_id(disk: Disk, path: str, topic_id: str) -> None:
    disk.replace(path, f"version: {VERSION}\ntopic_id: {topic_id}".encode())


def read_properties(path: str) -> dict[str, str]:
    """Java properties, as far as Kafka writes them: key=value lines and comments."""
    if not exists(path):
        return {}
    lines = read_file(path).decode(errors="replace").splitlines()
    pairs = (
        line.split("=", 1) for line in lines if "=" in line and not line.startswith(("#", "!"))
    )
    return {key.strip(): value.strip() for key, value in pairs}


def write_properties(disk: Disk, path: str, pairs: Mapping[str, str], now_ms: int) -> None:
    """Java properties as Kafka stores them: an empty comment, the time, and a line for each pair."""
    written = datetime.fromtimestamp(now_ms // 1000, UTC).strftime("%a %b %d %H:%M:%S UTC %Y")
    lines = ("#", f"#{written}", *(f"{key}={value}" for key, value in pairs.items()), "")
    disk.replace(path, "\n".join(lines).encode())


def read_clean_shutdown(path: str) -> int | None:
    """The broker epoch of a clean stop; None if there was none, -1 if the marker does not say."""
    if not exists(path):
        return None
    try:
        return int(json.loads(read_file(path)).get("brokerEpoch", -1))
    except (ValueError, AttributeError, TypeError):
        return -1  # the marker's presence is what counts


def write_clean_shutdown(disk: Disk, path: str, broker_epoch: int = -1) -> None:
    disk.replace(
        path,
        json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode(),
    )
