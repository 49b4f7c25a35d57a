"""One partition: the single writer that admits batches, and the reader's view of what is stable.

Duty         assigns offsets, judges producers, keeps transactions' ends, answers both isolation levels.
Concurrency  writers under ``lock``; readers take the log's segments and the published offsets once.
Crash        everything but the .log files is derived; opening replays what the last clean stop does not cover.

Offsets: log start <= last stable offset <= high watermark = log end. A read_committed reader never gets an
offset at or above the last stable one, an aborted record or a control record.
"""

from __future__ import annotations

import enum
import itertools
import threading
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .._native.abort_filter import visible_batches
from .._native.segment import check_records, stamp
from ..base.errors import (
    ClosedError,
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    KafkaStorageError,
    OffsetOutOfRangeError,
    OncelogError,
    RecordTooLargeError,
    UnexpectedAppendOffsetError,
)
from ..base.rows import ABORTED_DTYPE
from ..log.log import Log, LogOptions
from ..segment.batch import (
    Attributes,
    Codec,
    ControlType,
    decode,
    restamp,
    rewrite,
    scan,
    scan_prefix,
)
from ..segment.compression import decompressor
from ..segment.segment import next_offset_of
from .leader_epochs import LeaderEpochs
from .producer_state import ProducerState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from ..base.disk import Disk
    from ..segment.names import TopicPartition
    from ..segment.segment import Segment


class Origin(enum.Enum):
    """Who wrote a batch; only a client's word is doubted."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


class Isolation(enum.Enum):
    """How far a reader may see."""

    LOG_END = "log_end"
    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class Window(NamedTuple):
    """Batches of one segment that a reader has reached, and which of them it may see."""

    segment: Segment
    rows: NDArray[np.void]
    visible: NDArray[np.bool_] | None


class Fetched(NamedTuple):
    """Raw batches from an offset on, and what a consumer needs to filter them."""

    records: memoryview
    aborted: NDArray[np.void] | None
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


class Appended(NamedTuple):
    """Where batches went; a repeated batch is answered with where it already was."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    is_duplicate: bool


class PartitionOptions(NamedTuple):
    """Rules of one partition; names are those of Kafka's topic options."""

    log: LogOptions = LogOptions()
    max_message_bytes: int = 1048588
    is_compacted: bool = False
    uses_log_append_time: bool = False
    timestamp_before_max_ms: int = 2**63 - 1
    timestamp_after_max_ms: int = 3600 * 1000
    compression: Codec | None = None  # None keeps the producer's


