"""What the streaming reader tells Spark, trigger by trigger. Spark itself runs in test_source_queries."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

import oncelog
from oncelog.spark.offsets import DataLossError
from oncelog.spark.stream_source import limited

from .logs import SMALL, make_log, rows_of, send, stream_reader

if TYPE_CHECKING:
    from pathlib import Path

    from oncelog.spark.stream_source import StreamReader

ALL = ReadAllAvailable()


def trigger(reader: StreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """One trigger's end, through JSON as Spark takes it."""
    found: dict[str, Any] = json.loads(
        json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit()))
    )
    return found


def at(offsets: dict[str, Any]) -> dict[str, Any]:
    """Where offsets are, without where the query began."""
    return {topic: numbers for topic, numbers in offsets.items() if ":" not in topic}


def test_a_new_query_starts_at_the_latest_offset_unless_told_otherwise(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", count=10)
    assert at(stream_reader(path).initialOffset()) == {"t": {"0": 33}}
    assert at(stream_reader(path, startingOffsets="earliest").initialOffset()) == {"t": {"0": 0}}
    given = '{"t":{"0":7}}'
    assert at(stream_reader(path, startingOffsets=given).initialOffset()) == {"t": {"0": 7}}


def test_a_first_batch_that_is_run_again_begins_where_it_began(tmp_path: Path) -> None:
    """Goal: "latest" is one place for the whole life of a query. Spark asks again for it when the first batch was
    planned and not committed; what came between the two answers is neither lost nor read twice."""
    path = make_log(tmp_path / "log", count=10)
    reader = stream_reader(path)
    start = reader.initialOffset()
    with oncelog.open(path) as log:
        send(log, 5)
        end = trigger(reader, start)
        wanted = rows_of(reader, reader.partitions(start, end))
        assert [row[2] for row in wanted] == [*range(33, 38)]
        reader = stream_reader(path)  # the driver was killed
        again = json.loads(json.dumps(reader.initialOffset()))
        assert at(again) == at(end)
        assert rows_of(reader, reader.partitions(again, end)) == wanted
        assert json.dumps(trigger(reader, end)) == json.dumps(end), "nothing new is no batch"
        send(log, 2)
    later = trigger(reader, end)
    assert later == {"t": {"0": 42}}
    assert [row[2] for row in rows_of(reader, reader.partitions(end, later))] == [39, 40]


def test_a_first_batch_of_nothing_keeps_where_the_query_begins(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", count=10)
    reader = stream_reader(path)
    empty = trigger(reader, reader.initialOffset())
    with oncelog.open(path) as log:
        send(log, 5)
    reader = stream_reader(path)
    assert reader.partitions(reader.initialOffset(), empty) == []
    end = trigger(reader, empty)
    assert [row[2] for row in rows_of(reader, reader.partitions(empty, end))] == [*range(33, 38)]


def test_a_trigger_ends_at_the_last_stable_offset_and_a_replay_reads_the_same(
    tmp_path: Path,
) -> None:
    """Goal: an open transaction is not read, and what was planned once gives the same rows when more has come."""
    path = make_log(tmp_path / "log", count=10)
    reader = stream_reader(path, startingOffsets="earliest")
    with oncelog.open(path) as log, log.producer(transactional_id="open") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", value=b"not yet").result()
        start = reader.initialOffset()
        end = trigger(reader, start)
        assert at(end) == {"t": {"0": 33}}
        before = rows_of(reader, reader.partitions(start, end))
        assert len(before) == 20
        producer.commit_transaction()
        later = trigger(reader, end)
        assert later == {"t": {"0": 35}}
        assert rows_of(reader, reader.partitions(start, end)) == before
        assert [row[3] for row in rows_of(reader, reader.partitions(end, later))] == [b"not yet"]
    again = stream_reader(path, startingOffsets="earliest")  # as after a restart
    assert rows_of(again, again.partitions(start, end)) == before


def test_available_now_ends_where_the_tail_is_an_open_transaction(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", count=10)
    reader = stream_reader(path, startingOffsets="earliest", maxOffsetsPerTrigger=8)
    with oncelog.open(path) as log, log.producer(transactional_id="open") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", value=b"not yet").result()
        offset = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        producer.commit_transaction()  # what comes now is for the next query
        send(log, 5)
        seen = []
        while (following := trigger(reader, offset)) != offset:
            offset = following
            seen.append(offset["t"]["0"])
        assert seen == [8, 16, 24, 32, 33]


def test_available_now_ends_where_partitions_came_since(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", count=10)
    reader = stream_reader(path, startingOffsets="earliest")
    offset = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    with oncelog.open(path) as log:
        log.admin().create_partitions({"t": 2})
        send(log, 5, partition=1)
    end = trigger(reader, offset)
    assert at(end) == {"t": {"0": 33}}
    assert trigger(reader, end) == end


def test_limits_are_shared_out_by_size_as_kafka_does() -> None:
    """Goal: Kafka's arithmetic: floor of the share, but one at least where there is something."""
    begin, end = {("a", 0): 10, ("a", 1): 0, ("b", 0): 5}, {("a", 0): 110, ("a", 1): 1, ("b", 0): 5}
    assert limited(begin, end, 10) == {("a", 0): 19, ("a", 1): 1, ("b", 0): 5}
    assert limited(begin, end, 101) == end
    assert limited(begin, end, 1000) == end


def test_spark_may_ask_for_everything_whatever_the_options_say(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", count=10)
    reader = stream_reader(path, startingOffsets="earliest", maxOffsetsPerTrigger=8)
    assert reader.getDefaultReadLimit() == ReadMaxRows(8)
    assert at(reader.latestOffset(reader.initialOffset(), ALL)) == {"t": {"0": 33}}
    assert reader.reportLatestOffset() == {"t": {"0": 33}}
    assert stream_reader(path).getDefaultReadLimit() == ALL


def test_a_trigger_waits_for_the_least_number_of_offsets_but_not_too_long(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", count=10)
    wants = {"startingOffsets": "earliest", "minOffsetsPerTrigger": 20}
    reader = stream_reader(path, **wants)
    assert reader.getDefaultReadLimit() == ReadMinRows(20)
    first = trigger(reader, reader.initialOffset())
    assert at(first) == {"t": {"0": 33}}
    with oncelog.open(path) as log:
        send(log, 5)
        assert trigger(reader, first) == first  # 6 are too few
        send(log, 20)
    assert trigger(reader, first) == {"t": {"0": 60}}
    hasty = stream_reader(path, **wants, maxTriggerDelay="0ms")
    trigger(hasty, hasty.initialOffset())
    assert trigger(hasty, first) == {"t": {"0": 60}}


def test_partitions_and_topics_that_come_later_are_read_from_their_start(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", count=10)
    reader = stream_reader(path, subscribe="", subscribePattern="t.*")
    start = reader.initialOffset()
    with oncelog.open(path) as log:
        log.admin().create_partitions({"t": 2})
        send(log, 3, partition=1)
        log.create_topic("tee", partitions=1)
        send(log, 2, topic="tee")
    end = trigger(reader, start)
    assert at(end) == {"t": {"0": 33, "1": 4}, "tee": {"0": 3}}
    found = rows_of(reader, reader.partitions(start, end))
    assert [row[:3] for row in found] == [
        ("t", 1, 0),
        ("t", 1, 1),
        ("t", 1, 2),
        ("tee", 0, 0),
        ("tee", 0, 1),
    ]


def test_retention_that_overtakes_the_reader_says_what_was_lost(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", count=10)
    reader = stream_reader(path, startingOffsets="earliest")
    start = reader.initialOffset()
    with oncelog.open(path) as log:
        log.admin().delete_records({("t", 0): 4})
    end = trigger(reader, start)
    with pytest.raises(DataLossError, match=r"offsets 0 to 3 of t-0 are gone.*failOnDataLoss"):
        reader.partitions(start, end)
    careless = stream_reader(path, startingOffsets="earliest", failOnDataLoss="false")
    assert [row[2] for row in rows_of(careless, careless.partitions(start, end))][:2] == [4, 5]


def test_retention_between_plan_and_task_says_what_was_lost(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", count=10)
    reader = stream_reader(path, startingOffsets="earliest")
    start = reader.initialOffset()
    splits = reader.partitions(start, trigger(reader, start))
    with oncelog.open(path) as log:
        log.admin().delete_records({("t", 0): 4})
    with pytest.raises(DataLossError, match="offsets 0 to 3 of t-0 are gone"):
        rows_of(reader, splits)
    careless = stream_reader(path, failOnDataLoss="false")
    assert [row[2] for row in rows_of(careless, splits)][:2] == [4, 5]


def test_a_topic_that_is_gone_or_made_anew_says_what_was_lost(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", count=10)
    reader = stream_reader(path)
    start = reader.initialOffset()
    shutil.rmtree(path / "t-0")
    with pytest.raises(DataLossError, match="t-0 was read before and is gone"):
        trigger(reader, start)
    assert at(trigger(stream_reader(path, failOnDataLoss="false"), start)) == {}
    shutil.rmtree(path)
    with oncelog.open(path) as log:
        log.create_topic("t", partitions=1, config=SMALL)
        send(log, 5)
    with pytest.raises(DataLossError, match="t-0 was read up to offset 33 and now ends at 6"):
        trigger(reader, start)
    careless = stream_reader(path, failOnDataLoss="false")
    end = trigger(careless, start)
    assert at(end) == {"t": {"0": 6}}, "what comes now is read"
    assert careless.partitions(start, end) == []
    with oncelog.open(path) as log:
        send(log, 2)
    later = trigger(careless, end)
    assert [row[2] for row in rows_of(careless, careless.partitions(end, later))] == [6, 7]


def test_a_task_that_sees_less_than_the_driver_saw_fails(tmp_path: Path) -> None:
    """Goal: files that differ between machines never mean fewer rows."""
    path = make_log(tmp_path / "log", count=10)
    reader = stream_reader(path, startingOffsets="earliest")
    splits = reader.partitions({"t": {"0": 0}}, {"t": {"0": 33}})
    splits[-1].end = 50
    with pytest.raises(
        oncelog.errors.KafkaStorageError, match=r"up to 33 .* driver saw it up to 50"
    ):
        rows_of(reader, splits)
