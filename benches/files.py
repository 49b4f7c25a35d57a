"""Where the files of a run lie, that there is room for them, and that none stays.

Gone     a Scratch goes with the last that refers to it, at the latest with the process; what a killed run left behind
         is swept by the next.
Device   in a checkout below build/bench, on the disk of the project. An installed suite uses /var/tmp, which is a disk
         where /tmp is often memory, or the directory that ONCELOG_BENCH_DIR names.
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT: Final = Path(__file__).resolve().parents[1]
PLACE: Final = "ONCELOG_BENCH_DIR"
READ_BYTES: Final = 1 << 20  # at a time
NAME_PARTS: Final = 3  # of a scratch directory: what for, whose process, some letters


def work_directory() -> Path:
    """Made where it is missing."""
    if given := os.environ.get(PLACE):
        path = Path(given)
    elif (ROOT / "pyproject.toml").exists():
        path = ROOT / "build/bench"
    else:
        lasting = Path("/var/tmp")  # noqa: S108 - only the parent of a directory with a name of its own
        parent = lasting if os.access(lasting, os.W_OK) else Path(tempfile.gettempdir())
        path = parent / f"oncelog-bench-{os.getuid()}"
    path.mkdir(parents=True, exist_ok=True)
    return path


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


@functools.cache
def _sweep(parent: Path) -> None:
    """Takes away what runs left behind that were killed; once a process."""
    for path in parent.glob("*.*.*"):
        parts = path.name.split(".")
        if len(parts) == NAME_PARTS and parts[1].isdigit() and not _is_alive(int(parts[1])):
            shutil.rmtree(path, ignore_errors=True)


class Scratch:
    """A directory on the disk that is measured; gone with the last that refers to it."""

    def __init__(self, name: str) -> None:
        parent = work_directory()
        _sweep(parent)
        self.path = Path(tempfile.mkdtemp(prefix=f"{name}.{os.getpid()}.", dir=parent))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def lacking_room(size: int) -> str:
    """One line if the disk has no room for so many bytes, nothing if it has."""
    free = shutil.disk_usage(work_directory()).free
    if free >= size:
        return ""
    return f"the disk has room for {free >> 20:,} MiB, and {size >> 20:,} MiB are needed"


def read_through(paths: Iterable[Path]) -> None:
    """Reads all bytes of files, and keeps none: they come from the device, or into the cache of pages."""
    buffer = bytearray(READ_BYTES)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
