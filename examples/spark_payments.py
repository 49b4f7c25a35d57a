"""Payments through a fraud filter, exactly once: ``python examples/spark_payments.py``.

A log has payments in it, some of them in a transaction that was given up. A Spark stream reads what is committed, a
pandas UDF looks for fraud, and what passes goes to another topic of the same log. Then the query is stopped, more
payments arrive, and it goes on from its checkpoint. Every payment that passes is there once.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd  # noqa: TC002  (the UDF reads its own hints)
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import BooleanType

import oncelog
from oncelog.spark.java import use_java
from oncelog.spark.source import OncelogDataSource

if TYPE_CHECKING:
    from collections.abc import Iterable

LIMIT = 900.0


class ChangedMindError(Exception):
    """A transfer that is given up after its payments were sent."""


def pay(path: Path, numbers: Iterable[int], *, is_kept: bool = True) -> None:
    """Writes payments in one transaction, which is aborted unless it is kept."""
    with (
        oncelog.open(path) as log,
        log.producer(transactional_id="till") as producer,
    ):
        try:
            with producer.transaction():
                for number in numbers:
                    payment = {"id": number, "card": f"c{number % 7}", "amount": number * 37 % 1000}
                    producer.send(
                        "payments", key=b"%d" % number, value=json.dumps(payment).encode()
                    )
                if not is_kept:
                    raise ChangedMindError
        except ChangedMindError:
            pass


@pandas_udf(BooleanType())  # type: ignore[call-overload, untyped-decorator]
def is_suspect(card: pd.Series, amount: pd.Series) -> pd.Series:
    """Large payments, and any with a card that was reported stolen; a whole column at a time."""
    return (amount > LIMIT) | (card == "c3")


def run(spark: SparkSession, path: Path, checkpoint: Path) -> None:
    """Streams what is new from `payments` to `cleared`, and ends."""
    payments = (
        spark.readStream.format("oncelog")
        .option("subscribe", "payments")
        .option("startingOffsets", "earliest")
        .load(str(path))
    )
    parsed = payments.select(
        "key",
        "value",
        from_json(col("value").cast("string"), "id LONG, card STRING, amount DOUBLE").alias("p"),
    )
    cleared = parsed.where(~is_suspect(col("p.card"), col("p.amount"))).select("key", "value")
    query = (
        cleared.writeStream.format("oncelog")
        .option("topic", "cleared")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(str(path))
    )
    query.awaitTermination()


def passes(number: int) -> bool:
    """What the filter is for, said once more to check it."""
    return number * 37 % 1000 <= LIMIT and number % 7 != 3


def main(spark: SparkSession, folder: Path) -> list[int]:
    """Both runs; returns the payments that were cleared."""
    path = folder / "log"
    with oncelog.open(path) as log:
        log.create_topic("payments", partitions=3)
        log.create_topic("cleared", partitions=2)
    spark.dataSource.register(OncelogDataSource)
    pay(path, range(200))
    pay(path, range(1000, 1050), is_kept=False)
    run(spark, path, folder / "checkpoint")
    pay(path, range(200, 300))
    run(spark, path, folder / "checkpoint")
    with oncelog.open(path, read_only=True) as directory:
        found = [json.loads(record.value or b"")["id"] for record in directory.read("cleared")]
    return sorted(found)


if __name__ == "__main__":
    use_java()
    session = SparkSession.builder.master("local[2]").appName("payments").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as place:
        cleared = main(session, Path(place))
    expected = [number for number in range(300) if passes(number)]
    print(f"{len(cleared)} of 300 payments cleared, each once: {cleared == expected}")
    session.stop()
