"""``oncelog inspect``: what it shows is what Kafka's tool shows, and no mistake of a user's ends in a traceback."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oncelog._native.batch import Encoder
from oncelog.base import disk
from oncelog.cli import log_reader
from oncelog.segment.batch import (
    Attributes,
    ControlType,
    encode,
    encode_marker,
    rewrite,
    scan,
)

from ..golden_cases import (
    GOLDEN,
    LOGS,
    PARTITIONS,
    GoldenLog,
    GoldenPartition,
    expected_seen,
    seen,
)
from ..terminal import on_terminal
from .running import Command

START = 1794787200000  # 2026-11-16T00:00Z
ONCELOG = [sys.executable, "-m", "oncelog"]

# Kafka's dump spells these four in other ways; all others are the same.
KAFKA_NAMES = {
    "CreateTime": "createTime",
    "LogAppendTime": "logAppendTime",
    "compresscodec": "compression",
    "isvalid": "isValid",
}
TAMPERED = {
    "killed/k-cut-0/00000000000000000106.log",
    "killed/k-flip-0/00000000000000000112.log",
    "killed/k-garbage-0/00000000000000000113.log",
}


COMMAND = Command("inspect")
run, document = COMMAND.run, COMMAND.document


def as_bytes(fields: dict[str, Any], name: str) -> bytes | None:
    """A key or value as ``--json --values`` shows it."""
    if f"{name}Base64" in fields:
        return base64.b64decode(fields[f"{name}Base64"])
    text = fields[name]
    return None if text is None else str(text).encode()


BATCHES = [
    encode(
        [b"first", None, b"\xff\x00"],
        keys=[b"k", None, b""],
        timestamps=[START + 5, START + 7, START + 6],
        headers=[[("h", b"1"), ("h", None)], None, [("bytes", b"\xfe")]],
        base_offset=10,
        partition_leader_epoch=3,
        producer_id=7,
        producer_epoch=2,
        base_sequence=2**31 - 2,
        transactional=True,
        compression="lz4",
    ),
    encode_marker(
        ControlType.ABORT,
        producer_id=7,
        producer_epoch=3,
        coordinator_epoch=9,
        timestamp_ms=START + 8,
        base_offset=13,
        partition_leader_epoch=3,
    ),
    encode([b"plain"], base_offset=14, log_append_time_ms=START + 9, timestamp_ms=START),
    encode([b"kept"], base_offset=20, delete_horizon_ms=START + 60_000, timestamp_ms=START + 1),
]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A transaction, its abort, a batch with append time and, after a gap, one with a delete horizon."""
    path = tmp_path / "00000000000000000010.log"
    path.write_bytes(b"".join(map(bytes, BATCHES)))
    return path


@pytest.fixture
def long_log(tmp_path: Path) -> Path:
    """1,000 batches of one record each."""
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(bytes(encode([b"v"] * 1000, timestamp_ms=START, batch_size=1)))
    return path


# ---------------------------------------------------------------- what Kafka says


@pytest.mark.parametrize("golden", LOGS, ids=str)
def test_batches_are_those_of_kafkas_dump_tool(golden: GoldenLog) -> None:
    """Goal: a person who knows Kafka's tool finds the same facts here.
    Method: every .log of the broker's directories against what DumpLogSegments printed."""
    is_tampered = str(golden) in TAMPERED
    found = document(golden.path, code=1 if is_tampered else 0)
    if golden.batches is None:
        assert found["summary"]["batches"] > 0 or golden.path.stat().st_size == 0
        return
    wanted = [
        {KAFKA_NAMES.get(name, name): value for name, value in fields.items()}
        for fields in golden.batches
    ]
    assert found["batches"] == wanted


@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_records_are_those_of_kafkas_consumer(partition: GoldenPartition) -> None:
    """Goal: offsets, times, keys, values and headers arrive unharmed, from every codec.
    Method: --json --values against what a read_uncommitted consumer got."""
    if any(str(golden) in TAMPERED for golden in partition.logs):
        pytest.skip("the consumer read what recovery had left")
    records = [
        record
        for golden in partition.logs
        for fields in document("--values", golden.path)["batches"]
        if not fields["isControl"]
        for record in fields["records"]
    ]
    wanted = partition.expected["readUncommitted"]
    records = [
        record for record in records if record["offset"] >= partition.expected["logStartOffset"]
    ]
    assert [record["offset"] for record in records] == [record["offset"] for record in wanted]
    for found, said in zip(records, wanted, strict=True):
        name = "logAppendTime" if said["timestampType"] == "LogAppendTime" else "createTime"
        assert found[name] == said["timestamp"]
        assert seen(as_bytes(found, "key")) == expected_seen(said["key"])
        assert seen(as_bytes(found, "value")) == expected_seen(said["value"])
        assert [
            (header["key"], seen(as_bytes(header, "value"))) for header in found["headers"]
        ] == [(name, expected_seen(value)) for name, value in said["headers"]]


