"""The only door to files.

Readers get read-only mappings that never reach past the file's end. Writers use positioned writes, so
that a full disk is an error of the write and never a signal. Everything that changes a file is a method
of Disk: a simulator replaces the object, and a crash or a full disk becomes a seed.

A child that a process forks shares its descriptors but not its locks. ``process.forks()`` tells it apart, so that
whoever opened a directory for writing can refuse to write from the child.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import mmap
import os
import struct
import threading
from typing import TYPE_CHECKING, Final

import numpy as np

from .errors import DirectoryLockedError

if TYPE_CHECKING:
    from typing_extensions import Buffer

Path = str | os.PathLike[str]
PAGE_BYTES: Final = mmap.PAGESIZE
_MAP_FAILED: Final = ctypes.c_void_p(-1).value
_KEEP_SIZE_AND_PUNCH_HOLE: Final = 0x01 | 0x02  # of Linux's fallocate
_START_WRITING: Final = 0x02  # of Linux's sync_file_range
_LOST: Final = {errno.EIO, errno.ENOSPC, errno.EDQUOT}  # what a device says, perhaps only once


class _Pages:
    """A mapping; unmapped with the last array that lies over it.

    mmap.mmap would keep a duplicate of the descriptor, and a broker's directory has more files than a process
    may have open.
    """

    def __init__(self, address: int, size: int, *, is_read_only: bool) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, is_read_only),
        }
        self._unmap = functools.partial(_libc().munmap, address, size)

    def __del__(self) -> None:
        self._unmap()


@functools.cache
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    number, size, place = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
    library.mmap.argtypes = [place, size, number, number, number, ctypes.c_int64]
    library.mmap.restype = place
    library.munmap.argtypes = [place, size]
    if hasattr(library, "fallocate"):
        library.fallocate.argtypes = [number, number, ctypes.c_int64, ctypes.c_int64]
    if hasattr(library, "sync_file_range"):
        library.sync_file_range.argtypes = [number, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return library


def map_file(path: Path) -> memoryview | bytes:
    """The bytes of a file, mapped read-only; empty bytes for an empty file, which cannot be mapped."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return map_descriptor(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def map_descriptor(descriptor: int, size: int) -> memoryview | bytes:
    """The first ``size`` bytes of an open file, mapped read-only; the descriptor is not kept."""
    return _map(descriptor, 0, size, mmap.PROT_READ) if size else b""


def _map(descriptor: int, position: int, size: int, protection: int) -> memoryview:
    address = _libc().mmap(None, size, protection, mmap.MAP_SHARED, descriptor, position)
    if address == _MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    is_read_only = not protection & mmap.PROT_WRITE
    return np.asarray(_Pages(address, size, is_read_only=is_read_only)).data


def read_descriptor(descriptor: int, position: int, size: int) -> bytes:
    """Bytes of an open file, copied; fewer where it ends."""
    return os.pread(descriptor, size, position)


def read_into(descriptor: int, position: int, buffer: Buffer) -> int:
    """Fills a buffer from an open file; returns how many bytes there were, fewer where it ends."""
    view = memoryview(buffer)
    done = 0
    while done < view.nbytes:
        count = os.preadv(descriptor, [view[done:]], position + done)
        if not count:
            break
        done += count
    return done


def file_size(descriptor: int) -> int:
    return os.fstat(descriptor).st_size


def exists(path: Path) -> bool:
    return os.path.exists(path)


def modified_ms(path: Path) -> int:
    """When a file was last written, in milliseconds since 1970."""
    return os.stat(path).st_mtime_ns // 1_000_000


def read_file(path: Path) -> bytes:
    """All bytes of a small file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(descriptor, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def read_at(path: Path, position: int, size: int) -> bytes:
    """Up to ``size`` bytes of a file at a position, without mapping what its writer may cut off meanwhile."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, size, position)
    finally:
        os.close(descriptor)


def open_to_read(path: Path) -> int:
    """A descriptor for reading; whoever takes it closes it with close_read()."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def open_to_use_up(path: Path) -> int:
    """The same, and for Disk.give_back() where that is allowed: the file may be another user's."""
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError:
        return open_to_read(path)


def close_read(descriptor: int) -> None:
    os.close(descriptor)


