"""``oncelog doctor`` looks at the machine and says what to do where something is missing."""

from __future__ import annotations

import json
import resource
from typing import TYPE_CHECKING, Any

import oncelog
from oncelog.spark import java
from tests.cli.running import Command
from tests.golden_cases import GOLDEN

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

DOCTOR = Command("doctor")


def findings(path: Path) -> dict[str, dict[str, Any]]:
    result = DOCTOR.run("--json", "--data", path)
    assert result.exit_code == 0, result.output
    return {row["what"]: row for row in json.loads(result.stdout)}


def test_it_looks_at_all_that_matters(tmp_path: Path) -> None:
    found = findings(tmp_path)
    assert found.keys() >= {
        "python",
        "libraries",
        "native build",
        "cpu",
        "java for spark",
        "file system",
        "disk sync",
        "open files",
        "mappings",
    }
    assert "modules; CRC-32C by" in found["native build"]["found"]
    assert "per second, 50th" in found["disk sync"]["found"]
    assert list(tmp_path.iterdir()) == []


def test_rows_are_for_people(tmp_path: Path) -> None:
    result = DOCTOR.run("--data", tmp_path)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0].split() == ["what", "verdict", "found"]


def test_a_directory_that_is_not_there_is_told_with_what_to_do(tmp_path: Path) -> None:
    """Goal: a slip in a name does not pass for a sound directory, though the disk above it is fine."""
    row = findings(tmp_path / "not" / "there" / "yet")["data directory"]
    assert (row["verdict"], row["found"]) == ("note", f"{tmp_path}/not/there/yet does not exist")
    assert "correct its name, or let 'oncelog topics create' make it" in row["advice"]
    assert row["advice"].endswith(f"the disk was looked at in {tmp_path}")
    assert list(tmp_path.iterdir()) == []


def test_what_the_directory_is_is_told(tmp_path: Path) -> None:
    with oncelog.open(tmp_path / "ours"):
        pass
    assert findings(tmp_path / "ours")["data directory"]["found"].endswith("ours, oncelog's")
    kafka = GOLDEN / "txn-offsets/data"
    assert findings(kafka)["data directory"]["found"].endswith(", a Kafka broker's")
    (tmp_path / "empty").mkdir()
    assert findings(tmp_path / "empty")["data directory"]["found"].endswith("empty, still empty")
    row = findings(tmp_path)["data directory"]
    assert row["verdict"] == "note"
    assert "is not a log directory" in row["advice"]
    (tmp_path / "file").touch()
    result = DOCTOR.run("--data", tmp_path / "file")
    assert result.exit_code == 1
    assert f"data directory: {tmp_path}/file is a file, not a data directory." in result.stderr


def test_no_java_is_a_note_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_java() -> java.Java:
        raise java.JavaNotFoundError("Spark needs Java 17 or newer (JAVA_HOME: none)")

    monkeypatch.setattr(java, "find_java", find_java)
    row = findings(tmp_path)["java for spark"]
    assert row["verdict"] == "note"
    assert "Spark needs Java 17" in row["advice"]
    assert "pip install" in row["advice"]


def test_few_open_files_are_noticed(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        row = findings(tmp_path)["open files"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert row["verdict"] == "note"
    assert "ulimit -n" in row["advice"]
