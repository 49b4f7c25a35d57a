"""``oncelog groups``: as Kafka's tool shows them, and its rules for moving offsets line by line."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import oncelog

from ..golden_cases import GOLDEN
from ..terminal import on_terminal
from .running import printed, refused, run_command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KAFKA = GOLDEN / "txn-offsets/data"
START = 1_000_000_000_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Topics a (two partitions of ten records, one a second) and b (five), and a group that has read some of a."""
    path = tmp_path / "data"
    with oncelog.open(path) as log:
        log.create_topic("a", 2)
        log.create_topic("b")
        with log.producer() as producer:
            for topic, partition, count in (("a", 0, 10), ("a", 1, 10), ("b", 0, 5)):
                for n in range(count):
                    producer.send(
                        topic, value=b"v", partition=partition, timestamp=START + n * 1000
                    )
        log.admin().alter_consumer_group_offsets("g", {("a", 0): 4, ("a", 1): 6})
    return path


def plan(data: Path, *words: str, groups: tuple[str, ...] = ("g",)) -> dict[str, int]:
    """What a reset would commit, by topic and partition; nothing is written."""
    before = committed(data, *groups)
    rows = json.loads(printed("groups", "reset-offsets", *groups, *words, "--json", "--data", data))
    assert committed(data, *groups) == before
    return {f"{row['topic']}-{row['partition']}": row["newOffset"] for row in rows}


def committed(data: Path, *groups: str) -> list[object]:
    with oncelog.open(data, read_only=True) as log:
        answers = log.admin().describe_consumer_groups(groups)
        return [getattr(answer, "lags", None) for answer in answers.values()]


# ---------------------------------------------------------------- looking


def test_a_brokers_groups_are_described_as_kafkas_tool_does() -> None:
    member = "consumer-g-classic-1-677823fe-15bb-4186-b35d-b987481d36f3"
    newer = ["rz7fDlPtTSW2bqTyfvLGog", "/127.0.0.1", "consumer-g-consumer-2"]  # KIP-848
    rows = [
        line.split()
        for line in printed("groups", "describe", "--all-groups", "--data", KAFKA).splitlines()
    ]
    assert " ".join(rows[0]) == (
        "GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG CONSUMER-ID HOST CLIENT-ID"
    )
    assert rows[1:] == [
        ["g-classic", "in", "0", "40", "40", "0", member, "/127.0.0.1", "consumer-g-classic-1"],
        ["g-classic", "in", "1", "9", "40", "31", member, "/127.0.0.1", "consumer-g-classic-1"],
        ["g-consumer", "in", "0", "40", "40", "0", *newer],
        ["g-consumer", "in", "1", "9", "40", "31", *newer],
        ["g-simple", "in", "0", "3", "40", "37", "-", "-", "-"],
    ]


def test_a_terminal_that_is_too_narrow_loses_no_figure() -> None:
    command = [
        sys.executable,
        "-m",
        "oncelog",
        "groups",
        "describe",
        "g-classic",
        "--data",
        str(KAFKA),
    ]
    wide, narrow = on_terminal(command, 200), on_terminal(command, 60)
    assert ("─" in wide, "─" in narrow) == (True, False)
    for shown in (wide, narrow):
        assert "LAG" in shown
        assert re.search(
            r"in +1 +9 +40 +31 +consumer-g-classic-1-677823fe-15bb-4186-b35d-b987481d36f3", shown
        )


def test_groups_are_listed_by_state_and_type() -> None:
    words = ("groups", "list", "--data", KAFKA)
    assert printed(*words) == "g-classic\ng-consumer\ng-simple\n"
    assert printed(*words, "--state", "empty") == "g-simple\n"
    assert printed(*words, "--type", "consumer", "--verbose") == (
        "GROUP       TYPE      PROTOCOL  STATE\ng-consumer  consumer  consumer  Stable\n"
    )
    assert "there is no group state 'Happy', only" in refused(*words, "--state", "Happy")


def test_members_and_state_are_shown_if_asked_for() -> None:
    words = ("groups", "describe", "g-classic", "--data", KAFKA)
    assert printed(*words, "--state").splitlines()[1].split() == [
        "g-classic",
        "classic",
        "range",
        "Stable",
        "1",
    ]
    assert printed(*words, "--members").splitlines()[1].split()[-3:] == ["2", "in-0", "in-1"]
    newer = printed("groups", "describe", "g-consumer", "--members", "--data", KAFKA)
    assert newer.splitlines()[1].split()[-3:] == ["2", "in-0", "in-1"]
    (document,) = json.loads(printed(*words, "--json"))
    assert (document["state"], document["offsets"][1]["lag"]) == ("Stable", 31)


