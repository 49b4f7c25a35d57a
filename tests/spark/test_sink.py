"""The sink in Spark: what it writes, what it skips, and what it refuses in one clear sentence."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

import oncelog
from oncelog import staging
from oncelog.spark import sink
from oncelog.spark.source import OncelogDataSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def path(tmp_path: Path, spark: SparkSession) -> str:
    """A log with the topics `out` (3 partitions) and `other`."""
    spark.dataSource.register(OncelogDataSource)
    with oncelog.open(tmp_path / "log") as log:
        log.create_topic("out", partitions=3)
        log.create_topic("other")
    return str(tmp_path / "log")


def records(path: str, topic: str = "out") -> list[Any]:
    with oncelog.open(path, read_only=True) as log:
        return sorted(log.read(topic), key=lambda record: record.value or b"")


def values(path: str, topic: str = "out") -> list[str]:
    return [(record.value or b"").decode() for record in records(path, topic)]


def numbers(spark: SparkSession, count: int, start: int = 0) -> DataFrame:
    rows = spark.range(start, start + count, numPartitions=2)
    return rows.selectExpr("CAST(id AS STRING) AS key", "format_string('%04d', id) AS value")


def write(frame: DataFrame, path: str, mode: str = "append", **options: Any) -> None:
    options.setdefault("topic", "out")
    given = {name: value for name, value in options.items() if value is not None}
    frame.write.format("oncelog").mode(mode).options(**given).save(path)


def stream(frame: DataFrame, path: str, checkpoint: Path | str, **options: Any) -> None:
    """Runs a stream to its end; raises what stopped it."""
    options.setdefault("topic", "out")
    query = (
        frame.writeStream.format("oncelog")
        .options(**{name: value for name, value in options.items() if value is not None})
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(path)
    )
    query.awaitTermination(120)
    assert not query.isActive


def lines(spark: SparkSession, folder: Path, *texts: str) -> DataFrame:
    """A stream of files, a batch each."""
    folder.mkdir(exist_ok=True)
    known = len(list(folder.iterdir()))
    for number, text in enumerate(texts, known):
        (folder / f"{number}.txt").write_text(text)
    return spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(folder))


def staged_folders(path: str) -> list[str]:
    return [entry.name for entry in Path(path + ".staging").iterdir()]


# ---------------------------------------------------------------- what is written


def test_a_frame_with_all_columns_is_written_as_spark_s_kafka_sink_would(
    spark: SparkSession, path: str
) -> None:
    frame = spark.sql(
        """SELECT * FROM VALUES
          ('out', 2, CAST('k' AS BINARY), CAST('a' AS BINARY), array(struct('h' AS key, CAST('1' AS BINARY) AS value)), 1),
          ('other', CAST(NULL AS INT), NULL, CAST('b' AS BINARY), NULL, 2),
          ('out', 0, NULL, NULL, array(), 3)
        AS t(topic, partition, key, value, headers, ignored)"""
    )
    write(frame, path, topic=None, compression="zstd")
    tombstone, first = records(path)
    assert (first.key, first.value, first.partition) == (b"k", b"a", 2)
    assert list(first.headers) == [("h", b"1")]
    assert (tombstone.key, tombstone.value, tombstone.partition) == (None, None, 0)
    assert values(path, "other") == ["b"]
    assert staged_folders(path) == []


def test_a_batch_write_with_the_same_name_and_version_happens_once(
    spark: SparkSession, path: str
) -> None:
    named: dict[str, Any] = {"txnAppId": "nightly", "txnVersion": 4}
    write(numbers(spark, 30), path, **named)
    write(numbers(spark, 30), path, **named)
    write(numbers(spark, 10, 30), path, txnAppId="nightly", txnVersion=5)
    assert values(path) == [f"{number:04}" for number in range(40)]
    with pytest.raises(Exception, match=r"batch 4 .*older than batch 5"):
        write(numbers(spark, 30), path, **named)
    write(numbers(spark, 1, 40), path)  # without a name: as often as it is run
    write(numbers(spark, 1, 40), path)
    assert values(path)[40:] == ["0040", "0040"]
    assert staged_folders(path) == []


def test_a_stream_goes_on_from_its_checkpoint_and_its_token_knows_its_query(
    spark: SparkSession, path: str, tmp_path: Path
) -> None:
    """Goal: batches in order, once each; a checkpoint that is behind, or another one, is refused with advice.
    Method: run, run again with more input, then bring in an older checkpoint and a new one."""
    folder, checkpoint = tmp_path / "input", tmp_path / "checkpoint"
    named = {"txnAppId": "fraud"}
    stream(lines(spark, folder, "a\nb", "c"), path, checkpoint, durability="fsync", **named)
    assert values(path) == ["a", "b", "c"]
    stream(lines(spark, folder, "d"), path, f"file://{checkpoint}", **named)
    assert values(path) == ["a", "b", "c", "d"]
    with staging.open_log(path) as log:
        token = staging.read_token(log, "fraud")
    assert token is not None
    assert token.batch == 2
    assert token.query in (checkpoint / "metadata").read_text()
    # Spark forgets its last commit: it runs the batch again, and the sink skips it.
    for name in ("2", ".2.crc"):
        (checkpoint / "commits" / name).unlink()
    stream(lines(spark, folder), path, checkpoint, **named)
    assert values(path) == ["a", "b", "c", "d"]
    # A checkpoint that is two batches behind.
    for kind in ("commits", "offsets"):
        for name in ("1", ".1.crc", "2", ".2.crc"):
            (checkpoint / kind / name).unlink()
    with pytest.raises(Exception, match=r"batch 1 .*older than batch 2"):
        stream(lines(spark, folder), path, checkpoint, **named)
    with pytest.raises(Exception, match=r"choose another txnAppId"):
        stream(lines(spark, folder), path, tmp_path / "new", **named)
    stream(
        lines(spark, folder), path, tmp_path / "newer", topic="other"
    )  # named by its own checkpoint
    assert values(path, "other") == ["a", "b", "c", "d"]
    assert values(path) == ["a", "b", "c", "d"]


# ---------------------------------------------------------------- attempts that fail


class Failing(sink.BatchWriter):
    """Stages twice for each partition, and reports once; the first attempt of one task dies half way."""

    def write(self, iterator: Iterator[Any]) -> Any:
        from pyspark import TaskContext

        rows = list(iterator)
        super().write(iter(rows))  # an attempt whose report is lost
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 1 and context.attemptNumber() == 0:

            def broken() -> Iterator[Any]:
                yield from rows
                raise RuntimeError("the executor is gone")

            super().write(broken())
        return super().write(iter(rows))


class FailingSource(DataSource):
    """Stands between Spark and the sink."""

    @classmethod
    def name(cls) -> str:
        return "failing"

    def writer(self, schema: Any, overwrite: bool) -> Any:
        real = sink.batch_writer(self.options, schema, overwrite)
        real.__class__ = Failing
        return real


def test_tasks_that_fail_and_stage_twice_leave_each_row_once(
    spark: SparkSession, path: str
) -> None:
    """Goal: only what was reported and collected is committed.
    Method: every partition is staged twice, one task dies after staging; local mode retries when told to."""
    spark.dataSource.register(FailingSource)
    frame = numbers(spark, 50)
    with pytest.raises(Exception, match="the executor is gone"):
        frame.write.format("failing").mode("append").option("topic", "out").save(path)
    assert values(path) == []
    frame.coalesce(1).write.format("failing").mode("append").option("topic", "out").save(path)
    assert values(path) == [f"{number:04}" for number in range(50)]


# ---------------------------------------------------------------- what is refused


REFUSED: list[tuple[str, dict[str, str | None], str]] = [
    ("value STRING", {"topic": None}, "Give the option 'topic', or a column"),
    ("value STRING", {"path": None}, "option path is missing"),
    ("value STRING", {"path": "s3a://bucket/log"}, "no path of a file system"),
    ("value STRING", {"txnAppId": "a"}, "txnAppId was given without txnVersion"),
    ("value STRING", {"txnVersion": "1"}, "txnVersion was given without txnAppId"),
    ("value STRING", {"txnAppId": "a", "txnVersion": "-1"}, "counts from 0"),
    ("value STRING", {"compression": "brotli"}, "option compression: is none or gzip"),
    ("value STRING", {"staging": "/proc/none"}, "staging folder /proc/none cannot be made"),
    ("key STRING", {}, "no column 'value', only key"),
    ("value INT", {}, "'value' must be string or binary, not int: cast it"),
    ("value VOID", {}, "'value' must be string or binary, not void"),
    ("value STRING, key VOID", {}, "'key' must be string or binary, not void"),
    ("value STRING, partition BIGINT", {}, "'partition' must be int, not bigint"),
    ("value STRING, topic INT", {"topic": None}, "'topic' must be string, not int"),
    ("value STRING, headers MAP<STRING, STRING>", {}, "'headers' must be array<struct<key:string"),
    (
        "value STRING, headers ARRAY<STRUCT<a: STRING, value: BINARY>>",
        {},
        "'headers' must be array",
    ),
]


@pytest.mark.parametrize(("columns", "options", "words"), REFUSED)
def test_what_cannot_be_written_is_refused_before_a_task_runs(
    path: str, columns: str, options: dict[str, str | None], words: str
) -> None:
    """Method: the writer is asked for as Spark does it when it plans a write."""
    given = {"path": path, "topic": "out"} | options
    schema = StructType.fromDDL(columns)
    assert isinstance(schema, StructType)
    with pytest.raises((ValueError, oncelog.errors.OncelogError)) as caught:
        sink.batch_writer({k: v for k, v in given.items() if v is not None}, schema, False)
    assert words in str(caught.value)


def test_a_refusal_stands_in_the_first_lines_of_what_spark_raises(
    spark: SparkSession, path: str, tmp_path: Path
) -> None:
    good = numbers(spark, 3)
    refused: list[tuple[Callable[[], None], str]] = [
        (lambda: write(good, path, mode="overwrite"), "never overwritten: use mode"),
        (lambda: write(good, path, topic="nowhere"), "no topic 'nowhere', only other, out"),
        (lambda: write(good, str(tmp_path / "none")), "there is no log at"),
        (lambda: write(good, path, topik="out"), "no option 'topik': did you mean topic"),
    ]
    for call, words in refused:
        with pytest.raises(Exception, match=words) as caught:
            call()
        assert words in str(caught.value)[:2500]
    assert values(path) == []


def test_a_stream_whose_checkpoint_cannot_be_seen_must_have_a_name(
    spark: SparkSession, path: str, tmp_path: Path
) -> None:
    """Method: the writer is asked as Spark asks it, with a checkpoint on a file system that is not mounted."""
    schema = numbers(spark, 1).schema
    options = {"path": path, "topic": "out", "checkpointLocation": "hdfs://far/checkpoint"}
    with pytest.raises(ValueError, match=r"hdfs://far/checkpoint cannot be read.*option txnAppId"):
        sink.stream_writer(options, schema, False)
    with pytest.raises(ValueError, match="a stream counts its batches itself"):
        sink.stream_writer({**options, "txnVersion": "1"}, schema, False)
    writer = sink.stream_writer({**options, "txnAppId": "far"}, schema, False)
    assert writer._token([], 3) == staging.Token("far", "", 3)
    query = (
        lines(spark, tmp_path / "input", "a")
        .groupBy("value")
        .count()
        .writeStream.format("oncelog")
        .outputMode("complete")
        .option("topic", "out")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start(path)
    )
    with pytest.raises(Exception, match=r"outputMode\('append'\)"):
        query.awaitTermination(60)


def test_rows_that_the_log_would_refuse_fail_the_job_with_their_reason(
    spark: SparkSession, path: str
) -> None:
    rows = numbers(spark, 3)
    for frame, words in (
        (rows.selectExpr("value", "'out' AS topic", "3 AS partition"), "partitions 0 to 2, not 3"),
        (rows.selectExpr("value", "'nowhere' AS topic"), "there is no topic 'nowhere'"),
        (rows.selectExpr("value", "CAST(NULL AS STRING) AS topic"), "a row has no topic"),
        (rows.selectExpr("repeat('x', 2000000) AS value", "'out' AS topic"), "max.message.bytes"),
    ):
        with pytest.raises(Exception, match=words):
            write(frame, path, topic=None)
    assert values(path) == []


def hold(path: str, ready: Any, release: Any) -> None:
    with oncelog.open(path):
        ready.set()
        release.wait(60)


def test_a_log_that_another_process_writes_is_an_error_that_names_it(
    spark: SparkSession, path: str
) -> None:
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    holder = context.Process(target=hold, args=(path, ready, release))
    holder.start()
    try:
        assert ready.wait(30)
        with pytest.raises(Exception, match=f"is held by process {holder.pid}"):
            write(numbers(spark, 3), path, lockTimeout="200ms")
    finally:
        release.set()
        holder.join()
    write(numbers(spark, 3), path)
    assert len(values(path)) == 3


def test_an_abort_after_the_commit_leaves_the_batch_where_it_is(
    spark: SparkSession, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: Spark aborts when a commit raises, and a commit may raise after it took effect.
    Method: commit, then abort the same, as the driver would; then abort a batch that never was."""
    options = {"path": path, "topic": "out", "txnAppId": "a", "txnVersion": "1"}
    writer = sink.batch_writer(options, numbers(spark, 1).schema, False)
    batches = numbers(spark, 5).toArrow().to_batches()
    message = writer.write(iter(batches))
    writer.commit([message])
    writer.abort([message, None])
    assert "is committed, and stays so" in caplog.text
    assert len(values(path)) == 5
    another = sink.batch_writer({**options, "txnVersion": "2"}, numbers(spark, 1).schema, False)
    another.abort([another.write(iter(batches)), None])
    assert staged_folders(path) == []
    with pytest.raises(oncelog.errors.StagingError, match="1 of 2 tasks did not say"):
        another.commit([another.write(iter(batches)), None])
    with staging.open_log(path):
        kept = another.write(iter(batches))
        another.abort([kept])  # cannot look: it is ours, and stays ours
        assert staged_folders(path) != []
    assert len(values(path)) == 5
