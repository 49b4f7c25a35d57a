"""``oncelog verify``: a broker's directory is sound, and each kind of damage is named with its place and its remedy."""

from __future__ import annotations

import hashlib
import shutil
import struct
import sys
from random import Random
from typing import TYPE_CHECKING

import pytest

from oncelog.partition.verify import verify
from oncelog.segment.batch import ControlType, encode, encode_marker, scan
from oncelog.segment.segment import SegmentOptions

from ..golden_cases import CASES, GOLDEN
from ..partition.histories import History
from ..terminal import on_terminal
from .running import Command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


ONCELOG = [sys.executable, "-m", "oncelog"]
FIRST, SECOND, THIRD, LAST = (f"{base:020d}" for base in (0, 231, 468, 704))
START = 1794787200000

# What was done to the directory of the killed broker, and nothing else.
KILLED = {
    (
        "k-cut-0/00000000000000000106.log",
        5808,
    ): "the file ends inside a batch, 83 bytes after its start",
    ("k-flip-0/00000000000000000112.log", 7413): "the checksum does not match the batch",
    ("k-garbage-0/00000000000000000113.log", 6122): "magic byte is not 2",
    ("k-index-0/00000000000000000000.timeindex", 24): "25 bytes are not a multiple of 12",
    ("k-index-0/00000000000000000108.index", None): "is missing",
    ("k-index-0/00000000000000000108.txnindex", None): "is missing, so 3 aborted transactions",
}


COMMAND = Command("verify")
run, document = COMMAND.run, COMMAND.document


