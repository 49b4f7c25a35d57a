"""The broker's own facts survive crashes, full disks and restarts, and damage is never guessed over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from oncelog.base.disk import Disk
from oncelog.base.errors import ClosedError, CorruptFileError, KafkaStorageError
from oncelog.broker.metadata_log import METADATA_FILE, SLACK, MetadataLog

if TYPE_CHECKING:
    from pathlib import Path

NOW = 1_700_000_000_000


def opened(path: Path, disk: Disk | None = None) -> MetadataLog:
    return MetadataLog(str(path), disk or Disk(), lambda: NOW)


def written(path: Path) -> bytes:
    """A log with three changes; returns its bytes."""
    log = opened(path)
    log.put({"topic/a": {"partitions": [0]}, "leader_epoch": 0})
    log.put({"leader_epoch": 1})
    log.put({"topic/a": None, "topic/b": {"partitions": [0, 1]}})
    log.close()
    return (path / METADATA_FILE).read_bytes()


FACTS_AFTER: tuple[dict[str, Any], ...] = (
    {},
    {"topic/a": {"partitions": [0]}, "leader_epoch": 0},
    {"topic/a": {"partitions": [0]}, "leader_epoch": 1},
    {"leader_epoch": 1, "topic/b": {"partitions": [0, 1]}},
)


def test_what_was_put_is_there_after_reopening(tmp_path: Path) -> None:
    written(tmp_path)
    log = opened(tmp_path)
    assert log.facts == FACTS_AFTER[3]
    assert not log.is_new
    log.close()


def test_a_change_that_a_crash_cut_short_never_happened_and_the_next_one_takes_its_place(
    tmp_path: Path,
) -> None:
    """Goal: at every byte the file may end after a crash. Method: cut there, open, change, open again."""
    data = written(tmp_path)
    seen = set()
    for size in range(len(data)):
        (tmp_path / METADATA_FILE).write_bytes(data[:size])
        log = opened(tmp_path)
        count = FACTS_AFTER.index(log.facts)
        seen.add(count)
        log.put({"leader_epoch": 9})
        log.close()
        again = opened(tmp_path)
        assert again.facts == {**FACTS_AFTER[count], "leader_epoch": 9}
        again.close()
    assert seen == {0, 1, 2}


def test_a_flipped_byte_is_refused_or_takes_back_only_the_last_change(tmp_path: Path) -> None:
    data = written(tmp_path)
    refused = 0
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x40
        (tmp_path / METADATA_FILE).write_bytes(damaged)
        try:
            log = opened(tmp_path)
        except CorruptFileError as error:
            refused += METADATA_FILE in str(error)
            continue
        # Outside of the checksum lie the base offset and the leader epoch, which mean nothing here.
        assert log.facts in FACTS_AFTER
        log.close()
    assert refused > len(data) // 3


def test_zeros_at_the_end_are_a_torn_change(tmp_path: Path) -> None:
    data = written(tmp_path)
    (tmp_path / METADATA_FILE).write_bytes(data + bytes(4096))
    log = opened(tmp_path)
    assert log.facts == FACTS_AFTER[3]
    log.close()
    assert (tmp_path / METADATA_FILE).read_bytes() == data


class _FullDisk(Disk):
    """Takes half of a write, then none, until space is back."""

    is_full = False

    def write(self, descriptor: int, data: object, position: int) -> None:
        view = memoryview(data)  # type: ignore[arg-type]
        if self.is_full:
            super().write(descriptor, view[: len(view) // 2], position)
            raise OSError(28, "No space left on device")
        super().write(descriptor, view, position)


def test_a_full_disk_loses_nothing_and_the_log_goes_on_when_space_is_back(tmp_path: Path) -> None:
    disk = _FullDisk()
    log = opened(tmp_path, disk)
    log.put({"leader_epoch": 0})
    disk.is_full = True
    with pytest.raises(KafkaStorageError, match="No space left"):
        log.put({"leader_epoch": 1})
    assert log.facts == {"leader_epoch": 0}
    disk.is_full = False
    log.put({"producer_ids": 1000})
    log.close()
    again = opened(tmp_path)
    assert again.facts == {"leader_epoch": 0, "producer_ids": 1000}
    again.close()


class _FailingSync(Disk):
    def sync(self, descriptor: int) -> None:
        raise OSError(5, "Input/output error")


def test_after_a_failed_sync_nothing_more_is_written(tmp_path: Path) -> None:
    log = opened(tmp_path, _FailingSync())
    with pytest.raises(KafkaStorageError):
        log.put({"leader_epoch": 1})
    with pytest.raises(KafkaStorageError, match="offline"):
        log.put({"leader_epoch": 1})
    assert log.facts == {}
    log.close()


def test_a_file_that_is_mostly_history_is_written_anew(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for number in range(SLACK + 10):
        log.put({"producer_ids": number})
    log.close()
    size = (tmp_path / METADATA_FILE).stat().st_size
    again = opened(tmp_path)
    assert again.facts == {"producer_ids": SLACK + 9}
    again.close()
    assert (tmp_path / METADATA_FILE).stat().st_size < size // 100


def test_a_closed_log_refuses_changes(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.close()
    log.close()
    with pytest.raises(ClosedError):
        log.put({"leader_epoch": 1})
