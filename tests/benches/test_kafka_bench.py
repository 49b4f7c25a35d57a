"""``make bench-kafka`` reads Kafka's perf tools rightly, judges, and says what it lacks. No broker is started here."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from benches import files, kafka, kafka_cases, kafka_ground, kafka_perf
from benches.harness import DisagreementError, Result, load_targets
from benches.kafka_cases import KAFKA, OURS, PRODUCE, PRODUCE_ARROW, READ, READY, Answer
from benches.kafka_perf import Told
from interop.kafka import KafkaError, missing, run_apart

if TYPE_CHECKING:
    from collections.abc import Iterator

# As Kafka 4.3.1 prints them.
PRODUCED = """\
Reading payloads from: values
Number of records read: 64
Warmup first 100000 records. Steady state results will print after the complete test summary.
120501 records sent, 24100.2 records/sec (2.30 MB/sec), 2419.2 ms avg latency, 3367.0 ms max latency.
300000 records sent, 39840.637450 records/sec (3.80 MB/sec), 2419.21 ms avg latency, 3367.00 ms max latency, \
2690 ms 50th, 3285 ms 95th, 3358 ms 99th, 3366 ms 99.9th.
200000 steady state records sent, 45966.444496 records/sec (4.38 MB/sec), 2864.32 ms avg latency, \
3367.00 ms max latency, 2798 ms 50th, 3302 ms 95th, 3361 ms 99th, 3367 ms 99.9th.
"""
CONSUMED = """\
start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, \
fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec
2026-11-16 23:59:40:072, 2026-11-16 23:59:42:405, 28.6102, 12.2633, 300000, 128589.7985, 935, 1398, 20.4651, 214592.2747
"""
COMMITTED = """\
300 transactions committed, 118.1 transactions/sec (118.1 records/sec, 0.01 MB/sec), 8.469 ms avg latency, \
75.48 ms max latency, 5.048 ms 50th, 28.830 ms 95th, 52.273 ms 99th, 75.475 ms 99.9th.
"""


# ---------------------------------------------------------------- what the tools print


def test_a_producer_is_judged_by_its_steady_state_and_counted_with_its_warm_up() -> None:
    told = kafka_perf.produced(PRODUCED)
    assert (told.count, told.per_second) == (300_000, 45966.444496)
    assert told.line.startswith("200000 steady state records sent, 45966.444496 records/sec")


def test_lines_while_a_producer_runs_are_no_result() -> None:
    running = "\n".join(PRODUCED.splitlines()[:4])
    with pytest.raises(KafkaError, match="told no figures"):
        kafka_perf.produced(running)


def test_a_consumer_is_judged_without_the_time_of_its_rebalance() -> None:
    told = kafka_perf.consumed(CONSUMED)
    assert (told.count, told.per_second, told.megabytes) == (300_000, 214592.2747, 28.6102)
    kafka_perf.expect(KAFKA, told, 300_000)


def test_a_round_of_transactions_that_is_begun_again_says_so(tmp_path: Path) -> None:
    """Goal: nobody takes a figure for the first one where the broker has failed before."""
    topics: list[str] = []

    class Kafka:
        def tool(self, _: str, *words: str) -> tuple[bytes, bytes]:
            if len(topics) < 3:
                raise KafkaError(f"InvalidTxnStateException on {words[1]}")
            return COMMITTED.encode(), b""

    class Broker:
        kafka, address = Kafka(), "127.0.0.1:0"

        def create(self, made: dict[str, int]) -> None:
            topics.extend(made)

    side = kafka_perf.KafkaSide(Broker(), tmp_path)  # type: ignore[arg-type]
    told = side.transactions("commits", 300)
    assert told.count == 300
    assert told.line.endswith(
        "; begun again after: InvalidTxnStateException on commits-1"
        "; begun again after: InvalidTxnStateException on commits-2"
    )
    assert topics == ["commits-1", "commits-2", "commits-3"]


def test_transactions_are_read() -> None:
    told = kafka_perf.committed(COMMITTED)
    assert (told.count, told.per_second) == (300, 118.1)


def test_our_own_tool_prints_what_is_read_here(tmp_path: Path) -> None:
    """Goal: one parser for both sides, so that the lines can be compared.
    Method: run ours on a few records, and read it as Kafka's is read."""
    ours = kafka_perf.OurSide(tmp_path)
    assert ours.produce("objects", 1_000).count == 1_000
    assert ours.produce("arrow", 1_000, "--arrow").count == 1_000
    for told in (ours.consume("objects"), ours.consume("arrow", "--arrow")):
        kafka_perf.expect(OURS, told, 1_000)
        assert told.megabytes == pytest.approx(1_000 * kafka_perf.VALUE_BYTES / 2**20, abs=1e-4)
    assert ours.transactions("commits", 20).count == 20
    ours.forget("objects")
    assert not (tmp_path / "objects").exists()