@pytest.mark.parametrize("options", [[], ["--records"], ["--values"], ["--no-crc"]], ids=" ".join)
def test_every_file_of_a_broker_can_be_shown_as_text(options: list[str]) -> None:
    for golden in LOGS:
        run(*options, golden.path)
    for snapshot in sorted(GOLDEN.glob("*/data/*.checkpoint")):
        assert "SNAPSHOT_HEADER" in run(*options, snapshot).stdout


# ---------------------------------------------------------------- what is shown


def test_json_names_every_field(log: Path) -> None:
    """Goal: names are stable, and no field stands in for another.
    Method: a batch in which all of them differ."""
    found = document("--values", log)
    first, marker, appended, compacted = found["batches"]
    records = first.pop("records")
    crc = int(scan(BATCHES[0])["crc"][0])
    assert first == {
        "baseOffset": 10,
        "lastOffset": 12,
        "count": 3,
        "baseSequence": 2**31 - 2,
        "lastSequence": 0,
        "producerId": 7,
        "producerEpoch": 2,
        "partitionLeaderEpoch": 3,
        "isTransactional": True,
        "isControl": False,
        "deleteHorizonMs": None,
        "position": 0,
        "createTime": START + 7,
        "size": len(BATCHES[0]),
        "magic": 2,
        "compression": "lz4",
        "crc": crc,
        "isValid": True,
    }
    assert records == [
        {
            "offset": 10,
            "createTime": START + 5,
            "keySize": 1,
            "valueSize": 5,
            "sequence": 2**31 - 2,
            "headerKeys": ["h", "h"],
            "key": "k",
            "value": "first",
            "headers": [{"key": "h", "value": "1"}, {"key": "h", "value": None}],
        },
        {
            "offset": 11,
            "createTime": START + 7,
            "keySize": -1,
            "valueSize": -1,
            "sequence": 2**31 - 1,
            "headerKeys": [],
            "key": None,
            "value": None,
            "headers": [],
        },
        {
            "offset": 12,
            "createTime": START + 6,
            "keySize": 0,
            "valueSize": 2,
            "sequence": 0,
            "headerKeys": ["bytes"],
            "key": "",
            "valueBase64": "/wA=",
            "headers": [{"key": "bytes", "valueBase64": "/g=="}],
        },
    ]
    assert marker["control"] == {"type": "ABORT", "coordinatorEpoch": 9}
    assert marker["records"][0]["control"] == marker["control"]
    assert (
        marker["baseSequence"] == marker["lastSequence"] == marker["records"][0]["sequence"] == -1
    )
    assert appended["logAppendTime"] == appended["records"][0]["logAppendTime"] == START + 9
    assert "createTime" not in appended
    assert compacted["deleteHorizonMs"] == START + 60_000
    assert found["summary"] == {
        "batches": 4,
        "records": 6,
        "bytes": log.stat().st_size,
        "firstOffset": 10,
        "lastOffset": 20,
        "missingOffsets": 5,
        "minTimestamp": START + 1,
        "maxTimestamp": START + 9,
        "codecs": {"lz4": 1, "none": 3},
        "transactionalBatches": 2,
        "controlBatches": {"ABORT": 1},
        "crcChecked": True,
        "damaged": 0,
    }
    assert found["file"] == str(log)
    assert found["size"] == log.stat().st_size
    assert found["damage"] == []


