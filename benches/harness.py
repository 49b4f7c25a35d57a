"""Seeds, data, cases, and a clock that treats all contestants alike.

Fair     ratios come from one run: contestants take turns, round by round, so that noise hits all.
Checked  before the clock starts, every contestant must have made what ours made.
Stated   the JSON names machine, versions, seed and commit.
"""

from __future__ import annotations

import dataclasses
import enum
import fnmatch
import functools
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import timeit
import tomllib
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pytest_benchmark.stats import Stats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parents[1]
TARGETS_FILE: Final = Path(__file__).with_name("targets.toml")
SEED: Final = 20_261_116
FIRST_TIMESTAMP_MS: Final = 1_794_787_200_000

# ---------------------------------------------------------------- data


@dataclasses.dataclass(frozen=True)
class Shape:
    """How many records of which sizes."""

    name: str
    value_bytes: int
    records: int = 1_000  # of one batch
    batches: int = 1
    key_bytes: int = 16
    headers: int = 0  # of one record

    def __str__(self) -> str:
        size = (
            f"{self.value_bytes} B" if self.value_bytes < 1000 else f"{self.value_bytes // 1000} KB"
        )
        headers = f" + {self.headers} headers" if self.headers else ""
        many = f", {self.batches} batches" if self.batches > 1 else ""
        return f"{size}{headers}{many}"


MAIN: Final = Shape("100B", 100)
SHAPES: Final = (
    MAIN,
    Shape("10B", 10),
    Shape("1KB", 1_000),
    Shape("headers", 100, headers=2),
    Shape("100batches", 100, batches=100),
)

Header = tuple[str, bytes]


@dataclasses.dataclass(frozen=True)
class Records:
    """The same records as Python objects and as Arrow columns."""

    shape: Shape
    keys: list[bytes]
    values: list[bytes]
    timestamps: list[int]
    headers: list[list[Header]]

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def data_bytes(self) -> int:
        """Bytes of keys, values and headers."""
        headers = sum(len(k) + len(v) for pairs in self.headers for k, v in pairs)
        return sum(map(len, self.keys)) + sum(map(len, self.values)) + headers

    @functools.cached_property
    def arrow(self) -> Any:
        """One pyarrow record batch."""
        columns = {
            "key": pa.array(self.keys, pa.binary()),
            "value": pa.array(self.values, pa.binary()),
            "timestamp": pa.array(self.timestamps, pa.timestamp("ms", "UTC")),
        }
        if self.shape.headers:
            pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
            rows = [[{"key": k, "value": v} for k, v in pairs] for pairs in self.headers]
            columns["headers"] = pa.array(rows, pa.list_(pair))
        return pa.record_batch(columns)

    def rows(self) -> list[tuple[int, int, bytes, bytes, list[Header]]]:
        """What every decoder must give back."""
        offsets = range(self.count)
        return list(
            zip(offsets, self.timestamps, self.keys, self.values, self.headers, strict=True)
        )


def random_values(rng: np.random.Generator, count: int, size: int) -> list[bytes]:
    """Values that no codec can shrink: what is timed does not depend on them."""
    block = rng.bytes(count * size)
    return [block[at : at + size] for at in range(0, count * size, size)]


def text_values(rng: np.random.Generator, count: int, size: int) -> list[bytes]:
    """Events as JSON: a few fields, few distinct words, some digits; they shrink about threefold."""
    pages = ["/", "/cart", "/checkout", "/search?q=shoes", "/product/8812", "/account/orders"]
    events = ["view", "click", "scroll", "purchase"]
    made = []
    for user, page, event in zip(
        rng.integers(0, 10**7, count), rng.choice(pages, count), rng.choice(events, count),
        strict=True,
    ):  # fmt: skip
        text = f'{{"user":{user},"event":"{event}","page":"{page}","agent":"Mozilla/5.0 (X11)"'
        made.append((text + " " * size)[: size - 1].encode() + b"}")
    return made


def make_records(
    shape: Shape,
    seed: int = SEED,
    values: Callable[[np.random.Generator, int, int], list[bytes]] = random_values,
) -> Records:
    """The records of a shape; the same for the same seed, everywhere."""
    rng = np.random.default_rng(seed)
    count = shape.records * shape.batches
    return Records(
        shape=shape,
        keys=random_values(rng, count, shape.key_bytes),
        values=values(rng, count, shape.value_bytes),
        timestamps=[FIRST_TIMESTAMP_MS + index for index in range(count)],
        headers=[
            [(f"header-{number}", rng.bytes(8)) for number in range(shape.headers)]
            for _ in range(count)
        ],
    )


# ---------------------------------------------------------------- cases


class Unit(enum.Enum):
    """How a time is shown."""

    NS_PER_RECORD = "ns/record"
    GB_PER_SECOND = "GB/s"
    NS_PER_CALL = "ns/call"

    def of(self, seconds: float, work: int) -> float:
        """A time for one call, in this unit; ``work`` is what the call does: records or bytes."""
        if self is Unit.GB_PER_SECOND:
            return work / seconds / 1e9
        return seconds * 1e9 / (work if self is Unit.NS_PER_RECORD else 1)


