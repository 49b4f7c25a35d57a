"""Records in lists are the same as one by one, and header rows have one span."""

from __future__ import annotations

import gc
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog._native.batch import decode, span
from oncelog._native.records import content_bytes, viewed_bytes
from oncelog.base.errors import CorruptRecordError
from oncelog.segment.batch import Record, encode, records, scan

BATCHES = [
    bytes(memoryview(encode([f"{n}-{i}".encode() for i in range(n + 1)], base_offset=10 * n)))
    for n in range(6)
]
LOG = b"".join(BATCHES)


@given(
    counts=st.lists(st.integers(0, 8), min_size=1),
    mask=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_records_taken_in_pieces_are_those_of_an_iteration(
    counts: list[int], mask: list[bool]
) -> None:
    """Goal: nothing lost or twice between the pieces; done is said when, and not before, nothing is left."""
    visible = np.array(mask)
    expected = list(records(LOG, visible=visible))
    iterator = records(LOG, visible=visible)
    found: list[Record] = []
    for count in counts * 30:
        taken = iterator.take(count)
        assert len(taken) == min(count, len(expected) - len(found))
        found += taken
        assert iterator.is_done == (len(found) == len(expected))
        if iterator.is_done:
            assert iterator.take(3) == []
            break
    assert found == expected[: len(found)]


def test_what_lies_before_a_damaged_batch_is_taken_first_and_the_error_comes_again_and_again() -> (
    None
):
    damaged = bytearray(LOG)
    damaged[len(BATCHES[0]) + len(BATCHES[1]) + 70] ^= 1
    iterator = records(damaged)
    assert [record.offset for record in iterator.take(100)] == [0, 10, 11]
    for _ in range(2):
        with pytest.raises(CorruptRecordError) as caught:
            iterator.take(100)
        assert caught.value.base_offset == 20
        assert not iterator.is_done


def test_records_are_no_work_for_the_collector() -> None:
    """Goal: a list of many records does not slow every collection down."""
    assert not any(gc.is_tracked(record) for record in records(LOG))


def test_the_span_of_rows_is_what_their_fields_say() -> None:
    rows = scan(LOG)
    start, end, base_offset, next_offset, attributes, in_order = span(rows[2:5], 20, 1000)
    assert (start, end) == (rows["position"][2], rows["position"][5])
    assert (base_offset, next_offset, attributes, in_order) == (20, 45, 0, True)
    for lowest, highest in ((21, 1000), (20, 43), (50, 1000)):
        assert not span(rows[2:5], lowest, highest)[5]
    assert span(rows[2:5], 20, 44)[5]
    twisted = rows.copy()
    twisted["base_offset"][3] = 21
    assert not span(twisted, 0, 1000)[5]
    twisted["base_offset"][3], twisted["last_offset_delta"][3] = 30, -1
    assert not span(twisted, 0, 1000)[5]
    with pytest.raises(ValueError, match="no rows"):
        span(rows[:0], 0, 1)


def test_the_bytes_of_records_are_those_of_their_keys_and_values() -> None:
    some = [
        Record(0, 0, b"key", b"value"),
        Record(1, 0, None, b"123"),
        Record(2, 0, b"", None, [("header", b"counts for nothing")]),
    ]
    assert content_bytes(some) == 3 + 5 + 3
    assert content_bytes([]) == 0


@pytest.mark.parametrize("views", [False, True])
def test_the_offset_of_a_row_is_that_of_the_array_of_all(views: bool) -> None:
    columns = decode(LOG, scan(LOG)["position"], views=views)
    assert [columns.offset_at(row) for row in range(len(columns))] == columns.offsets.tolist()
    for row in (-1, len(columns)):
        with pytest.raises(IndexError):
            columns.offset_at(row)


def test_the_bytes_of_views_are_those_they_speak_of() -> None:
    """Goal: lengths alone count, whether a view holds its bytes or points at them. Method: two of each, and a null."""
    views = b"".join(
        struct.pack("=i12s", size, start)
        for size, start in (
            (3, b"key"),
            (1 << 30, b"long"),
            (0, b""),
            (1 << 30, b"more"),
            (12, b"l" * 12),
        )
    )
    assert viewed_bytes(views, 0, 5) == 3 + (2 << 30) + 12
    assert viewed_bytes(views, 1, 2) == 1 << 30
    assert viewed_bytes(views, 5, 0) == viewed_bytes(b"", 0, 0) == 0


@pytest.mark.parametrize(
    ("start", "count"), [(0, 3), (2, 1), (3, 0), (-1, 1), (0, -1), (1, 2**63 - 1)]
)
def test_views_that_are_not_there_are_refused(start: int, count: int) -> None:
    with pytest.raises(ValueError, match="where there are 2"):
        viewed_bytes(bytes(2 * 16 + 15), start, count)


def test_what_is_no_record_has_no_bytes_to_count() -> None:
    with pytest.raises(TypeError):
        content_bytes([b"bytes"])  # type: ignore[list-item]
