"""What a broker's cleaner left behind reads, recovers and verifies, and cleaning it again keeps what readers see."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from oncelog.base.disk import Disk
from oncelog.log.checkpoint import CLEANER, read_offsets
from oncelog.log.log import LogOptions
from oncelog.partition.compaction import Candidate, CompactionOptions, Compactor
from oncelog.partition.data_directory import DataDirectory
from oncelog.partition.partition import Isolation, PartitionOptions
from oncelog.partition.verify import verify
from oncelog.segment.batch import Attributes
from oncelog.segment.names import parse_directory
from oncelog.segment.segment import SegmentOptions

from ..golden_cases import GOLDEN, expected
from .histories import DAY_MS, History, Seen

if TYPE_CHECKING:
    from pathlib import Path

DATA = GOLDEN / "compacted" / "data"
NAMES = ("compact-0", "compact-nodelay-0", "compact-lz4-0")
# Just after the last marker, when no delete horizon has passed but those without a delay.
AFTER_MS = 1_794_796_263_000
RETENTION_MS = {"compact-0": DAY_MS, "compact-nodelay-0": 0, "compact-lz4-0": DAY_MS}


def opened(tmp_path: Path, name: str, *, is_clean: bool = True) -> History:
    """A copy of one of the broker's partitions, with the topic's settings; its clock stands after the last write."""
    target = tmp_path / name
    if not target.exists():
        shutil.copytree(DATA / name, target)
        shutil.copy(DATA / CLEANER, tmp_path / CLEANER)
    segment = SegmentOptions(segment_bytes=8192, index_interval_bytes=512)
    history = History(
        target,
        options=PartitionOptions(log=LogOptions(segment=segment)),
        segment=segment,
        is_clean=is_clean,
    )
    history.partition.key = parse_directory(name)
    history.now_ms = AFTER_MS
    return history


def latest(records: list[Seen]) -> dict[bytes | None, tuple[int, bytes | None]]:
    return {record.key: (record.offset, record.value) for record in records}


@pytest.mark.parametrize("name", NAMES)
def test_the_brokers_checkpoint_says_where_its_log_is_dirty(tmp_path: Path, name: str) -> None:
    """Goal: cleaning goes on where the broker's cleaner stopped: at the active segment, so nothing is dirty."""
    history = opened(tmp_path, name)
    compactor = Compactor(str(tmp_path), Disk())
    rules = CompactionOptions(RETENTION_MS[name], 0, 2**63 - 1, 0.01)
    log = compactor.cleanable(Candidate(history.partition, rules), AFTER_MS)
    assert log.first_dirty == read_offsets(f"{DATA}/{CLEANER}")[history.partition.key]
    assert log.first_dirty == log.end == history.partition.log.active.base_offset
    assert log.dirty_bytes == 0
    assert compactor.filthiest([log.candidate], AFTER_MS) is None


@pytest.mark.parametrize("name", NAMES)
def test_cleaning_a_cleaned_log_again_keeps_the_committed_view(tmp_path: Path, name: str) -> None:
    """Goal: with nothing newer and no horizon passed, a second cleaner finds nothing to do for readers: the same
    records with the same offsets and timestamps, the same end, the same producers.
    Method: clean from the first offset on, in our groups, then read at both levels, reopen, recover."""
    history = opened(tmp_path, name)
    committed = history.seen()
    uncommitted = history.seen(Isolation.READ_UNCOMMITTED)
    producers = history.partition.need_state().table.snapshot().tolist()
    assert [record.offset for record in committed] == expected("compacted")["partitions"][name][
        "readCommittedOffsets"
    ]
    done = history.clean(delete_retention_ms=RETENTION_MS[name], roll=False)
    assert done.records_kept <= done.records_read
    assert history.partition.log_end_offset == 942
    kept = [record for record in committed if record.value is not None]
    for is_clean in (True, True, False):
        found = history.seen()
        tombstones = [record for record in committed if record.value is None]
        if RETENTION_MS[name]:
            assert found == committed
            assert history.seen(Isolation.READ_UNCOMMITTED) == uncommitted
        else:
            assert [record for record in found if record.value is not None] == kept
            assert {record for record in found if record.value is None} <= set(tombstones)
        assert history.partition.need_state().table.snapshot().tolist() == producers
        assert history.partition.damage == []
        history.reopen(is_clean=is_clean)


