"""What a consumer sees of transactions: section 16 of the checklist (kafka-cases), each line a promise.

Histories are written through the partition itself, with a coordinator's markers; damage and compaction are real.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import oncelog
from oncelog.base.errors import (
    CorruptRecordError,
    InvalidRecordError,
    LogTruncationError,
    OffsetOutOfRangeError,
)
from oncelog.client.consumer import Consumer
from oncelog.segment.batch import rewrite, scan
from oncelog.segment.names import TopicPartition

from ..golden_cases import GOLDEN, expected
from ..partition.histories import DAY_MS, History
from ..partition.histories import KEY as COMPACTED
from ..partition.logs import ABORT, COMMIT, NOW, Writer, options, values
from .local_broker import LocalBroker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncelog.partition.partition import Partition

ORDERS = TopicPartition("orders", 0)
LEVELS = ("read_committed", "read_uncommitted")
WAYS = ("records", "columns", "views")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    with contextlib.closing(LocalBroker(tmp_path / "data", options(segment_bytes=1500))) as broker:
        yield broker


def consumer_of(broker: LocalBroker, key: tuple[str, int] = ORDERS, **rest: Any) -> Consumer:
    rest.setdefault("auto_offset_reset", "earliest")
    consumer = Consumer(broker, **rest)
    consumer.assign([key])
    return consumer


def polled(
    consumer: Consumer, way: str = "records", count: int | None = None
) -> list[tuple[int, bytes]]:
    """(offset, value) of one poll."""
    if way == "records":
        return [(record.offset, record.value or b"") for record in consumer.poll(max_records=count)]
    batch = consumer.poll_arrow(views=way == "views", max_records=count)
    return list(zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True))


def everything(
    consumer: Consumer, way: str = "records", count: int | None = None
) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    while more := polled(consumer, way, count):
        found += more
    return found


def at(broker: LocalBroker, level: str, key: tuple[str, int] = ORDERS) -> list[tuple[int, bytes]]:
    """Everything a fresh consumer sees, the same by every way and in pieces of any size."""
    found = everything(consumer_of(broker, key, isolation_level=level))
    for way in WAYS:
        for count in (None, 1, 3):
            again = consumer_of(broker, key, isolation_level=level)
            assert everything(again, way, count) == found
            assert again.position(key) == again.end_offsets([key])[TopicPartition(*key)]
            assert again.lag(key) == 0
    return found


# ---------------------------------------------------------------- aborted, committed, open


def test_aborted_records_are_dropped_up_to_the_marker_and_what_the_producer_sends_then_is_seen(
    broker: LocalBroker,
) -> None:
    writer = Writer(broker.create("orders"), 1)
    writer.send(values(3, "doomed"), transactional=True)
    writer.send(values(2, "doomed too"), transactional=True)
    writer.end(ABORT)
    writer.send(values(2, "kept"), transactional=True)
    writer.end(COMMIT)
    assert at(broker, "read_committed") == [(6, b"kept0"), (7, b"kept1")]


def test_at_read_uncommitted_aborted_and_open_records_are_seen_and_control_records_never(
    broker: LocalBroker,
) -> None:
    writer = Writer(broker.create("orders"), 1)
    writer.send([b"aborted"], transactional=True)
    writer.end(ABORT)
    writer.send([b"committed"], transactional=True)
    writer.end(COMMIT)
    writer.send([b"open"], transactional=True)
    assert at(broker, "read_uncommitted") == [(0, b"aborted"), (2, b"committed"), (4, b"open")]
    assert at(broker, "read_committed") == [(2, b"committed")]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("way", WAYS)
def test_a_poll_that_returns_nothing_still_moves_past_aborted_records_markers_and_gaps(
    broker: LocalBroker, level: str, way: str
) -> None:
    """Goal: lag reaches 0 where there is nothing to return, and reading goes on behind it."""
    partition = broker.create("orders")
    doomed = Writer(partition, 1)
    consumer = consumer_of(broker, isolation_level=level)
    for _ in range(3):
        doomed.end(ABORT)  # without data
    assert polled(consumer, way) == []
    assert consumer.position(ORDERS) == 3
    if level == "read_committed":
        for _ in range(50):  # over several segments
            doomed.send(values(2, size=100), transactional=True)
        doomed.end(ABORT)
        assert len(partition.log.segments) > 3
        assert polled(consumer, way) == []
        assert (consumer.position(ORDERS), consumer.lag(ORDERS)) == (104, 0)
    end = partition.log_end_offset
    Writer(partition).send([b"after"])
    assert polled(consumer, way) == [(end, b"after")]


def test_the_position_passes_the_marker_behind_the_last_record_that_was_returned(
    broker: LocalBroker,
) -> None:
    """Goal: lag is 0 once the last committed record is read, though a marker follows it, also where max.poll.records
    ends the poll right there."""
    writer = Writer(broker.create("orders"), 1)
    writer.send(values(4), transactional=True)
    writer.end(COMMIT)
    for way in WAYS:
        consumer = consumer_of(broker)
        assert len(polled(consumer, way, 4)) == 4
        assert (consumer.position(ORDERS), consumer.lag(ORDERS)) == (5, 0)


def test_abort_markers_without_data_and_several_of_one_producer_hide_nothing_else(
    broker: LocalBroker,
) -> None:
    partition = broker.create("orders")
    one, plain = Writer(partition, 1), Writer(partition)
    one.end(ABORT)
    plain.send([b"a"])
    one.send([b"doomed"], transactional=True)
    one.end(ABORT)
    one.end(ABORT)
    one.send([b"b"], transactional=True)
    one.end(COMMIT)
    one.end(ABORT)
    plain.send([b"c"])
    assert [value for _, value in at(broker, "read_committed")] == [b"a", b"b", b"c"]


def test_interleaved_producers_commit_and_abort_and_only_what_was_committed_is_seen_in_order(
    broker: LocalBroker,
) -> None:
    """Goal: also plain and idempotent records between them, and markers in later segments than their records."""
    partition = broker.create("orders")
    writers = [Writer(partition, number) for number in range(1, 5)]
    plain, fates, kept = Writer(partition), (COMMIT, ABORT, COMMIT, ABORT), []
    for turn in range(12):
        for number, writer in enumerate(writers):
            name = f"{turn}-{number}-"
            done = writer.send(values(2, name, size=60), transactional=True)
            if fates[(turn // 3 + number) % 4] is COMMIT:
                kept += [
                    (done.base_offset + index, value)
                    for index, value in enumerate(values(2, name, size=60))
                ]
            if turn % 3 == 2:
                writer.end(fates[(turn // 3 + number) % 4])
        done = plain.send([b"plain"])
        kept.append((done.base_offset, b"plain"))
    assert at(broker, "read_committed") == sorted(kept)


def test_an_open_transaction_holds_the_reader_back_until_its_end_is_known(
    broker: LocalBroker,
) -> None:
    partition = broker.create("orders")
    slow, quick = Writer(partition, 1), Writer(partition, 2)
    consumer = consumer_of(broker)
    slow.send([b"slow"], transactional=True)
    quick.send([b"quick"], transactional=True)
    quick.end(COMMIT)
    assert polled(consumer) == []
    assert (consumer.position(ORDERS), consumer.lag(ORDERS)) == (0, 0)
    assert consumer.end_offsets([ORDERS]) == {ORDERS: 0}
    slow.end(ABORT)
    assert polled(consumer) == [(1, b"quick")]


def test_a_log_start_inside_an_open_transaction_shows_nothing_of_it(broker: LocalBroker) -> None:
    """Goal: records of an open transaction stay hidden where deletion has cut off its beginning, and none is skipped
    once it is committed."""
    partition = broker.create("orders")
    writer = Writer(partition, 1)
    writer.send(values(6), transactional=True)
    partition.delete_records(2)
    consumer = consumer_of(broker)
    for way in WAYS:
        assert polled(consumer, way) == []
        assert consumer.position(ORDERS) == 2
    writer.end(COMMIT)
    assert [offset for offset, _ in polled(consumer)] == [2, 3, 4, 5]


def test_a_seek_past_the_last_stable_offset_waits_there(broker: LocalBroker) -> None:
    partition = broker.create("orders")
    writer = Writer(partition, 1)
    writer.send(values(6), transactional=True)
    consumer = consumer_of(broker)
    consumer.seek(ORDERS, 4)
    assert polled(consumer) == []
    assert (consumer.position(ORDERS), consumer.lag(ORDERS)) == (4, 0)
    writer.end(COMMIT)
    assert [offset for offset, _ in polled(consumer)] == [4, 5]


def test_lag_is_counted_to_the_last_stable_offset_and_lead_from_the_log_start(
    broker: LocalBroker,
) -> None:
    partition = broker.create("orders")
    Writer(partition).send(values(10))
    Writer(partition, 1).send(values(5), transactional=True)
    partition.delete_records(3)
    for level, end in (("read_committed", 10), ("read_uncommitted", 15)):
        consumer = consumer_of(broker, isolation_level=level)
        polled(consumer, count=2)
        assert (consumer.lag(ORDERS), consumer.lead(ORDERS)) == (end - 5, 2)
        assert consumer.end_offsets([ORDERS]) == {ORDERS: end}
        figures = consumer.metrics()["consumer-fetch-manager-metrics.orders-0"]
        assert figures == {"records-lag": end - 5, "records-lead": 2}
        consumer.seek_to_end()
        assert (consumer.position(ORDERS), consumer.lag(ORDERS)) == (end, 0)


def test_latest_is_the_last_stable_offset_for_who_reads_committed(broker: LocalBroker) -> None:
    """Goal: a transaction that is open when the consumer begins is seen once it commits."""
    partition = broker.create("orders")
    writer = Writer(partition, 1)
    Writer(partition).send(values(3))
    writer.send([b"open"], transactional=True)
    consumer = consumer_of(broker, auto_offset_reset="latest")
    assert polled(consumer) == []
    writer.end(COMMIT)
    assert polled(consumer) == [(3, b"open")]


# ---------------------------------------------------------------- compacted logs


@pytest.fixture
def history(broker: LocalBroker, tmp_path: Path) -> Iterator[History]:
    """A log that is cleaned by hand, among the broker's."""
    history = History(tmp_path / "compact-0")
    broker.take_in(history.partition)
    with contextlib.closing(history.partition):
        yield history


