"""Staged files: encoded by many, committed by one, once."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pytest

import oncelog
from oncelog import staging
from oncelog.base import disk
from oncelog.base.errors import (
    CommitTokenError,
    DirectoryLockedError,
    InvalidRecordError,
    InvalidRequestError,
    KafkaStorageError,
    OncelogError,
    RecordTooLargeError,
    StagingError,
    UnknownTopicOrPartitionError,
)
from oncelog.client import staged_commit
from oncelog.client import staging as staging_module
from oncelog.client.producer import Producer
from oncelog.segment.names import TopicPartition

if TYPE_CHECKING:
    from oncelog.client.client import Log

APP = "payments-to-fraud"


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A log with topics `out` (3 partitions), `small` (max.message.bytes) and `kept` (compacted)."""
    place = str(tmp_path / "log")
    with oncelog.open(place) as log:
        log.create_topic("out", partitions=3)
        log.create_topic("small", config={"max.message.bytes": 500})
        log.create_topic("kept", config={"cleanup.policy": "compact"})
        log.create_topic("zipped", config={"compression.type": "zstd"})
    return place


def rows(count: int, start: int = 0, **columns: Any) -> pa.RecordBatch:
    numbers = range(start, start + count)
    given: dict[str, Any] = {
        "key": [b"k%d" % number for number in numbers],
        "value": [b"v%06d" % number for number in numbers],
    } | columns
    return pa.RecordBatch.from_pydict({k: v for k, v in given.items() if v is not None})


def staged(
    path: str, *batches: pa.RecordBatch, name: str = "0", **options: Any
) -> staging.StagedFile:
    options.setdefault("topic", "out")
    with staging.StagingWriter(
        f"{path}.{name}.staged", staging.topic_layouts(path), host="here", **options
    ) as writer:
        for batch in batches:
            writer.add(batch)
        return writer.finish()


def values(log: Any, topic: str = "out", **options: Any) -> list[bytes]:
    return sorted(record.value for record in log.read(topic, **options))


def token(batch: int, query: str = "q-1") -> staging.Token:
    return staging.Token(APP, query, batch)


def test_what_is_staged_is_read_as_a_producer_would_have_sent_it(path: str) -> None:
    """Goal: partitions, order, headers, nulls and codec are those of a producer.
    Method: the same rows staged and sent by send_arrow, compared record by record."""
    headers = [[("h", b"%d" % n), ("n", None)] if n % 2 else [] for n in range(1000)]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch = rows(1000, headers=pa.array(headers, kind))
    nulls = rows(10, value=[None] * 10)
    file = staged(path, batch, nulls, compression="lz4")
    with oncelog.open(path) as log:
        assert staging.commit_staged(log, [file], token(0)) == staging.Committed(False, 1010)
        log.create_topic("sent", partitions=3)
        with log.producer() as producer:
            producer.send_arrow("sent", batch)
            producer.send_arrow("sent", nulls)
        for partition in range(3):
            ours = [(r.key, r.value, r.headers) for r in log.read("out", partition)]
            theirs = [(r.key, r.value, r.headers) for r in log.read("sent", partition)]
            assert ours == theirs
            assert ours


def test_rows_say_their_topic_and_partition(path: str) -> None:
    batch = rows(
        6, topic=["out", "small", "out", "zipped", "out", "out"], partition=[2, 0, None, 0, 1, 1]
    )
    file = staged(path, batch, topic=None)
    with oncelog.open(path) as log:
        staging.commit_staged(log, [file])
        assert values(log, "small") == [b"v000001"]
        assert values(log, "zipped") == [b"v000003"]
        assert values(log, partition=1) >= [b"v000004", b"v000005"]
        assert b"v000000" in values(log, partition=2)
        assert len(values(log)) == 4


def test_rows_without_a_key_are_spread_over_the_partitions(path: str) -> None:
    file = staged(path, *[rows(10, start, key=None) for start in range(0, 60, 10)])
    with oncelog.open(path) as log:
        staging.commit_staged(log, [file])
        assert [len(values(log, partition=number)) for number in range(3)] == [20, 20, 20]


