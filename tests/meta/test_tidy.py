"""The tools run as tests, so that `make test` is the only thing to remember."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
TEXT = {
    *(".c", ".cfg", ".h", ".ini", ".json", ".md", ".pxd", ".py", ".pyi", ".pyx", ".sh"),
    *(".toml", ".txt", ".yaml", ".yml"),
}
NAMED = {"Makefile", "CMakeLists.txt", "MANIFEST.in", "run", ".gitignore", ".clang-format"}
BUILT = {"build", "dist", "__pycache__", "golden"}
TYPED = [name for name in ("benches", "examples", "interop", "tests") if (ROOT / name).is_dir()]


def sources() -> list[Path]:
    """Every text file of ours: nothing built, nothing cached, no bytes of a broker."""
    found = []
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        hidden = any(part.startswith(".") and part != ".ci" for part in parts[:-1])
        built = any(part in BUILT or part.endswith(".egg-info") for part in parts)
        ours = path.suffix in TEXT or path.name in NAMED
        if not hidden and not built and ours and path.is_file():
            found.append(path)
    return found


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"{' '.join(command[:5])}\n{done.stdout}{done.stderr}", pytrace=False)


def test_ruff_finds_nothing() -> None:
    run(sys.executable, "-m", "ruff", "check", "--quiet", ".")


def test_ruff_would_format_nothing() -> None:
    run(sys.executable, "-m", "ruff", "format", "--check", "--quiet", ".")


def test_mypy_strict_finds_nothing() -> None:
    """Goal: engine, stubs, Spark, benchmarks and tests are typed, under the names users import.
    Method: mypy on packages, which the strict editable install makes visible."""
    packages = [word for name in ("oncelog", *TYPED) for word in ("-p", name)]
    run(sys.executable, "-m", "mypy", "--no-error-summary", *packages)


def test_clang_format_would_change_nothing() -> None:
    tool = shutil.which("clang-format", path=str(Path(sys.executable).parent))
    tool = tool or shutil.which("clang-format")
    if tool is None:
        pytest.skip("clang-format is not installed")
    files = [str(path) for path in sorted((ROOT / "csrc").rglob("*.[ch]"))]
    run(tool, "--dry-run", "--Werror", *files)


# Written in pieces, so that this file does not find itself.
LEFTOVERS = {
    "a path of one machine": r"(?<![\w.])/(?:home|root|Users|work)/" + r"\w",
    "unfinished work": r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b",
    "a merge conflict": r"^(?:<{7}|>{7}) ",
    "trailing space": r"[ \t]+$",
}


@pytest.mark.parametrize("leftover", LEFTOVERS)
def test_no_leftovers(leftover: str) -> None:
    """Goal: nothing in the tree speaks of the machine or the moment it was written on.
    Method: search every text file."""
    pattern = re.compile(LEFTOVERS[leftover], re.MULTILINE)
    hits = [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()!r}"
        for path in sources()
        for text in [path.read_text(encoding="utf-8")]
        for match in pattern.finditer(text)
    ]
    assert hits == [], leftover


def pins(name: str) -> dict[str, Requirement]:
    """The pinned requirements of one file and of those it includes."""
    found = {}
    for line in (ROOT / "requirements" / name).read_text().splitlines():
        entry = line.partition("#")[0].strip()
        if entry.startswith("-r "):
            found.update(pins(entry.removeprefix("-r ")))
        elif entry:
            requirement = Requirement(entry)
            found[canonicalize_name(requirement.name)] = requirement
    return found


@pytest.mark.parametrize("name", ["test.txt", "bench.txt"])
def test_requirements_are_exact_versions(name: str) -> None:
    for requirement in pins(name).values():
        operators = [specifier.operator for specifier in requirement.specifier]
        assert operators == ["=="], f"{requirement} is not pinned"
        assert requirement.url is None


@pytest.mark.parametrize(
    ("extra", "name"),
    [(None, "test.txt"), ("test", "test.txt"), ("dev", "test.txt"), ("bench", "bench.txt")],
)
def test_what_is_pinned_is_what_is_promised(extra: str | None, name: str) -> None:
    """Goal: pyproject.toml and requirements/ agree.
    Method: each dependency is pinned, at a version that its own bounds admit."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["optional-dependencies"][extra] if extra else project["dependencies"]
    pinned = pins(name)
    for requirement in map(Requirement, wanted):
        if requirement.name == "oncelog":
            continue
        pin = pinned[canonicalize_name(requirement.name)]
        (exact,) = pin.specifier
        assert requirement.specifier.contains(exact.version), f"{pin} is not {requirement}"
