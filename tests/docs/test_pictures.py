"""The README's pictures are made by the tools they show, and the recording of the demo is one of today's demo."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_timeline_in_the_docs_is_what_the_command_draws(tmp_path: Path) -> None:
    """Goal: no picture from yesterday. Method: draw it again and compare the pixels; fonts belong to the library's
    version, so another version is not compared."""
    pytest.importorskip("matplotlib")
    from matplotlib import image

    build = runpy.run_path(str(DOCS / "build_pictures.py"))
    build["draw_timeline"](tmp_path / "timeline.png")
    drawn, kept = (
        image.imread(path) for path in (tmp_path / "timeline.png", DOCS / "images" / "timeline.png")
    )
    assert drawn.shape == kept.shape
    assert abs(drawn - kept).mean() < 0.02


def test_the_recording_tells_the_story() -> None:
    text = (DOCS / "demo.txt").read_text()
    for promise in (
        "killed (kill -9)",
        "ProducerFencedError",
        "read_uncommitted",
        "last stable offset ▼",
        "Spark",
    ):
        assert promise in text
    assert "Traceback" not in text
    assert "\x1b" not in text


def test_erased_progress_is_not_part_of_a_recording() -> None:
    plain = runpy.run_path(str(DOCS / "record_demo.py"))["plain"]
    screen = "one\r\n\r\x1b[2Kbar 10%\r\x1b[2Kbar 90%\r\n\r\x1b[1A\x1b[2K\x1b[32mtwo\x1b[0m\r\nold\rn\r\n"
    assert plain(screen) == "one\ntwo\nnld\n"
