"""Proves a directory sound, and changes nothing: every batch, and everything that is derived from them.

A log is read once, window by window: checksums and records by native code, offsets that rise, and beside them a
replay that tells what indexes, snapshots and leader epochs ought to hold. Damage is what a reader or a broker would
trip over; a note is what is unusual and legal. From the first damaged batch on nothing derived is judged, since
recovery cuts there.
"""

from __future__ import annotations

import bisect
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from .._native.batch import scan, scan_prefix
from .._native.segment import check_records
from ..base.disk import exists, list_directories, list_files, map_file
from ..base.errors import (
    BatchError,
    CorruptFileError,
    CorruptRecordError,
    InvalidTopicError,
    TruncatedBatchError,
)
from ..log.checkpoint import (
    CLEAN_SHUTDOWN,
    CLEANER,
    HIGH_WATERMARK,
    LOG_START,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINT,
    read_clean_shutdown,
    read_offsets,
    read_properties,
    read_topic_id,
)
from ..segment.compression import decompressor
from ..segment.names import (
    CLEANED,
    DELETED,
    LOG,
    SNAPSHOT,
    SWAP,
    TopicPartition,
    file_name,
    parse_directory,
    parse_file,
)
from ..segment.segment import RELATIVE_OFFSET_MAX, next_offset_of
from .data_directory import METADATA_TOPIC
from .verify_derived import EpochCheck, OffsetIndexCheck, Replay, TimeIndexCheck, TxnIndexCheck
from .verify_report import Finding, Report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Rows = NDArray[np.void]

WINDOW_BYTES: Final = 8 << 20
# The log start of a partition that no checkpoint speaks for: anywhere.
OFFSET_END: Final = 2**63 - 1

RECOVERED: Final = "Opening the directory for writing makes it anew from the log"
REMOVE_INDEX: Final = (
    "With the broker stopped, remove the .index of this segment: the next start makes all its "
    "indexes anew from the log"
)


def is_partition(path: str) -> bool:
    """Whether a directory holds segments itself."""
    return any((parse_file(name) or (0, ""))[1] == LOG for name in list_files(path))


def partitions_in(path: str) -> dict[TopicPartition, str]:
    """Partition directories of a data directory, the controller's log among them."""
    found = {}
    for name in list_directories(path):
        try:
            key = parse_directory(name)
        except InvalidTopicError:
            continue
        if is_partition(f"{path}/{name}"):
            found[key] = f"{path}/{name}"
    return found


def bytes_of(path: str) -> int:
    """Bytes of all logs that verify() will read: what its progress adds up to."""
    if not Path(path).is_dir():
        return list_files(str(Path(path).parent)).get(Path(path).name, 0)
    places = [path] if is_partition(path) else list(partitions_in(path).values())
    sizes = (list_files(place).items() for place in places)
    return sum(
        size for files in sizes for name, size in files if (parse_file(name) or (0, ""))[1] == LOG
    )


def verify(path: str, progress: Callable[[int], None] = lambda _: None) -> Report:
    """Proves a data directory, a partition's directory, or one segment's .log with what lies beside it."""
    report = Report(path)
    place = Path(path)
    if not place.is_dir():
        parsed = parse_file(place.name)
        if parsed is None or parsed[1] != LOG:
            raise CorruptFileError("a segment is named <20 digits>.log", file=path)
        PartitionCheck(str(place.parent), "", report, progress, only=parsed[0]).run()
        report.partitions = 1
    elif is_partition(path):
        PartitionCheck(path, "", report, progress).run()
        report.partitions = 1
    else:
        _verify_directory(path, report, progress)
    return report


def _verify_directory(path: str, report: Report, progress: Callable[[int], None]) -> None:
    checks = DirectoryChecks(path, report)
    report.is_clean = checks.is_clean
    for key, directory in partitions_in(path).items():
        check = PartitionCheck(
            directory,
            f"{key.directory}/",
            report,
            progress,
            is_clean=checks.is_clean,
            recovery_point=checks.offsets[RECOVERY_POINT].get(key, 0),
            log_start_offset=checks.offsets[LOG_START].get(key, 0),
            is_controller=key.topic == METADATA_TOPIC,
        )
        check.run()
        report.partitions += 1
        checks.compare(key, check)
    checks.finish()


