"""The only door to files.

Readers get read-only mappings that never reach past the file's end. Writers use positioned writes, so
that a full disk is an error of the write and never a signal. Everything that changes a file is a method
of Disk: a simulator replaces the object, and a crash or a full disk becomes a seed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import struct
from typing import TYPE_CHECKING

from .errors import DirectoryLockedError

if TYPE_CHECKING:
    from typing_extensions import Buffer

Path = str | os.PathLike[str]


def map_file(path: Path) -> mmap.mmap | bytes:
    """The bytes of a file, mapped read-only; empty bytes for an empty file, which cannot be mapped."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return map_descriptor(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def map_descriptor(descriptor: int, size: int) -> mmap.mmap | bytes:
    """The first ``size`` bytes of an open file, mapped read-only."""
    return mmap.mmap(descriptor, size, prot=mmap.PROT_READ) if size else b""


def exists(path: Path) -> bool:
    return os.path.exists(path)


def read_file(path: Path) -> bytes:
    """All bytes of a small file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(descriptor, 1 << 20):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def list_files(directory: Path) -> dict[str, int]:
    """Names and sizes of the regular files in a directory; files that vanish meanwhile are left out."""
    sizes = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if entry.is_file():
                    sizes[entry.name] = entry.stat().st_size
    return sizes


def list_directories(directory: Path) -> list[str]:
    """Names of the directories in a directory, sorted."""
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir())


class Disk:
    """The real disk: everything that changes files."""

    def open(self, path: Path) -> int:
        """A descriptor for reading and writing; the file is made if it is not there."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def write(self, descriptor: int, data: Buffer, position: int) -> None:
        """Writes all of ``data`` at a position, or raises."""
        view = memoryview(data)
        while view:
            written = os.pwrite(descriptor, view, position)
            if not written:
                raise OSError(errno.EIO, "the disk takes no more bytes and gives no reason")
            view = view[written:]
            position += written

    def truncate(self, descriptor: int, size: int) -> None:
        """Sets a file's size; what is added reads as zeros."""
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        """Returns when what was written is on the device."""
        os.fdatasync(descriptor)

    def sync_directory(self, path: Path) -> None:
        """Returns when the names in a directory are on the device."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def replace(self, path: Path, data: bytes, *, sync: bool = True) -> None:
        """Replaces a small file whole: readers and crashes see the old bytes or the new, never a mix."""
        temporary = f"{os.fspath(path)}.tmp"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            self.write(descriptor, data, 0)
            if sync:
                self.sync(descriptor)
        finally:
            os.close(descriptor)
        self.rename(temporary, path)
        if sync:
            self.sync_directory(os.path.dirname(os.fspath(path)) or ".")

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        """Removes a file; one that is not there is no error."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def make_directory(self, path: Path) -> None:
        os.makedirs(path, exist_ok=True)

    def shorten(self, path: Path, size: int) -> None:
        """Cuts a file that readers may have mapped.

        The kept bytes go to a new file that takes the name, since a page that a truncation takes away
        under a mapping would kill its reader; the old file lives as long as it is mapped.
        """
        temporary = f"{os.fspath(path)}.tmp"
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            target = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                copied = 0
                while copied < size:
                    part = os.pread(source, min(size - copied, 1 << 20), copied)
                    if not part:
                        raise OSError(errno.EIO, f"{os.fspath(path)} is shorter than {size} bytes")
                    self.write(target, part, copied)
                    copied += len(part)
                self.sync(target)
            finally:
                os.close(target)
        finally:
            os.close(source)
        self.rename(temporary, path)

    def lock(self, path: Path) -> int:
        """Takes the POSIX record lock that a Kafka broker takes on its data directory.

        The kernel keeps such locks by process and gives them up when *any* descriptor of the file is
        closed, so this process remembers what it holds and opens no such file twice.
        """
        directory = os.path.dirname(os.path.abspath(path))
        with contextlib.suppress(FileNotFoundError):
            if _identity(os.stat(path)) in _HELD:
                raise DirectoryLockedError(f"{directory} is already open in this process")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise DirectoryLockedError(f"{directory} is held by {_holder_of(path)}") from None
        _HELD.add(_identity(os.fstat(descriptor)))
        return descriptor

    def unlock(self, descriptor: int) -> None:
        _HELD.discard(_identity(os.fstat(descriptor)))
        os.close(descriptor)


# Lock files that this process holds, by device and inode.
_HELD: set[tuple[int, int]] = set()


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _holder_of(path: Path) -> str:
    """Who holds a record lock, as the kernel knows it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        # struct flock: type, whence, start, length, pid
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, process = struct.unpack(
            "hhqqi4x", fcntl.fcntl(descriptor, fcntl.F_GETLK, asked)
        )
    finally:
        os.close(descriptor)
    return "another process" if kind == fcntl.F_UNLCK else f"process {process}"
