"""Replays of __transaction_state: what a real broker wrote, what a crash leaves, what cannot be read."""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from oncelog.base.disk import Disk
from oncelog.base.errors import (
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    InvalidTxnStateError,
    KafkaStorageError,
)
from oncelog.base.java_hash import partition_of
from oncelog.broker.producer_ids import ProducerIds
from oncelog.broker.state_log import StateLog
from oncelog.broker.txn_coordinator import CoordinatorOptions, TransactionCoordinator
from oncelog.broker.txn_metadata import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    DEAD,
    EMPTY,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARE_EPOCH_FENCE,
    TransactionMetadata,
)
from oncelog.broker.txn_records import (
    TransactionState,
    TransactionValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from oncelog.partition.data_directory import DataDirectory
from oncelog.segment.batch import rewrite, scan
from oncelog.segment.names import TopicPartition
from tests.broker.coordinators import (
    COORDINATOR_EPOCH,
    FIRST,
    SECOND,
    START_MS,
    TIMEOUT_MS,
    TOPIC,
    Bench,
    RecordedMarkers,
)

from ..golden_cases import GOLDEN, expected

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FIXTURES = ["epoch-bumps", "txn-mixed", "txn-mixed-tv1", "txn-offsets"]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "data")
    yield bench
    bench.close()


def put(bench: Bench, transactional_id: str, value: TransactionValue | bytes | None) -> None:
    """Writes a record as an earlier process would have."""
    data = encode_value(value) if isinstance(value, TransactionValue) else value
    number = bench.log.partition_for(transactional_id)
    bench.log.append(number, [(encode_key(transactional_id), data)])


def value_in(state: TransactionState, **fields: Any) -> TransactionValue:
    partitions = () if state in (EMPTY, COMPLETE_ABORT, COMPLETE_COMMIT) else (FIRST, SECOND)
    value = TransactionValue(
        7, 5, TIMEOUT_MS, state, partitions, START_MS, START_MS, 7, -1, client_transaction_version=2
    )
    return value._replace(**fields)


# ------------------------------------------------------------ a real broker's