class DirectoryChecks:
    """The small files of a data directory, held against the logs they speak of."""

    def __init__(self, path: str, report: Report) -> None:
        self._path = path
        self._report = report
        self._seen: dict[TopicPartition, int] = {}
        self._topic_ids: dict[str, str] = {}
        self.is_clean = read_clean_shutdown(f"{path}/{CLEAN_SHUTDOWN}") is not None
        self.offsets: dict[str, dict[TopicPartition, int]] = {}
        for name in (RECOVERY_POINT, HIGH_WATERMARK, LOG_START, CLEANER):
            try:
                self.offsets[name] = read_offsets(f"{path}/{name}")
            except CorruptFileError as error:
                self.offsets[name] = {}
                report.add(Finding(name, error.what, _CHECKPOINT_ADVICE[name]))
        properties = read_properties(f"{path}/{META_PROPERTIES}")
        if exists(f"{path}/{META_PROPERTIES}") and properties.get("version") not in ("0", "1"):
            report.add(
                Finding(
                    META_PROPERTIES,
                    "names no known version",
                    "Restore it from a copy of the directory",
                )
            )

    def compare(self, key: TopicPartition, check: PartitionCheck) -> None:
        """Bounds of what the checkpoints say of one partition."""
        self._seen[key] = check.end_offset
        if check.topic_id is not None:
            known = self._topic_ids.setdefault(key.topic, check.topic_id)
            if known != check.topic_id:
                self._report.add(
                    Finding(
                        f"{key.directory}/{PARTITION_METADATA}",
                        f"has topic id {check.topic_id}, another partition of the topic has {known}",
                        "One of them belongs to a topic that was deleted: move it out of the directory",
                    )
                )
        if check.is_cut:
            return  # the log ends early, and that was told
        for name, what in (
            (RECOVERY_POINT, "recovery point"),
            (HIGH_WATERMARK, "high watermark"),
            (LOG_START, "log start"),
            (CLEANER, "cleaner's offset"),
        ):
            offset = self.offsets[name].get(key)
            if offset is None:
                continue
            if not 0 <= offset <= check.end_offset:
                self._report.add(
                    Finding(
                        name,
                        f"the {what} of {key.directory} is {offset}, but its log ends at {check.end_offset}",
                        "Either the end of the log is lost, or this file is wrong: compare with a replica",
                        offset=offset,
                    )
                )
            elif name == RECOVERY_POINT and self.is_clean and offset < check.end_offset:
                self._report.note(
                    name,
                    f"the {what} of {key.directory} is {offset} after a clean stop, its log ends at {check.end_offset}",
                )

    def finish(self) -> None:
        for name, offsets in self.offsets.items():
            strays = sorted(key.directory for key in offsets if key not in self._seen)
            if strays:
                more = f" and {len(strays) - 3} more" if len(strays) > 3 else ""
                self._report.note(
                    name, f"names partitions that are not here: {', '.join(strays[:3])}{more}"
                )


_CHECKPOINT_ADVICE: Final = {
    RECOVERY_POINT: "Remove it: the next start then proves every log from its first segment on",
    HIGH_WATERMARK: "Remove it: it is written anew, and replicas find their high watermark again",
    LOG_START: "Remove it: records that were deleted by request come back up to the first segment's start",
    CLEANER: "Remove it: compaction then starts from the beginning",
}


