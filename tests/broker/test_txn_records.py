"""The records of __transaction_state are Kafka's, byte for byte, and lie where Kafka looks for them."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.base.errors import (
    CorruptRecordError,
    InvalidRequestError,
    UnsupportedVersionError,
)
from oncelog.base.java_hash import partition_of
from oncelog.broker.txn_records import (
    TransactionState,
    TransactionValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from oncelog.segment.batch import records
from oncelog.segment.names import TopicPartition

from ..golden_cases import GOLDEN, LOGS, GoldenLog, expected

TOPIC = "__transaction_state-"
STATE_LOGS = [log for log in LOGS if log.partition.startswith(TOPIC)]
# transaction.state.log.num.partitions of the brokers that wrote the cases
PARTITION_COUNTS = {"txn-offsets": 50}
PARTITION_COUNT = 5

VALUE = TransactionValue(
    producer_id=0x0102030405060708,
    producer_epoch=0x1112,
    transaction_timeout_ms=0x21222324,
    state=TransactionState.ONGOING,
    partitions=(
        TopicPartition("b", 7),
        TopicPartition("b", 0),
        TopicPartition("ä", 0x31323334),
    ),
    last_update_ms=0x4142434445464748,
    start_ms=0x5152535455565758,
    previous_producer_id=0x6162636465666768,
    next_producer_id=0x7172737475767778,
    client_transaction_version=2,
    next_producer_epoch=0x0A0B,
)

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
values = st.builds(
    TransactionValue,
    producer_id=int64,
    producer_epoch=int16,
    transaction_timeout_ms=int32,
    state=st.sampled_from([s for s in TransactionState if s != TransactionState.EMPTY]),
    partitions=st.dictionaries(
        st.text(max_size=5), st.lists(int32, min_size=1, max_size=200), max_size=4
    ).map(lambda topics: tuple(TopicPartition(t, n) for t, ns in topics.items() for n in ns)),
    last_update_ms=int64,
    start_ms=int64,
    previous_producer_id=int64,
    next_producer_id=int64,
    client_transaction_version=int16,
    next_producer_epoch=int16,
)


def stored(log: GoldenLog) -> list[tuple[int, bytes, bytes | None]]:
    return [
        (record.offset, bytes(record.key), None if record.value is None else bytes(record.value))
        for record in records(log.read())
        if record.key is not None
    ]


def as_kafka_prints(value: TransactionValue) -> dict[str, Any]:
    """A value in the words of Kafka's formatter, which leaves out tags that have their default."""
    topics: dict[str, list[int]] = {}
    for topic, partition in value.partitions:
        topics.setdefault(topic, []).append(partition)
    shown: dict[str, Any] = {
        "producerId": value.producer_id,
        "producerEpoch": value.producer_epoch,
        "transactionTimeoutMs": value.transaction_timeout_ms,
        "transactionStatus": value.state.value,
        "transactionPartitions": None
        if value.state is TransactionState.EMPTY
        else [{"topic": topic, "partitionIds": numbers} for topic, numbers in topics.items()],
        "transactionLastUpdateTimestampMs": value.last_update_ms,
        "transactionStartTimestampMs": value.start_ms,
    }
    tags = {
        "previousProducerId": (value.previous_producer_id, -1),
        "nextProducerId": (value.next_producer_id, -1),
        "clientTransactionVersion": (value.client_transaction_version, 0),
        "nextProducerEpoch": (value.next_producer_epoch, -1),
    }
    return shown | {name: tag for name, (tag, default) in tags.items() if tag != default}


@pytest.mark.parametrize("log", STATE_LOGS, ids=str)
def test_a_brokers_records_decode_and_encode_back_to_the_same_bytes(log: GoldenLog) -> None:
    found = stored(log)
    assert found
    for _, key, value in found:
        transactional_id = decode_key(key)
        assert transactional_id is not None
        assert encode_key(transactional_id) == key
        if value is not None:
            version = int.from_bytes(value[:2])
            assert encode_value(decode_value(value), version) == value


