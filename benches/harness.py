"""Cases, a clock that treats all contestants alike, and targets. Data is made in data.py, directories in files.py.

Fair     ratios come from one run: contestants take turns, round by round, so that noise hits all.
Checked  before the clock starts, every contestant must have made what ours made.
Stated   the JSON names machine, versions, seed and commit.
"""

from __future__ import annotations

import dataclasses
import enum
import fnmatch
import gc
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
import timeit
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pytest_benchmark.stats import Stats

from .data import (
    FIRST_TIMESTAMP_MS,
    MAIN,
    SEED,
    SHAPES,
    Records,
    Shape,
    make_records,
    random_values,
    text_values,
)
from .files import ROOT, Scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

# What bench_*.py are written with, wherever it is defined.
__all__ = [
    "FASTEST", "FIRST_TIMESTAMP_MS", "MAIN", "ROOT", "SEED", "SHAPES", "TARGETS_FILE", "Case",
    "Contestant", "DisagreementError", "Records", "Result", "Role", "Scratch", "Settings", "Shape",
    "Target", "Unit", "Verdict", "load_targets", "make_records", "measure", "random_values", "run",
    "surroundings", "text_values", "version_of", "write_json",
]  # fmt: skip

TARGETS_FILE: Final = Path(__file__).with_name("targets.toml")

# ---------------------------------------------------------------- cases


class Unit(enum.Enum):
    """How a time is shown; the last ones are no times, but what a gauge has read."""

    NS_PER_RECORD = "ns/record"
    GB_PER_SECOND = "GB/s"
    NS_PER_BATCH = "ns/batch"
    NS_PER_CALL = "ns/call"
    MS_PER_CALL = "ms"
    KIB = "KiB"
    THREADS = "threads"
    WAKE_UPS = "wake-ups/s"
    CPU = "µs CPU/s"
    SYNCS = "syncs/commit"

    @property
    def is_gauge(self) -> bool:
        return self in (Unit.KIB, Unit.THREADS, Unit.WAKE_UPS, Unit.CPU, Unit.SYNCS)

    def of(self, seconds: float, work: int) -> float:
        """A time for one call, in this unit; ``work`` is what the call does: records or bytes."""
        if self is Unit.GB_PER_SECOND:
            return work / seconds / 1e9
        if self.is_gauge:
            return seconds
        if self is Unit.MS_PER_CALL:
            return seconds * 1e3
        return seconds * 1e9 / (1 if self is Unit.NS_PER_CALL else work)


class Role(enum.Enum):
    OURS = "ours"
    PEER = "peer"
    LIMIT = "limit"


@dataclasses.dataclass
class Contestant:
    """One way to do the work of a case; without a ``call`` it is only named, with the reason. In a case whose unit is
    no time, the call answers with the number itself."""

    name: str
    role: Role
    call: Callable[[], object] | str | None = None
    names: Mapping[str, object] = dataclasses.field(default_factory=dict)  # for a call in words
    reveal: Callable[[], object] | None = None  # what it makes, in a form that can be compared
    loops: float = (
        1  # how often one call does the work; below one: a part of it, which takes long enough
    )
    missing: str = ""
    version: str = ""
    setup: Callable[[], object] | None = None  # before every round, outside the clock
    rounds: int | None = None  # at most, where preparing them takes long

    def timer(self) -> timeit.Timer:
        """timeit's loop, with the garbage collector off, as all of Python is timed."""
        assert self.call is not None
        return timeit.Timer(self.call, self.setup or "pass", globals=dict(self.names))

    def function(self) -> Callable[[], object]:
        if isinstance(self.call, str):
            return eval(f"lambda: {self.call}", dict(self.names))  # type: ignore[no-any-return]  # noqa: S307
        assert self.call is not None
        if self.setup is None:
            return self.call
        setup, call = self.setup, self.call

        def both() -> object:
            setup()
            return call()

        return both


class DisagreementError(AssertionError):
    """A contestant does not do the same work, so its time means nothing."""


