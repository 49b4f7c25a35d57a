"""Every batch and every record that a real broker wrote is read as Kafka reads it, and written back
as Kafka wrote it."""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np
import pytest

from oncelog.base.errors import BatchError, CorruptRecordError, TruncatedBatchError
from oncelog.segment import batch
from oncelog.segment.batch import Attributes, Codec, ControlType

from ..golden_cases import (
    CASES,
    GOLDEN,
    LOGS,
    PARTITIONS,
    GoldenLog,
    GoldenPartition,
    expected,
    expected_seen,
    seen,
)
from . import oracle
from .readers import READERS, rows_of_oracle

# Where `tampered` says that a log of `killed` was damaged, and what a reader must say there.
DAMAGED: dict[str, tuple[int, type[BatchError]]] = {
    "killed/k-cut-0/00000000000000000106.log": (5808, TruncatedBatchError),
    "killed/k-flip-0/00000000000000000112.log": (7413, CorruptRecordError),
    "killed/k-garbage-0/00000000000000000113.log": (6122, CorruptRecordError),
}
SOUND = [log for log in LOGS if str(log) not in DAMAGED]
DUMPED = [log for log in SOUND if log.batches is not None]
# Kafka's metadata snapshots are record batches, too, with control records of other types.
CHECKPOINTS = [
    GoldenLog(case, "", GOLDEN / case / "data" / "bootstrap.checkpoint") for case in CASES
]


def as_dumped(row: np.void) -> dict[str, Any]:
    """A row of a scan in the words of DumpLogSegments."""
    attributes = int(row["attributes"])
    delta, sequence = int(row["last_offset_delta"]), int(row["base_sequence"])
    stamp = "LogAppendTime" if attributes & Attributes.LOG_APPEND_TIME else "CreateTime"
    dumped: dict[str, Any] = {
        "baseOffset": int(row["base_offset"]),
        "lastOffset": int(row["base_offset"]) + delta,
        "count": int(row["record_count"]),
        "baseSequence": sequence,
        "lastSequence": -1 if sequence < 0 else batch.sequence_after(sequence, delta),
        "producerId": int(row["producer_id"]),
        "producerEpoch": int(row["producer_epoch"]),
        "partitionLeaderEpoch": int(row["partition_leader_epoch"]),
        "isTransactional": bool(attributes & Attributes.TRANSACTIONAL),
        "isControl": bool(attributes & Attributes.CONTROL),
        "deleteHorizonMs": int(row["base_timestamp"])
        if attributes & Attributes.DELETE_HORIZON
        else None,
        "position": int(row["position"]),
        stamp: int(row["max_timestamp"]),
        "size": int(row["size"]),
        "magic": int(row["magic"]),
        "compresscodec": Codec(attributes & Attributes.CODEC_MASK).name.lower(),
        "crc": int(row["crc"]),
        "isvalid": row["crc_ok"] == 1,
    }
    if row["control_type"] >= 0:
        dumped["control"] = {
            "type": ControlType(int(row["control_type"])).name,
            "coordinatorEpoch": int(row["coordinator_epoch"]),
        }
    return dumped


def test_every_case_is_here() -> None:
    """Goal: the tests below do not pass because there was nothing to read.
    Method: count what was copied."""
    assert len(CASES) == 9
    assert len(LOGS) == 97
    assert len(PARTITIONS) == 49
    assert sum(len(log.batches or ()) for log in DUMPED) > 1500


@pytest.mark.parametrize("log", DUMPED, ids=str)
def test_a_scan_shows_what_kafkas_dump_tool_shows(log: GoldenLog) -> None:
    """Goal: position, size, offsets, sequences, producer, flags, codec, checksum, timestamps, delete
    horizon and marker of every batch.
    Method: compare each row of a scan with DumpLogSegments."""
    assert [as_dumped(row) for row in batch.scan(log.read(), file=str(log))] == log.batches


