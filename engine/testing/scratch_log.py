"""A log for tests: what ``oncelog.open`` returns, and what is done to it that nobody would do to a log they like."""

from __future__ import annotations

import contextlib
import tempfile
from typing import TYPE_CHECKING, Any, cast

from ..base.disk import Disk
from ..base.errors import ClosedError
from ..client.client import Log
from .faults import Faults, FaultyBroker, FetchingBroker

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from typing_extensions import Buffer

    from ..broker.broker import Broker

    Path = str | os.PathLike[str]


class ScratchLog(Log):
    """A log whose calls fail as planned (``faults``), and that can be killed and opened again.

    It takes the options of ``oncelog.open``. Producers and consumers are the real ones, on real files; after a kill
    they raise ClosedError, and new ones are to be had once the log is open again.
    """

    def __init__(self, path: Path, **options: Any) -> None:
        self.faults = Faults()
        self._home = path
        self._settings = options
        self._start()

    def _start(self) -> None:
        self._disk = _MortalDisk()
        super().__init__(self._home, _disk=self._disk, **self._settings)
        self._broker = self.broker
        self._door = FaultyBroker(self._broker, self.faults)
        self._reading_door = FetchingBroker(self._broker, self.faults)
        self.broker = cast("Broker", self._door)

    def __enter__(self) -> ScratchLog:
        return self

    @property
    def is_open(self) -> bool:
        return not self._broker.is_closed

    @property
    def consumer_broker(self) -> Broker:
        return cast("Broker", self._reading_door)

    def kill(self) -> None:
        """Ends it as SIGKILL would: nothing more is written, and the directory is free for the next.

        What a producer had not sent is gone; a transaction that was open waits for its producer or its time-out. The
        machine lives on, so what was written survives, synced or not.
        """
        self._disk.die()
        for door in (self._door, self._reading_door):
            door.die()
        self._end_threads()
        self._broker.abandon()

    def reopen(self) -> None:
        """Opens it again with the same options: after a kill with recovery, else after a clean stop.

        Faults that are planned stay so.
        """
        self.close()
        self._start()


class _MortalDisk(Disk):
    """A disk that nobody can write to any more once its process is said to be dead."""

    def __init__(self) -> None:
        self._is_dead = False

    def die(self) -> None:
        self._is_dead = True

    def _check_alive(self) -> None:
        if self._is_dead:
            raise ClosedError("the log was killed, and writes nothing more")

    def open(self, path: Path) -> int:
        self._check_alive()
        return super().open(path)

    def write(self, descriptor: int, data: Buffer, position: int) -> None:
        self._check_alive()
        super().write(descriptor, data, position)

    def truncate(self, descriptor: int, size: int) -> None:
        self._check_alive()
        super().truncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        self._check_alive()
        super().sync(descriptor)

    def replace(self, path: Path, data: bytes, *, sync: bool = True) -> None:
        self._check_alive()
        super().replace(path, data, sync=sync)

    def rename(self, source: Path, target: Path) -> None:
        self._check_alive()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        if not self._is_dead:  # what a dead process leaves behind is no error
            super().remove(path)

    def make_directory(self, path: Path) -> None:
        self._check_alive()
        super().make_directory(path)

    def remove_directory(self, path: Path) -> None:
        if not self._is_dead:
            super().remove_directory(path)

    def shorten(self, path: Path, size: int) -> None:
        self._check_alive()
        super().shorten(path, size)


def open(path: Path, **options: Any) -> ScratchLog:
    """A data directory as a log for tests; takes the options of ``oncelog.open``."""
    return ScratchLog(path, **options)


@contextlib.contextmanager
def open_temporary(**options: Any) -> Iterator[ScratchLog]:
    """A log for tests in a directory of its own, which is removed at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="oncelog-", ignore_cleanup_errors=True) as directory,
        open(directory, **options) as log,
    ):
        yield log
