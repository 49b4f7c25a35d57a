"""A topic is deleted while somebody writes, waits, cleans or reads: nobody is hurt, and nobody is told a wrong reason."""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING, Any

import pytest

from oncelog.base.disk import Disk
from oncelog.base.errors import KafkaStorageError, UnknownTopicOrPartitionError
from oncelog.broker.topics import NewTopic
from oncelog.client.client import Log
from oncelog.partition.data_directory import DataDirectory
from oncelog.segment.names import TopicPartition

from .brokers import NOW, ORDERS, ManualClock, VerbProducer, create, opened, plain, values_of

if TYPE_CHECKING:
    from pathlib import Path

OTHERS = TopicPartition("others", 0)
DAY = 24 * 3600 * 1000


def test_a_partition_that_was_deleted_is_unknown_and_not_closed(tmp_path: Path) -> None:
    """Goal: who found a partition just before its topic went hears that the topic is gone, as anybody later."""
    with opened(tmp_path, topics={"orders": 1}, durability="fsync") as broker:
        broker.produce(ORDERS, plain(broker, b"a"))
        partition = broker.partition(ORDERS)
        broker.delete_topics(["orders"])
        with pytest.raises(UnknownTopicOrPartitionError, match="deleted"):
            partition.append_as_leader(plain(broker, b"b"), leader_epoch=0, now_ms=NOW)
        with pytest.raises(UnknownTopicOrPartitionError, match="deleted"):
            partition.sync_to(1)


def test_a_commit_goes_on_without_a_partition_that_is_deleted_during_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, topics={"orders": 1, "others": 1}, durability="fsync") as broker:
        producer = VerbProducer(broker, "teller")
        producer.send(ORDERS, b"gone")
        producer.send(OTHERS, b"kept")
        partition = broker.partition(ORDERS)
        found = broker.partition

        def delete_behind(key: TopicPartition) -> Any:
            result = found(key)
            if key == ORDERS and not partition.is_closed:
                broker.delete_topics(["orders"])
            return result

        monkeypatch.setattr(broker, "partition", delete_behind)
        producer.commit()
        assert values_of(broker, OTHERS) == [b"kept"]


def test_readers_that_wait_are_woken_when_their_topic_is_deleted(tmp_path: Path) -> None:
    with opened(tmp_path, topics={"orders": 1}) as broker:
        woken = threading.Event()
        broker.watch([ORDERS], woken.set)
        broker.delete_topics(["orders"])
        assert woken.is_set()


def test_a_sync_that_ends_after_its_topic_writes_nothing_into_the_slot_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a reader in another process never gets the offsets of a partition that is gone for those of a new one.

    Method: the topic is deleted, and its slot taken by another topic, between a sync and what it tells readers.
    """
    with opened(tmp_path, topics={"orders": 1}, durability="fsync") as broker:
        broker.produce(ORDERS, plain(broker, *(b"%d" % number for number in range(50))))
        partition = broker.partition(ORDERS)
        commits = partition._commits

        class DeletingAfter:
            def __getattr__(self, name: str) -> Any:
                return getattr(commits, name)

            def reach(self, offset: int) -> None:
                commits.reach(offset)
                broker.delete_topics(["orders"])
                create(broker, {"others": 1})
                pending = broker.produce(OTHERS, plain(broker, b"only")).pending
                assert pending is not None
                pending.wait()

        monkeypatch.setattr(partition, "_commits", DeletingAfter())
        partition.sync_to(50)
        reader = DataDirectory(tmp_path, now_ms=lambda: NOW)
        assert reader.get(OTHERS).log_end_offset == 1
        reader.close()


def test_a_deleted_topic_does_not_end_the_housekeeping(tmp_path: Path) -> None:
    """Goal: jobs that meet a partition which was deleted meanwhile go on with the others, now and later."""
    clock = ManualClock()
    with opened(tmp_path, topics={"orders": 1, "others": 1}, clock=clock) as broker:
        gone = broker.partition(ORDERS)
        broker.delete_topics(["orders"])
        broker._open[ORDERS] = gone  # as if it had been listed a moment before
        clock.advance(DAY)
        assert broker.tick() >= 0
        del broker._open[ORDERS]


def test_the_housekeeping_thread_outlives_a_partition_that_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oncelog.base.errors import ClosedError

    ticked = threading.Semaphore(0)
    with Log(tmp_path) as log:

        def tick() -> int:
            ticked.release()
            raise ClosedError("orders-0 is closed")

        monkeypatch.setattr(log.broker, "tick", tick)
        assert ticked.acquire(timeout=5)
        assert ticked.acquire(timeout=5), "the thread has ended"


@pytest.mark.parametrize("job", ["apply_retention", "compact"])
def test_one_partition_that_fails_does_not_keep_the_others_from_being_cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    clock = ManualClock()
    config = {
        "segment.ms": 1000,
        "retention.ms": 3_600_000,
        "cleanup.policy": "delete" if job == "apply_retention" else "compact",
        "min.cleanable.dirty.ratio": 0.01,
    }
    with opened(tmp_path, clock=clock) as broker:
        for name in ("orders", "others"):
            broker.create_topics([NewTopic(name, 1, config=config)])
        from oncelog.segment.batch import encode

        for number in range(10):
            batch = encode([b"%d" % number], keys=[b"k"], timestamp_ms=clock())
            broker.produce(OTHERS, memoryview(batch))
            clock.advance(3_600_000)
        found = broker.partition

        def refuse(key: TopicPartition) -> Any:
            if key == ORDERS:
                raise KafkaStorageError("orders-0 cannot be opened")
            return found(key)

        monkeypatch.setattr(broker, "partition", refuse)
        getattr(broker, job)()
        monkeypatch.undo()
        assert len(values_of(broker, OTHERS)) < 10


class FailingDisk(Disk):
    """Refuses to rename partitions out of sight as long as it is told to."""

    is_failing = False

    def sync_directory(self, path: Any) -> None:
        if self.is_failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().sync_directory(path)


def test_a_deletion_that_failed_half_way_is_completed_by_the_same_call(tmp_path: Path) -> None:
    disk = FailingDisk()
    with opened(tmp_path, topics={"orders": 3}, disk=disk) as broker:
        broker.produce(ORDERS, plain(broker, b"a"))
        disk.is_failing = True
        assert isinstance(broker.delete_topics(["orders"])["orders"], KafkaStorageError)
        disk.is_failing = False
        assert broker.delete_topics(["orders"]) == {"orders": None}
        create(broker, {"orders": 1})
        broker.produce(ORDERS, plain(broker, b"new"))
        assert values_of(broker) == [b"new"]
        assert not [entry for entry in tmp_path.iterdir() if entry.name.endswith("-delete")]
