"""Options have Kafka's names, types, defaults and limits, and wrong ones get one clear sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.base.broker_options import SYNONYMS
from oncelog.base.config import (
    BROKER,
    CONSUMER,
    LEFT_OUT,
    OWNERS,
    PRODUCER,
    TOPIC,
    Kind,
    Option,
    check_options,
    read_options,
    reset_duration_ms,
    topic_defaults,
)
from oncelog.base.errors import InvalidConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

# Made from Kafka's own classes by interop/java/Configs.java.
KAFKA: dict[str, Any] = json.loads((Path(__file__).parent / "kafka_configs.json").read_text())
OPTIONS = [
    pytest.param(owner, option, id=f"{owner}-{name}")
    for owner, table in OWNERS.items()
    for name, option in table.items()
]
# Where ours is not Kafka's, and why; everything else must be the same.
OURS = {
    ("consumer", "isolation.level"): "readers who know nothing of transactions see no aborted ones",
    ("broker", "node.id"): "Kafka has no default, since its brokers are many",
}
# Kafka names a class, we name what it does; the classes are understood as well.
CLASSES = {("producer", "partitioner.class"), ("consumer", "partition.assignment.strategy")}


def kafka(owner: str, option: Option) -> dict[str, Any]:
    found: dict[str, Any] = KAFKA[owner][option.name]
    return found


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def test_the_fixture_is_of_the_version_we_follow() -> None:
    assert KAFKA["kafkaVersion"] == "4.3.1"


@pytest.mark.parametrize(("owner", "option"), OPTIONS)
def test_name_type_and_default_are_kafkas(owner: str, option: Option) -> None:
    theirs = kafka(owner, option)
    assert option.doc.endswith(".")
    if (owner, option.name) in CLASSES:
        assert plain(option.read(theirs["default"])) == plain(option.default)
        return
    assert option.kind.name == theirs["type"]
    if (owner, option.name) in OURS:
        assert plain(option.default) != theirs["default"]
    else:
        assert plain(option.default) == theirs["default"]
        assert type(plain(option.default)) is type(theirs["default"])


@pytest.mark.parametrize(("owner", "option"), OPTIONS)
def test_limits_are_kafkas(owner: str, option: Option) -> None:
    """Goal: the bounds themselves, since samples may all lie on one side of them.
    Method: read Kafka's own words for its validators."""
    if (owner, option.name) in CLASSES:
        return
    words = kafka(owner, option)["limits"] or ""
    if match := re.fullmatch(r"\[(-?\d+),\.\.\.(?:,(\d+))?\](?: or (-?\d+))?", words):
        low, high, also = match.groups()
        assert option.minimum == int(low)
        assert option.maximum == (int(high) if high else None)
        assert option.also == ((int(also),) if also else ())
    elif words == "non-empty string":
        assert option.minimum == 1
    elif words:
        allowed = {*option.choices, *(["by_duration:PnDTnHnMn.nS"] if option.pattern else [])}
        assert allowed == set(words.strip("[]").split(", "))
    else:
        assert (option.minimum, option.maximum, option.choices) == (None, None, ())


@pytest.mark.parametrize(("owner", "option"), OPTIONS)
def test_a_text_is_taken_or_refused_as_kafka_does(owner: str, option: Option) -> None:
    """Goal: a Kafka configuration file can be used unchanged, spaces, signs and all.
    Method: the same samples as Kafka's own parser and validators were given."""
    accepts = kafka(owner, option)["accepts"]
    if accepts is None:
        return
    for sample in KAFKA["samples"]:
        if sample in accepts:
            assert plain(option.read(sample)) == accepts[sample]
        else:
            with pytest.raises(InvalidConfigError, match=re.escape(option.name)):
                option.read(sample)


@pytest.mark.parametrize(("owner", "option"), OPTIONS)
def test_a_value_survives_as_kafkas_text(owner: str, option: Option) -> None:
    text = option.text(option.default)
    assert option.read(text) == option.default
    accepts = kafka(owner, option)["accepts"] or {}
    for sample in accepts:
        assert option.read(option.text(option.read(sample))) == option.read(sample)


def test_every_topic_option_of_kafka_is_there_or_has_a_reason() -> None:
    left_out = set(KAFKA["topic"]) - set(TOPIC)
    assert left_out == {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
    }
    assert left_out <= set(LEFT_OUT)
    everything = set().union(*(KAFKA[owner] for owner in OWNERS))
    assert set(LEFT_OUT) <= everything
    assert not set(LEFT_OUT) & set().union(*OWNERS.values())


