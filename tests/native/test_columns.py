"""Columns of raw batches, and rows of many partitions: what native code says, a plain rule says."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest

from oncelog._native.columns import AbortedIndex, crc_ok_column, scan_column
from oncelog.base.errors import TruncatedBatchError
from oncelog.base.rows import ABORTED_DTYPE
from oncelog.segment.batch import encode, scan

CONTROL, TRANSACTIONAL = 0x20, 0x10
PLACES = [("b", 1), ("a", 0), ("a-longer-name", 0), ("b", 0), ("é", 7)]


def index_of(
    transactions: list[tuple[int, int, int, int]], stable: list[int] | None = None
) -> AbortedIndex:
    """(place, producer, first, last) as an index over PLACES."""
    rows = np.array([(*row[1:], -1) for row in transactions], ABORTED_DTYPE)
    return AbortedIndex(PLACES, stable, [row[0] for row in transactions], rows)


def rule(
    transactions: list[tuple[int, int, int, int]],
    stable: list[int] | None,
    row: tuple[int, int | None, int | None, int | None],
) -> bool | None:
    """The rule in plain words, a row at a time."""
    place, offset, producer, attributes = row
    if offset is None or attributes is None:
        return None
    if attributes & CONTROL or (stable is not None and offset >= stable[place]):
        return False
    if not attributes & TRANSACTIONAL or producer is None:
        return True
    return not any(
        (one, who) == (place, producer) and first <= offset <= last
        for one, who, first, last in transactions
    )


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("has_stable", [True, False])
def test_rows_are_judged_as_one_by_one(seed: int, has_stable: bool) -> None:
    """Goal: order, gaps, nulls and sizes of integers change nothing.
    Method: random transactions, overlapping ones too, and random rows; Arrow and numpy against the plain rule."""
    rng = np.random.default_rng(seed)
    transactions = [
        (int(rng.integers(5)), int(rng.integers(4)), int(first), int(first + rng.integers(30)))
        for first in rng.integers(0, 1000, int(rng.integers(0, 80)))
    ]
    stable = rng.integers(0, 1000, 5).tolist() if has_stable else None
    index = index_of(transactions, stable)
    rows = [
        (
            int(rng.integers(5)),
            None if rng.random() < 0.05 else int(rng.integers(0, 1000)),
            None if rng.random() < 0.05 else int(rng.integers(-1, 5)),
            None if rng.random() < 0.05 else int(rng.choice([0, 16, 48, 17])),
        )
        for _ in range(2000)
    ]
    topics = pa.array([PLACES[row[0]][0] for row in rows])
    numbers = pa.array([PLACES[row[0]][1] for row in rows], pa.int32())
    places = index.places(topics, numbers)
    assert (index.places(topics.to_numpy(zero_copy_only=False), numbers.to_numpy()) == places).all()
    assert [index.partitions[place] for place in places] == [PLACES[row[0]] for row in rows]
    offsets, producers, attributes = (
        pa.array([row[at] for row in rows], kind)
        for at, kind in ((1, pa.int64()), (2, pa.int64()), (3, pa.int16()))
    )
    expected = [rule(transactions, stable, row) for row in rows]
    floats = (column.to_numpy(zero_copy_only=False) for column in (offsets, producers, attributes))
    copy = pickle.loads(pickle.dumps(index))  # noqa: S301
    for judge, columns in ((index, (offsets, producers, attributes)), (copy, tuple(floats))):
        mask, nulls = judge.visible(places, *columns)
        assert nulls is not None
        found = [None if null else bool(one) for one, null in zip(mask, nulls, strict=True)]
        assert found == expected


def test_slices_and_unknown_places_are_told_apart() -> None:
    index = index_of([(1, 7, 10, 20)])
    topics = pa.array(["x", "a", None, "a", "a-"]).slice(1)
    numbers = pa.array([0, 0, 0, None, 0], pa.int64()).slice(1)
    found = index.places(topics, numbers)
    assert [None if place < 0 else index.partitions[place] for place in found] == [
        ("a", 0),
        *[None] * 3,
    ]
    assert found.tolist()[1:] == [-2, -2, -1]
    mask, nulls = index.visible(
        found[[0, 3]], np.array([15, 15]), np.array([7, 7]), np.array([16, 16])
    )
    assert mask.tolist() == [False, True]
    assert nulls is None
    assert len(pickle.dumps(index_of([(0, 1, n, n) for n in range(0, 10_000, 10)]))) < 60_000


def test_other_types_are_refused() -> None:
    index = index_of([])
    with pytest.raises(TypeError, match="offset: signed integers are needed, not uint64"):
        index.visible(
            np.zeros(1, np.int32), pa.array([1], pa.uint64()), np.ones(1, int), np.ones(1, int)
        )
    with pytest.raises(ValueError, match="producerId: 2 rows, where others have 1"):
        index.visible(np.zeros(1, np.int32), np.ones(1, int), np.ones(2, int), np.ones(1, int))
    with pytest.raises(TypeError, match="topic: strings are needed, not int"):
        index.places(np.array([3], object), np.ones(1, int))
    with pytest.raises(TypeError, match="binary or large_binary, not int64"):
        scan_column(pa.array([1]))
    with pytest.raises(ValueError, match="a partition is named twice"):
        AbortedIndex([("a", 0), ("a", 0)], None, [], np.empty(0, ABORTED_DTYPE))


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_a_column_is_scanned_as_its_values_are(kind: pa.DataType) -> None:
    """Goal: values with many batches, one, none and null; a slice of a longer column.
    Method: rows of the column against scans of each value."""
    batches = [bytes(encode([b"v"] * count, base_offset=count)) for count in range(1, 40)]
    values = [b"cut off", b"".join(batches), None, batches[3], b"", batches[5] + batches[6]]
    column = pa.array(values, kind).slice(1)
    rows, sources, starts, error = scan_column(column)
    assert error is None
    expected = [
        (number, *row)
        for number, value in enumerate(values[1:])
        for row in scan(value or b"").tolist()
    ]
    assert [
        (source, *row) for source, row in zip(sources.tolist(), rows.tolist(), strict=True)
    ] == expected
    data = bytes(column.buffers()[2])
    for start, row in zip(starts, rows, strict=True):
        at = start + row["position"]
        assert scan(data[at : at + row["size"]])["crc"] == row["crc"]
    assert crc_ok_column(column)[0].tolist() == [True, False, True, True, True]
    assert crc_ok_column(column)[1].tolist() == [False, True, False, False, False]


def test_a_bad_value_is_named_and_bad_checksums_are_shown() -> None:
    batch = bytes(encode([b"value"] * 3))
    flipped = bytearray(batch)
    flipped[-1] ^= 1
    rows, sources, _, error = scan_column(
        pa.array([batch, bytes(flipped), batch + batch[:-1], batch])
    )
    assert rows["crc_ok"].tolist() == [1, 0, 1]
    assert sources.tolist() == [0, 1, 2]
    assert error is not None
    assert isinstance(error[0], TruncatedBatchError)
    assert (error[1], error[0].position) == (2, len(batch))
    for hostile in (bytes(100), b"\xff" * 100, batch[:11] + b"\x7f" + batch[12:]):
        _, _, _, error = scan_column(pa.array([batch, hostile]))
        assert error is not None
        assert error[1] == 1
        assert crc_ok_column(pa.array([hostile]))[0].tolist() == [False]
