"""How records get from a directory into a sink: by reading it, or as a member of a group."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from ..base.errors import InvalidRequestError
from .data import opened_to_read, opened_to_write
from .output import Misuse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from .._native.records import Record
    from ..client.consumer import Consumer
    from ..client.directory import LogDirectory
    from ..partition.partition import Isolation, Partition
    from .record_formats import Sink

LOOK_S: Final = 0.05  # how often a follower looks for more
POLL_MS: Final = 200
POLL_RECORDS: Final = 8192  # each poll is followed by a commit
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_NUMBER: Final = re.compile(r"[0-9]{1,19}")


def time_of(text: str) -> int:
    """Milliseconds since 1970, given so or as a date and time."""
    from ..broker.offset_reset import to_datetime

    if _NUMBER.fullmatch(text):
        return int(text)
    try:
        return to_datetime(text).value
    except InvalidRequestError as error:
        raise Misuse(f"{error.args[0]}; milliseconds since 1970 are understood, too.") from error


class Start(NamedTuple):
    """Where to begin, and whether to wait at the end."""

    partition: int | None
    offset: int | str
    timestamp: int | None
    follow: bool

    @classmethod
    def of(
        cls,
        *,
        partition: int | None,
        from_beginning: bool,
        offset: str | None,
        timestamp: str | None,
        follow: bool,
    ) -> Start:
        """From the options; at most one of them may say where."""
        if from_beginning + (offset is not None) + (timestamp is not None) > 1:
            raise click.UsageError("Give one of --from-beginning, --offset and --from-timestamp.")
        place: int | str = LATEST if follow and not from_beginning else EARLIEST
        if offset is not None:
            if partition is None:
                raise click.UsageError(
                    "--offset is an offset of one partition: give --partition, too."
                )
            if offset not in (EARLIEST, LATEST) and not _NUMBER.fullmatch(offset):
                raise click.BadParameter(
                    f"{offset!r} is neither a number nor earliest or latest.",
                    param_hint="'--offset'",
                )
            place = offset if offset in (EARLIEST, LATEST) else int(offset)
        return cls(partition, place, None if timestamp is None else time_of(timestamp), follow)

    @property
    def needs_partition(self) -> bool:
        return self.partition is not None

    def of_partition(self, partition: Partition, isolation: Isolation) -> int:
        """The offset to begin with."""
        end = partition.upper_bound(isolation)
        if self.timestamp is not None:
            found = partition.offset_for_timestamp(self.timestamp, isolation)
            return end if found is None else found[1]
        if isinstance(self.offset, int):
            if not partition.log_start_offset <= self.offset <= end:
                raise Misuse(
                    f"{partition.key.directory} has offsets {partition.log_start_offset} to {end}, and not {self.offset}."
                )
            return self.offset
        return end if self.offset == LATEST else partition.log_start_offset


def consume_directory(
    path: Path, topic: str, start: Start, sink: Sink, *, limit: int | None, isolation: str
) -> None:
    """Reads partition after partition, and with ``follow`` again whenever there is more."""
    from ..client.directory import isolation_of

    level = isolation_of(isolation)
    pause = threading.Event()  # nobody sets it: a wait that Ctrl-C ends
    with opened_to_read(path) as log:
        positions = {
            number: start.of_partition(log.partition(topic, number), level)
            for number in _partitions(log, topic, start.partition)
        }
        if not start.follow:
            sink.expect(_to_come(log, topic, positions, level, limit))
        while True:
            is_idle = True
            for number, position in positions.items():
                end = log.partition(topic, number).upper_bound(level)
                if end <= position:
                    continue
                left = None if limit is None else limit - sink.count
                found = log.read(topic, number, position, end, isolation_level=isolation)
                sink.take(found, left)
                positions[number] = end
                is_idle = False
                if limit is not None and sink.count >= limit:
                    return
            if not start.follow:
                return
            if is_idle:
                pause.wait(LOOK_S)


def _to_come(
    log: LogDirectory, topic: str, positions: dict[int, int], level: Isolation, limit: int | None
) -> int:
    """How many records there are at most; markers and gaps take offsets, too."""
    ends = (
        log.partition(topic, number).upper_bound(level) - position
        for number, position in positions.items()
    )
    count = sum(ends)
    return count if limit is None else min(count, limit)


def _partitions(log: LogDirectory, topic: str, partition: int | None) -> list[int]:
    known = log.topics().get(topic)
    if known is None or partition is not None:
        log.partition(topic, partition or 0)  # says what there is instead
    return known or [] if partition is None else [partition]


class _Polled:
    """What one poll found, as a sink takes it."""

    def __init__(self, records: list[Record], batches: Iterable[Any]) -> None:
        self._records = records
        self._batches = batches

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def to_batches(self) -> Iterable[Any]:
        return self._batches


def consume_as_member(
    path: Path,
    topic: str,
    start: Start,
    sink: Sink,
    *,
    limit: int | None,
    group: str,
    isolation: str,
    options: Mapping[str, Any],
    adopt: bool,
) -> None:
    """Goes on where the group was, and commits what the sink has taken."""
    named = {name.replace(".", "_"): value for name, value in options.items()}
    settings: dict[str, Any] = {
        "auto_offset_reset": "earliest" if start.offset == EARLIEST else "latest",
        "isolation_level": isolation,
        "max_poll_records": POLL_RECORDS,
        **named,
        "group_id": group,
        "enable_auto_commit": False,
    }
    with opened_to_write(path, adopt=adopt) as log, log.consumer(**settings) as consumer:
        log.broker.partitions_of(topic)  # a topic that is not there is told at once
        consumer.subscribe([topic])
        while limit is None or sink.count < limit:
            left = None if limit is None else limit - sink.count
            taken = sink.take(_poll(consumer, sink, left), left)
            if taken:
                consumer.commit()
            elif not start.follow and _is_caught_up(consumer):
                break


def _poll(consumer: Consumer, sink: Sink, left: int | None) -> _Polled:
    if sink.wants_arrow:
        batch = consumer.poll_arrow(POLL_MS, max_records=left)
        return _Polled([], [batch])
    return _Polled(consumer.poll(POLL_MS, max_records=left), [])


def _is_caught_up(consumer: Consumer) -> bool:
    keys = consumer.assignment()
    if not keys:
        return False
    ends = consumer.end_offsets(keys)
    return all(consumer.position(key) >= ends[key] for key in keys)