def test_the_defaults_of_topics_come_from_kafkas_broker_options() -> None:
    ours = {
        name: [[synonym.name, str(synonym.factor)] for synonym in synonyms]
        for name, synonyms in SYNONYMS.items()
    }
    theirs = {name: names for name, names in KAFKA["synonyms"].items() if name in TOPIC}
    assert ours == theirs
    assert set(TOPIC) - set(ours) == {"internal.segment.bytes"}
    for name, synonyms in SYNONYMS.items():
        assert BROKER[synonyms[0].name].kind is TOPIC[name].kind


def test_an_untouched_broker_gives_a_topics_own_defaults() -> None:
    defaults = topic_defaults(read_options(BROKER, {}))
    assert defaults == {name: TOPIC[name].default for name in SYNONYMS}
    assert topic_defaults({}) == defaults


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"log.retention.hours": 2}, "retention.ms", 7_200_000),
        ({"log.retention.hours": 2, "log.retention.minutes": 3}, "retention.ms", 180_000),
        (
            {"log.retention.hours": 2, "log.retention.minutes": 3, "log.retention.ms": 4},
            "retention.ms",
            4,
        ),
        ({"log.retention.hours": -1}, "retention.ms", -1),
        ({"log.retention.minutes": -7}, "retention.ms", -1),
        ({"log.roll.hours": 1}, "segment.ms", 3_600_000),
        ({"log.roll.hours": 1, "log.roll.ms": 9}, "segment.ms", 9),
        ({"log.roll.jitter.hours": 1}, "segment.jitter.ms", 3_600_000),
        ({"log.flush.scheduler.interval.ms": 8}, "flush.ms", 8),
        ({"log.flush.scheduler.interval.ms": 8, "log.flush.interval.ms": 5}, "flush.ms", 5),
        ({"message.max.bytes": 77}, "max.message.bytes", 77),
        ({"log_cleanup_policy": "compact"}, "cleanup.policy", ("compact",)),
    ],
)
def test_the_finest_unit_that_is_given_counts(
    given: dict[str, object], name: str, value: Any
) -> None:
    assert topic_defaults(read_options(BROKER, given))[name] == value


@pytest.mark.parametrize(("given", "idempotent"), KAFKA["together"].items())
def test_options_of_a_producer_go_together_as_kafka_has_it(
    given: str, idempotent: bool | None
) -> None:
    options = dict(pair.split("=") for pair in given.split())
    if idempotent is None:
        with pytest.raises(InvalidConfigError):
            read_options(PRODUCER, options)
    else:
        assert read_options(PRODUCER, options)["enable.idempotence"] is idempotent


def test_the_delivery_timeout_has_room_for_one_attempt() -> None:
    """Goal: as Kafka: a default gives way, a choice is refused."""
    assert read_options(PRODUCER, {"linger.ms": 200_000})["delivery.timeout.ms"] == 230_000
    with pytest.raises(InvalidConfigError, match="at least"):
        read_options(PRODUCER, {"delivery.timeout.ms": 30_004})
    assert read_options(PRODUCER, {"delivery.timeout.ms": 30_005})["delivery.timeout.ms"] == 30_005


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidConfigError, match=r"min\.compaction\.lag\.ms \(5\)"):
        read_options(TOPIC, {"min.compaction.lag.ms": 5, "max.compaction.lag.ms": 4})
    with pytest.raises(InvalidConfigError, match=r"log\.retention"):
        read_options(BROKER, {"log.retention.ms": 0})
    with pytest.raises(InvalidConfigError, match=r"node\.id"):
        read_options(BROKER, {"node.id": 3, "broker.id": 4})
    assert read_options(BROKER, {"node.id": 3, "broker.id": 3})["node.id"] == 3


def test_dotted_names_and_keyword_arguments_are_the_same() -> None:
    assert check_options(TOPIC, {"segment_bytes": 1 << 20}) == {"segment.bytes": 1 << 20}
    assert check_options(TOPIC, {"segment.bytes": "1048576"}) == {"segment.bytes": 1 << 20}
    with pytest.raises(InvalidConfigError, match=r"segment\.bytes is given twice"):
        check_options(TOPIC, {"segment_bytes": 1 << 20, "segment.bytes": 1 << 20})


def test_what_is_given_goes_before_the_brokers_defaults_and_those_before_the_tables() -> None:
    read = read_options(
        TOPIC, {"segment_ms": 5}, {"segment.ms": 6, "retention.ms": 7, "retention.bytes": 8}
    )
    assert (read["segment.ms"], read["retention.ms"], read["retention.bytes"]) == (5, 7, 8)
    assert read["segment.bytes"] == 1 << 30
    assert list(read) == list(TOPIC)


