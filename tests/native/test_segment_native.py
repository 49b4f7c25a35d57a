"""What a segment asks of native code: searches over mapped entries, the entries that batches add, seeking, stamping,
and proof that the engine really goes through it.

Validation of records (check_records) has its tests with the appends that need it, in tests/partition.
"""

from __future__ import annotations

import bisect
import functools
import shutil
import struct
import subprocess
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog._native import segment as native
from oncelog._native.checksum import crc32c
from oncelog._native.sequence import ProducerTable
from oncelog.base.disk import Disk
from oncelog.base.errors import (
    BatchError,
    CorruptRecordError,
    InvalidRecordError,
    OncelogError,
    TruncatedBatchError,
)
from oncelog.base.rows import HEADER_DTYPE
from oncelog.partition.admission import Origin, PartitionOptions, admit, rules_of
from oncelog.segment.batch import Codec, ControlType, encode, encode_marker, restamp, scan

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
    from typing_extensions import Buffer

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


@given(batch_rows(), st.sampled_from([0, 100, 512]), st.data())
def test_an_append_counts_when_it_is_taken_and_not_before(
    rows: NDArray[np.void], interval: int, data: st.DataObject
) -> None:
    """Goal: what is prepared and not taken, as by a write that fails, leaves no trace; positions become the file's.
    Method: beside a state that is simply told of the batches, one that now and then prepares others in between."""
    told, state = native.IndexState(interval), native.IndexState(interval)
    at = 0
    while at < len(rows):
        to = data.draw(st.integers(at + 1, len(rows)))
        if data.draw(st.booleans()):
            state.prepare(native.Batches(rows[at:]), 0, 0)
        given_rows = rows[at:to].copy()
        start = int(given_rows["position"][0])
        given_rows["position"] -= start
        batches = native.Batches(given_rows)
        made = state.prepare(batches, 1000, start)
        expected = told.add(rows[at:to], 1000)
        assert (made or (b"", b"")) == expected
        assert (made is None) == (not expected[0])
        assert np.frombuffer(memoryview(batches), HEADER_DTYPE).tobytes() == rows[at:to].tobytes()
        state.take()
        at = to
    assert (state.max_timestamp, state.max_timestamp_offset, state.indexed_timestamp) == (
        told.max_timestamp,
        told.max_timestamp_offset,
        told.indexed_timestamp,
    )


def test_room_is_what_was_allowed_and_has_to_be_asked_for_after_an_entry() -> None:
    """Goal: has_room never says yes past a limit of bytes, offsets or time, nor where an index has grown."""
    rows = np.zeros(1, HEADER_DTYPE)
    rows["size"], rows["base_offset"], rows["max_timestamp"] = 100, 40, 7
    batches = native.Batches(rows)
    state = native.IndexState(150)
    assert not state.has_room(batches, 0), "nobody has allowed anything"
    state.allow(1000, 40, 7)
    assert state.has_room(batches, 900)
    assert not state.has_room(batches, 901)
    for limits in ((1000, 39, 7), (1000, 40, 6), (99, 40, 7), (-1, 40, 7)):
        state.allow(*limits)
        assert not state.has_room(batches, 0), limits
    state.allow(1000, 40, 7)
    for position, has_entry in ((0, False), (100, False), (200, True)):
        assert state.has_room(batches, position)
        made = state.prepare(native.Batches(rows), 0, position)
        assert (made is not None) == has_entry
        state.take()
    assert not state.has_room(batches, 300)


