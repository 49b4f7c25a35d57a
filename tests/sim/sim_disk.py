"""Disks that fail: at the n-th call, by killing the process, or by forgetting what was not synced.

FaultyDisk   the n-th call that changes something raises, once; a write may get half way first
KillingDisk  the n-th such call ends the process with SIGKILL, before or after it is done
SimDisk      keeps what the device had at the last sync, and what was written since; a power failure keeps a
             random part of the latter, torn at sector or page boundaries
"""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncelog.base.disk import Disk

if TYPE_CHECKING:
    import random

    from typing_extensions import Buffer

PathLike = str | os.PathLike[str]


class CountingDisk(Disk):
    """Calls ``step`` before and after everything that changes files."""

    def __init__(self) -> None:
        self.calls = 0
        self.names: list[str] = []

    def step(self, name: str, *, done: bool, **details: Any) -> None:
        """For subclasses. ``details`` has what a write needs to be done by halves."""

    def _enter(self, name: str, **details: Any) -> None:
        self.calls += 1
        self.names.append(name)
        self.step(name, done=False, **details)

    def open(self, path: PathLike) -> int:
        self._enter("open")
        descriptor = super().open(path)
        self.step("open", done=True)
        return descriptor

    def write(self, descriptor: int, data: Buffer, position: int) -> None:
        self._enter("write", descriptor=descriptor, data=data, position=position)
        super().write(descriptor, data, position)
        self.step("write", done=True)

    def truncate(self, descriptor: int, size: int) -> None:
        self._enter("truncate")
        super().truncate(descriptor, size)
        self.step("truncate", done=True)

    def sync(self, descriptor: int) -> None:
        self._enter("sync")  # no more than that: nothing here depends on the device
        self.step("sync", done=True)

    def sync_directory(self, path: PathLike) -> None:
        self._enter("sync_directory")
        self.step("sync_directory", done=True)

    def rename(self, source: PathLike, target: PathLike) -> None:
        self._enter("rename")
        super().rename(source, target)
        self.step("rename", done=True)

    def remove(self, path: PathLike) -> None:
        self._enter("remove")
        super().remove(path)
        self.step("remove", done=True)

    def make_directory(self, path: PathLike) -> None:
        self._enter("make_directory")
        super().make_directory(path)
        self.step("make_directory", done=True)


class FaultyDisk(CountingDisk):
    """Raises at the n-th call, once. ``lasts``: how many calls from there on fail."""

    def __init__(
        self, at: int, code: int = errno.ENOSPC, *, by_halves: bool = False, lasts: int = 1
    ) -> None:
        super().__init__()
        self._at = at
        self._code = code
        self._by_halves = by_halves
        self._lasts = lasts
        self.failed: str | None = None

    def step(self, name: str, *, done: bool, **details: Any) -> None:
        if done or not self._at <= self.calls < self._at + self._lasts:
            return
        self.failed = name
        if name == "write" and self._by_halves:
            half = bytes(memoryview(details["data"]))[: len(memoryview(details["data"])) // 2]
            Disk.write(self, details["descriptor"], half, details["position"])
        raise OSError(self._code, f"simulated: {os.strerror(self._code)} in {name}")


class KillingDisk(CountingDisk):
    """Kills its own process around the n-th call; a write also half way through."""

    def __init__(self, at: int, when: str) -> None:
        super().__init__()
        self._at = at
        self._when = when  # "before", "after" or "within"

    def step(self, name: str, *, done: bool, **details: Any) -> None:
        if self.calls != self._at:
            return
        if self._when == "within" and not done and name == "write":
            half = bytes(memoryview(details["data"]))[: len(memoryview(details["data"])) // 2]
            Disk.write(self, details["descriptor"], half, details["position"])
        if done == (self._when == "after"):
            os.kill(os.getpid(), signal.SIGKILL)


class SimDisk(Disk):
    """A device behind a cache: only what was synced is sure to be there after a power failure.

    Files are kept by inode. What counts as durable is a copy of each inode's bytes at its last sync, and of each
    directory's names at its last sync; a rename or a new file may or may not have reached the device by itself.
    """

    SECTOR = 512

    def __init__(self) -> None:
        self._bytes: dict[int, bytes] = {}  # durable, by inode
        self._names: dict[str, dict[str, int]] = {}  # durable names of a directory, to inodes
        self._pins: dict[int, int] = {}  # open descriptors, so that no inode number is used twice

    def __del__(self) -> None:
        for descriptor in self._pins.values():
            os.close(descriptor)

    def sync(self, descriptor: int) -> None:
        inode = os.fstat(descriptor).st_ino
        if inode not in self._pins:
            self._pins[inode] = os.dup(descriptor)
        size = os.fstat(descriptor).st_size
        with open(f"/proc/self/fd/{descriptor}", "rb") as file:  # noqa: PTH123
            self._bytes[os.fstat(descriptor).st_ino] = file.read(size)

    def sync_directory(self, path: PathLike) -> None:
        folder = Path(path)
        self._names[str(folder)] = {
            entry.name: entry.stat().st_ino for entry in folder.iterdir() if entry.is_file()
        }

    def fail_power(self, source: Path, target: Path, chance: random.Random) -> None:
        """Writes to ``target`` what a device might hold of ``source`` after the power has failed."""
        for folder in [source, *(path for path in sorted(source.rglob("*")) if path.is_dir())]:
            goal = target / folder.relative_to(source)
            goal.mkdir(parents=True, exist_ok=True)
            now = {entry.name: entry for entry in folder.iterdir() if entry.is_file()}
            durable = self._names.get(str(folder), {})
            inodes = {entry.stat().st_ino: entry for entry in now.values()}
            for name in sorted({*now, *durable}):
                keeps_new = chance.random() < 0.5
                entry = now.get(name)
                inode = entry.stat().st_ino if entry is not None else -1
                if name in durable and durable[name] != inode and not keeps_new:
                    # The old name is still there, with the old file's synced bytes.
                    old = inodes.get(durable[name])
                    content = self._content(durable[name], old, chance)
                    (goal / name).write_bytes(content)
                elif entry is not None and (name in durable or keeps_new):
                    (goal / name).write_bytes(self._content(inode, entry, chance))

    def _content(self, inode: int, entry: Path | None, chance: random.Random) -> bytes:
        durable = self._bytes.get(inode, b"")
        if entry is None:
            return durable
        now = entry.read_bytes()
        if now == durable:
            return now
        # Lost size: the file ends anywhere between the two sizes; lost sectors read as before, or as zeros.
        size = chance.choice(
            [len(durable), len(now), chance.randint(*sorted((len(durable), len(now))))]
        )
        size = max(size, min(len(durable), len(now)))
        mixed = bytearray(now[:size].ljust(size, b"\0"))
        before = durable[:size].ljust(size, b"\0")
        for start in range(0, size, self.SECTOR):
            if chance.random() < 0.5:
                mixed[start : start + self.SECTOR] = before[start : start + self.SECTOR]
        return bytes(mixed)
