"""What does Spark pay for our source, our UDFs and our sink?
Times    read     all records of a log of transactions, a tenth aborted, to the sum of their lengths (read_committed)
         visible  the rule of read_committed as a UDF over (topic, partition, offset, producerId, attributes)
         decode   whole segments, read as binary files, to records (read_committed)
         sink     rows into a log, committed exactly once; what was written is read back and compared
Excludes the start of Spark and of its workers.
Anchor   what the same job costs when the Python side does nothing: ready-made Arrow batches, a constant. Spark's own
         Kafka source and sink need a broker: make bench-kafka.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from . import spark_jobs as jobs
from .harness import Case, Contestant, Role, Scratch, Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_benchmark.fixture import BenchmarkFixture

    from .harness import Settings

RECORDS = 2_000_000
FEW = 4_000
COLUMNS = ("topic", "partition", "offset", "producerId", "attributes")
PRODUCERS = 50
ABORTED = 2_000


@functools.cache
def _spark() -> tuple[Any, Scratch]:
    """One Spark for all cases, started by the first that runs."""
    scratch = Scratch("spark-session")
    return jobs.make_session(scratch.path), scratch


@functools.cache
def _missing() -> str:
    from oncelog.spark.java import JavaNotFoundError, find_java

    try:
        find_java()
    except JavaNotFoundError as error:
        return str(error)
    return ""


def _contestant(name: str, role: Role, call: Callable[[], object], **more: Any) -> Contestant:
    """One that is named only where Spark is not to be had."""
    missing = _missing()
    return Contestant(name, role, None if missing else call, missing=missing, **more)


# ---------------------------------------------------------------- source


def _read(count: int) -> Case:
    def ours() -> int:
        scratch, _ = jobs.payments(count)
        return jobs.read_ours(_spark()[0], scratch.path / "log")

    def ceiling() -> int:
        spark, committed = _spark()[0], jobs.payments(count)[1]
        return jobs.lengths(spark.read.format(jobs.register_ceiling(spark, committed)).load())

    return Case(
        "spark.read.100B",
        "Spark reads 100 B, read_committed",
        Unit.NS_PER_RECORD,
        count,
        [
            _contestant("oncelog", Role.OURS, ours, reveal=ours),
            _contestant("ready-made batches", Role.LIMIT, ceiling, reveal=ceiling),
        ],
    )


# ---------------------------------------------------------------- is_visible


def _rows(spark: Any, count: int) -> Any:
    """Rows as a source with producer columns would give them; all transactional, producers take turns."""
    return spark.range(0, count, 1, 2).selectExpr(
        f"'{jobs.TOPIC}' AS topic",
        f"int(id % {jobs.PARTITIONS}) AS partition",
        "id AS offset",
        f"id DIV 10 % {PRODUCERS} AS producerId",
        "smallint(16) AS attributes",
    )


@functools.cache
def _index(count: int) -> Any:
    """Aborted transactions that a tenth of the rows belong to."""
    from oncelog import kernels

    places = [(jobs.TOPIC, number) for number in range(jobs.PARTITIONS)]
    span = max(count // ABORTED, 10)
    rows = np.zeros(len(places) * ABORTED, np.dtype([(name, np.int64) for name in (
        "producer_id", "first_offset", "last_offset", "last_stable_offset")]))  # fmt: skip
    numbers = np.arange(len(rows)) // len(places)
    rows["producer_id"] = numbers % PRODUCERS
    rows["first_offset"] = numbers * span
    rows["last_offset"] = numbers * span + 5 * span
    return kernels.AbortedIndex(
        places, [count] * len(places), np.arange(len(rows)) % len(places), rows
    )


def _plain_rule(count: int) -> Callable[..., bool]:
    """The same rule as one would write it for udf(): a row at a time."""
    ranges: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
    _, (partitions, _, places, rows) = _index(count).__reduce__()
    for place, row in zip(places.tolist(), rows.tolist(), strict=True):
        ranges.setdefault((*partitions[place], row[0]), []).append((row[1], row[2]))
    find = bisect.bisect_right

    def rule(topic: str, partition: int, offset: int, producer_id: int, attributes: int) -> bool:
        if attributes & 0x20 or offset >= count:
            return False
        if not attributes & 0x10:
            return True
        mine = ranges.get((topic, partition, producer_id), [])
        at = find(mine, (offset, 1 << 62))
        return at == 0 or mine[at - 1][1] < offset

    return rule


def _visible(count: int, kind: str) -> Case:
    @functools.cache
    def seen(name: str) -> Any:
        from pyspark.sql import functions as sql
        from pyspark.sql.types import BooleanType

        from oncelog.spark import is_visible

        vectorized: Any = sql  # which has more than its stubs know
        _spark()

        def constant_pandas(
            a: pd.Series, b: pd.Series, c: pd.Series, d: pd.Series, e: pd.Series
        ) -> pd.Series:
            return pd.Series(np.ones(len(a), np.bool_))

        def constant_arrow(
            a: pa.Array, b: pa.Array, c: pa.Array, d: pa.Array, e: pa.Array
        ) -> pa.Array:
            return pa.array(np.ones(len(a), np.bool_))

        if name == "ours":
            return is_visible(_index(count), vectorized=kind)
        if name == "plain":
            return sql.udf(_plain_rule(count), BooleanType(), useArrow=False)
        # Type hints are looked up where functions are made; these were given as words.
        for function, column in ((constant_pandas, pd.Series), (constant_arrow, pa.Array)):
            function.__annotations__ = dict.fromkeys(function.__annotations__, column)
        if kind == "pandas":
            return vectorized.pandas_udf(constant_pandas, BooleanType())
        return vectorized.arrow_udf(constant_arrow, BooleanType())

    def job(name: str) -> Callable[[], int]:
        def call() -> int:
            rows = _rows(_spark()[0], count)
            found = (
                rows.select(seen(name)(*COLUMNS).cast("int").alias("seen")).groupBy().sum("seen")
            )
            return int(found.first()[0])

        return call

    ours, plain = job("ours"), job("plain")
    return Case(
        f"spark.visible.{kind}",
        f"is_visible in Spark, {kind}",
        Unit.NS_PER_RECORD,
        count,
        [
            _contestant("oncelog", Role.OURS, ours, reveal=ours),
            _contestant("plain Python UDF", Role.PEER, plain, reveal=plain),
            _contestant("a constant", Role.LIMIT, job("constant")),
        ],
    )


# ---------------------------------------------------------------- decode_batches


def _decode(count: int) -> Case:
    def files(spark: Any) -> tuple[Any, str]:
        path = jobs.payments(count)[0].path / "log"
        return spark.read.format("binaryFile").load(f"{path}/{jobs.TOPIC}-*/*.log"), str(path)

    def ours() -> int:
        from oncelog.spark import decode_batches

        segments, path = files(_spark()[0])
        return jobs.lengths(decode_batches(segments, aborted=path))

    def ready() -> int:
        """Takes the same input, and yields ready-made rows in proportion to its bytes, as many in all as ours."""
        spark, committed = _spark()[0], jobs.payments(count)[1]
        segments, _ = files(spark)
        parts = {row.path: row.length for row in segments.select("path", "length").collect()}
        bounds = [
            int(at * committed) for at in np.cumsum([0, *parts.values()]) / sum(parts.values())
        ]
        rows_of = {
            path: end - start
            for path, (start, end) in zip(parts, itertools.pairwise(bounds), strict=True)
        }
        make, topic, rows = jobs.ready_made, jobs.TOPIC, jobs.ROWS_PER_BATCH

        def yielded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            batch = None
            for given in batches:
                for path in given.column("path").to_pylist():
                    left = rows_of[path]
                    while left > 0:
                        batch = make(topic, rows) if batch is None else batch
                        yield batch.slice(0, min(left, rows))
                        left -= rows

        return jobs.lengths(
            segments.select("content", "path").mapInArrow(yielded, jobs.READY_SCHEMA)
        )

    return Case(
        "spark.decode_batches.100B",
        "decode_batches of segments of 100 B, read_committed",
        Unit.NS_PER_RECORD,
        count,
        [
            _contestant("oncelog", Role.OURS, ours, reveal=ours),
            _contestant("ready-made batches", Role.LIMIT, ready, reveal=ready),
        ],
    )


# ---------------------------------------------------------------- sink


def _sink(count: int) -> Case:
    target: list[Scratch] = []

    def fresh() -> None:
        import oncelog

        target[:] = [Scratch("spark-sink")]
        with oncelog.open(target[0].path / "log") as log:
            log.create_topic(jobs.TOPIC, partitions=jobs.PARTITIONS)

    def ours() -> None:
        rows = jobs.rows_to_write(_spark()[0], count)
        rows.write.format("oncelog").option("topic", jobs.TOPIC).mode("append").save(
            str(target[0].path / "log")
        )

    def counted() -> None:
        spark = _spark()[0]
        rows = jobs.rows_to_write(spark, count)
        rows.write.format(jobs.register_counter(spark)).mode("append").save(str(target[0].path))

    def nowhere() -> None:
        jobs.rows_to_write(_spark()[0], count).write.format("noop").mode("overwrite").save()

    def written() -> jobs.Written:
        fresh()
        ours()
        return jobs.read_back(target[0].path / "log", jobs.TOPIC)

    def seen() -> jobs.Written:
        fresh()
        counted()
        return jobs.counted_in(target[0].path)

    return Case(
        "spark.sink.100B",
        "Spark writes 100 B, exactly once",
        Unit.NS_PER_RECORD,
        count,
        [
            _contestant("oncelog", Role.OURS, ours, reveal=written, setup=fresh),
            _contestant("a writer that counts", Role.LIMIT, counted, reveal=seen, setup=fresh),
            _contestant("no sink at all", Role.LIMIT, nowhere),
        ],
    )


def cases(settings: Settings) -> Iterator[Case]:
    count = FEW if settings.quick else RECORDS
    with contextlib.suppress(ModuleNotFoundError):  # without pyspark there is nobody to compare
        import pyspark  # noqa: F401

        yield _read(count)
        yield _visible(count, "arrow")
        yield _visible(count, "pandas")
        yield _decode(count)
        yield _sink(count)


def test_spark(benchmark: BenchmarkFixture, contestant: Contestant) -> None:
    benchmark(contestant.function())