def test_one_append_in_one_call_is_the_steps_one_by_one_or_nothing() -> None:
    """Goal: append_one leaves bytes, rows, index state and producers as judge, stamp, prepare, take and add do; where it
    declines, because an entry is due, nothing was allowed or the batch is refused, all is as before.
    Method: the same batches both ways, one of them repeated and one with a gap in its sequence."""
    short, long = native.IndexState(300), native.IndexState(300)
    beside, table = ProducerTable(), ProducerTable()
    written: list[tuple[int, bytes, int]] = []

    def write(descriptor: int, data: Buffer, position: int) -> None:
        written.append((descriptor, bytes(data), position))

    size = offset = declined = 0
    for sequence in (0, 1, 2, 2, 3, 4, 9, 5, 6, 7, 8):
        data = plain_batch(1, producer_id=7, producer_epoch=0, base_sequence=sequence)
        twin, batch = bytearray(data), check_one(data)
        assert batch is not None
        short.allow(1 << 20 if sequence != 1 else -1, 1 << 20, 1 << 60)
        before = bytes(data), bytes(batch), len(written), bytes(table.snapshot())
        stable = short.append_one(data, batch, table.handle, offset, 4, True, True, write, 3, size)
        if stable < 0:
            declined += 1
            after = bytes(data), bytes(batch), len(written), bytes(table.snapshot())
            assert after == before
            if table.judge(batch, True, True) is not None:
                assert sequence in (2, 9)
                continue
            native.stamp(data, batch, offset, 4)
            short.prepare(batch, 0, size)
            short.take()
            table.add(batch, offset + 1)
        else:
            assert stable == offset + 1
            assert written[-1] == (3, bytes(data), size)
        other = check_one(twin)
        assert other is not None
        assert beside.judge(other, True, True) is None
        native.stamp(twin, other, offset, 4)
        long.prepare(other, 0, size)
        long.take()
        assert beside.add(other, offset + 1) == offset + 1
        assert (data, bytes(batch)) == (twin, bytes(other))
        assert bytes(table.snapshot()) == bytes(beside.snapshot())
        assert states(short) == states(long)
        size, offset = size + len(data), offset + 1
    assert 4 <= declined <= 6, "without permission, repeated, with a gap, entries due"


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_one_append_that_cannot_be_written_counts_for_nothing(error: type[BaseException]) -> None:
    state, table, data = native.IndexState(), ProducerTable(), plain_batch(1)
    batch = check_one(data)
    assert batch is not None
    state.allow(1 << 20, 1 << 20, 1 << 60)

    def write(descriptor: int, data: Buffer, position: int) -> None:
        raise error

    with pytest.raises(error):
        state.append_one(data, batch, table.handle, 0, 0, True, True, write, 3, 0)
    assert (states(state), len(table)) == (states(native.IndexState()), 0)
    assert not state.has_room(batch, 0), "what is left behind has to be looked at first"


def test_one_append_by_the_real_disk_says_why_it_could_not_write(tmp_path: Path) -> None:
    """Goal: the short way to the file writes the same bytes, and its errors are those of Disk.write."""
    disk, path = Disk(), tmp_path / "log"
    descriptor = disk.open(path)
    for target in (descriptor, -1):
        state, table, data = native.IndexState(), ProducerTable(), plain_batch(1)
        batch = check_one(data)
        assert batch is not None
        state.allow(1 << 20, 1 << 20, 1 << 60)
        append = functools.partial(
            state.append_one, data, batch, table.handle, 0, 0, True, True, disk.write, target, 5
        )
        if target >= 0:
            assert append() == 1
            assert path.read_bytes() == bytes(5) + data
        else:
            with pytest.raises(OSError, match="Bad file descriptor"):
                append()
    disk.close(descriptor)


def test_a_handle_of_producers_outlives_their_table() -> None:
    handle = ProducerTable().handle
    state, data = native.IndexState(), plain_batch(1)
    batch = check_one(data)
    assert batch is not None
    state.allow(1 << 20, 1 << 20, 1 << 60)
    assert state.append_one(data, batch, handle, 0, 0, True, True, lambda *_: None, 3, 0) == 1
    with pytest.raises(TypeError, match="no batch"):
        state.append_one(data, None, handle, 0, 0, True, True, lambda *_: None, 3, 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="PyCapsule"):
        state.append_one(data, batch, object(), 0, 0, True, True, lambda *_: None, 3, 0)


@pytest.mark.parametrize("before_ms", [0, 500, 2**63 - 1])
@pytest.mark.parametrize("after_ms", [0, 500, 2**63 - 1])
@pytest.mark.parametrize("key_needed", [False, True])
def test_the_rules_for_a_client_and_a_coordinator_are_those_of_admission(
    before_ms: int, after_ms: int, key_needed: bool
) -> None:
    options = PartitionOptions(
        timestamp_before_max_ms=before_ms,
        timestamp_after_max_ms=after_ms,
        is_compacted=key_needed,
        max_message_bytes=100,
    )
    marker = encode_marker(
        ControlType.COMMIT, producer_id=1, producer_epoch=2, coordinator_epoch=3, timestamp_ms=1000
    )
    found = set()
    for origin, rules in zip((Origin.CLIENT, Origin.COORDINATOR), rules_of(options), strict=True):
        assert rules is not None
        for now_ms in (0, 400, 999, 1000, 1001, 1002, 1500, 1501, 1502, 1503, 2**62):
            for data in (
                plain_batch(1),
                plain_batch(3),
                plain_batch(30),
                bytes(memoryview(marker)),
            ):
                is_admitted = True
                try:
                    admit(bytearray(data), options, origin, now_ms)
                except OncelogError:
                    is_admitted = False
                assert (rules.check(data, now_ms) is not None) is is_admitted
                found.add((origin, is_admitted))
    assert {
        (Origin.COORDINATOR, True),
        (Origin.COORDINATOR, False),
        (Origin.CLIENT, False),
    } <= found
    assert rules_of(options._replace(uses_log_append_time=True)) == (None, None)
    assert rules_of(options._replace(compression=Codec.GZIP)) == (None, None)


