"""Cluster metadata: what a Kafka broker knows of its topics, read so that its directory can be taken over.

File    __cluster_metadata-0/<offset>.log, and <end offset>-<epoch>.checkpoint: all that holds below an offset
Writer  Kafka's controller, never oncelog
Reader  the broker, once, when it adopts a directory; it keeps what it needs in a file of its own
Repair  a last batch that is torn never counted; other damage is refused, since guessing at topics costs data

A record's value is a frame: frame version uvarint (1), type uvarint, version uvarint, then the fields of that type in the
flexible form (base/fields.py). Types that are not named here say nothing about a single broker's topics, and are
passed over:

====  =========================  ===============================================================
type  record                     fields that are read
====  =========================  ===============================================================
   2  TopicRecord                name, topic_id uuid
   3  PartitionRecord            partition int32, topic_id, four arrays of int32, leader int32,
                                 leader_epoch int32
   4  ConfigRecord               resource type int8 (2 topic, 4 broker), resource, name, value
   5  PartitionChangeRecord      partition int32, topic_id; tag 1, a new leader, adds 1 to its
                                 leader epoch
   9  RemoveTopicRecord          topic_id
  12  FeatureLevelRecord         name, level int16; 0 takes the feature away
  15  ProducerIdsRecord          broker int32, broker_epoch int64, next_producer_id int64
  23  BeginTransactionRecord     what follows counts when 24 (end) comes, and never after 25 (abort)
====  =========================  ===============================================================
"""

from __future__ import annotations

import base64
import re
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from ..base.disk import exists, list_files, read_file
from ..base.errors import CorruptFileError, TruncatedBatchError, UnsupportedVersionError
from ..base.fields import UUID_BYTES, FieldReader
from ..log.checkpoint import META_PROPERTIES, read_properties
from ..segment.batch import Attributes, ControlType, control_record, records, scan_prefix
from ..segment.names import LOG, parse_file

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DIRECTORY: Final = "__cluster_metadata-0"
FRAME_VERSION: Final = 1

TOPIC: Final = 2
PARTITION: Final = 3
CONFIG: Final = 4
PARTITION_CHANGE: Final = 5
REMOVE_TOPIC: Final = 9
FEATURE_LEVEL: Final = 12
PRODUCER_IDS: Final = 15
BEGIN_TRANSACTION: Final = 23
END_TRANSACTION: Final = 24
ABORT_TRANSACTION: Final = 25
# The newest version of each that is known; all are flexible.
VERSIONS: Final = {
    TOPIC: 0,
    PARTITION: 2,
    CONFIG: 0,
    PARTITION_CHANGE: 2,
    REMOVE_TOPIC: 0,
    FEATURE_LEVEL: 0,
    PRODUCER_IDS: 0,
}
_TOPIC_RESOURCE: Final = 2
_BROKER_RESOURCE: Final = 4
_LEADER_TAG: Final = 1
_REPLICA_ARRAYS: Final = ("replicas", "isr", "removing replicas", "adding replicas")
_SNAPSHOT: Final = re.compile(r"([0-9]{20})-[0-9]{10}\.checkpoint")
_INT16: Final = struct.Struct(">h")
_LEADER: Final = struct.Struct(">ii")
_PRODUCER_IDS: Final = struct.Struct(">iqq")


class TopicInfo(NamedTuple):
    """A topic as the controller knows it."""

    topic_id: str
    partitions: int
    leader_epochs: dict[int, int]


class ClusterMetadata(NamedTuple):
    """What holds at the end of the metadata log. Configs are Kafka's texts; a broker's own go before the cluster's."""

    topics: dict[str, TopicInfo]
    topic_configs: dict[str, dict[str, str]]
    broker_configs: dict[str, str]
    next_producer_id: int
    features: dict[str, int]


def read_cluster_metadata(directory: str) -> ClusterMetadata | None:
    """What Kafka's controller left in a data directory, or None where it left nothing."""
    folder = f"{directory}/{DIRECTORY}"
    if not exists(folder):
        return None
    replay = _Replay()
    start = 0
    snapshots = sorted(name for name in list_files(folder) if _SNAPSHOT.fullmatch(name))
    if snapshots:
        start = int(snapshots[-1].partition("-")[0])
        _read_snapshot(f"{folder}/{snapshots[-1]}", replay)
    _read_log(folder, start, replay)
    properties = f"{directory}/{META_PROPERTIES}"
    node = read_properties(properties).get("node.id", "") if exists(properties) else ""
    return replay.metadata(node)


def _read_snapshot(path: str, replay: _Replay) -> None:
    """A snapshot is whole or it is none: Kafka gives it its name when all of it is on the device."""
    data = read_file(path)
    rows, _, error = scan_prefix(data, file=path)
    if error is not None:
        raise error
    _replay(data, rows, 0, path, replay)
    last = rows[-1:]
    if not len(last) or not int(last["attributes"][0]) & Attributes.CONTROL:
        raise CorruptFileError("the snapshot has no end", file=path)
    (record,) = records(data, last, include_control=True, file=path)
    if control_record(record.key, record.value).type is not ControlType.SNAPSHOT_FOOTER:
        raise CorruptFileError("the snapshot has no end", file=path)


def _read_log(folder: str, start: int, replay: _Replay) -> None:
    """The records from an offset on, in all segments."""
    bases = sorted(
        base for base, suffix in filter(None, map(parse_file, list_files(folder))) if suffix == LOG
    )
    if bases and bases[0] > start:
        raise CorruptFileError(
            f"the metadata log begins at {bases[0]} and nothing says what was before", file=folder
        )
    for base in bases:
        path = f"{folder}/{base:020d}{LOG}"
        data = read_file(path)
        rows, _, error = scan_prefix(data, file=path)
        if error is not None and not (base == bases[-1] and isinstance(error, TruncatedBatchError)):
            raise error
        _replay(data, rows, start, path, replay)