def test_text_in_a_pipe_is_one_line_of_columns_a_batch(log: Path) -> None:
    result = run(log)
    header, *rows, totals, kinds = result.stdout.splitlines()
    assert header.split() == (
        [
            "offsets",
            "records",
            "kind",
            "time",
            "stamped",
            "producer",
            "epoch",
            "sequence",
            "codec",
            "bytes",
            "position",
            "leader",
            "horizon",
            "crc",
        ]
    )
    sizes = list(map(len, BATCHES))
    places = [sum(sizes[:index]) for index in range(4)]
    assert [row.split() for row in rows] == [
        f"10..12 3 txn 2026-11-16T00:00:00.007Z create 7 2 2147483646..0 lz4 {sizes[0]} 0 3 - ok".split(),
        f"13 1 ABORT 2026-11-16T00:00:00.008Z create 7 3 - none {sizes[1]} {places[1]} 3 - ok".split(),
        f"14 1 data 2026-11-16T00:00:00.009Z append - - - none {sizes[2]} {places[2]} -1 - ok".split(),
        f"20 1 data 2026-11-16T00:00:00.001Z create - - - none {sizes[3]} {places[3]} -1"
        " 2026-11-16T00:01:00.000Z ok".split(),
    ]
    assert totals == (
        f"4 batches, 6 records, {sum(sizes)} bytes; offsets 10..20 (5 of them gone); "
        "2026-11-16T00:00:00.001Z .. 00:00:00.009Z"
    )
    assert kinds == "none 3, lz4 1; 2 transactional; 1 control (ABORT 1); checksums ok"


def test_offsets_that_do_not_follow_each_other_are_told_as_legal(log: Path) -> None:
    result = run(log)
    assert result.exit_code == 0
    assert (
        "1 gap in the offsets, as compaction leaves them\n  14 is followed by 20\n" in result.stderr
    )


def test_text_of_records_has_sizes_and_with_values_their_content(log: Path) -> None:
    lines = run("--records", log).stdout.splitlines()
    assert lines[0] == (
        "offsets 10..12  3 records  txn  producer 7 epoch 2  sequence 2147483646..0  lz4  "
        f"{len(BATCHES[0])} bytes at 0  crc ok"
    )
    assert lines[1] == (
        "| offset 10  create 2026-11-16T00:00:00.005Z  sequence 2147483646  key 1 B  value 5 B  headers h, h"
    )
    assert lines[2].endswith("key null  value null")
    lines = run("--values", log).stdout.splitlines()
    assert lines[1].endswith('key "k"  value "first"  headers h="1", h=null')
    assert lines[3].endswith('key ""  value 0xff00  headers bytes=0xfe')
    assert lines[4].endswith("crc ok")
    assert lines[5].startswith("| offset 13  create 2026-11-16T00:00:00.008Z  ABORT")


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    """Goal: a value cannot move the cursor, nor break a line in two.
    Method: escape codes, line ends and quotes in key, value and header name."""
    path = tmp_path / "0.log"
    path.write_bytes(
        bytes(encode([b"\x1b[2J"], keys=[b'a\n"b"\tc'], headers=[[("\x1b", b""), ("", b"")]]))
    )
    output = run("--values", path).stdout
    assert "\x1b" not in output
    assert r'key "a\n\"b\"\tc"  value 0x1b5b324a  headers 0x1b="", ""=""' in output


def test_other_control_types_are_named(tmp_path: Path) -> None:
    """Goal: what only the controller's log holds, or what no version of ours knows, is no damage.
    Method: control batches of each type, of an unknown one, with a cut key, and emptied by compaction."""
    path, data = tmp_path / "0.log", b""
    keys = [bytes([0, 0, 0, kind]) for kind in (2, 3, 4, 5, 6, 77)] + [b"\x00"]
    for offset, key in enumerate(keys):
        encoder = Encoder(one_batch=True, attributes=Attributes.CONTROL, base_offset=offset)
        encoder.add([key], [b""])
        data += bytes(encoder.finish())
    emptied = bytes(BATCHES[1])
    data += bytes(rewrite(scan(emptied)[0], None))
    path.write_bytes(data)
    batches = document("--records", path)["batches"]
    assert [fields.get("control") for fields in batches] == [
        {"type": "LEADER_CHANGE"},
        {"type": "SNAPSHOT_HEADER"},
        {"type": "SNAPSHOT_FOOTER"},
        {"type": "KRAFT_VERSION"},
        {"type": "KRAFT_VOTERS"},
        {"type": "UNKNOWN"},
        {"type": "UNKNOWN"},
        None,
    ]
    assert "8 control (UNKNOWN 2" in run(path).stdout
    assert "EMPTIED 1" in run(path).stdout


def test_a_range_of_offsets_shows_the_batches_that_hold_it(log: Path) -> None:
    def offsets(*options: str) -> list[int]:
        return [fields["baseOffset"] for fields in document(*options, log)["batches"]]

    assert offsets("--from-offset", "12") == [10, 13, 14, 20]
    assert offsets("--from-offset", "13") == [13, 14, 20]
    assert offsets("--to-offset", "14") == [10, 13]
    assert offsets("--from-offset", "13", "--to-offset", "15") == [13, 14]
    assert offsets("--from-offset", "15", "--to-offset", "20") == []
    found = document("--records", "--from-offset", "11", "--to-offset", "12", log)
    assert [record["offset"] for record in found["batches"][0]["records"]] == [11]
    assert found["summary"]["batches"] == 1
    assert run("--from-offset", "99", log).stdout == "no batches\n"


