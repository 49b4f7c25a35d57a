"""What does an open log cost while nobody uses it?
Times    nothing, but counts, in a process that has opened a log with one topic, whose producer has sent one record and
         waits: "memory": private memory taken by the library and the log; "log": by one more such log; "threads": of the
         process; "wake-ups": how often a second a thread is woken; "cpu": microseconds of processor time a second.
Excludes what a Python that does nothing has taken already, but for its one thread.
Anchor   LMDB, SQLite and RocksDB, opened and written to once in processes of their own; a Python that sleeps is the
         limit, for "memory" one that has imported numpy. All run at the same time; the best of a few readings.
"""

from __future__ import annotations

import collections
import importlib.util
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .harness import Case, Contestant, Role, Scratch, Unit, version_of
from .peers import NOT_INSTALLED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_benchmark.fixture import BenchmarkFixture

    from .harness import Settings

SECONDS: Final = 3.0  # housekeeping looks around once a second
QUICK_SECONDS: Final = 0.05
PEERS: Final = {"LMDB": "lmdb", "SQLite": "sqlite3", "RocksDB": "rocksdict"}
NUMPY: Final = "import numpy"
ASLEEP: Final = "a Python that sleeps"
# gauge: unit, title, limit
GAUGES: Final = {
    "memory": (Unit.KIB, "private memory of the library and an idle log", NUMPY),
    "log": (Unit.KIB, "private memory of one more idle log", None),
    "threads": (Unit.THREADS, "threads of an idle log", ASLEEP),
    "wake_ups": (Unit.WAKE_UPS, "wake-ups of an idle log", ASLEEP),
    "cpu": (Unit.CPU, "processor time of an idle log", ASLEEP),
}
PROCESS: Final = Path(__file__).with_name("idle_process.py")
NO_PROC: Final = "no /proc here"


class _Readings:
    """What processes with an idle store have read of themselves: once for all gauges, all stores at the same time."""

    def __init__(self, names: list[str], seconds: float) -> None:
        self._names, self._seconds = names, seconds
        self._found: dict[str, list[dict[str, float]]] = collections.defaultdict(list)

    def _read(self) -> None:
        scratch = Scratch("idle")
        running = []
        for name in self._names:
            path = scratch.path / name
            path.mkdir()
            # As a file, and without its directory on the path: nothing of the suite is imported.
            words = ["-P", str(PROCESS), name, str(path), str(self._seconds)]
            process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
            running.append((name, process))
        for name, process in running:
            out, _ = process.communicate()
            if process.returncode != 0:
                raise RuntimeError(f"an idle {name} ended with {process.returncode}")
            self._found[name].append(json.loads(out))

    def gauge(self, name: str, of: str) -> Callable[[], float]:
        """One reading after another, each made when a gauge first asks for it."""
        numbers = itertools.count()

        def read() -> float:
            number = next(numbers)
            while len(self._found[name]) <= number:
                self._read()
            return float(self._found[name][number][of])

        return read


def cases(settings: Settings) -> Iterator[Case]:
    if not Path("/proc/self/smaps_rollup").exists():
        for name, (unit, title, _) in GAUGES.items():
            missing = Contestant("oncelog", Role.OURS, missing=NO_PROC)
            yield Case(f"idle.{name}", title, unit, 1, [missing])
        return
    installed = [
        name
        for name, module in PEERS.items()
        if name not in settings.without and importlib.util.find_spec(module) is not None
    ]
    seconds = QUICK_SECONDS if settings.quick else SECONDS
    readings = _Readings(["oncelog", *installed, NUMPY, ASLEEP], seconds)
    for name, (unit, title, limit) in GAUGES.items():
        peers = [
            Contestant(peer, Role.PEER, readings.gauge(peer, name), version=version_of(PEERS[peer]))
            if peer in installed
            else Contestant(peer, Role.PEER, missing=NOT_INSTALLED)
            for peer in PEERS
        ]
        limits = [Contestant(limit, Role.LIMIT, readings.gauge(limit, name))] if limit else []
        ours = readings.gauge("oncelog", name)
        yield Case(
            f"idle.{name}",
            title,
            unit,
            1,
            [Contestant("oncelog", Role.OURS, ours, reveal=lambda: True), *peers, *limits],
        )


def test_idle(benchmark: BenchmarkFixture, contestant: Contestant) -> None:
    benchmark(contestant.function())
