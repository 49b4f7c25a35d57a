"""The producer table judges batches as Kafka's leader does, and knows what is open.

Method of the large test: a hypothesis state machine drives the table and a plain Python model of section 7 of the
checklist (kafka-cases) side by side, and compares everything that can be asked after every step.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from oncelog._native.segment import Batches
from oncelog._native.sequence import (
    ACCEPT,
    FENCED,
    OLD_COORDINATOR,
    OPEN_TRANSACTION,
    OUT_OF_ORDER,
    ProducerTable,
)
from oncelog.base.rows import ABORTED_DTYPE, HEADER_DTYPE, PRODUCER_DTYPE
from oncelog.segment.batch import Attributes, ControlType

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX = 2**31 - 1


def row(**fields: int) -> NDArray[np.void]:
    """One header row; a data batch unless a control type is given."""
    made = np.zeros(1, HEADER_DTYPE)
    for name, value in {"control_type": -1, "coordinator_epoch": -1, **fields}.items():
        made[name] = value
    return made


def data(
    producer_id: int,
    base_offset: int,
    sequence: int = 0,
    count: int = 1,
    *,
    epoch: int = 0,
    is_transactional: bool = False,
    timestamp: int = 1000,
) -> NDArray[np.void]:
    return row(
        producer_id=producer_id,
        base_offset=base_offset,
        base_sequence=sequence,
        record_count=count,
        last_offset_delta=count - 1,
        producer_epoch=epoch,
        attributes=int(Attributes.TRANSACTIONAL) if is_transactional else 0,
        max_timestamp=timestamp,
    )


def marker(
    producer_id: int,
    base_offset: int,
    *,
    epoch: int = 0,
    is_commit: bool = False,
    coordinator_epoch: int = 0,
    timestamp: int = 1000,
) -> NDArray[np.void]:
    return row(
        producer_id=producer_id,
        base_offset=base_offset,
        base_sequence=-1,
        record_count=1,
        producer_epoch=epoch,
        attributes=int(Attributes.TRANSACTIONAL | Attributes.CONTROL),
        control_type=int(ControlType.COMMIT if is_commit else ControlType.ABORT),
        coordinator_epoch=coordinator_epoch,
        max_timestamp=timestamp,
    )


# ---------------------------------------------------------------- the model


@dataclass
class Producer:
    epoch: int = -1
    batches: list[tuple[int, int, int, int]] = field(default_factory=list)
    coordinator_epoch: int = -1
    timestamp: int = -1
    first_open: int | None = None

    def next_sequence(self) -> int:
        return (self.batches[-1][1] + 1) % 2**31 if self.batches else 0


class Model:
    """Kafka's rules, in dictionaries and lists. A batch is (first sequence, last sequence, last offset, delta)."""

    def __init__(self) -> None:
        self.producers: dict[int, Producer] = {}

    def check(
        self, producer_id: int, epoch: int, sequence: int, count: int, known_from_start: bool
    ) -> int:
        known = self.producers.get(producer_id)
        if known is None:
            return OUT_OF_ORDER if known_from_start and sequence != 0 else ACCEPT
        if epoch < known.epoch:
            return FENCED
        if epoch > known.epoch:
            return ACCEPT if sequence == 0 else OUT_OF_ORDER
        last = (sequence + count - 1) % 2**31
        for first_sequence, last_sequence, last_offset, delta in known.batches:
            if (first_sequence, last_sequence) == (sequence, last):
                return last_offset - delta
        return ACCEPT if sequence == known.next_sequence() else OUT_OF_ORDER

    def judge_data(
        self,
        producer_id: int,
        epoch: int,
        sequence: int,
        count: int,
        *,
        is_transactional: bool,
        is_client: bool,
        bumps_epoch: bool,
    ) -> int:
        known = self.producers.get(producer_id)
        verdict = ACCEPT
        if is_client:
            known_from_start = bumps_epoch and is_transactional
            verdict = self.check(producer_id, epoch, sequence, count, known_from_start)
        elif known is not None and epoch < known.epoch:
            verdict = FENCED
        is_open = known is not None and known.first_open is not None
        return (
            OPEN_TRANSACTION if verdict == ACCEPT and is_open and not is_transactional else verdict
        )

    def judge_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, *, bumps_epoch: bool
    ) -> int:
        known = self.producers.get(producer_id)
        if known is None:
            return ACCEPT
        if epoch < known.epoch:
            return FENCED
        if bumps_epoch and epoch == known.epoch and known.first_open is not None:
            return FENCED
        return OLD_COORDINATOR if coordinator_epoch < known.coordinator_epoch else ACCEPT

    def _raise_epoch(self, known: Producer, epoch: int) -> None:
        if epoch != known.epoch:
            known.epoch, known.batches = epoch, []

    def append(
        self,
        producer_id: int,
        epoch: int,
        sequence: int,
        count: int,
        base_offset: int,
        timestamp: int,
        is_transactional: bool,
    ) -> None:
        known = self.producers.setdefault(producer_id, Producer())
        self._raise_epoch(known, epoch)
        last = (sequence + count - 1) % 2**31
        known.batches = [
            *known.batches[-4:],
            (sequence, last, base_offset + count - 1, count - 1),
        ]
        known.timestamp = timestamp
        if is_transactional and known.first_open is None:
            known.first_open = base_offset

    def first_open(self, *, beside: int | None = None) -> int | None:
        return min(
            (
                known.first_open
                for producer_id, known in self.producers.items()
                if known.first_open is not None and producer_id != beside
            ),
            default=None,
        )

    def aborts(self, producer_id: int, offset: int) -> list[tuple[int, int, int, int]]:
        known = self.producers.get(producer_id)
        if known is None or known.first_open is None:
            return []
        stable = self.first_open(beside=producer_id)
        return [(producer_id, known.first_open, offset, offset + 1 if stable is None else stable)]

    def end(
        self, producer_id: int, epoch: int, offset: int, coordinator_epoch: int, timestamp: int
    ) -> None:
        known = self.producers.setdefault(producer_id, Producer())
        self._raise_epoch(known, epoch)
        known.first_open = None
        known.coordinator_epoch, known.timestamp = coordinator_epoch, timestamp

    def snapshot(self) -> list[tuple[int, ...]]:
        return [
            (
                producer_id,
                known.epoch,
                known.batches[-1][1] if known.batches else -1,
                known.batches[-1][2] if known.batches else -1,
                known.batches[-1][3] if known.batches else 0,
                known.timestamp,
                known.coordinator_epoch,
                -1 if known.first_open is None else known.first_open,
            )
            for producer_id, known in sorted(self.producers.items())
        ]