@pytest.mark.parametrize("log", STATE_LOGS, ids=str)
def test_the_hash_names_the_partition_in_which_the_broker_keeps_an_id(log: GoldenLog) -> None:
    count = PARTITION_COUNTS.get(log.case, PARTITION_COUNT)
    for transactional_id in {decode_key(key) for _, key, _ in stored(log)}:
        assert transactional_id is not None
        assert f"{TOPIC}{partition_of(transactional_id, count)}" == log.partition


def test_a_brokers_records_say_what_kafkas_formatter_says() -> None:
    """Goal: every field has its own place, not only a round trip.
    Method: compare with what Kafka's own tool printed for the same logs."""
    compared = 0
    for log in STATE_LOGS:
        decoded = expected(log.case)["partitions"].get(log.partition, {}).get("decoded")
        if not decoded:
            continue
        ours = {offset: (key, value) for offset, key, value in stored(log)}
        for record in decoded:
            key, value = ours[record["offset"]]
            assert decode_key(key) == record["key"]["data"]["transactionalId"]
            assert value is not None
            assert as_kafka_prints(decode_value(value)) == record["value"]["data"]
            compared += 1
    assert compared > 100


def test_all_cases_with_transactions_are_covered() -> None:
    cases = {log.case for log in STATE_LOGS}
    assert {"txn-mixed", "txn-mixed-tv1", "epoch-bumps", "txn-offsets"} <= cases
    assert cases == {path.parents[1].name for path in GOLDEN.glob(f"*/data/{TOPIC}*")}


def test_each_field_stands_where_the_table_says() -> None:
    """Goal: two fields of one size cannot be exchanged unseen.
    Method: every field has a wide value of its own; the bytes are written out by hand."""
    assert encode_value(VALUE) == bytes.fromhex(
        "0001 0102030405060708 1112 21222324 01"
        "03 02 62 03 00000007 00000000 00  03 c3a4 02 31323334 00"
        "4142434445464748 5152535455565758"
        "04 00 08 6162636465666768 01 08 7172737475767778 02 02 0002 03 02 0a0b".replace(" ", "")
    )
    assert encode_value(VALUE, 0) == bytes.fromhex(
        "0000 0102030405060708 1112 21222324 01"
        "00000002 0001 62 00000002 00000007 00000000  0002 c3a4 00000001 31323334"
        "4142434445464748 5152535455565758".replace(" ", "")
    )


@given(values)
def test_what_is_encoded_decodes_to_the_same(value: TransactionValue) -> None:
    assert decode_value(encode_value(value)) == value


@given(values)
def test_version_0_keeps_all_but_the_tags(value: TransactionValue) -> None:
    kept = value._replace(
        previous_producer_id=-1,
        next_producer_id=-1,
        client_transaction_version=0,
        next_producer_epoch=-1,
    )
    assert decode_value(encode_value(value, 0)) == kept


@pytest.mark.parametrize("version", [0, 1])
def test_an_empty_transaction_has_null_for_its_partitions(version: int) -> None:
    """Goal: as Kafka writes it; a list in state Empty is a bug of the caller."""
    empty = VALUE._replace(state=TransactionState.EMPTY, partitions=())
    null = b"\x00" if version else b"\xff\xff\xff\xff"
    assert encode_value(empty, version)[17 : 17 + len(null)] == null
    assert decode_value(encode_value(empty, version)).partitions == ()
    done = VALUE._replace(state=TransactionState.COMPLETE_COMMIT, partitions=())
    none = b"\x01" if version else b"\x00\x00\x00\x00"
    assert encode_value(done, version)[17 : 17 + len(none)] == none
    with pytest.raises(InvalidRequestError, match="Empty"):
        encode_value(VALUE._replace(state=TransactionState.EMPTY), version)


@given(st.text(max_size=300))
def test_any_transactional_id_survives_its_key(transactional_id: str) -> None:
    try:
        key = encode_key(transactional_id)
    except InvalidRequestError:
        assert any("\ud800" <= letter <= "\udfff" for letter in transactional_id)
    else:
        assert decode_key(key) == transactional_id


