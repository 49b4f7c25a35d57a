"""A data directory written by oncelog, with everything that a partition can hold.

As a program it writes the directory, says ``written`` and goes on appending until it is killed:
python -m interop.history DIRECTORY
"""

from __future__ import annotations

import base64
import itertools
import sys
from typing import TYPE_CHECKING, Final

import numpy as np

from oncelog.base.clock import now_ms
from oncelog.base.disk import Disk
from oncelog.log.log import LogOptions
from oncelog.partition.cleaner import clean
from oncelog.partition.data_directory import DataDirectory
from oncelog.partition.partition import Origin, Partition, PartitionOptions
from oncelog.segment.batch import Codec, ControlType, encode, encode_marker
from oncelog.segment.names import TopicPartition
from oncelog.segment.segment import SegmentOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SEED: Final = 20_261_116
SMALL: Final = LogOptions(segment=SegmentOptions(segment_bytes=4096, index_interval_bytes=512))
# topic: partitions
TOPICS: Final = {
    "codecs": 5,  # one for each codec: headers, nulls, empty and large values
    "transactions": 1,  # interleaved, over many segments, the last left open
    "ended": 1,  # all of them ended
    "long-open": 1,  # one transaction is open while many end
    "stamped": 1,  # LogAppendTime
    "shortened": 1,  # records deleted from the start
    "compacted": 1,  # cleaned twice: gaps, tombstones, delete horizons, batches without records
    "cut": 1,  # truncated, then continued under a later leader epoch
    "empty": 1,
}
GROWING: Final = TopicPartition("ended", 0)  # what is appended to until the process is killed


def options_of(key: TopicPartition) -> PartitionOptions:
    return PartitionOptions(
        log=SMALL,
        uses_log_append_time=key.topic == "stamped",
        is_compacted=key.topic == "compacted",
    )


def open_directory(path: Path) -> DataDirectory:
    return DataDirectory(path, Disk(), now_ms=now_ms, options_of=options_of)


class Writer:
    """Producers of one partition, each with its epoch and its next sequence number."""

    def __init__(self, partition: Partition, leader_epoch: int = 0) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self._epochs: dict[int, int] = {}
        self._sequences: dict[int, int] = {}

    def _append(self, data: object, origin: Origin = Origin.CLIENT) -> None:
        self.partition.append_as_leader(
            data,  # type: ignore[arg-type]
            leader_epoch=self.leader_epoch,
            now_ms=now_ms(),
            origin=origin,
        )

    def plain(self, values: list[bytes]) -> None:
        self._append(encode(values, timestamp_ms=now_ms()))

    def send(
        self,
        producer: int,
        values: Sequence[bytes | None],
        *,
        keys: list[bytes] | None = None,
        transactional: bool = True,
        compression: Codec = Codec.NONE,
    ) -> None:
        sequence = self._sequences.get(producer, 0)
        self._append(
            encode(
                values,
                keys=keys,
                compression=compression,
                producer_id=producer,
                producer_epoch=self._epochs.get(producer, 0),
                base_sequence=sequence,
                transactional=transactional,
                timestamp_ms=now_ms(),
                batch_size=1 << 20,
            )
        )
        self._sequences[producer] = sequence + len(values)

    def end(self, producer: int, kind: ControlType) -> None:
        """Commit or abort, and with it the next epoch, as transaction version 2 has it."""
        self._epochs[producer] = self._epochs.get(producer, 0) + 1
        self._sequences[producer] = 0
        marker = encode_marker(
            kind,
            producer_id=producer,
            producer_epoch=self._epochs[producer],
            coordinator_epoch=0,
            timestamp_ms=now_ms(),
        )
        self._append(marker, Origin.COORDINATOR)


def _values(name: str) -> Iterator[list[bytes]]:
    """Some records at a time, each with a value of its own."""
    rng = np.random.default_rng(SEED)
    for number in itertools.count():
        yield [
            b"%s %d.%d %s" % (name.encode(), number, index, base64.b64encode(rng.bytes(20)))
            for index in range(int(rng.integers(1, 6)))
        ]