@pytest.mark.parametrize("log", [*SOUND, *CHECKPOINTS], ids=str)
def test_a_scan_agrees_with_the_oracle(log: GoldenLog) -> None:
    """Goal: the files that Kafka's tool was not asked about are read right, too.
    Method: compare header fields with those of the slow reader; all checksums hold."""
    data = log.read()
    rows = batch.scan(data)
    truth = oracle.parse(data)
    assert len(rows) == len(truth)
    for name in (
        *("base_offset", "partition_leader_epoch", "attributes", "last_offset_delta"),
        *("base_timestamp", "max_timestamp", "producer_id", "producer_epoch", "base_sequence"),
        *("record_count", "crc", "magic"),
    ):
        assert rows[name].tolist() == [getattr(one, name) for one in truth], name
    assert (rows["crc_ok"] == 1).all()
    assert rows["position"].tolist() == [0, *np.cumsum(rows["size"])[:-1]] if len(rows) else True
    assert int(rows["size"].sum()) == len(data)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("log", [*SOUND, *CHECKPOINTS], ids=str)
def test_all_readers_agree_with_the_oracle(log: GoldenLog, reader: str) -> None:
    """Goal: every record of every file, control records too, by each of the three readers.
    Method: compare with the slow reader, with and without control batches."""
    data = log.read()
    truth = oracle.parse(data)
    assert READERS[reader](data) == rows_of_oracle(truth)
    assert READERS[reader](data, include_control=True) == rows_of_oracle(truth, control=True)


def batches_that_survive(partition: GoldenPartition) -> list[tuple[bytes, np.ndarray[Any, Any]]]:
    """Bytes and rows of each file up to the first damage, as recovery leaves them."""
    kept = []
    for log in partition.logs:
        data = log.read()
        rows, _, error = batch.scan_prefix(data)
        kept.append((data, rows))
        if error is not None:
            break
    return kept


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_records_are_those_a_consumer_got(partition: GoldenPartition, reader: str) -> None:
    """Goal: offset, timestamp, timestamp type, key, value and headers of every record.
    Method: read all files of a partition and compare with a read_uncommitted consumer's answer; in
    `killed`, files are read up to the damage, as the broker did."""
    said = partition.expected
    assert said["logStartOffset"] == 0
    found = [
        (
            *(row.offset, row.timestamp, row.timestamp_type, seen(row.key), seen(row.value)),
            tuple((name, seen(value)) for name, value in row.headers),
        )
        for data, rows in batches_that_survive(partition)
        for row in READERS[reader](data, rows)
    ]
    assert found == [
        (
            record["offset"],
            record["timestamp"],
            {"CreateTime": 0, "LogAppendTime": 1}[record["timestampType"]],
            expected_seen(record["key"]),
            expected_seen(record["value"]),
            tuple((name, expected_seen(value)) for name, value in record["headers"]),
        )
        for record in said["readUncommitted"]
    ]


@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_batches_end_where_the_log_ends(partition: GoldenPartition) -> None:
    """Goal: offsets rise through all files and end at the log end that the broker named.
    Method: chain base offset and last offset delta of every batch."""
    next_offset = 0
    for _, rows in batches_that_survive(partition):
        for row in rows:
            assert row["base_offset"] >= next_offset
            next_offset = int(row["base_offset"]) + int(row["last_offset_delta"]) + 1
    assert next_offset == partition.expected["logEndOffset"]


