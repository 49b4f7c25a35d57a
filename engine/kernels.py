"""oncelog.kernels: what oncelog computes over Arrow columns, for engines that call it with columns of their own.

scan_batches    headers and records of a column of raw record batches
crc_ok_column   which values of such a column are sound
key_partitions  partitions of keys, by Java's murmur2
AbortedIndex    which rows of many partitions a read_committed reader may see; pickled small, to be sent around
aborted_index, aborted_by_file, transaction_ends, index_of_ends   where an index comes from

Arrays come in through Arrow's C interface and are not copied; what comes out is numpy.
"""

from __future__ import annotations

from ._native.accumulator import key_partitions
from ._native.columns import AbortedIndex, crc_ok_column
from .client.batch_columns import (
    BatchColumn,
    Ends,
    aborted_by_file,
    aborted_index,
    index_of_ends,
    scan_batches,
    transaction_ends,
)

__all__ = [
    "AbortedIndex",
    "BatchColumn",
    "Ends",
    "aborted_by_file",
    "aborted_index",
    "crc_ok_column",
    "index_of_ends",
    "key_partitions",
    "scan_batches",
    "transaction_ends",
]
