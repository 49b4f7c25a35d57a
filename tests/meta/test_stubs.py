"""One .pyi per .pyx, and each says what the compiled module is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import oncelog._native

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(path.stem for path in (ROOT / "pyext").glob("*.pyx"))


def test_every_module_has_a_stub() -> None:
    assert sorted(path.stem for path in (ROOT / "pyext").glob("*.pyi")) == MODULES


def test_the_build_hint_knows_every_module() -> None:
    """Goal: a stale build says so, whichever module is missing from it.
    Method: the names that the package checks for are those of the sources."""
    assert sorted(oncelog._native.MODULES) == MODULES


def test_stubs_are_the_binary(tmp_path: Path) -> None:
    """Goal: what a type checker believes is what runs.
    Method: mypy.stubtest compares names and signatures of stub and compiled module."""
    allow = tmp_path / "allow.txt"
    # That a compiled class cannot share a subclass with another is true, and of no use to a reader.
    # Cython gives each of its classes the two pickle hooks, and each module its test table.
    # The buffer protocol has a name in Python only from 3.12 on.
    allow.write_text(
        r"oncelog\._native\..*\.__(reduce|setstate)_cython__" + "\n"
        r"oncelog\._native\..*\.__test__" + "\n"
        r"oncelog\._native\..*\.__pyx_.*" + "\n"
        r"oncelog\._native\..*\.__buffer__" + "\n"
    )
    names = [f"oncelog._native.{name}" for name in MODULES]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy.stubtest", "--concise"),
            *("--mypy-config-file", "pyproject.toml", "--ignore-disjoint-bases"),
            *("--ignore-unused-allowlist", "--allowlist", str(allow), *names),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.fail(done.stdout + done.stderr, pytrace=False)
