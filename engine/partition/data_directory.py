"""A data directory: many partitions, the checkpoints that speak for them, and the lock of its one writer.

Opened with a disk it is written, by one process at a time; without, it is read and left as it is. A clean stop
leaves ``.kafka_cleanshutdown`` and every recovery point at the log's end. The marker is removed as soon as the
directory is opened for writing, so that whatever stops the process before the next clean stop means recovery.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .._native.process import forks
from ..base.disk import exists, file_identity, list_directories, list_files, modified_ms
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
from .live import LivePartition
from .partition import Partition, PartitionOptions
from .published import LIVE, Published, find_published
from .unopened import Unopened

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..base.disk import Disk
    from .published import PublishedView

LOCK: Final = ".lock"
# The controller's own log, which holds no data.
METADATA_TOPIC: Final = "__cluster_metadata"
SAME_MOMENT_MS: Final = 1000


_DELETED = re.compile(r".+-[0-9]+\.[0-9a-f]{32}-delete")
NAME_MAX: Final = 255  # of a file system


def _deleted_name(key: TopicPartition) -> str:
    """The name that Kafka gives a partition's directory before it removes it; a long topic is cut short."""
    ending = f"-{key.partition}.{os.urandom(16).hex()}-delete"
    return f"{key.topic[: NAME_MAX - len(ending)]}{ending}"