def test_the_lag_ends_at_the_last_stable_offset(data: Path) -> None:
    with oncelog.open(data) as log:
        producer = log.producer(transactional_id="open")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("a", value=b"open", partition=0).result()
        rows = printed("groups", "describe", "g", "--data", data).splitlines()
        assert rows[1].split()[3:6] == ["4", "10", "6"]
        producer.abort_transaction()


def test_a_group_that_is_not_there_is_told(data: Path) -> None:
    assert refused("groups", "describe", "no", "--data", data).startswith("there is no group 'no'")
    assert refused("groups", "delete", "no", "--data", data).startswith("there is no group 'no'")
    assert refused("groups", "describe", "--data", data) == "Name groups, or give --all-groups."


# ---------------------------------------------------------------- resetting: Kafka's rules


def test_a_plan_is_shown_and_only_executed_on_request(data: Path) -> None:
    words = ("groups", "reset-offsets", "g", "--topic", "a", "--to-earliest", "--data", data)
    table = "GROUP  TOPIC  PARTITION  NEW-OFFSET\ng      a              0           0\ng      a              1           0\n"
    result = run_command(*words)
    assert (result.exit_code, result.stdout) == (0, table)
    assert "Nothing was committed: --execute carries this plan out." in result.stderr
    assert plan(data, "--all-topics", "--to-current") == {"a-0": 4, "a-1": 6}
    assert printed(*words, "--execute") == table
    assert plan(data, "--all-topics", "--to-current") == {"a-0": 0, "a-1": 0}


@pytest.mark.parametrize(
    ("words", "offsets"),
    [
        (("--to-earliest",), (0, 0)),
        (("--to-latest",), (10, 10)),
        (("--to-current",), (4, 6)),
        (("--to-offset", "5"), (5, 5)),
        (("--to-offset", "500"), (10, 10)),
        (("--to-offset", "-5"), (0, 0)),
        (("--shift-by", "3"), (7, 9)),
        (("--shift-by", "-5"), (0, 1)),
        (("--shift-by", "50"), (10, 10)),
        (("--to-datetime", "2001-09-09T01:46:43.000"), (3, 3)),
        (("--to-datetime", "2001-09-09T01:46:43.000Z"), (3, 3)),
        (("--to-datetime", "2001-09-09T03:46:42.500+02:00"), (3, 3)),
        (("--to-datetime", "2040-01-01T00:00:00.000"), (10, 10)),
        (("--by-duration", "P20000D"), (0, 0)),
        (("--by-duration", "PT1M"), (10, 10)),
    ],
)
def test_offsets_go_where_kafkas_tool_would_move_them(
    data: Path, words: tuple[str, ...], offsets: tuple[int, int]
) -> None:
    assert plan(data, "--topic", "a", *words) == {"a-0": offsets[0], "a-1": offsets[1]}


def test_the_scope_is_all_topics_some_or_some_partitions(data: Path) -> None:
    assert plan(data, "--all-topics", "--to-latest") == {"a-0": 10, "a-1": 10}
    assert plan(data, "--topic", "a:1", "--topic", "b", "--to-latest") == {"a-1": 10, "b-0": 5}
    assert plan(data, "--topic", "a:0,1", "--to-offset", "2") == {"a-0": 2, "a-1": 2}


def test_an_unknown_group_is_made_for_named_topics_and_has_no_others(data: Path) -> None:
    words = ("groups", "reset-offsets", "new", "--data", data, "--execute")
    result = run_command(*words, "--all-topics", "--to-latest")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("new: nothing is committed, so there is nothing to move")
    assert "new" not in printed("groups", "list", "--data", data)
    printed(*words, "--topic", "b", "--to-offset", "2")
    assert printed("groups", "list", "--data", data) == "g\nnew\n"


def test_several_groups_are_exported_and_taken_back(data: Path, tmp_path: Path) -> None:
    with oncelog.open(data) as log:
        log.admin().alter_consumer_group_offsets("h", {("b", 0): 1})
    words = ("groups", "reset-offsets", "--data", data)
    one = printed(*words, "g", "--all-topics", "--to-current", "--export")
    assert one == "a,0,4\na,1,6\n"
    both = printed(*words, "--all-groups", "--all-topics", "--to-current", "--export")
    assert both == "g,a,0,4\ng,a,1,6\nh,b,0,1\n"
    printed(*words, "--all-groups", "--all-topics", "--to-latest", "--execute")
    file = tmp_path / "plan.csv"
    file.write_text(both)
    printed(*words, "g", "h", "--from-file", file, "--execute")
    assert plan(data, "--all-topics", "--to-current", groups=("g", "h")) == {
        "a-0": 4,
        "a-1": 6,
        "b-0": 1,
    }
    file.write_text("a,0,9\n")
    assert plan(data, "--from-file", str(file)) == {"a-0": 9}