# Ids that share their low bits, so that they meet in the table.
PRODUCER_IDS = st.sampled_from([0, 1, 2, 1 << 24, 2 << 24, 3 << 40, 2**63 - 1])
EPOCHS = st.integers(0, 3)
COUNTS = st.integers(1, 4)


class Producers(RuleBasedStateMachine):
    """The table and the model, step by step."""

    repeats = Bundle("repeats")

    def __init__(self) -> None:
        super().__init__()
        self.table = ProducerTable()
        self.model = Model()
        self.offset = 0
        self.clock = 1000

    def _judge(
        self, producer_id: int, epoch: int, sequence: int, count: int, known_from_start: bool
    ) -> int:
        verdict = self.table.check(producer_id, epoch, sequence, count, known_from_start)
        assert verdict == self.model.check(producer_id, epoch, sequence, count, known_from_start)
        return verdict

    def _append(
        self, producer_id: int, epoch: int, sequence: int, count: int, is_transactional: bool
    ) -> None:
        self.clock += 7
        rows = data(
            producer_id,
            self.offset,
            sequence,
            count,
            epoch=epoch,
            is_transactional=is_transactional,
            timestamp=self.clock,
        )
        assert len(self.table.replay(rows)) == 0
        self.model.append(
            producer_id, epoch, sequence, count, self.offset, self.clock, is_transactional
        )
        self.offset += count

    @rule(
        target=repeats,
        producer_id=PRODUCER_IDS,
        count=COUNTS,
        epoch=EPOCHS,
        known_from_start=st.booleans(),
        is_transactional=st.booleans(),
        near_the_end=st.booleans(),
    )
    def send_next(
        self,
        producer_id: int,
        count: int,
        epoch: int,
        known_from_start: bool,
        is_transactional: bool,
        near_the_end: bool,
    ) -> tuple[int, int, int, int]:
        """What an honest producer sends: the next sequence of its epoch, from a new epoch on zero. One that the
        table does not know may be just before the wrap."""
        known = self.model.producers.get(producer_id)
        sequence = 0
        if known is not None:
            epoch = max(epoch, known.epoch)
            sequence = known.next_sequence() if epoch == known.epoch else 0
        elif near_the_end and not known_from_start:
            sequence = MAX - 3
        if self._judge(producer_id, epoch, sequence, count, known_from_start) == ACCEPT:
            self._append(producer_id, epoch, sequence, count, is_transactional)
        return producer_id, epoch, sequence, count

    @rule(batch=repeats, known_from_start=st.booleans(), shift=st.sampled_from([0, 0, 1, -1]))
    def send_again(
        self, batch: tuple[int, int, int, int], known_from_start: bool, shift: int
    ) -> None:
        """A repeat of something sent before, or almost: one record more, one sequence off."""
        producer_id, epoch, sequence, count = batch
        self._judge(producer_id, epoch, sequence, count, known_from_start)
        self._judge(producer_id, epoch, max(sequence + shift, 0) % 2**31, count, known_from_start)
        self._judge(producer_id, epoch, sequence, count + abs(shift), known_from_start)

    @rule(
        producer_id=PRODUCER_IDS,
        epoch=EPOCHS,
        sequence=st.sampled_from([0, 1, 2, 3, 5, 8, MAX - 1, MAX]),
        count=COUNTS,
        known_from_start=st.booleans(),
    )
    def ask_for_anything(
        self, producer_id: int, epoch: int, sequence: int, count: int, known_from_start: bool
    ) -> None:
        self._judge(producer_id, epoch, sequence, count, known_from_start)

    def _verdict(self, rows: NDArray[np.void], *, is_client: bool, bumps_epoch: bool) -> int:
        found = self.table.judge(rows, is_client, bumps_epoch)
        assert self.table.judge(Batches(rows), is_client, bumps_epoch) == found
        return ACCEPT if found is None else found[0]

    @rule(
        producer_id=PRODUCER_IDS,
        epoch=EPOCHS,
        sequence=st.sampled_from([0, 1, 2, 3, 5, MAX]),
        follows=st.booleans(),
        count=COUNTS,
        is_transactional=st.booleans(),
        is_client=st.booleans(),
        bumps_epoch=st.booleans(),
    )
    def judge_a_batch(
        self,
        producer_id: int,
        epoch: int,
        sequence: int,
        follows: bool,
        count: int,
        is_transactional: bool,
        is_client: bool,
        bumps_epoch: bool,
    ) -> None:
        """All that a leader asks of a data batch, of a client and of a coordinator."""
        known = self.model.producers.get(producer_id)
        if follows and known is not None:
            epoch, sequence = max(known.epoch, 0), known.next_sequence()
        rows = data(
            producer_id,
            self.offset,
            sequence,
            count,
            epoch=epoch,
            is_transactional=is_transactional,
        )
        assert self._verdict(
            rows, is_client=is_client, bumps_epoch=bumps_epoch
        ) == self.model.judge_data(
            producer_id,
            epoch,
            sequence,
            count,
            is_transactional=is_transactional,
            is_client=is_client,
            bumps_epoch=bumps_epoch,
        )

    @rule(
        producer_id=PRODUCER_IDS,
        epoch=EPOCHS,
        is_commit=st.booleans(),
        coordinator_epoch=st.integers(0, 3),
        bumps_epoch=st.booleans(),
    )
    def judge_a_marker(
        self,
        producer_id: int,
        epoch: int,
        is_commit: bool,
        coordinator_epoch: int,
        bumps_epoch: bool,
    ) -> None:
        rows = marker(
            producer_id,
            self.offset,
            epoch=epoch,
            is_commit=is_commit,
            coordinator_epoch=coordinator_epoch,
        )
        expected = self.model.judge_marker(
            producer_id, epoch, coordinator_epoch, bumps_epoch=bumps_epoch
        )
        assert self._verdict(rows, is_client=False, bumps_epoch=bumps_epoch) == expected

    @rule(
        producer_id=PRODUCER_IDS,
        epoch=EPOCHS,
        bump=st.integers(0, 1),
        is_commit=st.booleans(),
        coordinator_epoch=st.integers(0, 3),
    )
    def end(
        self,
        producer_id: int,
        epoch: int,
        bump: int,
        is_commit: bool,
        coordinator_epoch: int,
    ) -> None:
        """A marker: of the same epoch (TV1), of a higher one (TV2), of a producer that is not known."""
        self.clock += 7
        known = self.model.producers.get(producer_id)
        if known is not None:
            epoch = max(known.epoch, 0) + bump
        expected = self.model.aborts(producer_id, self.offset)
        foretold = self.table.would_abort(producer_id, self.offset)
        assert foretold.dtype == ABORTED_DTYPE
        assert foretold.tolist() == expected
        rows = marker(
            producer_id,
            self.offset,
            epoch=epoch,
            is_commit=is_commit,
            coordinator_epoch=coordinator_epoch,
            timestamp=self.clock,
        )
        assert self.table.replay(rows).tolist() == ([] if is_commit else expected)
        self.model.end(producer_id, epoch, self.offset, coordinator_epoch, self.clock)
        self.offset += 1

    @rule(producer_id=PRODUCER_IDS)
    def remove(self, producer_id: int) -> None:
        self.table.remove(producer_id)
        self.model.producers.pop(producer_id, None)

    @rule(age=st.integers(0, 100))
    def expire(self, age: int) -> None:
        limit = self.clock - age
        gone = {
            producer_id
            for producer_id, known in self.model.producers.items()
            if known.first_open is None and known.timestamp < limit
        }
        assert set(self.table.expire(limit)) == gone
        for producer_id in gone:
            del self.model.producers[producer_id]

    @rule()
    def restart(self) -> None:
        """A snapshot keeps the last batch of each producer; all else is as before."""
        snapshot = self.table.snapshot()
        self.table = ProducerTable()
        self.table.load(snapshot)
        for known in self.model.producers.values():
            known.batches = known.batches[-1:]

    @rule()
    def load_over_what_is_known(self) -> None:
        """Loading into the same table forgets nothing that the rows say and keeps nothing that they do not."""
        self.table.load(self.table.snapshot())
        for known in self.model.producers.values():
            known.batches = known.batches[-1:]

    @invariant()
    def everything_known_is_the_same(self) -> None:
        table, model = self.table, self.model
        assert len(table) == len(model.producers)
        assert table.first_open_offset == model.first_open()
        opened = [
            (producer_id, known.first_open)
            for producer_id, known in model.producers.items()
            if known.first_open is not None
        ]
        assert table.open_transactions() == sorted(opened, key=lambda pair: pair[1])
        snapshot = table.snapshot()
        assert snapshot.dtype == PRODUCER_DTYPE
        assert snapshot.tolist() == model.snapshot()
        for expected in model.snapshot():
            found = table.get(expected[0])
            assert found is not None
            assert found.tolist() == expected
            assert expected[0] in table
        assert 77 not in table
        assert table.get(77) is None


