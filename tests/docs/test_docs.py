"""The documents say what is so: programs run, transcripts are real, links lead somewhere, and what is made from
the code is up to date."""

from __future__ import annotations

import io
import re
import runpy
import shutil
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from oncelog.cli.main import COMMANDS

from ..terminal import on_terminal

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benches").glob("*.md")]
)
WITH_PROGRAMS = [ROOT / "README.md", *sorted((ROOT / "docs/guides").glob("*.md"))]
README_COLUMNS = 110

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path) -> list[tuple[str, str]]:
    """(language, text) of the fenced blocks of a document."""
    return FENCE.findall(path.read_text())


def test_format_is_what_the_docstrings_say() -> None:
    """Goal: a byte layout is written once.
    Method: build the document again; `python docs/build_format.py` brings it up to date."""
    build = runpy.run_path(str(ROOT / "docs/build_format.py"))["build"]
    assert (ROOT / "docs/FORMAT.md").read_text() == build()


@pytest.mark.parametrize("name", ["cli.md", "errors.md", "options.md"])
def test_the_reference_is_what_the_code_says(name: str) -> None:
    """Goal: help and errors are described once, in the code.
    Method: build the document again; `python docs/build_reference.py` brings it up to date."""
    documents = runpy.run_path(str(ROOT / "docs/build_reference.py"))["DOCUMENTS"]
    assert (ROOT / "docs/reference" / name).read_text() == documents[name]()


def test_the_reference_has_every_command() -> None:
    """Goal: a command that is loaded when it is named is not forgotten.
    Method: each that `oncelog --help` lists has its own section."""
    text = (ROOT / "docs/reference/cli.md").read_text()
    for name in COMMANDS:
        assert f"\n## oncelog {name}\n" in text, name
    assert "\n## oncelog topics create\n" in text


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    for target in LINK.findall(FENCE.sub("", path.read_text())):
        if not target.startswith(("http:", "https:", "#")):
            assert (path.parent / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("path", WITH_PROGRAMS, ids=name_of)
def test_programs_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: what a reader copies works, and prints what the document shows below it.
    Method: run the python blocks of a document in order, as one program; a text block that follows
    one is its output. `kafka-data` is a directory that a broker left."""
    shutil.copytree(ROOT / "tests/golden/txn-mixed/data", tmp_path / "kafka-data")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    output = ""
    for language, text in blocks(path):
        if language == "python":
            with redirect_stdout(io.StringIO()) as printed:
                exec(compile(text, name_of(path), "exec"), names)  # noqa: S102
            output = printed.getvalue()
        elif language == "text" and output:
            assert text == output


def test_the_map_names_every_file() -> None:
    """Goal: docs/ARCHITECTURE.md cannot drift from the tree.
    Method: what it names exists, and every module is named."""
    text = (ROOT / "docs/ARCHITECTURE.md").read_text()
    table = text[text.index("## Files") : text.index("## The life")]
    named = {
        (Path(words[0]).parent / word).as_posix() if "/" not in word else word
        for row in re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
        for words in [re.findall(r"`([^`]+)`", row)]
        for word in words
    }
    modules = {
        path.relative_to(ROOT).as_posix()
        for folder, pattern in (("engine", "*/*.py"), ("pyext", "*.p*"), ("csrc", "*.[ch]"))
        for path in (ROOT / folder).glob(pattern)
        if path.suffix in (".py", ".pyx", ".pxd", ".c", ".h") and path.name != "__init__.py"
    }
    assert named - modules == set()
    assert modules - named - {"csrc/status.c"} == set()


def test_transcripts_are_real() -> None:
    """Goal: the README shows what the command shows.
    Method: run the commands whose output is printed below them."""
    transcripts = [
        text.removeprefix("$ ").split("\n", 1)
        for language, text in blocks(ROOT / "README.md")
        if language == "console" and text.startswith("$ oncelog")
    ]
    assert transcripts
    for command, output in transcripts:
        program = [sys.executable, "-m", *command.split()]
        screen = on_terminal(program, README_COLUMNS, cwd=ROOT)
        assert [line.rstrip() for line in screen.splitlines()] == output.splitlines()
