"""The source in queries that Spark runs: errors as the driver sees them, damage, live logs, restarts, a cluster."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest
from pyspark.errors import PySparkException

import oncelog
from oncelog.spark import OncelogDataSource, register

from .logs import make_log, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Of an error as Spark shows it: further down nobody reads.
FIRST_LINES = 12


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Topic t, two partitions, offsets 0 to 122, 80 committed records in each."""
    return make_log(tmp_path_factory.mktemp("queries") / "log", partitions=2, count=40)


def load(spark: SparkSession, path: Path | str, **options: Any) -> DataFrame:
    given = {"subscribe": "t", **options}
    return spark.read.format("oncelog").options(**given).load(str(path))


def condition_of(frame: DataFrame) -> str:
    """What Spark still checks itself."""
    plan: str = frame._jdf.queryExecution().executedPlan().toString()
    return next(line for line in plan.splitlines() if "Filter (" in line)


def first_lines(error: PySparkException) -> str:
    return "\n".join(str(error).splitlines()[:FIRST_LINES])


def test_the_source_is_found_by_its_name_and_can_be_registered(
    spark: SparkSession, path: Path
) -> None:
    pyspark_oncelog = importlib.import_module("pyspark_oncelog")

    assert pyspark_oncelog.DefaultSource is OncelogDataSource
    assert load(spark, path).count() == 160
    register(spark)
    frame = load(spark, path)
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    assert load(spark, path, minPartitions=7).rdd.getNumPartitions() >= 6


def test_a_schema_reads_fewer_columns(spark: SparkSession, path: Path) -> None:
    frame = (
        spark.read.format("oncelog").schema("offset long, value binary").option("subscribe", "t")
    ).load(str(path))
    assert frame.columns == ["offset", "value"]
    assert frame.agg({"offset": "max"}).collect()[0][0] == 121