@dataclasses.dataclass
class Case:
    """One line of the table: ours, its peers and its limits, all doing the same."""

    name: str  # stable: targets and results refer to it
    title: str
    unit: Unit
    work: int  # records or bytes of one call
    contestants: list[Contestant]

    def present(self) -> list[Contestant]:
        """Those who take part: nobody, where ours cannot."""
        if self.ours.call is None:
            return []
        return [one for one in self.contestants if one.call is not None]

    @property
    def ours(self) -> Contestant:
        (ours,) = (one for one in self.contestants if one.role is Role.OURS)
        return ours

    def outline(self) -> Case:
        """The same without anything that runs, and so without the logs and clusters that it runs on."""
        named = [
            Contestant(one.name, one.role, missing=one.missing, version=one.version)
            for one in self.contestants
        ]
        return dataclasses.replace(self, contestants=named)

    def check(self) -> None:
        """Every contestant that reveals what it makes has made the same."""
        if not self.present():
            return
        assert self.ours.reveal is not None, f"{self.name}: ours must show what it makes"
        expected = self.ours.reveal()
        for one in self.present():
            if one.reveal is not None and one is not self.ours and one.reveal() != expected:
                raise DisagreementError(f"{self.name}: {one.name} and ours disagree")


# ---------------------------------------------------------------- settings


@dataclasses.dataclass(frozen=True)
class Settings:
    """How much to measure, and what to leave out."""

    rounds: int = 25
    round_seconds: float = 0.004
    slow_rounds: int = 4  # at least, of a contestant whose one call takes longer than ten rounds
    slow_seconds: float = 1.5  # in which it may have more rounds than that
    log_bytes: int = 256 << 20  # of the logs that storage is measured on
    quick: bool = False
    seed: int = SEED
    without: frozenset[str] = frozenset()

    @classmethod
    def tiny(cls, without: Iterable[str] = ()) -> Settings:
        """Enough to see that everything runs."""
        return cls(1, 0.0, 1, 0.0, log_bytes=1 << 21, quick=True, without=frozenset(without))

    @classmethod
    def short(cls, without: Iterable[str] = ()) -> Settings:
        """Enough for figures to believe in, in about a minute: what `oncelog bench` takes."""
        return cls(9, 0.002, 2, 0.25, log_bytes=32 << 20, without=frozenset(without))

    def shape(self, shape: Shape) -> Shape:
        if not self.quick:
            return shape
        return dataclasses.replace(
            shape, records=min(shape.records, 20), batches=min(shape.batches, 3)
        )

    def records(
        self,
        shape: Shape,
        values: Callable[[np.random.Generator, int, int], list[bytes]] = random_values,
    ) -> Records:
        return make_records(self.shape(shape), self.seed, values)

    def bytes_of(self, size: int) -> bytes:
        return np.random.default_rng(self.seed).bytes(size)


# ---------------------------------------------------------------- the clock


def calls_per_round(timer: timeit.Timer, round_seconds: float) -> tuple[int, float]:
    """How many calls make one round, and about how long one takes; this is the warm-up, too."""
    number, seconds = 1, timer.timeit(1)
    while seconds < round_seconds / 4:
        number *= 2 if seconds > round_seconds / 50 else 10
        seconds = timer.timeit(number)
    each = seconds / number
    return max(1, round(round_seconds / each)), each


def _read_gauges(case: Case, settings: Settings) -> dict[str, Stats]:
    """What is counted, not timed: a few readings of each, in turns."""
    new_stats: Any = Stats  # comes without types
    found: dict[str, Any] = {one.name: new_stats() for one in case.present()}
    for _ in range(min(settings.rounds, settings.slow_rounds)):
        for one in case.present():
            found[one.name].update(float(one.function()()))  # type: ignore[arg-type]
    return found


def _has_turn(turn: int, rounds: int, turns: int) -> bool:
    """Whether it is the turn of someone who has fewer rounds than there are turns: they lie as far apart as they can. A
    machine that is fast for some seconds, and slow for some, is then seen in both states by all."""
    return turn * rounds // turns < (turn + 1) * rounds // turns


