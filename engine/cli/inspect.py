"""``oncelog inspect``: files shown as what they mean. Which reader a file gets is told by its name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from .output import EXIT_DAMAGED, EXIT_SOUND, Misuse

if TYPE_CHECKING:
    from collections.abc import Sequence

# Record batches lie in segments and in the snapshots of the controller's log.
LOG_SUFFIXES: Final = (".log", ".checkpoint")
# What Kafka appends to the name of a file it is about to delete or to put in place.
PASSING_SUFFIXES: Final = (".deleted", ".cleaned", ".swap")
# Kafka's other files, by what they hold.
OTHER_SUFFIXES: Final = {
    ".index": "an offset index",
    ".timeindex": "a time index",
    ".txnindex": "a transaction index",
    ".snapshot": "a producer snapshot",
}
OFFSET_END: Final = 2**63 - 1


def kind_of(path: Path) -> str:
    """The suffix that tells what the file holds."""
    while path.suffix in PASSING_SUFFIXES:
        path = path.with_suffix("")
    return path.suffix


def refusal(path: Path) -> str | None:
    """Why this path cannot be inspected, in a sentence that helps; None where it can."""
    name = click.format_filename(path)
    if not path.exists():
        return f"{name}: there is no such file."
    if path.is_dir():
        logs = sorted(path.glob("*.log"))
        if logs:
            example = click.format_filename(logs[0])
            return f"{name} is a directory. Name a file in it, for example {example}"
        return f"{name} is a directory without .log files. Name a .log file of a partition."
    if not path.is_file():
        return f"{name} is not a regular file."
    suffix = kind_of(path)
    if suffix in LOG_SUFFIXES:
        return None
    what = f" ({OTHER_SUFFIXES[suffix]})" if suffix in OTHER_SUFFIXES else ""
    return f"{name}{what} cannot be inspected: only .log files and .checkpoint snapshots can."


@click.command(short_help="Show the record batches of .log files.")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE..."
)
@click.option("-r", "--records", is_flag=True, help="Show the records of each batch, too.")
@click.option("--values", is_flag=True, help="Show keys, values and headers; implies --records.")
@click.option(
    "--from-offset",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Start with the batch that holds offset N.",
)
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="Stop before offset N.")
@click.option(
    "--max",
    "shown_max",
    type=click.IntRange(min=0),
    metavar="N",
    help="Show the first N batches (with --records: N records); 0 shows all. By default all, but 50 on a "
    "terminal. Checksums and the summary cover the rest all the same.",
)
@click.option("--no-crc", is_flag=True, help="Do not verify checksums.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON document for each file, one batch a line."
)
def inspect(
    files: Sequence[Path],
    *,
    records: bool,
    values: bool,
    from_offset: int,
    to_offset: int | None,
    shown_max: int | None,
    no_crc: bool,
    as_json: bool,
) -> None:
    """Show what is in FILE: the record batches of a Kafka log segment, as Kafka's dump tool does.

    \b
    Examples
      oncelog inspect data/orders-0/00000000000000000000.log
      oncelog inspect --values --from-offset 1200 --max 5 data/orders-0/*.log
      oncelog inspect --json FILE.log | jq '.batches[] | select(.isControl)'

    The file is mapped and never changed; one that a broker is writing to is shown as it is at this moment.
    Exit code 0: all batches are sound; 1: damage was found, which stderr tells with its position; 2: FILE
    cannot be inspected.
    """
    for path in files:
        sentence = refusal(path)
        if sentence is not None:
            raise Misuse(sentence)
    if to_offset is not None and from_offset >= to_offset:
        raise click.BadParameter(
            f"{to_offset} is not after --from-offset {from_offset}.", param_hint="'--to-offset'"
        )

    from . import log_json, log_text
    from .log_reader import LogReader, LogRequest

    request = LogRequest(
        records=records or values,
        values=values,
        from_offset=from_offset,
        to_offset=OFFSET_END if to_offset is None else to_offset,
        shown_max=shown_max,
        check_crc=not no_crc,
    )
    is_sound = True
    for index, path in enumerate(files):
        reader = LogReader(path, request)
        if as_json:
            log_json.write(reader)
            log_text.tell_damage(reader.findings)
        else:
            if index:
                click.echo()
            log_text.write(reader, title=reader.file if len(files) > 1 else "")
        is_sound &= not reader.findings.damage_count
    click.get_current_context().exit(EXIT_SOUND if is_sound else EXIT_DAMAGED)
