"""``oncelog compact``: cleans compacted topics now, however little there is to clean."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .data import adopt_option, complete_topic, data_option, json_option, opened_to_write
from .listing import Column, json_rows, write_rows
from .output import plural, talk

if TYPE_CHECKING:
    from pathlib import Path


@click.command(short_help="Clean compacted topics now.")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...", shell_complete=complete_topic)
@data_option
@adopt_option
@json_option
def compact(topics: tuple[str, ...], data: Path, *, adopt: bool, as_json: bool) -> None:
    """Clean topics whose cleanup.policy is compact: of each key the newest record stays.

    \b
    Examples
      oncelog compact --data data
      oncelog compact accounts --data data

    Without a topic all are cleaned, the internal ones among them. The segment that is being written stays as it is,
    and so does what a transaction that is still open may decide about, and what min.compaction.lag.ms protects.
    """
    # The log's own cleaner would work on the same logs at the same time.
    with opened_to_write(data, adopt=adopt, config={"log.cleaner.enable": False}) as log:
        admin = log.admin()
        for topic in topics:
            policy = str(admin.describe_topic_config(topic)["cleanup.policy"].text)
            if "compact" not in policy:
                talk(f"{topic} is not compacted: its cleanup.policy is {policy}.")
        done = log.broker.compact_now(topics)
    if as_json:
        json_rows(
            {
                "topic": key.topic,
                "partition": key.partition,
                "cleanUpTo": cleaned.end_offset,
                "bytesBefore": cleaned.bytes_before,
                "bytesAfter": cleaned.bytes_after,
                "recordsRead": cleaned.records_read,
                "recordsKept": cleaned.records_kept,
                "segmentsBefore": cleaned.segments_before,
                "segmentsAfter": cleaned.segments_after,
            }
            for key, cleaned in done.items()
        )
        return
    titles = (
        "partition",
        "clean_to",
        "bytes_before",
        "bytes_after",
        "records_read",
        "records_kept",
        "segments",
    )
    write_rows(
        [Column(title, title not in ("partition", "segments")) for title in titles],
        [
            (
                key.directory,
                str(cleaned.end_offset),
                str(cleaned.bytes_before),
                str(cleaned.bytes_after),
                str(cleaned.records_read),
                str(cleaned.records_kept),
                f"{cleaned.segments_before}->{cleaned.segments_after}",
            )
            for key, cleaned in done.items()
        ],
    )
    talk(f"{plural(len(done), 'partition')} cleaned.")
