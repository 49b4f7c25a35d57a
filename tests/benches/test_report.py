"""The report of a run: one page that needs nothing else, no chart without a caption, and a picture."""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from benches import charts, html_report, report
from benches.__main__ import main
from benches.document import Document, NotResultsError, question_of, questions_here

from .results_files import CURVE, a_run, case, contestant, document, results, written

if TYPE_CHECKING:
    from pathlib import Path

SVG = "{http://www.w3.org/2000/svg}"


def parsed(page: str) -> ET.Element:
    return ET.fromstring(page.removeprefix("<!DOCTYPE html>"))  # noqa: S314 - our own page


def words(element: ET.Element) -> str:
    return " ".join(" ".join(element.itertext()).split())


@pytest.fixture
def page() -> str:
    return html_report.page(document(a_run()))


def test_the_page_is_well_formed_and_complete(page: str) -> None:
    root = parsed(page)
    text = words(root)
    for fact in ("A & B <CPU>", "numpy 2.0", "abc", "python -m benches", "a <reason> & more"):
        assert fact in text, fact
    assert "Targets: 2 met, 2 missed, 0 not measured." in text
    assert "missed by 33%" in text
    assert "How fast does a producer take records?" in text


def test_every_chart_has_a_caption_that_says_what_was_measured(page: str) -> None:
    """Goal: no picture that a reader has to guess at.
    Method: every SVG lies in a figure, and the caption below it speaks of the clock or of what was measured."""
    root = parsed(page)
    figures = root.findall(".//figure")
    drawn = root.findall(f".//{SVG}svg")
    assert len(drawn) == len(figures) > 5
    for figure in figures:
        (caption,) = figure.findall("figcaption")
        assert figure.find(f"{SVG}svg") is not None
        assert re.search(r"(In the clock|Measured): \S.*\.$", words(caption)), words(caption)


def test_every_chart_names_its_units_and_who_took_part(page: str) -> None:
    root = parsed(page)
    text = words(root)
    for name in (
        "nanoseconds per record, less is better",
        "gigabytes per second, more is better",
        "syncs/commit, less is better",
        "confluent-kafka 2.16",
        "not measured: not installed",
        "ours 10.0x faster",
        "ours takes 2.00x",
    ):
        assert name in text, name


def test_units_do_not_share_an_axis() -> None:
    """Goal: syncs and nanoseconds of one question are two charts. Method: draw both, look at each."""
    root = parsed(html_report.page(document(a_run())))
    charts_of = [words(svg) for svg in root.findall(f".//{SVG}svg") if "commit" in words(svg)]
    assert not any("syncs/commit" in text and "nanoseconds" in text for text in charts_of)


def test_the_page_fetches_nothing_and_runs_nothing(page: str) -> None:
    found = re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
    for word in ("http:", "https:", "//cdn", "<script", "<link", "@import", "url(", "<img"):
        assert word not in found, word
    root = parsed(page)
    for element in root.iter():
        assert not {"src", "href"} & set(element.keys())


def test_a_missed_target_stands_before_those_that_are_met(page: str) -> None:
    rows = [words(row).split()[0] for row in parsed(page).findall(".//tbody/tr")]
    verdicts = [word for word in rows if word in ("met", "missed")]
    assert verdicts == ["missed", "missed", "met", "met"]


def test_growth_says_the_slope_and_what_was_promised() -> None:
    steep = {**CURVE, "slope": 1.01, "met": False}
    text = words(parsed(html_report.page(document(results(growth=[CURVE, steep])))))
    assert "slope 0.02, promised 0 + 0.25: met" in text
    assert "slope 1.01, promised 0 + 0.25: WORSE THAN PROMISED" in text
    assert "Worse than promised: fetch & segments." in text
    assert "One fetch from a log of so many segments." in text
    assert report.has_missed(document(results(growth=[steep])))


def test_what_did_not_run_is_said_in_one_line_each() -> None:
    data = a_run(skipped={"spark": "pyspark is not installed"})
    data["results"].append(
        case("groups.load", {"name": "oncelog", "role": "ours", "missing": "no room"})
    )
    lines = report.notes(document(data))
    assert "spark: skipped, pyspark is not installed" in lines
    assert "groups: 1 not run, no room" in lines
    assert "aiokafka: not installed (2 cases)" in lines
    text = words(parsed(html_report.page(document(data))))
    assert "spark: skipped, pyspark is not installed" in text


def test_a_smoke_run_says_that_it_is_one() -> None:
    data = a_run()
    data["settings"]["quick"] = True
    assert "Its times mean nothing" in html_report.page(document(data))


