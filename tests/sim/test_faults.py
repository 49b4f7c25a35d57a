"""A disk that is full or broken at the n-th call: a typed error, nothing half done, and the log goes on."""

from __future__ import annotations

import errno
import itertools
from typing import TYPE_CHECKING

import pytest

from oncelog.base.errors import KafkaStorageError
from tests.partition.logs import KEY, UNCOMMITTED, contents, open_partition, read
from tests.sim.history import SMALL, Teller, check_contiguous, tell
from tests.sim.sim_disk import CountingDisk, FaultyDisk

if TYPE_CHECKING:
    from pathlib import Path

# What the history does to the disk when nothing fails; tests go on until a fault is no longer reached.
CALLS_MIN = 110


def reopened(path: Path, teller: Teller) -> None:
    """Both views after the fact: without changing a byte, and after recovery."""
    before = contents(path)
    directory, partition = open_partition(path, SMALL, read_only=True)
    teller.ledger.check(partition)
    shown = read(partition)
    directory.close()
    assert contents(path) == before, "a reader has changed something"
    directory, partition = open_partition(path, SMALL, disk=CountingDisk())
    teller.ledger.check(partition)
    assert read(partition) == shown, "recovery keeps what a reader was shown"
    directory.close()


@pytest.mark.parametrize(
    ("code", "by_halves", "lasts"),
    [
        pytest.param(errno.ENOSPC, False, 1, id="full"),
        pytest.param(errno.ENOSPC, True, 3, id="full_for_a_while"),
        pytest.param(errno.EIO, True, 1, id="broken"),
        pytest.param(errno.EIO, False, 3, id="broken_for_a_while"),
    ],
)
def test_a_fault_at_any_call_leaves_the_log_consistent_and_usable(
    tmp_path: Path, code: int, by_halves: bool, lasts: int
) -> None:
    """Goal: a failed write is refused with a typed error, leaves no trace, and the next one works; a failed sync
    takes the partition offline; what was acknowledged is there after reopening, what was aborted is not.
    Method: fail the first call that changes a file, then the second, and so on until the history gets through."""
    for at in itertools.count(1):
        path = tmp_path / str(at)
        disk, teller = FaultyDisk(at, code, by_halves=by_halves, lasts=lasts), Teller(3)
        directory, refused = tell(teller, path, disk)
        partition = directory.get(KEY)
        teller.ledger.check(partition)
        if partition.is_offline:
            assert disk.failed in ("sync", "sync_directory")
            with pytest.raises(KafkaStorageError, match="offline"):
                partition.sync()
        try:
            directory.close()
        except KafkaStorageError:
            refused += 1
        reopened(path, teller)
        if disk.failed is None:
            assert at > CALLS_MIN
            assert refused == 0
            return
        assert refused > 0, f"nobody has noticed that {disk.failed} failed at call {at}"


@pytest.mark.parametrize("what", ["truncate", "delete"])
def test_a_fault_while_records_are_removed_leaves_the_log_before_or_after(
    tmp_path: Path, what: str
) -> None:
    """Goal: truncation and deletion over several segments are done or not done, never in part: the log has no
    hole. A truncation that fails takes the partition offline, since the files no longer say what memory does.
    Method: fail each call in turn, by halves, then open again and look."""
    for at in itertools.count(1):
        path = tmp_path / str(at)
        quiet = CountingDisk()
        directory, partition = open_partition(path, SMALL, disk=quiet)
        teller = Teller(4)
        for step in teller.steps(partition):
            step()
        everything = read(partition, UNCOMMITTED)
        offset = partition.log.segments[1].base_offset + 3
        disk = FaultyDisk(at, errno.EIO, by_halves=True)
        for holder in (partition, partition.log, directory, *partition.log.segments):
            for name in ("disk", "_disk"):
                if getattr(holder, name, None) is quiet:
                    setattr(holder, name, disk)
        partition.epochs._disk = disk
        refused = False
        try:
            if what == "truncate":
                partition.truncate_to(offset, 0)
            else:
                partition.delete_records(offset)
        except KafkaStorageError:
            refused = True
            before = what == "delete" or read(partition, UNCOMMITTED) == everything
            assert partition.is_offline or before
        if not refused:
            end = partition.log_end_offset
        try:
            directory.close()
        except KafkaStorageError:
            refused = True
        directory, partition = open_partition(path, SMALL, disk=CountingDisk())
        check_contiguous(partition)
        left = read(partition, UNCOMMITTED)
        if what == "truncate":
            assert left == everything[: len(left)]
            assert refused or partition.log_end_offset == end
        else:
            assert left == everything[len(everything) - len(left) :]
        directory.close()
        if disk.failed is None:
            assert at > 5
            return
