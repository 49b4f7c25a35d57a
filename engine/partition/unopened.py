"""What can be known of a partition that nobody has opened: enough to leave it closed while nothing is to be done.

Duty         says, from names, sizes and one look into the oldest segment, whether retention or compaction may be due
Concurrency  any thread; two that look at once find the same
Crash        asked only of partitions that a clean stop has left, as no other's files can be taken at their word

A wrong "may be due" costs an opening. A wrong "is not" would keep records for ever, so whatever is unclear is a yes.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from ..base.disk import list_files
from ..base.errors import OncelogError
from ..log.log import LEFTOVER, NEVER
from ..segment.names import CLEANED, DELETED, LOG, SWAP, parse_file
from ..segment.segment import Segment, SegmentOptions
from .retention import DELETE, UNLIMITED, newest_ms

if TYPE_CHECKING:
    from .compaction import CompactionOptions
    from .retention import RetentionOptions

UNFINISHED: Final = (DELETED, CLEANED, SWAP, LEFTOVER)  # files of work that opening completes


class Unopened:
    """The segments of a partition as a clean stop left them, which they stay until it is opened."""

    def __init__(self, directory: str, sizes: dict[int, int], log_start_offset: int) -> None:
        self._directory = directory
        self._bases = tuple(sizes)
        self._sizes = tuple(sizes.values())
        self._start = max(log_start_offset, self._bases[0])
        self._newest_ms: int | None = None

    @classmethod
    def look(cls, directory: str, log_start_offset: int) -> Unopened | None:
        """What is in a directory; None where only opening it can tell."""
        try:
            names = list_files(directory, sized=LOG)
        except OSError:
            return None
        if any(name.endswith(UNFINISHED) for name in names):
            return None
        parsed = ((parse_file(name), size) for name, size in names.items())
        found = {at[0]: size for at, size in parsed if at is not None and at[1] == LOG}
        return cls(directory, dict(sorted(found.items())), log_start_offset) if found else None

    def may_expire(self, options: RetentionOptions, now_ms: int) -> bool:
        """False where retention has nothing to remove."""
        if len(self._bases) > 1 and self._bases[1] <= self._start:
            return True
        if DELETE not in options.cleanup_policy or not any(self._sizes):
            return False
        oldest = next(size for size in self._sizes if size)
        excess = sum(self._sizes) - options.retention_bytes
        if options.retention_bytes != UNLIMITED and excess >= oldest:
            return True
        if options.retention_ms == UNLIMITED:
            return False
        try:
            return now_ms - self._oldest_segment_ms() > options.retention_ms
        except (OncelogError, OSError):
            return True

    def _oldest_segment_ms(self) -> int:
        """The time of the newest record in the first segment that has any, which goes first. Read once."""
        if self._newest_ms is None:
            sizes = zip(self._bases, self._sizes, strict=True)
            base, size = next(pair for pair in sizes if pair[1])
            segment = Segment(self._directory, base, size, SegmentOptions())
            try:
                self._newest_ms = newest_ms(segment)
            finally:
                segment.close()
        return self._newest_ms

    def may_be_dirty(self, first_dirty: int | None, options: CompactionOptions) -> bool:
        """False where compaction has nothing to do, or not enough to begin; ``first_dirty`` is the checkpoint's."""
        start = self._start if first_dirty is None else max(first_dirty, self._start)
        sealed = zip(itertools.pairwise(self._bases), self._sizes, strict=False)
        dirty = sum(size for (_, following), size in sealed if following > start)
        if not dirty:
            return False
        if options.max_compaction_lag_ms < NEVER:
            return True  # it may have waited for too long
        sizes = zip(self._bases, self._sizes, strict=True)
        clean = sum(size for base, size in sizes if base < start)
        return dirty / (clean + dirty) > options.min_cleanable_dirty_ratio
