"""What the coordinator does when something does not work: appends, syncs, markers, time, and threads that meet."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest

from oncelog.base.errors import (
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    KafkaStorageError,
    OncelogError,
    ProducerFencedError,
    RecordTooLargeError,
    TransactionAbortableError,
    TransactionCoordinatorFencedError,
    UnknownTopicOrPartitionError,
)
from oncelog.broker.txn_coordinator import CoordinatorOptions
from oncelog.broker.txn_metadata import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    EPOCH_LAST,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
)
from oncelog.segment.names import TopicPartition
from tests.broker.coordinators import COORDINATOR_EPOCH, FIRST, SECOND, THIRD, TIMEOUT_MS, Bench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FULL = KafkaStorageError("disk full")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "data")
    yield bench
    bench.close()


@pytest.fixture
def synced(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "data", is_synced=True)
    yield bench
    bench.close()


# ------------------------------------------------------------ the log fails


def test_a_failed_init_does_not_bump_on_each_retry(bench: Bench) -> None:
    bench.coordinator.init_producer_id("t", TIMEOUT_MS)
    bench.log.append_errors = [FULL, FULL, FULL]
    for _ in range(3):
        with pytest.raises(CoordinatorNotAvailableError, match="disk full"):
            bench.coordinator.init_producer_id("t", TIMEOUT_MS)
    assert bench.coordinator.init_producer_id("t", TIMEOUT_MS).producer_epoch == 1


@pytest.mark.parametrize("version", [1, 2])
def test_a_failed_fence_does_not_bump_on_each_retry(tmp_path: Path, version: int) -> None:
    bench = Bench(tmp_path / "data", options=CoordinatorOptions(transaction_version=version))
    identity = bench.begin()
    bench.log.append_errors = [FULL, FULL]
    for _ in range(2):
        with pytest.raises(CoordinatorNotAvailableError):
            bench.coordinator.init_producer_id("t", TIMEOUT_MS)
    assert bench.value().producer_epoch == identity.producer_epoch
    assert bench.coordinator.init_producer_id("t", TIMEOUT_MS).producer_epoch == 2
    assert [marker[2] for marker in bench.markers.written] == [1]
    bench.close()


def test_a_failed_decision_leaves_the_transaction_open_and_may_be_tried_again(bench: Bench) -> None:
    identity = bench.begin()
    bench.log.append_errors = [FULL]
    with pytest.raises(CoordinatorNotAvailableError) as raised:
        bench.end(identity, committed=True)
    assert raised.value.retriable
    assert bench.value().state is ONGOING
    assert bench.markers.written == []
    assert bench.end(identity, committed=True).producer_epoch == 1


def test_a_partition_that_could_not_be_logged_is_not_in_the_transaction(bench: Bench) -> None:
    identity = bench.begin("t", FIRST)
    bench.log.append_errors = [FULL]
    with pytest.raises(CoordinatorNotAvailableError):
        bench.add(identity, SECOND)
    assert list(bench.metadata().partitions) == [FIRST]
    bench.log.append_errors = [FULL]
    with (
        pytest.raises(CoordinatorNotAvailableError),
        bench.appending(identity, SECOND),
    ):
        pass
    assert not bench.metadata().lock.locked()
    bench.add(identity, SECOND)
    assert list(bench.metadata().partitions) == [FIRST, SECOND]


def test_a_state_too_large_for_the_log_is_refused_and_changes_nothing(bench: Bench) -> None:
    identity = bench.begin("t", FIRST)
    many = [TopicPartition("x" * 200, number) for number in range(300_000)]
    with pytest.raises(RecordTooLargeError):
        bench.add(identity, *many)
    assert bench.value().partitions == (FIRST,)
    bench.end(identity, committed=True)


def test_a_decision_that_was_logged_stands_although_its_completion_fails(bench: Bench) -> None:
    identity = bench.begin()
    bench.log.append_errors = [None, FULL]
    assert bench.end(identity, committed=True).producer_epoch == 1
    assert bench.value().state is PREPARE_COMMIT
    with pytest.raises(ConcurrentTransactionsError):
        bench.end(identity, committed=True)
    assert bench.coordinator.retry_markers() == 1
    assert bench.value().state is COMPLETE_COMMIT
    assert len(bench.markers.written) == 1
    assert bench.states() == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]


def test_no_producer_id_no_init(bench: Bench) -> None:
    def broken() -> range:
        raise FULL

    bench.coordinator._producer_ids._take_block = broken
    with pytest.raises(CoordinatorNotAvailableError, match="no producer id"):
        bench.coordinator.init_producer_id("t", TIMEOUT_MS)
    with pytest.raises(CoordinatorNotAvailableError):
        bench.coordinator.init_producer_id(None, TIMEOUT_MS)


def test_an_interrupted_call_leaves_no_pending_move(bench: Bench) -> None:
    identity = bench.begin()

    def interrupt() -> None:
        raise KeyboardInterrupt

    bench.log.during_append = interrupt
    with pytest.raises(KeyboardInterrupt):
        bench.end(identity, committed=True)
    bench.log.during_append = None
    assert bench.metadata().pending is None
    bench.markers.during = interrupt
    with pytest.raises(KeyboardInterrupt):
        bench.end(identity, committed=True)
    bench.markers.during = None
    assert bench.value().state is PREPARE_COMMIT  # decided: only the rest is left to do
    assert bench.coordinator.retry_markers() == 1
    assert bench.value().state is COMPLETE_COMMIT


# ------------------------------------------------------------ markers


def test_a_marker_to_an_unavailable_partition_arrives_later(bench: Bench) -> None:
    identity = bench.begin("t", FIRST, SECOND)
    bench.markers.errors[SECOND] = KafkaStorageError("offline")
    after = bench.end(identity, committed=True)  # the decision is made
    assert after.producer_epoch == 1
    assert [marker[0] for marker in bench.markers.written] == [FIRST]
    for refused in (
        lambda: bench.add(after, FIRST),
        lambda: bench.end(identity, committed=True),
        lambda: bench.end(after, committed=False),
        lambda: bench.coordinator.init_producer_id("t", TIMEOUT_MS),
    ):
        with pytest.raises(ConcurrentTransactionsError):
            refused()
    assert bench.coordinator.retry_markers() == 0
    assert bench.states()[-1] == "PrepareCommit"
    del bench.markers.errors[SECOND]
    assert bench.coordinator.retry_markers() == 1
    assert [marker[0] for marker in bench.markers.written] == [FIRST, SECOND]
    assert bench.states()[-1] == "CompleteCommit"
    assert bench.coordinator.retry_markers() == 0
    bench.add(after, FIRST)


def test_init_answers_concurrent_transactions_while_the_abort_waits_for_a_partition(
    bench: Bench,
) -> None:
    bench.begin()
    bench.markers.errors[FIRST] = KafkaStorageError("offline")
    for _ in range(3):
        with pytest.raises(ConcurrentTransactionsError):
            bench.coordinator.init_producer_id("t", TIMEOUT_MS)
    assert bench.value().producer_epoch == 1  # one bump, however often it was asked
    bench.markers.errors.clear()
    bench.coordinator.retry_markers()
    assert bench.coordinator.init_producer_id("t", TIMEOUT_MS).producer_epoch == 2


def test_a_marker_that_waits_is_warned_of_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.markers.errors[FIRST] = KafkaStorageError("offline")
    bench.end(bench.begin(), committed=True)
    for _ in range(5):
        bench.coordinator.retry_markers()
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "orders-0 must wait: offline" in warnings[0].getMessage()


def test_a_partition_that_cannot_be_written_is_warned_of_once_for_all_transactions(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: a hundred producers that wait for one partition are one fault and one line; the next fault is another."""

    def warned() -> list[str]:
        messages = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        caplog.clear()
        return messages

    caplog.set_level(logging.INFO)
    bench.markers.errors[FIRST] = KafkaStorageError("offline")
    for number in range(100):
        name = f"teller-{number}"
        bench.end(bench.begin(name, FIRST, THIRD), committed=True, transactional_id=name)
    (only,) = warned()
    assert "orders-0 must wait: offline" in only
    bench.markers.errors[SECOND] = KafkaStorageError("offline, too")
    bench.end(bench.begin("another", SECOND), committed=True, transactional_id="another")
    (only,) = warned()
    assert "orders-1 must wait: offline, too" in only
    del bench.markers.errors[FIRST]
    assert bench.coordinator.retry_markers() == 100
    told = [record.getMessage() for record in caplog.records]
    assert told.count("orders-0 can be written again") == 1
    caplog.clear()
    bench.markers.errors[FIRST] = KafkaStorageError("offline again")
    bench.end(bench.begin("teller-0"), committed=True, transactional_id="teller-0")
    (only,) = warned()
    assert "offline again" in only


