"""Retention removes whole segments that are too old, too many, or below the log start, and nothing else."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from oncelog.base.errors import OffsetOutOfRangeError
from oncelog.partition.partition import Isolation, Partition
from oncelog.partition.retention import RetentionOptions, apply_retention

from .histories import START_MS, History

if TYPE_CHECKING:
    from pathlib import Path

DELETE, COMPACT = frozenset({"delete"}), frozenset({"compact"})
BOTH = DELETE | COMPACT


@pytest.fixture
def history(tmp_path: Path) -> History:
    """Four sealed segments of two records, 1,000 ms apart, and an active one of two."""
    history = History(tmp_path / "plain-0")
    for turn in range(5):
        history.put((b"k", b"%d" % turn), (b"k", b"%d" % turn), producer=5)
        if turn < 4:
            history.roll()
            history.now_ms += 1000
    return history


def bases(history: History) -> list[int]:
    return [segment.base_offset for segment in history.partition.log.segments]


def by_time(retention_ms: int) -> RetentionOptions:
    return RetentionOptions(DELETE, retention_ms, -1)


def by_size(retention_bytes: int) -> RetentionOptions:
    return RetentionOptions(DELETE, -1, retention_bytes)


def test_segments_go_whose_largest_timestamp_is_too_old(history: History) -> None:
    """Goal: a segment is as young as its youngest record; exactly retention.ms old is not too old."""
    newest = START_MS + 1  # of the first segment, by its second record
    assert apply_retention(history.partition, by_time(5000), newest + 5000) == 0
    assert apply_retention(history.partition, by_time(5000), newest + 5001) == 1
    assert bases(history) == [2, 4, 6, 8]
    assert apply_retention(history.partition, by_time(5000), newest + 7001) == 2
    assert bases(history) == [6, 8]


def test_an_old_segment_behind_a_young_one_stays(tmp_path: Path) -> None:
    """Goal: removal is from the start on; a log never gets a hole."""
    history = History(tmp_path / "plain-0")
    history.put((b"k", b"1"), timestamps=[START_MS])
    history.roll()
    history.put((b"k", b"2"), timestamps=[START_MS - 50_000])
    history.roll()
    assert apply_retention(history.partition, by_time(1000), START_MS + 500) == 0
    assert bases(history) == [0, 1, 2]


def test_oldest_segments_go_while_the_log_is_over_its_size(history: History) -> None:
    size = history.partition.log.segments[0].size
    assert apply_retention(history.partition, by_size(5 * size), START_MS) == 0
    assert apply_retention(history.partition, by_size(4 * size + 1), START_MS) == 0
    assert apply_retention(history.partition, by_size(4 * size), START_MS) == 1
    assert apply_retention(history.partition, by_size(2 * size - 1), START_MS) == 2
    assert bases(history) == [6, 8]


def test_it_is_idempotent(history: History) -> None:
    options = RetentionOptions(DELETE, 2000, 3 * history.partition.log.segments[0].size)
    assert apply_retention(history.partition, options, history.now_ms) == 2
    names = history.names()
    assert apply_retention(history.partition, options, history.now_ms) == 0
    assert history.names() == names


def test_the_active_segment_is_rolled_when_everything_has_expired(history: History) -> None:
    """Goal: a log that nobody writes to empties in the end; its offsets and its producers go on."""
    assert apply_retention(history.partition, by_time(0), history.now_ms + 10_000) == 5
    assert bases(history) == [10]
    assert history.partition.log_start_offset == history.partition.log_end_offset == 10
    assert history.seen(Isolation.READ_UNCOMMITTED) == []
    assert apply_retention(history.partition, by_time(0), history.now_ms + 20_000) == 0
    assert history.put((b"k", b"next"), producer=5) == 10
    history.reopen()
    assert history.partition.log_start_offset == 10
    assert history.put((b"k", b"next"), producer=5) == 11


def test_an_active_segment_that_is_needed_is_neither_rolled_nor_removed(history: History) -> None:
    before = bytes(history.partition.log.active.view())
    assert apply_retention(history.partition, by_time(500), history.now_ms + 400) == 4
    assert bases(history) == [8]
    assert bytes(history.partition.log.active.view()) == before


def test_nothing_at_or_above_the_high_watermark_goes(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: what is not replicated is not removed, whole segments only.
    Method: a partition whose watermark lies inside the third segment."""
    monkeypatch.setattr(Partition, "high_watermark", property(lambda _: 5))
    assert apply_retention(history.partition, by_time(0), history.now_ms + 10_000) == 2
    assert bases(history) == [4, 6, 8]
    assert apply_retention(history.partition, by_size(0), history.now_ms) == 0


