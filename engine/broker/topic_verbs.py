"""The verbs of topics: made, given more partitions, described and removed.

Duty         what is answered is so: an error means that there is no such topic, or that it is as it was.
Crash        a topic is in the metadata log before its directories are made, and marked there before they are removed:
             opening completes either. Where directories cannot be made, what was written down is taken back.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from ..base.errors import (
    InvalidRequestError,
    InvalidTopicError,
    OncelogError,
    TopicAlreadyExistsError,
    TopicDeletionDisabledError,
    UnknownTopicOrPartitionError,
)
from ..segment.names import TopicPartition
from .answers import PartitionDescription, TopicDescription
from .topics import INTERNAL, NewTopic

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Mapping

    from ..partition.compaction import Compactor
    from ..partition.data_directory import DataDirectory
    from ..partition.partition import Partition, PartitionOptions
    from .group_coordinator import GroupCoordinator
    from .topics import Topic, Topics

logger = logging.getLogger("oncelog.broker")


class TopicVerbs(abc.ABC):
    """The part of a broker that is about topics."""

    config: Mapping[str, Any]
    node_id: int
    leader_epoch: int
    creates_topics: bool  # that are asked for and not there
    compactor: Compactor
    groups: GroupCoordinator
    _data: DataDirectory
    _lock: threading.RLock
    _open: dict[TopicPartition, Partition]
    _options: dict[str, PartitionOptions]
    _topics: Topics

    @abc.abstractmethod
    def check_open(self) -> None: ...

    @abc.abstractmethod
    def _check_config(self, topic: Topic) -> None: ...

    # ------------------------------------------------------------ looking

    def topics(self) -> list[str]:
        """Names of all topics, the internal ones among them."""
        return self._topics.names()

    def partitions_of(self, topic: str) -> tuple[int, ...]:
        """The partitions of a topic that are here."""
        return self._topics.need(topic).partitions

    @property
    def partition_counts(self) -> dict[str, int]:
        """Of all topics, as they are at any time: for producers, who look at every batch."""
        return self._topics.counts

    def partition_count(self, topic: str) -> int:
        count = self._topics.counts.get(topic)
        return self._topics.need(topic).partition_count if count is None else count

    def describe_topics(
        self, names: Iterable[str] | None = None
    ) -> dict[str, TopicDescription | OncelogError]:
        """Topics with their ids and partitions: all, or those that are asked for."""
        answers: dict[str, TopicDescription | OncelogError] = {}
        for name in self.topics() if names is None else names:
            try:
                answers[name] = self._described(self._topics.need(name))
            except OncelogError as error:
                answers[name] = error
        return answers

    def _described(self, topic: Topic) -> TopicDescription:
        node = (self.node_id,)
        return TopicDescription(
            topic.name,
            topic.topic_id,
            topic.is_internal,
            tuple(
                PartitionDescription(number, self.node_id, node, node, self.leader_epoch)
                for number in topic.partitions
            ),
        )

    # ------------------------------------------------------------ making

    def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, TopicDescription | OncelogError]:
        """Makes topics; for each its description, or why it was not made."""
        answers: dict[str, TopicDescription | OncelogError] = {}
        topics = list(topics)
        refused = _repeated(new.name for new in topics)
        with self._lock:
            self.check_open()
            for new in topics:
                if new.name in refused:
                    answers[new.name] = refused[new.name]
                    continue
                try:
                    half_removed = self._topics.half_removed(new.name)
                    if half_removed is not None and not validate_only:
                        self._remove(half_removed)
                    topic = self._topics.check_new(new, self.config["num.partitions"])
                    self._check_config(topic)
                    if not validate_only:
                        self._make(topic)
                    answers[new.name] = self._described(topic)
                except OncelogError as error:
                    answers[new.name] = error
        return answers

    def meet_topic(self, name: str) -> int:
        """The partition count of a topic that a client is about to use. As with Kafka, one that is not there is made,
        where ``open`` was given auto.create.topics.enable."""
        try:
            return self.partition_count(name)
        except UnknownTopicOrPartitionError:
            if not self.creates_topics or name in INTERNAL:
                raise
        answer = self.create_topics([NewTopic(name)])[name]
        if isinstance(answer, OncelogError) and not isinstance(answer, TopicAlreadyExistsError):
            raise answer
        logger.info("topic %r was asked for and is made", name)
        return self.partition_count(name)

    def create_partitions(self, counts: Mapping[str, int]) -> dict[str, OncelogError | None]:
        """Gives topics more partitions."""
        answers: dict[str, OncelogError | None] = {}
        with self._lock:
            self.check_open()
            for name, count in counts.items():
                try:
                    before = self._topics.need(name)
                    self._make(self._topics.check_count(before, count), before)
                    answers[name] = None
                except OncelogError as error:
                    answers[name] = error
        return answers

    def _make(self, topic: Topic, before: Topic | None = None) -> None:
        """Writes a topic down and makes its directories; after an error it is as it was before."""
        self._topics.put([topic])
        try:
            self._make_directories(topic)
        except OncelogError as error:
            try:
                self._unmake(topic, before)
            except OncelogError as another:
                # The log of topics says that it is there, and nothing can change that now. So it is: a directory
                # that is missing is made when it is first needed.
                logger.warning(
                    "topic %r: not all of its directories could be made: %s; nor could it be taken back: %s",
                    *(topic.name, error, another),
                )
            else:
                raise

    def _make_directories(self, topic: Topic) -> None:
        """Makes what is missing. Nobody finds one of them before all are there."""
        keys = [TopicPartition(topic.name, number) for number in topic.partitions]
        missing = [key for key in keys if key not in self._data]
        self._open.update({key: self._data.create(key, topic.topic_id) for key in missing})

    def _unmake(self, topic: Topic, before: Topic | None) -> None:
        """Takes a topic back; raises where that cannot be written down."""
        if before is not None:
            # Directories first: those that are written down are made again, others would be in the way.
            added = [at for at in topic.partitions if at not in before.partitions]
            self._remove_directories([TopicPartition(topic.name, at) for at in added])
            self._topics.put([before])
            return
        self._topics.put([topic._replace(is_deleting=True)])
        try:
            self._remove(topic)
        except (
            OncelogError
        ) as error:  # completed with the next topic of the name, or at the next opening
            logger.warning("topic %r: what was made of it is still there: %s", topic.name, error)

    # ------------------------------------------------------------ removing

    def delete_topics(self, names: Iterable[str]) -> dict[str, OncelogError | None]:
        """Removes topics with all their records. Readers that have them mapped go on.

        A removal that failed half way is completed by the same call, or when the directory is next opened.
        """
        names = list(names)
        if not self.config["delete.topic.enable"]:
            return {
                name: TopicDeletionDisabledError(
                    f"topic {name!r} stays: delete.topic.enable is false"
                )
                for name in names
            }
        answers: dict[str, OncelogError | None] = {**_repeated(names)}
        for name in names:
            if name in answers:
                continue
            try:
                with self._lock:
                    self.check_open()
                    topic = self._topics.half_removed(name) or self._topics.need(name)
                    if topic.is_internal:
                        raise InvalidTopicError(f"{name} is the broker's own and stays")
                    if not topic.is_deleting:
                        self._topics.put([topic._replace(is_deleting=True)])
                    self._remove(topic)
                self.groups.on_topic_deleted(name)
                answers[name] = None
            except OncelogError as error:
                answers[name] = error
        return answers

    def _remove(self, topic: Topic) -> None:
        self._remove_directories([TopicPartition(topic.name, at) for at in topic.partitions])
        self._options.pop(topic.name, None)
        self._topics.forget(topic.name)

    def _remove_directories(self, keys: list[TopicPartition]) -> None:
        with contextlib.ExitStack() as stack:
            for key in keys:
                stack.enter_context(self.compactor.paused(key))
                self._open.pop(key, None)
            self._data.delete(*keys)
            for key in keys:
                self.compactor.forget(key)


def _repeated(names: Iterable[str]) -> dict[str, InvalidRequestError]:
    """Names that a request holds more than once: which of them was meant nobody can say."""
    return {
        name: InvalidRequestError(f"topic {name!r} stands more than once in the request")
        for name, count in collections.Counter(names).items()
        if count > 1
    }
