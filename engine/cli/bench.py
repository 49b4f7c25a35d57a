"""``oncelog bench``: how fast this machine is with oncelog, beside what people use today and its own limits.

The suite itself is oncelog.benches, benches/ in a checkout; it is loaded when a command runs. Looking at results needs
nothing but the files; measuring needs the packages of the extra ``bench``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from .data import json_option
from .output import EXIT_DAMAGED, CommandGroup, Misuse

if TYPE_CHECKING:
    from ..benches.document import Document

EXIT_INTERRUPTED: Final = 130

file_to_write = click.Path(path_type=Path, dir_okay=False, writable=True)
results_file = click.Path(path_type=Path, exists=True, dir_okay=False)
html_option = click.option(
    "--html", type=file_to_write, metavar="FILE", help="Write a report with charts: one page."
)
png_option = click.option(
    "--png", type=file_to_write, metavar="FILE", help="Draw a picture of the main figures."
)


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    short_help="Compare this machine's speed with other libraries and its limits.",
)
@click.option("--only", metavar="PATTERN", help="Cases to run, of all questions: 'commit.*'.")
@click.option(
    "--without", metavar="NAMES", default="", help="Peers to leave out, separated by commas."
)
@click.option("--quick", is_flag=True, help="Tiny data: only to see that it runs.")
@click.option(
    "--json", "json_file", type=file_to_write, metavar="FILE", help="Write the results, to compare."
)
@html_option
@png_option
@click.option("--check", is_flag=True, help="Exit with 1 if a target is missed.")
@click.pass_context
def bench(context: click.Context, /, **options: Any) -> None:
    """Compare oncelog with other libraries, and with what this machine can do at best.

    \b
    Example
      oncelog bench --json before.json --html report.html
      oncelog bench --only 'send.*'
      oncelog bench compare before.json after.json

    Runs the short questions, about a minute; --only can name any case of the suite. What is not installed is said in
    one line, and the rest runs. Files lie in ONCELOG_BENCH_DIR, or in /var/tmp, and are gone at the end.

    Needs the packages of the extra: pip install 'oncelog[bench]'.
    """
    if context.invoked_subcommand is None:
        context.exit(_run(**options))


def _suite() -> Any:
    """What measures; a sentence where a package is missing that it cannot do without."""
    try:
        import pytest_benchmark  # noqa: F401

        from ..benches import __main__ as suite
    except ImportError as error:
        raise Misuse(
            "Benchmarks need packages that are not installed: pip install 'oncelog[bench]'."
        ) from error
    return suite


def _run(
    *, only: str | None, without: str, quick: bool, json_file: Path | None, html: Path | None,
    png: Path | None, check: bool,
) -> int:  # fmt: skip
    suite = _suite()
    from ..benches import report, running
    from ..benches.harness import Settings

    if reason := report.unwritable(json_file, html, png):
        raise Misuse(f"{reason}.")
    asked = running.SHORT if only is None else running.meant_by(only)
    left_out = frozenset(filter(None, without.split(",")))
    settings = Settings.tiny(left_out) if quick else Settings.short(left_out)
    talk, page = _consoles()
    done = running.measured(asked, settings, talk)
    if not (done.results or done.skipped or done.was_interrupted):
        raise Misuse(f"No case is called {only!r}: there are {', '.join(running.QUESTIONS)}.")
    words = ["--only", repr(only)] if only else []
    command = " ".join(["oncelog", "bench", *words, *(["--quick"] if quick else [])])
    made = suite.finished(done, settings, command, json_file, talk, page)
    if done.was_interrupted:
        return EXIT_INTERRUPTED
    report.write_pages(made, html, png, talk)
    return EXIT_DAMAGED if check and report.has_missed(made) else 0


def _consoles() -> tuple[Any, Any]:
    """Where talk goes, and where data goes."""
    from rich.console import Console

    return Console(stderr=True), Console()


def _read(*paths: Path) -> list[Document]:
    from ..benches.document import Document, NotResultsError

    try:
        return [Document.read(path) for path in paths]
    except NotResultsError as error:
        raise Misuse(f"{error}.") from error


@bench.command(short_help="Say what became faster or slower between two runs.")
@click.argument("old", type=results_file)
@click.argument("new", type=results_file)
@json_option
@click.option("--check", is_flag=True, help="Exit with 1 if something became slower.")
@click.pass_context
def compare(context: click.Context, old: Path, new: Path, as_json: bool, check: bool) -> None:
    """Say what became faster or slower between two runs, beyond what noise explains.

    \b
    Example
      oncelog bench compare before.json after.json

    A case counts as changed if its best round differs by more than both runs vary, and more than its peers and limits
    do, which are the machine's doing. What else differs, such as a version, is said first.
    """
    import json

    from ..benches.compare import compare as compared
    from ..benches.compare import show

    found = compared(*_read(old, new))
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=1))
    else:
        show(found, _consoles()[1])
    context.exit(EXIT_DAMAGED if check and found.is_slower else 0)


@bench.command("report", short_help="Draw the results of a run.")
@click.argument("results", type=results_file, nargs=-1, required=True)
@html_option
@png_option
@click.pass_context
def draw(context: click.Context, /, results: tuple[Path, ...], **pages: Any) -> None:
    """Draw the results of a run, or print their table.

    \b
    Example
      oncelog bench report results.json --html report.html --png picture.png

    Of several files the first is described, and the others add what they have measured beyond it.
    """
    from ..benches import report

    first, *others = _read(*results)
    for other in others:
        first = first.with_more(other)
    talk, page = _consoles()
    if not any(pages.values()):
        report.show(first, page)
    elif not report.write_pages(first, talk=talk, **pages):
        context.exit(EXIT_DAMAGED)
