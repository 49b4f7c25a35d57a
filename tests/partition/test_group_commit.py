"""Group commit: one fdatasync for all who wait, no lock held meanwhile, and what it promised survives."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oncelog.base.errors import ClosedError, KafkaStorageError, OffsetOutOfRangeError
from tests.partition.logs import (
    ABORT,
    COMMIT,
    KEY,
    NOW,
    UNCOMMITTED,
    Writer,
    open_partition,
    options,
    read,
    values,
)
from tests.partition.test_durability import NamingDisk
from tests.sim.sim_disk import SimDisk

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 10
SMALL = options(segment_bytes=500, interval=100)
SYNCED = options(is_synced_on_roll=True)


class SlowDisk(NamingDisk):
    """A device that answers when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_slow = False
        self.entered = threading.Event()
        self.may_answer = threading.Event()

    def sync(self, descriptor: int) -> None:
        if self.is_slow:
            self.entered.set()
            assert self.may_answer.wait(PATIENCE_S)
        os.fstat(descriptor)  # an error if somebody has closed it meanwhile
        super().sync(descriptor)


def in_thread(what: Callable[[], Any]) -> tuple[threading.Thread, list[BaseException]]:
    """Runs it in a thread; what it raises is kept."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            what()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


def test_a_commit_syncs_the_log_alone_and_a_new_name_once(tmp_path: Path) -> None:
    """Goal: one fdatasync where nothing was rolled; indexes, snapshots and the recovery point wait for sync()."""
    disk = NamingDisk()
    directory, partition = open_partition(tmp_path, disk=disk)
    writer = Writer(partition, 1)
    log = "00000000000000000000.log"
    for expected in ([log, "orders-0/"], [log], [log]):
        writer.send(values(3), transactional=True)
        writer.end(ABORT)
        disk.synced.clear()
        partition.sync_to(partition.log_end_offset)
        assert disk.synced == expected
        assert partition.durable_end_offset == partition.log_end_offset
    disk.synced.clear()
    partition.sync_to(partition.log_end_offset)
    partition.sync_to(2)
    assert disk.synced == [], "all of it is there"
    assert partition.recovery_point == 0
    partition.sync()
    assert log in disk.synced
    assert partition.recovery_point == partition.durable_end_offset == partition.log_end_offset
    directory.close()


def test_segments_that_were_rolled_since_are_synced_with_their_names(tmp_path: Path) -> None:
    disk = NamingDisk()
    directory, partition = open_partition(tmp_path, SMALL, disk=disk)
    writer = Writer(partition)
    writer.send(values(3))
    partition.sync_to(3)
    while len(partition.log.segments) < 3:
        writer.send(values(3))
    disk.synced.clear()
    partition.sync_to(partition.log_end_offset)
    logs = [f"{segment.base_offset:020d}.log" for segment in partition.log.segments]
    assert disk.synced == [*logs, "orders-0/"]
    directory.close()


def test_threads_that_wait_share_a_sync(tmp_path: Path) -> None:
    """Goal: fewer syncs than commits. Method: the first is held back until all others have written and wait."""
    disk = SlowDisk()
    directory, partition = open_partition(tmp_path, disk=disk)
    Writer(partition).send(values(1))
    disk.synced.clear()
    disk.is_slow = True
    threads = [in_thread(lambda: partition.sync_to(1))]
    assert disk.entered.wait(PATIENCE_S)
    for count in range(16):
        end = Writer(partition).send(values(1)).last_offset + 1
        assert end == count + 2, "an append waits for no device"
        threads.append(in_thread(lambda end=end: partition.sync_to(end)))  # type: ignore[misc]
    assert partition.durable_end_offset == 0
    disk.may_answer.set()
    for thread, errors in threads:
        thread.join(PATIENCE_S)
        assert not errors
    assert partition.durable_end_offset == 17
    assert [name for name in disk.synced if name.endswith(".log")] == ["0" * 20 + ".log"] * 2
    directory.close()


@pytest.mark.parametrize("deed", ["append", "roll", "truncate", "delete_records", "remove"])
def test_nothing_waits_for_the_device_and_nothing_is_pulled_from_under_it(
    tmp_path: Path, deed: str
) -> None:
    """Goal: a sync under way neither holds up the writer nor loses its descriptor, and counts only what it covers.
    Method: hold the device, do the deed in the meantime, let the device answer."""
    disk = SlowDisk()
    directory, partition = open_partition(tmp_path, SMALL, disk=disk)
    writer = Writer(partition)
    writer.send(values(3))
    partition.sync_to(3)
    for _ in range(7):
        writer.send(values(3))
    disk.is_slow = True
    thread, errors = in_thread(lambda: partition.sync_to(24))
    assert disk.entered.wait(PATIENCE_S)
    disk.is_slow = False  # for everybody else
    if deed == "append":
        writer.send(values(3))
    elif deed == "roll":
        partition.roll(NOW)
        writer.send(values(3))
    elif deed == "truncate":
        partition.truncate_to(18, NOW)
        assert partition.durable_end_offset <= 18
    elif deed == "delete_records":
        partition.delete_records(24)
    else:
        directory.delete(KEY)
    assert thread.is_alive(), "the device is still at work"
    disk.may_answer.set()
    thread.join(PATIENCE_S)
    if deed == "truncate":
        assert isinstance(errors[0], OffsetOutOfRangeError), "what it waited for is gone"
        writer.send(values(9))
        assert partition.durable_end_offset <= 18
        partition.sync_to(27)
        assert partition.durable_end_offset == 27
    else:
        assert not errors
        assert partition.durable_end_offset == 24
    directory.close()


def test_a_close_meanwhile_is_a_sync_as_well(tmp_path: Path) -> None:
    disk = SlowDisk()
    directory, partition = open_partition(tmp_path, disk=disk)
    Writer(partition).send(values(3))
    disk.is_slow = True
    thread, errors = in_thread(lambda: partition.sync_to(3))
    assert disk.entered.wait(PATIENCE_S)
    disk.is_slow = False
    directory.close()
    partition.sync_to(3)
    disk.may_answer.set()
    thread.join(PATIENCE_S)
    assert not errors
    with pytest.raises(ClosedError):
        partition.sync_to(4)


def test_a_failed_sync_fails_all_who_wait_and_is_not_tried_again(tmp_path: Path) -> None:
    """Goal: what the kernel has dropped cannot be written once more: offline, until the partition is opened again."""
    disk = SlowDisk()
    directory, partition = open_partition(tmp_path, disk=disk)
    Writer(partition).send(values(1))
    partition.sync_to(1)
    Writer(partition).send(values(4))
    disk.is_slow, disk.fails = True, lambda name: name.endswith(".log")
    threads = [in_thread(lambda: partition.sync_to(3))]
    assert disk.entered.wait(PATIENCE_S)
    threads += [in_thread(lambda: partition.sync_to(5)) for _ in range(5)]
    disk.synced.clear()
    disk.may_answer.set()
    for thread, errors in threads:
        thread.join(PATIENCE_S)
        assert isinstance(errors[0], KafkaStorageError)
    assert len(disk.synced) == 1
    assert partition.is_offline
    assert partition.durable_end_offset == 1
    partition.sync_to(1)
    with pytest.raises(KafkaStorageError, match="offline"):
        Writer(partition).send(values(1))
    disk.fails = lambda _: False
    directory.close()
    directory, partition = open_partition(tmp_path)
    assert not partition.is_offline
    directory.close()


def test_an_offset_beyond_the_end_cannot_be_reached(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path)
    Writer(partition).send(values(2))
    with pytest.raises(OffsetOutOfRangeError, match="ends at 2"):
        partition.sync_to(3)
    partition.sync_to(2)
    directory.close()


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    """Goal: a sync closes what it has opened, after an error as well."""
    disk = NamingDisk()
    directory, partition = open_partition(tmp_path, disk=disk)
    Writer(partition).send(values(1))
    opened = descriptors_of(partition.log.active._descriptor)
    for end in range(1, 9):
        partition.sync_to(end)
        Writer(partition).send(values(1))
    disk.fails = lambda _: True
    with pytest.raises(KafkaStorageError):
        partition.sync_to(9)
    assert descriptors_of(partition.log.active._descriptor) == opened, "those of its own are closed"
    disk.fails = lambda _: False
    directory.close()


def test_markers_right_behind_durable_data_are_published_and_others_are_not(tmp_path: Path) -> None:
    """Goal: "fsync" durability: readers in other processes see what a power failure leaves; a marker counts, since its
    coordinator carries it out again, but not one behind data that may be lost."""
    directory, partition = open_partition(tmp_path, SYNCED, disk=NamingDisk())
    one, two = Writer(partition, 1), Writer(partition, 2)
    one.send(values(3), transactional=True)
    assert partition.published_end_offset == 0
    partition.sync_to(3)
    assert partition.published_end_offset == partition.durable_end_offset == 3
    one.end(COMMIT)
    assert (partition.published_end_offset, partition.durable_end_offset) == (4, 3)
    two.send(values(2), transactional=True)
    two.end(COMMIT)
    assert partition.published_end_offset == 4
    partition.sync_to(5)
    assert partition.published_end_offset == 7
    directory.close()


def test_after_a_crash_fsync_durability_starts_with_all_of_it_on_the_device(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path / "live", SYNCED)
    Writer(partition).send(values(3))
    shutil.copytree(tmp_path / "live", tmp_path / "copy")
    directory.close()
    disk = NamingDisk()
    directory, partition = open_partition(tmp_path / "copy", SYNCED, disk=disk)
    assert partition.published_end_offset == 3
    assert "0" * 20 + ".log" in disk.synced
    directory.close()


@pytest.mark.parametrize("number", range(10))
def test_everything_below_the_durable_end_survives_a_power_failure(
    tmp_path: Path, number: int
) -> None:
    """Goal: what sync_to has promised is there, whatever becomes of the rest: torn sectors, lost sizes and names.
    Method: append, commit, roll and checkpoint at random over a disk that knows what was synced; fail the power."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    disk = SimDisk()
    path = tmp_path / "live"
    using = SMALL._replace(is_synced_on_roll=bool(number % 2))
    directory, partition = open_partition(path, using, disk=disk)
    written: list[bytes] = []
    for step in range(60):
        batch = values(chance.randint(1, 4), f"{step}.", chance.choice([0, 60]))
        Writer(partition).send(batch)
        written += batch
        if chance.random() < 0.5:
            partition.sync_to(chance.randint(0, partition.log_end_offset))
        if chance.random() < 0.1:
            partition.roll(NOW)
        if chance.random() < 0.1:
            directory.checkpoint()
        if chance.random() < 0.15:
            durable = partition.durable_end_offset
            failed = tmp_path / "failed"
            disk.fail_power(path, failed, chance)
            after, recovered = open_partition(failed, using)
            kept = [value for _, value in read(recovered, UNCOMMITTED)]
            assert kept[:durable] == written[:durable]
            if using.is_synced_on_roll:  # else a segment may survive one before it, as in Kafka
                assert kept == written[: len(kept)]
            after.close()
            shutil.rmtree(failed)
    directory.close()