class DataDirectory:
    """The partitions of one directory; each is opened when it is first asked for."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        disk: Disk | None = None,
        *,
        now_ms: Callable[[], int],
        options_of: Callable[[TopicPartition], PartitionOptions] = lambda _: PartitionOptions(),
        trusts_nothing: bool = False,
    ) -> None:
        """``trusts_nothing``: neither a clean stop nor a recovery point counts, and every batch is proven."""
        self.path = os.fspath(path)
        self._disk = disk
        self._now_ms = now_ms
        self._options_of = options_of
        self._trusts_nothing = trusts_nothing
        self._lock = threading.RLock()
        self._writing = (
            threading.Lock()
        )  # of checkpoints; taken last, so that a partition may ask for one
        self._born = forks()
        self._open: dict[TopicPartition, Partition] = {}
        self._unopened: dict[TopicPartition, Unopened] = {}
        self._published: Published | None = None  # the writer's
        self._live: PublishedView | None = None  # a reader's, while there is a writer
        self._seen: tuple[object, ...] = ()
        self._gone: list[str] = []  # out of sight, and to be removed
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

    @property
    def _is_partition(self) -> bool:
        """Whether this is a partition's directory on its own, and not one of many partitions."""
        return any((parse_file(name) or (0, ""))[1] == LOG for name in list_files(self.path))

    def _file(self, name: str) -> str:
        return f"{self.path}/{name}"

    def _load(self) -> None:
        # Where the writer of what a reader looks at here publishes: for a partition's directory, in the one above.
        self._home = str(Path(self.path).resolve().parent) if self._is_partition else self.path
        self._listing = self._date()  # first: what changes from here on is seen as a change
        self._seen = self._look()
        self._live = find_published(self._home) if self._disk is None else None
        self.is_clean = read_clean_shutdown(self._file(CLEAN_SHUTDOWN)) is not None
        self._recovery_points = self._offsets(RECOVERY_POINT)
        self._starts = self._offsets(LOG_START)
        self._watermarks = self._offsets(HIGH_WATERMARK)
        if self._live is not None:
            self.is_clean = self._live.was_clean
        self._directories = self._find()
        if self._trusts_nothing:
            self.is_clean = False
            self._recovery_points.clear()
        if self._disk is not None:
            self._remove_deleted()
            self._published = Published(self._disk, self._file(LIVE), was_clean=self.is_clean)
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
        if self._is_partition:
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

    # ------------------------------------------------------------ looking anew

    def _look(self) -> tuple[object, ...]:
        """What is different where a writer has come or gone since."""
        return tuple(file_identity(f"{self._home}/{name}") for name in (LIVE, CLEAN_SHUTDOWN))

    def refresh(self) -> None:
        """For a reader: takes note of partitions that were made or deleted, and of a writer that came or went.

        Where there was another writer meanwhile, partitions are opened anew; those that were handed out stay as
        they are. A directory that nobody has opened since is not looked at again, beyond its listing.
        """
        with self._lock:
            if self._disk is not None or self._is_closed:
                return
            is_current = self._is_listing_current()
            if self._live is not None:
                has_changed = not self._live.is_live
            else:  # who comes or goes changes names in its directory, which is the listed one, or above it
                is_above = self._home != self.path
                has_changed = (is_above or not is_current) and self._look() != self._seen
            if has_changed:
                self._open.clear()
                self._load()
            elif not is_current:
                self._listing = self._date()
                self._directories = self._find()

    def _date(self) -> tuple[int, int]:
        """When the directory was last changed, and when that was asked."""
        return modified_ms(self.path), self._now_ms()

    def _is_listing_current(self) -> bool:
        """Whether the listing must still be right. One that was made in the same moment as the last change of the
        directory may lack it, as times on disk are coarse."""
        changed_ms, listed_ms = self._listing
        return modified_ms(self.path) == changed_ms < listed_ms - SAME_MOMENT_MS

    @property
    def is_live(self) -> bool:
        """For a reader: whether somebody has the directory open for writing at this moment."""
        return self._live is not None and self._live.is_live

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
            live = self._get_live(key)
            if live is not None:
                return live
            if key not in self._open:
                take_slot = None
                if self._published is not None:
                    take_slot = functools.partial(self._published.take, key.directory)
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
                    take_slot=take_slot,
                )
            # The writer may have opened it meanwhile: then its files are no longer what counts.
            return self._get_live(key) or self._open[key]

    def unopened(self, key: TopicPartition) -> Unopened | None:
        """For the writer: what its files say of a partition that nobody has opened since a clean stop, looked at
        once; None where it is open, or only opening can tell."""
        with self._lock:
            if key in self._open or not self.is_clean or key not in self._directories:
                self._unopened.pop(key, None)
                return None
            found = self._unopened.get(key)
            if found is None:
                found = Unopened.look(self._directories[key], self._starts.get(key, 0))
                if found is not None:
                    self._unopened[key] = found
            return found

    def _get_live(self, key: TopicPartition) -> LivePartition | None:
        """For a reader: a partition that a writer has open right now, as of now."""
        found = None if self._live is None else self._live.slots().get(key.directory)
        if found is None:
            return None
        partition = self._open.get(key)
        if isinstance(partition, LivePartition) and partition.published[1] == found[1]:
            partition.refresh()
            return partition
        opened = LivePartition(
            key, self._directories[key], self._options_of(key), *found, now_ms=self._now_ms()
        )
        self._open[key] = opened
        return opened

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

    def delete(self, *keys: TopicPartition) -> None:
        """Removes partitions for good: out of sight first, as Kafka does, so that a crash leaves all of one or none.

        Readers in any process go on with what they have mapped. What could not be removed goes when the directory
        is next opened, or with the next call: after an error the same call goes on, and skips those that are gone.
        """
        self._check_writable()
        with self._lock:
            assert self._disk is not None
            try:
                for key in keys:
                    if key in self._directories:
                        self._put_out_of_sight(key)
                self._disk.sync_directory(self.path)
                while self._gone:
                    self._remove_all(self._gone[-1])
                    self._gone.pop()
                self._write_checkpoints()
            except OSError as error:
                raise KafkaStorageError(f"{self.path}: {error}") from error

    def _put_out_of_sight(self, key: TopicPartition) -> None:
        assert self._disk is not None
        gone = self._file(_deleted_name(key))
        rename = functools.partial(self._disk.rename, self._directories[key], gone)
        partition = self._open.get(key)
        if partition is None:
            rename()
        else:
            partition.remove_from(rename)
        self._gone.append(gone)
        if self._published is not None:
            self._published.give_back(key.directory)
        with self._writing:
            del self._directories[key]
            self._open.pop(key, None)
            self._unopened.pop(key, None)
            for offsets in (self._recovery_points, self._starts, self._watermarks):
                offsets.pop(key, None)

    def _remove_all(self, directory: str) -> None:
        assert self._disk is not None
        for name in list_files(directory):
            self._disk.remove(f"{directory}/{name}")
        self._disk.remove_directory(directory)

    def _remove_deleted(self) -> None:
        """Removes what is left of partitions that were being deleted when their writer stopped."""
        for name in list_directories(self.path):
            if _DELETED.fullmatch(name):
                self._remove_all(self._file(name))

    def _check_topic_id(self, key: TopicPartition, directory: str, topic_id: str) -> None:
        assert self._disk is not None
        metadata = f"{directory}/{PARTITION_METADATA}"
        if key not in self._directories and not exists(directory):
            self._make_directory(directory, topic_id)
        known = read_topic_id(metadata)
        if known is None:
            write_topic_id(self._disk, metadata, topic_id)
        elif known != topic_id:
            raise InconsistentTopicIdError(
                f"{directory} holds topic id {known}, where {topic_id} is expected"
            )
        self._directories[key] = directory

    def _make_directory(self, directory: str, topic_id: str) -> None:
        """A new directory with its topic id. What fails leaves none: nobody would know whose it is."""
        assert self._disk is not None
        try:
            self._disk.make_directory(directory)
            self._disk.sync_directory(self.path)
            write_topic_id(self._disk, f"{directory}/{PARTITION_METADATA}", topic_id)
        except OSError:
            with contextlib.suppress(OSError):
                self._remove_all(directory)
            raise

    def _check_writable(self) -> None:
        if self._disk is None:
            raise ClosedError(f"{self.path} was opened to be read alone")
        if self._is_closed:
            raise ClosedError(f"{self.path} is closed")
        if self._born != forks():
            raise ClosedError(f"{self.path} was opened before this process was forked off")

    def directory(self, key: TopicPartition) -> str:
        return self._directories[key]

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

    def abandon(self) -> None:
        """Gives up files and lock and writes nothing more, as a crash would; the next opening recovers."""
        with self._lock:
            if not self._is_closed:
                for partition in self._open.values():
                    partition.abandon()
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
            published, self._published = self._published, None
            if published is not None:
                published.close()
        if errors:
            raise errors[0]

    def _unlock(self) -> None:
        """Gives up the published file, after a failure or in a forked child, and the lock."""
        self._live = None
        published, self._published = self._published, None
        if published is not None:
            with contextlib.suppress(OSError):
                (published.close if self._born == forks() else published.abandon)()
        if self._lock_descriptor >= 0:
            assert self._disk is not None
            self._disk.unlock(self._lock_descriptor)
            self._lock_descriptor = -1
