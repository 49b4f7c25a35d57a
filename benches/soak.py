"""Does reading a large log cost more memory than reading a small one?

python -m benches.soak [--bytes N] [--small-bytes N]   (make soak SOAK_BYTES=N)

Writes two logs of transactions with our writer, a tenth of them aborted, and reads each to its end at read_committed in
a process of its own, as Arrow views, as contiguous columns and as Python records. What counts is private memory: pages
that belong to this process alone and to no file, the most there were at any time. Mapped pages of the log are the
kernel's, which takes them back when it needs them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .harness import ROOT, Scratch, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BYTES: Final = 10 << 30
SMALL_BYTES: Final = 100 << 20
SEGMENT_BYTES: Final = 256 << 20
VALUE_BYTES: Final = 1000
# What two runs of the same program differ by: the allocator's habits, counters that the kernel keeps in lots.
TOLERANCE: Final = 1.05
SLACK_BYTES: Final = 4 << 20


def _field(file: str, name: str) -> int:
    """A field of /proc/self/<file>, in bytes."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/self/{file}").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10


def _steps(path: Path, way: str) -> Iterator[int]:
    """Reads everything; yields the count of records at every step, when memory is looked at."""
    import oncelog

    from . import logs

    with oncelog.open(path, read_only=True) as log:
        if way == "records":
            for count, _ in enumerate(log.read(logs.TOPIC, 0), 1):
                if count % 8192 == 0:
                    yield count
        else:
            count = 0
            for batch in log.read(logs.TOPIC, 0, views=way == "views").to_batches():
                count += batch.num_rows
                yield count
        # While everything is still mapped.
        yield count


def read(path: Path, way: str) -> dict[str, int]:
    """The child: reads a log and says what it cost."""
    most = count = 0
    private = mapped = 0
    for number in _steps(path, way):
        most = max(most, _field("status", "RssAnon"))
        count = number
    mapped = _field("status", "VmHWM")
    private = _field("smaps_rollup", "Anonymous")
    return {"records": count, "most": most, "private": private, "resident": mapped}


def _measured(path: Path, way: str) -> dict[str, int]:
    command = [sys.executable, "-m", "benches.soak", "--read", str(path), way]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    found: dict[str, int] = json.loads(done.stdout)
    return found


def _made(size: int) -> tuple[Scratch, int]:
    from . import logs

    settings = Settings(log_bytes=size)
    began = time.monotonic()
    stored = logs.write_log(settings, VALUE_BYTES, segment_bytes=SEGMENT_BYTES)
    seconds = time.monotonic() - began
    print(
        f"wrote {stored.size / (1 << 20):,.0f} MiB in {len(stored.files)} segments, {seconds:.1f} s",
        flush=True,
    )
    return stored.scratch, stored.size


def compare(small_bytes: int, large_bytes: int) -> bool:
    """Whether the large log costs no more than the small one, and a table that shows it."""
    free = shutil.disk_usage(ROOT).free
    if free < 1.2 * large_bytes:
        print(f"the disk has room for {free >> 20:,} MiB, too little for {large_bytes >> 20:,} MiB")
        return False
    logs = [_made(size) for size in (small_bytes, large_bytes)]
    print(
        f"{'read_committed':<16}{'log':>12}{'records':>14}{'private':>12}{'resident':>14}{'time':>10}"
    )
    holds = True
    for way in ("views", "contiguous", "records"):
        most = []
        for scratch, size in logs:
            began = time.monotonic()
            found = _measured(scratch.path, way)
            most.append(found["most"])
            print(
                f"{way:<16}{size / (1 << 20):>8,.0f} MiB{found['records']:>14,}"
                f"{found['most'] / (1 << 20):>8.1f} MiB{found['resident'] / (1 << 20):>10,.0f} MiB"
                f"{time.monotonic() - began:>8.1f} s",
                flush=True,
            )
        small, large = most
        if large > small * TOLERANCE + SLACK_BYTES:
            holds = False
            print(f"{way}: {(large - small) / (1 << 20):.1f} MiB more for the large log")
    print("The large log costs no more private memory." if holds else "Memory grows with the log.")
    return holds


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benches.soak")
    parser.add_argument("--bytes", type=int, default=int(os.environ.get("SOAK_BYTES", BYTES)))
    parser.add_argument("--small-bytes", type=int, default=SMALL_BYTES)
    parser.add_argument("--read", nargs=2, metavar=("PATH", "WAY"), help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.read:
        json.dump(read(Path(options.read[0]), options.read[1]), sys.stdout)
        return 0
    return 0 if compare(options.small_bytes, options.bytes) else 1


if __name__ == "__main__":
    sys.exit(main())
