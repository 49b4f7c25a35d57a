"""oncelog.spark: the log as a Spark data source, its exactly-once sink, and Arrow UDFs.

>>> oncelog.spark.register(spark)  # doctest: +SKIP
>>> spark.read.format("oncelog").option("subscribe", "payments").load("data")  # doctest: +SKIP

Only the public names of oncelog may be imported here, and pyspark nowhere else. Each name is imported when it is
first asked for, so that asking for one does not load what another needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .batches import batch_headers, decode_batches
    from .java import find_java, use_java
    from .registration import register
    from .source import OncelogDataSource
    from .udf import crc_ok, partition_for_key
    from .visibility import aborted_transactions, is_visible, visible

_HOMES: Final = {
    "OncelogDataSource": "source",
    "aborted_transactions": "visibility",
    "batch_headers": "batches",
    "crc_ok": "udf",
    "decode_batches": "batches",
    "find_java": "java",
    "is_visible": "visibility",
    "partition_for_key": "udf",
    "register": "registration",
    "use_java": "java",
    "visible": "visibility",
}

__all__ = [
    "OncelogDataSource",
    "aborted_transactions",
    "batch_headers",
    "crc_ok",
    "decode_batches",
    "find_java",
    "is_visible",
    "partition_for_key",
    "register",
    "use_java",
    "visible",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("pyspark", "pandas", "pyarrow"):
            raise
        raise ModuleNotFoundError(
            f"oncelog.spark.{name} needs {error.name}: pip install 'oncelog[spark]'",
            name=error.name,
        ) from error
    globals()[name] = found
    return found
