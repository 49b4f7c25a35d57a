"""The offset index, line by line of section 3 of the checklist (kafka-cases)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.base.disk import Disk, map_file
from oncelog.base.errors import CorruptFileError
from oncelog.segment.offset_index import OffsetIndex

if TYPE_CHECKING:
    from pathlib import Path

ENTRY = struct.Struct(">ii")
BASE = 1_000_000
PAIRS = [(2, 60), (9, 500), (10, 700), (2_000, 70_000)]


def entries(pairs: list[tuple[int, int]]) -> bytes:
    return b"".join(ENTRY.pack(*pair) for pair in pairs)


def growing(path: Path, bytes_max: int = 80) -> OffsetIndex:
    index = OffsetIndex(str(path), BASE)
    index.open(Disk(), bytes_max)
    return index


@pytest.fixture
def index(tmp_path: Path) -> OffsetIndex:
    """Four entries in a file that may hold ten."""
    made = growing(tmp_path / "x.index")
    made.append(entries(PAIRS))
    return made


def loaded(path: Path) -> OffsetIndex:
    index = OffsetIndex(str(path), BASE)
    index.load()
    return index


# ---------------------------------------------------------------- lookups


def test_a_lookup_gives_the_greatest_entry_at_or_below(index: OffsetIndex) -> None:
    """Goal: on an entry, between two, above the last; below the first and far away: the base at position 0."""
    for relative, expected in (
        (0, (BASE, 0)), (1, (BASE, 0)), (2, (BASE + 2, 60)), (3, (BASE + 2, 60)), (9, (BASE + 9, 500)),
        (10, (BASE + 10, 700)), (1999, (BASE + 10, 700)), (2000, (BASE + 2000, 70_000)),
        (2**40, (BASE + 2000, 70_000)), (-1, (BASE, 0)), (-BASE, (BASE, 0)),
    ):  # fmt: skip
        assert index.lookup(BASE + relative) == expected


def test_an_empty_index_answers_with_the_base(tmp_path: Path) -> None:
    index = growing(tmp_path / "x.index")
    assert index.lookup(BASE + 5) == (BASE, 0)
    assert (index.count, index.last_offset) == (0, BASE)
    assert index.upper_bound(0, 100) is None


def test_the_upper_bound_of_a_read_is_the_first_entry_past_it(index: OffsetIndex) -> None:
    """Goal: for (position, size) the first entry at or past their sum, or none."""
    for position, size, expected in (
        (0, 1, (BASE + 2, 60)), (0, 60, (BASE + 2, 60)), (0, 61, (BASE + 9, 500)), (60, 440, (BASE + 9, 500)),
        (500, 300, (BASE + 2000, 70_000)), (0, 70_000, (BASE + 2000, 70_000)), (0, 70_001, None),
    ):  # fmt: skip
        assert index.upper_bound(position, size) == expected


def test_an_entry_out_of_range_is_an_error(index: OffsetIndex) -> None:
    """Goal: also those that are preallocated but not written."""
    assert [index.entry(slot)[0] - BASE for slot in range(4)] == [2, 9, 10, 2000]
    for slot in (-1, 4, 9, 10**9):
        with pytest.raises(IndexError, match="of 4"):
            index.entry(slot)


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 1000)), max_size=50), st.data())
def test_lookups_agree_with_a_walk_over_all_entries(
    steps: list[tuple[int, int]], data: st.DataObject
) -> None:
    pairs: list[tuple[int, int]] = []
    for offset_step, position_step in steps:
        last = pairs[-1] if pairs else (0, 0)
        pairs.append((last[0] + offset_step, last[1] + position_step))
    index = OffsetIndex("memory", BASE)
    index.hold(entries(pairs))
    end = pairs[-1][0] + 3 if pairs else 3
    for _ in range(10):
        relative = data.draw(st.integers(-1, end))
        below = [pair for pair in pairs if pair[0] <= relative]
        offset, position = below[-1] if below else (0, 0)
        assert index.lookup(BASE + relative) == (BASE + offset, position)


# ---------------------------------------------------------------- growing


def test_entries_are_eight_big_endian_bytes_in_a_preallocated_file(tmp_path: Path) -> None:
    path = tmp_path / "x.index"
    index = growing(path, bytes_max=100)  # not a multiple: rounded down, as Kafka does
    assert (path.stat().st_size, index.capacity) == (96, 12)
    index.append(ENTRY.pack(0x01020304, 0x05060708))
    assert path.read_bytes() == bytes(range(1, 9)) + bytes(88)
    assert index.all() == bytes(range(1, 9))


def test_an_offset_that_does_not_rise_is_refused(index: OffsetIndex) -> None:
    """Goal: equal or lower than the last → error, and nothing is added."""
    for relative in (2000, 1999, 0):
        with pytest.raises(CorruptFileError, match="does not rise"):
            index.append(entries([(relative, 80_000)]))
    assert (index.count, index.last_offset) == (4, BASE + 2000)
    index.append(entries([(2001, 80_000)]))
    assert index.last_offset == BASE + 2001


def test_a_full_index_takes_no_more(tmp_path: Path) -> None:
    """Goal: full at exactly its size; the entry after that is an error, and none of several is written."""
    index = growing(tmp_path / "x.index", bytes_max=32)
    for number in range(4):
        assert not index.is_full
        index.append(entries([(number + 1, number)]))
    assert index.is_full
    with pytest.raises(CorruptFileError, match="full with 4 entries"):
        index.append(entries([(9, 9)]))
    index.shrink(3)
    with pytest.raises(CorruptFileError, match="full"):
        index.append(entries([(9, 9), (10, 10)]))
    assert index.count == 3


def test_trimmed_and_loaded_again_it_is_the_same(index: OffsetIndex, tmp_path: Path) -> None:
    """Goal: trimming cuts the file to its entries; loading gives the same entries and last offset; it may grow on."""
    path = tmp_path / "x.index"
    index.trim()
    index.close()
    assert path.read_bytes() == entries(PAIRS)
    again = loaded(path)
    assert (again.count, again.last_offset, again.all()) == (4, BASE + 2000, entries(PAIRS))
    again.open(Disk(), 80, keep=again.count)
    assert path.stat().st_size == 80
    again.append(entries([(3000, 90_000)]))
    again.trim()
    assert loaded(path).all() == entries([*PAIRS, (3000, 90_000)])


def test_a_file_of_an_older_life_is_not_reused(tmp_path: Path) -> None:
    """Goal: opened anew, what an old file held is gone, and a reader of the old one keeps it: no signal, no zeros."""
    path = tmp_path / "x.index"
    path.write_bytes(entries(PAIRS) * 2000)
    mapping = map_file(path)
    growing(path)
    assert path.read_bytes() == bytes(80)
    assert bytes(memoryview(mapping)) == entries(PAIRS) * 2000


def test_truncating_to_an_offset_removes_it_and_all_above(tmp_path: Path) -> None:
    """Goal: entries at or above the offset go, to zero all; the file has whole entries and reads the same again."""
    for offset, kept in ((2001, 4), (2000, 3), (11, 3), (10, 2), (3, 1), (2, 0), (0, 0), (-5, 0)):
        path = tmp_path / f"{offset}.index"
        index = growing(path)
        index.append(entries(PAIRS))
        index.truncate_to(BASE + offset)
        assert index.all() == entries(PAIRS[:kept])
        assert path.read_bytes() == entries(PAIRS[:kept]) + bytes(80 - 8 * kept)
        index.trim()
        assert loaded(path).all() == entries(PAIRS[:kept])
        index.append(entries([(5000, 1)]))


# ---------------------------------------------------------------- sanity


@pytest.mark.parametrize("size", [1, 7, 9, 15, 31])
def test_a_size_that_is_no_multiple_of_an_entry_is_corrupt(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.index"
    path.write_bytes(entries(PAIRS)[:size])
    with pytest.raises(CorruptFileError, match=f"size {size}") as caught:
        loaded(path)
    assert caught.value.file == str(path)


@pytest.mark.parametrize(
    "content",
    [
        entries([(-1, 0)]),
        entries([(2, 60), (-5, 100)]),
        entries(PAIRS) + bytes(8),
        entries(PAIRS) + bytes(48),
        bytes(16),
        entries([(5, 50), (5, 60)]),
        entries([(5, 50), (4, 60)]),
    ],
    ids=["below base", "falls below base", "zero entry", "preallocated", "zeros", "equal", "falls"],
)
def test_a_last_entry_that_cannot_be_right_is_corrupt(tmp_path: Path, content: bytes) -> None:
    """Goal: below the base, not rising, or zeros that a crash left behind the entries."""
    path = tmp_path / "x.index"
    path.write_bytes(content)
    with pytest.raises(CorruptFileError):
        loaded(path)


def test_a_last_offset_equal_to_the_base_is_legal(tmp_path: Path) -> None:
    path = tmp_path / "x.index"
    path.write_bytes(entries([(0, 0)]))
    index = loaded(path)
    assert (index.count, index.last_offset) == (1, BASE)


def test_an_empty_file_is_an_empty_index(tmp_path: Path) -> None:
    path = tmp_path / "x.index"
    path.touch()
    assert loaded(path).count == 0
