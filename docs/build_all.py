"""Builds everything in docs/ that is made from the code: FORMAT.md and reference/.

Run it after a change of a docstring that describes a file, of a command's help, or of an error. Tests compare the
documents with what this would write.
"""  # noqa: INP001

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).resolve().parent

if __name__ == "__main__":
    for name in ("build_format.py", "build_reference.py"):
        runpy.run_path(str(DOCS / name), run_name="__main__")
