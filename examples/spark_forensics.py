"""What lies in a Kafka broker's directory, found out with Spark and without a broker.

python examples/spark_forensics.py [DIRECTORY]

Four questions to the files of a stopped or copied broker: is every batch sound, what is in each partition, who wrote
it, and which transactions came to nothing. Without a directory it looks at one that a real broker wrote, which comes
with the tests. Nothing is changed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from oncelog.spark import (
    aborted_transactions,
    batch_headers,
    crc_ok,
    decode_batches,
    register,
    use_java,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

SAMPLE = Path(__file__).resolve().parents[1] / "tests" / "golden" / "txn-mixed" / "data"


def session() -> SparkSession:
    use_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("forensics")
    quiet = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
    spark = quiet.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def segments(spark: SparkSession, directory: Path) -> DataFrame:
    """Every segment of users' topics as a row with its bytes; Kafka's own begin with an underscore."""
    files = spark.read.format("binaryFile").option("pathGlobFilter", "*.log")
    return files.load(f"{directory}/[^_]*-[0-9]*")


def unsound(files: DataFrame) -> DataFrame:
    """Segments with a batch that is cut off or fails its checksum."""
    return files.where(~crc_ok("content")).select("path", "length", "modificationTime")


def contents(headers: DataFrame) -> DataFrame:
    """What is in each partition."""
    return (
        headers.groupBy("topic", "partition")
        .agg(
            sql.count("*").alias("batches"),
            sql.sum(sql.when(~sql.col("isControl"), sql.col("recordCount"))).alias("records"),
            sql.count_if("isControl").alias("markers"),
            sql.min("baseOffset").alias("from"),
            sql.max("lastOffset").alias("to"),
            sql.sort_array(sql.collect_set("compression")).alias("codecs"),
        )
        .orderBy("topic", "partition")
    )


def writers(headers: DataFrame) -> DataFrame:
    """Who wrote, and how their transactions ended; -1 is nobody, a plain producer."""
    return (
        headers.groupBy("producerId")
        .agg(
            sql.max("producerEpoch").alias("epoch"),
            sql.count_if(~sql.col("isControl")).alias("batches"),
            sql.count_if(sql.col("controlType") == "COMMIT").alias("commits"),
            sql.count_if(sql.col("controlType") == "ABORT").alias("aborts"),
            sql.max("maxTimestamp").alias("last seen"),
        )
        .orderBy("producerId")
    )


def main(words: Sequence[str] = ()) -> dict[str, int]:
    """Prints the report, and returns its figures."""
    directory = Path(words[0]) if words else SAMPLE
    spark = session()
    files = segments(spark, directory)
    bad = unsound(files)
    print(f"{directory}: {files.count()} segments, {bad.count()} of them unsound")
    bad.show(truncate=False)
    sound = files.where(crc_ok("content"))
    headers = batch_headers(sound).cache()
    print("What is in each partition")
    contents(headers).show(truncate=False)
    print("Who wrote it")
    writers(headers).show()
    aborted = aborted_transactions(spark, directory)
    print("Transactions that came to nothing")
    aborted.drop("file").orderBy("topic", "partition", "lastOffset").show(100)
    figures = {
        "unsound": bad.count(),
        "aborted": aborted.count(),
        "records": decode_batches(sound, "read_uncommitted").count(),
        "committed": decode_batches(sound, aborted=str(directory)).count(),
    }
    print(
        f"{figures['committed']:,} of {figures['records']:,} records are there for a reader at read_committed"
    )
    headers.unpersist()
    return figures


if __name__ == "__main__":
    main(sys.argv[1:])
    session().stop()
