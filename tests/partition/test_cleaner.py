"""Compaction keeps the newest value of each key and everything that readers and producers lean on.

The lines of the checklist's section on compaction, each a test; the crashes of a swap are in tests/log/test_swap.py.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog._native.checksum import crc32c
from oncelog._native.compaction import LogFilter, OffsetMap, key_hash
from oncelog.base.disk import Disk
from oncelog.base.errors import (
    BatchError,
    CleaningAbortedError,
    CorruptRecordError,
    InvalidRecordError,
    KafkaStorageError,
    OutOfOrderSequenceError,
)
from oncelog.base.rows import PRODUCER_DTYPE
from oncelog.log.checkpoint import CLEANER, read_offsets, write_offsets
from oncelog.log.log import LogOptions
from oncelog.partition import cleaner
from oncelog.partition.cleaner import CleanerOptions, clean, group_segments
from oncelog.partition.compaction import RETRY_MS, Candidate, CompactionOptions, Compactor
from oncelog.partition.partition import Isolation, PartitionOptions
from oncelog.segment import segment as segment_module
from oncelog.segment.batch import Attributes, encode, records, scan
from oncelog.segment.names import TopicPartition
from oncelog.segment.segment import SegmentOptions

from .histories import DAY_MS, KEY, START_MS, History, seen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SEED = bytes(range(16))


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "compact-0")


def expire(history: History, *producers: int) -> None:
    """Producers that were silent for too long."""
    for producer in producers:
        history.partition.need_state().table.remove(producer)


# ---------------------------------------------------------------- what survives


def test_the_last_value_of_each_key_survives_with_its_offset(history: History) -> None:
    history.put((b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    history.roll()
    history.put((b"c", b"1"), (b"b", b"2"))
    history.put((b"a", b"3"), (b"d", b"1"))
    last = history.seen()
    done = history.clean()
    assert history.committed() == [(3, b"1"), (4, b"2"), (5, b"3"), (6, b"1")]
    assert history.seen() == [record for record in last if record.offset in (3, 4, 5, 6)]
    assert (done.end_offset, done.records_read, done.records_kept) == (7, 7, 4)
    assert history.partition.log_end_offset == 7


def test_a_later_pass_removes_what_newer_values_replace(history: History) -> None:
    """Goal: the second pass maps only the dirty part and still cleans the clean one."""
    history.put((b"a", b"1"), (b"b", b"1"))
    history.clean()
    history.put((b"a", b"2"))
    history.clean()
    assert history.committed() == [(1, b"1"), (2, b"2")]


def test_the_active_segment_is_untouched(history: History) -> None:
    history.put((b"a", b"1"))
    history.roll()
    history.put((b"a", b"2"), (b"a", b"3"))
    before = bytes(history.partition.log.active.view())
    history.clean(roll=False)
    assert history.committed() == [(0, b"1"), (1, b"2"), (2, b"3")]
    assert bytes(history.partition.log.active.view()) == before


def test_everything_from_the_first_unstable_offset_on_is_untouched(history: History) -> None:
    """Goal: neither a record nor a marker at or above the last stable offset changes, also where its segment is
    rewritten because older records lie in it.
    Method: an open transaction in the middle of a segment, committed, aborted and plain records after it."""
    history.put((b"a", b"1"), (b"b", b"1"))
    history.put((b"a", b"2"))
    open_at = history.txn(7, (b"a", b"open"))
    history.txn(8, (b"a", b"aborted"))
    history.abort(8)
    history.put((b"b", None), (b"b", b"2"), (None, b"no key"))
    history.roll()
    before = history.rows()
    done = history.clean(roll=False)
    after = history.rows()
    assert history.partition.last_stable_offset == open_at == done.end_offset
    assert history.committed() == [(1, b"1"), (2, b"2")]
    stays = ["base_offset", "size", "crc", "attributes", "record_count", "producer_id"]
    kept = before["base_offset"] >= open_at
    assert after[after["base_offset"] >= open_at][stays].tolist() == before[kept][stays].tolist()
    assert (8, 4, 5) in history.index_entries()
    history.commit(7)
    history.clean()
    assert [offset for offset, _ in history.committed()] == [3, 7]


def test_survivors_keep_producer_epochs_and_sequence(tmp_path: Path) -> None:
    """Goal: a batch that loses records keeps every header field that speaks of its origin."""
    history = History(tmp_path / "compact-0")
    history.sequences[9] = 5
    history.partition.need_state()
    history.put((b"a", b"1"), (b"b", b"1"), (b"c", b"1"), producer=9, leader_epoch=4)
    history.put((b"a", b"2"), (b"c", b"2"), leader_epoch=6)
    fields = [
        *("base_offset", "last_offset_delta", "producer_id", "producer_epoch", "base_sequence"),
        *("partition_leader_epoch", "attributes", "base_timestamp"),
    ]
    before = history.rows()
    history.clean()
    after = history.rows()
    assert after[fields].tolist() == before[fields].tolist()
    assert after["record_count"].tolist() == [1, 2]
    assert int(after["max_timestamp"][0]) == START_MS + 1, "the largest of those that stay"


def test_log_append_time_stays(tmp_path: Path) -> None:
    options = PartitionOptions(log=LogOptions(), uses_log_append_time=True)
    history = History(tmp_path / "compact-0", options=options)
    history.put((b"a", b"1"), (b"b", b"1"), timestamps=[5, 6])
    history.now_ms += 1000
    history.put((b"a", None), timestamps=[7])
    history.now_ms += 1000
    history.clean()
    assert [record.timestamp for record in history.seen()] == [START_MS, START_MS + 1000]
    rows = history.rows()
    assert (rows["attributes"] & Attributes.LOG_APPEND_TIME).all()
    assert rows["max_timestamp"].tolist() == [START_MS, START_MS + 1000]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_codec_of_a_batch_stays(history: History, codec: str) -> None:
    values = [(b"k%d" % index, b"v" * 50) for index in range(40)]
    history.put(*values, compression=codec)
    history.put(*values[::2], compression=codec)
    history.put((b"k1", None), compression=codec)
    attributes = history.rows()["attributes"].tolist()
    history.clean()
    rows = history.rows()
    horizon = int(Attributes.DELETE_HORIZON)
    assert (rows["attributes"] & ~horizon).tolist() == attributes
    assert rows["record_count"].tolist() == [19, 20, 1]
    assert history.offsets() == [*range(3, 40, 2), *range(40, 60), 60]
    assert history.latest().keys() == {key for key, _ in values} - {b"k1"}
    assert [record.timestamp for record in history.seen()][-1] == START_MS


def test_unkeyed_records_are_dropped(history: History) -> None:
    history.put((None, b"1"), (b"a", b"1"), (None, None))
    history.put((b"", b"the empty key is a key"))
    history.clean()
    assert history.committed() == [(1, b"1"), (3, b"the empty key is a key")]


def test_keys_equal_to_the_bytes_of_a_marker_are_ordinary_keys(history: History) -> None:
    """Goal: a marker's key never hides a record's, nor the other way round."""
    abort_key, commit_key = b"\x00\x00\x00\x00", b"\x00\x00\x00\x01"
    history.put((abort_key, b"1"), (commit_key, b"1"))
    history.txn(7, (abort_key, b"2"))
    history.commit(7)
    history.txn(8, (commit_key, b"never"))
    history.abort(8)
    history.clean()
    assert history.committed() == [(1, b"1"), (2, b"2")]
    assert history.markers() == [3, 5]


# ---------------------------------------------------------------- tombstones


def test_a_tombstone_goes_only_after_its_delete_horizon(history: History) -> None:
    """Goal: whoever reads the log from its start within delete.retention.ms learns of the deletion."""
    history.put((b"a", b"1"), (b"b", b"1"))
    history.put((b"a", None), (b"c", b"1"))
    history.clean(delete_retention_ms=1000)
    assert history.committed() == [(1, b"1"), (2, None), (3, b"1")]
    history.now_ms += 999
    history.clean(delete_retention_ms=1000)
    assert (2, None) in history.committed()
    history.now_ms += 1
    history.clean(delete_retention_ms=1000)
    assert history.committed() == [(1, b"1"), (3, b"1")]


def test_the_first_pass_sets_the_horizon_and_timestamps_stay(history: History) -> None:
    """Goal: base timestamp becomes the horizon, once; records still show their own time."""
    history.put((b"a", b"1"), (b"b", None), (b"c", b"1"), timestamps=[START_MS - 5, 3, START_MS])
    times = [record.timestamp for record in history.seen()]
    history.clean(delete_retention_ms=1000)
    row = history.rows()[0]
    assert int(row["attributes"]) & Attributes.DELETE_HORIZON
    assert int(row["base_timestamp"]) == history.now_ms + 1000
    assert [record.timestamp for record in history.seen()] == times
    history.now_ms += 10
    history.clean(delete_retention_ms=5000)
    assert int(history.rows()[0]["base_timestamp"]) == history.now_ms - 10 + 1000


def test_a_tombstone_that_is_replaced_goes_at_once(history: History) -> None:
    history.put((b"a", None))
    history.put((b"a", b"1"))
    history.clean()
    assert history.committed() == [(1, b"1")]


def test_a_retention_without_end_keeps_tombstones_for_ever(history: History) -> None:
    history.put((b"a", b"1"), (b"a", None))
    history.clean(delete_retention_ms=2**63 - 1)
    history.now_ms += 2**40
    history.clean(delete_retention_ms=0)
    assert history.committed() == [(1, None)]
    assert history.seen()[0].timestamp == START_MS + 1


# ---------------------------------------------------------------- transactions


def test_aborted_records_are_dropped_also_when_their_marker_is_in_a_later_segment(
    history: History,
) -> None:
    history.txn(7, (b"a", b"never"))
    history.roll()
    history.put((b"b", b"1"))
    history.txn(7, (b"c", b"never"))
    history.roll()
    history.put((b"a", b"1"))
    history.abort(7)
    expire(history, 7)
    history.clean()
    assert history.offsets() == [1, 3]
    assert history.committed() == [(1, b"1"), (3, b"1")]


def test_an_aborted_value_replaces_nothing(history: History) -> None:
    """Goal: the map knows only what was committed."""
    history.put((b"a", b"1"))
    history.txn(7, (b"a", b"never"), (b"a", None))
    history.abort(7)
    history.clean()
    assert history.committed() == [(0, b"1")]


def test_an_aborted_record_is_dropped_when_only_its_marker_lies_past_the_cleaned_part(
    history: History,
) -> None:
    """Goal: the marker in a segment that is not cleaned still decides, and stays in that segment's index."""
    history.put((b"a", b"1"))
    history.txn(7, (b"a", b"never"))
    history.roll()
    history.abort(7)
    history.put((b"b", b"1"))
    history.clean(roll=False)
    assert history.offsets() == [0, 3]
    assert history.index_entries() == [(7, 1, 2)]


