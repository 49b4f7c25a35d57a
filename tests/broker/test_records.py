"""Produce, fetch, offsets, deletion and watching, through the broker's verbs."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from oncelog.base.errors import (
    ClosedError,
    DirectoryLockedError,
    FencedLeaderEpochError,
    InvalidConfigError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from oncelog.broker.broker import Broker
from oncelog.broker.topics import NewTopic
from oncelog.segment.batch import records
from oncelog.segment.names import TopicPartition

from .brokers import (
    COMMITTED,
    NOW,
    ORDERS,
    UNCOMMITTED,
    ManualClock,
    VerbProducer,
    opened,
    plain,
    values_of,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_produced_is_fetched_with_its_offsets(tmp_path: Path) -> None:
    with opened(tmp_path, topics={"orders": 1}) as broker:
        first = broker.produce(ORDERS, plain(broker, b"a", b"b"))
        second = broker.produce(ORDERS, plain(broker, b"c"))
        assert (first.base_offset, first.last_offset) == (0, 1)
        assert (second.base_offset, second.last_offset) == (2, 2)
        fetched = broker.fetch(ORDERS, 2)
        assert [record.value for record in records(fetched.records)] == [b"c"]
        assert (fetched.high_watermark, fetched.last_stable_offset) == (3, 3)


def test_a_fetch_says_which_transactions_were_aborted(tmp_path: Path) -> None:
    with opened(tmp_path, topics={"orders": 1}) as broker:
        producer = VerbProducer(broker, "teller")
        producer.send(ORDERS, b"a")
        producer.abort()
        fetched = broker.fetch(ORDERS, 0)
        assert fetched.aborted is not None
        assert [int(row["first_offset"]) for row in fetched.aborted] == [0]
        assert broker.fetch(ORDERS, 0, isolation=UNCOMMITTED).aborted is None


@pytest.mark.parametrize("offset", [-1, 2])
def test_a_fetch_outside_of_the_log_names_its_bounds(tmp_path: Path, offset: int) -> None:
    with opened(tmp_path, topics={"orders": 1}) as broker:
        broker.produce(ORDERS, plain(broker, b"a"))
        with pytest.raises(OffsetOutOfRangeError, match="offsets 0 to 1"):
            broker.fetch(ORDERS, offset)


def test_a_caller_with_another_leader_epoch_is_told_so(tmp_path: Path) -> None:
    with opened(tmp_path, topics={"orders": 1}):
        pass
    with opened(tmp_path) as broker:
        broker.fetch(ORDERS, 0, leader_epoch=1)
        with pytest.raises(FencedLeaderEpochError):
            broker.fetch(ORDERS, 0, leader_epoch=0)
        with pytest.raises(UnknownLeaderEpochError):
            broker.list_offsets(ORDERS, -1, leader_epoch=2)


def test_offsets_are_listed_by_name_and_by_time(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path, topics={"orders": 1}, clock=clock) as broker:
        assert broker.list_offsets(ORDERS, -3) == (-1, -1, -1)
        for _ in range(3):
            broker.produce(ORDERS, plain(broker, b"v"))
            clock.advance(1000)
        broker.delete_records(ORDERS, 1)
        assert broker.list_offsets(ORDERS, -2) == (1, -1, 0)
        assert broker.list_offsets(ORDERS, -1) == (3, -1, 0)
        assert broker.list_offsets(ORDERS, -3) == (2, NOW + 2000, 0)
        assert broker.list_offsets(ORDERS, NOW + 500) == (1, NOW + 1000, 0)
        assert broker.list_offsets(ORDERS, NOW) == (1, NOW + 1000, 0)
        assert broker.list_offsets(ORDERS, NOW + 2001) == (-1, -1, -1)
        with pytest.raises(InvalidRequestError):
            broker.list_offsets(ORDERS, -9)


def test_deleted_records_are_gone_at_once_and_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path, topics={"orders": 1}) as broker:
        for value in (b"a", b"b", b"c"):
            broker.produce(ORDERS, plain(broker, value))
        assert broker.delete_records(ORDERS, 2) == 2
        assert values_of(broker) == [b"c"]
        with pytest.raises(OffsetOutOfRangeError):
            broker.delete_records(ORDERS, 4)
    with opened(tmp_path) as broker:
        assert values_of(broker) == [b"c"]
        assert broker.delete_records(ORDERS, -1) == 3
        assert values_of(broker) == []


def test_unknown_topics_and_partitions_name_what_there_is(tmp_path: Path) -> None:
    with opened(tmp_path, topics={"orders": 2}) as broker:
        with pytest.raises(UnknownTopicOrPartitionError, match="no topic 'nothing', only orders"):
            broker.produce(TopicPartition("nothing", 0), plain(broker, b"v"))
        with pytest.raises(UnknownTopicOrPartitionError, match="partitions 0 to 1, not 2"):
            broker.produce(TopicPartition("orders", 2), plain(broker, b"v"))
        with pytest.raises(UnknownTopicOrPartitionError):
            broker.fetch(TopicPartition("orders", -1), 0)


def test_a_watch_wakes_on_records_and_on_the_end_of_a_transaction_until_it_is_closed(
    tmp_path: Path,
) -> None:
    with opened(tmp_path, topics={"orders": 2}) as broker:
        woken = []
        producer = VerbProducer(broker, "teller")
        watch = broker.watch(
            [ORDERS], lambda: woken.append(broker.partition(ORDERS).last_stable_offset)
        )
        broker.produce(ORDERS, plain(broker, b"v"))
        assert woken[-1] == 1
        producer.send(ORDERS, b"v")
        producer.commit()
        assert woken[-1] == 3
        count = len(woken)
        broker.produce(TopicPartition("orders", 1), plain(broker, b"v"))
        assert len(woken) == count
        watch.close()
        watch.close()
        broker.produce(ORDERS, plain(broker, b"v"))
        assert len(woken) == count


def test_one_process_writes_and_the_second_is_refused_with_the_holder_s_name(
    tmp_path: Path,
) -> None:
    with opened(tmp_path), pytest.raises(DirectoryLockedError, match=str(os.getpid())):
        Broker(tmp_path)


def test_a_closed_broker_refuses_every_verb_and_closing_again_is_harmless(tmp_path: Path) -> None:
    with opened(tmp_path, topics={"orders": 1}) as broker:
        batch = plain(broker, b"v")
        broker.close()
        broker.close()
        for use in (
            lambda: broker.produce(ORDERS, batch),
            lambda: broker.fetch(ORDERS, 0),
            lambda: broker.create_topics([NewTopic("a", 1)]),
            lambda: broker.init_producer_id("teller"),
            lambda: broker.list_offsets(ORDERS, -1),
        ):
            with pytest.raises(ClosedError):
                use()


def test_a_broker_that_cannot_start_gives_the_directory_back(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="durability"):
        Broker(tmp_path, durability="hope")
    with pytest.raises(InvalidConfigError, match="retention"):
        Broker(tmp_path, config={"log.retention.msec": 1})
    with opened(tmp_path, topics={"orders": 1}) as broker:
        assert broker.topics() == ["orders"]


def test_in_fsync_durability_an_append_is_acknowledged_after_its_sync(tmp_path: Path) -> None:
    with opened(tmp_path, topics={"orders": 1}, durability="fsync") as broker:
        produced = broker.produce(ORDERS, plain(broker, b"v"))
        partition = broker.partition(ORDERS)
        assert produced.pending is not None
        assert partition.durable_end_offset == 0
        produced.pending.wait()
        assert partition.durable_end_offset == 1
        assert broker.produce(ORDERS, plain(broker, b"v"), acks=0).pending is None


def test_producers_of_many_threads_lose_nothing(tmp_path: Path) -> None:
    """Goal: partitions, ids and topics hold when eight threads use them at once."""
    with opened(tmp_path, topics={"orders": 4}) as broker:
        errors: list[BaseException] = []

        def run(number: int) -> None:
            try:
                producer = VerbProducer(broker, f"teller-{number}")
                for round_number in range(20):
                    for partition in range(4):
                        key = TopicPartition("orders", partition)
                        producer.send(key, f"{number}/{round_number}".encode())
                    producer.end(committed=round_number % 4 != 0)
            except Exception as error:  # noqa: BLE001
                errors.append(error)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not errors
        for partition in range(4):
            found = values_of(broker, TopicPartition("orders", partition), COMMITTED)
            assert len(found) == len(set(found)) == 8 * 15
