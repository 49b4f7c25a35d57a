"""Topics: what exists, under which id, with which partitions and configs.

Duty         names, ids and configs, kept in the metadata log; the bytes are the data directory's.
Concurrency  changes under the broker's lock; readers take a Topic, which never changes.
Crash        a topic is written down before its directories are made, and marked before they are removed, so that
             opening completes whatever was under way.
"""

from __future__ import annotations

import base64
import itertools
import uuid
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..base.config import TOPIC, Kind, Option, check_options
from ..base.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    PolicyViolationError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from ..partition.data_directory import METADATA_TOPIC
from ..segment.names import TopicPartition, check_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .metadata_log import MetadataLog

TRANSACTION_STATE: Final = "__transaction_state"
CONSUMER_OFFSETS: Final = "__consumer_offsets"
INTERNAL: Final = frozenset((TRANSACTION_STATE, CONSUMER_OFFSETS))
PREFIX: Final = "topic/"
NAMES_SHOWN: Final = 20  # of topics, in a sentence
NEW_PARTITIONS_MAX: Final = (
    10_000  # at once: as many records as Kafka's controller writes for one request
)
DEFAULT: Final = -1  # of a partition count or replication factor: the broker's


class NewTopic(NamedTuple):
    """A topic to be made; -1 stands for the broker's default."""

    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    config: Mapping[str, object] | None = None


class Topic(NamedTuple):
    """A topic as the broker knows it.

    ``partitions`` are those that are here: of a directory that was one broker's among several, some may be missing.
    ``config`` holds what was set for this topic alone. Where it is not known nothing is ever deleted or compacted.
    """

    name: str
    topic_id: str
    partitions: tuple[int, ...]
    config: Mapping[str, Any]
    is_config_known: bool = True
    is_deleting: bool = False

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL

    @property
    def keys(self) -> list[TopicPartition]:
        """The partitions that are here, by their full names."""
        return [TopicPartition(self.name, number) for number in self.partitions]

    @property
    def partition_count(self) -> int:
        """The number that keys are spread over."""
        return self.partitions[-1] + 1


class ConfigChange(NamedTuple):
    """One step of altering a config: set, delete (back to the default), append to or subtract from a list."""

    name: str
    operation: str
    value: object = None


