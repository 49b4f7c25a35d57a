"""What each order of working and committing loses or does twice when the process dies in between.

The rows are the table of docs/GUARANTEES.md, word by word.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import oncelog
from oncelog.testing import ManualClock

from .group_parts import die, fill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncelog._native.records import Record
    from oncelog.client.client import Log
    from oncelog.client.consumer import Consumer
    from oncelog.client.producer import Producer

GUARANTEES = Path(__file__).parents[2] / "docs/GUARANTEES.md"
BATCH = 5
VALUES = [b"%02d" % number for number in range(4 * BATCH)]
SECOND = VALUES[BATCH : 2 * BATCH]  # the batch in which the first life ends
HALF = BATCH // 2


class DeathError(Exception):
    """Stands for kill -9: nothing is closed behind it."""


class Life:
    """One process: a member of the group, its producer, and the place where it dies."""

    def __init__(self, log: Log, clock: ManualClock, done: list[bytes], *, dies: bool) -> None:
        self.log = log
        self.clock = clock
        self.done = done
        self.dies = dies
        self.batch_count = 0
        self.consumer: Consumer
        self.producer: Producer

    def start(self, *, auto: bool = False) -> Consumer:
        self.consumer = self.log.consumer(
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=auto,
            max_poll_records=BATCH,
        )
        self.consumer.subscribe(["in"])
        return self.consumer

    def begin(self) -> Producer:
        self.producer = self.log.producer(transactional_id="t")
        self.producer.init_transactions()
        return self.producer

    def batches(self) -> Iterator[list[Record]]:
        """Each poll comes late enough for an automatic commit."""
        while records := self.consumer.poll():
            self.batch_count += 1
            yield records
            self.clock.advance(5000)

    def work(self, record: Record) -> None:
        assert record.value is not None
        self.done.append(record.value)

    def die_here(self) -> None:
        if self.dies and self.batch_count == 2:
            raise DeathError


def process_then_commit(life: Life) -> None:
    consumer = life.start()
    for records in life.batches():
        for record in records:
            life.work(record)
        life.die_here()
        consumer.commit()


def commit_then_process(life: Life) -> None:
    consumer = life.start()
    for records in life.batches():
        consumer.commit()
        life.die_here()
        for record in records:
            life.work(record)


def commit_each_record(life: Life) -> None:
    consumer = life.start()
    for records in life.batches():
        for record in records:
            life.work(record)
            life.die_here()
            consumer.commit({("in", record.partition): record.offset + 1})


def automatic(life: Life) -> None:
    life.start(auto=True)
    for records in life.batches():
        for number, record in enumerate(records):
            if number == HALF:
                life.die_here()
            life.work(record)


def automatic_ahead(life: Life) -> None:
    life.start(auto=True)
    handed_over: list[Record] = []
    for records in life.batches():
        life.die_here()  # the poll before this one has committed what nobody has worked on yet
        for record in handed_over:
            life.work(record)
        handed_over = records
    for record in handed_over:
        life.work(record)


def automatic_with_an_exception(life: Life) -> None:
    with life.start(auto=True):
        for records in life.batches():
            for number, record in enumerate(records):
                if number == HALF:
                    life.die_here()
                life.work(record)


def automatic_closed_early(life: Life) -> None:
    consumer = life.start(auto=True)
    try:
        for records in life.batches():
            for number, record in enumerate(records):
                if number == HALF:
                    life.die_here()
                life.work(record)
    finally:
        consumer.close()


def transaction(life: Life) -> None:
    consumer, producer = life.start(), life.begin()
    for records in life.batches():
        with left_open(life, producer) as txn:
            for record in records:
                producer.send("out", value=record.value)
            txn.send_offsets(consumer.position_offsets(), consumer.group_metadata())
            life.die_here()


def transaction_dead_after_commit(life: Life) -> None:
    consumer, producer = life.start(), life.begin()
    for records in life.batches():
        with producer.transaction() as txn:
            for record in records:
                producer.send("out", value=record.value)
            txn.send_offsets(consumer.position_offsets(), consumer.group_metadata())
        life.die_here()


def transaction_then_commit(life: Life) -> None:
    consumer, producer = life.start(), life.begin()
    for records in life.batches():
        with producer.transaction():
            for record in records:
                producer.send("out", value=record.value)
        life.die_here()
        consumer.commit()


def commit_then_transaction(life: Life) -> None:
    consumer, producer = life.start(), life.begin()
    for records in life.batches():
        with left_open(life, producer):
            for record in records:
                producer.send("out", value=record.value)
            consumer.commit()
            life.die_here()


class left_open:  # noqa: N801 (reads as what it does)
    """A transaction that a death leaves open; whoever takes the id next aborts it."""

    def __init__(self, life: Life, producer: Producer) -> None:
        self._life = life
        self._producer = producer
        self._block: Any = producer.transaction()

    def __enter__(self) -> Any:
        return self._block.__enter__()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        if kind is DeathError:
            return False
        return self._block.__exit__(kind, error, trace)


class Row(NamedTuple):
    order: str
    dies: str
    lost: str
    twice: str
    life: Callable[[Life], None]
    lost_values: list[bytes]
    twice_values: list[bytes]


NOTHING: list[bytes] = []
ROWS = [
    Row("process, then `commit()`", "between the two", "nothing", "the batch",
        process_then_commit, NOTHING, SECOND),
    Row("`commit()`, then process", "between the two", "the batch", "nothing",
        commit_then_process, SECOND, NOTHING),
    Row("process, then commit, record by record", "between the two", "nothing", "one record",
        commit_each_record, NOTHING, SECOND[:1]),
    Row("automatic commits, all of a poll processed before the next", "in the middle of a batch", "nothing",
        "what was processed since the last commit", automatic, NOTHING, SECOND[:HALF]),
    Row("automatic commits, records handed to somebody who is slower than the polls", "before that one is done",
        "what was polled and not processed", "nothing", automatic_ahead, VALUES[:BATCH], NOTHING),
    Row("automatic commits, an exception leaves the `with` block", "in the middle of a batch", "nothing",
        "what was processed since the last commit", automatic_with_an_exception, NOTHING, SECOND[:HALF]),
    Row("automatic commits, `close()` before a batch is processed", "in the middle of a batch",
        "the rest of the batch", "nothing", automatic_closed_early, SECOND[HALF:], NOTHING),
    Row("a transaction with `send_offsets`", "before it commits", "nothing", "nothing",
        transaction, NOTHING, NOTHING),
    Row("a transaction with `send_offsets`", "after it has committed", "nothing", "nothing",
        transaction_dead_after_commit, NOTHING, NOTHING),
    Row("a transaction, then `commit()`", "between the two", "nothing", "the batch",
        transaction_then_commit, NOTHING, SECOND),
    Row("`commit()` inside a transaction", "before the transaction commits", "the batch", "nothing",
        commit_then_transaction, SECOND, NOTHING),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.life.__name__)
def test_what_an_order_of_work_and_commit_loses_or_does_twice(tmp_path: Path, row: Row) -> None:
    """Method: the first life ends in its second batch, at the place that the row names; the second one, which does
    the same, goes on to the end."""
    clock = ManualClock()
    with oncelog.open(tmp_path, clock=clock) as log:
        log.create_topic("in")
        log.create_topic("out")
        fill(log, "in", VALUES)
        done: list[bytes] = []
        first = Life(log, clock, done, dies=True)
        with pytest.raises(DeathError):
            row.life(first)
        die(first.consumer)
        log._given.discard(first.consumer)
        clock.advance(45_000)
        row.life(Life(log, clock, done, dies=False))
        counts = Counter(done) + Counter(record.value for record in log.read("out"))
    assert [value for value in VALUES if not counts[value]] == row.lost_values
    assert [value for value in VALUES if counts[value] > 1] == row.twice_values


def test_the_table_of_guarantees_has_these_rows() -> None:
    lines = [f"| {row.order} | {row.dies} | {row.lost} | {row.twice} |" for row in ROWS]
    text = GUARANTEES.read_text()
    assert [line for line in lines if line not in text] == []
