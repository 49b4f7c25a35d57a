"""What is on the device when: order of syncs, checkpoints behind them, and a sync that fails (UnifiedLog.flush)."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oncelog.base.errors import KafkaStorageError
from oncelog.log.checkpoint import CLEAN_SHUTDOWN, RECOVERY_POINT, read_offsets
from tests.partition.logs import ABORT, KEY, NOW, Writer, open_partition, options, read, values
from tests.sim.sim_disk import CountingDisk

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

SMALL = options(segment_bytes=500, interval=100)


def name_of(descriptor: int) -> str:
    return Path(f"/proc/self/fd/{descriptor}").readlink().name


class NamingDisk(CountingDisk):
    """Notes what is synced, by name; fails on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[str] = []
        self.fails: Callable[[str], bool] = lambda _: False

    def _note(self, name: str) -> None:
        self.synced.append(name)
        if self.fails(name):
            raise OSError(errno.EIO, "simulated")

    def sync(self, descriptor: int) -> None:
        self._note(name_of(descriptor))

    def sync_directory(self, path: str | os.PathLike[str]) -> None:
        self._note(f"{Path(path).name}/")


def test_logs_are_synced_before_what_points_into_them_and_names_last(tmp_path: Path) -> None:
    disk = NamingDisk()
    directory, partition = open_partition(tmp_path, SMALL, disk=disk)
    writer = Writer(partition, 1)
    for _ in range(5):
        writer.send(values(3), transactional=True)
    writer.end(ABORT)
    bases = [f"{segment.base_offset:020d}" for segment in partition.log.segments]
    assert len(bases) == 2
    disk.synced.clear()
    partition.sync()
    assert disk.synced == [
        f"{bases[1]}.snapshot",
        *(f"{bases[0]}{suffix}" for suffix in (".log", ".index", ".timeindex")),
        *(f"{bases[1]}{suffix}" for suffix in (".log", ".index", ".timeindex", ".txnindex")),
        "orders-0/",
    ]
    disk.synced.clear()
    partition.sync()
    assert disk.synced == [], "nothing was written since"
    writer.send(values(1), transactional=True)
    partition.sync()
    assert disk.synced == [
        f"{bases[1]}{end}" for end in (".log", ".index", ".timeindex", ".txnindex")
    ]
    directory.close()


def test_the_recovery_point_moves_with_a_sync_alone(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path, SMALL)
    Writer(partition).send(values(3))
    directory.checkpoint()
    assert read_offsets(str(tmp_path / RECOVERY_POINT)) == {KEY: 0}
    partition.sync()
    Writer(partition).send(values(3))
    directory.checkpoint()
    assert read_offsets(str(tmp_path / RECOVERY_POINT)) == {KEY: 3}
    directory.close()
    assert read_offsets(str(tmp_path / RECOVERY_POINT)) == {KEY: 6}


