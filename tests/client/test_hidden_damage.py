"""Damage in batches that a reader passes by: markers, and what was aborted. Kafka's consumer proves them as well.

What hides a batch is its own header. If only batches that are shown were proven, one flipped bit could hide a record
from a reader, who would never know.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import oncelog

if TYPE_CHECKING:
    from oncelog.partition.salvage import Damage

WAYS = ("columns", "views", "records", "consumer", "consumed columns")
# Batches of the log below, and a bit of each: (batch, byte from the batch's start or end, bit).
FLIPS = {
    "the type of a commit marker": (1, -13, 0x01),
    "the coordinator epoch of an abort marker": (3, -2, 0x80),
    "the producer of an aborted batch": (2, 50, 0x02),
    "the control bit of committed data": (0, 22, 0x20),
    "the last marker": (5, -2, 0x01),
}


class RollbackError(Exception):
    """Ends a transaction."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Batches 0 to 6: committed, marker, aborted, marker, committed, marker, and one without a transaction."""
    with oncelog.open(tmp_path) as log:
        log.create_topic("t", partitions=1)
        with log.producer(transactional_id="writer") as producer:
            for word in (b"one", b"gone", b"two"):
                try:
                    with producer.transaction():
                        producer.send("t", value=word)
                        producer.flush()
                        if word == b"gone":
                            raise RollbackError
                except RollbackError:
                    pass
        with log.producer() as producer:
            producer.send("t", value=b"three")
    return tmp_path


def flip(path: Path, flipped: str) -> tuple[str, int, int]:
    """Flips a bit; file, position and size of its batch."""
    number, at, bit = FLIPS[flipped]
    with oncelog.open(path, read_only=True) as log:
        rows = [
            (window.segment.path(".log"), row)
            for _, window in log.read("t", isolation_level="read_uncommitted")._windows()
            for row in window.rows
        ]
    assert len(rows) == 7
    file, row = rows[number]
    position, size = int(row["position"]), int(row["size"])
    content = bytearray(Path(file).read_bytes())
    content[position + at + (size if at < 0 else 0)] ^= bit
    Path(file).write_bytes(content)
    return file, position, size


def values(path: Path, way: str, level: str) -> list[bytes]:
    """All that one kind of reader is given."""
    if not way.startswith("consume"):
        with oncelog.open(path, read_only=True) as log:
            read = log.read("t", isolation_level=level, views=way == "views")
            if way == "records":
                return [record.value or b"" for record in read]
            return [value for batch in read.to_batches() for value in batch["value"].to_pylist()]
    found: list[bytes] = []
    options = {"isolation_level": level, "auto_offset_reset": "earliest"}
    with oncelog.open(path) as writer, writer.consumer(**options) as consumer:
        consumer.assign([("t", 0)])
        while consumer.position(("t", 0)) < 7:
            if way == "consumer":
                found += [record.value or b"" for record in consumer.poll(0)]
            elif (batch := consumer.poll_arrow(0)) is not None:
                found += batch["value"].to_pylist()
    return found


@pytest.mark.parametrize("way", WAYS)
def test_without_damage_all_readers_see_the_same(path: Path, way: str) -> None:
    assert values(path, way, "read_committed") == [b"one", b"two", b"three"]


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("flipped", FLIPS)
def test_a_flipped_bit_in_a_batch_that_is_not_shown_is_an_error_that_names_it(
    path: Path, flipped: str, way: str, level: str
) -> None:
    file, position, _ = flip(path, flipped)
    with pytest.raises(oncelog.errors.CorruptRecordError) as caught:
        values(path, way, level)
    assert (caught.value.file, caught.value.position) == (file, position)


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("flipped", FLIPS)
def test_a_read_around_damage_counts_it_and_shows_all_else(
    path: Path, flipped: str, level: str
) -> None:
    whole = [b"one", b"two", b"three"]
    if level == "read_uncommitted":
        whole.insert(1, b"gone")
    lost = {
        "the control bit of committed data": b"one",
        "the producer of an aborted batch": b"gone",
    }
    file, position, size = flip(path, flipped)
    told: list[Damage] = []
    with oncelog.open(path, read_only=True) as log:
        read = log.read("t", isolation_level=level, on_damage=told.append)
        found = [value for batch in read.to_batches() for value in batch["value"].to_pylist()]
        assert [(each.file, each.position, each.size) for each in told] == [(file, position, size)]
        assert [record.value for record in read] == found
    assert told[1:] == told[:1], "each pass tells it again"
    assert found == [value for value in whole if value != lost.get(flipped)]