def test_records_of_an_open_transaction_are_kept(history: History) -> None:
    history.put((b"a", b"1"))
    history.txn(7, (b"a", b"open"))
    history.clean()
    assert history.offsets() == [0, 1]
    history.commit(7)
    history.clean()
    assert history.committed() == [(1, b"open")]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_marker_stays_until_its_data_is_gone_and_its_horizon_has_passed(
    history: History, commit: bool
) -> None:
    """Goal: two passes: the first that meets no data of the transaction sets the horizon, the first after the
    horizon removes the marker. Method: the clock moves by hand."""
    history.txn(7, (b"a", b"1"))
    marker = history.end(7, commit=commit)
    history.put((b"a", b"2"))
    expire(history, 7)
    history.clean(delete_retention_ms=1000)
    assert history.offsets() == [2], "the data goes in the first pass"
    assert history.markers() == [marker]
    assert not history.rows()[0]["attributes"] & Attributes.DELETE_HORIZON
    history.now_ms += 5000
    history.clean(delete_retention_ms=1000)
    row = history.rows()[0]
    assert int(row["attributes"]) & Attributes.DELETE_HORIZON
    assert int(row["base_timestamp"]) == history.now_ms + 1000
    assert int(row["control_type"]) == int(commit)
    assert int(row["coordinator_epoch"]) == 3
    history.now_ms += 999
    history.clean(delete_retention_ms=1000)
    assert history.markers() == [marker]
    history.now_ms += 1
    history.clean(delete_retention_ms=1000)
    assert history.markers() == []


def test_a_commit_marker_stays_as_long_as_a_record_of_its_transaction_does(
    history: History,
) -> None:
    history.txn(7, (b"a", b"1"), (b"b", b"1"))
    marker = history.commit(7)
    history.put((b"a", b"2"))
    expire(history, 7)
    for _ in range(4):
        history.now_ms += 2 * DAY_MS
        history.clean()
        assert history.markers() == [marker]
    assert history.committed() == [(1, b"1"), (3, b"2")]


