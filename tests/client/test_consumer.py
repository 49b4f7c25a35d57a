"""A consumer hands out what it was assigned, in order, once, and says clearly when it cannot."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from oncelog.base.errors import (
    ClosedError,
    CorruptRecordError,
    IllegalStateError,
    InvalidConfigError,
    InvalidRequestError,
    LogTruncationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    WakeupError,
)
from oncelog.client.consumer import Consumer, OffsetAndMetadata
from oncelog.segment.batch import scan
from oncelog.segment.names import TopicPartition

from ..partition.logs import NOW, Writer, options, values
from .local_broker import LocalBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    with contextlib.closing(LocalBroker(tmp_path, options(segment_bytes=2000))) as broker:
        yield broker


def consumer_of(broker: LocalBroker, *keys: tuple[str, int], **rest: Any) -> Consumer:
    rest.setdefault("auto_offset_reset", "earliest")
    consumer = Consumer(broker, **rest)
    consumer.assign(keys or [ORDERS])
    return consumer


def drained(consumer: Consumer, **rest: Any) -> list[bytes | None]:
    found: list[bytes | None] = []
    while records := consumer.poll(**rest):
        found += [record.value for record in records]
    return found


def drained_arrow(consumer: Consumer, **rest: Any) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(batch := consumer.poll_arrow(**rest)):
        batch.validate(full=True)
        found += batch["value"].to_pylist()
    return found


# ---------------------------------------------------------------- records and batches


def test_a_poll_returns_records_with_all_their_fields(broker: LocalBroker) -> None:
    writer = Writer(broker.create("orders", 3))
    writer.send([b"v"], keys=[b"key"], headers=[[("h", b"1"), ("n", None)]], timestamp_ms=NOW + 7)
    (record,) = consumer_of(broker, ("orders", 3)).poll()
    assert (record.topic, record.partition, record.offset) == ("orders", 3, 0)
    assert (record.timestamp, record.key, record.value) == (NOW + 7, b"key", b"v")
    assert record.headers == (("h", b"1"), ("n", None))


@pytest.mark.parametrize("views", [False, True])
def test_a_poll_for_arrow_has_the_columns_of_every_read(broker: LocalBroker, views: bool) -> None:
    """Goal: the schema is the one of ``read``, with rows and without."""
    writer = Writer(broker.create("orders", 3))
    consumer = consumer_of(broker, ("orders", 3))
    empty = consumer.poll_arrow(views=views)
    writer.send([b"v"], keys=[b"a key that is longer than a view"], timestamp_ms=NOW + 7)
    batch = consumer.poll_arrow(views=views)
    assert (len(empty), len(batch)) == (0, 1)
    assert empty.schema == batch.schema
    data = pa.binary_view() if views else pa.binary()
    assert batch.schema.field("value").type == data
    (row,) = batch.to_pylist()
    assert (row["topic"], row["partition"], row["offset"]) == ("orders", 3, 0)
    assert (row["key"], row["value"]) == (b"a key that is longer than a view", b"v")


def test_max_poll_records_cuts_inside_a_batch_and_the_next_poll_goes_on(
    broker: LocalBroker,
) -> None:
    """Goal: nothing twice and nothing lost, whatever the limit; the position is that of the next record."""
    writer = Writer(broker.create("orders"))
    sent = [values(7, f"{number}-") for number in range(9)]
    for batch in sent:
        writer.send(batch)
    expected = [value for batch in sent for value in batch]
    for limit in (1, 3, 7, 8, 100):
        consumer = consumer_of(broker, max_poll_records=limit)
        found: list[bytes | None] = []
        while records := consumer.poll():
            assert len(records) <= limit
            assert consumer.position(ORDERS) == records[-1].offset + 1
            found += [record.value for record in records]
        assert found == expected
        assert drained_arrow(consumer_of(broker), max_records=limit) == expected


def test_a_batch_of_columns_is_decoded_once_however_it_is_cut(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the rest of a decoded chunk waits for the next poll.
    Method: count the decodings of one batch that is handed out record by record."""
    from oncelog.client import fetching

    Writer(broker.create("orders")).send(values(50))
    decode = Mock(wraps=vars(fetching)["decode"])
    monkeypatch.setattr(fetching, "decode", decode)
    assert drained_arrow(consumer_of(broker), max_records=1) == values(50)
    assert decode.call_count == 1


