"""kill -9 on a whole broker: commits survive, aborts and unfinished transactions stay unseen, none is torn."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from oncelog.base.errors import InvalidTxnStateError
from tests.broker.brokers import COMMITTED, UNCOMMITTED, opened, values_of
from tests.sim.killed_broker import CONFIG, KEYS
from tests.sim.killed_writer import Killer
from tests.sim.txn_parts import read

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncelog.broker.broker import Broker

RANDOM_KILLS = 66
KILLS_PER_DIRECTORY = 11


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    started = Killer("tests.sim.killed_broker")
    yield started
    started.close()


class Ledger:
    """What was said before each kill, and what must follow from it."""

    def __init__(self) -> None:
        self.plain: dict[str, str] = {}  # to their partitions
        self.kept: list[list[str]] = []
        self.tried: list[list[str]] = []
        self.gone: set[str] = set()
        self.prepared: list[str] | None = None
        self.completing = 0  # how often it was tried to end it
        self.transactions = 0

    def hear(self, said: list[dict[str, Any]]) -> None:
        for line in said:
            if "plain" in line:
                self.plain[line["plain"]] = line["key"]
            self.gone.update(line.get("gone", ()))
            if "tries" in line:
                self.tried.append(line["tries"])
            if "kept" in line:
                self.kept.append(line["kept"])
                self.transactions += 1
            if "prepared" in line:
                self.prepared = line["prepared"]
            if "completing" in line:
                self.completing += 1
                assert self.prepared is not None
                self.tried.append(self.prepared)
            if "completed" in line:
                self.complete(is_new=line["completed"] == "now")

    def complete(self, *, is_new: bool) -> None:
        """A prepared transaction is ended; only where an earlier attempt was cut off can it have been so before."""
        assert is_new or self.completing > 1, "what was prepared is not there any more"
        assert self.prepared is not None
        self.kept.append(self.prepared)
        self.prepared, self.completing = None, 0

    def check(self, broker: Broker) -> None:
        """Nothing that was acknowledged is lost, or there twice; nothing else is seen, or only whole."""
        seen: set[str] = set()
        hidden: set[str] = set()  # behind an open transaction: nobody may see them yet
        for key in KEYS:
            values = [str(value, "ascii") for _, value in read(broker, key, COMMITTED)]
            assert len(set(values)) == len(values), "a record is there twice"
            for name in ("plain", "kept"):
                orders = [order_of(value) for value in values if value.startswith(name)]
                assert orders == sorted(orders), f"{name} records are out of order"
            stable = broker.partition(key).last_stable_offset
            seen.update(values)
            hidden.update(
                str(value, "ascii")
                for offset, value in read(broker, key, UNCOMMITTED)
                if offset >= stable
            )
        there = seen | hidden
        assert not self.plain.keys() - there, "a record is lost"
        assert not [kept for kept in self.kept if not there.issuperset(kept)], "a commit is lost"
        assert not {value for value in seen if value.startswith("gone")}, "an abort is seen"
        for transaction in self.tried:  # a commit that was cut off: on all partitions, or on none
            found = {value in seen for value in transaction if value not in hidden}
            assert len(found) < 2, f"torn: {transaction}"
        known = {value for transaction in self.tried + self.kept for value in transaction}
        unknown = {value for value in seen if not value.startswith("plain")} - known
        assert not unknown, f"nobody has tried to commit {unknown}"


def order_of(value: str) -> tuple[int, ...]:
    """Generation and number: records of one producer come in this order."""
    return tuple(map(int, value.split(" ")[1].split(".")))


def check(path: Path, ledger: Ledger, durability: str = "os") -> None:
    """Opens what a kill has left, ends what is open by taking the ids over, and looks again."""
    with opened(path, config=CONFIG, durability=durability) as broker:
        if "orders" not in broker.topics() or "bills" not in broker.topics():
            assert not ledger.kept
            return
        ledger.check(broker)
        if ledger.prepared is not None and not ledger.completing:
            described = broker.list_transactions(states=["Ongoing"], id_pattern="prepared")
            assert len(described) == 1, "a prepared transaction must wait for its end"


def finish(path: Path, ledger: Ledger) -> None:
    """The last look at a directory: all ids are taken over, so that nothing is held back any more."""
    with opened(path, config=CONFIG) as broker:
        if ledger.prepared is not None:
            is_new = True
            ledger.completing += 1
            try:
                broker.complete_transaction("prepared", commit=True)
            except InvalidTxnStateError:
                is_new = False
            ledger.complete(is_new=is_new)
        for name in ("c", "a", "prepared"):
            broker.init_producer_id(name)
        for key in KEYS:
            partition = broker.partition(key)
            assert partition.last_stable_offset == partition.high_watermark
        ledger.check(broker)


@pytest.mark.parametrize(("kills", "durability"), [(RANDOM_KILLS, "os"), (22, "fsync")])
def test_a_broker_killed_at_random_points_keeps_its_promises(
    tmp_path: Path, killer: Killer, kills: int, durability: str
) -> None:
    """Goal: no commit that was acknowledged is lost, no abort is seen, every transaction is on all its partitions or
    on none, and one that was prepared waits for its end through any number of kills.
    Method: kill a broker after a random time, open again and check; each directory goes through several brokers."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    killed = transactions = 0
    slowness = 1.0  # of this machine, as it is now: a broker is to live for some transactions, most of the time
    for number in range(kills // KILLS_PER_DIRECTORY):
        path, ledger = tmp_path / str(number), Ledger()
        path.mkdir()
        for generation in range(KILLS_PER_DIRECTORY):
            seconds = (0.01 + chance.choice([0.02, 0.05, 0.1]) * chance.random()) * slowness
            before = ledger.transactions
            answer = killer.ask(
                path=str(path),
                generation=generation,
                seconds=seconds,
                durability=durability,
                complete=ledger.prepared is not None,
            )
            killed += answer["killed"]
            ledger.hear(answer["said"])
            slowness = max(slowness * (0.5 if ledger.transactions > before else 1.5), 1.0)
            if generation % 2:  # else the next broker is the first to open what was left
                check(path, ledger, durability)
        finish(path, ledger)
        transactions += ledger.transactions
        shutil.rmtree(path)
    assert killed >= kills * 0.95
    assert transactions >= kills / 2, "the brokers were killed before they had begun"


@pytest.mark.parametrize("when", ["before", "within", "after"])
def test_a_broker_killed_at_every_call_to_the_disk_of_a_commit_has_committed_or_not(
    tmp_path: Path, killer: Killer, when: str
) -> None:
    """Goal: whichever call is the last, the transaction is seen on all four partitions or on none.
    Method: kill around the first call to the disk after the commit has begun, the second, and so on."""
    outcomes = []
    for at in range(1, 60):
        path, ledger = tmp_path / str(at), Ledger()
        path.mkdir()
        answer = killer.ask(
            path=str(path), generation=0, turns=1, at=at, when=when, from_commit=True
        )
        ledger.hear(answer["said"])
        check(path, ledger)
        with opened(path, config=CONFIG) as broker:
            broker.init_producer_id("c")
            broker.init_producer_id("a")
            broker.complete_transaction("prepared", commit=False)
            seen = {key: values_of(broker, key) for key in KEYS}
        counts = {sum(v.startswith(b"kept") for v in values if v) for values in seen.values()}
        assert len(counts) == 1, f"torn: {seen}"
        outcomes.append(counts.pop())
        shutil.rmtree(path)
        if ledger.kept:
            break
    assert outcomes[0] == (1 if when == "after" else 0)
    assert outcomes == sorted(outcomes), (
        "what was committed before one kill is not after a later one"
    )
    assert outcomes[-1] == 1
    assert len(outcomes) > 5, "a commit over four partitions writes more than that"


def test_a_broker_killed_at_every_call_to_the_disk_can_be_opened_again(
    tmp_path: Path, killer: Killer
) -> None:
    """Goal: from an empty directory on, no moment leaves something that cannot be opened or that breaks a promise.
    Method: kill around every seventh call, from a place that differs each time, to a clean stop."""
    chance = random.SystemRandom().randrange(1, 8)
    print(f"from call {chance}")
    for at in range(chance, 2000, 7):
        path, ledger = tmp_path / str(at), Ledger()
        path.mkdir()
        answer = killer.ask(path=str(path), generation=0, turns=2, at=at, when="within")
        ledger.hear(answer["said"])
        check(path, ledger)
        shutil.rmtree(path)
        if not answer["killed"]:
            assert at > 100, "the history is over too soon"
            return
    pytest.fail("the history has no end")
