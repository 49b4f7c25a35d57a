"""The verbs of options: what topics and the broker are told, by whom, and how it is changed while the log is open.

What counts for the broker: what was altered, else what ``open`` was told, else Kafka's default. What counts for a topic:
its own, else the broker's. Changes are in the metadata log before they count.
"""

from __future__ import annotations

import abc
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

from ..base.broker_options import SYNONYMS
from ..base.config import BROKER, TOPIC, check_options, read_options, topic_defaults
from ..base.errors import InvalidRequestError, OncelogError
from .answers import ConfigValue
from .topic_options import partition_options
from .topics import changed_config

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence

    from ..partition.partition import Partition, PartitionOptions
    from ..segment.names import TopicPartition
    from .metadata_log import MetadataLog
    from .topics import ConfigChange, Topic, Topics

logger = logging.getLogger("oncelog.broker")

ALTERED: Final = "broker_config"
# The options that Kafka lets change while a broker runs, too: the defaults of topics, in their finest unit, and these.
DYNAMIC: Final = frozenset(synonyms[0].name for synonyms in SYNONYMS.values()) | {
    "log.cleaner.backoff.ms",
    "producer.id.expiration.ms",
}


class ConfigVerbs(abc.ABC):
    """The part of a broker that is about options."""

    config: Mapping[str, Any]
    is_synced: bool
    _given: Mapping[str, Any]  # to ``open``
    _altered: Mapping[str, Any]
    _defaults: Mapping[str, Any]
    _options: dict[str, PartitionOptions]
    _open: dict[TopicPartition, Partition]
    _lock: threading.RLock
    _metadata: MetadataLog
    _topics: Topics

    @abc.abstractmethod
    def check_open(self) -> None: ...

    def _load_altered(self) -> None:
        """Takes over what was altered when the log was open before."""
        altered = {}
        for name, value in self._metadata.facts.get(ALTERED, {}).items():
            if name in DYNAMIC and name in BROKER:
                altered[name] = BROKER[name].read(value)
            else:
                logger.warning(
                    "%s=%r was set by another version and means nothing here", name, value
                )
        self._use(altered)

    def _use(self, altered: Mapping[str, Any]) -> None:
        self._altered = altered
        self.config = read_options(BROKER, {**self._given, **altered})
        self._defaults = topic_defaults(self.config)
        self._options.clear()

    # ------------------------------------------------------------ what counts

    def _config_of(self, topic: Topic) -> dict[str, Any]:
        return {**self._defaults, **topic.config}

    def _check_config(self, topic: Topic) -> None:
        """Options that are possible by themselves may contradict each other."""
        read_options(TOPIC, topic.config, self._defaults)

    def _options_of(self, name: str) -> PartitionOptions:
        options = self._options.get(name)
        if options is None:
            options = self._options[name] = partition_options(
                self._config_of(self._topics.need(name)),
                producer_id_expiration_ms=self.config["producer.id.expiration.ms"],
                is_synced=self.is_synced,
            )
        return options

    def describe_configs(self, topic: str) -> dict[str, ConfigValue]:
        """All options of a topic, and who set them."""
        config = self._topics.need(topic).config
        values = {}
        for name, option in TOPIC.items():
            if name in config:
                values[name] = ConfigValue(config[name], "topic")
            elif self._defaults.get(name, option.default) != option.default:
                values[name] = ConfigValue(self._defaults[name], "broker")
            else:
                values[name] = ConfigValue(option.default, "default")
        return values

    def describe_broker_configs(self) -> dict[str, ConfigValue]:
        """All options of the broker, and who set them."""
        values = {}
        for name in BROKER:
            source = "default"
            if name in self._altered:
                source = "broker"
            elif name in self._given:
                source = "open"
            values[name] = ConfigValue(self.config[name], source)
        return values

    # ------------------------------------------------------------ changes

    def incremental_alter_configs(
        self, changes: Mapping[str, Sequence[ConfigChange]], *, validate_only: bool = False
    ) -> dict[str, OncelogError | None]:
        """Changes topics' options; they hold from the next append on. From then on a config counts as known."""
        answers: dict[str, OncelogError | None] = {}
        with self._lock:
            self.check_open()
            for name, steps in changes.items():
                try:
                    topic = self._topics.need(name)
                    config = changed_config(topic.config, steps, self._defaults)
                    topic = topic._replace(config=config, is_config_known=True)
                    self._check_config(topic)
                    if not validate_only:
                        self._topics.put([topic])
                        self._options.pop(name, None)
                        self._reconfigure(name)
                    answers[name] = None
                except OncelogError as error:
                    answers[name] = error
        return answers

    def _reconfigure(self, name: str) -> None:
        options = self._options_of(name)
        for key, partition in self._open.items():
            if key.topic == name:
                partition.reconfigure(options)

    def alter_broker_configs(
        self, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> None:
        """Changes the broker's options, all or none: for now, and for every opening to come."""
        with self._lock:
            self.check_open()
            altered = changed_config(self._altered, changes, self.config, BROKER)
            for change in changes:
                name = change.name.replace("_", ".")
                if name not in DYNAMIC:
                    raise InvalidRequestError(
                        f"{name} cannot be changed while the log is open: give it to oncelog.open(config=...)"
                    )
            defaults = topic_defaults(read_options(BROKER, {**self._given, **altered}))
            for name in self._topics.names():
                read_options(TOPIC, self._topics.need(name).config, defaults)
            if validate_only:
                return
            self._metadata.put({ALTERED: altered or None})
            self._use(altered)
            for name in {key.topic for key in self._open}:
                # A partition that is offline takes the new options when it is opened again.
                with contextlib.suppress(OncelogError):
                    self._reconfigure(name)


def given_options(config: Mapping[str, object] | None) -> dict[str, Any]:
    """What ``open`` was told, by dotted names."""
    return check_options(BROKER, config or {})
