"""The administrator: topics, options and records are listed, described and changed, and every mistake is a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import oncelog
from oncelog.base.errors import (
    ClosedError,
    ElectionNotNeededError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    OncelogError,
    PolicyViolationError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from oncelog.client.admin import (
    Admin,
    ConfigChange,
    ConfigResource,
    DeletedRecords,
    NewTopic,
    TopicListing,
)
from oncelog.segment.batch import encode
from oncelog.segment.names import TopicPartition

from ..broker.brokers import NOW, ORDERS, ManualClock, VerbProducer, opened, plain, values_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncelog.broker.broker import Broker

SIDE = TopicPartition("side", 1)
NOWHERE = TopicPartition("nowhere", 0)


class Desk:
    """A broker with topics orders (one partition) and side (two), and its administrator."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.admin = Admin(broker)

    def append(self, key: TopicPartition, count: int, *, timestamp_ms: int = NOW) -> None:
        for number in range(count):
            batch = encode([b"%d" % number], timestamp_ms=timestamp_ms + number)
            self.broker.produce(key, memoryview(batch))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with opened(tmp_path, topics={"orders": 1, "side": 2}) as broker:
        yield Desk(broker)


def kinds(answers: dict[Any, Any]) -> dict[Any, type]:
    """What kind of answer each name got."""
    return {key: type(answer) for key, answer in answers.items()}


# ---------------------------------------------------------------- the door


def test_an_open_log_has_an_administrator(tmp_path: Path) -> None:
    with oncelog.open(tmp_path) as log:
        admin = log.admin()
        assert admin.create_topic("payments", 2).name == "payments"
        assert log.topics() == {"payments": [0, 1]}
        assert repr(admin) == f"Admin({str(tmp_path)!r})"
    with pytest.raises(ClosedError):
        admin.create_topic("late")
    with oncelog.open(tmp_path, read_only=True) as directory:
        looking = directory.admin()
        assert [topic.name for topic in looking.list_topics()] == ["payments"]
        assert repr(looking) == f"DirectoryAdmin({str(tmp_path)!r})"
        with pytest.raises(InvalidRequestError, match="is only read, and create_topics would"):
            looking.create_topic("late")


# ---------------------------------------------------------------- topics


def test_topics_are_made_listed_described_and_removed(desk: Desk) -> None:
    admin = desk.admin
    made = admin.create_topics([NewTopic("a", 3), NewTopic("b")])
    assert kinds(made) == {"a": type(made["a"]), "b": type(made["a"])}
    assert [len(made[name].partitions) for name in "ab"] == [3, 1]  # type: ignore[union-attr]
    assert [topic.name for topic in admin.list_topics()] == ["a", "b", "orders", "side"]
    assert admin.describe_topic("a") == made["a"]
    assert admin.describe_topics(["a", "b"]) == made
    assert set(admin.describe_topics()) == {"a", "b", "orders", "side"}
    assert admin.delete_topics(["a", "orders"]) == {"a": None, "orders": None}
    admin.delete_topic("b")
    listed = admin.list_topics()
    assert listed == [TopicListing("side", admin.describe_topic("side").topic_id, False)]


def test_internal_topics_are_listed_only_when_asked_for(desk: Desk) -> None:
    VerbProducer(desk.broker, "t")
    assert [topic.name for topic in desk.admin.list_topics()] == ["orders", "side"]
    listed = desk.admin.list_topics(include_internal=True)
    assert [(topic.name, topic.is_internal) for topic in listed] == [
        ("__transaction_state", True),
        ("orders", False),
        ("side", False),
    ]


def test_validate_only_makes_nothing(desk: Desk) -> None:
    assert desk.admin.create_topic("a", 3, validate_only=True).name == "a"
    with pytest.raises(TopicAlreadyExistsError, match="orders"):
        desk.admin.create_topic("orders", validate_only=True)
    assert [topic.name for topic in desk.admin.list_topics()] == ["orders", "side"]


