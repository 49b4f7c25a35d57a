"""A segment is read through its indexes, and right without them: section 5 of the checklist (kafka-cases), what
concerns reading. Appending, rolling and recovery have their tests in tests/log and tests/partition.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog._native.segment import Batches
from oncelog._native.sequence import ProducerTable
from oncelog.base.disk import Disk as SlowDisk
from oncelog.base.errors import CorruptRecordError, OffsetOutOfRangeError, TruncatedBatchError
from oncelog.base.rows import ABORTED_DTYPE
from oncelog.segment import segment as segment_module
from oncelog.segment.batch import encode, scan
from oncelog.segment.segment import Segment, SegmentOptions, next_offset_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

BASE = 100
OPTIONS = SegmentOptions(segment_index_bytes=4096, index_interval_bytes=200)
INDEXES = (".index", ".timeindex")


class Disk(SlowDisk):
    """Without waiting for the device, which is no matter here."""

    def sync(self, descriptor: int) -> None:
        pass

    def sync_directory(self, path: object) -> None:
        pass


class Planned(NamedTuple):
    """A batch to be written: its offsets and its largest timestamp."""

    base_offset: int
    records: int
    max_timestamp: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.records - 1


def planned(count: int, seed: int = 1) -> list[Planned]:
    """Batches with gaps between them and timestamps out of order."""
    source = random.Random(seed)
    batches = []
    offset = BASE
    for _ in range(count):
        size = source.randint(1, 4)
        batches.append(Planned(offset, size, source.randint(0, 2 * count)))
        offset += size + source.choice([0, 0, 0, 5])
    return batches


def log_bytes(batches: list[Planned]) -> tuple[bytes, list[int]]:
    """The file, and where each batch starts in it."""
    parts, positions, at = [], [], 0
    for batch in batches:
        stamps = [batch.max_timestamp] + [0] * (batch.records - 1)
        part = bytes(
            encode([b"value"] * batch.records, timestamps=stamps, base_offset=batch.base_offset)
        )
        parts.append(part)
        positions.append(at)
        at += len(part)
    return b"".join(parts), positions


class Made(NamedTuple):
    """A segment on disk, and what is in it."""

    path: Path
    batches: list[Planned]
    positions: list[int]
    size: int

    def open(self, disk: Disk | None = None) -> Segment:
        return Segment(str(self.path), BASE, self.size, OPTIONS, disk)

    def file(self, suffix: str) -> Path:
        return self.path / f"{BASE:020d}{suffix}"

    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(self.path.iterdir())}

    def position_for(self, offset: int) -> int:
        """By a walk over all batches."""
        for batch, position in zip(self.batches, self.positions, strict=True):
            if batch.last_offset >= offset:
                return position
        return self.size

    def require_all_offsets(self, segment: Segment) -> None:
        for offset in range(BASE - 3, self.batches[-1].last_offset + 4):
            assert segment.position_of(offset) == self.position_for(offset), offset

    def require_all_times(self, segment: Segment) -> None:
        largest = max(batch.max_timestamp for batch in self.batches)
        for timestamp in range(-1, largest + 2):
            expected = self.size
            for batch, position in zip(self.batches, self.positions, strict=True):
                if batch.max_timestamp >= timestamp:
                    expected = position
                    break
            assert segment.position_of_timestamp(timestamp, BASE) == expected, timestamp
        assert segment.max_timestamp == largest


def make(path: Path, batches: list[Planned]) -> Made:
    """Writes a log and, by a rebuild in place and a close, its indexes."""
    data, positions = log_bytes(batches)
    made = Made(path, batches, positions, len(data))
    made.file(".log").write_bytes(data)
    segment = made.open(Disk())
    segment.rebuild_indexes()
    segment.close()
    return made


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return make(tmp_path, planned(60))


# ---------------------------------------------------------------- finding


def test_every_offset_is_found_where_a_walk_finds_it(made: Made) -> None:
    """Goal: before the first → the first; inside a batch → its start; in a gap → the next batch; past the last →
    the size."""
    segment = made.open()
    assert segment.offset_index.count == 0
    made.require_all_offsets(segment)
    assert segment.offset_index.count > 10
    assert segment.next_offset() == made.batches[-1].last_offset + 1


def test_every_timestamp_is_found_where_a_walk_finds_it(made: Made) -> None:
    """Goal: the first batch whose largest timestamp reaches the target, though times are out of order; none → the
    size. From a later start the batches before it do not count."""
    segment = made.open()
    made.require_all_times(segment)
    middle = made.batches[30]
    for timestamp in (0, 50, 110, 121):
        expected = made.size
        for batch, position in zip(made.batches[30:], made.positions[30:], strict=True):
            if batch.max_timestamp >= timestamp:
                expected = position
                break
        assert segment.position_of_timestamp(timestamp, middle.base_offset) == expected


@given(st.integers(0, 40), st.integers(0, 10**6))
def test_any_history_is_found_with_and_without_indexes(count: int, seed: int) -> None:
    """Goal: the index never changes the answer. Method: random logs in memory, one scan for all."""
    batches = planned(count, seed)
    data, positions = log_bytes(batches)
    segment = Segment("nowhere", BASE, len(data), OPTIONS)
    segment._mapping = data
    segment.rebuild_indexes()
    made = Made(None, batches, positions, len(data))  # type: ignore[arg-type]
    for offset in (BASE, BASE + 7, BASE + 50, BASE + 10**6):
        assert segment.position_of(offset) == made.position_for(offset)
    assert segment.max_timestamp == max((batch.max_timestamp for batch in batches), default=-1)


def test_an_empty_segment_holds_nothing(tmp_path: Path) -> None:
    """Goal: no batch, no time, no offset but the base; with and without index files."""
    (tmp_path / f"{BASE:020d}.log").touch()
    for _ in range(2):
        segment = Segment(str(tmp_path), BASE, 0, OPTIONS)
        assert list(segment.rows()) == []
        assert segment.position_of(BASE) == segment.position_of(0) == 0
        assert segment.position_of_timestamp(0, BASE) == 0
        assert (segment.next_offset(), segment.max_timestamp) == (BASE, -1)
        assert segment.first_timestamp is None
        assert len(segment.view()) == 0
        for suffix in INDEXES:
            (tmp_path / f"{BASE:020d}{suffix}").touch()


def test_rows_come_window_by_window_and_from_any_batch(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a large file is walked with few rows at hand; windows lose and repeat nothing."""
    monkeypatch.setattr(segment_module, "WINDOW_BYTES", 500)
    segment = made.open()
    windows = list(segment.rows())
    assert len(windows) > 5
    assert np.concatenate(windows)["position"].tolist() == made.positions
    assert (
        np.concatenate(list(segment.rows(made.positions[20])))["position"].tolist()
        == made.positions[20:]
    )
    assert list(segment.rows(made.size)) == []
    assert next_offset_of(windows[-1]) == made.batches[-1].last_offset + 1