Producers.TestCase.settings = settings(stateful_step_count=40, deadline=None)
TestProducers: Any = Producers.TestCase


# ---------------------------------------------------------------- named rules


def test_of_several_batches_the_first_that_does_not_fit_is_named() -> None:
    table = ProducerTable()
    table.replay(data(1, 0, 0, 3, epoch=2))
    rows = np.concatenate([data(7, 3), data(-1, 4), data(1, 5, 9, epoch=2), data(1, 6, 0, epoch=1)])
    assert table.judge(rows, True, True) == (OUT_OF_ORDER, 2)
    assert table.judge(Batches(rows), True, True) == (OUT_OF_ORDER, 2)
    assert table.judge(rows, False, True) == (FENCED, 3), "a coordinator's sequence is not judged"
    assert table.judge(rows[:2], True, True) is None
    assert table.judge(rows[:0], True, True) is None
    assert table.judge(data(1, 3, 0, 3, epoch=2), True, True) == (0, 0), "a repeat"
    with pytest.raises(TypeError, match="are needed"):
        table.judge(np.zeros(1, np.int64), True, True)


def test_the_last_five_batches_are_duplicates_and_older_ones_out_of_order() -> None:
    """Goal: a repeat is answered with its original offset, as long as it is one of five."""
    table = ProducerTable()
    for number in range(7):
        assert table.check(1, 0, 3 * number, 3) == ACCEPT
        table.replay(data(1, 100 + 10 * number, 3 * number, 3))
    for number in range(7):
        expected = OUT_OF_ORDER if number < 2 else 100 + 10 * number
        assert table.check(1, 0, 3 * number, 3) == expected
    assert table.check(1, 0, 18, 2) == OUT_OF_ORDER  # the same start, but fewer records
    assert table.check(1, 0, 22, 1) == OUT_OF_ORDER  # a gap
    assert table.check(1, 0, 21, 1) == ACCEPT


