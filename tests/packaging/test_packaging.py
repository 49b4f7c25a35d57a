"""What we ship installs and imports where nothing of this checkout is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(path.stem for path in (ROOT / "pyext").glob("*.pyx"))
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
LEFT_BEHIND = shutil.ignore_patterns(
    ".*", "build", "dist", "*.egg-info", "__pycache__", "*.so", "golden"
)


def run(*command: str | Path, cwd: Path) -> str:
    """Run it away from the checkout, with nothing of the checkout on the path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        words = " ".join(map(str, command))
        pytest.fail(f"{words}\n{done.stdout}{done.stderr}", pytrace=False)
    return done.stdout


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree as a fresh clone would have it: nothing built."""
    copy = tmp_path_factory.mktemp("packaging") / "checkout"
    shutil.copytree(ROOT, copy, ignore=LEFT_BEHIND)
    return copy


@pytest.fixture(scope="session")
def built(checkout: Path) -> Path:
    """The folder with an sdist, and with a wheel that was built from what is in the sdist and from nothing else."""
    run(sys.executable, "-m", "build", "--no-isolation", checkout, cwd=checkout.parent)
    return checkout / "dist"


@pytest.fixture(scope="session")
def sdist(built: Path) -> Path:
    (found,) = built.glob("*.tar.gz")
    return found


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


def install(package: Path, home: Path) -> Path:
    """Install into an empty environment; its Python."""
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    paths = {"base": str(home), "platbase": str(home)}
    site = Path(sysconfig.get_path("purelib", scheme="venv", vars=paths))
    # Dependencies are borrowed from the environment that runs the tests, so that no network is
    # needed. Its own .pth files do not count in there: the editable oncelog is not among them.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed")
    run(python, "-m", "pip", "install", *options, package, cwd=home)
    return python


def check_installed(python: Path, home: Path) -> None:
    modules = [f"oncelog._native.{name}" for name in MODULES]
    names = ["oncelog", "oncelog.spark", *modules]
    program = f"import {', '.join(names)}; print(*({', '.join(f'{n}.__file__' for n in names)},))"
    for file in run(python, "-I", "-c", program, cwd=home).split():
        assert Path(file).is_relative_to(home), f"{file} is not what was installed"
    assert "inspect" in run(home / "bin" / "oncelog", "--help", cwd=home)


def test_the_wheel_holds_what_is_imported_and_nothing_else(wheel: Path) -> None:
    """Goal: neither sources nor tests are installed, and nothing that is imported is missing.
    Method: compare the names in the wheel with those in the tree."""
    expected = {f"oncelog/_native/{name}{SUFFIX}" for name in MODULES}
    expected |= {f"oncelog/_native/{name}.pyi" for name in MODULES} | {"oncelog/py.typed"}
    for folder, package in (
        ("engine", "oncelog"),
        ("pyext", "oncelog/_native"),
        ("spark_udf", "oncelog/spark"),
        ("benches", "oncelog/benches"),
    ):
        for path in (ROOT / folder).rglob("*.py"):
            expected.add(f"{package}/{path.relative_to(ROOT / folder).as_posix()}")
    # Of the benchmarks those that need no checkout, with what they promise.
    needs_checkout = {"conftest.py", "kafka*.py", "*soak.py"}
    expected = {
        name for name in expected
        if not any(fnmatch(name, f"oncelog/benches/{pattern}") for pattern in needs_checkout)
    } | {"oncelog/benches/targets.toml"}  # fmt: skip
    # Spark looks for this name at the top.
    expected.remove("oncelog/spark/pyspark_oncelog/__init__.py")
    expected.add("pyspark_oncelog/__init__.py")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        licenses = [name for name in archive.namelist() if name.endswith("licenses/LICENSE")]
    assert names == expected
    assert len(licenses) == 1


def test_the_sdist_holds_what_a_build_needs(sdist: Path) -> None:
    """Goal: what was cloned can be built and tested from the sdist, too.
    Method: every source of the tree is in it, and nothing that was built."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = {"LICENSE", "setup.py", "pyproject.toml", "CMakeLists.txt", "Makefile"}
    for pattern in ("csrc/**/*.[ch]", "pyext/*.p*", "engine/**/*.py", "spark_udf/**/*.py"):
        expected |= {path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern)}
    for pattern in ("tests/**/*.py", "requirements/*.txt"):
        expected |= {path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern)}
    assert expected - names == set()
    assert [name for name in names if name.endswith((".so", ".o", ".a", ".pyc"))] == []
    assert [name for name in names if name.startswith("build/")] == []


def test_what_the_sdist_builds_installs_into_an_empty_environment(
    wheel: Path, tmp_path: Path
) -> None:
    check_installed(install(wheel, tmp_path), tmp_path)


def test_the_benchmarks_run_where_no_checkout_is(wheel: Path, tmp_path: Path) -> None:
    """Goal: `oncelog bench` measures, says that the C floor is not there, and leaves nothing behind.
    Method: run it from the wheel, with files in a directory of its own."""
    home, work = tmp_path / "home", tmp_path / "work"
    install(wheel, home)
    work.mkdir()
    results = tmp_path / "r.json"
    words = ("bench", "--quick", "--only", "encode.arrow.100B", "--json", results)
    shown = run("env", f"ONCELOG_BENCH_DIR={work}", home / "bin" / "oncelog", *words, cwd=home)
    assert "encode Arrow, 100 B" in shown
    assert "C floor: only in a checkout, by make bench" in shown
    assert json.loads(results.read_text())["commit"] == ""
    assert list(work.iterdir()) == []


def test_twine_finds_nothing_to_complain_about(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist, cwd=tmp_path)


def test_a_checkout_that_is_not_built_says_how_to_build_it(tmp_path: Path) -> None:
    """Goal: no Python twin hides a missing build; the first import tells what to do.
    Method: lay the sources out under their import names, without compiled modules."""
    for folder, package in (
        ("engine", "oncelog"),
        ("pyext", "oncelog/_native"),
        ("spark_udf", "oncelog/spark"),
    ):
        shutil.copytree(ROOT / folder, tmp_path / package, ignore=LEFT_BEHIND)
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import oncelog._native.batch"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "ImportError" in done.stderr
    assert "make dev" in done.stderr
    assert "pip install ." in done.stderr
