"""`import oncelog` is cheap: what is heavy is loaded by those who use it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("library", ["pyarrow", "pandas", "rich", "pyspark"])
def test_importing_oncelog_does_not_load(library: str) -> None:
    """Goal: a service that never asks for Arrow, tables or Spark does not pay for them.
    Method: import in a fresh interpreter and look at what was loaded."""
    program = f"import sys, oncelog; sys.exit({library!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == 0, f"import oncelog loads {library}"