def test_an_abort_marker_whose_data_was_compacted_away_is_passed(
    broker: LocalBroker, history: History
) -> None:
    history.txn(1, (b"a", b"doomed"), (b"b", b"doomed"))
    history.abort(1)
    history.put((b"k", b"kept"))
    history.clean()
    assert 2 in history.markers()
    assert 0 not in history.offsets()
    history.put((b"z", b"last"))
    for level in LEVELS:
        assert at(broker, level, COMPACTED) == [(3, b"kept"), (4, b"last")]


def test_where_the_last_record_of_a_batch_is_gone_the_position_is_behind_the_batch(
    broker: LocalBroker, history: History
) -> None:
    """Goal: the position after a batch is its last offset + 1, whatever records it still has."""
    history.put((b"a", b"1"), (b"b", b"2"), (b"c", b"old"))
    history.put((b"c", b"new"))
    history.clean()
    assert history.offsets() == [0, 1, 3]
    for way in WAYS:
        consumer = consumer_of(broker, COMPACTED)
        assert [offset for offset, _ in polled(consumer, way)] == [0, 1, 3]
        assert consumer.position(COMPACTED) == 4
    consumer = consumer_of(broker, COMPACTED)
    consumer.seek(COMPACTED, 2)  # which is gone
    assert [offset for offset, _ in polled(consumer)] == [3]


