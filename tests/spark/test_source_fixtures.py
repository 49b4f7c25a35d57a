"""Everything that a real broker wrote and its clients saw, read by Spark: batch and streaming, whole and in splits."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sql

from oncelog.segment.names import parse_directory

from ..golden_cases import CASES, GOLDEN, PARTITIONS, expected_seen, seen

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

LEVELS = ("read_committed", "read_uncommitted")


def assignment(case: str) -> str:
    found: dict[str, list[int]] = {}
    for golden in PARTITIONS:
        if golden.case == case:
            key = parse_directory(golden.name)
            found.setdefault(key.topic, []).append(key.partition)
    return json.dumps(found)


@functools.cache
def wanted(level: str) -> list[tuple[Any, ...]]:
    """What a consumer got of all fixtures, in the order of case, topic, partition and offset."""
    rows = []
    for golden in PARTITIONS:
        key, said = parse_directory(golden.name), golden.expected
        committed = set(said["readCommittedOffsets"])
        rows += [
            (
                golden.case,
                key.topic,
                key.partition,
                record["offset"],
                record["timestamp"] * 1000,
                {"CreateTime": 0, "LogAppendTime": 1}[record["timestampType"]],
                expected_seen(record["key"]),
                expected_seen(record["value"]),
                [(name, expected_seen(value)) for name, value in record["headers"]] or None,
            )
            for record in said["readUncommitted"]
            if level == "read_uncommitted" or record["offset"] in committed
        ]
    return sorted(rows, key=lambda row: row[:4])


def all_cases(reader: Any, level: str, partitions_min: int) -> DataFrame:
    """One DataFrame over all fixtures."""
    frames: list[DataFrame] = [
        reader.format("oncelog")
        .option("assign", assignment(case))
        .option("startingOffsets", "earliest")
        .option("isolationLevel", level)
        .option("minPartitions", partitions_min)
        .option("includeHeaders", "true")
        .load(str(GOLDEN / case / "data"))
        .withColumn("case", sql.lit(case))
        for case in CASES
    ]
    return functools.reduce(lambda left, right: left.union(right), frames)


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    found = frame.withColumn("timestamp", sql.unix_micros("timestamp")).collect()
    rows = [
        (
            row["case"],
            row["topic"],
            row["partition"],
            row["offset"],
            row["timestamp"],
            row["timestampType"],
            seen(None if row["key"] is None else bytes(row["key"])),
            seen(None if row["value"] is None else bytes(row["value"])),
            None
            if row["headers"] is None
            else [
                (header["key"], seen(None if header["value"] is None else bytes(header["value"])))
                for header in row["headers"]
            ],
        )
        for row in found
    ]
    return sorted(rows, key=lambda row: row[:4])


@pytest.mark.parametrize("partitions_min", [1, 7])
@pytest.mark.parametrize("level", LEVELS)
def test_a_batch_read_gives_what_a_consumer_got(
    spark: SparkSession, level: str, partitions_min: int
) -> None:
    frame = all_cases(spark.read, level, partitions_min)
    assert len(wanted(level)) > 2000
    assert rows_of(frame) == wanted(level)


@pytest.mark.parametrize("partitions_min", [1, 7])
@pytest.mark.parametrize("level", LEVELS)
def test_a_stream_gives_what_a_consumer_got(
    spark: SparkSession, tmp_path: Path, level: str, partitions_min: int
) -> None:
    """Goal: AvailableNow ends at the last stable offset, also behind control records and before open transactions."""
    name = f"all_{level}_{partitions_min}"
    query = (
        all_cases(spark.readStream, level, partitions_min)
        .writeStream.format("memory")
        .queryName(name)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert rows_of(spark.table(name)) == wanted(level)
    spark.sql(f"DROP VIEW {name}")
