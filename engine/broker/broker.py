"""The broker: many partitions, who may write to them, and the verbs of Kafka's protocol as methods.

Duty         topics, produce, fetch, offsets, transactions: one set of semantics for every door.
Concurrency  any thread may call any verb. Lock order: a group's, a transaction's, the one of producer ids, the
             broker's, the data directory's, a partition's, that of checkpoints.
Waiting      none: time comes from ``now_ms``, and what must be waited for is handed to the caller (waiting.py).
Crash        topics and epochs are replayed from the metadata log, transactions from ``__transaction_state``; what the
             coordinator had decided is completed before the first call is answered.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import logging
import os
import struct
import threading
from typing import TYPE_CHECKING, Final

from .._native import process
from .._native.crew import Crew
from .._native.segment import BrokerTail, attributes_of
from ..base import clock
from ..base.config import BROKER, read_options, topic_defaults
from ..base.disk import Disk
from ..base.errors import (
    ClosedError,
    FencedLeaderEpochError,
    InvalidConfigError,
    InvalidRequestError,
    InvalidTopicError,
    InvalidTxnStateError,
    NotLeaderOrFollowerError,
    OncelogError,
    PolicyViolationError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from ..partition.data_directory import DataDirectory
from ..partition.partition import Fetched, Isolation, Partition, PartitionOptions
from ..partition.retention import apply_retention
from ..segment.batch import Attributes
from ..segment.names import TopicPartition
from .adoption import adopted_counters, adopted_topics, check_ownership, complete_identity
from .answers import ListedOffset, Produced
from .cluster_metadata import read_cluster_metadata
from .config_verbs import ConfigVerbs, given_options
from .group_verbs import GroupVerbs
from .metadata_log import MetadataLog
from .state_log import StateLog
from .topic_options import cleaner_options, compaction_options, retention_options
from .topic_verbs import TopicVerbs
from .topics import (
    CONSUMER_OFFSETS,
    INTERNAL,
    TRANSACTION_STATE,
    Topic,
    Topics,
    new_topic_id,
)
from .transaction_verbs import TransactionVerbs
from .waiting import PendingSync, Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from typing_extensions import Buffer

    from ..partition.cleaner import Cleaned
    from ..partition.compaction import Candidate, Cleanable

logger = logging.getLogger("oncelog.broker")

TRANSACTIONAL: Final = int(Attributes.TRANSACTIONAL)
PRODUCER_AT: Final = 43
PRODUCER: Final = struct.Struct(">qh")
LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
BLOCK_SIZE: Final = 1000
PRODUCER_ID_MAX: Final = 2**63 - 1
EPOCH_MAX: Final = 2**15 - 1
# Options that give the partitions and the segment size of an internal topic.
INTERNAL_OPTIONS: Final = {
    TRANSACTION_STATE: (
        "transaction.state.log.num.partitions",
        "transaction.state.log.segment.bytes",
    ),
    CONSUMER_OFFSETS: ("offsets.topic.num.partitions", "offsets.topic.segment.bytes"),
}


@functools.lru_cache(maxsize=1024)
def _uuid_bytes(topic_id: str) -> bytes:
    """A topic id as records have it; every commit asks for one."""
    return base64.urlsafe_b64decode(topic_id + "==")


class Broker(TransactionVerbs, GroupVerbs, ConfigVerbs, TopicVerbs, BrokerTail):
    """An embedded broker: the one writer of a data directory."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        disk: Disk | None = None,
        now_ms: Callable[[], int] = clock.now_ms,
        config: Mapping[str, object] | None = None,
        durability: str = "os",
        adopt: bool = False,
        keeps_epoch: bool = False,
    ) -> None:
        if durability not in ("os", "fsync"):
            raise InvalidConfigError(f"durability is 'os' or 'fsync', not {durability!r}")
        if now_ms is clock.now_ms:
            now_ms = process.now_ms  # the same without a frame: a commit asks eight times
        self.now_ms = now_ms
        self._given = given_options(config)
        self.config = read_options(BROKER, self._given)
        self.node_id: int = self.config["node.id"]
        # Kafka's default is to make them. Here a name that was mistyped is an error, unless this is asked for.
        self.creates_topics: bool = self._given.get("auto.create.topics.enable", False)
        self.is_synced = durability == "fsync"
        self._own_topics, self._answer, self._pending = INTERNAL, Produced, PendingSync
        self.crew = Crew()
        self._disk = disk or Disk()
        self._lock = threading.RLock()
        self._open = {}
        self._options: dict[str, PartitionOptions] = {}
        self._defaults = topic_defaults(self.config)
        self._is_closed = False
        if not adopt:
            check_ownership(os.fspath(path))
        self._data = DataDirectory(
            path, self._disk, now_ms=now_ms, options_of=lambda key: self._options_of(key.topic)
        )
        # An opening that fails, or is interrupted, leaves nothing open.
        with contextlib.ExitStack() as undo:
            undo.callback(self._data.abandon)
            self._metadata = MetadataLog(self._data.path, self._disk, now_ms)
            undo.callback(self._metadata.close)
            self._start(config or {}, keeps_epoch=keeps_epoch)
            undo.pop_all()

    # ------------------------------------------------------------ opening and closing

    def _start(self, given: Collection[str], *, keeps_epoch: bool) -> None:
        # What only a broker that runs needs is not loaded by one that is only looked at (observed.py).
        from ..partition.compaction import Compactor
        from .housekeeping import Housekeeping

        is_foreign = self._metadata.is_new and bool(self._data.partitions)
        if is_foreign:
            self._adopt()
        self._topics = Topics(self._metadata)
        self._load_altered()
        self._lead(goes_on=keeps_epoch and self._data.is_clean and not is_foreign)
        complete_identity(self._data.path, self._disk, self.node_id, self.now_ms())
        self.compactor = Compactor(self._data.path, self._disk, cleaner_options(self.config))
        self._complete_topics()
        self._coordinate(given, is_sound=self._data.is_clean and not is_foreign)
        self.housekeeping = Housekeeping(self)

    def _lead(self, *, goes_on: bool) -> None:
        """Begins a new leader epoch, or goes on with the one that a clean stop has ended.

        Whoever opens a log for each small write would add a line for each to every partition's
        ``leader-epoch-checkpoint``, which is written whole. An epoch tells apart what two leaders wrote at one offset,
        and after a clean stop nothing that anybody read can be gone.
        """
        self.leader_epoch = self._metadata.facts.get("leader_epoch", -1)
        if self.leader_epoch < 0 or not goes_on:
            self.leader_epoch += 1
            self._metadata.put({"leader_epoch": self.leader_epoch})

    def _adopt(self) -> None:
        """Takes over what another broker wrote, and writes it down in one piece."""
        cluster = read_cluster_metadata(self._data.path)
        counts = {name: self._internal_count(name) for name in INTERNAL}
        topics = adopted_topics(self._data, cluster, counts)
        self._metadata.assume(topics)
        self._topics = Topics(self._metadata)  # partitions cannot be opened without
        self._metadata.put({**topics, **adopted_counters(self._data, cluster)})
        logger.info("adopted %s: %d topics", self._data.path, len(topics))

    def _complete_topics(self) -> None:
        """Does what a crash left undone: removals that were begun, directories that were not made yet."""
        for topic in self._topics.deleting():
            self._remove(topic)
        for name in self._topics.names():
            topic = self._topics.need(name)
            if not topic.is_internal:
                self._make_directories(topic)

    def _state_log(self, topic: str) -> StateLog:
        """The internal topic that a coordinator stands on."""
        known = self._topics.get(topic)
        return StateLog(
            topic,
            known.partition_count if known else self._internal_count(topic),
            lambda number: self.partition(self._internal(topic, number)),
            lambda: self._existing(topic),
            self.leader_epoch,
            self.now_ms,
            is_synced=self.is_synced,
        )

    def _coordinate(self, given: Collection[str], *, is_sound: bool) -> None:
        """Replays what both coordinators know, and completes what was decided."""
        from .group_answers import GroupOptions
        from .group_coordinator import GroupCoordinator
        from .producer_ids import ProducerIds
        from .txn_coordinator import CoordinatorOptions, TransactionCoordinator

        self.transactions = TransactionCoordinator(
            self._state_log(TRANSACTION_STATE),
            ProducerIds(self._take_block),
            self,
            CoordinatorOptions.of(self.config),
            self.now_ms,
        )
        self.groups = GroupCoordinator(
            self._state_log(CONSUMER_OFFSETS),
            self.transactions,
            GroupOptions.of(self.config, given),
            self.now_ms,
            topic_id_of=self._topic_id_bytes,
            topic_name_of=self._topic_name,
        )
        if is_sound:
            self.transactions.load()
        else:
            self.transactions.load(self._end_unknown_transactions)
        self.groups.load()

    def _topic_id_bytes(self, name: str) -> bytes | None:
        topic = self._topics.get(name)
        return None if topic is None else _uuid_bytes(topic.topic_id)

    def _topic_name(self, topic_id: bytes) -> str | None:
        names = (name for name in self._topics.names() if self._topic_id_bytes(name) == topic_id)
        return next(names, None)

    def _existing(self, topic: str) -> list[int]:
        return [key.partition for key in self._data.partitions if key.topic == topic]

    def existing(self) -> list[TopicPartition]:
        return [key for key in self._data.partitions if self._topics.get(key.topic) is not None]

    def _internal(self, name: str, number: int) -> TopicPartition:
        """A partition of an internal topic, which is made when it is first needed."""
        if self._topics.get(name) is None:
            with self._lock:
                if self._topics.get(name) is None:
                    self._topics.put([self._internal_topic(name)])
        return TopicPartition(name, number)

    def _internal_count(self, name: str) -> int:
        count: int = self.config[INTERNAL_OPTIONS[name][0]]
        return count

    def _internal_topic(self, name: str) -> Topic:
        count = self._internal_count(name)
        config = {
            "cleanup.policy": ("compact",),
            "compression.type": "uncompressed" if name == TRANSACTION_STATE else "producer",
            "segment.bytes": self.config[INTERNAL_OPTIONS[name][1]],
        }
        return Topic(name, new_topic_id(), tuple(range(count)), config)

    def _take_block(self) -> range:
        """The next block of producer ids, written down before any of them is used."""
        with self._lock:
            first = self._metadata.facts.get("producer_ids", 0)
            if first > PRODUCER_ID_MAX - BLOCK_SIZE:
                raise InvalidRequestError("all producer ids are used up")
            self._metadata.put({"producer_ids": first + BLOCK_SIZE})
            return range(first, first + BLOCK_SIZE)

    @property
    def path(self) -> str:
        return self._data.path

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """A clean stop; closing twice is harmless."""
        self.groups.close()  # takes groups' locks, which come before ours
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self.compactor.stop()
            self._open.clear()
            self._metadata.close()
            self._data.close()

    def abandon(self) -> None:
        """Gives up files and lock and writes nothing more, as a crash would; the next opening recovers."""
        self.groups.close()
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self.compactor.stop()
                self._open.clear()
                self._metadata.close()
                self._data.abandon()

    # ------------------------------------------------------------ partitions

    def partition(self, key: TopicPartition) -> Partition:
        """A partition that is here, opened when it is first asked for."""
        partition = self._open.get(key)
        if partition is not None:
            return partition
        with self._lock:
            self.check_open()
            topic = self._topics.need(key.topic)
            if key.partition not in topic.partitions:
                if 0 <= key.partition < topic.partition_count:
                    raise NotLeaderOrFollowerError(f"{key.directory} is not in this directory")
                raise UnknownTopicOrPartitionError(
                    f"topic {key.topic!r} has partitions 0 to {topic.partition_count - 1}, not {key.partition}"
                )
            self._open[key] = self._data.create(key, topic.topic_id)
            return self._open[key]

    def check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"{self._data.path} is closed")

    # ------------------------------------------------------------ records

    def _produce(
        self,
        key: TopicPartition,
        batch: Buffer,
        acks: int,
        transactional_id: str | None,
        transaction_version: int,
    ) -> Produced:
        """What produce() does with a batch that is more than small, sound and the next one."""
        partition = self.partition(key)
        if key.topic in INTERNAL:
            raise InvalidTopicError(f"{key.topic} is written by the broker alone")
        if attributes_of(batch) & TRANSACTIONAL:
            return self._produce_in_transaction(
                partition, batch, transactional_id, transaction_version
            )
        appended = partition.append_as_leader(
            batch, leader_epoch=self.leader_epoch, now_ms=self.now_ms()
        )
        is_pending = self.is_synced and acks != 0
        return Produced(
            *appended, PendingSync(partition, appended.last_offset + 1) if is_pending else None
        )

    def _produce_in_transaction(
        self, partition: Partition, batch: Buffer, transactional_id: str | None, version: int
    ) -> Produced:
        if transactional_id is None:
            raise InvalidTxnStateError("a transactional batch was sent without a transactional id")
        producer_id, epoch = PRODUCER.unpack_from(batch, PRODUCER_AT)
        bumps_epoch = version >= 2
        transactions = self.transactions

        def append() -> Produced:
            leader_epoch, now_ms = self.leader_epoch, self.now_ms()
            produced = partition.append_in_transaction(
                batch, leader_epoch, now_ms, bumps_epoch, Produced
            )
            if produced is None:
                appended = partition.append_as_leader(
                    batch, leader_epoch=leader_epoch, now_ms=now_ms, bumps_epoch=bumps_epoch
                )
                produced = Produced(*appended, None)
            return produced

        # In version 2 the marker that ends a transaction bumps the epoch, so that the partition itself refuses what
        # comes after. In version 1 it would begin a transaction that nobody ends: there the coordinator is asked.
        opened = partition.transaction_of(producer_id) if bumps_epoch else None
        if opened is not None and opened[0] == epoch:
            with partition.lock:  # who keeps the transaction for another passes by this lock
                if producer_id not in transactions.kept:
                    return append()
        return transactions.append(
            transactional_id,
            producer_id,
            epoch,
            partition.key,
            append,
            transaction_version=version,
        )

    def fetch(
        self,
        key: TopicPartition,
        offset: int,
        *,
        bytes_max: int = 1 << 20,
        isolation: Isolation = Isolation.READ_COMMITTED,
        at_least_one: bool = True,
        leader_epoch: int = -1,
    ) -> Fetched:
        """Raw batches from an offset on, with the aborted transactions that a consumer filters by."""
        self._check_epoch(key, leader_epoch)
        bytes_max = min(bytes_max, self.config["fetch.max.bytes"])
        return self.partition(key).fetch(offset, bytes_max, isolation, at_least_one=at_least_one)

    def _check_epoch(self, key: TopicPartition, leader_epoch: int) -> None:
        """A caller that names a leader epoch must name the present one."""
        if leader_epoch in (-1, self.leader_epoch):
            return
        error = (
            FencedLeaderEpochError if leader_epoch < self.leader_epoch else UnknownLeaderEpochError
        )
        raise error(f"{key.directory} has leader epoch {self.leader_epoch}, not {leader_epoch}")

    def list_offsets(
        self,
        key: TopicPartition,
        timestamp: int,
        isolation: Isolation = Isolation.READ_COMMITTED,
        *,
        leader_epoch: int = -1,
    ) -> ListedOffset:
        """The latest (-1), the earliest (-2), that of the largest timestamp (-3), or the first at a time or later."""
        self._check_epoch(key, leader_epoch)
        partition = self.partition(key)
        if timestamp == LATEST:
            return self._listed(partition, partition.upper_bound(isolation), -1)
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            return self._listed(partition, partition.log_start_offset, -1)
        if timestamp == MAX_TIMESTAMP:
            found = partition.max_timestamp()
            if found is not None and found[1] >= partition.upper_bound(isolation):
                found = None
        elif timestamp >= 0:
            found = partition.offset_for_timestamp(timestamp, isolation)
        else:
            raise InvalidRequestError(f"{timestamp} is neither a time nor a name of an offset")
        if found is None:
            return ListedOffset(-1, -1, -1)
        return self._listed(partition, found[1], found[0])

    @staticmethod
    def _listed(partition: Partition, offset: int, timestamp: int) -> ListedOffset:
        return ListedOffset(offset, timestamp, partition.epochs.epoch_of(offset))

    def delete_records(self, key: TopicPartition, before_offset: int) -> int:
        """Moves a log's start up; -1 is its end. Returns the new start."""
        topic = self._topics.need(key.topic)
        if topic.is_internal:
            raise InvalidTopicError(f"{key.topic} is the broker's own, and so are its records")
        if self._config_of(topic)["cleanup.policy"] == ("compact",):
            raise PolicyViolationError(
                f"records of {key.directory} cannot be deleted: its cleanup.policy is compact, without delete"
            )
        return self.partition(key).delete_records(before_offset)

    def watch(self, keys: Iterable[TopicPartition], wake: Callable[[], None]) -> Watch:
        """Calls ``wake`` whenever readers of these partitions may see more, until the watch is closed."""
        return Watch([self.partition(key) for key in keys], wake)

    # ------------------------------------------------------------ housekeeping

    def tick(self) -> int:
        """Does the short jobs that are due; returns the milliseconds until the next."""
        return self.housekeeping.tick()

    def opened(self) -> list[Partition]:
        """The partitions that are open at this moment."""
        return list(self._open.values())

    def checkpoint(self) -> None:
        self._data.checkpoint()

    def _known_topics(self) -> list[tuple[Topic, list[TopicPartition]]]:
        """The topics that may lose records, as their config is known, with their partitions that are here."""
        topics = [self._topics.get(name) for name in self._topics.names()]
        return [
            (topic, [key for key in topic.keys if key in self._data])
            for topic in topics
            if topic is not None and topic.is_config_known
        ]

    def apply_retention(self) -> int:
        """Removes what topics no longer keep; a topic whose config is not known keeps everything. A partition that
        nobody has opened stays closed until something is due."""
        removed = 0
        for topic, keys in self._known_topics():
            options = retention_options(self._config_of(topic))
            for key in keys:
                try:
                    unopened = self._data.unopened(key)
                    if unopened is None or unopened.may_expire(options, self.now_ms()):
                        removed += apply_retention(self.partition(key), options, self.now_ms())
                except OncelogError as error:  # of this one; the others must not fill the disk
                    self.check_open()
                    if self._topics.get(topic.name) is None:
                        break  # deleted meanwhile, with all that could be removed
                    logger.warning(
                        "%s: cannot remove what is no longer kept: %s", key.directory, error
                    )
        return removed

    def compact(self) -> bool:
        """Cleans the log that needs it most, if any does; returns whether one was cleaned."""
        log = self.compactor.filthiest(self._candidates(is_forced=False), self.now_ms())
        return log is not None and self._clean(log) is not None

    def compact_now(self, names: Collection[str] = ()) -> dict[TopicPartition, Cleaned]:
        """Cleans all compacted logs, or those of some topics, however little there is to clean."""
        done = {}
        for candidate in self._candidates(is_forced=True):
            if names and candidate.partition.key.topic not in names:
                continue
            log = self.compactor.cleanable(candidate, self.now_ms())
            cleaned = self._clean(log) if log.end > log.first_dirty else None
            if cleaned is not None:
                done[candidate.partition.key] = cleaned
        return done

    def _candidates(self, *, is_forced: bool) -> list[Candidate]:
        """The logs that are compacted. One that nobody has opened stays closed until it may be dirty enough."""
        from ..partition.compaction import Candidate

        candidates = []
        is_stuck = self.is_synced and any(partition.is_offline for partition in self.opened())
        for topic, keys in self._known_topics():
            options = compaction_options(self._config_of(topic))
            if options is None or (topic.name == TRANSACTION_STATE and is_stuck):
                continue  # for the latter see below
            for key in keys:
                try:
                    unopened = None if is_forced else self._data.unopened(key)
                    first_dirty = self.compactor.checkpointed(key)
                    if unopened is None or unopened.may_be_dirty(first_dirty, options):
                        candidates.append(Candidate(self.partition(key), options))
                except OncelogError as error:  # the others are compacted all the same
                    self.check_open()
                    logger.debug("%s: cannot be compacted: %s", key.directory, error)
        return candidates

    def _clean(self, log: Cleanable) -> Cleaned | None:
        if log.candidate.partition.key.topic == TRANSACTION_STATE:
            # What a decision led to is on the device before the decision may go.
            self.sync([p.key for p in self.opened() if p.key.topic != TRANSACTION_STATE])
        return self.compactor.clean(log, self.now_ms())
