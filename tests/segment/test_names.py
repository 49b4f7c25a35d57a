"""Files and directories are named as Kafka names them, and only such names are taken for theirs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.base.errors import InvalidTopicError
from oncelog.segment.names import (
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    TopicPartition,
    check_topic,
    file_name,
    parse_directory,
    parse_file,
)

from ..golden_cases import CASES, GOLDEN

LEGAL = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
topics = st.text(LEGAL, min_size=1, max_size=249).filter(lambda name: name not in {".", ".."})
SUFFIXES = [LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT]


@given(topics, st.integers(0, 2**31 - 1))
def test_a_directory_name_gives_back_its_topic_and_partition(topic: str, partition: int) -> None:
    """Goal: dots and dashes in a topic are legal, also at its end; the last dash divides."""
    key = TopicPartition(topic, partition)
    assert key.directory == f"{topic}-{partition}"
    assert parse_directory(key.directory) == key


@pytest.mark.parametrize(
    "name",
    [
        "", "-", "topic", "topic-", "-0", "topic-x", "topic-1x", "topic--", "topic-1.5", "topic-²", "topic-\u0661",
        "topic-2147483648", "topic-99999999999999999999", "to pic-0", "tópic-0", ".-0", "..-0", "a/b-0",
        f"{'t' * 250}-0", "topic-0.1f2e3d-delete", "topic-0.1f2e3d-future", "topic-0.1f2e3d-stray",
    ],
)  # fmt: skip
def test_a_directory_that_is_no_partitions_is_refused_by_name(name: str) -> None:
    """Goal: no dash, no topic, no number, a partition beyond 32 bits, or one that waits for its deletion."""
    with pytest.raises(InvalidTopicError) as caught:
        parse_directory(name)
    assert repr(name) in str(caught.value) or repr(name.rpartition("-")[0]) in str(caught.value)


@given(st.integers(0, 2**63 - 1), st.sampled_from(SUFFIXES))
def test_a_file_name_gives_back_its_offset_and_kind(offset: int, suffix: str) -> None:
    """Goal: twenty digits, so that names sort as offsets do."""
    name = file_name(offset, suffix)
    assert len(name) == 20 + len(suffix)
    assert parse_file(name) == (offset, suffix)


@pytest.mark.parametrize(
    "name",
    [
        "", ".log", "0.log", "0000000000000000000.log", "000000000000000000000.log", "00000000000000000000",
        "00000000000000000000.lo", "00000000000000000000.logs", "00000000000000000000.log.deleted",
        "00000000000000000000.log.cleaned", "00000000000000000000.log.swap", "00000000000000000000.log.tmp",
        "-0000000000000000001.log", "0000000000000000000\u0663.log", "99999999999999999999.log",
        "09223372036854775808.log", "leader-epoch-checkpoint", "partition.metadata", " 0000000000000000000.log",
        "00000000000000000000.log\n",
    ],
)  # fmt: skip
def test_other_files_are_not_taken_for_a_segments(name: str) -> None:
    """Goal: suffixes of files on their way, names of other files, digits that are not ASCII, offsets past 2^63."""
    assert parse_file(name) is None


def test_every_name_in_a_brokers_directories_is_understood() -> None:
    """Goal: what Kafka wrote is parsed, and made again as it was."""
    files = 0
    for case in CASES:
        for directory in (GOLDEN / case / "data").iterdir():
            if not directory.is_dir():
                continue
            assert parse_directory(directory.name).directory == directory.name
            for path in directory.iterdir():
                found = parse_file(path.name)
                if found is None:
                    assert path.suffix in {"", ".metadata", ".checkpoint"}
                else:
                    assert file_name(*found) == path.name
                    files += 1
    assert files > 300


@pytest.mark.parametrize("topic", ["a", "A.b_c-9", "__consumer_offsets", "t" * 249, "...", "-"])
def test_legal_topics_are_taken(topic: str) -> None:
    check_topic(topic)


@pytest.mark.parametrize(
    "topic", ["", ".", "..", "t" * 250, "a b", "a/b", "a\n", "größe", "a,b", "a\0"]
)
def test_illegal_topics_are_refused(topic: str) -> None:
    with pytest.raises(InvalidTopicError):
        check_topic(topic)
