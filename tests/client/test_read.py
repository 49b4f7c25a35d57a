"""A read is lazy, cut to its range, and shows a read_committed reader nothing but what was committed.

Sections 8 and 16 of the checklist (kafka-cases), as far as they concern a reader of files.
"""

from __future__ import annotations

import gc
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oncelog
from oncelog.base.errors import CorruptRecordError, OffsetOutOfRangeError
from oncelog.partition.partition import Isolation
from oncelog.segment.batch import scan
from oncelog.segment.names import TopicPartition
from oncelog.segment.segment import next_offset_of

from ..golden_cases import GOLDEN, expected
from ..partition.logs import ABORT, COMMIT, TOPIC_ID, Writer, open_directory, options, read, values

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncelog.client.directory import LogDirectory
    from oncelog.partition.partition import Partition

MIXED = expected("txn-mixed")["partitions"]["mixed-0"]


@pytest.fixture(scope="module")
def mixed() -> Iterator[LogDirectory]:
    """Interleaved transactions over four segments, one of them left open."""
    with oncelog.open(GOLDEN / "txn-mixed" / "data", read_only=True) as log:
        yield log


def offsets(read: Any) -> list[int]:
    """By every door, which must agree."""
    by_record = [record.offset for record in read]
    by_table = pa.table(read)["offset"].to_pylist()
    by_batch = [offset for batch in read.to_batches() for offset in batch["offset"].to_pylist()]
    assert by_record == by_table == by_batch
    return by_record


def written(tmp_path: Path, segment_bytes: int = 1 << 20) -> Partition:
    directory = open_directory(tmp_path, options(segment_bytes=segment_bytes))
    return directory.create(TopicPartition("orders", 0), TOPIC_ID)


def read_back(tmp_path: Path, **rest: Any) -> list[bytes | None]:
    with oncelog.open(tmp_path, read_only=True) as log:
        return [record.value for record in log.read("orders", 0, **rest)]


# ---------------------------------------------------------------- ranges


@given(start=st.integers(-5, 830), length=st.integers(-3, 300), views=st.booleans())
def test_a_range_is_cut_to_its_offsets(
    mixed: LogDirectory, start: int, length: int, views: bool
) -> None:
    """Goal: start is included, end is not, also in the middle of a batch, a transaction or a gap; below and past the
    log there is nothing, and that is no error."""
    end = start + length
    for level, known in (
        ("read_committed", MIXED["readCommittedOffsets"]),
        ("read_uncommitted", [record["offset"] for record in MIXED["readUncommitted"]]),
    ):
        read = mixed.read("mixed", 0, start, end, isolation_level=level, views=views)
        assert offsets(read) == [offset for offset in known if start <= offset < end]


def test_every_single_offset_can_be_read(mixed: LogDirectory) -> None:
    """Goal: the reader starts in the middle of a batch, and of a transaction, as easily as at their beginning."""
    committed = set(MIXED["readCommittedOffsets"])
    for offset in range(823):
        found = [record.offset for record in mixed.read("mixed", 0, offset, offset + 1)]
        assert found == [offset] * (offset in committed)


def test_without_a_partition_all_are_read_one_after_another(mixed: LogDirectory) -> None:
    table = pa.table(mixed.read("side"))
    partitions = expected("txn-mixed")["partitions"]
    assert list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)) == [
        (number, offset)
        for number in (0, 1)
        for offset in partitions[f"side-{number}"]["readCommittedOffsets"]
    ]
    assert set(table["topic"].to_pylist()) == {"side"}


def test_readers_are_read_committed_unless_told_otherwise(mixed: LogDirectory) -> None:
    """Goal: the safe level is the default, unlike Kafka's; another word is refused."""
    assert offsets(mixed.read("mixed")) == MIXED["readCommittedOffsets"]
    assert len(offsets(mixed.read("mixed", isolation_level="read_uncommitted"))) > len(
        MIXED["readCommittedOffsets"]
    )
    for name in ("committed", "READ_COMMITTED", "log_end", ""):
        with pytest.raises(ValueError, match="'read_committed' or 'read_uncommitted'"):
            mixed.read("mixed", isolation_level=name)


# ---------------------------------------------------------------- lazy, again, Arrow


