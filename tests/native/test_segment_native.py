"""What a segment asks of native code: searches over mapped entries, the entries that batches add, seeking, stamping,
and proof that the engine really goes through it.

Validation of records (check_records) has its tests with the appends that need it, in tests/partition.
"""

from __future__ import annotations

import bisect
import struct
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog._native import segment as native
from oncelog.base.errors import CorruptRecordError, TruncatedBatchError
from oncelog.base.rows import HEADER_DTYPE
from oncelog.segment.batch import encode, scan

from ..partition.logs import (
    ABORT,
    COMMIT,
    KEY,
    TOPIC_ID,
    Writer,
    open_directory,
    open_partition,
    options,
    read,
    values,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")

rising = st.lists(st.integers(0, 2**31 - 1), unique=True, max_size=40).map(sorted)
times = st.lists(st.integers(-1, 2**62), unique=True, max_size=40).map(sorted)


@given(rising, rising, st.data())
def test_offset_searches_find_the_last_entry_at_or_below(
    offsets: list[int], positions: list[int], data: st.DataObject
) -> None:
    """Goal: by offset and by position, in every gap, below the first and above the last; -1 where there is none.
    Method: Python's bisect over the same numbers."""
    count = min(len(offsets), len(positions))
    offsets, positions = offsets[:count], positions[:count]
    entries = b"".join(map(OFFSET_ENTRY.pack, offsets, positions))
    for numbers, find in ((offsets, native.find_offset), (positions, native.find_position)):
        near = [number + shift for number in numbers for shift in (-1, 0, 1)]
        for target in [*near, -1, 0, 2**31, -(2**63), 2**63 - 1, data.draw(st.integers(0, 2**31))]:
            assert find(entries, count, target) == bisect.bisect_right(numbers, target) - 1


@given(times)
def test_time_searches_find_the_last_entry_at_or_below(timestamps: list[int]) -> None:
    entries = b"".join(TIME_ENTRY.pack(timestamp, 7) for timestamp in timestamps)
    for target in [stamp + shift for stamp in timestamps for shift in (-1, 0, 1)] + [-5, 2**63 - 1]:
        expected = bisect.bisect_right(timestamps, target) - 1
        assert native.find_timestamp(entries, len(timestamps), target) == expected


def test_a_search_stays_within_the_entries_that_count() -> None:
    """Goal: preallocated zeros behind the last entry are not looked at; a count that does not fit is refused."""
    entries = OFFSET_ENTRY.pack(5, 50) + OFFSET_ENTRY.pack(9, 90) + bytes(800)
    assert native.find_offset(entries, 2, 100) == 1
    assert native.find_offset(entries, 1, 100) == 0
    assert native.find_offset(entries, 0, 100) == -1
    for find, width in (
        (native.find_offset, 8),
        (native.find_position, 8),
        (native.find_timestamp, 12),
    ):
        assert find(bytes(width), 1, 0) == 0
        for count in (2, -1, 2**60, 2**61, 2**62, 2**63 - 1):
            with pytest.raises(ValueError, match="do not fit"):
                find(bytes(width), count, 0)


# ---------------------------------------------------------------- index entries


def model_entries(
    rows: Sequence[np.void], base_offset: int, interval: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]], tuple[int, int]]:
    """Kafka's LogSegment.append, batch by batch: (.index, .timeindex, largest timestamp and its offset)."""
    offsets: list[tuple[int, int]] = []
    stamps: list[tuple[int, int]] = []
    since, largest, largest_offset = 0, -1, -1
    for row in rows:
        last = int(row["base_offset"]) + int(row["last_offset_delta"])
        if row["max_timestamp"] > largest:
            largest, largest_offset = int(row["max_timestamp"]), last
        if since > interval:
            offsets.append((last - base_offset, int(row["position"])))
            if largest > (stamps[-1][0] if stamps else -1):
                stamps.append((largest, largest_offset - base_offset))
            since = 0
        since += int(row["size"])
    return offsets, stamps, (largest, largest_offset)


@st.composite
def batch_rows(draw: st.DrawFn) -> NDArray[np.void]:
    """Header rows that follow each other in a file, with gaps between offsets and timestamps out of order."""
    count = draw(st.integers(0, 30))
    rows = np.zeros(count, HEADER_DTYPE)
    position, offset = 0, 1000
    for row in rows:
        row["position"], row["base_offset"] = position, offset
        row["size"] = draw(st.integers(61, 900))
        row["last_offset_delta"] = draw(st.integers(0, 5))
        row["max_timestamp"] = draw(st.integers(-1, 20))
        position += int(row["size"])
        offset += int(row["last_offset_delta"]) + 1 + draw(st.sampled_from([0, 0, 3]))
    return rows


