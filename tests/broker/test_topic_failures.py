"""Topics on a disk that fails: what was answered is so, and what is broken can still be removed."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import pytest

from oncelog.base.disk import Disk
from oncelog.base.errors import (
    InvalidRequestError,
    KafkaStorageError,
    OncelogError,
    UnknownTopicOrPartitionError,
)
from oncelog.broker.answers import TopicDescription
from oncelog.broker.topics import NewTopic
from oncelog.segment.names import TopicPartition

from .brokers import ORDERS, create, opened, plain, values_of

if TYPE_CHECKING:
    from pathlib import Path

    from oncelog.broker.broker import Broker


class _FailingDisk(Disk):
    """Fails for a while, from the n-th change on. ``healing`` says how many calls fail, -1 that all do."""

    left = 2**31
    failures = -1
    code = errno.ENOSPC

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0 and self.failures:
            self.failures -= 1
            raise OSError(self.code, "the disk fails")

    def open(self, path: Any) -> int:
        self._step()
        return super().open(path)

    def write(self, descriptor: int, data: Any, position: int) -> None:
        self._step()
        super().write(descriptor, data, position)

    def sync(self, descriptor: int) -> None:
        self._step()
        super().sync(descriptor)

    def rename(self, source: Any, target: Any) -> None:
        self._step()
        super().rename(source, target)

    def make_directory(self, path: Any) -> None:
        self._step()
        super().make_directory(path)

    def heal(self) -> None:
        self.left = 2**31


def _directories(path: Path, topic: str) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.name.startswith(f"{topic}-"))


def _is_usable(broker: Broker, topic: str, count: int) -> None:
    for number in range(count):
        key = TopicPartition(topic, number)
        broker.produce(key, plain(broker, b"v"))
        assert values_of(broker, key) == [b"v"]


@pytest.mark.parametrize("failures", [1, -1], ids=["once", "for_good"])
@pytest.mark.parametrize("step", range(14))
def test_a_topic_that_could_not_be_made_is_not_there_and_one_that_was_is(
    tmp_path: Path, step: int, failures: int
) -> None:
    """Goal: an error means that there is no such topic, now and after a restart; a success that there is one.

    Method: the disk fails at every step of the making, once or for good, and works again afterwards.
    """
    disk = _FailingDisk()
    with opened(tmp_path, disk=disk) as broker:
        disk.left, disk.failures = step, failures
        answer = broker.create_topics([NewTopic("orders", 2)])["orders"]
        disk.heal()
        was_made = isinstance(answer, TopicDescription)
        assert was_made or isinstance(answer, KafkaStorageError)
        assert broker.topics() == (["orders"] if was_made else [])
        if was_made:
            _is_usable(broker, "orders", 2)
        else:
            assert _directories(tmp_path, "orders") == []
    with opened(tmp_path) as broker:
        assert broker.topics() == (["orders"] if was_made else [])
        if not was_made:
            create(broker, {"orders": 2})
            _is_usable(broker, "orders", 2)


@pytest.mark.parametrize("failures", [1, -1], ids=["once", "for_good"])
@pytest.mark.parametrize("step", range(12))
def test_partitions_that_could_not_be_added_are_not_there(
    tmp_path: Path, step: int, failures: int
) -> None:
    disk = _FailingDisk()
    with opened(tmp_path, topics={"orders": 1}, disk=disk) as broker:
        broker.produce(ORDERS, plain(broker, b"v"))
        disk.left, disk.failures = step, failures
        error = broker.create_partitions({"orders": 3})["orders"]
        disk.heal()
        count = 3 if error is None else 1
        assert broker.partition_count("orders") == count
        if error is not None:
            assert _directories(tmp_path, "orders") == ["orders-0"]
        assert values_of(broker) == [b"v"]
    with opened(tmp_path) as broker:
        assert broker.partition_count("orders") == count
        assert values_of(broker) == [b"v"]


def test_a_name_that_stands_twice_in_a_request_is_refused_both_times(tmp_path: Path) -> None:
    with opened(tmp_path) as broker:
        answers = broker.create_topics(
            [NewTopic("orders", 1), NewTopic("others", 1), NewTopic("orders", 2)]
        )
        assert isinstance(answers["orders"], InvalidRequestError)
        assert isinstance(answers["others"], TopicDescription)
        assert broker.topics() == ["others"]
        removed = broker.delete_topics(["others", "others"])
        assert isinstance(removed["others"], InvalidRequestError)
        assert broker.topics() == ["others"]


class _UnsyncedDisk(Disk):
    is_broken = False

    def sync(self, descriptor: int) -> None:
        if self.is_broken:
            raise OSError(errno.EIO, "the disk fails")
        super().sync(descriptor)


def test_a_topic_with_a_partition_that_is_offline_can_be_deleted(tmp_path: Path) -> None:
    """Goal: a partition whose sync failed takes no more records, and it need not be opened again to be removed."""
    disk = _UnsyncedDisk()
    with opened(tmp_path, topics={"orders": 2}, durability="fsync", disk=disk) as broker:
        pending = broker.produce(ORDERS, plain(broker, b"v")).pending
        assert pending is not None
        disk.is_broken = True
        with pytest.raises(KafkaStorageError):
            pending.wait()
        disk.is_broken = False
        assert broker.partition(ORDERS).is_offline
        assert broker.delete_topics(["orders"]) == {"orders": None}
        assert broker.topics() == []
        with pytest.raises(UnknownTopicOrPartitionError):
            broker.produce(ORDERS, plain(broker, b"v"))
        create(broker, {"orders": 1})
        _is_usable(broker, "orders", 1)
    with opened(tmp_path) as broker:
        assert values_of(broker) == [b"v"]
        assert broker._data.is_clean, (
            "nothing that was offline is left to speak against a clean stop"
        )


def test_a_removal_that_failed_half_way_is_completed_by_the_same_call(tmp_path: Path) -> None:
    disk = _FailingDisk()
    with opened(tmp_path, topics={"orders": 2}, disk=disk) as broker:
        broker.produce(ORDERS, plain(broker, b"v"))
        disk.left, disk.failures = (
            2,
            1,
        )  # the metadata's write and sync pass, the first rename fails
        assert isinstance(broker.delete_topics(["orders"])["orders"], KafkaStorageError)
        disk.heal()
        assert broker.delete_topics(["orders"]) == {"orders": None}
        assert _directories(tmp_path, "orders") == []


def test_a_new_topic_may_have_the_name_of_one_whose_removal_failed_half_way(tmp_path: Path) -> None:
    disk = _FailingDisk()
    with opened(tmp_path, topics={"orders": 2}, disk=disk) as broker:
        broker.produce(ORDERS, plain(broker, b"old"))
        disk.left, disk.failures = 2, 1
        answer: OncelogError | None = broker.delete_topics(["orders"])["orders"]
        assert isinstance(answer, KafkaStorageError)
        disk.heal()
        create(broker, {"orders": 1})
        assert values_of(broker) == []
        _is_usable(broker, "orders", 1)