def test_nothing_is_read_before_it_is_asked_for(tmp_path: Path) -> None:
    """Goal: a read of a damaged log is made without an error, and its sound part is delivered first."""
    partition = written(tmp_path)
    writer = Writer(partition)
    for number in range(10):
        writer.send(values(3, f"{number}-"))
    partition.close()
    path = tmp_path / "orders-0" / "00000000000000000000.log"
    content = bytearray(path.read_bytes())
    content[5 * len(content) // 10 + 80] ^= (
        1  # ten batches of one size: in the records of the sixth
    )
    path.write_bytes(content)
    (tmp_path / ".kafka_cleanshutdown").write_text("{}")
    with oncelog.open(tmp_path, read_only=True) as log:
        read = log.read("orders", 0)
        iterator = iter(read)
        assert [next(iterator).offset for _ in range(15)] == list(range(15))
        with pytest.raises(CorruptRecordError) as caught:
            next(iterator)
        assert (caught.value.base_offset, caught.value.file) == (15, str(path))
        with pytest.raises((CorruptRecordError, pa.ArrowInvalid), match="checksum"):
            pa.table(read)


def test_a_read_gives_the_same_each_time_and_halfway_harms_nothing(mixed: LogDirectory) -> None:
    """Goal: an iterator or stream that was dropped halfway leaves nothing behind."""
    read = mixed.read("mixed")
    for _ in range(3):
        next(iter(read))
        next(read.to_batches())
        pa.RecordBatchReader.from_stream(read).read_next_batch()
    gc.collect()
    assert offsets(read) == MIXED["readCommittedOffsets"]
    assert repr(read) == "Read(mixed-0, read_committed)"


@pytest.mark.parametrize("views", [False, True])
def test_the_stream_has_the_promised_schema_also_when_it_is_empty(
    mixed: LogDirectory, views: bool
) -> None:
    data = pa.binary_view() if views else pa.binary()
    pair = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
    promised = pa.schema(
        [
            pa.field("topic", pa.dictionary(pa.int32(), pa.string()), nullable=False),
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", pa.timestamp("ms", "UTC"), nullable=False),
            pa.field("timestamp_type", pa.int8(), nullable=False),
            pa.field("key", data),
            pa.field("value", data),
            pa.field("headers", pa.list_(pa.field("item", pair, nullable=False)), nullable=False),
        ]
    )
    for start in (0, 10**6):
        read = mixed.read("mixed", 0, start, views=views)
        table = pa.table(read)
        assert read.schema == table.schema == promised
        assert table.num_rows == (len(MIXED["readCommittedOffsets"]) if not start else 0)
        assert pa.RecordBatchReader.from_stream(read).schema == promised


def test_views_outlive_everything_they_were_read_from(tmp_path: Path) -> None:
    """Goal: a table over mapped files stays whole when the directory is closed and its files are removed."""
    partition = written(tmp_path, segment_bytes=2000)
    writer = Writer(partition)
    sent = [values(4, f"{number}-", size=100) for number in range(20)]
    for each in sent:
        writer.send(each)
    partition.close()
    log = oncelog.open(tmp_path, read_only=True)
    table = pa.table(log.read("orders", views=True))
    log.close()
    del log
    for path in (tmp_path / "orders-0").iterdir():
        path.unlink()
    gc.collect()
    table.validate(full=True)
    assert table["value"].to_pylist() == [value for each in sent for value in each]


# ---------------------------------------------------------------- transactions


