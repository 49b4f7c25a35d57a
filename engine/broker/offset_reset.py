"""Moves the offsets of groups that nobody is in: a plan first, which can be shown, exported and carried out.

Scope      all topics that a group has committed, topics by name, or ``topic:0,2`` for some of their partitions
Target     the earliest, the latest, the current, a given offset, so many records on or back, a date and time, an age, or
           the lines of a file that an earlier plan was exported to
Result     clamped to what each log has, a committed offset that stays excepted; a time after the last record is the end

A plan with errors is not carried out at all. Everything that people type (dates, durations, scopes, files) is read here
and refused with one sentence.
"""

from __future__ import annotations

import csv
import io
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ..base.errors import (
    GroupIdNotFoundError,
    GroupNotEmptyError,
    InvalidRequestError,
    OncelogError,
    UnknownTopicOrPartitionError,
)
from ..partition.partition import Isolation
from ..segment.names import PARTITION_MAX, TopicPartition, check_topic
from .group_answers import GroupDescription, OffsetCommit
from .group_records import check_group_id
from .group_registry import check_reserved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .answers import ListedOffset
    from .group_coordinator import GroupCoordinator

LATEST: Final = -1
EARLIEST: Final = -2
LONG_MAX: Final = 2**63 - 1
INACTIVE: Final = ("Empty", "Dead")
COLUMNS: Final = "topic,partition,offset"

_DATE: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{3})?)(Z|([+-])([0-9]{2}):?([0-9]{2})?)?"
)
_DURATION: Final = re.compile(
    r"([+-])?P(?:([+-]?[0-9]{1,19})D)?"
    r"(T(?:([+-]?[0-9]{1,19})H)?(?:([+-]?[0-9]{1,19})M)?(?:([+-]?[0-9]{1,19})(?:[.,]([0-9]{0,9}))?S)?)?",
    re.IGNORECASE,
)
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_NUMBER: Final = re.compile(r"[0-9]{1,19}")


class Topics(Protocol):
    """What is needed of a broker."""

    def partition_count(self, topic: str) -> int: ...
    def list_offsets(
        self, key: TopicPartition, timestamp: int, isolation: Isolation
    ) -> ListedOffset: ...


class Target(NamedTuple):
    """Where offsets are to go. Make one with the functions below."""

    kind: str
    value: int = 0  # an offset, a number of records, a time or an age in milliseconds
    lines: Mapping[str, Mapping[TopicPartition, int]] = {}  # of a file, by group


TO_EARLIEST: Final = Target("earliest")
TO_LATEST: Final = Target("latest")
TO_CURRENT: Final = Target("current")


def to_offset(offset: int) -> Target:
    """The same offset everywhere, as far as the logs have it."""
    return Target("offset", offset)


def shift_by(count: int) -> Target:
    """So many records on from what is committed, or back."""
    return Target("shift", count)