def test_filters_are_pushed_where_spark_is_told_to(spark: SparkSession, path: Path) -> None:
    condition = "topic = 't' and partition = 1 and offset between 10 and 19 and length(value) > 0"
    plain = load(spark, path).filter(condition)
    assert plain.count() == 10
    assert "(partition#" in condition_of(plain)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = load(spark, path).filter(condition)
        assert pushed.collect() == plain.collect()
        assert "(partition#" not in condition_of(pushed)
        assert "length(value#" in condition_of(pushed)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startingOffset": "earliest"}, "did you mean startingOffsets?"),
        ({"subscribe": "nope"}, "has no topic 'nope', only t"),
        ({"startingOffsets": '{"t":{'}, "option startingOffsets: must be JSON such as"),
        ({"startingOffsets": '{"t":{"0":500,"1":0}}'}, "t-0 has offsets 0 to 123, not 500"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_told_in_the_first_lines_of_the_error(
    spark: SparkSession, path: Path, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        load(spark, path, **options).count()
    assert sentence in first_lines(caught.value)


def test_a_missing_path_is_told_in_the_first_lines_of_the_error(
    spark: SparkSession, path: Path
) -> None:
    with pytest.raises(PySparkException) as caught:
        load(spark, path / "nowhere").count()
    assert f"sees no directory {path / 'nowhere'}" in first_lines(caught.value)


def test_a_path_that_executors_cannot_see_is_an_error_that_says_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Method: the driver plans, and before tasks run the directory is moved away."""
    path = make_log(tmp_path / "log", count=5)
    frame = load(spark, path)
    frame._jdf.queryExecution().executedPlan().execute()
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    assert f"sees no directory {path}. Driver and executors all read" in str(caught.value)


# ---------------------------------------------------------------- damage


def damage(path: Path) -> tuple[str, int, range]:
    """Flips a bit in the value of a batch in the middle: its file, position and offsets."""
    file = path / "t-0" / "00000000000000000000.log"
    with oncelog.open(path, read_only=True) as log:
        rows = [row for _, window in log.read("t", 0)._windows() for row in window.rows]
    row = rows[1]  # of the first transaction's batches
    content = bytearray(file.read_bytes())
    content[int(row["position"] + row["size"]) - 5] ^= 1
    file.write_bytes(content)
    base = int(row["base_offset"])
    return str(file), int(row["position"]), range(base, base + int(row["last_offset_delta"]) + 1)


def test_a_damaged_batch_is_an_error_or_left_out_and_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Goal: fails naming file and position; with mode=permissive all others are read, and Spark's table of worker
    logs has a row for what was left out, as has the folder of bad records, however often it is read."""
    path = make_log(tmp_path / "log", count=40)
    file, position, gone = damage(path)
    with pytest.raises(PySparkException) as caught:
        load(spark, path).collect()
    assert f"{file}, position {position}" in str(caught.value)
    wanted = [*range(40), *range(82, 122)]
    assert set(gone) <= set(wanted)
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    try:
        lenient = load(
            spark, path, mode="permissive", minPartitions=3, badRecordsPath=str(tmp_path / "bad")
        ).select("offset")
        for _ in range(2):
            found = sorted(row[0] for row in lenient.collect())
            assert found == [each for each in wanted if each not in gone]
        logs = spark.tvf.python_worker_logs().collect()
    finally:
        spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")
    told = [row["msg"] for row in logs if row["logger"] == "oncelog.spark"]
    assert any(f"bytes at position {position} of {file}" in each for each in told)
    assert any("t-0: 1 damaged places" in each for each in told)
    (noted,) = spark.read.json(str(tmp_path / "bad")).collect()
    assert (noted.topic, noted.partition, noted.file, noted.position) == ("t", 0, file, position)
    assert noted.size > 0
    assert "checksum" in noted.reason


# ---------------------------------------------------------------- streaming


def test_a_live_log_is_followed_and_a_restart_goes_on_where_the_last_ended(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Goal: another process writes (this one); each run reads what is stable, once; a batch that was not committed is
    replayed with the same rows."""
    checkpoint = tmp_path / "checkpoint"

    def run(starting: str = "earliest") -> dict[int, list[int]]:
        """One query over what is there now: the offsets of each of its batches."""
        found: dict[int, list[int]] = {}

        def note(frame: DataFrame, batch: int) -> None:
            found[batch] = sorted(row[0] for row in frame.select("offset").collect())

        query = (
            spark.readStream.format("oncelog")
            .option("subscribe", "t")
            .option("startingOffsets", starting)
            .load(str(tmp_path / "log"))
            .writeStream.foreachBatch(note)
            .option("checkpointLocation", str(checkpoint / starting))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        return found

    with oncelog.open(tmp_path / "log") as log:
        log.create_topic("t", partitions=1)
        send(log, 10)
        with log.producer(transactional_id="open") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", value=b"later").result()
            assert run() == {0: [*range(10)]}
            producer.commit_transaction()
            assert run() == {1: [11]}
        assert run("latest") == {0: []}
        send(log, 3)
        for starting, batch in (("earliest", 1), ("latest", 0)):  # as if the driver had died
            for file in (checkpoint / starting / "commits").glob(f"*{batch}*"):
                file.unlink()
        assert run() == {1: [11], 2: [13, 14, 15]}
        assert run("latest") == {0: [], 1: [13, 14, 15]}


def test_data_that_retention_has_taken_ends_a_query_that_says_what_was_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = make_log(tmp_path / "log", count=10)

    def run(**options: str) -> None:
        query = (
            spark.readStream.format("oncelog")
            .options(subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="5", **options)
            .load(str(path))
            .writeStream.foreachBatch(lambda _, number: cut(number))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)

    def cut(number: int) -> None:
        if number == 1:
            with oncelog.open(path) as log:
                log.admin().delete_records({("t", 0): 25})

    with pytest.raises(PySparkException, match=r"offsets 10 to 14 of t-0 are gone"):
        run()
    run(failOnDataLoss="false")
    offsets = sorted(
        (tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda each: int(each.name)
    )
    assert json.loads(offsets[-1].read_text().splitlines()[-1]) == {"t": {"0": 33}}


# ---------------------------------------------------------------- a cluster

CLUSTER = """
    import sys
    from pyspark.sql import SparkSession
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.executor.memory", "512m")
        .getOrCreate()
    )
    frame = (
        spark.read.format("oncelog").option("subscribe", "t").option("minPartitions", 8).load(sys.argv[1])
    )
    tasks = frame.selectExpr("offset", "spark_partition_id() as task")
    found = tasks.selectExpr("count(*)", "sum(offset)", "count(distinct task)")
    print("found", *found.collect()[0])
    writer = (
        frame.select("key", "value")
        .write.format("oncelog")
        .option("topic", "out")
        .options(txnAppId="cluster", txnVersion=1)
        .mode("append")
    )
    for attempt in range(2):
        writer.save(sys.argv[1])
    spark.stop()
"""


def test_executors_in_processes_of_their_own_read_the_same_and_write_once(tmp_path: Path) -> None:
    """Goal: nothing is shared with the driver but the path. Method: a cluster of two executors, from a script."""
    path = make_log(tmp_path / "log", partitions=2, count=40)
    with oncelog.open(path) as log:
        log.create_topic("out", partitions=2)
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(CLUSTER))
    # The folder in which executors work is made in Spark's home: this test has one of its own.
    home = tmp_path / "home"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_DIRS": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, script, path],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        timeout=240,
        cwd=tmp_path,
    )
    words = next(
        (line for line in done.stdout.splitlines() if line.startswith("found")), done.stderr
    )
    count, total, tasks = map(int, words.split()[1:])
    assert (count, total) == (160, 2 * (sum(range(40)) + sum(range(82, 122))))
    assert tasks >= 4
    with oncelog.open(path, read_only=True) as log:
        wanted = sorted((record.key, record.value) for record in log.read("t"))
        assert sorted((record.key, record.value) for record in log.read("out")) == wanted, (
            done.stderr
        )