@given(batch_rows(), st.sampled_from([0, 100, 512, 4096]), st.data())
def test_entries_are_those_kafka_adds_however_the_batches_arrive(
    rows: NDArray[np.void], interval: int, data: st.DataObject
) -> None:
    """Goal: the same entries for one append of many batches as for many appends of few; equal timestamps add none.
    Method: cut the rows anywhere, and take a copy of the state on the way, as a failed append does."""
    offsets, stamps, largest = model_entries(list(rows), 1000, interval)
    state = native.IndexState(interval)
    made_offsets, made_times = b"", b""
    at = 0
    while at < len(rows):
        to = data.draw(st.integers(at + 1, len(rows)))
        spoiled = state.copy()
        spoiled.add(rows[at:], 0)  # must not be seen by the state it was copied from
        more_offsets, more_times = state.add(rows[at:to], 1000)
        made_offsets += more_offsets
        made_times += more_times
        at = to
    assert list(OFFSET_ENTRY.iter_unpack(made_offsets)) == offsets
    assert list(TIME_ENTRY.iter_unpack(made_times)) == stamps
    assert (state.max_timestamp, state.max_timestamp_offset) == largest
    assert state.indexed_timestamp == (stamps[-1][0] if stamps else -1)
    closing = state.last_time_entry()
    assert closing == (largest if largest[0] > (stamps[-1][0] if stamps else -1) else None)
    assert state.last_time_entry() is None


def test_a_resumed_state_goes_on_where_the_files_ended() -> None:
    rows = np.zeros(2, HEADER_DTYPE)
    rows["position"], rows["size"] = [700, 800], [100, 100]
    rows["base_offset"], rows["max_timestamp"] = [20, 21], [50, 60]
    state = native.IndexState(512)
    state.resume(55, 19, 40, 500)
    offsets, stamps = state.add(rows, 10)
    assert list(OFFSET_ENTRY.iter_unpack(offsets)) == [
        (11, 800)
    ]  # 500 is not yet more than 512, 600 is
    assert list(TIME_ENTRY.iter_unpack(stamps)) == [(60, 11)]
    assert (state.max_timestamp, state.max_timestamp_offset) == (60, 21)


# ---------------------------------------------------------------- seeking and stamping


def log_bytes() -> bytes:
    """Batches of offsets 10-12, 13, 20-21 with largest timestamps 30, 5, 31."""
    return b"".join(
        bytes(encode([b"v"] * count, timestamps=stamps, base_offset=offset))
        for offset, count, stamps in ((10, 3, [30, 1, 2]), (13, 1, [5]), (20, 2, [31, 30]))
    )


def test_seeking_finds_the_first_batch_that_reaches_an_offset_or_a_time() -> None:
    """Goal: inside a batch its start, in a gap the next batch, past the end the size."""
    data = log_bytes()
    first, second, third = (int(position) for position in scan(data)["position"])
    for offset, expected in (
        (-5, first), (0, first), (10, first), (12, first), (13, second), (14, third), (19, third),
        (21, third), (22, len(data)), (2**62, len(data)),
    ):  # fmt: skip
        assert native.seek(data, 0, offset) == expected
    assert native.seek(data, second, 0) == second
    assert native.seek(data, len(data), 0) == len(data)
    for stamp, expected in ((0, first), (30, first), (31, third), (32, len(data))):
        assert native.seek(data, 0, stamp, by_timestamp=True) == expected
    assert native.seek(data, second, 5, by_timestamp=True) == second
    assert native.seek(b"", 0, 0) == 0


def test_seeking_over_damage_is_an_error_with_its_place() -> None:
    data = log_bytes()
    second, third = (int(position) for position in scan(data)["position"][1:])
    broken = bytearray(data)
    broken[second + 16] = 9
    assert native.seek(broken, 0, 12) == 0  # what lies before is still found
    with pytest.raises(CorruptRecordError, match="magic") as caught:
        native.seek(broken, 0, 13, file="x.log")
    assert (caught.value.file, caught.value.position) == ("x.log", second)
    with pytest.raises(TruncatedBatchError) as cut:
        native.seek(data[: third + 70], 0, 22)
    assert cut.value.position == third
    for position in (-1, len(data) + 1):
        with pytest.raises(ValueError, match="outside"):
            native.seek(data, position, 0)