def test_each_topic_that_cannot_be_made_has_its_reason_and_the_others_are_made(desk: Desk) -> None:
    answers = desk.admin.create_topics(
        [
            NewTopic("good"),
            NewTopic("orders"),
            NewTopic("a/b"),
            NewTopic("none", 0),
            NewTopic("copies", 1, 3),
            NewTopic("odd", 1, 1, {"retention.mss": 1}),
        ]
    )
    assert kinds(answers) == {
        "good": type(answers["good"]),
        "orders": TopicAlreadyExistsError,
        "a/b": InvalidTopicError,
        "none": InvalidPartitionsError,
        "copies": InvalidReplicationFactorError,
        "odd": InvalidConfigError,
    }
    assert "retention.ms" in str(answers["odd"])
    assert [topic.name for topic in desk.admin.list_topics()] == ["good", "orders", "side"]


def test_arguments_of_the_wrong_shape_are_refused_before_anything_is_done(desk: Desk) -> None:
    """Goal: a text where a list is meant, a name given twice, a count that is no number: nothing is half done."""
    admin = desk.admin
    any_: Any = admin
    for call, sentence in (
        (lambda: admin.delete_topics("orders"), r"give a list of names: \['orders'\]"),
        (lambda: any_.delete_topics(5), "give a list"),
        (lambda: any_.delete_topics(["orders", 5]), "the name of a topic is a text, not 5"),
        (lambda: admin.delete_topics(["side", "orders", "side"]), "'side' is given twice"),
        (lambda: admin.create_topics([NewTopic("a"), NewTopic("a")]), "'a' is given twice"),
        (lambda: any_.create_topics([NewTopic("a"), "b"]), "a NewTopic, not 'b'"),
        (lambda: any_.create_topic("a", "3"), "the number of partitions is an integer, not '3'"),
        (lambda: any_.create_topic("a", 1, replication_factor=None), "is an integer, not None"),
        (lambda: any_.create_partitions({"side": 3, "orders": "2"}), "an integer, not '2'"),
        (lambda: any_.create_partitions(["side"]), "give a dict of topics"),
        (lambda: any_.elect_leaders(["orders"]), r"\(topic, number\)"),
        (lambda: any_.elect_leaders(5), "give a list of partitions"),
        (lambda: any_.elect_leaders(ORDERS), r"give a list of partitions: \[TopicPartition"),
        (lambda: any_.create_topics(NewTopic("a")), r"give a list of new topics: \[NewTopic"),
        (lambda: any_.create_topics([NewTopic("a", 1, 1, 5)]), "give a dict of options, not 5"),  # type: ignore[arg-type]
        (lambda: any_.create_topic("a", config={5: 1}), "the name of an option is a text, not 5"),
        (lambda: any_.increase_partitions([], 3), r"the name of a topic is a text, not \[\]"),
        (lambda: admin.elect_leaders([ORDERS], election_type="fair"), "preferred or unclean"),
        (lambda: any_.delete_records({ORDERS: 0, SIDE: "1"}), "an offset is an integer, not '1'"),
        (lambda: admin.delete_records({ORDERS: -2}), "an offset is at least -1, not -2"),
        (lambda: admin.delete_records({ORDERS: 2**63}), "an offset is at most"),
        (lambda: any_.list_offsets([ORDERS]), "give a dict of partitions"),
        (lambda: admin.list_offsets({ORDERS: "newest"}), "'latest', 'earliest', 'max_timestamp'"),
        (lambda: admin.list_offsets({ORDERS: -1}), "is at least 0, not -1"),
        (lambda: any_.list_offsets({ORDERS: True}), "is an integer, not True"),
    ):
        with pytest.raises(InvalidRequestError, match=sentence):
            call()
    assert [topic.name for topic in admin.list_topics()] == ["orders", "side"]
    assert len(admin.describe_topic("side").partitions) == 2


