"""The Spark job of the bank: copies every transfer into a ledger, exactly once, and adds both up.

It runs twice with the same checkpoint: the second run finds all of it done. Prints, as JSON, for each topic how many
records Spark sees in it and what they add up to.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pandas as pd  # noqa: TC002 - Spark reads the annotations
from pyspark.sql import SparkSession, functions
from pyspark.sql.types import LongType

import oncelog.spark

sql: Any = functions  # its types know no pandas_udf
ACCOUNTS, LEDGER = "accounts", "ledger"


def cents(values: pd.Series) -> pd.Series:
    """The amount of each transfer, a column at a time."""
    texts = values.str.decode("utf-8")
    return texts.str.extract(r'"cents": (-?\d+)', expand=False).astype("int64")


cents_of = sql.pandas_udf(cents, LongType())


def copy(spark: SparkSession, path: str, checkpoint: str) -> None:
    """Everything that is new in the accounts goes to the ledger, in one transaction with the note that it did."""
    rows = (
        spark.readStream.format("oncelog")
        .option("subscribe", ACCOUNTS)
        .option("startingOffsets", "earliest")
        .load(path)
    )
    query = (
        rows.where(cents_of("value") != 0)
        .select("key", "value")
        .writeStream.format("oncelog")
        .option("path", path)
        .option("topic", LEDGER)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main(path: str, checkpoint: str) -> None:
    oncelog.spark.use_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers need oncelog, too
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    oncelog.spark.register(spark)
    copy(spark, path, checkpoint)
    copy(spark, path, checkpoint)
    both = spark.read.format("oncelog").option("subscribe", f"{ACCOUNTS},{LEDGER}").load(path)
    found = (
        both.groupBy("topic")
        .agg(sql.count("*").alias("records"), sql.sum(cents_of("value")).alias("total"))
        .collect()
    )
    print(json.dumps({row["topic"]: [row["records"], row["total"]] for row in found}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