def test_a_partition_that_is_gone_counts_as_done(bench: Bench) -> None:
    identity = bench.begin("t", FIRST, SECOND)
    bench.markers.errors[FIRST] = UnknownTopicOrPartitionError("orders-0 is gone")
    bench.markers.sync_errors[FIRST] = bench.markers.errors[FIRST]
    bench.end(identity, committed=True)
    assert bench.value().state is COMPLETE_COMMIT
    assert [marker[0] for marker in bench.markers.written] == [SECOND]
    assert bench.markers.synced == [(SECOND,)]  # the others are made durable all the same


@pytest.mark.parametrize("kind", [InvalidProducerEpochError, TransactionCoordinatorFencedError])
def test_a_marker_that_is_fenced_is_not_tried_again(bench: Bench, kind: type[OncelogError]) -> None:
    identity = bench.begin("t", FIRST, SECOND)
    bench.markers.errors[FIRST] = kind("somebody newer was here")
    bench.end(identity, committed=False)
    assert bench.value().state is COMPLETE_ABORT
    assert [marker[0] for marker in bench.markers.written] == [SECOND]
    assert bench.coordinator.retry_markers() == 0


def test_a_retry_over_a_rotation_waits_until_complete_and_then_gets_the_new_id(
    bench: Bench,
) -> None:
    identity = bench.begin()
    metadata = bench.metadata()
    metadata.value = metadata.value._replace(producer_epoch=EPOCH_LAST)
    identity = identity._replace(producer_epoch=EPOCH_LAST)
    bench.markers.errors[FIRST] = KafkaStorageError("offline")
    assert bench.end(identity, committed=True)[:2] == (1, 0)
    with pytest.raises(ConcurrentTransactionsError):
        bench.end(identity, committed=True)
    bench.markers.errors.clear()
    bench.coordinator.retry_markers()
    assert bench.end(identity, committed=True)[:2] == (1, 0)


