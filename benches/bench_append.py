"""How fast does a partition take encoded batches?
Times    append_as_leader of batches of 1 MiB from an idempotent producer: checksum, every record's structure,
         sequence, offsets and epoch stamped, log and indexes written to the cache of pages.
Excludes encoding, making the empty partition, fsync.
Anchor   write() of the same bytes to a new file on the same file system, in a loop of C.
"""

from __future__ import annotations

import itertools
import os
import shutil
from typing import TYPE_CHECKING, Final

from oncelog.segment.names import TopicPartition

from . import floor, logs
from .harness import Case, Contestant, Role, Scratch, Unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_benchmark.fixture import BenchmarkFixture

    from oncelog._native.batch import EncodedBatches
    from oncelog.partition.data_directory import DataDirectory
    from oncelog.partition.partition import Partition

    from .harness import Settings

VALUE_BYTES: Final = {"100 B": 100, "1 KB": 1000}
BATCHES: Final = 64


class FreshPartition:
    """A partition that is new for every round."""

    def __init__(self, batches: Sequence[EncodedBatches]) -> None:
        self._batches = batches
        self._scratch = Scratch("append")
        self._numbers = itertools.count()
        self._directory: DataDirectory | None = None
        self._partition: Partition | None = None

    def make(self) -> None:
        self.drop()
        self._directory = logs.open_directory(self._scratch.path)
        key = TopicPartition(logs.TOPIC, next(self._numbers))
        self._partition = self._directory.create(key, logs.TOPIC_ID)

    def drop(self) -> None:
        """Empties the log before it is closed, so that nothing is written to the device for nothing."""
        if self._directory is not None:
            for path in self._scratch.path.glob("*/*.log"):
                os.truncate(path, 0)
            self._directory.close()
            shutil.rmtree(self._scratch.path)

    def append(self) -> int:
        assert self._partition is not None
        append = self._partition.append_as_leader
        for batch in self._batches:
            append(batch, leader_epoch=0, now_ms=logs.NOW_MS)
        return self._partition.log_end_offset

    def reveal(self) -> int:
        self.make()
        return self.append()


class _File:
    """A file that is new for every round."""

    def __init__(self) -> None:
        self._scratch = Scratch("write")
        self.descriptor = -1

    def make(self) -> None:
        path = self._scratch.path / "bytes"
        if self.descriptor >= 0:
            os.close(self.descriptor)
            path.unlink()
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def cases(settings: Settings) -> Iterator[Case]:
    for label, value_bytes in VALUE_BYTES.items():
        count = 2 if settings.quick else BATCHES
        batches = logs.one_mebibyte_batches(settings, value_bytes, count)
        partition, file = FreshPartition(batches), _File()
        yield Case(
            f"append.{label.replace(' ', '')}",
            f"append 1 MiB batches, records of {label}",
            Unit.GB_PER_SECOND,
            sum(map(len, batches)),
            [
                Contestant(
                    "oncelog", Role.OURS, partition.append, reveal=partition.reveal,
                    setup=partition.make,
                ),
                floor.write_loop(
                    batches, lambda file=file: file.descriptor, file.make, settings  # type: ignore[misc]
                ),
            ],
        )  # fmt: skip


def test_append(benchmark: BenchmarkFixture, contestant: Contestant) -> None:
    benchmark(contestant.function())
