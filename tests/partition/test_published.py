"""What readers in other processes see of a directory that is being written."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oncelog.base.disk import Disk, close_read, is_held, open_to_read
from oncelog.base.errors import KafkaStorageError, OffsetOutOfRangeError
from oncelog.client.directory import LogDirectory
from oncelog.partition.cleaner import clean
from oncelog.partition.live import LivePartition
from oncelog.partition.published import FIRST_SLOTS, HEADER_BYTES, LIVE, Published, find_published
from oncelog.segment.names import TopicPartition
from tests.partition.logs import (
    ABORT,
    COMMIT,
    KEY,
    NOW,
    TOPIC_ID,
    UNCOMMITTED,
    Writer,
    contents,
    open_directory,
    open_partition,
    options,
    read,
    values,
)
from tests.partition.test_durability import NamingDisk
from tests.sim.sim_disk import FaultyDisk

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
SMALL = options(segment_bytes=1200, interval=100)
SYNCED = SMALL._replace(is_synced_on_roll=True)
PATIENCE_S = 60.0
LOOKS = 30
RECORDS = 250


@contextlib.contextmanager
def writing(path: Path, *how: str) -> Iterator[subprocess.Popen[str]]:
    """A writer in another process, until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.partition.live_writer", str(path), *how],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("0 ")
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def look(log: LogDirectory, seen: dict[int, bytes | None], start: int) -> int:
    """Reads on from an offset and checks what a reader is promised; returns the stable offset."""
    for record in log.read("orders", 0, start):
        assert record.value is not None
        assert not record.value.startswith(b"gone"), f"aborted, and seen at {record.offset}"
        assert seen.setdefault(record.offset, record.value) == record.value
    shown = log.partition("orders", 0)
    stable = shown.last_stable_offset
    assert max(seen, default=-1) < stable <= shown.high_watermark
    return stable


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_reader_beside_a_writer_sees_nothing_that_is_taken_back(
    tmp_path: Path, durability: str
) -> None:
    """Goal: at read_committed never an aborted record, never one at or beyond the stable offset, never one that is gone
    after the writer was killed; what is seen grows.
    Method: read in a loop while another process appends transactions and rolls, kill it, read again, recover."""
    seen: dict[int, bytes | None] = {}
    with writing(tmp_path, durability) as process:
        log = LogDirectory(tmp_path)
        deadline, position, looks, first = time.monotonic() + PATIENCE_S, 0, 0, 0
        # Counted in what was read: the writer may run far between a read and the look at its stable offset.
        while (looks < LOOKS or len(seen) - first < RECORDS) and time.monotonic() < deadline:
            stable = look(log, seen, 0 if looks % 10 == 0 else max(seen, default=-1) + 1)
            assert isinstance(log.partition("orders", 0), LivePartition)
            assert stable >= position
            first, position, looks = first or len(seen), stable, looks + 1
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert looks >= LOOKS
    assert first > 0
    assert len(seen) - first >= RECORDS
    assert len(log.partition("orders", 0).log.segments) > 5
    everything = {record.offset: record.value for record in log.read("orders", 0)}
    assert not isinstance(log.partition("orders", 0), LivePartition), "nobody writes any more"
    assert {offset: everything.get(offset) for offset in seen} == seen
    directory, partition = open_partition(tmp_path)
    recovered = dict(read(partition))
    assert {offset: recovered.get(offset) for offset in seen} == seen
    directory.close()
    log.close()


def test_a_reader_goes_on_where_segments_are_deleted_beside_it(tmp_path: Path) -> None:
    """Goal: a segment that was listed and is gone when it is opened means another look, not an error, unless
    records in the middle of a read are gone."""
    with writing(tmp_path, "deletes"):
        log = LogDirectory(tmp_path)
        starts: set[int] = set()
        deadline, looks = time.monotonic() + PATIENCE_S, 0
        while (looks < LOOKS or len(starts) < 4) and time.monotonic() < deadline:
            looks += 1
            seen: dict[int, bytes | None] = {}
            try:
                look(log, seen, 0)
            except OffsetOutOfRangeError:
                assert seen, "nothing was given out, so nothing was missed"
            starts.add(log.partition("orders", 0).log_start_offset)
        assert len(starts) >= 4
        log.close()


