"""Reads around damage, and cuts for several readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import oncelog

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np

    from oncelog.partition.salvage import Damage

COUNT = 300


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Offsets 0 to 299 in small batches and a few segments."""
    with oncelog.open(tmp_path) as log:
        log.create_topic("t", partitions=1, config={"segment.ms": 2000, "index.interval.bytes": 0})
        with log.producer(batch_size=256) as producer:
            for number in range(COUNT):
                producer.send("t", value=b"value %06d" % number, timestamp=1_000 + number * 20)
    return tmp_path


def headers(path: Path) -> list[tuple[str, np.void]]:
    with oncelog.open(path, read_only=True) as log:
        return [
            (window.segment.path(".log"), row)
            for _, window in log.read("t")._windows()
            for row in window.rows
        ]


def spoil(path: Path, batch: int, change: Callable[[bytearray, int, int], None]) -> set[int]:
    """Changes bytes of a batch; its offsets."""
    file, row = headers(path)[batch]
    with open(file, "r+b") as stream:  # noqa: PTH123
        content = bytearray(stream.read())
        change(content, int(row["position"]), int(row["size"]))
        stream.seek(0)
        stream.write(content)
    base = int(row["base_offset"])
    return set(range(base, base + int(row["last_offset_delta"]) + 1))


def flip_value(content: bytearray, position: int, size: int) -> None:
    content[position + size - 3] ^= 0x10


def lose_header(content: bytearray, position: int, _: int) -> None:
    content[position : position + 61] = b"\xee" * 61


def lift_base_offset(content: bytearray, position: int, _: int) -> None:
    content[position + 3] ^= 0x10


@pytest.mark.parametrize("batch", [0, 5, -1])
@pytest.mark.parametrize("change", [flip_value, lose_header, lift_base_offset])
def test_what_is_sound_is_read_and_what_is_not_is_told(
    path: Path, change: Callable[[bytearray, int, int], None], batch: int
) -> None:
    """Goal: one bad batch costs its own records only, with an index entry for every batch; the plain read fails there.
    The last batch of a clean log is proven at opening and cut off, as recovery would."""
    file, row = headers(path)[batch]
    gone = spoil(path, batch, change)
    told: list[Damage] = []
    with oncelog.open(path, read_only=True) as log:
        read = log.read("t", on_damage=told.append)
        found = [offset for batch in read.to_batches() for offset in batch["offset"].to_pylist()]
        assert found == [offset for offset in range(COUNT) if offset not in gone]
        if batch >= 0:
            assert [(each.file, each.position, each.size) for each in told] == [
                (file, int(row["position"]), int(row["size"]))
            ]
            with pytest.raises(oncelog.errors.CorruptRecordError):
                list(log.read("t").to_batches())


def test_two_bad_batches_in_one_window_are_both_told(path: Path) -> None:
    gone = spoil(path, 3, flip_value) | spoil(path, 5, flip_value)
    told: list[Damage] = []
    with oncelog.open(path, read_only=True) as log:
        read = log.read("t", on_damage=told.append, bytes_max=1)
        found = [offset for batch in read.to_batches() for offset in batch["offset"].to_pylist()]
    assert found == [offset for offset in range(COUNT) if offset not in gone]
    assert len(told) == 2


@pytest.mark.parametrize("pieces", [1, 2, 7, 1000])
@pytest.mark.parametrize(("start", "end"), [(0, COUNT), (17, 250), (17, 18), (40, 40)])
def test_pieces_begin_with_batches_and_follow_each_other(
    path: Path, pieces: int, start: int, end: int
) -> None:
    bases = {int(row["base_offset"]) for _, row in headers(path)}
    with oncelog.open(path, read_only=True) as log:
        cuts = log.split("t", 0, start, end, pieces)
        assert cuts[0] == start
        assert cuts == sorted(set(cuts))
        assert set(cuts[1:]) <= bases
        assert all(cut < end for cut in cuts[1:])
        assert len(cuts) <= pieces
        if (start, end) == (0, COUNT):
            assert len(cuts) >= min(pieces, 20)
        rows = [
            offset
            for first, last in zip(cuts, [*cuts[1:], end], strict=True)
            for batch in log.read("t", 0, first, last).to_batches()
            for offset in batch["offset"].to_pylist()
        ]
        assert rows == [*range(start, end)]
        size = sum(
            int(row["size"]) for _, row in headers(path) if start <= row["base_offset"] < end
        )
        assert abs(log.range_bytes("t", 0, start, end) - size) <= 2 * 256


def test_a_cut_that_an_index_lies_about_is_not_made(path: Path) -> None:
    """Goal: an index is no proof. Method: every entry but the last points a byte too far."""
    for file in path.glob("t-0/*.index"):
        content = bytearray(file.read_bytes())
        for at in range(7, len(content) - 8, 8):
            content[at] ^= 1
        file.write_bytes(content)
    with oncelog.open(path, read_only=True) as log:
        bases = {int(row["base_offset"]) for _, row in headers(path)}
        assert set(log.split("t", 0, 0, COUNT, 50)) <= bases