@pytest.mark.parametrize(
    ("table", "given", "words"),
    [
        (PRODUCER, {"lingr_ms": 5}, "there is no option 'lingr_ms'; the nearest: linger.ms"),
        (
            TOPIC,
            {"segment.byte": 5},
            "there is no option 'segment.byte'; the nearest: segment.bytes",
        ),
        (TOPIC, {"xyzzy": 5}, "there is no option 'xyzzy'."),
        (CONSUMER, {"linger_ms": 5}, "linger.ms is a producer's option, it has no place here"),
        (
            PRODUCER,
            {"bootstrap_servers": "a:1"},
            "bootstrap.servers means nothing here: the log is",
        ),
        (TOPIC, {"remote.storage.enable": True}, "there is no remote storage"),
        (
            TOPIC,
            {"segment_bytes": 5},
            "segment.bytes must be an integer from 1048576 to 2147483647, not 5",
        ),
        (
            TOPIC,
            {"compression.gzip.level": 0},
            "compression.gzip.level must be an integer from 1 to 9, or -1, not 0",
        ),
        (TOPIC, {"min.cleanable.dirty.ratio": 2}, "must be a number from 0 to 1, not 2"),
        (TOPIC, {"preallocate": 1}, "preallocate must be true or false, not 1"),
        (
            TOPIC,
            {"cleanup_policy": "purge"},
            "cleanup.policy must be a list of compact, delete, not 'purge'",
        ),
        (PRODUCER, {"transactional_id": ""}, "must be a text that is not empty, not ''"),
        (PRODUCER, {"acks": 2}, "acks must be one of all, -1, 0, 1, not 2"),
        (
            CONSUMER,
            {"auto_offset_reset": "by_duration:1h"},
            "latest, earliest, none, by_duration:P1DT2H3M4S, not",
        ),
    ],
)
def test_a_mistake_gets_a_sentence(
    table: Mapping[str, Option], given: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidConfigError, match=re.escape(words)):
        read_options(table, given)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        (TOPIC["segment.bytes"], True),
        (TOPIC["segment.bytes"], 2.0**20),
        (TOPIC["segment.bytes"], None),
        (TOPIC["segment.bytes"], b"1048576"),
        (TOPIC["segment.bytes"], 2**31),
        (TOPIC["min.cleanable.dirty.ratio"], float("nan")),
        (TOPIC["min.cleanable.dirty.ratio"], True),
        (TOPIC["min.cleanable.dirty.ratio"], "inf"),
        (TOPIC["cleanup.policy"], 5),
        (TOPIC["cleanup.policy"], ["delete", 5]),
        (TOPIC["cleanup.policy"], ["delete", "delete"]),
        (CONSUMER["group.id"], 5),
        (CONSUMER["group.id"], b"group"),
        (PRODUCER["acks"], True),
    ],
)
def test_a_value_of_a_wrong_type_is_refused(option: Option, value: object) -> None:
    with pytest.raises(InvalidConfigError):
        option.read(value)


def test_pythons_own_types_are_taken() -> None:
    assert TOPIC["segment.bytes"].read(np.int32(1 << 20)) == 1 << 20
    assert type(TOPIC["segment.bytes"].read(np.int32(1 << 20))) is int
    assert TOPIC["cleanup.policy"].read(["compact", "delete"]) == ("compact", "delete")
    assert TOPIC["cleanup.policy"].read(()) == ()
    assert TOPIC["min.cleanable.dirty.ratio"].read(1) == 1.0
    assert PRODUCER["acks"].read(1) == "1"
    assert PRODUCER["acks"].read(-1) == "-1"
    assert PRODUCER["transactional.id"].read(None) is None
    assert CONSUMER["partition.assignment.strategy"].read(
        "org.apache.kafka.clients.consumer.StickyAssignor,range"
    ) == ("sticky", "range")


@given(st.sampled_from([option.values[1] for option in OPTIONS]), st.text(max_size=12))
def test_any_text_is_read_or_refused_with_a_sentence(option: Option, text: str) -> None:
    try:
        read = option.read(text)
    except InvalidConfigError as error:
        assert option.limits in str(error)  # noqa: PT017
    else:
        kinds = {Kind.BOOLEAN: bool, Kind.DOUBLE: float, Kind.STRING: str, Kind.LIST: tuple}
        assert type(read) is kinds.get(option.kind, int)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("latest", None),
        ("by_duration", None),
        ("by_duration:P1D", 86_400_000),
        ("by_duration:P1DT2H3M4S", 93_784_000),
        ("by_duration:PT1H30M", 5_400_000),
        ("by_duration:PT0.5S", 500),
        ("by_duration:PT1,25S", 1250),
        ("by_duration:PT1.S", 1000),
        ("by_duration:PT0.000999999S", 0),
        ("by_duration:pt90m", 5_400_000),
    ],
)
def test_a_duration_counts_in_milliseconds(text: str, ms: int | None) -> None:
    assert reset_duration_ms(text) == ms
