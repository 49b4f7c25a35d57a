"""The pieces of the world that txn_world.py plays in: a disk to die on, clients and what they remember, readers."""

from __future__ import annotations

import collections
import contextlib
import heapq
import os
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from oncelog.base.disk import Disk
from oncelog.base.errors import KafkaStorageError
from oncelog.client.consumer import Consumer
from oncelog.partition.data_directory import LOCK
from oncelog.partition.published import LIVE
from oncelog.segment.batch import records, scan
from oncelog.segment.names import TopicPartition
from tests.sim.sim_disk import CountingDisk, SimDisk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from oncelog.broker.broker import Broker
    from oncelog.partition.partition import Isolation, Partition
    from tests.broker.brokers import VerbProducer
    from tests.sim.txn_model import Transaction

WRITABLE = ("_offline", "_writable_in")  # what a partition looks at before it writes
KEYS = tuple(TopicPartition(topic, number) for topic in ("bills", "orders") for number in (0, 1))


class Crash(BaseException):
    """The process is dead: it cannot be caught as an error, and nothing that follows reaches the disk."""


class CrashDisk(CountingDisk):
    """A disk under a process that may die at any call; with a device that remembers what was synced."""

    def __init__(self, *, has_device: bool) -> None:
        super().__init__()
        self.device = SimDisk() if has_device else None
        self._left: int | None = None

    def arm(self, left: int | None) -> None:
        """The call after ``left`` more is the last one; None: nobody dies."""
        self._left = left

    def step(self, name: str, *, done: bool, **details: Any) -> None:
        if done or self._left is None:
            return
        self._left -= 1
        if self._left < 0:
            if self._left == -1 and name == "write" and self.calls % 2:  # torn
                data = bytes(memoryview(details["data"]))
                Disk.write(self, details["descriptor"], data[: len(data) // 2], details["position"])
            raise Crash(name)

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        if self.device is not None:
            self.device.sync(descriptor)

    def sync_directory(self, path: Any) -> None:
        super().sync_directory(path)
        if self.device is not None:
            self.device.sync_directory(path)

    def settle(self, path: Path) -> None:
        """What is there now is on the device."""
        if self.device is None:
            return
        for folder in [path, *(found for found in path.rglob("*") if found.is_dir())]:
            self.device.sync_directory(folder)
            for file in folder.iterdir():
                if file.is_file():
                    self.device.sync_file(file)


class Doubt(NamedTuple):
    """A call that was cut off: the same call resolves it. ``note`` tells the model, should it be cut off again."""

    call: Callable[[], None]
    note: Callable[[], None]


@dataclass
class Holder:
    """Who holds a transactional id, and what it knows."""

    producer: VerbProducer
    timeout_ms: int
    two_phases: bool = False
    transaction: Transaction | None = None
    started_ms: int = -1
    is_shut_out: bool = False  # its transaction was ended by somebody else
    is_prepared: bool = False  # for an outside coordinator to end
    doubt: Doubt | None = None
    ended: tuple[int, int, bool] | None = None  # the identity that ended last, and how

    @property
    def name(self) -> str:
        return self.producer.transactional_id


class Sent(NamedTuple):
    """A batch of a plain producer that was acknowledged."""

    sequence: int
    values: tuple[bytes, ...]
    offset: int
    openings: int


@dataclass
class PlainProducer:
    """An idempotent producer without transactions: it sends again until it is told that it has been heard."""

    producer_id: int
    sequences: collections.Counter[TopicPartition] = field(default_factory=collections.Counter)
    sent: dict[TopicPartition, list[Sent]] = field(
        default_factory=lambda: collections.defaultdict(list)
    )
    doubt: Doubt | None = None


class FetchReader:
    """A consumer by the protocol: it fetches some bytes at a time and leaves out what the broker says was aborted."""

    def __init__(self, isolation: Isolation, bytes_max: int) -> None:
        self.isolation = isolation
        self.bytes_max = bytes_max
        self.positions: dict[TopicPartition, int] = dict.fromkeys(KEYS, 0)
        self.seen: dict[TopicPartition, list[tuple[int, bytes]]] = {key: [] for key in KEYS}

    def poll(self, broker: Broker, key: TopicPartition) -> bool:
        """Reads on; False at the end."""
        position = max(self.positions[key], broker.partition(key).log_start_offset)
        fetched = broker.fetch(key, position, bytes_max=self.bytes_max, isolation=self.isolation)
        if not len(fetched.records):
            return False
        waiting: list[tuple[int, int]] = []
        if fetched.aborted is not None:
            firsts = fetched.aborted["first_offset"].tolist()
            waiting = list(zip(firsts, fetched.aborted["producer_id"].tolist(), strict=True))
            heapq.heapify(waiting)
        aborting: set[int] = set()
        view = fetched.records
        rows = scan(view)
        for at in range(len(rows)):
            row = rows[at : at + 1]
            base, producer = int(row["base_offset"][0]), int(row["producer_id"][0])
            last = base + int(row["last_offset_delta"][0])
            while waiting and waiting[0][0] <= last:
                aborting.add(heapq.heappop(waiting)[1])
            attributes = int(row["attributes"][0])
            if attributes & 0x20:
                aborting.discard(producer)
            elif not (attributes & 0x10 and producer in aborting):
                self.seen[key] += [
                    (record.offset, record.value or b"")
                    for record in records(view, row, start_offset=position)
                ]
            position = last + 1
        self.positions[key] = position
        return True


class ConsumerReader(FetchReader):
    """The embedded consumer: it polls all partitions, and goes on from its positions after a restart."""

    def __init__(self, isolation: Isolation) -> None:
        super().__init__(isolation, 0)
        self._broker: Broker | None = None

    def poll(self, broker: Broker, key: TopicPartition) -> bool:
        if self._broker is not broker:
            self._broker = broker
            self._consumer = Consumer(
                broker, isolation_level=self.isolation.value, auto_offset_reset="earliest"
            )
            self._consumer.assign(KEYS)
            for at, position in self.positions.items():
                self._consumer.seek(at, position)
        polled = self._consumer.poll(timeout_ms=0, max_records=7)
        for record in polled:
            at = TopicPartition(record.topic or "", record.partition)
            self.seen[at].append((record.offset, record.value or b""))
        self.positions = {at: self._consumer.position(at) for at in KEYS}
        return bool(polled)


def read(broker: Broker, key: TopicPartition, isolation: Isolation) -> list[tuple[int, bytes]]:
    """Everything that a reader sees of a partition, with offsets."""
    partition = broker.partition(key)
    start, end = partition.log_start_offset, partition.upper_bound(isolation)
    return [
        (record.offset, record.value or b"")
        for window in partition.windows(start, end, isolation)
        for record in records(
            window.segment.view(),
            window.rows,
            visible=window.visible,
            start_offset=start,
            end_offset=end,
        )
    ]


def take_offline(partition: Partition) -> Callable[[], None]:
    """A partition whose disk has failed; returns what makes it well again, as no broker could."""
    before = {name: getattr(partition, name) for name in WRITABLE}
    with contextlib.suppress(KafkaStorageError), partition._going_offline():
        raise OSError(5, "Input/output error")

    def bring_back() -> None:
        for name, value in before.items():
            setattr(partition, name, value)

    return bring_back


def linked(source: str, target: str) -> None:
    """A name for the same file, but for those that are locked."""
    if source.endswith((LOCK, LIVE)):
        shutil.copyfile(source, target)
    else:
        os.link(source, target)