def test_what_does_not_exist_is_named(desk: Desk) -> None:
    admin = desk.admin
    sentence = "there is no topic 'nowhere', only orders, side"
    for call in (
        lambda: admin.describe_topic("nowhere"),
        lambda: admin.delete_topic("nowhere"),
        lambda: admin.increase_partitions("nowhere", 3),
        lambda: admin.describe_topic_config("nowhere"),
        lambda: admin.alter_topic_config("nowhere", {"retention.ms": 1}),
        lambda: admin.list_offset(*NOWHERE, "latest"),
        lambda: admin.delete_records_before(*NOWHERE, 1),
    ):
        with pytest.raises(UnknownTopicOrPartitionError, match=sentence):
            call()
    with pytest.raises(UnknownTopicOrPartitionError, match="partitions 0 to 1, not 7"):
        admin.list_offset("side", 7, "latest")


def test_partitions_are_added_and_never_taken_away(desk: Desk) -> None:
    admin = desk.admin
    admin.increase_partitions("orders", 3)
    assert [row.partition for row in admin.describe_topic("orders").partitions] == [0, 1, 2]
    answers = admin.create_partitions({"orders": 2, "side": 4, "nowhere": 2})
    assert kinds(answers) == {
        "orders": InvalidPartitionsError,
        "side": type(None),
        "nowhere": UnknownTopicOrPartitionError,
    }
    assert len(admin.describe_topic("side").partitions) == 4
    with pytest.raises(InvalidPartitionsError, match="3 partitions, and 3 would not be more"):
        admin.increase_partitions("orders", 3)


def test_no_leader_needs_to_be_elected(desk: Desk) -> None:
    answers = desk.admin.elect_leaders([ORDERS, ("side", 9), NOWHERE])
    assert kinds(answers) == {
        ORDERS: ElectionNotNeededError,
        TopicPartition("side", 9): UnknownTopicOrPartitionError,
        NOWHERE: UnknownTopicOrPartitionError,
    }
    assert kinds(desk.admin.elect_leaders([ORDERS], election_type="unclean")) == {
        ORDERS: ElectionNotNeededError
    }
    assert desk.admin.elect_leaders() == {}


def test_the_brokers_own_topics_stay(desk: Desk) -> None:
    VerbProducer(desk.broker, "t")
    state = "__transaction_state"
    for call in (
        lambda: desk.admin.delete_topic(state),
        lambda: desk.admin.increase_partitions(state, 51),
        lambda: desk.admin.delete_records_before(state, 0, -1),
    ):
        with pytest.raises(InvalidTopicError, match=state):
            call()


# ---------------------------------------------------------------- configs


def test_a_topics_options_say_who_set_them(tmp_path: Path) -> None:
    with opened(tmp_path, config={"log.retention.hours": 1}) as broker:
        admin = Admin(broker)
        admin.create_topic(
            "t", config={"segment.bytes": 1 << 20, "cleanup.policy": "compact,delete"}
        )
        config = admin.describe_topic_config("t")
        assert config["segment.bytes"][:4] == ("segment.bytes", 1 << 20, "1048576", "topic")
        assert config["cleanup.policy"].value == ("compact", "delete")
        assert config["cleanup.policy"].text == "compact,delete"
        assert config["retention.ms"][1:4] == (3_600_000, "3600000", "broker")
        assert config["flush.messages"].source == "default"
        assert config["flush.messages"].is_default
        assert config["flush.messages"].doc
        assert not config["flush.messages"].is_read_only


