"""Kafka's tools, broker and clients beside ours; run with ONCELOG_INTEROP=1, or alone as `make interop`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from interop.__main__ import main
from interop.kafka import missing

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(os.environ.get("ONCELOG_INTEROP") != "1", reason="ONCELOG_INTEROP is not 1")
def test_a_real_kafka_reads_what_we_write_and_we_what_it_leaves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: our files are Kafka's files.
    Method: DumpLogSegments on each; a broker on our directory after a close and after a kill, its consumers and
    GetOffsetShell beside our reader; its directory read by us."""
    if lacks := missing():
        pytest.skip(", ".join(lacks))
    words = ["--keep", str(tmp_path)]
    if jars := os.environ.get("INTEROP_JARS"):
        words += ["--jars", jars]
    assert main(words) == 0, capsys.readouterr().err
