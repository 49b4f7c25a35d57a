"""``oncelog repair`` says what recovery would do without doing it, and does exactly that when told."""

from __future__ import annotations

import hashlib
import shutil
from typing import TYPE_CHECKING

import pytest

import oncelog
from tests.cli.running import Command
from tests.golden_cases import GOLDEN, expected

if TYPE_CHECKING:
    from pathlib import Path

REPAIR, VERIFY = Command("repair"), Command("verify")


def fingerprint(path: Path) -> dict[str, str]:
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """What a broker left that was killed while it wrote, with damage on top."""
    path = tmp_path / "killed"
    shutil.copytree(GOLDEN / "killed" / "data", path)
    return path


def test_a_plan_changes_nothing(killed: Path) -> None:
    before = fingerprint(killed)
    result = REPAIR.run(killed)
    assert result.exit_code == 1
    assert "k-cut-0: would be cut to end before offset 165" in result.stdout
    assert "k-index-0/00000000000000000108.index would be made anew" in result.stdout
    assert "Nothing was changed: --execute does it." in result.stderr
    assert fingerprint(killed) == before


def test_it_leaves_what_a_recovered_broker_shows(killed: Path) -> None:
    """Goal: the same end as Kafka's own recovery. Method: repair a copy, compare offsets with what the broker said,
    and prove the directory sound."""
    plan = {
        f"{row['topic']}-{row['partition']}": row["logEndOffset"]
        for row in REPAIR.document(killed, code=1)["partitions"]
    }
    result = REPAIR.run(killed, "--execute", "--lose-batches")
    assert result.exit_code == 0, result.output
    told = expected("killed")["partitions"]
    with oncelog.open(killed, read_only=True) as log:
        for name, broker in told.items():
            topic, number = name.rsplit("-", 1)
            partition = log.partition(topic, int(number))
            assert partition.log_end_offset == broker["logEndOffset"] == plan[name], name
            assert partition.last_stable_offset == broker["lastStableOffset"], name
    assert VERIFY.run(killed).exit_code == 0
    assert REPAIR.run(killed).exit_code == 0


def test_sound_batches_are_lost_only_when_told(killed: Path) -> None:
    before = fingerprint(killed)
    result = REPAIR.run(killed, "--execute")
    assert result.exit_code == 2
    assert "2 sound batches would be lost: --lose-batches allows it" in result.stderr
    assert fingerprint(killed) == before


def test_a_sound_directory_needs_nothing() -> None:
    result = REPAIR.run(GOLDEN / "txn-mixed" / "data")
    assert result.exit_code == 0
    assert "6 partitions: nothing to repair" in result.stdout


def test_what_is_sound_is_left_as_it_is_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "data"
    shutil.copytree(GOLDEN / "txn-mixed" / "data", path)
    before = fingerprint(path)
    result = REPAIR.run(path, "--execute")
    assert (result.exit_code, result.stdout) == (0, "6 partitions: nothing to repair\n")
    assert fingerprint(path) == before


def test_a_missing_transaction_index_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "data"
    shutil.copytree(GOLDEN / "txn-mixed" / "data", path)
    removed = min((path / "mixed-0").glob("*.txnindex"))
    whole = removed.read_bytes()
    removed.unlink()
    assert f"mixed-0/{removed.name} would be made anew" in REPAIR.run(path).stdout
    assert REPAIR.run(path, "--execute").exit_code == 0
    assert removed.read_bytes() == whole


@pytest.mark.parametrize("mode", ["--dry-run", "--execute"])
def test_a_directory_in_use_is_left_alone(tmp_path: Path, mode: str) -> None:
    with oncelog.open(tmp_path) as log:
        log.create_topic("orders")
        with log.producer() as producer:
            producer.send("orders", b"v").result()
        result = REPAIR.run(tmp_path, mode)
    assert result.exit_code == 2
    assert "is in use by another process: stop that one first" in result.stderr


def test_what_is_no_directory_of_logs_is_refused(tmp_path: Path) -> None:
    result = REPAIR.run(tmp_path)
    assert result.exit_code == 2
    assert "is not a directory of logs" in result.stderr
    assert REPAIR.run(tmp_path, "--execute", "--dry-run").exit_code == 2
