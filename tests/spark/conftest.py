"""One Spark for all tests of the room: a JVM takes seconds to start."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from pyspark.sql import SparkSession

from oncelog.spark.java import use_java

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """local[2], with workers of this Python and everything it writes in a folder of this run."""
    folder = tmp_path_factory.mktemp("spark")
    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("oncelog-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        # Many small queries: what compiles them to run fast takes longer than they do.
        .config("spark.sql.codegen.wholeStage", "false")
        .config(
            "spark.driver.extraJavaOptions",
            f"-Dderby.system.home={folder} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        )
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
