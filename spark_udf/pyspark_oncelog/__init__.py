"""Spark imports every module whose name starts with ``pyspark_`` to find data sources; this is how it finds ours."""

from oncelog.spark.source import OncelogDataSource as DefaultSource

__all__ = ["DefaultSource"]