def test_a_failed_look_at_the_files_is_an_error_and_no_end(tmp_path: Path) -> None:
    """Goal: where not even a descriptor can be had, nothing was promised, and the next try may succeed."""
    disk = NamingDisk()
    directory, partition = open_partition(tmp_path, disk=disk)
    Writer(partition).send(values(1))

    def refuse(_: int) -> int:
        raise OSError(errno.EMFILE, "simulated")

    duplicate, disk.duplicate = disk.duplicate, refuse  # type: ignore[method-assign, assignment]
    with pytest.raises(KafkaStorageError, match="simulated"):
        partition.sync_to(1)
    assert not partition.is_offline
    disk.duplicate = duplicate  # type: ignore[method-assign]
    partition.sync_to(1)
    assert partition.durable_end_offset == 1
    directory.close()


def descriptors_of(descriptor: int) -> list[int]:
    """All descriptors of this process for the same file."""
    wanted = os.fstat(descriptor)
    found = []
    for name in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the directory's own is closed by now
            if os.path.samestat(os.fstat(int(name.name)), wanted):
                found.append(int(name.name))
    return sorted(found)


def test_the_short_way_to_the_device_fails_like_the_long_one(tmp_path: Path) -> None:
    """Goal: an error of the real disk's fdatasync is not tried again, and takes the partition offline.
    Method: a pipe in the place of the file, which no device can sync; another disk always goes the long way."""
    directory, partition = open_partition(tmp_path)
    writer = Writer(partition, 1)
    writer.send(values(3))
    partition.sync_to(3)
    writer.send(values(3))
    segment = partition.log.active
    opened = descriptors_of(segment._descriptor)
    assert partition._sync_last(7) == -1, "the log does not reach so far"
    assert partition._sync_last(6) == 6
    ends = os.pipe()
    pipes = descriptors_of(ends[1])
    segment._descriptor, descriptor = ends[1], segment._descriptor
    with pytest.raises(KafkaStorageError, match="Invalid argument"):
        partition.sync_to(6)
    assert descriptors_of(ends[1]) == pipes, "also after an error"
    segment._descriptor = descriptor
    for end in ends:
        os.close(end)
    assert descriptors_of(segment._descriptor) == opened, "those of its own are closed"
    assert partition.durable_end_offset == 3
    with pytest.raises(KafkaStorageError, match="offline after"):
        partition.sync_to(6)
    assert partition._sync_last(6) == -1
    directory.close()
    directory, partition = open_partition(tmp_path / "other", disk=NamingDisk())
    Writer(partition, 1).send(values(3))
    partition.sync_to(3)
    Writer(partition, 2).send(values(3))
    assert partition._sync_last(6) == -1
    directory.close()