def test_a_reader_looks_anew_at_each_call_and_not_in_between(tmp_path: Path) -> None:
    """In this process, too: new records, new segments, new partitions, a new log start."""
    directory, partition = open_partition(tmp_path, SMALL)
    log = LogDirectory(tmp_path)
    writer = Writer(partition)
    writer.send(values(2))
    held = log.partition("orders", 0)
    assert held.log_end_offset == 2
    for number in range(30):
        writer.send(values(2, f"{number}."))
        assert held.log_end_offset == 2 * number + 2
        reading = log.read("orders", 0)
        assert len(list(reading)) == 2 * number + 4
    assert len(held.log.segments) == len(partition.log.segments) > 2
    assert held.offset_for_timestamp(NOW) == partition.offset_for_timestamp(NOW)
    assert held.max_timestamp() == partition.max_timestamp()
    partition.delete_records(partition.log.segments[1].base_offset + 1)
    assert next(iter(log.read("orders", 0))).offset == partition.log_start_offset
    directory.create(TopicPartition("orders", 1), TOPIC_ID)
    directory.create(TopicPartition("other", 0), TOPIC_ID)
    assert log.topics() == {"orders": [0, 1], "other": [0]}
    assert list(log.read("other")) == []
    directory.close()
    assert len(list(log.read("orders", 0))) == 62 - partition.log_start_offset
    assert not isinstance(log.partition("orders", 0), LivePartition)
    log.close()


def test_a_live_reader_knows_producers_and_open_transactions(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path, SMALL)
    one, two = Writer(partition, 1), Writer(partition, 2)
    one.send(values(2), transactional=True)
    one.end(ABORT)
    two.send(values(3), transactional=True)
    with contextlib.closing(LogDirectory(tmp_path)) as log:
        shown = log.partition("orders", 0)
        assert shown.last_stable_offset == 3
        assert shown.active_producers() == partition.active_producers()
        assert shown.transaction_of(2) == partition.transaction_of(2) == (0, 3)
        assert shown.aborted_transactions(0, 6).tolist() == [(1, 0, 2, 3)]
        assert read(shown) == []
        two.end(COMMIT)
        assert shown.transaction_of(2) == (0, 3), "until it looks anew"
        assert log.partition("orders", 0).transaction_of(2) is None
        assert [offset for offset, _ in read(shown)] == [3, 4, 5]
    directory.close()


def test_with_fsync_durability_only_what_is_on_the_device_is_shown(tmp_path: Path) -> None:
    """Goal: nothing that a power failure could take back, but a transaction whose commit is decided is there,
    although its marker lies behind data that is not."""
    directory, partition = open_partition(tmp_path, SYNCED, disk=NamingDisk())
    with contextlib.closing(LogDirectory(tmp_path)) as log:
        one, two, plain = Writer(partition, 1), Writer(partition, 2), Writer(partition)
        one.send(values(2, "one"), transactional=True)
        two.send(values(2, "two"), transactional=True)
        assert log.partition("orders", 0).high_watermark == 0
        partition.sync_to(4)
        shown = log.partition("orders", 0)
        assert (shown.high_watermark, shown.last_stable_offset) == (4, 0)
        plain.send(values(1, "lost?"))
        one.end(COMMIT)
        two.end(ABORT)
        shown = log.partition("orders", 0)
        assert (shown.high_watermark, shown.last_stable_offset) == (4, 4)
        assert [value for _, value in read(shown)] == values(2, "one")
        partition.sync_to(5)
        assert [record.value for record in log.read("orders")] == [*values(2, "one"), b"lost?0"]
        plain.send(values(1, "later"))
        partition.sync()
        assert len(list(log.read("orders"))) == 4
    directory.close()


