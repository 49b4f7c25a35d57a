"""What a live writer tells readers in other processes: how far they may see, partition by partition.

File    oncelog.live in the data directory, there while a writer has the directory open
Writer  DataDirectory, which holds the file (flock) as long as it lives; stores go through a mapping
Reader  a DataDirectory without a disk, at every call that looks anew
Repair  none: a file that nobody holds is a dead writer's and says nothing

==  ====  =====  ===========  ==============================================================================
at  size  type   field        meaning
==  ====  =====  ===========  ==============================================================================
 0     8  bytes  magic        ``ONCELIVE``
 8     8  int64  version      1
16     8  int64  state        1 while it counts, 2 once its writer has closed the directory, or another has come
24     8  int64  generation   rises with every slot that is taken or given back
32     8  int64  slot_count   slots that are there; more may follow, the file grows
40     8  int64  was_clean    1: before this writer came, the directory had been stopped cleanly
48     8  int64  process      of the writer, for people
==  ====  =====  ===========  ==============================================================================

Slots of 320 bytes follow at 4096: eight numbers (changes, owner, log start, end, last stable offset, written end,
two spare), each an int64 in the machine's order, then the name of the partition's directory, ended by zeros. The
numbers have a cache line to themselves. How they are written so that a reader never finds a stable offset without
its end, on any CPU, is the business of the compiled Slot.

A reader may see [log start, end) and, at read_committed, what lies below the last stable offset. In "os" durability
the end is the log's; in "fsync" durability it is what a power failure leaves. The files hold whole batches up to
the written end, which may lie further: markers there have already ended transactions below.

The file is written once in full before it is mapped, since a hole would be filled when it is first stored to, and
where the disk is full that is a signal and not an error. It is a file and no directory, for a broker takes every
directory in here for a partition's.
"""

from __future__ import annotations

import os
import struct
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from .._native.published import SLOT_NUMBERS, Slot
from ..base.disk import (
    close_read,
    exists,
    file_size,
    is_held,
    map_descriptor,
    open_to_read,
    read_descriptor,
)
from ..base.errors import KafkaStorageError

if TYPE_CHECKING:
    from ..base.disk import Disk

LIVE: Final = "oncelog.live"
MAGIC: Final = b"ONCELIVE"
VERSION: Final = 1
OPEN, CLOSED = 1, 2
HEADER: Final = struct.Struct("=8sqqqqqq")
HEADER_BYTES: Final = 4096
STATE, GENERATION, SLOT_COUNT, WAS_CLEAN = (
    2,
    3,
    4,
    5,
)  # numbers of the header, the magic being the first
NUMBERS_BYTES: Final = 8 * SLOT_NUMBERS
SLOT_BYTES: Final = 320
FIRST_SLOTS: Final = 64


class Bounds(NamedTuple):
    """How far a reader may see, and how far the files hold whole batches.

    ``changes`` is another number where something else than an append has happened: segments may be others.
    """

    start: int
    end: int
    stable: int
    written: int
    changes: int = 0