def test_an_abort_marker_stays_as_long_as_any_batch_of_its_transaction_stays(
    tmp_path: Path,
) -> None:
    """Goal: removing a marker never turns aborted data into visible data, over passes and groups of segments.
    Method: the transaction's first batch cannot be cleaned away because its producer is still known and has
    nothing newer; every segment is a group of its own; then the producer expires."""
    history = History(tmp_path / "compact-0", segment=SegmentOptions(segment_bytes=140))
    history.txn(7, (b"a", b"never"))
    history.roll()
    history.put((b"b", b"1"))
    history.roll()
    marker = history.abort(7)
    history.put((b"c", b"1"))
    for _ in range(4):
        history.now_ms += 2 * DAY_MS
        done = history.clean()
        assert done.segments_after > 1
        assert history.markers() == [marker], (
            "an emptied batch that a pass still reads holds it back"
        )
        assert history.index_entries() == [(7, 0, marker)]
        assert history.committed() == [(1, b"1"), (3, b"1")]
    expire(history, 7)
    for _ in range(3):
        history.now_ms += 2 * DAY_MS
        history.clean()
        assert history.committed() == [(1, b"1"), (3, b"1")]
    assert history.markers() == []
    assert history.index_entries() == []


def test_the_transaction_index_holds_exactly_the_aborts_that_are_still_needed(
    history: History,
) -> None:
    history.txn(7, (b"a", b"never"))
    history.abort(7)
    history.txn(8, (b"b", b"never"))
    history.put((b"c", b"1"))
    history.roll()
    history.txn(8, (b"d", b"never"))
    history.abort(8)
    history.abort(9)  # without data
    history.clean()
    assert history.index_entries() == [(7, 0, 1), (8, 2, 5)], "a pass has met their batches"
    expire(history, 7)
    history.clean()
    assert history.index_entries() == [(7, 0, 1), (8, 2, 5)], "met once more, empty"
    history.clean()
    assert history.index_entries() == [(8, 2, 5)], "8 is still known and has an empty batch"
    assert len(history.partition.aborted_transactions(0, 100)) == 1
    assert history.committed() == [(3, b"1")]


def test_indexes_of_different_making_fit_into_one(tmp_path: Path) -> None:
    """Goal: an index that was rebuilt from a compacted log knows other first and stable offsets than one that was not;
    segments of both kinds are merged, and nothing aborted shows.
    Method: a transaction around another one, cleaned in small groups, one index made anew, then one large group."""
    history = History(tmp_path / "compact-0", segment=SegmentOptions(segment_bytes=300))
    history.txn(1, (b"a", b"never"))
    history.txn(2, (b"b", b"never"))
    history.abort(2)
    history.roll()
    history.txn(1, (b"a", b"never"))
    history.abort(1)
    history.put((b"c", b"1"))
    history.clean()
    segments = history.partition.log.segments
    assert [segment.base_offset for segment in segments] == [0, 3, 6]
    assert history.index_entries() == [(2, 1, 2), (1, 0, 4)]
    history.partition.aborted.rebuild(segments[0])
    stable = segments[0].txn_index.index.entries()["last_stable_offset"]
    assert int(stable[0]) == 3, "what is left of the log does not tell that 1 was open"
    history.partition.log.options = LogOptions(segment=SegmentOptions())
    history.put((b"d", b"1"))
    history.clean()
    assert [segment.base_offset for segment in history.partition.log.segments] == [0, 7]
    assert history.index_entries() == [(2, 1, 2), (1, 0, 4)]
    assert history.committed() == [(5, b"1"), (6, b"1")]


def test_an_abort_that_no_index_names_stops_the_cleaning(history: History) -> None:
    """Goal: where log and index contradict each other, nothing is thrown away on the word of either.
    Method: the filter is told that aborted batches are visible."""
    history.txn(7, (b"a", b"never"))
    history.abort(7)
    rows = history.rows()
    rules = LogFilter(
        OffsetMap(8, 4, SEED),
        np.empty(0, PRODUCER_DTYPE),
        end_offset=10,
        last_end_offset=10,
        now_ms=0,
        horizon_ms=0,
    )
    with pytest.raises(InvalidRecordError, match="ABORT marker"):
        rules.clean(history.partition.log.active.view(), rows, np.array([True, False]))


def test_a_lost_transaction_index_is_not_believed(history: History) -> None:
    """Goal: cleaning never makes it final that an abort was forgotten.
    Method: empty the index file of a sealed segment; the pass must stop, and the log stay as it is."""
    history.txn(7, (b"a", b"never"))
    history.put((b"b", b"1"))
    history.abort(7)
    history.roll()
    history.reopen()
    (history.path / "00000000000000000000.txnindex").unlink()
    before = history.rows().tolist()
    with pytest.raises(InvalidRecordError, match="no transaction index names"):
        history.clean(roll=False)
    assert history.rows().tolist() == before


# ---------------------------------------------------------------- producers


def test_the_last_batch_of_each_producer_stays_empty_if_need_be(history: History) -> None:
    """Goal: sequence and duplicate checks survive, also for an aborted transaction, also from the log alone."""
    history.put((b"a", b"1"), (b"b", b"1"), producer=5)
    history.put((b"a", b"2"), producer=5)
    history.txn(6, (b"c", b"never"), (b"d", b"never"))
    history.abort(6)
    history.put((b"a", b"3"), (b"b", b"2"))
    state = history.partition.need_state().table.snapshot()
    history.clean()
    rows = history.rows()
    empty = rows[rows["record_count"] == 0]
    assert empty[["producer_id", "base_offset", "last_offset_delta", "base_sequence"]].tolist() == [
        (5, 2, 0, 2),
        (6, 3, 1, 0),
    ]
    assert history.committed() == [(6, b"3"), (7, b"2")]
    history.partition.close()
    for path in history.path.glob("*.snapshot"):
        path.unlink()
    history.open()
    assert history.partition.need_state().table.snapshot().tolist() == state.tolist()
    assert history.put((b"a", b"4"), producer=5) == 8
    history.sequences[5] = 2
    assert history.put((b"a", b"2"), producer=5) == 2, "a duplicate of an emptied batch"
    history.sequences[5] = 9
    with pytest.raises(OutOfOrderSequenceError):
        history.put((b"a", b"5"), producer=5)


