"""Many threads on one log, signals, forks, and a house that keeps itself: nothing hangs, nothing is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import oncelog
from oncelog.base.errors import ClosedError, OncelogError
from oncelog.client import consumer as consumer_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncelog.client.client import Log

PARTITIONS = 8
SECONDS = 60.0 if os.environ.get("ONCELOG_SOAK") else 4.0
PATIENCE_S = 30.0  # of a thread that should have come to its end long ago
DONE = b"done"
REPOSITORY = Path(__file__).resolve().parents[2]


class Crew:
    """Threads whose first error is the test's."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []

    def start(self, work: Callable[..., None], *args: Any) -> None:
        def guarded() -> None:
            try:
                work(*args)
            except BaseException as error:  # noqa: BLE001
                self.errors.append(error)

        self._threads.append(threading.Thread(target=guarded, daemon=True))
        self._threads[-1].start()

    def join(self, patience_s: float = PATIENCE_S) -> None:
        end = time.monotonic() + patience_s
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0))
        if self.errors:
            raise self.errors[0]
        assert not [thread for thread in self._threads if thread.is_alive()], "a thread hangs"


def produce(log: Log, number: int, until: float, counts: dict[tuple[int, int], int]) -> None:
    """Sends numbered records to all partitions: in transactions, of which every third is aborted, or without."""
    options: dict[str, Any] = {"linger_ms": number % 3}
    if number % 2:
        options["transactional_id"] = f"producer-{number}"
    with log.producer(**options) as producer:
        turn = 0
        while time.monotonic() < until:
            aborts = bool(number % 2) and turn % 3 == 2
            if number % 2:
                producer.begin_transaction()
            for partition in range(PARTITIONS):
                for _ in range(3):
                    at = counts.get((number, partition), 0)
                    value = b"gone" if aborts else b"%d %d" % (number, at)
                    producer.send("numbers", value, partition=partition)
                    if not aborts:
                        counts[number, partition] = at + 1
            if number % 2:
                producer.abort_transaction() if aborts else producer.commit_transaction()
            elif turn % 10 == 0:
                producer.flush()
            turn += 1
        producer.flush() if not number % 2 else None


def consume(log: Log, partition: int, found: dict[tuple[int, int], int]) -> None:
    """Reads one partition until all producers are done, and counts what it sees of each."""
    finished = 0
    with log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([("numbers", partition)])
        while finished < PARTITIONS:
            polled = consumer.poll(timeout_ms=PATIENCE_S * 1000)
            assert polled, "a poll has slept through what it waited for"
            for record in polled:
                assert record.value is not None
                assert record.value != b"gone", "an aborted record is seen"
                if record.value == DONE:
                    finished += 1
                    continue
                number, at = map(int, record.value.split())
                expected = found.get((number, partition), 0)
                assert at == expected, f"producer {number}: {at} where {expected} is due"
                found[number, partition] = at + 1


def test_eight_producers_and_eight_consumers_on_eight_partitions(tmp_path: Path) -> None:
    """Goal: no deadlock, no lost wake-up; every partition's reader sees everything once, in each producer's order.
    Method: half of the producers in transactions, some of which they abort; readers poll without a time limit that
    they could hide behind. ONCELOG_SOAK makes it a minute."""
    sent: dict[tuple[int, int], int] = {}
    found: dict[tuple[int, int], int] = {}
    producers, consumers = Crew(), Crew()
    with oncelog.open(tmp_path) as log:
        log.create_topic("numbers", PARTITIONS, config={"segment.bytes": 1 << 20})
        until = time.monotonic() + SECONDS

        def produce_all(number: int) -> None:
            produce(log, number, until, sent)
            with log.producer() as last:
                for partition in range(PARTITIONS):
                    last.send("numbers", DONE, partition=partition)

        for number in range(PARTITIONS):
            consumers.start(consume, log, number, found)
            producers.start(produce_all, number)
        producers.join(SECONDS + PATIENCE_S)
        consumers.join(PATIENCE_S)
    assert found == sent
    assert min(sent.values()) > 10