def test_a_clean_directory_that_is_open_again_needs_no_recovery_to_be_read(tmp_path: Path) -> None:
    """Goal: a partition that its writer has not touched is taken at the word of the last clean stop."""
    directory, partition = open_partition(tmp_path, SMALL)
    Writer(partition, 1).send(values(5), transactional=True)
    Writer(partition, 1, 0, 5).end(COMMIT)
    directory.close()
    directory = open_directory(tmp_path, SMALL)
    with contextlib.closing(LogDirectory(tmp_path)) as log:
        assert not isinstance(log.partition("orders", 0), LivePartition)
        assert len(list(log.read("orders"))) == 5
        Writer(directory.get(KEY)).send(values(1))
        assert isinstance(log.partition("orders", 0), LivePartition)
        assert len(list(log.read("orders"))) == 6
    directory.close()


def test_the_file_is_there_while_the_directory_is_open_and_a_dead_writers_says_nothing(
    tmp_path: Path,
) -> None:
    directory, partition = open_partition(tmp_path)
    Writer(partition).send(values(3))
    live = (tmp_path / LIVE).read_bytes()
    assert live[:8] == b"ONCELIVE"
    assert live[HEADER_BYTES + 64 :].startswith(b"orders-0\0")
    assert struct.unpack_from("=qqqqqq", live, HEADER_BYTES)[1:] == (1, 0, 3, 3, 0)
    view = find_published(str(tmp_path))
    assert view is not None
    directory.close()
    assert not view.is_live
    assert not (tmp_path / LIVE).exists()
    (tmp_path / LIVE).write_bytes(live)
    assert find_published(str(tmp_path)) is None, "nobody holds it"
    with contextlib.closing(LogDirectory(tmp_path)) as log:
        assert len(list(log.read("orders"))) == 3
    open_directory(tmp_path).close()
    assert not (tmp_path / LIVE).exists()


@pytest.mark.parametrize(
    "content", [b"", b"ONCELIVE", b"\xff" * 30_000, b"ONCELIVE" + bytes(30_000)]
)
def test_a_strange_file_of_that_name_is_not_believed(tmp_path: Path, content: bytes) -> None:
    (tmp_path / LIVE).write_bytes(content)
    assert find_published(str(tmp_path)) is None