def test_the_epoch_that_a_marker_has_raised_survives(history: History) -> None:
    """Goal: where the last thing known of a producer is a marker, fencing survives every pass.
    Method: transaction version 2; every horizon passes; replay from the log alone."""
    history.txn(7, (b"a", b"1"))
    history.commit(7, bump=True)
    history.txn(7, (b"a", b"2"))
    last = history.abort(7, bump=True)
    history.put((b"a", b"3"))
    for _ in range(4):
        history.now_ms += 2 * DAY_MS
        history.clean()
    assert history.markers() == [last]
    state = history.partition.need_state().table.snapshot()
    history.partition.close()
    for path in history.path.glob("*.snapshot"):
        path.unlink()
    history.open()
    fields = ["producer_id", "producer_epoch", "last_sequence", "coordinator_epoch"]
    assert (
        history.partition.need_state().table.snapshot()[fields].tolist() == state[fields].tolist()
    )


def test_an_emptied_batch_goes_when_its_producer_writes_on_or_expires(history: History) -> None:
    """Goal: sequence numbers may be used again: only the last batch of a producer counts, by its offset."""
    history.put((b"a", b"1"), producer=5)
    history.put((b"a", b"2"))
    history.clean()
    assert history.rows()["base_offset"].tolist() == [0, 1]
    expire(history, 5)
    history.sequences[5] = 0
    history.put((b"b", b"1"), producer=5)
    history.put((b"b", b"2"))
    history.clean()
    rows = history.rows()
    assert rows[["base_offset", "record_count"]].tolist() == [(1, 1), (2, 0), (3, 1)]
    assert rows["base_sequence"].tolist() == [-1, 0, -1]
    expire(history, 5)
    history.clean()
    assert history.rows()["base_offset"].tolist() == [1, 3]


# ---------------------------------------------------------------- the end of the log


def test_the_last_batch_stays_so_that_the_end_offset_does_not_jump_back(history: History) -> None:
    """Goal: a log of which everything is deleted ends where it did, also when it is opened from its .log files."""
    history.put((b"a", b"1"))
    history.put((b"a", None))
    history.clean(delete_retention_ms=0)
    history.clean(delete_retention_ms=0)
    assert history.offsets() == []
    assert history.rows()[["base_offset", "record_count"]].tolist() == [(1, 0)]
    history.partition.close()
    for path in history.path.glob("00000000000000000002.*"):
        path.unlink()
    history.open()
    assert history.partition.log_end_offset == 2
    assert history.put((b"b", b"1")) == 2


def test_a_consumer_passes_empty_batches(history: History) -> None:
    """Goal: fetching from an offset inside an empty batch returns it, so that the position moves on."""
    history.put((b"a", b"1"), (b"a", b"1"), producer=5)
    history.put((b"a", b"2"))
    history.clean()
    position, steps = 0, []
    while position < history.partition.last_stable_offset:
        fetched = history.partition.fetch(position, 1, Isolation.READ_COMMITTED)
        rows = scan(fetched.records)
        assert len(rows)
        position = int(rows["base_offset"][-1]) + int(rows["last_offset_delta"][-1]) + 1
        steps.append(position)
    assert steps == [2, 3]


def test_each_group_keeps_its_last_offset(tmp_path: Path) -> None:
    """Goal: a cleaned segment says which offsets it stands for, even if nothing of its end is left; the batch that
    does so names no producer and holds no marker back."""
    history = History(tmp_path / "compact-0", segment=SegmentOptions(segment_bytes=230))
    history.put((b"a", b"1"))
    history.txn(7, (b"a", b"2"))
    history.roll()
    history.commit(7)
    history.put((b"b", b"1"))
    history.roll()
    history.put((b"a", b"3"))
    expire(history, 7)
    history.clean()
    rows = history.rows()
    assert rows[["base_offset", "record_count", "producer_id"]].tolist() == [
        (1, 0, -1),
        (2, 1, 7),
        (3, 1, -1),
        (4, 1, -1),
    ]
    assert not rows["attributes"][0]
    for _ in range(3):
        history.now_ms += 2 * DAY_MS
        history.clean()
    assert history.markers() == []


# ---------------------------------------------------------------- bounds


def test_a_full_map_cleans_a_part_and_the_next_pass_goes_on(history: History) -> None:
    """Goal: memory is bounded by log.cleaner.dedupe.buffer.size, the result is the same.
    Method: a map for three keys; batches of one."""
    for round_number in range(3):
        for key in range(5):
            history.put((b"%d" % key, b"%d" % round_number))
    small = CleanerOptions(dedupe_buffer_size=4 * 24, io_buffer_load_factor=0.75)
    ends = []
    for _ in range(12):
        ends.append(history.clean(options=small).end_offset)
        assert history.latest() == {b"%d" % key: b"2" for key in range(5)}
    assert ends[:5] == [3, 6, 9, 12, 15]
    assert history.offsets() == [10, 11, 12, 13, 14]


