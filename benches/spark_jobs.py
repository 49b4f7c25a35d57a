"""What Spark is measured with: a session, a log of transactions, and the jobs that ours and the others do.

Functions that run in Spark's workers are made inside other functions: so they travel whole, and workers need not find
this package.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import oncelog

from .harness import FIRST_TIMESTAMP_MS, SEED, Scratch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOPIC: Final = "payments"
PARTITIONS: Final = 4
KEY_BYTES: Final = 16
VALUE_BYTES: Final = 100
PER_TRANSACTION: Final = 50_000
ABORT_EVERY: Final = 10
ROWS_PER_BATCH: Final = 1 << 15  # of what is ready-made


class _RolledBackError(Exception):
    """Ends a transaction that is meant to be aborted."""


def records(count: int, seed: int = SEED) -> pa.RecordBatch:
    """Keys and values as Arrow columns, without a loop."""
    rng = np.random.default_rng(seed)

    def column(size: int) -> pa.Array:
        offsets = np.arange(count + 1, dtype=np.int32) * size
        data = pa.py_buffer(rng.bytes(count * size))
        return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), data])

    return pa.record_batch({"key": column(KEY_BYTES), "value": column(VALUE_BYTES)})


def write_payments(path: Path, count: int) -> int:
    """A log of transactions over four partitions, every tenth aborted; returns how many records are committed."""
    committed = 0
    options = {"num.partitions": PARTITIONS}
    with oncelog.open(path, config=options) as log:
        log.create_topic(TOPIC, partitions=PARTITIONS)
        with log.producer(transactional_id="bench", batch_size=1 << 16) as producer:
            batch = records(min(count, PER_TRANSACTION))
            for number, start in enumerate(range(0, count, PER_TRANSACTION)):
                part = batch.slice(0, min(PER_TRANSACTION, count - start))
                try:
                    with producer.transaction():
                        producer.send_arrow(TOPIC, part)
                        if number % ABORT_EVERY == ABORT_EVERY - 1:
                            producer.flush()  # what is aborted before it was sent never reaches the log
                            raise _RolledBackError
                except _RolledBackError:
                    continue
                committed += part.num_rows
    return committed


@functools.cache
def payments(count: int) -> tuple[Scratch, int]:
    """The log that all cases of a run read; made once."""
    scratch = Scratch("spark")
    return scratch, write_payments(scratch.path / "log", count)


def make_session(folder: Path, jars: list[Path] | None = None) -> Any:
    """local[2], all of its files in one folder."""
    from pyspark.sql import SparkSession

    from oncelog.spark import register, use_java

    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("oncelog-benches")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
    )
    if jars:
        builder = builder.config("spark.jars", ",".join(map(str, jars)))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    return session


# ---------------------------------------------------------------- reads


def lengths(rows: Any) -> int:
    """The sum of the lengths of keys and values: a full read that gives back one number."""
    found = rows.selectExpr("sum(octet_length(key) + octet_length(value))").first()
    return int(found[0] or 0)


def read_ours(spark: Any, path: Path) -> int:
    """The job, with our source."""
    return lengths(spark.read.format("oncelog").option("subscribe", TOPIC).load(str(path)))


def ready_made(topic: str, count: int) -> pa.RecordBatch:
    """Rows as the source gives them, made beforehand."""
    rows = records(count)
    stamps = pa.array(np.full(count, FIRST_TIMESTAMP_MS * 1000), pa.timestamp("us", "UTC"))
    columns = {
        "key": rows.column("key"),
        "value": rows.column("value"),
        "topic": pa.repeat(pa.scalar(topic), count),
        "partition": pa.array(np.zeros(count, np.int32)),
        "offset": pa.array(np.arange(count)),
        "timestamp": stamps,
        "timestampType": pa.array(np.zeros(count, np.int32)),
    }
    return pa.record_batch(columns)


READY_SCHEMA: Final = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"


def register_ceiling(spark: Any, count: int) -> str:
    """A data source that does nothing but yield ready-made Arrow batches; returns its name."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    make, schema, topic, tasks, rows = ready_made, READY_SCHEMA, TOPIC, PARTITIONS, ROWS_PER_BATCH

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(tasks)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            left = count // tasks + (partition.value < count % tasks)
            batch = make(topic, min(left, rows))
            while left > 0:
                part = batch.slice(0, min(left, rows))
                yield part
                left -= part.num_rows

    class Ceiling(DataSource):
        @classmethod
        def name(cls) -> str:
            return f"ceiling{count}"

        def schema(self) -> str:
            return schema

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader()

    spark.dataSource.register(Ceiling)
    return Ceiling.name()


# ---------------------------------------------------------------- rows to write


class Written(NamedTuple):
    """What a sink has got, in numbers that no loss or repetition leaves as they were."""

    records: int
    key_bytes: int
    value_bytes: int


def read_back(path: Path, topic: str) -> Written:
    """What a reader at read_committed finds in a log."""
    totals = np.zeros(3, np.int64)
    with oncelog.open(path, read_only=True) as log:
        for number in range(PARTITIONS):
            for batch in log.read(topic, number).to_batches():
                sizes = [
                    pc.sum(pc.binary_length(batch.column(name))).as_py()
                    for name in ("key", "value")
                ]
                totals += [batch.num_rows, *(size or 0 for size in sizes)]
    return Written(*totals.tolist())


def register_counter(spark: Any) -> str:
    """A sink that does nothing but count the Arrow batches it is given; returns its name.

    It is the ceiling of every sink that is written in Python. Its commit leaves the totals in the folder it is given.
    """
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

    class Counts(WriterCommitMessage):
        def __init__(self, counts: list[int]) -> None:
            self.counts = counts

    class Counter(DataSourceArrowWriter):
        def __init__(self, folder: str) -> None:
            self._folder = folder

        def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
            rows = keys = values = 0
            for batch in iterator:
                key, value = batch.column("key"), batch.column("value")
                rows += batch.num_rows
                # The last offset less the first: as cheap as a count, and tells what came.
                ends = [np.frombuffer(each.buffers()[1], np.int32) for each in (key, value)]
                keys += int(ends[0][key.offset + len(key)] - ends[0][key.offset])
                values += int(ends[1][value.offset + len(value)] - ends[1][value.offset])
            return Counts([rows, keys, values])

        def commit(self, messages: list[Any]) -> None:
            import json
            from pathlib import Path

            totals = [sum(each) for each in zip(*(one.counts for one in messages), strict=True)]
            Path(self._folder, "counted.json").write_text(json.dumps(totals))

        def abort(self, messages: list[Any]) -> None:
            pass

    class Counting(DataSource):
        @classmethod
        def name(cls) -> str:
            return "counting"

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return Counter(self.options["path"])

    spark.dataSource.register(Counting)
    return Counting.name()


def counted_in(folder: Path) -> Written:
    """What the sink that counts has counted last."""
    return Written(*json.loads((folder / "counted.json").read_text()))


def rows_to_write(spark: Any, count: int) -> Any:
    """Keys of 16 B that all differ, and values of 100 B, as cheap as Spark makes them: sinks are measured, not this.

    Values are alike, which helps nobody here: no sink compresses.
    """
    return spark.range(0, count, 1, PARTITIONS).selectExpr(
        "binary(string(id + 1000000000000000)) AS key",
        f"binary(repeat('v', {VALUE_BYTES})) AS value",
    )
