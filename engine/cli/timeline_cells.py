"""A timeline cut into columns: what a picture of any width shows in each lane and column.

One lane for each producer; those that do not fit share the last. A column stands for as many offsets as it has to,
and holds how many stretches of each outcome reach into it. Work and memory follow the rows and the picture, never
rows times columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..partition.timeline import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ..partition.timeline import Timeline


class Lane(NamedTuple):
    """One row of a picture."""

    label: str
    producer_id: int


class Lanes(NamedTuple):
    """The rows of a picture, and how each producer finds its own."""

    rows: list[Lane]
    producer_ids: NDArray[np.int64]  # sorted
    lanes: NDArray[np.int64]

    def of(self, producer_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The lane of each producer."""
        found: NDArray[np.int64] = self.lanes[np.searchsorted(self.producer_ids, producer_ids)]
        return found


def lanes_of(timeline: Timeline, names: Mapping[int, str], lanes_max: int) -> Lanes:
    """A lane for each producer, the first to write on top; beyond ``lanes_max`` they share the last one.

    ``names`` knows the transactional ids of producers.
    """
    producers = timeline.producers
    shown = producers if len(producers) <= lanes_max else producers[: lanes_max - 1]
    rows = [Lane(_label(producer, names), producer) for producer in shown.tolist()]
    if len(shown) < len(producers):
        rows.append(Lane(f"{len(producers) - len(shown):,} more producers", -2))
    order = np.argsort(producers)
    lane = np.minimum(np.arange(len(producers)), len(rows) - 1)
    return Lanes(rows, producers[order], lane[order])


def _label(producer_id: int, names: Mapping[int, str]) -> str:
    if producer_id < 0:
        return "no producer id"
    name = names.get(producer_id)
    return f"producer {producer_id}" if name is None else f"{name} ({producer_id})"


class Cells(NamedTuple):
    """Lanes times columns. ``runs`` counts stretches of each outcome; ``waits`` where a transaction is under way."""

    runs: NDArray[np.int64]  # outcome, lane, column
    waits: NDArray[np.bool_]
    commits: NDArray[np.bool_]
    aborts: NDArray[np.bool_]


class Scale(NamedTuple):
    """Offsets [start, end) over a number of columns."""

    start: int
    end: int
    columns: int

    @property
    def offsets_per_column(self) -> float:
        return max(self.end - self.start, 1) / self.columns

    def column(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """The column of each offset; those outside go to the nearest end."""
        at = (np.clip(offsets, self.start, self.end) - self.start) // self.offsets_per_column
        return np.minimum(at.astype(np.int64), self.columns - 1)

    def last_column(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """The last column of each offset, which may be wider than a column."""
        if self.offsets_per_column >= 1:
            return self.column(offsets)
        ends = (np.clip(offsets + 1, self.start, self.end) - self.start) / self.offsets_per_column
        return np.maximum(np.ceil(ends).astype(np.int64) - 1, 0)

    def column_of(self, offset: int) -> int:
        return int(self.column(np.array([offset], np.int64))[0])


def cells_of(timeline: Timeline, lanes: Lanes, scale: Scale) -> Cells:
    """What each cell of a picture shows."""
    shape = (len(lanes.rows), scale.columns)
    runs, transactions, markers = timeline.runs, timeline.transactions, timeline.markers
    counts = np.stack(
        [_painted(runs[runs["outcome"] == outcome], lanes, scale, shape) for outcome in Outcome]
    )
    waits = _painted(transactions, lanes, scale, shape) > 0
    commits, aborts = np.zeros(shape, bool), np.zeros(shape, bool)
    lane, column = lanes.of(markers["producer_id"]), scale.column(markers["offset"])
    is_commit = markers["is_commit"]
    commits[lane[is_commit], column[is_commit]] = True
    aborts[lane[~is_commit], column[~is_commit]] = True
    return Cells(counts, waits, commits, aborts)


def _painted(
    rows: NDArray[np.void], lanes: Lanes, scale: Scale, shape: tuple[int, int]
) -> NDArray[np.int64]:
    """How many rows cover each cell: +1 where one begins, -1 behind its end, summed up."""
    change = np.zeros((shape[0], shape[1] + 1), np.int64)
    lane = lanes.of(rows["producer_id"])
    np.add.at(change, (lane, scale.column(rows["first_offset"])), 1)
    last = np.maximum(scale.column(rows["first_offset"]), scale.last_column(rows["last_offset"]))
    np.add.at(change, (lane, last + 1), -1)
    return change.cumsum(axis=1)[:, :-1]