def test_topic_options_are_altered_step_by_step_all_or_none(desk: Desk) -> None:
    admin, orders = desk.admin, ConfigResource("topic", "orders")
    admin.alter_topic_config("orders", {"retention.ms": "1000", "max_message_bytes": 5000})
    answers = admin.incremental_alter_configs(
        {
            orders: [
                ConfigChange("retention.ms", "delete"),
                ConfigChange("cleanup.policy", "append", "compact"),
            ]
        }
    )
    assert answers == {orders: None}
    config = admin.describe_topic_config("orders")
    assert config["retention.ms"].is_default
    assert config["max.message.bytes"].value == 5000
    assert config["cleanup.policy"].value == ("delete", "compact")
    with pytest.raises(InvalidConfigError, match=r"segment\.bytes must be"):
        admin.alter_topic_config("orders", {"max.message.bytes": 6000, "segment.bytes": -5})
    assert admin.describe_topic_config("orders") == config
    admin.alter_topic_config("orders", {"max.message.bytes": None})
    assert admin.describe_topic_config("orders")["max.message.bytes"].is_default


def test_validate_only_alters_nothing(desk: Desk) -> None:
    before = desk.admin.describe_topic_config("orders"), desk.admin.describe_broker_config()
    changes = {
        ConfigResource("topic", "orders"): [ConfigChange("retention.ms", "set", 5)],
        ConfigResource("broker"): [ConfigChange("log.retention.ms", "set", 5)],
    }
    answers = desk.admin.incremental_alter_configs(changes, validate_only=True)
    assert set(answers.values()) == {None}
    after = desk.admin.describe_topic_config("orders"), desk.admin.describe_broker_config()
    assert after == before


def test_broker_options_are_altered_for_now_and_for_every_opening(tmp_path: Path) -> None:
    """Goal: what is altered wins over what open is told, reaches topics that have no value of their own, and stays."""
    given = {"log.retention.ms": 5000, "num.partitions": 2}
    with opened(tmp_path, topics={"orders": 1, "own": 1}, config=given) as broker:
        admin = Admin(broker)
        admin.alter_topic_config("own", {"retention.ms": 7})
        config = admin.describe_broker_config()
        assert config["log.retention.ms"][1:5] == (5000, "5000", "open", False)
        assert config["num.partitions"].is_read_only
        admin.alter_broker_config({"log.retention.ms": 6000, "message.max.bytes": 200})
        assert admin.describe_broker_config()["log.retention.ms"].source == "broker"
        assert admin.describe_topic_config("orders")["retention.ms"].value == 6000
        assert admin.describe_topic_config("own")["retention.ms"].value == 7
        with pytest.raises(OncelogError, match="200"):
            broker.produce(ORDERS, plain(broker, b"x" * 300))
    with opened(tmp_path, config=given) as broker:
        admin = Admin(broker)
        assert admin.describe_topic_config("orders")["retention.ms"].value == 6000
        admin.alter_broker_config({"log.retention.ms": None, "message_max_bytes": None})
        assert admin.describe_broker_config()["log.retention.ms"][1:4] == (5000, "5000", "open")
        broker.produce(ORDERS, plain(broker, b"x" * 300))
    with opened(tmp_path, config=given) as broker:
        assert Admin(broker).describe_topic_config("orders")["retention.ms"].value == 5000


def test_broker_options_that_cannot_be_altered_are_refused_all_or_none(desk: Desk) -> None:
    admin = desk.admin
    before = admin.describe_broker_config()
    for config, error, sentence in (
        ({"num.partitions": 3}, InvalidRequestError, "num.partitions cannot be changed while"),
        ({"num.partitions": None}, InvalidRequestError, "num.partitions cannot be changed while"),
        ({"log.retention.hours": 3}, InvalidRequestError, "log.retention.hours cannot be changed"),
        ({"log.retention.mss": 3}, InvalidConfigError, "nearest: log.retention.ms"),
        ({"log.retention.mss": None}, InvalidConfigError, "nearest: log.retention.ms"),
        ({"log.retention.ms": "soon"}, InvalidConfigError, "must be an integer"),
        ({"retention.ms": 3}, InvalidConfigError, "retention.ms is a topic's option"),
        ({"log.retention.ms": 0}, InvalidConfigError, "at least one millisecond"),
    ):
        with pytest.raises(error, match=sentence):
            admin.alter_broker_config({"log.segment.bytes": 1 << 20, **config})
    admin.alter_topic_config("orders", {"min.compaction.lag.ms": 500})
    with pytest.raises(InvalidConfigError, match=r"min\.compaction\.lag\.ms"):
        admin.alter_broker_config({"log.cleaner.max.compaction.lag.ms": 100})
    assert admin.describe_broker_config() == before