@pytest.mark.parametrize(
    "told",
    [Told(299_999, 1.0, "line", 28.6102), Told(300_000, 1.0, "line", 28.61 / 2)],
    ids=["a record is missing", "half of the bytes are missing"],
)
def test_a_tool_that_did_less_is_not_compared(told: Told) -> None:
    with pytest.raises(DisagreementError, match="did not do the work of 300,000 records"):
        kafka_perf.expect(KAFKA, told, 300_000)


def test_sinks_that_wrote_something_else_are_not_compared() -> None:
    kafka_spark = pytest.importorskip("benches.kafka_spark")
    kafka_spark.agreed({"asked for": (10, 1160, 77), OURS: (10, 1160, 77), KAFKA: (10, 1160, 77)})
    with pytest.raises(DisagreementError, match="not the same work"):
        kafka_spark.agreed({"asked for": (10, 1160, 77), KAFKA: (11, 1276, 78)})


# ---------------------------------------------------------------- verdicts


def answered(name: str, ours: float, kafkas: float) -> Result:
    answer = Answer(name, 1_000, "4.3.1")
    for slower in (2, 1):
        answer.add(OURS, ours / slower, f"ours, {slower}")
        answer.add(KAFKA, kafkas / slower, f"Kafka's, {slower}")
    assert answer.lines == {OURS: "ours, 1", KAFKA: "Kafka's, 1"}, "the best round's"
    return answer.result()


@pytest.mark.parametrize(
    ("name", "kafkas", "verdict"),
    [
        (PRODUCE, 100.0, "met"),
        (PRODUCE, 1_000.0, "missed by 67%"),
        (PRODUCE_ARROW, 50.0, "met"),
        (PRODUCE_ARROW, 100.0, "missed by 50%"),
    ],
)
def test_ratios_are_judged_by_the_best_rounds(name: str, kafkas: float, verdict: str) -> None:
    result = answered(name, 1_000.0, kafkas)
    assert [str(one) for one in result.verdicts] == [verdict]
    assert result.verdicts[0].achieved == pytest.approx(1_000.0 / kafkas)


def test_a_source_is_judged_by_kafkas_and_by_what_is_ready_made() -> None:
    answer = Answer(READ, 1_000)
    for who, rate in ((OURS, 1_000.0), (KAFKA, 200.0), (READY, 2_000.0)):
        answer.add(who, rate)
    verdicts = {one.target.against: str(one) for one in answer.result().verdicts}
    assert verdicts == {KAFKA: "met", READY: "missed by 60%"}


def test_every_target_of_this_suite_speaks_of_a_case_and_a_contestant() -> None:
    targets = load_targets(suite=kafka_cases.SUITE)
    judged = []
    for case in kafka_cases.cases():
        result = Result(case, {})
        result.judge(targets)  # raises where the case lacks the other side
        judged += [verdict.target for verdict in result.verdicts]
    assert sorted(map(str, judged)) == sorted(map(str, targets))
    assert {f"{one.case} {one.ratio:g}" for one in targets} >= {
        "kafka.perf.produce 3",
        "kafka.perf.produce.arrow 20",
        "kafka.transactions 50",
        "kafka.spark.read 4",
        "kafka.spark.sink 2",
    }


