"""Where the histories of txn_world.py take place: a broker that can die and be opened again, and what its readers see."""

from __future__ import annotations

import abc
import collections
import random
import shutil
from typing import TYPE_CHECKING, Any

import oncelog
from oncelog.base.errors import (
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    KafkaStorageError,
    OncelogError,
    ProducerFencedError,
)
from oncelog.broker.broker import Broker
from oncelog.broker.topics import NewTopic
from oncelog.broker.txn_records import TransactionState
from oncelog.partition.partition import Isolation
from tests.broker.brokers import ManualClock, VerbProducer, crashed
from tests.sim.txn_model import (
    ABORTED,
    COMMITTED,
    OPEN,
    BrokenPromiseError,
    Fate,
    Kind,
    Model,
    Seen,
    Transaction,
    View,
)
from tests.sim.txn_parts import (
    KEYS,
    ConsumerReader,
    Crash,
    CrashDisk,
    FetchReader,
    Holder,
    PlainProducer,
    linked,
    read,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from oncelog.segment.names import TopicPartition

SMALL = {"internal.segment.bytes": 1500, "index.interval.bytes": 250, "segment.index.bytes": 500}
CONFIG = {
    "transaction.state.log.segment.bytes": 1500,
    "transaction.state.log.num.partitions": 3,
    "log.index.size.max.bytes": 1000,
    "transaction.two.phase.commit.enable": True,
    "offsets.topic.num.partitions": 2,
    "offsets.topic.segment.bytes": 1500,
    "group.initial.rebalance.delay.ms": 0,
}
REFUSALS = (
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
)


class Stage(abc.ABC):
    """A broker, its clients, a clock, a disk, and the model that follows them."""

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
        # Partitions that cannot be written, and what makes each of them well again.
        self.offline: dict[TopicPartition, Callable[[], None]] = {}
        self.readers = (
            FetchReader(Isolation.READ_COMMITTED, 300),
            FetchReader(Isolation.READ_COMMITTED, 2000),
            FetchReader(Isolation.READ_UNCOMMITTED, 500),
            ConsumerReader(Isolation.READ_COMMITTED),
            ConsumerReader(Isolation.READ_UNCOMMITTED),
        )
        self.path = self._next_path()
        self._shown_outside: dict[TopicPartition, list[Seen]] = {}
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
            shutil.copytree(old, self.path, copy_function=linked)
            self.model.crashed()
        crashed(self.broker)
        shutil.rmtree(old)
        self._come_back(power_fails=power_fails)

    def _come_back(self, *, power_fails: bool) -> None:
        for transaction in self._unmarked():
            transaction.unmarked.clear()
        if power_fails:
            self._lose_clients()
        self.lost(power_fails=power_fails)
        self._open()
        self._watch()
        for holder in self.holders:
            holder.producer.broker = self.broker
        for zombie in self.zombies:
            zombie.broker = self.broker
        self.check()
        self._check_shown_outside()
        self._ask_who_is_open()
        self.came_back(power_fails=power_fails)
        if power_fails:
            self.plain = [self._new_plain() for _ in self.plain]
            self._complete_prepared()
            for number in range(len(self.holders)):
                self.take_over(number)
            self.check()

    @abc.abstractmethod
    def take_over(self, number: int, crash: int | None = None, *, keeps: bool = False) -> None:
        """Somebody else takes an id."""

    @abc.abstractmethod
    def lost(self, *, power_fails: bool) -> None:
        """The broker is gone, and with the power all that was not durable."""

    @abc.abstractmethod
    def came_back(self, *, power_fails: bool) -> None:
        """The broker is there again, and what it knows is asked for."""

    @abc.abstractmethod
    def check_groups(self) -> None:
        """What groups have committed is what they must have."""

    @abc.abstractmethod
    def ended(self, transaction: Transaction, fate: Fate) -> None:
        """The broker says how a transaction has ended."""

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
                    self.ended(holder.transaction, COMMITTED)
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
        self.check_groups()
        for reader in self.readers:
            for key, view in views.items():
                self._check_reader(reader, key, view)

    def look_from_outside(self) -> None:
        """A reader that opens the directory beside its writer sees nothing that could be taken back, and what is
        durable in any case."""
        self.trace.append("look from outside")
        with oncelog.open(self.path, read_only=True) as log:
            for key in KEYS:
                seen = [(r.offset, r.value or b"") for r in log.read(key.topic, key.partition)]
                inside = self.read(key, Isolation.READ_COMMITTED)
                expected = inside if self.durability == "os" else inside[: len(seen)]
                if seen != expected:
                    raise BrokenPromiseError(
                        Kind.ORDER, key, f"outside: {seen} where {inside} is seen inside"
                    )
                self._shown_outside[key] = seen

    def _check_shown_outside(self) -> None:
        """What a reader beside the writer has seen is still there, unless it was deleted. A deletion that a power failure
        undid may bring back what lies before."""
        for key, shown in self._shown_outside.items():
            partition = self.model.partitions[key]
            left = [item for item in shown if item[0] >= partition.start]
            first = left[0][0] if left else 0
            seen = [item for item in self.read(key, Isolation.READ_COMMITTED) if item[0] >= first]
            if seen[: len(left)] != left:
                raise BrokenPromiseError(Kind.LOST, key, f"{left} was shown, now {seen}")
        self._shown_outside.clear()

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
