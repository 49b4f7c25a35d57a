"""`import oncelog` is cheap, and commands start in a blink: what is heavy is loaded by those who use it.

Times differ from run to run and from machine to machine; what was loaded, and how many instructions that took, do not.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ..golden_cases import GOLDEN

if TYPE_CHECKING:
    from pathlib import Path

KAFKA = str(GOLDEN / "txn-offsets/data")
# Of the standard library and others what a command that looks has no use for in a pipe.
HEAVY = {
    *("pyarrow", "pandas", "rich", "pyspark", "typing_extensions"),
    *("asyncio", "csv", "difflib", "hashlib", "multiprocessing", "secrets", "ssl"),
}
# What only a broker that runs needs.
RUNNING = {
    *("oncelog.broker.housekeeping", "oncelog.broker.txn_coordinator"),
    *("oncelog.client.producer", "oncelog.client.consumer", "oncelog.partition.compaction"),
}
OF_GROUPS = {"oncelog.broker.group_coordinator", "oncelog.broker.group_records"}
LOOKING = (
    ("topics", "list"),
    ("topics", "describe"),
    ("offsets", "get"),
    ("groups", "list"),
    ("groups", "describe", "--all-groups"),
    ("consume", "in"),
    ("transactions", "list"),
    ("producers", "describe", "in"),
)
MODULES_MAX = 2.0  # as many as numpy brings, with it
INSTRUCTIONS_MAX = 2.0


def loaded(program: str) -> set[str]:
    """The modules of a fresh interpreter after a program."""
    ending = "\nprint('|', *sys.modules, file=sys.stderr)"
    command = [sys.executable, "-c", f"import sys\n{program}{ending}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return set(done.stderr.rpartition("|")[2].split())


def command(words: tuple[str, ...]) -> str:
    arguments = [*words, "--data", KAFKA]
    return (
        f"import oncelog.cli.main as m\ntry: m.main({arguments!r})\n"
        "except SystemExit as e: assert not e.code, e.code"
    )


@pytest.mark.parametrize("library", ["pyarrow", "pandas", "rich", "pyspark"])
def test_importing_oncelog_does_not_load(library: str) -> None:
    """Goal: a service that never asks for Arrow, tables or Spark does not pay for them.
    Method: import in a fresh interpreter and look at what was loaded."""
    assert library not in loaded("import oncelog")


@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_a_command_that_looks_loads_what_it_needs(words: tuple[str, ...]) -> None:
    found = loaded(command(words))
    assert not found & (HEAVY | RUNNING)
    if words[0] in ("topics", "offsets"):
        assert not found & OF_GROUPS


def test_a_list_loads_no_more_than_twice_the_modules_of_numpy() -> None:
    """Goal: an import at the top of some module does not creep into every start.
    Method: count, as a share of what numpy itself takes."""
    assert len(loaded(command(("topics", "list")))) <= MODULES_MAX * len(loaded("import numpy"))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind counts the instructions")
def test_a_list_starts_in_no_more_than_twice_the_work_of_importing_numpy(tmp_path: Path) -> None:
    """Goal: the promise of the command line, in a measure that a busy machine does not change.
    Method: instructions of both, once their bytecode is cached, as after an installation."""
    listing = ["-m", "oncelog", "topics", "list", "--data", KAFKA]
    assert instructions(listing, tmp_path) <= INSTRUCTIONS_MAX * instructions(
        ["-c", "import numpy"], tmp_path
    )


def instructions(arguments: list[str], cache: Path) -> int:
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(cache), "PYTHONHASHSEED": "0"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    python = [sys.executable, *arguments]
    subprocess.run(python, check=True, env=environment, stdout=subprocess.DEVNULL)
    counting = [
        "valgrind",
        "--tool=cachegrind",
        "--cache-sim=no",
        "--cachegrind-out-file=/dev/null",
    ]
    done = subprocess.run(
        [*counting, *python], check=True, env=environment, capture_output=True, text=True
    )
    counted = re.search(r"I\s+refs:\s+([0-9,]+)", done.stderr)
    assert counted is not None, done.stderr
    return int(counted[1].replace(",", ""))
