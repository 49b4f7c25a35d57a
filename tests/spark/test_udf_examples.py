"""The examples for Spark run from a clone, and their figures are right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples import spark_committed_aborted, spark_forensics
from tests.golden_cases import PARTITIONS

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from pyspark.sql import SparkSession


def test_forensics_finds_what_kafka_says_of_the_sample(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    found = spark_forensics.main()
    said = [
        one.expected
        for one in PARTITIONS
        if one.case == "txn-mixed" and not one.name.startswith("_")
    ]
    assert found["records"] == sum(len(one["readUncommitted"]) for one in said)
    assert found["committed"] == sum(len(one["readCommittedOffsets"]) for one in said)
    assert found["unsound"] == 0
    assert found["aborted"] > 0
    assert "Transactions that came to nothing" in capsys.readouterr().out


def test_forensics_tells_a_damaged_segment_and_goes_on(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: one broken file does not end an investigation.
    Method: a copy of the sample with one flipped byte."""
    for source in spark_forensics.SAMPLE.rglob("*"):
        target = tmp_path / source.relative_to(spark_forensics.SAMPLE)
        if source.is_file() and not source.name.startswith("."):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    broken = min((tmp_path / "side-1").glob("*.log"))
    content = bytearray(broken.read_bytes())
    content[70] ^= 1
    broken.write_bytes(content)
    headers = spark_forensics.segments(spark, tmp_path)
    assert [row.path.split("/")[-2] for row in spark_forensics.unsound(headers).collect()] == [
        "side-1"
    ]


def test_committed_and_aborted_payments_are_joined(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    found = spark_committed_aborted.main()
    assert found == {"committed": 57, "aborted": 12, "lost": 3}
    assert "never repeated: [0, 20, 40]" in capsys.readouterr().out
