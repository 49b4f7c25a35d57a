"""``oncelog import`` and ``export``: records through files and directories and back, all or none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import oncelog
from tests.cli.running import Command
from tests.golden_cases import GOLDEN, expected

if TYPE_CHECKING:
    from pathlib import Path

IMPORT, EXPORT, COMPACT = Command("import"), Command("export"), Command("compact")
PLAIN = GOLDEN / "idempotent-plain" / "data"
MIXED = GOLDEN / "txn-mixed" / "data"
KEPT = ["partition", "timestamp", "key", "value", "headers"]


def table_of(path: Path, topic: str) -> pa.Table:
    with oncelog.open(path, read_only=True) as log:
        return pa.table(log.read(topic))


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_file_holds_what_a_committed_reader_sees(tmp_path: Path, form: str) -> None:
    file = tmp_path / f"mixed.{form}"
    result = EXPORT.run("mixed", file, "--data", MIXED)
    assert result.exit_code == 0, result.output
    table = pq.read_table(file) if form == "parquet" else feather.read_table(file)
    told = expected("txn-mixed")["partitions"]["mixed-0"]["readCommittedOffsets"]
    assert table["offset"].to_pylist() == told
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_records_come_back_from_a_file(tmp_path: Path, form: str) -> None:
    """Goal: nulls, headers, timestamps and partitions survive. Method: Kafka's records to a file and into a log."""
    with oncelog.open(PLAIN, read_only=True) as log:
        (topic,) = [name for name in log.topics() if not name.startswith("__")]
    file = tmp_path / f"plain.{form}"
    assert EXPORT.run(topic, file, "--data", PLAIN).exit_code == 0
    result = IMPORT.run("again", file, "--data", tmp_path / "data")
    assert result.exit_code == 0, result.output
    assert table_of(tmp_path / "data", "again").select(KEPT) == table_of(PLAIN, topic).select(KEPT)


def test_a_topic_is_copied_from_directory_to_directory(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert EXPORT.run("side", out, "--data", MIXED).exit_code == 0
    assert table_of(out, "side").select(KEPT) == table_of(MIXED, "side").select(KEPT)
    result = IMPORT.run("other", MIXED, "--source-topic", "side", "--data", out)
    assert result.exit_code == 0, result.output
    assert table_of(out, "other").select(KEPT) == table_of(MIXED, "side").select(KEPT)


def test_an_import_that_fails_leaves_nothing_to_be_seen(tmp_path: Path) -> None:
    file = tmp_path / "bad.parquet"
    pq.write_table(
        pa.table({"value": [b"a", b"b"], "partition": pa.array([0, -5], pa.int32())}), file
    )
    result = IMPORT.run("t", file, "--data", tmp_path / "data")
    assert result.exit_code != 0
    assert table_of(tmp_path / "data", "t").num_rows == 0


def test_names_that_tell_no_format_are_refused(tmp_path: Path) -> None:
    result = EXPORT.run("mixed", tmp_path / "mixed.xlsx", "--data", MIXED)
    assert result.exit_code == 2
    assert "its name tells no format" in result.stderr
    missing = IMPORT.run("t", tmp_path / "none.parquet", "--data", tmp_path / "data")
    assert missing.exit_code == 2
    assert "There is no file" in missing.stderr
    unknown = EXPORT.run("nope", tmp_path / "n.parquet", "--data", MIXED)
    assert unknown.exit_code == 2
    assert "no topic 'nope'" in unknown.stderr


def test_compact_keeps_the_newest_of_each_key(tmp_path: Path) -> None:
    with oncelog.open(tmp_path) as log:
        log.create_topic("state", config={"cleanup.policy": "compact", "segment.bytes": 1 << 20})
        log.create_topic("events")
        with log.producer(batch_size=1 << 14) as producer:
            for number in range(3000):
                producer.send("state", key=b"k%d" % (number % 10), value=b"%1000d" % number)
    result = COMPACT.run("state", "events", "--data", tmp_path)
    assert result.exit_code == 0, result.output
    assert "events is not compacted: its cleanup.policy is delete." in result.stderr
    (row,) = [line.split() for line in result.stdout.splitlines() if line.startswith("state-0")]
    assert int(row[3]) < int(row[2])
    table = table_of(tmp_path, "state")
    values = dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
    assert values == {b"k%d" % (n % 10): b"%1000d" % n for n in range(2990, 3000)}
