"""What a coordinator writes in one native step is what it writes in many."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import pytest

from oncelog._native.segment import PartitionTail
from oncelog.broker.broker import Broker
from oncelog.broker.topics import NewTopic
from oncelog.partition.partition import Partition
from oncelog.segment.batch import HEADER_BYTES, ControlType, encode, encode_marker, scan
from oncelog.segment.names import TopicPartition
from oncelog.testing import ManualClock
from tests.broker.brokers import VerbProducer, create

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEYS = [TopicPartition("orders", number) for number in range(3)]
WAYS = ("append_record", "append_commit", "append_in_transaction")


def _history(path: Path, seed: int) -> dict[str, bytes]:
    """Transactions of three producers, of both versions, some of which are aborted; returns all logs and indexes."""
    choice = random.Random(seed)
    clock = ManualClock()
    broker = Broker(path, now_ms=clock)
    create(broker, {"orders": len(KEYS)})
    producers = [VerbProducer(broker, f"teller-{number}", 1 + number % 2) for number in range(3)]
    for _ in range(60):
        producer = choice.choice(producers)
        for key in choice.sample(KEYS, choice.randrange(1, 4)):
            producer.send(key, bytes(choice.randrange(300)))
        clock.advance(choice.randrange(50))
        producer.end(committed=choice.random() < 0.8)
    broker.close()
    names = (*path.glob("orders-*/*"), *path.glob("__transaction_state-*/*"))
    return {
        str(name.relative_to(path)): name.read_bytes()
        for name in names
        if name.suffix in (".log", ".index", ".timeindex", ".txnindex")
    }


@pytest.mark.parametrize("seed", range(3))
def test_transactions_leave_the_same_bytes_by_the_short_ways_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Method: one history twice; the short ways must have been taken, and then are closed."""
    taken = dict.fromkeys(WAYS, 0)

    def counted(way: str, native: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            answer = native(*args)
            taken[way] += answer not in (-1, None)
            return answer

        return call

    for way in WAYS:
        monkeypatch.setattr(Partition, way, counted(way, getattr(PartitionTail, way)))
    short = _history(tmp_path / "short", seed)
    assert all(count > 20 for count in taken.values()), taken
    for way in WAYS:
        monkeypatch.setattr(
            Partition, way, lambda *_, way=way: None if way == "append_in_transaction" else -1
        )
    assert _history(tmp_path / "long", seed) == short


@pytest.fixture
def partition(tmp_path: Path) -> Any:
    broker = Broker(tmp_path, now_ms=ManualClock())
    create(broker, {"orders": len(KEYS)})
    partition = broker.partition(KEYS[0])
    for _ in range(3):  # until it is known how far the segment may grow
        batch = bytearray(encode([b"v"], timestamp_ms=broker.now_ms()))
        partition.append_as_leader(batch, leader_epoch=broker.leader_epoch, now_ms=broker.now_ms())
    yield broker, partition
    broker.close()


def test_one_record_is_encoded_as_any_other(partition: Any) -> None:
    """Method: keys and values whose lengths are varints of one byte and of two."""
    broker, log = partition
    for key_size, value_size in itertools.product([0, 1, 63, 64, 300], [0, 1, 63, 64, 400]):
        key, value, now_ms = b"k" * key_size, b"v" * value_size, broker.now_ms()
        offset, start = log.log_end_offset, log.log.active.size
        assert log.append_record(key, value, broker.leader_epoch, now_ms) == offset + 1
        expected = encode(
            [value],
            keys=[key],
            timestamp_ms=now_ms,
            base_offset=offset,
            partition_leader_epoch=broker.leader_epoch,
        )
        assert bytes(log.log.active.view())[start:] == bytes(expected)


def test_a_record_that_is_more_than_small_takes_the_long_way(partition: Any) -> None:
    broker, log = partition
    before = log.log_end_offset, log.log.active.size
    long = b"l" * 2000
    pairs: list[tuple[Any, Any]] = [
        *((b"k", None), (long, b"v"), (b"k", long)),
        *((bytearray(b"k"), b"v"), ("k", b"v")),
    ]
    for key, value in pairs:
        assert log.append_record(key, value, broker.leader_epoch, broker.now_ms()) == -1
    assert (log.log_end_offset, log.log.active.size) == before


def test_a_small_batch_of_a_coordinator_is_written_as_any_other(partition: Any) -> None:
    broker, log = partition
    now_ms, start = broker.now_ms(), log.log.active.size
    fields: dict[str, Any] = {"keys": [b"k", b"l"], "timestamp_ms": now_ms}
    batch = bytearray(encode([b"v", b"w"], **fields))
    assert log.append_small(batch, broker.leader_epoch, now_ms, True) == 3
    assert log.log_end_offset == 5
    expected = encode(
        [b"v", b"w"], **fields, base_offset=3, partition_leader_epoch=broker.leader_epoch
    )
    assert bytes(log.log.active.view())[start:] == bytes(expected)
    broken = bytearray(expected)
    broken[-3] ^= 1
    large = bytearray(encode([bytes(8000)], timestamp_ms=now_ms))
    for refused in (broken, large):
        assert log.append_small(refused, broker.leader_epoch, now_ms, True) == -1
    assert log.log_end_offset == 5


def test_a_marker_is_encoded_as_any_other(partition: Any) -> None:
    """Every field has a value of its own, as wide as it may be."""
    broker, log = partition
    now_ms, start = broker.now_ms(), log.log.active.size
    fields = {"producer_id": 2**62 + 5, "producer_epoch": 2**14 + 3, "coordinator_epoch": 2**30 + 9}
    assert log.append_commit(*fields.values(), broker.leader_epoch, now_ms, True) == 3
    expected = encode_marker(
        ControlType.COMMIT,
        **fields,
        timestamp_ms=now_ms,
        base_offset=3,
        partition_leader_epoch=broker.leader_epoch,
    )
    written = bytes(log.log.active.view())[start:]
    assert written == bytes(expected)
    (row,) = scan(written)
    assert (row["control_type"], row["crc_ok"], row["size"]) == (1, 1, HEADER_BYTES + 17)


@pytest.mark.parametrize(
    "config", [{"message.timestamp.type": "LogAppendTime"}, {"max.message.bytes": "100"}]
)
def test_what_a_topic_demands_of_its_batches_closes_the_short_way(
    partition: Any, config: dict[str, str]
) -> None:
    """A log that stamps its own time, or has a limit that the record does not keep, is asked the long way."""
    broker, _ = partition
    broker.create_topics([NewTopic("strict", 1, config=config)])
    log = broker.partition(TopicPartition("strict", 0))
    for _ in range(4):
        batch = bytearray(encode([b"v"], timestamp_ms=broker.now_ms()))
        log.append_as_leader(batch, leader_epoch=broker.leader_epoch, now_ms=broker.now_ms())
    assert log.append_record(b"k", b"v" * 100, broker.leader_epoch, broker.now_ms()) == -1
    assert log.log_end_offset == 4
