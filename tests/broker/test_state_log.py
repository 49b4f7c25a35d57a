"""The log under a coordinator: which partition, one plain batch at a time, read again from the start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oncelog.base.disk import Disk
from oncelog.base.errors import RecordTooLargeError
from oncelog.broker.state_log import StateLog
from oncelog.partition.data_directory import DataDirectory
from oncelog.partition.partition import PartitionOptions
from oncelog.segment.batch import scan
from oncelog.segment.names import TopicPartition
from tests.broker.coordinators import START_MS, TOPIC, TOPIC_ID

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncelog.partition.partition import Partition


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataDirectory]:
    directory = DataDirectory(
        tmp_path / "data",
        Disk(),
        now_ms=lambda: START_MS,
        options_of=lambda _: PartitionOptions(max_message_bytes=400, is_compacted=True),
    )
    yield directory
    directory.close()


def opened(data: DataDirectory, number: int) -> Partition:
    return data.create(TopicPartition(TOPIC, number), TOPIC_ID)


def log_on(data: DataDirectory, *, is_synced: bool = False) -> StateLog:
    return StateLog(
        TOPIC,
        50,
        lambda number: opened(data, number),
        lambda: [key.partition for key in data.partitions],
        7,
        lambda: START_MS,
        is_synced=is_synced,
    )


def test_a_key_lies_where_kafka_puts_it(data: DataDirectory) -> None:
    log = log_on(data)
    assert log.partition_for("") == 0
    assert log.partition_for("polygenelubricants") == 0  # hashes to the smallest int
    assert log.partition_for("a") == 97 % 50
    assert log.partition_for("\U0001f600") == 1772899 % 50  # two UTF-16 units


def test_a_partition_is_made_by_the_first_write_and_not_by_reading(data: DataDirectory) -> None:
    log = log_on(data)
    assert list(log.existing()) == []
    assert log.partition_for("t") == 16
    assert list(log.existing()) == []
    log.append(16, [(b"k", b"v")])
    assert list(log.existing()) == [16]


def test_records_of_one_append_are_one_plain_batch_stamped_with_the_coordinators_epoch(
    data: DataDirectory,
) -> None:
    log = log_on(data)
    assert log.append(3, [(b"a", b"1"), (b"b", None)]) == 2
    assert log.append(3, [(b"a", b"2")]) == 3
    rows = scan(opened(data, 3).log.active.view())
    assert rows["record_count"].tolist() == [2, 1]
    assert rows["partition_leader_epoch"].tolist() == [7, 7]
    assert rows["attributes"].tolist() == [0, 0]
    assert rows["producer_id"].tolist() == [-1, -1]
    assert rows["max_timestamp"].tolist() == [START_MS, START_MS]


def test_replay_gives_everything_from_the_oldest_on(data: DataDirectory) -> None:
    log = log_on(data)
    log.append(3, [(b"a", b"1"), (b"b", b"1")])
    log.append(3, [(b"a", None)])
    log.append(4, [(b"c", b"1")])
    assert list(log.replay(3)) == [(b"a", b"1"), (b"b", b"1"), (b"a", None)]
    assert list(log.replay(4)) == [(b"c", b"1")]


def test_replay_goes_over_segments_and_begins_at_the_log_start(data: DataDirectory) -> None:
    log = log_on(data)
    for number in range(6):
        log.append(3, [(b"k", b"%d" % number)])
        if number % 2:
            opened(data, 3).roll(START_MS)
    assert [value for _, value in log.replay(3)] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    opened(data, 3).delete_records(3)
    assert [value for _, value in log.replay(3)] == [b"3", b"4", b"5"]


def test_replay_of_an_empty_partition_is_empty(data: DataDirectory) -> None:
    opened(data, 3)
    assert list(log_on(data).replay(3)) == []


def test_batches_respect_max_message_bytes(data: DataDirectory) -> None:
    log = log_on(data)
    keys = [b"key-%03d" % number * 4 for number in range(40)]
    groups = list(log.batches(3, ((key, None) for key in keys)))
    assert len(groups) > 1
    assert [key for group in groups for key, _ in group] == keys
    for group in groups:
        log.append(3, group)  # would be refused if it were larger than 400 bytes
    assert [key for key, _ in log.replay(3)] == keys
    assert list(log.batches(3, [])) == []


def test_a_record_that_fits_no_batch_is_refused_and_leaves_no_trace(data: DataDirectory) -> None:
    log = log_on(data)
    (group,) = log.batches(3, [(b"k", bytes(500))])
    with pytest.raises(RecordTooLargeError):
        log.append(3, group)
    assert list(log.replay(3)) == []
    assert log.append(3, [(b"k", b"v")]) == 1


@pytest.mark.parametrize("is_synced", [True, False])
def test_sync_brings_to_the_device_what_durability_promises(
    data: DataDirectory, is_synced: bool
) -> None:
    log = log_on(data, is_synced=is_synced)
    partition = opened(data, 3)
    end = log.append(3, [(b"k", b"v")])
    before = partition.durable_end_offset
    assert before < end
    log.sync(3, end)
    assert partition.durable_end_offset == (end if is_synced else before)
    log.append(3, [(b"k", b"v")])
    log.sync(3)
    assert partition.durable_end_offset == (end + 1 if is_synced else before)


def test_a_partition_that_was_closed_is_opened_again(data: DataDirectory, tmp_path: Path) -> None:
    log = log_on(data)
    log.append(3, [(b"k", b"v")])
    data.close()
    with DataDirectoryOf(tmp_path) as again:
        log._open_partition = lambda number: opened(again, number)
        assert list(log.replay(3)) == [(b"k", b"v")]


class DataDirectoryOf:
    """The same directory, opened anew."""

    def __init__(self, path: Path) -> None:
        self._directory = DataDirectory(path / "data", Disk(), now_ms=lambda: START_MS)

    def __enter__(self) -> DataDirectory:
        return self._directory

    def __exit__(self, *_: object) -> None:
        self._directory.close()
