"""Options of the source: the names and meanings of Spark's Kafka source, and those that only files have.

Where several say where to begin (or end), the order is Kafka's: a time for all partitions, times by partition, offsets.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .options import (
    Option,
    boolean,
    duration_ms,
    one_of,
    positive,
    read_options,
    size_bytes,
    text,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    Key = tuple[str, int]  # topic and partition

logger = logging.getLogger("oncelog.spark")
LATEST: Final = -1  # in offsets given as JSON, as Kafka writes them
EARLIEST: Final = -2
_OFFSETS_EXAMPLE: Final = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
_ASSIGN_EXAMPLE: Final = '{"topicA":[0,1],"topicB":[2]}'


@dataclass(frozen=True)
class Place:
    """Where a read begins or ends. ``option`` names what said so, for errors."""

    option: str
    word: str = ""  # earliest or latest, for all partitions
    offsets: Mapping[Key, int] | None = None
    timestamp_ms: int | None = None  # for all partitions
    timestamps_ms: Mapping[Key, int] | None = None


def _object(value: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"must be JSON such as {example}, not {value!r}")
    return found


def by_partition(value: str, example: str = _OFFSETS_EXAMPLE) -> dict[Key, int]:
    """Kafka's JSON of a number for each partition."""
    found: dict[Key, int] = {}
    for topic, numbers in _object(value, example).items():
        if not isinstance(numbers, dict):
            raise ValueError(f"must be JSON such as {example}, not {value!r}")
        for partition, number in numbers.items():
            is_number = isinstance(number, int) and not isinstance(number, bool)
            if not re.fullmatch(r"\d{1,9}", partition) or not is_number:
                raise ValueError(f"must be JSON such as {example}, not {value!r}")
            found[topic, int(partition)] = number
    return found


def _assign(value: str) -> list[Key]:
    found: list[Key] = []
    for topic, partitions in _object(value, _ASSIGN_EXAMPLE).items():
        if not isinstance(partitions, list) or not all(type(each) is int for each in partitions):
            raise ValueError(f"must be JSON such as {_ASSIGN_EXAMPLE}, not {value!r}")
        found.extend((topic, partition) for partition in partitions)
    if not found:
        raise ValueError(f"names no partitions; it is JSON such as {_ASSIGN_EXAMPLE}")
    return sorted(set(found))


def _subscribe(value: str) -> list[str]:
    topics = sorted({topic.strip() for topic in value.split(",")} - {""})
    if not topics:
        raise ValueError("names no topic: it is a list such as payments,refunds")
    return topics


def _pattern(value: str) -> re.Pattern[str]:
    try:
        return re.compile(text(value).strip())
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None


def _offsets(value: str) -> str | dict[Key, int]:
    word = value.strip().lower()
    if word in ("earliest", "latest"):
        return word
    found = by_partition(value)
    low = {key: offset for key, offset in found.items() if offset < EARLIEST}
    if low:
        raise ValueError(f"{low} are no offsets: -1 is the latest, -2 the earliest")
    return found


def _times(value: str) -> dict[Key, int]:
    return by_partition(value, '{"topicA":{"0":1700000000000}}')


TABLE: Final[Mapping[str, Option]] = {
    "path": Option(text),
    "subscribe": Option(_subscribe),
    "subscribePattern": Option(_pattern),
    "assign": Option(_assign),
    "isolationLevel": Option(one_of("read_committed", "read_uncommitted"), "read_committed"),
    "startingOffsets": Option(_offsets),
    "endingOffsets": Option(_offsets),
    "startingTimestamp": Option(whole),
    "endingTimestamp": Option(whole),
    "startingOffsetsByTimestamp": Option(_times),
    "endingOffsetsByTimestamp": Option(_times),
    "startingOffsetsByTimestampStrategy": Option(one_of("error", "latest"), "error"),
    "failOnDataLoss": Option(boolean, True),
    "maxOffsetsPerTrigger": Option(positive),
    "minOffsetsPerTrigger": Option(positive),
    "maxTriggerDelay": Option(duration_ms, 15 * 60_000),
    "minPartitions": Option(positive, 1),
    "maxRecordsPerPartition": Option(positive),
    # A task costs Spark about 40 ms before its first row: a thirtieth of what it takes to read so much.
    "maxPartitionBytes": Option(size_bytes, 256 << 20),
    "includeHeaders": Option(boolean, False),
    "includeProducer": Option(boolean, False),
    "mode": Option(one_of("failfast", "permissive"), "failfast"),
    "badRecordsPath": Option(text),
}


