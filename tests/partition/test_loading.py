"""Opening a directory after a clean stop, after a crash, and with files missing, strange or damaged (LogLoader,
LogManager, CleanShutdownFileHandler)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oncelog.base.errors import InconsistentTopicIdError, InvalidTopicError
from oncelog.log.checkpoint import (
    CLEAN_SHUTDOWN,
    LOG_START,
    RECOVERY_POINT,
    read_offsets,
    write_offsets,
)
from oncelog.segment.names import TopicPartition
from tests.partition.logs import (
    ABORT,
    COMMIT,
    KEY,
    NOW,
    TOPIC_ID,
    UNCOMMITTED,
    Writer,
    contents,
    open_directory,
    open_partition,
    options,
    read,
    values,
)
from tests.sim.sim_disk import CountingDisk

if TYPE_CHECKING:
    from oncelog.partition.partition import Partition

SMALL = options(segment_bytes=500, interval=100)


def crashed(path: Path, target: Path) -> Path:
    """The directory as a process that dies now would leave it."""
    shutil.copytree(path, target)
    return target


def fill(partition: Partition, turns: int = 9) -> None:
    """Segments with committed, aborted and plain records; one transaction spans several and is left open."""
    longest, writer = Writer(partition, 1), Writer(partition, 2)
    longest.send(values(2, "long"), transactional=True)
    for turn in range(turns):
        writer.send(values(2, f"t{turn}."), transactional=True)
        Writer(partition).send(values(2, f"p{turn}."))
        writer.end(ABORT if turn % 2 else COMMIT)
    longest.send(values(1, "longer"), transactional=True)


def facts(partition: Partition) -> dict[str, Any]:
    """All that opening must find again."""
    end = partition.log_end_offset
    return {
        "offsets": (partition.log_start_offset, partition.last_stable_offset, end),
        "committed": read(partition),
        "all": read(partition, UNCOMMITTED),
        "aborted": partition.aborted_transactions(0, end).tolist(),
        "producers": partition.need_state().table.snapshot().tolist(),
        "epochs": partition.epochs.entries,
        "segments": [(segment.base_offset, segment.size) for segment in partition.log.segments],
    }


def derived(partition: Partition) -> dict[str, bytes]:
    """Bytes of indexes, by name, as a clean stop leaves them."""
    return {
        path.name: path.read_bytes()
        for path in sorted(Path(partition.directory).iterdir())
        if path.suffix in (".index", ".timeindex", ".txnindex")
    }


@pytest.fixture
def filled(tmp_path: Path) -> tuple[Path, dict[str, Any], dict[str, bytes]]:
    """A directory that was stopped cleanly, what was in it, and its indexes."""
    directory, partition = open_partition(tmp_path / "data", SMALL)
    fill(partition)
    known = facts(partition)
    directory.close()
    return tmp_path / "data", known, derived(partition)


def check(path: Path, known: dict[str, Any], indexes: dict[str, bytes] | None = None) -> None:
    """A reader and a writer find the same; the reader changes nothing, and after the writer all files are whole."""
    before = contents(path)
    directory, partition = open_partition(path, SMALL, read_only=True)
    assert facts(partition) == known
    directory.close()
    assert contents(path) == before
    directory, partition = open_partition(path, SMALL)
    assert facts(partition) == known
    directory.close()
    if indexes is not None:
        assert derived(partition) == indexes


def test_a_clean_stop_is_found_as_it_was_left(filled: Any) -> None:
    path, known, indexes = filled
    assert len(known["segments"]) > 3
    assert (path / CLEAN_SHUTDOWN).exists()
    assert read_offsets(str(path / RECOVERY_POINT)) == {KEY: known["offsets"][2]}
    check(path, known, indexes)


def test_the_marker_goes_as_soon_as_the_directory_is_opened_for_writing(filled: Any) -> None:
    path, _, _ = filled
    open_directory(path, SMALL, read_only=True).close()
    assert (path / CLEAN_SHUTDOWN).exists()
    directory = open_directory(path, SMALL)
    assert not (path / CLEAN_SHUTDOWN).exists()
    directory.close()
    assert (path / CLEAN_SHUTDOWN).exists()


def test_a_marker_that_says_something_else_still_counts(filled: Any) -> None:
    path, known, _ = filled
    for text in ('{"version":0,"brokerEpoch":7,"more":[1]}', "", "not json"):
        (path / CLEAN_SHUTDOWN).write_text(text)
        directory = open_directory(path, SMALL, read_only=True)
        assert directory.is_clean
        directory.close()
    check(path, known)


def test_after_a_crash_everything_written_is_there_and_derived_files_are_made_anew(
    tmp_path: Path,
) -> None:
    directory, partition = open_partition(tmp_path / "data", SMALL)
    fill(partition)
    known = facts(partition)
    copy = crashed(tmp_path / "data", tmp_path / "crashed")
    directory.close()
    assert not (copy / CLEAN_SHUTDOWN).exists()
    check(copy, known, derived(partition))


@pytest.mark.parametrize("synced", [False, True])
def test_a_torn_tail_is_cut_and_later_segments_go(tmp_path: Path, synced: bool) -> None:
    """Goal: the first bad batch ends the log, also when the recovery point lies in a later segment: what lies
    before it was on disk and is not looked at.
    Method: damage a batch in the second segment, with and without a sync before the crash."""
    directory, partition = open_partition(tmp_path / "data", SMALL)
    fill(partition)
    if synced:
        partition.sync()
        directory.checkpoint()
    second = partition.log.segments[1]
    copy = crashed(tmp_path / "data", tmp_path / "crashed")
    end = partition.log_end_offset
    directory.close()
    log = copy / "orders-0" / Path(second.path(".log")).name
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    directory, partition = open_partition(copy, SMALL, read_only=True)
    shown = partition.log_end_offset
    directory.close()
    directory, partition = open_partition(copy, SMALL, disk=CountingDisk())
    assert partition.log_end_offset == shown
    if synced:
        assert shown == end
        assert not partition.damage
    else:
        assert second.base_offset < shown < end
        assert len(partition.damage) == 1
        assert len(partition.log.segments) == 2
        assert partition.log.active.size < len(data)
        assert Writer(partition).send(values(1)).base_offset == shown
    directory.close()


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
@pytest.mark.parametrize("how", ["missing", "zeros", "random", "half", "empty"])
def test_an_index_that_is_missing_or_wrong_is_made_anew_after_a_crash(
    filled: Any, suffix: str, how: str
) -> None:
    path, known, indexes = filled
    (path / CLEAN_SHUTDOWN).unlink()
    (path / RECOVERY_POINT).unlink()
    for file in (path / "orders-0").glob(f"*{suffix}"):
        data = file.read_bytes()
        if how == "missing":
            file.unlink()
        else:
            file.write_bytes(
                {
                    "zeros": bytes(4096),
                    "random": bytes(range(256)) * 3,
                    "half": data[: len(data) // 2],
                    "empty": b"",
                }[how]
            )
    check(path, known, indexes)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("how", ["missing", "zeros", "odd"])
def test_an_offset_or_time_index_that_is_missing_or_wrong_is_made_anew_after_a_clean_stop(
    filled: Any, suffix: str, how: str
) -> None:
    path, known, _indexes = filled
    for file in (path / "orders-0").glob(f"*{suffix}"):
        if how == "missing":
            file.unlink()
        else:
            file.write_bytes(bytes(4096) if how == "zeros" else file.read_bytes() + b"odd")
    check(path, known)


def test_files_that_belong_to_no_segment_are_removed(filled: Any) -> None:
    path, known, indexes = filled
    where = path / "orders-0"
    strays = [
        f"{777:020d}.index",
        f"{777:020d}.timeindex",
        f"{777:020d}.txnindex",
        f"{3:020d}.snapshot",
        f"{0:020d}.log.deleted",
        f"{0:020d}.index.deleted",
        f"{0:020d}.log.cleaned",
        f"{0:020d}.timeindex.cleaned",
        "leader-epoch-checkpoint.tmp",
    ]
    for name in strays:
        (where / name).write_bytes(b"left behind")
    (where / "notes.txt").write_text("not ours")
    check(path, known, indexes)
    left = {file.name for file in where.iterdir()}
    assert not left & set(strays)
    assert "notes.txt" in left


def test_snapshots_lie_at_segment_starts_and_the_newest_at_the_end(filled: Any) -> None:
    path, known, _ = filled
    where = path / "orders-0"
    bases = [base for base, _ in known["segments"]]
    found = sorted(int(file.stem) for file in where.glob("*.snapshot"))
    assert found == [*bases[1:], known["offsets"][2]]
    # A stray one below the active segment goes, even if it is the newest that matches nothing.
    (where / f"{known['offsets'][2]:020d}.snapshot").rename(
        where / f"{bases[-1] - 1:020d}.snapshot"
    )
    check(path, known)
    assert sorted(int(file.stem) for file in where.glob("*.snapshot")) == found


@pytest.mark.parametrize("how", ["empty", "cut", "flipped", "missing"])
def test_a_bad_snapshot_is_passed_over_for_an_older_one(filled: Any, how: str) -> None:
    path, known, _ = filled
    snapshots = sorted((path / "orders-0").glob("*.snapshot"))
    for count in range(1, len(snapshots) + 1):
        file = snapshots[-count]
        data = bytearray(file.read_bytes())
        if how == "missing":
            file.unlink()
            continue
        if how == "flipped":
            data[-1] ^= 1
        file.write_bytes({"empty": b"", "cut": data[:-3], "flipped": data}[how])
        directory, partition = open_partition(path, SMALL, read_only=True)
        assert facts(partition) == known
        directory.close()
    check(path, known)


def test_snapshots_after_the_recovery_point_are_not_trusted_after_a_crash(tmp_path: Path) -> None:
    """Goal: they were not synced with the log; what they say may never have been written.
    Method: swap a snapshot for one with other producers; only recovery from before it shows the truth."""
    directory, partition = open_partition(tmp_path / "data", SMALL)
    fill(partition)
    known = facts(partition)
    copy = crashed(tmp_path / "data", tmp_path / "crashed")
    directory.close()
    snapshots = sorted((copy / "orders-0").glob("*.snapshot"))
    liar = snapshots[0].read_bytes()
    other_directory, other = open_partition(tmp_path / "other", SMALL)
    Writer(other, 55).send(values(1))
    other_directory.close()
    (written,) = (tmp_path / "other" / "orders-0").glob("*.snapshot")
    for file in snapshots:
        assert file.read_bytes() != written.read_bytes()
        file.write_bytes(written.read_bytes())
    check(copy, known)
    assert snapshots[0].read_bytes() == liar, "made anew at the segment's start"


def test_the_recovery_point_may_lie_past_the_end(filled: Any) -> None:
    path, known, indexes = filled
    (path / CLEAN_SHUTDOWN).unlink()
    write_offsets(CountingDisk(), str(path / RECOVERY_POINT), {KEY: 10**6})
    check(path, known, indexes)


@pytest.mark.parametrize("text", ["", "0\n", "0\n1\n", "1\n0\n", "nonsense", "0\n1\norders 0 x\n"])
def test_a_damaged_recovery_point_means_recovery_from_the_start(filled: Any, text: str) -> None:
    path, known, indexes = filled
    (path / CLEAN_SHUTDOWN).unlink()
    (path / RECOVERY_POINT).write_text(text)
    check(path, known, indexes)


@pytest.mark.parametrize("clean", [True, False])
def test_an_end_below_the_start_empties_the_log_and_goes_on_at_the_start(
    filled: Any, clean: bool
) -> None:
    path, known, _ = filled
    start = known["offsets"][2] + 50
    write_offsets(CountingDisk(), str(path / LOG_START), {KEY: start})
    if not clean:
        (path / CLEAN_SHUTDOWN).unlink()
    before = contents(path)
    directory, partition = open_partition(path, SMALL, read_only=True)
    assert facts(partition)["offsets"] == (start, start, start)
    assert facts(partition)["all"] == []
    directory.close()
    assert contents(path) == before
    directory, partition = open_partition(path, SMALL)
    assert facts(partition)["offsets"] == (start, start, start)
    assert partition.epochs.entries == []
    assert partition.need_state().table.snapshot().tolist() == []
    Writer(partition, 1, sequence=9).send(values(2), bumps_epoch=False)
    known = facts(partition)
    directory.close()
    assert known["segments"][0][0] == start
    check(path, known)


def test_an_empty_active_segment_is_fine(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path, SMALL)
    fill(partition)
    partition.roll(NOW)
    known = facts(partition)
    assert known["segments"][-1][1] == 0
    directory.close()
    check(tmp_path, known)
    (tmp_path / CLEAN_SHUTDOWN).unlink()
    check(tmp_path, known)


def test_epochs_past_the_end_and_before_the_start_are_cut(filled: Any) -> None:
    path, known, _ = filled
    end = known["offsets"][2]
    file = path / "orders-0" / "leader-epoch-checkpoint"
    file.write_text(f"0\n3\n0 0\n4 {end}\n5 {end + 4}\n")
    check(path, known)
    assert file.read_text() == "0\n1\n0 0\n"
    directory, partition = open_partition(path, SMALL)
    partition.delete_records(7)
    assert partition.epochs.entries == [(0, 7)]
    directory.close()


def test_a_damaged_epoch_file_is_made_anew_from_the_batches(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path, SMALL)
    for epoch in (0, 0, 3, 3, 7):
        Writer(partition).send(values(3), leader_epoch=epoch)
    known = facts(partition)
    assert known["epochs"] == [(0, 0), (3, 6), (7, 12)]
    directory.close()
    file = tmp_path / "orders-0" / "leader-epoch-checkpoint"
    for text in ("0\n3\n0 0\n", "garbage"):
        file.write_text(text)
        check(tmp_path, known)


def test_a_marker_of_an_older_coordinator_in_the_log_does_not_fail_recovery(tmp_path: Path) -> None:
    """Only live appends are judged."""
    from oncelog.segment.batch import encode_marker

    directory, partition = open_partition(tmp_path / "data", SMALL)
    for offset, epoch in enumerate((9, 2)):
        marker = encode_marker(
            COMMIT,
            producer_id=1,
            producer_epoch=5 - offset,
            coordinator_epoch=epoch,
            timestamp_ms=NOW,
            base_offset=offset,
        )
        partition.append_as_follower(marker, now_ms=NOW)
    known = facts(partition)
    copy = crashed(tmp_path / "data", tmp_path / "crashed")
    directory.close()
    check(copy, known)


def test_the_start_moved_by_delete_records_is_found_again(tmp_path: Path) -> None:
    """Also in the middle of a segment, where producers whose batches lie below it stay known, as in the live log."""
    directory, partition = open_partition(tmp_path / "data", SMALL)
    fill(partition)
    start = partition.log.segments[2].base_offset + 1
    assert partition.delete_records(start) == start
    assert partition.log.start_offset == start - 1
    known = facts(partition)
    directory.checkpoint()
    copy = crashed(tmp_path / "data", tmp_path / "crashed")
    directory.close()
    check(tmp_path / "data", known)
    check(copy, known)


def test_a_directory_without_checkpoints_is_recovered(filled: Any) -> None:
    """A partition's directory on its own, as it is copied from a broker."""
    path, known, _ = filled
    directory = open_directory(path / "orders-0", SMALL, read_only=True)
    assert directory.partitions == [KEY]
    assert facts(directory.get(KEY)) == known
    directory.close()


