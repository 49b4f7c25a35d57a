"""``oncelog inspect``: files shown as what they mean. Which reader a file gets is told by its name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from .output import EXIT_DAMAGED, EXIT_SOUND, Misuse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .file_views import IndexRequest
    from .log_reader import LogRequest

# Record batches lie in segments and in the snapshots of the controller's log.
LOG_SUFFIXES: Final = (".log", ".checkpoint")
# What Kafka appends to the name of a file it is about to delete or to put in place.
PASSING_SUFFIXES: Final = (".deleted", ".cleaned", ".swap")
# Kafka's other files, told by suffix or by name; engine/cli/file_views.py reads them.
OTHER_SUFFIXES: Final = (".index", ".timeindex", ".txnindex", ".snapshot")
OTHER_NAMES: Final = (
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
    "leader-epoch-checkpoint",
    "partition.metadata",
    "meta.properties",
    ".kafka_cleanshutdown",
)
OFFSET_END: Final = 2**63 - 1


def kind_of(path: Path) -> str:
    """The suffix, or the whole name, that tells what the file holds; empty for a directory."""
    if path.is_dir():
        return ""
    if path.name in OTHER_NAMES:
        return path.name
    while path.suffix in PASSING_SUFFIXES:
        path = path.with_suffix("")
    return path.suffix


def refusal(path: Path) -> str | None:
    """Why this path cannot be inspected, in a sentence that helps; None where it can."""
    name = click.format_filename(path)
    if not path.exists():
        return f"{name}: there is no such file or directory."
    if not path.is_file() and not path.is_dir():
        return f"{name} is not a regular file."
    kind = kind_of(path)
    if path.is_dir() or kind in (*LOG_SUFFIXES, *OTHER_SUFFIXES, *OTHER_NAMES):
        return None
    return (
        f"{name} cannot be inspected: it is none of Kafka's files by its name "
        f"({' '.join((*LOG_SUFFIXES, *OTHER_SUFFIXES))}, or a checkpoint)."
    )


@click.command(short_help="Show what is in Kafka's files, or a directory at a glance.")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PATH..."
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
    help="Show the first N batches (with --records: N records) or entries; 0 shows all. By default all, but "
    "50 on a terminal. Checksums and the summary cover the rest all the same.",
)
@click.option("--no-crc", is_flag=True, help="Do not verify checksums of batches.")
@click.option(
    "--no-check", is_flag=True, help="Do not compare index entries with the .log beside them."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON document for each path, one batch or entry a line.",
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
    no_check: bool,
    as_json: bool,
) -> None:
    """Show what is in PATH: one of Kafka's files, as its dump tool does, or a directory at a glance.

    \b
    Examples
      oncelog inspect data                                        all partitions of a directory
      oncelog inspect data/orders-0/00000000000000000000.log      batches
      oncelog inspect data/orders-0/*.txnindex                    aborted transactions
      oncelog inspect --values --from-offset 1200 --max 5 data/orders-0/*.log
      oncelog inspect --json FILE.log | jq '.batches[] | select(.isControl)'

    \b
    .log .checkpoint                 record batches, with --records or --values their records
    .index .timeindex .txnindex      entries, compared with the .log beside them
    .snapshot                        producers: epoch, sequence, open transaction
    *-checkpoint  partition.metadata  meta.properties  .kafka_cleanshutdown
    a directory                      offsets, segments, producers, transactions of each partition,
                                     and where recovery would cut

    Files are mapped and never changed; one that a broker is writing to is shown as it is at this moment.
    Exit code 0: all that was shown is sound; 1: damage was found, which stderr tells with its position; 2: PATH
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
    end_offset = OFFSET_END if to_offset is None else to_offset
    is_sound = True
    for index, path in enumerate(files):
        title = click.format_filename(path) if len(files) > 1 else ""
        if index and not as_json:
            click.echo()
        if kind_of(path) in LOG_SUFFIXES:
            from .log_reader import LogRequest

            request = LogRequest(
                records=records or values,
                values=values,
                from_offset=from_offset,
                to_offset=end_offset,
                shown_max=shown_max,
                check_crc=not no_crc,
            )
            is_sound &= _show_log(path, request, title, as_json=as_json)
        else:
            from .file_views import IndexRequest

            wanted = IndexRequest(from_offset, end_offset, check=not no_check)
            is_sound &= _show_listing(path, wanted, shown_max, title, as_json=as_json)
    click.get_current_context().exit(EXIT_SOUND if is_sound else EXIT_DAMAGED)


def _show_log(path: Path, request: LogRequest, title: str, *, as_json: bool) -> bool:
    """A file of batches; whether it is sound."""
    from . import log_json, log_text
    from .log_reader import LogReader

    reader = LogReader(path, request)
    if as_json:
        log_json.write(reader)
        log_text.tell_damage(reader.findings)
    else:
        log_text.write(reader, title=title)
    return not reader.findings.damage_count


def _show_listing(
    path: Path, request: IndexRequest, shown_max: int | None, title: str, *, as_json: bool
) -> bool:
    """Any other file, or a directory; whether it is sound."""
    from .listing import write_json, write_text

    if path.is_dir():
        from .overview import overview

        listing = overview(path)
    else:
        from .file_views import BY_NAME, BY_SUFFIX

        kind = kind_of(path)
        listing = (BY_NAME.get(kind) or BY_SUFFIX[kind])(path, request)
    if as_json:
        write_json(listing, shown_max)
    else:
        write_text(listing, shown_max, title)
    return not listing.damage_count
