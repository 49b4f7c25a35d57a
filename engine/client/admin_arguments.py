"""How an administrator's arguments are read: whatever has not the right shape is refused before anything is done."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from ..base.errors import InvalidRequestError, OncelogError
from ..segment.names import partition_key

if TYPE_CHECKING:
    from ..segment.names import TopicPartition

OFFSET_NAMES: Final[Mapping[str, int]] = {"latest": -1, "earliest": -2, "max_timestamp": -3}
LONG_MAX: Final = 2**63 - 1

Answer = TypeVar("Answer")
Key = TypeVar("Key")
Value = TypeVar("Value")


def answer_of(answers: Mapping[Key, Answer | OncelogError], key: Key) -> Answer:
    """The answer for one name; raises if it is an error."""
    answer = answers[key]
    if isinstance(answer, OncelogError):
        raise answer
    return answer


def name_of(given: object, what: str) -> str:
    if not isinstance(given, str):
        raise InvalidRequestError(f"{what} is a text, not {given!r}")
    return given


def list_of(given: Iterable[Value], what: str) -> list[Value]:
    """Several things. A text is none, as its letters would be taken for them, nor is one of a kind that is a tuple."""
    if (
        isinstance(given, (str, bytes))
        or hasattr(given, "_fields")
        or not isinstance(given, Iterable)
    ):
        raise InvalidRequestError(f"give a list of {what}: [{given!r}], not {given!r}")
    return list(given)


def names_of(given: Iterable[str], what: str) -> list[str]:
    """Names, each once."""
    names = [name_of(name, what) for name in list_of(given, "names")]
    _check_once(names)
    return names


def keys_of(given: Iterable[tuple[str, int]]) -> list[TopicPartition]:
    """Partitions, each once; any (topic, number) will do."""
    keys = [partition_key(key) for key in list_of(given, "partitions")]
    _check_once(keys)
    return keys


def mapping_of(given: Mapping[Key, Value], what: str) -> Mapping[Key, Value]:
    if not isinstance(given, Mapping):
        raise InvalidRequestError(f"give a dict of {what}, not {given!r}")
    return given


def by_key(given: Mapping[tuple[str, int], Value], what: str) -> dict[TopicPartition, Value]:
    """A dict by partitions; any (topic, number) will do."""
    return {partition_key(key): value for key, value in mapping_of(given, what).items()}


def integer(given: object, what: str, *, minimum: int = -LONG_MAX - 1) -> int:
    try:
        if isinstance(given, bool):
            raise TypeError
        number = operator.index(given)  # type: ignore[arg-type]  # raises for what is no integer
    except TypeError:
        raise InvalidRequestError(f"{what} is an integer, not {given!r}") from None
    if not minimum <= number <= LONG_MAX:
        raise InvalidRequestError(f"{what} is at least {minimum}, not {number}" if number < minimum
                                  else f"{what} is at most {LONG_MAX}, not {number}")  # fmt: skip
    return number


def timestamp_of(spec: object) -> int:
    """What Kafka's protocol has for an offset by name, or by the time of its record."""
    if isinstance(spec, str):
        if spec not in OFFSET_NAMES:
            names = ", ".join(map(repr, OFFSET_NAMES))
            raise InvalidRequestError(
                f"an offset is {names}, or a time in milliseconds since 1970, not {spec!r}"
            )
        return OFFSET_NAMES[spec]
    return integer(spec, "a time in milliseconds since 1970", minimum=0)


def _check_once(names: list[Key]) -> None:
    seen: set[Key] = set()
    for name in names:
        if name in seen:
            raise InvalidRequestError(f"{name!r} is given twice")
        seen.add(name)