class Published:
    """The writer's side: hands out slots, which their partitions write. From any thread."""

    def __init__(self, disk: Disk, path: str, *, was_clean: bool) -> None:
        self._disk = disk
        self._path = path
        self._lock = threading.Lock()
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        self._owners = 0  # counts the slots that were ever taken
        self._retire_old()
        temporary = f"{path}.tmp"
        disk.remove(temporary)
        self._descriptor = disk.open(temporary)
        try:
            disk.hold(self._descriptor)  # before anyone can find it
            header = HEADER.pack(MAGIC, VERSION, OPEN, 0, 0, int(was_clean), os.getpid())
            disk.write(self._descriptor, header.ljust(HEADER_BYTES, b"\0"), 0)
            self._grow(FIRST_SLOTS)
            disk.rename(temporary, path)
        except BaseException:
            disk.close(self._descriptor)
            raise

    def _retire_old(self) -> None:
        """A dead writer's file: a child of it may still hold it, so that readers are told."""
        if exists(self._path):
            descriptor = self._disk.open(self._path)
            try:
                self._disk.write(descriptor, struct.pack("=q", CLOSED), 8 * STATE)
            finally:
                self._disk.close(descriptor)
            self._disk.remove(self._path)

    def _grow(self, count: int) -> None:
        """Adds slots. Those that are in use keep the mapping that they have: it shows the same pages."""
        known = len(self._slots) + len(self._free)
        self._disk.write(self._descriptor, bytes(count * SLOT_BYTES), _position(known))
        size = _position(known + count)
        self._memory = self._disk.map_to_write(self._descriptor, 0, size)
        self._header = self._memory[:HEADER_BYTES].cast("q")
        self._header[SLOT_COUNT] = known + count
        self._free = [*reversed(range(known, known + count)), *self._free]

    def take(self, name: str, bounds: Bounds) -> Slot:
        """A slot for a partition of which the offsets are known: from here on readers go by it."""
        with self._lock:
            if not self._free:
                try:
                    self._grow(len(self._slots))
                except OSError as error:  # whoever asks tries again with the next append
                    raise KafkaStorageError(f"{self._path}: {error}") from error
            index = self._slots.pop(name, None)  # of a partition that is opened again
            if index is None:
                index = self._free.pop()
            self._slots[name] = index
            self._owners += 1
            position = _position(index)
            slot = Slot(self._memory, position, is_written=True)
            slot.reset(0, 0, 0, 0, owner=0)
            encoded = name.encode().ljust(SLOT_BYTES - NUMBERS_BYTES, b"\0")
            self._memory[position + NUMBERS_BYTES : position + SLOT_BYTES] = encoded
            slot.reset(*bounds[:4], owner=self._owners)
            self._header[GENERATION] += 1
            return slot

    def give_back(self, name: str) -> None:
        """The partition is gone."""
        with self._lock:
            index = self._slots.pop(name, None)
            if index is not None:
                Slot(self._memory, _position(index), is_written=True).reset(0, 0, 0, 0, owner=0)
                self._header[GENERATION] += 1
                self._free.append(index)

    def close(self) -> None:
        """The directory is closed: readers look at its files again."""
        self._header[STATE] = CLOSED
        try:
            self._disk.remove(self._path)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Gives up the descriptor alone, as a forked child must."""
        self._disk.close(self._descriptor)


def _position(index: int) -> int:
    return HEADER_BYTES + index * SLOT_BYTES


class PublishedView:
    """The reader's side: the file of one live writer."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._generation = -1
        self._slots: dict[str, tuple[Slot, int]] = {}
        self._memory = memoryview(map_descriptor(descriptor, file_size(descriptor)))
        self._header = self._memory[:HEADER_BYTES].cast("q")

    def __del__(self) -> None:
        close_read(self._descriptor)

    @property
    def was_clean(self) -> bool:
        return self._header[WAS_CLEAN] == 1

    @property
    def is_live(self) -> bool:
        """Whether the writer still has the directory open."""
        return self._header[STATE] == OPEN and is_held(self._descriptor)

    def slots(self) -> dict[str, tuple[Slot, int]]:
        """The slots of partitions that the writer has opened, with their owners, by directory name."""
        while self._generation != self._header[GENERATION]:
            generation = self._header[GENERATION]
            count = self._header[SLOT_COUNT]
            if _position(count) > len(self._memory):
                size = file_size(self._descriptor)
                self._memory = memoryview(map_descriptor(self._descriptor, size))
            self._slots = dict(self._found(count))
            self._generation = generation
        return self._slots

    def _found(self, count: int) -> list[tuple[str, tuple[Slot, int]]]:
        found = []
        for position in map(_position, range(count)):
            slot = Slot(self._memory, position)
            owner = slot.owner
            name = bytes(self._memory[position + NUMBERS_BYTES : position + SLOT_BYTES])
            if owner and slot.owner == owner:
                found.append((name.rstrip(b"\0").decode(errors="replace"), (slot, owner)))
        return found


def find_published(directory: str) -> PublishedView | None:
    """The file of the writer that has a directory open right now; None if there is none, or one that is not ours."""
    try:
        descriptor = open_to_read(f"{directory}/{LIVE}")
    except OSError:
        return None
    header = read_descriptor(descriptor, 0, HEADER.size)
    is_ours = header[:16] == struct.pack("=8sq", MAGIC, VERSION)
    if not is_ours or file_size(descriptor) < _position(FIRST_SLOTS):
        close_read(descriptor)
        return None
    view = PublishedView(descriptor)
    return view if view.is_live else None
