"""Runs the benchmarks: python -m benches [--quick] [--only PATTERN] [--json PATH] [--png PATH]."""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from . import floor, report
from .harness import SEED, Settings, load_targets, run, surroundings, write_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .harness import Case, Result

QUESTIONS: Final = (
    *("encode", "decode", "scan", "codecs", "crc"),
    *("append", "fetch", "txn_index", "recovery", "open", "sequence"),
    *("send", "poll", "ack", "commit", "groups", "spark"),
)
LATEST: Final = Path(__file__).with_name("results") / "latest.json"


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benches",
        description="Compares oncelog with its peers and with the machine.",
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny data, two rounds: only to see that it runs"
    )
    parser.add_argument(
        "--only", metavar="PATTERN", default="*", help="cases to run, such as 'decode.*.100B'"
    )
    parser.add_argument(
        "--without", metavar="NAMES", default="", help="peers to leave out, comma separated"
    )
    parser.add_argument(
        "--rounds", type=int, help=f"rounds of each case, {Settings().rounds} unless told"
    )
    parser.add_argument(
        "--log-bytes",
        type=int,
        default=Settings.log_bytes,
        help=f"size of the logs on disk, {Settings.log_bytes >> 20} MiB unless told",
    )
    parser.add_argument("--seed", type=int, default=SEED, help="of the random keys and values")
    parser.add_argument(
        "--json",
        type=Path,
        help="where to write the results, benches/results/latest.json unless told",
    )
    parser.add_argument("--png", type=Path, help="also draw a chart")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    return parser.parse_args(words)


def _settings(options: argparse.Namespace) -> Settings:
    without = frozenset(filter(None, options.without.split(",")))
    if options.quick:
        return Settings.tiny(without)
    return Settings(
        rounds=options.rounds or Settings.rounds,
        log_bytes=options.log_bytes,
        seed=options.seed,
        without=without,
    )


def all_cases(settings: Settings, pattern: str = "*") -> Iterator[Case]:
    """The cases of every question, built one by one."""
    # A question that cannot be meant makes no data; "codec.*" is one of bench_codecs.
    head = pattern.partition(".")[0]
    meant = [name for name in QUESTIONS if set("*?[") & set(head) or name.startswith(head)]
    modules = [importlib.import_module(f"{__package__}.bench_{name}") for name in meant]
    made = itertools.chain.from_iterable(module.cases(settings) for module in modules)
    return (case for case in made if fnmatch.fnmatchcase(case.name, pattern))


def _measured(settings: Settings, pattern: str, talk: Console) -> list[Result]:
    results = []
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=talk, transient=True) as progress:
        task = progress.add_task("measuring", total=None)
        for result in run(all_cases(settings, pattern), settings, load_targets()):
            results.append(result)
            progress.update(task, description=result.case.title)
    return results


def _draw(path: Path, results: Sequence[Result], about: dict[str, Any], talk: Console) -> None:
    try:
        report.draw(path, results, about)
    except ImportError:
        talk.print("no chart: matplotlib is not installed")
    except LookupError as error:
        talk.print(f"no chart: {error}")
    else:
        talk.print(f"chart: {path}")


def main(words: Sequence[str] | None = None) -> int:
    options = _arguments(words)
    settings = _settings(options)
    talk, page = Console(stderr=True), Console()
    results = _measured(settings, options.only, talk)
    if not results:
        talk.print(f"no case is called {options.only!r}")
        return 2
    about: dict[str, Any] = surroundings(settings)
    overhead = floor.call_overhead_ns()
    about["ctypes_call_ns"] = overhead
    table = report.table(results)
    # A cut table is worth less than one that is too wide.
    page.width = max(page.width, Console(width=1000).measure(table).maximum)
    page.print(table)
    for note in report.notes(results, about, overhead):
        page.print(note, highlight=False)
    # A smoke run or a part is no result to keep.
    path = options.json or (LATEST if not options.quick and options.only == "*" else None)
    if path is not None:
        write_json(path, about, results)
        talk.print(f"results: {path}")
    if options.png is not None:
        _draw(options.png, results, about, talk)
    missed = any(verdict.met is False for result in results for verdict in result.verdicts)
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