def test_an_older_epoch_is_fenced_and_a_newer_starts_at_zero() -> None:
    table = ProducerTable()
    table.replay(data(1, 0, epoch=4))
    assert table.check(1, 3, 1, 1) == FENCED
    assert table.check(1, 3, 0, 1) == FENCED
    assert table.check(1, 5, 1, 1) == OUT_OF_ORDER
    assert table.check(1, 5, 0, 1) == ACCEPT
    table.replay(data(1, 1, epoch=5))
    assert table.check(1, 5, 0, 1) == 1  # not the batch of epoch 4, which was at offset 0
    assert table.check(1, 4, 1, 1) == FENCED


def test_sequences_wrap_after_the_largest_and_only_there() -> None:
    """Goal: after 2^31 - 1 comes 0, also in the middle of a batch, and a repeat over the wrap is still known."""
    table = ProducerTable()
    table.replay(data(1, 10, MAX - 1, 4))  # MAX - 1, MAX, 0, 1
    assert table.check(1, 0, 2, 1) == ACCEPT
    assert table.check(1, 0, MAX - 1, 4) == 10
    assert table.check(1, 0, 0, 1) == OUT_OF_ORDER
    other = ProducerTable()
    other.replay(data(1, 10, MAX - 1, 2))
    assert other.check(1, 0, 0, 1) == ACCEPT
    assert other.check(1, 0, 1, 1) == OUT_OF_ORDER
    snapshot = table.snapshot()[0]
    assert (snapshot["last_sequence"], snapshot["offset_delta"]) == (1, 3)