def test_what_a_crashed_process_wrote_is_synced_before_the_recovery_point_passes_it(
    tmp_path: Path,
) -> None:
    """Goal: bytes that recovery has found may never have been on the device.
    Method: crash without a sync, recover, and look at what the next sync does."""
    import shutil

    directory, partition = open_partition(tmp_path / "data", SMALL)
    for _ in range(5):
        Writer(partition).send(values(3))
    shutil.copytree(tmp_path / "data", tmp_path / "crashed")
    logs = [Path(segment.path(".log")).name for segment in partition.log.segments]
    directory.close()
    disk = NamingDisk()
    directory, partition = open_partition(tmp_path / "crashed", SMALL, disk=disk)
    assert partition.recovery_point == 0
    disk.synced.clear()
    partition.sync()
    assert [name for name in disk.synced if name.endswith(".log")] == logs
    assert partition.recovery_point == partition.log_end_offset
    directory.close()


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".snapshot", "orders-0/"])
def test_a_failed_sync_takes_the_partition_offline_and_is_not_tried_again(
    tmp_path: Path, suffix: str
) -> None:
    """Goal: the recovery point stays, no later sync hides the failure, no marker speaks of a clean stop; reading
    goes on; opening again recovers."""
    disk = NamingDisk()
    directory, partition = open_partition(tmp_path, SMALL, disk=disk)
    for _ in range(8):
        Writer(partition, 1, sequence=partition.log_end_offset).send(values(3))
    disk.fails = lambda name: name.endswith(suffix)
    with pytest.raises(KafkaStorageError):
        partition.sync()
    disk.fails = lambda _: False
    disk.synced.clear()
    assert partition.is_offline
    assert partition.recovery_point == 0
    for call in (partition.sync, lambda: Writer(partition).send(values(1))):
        with pytest.raises(KafkaStorageError, match="offline"):
            call()
    assert disk.synced == []
    assert len(read(partition)) == 24
    directory.close()
    assert not (tmp_path / CLEAN_SHUTDOWN).exists()
    assert read_offsets(str(tmp_path / RECOVERY_POINT)) == {KEY: 0}
    directory, partition = open_partition(tmp_path, SMALL)
    assert len(read(partition)) == 24
    Writer(partition, 1, sequence=24).send(values(1))
    directory.close()
    assert (tmp_path / CLEAN_SHUTDOWN).exists()


def test_one_partition_offline_leaves_the_others_alone(tmp_path: Path) -> None:
    from oncelog.segment.names import TopicPartition
    from tests.partition.logs import TOPIC_ID

    disk = NamingDisk()
    directory, partition = open_partition(tmp_path, SMALL, disk=disk)
    other = directory.create(TopicPartition("other", 0), TOPIC_ID)
    Writer(partition).send(values(1))
    Writer(other).send(values(1))
    disk.fails = lambda name: name.endswith(".log")
    with pytest.raises(KafkaStorageError):
        partition.sync()
    disk.fails = lambda _: False
    Writer(other).send(values(1))
    other.sync()
    directory.close()
    assert read_offsets(str(tmp_path / RECOVERY_POINT)) == {KEY: 0, TopicPartition("other", 0): 2}


def test_checkpoints_are_replaced_whole(tmp_path: Path) -> None:
    """Temporary file, sync, rename, sync of the directory, in this order."""
    disk = NamingDisk()
    directory, _ = open_partition(tmp_path, SMALL, disk=disk)
    disk.synced.clear()
    disk.names.clear()
    directory.checkpoint()
    folder = f"{tmp_path.name}/"
    assert disk.synced == [
        part
        for name in ("log-start-offset", "recovery-point-offset", "replication-offset")
        for part in (f"{name}-checkpoint.tmp", folder)
    ]
    assert disk.names == ["write", "rename"] * 3
    directory.close()


def test_a_full_disk_at_an_abort_leaves_the_transaction_open_and_the_marker_unwritten(
    tmp_path: Path,
) -> None:
    """Goal: an abort that cannot be indexed does not count: the stable offset stays before it, and telling it
    again works.
    Method: fail the write of the transaction index, after the log was written."""

    class FullDisk(CountingDisk):
        is_full = False

        def write(self, descriptor: int, data: object, position: int) -> None:
            name = name_of(descriptor)
            if self.is_full and name.endswith(".txnindex"):
                super().write(descriptor, bytes(memoryview(data))[:9], position)  # type: ignore[arg-type]
                raise OSError(errno.ENOSPC, "simulated")
            super().write(descriptor, data, position)  # type: ignore[arg-type]

    disk = FullDisk()
    directory, partition = open_partition(tmp_path, SMALL, disk=disk)
    writer = Writer(partition, 1)
    writer.send(values(2), transactional=True)
    disk.is_full = True
    for _ in range(2):
        with pytest.raises(KafkaStorageError):
            writer.end(ABORT)
        assert (partition.last_stable_offset, partition.log_end_offset) == (0, 2)
    disk.is_full = False
    small = Writer(partition).send([b""])
    assert small.base_offset == 2
    assert writer.end(ABORT).base_offset == 3
    assert [tuple(row) for row in partition.aborted_transactions(0, 4).tolist()] == [(1, 0, 3, 4)]
    assert read(partition) == [(2, b"")]
    directory.close()
    directory, partition = open_partition(tmp_path, SMALL)
    assert read(partition) == [(2, b"")]
    directory.close()