@pytest.fixture(params=FIXTURES)
def case(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def broker_data(case: str, tmp_path: Path) -> Iterator[DataDirectory]:
    shutil.copytree(GOLDEN / case / "data", tmp_path / "data")
    data = DataDirectory(tmp_path / "data", Disk(), now_ms=lambda: START_MS)
    yield data
    data.close()


def partition_count(case: str) -> int:
    """How many partitions the fixture's broker was configured with: the one count that explains all places."""
    found = {
        record["key"]["data"]["transactionalId"]: int(name.rpartition("-")[2])
        for name, said in expected(case)["partitions"].items()
        if name.startswith(TOPIC)
        for record in said.get("decoded", [])
    }
    fits = [
        count
        for count in range(1, 51)
        if all(partition_of(key, count) == place for key, place in found.items())
    ]
    assert fits
    return fits[0]


def state_log(case: str, data: DataDirectory) -> StateLog:
    return StateLog(
        TOPIC,
        partition_count(case),
        lambda number: data.get(TopicPartition(TOPIC, number)),
        lambda: [key.partition for key in data.partitions if key.topic == TOPIC],
        COORDINATOR_EPOCH,
        lambda: START_MS,
    )


def test_the_coordinator_arrives_at_what_the_broker_showed(
    case: str, broker_data: DataDirectory
) -> None:
    markers = RecordedMarkers()
    coordinator = TransactionCoordinator(
        state_log(case, broker_data),
        ProducerIds(lambda: range(10**6, 10**6 + 1000)),
        markers,
        CoordinatorOptions(),
        lambda: START_MS,
    )
    coordinator.load()
    shown = expected(case)["transactions"]
    assert shown
    for transaction in shown:
        found = coordinator.describe_transaction(transaction["transactionalId"])
        assert found.state.label == transaction["state"]
        assert found.producer_id == transaction["producerId"]
        assert found.producer_epoch == transaction["producerEpoch"]
        assert found.transaction_timeout_ms == transaction["timeoutMs"]
        assert found.start_ms == (transaction["startTimeMs"] or -1)
        assert sorted(key.directory for key in found.partitions) == sorted(
            transaction["partitions"]
        )
        is_open = transaction["state"] == "Ongoing"
        assert coordinator.knows(transaction["producerId"]) is is_open
    assert len(coordinator.list_transactions()) == len(shown)
    assert markers.written == []  # a clean stop leaves no decision half done


def test_every_step_of_the_broker_is_the_one_that_we_would_take(
    case: str, broker_data: DataDirectory
) -> None:
    """Goal: epochs, ids and times follow Kafka's rules, not only at the end. Method: each record of the broker is
    compared, to the byte, with what our state machine logs for the same move from the record before."""
    log = state_log(case, broker_data)
    steps = 0
    known: dict[str, TransactionMetadata] = {}
    for number in log.existing():
        for key, data in log.replay(number):
            transactional_id = decode_key(key)
            assert transactional_id is not None
            assert data is not None
            value = decode_value(data)
            metadata = known.setdefault(
                transactional_id,
                TransactionMetadata.new(transactional_id, value.producer_id, 1, 0),
            )
            transition = step(metadata, value)
            # Java keeps partitions in a set, so their order is nobody's choice.
            assert set(transition.value.partitions) == set(value.partitions)
            ours = transition.value._replace(partitions=value.partitions)
            assert ours == value
            assert encode_value(ours) == data
            metadata.complete(transition)
            steps += 1
    assert steps > 10


def step(metadata: TransactionMetadata, value: TransactionValue) -> Any:
    """Our move to the state that a record shows, at the time it shows."""
    now_ms, version = value.last_update_ms, value.client_transaction_version
    if value.state is EMPTY:
        return metadata.prepare_init(value.transaction_timeout_ms, now_ms)
    if value.state is ONGOING:
        return metadata.prepare_add(value.partitions, now_ms, version=version)
    if value.state in (PREPARE_COMMIT, PREPARE_ABORT):
        return metadata.prepare_end(
            now_ms,
            committed=value.state is PREPARE_COMMIT,
            version=version,
            is_fence=version < 2 and value.producer_epoch > metadata.value.producer_epoch,
        )
    return metadata.prepare_complete(now_ms)


# ------------------------------------------------------------ after a stop


def test_a_coordinator_restarted_before_the_decision_keeps_the_transaction_open(
    bench: Bench,
) -> None:
    identity = bench.begin("t", FIRST, SECOND)
    bench.restart()
    assert bench.value().state is ONGOING
    assert bench.markers.written == []
    bench.end(identity, committed=True)
    assert [marker[0] for marker in bench.markers.written] == [FIRST, SECOND]


def test_a_transaction_kept_over_a_restart_still_times_out(bench: Bench) -> None:
    bench.begin()
    bench.restart()
    bench.clock.now += TIMEOUT_MS + 1
    assert bench.coordinator.abort_timed_out() == 1
    assert bench.value().state is COMPLETE_ABORT


@pytest.mark.parametrize("state", [PREPARE_COMMIT, PREPARE_ABORT], ids=lambda state: state.label)
@pytest.mark.parametrize("version", [0, 2])
def test_a_coordinator_restarted_after_the_decision_carries_it_out(
    bench: Bench, state: TransactionState, version: int
) -> None:
    put(bench, "t", value_in(state, client_transaction_version=version))
    bench.restart()
    committed = state is PREPARE_COMMIT
    assert bench.markers.written == [
        (key, 7, 5, committed, COORDINATOR_EPOCH + 1, version or 1) for key in (FIRST, SECOND)
    ]
    assert bench.states() == [state.label, "CompleteCommit" if committed else "CompleteAbort"]
    assert not bench.coordinator.knows(7)


def test_a_coordinator_restarted_after_completion_has_nothing_to_do(bench: Bench) -> None:
    identity = bench.begin()
    answer = bench.end(identity, committed=True)
    bench.markers.written.clear()
    bench.restart()
    assert bench.markers.written == []
    assert bench.end(identity, committed=True) == answer  # the client did not see the answer
    with pytest.raises(InvalidTxnStateError):
        bench.end(identity, committed=False)


def test_a_decision_whose_partition_is_still_unavailable_waits_after_a_restart(
    bench: Bench,
) -> None:
    identity = bench.begin("t", FIRST, SECOND)
    bench.markers.errors[SECOND] = KafkaStorageError("offline")
    bench.end(identity, committed=True)
    bench.restart()
    with pytest.raises(ConcurrentTransactionsError):
        bench.coordinator.init_producer_id("t", TIMEOUT_MS)
    assert bench.coordinator.knows(identity.producer_id)
    bench.markers.errors.clear()
    assert bench.coordinator.retry_markers() == 1
    # The marker of the first partition went out twice, by the old and the new coordinator; that is harmless.
    assert [marker[0] for marker in bench.markers.written] == [FIRST, FIRST, SECOND]
    assert bench.states()[-1] == "CompleteCommit"


def test_a_next_producer_id_that_was_logged_with_the_decision_is_used_after_a_restart(
    bench: Bench,
) -> None:
    put(bench, "t", value_in(PREPARE_COMMIT, producer_epoch=32767, next_producer_id=9))
    bench.restart()
    assert (bench.value().producer_id, bench.value().producer_epoch) == (9, 0)
    assert bench.coordinator.end_txn("t", 7, 32766, committed=True)[:2] == (9, 0)


def test_an_epoch_fence_in_the_log_ends_as_an_abort(bench: Bench) -> None:
    put(bench, "t", value_in(PREPARE_EPOCH_FENCE))
    bench.restart()
    assert bench.value().state is COMPLETE_ABORT
    assert [marker[3] for marker in bench.markers.written] == [False, False]


def test_the_last_record_of_an_id_wins_and_a_tombstone_removes_it(bench: Bench) -> None:
    put(bench, "a", value_in(ONGOING))
    put(bench, "b", value_in(COMPLETE_COMMIT, producer_id=8))
    put(bench, "c", value_in(COMPLETE_COMMIT, producer_id=9))
    put(bench, "a", value_in(COMPLETE_ABORT, producer_epoch=6))
    put(bench, "b", None)
    bench.restart()
    rows = sorted(bench.coordinator.list_transactions())
    assert [(row.transactional_id, row.state) for row in rows] == [
        ("a", COMPLETE_ABORT),
        ("c", COMPLETE_COMMIT),
    ]
    assert bench.value("a").producer_epoch == 6


def test_a_dead_id_in_the_log_is_not_known(bench: Bench) -> None:
    put(bench, "t", value_in(DEAD, partitions=()))
    bench.restart()
    assert bench.coordinator.list_transactions() == []


# ------------------------------------------------------------ what cannot be read


@pytest.mark.parametrize(
    "damaged",
    [b"", b"\x00\x01", b"\x00\x63" + bytes(40), b"\x00\x01" + b"\xff" * 40],
    ids=["empty", "cut", "newer-version", "nonsense"],
)
def test_a_record_that_cannot_be_read_is_logged_and_the_others_live(
    bench: Bench, damaged: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    put(bench, "good", value_in(COMPLETE_COMMIT))
    put(bench, "bad", value_in(COMPLETE_COMMIT, producer_id=8))
    put(bench, "bad", damaged)
    with caplog.at_level(logging.ERROR, "oncelog.broker"):
        bench.restart()
    assert "'bad' cannot be loaded" in caplog.text
    assert bench.coordinator.init_producer_id("good", TIMEOUT_MS).producer_epoch == 6
    for call in (
        lambda: bench.coordinator.init_producer_id("bad", TIMEOUT_MS),
        lambda: bench.coordinator.end_txn("bad", 8, 5, committed=True),
        lambda: bench.coordinator.describe_transaction("bad"),
    ):
        with pytest.raises(CoordinatorNotAvailableError, match="cannot be read"):
            call()


def test_a_kind_of_record_that_is_not_known_is_skipped(bench: Bench) -> None:
    number = bench.log.partition_for("t")
    bench.log.append(number, [(b"\x00\x07whatever", b"\x00\x00"), (b"\x00\x07", None)])
    put(bench, "t", value_in(COMPLETE_COMMIT))
    bench.restart()
    assert len(bench.coordinator.list_transactions()) == 1


def test_a_key_that_cannot_be_read_is_logged_and_skipped(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    number = bench.log.partition_for("t")
    bench.log.append(number, [(b"\x00\x00\x00\x09abc", encode_value(value_in(EMPTY)))])
    put(bench, "t", value_in(COMPLETE_COMMIT))
    with caplog.at_level(logging.ERROR, "oncelog.broker"):
        bench.restart()
    assert "cannot be loaded" in caplog.text
    assert len(bench.coordinator.list_transactions()) == 1


def test_a_partition_with_a_damaged_batch_is_refused_and_the_others_live(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: nobody works with the state before the damage. Method: flip a bit in one partition after a clean stop."""
    names = ["t", "u"]
    numbers = [bench.log.partition_for(name) for name in names]
    assert numbers[0] != numbers[1]
    for name in names:
        bench.coordinator.init_producer_id(name, TIMEOUT_MS)
        bench.coordinator.init_producer_id(name, TIMEOUT_MS)
    bench.close()
    file = bench.path / f"{TOPIC}-{numbers[0]}" / f"{0:020d}.log"
    data = bytearray(file.read_bytes())
    data[100] ^= 1  # of the first batch; a bad end would be cut when the partition is opened
    file.write_bytes(data)
    with caplog.at_level(logging.ERROR, "oncelog.broker"):
        bench._start()
    assert f"{TOPIC}-{numbers[0]} cannot be loaded" in caplog.text
    with pytest.raises(CoordinatorNotAvailableError, match=f"{TOPIC}-{numbers[0]}"):
        bench.coordinator.init_producer_id("t", TIMEOUT_MS)
    assert bench.coordinator.init_producer_id("u", TIMEOUT_MS).producer_epoch == 2


def test_a_log_that_was_compacted_to_an_empty_batch_is_read(bench: Bench) -> None:
    put(bench, "t", value_in(COMPLETE_COMMIT))
    number = bench.log.partition_for("t")
    partition = bench._open(number)
    header = scan(partition.log.active.view())[0].copy()
    empty = rewrite(header, None)
    view = memoryview(bytearray(empty))
    view[:8] = int(partition.log_end_offset).to_bytes(8, "big")
    partition.append_as_follower(view, now_ms=START_MS)
    assert partition.log_end_offset == 2
    bench.restart()
    assert len(bench.coordinator.list_transactions()) == 1