def test_an_unknown_producer_starts_anywhere_unless_its_start_would_be_known() -> None:
    """Goal: under transaction version 1 the first batches may just have been deleted; under 2 every epoch starts at
    zero, so anything else means that batches were lost."""
    table = ProducerTable()
    assert table.check(9, 2, 17, 1) == ACCEPT
    assert table.check(9, 2, 17, 1, known_from_start=True) == OUT_OF_ORDER
    assert table.check(9, 2, 0, 1, known_from_start=True) == ACCEPT
    assert 9 not in table  # a question leaves no trace


def test_a_marker_with_a_higher_epoch_fences_and_starts_anew() -> None:
    """Goal: after it, data of the old epoch is refused and data of the new one starts at zero."""
    table = ProducerTable()
    table.replay(data(1, 0, 0, 5, epoch=2, is_transactional=True))
    aborted = table.replay(marker(1, 5, epoch=3, coordinator_epoch=8, timestamp=4321))
    assert aborted.tolist() == [(1, 0, 5, 6)]
    assert table.check(1, 2, 5, 1) == FENCED
    assert table.check(1, 3, 5, 1) == OUT_OF_ORDER
    assert table.check(1, 3, 0, 1) == ACCEPT
    assert table.snapshot().tolist() == [(1, 3, -1, -1, 0, 4321, 8, -1)]


