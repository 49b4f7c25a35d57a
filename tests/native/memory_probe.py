"""A program run in a fresh process that can see its own memory.

Peaks come from VmHWM, which belongs to the process image; ru_maxrss would start with the peak of
whoever started it. The allocators are told to give large blocks back at once, so that what is
resident is what is held.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

MIB = 1 << 20

_PRELUDE = """
import gc, sys

def _status(name):
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(name):
                return int(line.split()[1]) << 10
    raise KeyError(name)

class Peak:
    \"\"\"How far memory rises above where it was.\"\"\"
    def __enter__(self):
        gc.collect()
        with open("/proc/self/clear_refs", "w") as clear:
            clear.write("5")  # forget the peak so far
        self.before = _status("VmRSS")
        return self
    def __exit__(self, *error):
        self.bytes = _status("VmHWM") - self.before

def resident():
    gc.collect()
    return _status("VmRSS")
"""


def run(program: str, data: bytes = b"") -> list[str]:
    """Words that the program prints; ``data`` is on its standard input."""
    done = subprocess.run(
        [sys.executable, "-c", _PRELUDE + textwrap.dedent(program)],
        input=data,
        capture_output=True,
        check=False,
        env=os.environ
        | {"MALLOC_MMAP_THRESHOLD_": "262144", "ARROW_DEFAULT_MEMORY_POOL": "system"},
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().split()