@pytest.mark.parametrize("name", NAMES)
def test_our_cleaner_agrees_with_the_broker_on_what_a_clean_log_holds(
    tmp_path: Path, name: str
) -> None:
    """Goal: where both have cleaned, batches agree: what the broker kept in the cleaned part for its data, its
    producers and its horizons, we keep too, byte for byte, except what more has become removable.
    Method: our pass at the broker's last hour over its own result."""
    history = opened(tmp_path, name)
    before = {int(row["base_offset"]): row for row in history.rows()}
    history.clean(delete_retention_ms=RETENTION_MS[name], roll=False)
    after = {int(row["base_offset"]): row for row in history.rows()}
    assert set(after) <= set(before)
    for offset, row in after.items():
        old = before[offset]
        for field in ("last_offset_delta", "producer_id", "producer_epoch", "base_sequence"):
            if int(row["record_count"]) or int(row["producer_id"]) >= 0:
                assert row[field] == old[field]
        if old["attributes"] & Attributes.DELETE_HORIZON and row["record_count"]:
            assert row["base_timestamp"] == old["base_timestamp"], "a horizon is set once"
    gone = [before[offset] for offset in set(before) - set(after)]
    if RETENTION_MS[name]:
        assert all(int(row["record_count"]) == 0 for row in gone)
    data = [row for row in before.values() if not row["attributes"] & Attributes.CONTROL]
    if RETENTION_MS[name]:
        assert all(int(row["base_offset"]) in after for row in data if row["record_count"])


@pytest.mark.parametrize("name", NAMES)
def test_after_every_horizon_only_live_values_and_producers_are_left(
    tmp_path: Path, name: str
) -> None:
    """Goal: years later the cleaned part holds each key's value, the producers' last batches, and no marker whose
    transaction is gone; nothing aborted shows at any time."""
    history = opened(tmp_path, name)
    values = {key: found for key, found in latest(history.seen()).items() if found[1] is not None}
    aborted = {record.offset for record in history.seen(Isolation.READ_UNCOMMITTED)} - {
        record.offset for record in history.seen()
    }
    history.roll()
    for _ in range(4):
        history.now_ms += 400 * DAY_MS
        history.clean(delete_retention_ms=RETENTION_MS[name])
        assert aborted.isdisjoint(offset for offset, _ in history.committed())
        found = {key: at for key, at in latest(history.seen()).items() if at[1] is not None}
        assert found == values
    assert {record.key for record in history.seen()} == set(values)
    rows = history.rows()
    data = rows[(rows["attributes"] & Attributes.CONTROL) == 0]
    transactional = {
        int(row["producer_id"]) for row in data if row["attributes"] & Attributes.TRANSACTIONAL
    }
    known = {int(row["producer_id"]) for row in history.partition.need_state().table.snapshot()}
    markers = rows[rows["control_type"] >= 0]
    assert {int(row["producer_id"]) for row in markers} <= transactional | known
    assert history.index_entries() == []


def test_a_directory_that_was_cleaned_again_and_again_verifies(tmp_path: Path) -> None:
    """Goal: every file of a cleaned log is what the verifier expects: logs, indexes, snapshots, checkpoints.
    Method: the broker's directory, cleaned by us at once and after its horizons have passed, verified each time."""
    target = tmp_path / "data"
    shutil.copytree(DATA, target)
    segment = SegmentOptions(segment_bytes=8192, index_interval_bytes=512)
    options = PartitionOptions(log=LogOptions(segment=segment))
    assert verify(str(target)).is_sound
    for days in (0, 2, 4, 6):
        now_ms = AFTER_MS + days * DAY_MS
        directory = DataDirectory(
            target, Disk(), now_ms=lambda: AFTER_MS, options_of=lambda _: options
        )
        compactor = Compactor(str(target), Disk())
        rules = CompactionOptions(DAY_MS, 0, 2**63 - 1, 0.0)
        for name in NAMES:
            partition = directory.get(parse_directory(name))
            partition.roll(now_ms)
            log = compactor.cleanable(Candidate(partition, rules), now_ms)
            assert compactor.clean(log, now_ms) is not None
        directory.close()
        report = verify(str(target))
        assert report.is_sound, report.damage
