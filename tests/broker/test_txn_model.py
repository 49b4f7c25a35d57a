"""The coordinator against a simple model: several holders of several ids, zombies, outages, time-outs, restarts.

What must hold, whatever happens in which order: an identity is handed out once; of all that ever held an id only the
last can do anything; a transaction ends once, and every partition of it gets markers of that outcome alone; what was
answered survives a restart.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from oncelog.base.errors import (
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    KafkaStorageError,
    ProducerFencedError,
)
from oncelog.broker.producer_ids import ProducerIdentity
from oncelog.broker.txn_metadata import EPOCH_LAST, ONGOING
from tests.broker.coordinators import FIRST, SECOND, THIRD, TIMEOUT_MS, Bench

if TYPE_CHECKING:
    from oncelog.broker.txn_records import TransactionValue

IDS = ("t", "u")
PARTITIONS = (FIRST, SECOND, THIRD)
REFUSALS = (
    ProducerFencedError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ConcurrentTransactionsError,
)
Identity = tuple[int, int]


@dataclass
class Transaction:
    partitions: set[Any] = field(default_factory=set)
    outcome: bool | None = None


def _in_order(value: TransactionValue) -> TransactionValue:
    return value._replace(partitions=tuple(sorted(value.partitions)))


class Model(RuleBasedStateMachine):
    """Version 2, where an identity stands for one transaction."""

    @initialize(epoch=st.sampled_from([-1, EPOCH_LAST - 3, EPOCH_LAST - 1]))
    def start(self, epoch: int) -> None:
        self.path = Path(tempfile.mkdtemp())
        self.bench = Bench(self.path / "data")
        self.holders: dict[str, list[Identity]] = {name: [] for name in IDS}
        self.transactions: dict[str, dict[Identity, Transaction]] = {name: {} for name in IDS}
        if epoch >= 0:  # near the end of all epochs
            for name in IDS:
                self.init(name)
                metadata = self.bench.metadata(name)
                metadata.value = metadata.value._replace(producer_epoch=epoch)
                self.bench.coordinator._states.append(metadata, metadata.value)
                self.holders[name] = [(metadata.value.producer_id, epoch)]

    def teardown(self) -> None:
        self.bench.markers.errors.clear()
        self.bench.log.append_errors.clear()
        self.bench.coordinator.retry_markers()
        for name in IDS:
            for transaction in self.transactions[name].values():
                if transaction.outcome is not None:
                    self._check_markers(name, everywhere=True)
        self.bench.close()
        shutil.rmtree(self.path)

    # ------------------------------------------------------------ what is known

    def _is_open(self, name: str) -> Identity | None:
        """The identity whose transaction the coordinator holds open."""
        value = self.bench.value(name)
        return (value.producer_id, value.producer_epoch) if value.state is ONGOING else None

    def _note_aborts(self, name: str) -> None:
        """A fence has aborted what the coordinator no longer holds open."""
        still_open = self._is_open(name)
        for identity, transaction in self.transactions[name].items():
            if transaction.outcome is None and transaction.partitions and identity != still_open:
                transaction.outcome = False

    def _hand_over(self, name: str, identity: ProducerIdentity) -> None:
        holder = (identity.producer_id, identity.producer_epoch)
        for others in self.holders.values():
            assert holder not in others
        assert 0 <= identity.producer_epoch <= EPOCH_LAST
        self.holders[name].append(holder)

    # ------------------------------------------------------------ what may happen

    @rule(name=st.sampled_from(IDS))
    def init(self, name: str) -> None:
        with contextlib.suppress(ConcurrentTransactionsError, CoordinatorNotAvailableError):
            self._hand_over(name, self.bench.coordinator.init_producer_id(name, TIMEOUT_MS))
        if name in self.bench.coordinator._states.ids:
            self._note_aborts(name)

    @rule(name=st.sampled_from(IDS), key=st.sampled_from(PARTITIONS), data=st.data())
    def append(self, name: str, key: Any, data: st.DataObject) -> None:
        """By the holder, or by a zombie that held the id before."""
        if not self.holders[name]:
            return
        holder = data.draw(st.sampled_from(self.holders[name]), label="holder")
        transaction = self.transactions[name].setdefault(holder, Transaction())
        try:
            with self.bench.appending(ProducerIdentity(*holder), key, name):
                assert holder == self.holders[name][-1]
                assert transaction.outcome is None
                transaction.partitions.add(key)
        except REFUSALS:
            pass
        except CoordinatorNotAvailableError:
            assert holder == self.holders[name][-1]

    @rule(name=st.sampled_from(IDS), committed=st.booleans(), data=st.data())
    def end(self, name: str, committed: bool, data: st.DataObject) -> None:
        if not self.holders[name]:
            return
        holder = data.draw(st.sampled_from(self.holders[name]), label="holder")
        transaction = self.transactions[name].setdefault(holder, Transaction())
        was_open = self._is_open(name) == holder
        try:
            after = self.bench.end(
                ProducerIdentity(*holder), committed=committed, transactional_id=name
            )
        except (*REFUSALS, CoordinatorNotAvailableError):
            assert self._is_open(name) == holder or not was_open
            return
        if transaction.outcome is None:
            assert holder == self.holders[name][-1] or not transaction.partitions
            assert was_open or not committed  # only an abort may be of nothing
            transaction.outcome = committed
        assert transaction.outcome == committed  # a retry tells the same
        if (after.producer_id, after.producer_epoch) not in self.holders[name]:
            self._hand_over(name, after)

    @rule(advance_ms=st.sampled_from([1, TIMEOUT_MS // 2, TIMEOUT_MS + 1]))
    def pass_time(self, advance_ms: int) -> None:
        self.bench.clock.now += advance_ms
        self.bench.coordinator.abort_timed_out()
        for name in self.bench.coordinator._states.ids:
            self._note_aborts(name)

    @rule(keys=st.sets(st.sampled_from(PARTITIONS)))
    def break_partitions(self, keys: set[Any]) -> None:
        self.bench.markers.errors = {key: KafkaStorageError("offline") for key in keys}

    @rule(plan=st.lists(st.booleans(), max_size=3))
    def break_log(self, plan: list[bool]) -> None:
        self.bench.log.append_errors = [
            KafkaStorageError("disk full") if fails else None for fails in plan
        ]

    @rule()
    def retry(self) -> None:
        self.bench.coordinator.retry_markers()

    @rule()
    def restart(self) -> None:
        before = {
            name: self.bench.value(name)
            for name in self.bench.coordinator._states.ids
            if self.bench.value(name).producer_epoch >= 0
        }
        self.bench.restart()
        for name, value in before.items():
            found = self.bench.value(name)
            assert (found.state is ONGOING) == (value.state is ONGOING)
            if value.state is ONGOING:
                # A record lists partitions topic by topic, whatever order they were added in.
                assert _in_order(found) == _in_order(value)

    # ------------------------------------------------------------ what must hold

    @invariant()
    def every_marker_tells_the_outcome(self) -> None:
        for name in IDS:
            self._check_markers(name, everywhere=False)

    def _check_markers(self, name: str, *, everywhere: bool) -> None:
        markers: dict[Identity, set[tuple[Any, bool]]] = {}
        for key, producer_id, epoch, committed, _, version in self.bench.markers.written:
            assert version == 2
            markers.setdefault((producer_id, epoch - 1), set()).add((key, committed))
        for identity, transaction in self.transactions[name].items():
            found = markers.get(identity, set())
            if transaction.outcome is None:
                assert not found
                continue
            wanted = {(key, transaction.outcome) for key in transaction.partitions}
            assert found <= wanted
            if everywhere:
                assert found == wanted


Model.TestCase.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
test_the_coordinator_does_what_the_model_does = Model.TestCase


def test_the_checker_sees_a_marker_of_the_wrong_outcome() -> None:
    """Goal: the checker can fail. Method: plant a commit marker for a transaction that was aborted."""
    machine = Model()
    machine.start(-1)
    try:
        machine.init("t")
        holder = machine.holders["t"][-1]
        machine.transactions["t"][holder] = Transaction({FIRST}, outcome=False)
        with machine.bench.appending(ProducerIdentity(*holder), FIRST):
            pass
        machine.bench.end(ProducerIdentity(*holder), committed=True)
        failed = False
        try:
            machine.every_marker_tells_the_outcome()
        except AssertionError:
            failed = True
        assert failed
        machine.transactions["t"].clear()
    finally:
        machine.teardown()
