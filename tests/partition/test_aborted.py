"""Which aborted transactions a read gets to know of, however many segments lie behind it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from oncelog.segment.names import TXN_INDEX
from oncelog.segment.txn_index import TxnIndexFile
from tests.partition.logs import ABORT, COMMIT, COMMITTED, Writer, open_partition, options, values

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from oncelog.partition.partition import Partition

SMALL = options(segment_bytes=400)  # a few batches


def fill(partition: Partition, segments: int) -> None:
    while len(partition.log.segments) < segments:
        Writer(partition).send(values(2))


def known(partition: Partition, start: int, end: int) -> list[tuple[int, ...]]:
    return [tuple(row) for row in partition.aborted_transactions(start, end).tolist()]


def everything(partition: Partition) -> list[tuple[int, ...]]:
    """What all indexes hold, entry by entry."""
    names = ("producer_id", "first_offset", "last_offset", "last_stable_offset")
    return [
        tuple(int(row[name]) for name in names)
        for segment in partition.log.segments
        for row in segment.txn_index.index.entries()
    ]


def count_asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    asked: list[int] = []
    collect = TxnIndexFile.collect

    def counting(self: TxnIndexFile, fetch_offset: int, upper_bound: int):  # type: ignore[no-untyped-def]
        asked.append(self.base_offset)
        return collect(self, fetch_offset, upper_bound)

    monkeypatch.setattr(TxnIndexFile, "collect", counting)
    return asked


def test_a_read_asks_as_few_segments_however_many_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a fetch costs the same in a log of 4 segments and of 64; a whole read is linear, not quadratic.
    Method: count the indexes that are asked, without aborts and with one abort per segment."""
    for name, aborts in (("none", False), ("each", True)):
        directory, partition = open_partition(tmp_path / name, SMALL)
        counts, writer = [], Writer(partition, producer_id=7)
        for size in (4, 64):
            while len(partition.log.segments) < size:
                if aborts:
                    writer.send(values(1), transactional=True)
                    writer.end(ABORT)
                else:
                    Writer(partition).send(values(2))
            partition.fetch(0, 1, COMMITTED)  # what is asked once is remembered
            with monkeypatch.context() as patch:
                asked = count_asked(patch)
                partition.fetch(0, 1, COMMITTED)
                counts.append(len(asked))
        assert counts[0] == counts[1] <= 3, (name, counts)
        directory.close()


def test_every_read_knows_of_every_transaction_that_concerns_it(tmp_path: Path) -> None:
    """Goal: nothing that was aborted in or after a range of offsets, and began before its end, is left out.
    Method: random transactions over tiny segments, while they are written and after opening anew; each answer is
    compared with a look at all entries of all segments."""
    chance = random.Random(20)
    directory, partition = open_partition(tmp_path, SMALL)
    writers = [Writer(partition, producer_id=number) for number in range(4)]
    is_open = [False] * len(writers)
    for step in range(400):
        number = chance.randrange(len(writers))
        # One is open for long, so that its marker lies many segments behind its first record.
        if is_open[number] and chance.random() < (0.02 if number == 0 else 0.5):
            writers[number].end(ABORT if chance.random() < 0.7 else COMMIT)
            is_open[number] = False
        else:
            writers[number].send(values(2), transactional=True)
            is_open[number] = True
        if step % 4 == 0:
            compare(partition, chance)
    assert len(partition.log.segments) > 20
    directory.close()
    directory, partition = open_partition(tmp_path, SMALL, read_only=True)
    for _ in range(20):
        compare(partition, chance)
    directory.close()


def compare(partition: Partition, chance: random.Random) -> None:
    end = partition.log_end_offset
    start = chance.randrange(end)
    bound = chance.randrange(start, end) + 1
    expected = [row for row in everything(partition) if row[2] >= start and row[1] < bound]
    assert known(partition, start, bound) == expected


def test_an_abort_far_behind_its_data_is_found_past_segments_without_any(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path, SMALL)
    lost = Writer(partition, producer_id=7)
    lost.send(values(1), transactional=True)
    fill(partition, 10)
    assert known(partition, 0, 1) == []
    lost.end(ABORT)
    fill(partition, 20)
    assert [row[:2] for row in known(partition, 0, 1)] == [(7, 0)]
    assert known(partition, partition.log.segments[15].base_offset, partition.log_end_offset) == []
    directory.close()