def test_a_marker_of_the_same_epoch_keeps_the_sequence() -> None:
    """Goal: transaction version 1: sequences run on across transactions, and repeats are still known."""
    table = ProducerTable()
    table.replay(data(1, 0, 0, 5, is_transactional=True))
    table.replay(marker(1, 5, is_commit=True))
    assert table.check(1, 0, 5, 1) == ACCEPT
    assert table.check(1, 0, 0, 5) == 0
    assert table.check(1, 0, 0, 1) == OUT_OF_ORDER


def test_the_marker_of_an_unknown_producer_is_remembered_but_aborts_nothing() -> None:
    """Goal: an empty transaction has no index entry and moves no offset, but its epoch fences."""
    table = ProducerTable()
    assert len(table.would_abort(5, 10)) == 0
    assert len(table.replay(marker(5, 10, epoch=3))) == 0
    assert table.first_open_offset is None
    assert table.check(5, 2, 0, 1) == FENCED


def test_other_control_batches_and_batches_without_a_producer_leave_no_trace() -> None:
    table = ProducerTable()
    for kind in (-2, *(int(each) for each in ControlType if each > 1)):
        odd = marker(3, 0)
        odd["control_type"] = kind
        table.replay(odd)
    table.replay(data(-1, 0, -1, is_transactional=True))
    assert len(table) == 0


def test_a_batch_that_compaction_emptied_keeps_its_span_of_sequences() -> None:
    """Goal: the record count is 0, the offsets it spans are not: the next sequence follows them."""
    table = ProducerTable()
    emptied = data(1, 20, 5, 4)
    emptied["record_count"] = 0
    table.replay(emptied)
    assert table.check(1, 0, 9, 1) == ACCEPT
    assert table.check(1, 0, 5, 4) == 20


def test_the_stable_offset_of_an_abort_is_the_next_transaction_still_open() -> None:
    """Goal: what the transaction index records, by replay of many rows and one by one."""
    rows = np.concatenate(
        [
            data(1, 0, is_transactional=True),
            data(2, 1, is_transactional=True),
            data(3, 2, is_transactional=True),
            marker(2, 3),
            marker(1, 4),
            marker(3, 5),
        ]
    )
    expected = [(2, 1, 3, 0), (1, 0, 4, 2), (3, 2, 5, 6)]
    assert ProducerTable().replay(rows).tolist() == expected
    table = ProducerTable()
    found = []
    for number in range(len(rows)):
        each = rows[number : number + 1]
        if each["control_type"][0] == ControlType.ABORT:
            foretold = table.would_abort(int(each["producer_id"][0]), int(each["base_offset"][0]))
            found += foretold.tolist()
            assert table.replay(each).tolist() == foretold.tolist()
        else:
            table.replay(each)
    assert found == expected


# ---------------------------------------------------------------- many


def test_a_hundred_thousand_producers_are_each_found_and_removed() -> None:
    """Goal: no id is lost while the table grows, nor when others are removed from its chains."""
    source = random.Random(5)
    ids = source.sample(range(0, 2**62, 2**20), 100_000)
    table = ProducerTable()
    rows = np.zeros(len(ids), HEADER_DTYPE)
    rows["producer_id"] = ids
    rows["base_offset"] = np.arange(len(ids))
    rows["control_type"] = -1
    rows["record_count"] = 1
    table.replay(rows)
    assert len(table) == len(ids)
    for offset, producer_id in enumerate(ids):
        assert table.check(producer_id, 0, 0, 1) == offset
        assert table.check(producer_id, 0, 1, 1) == ACCEPT
    assert table.snapshot()["producer_id"].tolist() == sorted(ids)
    gone = set(ids[::2])
    for producer_id in gone:
        table.remove(producer_id)
        table.remove(producer_id)  # twice is once
    assert len(table) == len(ids) - len(gone)
    for offset, producer_id in enumerate(ids):
        assert (producer_id in table) == (producer_id not in gone)
        if producer_id not in gone:
            assert table.check(producer_id, 0, 0, 1) == offset


