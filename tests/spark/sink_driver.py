"""A Spark application that streams files of lines into a log, one file a batch, and may be killed anywhere.

``python -m tests.spark.sink_driver <folder>``: lines of ``<folder>/input`` to topic ``out`` of ``<folder>/log``, with
the checkpoint in ``<folder>/checkpoint``; ends when all files are written.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from oncelog.spark.java import use_java

from .killing import DRIVER, KillingDataSource


def main(folder: Path) -> None:
    os.environ[DRIVER] = str(os.getpid())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    use_java()
    spark = (
        SparkSession.builder.master("local[2,4]")  # tasks may be tried again, and are
        .config("spark.ui.enabled", "false")
        # It lives for seconds: what makes a long life fast would only make it start late.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(KillingDataSource)
    lines = (
        spark.readStream.format("text")
        .option("maxFilesPerTrigger", "1")
        .load(str(folder / "input"))
        .repartition(2)
    )
    query = (
        lines.selectExpr("value AS key", "value")
        .writeStream.format("oncelog")
        .option("topic", "out")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "log"))
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
