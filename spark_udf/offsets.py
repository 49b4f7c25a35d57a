"""What a read consists of: which partitions, from which offset to which. Decided on the driver, once for each read.

Ends are last stable offsets (high watermarks where a read shows everything), so that what lies between two offsets is
decided for good and a second look finds the same records.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from oncelog import errors

from .source_options import EARLIEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from oncelog import LogDirectory

    from .source_options import Key, Place, SourceOptions

logger = logging.getLogger("oncelog.spark")
# Kafka's own topics, which a pattern does not mean; whoever wants them names them.
INTERNAL: Final = ("__consumer_offsets", "__transaction_state", "__share_group_state")

Offsets = dict[tuple[str, int], int]


class DataLossError(errors.OffsetOutOfRangeError):
    """Records that a query was to read are gone."""

    advice = (
        "They were deleted by retention or with their topic, or the directory is not the one that was read before. "
        "To go on without them set the option failOnDataLoss to false"
    )


def name_of(key: Key) -> str:
    return f"{key[0]}-{key[1]}"


class Planner:
    """Answers for one log, opened for as long as one question takes."""

    def __init__(self, log: LogDirectory, options: SourceOptions) -> None:
        self._log = log
        self._options = options
        self._bounds: dict[Key, tuple[int, int]] = {}

    def assigned(self, *, is_complete: bool = True) -> list[Key]:
        """The partitions that the options name. ``is_complete``: those that are named must be there."""
        topics, options = self._log.topics(), self._options
        if options.assign is not None:
            if is_complete:
                for topic, partition in options.assign:
                    self._check(topic, partition)
            return [key for key in options.assign if key[1] in topics.get(key[0], ())]
        if options.pattern is not None:
            names = [name for name in topics if name not in INTERNAL]
            chosen = [name for name in names if options.pattern.fullmatch(name)]
        else:
            chosen = options.subscribe or []
            if is_complete:
                for name in chosen:
                    self._check(name, None)
        return [(name, number) for name in sorted(chosen) for number in topics.get(name, ())]

    def _check(self, topic: str, partition: int | None) -> None:
        topics = self._log.topics()
        if topic not in topics:
            known = ", ".join(name for name in topics if name not in INTERNAL) or "none"
            raise errors.UnknownTopicOrPartitionError(
                f"{self._log.path} has no topic {topic!r}, only {known}"
            )
        if partition is not None and partition not in topics[topic]:
            raise errors.UnknownTopicOrPartitionError(
                f"topic {topic!r} of {self._log.path} has partitions {topics[topic]}, not {partition}"
            )

    def bounds(self, key: Key) -> tuple[int, int]:
        """First offset and end of a partition, as of the first time that somebody asks."""
        if key not in self._bounds:
            self._bounds[key] = self._log.bounds(
                *key, isolation_level=self._options.isolation_level
            )
        return self._bounds[key]

    def earliest(self, keys: Iterable[Key]) -> Offsets:
        return {key: self.bounds(key)[0] for key in keys}

    def latest(self, keys: Iterable[Key]) -> Offsets:
        return {key: self.bounds(key)[1] for key in keys}

    def resolve(self, place: Place, keys: list[Key], *, is_start: bool) -> Offsets:
        """The offset that a place means in each partition."""
        if place.word:
            return self.earliest(keys) if place.word == "earliest" else self.latest(keys)
        if place.offsets is not None:
            _check_complete(place, place.offsets, keys)
            return {key: self._offset(place, key, place.offsets[key]) for key in keys}
        if place.timestamps_ms is not None:
            _check_complete(place, place.timestamps_ms, keys)
            times = dict(place.timestamps_ms)
        else:
            times = dict.fromkeys(keys, place.timestamp_ms or 0)
        return {key: self._offset_at(place, key, times[key], is_start=is_start) for key in keys}

    def _offset(self, place: Place, key: Key, wanted: int) -> int:
        first, end = self.bounds(key)
        if wanted in (EARLIEST, LATEST):
            return first if wanted == EARLIEST else end
        if first <= wanted <= end:
            return wanted
        sentence = f"{place.option}: {name_of(key)} has offsets {first} to {end}, not {wanted}"
        if self._options.fails_on_data_loss:
            raise errors.OffsetOutOfRangeError(
                f"{sentence}. Give one of these, or set failOnDataLoss to false to read what is there"
            )
        logger.warning("%s: %s is read instead", sentence, min(max(wanted, first), end))
        return min(max(wanted, first), end)

    def _offset_at(self, place: Place, key: Key, timestamp_ms: int, *, is_start: bool) -> int:
        found = self._log.offset_for_timestamp(
            *key, timestamp_ms, isolation_level=self._options.isolation_level
        )
        if found is not None:
            return found
        if is_start and not self._options.is_latest_without_match:
            raise ValueError(
                f"{place.option}: {name_of(key)} has no record at {timestamp_ms} ms or later. To start such a "
                "partition at its end set startingOffsetsByTimestampStrategy to latest"
            )
        return self.bounds(key)[1]


def _check_complete(place: Place, given: Mapping[Key, Any], keys: list[Key]) -> None:
    if set(given) == set(keys):
        return
    missing = ", ".join(name_of(key) for key in sorted(set(keys) - set(given)))
    foreign = ", ".join(name_of(key) for key in sorted(set(given) - set(keys)))
    words = [f"{missing} is missing"] * bool(missing) + [f"{foreign} is not read"] * bool(foreign)
    hint = "; -1 means the latest offset, -2 the earliest" if place.offsets is not None else ""
    raise ValueError(
        f"{place.option} must name every partition that is read and no other: {', '.join(words)}{hint}"
    )


def check_order(
    ranges: Mapping[Key, tuple[int, int]], options: SourceOptions, planner: Planner
) -> None:
    """A range that ends before it begins was not meant. A start by time where nothing is so late is the log's end."""
    by_time = options.starting is not None and not (
        options.starting.word or options.starting.offsets
    )
    for key, (start, end) in sorted(ranges.items()):
        if start > end and not (by_time and start == planner.bounds(key)[1]):
            raise ValueError(
                f"{name_of(key)} would be read from offset {start} to {end}, which lies before it: look at "
                "the options that say where to start and where to end"
            )


def lost(options: SourceOptions, sentence: str) -> None:
    """Records are gone that were to be read: an error, or a warning where the options want that."""
    if options.fails_on_data_loss:
        raise DataLossError(sentence)
    logger.warning("%s; going on, as failOnDataLoss is false", sentence)


# ---------------------------------------------------------------- as Spark keeps them


def to_json(offsets: Mapping[Key, int]) -> dict[str, dict[str, int]]:
    """Offsets as Kafka's JSON has them. Sorted: Spark compares them as text."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def from_json(kept: Mapping[str, Mapping[str, int]]) -> Offsets:
    """The offsets in Kafka's JSON; a name with a colon is no topic's, and stands for something else."""
    return {
        (topic, int(partition)): offset
        for topic, numbers in kept.items()
        if ":" not in topic
        for partition, offset in numbers.items()
    }
