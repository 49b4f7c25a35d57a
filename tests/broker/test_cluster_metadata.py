"""What a Kafka controller wrote about its topics is understood, or refused with a sentence."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.base.config import BROKER, TOPIC, check_options
from oncelog.base.errors import (
    CorruptFileError,
    CorruptRecordError,
    OncelogError,
    UnsupportedVersionError,
)
from oncelog.base.fields import compact_string, tagged_fields, uvarint
from oncelog.broker.cluster_metadata import (
    DIRECTORY,
    ClusterMetadata,
    TopicInfo,
    read_cluster_metadata,
)
from oncelog.log.checkpoint import read_topic_id
from oncelog.segment.batch import encode, scan

from ..golden_cases import CASES, GOLDEN, LOGS, expected

if TYPE_CHECKING:
    from pathlib import Path

SNAPSHOT_CASE = GOLDEN / "metadata-snapshot"
ID = bytes(range(16))
TOPIC_ID = base64.urlsafe_b64encode(ID).rstrip(b"=").decode()


def frame(kind: int, body: bytes, version: int = 0) -> bytes:
    return uvarint(1) + uvarint(kind) + uvarint(version) + body


def topic(name: str, topic_id: bytes = ID) -> bytes:
    return frame(2, compact_string(name) + topic_id + b"\x00")


def partition(number: int, epoch: int, topic_id: bytes = ID, version: int = 2) -> bytes:
    """Every array has its own length, so that none can be taken for another."""
    arrays = b"".join(uvarint(n + 1) + struct.pack(f">{n}i", *range(n)) for n in (3, 2, 1, 0))
    directories = uvarint(3 + 1) + bytes(48) if version else b""
    body = struct.pack(">i", number) + topic_id + arrays + struct.pack(">iii", 1, epoch, 77)
    return frame(3, body + directories + b"\x00", version)


def partition_change(number: int, *, has_leader: bool, topic_id: bytes = ID) -> bytes:
    tags = [(0, b"\x02\x00\x00\x00\x01"), *([(1, struct.pack(">i", 1))] if has_leader else [])]
    return frame(5, struct.pack(">i", number) + topic_id + tagged_fields(tags))


def config(kind: int, resource: str, name: str, value: str | None) -> bytes:
    text = b"\x00" if value is None else compact_string(value)
    body = struct.pack(">b", kind) + compact_string(resource) + compact_string(name) + text
    return frame(4, body + b"\x00")


def remove_topic(topic_id: bytes = ID) -> bytes:
    return frame(9, topic_id + b"\x00")


def feature(name: str, level: int) -> bytes:
    return frame(12, compact_string(name) + struct.pack(">h", level) + b"\x00")


def producer_ids(next_id: int) -> bytes:
    return frame(15, struct.pack(">iqq", 1, 2, next_id) + b"\x00")


BEGIN, END, ABORT = frame(23, b"\x00\x00"), frame(24, b"\x00"), frame(25, b"\x00\x00")


def write_log(root: Path, frames: list[bytes], base_offset: int = 0) -> Path:
    folder = root / DIRECTORY
    folder.mkdir(exist_ok=True)
    path = folder / f"{base_offset:020d}.log"
    path.write_bytes(bytes(encode(frames, base_offset=base_offset, timestamp_ms=1)))
    return path


def read(root: Path, *frames: bytes) -> ClusterMetadata:
    write_log(root, list(frames))
    found = read_cluster_metadata(str(root))
    assert found is not None
    return found


@pytest.mark.parametrize("case", CASES)
def test_topics_are_those_whose_partitions_are_there(case: str) -> None:
    data = GOLDEN / case / "data"
    found = read_cluster_metadata(str(data))
    assert found is not None
    said = expected(case)
    for directory in data.glob("*/partition.metadata"):
        name, _, number = directory.parent.name.rpartition("-")
        if directory.parent.name == DIRECTORY:
            continue
        assert found.topics[name].topic_id == read_topic_id(str(directory))
        assert int(number) in found.topics[name].leader_epochs
    for name, topic_id in said["topicIds"].items():
        assert found.topics[name].topic_id == topic_id
    for name, info in found.topics.items():
        assert sorted(info.leader_epochs) == list(range(info.partitions))
        assert name in said["topicIds"]


@pytest.mark.parametrize("case", CASES)
def test_the_next_producer_id_is_above_all_that_were_used(case: str) -> None:
    found = read_cluster_metadata(str(GOLDEN / case / "data"))
    assert found is not None
    used = [
        int(rows["producer_id"].max())
        for log in LOGS
        if log.case == case and case != "killed"
        for rows in [scan(log.read())]
        if len(rows)
    ]
    assert found.next_producer_id > max(used, default=0)
    assert found.next_producer_id % 1000 == 0


@pytest.mark.parametrize("case", CASES)
def test_configs_are_options_that_we_know(case: str) -> None:
    found = read_cluster_metadata(str(GOLDEN / case / "data"))
    assert found is not None
    for options in found.topic_configs.values():
        assert set(check_options(TOPIC, options)) == set(options)
    assert check_options(BROKER, found.broker_configs) == {"min.insync.replicas": 1}
    assert found.features["transaction.version"] == (1 if case.endswith("-tv1") else 2)
    assert found.features["metadata.version"] == 30


def test_configs_are_what_the_cases_were_made_with() -> None:
    compacted = read_cluster_metadata(str(GOLDEN / "compacted/data"))
    assert compacted is not None
    assert compacted.topic_configs["compact-nodelay"] == {
        "cleanup.policy": "compact",
        "retention.ms": "-1",
        "index.interval.bytes": "512",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "0",
        "internal.segment.bytes": "8192",
    }
    offsets = read_cluster_metadata(str(GOLDEN / "txn-offsets/data"))
    assert offsets is not None
    assert offsets.topics["__consumer_offsets"].partitions == 50
    assert offsets.topics["in"].partitions == 2


def test_the_newest_snapshot_and_the_log_behind_it_give_what_the_broker_said() -> None:
    """Goal: topics, configs and features as Kafka's admin client saw them, though the log's start is gone."""
    said = json.loads((SNAPSHOT_CASE / "said.json").read_text())
    found = read_cluster_metadata(str(SNAPSHOT_CASE / "data"))
    assert found is not None
    topics = {
        name: {"topicId": info.topic_id, "partitions": info.partitions}
        for name, info in found.topics.items()
    }
    assert topics == said["topics"]
    assert found.topic_configs == said["topicConfigs"]
    assert found.broker_configs == said["brokerConfigs"]
    assert found.features == said["features"]
    assert found.next_producer_id == 1000


def test_an_older_snapshot_with_more_of_the_log_gives_the_same(tmp_path: Path) -> None:
    shutil.copytree(SNAPSHOT_CASE / "data", tmp_path, dirs_exist_ok=True)
    before = read_cluster_metadata(str(tmp_path))
    (tmp_path / DIRECTORY / "00000000000000000238-0000000001.checkpoint").unlink()
    assert read_cluster_metadata(str(tmp_path)) == before


def test_a_snapshot_that_is_cut_is_refused(tmp_path: Path) -> None:
    shutil.copytree(SNAPSHOT_CASE / "data", tmp_path, dirs_exist_ok=True)
    path = tmp_path / DIRECTORY / "00000000000000000238-0000000001.checkpoint"
    whole = path.read_bytes()
    ends = [int(row["position"]) for row in scan(whole)]
    for size in (0, 1, ends[-1], ends[-1] + 30, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises((CorruptFileError, CorruptRecordError)):
            read_cluster_metadata(str(tmp_path))


def test_a_snapshot_that_is_still_being_written_does_not_count(tmp_path: Path) -> None:
    shutil.copytree(SNAPSHOT_CASE / "data", tmp_path, dirs_exist_ok=True)
    before = read_cluster_metadata(str(tmp_path))
    (tmp_path / DIRECTORY / "00000000000000000270-0000000001.checkpoint.part").write_bytes(b"half")
    assert read_cluster_metadata(str(tmp_path)) == before


def test_a_log_whose_start_is_gone_needs_a_snapshot(tmp_path: Path) -> None:
    shutil.copytree(SNAPSHOT_CASE / "data", tmp_path, dirs_exist_ok=True)
    for path in (tmp_path / DIRECTORY).glob("*.checkpoint"):
        path.unlink()
    with pytest.raises(CorruptFileError, match="begins at 146"):
        read_cluster_metadata(str(tmp_path))


def test_a_directory_without_metadata_has_none(tmp_path: Path) -> None:
    assert read_cluster_metadata(str(tmp_path)) is None


def test_each_record_has_its_effect(tmp_path: Path) -> None:
    other = bytes(reversed(range(16)))
    found = read(
        tmp_path,
        feature("metadata.version", 30),
        feature("transaction.version", 2),
        feature("share.version", 1),
        topic("orders"),
        partition(0, 5),
        partition(1, 6, version=0),
        partition_change(0, has_leader=True),
        partition_change(0, has_leader=True),
        partition_change(1, has_leader=False),
        config(2, "orders", "retention.ms", "5"),
        config(2, "orders", "segment.ms", "6"),
        config(2, "orders", "segment.ms", None),
        config(2, "orders", "no.such", None),
        config(4, "", "log.retention.ms", "7"),
        config(4, "1", "log.retention.ms", "8"),
        config(4, "2", "log.retention.ms", "9"),
        config(16, "metrics", "interval.ms", "5"),
        topic("gone", other),
        partition(0, 1, other),
        config(2, "gone", "retention.ms", "5"),
        remove_topic(other),
        feature("share.version", 0),
        producer_ids(3000),
        producer_ids(4000),
    )
    assert found == ClusterMetadata(
        {"orders": TopicInfo(TOPIC_ID, 2, {0: 7, 1: 6})},
        {"orders": {"retention.ms": "5"}},
        {"log.retention.ms": "7"},
        4000,
        {"metadata.version": 30, "transaction.version": 2},
    )


def test_the_brokers_own_config_goes_before_the_clusters(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=2\n")
    found = read(
        tmp_path,
        config(4, "2", "log.retention.ms", "9"),
        config(4, "", "log.retention.ms", "7"),
        config(4, "", "log.roll.ms", "8"),
        config(4, "1", "log.roll.ms", "1"),
    )
    assert found.broker_configs == {"log.retention.ms": "9", "log.roll.ms": "8"}


def test_a_topic_made_anew_has_no_config_of_the_old_one(tmp_path: Path) -> None:
    other = bytes(reversed(range(16)))
    found = read(
        tmp_path,
        topic("orders"),
        partition(0, 5),
        config(2, "orders", "retention.ms", "5"),
        remove_topic(),
        topic("orders", other),
        partition(0, 0, other),
    )
    assert found.topic_configs == {}
    assert found.topics["orders"].leader_epochs == {0: 0}
    assert found.topics["orders"].topic_id != TOPIC_ID


def test_a_controllers_transaction_counts_when_it_has_ended(tmp_path: Path) -> None:
    a, b, c = (bytes([n]) * 16 for n in range(1, 4))
    found = read(
        tmp_path, BEGIN, topic("a", a), END, BEGIN, topic("b", b), ABORT, BEGIN, topic("c", c)
    )
    assert set(found.topics) == {"a"}


def test_records_that_are_not_known_are_passed_over(tmp_path: Path) -> None:
    found = read(tmp_path, frame(20, b""), frame(999, b"\xff\xff", 9), topic("orders"))
    assert set(found.topics) == {"orders"}


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (frame(2, b"", 1), "record 0 of the metadata is of type 2 and version 1, and at most 0"),
        (frame(3, b"", 3), "type 3 and version 3"),
        (b"\x02" + topic("orders")[1:], "frame version 2"),
    ],
)
def test_a_newer_version_is_named(tmp_path: Path, record: bytes, words: str) -> None:
    with pytest.raises(UnsupportedVersionError, match=words):
        read(tmp_path, record)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (partition(0, 0), "names topic .* which does not exist"),
        (remove_topic(), "removes topic .* which does not exist"),
        (topic("orders")[:-2], "the topic id needs 16 bytes"),
        (b"", "the varint of the frame version has no end"),
        (frame(2, b"\x00" + ID), "the topic's name is null"),
        (frame(12, b"\x02\xff\x00\x01\x00"), "not UTF-8"),
    ],
)
def test_a_record_that_makes_no_sense_is_refused(tmp_path: Path, record: bytes, words: str) -> None:
    with pytest.raises(CorruptRecordError, match=words):
        read(tmp_path, record)


def test_a_change_of_a_partition_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptRecordError, match="changes partition 3"):
        read(tmp_path, topic("orders"), partition_change(3, has_leader=True))


def test_an_array_cannot_claim_more_than_there_is(tmp_path: Path) -> None:
    body = struct.pack(">i", 0) + ID + b"\xff\xff\xff\xff\x0f"
    with pytest.raises(CorruptRecordError, match="replicas cannot have 4294967294 entries"):
        read(tmp_path, topic("orders"), frame(3, body))


def test_a_torn_last_batch_never_counted(tmp_path: Path) -> None:
    """Goal: after a crash of the controller its directory can still be taken over."""
    write_log(tmp_path, [topic("orders")])
    late = write_log(tmp_path, [topic("late", bytes(16))], base_offset=1)
    whole = late.read_bytes()
    for size in range(len(whole)):
        late.write_bytes(whole[:size])
        found = read_cluster_metadata(str(tmp_path))
        assert found is not None
        assert set(found.topics) == {"orders"}


def test_damage_before_the_end_is_refused(tmp_path: Path) -> None:
    first = write_log(tmp_path, [topic("orders")])
    write_log(tmp_path, [topic("late", bytes(16))], base_offset=1)
    whole = first.read_bytes()
    first.write_bytes(whole[:-1])
    with pytest.raises(CorruptRecordError):
        read_cluster_metadata(str(tmp_path))
    first.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CorruptRecordError):
        read_cluster_metadata(str(tmp_path))


@given(
    st.lists(st.binary(max_size=40), max_size=4), st.sampled_from([2, 3, 4, 5, 9, 12, 15, 23, 25])
)
def test_any_bytes_give_metadata_or_a_typed_error(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[bytes], kind: int
) -> None:
    root = tmp_path_factory.mktemp("hostile")
    with contextlib.suppress(OncelogError):
        read(root, topic("orders"), *(frame(kind, body) for body in bodies))
