"""Imports point down. Rooms on one floor do not know each other. There is no exception list."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
ENGINE, NATIVE, SPARK, CSRC = (ROOT / name for name in ("engine", "pyext", "spark_udf", "csrc"))

FLOORS = (
    ("aio", "cli", "testing"),
    ("benches",),  # benches/, which measures all that is below
    ("spark",),  # spark_udf/, which itself sees public names alone
    ("client", "server"),
    ("broker", "protocol"),
    ("partition",),
    ("log",),
    ("segment",),
    ("_native",),
    ("base",),
)
DEPTH = {room: depth for depth, rooms in enumerate(FLOORS) for room in rooms}

# The homes of what only few may touch, as paths from the root.
PYSPARK_HOMES = ("spark_udf/",)
PYARROW_HOMES = (
    "engine/client/arrow.py",
    "engine/cli/record_files.py",
    "engine/segment/compression.py",
    "spark_udf/",
)
CIMPORTS = {"oncelog_c", "libc", "cpython", "cython", "numpy"}

PYTHON = sorted([*ENGINE.rglob("*.py"), *NATIVE.glob("*.py"), *SPARK.rglob("*.py")])
CYTHON = sorted([*NATIVE.glob("*.pyx"), *NATIVE.glob("*.pxd")])
ROOMS = sorted(path.parent for path in ENGINE.glob("*/__init__.py"))

IMPORT = re.compile(r"^\s*(?:from\s+(\S+)\s+import|import\s+(\S+))", re.MULTILINE)
CIMPORT = re.compile(r"^\s*(?:from\s+(\S+)\s+cimport|cimport\s+(\S+))", re.MULTILINE)


def where(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def package_of(path: Path) -> list[str]:
    """The package a file belongs to, by its import name."""
    for folder, name in ((NATIVE, ["oncelog", "_native"]), (SPARK, ["oncelog", "spark"])):
        if path.is_relative_to(folder):
            return name + list(path.relative_to(folder).parent.parts)
    return ["oncelog", *path.relative_to(ENGINE).parent.parts]


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """(absolute name, whether it was written relatively) of everything that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, False
        elif isinstance(node, ast.ImportFrom):
            package = package_of(path)
            package = package[: len(package) + 1 - node.level] if node.level else []
            for alias in node.names:
                yield ".".join([*package, *filter(None, [node.module]), alias.name]), node.level > 0


def cython_imports(path: Path, pattern: re.Pattern[str]) -> Iterator[str]:
    for match in pattern.finditer(path.read_text()):
        yield match.group(1) or match.group(2)


def imports_of_any_kind(path: Path) -> Iterator[str]:
    if path.suffix == ".py":
        yield from (name for name, _ in imports(path))
    else:
        yield from cython_imports(path, IMPORT)
        yield from cython_imports(path, CIMPORT)


@pytest.mark.parametrize("path", sorted(ENGINE.glob("*/**/*.py")), ids=where)
def test_imports_point_down(path: Path) -> None:
    """Goal: a room knows only the rooms below it.
    Method: resolve every import of ours to its room and compare floors."""
    room = path.relative_to(ENGINE).parts[0]
    assert room in DEPTH, f"{room} has no floor: give it one in FLOORS"
    for name, is_relative in imports(path):
        top, _, rest = name.partition(".")
        if top != "oncelog":
            continue
        assert is_relative, f"import our own rooms relatively, not {name}"
        target = rest.partition(".")[0]
        assert target in DEPTH, f"{name}: {target} is not a room, and the top belongs to users"
        assert target == room or DEPTH[target] > DEPTH[room], f"{room} may not know {target}"


@pytest.mark.parametrize("path", CYTHON, ids=where)
def test_cython_knows_c_and_the_base_alone(path: Path) -> None:
    """Goal: Cython modules share only C, never each other.
    Method: list what each cimports, and which of our rooms it imports."""
    for name in cython_imports(path, CIMPORT):
        assert name.split(".")[0] in CIMPORTS, f"cimport {name}"
    for name in cython_imports(path, IMPORT):
        if name.startswith((".", "oncelog")):
            below = name.startswith(("oncelog.base", "..base"))
            assert below, f"_native may know base, not {name}"
    includes = re.findall(r"^\s*include\s+['\"].*", path.read_text(), re.MULTILINE)
    assert includes == [], "one extension per C unit, no include chains"


