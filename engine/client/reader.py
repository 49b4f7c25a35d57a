"""What one read returns: lazy, and open to everything that takes Arrow.

pyarrow is imported by those who ask for Arrow: tools that only look need none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..partition.salvage import salvaged_columns, salvaged_records, salvaged_windows
from ..segment.batch import DECODE_BYTES, decode, records
from ..segment.names import LOG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from .._native.batch import RecordColumns
    from .._native.records import Record
    from ..partition.partition import Isolation, Partition, Window
    from ..partition.salvage import Damage
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
        producer: bool = False,
        bytes_max: int | None = None,
        on_damage: Callable[[Damage], None] | None = None,
    ) -> None:
        self._partitions = partitions
        self._start = start
        self._end = 2**63 - 1 if end is None else end
        self._isolation = isolation
        self._views = views
        self._producer = producer
        self._bytes_max = bytes_max or (VIEWED_BYTES if views else DECODE_BYTES)
        self._on_damage = on_damage

    def __repr__(self) -> str:
        names = ", ".join(partition.key.directory for partition in self._partitions)
        return f"Read({names}, {self._isolation.value})"

    def _windows(self) -> Iterator[tuple[Partition, Window]]:
        for partition in self._partitions:
            start = max(self._start, partition.log_start_offset)
            if self._on_damage is None:
                windows = partition.windows(start, self._end, self._isolation)
            else:
                windows = salvaged_windows(
                    partition, start, self._end, self._isolation, self._on_damage
                )
            for window in windows:
                yield partition, window

    def _range(self, partition: Partition) -> tuple[int, int]:
        end = min(self._end, partition.upper_bound(self._isolation))
        return max(self._start, partition.log_start_offset), end

    def columns(self) -> Iterator[tuple[Partition, RecordColumns]]:
        """Decoded columns, chunk by chunk."""
        for partition, _, columns in self._decoded():
            yield partition, columns

    def _decoded(self) -> Iterator[tuple[Partition, NDArray[np.void], RecordColumns]]:
        """Decoded columns, and the headers of the batches among which theirs are."""
        for partition, window in self._windows():
            start, end = self._range(partition)
            if self._on_damage is None:
                found = decode(
                    window.segment.view(),
                    window.rows,
                    visible=window.visible,
                    start_offset=start,
                    end_offset=end,
                    views=self._views,
                    bytes_max=self._bytes_max,
                    file=window.segment.path(LOG),
                )
            else:
                found = salvaged_columns(
                    window,
                    start,
                    end,
                    self._on_damage,
                    views=self._views,
                    bytes_max=self._bytes_max,
                )
            for columns in found:
                yield partition, window.rows, columns

    def __iter__(self) -> Iterator[Record]:
        for partition, window in self._windows():
            start, end = self._range(partition)
            topic, number = partition.key
            if self._on_damage is not None:
                yield from salvaged_records(
                    window, start, end, self._on_damage, topic=topic, partition=number
                )
                continue
            yield from records(
                window.segment.view(),
                window.rows,
                visible=window.visible,
                start_offset=start,
                end_offset=end,
                file=window.segment.path(LOG),
                topic=topic,
                partition=number,
            )

    @property
    def schema(self) -> Schema:
        from .arrow import full_schema

        return full_schema(self._views, self._producer)

    def to_batches(self) -> Iterator[RecordBatch]:
        """pyarrow record batches of about a megabyte each, or four where they only point at it."""
        from .arrow import full_batch, with_producer

        for partition, rows, columns in self._decoded():
            batch = full_batch(columns, partition.key.topic, partition.key.partition)
            yield with_producer(batch, rows, columns.offsets) if self._producer else batch

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        from .arrow import stream

        return stream(self.schema, self.to_batches(), requested_schema)