class Role(enum.Enum):
    OURS = "ours"
    PEER = "peer"
    LIMIT = "limit"


@dataclasses.dataclass
class Contestant:
    """One way to do the work of a case; without a ``call`` it is only named, with the reason."""

    name: str
    role: Role
    call: Callable[[], object] | str | None = None
    names: Mapping[str, object] = dataclasses.field(default_factory=dict)  # for a call in words
    reveal: Callable[[], object] | None = None  # what it makes, in a form that can be compared
    loops: int = 1  # how often one call does the work
    missing: str = ""
    version: str = ""
    setup: Callable[[], object] | None = None  # before every round, outside the clock

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
        return [one for one in self.contestants if one.call is not None]

    @property
    def ours(self) -> Contestant:
        (ours,) = (one for one in self.contestants if one.role is Role.OURS)
        return ours

    def check(self) -> None:
        """Every contestant that reveals what it makes has made the same."""
        assert self.ours.reveal is not None, f"{self.name}: ours must show what it makes"
        expected = self.ours.reveal()
        for one in self.present():
            if one.reveal is not None and one is not self.ours and one.reveal() != expected:
                raise DisagreementError(f"{self.name}: {one.name} and ours disagree")


# ---------------------------------------------------------------- files


class Scratch:
    """A directory on the disk that the project lies on; gone with the last that refers to it."""

    def __init__(self, name: str) -> None:
        parent = ROOT / "build/bench"
        parent.mkdir(parents=True, exist_ok=True)
        self.path = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


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
        return cls(2, 0.0, 1, 0.0, log_bytes=1 << 21, quick=True, without=frozenset(without))

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


def _repeats(timer: timeit.Timer, round_seconds: float) -> tuple[int, float]:
    """How many calls make one round, and about how long one takes; this is the warm-up, too."""
    number, seconds = 1, timer.timeit(1)
    while seconds < round_seconds / 4:
        number *= 2 if seconds > round_seconds / 50 else 10
        seconds = timer.timeit(number)
    each = seconds / number
    return max(1, round(round_seconds / each)), each


def measure(case: Case, settings: Settings) -> dict[str, Stats]:
    """Seconds that one unit of work takes, for each contestant, over interleaved rounds."""
    lanes = []
    for one in case.present():
        timer = one.timer()
        # What is prepared for every round can be used up by one call.
        once = one.setup is not None
        repeats, each = (1, timer.timeit(1)) if once else _repeats(timer, settings.round_seconds)
        rounds = settings.rounds
        if each > 10 * settings.round_seconds:
            rounds = min(rounds, max(settings.slow_rounds, int(settings.slow_seconds / each)))
        lanes.append((one, timer, repeats, rounds))
    new_stats: Any = Stats  # comes without types
    found: dict[str, Any] = {one.name: new_stats() for one, *_ in lanes}
    for turn in range(settings.rounds):
        # The order turns, too: whoever follows a contestant that empties the cache, does not always.
        first = turn % len(lanes)
        for one, timer, repeats, rounds in lanes[first:] + lanes[:first]:
            if turn < rounds:
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

    def __str__(self) -> str:
        sign = "≥" if self.role is Role.PEER else "≤"
        return f"{sign} {self.ratio:g}x {self.against}"


def load_targets(path: Path = TARGETS_FILE) -> list[Target]:
    found = []
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["target"]:
        role = Role.PEER if "peer" in entry else Role.LIMIT
        found.append(
            Target(entry["case"], entry[role.value], float(entry["ratio"]), role, entry["why"])
        )
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

    def best(self, name: str) -> float | None:
        """Seconds of the best round, None for a contestant that did not run."""
        stats = self.stats.get(name)
        return float(stats.min) if stats else None

    def shown(self, name: str) -> float | None:
        best = self.best(name)
        return None if best is None else self.case.unit.of(best, self.case.work)

    def ratio(self, one: Contestant) -> float | None:
        """Against a peer: how many times faster ours is. Against a limit: ours over the limit."""
        ours, other = self.best(self.case.ours.name), self.best(one.name)
        if ours is None or other is None:
            return None
        return other / ours if one.role is Role.PEER else ours / other

    @property
    def noise(self) -> float:
        """By how much the median of ours lies above its best."""
        stats = self.stats[self.case.ours.name]
        return float(stats.median / stats.min - 1)

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
            if one.call is None:
                entry["missing"] = one.missing
            else:
                stats = self.stats[one.name]
                entry |= {
                    "value": self.shown(one.name),
                    "ratio": None if one.role is Role.OURS else self.ratio(one),
                    "seconds_min": stats.min,
                    "seconds_median": stats.median,
                    "seconds_iqr": stats.iqr,
                    "rounds": stats.rounds,
                }
            contestants.append(entry)
        return {
            "case": self.case.name,
            "title": self.case.title,
            "unit": self.case.unit.value,
            "work": self.case.work,
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
        case.check()
        result = Result(case, measure(case, settings))
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
    *("google-crc32c", "awscrt", "crc32c", "pytest-benchmark"),
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