def test_a_map_that_holds_no_batch_is_an_error_that_says_so(history: History) -> None:
    history.put((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    with pytest.raises(Exception, match=r"dedupe\.buffer\.size"):
        history.clean(options=CleanerOptions(dedupe_buffer_size=3 * 24))


def test_a_batch_larger_than_the_window_is_read_whole(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no batch is too large for the buffers: windows grow with it."""
    monkeypatch.setattr(segment_module, "WINDOW_BYTES", 100)
    history.put((b"a", b"x" * 300_000), (b"b", b"y" * 300_000))
    history.put((b"c", b"1"))
    history.put((b"a", b"2"))
    history.clean()
    assert [(offset, len(value or b"")) for offset, value in history.committed()] == [
        (1, 300_000),
        (2, 1),
        (3, 1),
    ]


def sparse(history: History, *offsets: int) -> None:
    """Batches of one record as a leader would send them, with gaps."""
    for offset in offsets:
        data = encode([b"v"], keys=[b"%d" % offset], base_offset=offset, timestamp_ms=START_MS)
        history.partition.append_as_follower(bytearray(memoryview(data)), now_ms=START_MS)


def grouped(history: History, options: SegmentOptions) -> list[list[int]]:
    segments = history.partition.log.segments
    groups = group_segments(segments[:-1], options, segments[-1].base_offset)
    return [[segment.base_offset for segment in group] for group in groups]


def test_segments_are_grouped_within_size_and_index_bounds(history: History) -> None:
    for index in range(6):
        history.put((b"%d" % index, b"v"), (b"x%d" % index, b"v" * 100))
        history.put((b"%d" % index, b"v"))
        history.roll()
    size = history.partition.log.segments[0].size
    entries = history.partition.log.segments[0].offset_index.count
    assert entries == 1
    assert grouped(history, SegmentOptions(segment_bytes=1 << 20)) == [[0, 3, 6, 9, 12, 15]]
    assert grouped(history, SegmentOptions(segment_bytes=2 * size)) == [[0, 3], [6, 9], [12, 15]]
    assert grouped(history, SegmentOptions(segment_bytes=2 * size - 1)) == [
        [base] for base in (0, 3, 6, 9, 12, 15)
    ]
    by_index = SegmentOptions(segment_index_bytes=3 * 12)
    assert [len(group) for group in grouped(history, by_index)] == [3, 3]


def test_segments_are_grouped_within_the_span_of_relative_offsets(history: History) -> None:
    """Goal: no offset lies more than 2^31 - 1 above its segment's base, also with sparse offsets."""
    reach = 2**31 - 1
    for offset in (0, reach - 1, reach + 5, 2 * reach + 9):
        sparse(history, offset)
        history.roll()
    groups = grouped(history, SegmentOptions())
    assert groups == [[0, 1], [reach], [2 * reach + 9]]
    before = history.seen()
    history.clean()
    assert history.seen() == before
    for segment in history.partition.log.segments:
        assert segment.next_offset() - 1 - segment.base_offset <= reach


def test_empty_segments_join_any_group(history: History) -> None:
    """Goal: no empty segment is left every 2^31 offsets. Method: a segment whose file was emptied long ago."""
    sparse(history, 0)
    history.roll()
    sparse(history, 2**31 + 10)
    history.roll()
    sparse(history, 2**32 + 10)
    segments = history.partition.log.segments
    segments[1].truncate_to(0)
    assert segments[1].size == 0
    assert grouped(history, SegmentOptions()) == [[0, 2**31 + 10]]


# ---------------------------------------------------------------- choosing


RULES = CompactionOptions(
    delete_retention_ms=DAY_MS,
    min_compaction_lag_ms=0,
    max_compaction_lag_ms=2**63 - 1,
    min_cleanable_dirty_ratio=0.5,
)


@pytest.fixture
def compactor(tmp_path: Path) -> Compactor:
    return Compactor(str(tmp_path), Disk())


def dirty(path: Path, name: str, *, clean_batches: int, dirty_batches: int) -> History:
    history = History(path / f"{name}-0")
    history.partition.key = TopicPartition(name, 0)
    for _ in range(clean_batches):
        history.put((b"a", b"v" * 100))
    history.roll()
    for _ in range(dirty_batches):
        history.put((b"b", b"v" * 100))
    history.roll()
    return history


def test_the_filthiest_log_is_cleaned_first_and_none_that_is_clean_enough(
    tmp_path: Path, compactor: Compactor
) -> None:
    logs = [
        dirty(tmp_path, "half", clean_batches=5, dirty_batches=5),
        dirty(tmp_path, "most", clean_batches=2, dirty_batches=8),
        dirty(tmp_path, "some", clean_batches=6, dirty_batches=4),
    ]
    write_offsets(
        Disk(),
        f"{tmp_path}/{CLEANER}",
        {log.partition.key: log.partition.log.segments[1].base_offset for log in logs},
    )
    compactor = Compactor(str(tmp_path), Disk())
    candidates = [Candidate(log.partition, RULES) for log in logs]
    chosen = compactor.filthiest(candidates, START_MS)
    assert chosen is not None
    assert chosen.candidate.partition is logs[1].partition
    assert chosen.dirty_ratio == pytest.approx(0.8)
    assert compactor.clean(chosen, START_MS) is not None
    assert compactor.filthiest(candidates, START_MS) is None, (
        "a ratio of exactly 0.5 is not over it"
    )
    assert read_offsets(f"{tmp_path}/{CLEANER}")[logs[1].partition.key] == 10


def test_what_has_waited_too_long_is_cleaned_however_clean_the_log(
    tmp_path: Path, compactor: Compactor
) -> None:
    log = dirty(tmp_path, "some", clean_batches=9, dirty_batches=1)
    compactor.truncated(log.partition.key, 0)
    write_offsets(Disk(), f"{tmp_path}/{CLEANER}", {log.partition.key: 9})
    compactor = Compactor(str(tmp_path), Disk())
    soon = CompactionOptions(DAY_MS, 0, 1000, 0.9)
    assert compactor.filthiest([Candidate(log.partition, soon)], START_MS + 1000) is None
    assert compactor.filthiest([Candidate(log.partition, soon)], START_MS + 1001) is not None


def test_nothing_younger_than_the_minimum_lag_is_cleaned(
    history: History, compactor: Compactor
) -> None:
    history.put((b"a", b"1"))
    history.roll()
    history.now_ms += 1000
    history.put((b"a", b"2"))
    history.roll()
    rules = CompactionOptions(DAY_MS, 500, 2**63 - 1, 0.0)
    log = compactor.cleanable(Candidate(history.partition, rules), history.now_ms + 499)
    assert (log.first_dirty, log.end) == (0, 1)
    log = compactor.cleanable(Candidate(history.partition, rules), history.now_ms + 500)
    assert (log.first_dirty, log.end) == (0, 2)


def test_the_cleanable_part_ends_at_the_last_stable_offset(
    history: History, compactor: Compactor
) -> None:
    history.put((b"a", b"1"))
    open_at = history.txn(7, (b"b", b"1"))
    history.roll()
    log = compactor.cleanable(Candidate(history.partition, RULES), history.now_ms)
    assert (log.first_dirty, log.end) == (0, open_at)


@pytest.mark.parametrize("known", [0, 100])
def test_a_first_dirty_offset_outside_the_log_is_reset_to_its_start(
    tmp_path: Path, history: History, known: int
) -> None:
    history.put(*[(b"%d" % index, b"v") for index in range(10)])
    history.roll()
    history.partition.delete_records(5)
    write_offsets(Disk(), f"{tmp_path}/{CLEANER}", {KEY: known})
    compactor = Compactor(str(tmp_path), Disk())
    assert compactor.first_dirty(history.partition) == 5
    assert read_offsets(f"{tmp_path}/{CLEANER}") == {KEY: 5}


def test_truncation_cuts_the_checkpoint(tmp_path: Path, history: History) -> None:
    write_offsets(Disk(), f"{tmp_path}/{CLEANER}", {KEY: 8, TopicPartition("other", 1): 9})
    compactor = Compactor(str(tmp_path), Disk())
    compactor.truncated(KEY, 10)
    assert read_offsets(f"{tmp_path}/{CLEANER}")[KEY] == 8
    compactor.truncated(KEY, 3)
    assert read_offsets(f"{tmp_path}/{CLEANER}") == {KEY: 3, TopicPartition("other", 1): 9}
    compactor.forget(KEY)
    assert read_offsets(f"{tmp_path}/{CLEANER}") == {TopicPartition("other", 1): 9}


def test_a_damaged_checkpoint_means_that_everything_is_dirty(
    tmp_path: Path, history: History
) -> None:
    (tmp_path / CLEANER).write_text("0\n7\nnonsense\n")
    assert Compactor(str(tmp_path), Disk()).first_dirty(history.partition) == 0


class _Unreplaced(Disk):
    """A disk on which small files cannot be replaced for a while."""

    is_broken = True

    def replace(self, *args: Any, **kwargs: Any) -> None:
        if self.is_broken:
            raise OSError(errno.ENOSPC, "no space")
        super().replace(*args, **kwargs)


def test_cleaning_goes_on_without_its_checkpoint_which_is_written_when_the_disk_is_back(
    tmp_path: Path, history: History, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: one error of the disk does not switch compaction off, and is said once."""
    history.put((b"a", b"1"), (b"a", b"2"))
    history.roll()
    write_offsets(Disk(), f"{tmp_path}/{CLEANER}", {KEY: 1})
    disk = _Unreplaced()
    compactor = Compactor(str(tmp_path), disk)
    candidates = [Candidate(history.partition, CompactionOptions(DAY_MS, 0, 2**63 - 1, 0.0))]
    compactor.truncated(KEY, 0)
    assert compactor.first_dirty(history.partition) == 0
    log = compactor.filthiest(candidates, START_MS)
    assert log is not None
    assert compactor.clean(log, START_MS) is not None
    assert history.offsets() == [1]
    assert compactor.first_dirty(history.partition) == 2
    assert read_offsets(f"{tmp_path}/{CLEANER}") == {KEY: 1}
    assert len([record for record in caplog.records if CLEANER in record.getMessage()]) == 1
    disk.is_broken = False
    assert compactor.filthiest(candidates, START_MS) is None
    assert read_offsets(f"{tmp_path}/{CLEANER}") == {KEY: 2}


class _Full(Disk):
    is_full = False

    def write(self, descriptor: int, data: Any, position: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space")
        super().write(descriptor, data, position)


def test_a_log_whose_cleaning_fails_waits_while_the_others_are_cleaned(
    tmp_path: Path, history: History, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: the filthiest log, whose disk is full, does not starve the rest, and its turn comes again."""
    history.partition.close()
    disk = history.disk = _Full()
    history.open()
    history.put((b"a", b"1"), (b"a", b"2"))
    history.roll()
    other = dirty(tmp_path, "other", clean_batches=1, dirty_batches=1)
    compactor = Compactor(str(tmp_path), Disk())
    rules = CompactionOptions(DAY_MS, 0, 2**63 - 1, 0.0)
    candidates = [Candidate(log.partition, rules) for log in (history, other)]
    disk.is_full = True
    now_ms, cleaned = START_MS, []
    while (due := compactor.filthiest(candidates, now_ms)) is not None:
        key = due.candidate.partition.key
        try:
            compactor.clean(due, now_ms)
            cleaned.append(key)
        except KafkaStorageError:
            assert key == KEY
            assert len(cleaned) <= 1
    assert cleaned == [other.partition.key]
    assert not compactor.uncleanable
    assert [r.levelname for r in caplog.records if KEY.directory in r.getMessage()] == ["WARNING"]
    disk.is_full = False
    assert compactor.filthiest(candidates, now_ms + RETRY_MS - 1) is None
    due = compactor.filthiest(candidates, now_ms + RETRY_MS)
    assert due is not None
    assert compactor.clean(due, now_ms + RETRY_MS) is not None
    assert history.offsets() == [1]


def test_a_log_that_is_offline_is_not_cleaned(tmp_path: Path, history: History) -> None:
    history.put((b"a", b"1"), (b"a", b"2"))
    history.roll()
    compactor = Compactor(str(tmp_path), Disk())
    rules = CompactionOptions(DAY_MS, 0, 2**63 - 1, 0.0)
    candidates = [Candidate(history.partition, rules)]
    assert compactor.filthiest(candidates, START_MS) is not None
    history.partition._offline = OSError(errno.EIO, "no")
    assert compactor.filthiest(candidates, START_MS) is None
    assert not compactor.uncleanable


@pytest.mark.parametrize("damage", ["size", "crc"])
def test_a_damaged_log_is_marked_uncleanable_and_left_alone(
    tmp_path: Path, history: History, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: the error is kept and said once, the log unchanged, others are cleaned, and nothing is left behind."""
    history.put((b"a", b"1"))
    at = history.put((b"a", b"2"), (b"b", b"1"))
    history.roll()
    other = dirty(tmp_path, "other", clean_batches=1, dirty_batches=1)
    history.partition.close()
    path = history.path / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    position = int(scan(data)["position"][at])
    data[position + (10 if damage == "size" else 70)] ^= 0x40
    path.write_bytes(data)
    history.open()
    before = history.names()
    compactor = Compactor(str(tmp_path), Disk())
    rules = CompactionOptions(DAY_MS, 0, 2**63 - 1, 0.0)
    candidates = [Candidate(log.partition, rules) for log in (history, other)]
    while (due := compactor.filthiest(candidates, START_MS)) is not None:
        compactor.clean(due, START_MS)
    assert isinstance(compactor.uncleanable[KEY], CorruptRecordError)
    assert [r.levelname for r in caplog.records if KEY.directory in r.getMessage()] == ["WARNING"]
    assert path.read_bytes() == bytes(data)
    assert history.names() == before
    assert other.first_dirty == 0
    assert compactor.first_dirty(other.partition) == 2
    compactor.forget(KEY)
    assert not compactor.uncleanable


def test_a_full_disk_stops_a_pass_and_the_next_one_succeeds(
    tmp_path: Path, history: History
) -> None:
    """Goal: no space is no fault of the log: it is as before, usable, and cleaned when there is space again."""
    history.partition.close()
    disk = history.disk = _Full()
    history.open()
    history.put((b"a", b"1"), (b"a", b"2"))
    history.roll()
    compactor = Compactor(str(tmp_path), Disk())
    rules = CompactionOptions(DAY_MS, 0, 2**63 - 1, 0.0)
    log = compactor.cleanable(Candidate(history.partition, rules), START_MS)
    disk.is_full = True
    with pytest.raises(KafkaStorageError, match="no space"):
        compactor.clean(log, START_MS)
    assert history.offsets() == [0, 1]
    assert left_behind(history) == []
    assert not compactor.uncleanable
    disk.is_full = False
    history.put((b"b", b"1"))
    assert compactor.clean(log, START_MS) is not None
    assert history.offsets() == [1, 2]


def test_a_first_dirty_offset_past_the_stable_part_touches_nothing_there(history: History) -> None:
    """Goal: a checkpoint that lies, after a truncation nobody told of, does not let undecided batches be changed."""
    history.put((b"a", b"1"))
    history.txn(7, (b"a", None), (None, b"1"))
    history.roll()
    before = history.rows().tolist()
    history.first_dirty = 3
    done = history.clean(roll=False)
    assert done.end_offset == 1
    assert history.rows().tolist() == before


@given(st.data())
def test_hostile_records_under_a_right_checksum_are_refused_or_copied_soundly(
    data: st.DataObject,
) -> None:
    """Goal: no payload makes the filter read outside of it or write what cannot be read.
    Method: change bytes of a sound batch behind its header, set the checksum right, map and filter it."""
    batch = bytearray(
        memoryview(
            encode(
                [b"v" * 9, None, b"w", b"", None],
                keys=[b"a", b"b", b"a", None, b""],
                headers=[None, [("h", b"1")], None, [("", None)], None],
                timestamps=[5, 4, 3, 2, 1],
                batch_size=1 << 20,
            )
        )
    )
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(57, len(batch) - 1))
        batch[at] = data.draw(st.integers(0, 255))
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    rows, visible = scan(batch), np.ones(1, np.bool_)
    offsets = OffsetMap(16, 8, SEED)
    with contextlib.suppress(BatchError):
        offsets.add(batch, rows, visible)
    rules = LogFilter(
        offsets,
        np.empty(0, PRODUCER_DTYPE),
        end_offset=100,
        last_end_offset=0,
        now_ms=0,
        horizon_ms=77,
    )
    try:
        cleaned = rules.clean(batch, rows, visible)
    except BatchError:
        return
    assert all(row["crc_ok"] == 1 for row in scan(cleaned))


# ---------------------------------------------------------------- others at work


def meanwhile(action: Callable[[], None]) -> Callable[[], None]:
    """A check that does something once, in the middle of a pass."""
    calls: Iterator[int] = iter(range(10**6))

    def check() -> None:
        if next(calls) == 1:
            action()

    return check


def run(history: History, check: Callable[[], None]) -> None:
    clean(
        history.partition,
        first_dirty=0,
        end=2**63 - 1,
        delete_retention_ms=DAY_MS,
        now_ms=history.now_ms,
        check=check,
    )


def left_behind(history: History) -> list[str]:
    return [name for name in history.names() if name.endswith((".cleaned", ".swap", ".deleted"))]


def test_truncation_during_cleaning_aborts_it(history: History) -> None:
    history.put((b"a", b"1"))
    history.put((b"a", b"2"))
    history.roll()
    history.put((b"a", b"3"))
    with pytest.raises(CleaningAbortedError):
        run(history, meanwhile(lambda: history.partition.truncate_to(1, history.now_ms)))
    assert history.committed() == [(0, b"1")]
    assert left_behind(history) == []


def test_a_log_that_was_cut_and_written_again_to_the_same_size_is_not_taken_for_the_old_one(
    history: History,
) -> None:
    history.put((b"a", b"1"))
    history.put((b"a", b"2"))
    history.roll()

    def rewrite() -> None:
        history.partition.truncate_to(1, history.now_ms)
        history.put((b"b", b"2"))
        history.roll()

    with pytest.raises(CleaningAbortedError):
        run(history, meanwhile(rewrite))
    assert history.committed() == [(0, b"1"), (1, b"2")]
    assert left_behind(history) == []


def test_delete_records_during_cleaning_aborts_it(history: History) -> None:
    history.put((b"a", b"1"))
    history.roll()
    history.put((b"a", b"2"))
    history.roll()
    history.put((b"a", b"3"))

    def delete() -> None:
        history.partition.delete_records(1)

    with pytest.raises(CleaningAbortedError):
        run(history, meanwhile(delete))
    assert history.committed() == [(1, b"2"), (2, b"3")]
    assert left_behind(history) == []


def test_closing_or_removing_a_partition_during_cleaning_aborts_it(history: History) -> None:
    history.put((b"a", b"1"), (b"a", b"2"))
    history.roll()

    def remove() -> None:
        history.partition.close()
        shutil.rmtree(history.path)

    with pytest.raises(CleaningAbortedError):
        run(history, meanwhile(remove))
    assert not history.path.exists()


def test_pausing_waits_until_the_cleaning_has_stopped(
    tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: whoever truncates or removes a partition waits for the pass that is under way, and none begins.
    Method: a pass that is held in its first window by another thread."""
    history.put((b"a", b"1"), (b"a", b"2"))
    history.roll()
    compactor = Compactor(str(tmp_path), Disk())
    rules = CompactionOptions(DAY_MS, 0, 2**63 - 1, 0.0)
    log = compactor.cleanable(Candidate(history.partition, rules), START_MS)
    inside, go_on = threading.Event(), threading.Event()
    map_keys = cleaner._map_keys

    def held(*args: Any) -> Any:
        inside.set()
        assert go_on.wait(10)
        return map_keys(*args)

    monkeypatch.setattr(cleaner, "_map_keys", held)
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(compactor.clean(log, START_MS)))
    thread.start()
    assert inside.wait(10)
    threading.Timer(0.05, go_on.set).start()
    with compactor.paused(KEY):
        assert results == [None], "it has stopped"
        assert compactor.filthiest([log.candidate], START_MS) is None
        assert compactor.clean(log, START_MS) is None
    thread.join()
    assert history.offsets() == [0, 1]
    assert left_behind(history) == []
    monkeypatch.undo()
    assert compactor.clean(log, START_MS) is not None
    assert history.offsets() == [1]


def test_a_reader_with_the_old_mapping_goes_on_reading(history: History) -> None:
    """Goal: a read that has begun sees the log as it was, aborted records hidden, while segments are swapped under
    it, and after the files are gone."""
    history.txn(7, (b"a", b"never"))
    history.put((b"a", b"1"), (b"b", b"1"))
    history.roll()
    history.txn(7, (b"c", b"never"))
    history.abort(7)
    history.put((b"a", b"2"))
    history.roll()
    expire(history, 7)
    expected = history.seen()
    reader = history.partition.windows(0, 2**63 - 1, Isolation.READ_COMMITTED)
    first = next(reader)
    for _ in range(3):
        history.now_ms += 2 * DAY_MS
        history.clean()
    assert history.index_entries() == []
    found = []
    for window in [first, *reader]:
        found += [
            (record.offset, record.value)
            for record in records(window.segment.view(), window.rows, visible=window.visible)
        ]
    assert found == [(record.offset, record.value) for record in expected]
    assert history.committed() == [(2, b"1"), (5, b"2")]


def test_readers_and_a_writer_go_on_during_cleaning(tmp_path: Path) -> None:
    """Goal: no reader ever sees an aborted record, an error, or a key without its value.
    Method: two threads read at read_committed over and over while one writes, rolls and aborts, and one cleans."""
    history = History(tmp_path / "compact-0", segment=SegmentOptions(segment_bytes=4096))
    stop = threading.Event()
    errors: list[BaseException] = []
    history.put(*[(b"%d" % key, b"0") for key in range(8)])

    def read() -> None:
        try:
            while not stop.is_set():
                found = seen(history.partition)
                assert all(record.value != b"never" for record in found)
                assert {record.key for record in found} >= {b"%d" % key for key in range(8)}
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    def write() -> None:
        try:
            for turn in range(120):
                history.put(*[(b"%d" % key, b"%d" % turn) for key in range(8)])
                history.txn(7, *[(b"%d" % key, b"never") for key in range(8)])
                history.abort(7)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)
        finally:
            stop.set()

    threads = [threading.Thread(target=target) for target in (read, read, write)]
    for thread in threads:
        thread.start()
    passes = 0
    while not stop.is_set() and not errors:
        history.clean(roll=False)
        passes += 1
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    assert passes
    history.clean()
    assert history.latest() == {b"%d" % key: b"119" for key in range(8)}


# ---------------------------------------------------------------- files


def test_snapshots_of_segments_that_are_gone_go_with_them(history: History) -> None:
    for turn in range(4):
        history.put((b"a", b"%d" % turn), producer=5)
        history.roll()
    assert {name for name in history.names() if name.endswith(".snapshot")} == {
        f"{offset:020d}.snapshot" for offset in (1, 2, 3, 4)
    }
    history.clean()
    assert {name for name in history.names() if name.endswith(".snapshot")} == {
        f"{4:020d}.snapshot"
    }
    assert [segment.base_offset for segment in history.partition.log.segments] == [0, 4]


def test_a_cleaned_log_opens_recovers_and_finds_offsets_and_times(history: History) -> None:
    """Goal: the cleaned files are sound: indexes, a recovery that re-reads everything, lookups."""
    for turn in range(50):
        history.now_ms += 1000
        history.put(*[(b"%d" % (key % 7), b"%d" % turn) for key in range(turn % 5 + 1)], producer=5)
        if turn % 9 == 0:
            history.txn(7, (b"x", b"never"))
            history.abort(7)
            history.roll()
    history.clean()
    expected = history.seen()
    producers = history.partition.need_state().table.snapshot().tolist()
    for is_clean in (True, False):
        history.reopen(is_clean=is_clean)
        assert history.partition.damage == []
        assert history.seen() == expected
        assert history.partition.need_state().table.snapshot().tolist() == producers
        for record in expected:
            window = next(
                history.partition.windows(
                    record.offset, record.offset + 1, Isolation.READ_COMMITTED
                )
            )
            assert int(window.rows["base_offset"][0]) <= record.offset
            found = history.partition.offset_for_timestamp(record.timestamp)
            assert found is not None
            assert found[0] >= record.timestamp
    assert history.partition.max_timestamp() == (expected[-1].timestamp, expected[-1].offset)


def test_cleaning_twice_changes_nothing(history: History) -> None:
    history.put((b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    history.txn(7, (b"a", b"3"))
    history.commit(7)
    history.clean()
    before = [bytes(segment.view()) for segment in history.partition.log.segments]
    history.first_dirty = 0
    history.clean()
    assert [bytes(segment.view()) for segment in history.partition.log.segments] == before


# ---------------------------------------------------------------- the map


def test_the_hash_is_siphash() -> None:
    """Method: the first two vectors of the reference implementation, 128 bits."""
    assert key_hash(b"", SEED).hex() == "a3817f04ba25a8e66df67214c7550293"
    assert key_hash(b"\x00", SEED).hex() == "da87c1d86b99af44347659119b22fc45"


def test_the_map_keeps_the_last_offset_of_each_key_and_stops_when_it_is_full() -> None:
    batches = encode(
        [b"v"] * 6,
        keys=[b"a", b"b", b"a", None, b"c", b"d"],
        base_offset=10,
        timestamp_ms=0,
        batch_size=1,
    )
    rows = scan(batches)
    offsets = OffsetMap(8, 3, SEED)
    taken = offsets.add(batches, rows, np.ones(6, np.bool_))
    assert taken == 5
    assert len(offsets) == 3
    assert [offsets.find(key) for key in (b"a", b"b", b"c", b"d")] == [12, 11, 14, -1]
    fresh = OffsetMap(8, 3, SEED)
    assert fresh.add(batches, rows, np.array([1, 0, 1, 1, 0, 0], np.bool_), start_offset=11) == 6
    assert [fresh.find(key) for key in (b"a", b"b")] == [12, -1]


@pytest.mark.parametrize(("slots", "capacity"), [(1, 1), (4, 4), (4, 0), (0, 0)])
def test_a_map_without_an_empty_slot_is_refused(slots: int, capacity: int) -> None:
    with pytest.raises(ValueError, match="slots"):
        OffsetMap(slots, capacity, SEED)