def test_polls_for_records_and_for_arrow_go_on_from_each_other(broker: LocalBroker) -> None:
    """Goal: one position for both; switching between them, in a batch or not, loses and repeats nothing."""
    writer = Writer(broker.create("orders"))
    for number in range(20):
        writer.send(values(10, f"{number}-", size=20))
    consumer = consumer_of(broker)
    found: list[int] = []
    for turn in range(1000):
        count = 1 + turn % 4
        if turn % 3:
            got = [record.offset for record in consumer.poll(max_records=count)]
        else:
            batch = consumer.poll_arrow(max_records=count, views=bool(turn % 2))
            got = batch["offset"].to_pylist()
        if not got:
            break
        found += got
    assert found == list(range(200))


def test_max_bytes_makes_smaller_batches(broker: LocalBroker) -> None:
    writer = Writer(broker.create("orders"))
    for _ in range(10):
        writer.send(values(5, size=100))
    sizes = []
    consumer = consumer_of(broker)
    while len(batch := consumer.poll_arrow(max_bytes=1)):
        sizes.append(len(batch))
    assert sizes == [5] * 10


def test_partitions_take_turns(broker: LocalBroker) -> None:
    """Goal: a partition with much to read does not keep the others waiting.
    Method: one with a hundred times as much; of three polls each returns another partition's, again and again."""
    for number, count in enumerate((1000, 10, 10)):
        writer = Writer(broker.create("orders", number))
        for _ in range(count // 10):
            writer.send(values(10))
    keys = [("orders", number) for number in range(3)]
    consumer = consumer_of(broker, *keys, max_poll_records=5)
    for _ in range(2):
        polls = [{record.partition for record in consumer.poll()} for _ in range(3)]
        assert sorted(polls, key=min) == [{0}, {1}, {2}]
    consumer.seek_to_beginning()
    for _ in range(2):
        partitions = [consumer.poll_arrow(max_records=5)["partition"][0].as_py() for _ in range(3)]
        assert sorted(partitions) == [0, 1, 2]


def test_iteration_waits_for_more_and_its_position_is_that_of_the_record_handed_out(
    broker: LocalBroker,
) -> None:
    """Goal: ``for record in consumer`` polls many at a time, but neither position nor offsets for a transaction run
    ahead of the loop; what was not handed out comes again by any other way of reading."""
    writer = Writer(broker.create("orders"))
    writer.send(values(20))
    consumer = consumer_of(broker)
    later = threading.Timer(0.1, lambda: writer.send([b"late"]))
    later.start()
    for number, record in enumerate(consumer):
        assert record.offset == number
        assert consumer.position(ORDERS) == number + 1
        assert consumer.position_offsets()[ORDERS].offset == number + 1
        if number == 20:
            break
    later.join()
    consumer.seek(ORDERS, 3)
    iterator = iter(consumer)
    assert next(iterator).offset == 3
    assert consumer.poll_arrow(max_records=2)["offset"].to_pylist() == [4, 5]
    assert next(iterator).offset == 6
    assert [record.offset for record in consumer.poll(max_records=2)] == [7, 8]
    consumer.pause()
    assert consumer.poll() == []
    assert consumer.position(ORDERS) == 9
    consumer.resume()
    assert next(iterator).offset == 9


# ---------------------------------------------------------------- assignment


def test_partitions_that_stay_assigned_keep_their_position(broker: LocalBroker) -> None:
    for number in range(3):
        Writer(broker.create("orders", number)).send(values(4, f"{number}-"))
    consumer = consumer_of(broker, ("orders", 0), ("orders", 1))
    consumer.seek(("orders", 1), 2)
    consumer.assign([("orders", 1), TopicPartition("orders", 2), ("orders", 1)])
    assert consumer.assignment() == {("orders", 1), ("orders", 2)}
    assert set(drained(consumer)) == {b"1-2", b"1-3", *values(4, "2-")}
    consumer.unassign()
    assert consumer.assignment() == set()
    with pytest.raises(IllegalStateError, match="nothing to poll"):
        consumer.poll()
    with pytest.raises(IllegalStateError, match="orders-1 is not assigned"):
        consumer.position(("orders", 1))


def test_what_was_found_before_a_new_assignment_is_not_returned_after_it(
    broker: LocalBroker,
) -> None:
    Writer(broker.create("orders", 0)).send(values(4, "old"))
    Writer(broker.create("orders", 1)).send(values(4, "new"))
    consumer = consumer_of(broker, ("orders", 0))
    consumer.poll(max_records=1)
    next(iter(consumer))
    consumer.assign([("orders", 1)])
    assert drained(consumer) == values(4, "new")


def test_a_topic_that_does_not_exist_is_refused_when_it_is_assigned(broker: LocalBroker) -> None:
    """Goal: one clear sentence, and the assignment before it stays."""
    Writer(broker.create("orders")).send(values(2))
    consumer = consumer_of(broker)
    with pytest.raises(UnknownTopicOrPartitionError, match="no topic 'nowhere'"):
        consumer.assign([ORDERS, ("nowhere", 0)])
    assert drained(consumer) == values(2)


@pytest.mark.parametrize(
    "given", ["orders", ("orders", "0"), ("orders",), (0, "orders"), ("o", True)]
)
def test_what_is_not_a_partition_is_refused(broker: LocalBroker, given: Any) -> None:
    broker.create("orders")
    with pytest.raises(InvalidRequestError, match=r"a partition is \(topic, number\)"):
        consumer_of(broker).assign([given])


def test_paused_partitions_return_nothing_until_they_are_resumed(broker: LocalBroker) -> None:
    """Goal: neither what was found before, nor what is written meanwhile; others go on."""
    writers = [Writer(broker.create("orders", number)) for number in range(2)]
    for writer in writers:
        writer.send(values(4))
    keys = [("orders", 0), ("orders", 1)]
    consumer = consumer_of(broker, *keys, max_poll_records=2)
    consumer.poll()
    consumer.pause([("orders", 0)])
    assert consumer.paused() == {("orders", 0)}
    writers[0].send(values(4))
    seen = []
    while records := consumer.poll():
        seen += [record.partition for record in records]
    assert set(seen) == {1}
    consumer.resume([("orders", 0)])
    assert consumer.paused() == set()
    assert len(drained(consumer)) == 12 - 2 - len(seen)


# ---------------------------------------------------------------- positions


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("earliest", [0, 1, 2, 3]), ("latest", []), ("by_duration:PT1M", [2, 3])],
)
def test_without_a_position_the_reset_policy_says_where_to_begin(
    broker: LocalBroker, policy: str, expected: list[int]
) -> None:
    writer = Writer(broker.create("orders"))
    for age_ms in (3_600_000, 61_000, 60_000, 1_000):
        writer.send([b"v"], timestamp_ms=NOW - age_ms)
    consumer = consumer_of(broker, auto_offset_reset=policy)
    assert [record.offset for record in consumer.poll()] == expected
    assert consumer.position(ORDERS) == 4
    writer.send([b"new"])
    assert [record.offset for record in consumer.poll()] == [4]


