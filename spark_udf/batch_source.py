"""The batch reader: a range of offsets is decided when a query is planned, and read by as many tasks as it is cut into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader

from .filters import Narrowed
from .offsets import Planner, check_order
from .source_options import Place
from .speaking import plainly
from .splits import Split, open_log, plan, read_split

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import Filter, InputPartition
    from pyspark.sql.types import StructType

    from .source_options import SourceOptions


class _PushFilters:
    """``pushFilters`` of a reader, which looks as if there were none.

    Push-down is off by default (``spark.sql.python.filterPushdown.enabled``), and Spark then refuses a reader that
    offers it instead of leaving it alone. It looks at this attribute to find out; where push-down is on it calls.
    """

    def __init__(self, reader: BatchReader) -> None:
        self.__func__ = DataSourceReader.pushFilters
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.narrow(filters)


class BatchReader(DataSourceReader):
    """What Spark asks on the driver (partitions) and in tasks (read)."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._narrowed = Narrowed()

    @property
    def pushFilters(self) -> _PushFilters:  # noqa: N802
        return _PushFilters(self)

    def narrow(self, filters: list[Filter]) -> list[Filter]:
        """Takes what helps to read less, and returns the filters that Spark still has to apply."""
        return [each for each in filters if not self._narrowed.take(each)]

    @plainly
    def partitions(self) -> list[Split]:
        options = self._options
        with open_log(options.path) as log:
            planner = Planner(log, options)
            keys = planner.assigned()
            starts = planner.resolve(
                options.starting or Place("startingOffsets", word="earliest"), keys, is_start=True
            )
            ends = planner.resolve(
                options.ending or Place("endingOffsets", word="latest"), keys, is_start=False
            )
            ranges = {key: (starts[key], ends[key]) for key in keys}
            check_order(ranges, options, planner)
            return plan(log, self._narrowed.ranges(log, ranges, options.isolation_level), options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Split):
            return iter(())  # Spark's stand-in where there is nothing to read
        return read_split(partition, self._options, self._schema)
