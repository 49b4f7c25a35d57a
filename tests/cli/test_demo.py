"""``make demo`` runs and shows what it promises, here with fewer records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples import demo, exactly_once

if TYPE_CHECKING:
    import pytest


def test_the_demo_runs(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Goal: the first thing a newcomer runs works, and is clean in a pipe.
    Method: run it with few records; it proves by itself that what is read is what was written."""
    monkeypatch.setattr(demo, "RECORDS", 30_000)
    monkeypatch.setattr(demo, "GZIP_RECORDS", 10_000)
    monkeypatch.setattr(demo, "PYTHON_RECORDS", 10_000)
    demo.main()
    output = capfd.readouterr()
    assert "Traceback" not in output.err
    assert "\x1b" not in output.out
    for step in (
        "encode, none",
        "encode, gzip",
        "write the file",
        "scan headers",
        "Python records",
    ):
        assert step in output.out
    assert "checksums ok" in output.out
    assert "A flipped bit: checksum does not match the batch" in output.out
    assert "$ oncelog inspect --max 4 zstd.log" in output.out
    rows = [line.split() for line in output.out.splitlines()]
    assert ["mixed-0", "823", "704", "787", "407", "14", "yes"] in rows
    assert "$ oncelog verify kafka-data" in output.out
    assert "83,705 bytes: sound" in output.out
    assert output.out.count("\n") > 40


def test_transfers_balance_through_a_kill(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exactly_once, "RECORDS", 5_000)
    monkeypatch.setattr(exactly_once, "SECONDS", 1.0)
    exactly_once.main()
    output = capfd.readouterr()
    assert "Traceback" not in output.err
    assert ["lost", "0"] in [line.split() for line in output.out.splitlines()]
    assert "producer.send_arrow" in output.out