def test_another_topic_id_is_refused(filled: Any) -> None:
    path, _, _ = filled
    directory = open_directory(path, SMALL)
    with pytest.raises(InconsistentTopicIdError, match=TOPIC_ID):
        directory.create(KEY, "BBBBBBBBBBBBBBBBBBBBBB")
    directory.create(KEY, TOPIC_ID)
    directory.close()


def test_the_topic_id_is_on_disk_before_the_first_batch(tmp_path: Path) -> None:
    directory, _ = open_partition(tmp_path)
    assert (tmp_path / "orders-0" / "partition.metadata").read_text() == (
        f"version: 0\ntopic_id: {TOPIC_ID}"
    )
    directory.close()


def test_a_topic_of_the_greatest_length_can_be_made(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    key = TopicPartition("t" * 249, 0)
    Writer(directory.create(key, TOPIC_ID)).send(values(1))
    with pytest.raises(InvalidTopicError):
        directory.create(TopicPartition("t" * 250, 0), TOPIC_ID)
    directory.close()
    directory = open_directory(tmp_path)
    assert directory.get(key).log_end_offset == 1
    directory.close()


def test_opening_and_closing_without_a_write_changes_no_log_and_no_snapshot(filled: Any) -> None:
    path, _, _ = filled
    before = contents(path)
    directory = open_directory(path, SMALL)
    directory.get(KEY)
    directory.close()
    assert contents(path) == before


def test_a_live_directory_is_read_without_being_changed(tmp_path: Path) -> None:
    """Goal: a reader beside a writer sees what recovery would keep, again and again.
    Method: open it read-only after every few writes, with indexes preallocated and the marker gone."""
    directory, partition = open_partition(tmp_path, SMALL)
    writer = Writer(partition, 1)
    for turn in range(6):
        writer.send(values(4, f"t{turn}."), transactional=True)
        Writer(partition).send(values(1))
        if turn % 2:
            writer.end(ABORT)
        before = contents(tmp_path)
        reading, shown = open_partition(tmp_path, SMALL, read_only=True)
        assert facts(shown) == facts(partition)
        reading.close()
        assert contents(tmp_path) == before
    directory.close()


@pytest.mark.parametrize("read_only", [True, False], ids=["reader", "writer"])
def test_a_rotten_last_batch_of_a_clean_directory_is_cut_and_told(
    tmp_path: Path, read_only: bool
) -> None:
    """Goal: one bad batch at the end does not keep the rest from being read or the log from being written; a reader
    leaves the file as it is.
    Method: flip a bit in the last batch's records after a clean stop."""
    directory, partition = open_partition(tmp_path)
    for number in range(5):
        Writer(partition).send(values(2, f"{number}."))
    path = partition.log.active.path(".log")
    directory.close()
    content = bytearray(Path(path).read_bytes())
    content[-3] ^= 1
    Path(path).write_bytes(content)
    directory, partition = open_partition(tmp_path, read_only=read_only)
    assert [offset for offset, _ in read(partition)] == list(range(8))
    assert partition.log_end_offset == partition.last_stable_offset == 8
    (damage,) = partition.damage
    assert "checksum" in str(damage)
    assert (Path(path).read_bytes() == content) is read_only
    if not read_only:
        assert Writer(partition).send(values(1)).base_offset == 8
    directory.close()