def new_topic_id() -> str:
    """A random id as Kafka spells it: 22 characters of base64url, none of them leading with a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes)[:22].decode()
        if not text.startswith("-"):
            return text


class Topics:
    """All topics, kept in the metadata log."""

    def __init__(self, metadata: MetadataLog) -> None:
        self._metadata = metadata
        self._known = topics_among(metadata.facts)
        # Names as metrics spell them, where '.' and '_' are one: two topics may not have the same.
        self._alike = {_spelled(name): name for name in self._known}
        # The partitions of topics that are there, for producers, who ask with every batch.
        self.counts: dict[str, int] = {}
        for topic in self._known.values():
            self._count(topic)

    def _count(self, topic: Topic) -> None:
        if topic.is_deleting:
            self.counts.pop(topic.name, None)
        else:
            self.counts[topic.name] = topic.partition_count

    def names(self) -> list[str]:
        return sorted(name for name, topic in self._known.items() if not topic.is_deleting)

    def get(self, name: str) -> Topic | None:
        topic = self._known.get(name)
        return None if topic is None or topic.is_deleting else topic

    def need(self, name: str) -> Topic:
        topic = self._known.get(name)
        if topic is None or topic.is_deleting:
            raise UnknownTopicOrPartitionError(f"there is no topic {name!r}, {self._others()}")
        return topic

    def _others(self) -> str:
        """The topics that there are, for people: some of them, where there are many."""
        names = sorted(itertools.islice(self.counts.keys() - INTERNAL, NAMES_SHOWN + 1))
        if len(names) > NAMES_SHOWN:
            return f"only {len(self.counts)} others, {names[0]!r} and {names[1]!r} among them"
        return f"only {', '.join(names)}" if names else "and no other"

    def deleting(self) -> list[Topic]:
        """Topics whose removal was begun and not completed."""
        return [topic for topic in self._known.values() if topic.is_deleting]

    def half_removed(self, name: str) -> Topic | None:
        """The topic of that name, if its removal was begun and not completed."""
        topic = self._known.get(name)
        return topic if topic is not None and topic.is_deleting else None

    # ------------------------------------------------------------ changes

    def check_new(self, new: NewTopic, partitions_default: int) -> Topic:
        """The topic that would be made; raises for one that may not be."""
        check_topic(new.name)
        if new.name == METADATA_TOPIC:
            raise InvalidTopicError(f"{new.name} is a controller's own, and no topic")
        if new.name in self._known:
            raise TopicAlreadyExistsError(f"there is a topic {new.name!r} already")
        alike = self._alike.get(_spelled(new.name))
        if alike is not None:
            raise InvalidTopicError(
                f"topic {new.name!r} collides with {alike!r}: '.' and '_' are one in metric names"
            )
        if new.replication_factor not in (DEFAULT, 1):
            raise InvalidReplicationFactorError(
                f"replication factor {new.replication_factor} asked for, but one process holds one replica"
            )
        count = partitions_default if new.partitions == DEFAULT else new.partitions
        if count <= 0:
            raise InvalidPartitionsError(f"a topic has one partition or more, not {count}")
        _check_new_partitions(new.name, count)
        config = check_options(TOPIC, new.config or {})
        return Topic(new.name, new_topic_id(), tuple(range(count)), config)

    def put(self, topics: Iterable[Topic]) -> None:
        """Writes topics down as they are now."""
        topics = list(topics)
        self._metadata.put({PREFIX + topic.name: _fact(topic) for topic in topics})
        for topic in topics:
            self._known[topic.name] = topic
            self._alike[_spelled(topic.name)] = topic.name
            self._count(topic)

    def forget(self, name: str) -> None:
        """The end of a removal."""
        self._metadata.put({PREFIX + name: None})
        del self._known[name]
        self._alike.pop(_spelled(name), None)
        self.counts.pop(name, None)

    def check_count(self, topic: Topic, count: int) -> Topic:
        """The topic with more partitions; raises where they would not be more."""
        if topic.is_internal:
            raise InvalidTopicError(f"the partitions of {topic.name} are part of its format")
        if count <= topic.partition_count:
            raise InvalidPartitionsError(
                f"topic {topic.name!r} has {topic.partition_count} partitions, and {count} would not be more"
            )
        _check_new_partitions(topic.name, count - topic.partition_count)
        added = range(topic.partition_count, count)
        return topic._replace(partitions=(*topic.partitions, *added))


def _check_new_partitions(name: str, count: int) -> None:
    """Raises for so many new partitions at once that they are a slip: all of them would be made, and opened each time."""
    if count > NEW_PARTITIONS_MAX:
        raise PolicyViolationError(
            f"{count:,} new partitions of topic {name!r} asked for, and at most {NEW_PARTITIONS_MAX:,} are made at once"
        )


def changed_config(
    config: Mapping[str, Any],
    changes: Iterable[ConfigChange],
    defaults: Mapping[str, Any],
    table: Mapping[str, Option] = TOPIC,
) -> dict[str, Any]:
    """A topic's config after some changes, or with its table a broker's; raises for one that is not possible."""
    after = dict(config)
    for name, operation, value in changes:
        if operation == "delete":
            dotted = name.replace("_", ".")
            if dotted not in table:
                check_options(table, {name: value})  # says which name was meant
            after.pop(dotted, None)
            continue
        ((dotted, given),) = check_options(table, {name: value}).items()
        if operation == "set":
            after[dotted] = given
        elif operation in ("append", "subtract") and table[dotted].kind is Kind.LIST:
            before = tuple(after.get(dotted, defaults[dotted]))
            if operation == "append":
                kept = (*before, *(item for item in given if item not in before))
            else:
                kept = tuple(item for item in before if item not in given)
            after |= check_options(table, {dotted: kept})
        else:
            raise InvalidConfigError(f"{name} cannot be changed by {operation!r}")
    return after


def _spelled(name: str) -> str:
    return name.replace(".", "_")


def _fact(topic: Topic) -> dict[str, Any]:
    return {
        "topic_id": topic.topic_id,
        "partitions": list(topic.partitions),
        "config": dict(topic.config),
        "is_config_known": topic.is_config_known,
        "is_deleting": topic.is_deleting,
    }


def topics_among(facts: Mapping[str, Any]) -> dict[str, Topic]:
    """The topics that the broker's facts speak of, those being deleted among them."""
    return {
        name.removeprefix(PREFIX): _topic(name.removeprefix(PREFIX), fact)
        for name, fact in facts.items()
        if name.startswith(PREFIX)
    }


def _topic(name: str, fact: Mapping[str, Any]) -> Topic:
    config = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in fact["config"].items()
    }
    return Topic(
        name,
        fact["topic_id"],
        tuple(fact["partitions"]),
        config,
        fact["is_config_known"],
        fact["is_deleting"],
    )
