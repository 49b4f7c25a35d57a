"""Records that are encoded in many processes and committed by one: staged files, one for each task.

File    <staging>/<application>-<batch>-<run>/<name>.staged, written once, removed when its batch is settled
Writer  StagingWriter, in a task: record batches without a producer, then what they are
Reader  StagedReader, in the process that commits; it believes nothing that a checksum does not say
Repair  none: what is missing or damaged is staged again, since nothing of its batch was committed

A file is extents (record batches of one partition, one behind the other), then the manifest, then the trailer.

==  ====  ======  =============  ==============================================
at  size  type    trailer field  invariant
==  ====  ======  =============  ==============================================
 0     4  bytes   magic          "OLST"
 4     4  uint32  version        1
 8     4  uint32  manifest_size  bytes of JSON in front of the trailer
12     4  uint32  manifest_crc   CRC-32C of them; the task has reported the same
==  ====  ======  =============  ==============================================

The manifest lists the extents: topic, partition, position, size, batches, records, CRC-32C.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from .._native.batch import Encoder, scan
from .._native.checksum import crc32c
from ..base import clock, disk
from ..base.config import BROKER, read_options, topic_defaults
from ..base.errors import (
    InvalidRecordError,
    InvalidRequestError,
    OncelogError,
    RecordTooLargeError,
    StagingError,
    UnknownTopicOrPartitionError,
)
from ..broker.adoption import check_ownership
from ..broker.config_verbs import ALTERED
from ..broker.metadata_log import is_owned, read_facts
from ..broker.topic_options import partition_options
from ..broker.topics import topics_among
from ..segment.compression import Codec, compressor
from .partitioner import key_partitions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    import numpy as np
    from numpy.typing import NDArray

    from .._native.batch import EncodedBatches
    from .arrow import RecordBatch

TRAILER: Final = struct.Struct(">4sIII")
MAGIC: Final = b"OLST"
VERSION: Final = 1
ENDING: Final = ".staged"
# What is encoded before it is written: large enough that nearly all batches in it are full.
EXTENT_BYTES: Final = 2 << 20
# What one task holds in memory for all partitions together; the fullest are written first.
BUFFER_BYTES: Final = 64 << 20
PIECE_BYTES: Final = 1 << 20
# Extents whose memory is used again. The kernel takes longer to clear new pages than we take to fill them.
SPARES_MAX: Final = BUFFER_BYTES // EXTENT_BYTES
BATCH_BYTES_MIN: Final = 128
ANY_PARTITION: Final = -(
    2**40
)  # of a row that names none; no integer column of Spark's holds it by chance
AGE_MAX_MS: Final = 24 * 3600 * 1000  # of staged files that nobody has touched since


class TopicLayout(NamedTuple):
    """What a task must know of a topic to encode for it."""

    partitions: int
    batch_bytes_max: int  # max.message.bytes
    codec: int | None  # the topic's own, None where it keeps the producer's
    needs_keys: bool  # it is compacted


def topic_layouts(path: str) -> dict[str, TopicLayout]:
    """The topics of a data directory, also of one that another process is writing; the broker's own are left out."""
    if not disk.exists(path):
        raise InvalidRequestError(f"there is no log at {path}")
    if not is_owned(path):
        check_ownership(path)
        raise InvalidRequestError(f"{path} is no log: make one with oncelog.open({path!r})")
    facts = read_facts(path)
    altered = {name: value for name, value in facts.get(ALTERED, {}).items() if name in BROKER}
    defaults = topic_defaults(read_options(BROKER, altered))
    found = {}
    for name, topic in topics_among(facts).items():
        if topic.is_internal or topic.is_deleting:
            continue
        options = partition_options(
            {**defaults, **topic.config}, producer_id_expiration_ms=0, is_synced=False
        )
        codec = None if options.compression is None else int(options.compression)
        found[name] = TopicLayout(
            topic.partition_count, options.max_message_bytes, codec, options.is_compacted
        )
    return found


class StagedFile(NamedTuple):
    """What a task reports of a file it has staged: enough to tell whether it is still the same."""

    path: str
    size: int
    manifest_crc: int
    record_count: int
    host: str


class Extent(NamedTuple):
    """Record batches of one partition, one behind the other in a staged file."""

    topic: str
    partition: int
    position: int
    size: int
    batch_count: int
    record_count: int
    crc: int


