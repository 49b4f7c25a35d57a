"""The benchmarks run, judge and refuse as they say. Nothing here looks at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.stats import Stats

from benches import harness, kafka, soak
from benches.__main__ import QUESTIONS, all_cases
from benches.harness import Case, Contestant, Result, Role, Settings, Target, Unit

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""),
    reason="a compiler does not run under a sanitizer",
)
PEERS = "aiokafka,kafka-python,google-crc32c,awscrt,crc32c"


def benches(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benches", "--quick", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_suite_runs_and_leaves_its_results(tmp_path: Path) -> None:
    """Goal: no benchmark rots.
    Method: run all of them on tiny data, with whatever peers are installed."""
    done = benches("--json", str(tmp_path / "r.json"), "--png", str(tmp_path / "r.png"))
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert {"machine", "versions", "commit", "settings", "results"} <= report.keys()
    assert report["settings"]["seed"] == harness.SEED
    names = [result["case"] for result in report["results"]]
    assert len(set(names)) == len(names)
    assert {name.partition(".")[0] for name in names} == {
        *("encode", "decode", "scan", "codec", "crc"),
        *("append", "fetch", "txn_index", "recovery", "open", "sequence"),
        *("send", "poll", "ack", "commit", "groups", "spark"),
    }
    for result in report["results"]:
        (ours,) = (one for one in result["contestants"] if one["role"] == "ours")
        assert ours["value"] > 0
        assert all(target["met"] is None for target in result["targets"]), "a smoke run judged"
    drawn = (tmp_path / "r.png").exists()
    assert drawn or "matplotlib is not installed" in done.stderr


def test_a_missing_peer_is_said_and_the_rest_runs() -> None:
    limits = "C floor,memcpy,sum over the mapping,map and sum,write() loop,linear C scan"
    done = benches("--without", f"{PEERS},{limits}")
    assert done.returncode == 0, done.stderr
    assert "aiokafka: not installed" in done.stdout
    assert "crc32c: not installed" in done.stdout
    assert "C floor: no C compiler" in done.stdout
    assert "sum over the mapping: no C compiler" in done.stdout


def test_an_unknown_case_is_a_misuse() -> None:
    done = benches("--only", "no.such.case")
    assert done.returncode == 2
    assert "no.such.case" in done.stderr


def test_pytest_finds_every_question() -> None:
    """Goal: `pytest benches` works as well as `python -m benches`.
    Method: run each benchmark once, unmeasured."""
    words = ["benches", "--quick", "--benchmark-disable", "-q", "-rA", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    for question in QUESTIONS:
        assert f"PASSED benches/bench_{question}.py" in done.stdout


def test_every_target_speaks_of_a_case_and_a_contestant_that_exist() -> None:
    """Goal: a renamed case does not lose its target.
    Method: look for each target's case, and in it for the other side."""
    cases = list(all_cases(Settings.tiny()))
    for target in harness.load_targets():
        assert target.why
        judged = 0
        for case in cases:
            result = Result(case, {})
            result.judge([target])  # raises where the case lacks the other side
            judged += len(result.verdicts)
        assert judged, f"no case is called {target.case}"


