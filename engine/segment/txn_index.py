"""Transaction index: the aborted transactions of one segment.

File    <base_offset>.txnindex, created by the first abort
Writer  Segment.append, one entry for each ABORT marker of a transaction with data, never rewritten
Reader  a fetch under read_committed
Repair  the log wins: an entry that breaks an invariant means rebuild, never guess

==  ====  =====  ==================  ======================================================================
at  size  type   field               invariant
==  ====  =====  ==================  ======================================================================
 0     2  int16  version             0
 2     8  int64  producer_id         >= 0
10     8  int64  first_offset        <= last_offset, >= the stable offset before; may lie in an earlier segment
18     8  int64  last_offset         the marker itself; strictly rising through the file
26     8  int64  last_stable_offset  right after this abort: <= last_offset + 1, never falls
==  ====  =====  ==================  ======================================================================

34 bytes, big-endian, no checksum.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from typing import TYPE_CHECKING, Final

import numpy as np

from .._native.txn_index import TxnIndex
from ..base.disk import (
    PAGE_BYTES,
    exists,
    file_identity,
    file_size,
    map_descriptor,
    map_file,
    read_file,
)
from ..base.rows import ABORTED_DTYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from ..base.disk import Disk

ENTRY: Final = struct.Struct(">hqqqq")


def encode_entries(aborted: NDArray[np.void]) -> bytes:
    """Rows of aborted transactions as the bytes of a file."""
    return b"".join(ENTRY.pack(0, *row) for row in aborted.tolist())


class TxnIndexFile:
    """The file and the lookups in it; opened when it is first asked for, made when it is first needed."""

    def __init__(self, path: str, base_offset: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self._index: TxnIndex | None = None
        self._content: Buffer | None = None  # of the file, taken before it was needed
        self._pages = memoryview(b"")  # of a file that grows, mapped up to the end of the last one
        self._descriptor = -1
        self._disk: Disk | None = None
        # For whoever opens the file or replaces it. Of two threads that open it at once, one would put what it read
        # over an index that the other has added to since: the next entry would then take the place of an older one.
        self._opening = threading.RLock()

    @property
    def index(self) -> TxnIndex:
        """The checked entries; raises a CorruptRecordError where the file cannot be believed."""
        index = self._index  # taken once: another thread may give the file up meanwhile
        if index is None:
            with self._opening:
                index = self._index
                if index is None:
                    self.pin()
                    index = TxnIndex(self._content or b"", self.base_offset, self.path)
                    self._index = index
        return index

    def pin(self) -> None:
        """Takes the entries as they are now; they are checked when they are first asked for."""
        with self._opening:
            if self._index is None and self._content is None:
                self._content = b""  # where there is no file, nothing was aborted
                if exists(self.path):
                    with contextlib.suppress(FileNotFoundError):
                        self._content = map_file(self.path)

    def pin_with(self, log: str) -> memoryview | bytes:
        """Maps a segment's .log, and takes the entries that belong to it, for a reader beside a writer at work.

        The .log is the first of a segment's files to go. While its name stands for the same file, so do the others.
        """
        while True:
            before = file_identity(log)
            mapping = map_file(log)
            self.pin()
            after = file_identity(log)
            if before is not None and after is not None and before[:2] == after[:2]:
                return mapping
            self.close()

    def pin_growing(self, end_offset: int) -> None:
        """Takes entries that another process may be adding to: those of markers below an offset."""
        try:
            content = read_file(self.path)
        except FileNotFoundError:
            content = b""
        size = len(content) - len(content) % ENTRY.size
        while size and ENTRY.unpack_from(content, size - ENTRY.size)[3] >= end_offset:
            size -= ENTRY.size
        with self._opening:
            self._index, self._content = None, content[:size]

    def hold(self, aborted: NDArray[np.void]) -> None:
        """Takes entries that were rebuilt in memory, for a reader that may not write."""
        index = TxnIndex(encode_entries(aborted), self.base_offset, self.path)
        with self._opening:
            self._index = index

    def __len__(self) -> int:
        return len(self.index)

    def collect(
        self, fetch_offset: int, upper_bound: int
    ) -> tuple[NDArray[np.void], NDArray[np.int64], bool]:
        return self.index.collect_aborted_txns(fetch_offset, upper_bound)

    def append(self, disk: Disk, aborted: NDArray[np.void]) -> None:
        """Adds transactions whose markers have just been written."""
        if not len(aborted):
            return
        known = len(self.index)
        if self._descriptor < 0:
            self._disk = disk
            self._descriptor = disk.open(self.path)
        size = known * ENTRY.size
        entries = encode_entries(aborted)
        disk.write(self._descriptor, entries, size)
        size += len(entries)
        if size > len(self._pages):
            # The rest of a page that the file reaches into is there, and shows what the next entries put into it.
            self._pages = memoryview(map_descriptor(self._descriptor, size + -size % PAGE_BYTES))
        self.index.extend(self._pages[:size])

    def rewrite(self, disk: Disk, aborted: NDArray[np.void]) -> None:
        """Replaces all entries; a segment without aborts has no file."""
        with self._opening:  # until the new ones are there: nobody opens the old ones in between
            self.close()
            if len(aborted):
                disk.replace(self.path, encode_entries(aborted))
            else:
                disk.remove(self.path)

    def truncate_to(self, disk: Disk, offset: int) -> None:
        """Forgets transactions that end at this offset or above."""
        entries = self.index.entries()
        kept = entries[entries["last_offset"] < offset]
        if len(kept) < len(entries):
            rows = np.empty(len(kept), ABORTED_DTYPE)
            for name in ABORTED_DTYPE.names or ():
                rows[name] = kept[name]
            self.rewrite(disk, rows)

    def sync(self) -> None:
        if self._descriptor >= 0:
            assert self._disk is not None
            self._disk.sync(self._descriptor)

    def trim(self) -> None:
        """Cuts off what a failed write has left behind the last entry."""
        if self._descriptor >= 0:
            assert self._disk is not None
            size = len(self.index) * ENTRY.size
            if file_size(self._descriptor) > size:
                self._disk.truncate(self._descriptor, size)

    def release(self) -> None:
        """Gives up the descriptor, after a trim; readers keep what they have."""
        try:
            self.trim()
        finally:
            self.drop()

    def drop(self) -> None:
        """Gives up the descriptor and leaves the file as it is."""
        if self._descriptor >= 0:
            assert self._disk is not None
            self._disk.close(self._descriptor)
            self._descriptor = -1
            self._pages = memoryview(b"")

    def close(self) -> None:
        """Gives up the file."""
        with self._opening:
            self.release()
            self._index = self._content = None
