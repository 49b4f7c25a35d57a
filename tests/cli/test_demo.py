"""``make demo`` runs and shows what it promises, here with fewer records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples import bank, demo

if TYPE_CHECKING:
    from pathlib import Path

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


def test_the_bank_balances_through_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Goal: the second half of the demo works; Spark has its own tests, so here it is not there.
    Method: run it; it proves by itself that the books are right."""
    monkeypatch.setattr(bank, "HOME", tmp_path / "demo")
    monkeypatch.setattr(bank, "spark_totals", lambda _: "not in this test")
    bank.main()
    output = capfd.readouterr()
    assert "Traceback" not in output.err
    assert "\x1b" not in output.out
    rows = [line.split() for line in output.out.splitlines()]
    assert any(row[:2] == ["consumer,", "read_committed"] and row[-1] == "0.00" for row in rows)
    assert any(row[:2] == ["consumer,", "read_uncommitted"] and row[-1] != "0.00" for row in rows)
    assert "The zombie is told: ProducerFencedError" in output.out
    assert any(row[:1] == ["teller-3"] and row[-1] == "Ongoing" for row in rows)
    assert "Without Spark: not in this test" in output.out
    assert "last stable offset ▼" in output.out
    assert (tmp_path / "demo" / "accounts.html").exists()