def is_held(descriptor: int) -> bool:
    """Whether somebody, in this process or another, holds the file through Disk.hold()."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def file_identity(path: Path) -> tuple[int, int, int] | None:
    """Tells whether a name still stands for the same file, unchanged: device, inode, time of change. None for none."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def list_files(directory: Path, *, sized: str | tuple[str, ...] = "") -> dict[str, int]:
    """Names and sizes of the regular files in a directory; files that vanish meanwhile are left out.

    ``sized`` are the endings of names whose sizes matter; others count as 0, which saves asking the kernel.
    """
    sizes = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            try:
                if entry.is_file():
                    name = entry.name
                    sizes[name] = entry.stat().st_size if name.endswith(sized) else 0
            except FileNotFoundError:
                continue
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

    def duplicate(self, descriptor: int) -> int:
        """A descriptor of one's own for an open file: it stays good when the other is closed."""
        return os.dup(descriptor)

    def write(self, descriptor: int, data: Buffer, position: int) -> None:
        """Writes all of ``data`` at a position, or raises."""
        written = os.pwrite(descriptor, data, position)
        view = memoryview(data)
        while written < view.nbytes:
            if not written:
                raise OSError(errno.EIO, "the disk takes no more bytes and gives no reason")
            view = view[written:]
            position += written
            written = os.pwrite(descriptor, view, position)

    def give_back(self, descriptor: int, position: int, size: int) -> None:
        """Leaves a hole, which reads as zeros, where nobody needs the bytes any more: what is written next gets their
        memory. Nothing happens where the file system or the platform cannot do so."""
        libc = _libc()
        if hasattr(libc, "fallocate"):
            libc.fallocate(descriptor, _KEEP_SIZE_AND_PUNCH_HOLE, position, size)

    def truncate(self, descriptor: int, size: int) -> None:
        """Sets a file's size; what is added reads as zeros."""
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        """Returns when what was written is on the device."""
        os.fdatasync(descriptor)

    def start_writing(self, descriptor: int) -> None:
        """Has the device begin with what was written, and does not wait for it: a later sync waits for less.

        It promises nothing, and nothing happens where the platform cannot do so.
        """
        libc = _libc()
        if hasattr(libc, "sync_file_range") and libc.sync_file_range(
            descriptor, 0, 0, _START_WRITING
        ):
            code = ctypes.get_errno()
            if code in _LOST:
                raise OSError(code, os.strerror(code))

    def sync_file(self, path: Path) -> None:
        """Returns when a file that someone else has written and closed is on the device."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.sync(descriptor)
        finally:
            os.close(descriptor)

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

    def remove_directory(self, path: Path) -> None:
        """Removes an empty directory; one that is not there is no error."""
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(path)

    def map_to_write(self, descriptor: int, position: int, size: int) -> memoryview:
        """A part of a file, mapped to be written. The caller has written it once: a page of a hole would have to be
        found when it is first stored to, and where the disk is full that is a signal and not an error."""
        return _map(descriptor, position, size, mmap.PROT_READ | mmap.PROT_WRITE)

    def hold(self, descriptor: int) -> None:
        """Marks an open file as somebody's until it is closed, or its holder ends: is_held() tells.

        Unlike a record lock it belongs to the opened file, so that readers in the same process see it too.
        """
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

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
        self.sync_directory(os.path.dirname(os.fspath(path)) or ".")

    def lock(self, path: Path) -> int:
        """Takes the POSIX record lock that a Kafka broker takes on its data directory.

        The kernel keeps such locks by process and gives them up when *any* descriptor of the file is
        closed, so this process remembers what it holds and opens no such file twice.
        """
        directory = os.path.dirname(os.path.abspath(path))
        with _HELD_LOCK:
            with contextlib.suppress(FileNotFoundError):
                if _identity(os.stat(path)) in _HELD:
                    raise DirectoryLockedError(
                        f"{directory} is already open in this process ({os.getpid()})"
                    )
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = _holder_of(descriptor)
                os.close(descriptor)
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                raise DirectoryLockedError(f"{directory} is held by {holder}") from None
            _HELD.add(_identity(os.fstat(descriptor)))
            return descriptor

    def unlock(self, descriptor: int) -> None:
        with _HELD_LOCK:
            _HELD.discard(_identity(os.fstat(descriptor)))
            os.close(descriptor)


# Lock files that this process holds, by device and inode.
_HELD: set[tuple[int, int]] = set()
_HELD_LOCK = threading.Lock()


def _note_fork() -> None:
    """In a child: it holds none of its parent's locks."""
    global _HELD_LOCK  # noqa: PLW0603
    _HELD_LOCK = threading.Lock()
    _HELD.clear()


os.register_at_fork(after_in_child=_note_fork)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _holder_of(descriptor: int) -> str:
    """Who holds a record lock, as the kernel knows it."""
    # struct flock: type, whence, start, length, pid
    asked = struct.pack("hh4xqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, process = struct.unpack(
        "hh4xqqi4x", fcntl.fcntl(descriptor, fcntl.F_GETLK, asked)
    )
    return "another process" if kind == fcntl.F_UNLCK else f"process {process}"