def test_the_table_shows_rates_ratios_and_verdicts() -> None:
    results = [answered(PRODUCE, 4_000_000.0, 400_000.0)]
    written = io.StringIO()
    Console(width=200, file=written).print(kafka_cases.table(results, "4.3.1"))
    shown = written.getvalue()
    for words in ("Apache Kafka 4.3.1", "4,000,000", "400,000", "10.00x", "3x", "met"):
        assert words in shown
    assert kafka.targets_in_one_line(results) == "Targets: 1 met, 0 missed, 0 not measured."


def test_lines_of_both_tools_stand_side_by_side() -> None:
    answers = {name: Answer(name, 1_000) for name in (PRODUCE, PRODUCE_ARROW)}
    for name, rate in ((PRODUCE, 2.0), (PRODUCE_ARROW, 3.0)):
        answers[name].add(OURS, rate, f"ours at {rate:g}")
        answers[name].add(KAFKA, 1.0, "Kafka's at 1")
    assert [line.split(maxsplit=1) for line in kafka_cases.side_by_side(answers)][1:] == [
        ["oncelog", "ours at 2"],
        ["oncelog", "--arrow ours at 3"],
        ["Kafka", "Kafka's at 1"],
    ]


# ---------------------------------------------------------------- what is missing


@pytest.fixture
def nothing_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory that scratch goes to; empty again afterwards."""
    monkeypatch.setenv(files.PLACE, str(tmp_path / "work"))
    yield tmp_path
    assert not list((tmp_path / "work").glob("*")), "something was left behind"


def quick(folder: Path, *words: str) -> int:
    return kafka.main(["--quick", "--jars", str(folder / "jars"), *words])


def test_without_java_one_line_says_so_and_ours_still_runs(
    nothing_kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lacks = ["no mvn on the PATH", "no java on the PATH"]
    monkeypatch.setattr(kafka_ground, "missing", lambda _: lacks)
    results = nothing_kept / "r.json"
    assert quick(nothing_kept, "--json", str(results)) == 0
    shown = capsys.readouterr().out.splitlines()
    skipped = [line for line in shown if "skipped" in line and "confluent-kafka" not in line]
    (said,) = skipped  # where confluent-kafka is not installed, that is what commits lack
    assert said.startswith(
        "bench-kafka: skipped Kafka's side of perf, Kafka's side of transactions"
    )
    assert said.endswith(": " + ", ".join(lacks))
    report: dict[str, Any] = json.loads(results.read_text())
    assert {one["case"] for one in report["results"]} == {
        *("kafka.perf.produce", "kafka.perf.produce.arrow"),
        *("kafka.perf.consume", "kafka.perf.consume.arrow", "kafka.transactions"),
    }
    for one in report["results"]:
        sides = {side["name"]: side for side in one["contestants"]}
        assert sides[OURS]["value"] > 0
        assert sides[KAFKA]["missing"] == ", ".join(lacks)
        assert all(target["met"] is None for target in one["targets"])
    assert not (nothing_kept / "jars").exists()


def test_too_little_disk_costs_what_needs_it(
    nothing_kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kafka_ground, "missing", lambda _: [])
    assert quick(nothing_kept, "--parts", "perf,spark", "--records", str(10**12)) == 0
    shown = capsys.readouterr().out
    for part in ("perf", "spark"):
        assert f"bench-kafka: skipped {part}: the disk has room for" in shown or (
            part == "spark" and "not installed: pip install 'oncelog[spark]'" in shown
        )


def test_jars_that_cannot_be_fetched_are_said_in_mavens_own_first_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: offline, one line says why, nothing is tried twice, and half of a download does not stay.
    Method: a Maven that leaves a jar and fails as the real one does without a network."""
    complaint = (
        "\x1b[31m[ERROR]\x1b[m Could not transfer artifact from central: Unknown host -> [Help 1]"
    )
    tries = tmp_path / "tries"
    maven = tmp_path / "bin" / "mvn"
    maven.parent.mkdir()
    maven.write_text(
        "#!/bin/sh\n"
        f"echo once >>{tries}\n"
        'for word in "$@"; do case $word in -DoutputDirectory=*) '
        'mkdir -p "${word#*=}"; echo >"${word#*=}/kafka_2.13-4.3.1.jar";; esac; done\n'
        f"printf '%s\\n' '{complaint}' '[ERROR] To see the full stack trace'; exit 1\n"
    )
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{maven.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(kafka_ground, "missing", lambda _: [])
    ground = kafka_ground.Ground(tmp_path / "interop" / "jars")
    for _ in range(2):
        with pytest.raises(KafkaError) as caught:
            _ = ground.kafka
        assert str(caught.value) == (
            "Kafka's jars could not be fetched: Could not transfer artifact from central: Unknown host"
        )
    assert tries.read_text() == "once\n"
    assert ground.version == ""
    with pytest.raises(
        KafkaError, match=r"^Spark's Kafka connector could not be fetched: Could not"
    ):
        ground.connector()
    assert not list((tmp_path / "interop").iterdir()), "half of a download stayed"


def test_maven_is_not_needed_where_the_jars_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "sed", "head"):
        found = next(
            path
            for folder in os.environ["PATH"].split(":")
            if (path := Path(folder) / name).exists()
        )
        (programs / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert missing() == ["no mvn on the PATH", "no java on the PATH", "no javac on the PATH"]
    (tmp_path / "kafka_2.13-4.3.1.jar").touch()
    assert missing(tmp_path) == ["no java on the PATH", "no javac on the PATH"]
    assert kafka_ground.Ground(tmp_path).version == "4.3.1"


def test_a_part_that_fails_is_told_and_costs_the_others_nothing(
    nothing_kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> Iterator[str]:
        yield "one line"
        raise DisagreementError("not the same work")

    monkeypatch.setattr(kafka_ground, "missing", lambda _: ["no java on the PATH"])
    monkeypatch.setattr(kafka, "perf", broken)
    assert quick(nothing_kept, "--parts", "perf,transactions") == 1
    shown = capsys.readouterr()
    assert "bench-kafka: skipped perf: it failed: not the same work" in shown.out
    assert "DisagreementError" in shown.err
    assert "transactions of one record" in shown.out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_and_takes_everything_away(
    nothing_kept: Path,
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Goal: no directory and no process is left, also where the signal comes while a tool runs.
    Method: a part that has a scratch directory and is hit by the signal while it waits for a program."""
    before = signal.getsignal(number)
    child: list[int] = []

    def hit(*_: object) -> Iterator[str]:
        with kafka_ground.scratch("kafka-test") as path:
            yield "one line"
            told = path / "pid"
            script = f"echo $$ >{told}; sleep 0.3; kill -{int(number)} {os.getpid()}; exec sleep 60"
            try:
                run_apart(["bash", "-c", script])
            finally:
                child.append(int(told.read_text()))

    monkeypatch.setattr(kafka, "perf", hit)
    assert quick(nothing_kept, "--parts", "perf") == kafka.EXIT_INTERRUPTED
    assert "interrupted" in capsys.readouterr().err
    assert signal.getsignal(number) == before
    with pytest.raises(ProcessLookupError):
        os.kill(child[0], 0)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--parts", "perf,speed"], "there is no part speed; there are perf, transactions"),
        (["--records", "0"], "sizes and rounds are at least 1"),
    ],
)
def test_misuse_is_said(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        kafka.main(words)
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err


def test_sizes_are_what_was_asked_for() -> None:
    words = ["--records", "1000", "--sink-records", "5", "--rounds", "2"]
    sizes = kafka._sizes(kafka._arguments(words))
    assert (sizes.records, sizes.perf_records, sizes.sink_records) == (1_000, 1_000, 5)
    assert (sizes.transactions, sizes.rounds) == (kafka.Sizes.transactions, 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one line", "one line"),
        ("\n\n  first \n second", "first"),
        ("WARNING: x\n[ERROR] the  reason -> [Help 1]\n[ERROR] more", "the reason"),
        (
            'kafka.sh run: ERROR x\nException in thread "main" A: a\n\tat b\nCaused by: B: b\nCaused by: C: c',
            "C: c",
        ),
        ('kafka.sh run: ERROR x\nException in thread "main" A: a\n\tat b', "A: a"),
        ("", "no reason was given"),
        ("x" * 1_000, "x" * (kafka_ground.SENTENCE_MAX - 1) + "…"),
    ],
)
def test_a_reason_is_one_line(text: str, expected: str) -> None:
    assert kafka_ground.sentence(text) == expected
