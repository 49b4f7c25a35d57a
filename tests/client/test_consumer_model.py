"""Random histories, read in random steps, against a model that keeps a list of what was written."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from oncelog.client.consumer import Consumer
from oncelog.segment.names import TopicPartition

from ..partition.logs import ABORT, COMMIT, NOW, Writer, options, read
from .local_broker import LocalBroker

if TYPE_CHECKING:
    from oncelog.partition.partition import Partition

ORDERS = TopicPartition("orders", 0)
PRODUCERS = 3
LEVELS = ("read_committed", "read_uncommitted")

writing = st.one_of(
    st.tuples(
        st.just("send"),
        st.integers(-1, PRODUCERS - 1),
        st.integers(1, 6),
        st.sampled_from(["none", "none", "lz4", "zstd"]),
    ),
    st.tuples(st.just("end"), st.integers(0, PRODUCERS - 1), st.booleans()),
    st.tuples(st.just("roll")),
    st.tuples(st.just("delete"), st.floats(0, 1)),
)
reading = st.one_of(
    st.tuples(st.just("poll"), st.sampled_from(LEVELS), st.integers(1, 9)),
    st.tuples(
        st.just("arrow"),
        st.sampled_from(LEVELS),
        st.one_of(st.none(), st.integers(1, 9)),
        st.booleans(),
    ),
    st.tuples(st.just("seek"), st.sampled_from(LEVELS), st.floats(0, 1)),
)
steps = st.lists(st.one_of(writing, writing, reading, reading), min_size=1, max_size=60)


@dataclass
class Model:
    """Every record with the transaction it belongs to; -1: none. Fates are known from their markers on."""

    records: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    fates: dict[int, bool] = field(default_factory=dict)
    open: dict[int, tuple[int, int]] = field(
        default_factory=dict
    )  # producer: transaction, first offset
    start: int = 0
    end: int = 0

    def bound(self, level: str) -> int:
        if level == "read_uncommitted" or not self.open:
            return self.end
        return max(min(first for _, first in self.open.values()), self.start)

    def seen(self, level: str) -> list[tuple[int, bytes]]:
        """All that a reader of a level may see now."""
        return [
            (offset, value)
            for offset, (value, transaction) in self.records.items()
            if self.start <= offset < self.bound(level)
            and (level == "read_uncommitted" or transaction < 0 or self.fates[transaction])
        ]


class Run:
    """One history, and a consumer of each level that follows it."""

    def __init__(self, path: str) -> None:
        self.broker = LocalBroker(path, options(segment_bytes=700))
        self.partition: Partition = self.broker.create("orders")
        self.writers = [Writer(self.partition, number) for number in range(PRODUCERS)]
        self.plain = Writer(self.partition)
        self.model = Model()
        self.transactions = 0
        self.consumers: dict[str, Consumer] = {}
        self.positions = dict.fromkeys(LEVELS, 0)
        for level in LEVELS:
            self.consumers[level] = Consumer(
                self.broker,
                isolation_level=level,
                auto_offset_reset="earliest",
                max_partition_fetch_bytes=400,
            )
            self.consumers[level].assign([ORDERS])

    def send(self, producer: int, count: int, compression: str) -> None:
        model, what = self.model, [f"{self.model.end}-{n}".encode() for n in range(count)]
        transaction = -1
        if producer >= 0:
            if producer not in model.open:
                model.open[producer] = self.transactions, model.end
                self.transactions += 1
            transaction = model.open[producer][0]
        writer = self.plain if producer < 0 else self.writers[producer]
        writer.send(what, transactional=producer >= 0, compression=compression)
        for value in what:
            model.records[model.end] = value, transaction
            model.end += 1

    def end(self, producer: int, committed: bool) -> None:
        self.writers[producer].end(COMMIT if committed else ABORT)
        if producer in self.model.open:
            self.model.fates[self.model.open.pop(producer)[0]] = committed
        self.model.end += 1

    def roll(self) -> None:
        self.partition.roll(NOW)

    def delete(self, share: float) -> None:
        self.model.start = max(self.model.start, int(share * self.model.end))
        self.partition.delete_records(self.model.start)

    def seek(self, level: str, share: float) -> None:
        offset = self.model.start + int(share * (self.model.end - self.model.start))
        self.consumers[level].seek(ORDERS, offset)
        self.positions[level] = offset

    def poll(self, level: str, count: int) -> None:
        found = [(record.offset, record.value) for record in self.consumers[level].poll(0, count)]
        self.check(level, count, found)

    def arrow(self, level: str, count: int | None, views: bool) -> None:
        batch = self.consumers[level].poll_arrow(0, views=views, max_records=count)
        batch.validate(full=True)
        found = list(zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True))
        # How many a chunk holds is its own business, but not whether it holds any.
        self.check(level, count if count and len(found) == count else max(len(found), 1), found)

    def check(self, level: str, count: int, found: list[tuple[int, Any]]) -> None:
        model = self.model
        start = max(self.positions[level], model.start)
        left = [item for item in model.seen(level) if item[0] >= start]
        assert found == left[:count]
        position = self.consumers[level].position(ORDERS)
        if found:
            start = found[-1][0] + 1
        limit = left[len(found)][0] if len(left) > len(found) else max(model.bound(level), start)
        assert start <= position <= limit
        if not found:
            assert position == limit, "a poll that returns nothing has passed all there was"
            assert self.consumers[level].lag(ORDERS) == 0
        self.positions[level] = position


@given(steps)
def test_any_history_in_any_steps_is_what_the_model_says(history: list[tuple[Any, ...]]) -> None:
    """Goal: nothing lost, repeated, aborted or undecided is ever returned, and positions end where they should.
    Method: writers and readers of both levels take turns at random; in the end everything is read once more by each
    way, and by the partition's own reader."""
    with tempfile.TemporaryDirectory() as path:
        run = Run(path)
        for name, *arguments in history:
            getattr(run, name)(*arguments)
        for level in LEVELS:
            expected = run.model.seen(level)
            run.seek(level, 0.0)
            while run.consumers[level].lag(ORDERS):
                run.poll(level, 4)
            run.seek(level, 0.0)
            while run.consumers[level].lag(ORDERS):
                run.arrow(level, None, False)
            isolation = run.consumers[level]._isolation
            assert read(run.partition, isolation) == expected
        run.broker.close()
