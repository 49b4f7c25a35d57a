"""The driver is killed between any two steps of a commit, and the output is the input: once, whole, nothing lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from .kill_runs import KillRuns

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.timeout(600)  # seven starts of Spark
def test_a_driver_that_is_killed_anywhere_neither_loses_nor_doubles_nor_tears_a_batch(
    tmp_path: Path,
) -> None:
    """Goal: exactly once by force.
    Method: one stream, a driver for each step that dies there with kill -9 in another batch, then one that lives."""
    points = ("all-staged", "token-checked", "appended", "ended", "commit-logged")
    runs = KillRuns(tmp_path, files=len(points) + 1)
    for batch, point in enumerate(points):
        assert runs.run(point, batch) == -9
        is_in = point in ("ended", "commit-logged")
        assert runs.check() == batch + is_in, f"after {point}"
    assert runs.run() == 0
    assert sorted(runs.committed()) == runs.expected
    assert len(runs.leftovers()) <= 1, "only an attempt at the last batch may be left"