def test_what_another_version_has_altered_is_passed_over_with_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as broker:
        broker._metadata.put({"broker_config": {"no.such": 1, "log.retention.ms": 5}})
    with opened(tmp_path) as broker:
        assert Admin(broker).describe_broker_config()["log.retention.ms"].value == 5
    assert "no.such=1 was set by another version" in caplog.text


def test_a_list_of_the_broker_is_appended_to(desk: Desk) -> None:
    broker = ConfigResource("broker")
    step = ConfigChange("log.cleanup.policy", "append", "compact")
    assert desk.admin.incremental_alter_configs({broker: [step]}) == {broker: None}
    config = desk.admin.describe_topic_config("orders")
    assert config["cleanup.policy"].value == ("delete", "compact")


def test_resources_and_changes_of_the_wrong_shape_are_refused(desk: Desk) -> None:
    any_: Any = desk.admin
    orders = ConfigResource("topic", "orders")
    good = ConfigChange("retention.ms", "set", 5)
    for call, sentence in (
        (lambda: any_.describe_configs([ConfigResource("group", "g")]), "belong to"),
        (lambda: any_.describe_configs(["topic"]), "belong to"),
        (lambda: any_.describe_configs([("topic", 5)]), "name of a resource is a text, not 5"),
        (lambda: any_.describe_configs([("broker", "99")]), "node 1, not '99'"),
        (lambda: any_.incremental_alter_configs([orders]), "give a dict of resources"),
        (lambda: any_.incremental_alter_configs({orders: [good, ("a", "b")]}), "a ConfigChange"),
        (lambda: any_.incremental_alter_configs({orders: good}), "give a list of changes"),
        (lambda: any_.describe_configs(orders), "give a list of resources"),
        (lambda: any_.alter_topic_config([], {}), r"the name of a topic is a text, not \[\]"),
        (lambda: any_.alter_topic_config("orders", ["retention.ms"]), "give a dict of options"),
    ):
        with pytest.raises(InvalidRequestError, match=sentence):
            call()  # type: ignore[no-untyped-call]
    node = ConfigResource("broker", str(desk.broker.node_id))
    assert desk.admin.describe_configs([node]).keys() == {node}
    odd = ConfigChange("retention.ms", "increase", 5)
    refused = desk.admin.incremental_alter_configs({orders: [good, odd]})[orders]
    assert isinstance(refused, InvalidConfigError)
    assert "retention.ms cannot be changed by 'increase'" in str(refused)
    assert desk.admin.describe_topic_config("orders")["retention.ms"].is_default


# ---------------------------------------------------------------- records


def test_offsets_are_listed_by_name_and_time_at_both_isolation_levels(desk: Desk) -> None:
    """Method: three plain records, then an open transaction of two with later timestamps."""
    admin = desk.admin
    desk.append(ORDERS, 3, timestamp_ms=NOW - 1000)
    producer = VerbProducer(desk.broker, "t")
    producer.send(ORDERS, b"a", b"b")
    for spec, committed, uncommitted in (
        ("earliest", 0, 0),
        ("latest", 3, 5),
        ("max_timestamp", -1, 3),
        (NOW - 999, 1, 1),
        (NOW - 500, -1, 3),
        (NOW + 1, -1, -1),
    ):
        assert admin.list_offset(*ORDERS, spec).offset == committed, spec
        listed = admin.list_offset(*ORDERS, spec, isolation_level="read_uncommitted")
        assert listed.offset == uncommitted, spec
    assert admin.list_offset(*ORDERS, NOW - 999).timestamp == NOW - 999
    producer.commit()
    assert admin.list_offset(*ORDERS, "max_timestamp")[:2] == (3, NOW)
    assert admin.list_offset(*ORDERS, "latest").offset == 6
    with pytest.raises(ValueError, match="read_committed"):
        admin.list_offsets({ORDERS: "latest"}, isolation_level="dirty")


