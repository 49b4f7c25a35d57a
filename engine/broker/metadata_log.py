"""The broker's own facts: topics, their ids and configs, leader epochs, producer id blocks.

File    ``oncelog.metadata`` in the data directory, beside the partitions. A file and not a partition, because a
        Kafka broker that is started on the directory leaves files alone that it does not know.
Writer  the broker; every change is one record batch, on the device before it counts
Reader  the broker when it opens
Repair  the last change may be torn by a crash, and then never counted: it is cut off. Anything else that fails its
        checksum is damage, and refused: guessing at topics would cost data

Each record's key is ``leader_epoch``, ``producer_ids``, ``broker_config``, ``cluster_id`` or ``topic/<name>``; its
value is JSON, the last one for a key counts, and null removes the key. The file is written anew when most of it no
longer counts.
"""

from __future__ import annotations

import contextlib
import json
import threading
from typing import TYPE_CHECKING, Any, Final

from .._native.process import forks
from ..base.disk import exists, read_at, read_file
from ..base.errors import ClosedError, CorruptFileError, KafkaStorageError
from ..segment.batch import HEADER_BYTES, encode, records, scan_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..base.disk import Disk

METADATA_FILE: Final = "oncelog.metadata"
BATCH_BYTES_MAX: Final = 2**31 - 1
# The file is written anew at opening when it has this many more records than there are facts.
SLACK: Final = 1000


class MetadataLog:
    """A map that survives: what is put is on the device when the call returns."""

    def __init__(self, directory: str, disk: Disk, now_ms: Callable[[], int]) -> None:
        self.path = f"{directory}/{METADATA_FILE}"
        self._disk = disk
        self._now_ms = now_ms
        self._born = forks()
        self._lock = threading.Lock()
        self._descriptor = -1
        self._failure: BaseException | None = None
        self.facts: dict[str, Any] = {}
        try:
            has_file = exists(self.path)
            self._end, count = self._replay() if has_file else (0, 0)
            self.is_new = not self.facts  # a file without any is a beginning that was cut short
            if count > 2 * len(self.facts) + SLACK:
                self._end = self._rewrite()
            self._descriptor = disk.open(self.path)
            if has_file and self._end < len(read_file(self.path)):
                disk.truncate(self._descriptor, self._end)
            disk.sync_directory(directory)
        except OSError as error:
            raise KafkaStorageError(f"{self.path}: {error}") from error

    def _replay(self) -> tuple[int, int]:
        """Takes all facts in; returns where the sound bytes end, and how many records they hold."""
        self.facts, end, count = _replayed(self.path)
        return end, count

    def _encoded(self, facts: Mapping[str, Any]) -> memoryview:
        return memoryview(
            encode(
                [
                    None if value is None else json.dumps(value, separators=(",", ":")).encode()
                    for value in facts.values()
                ],
                keys=[name.encode() for name in facts],
                timestamp_ms=self._now_ms(),
                batch_size=BATCH_BYTES_MAX,
            )
        )

    def _rewrite(self) -> int:
        data = self._encoded(self.facts)
        self._disk.replace(self.path, bytes(data))
        return len(data)

    def put(self, facts: Mapping[str, Any]) -> None:
        """Changes facts, all or none; None removes one."""
        data = self._encoded(facts)
        with self._lock:
            if self._descriptor < 0:
                raise ClosedError(f"{self.path} is closed")
            if self._born != forks():  # the end of the file is the parent's to move
                raise ClosedError(f"{self.path} was opened before this process was forked off")
            if self._failure is not None:
                raise KafkaStorageError(f"{self.path} is offline after: {self._failure}")
            try:
                self._disk.write(self._descriptor, data, self._end)
            except OSError as error:
                self._undo(error)
                raise KafkaStorageError(f"{self.path}: {error}") from error
            try:
                self._disk.sync(self._descriptor)
            except OSError as error:  # nobody can tell what the kernel has dropped
                self._undo(
                    error
                )  # what was answered with an error shall not be found at the next opening
                self._failure = error
                raise KafkaStorageError(f"{self.path}: {error}") from error
            self._end += len(data)
            for name, value in facts.items():
                if value is None:
                    self.facts.pop(name, None)
                else:
                    self.facts[name] = value

    def assume(self, facts: Mapping[str, Any]) -> None:
        """Takes facts for granted in memory alone, until they are put."""
        self.facts.update(facts)

    def _undo(self, error: OSError) -> None:
        """Cuts a half-written change off again; where even that fails, nothing more is written."""
        try:
            self._disk.truncate(self._descriptor, self._end)
        except OSError:
            self._failure = error

    def close(self) -> None:
        with self._lock:
            if self._descriptor >= 0:
                with contextlib.suppress(OSError):
                    self._disk.close(self._descriptor)
                self._descriptor = -1


def read_facts(directory: str) -> dict[str, Any]:
    """The facts of a directory, whoever is writing them at this moment: a change under way does not count yet."""
    return _replayed(f"{directory}/{METADATA_FILE}")[0]


def _replayed(path: str) -> tuple[dict[str, Any], int, int]:
    """All facts, where the sound bytes end, and how many records they hold."""
    data = read_file(path)
    rows, end, error = scan_prefix(data)
    if error is not None and not _is_torn(data, end):
        raise CorruptFileError(
            f"the broker's facts are damaged at position {end}: {error.what}; restore the file from a copy",
            file=path,
        ) from error
    facts: dict[str, Any] = {}
    count = 0
    for record in records(memoryview(data)[:end], rows, file=path):
        name = (record.key or b"").decode()
        count += 1
        if record.value is None:
            facts.pop(name, None)
            continue
        try:
            facts[name] = json.loads(record.value)
        except ValueError as problem:
            raise CorruptFileError(f"{name!r} is not JSON: {problem}", file=path) from problem
    return facts, end, count


def is_owned(directory: str) -> bool:
    """Whether a broker of this library has written its facts here."""
    path = f"{directory}/{METADATA_FILE}"
    return exists(path) and bool(read_at(path, 0, 1))


def _is_torn(data: bytes, end: int) -> bool:
    """Whether what follows the sound bytes is a change that a crash cut short: one batch at most, or zeros."""
    rest = data[end:]
    if len(rest) < HEADER_BYTES or not any(rest):
        return True
    return end + 12 + int.from_bytes(rest[8:12], "big", signed=True) >= len(data)
