"""``oncelog bench``: the suite for people without a checkout, and what it says where it cannot run."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests.benches.results_files import a_run, written

from .running import printed, refused, run_command

if TYPE_CHECKING:
    from pathlib import Path

needs_suite = pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""),
    reason="a compiler does not run under a sanitizer",
)


@needs_suite
def test_it_measures_what_is_asked_and_writes_all_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCELOG_BENCH_DIR", str(tmp_path / "work"))
    results, page = tmp_path / "r.json", tmp_path / "r.html"
    words = ("--quick", "--only", "crc.python.*", "--json", results, "--html", page)
    shown = run_command("bench", *words)
    assert shown.exit_code == 0, shown.output
    assert "CRC-32C from Python, 100 B" in shown.stdout
    assert "results:" in shown.stderr
    told = json.loads(results.read_text())
    assert [one["case"].rpartition(".")[0] for one in told["results"]] == ["crc.python"] * 3
    assert told["command"] == "oncelog bench --only 'crc.python.*' --quick"
    assert [one["name"] for one in told["questions"]] == ["crc"]
    assert "In the clock" in page.read_text()


@needs_suite
def test_without_a_pattern_the_short_questions_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    from oncelog.benches import running

    asked: list[object] = []

    def measured(questions: object, *_: object) -> running.Run:
        asked.append(questions)
        return running.Run(skipped={"all": "by the test"})

    monkeypatch.setattr(running, "measured", measured)
    assert "all: skipped, by the test" in printed("bench", "--quick")
    assert asked == [running.SHORT]
    assert "spark" not in running.SHORT, "Java is nothing that pip installs"
    assert set(running.SHORT) <= set(running.QUESTIONS)


@needs_suite
def test_an_unknown_case_is_a_misuse() -> None:
    sentence = refused("bench", "--quick", "--only", "nosuch.case")
    assert sentence.startswith("No case is called 'nosuch.case': there are encode, decode")


def test_without_the_extra_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytest_benchmark", None)
    assert refused("bench", "--quick") == (
        "Benchmarks need packages that are not installed: pip install 'oncelog[bench]'."
    )


def test_results_are_compared_without_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: who only looks at results needs nothing more. Method: as if nothing more were there."""
    for name in ("pytest_benchmark", "oncelog.benches.harness"):
        monkeypatch.setitem(sys.modules, name, None)
    old, new = written(tmp_path / "a", a_run(20e-9)), written(tmp_path / "b", a_run(30e-9))
    shown = printed("bench", "compare", old, new)
    assert "slower" in shown
    told = json.loads(printed("bench", "compare", old, new, "--json"))
    assert told["slower"] == 2
    assert run_command("bench", "compare", old, new, "--check").exit_code == 1
    assert run_command("bench", "compare", new, old, "--check").exit_code == 0
    assert "title of send.arrow.100B" in printed("bench", "report", old)
    printed("bench", "report", old, new, "--html", tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text().startswith("<!DOCTYPE html>")


def test_a_file_that_holds_no_results_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    assert refused("bench", "compare", other, other) == (
        f"{other} is JSON, but not of a run: name a file that `bench --json FILE` has written."
    )
    assert "does not exist" in refused("bench", "report", tmp_path / "nowhere.json")


@needs_suite
def test_a_missed_target_is_an_exit_of_one_with_check(monkeypatch: pytest.MonkeyPatch) -> None:
    from oncelog.benches import report, running

    monkeypatch.setattr(running, "measured", lambda *_: running.Run(skipped={"all": "test"}))
    monkeypatch.setattr(report, "has_missed", lambda _: True)
    assert run_command("bench", "--quick", "--check").exit_code == 1
    assert run_command("bench", "--quick").exit_code == 0


@needs_suite
def test_an_interrupt_ends_as_shells_count_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    from oncelog.benches import running

    monkeypatch.setattr(running, "measured", lambda *_: running.Run(was_interrupted=True))
    shown = run_command("bench", "--quick")
    assert shown.exit_code == 130
    assert "interrupted: nothing was written" in shown.stderr
