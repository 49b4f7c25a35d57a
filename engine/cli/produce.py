"""``oncelog produce``: records from lines of text, JSON, CSV, Arrow or Parquet, plain or in transactions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from .data import (
    adopt_option,
    client_options,
    command_config_option,
    complete_topic,
    data_option,
    json_option,
    opened_to_write,
    pairs_of,
)
from .output import plural, talk
from .progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..client.producer import Producer

FORMATS: Final = ("lines", "json", "csv", "arrow", "parquet")
STDIN: Final = Path("-")
IN_FLIGHT: Final = 8  # batches of rows that may be on their way


@click.command(short_help="Write records: lines, JSON, CSV, Arrow or Parquet.")
@click.argument("topic", shell_complete=complete_topic)
@click.argument(
    "files", nargs=-1, type=click.Path(path_type=Path, allow_dash=True), metavar="[FILE...]"
)
@data_option
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="By default as a file's name tells, else lines.",
)
@click.option(
    "--key-separator",
    metavar="TEXT",
    help="lines: what stands between key and value; without it there are no keys.",
)
@click.option(
    "--parse-headers", is_flag=True, help="lines: name:value,name:value and a tab in front."
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="A header of every record; may be repeated.",
)
@click.option(
    "--null-marker", metavar="TEXT", help="lines, csv: a key or value that is this text is null."
)
@click.option(
    "--key-column",
    default="key",
    show_default=True,
    metavar="NAME",
    help="csv, arrow, parquet: the column with the keys.",
)
@click.option(
    "--value-column",
    default="value",
    show_default=True,
    metavar="NAME",
    help="csv, arrow, parquet: the column with the values.",
)
@click.option(
    "--partition",
    type=click.IntRange(min=0),
    metavar="N",
    help="All to one partition; by default by key.",
)
@click.option(
    "--transactional-id", metavar="ID", help="In transactions of this id: one for each file."
)
@click.option(
    "--transaction-records",
    type=click.IntRange(min=1),
    metavar="N",
    help="One transaction for every N records instead.",
)
@click.option(
    "--compression-type",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    help="The codec of batches.",
)
@click.option(
    "--durability",
    type=click.Choice(["os", "fsync"]),
    default="os",
    show_default=True,
    help="What acknowledged records survive: the process, or loss of power.",
)
@click.option(
    "--producer-property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="A producer option; may be repeated.",
)
@command_config_option
@adopt_option
@json_option
def produce(topic: str, files: tuple[Path, ...], data: Path, **given: Any) -> None:
    """Write records to TOPIC: from FILEs, or from stdin, where each line is a record.

    \b
    Examples
      echo 'k1:v1' | oncelog produce orders --key-separator : --data data
      oncelog produce orders --data data                              lines as they are typed, Ctrl-D ends
      oncelog produce orders day1.parquet day2.parquet --transactional-id loader --data data
      oncelog produce orders big.csv --key-column id --value-column body --data data
      oncelog consume orders --json --data data | oncelog produce copy --format json --data other

    In a transaction all of a file's records count or none: after an error or Ctrl-C it is aborted. JSON lines have
    the fields that 'oncelog consume --json' prints: value or valueBase64, and key, headers, timestamp, partition.
    """
    if given["transaction_records"] and not given["transactional_id"]:
        raise click.UsageError("--transaction-records needs a --transactional-id.")
    for path in files:
        if path != STDIN and not path.exists():
            raise click.BadParameter(
                f"there is no file {click.format_filename(path)}.", param_hint="'FILE'"
            )
    options = client_options(given["command_config"], given["properties"], "--producer-property")
    settings: dict[str, Any] = {name.replace(".", "_"): value for name, value in options.items()}
    for name in ("transactional_id", "compression_type"):
        if given[name] is not None:
            settings[name] = given[name]
    with opened_to_write(data, adopt=given["adopt"], durability=given["durability"]) as log:
        log.broker.partitions_of(topic)  # a topic that is not there is told before anything is read
        with log.producer(**settings) as producer, Progress("producing") as progress:
            job = _Job(producer, topic, per_transaction=given["transaction_records"])
            for path in files or (STDIN,):
                progress.what = click.format_filename(path.name)
                job.send(_counted(_batches(path, given), path, progress))
    _tell(job, topic, as_json=given["as_json"])


def _batches(path: Path, given: dict[str, Any]) -> Iterator[Any]:
    from .record_files import Shape, file_batches, form_of, stream_batches

    headers = pairs_of(given["headers"], "--header")
    shape = Shape(
        None
        if given["key_separator"] is None
        else given["key_separator"].replace("\\t", "\t").encode(),
        given["parse_headers"],
        None if given["null_marker"] is None else given["null_marker"].encode(),
        tuple((name, value.encode()) for name, value in headers.items()),
        given["partition"],
        given["key_column"],
        given["value_column"],
    )
    if path != STDIN:
        return file_batches(path, given["form"] or form_of(path), shape)
    form = given["form"] or "lines"
    if form not in ("lines", "json"):
        raise click.UsageError(f"--format {form} is read from files, not from stdin.")
    if sys.stdin.isatty():
        talk("Each line is a record; Ctrl-D ends.")
    return stream_batches(sys.stdin.buffer, form, shape, "stdin")


def _counted(batches: Iterator[Any], path: Path, progress: Progress) -> Iterator[Any]:
    """The rows of a file, with a bar that tells how far they are; who types lines does not need one."""
    for batch in batches:
        yield batch
        if path != STDIN:
            progress.advance(batch.num_rows)


class _Job:
    """Sends batches of rows, and counts what has become of them."""

    def __init__(self, producer: Producer, topic: str, *, per_transaction: int | None) -> None:
        self._producer = producer
        self._topic = topic
        self._per_transaction = per_transaction
        self.records = 0
        self.transactions = 0
        self.ends: dict[int, int] = {}
        if producer.transactional_id is not None:
            producer.init_transactions()

    def send(self, batches: Iterable[Any]) -> None:
        """All rows of a file: in one transaction, in one for every so many, or in none."""
        if self._producer.transactional_id is None:
            self._send_all(batches)
            return
        portions: Iterable[Iterable[Any]] = [batches]
        if self._per_transaction is not None:
            portions = _portions(batches, self._per_transaction)
        for portion in portions:
            with self._producer.transaction():
                self._send_all(portion)
            self.transactions += 1

    def _send_all(self, batches: Iterable[Any]) -> None:
        waiting: list[Any] = []
        count = 0
        for batch in batches:
            waiting.append(self._producer.send_arrow(self._topic, batch))
            count += batch.num_rows
            if len(waiting) >= IN_FLIGHT:
                self._settle(waiting.pop(0))
        for delivery in waiting:
            self._settle(delivery)
        self.records += count

    def _settle(self, delivery: Any) -> None:
        for found in delivery.result():
            self.ends[found.partition] = found.last_offset


def _portions(batches: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """The rows in lists of slices that have ``size`` of them together; the last may have fewer."""
    portion: list[Any] = []
    room = size
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            piece = batch.slice(start, room)
            portion.append(piece)
            start += piece.num_rows
            room -= piece.num_rows
            if not room:
                yield portion
                portion, room = [], size
    if portion:
        yield portion


def _tell(job: _Job, topic: str, *, as_json: bool) -> None:
    if as_json:
        import json

        ends = [{"partition": at, "lastOffset": job.ends[at]} for at in sorted(job.ends)]
        document = {
            "topic": topic,
            "records": job.records,
            "transactions": job.transactions,
            "partitions": ends,
        }
        click.echo(json.dumps(document))
    elif sys.stderr.isatty():
        inside = f" in {plural(job.transactions, 'transaction')}" if job.transactions else ""
        talk(f"{plural(job.records, 'record')} written to {topic}{inside}.")