def test_a_reader_of_an_open_directory_changes_nothing_and_does_not_unlock_it(
    tmp_path: Path,
) -> None:
    directory, partition = open_partition(tmp_path, SMALL)
    for _ in range(20):
        Writer(partition).send(values(3))
    before = contents(tmp_path / "orders-0"), (tmp_path / LIVE).read_bytes()
    with contextlib.closing(LogDirectory(tmp_path)) as log:
        list(log.read("orders"))
    assert (contents(tmp_path / "orders-0"), (tmp_path / LIVE).read_bytes()) == before
    code = (
        "import sys; from tests.partition.logs import open_directory; open_directory(sys.argv[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "DirectoryLockedError" in done.stderr
    directory.close()


def test_more_partitions_than_the_file_was_made_for(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    keys = [TopicPartition("many", number) for number in range(FIRST_SLOTS * 2 + 3)]
    partitions = [directory.create(key, TOPIC_ID) for key in keys]
    log = LogDirectory(tmp_path)
    for number, partition in enumerate(partitions):
        Writer(partition).send(values(number % 5 + 1))
        assert log.partition("many", number).log_end_offset == number % 5 + 1
    for number in range(len(partitions)):
        assert len(list(log.read("many", number))) == number % 5 + 1
    directory.delete(keys[7])
    assert 7 not in log.topics()["many"]
    directory.create(keys[7], TOPIC_ID)
    assert log.partition("many", 7).log_end_offset == 0
    log.close()
    directory.close()


def test_a_full_disk_is_an_error_when_the_file_is_made_or_grows(tmp_path: Path) -> None:
    """Goal: never a signal at a store. Method: fail each call of making it, then the write that adds slots."""
    for at in range(1, 5):
        with pytest.raises(OSError, match="simulated"):
            Published(FaultyDisk(at), str(tmp_path / LIVE), was_clean=False)
    disk = FaultyDisk(10**9)
    directory = open_directory(tmp_path, disk=disk)
    for number in range(FIRST_SLOTS):
        directory.create(TopicPartition("many", number), TOPIC_ID)
    disk._at, disk._lasts = disk.calls + 1, 100
    with pytest.raises(KafkaStorageError, match="simulated"):
        Writer(directory.create(TopicPartition("many", FIRST_SLOTS), TOPIC_ID)).send(values(1))
    disk._lasts = 0
    Writer(directory.create(TopicPartition("many", FIRST_SLOTS), TOPIC_ID)).send(values(1))
    directory.close()


def test_a_partition_without_a_slot_gets_one_as_soon_as_there_is_space(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: on a full disk a partition can be read, takes no record that readers elsewhere would see unguarded, and
    is published with its first append after there is space again."""
    disk = FaultyDisk(10**9)
    keys = [TopicPartition("many", number) for number in range(FIRST_SLOTS + 1)]
    with contextlib.closing(open_directory(tmp_path)) as directory:
        for key in keys:
            directory.create(key, TOPIC_ID)
    directory = open_directory(tmp_path, disk=disk)
    for key in keys[:-1]:
        directory.get(key).need_state()
    partition = directory.get(keys[-1])
    disk._at, disk._lasts = disk.calls + 1, 100
    assert partition.last_stable_offset == 0
    with pytest.raises(KafkaStorageError, match="simulated"):
        Writer(partition).send(values(1))
    assert partition.log_end_offset == 0
    disk._lasts = 0
    Writer(partition).send(values(3))
    view = find_published(str(tmp_path))
    assert view is not None
    slot, owner = view.slots()[keys[-1].directory]
    read = slot.read(owner)
    assert read is not None
    assert read[1:3] == (3, 3)
    directory.close()


def test_a_forked_child_ends_nothing_for_the_readers(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path)
    Writer(partition).send(values(2))
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            directory.close()
        os._exit(0)
    os.waitpid(child, 0)
    view = find_published(str(tmp_path))
    assert view is not None
    assert view.is_live
    Writer(partition).send(values(1))
    with contextlib.closing(LogDirectory(tmp_path)) as log:
        assert len(list(log.read("orders"))) == 3
    directory.close()


def test_a_truncated_log_is_shown_shorter_and_then_longer_again(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path, SMALL)
    for number in range(20):
        Writer(partition).send(values(2, f"{number}."))
    with contextlib.closing(LogDirectory(tmp_path)) as log:
        assert len(list(log.read("orders"))) == 40
        partition.truncate_to(13, NOW)
        assert [record.offset for record in log.read("orders")] == list(range(12))
        Writer(partition).send(values(5, "new"))
        assert [record.value for record in log.read("orders", start=12)] == values(5, "new")
    directory.close()


def test_compaction_beside_a_reader_is_not_noticed(tmp_path: Path) -> None:
    """Goal: segments that take the place of others are found; what was mapped is read to its end."""
    using = SMALL._replace(is_compacted=True)
    directory, partition = open_partition(tmp_path, using)
    writer = Writer(partition)
    for number in range(40):
        writer.send([b"%d" % number], keys=[b"k%d" % (number % 4)])
    log = LogDirectory(tmp_path)
    held = log.partition("orders", 0)
    started = iter(log.read("orders", isolation_level="read_uncommitted"))
    first = next(started)
    partition.roll(NOW)
    clean(partition, first_dirty=0, end=40, delete_retention_ms=0, now_ms=NOW)
    assert first.offset == 0
    assert 39 in [record.offset for record in started]
    kept = [offset for offset, _ in read(partition, UNCOMMITTED)]
    assert len(kept) < 40
    assert [record.offset for record in log.read("orders")] == kept
    assert held.log_end_offset == 40
    log.close()
    directory.close()


def test_the_lock_is_seen_by_readers_of_this_process(tmp_path: Path) -> None:
    disk = Disk()
    descriptor = disk.open(tmp_path / "file")
    disk.hold(descriptor)
    reading = open_to_read(tmp_path / "file")
    assert is_held(reading)
    disk.close(descriptor)
    assert not is_held(reading)
    close_read(reading)


def test_a_partitions_directory_on_its_own_is_that_of_the_writer_above(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path, SYNCED, disk=NamingDisk())
    Writer(partition).send(values(3))
    with contextlib.closing(LogDirectory(tmp_path / "orders-0")) as log:
        assert list(log.read("orders")) == []
        partition.sync_to(3)
        assert len(list(log.read("orders"))) == 3
        directory.close()
        assert len(list(log.read("orders"))) == 3
