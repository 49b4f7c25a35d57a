"""Names of the files of a segment, and of the directory of a partition, as Kafka spells them."""

from __future__ import annotations

import functools
import re
from typing import Final, NamedTuple

from ..base.errors import InvalidRequestError, InvalidTopicError

LOG: Final = ".log"
OFFSET_INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
# What a file is on its way to: removal, or the place of others.
DELETED: Final = ".deleted"
CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"

TOPIC_LENGTH_MAX: Final = 249
OFFSET_MAX: Final = 2**63 - 1
PARTITION_MAX: Final = 2**31 - 1
_LEGAL = re.compile(r"[A-Za-z0-9._-]+")
_FILE = re.compile(r"([0-9]{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)")


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    @property
    def directory(self) -> str:
        return f"{self.topic}-{self.partition}"


def partition_key(given: object) -> TopicPartition:
    """A TopicPartition, or a pair that is as good as one."""
    if isinstance(given, tuple) and len(given) == 2:
        topic, partition = given
        if (
            isinstance(topic, str)
            and isinstance(partition, int)
            and not isinstance(partition, bool)
        ):
            return given if isinstance(given, TopicPartition) else TopicPartition(topic, partition)
    raise InvalidRequestError(
        f"a partition is (topic, number), such as ('orders', 0), not {given!r}"
    )


def file_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}{suffix}"


def parse_file(name: str) -> tuple[int, str] | None:
    """(base offset, suffix) of a file of a segment, or None for any other."""
    match = _FILE.fullmatch(name)
    if match is None or int(match[1]) > OFFSET_MAX:
        return None
    return int(match[1]), match[2]


def parse_directory(name: str) -> TopicPartition:
    """The topic and partition that a directory holds; raises for a name that is no partition's."""
    topic, dash, number = name.rpartition("-")
    if not dash or not topic or not number.isascii() or not number.isdigit():
        raise InvalidTopicError(f"directory {name!r} is not named <topic>-<partition>")
    check_topic(topic)
    if int(number) > PARTITION_MAX:
        raise InvalidTopicError(f"directory {name!r} names a partition beyond {PARTITION_MAX}")
    return TopicPartition(topic, int(number))


@functools.lru_cache(maxsize=1024)  # a directory has many partitions of a topic
def _is_legal(topic: str) -> bool:
    return (
        0 < len(topic) <= TOPIC_LENGTH_MAX
        and topic not in (".", "..")
        and _LEGAL.fullmatch(topic) is not None
    )


def check_topic(topic: str) -> None:
    """Raises for a topic name that Kafka does not allow."""
    if not _is_legal(topic):
        raise InvalidTopicError(f"{topic!r} is not a legal topic name")
