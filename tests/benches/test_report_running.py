"""A run that lacks something says so in one line and goes on, and leaves nothing behind however it ends."""

from __future__ import annotations

import errno
import importlib
import io
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from benches import bench_append, bench_crc, files, floor, glance, running
from benches.__main__ import main
from benches.harness import Settings
from benches.report import notes

from ..terminal import on_terminal
from .results_files import ABOUT, document

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parents[2]
SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")
pytestmark = pytest.mark.skipif(SANITIZED, reason="a compiler does not run under a sanitizer")

CRC = {"crc": ("crc.c.100B",)}
TINY = Settings.tiny()


def measured(
    asked: Mapping[str, tuple[str, ...]], settings: Settings = TINY, **more: Any
) -> tuple[running.Run, list[str]]:
    """A run, and the lines that a person reads below its table."""
    said = io.StringIO()
    done = running.measured(asked, settings, Console(file=said, width=300), **more)
    lines = notes(document(done.as_json(ABOUT)))
    assert all(line.count("\n") == 0 for line in lines)
    return done, lines


def names(done: running.Run) -> list[str]:
    return [result.case.name for result in done.results]


# ---------------------------------------------------------------- what can be lacking


def test_too_little_disk_skips_what_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(ROOT)._replace(free=10 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    done, lines = measured({"append": ("append.*",), **CRC})
    assert names(done) == ["crc.c.100B"]
    assert "append: skipped, the disk has room for 10 MiB, and 64 MiB are needed" in lines


def test_a_disk_that_fills_up_ends_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    def cases(settings: Settings) -> Iterator[Any]:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(bench_append, "cases", cases)
    done, lines = measured({"append": ("append.*",), **CRC})
    assert names(done) == ["crc.c.100B"]
    (line,) = (line for line in lines if line.startswith("append: skipped"))
    assert "no room left on the disk" in line


def test_an_error_of_ours_is_not_called_a_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a bug is no missing package and no full disk. Method: raise what looks alike."""
    for error in (
        OSError(errno.EIO, "Input/output error"),
        ModuleNotFoundError("no", name="benches.x"),
    ):

        def cases(settings: Settings, error: Exception = error) -> Iterator[Any]:
            raise error

        monkeypatch.setattr(bench_append, "cases", cases)
        with pytest.raises(type(error)):
            measured({"append": ("append.*",)})


def test_a_missing_peer_costs_its_own_rows_alone() -> None:
    done, lines = measured({"crc": ("crc.c.*",)}, Settings.tiny({"crc32c"}))
    assert len(done.results) == 3
    assert "crc32c: not installed (3 cases)" in lines


def test_no_pyspark_skips_spark_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "is_installed", lambda name: name != "pyspark")
    done, lines = measured({"spark": ("*",), **CRC})
    assert names(done) == ["crc.c.100B"]
    assert "spark: skipped, pyspark is not installed: pip install 'oncelog[spark]'" in lines


def test_no_java_is_said_once_and_the_rest_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    from benches import bench_spark

    monkeypatch.setattr(bench_spark, "_missing", lambda: "there is no Java\nof version 17")
    done, lines = measured({"spark": ("spark.*",), **CRC})
    told = [line for line in lines if "no Java" in line]
    assert told == [f"spark: {len(done.results) - 1} not run, there is no Java of version 17"]
    assert names(done)[-1] == "crc.c.100B"


def test_no_c_compiler_leaves_the_limits_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floor, "load", lambda: None)
    done, lines = measured({"encode": ("encode.arrow.100B",)})
    assert names(done) == ["encode.arrow.100B"]
    assert f"{floor.NAME}: {floor.NO_COMPILER} (1 case)" in lines


def test_no_room_for_growth_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(ROOT)._replace(free=10 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    done, lines = measured(CRC, with_growth=True)
    assert names(done) == ["crc.c.100B"]
    assert any(line.startswith("growth: skipped, the disk has room for") for line in lines)


# ---------------------------------------------------------------- what is asked


def test_a_pattern_prepares_no_case_beyond_the_one_it_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = list(running.all_cases(TINY, "crc.*"))
    made: list[str] = []

    def cases(settings: Settings) -> Iterator[Any]:
        for case in whole:
            made.append(case.name)
            yield case

    monkeypatch.setattr("benches.bench_crc.cases", cases)
    assert [case.name for case in running.all_cases(TINY, whole[1].name)] == [whole[1].name]
    assert made == [case.name for case in whole[:2]]


def test_every_row_of_the_picture_speaks_of_a_case_and_a_contestant_that_exist() -> None:
    """Goal: a renamed case does not vanish from the README's picture.
    Method: look for each row's case, and in it for the contestant."""
    known: dict[str, list[str]] = {}
    wanted = {row.case for panel in glance.PANELS for row in panel.rows}
    for name in running.QUESTIONS:
        mine = tuple(case for case in wanted if case.partition(".")[0] == name)
        if mine:
            for case in running._cases(name, TINY, mine):
                known[case.name] = [one.name for one in case.contestants]
    pytest.importorskip("pyspark")
    from benches import kafka_cases

    known |= {case.name: [one.name for one in case.contestants] for case in kafka_cases.cases()}
    for panel in glance.PANELS:
        for row in panel.rows:
            assert row.case in known, row
            assert row.contestant is None or row.contestant in known[row.case], row


# ---------------------------------------------------------------- how it ends


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing_behind(tmp_path: Path, number: int) -> None:
    """Goal: Ctrl-C writes no results and takes every file away.
    Method: wait until a log is being measured, interrupt, look at the directory."""
    work, kept = tmp_path / "work", tmp_path / "r.json"
    words = ["--only", "append.*", "--json", str(kept)]
    process = subprocess.Popen(
        [sys.executable, "-m", "benches", *words],
        cwd=ROOT, env={**os.environ, files.PLACE: str(work)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    until = time.monotonic() + 200
    while not (work.is_dir() and any(work.iterdir())):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(number)
    shown, said = process.communicate(timeout=100)
    assert process.returncode == 130, said
    assert "interrupted: nothing was written" in " ".join(said.split())
    assert "Traceback" not in said
    assert list(work.iterdir()) == []
    assert not kept.exists()
    assert "Traceback" not in shown


def test_what_was_measured_until_an_interrupt_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def cases(settings: Settings) -> Iterator[Any]:
        yield from itertools.islice(before(settings), 1)
        raise KeyboardInterrupt

    before = bench_crc.cases
    monkeypatch.setattr(bench_crc, "cases", cases)
    assert main(["--quick", "--only", "crc.*", "--json", str(tmp_path / "r.json")]) == 130
    shown = capsys.readouterr()
    assert "CRC-32C from Python, 100 B" in shown.out
    assert "interrupted: nothing was written" in shown.err
    assert not (tmp_path / "r.json").exists()


def test_a_finished_run_leaves_nothing_behind(tmp_path: Path) -> None:
    work = tmp_path / "work"
    words = ["--quick", "--only", "append.*", "--json", str(tmp_path / "r.json")]
    done = subprocess.run(
        [sys.executable, "-m", "benches", *words],
        cwd=ROOT, env={**os.environ, files.PLACE: str(work)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(work.iterdir()) == []
    assert (tmp_path / "r.json").exists()


def test_a_terminal_sees_how_many_questions_are_left(tmp_path: Path) -> None:
    words = ["--quick", "--only", "crc.c.100B", "--json", str(tmp_path / "r.json")]
    shown = on_terminal([sys.executable, "-m", "benches", *words], 120, cwd=ROOT)
    assert re.search(r"crc .* 0/1 .*0:00:0", shown), shown
    assert "CRC-32C from C, 100 B" in shown


def test_nothing_draws_while_a_case_is_measured() -> None:
    """Goal: the bar is not measured. Method: look for a thread of its own while it is shown."""
    before = threading.active_count()
    with running.Watch(Console(file=io.StringIO(), force_terminal=True), 2) as watch:
        watch.begins("crc")
        assert threading.active_count() == before


def test_a_place_that_cannot_be_written_is_said_before_minutes_are_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running, "measured", lambda *_: pytest.fail("measured"))
    (tmp_path / "file").touch()
    assert main(["--quick", "--html", str(tmp_path / "file" / "r.html")]) == 2
    assert main(["--quick", "--json", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "is a directory" in said
    assert said.count("\n") == 2


def test_without_pytest_benchmark_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "benches.__main__._run", lambda _: importlib.import_module("pytest_benchmark.stats")
    )
    monkeypatch.setitem(sys.modules, "pytest_benchmark", None)
    monkeypatch.delitem(sys.modules, "pytest_benchmark.stats")
    assert main(["--quick"]) == 2
    assert "pip install 'oncelog[bench]'" in capsys.readouterr().err


def test_an_unknown_case_is_a_misuse(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--only", "nosuch.case"]) == 2
    assert "no case is called 'nosuch.case'" in capsys.readouterr().err