def test_empty_batches_are_passed_without_a_record_and_without_a_loop(broker: LocalBroker) -> None:
    """Goal: a batch that compaction has emptied, of data or of a marker, moves the position and nothing else.
    Method: batches with no records, appended as a leader would have replicated them."""
    partition = broker.create("orders")
    writer = Writer(partition, 7)
    writer.send(values(3), transactional=True)
    writer.end(COMMIT)
    rows = np.concatenate(list(partition.log.active.rows()))
    for row in (rows[0], rows[1]):  # data, then control
        fields = row.copy()
        fields["base_offset"] = partition.log_end_offset
        fields["producer_id"], fields["producer_epoch"] = -1, -1
        fields["base_sequence"] = -1
        partition.append_as_follower(bytearray(memoryview(rewrite(fields, None))), now_ms=NOW)
    assert partition.log_end_offset == 8
    for level in LEVELS:
        for way in WAYS:
            consumer = consumer_of(broker, isolation_level=level)
            assert [offset for offset, _ in polled(consumer, way)] == [0, 1, 2]
            assert polled(consumer, way) == []
            assert consumer.position(ORDERS) == 8


def test_compaction_under_a_reader_neither_repeats_nor_shows_what_was_aborted(
    broker: LocalBroker,
    history: History,
) -> None:
    """Goal: segments are replaced while a consumer is in the middle of them.
    Method: poll a few records, clean, poll on; nothing that a reader of the cleaned log would see is missing."""
    for turn in range(12):
        history.txn(1, *((f"k{number}".encode(), f"{turn}".encode()) for number in range(4)))
        history.end(1, commit=turn % 3 != 0)
        if turn % 2:
            history.roll()
    for first in range(1, 30):
        consumer = consumer_of(broker, COMPACTED)
        before = polled(consumer, count=first)
        history.now_ms += DAY_MS
        history.clean(delete_retention_ms=0)
        seen = before + everything(consumer)
        assert [offset for offset, _ in seen] == sorted({offset for offset, _ in seen})
        left = set(history.committed())
        assert left <= set(seen) | set(before)
        assert not [value for _, value in seen if int(value) % 3 == 0]