def test_a_duration_longer_than_the_log_has_no_effect_on_an_empty_end(broker: LocalBroker) -> None:
    """Goal: where no record is that young, the position is the end, as Kafka has it."""
    writer = Writer(broker.create("orders"))
    writer.send([b"v"], timestamp_ms=NOW - 10_000)
    for policy in ("by_duration:PT9.999S", "by_duration:PT0S"):
        assert consumer_of(broker, auto_offset_reset=policy).position(ORDERS) == 1
    for policy in ("by_duration:PT10S", "by_duration:P1DT1H1M1S"):
        assert consumer_of(broker, auto_offset_reset=policy).position(ORDERS) == 0


def test_without_a_policy_a_missing_position_is_an_error_until_there_is_one(
    broker: LocalBroker,
) -> None:
    Writer(broker.create("orders")).send(values(3))
    consumer = consumer_of(broker, auto_offset_reset="none")
    for call in (consumer.poll, consumer.poll_arrow, lambda: consumer.position(ORDERS)):
        with pytest.raises(NoOffsetForPartitionError, match="orders-0 has no position"):
            call()
    assert consumer.position_offsets() == {}
    consumer.seek(ORDERS, 1)
    assert drained(consumer) == values(3)[1:]


@pytest.mark.parametrize(("policy", "offset"), [("earliest", 6), ("latest", 12)])
def test_a_position_that_retention_has_overtaken_is_reset(
    broker: LocalBroker, policy: str, offset: int
) -> None:
    """Goal: also where records of the removed part were found and not handed out yet."""
    partition = broker.create("orders")
    for _ in range(4):
        Writer(partition).send(values(3))
    consumer = consumer_of(broker, auto_offset_reset=policy)
    consumer.seek(ORDERS, 0)
    consumer.poll(max_records=2)
    partition.delete_records(6)
    expected = list(range(offset, 12))
    assert [record.offset for record in consumer.poll()] == expected
    assert consumer.position(ORDERS) == 12


