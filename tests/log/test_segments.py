"""Reading and cutting segments: gaps, batch boundaries, ends (LogSegment, LocalLog)."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from oncelog.base.errors import CorruptRecordError, OffsetOutOfRangeError
from oncelog.log.checkpoint import CLEAN_SHUTDOWN
from oncelog.segment.batch import encode, restamp, scan
from tests.partition.logs import (
    ABORT,
    COMMITTED,
    NOW,
    UNCOMMITTED,
    Writer,
    open_partition,
    options,
    read,
    values,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncelog.partition.partition import Partition


@pytest.fixture
def gaps(tmp_path: Path) -> Iterator[Partition]:
    """Batches at 10-11, 20-22 and 40, as compaction leaves them, over two segments."""
    directory, partition = open_partition(tmp_path)
    for offset, count in ((10, 2), (20, 3), (40, 1)):
        batch = encode(values(count, f"{offset}."), timestamp_ms=NOW + offset)
        restamp(batch, base_offset=offset, partition_leader_epoch=0)
        partition.append_as_follower(batch, now_ms=NOW)
        if offset == 20:
            partition.roll(NOW)
    yield partition
    directory.close()


def first_of(partition: Partition, offset: int) -> int | None:
    """Base offset of the first batch that a fetch gets."""
    records = partition.fetch(offset, 1, COMMITTED).records
    return int(scan(records)["base_offset"][0]) if len(records) else None


def test_an_empty_log_has_nothing_to_read(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path)
    assert read(partition) == []
    assert first_of(partition, 0) is None
    assert list(partition.log.active.rows()) == []
    directory.close()


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (0, 10),
        (10, 10),
        (11, 10),
        (12, 20),
        (19, 20),
        (21, 20),
        (23, 40),
        (39, 40),
        (40, 40),
        (41, None),
    ],
)
def test_a_fetch_begins_with_the_batch_that_holds_the_offset_or_the_next(
    gaps: Partition, offset: int, expected: int | None
) -> None:
    assert first_of(gaps, offset) == expected


def test_a_fetch_past_the_end_is_out_of_range(gaps: Partition) -> None:
    with pytest.raises(OffsetOutOfRangeError, match="0 to 41, not 42"):
        first_of(gaps, 42)


@pytest.mark.parametrize(
    ("offset", "left", "end"),
    [
        (41, [10, 11, 20, 21, 22, 40], 41),
        (40, [10, 11, 20, 21, 22], 23),
        (30, [10, 11, 20, 21, 22], 23),
        (22, [10, 11], 12),
        (15, [10, 11], 12),
        (11, [], 0),
        (0, [], 0),
    ],
)
def test_truncation_takes_whole_batches_and_works_in_gaps(
    tmp_path: Path, gaps: Partition, offset: int, left: list[int], end: int
) -> None:
    gaps.truncate_to(offset, NOW)
    assert [at for at, _ in read(gaps)] == left
    newest = left[-1] - left[-1] % 10 if left else 0
    assert gaps.max_timestamp() == ((NOW + newest, newest) if left else None)
    assert gaps.log_end_offset in (end, max(end, gaps.log.active.base_offset))
    done = Writer(gaps).send(values(2))
    assert [at for at, _ in read(gaps)] == [*left, done.base_offset, done.last_offset]


def test_a_damaged_batch_stops_a_reader_of_a_clean_log_with_its_place(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path)
    for _ in range(3):
        Writer(partition).send(values(2))
    second = int(scan(partition.log.active.view())["position"][1])
    directory.close()
    (log,) = (tmp_path / "orders-0").glob("*.log")
    data = bytearray(log.read_bytes())
    data[second + 65] ^= 1
    log.write_bytes(data)
    directory, partition = open_partition(tmp_path, read_only=True)
    with pytest.raises(CorruptRecordError) as caught:
        read(partition)
    assert caught.value.position == second
    assert [offset for offset, _ in read(partition, UNCOMMITTED, end=2)] == [0, 1]
    directory.close()


def test_a_damaged_batch_in_the_middle_ends_the_log_at_recovery(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path)
    for _ in range(3):
        Writer(partition).send(values(2))
    second = int(scan(partition.log.active.view())["position"][1])
    directory.close()
    (log,) = (tmp_path / "orders-0").glob("*.log")
    data = bytearray(log.read_bytes())
    data[second + 65] ^= 1
    log.write_bytes(data)
    (tmp_path / CLEAN_SHUTDOWN).unlink()
    directory, partition = open_partition(tmp_path)
    assert partition.log_end_offset == 2
    assert log.stat().st_size == second
    (damage,) = partition.damage
    assert isinstance(damage, CorruptRecordError)
    assert damage.position == second
    directory.close()


def test_recovery_keeps_an_abort_that_began_before_the_recovery_point(tmp_path: Path) -> None:
    """Goal: the snapshot at the first segment to be recovered knows where its open transactions began.
    Method: data in synced segments, the marker in one that is recovered."""
    using = options(segment_bytes=400, interval=100)
    directory, partition = open_partition(tmp_path / "data", using)
    writer = Writer(partition, 1)
    for _ in range(8):
        writer.send(values(2, "gone"), transactional=True)
    partition.sync()
    directory.checkpoint()
    partition.roll(NOW)
    Writer(partition).send(values(1, "kept"))
    writer.end(ABORT)
    known = partition.aborted_transactions(0, 18).tolist()
    assert known == [(1, 0, 17, 18)]
    shutil.copytree(tmp_path / "data", tmp_path / "crashed")
    directory.close()
    for file in (tmp_path / "crashed" / "orders-0").glob("*.txnindex"):
        file.unlink()
    for read_only in (True, False):
        directory, partition = open_partition(tmp_path / "crashed", using, read_only=read_only)
        assert partition.aborted_transactions(0, 18).tolist() == known
        assert [value for _, value in read(partition)] == [b"kept0"]
        directory.close()


def test_a_preallocated_file_that_a_kill_left_is_no_obstacle(tmp_path: Path) -> None:
    """Zeros behind the entries of an index, and behind the last batch of a log."""
    directory, partition = open_partition(tmp_path / "data", options(interval=1))
    for number in range(6):
        Writer(partition).send(values(1, f"{number}."), timestamp_ms=NOW + number)
    known = read(partition)
    shutil.copytree(tmp_path / "data", tmp_path / "killed")
    directory.close()
    where = tmp_path / "killed" / "orders-0"
    assert (where / f"{0:020d}.index").stat().st_size == 4096
    with (where / f"{0:020d}.log").open("ab") as file:
        file.write(bytes(1000))
    for read_only in (True, False):
        directory, partition = open_partition(
            tmp_path / "killed", options(interval=1), read_only=read_only
        )
        assert read(partition) == known
        assert partition.offset_for_timestamp(NOW + 4) == (NOW + 4, 4)
        directory.close()
    assert (where / f"{0:020d}.index").read_bytes() == (
        tmp_path / "data" / "orders-0" / f"{0:020d}.index"
    ).read_bytes()


def test_readers_of_a_directory_whose_segments_go_get_a_typed_error(tmp_path: Path) -> None:
    """A writer that comes later may delete what a reader has listed but not mapped yet."""
    using = options(segment_bytes=300)
    directory, partition = open_partition(tmp_path, using)
    for number in range(9):
        Writer(partition).send(values(2, f"{number}."))
    directory.close()
    reading, shown = open_partition(tmp_path, using, read_only=True)
    for segment in shown.log.segments:
        segment.close()
    directory, partition = open_partition(tmp_path, using)
    partition.delete_records(-1)
    with pytest.raises(OffsetOutOfRangeError, match="removed"):
        read(shown, UNCOMMITTED)
    reading.close()
    directory.close()
