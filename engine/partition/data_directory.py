"""A data directory: many partitions, the checkpoints that speak for them, and the lock of its one writer.

Opened with a disk it is written, by one process at a time; without, it is read and left as it is. A clean stop
leaves ``.kafka_cleanshutdown`` and every recovery point at the log's end. The marker is removed as soon as the
directory is opened for writing, so that whatever stops the process before the next clean stop means recovery.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..base.disk import exists, forks, list_directories, list_files
from ..base.errors import (
    ClosedError,
    InconsistentTopicIdError,
    InvalidTopicError,
    KafkaStorageError,
    OncelogError,
)
from ..log.checkpoint import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARK,
    LOG_START,
    PARTITION_METADATA,
    RECOVERY_POINT,
    read_clean_shutdown,
    read_offsets,
    read_topic_id,
    write_clean_shutdown,
    write_offsets,
    write_topic_id,
)
from ..segment.names import LOG, TopicPartition, check_topic, parse_directory, parse_file
from .partition import Partition, PartitionOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..base.disk import Disk

LOCK: Final = ".lock"
# The controller's own log, which holds no data.
METADATA_TOPIC: Final = "__cluster_metadata"


class DataDirectory:
    """The partitions of one directory; each is opened when it is first asked for."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        disk: Disk | None = None,
        *,
        now_ms: Callable[[], int],
        options_of: Callable[[TopicPartition], PartitionOptions] = lambda _: PartitionOptions(),
    ) -> None:
        self.path = os.fspath(path)
        self._disk = disk
        self._now_ms = now_ms
        self._options_of = options_of
        self._lock = threading.RLock()
        self._writing = (
            threading.Lock()
        )  # of checkpoints; taken last, so that a partition may ask for one
        self._born = forks()
        self._open: dict[TopicPartition, Partition] = {}
        self._lock_descriptor = -1
        self._is_closed = False
        if disk is None and not exists(self.path):
            raise FileNotFoundError(f"there is no directory {self.path}")
        try:
            if disk is not None:
                disk.make_directory(self.path)
                self._lock_descriptor = disk.lock(self._file(LOCK))
            self._load()
        except OSError as error:
            self._unlock()
            if disk is None:
                raise
            raise KafkaStorageError(f"{self.path}: {error}") from error
        except BaseException:
            self._unlock()
            raise

    def _file(self, name: str) -> str:
        return f"{self.path}/{name}"

    def _load(self) -> None:
        self.is_clean = read_clean_shutdown(self._file(CLEAN_SHUTDOWN)) is not None
        self._recovery_points = self._offsets(RECOVERY_POINT)
        self._starts = self._offsets(LOG_START)
        self._watermarks = self._offsets(HIGH_WATERMARK)
        self._directories = self._find()
        if self._disk is not None:
            self._disk.remove(self._file(CLEAN_SHUTDOWN))
            self._disk.sync_directory(self.path)

    def _offsets(self, name: str) -> dict[TopicPartition, int]:
        """A checkpoint; a damaged one says nothing, and recovery starts from the first segment."""
        try:
            return {key: max(offset, 0) for key, offset in read_offsets(self._file(name)).items()}
        except OncelogError:
            self.is_clean = False
            return {}

    def _find(self) -> dict[TopicPartition, str]:
        if any((parse_file(name) or (0, ""))[1] == LOG for name in list_files(self.path)):
            self.is_clean = False  # a partition's directory on its own: no checkpoint speaks for it
            return {parse_directory(Path(self.path).resolve().name): self.path}
        found = {}
        for name in list_directories(self.path):
            try:
                key = parse_directory(name)
            except InvalidTopicError:
                continue  # being deleted, moved, or not a partition's at all
            if key.topic != METADATA_TOPIC:
                found[key] = self._file(name)
        return found

    # ------------------------------------------------------------ partitions

    @property
    def partitions(self) -> list[TopicPartition]:
        """All partitions that are here, sorted."""
        return sorted(self._directories)

    def __contains__(self, key: TopicPartition) -> bool:
        return key in self._directories

    def get(self, key: TopicPartition) -> Partition:
        """An existing partition, opened and, after an unclean stop, recovered."""
        with self._lock:
            if self._is_closed:
                raise ClosedError(f"{self.path} is closed")
            if key not in self._open:
                self._open[key] = Partition(
                    key,
                    self._directories[key],
                    self._options_of(key),
                    self._disk,
                    now_ms=self._now_ms(),
                    is_clean=self.is_clean,
                    recovery_point=self._recovery_points.get(key, 0),
                    log_start_offset=self._starts.get(key, 0),
                    save_recovery_point=self.checkpoint,
                )
            return self._open[key]

    def create(self, key: TopicPartition, topic_id: str) -> Partition:
        """A partition that may be new. Its topic id is on disk before its first batch."""
        check_topic(key.topic)
        self._check_writable()
        with self._lock:
            directory = self._directories.get(key, self._file(key.directory))
            try:
                self._check_topic_id(key, directory, topic_id)
            except OSError as error:
                raise KafkaStorageError(f"{directory}: {error}") from error
            return self.get(key)

    def _check_topic_id(self, key: TopicPartition, directory: str, topic_id: str) -> None:
        assert self._disk is not None
        metadata = f"{directory}/{PARTITION_METADATA}"
        if key not in self._directories:
            self._disk.make_directory(directory)
            self._disk.sync_directory(self.path)
        known = read_topic_id(metadata)
        if known is None:
            write_topic_id(self._disk, metadata, topic_id)
        elif known != topic_id:
            raise InconsistentTopicIdError(
                f"{directory} holds topic id {known}, where {topic_id} is expected"
            )
        self._directories[key] = directory

    def _check_writable(self) -> None:
        if self._disk is None:
            raise ClosedError(f"{self.path} was opened to be read alone")
        if self._is_closed:
            raise ClosedError(f"{self.path} is closed")
        if self._born != forks():
            raise ClosedError(f"{self.path} was opened before this process was forked off")

    def topic_id(self, key: TopicPartition) -> str | None:
        return read_topic_id(f"{self._directories[key]}/{PARTITION_METADATA}")

    # ------------------------------------------------------------ checkpoints

    def checkpoint(self) -> None:
        """Writes how far each log is on disk, replicated, and deleted: what the next opening starts from.

        Nothing here is ahead of the device: a recovery point moves only when a sync has returned.
        """
        if self._disk is None:
            return
        self._check_writable()
        try:
            self._write_checkpoints()
        except OSError as error:
            raise KafkaStorageError(f"{self.path}: {error}") from error

    def _write_checkpoints(self) -> None:
        assert self._disk is not None
        with self._writing:
            for key, partition in list(self._open.items()):
                self._recovery_points[key] = partition.recovery_point
                self._watermarks[key] = partition.high_watermark
                if partition.log_start_offset > partition.log.start_offset:
                    self._starts[key] = partition.log_start_offset
                else:
                    self._starts.pop(key, None)
            for name, offsets in (
                (LOG_START, self._starts),
                (RECOVERY_POINT, self._recovery_points),
                (HIGH_WATERMARK, self._watermarks),
            ):
                here = {key: offset for key, offset in offsets.items() if key in self._directories}
                write_offsets(self._disk, self._file(name), here)

    def close(self) -> None:
        """A clean stop: every log on disk, every checkpoint at its end, then the marker that says so.

        Where any of it fails there is no marker, and the next opening recovers. Files and lock are given up in
        any case.
        """
        with self._lock:
            if self._is_closed:
                return
            try:
                self._stop()
            except OSError as error:
                raise KafkaStorageError(f"{self.path}: {error}") from error
            finally:
                self._is_closed = True
                self._open.clear()
                self._unlock()

    def _stop(self) -> None:
        may_write = self._disk is not None and self._born == forks()
        errors: list[OncelogError] = []
        if may_write and not self.is_clean:
            for key in self.partitions:  # the marker speaks for all, so all must be sound
                try:
                    self.get(key)
                except OncelogError as error:
                    errors.append(error)
        for partition in self._open.values():
            try:
                partition.close()
            except OncelogError as error:
                errors.append(error)
        if may_write:
            assert self._disk is not None
            self._write_checkpoints()
            if not errors and not any(partition.is_offline for partition in self._open.values()):
                write_clean_shutdown(self._disk, self._file(CLEAN_SHUTDOWN))
        if errors:
            raise errors[0]

    def _unlock(self) -> None:
        if self._lock_descriptor >= 0:
            assert self._disk is not None
            self._disk.unlock(self._lock_descriptor)
            self._lock_descriptor = -1