@dataclass(frozen=True)
class SourceOptions:
    """The options of one read, checked as far as they can be without looking at the directory."""

    path: str
    subscribe: list[str] | None
    pattern: re.Pattern[str] | None
    assign: list[Key] | None
    isolation_level: str
    starting: Place | None
    ending: Place | None
    is_latest_without_match: bool
    fails_on_data_loss: bool
    offsets_per_trigger_max: int | None
    offsets_per_trigger_min: int | None
    trigger_delay_ms_max: int
    partitions_min: int
    records_per_partition_max: int | None
    bytes_per_partition_max: int
    has_headers: bool
    has_producer: bool
    is_permissive: bool
    bad_records_path: str | None

    @classmethod
    def read(cls, given: Mapping[str, str]) -> SourceOptions:
        """From what Spark was told; raises ValueError."""
        values = read_options(given, TABLE)
        if values["path"] is None:
            raise ValueError("option path is missing: it says where the log directory is")
        named = [
            name for name in ("assign", "subscribe", "subscribePattern") if values[name] is not None
        ]
        if len(named) != 1:
            said = f"{' and '.join(named)} are given" if named else "none is given"
            raise ValueError(
                f"one of the options assign, subscribe and subscribePattern says what to read, and {said}"
            )
        least, most = values["minOffsetsPerTrigger"], values["maxOffsetsPerTrigger"]
        if least is not None and most is not None and least > most:
            raise ValueError(
                f"minOffsetsPerTrigger, {least}, is above maxOffsetsPerTrigger, {most}"
            )
        bad = values["badRecordsPath"]
        if bad is not None and values["mode"] != "permissive":
            raise ValueError(
                "option badRecordsPath is for what mode permissive leaves out: say mode as well"
            )
        return cls(
            path=_absolute("path", values["path"]),
            subscribe=values["subscribe"],
            pattern=values["subscribePattern"],
            assign=values["assign"],
            isolation_level=values["isolationLevel"],
            starting=_place(values, "starting"),
            ending=_place(values, "ending"),
            is_latest_without_match=values["startingOffsetsByTimestampStrategy"] == "latest",
            fails_on_data_loss=values["failOnDataLoss"],
            offsets_per_trigger_max=most,
            offsets_per_trigger_min=least,
            trigger_delay_ms_max=values["maxTriggerDelay"],
            partitions_min=values["minPartitions"],
            records_per_partition_max=values["maxRecordsPerPartition"],
            bytes_per_partition_max=values["maxPartitionBytes"],
            has_headers=values["includeHeaders"],
            has_producer=values["includeProducer"],
            is_permissive=values["mode"] == "permissive",
            bad_records_path=None if bad is None else _absolute("badRecordsPath", bad),
        )

    def check_batch(self) -> None:
        """What a batch query may not ask for."""
        start, end = self.starting, self.ending
        if start is not None and (
            start.word == "latest" or LATEST in (start.offsets or {}).values()
        ):
            raise ValueError(
                f"{start.option}: a batch query cannot start at the latest offset, there is nothing behind it"
            )
        if end is not None and (end.word == "earliest" or EARLIEST in (end.offsets or {}).values()):
            raise ValueError(
                f"{end.option}: a batch query cannot end at the earliest offset, there is nothing before it"
            )

        for name, value in (
            ("maxOffsetsPerTrigger", self.offsets_per_trigger_max),
            ("minOffsetsPerTrigger", self.offsets_per_trigger_min),
        ):
            if value is not None:
                logger.warning("option %s says nothing to a batch query, and is left alone", name)

    def check_stream(self) -> None:
        """What a streaming query may not ask for."""
        if self.ending is not None:
            raise ValueError(f"{self.ending.option}: a streaming query has no end")


def _absolute(option: str, path: str) -> str:
    """A path that means the same wherever a task runs."""
    scheme = re.match(r"(\w+):", path)
    if scheme and scheme[1].lower() != "file":
        raise ValueError(
            f"option {option}: {path} is not a path of a file system: mount it, so that driver and executors see "
            "it as a directory"
        )
    local = re.sub(r"^file:(//)?(?=/)", "", path) if scheme else path
    return str(Path(local).absolute())


def _place(values: Mapping[str, Any], side: str) -> Place | None:
    name = f"{side}Timestamp"
    if values[name] is not None:
        return Place(name, timestamp_ms=values[name])
    name = f"{side}OffsetsByTimestamp"
    if values[name] is not None:
        return Place(name, timestamps_ms=values[name])
    name = f"{side}Offsets"
    found = values[name]
    if found is None:
        return None
    return Place(name, word=found) if isinstance(found, str) else Place(name, offsets=found)