def test_an_abort_in_a_later_segment_is_known_to_readers_of_the_earlier(tmp_path: Path) -> None:
    """Goal: the marker, and so the index entry, lies segments after the records that it hides.
    Method: one transaction over many segments, committed ones between; read from every offset."""
    partition = written(tmp_path, segment_bytes=500)
    doomed, kept = Writer(partition, 1), Writer(partition, 2)
    expected_values = []
    for number in range(8):
        doomed.send(values(2, f"doomed{number}", size=80), transactional=True)
        sent = values(1, f"kept{number}", size=80)
        kept.send(sent, transactional=True)
        kept.end(COMMIT)
        expected_values += sent
    doomed.end(ABORT)
    end = partition.log_end_offset
    assert len(partition.log.segments) > 5
    indexed = [segment.base_offset for segment in partition.log.segments if len(segment.txn_index)]
    assert len(indexed) == 1
    partition.close()
    assert read_back(tmp_path) == expected_values
    for start in range(end):
        assert read_back(tmp_path, start=start) == expected_values[(start + 1) // 4 :]


def test_an_open_transaction_ends_the_reading_until_it_is_decided(tmp_path: Path) -> None:
    """Goal: nothing at or above the last stable offset, committed or plain; all of it once the marker is there."""
    partition = written(tmp_path)
    slow, quick, plain = Writer(partition, 1), Writer(partition, 2), Writer(partition)
    plain.send([b"before"])
    slow.send([b"slow"], transactional=True)
    quick.send([b"quick"], transactional=True)
    quick.end(COMMIT)
    plain.send([b"after"])
    assert read_back(tmp_path) == [b"before"]
    assert read_back(tmp_path, isolation_level="read_uncommitted") == [
        b"before",
        b"slow",
        b"quick",
        b"after",
    ]
    slow.end(ABORT)
    assert read_back(tmp_path) == [b"before", b"quick", b"after"]


def test_control_records_are_never_records(tmp_path: Path) -> None:
    """Goal: at neither level; a log of markers alone is empty, and reading it ends."""
    partition = written(tmp_path)
    for producer_id in range(3):
        Writer(partition, producer_id).end(ABORT if producer_id else COMMIT)
    assert partition.log_end_offset == partition.last_stable_offset == 3
    for level in ("read_committed", "read_uncommitted"):
        assert read_back(tmp_path, isolation_level=level) == []


@pytest.mark.parametrize("bumps_epoch", [True, False], ids=["version 2", "version 1"])
def test_one_producer_aborts_and_commits_in_turn(tmp_path: Path, bumps_epoch: bool) -> None:
    """Goal: an aborted range ends with its marker, and what the producer commits after it is seen."""
    partition = written(tmp_path, segment_bytes=600)
    writer = Writer(partition, 1)
    expected_values: list[bytes] = []
    for number in range(20):
        sent = values(2, f"{number}-", size=40)
        writer.send(sent, transactional=True, bumps_epoch=bumps_epoch)
        writer.end(ABORT if number % 3 == 0 else COMMIT, bumps_epoch=bumps_epoch)
        expected_values += [] if number % 3 == 0 else sent
    assert read_back(tmp_path) == expected_values
    partition.close()
    assert read_back(tmp_path) == expected_values


def test_readers_beside_a_writer_never_see_what_is_undecided_or_aborted(tmp_path: Path) -> None:
    """Goal: while transactions are begun, committed and aborted and segments roll, every read at read_committed is a
    prefix of what will have been committed, and never shorter than one that began before it.
    Method: one thread writes interleaved transactions, three others read all the time; values say their fate."""
    partition = written(tmp_path, segment_bytes=4000)
    one, two = Writer(partition, 1), Writer(partition, 2)
    fates = [random.Random(3).random() < 0.5 for _ in range(200)]
    is_done = threading.Event()

    def follow() -> list[int]:
        seen: list[int] = []
        while True:
            is_last = is_done.is_set()
            found = [(offset, value) for offset, value in read(partition) if value is not None]
            assert not [value for _, value in found if value.startswith(b"doomed")]
            offsets_found = [offset for offset, _ in found]
            assert offsets_found[: len(seen)] == seen
            seen = offsets_found
            if is_last:
                return seen

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(follow) for _ in range(3)]
        try:
            for number, is_doomed in enumerate(fates):
                writer, other = (one, two) if number % 3 else (two, one)
                name = "doomed" if is_doomed else "kept"
                writer.send(values(2, f"{name}{number}-", size=30), transactional=True)
                if number % 5 == 0:
                    other.send(values(1, f"kept{number}-"), transactional=True)
                writer.send(values(1, f"{name}{number}-"), transactional=True)
                writer.end(ABORT if is_doomed else COMMIT)
                if number % 5 == 0:
                    other.end(COMMIT)
        finally:
            is_done.set()
        results = [reader.result() for reader in readers]
    assert len(partition.log.segments) > 5
    kept = 3 * fates.count(False) + 40
    assert [len(found) for found in results] == [kept] * 3
    assert results[0] == results[1] == results[2]


# ---------------------------------------------------------------- limits of a reader


def test_what_retention_left_of_an_aborted_transaction_stays_hidden(tmp_path: Path) -> None:
    """Limit: the beginning of a transaction was removed with its segments.
    The entry in the marker's segment still names it, so the rest is hidden; what was removed is gone for all."""
    directory = open_directory(tmp_path, options(segment_bytes=400))
    partition = directory.create(TopicPartition("orders", 0), TOPIC_ID)
    doomed, kept = Writer(partition, 1), Writer(partition)
    for number in range(6):
        doomed.send(values(1, f"doomed{number}", size=120), transactional=True)
        kept.send(values(1, f"kept{number}", size=120))
    doomed.end(ABORT)
    partition.delete_records(5)
    assert partition.log.start_offset > 0
    directory.close()
    with oncelog.open(tmp_path, read_only=True) as log:
        found = [record.value for record in log.read("orders")]
    assert [value.rstrip(b".") for value in found if value is not None] == [
        b"kept20",
        b"kept30",
        b"kept40",
        b"kept50",
    ]


