"""The administrator: looks at a log and changes it, topic by topic, group by group, transaction by transaction.

Methods are named as those of Kafka's Admin, in snake case. One that takes several names answers with a dict, in which an
error stands for each name that failed, as the others are not affected; one that takes a single name raises. Arguments of
the wrong shape are refused before anything is done. Any thread may call; nothing waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..base.config import BROKER, TOPIC
from ..base.errors import (
    ElectionNotNeededError,
    InvalidRequestError,
    OncelogError,
    UnknownTopicOrPartitionError,
)
from ..broker.answers import ListedOffset, TopicDescription
from ..broker.config_verbs import DYNAMIC
from ..broker.topics import ConfigChange, NewTopic
from ..segment.names import TopicPartition, partition_key
from .admin_answers import (
    ConfigEntry,
    ConfigResource,
    ConsumerGroupDescription,
    DeletedRecords,
    GroupLag,
    GroupMemberDescription,
    HangingTransaction,
    LogDirDescription,
    PreparedListing,
    ReplicaInfo,
    TopicListing,
)
from .admin_arguments import (
    answer_of,
    by_key,
    integer,
    keys_of,
    list_of,
    mapping_of,
    name_of,
    names_of,
    timestamp_of,
)
from .admin_groups import GroupAdmin
from .admin_transactions import TransactionAdmin
from .directory import isolation_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..broker.answers import ConfigValue
    from ..broker.broker import Broker

__all__ = [
    "Admin",
    "ConfigChange",
    "ConfigEntry",
    "ConfigResource",
    "ConsumerGroupDescription",
    "DeletedRecords",
    "GroupLag",
    "GroupMemberDescription",
    "HangingTransaction",
    "LogDirDescription",
    "NewTopic",
    "PreparedListing",
    "ReplicaInfo",
    "TopicListing",
    "TopicPartition",
]

ELECTIONS: Final = ("preferred", "unclean")
KINDS: Final = {"topic": TOPIC, "broker": BROKER}


class Admin(GroupAdmin, TransactionAdmin):
    """The administrator of an open log. It holds nothing and need not be closed."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def __repr__(self) -> str:
        return f"Admin({self._broker.path!r})"

    # ------------------------------------------------------------ topics

    def create_topics(
        self, new_topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, TopicDescription | OncelogError]:
        """Makes topics, or with ``validate_only`` says whether they could be made."""
        topics = list_of(new_topics, "new topics")
        for topic in topics:
            if not isinstance(topic, NewTopic):
                raise InvalidRequestError(f"a new topic is a NewTopic, not {topic!r}")
            integer(topic.partitions, "the number of partitions")
            integer(topic.replication_factor, "the replication factor")
            names_of(mapping_of(topic.config or {}, "options"), "the name of an option")
        names_of((topic.name for topic in topics), "the name of a topic")
        return self._broker.create_topics(topics, validate_only=validate_only)

    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        *,
        replication_factor: int = -1,
        config: Mapping[str, object] | None = None,
        validate_only: bool = False,
    ) -> TopicDescription:
        """Makes a topic; -1 is the broker's default."""
        new = NewTopic(name, partitions, replication_factor, config)
        return answer_of(self.create_topics([new], validate_only=validate_only), name)

    def delete_topics(self, names: Iterable[str]) -> dict[str, OncelogError | None]:
        """Removes topics with all their records, and what groups have committed for them."""
        return self._broker.delete_topics(names_of(names, "the name of a topic"))

    def delete_topic(self, name: str) -> None:
        """Removes a topic."""
        answer_of(self.delete_topics([name]), name)

    def list_topics(self, *, include_internal: bool = False) -> list[TopicListing]:
        """All topics by name; those that coordinators keep their state in if asked for."""
        return [
            TopicListing(topic.name, topic.topic_id, topic.is_internal)
            for topic in self._broker.describe_topics().values()
            if isinstance(topic, TopicDescription) and (include_internal or not topic.is_internal)
        ]

    def describe_topics(
        self, names: Iterable[str] | None = None
    ) -> dict[str, TopicDescription | OncelogError]:
        """Topics with their ids and partitions; None: all."""
        wanted = None if names is None else names_of(names, "the name of a topic")
        return self._broker.describe_topics(wanted)

    def describe_topic(self, name: str) -> TopicDescription:
        """A topic with its id and partitions."""
        return answer_of(self.describe_topics([name]), name)

    def create_partitions(self, counts: Mapping[str, int]) -> dict[str, OncelogError | None]:
        """Gives topics more partitions: so many as there are to be in the end."""
        for name, count in mapping_of(counts, "topics and their new counts").items():
            name_of(name, "the name of a topic")
            integer(count, "the number of partitions")
        return self._broker.create_partitions(counts)

    def increase_partitions(self, topic: str, to: int) -> None:
        """Gives a topic more partitions. Keys are spread anew: from then on a key may go elsewhere than before."""
        answer_of(self.create_partitions({name_of(topic, "the name of a topic"): to}), topic)

    def elect_leaders(
        self,
        partitions: Iterable[tuple[str, int]] | None = None,
        *,
        election_type: str = "preferred",
    ) -> dict[TopicPartition, OncelogError]:
        """For each partition why no leader was elected: the one replica leads already.

        As with Kafka, who asks for all of them (None) hears of none that needs no election.
        """
        if election_type not in ELECTIONS:
            raise InvalidRequestError(
                f"an election is {' or '.join(ELECTIONS)}, not {election_type!r}"
            )
        answers: dict[TopicPartition, OncelogError] = {}
        for key in keys_of(partitions or ()):
            try:
                self._broker.partition(key)
                answers[key] = ElectionNotNeededError(
                    f"{key.directory} is led by node {self._broker.node_id}, its only replica"
                )
            except OncelogError as error:
                answers[key] = error
        return answers

    # ------------------------------------------------------------ configs

    def describe_configs(
        self, resources: Iterable[ConfigResource]
    ) -> dict[ConfigResource, dict[str, ConfigEntry] | OncelogError]:
        """All options of topics or of the broker, their values and who set them."""
        answers: dict[ConfigResource, dict[str, ConfigEntry] | OncelogError] = {}
        for resource in [self._resource(given) for given in list_of(resources, "resources")]:
            try:
                if resource.kind == "topic":
                    values = self._broker.describe_configs(resource.name)
                else:
                    values = self._broker.describe_broker_configs()
                answers[resource] = _entries(resource.kind, values)
            except OncelogError as error:
                answers[resource] = error
        return answers

    def describe_topic_config(self, topic: str) -> dict[str, ConfigEntry]:
        """All options of a topic."""
        resource = ConfigResource("topic", topic)
        return answer_of(self.describe_configs([resource]), resource)

    def describe_broker_config(self) -> dict[str, ConfigEntry]:
        """All options of the broker."""
        resource = ConfigResource("broker")
        return answer_of(self.describe_configs([resource]), resource)

    def incremental_alter_configs(
        self,
        changes: Mapping[ConfigResource, Sequence[ConfigChange]],
        *,
        validate_only: bool = False,
    ) -> dict[ConfigResource, OncelogError | None]:
        """Changes options: set, delete (back to the default), append to or subtract from a list.

        Of one topic, or of the broker, all changes are made or none.
        """
        checked = {
            self._resource(resource): _changes_of(steps)
            for resource, steps in mapping_of(changes, "resources and their changes").items()
        }
        answers: dict[ConfigResource, OncelogError | None] = {}
        for resource, steps in checked.items():
            try:
                if resource.kind == "topic":
                    answers[resource] = self._broker.incremental_alter_configs(
                        {resource.name: steps}, validate_only=validate_only
                    )[resource.name]
                else:
                    self._broker.alter_broker_configs(steps, validate_only=validate_only)
                    answers[resource] = None
            except OncelogError as error:
                answers[resource] = error
        return answers

    def alter_topic_config(self, topic: str, config: Mapping[str, object]) -> None:
        """Sets options of a topic; None takes one back to its default."""
        resource = ConfigResource("topic", name_of(topic, "the name of a topic"))
        answer_of(self.incremental_alter_configs({resource: _settings(config)}), resource)

    def alter_broker_config(self, config: Mapping[str, object]) -> None:
        """Sets options of the broker, for now and every opening to come; None takes one back to what it was."""
        resource = ConfigResource("broker")
        answer_of(self.incremental_alter_configs({resource: _settings(config)}), resource)

    def _resource(self, given: ConfigResource) -> ConfigResource:
        if not isinstance(given, tuple) or not given or given[0] not in KINDS:
            raise InvalidRequestError(
                f"options belong to ('topic', name) or ('broker',), not to {given!r}"
            )
        resource = ConfigResource(*given)
        name_of(resource.name, "the name of a resource")
        if resource.kind == "broker" and resource.name not in ("", str(self._broker.node_id)):
            raise InvalidRequestError(
                f"the broker here is node {self._broker.node_id}, not {resource.name!r}"
            )
        return resource

    # ------------------------------------------------------------ records

    def list_offsets(
        self,
        specs: Mapping[tuple[str, int], str | int],
        *,
        isolation_level: str = "read_committed",
    ) -> dict[TopicPartition, ListedOffset | OncelogError]:
        """Offsets by name ("earliest", "latest", "max_timestamp") or of the first record at a time or later.

        Where there is no such record, the offset is -1. For a read_committed reader the latest is the last stable
        offset; unlike Kafka's, this is the default here as everywhere.
        """
        isolation = isolation_of(isolation_level)
        wanted = {
            key: timestamp_of(spec)
            for key, spec in by_key(specs, "partitions and what to look for").items()
        }
        answers: dict[TopicPartition, ListedOffset | OncelogError] = {}
        for key, timestamp in wanted.items():
            try:
                answers[key] = self._broker.list_offsets(key, timestamp, isolation)
            except OncelogError as error:
                answers[key] = error
        return answers

    def list_offset(
        self,
        topic: str,
        partition: int,
        spec: str | int,
        *,
        isolation_level: str = "read_committed",
    ) -> ListedOffset:
        """An offset of one partition, by name or time."""
        key = partition_key((topic, partition))
        return answer_of(self.list_offsets({key: spec}, isolation_level=isolation_level), key)

    def delete_records(
        self, before_offsets: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, DeletedRecords | OncelogError]:
        """Removes the records below some offsets; -1 removes all."""
        offsets = {
            key: integer(offset, "an offset", minimum=-1)
            for key, offset in by_key(before_offsets, "partitions and offsets").items()
        }
        answers: dict[TopicPartition, DeletedRecords | OncelogError] = {}
        for key, offset in offsets.items():
            try:
                answers[key] = DeletedRecords(self._broker.delete_records(key, offset))
            except OncelogError as error:
                answers[key] = error
        return answers

    def delete_records_before(self, topic: str, partition: int, offset: int) -> int:
        """Removes a partition's records below an offset; returns its new start."""
        key = partition_key((topic, partition))
        return answer_of(self.delete_records({key: offset}), key).low_watermark

    def describe_log_dirs(
        self, topics: Iterable[str] | None = None
    ) -> dict[str, LogDirDescription]:
        """The data directory and how large its partitions are: of some topics, or of all."""
        wanted = None if topics is None else set(names_of(topics, "the name of a topic"))
        replicas = {}
        for key in self._broker.existing():
            if wanted is not None and key.topic not in wanted:
                continue
            try:
                replicas[key] = ReplicaInfo(self._broker.partition(key).log.size)
            except UnknownTopicOrPartitionError:
                continue  # deleted a moment ago
        return {self._broker.path: LogDirDescription(self._broker.path, replicas)}


def _entries(kind: str, values: Mapping[str, ConfigValue]) -> dict[str, ConfigEntry]:
    table = KINDS[kind]
    return {
        name: ConfigEntry(
            name,
            value,
            table[name].text(value),
            source,
            kind == "broker" and name not in DYNAMIC,
            table[name].doc,
        )
        for name, (value, source) in values.items()
    }


def _settings(config: Mapping[str, object]) -> list[ConfigChange]:
    return [
        ConfigChange(name, "delete" if value is None else "set", value)
        for name, value in mapping_of(config, "options and their values").items()
    ]


def _changes_of(steps: Sequence[ConfigChange]) -> list[ConfigChange]:
    for step in list_of(steps, "changes"):
        if not isinstance(step, ConfigChange) or not isinstance(step.name, str):
            raise InvalidRequestError(
                f"a change is a ConfigChange(name, operation, value), not {step!r}"
            )
    return list(steps)
