"""Which rows a read_committed reader may see, as a UDF; and the index that it asks.

The index is made on the driver, sent once to each executor, and searched by native code over the columns as Spark
hands them over: (topic, partition, offset, producerId, attributes) → boolean.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import BooleanType

import oncelog
from oncelog import errors, kernels

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from pyspark.sql import Column

_functions: Any = sql  # which has more than its stubs know
_CONTROL: Final = 0x20
_TRANSACTIONAL: Final = 0x10
_ABORTED_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("producerId", pa.int64()),
        ("firstOffset", pa.int64()),
        ("lastOffset", pa.int64()),
        ("lastStableOffset", pa.int64()),
        ("file", pa.string()),
    ]
)


def aborted_transactions(spark: SparkSession, path: str | os.PathLike[str]) -> DataFrame:
    """Every aborted transaction that the ``.txnindex`` files of a log directory name, as of now.

    Columns: topic, partition, producerId, firstOffset, lastOffset (of the marker), lastStableOffset (right after
    it), file. The driver reads the files.
    """
    parts = []
    with oncelog.open(path, read_only=True) as log:
        for topic, partition, file, rows in kernels.aborted_by_file(log):
            count = len(rows)
            place = [
                pa.repeat(pa.scalar(topic), count),
                pa.repeat(pa.scalar(partition, pa.int32()), count),
            ]
            names = ("producer_id", "first_offset", "last_offset", "last_stable_offset")
            numbers = [pa.array(np.ascontiguousarray(rows[name])) for name in names]
            columns = [*place, *numbers, pa.repeat(pa.scalar(file), count)]
            parts.append(pa.RecordBatch.from_arrays(columns, schema=_ABORTED_SCHEMA))
    return spark.createDataFrame(pa.Table.from_batches(parts, _ABORTED_SCHEMA))


def index_of(aborted: Any) -> kernels.AbortedIndex:
    """An index from what callers have: a path, rows of aborted_transactions(), or an index."""
    if isinstance(aborted, kernels.AbortedIndex):
        return aborted
    if isinstance(aborted, str | os.PathLike):
        return kernels.aborted_index(aborted)
    if isinstance(aborted, DataFrame):
        return _index_of_rows(aborted)
    raise TypeError(
        "aborted transactions come as the path of a log directory, as the rows of aborted_transactions(), "
        f"or as an AbortedIndex, not as {type(aborted).__name__}"
    )


def _index_of_rows(rows: DataFrame) -> kernels.AbortedIndex:
    names = ["topic", "partition", "producerId", "firstOffset", "lastOffset"]
    missing = [name for name in names if name not in rows.columns]
    if missing:
        raise ValueError(f"the aborted transactions have no column {missing[0]}: {rows.columns}")
    table = rows.select(*names).toArrow()
    keys = list(zip(table["topic"].to_pylist(), table["partition"].to_pylist(), strict=True))
    partitions = sorted(set(keys))
    numbers = {key: number for number, key in enumerate(partitions)}
    places = np.array([numbers[key] for key in keys], np.int64)
    return kernels.AbortedIndex(partitions, None, places, aborted_rows(table))


def aborted_rows(table: pa.Table) -> NDArray[np.void]:
    """Transactions as native code has them."""
    kind = [(name, np.int64) for name in ("producer_id", "first_offset", "last_offset")]
    found = np.zeros(table.num_rows, np.dtype([*kind, ("last_stable_offset", np.int64)]))
    for field, name in zip(
        found.dtype.names[:3], ("producerId", "firstOffset", "lastOffset"), strict=True
    ):
        found[field] = table[name].to_numpy()
    return found


def judged(
    index: kernels.AbortedIndex,
    topic: Any,
    partition: Any,
    offset: Any,
    producer_id: Any,
    attributes: Any,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_] | None]:
    """(mask, nulls): the rule over columns of Arrow or numpy."""
    places = index.places(topic, partition)
    if index.is_complete and (unknown := places == -1).any():
        row = int(unknown.argmax())
        raise errors.UnknownTopicOrPartitionError(
            f"row {row}: the aborted transactions are those of a directory without partition "
            f"{topic[row]}-{partition[row]}; give the directory that the rows come from"
        )
    return index.visible(places, offset, producer_id, attributes)


class _Held:
    """A value that goes along with the function where there is no broadcast: under Spark Connect."""

    def __init__(self, value: Any) -> None:
        self.value = value


def shared(value: Any) -> Any:
    """Something whose ``value`` executors have: sent once to each of them where Spark can."""
    spark = SparkSession.getActiveSession()
    try:
        return _Held(value) if spark is None else spark.sparkContext.broadcast(value)
    except Exception as error:  # a session without a context of this process
        if type(error).__module__.startswith("pyspark.errors"):
            return _Held(value)
        raise


def is_visible(aborted: Any, *, vectorized: str | None = None) -> Callable[..., Column]:
    """A UDF of (topic, partition, offset, producerId, attributes): whether a read_committed reader sees the record.

    Not control records, not records of aborted transactions, and none from the last stable offset on where
    ``aborted`` is a directory. ``aborted`` is the path of a log directory, the rows of aborted_transactions(), or an
    index. Where the place, offset or attributes are null, so is the answer; a null producer id is none.

    ``vectorized`` is "arrow" (the default where Spark has arrow_udf) or "pandas". pandas has no null integers: a
    column with nulls comes as floats, which are exact up to 2^53 only.

    >>> seen = is_visible("data")  # doctest: +SKIP
    >>> rows.where(
    ...     seen("topic", "partition", "offset", "producerId", "attributes")
    ... )  # doctest: +SKIP
    """
    arrow_udf = getattr(sql, "arrow_udf", None)
    kind = vectorized or ("pandas" if arrow_udf is None else "arrow")
    if kind not in ("arrow", "pandas") or (kind == "arrow" and arrow_udf is None):
        raise ValueError(
            f"vectorized is 'pandas', or 'arrow' from Spark 4.1 on, not {vectorized!r}"
        )
    held = shared(index_of(aborted))

    def of_arrow(
        topic: pa.Array,
        partition: pa.Array,
        offset: pa.Array,
        producer_id: pa.Array,
        attributes: pa.Array,
    ) -> pa.Array:
        mask, nulls = judged(held.value, topic, partition, offset, producer_id, attributes)
        return pa.array(mask, mask=nulls)

    def of_pandas(
        topic: pd.Series,
        partition: pd.Series,
        offset: pd.Series,
        producer_id: pd.Series,
        attributes: pd.Series,
    ) -> pd.Series:
        columns = (topic, partition, offset, producer_id, attributes)
        mask, nulls = judged(held.value, *(column.to_numpy() for column in columns))
        return pd.Series(mask if nulls is None else pd.arrays.BooleanArray(mask, nulls))

    made: Callable[..., Column] = (
        arrow_udf(of_arrow, BooleanType())
        if kind == "arrow" and arrow_udf is not None
        else _functions.pandas_udf(of_pandas, BooleanType())
    )
    return made


def visible(df: DataFrame, path: Any) -> DataFrame:
    """The rows of a DataFrame that a read_committed reader sees; ``path`` is a log directory, or as in is_visible().

    The rows have topic, partition, offset, producerId, and attributes or isTransactional (and isControl), as the
    source gives with ``includeProducer`` and decode_batches() with ``producer=True``.
    """
    missing = [
        name for name in ("topic", "partition", "offset", "producerId") if name not in df.columns
    ]
    if not missing and not {"attributes", "isTransactional"}.intersection(df.columns):
        missing = ["attributes (or isTransactional)"]
    if missing:
        raise ValueError(
            f"the rows have no column {missing[0]}: read them with the columns of their producers, "
            f"or use the source with isolationLevel=read_committed (they have {', '.join(df.columns)})"
        )
    seen = is_visible(path)
    return df.where(seen("topic", "partition", "offset", "producerId", _attributes(df)))


def _attributes(df: DataFrame) -> Column:
    """The flags that matter, from whatever columns tell them."""
    if "attributes" in df.columns:
        return df["attributes"].cast("int")
    flags = sql.when(df["isTransactional"], _TRANSACTIONAL).otherwise(0)
    if "isControl" in df.columns:
        flags = flags + sql.when(df["isControl"], _CONTROL).otherwise(0)
    return flags