def test_what_is_prepared_for_a_round_is_used_once() -> None:
    """Goal: a round that uses up its data, such as an append to a new partition, is timed with nothing left over.
    Method: note preparations and calls; each call follows one."""
    noted: list[str] = []
    contestant = Contestant(
        "oncelog",
        Role.OURS,
        lambda: noted.append("call"),
        reveal=lambda: None,
        setup=lambda: noted.append("setup"),
    )
    case = Case("some.case", "some case", Unit.NS_PER_CALL, 1, [contestant])
    harness.measure(case, Settings(rounds=3, round_seconds=0.001))
    assert noted == ["setup", "call"] * (len(noted) // 2)
    assert len(noted) >= 8


def test_logs_leave_nothing_behind() -> None:
    """Goal: files of a run are gone with it, also when pytest has collected all cases.
    Method: make a directory, drop the last that refers to it."""
    scratch = harness.Scratch("smoke")
    path = scratch.path
    (path / "file").write_bytes(b"bytes")
    assert path.is_dir()
    del scratch
    assert not path.exists()


def test_soak_tells_growth_from_noise(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: the soak test runs, and compares what it says it compares.
    Method: two small logs of different sizes."""
    assert soak.main(["--small-bytes", str(1 << 20), "--bytes", str(4 << 20)]) == 0
    shown = capsys.readouterr().out
    for way in ("views", "contiguous", "records"):
        assert shown.count(f"\n{way} ") == 2


def test_the_soak_of_spark_runs() -> None:
    """Goal: it runs to its verdict; what the verdict is depends on the machine.
    Method: two tiny logs, in a process that starts a Spark of its own."""
    pytest.importorskip("pyspark")
    words = ["--small-bytes", str(1 << 20), "--bytes", str(2 << 20)]
    done = subprocess.run(
        [sys.executable, "-m", "benches.spark_soak", *words],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Executors' " in done.stdout, done.stderr
    assert done.stdout.count(" MiB ") == 4


def test_bench_kafka_says_in_one_line_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setattr(kafka, "missing", lambda: ["no mvn on the PATH", "no javac on the PATH"])
    assert kafka.main([]) == 0
    assert capsys.readouterr().out == (
        "bench-kafka: skipped, no mvn on the PATH, no javac on the PATH\n"
    )
    monkeypatch.setattr(kafka, "missing", list)
    assert kafka.main(["--records", str(10**12)]) == 0
    assert "skipped, the disk has room for" in capsys.readouterr().out


def case_of(*others: Contestant) -> Case:
    ours = Contestant("oncelog", Role.OURS, lambda: None, reveal=lambda: b"bytes")
    return Case("some.case", "some case", Unit.NS_PER_RECORD, 1, [ours, *others])


def stats_of(*seconds: float) -> Any:
    new_stats: Any = Stats  # comes without types
    made = new_stats()
    for second in seconds:
        made.update(second)
    return made


def test_who_does_other_work_is_not_timed() -> None:
    peer = Contestant("peer", Role.PEER, lambda: None, reveal=lambda: b"other bytes")
    with pytest.raises(harness.DisagreementError, match="peer and ours disagree"):
        list(harness.run([case_of(peer)], Settings.tiny()))


@pytest.mark.parametrize(
    ("ours_seconds", "verdicts"),
    [
        (1.0, ["met", "met"]),
        (2.0, ["missed by 50%", "missed by 33%"]),
    ],
)
def test_a_slower_kernel_misses_its_targets(ours_seconds: float, verdicts: list[str]) -> None:
    """Goal: the suite cannot flatter us.
    Method: ours at 1 s meets 10x a peer of 10 s and 1.5x a floor of 1 s; at twice the time neither."""
    peer = Contestant("peer", Role.PEER, lambda: None)
    floor = Contestant("floor", Role.LIMIT, lambda: None)
    targets = [
        Target("some.*", "peer", 10.0, Role.PEER, "why"),
        Target("some.*", "floor", 1.5, Role.LIMIT, "why"),
    ]
    stats = {
        "oncelog": stats_of(ours_seconds, 99.0),
        "peer": stats_of(99.0, 10.0),
        "floor": stats_of(1.0),
    }
    result = Result(case_of(peer, floor), stats)
    result.judge(targets)
    assert [str(verdict) for verdict in result.verdicts] == verdicts


def test_contestants_take_turns() -> None:
    """Goal: noise hits all alike.
    Method: note who is called, round by round, once warm-up is over."""
    called: list[str] = []
    names = ("oncelog", "peer", "limit")
    contestants = [
        Contestant(name, role, lambda name=name: called.append(name), reveal=lambda: None)  # type: ignore[misc]
        for name, role in zip(names, (Role.OURS, Role.PEER, Role.LIMIT), strict=True)
    ]
    case = Case("some.case", "some case", Unit.NS_PER_CALL, 1, contestants)
    stats = harness.measure(case, Settings(rounds=3, round_seconds=0.0))
    rounds = [called[at : at + 3] for at in range(3, len(called), 3)]  # the first three: warm-up
    assert [sorted(turn) for turn in rounds] == [sorted(names)] * 3
    assert len({turn[0] for turn in rounds}) == 3, "the first turn goes round"
    assert all(len(found.data) == 3 for found in stats.values())


def test_the_same_seed_makes_the_same_records() -> None:
    first, second = (harness.make_records(harness.MAIN, seed=7) for _ in range(2))
    assert first == second
    assert first != harness.make_records(harness.MAIN, seed=8)
