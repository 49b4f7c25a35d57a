"""The streaming reader: each trigger reads up to the last stable offsets of one moment, and a replay reads the same.

Duty         tells Spark how far the log is, and cuts what lies between two such answers into tasks.
Concurrency  Spark keeps one of these in one process of the driver and asks it one thing at a time; tasks have copies.
Crash        nothing is kept here: Spark's checkpoint has the offsets, and what lies below a last stable offset does
             not change any more.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final, cast

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from .offsets import Planner, from_json, lost, name_of, to_json
from .source_options import Place
from .speaking import plainly
from .splits import open_log, plan, read_split

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from .offsets import Offsets
    from .source_options import Key, SourceOptions
    from .splits import Split

    Kept = dict[str, dict[str, int]]  # offsets in Spark's checkpoint


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What Spark asks on the driver, trigger by trigger, and in tasks (read)."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._target: Offsets | None = None  # where a query ends that reads what is there now
        self._seen: Offsets | None = None  # how far the log was when it was last asked
        self._triggered_s: float | None = None

    # ------------------------------------------------------------ how far

    @plainly
    def initialOffset(self) -> Kept:  # noqa: N802
        options = self._options
        with open_log(options.path) as log:
            planner = Planner(log, options)
            place = options.starting or Place("startingOffsets", word="latest")
            found = to_json(planner.resolve(place, planner.assigned(), is_start=True))
        return found | beginning(found)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Tells Spark that there is a limit. It knows one at a time, so that what it is lies in the options."""
        if self._options.offsets_per_trigger_max is not None:
            return ReadMaxRows(self._options.offsets_per_trigger_max)
        if self._options.offsets_per_trigger_min is not None:
            return ReadMinRows(self._options.offsets_per_trigger_min)
        return ReadAllAvailable()

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with open_log(self._options.path) as log:
            planner = Planner(log, self._options)
            self._target = planner.latest(planner.assigned(is_complete=False))

    @plainly
    def latestOffset(self, start: Kept, limit: ReadLimit) -> Kept:  # noqa: N802
        begin, first = from_json(start), kept_beginning(start)
        with open_log(self._options.path) as log:
            planner = Planner(log, self._options)
            keys = planner.assigned(is_complete=False)
            self._report_gone(set(begin) - set(keys))
            begin |= self._begin_of_new(planner, [key for key in keys if key not in begin])
            seen = planner.latest(keys)
        self._seen = seen
        if self._target is not None:
            # What was made or written since is not for this query.
            keys = [key for key in keys if key in self._target or name_in(start, key)]
            seen = {key: min(seen[key], self._target.get(key, begin[key])) for key in keys}
        for key in keys:
            if seen[key] < begin[key]:
                self._report_shorter(key, begin[key], seen[key])
        begin = {key: begin[key] for key in keys}
        if not isinstance(limit, ReadAllAvailable):
            if self._is_too_little(begin, seen):
                return start
            if self._options.offsets_per_trigger_max is not None:
                seen = limited(begin, seen, self._options.offsets_per_trigger_max)
        if seen == from_json(start):
            return start  # the same text, or Spark would plan a batch of nothing
        return to_json(seen) | (beginning(to_json(first)) if first == from_json(start) else {})

    def reportLatestOffset(self) -> Kept | None:  # noqa: N802
        return None if self._seen is None else to_json(self._seen)

    def _is_too_little(self, begin: Offsets, seen: Offsets) -> bool:
        """Whether a trigger waits for minOffsetsPerTrigger, which it does for maxTriggerDelay at most."""
        least, now_s = self._options.offsets_per_trigger_min, time.monotonic()
        if least is None or self._target is not None:
            return False
        count = sum(max(seen[key] - begin[key], 0) for key in seen)
        waited = None if self._triggered_s is None else 1000 * (now_s - self._triggered_s)
        if waited is not None and count < least and waited < self._options.trigger_delay_ms_max:
            return True
        self._triggered_s = now_s
        return False

    # ------------------------------------------------------------ what was lost

    def _report_gone(self, gone: Iterable[Key]) -> None:
        names = ", ".join(name_of(key) for key in sorted(gone))
        if names:
            lost(
                self._options, f"{names} was read before and is gone, with what was not read of it"
            )

    def _report_shorter(self, key: Key, begin: int, end: int) -> None:
        lost(
            self._options,
            f"{name_of(key)} was read up to offset {begin} and now ends at {end}: it was deleted and made anew",
        )

    def _begin_of_new(self, planner: Planner, keys: list[Key]) -> Offsets:
        """Partitions that came since are read from their start."""
        found = planner.earliest(keys)
        for key, first in found.items():
            if first > 0:
                what = f"{name_of(key)} is new and starts at {first}: offsets 0 to {first - 1} are gone"
                lost(self._options, what)
        return found

    # ------------------------------------------------------------ tasks

    @plainly
    def partitions(self, start: Kept, end: Kept) -> list[Split]:
        begins, ends = kept_beginning(end) or from_json(start), from_json(end)
        with open_log(self._options.path) as log:
            planner = Planner(log, self._options)
            here = set(planner.assigned(is_complete=False))
            self._report_gone({key for key in ends if key not in here} | (set(begins) - set(ends)))
            new = [key for key in ends if key in here and key not in begins]
            begins |= self._begin_of_new(planner, new)
            ranges = {
                key: self._range(planner, key, begins[key], ends[key])
                for key in ends
                if key in here
            }
            return plan(log, ranges, self._options)

    def _range(self, planner: Planner, key: Key, begin: int, end: int) -> tuple[int, int]:
        """The part of a range that is there. Nothing of it may be missing, unless the options allow it."""
        first, last = planner.bounds(key)
        if begin > end or last < end:
            self._report_shorter(key, max(begin, end), last)
        if begin < min(first, end):
            what = f"offsets {begin} to {min(first, end) - 1} of {name_of(key)} are gone"
            lost(self._options, what)
        return max(begin, first), min(end, last)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_split(cast("Split", partition), self._options, self._schema)


# Kafka's source keeps the offsets at which a new query begins in a file of its own. A Python source has no place for
# them, and is asked anew when the first batch is run again: "latest" would then be another place, and what lies between
# would be lost. So the end of the first batch says also where that batch begins, under names that no topic can have.
BEGINNING: Final = "from:"


def beginning(offsets: Kept) -> Kept:
    """Offsets as the beginning of a query, to be kept beside its first end."""
    return {BEGINNING + topic: numbers for topic, numbers in offsets.items()}


def kept_beginning(kept: Kept) -> Offsets:
    """Where the query begins, if these offsets say so; none otherwise."""
    return from_json(
        {
            topic.removeprefix(BEGINNING): numbers
            for topic, numbers in kept.items()
            if topic.startswith(BEGINNING)
        }
    )


def name_in(kept: Mapping[str, Mapping[str, int]], key: Key) -> bool:
    return str(key[1]) in kept.get(key[0], {})


def limited(begin: Mapping[Key, int], end: Mapping[Key, int], count: int) -> Offsets:
    """Ends that are about ``count`` offsets past the beginning in all, shared out by how much each partition has.

    Each partition that has something gets at least one, so that none waits for ever; that is Kafka's rule.
    """
    sizes = {key: end[key] - begin[key] for key in end}
    total = sum(size for size in sizes.values() if size > 0)
    if total <= count:
        return dict(end)
    found = {}
    for key, size in sizes.items():
        share = count * size / total
        share = math.ceil(share) if share < 1 else math.floor(share)
        found[key] = min(end[key], begin[key] + max(share, 0))
    return found
