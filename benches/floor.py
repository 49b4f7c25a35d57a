"""The plain C floor (csrc/bench/floor.c) and the limits of the machine, called through ctypes.

Built    once for its sources into build/bench, by the C compiler and at the flags of the extension.
Called   one call handles all batches of a case; what such a call costs by itself is measured, too,
         and not subtracted.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import hashlib
import mmap
import os
import shlex
import shutil
import subprocess
import sysconfig
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from .harness import ROOT, Contestant, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from .harness import Records, Settings

NAME: Final = "C floor"
MEMCPY: Final = "memcpy"
SUM: Final = "sum over the mapping"
MAP_AND_SUM: Final = "map and sum"
WRITE: Final = "write() loop"
LINEAR: Final = "linear C scan"
# An installed suite has no C sources to compile.
NO_COMPILER: Final = (
    "no C compiler" if (ROOT / "csrc/bench").is_dir() else "only in a checkout, by make bench"
)
FLAGS: Final = ("-O3", "-std=c11", "-pthread")
PAGE: Final = 4096


class _Binary(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("offsets", "data", "views", "validity"))


class _Columns(ctypes.Structure):
    _fields_ = (
        ("offsets", ctypes.c_void_p),
        ("timestamps", ctypes.c_void_p),
        ("timestamp_types", ctypes.c_void_p),
        ("key", _Binary),
        ("value", _Binary),
        ("header_starts", ctypes.c_void_p),
        ("header_key", _Binary),
        ("header_value", _Binary),
    )


def compiler() -> list[str] | None:
    """What Python's own extensions are compiled with, unless CC says otherwise; None where there is none."""
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    words = shlex.split(command)
    found = words if shutil.which(words[0]) else ["cc"]
    return found if shutil.which(found[0]) else None


