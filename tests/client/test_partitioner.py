"""A key belongs to the partition that Java's producer chooses; records without one fill batch after batch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog._native.accumulator import PartitionIntake, TopicIntake
from oncelog.base.config import PRODUCER, read_options
from oncelog.client.partitioner import Partitioner, key_partition, key_partitions, murmur2

# Kafka's UtilsTest, and librdkafka's own test of the same hash.
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
    b"1": -1993445489,
    b"12": 126087238,
    b"123": -267702483,
    b"1234": -1614185708,
    b"12345": -1188365604,
    b"kafka": -798503068,
}


class Nobody:
    def wait_for(self, batch: object, timeout_ms: int | None) -> None:
        raise AssertionError


def topic(count: int) -> TopicIntake:
    return TopicIntake("t", [PartitionIntake("t", number, Nobody()) for number in range(count)])


def partitioner(**options: Any) -> Partitioner:
    return Partitioner(read_options(PRODUCER, options), seed=7)


@pytest.mark.parametrize(("key", "expected"), JAVA.items())
def test_the_hash_is_javas(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected


@pytest.mark.parametrize("key", JAVA)
def test_a_negative_hash_loses_its_sign_and_not_its_value(key: bytes) -> None:
    """Goal: Java masks the sign bit; an absolute value would choose other partitions."""
    for count in (1, 2, 3, 12, 50, 1000):
        assert key_partition(key, count) == (JAVA[key] & 0x7FFFFFFF) % count


@given(st.binary(max_size=70), st.integers(1, 5000))
def test_every_key_has_a_partition(key: bytes, count: int) -> None:
    assert 0 <= key_partition(key, count) < count


def test_a_topic_without_partitions_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one partition"):
        key_partition(b"k", 0)
    with pytest.raises(ValueError, match="at least one partition"):
        key_partitions(pa.record_batch({"value": [b"v"]}), 0, 0)


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.string()], ids=str
)
@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 2000])
def test_a_column_of_keys_goes_where_each_key_goes(kind: pa.DataType, count: int) -> None:
    keys = [None if number % 7 == 3 else f"key-{number}" for number in range(count)]
    rows = pa.record_batch(
        {"value": pa.nulls(count, pa.binary()), "key": pa.array(keys, pa.string()).cast(kind)}
    )
    expected = [11 if key is None else key_partition(key.encode(), 12) for key in keys]
    assert key_partitions(rows, 12, 11).tolist() == expected
    assert key_partitions(rows.slice(count // 3), 12, 11).tolist() == expected[count // 3 :]


def test_rows_without_a_key_column_go_to_one_partition() -> None:
    assert key_partitions(pa.record_batch({"value": [b"a", b"b"]}), 5, 3).tolist() == [3, 3]


def test_a_key_column_of_numbers_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="column 'key'"):
        key_partitions(pa.record_batch({"key": [1], "value": [b"v"]}), 2, 0)


def test_the_next_sticky_partition_is_another_one() -> None:
    chooser, where = partitioner(), topic(3)
    current = chooser.next_sticky(where)
    for _ in range(100):
        following = chooser.next_sticky(where, current)
        assert following != current
        current = following
    assert chooser.next_sticky(topic(1), 0) == 0


def test_sticky_partitions_are_spread_evenly() -> None:
    chooser, where, current = partitioner(), topic(8), 0
    seen: Counter[int] = Counter()
    for _ in range(8000):
        current = chooser.next_sticky(where, current)
        seen[current] += 1
    assert set(seen) == set(range(8))
    assert max(seen.values()) < 1.3 * min(seen.values())


def test_a_partition_that_keeps_batches_waiting_gets_fewer() -> None:
    """Goal: adaptive partitioning; a slow partition must not collect what others could take.
    Method: one partition has a queue; compare how often it is chosen with and without the option."""
    shares = {}
    for is_adaptive in (True, False):
        chooser = partitioner(partitioner_adaptive_partitioning_enable=is_adaptive)
        where = topic(4)
        where.partitions[2].waiting.extend([None] * 10)  # type: ignore[list-item]
        chosen = Counter(chooser.next_sticky(where, 0) for _ in range(3000))
        shares[is_adaptive] = chosen[2]
    assert shares[False] > 800
    assert shares[True] < shares[False] / 2
