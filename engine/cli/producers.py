"""``oncelog producers``: whom partitions remember."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..base.errors import OncelogError
from .data import complete_topic, data_option, json_option, opened_to_read
from .listing import Column, json_rows, write_rows
from .output import CommandGroup, end_with

if TYPE_CHECKING:
    from pathlib import Path


@click.group(cls=CommandGroup, short_help="Describe the producers that partitions remember.")
def producers() -> None:
    """Describe the producers that partitions remember.

    \b
    Example
      oncelog producers describe orders --data data
    """


@producers.command(short_help="Describe the producers of a topic.")
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
@json_option
def describe(topic: str, data: Path, *, partitions: tuple[int, ...], as_json: bool) -> None:
    """Describe the producers of a topic: epoch, last sequence, and the transaction they have open.

    \b
    Examples
      oncelog producers describe orders --data data
      oncelog producers describe orders --partition 2 --json --data data

    A producer is remembered for a day after its last batch (producer.id.expiration.ms), or while it has a
    transaction open.
    """
    from .log_text import time_of

    with opened_to_read(data) as log:
        admin = log.admin()
        numbers = partitions or [row.partition for row in admin.describe_topic(topic).partitions]
        answers = admin.describe_producers([(topic, number) for number in numbers])
    found = [
        (key, row)
        for key, rows in answers.items()
        if not isinstance(rows, OncelogError)
        for row in rows
    ]
    if as_json:
        json_rows(
            {
                "topic": key.topic,
                "partition": key.partition,
                "producerId": row.producer_id,
                "producerEpoch": row.producer_epoch,
                "lastSequence": row.last_sequence,
                "lastTimestamp": row.last_timestamp,
                "coordinatorEpoch": row.coordinator_epoch if row.coordinator_epoch >= 0 else None,
                "currentTransactionStartOffset": row.current_txn_start_offset
                if row.current_txn_start_offset >= 0
                else None,
            }
            for key, row in found
        )
    else:
        titles = (
            "partition",
            "producer_id",
            "epoch",
            "last_sequence",
            "last_written",
            "coordinator_epoch",
            "open_from",
        )
        write_rows(
            [Column(title, title not in ("partition", "last_written")) for title in titles],
            [
                (
                    key.directory,
                    str(row.producer_id),
                    str(row.producer_epoch),
                    _or_dash(row.last_sequence),
                    time_of(row.last_timestamp) if row.last_timestamp >= 0 else "-",
                    _or_dash(row.coordinator_epoch),
                    _or_dash(row.current_txn_start_offset),
                )
                for key, row in found
            ],
        )
    end_with([answer for answer in answers.values() if isinstance(answer, OncelogError)])


def _or_dash(number: int) -> str:
    return str(number) if number >= 0 else "-"
