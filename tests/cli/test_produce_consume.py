"""``oncelog produce`` and ``oncelog consume``: what goes in comes out, in every form, and aborted records never do."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import oncelog

from ..golden_cases import GOLDEN
from ..terminal import on_terminal
from .running import printed, refused, run_command

if TYPE_CHECKING:
    from collections.abc import Sequence

ONCELOG = [sys.executable, "-m", "oncelog"]
EXPECTED = Path(__file__).parent / "expected"
MIXED = GOLDEN / "txn-mixed/data"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    printed("topics", "create", "orders", "--data", path)
    return path


def produce(data: Path, stdin: str | bytes, *arguments: str | Path) -> dict[str, object]:
    words = ("produce", "orders", "--json", *arguments, "--data", data)
    found: dict[str, object] = json.loads(printed(*words, stdin=stdin))
    return found


def consume(data: Path, *arguments: str | Path) -> str:
    return printed("consume", "orders", *arguments, "--data", data)


# ---------------------------------------------------------------- lines


def test_lines_are_records_with_keys_where_a_separator_is_given(data: Path) -> None:
    assert produce(data, "k1:v1\r\nk2:a:b\nk3:\n:v4") == {
        "topic": "orders",
        "records": 4,
        "transactions": 0,
        "partitions": [{"partition": 0, "lastOffset": 3}],
    }
    assert consume(data) == "k1:v1\nk2:a:b\nk3:\n:v4\n"
    produce(data, "k1=>v1\nk2=>a=>b\nk3=>\n=>v4", "--key-separator", "=>")
    shown = consume(data, "--partition", "0", "--offset", "4", "--print-key")
    assert shown == "k1\tv1\nk2\ta=>b\nk3\t\n\tv4\n"


def test_headers_nulls_and_parts_of_a_line_are_as_in_kafkas_tools(data: Path) -> None:
    lines = "h1:a,h2:b\tk1|v1\n\tk2|v2\nh3:\tNULL|NULL\n"
    produce(data, lines, "--parse-headers", "--key-separator", "|", "--null-marker", "NULL")
    parts = ("--print-partition", "--print-offset", "--print-headers", "--print-key")
    assert consume(data, *parts).splitlines() == [
        "Partition:0\tOffset:0\th1:a,h2:b\tk1\tv1",
        "Partition:0\tOffset:1\tNO_HEADERS\tk2\tv2",
        "Partition:0\tOffset:2\th3:\tnull\tnull",
    ]
    shown = consume(data, "--print-timestamp", "--no-print-value", "--max-messages", "1")
    assert shown.startswith("CreateTime:1")


@pytest.mark.parametrize(
    ("stdin", "options", "sentence"),
    [
        ("a:1\nb\n", ["--key-separator", ":"], "stdin, line 2: no key separator ':' in it."),
        ("x", ["--parse-headers"], "stdin, line 1: no headers separator '\\t' in it."),
        ("{}\n", ["--format", "json"], 'stdin, line 1: no object with a "value".'),
        (
            '{"value": "a"}\nno\n',
            ["--format", "json"],
            "stdin, line 2: no JSON, expecting value at character 1.",
        ),
        ("", ["--header", "a"], "Invalid value for '--header': 'a' is not name=value."),
        ("", ["--transaction-records", "2"], "--transaction-records needs a --transactional-id."),
        ("a", ["--partition", "7"], "partition"),
    ],
)
def test_what_cannot_be_a_record_is_told_with_its_line(
    data: Path, stdin: str, options: Sequence[str], sentence: str
) -> None:
    assert sentence in refused("produce", "orders", *options, "--data", data, stdin=stdin)


def test_a_topic_that_is_not_there_is_told_with_those_that_are(data: Path) -> None:
    for words in (("produce", "pay"), ("consume", "pay"), ("consume", "pay", "--group", "g")):
        assert "orders" in refused(*words, "--data", data, stdin="a\n")


# ---------------------------------------------------------------- files


def test_json_lines_carry_everything_from_one_log_to_another(data: Path, tmp_path: Path) -> None:
    with oncelog.open(data) as log, log.producer() as producer:
        producer.send("orders", key=b"k", value=b"\xff\x00", headers=[("h", b"\xfe"), ("n", None)])
        producer.send("orders", key=None, value=None, timestamp=1234)
        producer.send("orders", key=b'"\\\n', value="grüße \x01".encode())
    lines = consume(data, "--json")
    assert [json.loads(line)["offset"] for line in lines.splitlines()] == [0, 1, 2]
    other = tmp_path / "other"
    printed("topics", "create", "orders", "--data", other)
    produce(other, lines, "--format", "json")
    assert consume(other, "--json") == lines


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_a_file_of_columns_goes_out_and_in_again(data: Path, tmp_path: Path, form: str) -> None:
    produce(data, "".join(f"k{n}:v{n}\n" for n in range(3000)), "--key-separator", ":")
    file = tmp_path / f"orders.{form}"
    result = run_command("consume", "orders", "--format", form, "-o", file, "--data", data)
    assert "3,000 records in" in result.stderr
    table = pq.read_table(file) if form == "parquet" else pa.ipc.open_file(file).read_all()
    assert table.column_names[:4] == ["topic", "partition", "offset", "timestamp"]
    assert table["value"][2999].as_py() == b"v2999"
    assert produce(data, "", file)["records"] == 3000
    assert consume(data).splitlines() == [f"v{n}" for n in range(3000)] * 2


def test_a_csv_files_columns_are_named(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text('id,body,more\n1,"a,b",x\n2,NULL,y\n')
    options = ("--key-column", "id", "--value-column", "body", "--null-marker", "NULL")
    assert produce(data, "", file, *options, "--header", "from=csv")["records"] == 2
    assert (
        consume(data, "--print-key", "--print-headers") == "from:csv\t1\ta,b\nfrom:csv\t2\tnull\n"
    )
    sentence = refused("produce", "orders", file, "--data", data)
    assert (
        sentence
        == f"{file} has no column 'value', only id, body, more: name one with --value-column."
    )
    file.with_suffix(".parquet").write_bytes(b"no parquet at all")
    sentence = refused("produce", "orders", file.with_suffix(".parquet"), "--data", data)
    assert "a.parquet cannot be read as parquet" in sentence


# ---------------------------------------------------------------- transactions


def test_each_file_is_one_transaction_or_every_so_many_records_are(
    data: Path, tmp_path: Path
) -> None:
    files = []
    for name in ("a", "b"):
        files.append(tmp_path / name)
        files[-1].write_text("".join(f"{name}{n}\n" for n in range(5)))
    assert produce(data, "", *files, "--transactional-id", "t")["transactions"] == 2
    options = ("--transactional-id", "t", "--transaction-records", "2")
    assert produce(data, "", *files, *options)["transactions"] == 6
    assert consume(data).splitlines() == [f"{name}{n}" for name in "ab" for n in range(5)] * 2


def test_a_transaction_that_fails_leaves_nothing_to_committed_readers(
    data: Path, tmp_path: Path
) -> None:
    """Goal: of a file that turns out to be bad nothing counts, though its beginning was written.
    Method: more lines than are read at a time, the last of them without a key."""
    good = tmp_path / "good"
    good.write_text("k:kept\n")
    bad = tmp_path / "bad"
    line = f"k:{'x' * 100}\n"
    bad.write_text(line * (5 * 1024 * 1024 // len(line)) + "no key\n")
    words = ("produce", "orders", good, bad, "--key-separator", ":", "--transactional-id", "t")
    assert "no key separator" in refused(*words, "--data", data)
    assert consume(data) == "kept\n"
    assert len(consume(data, "--isolation-level", "read_uncommitted").splitlines()) > 1


# ---------------------------------------------------------------- where to begin and end


def test_reading_begins_at_an_offset_a_time_or_the_end(data: Path) -> None:
    with oncelog.open(data) as log, log.producer() as producer:
        for n in range(5):
            producer.send("orders", value=b"%d" % n, timestamp=1_000_000_000_000 + n * 1000)
    assert consume(data, "--from-beginning") == "0\n1\n2\n3\n4\n"
    at = ("--partition", "0", "--offset")
    assert consume(data, *at, "3") == "3\n4\n"
    assert consume(data, *at, "earliest", "--max-messages", "2") == "0\n1\n"
    assert consume(data, *at, "latest") == ""
    assert consume(data, "--from-timestamp", "1000000003000") == "3\n4\n"
    assert consume(data, "--from-timestamp", "2001-09-09T01:46:44.000") == "4\n"
    assert consume(data, "--from-timestamp", "2030-01-01T00:00:00.000Z") == ""
    words = ("consume", "orders", "--data", data)
    assert "orders-0 has offsets 0 to 5, and not 6." in refused(*words, *at, "6")
    assert "'x' is neither a number nor earliest or latest" in refused(*words, *at, "x")
    assert "is not a date and time like" in refused(*words, "--from-timestamp", "noon")
    assert "give --partition, too" in refused(*words, "--offset", "3")
    assert "Give one of" in refused(*words, "--from-beginning", "--from-timestamp", "0")


def test_a_follower_prints_what_another_process_writes(data: Path) -> None:
    words = [*ONCELOG, "consume", "orders", "--follow", "--max-messages", "2", "--data", str(data)]
    with oncelog.open(data) as log, log.producer() as producer:
        producer.send("orders", value=b"before").result()
        with subprocess.Popen(words, stdout=subprocess.PIPE) as follower:
            time.sleep(1.5)  # it begins at the end, wherever that is when it looks
            for value in (b"one", b"two"):
                producer.send("orders", value=value).result()
            assert follower.stdout is not None
            assert follower.stdout.read().splitlines()[-1] == b"two"
        assert follower.returncode == 0


def test_an_interrupted_follower_ends_without_a_traceback(data: Path) -> None:
    words = [*ONCELOG, "consume", "orders", "--follow", "--from-beginning", "--data", str(data)]
    produce(data, "a\n")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"a\n"
        follower.send_signal(signal.SIGINT)
        _, said = follower.communicate(timeout=20)
    assert (follower.returncode, b"Traceback" in said) == (130, False)


def test_a_group_goes_on_where_it_was(data: Path, tmp_path: Path) -> None:
    produce(data, "a\nb\nc\n")
    group = ("--group", "g")
    assert consume(data, *group, "--max-messages", "2") == "a\nb\n"
    assert consume(data, *group) == "c\n"
    assert consume(data, *group) == ""
    produce(data, "d\n")
    run_command(
        "consume", "orders", *group, "--format", "arrow", "-o", tmp_path / "f", "--data", data
    )
    assert pa.ipc.open_file(tmp_path / "f").read_all()["value"].to_pylist() == [b"d"]
    sentence = refused("consume", "orders", *group, "--partition", "0", "--data", data)
    assert "reset it with 'oncelog groups reset-offsets'" in sentence


# ---------------------------------------------------------------- a broker's directory


def test_committed_records_of_a_brokers_directory_are_those_its_consumer_saw() -> None:
    with oncelog.open(MIXED, read_only=True) as log:
        committed = [record.value or b"null" for record in log.read("mixed")]
    lines = printed("consume", "mixed", "--data", MIXED)
    assert lines.encode() == b"".join(value + b"\n" for value in committed)
    everything = printed(
        "consume", "mixed", "--isolation-level", "read_uncommitted", "--data", MIXED
    )
    assert len(everything.splitlines()) > len(lines.splitlines()) == 407


@pytest.mark.parametrize(
    ("topic", "case"),
    [("__consumer_offsets", "txn-offsets"), ("__transaction_state", "epoch-bumps")],
)
def test_the_coordinators_records_are_shown_as_kafkas_formatters_show_them(
    topic: str, case: str
) -> None:
    """Goal: character by character what Kafka 4.3's console consumer prints with its formatters.
    Method: they were given every record of the directory once; what they printed is kept beside this test."""
    shown = printed(
        *("consume", topic, "--isolation-level", "read_uncommitted"),
        *("--data", GOLDEN / case / "data"),
    )
    assert shown == (EXPECTED / f"{topic.strip('_')}.jsonl").read_text()


def test_each_formatter_shows_its_kind_alone() -> None:
    words = ("consume", "__consumer_offsets", "--data", GOLDEN / "txn-offsets/data", "--format")
    groups = printed(*words, "group-metadata").splitlines()
    assert {json.loads(line)["key"]["type"] for line in groups} == {2}
    assert {
        json.loads(line)["key"]["type"] for line in printed(*words, "offsets").splitlines()
    } == {1}


def test_bytes_are_shown_in_hex() -> None:
    shown = printed("consume", "mixed", "--format", "hex", "--max-messages", "1", "--data", MIXED)
    assert shown == "0\t0\tnull\t703274317c307c376b6162642d337670686c2d317639376d2d3167\n"


def test_long_work_on_files_shows_how_far_it_is_on_a_terminal_alone(
    data: Path, tmp_path: Path
) -> None:
    """Goal: who waits sees a bar with records and rate, on stderr; who does not wait, or is a pipe, sees none.
    Method: a terminal whose patience is none, and one with the usual, for work that takes a moment."""
    file = tmp_path / "in.txt"
    file.write_text("one\ntwo\n")
    out = tmp_path / "out.parquet"
    commands = (
        (["produce", "orders", str(file)], "in.txt"),
        (["consume", "orders", "--format", "parquet", "-o", str(out)], "out.parquet"),
    )
    for words, name in commands:
        arguments = [*words, "--data", str(data)]
        program = (
            "import sys, oncelog.cli.progress as p, oncelog.cli.main as m\n"
            f"p.PATIENCE_S = float(sys.argv[1])\nm.main({arguments!r})"
        )
        command = [sys.executable, "-c", program]
        assert re.search(rf"{name} .*[26] records, [0-9,]+/s", on_terminal([*command, "0"], 120))
        assert "/s" not in on_terminal([*command, "60"], 120)
        done = subprocess.run([*command, "0"], capture_output=True, check=True)
        assert b"/s" not in done.stdout + done.stderr


def test_a_terminal_is_told_how_many_there_were() -> None:
    words = [*ONCELOG, "consume", "mixed", "--max-messages", "2", "--data", str(MIXED)]
    assert on_terminal(words, 80).splitlines()[-1] == "Processed a total of 2 messages."
