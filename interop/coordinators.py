"""What our coordinators write in ``__transaction_state`` and ``__consumer_offsets``, as Kafka's own decoder reads it."""

from __future__ import annotations

import base64
import contextlib
import json
import re
from typing import TYPE_CHECKING, Any, Final

import oncelog
from oncelog.broker.group_answers import OffsetCommit
from oncelog.broker.group_records import (
    GroupKey,
    OffsetKey,
    decode_group_value,
    decode_offset_value,
)
from oncelog.broker.group_records import decode_key as decode_group_key
from oncelog.broker.topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from oncelog.broker.txn_records import decode_key, decode_value
from oncelog.segment.names import TopicPartition

if TYPE_CHECKING:
    from pathlib import Path

    from oncelog.client.client import Log

    from .kafka import Kafka

TOPIC: Final = "payments"
TELLERS: Final = 5
TRANSACTIONS: Final = 6
DECODERS: Final = {
    TRANSACTION_STATE: "--transaction-log-decoder",
    CONSUMER_OFFSETS: "--offsets-decoder",
}
RECORD: Final = re.compile(r"^\| offset: (\d+) .*? key: (\{.*\}) payload: (.*)$", re.MULTILINE)


class ChangedMindError(Exception):
    """Makes a transaction abort."""


def write(path: Path) -> None:
    """Transactions of every end, offsets inside and outside of them, a group with members that came and went."""
    with oncelog.open(path, config={"transaction.two.phase.commit.enable": True}) as log:
        log.create_topic(TOPIC, partitions=3)
        for number in range(TELLERS):
            _transact(log, f"teller-{number}", number)
        prepared = log.producer(
            transactional_id="prepared", transaction_two_phase_commit_enable=True
        )
        prepared.init_transactions()
        prepared.begin_transaction()
        prepared.send(TOPIC, b"waits for somebody outside")
        prepared.prepare_transaction()
        log.broker.offset_commit(
            "nightly",
            {
                TopicPartition(TOPIC, 0): OffsetCommit(3, metadata="über"),
                TopicPartition(TOPIC, 1): OffsetCommit(0),
            },
        )
        log.broker.offset_delete("nightly", [TopicPartition(TOPIC, 1)])
        joined = log.broker.join_group("workers", protocols=[("range", b"\0\0\0\0\0\0\0\0\0\0")])
        member = joined.result()
        log.broker.sync_group(
            "workers", member.member_id, member.generation_id, {member.member_id: b"x"}
        )
        log.broker.leave_group("workers", [(member.member_id, None)])


def _transact(log: Log, transactional_id: str, number: int) -> None:
    with log.producer(transactional_id=transactional_id) as producer:
        for turn in range(TRANSACTIONS):
            with contextlib.suppress(ChangedMindError), producer.transaction():
                for partition in range(1 + (number + turn) % 3):
                    producer.send(TOPIC, b"v", partition=partition)
                identity = producer._transactions.need_identity()
                producer.flush()
                log.broker.txn_offset_commit(
                    transactional_id,
                    "copier",
                    *identity,
                    offsets={TopicPartition(TOPIC, turn % 3): OffsetCommit(turn)},
                )
                if turn % 3 == 1:
                    raise ChangedMindError


def _transaction(key: bytes, value: bytes | None) -> tuple[Any, Any]:
    if value is None:
        return decode_key(key), None
    found = decode_value(value)
    return decode_key(key), {
        "producerId": found.producer_id,
        "producerEpoch": found.producer_epoch,
        "transactionTimeoutMs": found.transaction_timeout_ms,
        "transactionStatus": int(found.state),
        "partitions": sorted(found.partitions),
        "transactionLastUpdateTimestampMs": found.last_update_ms,
        "transactionStartTimestampMs": found.start_ms,
    }


def _their_transaction(key: Any, value: Any) -> tuple[Any, Any]:
    name = key["data"]["transactionalId"]
    if value is None:
        return name, None
    data = value["data"]
    fields = (
        *("producerId", "producerEpoch", "transactionTimeoutMs", "transactionStatus"),
        *("transactionLastUpdateTimestampMs", "transactionStartTimestampMs"),
    )
    partitions = sorted(
        TopicPartition(one["topic"], number)
        for one in data.get("transactionPartitions") or ()
        for number in one["partitionIds"]
    )
    return name, {"partitions": partitions, **{field: data[field] for field in fields}}


def _group(key: bytes, value: bytes | None) -> tuple[Any, Any]:
    found = decode_group_key(key)
    if isinstance(found, OffsetKey):
        if value is None:
            return tuple(found), None
        offset = decode_offset_value(value)
        topic_id = base64.urlsafe_b64encode(offset.topic_id).rstrip(b"=").decode()
        return tuple(found), (
            offset.offset,
            offset.leader_epoch,
            offset.metadata,
            offset.commit_ms,
            topic_id,
        )
    assert isinstance(found, GroupKey)
    if value is None:
        return (found.group,), None
    group = decode_group_value(value)
    return (found.group,), (group.generation, group.protocol, len(group.members))


def _their_group(key: Any, value: Any) -> tuple[Any, Any]:
    data = key["data"]
    if "topic" in data:
        name: tuple[Any, ...] = (data["group"], data["topic"], data["partition"])
        fields = ("offset", "leaderEpoch", "metadata", "commitTimestamp", "topicId")
        return name, None if value is None else tuple(value["data"][field] for field in fields)
    if value is None:
        return (data["group"],), None
    told = value["data"]
    return (data["group"],), (told["generation"], told.get("protocol"), len(told["members"]))


def check(kafka: Kafka, directory: Path) -> dict[str, int]:
    """Compares every record of both topics; returns how many there were of each."""
    counts = {}
    with oncelog.open(directory, read_only=True) as log:
        for topic, option in DECODERS.items():
            counts[topic] = 0
            for number in log.topics()[topic]:
                ours = {}
                for record in log.read(topic, number, isolation_level="read_uncommitted"):
                    decoder = _transaction if topic == TRANSACTION_STATE else _group
                    ours[record.offset] = decoder(record.key or b"", record.value)
                theirs = _dumped(kafka, directory / f"{topic}-{number}", option, topic)
                if ours != theirs:
                    differing = [
                        at for at in ours.keys() | theirs.keys() if ours.get(at) != theirs.get(at)
                    ]
                    at = min(differing)
                    raise AssertionError(
                        f"{topic}-{number} offset {at}: Kafka {theirs.get(at)}, we {ours.get(at)}"
                    )
                counts[topic] += len(ours)
    return counts


def _dumped(kafka: Kafka, directory: Path, option: str, topic: str) -> dict[int, tuple[Any, Any]]:
    files = ",".join(map(str, sorted(directory.glob("*.log"))))
    output, _ = kafka.tool("DumpLogSegments", option, "--files", files)
    found = {}
    for offset, key, payload in RECORD.findall(output.decode()):
        value = json.loads(payload) if payload.startswith("{") else None
        decoder = _their_transaction if topic == TRANSACTION_STATE else _their_group
        found[int(offset)] = decoder(json.loads(key), value)
    return found