def test_what_a_failed_append_left_cannot_come_back_behind_a_shorter_one(tmp_path: Path) -> None:
    """Goal: a refused batch whose bytes are in the file does not count after a crash, once others were written.
    Method: refuse two batches in one append after the log write, append one that ends where the second of them
    starts, crash."""
    import shutil

    from oncelog.partition.partition import Origin
    from oncelog.segment.batch import encode

    class FullDisk(CountingDisk):
        is_full = False

        def write(self, descriptor: int, data: object, position: int) -> None:
            name = name_of(descriptor)
            if self.is_full and not name.endswith(".log"):
                raise OSError(errno.ENOSPC, "simulated")
            super().write(descriptor, data, position)  # type: ignore[arg-type]

    disk = FullDisk()
    using = options(interval=1)
    directory, partition = open_partition(tmp_path / "data", using, disk=disk)
    Writer(partition).send([b"first"])
    two = bytearray(memoryview(encode([b"same size 1"]))) + memoryview(encode([b"never written"]))
    disk.is_full = True
    with pytest.raises(KafkaStorageError):
        partition.append_as_leader(two, leader_epoch=0, now_ms=0, origin=Origin.COORDINATOR)
    disk.is_full = False
    partition.append_as_leader(encode([b"same size 2"]), leader_epoch=0, now_ms=0)
    shutil.copytree(tmp_path / "data", tmp_path / "crashed")
    directory.close()
    for path in (tmp_path / "crashed", tmp_path / "data"):
        directory, partition = open_partition(path, using)
        assert [value for _, value in read(partition)] == [b"first", b"same size 2"]
        directory.close()


def test_a_roll_that_failed_leaves_no_segment_that_would_end_the_log_too_early(
    tmp_path: Path,
) -> None:
    """Goal: an empty segment left by a roll must be gone before the old one grows past its base.
    Method: let the new segment's index fail, and the removal of its log as well; then append what needs no roll,
    while the leftover cannot be removed and after it can."""

    class BrokenDisk(CountingDisk):
        is_broken = False

        def open(self, path: str | os.PathLike[str]) -> int:
            if self.is_broken and str(path).endswith(f"{3:020d}.index"):
                raise OSError(errno.EIO, "simulated")
            return super().open(path)

        def remove(self, path: str | os.PathLike[str]) -> None:
            if self.is_broken and str(path).endswith(f"{3:020d}.log") and Path(path).exists():
                raise OSError(errno.EIO, "simulated")
            super().remove(path)

    disk = BrokenDisk()
    using = options(segment_ms=1000)
    directory, partition = open_partition(tmp_path, using, disk=disk)
    Writer(partition).send(values(3), timestamp_ms=NOW)
    disk.is_broken = True
    with pytest.raises(KafkaStorageError):
        Writer(partition).send(values(1, "late"), timestamp_ms=NOW + 2000)
    leftover = Path(partition.directory) / f"{3:020d}.log"
    assert leftover.exists()
    with pytest.raises(KafkaStorageError):
        Writer(partition).send(values(2, "w"), timestamp_ms=NOW)
    disk.is_broken = False
    assert Writer(partition).send(values(2, "w"), timestamp_ms=NOW).base_offset == 3
    assert not leftover.exists()
    import shutil

    shutil.copytree(tmp_path, tmp_path / "copy", ignore=shutil.ignore_patterns("copy"))
    directory.close()
    for path in (tmp_path / "copy", tmp_path):
        directory, partition = open_partition(path, using)
        assert [value for _, value in read(partition)] == [*values(3), *values(2, "w")]
        directory.close()
