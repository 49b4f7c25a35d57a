"""A small bank, exactly once, through a crash: the second half of ``make demo``, about half a minute with Spark.

Three tellers move money between accounts in transactions over several partitions. Some change their mind after the
debit; then their process is killed while one stands between debit and credit. They come back, and so does a zombie,
who is fenced. In the end a read_committed consumer and a Spark job must both count what was paid in, to the cent; a
read_uncommitted reader does not, as it also counts what never happened.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

import oncelog

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncelog.client.client import Log
    from oncelog.client.producer import Producer

console = Console()
HOME = Path(__file__).resolve().parents[1] / "build" / "demo"
ACCOUNTS, LEDGER, PARTITIONS = "accounts", "ledger", 3
TELLERS = ("teller-1", "teller-2", "teller-3")
HOLDERS = [f"account-{number:02d}" for number in range(12)]
PAID_IN = 100_000  # cents, into each account
TRANSFERS = 25  # of each teller, before the crash and after it
GIVES_UP = 0.3
WAITS = b"WAITS"


class ChangedMindError(Exception):
    """A transfer that is given up between debit and credit."""


def entry(number: str, account: str, cents: int) -> bytes:
    return json.dumps({"transfer": number, "account": account, "cents": cents}).encode()


def transfer(producer: Producer, number: str, chance: random.Random) -> None:
    """Moves money from one account to another: both records are seen, or neither."""
    giver, taker = chance.sample(HOLDERS, 2)
    cents = chance.randrange(100, 50_000)
    with producer.transaction():
        producer.send(ACCOUNTS, key=giver.encode(), value=entry(number, giver, -cents))
        if chance.random() < GIVES_UP:
            producer.flush()  # into the log, to show that nobody counts it there
            raise ChangedMindError
        producer.send(ACCOUNTS, key=taker.encode(), value=entry(number, taker, cents))


def work(log: Log, name: str, turn: str, tell: Callable[[str], object]) -> None:
    """One teller's day. ``tell`` hears of each transfer that was acknowledged."""
    chance = random.Random(f"{name}{turn}")
    with log.producer(transactional_id=name) as producer:
        for count in range(TRANSFERS):
            number = f"{name}/{turn}{count}"
            try:
                transfer(producer, number, chance)
            except ChangedMindError:
                continue
            tell(number)
            time.sleep(0.002)  # so that the tellers take turns


