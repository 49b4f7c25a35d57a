"""oncelog.spark: the log as a Spark data source, its exactly-once sink, and Arrow UDFs.

Nothing lives here yet. To come, each in its own module:

source    DataSource "oncelog": batch and streaming readers, one task per partition range
sink      the writer: tasks stage record batches, the driver commits once per batch id
udf       Arrow UDFs over raw batches, keys, values and headers
options   parses the options of both, refuses the unknown ones

Only the public names of oncelog may be imported here, and pyspark nowhere else.
"""
