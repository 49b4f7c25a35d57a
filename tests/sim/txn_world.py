"""A broker with its clients, clock, disk and accidents, and the model that follows everything that is done to it.

Every action makes one call of a client, as real ones do: a call that was cut off is made again, or somebody else takes
over. Any of them can be cut off by a crash at its n-th call to the disk. After each action, all that readers see is
held against the model.
"""

from __future__ import annotations

import collections
import heapq
import os
import random
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from oncelog.base.errors import (
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    KafkaStorageError,
    OncelogError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    TransactionAbortableError,
)
from oncelog.broker.broker import Broker
from oncelog.broker.topics import NewTopic
from oncelog.broker.txn_records import TransactionState
from oncelog.partition.data_directory import LOCK
from oncelog.partition.partition import Isolation
from oncelog.partition.published import LIVE
from oncelog.segment.batch import records, scan
from oncelog.segment.names import TopicPartition
from tests.broker.brokers import ManualClock, VerbProducer, plain
from tests.broker.test_transactions import crashed
from tests.sim.sim_disk import CountingDisk, SimDisk
from tests.sim.txn_model import (
    ABORTED,
    COMMITTED,
    OPEN,
    BrokenPromiseError,
    Fate,
    Kind,
    Model,
    Transaction,
    View,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

KEYS = tuple(TopicPartition(topic, number) for topic in ("bills", "orders") for number in (0, 1))
SMALL = {"internal.segment.bytes": 1500, "index.interval.bytes": 250, "segment.index.bytes": 500}
CONFIG = {
    "transaction.state.log.segment.bytes": 1500,
    "transaction.state.log.num.partitions": 3,
    "log.index.size.max.bytes": 1000,
    "transaction.two.phase.commit.enable": True,
}
HOUSEKEEPING_MS = 10_000
RETRIES_MAX = 5  # a broker knows this many batches of a producer again
REFUSALS = (
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
)


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
                SimDisk.write(
                    self, details["descriptor"], data[: len(data) // 2], details["position"]
                )  # type: ignore[arg-type]
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


def _linked(source: str, target: str) -> None:
    """A name for the same file, but for those that are locked."""
    if source.endswith((LOCK, LIVE)):
        shutil.copyfile(source, target)
    else:
        os.link(source, target)


class World:
    """Everything, and what can happen to it."""

    def __init__(
        self,
        path: Path,
        *,
        durability: str = "os",
        seed: int = 0,
        versions: Sequence[int] = (1, 2, 2),
    ) -> None:
        self.root = path
        self.durability = durability
        self.chance = random.Random(seed)
        self.clock = ManualClock()
        self.model = Model(KEYS)
        self.trace: collections.deque[str] = collections.deque(maxlen=60)
        self.crashes = self.checks = 0
        self._number = self._paths = self._openings = 0
        self.zombies: list[VerbProducer] = []
        self.offline: set[TopicPartition] = set()
        self.readers = (
            FetchReader(Isolation.READ_COMMITTED, 300),
            FetchReader(Isolation.READ_COMMITTED, 2000),
            FetchReader(Isolation.READ_UNCOMMITTED, 500),
        )
        self.path = self._next_path()
        self._bounds: dict[TopicPartition, tuple[int, int]] = {}
        self._open()
        self.broker.create_topics([NewTopic(topic, 2, 1, SMALL) for topic in ("bills", "orders")])
        self._watch()
        self.holders = [
            self._new_holder(f"id-{number}", version, two_phases=False)
            for number, version in enumerate(versions)
        ]
        self.holders.append(self._new_holder("two-phase", 2, two_phases=True))
        self.plain = [self._new_plain() for _ in range(2)]
        self.check()

    # ------------------------------------------------------------ opening and dying

    def _next_path(self) -> Path:
        self._paths += 1
        return self.root / str(self._paths)

    def _open(self) -> None:
        self.disk = CrashDisk(has_device=self.durability == "fsync")
        if self.path.exists():
            self.disk.settle(self.path)
        self.opened_ms = self.clock()
        self._openings += 1
        self.offline.clear()
        self.broker = Broker(
            self.path, disk=self.disk, now_ms=self.clock, durability=self.durability, config=CONFIG
        )

    def _watch(self) -> None:
        self.woken = False
        self._bounds = {key: self._bound(key) for key in KEYS}
        self.broker.watch(KEYS, self._wake)

    def _wake(self) -> None:
        self.woken = True

    def _bound(self, key: TopicPartition) -> tuple[int, int]:
        partition = self.broker.partition(key)
        return partition.high_watermark, partition.last_stable_offset

    def close(self) -> None:
        self.disk.arm(None)
        self.broker.close()

    def _die(self, *, power_fails: bool) -> None:
        """The process is gone; another one opens what it left."""
        self.crashes += 1
        self.disk.arm(None)
        old, self.path = self.path, self._next_path()
        if power_fails:
            assert self.disk.device is not None
            self.disk.device.fail_power(old, self.path, self.chance)
            self.model.lost_power()
        else:
            # Out of reach of what follows, which gives up files and locks.
            shutil.copytree(old, self.path, copy_function=_linked)
            self.model.crashed()
        crashed(self.broker)
        shutil.rmtree(old)
        self._come_back(power_fails=power_fails)

    def _come_back(self, *, power_fails: bool) -> None:
        for transaction in self._unmarked():
            transaction.unmarked.clear()
        if power_fails:
            self._lose_clients()
        self._open()
        self._watch()
        for holder in self.holders:
            holder.producer.broker = self.broker
        for zombie in self.zombies:
            zombie.broker = self.broker
        self.check()
        self._ask_who_is_open()
        if power_fails:
            self.plain = [self._new_plain() for _ in self.plain]
            self._complete_prepared()
            for number in range(len(self.holders)):
                self.take_over(number)
            self.check()

    def _lose_clients(self) -> None:
        """Producers were in the machine that lost its power; what they had open is aborted sooner or later."""
        for holder in self.holders:
            transaction, holder.doubt = holder.transaction, None
            if transaction is not None and OPEN in transaction.fates and not holder.is_prepared:
                transaction.fates.add(ABORTED)
        for reader in self.readers:
            reader.positions = dict.fromkeys(KEYS, 0)
            reader.seen = {key: [] for key in KEYS}

    def _complete_prepared(self) -> None:
        for holder in self.holders:
            if holder.is_prepared and holder.transaction is not None:
                if OPEN in holder.transaction.fates:
                    self.broker.complete_transaction(holder.name, commit=True)
                    self._ended(holder.transaction, COMMITTED)
                holder.transaction, holder.is_prepared = None, False

    def _ask_who_is_open(self) -> None:
        """What was in doubt, and hidden from readers by an older transaction, the coordinator knows."""
        for holder in self.holders:
            if holder.transaction is not None and len(holder.transaction.fates) > 1:
                if self._is_ongoing(holder):
                    holder.transaction.fates &= {OPEN}
                else:
                    holder.transaction.fates -= {OPEN}

    def _is_ongoing(self, holder: Holder) -> bool:
        found = self.broker.describe_transactions([holder.name])[holder.name]
        return not isinstance(found, OncelogError) and found.state is TransactionState.ONGOING

    def _unmarked(self) -> set[Transaction]:
        return {
            record.transaction
            for partition in self.model.partitions.values()
            for record in partition.records
            if record.transaction is not None and record.transaction.unmarked
        }

    def _call(
        self, call: Callable[[], None], crash: int | None, in_doubt: Callable[[], None]
    ) -> None:
        """Makes a call; where it is cut off, what it leaves in doubt is noted before the process comes back."""
        self.disk.arm(crash)
        try:
            call()
        except Crash as death:
            self.trace.append(f"    died in {death}")
            in_doubt()
            power_fails = self.durability == "fsync" and self.chance.random() < 0.6
            self._die(power_fails=power_fails)
        finally:
            self.disk.arm(None)

    # ------------------------------------------------------------ clients

    def _values(self, count: int, name: str) -> tuple[bytes, ...]:
        self._number += 1
        return tuple(b"%s.%d.%d" % (name.encode(), self._number, at) for at in range(count))

    def _new_holder(self, name: str, version: int, *, two_phases: bool) -> Holder:
        timeout_ms = 60_000 if version == 1 else 5_000
        return Holder(
            self._initialized(name, version, timeout_ms, two_phases=two_phases),
            timeout_ms,
            two_phases,
        )

    def _initialized(
        self, name: str, version: int, timeout_ms: int, *, two_phases: bool, keeps: bool = False
    ) -> VerbProducer:
        return VerbProducer(
            self.broker,
            name,
            version,
            transaction_timeout_ms=timeout_ms,
            enable_two_phase_commit=two_phases,
            keep_prepared=keeps,
        )

    def _new_plain(self) -> PlainProducer:
        return PlainProducer(self.broker.init_producer_id(None).producer_id)

    def _refuse(self, call: Callable[[], Any]) -> None:
        """A call that must not succeed, nor have an effect."""
        try:
            call()
        except REFUSALS:
            return
        except KafkaStorageError:
            assert self.offline
            return
        raise AssertionError("a call that must be refused was not")

    # ------------------------------------------------------------ transactions

    def send(self, number: int, key: TopicPartition, count: int, crash: int | None = None) -> None:
        holder = self.holders[number]
        self.trace.append(f"send {holder.name} {key.directory} x{count} crash={crash}")
        values = self._values(count, holder.name)
        if holder.is_shut_out:
            self._refuse(lambda: holder.producer.send(key, *values))
        elif holder.doubt is not None:
            self._call(holder.doubt.call, crash, holder.doubt.note)
        elif not holder.is_prepared:
            if holder.transaction is None:
                holder.transaction = Transaction(f"{holder.name}/{self._number}")
                holder.ended = None
            self._send(holder, key, values, crash)

    def _send(
        self, holder: Holder, key: TopicPartition, values: tuple[bytes, ...], crash: int | None
    ) -> None:
        transaction = holder.transaction
        assert transaction is not None

        def call() -> None:
            if not self._is_ongoing(holder):
                holder.started_ms = self.clock()
            try:
                produced = holder.producer.send(key, *values)
            except (KafkaStorageError, ConcurrentTransactionsError):
                assert self.offline, "no partition is offline"
                self._forget_empty(holder)
                return
            holder.doubt = None
            self.model.wrote(key, produced.base_offset, values, transaction)

        def in_doubt() -> None:
            self.model.may_have_written(key, values, transaction)
            holder.doubt = Doubt(call, in_doubt)

        self._call(call, crash, in_doubt)

    def _forget_empty(self, holder: Holder) -> None:
        """A first send that was refused has not begun a transaction, or one that holds nothing."""
        known = any(
            record.transaction is holder.transaction
            for partition in self.model.partitions.values()
            for record in partition.records
        )
        if not known and not self._is_ongoing(holder):
            holder.transaction = None

    def resend(self, number: int, key: TopicPartition) -> None:
        """The last batch again, as after an answer that got lost: it is known again, and stays single."""
        holder = self.holders[number]
        self.trace.append(f"resend {holder.name} {key.directory}")
        if holder.transaction is None or holder.doubt is not None or self.offline:
            return
        written = [
            record
            for record in self.model.partitions[key].records
            if record.transaction is holder.transaction
        ]
        if not written:
            return
        last = [
            r for r in written if r.value.rsplit(b".", 1)[0] == written[-1].value.rsplit(b".", 1)[0]
        ]
        producer = holder.producer
        sequence = producer.sequences[key] - len(last)
        produced = self.broker.produce(
            key,
            producer.batch(key, [record.value for record in last], sequence),
            transactional_id=producer.transactional_id,
            transaction_version=producer.version,
        )
        assert (produced.is_duplicate, produced.base_offset) == (True, last[0].offset)

    def end(self, number: int, *, commits: bool, crash: int | None = None) -> None:
        holder = self.holders[number]
        self.trace.append(f"end {holder.name} commits={commits} crash={crash}")
        if holder.doubt is not None:
            self._call(holder.doubt.call, crash, holder.doubt.note)
        elif holder.is_shut_out:
            self._end_shut_out(holder, commits=commits)
        elif holder.transaction is None:
            self._end_nothing(holder, commits=commits)
        else:
            self._end(holder, COMMITTED if commits else ABORTED, crash)

    def _end(self, holder: Holder, fate: Fate, crash: int | None) -> None:
        ending = self._ending(holder, fate)
        self._call(ending.call, crash, ending.note)

    def _ending(self, holder: Holder, fate: Fate) -> Doubt:
        transaction, producer = holder.transaction, holder.producer
        assert transaction is not None

        def call() -> None:
            identity = (producer.producer_id, producer.epoch)
            try:
                producer.end(committed=fate is COMMITTED)
            except (TransactionAbortableError, ConcurrentTransactionsError):
                assert self.offline, "no partition is offline"
                return
            holder.doubt, holder.transaction, holder.is_prepared = None, None, False
            holder.ended = (*identity, fate is COMMITTED)
            self._ended(transaction, fate)

        def in_doubt() -> None:
            transaction.fates.add(fate)
            holder.doubt = Doubt(call, in_doubt)

        return Doubt(call, in_doubt)

    def _ended(self, transaction: Transaction, fate: Fate) -> None:
        """The broker says how a transaction has ended; what it holds is now durable, if it counts."""
        if transaction.fates == {ABORTED if fate is COMMITTED else COMMITTED}:
            raise BrokenPromiseError(
                Kind.TORN, transaction.name, f"{transaction}, and now {fate.value}"
            )
        is_new, transaction.fates = transaction.fates != {fate}, {fate}
        for key, partition in self.model.partitions.items():
            last = [r.offset for r in partition.records if r.transaction is transaction]
            if last and is_new and key in self.offline:
                transaction.unmarked.add(key)
            if last and fate is COMMITTED:
                self.model.made_durable(key, last[-1] + 1)

    def _end_nothing(self, holder: Holder, *, commits: bool) -> None:
        """Version 2 aborts nothing and bumps the epoch; other ends of nothing are refused or repeat the last."""
        identity = (holder.producer.producer_id, holder.producer.epoch)
        try:
            holder.producer.end(committed=commits)
        except (InvalidTxnStateError, ConcurrentTransactionsError):
            return
        if (holder.producer.producer_id, holder.producer.epoch) != identity:
            assert not commits
            holder.ended = (*identity, commits)

    def _end_shut_out(self, holder: Holder, *, commits: bool) -> None:
        """A time-out has aborted it: a commit is refused, an abort of version 2 repeats it and goes on from there."""
        if commits or holder.producer.version == 1:
            self._refuse(lambda: holder.producer.end(committed=commits))
            return
        try:
            holder.producer.end(committed=False)
        except ConcurrentTransactionsError:
            assert self.offline
            return
        holder.is_shut_out = False

    def end_again(self, number: int, *, commits: bool) -> None:
        """The same end a second time is answered as the first; the other one is refused."""
        holder = self.holders[number]
        self.trace.append(f"end again {holder.name} commits={commits}")
        if holder.ended is None or holder.transaction or holder.doubt or holder.is_shut_out:
            return
        *identity, committed = holder.ended
        producer = holder.producer

        def call() -> tuple[int, int]:
            answer = self.broker.end_txn(
                holder.name, *identity, committed=commits, transaction_version=producer.version
            )
            return answer.producer_id, answer.producer_epoch

        if commits != committed:
            self._refuse(call)
            return
        try:
            assert call() == (producer.producer_id, producer.epoch)
        except ConcurrentTransactionsError:
            assert self.offline

    def take_over(self, number: int, crash: int | None = None, *, keeps: bool = False) -> None:
        """Somebody else takes the id: the old holder is a zombie, its transaction is aborted, or kept to be ended."""
        holder = self.holders[number]
        keeps = keeps and holder.two_phases and not holder.doubt and holder.transaction is not None
        self.trace.append(f"take over {holder.name} keeps={keeps} crash={crash}")

        def call() -> None:
            old, transaction = holder.producer, holder.transaction
            try:
                holder.producer = self._initialized(
                    old.transactional_id,
                    old.version,
                    holder.timeout_ms,
                    two_phases=holder.two_phases,
                    keeps=keeps,
                )
            except ConcurrentTransactionsError:
                assert self.offline
                in_doubt()
                self._ask_who_is_open()
                self._note_unmarked(holder)
                return
            self.zombies = [*self.zombies[-5:], old]
            holder.is_shut_out, holder.doubt, holder.ended = False, None, None
            holder.is_prepared = keeps
            if keeps:
                holder.doubt = self._ending(holder, COMMITTED)
            elif transaction is not None:
                holder.transaction = None
                if OPEN in transaction.fates:
                    transaction.fates = transaction.fates - {OPEN} | {ABORTED}

        def in_doubt() -> None:
            if not keeps and holder.transaction and OPEN in holder.transaction.fates:
                holder.transaction.fates.add(ABORTED)
            holder.doubt = Doubt(call, in_doubt)

        self._call(call, crash, in_doubt)

    def _note_unmarked(self, holder: Holder) -> None:
        """Aborted by somebody else, while some partition could not be written."""
        transaction = holder.transaction
        if transaction is None or OPEN in transaction.fates:
            return
        for key in self.offline:
            partition = self.model.partitions[key]
            if any(record.transaction is transaction for record in partition.records):
                transaction.unmarked.add(key)

    def zombie(self, number: int, key: TopicPartition, verb: int) -> None:
        """Whoever was shut out gets nothing done any more."""
        if not self.zombies:
            return
        zombie = self.zombies[number % len(self.zombies)]
        self.trace.append(f"zombie {zombie.transactional_id} {verb}")
        verbs: tuple[Callable[[], Any], ...] = (
            lambda: zombie.send(key, *self._values(1, "zombie")),
            zombie.commit,
            zombie.abort,
            lambda: self.broker.add_partitions_to_txn(
                zombie.transactional_id, zombie.producer_id, zombie.epoch, [key]
            ),
        )
        self._refuse(verbs[verb % len(verbs)])

    def prepare(self, crash: int | None = None) -> None:
        """The first phase of two: whatever happens from here on, the transaction waits for its end."""
        holder = self.holders[-1]
        self.trace.append(f"prepare {holder.name} crash={crash}")
        transaction, producer = holder.transaction, holder.producer
        if transaction is None or holder.doubt or self.offline:
            return

        def call() -> None:
            self.broker.transactions.prepare_txn(holder.name, producer.producer_id, producer.epoch)
            holder.is_prepared = True
            for key, partition in self.model.partitions.items():
                for record in partition.records:
                    if record.transaction is transaction:
                        self.model.made_durable(key, record.offset + 1)

        self._call(call, crash, lambda: None)

    def complete(self, *, commits: bool, crash: int | None = None) -> None:
        """An outside coordinator ends what is prepared; the holder learns of it by asking for the same."""
        holder = self.holders[-1]
        self.trace.append(f"complete {holder.name} commits={commits} crash={crash}")
        transaction = holder.transaction
        if transaction is None or holder.doubt or not holder.is_prepared:
            return
        fate = COMMITTED if commits else ABORTED
        ending = self._ending(holder, fate)

        def call() -> None:
            self.broker.complete_transaction(holder.name, commit=commits)
            self._ended(transaction, fate)
            holder.doubt = ending

        self._call(call, crash, ending.note)

    # ------------------------------------------------------------ plain producers

    def send_plain(
        self, number: int, key: TopicPartition, count: int, *, waits: bool, crash: int | None = None
    ) -> None:
        producer = self.plain[number % len(self.plain)]
        self.trace.append(f"plain {number} {key.directory} x{count} waits={waits} crash={crash}")
        if producer.doubt is not None:
            self._call(producer.doubt.call, crash, producer.doubt.note)
            return
        values = self._values(count, "plain")
        is_written = False

        def call() -> None:
            nonlocal is_written
            sequence = producer.sequences[key]
            try:
                produced = self.broker.produce(
                    key,
                    plain(
                        self.broker, *values, producer_id=producer.producer_id, sequence=sequence
                    ),
                )
            except KafkaStorageError:
                assert key in self.offline
                return
            is_written = True
            self.model.wrote(key, produced.base_offset, values)
            producer.doubt = None
            producer.sequences[key] += count
            sent = producer.sent[key]
            sent.append(Sent(sequence, values, produced.base_offset, self._openings))
            del sent[:-RETRIES_MAX]
            if produced.pending is not None and waits:
                produced.pending.wait()
                self.model.made_durable(key, produced.last_offset + 1)

        def in_doubt() -> None:
            if not is_written:
                self.model.may_have_written(key, values)
                producer.doubt = Doubt(call, in_doubt)

        self._call(call, crash, in_doubt)

    def resend_plain(self, number: int, key: TopicPartition, back: int) -> None:
        """One of the last five batches once more: answered with where it was."""
        producer = self.plain[number % len(self.plain)]
        self.trace.append(f"plain again {number} {key.directory} {back}")
        if not producer.sent[key] or producer.doubt is not None or key in self.offline:
            return
        back %= len(producer.sent[key])
        sent = producer.sent[key][-1 - back]
        batch = plain(
            self.broker, *sent.values, producer_id=producer.producer_id, sequence=sent.sequence
        )
        try:
            produced = self.broker.produce(key, batch)
        except OutOfOrderSequenceError:
            # Of batches before a restart only the last is known, as in Kafka; no older one gets in again.
            assert back, "the last batch must be known"
            assert sent.openings < self._openings
            return
        assert (produced.is_duplicate, produced.base_offset) == (True, sent.offset)

    # ------------------------------------------------------------ time, and the broker itself

    def let_time_pass(self, ms: int, crash: int | None = None) -> None:
        """Housekeeping aborts what took too long, and writes the markers that had to wait."""
        self.trace.append(f"time {ms} crash={crash}")
        self.clock.advance(ms)
        late = [holder for holder in self.holders if self._is_late(holder)]
        for holder in late:
            assert holder.transaction is not None
            if OPEN in holder.transaction.fates:
                holder.transaction.fates.add(ABORTED)
        self._call(lambda: self.broker.tick() and None, crash, lambda: None)
        for holder in late:
            self._note_time_out(holder)

    def _is_late(self, holder: Holder, grace_ms: int = 0) -> bool:
        since = max(holder.started_ms + holder.timeout_ms, self.opened_ms if grace_ms else 0)
        return (
            holder.transaction is not None
            and not holder.two_phases
            and self.clock() > since + grace_ms
        )

    def _note_time_out(self, holder: Holder) -> None:
        transaction = holder.transaction
        if transaction is None or ABORTED not in transaction.fates:
            return
        if self._is_ongoing(holder):
            assert not self._is_late(holder, HOUSEKEEPING_MS), "a time-out is overdue"
            transaction.fates &= {OPEN}
            return
        transaction.fates -= {OPEN}
        if transaction.fates == {ABORTED}:
            self._note_unmarked(holder)
            if holder.doubt is not None:  # it may never have begun, and nobody can tell
                self.take_over(self.holders.index(holder))
            else:
                holder.transaction, holder.is_shut_out = None, True

    def go_offline(self, key: TopicPartition) -> None:
        self.trace.append(f"offline {key.directory}")
        self.broker.partition(key)._offline = OSError(5, "Input/output error")
        self.offline.add(key)

    def come_online(self) -> None:
        self.trace.append("online")
        for key in self.offline:
            self.broker.partition(key)._offline = None
        self.offline.clear()
        self.let_time_pass(1_000)
        for transaction in self._unmarked():
            transaction.unmarked.clear()

    def delete(self, key: TopicPartition, portion: float, crash: int | None = None) -> None:
        self.trace.append(f"delete {key.directory} {portion} crash={crash}")
        partition = self.broker.partition(key)
        start, stable = partition.log_start_offset, partition.last_stable_offset
        before = start + int((stable - start) * portion)
        if key in self.offline:
            return

        def call() -> None:
            assert self.broker.delete_records(key, before) == before
            self.model.deleted(key, before)

        self._call(call, crash, lambda: self.model.deleted(key, before))

    def compact(self, crash: int | None = None) -> None:
        """The coordinator's own log loses what no longer counts."""
        self.trace.append(f"compact crash={crash}")
        self._call(lambda: self.broker.compact() and None, crash, lambda: None)

    def restart(self, crash: int | None = None) -> None:
        self.trace.append(f"restart crash={crash}")
        had_offline = bool(self.offline)
        died = False

        def in_doubt() -> None:
            nonlocal died
            died = True

        self._call(self.broker.close, crash, in_doubt)
        if died:
            return
        if had_offline:
            self.model.crashed()
        else:
            self.model.restarted()
            for reader in self.readers:
                for key, partition in self.model.partitions.items():
                    reader.seen[key] = [
                        item for item in reader.seen[key] if item[0] >= partition.start
                    ]
        self._come_back(power_fails=False)

    def crash(self) -> None:
        self.trace.append("crash")
        self._die(power_fails=False)

    def fail_power(self) -> None:
        self.trace.append("power failure")
        self._die(power_fails=True)

    # ------------------------------------------------------------ readers

    def view(self, key: TopicPartition) -> View:
        """What two readers see of a partition, and where it starts and ends."""
        partition = self.broker.partition(key)
        return View(
            partition.log_start_offset,
            self.broker.list_offsets(key, -1, Isolation.READ_COMMITTED).offset,
            self.broker.list_offsets(key, -1, Isolation.READ_UNCOMMITTED).offset,
            self.read(key, Isolation.READ_COMMITTED),
            self.read(key, Isolation.READ_UNCOMMITTED),
        )

    def read(self, key: TopicPartition, isolation: Isolation) -> list[tuple[int, bytes]]:
        return read(self.broker, key, isolation)

    def check(self) -> None:
        """Everything that can be seen is what it must be."""
        self.checks += 1
        bounds = {key: self._bound(key) for key in KEYS}
        if bounds != self._bounds and not self.woken:
            raise AssertionError("readers can see more, and nobody has woken them")
        self._bounds, self.woken = bounds, False
        views = {key: self.view(key) for key in KEYS}
        self.model.check(views)
        for reader in self.readers:
            for key, view in views.items():
                self._check_reader(reader, key, view)

    def _check_reader(self, reader: FetchReader, key: TopicPartition, view: View) -> None:
        """A consumer that reads on from where it was has seen everything once, however often there were crashes."""
        while reader.poll(self.broker, key):
            pass
        committed = reader.isolation is Isolation.READ_COMMITTED
        shown = view.committed if committed else view.uncommitted
        seen = [item for item in reader.seen[key] if item[0] >= view.start]
        if seen != shown:
            raise BrokenPromiseError(
                Kind.ORDER, key, f"{reader.isolation.value}: {seen} is not {shown}"
            )