def test_an_id_that_no_key_can_hold_is_refused() -> None:
    assert decode_key(encode_key("a" * 32767)) == "a" * 32767
    with pytest.raises(InvalidRequestError, match="32767"):
        encode_key("ä" * 16384)
    with pytest.raises(InvalidRequestError, match="surrogate"):
        encode_key("\ud800")


@pytest.mark.parametrize("version", [1, 2, -1, 32767])
def test_a_key_of_an_unknown_version_is_nobodys(version: int) -> None:
    assert decode_key(struct.pack(">hh", version, 1) + b"a") is None


@pytest.mark.parametrize("version", [2, 17, 32767])
def test_a_newer_version_is_named(version: int) -> None:
    with pytest.raises(UnsupportedVersionError, match=f"version {version}, and at most 1"):
        decode_value(struct.pack(">h", version) + encode_value(VALUE)[2:])
    with pytest.raises(UnsupportedVersionError, match=f"version {version}"):
        encode_value(VALUE, version)


def test_tags_that_a_newer_kafka_adds_are_passed_over() -> None:
    plain = VALUE._replace(next_producer_epoch=-1)
    data = encode_value(plain)
    tags = data.index(b"\x03\x00\x08")
    newer = data[:tags] + b"\x05" + data[tags + 1 :] + b"\x09\x03abc" + b"\xff\x01\x00"
    assert decode_value(newer) == plain


@pytest.mark.parametrize("version", [0, 1])
def test_cut_at_any_byte_it_is_refused(version: int) -> None:
    data = encode_value(VALUE, version)
    for size in range(len(data)):
        with pytest.raises(CorruptRecordError, match="the value of a transaction"):
            decode_value(data[:size])
    with pytest.raises(CorruptRecordError, match="1 bytes too many"):
        decode_value(data + b"\x00")
    key = encode_key("some-id")
    for size in range(len(key)):
        with pytest.raises(CorruptRecordError, match="the key of a transaction"):
            decode_key(key[:size])
    with pytest.raises(CorruptRecordError, match="too many"):
        decode_key(key + b"\x00")


@pytest.mark.parametrize(
    ("at", "data", "words"),
    [
        (0, "8000", "no version"),
        (16, "08", "no state 8"),
        (16, "ff", "no state -1"),
        (17, "ffffffff0f", "cannot have 4294967294 entries"),
        (17, "ffffffff7f", "more than 32 bits"),
        (17, "ffffffffff", "more than 32 bits"),
        (18, "00", "a topic is null"),
        (18, "ffff7f", "needs 2097150 bytes"),
        (18, "02ff", "not UTF-8"),
        (20, "ffffff7f", "cannot have 268435454 entries"),
    ],
)
def test_a_hostile_value_is_refused_before_it_costs_anything(
    at: int, data: str, words: str
) -> None:
    patch = bytes.fromhex(data)
    whole = encode_value(VALUE)
    with pytest.raises(CorruptRecordError, match=words):
        decode_value(whole[:at] + patch + whole[at + len(patch) :])


def test_repeated_and_misplaced_tags_are_refused() -> None:
    data = encode_value(VALUE._replace(next_producer_id=-1, next_producer_epoch=-1))
    for tags in ("02 02020002 02020002", "02 02020002 00080000000000000001", "01 0004 00000001"):
        cut = data[: data.index(b"\x02\x00\x08")] + bytes.fromhex(tags.replace(" ", ""))
        with pytest.raises(CorruptRecordError):
            decode_value(cut)


@given(st.binary(max_size=120), st.sampled_from([b"", b"\x00\x00", b"\x00\x01"]))
def test_any_bytes_give_a_value_or_a_typed_error(data: bytes, version: bytes) -> None:
    for decode in (decode_key, decode_value):
        with contextlib.suppress(CorruptRecordError, UnsupportedVersionError):
            decode(version + data)


def test_states_have_kafkas_numbers_and_names() -> None:
    assert {state.value: state.label for state in TransactionState} == {
        0: "Empty",
        1: "Ongoing",
        2: "PrepareCommit",
        3: "PrepareAbort",
        4: "CompleteCommit",
        5: "CompleteAbort",
        6: "Dead",
        7: "PrepareEpochFence",
    }