def measure(case: Case, settings: Settings) -> dict[str, Stats]:
    """Seconds that one unit of work takes, for each contestant, over interleaved rounds."""
    if case.unit.is_gauge:
        return _read_gauges(case, settings)
    lanes = []
    for one in case.present():
        timer = one.timer()
        # What is prepared for every round can be used up by one call.
        once = one.setup is not None
        if settings.quick:  # nobody looks at the time, and Spark's jobs are long
            repeats, each = 1, 0.0
        elif once:
            repeats, each = 1, timer.timeit(1)
        else:
            repeats, each = calls_per_round(timer, settings.round_seconds)
        rounds = settings.rounds
        if each > 10 * settings.round_seconds:
            rounds = min(rounds, max(settings.slow_rounds, int(settings.slow_seconds / each)))
        rounds = min(rounds, one.rounds or rounds)
        lanes.append((one, timer, repeats, rounds))
    new_stats: Any = Stats  # comes without types
    found: dict[str, Any] = {one.name: new_stats() for one, *_ in lanes}
    for turn in range(settings.rounds if lanes else 0):
        # The order turns, too: whoever follows a contestant that empties the cache, does not always.
        first = turn % len(lanes)
        for one, timer, repeats, rounds in lanes[first:] + lanes[:first]:
            if _has_turn(turn, rounds, settings.rounds):
                found[one.name].update(timer.timeit(repeats) / repeats / one.loops)
    return found


# ---------------------------------------------------------------- targets and results


@dataclasses.dataclass(frozen=True)
class Target:
    """A promise about a ratio: at least so much faster than a peer, or at most so far from a limit."""

    case: str  # a pattern of case names
    against: str  # a peer's or limit's name; "fastest peer"
    ratio: float
    role: Role
    why: str
    suite: str = ""  # where it is judged: here, or "kafka", which is make bench-kafka

    def __str__(self) -> str:
        sign = "≥" if self.role is Role.PEER else "≤"
        return f"{sign} {self.ratio:g}x {self.against}"


def load_targets(path: Path = TARGETS_FILE, suite: str = "") -> list[Target]:
    """The promises that one suite judges: this one, or make bench-kafka ("kafka")."""
    found = []
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["target"]:
        role = Role.PEER if "peer" in entry else Role.LIMIT
        where, ratio = entry.get("suite", ""), float(entry["ratio"])
        if where == suite:
            found.append(Target(entry["case"], entry[role.value], ratio, role, entry["why"], where))
    return found


FASTEST: Final = "fastest peer"


@dataclasses.dataclass
class Verdict:
    """What a run says about a target; ``achieved`` is None where the other side is missing, and a
    smoke run says nothing."""

    target: Target
    achieved: float | None
    counts: bool = True

    @property
    def met(self) -> bool | None:
        if self.achieved is None or not self.counts:
            return None
        if self.target.role is Role.PEER:
            return self.achieved >= self.target.ratio
        return self.achieved <= self.target.ratio

    def __str__(self) -> str:
        if self.achieved is None or self.met is None:
            return "not measured"
        if self.met:
            return "met"
        return f"missed by {abs(self.achieved / self.target.ratio - 1):.0%}"


