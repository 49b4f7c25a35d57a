"""The timeline of a partition agrees with what consumers of a real broker have seen of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import oncelog
from oncelog.partition.timeline import Outcome, read_timeline
from tests.golden_cases import CASES, GOLDEN, expected

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from oncelog.partition.timeline import Timeline

PARTITIONS = [
    (case, name)
    for case in CASES
    if case not in ("killed", "metadata-snapshot")
    for name in expected(case)["partitions"]
    if not name.startswith("__")
]


def timeline_of(case: str, name: str) -> Timeline:
    topic, number = name.rsplit("-", 1)
    with oncelog.open(GOLDEN / case / "data", read_only=True) as log:
        return read_timeline(log.partition(topic, int(number)))


def offsets_of(runs: NDArray[np.void]) -> set[int]:
    return {
        offset
        for first, last in zip(
            runs["first_offset"].tolist(), runs["last_offset"].tolist(), strict=True
        )
        for offset in range(first, last + 1)
    }


@pytest.mark.parametrize(("case", "name"), PARTITIONS)
def test_what_is_committed_is_what_a_committed_reader_gets(case: str, name: str) -> None:
    """Goal: every outcome is right. Method: expand the stretches to offsets and compare with Kafka's consumers;
    compaction leaves holes in batches, so there a stretch may hold more offsets than records."""
    told: dict[str, Any] = expected(case)["partitions"][name]
    found = timeline_of(case, name)
    assert found.last_stable_offset == told["lastStableOffset"]
    assert found.high_watermark == told["highWatermark"]
    outcome = found.runs["outcome"]
    shown = offsets_of(found.runs[(outcome == Outcome.PLAIN) | (outcome == Outcome.COMMITTED)])
    hidden = offsets_of(found.runs[(outcome == Outcome.ABORTED) | (outcome == Outcome.OPEN)])
    everything = {record["offset"] for record in told["readUncommitted"]}
    committed = set(told["readCommittedOffsets"])
    assert committed <= shown
    assert not committed & hidden
    assert everything <= shown | hidden
    below = {offset for offset in everything if offset < told["lastStableOffset"]}
    assert below - committed <= hidden


@pytest.mark.parametrize(("case", "name"), PARTITIONS)
def test_rows_are_in_order_and_add_up(case: str, name: str) -> None:
    found = timeline_of(case, name)
    assert (np.diff(found.runs["first_offset"]) > 0).all()
    assert (np.diff(found.transactions["first_offset"]) > 0).all()
    assert (np.diff(found.markers["offset"]) > 0).all()
    for number, row in enumerate(found.transactions):
        own = found.runs[found.runs["transaction"] == number]
        assert own["records"].sum() == row["records"]
        assert (own["producer_id"] == row["producer_id"]).all()
        assert own["first_offset"][0] == row["first_offset"]
        if row["marker_offset"] >= 0:
            assert row["last_offset"] == row["marker_offset"]


def test_a_part_of_it_keeps_rows_that_reach_in() -> None:
    whole = timeline_of("txn-mixed", "mixed-0")
    part = whole.between(600, 750)
    assert (part.start_offset, part.end_offset) == (600, 750)
    assert part.high_watermark == whole.high_watermark
    assert (part.runs["last_offset"] >= 600).all()
    assert (part.runs["first_offset"] < 750).all()
    for run in part.runs:
        if run["transaction"] >= 0:
            assert part.transactions["producer_id"][run["transaction"]] == run["producer_id"]
            assert part.transactions["outcome"][run["transaction"]] == run["outcome"]


def test_an_empty_partition_has_an_empty_timeline(tmp_path: Path) -> None:
    with oncelog.open(tmp_path) as log:
        log.create_topic("empty")
    with oncelog.open(tmp_path, read_only=True) as log:
        found = read_timeline(log.partition("empty", 0))
    assert (
        len(found.runs)
        == len(found.transactions)
        == len(found.markers)
        == len(found.producers)
        == 0
    )


def test_it_is_read_beside_a_live_writer(tmp_path: Path) -> None:
    with oncelog.open(tmp_path) as log:
        log.create_topic("orders")
        with log.producer(transactional_id="t") as producer:
            with producer.transaction():
                producer.send("orders", b"kept")
            producer.begin_transaction()
            producer.send("orders", b"open")
            producer.flush()
            with oncelog.open(tmp_path, read_only=True) as reader:
                found = read_timeline(reader.partition("orders", 0))
            producer.abort_transaction()
    assert found.transactions["outcome"].tolist() == [Outcome.COMMITTED, Outcome.OPEN]
    assert found.last_stable_offset == 2
