"""oncelog.open: what is there is listed and opened, whatever state it was left in, and left as it is."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import oncelog
from oncelog.base.errors import (
    ClosedError,
    CorruptRecordError,
    OncelogError,
    UnknownTopicOrPartitionError,
)
from oncelog.segment.names import TopicPartition

from ..golden_cases import CASES, GOLDEN, expected
from ..partition.logs import ABORT, COMMIT, TOPIC_ID, Writer, open_directory, options, values

if TYPE_CHECKING:
    from pathlib import Path

    from oncelog.client.directory import LogDirectory


def copied(case: str, tmp_path: Path) -> Path:
    data = tmp_path / "data"
    shutil.copytree(GOLDEN / case / "data", data)
    return data


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def committed(log: LogDirectory, topic: str, partition: int = 0) -> list[int]:
    return [record.offset for record in log.read(topic, partition)]


def test_topics_and_partitions_are_listed() -> None:
    """Goal: all of them, sorted, without the controller's log."""
    for case in CASES:
        with oncelog.open(GOLDEN / case / "data", read_only=True) as log:
            listed = {
                f"{topic}-{number}" for topic, parts in log.topics().items() for number in parts
            }
            assert listed == {
                name
                for name in expected(case)["partitions"]
                if (GOLDEN / case / "data" / name).is_dir()
            }
    with oncelog.open(str(GOLDEN / "txn-mixed" / "data"), read_only=True) as log:
        assert log.topics() == {"__transaction_state": [2, 3, 4], "mixed": [0], "side": [0, 1]}
        assert "6 partitions" in repr(log)
        assert log.path == str(GOLDEN / "txn-mixed" / "data")


def test_what_is_not_there_is_named_with_what_is() -> None:
    with oncelog.open(GOLDEN / "txn-mixed" / "data", read_only=True) as log:
        with pytest.raises(UnknownTopicOrPartitionError, match="mixed, side"):
            log.read("nothing")
        with pytest.raises(UnknownTopicOrPartitionError, match="nothing"):
            log.partition("nothing", 0)
        with pytest.raises(UnknownTopicOrPartitionError, match="0, 1, not 2"):
            log.read("side", 2)
        with pytest.raises(UnknownTopicOrPartitionError):
            log.read("__cluster_metadata", 0)


def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        oncelog.open(tmp_path / "missing", read_only=True)
    assert not (tmp_path / "missing").exists()


def test_an_empty_directory_has_no_topics(tmp_path: Path) -> None:
    with oncelog.open(tmp_path, read_only=True) as log:
        assert log.topics() == {}
        with pytest.raises(UnknownTopicOrPartitionError, match="and no other"):
            log.read("any")


def test_without_read_only_a_directory_is_made_and_written(tmp_path: Path) -> None:
    with oncelog.open(tmp_path / "new") as log:
        log.create_topic("orders")
    with oncelog.open(tmp_path / "new", read_only=True) as reader:
        assert reader.topics() == {"orders": [0]}


def test_after_a_close_nothing_more_is_opened_and_what_was_read_stays(tmp_path: Path) -> None:
    log = oncelog.open(GOLDEN / "idempotent-plain" / "data", read_only=True)
    batches = list(log.read("plain", views=True).to_batches())
    before = [batch.to_pylist() for batch in batches]
    log.close()
    log.close()
    with pytest.raises(ClosedError):
        log.read("plain")
    assert [batch.to_pylist() for batch in batches] == before


def test_other_directories_and_files_are_passed_over(tmp_path: Path) -> None:
    """Goal: partitions that wait for their deletion, files of other programs, empty partitions."""
    data = copied("idempotent-plain", tmp_path)
    for name in ("gone-0.a1b2c3d4-delete", "moved-0.a1b2c3d4-future", "lost+found", "no number-x"):
        (data / name).mkdir()
        (data / name / "00000000000000000000.log").write_bytes(b"junk")
    (data / "file-0").write_bytes(b"a file, not a directory")
    (data / "empty-3").mkdir()
    with oncelog.open(data, read_only=True) as log:
        assert log.topics() == {"empty": [3], "plain": [0]}
        assert list(log.read("empty")) == []
        partition = log.partition("empty", 3)
        assert (partition.log_start_offset, partition.log_end_offset) == (0, 0)
        assert partition.max_timestamp() is None