def test_max_limits_what_is_shown_and_not_what_is_checked(long_log: Path) -> None:
    """Goal: a glance at a long file still tells whether all of it is sound.
    Method: damage the last batch, ask for the first three."""
    data = bytearray(long_log.read_bytes())
    data[-1] ^= 1
    long_log.write_bytes(data)
    for options, shown in (([], 3), (["--records"], 3)):
        found = document(*options, "--max", "3", long_log, code=1)
        assert len(found["batches"]) == shown
        assert found["summary"]["batches"] == 1000
        assert found["summary"]["damaged"] == 1
    lines = run("--max", "3", long_log).stdout.splitlines()
    assert len(lines) == 1 + 3 + 2
    assert len(document("--max", "0", long_log, code=1)["batches"]) == 1000


def test_several_files_are_shown_one_after_another(log: Path, long_log: Path) -> None:
    result = run("--max", "1", log, long_log)
    assert result.stdout.splitlines()[0] == str(log)
    assert str(long_log) in result.stdout.splitlines()
    decoder, text = json.JSONDecoder(), run("--json", log, long_log).stdout
    first, end = decoder.raw_decode(text)
    second, _ = decoder.raw_decode(text[end:].lstrip())
    assert [first["file"], second["file"]] == [str(log), str(long_log)]


def test_an_empty_file_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(b"")
    result = run(path)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "no batches\n", "")
    assert document(path)["summary"]["firstOffset"] is None


