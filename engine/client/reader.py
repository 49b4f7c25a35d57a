"""What one read returns: lazy, and open to everything that takes Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..segment.batch import DECODE_BYTES, decode, records
from ..segment.names import LOG
from .arrow import full_batch, full_schema, stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .._native.batch import RecordColumns
    from .._native.records import Record
    from ..partition.partition import Isolation, Partition, Window
    from .arrow import RecordBatch, Schema

# A chunk of views copies no keys and values, so that more of them fit where one of copies does.
VIEWED_BYTES: Final = 4 * DECODE_BYTES


class Read:
    """Records of a range of offsets, read when they are asked for, and anew each time.

    Iterate for Python records; ``to_batches()`` gives pyarrow record batches; pyarrow, polars, DuckDB and pandas
    take the object itself through ``__arrow_c_stream__``.
    """

    def __init__(
        self,
        partitions: Sequence[Partition],
        start: int,
        end: int | None,
        isolation: Isolation,
        *,
        views: bool,
    ) -> None:
        self._partitions = partitions
        self._start = start
        self._end = 2**63 - 1 if end is None else end
        self._isolation = isolation
        self._views = views

    def __repr__(self) -> str:
        names = ", ".join(partition.key.directory for partition in self._partitions)
        return f"Read({names}, {self._isolation.value})"

    def _windows(self) -> Iterator[tuple[Partition, Window]]:
        for partition in self._partitions:
            start = max(self._start, partition.log_start_offset)
            for window in partition.windows(start, self._end, self._isolation):
                yield partition, window

    def _range(self, partition: Partition) -> tuple[int, int]:
        end = min(self._end, partition.upper_bound(self._isolation))
        return max(self._start, partition.log_start_offset), end

    def columns(self) -> Iterator[tuple[Partition, RecordColumns]]:
        """Decoded columns, chunk by chunk."""
        for partition, window in self._windows():
            start, end = self._range(partition)
            for columns in decode(
                window.segment.view(),
                window.rows,
                visible=window.visible,
                start_offset=start,
                end_offset=end,
                views=self._views,
                bytes_max=VIEWED_BYTES if self._views else DECODE_BYTES,
                file=window.segment.path(LOG),
            ):
                yield partition, columns

    def __iter__(self) -> Iterator[Record]:
        for partition, window in self._windows():
            start, end = self._range(partition)
            yield from records(
                window.segment.view(),
                window.rows,
                visible=window.visible,
                start_offset=start,
                end_offset=end,
                file=window.segment.path(LOG),
                topic=partition.key.topic,
                partition=partition.key.partition,
            )

    @property
    def schema(self) -> Schema:
        return full_schema(self._views)

    def to_batches(self) -> Iterator[RecordBatch]:
        """pyarrow record batches of about a megabyte each, or four where they only point at it."""
        for partition, columns in self.columns():
            yield full_batch(columns, partition.key.topic, partition.key.partition)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return stream(self.schema, self.to_batches(), requested_schema)
