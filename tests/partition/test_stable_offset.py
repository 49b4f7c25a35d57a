"""What is stable: watermarks, isolation levels, aborted transactions, deleted records (UnifiedLog, ProducerState)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oncelog.base.errors import OffsetOutOfRangeError
from oncelog.partition.partition import Isolation
from oncelog.segment.batch import scan
from tests.partition.logs import (
    ABORT,
    COMMIT,
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

    from oncelog.partition.partition import Partition

SMALL = options(segment_bytes=400, interval=100)


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[Partition]:
    directory, opened = open_partition(tmp_path, SMALL)
    yield opened
    directory.close()


def aborted(partition: Partition, start: int, end: int) -> list[tuple[int, ...]]:
    return [tuple(row) for row in partition.aborted_transactions(start, end).tolist()]


def test_the_stable_offset_is_the_first_of_the_oldest_open_transaction(
    partition: Partition,
) -> None:
    first, second = Writer(partition, 1), Writer(partition, 2)
    Writer(partition).send(values(2))
    assert partition.last_stable_offset == partition.high_watermark == 2
    first.send(values(1), transactional=True)  # 2
    second.send(values(1), transactional=True)  # 3
    first.send(values(1), transactional=True)  # 4
    assert partition.last_stable_offset == 2
    second.end(COMMIT)  # 5
    assert partition.last_stable_offset == 2
    first.end(ABORT)  # 6
    assert partition.last_stable_offset == 7
    assert aborted(partition, 0, 7) == [(1, 2, 6, 7)]


def test_an_abort_says_what_was_stable_right_after_it(partition: Partition) -> None:
    long, short = Writer(partition, 1), Writer(partition, 2)
    long.send(values(1), transactional=True)
    for at in range(3):
        short.send(values(1, f"s{at}"), transactional=True)
        short.end(ABORT)
    long.end(ABORT)
    assert aborted(partition, 0, 8) == [(2, 1, 2, 0), (2, 3, 4, 0), (2, 5, 6, 0), (1, 0, 7, 8)]
    assert aborted(partition, 3, 5) == [(2, 3, 4, 0), (1, 0, 7, 8)]


def test_an_empty_transaction_leaves_no_entry(partition: Partition) -> None:
    writer = Writer(partition, 1)
    writer.send(values(1), transactional=True)
    writer.end(COMMIT)
    writer.end(ABORT)
    assert aborted(partition, 0, 10) == []
    assert not list(Path(partition.directory).glob("*.txnindex"))


def test_an_abort_over_several_segments_has_one_entry_in_its_markers_segment(
    tmp_path: Path,
) -> None:
    directory, partition = open_partition(tmp_path, SMALL)
    writer = Writer(partition, 1)
    for _ in range(12):
        writer.send(values(3, "gone"), transactional=True)
        Writer(partition).send(values(1, "kept"))
    writer.end(ABORT)
    end = partition.log_end_offset
    assert len(partition.log.segments) > 3
    names = [path.name for path in Path(partition.directory).glob("*.txnindex")]
    assert names == [Path(partition.log.active.path(".txnindex")).name]
    for segment in partition.log.segments:
        start = segment.base_offset
        assert aborted(partition, start, start + 1) == [(1, 0, end - 1, end)]
    for start in range(0, end, 5):
        assert {value for _, value in read(partition, start=start)} <= {b"kept0"}
    directory.close()
    for read_only in (True, False):
        directory, partition = open_partition(tmp_path, SMALL, read_only=read_only)
        assert [value for _, value in read(partition)] == [b"kept0"] * 12
        directory.close()


def test_no_reader_gets_anything_at_or_above_its_bound(partition: Partition) -> None:
    for at in range(4):
        Writer(partition).send(values(3, f"p{at}."))
    Writer(partition, 1).send(values(2), transactional=True)
    Writer(partition).send(values(2))
    assert partition.last_stable_offset == 12
    assert [offset for offset, _ in read(partition)] == list(range(12))
    assert [offset for offset, _ in read(partition, UNCOMMITTED)] == list(range(16))
    fetched = b"".join(
        bytes(partition.fetch(offset, 1 << 20, COMMITTED).records) for offset in (9,)
    )
    assert int(scan(fetched)["base_offset"][-1]) < 12
    for offset in (12, 13, 16):
        stopped = partition.fetch(offset, 1 << 20, COMMITTED)
        assert len(stopped.records) == 0
        assert stopped.aborted is not None
        assert len(stopped.aborted) == 0
    assert len(partition.fetch(12, 1 << 20, Isolation.LOG_END).records) > 0


def test_a_fetch_has_whole_batches_and_at_least_one(partition: Partition) -> None:
    for at in range(3):
        Writer(partition).send(values(3, f"p{at}."))
    size = int(scan(partition.log.segments[0].view())["size"][0])
    assert len(partition.fetch(0, 1, COMMITTED).records) == size
    assert len(partition.fetch(0, 1, COMMITTED, at_least_one=False).records) == 0
    assert len(partition.fetch(1, size, COMMITTED, at_least_one=False).records) == size
    assert len(partition.fetch(4, 2 * size + 1, COMMITTED).records) == 2 * size
    assert len(partition.fetch(9, 100, COMMITTED).records) == 0
    for offset in (-1, 10):
        with pytest.raises(OffsetOutOfRangeError):
            partition.fetch(offset, 100, COMMITTED)


def test_deleting_records_moves_the_start_and_drops_whole_segments(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path, SMALL)
    for at in range(12):
        Writer(partition, 1, sequence=3 * at).send(values(3, f"p{at}."))
    bases = [segment.base_offset for segment in partition.log.segments]
    assert len(bases) > 2
    for bad in (37, -2):
        with pytest.raises(OffsetOutOfRangeError):
            partition.delete_records(bad)
    assert partition.delete_records(bases[2] + 1) == bases[2] + 1
    assert partition.log.start_offset == bases[2]
    names = {path.name for path in Path(partition.directory).iterdir()}
    assert not any(name.startswith(f"{bases[1]:020d}") for name in names)
    assert partition.delete_records(1) == bases[2] + 1, "it does not go back"
    with pytest.raises(OffsetOutOfRangeError):
        partition.fetch(bases[2], 100, COMMITTED)
    assert read(partition)[0][0] == bases[2] + 1
    assert partition.delete_records(-1) == 36, "-1 is the high watermark"
    assert (partition.log_start_offset, partition.log_end_offset) == (36, 36)
    assert Writer(partition, 1, sequence=33).send(values(3, "p11.")).is_duplicate
    directory.close()


def test_the_stable_offset_is_lifted_to_the_start(partition: Partition) -> None:
    writer = Writer(partition, 1)
    for _ in range(8):
        writer.send(values(2), transactional=True)
    assert partition.last_stable_offset == 0
    partition.delete_records(15)
    assert partition.log.start_offset > 0
    assert partition.last_stable_offset == 15
    Writer(partition).send(values(2))
    assert partition.last_stable_offset == 15
    writer.end(ABORT)
    assert partition.last_stable_offset == 19
    assert [offset for offset, _ in read(partition)] == [16, 17]


def test_truncation_takes_back_transactions_sequences_and_epochs(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path, SMALL)
    writer = Writer(partition, 1)
    writer.send(values(2), transactional=True)  # 0, 1
    writer.end(ABORT)  # 2
    for at in range(8):
        writer.send(values(2, f"w{at}."), transactional=True, leader_epoch=at)  # 3 to 18
    assert len(partition.log.segments) > 2
    partition.truncate_to(8, NOW)
    assert partition.log_end_offset == 7, "the batch that holds the offset goes as well"
    assert partition.last_stable_offset == 3
    assert partition.epochs.entries == [(0, 0), (1, 5)]
    assert aborted(partition, 0, 7) == [(1, 0, 2, 3)]
    assert writer.on(partition).partition.producers.table.get(1)["last_sequence"] == 3  # type: ignore[index]
    again = Writer(partition, 1, epoch=1, sequence=4).send(values(2), transactional=True)
    assert (again.base_offset, again.is_duplicate) == (7, False)
    known = read(partition, UNCOMMITTED)
    directory.close()
    directory, partition = open_partition(tmp_path, SMALL)
    assert read(partition, UNCOMMITTED) == known
    partition.truncate_to(0, NOW)
    assert partition.log_end_offset == partition.last_stable_offset == 0
    assert partition.need_state().table.snapshot().tolist() == []
    Writer(partition, 1).send(values(1), transactional=True)
    partition.truncate_to(5, NOW)
    assert partition.log_end_offset == 1, "past the end there is nothing to do"
    directory.close()


def test_the_recovery_point_on_disk_never_promises_what_was_cut(tmp_path: Path) -> None:
    from oncelog.log.checkpoint import RECOVERY_POINT, read_offsets

    directory, partition = open_partition(tmp_path, SMALL)
    for at in range(6):
        Writer(partition).send(values(3, f"p{at}."))
    partition.sync()
    directory.checkpoint()
    partition.truncate_to(6, NOW)
    assert list(read_offsets(str(tmp_path / RECOVERY_POINT)).values()) == [6]
    directory.close()


def test_offsets_by_time_are_right_with_unordered_stamps_and_after_truncation(
    partition: Partition,
) -> None:
    assert partition.max_timestamp() is None
    assert partition.offset_for_timestamp(0) is None
    for at, stamp in enumerate((5, 9, 7, 9, 20, 3, 11)):
        Writer(partition).send(values(2, f"p{at}."), timestamp_ms=NOW + stamp)
    find = partition.offset_for_timestamp
    assert find(NOW) == (NOW + 5, 0)
    assert find(NOW + 6) == (NOW + 9, 2)
    assert find(NOW + 9) == (NOW + 9, 2)
    assert find(NOW + 10) == (NOW + 20, 8)
    assert find(NOW + 21) is None
    assert partition.max_timestamp() == (NOW + 20, 8)
    partition.truncate_to(8, NOW)
    assert partition.max_timestamp() == (NOW + 9, 2)
    assert find(NOW + 10) is None
    Writer(partition, 1).send(values(1), transactional=True, timestamp_ms=NOW + 30)
    assert find(NOW + 25) == (NOW + 30, 8)
    assert find(NOW + 25, COMMITTED) is None


def test_readers_beside_a_writer_see_nothing_undecided_and_nothing_aborted(tmp_path: Path) -> None:
    """Goal: appends, aborts, rolls and deletions under the feet of readers do no harm: no crash, no wrong record.
    Method: three threads read at read_committed without pause while transactions come and go."""
    directory, partition = open_partition(tmp_path, options(segment_bytes=900, interval=100))
    stop, problems, rounds = threading.Event(), [], []

    def watch() -> None:
        seen = 0
        try:
            while not stop.is_set():
                found = read(partition)
                bad = [
                    value for _, value in found if value is None or not value.startswith(b"kept")
                ]
                assert not bad, bad[:3]
                offsets = [offset for offset, _ in found]
                assert offsets == sorted(set(offsets))
                seen += 1
        except BaseException as error:  # noqa: BLE001
            problems.append(error)
        rounds.append(seen)

    readers = [threading.Thread(target=watch) for _ in range(3)]
    for thread in readers:
        thread.start()
    good, bad = Writer(partition, 1), Writer(partition, 2)
    for turn in range(250):
        bad.send(values(2, "gone"), transactional=True)
        good.send(values(2, "kept"), transactional=True)
        Writer(partition).send(values(1, "kept"))
        bad.send(values(1, "gone"), transactional=True)
        good.end(COMMIT)
        bad.end(ABORT)
        if turn % 40 == 39:
            partition.delete_records(partition.log_end_offset - 60)
    stop.set()
    for thread in readers:
        thread.join()
    assert not problems, problems
    assert min(rounds) > 0
    directory.close()


def test_a_reader_of_what_is_truncated_or_removed_is_not_killed(tmp_path: Path) -> None:
    """Goal: no SIGBUS: what a reader holds stays mapped.
    Method: take windows and bytes, then truncate and delete under them, and touch every byte."""
    directory, partition = open_partition(tmp_path, options(segment_bytes=20_000))
    for at in range(40):
        Writer(partition, 1, sequence=at).send([b"x" * 3000])
    fetched = partition.fetch(0, 1 << 20, COMMITTED).records
    windows = list(partition.windows(0, 2**62, COMMITTED))
    views = [window.segment.view() for window in windows]
    checksums = [sum(view) for view in views]
    partition.delete_records(15)
    partition.truncate_to(30, NOW)
    assert [sum(view) for view in views] == checksums
    assert len(scan(fetched)) > 1
    removed = windows[0].segment
    assert len(list(removed.rows())) == 1, (
        "a segment that was removed can still be read by who has it"
    )
    directory.close()
    assert [sum(view) for view in views] == checksums
