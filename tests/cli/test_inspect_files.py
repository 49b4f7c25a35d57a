"""``oncelog inspect`` on all but batches: entries as Kafka's tool shows them, held against the log, and directories."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ..golden_cases import CASES, GOLDEN, expected
from ..terminal import on_terminal
from .running import Command

if TYPE_CHECKING:
    from pathlib import Path


ONCELOG = [sys.executable, "-m", "oncelog"]
MIXED = GOLDEN / "txn-mixed/data/mixed-0"
SEGMENT = "00000000000000000231"
KINDS = {".index": "index", ".timeindex": "timeindex", ".txnindex": "txnindex"}
ENTRIES = [
    (case, name, file, kind)
    for case in CASES
    for name, fields in expected(case).get("afterKill", expected(case)["partitions"]).items()
    for kind in ("index", "timeindex", "txnindex", "snapshots")
    for file in fields.get(kind) or {}
]


COMMAND = Command("inspect")
run, document = COMMAND.run, COMMAND.document


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """A copy of a partition that a broker wrote, to be damaged."""
    return shutil.copytree(MIXED, tmp_path / "mixed-0")


# ---------------------------------------------------------------- what Kafka says


@pytest.mark.parametrize(("case", "name", "file", "kind"), ENTRIES, ids=str)
def test_entries_are_those_of_kafkas_dump_tool(case: str, name: str, file: str, kind: str) -> None:
    """Goal: indexes and snapshots say here what they say there, and agree with the log.
    Method: every file of the broker's directories against what DumpLogSegments printed."""
    partitions = expected(case).get("afterKill", expected(case)["partitions"])
    wanted = partitions[name][kind][file]
    found = document(GOLDEN / case / "data" / name / file)
    entries = found["entries"]
    if kind == "snapshots":
        kept = [{key: value for key, value in row.items() if value is not None} for row in entries]
        wanted = [{key: value for key, value in row.items() if value is not None} for row in wanted]
        assert kept == wanted
        return
    assert all(row.pop("isValid") for row in entries)
    if found["summary"]["zeroEntries"]:  # Kafka's tool stops at the first zeros, and shows them
        wanted = [row for row in wanted if 0 not in (row.get("position"), row.get("timestamp"))]
    assert entries == wanted


@pytest.mark.parametrize("case", CASES)
def test_every_file_of_a_broker_can_be_inspected(case: str) -> None:
    """Goal: none of Kafka's files is unknown, but for the controller's own state.
    Method: each file of each directory, and the directories."""
    for path in sorted((GOLDEN / case / "data").rglob("*")):
        if path.name == "quorum-state" or path.name == "__cluster_metadata-0":
            continue
        assert run(path).exit_code in ((0, 1) if case == "killed" else (0,)), path


@pytest.mark.parametrize("case", CASES)
def test_a_directory_at_a_glance_is_what_the_broker_showed(case: str) -> None:
    found = document(GOLDEN / case / "data", code=1 if case == "killed" else 0)
    partitions = expected(case)["partitions"]
    assert {row["partition"] for row in found["entries"]} == set(partitions)
    for row in found["entries"]:
        wanted = partitions[row["partition"]]
        for name in ("logStartOffset", "logEndOffset", "lastStableOffset"):
            assert row[name] == wanted[name], (row["partition"], name)
    assert found["summary"]["isClean"] == (case != "killed")


def test_what_recovery_would_cut_is_told_without_cutting_it() -> None:
    data = GOLDEN / "killed/data"
    result = run(data)
    assert result.exit_code == 1
    states = {line.split()[0]: line.split()[-1] for line in result.stdout.splitlines()[1:-1]}
    assert states["k-cut-0"] == "cut_at_165"
    assert states["k-flip-0"] == "cut_at_194"
    assert states["k-asis-0"] == "whole"
    assert "recovery would end k-cut-0 at offset 165" in result.stderr
    assert "position 5808 of 00000000000000000106.log" in result.stderr
    assert "not stopped cleanly" in result.stdout


# ---------------------------------------------------------------- what it looks like


def test_a_pipe_gets_plain_columns() -> None:
    result = run(MIXED / f"{SEGMENT}.txnindex")
    assert result.stdout.splitlines() == [
        "entry  producer  first_offset  last_offset  last_stable_offset  check",
        "    0         2           249          287                 131  ok",
        "    1         1           218          288                 131  ok",
        "    2         0           131          328                 297  ok",
        "    3         1           319          388                 334  ok",
        "    4         1           401          433                 354  ok",
        "5 entries, 170 bytes; compared with the log",
    ]
    assert result.stderr == ""