# ---------------------------------------------------------------- damage, ranges, stale answers


def damage(partition: Partition, offset: int, change: int = 70) -> None:
    """Flips a bit in the batch that holds an offset."""
    segment = partition.log.from_offset(offset)[0]
    position = segment.position_of(offset) + change
    with open(f"{partition.directory}/{segment.base_offset:020d}.log", "r+b") as file:  # noqa: PTH123
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("way", WAYS)
def test_a_bad_checksum_names_partition_and_offset_and_a_seek_past_it_goes_on(
    broker: LocalBroker, way: str
) -> None:
    partition = broker.create("orders")
    writer = Writer(partition, 1)
    for number in range(4):
        writer.send(values(2, f"{number}-"), transactional=True)
    writer.end(COMMIT)
    damage(partition, 4)
    consumer = consumer_of(broker)
    assert [offset for offset, _ in polled(consumer, way)] == [0, 1, 2, 3]
    for _ in range(2):
        with pytest.raises(
            CorruptRecordError, match=r"orders-0 cannot be read from offset 4 on.*seek to 6"
        ):
            polled(consumer, way)
        assert consumer.position(ORDERS) == 4
    consumer.seek(ORDERS, 6)
    assert [offset for offset, _ in polled(consumer, way)] == [6, 7]


@pytest.mark.parametrize("way", WAYS)
def test_without_check_crcs_a_record_that_breaks_its_own_promises_is_still_found(
    broker: LocalBroker, way: str
) -> None:
    """Goal: a bad record, as distinct from a bad checksum, names its place as well, and the position stays."""
    partition = broker.create("orders")
    for number in range(3):
        Writer(partition).send(values(2, f"{number}-"))
    damage(partition, 2, change=61)  # the length of the batch's first record
    consumer = consumer_of(broker, check_crcs=False)
    assert [offset for offset, _ in polled(consumer, way)] == [0, 1]
    with pytest.raises(
        InvalidRecordError, match="orders-0 cannot be read from offset 2 on"
    ) as caught:
        polled(consumer, way)
    assert caught.value.record >= 0
    assert consumer.position(ORDERS) == 2
    consumer.seek(ORDERS, 4)
    assert [offset for offset, _ in polled(consumer, way)] == [4, 5]


