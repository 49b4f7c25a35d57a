"""What a task does to the process that it runs in."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from oncelog.spark.workers import spare_what_is_loaded

from .logs import batch_reader, make_log, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def freezes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """One entry for each time that loaded objects were put out of the collector's sight."""
    found: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: found.append("frozen"))
    spare_what_is_loaded.cache_clear()
    yield found
    spare_what_is_loaded.cache_clear()


def test_a_worker_that_is_used_again_looks_at_what_it_has_loaded_once(
    tmp_path: Path, freezes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: Spark's collection after each task costs next to nothing, and what tasks leave is still collected.
    Method: several tasks in one process that calls itself Spark's; the collector is asked once."""
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    reader = batch_reader(make_log(tmp_path / "log", partitions=2, count=40), minPartitions=4)
    splits = reader.partitions()
    assert len(splits) > 1
    rows_of(reader, splits)
    assert freezes == ["frozen"]


def test_a_process_that_is_not_sparks_is_left_alone(
    tmp_path: Path, freezes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    reader = batch_reader(make_log(tmp_path / "log", partitions=1, count=40))
    rows_of(reader, reader.partitions())
    assert freezes == []
