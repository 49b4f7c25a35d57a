"""A topic's config and a broker's, by Kafka's names, as the options of the parts that obey them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..log.log import LogOptions
from ..partition.partition import PartitionOptions
from ..partition.retention import COMPACT, RetentionOptions
from ..segment.compression import LEVEL_OPTIONS, Codec
from ..segment.segment import SegmentOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..partition.cleaner import CleanerOptions
    from ..partition.compaction import CompactionOptions

# In "fsync" durability files are made longer than their logs, so that a sync need not write their size as well.
BYTES_AHEAD: Final = 1 << 20


def partition_options(
    config: Mapping[str, Any], *, producer_id_expiration_ms: int, is_synced: bool
) -> PartitionOptions:
    """How a partition is written."""
    segment_bytes = config.get("internal.segment.bytes") or config["segment.bytes"]
    name = config["compression.type"]
    codec = None if name == "producer" else _codec(name)
    level_option = None if codec is None else LEVEL_OPTIONS.get(codec)
    return PartitionOptions(
        LogOptions(
            SegmentOptions(
                segment_bytes,
                config["segment.index.bytes"],
                config["index.interval.bytes"],
                BYTES_AHEAD if is_synced else 0,
            ),
            config["segment.ms"],
            config["segment.jitter.ms"],
            config["flush.messages"],
            config["flush.ms"],
        ),
        max_message_bytes=config["max.message.bytes"],
        is_compacted=COMPACT in config["cleanup.policy"],
        uses_log_append_time=config["message.timestamp.type"] == "LogAppendTime",
        timestamp_before_max_ms=config["message.timestamp.before.max.ms"],
        timestamp_after_max_ms=config["message.timestamp.after.max.ms"],
        compression=codec,
        producer_id_expiration_ms=producer_id_expiration_ms,
        is_synced_on_roll=is_synced,
        compression_level=None if level_option is None else config[level_option],
    )


def _codec(name: str) -> Codec:
    return Codec.NONE if name == "uncompressed" else Codec.of(name)


def retention_options(config: Mapping[str, Any]) -> RetentionOptions:
    """What a partition keeps."""
    return RetentionOptions(
        frozenset(config["cleanup.policy"]), config["retention.ms"], config["retention.bytes"]
    )


def compaction_options(config: Mapping[str, Any]) -> CompactionOptions | None:
    """How a partition is compacted; None if it is not."""
    if COMPACT not in config["cleanup.policy"]:
        return None
    from ..partition.compaction import CompactionOptions  # for those who compact

    return CompactionOptions(
        delete_retention_ms=config["delete.retention.ms"],
        min_compaction_lag_ms=config["min.compaction.lag.ms"],
        max_compaction_lag_ms=config["max.compaction.lag.ms"],
        min_cleanable_dirty_ratio=config["min.cleanable.dirty.ratio"],
    )


def cleaner_options(config: Mapping[str, Any]) -> CleanerOptions:
    """What a broker's cleaner may use, by the broker's options."""
    from ..partition.cleaner import CleanerOptions  # for those who compact

    return CleanerOptions(
        dedupe_buffer_size=config["log.cleaner.dedupe.buffer.size"],
        io_buffer_load_factor=config["log.cleaner.io.buffer.load.factor"],
    )