def to_datetime(text: str) -> Target:
    """The first record at a time or later, given as 2026-11-16T18:00:00.000, with Z or +01:00 or in UTC."""
    match = _DATE.fullmatch(text)
    if match is None:
        raise InvalidRequestError(
            f"{text!r} is not a date and time like 2026-11-16T18:00:00.000, with Z or +01:00 behind it or in UTC"
        )
    try:
        moment = datetime.fromisoformat(match[1])
        zone = UTC
        if match[3] is not None:
            offset = timedelta(hours=int(match[4]), minutes=int(match[5] or 0))
            zone = timezone(-offset if match[3] == "-" else offset)
    except ValueError as error:
        raise InvalidRequestError(f"{text!r} is no date and time: {error}") from None
    age = moment.replace(tzinfo=zone) - datetime(1970, 1, 1, tzinfo=UTC)
    return Target("time", age // timedelta(milliseconds=1))


def by_duration(text: str) -> Target:
    """The first record of the last so much time, given as an ISO 8601 duration like P1DT12H or PT30M."""
    match = _DURATION.fullmatch(text)
    if match is None or len(match[3] or "") == 1 or (match[2] is None and match[3] is None):
        raise InvalidRequestError(f"{text!r} is not a duration like P7D, PT30M or P1DT2H3M4.5S")
    days, hours, minutes = (int(match[group] or 0) for group in (2, 4, 5))
    seconds = match[6] or "0"
    fraction = int((match[7] or "").ljust(3, "0")[:3])
    millis = int(seconds) * 1000 + (-fraction if seconds.startswith("-") else fraction)
    total = ((days * 24 + hours) * 60 + minutes) * 60_000 + millis
    return Target("age", -total if match[1] == "-" else total)


def from_file(text: str, group_ids: Sequence[str]) -> Target:
    """The lines of a file: topic, partition, offset for one group; with the group in front for one or more."""
    lines: dict[str, dict[TopicPartition, int]] = {}
    rows = csv.reader(io.StringIO(text), strict=True)
    try:
        for line in rows:
            if not line:
                continue
            has_no_group = len(line) == 3 and len(group_ids) == 1
            row = [group_ids[0], *line] if has_no_group else line
            if len(row) != 4:
                wanted = COLUMNS if len(group_ids) == 1 else f"group,{COLUMNS}"
                raise InvalidRequestError(
                    f"line {rows.line_num} has {len(row)} columns, and {wanted} are needed"
                )
            key, offset = _line(row[1:], rows.line_num)
            lines.setdefault(row[0], {})[key] = offset
    except csv.Error as error:
        raise InvalidRequestError(f"line {rows.line_num} is no CSV: {error}") from None
    return Target("file", lines=lines)


def _line(fields: Sequence[str], number: int) -> tuple[TopicPartition, int]:
    topic, partition, offset = (field.strip() for field in fields)
    for name, text, maximum in (
        ("partition", partition, PARTITION_MAX),
        ("offset", offset, LONG_MAX),
    ):
        if not _INTEGER.fullmatch(text) or int(text) > maximum:
            raise InvalidRequestError(f"line {number}: {text!r} is no {name}")
    return TopicPartition(topic, int(partition)), int(offset)


def parse_scope(texts: Iterable[str]) -> dict[str, tuple[int, ...] | None]:
    """Topics, and which of their partitions; None: all. ``topic``, or ``topic:0,1,2``."""
    scope: dict[str, tuple[int, ...] | None] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        check_topic(topic)
        if not colon:
            scope[topic] = None
            continue
        found = []
        for part in numbers.split(","):
            number = part.strip()
            if not _NUMBER.fullmatch(number) or int(number) > PARTITION_MAX:
                raise InvalidRequestError(f"{text!r}: {part!r} is no partition; write topic:0,1,2")
            found.append(int(number))
        before = scope.get(topic, ())
        scope[topic] = None if before is None else (*before, *found)
    return scope


class ResetPlan(NamedTuple):
    """What a reset would commit for one group. ``error``: it may not be reset; ``errors``: partitions that stop it."""

    group_id: str
    offsets: dict[TopicPartition, int]
    errors: dict[TopicPartition, OncelogError]
    error: OncelogError | None = None


def plan_reset(
    groups: GroupCoordinator,
    topics: Topics,
    group_ids: Sequence[str],
    target: Target,
    *,
    scope: Mapping[str, tuple[int, ...] | None] | None = None,
    now_ms: Callable[[], int],
) -> dict[str, ResetPlan]:
    """What a reset would do, for each group; nothing is written. No scope: all topics that the group has committed."""
    if not group_ids:
        raise InvalidRequestError("name at least one group")
    if target.kind == "age":
        target = Target("time", now_ms() - target.value)
    plans = {}
    for group_id in group_ids:
        try:
            _check_inactive(groups, group_id)
            plans[group_id] = _Planner(groups, topics, group_id).plan(target, scope)
        except OncelogError as error:
            plans[group_id] = ResetPlan(group_id, {}, {}, error)
    return plans


def execute_reset(
    groups: GroupCoordinator, plans: Mapping[str, ResetPlan]
) -> dict[str, dict[TopicPartition, int]]:
    """Commits plans, group by group; raises before the first commit if any of them has an error."""
    for plan in plans.values():
        error = plan.error or next(iter(plan.errors.values()), None)
        if error is not None:
            raise error
        _check_inactive(groups, plan.group_id)
    for plan in plans.values():
        if not plan.offsets:
            continue
        commits = {key: OffsetCommit(offset) for key, offset in plan.offsets.items()}
        for refused in groups.offset_commit(plan.group_id, commits).values():
            if refused is not None:
                raise refused
    return {plan.group_id: plan.offsets for plan in plans.values()}


def export_plan(plans: Mapping[str, ResetPlan], *, names_groups: bool | None = None) -> str:
    """Plans as CSV lines, in Kafka's form: the group stands in front, unless one group was asked for by its name.

    ``names_groups`` says which; None: it is told by the number of plans.
    """
    has_group = len(plans) != 1 if names_groups is None else names_groups
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for group_id, plan in plans.items():
        for (topic, partition), offset in sorted(plan.offsets.items()):
            row = (topic, partition, offset)
            writer.writerow((group_id, *row) if has_group else row)
    return out.getvalue()


def _check_inactive(groups: GroupCoordinator, group_id: str) -> None:
    """Raises for a group with members, whose next commit would undo the reset."""
    check_group_id(group_id)
    check_reserved(group_id)
    found = groups.describe_groups([group_id])[group_id]
    if isinstance(found, GroupDescription):
        if found.state.label not in INACTIVE:
            raise GroupNotEmptyError(
                f"offsets can only be reset if group {group_id!r} is inactive, but its state is {found.state.label}"
            )
    elif not isinstance(found, GroupIdNotFoundError):
        raise found


class _Planner:
    """The plan of one group."""

    def __init__(self, groups: GroupCoordinator, topics: Topics, group_id: str) -> None:
        self._topics = topics
        self._group_id = group_id
        self._committed = {
            key: value.offset
            for key, value in groups.offset_fetch(group_id).items()
            if value is not None and not isinstance(value, OncelogError)
        }

    def plan(self, target: Target, scope: Mapping[str, tuple[int, ...] | None] | None) -> ResetPlan:
        offsets: dict[TopicPartition, int] = {}
        errors: dict[TopicPartition, OncelogError] = {}
        for key in self._keys(target, scope, errors):
            try:
                offsets[key] = self._offset(target, key)
            except OncelogError as error:
                errors[key] = error
        return ResetPlan(self._group_id, offsets, errors)

    def _keys(
        self,
        target: Target,
        scope: Mapping[str, tuple[int, ...] | None] | None,
        errors: dict[TopicPartition, OncelogError],
    ) -> list[TopicPartition]:
        if target.kind == "file":
            lines = target.lines.get(self._group_id)
            if lines is None:
                raise InvalidRequestError(f"the file has no lines for group {self._group_id!r}")
            return list(lines)
        if scope is None:
            return sorted(self._committed)
        keys: dict[TopicPartition, None] = {}
        for topic, numbers in scope.items():
            try:
                wanted = range(self._topics.partition_count(topic)) if numbers is None else numbers
            except OncelogError as error:
                errors[TopicPartition(topic, -1)] = error
                continue
            keys.update((TopicPartition(topic, number), None) for number in wanted)
        return list(keys)

    def _offset(self, target: Target, key: TopicPartition) -> int:
        """Where the offset of a partition goes; raises for a partition that is not there."""
        if not 0 <= key.partition < self._topics.partition_count(key.topic):
            raise UnknownTopicOrPartitionError(
                f"topic {key.topic!r} has partitions 0 to {self._topics.partition_count(key.topic) - 1}, "
                f"not {key.partition}"
            )
        if target.kind == "earliest":
            return self._listed(key, EARLIEST)
        if target.kind == "latest":
            return self._listed(key, LATEST)
        if target.kind == "time":
            found = self._listed(key, max(target.value, 0))
            return found if found >= 0 else self._listed(key, LATEST)
        if target.kind == "current":
            current = self._committed.get(key)
            return self._listed(key, LATEST) if current is None else current
        return self._clamped(key, self._wanted(target, key))

    def _wanted(self, target: Target, key: TopicPartition) -> int:
        if target.kind == "file":
            return target.lines[self._group_id][key]
        if target.kind == "offset":
            return target.value
        current = self._committed.get(key)
        if current is None:
            raise InvalidRequestError(
                f"group {self._group_id!r} has committed no offset of {key.directory} that could be shifted"
            )
        return current + target.value

    def _clamped(self, key: TopicPartition, offset: int) -> int:
        return min(max(offset, self._listed(key, EARLIEST)), self._listed(key, LATEST))

    def _listed(self, key: TopicPartition, timestamp: int) -> int:
        return self._topics.list_offsets(key, timestamp, Isolation.READ_UNCOMMITTED).offset