@pytest.mark.parametrize("window_bytes", [1, 61, 100, 500])
def test_the_window_does_not_show(
    log: Path, window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: reading window by window changes nothing, also where a batch is larger than the window.
    Method: windows smaller than a batch, sound and with a cut tail."""
    log.write_bytes(log.read_bytes() + bytes(BATCHES[0])[:-1])
    whole = document("--records", log, code=1)
    monkeypatch.setattr(log_reader, "WINDOW_BYTES", window_bytes)
    assert document("--records", log, code=1) == whole


# ---------------------------------------------------------------- damage


def test_a_cut_tail_is_told_after_the_whole_batches(log: Path) -> None:
    log.write_bytes(log.read_bytes()[:-1])
    position = sum(map(len, BATCHES[:3]))
    result = run(log)
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 1 + 3 + 2
    assert f"{log}, position {position}, base offset 20" in result.stderr
    assert "cut the file at this position" in result.stderr
    (damage,) = document(log, code=1)["damage"]
    assert damage["error"] == "TruncatedBatchError"
    assert (damage["position"], damage["baseOffset"], damage["record"]) == (position, 20, None)
    assert damage["advice"]


@pytest.mark.parametrize("options", [[], ["--records"], ["--values"]], ids=" ".join)
def test_a_flipped_byte_is_told_and_what_follows_is_shown(log: Path, options: list[str]) -> None:
    """Goal: one bad batch does not hide the others.
    Method: flip a byte in the records of the first."""
    data = bytearray(log.read_bytes())
    data[len(BATCHES[0]) - 1] ^= 1
    log.write_bytes(data)
    found = document(*options, log, code=1)
    assert [fields["isValid"] for fields in found["batches"]] == [False, True, True, True]
    assert [len(fields.get("records", "")) for fields in found["batches"]] == (
        [0, 1, 1, 1] if options else [0] * 4
    )
    (damage,) = found["damage"]
    assert (damage["error"], damage["position"]) == ("CorruptRecordError", 0)
    result = run(*options, log)
    assert result.exit_code == 1
    assert "BAD" in result.stdout
    assert "1 damaged" in result.stdout
    assert f"checksum does not match the batch ({log}, position 0, base offset 10)" in result.stderr


def test_without_checksums_nothing_is_judged_by_them(log: Path) -> None:
    data = bytearray(log.read_bytes())
    data[len(BATCHES[0]) + len(BATCHES[1]) - 3] ^= 1  # in the marker's coordinator epoch
    log.write_bytes(data)
    found = document("--no-crc", log)
    assert {fields["isValid"] for fields in found["batches"]} == {None}
    assert found["summary"]["crcChecked"] is False
    assert "checksums not verified" in run("--no-crc", log).stdout


def test_offsets_that_go_back_are_damage(tmp_path: Path) -> None:
    """Goal: a flip in a base offset, which no checksum covers, is seen by its neighbours.
    Method: two batches in the wrong order."""
    path = tmp_path / "0.log"
    path.write_bytes(bytes(encode([b"b"], base_offset=7)) + bytes(encode([b"a"], base_offset=3)))
    result = run(path)
    assert result.exit_code == 1
    assert "offsets go back: 7 is followed by 3" in result.stderr


def test_records_that_break_their_promises_are_told_with_their_place(tmp_path: Path) -> None:
    """Goal: a batch with a right checksum and wrong records is told, and the next is shown.
    Method: lz4 bits over bytes that are not lz4, checksum made right."""
    from oncelog._native.checksum import crc32c

    bad = bytearray(bytes(encode([b"value"], compression="lz4")))
    bad[61:65] = b"junk"
    bad[17:21] = crc32c(bytes(bad[21:])).to_bytes(4, "big")
    path = tmp_path / "0.log"
    path.write_bytes(bytes(bad) + bytes(encode([b"next"], base_offset=1)))
    assert run(path).exit_code == 0
    result = run("--values", path)
    assert result.exit_code == 1
    assert "lz4 data cannot be decompressed" in result.stderr
    assert f"({path}, position 0, base offset 0)" in result.stderr
    assert '"next"' in result.stdout


def test_zeros_at_the_end_are_told_as_what_they_are(log: Path) -> None:
    """Goal: space that was reserved, or lost in a crash, is not mistaken for an old format.
    Method: append zeros."""
    log.write_bytes(log.read_bytes() + bytes(1000))
    result = run(log)
    assert result.exit_code == 1
    assert "only zeros up to the end, 1,000 bytes" in result.stderr
    assert len(result.stdout.splitlines()) == 1 + 4 + 2


@pytest.mark.parametrize("magic", [0, 1])
def test_the_old_format_is_named(tmp_path: Path, magic: int) -> None:
    path = tmp_path / "0.log"
    body = (
        b"\x12\x34\x56\x78"
        + bytes([magic, 0])
        + bytes(8 * magic)
        + b"\xff\xff\xff\xff"
        + b"\x00\x00\x00\x01v"
    )
    path.write_bytes(bytes(8) + len(body).to_bytes(4, "big") + body)
    result = run(path)
    assert result.exit_code == 1
    assert "message format 0 or 1" in result.stderr
    assert "Kafka 3.x" in result.stderr


def test_much_damage_is_counted(long_log: Path) -> None:
    """Goal: a thousand bad batches do not make a thousand errors.
    Method: flip a byte in each."""
    data = bytearray(long_log.read_bytes())
    rows = scan(bytes(data))
    for end in (rows["position"] + rows["size"]).tolist():
        data[end - 1] ^= 1
    long_log.write_bytes(data)
    result = run(long_log)
    assert result.stderr.count("Error:") == 11
    assert "990 more batches are damaged" in result.stderr


# ---------------------------------------------------------------- misuse


def test_misuse_is_told_in_a_sentence_that_helps(log: Path, tmp_path: Path) -> None:
    """Goal: exit code 2, a sentence on stderr, nothing on stdout, never a traceback.
    Method: every way to call it wrongly."""
    other = tmp_path / "notes.txt"
    other.write_bytes(b"")
    empty = tmp_path / "empty"
    empty.mkdir()
    pipe = tmp_path / "pipe.log"
    os.mkfifo(pipe)
    for arguments, sentence in (
        ([tmp_path / "none.log"], "there is no such file"),
        ([tmp_path], f"Rename it, or name a file in it, for example {log}"),
        ([empty], "is not a directory of logs"),
        ([pipe], "is not a regular file"),
        ([other], "cannot be inspected: it is none of Kafka's files by its name"),
        ([], "Missing argument"),
        (["--jsn", log], "Did you mean '--json'?"),
        (["--max", "many", log], "'many' is not a valid integer"),
        (["--from-offset", "-1", log], "-1 is not in the range"),
        (["--from-offset", "5", "--to-offset", "5", log], "5 is not after --from-offset 5"),
        ([log, tmp_path / "none.log"], "there is no such file"),
    ):
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (2, ""), arguments
        assert sentence in result.stderr
        assert "Traceback" not in result.stderr


def test_a_file_that_may_not_be_read_is_told(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(disk, "map_file", refuse)
    result = run(log)
    assert result.exit_code == 2
    assert result.stderr == f"Error: {log}: Permission denied.\n"


@pytest.mark.parametrize("suffix", [".log.deleted", ".log.cleaned", ".log.swap", ".checkpoint"])
def test_files_in_passing_are_inspected_too(log: Path, suffix: str) -> None:
    assert run(log.rename(log.parent / f"00000000000000000010{suffix}")).exit_code == 0


# ---------------------------------------------------------------- as a process


def test_a_closed_pipe_ends_quietly(long_log: Path) -> None:
    """Goal: `oncelog inspect x | head` shows no error.
    Method: close the reading end after the first bytes."""
    for options in ([], ["--json"], ["--records"]):
        # Enough output that the pipe cannot hold it all.
        command = [*ONCELOG, "inspect", *options, *[str(long_log)] * 20]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.read(10)
            process.stdout.close()
            assert process.stderr.read() == b""
        assert process.returncode == 141


def modules_after(*arguments: str) -> set[str]:
    """Top-level modules that a command has loaded when it ends."""
    program = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*{name.split('.')[0] for name in sys.modules}, file=sys.stderr))\n"
        "from oncelog.cli.main import main\n"
        f"main({list(arguments)!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def test_a_command_loads_only_what_it_needs(long_log: Path, log: Path) -> None:
    """Goal: tools start in a blink.
    Method: look at what is loaded when they end."""
    heavy = {"numpy", "pyarrow", "pandas", "rich"}
    assert modules_after("--help") & heavy == set()
    assert modules_after("inspect", "--help") & heavy == set()
    assert modules_after("inspect", str(long_log)) & heavy == {"numpy"}
    assert modules_after("inspect", "--json", "--records", str(long_log)) & heavy == {"numpy"}
    assert modules_after("inspect", str(log)) & heavy == {"numpy"}, "headers need no codec"


def test_the_command_is_installed_and_completes(log: Path) -> None:
    """Goal: `oncelog`, `python -m oncelog` and the shell's tab key work.
    Method: run each of them."""
    installed = Path(sys.executable).with_name("oncelog")
    for command in ([str(installed)], ONCELOG):
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout.startswith("oncelog ")
    environment = os.environ | {
        "_ONCELOG_COMPLETE": "bash_complete",
        "COMP_WORDS": "oncelog inspect --rec",
        "COMP_CWORD": "2",
    }
    done = subprocess.run(
        [str(installed)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "plain,--records"


def shown(*arguments: str | Path, columns: int) -> str:
    """What a person sees who runs the command in a terminal of that width."""
    return on_terminal([*ONCELOG, "inspect", *arguments], columns)


@pytest.mark.parametrize("columns", [60, 100, 160])
def test_a_table_fits_the_terminal(log: Path, columns: int) -> None:
    """Goal: no wrapped rows, no cell cut short; what does not fit is left out and named.
    Method: three widths."""
    table, _, rest = shown(log, columns=columns).partition("4 batches")
    assert max(map(len, table.splitlines())) <= columns
    assert "…" not in table
    for cell in ("10..12", "ABORT", "lz4", "2026-11-16 UTC", "00:00:00.009", "ok"):
        assert cell in table
    assert ("Too narrow for: leader" in rest) == (columns < 160)
    assert ("position" in table) == (columns > 60)


def test_a_terminal_gets_both_ends_of_a_long_file(long_log: Path) -> None:
    """Goal: a long file does not flood the screen, and its end is seen.
    Method: 1,000 batches; then all of them, on request."""
    screen = shown(long_log, columns=100)
    first = [line.split()[0] for line in screen.splitlines() if line[:1].isdigit()]
    assert first[:50] == [*map(str, range(40)), *map(str, range(990, 1000))]
    assert "… 950 more" in screen
    assert "950 batches are not shown: --max 0 shows all" in screen
    assert len(shown("--max", "0", long_log, columns=100).splitlines()) > 1000
    records = shown("--records", long_log, columns=100)
    assert records.count("| offset") == 50
    assert "950 records are not shown" in records


def test_a_long_value_is_cut_on_a_terminal_and_whole_in_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(bytes(encode([b"x" * 5000, "ä".encode() * 5000], keys=[b"k" * 500, None])))
    screen = shown("--values", path, columns=160)
    assert max(map(len, screen.splitlines())) <= 160
    assert "(5,000 bytes)" in screen
    assert 'ä"… (10,000 bytes)' in screen
    assert "(500 bytes)" in screen
    assert "x" * 5000 in run("--values", path).stdout