def closed_with_one_index(path: Path) -> Path:
    """A log whose first transaction was aborted some segments later, and the only index that says so."""
    directory, partition = open_partition(path, SMALL)
    lost = Writer(partition, producer_id=7)
    lost.send(values(1), transactional=True)
    fill(partition, 5)
    lost.end(ABORT)
    fill(partition, 10)
    directory.close()
    (index,) = path.glob(f"*/*{TXN_INDEX}")
    return index


def test_a_damaged_index_far_behind_is_made_anew_and_believed(tmp_path: Path) -> None:
    """Goal: what is remembered of a segment is not what stood in a file that cannot be believed.
    Method: cut the one index there is, open, read; then read again from what is remembered now."""
    index = closed_with_one_index(tmp_path)
    index.write_bytes(index.read_bytes()[:-1])
    directory, partition = open_partition(tmp_path, SMALL)
    for _ in range(2):
        assert [row[:2] for row in known(partition, 0, 1)] == [(7, 0)]
    directory.close()


def test_an_index_that_was_lost_is_remembered_as_it_was_made_anew(tmp_path: Path) -> None:
    """Goal: what is remembered of a segment changes with its index.
    Method: remove the one index there is; who reads past the marker finds out, and then everyone knows."""
    index = closed_with_one_index(tmp_path)
    index.unlink()
    directory, partition = open_partition(tmp_path, SMALL)
    assert known(partition, 0, 1) == []
    for _ in partition.windows(0, partition.log_end_offset, COMMITTED):
        pass
    assert [row[:2] for row in known(partition, 0, 1)] == [(7, 0)]
    directory.close()


def test_a_transaction_of_a_segment_that_was_just_sealed_is_not_passed_over(tmp_path: Path) -> None:
    """Goal: what is remembered of a list of segments is not believed of a longer one.
    Method: remember many; then an abort is sealed; read in the middle, where fewer segments follow than before."""
    directory, partition = open_partition(tmp_path, SMALL)
    fill(partition, 20)
    assert known(partition, 0, partition.log_end_offset) == []
    late = Writer(partition, producer_id=7)
    first = late.send(values(1), transactional=True).base_offset
    fill(partition, 22)
    late.end(ABORT)
    fill(partition, 26)
    assert [row[:2] for row in known(partition, first, first + 1)] == [(7, first)]
    directory.close()


def test_what_is_cut_off_is_forgotten(tmp_path: Path) -> None:
    """Goal: truncation takes back an abort in a segment that was sealed, and another may follow in its place.
    Method: the same transaction is aborted, cut off with its segment, and aborted again."""
    directory, partition = open_partition(tmp_path, SMALL)
    lost = Writer(partition, producer_id=7)
    lost.send(values(1), transactional=True)
    fill(partition, 5)
    before = partition.log_end_offset
    for size in (12, 9):
        marker = lost.end(ABORT)
        fill(partition, size)
        assert [row[:3] for row in known(partition, 0, 1)] == [(7, 0, marker.base_offset)]
        partition.truncate_to(before, 0)
        assert known(partition, 0, 1) == []
        lost.epoch -= 1
    directory.close()


def test_a_reader_of_segments_that_are_gone_is_told_by_their_own_indexes(tmp_path: Path) -> None:
    """Goal: the segments that are in the log now do not speak for those that a reader still holds.
    Method: a reader takes its segments; they are cut off and others, without the abort, take their place."""
    directory, partition = open_partition(tmp_path, SMALL)
    lost = Writer(partition, producer_id=7)
    lost.send(values(1), transactional=True)
    fill(partition, 5)
    before = partition.log_end_offset
    fill(partition, 7)
    lost.end(ABORT)
    fill(partition, 10)
    held = partition.log.from_offset(0)
    first = partition.aborted_transactions(0, 1, held).tolist()
    assert len(first) == 1
    partition.truncate_to(before, 0)
    fill(partition, 10)
    assert known(partition, 0, 1) == []
    assert partition.aborted_transactions(0, 1, held).tolist() == first
    directory.close()
