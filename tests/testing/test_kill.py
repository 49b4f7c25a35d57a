"""A log that is killed leaves what SIGKILL would have left, and can be opened again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import oncelog
from oncelog.base.errors import ClosedError, DirectoryLockedError
from oncelog.testing import ScratchLog, open_temporary

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ScratchLog]:
    with ScratchLog(tmp_path / "data") as log:
        log.create_topic("orders")
        yield log


def values(log: Any, isolation_level: str = "read_committed") -> list[bytes | None]:
    return [record.value for record in log.read("orders", isolation_level=isolation_level)]


def files(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_what_was_acknowledged_survives_and_what_lingers_does_not(log: ScratchLog) -> None:
    producer = log.producer(linger_ms=60_000)
    producer.send("orders", b"acknowledged").result()
    lost = producer.send("orders", b"lingers")
    log.kill()
    log.reopen()
    assert values(log) == [b"acknowledged"]
    with pytest.raises(ClosedError):
        lost.result(1000)


def test_clients_of_a_killed_log_say_that_it_is_closed(log: ScratchLog) -> None:
    """Goal: neither a hang nor a write into the next life of the directory.
    Method: use what was given out before the kill, after the log is open again."""
    plain = log.producer(linger_ms=0)
    plain.send("orders", b"before").result()
    transactional = log.producer(transactional_id="t")
    transactional.init_transactions()
    transactional.begin_transaction()
    consumer = log.consumer(auto_offset_reset="earliest")
    consumer.assign([("orders", 0)])
    consumer.poll()
    log.kill()
    log.reopen()
    with pytest.raises(ClosedError):
        plain.send("orders", b"after").result(1000)
    with pytest.raises(ClosedError):
        transactional.send("orders", b"after").result(1000)
    with pytest.raises(ClosedError):
        consumer.poll(1000)
    for client in (plain, transactional, consumer):
        client.close()
    assert values(log) == [b"before"]


def test_nothing_is_written_after_the_kill(log: ScratchLog, tmp_path: Path) -> None:
    """Goal: what a test finds in the directory is what a crash left.
    Method: compare all bytes right after the kill with those after everybody has tried to go on."""
    producer = log.producer(transactional_id="t")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", b"open").result()
    log.kill()
    left = files(tmp_path)
    for call in (
        producer.commit_transaction,
        producer.close,
        log.close,
        lambda: log.create_topic("other"),
        lambda: log.producer().send("orders", b"x").result(1000),
    ):
        with contextlib.suppress(ClosedError):
            call()
    assert files(tmp_path) == left
    assert not (tmp_path / "data/.kafka_cleanshutdown").exists()


def test_a_killed_directory_is_free_for_others(log: ScratchLog) -> None:
    with pytest.raises(DirectoryLockedError):
        oncelog.open(log.path)
    log.kill()
    with oncelog.open(log.path) as other:
        assert "orders" in other.topics()


def test_a_transaction_in_doubt_is_aborted_by_its_next_producer(log: ScratchLog) -> None:
    producer = log.producer(transactional_id="t")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", b"in doubt").result()
    log.kill()
    log.reopen()
    assert values(log, "read_uncommitted") == [b"in doubt"]
    assert [listing.state.label for listing in log.broker.list_transactions()] == ["Ongoing"]
    with log.producer(transactional_id="t") as heir, heir.transaction():
        heir.send("orders", b"again")
    assert values(log) == [b"again"]


def test_reopen_without_a_kill_is_a_clean_restart(log: ScratchLog) -> None:
    with log.producer() as producer:
        producer.send("orders", b"a")
    log.reopen()
    assert log.is_open
    assert values(log) == [b"a"]
    log.faults.next("create_topics", ClosedError)  # the same plans, the new broker
    with pytest.raises(ClosedError):
        log.create_topic("other")


def test_killing_twice_or_closing_after_it_is_harmless(log: ScratchLog) -> None:
    log.kill()
    log.kill()
    assert not log.is_open
    log.close()
    log.reopen()
    assert log.is_open


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_kill_leaves_what_a_real_one_leaves(tmp_path: Path, durability: str) -> None:
    """Goal: the kit does not flatter.
    Method: the same program in a process that gets SIGKILL and in one that calls kill(); the same names, and
    the same bytes of every log."""
    program = f"""
import os, signal, sys
from oncelog.testing import ManualClock, ScratchLog
log = ScratchLog(sys.argv[1], clock=ManualClock(), durability={durability!r})
log.create_topic("orders", partitions=2)
producer = log.producer(transactional_id="t", linger_ms=0)
producer.init_transactions()
with producer.transaction():
    producer.send("orders", b"kept", partition=0).result()
producer.begin_transaction()
producer.send("orders", b"open", partition=1).result()
if sys.argv[2] == "signal":
    os.kill(os.getpid(), signal.SIGKILL)
log.kill()
"""
    ends = {}
    for way, code in (("signal", -signal.SIGKILL), ("call", 0)):
        directory = tmp_path / way
        done = subprocess.run(
            [sys.executable, "-c", program, os.fspath(directory), way], check=False
        )
        assert done.returncode == code
        ends[way] = files(directory)
    # The flag of a live writer is a file of a dead one after a signal: nobody holds it, so it says nothing.
    names = [set(found) - {"oncelog.live"} for found in ends.values()]
    assert names[0] == names[1]
    for name in names[0]:
        if name.endswith((".log", ".index", ".timeindex")):
            assert ends["signal"][name] == ends["call"][name], name


def test_a_temporary_log_leaves_nothing() -> None:
    with open_temporary(durability="fsync") as log:
        directory = Path(log.path)
        log.create_topic("orders")
        assert directory.exists()
    assert not directory.exists()
    assert not log.is_open