class PartitionCheck:
    """One partition's files, in the order of their offsets."""

    def __init__(
        self,
        directory: str,
        prefix: str,
        report: Report,
        progress: Callable[[int], None],
        *,
        is_clean: bool = False,
        recovery_point: int = 0,
        log_start_offset: int = OFFSET_END,
        is_controller: bool = False,
        only: int | None = None,
    ) -> None:
        self.directory = directory
        self.prefix = prefix
        self.report = report
        self.end_offset = 0
        self.log_start_offset = log_start_offset
        self.is_cut = False  # a damaged batch ended what counts
        self.topic_id: str | None = None
        self._progress = progress
        self._is_clean = is_clean
        self._recovery_point = recovery_point
        self._is_controller = is_controller
        self._only = only
        self._sizes = list_files(directory)
        self._bases = self._find_bases()
        self._missing = 0
        self._gaps = 0

    def _find_bases(self) -> list[int]:
        parsed = (parse_file(name) for name in self._sizes)
        bases = sorted(found[0] for found in parsed if found and found[1] == LOG)
        return bases if self._only is None else [base for base in bases if base == self._only]

    def name(self, base_offset: int, suffix: str) -> str:
        return f"{self.prefix}{file_name(base_offset, suffix)}"

    def path(self, base_offset: int, suffix: str) -> str:
        return f"{self.directory}/{file_name(base_offset, suffix)}"

    def has(self, base_offset: int, suffix: str) -> bool:
        return file_name(base_offset, suffix) in self._sizes

    def run(self) -> None:
        """Everything, in one walk."""
        if not self._bases:
            return
        self._check_names()
        self.end_offset = self._bases[0]
        snapshots = [] if self._is_controller else self._snapshots()
        replay = Replay(self, snapshots)
        epochs = EpochCheck(self)
        for index, base in enumerate(self._bases):
            following = self._bases[index + 1] if index + 1 < len(self._bases) else None
            SegmentCheck(self, base, following, replay, epochs).run()
        replay.finish()
        epochs.finish()
        if self._missing:
            self.report.note(
                f"{self.prefix}" or self.directory,
                f"{self._missing:,} offsets are missing in {self._gaps:,} places, as compaction leaves them",
            )

    def _snapshots(self) -> list[int]:
        parsed = (parse_file(name) for name in self._sizes)
        found = sorted(part[0] for part in parsed if part and part[1] == SNAPSHOT)
        if self._only is None:
            return found
        above = [base for base in found if base > self._only]
        return [base for base in found if base == self._only] + above[:1]

    def _check_names(self) -> None:
        if self._only is not None:
            return
        for name in sorted(self._sizes):
            parsed = parse_file(name)
            if name.endswith((DELETED, CLEANED, SWAP)):
                self.report.note(
                    f"{self.prefix}{name}", "is on its way out or in: the next start finishes that"
                )
            elif parsed and parsed[1] not in (LOG, SNAPSHOT) and parsed[0] not in self._bases:
                self.report.note(f"{self.prefix}{name}", "has no .log beside it")
        for base in self._bases[1:]:
            if not self.has(base, SNAPSHOT) and not self._is_controller:
                self.report.note(
                    self.name(base, SNAPSHOT), "is missing: opening replays more of the log instead"
                )
        try:
            self.topic_id = read_topic_id(f"{self.directory}/{PARTITION_METADATA}")
        except CorruptFileError as error:
            self.report.add(
                Finding(
                    f"{self.prefix}{PARTITION_METADATA}",
                    error.what,
                    "Copy it from another partition of the topic",
                )
            )

    def is_recovered(self, following: int | None) -> bool:
        """Whether the next opening proves this segment and makes its derived files anew."""
        return not self._is_clean and (following is None or following > self._recovery_point)

    def bases_between(self, start: int, end: int) -> list[int]:
        """Base offsets of the segments that may hold offsets from start up to end."""
        first = max(bisect.bisect_right(self._bases, start) - 1, 0)
        return self._bases[first : bisect.bisect_left(self._bases, end)]

    @property
    def is_controller(self) -> bool:
        return self._is_controller

    @property
    def has_neighbours(self) -> bool:
        """False for a .log that is looked at alone."""
        return self._only is None

    def note_gaps(self, count: int, missing: int) -> None:
        self._gaps += count
        self._missing += missing

    @property
    def has_gaps(self) -> bool:
        return self._gaps > 0

    def advance(self, count: int) -> None:
        self._progress(count)