@dataclasses.dataclass
class Result:
    """One case, measured."""

    case: Case
    stats: dict[str, Stats]
    verdicts: list[Verdict] = dataclasses.field(default_factory=list)
    instructions: dict[str, float] = dataclasses.field(default_factory=dict)  # see counting.py
    seconds: float = 0.0  # the whole case took, preparations left out

    def best(self, name: str) -> float | None:
        """Seconds of the best round, None for a contestant that did not run."""
        stats = self.stats.get(name)
        return float(stats.min) if stats else None

    def shown(self, name: str) -> float | None:
        best = self.best(name)
        return None if best is None else self.case.unit.of(best, self.case.work)

    def median(self, name: str) -> float | None:
        """As ``shown``, for the round in the middle."""
        stats = self.stats.get(name)
        return self.case.unit.of(float(stats.median), self.case.work) if stats else None

    def spread(self, name: str) -> float | None:
        """The middle half of the rounds lies within this share of the median."""
        stats = self.stats.get(name)
        return float(stats.iqr / stats.median) if stats and stats.median else None

    def ratio(self, one: Contestant) -> float | None:
        """Against a peer: how many times faster ours is. Against a limit: ours over the limit."""
        ours, other = self.best(self.case.ours.name), self.best(one.name)
        if not ours or not other:  # a gauge can read nothing at all
            return None
        return other / ours if one.role is Role.PEER else ours / other

    @property
    def noise(self) -> float:
        """By how much the median of ours lies above its best."""
        stats = self.stats.get(self.case.ours.name)
        return float(stats.median / stats.min - 1) if stats and stats.min else 0.0

    def judge(self, targets: Iterable[Target], counts: bool = True) -> None:
        """Compares with the targets of this case; what was not timed in earnest does not count."""
        for target in targets:
            if not fnmatch.fnmatchcase(self.case.name, target.case):
                continue
            sides = [
                one
                for one in self.case.contestants
                if one.role is target.role and target.against in (one.name, FASTEST)
            ]
            if not sides:
                raise LookupError(f"targets.toml: {self.case.name} has no {target.against!r}")
            ratios = [ratio for one in sides if (ratio := self.ratio(one)) is not None]
            self.verdicts.append(Verdict(target, min(ratios, default=None), counts))

    def as_json(self) -> dict[str, object]:
        contestants = []
        for one in self.case.contestants:
            entry: dict[str, object] = {"name": one.name, "role": one.role.value}
            if one.version:
                entry["version"] = one.version
            if one.name not in self.stats:
                entry["missing"] = one.missing or "ours did not run"
            else:
                stats = self.stats[one.name]
                entry |= {
                    "value": self.shown(one.name),
                    "median": self.median(one.name),
                    "spread": self.spread(one.name),
                    "ratio": None if one.role is Role.OURS else self.ratio(one),
                    "seconds_min": stats.min,
                    "seconds_median": stats.median,
                    "seconds_iqr": stats.iqr,
                    "rounds": stats.rounds,
                }
            if one.name in self.instructions:
                entry["instructions"] = self.instructions[one.name]
            contestants.append(entry)
        return {
            "case": self.case.name,
            "title": self.case.title,
            "unit": self.case.unit.value,
            "work": self.case.work,
            "seconds": round(self.seconds, 3),
            "contestants": contestants,
            "targets": [
                {
                    "against": verdict.target.against,
                    "ratio": verdict.target.ratio,
                    "achieved": verdict.achieved,
                    "met": verdict.met,
                    "why": verdict.target.why,
                }
                for verdict in self.verdicts
            ],
        }


def run(
    cases: Iterable[Case], settings: Settings, targets: Sequence[Target] = ()
) -> Iterator[Result]:
    """Checks, measures and judges one case after another; only one case's data is alive at a time."""
    for case in cases:
        gc.collect()  # the case before this one is gone now, with its logs and their threads
        began = time.monotonic()
        case.check()
        result = Result(case.outline(), measure(case, settings))
        result.seconds = time.monotonic() - began
        result.judge(targets, counts=not settings.quick)
        yield result


# ---------------------------------------------------------------- where and with what


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _git(*words: str) -> str:
    if not (ROOT / "pyproject.toml").exists():
        return ""  # no checkout of ours: what lies around an installed suite is someone else's
    try:
        done = subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def version_of(distribution: str) -> str:
    """The installed version, empty where there is none."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


DISTRIBUTIONS: Final = (
    *("oncelog", "numpy", "pyarrow", "lz4", "aiokafka", "cramjam", "kafka-python"),
    *("google-crc32c", "awscrt", "crc32c", "confluent-kafka", "lmdb", "rocksdict", "pyspark"),
    *("pandas", "pytest-benchmark"),
)


def surroundings(settings: Settings) -> dict[str, object]:
    """Machine, versions, seed and commit: what a stranger needs to compare."""
    from oncelog._native.checksum import crc32c_kernels

    return {
        "machine": {
            "cpu": _cpu_name(),
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
            "system": platform.platform(),
            "crc32c_kernels": list(crc32c_kernels()),
        },
        "versions": {
            "python": platform.python_version(),
            **{name: found for name in DISTRIBUTIONS if (found := version_of(name))},
        },
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain")),
        "command": " ".join(["python", "-m", "benches", *sys.argv[1:]]),
        "settings": {
            "seed": settings.seed,
            "rounds": settings.rounds,
            "round_seconds": settings.round_seconds,
            "log_bytes": settings.log_bytes,
            "quick": settings.quick,
        },
    }


def write_json(path: Path, about: Mapping[str, object], results: Iterable[Result]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {**about, "results": [result.as_json() for result in results]}
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
