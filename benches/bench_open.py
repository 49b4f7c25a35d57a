"""How long does it take to open many partitions that were stopped cleanly?
Times    opening a directory and each of its 1,000 partitions; "ends": until each log's end is known as well.
Excludes nothing; the directories lie in the kernel's cache.
Anchor   os.scandir over all directories and a stat of every file, from Python, is the limit.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import oncelog
from oncelog.segment.batch import encode
from oncelog.segment.names import TopicPartition

from . import logs
from .harness import Case, Contestant, Role, Scratch, Unit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchmark.fixture import BenchmarkFixture

    from oncelog.partition.data_directory import DataDirectory

    from .harness import Settings

PARTITIONS: Final = 1_000
LISTING: Final = "scandir and stat"


def _make(count: int) -> Scratch:
    """Partitions of one small segment each, with an idempotent producer."""
    scratch = Scratch("open")
    directory = logs.open_directory(scratch.path)
    for number in range(count):
        partition = directory.create(TopicPartition(logs.TOPIC, number), logs.TOPIC_ID)
        data = encode([b"value"] * 10, producer_id=1, producer_epoch=0, base_sequence=0,
                      timestamp_ms=logs.NOW_MS)  # fmt: skip
        partition.append_as_leader(data, leader_epoch=0, now_ms=logs.NOW_MS)
    directory.close()
    return scratch


class Opened:
    def __init__(self, count: int) -> None:
        self._scratch = _make(count)
        self._count = count
        self._writer: DataDirectory | None = None

    def list_and_stat(self) -> int:
        total = 0
        with os.scandir(self._scratch.path) as top:
            for directory in top:
                if directory.is_dir():
                    with os.scandir(directory.path) as files:
                        for file in files:
                            total += file.stat().st_size
        return total

    def open(self) -> int:
        with oncelog.open(self._scratch.path, read_only=True) as log:
            return sum(log.partition(logs.TOPIC, number).log.size for number in range(self._count))

    def open_to_ends(self) -> int:
        with oncelog.open(self._scratch.path, read_only=True) as log:
            return sum(
                log.partition(logs.TOPIC, number).log_end_offset for number in range(self._count)
            )

    def open_to_write(self) -> int:
        self._writer = logs.open_directory(self._scratch.path)
        return sum(
            self._writer.get(TopicPartition(logs.TOPIC, number)).log.size
            for number in range(self._count)
        )

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def reveal_writer(self) -> int:
        self.close()
        found = self.open_to_write()
        self.close()
        return found


def cases(settings: Settings) -> Iterator[Case]:
    count = 20 if settings.quick else PARTITIONS
    opened = Opened(count)
    ours = {
        "read": ("to read", Contestant("oncelog", Role.OURS, opened.open, reveal=opened.open)),
        "ends": (
            "to read, with log ends",
            Contestant("oncelog", Role.OURS, opened.open_to_ends, reveal=opened.open_to_ends),
        ),
        "write": (
            "to write",
            Contestant("oncelog", Role.OURS, opened.open_to_write, reveal=opened.reveal_writer,
                       setup=opened.close),
        ),
    }  # fmt: skip
    for name, (title, one) in ours.items():
        yield Case(
            f"open.{name}",
            f"open {count:,} partitions {title}",
            Unit.NS_PER_RECORD,
            count,
            [one, Contestant(LISTING, Role.LIMIT, opened.list_and_stat)],
        )
        opened.close()


def test_open(benchmark: BenchmarkFixture, contestant: Contestant) -> None:
    benchmark(contestant.function())
