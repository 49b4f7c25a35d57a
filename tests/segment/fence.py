"""Bytes that end where memory ends: whoever reads one byte further dies, sanitizer or not."""

from __future__ import annotations

import ctypes
import mmap

_PROT_NONE = 0
_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def fenced(data: bytes) -> memoryview:
    """A copy of the bytes, right before a page that cannot be touched."""
    page = mmap.PAGESIZE
    end = -(-len(data) // page) * page
    area = mmap.mmap(-1, end + page)
    area[end - len(data) : end] = data
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    if _mprotect(address + end, page, _PROT_NONE) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    return memoryview(area)[end - len(data) : end]
