"""Runs ``make demo`` on a terminal of 110 columns and keeps what is seen as text: docs/demo.txt.

What a run changes by itself, such as rates and times, differs from one recording to the next; the story does not.
"""  # noqa: INP001

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = 110
STEPS = ("examples/demo.py", "examples/bank.py")


def recorded(script: str) -> str:
    """All that a script writes to a terminal, as it looks in the end: without colours and moves of the cursor."""
    mine, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": str(COLUMNS), "LINES": "50", "TERM": "xterm"}
    command = [sys.executable, str(ROOT / script)]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        output = b""
        while True:
            try:
                chunk = os.read(mine, 1 << 16)
            except OSError:  # Linux says so when the other end is closed
                break
            output += chunk
    os.close(mine)
    if process.returncode:
        raise SystemExit(f"{script} ended with {process.returncode}:\n{output.decode()[-2000:]}")
    return plain(output.decode())


def plain(screen: str) -> str:
    """The lines that are left: a progress bar goes up, erases what it has drawn, and is gone."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", screen):
        if part == "\r":
            column = 0
        elif part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part.startswith("\x1b"):
            if part.endswith("A"):
                row = max(row - int(part[2:-1] or 1), 0)
            elif part == "\x1b[2K":
                lines[row] = ""
        else:
            lines[row] = lines[row].ljust(column)[:column] + part + lines[row][column + len(part) :]
            column += len(part)
    return "\n".join(line.rstrip() for line in lines).strip("\n") + "\n"


def main() -> None:
    started = time.monotonic()
    parts = [f"$ python {script}\n{recorded(script)}" for script in STEPS]
    seconds = time.monotonic() - started
    text = "\n".join(["$ make demo", "", *parts]) + f"\n{seconds:.0f} seconds in all\n"
    (ROOT / "docs" / "demo.txt").write_text(text.replace(f"{ROOT}/", ""))


if __name__ == "__main__":
    main()
