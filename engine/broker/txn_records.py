"""Transaction state: what the coordinator knows of each transactional id, as records of a compacted topic.

File    the .log files of __transaction_state-<n>; n is the hash of the transactional id (base/java_hash.py)
Writer  the transaction coordinator, one record at every change of state; no value: the id has expired
Reader  the same, at start: of the records of one id the last counts
Repair  none of its own: a record is part of a batch, whose checksum decides

Key: version int16 (0), transactional_id string.

Value, version 1; version 0 has int16 and int32 lengths and no tags:

======  =====  ==========================  ===================================================
at      type   field                       invariant
======  =====  ==========================  ===================================================
 0      int16  version                     0 or 1
 2      int64  producer_id                 in use by this transactional id
10      int16  producer_epoch              of the last batch or marker that counts
12      int32  transaction_timeout_ms
16      int8   state                       0 Empty, 1 Ongoing, 2 PrepareCommit, 3 PrepareAbort,
                                           4 CompleteCommit, 5 CompleteAbort, 6 Dead,
                                           7 PrepareEpochFence
17      array  partitions                  topic and its partitions; null in Empty
then    int64  last_update_ms
then    int64  start_ms                    -1 without a transaction
tag 0   int64  previous_producer_id        of the transaction before; left out if -1
tag 1   int64  next_producer_id            given out, not in use yet; left out if -1
tag 2   int16  client_transaction_version  left out if 0
tag 3   int16  next_producer_epoch         goes with next_producer_id; left out if -1
======  =====  ==========================  ===================================================

Big-endian. A flexible array or string has its length + 1 as an unsigned varint; strings are UTF-8.
"""

from __future__ import annotations

import enum
import functools
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from ..base.errors import InvalidRequestError, UnsupportedVersionError
from ..base.fields import FieldReader, compact_string, string, tagged_fields, uvarint
from ..segment.names import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY_VERSION: Final = 0
VALUE_VERSION_MAX: Final = 1  # the first flexible one; newer Kafkas add tags, not versions
TRANSACTIONAL_ID_BYTES_MAX: Final = 2**15 - 1

_VERSION: Final = struct.Struct(">h")
_HEAD: Final = struct.Struct(">hqhib")
_TIMES: Final = struct.Struct(">qq")
_INT64: Final = struct.Struct(">q")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_NO_TAGS: Final = b"\x00"
_KEY: Final = "the key of a transaction"
_VALUE: Final = "the value of a transaction"


class TransactionState(enum.IntEnum):
    """Where a transaction stands. The numbers are Kafka's, on disk and in its requests."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """The name that Kafka's tools show."""
        return _LABELS[self]


_LABELS: Final = {
    state: "".join(word.capitalize() for word in state.name.split("_"))
    for state in TransactionState
}
_STATES: Final = tuple(TransactionState)
_EMPTY: Final = TransactionState.EMPTY


class TransactionValue(NamedTuple):
    """All that is stored of one transactional id."""

    producer_id: int
    producer_epoch: int
    transaction_timeout_ms: int
    state: TransactionState
    partitions: tuple[TopicPartition, ...]
    last_update_ms: int
    start_ms: int = -1
    previous_producer_id: int = -1
    next_producer_id: int = -1
    client_transaction_version: int = 0
    next_producer_epoch: int = -1


def encode_key(transactional_id: str) -> bytes:
    """The key under which the state of a transactional id is stored."""
    try:
        size = len(transactional_id.encode())
    except UnicodeEncodeError:
        raise InvalidRequestError(
            f"transactional id {transactional_id!r} has half a surrogate pair, which has no UTF-8"
        ) from None
    if size > TRANSACTIONAL_ID_BYTES_MAX:
        raise InvalidRequestError(
            f"a transactional id has at most {TRANSACTIONAL_ID_BYTES_MAX} bytes, not {size}"
        )
    return _VERSION.pack(KEY_VERSION) + string(transactional_id)


def decode_key(data: bytes) -> str | None:
    """The transactional id, or None for a kind of key that this version does not know."""
    reader = FieldReader(data, _KEY)
    (version,) = reader.unpack(_VERSION, "the version")
    if version != KEY_VERSION:
        return None
    transactional_id = reader.required_string("the transactional id", flexible=False)
    reader.finish()
    return transactional_id


