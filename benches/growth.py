"""How do costs grow? python -m benches.growth [--quick] [--only PATTERN] [--json PATH] [--png PATH] [--check]

Records, their size, partitions, producers, aborted transactions, segments, transactional ids, open transactions and
threads: one number is raised in even steps, everything else stays, and what the operation costs is drawn. A slope that
is worse than promised is a verdict, and with --check an exit of 1.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from oncelog.base.errors import OncelogError

from .growth_chart import draw, size_of, time_of
from .growth_costs import GROWTHS
from .growth_curve import Curve, Growth, measure
from .harness import SEED, Settings, surroundings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["Curve", "curves", "draw", "main", "meant", "table"]

# Many sizes share the time that one case of the suite has for itself.
SETTINGS: Final = Settings(rounds=12, slow_rounds=3, slow_seconds=0.6)


def meant(pattern: str = "*") -> list[Growth]:
    """The promises whose name fits."""
    return [growth for growth in GROWTHS if fnmatch.fnmatchcase(growth.name, pattern)]


def curves(
    settings: Settings = SETTINGS,
    pattern: str = "*",
    begin: Callable[[Growth], object] = lambda _: None,
    skip: Callable[[Growth, Exception], object] | None = None,
) -> Iterator[Curve]:
    """Measures one curve after another; ``begin`` is told which comes next, ``skip``, if given, which could not be
    measured, such as for want of room on the disk. Only one curve's data is alive at a time."""
    for growth in meant(pattern):
        begin(growth)
        try:
            curve = measure(growth, settings)
        except (OSError, OncelogError) as error:
            if skip is None:
                raise
            skip(growth, error)
        else:
            yield curve


def table(found: Sequence[Curve]) -> Table:
    made = Table(box=box.SIMPLE_HEAD, title="How costs grow", title_justify="left", pad_edge=False)
    for name in ("curve", "at", "cost"):
        made.add_column(name, no_wrap=True)
    for name in ("slope", "expected", "allowed"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("", no_wrap=True)
    for curve in found:
        sizes = " ".join(size_of(size) for size, _ in curve.points)
        per = curve.unit.partition("/")[2]
        costs = " · ".join(time_of(seconds) for _, seconds in curve.points)
        style = {True: "green", False: "bold red", None: "yellow"}[curve.met]
        made.add_row(
            curve.name,
            f"{sizes} {curve.x_label}",
            f"{costs} per {per}" if per else costs,
            f"{curve.slope:.2f}",
            f"{curve.expected:g}",
            f"≤ {curve.expected + curve.margin:g}",
            Text(str(curve), style),
        )
    return made


def write_json(path: Path, about: Mapping[str, object], found: Sequence[Curve]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {**about, "curves": [curve.as_json() for curve in found]}
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benches.growth", description="Draws how costs grow, and judges the slopes."
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, two rounds: only to see that it runs"
    )
    parser.add_argument(
        "--only", metavar="PATTERN", default="*", help="curves to measure, such as 'segments.*'"
    )
    parser.add_argument(
        "--rounds", type=int, default=SETTINGS.rounds,
        help=f"rounds of each size, {SETTINGS.rounds} unless told",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=SEED, help="of the random values")
    parser.add_argument("--json", type=Path, help="where to write the points and verdicts")
    parser.add_argument("--png", type=Path, help="where to draw the curves")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a slope is worse")
    return parser.parse_args(words)


def _measured(settings: Settings, pattern: str, talk: Console) -> list[Curve]:
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
    )  # fmt: skip
    found = []
    with Progress(*columns, console=talk, transient=True) as progress:
        task = progress.add_task("", total=len(meant(pattern)))

        def begin(growth: Growth) -> None:
            progress.update(task, description=growth.name)

        def skip(growth: Growth, error: Exception) -> None:
            talk.print(f"{growth.name}: skipped, {error}", highlight=False, markup=False)
            progress.advance(task)

        for curve in curves(settings, pattern, begin, skip):
            found.append(curve)
            progress.advance(task)
    return found


def main(words: Sequence[str] | None = None) -> int:
    options = _arguments(words)
    talk, page = Console(stderr=True), Console()
    if not meant(options.only):
        talk.print(f"no curve is called {options.only!r}; there are: "
                   + ", ".join(growth.name for growth in GROWTHS))  # fmt: skip
        return 2
    settings = (
        Settings.tiny()
        if options.quick
        else replace(SETTINGS, rounds=options.rounds, seed=options.seed)
    )
    found = _measured(settings, options.only, talk)
    if not found:
        return 1
    about: dict[str, Any] = surroundings(settings)
    about["command"] = " ".join(["python", "-m", "benches.growth", *(words or sys.argv[1:])])
    made = table(found)
    # A cut table is worth less than one that is too wide.
    page.width = max(page.width, Console(width=1000).measure(made).maximum)
    page.print(made)
    worse = [curve for curve in found if curve.met is False]
    met = sum(curve.met is True for curve in found)
    page.print(
        f"Slopes: {met} met, {len(worse)} worse, {len(found) - met - len(worse)} not measured.",
        highlight=False,
    )
    if options.json is not None:
        write_json(options.json, about, found)
        talk.print(f"results: {options.json}")
    if options.png is not None:
        try:
            draw(options.png, [curve.as_json() for curve in found], about)
        except ImportError:
            talk.print("no chart: matplotlib is not installed")
        else:
            talk.print(f"chart: {options.png}")
    return 1 if options.check and worse else 0


if __name__ == "__main__":
    sys.exit(main())
