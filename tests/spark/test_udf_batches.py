"""Raw batches become headers and records in Spark, as Kafka's own tools and consumers saw them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as sql

from oncelog.spark import (
    aborted_transactions,
    batch_headers,
    crc_ok,
    decode_batches,
    partition_for_key,
    visible,
)
from tests.golden_cases import GOLDEN, LOGS, PARTITIONS, expected_seen, seen

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.golden_cases import GoldenPartition

DAMAGED = "killed"  # logs that end in torn or overwritten batches
# Spark passes over folders whose names begin with an underscore, and with them over Kafka's own topics.
SOUND = [one for one in PARTITIONS if one.case != DAMAGED and not one.name.startswith("_")]
MIXED = GOLDEN / "txn-mixed" / "data"


@pytest.fixture(scope="module")
def segments(spark: SparkSession) -> DataFrame:
    """Every sound segment of the golden directories; topics are told apart by the case they are of."""
    files = (
        spark.read.format("binaryFile")
        .option("pathGlobFilter", "*.log")
        .option("recursiveFileLookup", "true")
        .load(str(GOLDEN))
        .where(~sql.col("path").rlike(f"/{DAMAGED}/|/__cluster_metadata-"))
    )
    place = r"([^/]+)/data/(.+)-(\d+)/[^/]+$"
    case, topic, number = (sql.regexp_extract("path", place, group) for group in (1, 2, 3))
    return files.select(
        "content",
        "path",
        sql.concat_ws("/", case, topic).alias("topic"),
        number.cast("int").alias("partition"),
    )


def rows_of(records: DataFrame) -> dict[str, list[tuple[Any, ...]]]:
    """(offset, timestamp, type, key, value, headers) of each partition, by offset."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    times = records.withColumn("ms", sql.unix_millis("timestamp"))
    for row in times.orderBy("topic", "partition", "offset").collect():
        pairs = [(pair.key, seen(pair.value)) for pair in row.headers or []]
        found.setdefault(f"{row.topic}-{row.partition}", []).append(
            (row.offset, row.ms, row.timestampType, seen(row.key), seen(row.value), pairs)
        )
    return found


def told(partition: GoldenPartition, *, committed: bool) -> list[tuple[Any, ...]]:
    """What a consumer of Kafka's got."""
    said = partition.expected
    shown = set(said["readCommittedOffsets"])
    return [
        (
            record["offset"],
            record["timestamp"],
            ["CreateTime", "LogAppendTime"].index(record["timestampType"]),
            expected_seen(record["key"]),
            expected_seen(record["value"]),
            [(name, expected_seen(value)) for name, value in record["headers"]],
        )
        for record in said["readUncommitted"]
        if not committed or record["offset"] in shown
    ]


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_segments_read_whole_decode_to_what_consumers_saw(segments: DataFrame, level: str) -> None:
    """Goal: batches from anywhere need no log around them: their own markers tell what was aborted.
    Method: all golden segments as binary files, in one job, against what Kafka's consumer got."""
    found = rows_of(decode_batches(segments, level, column="content"))
    for partition in SOUND:
        start = partition.expected["logStartOffset"]
        rows = [row for row in found.get(str(partition), []) if row[0] >= start]
        assert rows == told(partition, committed=level == "read_committed"), partition


def test_an_index_of_the_directory_tells_the_same_as_the_markers(spark: SparkSession) -> None:
    """Goal: the three ways to say what was aborted agree.
    Method: by markers, by the directory, by a DataFrame of its indexes; topic and partition from the path alone."""
    files = spark.read.format("binaryFile").load(str(MIXED / "mixed-0" / "*.log"))
    found = [rows_of(decode_batches(files)), rows_of(decode_batches(files, aborted=MIXED))]
    (partition,) = (one for one in SOUND if str(one) == "txn-mixed/mixed-0")
    assert found[0] == found[1] == {"mixed-0": told(partition, committed=True)}
    aborted = aborted_transactions(spark, MIXED)
    by_rows = rows_of(decode_batches(files, aborted=aborted))["mixed-0"]
    stable = partition.expected["lastStableOffset"]
    assert [row for row in by_rows if row[0] < stable] == told(partition, committed=True)


def test_visible_leaves_of_all_records_those_that_a_consumer_sees(spark: SparkSession) -> None:
    files = spark.read.format("binaryFile").load(str(MIXED / "*-[0-9]" / "*.log"))
    chosen = files.where(sql.col("path").rlike("/(mixed|side)-"))
    everything = decode_batches(chosen, "read_uncommitted", producer=True)
    found = rows_of(visible(everything, MIXED))
    flags = rows_of(visible(everything.drop("attributes"), MIXED))
    for partition in SOUND:
        if partition.case == "txn-mixed" and partition.name.startswith(("mixed", "side")):
            assert found.get(partition.name, []) == told(partition, committed=True)
    assert flags == found