class Partition:
    """A partition's log, opened for writing (with a disk) or for reading alone (without)."""

    def __init__(
        self,
        key: TopicPartition,
        directory: str,
        options: PartitionOptions,
        disk: Disk | None,
        *,
        now_ms: int,
        recovery_point: int | None = None,
        is_clean: bool = True,
        log_start_offset: int = 0,
    ) -> None:
        self.key = key
        self.directory = directory
        self.options = options
        self.lock = threading.RLock()
        self.log = Log(directory, options.log, disk)
        self.epochs = LeaderEpochs(directory, disk)
        self.producers = ProducerState(self.log)
        self.damage: list[OncelogError] = []  # what recovery found and cut
        self._disk = disk
        self._offline: BaseException | None = None
        self._is_closed = False
        self._state_loaded = False
        self._checked: dict[int, set[int]] = {}
        self.log_start_offset = max(log_start_offset, self.log.start_offset)
        self.recovery_point = recovery_point or 0
        if not self.log.segments:
            if disk is not None:
                self.log.start_at(self.log_start_offset, now_ms)
            self._state_loaded = True
            self.producers.next_offset = self.log_start_offset
        elif not is_clean:
            self._recover(self.recovery_point, now_ms)
        elif self.epochs.is_damaged:
            self._rebuild_epochs()

    # ------------------------------------------------------------ opening

    def _recover(self, recovery_point: int, now_ms: int) -> None:
        """Proves everything from the recovery point on; the first bad batch ends the log."""
        suspects = self.log.from_offset(recovery_point)
        self.producers.load(suspects[0].base_offset)
        self.producers.catch_up(suspects[0].base_offset)
        if self._disk is not None:
            self.producers.remove_snapshots(above=suspects[0].base_offset)
        for index, segment in enumerate(suspects):
            if self._disk is not None and index:
                self.producers.take_snapshot()
            found = segment.recover(self._replay_with_epochs)
            self.producers.next_offset = max(self.producers.next_offset, found.next_offset)
            if found.error is not None:
                self.damage.append(found.error)
                self.log.remove(suspects[index + 1 :])
                break
        self._state_loaded = True
        if self.log.end_offset < self.log_start_offset:
            self._start_over(now_ms)
        elif self._disk is not None:
            self.epochs.truncate_from_end(self.log.end_offset)
            self.producers.take_snapshot()

    def _replay_with_epochs(self, rows: NDArray[np.void]) -> NDArray[np.void]:
        self.epochs.note(rows)
        return self.producers.replay(rows)

    def _start_over(self, now_ms: int) -> None:
        """What is left lies wholly below the log start: nothing of it counts."""
        if self._disk is None:
            self.log.segments = ()
            return
        self.log.restart_at(self.log_start_offset, now_ms)
        self.producers.remove_snapshots(below=2**63 - 1)

    def _rebuild_epochs(self) -> None:
        for segment in self.log.segments:
            for rows in segment.rows():
                self.epochs.note(rows)

    def need_state(self) -> ProducerState:
        """The producers up to the log's end, read when they are first needed."""
        if not self._state_loaded:
            with self.lock:
                if not self._state_loaded:
                    self.producers.load(self.log.end_offset)
                    self.producers.catch_up(self.log.end_offset)
                    self._state_loaded = True
        return self.producers

    # ------------------------------------------------------------ offsets

    @property
    def log_end_offset(self) -> int:
        return (
            max(self.log.end_offset, self.log_start_offset)
            if self.log.segments
            else self.log_start_offset
        )

    @property
    def high_watermark(self) -> int:
        """With one replica every written batch is replicated."""
        return self.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction, else the high watermark."""
        first_open = self.need_state().table.first_open_offset
        if first_open is None:
            return self.high_watermark
        return min(max(first_open, self.log_start_offset), self.high_watermark)

    def upper_bound(self, isolation: Isolation) -> int:
        if isolation is Isolation.READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark

    # ------------------------------------------------------------ reading

    def _check_start(self, offset: int) -> None:
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRangeError(
                f"{self.key.directory} has offsets {self.log_start_offset} to {self.log_end_offset}, not {offset}"
            )

    def windows(self, start: int, end: int, isolation: Isolation) -> Iterator[Window]:
        """Batches of [start, end) as far as the isolation level allows, a window of rows at a time."""
        end = min(end, self.upper_bound(isolation))
        for segment in self.log.from_offset(start):
            if segment.base_offset >= end:
                return
            for rows in segment.rows(segment.position_of(start)):
                wanted = rows[rows["base_offset"] < end]
                if len(wanted):
                    yield Window(segment, wanted, self._visible(wanted, end, isolation))
                if len(wanted) < len(rows):
                    return

    def _visible(
        self, rows: NDArray[np.void], end: int, isolation: Isolation
    ) -> NDArray[np.bool_] | None:
        if isolation is not Isolation.READ_COMMITTED:
            return None
        aborted = self.aborted_transactions(
            int(rows["base_offset"][0]), min(end, next_offset_of(rows))
        )
        return visible_batches(rows, aborted)

    def fetch(
        self, offset: int, bytes_max: int, isolation: Isolation, *, at_least_one: bool = True
    ) -> Fetched:
        """Whole batches from the one that holds an offset on, as bytes."""
        self._check_start(offset)
        high_watermark, stable = self.high_watermark, self.last_stable_offset
        end = stable if isolation is Isolation.READ_COMMITTED else high_watermark
        records = memoryview(b"")
        if offset < end:
            records = self._slice(offset, end, bytes_max, at_least_one=at_least_one)
        aborted = None
        if isolation is Isolation.READ_COMMITTED:
            aborted = np.empty(0, ABORTED_DTYPE)
            if len(records):
                rows = scan(records, check_crc=False)
                aborted = self.aborted_transactions(offset, next_offset_of(rows))
        return Fetched(records, aborted, high_watermark, stable, self.log_start_offset)

    def _slice(self, offset: int, end: int, bytes_max: int, *, at_least_one: bool) -> memoryview:
        for segment in self.log.from_offset(offset):
            position = segment.position_of(offset)
            view = segment.view()
            if position >= len(view):
                continue
            rows, _, _ = scan_prefix(view, position, bytes_max=max(bytes_max, 1), check_crc=False)
            rows = rows[rows["base_offset"] < end]
            fits = rows["position"] + rows["size"] - position <= bytes_max
            count = int(fits.argmin()) if not fits.all() else len(rows)
            if not count and at_least_one and len(rows):
                count = 1
            if not count:
                return memoryview(b"")
            return view[position : int(rows["position"][count - 1] + rows["size"][count - 1])]
        return memoryview(b"")

    def aborted_transactions(self, fetch_offset: int, upper_bound: int) -> NDArray[np.void]:
        """Transactions with data in [fetch_offset, upper_bound) that were aborted, in the order of their markers."""
        parts = []
        for segment in self.log.from_offset(fetch_offset):
            found, indices, is_complete = self._collect(segment, fetch_offset, upper_bound)
            checked = self._checked.setdefault(segment.base_offset, set())
            if not all(
                index in checked or self._has_marker(segment, row)
                for row, index in zip(found, indices.tolist(), strict=True)
            ):
                self.rebuild_txn_index(segment)
                found, indices, is_complete = self._collect(segment, fetch_offset, upper_bound)
            checked.update(indices.tolist())
            parts.append(found)
            if is_complete:
                break
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, ABORTED_DTYPE)

    def _collect(
        self, segment: Segment, fetch_offset: int, upper_bound: int
    ) -> tuple[NDArray[np.void], NDArray[np.int64], bool]:
        try:
            return segment.txn_index.collect(fetch_offset, upper_bound)
        except CorruptRecordError:
            self.rebuild_txn_index(segment)
            return segment.txn_index.collect(fetch_offset, upper_bound)

    def _has_marker(self, segment: Segment, row: np.void) -> bool:
        """Whether the log holds the ABORT marker that an index entry names."""
        position = segment.position_of(int(row["last_offset"]))
        if position >= segment.size:
            return False
        marker = next(segment.rows(position))[0]
        return bool(
            marker["base_offset"] == row["last_offset"]
            and marker["producer_id"] == row["producer_id"]
            and marker["control_type"] == ControlType.ABORT
        )

    def rebuild_txn_index(self, segment: Segment) -> None:
        """Makes a segment's transaction index anew: the log wins."""
        state = ProducerState(self.log)
        state.load(segment.base_offset)
        state.catch_up(segment.base_offset)
        aborted = [np.empty(0, ABORTED_DTYPE), *(state.replay(rows) for rows in segment.rows())]
        self._checked.pop(segment.base_offset, None)
        if self._disk is None:
            segment.txn_index.hold(np.concatenate(aborted))
        else:
            segment.txn_index.rewrite(self._disk, np.concatenate(aborted))

    def offset_for_timestamp(
        self, timestamp: int, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record at that time or later; None if there is none to be seen."""
        end = self.upper_bound(isolation)
        for segment in self.log.from_offset(self.log_start_offset):
            if segment.size == 0 or segment.max_timestamp < timestamp:
                continue
            position = segment.position_of_timestamp(timestamp, self.log_start_offset)
            for rows in segment.rows(position):
                for columns in decode(
                    segment.view(),
                    rows[rows["max_timestamp"] >= timestamp],
                    start_offset=self.log_start_offset,
                    end_offset=end,
                    include_control=True,
                    file=segment.path(".log"),
                ):
                    late_enough = columns.timestamps >= timestamp
                    if late_enough.any():
                        first = int(late_enough.argmax())
                        return int(columns.timestamps[first]), int(columns.offsets[first])
        return None

    def max_timestamp(self) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record with the largest timestamp; None for an empty log."""
        best = max(
            (segment.max_timestamp for segment in self.log.segments if segment.size), default=-1
        )
        return self.offset_for_timestamp(best) if best >= 0 else None

    # ------------------------------------------------------------ writing

    def append_as_leader(
        self,
        data: Buffer,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        bumps_epoch: bool = True,
    ) -> Appended:
        """Admits batches in a writable buffer: judges them, stamps offsets and epoch outside the checksum, writes.

        ``bumps_epoch``: the producers bump their epoch with every transaction (transaction version 2).
        """
        rows = scan(data)
        self._check_batches(data, rows, origin, now_ms)
        data, rows, append_time = self._as_configured(data, rows, origin, now_ms)
        with self.lock:
            self._check_writable()
            duplicate = self._judge(rows, origin, bumps_epoch=bumps_epoch)
            if duplicate is not None:
                last = duplicate + int(rows["last_offset_delta"][0])
                return Appended(duplicate, last, append_time, is_duplicate=True)
            base_offset = self.log_end_offset
            stamp(data, rows, base_offset, leader_epoch)
            self._write(data, rows, now_ms)
            self.epochs.assign(leader_epoch, base_offset)
            return Appended(base_offset, self.log_end_offset - 1, append_time, is_duplicate=False)

    def append_as_follower(self, data: Buffer, *, now_ms: int) -> int:
        """Appends batches that a leader has stamped; returns the offset after the last. A cut tail is left out."""
        rows, end, error = scan_prefix(data)
        if error is not None and not len(rows):
            raise error
        if not len(rows):
            return self.log_end_offset
        with self.lock:
            self._check_writable()
            ends = rows["base_offset"] + rows["last_offset_delta"] + 1
            if (
                int(rows["base_offset"][0]) < self.log_end_offset
                or (rows["base_offset"][1:] < ends[:-1]).any()
            ):
                raise UnexpectedAppendOffsetError(
                    f"batches from offset {int(rows['base_offset'][0])} do not follow {self.log_end_offset}"
                )
            self._write(memoryview(data)[:end], rows, now_ms)
            self.epochs.note(rows)
            return self.log_end_offset

    def _check_batches(
        self, data: Buffer, rows: NDArray[np.void], origin: Origin, now_ms: int
    ) -> None:
        """What a leader refuses before it looks at its own state."""
        if not len(rows):
            raise InvalidRecordError("there is no batch to append")
        for row in rows:
            place = int(row["position"])
            if row["crc_ok"] != 1:
                raise CorruptRecordError("checksum does not match the batch", position=place)
            if row["size"] > self.options.max_message_bytes:
                raise RecordTooLargeError(
                    f"the batch has {int(row['size'])} bytes, more than max.message.bytes = "
                    f"{self.options.max_message_bytes}",
                    position=place,
                )
            if origin is not Origin.CLIENT:
                continue
            if row["attributes"] & Attributes.CONTROL:
                raise InvalidRecordError("a client may not write control records", position=place)
            if row["record_count"] < 1 or row["record_count"] != row["last_offset_delta"] + 1:
                raise InvalidRecordError(
                    f"{int(row['record_count'])} records for {int(row['last_offset_delta']) + 1} offsets",
                    position=place,
                )
            if row["producer_id"] >= 0 and row["base_sequence"] < 0:
                raise InvalidRecordError("a producer id without a sequence number", position=place)
        options = self.options
        limited = origin is Origin.CLIENT and not options.uses_log_append_time
        before = options.timestamp_before_max_ms
        refused = check_records(
            data,
            rows,
            key_needed=options.is_compacted and origin is Origin.CLIENT,
            timestamp_min=now_ms - before if limited and before < now_ms else -(2**63),
            timestamp_max=now_ms + options.timestamp_after_max_ms if limited else 2**63 - 1,
            decompress=decompressor(),
        )
        if refused:
            row, indices = refused[0]
            kind = InvalidTimestampError if not options.is_compacted else InvalidRecordError
            raise kind(
                "records without a key in a compacted topic"
                if options.is_compacted
                else "timestamps outside message.timestamp.before.max.ms and .after.max.ms",
                position=int(rows["position"][row]),
                record=indices[0],
            )

    def _as_configured(
        self, data: Buffer, rows: NDArray[np.void], origin: Origin, now_ms: int
    ) -> tuple[Buffer, NDArray[np.void], int]:
        """The log's own stamp and codec, where the topic asks for them: the only re-encoding there is."""
        options = self.options
        codecs = rows["attributes"] & Attributes.CODEC_MASK
        is_data = (rows["attributes"] & Attributes.CONTROL) == 0
        if options.compression is not None and (codecs[is_data] != options.compression).any():
            data = self._recompressed(data, rows)
            rows = scan(data)
        if not options.uses_log_append_time or origin is Origin.REPLICATION:
            return data, rows, -1
        for row in rows:
            restamp(
                data,
                int(row["position"]),
                attributes=int(row["attributes"]) | Attributes.LOG_APPEND_TIME,
                max_timestamp=now_ms,
            )
        return data, scan(data, check_crc=False), now_ms

    def _recompressed(self, data: Buffer, rows: NDArray[np.void]) -> bytearray:
        whole = bytearray()
        for row in rows:
            part = memoryview(data)[int(row["position"]) : int(row["position"] + row["size"])]
            if row["attributes"] & Attributes.CONTROL:
                whole += part
                continue
            changed = row.copy()
            assert self.options.compression is not None
            changed["attributes"] = (
                int(row["attributes"]) & ~Attributes.CODEC_MASK
            ) | self.options.compression
            (columns,) = decode(part, create_time=True, bytes_max=2**31 - 1)
            whole += memoryview(rewrite(changed, columns, columns.offsets))
        return whole

    def _judge(self, rows: NDArray[np.void], origin: Origin, *, bumps_epoch: bool) -> int | None:
        """The base offset of a batch that is already here; raises for one that does not fit."""
        if origin is Origin.REPLICATION:
            return None
        state = self.need_state()
        seen: set[int] = set()
        for row in rows:
            producer = int(row["producer_id"])
            if producer < 0:
                continue
            if row["attributes"] & Attributes.CONTROL:
                state.check_marker(row, bumps_epoch=bumps_epoch)
                continue
            is_transactional = bool(row["attributes"] & Attributes.TRANSACTIONAL)
            state.check_transaction(row, is_transactional=is_transactional)
            if origin is not Origin.CLIENT or producer in seen:
                continue  # later batches of one append follow the first, which was judged
            seen.add(producer)
            duplicate = state.duplicate_of(row, known_from_start=bumps_epoch and is_transactional)
            if duplicate is not None:
                return duplicate
        return None

    def _write(self, data: Buffer, rows: NDArray[np.void], now_ms: int) -> None:
        """Writes stamped batches and what follows from them; after an error nothing of it counts."""
        state = self.need_state()
        size = len(memoryview(data))
        last_offset = next_offset_of(rows) - 1
        try:
            if self.log.must_roll(size, last_offset, int(rows["max_timestamp"].max()), now_ms):
                state.take_snapshot()
                self.log.roll(now_ms)
            self.log.append(data, rows, self._aborts_of(rows))
        except OSError as error:
            raise KafkaStorageError(f"{self.directory}: {error}") from error
        state.replay(rows)

    def _aborts_of(self, rows: NDArray[np.void]) -> NDArray[np.void]:
        """The transactions that markers among these batches will end as aborted."""
        markers = rows[(rows["control_type"] == ControlType.ABORT) & (rows["producer_id"] >= 0)]
        parts = [
            self.producers.table.would_abort(int(row["producer_id"]), int(row["base_offset"]))
            for row in markers
        ]
        return np.concatenate(parts) if parts else np.empty(0, ABORTED_DTYPE)

    def _check_writable(self) -> None:
        if self._is_closed:
            raise ClosedError(f"{self.key.directory} is closed")
        if self._disk is None:
            raise ClosedError(f"{self.key.directory} was opened to be read alone")
        if self._offline is not None:
            raise KafkaStorageError(f"{self.key.directory} is offline after: {self._offline}")

    # ------------------------------------------------------------ keeping

    def sync(self) -> None:
        """Returns when all that was written is on the device. A failed sync takes the partition offline:
        what the kernel has dropped cannot be written again."""
        with self.lock:
            self._check_writable()
            end = self.log_end_offset
            try:
                self.log.sync(self.recovery_point)
            except OSError as error:
                self._offline = error
                raise KafkaStorageError(f"{self.directory}: {error}") from error
            self.recovery_point = end

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Removes batches from an offset on, and what is known of them."""
        with self.lock:
            self._check_writable()
            if offset >= self.log_end_offset:
                return
            self.log.truncate_to(offset, now_ms)
            self.log_start_offset = min(self.log_start_offset, self.log.start_offset)
            self.epochs.truncate_from_end(offset)
            self.recovery_point = min(self.recovery_point, offset)
            self._checked.clear()
            self.producers.remove_snapshots(above=self.log.end_offset)
            self._state_loaded = False

    def delete_records(self, before: int) -> int:
        """Moves the log start; whole segments below it are removed. Returns the new start."""
        with self.lock:
            self._check_writable()
            if before > self.high_watermark:
                raise OffsetOutOfRangeError(
                    f"cannot delete up to {before}: the high watermark is {self.high_watermark}"
                )
            if before > self.log_start_offset:
                self.log_start_offset = before
                self.remove_segments_below(before)
            return self.log_start_offset

    def remove_segments_below(self, offset: int) -> int:
        """Drops segments that end at or below an offset, but never the active one."""
        segments = self.log.segments
        gone = tuple(
            segment
            for segment, following in itertools.pairwise(segments)
            if following.base_offset <= offset
        )
        if gone:
            self.log.remove(gone)
            self.epochs.truncate_from_start(max(offset, self.log.start_offset))
            self.producers.remove_snapshots(below=self.log.start_offset)
        return len(gone)

    def close(self) -> None:
        """Writes what a clean stop promises: trimmed indexes, a snapshot at the end, everything on disk."""
        with self.lock:
            if self._is_closed:
                return
            if self._disk is not None and self._offline is None:
                if self._state_loaded:
                    self.producers.take_snapshot()
                self.log.sync(self.recovery_point)
                self.recovery_point = self.log_end_offset
            self.log.close()
            self._is_closed = True
