"""Does Spark's reading of a large log cost more memory than of a small one, and time in proportion?

python -m benches.spark_soak [--bytes N] [--small-bytes N]   (make soak)

Writes two logs of transactions, a tenth of them aborted, and reads each to the sum of its lengths, read_committed. While
a job runs, the private memory of every Python worker is looked at ten times a second: pages that belong to it alone and
to no file. The most that one had counts. Mapped pages of the log are the kernel's, which takes them back when it needs
them.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from . import spark_jobs as jobs
from .harness import ROOT, Scratch

if TYPE_CHECKING:
    from collections.abc import Sequence

BYTES: Final = 5 << 30
SMALL_BYTES: Final = 100 << 20
BYTES_PER_RECORD: Final = 126  # 16 of key, 100 of value, and what a record takes itself
TOLERANCE: Final = 1.10
SLACK_BYTES: Final = 8 << 20
# Time may grow this much faster than data; the start of a job makes small logs slow, so that it is mostly less.
TIME_TOLERANCE: Final = 1.25


def _private_bytes(process: Path) -> int:
    try:
        status = (process / "status").read_text()
    except OSError:
        return 0  # it has ended meanwhile
    found = re.search(r"^RssAnon:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) << 10 if found else 0


def _workers() -> list[Path]:
    """Python processes that Spark has started below this one."""
    parents = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                fields = (process / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(process.name)] = int(fields[1])
    ours = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in ours} - ours:
        ours |= more
    found = []
    for number in ours - {os.getpid()}:
        try:
            command = Path(f"/proc/{number}/cmdline").read_bytes()
        except OSError:
            continue
        if (
            b"pyspark" in command
            and not command.startswith(b"java")
            and b"/java" not in command.split(b"\0")[0]
        ):
            found.append(Path(f"/proc/{number}"))
    return found


class _Watch:
    """The most private memory that a worker has had."""

    def __init__(self) -> None:
        self.most = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._ended.wait(0.1):
            self.most = max([self.most, *map(_private_bytes, _workers())])

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def _measured(spark: Any, path: Path) -> tuple[int, float]:
    """(the most private memory of a worker, seconds) of one read."""
    with _Watch() as watch:
        began = time.monotonic()
        jobs.read_ours(spark, path)
        seconds = time.monotonic() - began
    return watch.most, seconds


def compare(small_bytes: int, large_bytes: int) -> bool:
    """Whether the large log costs no more memory, and no more time than in proportion."""
    free = shutil.disk_usage(ROOT).free
    if free < 1.2 * (large_bytes + small_bytes):
        print(f"the disk has room for {free >> 20:,} MiB, too little for {large_bytes >> 20:,} MiB")
        return False
    scratch = Scratch("spark-soak")
    spark = jobs.make_session(scratch.path / "spark")
    try:
        found = []
        print(f"{'log':>12}{'private':>14}{'time':>10}{'':>4}MiB/s")
        for name, size in (("small", small_bytes), ("large", large_bytes)):
            path = scratch.path / name
            jobs.write_payments(path, size // BYTES_PER_RECORD)
            jobs.read_ours(
                spark, path
            ) if name == "small" else None  # the first job starts the workers
            most, seconds = _measured(spark, path)
            found.append((size, most, seconds))
            print(
                f"{size >> 20:>8,} MiB{most / (1 << 20):>10.1f} MiB{seconds:>8.1f} s"
                f"{size / (1 << 20) / seconds:>9,.0f}",
                flush=True,
            )
    finally:
        spark.stop()
        shutil.rmtree(scratch.path, ignore_errors=True)
    (small, small_most, small_seconds), (large, large_most, large_seconds) = found
    is_flat = large_most <= small_most * TOLERANCE + SLACK_BYTES
    is_linear = large_seconds <= max(small_seconds, 1.0) * TIME_TOLERANCE * large / small
    print(
        "Executors' private memory is flat." if is_flat else "Executors' memory grows with the log."
    )
    print("Time is linear." if is_linear else "Time grows faster than the log.")
    return is_flat and is_linear


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benches.spark_soak")
    parser.add_argument("--bytes", type=int, default=BYTES)
    parser.add_argument("--small-bytes", type=int, default=SMALL_BYTES)
    options = parser.parse_args(words)
    try:
        import pyspark  # noqa: F401
    except ImportError:
        print("spark_soak: skipped, pyspark is not installed")
        return 0
    return 0 if compare(options.small_bytes, options.bytes) else 1


if __name__ == "__main__":
    sys.exit(main())
