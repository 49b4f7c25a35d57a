"""Retention: whole segments that are too old, too many bytes, or below the log start are removed.

Only sealed segments go. An active segment of which everything has expired is sealed first, so that it can go, too.
Nothing at or above the high watermark is removed, and nothing because an option was not known: there are no
defaults here.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..base.disk import modified_ms
from ..segment.names import LOG

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..segment.segment import Segment
    from .partition import Partition

DELETE: Final = "delete"
COMPACT: Final = "compact"
UNLIMITED: Final = -1


@dataclass(frozen=True)
class RetentionOptions:
    """What a partition keeps; names are those of Kafka's topic options, and -1 is no limit."""

    cleanup_policy: frozenset[str]
    retention_ms: int
    retention_bytes: int

    def __post_init__(self) -> None:
        if not self.cleanup_policy <= {DELETE, COMPACT}:
            raise ValueError(
                f"cleanup.policy is delete, compact, both or none, not {sorted(self.cleanup_policy)}"
            )
        if self.retention_ms < UNLIMITED or self.retention_bytes < UNLIMITED:
            raise ValueError("retention.ms and retention.bytes are -1 (no limit) or more")


def apply_retention(partition: Partition, options: RetentionOptions, now_ms: int) -> int:
    """Removes what the options no longer keep; returns how many segments went."""
    with partition.lock:
        removed = partition.remove_segments_below(partition.log_start_offset)
        if DELETE not in options.cleanup_policy:
            return removed
        if options.retention_bytes != UNLIMITED:
            removed += _remove_first(partition, _over_size(partition, options), now_ms)
        if options.retention_ms != UNLIMITED:
            removed += _remove_first(partition, _expired(options, now_ms), now_ms)
        return removed


def _over_size(partition: Partition, options: RetentionOptions) -> Callable[[Segment], bool]:
    """Whether the log is still at or over its limit without a segment and those asked about before."""
    excess = partition.log.size - options.retention_bytes

    def goes(segment: Segment) -> bool:
        nonlocal excess
        if excess < segment.size:
            return False
        excess -= segment.size
        return True

    return goes


def _expired(options: RetentionOptions, now_ms: int) -> Callable[[Segment], bool]:
    return lambda segment: now_ms - newest_ms(segment) > options.retention_ms


def newest_ms(segment: Segment) -> int:
    """The largest timestamp in a segment; where its records have none, the time its file was last written."""
    timestamp = segment.max_timestamp
    return timestamp if timestamp >= 0 else modified_ms(segment.path(LOG))


def _remove_first(partition: Partition, goes: Callable[[Segment], bool], now_ms: int) -> int:
    """Removes segments from the start on for as long as they may and shall go."""
    segments, high_watermark = partition.log.segments, partition.high_watermark
    ends = [following.base_offset for following in segments[1:]] + [partition.log_end_offset]
    going = list(
        itertools.takewhile(
            lambda pair: pair[1] <= high_watermark and goes(pair[0]),
            # An empty active segment has nothing to give up.
            ((segment, end) for segment, end in zip(segments, ends, strict=True) if segment.size),
        )
    )
    if not going:
        return 0
    if going[-1][0] is segments[-1]:
        partition.roll(now_ms)
    partition.delete_records(going[-1][1])
    return len(going)