def hashes(path: Path) -> dict[str, str]:
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A copy of a directory that a broker stopped cleanly, to be damaged."""
    return shutil.copytree(GOLDEN / "txn-mixed/data", tmp_path / "data")


# ---------------------------------------------------------------- a broker's directories


@pytest.mark.parametrize("case", [case for case in CASES if case != "killed"])
def test_what_a_broker_left_is_sound(case: str) -> None:
    """Goal: no false alarm over Kafka's own files, compacted ones among them, and nothing is changed.
    Method: every directory as a whole, each partition and each segment alone."""
    place = GOLDEN / case / "data"
    before = hashes(place)
    found = document(place)
    assert (found["isSound"], found["isClean"], found["damage"]) == (True, True, [])
    assert found["partitions"] == len({path.parent for path in place.rglob("*.log")})
    for path in [*place.glob("*-[0-9]*"), *place.rglob("*.log")]:
        assert run(path).exit_code == 0, (path, run(path).stdout)
    assert hashes(place) == before


def test_the_damage_of_a_killed_broker_is_named_exactly() -> None:
    place = GOLDEN / "killed/data"
    before = hashes(place)
    found = document(place, code=1)
    damage = {(row["file"], row["position"]): row["what"] for row in found["damage"]}
    assert damage.keys() == KILLED.keys()
    for key, what in KILLED.items():
        assert damage[key].startswith(what)
    assert all(row["advice"] for row in found["damage"])
    assert found["damaged"] == 6
    notes = {row["file"]: row["what"] for row in found["notes"]}
    assert "is missing" in notes["k-nosnap-0/00000000000000000106.snapshot"]
    assert "501 zero entries behind 11" in notes["k-asis-0/00000000000000000113.index"]
    assert hashes(place) == before


def test_a_killed_partition_without_damage_is_sound() -> None:
    assert run(GOLDEN / "killed/data/k-asis-0").exit_code == 0


# ---------------------------------------------------------------- what is damaged, and how it is told


def overwrite(path: Path, position: int, content: bytes) -> None:
    whole = bytearray(path.read_bytes())
    whole[position : position + len(content)] = content
    path.write_bytes(whole)


def third_batch(path: Path) -> tuple[int, int]:
    """(position, size) of a data batch in the middle."""
    rows = scan(path.read_bytes())
    data = rows[rows["control_type"] == -1]
    return int(data["position"][2]), int(data["size"][2])


def flip_value(data: Path) -> None:
    log = data / f"mixed-0/{SECOND}.log"
    position, size = third_batch(log)
    whole = log.read_bytes()
    overwrite(log, position + size - 2, bytes([whole[position + size - 2] ^ 1]))


def flip_base_offset(data: Path) -> None:
    log = data / f"mixed-0/{SECOND}.log"
    overwrite(log, third_batch(log)[0], struct.pack(">q", 700))


def flip_leader_epoch(data: Path) -> None:
    log = data / f"mixed-0/{SECOND}.log"
    overwrite(log, third_batch(log)[0] + 12, struct.pack(">i", 5))


def cut_between_batches(data: Path) -> None:
    log = data / f"mixed-0/{LAST}.log"
    whole = log.read_bytes()
    log.write_bytes(whole[: int(scan(whole)["position"][-1])])


def zero_tail(data: Path) -> None:
    log = data / f"mixed-0/{LAST}.log"
    log.write_bytes(log.read_bytes() + bytes(100))


DAMAGE: list[tuple[str, Callable[[Path], object], str]] = [
    (f"mixed-0/{SECOND}.log", flip_value, "the checksum does not match the batch"),
    (f"mixed-0/{SECOND}.log", flip_base_offset, "do not belong here: the segment ends before 468"),
    ("mixed-0/leader-epoch-checkpoint", flip_leader_epoch, "its batch is of epoch 5"),
    (
        "recovery-point-offset-checkpoint",
        cut_between_batches,
        "of mixed-0 is 823, but its log ends at",
    ),
    (f"mixed-0/{LAST}.log", zero_tail, "only zeros up to the end, 100 bytes"),
    (
        f"mixed-0/{SECOND}.index",
        lambda data: overwrite(data / f"mixed-0/{SECOND}.index", 12, b"\0\0\5\x2a"),
        "entry 1 leads offset 253 to position 1322: where no batch starts",
    ),
    (
        f"mixed-0/{SECOND}.index",
        lambda data: overwrite(data / f"mixed-0/{SECOND}.index", 0, b"\0\0\0\xff"),
        "entry 1 does not rise",
    ),
    (
        f"mixed-0/{SECOND}.timeindex",
        lambda data: overwrite(data / f"mixed-0/{SECOND}.timeindex", 7, b"\0"),
        "entry 0 gives offset 241 the timestamp",
    ),
    (
        f"mixed-0/{SECOND}.timeindex",
        lambda data: (data / f"mixed-0/{SECOND}.timeindex").write_bytes(b""),
        "it ends with timestamp -1, the segment's largest is",
    ),
    (
        f"mixed-0/{SECOND}.index",
        lambda data: (data / f"mixed-0/{SECOND}.index").write_bytes(
            (data / f"mixed-0/{SECOND}.index").read_bytes() + bytes(80)
        ),
        "the last 10 entries are zero, which a clean stop would have cut",
    ),
    (
        f"mixed-0/{SECOND}.txnindex",
        lambda data: (data / f"mixed-0/{SECOND}.txnindex").unlink(),
        "is missing, so 5 aborted transactions would be shown, the first with its marker at 287",
    ),
    (
        f"mixed-0/{SECOND}.txnindex",
        lambda data: overwrite(data / f"mixed-0/{SECOND}.txnindex", 10, struct.pack(">q", 250)),
        "entry 0 lets the transaction begin at offset 250, in the log it begins at 249",
    ),
    (
        f"mixed-0/{SECOND}.txnindex",
        lambda data: overwrite(data / f"mixed-0/{SECOND}.txnindex", 162, struct.pack(">q", 400)),
        "entry 4 has the last stable offset 400, a replay gives 354",
    ),
    (
        f"mixed-0/{SECOND}.txnindex",
        lambda data: overwrite(data / f"mixed-0/{SECOND}.txnindex", 0, b"\0\1"),
        "version",
    ),
    (
        f"mixed-0/{THIRD}.snapshot",
        lambda data: overwrite(data / f"mixed-0/{THIRD}.snapshot", 30, b"\xff"),
        "the checksum does not match the snapshot",
    ),
    (
        f"mixed-0/{THIRD}.snapshot",
        lambda data: shutil.copy(
            data / f"mixed-0/{SECOND}.snapshot", data / f"mixed-0/{THIRD}.snapshot"
        ),
        "a replay gives",
    ),
    (
        "mixed-0/00000000000000000900.snapshot",
        lambda data: shutil.copy(
            data / f"mixed-0/{SECOND}.snapshot", data / "mixed-0/00000000000000000900.snapshot"
        ),
        "it knows of offsets below 900, but the log ends at 823",
    ),
    (
        "mixed-0/leader-epoch-checkpoint",
        lambda data: (data / "mixed-0/leader-epoch-checkpoint").write_text("0\n2\n0 0\n1 900\n"),
        "epoch 1 is said to start at 900, but the log ends at 823",
    ),
    (
        "mixed-0/leader-epoch-checkpoint",
        lambda data: (data / "mixed-0/leader-epoch-checkpoint").write_text("0\n0\n"),
        "names no epoch, though the batches do",
    ),
    (
        "mixed-0/partition.metadata",
        lambda data: (data / "mixed-0/partition.metadata").write_text("version: 0\n"),
        "a topic id",
    ),
    (
        "side-1/partition.metadata",
        lambda data: shutil.copy(
            data / "mixed-0/partition.metadata", data / "side-1/partition.metadata"
        ),
        "another partition of the topic has",
    ),
    (
        "replication-offset-checkpoint",
        lambda data: (data / "replication-offset-checkpoint").write_text("0\n1\nmixed 0 824\n"),
        "the high watermark of mixed-0 is 824, but its log ends at 823",
    ),
    (
        "log-start-offset-checkpoint",
        lambda data: (data / "log-start-offset-checkpoint").write_text("0\n7\n"),
        "0 rows where 7 are promised",
    ),
]


@pytest.mark.parametrize(
    ("file", "damage", "sentence"), DAMAGE, ids=[f"{row[0]}: {row[2]}" for row in DAMAGE]
)
def test_damage_is_named_with_its_file(
    data: Path, file: str, damage: Callable[[Path], object], sentence: str
) -> None:
    """Goal: whatever is wrong is told with the file, and what to do about it.
    Method: one thing at a time is damaged in a copy of a broker's directory."""
    damage(data)
    before = hashes(data)
    found = document(data, code=1)
    mine = [row for row in found["damage"] if row["file"] == file]
    assert mine, found["damage"]
    assert any(sentence in row["what"] for row in mine), mine
    assert all(row["advice"] for row in mine)
    text = run(data)
    assert text.exit_code == 1
    assert f"DAMAGED  {file}" in text.stdout
    assert hashes(data) == before


