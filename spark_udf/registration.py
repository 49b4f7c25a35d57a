"""Makes ``format("oncelog")`` known to a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Registers the data source "oncelog".

    Where oncelog is installed for the Python of the driver, Spark finds it by itself, through the module
    ``pyspark_oncelog``; a session that was told not to look, or looked before, is told here.
    """
    from .source import OncelogDataSource

    spark.dataSource.register(OncelogDataSource)
