"""How fast is a log proven after an unclean stop?
Times    opening for writing without the marker of a clean stop and without checkpoints: every checksum, producers and
         transactions replayed, all indexes and the snapshot made anew; "reader": the same in memory alone.
Excludes the clean stop that follows; the log lies in the cache of pages.
Anchor   a sum over a warm mapping is the limit; beside it one that maps the file anew, as recovery must.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import oncelog
from oncelog.base.disk import map_file
from oncelog.log.checkpoint import CLEAN_SHUTDOWN, RECOVERY_POINT

from . import floor, logs
from .harness import Case, Contestant, Role, Unit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchmark.fixture import BenchmarkFixture

    from oncelog.partition.data_directory import DataDirectory

    from .harness import Settings

VALUE_BYTES = {"100B": 100, "1KB": 1000}


class _Recovery:
    """A log that was never stopped cleanly, as far as its directory knows."""

    def __init__(self, stored: logs.StoredLog) -> None:
        self._stored = stored
        self._directory: DataDirectory | None = None

    def forget(self) -> None:
        if self._directory is not None:
            self._directory.close()
        for name in (CLEAN_SHUTDOWN, RECOVERY_POINT):
            (self._stored.path / name).unlink(missing_ok=True)

    def recover(self) -> tuple[int, int]:
        self._directory = logs.open_directory(self._stored.path)
        partition = self._directory.get(logs.KEY)
        return partition.log_end_offset, partition.last_stable_offset

    def look(self) -> tuple[int, int]:
        with oncelog.open(self._stored.path, read_only=True) as log:
            partition = log.partition(logs.TOPIC, 0)
            return partition.log_end_offset, partition.last_stable_offset

    def forget_and_recover(self) -> tuple[int, int]:
        self.forget()
        return self.recover()


def cases(settings: Settings) -> Iterator[Case]:
    for name, value_bytes in VALUE_BYTES.items():
        stored = logs.write_log(settings, value_bytes)  # its own: it is written to
        recovery = _Recovery(stored)
        size = f"{stored.size / (1 << 20):.0f} MiB, records of {name}"
        limits = [
            floor.sum_over([map_file(path) for path in stored.files], settings),
            floor.map_and_sum(stored.files, settings),
        ]
        ours = {
            "writer": Contestant(
                "oncelog", Role.OURS, recovery.recover, reveal=recovery.forget_and_recover,
                setup=recovery.forget,
            ),
            "reader": Contestant(
                "oncelog", Role.OURS, recovery.look, reveal=recovery.look, setup=recovery.forget
            ),
        }  # fmt: skip
        for kind, one in ours.items():
            yield Case(
                f"recovery.{kind}.{name}",
                f"recovery, {kind}, {size}",
                Unit.GB_PER_SECOND,
                stored.size,
                [one, *limits],
            )


def test_recovery(benchmark: BenchmarkFixture, contestant: Contestant) -> None:
    benchmark(contestant.function())
