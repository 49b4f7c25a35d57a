"""When a log starts a new segment: on the append that crosses a limit, and not before (LogSegment, UnifiedLog)."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from oncelog._native.segment import Batches, stamp
from oncelog.base.errors import OffsetOutOfRangeError
from oncelog.log.log import Log, LogOptions
from oncelog.partition.partition import Partition
from oncelog.segment.batch import encode, scan
from oncelog.segment.segment import SegmentOptions
from tests.partition.logs import NOW, Writer, open_partition, options, read, values


def bases(partition: object) -> list[int]:
    return [segment.base_offset for segment in partition.log.segments]  # type: ignore[attr-defined]


def test_by_size_on_the_append_that_does_not_fit(tmp_path: Path) -> None:
    size = len(encode(values(1), keys=[b"k"], timestamp_ms=NOW))
    directory, partition = open_partition(tmp_path, options(segment_bytes=3 * size))
    for _ in range(3):
        Writer(partition).send(values(1))
    assert bases(partition) == [0], "three fit exactly"
    Writer(partition).send(values(1))
    assert bases(partition) == [0, 3]
    directory.close()


def test_by_time_counted_from_the_first_batch_in_the_records_own_time(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path, options(segment_ms=1000))
    Writer(partition).send(values(1), timestamp_ms=NOW - 5000)
    Writer(partition, now_ms=NOW + 9999).send(values(1), timestamp_ms=NOW - 4000)
    assert bases(partition) == [0], "at the limit, whatever the clock says"
    Writer(partition).send(values(1), timestamp_ms=NOW - 3999)
    assert bases(partition) == [0, 2]
    Writer(partition).send(values(1), timestamp_ms=NOW - 9000)
    assert bases(partition) == [0, 2], "older records do not roll"
    directory.close()
    directory, partition = open_partition(tmp_path, options(segment_ms=1000))
    Writer(partition).send(values(1), timestamp_ms=NOW - 2998)
    assert bases(partition) == [0, 2, 4], "the first batch's time is known again after reopening"
    directory.close()


def test_by_the_clock_where_records_have_no_time(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path, options(segment_ms=1000))
    Writer(partition, now_ms=NOW).send(values(1), timestamp_ms=-1)
    Writer(partition, now_ms=NOW + 1000).send(values(1), timestamp_ms=-1)
    assert bases(partition) == [0]
    Writer(partition, now_ms=NOW + 1001).send(values(1), timestamp_ms=-1)
    assert bases(partition) == [0, 2]
    directory.close()


def test_truncation_to_nothing_starts_the_time_anew(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path, options(segment_ms=1000))
    Writer(partition).send(values(1), timestamp_ms=NOW - 5000)
    partition.truncate_to(0, NOW)
    Writer(partition).send(values(1), timestamp_ms=NOW)
    Writer(partition).send(values(1), timestamp_ms=NOW + 500)
    assert bases(partition) == [0]
    directory.close()


def test_jitter_spreads_rolls_over_logs_and_segments_but_never_beyond_its_limit() -> None:
    chosen = LogOptions(segment_ms=10_000, segment_jitter_ms=4_000)
    spread = {chosen.jitter_ms_of(base, f"t-{number}") for base in (0, 7) for number in range(50)}
    assert len(spread) > 50
    assert all(0 <= jitter < 4_000 for jitter in spread)
    wide = LogOptions(segment_ms=10, segment_jitter_ms=4_000)
    assert all(wide.jitter_ms_of(base, "t-0") < 10 for base in range(50))


def test_jitter_makes_a_segment_roll_earlier(tmp_path: Path) -> None:
    using = options(segment_ms=10_000, jitter_ms=9_000)
    directory, partition = open_partition(tmp_path, using)
    early = using.log.jitter_ms_of(0, partition.directory)
    assert early > 0
    Writer(partition).send(values(1), timestamp_ms=NOW - 10_000)
    Writer(partition).send(values(1), timestamp_ms=NOW - early)
    assert bases(partition) == [0]
    Writer(partition).send(values(1), timestamp_ms=NOW - early + 1)
    assert bases(partition) == [0, 2]
    directory.close()


def test_by_a_full_index(tmp_path: Path) -> None:
    """Either index: 48 bytes hold six offsets, or four timestamps, of which the last is kept for the seal."""
    directory, partition = open_partition(tmp_path, options(index_bytes=48, interval=1))
    for number in range(8):
        Writer(partition).send(values(1), timestamp_ms=NOW + number)
    assert bases(partition) == [0, 4]
    directory.close()


def test_a_new_segment_begins_at_the_end_and_an_empty_one_is_not_rolled(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path)
    partition.roll(NOW)
    assert bases(partition) == [0]
    Writer(partition).send(values(3))
    partition.roll(NOW)
    partition.roll(NOW)
    assert bases(partition) == [0, 3]
    with pytest.raises(OffsetOutOfRangeError):
        partition.log.roll(NOW, 2)
    directory.close()


def test_files_of_an_empty_segment_at_the_same_base_are_replaced(tmp_path: Path) -> None:
    """Goal: what a roll that was killed has left is no obstacle.
    Method: put an empty .log and nonsense into the way."""
    directory, partition = open_partition(tmp_path)
    Writer(partition).send(values(3))
    where = Path(partition.directory)
    (where / f"{3:020d}.log").touch()
    (where / f"{3:020d}.index").write_bytes(b"nonsense")
    partition.roll(NOW)
    Writer(partition).send(values(2, "w"))
    assert [value for _, value in read(partition)] == [*values(3), *values(2, "w")]
    directory.close()
    directory, partition = open_partition(tmp_path)
    assert bases(partition) == [0, 3]
    assert len(read(partition)) == 5
    directory.close()


def test_sealed_files_are_trimmed_and_the_active_ones_preallocated(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path, options(index_bytes=4096, interval=1))
    for number in range(5):
        Writer(partition).send(values(1), timestamp_ms=NOW + number)
    partition.roll(NOW)
    where = Path(partition.directory)
    sizes = {path.name[-9:]: path.stat().st_size for path in where.glob(f"{0:020d}*")}
    # The first batch has no entry; the time index gets one more when it is sealed, unless it is there already.
    assert sizes["000.index"] == 4 * 8
    assert sizes["timeindex"] == 4 * 12
    assert (where / f"{5:020d}.index").stat().st_size == 4096
    directory.close()
    assert (where / f"{5:020d}.index").stat().st_size == 0


def test_descriptors_of_sealed_segments_do_not_pile_up(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path, options(segment_bytes=200))
    for number in range(60):
        Writer(partition, 1, sequence=number).send(values(1))
    assert len(partition.log.segments) > 25
    held = [segment for segment in partition.log.segments if segment._descriptor >= 0]
    assert len(held) <= 17
    partition.sync()
    assert [segment for segment in partition.log.segments if segment._descriptor >= 0] == [
        partition.log.active
    ]
    directory.close()


def _with_offset(data: bytearray, offset: int) -> Batches:
    """The batch of a buffer as it will be once it is stamped."""
    stamped = bytearray(data)
    batches = Batches(scan(stamped))
    stamp(stamped, batches, offset, 0)
    return batches


@pytest.mark.parametrize("seed", range(6))
def test_what_is_allowed_without_a_look_is_what_a_look_would_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Goal: the permission to grow, by which most appends are let through, is never out of date.
    Method: batches of random sizes and times, other options now and then; each answer beside that of a close look."""
    random = Random(seed)
    answers: list[tuple[bool, bool]] = []
    ask = Log.must_roll

    def asked(log: Log, batches: Batches, now_ms: int) -> bool:
        looked = log._is_full(log.active, batches, now_ms)
        answers.append((ask(log, batches, now_ms), looked))
        return looked

    append_one, unasked = Partition._append_one, [0]

    def appended(partition: Partition, data: bytearray, batch: Batches, *rest: Any) -> int:
        log = partition.log
        looked = log._is_full(log.active, _with_offset(data, log.end_offset), NOW)
        base_offset = append_one(partition, data, batch, *rest)
        if base_offset >= 0:
            unasked[0] += 1
            assert not looked, "nobody was asked, and it was written where a roll was due"
        return base_offset

    monkeypatch.setattr(Log, "must_roll", asked)
    monkeypatch.setattr(Partition, "_append_one", appended)
    directory, partition = open_partition(tmp_path, options(segment_bytes=4000))
    for turn in range(400):
        if turn % 60 == 59:
            segment = SegmentOptions(
                segment_bytes=random.choice([2500, 4000, 20_000]),
                segment_index_bytes=random.choice([48, 1 << 20]),
                index_interval_bytes=random.choice([0, 300, 4096]),
            )
            age = random.choice([50, 10_000])
            partition.reconfigure(
                partition.options._replace(log=LogOptions(segment=segment, segment_ms=age))
            )
        batch = encode([bytes(random.randrange(400))], timestamp_ms=NOW + random.randrange(200))
        partition.append_as_leader(bytearray(batch), leader_epoch=0, now_ms=NOW + turn)
    assert all(answer == looked for answer, looked in answers)
    assert unasked[0], "some take the short way"
    assert sum(looked for _, looked in answers) == len(partition.log.segments) - 1 > 10
    directory.close()