def encode_value(value: TransactionValue, version: int = VALUE_VERSION_MAX) -> bytes:
    """The bytes of a value. Version 0, of transaction.version 0, has no room for what the tags hold."""
    if not 0 <= version <= VALUE_VERSION_MAX:
        raise UnsupportedVersionError(f"{_VALUE} of version {version} cannot be written")
    flexible = version >= 1
    # At once: a field of a named tuple costs as much as packing it.
    producer_id, epoch, timeout_ms, state, keys, updated_ms, start_ms, previous_id, *others = value
    next_id, client_version, next_epoch = others
    if (
        flexible
        and next_id == -1 == next_epoch
        and previous_id >= 0 < client_version
        and state is not _EMPTY
    ):
        partitions = _encode_partitions(keys, flexible=True)
        return _usual(len(partitions)).pack(
            *(version, producer_id, epoch, timeout_ms, state, partitions, updated_ms, start_ms),
            *(2, 0, 8, previous_id, 2, 2, client_version),
        )
    head = _HEAD.pack(
        version,
        value.producer_id,
        value.producer_epoch,
        value.transaction_timeout_ms,
        value.state,
    )
    times = _TIMES.pack(value.last_update_ms, value.start_ms)
    if state is _EMPTY:
        if value.partitions:
            raise InvalidRequestError("a transaction in state Empty has no partitions")
        partitions = b"\x00" if flexible else _INT32.pack(-1)
    else:
        partitions = _encode_partitions(value.partitions, flexible=flexible)
    if not flexible:
        return head + partitions + times
    return head + partitions + times + tagged_fields(_tags(value))


@functools.lru_cache(maxsize=128)
def _usual(partition_bytes: int) -> struct.Struct:
    """Nearly every value: a head, partitions, times, and two tags, each a number, a length and a value."""
    return struct.Struct(f">hqhib{partition_bytes}sqqBBBqBBh")


def _tags(value: TransactionValue) -> Iterator[tuple[int, bytes]]:
    """What differs from its default, in the order of the tags."""
    if value.previous_producer_id != -1:
        yield 0, _INT64.pack(value.previous_producer_id)
    if value.next_producer_id != -1:
        yield 1, _INT64.pack(value.next_producer_id)
    if value.client_transaction_version != 0:
        yield 2, _INT16.pack(value.client_transaction_version)
    if value.next_producer_epoch != -1:
        yield 3, _INT16.pack(value.next_producer_epoch)


@functools.lru_cache(maxsize=128)
def _encode_partitions(partitions: tuple[TopicPartition, ...], *, flexible: bool) -> bytes:
    """Topic by topic, in the order in which they come. A transaction writes the same ones two or three times, and
    so does the next one of the same producer."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    parts = [uvarint(len(topics) + 1) if flexible else _INT32.pack(len(topics))]
    for topic, numbers in topics.items():
        parts.append(compact_string(topic) if flexible else string(topic))
        parts.append(uvarint(len(numbers) + 1) if flexible else _INT32.pack(len(numbers)))
        parts.append(struct.pack(f">{len(numbers)}i", *numbers))
        if flexible:
            parts.append(_NO_TAGS)
    return b"".join(parts)


def decode_value(data: bytes) -> TransactionValue:
    """The state in a value; raises for damage, and for a version that this code does not know."""
    reader = FieldReader(data, _VALUE)
    (version,) = reader.unpack(_VERSION, "the version")
    if version > VALUE_VERSION_MAX:
        raise UnsupportedVersionError(
            f"{_VALUE} has version {version}, and at most {VALUE_VERSION_MAX} can be read"
        )
    if version < 0:
        raise reader.damage(f"there is no version {version}")
    flexible = version >= 1
    reader.position = 0
    _, producer_id, producer_epoch, timeout_ms, state = reader.unpack(_HEAD, "the producer")
    if not 0 <= state < len(_STATES):
        raise reader.damage(f"there is no state {state}")
    partitions = _decode_partitions(reader, flexible=flexible)
    last_update_ms, start_ms = reader.unpack(_TIMES, "the times")
    tags = reader.tagged_fields() if flexible else {}
    reader.finish()
    return TransactionValue(
        producer_id,
        producer_epoch,
        timeout_ms,
        _STATES[state],
        partitions,
        last_update_ms,
        start_ms,
        previous_producer_id=reader.tagged_integer(tags.get(0), 8, -1),
        next_producer_id=reader.tagged_integer(tags.get(1), 8, -1),
        client_transaction_version=reader.tagged_integer(tags.get(2), 2, 0),
        next_producer_epoch=reader.tagged_integer(tags.get(3), 2, -1),
    )


def _decode_partitions(reader: FieldReader, *, flexible: bool) -> tuple[TopicPartition, ...]:
    found: list[TopicPartition] = []
    # A topic has at least its two lengths, and its tags in the flexible form.
    for _ in range(reader.count("the topics", 3 if flexible else 6, flexible=flexible)):
        topic = reader.required_string("a topic", flexible=flexible)
        count = max(reader.count("the partitions", 4, flexible=flexible), 0)
        numbers = reader.unpack(struct.Struct(f">{count}i"), "the partitions")
        found.extend(TopicPartition(topic, number) for number in numbers)
        if flexible:
            reader.tagged_fields()
    return tuple(found)
