"""What the batch reader makes of options and filters. Spark itself runs in test_source_queries."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    Not,
    StringStartsWith,
)
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

import oncelog
from oncelog.spark.columns import checked_schema
from oncelog.spark.options import Option, boolean, duration_ms, positive, read_options, size_bytes
from oncelog.spark.source_options import SourceOptions

from .logs import batch_reader, make_log, rows_of, send, source_options

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Topic t, two partitions, offsets 0 to 122, 80 committed records in each."""
    return make_log(tmp_path_factory.mktemp("source") / "log", partitions=2, count=40)


def read(path: Path | str, **options: Any) -> list[tuple[Any, ...]]:
    reader = batch_reader(path, **options)
    return rows_of(reader, reader.partitions())


def offsets(path: Path, **options: Any) -> dict[int, tuple[int, int, int]]:
    """First offset, last offset and number of records of each partition."""
    found: dict[int, list[int]] = {}
    for _, partition, offset, _ in read(path, **options):
        found.setdefault(partition, []).append(offset)
    return {key: (each[0], each[-1], len(each)) for key, each in found.items()}


# ---------------------------------------------------------------- options


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    table = {"minPartitions": Option(positive, 1), "failOnDataLoss": Option(boolean, True)}
    assert read_options({"MINPARTITIONS": "7"}, table) == {
        "minPartitions": 7,
        "failOnDataLoss": True,
    }
    with pytest.raises(ValueError, match="no option 'minpartition': did you mean minPartitions"):
        read_options({"minpartition": "7"}, table)
    with pytest.raises(
        ValueError, match="no option 'xyz': there are minPartitions, failOnDataLoss"
    ):
        read_options({"xyz": "7"}, table)
    with pytest.raises(ValueError, match="there is no broker to connect to"):
        read_options({"kafka.bootstrap.servers": "host:9092"}, table)
    with pytest.raises(ValueError, match="write isolationLevel"):
        read_options({"kafka.isolation.level": "read_committed"}, table)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"minPartitions": "0"}, "option minPartitions: must be 1 or more"),
        ({"minPartitions": "many"}, "option minPartitions: must be a whole number"),
        ({"failOnDataLoss": "maybe"}, "option failOnDataLoss: is true or false"),
        ({"isolationLevel": "committed"}, "is read_committed or read_uncommitted"),
        ({"mode": "dropmalformed"}, "option mode: is failfast or permissive"),
        ({"badRecordsPath": "/bad"}, "is for what mode permissive leaves out"),
        ({"startingOffsets": "newest"}, "option startingOffsets: must be JSON such as"),
        ({"startingOffsets": '{"t":'}, "option startingOffsets: must be JSON such as"),
        ({"startingOffsets": '{"t":{"0":"5"}}'}, "must be JSON such as"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "are no offsets: -1 is the latest"),
        ({"startingOffsets": "latest"}, "cannot start at the latest"),
        ({"startingOffsets": '{"t":{"0":-1,"1":0}}'}, "cannot start at the latest"),
        ({"endingOffsets": "earliest"}, "cannot end at the earliest"),
        ({"startingOffsets": '{"t":{"0":5}}'}, "must name every partition .* t-1 is missing"),
        ({"startingOffsets": '{"t":{"0":5,"1":5,"2":5}}'}, "t-2 is not read"),
        ({"startingOffsets": '{"t":{"0":500,"1":5}}'}, "t-0 has offsets 0 to 123, not 500"),
        ({"endingOffsets": '{"t":{"0":5,"1":500}}'}, "t-1 has offsets 0 to 123, not 500"),
        (
            {
                "startingOffsets": '{"t":{"0":0,"1":50}}',
                "endingOffsets": '{"t":{"0":9,"1":20}}',
            },
            "t-1 would be read from offset 50 to 20",
        ),
        ({"startingOffsetsByTimestamp": '{"t":{"0":1}}'}, "t-1 is missing"),
        ({"startingTimestamp": "99999999999999"}, "no record at 99999999999999 ms or later"),
        ({"subscribe": " , "}, "option subscribe: names no topic"),
        ({"subscribe": "t", "subscribePattern": "t"}, "subscribe and subscribePattern are given"),
        ({"subscribe": ""}, "none is given"),
        ({"subscribe": "", "subscribePattern": "("}, "not a regular expression"),
        ({"subscribe": "", "assign": "[0]"}, "option assign: must be JSON such as"),
        ({"subscribe": "", "assign": '{"t":["0"]}'}, "option assign: must be JSON such as"),
        ({"path": "s3://bucket/log"}, "mount it"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "5, is above .* 4"),
    ],
)
def test_a_wrong_option_is_refused_in_one_sentence(
    path: Path, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises((ValueError, oncelog.errors.OffsetOutOfRangeError), match=sentence):
        read(**{"path": path, **options})  # type: ignore[arg-type]


def test_what_is_not_there_is_an_error_that_says_what_is(path: Path) -> None:
    unknown = oncelog.errors.UnknownTopicOrPartitionError
    with pytest.raises(unknown, match="has no topic 'u', only t"):
        read(path, subscribe="t,u")
    with pytest.raises(unknown, match=r"has partitions \[0, 1\], not 7"):
        read(path, subscribe="", assign='{"t":[0,7]}')
    with pytest.raises(
        FileNotFoundError, match=r"sees no directory .*nowhere.* shared file system"
    ):
        read(path / "nowhere")
    with pytest.raises(ValueError, match="option path is missing"):
        SourceOptions.read({"subscribe": "t"})


def test_a_stream_has_no_end(path: Path) -> None:
    options = source_options(path, endingOffsets="latest")
    with pytest.raises(ValueError, match="endingOffsets: a streaming query has no end"):
        options.check_stream()


def test_texts_are_read_as_spark_writes_them() -> None:
    assert [duration_ms(each) for each in ("15m", "30s", "500ms", "7")] == [900_000, 30_000, 500, 7]
    assert [size_bytes(each) for each in ("128m", "1g", "64kb", "5")] == [
        128 << 20,
        1 << 30,
        65536,
        5,
    ]
    for parse, value in ((duration_ms, "soon"), (size_bytes, "big"), (size_bytes, "0")):
        with pytest.raises(ValueError, match="such as"):
            parse(value)


# ---------------------------------------------------------------- ranges


def test_offsets_say_where_a_read_begins_and_ends(path: Path) -> None:
    assert offsets(path) == {0: (0, 121, 80), 1: (0, 121, 80)}
    some = {"startingOffsets": '{"t":{"0":5,"1":-2}}', "endingOffsets": '{"t":{"0":-1,"1":30}}'}
    assert offsets(path, **some) == {0: (5, 121, 75), 1: (0, 29, 30)}
    assert offsets(path, isolationLevel="read_uncommitted")[0] == (0, 121, 120)
    one = {"subscribe": "", "assign": '{"t":[1]}'}
    assert offsets(path, **one) == {1: (0, 121, 80)}
    assert offsets(path, subscribe="", subscribePattern="[s-u]") == offsets(path)
    assert offsets(path, subscribe="", subscribePattern=".*") == offsets(
        path
    )  # Kafka's own stay out
    assert offsets(path, subscribe="", subscribePattern="x") == {}


def test_offsets_that_are_not_there_are_left_out_where_the_options_allow_it(path: Path) -> None:
    wide = {"startingOffsets": '{"t":{"0":500,"1":0}}', "endingOffsets": '{"t":{"0":600,"1":900}}'}
    assert offsets(path, **wide, failOnDataLoss="false") == {1: (0, 121, 80)}


def test_times_say_where_a_read_begins_and_ends(tmp_path: Path) -> None:
    """Goal: one time for all or one for each partition; the first record at that time or later; no match."""
    clock = [1_000]
    with oncelog.open(tmp_path, clock=lambda: clock[0]) as log:
        log.create_topic("t", partitions=2)
        for partition, times in enumerate([(1_000, 2_000, 3_000), (1_000, 2_000)]):
            with log.producer() as producer:
                for stamp in times:
                    producer.send("t", value=b"v", partition=partition, timestamp=stamp).result()
    assert offsets(tmp_path, startingTimestamp=2_000) == {0: (1, 2, 2), 1: (1, 1, 1)}
    assert offsets(tmp_path, endingTimestamp=2_000) == {0: (0, 0, 1), 1: (0, 0, 1)}
    assert offsets(tmp_path, endingTimestamp=9_000) == {0: (0, 2, 3), 1: (0, 1, 2)}
    each = '{"t":{"0":3000,"1":1500}}'
    assert offsets(tmp_path, startingOffsetsByTimestamp=each) == {0: (2, 2, 1), 1: (1, 1, 1)}
    assert offsets(tmp_path, endingOffsetsByTimestamp=each) == {0: (0, 1, 2), 1: (0, 0, 1)}
    with pytest.raises(ValueError, match="startingTimestamp: t-1 has no record at 2500 ms"):
        offsets(tmp_path, startingTimestamp=2_500)
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert offsets(tmp_path, startingTimestamp=2_500, **latest) == {0: (2, 2, 1)}
    assert offsets(tmp_path, startingTimestamp=9_000, endingTimestamp=2_000, **latest) == {}
    with pytest.raises(ValueError, match="t-0 would be read from offset 2 to 1"):
        offsets(tmp_path, startingOffsetsByTimestamp=each, endingTimestamp=2_000)
    first = {"startingOffsetsByTimestamp": each, "startingOffsets": "earliest"}
    assert offsets(tmp_path, **first, startingTimestamp=1_000)[0] == (0, 2, 3)  # Kafka's order
    assert offsets(tmp_path, **first)[0] == (2, 2, 1)


@pytest.mark.parametrize(
    "options",
    [{"minPartitions": 7}, {"maxPartitionBytes": 1000}, {"maxRecordsPerPartition": 20}],
    ids=str,
)
def test_splits_are_cut_at_batches_and_together_are_the_whole(
    path: Path, options: dict[str, int]
) -> None:
    reader = batch_reader(path, **options)
    splits: list[Any] = reader.partitions()
    assert 5 <= len(splits) <= 40
    assert rows_of(reader, splits) == read(path)
    with oncelog.open(path, read_only=True) as log:
        bases = {
            int(row["base_offset"])
            for window in log.read("t", 0)._windows()
            for row in window[1].rows
        }
    assert {split.start for split in splits if split.partition == 0} <= bases


def test_a_partition_that_is_a_little_too_large_stays_one_task(path: Path) -> None:
    """Goal: no two small tasks where one does; what is more than a quarter too large is cut."""
    with oncelog.open(path, read_only=True) as log:
        size = log.range_bytes("t", 0, *log.bounds("t", 0))

    def tasks(limit: int) -> int:
        splits: list[Any] = batch_reader(path, maxPartitionBytes=limit).partitions()
        return sum(split.partition == 0 for split in splits)

    assert size > 1000
    assert tasks(size) == tasks(size * 5 // 6) == 1
    assert tasks(size * 3 // 4) == 2


# ---------------------------------------------------------------- filters


def test_filters_on_topic_partition_and_offset_are_kept_to_the_letter(path: Path) -> None:
    """Goal: Spark need not look again, so that what is taken must be exact, and what is not must be given back."""

    def narrowed(*filters: Any) -> tuple[dict[int, tuple[int, int, int]], list[Any]]:
        reader = batch_reader(path)
        left = list(reader.pushFilters(list(filters)))
        found: dict[int, list[int]] = {}
        for _, partition, offset, _ in rows_of(reader, reader.partitions()):
            found.setdefault(partition, []).append(offset)
        return {key: (each[0], each[-1], len(each)) for key, each in found.items()}, left

    topic, partition, offset = ("topic",), ("partition",), ("offset",)
    assert narrowed(EqualTo(partition, 1), IsNotNull(partition)) == ({1: (0, 121, 80)}, [])
    assert narrowed(Not(EqualTo(partition, 1))) == ({0: (0, 121, 80)}, [])
    assert narrowed(In(partition, (1, 5)), EqualTo(topic, "t")) == ({1: (0, 121, 80)}, [])
    assert narrowed(EqualTo(topic, "u")) == ({}, [])
    assert narrowed(StringStartsWith(topic, "u")) == ({}, [])
    assert narrowed(GreaterThan(offset, 5), LessThan(offset, 9), EqualTo(partition, 0)) == (
        {0: (6, 8, 3)},
        [],
    )
    assert narrowed(EqualTo(offset, 7), EqualTo(partition, 0)) == ({0: (7, 7, 1)}, [])
    others: list[Any] = [
        Not(EqualTo(offset, 7)),
        EqualTo(("value",), b"x"),
        EqualTo(partition, None),
    ]
    assert narrowed(*others) == (offsets(path), others)


def test_a_filter_on_the_timestamp_skips_what_lies_before_and_is_given_back(tmp_path: Path) -> None:
    with oncelog.open(tmp_path) as log:
        log.create_topic("t", partitions=1)
        with log.producer() as producer:
            for stamp in (1_000, 3_000, 2_000, 4_000):
                producer.send("t", value=b"v", timestamp=stamp).result()
    second = dt.datetime(1970, 1, 1, 0, 0, 2, tzinfo=dt.UTC)
    reader = batch_reader(tmp_path)
    wanted: list[Any] = [GreaterThanOrEqual(("timestamp",), second)]
    assert list(reader.pushFilters(wanted)) == wanted
    assert [row[2] for row in rows_of(reader, reader.partitions())] == [1, 2, 3]


# ---------------------------------------------------------------- columns


def test_a_schema_chooses_among_the_columns() -> None:
    some = StructType(
        [StructField("offset", LongType(), False), StructField("value", BinaryType())]
    )
    assert checked_schema(some).names == ["offset", "value"]
    with pytest.raises(ValueError, match="column value is binary, not string"):
        checked_schema(StructType([StructField("value", StringType())]))
    with pytest.raises(ValueError, match="no column 'x', only key, value"):
        checked_schema(StructType([StructField("x", StringType())]))


def test_producer_columns_tell_who_wrote_each_record(tmp_path: Path) -> None:
    with oncelog.open(tmp_path) as log:
        log.create_topic("t", partitions=1)
        send(log, 30)
        with log.producer(enable_idempotence=False) as producer:
            producer.send("t", value=b"plain").result()
    reader = batch_reader(tmp_path, includeProducer="true")
    rows = [
        row
        for split in reader.partitions()
        for batch in reader.read(split)
        for row in batch.to_pylist()
    ]
    assert [row["sequence"] for row in rows] == [*range(30), -1]
    assert {row["producerId"] for row in rows[:30]} != {-1}
    assert {row["isTransactional"] for row in rows[:30]} == {True}
    last = rows[30]
    assert (last["producerId"], last["producerEpoch"], last["isTransactional"]) == (-1, -1, False)
