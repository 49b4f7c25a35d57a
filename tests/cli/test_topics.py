"""``oncelog topics`` and ``oncelog offsets``: what there is, where it begins and ends, and how it is changed."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING

import pytest

import oncelog

from ..golden_cases import GOLDEN
from ..terminal import on_terminal
from .running import printed, refused, run_command

if TYPE_CHECKING:
    from pathlib import Path

MIXED = GOLDEN / "txn-mixed/data"
ONCELOG = [sys.executable, "-m", "oncelog"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    options = ("--partitions", "2", "--config", "segment.bytes=1048576")
    assert (
        printed("topics", "create", "orders", *options, "--data", path)
        == "orders: made, 2 partitions\n"
    )
    return path


# ---------------------------------------------------------------- topics


def test_a_brokers_topics_are_described_with_what_its_controller_knew() -> None:
    shown = printed("topics", "describe", "mixed", "side", "--data", MIXED)
    options = "index.interval.bytes=512 internal.segment.bytes=16384 retention.ms=-1"
    assert shown == (
        f"mixed  id 5QvE7oGzTASTX2IeiV6zag  1 partition  options {options}\n"
        "partition  leader  replicas  isr  start  end  stable\n"
        "        0       1  1         1        0  823     704\n"
        "\n"
        f"side  id LD3d0Mw2S0Od3WQAJJyRog  2 partitions  options {options}\n"
        "partition  leader  replicas  isr  start  end  stable\n"
        "        0       1  1         1        0   16      16\n"
        "        1       1  1         1        0   21      21\n"
    )


def test_topics_are_listed_and_internal_ones_if_asked_for() -> None:
    assert printed("topics", "list", "--data", MIXED) == "mixed\nside\n"
    assert (
        printed("topics", "list", "--internal", "--data", MIXED).splitlines()[0]
        == "__transaction_state"
    )
    (first, _) = json.loads(printed("topics", "list", "--json", "--data", MIXED))
    assert first == {"topic": "mixed", "topicId": "5QvE7oGzTASTX2IeiV6zag", "isInternal": False}


def test_a_topic_lives_from_create_to_delete(data: Path) -> None:
    at = ("--data", data)
    assert refused("topics", "create", "orders", *at).startswith(
        "there is a topic 'orders' already."
    )
    result = run_command("topics", "create", "orders", "more", "--if-not-exists", *at)
    assert (result.exit_code, result.stdout) == (0, "more: made, 1 partition\n")
    assert (
        printed("topics", "create", "tried", "--validate-only", *at)
        == "tried: can be made, 1 partition\n"
    )
    words = (
        "--partitions",
        "3",
        "--config",
        "retention.ms=1000",
        "--delete-config",
        "segment.bytes",
    )
    assert printed("topics", "alter", "orders", *words, *at) == "orders: altered\n"
    (topic,) = json.loads(printed("topics", "describe", "orders", "--json", *at))
    assert topic["configs"] == {"retention.ms": "1000"}
    assert [row["partition"] for row in topic["partitions"]] == [0, 1, 2]
    assert topic["partitions"][2] == {
        "partition": 2,
        "leader": 1,
        "replicas": [1],
        "isr": [1],
        "startOffset": 0,
        "endOffset": 0,
        "lastStableOffset": 0,
    }
    assert printed("topics", "delete", "orders", "more", *at) == "orders: deleted\nmore: deleted\n"
    assert refused("topics", "delete", "orders", *at).startswith("there is no topic 'orders'")
    assert run_command("topics", "delete", "orders", "--if-exists", *at).exit_code == 0
    result = run_command("topics", "list", *at)
    assert (result.stdout, "There are no topics yet" in result.stderr) == ("", True)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("create", "a b"), "a b"),
        (("create", "x", "--partitions", "0"), "a topic has one partition or more, not 0"),
        (("create", "x", "--replication-factor", "3"), "one process holds one replica"),
        (("create", "x", "--config", "segment.byte=1"), "the nearest: segment.bytes"),
        (("create", "x", "--config", "segment.bytes"), "'segment.bytes' is not name=value."),
        (("alter", "orders", "--partitions", "1"), "has 2 partitions, and 1 would not be more"),
        (("alter", "orders"), "Nothing to change: give --partitions, --config or --delete-config."),
        (("describe", "nope"), "there is no topic 'nope', only orders"),
    ],
)
def test_what_cannot_be_done_is_told(data: Path, words: tuple[str, ...], sentence: str) -> None:
    assert sentence in refused("topics", *words, "--data", data)


def test_a_bad_option_keeps_partitions_from_being_added(data: Path) -> None:
    words = ("--partitions", "5", "--config", "retention.mss=1")
    refused("topics", "alter", "orders", *words, "--data", data)
    with oncelog.open(data, read_only=True) as log:
        assert log.topics() == {"orders": [0, 1]}


def test_all_options_are_shown_with_who_set_them(data: Path) -> None:
    shown = printed("topics", "describe", "orders", "--configs", "--data", data)
    assert re.search(r"^segment.bytes +1048576 +topic$", shown, re.MULTILINE)
    assert re.search(r"^cleanup.policy +delete +default$", shown, re.MULTILINE)


def test_no_election_is_needed_with_one_replica(data: Path) -> None:
    words = ("topics", "elect-leaders", "--data", data)
    assert printed(*words, "--topic", "orders", "--partition", "1") == (
        "topic   partition  answer\norders          1  ELECTION_NOT_NEEDED\n"
    )
    assert printed(*words, "--all-topic-partitions").count("ELECTION_NOT_NEEDED") == 2
    assert "has partitions 0 to 1, not 9" in refused(
        *words, "--topic", "orders", "--partition", "9"
    )
    assert "Give --all-topic-partitions, or --topic" in refused(*words)


def test_a_terminal_gets_a_table() -> None:
    shown = on_terminal([*ONCELOG, "topics", "describe", "side", "--data", MIXED], 100)
    assert "partition" in shown
    assert "─" in shown


# ---------------------------------------------------------------- offsets


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ((), "mixed:0:704\nside:0:16\nside:1:21\n"),
        (("mixed", "--isolation-level", "read_uncommitted"), "mixed:0:823\n"),
        (("--time", "-2"), "mixed:0:0\nside:0:0\nside:1:0\n"),
        (("mixed", "--time", "1794787200020"), "mixed:0:2\n"),
        (("mixed", "--time", "2026-11-16T00:00:00.020"), "mixed:0:2\n"),
        (("mixed", "--time", "2040-01-01T00:00:00.000Z"), "mixed:0:\n"),
        (("side", "--partitions", "1"), "side:1:21\n"),
        (("--sum",), "mixed:704\nside:37\n"),
        (("side", "--sum", "--json"), '[{"topic": "side", "sum": 37}]\n'),
        (("mixed", "--json"), '[{"topic": "mixed", "partition": 0, "offset": 704}]\n'),
    ],
)
def test_offsets_are_those_of_a_committed_reader_unless_told_otherwise(
    words: tuple[str, ...], shown: str
) -> None:
    assert printed("offsets", "get", *words, "--data", MIXED) == shown


def test_a_slip_of_some_zeros_does_not_make_partitions_without_end(tmp_path: Path) -> None:
    """Goal: a number of partitions that nobody means is refused before the topic is written down, as the directory
    would make and open them all from then on."""
    data = tmp_path / "data"
    printed("topics", "create", "orders", "--data", data)
    for words in (("create", "more"), ("alter", "orders")):
        sentence = refused("topics", *words, "--partitions", "99999999", "--data", data)
        assert "and at most 10,000 are made at once" in sentence
    assert printed("topics", "list", "--data", data) == "orders\n"
    assert printed("offsets", "get", "--data", data) == "orders:0:0\n"


def test_offsets_that_cannot_be_had_are_told_beside_those_that_can() -> None:
    result = run_command("offsets", "get", "side", "--partitions", "0,7", "--data", MIXED)
    assert (result.exit_code, result.stdout) == (2, "side:0:16\n")
    assert "topic 'side' has partitions 0, 1, not 7" in result.stderr
    for words in ("7-9999999999", "99999999999"):  # neither is counted through
        assert (
            run_command(
                *("offsets", "get", "side", "--partitions", words, "--data", MIXED)
            ).exit_code
            == 2
        )
    assert "is not a date and time like" in refused(
        "offsets", "get", "--time", "noon", "--data", MIXED
    )
    assert "no list of partitions" in refused(
        "offsets", "get", "--partitions", "a", "--data", MIXED
    )


def test_a_sum_says_that_it_is_no_count() -> None:
    shown = on_terminal([*ONCELOG, "offsets", "get", "--sum", "--data", MIXED], 200)
    assert "Offsets are not a count of records" in shown
