"""Small logs for tests of the room, and reading them without a JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import oncelog
from oncelog.spark.batch_source import BatchReader
from oncelog.spark.columns import spark_schema
from oncelog.spark.source_options import SourceOptions
from oncelog.spark.stream_source import StreamReader

if TYPE_CHECKING:
    from pathlib import Path

    from oncelog.client.client import Log

# Kafka's smallest indexes, so that little data has many places to be cut at.
SMALL = {"index.interval.bytes": 0}


class RollbackError(Exception):
    """Ends a transaction."""


def send(
    log: Log, count: int, *, topic: str = "t", partition: int = 0, aborts: bool = False
) -> None:
    """One transaction of records that all differ, in batches of a few."""
    with log.producer(transactional_id=f"p-{topic}-{partition}", batch_size=512) as producer:
        try:
            with producer.transaction():
                for number in range(count):
                    value = b"%s %d %08d" % (topic.encode(), partition, number)
                    producer.send(topic, key=b"%d" % number, value=value, partition=partition)
                if aborts:
                    producer.flush()  # or they would never be written
                    raise RollbackError
        except RollbackError:
            pass


def make_log(path: Path, *, partitions: int = 1, count: int = 200) -> Path:
    """A closed log with one topic: committed, aborted and committed records in each partition."""
    with oncelog.open(path) as log:
        log.create_topic("t", partitions=partitions, config=SMALL)
        for partition in range(partitions):
            send(log, count, partition=partition)
            send(log, count, partition=partition, aborts=True)
            send(log, count, partition=partition)
    return path


def source_options(path: Path | str, **options: Any) -> SourceOptions:
    given = {
        "path": str(path),
        "subscribe": "t",
        **{key: str(each) for key, each in options.items()},
    }
    return SourceOptions.read({key: each for key, each in given.items() if each})


def batch_reader(path: Path | str, **options: Any) -> BatchReader:
    found = source_options(path, **options)
    found.check_batch()
    return BatchReader(found, spark_schema(found))


def stream_reader(path: Path | str, **options: Any) -> StreamReader:
    found = source_options(path, **options)
    found.check_stream()
    return StreamReader(found, spark_schema(found))


def rows_of(reader: BatchReader | StreamReader, splits: list[Any]) -> list[tuple[Any, ...]]:
    """(topic, partition, offset, value) of what tasks would read, one after another."""
    return [
        (row["topic"], row["partition"], row["offset"], row["value"])
        for split in splits
        for batch in reader.read(split)
        for row in batch.to_pylist()
    ]
