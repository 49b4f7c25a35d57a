"""A broker that is only looked at: what a directory says of topics, groups and transactions, without writing to it.

Duty         answers the verbs that look, with the same replays and the same code as the broker itself; the verbs that
             change something are refused. Ours or a Kafka broker's directory, beside a live writer or without one.
Concurrency  any thread, any number of processes. Topics are those of the moment of opening, groups and transactions those
             of the first question about them; partitions are looked at anew each time.
Crash        nothing is written, so nothing can be left half done. A directory that was not stopped cleanly is shown as
             recovery would leave it; transactions that opening would end are still open here.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from ..base import clock
from ..base.config import BROKER, read_options, topic_defaults
from ..base.disk import exists
from ..base.errors import (
    InvalidRequestError,
    NotLeaderOrFollowerError,
    UnknownTopicOrPartitionError,
)
from ..log.checkpoint import META_PROPERTIES, read_properties
from ..segment.names import TopicPartition
from .adoption import adopted_topics
from .broker import Broker
from .cluster_metadata import read_cluster_metadata
from .config_verbs import ALTERED
from .metadata_log import is_owned, read_facts
from .state_log import StateLog
from .topics import CONSUMER_OFFSETS, INTERNAL, TRANSACTION_STATE, Topics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..partition.data_directory import DataDirectory
    from ..partition.partition import Partition
    from .metadata_log import MetadataLog

NO_TOPIC_ID: Final = "A" * 22  # Kafka's id of zeros: the directory does not tell the topic's
# The verbs that change something; what they would do here is refused before anything is looked at.
WRITING: Final = (
    *("create_topics", "create_partitions", "delete_topics", "delete_records"),
    *("incremental_alter_configs", "alter_broker_configs"),
    *("join_group", "sync_group", "heartbeat", "leave_group"),
    *("offset_commit", "txn_offset_commit", "offset_delete", "delete_groups"),
    *("init_producer_id", "add_partitions_to_txn", "add_offsets_to_txn", "end_txn", "prepare_txn"),
    *("complete_transaction", "write_marker", "write_txn_markers", "produce"),
    *("tick", "checkpoint", "apply_retention", "compact"),
)


class _Facts:
    """What the metadata log would hold, in memory."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.facts = facts


class ObservedBroker(Broker):
    """The looking half of a broker, on a directory that is opened for reading. Whoever opened it closes it."""

    def __init__(  # a broker of this kind starts nothing, so that of the other is not called
        self, data: DataDirectory, now_ms: Callable[[], int] = clock.now_ms
    ) -> None:
        self.now_ms = now_ms
        self.is_synced = False
        self._given: dict[str, Any] = {}
        self._lock = threading.RLock()
        self._open: dict[TopicPartition, Partition] = {}
        self._options = {}
        self._is_closed = False
        self._data = data
        data.refresh()
        cluster = None
        if is_owned(data.path):
            facts = read_facts(data.path)
        else:
            cluster = read_cluster_metadata(data.path)
            self.config = read_options(BROKER, {})
            counts = {name: self._internal_count(name) for name in INTERNAL}
            facts = adopted_topics(data, cluster, counts)
            for name, fact in facts.items():
                topic = name.partition("/")[2]
                is_told = cluster is not None and topic in cluster.topics
                if (
                    not is_told
                    and data.topic_id(TopicPartition(topic, fact["partitions"][0])) is None
                ):
                    fact["topic_id"] = NO_TOPIC_ID
        self._metadata = cast("MetadataLog", _Facts(facts))
        self._topics = Topics(self._metadata)
        altered = facts.get(ALTERED, {}) if cluster is None else {}
        self._altered = {
            name: BROKER[name].read(value) for name, value in altered.items() if name in BROKER
        }
        self.config = read_options(BROKER, self._altered)
        self._defaults = topic_defaults(self.config)
        self.leader_epoch = facts.get("leader_epoch", 0)
        self.node_id = self._node_id()

    def _node_id(self) -> int:
        path = f"{self._data.path}/{META_PROPERTIES}"
        told = read_properties(path).get("node.id", "") if exists(path) else ""
        return int(told) if told.isdigit() else int(self.config["node.id"])

    def __getattr__(self, name: str) -> Any:
        """Coordinators are read when they are first asked for: who lists topics needs neither."""
        if name == "groups":
            from .group_answers import GroupOptions
            from .observed_coordinators import ObservedGroups

            self.groups = ObservedGroups(
                self._state_log(CONSUMER_OFFSETS),
                None,
                GroupOptions.of(self.config),
                self.now_ms,
                topic_id_of=self._topic_id_bytes,
                topic_name_of=self._topic_name,
            )
            self.groups.load()
            if not self._data.is_live:
                self.groups.leave_out_the_dead()
            return self.groups
        if name == "transactions":
            from .observed_coordinators import ObservedTransactions
            from .txn_states import TransactionStates

            states = TransactionStates(self._state_log(TRANSACTION_STATE))
            found = ObservedTransactions(states, self.now_ms)
            self.transactions = cast("Any", found)
            return found
        raise AttributeError(name)

    def _state_log(self, topic: str) -> StateLog:
        known = self._topics.get(topic)
        return StateLog(
            topic,
            known.partition_count if known else self._internal_count(topic),
            lambda number: self._data.get(TopicPartition(topic, number)),
            lambda: self._existing(topic),
            self.leader_epoch,
            self.now_ms,
        )

    def partition(self, key: TopicPartition) -> Partition:
        """A partition that is here, as it is now."""
        self.check_open()
        topic = self._topics.need(key.topic)
        if key in self._data:
            return self._data.get(key)
        if 0 <= key.partition < topic.partition_count:
            raise NotLeaderOrFollowerError(f"{key.directory} is not in this directory")
        raise UnknownTopicOrPartitionError(
            f"topic {key.topic!r} has partitions 0 to {topic.partition_count - 1}, not {key.partition}"
        )

    def close(self) -> None:
        """The directory stays open: it is not ours."""
        self._is_closed = True

    def abandon(self) -> None:
        self.close()


def _refused(verb: str) -> Callable[..., NoReturn]:
    def refuse(self: ObservedBroker, *_: object, **__: object) -> NoReturn:
        raise InvalidRequestError(
            f"{self.path} is only read, and {verb} would change it: open it without read_only=True"
        )

    refuse.__name__ = verb
    refuse.__doc__ = "Refused: this directory is only read."
    return refuse


for _verb in WRITING:
    setattr(ObservedBroker, _verb, _refused(_verb))
