"""A file of results, as ``python -m benches`` writes it: all that tables, pictures and comparisons are made from.

Nothing here measures or imports what does, so that results can be looked at where nothing is installed.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

OURS: Final = "ours"
PEER: Final = "peer"
LIMIT: Final = "limit"
MORE_IS_BETTER: Final = ("GB/s",)
# What the parts of a question's docstring begin with.
PARTS: Final = ("Times", "Excludes", "Anchor")
HERE: Final = Path(__file__).resolve().parent


class NotResultsError(Exception):
    """A file is not what a run has written; the message says what is wrong with it."""


@dataclasses.dataclass(frozen=True)
class Side:
    """One contestant of a case: what it took, or why it did not run."""

    name: str
    role: str
    version: str = ""
    value: float | None = None  # of the best round, in the unit of the case
    median: float | None = None
    ratio: float | None = (
        None  # of a peer: how much faster ours is; of a limit: how much longer ours takes
    )
    best: float | None = None  # as measured: seconds, or what a gauge read; less is better
    middle: float | None = None
    spread: float = 0.0  # the middle half of the rounds lies within this share of the median
    rounds: int = 0
    instructions: float | None = None
    missing: str = ""

    @property
    def label(self) -> str:
        return f"{self.name} {self.version}" if self.version else self.name

    @property
    def noise(self) -> float:
        """By which share another run may differ: the spread, or how far the median lies above the best."""
        if not self.best or self.middle is None:
            return 0.0
        return max(self.spread, self.middle / self.best - 1)

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Side:
        middle, iqr = entry.get("seconds_median"), entry.get("seconds_iqr")
        return cls(
            entry["name"],
            entry["role"],
            entry.get("version", ""),
            entry.get("value"),
            entry.get("median"),
            entry.get("ratio"),
            entry.get("seconds_min"),
            middle,
            iqr / middle if iqr and middle else 0.0,
            entry.get("rounds", 0),
            entry.get("instructions"),
            " ".join(entry.get("missing", "").split()),
        )


@dataclasses.dataclass(frozen=True)
class Promise:
    """A target of a case, and what the run says about it."""

    against: str
    role: str
    ratio: float
    achieved: float | None
    met: bool | None  # None: not measured, or not in earnest
    why: str

    def __str__(self) -> str:
        return f"{'≥' if self.role == PEER else '≤'} {self.ratio:g}x {self.against}"

    @property
    def verdict(self) -> str:
        if self.achieved is None or self.met is None:
            return "not measured"
        if self.met:
            return "met"
        return f"missed by {abs(self.achieved / self.ratio - 1):.0%}"


@dataclasses.dataclass(frozen=True)
class Line:
    """One case: ours, beside its peers and its limits."""

    case: str
    title: str
    unit: str
    work: int
    sides: tuple[Side, ...]
    promises: tuple[Promise, ...]

    @property
    def ours(self) -> Side:
        return next(side for side in self.sides if side.role == OURS)

    @property
    def head(self) -> str:
        """What the question is called in names of cases."""
        return self.case.partition(".")[0]

    @property
    def family(self) -> str:
        return self.case.rpartition(".")[0]

    @property
    def is_more_better(self) -> bool:
        return self.unit in MORE_IS_BETTER

    @property
    def is_timed(self) -> bool:
        """Whether it is a matter of speed, and not of bytes or threads."""
        return self.unit.startswith("ns/") or self.unit in (*MORE_IS_BETTER, "ms")

    @property
    def work_in_words(self) -> str:
        """What one call does, where the unit tells."""
        noun = {"ns/record": "records", "GB/s": "bytes"}.get(self.unit)
        return f"{self.work:,} {noun} a call" if noun and self.work > 1 else ""

    def side(self, name: str | None) -> Side | None:
        """A contestant by its name; ours for None."""
        return self.ours if name is None else next((s for s in self.sides if s.name == name), None)

    def among(self, role: str) -> list[Side]:
        return [side for side in self.sides if side.role == role]

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Line:
        sides = tuple(Side.of(one) for one in entry["contestants"])
        roles = {side.name: side.role for side in sides}
        promises = tuple(
            Promise(
                one["against"],
                one.get("role") or roles.get(one["against"], PEER),  # "fastest peer" is no name
                one["ratio"],
                one["achieved"],
                one["met"],
                one["why"],
            )
            for one in entry["targets"]
        )
        return cls(
            entry["case"], entry["title"], entry["unit"], entry["work"], sides, promises
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Question:
    """What a bench_*.py asks, and what is inside its clock, in the words of its docstring."""

    name: str
    asks: str
    times: str
    excludes: str
    anchor: str

    @classmethod
    def of(cls, name: str, docstring: str) -> Question:
        first, _, rest = docstring.strip().partition("\n")
        found: dict[str, list[str]] = {part: [] for part in PARTS}
        part = ""
        for row in rest.splitlines():
            start = re.match(rf"({'|'.join(PARTS)})\s+", row)
            part, text = (start[1], row[start.end() :]) if start else (part, row)
            if part:
                # "read     all records": a variant of the case and what it is, in a column of its own
                variant = re.match(r"\s*(\w+)\s{2,}(?=\S)", text)
                told = f"; {variant[1]}: {text[variant.end() :]}" if variant else f" {text.strip()}"
                found[part].append(told)
        times, excludes, anchor = ("".join(found[part]).strip("; ") for part in PARTS)
        return cls(name, first, times or _variants(rest), excludes, anchor)

    def as_json(self) -> dict[str, str]:
        return dataclasses.asdict(self)


def _variants(text: str) -> str:
    """What a docstring without those parts tells in columns: a name, and what is measured under it."""
    rows = re.findall(r"^(\w+)\s{2,}(\S.*)$", text, re.MULTILINE)
    return "; ".join(f"{name}: {told}" for name, told in rows)


@functools.cache
def question_of(name: str) -> Question | None:
    """The question that a file here asks, bench_<name>.py or <name>.py; its source is read, not run."""
    for path in (HERE / f"bench_{name}.py", HERE / f"{name}.py"):
        if path.exists():
            source = path.read_text(encoding="utf-8")
            return Question.of(name, ast.get_docstring(ast.parse(source), clean=False) or "")
    return None


def questions_here() -> list[str]:
    return sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))


@dataclasses.dataclass(frozen=True)
class Document:
    """All results of one run."""

    about: Mapping[str, Any]  # machine, versions, commit, settings, command
    lines: tuple[Line, ...]
    questions: tuple[Question, ...] = ()
    skipped: Mapping[str, str] = dataclasses.field(default_factory=dict)  # question to reason
    growth: tuple[Mapping[str, Any], ...] = ()

    @property
    def promises(self) -> list[tuple[Line, Promise]]:
        return [(line, promise) for line in self.lines for promise in line.promises]

    @property
    def is_quick(self) -> bool:
        return bool(self.about["settings"].get("quick"))

    def line(self, case: str) -> Line | None:
        return next((line for line in self.lines if line.case == case), None)

    def question(self, line: Line) -> Question | None:
        """Whose case it is: "codec.encode.lz4" is one of bench_codecs."""
        found = (one for one in self.questions if one.name.startswith(line.head))
        return next(found, None)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Document:
        lines = tuple(Line.of(entry) for entry in data["results"])
        told = data.get("questions")
        if told is None:  # of a run that did not tell them yet
            heads = {line.head for line in lines}
            names = [name for name in questions_here() if any(map(name.startswith, heads))]
            names += [head for head in heads if not any(one.startswith(head) for one in names)]
            questions: Iterable[Question | None] = map(question_of, names)
        else:
            questions = (Question(**one) for one in told)
        parts = ("results", "questions", "skipped", "growth")
        return cls(
            {name: value for name, value in data.items() if name not in parts},
            lines,
            tuple(one for one in questions if one is not None),
            data.get("skipped", {}),
            tuple(data.get("growth") or ()),
        )

    @classmethod
    def read(cls, path: Path) -> Document:
        """The results in a file; NotResultsError says why there are none."""
        try:
            document = cls.of(json.loads(path.read_text(encoding="utf-8")))
            # What every page begins with.
            document.about["machine"]["cpu"], document.about["versions"]["python"]
            document.about["settings"]["seed"]
        except OSError as error:
            raise NotResultsError(f"{path}: {error.strerror}") from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            reason = "not JSON" if isinstance(error, ValueError) else "JSON, but not of a run"
            raise NotResultsError(
                f"{path} is {reason}: name a file that `bench --json FILE` has written"
            ) from error
        return document

    def with_more(self, more: Document) -> Document:
        """This run and, after it, what another has measured: ratios are of one case, so of one run."""
        known = {line.case for line in self.lines}
        asked = {one.name for one in self.questions}
        return dataclasses.replace(
            self,
            lines=(*self.lines, *(line for line in more.lines if line.case not in known)),
            questions=(*self.questions, *(one for one in more.questions if one.name not in asked)),
            skipped={**self.skipped, **more.skipped},
            growth=self.growth or more.growth,
        )


# ---------------------------------------------------------------- numbers in words


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def times(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}x" if value >= 100 else f"{value:.1f}x" if value >= 10 else f"{value:.2f}x"


def missing_lines(document: Document) -> list[str]:
    """What did not run, and why: one line each."""
    lines = [f"{name}: skipped, {reason}" for name, reason in document.skipped.items()]
    stopped: dict[tuple[str, str], int] = {}
    absent: dict[tuple[str, str], int] = {}
    for line in document.lines:
        if line.ours.value is None:
            place = (line.head, line.ours.missing)
            stopped[place] = stopped.get(place, 0) + 1
            continue
        for side in line.sides:
            if side.value is None:
                place = (side.name, side.missing)
                absent[place] = absent.get(place, 0) + 1
    for (head, reason), count in stopped.items():
        lines.append(f"{head}: {count} not run, {reason}")
    for (name, reason), count in absent.items():
        lines.append(f"{name}: {reason} ({count} {'case' if count == 1 else 'cases'})")
    return lines
