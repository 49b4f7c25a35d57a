"""The data source "oncelog": what Spark asks first, and who answers it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from .speaking import plainly

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class OncelogDataSource(DataSource):
    """Records of a log directory, with the columns and options of Spark's Kafka source, and an exactly-once sink."""

    @classmethod
    def name(cls) -> str:
        return "oncelog"

    @plainly
    def schema(self) -> StructType:
        from .columns import spark_schema
        from .source_options import SourceOptions

        return spark_schema(SourceOptions.read(self.options))

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        from .batch_source import BatchReader
        from .columns import checked_schema
        from .source_options import SourceOptions

        options = SourceOptions.read(self.options)
        options.check_batch()
        return BatchReader(options, checked_schema(schema))

    @plainly
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from .columns import checked_schema
        from .source_options import SourceOptions
        from .stream_source import StreamReader

        options = SourceOptions.read(self.options)
        options.check_stream()
        return StreamReader(options, checked_schema(schema))

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from .sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from .sink import stream_writer

        return stream_writer(self.options, schema, overwrite)