class _Target:
    """What is being encoded for one partition."""

    __slots__ = ("encoder", "layout", "partition", "topic")

    def __init__(self, topic: str, partition: int, layout: TopicLayout, encoder: Encoder) -> None:
        self.topic = topic
        self.partition = partition
        self.layout = layout
        self.encoder = encoder


class StagingWriter:
    """Encodes rows into a staged file: one task, one file, one thread.

    Rows bring the columns that Producer.send_arrow takes, and ``topic`` where the writer is not given one. A crash
    leaves a file without a trailer, which no reader takes for a whole one.
    """

    def __init__(
        self,
        path: str,
        topics: Mapping[str, TopicLayout],
        *,
        topic: str | None = None,
        compression: str = "none",
        host: str = "",
    ) -> None:
        self._topics = topics
        self._topic = topic
        self._codec = Codec.of(compression)
        self._host = host
        self._path = path
        self._disk = disk.Disk()
        self._targets: dict[tuple[str, int], _Target] = {}
        self._held_bytes = 0
        self._spares: list[EncodedBatches] = []  # written, and good for their memory
        self._extents: list[Extent] = []
        self._end = 0
        self._sticky = random.randrange(1 << 16)  # noqa: S311
        self._descriptor = self._disk.open(path)
        # Not without need: ext4 takes a file that was cut to nothing for one that is being replaced, and writes all of
        # it to the device when it is closed.
        if disk.file_size(self._descriptor):
            self._disk.truncate(self._descriptor, 0)

    def __enter__(self) -> StagingWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Gives the file up, and removes it after an error."""
        self._close()
        if kind is not None:
            with contextlib.suppress(OSError):
                self._disk.remove(self._path)

    def _close(self) -> None:
        if self._descriptor >= 0:
            self._disk.close(self._descriptor)
            self._descriptor = -1

    # ------------------------------------------------------------ rows

    def add(self, rows: RecordBatch) -> None:
        """Encodes rows; each partition's stay in their order."""
        from . import arrow

        if not rows.num_rows:
            return
        self._sticky += 1
        whole = [(self._topic, rows)] if self._topic is not None else arrow.by_topic(rows)
        for topic, some in whole:
            if topic is None:
                raise InvalidRequestError(
                    "a row has no topic: fill the column 'topic', or give one topic for all rows"
                )
            layout = self._layout(topic)
            if layout.needs_keys and arrow.lacks_keys(some):
                raise InvalidRecordError(f"a row for {topic}, which is compacted, has no key")
            partitions = self._partitions_of(topic, layout, some)
            if arrow.is_plain(some) and (partitions != partitions[0]).any():
                count = arrow.rows_within(some, PIECE_BYTES)
                for partition, numbers in arrow.chosen(partitions):
                    for start in range(0, len(numbers), count):
                        self._encode(topic, partition, some, numbers[start : start + count])
                continue
            for partition, part in arrow.split(some, partitions):
                for piece in arrow.pieces(part, PIECE_BYTES):
                    self._encode(topic, partition, piece)

    def _layout(self, topic: str) -> TopicLayout:
        layout = self._topics.get(topic)
        if layout is None:
            known = ", ".join(sorted(self._topics)[:20]) or "none at all"
            raise UnknownTopicOrPartitionError(f"there is no topic {topic!r}, only {known}")
        return layout

    def _partitions_of(
        self, topic: str, layout: TopicLayout, rows: RecordBatch
    ) -> NDArray[np.int32]:
        """Where each row goes: where it says, else by its key, else to one partition for all."""
        from . import arrow

        count = layout.partitions
        found = key_partitions(rows, count, self._sticky % count)
        asked = arrow.partition_column(rows, null=ANY_PARTITION)
        if asked is not None:
            is_said = asked != ANY_PARTITION
            wrong = asked[is_said & ((asked >= count) | (asked < 0))]
            if wrong.size:
                raise UnknownTopicOrPartitionError(
                    f"{topic} has partitions 0 to {count - 1}, not {int(wrong[0])}"
                )
            found[is_said] = asked[is_said]
        return found

    def _open(self, topic: str, partition: int) -> _Target:
        layout = self._layout(topic)
        codec = self._codec if layout.codec is None else Codec(layout.codec)
        is_few = len(self._targets) < SPARES_MAX  # each that has memory of old keeps it
        spare = self._spares.pop() if self._spares and is_few else None
        target = _Target(topic, partition, layout, _encoder(codec, layout, spare))
        self._targets[topic, partition] = target
        return target

    def _encode(
        self,
        topic: str,
        partition: int,
        rows: RecordBatch,
        numbers: NDArray[np.int64] | None = None,
    ) -> None:
        """Encodes rows for a partition: all of them, or those with these numbers."""
        target = self._targets.get((topic, partition)) or self._open(topic, partition)
        before = target.encoder.nbytes
        if numbers is None:
            target.encoder.add_arrow(rows)
        else:
            target.encoder.add_chosen(rows, numbers)
        self._held_bytes += target.encoder.nbytes - before
        if target.encoder.nbytes >= EXTENT_BYTES:
            self._write(target)
        while self._held_bytes > BUFFER_BYTES:
            self._write(max(self._targets.values(), key=lambda one: one.encoder.nbytes))

    # ------------------------------------------------------------ the file

    def _write(self, target: _Target) -> None:
        """Writes what is encoded for a partition, as one extent."""
        del self._targets[target.topic, target.partition]
        self._held_bytes -= target.encoder.nbytes
        encoded = target.encoder.finish()
        if not len(encoded):
            return
        self._check_size(target, encoded)
        try:
            with memoryview(encoded) as view:
                self._disk.write(self._descriptor, view, self._end)
        except OSError as error:
            raise StagingError(f"cannot stage in {self._path} on {self._host}: {error}") from error
        self._extents.append(
            Extent(
                target.topic,
                target.partition,
                self._end,
                len(encoded),
                encoded.batch_count,
                encoded.record_count,
                crc32c(encoded),
            )
        )
        self._end += len(encoded)
        if len(self._spares) < SPARES_MAX:
            self._spares.append(encoded)

    @staticmethod
    def _check_size(target: _Target, encoded: EncodedBatches) -> None:
        largest = int(scan(encoded, check_crc=False)["size"].max())
        if largest > target.layout.batch_bytes_max:
            raise RecordTooLargeError(
                f"a record for {target.topic}-{target.partition} takes {largest} bytes, more than the topic's "
                f"max.message.bytes = {target.layout.batch_bytes_max}"
            )

    def finish(self) -> StagedFile:
        """Writes what is left and the manifest; the file is whole when this returns."""
        for target in list(self._targets.values()):
            self._write(target)
        manifest = json.dumps({"extents": self._extents}, separators=(",", ":")).encode()
        crc = crc32c(manifest)
        tail = manifest + TRAILER.pack(MAGIC, VERSION, len(manifest), crc)
        try:
            self._disk.write(self._descriptor, tail, self._end)
        except OSError as error:
            raise StagingError(f"cannot stage in {self._path} on {self._host}: {error}") from error
        self._close()
        records = sum(extent.record_count for extent in self._extents)
        return StagedFile(self._path, self._end + len(tail), crc, records, self._host)