def work_together(log: Log, turn: str, tell: Callable[[str], object]) -> None:
    """All tellers at once."""
    threads = [threading.Thread(target=work, args=(log, name, turn, tell)) for name in TELLERS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def tellers(path: str) -> None:
    """The child: three tellers work, and then one stands between debit and credit until it is killed."""
    with oncelog.open(path) as log:
        work_together(log, "a", lambda number: os.write(1, f"{number}\n".encode()))
        producer = log.producer(transactional_id=TELLERS[2])
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(ACCOUNTS, key=b"account-03", value=entry("torn", "account-03", -77_777))
        producer.flush()
        os.write(1, WAITS + b"\n")
        time.sleep(600)


def run_and_kill(path: str) -> set[str]:
    """The transfers that were acknowledged before the process was killed in the middle of one."""
    command = [sys.executable, __file__, "tellers", path]
    acknowledged = set()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.strip() == WAITS:
                break
            acknowledged.add(line.decode().strip())
        child.send_signal(signal.SIGKILL)
    return acknowledged


def fence_a_zombie(log: Log) -> str:
    """Somebody who was thought dead goes on, while another has taken over; returns what it is told."""
    zombie = log.producer(transactional_id=TELLERS[0])
    zombie.init_transactions()
    zombie.begin_transaction()
    zombie.send(ACCOUNTS, key=b"account-05", value=entry("zombie", "account-05", -1_000_000))
    zombie.flush()
    with log.producer(transactional_id=TELLERS[0]) as heir:
        with contextlib.suppress(ChangedMindError):
            transfer(heir, "heir", random.Random(1))
        try:
            zombie.commit_transaction()
        except oncelog.errors.OncelogError as error:
            return f"{type(error).__name__}: {error}"
    raise AssertionError("the zombie was not fenced")


class Books(NamedTuple):
    """What a reader has counted."""

    records: int
    total: int
    transfers: set[str]
    balances: dict[str, int]


def count(log: Log, isolation_level: str) -> Books:
    """Adds up all accounts, as a consumer of one isolation level sees them."""
    records, transfers, balances = 0, set(), dict.fromkeys(HOLDERS, 0)
    with log.consumer(isolation_level=isolation_level, auto_offset_reset="earliest") as consumer:
        consumer.assign([(ACCOUNTS, number) for number in range(PARTITIONS)])
        while some := consumer.poll(timeout_ms=0):
            for record in some:
                line = json.loads(record.value or b"")
                balances[line["account"]] += line["cents"]
                transfers.add(line["transfer"])
            records += len(some)
    return Books(records, sum(balances.values()), transfers, balances)


def euro(cents: int) -> str:
    return f"{cents / 100:,.2f}"


def say(sentence: str) -> None:
    console.print(sentence, soft_wrap=True, highlight=False, markup=False)


def step(number: int, sentence: str) -> None:
    console.print(f"\n[bold]{number}. {sentence}[/bold]", soft_wrap=True, highlight=False)


def run(*arguments: str) -> None:
    """A command of ours, as a person would type it."""
    console.print(f"$ oncelog {' '.join(arguments)}", highlight=False, style="bold", markup=False)
    sys.stdout.flush()
    subprocess.run([sys.executable, "-m", "oncelog", *arguments], cwd=HOME, check=True)


# ---------------------------------------------------------------- Spark


def spark_totals(path: str) -> dict[str, tuple[int, int]] | str:
    """Records and total of each topic as Spark counts them, or why there is no Spark."""
    try:
        import pyspark  # noqa: F401

        import oncelog.spark

        oncelog.spark.find_java()
    except ImportError:
        return "pyspark is not installed: pip install 'oncelog[spark]'"
    except RuntimeError as error:
        return str(error)
    script = Path(__file__).with_name("bank_spark.py")
    command = [sys.executable, str(script), path, str(HOME / "checkpoint")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=170)
    if done.returncode:
        return f"Spark failed: {done.stderr.strip().splitlines()[-1]}"
    totals: dict[str, tuple[int, int]] = json.loads(done.stdout.strip().splitlines()[-1])
    return totals


# ---------------------------------------------------------------- the story


def show_books(
    rows: list[tuple[str, int, int]], paid_in: int, title: str = "Who counts what"
) -> None:
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("reader", no_wrap=True)
    for name in ("records", "total", "off by"):
        table.add_column(name, justify="right", no_wrap=True)
    for reader, records, total in rows:
        style = "green" if total == paid_in else "red"
        table.add_row(reader, f"{records:,}", euro(total), euro(total - paid_in), style=style)
    console.print(table)


def open_the_bank(path: str) -> int:
    """Two topics, and money on every account; returns how much."""
    with oncelog.open(path) as log:
        log.create_topic(ACCOUNTS, partitions=PARTITIONS)
        log.create_topic(LEDGER, partitions=PARTITIONS)
        with log.producer(transactional_id="founder") as producer, producer.transaction():
            for name in HOLDERS:
                producer.send(ACCOUNTS, key=name.encode(), value=entry("opening", name, PAID_IN))
    return len(HOLDERS) * PAID_IN


def partition_with_open(path: str) -> int:
    """Where the transaction hangs that the kill has left open."""
    with oncelog.open(path, read_only=True) as log:
        for number in range(PARTITIONS):
            partition = log.partition(ACCOUNTS, number)
            if partition.last_stable_offset < partition.high_watermark:
                return number
    return 0


def main() -> None:
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    path = str(HOME / "bank")
    paid_in = open_the_bank(path)
    step(
        1,
        f"{len(HOLDERS)} accounts, {euro(paid_in)} paid in; three tellers move money, and are killed (kill -9)",
    )
    acknowledged = run_and_kill(path)
    say(
        f"{len(acknowledged)} transfers were acknowledged; {TELLERS[2]} stood between debit and credit."
    )
    hangs = str(partition_with_open(path))
    run("transactions", "timeline", ACCOUNTS, "--partition", hangs, "--data", "bank")
    run("transactions", "list", "--data", "bank")

    step(2, "They come back: what was open is aborted, and the work goes on. A zombie wakes up")
    with oncelog.open(path) as log:
        work_together(log, "b", acknowledged.add)
        say(f"The zombie is told: {fence_a_zombie(log)}")
        committed, uncommitted = count(log, "read_committed"), count(log, "read_uncommitted")
    lost = acknowledged - committed.transfers
    assert not lost, lost
    assert committed.total == paid_in, committed.total
    assert uncommitted.total != paid_in, uncommitted.total
    assert not {"torn", "zombie"} & committed.transfers

    step(
        3,
        "The books: a consumer, and a Spark job that copies every transfer into a ledger, run twice",
    )
    rows = [
        ("consumer, read_committed", committed.records, committed.total),
        ("consumer, read_uncommitted", uncommitted.records, uncommitted.total),
    ]
    spark = spark_totals(path)
    if isinstance(spark, str):
        say(f"Without Spark: {spark}")
    else:
        rows += [
            (f"Spark, {name}", *spark[topic])
            for name, topic in (
                ("source and pandas UDF", ACCOUNTS),
                ("its exactly-once ledger", LEDGER),
            )
        ]
        assert {tuple(spark[topic]) for topic in (ACCOUNTS, LEDGER)} == {
            (committed.records, paid_in)
        }, spark
    show_books(rows, paid_in)
    say(
        f"No acknowledged transfer of {len(acknowledged)} is lost; money made or lost: {euro(committed.total - paid_in)}."
    )

    step(4, "All of it, along the offsets")
    run("transactions", "timeline", ACCOUNTS, "--data", "bank")
    run("transactions", "timeline", ACCOUNTS, "--html", "accounts.html", "--data", "bank")
    run("verify", "bank")
    say(
        f"""
Next, in {HOME.relative_to(Path.cwd()) if HOME.is_relative_to(Path.cwd()) else HOME}:
  accounts.html in a browser              every transaction, to zoom into
  oncelog consume accounts --from-beginning --data bank
  oncelog perf transactions --data perf   what this machine commits per second
  oncelog inspect DIR                     a Kafka broker's directory of yours
  oncelog doctor                          what this machine lacks"""
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["tellers"]:
        tellers(sys.argv[2])
    else:
        logging.getLogger("oncelog").setLevel(logging.CRITICAL)  # what goes wrong is meant to
        main()
