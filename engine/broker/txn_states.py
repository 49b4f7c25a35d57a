"""What the coordinator knows of all transactional ids: a table that is a replay of __transaction_state.

Duty         find an id; log its moves; load, list, describe and expire ids. What a request may do is decided elsewhere.
Concurrency  any thread; the tables are dictionaries whose single operations are atomic, ids have their own locks
Crash        loading takes the last record of each id. What cannot be read is logged and refused, the rest lives.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, NamedTuple

from ..base.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidProducerIdMappingError,
    InvalidRegularExpressionError,
    InvalidRequestError,
    KafkaStorageError,
    OncelogError,
    TransactionalIdNotFoundError,
)
from .txn_metadata import (
    DEAD,
    DECIDED,
    IDLE,
    PREPARE_COMMIT,
    TransactionMetadata,
    Transition,
)
from .txn_records import TransactionState, TransactionValue, decode_key, decode_value, encode_value

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..segment.names import TopicPartition
    from .state_log import StateLog

logger = logging.getLogger("oncelog.broker")


class TransactionDescription(NamedTuple):
    """What is known of one transactional id. ``start_ms`` is -1 before its first transaction."""

    transactional_id: str
    state: TransactionState
    producer_id: int
    producer_epoch: int
    transaction_timeout_ms: int
    start_ms: int
    partitions: tuple[TopicPartition, ...]


class TransactionListing(NamedTuple):
    """One line of a list of transactions."""

    transactional_id: str
    producer_id: int
    state: TransactionState


class TransactionStates:
    """The transactional ids of one broker, and those among them whose transaction is not complete."""

    def __init__(self, log: StateLog) -> None:
        self.log = log
        self.is_loaded = False
        self.ids: dict[str, TransactionMetadata] = {}
        # Open, or decided and not complete, by producer id: time-outs look at these alone.
        self.open: dict[int, TransactionMetadata] = {}
        self._unreadable_ids: dict[str, OncelogError] = {}
        self._unreadable_partitions: dict[int, OncelogError] = {}

    # ------------------------------------------------------------ loading

    def load(self) -> None:
        """Replays the log; of each id the last record counts. Nothing is answered before all is read."""
        found: dict[str, TransactionMetadata] = {}
        for number in sorted(self.log.existing()):
            try:
                latest = dict(self.log.replay(number))
            except OncelogError as error:
                logger.error("%s-%d cannot be loaded: %s", self.log.topic, number, error)
                self._unreadable_partitions[number] = error
                continue
            for key, value in latest.items():
                if value is not None:
                    self._load_one(found, number, key, value)
        self.ids = found
        self.is_loaded = True
        logger.info("%d transactional ids loaded, %d open", len(found), len(self.open))

    def _load_one(
        self, found: dict[str, TransactionMetadata], number: int, key: bytes, data: bytes
    ) -> None:
        transactional_id = None
        try:
            transactional_id = decode_key(key)
            if transactional_id is None:
                return  # a kind of record that this version does not know
            value = decode_value(data)
        except OncelogError as error:
            logger.error("transactional id %r cannot be loaded: %s", transactional_id or key, error)
            if transactional_id is not None:
                self._unreadable_ids[transactional_id] = error
            return
        if value.state is DEAD:
            return
        metadata = TransactionMetadata(transactional_id, value, state_partition=number)
        found[transactional_id] = metadata
        if value.state not in IDLE:
            self.open[value.producer_id] = metadata

    def decisions(
        self, producer_ids: Collection[int]
    ) -> dict[tuple[int, int, TopicPartition], bool]:
        """Decisions on transactions of version 2, by producer id, epoch of the records, and partition."""
        found = {}
        for number in sorted(self.log.existing()):
            if number in self._unreadable_partitions:
                continue
            for _, data in self.log.replay(number):
                if data is None:
                    continue
                try:
                    value = decode_value(data)
                except OncelogError:
                    continue  # logged when it was loaded
                if (
                    value.producer_id in producer_ids
                    and value.state in DECIDED
                    and value.client_transaction_version >= 2
                ):
                    for key in value.partitions:
                        place = (value.producer_id, value.producer_epoch - 1, key)
                        found[place] = value.state is PREPARE_COMMIT
        return found

    # ------------------------------------------------------------ finding

    def need(self, transactional_id: str) -> TransactionMetadata:
        """An id that is known."""
        metadata = self.ids.get(transactional_id)
        if metadata is None:
            self.check_readable(transactional_id)
            raise InvalidProducerIdMappingError(
                f"transactional id {transactional_id!r} is not known, or has expired"
            )
        return metadata

    def add(self, metadata: TransactionMetadata) -> TransactionMetadata:
        """Makes an id known. Of two threads that meet here one wins, and both get its metadata."""
        return self.ids.setdefault(metadata.transactional_id, metadata)

    def check_readable(self, transactional_id: str) -> None:
        """Raises where nobody can tell whether the id is known."""
        if not transactional_id:
            raise InvalidRequestError("a transactional id has at least one character")
        if not self.is_loaded:
            raise CoordinatorLoadInProgressError(f"{self.log.topic} is being loaded")
        number = self.log.partition_for(transactional_id)
        error = self._unreadable_ids.get(transactional_id, self._unreadable_partitions.get(number))
        if error is not None:
            raise CoordinatorNotAvailableError(
                f"the state of transactional id {transactional_id!r} in {self.log.topic}-{number}"
                f" cannot be read: {error}"
            )

    # ------------------------------------------------------------ moves

    def append(self, metadata: TransactionMetadata, value: TransactionValue) -> int:
        """Writes a value; returns the offset after it."""
        return self.log.append(metadata.state_partition, ((metadata.key, encode_value(value)),))

    def directory_of(self, metadata: TransactionMetadata) -> str:
        """The partition that an id's records are in, by its name."""
        return f"{self.log.topic}-{metadata.state_partition}"

    def log_move(
        self, metadata: TransactionMetadata, transition: Transition, *, is_synced: bool = False
    ) -> None:
        """Logs a move. Where that fails the move is cancelled, so that the caller may try again."""
        try:
            end = self.append(metadata, transition.value)
            if is_synced:
                self.log.sync(metadata.state_partition, end)
        except BaseException as error:
            self.cancel_move(metadata, transition, error)
            raise

    def cancel_move(
        self, metadata: TransactionMetadata, transition: Transition, error: BaseException
    ) -> None:
        """A move was not logged, or that is not known: it is cancelled, and the disk's error becomes a caller's."""
        metadata.cancel(transition)
        if isinstance(error, KafkaStorageError):
            raise CoordinatorNotAvailableError(
                f"transactional id {metadata.transactional_id!r}: its state cannot be written: {error}"
            ) from error

    # ------------------------------------------------------------ expiry

    def expire(self, oldest_ms: int) -> int:
        """Forgets ids without a transaction that were last used then or before; returns how many."""
        expired: dict[int, list[tuple[TransactionMetadata, Transition]]] = {}
        for metadata in list(self.ids.values()):
            if not _is_unused(metadata, oldest_ms):
                continue
            with metadata.lock:
                if _is_unused(metadata, oldest_ms):
                    moves = expired.setdefault(metadata.state_partition, [])
                    moves.append((metadata, metadata.prepare_dead()))
        return sum(self._forget(number, moves) for number, moves in expired.items())

    def _forget(self, number: int, moves: list[tuple[TransactionMetadata, Transition]]) -> int:
        """Writes tombstones, in batches that fit; what could not be written stays known."""
        by_key = {metadata.key: (metadata, transition) for metadata, transition in moves}
        count = 0
        try:
            for batch in self.log.batches(number, ((key, None) for key in by_key)):
                self.log.append(number, batch)
                for key, _ in batch:
                    metadata, transition = by_key[key]
                    with metadata.lock:
                        metadata.complete(transition)
                        self.ids.pop(metadata.transactional_id, None)
                    logger.debug("%r has expired", metadata)
                count += len(batch)
        except OncelogError as error:
            logger.warning("%s-%d: ids cannot expire: %s", self.log.topic, number, error)
        finally:
            for metadata, transition in moves:
                metadata.cancel(transition)
        if count:
            logger.info("%s-%d: %d transactional ids have expired", self.log.topic, number, count)
        return count

    # ------------------------------------------------------------ looking

    def describe(self, transactional_id: str) -> TransactionDescription:
        metadata = self.ids.get(transactional_id)
        if metadata is None:
            self.check_readable(transactional_id)
            raise TransactionalIdNotFoundError(
                f"transactional id {transactional_id!r} is not known"
            )
        value = metadata.value
        return TransactionDescription(
            transactional_id,
            value.state,
            value.producer_id,
            value.producer_epoch,
            value.transaction_timeout_ms,
            value.start_ms,
            value.partitions,
        )

    def matching(
        self,
        now_ms: int,
        states: Collection[str],
        producer_ids: Collection[int],
        duration_ms_min: int,
        id_pattern: str | None,
    ) -> list[TransactionListing]:
        """The ids that pass all filters; an empty one lets all pass."""
        if not self.is_loaded:
            raise CoordinatorLoadInProgressError(f"{self.log.topic} is being loaded")
        try:
            pattern = re.compile(id_pattern) if id_pattern else None
        except re.error as error:
            raise InvalidRegularExpressionError(f"{id_pattern!r} is no pattern: {error}") from error
        wanted = {state for state in TransactionState if state.label in states}
        found = []
        for transactional_id, metadata in list(self.ids.items()):
            value = metadata.value
            if (
                value.state is not DEAD
                and (not producer_ids or value.producer_id in producer_ids)
                and (not states or value.state in wanted)
                and (duration_ms_min < 0 or now_ms - value.start_ms > duration_ms_min)
                and (pattern is None or pattern.fullmatch(transactional_id))
            ):
                found.append(TransactionListing(transactional_id, value.producer_id, value.state))
        return found


def _is_unused(metadata: TransactionMetadata, oldest_ms: int) -> bool:
    value = metadata.value
    return value.state in IDLE and metadata.pending is None and value.last_update_ms <= oldest_ms
