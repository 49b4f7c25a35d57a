"""The benchmarks run, judge and refuse as they say. Nothing here looks at a time."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pytest_benchmark.stats import Stats

from benches import bench_sequence, counting, files, harness, soak
from benches.harness import Case, Contestant, Result, Role, Settings, Target, Unit
from benches.running import QUESTIONS, all_cases
from oncelog._native import sequence

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    words = ("--json", str(tmp_path / "r.json"), "--png", str(tmp_path / "r.png"))
    done = benches(*words, "--no-growth")  # which has tests of its own
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert {"machine", "versions", "commit", "settings", "results"} <= report.keys()
    assert report["settings"]["seed"] == harness.SEED
    names = [result["case"] for result in report["results"]]
    assert len(set(names)) == len(names)
    assert {name.partition(".")[0] for name in names} == {
        *("encode", "decode", "scan", "codec", "crc"),
        *("append", "fetch", "txn_index", "abort_filter", "recovery", "open", "sequence"),
        *("send", "poll", "ack", "commit", "groups", "startup", "idle", "spark"),
    }
    for result in report["results"]:
        (ours,) = (one for one in result["contestants"] if one["role"] == "ours")
        assert ours["value"] > 0 or Unit(result["unit"]).is_gauge
        assert ours["median"] >= 0
        assert all(target["met"] is None for target in result["targets"]), "a smoke run judged"
    drawn = (tmp_path / "r.png").exists()
    assert drawn or "matplotlib is not installed" in done.stderr


def test_a_missing_peer_is_said_and_the_rest_runs() -> None:
    limits = "C floor,memcpy,sum over the mapping,map and sum,write() loop,linear C scan"
    # Those that have these peers; Spark is started once in this file, above.
    done = benches("--without", f"{PEERS},{limits}", "--only", "[acdeft]*")
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
    Method: run each benchmark once, unmeasured; of Spark, which the suite has run, look at the names alone."""
    command = [sys.executable, "-m", "pytest", "benches", "--quick", "-q", "-p", "no:cacheprovider"]

    def ran(*words: str) -> str:
        done = subprocess.run(
            [*command, *words], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    shown = ran("--benchmark-disable", "-rA", "--ignore=benches/bench_spark.py")
    for question in QUESTIONS:
        said = f"PASSED benches/bench_{question}.py" in shown
        assert said or question in ("spark", "idle"), question
    assert "counted, not timed" in shown  # which is what becomes of an idle log
    assert "bench_spark.py::test_spark[" in ran("--collect-only", "-k", "spark")


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


def test_targets_of_a_real_broker_are_left_to_the_suite_that_has_one() -> None:
    """Goal: `make bench` neither raises nor speaks of what only `make bench-kafka` measures."""
    here, there = harness.load_targets(), harness.load_targets(suite="kafka")
    assert there
    assert {target.suite for target in there} == {"kafka"}
    assert not set(here) & set(there)
    assert all(target.why for target in there)


def test_every_kernel_that_is_counted_is_a_case_with_these_contestants() -> None:
    """Goal: a renamed case does not lose its instructions."""
    for name, kernel in counting.KERNELS.items():
        (case,) = (case for case in all_cases(Settings.tiny(), name) if case.name == name)
        assert set(kernel.functions) <= {one.name for one in case.contestants}


@pytest.mark.skipif(bool(counting.lacking()), reason=counting.lacking())
def test_instructions_are_those_of_the_kernel_alone() -> None:
    """Goal: a count does not depend on how long the program ran, nor on what it did before.
    Method: the checksum of 1 MiB and of 4 KiB: the counts go with the sizes, as those of nothing else do."""
    small, large = (counting.count(name)["oncelog"] for name in ("crc.c.4KiB", "crc.c.1MiB"))
    assert 128 < large / small < 512


def test_without_valgrind_nothing_is_counted_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benches.counting.shutil.which", lambda _: None)
    assert counting.main() == 0
    assert capsys.readouterr().out == "no instructions counted: valgrind is not installed\n"


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


def test_what_a_killed_run_left_is_swept_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no log stays for ever because its run was killed, and none goes that a run still uses."""
    monkeypatch.setenv(files.PLACE, str(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    left, used = (tmp_path / f"log.{pid}.abc" for pid in (gone.pid, os.getppid()))
    left.mkdir()
    used.mkdir()
    (tmp_path / "somebody's own file").touch()
    scratch = harness.Scratch("smoke")
    assert sorted(tmp_path.iterdir()) == sorted(
        [scratch.path, used, tmp_path / "somebody's own file"]
    )


def test_too_little_disk_is_one_line() -> None:
    assert files.lacking_room(0) == ""
    said = files.lacking_room(1 << 60)
    assert said.startswith("the disk has room for ")
    assert "\n" not in said


def test_a_case_that_cannot_run_here_is_named_with_the_reason() -> None:
    """Goal: without Java, or without /proc, the other cases run.
    Method: a case whose own contestant is missing; its peer must not be called."""
    peer = Contestant("peer", Role.PEER, lambda: pytest.fail("was called"), reveal=lambda: 0)
    ours = Contestant("oncelog", Role.OURS, missing="no Java")
    case = Case("some.case", "some case", Unit.NS_PER_CALL, 1, [ours, peer])
    target = Target("some.case", "peer", 2.0, Role.PEER, "why")
    (result,) = harness.run([case], Settings(rounds=2), [target])
    assert [str(verdict) for verdict in result.verdicts] == ["not measured"]
    told = {one["name"]: one["missing"] for one in result.as_json()["contestants"]}  # type: ignore[attr-defined]
    assert told == {"oncelog": "no Java", "peer": "ours did not run"}


def test_a_gauge_is_read_and_not_timed() -> None:
    ours = Contestant("oncelog", Role.OURS, lambda: 7, reveal=lambda: True)
    idle = Contestant("idle", Role.LIMIT, lambda: 0)
    case = Case("some.case", "some case", Unit.THREADS, 1, [ours, idle])
    (result,) = harness.run([case], Settings(rounds=2))
    assert result.shown("oncelog") == result.median("oncelog") == 7
    assert result.ratio(idle) is None, "nothing can be divided by nothing"


def test_logs_leave_nothing_behind() -> None:
    """Goal: files of a run are gone with it, also when pytest has collected all cases.
    Method: make a directory, drop the last that refers to it."""
    scratch = harness.Scratch("smoke")
    path = scratch.path
    (path / "file").write_bytes(b"bytes")
    assert path.is_dir()
    del scratch
    assert not path.exists()


def test_only_one_case_has_its_data_at_a_time() -> None:
    """Goal: what a case left open neither fills the disk nor wakes up while another is timed.
    Method: each case holds a directory; when the results are there, only the last case's can be."""
    made: list[Path] = []

    def cases() -> Iterator[Case]:
        for number in range(3):
            scratch = harness.Scratch("smoke")
            made.append(scratch.path)
            call = functools.partial(scratch.path.exists)
            ours = Contestant("oncelog", Role.OURS, call, {"kept": scratch}, reveal=call)
            yield Case(f"some.{number}", "some case", Unit.NS_PER_CALL, 1, [ours])
            assert made[-1].exists()

    results = []
    for result in harness.run(cases(), Settings.tiny()):
        assert [path.exists() for path in made].count(True) <= 2
        results.append(result)
    assert len(results) == len(made) == 3
    assert not any(path.exists() for path in made)


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


def test_a_kernel_that_is_slowed_down_on_purpose_misses_its_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: the suite cannot lie: what is slow is measured as slow, and judged.
    Method: the sequence check does its work thirty times; the promise is at most three dictionary lookups, and it needs
    about one and a half. The same without the plant shows that the plant is what is found."""

    class Slowed:
        def __init__(self) -> None:
            self._table = sequence.ProducerTable()

        def load(self, rows: Any) -> None:
            self._table.load(rows)

        def check(self, *words: Any) -> int:
            for _ in range(30):
                self._table.check(*words)
            return self._table.check(*words)

    def achieved(verdicts: list[harness.Verdict]) -> float:
        (verdict,) = verdicts
        assert verdict.achieved is not None
        return verdict.achieved

    def measured() -> list[harness.Verdict]:
        settings = Settings(rounds=3, round_seconds=0.001)
        case = next(bench_sequence.cases(settings))
        (result,) = harness.run([case], settings, harness.load_targets())
        return result.verdicts

    monkeypatch.setattr(bench_sequence, "PRODUCERS", 5_000)
    as_it_is = measured()
    monkeypatch.setattr(bench_sequence, "ProducerTable", Slowed)
    slowed = measured()
    assert slowed[0].met is False
    assert str(slowed[0]).startswith("missed by ")
    assert achieved(slowed) > 3 * achieved(as_it_is)


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


def test_who_has_fewer_rounds_is_seen_at_all_times() -> None:
    """Goal: nobody's rounds lie all in the minute that the machine was fast, or slow."""
    called: list[str] = []
    ours, peer = (
        Contestant(name, role, lambda name=name: called.append(name), reveal=lambda: None)  # type: ignore[misc]
        for name, role in (("oncelog", Role.OURS), ("peer", Role.PEER))
    )
    slow = dataclasses.replace(peer, rounds=3)
    case = Case("some.case", "some case", Unit.NS_PER_CALL, 1, [ours, slow])
    harness.measure(case, Settings(rounds=12, round_seconds=0.0))
    parts = "".join(name[0] for name in called[2:]).split("p")  # the first two: warm-up
    assert [len(part) for part in parts] == [3, 4, 4, 1]


def test_the_same_seed_makes_the_same_records() -> None:
    first, second = (harness.make_records(harness.MAIN, seed=7) for _ in range(2))
    assert first == second
    assert first != harness.make_records(harness.MAIN, seed=8)