def test_stamping_numbers_batches_in_place_without_touching_their_checksums() -> None:
    """Goal: base offsets follow each other by the batches' spans; the leader epoch is in each; rows follow."""
    data = bytearray(log_bytes())
    rows = scan(data)
    native.stamp(data, rows, 500, 7)
    found = scan(data)
    assert found["base_offset"].tolist() == rows["base_offset"].tolist() == [500, 503, 504]
    assert found["partition_leader_epoch"].tolist() == [7, 7, 7]
    assert found["crc_ok"].tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="outside"):
        native.stamp(data[:100], rows, 0, 0)
    with pytest.raises((BufferError, ValueError)):
        native.stamp(bytes(data), rows, 0, 0)


def test_rows_of_another_type_are_refused() -> None:
    with pytest.raises(TypeError, match="are needed"):
        native.IndexState().add(np.zeros(3, np.int64), 0)
    with pytest.raises(TypeError, match="are needed"):
        native.stamp(bytearray(100), np.zeros(1, np.int64), 0, 0)


# ---------------------------------------------------------------- the engine goes through it


class Counted:
    """Stands in for a native function or class, counts its calls, and passes them on."""

    def __init__(self, name: str, real: Any, calls: Counter[str]) -> None:
        self._name, self._real, self._calls = name, real, calls

    def __call__(self, *args: Any, **rest: Any) -> Any:
        self._calls[self._name] += 1
        made = self._real(*args, **rest)
        return Methods(self._name, made, self._calls) if isinstance(self._real, type) else made


class Methods:
    """A native object whose method calls are counted."""

    def __init__(self, name: str, real: Any, calls: Counter[str]) -> None:
        self._name, self._real, self._calls = name, real, calls

    def __len__(self) -> int:
        return len(self._real)

    def __getattr__(self, attribute: str) -> Any:
        self._calls[f"{self._name}.{attribute}"] += 1
        found = getattr(self._real, attribute)
        if attribute == "copy":
            return lambda: Methods(self._name, found(), self._calls)
        return found


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Every native name that an engine module has imported, replaced by one that counts."""
    import oncelog.client.directory  # noqa: F401 (loads every room that reading and writing need)

    counted: Counter[str] = Counter()
    for module_name, module in list(sys.modules.items()):
        if not module_name.startswith("oncelog.") or module_name.startswith("oncelog._native"):
            continue
        for name, value in list(vars(module).items()):
            home = getattr(value, "__module__", None) or ""
            if callable(value) and home.startswith("oncelog._native") and name in COUNTED:
                monkeypatch.setattr(module, name, Counted(name, value, counted))
    return counted


COUNTED = {
    "IndexState", "ProducerTable", "TxnIndex", "check_records", "decode", "find_offset", "scan", "scan_prefix",
    "seek", "stamp", "visible_batches",
}  # fmt: skip


def test_append_read_recovery_and_collect_run_through_native_code(
    tmp_path: Path, calls: Counter[str]
) -> None:
    """Goal: no step of a log's life falls back to Python.
    Method: count calls of every native name that the engine imports, step by step."""
    directory = open_directory(tmp_path, options(segment_bytes=3000))
    partition = directory.create(KEY, TOPIC_ID)
    writer = Writer(partition, 1)
    calls.clear()
    writer.send(values(5), transactional=True)
    assert calls["scan"] == calls["check_records"] == calls["stamp"] == 1
    assert calls["ProducerTable.check"] == calls["ProducerTable.replay"] == 1
    assert calls["IndexState.add"] == 1
    calls.clear()
    writer.end(ABORT)
    assert calls["ProducerTable.would_abort"] == calls["TxnIndex.extend"] == 1
    for number in range(30):
        writer.send(values(5, size=50), transactional=True)
        writer.end(ABORT if number % 2 else COMMIT)
    assert len(partition.log.segments) > 2
    calls.clear()
    assert len(read(partition)) == 75
    assert calls["scan_prefix"] >= len(partition.log.segments)
    assert calls["visible_batches"] == len(partition.log.segments)
    assert calls["seek"] >= len(partition.log.segments)
    assert calls["find_offset"] >= len(partition.log.segments)
    assert calls["TxnIndex.collect_aborted_txns"] >= len(partition.log.segments)
    partition.sync()
    calls.clear()
    _, again = open_partition(
        tmp_path, options(segment_bytes=3000), read_only=True
    )  # not closed: recovery
    assert again.log_end_offset == partition.log_end_offset
    assert calls["scan_prefix"] >= len(again.log.segments)
    assert calls["ProducerTable.replay"] == calls["IndexState.add"] == len(again.log.segments)
    assert calls["TxnIndex"] == len(again.log.segments)
    calls.clear()
    assert len(again.aborted_transactions(0, again.log_end_offset)) == 16
    assert calls["TxnIndex.collect_aborted_txns"] == len(again.log.segments)
    directory.close()
