"""Runs a command as a person sees it: on a terminal of a given width."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def on_terminal(command: Sequence[str | Path], columns: int, cwd: Path | None = None) -> str:
    """All that appears on the screen, without colours; the command must end by itself, with 0 or 1."""
    mine, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": str(columns), "LINES": "50", "TERM": "xterm"}
    words = [str(word) for word in command]
    with subprocess.Popen(
        words, cwd=cwd, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        output = b""
        while True:
            try:
                chunk = os.read(mine, 1 << 16)
            except OSError:  # Linux says so when the other end is closed
                break
            if not chunk:
                break
            output += chunk
    os.close(mine)
    text = re.sub(r"\x1b\[[0-9;]*m", "", output.decode().replace("\r\n", "\n"))
    assert process.returncode in (0, 1), text
    assert "Traceback" not in text, text
    return text