def _encoder(codec: Codec, layout: TopicLayout, spare: EncodedBatches | None) -> Encoder:
    return Encoder(
        attributes=int(codec),
        compress=compressor(codec),
        timestamp_ms=clock.now_ms(),
        batch_bytes=max(min(layout.batch_bytes_max, PIECE_BYTES), BATCH_BYTES_MIN),
        reuse=spare,
    )


class StagedReader:
    """A staged file, read extent by extent and proven against its checksums.

    Unless it keeps the file, an extent can be read once: its memory is given to what is written next, which is the log.
    """

    def __init__(self, staged: StagedFile, *, keeps_file: bool = True) -> None:
        self._staged = staged
        self._keeps_file = keeps_file
        self._descriptor = -1
        self._disk = disk.Disk()
        try:
            opened = disk.open_to_read if keeps_file else disk.open_to_use_up
            self._descriptor = opened(staged.path)
            self.extents = self._manifest()
        except FileNotFoundError:
            raise StagingError(
                f"{staged.path}, staged on host {staged.host!r}, cannot be seen by the process that commits: the "
                "staging folder must lie on a file system that all of them share"
            ) from None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> StagedReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._descriptor >= 0:
            disk.close_read(self._descriptor)
            self._descriptor = -1

    def _manifest(self) -> list[Extent]:
        staged = self._staged
        size = disk.file_size(self._descriptor)
        if size != staged.size:
            raise StagingError(f"{staged.path} has {size} bytes, where {staged.size} were staged")
        end = size - TRAILER.size
        magic, version, count, crc = TRAILER.unpack(self._bytes(end, TRAILER.size))
        if (magic, version, crc) != (MAGIC, VERSION, staged.manifest_crc) or count > end:
            raise StagingError(
                f"{staged.path} is not the file that was staged: its trailer differs"
            )
        manifest = self._bytes(end - count, count)
        if crc32c(manifest) != crc:
            raise StagingError(f"{staged.path}: the checksum does not match the manifest")
        extents = [Extent(*fields) for fields in json.loads(bytes(manifest))["extents"]]
        records = sum(extent.record_count for extent in extents)
        if records != staged.record_count:
            raise StagingError(f"{staged.path} holds {records} records, not {staged.record_count}")
        return extents

    def read(self, extent: Extent) -> bytearray:
        """The record batches of an extent, in memory of their own."""
        data = bytearray(extent.size)
        self.read_into(data, extent)
        return data

    def read_into(self, memory: bytearray, extent: Extent) -> memoryview:
        """The record batches of an extent, at the beginning of a caller's memory, to be stamped there.

        Any thread may read, each into memory of its own.
        """
        data = memoryview(memory)[: extent.size]
        self._fill(data, extent.position)
        if crc32c(data) != extent.crc:
            raise StagingError(
                f"{self._staged.path}: the checksum does not match the records at position {extent.position}"
            )
        if not self._keeps_file:
            self._disk.give_back(self._descriptor, extent.position, extent.size)
        return data

    def _bytes(self, position: int, size: int) -> bytearray:
        data = bytearray(max(size, 0))
        self._fill(memoryview(data), position)
        return data

    def _fill(self, data: memoryview, position: int) -> None:
        if position < 0 or disk.read_into(self._descriptor, position, data) < data.nbytes:
            raise StagingError(f"{self._staged.path} ends before position {position + data.nbytes}")


