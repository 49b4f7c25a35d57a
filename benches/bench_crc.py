"""How fast is CRC-32C, for a header, a batch and a segment's worth of bytes?
Times    "from Python": one call on a bytes object, the price of the call included. "from C": the function
         itself, called in a loop of C as our Cython calls it; of the peers, those that export theirs.
Excludes nothing. The bytes are in the cache.
Anchor   the fastest library that is installed; a memcpy of as many bytes is the limit.
"""

from __future__ import annotations

import ctypes
import importlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oncelog._native.checksum import crc32c

from . import floor
from .harness import Case, Contestant, Role, Unit, version_of
from .peers import NOT_INSTALLED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchmark.fixture import BenchmarkFixture

    from .harness import Settings

SIZES: Final = {"100 B": 100, "4 KiB": 4 << 10, "1 MiB": 1 << 20}
NO_C_FUNCTION: Final = "no C symbol"
# distribution: the Python function, as module and attribute
LIBRARIES: Final = {
    "google-crc32c": ("google_crc32c", "value"),
    "awscrt": ("awscrt.checksums", "crc32c"),
    "crc32c": ("crc32c", "crc32c"),
}


def _python_function(name: str) -> Any:
    path, attribute = LIBRARIES[name]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = importlib.import_module(path)
    except ImportError:
        return None
    # google-crc32c falls back to pure Python without a word that anybody reads.
    return getattr(module, attribute) if getattr(module, "implementation", "c") == "c" else None


def _c_function(name: str) -> Any:
    """The peer's (crc, data, size) function in its own shared library, None where it is hidden."""
    try:
        if name == "google-crc32c":
            package = Path(str(importlib.import_module("google_crc32c").__file__)).parent
            (library,) = (package.parent / "google_crc32c.libs").glob("libcrc32c*.so*")
            return ctypes.CDLL(str(library)).crc32c_extend
        if name == "crc32c":
            # Without the inversions around it, which are two instructions.
            library = Path(str(importlib.import_module("crc32c._crc32c").__file__))
            return ctypes.CDLL(str(library))._crc32c_hw_adler
    except (ImportError, OSError, ValueError, AttributeError):
        return None
    return None


def _agrees(function: Any, data: bytes) -> bool:
    """Whether it is CRC-32C, with its inversions inside or left to the caller."""
    function.argtypes = [ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t]
    function.restype = ctypes.c_uint32
    ones = 0xFFFF_FFFF
    expected = crc32c(data)
    return expected in (function(0, data, len(data)), function(ones, data, len(data)) ^ ones)


def _from_python(label: str, data: bytes, loops: int, settings: Settings) -> Case:
    """A call in words: no lambda stands between timeit's loop and the function."""

    def contestant(name: str, role: Role, function: Any) -> Contestant:
        if function is None or name in settings.without:
            return Contestant(name, role, missing=NOT_INSTALLED)
        names = {"function": function, "data": data}
        return Contestant(
            name, role, "function(data)", names, lambda: function(data), version=version_of(name)
        )

    return Case(
        f"crc.python.{label.replace(' ', '')}",
        f"CRC-32C from Python, {label}",
        Unit.GB_PER_SECOND,
        len(data),
        [
            contestant("oncelog", Role.OURS, crc32c),
            *(contestant(name, Role.PEER, _python_function(name)) for name in LIBRARIES),
            floor.memcpy(len(data), settings, loops),
        ],
    )


def _from_c(label: str, data: bytes, loops: int, settings: Settings) -> Case | None:
    library = floor.load()
    if library is None:
        return None
    found = []
    for name in LIBRARIES:
        function = None if name in settings.without else _c_function(name)
        if _python_function(name) is None or name in settings.without:
            found.append(Contestant(name, Role.PEER, missing=NOT_INSTALLED))
        elif function is None:
            found.append(Contestant(name, Role.PEER, missing=NO_C_FUNCTION))
        elif not _agrees(function, data):
            raise AssertionError(f"{name}: its C function is not CRC-32C")
        else:
            call = floor.crc_loop(function, data, loops)
            version = version_of(name)
            found.append(Contestant(name, Role.PEER, call, loops=loops, version=version))
    ours = floor.crc_loop(library.ol_crc32c, data, loops)
    return Case(
        f"crc.c.{label.replace(' ', '')}",
        f"CRC-32C from C, {label}",
        Unit.GB_PER_SECOND,
        len(data),
        [
            Contestant("oncelog", Role.OURS, ours, reveal=ours, loops=loops),
            *found,
            floor.memcpy(len(data), settings, loops),
        ],
    )


def cases(settings: Settings) -> Iterator[Case]:
    # Odd, so that the sum over a loop is that of one call.
    inputs = [
        (label, settings.bytes_of(size), max(1, min(1000, (1 << 20) // size)) | 1)
        for label, size in SIZES.items()
    ]
    for label, data, loops in inputs:
        yield _from_python(label, data, loops, settings)
    for label, data, loops in inputs:
        if (case := _from_c(label, data, loops, settings)) is not None:
            yield case


def test_crc(benchmark: BenchmarkFixture, contestant: Contestant) -> None:
    benchmark(contestant.function())