def _built(name: str, sources: Sequence[Path], flags: Sequence[str]) -> Path | None:
    """What the compiler makes of the sources, kept under their digest; None without a compiler or a source."""
    csrc, command = ROOT / "csrc", compiler()
    if command is None or not all(path.exists() for path in sources):
        return None
    digest = hashlib.sha256(" ".join((*command, *flags)).encode())
    for path in sorted({*sources, *csrc.glob("*.h"), *csrc.glob("bench/*.[ch]")}):
        digest.update(path.read_bytes())
    made = ROOT / f"build/bench/{name.format(digest.hexdigest()[:16])}"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        # Under a name of its own until it is whole: two runs may build at once.
        part = made.with_name(f"part-{os.getpid()}-{made.name}")
        words = [*command, *flags, f"-I{csrc}", "-o", str(part), *map(str, sources)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{shlex.join(words)}\n{done.stderr}")
        for old in made.parent.glob(name.format("*")):  # of other sources
            old.unlink(missing_ok=True)
        part.replace(made)
    return made


def build() -> Path | None:
    """The shared library; None where there is no C compiler or no source."""
    csrc = ROOT / "csrc"
    sources = [*sorted(csrc.glob("*.c")), csrc / "bench/floor.c"]
    return _built("floor-{}.so", sources, (*FLAGS, "-fPIC", "-shared"))


def build_program(name: str) -> Path:
    """A program of csrc/bench, each of which takes the floor in by itself."""
    csrc = ROOT / "csrc"
    made = _built(f"{name}-{{}}", [*sorted(csrc.glob("*.c")), csrc / f"bench/{name}.c"], FLAGS)
    if made is None:
        raise FileNotFoundError(f"csrc/bench/{name}.c, or a C compiler")
    return made


@functools.cache
def load() -> ctypes.CDLL | None:
    path = build()
    if path is None:
        return None
    library = ctypes.CDLL(str(path))
    pointer, number, size = ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t
    library.floor_encode.argtypes = [pointer, pointer, number, number]
    library.floor_encode.restype = number
    library.floor_decode.argtypes = [pointer, pointer, number]
    library.floor_decode.restype = number
    library.floor_room.argtypes = [number, number, number, number]
    library.floor_room.restype = number
    library.floor_crc_times.argtypes = [pointer, pointer, size, number]
    library.floor_crc_times.restype = ctypes.c_uint32
    library.floor_memcpy_times.argtypes = [pointer, pointer, size, number]
    library.floor_memcpy_times.restype = None
    library.floor_sum.argtypes = [pointer, size]
    library.floor_sum.restype = ctypes.c_uint64
    library.floor_write.argtypes = [ctypes.c_int, pointer, pointer, number]
    library.floor_write.restype = number
    library.floor_collect_aborted.argtypes = [pointer, number, number, number, pointer, number]
    library.floor_collect_aborted.restype = number
    library.floor_abort_filter.argtypes = [pointer, pointer, number, pointer, number, pointer]
    library.floor_abort_filter.restype = None
    return library


def aligned(size: int) -> NDArray[np.uint8]:
    """Touched memory that starts a page: memcpy is many times slower at some distances else."""
    block = np.full(size + PAGE, 0xFF, np.uint8)
    start = -block.ctypes.data % PAGE
    return block[start : start + size]


class _Memory:
    """Buffers of one set of columns, kept alive beside their addresses."""

    def __init__(self) -> None:
        self.kept: list[object] = []

    def room(self, size: int) -> int:
        array = aligned(max(size, 1))
        self.kept.append(array)
        return int(array.ctypes.data)

    def input(self, array: Any) -> _Binary:
        """A binary column of pyarrow."""
        assert array.offset == 0
        _, offsets, data = array.buffers()
        self.kept.append(array)
        return _Binary(offsets=offsets.address, data=data.address if data else 0)

    def output(self, count: int, size: int, views: bool) -> _Binary:
        return _Binary(
            offsets=self.room(4 * (count + 1)),
            data=self.room(size),
            views=self.room(16 * count) if views else 0,
            validity=self.room(count // 8 + 1),
        )


@dataclasses.dataclass(frozen=True)
class Work:
    """A prepared call into C, and what it has made."""

    call: Callable[[], object]
    reveal: Callable[[], object]


def encode(records: Records) -> Work | None:
    """Encodes the Arrow columns of the records, in the batches of their shape."""
    library = load()
    if library is None:
        return None
    memory = _Memory()
    batch = records.arrow
    columns = _Columns(
        timestamps=batch["timestamp"].buffers()[1].address,
        key=memory.input(batch["key"]),
        value=memory.input(batch["value"]),
    )
    memory.kept.append(batch)
    header_count = 0
    if records.shape.headers:
        lists = batch["headers"]
        items = lists.values
        header_count = len(items)
        columns.header_starts = lists.buffers()[1].address
        columns.header_key = memory.input(items.field("key"))
        columns.header_value = memory.input(items.field("value"))
    room = library.floor_room(
        records.shape.batches, records.count, header_count, records.data_bytes
    )
    out = aligned(room)
    address = out.ctypes.data
    reference = ctypes.byref(columns)
    per_batch = records.shape.records

    def call(memory: _Memory = memory) -> int:
        return int(library.floor_encode(address, reference, records.count, per_batch))

    def reveal() -> bytes:
        size = call()
        return out[:size].tobytes()

    return Work(call, reveal)


def decode(data: bytes, records: Records, *, views: bool) -> Work | None:
    """Decodes batches into columns that have room for exactly these records."""
    library = load()
    if library is None:
        return None
    memory, count = _Memory(), records.count
    header_count = count * records.shape.headers
    source = aligned(len(data))
    source[:] = np.frombuffer(data, np.uint8)
    memory.kept.append(source)
    columns = _Columns(
        offsets=memory.room(8 * count),
        timestamps=memory.room(8 * count),
        timestamp_types=memory.room(count),
        key=memory.output(count, len(data), views),
        value=memory.output(count, len(data), views),
        header_starts=memory.room(4 * (count + 1)),
        header_key=memory.output(header_count, len(data), views=False),
        header_value=memory.output(header_count, len(data), views=False),
    )
    address, size = source.ctypes.data, len(data)
    reference = ctypes.byref(columns)

    def call(memory: _Memory = memory) -> int:
        return int(library.floor_decode(reference, address, size))

    def reveal() -> object:
        if call() != count:
            raise AssertionError("the floor finds a wrong checksum or count")
        return _table(columns, count, header_count, source)

    return Work(call, reveal)


def _buffer(address: int, size: int) -> Any:
    return pa.py_buffer(ctypes.string_at(address, size))


def _binary(column: _Binary, count: int, kind: Any, window: NDArray[np.uint8] | None) -> Any:
    if window is not None:
        buffers = [None, _buffer(column.views, 16 * count), pa.py_buffer(window)]
        return pa.Array.from_buffers(pa.binary_view(), count, buffers).cast(kind)
    offsets = _buffer(column.offsets, 4 * (count + 1))
    size = int(np.frombuffer(offsets, np.int32)[-1])
    return pa.Array.from_buffers(kind, count, [None, offsets, _buffer(column.data, size)])


def _table(
    columns: _Columns, count: int, header_count: int, source: NDArray[np.uint8]
) -> list[tuple[Any, ...]]:
    """The columns as rows, read as Arrow reads them."""
    window = source if columns.key.views else None
    numbers = (
        np.frombuffer(ctypes.string_at(columns.offsets, 8 * count), np.int64),
        np.frombuffer(ctypes.string_at(columns.timestamps, 8 * count), np.int64),
        np.frombuffer(ctypes.string_at(columns.timestamp_types, count), np.int8),
    )
    starts = np.frombuffer(ctypes.string_at(columns.header_starts, 4 * (count + 1)), np.int32)
    names = _binary(columns.header_key, header_count, pa.string(), None).to_pylist()
    contents = _binary(columns.header_value, header_count, pa.binary(), None).to_pylist()
    pairs = list(zip(names, contents, strict=True))
    return list(
        zip(
            *(column.tolist() for column in numbers),
            _binary(columns.key, count, pa.binary(), window).to_pylist(),
            _binary(columns.value, count, pa.binary(), window).to_pylist(),
            [pairs[starts[row] : starts[row + 1]] for row in range(count)],
            strict=True,
        )
    )


# ---------------------------------------------------------------- contestants


def contestant(work: Work | None, settings: Settings) -> Contestant:
    if work is None or NAME in settings.without:
        return Contestant(NAME, Role.LIMIT, missing=NO_COMPILER)
    return Contestant(NAME, Role.LIMIT, work.call, reveal=work.reveal)


def memcpy(size: int, settings: Settings, loops: int = 1) -> Contestant:
    """A copy of as many bytes."""
    library = load()
    if library is None or MEMCPY in settings.without:
        return Contestant(MEMCPY, Role.LIMIT, missing=NO_COMPILER)
    # Half a page apart: neither at the distances where memcpy is slow, nor aliased to the same lines.
    source, target = aligned(size), aligned(size + PAGE // 2)[PAGE // 2 :]
    to, start, copy = target.ctypes.data, source.ctypes.data, library.floor_memcpy_times

    def call(kept: object = (source, target)) -> None:
        copy(to, start, size, loops)

    return Contestant(MEMCPY, Role.LIMIT, call, loops=loops)


def crc_loop(function: Any, data: bytes, loops: int) -> Callable[[], int] | None:
    """Calls a C function (crc, data, size) in a loop of C; the sum is that of one call if odd."""
    library = load()
    if library is None:
        return None
    source = aligned(len(data))
    source[:] = np.frombuffer(data, np.uint8)
    pointer = ctypes.cast(function, ctypes.c_void_p)
    start, size, times = source.ctypes.data, len(data), library.floor_crc_times

    def call(kept: object = source) -> int:
        return int(times(pointer, start, size, loops))

    return call


def sum_over(views: Sequence[Buffer], settings: Settings) -> Contestant:
    """The sum over bytes that are mapped and in the cache of pages."""
    library = load()
    if library is None or SUM in settings.without:
        return Contestant(SUM, Role.LIMIT, missing=NO_COMPILER)
    arrays = [np.frombuffer(memoryview(view), np.uint8) for view in views]
    places = [(array.ctypes.data, array.size) for array in arrays]
    add = library.floor_sum

    def call(kept: object = arrays) -> int:
        return sum(add(address, size) for address, size in places)

    return Contestant(SUM, Role.LIMIT, call)


def map_and_sum(paths: Sequence[Path], settings: Settings) -> Contestant:
    """The same with a new mapping each time, whose pages have to be found one by one."""
    library = load()
    if library is None or MAP_AND_SUM in settings.without:
        return Contestant(MAP_AND_SUM, Role.LIMIT, missing=NO_COMPILER)
    add = library.floor_sum

    def call() -> int:
        total = 0
        for path in paths:
            with path.open("rb") as file:
                array = np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), np.uint8)
            total += add(array.ctypes.data, array.size)
        return total

    return Contestant(MAP_AND_SUM, Role.LIMIT, call)


def write_loop(
    parts: Sequence[Buffer], descriptor: Callable[[], int], setup: Callable[[], object],
    settings: Settings,
) -> Contestant:  # fmt: skip
    """write() of every part, one after another, into a file that ``setup`` makes anew."""
    library = load()
    if library is None or WRITE in settings.without:
        return Contestant(WRITE, Role.LIMIT, missing=NO_COMPILER)
    data = np.concatenate([np.frombuffer(memoryview(part), np.uint8) for part in parts])
    starts = np.cumsum([0, *(len(memoryview(part)) for part in parts)], dtype=np.int64)
    address, first, count, write = (
        data.ctypes.data,
        starts.ctypes.data,
        len(parts),
        library.floor_write,
    )

    def call(kept: object = (data, starts)) -> None:
        if write(descriptor(), address, first, count) != data.size:
            raise AssertionError("the file takes no more bytes")

    return Contestant(WRITE, Role.LIMIT, call, setup=setup)


def linear_scan(
    entries: bytes, fetch_offset: int, upper_bound: int, settings: Settings
) -> Contestant:
    """A lookup in the entries of a transaction index that looks at one after another."""
    library = load()
    if library is None or LINEAR in settings.without:
        return Contestant(LINEAR, Role.PEER, missing=NO_COMPILER)
    data = np.frombuffer(entries, np.uint8)
    hits = np.empty(1000, np.int64)
    collect, address, place = library.floor_collect_aborted, data.ctypes.data, hits.ctypes.data
    count = data.size // 34

    def call(kept: object = (data, hits)) -> int:
        return int(collect(address, count, fetch_offset, upper_bound, place, hits.size))

    def reveal() -> list[int]:
        return [int(hit) for hit in hits[: call()]]

    return Contestant(LINEAR, Role.PEER, call, reveal=reveal)


def abort_filter(
    rows: NDArray[np.void], aborted: NDArray[np.void], settings: Settings
) -> Contestant:
    """The rule of read_committed at its plainest: a byte for each producer, the list in order, every marker there."""
    library = load()
    if library is None or NAME in settings.without:
        return Contestant(NAME, Role.LIMIT, missing=NO_COMPILER)
    ordered = np.sort(aborted, order="first_offset")
    producers = np.zeros(int(rows["producer_id"].max()) + 1, np.uint8)
    mask = np.empty(len(rows), np.bool_)
    judge = library.floor_abort_filter
    places = [array.ctypes.data for array in (mask, rows, ordered, producers)]
    to, at, queue, table = places
    count, queued = len(rows), len(ordered)

    def call(kept: object = (rows, ordered, producers)) -> None:
        judge(to, at, count, queue, queued, table)

    def reveal() -> list[bool]:
        call()
        return mask.tolist()

    return Contestant(NAME, Role.LIMIT, call, reveal=reveal)


def call_overhead_ns() -> float | None:
    """What one call through ctypes costs before any work is done."""
    library = load()
    if library is None:
        return None
    import timeit

    room = aligned(PAGE)
    at, copy = room.ctypes.data, library.floor_memcpy_times
    timer = timeit.Timer("copy(at, at, 0, 0)", globals={"copy": copy, "at": at})
    return min(timer.repeat(5, 2000)) / 2000 * 1e9
