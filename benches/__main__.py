"""Runs the benchmarks, draws their results, compares two runs.

python -m benches [--quick] [--only PATTERN] [--json PATH] [--html PATH] [--png PATH] [--check]
python -m benches report RESULTS... [--html PATH] [--png PATH]
python -m benches compare OLD NEW [--json] [--check]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from . import compare, report
from .document import Document, NotResultsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .harness import Settings
    from .running import Run

LATEST: Final = Path(__file__).with_name("results") / "latest.json"
NEEDED: Final = "pytest_benchmark"  # to measure at all; all else that is missing costs its own rows
EXIT_MISSED: Final = 1
EXIT_MISUSE: Final = 2
EXIT_INTERRUPTED: Final = 130


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    from .harness import SEED, Settings

    parser.add_argument(
        "--quick", action="store_true", help="tiny data, one round: only to see that it runs"
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
    _pages(parser)
    parser.add_argument(
        "--no-growth", action="store_true", help="leave out how costs grow with the size of things"
    )
    parser.add_argument(
        "--instructions",
        action="store_true",
        help="also count the instructions of the kernels in C, with valgrind",
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")


def _pages(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--html", type=Path, help="write a report: one page, with charts")
    parser.add_argument("--png", type=Path, help="draw the README's picture")


# ---------------------------------------------------------------- run


def _settings(options: argparse.Namespace) -> Settings:
    from .harness import Settings

    without = frozenset(filter(None, options.without.split(",")))
    if options.quick:
        return Settings.tiny(without)
    return Settings(
        rounds=options.rounds or Settings.rounds,
        log_bytes=options.log_bytes,
        seed=options.seed,
        without=without,
    )


def finished(
    done: Run, settings: Settings, command: str, path: Path | None, talk: Console, page: Console
) -> Document:
    """Shows what was measured, and writes it to ``path`` unless the run was cut short."""
    from . import floor
    from .harness import surroundings

    about: dict[str, Any] = {**surroundings(settings), "command": command, "when": time.time()}
    about["ctypes_call_ns"] = floor.call_overhead_ns()
    data = done.as_json(about)
    made = Document.of(data)
    if done.results or done.skipped:
        report.show(made, page)
    if done.was_interrupted:
        talk.print("interrupted: nothing was written; above is what was measured until then")
    elif path is not None:
        write_json(path, data)
        talk.print(f"results: {path}", highlight=False, soft_wrap=True)
    return made


def write_json(path: Path, data: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _run(words: Sequence[str]) -> int:
    from . import running

    parser = argparse.ArgumentParser(
        prog="python -m benches",
        description="Compares oncelog with its peers and with the machine.",
        epilog="Also: python -m benches report RESULTS, python -m benches compare OLD NEW.",
    )
    _run_arguments(parser)
    options = parser.parse_args(words)
    settings = _settings(options)
    talk, page = Console(stderr=True), Console()
    if reason := report.unwritable(options.json, options.html, options.png):
        talk.print(reason, markup=False, highlight=False, soft_wrap=True)
        return EXIT_MISUSE
    with_growth = options.only == "*" and not options.no_growth
    done = running.measured(
        running.meant_by(options.only), settings, talk, with_growth=with_growth
    )  # fmt: skip
    if not done.results and not done.skipped and not done.was_interrupted:
        talk.print(f"no case is called {options.only!r}", markup=False)
        return EXIT_MISUSE
    if options.instructions and not done.was_interrupted:
        _count(done, talk)
    # A smoke run or a part is no result to keep.
    path = options.json or (LATEST if not options.quick and options.only == "*" else None)
    command = " ".join(["python", "-m", "benches", *words])
    made = finished(done, settings, command, path, talk, page)
    if done.was_interrupted:
        return EXIT_INTERRUPTED
    report.write_pages(made, options.html, options.png, talk)
    return EXIT_MISSED if options.check and report.has_missed(made) else 0


def _count(done: Run, talk: Console) -> None:
    """Puts the instructions of the kernels beside their times."""
    from . import counting

    if reason := counting.lacking():
        talk.print(reason, highlight=False)
        return
    with talk.status("counting instructions") as status:
        for title in counting.add_to(done.results):
            status.update(f"counting instructions: {title}")


# ---------------------------------------------------------------- look at results


def _report(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benches report", description="Draws results.")
    parser.add_argument(
        "results", type=Path, nargs="+", help="files that runs have written; the first is described"
    )
    _pages(parser)
    options = parser.parse_args(words)
    made = read_all(options.results)
    if options.html is None and options.png is None:
        report.show(made, Console())
        return 0
    return 0 if report.write_pages(made, options.html, options.png, Console(stderr=True)) else 1


def read_all(paths: Sequence[Path]) -> Document:
    """The first file, with what the others have measured beyond it, such as those of make bench-kafka."""
    first, *others = (Document.read(path) for path in paths)
    for other in others:
        first = first.with_more(other)
    return first


def _compare(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benches compare", description="Compares two runs, beyond noise."
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--json", action="store_true", help="JSON instead of text")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if something became slower"
    )
    options = parser.parse_args(words)
    found = compare.compare(Document.read(options.old), Document.read(options.new))
    if options.json:
        print(json.dumps(found.as_json(), indent=1))
    else:
        compare.show(found, Console())
    return EXIT_MISSED if options.check and found.is_slower else 0


def main(words: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if words is None else words)
    commands = {"report": _report, "compare": _compare}
    try:
        if given and given[0] in commands:
            return commands[given[0]](given[1:])
        return _run(given)
    except NotResultsError as error:
        reason = str(error)
    except ModuleNotFoundError as error:
        if not str(error.name).startswith(NEEDED):
            raise
        reason = f"{NEEDED} is not installed: pip install 'oncelog[bench]', or make bench"
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    Console(stderr=True).print(reason, markup=False, highlight=False, soft_wrap=True)
    return EXIT_MISUSE


if __name__ == "__main__":
    sys.exit(main())
