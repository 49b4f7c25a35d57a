"""Files of fixed-size entries that point into a log: what offset and time indexes share.

An index is mapped for reading and written by position. While it grows it is preallocated, and trimmed
when its segment is sealed or closed. It is derived: whatever is wrong with it, the log can rebuild it,
in place or, for a reader that may change nothing, in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from .._native.segment import IndexTail
from ..base.disk import map_descriptor, map_file, read_at
from ..base.errors import CorruptFileError

if TYPE_CHECKING:
    from ..base.disk import Disk


class IndexFile(IndexTail):
    """Entries in a file; the subclass knows what they mean. Single writer, many readers below ``count``."""

    entry_bytes: ClassVar[int]
    kept_slots: ClassVar[int] = 0  # at the end, for the entry that seals the segment

    def __init__(self, path: str, base_offset: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.count = 0
        self.capacity = 0
        self.count_max = 0  # below the capacity, where slots are kept
        self._entries = b""
        self._descriptor = -1
        self._disk: Disk | None = None

    # ------------------------------------------------------------ reading

    def load(self) -> None:
        """Maps a file that was trimmed, and checks it."""
        self._entries = map_file(self.path)
        size = len(memoryview(self._entries))
        if size % self.entry_bytes:
            raise CorruptFileError(
                f"size {size} is not a multiple of {self.entry_bytes}", file=self.path
            )
        self.count = size // self.entry_bytes
        self.check()

    def check(self) -> None:
        """Raises if the last entry cannot be right; entries before it are found out when they are used."""

    def hold(self, entries: bytes) -> None:
        """Takes entries that were rebuilt in memory, for a reader that may not write."""
        self._entries = entries
        self.count = len(entries) // self.entry_bytes

    def hold_growing(self) -> None:
        """Takes the entries that a writer in another process has made so far, without a mapping: it cuts the file.

        What follows the last entry is zeros. Entries are proven when they are used.
        """
        low, high, step = 0, 0, 4096 // self.entry_bytes * self.entry_bytes
        while any(read_at(self.path, high, self.entry_bytes)):  # doubling, then halving
            low, high = high, max(2 * high, step)
        while high - low > step:
            middle = (low + high) // 2 // self.entry_bytes * self.entry_bytes
            if any(read_at(self.path, middle, self.entry_bytes)):
                low = middle
            else:
                high = middle
        entries = read_at(self.path, 0, high)
        size = len(entries) - len(entries) % self.entry_bytes
        while size and not any(entries[size - self.entry_bytes : size]):
            size -= self.entry_bytes
        self.hold(entries[:size])

    def all(self) -> bytes:
        """The bytes of all entries."""
        return bytes(memoryview(self._entries)[: self.count * self.entry_bytes])

    def __getitem__(self, slot: int) -> bytes:
        if not 0 <= slot < self.count:
            raise IndexError(f"entry {slot} of {self.count} in {self.path}")
        start = slot * self.entry_bytes
        return bytes(memoryview(self._entries)[start : start + self.entry_bytes])

    # ------------------------------------------------------------ writing

    @property
    def is_full(self) -> bool:
        return self.count >= self.count_max

    def open(self, disk: Disk, bytes_max: int, *, keep: int = 0) -> None:
        """Makes the file ready to grow to ``bytes_max``, with the first ``keep`` entries it has."""
        self.capacity = bytes_max // self.entry_bytes
        self.count_max = self.capacity - self.kept_slots
        size = max(self.capacity, keep) * self.entry_bytes
        if self._descriptor < 0:
            self._disk = disk
            if not keep:
                disk.remove(self.path)  # a reader may still search in the old file's mapping
            self._descriptor = disk.open(self.path)
        disk.truncate(self._descriptor, keep * self.entry_bytes)  # what follows must read as zeros
        disk.truncate(self._descriptor, size)
        self._entries = map_descriptor(self._descriptor, size)
        self.count = keep

    def append(self, entries: bytes, *, is_last: bool = False) -> None:
        """Writes whole entries after the last; the count moves only when they are written."""
        if not entries:
            return
        added = len(entries) // self.entry_bytes
        room = len(memoryview(self._entries)) // self.entry_bytes - self.count
        if added > room - (0 if is_last else self.kept_slots):
            raise CorruptFileError(f"the index is full with {self.count} entries", file=self.path)
        assert self._disk is not None
        self._disk.write(self._descriptor, entries, self.count * self.entry_bytes)
        self.count += added

    def shrink(self, count: int) -> None:
        """Forgets the entries from ``count`` on."""
        if count >= self.count:
            return
        if self._descriptor >= 0:
            assert self._disk is not None
            zeros = bytes((self.count - count) * self.entry_bytes)
            self._disk.write(self._descriptor, zeros, count * self.entry_bytes)
        self.count = count

    def trim(self) -> None:
        """Cuts the preallocated rest; readers never look past ``count``, so no mapping is hurt."""
        if self._descriptor >= 0:
            assert self._disk is not None
            self._disk.truncate(self._descriptor, self.count * self.entry_bytes)

    def sync(self) -> None:
        if self._descriptor >= 0:
            assert self._disk is not None
            self._disk.sync(self._descriptor)

    def release(self) -> None:
        """Gives up the descriptor of a file that will not grow again; readers keep the mapping."""
        if self._descriptor >= 0:
            assert self._disk is not None
            self._disk.close(self._descriptor)
            self._descriptor = -1

    def close(self) -> None:
        """Gives up the file; the mapping goes with its last user."""
        if self._descriptor >= 0:
            assert self._disk is not None
            self._disk.close(self._descriptor)
            self._descriptor = -1
        self._entries = b""
