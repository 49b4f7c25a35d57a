"""Records of ``__consumer_offsets`` and ``__transaction_state`` as the formatters of Kafka's console consumer show them.

One JSON document a record: the type and fields of its key, the version and fields of its value. Kinds of records that a
formatter does not speak of give none, as with Kafka.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final

from ..broker.group_records import (
    NO_TOPIC_ID,
    GroupKey,
    OffsetKey,
    RecordType,
    decode_group_value,
    decode_offset_value,
)
from ..broker.group_records import decode_key as decode_group_key
from ..broker.txn_records import decode_key as decode_txn_key
from ..broker.txn_records import decode_value as decode_txn_value

if TYPE_CHECKING:
    from collections.abc import Callable

# Where the partitions of a transaction's value begin, behind its version and the fields of fixed size.
PARTITIONS_AT: Final = 2 + 8 + 2 + 4 + 1


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _version(data: bytes) -> int:
    return int.from_bytes(data[:2], "big", signed=True)


def _document(kind: int, key: dict[str, Any], value: Any) -> str:
    found = {"key": {"type": kind, "data": key}, "value": value}
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False)


def _valued(data: bytes | None, fields: Callable[[bytes], dict[str, Any]]) -> Any:
    return None if data is None else {"version": _version(data), "data": fields(data)}


def offsets(key: bytes | None, value: bytes | None) -> str | None:
    """A committed offset: OffsetsMessageFormatter."""
    found = decode_group_key(key or b"")
    if not isinstance(found, OffsetKey) or key is None:
        return None
    fields = {"group": found.group, "topic": found.topic, "partition": found.partition}
    return _document(_version(key), fields, _valued(value, _offset_fields))


def _offset_fields(data: bytes) -> dict[str, Any]:
    value = decode_offset_value(data)
    version = _version(data)
    fields: dict[str, Any] = {"offset": value.offset}
    if version >= 3:
        fields["leaderEpoch"] = value.leader_epoch
    fields |= {"metadata": value.metadata, "commitTimestamp": value.commit_ms}
    if version == 1:
        fields["expireTimestamp"] = value.expire_ms
    if value.topic_id not in (NO_TOPIC_ID, b""):
        fields["topicId"] = base64.urlsafe_b64encode(value.topic_id).rstrip(b"=").decode()
    return fields


def group_metadata(key: bytes | None, value: bytes | None) -> str | None:
    """A group of the classic protocol: GroupMetadataMessageFormatter."""
    found = decode_group_key(key or b"")
    if not isinstance(found, GroupKey) or found.kind is not RecordType.GROUP or key is None:
        return None
    return _document(_version(key), {"group": found.group}, _valued(value, _group_fields))


def _group_fields(data: bytes) -> dict[str, Any]:
    value = decode_group_value(data)
    version = _version(data)
    fields: dict[str, Any] = {
        "protocolType": value.protocol_type,
        "generation": value.generation,
        "protocol": value.protocol,
        "leader": value.leader,
    }
    if version >= 2:
        fields["currentStateTimestamp"] = value.state_ms
    fields["members"] = [
        {
            "memberId": member.member_id,
            **({"groupInstanceId": member.instance_id} if version >= 3 else {}),
            "clientId": member.client_id,
            "clientHost": member.client_host,
            **({"rebalanceTimeout": member.rebalance_timeout_ms} if version >= 1 else {}),
            "sessionTimeout": member.session_timeout_ms,
            "subscription": _text(member.subscription),
            "assignment": _text(member.assignment),
        }
        for member in value.members
    ]
    return fields


def transactions(key: bytes | None, value: bytes | None) -> str | None:
    """A transactional id: TransactionLogMessageFormatter."""
    found = decode_txn_key(key or b"")
    if found is None or key is None:
        return None
    return _document(_version(key), {"transactionalId": found}, _valued(value, _txn_fields))


def _txn_fields(data: bytes) -> dict[str, Any]:
    value = decode_txn_value(data)
    topics: dict[str, list[int]] = {}
    for topic, partition in value.partitions:
        topics.setdefault(topic, []).append(partition)
    # A list without an end is none at all: both forms of the array begin with 0 or 0xff for it.
    is_null = data[PARTITIONS_AT] == (0 if _version(data) >= 1 else 0xFF)
    fields: dict[str, Any] = {"producerId": value.producer_id}
    if value.previous_producer_id != -1:
        fields["previousProducerId"] = value.previous_producer_id
    if value.next_producer_id != -1:
        fields["nextProducerId"] = value.next_producer_id
    fields["producerEpoch"] = value.producer_epoch
    if value.next_producer_epoch != -1:
        fields["nextProducerEpoch"] = value.next_producer_epoch
    fields |= {
        "transactionTimeoutMs": value.transaction_timeout_ms,
        "transactionStatus": int(value.state),
        "transactionPartitions": None
        if is_null
        else [{"topic": topic, "partitionIds": numbers} for topic, numbers in topics.items()],
        "transactionLastUpdateTimestampMs": value.last_update_ms,
        "transactionStartTimestampMs": value.start_ms,
    }
    if value.client_transaction_version:
        fields["clientTransactionVersion"] = value.client_transaction_version
    return fields


def consumer_offsets(key: bytes | None, value: bytes | None) -> str | None:
    """Whatever is known of a record of ``__consumer_offsets``."""
    return offsets(key, value) or group_metadata(key, value)


FORMATS: Final[dict[str, Callable[[bytes | None, bytes | None], str | None]]] = {
    "offsets": offsets,
    "group-metadata": group_metadata,
    "transaction-log": transactions,
}
BY_TOPIC: Final[dict[str, Callable[[bytes | None, bytes | None], str | None]]] = {
    "__consumer_offsets": consumer_offsets,
    "__transaction_state": transactions,
}