def aborted_batches(chunks: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """For each file a mask of the batches that an ABORT marker kills."""
    masks = [np.zeros(len(rows), np.bool_) for rows in chunks]
    open_batches: dict[int, list[tuple[int, int]]] = {}
    for file, rows in enumerate(chunks):
        for index, row in enumerate(rows):
            if not row["attributes"] & Attributes.TRANSACTIONAL:
                continue
            producer = int(row["producer_id"])
            if not row["attributes"] & Attributes.CONTROL:
                open_batches.setdefault(producer, []).append((file, index))
                continue
            for where, place in open_batches.pop(producer, []):
                masks[where][place] = row["control_type"] == ControlType.ABORT
    return masks


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_mask_and_range_give_what_read_committed_gives(
    partition: GoldenPartition, reader: str
) -> None:
    """Goal: a visibility mask and an end offset are all that read_committed needs.
    Method: hide what ABORT markers kill, end at the last stable offset, compare offsets."""
    kept = batches_that_survive(partition)
    masks = aborted_batches([rows for _, rows in kept])
    end = partition.expected["lastStableOffset"]
    found = [
        row.offset
        for (data, rows), aborted in zip(kept, masks, strict=True)
        for row in READERS[reader](data, rows, visible=~aborted, end_offset=end)
    ]
    assert found == partition.expected["readCommittedOffsets"]


@pytest.mark.parametrize("log", [*SOUND, *CHECKPOINTS], ids=str)
def test_what_is_decoded_is_written_back_as_it_was(log: GoldenLog) -> None:
    """Goal: decode → encode is the identity on bytes; on records where a codec is in the way.
    Method: rewrite each batch from its own columns: the producer's timestamps, its own offsets."""
    data = log.read()
    rows = batch.scan(data)
    for index, row in enumerate(rows):
        before = data[int(row["position"]) :][: int(row["size"])]
        columns = list(
            batch.decode(data, rows[index : index + 1], include_control=True, create_time=True)
        )
        if columns:
            after = bytes(batch.rewrite(row, columns[0], columns[0].offsets))
        else:
            assert row["record_count"] == 0
            after = bytes(batch.rewrite(row, None))
        if not row["attributes"] & Attributes.CODEC_MASK:
            assert after == before
            continue
        (old,) = oracle.parse(before)
        (new,) = oracle.parse(after)
        assert new.records == old.records
        for name in ("base_offset", "attributes", "last_offset_delta", "base_timestamp"):
            assert getattr(new, name) == getattr(old, name)
        for name in ("max_timestamp", "producer_id", "producer_epoch", "base_sequence"):
            assert getattr(new, name) == getattr(old, name)


def test_every_codec_and_flag_occurs() -> None:
    """Goal: the files above cover what the format can say.
    Method: gather codecs, flags and control types over all of them."""
    codecs, flags, controls, emptied = set(), 0, set(), 0
    for log in [*SOUND, *CHECKPOINTS]:
        rows = batch.scan(log.read())
        codecs |= set((rows["attributes"] & Attributes.CODEC_MASK).tolist())
        flags |= int(np.bitwise_or.reduce(rows["attributes"])) if len(rows) else 0
        controls |= set(rows["control_type"].tolist())
        emptied += int((rows["record_count"] == 0).sum())
    assert codecs == set(map(int, Codec))
    assert flags & 0x78 == 0x78
    assert {ControlType.ABORT, ControlType.COMMIT, ControlType.LEADER_CHANGE} <= controls
    assert {ControlType.SNAPSHOT_HEADER, ControlType.SNAPSHOT_FOOTER} <= controls
    assert emptied > 0


@pytest.mark.parametrize("log", [log for log in LOGS if str(log) in DAMAGED], ids=str)
def test_a_damaged_log_is_read_up_to_the_damage(log: GoldenLog) -> None:
    """Goal: the end of what is sound is where Kafka's recovery cut, to the byte.
    Method: compare with the place that `tampered` names and with the batches of the recovered log."""
    position, kind = DAMAGED[str(log)]
    tampered = expected("killed")["tampered"][log.partition]
    data = log.read()
    rows, end, error = batch.scan_prefix(data, file=str(log))
    assert end == position
    assert type(error) is kind
    assert (error.file, error.position) == (str(log), position)
    if log.partition == "k-cut-0":
        cut, whole = map(int, re.findall(r"last (\d+) of (\d+) bytes", tampered)[0])
        (length,) = struct.unpack_from(">i", data, position + 8)
        assert len(data) == whole - cut
        assert position + 12 + length == whole
    else:
        assert str(position) in tampered
    recovered = expected("killed")["afterRecoveryAndCleanStop"][log.partition]["batches"]
    kept = [
        [int(row["base_offset"]), int(row["base_offset"]) + int(row["last_offset_delta"])]
        for row in rows
    ]
    # The recovered broker has gone on to write: what survived comes first.
    assert recovered[log.path.name][: len(kept)] == kept
    whole_rows = batch.scan(data[:end])
    assert (whole_rows == rows).all()


@pytest.mark.parametrize("reader", READERS)
def test_a_flipped_bit_is_an_error_with_its_place_for_every_reader(reader: str) -> None:
    """Goal: no reader hands out a record of the batch that the broker's recovery cut off.
    Method: read the flipped file of `killed` past the damage, without a scan of checksums first."""
    (log,) = [log for log in LOGS if str(log).startswith("killed/k-flip-0") and str(log) in DAMAGED]
    data = log.read()
    rows = batch.scan(data)
    assert (rows["crc_ok"] == 0).sum() == 1
    with pytest.raises(CorruptRecordError, match="checksum") as caught:
        READERS[reader](data, file=str(log))
    assert caught.value.position == DAMAGED[str(log)][0]
    assert str(log) in str(caught.value)
    sound = READERS[reader](data, rows[rows["crc_ok"] == 1])
    assert len(READERS[reader](data, check_crc=False)) > len(sound) > 0
