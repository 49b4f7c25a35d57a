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

    from pyspark.sql import Column, DataFrame, SparkSession

LEVELS = ("read_committed", "read_uncommitted")


CHECKPOINTS = ("log-start-offset-checkpoint", "recovery-point-offset-checkpoint")
CLEAN = ".kafka_cleanshutdown"


class Directory:
    """A log directory with the partitions of one case, or of some that have no name in common."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cases: dict[str, str] = {}  # by the name of a partition

    @property
    def assignment(self) -> str:
        found: dict[str, list[int]] = {}
        for name in self.cases:
            key = parse_directory(name)
            found.setdefault(key.topic, []).append(key.partition)
        return json.dumps(found)

    @property
    def case_of_row(self) -> Column:
        """The case that a row's partition is of."""
        pairs = [sql.lit(text) for pair in self.cases.items() for text in pair]
        return sql.create_map(*pairs)[sql.concat_ws("-", "topic", "partition")]


def names_of(case: str) -> list[str]:
    return [golden.name for golden in PARTITIONS if golden.case == case]


def separate() -> list[Directory]:
    """The directories as the broker left them."""
    found = []
    for case in CASES:
        directory = Directory(GOLDEN / case / "data")
        directory.cases = dict.fromkeys(names_of(case), case)
        found.append(directory)
    return [directory for directory in found if directory.cases]


def gathered(folder: Path) -> list[Directory]:
    """The same partitions in as few directories as their names allow. A stream has a Python process for each."""
    found: list[Directory] = []
    for case in CASES:
        names, source = names_of(case), GOLDEN / case / "data"
        is_clean = (source / CLEAN).exists()
        for directory in found:
            fits = not set(names) & set(directory.cases)
            if fits and (directory.path / CLEAN).exists() == is_clean:
                break
        else:
            directory = Directory(folder / f"log-{len(found)}")
            directory.path.mkdir()
            for name in ("meta.properties", *[CLEAN] * is_clean):
                (directory.path / name).write_bytes((source / name).read_bytes())
            found.append(directory)
        for name in names:
            (directory.path / name).symlink_to(source / name)
        for name in CHECKPOINTS:
            merge_checkpoint(directory.path / name, source / name, names)
        directory.cases |= dict.fromkeys(names, case)
    return [directory for directory in found if directory.cases]


def merge_checkpoint(target: Path, source: Path, names: list[str]) -> None:
    """Adds what one checkpoint says of some partitions to another."""
    if not source.exists():
        return
    rows = target.read_text().splitlines()[2:] if target.exists() else []
    added = source.read_text().splitlines()[2:]
    rows += [row for row in added if "-".join(row.split()[:2]) in names]
    target.write_text("".join(f"{line}\n" for line in (0, len(rows), *rows)))


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


def all_cases(
    reader: Any, directories: list[Directory], level: str, partitions_min: int
) -> DataFrame:
    """One DataFrame over all fixtures."""
    frames: list[DataFrame] = [
        reader.format("oncelog")
        .option("assign", directory.assignment)
        .option("startingOffsets", "earliest")
        .option("isolationLevel", level)
        .option("minPartitions", partitions_min)
        .option("includeHeaders", "true")
        .load(str(directory.path))
        .withColumn("case", directory.case_of_row)
        for directory in directories
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
    frame = all_cases(spark.read, separate(), level, partitions_min)
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
        all_cases(spark.readStream, gathered(tmp_path), level, partitions_min)
        .writeStream.format("memory")
        .queryName(name)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert rows_of(spark.table(name)) == wanted(level)
    spark.sql(f"DROP VIEW {name}")
