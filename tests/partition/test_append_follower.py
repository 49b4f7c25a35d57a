"""What a follower takes from its leader: everything that follows its own log, as it is (UnifiedLog)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oncelog.base.errors import CorruptRecordError, UnexpectedAppendOffsetError
from oncelog.segment.batch import EncodedBatches, encode, encode_marker, restamp
from tests.partition.logs import (
    ABORT,
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
def partition(tmp_path: Path) -> Iterator[Partition]:
    directory, opened = open_partition(tmp_path)
    yield opened
    directory.close()


def batch(offset: int, count: int = 2, epoch: int = 0, **rest: object) -> bytearray:
    made = encode(values(count, f"{offset}."), timestamp_ms=NOW, **rest)  # type: ignore[arg-type]
    restamp(made, base_offset=offset, partition_leader_epoch=epoch)
    return bytearray(memoryview(made))


def follow(partition: Partition, *parts: bytearray | EncodedBatches, **rest: int) -> int:
    data = bytearray().join(bytearray(memoryview(part)) for part in parts)
    return partition.append_as_follower(data, now_ms=NOW, **rest)


def test_gaps_are_taken_and_epochs_kept(partition: Partition) -> None:
    assert follow(partition, batch(0), batch(5, epoch=3), batch(9, epoch=3)) == 11
    assert follow(partition, batch(20, epoch=4)) == 22
    assert [offset for offset, _ in read(partition)] == [0, 1, 5, 6, 9, 10, 20, 21]
    assert partition.epochs.entries == [(0, 0), (3, 5), (4, 20)]
    assert [partition.epochs.epoch_of(at) for at in (0, 4, 5, 19, 20)] == [0, 0, 3, 3, 4]


def test_an_offset_below_the_end_is_refused_and_the_log_unchanged(partition: Partition) -> None:
    follow(partition, batch(0), batch(2))
    for parts in ([batch(3)], [batch(0)], [batch(4), batch(5)]):
        with pytest.raises(UnexpectedAppendOffsetError):
            follow(partition, *parts)
        assert partition.log_end_offset == 4
    assert follow(partition, batch(4)) == 6


def test_an_offset_below_the_start_of_an_empty_log_is_refused(partition: Partition) -> None:
    follow(partition, batch(0, 4))
    partition.delete_records(-1)
    partition.truncate_to(4, NOW)
    with pytest.raises(UnexpectedAppendOffsetError):
        follow(partition, batch(2))
    assert follow(partition, batch(4)) == 6


def test_a_cut_tail_is_left_out(partition: Partition) -> None:
    """As a fetch cuts it: in the records, in the header, in the first bytes."""
    whole, tail = batch(0), batch(2)
    end = 0
    for kept in (len(tail) - 1, 61, 30, 5):
        assert follow(partition, whole, tail[:kept]) == end + 2
        end += 2
        whole, tail = batch(end), batch(end + 2)
    assert follow(partition, tail[:20]) == end, "nothing whole, nothing appended"
    assert [offset for offset, _ in read(partition)] == list(range(end))


def test_a_damaged_batch_is_refused_with_all_before_it(partition: Partition) -> None:
    damaged = batch(2)
    damaged[70] ^= 4
    with pytest.raises(CorruptRecordError):
        follow(partition, batch(0), damaged)
    assert partition.log_end_offset == 0


def test_batches_of_a_newer_leader_than_the_one_asked_are_left_out(partition: Partition) -> None:
    assert follow(partition, batch(0, epoch=1), batch(2, epoch=2), leader_epoch=1) == 2
    assert follow(partition, batch(2, epoch=2), leader_epoch=1) == 2
    assert follow(partition, batch(2, epoch=2), batch(4, epoch=1), leader_epoch=2) == 6
    assert partition.epochs.entries == [(1, 0), (2, 2)]


def test_any_sequence_is_taken_and_remembered(partition: Partition) -> None:
    follow(partition, batch(0, 2, producer_id=5, producer_epoch=3, base_sequence=40))
    again = Writer(partition, 5, epoch=3, sequence=40).send(values(2))
    assert again.is_duplicate


def test_an_abort_that_comes_with_its_data_in_one_set_is_indexed(partition: Partition) -> None:
    """Goal: markers end transactions that begin in the same append.
    Method: two transactions, one aborted, the other still open, in a single set of batches."""
    data = [
        batch(0, 2, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True),
        batch(2, 1, producer_id=2, producer_epoch=0, base_sequence=0, transactional=True),
        batch(3, 1),
    ]
    marker = encode_marker(
        ABORT, producer_id=1, producer_epoch=1, coordinator_epoch=0, timestamp_ms=NOW, base_offset=4
    )
    follow(partition, *data, marker)
    assert [tuple(row) for row in partition.aborted_transactions(0, 5).tolist()] == [(1, 0, 4, 2)]
    assert partition.last_stable_offset == 2
    assert read(partition) == []
    assert [offset for offset, _ in read(partition, UNCOMMITTED)] == [0, 1, 2, 3]


def test_offsets_beyond_the_reach_of_a_segment_start_a_new_one(tmp_path: Path) -> None:
    """Goal: an index holds 31 bits; a batch past them rolls, and an empty segment is replaced.
    Method: jump twice, close, reopen; then the jump within one set, which is refused before anything is written."""
    far, further = 2**31 + 7, 2**33
    directory, partition = open_partition(tmp_path)
    follow(partition, batch(far))
    assert [segment.base_offset for segment in partition.log.segments] == [far]
    follow(partition, batch(further))
    assert [segment.base_offset for segment in partition.log.segments] == [far, further]
    edge = far + 2**31 - 1
    directory.close()
    directory, partition = open_partition(tmp_path)
    assert [offset for offset, _ in read(partition)] == [far, far + 1, further, further + 1]
    assert edge < further
    before = partition.log.active.size
    from oncelog.base.errors import OffsetOutOfRangeError

    with pytest.raises(OffsetOutOfRangeError, match="too far"):
        follow(partition, batch(further + 2), batch(further + 2**32))
    assert partition.log.active.size == before or partition.log.active.size == 0
    assert partition.log_end_offset == further + 2
    follow(partition, batch(further + 2))
    directory.close()


def test_many_batches_in_one_set_do_not_overflow_a_small_index(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path, options(index_bytes=48, interval=1))
    data = [batch(2 * number) for number in range(40)]
    assert follow(partition, *data) == 80
    assert follow(partition, batch(80)) == 82
    assert len(partition.log.segments) == 2, "a full index rolls"
    assert [offset for offset, _ in read(partition, start=37)] == list(range(37, 82))
    directory.close()
    directory, partition = open_partition(tmp_path, options(index_bytes=48, interval=1))
    assert len(read(partition)) == 82
    directory.close()