def test_a_damaged_batch_of_an_aborted_transaction_is_an_error_at_both_levels(
    broker: LocalBroker,
) -> None:
    """Goal: as in Kafka's consumer each batch is proven, as damage may be what hides it; check.crcs decides."""
    partition = broker.create("orders")
    writer = Writer(partition, 1)
    writer.send([b"doomed"], transactional=True)
    writer.end(ABORT)
    Writer(partition).send([b"kept"])
    damage(partition, 0)
    careless = consumer_of(broker, check_crcs=False)
    assert [value for _, value in everything(careless)] == [b"kept"]
    for level in LEVELS:
        with pytest.raises(CorruptRecordError, match="orders-0 cannot be read from offset 0 on"):
            polled(consumer_of(broker, isolation_level=level))


@pytest.mark.parametrize("way", WAYS)
def test_an_offset_out_of_range_is_reset_or_an_error(broker: LocalBroker, way: str) -> None:
    partition = broker.create("orders")
    Writer(partition).send(values(9))
    partition.delete_records(4)
    for policy, first in (("earliest", 4), ("latest", 9), ("by_duration:P1D", 4), ("none", None)):
        for start in (1, 20):
            consumer = consumer_of(broker, auto_offset_reset=policy)
            consumer.seek(ORDERS, start)
            if first is None:
                with pytest.raises(OffsetOutOfRangeError, match=f"has offsets 4 to 9.*{start}"):
                    polled(consumer, way)
            else:
                assert [offset for offset, _ in polled(consumer, way)] == list(range(first, 9))


def test_an_answer_from_before_a_seek_is_dropped(broker: LocalBroker) -> None:
    partition = broker.create("orders")
    for _ in range(6):
        Writer(partition).send(values(3))
    consumer = consumer_of(broker)
    for way in WAYS:
        for target in (13, 2, 17, 0):
            polled(consumer, way, 2)
            consumer.seek(ORDERS, target)
            assert polled(consumer, way, 1)[0][0] == target


@pytest.mark.parametrize("way", WAYS)
def test_a_truncation_is_seen_by_its_epoch_and_the_diverging_offset_is_named(
    broker: LocalBroker, way: str
) -> None:
    """Goal: with a policy reading goes on where the logs part, without one the error says where that is."""
    partition = broker.create("orders")
    Writer(partition).send(values(4, "a"), leader_epoch=1)
    Writer(partition).send(values(4, "b"), leader_epoch=2)
    consumers = {
        policy: consumer_of(broker, auto_offset_reset=policy) for policy in ("earliest", "none")
    }
    for consumer in consumers.values():
        consumer.seek(ORDERS, 0)
        assert len(everything(consumer, way)) == 8
    partition.truncate_to(4, NOW)
    Writer(partition).send(values(6, "c"), leader_epoch=3)
    assert [offset for offset, _ in polled(consumers["earliest"], way)] == list(range(4, 10))
    with pytest.raises(LogTruncationError) as caught:
        polled(consumers["none"], way)
    assert caught.value.offset == 4


# ---------------------------------------------------------------- a real broker's log


@pytest.mark.parametrize("name", ["txn-mixed", "epoch-bumps"])
def test_a_real_brokers_log_is_read_as_a_real_consumer_read_it(
    broker: LocalBroker, name: str
) -> None:
    """Goal: offsets at both levels are those that Kafka's own consumer returned, in pieces of any size."""
    with oncelog.open(GOLDEN / name / "data", read_only=True) as log:
        for topic, numbers in log.topics().items():
            for number in numbers:
                known = expected(name)["partitions"].get(f"{topic}-{number}")
                if known is None or topic.startswith("__"):
                    continue
                key = TopicPartition(topic, number)
                broker.take_in(log.partition(topic, number))
                found = [offset for offset, _ in at(broker, "read_committed", key)]
                assert found == known["readCommittedOffsets"]
                found = [offset for offset, _ in at(broker, "read_uncommitted", key)]
                assert found == [record["offset"] for record in known["readUncommitted"]]


def test_scan_agrees_about_what_was_written(broker: LocalBroker) -> None:
    """Goal: the histories above are what they claim to be: markers are control batches in the files."""
    partition = broker.create("orders")
    writer = Writer(partition, 1)
    writer.send([b"v"], transactional=True)
    writer.end(COMMIT)
    assert scan(partition.log.active.view())["control_type"].tolist() == [-1, 1]
