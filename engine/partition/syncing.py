"""Several partitions brought to the device together: it serves many files in little more than the time of one.

Duty         makes the syncs of a group coincide. A promise rests on each partition's own ``sync_to`` alone, which after
             this returns at once, or says what went wrong.
Concurrency  any thread; a partition that another thread is syncing already is left to ``sync_to``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .._native import syncing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .group_commit import Unsynced
    from .partition import Partition


def sync_together(ends: Mapping[Partition, int]) -> None:
    """Syncs each partition up to an offset, as far as that goes; who needs it asks the partition."""
    begun: dict[Partition, Unsynced] = {}
    errors: dict[int, int] = {}
    try:
        for partition, end in ends.items():
            unsynced = partition.begin_sync(end)
            if unsynced is not None:
                begun[partition] = unsynced
        descriptors = [one for unsynced in begun.values() for one in unsynced.descriptors]
        errors = dict(zip(descriptors, syncing.sync_together(descriptors), strict=True))
    finally:  # whatever happens: who waits for a partition would wait for ever
        for partition in ends:
            unsynced = begun.get(partition)
            if unsynced is None:
                partition.end_sync(None)
                continue
            error, is_known = None, True
            for descriptor in unsynced.descriptors:
                number = errors.get(descriptor)
                if number is None:
                    is_known = False
                elif number and error is None:
                    error = OSError(number, os.strerror(number))
            partition.end_sync(unsynced, error, is_known=is_known)