def test_a_terminal_gets_a_table() -> None:
    screen = on_terminal([*ONCELOG, "inspect", MIXED.parent], 100)
    lines = screen.splitlines()
    assert lines[0].split()[:4] == ["partition", "start", "end", "LSO"]
    assert set(lines[1].strip()) == {"─"}
    assert max(map(len, lines)) <= 100
    assert any(line.split()[:4] == ["mixed-0", "0", "823", "704"] for line in lines)


def test_a_long_index_shows_its_ends_on_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.index"
    path.write_bytes(b"".join(struct.pack(">ii", n, n * 100) for n in range(1, 1001)))
    screen = on_terminal([*ONCELOG, "inspect", path], 100)
    assert "… 950 more" in screen
    assert "950 entries are not shown: --max 0 shows all." in screen
    assert "there is no .log beside it to compare it with" in screen
    assert len(run(path).stdout.splitlines()) == 1002
    assert len(run("--max", "3", path).stdout.splitlines()) == 5
    assert len(document("--max", "3", path)["entries"]) == 3


def test_offsets_choose_entries() -> None:
    found = document("--from-offset", "318", "--to-offset", "340", MIXED / f"{SEGMENT}.index")
    assert [row["offset"] for row in found["entries"]] == [318, 328, 339]


def test_several_paths_are_titled() -> None:
    result = run(MIXED / "leader-epoch-checkpoint", MIXED / "partition.metadata")
    assert str(MIXED / "partition.metadata") in result.stdout.splitlines()


def test_the_reserved_end_of_an_index_is_explained() -> None:
    result = run(GOLDEN / "killed/data/k-asis-0/00000000000000000113.index")
    assert result.exit_code == 0
    assert "501 entries of zeros behind the last: space that Kafka reserves" in result.stderr
    assert result.stdout.splitlines()[-1].startswith("11 entries, 4,096 bytes")


# ---------------------------------------------------------------- what is wrong


def test_an_index_that_leads_astray_is_named(partition: Path) -> None:
    path = partition / f"{SEGMENT}.index"
    data = bytearray(path.read_bytes())
    struct.pack_into(">i", data, 3 * 8 + 4, 3065)
    path.write_bytes(data)
    result = run(path)
    assert result.exit_code == 1
    assert (
        "entry 3 leads offset 276 to position 3065, where a batch does not start" in result.stderr
    )
    assert "BAD" in result.stdout
    assert run("--no-check", path).exit_code == 0


def test_a_timestamp_that_the_log_does_not_have_is_named(partition: Path) -> None:
    path = partition / f"{SEGMENT}.timeindex"
    data = bytearray(path.read_bytes())
    struct.pack_into(">q", data, 12, 1794796008664)
    path.write_bytes(data)
    assert document(path, code=1)["damage"][0]["position"] == 12
    assert "whose batch has 1794796008663" in run(path).stderr


def test_an_abort_without_a_marker_is_named(partition: Path) -> None:
    path = partition / f"{SEGMENT}.txnindex"
    data = bytearray(path.read_bytes())
    struct.pack_into(">q", data, 2, 77)
    path.write_bytes(data)
    result = run(path)
    assert result.exit_code == 1
    assert "names an ABORT marker of producer 77 at offset 287" in result.stderr
    path.write_bytes(bytes(data[:-1]))
    assert "bytes are not a multiple of 34" in run(path).stderr


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("00000000000000000468.snapshot", b"\0\1\0\0\0\0\0\0\0\0", "the checksum does not match"),
        ("00000000000000000468.snapshot", b"", "at least 10 bytes"),
        ("leader-epoch-checkpoint", b"0\n2\n0 0\n", "1 rows where 2 are promised"),
        ("leader-epoch-checkpoint", b"0\n2\n1 5\n0 9\n", "epoch"),
        ("partition.metadata", b"version: 0\n", "a topic id"),
        ("recovery-point-offset-checkpoint", b"7\n0\n", "unknown version"),
        ("cleaner-offset-checkpoint", b"\xff\xff", "not text"),
        ("meta.properties", b"", "no key=value lines"),
    ],
)
def test_a_small_file_that_cannot_be_read_is_told(
    tmp_path: Path, name: str, content: bytes, sentence: str
) -> None:
    (tmp_path / name).write_bytes(content)
    result = run(tmp_path / name)
    assert result.exit_code == 1
    assert sentence in result.stderr
    assert document(tmp_path / name, code=1)["summary"]["damaged"] == 1


def test_text_alone_loads_no_arrow() -> None:
    """Goal: commands that print text start in a blink.
    Method: run them in one process and look at what was loaded."""
    program = (
        "import sys; from oncelog.cli.main import cli\n"
        f"for words in (['inspect', {str(MIXED.parent)!r}], ['verify', {str(MIXED)!r}]):\n"
        "    cli.main(words, standalone_mode=False)\n"
        "sys.exit(sum(name in sys.modules for name in ('pyarrow', 'pandas', 'rich')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
