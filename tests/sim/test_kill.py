"""kill -9: what was acknowledged survives the process, what was aborted stays unseen, no offset is missing."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.partition.logs import contents, open_partition, read
from tests.sim.history import SMALL, Ledger
from tests.sim.killed_writer import Killer
from tests.sim.sim_disk import CountingDisk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RANDOM_KILLS = 330
KILLS_PER_DIRECTORY = 11


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    started = Killer()
    yield started
    started.close()


def remember(ledger: Ledger, said: list[dict[str, Any]]) -> None:
    """Adds what a writer acknowledged before it died."""
    for line in said:
        for value, offset in line.get("offsets", {}).items():
            ledger.offsets[value.encode()] = offset
            if value.startswith("gone"):
                ledger.aborted.add(value.encode())
            else:
                ledger.possible.add(value.encode())
        ledger.acknowledged.update(value.encode() for value in line.get("acknowledged", []))


class Anything(set[bytes]):
    """What may be seen though it was not acknowledged: everything that no transaction has aborted."""

    def __ror__(self, other: Any) -> Anything:
        return self

    def __ge__(self, other: Any) -> bool:
        return all(not value.startswith(b"gone") for value in other)


def check(path: Path, ledger: Ledger) -> list[tuple[int, bytes | None]]:
    """What both a reader and a recovery show; the reader changes nothing."""
    before = contents(path)
    directory, partition = open_partition(path, SMALL, read_only=True)
    ledger.check(partition)
    shown = read(partition)
    directory.close()
    assert contents(path) == before
    return shown


def test_a_writer_killed_at_random_points_loses_nothing_it_acknowledged(
    tmp_path: Path, killer: Killer
) -> None:
    """Goal: "os" durability: acknowledged records survive the process, aborted ones stay unseen, and what a reader
    has once been shown is there for good, also when recovery itself is killed.
    Method: kill a writer after a random time, open again and check; each directory goes through several writers."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    killed = written = 0
    for number in range(RANDOM_KILLS // KILLS_PER_DIRECTORY):
        path = tmp_path / str(number)
        path.mkdir()
        ledger = Ledger(possible=Anything())
        shown: list[tuple[int, bytes | None]] = []
        for generation in range(KILLS_PER_DIRECTORY):
            seconds = chance.choice([0.005, 0.02, 0.06]) * chance.random()
            answer = killer.ask(path=str(path), generation=generation, seconds=seconds)
            killed += answer["killed"]
            remember(ledger, answer["said"])
            if not (path / "orders-0").exists():
                continue
            fresh = check(path, ledger)
            assert fresh[: len(shown)] == shown, "a reader was shown records that are gone"
            shown = fresh
        directory, partition = open_partition(path, SMALL, disk=CountingDisk())
        ledger.check(partition)
        assert read(partition)[: len(shown)] == shown
        directory.close()
        written += len(ledger.offsets)
        shutil.rmtree(path)
    assert killed >= RANDOM_KILLS * 0.95
    assert written >= RANDOM_KILLS, "the writers were killed before they had begun"


@pytest.mark.parametrize("when", ["before", "within", "after"])
def test_a_writer_killed_at_every_call_to_the_disk_loses_nothing_it_acknowledged(
    tmp_path: Path, killer: Killer, when: str
) -> None:
    """Goal: no order of writes is wrong, whichever is the last.
    Method: kill before, half way through or after the first call, the second, and so on to a clean stop."""
    for at in range(1, 1000):
        path = tmp_path / str(at)
        path.mkdir()
        answer = killer.ask(path=str(path), generation=0, turns=2, at=at, when=when)
        ledger = Ledger(possible=Anything())
        remember(ledger, answer["said"])
        if (path / "orders-0").exists():
            shown = check(path, ledger)
            directory, partition = open_partition(path, SMALL, disk=CountingDisk())
            ledger.check(partition)
            assert read(partition) == shown
            directory.close()
            check(path, ledger)
        shutil.rmtree(path)
        if not answer["killed"]:
            assert at > 80, "the history is over too soon"
            return
    pytest.fail("the history has no end")


def test_a_recovery_killed_at_every_call_to_the_disk_can_be_repeated(
    tmp_path: Path, killer: Killer
) -> None:
    """Goal: recovery makes nothing worse, however far it gets.
    Method: tear the tail of a killed writer's directory, then kill the one that opens it at its first call, its
    second, and so on, until it gets to write again."""
    torn = tmp_path / "torn"
    torn.mkdir()
    answer = killer.ask(path=str(torn), generation=0, at=95, when="within", turns=3)
    assert answer["killed"]
    ledger = Ledger(possible=Anything())
    remember(ledger, answer["said"])
    logs = sorted((torn / "orders-0").glob("*.log"))
    assert len(logs) > 1
    with logs[-1].open("ab") as file:
        file.write(b"\0" * 100 + b"torn" * 20)
    shown = check(torn, ledger)
    assert shown
    for at in range(1, 200):
        path = tmp_path / str(at)
        shutil.copytree(torn, path)
        answer = killer.ask(path=str(path), generation=1, at=at, when="after", turns=0)
        assert check(path, ledger)[: len(shown)] == shown
        shutil.rmtree(path)
        if not answer["killed"]:
            assert at > 20
            return
    pytest.fail("recovery has no end")