def test_a_partitions_directory_opens_on_its_own(tmp_path: Path) -> None:
    """Goal: without checkpoints beside it nothing vouches for it, so it is proven like after a crash."""
    for case, name in (
        ("txn-mixed", "mixed-0"),
        ("compacted", "compact-0"),
        ("each-codec", "codec-zstd-0"),
    ):
        said = expected(case)["partitions"][name]
        with oncelog.open(GOLDEN / case / "data" / name, read_only=True) as log:
            topic = name.removesuffix("-0")
            assert log.topics() == {topic: [0]}
            assert committed(log, topic) == said["readCommittedOffsets"]
            assert log.partition(topic, 0).last_stable_offset == said["lastStableOffset"]


@pytest.mark.parametrize(
    "name",
    [
        ".kafka_cleanshutdown",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "log-start-offset-checkpoint",
        "cleaner-offset-checkpoint",
        "meta.properties",
    ],
)
@pytest.mark.parametrize("damage", ["removed", "garbage", "empty"])
def test_without_a_checkpoint_the_same_is_shown(tmp_path: Path, name: str, damage: str) -> None:
    """Goal: what only saves work may be lost; nothing is written to replace it."""
    data = copied("txn-mixed", tmp_path)
    if damage == "removed":
        (data / name).unlink()
    else:
        (data / name).write_bytes(b"" if damage == "empty" else b"\xff garbage \x00")
    before = contents(data)
    with oncelog.open(data, read_only=True) as log:
        for partition, said in expected("txn-mixed")["partitions"].items():
            topic, _, number = partition.rpartition("-")
            assert log.partition(topic, int(number)).last_stable_offset == said["lastStableOffset"]
            assert committed(log, topic, int(number)) == said["readCommittedOffsets"]
    assert contents(data) == before


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex", ".snapshot", "checkpoint"])
@pytest.mark.parametrize("damage", ["zeroed", "random", "cut"])
def test_derived_files_may_be_damaged(
    tmp_path: Path, suffix: str, damage: str, is_clean: bool
) -> None:
    """Goal: indexes, transaction indexes, snapshots, epochs: the log wins, and no file is touched.
    Method: every such file of every partition damaged; all committed records and the stable offset are the same."""
    data = copied("txn-mixed", tmp_path)
    if not is_clean:
        (data / ".kafka_cleanshutdown").unlink()
        (data / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    for path in data.glob(f"*-[0-9]/*{suffix}"):
        content = path.read_bytes()
        if not content:
            continue
        changed = {
            "zeroed": bytes(len(content)),
            "random": os.urandom(len(content)),
            "cut": content[: len(content) - 5],
        }[damage]
        path.write_bytes(changed)
    before = contents(data)
    with oncelog.open(data, read_only=True) as log:
        for partition, said in expected("txn-mixed")["partitions"].items():
            topic, _, number = partition.rpartition("-")
            assert log.partition(topic, int(number)).last_stable_offset == said["lastStableOffset"]
            assert committed(log, topic, int(number)) == said["readCommittedOffsets"]
    assert contents(data) == before


def test_an_unclean_stop_shows_what_recovery_would_keep_and_says_what_it_would_cut() -> None:
    """Goal: `damage` names file and place, as `tampered` says it was done; nothing of it is in the records."""
    cuts = {"k-cut-0": 5808, "k-flip-0": 7413, "k-garbage-0": 6122}
    with oncelog.open(GOLDEN / "killed" / "data", read_only=True) as log:
        for name in expected("killed")["tampered"]:
            partition = log.partition(name.removesuffix("-0"), 0)
            found = [error for error in partition.damage if isinstance(error, CorruptRecordError)]
            assert [error.position for error in found] == ([cuts[name]] if name in cuts else [])
            assert (
                partition.log_end_offset == expected("killed")["partitions"][name]["logEndOffset"]
            )


def test_a_damaged_log_in_a_clean_directory_is_an_error_with_its_place(tmp_path: Path) -> None:
    """Goal: a clean stop is taken at its word; a bit that rotted since is found by the checksum, where it is read.
    Records before it are delivered."""
    data = copied("idempotent-plain", tmp_path)
    path = min((data / "plain-0").glob("*.log"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    got: list[int] = []
    with oncelog.open(data, read_only=True) as log:
        with pytest.raises(CorruptRecordError, match="checksum") as caught:
            got.extend(record.offset for record in log.read("plain"))
        assert caught.value.file == str(path)
        assert 0 <= caught.value.position <= len(content) // 2
        assert got == list(range(caught.value.base_offset))


# ---------------------------------------------------------------- beside a writer


def test_a_reader_sees_what_a_writer_in_another_process_has_written(tmp_path: Path) -> None:
    """Goal: no lock is taken, none is asked for; whole batches, stable offset and aborts are those on disk.
    Method: write with this process, read with another while the directory is open and locked, then after a close."""
    directory = open_directory(tmp_path, options(segment_bytes=2000))
    partition = directory.create(TopicPartition("orders", 0), TOPIC_ID)
    one, two = Writer(partition, 1), Writer(partition, 2)
    for number in range(20):
        one.send(values(3, f"one{number}"), transactional=True)
        two.send(values(2, f"two{number}"), transactional=True)
        one.end(ABORT if number % 2 else COMMIT)
        two.end(COMMIT)
    two.send(values(1, "open"), transactional=True)
    expected_offsets = [offset for number in range(20) for offset in _visible_offsets(number)]
    for _ in range(2):
        assert _offsets_in_another_process(tmp_path) == expected_offsets
        directory.close()


def _visible_offsets(number: int) -> list[int]:
    start = 7 * number  # three of one, two of two, two markers
    return [*([] if number % 2 else range(start, start + 3)), start + 3, start + 4]


def _offsets_in_another_process(path: Path) -> list[int]:
    program = (
        "import sys, oncelog\n"
        "log = oncelog.open(sys.argv[1], read_only=True)\n"
        "print([record.offset for record in log.read('orders')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    return [int(offset) for offset in done.stdout.strip("[]\n").split(", ")]


def test_more_segments_can_be_read_than_files_may_be_open(tmp_path: Path) -> None:
    """Goal: a mapping keeps no descriptor. Method: 150 segments under a limit of 64 open files."""
    directory = open_directory(tmp_path, options(segment_bytes=200))
    writer = Writer(directory.create(TopicPartition("orders", 0), TOPIC_ID), 1)
    for _ in range(75):
        writer.send(values(1, size=60), transactional=True)
        writer.end(ABORT)
    assert len(writer.partition.log.segments) > 100
    directory.close()
    program = (
        "import resource, sys\n"
        "import oncelog\n"
        "import oncelog.client.directory\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "log = oncelog.open(sys.argv[1], read_only=True)\n"
        "kept = [window for window in log.partition('orders', 0).windows(0, 2**62, "
        "oncelog.client.directory.isolation_of('read_committed'))]\n"
        "print(len(kept), sum(1 for _ in log.read('orders', isolation_level='read_uncommitted')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    windows, records = map(int, done.stdout.split())
    assert windows > 100
    assert records == 75
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 64


def test_errors_of_reading_are_of_one_family() -> None:
    """Goal: who catches OncelogError catches all that the log can say."""
    for kind in (ClosedError, CorruptRecordError, UnknownTopicOrPartitionError):
        assert issubclass(kind, OncelogError)
