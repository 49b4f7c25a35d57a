"""``oncelog consume``: records of a topic, from anywhere in it, as text, JSON, hex, or into an Arrow or Parquet file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from .data import (
    FileToWrite,
    adopt_option,
    client_options,
    command_config_option,
    complete_group,
    complete_topic,
    data_option,
)
from .output import Misuse

if TYPE_CHECKING:
    from pathlib import Path

    from .record_formats import Layout

FORMATS: Final = (
    "text",
    "json",
    "hex",
    "arrow",
    "parquet",
    "offsets",
    "group-metadata",
    "transaction-log",
)
FILES: Final = ("arrow", "parquet")


@click.command(short_help="Read records: as text, JSON, hex, Arrow or Parquet.")
@click.argument("topic", shell_complete=complete_topic)
@data_option
@click.option(
    "--partition",
    type=click.IntRange(min=0),
    metavar="N",
    help="Of one partition; by default of all, one after another.",
)
@click.option(
    "--from-beginning", is_flag=True, help="From the first record; the default without --follow."
)
@click.option(
    "--offset", metavar="N", help="From an offset on, or earliest, or latest; needs --partition."
)
@click.option(
    "--from-timestamp",
    metavar="TIME",
    help="From the first record at a time: milliseconds, or 2026-11-16T18:00:00.000.",
)
@click.option(
    "--group",
    metavar="GROUP",
    shell_complete=complete_group,
    help="As a member of a group: from where it was, and commit.",
)
@click.option(
    "--isolation-level",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
)
@click.option(
    "--max-messages", type=click.IntRange(min=1), metavar="N", help="Stop after N records."
)
@click.option(
    "--follow", is_flag=True, help="Wait for more at the end; starts there, as Kafka's tool does."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="By default text, and for the coordinators' topics what Kafka's formatters show.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "-o",
    "--output",
    type=FileToWrite(),
    metavar="FILE",
    help="Where arrow and parquet go.",
)
@click.option("--print-timestamp", is_flag=True, help="text: the timestamp in front.")
@click.option("--print-partition", is_flag=True, help="text: the partition in front.")
@click.option("--print-offset", is_flag=True, help="text: the offset in front.")
@click.option("--print-headers", is_flag=True, help="text: the headers in front.")
@click.option("--print-key", is_flag=True, help="text: the key in front.")
@click.option("--no-print-value", is_flag=True, help="text: without the value.")
@click.option(
    "--key-separator",
    default="\\t",
    show_default=True,
    metavar="TEXT",
    help="text: between the parts of a line.",
)
@click.option(
    "--line-separator",
    default="\\n",
    show_default=True,
    metavar="TEXT",
    help="text: behind each line.",
)
@click.option(
    "--null-literal",
    default="null",
    show_default=True,
    metavar="TEXT",
    help="text: for a key or value that is null.",
)
@click.option(
    "--consumer-property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="With --group: a consumer option; may be repeated.",
)
@command_config_option
@adopt_option
def consume(topic: str, data: Path, **given: Any) -> None:
    """Read records of TOPIC. Aborted ones and those of open transactions are left out unless told otherwise.

    \b
    Examples
      oncelog consume orders --data data
      oncelog consume orders --partition 0 --offset 1200 --max-messages 5 --print-key --data data
      oncelog consume orders --from-timestamp 2026-11-16T18:00:00.000 --json --data data | jq .value
      oncelog consume orders --format parquet -o orders.parquet --data data
      oncelog consume orders --group billing --data data
      oncelog consume __consumer_offsets --data /var/lib/kafka/data

    Without --group the directory is only read, beside whoever writes it, and it may be a Kafka broker's. A group
    commits what was printed, so that no record is lost, and needs the directory for itself. Unlike Kafka's tool it
    ends at the end of the topic; --follow waits for more.
    """
    from .consuming import Start, consume_as_member, consume_directory
    from .record_formats import Layout, file_sink, line_sink

    form, output = given["form"], given["output"]
    if given["as_json"]:
        if form not in (None, "json"):
            raise click.UsageError(f"--json and --format {form} contradict each other.")
        form = "json"
    if (form in FILES) != (output is not None):
        raise click.UsageError(
            "--format arrow and parquet need --output FILE, and the others go to stdout."
        )
    start = Start.of(
        partition=given["partition"],
        from_beginning=given["from_beginning"],
        offset=given["offset"],
        timestamp=given["from_timestamp"],
        follow=given["follow"],
    )
    sink = (
        file_sink(form, output)
        if output is not None
        else line_sink(topic, form, _layout(given, Layout))
    )
    options = client_options(given["command_config"], given["properties"], "--consumer-property")
    limit, isolation = given["max_messages"], given["isolation_level"]
    with sink:
        if given["group"] is None:
            if given["properties"]:
                raise click.UsageError("--consumer-property is for members of a --group.")
            consume_directory(
                data,
                topic,
                start,
                sink,
                limit=limit,
                isolation=options.get("isolation.level", isolation),
            )
        else:
            if start.needs_partition or given["from_timestamp"] is not None:
                raise Misuse(
                    "A group goes on where it was: leave --partition, --offset and --from-timestamp out, or reset it with 'oncelog groups reset-offsets'."
                )
            consume_as_member(
                data,
                topic,
                start,
                sink,
                limit=limit,
                group=given["group"],
                isolation=isolation,
                options=options,
                adopt=given["adopt"],
            )
    sink.tell()


def _layout(given: dict[str, Any], layout: type[Layout]) -> Layout:
    def unescaped(name: str) -> bytes:
        text: str = given[name]
        for written, meant in (("\\t", "\t"), ("\\n", "\n"), ("\\0", "\0")):
            text = text.replace(written, meant)
        return text.encode()

    return layout(
        timestamp=given["print_timestamp"],
        partition=given["print_partition"],
        offset=given["print_offset"],
        headers=given["print_headers"],
        key=given["print_key"],
        value=not given["no_print_value"],
        separator=unescaped("key_separator"),
        line_end=unescaped("line_separator"),
        null=unescaped("null_literal"),
    )