def test_a_damaged_batch_does_not_make_all_behind_it_suspect(data: Path) -> None:
    """Goal: one wrong bit is one finding.
    Method: flip a value in a sealed segment; indexes, snapshots and epochs behind it stay unaccused."""
    flip_value(data)
    found = document(data, code=1)
    assert found["damagedFiles"] == [f"mixed-0/{SECOND}.log"]
    assert found["damaged"] == 1


def test_the_advice_tells_what_a_broker_would_do(data: Path) -> None:
    flip_value(data)
    assert "A broker does not look here when it starts" in run(data).stdout
    (data / ".kafka_cleanshutdown").unlink()
    (data / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    result = run(data)
    assert "Recovery ends the log here: offsets from" in result.stdout
    assert "The directory was not stopped cleanly" in result.stderr


def flips(path: Path) -> list[int]:
    """Positions at which a flipped bit goes unnoticed."""
    whole = path.read_bytes()
    missed = []
    for position in range(len(whole)):
        overwrite(path, position, bytes([whole[position] ^ 0x10]))
        if verify(str(path.parent)).is_sound:
            missed.append(position)
    path.write_bytes(whole)
    return missed


@pytest.mark.parametrize("suffix", [".timeindex", ".txnindex", ".snapshot"])
def test_a_flip_anywhere_in_a_derived_file_is_found(data: Path, suffix: str) -> None:
    """Goal: indexes without a checksum of their own are proven by the log.
    Method: flip a bit in every byte of one file of a partition."""
    assert flips(data / f"mixed-0/{SECOND}{suffix}") == []


def test_a_flip_in_any_header_of_a_log_is_found(tmp_path: Path) -> None:
    """Goal: in a directory, also what lies outside of a batch's checksum is proven.
    Method: flip a bit in each byte of each header; cut the log between any two batches."""
    data = shutil.copytree(GOLDEN / "txn-mixed/data/side-0", tmp_path / "data/side-0").parent
    for path in (GOLDEN / "txn-mixed/data").glob("*checkpoint"):
        shutil.copy(path, data)
    log = data / f"side-0/{FIRST}.log"
    whole = log.read_bytes()
    starts = scan(whole)["position"].tolist()
    for position in (start + at for start in starts for at in range(61)):
        overwrite(log, position, bytes([whole[position] ^ 0x80]))
        assert not verify(str(data)).is_sound, position
        log.write_bytes(whole)
    for start in starts:
        log.write_bytes(whole[:start])
        assert not verify(str(data)).is_sound, start


def test_an_offset_index_that_lost_its_end_only_costs_time(data: Path) -> None:
    """Goal: what does no harm is no damage: fewer entries mean a longer search."""
    path = data / f"mixed-0/{SECOND}.index"
    path.write_bytes(path.read_bytes()[:-16])
    assert run(data).exit_code == 0


def test_entries_of_compacted_segments_cannot_hide_committed_records(tmp_path: Path) -> None:
    """Goal: where compaction has removed what a replay needs, an entry still cannot reach too far.
    Method: let an abort begin before its producer's last transaction had ended."""
    folder = tmp_path / "t-0"
    folder.mkdir()
    parts = [
        encode([b"kept"], keys=[b"a"], base_offset=4, producer_id=7, producer_epoch=0, base_sequence=4,
               transactional=True, timestamp_ms=START, partition_leader_epoch=0),
        encode_marker(ControlType.COMMIT, producer_id=7, producer_epoch=0, coordinator_epoch=0,
                      timestamp_ms=START, base_offset=5, partition_leader_epoch=0),
        encode_marker(ControlType.ABORT, producer_id=7, producer_epoch=0, coordinator_epoch=0,
                      timestamp_ms=START, base_offset=9, partition_leader_epoch=0),
    ]  # fmt: skip
    (folder / f"{FIRST}.log").write_bytes(b"".join(map(bytes, parts)))
    (folder / f"{FIRST}.index").write_bytes(b"")
    (folder / f"{FIRST}.timeindex").write_bytes(struct.pack(">qi", START, 4))
    index = folder / f"{FIRST}.txnindex"
    index.write_bytes(struct.pack(">hqqqq", 0, 7, 6, 9, 10))
    result = run("--notes", folder)
    assert result.exit_code == 0, result.stdout
    assert "as compaction leaves them" in result.stdout
    index.write_bytes(struct.pack(">hqqqq", 0, 7, 3, 9, 10))
    result = run(folder)
    assert result.exit_code == 1
    assert "begins at offset 3, but producer 7 ended a transaction at 5" in result.stdout


# ---------------------------------------------------------------- our own directories


@pytest.mark.parametrize("seed", [1, 19, 113])
def test_what_this_library_wrote_is_sound(tmp_path: Path, seed: int) -> None:
    """Goal: no false alarm over what is written, compacted, deleted and reopened here.
    Method: a history that a seed decides, looked at as a crash would leave it, and after a clean stop. In 113
    compaction removes markers of transactions that are open in the oldest snapshot."""
    history = History(tmp_path / "compact-0", segment=SegmentOptions(600, 10 << 20, 64))
    random = Random(seed)
    busy: set[int] = set()
    for _ in range(80):
        history.now_ms += random.choice([1, 1000, 3_600_000])
        pairs: list[tuple[bytes | None, bytes | None]] = [
            (b"k%d" % random.randrange(8), random.choice([None, b"v" * random.randrange(30)]))
            for _ in range(random.randrange(1, 4))
        ]
        producer, turn = random.randrange(1, 5), random.random()
        if turn < 0.45:
            history.txn(producer, *pairs, compression=random.choice(["none", "lz4"]))
            busy.add(producer)
        elif turn < 0.65 and busy:
            producer = random.choice(sorted(busy))
            history.end(producer, commit=random.random() < 0.5)
            busy.discard(producer)
        elif turn < 0.85:
            history.put(*pairs, producer=random.choice([-1, 10 + producer]))
        elif turn < 0.92:
            history.clean(delete_retention_ms=random.choice([0, 1000]))
        elif turn < 0.95:
            history.reopen()
        else:
            partition = history.partition
            partition.delete_records(
                random.randrange(partition.log_start_offset, partition.log_end_offset + 1)
            )
    for _ in range(2):
        report = verify(str(history.path))
        assert report.damage == []
        history.partition.close()


# ---------------------------------------------------------------- how it speaks


def test_the_verdict_is_one_line(data: Path) -> None:
    result = run(data)
    assert result.stdout == (
        "7 partitions, 10 segments, 420 batches, 1,083 records, 83,705 bytes: sound\n"
    )
    assert "2 notes on what is unusual and legal: --notes shows them." in result.stderr
    notes = run("--notes", data)
    assert notes.stderr == ""
    assert (
        "note     recovery-point-offset-checkpoint: names partitions that are not here"
        in notes.stdout
    )


def test_many_faults_of_one_file_are_counted(data: Path) -> None:
    path = data / f"mixed-0/{SECOND}.txnindex"
    size = path.stat().st_size
    path.write_bytes(
        b"".join(struct.pack(">hqqqq", 0, 90, 231 + n, 231 + n, 231) for n in range(size // 34 * 3))
    )
    found = document(data, code=1)
    assert len([row for row in found["damage"] if row["file"].endswith(path.name)]) == 5
    assert found["damaged"] > 10
    assert "more like these in the same files" in run(data).stdout


def test_a_terminal_sees_the_verdict_and_no_rest_of_a_progress_bar() -> None:
    screen = on_terminal([*ONCELOG, "verify", GOLDEN / "txn-mixed/data"], 100)
    lines = [line for line in screen.splitlines() if line.strip()]
    assert any(line.endswith(": sound") for line in lines)


def test_misuse_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"")
    for arguments, sentence in (
        ([tmp_path / "none"], "there is no such file or directory"),
        ([tmp_path], "is not a directory of logs"),
        ([tmp_path / "x.txt"], "is neither a directory nor a segment"),
        ([], "Missing argument"),
        (["--jsn", tmp_path], "Did you mean '--json'?"),
    ):
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (2, ""), arguments
        assert sentence in result.stderr
