"""``oncelog import`` and ``oncelog export``: records from and to Parquet and Arrow files, and other directories.

Everything goes through column by column; a topic that is imported is there whole or not at all, since it is one
transaction.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from .data import (
    FileToWrite,
    adopt_option,
    complete_topic,
    data_option,
    json_option,
    opened_to_read,
    opened_to_write,
)
from .output import Misuse, plural
from .progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..client.client import Log

IMPORT_ID: Final = "oncelog-import"
FORMATS: Final = ("parquet", "arrow")


@click.command("export", short_help="Give records to Parquet, Arrow or a Kafka directory.")
@click.argument("topic", shell_complete=complete_topic)
@click.argument("target", type=click.Path(path_type=Path))
@data_option
@click.option(
    "--format",
    "form",
    type=click.Choice([*FORMATS, "directory"]),
    help="Of TARGET; by its name unless told.",
)
@click.option(
    "--partition",
    "partitions",
    type=int,
    multiple=True,
    metavar="N",
    help="Which; may be repeated. All unless told.",
)
@click.option("--from-offset", type=int, default=0, metavar="OFFSET", help="The first offset.")
@click.option("--to-offset", type=int, metavar="OFFSET", help="Up to, and without.")
@click.option(
    "--isolation-level",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
)
@json_option
def export_records(
    topic: str,
    target: Path,
    data: Path,
    *,
    form: str | None,
    partitions: tuple[int, ...],
    from_offset: int,
    to_offset: int | None,
    isolation_level: str,
    as_json: bool,
) -> None:
    """Write the records of TOPIC to TARGET: a .parquet or .arrow file, or a new data directory.

    \b
    Examples
      oncelog export orders orders.parquet --data data
      oncelog export orders copy/ --data /var/lib/kafka/data

    Files get all columns: topic, partition, offset, timestamp, timestamp_type, key, value, headers. A directory gets
    the records in the same partitions, with new offsets, as files that Kafka reads; it may be there already.
    """
    chosen = form or _form_of(target)
    if chosen != "directory":
        FileToWrite().convert(target, None, click.get_current_context())
    options = (from_offset, to_offset, isolation_level)
    count = 0
    with opened_to_read(data) as log, Progress(f"exporting {topic}") as progress:
        known = log.topics().get(topic, [])
        numbers = list(partitions) or known
        if not known:
            log.read(topic)  # says what there is
        if chosen == "directory":
            with opened_to_write(target, create=True) as other:
                _ensure(other, topic, max(known) + 1)
                with _importing(other) as producer:
                    for number in numbers:
                        start, end, isolation = options
                        for batch in log.read(
                            topic, number, start, end, isolation_level=isolation
                        ).to_batches():
                            producer.send_arrow(topic, batch)
                            count += batch.num_rows
                            progress.advance(batch.num_rows)
        else:
            count = _to_file(log, topic, numbers, options, target, chosen, progress.advance)
    _say(as_json, {"topic": topic, "target": str(target), "format": chosen, "records": count})


def _to_file(
    log: Any,
    topic: str,
    numbers: list[int],
    options: tuple[int, int | None, str],
    target: Path,
    form: str,
    advance: Callable[[int], None],
) -> int:
    """Writes beside the target and renames, so that what has its name is whole."""
    from ..base.disk import Disk
    from .record_files import open_writer

    draft = target.with_name(f"{target.name}.partial")
    start, end, isolation = options
    count = 0
    try:
        writer = open_writer(form, draft, log.read(topic, numbers[0]).schema)
        with contextlib.closing(writer):
            for number in numbers:
                for batch in log.read(
                    topic, number, start, end, isolation_level=isolation
                ).to_batches():
                    writer.write_batch(batch)
                    count += batch.num_rows
                    advance(batch.num_rows)
        Disk().rename(draft, target)
    except BaseException:
        with contextlib.suppress(OSError):
            Disk().remove(draft)
        raise
    return count


@click.command("import", short_help="Take records from Parquet, Arrow or a Kafka directory.")
@click.argument("topic", shell_complete=complete_topic)
@click.argument("source", type=click.Path(path_type=Path))
@data_option
@click.option(
    "--format",
    "form",
    type=click.Choice([*FORMATS, "directory"]),
    help="Of SOURCE; by its name unless told.",
)
@click.option(
    "--source-topic", metavar="TOPIC", help="Its name in the other directory, if it is another."
)
@click.option(
    "--keep-partitions/--by-key",
    default=True,
    help="Partitions of the source, or as keys hash; kept unless told.",
)
@click.option(
    "--isolation-level",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="Of a directory.",
)
@adopt_option
@json_option
def import_records(
    topic: str,
    source: Path,
    data: Path,
    *,
    form: str | None,
    source_topic: str | None,
    keep_partitions: bool,
    isolation_level: str,
    adopt: bool,
    as_json: bool,
) -> None:
    """Add the records of SOURCE to TOPIC, in one transaction: a .parquet or .arrow file, or a data directory.

    \b
    Examples
      oncelog import orders orders.parquet --data data
      oncelog import orders /var/lib/kafka/data --data data

    Columns are key, value, timestamp, partition and headers; value alone is needed, and others are left out. The topic
    is made if it is not there. Records get new offsets and keep their timestamps.
    """
    if not source.exists():
        raise Misuse(f"There is no file or directory {click.format_filename(source)}.")
    chosen = form or ("directory" if source.is_dir() else _form_of(source))
    count = 0
    with (
        opened_to_write(data, create=True, adopt=adopt) as log,
        Progress(f"importing {topic}") as progress,
    ):
        partitions, batches = _source(source, chosen, source_topic or topic, isolation_level)
        _ensure(log, topic, partitions)
        with _importing(log) as producer:
            for batch in batches:
                if not keep_partitions and "partition" in batch.schema.names:
                    batch = batch.drop_columns(["partition"])  # noqa: PLW2901
                producer.send_arrow(topic, batch)
                count += batch.num_rows
                progress.advance(batch.num_rows)
    _say(as_json, {"topic": topic, "source": str(source), "format": chosen, "records": count})


def _source(path: Path, form: str, topic: str, isolation_level: str) -> tuple[int, Iterator[Any]]:
    """How many partitions there should be at least, and the records."""
    if form == "directory":
        with opened_to_read(path) as other:
            partitions = max(other.topics().get(topic, [0])) + 1
            other.read(topic)  # says what there is, if not this

        def copied() -> Iterator[Any]:
            with opened_to_read(path) as again:
                yield from again.read(topic, isolation_level=isolation_level).to_batches()

        return partitions, copied()
    if not path.is_file():
        raise Misuse(f"{click.format_filename(path)} is a directory, not a file of {form}.")
    from .record_files import Shape, file_batches, partitions_in

    wanted = max(map(partitions_in, file_batches(path, form, Shape())), default=0)
    return max(wanted, 1), file_batches(path, form, Shape())


def _form_of(path: Path) -> str:
    from .record_files import form_of

    found = form_of(path)
    if found in FORMATS:
        return found
    if path.suffix:
        raise Misuse(
            f"{click.format_filename(path)}: its name tells no format. Call it .parquet or .arrow, or give --format. "
            "'oncelog consume' and 'oncelog produce' know text, JSON and CSV."
        )
    return "directory"


def _ensure(log: Log, topic: str, partitions: int) -> None:
    """The topic, with enough partitions."""
    admin = log.admin()
    known = {listing.name for listing in admin.list_topics()}
    if topic not in known:
        log.create_topic(topic, partitions)
        return
    if len(admin.describe_topic(topic).partitions) < partitions:
        admin.increase_partitions(topic, partitions)


@contextlib.contextmanager
def _importing(log: Log) -> Iterator[Any]:
    """A producer in a transaction that is committed in the end, or not at all. Records may be many: it never times out
    on its own account before the broker's longest."""
    longest = int(log.broker.config["transaction.max.timeout.ms"])
    with (
        log.producer(transactional_id=IMPORT_ID, transaction_timeout_ms=longest) as producer,
        producer.transaction(),
    ):
        yield producer


def _say(as_json: bool, document: dict[str, Any]) -> None:
    if as_json:
        click.echo(json.dumps(document))
        return
    place = document.get("target") or document.get("source")
    verb = "to" if "target" in document else "from"
    click.echo(f"{document['topic']}: {plural(document['records'], 'record')} {verb} {place}")