class SegmentCheck:
    """One .log and its indexes: proves the batches, and shows each window to all who derive from it."""

    def __init__(
        self,
        partition: PartitionCheck,
        base_offset: int,
        following: int | None,
        replay: Replay,
        epochs: EpochCheck,
    ) -> None:
        self._partition = partition
        self._report = partition.report
        self.base_offset = base_offset
        self._following = following
        self._replay = replay
        self._epochs = epochs
        self._name = partition.name(base_offset, LOG)
        self._path = partition.path(base_offset, LOG)
        self._expected = base_offset
        self._is_recovered = partition.is_recovered(following)

    def run(self) -> None:
        partition, base = self._partition, self.base_offset
        # What points into a log is read before it, so that a log that grows meanwhile does no harm.
        is_active = self._following is None
        advice = RECOVERED if self._is_recovered else REMOVE_INDEX
        may_be_zero = self._is_recovered
        checks: list[OffsetIndexCheck | TimeIndexCheck] = []
        if not partition.is_controller:
            checks = [
                OffsetIndexCheck(partition, base, advice, may_end_in_zeros=may_be_zero),
                TimeIndexCheck(
                    partition,
                    base,
                    advice,
                    may_end_in_zeros=may_be_zero,
                    is_sealed=not (is_active and self._is_recovered),
                ),
            ]
        transactions = TxnIndexCheck(partition, base, advice, self._replay)
        buffer = map_file(self._path)
        self._report.segments += 1
        self._report.bytes += len(buffer)
        was_cut = partition.is_cut
        for rows in self._windows(memoryview(buffer)):
            self._report.batches += len(rows)
            self._report.records += int(rows["record_count"].sum(dtype=np.int64))
            is_judged = not partition.is_cut
            kept = rows[: self._count_sound(memoryview(buffer), rows)]
            if len(kept) and is_judged:
                for check in checks:
                    check.window(kept)
                self._epochs.window(kept)
                transactions.window(kept, self._replay.window(kept))
                partition.end_offset = next_offset_of(kept)
        if was_cut:
            return
        log_bytes = len(buffer)
        for check in checks:
            check.finish(log_bytes, is_cut=partition.is_cut)
        if not partition.is_controller:
            transactions.finish(
                is_exact=self._replay.is_exact and not partition.has_gaps, is_cut=partition.is_cut
            )

    def _windows(self, view: memoryview) -> Iterator[Rows]:
        position = 0
        while position < len(view):
            rows, end, fault = scan_prefix(
                view, position, bytes_max=WINDOW_BYTES, check_crc=False, file=self._name
            )
            if len(rows):
                yield scan(view[:end], position, file=self._name)
            self._partition.advance(end - position)
            if fault is not None:
                self._tell_end(view, end, fault)
                return
            position = end

    def _tell_end(self, view: memoryview, end: int, fault: BatchError) -> None:
        rest = len(view) - end
        self._partition.advance(rest)
        what = f"{fault.what}; {rest:,} bytes to the end of the file cannot be read"
        if isinstance(fault, TruncatedBatchError):
            what = f"the file ends inside a batch, {rest:,} bytes after its start"
        if _is_zero(view[end:]):
            if self._following is None and self._is_recovered:
                # In "fsync" durability a file is longer than its log while it is written; opening goes on before them.
                self._report.note(self._name, f"ends in zeros, {rest:,} bytes: reserved ahead")
                return
            what = f"only zeros up to the end, {rest:,} bytes: reserved ahead, or lost in a crash"
        self._add(CorruptRecordError(what, position=end))

    def _add(self, fault: BatchError) -> None:
        first_lost = self._expected
        if self._partition.is_cut:
            advice = "It lies behind the first damage, where recovery ends the log"
        elif self._is_recovered:
            advice = (
                f"Recovery ends the log here: offsets from {first_lost} on are given up. "
                "If they matter, restore the file from a replica or a copy first"
            )
        else:
            advice = (
                "A broker does not look here when it starts, and readers fail at offset "
                f"{first_lost}: restore the file from a replica or a copy"
            )
        self._report.add(
            Finding(self._name, fault.what, advice, fault.position, max(fault.base_offset, -1))
        )
        self._partition.is_cut = True

    def _count_sound(self, view: memoryview, rows: Rows) -> int:
        """How many rows come before the first damage; all damage is told."""
        sound = len(rows)
        faults = {**self._bad_records(view, rows), **self._bad_offsets(rows)}
        ends = rows["base_offset"] + rows["last_offset_delta"] + 1
        for index in sorted(faults):
            self._expected = int(ends[index - 1]) if index else self._expected
            self._add(faults[index])
            sound = min(sound, index)
        if len(rows):
            self._expected = int(ends[-1])
        return sound

    def _bad_records(self, view: memoryview, rows: Rows) -> dict[int, BatchError]:
        """Batches whose checksum or whose records are wrong, by row."""
        found: dict[int, BatchError] = {
            index: CorruptRecordError(
                "the checksum does not match the batch",
                position=int(rows["position"][index]),
                base_offset=int(rows["base_offset"][index]),
            )
            for index in np.flatnonzero(rows["crc_ok"] == 0).tolist()
        }
        good = np.flatnonzero(rows["crc_ok"] != 0)
        while len(good):
            try:
                check_records(view, rows[good], decompress=decompressor(), file=self._name)
                break
            except BatchError as fault:
                # The positions rise, so the batch is found by its own and the rest goes on behind it.
                failed = int(np.searchsorted(rows["position"][good], fault.position))
                if failed >= len(good) or rows["position"][good[failed]] != fault.position:
                    raise
                found[int(good[failed])] = fault
                good = good[failed + 1 :]
        return found

    def _bad_offsets(self, rows: Rows) -> dict[int, BatchError]:
        """Batches whose offsets do not follow, and, as a side effect, the gaps between those that do."""
        bases = rows["base_offset"]
        ends = bases + rows["last_offset_delta"] + 1
        expected = np.concatenate(([self._expected], ends[:-1]))
        limit = self.base_offset + RELATIVE_OFFSET_MAX + 1
        if self._following is not None:
            limit = min(limit, self._following)
        found: dict[int, BatchError] = {}
        for index in np.flatnonzero((bases < expected) | (ends <= bases) | (ends > limit)).tolist():
            base, end = int(bases[index]), int(ends[index])
            what = f"offsets go back: {int(expected[index]) - 1} is followed by {base}"
            if base >= expected[index]:
                what = f"offsets {base} to {end - 1} do not belong here: the segment ends before {limit}"
            found[index] = CorruptRecordError(
                what, position=int(rows["position"][index]), base_offset=base
            )
        inside = rows["last_offset_delta"].astype(np.int64) + 1 - rows["record_count"]
        missing = np.maximum(bases - expected, 0) + np.maximum(inside, 0)
        if not self._partition.is_cut:
            self._partition.note_gaps(int(np.count_nonzero(missing)), int(missing.sum()))
        return found


def _is_zero(view: memoryview) -> bool:
    return not any(
        np.frombuffer(view[start : start + WINDOW_BYTES], np.uint8).any()
        for start in range(0, len(view), WINDOW_BYTES)
    )
