"""is_visible gives the same by Arrow and by pandas, keeps nulls, and refuses what it cannot know."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PythonException

from oncelog.spark import aborted_transactions, is_visible
from tests.golden_cases import GOLDEN, PARTITIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIXED = GOLDEN / "txn-mixed" / "data"
COLUMNS = ("topic", "partition", "offset", "producerId", "attributes")
SCHEMA = "topic string, partition int, offset long, producerId long, attributes int"


def test_arrow_and_pandas_judge_alike_and_null_stays_null(spark: SparkSession) -> None:
    """Goal: the two ways are one rule, for indexes of a directory and of rows.
    Method: rows inside and around each aborted transaction of a golden directory, and rows with nulls."""
    found = aborted_transactions(spark, MIXED)
    aborted = found.where("topic = 'mixed'").orderBy("lastOffset").collect()
    assert aborted
    assert found.columns == [
        *(
            "topic",
            "partition",
            "producerId",
            "firstOffset",
            "lastOffset",
            "lastStableOffset",
            "file",
        )
    ]
    assert all(row.file.endswith(".txnindex") and "/mixed-0/" in row.file for row in aborted)
    rows: list[tuple[object, ...]] = []
    expected: list[bool | None] = []
    for one in aborted:
        for offset in (one.firstOffset, one.lastOffset):
            rows += [
                ("mixed", 0, offset, one.producerId, 16),
                ("mixed", 0, offset, one.producerId, 0),
            ]
            rows += [("mixed", 0, offset, one.producerId, 48), ("mixed", 0, offset, None, 16)]
            rows += [("mixed", 0, offset, 10**9, 16)]
            expected += [False, True, False, True, True]
    rows += [(None, 0, 1, 1, 16), ("mixed", None, 1, 1, 16), ("mixed", 0, None, 1, 16)]
    rows += [("mixed", 0, 1, 1, None)]
    expected += [None] * 4
    given = spark.createDataFrame(rows, SCHEMA).coalesce(1)
    answers = given.select(
        is_visible(MIXED)(*COLUMNS),
        is_visible(MIXED, vectorized="pandas")(*COLUMNS),
        is_visible(found)(*COLUMNS),
    ).collect()
    (partition,) = (one for one in PARTITIONS if str(one) == "txn-mixed/mixed-0")
    stable = partition.expected["lastStableOffset"]
    for row, answer, known in zip(rows, answers, expected, strict=True):
        above = known is not None and isinstance(row[2], int) and row[2] >= stable
        assert list(answer) == [False if above else known] * 2 + [known], row


@pytest.mark.parametrize("vectorized", ["arrow", "pandas"])
def test_a_partition_that_the_directory_lacks_is_named(
    spark: SparkSession, vectorized: str
) -> None:
    rows = spark.createDataFrame([("mixed", 0, 1, 1, 16), ("other", 3, 1, 1, 16)], SCHEMA)
    seen = rows.coalesce(1).select(is_visible(MIXED, vectorized=vectorized)(*COLUMNS))
    with pytest.raises(PythonException, match=r"row 1: .* a directory without partition other-3"):
        seen.collect()


def test_another_kind_of_udf_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match=r"vectorized is 'pandas', or 'arrow' from Spark 4.1 on"):
        is_visible(MIXED, vectorized="rows")