def test_a_reader_that_waits_wakes_for_each_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no wake-up is lost between looking and waiting. Method: ping-pong, which one lost wake-up would stop, as
    consumers do not look around by themselves here."""
    monkeypatch.setattr(consumer_module, "LOOK_AROUND_S", 3600.0)
    rounds = 300
    crew = Crew()
    with oncelog.open(tmp_path) as log:
        log.create_topic("ping")
        log.create_topic("pong")

        def play(hears: str, says: str, *, begins: bool) -> None:
            with (
                log.producer(transactional_id=says) as producer,
                log.consumer(auto_offset_reset="earliest") as consumer,
            ):
                consumer.assign([(hears, 0)])
                for turn in range(rounds):
                    if turn or not begins:
                        (record,) = consumer.poll(timeout_ms=PATIENCE_S * 1000)
                        assert record.value == b"%d" % (turn - begins)
                    with producer.transaction():
                        producer.send(says, b"%d" % turn)

        crew.start(lambda: play("pong", "ping", begins=True))
        crew.start(lambda: play("ping", "pong", begins=False))
        crew.join()


# ---------------------------------------------------------------- Ctrl-C

CHILD = """
import sys, threading, time
import oncelog
log = oncelog.open(sys.argv[1])
log.create_topic("t")
{work}
"""
BLOCKED_IN_POLL = """
consumer = log.consumer()
consumer.assign([("t", 0)])
print("ready", flush=True)
consumer.poll(timeout_ms=None)
"""
BLOCKED_IN_ITERATION = """
consumer = log.consumer()
consumer.assign([("t", 0)])
print("ready", flush=True)
for record in consumer:
    pass
"""
SENDING = """
producer = log.producer(linger_ms=5)
print("ready", flush=True)
while True:
    producer.send("t", b"value")
"""
COMMITTING = """
producer = log.producer(transactional_id="x")
producer.init_transactions()
print("ready", flush=True)
while True:
    producer.begin_transaction()
    producer.send("t", b"value")
    producer.commit_transaction()
"""
CLOSING = """
try:
    with log, log.producer(transactional_id="x") as producer:
        print("ready", flush=True)
        while True:
            with producer.transaction():
                producer.send("t", b"value")
except KeyboardInterrupt:
    print("closed", flush=True)
    raise
