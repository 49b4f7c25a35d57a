"""Moments at which two things meet that seldom do: each was a mistake once, or could have been one."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest

from oncelog.base.disk import Disk
from oncelog.base.errors import OncelogError, UnknownTopicOrPartitionError
from oncelog.broker import broker as broker_module
from oncelog.broker.broker import Broker
from oncelog.broker.group_answers import OffsetCommit
from oncelog.broker.metadata_log import METADATA_FILE, MetadataLog
from oncelog.broker.topics import NewTopic, Topics
from oncelog.partition.published import LIVE, find_published
from oncelog.segment.names import TopicPartition

from .brokers import NOW, ORDERS, VerbProducer, opened
from .test_adoption import copied, everything

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("left", [b"", b"torn"])
def test_an_adoption_that_was_interrupted_is_done_by_the_next_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: bytes
) -> None:
    """Goal: adopting opens and proves every partition, which takes long; a person who loses patience loses nothing."""
    path = copied("txn-mixed", tmp_path / "data")
    with opened(copied("txn-mixed", tmp_path / "whole"), adopt=True) as broker:
        expected = everything(broker)

    def interrupt(*_: object) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(broker_module, "adopted_counters", interrupt)
        with pytest.raises(KeyboardInterrupt):
            Broker(path, adopt=True, now_ms=lambda: NOW)
    (path / METADATA_FILE).write_bytes(left)
    with opened(path, adopt=True) as broker:
        assert everything(broker) == expected
        assert expected


@pytest.mark.parametrize("version", [1, 2])
def test_a_batch_that_comes_right_behind_the_end_of_its_transaction_begins_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """Goal: no transaction that nobody ends (KAFKA-14402).

    Method: the transaction is ended between the look whether it is open and the append.
    """
    with opened(tmp_path, topics={"orders": 1}) as broker:
        producer = VerbProducer(broker, "teller", version)
        producer.send(ORDERS, b"a")
        late = producer.batch(ORDERS, [b"late"])
        partition = broker.partition(ORDERS)
        append = partition.append_in_transaction
        is_first = True

        def append_late(*given: Any, **options: Any) -> Any:
            nonlocal is_first
            if is_first:
                is_first = False
                ending = threading.Thread(target=producer.commit)
                ending.start()
                ending.join(0.3)  # in version 1 it waits for the append, which then is part of it
            return append(*given, **options)

        monkeypatch.setattr(partition, "append_in_transaction", append_late)
        with contextlib.suppress(OncelogError):
            broker.produce(ORDERS, late, transactional_id="teller", transaction_version=version)
        monkeypatch.undo()
        for _ in range(100):
            if partition.last_stable_offset == partition.log_end_offset:
                break
            threading.Event().wait(0.01)
        assert partition.last_stable_offset == partition.log_end_offset


def test_closing_while_a_group_commits_does_not_deadlock(tmp_path: Path) -> None:
    """Goal: groups' locks come before the broker's, also when it closes.

    Method: a thread that holds a group's lock opens a partition, for which it needs the broker's, during a close.
    """
    with opened(tmp_path, topics={"orders": 1}) as broker:
        broker.offset_commit("readers", offsets={ORDERS: OffsetCommit(1)})
        group = broker.groups._groups.get("readers")
        assert group is not None
        closing = threading.Thread(target=broker.close, daemon=True)
        with group.locked():
            closing.start()
            closing.join(0.2)
            found = threading.Event()

            def look() -> None:
                try:
                    broker.partition(TopicPartition("orders", 7))
                except OncelogError:
                    found.set()

            threading.Thread(target=look, daemon=True).start()
            assert found.wait(5), "the broker's lock is held by who waits for the group's"
        closing.join(5)
        assert not closing.is_alive()


def test_names_of_topics_cost_the_same_however_many_there_are(tmp_path: Path) -> None:
    """Goal: neither a new topic nor a wrong name looks at all the others; the sentence stays short."""
    metadata = MetadataLog(str(tmp_path), Disk(), lambda: NOW)
    topics = Topics(metadata)
    topics.put([topics.check_new(NewTopic(f"topic.{number}", 1), 1) for number in range(5000)])
    with pytest.raises(UnknownTopicOrPartitionError) as caught:
        topics.need("nothing")
    assert len(str(caught.value)) < 500
    with pytest.raises(OncelogError, match=r"collides with 'topic.77'"):
        topics.check_new(NewTopic("topic_77", 1), 1)
    topics.forget("topic.77")
    assert topics.check_new(NewTopic("topic_77", 1), 1).name == "topic_77"
    metadata.close()


@pytest.mark.parametrize("content", [b"", b"ONCELIVE", bytes(100)])
def test_a_published_file_that_is_none_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / LIVE).write_bytes(content)
    assert find_published(str(tmp_path)) is None
