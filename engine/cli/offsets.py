"""``oncelog offsets``: where partitions begin, end, or were at a time."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Final

import click

from ..base.errors import InvalidRequestError, OncelogError, UnknownTopicOrPartitionError
from .data import complete_topic, data_option, json_option, opened_to_read
from .output import CommandGroup, Misuse, end_with, talk

if TYPE_CHECKING:
    from pathlib import Path

    from ..client.admin import Admin
    from ..segment.names import TopicPartition

NAMES: Final = {
    "-1": "latest",
    "-2": "earliest",
    "-3": "max_timestamp",
    "latest": "latest",
    "earliest": "earliest",
    "max-timestamp": "max_timestamp",
}
GAPS: Final = (
    "Offsets are not a count of records: markers of transactions take one each, and compaction and aborted "
    "transactions leave gaps."
)


@click.group(cls=CommandGroup, short_help="Show where partitions begin and end.")
def offsets() -> None:
    """Show where partitions begin and end.

    \b
    Example
      oncelog offsets get orders --time -1 --data data
    """


@offsets.command(short_help="Offsets of topics: the latest, the earliest, at a time.")
@click.argument("topics", nargs=-1, metavar="[TOPIC...]", shell_complete=complete_topic)
@data_option
@click.option(
    "--time",
    "moment",
    default="latest",
    show_default=True,
    metavar="TIME",
    help="-1 or latest, -2 or earliest, -3 or max-timestamp, or milliseconds or a date and time: the first record then or later.",
)
@click.option("--partitions", metavar="N,N", help="Of these partitions alone.")
@click.option(
    "--isolation-level",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="The latest of a read_committed reader is the last stable offset.",
)
@click.option("--internal", is_flag=True, help="The coordinators' topics, too.")
@click.option(
    "--sum", "as_sum", is_flag=True, help="One figure a topic: the sum over its partitions."
)
@json_option
def get(
    topics: tuple[str, ...],
    data: Path,
    *,
    moment: str,
    partitions: str | None,
    isolation_level: str,
    internal: bool,
    as_sum: bool,
    as_json: bool,
) -> None:
    """Offsets of topics, or of all: one topic:partition:offset a line, as Kafka's tool prints them.

    \b
    Examples
      oncelog offsets get orders --data data
      oncelog offsets get orders --time 2026-11-16T18:00:00.000 --partitions 0,2 --data data
      oncelog offsets get --time earliest --sum --data data

    The offset is empty where no record is that late. Offsets are not a count of records: markers of transactions take
    one each, and compaction and aborted transactions leave gaps.
    """
    from .consuming import time_of

    spec = NAMES.get(moment.lower())
    try:
        wanted = time_of(moment) if spec is None else spec
    except Misuse as error:
        raise Misuse(f"{error.message} So are latest, earliest and max-timestamp.") from error
    with opened_to_read(data) as log:
        admin = log.admin()
        keys, errors = _keys(admin, topics, partitions, internal=internal)
        answers = admin.list_offsets(dict.fromkeys(keys, wanted), isolation_level=isolation_level)
    found: dict[TopicPartition, int | None] = {}
    for key, answer in answers.items():
        if isinstance(answer, OncelogError):
            errors.append(answer)
        else:
            found[key] = answer.offset if answer.offset >= 0 else None
    _write(found, as_sum=as_sum, as_json=as_json)
    if as_sum and sys.stderr.isatty():
        talk(GAPS)
    end_with(errors)


def _write(found: dict[TopicPartition, int | None], *, as_sum: bool, as_json: bool) -> None:
    if as_sum:
        sums: dict[str, int] = {}
        for key, offset in found.items():
            sums[key.topic] = sums.get(key.topic, 0) + (offset or 0)
        if as_json:
            click.echo(
                json.dumps([{"topic": topic, "sum": total} for topic, total in sums.items()])
            )
            return
        for topic, total in sums.items():
            click.echo(f"{topic}:{total}")
        return
    if as_json:
        rows = [{"topic": t, "partition": p, "offset": offset} for (t, p), offset in found.items()]
        click.echo(json.dumps(rows))
        return
    for (topic, partition), offset in found.items():
        click.echo(f"{topic}:{partition}:{'' if offset is None else offset}")


def _keys(
    admin: Admin, topics: tuple[str, ...], partitions: str | None, *, internal: bool
) -> tuple[list[tuple[str, int]], list[OncelogError]]:
    """The partitions that are meant, and what is not there."""
    ranges = None if partitions is None else _ranges(partitions)
    errors: list[OncelogError] = []
    keys: list[tuple[str, int]] = []
    for name, answer in admin.describe_topics(topics or None).items():
        if isinstance(answer, OncelogError):
            errors.append(answer)
        elif topics or internal or not answer.is_internal:
            here = [row.partition for row in answer.partitions]
            wanted = [range(max(here) + 1)] if ranges is None else ranges
            keys += [(name, at) for at in here if any(at in numbers for numbers in wanted)]
            # A range that is too long is named by its first and last: it may stand for very many.
            missing = [
                text
                for numbers in ranges or ()
                for text in {str(numbers[0]), str(numbers[-1])}
                if int(text) not in here
            ]
            if missing and topics:
                errors.append(
                    UnknownTopicOrPartitionError(
                        f"topic {name!r} has partitions {_listed(here)}, not {', '.join(missing)}"
                    )
                )
    return keys, errors


def _listed(numbers: list[int]) -> str:
    """Partitions for people; those of a directory that was one broker's among several may have gaps."""
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def _ranges(text: str) -> list[range]:
    """``0,2`` or ``0-3,7``."""
    found: list[range] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,10})(?:-([0-9]{1,10}))?\s*", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise InvalidRequestError(f"{text!r} is no list of partitions like 0,2 or 0-3")
        found.append(range(int(match[1]), int(match[2] or match[1]) + 1))
    return found
