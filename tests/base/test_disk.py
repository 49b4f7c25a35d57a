"""Readers get mappings that end where the file ends and cannot be written."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

import pytest

from oncelog.base.disk import map_file

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_is_mapped_to_its_last_byte(tmp_path: Path) -> None:
    """Goal: all bytes, no more, whatever the page size; path objects and strings."""
    for size in (1, mmap.PAGESIZE - 1, mmap.PAGESIZE, mmap.PAGESIZE + 1):
        path = tmp_path / str(size)
        data = os.urandom(size)
        path.write_bytes(data)
        for name in (path, str(path)):
            mapping = map_file(name)
            assert len(mapping) == size
            assert bytes(mapping) == data


def test_a_mapping_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"data")
    mapping = map_file(path)
    assert memoryview(mapping).readonly
    with pytest.raises(TypeError):
        mapping[0] = 1  # type: ignore[index]


def test_an_empty_file_is_no_bytes(tmp_path: Path) -> None:
    """Goal: an empty segment is legal, though it cannot be mapped."""
    path = tmp_path / "empty"
    path.touch()
    assert map_file(path) == b""


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    """Goal: a mapping keeps no descriptor, so that more files can be mapped than may be open; also where it fails.
    Method: count what the process has open, with mappings, and without."""
    path = tmp_path / "log"
    path.write_bytes(b"data")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    kept = [map_file(path) for _ in range(5)]
    for mapping in kept:
        assert bytes(mapping) == b"data"
    with pytest.raises(FileNotFoundError):
        map_file(tmp_path / "nothing")
    with pytest.raises(OSError, match=r"directory|device"):
        map_file(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    del kept, mapping
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
