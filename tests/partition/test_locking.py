"""One writer to a directory, across threads, processes and forks; readers are free (LogManager)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oncelog.base.errors import ClosedError, DirectoryLockedError, OncelogError
from tests.partition.logs import Writer, contents, open_directory, open_partition, read, values

HOLD = """
import sys
from tests.partition.logs import open_partition
directory, partition = open_partition(sys.argv[1])
print("held", flush=True)
sys.stdin.readline()
directory.close()
"""

JAVA_LIKE = """
import fcntl, sys
file = open(sys.argv[1] + "/.lock", "r+b")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("taken")
except OSError:
    print("refused")
"""

FORK = """
import os, sys
from tests.partition.logs import ABORT, Writer, open_directory, open_partition, read, values
from oncelog.base.errors import ClosedError, DirectoryLockedError
directory, partition = open_partition(sys.argv[1])
writer = Writer(partition, 1)
writer.send(values(1), transactional=True)
writer.end(ABORT)
Writer(partition).send(values(2))
reading, writing = os.pipe()
child = os.fork()
if not child:
    code = 1
    try:
        os.read(reading, 1)
        assert len(read(partition)) == 2
        for call in (lambda: Writer(partition).send(values(1)), partition.sync, directory.checkpoint):
            try:
                call()
            except ClosedError as error:
                assert "forked" in str(error)
            else:
                raise AssertionError("a child wrote")
        try:
            open_directory(sys.argv[1])
        except DirectoryLockedError as error:
            assert str(os.getppid()) in str(error), error
        directory.close()
        code = 0
    finally:
        os._exit(code)
writer.send(values(1), transactional=True)
writer.end(ABORT)  # an entry that the child does not know of
os.write(writing, b"!")
assert os.waitpid(child, 0)[1] == 0
Writer(partition).send(values(1))
directory.close()
"""

ROOT = Path(__file__).resolve().parents[2]


def start(script: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def test_a_second_writer_in_this_process_is_refused(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path)
    for _ in range(2):
        with pytest.raises(DirectoryLockedError, match=f"this process .{os.getpid()}"):
            open_directory(tmp_path)
    Writer(partition).send(values(1))
    reading, shown = open_partition(tmp_path, read_only=True)
    assert len(read(shown)) == 1
    reading.close()
    directory.close()
    open_directory(tmp_path).close()


def test_a_second_writer_in_another_process_is_refused_by_name(tmp_path: Path) -> None:
    with start(HOLD, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "held\n"
        before = contents(tmp_path)
        with pytest.raises(DirectoryLockedError, match=f"held by process {process.pid}"):
            open_directory(tmp_path)
        open_directory(tmp_path, read_only=True).close()
        assert contents(tmp_path) == before
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(30) == 0
    open_directory(tmp_path).close()


def test_the_lock_is_the_record_lock_that_a_broker_takes(tmp_path: Path) -> None:
    """A broker's FileChannel.tryLock is fcntl's F_SETLK on .lock, so each excludes the other."""
    directory = open_directory(tmp_path)
    with start(JAVA_LIKE, tmp_path) as process:
        assert process.communicate(timeout=30)[0] == "refused\n"
    directory.close()
    with start(JAVA_LIKE, tmp_path) as process:
        assert process.communicate(timeout=30)[0] == "taken\n"


def test_the_lock_is_given_up_when_opening_fails(tmp_path: Path) -> None:
    (tmp_path / "orders-0").mkdir()
    metadata = tmp_path / "orders-0" / "partition.metadata"
    metadata.write_text("damaged")
    directory = open_directory(tmp_path)
    from tests.partition.logs import KEY, TOPIC_ID

    with pytest.raises(OncelogError, match=r"partition\.metadata"):
        directory.create(KEY, TOPIC_ID)
    directory.close()
    metadata.unlink()
    directory, _ = open_partition(tmp_path)
    directory.close()


def test_a_forked_child_may_read_but_not_write(tmp_path: Path) -> None:
    """Goal: a child shares the parent's files but not its lock; writing from both would mix their batches.
    Method: fork after opening; the child's writes are refused, its close changes nothing, the parent goes on."""
    with start(FORK, tmp_path) as process:
        process.communicate(timeout=60)
        assert process.returncode == 0
    directory, partition = open_partition(tmp_path)
    assert len(read(partition)) == 3
    directory.close()


def test_what_was_opened_to_be_read_cannot_be_written(tmp_path: Path) -> None:
    directory, partition = open_partition(tmp_path)
    Writer(partition).send(values(1))
    directory.close()
    with pytest.raises(ClosedError, match="closed"):
        Writer(partition).send(values(1))
    with pytest.raises(ClosedError, match="closed"):
        directory.get(partition.key)
    directory, partition = open_partition(tmp_path, read_only=True)
    for call in (
        lambda: Writer(partition).send(values(1)),
        lambda: partition.truncate_to(0, 0),
        lambda: partition.delete_records(1),
        partition.sync,
    ):
        with pytest.raises(ClosedError, match="read alone"):
            call()
    directory.close()
