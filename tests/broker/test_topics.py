"""Topics: made, described, changed and removed as Kafka does it, and still so after a crash."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from oncelog.base.disk import Disk
from oncelog.base.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from oncelog.broker.answers import TopicDescription
from oncelog.broker.broker import Broker
from oncelog.broker.topics import ConfigChange, NewTopic
from oncelog.segment.names import TopicPartition

from .brokers import ORDERS, ManualClock, crashed, create, opened, plain, values_of

if TYPE_CHECKING:
    from pathlib import Path


def described(broker: Broker, name: str) -> TopicDescription:
    answer = broker.describe_topics([name])[name]
    assert isinstance(answer, TopicDescription)
    return answer


def test_a_topic_keeps_its_id_partitions_and_config_over_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as broker:
        answer = broker.create_topics(
            [
                NewTopic(
                    "orders", 3, config={"retention.ms": "1000", "cleanup.policy": "compact,delete"}
                )
            ]
        )["orders"]
        assert isinstance(answer, TopicDescription)
        topic_id = answer.topic_id
        assert len(topic_id) == 22
        assert [partition.partition for partition in answer.partitions] == [0, 1, 2]
    with opened(tmp_path) as broker:
        again = described(broker, "orders")
        assert again.topic_id == topic_id
        assert len(again.partitions) == 3
        config = broker.describe_configs("orders")
        assert config["retention.ms"] == (1000, "topic")
        assert config["cleanup.policy"] == (("compact", "delete"), "topic")
        assert config["segment.bytes"].source == "default"
    metadata = (tmp_path / "orders-2" / "partition.metadata").read_text()
    assert metadata == f"version: 0\ntopic_id: {topic_id}"


def test_a_broker_default_shows_as_the_broker_s(tmp_path: Path) -> None:
    with opened(tmp_path, topics={"orders": 1}, config={"log.retention.ms": 5000}) as broker:
        assert broker.describe_configs("orders")["retention.ms"] == (5000, "broker")


def test_describe_shows_leader_replicas_and_isr_and_the_epoch_rises_with_every_opening(
    tmp_path: Path,
) -> None:
    epochs = []
    for _ in range(3):
        with opened(tmp_path, topics={"orders": 1}) as broker:
            (partition,) = described(broker, "orders").partitions
            assert partition.replicas == partition.isr == (partition.leader,)
            epochs.append(partition.leader_epoch)
            broker.produce(ORDERS, plain(broker, b"v"))
            assert broker.partition(ORDERS).epochs.latest == partition.leader_epoch
    assert epochs == [0, 1, 2]


def test_who_opens_a_log_for_each_small_write_goes_on_as_the_same_leader_until_a_crash(
    tmp_path: Path,
) -> None:
    """Goal: the checkpoint of leader epochs does not grow with every opening of a sink."""
    for is_killed in (False, False, True, False):
        broker = Broker(tmp_path, now_ms=ManualClock(), keeps_epoch=True)
        if "orders" not in broker.topics():
            create(broker, {"orders": 1})
        broker.produce(ORDERS, plain(broker, b"v"))
        crashed(broker) if is_killed else broker.close()
    with opened(tmp_path) as broker:
        assert broker.partition(ORDERS).epochs.entries == [(0, 0), (1, 3)]


@pytest.mark.parametrize(
    ("new", "error"),
    [
        (NewTopic("orders", 1), TopicAlreadyExistsError),
        (NewTopic("bad name", 1), InvalidTopicError),
        (NewTopic("", 1), InvalidTopicError),
        (NewTopic("..", 1), InvalidTopicError),
        (NewTopic("x" * 250, 1), InvalidTopicError),
        (NewTopic("my.orders", 1), InvalidTopicError),
        (NewTopic("other", 0), InvalidPartitionsError),
        (NewTopic("other", -2), InvalidPartitionsError),
        (NewTopic("other", 1, 2), InvalidReplicationFactorError),
        (NewTopic("other", 1, config={"retention.sm": 1}), InvalidConfigError),
        (NewTopic("other", 1, config={"retention.ms": "soon"}), InvalidConfigError),
        (NewTopic("other", 1, config={"cleanup.policy": "burn"}), InvalidConfigError),
        (
            NewTopic("other", 1, config={"min.compaction.lag.ms": 9, "max.compaction.lag.ms": 8}),
            InvalidConfigError,
        ),
    ],
)
def test_a_topic_that_may_not_be_is_refused_and_nothing_is_made(
    tmp_path: Path, new: NewTopic, error: type[Exception]
) -> None:
    with opened(tmp_path, topics={"orders": 1, "my_orders": 1}) as broker:
        before = broker.topics()
        answer = broker.create_topics([new])[new.name]
        assert type(answer) is error
        assert str(answer)
        assert broker.topics() == before


def test_one_refused_topic_does_not_keep_the_others_from_being_made(tmp_path: Path) -> None:
    with opened(tmp_path) as broker:
        answers = broker.create_topics(
            [NewTopic("a", 1), NewTopic("bad name", 1), NewTopic("b", 2)]
        )
        assert isinstance(answers["bad name"], InvalidTopicError)
        assert broker.topics() == ["a", "b"]


def test_validate_only_makes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as broker:
        answer = broker.create_topics([NewTopic("a", 2)], validate_only=True)["a"]
        assert isinstance(answer, TopicDescription)
        assert broker.topics() == []
        assert not (tmp_path / "a-0").exists()


def test_partitions_are_added_and_never_taken_away(tmp_path: Path) -> None:
    with opened(tmp_path, topics={"orders": 2}) as broker:
        assert broker.create_partitions({"orders": 4}) == {"orders": None}
        assert broker.partition_count("orders") == 4
        broker.produce(TopicPartition("orders", 3), plain(broker, b"v"))
        for count in (4, 3, 0):
            refused = broker.create_partitions({"orders": count})["orders"]
            assert isinstance(refused, InvalidPartitionsError)
        missing = broker.create_partitions({"nothing": 2})["nothing"]
        assert isinstance(missing, UnknownTopicOrPartitionError)
    with opened(tmp_path) as broker:
        assert values_of(broker, TopicPartition("orders", 3)) == [b"v"]


def test_a_deleted_topic_is_gone_and_its_name_is_free(tmp_path: Path) -> None:
    with opened(tmp_path, topics={"orders": 2, "other": 1}) as broker:
        first = described(broker, "orders").topic_id
        broker.produce(ORDERS, plain(broker, b"old"))
        assert broker.delete_topics(["orders", "nothing"])["orders"] is None
        assert broker.topics() == ["other"]
        with pytest.raises(UnknownTopicOrPartitionError, match="other"):
            broker.produce(ORDERS, plain(broker, b"v"))
        create(broker, {"orders": 1})
        assert described(broker, "orders").topic_id != first
        assert values_of(broker) == []
    with opened(tmp_path) as broker:
        assert broker.topics() == ["orders", "other"]
        assert values_of(broker) == []


class _StoppingDisk(Disk):
    """Stops the process, so to speak, at the n-th rename or new directory."""

    left = 2**31

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt

    def rename(self, source: Any, target: Any) -> None:
        self._step()
        super().rename(source, target)

    def make_directory(self, path: Any) -> None:
        self._step()
        super().make_directory(path)


@pytest.mark.parametrize("step", range(8))
def test_creating_and_deleting_that_a_crash_interrupts_are_completed_or_never_began(
    tmp_path: Path, step: int
) -> None:
    disk = _StoppingDisk()
    broker = Broker(tmp_path, disk=disk, now_ms=ManualClock())
    create(broker, {"old": 2})
    disk.left = step
    with contextlib.suppress(KeyboardInterrupt):
        broker.delete_topics(["old"])
        broker.create_topics([NewTopic("new", 3)])
    assert disk.left < 0
    disk.left = 2**31
    broker._metadata.close()
    broker._data.abandon()
    with opened(tmp_path) as again:
        for name in again.topics():
            for partition in described(again, name).partitions:
                key = TopicPartition(name, partition.partition)
                again.produce(key, plain(again, b"v"))
                assert values_of(again, key) == [b"v"]
        create(again, {"old": 1, "new": 1})
        assert again.topics() == ["new", "old"]


def test_a_config_is_set_deleted_and_its_lists_grow_and_shrink(tmp_path: Path) -> None:
    with opened(tmp_path, topics={"orders": 1}) as broker:

        def alter(*changes: ConfigChange) -> Any:
            return broker.incremental_alter_configs({"orders": changes})["orders"]

        def value(name: str) -> Any:
            return broker.describe_configs("orders")[name].value

        assert alter(ConfigChange("cleanup.policy", "append", "compact")) is None
        assert set(value("cleanup.policy")) == {"delete", "compact"}
        assert alter(ConfigChange("cleanup.policy", "subtract", "delete")) is None
        assert value("cleanup.policy") == ("compact",)
        assert alter(ConfigChange("max.message.bytes", "set", 200)) is None
        assert value("max.message.bytes") == 200
        assert alter(ConfigChange("max.message.bytes", "delete")) is None
        assert value("max.message.bytes") == 1048588
        assert isinstance(alter(ConfigChange("retention.sm", "set", 1)), InvalidConfigError)
        assert isinstance(alter(ConfigChange("retention.ms", "append", 1)), InvalidConfigError)
        assert isinstance(alter(ConfigChange("retention.ms", "burn", 1)), InvalidConfigError)
        unknown = broker.incremental_alter_configs({"nothing": []})["nothing"]
        assert isinstance(unknown, UnknownTopicOrPartitionError)


def test_a_changed_config_holds_for_the_next_append(tmp_path: Path) -> None:
    with opened(tmp_path, topics={"orders": 1}) as broker:
        broker.produce(ORDERS, plain(broker, b"x" * 500))
        broker.incremental_alter_configs(
            {"orders": [ConfigChange("max.message.bytes", "set", 200)]}
        )
        with pytest.raises(Exception, match=r"max\.message\.bytes = 200"):
            broker.produce(ORDERS, plain(broker, b"x" * 500))


def test_nobody_writes_to_the_broker_s_own_topics_or_removes_them(tmp_path: Path) -> None:
    with opened(tmp_path, topics={"orders": 1}) as broker:
        broker.init_producer_id("teller")
        assert "__transaction_state" in broker.topics()
        with pytest.raises(InvalidTopicError, match="alone"):
            broker.produce(TopicPartition("__transaction_state", 0), plain(broker, b"v"))
        answer = broker.delete_topics(["__transaction_state"])["__transaction_state"]
        assert isinstance(answer, InvalidTopicError)
        grown = broker.create_partitions({"__transaction_state": 60})["__transaction_state"]
        assert isinstance(grown, InvalidTopicError)


def test_internal_partitions_are_made_when_they_are_first_needed(tmp_path: Path) -> None:
    with opened(tmp_path, topics={"orders": 1}) as broker:
        assert not list(tmp_path.glob("__transaction_state-*"))
        broker.init_producer_id("teller")
        assert len(list(tmp_path.glob("__transaction_state-*"))) == 1
        assert broker.partition_count("__transaction_state") == 50