def states(state: native.IndexState) -> tuple[int, int, int]:
    return state.max_timestamp, state.max_timestamp_offset, state.indexed_timestamp


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
    batches = native.Batches(scan(data))
    native.stamp(data, batches, 500, 7)
    found = scan(data)
    rows = np.frombuffer(memoryview(batches), HEADER_DTYPE)
    assert found["base_offset"].tolist() == rows["base_offset"].tolist() == [500, 503, 504]
    assert found["partition_leader_epoch"].tolist() == [7, 7, 7]
    assert found["crc_ok"].tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="outside"):
        native.stamp(data[:100], batches, 0, 0)
    with pytest.raises((BufferError, ValueError)):
        native.stamp(bytes(data), batches, 0, 0)


def test_rows_of_another_type_are_refused() -> None:
    with pytest.raises(TypeError, match="are needed"):
        native.IndexState().add(np.zeros(3, np.int64), 0)
    with pytest.raises(TypeError, match="are needed"):
        native.Batches(np.zeros(1, np.int64))


# ---------------------------------------------------------------- one batch, and batches as a whole

ANY_TIME = (-(2**63), 2**63 - 1)


def check_one(
    data: Buffer,
    *,
    size_max: int = 2**31,
    is_client: bool = False,
    key_needed: bool = False,
    limits: tuple[int, int] = ANY_TIME,
) -> native.Batches | None:
    return native.check_one(data, size_max, is_client, key_needed, *limits)


def plain_batch(count: int = 3, **fields: Any) -> bytearray:
    keys = [b"key-%d" % number if number % 2 else None for number in range(count)]
    stamps = [1000 + number for number in range(count)]
    headers = [[("h", b"1")] if number == 1 else [] for number in range(count)]
    return bytearray(
        encode(
            [b"v" * (number % 90) for number in range(count)],
            keys=keys,
            timestamps=stamps,
            headers=headers,
            batch_size=1 << 30,
            **fields,
        )
    )


def looked_at_closely(data: bytearray, *, key_needed: bool, earliest: int, latest: int) -> bool:
    """What scan and check_records say of the same bytes."""
    try:
        rows = scan(data)
        if len(rows) != 1 or rows["crc_ok"][0] != 1 or rows["attributes"][0] & 7:
            return False
        return not native.check_records(
            data, rows, key_needed=key_needed, timestamp_min=earliest, timestamp_max=latest
        )
    except BatchError:
        return False


def test_one_sound_batch_is_proven_in_one_call() -> None:
    data = plain_batch(producer_id=5, producer_epoch=2, base_sequence=7)
    found = check_one(data)
    assert found is not None
    assert bytes(memoryview(found)) == scan(data).tobytes()
    assert (len(found), found.nbytes, found.producer_id) == (1, len(data), 5)
    assert (found.base_offset, found.next_offset, found.last_offset_delta) == (0, 3, 2)
    assert (found.first_timestamp, found.max_timestamp) == (1002, 1002)
    assert not found.has_abort
    assert not found.are_markers


@pytest.mark.parametrize("fixes_crc", [False, True])
def test_one_batch_is_accepted_exactly_where_a_close_look_finds_nothing(fixes_crc: bool) -> None:
    """Goal: the short way lets nothing through that the long way refuses, and refuses nothing without need.
    Method: every byte of a batch changed in several ways, with and without a checksum that fits again."""
    good = plain_batch()
    accepted = 0
    for at in range(len(good)):
        for flip in (0x01, 0x02, 0x40, 0x80, 0xFF):
            data = bytearray(good)
            data[at] ^= flip
            if fixes_crc:
                data[17:21] = crc32c(data[21:]).to_bytes(4, "big")
            for key_needed, limits in ((False, ANY_TIME), (True, ANY_TIME), (False, (1000, 1001))):
                found = check_one(data, key_needed=key_needed, limits=limits)
                expected = looked_at_closely(
                    data, key_needed=key_needed, earliest=limits[0], latest=limits[1]
                )
                assert (found is not None) == expected, (at, flip, key_needed, limits)
                accepted += found is not None
    assert accepted > 0


