"""The administrator of a directory that is only read: the same answers as that of an open log, and not a byte changed."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

import oncelog
from oncelog.base.errors import InvalidRequestError, OncelogError

from ..golden_cases import CASES, GOLDEN

if TYPE_CHECKING:
    from pathlib import Path

    from oncelog.client.admin import Admin


def hashes(path: Path) -> dict[str, str]:
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name != ".lock"
    }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Topics, options, a group, transactional ids: one complete, one open."""
    path = tmp_path / "data"
    with oncelog.open(path) as log:
        log.create_topic("a", 2, config={"segment.bytes": 1 << 20})
        log.create_topic("b")
        log.admin().alter_broker_config({"log.retention.ms": 123456})
        with log.producer(transactional_id="done") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("a", key=b"k", value=b"v", partition=0)
        log.admin().alter_consumer_group_offsets("g", {("a", 0): 1, ("b", 0): 0})
    return path


def told(admin: Admin) -> dict[str, object]:
    """All that an administrator tells, leader epochs excepted: each opening has its own."""
    topics = {
        name: (topic.topic_id, [row[:4] for row in topic.partitions])
        for name, topic in admin.describe_topics().items()
        if not isinstance(topic, OncelogError)
    }
    keys = [("a", 0), ("a", 1), ("b", 0)]
    return {
        "topics": topics,
        "listed": admin.list_topics(include_internal=True),
        "options": admin.describe_topic_config("a"),
        "broker": admin.describe_broker_config(),
        "ends": {key: admin.list_offset(*key, "latest")[:2] for key in keys},
        "groups": admin.list_consumer_groups(),
        "group": admin.describe_consumer_groups(["g", "nope"])["g"],
        "committed": admin.list_consumer_group_offsets("g"),
        "plan": admin.plan_reset("g", to="latest"),
        "transactions": admin.list_transactions(),
        "transaction": admin.describe_transaction("done"),
        "producers": admin.describe_producers(keys),
    }


def test_answers_are_those_of_the_open_log_beside_it_and_after_it(data: Path) -> None:
    with oncelog.open(data) as log:
        expected = told(log.admin())
        with oncelog.open(data, read_only=True) as reader:
            assert told(reader.admin()) == expected
    before = hashes(data)
    with oncelog.open(data, read_only=True) as reader:
        assert told(reader.admin()) == expected
    assert hashes(data) == before


def test_an_open_transaction_of_a_live_log_is_seen(data: Path) -> None:
    with oncelog.open(data) as log, oncelog.open(data, read_only=True) as reader:
        producer = log.producer(transactional_id="open")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("a", value=b"v", partition=1).result()
        states = {
            row.transactional_id: row.state.label for row in reader.admin().list_transactions()
        }
        assert states == {"done": "CompleteCommit", "open": "Ongoing"}
        assert reader.admin().list_offset("a", 1, "latest").offset == 0
        producer.abort_transaction()
        assert reader.admin().list_offset("a", 1, "latest").offset == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda admin: admin.create_topic("c"),
        lambda admin: admin.delete_topic("a"),
        lambda admin: admin.increase_partitions("a", 3),
        lambda admin: admin.alter_topic_config("a", {"retention.ms": 1}),
        lambda admin: admin.alter_broker_config({"log.retention.ms": 1}),
        lambda admin: admin.delete_records_before("a", 0, 1),
        lambda admin: admin.delete_consumer_group("g"),
        lambda admin: admin.alter_consumer_group_offsets("g", {("a", 0): 0}),
        lambda admin: admin.delete_consumer_group_offsets("g", [("a", 0)]),
        lambda admin: admin.reset_offsets("g", to="earliest"),
        lambda admin: admin.complete_transaction("done", commit=True),
    ],
)
def test_what_would_change_the_directory_is_refused(data: Path, change: object) -> None:
    before = hashes(data)
    assert callable(change)
    with (
        oncelog.open(data, read_only=True) as reader,
        pytest.raises(InvalidRequestError, match="only read"),
    ):
        change(reader.admin())
    assert hashes(data) == before


@pytest.mark.parametrize("case", CASES)
def test_a_brokers_directory_tells_of_its_topics_without_a_change(case: str) -> None:
    path = GOLDEN / case / "data"
    before = hashes(path)
    with oncelog.open(path, read_only=True) as reader:
        admin = reader.admin()
        names = {topic.name for topic in admin.list_topics(include_internal=True)}
        assert names == reader.topics().keys()
        for topic in admin.list_topics():
            (key, *_) = reader.topics()[topic.name]
            assert admin.list_offset(topic.name, key, "earliest").offset >= 0
        admin.list_transactions()
        admin.describe_consumer_groups([group.group_id for group in admin.list_consumer_groups()])
    assert hashes(path) == before
