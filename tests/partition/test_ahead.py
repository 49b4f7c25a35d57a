"""In "fsync" durability the file of a segment that is written is longer than its log: zeros that nobody ever sees."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from oncelog.base.errors import CorruptRecordError
from tests.sim.sim_disk import CountingDisk

from .logs import KEY, NOW, TOPIC_ID, Writer, open_directory, open_partition, options, read

if TYPE_CHECKING:
    from pathlib import Path

    from oncelog.partition.data_directory import DataDirectory
    from oncelog.partition.partition import Partition, PartitionOptions

AHEAD = 4000
SYNCED = options(segment_bytes=10_000, interval=200, ahead=AHEAD, is_synced_on_roll=True)
PLAIN = options(segment_bytes=10_000, interval=200)
VALUES = [b"record %d" % number for number in range(5)]


def written(path: Path) -> tuple[DataDirectory, Partition]:
    """A partition that is being written."""
    directory = open_directory(path, SYNCED)
    partition = directory.create(KEY, TOPIC_ID)
    writer = Writer(partition)
    for value in VALUES:
        partition.sync_to(writer.send([value]).last_offset + 1)
    return directory, partition


def died(path: Path, partition: Partition) -> Path:
    """What a kill would leave of a directory: a copy of its files as they are."""
    copy = path.with_name("died")
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns(".lock", ".kafka_cleanshutdown"))
    assert logs(copy)[0] > partition.log.size
    return copy


def values(partition: Partition) -> list[bytes | None]:
    return [value for _, value in read(partition)]


def logs(path: Path) -> list[int]:
    """Sizes of the .log files, oldest first."""
    return [file.stat().st_size for file in sorted((path / KEY.directory).glob("*.log"))]


def test_a_file_is_longer_than_its_log_only_while_it_is_written(tmp_path: Path) -> None:
    directory, partition = written(tmp_path)
    size = partition.log.size
    assert size < logs(tmp_path)[0] <= size + AHEAD
    partition.roll(NOW)
    assert logs(tmp_path) == [size, 0]
    Writer(partition, 7).send([b"more"])
    directory.close()
    assert sum(logs(tmp_path)) == partition.log.size
    _, again = open_partition(tmp_path, PLAIN, read_only=True)
    assert values(again) == [*VALUES, b"more"]


def test_a_file_grows_in_steps_and_never_past_a_full_segment(tmp_path: Path) -> None:
    disk = CountingDisk()
    directory = open_directory(tmp_path, SYNCED, disk=disk)
    partition = directory.create(KEY, TOPIC_ID)
    writer, sizes = Writer(partition), set()
    while len(partition.log.segments) == 1:
        writer.send([b"v" * 50])
        sizes.add(logs(tmp_path)[0])
    assert len(sizes) <= 5  # three steps, and what it is trimmed to
    assert max(sizes) <= 10_000
    directory.close()


@pytest.mark.parametrize("using", [SYNCED, PLAIN], ids=["fsync", "os"])
def test_zeros_behind_the_last_batch_are_no_damage(tmp_path: Path, using: PartitionOptions) -> None:
    """Goal: after a kill the log ends with its last batch, says nothing of damage, and goes on there."""
    directory, partition = written(tmp_path / "live")
    copy, size = died(tmp_path / "live", partition), partition.log.size
    directory.close()
    reader, found = open_partition(copy, using, read_only=True)
    assert values(found) == VALUES
    assert found.damage == []
    assert found.log.size == size
    reader.close()
    again, found = open_partition(copy, using)
    assert found.damage == []
    assert values(found) == VALUES
    Writer(found, 9).send([b"next"])
    assert values(found) == [*VALUES, b"next"]
    again.close()
    assert logs(copy) == [found.log.size]


def test_bytes_behind_the_zeros_are_cut_off(tmp_path: Path) -> None:
    """Goal: what a power failure has left of a batch behind a lost one never comes back.
    Method: a batch that is sound, with a gap of zeros before it."""
    directory, partition = written(tmp_path / "live")
    copy, size = died(tmp_path / "live", partition), partition.log.size
    directory.close()
    file = next((copy / KEY.directory).glob("*.log"))
    content = bytearray(file.read_bytes())
    content[size + 512 : 2 * size + 512] = content[:size]
    file.write_bytes(content)
    again, found = open_partition(copy, SYNCED)
    assert values(found) == VALUES
    (damage,) = found.damage
    assert isinstance(damage, CorruptRecordError)
    assert logs(copy) == [size]
    again.close()


def test_a_reader_in_another_process_sees_no_zeros(tmp_path: Path) -> None:
    directory, partition = written(tmp_path)
    reader, found = open_partition(tmp_path, SYNCED, read_only=True)
    assert found.log.size == partition.log.size
    assert values(found) == VALUES
    reader.close()
    directory.close()