def _replay(data: bytes, rows: NDArray[np.void], start: int, path: str, replay: _Replay) -> None:
    for record in records(data, rows, start_offset=start, file=path):
        if record.value is not None:
            replay.frame(bytes(record.value), f"record {record.offset} of the metadata", path)


class _Replay:
    """The state that record after record makes. Used by one thread, for one reading."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # by topic id
        self._epochs: dict[str, dict[int, int]] = {}  # by topic id, then partition
        self._configs: dict[tuple[int, str], dict[str, str]] = {}
        self._features: dict[str, int] = {}
        self._next_producer_id = 0
        self._pending: list[tuple[int, FieldReader]] | None = None  # of an open transaction
        self._readers = {
            TOPIC: self._topic,
            PARTITION: self._partition,
            CONFIG: self._config,
            PARTITION_CHANGE: self._partition_change,
            REMOVE_TOPIC: self._remove_topic,
            FEATURE_LEVEL: self._feature_level,
            PRODUCER_IDS: self._producer_ids,
        }

    def frame(self, value: bytes, what: str, path: str) -> None:
        """Takes one record."""
        reader = FieldReader(value, what, file=path)
        frame_version = reader.uvarint("the frame version")
        kind = reader.uvarint("the type")
        version = reader.uvarint("the version")
        if frame_version != FRAME_VERSION:
            raise UnsupportedVersionError(f"{what} has frame version {frame_version} ({path})")
        if version > VERSIONS.get(kind, version):
            raise UnsupportedVersionError(
                f"{what} is of type {kind} and version {version}, and at most {VERSIONS[kind]} can be"
                f" read ({path})"
            )
        if kind == BEGIN_TRANSACTION:
            self._pending = []
        elif kind in (END_TRANSACTION, ABORT_TRANSACTION):
            pending, self._pending = self._pending or [], None
            for pending_kind, pending_reader in pending if kind == END_TRANSACTION else ():
                self._readers[pending_kind](pending_reader)
        elif kind in self._readers:
            if self._pending is None:
                self._readers[kind](reader)
            else:
                self._pending.append((kind, reader))

    def metadata(self, node: str) -> ClusterMetadata:
        """The result, for the broker of this node id."""
        topics = {
            name: TopicInfo(topic_id, len(self._epochs[topic_id]), self._epochs[topic_id])
            for topic_id, name in self._names.items()
        }
        of_topics = {
            name: config
            for (kind, name), config in self._configs.items()
            if kind == _TOPIC_RESOURCE and config
        }
        of_broker = dict(self._configs.get((_BROKER_RESOURCE, ""), {}))
        if node:
            of_broker |= self._configs.get((_BROKER_RESOURCE, node), {})
        return ClusterMetadata(topics, of_topics, of_broker, self._next_producer_id, self._features)

    def _topic(self, reader: FieldReader) -> None:
        name = reader.required_string("the topic's name", flexible=True)
        topic_id = _uuid(reader)
        self._names[topic_id] = name
        self._epochs[topic_id] = {}

    def _partition(self, reader: FieldReader) -> None:
        partition = reader.integer(4, "the partition")
        epochs = self._known_topic(reader)
        for field in _REPLICA_ARRAYS:
            reader.take(4 * max(reader.count(field, 4, flexible=True), 0), field)
        _, epoch = reader.unpack(_LEADER, "the leader and its epoch")
        epochs[partition] = epoch

    def _partition_change(self, reader: FieldReader) -> None:
        partition = reader.integer(4, "the partition")
        epochs = self._known_topic(reader)
        if partition not in epochs:
            raise reader.damage(f"it changes partition {partition}, which does not exist")
        if _LEADER_TAG in reader.tagged_fields():
            epochs[partition] += 1

    def _known_topic(self, reader: FieldReader) -> dict[int, int]:
        topic_id = _uuid(reader)
        if topic_id not in self._epochs:
            raise reader.damage(f"it names topic {topic_id}, which does not exist")
        return self._epochs[topic_id]

    def _config(self, reader: FieldReader) -> None:
        kind = reader.integer(1, "the resource type")
        resource = reader.required_string("the resource", flexible=True)
        name = reader.required_string("the option", flexible=True)
        value = reader.string("the value", flexible=True)
        config = self._configs.setdefault((kind, resource), {})
        if value is None:
            config.pop(name, None)
        else:
            config[name] = value

    def _remove_topic(self, reader: FieldReader) -> None:
        topic_id = _uuid(reader)
        name = self._names.pop(topic_id, None)
        if name is None:
            raise reader.damage(f"it removes topic {topic_id}, which does not exist")
        del self._epochs[topic_id]
        self._configs.pop((_TOPIC_RESOURCE, name), None)

    def _feature_level(self, reader: FieldReader) -> None:
        name = reader.required_string("the feature", flexible=True)
        (level,) = reader.unpack(_INT16, "the level")
        if level:
            self._features[name] = level
        else:
            self._features.pop(name, None)

    def _producer_ids(self, reader: FieldReader) -> None:
        _, _, self._next_producer_id = reader.unpack(_PRODUCER_IDS, "the producer ids")


def _uuid(reader: FieldReader) -> str:
    """A topic id as partition.metadata and Kafka's tools write it."""
    data = reader.take(UUID_BYTES, "the topic id")
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
