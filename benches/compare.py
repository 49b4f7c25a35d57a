"""Two files of results side by side: what became faster or slower, beyond what noise explains.

Change   by how much the best round of ours takes longer (+) or shorter (-) in the second file.
Machine  the middle change of the case's peers and limits, which are the same code in both: what they went through is
         the machine's doing. Ours counts as faster or slower only if it is so by itself and beside them.
Noise    the larger of 5 % (where the linker put a loop moves that much), the spread of the rounds, and the distance of
         the median from the best, in either file.
"""

from __future__ import annotations

import dataclasses
import statistics
from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from .document import OURS, number

if TYPE_CHECKING:
    from .document import Document, Line, Side

LEAST: Final = 0.05
FASTER: Final = "faster"
SLOWER: Final = "slower"
SAME: Final = "same"
STYLES: Final = {FASTER: "green", SLOWER: "bold red", SAME: "dim"}
WORDS: Final = {True: "met", False: "missed", None: "not measured"}


@dataclasses.dataclass(frozen=True)
class Change:
    """One case in both files."""

    old: Line
    new: Line

    @property
    def ratio(self) -> float:
        """How many times as long ours takes now."""
        return _ratio(self.old.ours, self.new.ours)

    @property
    def machine(self) -> float | None:
        """The same of all others that are the same in both; None where there are none."""
        before = {(one.name, one.version): one for one in self.old.sides if one.role != OURS}
        found = [
            _ratio(before[key], one)
            for one in self.new.sides
            if (key := (one.name, one.version)) in before and one.best and before[key].best
        ]
        return statistics.median(found) if found else None

    @property
    def noise(self) -> float:
        return max(LEAST, self.old.ours.noise, self.new.ours.noise)

    @property
    def verdict(self) -> str:
        both = (self.ratio, self.ratio / (self.machine or 1.0))
        if min(both) > 1 + self.noise:
            return SLOWER
        return FASTER if max(both) < 1 / (1 + self.noise) else SAME

    def as_json(self) -> dict[str, Any]:
        return {
            "case": self.new.case,
            "unit": self.new.unit,
            "old": self.old.ours.value,
            "new": self.new.ours.value,
            "change": self.ratio - 1,
            "machine": None if self.machine is None else self.machine - 1,
            "noise": self.noise,
            "verdict": self.verdict,
        }


def _ratio(old: Side, new: Side) -> float:
    assert old.best is not None and new.best is not None  # noqa: PT018
    return new.best / old.best if old.best else 1.0 if not new.best else float("inf")


@dataclasses.dataclass(frozen=True)
class Comparison:
    """All that two files say about each other."""

    changes: tuple[Change, ...]
    flipped: tuple[str, ...]  # targets whose verdict is another
    warnings: tuple[str, ...]  # why the files are not quite comparable
    gone: tuple[str, ...]
    added: tuple[str, ...]

    def count(self, verdict: str) -> int:
        return sum(change.verdict == verdict for change in self.changes)

    @property
    def is_slower(self) -> bool:
        return self.count(SLOWER) > 0

    def as_json(self) -> dict[str, Any]:
        return {
            "changes": [change.as_json() for change in self.changes],
            "flippedTargets": list(self.flipped),
            "warnings": list(self.warnings),
            "onlyInOld": list(self.gone),
            "onlyInNew": list(self.added),
            "faster": self.count(FASTER),
            "slower": self.count(SLOWER),
            "same": self.count(SAME),
        }


def compare(old: Document, new: Document) -> Comparison:
    before, after = ({line.case: line for line in one.lines} for one in (old, new))
    both = [case for case in after if case in before]
    changes = tuple(
        Change(before[case], after[case])
        for case in both
        if before[case].ours.best is not None
        and after[case].ours.best is not None
        and before[case].unit == after[case].unit
    )
    compared = {change.new.case for change in changes}
    return Comparison(
        changes,
        tuple(text for case in both for text in _flips(before[case], after[case])),
        tuple(_differences(old, new)),
        tuple(case for case in before if case not in compared),
        tuple(case for case in after if case not in compared),
    )


def _flips(old: Line, new: Line) -> list[str]:
    before = {(one.against, one.role): one for one in old.promises}
    return [
        f"{new.case}: {one} was {WORDS[was.met]}, is {one.verdict}"
        for one in new.promises
        if (was := before.get((one.against, one.role))) is not None
        and {was.met, one.met} == {True, False}
    ]


def _differences(old: Document, new: Document) -> list[str]:
    """What else than our code is different."""
    found = []
    for part in ("machine", "versions", "settings"):
        before, after = old.about.get(part, {}), new.about.get(part, {})
        found += [
            f"{part}: {name} {_shown(before, name)} -> {_shown(after, name)}"
            for name in {**before, **after}
            if name not in ("load", "oncelog") and before.get(name) != after.get(name)
        ]
    for document, which in ((old, "the first"), (new, "the second")):
        if document.is_quick:
            found.append(f"{which} is a quick run, whose times mean nothing")
        if document.about.get("machine", {}).get("load", 0) > document.about["machine"]["cores"]:
            found.append(f"{which} was measured on a busy machine")
    return found


def _shown(values: Any, name: str) -> str:
    value = values.get(name)
    if isinstance(value, list):
        return "/".join(map(str, value))
    return "none" if value in (None, "") else str(value)


# ---------------------------------------------------------------- on the terminal


def table(comparison: Comparison) -> Table:
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, justify in (
        ("case", "left"), ("old", "right"), ("new", "right"), ("unit", "left"), ("change", "right"),
        ("machine", "right"), ("noise", "right"), ("", "left"),
    ):  # fmt: skip
        made.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for change in comparison.changes:
        old, new = change.old.ours.value, change.new.ours.value
        made.add_row(
            change.new.case,
            "-" if old is None else number(old),
            "-" if new is None else number(new),
            change.new.unit,
            f"{change.ratio - 1:+.1%}",
            "-" if change.machine is None else f"{change.machine - 1:+.1%}",
            f"±{change.noise:.0%}",
            change.verdict,
            style=STYLES[change.verdict],
        )
    return made


def show(comparison: Comparison, page: Console) -> None:
    for warning in comparison.warnings:
        page.print(f"Not the same: {warning}", style="yellow", markup=False)
    made = table(comparison)
    page.width = max(page.width, Console(width=1000).measure(made).maximum)
    page.print(made)
    for title, names in (("Only in the first", comparison.gone), ("Only in the second", comparison.added)):  # fmt: skip
        if names:
            page.print(f"{title}: {', '.join(names)}", markup=False, highlight=False)
    for flip in comparison.flipped:
        page.print(f"Target {flip}", markup=False, highlight=False)
    page.print(
        f"{comparison.count(FASTER)} faster, {comparison.count(SLOWER)} slower, "
        f"{comparison.count(SAME)} the same within noise. change: time of ours, best round; machine: of its peers "
        "and limits.",
        highlight=False,
    )
