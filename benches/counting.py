"""How many instructions does a kernel take? Counted by callgrind, which no busy neighbour disturbs.

python -m benches --instructions            beside the times of a run, in its table and its JSON
python -m benches.counting                  the counts alone

Counts   the C kernels without Python around them, in the programs of csrc/bench, built at the flags of the extension;
         per record, batch or lookup, as the case of the same name is timed. Two runs of different length, so that
         preparation and check fall out.
Differs  from a run without valgrind in one thing: it knows no AVX-512, so the checksum takes the next best kernel.
Needs    valgrind and a C compiler; which of them is missing is said in one line, and is no failure.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from . import floor
from .files import ROOT, Scratch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from .harness import Result

OURS: Final = "oncelog"
ROUNDS: Final = (2, 6)  # of the two runs
RECORDS: Final = 1000  # of a batch of bench_batch
KEY_BYTES: Final = 16
RECORD_BYTES: Final = 13  # of lengths around a key and a value, about


@dataclasses.dataclass(frozen=True)
class Kernel:
    """What a case times, as functions of a program in C."""

    program: str
    work: int  # of one run of a function: records, batches or lookups
    functions: dict[str, str]  # contestant: function
    options: tuple[str, ...] = ()


def _checksum(size: int) -> Kernel:
    """The checksum over a batch of one record; its bytes are nearly those of the case."""
    value = max(size - KEY_BYTES - RECORD_BYTES - 61, 0)
    options = ("--records", "1", "--key-bytes", str(KEY_BYTES), "--value-bytes", str(value))
    # Not of memcpy: a string instruction that copies a page is counted once for every byte.
    return Kernel("bench_batch", 1, {OURS: "limit_crc"}, options)


KERNELS: Final = {
    "encode.arrow.100B": Kernel(
        "bench_batch", RECORDS, {OURS: "ours_encode", floor.NAME: "floor_encode_batch"}
    ),
    "decode.arrow.100B": Kernel(
        "bench_batch", RECORDS, {OURS: "ours_decode", floor.NAME: "floor_decode_batch"}
    ),
    "decode.views.100B": Kernel(
        "bench_batch", RECORDS, {OURS: "ours_decode_views", floor.NAME: "floor_decode_views"}
    ),
    "crc.c.4KiB": _checksum(4 << 10),
    "crc.c.1MiB": _checksum(1 << 20),
    "sequence.next": Kernel("bench_state", 100_000, {OURS: "ours_sequence_next"}),
    "sequence.duplicate": Kernel("bench_state", 100_000, {OURS: "ours_sequence_again"}),
    "txn_index.short": Kernel(
        "bench_state", 1, {OURS: "ours_collect", floor.LINEAR: "floor_collect"}
    ),
    "abort_filter.scan": Kernel(
        "bench_state",
        100_000,
        {OURS: "ours_abort_filter", floor.NAME: "floor_abort_filter_rows"},
    ),
}
COLLECTED: Final = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)


def lacking() -> str:
    """Why nothing can be counted here, in one line; nothing if it can."""
    if shutil.which("valgrind") is None:
        return "no instructions counted: valgrind is not installed"
    if floor.compiler() is None:
        return "no instructions counted: no C compiler"
    if not (ROOT / "csrc/bench").is_dir():
        return "no instructions counted: the C programs are in the checkout, not in the package"
    return ""


@functools.cache
def _program(name: str) -> Path:
    """One of csrc/bench, built; kept for its sources as the floor is."""
    return floor.build_program(name)


def _collected(kernel: Kernel, function: str, rounds: int, scratch: Scratch) -> int:
    out = scratch.path / f"{function}.{rounds}"
    command = [
        *("valgrind", "--tool=callgrind", f"--callgrind-out-file={out}"),
        f"--toggle-collect={function}",
        *(str(_program(kernel.program)), "--only", function, "--rounds", str(rounds)),
        *kernel.options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = COLLECTED.findall(out.read_text(encoding="utf-8")) if out.exists() else []
    if done.returncode != 0 or not found:
        raise RuntimeError(f"callgrind of {function}: {done.stderr[-500:]}")
    return int(found[-1])


def count(case: str) -> dict[str, float]:
    """Instructions of each contestant of a case that is a kernel in C: per record, batch or lookup."""
    kernel = KERNELS[case]
    scratch = Scratch("callgrind")
    few, many = ROUNDS
    return {
        contestant: (
            _collected(kernel, function, many, scratch) - _collected(kernel, function, few, scratch)
        )
        / (many - few)
        / kernel.work
        for contestant, function in kernel.functions.items()
    }


def add_to(results: Iterable[Result]) -> Iterator[str]:
    """Puts the counts beside the times of those cases that have them; yields what it has done, for those who wait."""
    for result in results:
        if result.case.name in KERNELS:
            result.instructions = count(result.case.name)
            yield result.case.title


def main() -> int:
    if reason := lacking():
        print(reason)
        return 0
    print(f"{'case':<22}{'contestant':<18}{'instructions':>14}")
    for case in KERNELS:
        for contestant, number in count(case).items():
            print(f"{case:<22}{contestant:<18}{number:>14,.1f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