def test_no_limit_means_that_nothing_goes(history: History) -> None:
    options = RetentionOptions(DELETE, -1, -1)
    assert apply_retention(history.partition, options, 2**62) == 0
    assert len(bases(history)) == 5


def test_options_that_are_not_known_are_refused() -> None:
    """Goal: nothing is deleted because someone forgot an option or misspelt one."""
    with pytest.raises(TypeError):
        RetentionOptions()  # type: ignore[call-arg]
    for policy in (frozenset({"delet"}), frozenset({"delete", "other"})):
        with pytest.raises(ValueError, match=r"cleanup\.policy"):
            RetentionOptions(policy, -1, -1)
    for limits in ((-2, -1), (-1, -5)):
        with pytest.raises(ValueError, match=r"retention\.ms"):
            RetentionOptions(DELETE, *limits)


def test_compact_only_topics_are_not_cut_but_compact_and_delete_are(history: History) -> None:
    assert apply_retention(history.partition, RetentionOptions(COMPACT, 0, 0), 2**62) == 0
    assert len(bases(history)) == 5
    assert apply_retention(history.partition, RetentionOptions(BOTH, 1500, -1), history.now_ms) == 3


@pytest.mark.parametrize("policy", [DELETE, COMPACT, BOTH])
def test_segments_below_the_log_start_always_go(history: History, policy: frozenset[str]) -> None:
    """Goal: a log start that was moved, here by a checkpoint, takes its segments with it under any policy."""
    history.partition.log_start_offset = 5
    options = RetentionOptions(policy, -1, -1)
    assert apply_retention(history.partition, options, history.now_ms) == 2
    assert bases(history) == [4, 6, 8]
    assert history.partition.log_start_offset == 5
    assert history.offsets() == [5, 6, 7, 8, 9]
    with pytest.raises(OffsetOutOfRangeError):
        history.partition.fetch(4, 1000, Isolation.READ_UNCOMMITTED)


def test_snapshots_of_removed_segments_go_with_them(history: History) -> None:
    def snapshots() -> list[str]:
        return sorted(name[18:20] for name in history.names() if name.endswith(".snapshot"))

    assert snapshots() == ["02", "04", "06", "08"]
    apply_retention(history.partition, by_time(1500), history.now_ms)
    assert bases(history) == [6, 8]
    assert snapshots() == ["06", "08"]
    assert not [name for name in history.names() if name.endswith(".deleted")]


def test_records_without_timestamps_count_from_when_their_file_was_written(tmp_path: Path) -> None:
    """Goal: a timestamp of -1 is not 1969: as in Kafka the file's own time stands for it."""
    history = History(tmp_path / "plain-0")
    history.put((b"k", b"1"), timestamps=[-1])
    history.roll()
    os.utime(history.path / "00000000000000000000.log", ns=(0, START_MS * 1_000_000))
    assert apply_retention(history.partition, by_time(1000), START_MS + 1000) == 0
    assert apply_retention(history.partition, by_time(1000), START_MS + 1001) == 1


def test_a_reader_of_a_removed_segment_goes_on(history: History) -> None:
    expected = history.offsets()
    reader = history.partition.windows(0, 2**63 - 1, Isolation.READ_UNCOMMITTED)
    found = [int(offset) for offset in next(reader).rows["base_offset"]]
    apply_retention(history.partition, by_time(0), history.now_ms + 10_000)
    for window in reader:
        found += [int(offset) for offset in window.rows["base_offset"]]
    assert found == expected[::2]


def test_part_of_a_transaction_may_go_and_the_rest_stays_hidden_or_shown(tmp_path: Path) -> None:
    """Goal: with its first segment gone an aborted transaction stays hidden, a committed one shows what is left."""
    history = History(tmp_path / "plain-0")
    history.txn(7, (b"a", b"never"))
    history.txn(8, (b"b", b"1"))
    history.roll()
    history.now_ms += 5000
    history.txn(7, (b"a", b"never"))
    history.txn(8, (b"b", b"2"))
    history.roll()
    history.abort(7)
    history.commit(8)
    apply_retention(history.partition, by_time(1000), history.now_ms)
    assert bases(history) == [2, 4]
    assert history.committed() == [(3, b"2")]
    history.reopen()
    assert history.committed() == [(3, b"2")]
