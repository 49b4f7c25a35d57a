"""Copying through deaths: ``python -m tests.sim.copy_soak --messages 100000 --deaths 30 --seed 7``.

Three members of one group copy a topic to another in transactions, partition by partition. Now and then one aborts, or
closes its consumer and comes back as another member; the process they live in is killed with kill -9, or stopped
cleanly, and started anew. A read_committed reader in another process looks on all the time. What comes out is what
went in: every message once, each partition in its order.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import oncelog
from oncelog.base.errors import OncelogError
from oncelog.segment.names import TopicPartition

if TYPE_CHECKING:
    from oncelog.client.client import Log
    from oncelog.client.consumer import Consumer
    from oncelog.client.directory import LogDirectory

PARTITIONS: Final = 6
MEMBERS: Final = 3
INPUT: Final = [TopicPartition("in", number) for number in range(PARTITIONS)]
ABORTS: Final = 0.12  # of all transactions
REBIRTHS: Final = 0.04  # of a member, after a transaction
GROUP: Final[dict[str, Any]] = {
    "group_id": "copiers",
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
    "retry_backoff_ms": 10,
}


class MishapError(Exception):
    """Makes a transaction abort."""


class Plan(NamedTuple):
    messages: int
    transaction: int  # messages in one
    deaths: int
    seed: int


# ---------------------------------------------------------------- the process that copies


class Copier:
    """One member, in its thread."""

    def __init__(self, log: Log, number: int, size: int, strategy: str, seed: str) -> None:
        self._log = log
        self._number = number
        self._size = size
        self._strategy = strategy
        self._chance = random.Random(f"{seed} {number}")
        self._consumer = self._born()

    def _born(self) -> Consumer:
        consumer = self._log.consumer(
            **GROUP, partition_assignment_strategy=[self._strategy], max_poll_records=self._size
        )
        consumer.subscribe(["in"])
        return consumer

    def run(self, stopping: threading.Event) -> None:
        with self._log.producer(transactional_id=f"copier-{self._number}") as producer:
            while not stopping.is_set():
                records = self._consumer.poll(timeout_ms=50)
                if not records:
                    if self._is_done():
                        break
                    continue
                aborts = self._chance.random() < ABORTS
                outcome = b"aborted" if aborts else b"committed"
                try:
                    with producer.transaction() as txn:
                        for record in records:
                            producer.send(
                                "out",
                                value=record.value,
                                partition=record.partition,
                                headers=[("outcome", outcome)],
                            )
                        txn.send_offsets(
                            self._consumer.position_offsets(), self._consumer.group_metadata()
                        )
                        if aborts:
                            raise MishapError
                except MishapError:
                    self._consumer.seek_to_committed()
                except OncelogError as error:
                    if not error.txn_requires_abort:
                        raise
                    self._consumer.seek_to_committed()  # the group has moved on meanwhile
                else:
                    os.write(1, b"committed\n")
                if self._chance.random() < REBIRTHS:
                    self._consumer.close()
                    self._consumer = self._born()
        self._consumer.close()

    def _is_done(self) -> bool:
        broker = self._log.broker
        committed = broker.offset_fetch(GROUP["group_id"], INPUT)
        return all(
            getattr(committed[key], "offset", 0) == broker.partition(key).high_watermark
            for key in INPUT
        )


def copy(path: str, size: int, seed: str) -> int:
    """The life of one process. Exits by itself when everything is copied, or cleanly at a SIGTERM."""
    # All lives of one directory use the same: members that died with another would still be known.
    strategy = ("range", "cooperative-sticky")[int(seed.split(maxsplit=1)[0]) % 2]
    failures: list[Exception] = []
    with oncelog.open(path) as log:
        stopping = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stopping.set())
        copiers = [Copier(log, number, size, strategy, seed) for number in range(MEMBERS)]

        def run(copier: Copier) -> None:
            try:
                copier.run(stopping)
            except Exception as error:  # noqa: BLE001 (the main thread raises it)
                failures.append(error)
                stopping.set()

        threads = [threading.Thread(target=run, args=(copier,)) for copier in copiers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for failure in failures:
        raise failure
    return 0


# ---------------------------------------------------------------- the process that looks on


class Onlooker:
    """A read_committed reader beside the writer: what it has seen never changes, comes once and in order."""

    def __init__(self, path: str) -> None:
        self._log: LogDirectory = oncelog.open(path, read_only=True)
        self.seen: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self._next = [0] * PARTITIONS
        self.looks = 0

    def look(self) -> None:
        self.looks += 1
        for number in range(PARTITIONS):
            for record in self._log.read("out", number, start=self._next[number]):
                assert record.offset >= self._next[number], "an offset came twice"
                assert record.headers == (("outcome", b"committed"),), "an aborted record is shown"
                assert record.value == b"%d:%d" % (number, len(self.seen[number])), (
                    f"{record.value!r} at out-{number} offset {record.offset}, "
                    f"where message {len(self.seen[number])} was due"
                )
                self.seen[number].append(record.value)
                self._next[number] = record.offset + 1

    def close(self) -> None:
        self._log.close()


def fill(path: str, messages: int) -> None:
    """Numbers every message by its partition and its place there."""
    with oncelog.open(path) as log:
        for topic in ("in", "out"):
            log.create_topic(topic, partitions=PARTITIONS, config={"segment.bytes": 1 << 20})
        with log.producer() as producer:
            for number in range(messages):
                place, partition = divmod(number, PARTITIONS)
                producer.send("in", value=b"%d:%d" % (partition, place), partition=partition)


def start(path: str, plan: Plan, life: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.sim.copy_soak", "--child", path]
    command += ["--transaction", str(plan.transaction), "--seed", f"{plan.seed} {life}"]
    root = Path(__file__).parents[2]
    return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root)


def soak(path: str, plan: Plan, *, timeout_s: float = 600) -> tuple[int, int, int]:
    """Runs it all; returns kills, clean stops and looks. Raises at the first broken promise."""
    chance = random.Random(plan.seed)
    fill(path, plan.messages)
    onlooker = Onlooker(path)
    kills = stops = 0
    ends = threading.Event()
    wrong: list[Exception] = []

    def look_on() -> None:
        try:
            while not ends.wait(0.02):
                onlooker.look()
        except Exception as error:  # noqa: BLE001 (the main thread raises it)
            wrong.append(error)

    looking = threading.Thread(target=look_on)
    looking.start()
    share = plan.messages / plan.transaction / (plan.deaths + 1)
    try:
        for life in range(plan.deaths + 1):
            is_last, is_killed = life == plan.deaths, life % 3 < 2
            process = start(path, plan, life)
            timer = threading.Timer(timeout_s, process.kill)
            timer.start()
            if not is_last:
                _end(process, signal.SIGKILL if is_killed else signal.SIGTERM, chance, share)
            process.communicate()
            timer.cancel()
            kills += process.returncode == -signal.SIGKILL
            stops += not is_last and process.returncode == 0
            allowed = (0, -signal.SIGKILL) if is_killed and not is_last else (0,)
            assert process.returncode in allowed, f"life {life} ended with {process.returncode}"
            if wrong:
                raise wrong[0]
    finally:
        ends.set()
        looking.join()
    onlooker.look()
    onlooker.close()
    counts = [len(range(number, plan.messages, PARTITIONS)) for number in range(PARTITIONS)]
    assert [len(seen) for seen in onlooker.seen] == counts, "messages are missing"
    return kills, stops, onlooker.looks


def _end(
    process: subprocess.Popen[bytes], how: signal.Signals, chance: random.Random, share: float
) -> None:
    """A signal after some commits and a moment, wherever that finds it."""
    assert process.stdout is not None
    for _ in range(chance.randint(1, max(int(share), 1))):
        process.stdout.readline()
    threading.Event().wait(chance.random() * 0.002)
    process.send_signal(how)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--transaction", type=int, default=750)
    parser.add_argument("--deaths", type=int, default=30)
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(2**32)))
    parser.add_argument("--child")
    given = parser.parse_args()
    if given.child:
        return copy(given.child, given.transaction, given.seed)
    print(f"seed {given.seed}, {given.messages} messages", flush=True)
    with tempfile.TemporaryDirectory() as path:
        plan = Plan(given.messages, given.transaction, given.deaths, int(given.seed))
        kills, stops, looks = soak(path, plan)
    print(f"{kills} kills, {stops} clean stops, {looks} looks: every message once and in order")
    return 0


if __name__ == "__main__":
    sys.exit(main())