def test_what_is_not_exactly_one_plain_batch_is_left_to_a_close_look() -> None:
    data = plain_batch()
    wrong: list[bytes | bytearray] = [b"", data[:60], data + b"\0", data + data, bytes(len(data))]
    wrong.extend(data[:size] for size in range(len(data)))
    wrong.append(bytearray(encode([b"v" * 100] * 9, compression=Codec.GZIP)))
    for each in wrong:
        assert check_one(each) is None
    assert check_one(data, key_needed=True) is None, "a record has no key"
    assert check_one(data, limits=(1001, 2000)) is None
    assert check_one(data, limits=(1000, 1001)) is None
    assert check_one(data, limits=(1000, 1002)) is not None
    large = plain_batch(2000)
    assert len(large) > 1 << 16
    assert check_one(large) is not None
    large[-1] ^= 1
    assert check_one(large) is None
    with pytest.raises(TypeError):
        check_one(None)  # type: ignore[arg-type]
    with pytest.raises(BufferError, match="contiguous"):
        check_one(memoryview(data)[::2])


@pytest.mark.parametrize(
    ("changes", "is_fine"),
    [
        ({}, True),
        ({"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}, True),
        ({"producer_id": 5, "producer_epoch": 0, "base_sequence": 0, "attributes": 0x10}, True),
        ({"attributes": 0x10}, False),
        ({"attributes": 0x20}, False),
        ({"producer_id": 5, "producer_epoch": 0, "base_sequence": -1}, False),
    ],
)
def test_of_a_client_only_what_a_client_may_write_is_taken(
    changes: dict[str, int], is_fine: bool
) -> None:
    """Goal: the short way and the rules of admission agree on what a client may write."""
    data = plain_batch()
    restamp(data, **changes)  # type: ignore[arg-type]
    assert check_one(data) is not None
    assert (check_one(data, is_client=True) is not None) == is_fine
    if is_fine:
        admit(data, options(), Origin.CLIENT, 1000)
    else:
        with pytest.raises(InvalidRecordError):
            admit(data, options(), Origin.CLIENT, 1000)
    gaps = bytearray(data)
    gaps[23:27] = (9).to_bytes(4, "big")
    gaps[17:21] = crc32c(gaps[21:]).to_bytes(4, "big")
    assert check_one(gaps) is not None
    assert check_one(gaps, is_client=True) is None
    with pytest.raises(InvalidRecordError):
        admit(gaps, options(), Origin.CLIENT, 1000)


def test_a_batch_that_is_too_large_is_left_to_a_close_look() -> None:
    data = plain_batch()
    assert check_one(data, size_max=len(data)) is not None
    for size_max in (len(data) - 1, 0, -1, -(2**63)):
        assert check_one(data, size_max=size_max) is None


def test_batches_tell_what_they_span_and_stand_for_their_rows() -> None:
    """Goal: the numbers of several batches are those of their rows, and native code takes them for an array."""
    data = bytearray(log_bytes())
    rows = scan(data)
    batches = native.Batches(rows)
    assert (len(batches), batches.dtype, batches.nbytes) == (3, HEADER_DTYPE, len(data))
    assert batches.base_offset == int(rows["base_offset"][0])
    assert batches.next_offset == int(rows["base_offset"][2] + rows["last_offset_delta"][2]) + 1
    assert batches.first_timestamp == int(rows["max_timestamp"][0])
    assert batches.max_timestamp == int(rows["max_timestamp"].max())
    native.stamp(data, batches, 500, 7)
    assert scan(data)["base_offset"].tolist() == [500, 503, 504]
    assert (batches.base_offset, int(rows["base_offset"][0]) == 500) == (500, False), "a copy"
    native.IndexState().prepare(batches, 400, 4000)
    moved = np.frombuffer(memoryview(batches), HEADER_DTYPE)
    assert moved["position"].tolist() == (rows["position"] + 4000).tolist()
    one, other = native.IndexState(50), native.IndexState(50)
    assert one.add(batches, 400) == other.add(moved, 400)
    assert one.add(native.Batches(moved[1:2]), 400) == other.add(moved[1:2], 400)


def test_markers_among_batches_are_seen() -> None:
    rows = np.zeros(3, HEADER_DTYPE)
    rows["control_type"] = -1
    assert not native.Batches(rows).has_abort
    rows["control_type"][2] = int(ABORT)
    rows["attributes"][1:] = 0x30
    assert native.Batches(rows).has_abort
    assert not native.Batches(rows).are_markers
    assert native.Batches(rows[1:].copy()).are_markers


def test_batches_are_made_of_rows_alone() -> None:
    with pytest.raises(ValueError, match="no batch"):
        native.Batches(np.empty(0, HEADER_DTYPE))
    with pytest.raises(TypeError, match="are needed"):
        native.Batches(np.zeros(3, np.int64))
    with pytest.raises(TypeError):
        native.Batches(None)  # type: ignore[arg-type]
    extreme = np.zeros(2, HEADER_DTYPE)
    extreme["base_offset"] = 2**63 - 1
    extreme["last_offset_delta"] = 2**31 - 1
    extreme["position"] = extreme["size"] = 2**63 - 1
    batches = native.Batches(extreme)
    assert not native.IndexState().has_room(batches, 2**63 - 1)
    assert isinstance(batches.next_offset, int), "a lie is a wrong number, no more"
    with pytest.raises(ValueError, match="outside"):
        native.stamp(bytearray(100), batches, 0, 0)


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
    "Rules", "IndexState", "ProducerTable", "TxnIndex", "check_one", "check_records", "decode", "find_offset", "scan",
    "scan_prefix", "seek", "stamp", "visible_batches",
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
    assert calls["Rules.check"] == calls["stamp"] == 1
    assert calls["scan"] == calls["check_records"] == 0
    assert calls["ProducerTable.judge"] == calls["ProducerTable.add"] == 1
    assert calls["IndexState.prepare"] == calls["IndexState.take"] == 1
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
    copy = shutil.copytree(tmp_path, tmp_path.with_name("as-a-crash-leaves-it"))
    _, again = open_partition(copy, options(segment_bytes=3000), read_only=True)
    assert again.log_end_offset == partition.log_end_offset
    assert calls["scan_prefix"] >= len(again.log.segments)
    assert calls["ProducerTable.replay"] == calls["IndexState.add"] == len(again.log.segments)
    assert calls["TxnIndex"] == len(again.log.segments)
    calls.clear()
    assert len(again.aborted_transactions(0, again.log_end_offset)) == 16
    assert calls["TxnIndex.collect_aborted_txns"] == len(again.log.segments)
    directory.close()


def test_the_lock_of_a_tail_is_one_thread_s_as_often_as_it_likes() -> None:
    """Goal: it lets nobody else in before its holder has left as often as it came, and nobody gives back what he has not."""
    lock, seen, inside = native.TailLock(), list[str](), threading.Event()

    def other() -> None:
        inside.set()
        with lock:
            seen.append("other")

    with pytest.raises(RuntimeError, match="not this thread's"):
        lock.__exit__(None, None, None)
    thread = threading.Thread(target=other)
    with lock:
        with lock:
            thread.start()
            inside.wait()
        seen.append("holder")
        thief = threading.Thread(target=lambda: seen.append(_given_back(lock)))
        thief.start()
        thief.join()
    thread.join()
    assert seen == ["holder", "refused", "other"]


def _given_back(lock: native.TailLock) -> str:
    try:
        lock.__exit__(None, None, None)
    except RuntimeError:
        return "refused"
    return "given back"


def test_a_wait_for_the_lock_of_a_tail_can_be_interrupted() -> None:
    """Method: in a process of its own, since a signal goes to its first thread."""
    script = """
import os, signal, threading, time
from oncelog._native.segment import TailLock
signal.signal(signal.SIGINT, signal.default_int_handler)
lock, held, go = TailLock(), threading.Event(), threading.Event()
def hold():
    with lock:
        held.set()
        go.wait()
holder = threading.Thread(target=hold)
holder.start()
held.wait()
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    with lock:
        print("taken")
except KeyboardInterrupt:
    print("interrupted")
go.set()
holder.join()
with lock:
    print("free")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.split(), done.returncode) == (["interrupted", "free"], 0), done.stderr