def test_every_question_says_what_is_in_its_clock() -> None:
    """Goal: captions are made of the docstrings. Method: each bench_*.py has the three parts."""
    for name in questions_here():
        question = question_of(name)
        assert question is not None
        assert question.asks.endswith("?"), name
        for part in (question.times, question.excludes, question.anchor):
            assert part, name
            assert "  " not in part, name


def test_results_of_several_files_are_drawn_together(tmp_path: Path) -> None:
    first = written(tmp_path / "latest.json", a_run())
    second = written(
        tmp_path / "kafka.json",
        results(case("kafka.spark.read", contestant("oncelog", "ours", 1e-7)), case("send.arrow.100B")),
    )  # fmt: skip
    html = tmp_path / "deep" / "report.html"
    assert main(["report", str(first), str(second), "--html", str(html)]) == 0
    text = words(parsed(html.read_text()))
    assert "title of kafka.spark.read" in text
    assert text.count("title of send.arrow.100B oncelog") == 1, "drawn from the first file alone"


def test_the_picture_is_drawn_from_the_file_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    file = written(tmp_path / "r.json", a_run())
    assert main(["report", str(file), "--png", str(tmp_path / "r.png")]) == 0
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    assert "r.png" in capsys.readouterr().err.replace("\n", "")


def test_without_matplotlib_there_is_a_page_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    file = written(tmp_path / "r.json", a_run())
    pages = ["--html", str(tmp_path / "r.html"), "--png", str(tmp_path / "r.png")]
    assert main(["report", str(file), *pages]) == 1
    assert (tmp_path / "r.html").exists()
    said = capsys.readouterr().err
    assert "no picture: matplotlib is not installed" in said
    assert "Traceback" not in said


def test_nothing_to_draw_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    file = written(tmp_path / "r.json", results(case("crc.x", contestant("oncelog", "ours", 1e-9))))
    assert main(["report", str(file), "--png", str(tmp_path / "r.png")]) == 1
    assert "nothing was measured that the picture shows" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        ("not json", "is not JSON"),
        ("[1, 2]", "is JSON, but not of a run"),
        ('{"results": []}', "is JSON, but not of a run"),
    ],
)
def test_a_file_that_holds_no_results_is_refused_in_a_sentence(
    tmp_path: Path, content: str | None, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(NotResultsError, match=re.escape(reason)):
        Document.read(path)
    assert main(["report", str(path)]) == 2
    assert reason in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "values", [[1.0], [0.0, 3.0], [1e-3, 5e6], [17.0, 18.0], [2.0, 2.0], [0.0]]
)
def test_an_axis_holds_all_its_values_and_has_marks(values: list[float]) -> None:
    axis = charts.Axis(values, 100.0, 500.0)
    for value in values:
        assert 100 <= axis.at(value) <= 500
    marks = axis.marks()
    assert 1 <= len(marks) <= 12
    assert all(100 <= axis.at(mark) <= 500 for mark in marks)


def test_the_table_is_the_same_from_the_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:  # fmt: skip
    assert main(["report", str(written(tmp_path / "r.json", a_run()))]) == 0
    shown = capsys.readouterr().out
    for part in ("title of send.python.100B", "20 ns/record", "missed by 33%", "How costs grow"):
        assert part in shown, part


def test_instructions_stand_beside_the_times(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data = a_run()
    data["results"][0]["contestants"][0]["instructions"] = 123.4
    assert main(["report", str(written(tmp_path / "r.json", data))]) == 0
    assert "oncelog 123" in capsys.readouterr().out
    text = words(parsed(html_report.page(document(data))))
    assert "instructions/record" in text
    assert " 123 " in text


def test_memory_is_less_or_more_but_not_faster() -> None:
    one = case(
        "idle.memory", contestant("oncelog", "ours", 1.0),
        contestant("LMDB", "peer", 4.0, ratio=4.0), contestant("SQLite", "peer", 0.5, ratio=0.5),
        unit="KiB",
    )  # fmt: skip
    text = words(parsed(html_report.page(document(results(one)))))
    assert "ours 4.00x less" in text
    assert "ours 2.00x more" in text


def test_a_run_of_an_older_suite_can_still_be_drawn() -> None:
    """Goal: results that are kept for a release stay readable.
    Method: take away what was added since: questions, medians, growth."""
    data: dict[str, Any] = copy.deepcopy(a_run())
    for name in ("questions", "skipped", "growth"):
        data.pop(name, None)
    for entry in data["results"]:
        for one in entry["contestants"]:
            one.pop("median", None)
    assert "In the clock" in html_report.page(document(data))
