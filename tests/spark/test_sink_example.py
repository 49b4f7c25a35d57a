"""The example that writes: what it says it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from examples import spark_payments

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_every_payment_that_passes_the_filter_is_cleared_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    expected = [number for number in range(300) if spark_payments.passes(number)]
    assert 0 < len(expected) < 300
    assert spark_payments.main(spark, tmp_path) == expected
