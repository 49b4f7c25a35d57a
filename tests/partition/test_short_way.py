"""One native call for an append leaves the files that the steps one by one leave, entries of indexes among them."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from oncelog.base.errors import KafkaStorageError
from oncelog.partition.partition import Partition
from oncelog.segment.batch import encode
from tests.partition.logs import NOW, open_partition, options, read
from tests.sim.sim_disk import FaultyDisk

if TYPE_CHECKING:
    from pathlib import Path


def _files(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.suffix in (".log", ".index", ".timeindex")
    }


def _written(path: Path, seed: int) -> dict[str, bytes]:
    random = Random(seed)
    using = options(segment_bytes=6000, index_bytes=96, interval=300)
    directory, partition = open_partition(path, using)
    for _ in range(300):
        values = [bytes(random.randrange(200)) for _ in range(random.choice([1, 1, 3]))]
        batch = encode(values, timestamp_ms=NOW + random.randrange(50))
        partition.append_as_leader(bytearray(batch), leader_epoch=0, now_ms=NOW)
    directory.close()
    return _files(path)


@pytest.mark.parametrize("seed", range(3))
def test_both_ways_leave_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Goal: logs, offset and time indexes are the same, whoever wrote the entries, also where an index becomes full.
    Method: the same batches with the short way and without; the short way must have been taken where entries are due."""
    append_one, added = Partition._append_one, [0]

    def counted(partition: Partition, *arguments: Any) -> int:
        index = partition.log.active.offset_index
        before = index.count
        base_offset = append_one(partition, *arguments)
        added[0] += index.count - before
        return base_offset

    monkeypatch.setattr(Partition, "_append_one", counted)
    short = _written(tmp_path / "short", seed)
    assert added[0] > 20, "entries are written by the short way"
    monkeypatch.setattr(Partition, "_append_one", lambda *_: -1)
    assert _written(tmp_path / "long", seed) == short
    assert len(short) > 3 * 3, "segments rolled"


@pytest.mark.parametrize("by_halves", [False, True])
def test_an_entry_that_cannot_be_written_takes_its_append_with_it(
    tmp_path: Path, *, by_halves: bool
) -> None:
    """Goal: after a failure at any write of an append nothing of it counts, and the next append succeeds.
    Method: a disk that fails at each write in turn, entries due with every second append."""
    failed = set()
    for at in range(1, 60):
        path, disk = tmp_path / str(at), FaultyDisk(10_000, by_halves=by_halves)
        directory, partition = open_partition(path, options(interval=60), disk=disk)
        expected: list[tuple[int, bytes | None]] = []
        disk._at = disk.calls + at
        for number in range(20):
            index, times = partition.log.active.offset_index, partition.log.active.time_index
            before = index.count, times.count
            batch = encode([b"%d" % number], timestamp_ms=NOW + number)
            try:
                partition.append_as_leader(bytearray(batch), leader_epoch=0, now_ms=NOW)
                expected.append((len(expected), b"%d" % number))
            except KafkaStorageError:
                failed.add(number)
                assert (index.count, times.count) == before
                assert partition.log_end_offset == len(expected)
        assert read(partition) == expected
        assert index.count > 5
        directory.close()
        directory, partition = open_partition(path, options(interval=60))
        for offset in range(len(expected)):
            assert read(partition, start=offset) == expected[offset:]
        directory.close()
    assert len(failed) > 10, "many appends failed, with an entry due and without"