def test_headers_are_those_of_the_dump_tool(segments: DataFrame) -> None:
    """Goal: a header in Spark says what Kafka's DumpLogSegments says.
    Method: every batch of every golden segment that the tool was run on."""
    found: dict[str, list[Any]] = {}
    for row in batch_headers(segments, column="content").orderBy("file", "position").collect():
        found.setdefault(row.file.split("/golden/")[1].replace("/data/", "/"), []).append(row)
    judged = 0
    for log in LOGS:
        if log.case == DAMAGED or log.batches is None or log.partition.startswith("_"):
            continue
        rows = found.get(str(log), [])
        assert len(rows) == len(log.batches), log
        for row, batch in zip(rows, log.batches, strict=True):
            judged += 1
            said = (batch["baseOffset"], batch["lastOffset"], batch["position"], batch["crc"])
            assert (row.baseOffset, row.lastOffset, row.position, row.crc) == said
            assert row.crcOk
            assert (row.producerId, row.producerEpoch) == (
                batch["producerId"],
                batch["producerEpoch"],
            )
            assert (row.isTransactional, row.isControl) == (
                batch["isTransactional"],
                batch["isControl"],
            )
            assert (row.controlType is not None) == row.isControl
    assert judged > 100


def test_checksums_and_keys_are_judged_by_column_and_null_stays_null(spark: SparkSession) -> None:
    sound = (MIXED / "side-0").glob("*.log")
    content = next(iter(sound)).read_bytes()
    flipped = bytearray(content)
    flipped[70] ^= 1
    values: list[tuple[bytes | None, bytes | None]]
    values = [(content, b"21"), (bytes(flipped), b"foobar"), (content[:-1], None), (b"", b"")]
    values += [(None, b"abc"), (b"no batch at all", b"1")]
    rows = spark.createDataFrame(values, "batch binary, key binary")
    found = rows.select(crc_ok("batch"), partition_for_key("key", 7)).collect()
    assert [row[0] for row in found] == [True, False, False, True, None, False]
    # Java's own values of murmur2.
    hashes = (-973932308, -790332482, 479470107, -1993445489)
    assert [row[1] for row in found if row[1] is not None][:2] == [
        (number & 0x7FFFFFFF) % 7 for number in hashes[:2]
    ]
    assert [row[1] for row in found][4:] == [(number & 0x7FFFFFFF) % 7 for number in hashes[2:]]
    assert found[2][1] is None
    damaged = spark.createDataFrame([(bytes(flipped),)], "batch binary")
    headers = batch_headers(damaged).orderBy("position").collect()
    assert [row.crcOk for row in headers] == [False] + [True] * (len(headers) - 1)


@pytest.mark.parametrize("damage", ["flip", "cut", "zeros"])
def test_a_damaged_batch_fails_with_the_row_and_the_position(
    spark: SparkSession, tmp_path: Path, damage: str
) -> None:
    """Goal: whoever reads a thousand files learns which one is broken, and where.
    Method: break the last batch of the second of two files."""
    content = next(iter((MIXED / "side-0").glob("*.log"))).read_bytes()
    heads = batch_headers(spark.createDataFrame([(content,)], "batch binary"))
    last = max(row.position for row in heads.collect())
    broken = bytearray(content)
    if damage == "flip":
        broken[-1] ^= 1
    elif damage == "cut":
        del broken[-2:]
    else:
        broken[last:] = bytes(len(broken) - last)
    folder = tmp_path / "side-0"
    folder.mkdir()
    (folder / "a.log").write_bytes(content)
    (folder / "b.log").write_bytes(broken)
    files = spark.read.format("binaryFile").load(str(folder)).coalesce(1).orderBy("path")
    job = decode_batches(files, "read_uncommitted")
    with pytest.raises(PythonException, match=rf"row 1, file:.*/side-0/b.log, position {last}\b"):
        job.count()


def test_misuse_is_refused_on_the_driver(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(b"", b"", 1)], "a binary, b binary, number int")
    with pytest.raises(
        ValueError, match="say with column= which column holds the batches; binary ones: a, b"
    ):
        batch_headers(rows)
    with pytest.raises(ValueError, match="'number' is not binary; binary ones: a, b"):
        decode_batches(rows, column="number")
    with pytest.raises(ValueError, match="isolation_level is read_committed or read_uncommitted"):
        decode_batches(rows, "committed", column="a")
    with pytest.raises(TypeError, match="aborted transactions come as the path"):
        decode_batches(rows, column="a", aborted=3)
    with pytest.raises(
        ValueError, match="no column topic: read them with the columns of their producers"
    ):
        visible(rows, MIXED)
    with pytest.raises(ValueError, match="at least one partition, not 0"):
        partition_for_key("a", 0)
