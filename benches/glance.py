"""What a stranger asks first: how many records per second, and what a durable commit costs.

The rows of the README's picture and of the first charts of the report; a row whose case was not measured is left out.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final, NamedTuple

from .document import OURS

if TYPE_CHECKING:
    from .document import Document, Side

NANOSECONDS: Final = ("ns/record", "ns/call")


KAFKA: Final = "kafka."  # what cases of make bench-kafka begin with
WIDER: Final = "Kafka is a real broker on the same machine, as its own tools measure it, in a run of make bench-kafka."


class Row(NamedTuple):
    """A bar to be: a contestant of a case (ours for None), and what it is called here."""

    case: str
    contestant: str | None
    label: str


class Bar(NamedTuple):
    label: str
    value: float
    role: str


@dataclasses.dataclass(frozen=True)
class Panel:
    """Bars that can be compared, with what was measured."""

    title: str
    unit: str  # of the axis
    more_is_better: bool
    caption: str
    rows: tuple[Row, ...]

    def value(self, nanoseconds: float) -> float:
        """Millions a second, or microseconds."""
        return 1e3 / nanoseconds if self.more_is_better else nanoseconds / 1e3

    def is_wider(self, document: Document) -> bool:
        """Whether it has rows that come from the other suite."""
        return any(document.line(row.case) for row in self.rows if row.case.startswith(KAFKA))

    def told(self, document: Document) -> str:
        """The caption, with where such rows come from."""
        return f"{self.caption} {WIDER}" if self.is_wider(document) else self.caption

    def bars(self, document: Document) -> list[Bar]:
        made = []
        for row in self.rows:
            line = document.line(row.case)
            side: Side | None = None if line is None else line.side(row.contestant)
            if line is None or side is None or not side.value or line.unit not in NANOSECONDS:
                continue
            made.append(
                Bar(row.label.replace("{}", side.version), self.value(side.value), side.role)
            )
        return made


MILLIONS: Final = "million records per second"
MOCK: Final = "confluent-kafka {} (mock)"

PANELS: Final = (
    Panel(
        "Write from Python",
        MILLIONS,
        True,
        "Records of 100 B into a log on disk: send() of one bytes object after another, or send_arrow() of a column, "
        "then flush(). The others talk to librdkafka's mock broker in the same process, which keeps batches in memory. "
        "The limit is one write() of all values to a file.",
        (
            Row("send.arrow.100B", "write()", "limit: write() of the values"),
            Row("send.arrow.100B", None, "oncelog, Arrow"),
            Row("send.python.100B", None, "oncelog, Python objects"),
            Row("send.python.100B", "confluent-kafka", MOCK),
            Row("send.python.100B", "aiokafka", "aiokafka {} (mock)"),
            Row("kafka.perf.produce", "Kafka", "Kafka {}, its perf tool"),
        ),
    ),
    Panel(
        "Read into Python",
        MILLIONS,
        True,
        "Such records back at read_committed, every checksum proven: poll_arrow() as columns or views, poll() as "
        "Python objects. The others' clients have fetched ahead before the clock starts. The limit is a memcpy of all "
        "values.",
        (
            Row("poll.arrow.100B", "memcpy", "limit: memcpy of the values"),
            Row("poll.views.100B", None, "oncelog, Arrow views"),
            Row("poll.arrow.100B", None, "oncelog, Arrow"),
            Row("poll.records.100B", None, "oncelog, Python objects"),
            Row("poll.records.100B", "confluent-kafka", MOCK),
            Row("poll.records.100B", "aiokafka", "aiokafka {} (mock)"),
            Row("kafka.perf.consume", "Kafka", "Kafka {}, its perf tool"),
        ),
    ),
    Panel(
        "Through Spark",
        MILLIONS,
        True,
        "Records of 100 B in four partitions, local[2]. Source: a tenth aborted, read_committed, to the sum of all "
        "lengths. Sink: committed exactly once. The limits are a Python source with ready-made batches and a Python "
        "sink that only counts.",
        (
            Row("spark.read.100B", "ready-made batches", "limit: ready-made batches"),
            Row("spark.read.100B", None, "oncelog source"),
            Row("kafka.spark.read", "Kafka", "Spark's Kafka source"),
            Row("spark.sink.100B", "a writer that counts", "limit: a sink that counts"),
            Row("spark.sink.100B", None, "oncelog sink, exactly once"),
            Row("kafka.spark.sink", "Kafka", "Spark's Kafka sink"),
        ),
    ),
    Panel(
        "What a commit costs",
        "microseconds",
        False,
        "A transaction: begin, send one record, commit. os: survives the death of the process. fsync: survives the "
        "loss of power; data and decision are two waits for the device, which threads share. One record: acknowledged "
        "without a transaction, as LMDB, SQLite and RocksDB commit one row, with the same durability.",
        (
            Row("ack.fsync.1", "write() and fdatasync()", "limit: a synced write"),
            Row("commit.os.one", None, "transaction, os"),
            Row("commit.fsync.threads", None, "transaction, fsync, 16 threads"),
            Row("commit.fsync.one", None, "transaction, fsync"),
            Row("kafka.transactions", "Kafka", "transaction, Kafka {}, no fsync"),
            Row("ack.fsync.1", None, "one record, fsync"),
            Row("ack.fsync.1", "LMDB", "LMDB {}, synced"),
            Row("ack.fsync.1", "SQLite", "SQLite {}, synced"),
            Row("ack.fsync.1", "RocksDB", "RocksDB {}, synced"),
        ),
    ),
)


def panels(document: Document) -> list[tuple[Panel, list[Bar]]]:
    """Those that have something of ours to show."""
    found = ((panel, panel.bars(document)) for panel in PANELS)
    return [(panel, bars) for panel, bars in found if any(bar.role == OURS for bar in bars)]