def test_more_rows_than_an_extent_holds_come_in_one_piece_of_arrow(path: str) -> None:
    """Goal: a batch of rows may be larger than what is written at a time; extents' memory is used again, and no
    record shows what another has left there."""
    size = staging_module.EXTENT_BYTES // 1000
    payloads = [b"%05d" % number * (size // 5 - number % 7) for number in range(5000)]
    numbers = [b"%d" % number for number in range(5000)]
    keyless = staged(path, rows(5000, key=None, value=payloads), name="keyless")
    keyed = staged(path, rows(5000, key=numbers, value=payloads), name="keyed")
    with oncelog.open(path) as log:
        for file in (keyless, keyed):
            with staging.StagedReader(file) as reader:
                assert len(reader.extents) > 3
        staging.commit_staged(log, [keyless])
        assert values(log) == sorted(payloads)
        staging.commit_staged(log, [keyed])
        for partition in range(3):
            found = [int(r.key) for r in log.read("out", partition) if r.key is not None]
            assert found == sorted(found), "the order of rows"
            assert len(found) > 1000
        assert {r.key: r.value for r in log.read("out") if r.key is not None} == dict(
            zip(numbers, payloads, strict=True)
        )


def test_partitions_that_are_appended_side_by_side_keep_the_order_of_files(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: threads for however little, and fewer files open at once than there are."""
    monkeypatch.setattr(staged_commit, "SERIAL_BYTES", 0)
    monkeypatch.setattr(staged_commit, "FILES_OPEN_MAX", 3)
    files = [staged(path, rows(200, start), name=str(start)) for start in range(0, 1400, 200)]
    with oncelog.open(path) as log:
        assert staging.commit_staged(log, files, token(0)) == staging.Committed(False, 1400)
        for partition in range(3):
            found = [int(record.value[1:]) for record in log.read("out", partition) if record.value]
            assert found == sorted(found)
            assert log.broker.partition(TopicPartition("out", partition)).durable_end_offset > 0
        assert values(log) == [b"v%06d" % number for number in range(1400)]


@pytest.mark.parametrize(
    ("batch", "topic", "error", "words"),
    [
        (rows(1), "nowhere", UnknownTopicOrPartitionError, "no topic 'nowhere'"),
        (rows(2, topic=["out", None]), None, InvalidRequestError, "a row has no topic"),
        (rows(1, partition=[3]), "out", UnknownTopicOrPartitionError, "0 to 2, not 3"),
        (rows(1, partition=[-1]), "out", UnknownTopicOrPartitionError, "not -1"),
        (rows(1, value=[b"x" * 600]), "small", RecordTooLargeError, "max.message.bytes = 500"),
        (rows(1, key=[None]), "kept", InvalidRecordError, "compacted, has no key"),
    ],
)
def test_a_row_that_the_log_would_refuse_is_refused_by_the_task(
    path: str, batch: pa.RecordBatch, topic: str | None, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        staged(path, batch, topic=topic)
    assert not list(Path(path).parent.glob("*.staged")), "a file that failed is removed"


def test_batches_stay_within_what_the_topic_takes_and_memory_within_its_bound(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: many partitions and rows, small batches, little memory.
    Method: tiny limits, so that extents are written all the time, and nothing is lost by it."""
    monkeypatch.setattr(staging_module, "EXTENT_BYTES", 2000)
    monkeypatch.setattr(staging_module, "BUFFER_BYTES", 3000)
    file = staged(path, *[rows(100, start) for start in range(0, 1000, 100)], topic="small")
    spread = staged(path, *[rows(100, start) for start in range(0, 1000, 100)], name="1")
    with staging.StagedReader(file) as reader:
        assert len(reader.extents) > 5
        assert sum(extent.record_count for extent in reader.extents) == 1000
    with oncelog.open(path) as log:
        staging.commit_staged(log, [file, spread], token(0))
        assert values(log, "small") == values(log) == [b"v%06d" % n for n in range(1000)]


def test_a_batch_is_committed_once_however_often_it_is_run(path: str) -> None:
    """Goal: the token. Method: commit, commit again after reopening, with what another attempt has staged."""
    with oncelog.open(path) as log:
        assert not staging.commit_staged(log, [staged(path, rows(10))], token(7)).is_repeated
    again = staged(path, rows(10), name="again")
    with oncelog.open(path) as log:
        assert staging.commit_staged(log, [again], token(7)).is_repeated
        assert staging.read_token(log, APP) == token(7)
        assert len(values(log)) == 10
        staging.commit_staged(log, [staged(path, rows(5, 10))], token(8))
        assert len(values(log)) == 15


@pytest.mark.parametrize(
    ("later", "words"),
    [
        (token(6), r"batch 6 .*older than batch 7.*restore its newest state, or choose another"),
        (token(8, "q-2"), r"query q-2, but batch 7.*query q-1.*choose another txnAppId"),
        (token(7, ""), r"a batch write, but batch 7"),
    ],
)
def test_a_batch_that_cannot_follow_is_refused_with_advice(
    path: str, later: staging.Token, words: str
) -> None:
    file = staged(path, rows(10))
    with oncelog.open(path) as log:
        staging.commit_staged(log, [file], token(7))
        with pytest.raises(CommitTokenError, match=words):
            staging.commit_staged(log, [file], later)
        assert len(values(log)) == 10
        assert staging.read_token(log, APP) == token(7)


def test_the_token_outlives_time_topics_and_the_tools_of_groups(path: str) -> None:
    with oncelog.open(path) as log:
        log.create_topic(staged_commit.TOKEN_KEY.topic)  # nobody can keep a user from it
        staging.commit_staged(log, [staged(path, rows(1))], token(3))
        group = staged_commit.GROUP_PREFIX + APP
        admin = log.admin()
        with pytest.raises(OncelogError, match="library's own and stays"):
            admin.delete_consumer_group(group)
        with pytest.raises(OncelogError, match="library's own and stays"):
            admin.alter_consumer_group_offsets(group, {staged_commit.TOKEN_KEY: 0})
        with pytest.raises(OncelogError, match="library's own and stays"):
            admin.reset_offsets(group, to="earliest")
        log.delete_topic(staged_commit.TOKEN_KEY.topic)
        log.broker.groups._groups.expire_offsets()
        assert staging.read_token(log, APP) == token(3)
    with oncelog.open(path) as log:
        assert staging.read_token(log, APP) == token(3)


@pytest.mark.parametrize("part", ["records", "manifest", "trailer", "short", "long", "gone"])
@pytest.mark.parametrize("serial_bytes", [1 << 30, 0])
def test_a_staged_file_that_is_not_what_was_staged_commits_nothing(
    path: str, part: str, serial_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the one who commits trusts nothing, in one thread or in several. Method: damage each part of a file; the
    next batch still commits."""
    monkeypatch.setattr(staged_commit, "SERIAL_BYTES", serial_bytes)
    good, bad = staged(path, rows(100)), staged(path, rows(100, 100), name="bad")
    place = Path(bad.path)
    data = bytearray(place.read_bytes())
    at = {"records": 100, "manifest": bad.size - 30, "trailer": bad.size - 3}.get(part)
    if at is not None:
        data[at] ^= 1
    data = data[:-1] if part == "short" else data + b"\0" if part == "long" else data
    place.write_bytes(data)
    if part == "gone":
        place.unlink()
    with oncelog.open(path) as log:
        with pytest.raises(StagingError, match=r"bad\.staged"):
            staging.commit_staged(log, [good, bad], token(0))
        assert values(log) == []
        assert staging.read_token(log, APP) is None
        staging.commit_staged(log, [good], token(0))
        assert len(values(log)) == 100


@pytest.mark.parametrize("is_ours", [True, False])
def test_files_that_are_not_kept_give_their_memory_to_the_log(
    path: str, is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: what was read is a hole, unless the file is another user's; the log has all of it either way, and a file
    that is used up is refused. Method: the room that the file takes, before and after."""
    monkeypatch.setattr(staged_commit, "SERIAL_BYTES", 0)
    file = staged(path, rows(50_000))
    place, real = Path(file.path), os.open
    before = place.stat()

    def refusing(name: Any, flags: int, *more: Any) -> int:
        if name == file.path and flags & os.O_RDWR:
            raise PermissionError(name)
        return real(name, flags, *more)

    with oncelog.open(path) as log:
        with mock.patch.object(os, "open", real if is_ours else refusing):
            staging.commit_staged(log, [file], token(0), keeps_files=False)
        assert values(log) == [b"v%06d" % n for n in range(50_000)]
        after = place.stat()
        assert after.st_size == before.st_size
        if is_ours and sys.platform == "linux":
            assert after.st_blocks < before.st_blocks / 4
            with pytest.raises(StagingError, match="checksum"):
                staging.commit_staged(log, [file], token(1))
            assert len(values(log)) == 50_000
        else:
            assert after.st_blocks == before.st_blocks


def test_a_device_that_fails_while_more_is_appended_commits_nothing(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: what the device says early, perhaps only once, counts as what it says of a sync. Method: it fails after the
    first extent; the log is opened anew, and the batch committed."""
    monkeypatch.setattr(staged_commit, "SERIAL_BYTES", 0)
    monkeypatch.setattr(staged_commit, "WRITE_BYTES", 1)
    file = staged(path, rows(100))
    failing = mock.Mock(side_effect=OSError(errno.EIO, "gone"))
    with staging.open_log(path) as log:
        with (
            mock.patch.object(disk.Disk, "start_writing", failing),
            pytest.raises(KafkaStorageError),
        ):
            staging.commit_staged(log, [file], token(0))
        assert failing.called
    with staging.open_log(path) as log:
        assert values(log) == []
        assert not staging.commit_staged(log, [file], token(0)).is_repeated
        assert len(values(log)) == 100


def test_a_sweep_takes_its_own_run_past_batches_and_the_old_and_nothing_else(
    tmp_path: Path,
) -> None:
    """Goal: another attempt of the same batch may be running, and another application's is not ours."""
    root = str(tmp_path / "staging")
    staging.make_root(root)

    def make(application: str, batch: int, run: str) -> str:
        folder = staging.StagingFolder(root, application, batch, run)
        Path(folder.file("0", "here")).write_bytes(b"x")
        return Path(folder.path).name

    mine, past = make(APP, 5, "mine"), make(APP, 4, "dead")
    same, other = make(APP, 5, "twin"), make("another", 1, "run")
    later = make(APP, 6, "next")
    (tmp_path / "staging" / "notes").mkdir()
    gone = staging.sweep(root, ["mine"], application=APP, committed=5)
    assert sorted(gone) == sorted([mine, past])
    left = sorted(entry.name for entry in Path(root).iterdir())
    assert left == sorted([same, other, later, "notes"])
    now = int(Path(root, same).stat().st_mtime * 1000)
    assert staging.sweep(root, now_ms=now + 23 * 3600 * 1000) == []
    assert sorted(staging.sweep(root, now_ms=now + 25 * 3600 * 1000)) == sorted(
        [same, other, later]
    )
    assert staging.sweep(str(tmp_path / "no such folder")) == []


def test_a_task_that_cannot_see_the_staging_folder_says_so(tmp_path: Path) -> None:
    folder = staging.StagingFolder(str(tmp_path / "elsewhere"), APP, 0, "run")
    with pytest.raises(StagingError, match=r"cannot be seen on host 'worker-3'.*option 'staging'"):
        folder.file("0", "worker-3")


def test_layouts_are_those_of_the_broker(path: str, tmp_path: Path) -> None:
    layouts = staging.topic_layouts(path)
    assert layouts["out"] == staging.TopicLayout(3, 1048588, None, False)
    assert layouts["small"].batch_bytes_max == 500
    assert layouts["kept"].needs_keys
    assert layouts["zipped"].codec == 4
    with pytest.raises(InvalidRequestError, match="there is no log at"):
        staging.topic_layouts(str(tmp_path / "none"))
    with pytest.raises(InvalidRequestError, match="is no log"):
        staging.topic_layouts(str(tmp_path))


def hold(path: str, ready: Any, release: Any) -> None:
    with oncelog.open(path):
        ready.set()
        release.wait(20)


def test_a_log_that_another_process_has_is_waited_for_and_then_its_holder_is_named(
    path: str,
) -> None:
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    holder = context.Process(target=hold, args=(path, ready, release))
    holder.start()
    assert ready.wait(20)
    with pytest.raises(DirectoryLockedError, match=f"process {holder.pid}"):
        staging.open_log(path, timeout_ms=100)
    release.set()
    staging.open_log(path, timeout_ms=20_000).close()
    holder.join()


# ---------------------------------------------------------------- deaths

STEPS = {
    "token checked": (staged_commit, "read_token", 1),
    "first extent": (Producer, "send_encoded", 1),
    "last extent": (Producer, "send_encoded", 4),
    "token added": (Producer, "send_offsets_to_transaction", 1),
    "ended": (Producer, "commit_transaction", 1),
}


def commit_and_die(
    path: str, files: list[staging.StagedFile], step: str, serial_bytes: int
) -> None:
    home, name, times = STEPS[step]
    real, left = getattr(home, name), [times]

    def last(*arguments: Any, **options: Any) -> Any:
        result = real(*arguments, **options)
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    with (
        mock.patch.object(home, name, last),
        mock.patch.object(staged_commit, "SERIAL_BYTES", serial_bytes),
        staging.open_log(path) as log,
    ):
        staging.commit_staged(log, files, token(1))


@pytest.mark.parametrize(
    ("step", "serial_bytes"),
    [*((step, 1 << 30) for step in STEPS), ("first extent", 0), ("last extent", 0)],
)
def test_data_and_token_share_their_fate_wherever_the_commit_dies(
    path: str, step: str, serial_bytes: int
) -> None:
    """Goal: all of a batch with its token, or nothing of either; and the next attempt makes it whole.
    Method: kill -9 a process after each step, look as a reader would, commit again, read."""
    files = [staged(path, rows(300, start), name=str(start)) for start in (0, 300)]
    context = multiprocessing.get_context("spawn")
    victim = context.Process(target=commit_and_die, args=(path, files, step, serial_bytes))
    victim.start()
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL
    expected = [b"v%06d" % n for n in range(600)]
    with oncelog.open(path, read_only=True) as reader:
        assert values(reader) == (expected if step == "ended" else [])
    log: Log
    with staging.open_log(path) as log:
        done = staging.commit_staged(log, files, token(1))
        assert done.is_repeated == (step == "ended")
        assert values(log) == expected
        assert staging.read_token(log, APP) == token(1)