def test_two_threads_that_retry_complete_a_transaction_once(bench: Bench) -> None:
    for number in range(20):
        name = f"t{number}"
        bench.markers.errors[FIRST] = KafkaStorageError("offline")
        bench.end(bench.begin(name), committed=True, transactional_id=name)
    bench.markers.errors.clear()
    counts: list[int] = []
    threads = [
        threading.Thread(target=lambda: counts.append(bench.coordinator.retry_markers()))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == 20
    assert len(bench.markers.written) == 20


# ------------------------------------------------------------ durability


def test_a_commit_syncs_data_then_the_decision_and_nothing_else(synced: Bench) -> None:
    identity = synced.begin("t", FIRST, SECOND)
    number = synced.log.partition_for("t")
    assert synced.log.synced == [number]  # the identity that was handed out
    synced.log.synced.clear()
    order: list[str] = []
    synced.markers.during = lambda: order.append("marker")
    real_sync, real_append = synced.markers.sync, synced.log.append

    def sync(keys: Any) -> None:
        order.append("data")
        real_sync(keys)

    def append(partition: int, records: Any) -> int:
        order.append("append")
        return real_append(partition, records)

    synced.markers.sync = sync  # type: ignore[method-assign]
    synced.log.append = append  # type: ignore[method-assign]
    synced.end(identity, committed=True)
    assert order == ["data", "append", "marker", "marker", "append"]
    assert synced.markers.synced == [(FIRST, SECOND)]
    assert synced.log.synced == [number]
    partition = synced._open(number)
    assert partition.durable_end_offset == partition.log_end_offset - 1  # all but CompleteCommit


def test_an_abort_syncs_its_decision_and_no_data(synced: Bench) -> None:
    identity = synced.begin()
    synced.log.synced.clear()
    synced.end(identity, committed=False)
    assert synced.markers.synced == []
    assert len(synced.log.synced) == 1


def test_preparing_makes_data_and_state_durable(synced: Bench) -> None:
    identity = synced.begin("t", FIRST, SECOND)
    synced.coordinator.prepare_txn("t", identity.producer_id, identity.producer_epoch)
    assert synced.markers.synced == [(FIRST, SECOND)]
    partition = synced._open(synced.log.partition_for("t"))
    assert partition.durable_end_offset == partition.log_end_offset


def test_a_commit_whose_data_cannot_be_made_durable_must_be_aborted(synced: Bench) -> None:
    identity = synced.begin("t", FIRST, SECOND)
    synced.markers.sync_errors[SECOND] = KafkaStorageError("offline")
    with pytest.raises(TransactionAbortableError) as raised:
        synced.end(identity, committed=True)
    assert raised.value.txn_requires_abort
    assert synced.states()[-1] == "Ongoing"
    synced.end(identity, committed=False)
    assert synced.value().state is COMPLETE_ABORT


def test_a_decision_that_may_not_be_on_the_device_is_not_acted_on(synced: Bench) -> None:
    identity = synced.begin()
    synced.log.sync_errors = [KafkaStorageError("EIO")]
    with pytest.raises(CoordinatorNotAvailableError):
        synced.end(identity, committed=True)
    assert synced.markers.written == []
    assert synced.metadata().pending is None


def test_nothing_is_held_during_a_sync_but_the_ids_own_move(synced: Bench) -> None:
    """Goal: 16 threads overlap their fdatasyncs. Method: one end hangs in its sync while another id goes through."""
    slow, quick = synced.begin("slow"), synced.begin("quick", SECOND)
    entered, leave = threading.Event(), threading.Event()
    real_sync = synced.markers.sync

    def sync(keys: Any) -> None:
        if FIRST in keys:
            entered.set()
            assert leave.wait(10)
        real_sync(keys)

    synced.markers.sync = sync  # type: ignore[method-assign]
    thread = threading.Thread(
        target=lambda: synced.end(slow, committed=True, transactional_id="slow")
    )
    thread.start()
    assert entered.wait(10)
    assert not synced.metadata("slow").lock.locked()
    with pytest.raises(ConcurrentTransactionsError):
        synced.end(slow, committed=True, transactional_id="slow")
    synced.end(quick, committed=True, transactional_id="quick")
    assert synced.value("quick").state is COMPLETE_COMMIT
    assert synced.coordinator.abort_timed_out() == 0
    leave.set()
    thread.join()
    assert synced.value("slow").state is COMPLETE_COMMIT


# ------------------------------------------------------------ time-outs


def test_a_transaction_that_takes_too_long_is_aborted_with_a_bump(bench: Bench) -> None:
    identity = bench.begin("t", FIRST, SECOND)
    bench.clock.now += TIMEOUT_MS
    assert bench.coordinator.abort_timed_out() == 0  # not before the timeout has passed
    bench.clock.now += 1
    assert bench.coordinator.abort_timed_out() == 1
    assert bench.coordinator.abort_timed_out() == 0
    assert bench.markers.written == [
        (FIRST, 0, 1, False, COORDINATOR_EPOCH, 2),
        (SECOND, 0, 1, False, COORDINATOR_EPOCH, 2),
    ]
    with pytest.raises(InvalidTxnStateError):
        bench.end(
            identity, committed=True
        )  # as a real broker was seen to answer (fixture epoch-bumps)
    with pytest.raises(ProducerFencedError):
        bench.add(identity, FIRST)
    assert bench.end(identity, committed=False)[:2] == (0, 1)  # the late abort finds it done


def test_in_version_1_a_late_commit_after_the_time_out_is_fenced(bench: Bench) -> None:
    identity = bench.begin(version=1)
    bench.clock.now += TIMEOUT_MS + 1
    bench.coordinator.abort_timed_out()
    for committed in (True, False):
        with pytest.raises(ProducerFencedError):
            bench.end(identity, committed=committed, version=1)


def test_a_late_abort_after_a_time_out_at_the_last_epoch_gets_the_new_id(bench: Bench) -> None:
    identity = bench.begin()._replace(producer_epoch=EPOCH_LAST)
    metadata = bench.metadata()
    metadata.value = metadata.value._replace(producer_epoch=EPOCH_LAST)
    bench.clock.now += TIMEOUT_MS + 1
    assert bench.coordinator.abort_timed_out() == 1
    assert bench.end(identity, committed=False)[:2] == (1, 0)
    with pytest.raises(InvalidTxnStateError):
        bench.end(identity, committed=True)


def test_a_time_out_waits_while_a_move_is_pending(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    identity = bench.begin()
    bench.clock.now += TIMEOUT_MS + 1
    counts: list[int] = []
    bench.log.during_append = lambda: counts.append(bench.coordinator.abort_timed_out())
    bench.end(identity, committed=True)
    assert set(counts) == {0}
    assert bench.value().state is COMPLETE_COMMIT
    assert "timed out" not in caplog.text  # it is not even tried


def test_a_time_out_that_cannot_be_logged_costs_no_epoch(bench: Bench) -> None:
    bench.begin()
    bench.clock.now += TIMEOUT_MS + 1
    bench.log.append_errors = [FULL, FULL]
    assert bench.coordinator.abort_timed_out() == 0
    assert bench.coordinator.abort_timed_out() == 0
    assert (bench.value().state, bench.value().producer_epoch) == (ONGOING, 0)
    assert bench.coordinator.abort_timed_out() == 1
    assert bench.value().producer_epoch == 1


def test_one_that_cannot_be_aborted_does_not_keep_the_others_open(bench: Bench) -> None:
    bench.begin("a")
    bench.begin("b")
    bench.clock.now += TIMEOUT_MS + 1
    bench.log.append_errors = [FULL]
    assert bench.coordinator.abort_timed_out() == 1
    assert bench.coordinator.abort_timed_out() == 1


def test_only_open_transactions_time_out(bench: Bench) -> None:
    bench.coordinator.init_producer_id("empty", TIMEOUT_MS)
    bench.end(bench.begin("done"), committed=True, transactional_id="done")
    bench.clock.now += 10 * TIMEOUT_MS
    assert bench.coordinator.abort_timed_out() == 0


# ------------------------------------------------------------ expiry


def expire(bench: Bench) -> int:
    bench.clock.now += bench.options.transactional_id_expiration_ms
    return bench.coordinator.expire_ids()


def test_ids_without_a_transaction_expire_with_a_tombstone(bench: Bench) -> None:
    bench.coordinator.init_producer_id("empty", TIMEOUT_MS)
    identity = bench.end(bench.begin("done"), committed=True, transactional_id="done")
    bench.clock.now += bench.options.transactional_id_expiration_ms - 1
    assert bench.coordinator.expire_ids() == 0
    bench.clock.now += 1
    assert bench.coordinator.expire_ids() == 2
    assert bench.states("empty")[-1] == bench.states("done")[-1] == "tombstone"
    with pytest.raises(InvalidProducerIdMappingError):
        bench.add(identity, FIRST, transactional_id="done")
    assert bench.coordinator.init_producer_id("done", TIMEOUT_MS)[:2] == (2, 0)
    bench.restart()
    assert [row.transactional_id for row in bench.coordinator.list_transactions()] == ["done"]


def test_ids_with_a_transaction_never_expire(bench: Bench) -> None:
    bench.begin("open")
    bench.markers.errors[SECOND] = KafkaStorageError("offline")
    for name, committed in (("commit", True), ("abort", False)):
        bench.end(bench.begin(name, SECOND), committed=committed, transactional_id=name)
    assert expire(bench) == 0
    assert bench.value("open").state is ONGOING
    assert bench.value("commit").state is PREPARE_COMMIT
    assert bench.value("abort").state is PREPARE_ABORT


def test_an_id_whose_tombstone_cannot_be_written_stays_known(bench: Bench) -> None:
    bench.coordinator.init_producer_id("t", TIMEOUT_MS)
    bench.log.append_errors = [FULL]
    assert expire(bench) == 0
    assert bench.value().state is EMPTY
    assert bench.coordinator.init_producer_id("t", TIMEOUT_MS)[:2] == (0, 1)


def test_an_id_that_is_being_forgotten_takes_no_other_move(bench: Bench) -> None:
    identity = bench.coordinator.init_producer_id("t", TIMEOUT_MS)
    seen: list[type[OncelogError]] = []

    def meanwhile() -> None:
        bench.log.during_append = None
        for call in (
            lambda: bench.add(identity, FIRST),
            lambda: bench.coordinator.init_producer_id("t", TIMEOUT_MS),
            lambda: bench.end(identity, committed=False),
        ):
            with pytest.raises(ConcurrentTransactionsError) as raised:
                call()
            seen.append(raised.type)

    bench.log.during_append = meanwhile
    assert expire(bench) == 1
    assert len(seen) == 3


def test_tombstones_go_out_in_batches_that_fit(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "data", partition_count=1)
    for number in range(300):
        bench.coordinator.init_producer_id(f"id-{number}", TIMEOUT_MS)
    partition = bench._open(0)
    partition.options = partition.options._replace(max_message_bytes=1000)
    bench.log.appended.clear()
    assert expire(bench) == 300
    assert len(bench.log.appended) > 10
    assert sum(bench.log.appended) == 300
    assert bench.coordinator.list_transactions() == []
    bench.close()


def test_an_id_that_expires_under_a_caller_is_made_anew(bench: Bench) -> None:
    """Goal: nobody works on metadata that is no longer in the table. Method: expire between lookup and lock."""
    bench.coordinator.init_producer_id("t", TIMEOUT_MS)
    old = bench.metadata()
    assert expire(bench) == 1

    class Stale(dict[str, Any]):
        """Shows the old metadata once more."""

        def get(self, key: str, default: Any = None) -> Any:
            return super().get(key, default) if key in self else self.pop("stale", default)

    bench.coordinator._states.ids = Stale(stale=old)
    assert bench.coordinator.init_producer_id("t", TIMEOUT_MS)[:2] == (1, 0)
    assert bench.metadata() is not old


# ------------------------------------------------------------ many


def test_many_threads_on_many_ids_end_every_transaction_once(bench: Bench) -> None:
    """Goal: no lost move, no deadlock. Method: 8 threads, an id each and one that all fight over."""
    errors: list[BaseException] = []
    fenced: list[int] = []

    def work(number: int) -> None:
        name = f"own-{number}"
        try:
            identity = bench.coordinator.init_producer_id(name, TIMEOUT_MS)
            for turn in range(30):
                with bench.appending(identity, FIRST, name):
                    pass
                identity = bench.end(identity, committed=bool(turn % 2), transactional_id=name)
            assert identity.producer_epoch == 30
            for _ in range(10):
                try:
                    shared = bench.coordinator.init_producer_id("shared", TIMEOUT_MS)
                    with bench.appending(shared, SECOND, "shared"):
                        pass
                    bench.end(shared, committed=True, transactional_id="shared")
                except (ProducerFencedError, ConcurrentTransactionsError, InvalidTxnStateError):
                    fenced.append(number)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert sum(marker[0] == FIRST for marker in bench.markers.written) == 8 * 30
    epochs = [marker[2] for marker in bench.markers.written if marker[0] == SECOND]
    assert epochs == sorted(set(epochs))  # each decision went out once, under its own epoch
    bench.coordinator.retry_markers()
    before = {row.transactional_id: row for row in bench.coordinator.list_transactions()}
    bench.restart()
    after = {row.transactional_id: row for row in bench.coordinator.list_transactions()}
    assert after == before


def test_a_commit_costs_the_same_with_a_hundred_thousand_known_ids(bench: Bench) -> None:
    """Goal: nothing on the way of a commit, and no time-out check, looks at all ids.
    Method: the table of ids counts how often somebody walks through it, so that no clock is needed."""
    identity = bench.begin("t")
    identity = bench.end(identity, committed=True)

    class Counted(dict[str, Any]):
        walks = 0

        def _walked(self) -> None:
            Counted.walks += 1

        def __iter__(self) -> Iterator[str]:
            self._walked()
            return super().__iter__()

        def keys(self) -> Any:
            self._walked()
            return super().keys()

        def values(self) -> Any:
            self._walked()
            return super().values()

        def items(self) -> Any:
            self._walked()
            return super().items()

    ids = bench.coordinator._states.ids = Counted(bench.coordinator._states.ids)
    ids |= dict.fromkeys((f"other-{number}" for number in range(100_000)), bench.metadata())
    Counted.walks = 0
    for _ in range(5):
        with bench.appending(identity, FIRST):
            pass
        identity = bench.end(identity, committed=True)
        bench.coordinator.abort_timed_out()
        bench.coordinator.retry_markers()
    assert Counted.walks == 0
    assert len(bench.coordinator.list_transactions()) == len(ids)
    assert Counted.walks > 0  # it does count
    for number in range(100_000):
        del ids[f"other-{number}"]


def test_partitions_are_ended_in_the_order_in_which_they_came(bench: Bench) -> None:
    identity = bench.begin("t", THIRD, FIRST, SECOND)
    bench.end(identity, committed=True)
    assert [marker[0] for marker in bench.markers.written] == [THIRD, FIRST, SECOND]


def test_a_version_1_end_that_cannot_be_made_durable_is_warned_of_once_and_when_it_is(
    synced: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: a partition that stays offline does not fill the log with a line a second; its return is told."""
    caplog.set_level(logging.INFO)
    identity = synced.begin("t", FIRST)
    synced.coordinator.add_partitions_to_txn("t", *identity[:2], [FIRST])
    synced.markers.during = lambda: synced.markers.sync_errors.update(
        {FIRST: KafkaStorageError("offline")}
    )
    synced.end(identity, committed=True, version=1)
    for _ in range(5):
        synced.coordinator.retry_markers()
    told = [record for record in caplog.records if "cannot be completed" in record.getMessage()]
    assert [record.levelname for record in told] == ["WARNING"]
    synced.markers.during = None
    synced.markers.sync_errors.clear()
    assert synced.coordinator.retry_markers() == 1
    told = [record for record in caplog.records if "had to wait" in record.getMessage()]
    assert [record.levelname for record in told] == ["INFO"]
