"""One option: its name, type, default and limits are Kafka's, what it means is said in our words.

A value comes as Python's (``segment_bytes=1 << 20``) or as Kafka's text (``"1048576"``, ``"true"``,
``"delete,compact"``); both are read by the same rules, so a Kafka configuration can be used unchanged.
"""

from __future__ import annotations

import enum
import operator
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from .errors import InvalidConfigError

_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_WORDS: Final = {"true": True, "false": False}


class Kind(enum.Enum):
    """The type of an option, by Kafka's word for it."""

    BOOLEAN = "boolean"
    SHORT = "short"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    STRING = "string"
    LIST = "list"


_BITS: Final = {Kind.SHORT: 16, Kind.INT: 32, Kind.LONG: 64}
_NO_ALIASES: Final[Mapping[str, str]] = {}


class Option(NamedTuple):
    """An option and what it allows.

    ``minimum`` and ``maximum`` bound a number and ``also`` names values outside that are allowed; for a text,
    ``minimum`` is its least length. ``choices`` are the only texts, or the only entries of a list, unless
    ``pattern`` matches, for which ``example`` stands. ``aliases`` are Kafka's longer names for choices. A default of None allows None.
    """

    name: str
    kind: Kind
    default: Any
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    also: tuple[int, ...] = ()
    pattern: str = ""
    example: str = ""
    aliases: Mapping[str, str] = _NO_ALIASES
    doc: str = ""

    @property
    def python_name(self) -> str:
        """The name as a keyword argument."""
        return self.name.replace(".", "_")

    @property
    def limits(self) -> str:
        """What is allowed, in words that follow "must be"."""
        if self.kind is Kind.BOOLEAN:
            return "true or false"
        if self.kind is Kind.LIST:
            return f"a list of {', '.join(self.choices)}" if self.choices else "a list"
        if self.kind is Kind.STRING:
            return self._text_limits()
        low, high = self.minimum, self.maximum
        if self.kind is not Kind.DOUBLE:
            low = -(2 ** (_BITS[self.kind] - 1)) if low is None else low
            high = 2 ** (_BITS[self.kind] - 1) - 1 if high is None else high
        word = "a number" if self.kind is Kind.DOUBLE else "an integer"
        span = "" if low is None else f" from {low}" + ("" if high is None else f" to {high}")
        return word + span + "".join(f", or {value}" for value in self.also)

    def _text_limits(self) -> str:
        words = [*self.choices, *([self.example] if self.pattern else [])]
        if words:
            return f"one of {', '.join(words)}"
        return "a text that is not empty" if self.minimum else "a text"

    def read(self, value: object) -> Any:
        """The value as this option's Python type; raises for one that it does not allow."""
        if value is None:
            if self.default is None:
                return None
            raise self._refused(value)
        try:
            read = _READERS[self.kind](self, value)
        except (TypeError, ValueError):
            raise self._refused(value) from None
        return read

    def text(self, value: Any) -> str | None:
        """A value of this option as Kafka's text."""
        if value is None:
            return None
        if self.kind is Kind.BOOLEAN:
            return "true" if value else "false"
        return ",".join(value) if self.kind is Kind.LIST else str(value)

    def _refused(self, value: object) -> InvalidConfigError:
        return InvalidConfigError(f"{self.name} must be {self.limits}, not {value!r}")

    def _read_boolean(self, value: object) -> bool:
        if isinstance(value, str):
            word = value.strip().lower()
            if word in _WORDS:
                return _WORDS[word]
        elif isinstance(value, bool):
            return value
        raise ValueError

    def _read_integer(self, value: object) -> int:
        if isinstance(value, str):
            if not _INTEGER.fullmatch(value.strip()):
                raise ValueError
            number = int(value)
        elif isinstance(value, bool):
            raise TypeError
        else:
            number = operator.index(value)  # type: ignore[arg-type]  # raises for what is no integer
        half = 2 ** (_BITS[self.kind] - 1)
        if not -half <= number < half:
            raise ValueError
        self._check_bounds(number)
        return number

    def _read_double(self, value: object) -> float:
        if isinstance(value, str):
            if not _NUMBER.fullmatch(value.strip()):
                raise ValueError
        elif isinstance(value, bool):
            raise TypeError
        number = float(value)  # type: ignore[arg-type]  # raises for what is no number
        if number != number:  # not a number, which no bound would stop
            raise ValueError
        self._check_bounds(number)
        return number

    def _check_bounds(self, number: float) -> None:
        if number in self.also:
            return
        if self.minimum is not None and number < self.minimum:
            raise ValueError
        if self.maximum is not None and number > self.maximum:
            raise ValueError

    def _read_string(self, value: object) -> str:
        # acks=1 is how people write it; any other number for a text is a mistake.
        is_choice = type(value) is int and str(value) in self.choices
        if not isinstance(value, str) and not is_choice:
            raise TypeError
        text = str(value).strip()
        text = self.aliases.get(text, text)
        if self.choices or self.pattern:
            if text not in self.choices and not (self.pattern and re.fullmatch(self.pattern, text)):
                raise ValueError
        elif self.minimum is not None and len(text) < self.minimum:
            raise ValueError
        return text

    def _read_list(self, value: object) -> tuple[str, ...]:
        if isinstance(value, str):
            stripped = value.strip()
            entries = [entry.strip() for entry in stripped.split(",")] if stripped else []
        elif isinstance(value, Iterable):
            entries = list(value)
        else:
            raise TypeError
        if not all(isinstance(entry, str) for entry in entries):
            raise TypeError
        entries = [self.aliases.get(entry, entry) for entry in entries]
        if len(set(entries)) != len(entries) or "" in entries:
            raise ValueError
        if self.choices and not set(entries) <= set(self.choices):
            raise ValueError
        return tuple(entries)


_READERS: Final = {
    Kind.BOOLEAN: Option._read_boolean,
    Kind.SHORT: Option._read_integer,
    Kind.INT: Option._read_integer,
    Kind.LONG: Option._read_integer,
    Kind.DOUBLE: Option._read_double,
    Kind.STRING: Option._read_string,
    Kind.LIST: Option._read_list,
}


def table(*options: Option) -> Mapping[str, Option]:
    """Options by their dotted names."""
    return {option.name: option for option in options}
