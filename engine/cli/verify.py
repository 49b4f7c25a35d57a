"""``oncelog verify``: proves a directory sound, or says what is damaged, where, and what to do."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from .output import EXIT_DAMAGED, EXIT_SOUND, Misuse, plural, talk

if TYPE_CHECKING:
    from ..partition.verify_report import Finding, Report


# Less than this is read before a bar could be looked at.
PROGRESS_BYTES_MIN: Final = 64 << 20
INDENT: Final = " " * len("DAMAGED  ")


def refusal(path: Path) -> str | None:
    """Why this path cannot be verified, in a sentence that helps; None where it can."""
    from ..partition.verify import is_partition, partitions_in
    from ..segment.names import parse_file

    name = click.format_filename(path)
    if not path.exists():
        return f"{name}: there is no such file or directory."
    if path.is_dir():
        if is_partition(str(path)) or partitions_in(str(path)):
            return None
        return f"{name} is not a directory of logs: there is no <topic>-<partition> with .log files in it."
    parsed = parse_file(path.name)
    if parsed is None or parsed[1] != ".log":
        return f"{name} is neither a directory nor a segment, which is named <20 digits>.log."
    return None


@click.command(short_help="Prove a directory of logs sound.")
@click.argument("path", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--notes", is_flag=True, help="Show what is unusual and legal, too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document, one finding a line.")
def verify(path: Path, *, notes: bool, as_json: bool) -> None:
    """Prove DIR sound: a data directory, a partition's directory, or one segment's .log.

    \b
    Examples
      oncelog verify /var/lib/kafka/data
      oncelog verify data/orders-0
      oncelog verify --json data | jq '.damage[].file'

    Every batch is read: checksums, and the structure of every record, compressed ones among them. Offsets must
    rise. Indexes, transaction indexes, producer snapshots and leader epochs are compared with what a replay of the
    log gives, and checkpoints must lie within the logs. Nothing is changed. A directory that a broker is writing to
    may look damaged at its end: verify it when the broker is stopped, or a copy.

    Exit code 0: sound; 1: damaged, each damaged file is named with the place and what to do; 2: DIR cannot be
    verified.
    """
    sentence = refusal(path)
    if sentence is not None:
        raise Misuse(sentence)
    report = _run(str(path))
    if as_json:
        _write_json(report)
    else:
        _write_text(report, notes=notes)
    click.get_current_context().exit(EXIT_SOUND if report.is_sound else EXIT_DAMAGED)


def _run(path: str) -> Report:
    from ..partition.verify import bytes_of, verify

    total = bytes_of(path) if sys.stderr.isatty() else 0
    if total < PROGRESS_BYTES_MIN:
        return verify(path)
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        return verify(path, lambda count: progress.advance(task, count))


def _place(finding: Finding) -> str:
    return finding.file + (f" at {finding.position}" if finding.position >= 0 else "")


def _wrapped(sentence: str) -> str:
    """Indented below the verdict; on a terminal no wider than it."""
    if not sys.stdout.isatty():
        return f"{INDENT}{sentence}"
    width = shutil.get_terminal_size().columns
    return textwrap.fill(
        sentence,
        width,
        initial_indent=INDENT,
        subsequent_indent=INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _write_text(report: Report, *, notes: bool) -> None:
    tag = click.style(f"{'DAMAGED':{len(INDENT)}}", fg="red", bold=True)
    for finding in report.damage:
        # The line is laid out before it is coloured, since colours have no width.
        sentence = _wrapped(f"{_place(finding)}: {finding.what}").removeprefix(INDENT)
        click.echo(f"{tag}{sentence}")
        if finding.advice:
            click.echo(_wrapped(f"{finding.advice}."))
    more = report.damage_count - len(report.damage)
    if more:
        click.echo(f"{INDENT}and {more:,} more like these in the same files")
    if notes:
        for finding in report.notes:
            sentence = _wrapped(f"{finding.file}: {finding.what}").removeprefix(INDENT)
            click.echo(f"{'note':{len(INDENT)}}{sentence}")
    damaged = report.damaged_files
    verdict = f"{plural(len(damaged), 'file')} damaged" if damaged else "sound"
    click.echo(
        f"{plural(report.partitions, 'partition')}, {plural(report.segments, 'segment')}, "
        f"{plural(report.batches, 'batch', 'batches')}, {plural(report.records, 'record')}, "
        f"{plural(report.bytes, 'byte')}: {verdict}"
    )
    if report.is_clean is False:
        talk("The directory was not stopped cleanly: opening it for writing recovers it.")
    if report.notes and not notes:
        talk(
            f"{plural(len(report.notes), 'note')} on what is unusual and legal: --notes shows them."
        )


def _fields(finding: Finding) -> dict[str, Any]:
    return {
        "file": finding.file,
        "position": finding.position if finding.position >= 0 else None,
        "offset": finding.offset if finding.offset >= 0 else None,
        "what": finding.what,
        "advice": finding.advice or None,
    }


def _write_json(report: Report) -> None:
    head = {
        "path": report.path,
        "isSound": report.is_sound,
        "isClean": report.is_clean,
        "partitions": report.partitions,
        "segments": report.segments,
        "batches": report.batches,
        "records": report.records,
        "bytes": report.bytes,
        "damaged": report.damage_count,
        "damagedFiles": report.damaged_files,
    }
    parts = [json.dumps(head)[:-1]]
    for name, findings in (("damage", report.damage), ("notes", report.notes)):
        lines = ",\n".join(json.dumps(_fields(finding)) for finding in findings)
        parts.append(f'"{name}": [\n{lines}\n]' if lines else f'"{name}": []')
    click.echo(", ".join(parts) + "}")