@pytest.mark.parametrize("position", [2, 13])
def test_without_a_policy_an_offset_out_of_range_names_partition_position_and_bounds(
    broker: LocalBroker, position: int
) -> None:
    partition = broker.create("orders")
    for _ in range(4):
        Writer(partition).send(values(3))
    partition.delete_records(6)
    consumer = consumer_of(broker, auto_offset_reset="none")
    consumer.seek(ORDERS, position)
    for _ in range(2):
        with pytest.raises(
            OffsetOutOfRangeError, match=f"orders-0 has offsets 6 to 12.*{position}"
        ):
            consumer.poll()
    assert consumer.position(ORDERS) == position
    consumer.seek(ORDERS, 11)
    assert [record.offset for record in consumer.poll()] == [11]


def test_an_offset_past_the_end_is_reset_and_one_at_the_end_is_not(broker: LocalBroker) -> None:
    writer = Writer(broker.create("orders"))
    writer.send(values(5))
    consumer = consumer_of(broker)
    consumer.seek(ORDERS, 5)
    assert consumer.poll() == []
    assert consumer.position(ORDERS) == 5
    consumer.seek(ORDERS, 6)
    assert [record.offset for record in consumer.poll()] == list(range(5))


@pytest.mark.parametrize("offset", [-1, "3", 1.5, True, None])
def test_what_is_not_an_offset_is_refused(broker: LocalBroker, offset: Any) -> None:
    broker.create("orders")
    with pytest.raises(InvalidRequestError, match="an offset is a number from 0 on"):
        consumer_of(broker).seek(ORDERS, offset)


def test_what_was_found_before_a_seek_is_not_returned_after_it(broker: LocalBroker) -> None:
    writer = Writer(broker.create("orders"))
    for _ in range(5):
        writer.send(values(4))
    consumer = consumer_of(broker)
    for target in (11, 3, 19, 0, 7):
        consumer.poll(max_records=2)
        consumer.seek(ORDERS, target)
        assert consumer.position(ORDERS) == target
        assert consumer.poll(max_records=1)[0].offset == target
        consumer.poll_arrow(max_records=2)
        consumer.seek(ORDERS, OffsetAndMetadata(target))
        assert consumer.poll_arrow(max_records=1)["offset"].to_pylist() == [target]
    consumer.seek_to_end()
    assert consumer.poll() == []
    consumer.seek_to_beginning([ORDERS])
    assert len(drained(consumer)) == 20


def test_offsets_by_end_and_by_time(broker: LocalBroker) -> None:
    partition = broker.create("orders")
    writer = Writer(partition)
    for number in range(10):
        writer.send([b"v"], timestamp_ms=NOW + 10 * number)
    partition.delete_records(2)
    consumer = Consumer(broker)
    assert consumer.beginning_offsets([ORDERS]) == {ORDERS: 2}
    assert consumer.end_offsets([("orders", 0)]) == {ORDERS: 10}
    found = consumer.offsets_for_times({ORDERS: NOW + 41})[ORDERS]
    assert found is not None
    assert (found.offset, found.timestamp) == (5, NOW + 50)
    assert consumer.offsets_for_times({ORDERS: NOW + 91}) == {ORDERS: None}
    with pytest.raises(InvalidRequestError, match="0 or more"):
        consumer.offsets_for_times({ORDERS: -1})
    with pytest.raises(UnknownTopicOrPartitionError):
        consumer.end_offsets([("nowhere", 0)])