def test_the_only_one_of_all_groups_is_exported_with_its_name(data: Path, tmp_path: Path) -> None:
    """Goal: as in Kafka's tool, only a group asked for by its name is left out of its lines, so that a script that
    says --all-groups gets the same columns however many there are; and the lines are taken back either way."""
    words = ("groups", "reset-offsets", "--data", data)
    text = printed(*words, "--all-groups", "--all-topics", "--to-current", "--export")
    assert text == "g,a,0,4\ng,a,1,6\n"
    file = tmp_path / "plan.csv"
    file.write_text(text)
    for scope in ("--all-groups", "g"):
        assert printed(*words, scope, "--from-file", file, "--export").count("a,0,4\n") == 1


def test_one_bad_partition_keeps_the_others_untouched(data: Path) -> None:
    before = committed(data, "g")
    words = ("groups", "reset-offsets", "g", "--topic", "a:0,7", "--to-latest", "--execute")
    result = run_command(*words, "--data", data)
    assert result.exit_code == 2
    assert "topic 'a' has partitions 0 to 1, not 7" in result.stderr
    assert "Nothing was committed." in result.stderr
    assert committed(data, "g") == before


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--topic", "a"), "Say where to, with one of --to-earliest, --to-latest"),
        (
            ("--topic", "a", "--to-latest", "--to-earliest"),
            "--to-earliest and --to-latest contradict each other: give one.",
        ),
        (("--to-latest",), "Say which topics: --topic, which may be repeated, or --all-topics."),
        (("--topic", "a", "--all-topics", "--to-latest"), "Say which topics"),
        (("--topic", "a:x", "--to-latest"), "'x' is no partition; write topic:0,1,2"),
        (("--topic", "a", "--to-datetime", "yesterday"), "'yesterday' is not a date and time like"),
        (("--topic", "a", "--to-datetime", "2026-13-01T00:00:00.000"), "is no date and time"),
        (("--topic", "a", "--by-duration", "1 hour"), "'1 hour' is not a duration like P7D"),
        (("--topic", "zz", "--to-latest"), "there is no topic 'zz'"),
        (
            ("--topic", "b", "--shift-by", "1"),
            "has committed no offset of b-0 that could be shifted",
        ),
        (
            ("--topic", "a", "--to-latest", "--execute", "--dry-run"),
            "Give one of --dry-run and --execute.",
        ),
    ],
)
def test_a_reset_that_makes_no_sense_is_told(
    data: Path, words: tuple[str, ...], sentence: str
) -> None:
    assert sentence in refused("groups", "reset-offsets", "g", *words, "--data", data)


# ---------------------------------------------------------------- active groups


@contextlib.contextmanager
def member(data: Path, options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a consumer in the group "live" that has read topic b; it is killed in the end."""
    program = (
        "import sys, oncelog\n"
        f"log = oncelog.open({str(data)!r})\n"
        f"consumer = log.consumer(group_id='live', auto_offset_reset='earliest', {options})\n"
        "consumer.subscribe(['b'])\n"
        "assert consumer.poll(timeout_ms=20000)\n"
        "consumer.commit(); print('in', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"in\n"
        yield process
        process.kill()


RESET = ("groups", "reset-offsets", "live", "--topic", "b", "--to-earliest")


def test_a_living_group_is_neither_reset_nor_deleted(data: Path) -> None:
    """Goal: whoever reads is safe, and shown; a killed process is not in the way.
    Method: a process joins, and is killed after its group was looked at."""
    with member(data, "") as process:
        assert "group 'live' is inactive, but its state is Stable" in refused(
            *RESET, "--data", data
        )
        in_use = f"is in use by pid {process.pid}"
        assert in_use in refused("groups", "delete", "live", "--data", data)
        assert in_use in refused(*RESET, "--execute", "--data", data)
        (row,) = printed("groups", "describe", "live", "--data", data).splitlines()[1:]
        assert row.split()[:6] == ["live", "b", "0", "5", "5", "0"]
        assert row.split()[6] != "-"
    result = run_command("groups", "describe", "live", "--data", data)
    assert "Consumer group 'live' has no active members." in result.stderr
    assert plan(data, *RESET[3:], groups=("live",)) == {"b-0": 0}
    printed(*RESET, "--execute", "--data", data)
    assert printed("groups", "delete", "live", "--data", data) == "live: deleted\n"


def test_static_members_that_will_not_come_back_are_taken_out(data: Path) -> None:
    with member(data, "group_instance_id='one'"):
        pass
    advice = "are taken out first by --remove-members"
    assert advice in refused(*RESET, "--data", data)
    assert advice in refused(*RESET, "--execute", "--data", data)
    assert advice in refused("groups", "delete", "live", "--data", data)
    result = run_command(*RESET, "--execute", "--remove-members", "--data", data)
    assert (result.exit_code, "live: member one was taken out." in result.stderr) == (0, True)
    assert printed("groups", "delete", "live", "--data", data) == "live: deleted\n"
    assert printed("groups", "list", "--data", data) == "g\n"
