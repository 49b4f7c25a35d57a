"""Which payments were given up, and what became of them: committed and aborted records, joined.

A teller's transactions fail now and then, and are tried again. The log keeps what was aborted, invisible to its
consumers. Here both sides are read, the committed as every consumer sees them, the aborted as what `visible` leaves
out, and joined by the number of the payment.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

import oncelog
from oncelog.spark import register, use_java, visible

TOPIC = "payments"
PAYMENTS = 60
GIVEN_UP_EVERY = 5  # fails at the first try
LOST_EVERY = 20  # and is never tried again


class TimedOutError(Exception):
    """The bank did not answer."""


def write(path: Path) -> None:
    """Payments in transactions of one; some fail, most of those are repeated."""
    with oncelog.open(path) as log:
        log.create_topic(TOPIC, partitions=2)
        with log.producer(transactional_id="teller") as producer:

            def pay(number: int, attempt: int, fails: bool) -> None:
                with producer.transaction():
                    producer.send(
                        TOPIC, f"{number * 10},{attempt}".encode(), key=f"{number}".encode()
                    )
                    if fails:
                        producer.flush()  # what is aborted before it was sent never reaches the log
                        raise TimedOutError

            for number in range(PAYMENTS):
                if number % GIVEN_UP_EVERY == 0:
                    try:
                        pay(number, 1, fails=True)
                    except TimedOutError:
                        if number % LOST_EVERY == 0:
                            continue
                pay(number, 2 if number % GIVEN_UP_EVERY == 0 else 1, fails=False)


def session() -> SparkSession:
    use_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("committed and aborted")
    quiet = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
    spark = quiet.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def main() -> dict[str, int]:
    """Prints what was found, and returns its figures."""
    spark = session()
    with tempfile.TemporaryDirectory(prefix="oncelog-") as folder:
        path = Path(folder) / "data"
        write(path)
        everything = (
            spark.read.format("oncelog")
            .options(subscribe=TOPIC, isolationLevel="read_uncommitted", includeProducer="true")
            .load(str(path))
            .withColumn("payment", sql.col("key").cast("string").cast("int"))
            .withColumn("amount", sql.split(sql.col("value").cast("string"), ",")[0].cast("int"))
        )
        committed = visible(everything, path).select(
            "payment", "amount", sql.col("offset").alias("committed")
        )
        place = ["topic", "partition", "offset"]
        aborted = everything.join(
            visible(everything, path).select(*place), place, "left_anti"
        ).select("payment", sql.col("offset").alias("aborted"), "producerEpoch")
        joined = aborted.join(committed, "payment", "left").orderBy("payment").cache()
        joined.show(100)
        lost = joined.where("committed IS NULL")
        figures = {
            "committed": committed.count(),
            "aborted": aborted.count(),
            "lost": lost.count(),
        }
        numbers = sorted(row.payment for row in lost.select("payment").collect())
        print(f"{figures['aborted']} payments were given up; never repeated: {numbers}")
        joined.unpersist()
    return figures


if __name__ == "__main__":
    main()
    session().stop()
