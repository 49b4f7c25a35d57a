"""The only door to files. Readers get read-only mappings that never reach past the file's end."""

from __future__ import annotations

import mmap
import os


def map_file(path: str | os.PathLike[str]) -> mmap.mmap | bytes:
    """The bytes of a file, mapped read-only; empty bytes for an empty file, which cannot be mapped."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_size == 0:
            return b""
        return mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
