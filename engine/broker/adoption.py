"""Taking over a directory that a Kafka broker wrote.

A directory without our metadata log is new, or someone else's. The second is written to only when told so: then topic
ids, configs and the next producer id come from Kafka's ``__cluster_metadata-0``. Where that is missing, topics are
those whose directories are here, their configs are not known (so nothing of them is deleted or compacted), and
producer ids go on above every id that is found.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ..base.config import TOPIC, check_options
from ..base.disk import exists, list_directories
from ..base.errors import (
    InvalidConfigError,
    InvalidRequestError,
    InvalidTopicError,
    KafkaStorageError,
)
from ..log.checkpoint import CLEAN_SHUTDOWN, META_PROPERTIES, write_properties
from ..partition.partition import Isolation
from ..segment.batch import records
from ..segment.names import parse_directory
from .metadata_log import is_owned
from .topics import PREFIX, TRANSACTION_STATE, new_topic_id
from .txn_records import decode_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..base.disk import Disk
    from ..partition.data_directory import DataDirectory
    from ..partition.partition import Partition
    from .cluster_metadata import ClusterMetadata

logger = logging.getLogger("oncelog.broker")


def check_ownership(path: str) -> None:
    """Refuses to write to a directory that another program made. It is only looked at."""
    if not exists(path) or is_owned(path):
        return
    if any(exists(f"{path}/{name}") for name in (META_PROPERTIES, CLEAN_SHUTDOWN)) or any(
        _is_partition(name) for name in list_directories(path)
    ):
        raise InvalidRequestError(
            f"{path} was written by a Kafka broker: open it with read_only=True, or with adopt=True to write to it "
            "from now on"
        )


def complete_identity(path: str, disk: Disk, node_id: int, now_ms: int) -> None:
    """Writes down whose directory this is, where nobody has: a Kafka broker starts on no other.

    After the first fact of ours: a directory with this file alone is a Kafka broker's.
    """
    file = f"{path}/{META_PROPERTIES}"
    if exists(file):
        return
    pairs = {
        "node.id": str(node_id),
        "directory.id": new_topic_id(),
        "version": "1",
        "cluster.id": new_topic_id(),
    }
    try:
        write_properties(disk, file, pairs, now_ms)
    except OSError as error:
        raise KafkaStorageError(f"{file}: {error}") from error


def _is_partition(directory: str) -> bool:
    try:
        parse_directory(directory)
    except InvalidTopicError:
        return False
    return True


def adopted_topics(
    data: DataDirectory, cluster: ClusterMetadata | None, internal_counts: Mapping[str, int]
) -> dict[str, Any]:
    """What is known of the topics whose partitions are here, as facts of the metadata log.

    The hash that finds a coordinator's partition goes over all of them, also those that were never made.
    """
    numbers: dict[str, list[int]] = {}
    for key in data.partitions:
        numbers.setdefault(key.topic, []).append(key.partition)
    for name in numbers.keys() & internal_counts.keys():
        known = None if cluster is None else cluster.topics.get(name)
        count = internal_counts[name] if known is None else known.partitions
        numbers[name] = list(range(max(count, numbers[name][-1] + 1)))
    return {
        PREFIX + name: _topic_fact(data, cluster, name, partitions)
        for name, partitions in numbers.items()
    }


def adopted_counters(data: DataDirectory, cluster: ClusterMetadata | None) -> dict[str, Any]:
    """Leader epoch and producer ids to go on from. All partitions are opened for it, and recovered if need be."""
    partitions = [data.get(key) for key in data.partitions]
    epochs = [partition.epochs.latest for partition in partitions]
    if cluster is not None:
        epochs += [
            epoch for topic in cluster.topics.values() for epoch in topic.leader_epochs.values()
        ]
    return {
        "leader_epoch": max(epochs, default=-1),
        "producer_ids": _next_producer_id(partitions, cluster),
    }


def _topic_fact(
    data: DataDirectory, cluster: ClusterMetadata | None, name: str, partitions: list[int]
) -> dict[str, Any]:
    known = None if cluster is None else cluster.topics.get(name)
    found = next((data.topic_id(key) for key in data.partitions if key.topic == name), None)
    config = {} if cluster is None or known is None else cluster.topic_configs.get(name, {})
    return {
        "topic_id": known.topic_id if known else found or new_topic_id(),
        "partitions": partitions,
        "config": _known_options(name, config),
        "is_config_known": known is not None,
        "is_deleting": False,
    }


def _known_options(topic: str, config: dict[str, str]) -> dict[str, Any]:
    """The options that mean something here; others are named in the log and left out."""
    kept: dict[str, Any] = {}
    for name, value in config.items():
        try:
            kept |= check_options(TOPIC, {name: value})
        except InvalidConfigError as error:
            logger.warning("topic %s: %s=%s is left out: %s", topic, name, value, error)
    return kept


def _next_producer_id(partitions: list[Partition], cluster: ClusterMetadata | None) -> int:
    if cluster is not None:
        return cluster.next_producer_id
    largest = -1
    for partition in partitions:
        for segment in partition.log.segments:
            for rows in segment.rows():
                largest = max(largest, int(rows["producer_id"].max()))
        if partition.key.topic == TRANSACTION_STATE:
            largest = max(largest, _largest_coordinated(partition))
    return largest + 1


def _largest_coordinated(partition: Partition) -> int:
    """The largest producer id that a coordinator wrote down, whether or not data was written with it."""
    largest = -1
    for window in partition.windows(
        partition.log_start_offset, partition.log_end_offset, Isolation.READ_UNCOMMITTED
    ):
        for record in records(window.segment.view(), window.rows):
            if record.value is not None:
                value = decode_value(record.value)
                largest = max(largest, value.producer_id, value.next_producer_id)
    return largest