def test_the_first_timestamp_is_the_first_batchs(made: Made) -> None:
    assert made.open().first_timestamp == made.batches[0].max_timestamp


def test_damage_is_met_where_it_lies_and_not_before(made: Made) -> None:
    """Goal: what lies before a damaged batch is read, also when the index must be made anew on the way."""
    content = bytearray(made.file(".log").read_bytes())
    content[made.positions[40] + 16] = 7
    made.file(".log").write_bytes(content)
    for with_index in (True, False):
        if not with_index:
            made.file(".index").unlink()
        segment = made.open()
        for batch, position in list(zip(made.batches, made.positions, strict=True))[:40]:
            assert segment.position_of(batch.base_offset) == position
        walked: list[NDArray[np.void]] = []
        with pytest.raises(CorruptRecordError, match="magic") as caught:
            walked.extend(segment.rows())
        assert sum(len(rows) for rows in walked) == 40
        assert caught.value.position == made.positions[40]
        assert caught.value.file == str(made.file(".log"))


def test_a_file_shorter_than_it_was_listed_is_an_error_and_no_signal(made: Made) -> None:
    segment = made.open()
    os.truncate(made.file(".log"), made.size - 10)
    with pytest.raises(CorruptRecordError, match="shorter"):
        segment.view()


# ---------------------------------------------------------------- opened when needed