def test_lag_lead_and_totals_are_kafkas_figures(broker: LocalBroker) -> None:
    partition = broker.create("orders")
    writer = Writer(partition)
    for _ in range(10):
        writer.send(values(10))
    partition.delete_records(5)
    consumer = consumer_of(broker, max_poll_records=25)
    assert consumer.metrics()["consumer-fetch-manager-metrics"]["records-consumed-total"] == 0
    consumer.poll()
    assert (consumer.lag(ORDERS), consumer.lead(ORDERS)) == (70, 25)
    drained(consumer)
    figures = consumer.metrics()
    assert figures["consumer-fetch-manager-metrics.orders-0"] == {
        "records-lag": 0,
        "records-lead": 95,
    }
    total = figures["consumer-fetch-manager-metrics"]
    assert total["records-consumed-total"] == 95
    assert total["bytes-consumed-total"] == partition.log.size
    assert (total["records-lag-max"], total["records-lead-min"]) == (0, 95)
    assert figures["consumer-metrics"]["last-poll-seconds-ago"] < 60
    consumer.unassign()
    total = consumer.metrics()["consumer-fetch-manager-metrics"]
    assert total["records-consumed-total"] == 95


def test_positions_for_a_transaction_name_the_epoch_of_the_last_record_read(
    broker: LocalBroker,
) -> None:
    partition = broker.create("orders")
    for epoch in (3, 3, 4):
        Writer(partition).send(values(2), leader_epoch=epoch)
    consumer = consumer_of(broker)
    epochs = []
    while consumer.poll(max_records=1):
        epochs.append(consumer.position_offsets()[ORDERS])
    assert epochs == [
        OffsetAndMetadata(offset + 1, 4 if offset >= 4 else 3, "") for offset in range(6)
    ]


# ---------------------------------------------------------------- logs that change under the reader


def test_a_deleted_topic_is_an_error_and_a_new_one_of_its_name_begins_anew(
    broker: LocalBroker, tmp_path: Path
) -> None:
    """Goal: a position in a topic that is gone means nothing in another one, though it may lie in its range."""
    Writer(broker.create("orders")).send(values(8, "old"))
    other = Writer(broker.create("other"))
    consumer = consumer_of(broker, ORDERS, ("other", 0))
    assert len(consumer.poll(max_records=3)) == 3
    broker.delete(ORDERS)
    with pytest.raises(UnknownTopicOrPartitionError, match="no topic 'orders'"):
        consumer.poll()
    other.send([b"other"])
    found = []
    for _ in range(2):
        try:
            found += [record.value for record in consumer.poll()]
        except UnknownTopicOrPartitionError:
            continue
    assert found == [b"other"], "a partition that is gone does not keep others from being read"
    writer = Writer(broker.create("orders"))
    writer.send(values(10, "new"))
    assert drained(consumer) == values(10, "new")
    writer.send([b"more"])
    assert drained(consumer) == [b"more"], "the new log is watched"


@pytest.mark.parametrize("policy", ["earliest", "none"])
def test_a_log_that_was_cut_and_written_anew_is_noticed_by_its_epoch(
    broker: LocalBroker, policy: str
) -> None:
    """Goal: the position lies in the new log, but what was read below it is no longer there.
    Method: cut below the position, write more than was cut under a newer epoch."""
    partition = broker.create("orders")
    for _ in range(3):
        Writer(partition).send(values(4, "old"), leader_epoch=1)
    consumer = consumer_of(broker, auto_offset_reset=policy)
    consumer.seek(ORDERS, 0)
    consumer.poll(max_records=10)
    partition.truncate_to(8, NOW)
    for _ in range(3):
        Writer(partition).send(values(4, "new"), leader_epoch=2)
    if policy == "none":
        with pytest.raises(LogTruncationError, match="from offset 8 on") as caught:
            consumer.poll()
        assert caught.value.offset == 8
        consumer.seek(ORDERS, caught.value.offset)
    assert [record.offset for record in consumer.poll()] == list(range(8, 20))


