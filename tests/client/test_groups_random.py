"""Members that come, go, die, sleep and change their minds: no partition has two owners, none is forgotten, and
transactions copy each record once."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import oncelog
from oncelog.base.errors import OncelogError
from oncelog.broker.group_answers import GroupDescription
from oncelog.segment.names import TopicPartition
from oncelog.testing import ManualClock

from .group_parts import die, fill, generation

if TYPE_CHECKING:
    from pathlib import Path

    from oncelog.client.client import Log
    from oncelog.client.consumer import Consumer
    from oncelog.client.producer import Producer

PARTITIONS = 5
STEPS = 120
MEMBERS_MAX = 5
SESSION_MS = 45_000


class World:
    def __init__(self, log: Log, clock: ManualClock, strategy: str, seed: int) -> None:
        self.log = log
        self.clock = clock
        self.strategy = strategy
        self.chance = random.Random(seed)
        self.members: dict[Consumer, Producer] = {}
        self.dead: list[Consumer] = []  # who may come back, and will be refused
        self.sent = 0
        self.names = 0

    def step(self) -> None:
        weights = {"poll": 40, "copy": 25, "send": 10, "join": 8, "leave": 4, "die": 3, "zombie": 6}
        weights |= {"pass_time": 4, "rebalance": 2}
        name = self.chance.choices(list(weights), list(weights.values()))[0]
        getattr(self, f"do_{name}")()
        self.check()

    def some(self) -> Consumer | None:
        return self.chance.choice(list(self.members)) if self.members else None

    def do_join(self) -> None:
        if len(self.members) < MEMBERS_MAX:
            self.names += 1
            producer = self.log.producer(transactional_id=f"t{self.names}", linger_ms=0)
            producer.init_transactions()
            consumer = self.log.consumer(
                group_id="g",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                partition_assignment_strategy=[self.strategy],
                group_instance_id=f"i{self.names}" if self.chance.random() < 0.3 else None,
                max_poll_records=7,
                retry_backoff_ms=0,
            )
            consumer.subscribe(["in"])
            self.members[consumer] = producer

    def do_poll(self) -> None:
        consumer = self.some()
        if consumer is not None:
            consumer.poll(max_records=1)
            consumer.seek_to_committed()

    def do_copy(self) -> None:
        consumer = self.some()
        if consumer is not None:
            self.copy(consumer, self.members[consumer])

    def copy(self, consumer: Consumer, producer: Producer) -> None:
        records = consumer.poll()
        if not records:
            return
        commits = self.chance.random() < 0.7
        try:
            producer.begin_transaction()
            for record in records:
                producer.send("out", value=record.value, partition=record.partition)
            producer.send_offsets_to_transaction(
                consumer.position_offsets(), consumer.group_metadata()
            )
            if commits:
                producer.commit_transaction()
                return
        except OncelogError as error:
            if not error.txn_requires_abort:
                raise
        producer.abort_transaction()
        consumer.seek_to_committed()

    def do_send(self) -> None:
        count = self.chance.randint(1, 20)
        fill(self.log, "in", [b"%d" % number for number in range(self.sent, self.sent + count)])
        self.sent += count

    def do_leave(self) -> None:
        consumer = self.some()
        if consumer is not None:
            self.members.pop(consumer).close()
            consumer.close()

    def do_die(self) -> None:
        """Falls silent, with a transaction half done; somebody else takes its transactional id over."""
        consumer = self.some()
        if consumer is None:
            return
        producer = self.members.pop(consumer)
        records = consumer.poll()
        if records:
            producer.begin_transaction()
            for record in records:
                producer.send("out", value=record.value)
            try:
                producer.send_offsets_to_transaction(
                    consumer.position_offsets(), consumer.group_metadata()
                )
            except OncelogError as error:
                if not error.txn_requires_abort:
                    raise
        producer.close()
        die(consumer)
        if generation(consumer) > 0:  # else it never had anything
            self.dead.append(consumer)
        self.clock.advance(SESSION_MS)

    def do_zombie(self) -> None:
        """Neither in a transaction nor apart can one commit that the group has given up."""
        if not self.dead:
            return
        zombie = self.chance.choice(self.dead)
        if not self.is_still_in(zombie):
            with (
                self.log.producer(transactional_id="zombie") as producer,
                pytest.raises(OncelogError),
                producer.transaction() as txn,
            ):
                txn.send_offsets({("in", 0): 999}, zombie.group_metadata())
            with pytest.raises(OncelogError):
                zombie.commit({("in", 0): 999})

    def is_still_in(self, zombie: Consumer) -> bool:
        """Who fell silent while it waited for the others to join is not given up before they have."""
        group = self.log.broker.describe_groups(["g"])["g"]
        assert isinstance(group, GroupDescription)
        who = zombie.group_metadata()
        names = [member.member_id for member in group.members]
        return who.member_id in names and who.generation_id == group.generation

    def do_pass_time(self) -> None:
        self.clock.advance(self.chance.choice([1000, 20_000, 40_000]))

    def do_rebalance(self) -> None:
        consumer = self.some()
        if consumer is not None:
            consumer.enforce_rebalance()

    def check(self) -> None:
        """Of those who are in the newest generation, no two own a partition."""
        if not self.members:
            return
        newest = max(generation(one) for one in self.members)
        owned = Counter(
            key
            for one in self.members
            if generation(one) == newest and one._member and one._member.generation == newest
            for key in one.assignment()
        )
        assert not [key for key, count in owned.items() if count > 1]

    def finish(self) -> None:
        """Time goes on, and with it the sessions of those who fell silent."""
        self.do_join()
        for _ in range(400):
            self.clock.advance(500)
            for consumer, producer in self.members.items():
                self.copy(consumer, producer)
            found = self.log.broker.offset_fetch("g", self.keys())
            owned = [key for one in self.members for key in one.assignment()]
            if sorted(owned) == self.keys() and all(
                getattr(found[key], "offset", 0) == self.log.broker.partition(key).high_watermark
                for key in self.keys()
            ):
                break
        assert sorted(owned) == self.keys()
        values = Counter(record.value for record in self.log.read("out"))
        assert values == Counter(b"%d" % number for number in range(self.sent))

    def keys(self) -> list[TopicPartition]:
        return [TopicPartition("in", number) for number in range(PARTITIONS)]


@pytest.mark.parametrize("strategy", ["range", "sticky", "cooperative-sticky"])
@pytest.mark.parametrize("seed", range(4))
def test_a_group_keeps_its_promises_whatever_its_members_do(
    tmp_path: Path, strategy: str, seed: int
) -> None:
    clock = ManualClock()
    with oncelog.open(tmp_path, clock=clock) as log:
        log.create_topic("in", partitions=PARTITIONS)
        log.create_topic("out", partitions=PARTITIONS)
        world = World(log, clock, strategy, seed)
        for _ in range(STEPS):
            world.step()
        world.finish()