def test_no_file_is_opened_until_it_is_needed(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: thousands of segments cost nothing to list; an offset needs log and indexes, an abort the .txnindex.
    Method: count what is opened through the only door to files."""
    opened: list[str] = []
    real_open = os.open

    def counting_open(path: str, *rest: int) -> int:
        opened.append(str(path).rpartition(".")[2])
        return real_open(path, *rest)

    monkeypatch.setattr("oncelog.base.disk.os.open", counting_open)
    segment = made.open()
    repr(segment), segment.files(), segment.path(".log")
    assert opened == []
    assert len(segment.view()) == made.size
    assert opened == ["log"]
    segment.position_of(BASE + 9)
    assert sorted(opened) == ["index", "log", "timeindex"]
    segment.position_of(BASE + 20)
    segment.position_of_timestamp(5, BASE)
    segment.next_offset()
    assert len(opened) == 3
    assert len(segment.txn_index) == 0
    assert len(opened) == 3  # there is none, and none is made
    assert set(os.listdir(made.path)) == {f"{BASE:020d}{suffix}" for suffix in (".log", *INDEXES)}  # noqa: PTH208


def test_no_descriptor_is_kept_by_a_reader(made: Made) -> None:
    """Goal: mappings do not use up descriptors, however many segments are read."""
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    segments = [made.open() for _ in range(50)]
    for segment in segments:
        segment.position_of(BASE + 50)
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # noqa: PTH208


# ---------------------------------------------------------------- mappings outlive files


def test_a_view_outlives_the_removal_of_its_file(made: Made) -> None:
    content = made.file(".log").read_bytes()
    segment = made.open()
    view = segment.view()
    segment.need_indexes()
    for path in made.path.iterdir():
        path.unlink()
    assert bytes(view) == content
    made.require_all_offsets(segment)
    segment.close()
    assert bytes(view) == content


def test_a_view_outlives_a_truncation(made: Made) -> None:
    """Goal: no SIGBUS: the kept bytes go to a new file, the old one lives as long as it is mapped.
    Method: many pages; truncate under a view; touch every byte; the new file has what was kept."""
    batches = planned(4000)
    big = make(made.path, batches)
    content = big.file(".log").read_bytes()
    assert big.size > 20 * 4096
    reader, writer = big.open(), big.open(Disk())
    view, own = reader.view(), writer.view()
    reader.need_indexes()
    entries = reader.offset_index._entries
    old_index = bytes(memoryview(entries))
    writer.truncate_to(batches[10].base_offset)
    assert writer.size == big.positions[10]
    assert bytes(view) == bytes(own) == content
    assert bytes(memoryview(entries)) == old_index
    assert bytes(writer.view()) == content[: writer.size]
    assert reader.position_of(batches[3000].base_offset) == big.positions[3000]
    writer.close()
    assert big.file(".log").read_bytes() == content[: big.positions[10]]


READER = """
import sys, zlib
from oncelog.base.disk import map_file
mapping = map_file(sys.argv[1])
print("mapped", flush=True)
sys.stdin.readline()
print(zlib.crc32(mapping), flush=True)
"""


def test_a_view_outlives_shorten_in_another_process(made: Made) -> None:
    """Goal: also a reader in another process is safe. Method: a child maps the file, we cut it, the child reads it."""
    batches = planned(4000)
    big = make(made.path, batches)
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            READER,
            str(big.file(".log")),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    expected = zlib.crc32(big.file(".log").read_bytes())
    assert child.stdout is not None
    assert child.stdout.readline() == "mapped\n"
    Disk().shorten(str(big.file(".log")), 100)
    assert big.file(".log").stat().st_size == 100
    out, _ = child.communicate("go\n", timeout=60)
    assert child.returncode == 0
    assert int(out) == expected


# ---------------------------------------------------------------- indexes that cannot be believed


def damages() -> Iterator[tuple[str, object]]:
    """(name, what to do to the bytes of an index; None: the file is gone)."""
    source = random.Random(2)
    yield "missing", None
    yield "empty", lambda _: b""
    yield "zeroed", lambda data: bytes(len(data))
    yield "one zero entry", lambda _: bytes(12)
    yield "preallocated", lambda data: data + bytes(4096 - len(data) % 12)
    yield "cut", lambda data: data[:-5]
    yield "text", lambda _: b"not an index"
    yield "doubled", lambda data: data + data
    yield "reversed", lambda data: data[::-1]
    yield "first entry of others", lambda data: b"\x00" * 7 + b"\x09" + b"\x00" * 4 + data[12:]
    for seed in range(8):
        yield f"random {seed}", lambda data: source.randbytes(len(data))
        yield f"random middle {seed}", lambda data: _randomised(data, source)


def _randomised(data: bytes, source: random.Random) -> bytes:
    """All but the last two entries made random: nothing that a look at the end could find."""
    keep = 24
    return source.randbytes(len(data) - keep) + data[-keep:]


DAMAGES = dict(damages())


@pytest.mark.parametrize("may_write", [False, True], ids=["read only", "in place"])
@pytest.mark.parametrize("suffix", INDEXES)
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_index_changes_no_answer(
    made: Made, name: str, suffix: str, may_write: bool
) -> None:
    """Goal: missing, zeroed, cut or random: every offset and time is found as before. With a disk the file is mended,
    without one nothing is touched.
    Method: each damage on each index; all offsets, then all times, with a fresh object and after a close."""
    sound = made.files()
    path = made.file(suffix)
    damage = DAMAGES[name]
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(sound[path.name]))  # type: ignore[operator]
    before = made.files()
    segment = made.open(Disk() if may_write else None)
    made.require_all_offsets(segment)
    made.require_all_times(segment)
    assert segment.next_offset() == made.batches[-1].last_offset + 1
    segment.close()
    if not may_write:
        assert made.files() == before
        return
    after = made.files()
    assert set(after) == set(sound)
    assert after[f"{BASE:020d}.log"] == sound[f"{BASE:020d}.log"]
    again = made.open()
    made.require_all_offsets(again)
    made.require_all_times(again)


@pytest.mark.parametrize("suffix", INDEXES)
def test_no_flipped_byte_of_an_index_changes_an_answer(tmp_path: Path, suffix: str) -> None:
    """Goal: Kafka's indexes have no checksum; entries are held against the log before they are used.
    Method: every byte of a small index flipped in two ways, every offset and every time asked for."""
    made = make(tmp_path, planned(20))
    path = made.file(suffix)
    sound = path.read_bytes()
    for position in range(len(sound)):
        for flip in (0x01, 0x80):
            damaged = bytearray(sound)
            damaged[position] ^= flip
            path.write_bytes(damaged)
            segment = made.open()
            made.require_all_offsets(segment)
            made.require_all_times(segment)


@pytest.mark.parametrize("name", DAMAGES)
def test_recovery_makes_indexes_that_a_fresh_build_makes(made: Made, name: str) -> None:
    """Goal: whatever was there, recovery in place and in memory ends with the same bytes."""
    sound = made.files()
    for suffix in INDEXES:
        damage = DAMAGES[name]
        if damage is None:
            made.file(suffix).unlink()
        else:
            made.file(suffix).write_bytes(damage(sound[f"{BASE:020d}{suffix}"]))  # type: ignore[operator]
    before = made.files()
    reader = made.open()
    found = reader.recover(ProducerTable().replay)
    assert (found.size, found.error) == (made.size, None)
    assert reader.offset_index.all() == sound[f"{BASE:020d}.index"]
    assert reader.time_index.all() == sound[f"{BASE:020d}.timeindex"]
    assert made.files() == before
    writer = made.open(Disk())
    assert writer.recover(ProducerTable().replay) == found
    writer.close()
    assert made.files() == sound


# ---------------------------------------------------------------- recovery of what is torn


def test_recovery_cuts_at_every_torn_end(tmp_path: Path) -> None:
    """Goal: for every size that a crash may leave, the whole batches stay; in memory the file is untouched, in place
    it is cut to them.
    Method: all sizes of a log of six batches."""
    made = make(tmp_path, planned(6))
    whole = made.file(".log").read_bytes()
    for size in range(len(whole) + 1):
        made.file(".log").write_bytes(whole[:size])
        torn = made._replace(size=size)
        kept = max([at for at in [*made.positions, made.size] if at <= size])
        reader = torn.open()
        found = reader.recover(ProducerTable().replay)
        assert (found.size, reader.size, found.error is None) == (kept, kept, kept == size)
        if found.error is not None:
            assert isinstance(found.error, TruncatedBatchError)
        assert made.file(".log").stat().st_size == size
        if size % 7 == 0:
            writer = torn.open(Disk())
            assert writer.recover(ProducerTable().replay)[:2] == found[:2]
            writer.close()
            assert made.file(".log").read_bytes() == whole[:kept]


@pytest.mark.parametrize("rest", [bytes(1), bytes(61), bytes(5000), b"\xff" * 100, b"Z" * 17])
def test_recovery_stops_at_zeros_and_garbage(made: Made, rest: bytes) -> None:
    """Goal: a preallocated or scribbled tail is no batch."""
    with made.file(".log").open("ab") as file:
        file.write(rest)
    segment = made._replace(size=made.size + len(rest)).open()
    found = segment.recover(ProducerTable().replay)
    assert (found.size, segment.size) == (made.size, made.size)
    assert found.error is not None
    made.require_all_offsets(segment)


def test_recovery_cuts_before_a_batch_whose_offsets_fall_back(tmp_path: Path) -> None:
    """Goal: a batch that does not follow the one before it, although its checksum is right, ends the log."""
    good = planned(3)
    data, positions = log_bytes([*good, good[1]])
    made = Made(tmp_path, good, positions[:3], len(data))
    made.file(".log").write_bytes(data)
    segment = made.open()
    found = segment.recover(ProducerTable().replay)
    assert (found.size, found.next_offset) == (positions[3], good[2].last_offset + 1)
    assert isinstance(found.error, CorruptRecordError)
    assert found.error.position == positions[3]


# ---------------------------------------------------------------- threads


def test_many_threads_may_be_the_first_to_need_the_indexes(made: Made) -> None:
    """Goal: loading and mending happen once, whoever comes first. Method: a damaged index, eight threads, in place."""
    for _ in range(10):
        made.file(".index").write_bytes(random.randbytes(160))
        segment = made.open(Disk())
        gate = threading.Barrier(8)

        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(ask, made, segment, gate) for _ in range(8)]
            for each in asked:
                each.result()
        segment.close()


def ask(made: Made, segment: Segment, gate: threading.Barrier) -> None:
    gate.wait()
    made.require_all_offsets(segment)
    made.require_all_times(segment)


# ---------------------------------------------------------------- names and limits


@pytest.mark.parametrize("suffix", [".deleted", ".swap"])
def test_an_open_segment_stays_readable_when_its_files_are_renamed(made: Made, suffix: str) -> None:
    """Goal: deletion and compaction rename first; a reader that has the files goes on."""
    segment = made.open()
    segment.need_indexes()
    segment.view()
    for path in list(made.path.iterdir()):
        path.rename(f"{path}{suffix}")
    made.require_all_offsets(segment)
    made.require_all_times(segment)
    renamed = Segment(str(made.path), BASE, made.size, OPTIONS, suffix=suffix)
    made.require_all_offsets(renamed)


def test_an_offset_out_of_an_entrys_reach_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    """Goal: relative offsets are 31 bits: one more is an error, and the segment is as before."""
    segment = Segment(str(tmp_path), BASE, 0, OPTIONS, Disk())
    segment.create()
    nothing = np.empty(0, ABORTED_DTYPE)
    for offset in (BASE + 2**31, BASE + 2**31 + 5, 2**40):
        data = bytes(encode([b"v"], base_offset=offset, timestamp_ms=1))
        with pytest.raises(OffsetOutOfRangeError, match="too far above"):
            segment.append(data, Batches(scan(data)), nothing)
    assert segment.size == 0
    assert (tmp_path / f"{BASE:020d}.log").stat().st_size == 0
    data = bytes(encode([b"v"], base_offset=BASE + 2**31 - 1, timestamp_ms=1))
    segment.append(data, Batches(scan(data)), nothing)
    assert segment.next_offset() == BASE + 2**31
    segment.close()