def test_a_seek_with_an_epoch_notices_that_the_log_was_cut_since(broker: LocalBroker) -> None:
    """Goal: positions that were kept elsewhere carry the epoch, and reading goes on where the logs part; without a
    policy every poll says so until there is another position."""
    partition = broker.create("orders")
    for _ in range(3):
        Writer(partition).send(values(4, "old"), leader_epoch=1)
    first = consumer_of(broker)
    assert len(first.poll()) == 12
    kept = first.position_offsets()[ORDERS]
    partition.truncate_to(8, NOW)
    for _ in range(3):
        Writer(partition).send(values(4, "new"), leader_epoch=2)
    second = consumer_of(broker)
    second.seek(ORDERS, kept)
    assert second.poll()[0].offset == 8
    third = consumer_of(broker, auto_offset_reset="none")
    third.seek(ORDERS, kept)
    for _ in range(3):
        with pytest.raises(LogTruncationError, match="from offset 8 on"):
            third.poll()
    assert third.position(ORDERS) == 12
    third.seek(ORDERS, 12)
    assert third.poll()[0].offset == 12


def test_a_log_that_was_cut_below_the_position_is_out_of_range(broker: LocalBroker) -> None:
    partition = broker.create("orders")
    for _ in range(3):
        Writer(partition).send(values(4))
    consumer = consumer_of(broker)
    consumer.seek(ORDERS, 10)
    assert len(consumer.poll()) == 2
    partition.truncate_to(4, NOW)
    assert [record.offset for record in consumer.poll(max_records=100)] in ([], list(range(4)))
    assert consumer.position(ORDERS) == 4


def test_segments_that_are_removed_and_rolled_do_not_disturb_a_reader(broker: LocalBroker) -> None:
    """Goal: a reader that keeps its place in a segment finds the next one, whatever came and went meanwhile."""
    partition = broker.create("orders")
    writer = Writer(partition)
    consumer = consumer_of(broker, max_poll_records=7)
    seen: list[int] = []
    for _ in range(100):
        writer.send(values(5, size=100))
        seen += [record.offset for record in consumer.poll()]
        partition.delete_records(max(consumer.position(ORDERS) - 10, partition.log_start_offset))
    seen += [record.offset for record in consumer.poll(max_records=1000)]
    assert seen == list(range(500))
    assert partition.log.start_offset > 0


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("read", [drained, drained_arrow])
def test_a_batch_that_cannot_be_read_is_named_after_all_before_it_and_can_be_left_out(
    broker: LocalBroker, tmp_path: Path, read: Callable[..., list[bytes | None]]
) -> None:
    """Goal: records before it come first, the error names partition and offset, the position stays, a seek goes on."""
    partition = broker.create("orders")
    writer = Writer(partition)
    sent = [values(3, f"{number}-") for number in range(6)]
    for batch in sent:
        writer.send(batch)
    path = tmp_path / "orders-0" / "00000000000000000000.log"
    row = scan(path.read_bytes())[3]
    with path.open("r+b") as file:
        file.seek(int(row["position"]) + 70)
        (byte,) = file.read(1)
        file.seek(int(row["position"]) + 70)
        file.write(bytes([byte ^ 1]))
    other = Writer(broker.create("orders", 1))
    other.send([b"other"])
    consumer = consumer_of(broker, max_poll_records=4)
    found: list[bytes | None] = []
    while len(found) < 9:
        if read is drained:
            found += [record.value for record in consumer.poll()]
        else:
            found += consumer.poll_arrow()["value"].to_pylist()
    with pytest.raises(CorruptRecordError) as caught:
        read(consumer)
    assert found == [value for batch in sent[:3] for value in batch]
    assert "orders-0 cannot be read from offset 9 on" in str(caught.value)
    assert "seek to 12" in str(caught.value)
    assert (caught.value.base_offset, caught.value.file) == (9, str(path))
    assert consumer.position(ORDERS) == 9
    with pytest.raises(CorruptRecordError):
        consumer.poll()
    consumer.assign([ORDERS, ("orders", 1)])
    other_seen = False
    for _ in range(4):
        try:
            other_seen |= [record.value for record in consumer.poll()] == [b"other"]
        except CorruptRecordError:
            continue
    assert other_seen, "one damaged partition does not keep the others from being read"
    consumer.seek(ORDERS, 12)
    assert read(consumer) == [value for batch in sent[4:] for value in batch]