def test_what_retention_left_of_a_committed_transaction_is_shown(tmp_path: Path) -> None:
    """Limit: a reader gets the part of a committed transaction that is still there: atomic is the commit, not the
    retention."""
    directory = open_directory(tmp_path, options(segment_bytes=400))
    partition = directory.create(TopicPartition("orders", 0), TOPIC_ID)
    writer = Writer(partition, 1)
    for number in range(6):
        writer.send(values(1, f"part{number}-", size=120), transactional=True)
    writer.end(COMMIT)
    partition.delete_records(3)
    directory.close()
    assert [value.rstrip(b".") for value in read_back(tmp_path) if value is not None] == [
        b"part3-0",
        b"part4-0",
        b"part5-0",
    ]


def test_a_reader_that_starts_inside_a_transaction_gets_its_rest(tmp_path: Path) -> None:
    """Limit: offsets are all it knows: from the middle of a committed transaction it gets the second half, of an
    aborted one nothing."""
    partition = written(tmp_path)
    writer = Writer(partition, 1)
    for kind in (COMMIT, ABORT):
        for number in range(4):
            writer.send([b"%d" % number], transactional=True)
        writer.end(kind)
    assert read_back(tmp_path, start=2) == [b"2", b"3"]
    assert read_back(tmp_path, start=7) == []


def test_a_reader_of_some_partitions_sees_some_of_a_transaction(tmp_path: Path) -> None:
    """Limit: each partition is decided by its own marker. Where one has it and another not yet, a reader sees the
    one and waits at the other."""
    directory = open_directory(tmp_path)
    both = [directory.create(TopicPartition("orders", number), TOPIC_ID) for number in (0, 1)]
    writers = [Writer(partition, 1) for partition in both]
    for writer in writers:
        writer.send([b"in both"], transactional=True)
    writers[0].end(COMMIT)
    with oncelog.open(tmp_path, read_only=True) as log:
        assert [(record.partition, record.value) for record in log.read("orders")] == [
            (0, b"in both")
        ]
        assert log.partition("orders", 1).last_stable_offset == 0


# ---------------------------------------------------------------- fetch


def test_a_fetch_below_or_past_the_log_is_out_of_range(mixed: LogDirectory) -> None:
    partition = mixed.partition("mixed", 0)
    for offset in (-1, 824, 10**9):
        with pytest.raises(OffsetOutOfRangeError, match="0 to 823"):
            partition.fetch(offset, 1000, Isolation.READ_UNCOMMITTED)
    assert len(partition.fetch(823, 1000, Isolation.READ_UNCOMMITTED).records) == 0


def test_a_fetch_at_or_above_the_stable_offset_gets_nothing_and_an_empty_list(
    mixed: LogDirectory,
) -> None:
    partition = mixed.partition("mixed", 0)
    for offset in (704, 750, 823):
        found = partition.fetch(offset, 10**6, Isolation.READ_COMMITTED)
        assert len(found.records) == 0
        assert found.aborted is not None
        assert len(found.aborted) == 0
    assert len(partition.fetch(704, 10**6, Isolation.READ_UNCOMMITTED).records) > 0


def test_a_fetch_smaller_than_the_first_batch_returns_it_whole_or_nothing(
    mixed: LogDirectory,
) -> None:
    """Goal: with at least one, a reader always gets on; without, the size is a limit."""
    partition = mixed.partition("mixed", 0)
    for level in (Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED):
        for size in (0, 1, 333):
            assert len(partition.fetch(0, size, level).records) == 334
            assert len(partition.fetch(0, size, level, at_least_one=False).records) == 0
        assert len(partition.fetch(0, 334, level, at_least_one=False).records) == 334


def test_walking_by_fetches_of_any_size_visits_every_batch_once(mixed: LogDirectory) -> None:
    """Goal: position after a fetch is the end of its last batch, over segments, markers and aborted ranges."""
    partition = mixed.partition("mixed", 0)
    sizes = {}
    for bytes_max in (1, 700, 5000, 10**6):
        offset, count = 0, 0
        while offset < 704:
            rows = scan(partition.fetch(offset, bytes_max, Isolation.READ_COMMITTED).records)
            assert int(rows["base_offset"][0]) == offset
            offset, count = next_offset_of(rows), count + len(rows)
        assert offset == 704
        sizes[bytes_max] = count
    assert len(set(sizes.values())) == 1