"""


@contextlib.contextmanager
def child(path: Path, work: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has opened a log and does something with it without end."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD.format(work=work), str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready", (
            process.stderr and process.stderr.read()
        )
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "work",
    [
        pytest.param(BLOCKED_IN_POLL, id="in-poll"),
        pytest.param(BLOCKED_IN_ITERATION, id="in-iteration"),
        pytest.param(SENDING, id="sending"),
        pytest.param(COMMITTING, id="committing"),
        pytest.param(CLOSING, id="closing"),
    ],
)
def test_ctrl_c_ends_promptly_and_leaves_a_sound_log(tmp_path: Path, work: str) -> None:
    with child(tmp_path, work) as process:
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE_S)
        assert "KeyboardInterrupt" in errors
        assert process.returncode in (-signal.SIGINT, 1, 130)
    if work is CLOSING:
        assert "closed" in output
        assert (tmp_path / ".kafka_cleanshutdown").exists()
    with oncelog.open(tmp_path) as log:
        log.producer(transactional_id="x").init_transactions()  # ends what was left open
        values = [record.value for record in log.read("t", 0)]
        assert set(values) <= {b"value"}
        with log.producer() as producer:
            producer.send("t", b"after").result()
        assert [record.value for record in log.read("t", 0)] == [*values, b"after"]


# ---------------------------------------------------------------- closing


def test_closing_from_several_threads_at_once_is_harmless(tmp_path: Path) -> None:
    for turn in range(5):
        log = oncelog.open(tmp_path)
        if not turn:
            log.create_topic("t")
        producer = log.producer()
        producer.send("t", b"v")
        crew = Crew()
        for _ in range(4):
            crew.start(producer.close)
        crew.join()
        for _ in range(4):
            crew.start(log.close)
        crew.join()
        log.close()
        producer.close()
    with oncelog.open(tmp_path) as log:
        assert [record.value for record in log.read("t", 0)] == [b"v"] * 5


def test_use_after_close_is_an_error_that_says_so(tmp_path: Path) -> None:
    log = oncelog.open(tmp_path)
    log.create_topic("t")
    producer, other = log.producer(), log.producer(transactional_id="x")
    other.init_transactions()
    consumer = log.consumer()
    consumer.assign([("t", 0)])
    producer.close()
    consumer.close()
    for use in (
        lambda: producer.send("t", b"v"),
        lambda: consumer.poll(timeout_ms=10),
        lambda: consumer.assign([("t", 0)]),
    ):
        with pytest.raises(ClosedError, match="closed"):
            use()
    fresh = log.consumer()
    fresh.assign([("t", 0)])
    log.close()
    uses: tuple[Callable[[], Any], ...] = (
        lambda: log.create_topic("u"),
        lambda: log.producer().send("t", b"v").result(),
        lambda: fresh.poll(timeout_ms=10),
        lambda: _send_and_flush(other),
        lambda: list(log.read("t", 0)),
    )
    for use in uses:
        with pytest.raises(OncelogError, match="closed"):
            use()


def _send_and_flush(producer: Any) -> None:
    producer.begin_transaction()
    producer.send("t", b"v")
    producer.commit_transaction()


def test_closing_a_log_ends_the_polls_that_wait(tmp_path: Path) -> None:
    log = oncelog.open(tmp_path)
    log.create_topic("t")
    consumer = log.consumer()
    consumer.assign([("t", 0)])
    crew, errors = Crew(), []

    def wait() -> None:
        try:
            consumer.poll(timeout_ms=PATIENCE_S * 1000)
        except ClosedError as error:
            errors.append(error)

    crew.start(wait)
    time.sleep(0.2)
    log.close()
    crew.join(10)
    assert len(errors) == 1


# ---------------------------------------------------------------- fork

FORKED = """
import os
from oncelog.base.errors import ClosedError
plain, producer = log.producer(), log.producer(transactional_id="x")
consumer = log.consumer(auto_offset_reset="earliest")
consumer.assign([("t", 0)])
plain.send("t", b"before").result()
producer.init_transactions()
producer.begin_transaction()
producer.send("t", b"in a transaction")
print("ready", flush=True)
pid = os.fork()
if not pid:
    refused = 0
    for use in (
        lambda: plain.send("t", b"child"),
        lambda: producer.send("t", b"child"),
        lambda: producer.commit_transaction(),
        lambda: consumer.poll(timeout_ms=10),
        lambda: log.create_topic("child"),
        lambda: log.producer().send("t", b"child").result(),
    ):
        try:
            use()
        except ClosedError:
            refused += 1
        except BaseException as error:
            print(repr(error), flush=True)
    plain.close(); consumer.close(); producer.close()
    try:
        log.close()
    except ClosedError:
        pass
    print("refused", refused, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
producer.commit_transaction()
plain.send("t", b"after").result()
print(sorted(record.value for record in consumer.poll(timeout_ms=5000)), flush=True)
plain.close(); producer.close(); consumer.close(); log.close()
"""


def test_a_fork_is_told_so_and_leaves_its_parent_unharmed(tmp_path: Path) -> None:
    with child(tmp_path, FORKED) as process:
        output, errors = process.communicate(timeout=PATIENCE_S)
        assert not errors
        lines = output.splitlines()
        assert lines == ["refused 6", str([b"after", b"before", b"in a transaction"])]
        assert process.returncode == 0
    with oncelog.open(tmp_path) as log:
        values = [record.value for record in log.read("t", 0)]
    assert values == [b"before", b"in a transaction", b"after"]


LINGERS_AGAIN = """
import os, threading
producer = log.producer(linger_ms=10)
heard = threading.Event()
producer.send("t", b"parent", on_delivery=lambda *_: heard.set())
assert heard.wait(30)
print("ready", flush=True)
pid = os.fork()
if not pid:
    with oncelog.open(sys.argv[1] + "-of-the-child") as other:
        other.create_topic("t")
        with other.producer(linger_ms=10) as mine:
            heard = threading.Event()
            mine.send("t", b"child", on_delivery=lambda *_: heard.set())
            print("child", heard.wait(30), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
heard = threading.Event()
producer.send("t", b"parent", on_delivery=lambda *_: heard.set())
print("parent", heard.wait(30), flush=True)
log.close()
"""


def test_what_lingers_is_sent_by_itself_in_a_forked_child_as_well(tmp_path: Path) -> None:
    """Goal: the thread that looks after all producers of a process is made again in a child."""
    with child(tmp_path, LINGERS_AGAIN) as process:
        output, errors = process.communicate(timeout=PATIENCE_S)
        assert not errors
        assert output.splitlines() == ["child True", "parent True"]


# ---------------------------------------------------------------- an idle process

IDLE = """
producer = log.producer(transactional_id="x", transaction_timeout_ms=1000)
producer.init_transactions()
producer.begin_transaction()
producer.send("t", b"left open").result()
with log.producer() as other:
    other.send("t", b"behind it").result()
print("ready", flush=True)
time.sleep(60)
"""


def test_an_idle_process_aborts_a_transaction_that_takes_too_long(tmp_path: Path) -> None:
    """Goal: without any call of the user, an open transaction ends within its timeout + 10 s, and what it held back
    is seen. Method: leave one open in a process that sleeps, and read from another until it is gone."""
    with child(tmp_path, IDLE):
        started = time.monotonic()
        seen: list[Any] = []
        while not seen and time.monotonic() - started < 13:
            time.sleep(0.2)
            with oncelog.open(tmp_path, read_only=True) as log:
                seen = [record.value for record in log.read("t", 0)]
        took = time.monotonic() - started
        assert seen == [b"behind it"]
        assert took < 11.5