@pytest.mark.parametrize("read", [drained, drained_arrow])
def test_damage_in_what_was_just_written_is_named_by_its_place_in_the_file(
    broker: LocalBroker, tmp_path: Path, read: Callable[..., list[bytes | None]]
) -> None:
    """Goal: the last few bytes are copied and not mapped, which nobody can tell from the error."""
    partition = broker.create("orders")
    writer = Writer(partition)
    writer.send(values(3))
    consumer = consumer_of(broker)
    assert read(consumer) == values(3)
    position = partition.log.active.size
    writer.send([b"sound"])
    damaged = partition.log.active.size
    writer.send([b"damaged"])
    assert len(memoryview(partition.log.active._mapping)) <= position
    path = tmp_path / "orders-0" / "00000000000000000000.log"
    with path.open("r+b") as file:
        file.seek(damaged + 70)
        file.write(b"?")
    assert [record.value for record in consumer.poll()] == [b"sound"]
    with pytest.raises(
        CorruptRecordError, match="orders-0 cannot be read from offset 4 on"
    ) as caught:
        read(consumer)
    assert (caught.value.position, caught.value.file) == (damaged, str(path))


# ---------------------------------------------------------------- use and misuse


def test_a_closed_consumer_says_so(broker: LocalBroker) -> None:
    partition = broker.create("orders")
    with consumer_of(broker) as consumer:
        watcher_count = len(partition.watchers)
    assert watcher_count == 1
    consumer.close()
    assert not partition.watchers
    calls: list[Callable[[], object]] = [
        consumer.poll,
        consumer.poll_arrow,
        consumer.assignment,
        consumer.metrics,
        consumer.position_offsets,
        consumer.seek_to_end,
        lambda: consumer.assign([ORDERS]),
        lambda: consumer.seek(ORDERS, 0),
        lambda: next(iter(consumer)),
    ]
    for call in calls:
        with pytest.raises(ClosedError, match="consumer is closed"):
            call()
    assert repr(consumer) == "Consumer(read_committed, closed)"


def test_a_consumer_that_nobody_closed_is_let_go(broker: LocalBroker) -> None:
    """Goal: a forgotten consumer costs nothing: the log does not hold it, and stops calling it."""
    partition = broker.create("orders")
    consumer = consumer_of(broker)
    held = weakref.ref(consumer)
    del consumer
    gc.collect()
    assert held() is None
    Writer(partition).send([b"v"])
    assert partition.watchers == ()


def test_two_threads_at_once_are_refused(broker: LocalBroker) -> None:
    broker.create("orders")
    consumer = consumer_of(broker)
    with ThreadPoolExecutor() as pool:
        polling = pool.submit(consumer.poll, 10_000)
        while _is_free(consumer):
            pass
        for call in (consumer.poll, consumer.close, consumer.assignment):
            with pytest.raises(IllegalStateError, match="in use by another thread"):
                call()
        consumer.wakeup()
        with pytest.raises(WakeupError):
            polling.result()
    assert consumer.assignment() == {ORDERS}


def _is_free(consumer: Consumer) -> bool:
    try:
        consumer.assignment()
    except IllegalStateError:
        return False
    return True


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_was_forked_off_cannot_use_its_parents_consumer(broker: LocalBroker) -> None:
    Writer(broker.create("orders")).send(values(2))
    consumer = consumer_of(broker)
    child = os.fork()
    if not child:
        code = 1
        try:
            consumer.poll()
        except ClosedError as error:
            consumer.close()
            code = 0 if "forked" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert drained(consumer) == values(2)


def test_options_are_kafkas_and_an_unknown_one_is_refused(broker: LocalBroker) -> None:
    with pytest.raises(InvalidConfigError, match=r"max.poll.records"):
        Consumer(broker, max_poll_record=3)
    with pytest.raises(InvalidConfigError, match="isolation"):
        Consumer(broker, isolation_level="committed")
    consumer = Consumer(broker, **{"max.poll.records": "3"})
    for wrong in (0, -1):
        with pytest.raises(InvalidRequestError, match="at least 1"):
            consumer.poll(max_records=wrong)
        with pytest.raises(InvalidRequestError, match="at least 1"):
            consumer.poll_arrow(max_records=wrong)
        with pytest.raises(InvalidRequestError, match="at least 1"):
            consumer.poll_arrow(max_bytes=wrong)
