"""What tests of groups share: members that take turns in one thread, and a way to die."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncelog.client.heartbeat import heartbeats_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oncelog.client.client import Log
    from oncelog.client.consumer import Consumer

TURNS_MAX = 50


def fill(log: Log, topic: str, values: Iterable[bytes]) -> None:
    """Values in turn to all partitions of a topic."""
    count = log.broker.partition_count(topic)
    with log.producer() as producer:
        for number, value in enumerate(values):
            producer.send(topic, value=value, partition=number % count)


def member(log: Log, topics: list[str], group_id: str = "g", **options: Any) -> Consumer:
    """A consumer that has subscribed, and not polled yet."""
    consumer = log.consumer(group_id=group_id, auto_offset_reset="earliest", **options)
    consumer.subscribe(topics)
    return consumer


def settle(*consumers: Consumer) -> list[bytes | None]:
    """Members poll in turn until nothing changes any more; returns what they read meanwhile."""
    found: list[bytes | None] = []
    before: object = None
    for _ in range(TURNS_MAX):
        for consumer in consumers:
            found += [record.value for record in consumer.poll()]
        now = [
            (sorted(one.assignment()), generation(one), one.position_offsets()) for one in consumers
        ]
        if now == before and len({number for _, number, _ in now}) == 1:
            return found
        before = now
    raise AssertionError(f"no end of the rebalance: {before}")


def generation(consumer: Consumer) -> int:
    """The generation that it got its partitions in. To ask for group_metadata() would end automatic commits."""
    assert consumer._member is not None
    return consumer._member.known_as.generation_id


def shares(*consumers: Consumer) -> list[list[int]]:
    """The numbers of the partitions that each has."""
    return [sorted(key.partition for key in consumer.assignment()) for consumer in consumers]


def die(consumer: Consumer) -> None:
    """Falls silent without a word, as a process that was killed."""
    assert consumer._member is not None
    heartbeats_of(consumer._broker).remove(consumer._member)
