"""A process that starts brokers and kills them: run with -m, one job per line on standard input.

A job says where to write and when to die, as in killed_writer.py: at a call to the disk, or after some time. The broker
is a fork with a plain and two transactional producers and one that only prepares; each acknowledgement goes through a
pipe before the next call. What is about to be tried is said, too, so that the reader knows what may be there.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from oncelog.base.errors import InvalidTxnStateError
from oncelog.broker.broker import Broker
from oncelog.broker.topics import NewTopic
from oncelog.segment.names import TopicPartition
from tests.broker.brokers import VerbProducer, plain
from tests.sim import killed_writer
from tests.sim.sim_disk import CountingDisk, KillingDisk

if TYPE_CHECKING:
    from collections.abc import Callable

KEYS = tuple(TopicPartition(topic, number) for topic in ("bills", "orders") for number in (0, 1))
CONFIG = {
    "transaction.two.phase.commit.enable": True,
    "transaction.state.log.segment.bytes": 2000,
    "log.index.size.max.bytes": 1000,
}
TOPIC = {"internal.segment.bytes": 1500, "index.interval.bytes": 250}
FOREVER = 100_000
PREPARED = "prepared"


class ArmedDisk(KillingDisk):
    """Counts from the moment on at which it is armed."""

    def __init__(self, at: int, when: str) -> None:
        super().__init__(-1, when)
        self._left = at

    def arm(self) -> None:
        self._at = self.calls + self._left


class Storyteller:
    """Drives a broker and says aloud what it tries and what was acknowledged."""

    def __init__(self, broker: Broker, generation: int, say: Callable[..., None]) -> None:
        self.broker = broker
        self.generation = generation
        self.say = say
        self._numbers = itertools.count()

    def values(self, name: str) -> list[str]:
        """One value for each partition; the same name in all of them."""
        number = next(self._numbers)
        return [f"{name} {self.generation}.{number} {key.directory}" for key in KEYS]

    def tell(self, turns: int, on_commit: Callable[[], None]) -> None:
        commits, aborts = (
            VerbProducer(self.broker, name, version) for name, version in (("c", 2), ("a", 1))
        )
        producer_id = self.broker.init_producer_id(None).producer_id
        self.prepare()
        for turn in range(turns):
            kept, gone = self.values("kept"), self.values("gone")
            for key, one, other in zip(KEYS, kept, gone, strict=True):
                commits.send(key, one.encode())
                aborts.send(key, other.encode())
            single = f"plain {self.generation}.{turn}"
            key = KEYS[turn % len(KEYS)]
            produced = self.broker.produce(
                key,
                plain(
                    self.broker,
                    single.encode(),
                    producer_id=producer_id,
                    sequence=turn // len(KEYS),
                ),
            )
            if produced.pending is not None:
                produced.pending.wait()
            self.say(plain=single, key=key.directory)
            self.say(tries=kept)
            on_commit()
            commits.commit()
            self.say(kept=kept)
            aborts.abort()
            self.say(gone=gone)

    def complete(self) -> None:
        """The outside coordinator, which knows that the transaction was prepared, ends it."""
        self.say(completing=True)
        try:
            self.broker.complete_transaction(PREPARED, commit=True)
        except InvalidTxnStateError:
            self.say(completed="before")
        else:
            self.say(completed="now")

    def prepare(self) -> None:
        """Takes the id over, and with it aborts what was not prepared; then prepares anew."""
        producer = VerbProducer(self.broker, PREPARED, enable_two_phase_commit=True)
        values = self.values("prepared")
        for key, value in zip(KEYS, values, strict=True):
            producer.send(key, value.encode())
        self.broker.transactions.prepare_txn(PREPARED, producer.producer_id, producer.epoch)
        self.say(prepared=values)


def write(job: dict[str, Any], pipe: int) -> None:
    """The broker of one job. ``at`` counts from the first commit on, or from the start."""

    def say(**what: Any) -> None:
        os.write(pipe, json.dumps(what).encode() + b"\n")

    at, disk = job.get("at"), CountingDisk()
    on_commit: Callable[[], None] = lambda: None  # noqa: E731
    if at is not None and job.get("from_commit"):
        armed = disk = ArmedDisk(at, job["when"])
        on_commit = armed.arm
    elif at is not None:
        disk = KillingDisk(at, job["when"])
    broker = Broker(job["path"], disk=disk, config=CONFIG, durability=job.get("durability", "os"))
    if not broker.topics() or "orders" not in broker.topics() or "bills" not in broker.topics():
        broker.create_topics(
            NewTopic(topic, 2, 1, TOPIC)
            for topic in ("bills", "orders")
            if topic not in broker.topics()
        )
    say(opened=True)
    storyteller = Storyteller(broker, job["generation"], say)
    if job.get("complete"):
        storyteller.complete()
    storyteller.tell(job.get("turns", FOREVER), on_commit)
    broker.close()
    say(calls=disk.calls)


def warm_up() -> None:
    """One whole story, so that what a broker imports when it is needed is there before the first fork: a kill after
    some milliseconds would else come before the topics."""
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "wb") as nobody:  # noqa: PTH123
        write({"path": folder, "generation": 0, "turns": 1, "complete": False}, nobody.fileno())


if __name__ == "__main__":
    warm_up()
    for line in sys.stdin:
        print(json.dumps(killed_writer.run(json.loads(line), write)), flush=True)