# ---------------------------------------------------------------- folders


class StagingFolder:
    """Where the tasks of one attempt of one batch stage; attempts never share one."""

    def __init__(self, root: str, application: str, batch: int, run: str) -> None:
        self.path = f"{root}/{_digest(application)}-{batch}-{run}"
        self._root = root

    def file(self, name: str, host: str) -> str:
        """The path of a file to stage; the folder is made, its root must be there."""
        if not disk.exists(self._root):
            raise StagingError(
                f"the staging folder {self._root} cannot be seen on host {host!r}: choose one with the option "
                "'staging' on a file system that the driver and all executors share"
            )
        disk.Disk().make_directory(self.path)
        return f"{self.path}/{name}{ENDING}"


def make_root(root: str) -> None:
    """Makes the folder that all staging happens in."""
    try:
        disk.Disk().make_directory(root)
    except OSError as error:
        raise InvalidRequestError(
            f"the staging folder {root} cannot be made: {error}; choose another one with the option 'staging'"
        ) from error


def sweep(
    root: str,
    runs: Iterable[str] = (),
    *,
    application: str | None = None,
    committed: int = -1,
    now_ms: int | None = None,
) -> list[str]:
    """Removes what nobody will ask for again; returns the names of the folders.

    That is: the runs named, attempts of batches before the application's last committed one, and whatever nobody has
    touched for a day. Another attempt of the same batch, which may be running, is left alone. A file that cannot be
    removed is left to the next sweep.
    """
    mine = set(runs)
    digest = None if application is None else _digest(application)
    now_ms = clock.now_ms() if now_ms is None else now_ms
    gone = []
    with contextlib.suppress(OSError):
        for name in disk.list_directories(root):
            owner, _, rest = name.partition("-")
            batch, _, run = rest.partition("-")
            if not run or not batch.isdecimal():
                continue  # not ours
            is_past = owner == digest and int(batch) < committed
            folder = f"{root}/{name}"
            if (run in mine or is_past or _is_old(folder, now_ms)) and _removed(folder):
                gone.append(name)
    return gone


def _is_old(folder: str, now_ms: int) -> bool:
    with contextlib.suppress(OSError):
        paths = [folder, *(f"{folder}/{name}" for name in disk.list_files(folder))]
        return max(map(disk.modified_ms, paths)) < now_ms - AGE_MAX_MS
    return False


def _removed(folder: str) -> bool:
    door = disk.Disk()
    try:
        for name in disk.list_files(folder):
            door.remove(f"{folder}/{name}")
        door.remove_directory(folder)
    except (OSError, OncelogError):
        return False
    return True


def _digest(application: str) -> str:
    """An application's name, which may hold anything, as part of a file's name."""
    return hashlib.sha256(application.encode()).hexdigest()[:16]
