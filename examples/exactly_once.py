"""Transfers between accounts, exactly once, through a crash: the first half of ``make demo``.

A child process moves money in transactions: a debit on one partition, a credit on the other, some of them given up. It
is killed in the middle of one. The directory is opened again, and the books must balance: every transfer that was
acknowledged is there, none twice, none by half, and nothing that was aborted or open is seen.
"""

from __future__ import annotations

import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from rich import box
from rich.console import Console
from rich.table import Table

import oncelog

if TYPE_CHECKING:
    from oncelog.client.client import Log

console = Console()
TOPIC = "accounts"
DEBIT, CREDIT = 0, 1
TRANSFER = struct.Struct(">qq")  # number of the transfer, amount
SECONDS = 1.5
RECORDS = 500_000


class ChangedMindError(Exception):
    """A transfer that is given up after both of its records were sent."""


def teller(path: str) -> None:
    """The child: transfers until it is killed. Tells its parent about each one that was acknowledged."""
    chance = random.Random(7)
    with oncelog.open(path) as log, log.producer(transactional_id="teller-1") as producer:
        number = 0
        while True:
            number += 1
            amount = chance.randrange(1, 1000)
            try:
                with producer.transaction():
                    producer.send(TOPIC, TRANSFER.pack(number, -amount), partition=DEBIT)
                    producer.send(TOPIC, TRANSFER.pack(number, amount), partition=CREDIT)
                    if chance.random() < 0.25:
                        producer.flush()  # into the log, to show that nobody sees them there
                        raise ChangedMindError
            except ChangedMindError:
                continue
            os.write(1, TRANSFER.pack(number, amount))


def run_and_kill(path: str) -> dict[int, int]:
    """The transfers that the child had acknowledged when it was killed."""
    command = [sys.executable, __file__, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        time.sleep(SECONDS)
        child.send_signal(signal.SIGKILL)
        assert child.stdout is not None
        told = child.stdout.read()
    whole = len(told) - len(told) % TRANSFER.size
    return dict(TRANSFER.iter_unpack(told[:whole]))


def transfers(
    log: Log, partition: int, isolation_level: str = "read_committed"
) -> list[tuple[int, int]]:
    rows = log.read(TOPIC, partition, isolation_level=isolation_level)
    return [TRANSFER.unpack(record.value or b"") for record in rows]


def show_transfers(path: str) -> None:
    with oncelog.open(path) as log:
        log.create_topic(TOPIC, partitions=2)
    acknowledged = run_and_kill(path)
    with oncelog.open(path) as log:  # recovers, and completes what was decided
        with log.producer(transactional_id="teller-1"):
            pass  # taking over the id fences whoever had it, and aborts what it left open
        debits, deposits = transfers(log, DEBIT), transfers(log, CREDIT)
        written = len(transfers(log, DEBIT, "read_uncommitted"))
    table = Table(
        title=f"A teller, killed after {SECONDS} s in the middle of its work",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("", no_wrap=True)
    table.add_column("transfers", justify="right")
    table.add_row("begun", f"{written:,}")
    table.add_row("acknowledged before the kill", f"{len(acknowledged):,}")
    table.add_row("seen by a read_committed reader", f"{len(debits):,}")
    seen = {number: -amount for number, amount in debits}
    checks = {
        "lost": len(acknowledged.keys() - seen.keys()),
        "seen twice": len(debits) - len(seen),
        "seen by half": len(set(seen.items()) ^ set(deposits)),
        "money made or lost": sum(amount for _, amount in debits + deposits),
    }
    for name, count in checks.items():
        table.add_row(name, f"{count:,}")
    console.print(table)
    assert not any(checks.values()), checks
    assert len(acknowledged) <= len(debits) <= len(acknowledged) + 1


def show_rates(path: str) -> None:
    """What the embedded producer and consumer do in a second, one thread, records of 100 B."""
    value = b"x" * 100
    column = pa.table({"value": pa.array([value] * RECORDS, pa.binary())})
    table = Table(
        title=f"{RECORDS:,} records of 100 B, one thread, one partition",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("step", no_wrap=True)
    table.add_column("records/s", justify="right")

    def timed(name: str, count: int, started: float) -> None:
        table.add_row(name, f"{count / (time.perf_counter() - started):,.0f}")

    with oncelog.open(path) as log:
        log.create_topic("events")
        with log.producer() as producer:
            started = time.perf_counter()
            for _ in range(RECORDS):
                producer.send("events", value)
            producer.flush()
            timed("producer.send, one by one", RECORDS, started)
            started = time.perf_counter()
            producer.send_arrow("events", column)
            producer.flush()
            timed("producer.send_arrow", RECORDS, started)
        with log.consumer(auto_offset_reset="earliest") as consumer:
            consumer.assign([("events", 0)])
            started, count = time.perf_counter(), 0
            while count < RECORDS:
                count += len(consumer.poll(timeout_ms=0))
            timed("consumer.poll, Python records", count, started)
            consumer.seek_to_beginning()
            started, count = time.perf_counter(), 0
            while rows := consumer.poll_arrow(timeout_ms=0, views=True).num_rows:
                count += rows
            timed("consumer.poll_arrow, views", count, started)
        with log.producer(transactional_id="teller-2") as producer:
            started = time.perf_counter()
            for _ in range(2_000):
                with producer.transaction():
                    producer.send("events", value)
            timed("transactions of one record", 2_000, started)
    console.print(table)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="oncelog-demo-") as name:
        show_transfers(str(Path(name) / "bank"))
        show_rates(str(Path(name) / "rates"))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        teller(sys.argv[1])
    else:
        main()
