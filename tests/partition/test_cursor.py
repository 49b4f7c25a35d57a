"""A cursor goes on where it was, and sees what a fresh reader would see."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from oncelog.base.errors import CorruptRecordError
from oncelog.partition.cursor import Cursor
from oncelog.segment.batch import records

from .histories import DAY_MS, History
from .logs import (
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
    from pathlib import Path

    from oncelog.partition.partition import Isolation, Partition


def drained(cursor: Cursor, bytes_max: int = 1 << 20) -> list[tuple[int, bytes | None]]:
    found = []
    while (window := cursor.next_window(bytes_max)) is not None:
        found += [
            (record.offset, record.value)
            for record in records(
                window.view, window.rows, visible=window.visible, end_offset=window.end_offset
            )
        ]
    return found


def written(partition: Partition, seed: int, count: int = 60) -> None:
    """Interleaved transactions, some left open, some of them over segments."""
    chance = random.Random(seed)
    writers = [Writer(partition, number) for number in range(3)]
    is_open = [False] * 3
    for _ in range(count):
        number = chance.randrange(3)
        if is_open[number] and chance.random() < 0.5:
            writers[number].end(chance.choice([COMMIT, ABORT]))
            is_open[number] = False
        else:
            writers[number].send(values(chance.randint(1, 5), size=30), transactional=True)
            is_open[number] = True


@pytest.mark.parametrize("isolation", [COMMITTED, UNCOMMITTED])
@pytest.mark.parametrize("bytes_max", [1, 300, 1 << 20])
def test_windows_of_any_size_hold_what_a_fresh_reader_sees(
    tmp_path: Path, isolation: Isolation, bytes_max: int
) -> None:
    """Goal: from every offset, over segments and open transactions; the cursor ends at the bound of its level."""
    for seed in range(5):
        _, partition = open_partition(tmp_path / str(seed), options(segment_bytes=600))
        written(partition, seed)
        for start in range(0, partition.log_end_offset, 7):
            cursor = Cursor(partition, start, isolation)
            found = [item for item in drained(cursor, bytes_max) if item[0] >= start]
            assert found == read(partition, isolation, start)
            assert cursor.offset == max(partition.upper_bound(isolation), start)


def test_a_follower_sees_each_batch_once_though_segments_roll_and_go(tmp_path: Path) -> None:
    """Goal: the cursor's place outlives rolls and removals before and behind it, with mapped bytes and copied ones."""
    _, partition = open_partition(tmp_path, options(segment_bytes=900))
    writer, cursor, seen = Writer(partition), Cursor(partition, 0, COMMITTED), []
    for turn in range(120):
        writer.send(values(1 + turn % 4, f"{turn}-", size=1 + 90 * (turn % 3)))
        if turn % 5 != 4:
            seen += drained(cursor)
        if turn % 7 == 0:
            partition.delete_records(cursor.offset)
        if turn % 11 == 0:
            partition.log.active.view()
    seen += drained(cursor)
    assert [offset for offset, _ in seen] == list(range(partition.log_end_offset))
    assert cursor.next_window(1) is None


def test_segments_that_were_compacted_under_a_cursor_are_looked_up_anew(tmp_path: Path) -> None:
    history = History(tmp_path / "compact-0")
    for turn in range(8):
        history.txn(1, *((f"k{number}".encode(), f"{turn}".encode()) for number in range(4)))
        history.end(1, commit=turn % 2 == 0)
        history.roll()
    cursor = Cursor(history.partition, 0, COMMITTED)
    first = cursor.next_window(1)
    assert first is not None
    history.now_ms += DAY_MS
    history.clean(delete_retention_ms=0)
    assert drained(cursor, 1) == [
        item for item in history.committed() if item[0] >= first.end_offset
    ]


def test_a_cut_is_noticed_and_the_place_is_looked_up_anew(tmp_path: Path) -> None:
    _, partition = open_partition(tmp_path, options(segment_bytes=400))
    writer = Writer(partition)
    for _ in range(10):
        writer.send(values(2, "old", size=50))
    cursor = Cursor(partition, 0, COMMITTED)
    assert len(drained(cursor)) == 20
    partition.truncate_to(12, NOW)
    assert cursor.is_cut
    for _ in range(6):
        writer.send(values(2, "new", size=70))
    assert [offset for offset, _ in drained(cursor)] == [20, 21, 22, 23]
    assert not cursor.is_cut


def test_damage_is_named_after_all_that_is_sound_before_it(tmp_path: Path) -> None:
    """Goal: a base offset that lies is found by the order of offsets, as by any other reader, in mapped bytes and in
    copied ones."""
    for is_mapped in (True, False):
        _, partition = open_partition(tmp_path / str(is_mapped))
        writer, cursor = Writer(partition), Cursor(partition, 0, COMMITTED)
        if not is_mapped:
            writer.send([b"first"])
            assert len(drained(cursor)) == 1
        start = partition.log_end_offset
        for _ in range(3):
            writer.send([b"v"])
        segment = partition.log.active
        position = segment.position_of(start + 1)
        segment._mapping = b""
        with open(segment.path(".log"), "r+b") as file:  # noqa: PTH123
            file.seek(position)
            file.write(bytes(8))  # base offset 0
        window = cursor.next_window(1 << 20)
        assert window is not None
        assert window.end_offset == start + 1
        for _ in range(2):
            with pytest.raises(CorruptRecordError, match="does not follow") as caught:
                cursor.next_window(1 << 20)
            assert caught.value.position == position
            assert cursor.offset == start + 1
