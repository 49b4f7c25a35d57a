"""UDFs over single columns: checksums of raw batches, partitions of keys.

Each is one native call over the Arrow array that Spark hands over; null in, null out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as sql
from pyspark.sql.types import BooleanType, IntegerType

from oncelog import kernels

if TYPE_CHECKING:
    from pyspark.sql import Column

_functions: Any = sql  # which has more than its stubs know


def crc_ok(batches: Column | str) -> Column:
    """Whether a value consists of whole record batches whose checksums are right; null for null.

    Whatever is not a batch, or is cut off, is not right. An empty value holds nothing that is wrong.
    """

    def checked(values: pa.Array) -> pa.Array:
        mask, nulls = kernels.crc_ok_column(values)
        return pa.array(mask, mask=nulls)

    found: Column = _functions.arrow_udf(checked, BooleanType())(batches)
    return found


def partition_for_key(key: Column | str, partition_count: int) -> Column:
    """The partition that Kafka's producers choose for a key (murmur2); null for null, which has no fixed one.

    Keys are binary, or strings, which stand for their UTF-8 bytes.
    """
    if (
        isinstance(partition_count, bool)
        or not isinstance(partition_count, int)
        or partition_count < 1
    ):
        raise ValueError(f"a topic has at least one partition, not {partition_count!r}")

    def chosen(keys: pa.Array) -> pa.Array:
        rows = pa.RecordBatch.from_arrays([keys, keys], names=["key", "value"])
        found = kernels.key_partitions(rows, partition_count, -1)
        return pa.array(found, mask=found < 0)

    column: Column = _functions.arrow_udf(chosen, IntegerType())(key)
    return column
