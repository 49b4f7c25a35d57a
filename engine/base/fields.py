"""Fields as Kafka's generated messages lay them out, read from bytes that nobody vouches for.

Two families: the classic one (int16 and int32 lengths, -1 for null) and the flexible one, whose lengths
are unsigned varints of length + 1 (0 for null) and whose structures end in tagged fields, so that a
newer writer can add to them. A ``FieldReader`` never reads past its end and never believes a count that
its bytes cannot hold; every failure names the field and the byte.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from .errors import CorruptRecordError

if TYPE_CHECKING:
    from collections.abc import Iterable

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
UVARINT_BYTES_MAX: Final = 5
UUID_BYTES: Final = 16


def uvarint(value: int) -> bytes:
    """An unsigned varint: seven bits a byte, the lowest first."""
    if value < 0x80:
        return value.to_bytes()
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def string(text: str) -> bytes:
    """A classic string."""
    data = text.encode()
    return _INT16.pack(len(data)) + data


def compact_string(text: str) -> bytes:
    """A flexible string."""
    data = text.encode()
    return uvarint(len(data) + 1) + data


def tagged_fields(fields: Iterable[tuple[int, bytes]]) -> bytes:
    """The tagged fields that end a flexible structure, given in the order of their tags."""
    parts = [uvarint(tag) + uvarint(len(data)) + data for tag, data in fields]
    return uvarint(len(parts)) + b"".join(parts)


class FieldReader:
    """A cursor over one message. Not for use by two threads at a time."""

    __slots__ = ("data", "file", "position", "what")

    def __init__(self, data: bytes, what: str, *, position: int = 0, file: str = "") -> None:
        self.data = data
        self.what = what  # the message, for errors: "the value of a transaction"
        self.position = position
        self.file = file

    @property
    def left(self) -> int:
        return len(self.data) - self.position

    def damage(self, why: str) -> CorruptRecordError:
        """The error to raise: the message is not what was written."""
        return CorruptRecordError(
            f"{self.what} is damaged at byte {self.position} of {len(self.data)}: {why}",
            file=self.file,
        )

    def take(self, size: int, field: str) -> bytes:
        """The next ``size`` bytes."""
        start = self.position
        if not 0 <= size <= len(self.data) - start:
            raise self.damage(f"{field} needs {size} bytes and {self.left} are left")
        self.position = start + size
        return self.data[start : start + size]

    def unpack(self, layout: struct.Struct, field: str) -> tuple[int, ...]:
        """Fields of a fixed layout."""
        start = self.position
        if layout.size > len(self.data) - start:
            raise self.damage(f"{field} needs {layout.size} bytes and {self.left} are left")
        self.position = start + layout.size
        return layout.unpack_from(self.data, start)

    def integer(self, size: int, field: str) -> int:
        """A signed integer of ``size`` bytes."""
        return int.from_bytes(self.take(size, field), signed=True)

    def uvarint(self, field: str) -> int:
        """An unsigned varint of at most 32 bits."""
        start = self.position
        value = 0
        for index, byte in enumerate(self.data[start : start + UVARINT_BYTES_MAX]):
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80 and value < 2**32:
                self.position = start + index + 1
                return value
        if self.left < UVARINT_BYTES_MAX:
            raise self.damage(f"the varint of {field} has no end")
        raise self.damage(f"the varint of {field} has more than 32 bits")

    def count(self, field: str, element_bytes_min: int, *, flexible: bool) -> int:
        """The length of an array, -1 for null, that the bytes left can hold."""
        if flexible:
            count = self.uvarint(field) - 1
        else:
            (count,) = self.unpack(_INT32, field)
        if count < -1 or count * element_bytes_min > self.left:
            raise self.damage(f"{field} cannot have {count} entries with {self.left} bytes left")
        return count

    def string(self, field: str, *, flexible: bool) -> str | None:
        """A string, None for null."""
        if flexible:
            size = self.uvarint(field) - 1
        else:
            (size,) = self.unpack(_INT16, field)
        if size == -1:
            return None
        try:
            return self.take(size, field).decode()
        except UnicodeDecodeError:
            raise self.damage(f"{field} is not UTF-8") from None

    def required_string(self, field: str, *, flexible: bool) -> str:
        """A string that must not be null."""
        text = self.string(field, flexible=flexible)
        if text is None:
            raise self.damage(f"{field} is null")
        return text

    def tagged_fields(self) -> dict[int, bytes]:
        """The data of each tag; the caller takes those that it knows and so passes over the others."""
        found: dict[int, bytes] = {}
        last = -1
        for _ in range(self.uvarint("the count of tagged fields")):
            tag = self.uvarint("a tag")
            if tag <= last:
                raise self.damage(f"tag {tag} follows tag {last}")
            last = tag
            found[tag] = self.take(self.uvarint(f"the size of tag {tag}"), f"tag {tag}")
        return found

    def tagged_integer(self, data: bytes | None, size: int, default: int) -> int:
        """A signed integer that stood under a tag, or the default where the tag was left out."""
        if data is None:
            return default
        if len(data) != size:
            raise self.damage(f"a tagged integer has {len(data)} bytes, not {size}")
        return int.from_bytes(data, signed=True)

    def finish(self) -> None:
        """The end of the message must be here."""
        if self.left:
            raise self.damage(f"{self.left} bytes too many")