def test_several_offsets_are_listed_and_errors_stand_beside_them(desk: Desk) -> None:
    answers = desk.admin.list_offsets({ORDERS: "latest", ("side", 5): "latest", NOWHERE: 0})
    assert answers[ORDERS].offset == 0  # type: ignore[union-attr]
    assert isinstance(answers[TopicPartition("side", 5)], UnknownTopicOrPartitionError)
    assert isinstance(answers[NOWHERE], UnknownTopicOrPartitionError)
    assert desk.admin.list_offset(*ORDERS, "max_timestamp")[:2] == (-1, -1)


def test_records_are_deleted_below_an_offset(desk: Desk) -> None:
    admin = desk.admin
    desk.append(ORDERS, 5)
    desk.append(SIDE, 2)
    assert admin.delete_records_before(*ORDERS, 3) == 3
    assert values_of(desk.broker) == [b"3", b"4"]
    answers = admin.delete_records({ORDERS: 9, SIDE: -1, NOWHERE: 0})
    assert isinstance(answers[ORDERS], OffsetOutOfRangeError)
    assert "cannot delete up to 9: the high watermark is 5" in str(answers[ORDERS])
    assert answers[SIDE] == DeletedRecords(2)
    assert isinstance(answers[NOWHERE], UnknownTopicOrPartitionError)
    assert admin.list_offset(*SIDE, "earliest").offset == 2
    assert admin.delete_records_before(*ORDERS, 1) == 3


def test_records_of_a_compacted_topic_are_deleted_only_if_its_policy_says_so(desk: Desk) -> None:
    admin = desk.admin
    desk.append(ORDERS, 5)
    admin.alter_topic_config("orders", {"cleanup.policy": "compact"})
    with pytest.raises(PolicyViolationError, match=r"orders-0 cannot be deleted.*is compact"):
        admin.delete_records_before(*ORDERS, 3)
    assert admin.list_offset(*ORDERS, "earliest").offset == 0
    admin.alter_topic_config("orders", {"cleanup.policy": "compact,delete"})
    assert admin.delete_records_before(*ORDERS, 3) == 3


def test_sizes_of_partitions_are_those_of_their_logs(desk: Desk, tmp_path: Path) -> None:
    desk.append(ORDERS, 3)
    (described,) = desk.admin.describe_log_dirs().values()
    assert described.path == str(tmp_path)
    assert set(described.replicas) == {ORDERS, TopicPartition("side", 0), SIDE}
    on_disk = sum(path.stat().st_size for path in (tmp_path / "orders-0").glob("*.log"))
    assert described.replicas[ORDERS].size == described.size == on_disk > 0
    (only,) = desk.admin.describe_log_dirs(["side", "nowhere"]).values()
    assert set(only.replicas) == {TopicPartition("side", 0), SIDE}


def test_clock_is_only_the_brokers(tmp_path: Path) -> None:
    """Goal: the administrator has no time of its own. Method: a clock that stands still in 2023."""
    clock = ManualClock()
    with opened(tmp_path, topics={"orders": 1}, clock=clock) as broker:
        VerbProducer(broker, "t").send(ORDERS, b"a")
        clock.advance(500)
        admin = Admin(broker)
        assert admin.list_transactions(duration_ms_min=499)
        assert not admin.list_transactions(duration_ms_min=500)
