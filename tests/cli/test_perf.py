"""``oncelog perf`` measures what it says and tells it in the lines of Kafka's perf tools."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

import oncelog
from tests.cli.running import Command

if TYPE_CHECKING:
    from pathlib import Path

PERF = Command("perf")
NUMBER = r"[0-9.]+"
PRODUCED = re.compile(
    rf"3000 records sent, {NUMBER} records/sec \({NUMBER} MB/sec\), {NUMBER} ms avg latency, {NUMBER} ms max latency, "
    rf"{NUMBER} ms 50th, {NUMBER} ms 95th, {NUMBER} ms 99th, {NUMBER} ms 99.9th\.\n"
)


def records_in(path: Path, topic: str) -> int:
    with oncelog.open(path, read_only=True) as log:
        return sum(rows.num_rows for rows in log.read(topic).to_batches())


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["--arrow"],
        ["--transaction-duration-ms", "5"],
        ["--producer-props", "compression.type=lz4"],
    ],
    ids=["one by one", "arrow", "transactions", "lz4"],
)
def test_produce_writes_all_and_tells_it_as_kafka_does(tmp_path: Path, more: list[str]) -> None:
    result = PERF.run(
        "produce", "--num-records", "3000", "--record-size", "50", *more, "--data", tmp_path
    )
    assert result.exit_code == 0, result.output
    assert PRODUCED.fullmatch(result.stdout), result.stdout
    assert records_in(tmp_path, "perf") == 3000


def test_produce_keeps_to_a_throughput(tmp_path: Path) -> None:
    result = PERF.run(
        "produce", "--num-records", "300", "--throughput", "1000", "--json", "--data", tmp_path
    )
    figures = json.loads(result.stdout)
    assert figures["records"] == 300
    assert figures["recordsPerSecond"] <= 1100


@pytest.mark.parametrize("more", [[], ["--arrow"]], ids=["python", "arrow"])
def test_consume_reads_all_and_tells_it_as_kafka_does(tmp_path: Path, more: list[str]) -> None:
    assert PERF.run("produce", "--num-records", "3000", "--data", tmp_path).exit_code == 0
    result = PERF.run("consume", *more, "--data", tmp_path)
    assert result.exit_code == 0, result.output
    head, line, polls = result.stdout.splitlines()
    assert head.startswith(
        "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec"
    )
    fields = line.split(", ")
    assert len(fields) == 10
    assert float(fields[2]) == pytest.approx(3000 * 100 / 2**20, abs=1e-4)
    assert int(fields[4]) == 3000
    assert polls.startswith("poll: ")


def test_consume_without_a_topic_says_how_to_make_one(tmp_path: Path) -> None:
    with oncelog.open(tmp_path) as log:
        log.create_topic("orders")
    result = PERF.run("consume", "--data", tmp_path)
    assert result.exit_code == 2
    assert "There is no topic perf to consume" in result.stderr


def test_end_to_end_and_transactions(tmp_path: Path) -> None:
    result = PERF.run("end-to-end", "--num-records", "50", "--data", tmp_path)
    assert re.fullmatch(
        rf"Avg latency: {NUMBER} ms\nPercentiles: 50th = {NUMBER}, 95th = {NUMBER}, 99th = {NUMBER}, 99.9th = {NUMBER}\n",
        result.stdout,
    ), result.output
    result = PERF.run(
        "transactions",
        "--num-transactions",
        "40",
        "--records-per-transaction",
        "3",
        "--topic",
        "t",
        "--data",
        tmp_path,
    )
    assert result.stdout.startswith("40 transactions committed, "), result.output
    assert records_in(tmp_path, "t") == 120


def test_transactions_are_counted_by_records_as_the_other_measurements(tmp_path: Path) -> None:
    """Goal: --num-records means records in each of them; a last transaction takes what is left."""
    words = ("transactions", "--records-per-transaction", "4", "--record-size", "10")
    result = PERF.run(*words, "--num-records", "10", "--json", "--data", tmp_path)
    figures = json.loads(result.stdout)
    assert (figures["transactions"], figures["records"]) == (3, 10)
    assert records_in(tmp_path, "perf") == 10
    result = PERF.run(*words, "--num-records", "1", "--num-transactions", "1", "--data", tmp_path)
    assert result.exit_code == 2
    assert "Give one of --num-records and --num-transactions." in result.stderr


@pytest.mark.parametrize("kind", ["end-to-end", "transactions"])
def test_a_throughput_holds_for_them_as_well(tmp_path: Path, kind: str) -> None:
    result = PERF.run(
        *(kind, "--num-records", "31", "--throughput", "100", "--json", "--data", tmp_path)
    )
    figures = json.loads(result.stdout)
    assert figures["records"] == 31
    assert figures["seconds"] >= 0.3


def test_a_plot_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "perf.png"
    result = PERF.run(
        "produce", "--num-records", "2000", "--plot", path, "--data", tmp_path / "data"
    )
    assert result.exit_code == 0, result.output
    assert path.read_bytes().startswith(b"\x89PNG")


def test_an_unknown_producer_option_is_refused(tmp_path: Path) -> None:
    result = PERF.run("produce", "--producer-props", "compresion.type=lz4", "--data", tmp_path)
    assert result.exit_code == 2
    assert "compresion" in result.stderr
