"""What a leader takes, what it refuses, and what it changes (LogValidator, UnifiedLog: append as leader)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from oncelog._native.batch import Encoder
from oncelog.base.errors import (
    CorruptRecordError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTxnStateError,
    OncelogError,
    OutOfOrderSequenceError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
    TransactionCoordinatorFencedError,
)
from oncelog.partition.partition import Origin
from oncelog.segment.batch import Codec, encode, records, restamp, rewrite, scan
from tests.partition.logs import (
    ABORT,
    COMMIT,
    NOW,
    UNCOMMITTED,
    Writer,
    open_partition,
    options,
    read,
    values,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncelog.partition.partition import Partition


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[Partition]:
    directory, opened = open_partition(tmp_path)
    yield opened
    directory.close()


def append(partition: Partition, data: object, origin: Origin = Origin.CLIENT) -> None:
    partition.append_as_leader(data, leader_epoch=0, now_ms=NOW, origin=origin)  # type: ignore[arg-type]


def refused(partition: Partition, data: object, error: type[OncelogError], match: str) -> None:
    """The batch is refused, and the log is as before."""
    before = partition.log_end_offset, read(partition, UNCOMMITTED)
    with pytest.raises(error, match=match):
        append(partition, data)
    assert (partition.log_end_offset, read(partition, UNCOMMITTED)) == before


def test_the_leader_assigns_offsets_and_its_epoch_without_touching_the_checksum(
    partition: Partition,
) -> None:
    writer = Writer(partition)
    writer.send(values(3))
    batch = writer.batch(values(2), base_offset=77)
    crc = int(scan(batch)["crc"][0])
    done = partition.append_as_leader(batch, leader_epoch=5, now_ms=NOW)
    assert (done.base_offset, done.last_offset) == (3, 4)
    row = [row for rows in partition.log.active.rows(check_crc=True) for row in rows][-1]
    assert (int(row["base_offset"]), int(row["partition_leader_epoch"])) == (3, 5)
    assert (int(row["crc"]), int(row["crc_ok"])) == (crc, 1)
    assert list(partition.epochs.entries) == [(0, 0), (5, 3)]


def test_nothing_to_append_is_refused(partition: Partition) -> None:
    refused(partition, bytearray(), InvalidRecordError, "no batch")


def test_a_second_batch_of_a_client_is_refused(partition: Partition) -> None:
    two = bytearray(memoryview(encode([b"a"]))) + memoryview(encode([b"b"]))
    refused(partition, two, InvalidRecordError, "one batch at a time")
    append(partition, bytearray(two), Origin.COORDINATOR)
    assert partition.log_end_offset == 2


def test_a_batch_whose_count_differs_from_its_offsets_is_refused(partition: Partition) -> None:
    """Compaction may leave such batches in a log, a client may not bring them."""
    encoder = Encoder(one_batch=True, last_offset_delta=4)
    encoder.add(None, [b"a", b"b"], offsets=np.array([0, 4]))
    refused(partition, encoder.finish(), InvalidRecordError, "2 records for 5 offsets")


def test_an_empty_batch_is_refused(partition: Partition) -> None:
    header = scan(encode([b"a"]))[0]
    refused(partition, rewrite(header, None), InvalidRecordError, "0 records")


def test_control_records_of_a_client_are_refused_and_a_coordinators_are_taken(
    partition: Partition,
) -> None:
    writer = Writer(partition, 4)
    from oncelog.segment.batch import encode_marker

    marker = encode_marker(
        COMMIT, producer_id=4, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW
    )
    refused(partition, marker, InvalidRecordError, "control")
    writer.end(COMMIT)
    assert partition.log_end_offset == 1
    assert read(partition, UNCOMMITTED) == []


@pytest.mark.parametrize("position", [21, 30, 61, 70])
def test_a_flipped_bit_under_the_checksum_is_refused(partition: Partition, position: int) -> None:
    damaged = bytearray(memoryview(encode(values(3))))
    damaged[position] ^= 1
    refused(partition, damaged, CorruptRecordError, "checksum")


def test_a_producer_without_a_sequence_is_refused(partition: Partition) -> None:
    batch = encode([b"a"], producer_id=3, producer_epoch=0, base_sequence=-1)
    refused(partition, batch, InvalidRecordError, "sequence")


def test_a_transaction_without_a_producer_is_refused(partition: Partition) -> None:
    refused(partition, encode([b"a"], transactional=True), InvalidRecordError, "producer id")


def test_null_keys_in_a_compacted_topic_are_refused_with_the_index_of_each(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path, options(is_compacted=True))
    batch = encode(values(5), keys=[b"a", None, b"c", None, None], timestamp_ms=NOW)
    with pytest.raises(InvalidRecordError, match="without a key") as caught:
        append(partition, batch)
    assert caught.value.records == (1, 3, 4)
    assert caught.value.record == 1
    assert partition.log_end_offset == 0
    append(partition, encode(values(1), keys=[None], timestamp_ms=NOW), Origin.COORDINATOR)
    directory.close()


def test_null_keys_and_timestamps_of_one_batch_are_listed_together(tmp_path: Path) -> None:
    directory, partition = open_partition(
        tmp_path, options(is_compacted=True, timestamp_before_max_ms=1000)
    )
    stamps = [NOW, NOW - 5000, NOW, NOW + 3600_001, -1]
    batch = encode(values(5), keys=[None, b"b", b"c", b"d", b"e"], timestamps=stamps)
    with pytest.raises(InvalidTimestampError, match="without a key") as caught:
        append(partition, batch)
    assert caught.value.records == (0, 1, 3), "a record without a timestamp is not judged by it"
    directory.close()


@pytest.mark.parametrize("codec", list(Codec))
def test_timestamps_outside_the_limits_are_refused_and_those_at_them_taken(
    tmp_path: Path, codec: Codec
) -> None:
    directory, partition = open_partition(
        tmp_path, options(timestamp_before_max_ms=1000, timestamp_after_max_ms=2000)
    )
    append(partition, encode(values(2), timestamps=[NOW - 1000, NOW + 2000], compression=codec))
    for stamp in (NOW - 1001, NOW + 2001):
        with pytest.raises(InvalidTimestampError) as caught:
            append(partition, encode(values(2), timestamps=[NOW, stamp], compression=codec))
        assert caught.value.records == (1,)
    append(partition, encode(values(1), timestamp_ms=-1, compression=codec))
    assert partition.log_end_offset == 3
    directory.close()


def test_log_append_time_overrides_the_clients_stamp(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path, options(uses_log_append_time=True))
    writer = Writer(partition, 1)
    done = writer.send(values(2), timestamps=[5, 2**60])
    assert done.log_append_time_ms == NOW
    view = partition.log.active.view()
    assert [(record.timestamp, record.timestamp_type) for record in records(view)] == [(NOW, 1)] * 2
    assert int(scan(view)["crc_ok"][0]) == 1
    again = Writer(partition, 1, now_ms=NOW + 9).send(values(2), timestamps=[5, 2**60])
    assert again.is_duplicate
    assert again.log_append_time_ms == NOW, "a repeated batch is answered with its first stamp"
    directory.close()


def test_another_codec_is_recompressed_and_the_same_is_kept(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path, options(compression=Codec.ZSTD))
    kept = encode(values(50), compression="zstd", compression_level=19, timestamp_ms=NOW)
    size = len(kept)
    append(partition, kept)
    assert partition.log.active.size == size
    other = Writer(partition, 6).batch(
        values(50, "w"), compression="gzip", headers=[[("h", b"1")]] * 50
    )
    append(partition, other)
    rows = scan(partition.log.active.view())
    assert [int(row["attributes"]) & 7 for row in rows] == [Codec.ZSTD, Codec.ZSTD]
    assert int(rows["producer_id"][1]) == 6
    found = list(records(partition.log.active.view(), rows[1:]))
    assert [record.value for record in found] == values(50, "w")
    assert {record.timestamp for record in found} == {NOW}
    assert {record.headers for record in found} == {(("h", b"1"),)}
    directory.close()


def test_a_batch_is_refused_by_its_size_at_the_leader_alone(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path, options(max_message_bytes=200))
    fits = encode([b"x" * (200 - 61 - 9)])
    assert len(fits) == 200
    append(partition, fits)
    large = encode([b"x" * (200 - 61 - 8)])
    refused(partition, large, RecordTooLargeError, "201 bytes")
    restamp(large, base_offset=1, partition_leader_epoch=0)
    assert partition.append_as_follower(large, now_ms=NOW) == 2
    directory.close()


def test_a_set_larger_than_a_segment_is_refused_and_one_that_fills_it_is_taken(
    tmp_path: Path,
) -> None:
    exact = encode([b"x" * 300])
    directory, partition = open_partition(tmp_path, options(segment_bytes=len(exact)))
    append(partition, exact)
    append(partition, encode([b"x" * 300]))
    assert [segment.size for segment in partition.log.segments] == [len(exact)] * 2
    refused(partition, encode([b"x" * 301]), RecordBatchTooLargeError, "segment.bytes")
    directory.close()


# ---------------------------------------------------------------- producers


def test_the_last_five_batches_are_known_again_and_older_ones_are_out_of_order(
    partition: Partition,
) -> None:
    writer = Writer(partition, 1)
    sent = [writer.send(values(2, f"b{at}.")) for at in range(7)]
    for at in range(2, 7):
        again = Writer(partition, 1, sequence=2 * at).send(values(2, f"b{at}."))
        assert again == sent[at]._replace(is_duplicate=True)
    with pytest.raises(OutOfOrderSequenceError):
        Writer(partition, 1, sequence=2).send(values(2))
    with pytest.raises(OutOfOrderSequenceError):
        Writer(partition, 1, sequence=15).send(values(2))
    assert partition.log_end_offset == 14


def test_sequences_wrap_at_the_right_place_only(partition: Partition) -> None:
    writer = Writer(partition, 1, sequence=2**31 - 3)
    writer.send(values(3), bumps_epoch=False)  # takes 2^31-3 to 2^31-1
    assert writer.sequence == 0
    with pytest.raises(OutOfOrderSequenceError):
        Writer(partition, 1, sequence=1).send(values(1))
    writer.send(values(2))
    again = Writer(partition, 1, sequence=2**31 - 3).send(values(3))
    assert again.is_duplicate


def test_an_unknown_transactional_producer_starts_at_zero_where_epochs_are_bumped(
    partition: Partition,
) -> None:
    with pytest.raises(OutOfOrderSequenceError):
        Writer(partition, 1, sequence=4).send(values(1), transactional=True)
    Writer(partition, 1, sequence=4).send(values(1), transactional=True, bumps_epoch=False)


def test_a_new_epoch_starts_at_zero_and_the_old_one_is_fenced(partition: Partition) -> None:
    Writer(partition, 1, epoch=3).send(values(2))
    with pytest.raises(OutOfOrderSequenceError):
        Writer(partition, 1, epoch=4, sequence=2).send(values(1))
    Writer(partition, 1, epoch=4).send(values(1))
    with pytest.raises(InvalidProducerEpochError, match="epoch 4 is known"):
        Writer(partition, 1, epoch=3, sequence=2).send(values(1))


def test_a_marker_with_a_higher_epoch_bumps_it_for_the_data_that_follows(
    partition: Partition,
) -> None:
    writer = Writer(partition, 1)
    writer.send(values(2), transactional=True)
    writer.end(COMMIT)
    with pytest.raises(InvalidProducerEpochError):
        Writer(partition, 1, epoch=0, sequence=2).send(values(1), transactional=True)
    with pytest.raises(OutOfOrderSequenceError):
        Writer(partition, 1, epoch=1, sequence=2).send(values(1), transactional=True)
    assert writer.send(values(1), transactional=True).base_offset == 3


def test_markers_are_judged_by_the_transaction_version(partition: Partition) -> None:
    """Version 2: the marker's epoch is above the data's; its repetition, with nothing open, is harmless. Version 1:
    the same epoch is right."""
    writer = Writer(partition, 1, epoch=5)
    writer.send(values(1), transactional=True)
    with pytest.raises(InvalidProducerEpochError):
        Writer(partition, 1, epoch=3).end(ABORT)  # epoch 4
    with pytest.raises(InvalidProducerEpochError):
        Writer(partition, 1, epoch=4).end(ABORT)  # epoch 5, and a transaction is open
    writer.end(ABORT)
    Writer(partition, 1, epoch=5).end(ABORT)  # the same again
    old = Writer(partition, 2, epoch=5)
    old.send(values(1), transactional=True)
    old.end(COMMIT, bumps_epoch=False)
    old.send(values(1), transactional=True)
    assert partition.last_stable_offset == partition.log_end_offset - 1


def test_a_coordinator_that_was_replaced_is_fenced_also_after_reopening(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path)
    writer = Writer(partition, 1)
    writer.send(values(1), transactional=True)
    writer.end(COMMIT, coordinator_epoch=7)
    for _ in range(2):
        with pytest.raises(TransactionCoordinatorFencedError):
            writer.end(COMMIT, coordinator_epoch=6)  # an empty transaction as well
        directory.close()
        directory, partition = open_partition(tmp_path)
        writer = writer.on(partition)
    directory.close()


def test_a_batch_outside_the_open_transaction_is_refused(partition: Partition) -> None:
    writer = Writer(partition, 1)
    plain = writer.send(values(1, "plain"))
    writer.send(values(1), transactional=True)
    with pytest.raises(InvalidTxnStateError):
        writer.send(values(1))
    again = Writer(partition, 1).send(values(1, "plain"))
    assert again == plain._replace(is_duplicate=True), "a repetition is no write"


def test_a_coordinators_data_is_fenced_but_its_sequence_is_not_judged(partition: Partition) -> None:
    """As for offsets that are committed in a transaction."""
    writer = Writer(partition, 1, epoch=2)
    for sequence in (0, 0, 9):
        writer.sequence = sequence
        writer.send(values(1), transactional=True, origin=Origin.COORDINATOR)
    with pytest.raises(InvalidProducerEpochError):
        Writer(partition, 1, epoch=1).send(values(1), transactional=True, origin=Origin.COORDINATOR)
    assert partition.log_end_offset == 3


def test_a_marker_for_an_unknown_producer_is_taken_and_leaves_the_stable_offset(
    partition: Partition,
) -> None:
    Writer(partition, 99).end(ABORT)
    assert partition.last_stable_offset == partition.log_end_offset == 1
    assert len(partition.aborted_transactions(0, 1)) == 0, "no data, no entry"


def test_silent_producers_expire_but_not_with_an_open_transaction(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path, options(producer_id_expiration_ms=1000))
    Writer(partition, 1).send(values(1))
    Writer(partition, 2).send(values(1), transactional=True)
    Writer(partition, 3, now_ms=NOW + 1).send(values(1))
    assert partition.expire_producers(NOW + 1000) == [1]
    Writer(partition, 1, sequence=5).send(values(1)), "what is forgotten is not judged"
    directory.close()
    directory, partition = open_partition(
        tmp_path, options(producer_id_expiration_ms=1000), now_ms=NOW + 5000
    )
    assert [int(row["producer_id"]) for row in partition.need_state().table.snapshot()] == [2]
    directory.close()


def test_an_interrupt_after_the_write_leaves_log_and_producers_agreed(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: control-C between the write and what follows from it repeats no offset and forgets no producer.
    Method: interrupt the replay of a batch that is in the log already."""
    writer = Writer(partition, 1)
    writer.send(values(2), transactional=True)

    def interrupt(rows: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(partition.producers, "add", interrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.send(values(3), transactional=True)
    monkeypatch.undo()
    assert partition.log_end_offset == 5
    again = writer.send(values(3), transactional=True)
    assert (again.base_offset, again.is_duplicate) == (2, True)
    assert partition.last_stable_offset == 0
