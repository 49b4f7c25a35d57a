"""Filters that a query puts on topic, partition, offset and timestamp, as less to read.

Those on topic, partition and offset are kept to the letter, and Spark need not look again. Of those on timestamp only
a lower bound helps, and only in part: timestamps need not rise, so that the records between are still Spark's to judge.
"""

from __future__ import annotations

import datetime as dt
import operator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oncelog import LogDirectory

    from .source_options import Key

_OFFSET_MAX: Final = 2**63 - 1
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_TESTS: Final[dict[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda value, choices: value in choices,
    StringStartsWith: str.startswith,
    StringEndsWith: str.endswith,
    StringContains: operator.contains,
}
_COLUMNS: Final = {("topic",): 0, ("partition",): 1}


class Narrowed:
    """What is left to read once filters have spoken."""

    def __init__(self) -> None:
        self._on_keys: list[Filter] = []
        self._first, self._end = 0, _OFFSET_MAX
        self._timestamp_ms: int | None = None

    def take(self, wanted: Filter) -> bool:
        """Whether a filter is kept to the letter, so that nobody has to apply it again."""
        column = _inner(wanted).attribute
        if isinstance(wanted, IsNotNull):
            return column in {*_COLUMNS, ("offset",), ("timestamp",)}
        if column in _COLUMNS:
            return self._take_on_keys(wanted)
        if column == ("offset",):
            return self._take_on_offset(wanted)
        if column == ("timestamp",):
            self._take_on_timestamp(wanted)
        return False

    def _take_on_keys(self, wanted: Filter) -> bool:
        inner = _inner(wanted)
        if type(inner) not in _TESTS or getattr(inner, "value", None) is None:
            return False  # a comparison with null is nothing to be clever about
        if isinstance(inner, In) and None in inner.value:
            return False
        self._on_keys.append(wanted)
        return True

    def _take_on_offset(self, wanted: Filter) -> bool:
        value = getattr(wanted, "value", None)
        if not isinstance(value, int):
            return False
        match wanted:
            case EqualTo() | EqualNullSafe():
                first, end = value, value + 1
            case GreaterThan():
                first, end = value + 1, _OFFSET_MAX
            case GreaterThanOrEqual():
                first, end = value, _OFFSET_MAX
            case LessThan():
                first, end = 0, value
            case LessThanOrEqual():
                first, end = 0, value + 1
            case _:
                return False
        self._first, self._end = max(self._first, first), min(self._end, end)
        return True

    def _take_on_timestamp(self, wanted: Filter) -> None:
        value = getattr(wanted, "value", None)
        if not isinstance(value, dt.datetime):
            return
        if isinstance(wanted, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual):
            if value.tzinfo is None:
                return  # a time of nobody's clock
            floor = (value - _EPOCH) // dt.timedelta(milliseconds=1)
            self._timestamp_ms = max(
                floor, -1 if self._timestamp_ms is None else self._timestamp_ms
            )

    def ranges(
        self, log: LogDirectory, ranges: Mapping[Key, tuple[int, int]], isolation_level: str
    ) -> dict[Key, tuple[int, int]]:
        """The parts of ranges that may hold what is wanted."""
        found = {}
        for key, (first, last) in ranges.items():
            if not all(_holds(each, key) for each in self._on_keys):
                continue
            start, end = max(first, self._first), min(last, self._end)
            if self._timestamp_ms is not None and start < end:
                since = log.offset_for_timestamp(
                    *key, self._timestamp_ms, isolation_level=isolation_level
                )
                start = end if since is None else max(start, since)
            found[key] = start, end
        return found


def _inner(wanted: Filter) -> Any:
    return wanted.child if isinstance(wanted, Not) else wanted


def _holds(wanted: Filter, key: Key) -> bool:
    inner = _inner(wanted)
    result = _TESTS[type(inner)](key[_COLUMNS[inner.attribute]], inner.value)
    return result != isinstance(wanted, Not)
