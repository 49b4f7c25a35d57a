"""``oncelog transactions``: which there are, what they wrote, which hang, and how they lie along the offsets."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from ..base.errors import InvalidTxnStateError, OncelogError
from .data import (
    FileToWrite,
    FiniteNumber,
    adopt_option,
    complete_topic,
    data_option,
    json_option,
    opened_to_read,
    opened_to_write,
)
from .listing import Column, json_rows, write_rows
from .output import CommandGroup, Misuse, end_with, plural, talk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ..broker.txn_states import TransactionDescription
    from ..client.admin import Admin
    from ..client.admin_answers import HangingTransaction
    from ..client.directory import LogDirectory
    from ..partition.timeline import Timeline

WIDTH_IN_PIPE: Final = 110
LANES_MAX: Final = 24
MINUTE_MS: Final = 60_000


@click.group(cls=CommandGroup, short_help="List, describe, draw and abort transactions.")
def transactions() -> None:
    """List, describe, draw and abort transactions.

    \b
    Example
      oncelog transactions timeline orders --data data
    """


def _now_ms() -> int:
    from ..base.clock import now_ms

    return now_ms()


def _time(timestamp: int) -> str:
    from .log_text import time_of

    return time_of(timestamp) if timestamp >= 0 else "-"


@transactions.command("list", short_help="List transactional ids.")
@data_option
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="STATE",
    help="Ongoing, Empty, CompleteCommit, …; may be repeated.",
)
@click.option(
    "--producer-id", "producer_ids", type=int, multiple=True, metavar="ID", help="May be repeated."
)
@click.option(
    "--duration-filter",
    "duration_ms",
    type=int,
    default=-1,
    metavar="MS",
    help="Only those open for longer.",
)
@click.option(
    "--id-pattern", metavar="REGEX", help="Only transactional ids that it matches as a whole."
)
@json_option
def list_transactions(
    data: Path,
    *,
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    duration_ms: int,
    id_pattern: str | None,
    as_json: bool,
) -> None:
    """List transactional ids, their producers and where their transactions stand.

    \b
    Examples
      oncelog transactions list --data data
      oncelog transactions list --state Ongoing --duration-filter 60000 --data data
    """
    with opened_to_read(data) as log:
        found = log.admin().list_transactions(
            states=states,
            producer_ids=producer_ids,
            duration_ms_min=duration_ms,
            id_pattern=id_pattern,
        )
    found = sorted(found)
    if as_json:
        json_rows(
            {
                "transactionalId": row.transactional_id,
                "producerId": row.producer_id,
                "state": row.state.label,
            }
            for row in found
        )
        return
    columns = (Column("transactional_id"), Column("producer_id", True), Column("state"))
    write_rows(
        columns, [(row.transactional_id, str(row.producer_id), row.state.label) for row in found]
    )
    talk(plural(len(found), "transactional id") + ".")


@transactions.command(short_help="Describe transactional ids.")
@click.argument("ids", nargs=-1, required=True, metavar="TRANSACTIONAL_ID...")
@data_option
@json_option
def describe(ids: tuple[str, ...], data: Path, *, as_json: bool) -> None:
    """Describe transactional ids: state, epoch, timeout, since when, and on which partitions.

    \b
    Example
      oncelog transactions describe teller-1 --data data
    """
    with opened_to_read(data) as log:
        answers = log.admin().describe_transactions(ids)
    found = [answer for answer in answers.values() if not isinstance(answer, OncelogError)]
    now_ms = _now_ms()
    if as_json:
        json_rows(_described(row, now_ms) for row in found)
    else:
        titles = (
            "transactional_id",
            "producer_id",
            "epoch",
            "state",
            "timeout_ms",
            "started",
            "open_ms",
            "partitions",
        )
        numbers = ("producer_id", "epoch", "timeout_ms", "open_ms")
        write_rows(
            [Column(title, title in numbers) for title in titles],
            [
                (
                    row.transactional_id,
                    str(row.producer_id),
                    str(row.producer_epoch),
                    row.state.label,
                    str(row.transaction_timeout_ms),
                    _time(row.start_ms),
                    str(_open_ms(row, now_ms)) if _open_ms(row, now_ms) is not None else "-",
                    ",".join(key.directory for key in sorted(row.partitions)) or "-",
                )
                for row in found
            ],
        )
    end_with([answer for answer in answers.values() if isinstance(answer, OncelogError)])


def _open_ms(row: TransactionDescription, now_ms: int) -> int | None:
    """How long a transaction has been under way; None where none is."""
    is_open = row.state.label in ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
    return now_ms - row.start_ms if is_open and row.start_ms >= 0 else None


def _described(row: TransactionDescription, now_ms: int) -> dict[str, Any]:
    return {
        "transactionalId": row.transactional_id,
        "state": row.state.label,
        "producerId": row.producer_id,
        "producerEpoch": row.producer_epoch,
        "timeoutMs": row.transaction_timeout_ms,
        "startTimeMs": row.start_ms if row.start_ms >= 0 else None,
        "openMs": _open_ms(row, now_ms),
        "partitions": [key.directory for key in sorted(row.partitions)],
    }


@transactions.command("find-hanging", short_help="Find transactions that hold readers up.")
@data_option
@click.option("--topic", metavar="TOPIC", shell_complete=complete_topic, help="Only of one topic.")
@click.option("--partition", type=int, metavar="N", help="Only of one of its partitions.")
@click.option(
    "--max-transaction-timeout",
    "minutes",
    type=FiniteNumber(),
    metavar="MINUTES",
    help="Open for longer is too long; by default transaction.max.timeout.ms, 15 minutes.",
)
@json_option
def find_hanging(
    data: Path, *, topic: str | None, partition: int | None, minutes: float | None, as_json: bool
) -> None:
    """Find transactions that hold readers up and will not end by themselves.

    \b
    Example
      oncelog transactions find-hanging --topic orders --data data

    Those without a transactional id are unknown to the coordinator: abort ends them on their partition. Those with
    one are overdue: abort --transactional-id ends them everywhere.
    """
    longest_ms = None if minutes is None else round(minutes * MINUTE_MS)
    with opened_to_read(data) as log:
        found = log.admin().find_hanging(
            topic=topic, partition=partition, max_transaction_timeout_ms=longest_ms
        )
    if as_json:
        json_rows(_hanging(row) for row in found)
        return
    titles = (
        "topic",
        "partition",
        "producer_id",
        "epoch",
        "coordinator_epoch",
        "start_offset",
        "last_written",
        "open_min",
        "transactional_id",
    )
    texts = ("topic", "last_written", "transactional_id")
    write_rows(
        [Column(title, title not in texts) for title in titles],
        [
            (
                row.topic_partition.topic,
                str(row.topic_partition.partition),
                str(row.producer_id),
                str(row.producer_epoch),
                str(row.coordinator_epoch),
                str(row.start_offset),
                _time(row.last_timestamp),
                str(row.duration_ms // MINUTE_MS),
                row.transactional_id or "-",
            )
            for row in found
        ],
    )
    talk(plural(len(found), "hanging transaction") + ".")


def _hanging(row: HangingTransaction) -> dict[str, Any]:
    return {
        "topic": row.topic_partition.topic,
        "partition": row.topic_partition.partition,
        "producerId": row.producer_id,
        "producerEpoch": row.producer_epoch,
        "coordinatorEpoch": row.coordinator_epoch,
        "startOffset": row.start_offset,
        "lastTimestamp": row.last_timestamp,
        "openMs": row.duration_ms,
        "transactionalId": row.transactional_id,
    }


@transactions.command(short_help="Abort a transaction that will not end.")
@data_option
@click.option("--topic", metavar="TOPIC", shell_complete=complete_topic, help="Where it hangs.")
@click.option(
    "--partition", type=int, default=0, metavar="N", help="Which partition; 0 unless told."
)
@click.option(
    "--start-offset", type=int, metavar="OFFSET", help="Where it starts, as find-hanging says."
)
@click.option(
    "--transactional-id",
    metavar="ID",
    help="Ends what this id has open, everywhere, and shuts its holder out.",
)
@adopt_option
@json_option
def abort(
    data: Path,
    *,
    topic: str | None,
    partition: int,
    start_offset: int | None,
    transactional_id: str | None,
    adopt: bool,
    as_json: bool,
) -> None:
    """Abort a transaction: on one partition, where nobody else knows it, or all of a transactional id.

    \b
    Examples
      oncelog transactions abort --topic orders --partition 2 --start-offset 1200 --data data
      oncelog transactions abort --transactional-id teller-1 --data data
    """
    if transactional_id is not None and topic is None and start_offset is None:
        with opened_to_write(data, adopt=adopt) as log:
            log.admin().force_terminate_transaction(transactional_id)
        ended: dict[str, Any] = {"transactionalId": transactional_id}
        sentence = f"{transactional_id}: what it had open is aborted, and its holder is shut out."
    elif topic is not None and start_offset is not None and transactional_id is None:
        how = _abort_at(data, topic, partition, start_offset, adopt=adopt)
        ended = {"topic": topic, "partition": partition, "startOffset": start_offset}
        sentence = f"{topic}-{partition}: the transaction at offset {start_offset:,} {how}."
    else:
        raise click.UsageError(
            "Give --topic, --partition and --start-offset, or --transactional-id alone."
        )
    if as_json:
        json_rows([ended])
    else:
        click.echo(sentence)


def _abort_at(data: Path, topic: str, partition: int, start_offset: int, *, adopt: bool) -> str:
    """Ends one that hangs. Opening a directory to write ends what no coordinator knows, so it may be gone by then."""

    def is_open(admin: Admin) -> bool:
        answer = admin.describe_producers([(topic, partition)])
        for rows in answer.values():
            if isinstance(rows, OncelogError):
                raise rows
            return any(row.current_txn_start_offset == start_offset for row in rows)
        return False

    with opened_to_read(data) as directory:
        was_open = is_open(directory.admin())
    if not was_open:
        raise Misuse(
            f"{topic}-{partition} has no open transaction that starts at offset {start_offset:,}: "
            "'oncelog transactions find-hanging' lists those that are."
        )
    with opened_to_write(data, adopt=adopt) as log:
        if not is_open(log.admin()):
            return "was ended when the directory was opened: no coordinator knew it"
        try:
            log.admin().abort_transaction((topic, partition), start_offset)
        except InvalidTxnStateError as error:  # one that its coordinator will end
            raise Misuse(f"{error.args[0].rstrip('.')}.") from error
    return "is aborted"


# ---------------------------------------------------------------- the picture


@transactions.command(short_help="Draw the transactions of a topic.")
@click.argument("topic", shell_complete=complete_topic)
@data_option
@click.option(
    "--partition",
    "partitions",
    type=int,
    multiple=True,
    metavar="N",
    help="Which; may be repeated. All unless told.",
)
@click.option(
    "--from-offset", type=int, default=0, metavar="OFFSET", help="Where the picture starts."
)
@click.option("--to-offset", type=int, metavar="OFFSET", help="Where it ends.")
@click.option(
    "--lanes",
    "lanes_max",
    type=click.IntRange(1),
    default=LANES_MAX,
    show_default=True,
    metavar="N",
    help="So many producers have a lane of their own.",
)
@click.option(
    "--width",
    type=click.IntRange(30),
    metavar="N",
    help="Characters; as wide as the terminal unless told.",
)
@click.option(
    "--html",
    "html_path",
    type=FileToWrite(),
    metavar="FILE",
    help="Write a page to zoom into.",
)
@click.option(
    "--png",
    "png_path",
    type=FileToWrite(),
    metavar="FILE",
    help="Write a picture; .svg works as well.",
)
@json_option
def timeline(
    topic: str,
    data: Path,
    *,
    partitions: tuple[int, ...],
    from_offset: int,
    to_offset: int | None,
    lanes_max: int,
    width: int | None,
    html_path: Path | None,
    png_path: Path | None,
    as_json: bool,
) -> None:
    """Draw the transactions of a topic along the offsets, one lane for each producer.

    \b
    Examples
      oncelog transactions timeline orders --data data
      oncelog transactions timeline orders --partition 0 --from-offset 1000 --to-offset 2000 --data data
      oncelog transactions timeline orders --html orders.html --png orders.png --data data

    Records that are committed, aborted, open or in no transaction; the markers that end transactions; how far
    read_committed readers may see (the last stable offset), and all others (the high watermark).
    """
    if to_offset is not None and from_offset >= to_offset:
        raise click.UsageError(
            f"Nothing lies from offset {from_offset:,} up to and without {to_offset:,}."
        )
    with opened_to_read(data) as log:
        found = list(_timelines(log, topic, partitions, from_offset, to_offset))
        if not found:
            raise Misuse("No partition has such offsets.")
        names = _names(log)
    if as_json:
        _write_json(found, names)
    elif not (html_path or png_path):
        from .timeline_text import write_text

        wide = width or (
            shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH_IN_PIPE
        )
        for number, one in enumerate(found):
            if number:
                click.echo()
            write_text(one, names, width=wide, lanes_max=lanes_max)
    if html_path is not None:
        from .timeline_html import write_html

        _save(html_path, write_html(found, names, lanes_max))
    if png_path is not None:
        from .timeline_png import draw_png

        kind = png_path.suffix.lower().removeprefix(".")
        _save(png_path, draw_png(found, names, lanes_max, "svg" if kind == "svg" else "png"))


def _timelines(
    log: LogDirectory, topic: str, partitions: Sequence[int], start: int, end: int | None
) -> Iterator[Timeline]:
    from ..base.errors import UnknownTopicOrPartitionError
    from ..partition.timeline import read_timeline

    known = log.topics().get(topic)
    if known is None:
        others = ", ".join(log.topics())
        rest = f"only {others}" if others else "and no other"
        raise UnknownTopicOrPartitionError(f"{log.path} has no topic {topic!r}, {rest}")
    for number in partitions or known:
        whole = read_timeline(log.partition(topic, number))
        if start <= 0 and end is None:
            yield whole
            continue
        stop = whole.high_watermark if end is None else min(end, whole.high_watermark)
        if start >= stop:
            nothing = (
                f"{topic}-{number} has offsets {whole.log_start_offset:,} to {whole.high_watermark:,}: none is there to "
                "draw."
            )
            if partitions or len(known) == 1:
                raise Misuse(nothing)
            talk(nothing)
            continue
        yield whole.between(start, stop)


def _names(log: LogDirectory) -> dict[int, str]:
    """Transactional ids by producer id. Without them, lanes are called by their numbers."""
    try:
        return {row.producer_id: row.transactional_id for row in log.admin().list_transactions()}
    except OncelogError as error:
        talk(f"Transactional ids are not known: {error}.")
        return {}


def _save(path: Path, content: bytes) -> None:
    from ..base.disk import Disk

    Disk().replace(path, content, sync=False)
    talk(f"{click.format_filename(path)} is written, {plural(len(content), 'byte')}.")


def _write_json(found: list[Timeline], names: dict[int, str]) -> None:
    """One document for each partition; one transaction a line."""
    import json

    from ..partition.timeline import Outcome

    labels = [outcome.label for outcome in Outcome]
    documents = []
    for one in found:
        head = {
            "topic": one.key.topic,
            "partition": one.key.partition,
            "logStartOffset": one.log_start_offset,
            "lastStableOffset": one.last_stable_offset,
            "highWatermark": one.high_watermark,
            "startOffset": one.start_offset,
            "endOffset": one.end_offset,
            "producers": [
                {"producerId": producer, "transactionalId": names.get(producer)}
                for producer in one.producers.tolist()
            ],
        }
        columns = (
            "producer_id",
            "producer_epoch",
            "first_offset",
            "last_offset",
            "marker_offset",
            "records",
            "batches",
            "first_timestamp",
            "last_timestamp",
            "outcome",
        )
        lines = [
            json.dumps(
                {
                    "producerId": producer,
                    "transactionalId": names.get(producer),
                    "producerEpoch": epoch,
                    "firstOffset": first,
                    "lastOffset": last,
                    "markerOffset": marker if marker >= 0 else None,
                    "records": records,
                    "batches": batches,
                    "firstTimestamp": began,
                    "lastTimestamp": ended,
                    "outcome": labels[outcome],
                }
            )
            for producer, epoch, first, last, marker, records, batches, began, ended, outcome in zip(
                *(one.transactions[name].tolist() for name in columns), strict=True
            )
        ]
        body = ",\n".join(lines)
        documents.append(f'{json.dumps(head)[:-1]}, "transactions": [\n{body}\n]}}')
    click.echo("[" + ",\n".join(documents) + "]")