@pytest.mark.parametrize("path", sorted(SPARK.rglob("*.py")), ids=where)
def test_spark_sees_public_names_alone(path: Path) -> None:
    """Goal: what Spark needs, a user can have.
    Method: from oncelog, only the package itself may be imported."""
    for name, is_relative in imports(path):
        parts = name.split(".")
        if parts[0] == "oncelog" and parts[1:2] != ["spark"]:
            public = len(parts) <= 2 and not parts[-1].startswith("_") and not is_relative
            assert public, f"{name} is not a public name"


@pytest.mark.parametrize("path", sorted(CSRC.rglob("*.[ch]")), ids=where)
def test_c_knows_no_python(path: Path) -> None:
    assert "Python.h" not in path.read_text()


@pytest.mark.parametrize(
    ("library", "homes"), [("pyspark", PYSPARK_HOMES), ("pyarrow", PYARROW_HOMES)]
)
def test_a_heavy_library_stays_in_its_homes(library: str, homes: tuple[str, ...]) -> None:
    """Goal: who does not ask for Arrow or Spark does not load it.
    Method: every import of it, at the top of a file or inside a function, is in a home."""
    strays = [
        where(path)
        for path in [*PYTHON, *CYTHON]
        if not where(path).startswith(homes)
        and any(name.split(".")[0] == library for name in imports_of_any_kind(path))
    ]
    assert strays == [], f"{library} belongs to {', '.join(homes)}"


def bound_names(tree: ast.AST) -> set[str]:
    """Names that a module imports or defines, so that a call to them is not the builtin."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.FunctionDef):
            names.add(node.name)
    return names


def outside_doors(path: Path) -> Iterator[str]:
    """Each use of the clock or of the file system, with its line."""
    tree = ast.parse(path.read_text())
    own = bound_names(tree)
    for name, _ in imports(path):
        if name.split(".")[0] == "time":
            yield f"import {name}"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id="open") if "open" not in own:
                yield f"{node.lineno}: open()"
            case ast.Attribute(value=ast.Name(id="os" | "io" as module), attr="open" | "fdopen"):
                yield f"{node.lineno}: {module}.{node.func.attr}()"
            case ast.Attribute(attr="read_bytes" | "read_text" | "write_bytes" | "write_text"):
                yield f"{node.lineno}: .{node.func.attr}()"
            case ast.Attribute(value=ast.Name(id="datetime" | "date"), attr="now" | "today"):
                yield f"{node.lineno}: .{node.func.attr}()"


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(ENGINE.rglob("*.py")) if not where(path).startswith("engine/base/")],
    ids=where,
)
def test_time_and_disk_come_in_through_the_door(path: Path) -> None:
    """Goal: a simulator can replace the clock and the disk, so that a crash is a seed.
    Method: outside base/ nobody reads a clock or opens a file."""
    assert list(outside_doors(path)) == []


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_the_map_says_what_each_room_says_of_itself(room: Path) -> None:
    """Goal: docs/ARCHITECTURE.md cannot drift from the code.
    Method: a room's __init__ opens with one line, which the map repeats."""
    docstring = ast.get_docstring(ast.parse((room / "__init__.py").read_text()))
    assert docstring, f"{where(room)} has no docstring"
    line = docstring.splitlines()[0]
    assert line in (ROOT / "docs/ARCHITECTURE.md").read_text(), f"{where(room)}: {line}"


def test_every_room_is_a_package() -> None:
    """Goal: no file is left out of the wheel.
    Method: each folder with Python in it has an __init__.py, which is how setup.py finds it."""
    folders = {path.parent for path in [*ENGINE.rglob("*.py"), *SPARK.rglob("*.py")]}
    assert [where(folder) for folder in folders if not (folder / "__init__.py").exists()] == []
