"""A directory that a Kafka broker wrote is taken over only when told so, with everything that its log says of it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from oncelog.base.errors import InvalidRequestError
from oncelog.broker.answers import TopicDescription
from oncelog.broker.broker import Broker
from oncelog.broker.topics import ConfigChange
from oncelog.log.checkpoint import read_topic_id
from oncelog.segment.batch import encode
from oncelog.segment.names import TopicPartition

from ..golden_cases import CASES, GOLDEN
from .brokers import NOW, ManualClock, VerbProducer, opened, values_of

if TYPE_CHECKING:
    from pathlib import Path

# Later than anything in the fixtures, so that whatever may be deleted would be.
LATER = NOW + 10 * 365 * 24 * 3600 * 1000


def copied(case: str, target: Path, *, cluster_metadata: bool = True) -> Path:
    shutil.copytree(GOLDEN / case / "data", target)
    if not cluster_metadata:
        for folder in target.glob("__cluster_metadata-*"):
            shutil.rmtree(folder)
    return target


def keyed(broker: Broker, value: bytes) -> memoryview:
    """A record that a compacted topic takes, too."""
    return memoryview(encode([value], keys=[b"k"], timestamp_ms=broker.now_ms()))


def everything(broker: Broker) -> dict[TopicPartition, list[bytes | None]]:
    found = {}
    for name, topic in broker.describe_topics().items():
        assert isinstance(topic, TopicDescription)
        for partition in topic.partitions:
            key = TopicPartition(name, partition.partition)
            if not topic.is_internal:
                found[key] = values_of(broker, key)
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_kafka_directory_is_not_written_to_unless_told(tmp_path: Path, case: str) -> None:
    path = copied(case, tmp_path / "data")
    before = {file: file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}
    with pytest.raises(InvalidRequestError, match="adopt=True"):
        Broker(path)
    assert before == {file: file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("cluster_metadata", [True, False])
def test_an_adopted_directory_shows_the_same_records_and_takes_new_ones(
    tmp_path: Path, case: str, cluster_metadata: bool
) -> None:
    path = copied(case, tmp_path / "data", cluster_metadata=cluster_metadata)
    ids = {
        folder.name.rpartition("-")[0]: read_topic_id(str(folder / "partition.metadata"))
        for folder in path.iterdir()
        if (folder / "partition.metadata").exists() and "__cluster" not in folder.name
    }
    clock = ManualClock()
    with opened(path, adopt=True, clock=clock) as broker:
        before = everything(broker)
        for name, topic in broker.describe_topics().items():
            assert isinstance(topic, TopicDescription)
            assert topic.topic_id == ids[name]
        for key in before:
            broker.produce(key, keyed(broker, b"ours"))
    with opened(path, clock=clock) as broker:  # from now on it is ours
        after = everything(broker)
        producer = VerbProducer(broker, "adopted")
        for key, values in before.items():
            if broker.partition(key).last_stable_offset == broker.partition(key).high_watermark:
                assert after[key] == [*values, b"ours"]
            if broker.describe_configs(key.topic)["cleanup.policy"].value == ("delete",):
                producer.send(key, b"committed")
        if producer.sequences:
            producer.commit()


def test_the_next_producer_id_is_above_every_id_that_was_given(tmp_path: Path) -> None:
    for number, cluster_metadata in enumerate((True, False)):
        path = copied("txn-mixed", tmp_path / str(number), cluster_metadata=cluster_metadata)
        with opened(path, adopt=True) as broker:
            used = {
                found.producer_id
                for name, topic in broker.describe_topics().items()
                if isinstance(topic, TopicDescription)
                for partition in topic.partitions
                for found in broker.describe_producers(TopicPartition(name, partition.partition))
            }
            assert used
            assert broker.init_producer_id(None).producer_id > max(used)


def test_nothing_is_deleted_of_a_topic_whose_config_is_not_known(tmp_path: Path) -> None:
    path = copied("txn-mixed", tmp_path / "data", cluster_metadata=False)
    clock = ManualClock(LATER)
    with opened(path, adopt=True, clock=clock) as broker:
        before = everything(broker)
        assert broker.apply_retention() == 0
        while broker.compact():
            pass
        assert everything(broker) == before
        key = next(iter(before))
        changed = broker.incremental_alter_configs(
            {key.topic: [ConfigChange("retention.ms", "set", 1000)]}
        )
        assert changed == {key.topic: None}
        assert broker.apply_retention() > 0
        assert values_of(broker, key) == []


def test_leader_epochs_go_on_above_those_of_the_broker_before(tmp_path: Path) -> None:
    path = copied("txn-mixed", tmp_path / "data")
    with opened(path, adopt=True) as broker:
        for partition in (broker.partition(key) for key in everything(broker)):
            assert broker.leader_epoch > partition.epochs.latest
