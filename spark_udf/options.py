"""Options of the source and the sink: every one is known by name, and one that is not is refused.

Spark folds the case of names and gives every value as text. An option that is misspelt would silently do nothing, and
one that is read wrongly would silently read other records; so both are errors, raised on the driver.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Option(NamedTuple):
    """One option: how its text is read, and what it is where it is not given."""

    parse: Callable[[str], object]
    default: object = None


# What people bring along from Spark's Kafka source, and where it has gone. Those that start with these words.
_GONE: Final = {
    "kafka.isolation.level": "write isolationLevel",
    "kafka.": "there is no broker to connect to: leave it out, and say with `path` where the files are",
    "groupidprefix": "no consumer group takes part in a read: leave it out",
    "kafkaconsumer.": "there is no consumer: leave it out",
    "partition.metadata.": "nothing is cached: leave it out",
    "fetchoffset.": "offsets are read from files and not retried: leave it out",
}


def read_options(given: Mapping[str, str], table: Mapping[str, Option]) -> dict[str, Any]:
    """The values of all options of a table, by their names there; raises ValueError for a wrong or unknown one."""
    names = {name.lower(): name for name in table}
    values: dict[str, Any] = {name: option.default for name, option in table.items()}
    for key, text in given.items():
        name = names.get(key.lower())
        if name is None:
            raise ValueError(_unknown(key, list(table)))
        try:
            values[name] = table[name].parse(text)
        except ValueError as error:
            raise ValueError(f"option {name}: {error}") from None
    return values


def _unknown(key: str, names: list[str]) -> str:
    for start, advice in _GONE.items():
        if key.lower().startswith(start):
            return f"option {key!r} is of Spark's Kafka source, and {advice}"
    lowered = {name.lower(): name for name in names}
    near = difflib.get_close_matches(key.lower(), lowered, n=1)
    hint = f"did you mean {lowered[near[0]]}?" if near else f"there are {', '.join(names)}"
    return f"there is no option {key!r}: {hint}"


# ---------------------------------------------------------------- how texts are read


def text(value: str) -> str:
    """Any text that is not empty."""
    if not value.strip():
        raise ValueError("is empty")
    return value


def boolean(value: str) -> bool:
    """``true`` or ``false``, as Spark's options are written."""
    if value.strip().lower() not in ("true", "false"):
        raise ValueError(f"is true or false, not {value!r}")
    return value.strip().lower() == "true"


def positive(value: str) -> int:
    """A whole number from 1 on."""
    number = whole(value)
    if number < 1:
        raise ValueError(f"must be 1 or more, not {value}")
    return number


def whole(value: str) -> int:
    """A whole number that a signed 64-bit one can be."""
    try:
        number = int(value)
    except ValueError:
        raise ValueError(f"must be a whole number, not {value!r}") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"must be a 64-bit number, not {value}")
    return number


def one_of(*choices: str) -> Callable[[str], str]:
    """One of some words, in any case."""

    def parse(value: str) -> str:
        found = {choice.lower(): choice for choice in choices}.get(value.strip().lower())
        if found is None:
            raise ValueError(f"is {' or '.join(choices)}, not {value!r}")
        return found

    return parse


_UNITS_MS: Final = {
    "us": 0.001,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


def duration_ms(value: str) -> int:
    """A time such as ``15m``, ``30s`` or ``500ms``; a bare number is milliseconds."""
    match = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", value.lower())
    if match is None or (match[2] or "ms") not in _UNITS_MS:
        raise ValueError(f"is a time such as 15m, 30s or 500ms, not {value!r}")
    return int(int(match[1]) * _UNITS_MS[match[2] or "ms"])


def size_bytes(value: str) -> int:
    """A size such as ``128m`` or ``1g``; a bare number is bytes."""
    match = re.fullmatch(r"\s*(\d+)\s*([kmg]?)b?\s*", value.lower())
    if match is None or int(match[1]) < 1:
        raise ValueError(f"is a size such as 128m, not {value!r}")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]]