def _codecs(directory: DataDirectory) -> None:
    keys = [b"key", None, b"", bytes(range(256)), "schlüssel".encode(), b"k"]
    values = [b"value", b"no key", b"empty key", None, b"", b"large " * 400]
    headers = [
        None,
        [],
        [("a", b"1")],
        [("a", b"1"), ("a", b"2"), ("ü", None), ("", b"")],
        [("null", None)],
        None,
    ]
    for codec in Codec:
        partition = directory.create(TopicPartition("codecs", int(codec)), _topic_id("codecs"))
        for repeat in range(12):
            data = encode(
                values,
                keys=keys,
                headers=headers,
                timestamps=[now_ms() - 1000 * index + repeat for index in range(len(values))],
                compression=codec,
            )
            partition.append_as_leader(data, leader_epoch=0, now_ms=now_ms())


def _transactions(writer: Writer, turns: int, *, leave_open: bool) -> None:
    """Three producers in transactions and one outside of them, in an order that a seed decides."""
    rng = np.random.default_rng(SEED + turns)
    values = _values("t")
    busy: set[int] = set()
    for _ in range(turns):
        producer = int(rng.integers(1, 5))
        if producer == 4:
            writer.send(4, next(values), transactional=False)
        elif producer in busy and rng.random() < 0.3:
            writer.end(producer, ControlType(int(rng.integers(0, 2))))
            busy.discard(producer)
        else:
            writer.send(producer, next(values))
            busy.add(producer)
        if rng.random() < 0.1:
            writer.plain(next(values))
    for producer in sorted(busy):
        if not (leave_open and producer == max(busy)):
            writer.end(producer, ControlType.ABORT)


def _long_open(writer: Writer) -> None:
    values = _values("l")
    writer.send(9, next(values))
    for turn in range(40):
        writer.send(1, next(values))
        writer.end(1, ControlType.ABORT if turn % 3 else ControlType.COMMIT)
    writer.end(9, ControlType.ABORT)
    writer.plain(next(values))


def _compacted(writer: Writer) -> None:
    """Few keys, many values: committed, aborted and outside of transactions; then two passes of the cleaner."""
    rng = np.random.default_rng(SEED)
    partition = writer.partition
    for turn in range(120):
        count = int(rng.integers(1, 5))
        keys = [b"key %d" % key for key in rng.integers(0, 25, count)]
        values = [None if rng.random() < 0.15 else b"%d %d" % (turn, at) for at in range(count)]
        producer = 1 + turn % 3
        writer.send(
            producer, values, keys=keys, transactional=producer < 3, compression=Codec(turn % 5)
        )
        if producer < 3 and rng.random() < 0.6:
            writer.end(producer, ControlType(int(rng.integers(0, 2))))
        if turn in (60, 100):
            clean(
                partition,
                first_dirty=0,
                end=partition.log_end_offset,
                delete_retention_ms=3_600_000,
                now_ms=now_ms(),
            )
    for producer in (1, 2):
        writer.end(producer, ControlType.COMMIT)


def _topic_id(topic: str) -> str:
    """An id of our own: 16 bytes in base64url."""
    return base64.urlsafe_b64encode(topic.encode().ljust(16, b".")[:16]).decode().rstrip("=")


def write(directory: DataDirectory) -> None:
    """All topics; every partition is open afterwards."""
    _codecs(directory)

    def writer(topic: str) -> Writer:
        return Writer(directory.create(TopicPartition(topic, 0), _topic_id(topic)))

    _transactions(writer("transactions"), 300, leave_open=True)
    _transactions(writer("ended"), 200, leave_open=False)
    _long_open(writer("long-open"))
    _transactions(writer("stamped"), 60, leave_open=False)
    shortened = writer("shortened")
    _transactions(shortened, 120, leave_open=False)
    shortened.partition.delete_records(shortened.partition.log_end_offset // 2)
    _compacted(writer("compacted"))
    cut = writer("cut")
    for values in itertools.islice(_values("c"), 60):
        cut.plain(values)
    cut.partition.truncate_to(cut.partition.log_end_offset * 2 // 3, now_ms())
    cut.leader_epoch = 1
    for values in itertools.islice(_values("d"), 10):
        cut.plain(values)
    writer("empty")


def main() -> None:
    from pathlib import Path

    directory = open_directory(Path(sys.argv[1]))
    write(directory)
    directory.checkpoint()
    print("written", flush=True)
    writer = Writer(directory.get(GROWING))
    for values in _values("endless"):
        writer.send(77, values)
        writer.end(77, ControlType.COMMIT)


if __name__ == "__main__":
    main()