def test_one_long_transaction_does_not_keep_thousands_of_short_ones(honest_memory: None) -> None:
    """Goal: what has ended is forgotten even while an older transaction is open.
    Method: a million short transactions behind an open one; the resident set must not grow with them."""

    def resident_kb() -> int:
        with open("/proc/self/statm") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * 4

    table = ProducerTable()
    table.replay(data(1, 0, is_transactional=True))
    offset = 1

    def run(transactions: int) -> None:
        nonlocal offset
        for _ in range(transactions // 1000):
            rows = np.zeros(2000, HEADER_DTYPE)
            rows["producer_id"] = 2
            rows["base_offset"] = offset + np.arange(2000)
            rows["attributes"] = int(Attributes.TRANSACTIONAL)
            rows["control_type"] = -1
            rows["attributes"][1::2] |= int(Attributes.CONTROL)
            rows["control_type"][1::2] = int(ControlType.COMMIT)
            assert len(table.replay(rows)) == 0
            offset += 2000

    run(50_000)
    before = resident_kb()
    run(1_000_000)
    assert resident_kb() - before < 4_000  # a million entries would be 16 MB
    assert table.first_open_offset == 0
    assert table.open_transactions() == [(1, 0)]
    table.replay(marker(1, offset, is_commit=True))
    assert table.first_open_offset is None


def test_thousands_of_open_transactions_end_in_any_order() -> None:
    """Goal: the first open offset is right after each end, whichever it is.
    Method: 3,000 open transactions, ended at random, against a sorted list."""
    source = random.Random(9)
    table = ProducerTable()
    opened = {
        producer_id: offset for offset, producer_id in enumerate(source.sample(range(10**6), 3000))
    }
    for producer_id, offset in opened.items():
        table.replay(data(producer_id, offset, is_transactional=True))
    offset = 3000
    for producer_id in source.sample(sorted(opened), 3000):
        first = opened.pop(producer_id)
        left = min(opened.values(), default=None)
        foretold = table.would_abort(producer_id, offset).tolist()
        assert foretold == [(producer_id, first, offset, offset + 1 if left is None else left)]
        if source.random() < 0.5:
            assert table.replay(marker(producer_id, offset)).tolist() == foretold
        else:
            table.remove(producer_id)
        assert table.first_open_offset == left
        offset += 1


def test_readers_may_ask_while_the_writer_replays() -> None:
    """Goal: the last stable offset is asked for by any thread; the table must stay whole.
    Method: one thread opens and ends transactions, two others ask for the first open one; it only ever rises."""
    table = ProducerTable()
    is_done = threading.Event()
    errors: list[BaseException] = []

    def ask() -> None:
        last = 0
        try:
            while not is_done.is_set():
                first = table.first_open_offset
                assert first is None or first >= last
                last = first or last
        except BaseException as error:  # noqa: BLE001 (told to the main thread)
            errors.append(error)

    readers = [threading.Thread(target=ask) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for start in range(0, 200_000, 2000):
            rows = np.zeros(2000, HEADER_DTYPE)
            rows["producer_id"] = np.arange(2000) // 2 % 300
            rows["base_offset"] = start + np.arange(2000)
            rows["attributes"] = int(Attributes.TRANSACTIONAL)
            rows["control_type"] = -1
            rows["attributes"][1::2] |= int(Attributes.CONTROL)
            rows["control_type"][1::2] = int(ControlType.ABORT)
            assert len(table.replay(rows)) == 1000
    finally:
        is_done.set()
        for reader in readers:
            reader.join()
    assert not errors


def test_offsets_at_the_end_of_their_range_do_not_break_the_table() -> None:
    """Goal: rows of a damaged log give wrong numbers at worst."""
    table = ProducerTable()
    top = 2**63 - 1
    table.replay(data(1, top, MAX, MAX, epoch=-1, is_transactional=True))
    table.replay(marker(1, top))
    table.replay(data(2, -(2**63), -(2**31), 1))
    assert len(table) == 2


@pytest.mark.parametrize("wrong", [np.zeros(1, np.int64), np.zeros(1, PRODUCER_DTYPE)])
def test_rows_of_another_type_are_refused(wrong: NDArray[Any]) -> None:
    with pytest.raises(TypeError, match="are needed"):
        ProducerTable().replay(wrong)
