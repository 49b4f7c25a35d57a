"""Deleting a partition: out of sight at once, gone from the checkpoints, and not from under its readers."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

import pytest

from oncelog.base.errors import KafkaStorageError, UnknownTopicOrPartitionError
from oncelog.client.directory import LogDirectory
from oncelog.log.checkpoint import HIGH_WATERMARK, LOG_START, RECOVERY_POINT, read_offsets
from oncelog.segment.names import TopicPartition
from tests.partition.logs import (
    ABORT,
    KEY,
    TOPIC_ID,
    Writer,
    open_directory,
    open_partition,
    options,
    read,
    values,
)
from tests.sim.sim_disk import CountingDisk, FaultyDisk

if TYPE_CHECKING:
    import os
    from pathlib import Path

SMALL = options(segment_bytes=500, interval=100)
OTHER = TopicPartition("other", 3)


def test_a_deleted_partition_is_gone_from_files_and_checkpoints(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path, SMALL)
    kept = directory.create(OTHER, TOPIC_ID)
    for target in (partition, kept):
        for _ in range(9):
            Writer(target).send(values(3))
        target.sync()
        target.delete_records(1)
    directory.checkpoint()
    directory.delete(KEY)
    assert directory.partitions == [OTHER]
    assert KEY not in directory
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["other-3"]
    for name in (RECOVERY_POINT, LOG_START, HIGH_WATERMARK):
        assert set(read_offsets(str(tmp_path / name))) == {OTHER}
    with pytest.raises(UnknownTopicOrPartitionError, match="deleted"):
        Writer(partition).send(values(1))
    with pytest.raises(UnknownTopicOrPartitionError, match="deleted"):
        partition.sync()
    assert len(read(kept)) == 26
    fresh = directory.create(KEY, "BBBBBBBBBBBBBBBBBBBBBB")
    assert (fresh.log_start_offset, fresh.log_end_offset) == (0, 0)
    assert Writer(fresh).send(values(2)).base_offset == 0
    directory.close()
    directory, fresh = open_partition(tmp_path, SMALL, read_only=True)
    assert len(read(fresh)) == 2
    directory.close()


def test_a_partition_that_is_not_open_is_deleted_as_well(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path, SMALL)
    Writer(partition).send(values(3))
    directory.close()
    directory = open_directory(tmp_path, SMALL)
    directory.delete(KEY)
    assert directory.partitions == []
    directory.close()
    assert open_directory(tmp_path, read_only=True).partitions == []


def test_readers_go_on_with_what_they_have(tmp_path: Path) -> None:
    """Goal: a partition that is deleted beside a reader, in this process or another, is read to its end by those
    who have it, and unknown to all who ask anew."""
    directory, partition = open_partition(tmp_path, SMALL)
    for number in range(9):
        Writer(partition, 1, sequence=3 * number).send(values(3, f"{number}."), transactional=True)
    Writer(partition, 1).end(ABORT)
    Writer(partition).send(values(3, "seen"))
    with contextlib.closing(LogDirectory(tmp_path)) as log:
        mapped = log.partition("orders", 0)
        assert len(read(mapped)) == 3
        directory.delete(KEY)
        assert [value for _, value in read(partition)] == values(3, "seen")
        assert [value for _, value in read(mapped)] == values(3, "seen")
        assert log.topics() == {}
        with pytest.raises(UnknownTopicOrPartitionError):
            log.read("orders")
        directory.create(KEY, TOPIC_ID)
        assert list(log.read("orders")) == []
    directory.close()


def test_the_name_of_a_deleted_partition_is_kafkas(tmp_path: Path) -> None:
    """Goal: a broker that finds it knows what to do; a long name is cut to what a file system takes."""
    names: list[str] = []

    class RenamingDisk(CountingDisk):
        def rename(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
            names.append(str(target).rpartition("/")[2])
            super().rename(source, target)

    directory = open_directory(tmp_path, disk=RenamingDisk())
    for topic in ("orders", "x" * 249):
        key = TopicPartition(topic, 12)
        directory.create(key, TOPIC_ID)
        directory.delete(key)
    short, long = (name for name in names if name.endswith("-delete"))
    assert re.fullmatch(r"orders-12\.[0-9a-f]{32}-delete", short)
    assert re.fullmatch(r"x+-12\.[0-9a-f]{32}-delete", long)
    assert len(long) == 255
    directory.close()


def test_what_a_crash_left_of_a_deletion_is_removed_at_the_next_opening(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path, SMALL)
    Writer(partition).send(values(3))
    directory.close()
    left = tmp_path / f"orders-0.{'0a' * 16}-delete"
    (tmp_path / "orders-0").rename(left)
    reader = open_directory(tmp_path, read_only=True)
    assert reader.partitions == []
    assert left.exists()
    open_directory(tmp_path).close()
    assert not left.exists()


def test_a_fault_at_any_call_leaves_all_of_a_partition_or_none(tmp_path: Path) -> None:
    """Method: fail the first call that deleting makes, then the second, and so on; open again and look."""
    outcomes = set()
    for at in range(1, 100):
        path = tmp_path / str(at)
        disk = FaultyDisk(10**9)
        directory, partition = open_partition(path, SMALL, disk=disk)
        for _ in range(4):
            Writer(partition).send(values(3))
        directory.checkpoint()
        disk._at = disk.calls + at
        with contextlib.suppress(KafkaStorageError):
            directory.delete(KEY)
        if disk.failed is None:
            break
        with contextlib.suppress(KafkaStorageError):
            directory.close()
        directory = open_directory(path, SMALL)
        is_there = KEY in directory
        outcomes.add(is_there)
        if is_there:
            assert len(read(directory.get(KEY))) == 12
        directory.create(KEY, TOPIC_ID)
        directory.close()
        assert sorted(entry.name for entry in path.iterdir() if entry.is_dir()) == ["orders-0"]
    assert outcomes == {True, False}
