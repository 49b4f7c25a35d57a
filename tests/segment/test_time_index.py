"""The time index, line by line of section 3 of the checklist (kafka-cases)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from oncelog.base.disk import Disk
from oncelog.base.errors import CorruptFileError
from oncelog.segment.time_index import TimeIndex

if TYPE_CHECKING:
    from pathlib import Path

ENTRY = struct.Struct(">qi")
BASE = 345
PAIRS = [(10, 1), (20, 5), (30, 5), (40, 2000)]


def entries(pairs: list[tuple[int, int]]) -> bytes:
    return b"".join(ENTRY.pack(*pair) for pair in pairs)


def growing(path: Path, bytes_max: int = 120) -> TimeIndex:
    index = TimeIndex(str(path), BASE)
    index.open(Disk(), bytes_max)
    return index


@pytest.fixture
def index(tmp_path: Path) -> TimeIndex:
    """Four entries in a file that may hold ten."""
    made = growing(tmp_path / "x.timeindex")
    made.append(entries(PAIRS))
    return made


def loaded(path: Path) -> TimeIndex:
    index = TimeIndex(str(path), BASE)
    index.load()
    return index


def test_a_lookup_gives_the_greatest_timestamp_at_or_below(index: TimeIndex) -> None:
    """Goal: on an entry, between two, above the last; below the first: (-1, base offset)."""
    for timestamp, expected in (
        (-1, (-1, BASE)), (0, (-1, BASE)), (9, (-1, BASE)), (10, (10, BASE + 1)), (19, (10, BASE + 1)),
        (20, (20, BASE + 5)), (39, (30, BASE + 5)), (40, (40, BASE + 2000)), (2**62, (40, BASE + 2000)),
    ):  # fmt: skip
        assert index.lookup(timestamp) == expected
    assert index.last == (40, BASE + 2000)


def test_an_empty_index_answers_with_no_time_and_the_base(tmp_path: Path) -> None:
    index = growing(tmp_path / "x.timeindex")
    assert index.lookup(10**9) == index.last == (-1, BASE)


def test_entries_are_twelve_big_endian_bytes_in_a_preallocated_file(tmp_path: Path) -> None:
    path = tmp_path / "x.timeindex"
    index = growing(path, bytes_max=100)
    assert (path.stat().st_size, index.capacity) == (96, 8)
    index.append(index.pack(0x0102030405060708, BASE + 0x090A0B0C))
    assert path.read_bytes() == bytes(range(1, 13)) + bytes(84)


def test_a_lower_timestamp_or_offset_is_refused_and_an_equal_timestamp_adds_nothing(
    index: TimeIndex,
) -> None:
    """Goal: times and offsets only rise; the same time again is already found by its first entry."""
    with pytest.raises(CorruptFileError, match="below the last"):
        index.put(50, BASE + 1999)
    with pytest.raises(CorruptFileError, match="below the last"):
        index.put(39, BASE + 2001)
    index.put(40, BASE + 2000)
    index.put(40, BASE + 3000)
    assert index.all() == entries(PAIRS)
    index.put(41, BASE + 2000)
    assert index.last == (41, BASE + 2000)


def test_an_entry_out_of_range_is_an_error(index: TimeIndex) -> None:
    for slot in (-1, 4, 9):
        with pytest.raises(IndexError):
            index.entry(slot)


def test_the_last_slot_is_kept_for_the_entry_that_seals_the_segment(tmp_path: Path) -> None:
    """Goal: full one entry early; an ordinary append is refused then, the forced one is taken, once, and still
    refuses a lower offset."""
    index = growing(tmp_path / "x.timeindex", bytes_max=48)
    for number in range(3):
        assert not index.is_full
        index.append(entries([(10 * number + 10, number)]))
    assert index.is_full
    with pytest.raises(CorruptFileError, match="full with 3 entries"):
        index.append(entries([(40, 9)]))
    with pytest.raises(CorruptFileError, match="below the last"):
        index.put(40, BASE + 1)
    index.put(40, BASE + 9)
    assert (index.count, index.last) == (4, (40, BASE + 9))
    with pytest.raises(CorruptFileError, match="full with 4 entries"):
        index.put(50, BASE + 10)


def test_trimmed_and_loaded_again_it_is_the_same(index: TimeIndex, tmp_path: Path) -> None:
    path = tmp_path / "x.timeindex"
    index.trim()
    index.close()
    assert path.read_bytes() == entries(PAIRS)
    again = loaded(path)
    assert (again.count, again.last) == (4, (40, BASE + 2000))
    again.open(Disk(), 120, keep=again.count)
    again.put(60, BASE + 2001)
    again.trim()
    assert loaded(path).all() == entries([*PAIRS, (60, 2001)])


def test_truncating_to_an_offset_removes_it_and_all_above(tmp_path: Path) -> None:
    """Goal: by offset, though entries are ordered by time; to the base nothing is left."""
    for offset, kept in ((2001, 4), (2000, 3), (6, 3), (5, 1), (2, 1), (1, 0), (0, 0), (-9, 0)):
        path = tmp_path / f"{offset}.timeindex"
        index = growing(path)
        index.append(entries(PAIRS))
        index.truncate_to(BASE + offset)
        assert index.all() == entries(PAIRS[:kept])
        assert path.read_bytes() == entries(PAIRS[:kept]) + bytes(120 - 12 * kept)


@pytest.mark.parametrize(
    "content",
    [
        entries(PAIRS) + bytes(12),
        entries(PAIRS) + bytes(72),
        bytes(24),
        entries([(10, -1)]),
        entries([(10, 1), (9, 5)]),
        entries([(10, 1), (10, 5)]),
        entries(PAIRS)[:-1],
        entries(PAIRS)[:25],
    ],
    ids=[
        "zero entry",
        "preallocated",
        "zeros",
        "below base",
        "falls",
        "equal",
        "cut",
        "cut to one",
    ],
)
def test_what_cannot_be_right_is_corrupt(tmp_path: Path, content: bytes) -> None:
    """Goal: a last zero-padded entry, one below the base, times that do not rise, a size that is no multiple of 12."""
    path = tmp_path / "x.timeindex"
    path.write_bytes(content)
    with pytest.raises(CorruptFileError) as caught:
        loaded(path)
    assert caught.value.file == str(path)
