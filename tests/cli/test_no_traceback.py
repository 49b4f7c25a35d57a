"""No mistake on the command line ends in a traceback: every command, with every option it has and wild values for it.

The commands and their options are taken from the program itself, so that a new one is tried without a word here.
"""

from __future__ import annotations

import random
import shutil
import string
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

import oncelog
from oncelog.cli.main import cli

from ..golden_cases import GOLDEN
from .test_commands import commands

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS = dict(commands(cli, ()))
# Nothing here is right for every option, and much of it is wrong for all of them. No path leads out of the directory
# that the test works in: some of these command lines do write.
WILD = (
    *("", " ", "-1", "0", "1", "7", "99999999999999999999", "1e9", "nan", "0x10", "0-99999999999"),
    *(
        "orders",
        "in",
        "nope",
        "__consumer_offsets",
        "__transaction_state",
        "a b",
        "ä",
        "\udce4",
        "x\ny",
    ),
    *(
        "a=b",
        "acks=7",
        "retention.ms=x",
        "=",
        "orders:0,9",
        "orders:x",
        "k,v",
        ":",
        "\\",
        "*",
        "[",
        "(?",
    ),
    *(
        "2026-13-01T00:00:00.000",
        "9999-12-31T23:59:59.999",
        "P1D",
        "P99999999999999D",
        "json",
        "arrow",
    ),
    *(".", "no/where/file", "file.parquet", "page.html", "~", "\t", "-", "--"),
)
LETTERS = string.printable.replace("/", "").replace(".", "")
# Ends that a sentence explains. 130 and 141 are a person's own doing, and none is here.
EXITS = {0, 1, 2}
SLOW = ("--follow", "--num-records", "--num-transactions")  # would go on for long
TRIES = 12


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Ours, a broker's that was copied, an empty one, a file, and none."""
    root = tmp_path_factory.mktemp("wild")
    with oncelog.open(root / "ours") as log:
        log.create_topic("orders", 2)
        with log.producer(transactional_id="t") as producer, producer.transaction():
            producer.send("orders", b"v", key=b"k", partition=0)
        log.admin().alter_consumer_group_offsets("g", {("orders", 0): 1})
    shutil.copytree(GOLDEN / "txn-offsets/data", root / "kafka")
    (root / "empty").mkdir()
    (root / "file").write_bytes(b"\x00\xffnot a log")
    return [root / "ours", root / "kafka", root / "empty", root / "file", root / "nowhere"]


def value_of(option: click.Parameter, chance: random.Random, directories: list[Path]) -> str:
    """A value that an option may get: often one that is almost right, so that the work behind it begins."""
    if "data" in (option.name or "") or isinstance(option.type, click.Path):
        return str(chance.choice(directories)) if chance.random() < 0.7 else chance.choice(WILD)
    if isinstance(option.type, click.Choice) and chance.random() < 0.7:
        return str(chance.choice(list(option.type.choices)))
    if isinstance(option.type, (click.types.IntParamType, click.IntRange)):
        return chance.choice(("0", "1", "2", "-1", "99999999999999999999", "x", ""))
    if chance.random() < 0.2:
        return "".join(chance.choices(LETTERS, k=chance.randrange(1, 9)))
    return chance.choice(WILD)


def line_of(
    names: tuple[str, ...], command: click.Command, chance: random.Random, directories: list[Path]
) -> list[str]:
    """A command line: required options mostly, some of the others, arguments in any number."""
    words = list(names)
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            count = (
                chance.choice((1, 1, 1, 2, 0))
                if parameter.nargs == -1
                else chance.choice((1, 1, 1, 0, 2))
            )
            words += [value_of(parameter, chance, directories) for _ in range(count)]
            continue
        name = max(parameter.opts, key=len)
        likely = 0.9 if name == "--data" else 0.25
        if name in SLOW or name == "--help" or chance.random() > likely:
            continue
        words.append(name)
        if not getattr(parameter, "is_flag", False):
            words.append(value_of(parameter, chance, directories))
    if "perf" in names:  # a measurement that is asked for by mistake is a short one
        words += ["--num-records", "20"]
    return words


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_no_mistake_ends_in_a_traceback(
    names: tuple[str, ...], directories: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: whatever is typed, a command ends with one of its exit codes and, where that is not 0, with a sentence.
    Method: command lines drawn by chance from the command's own options, on directories of every kind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ONCELOG_DATA", raising=False)
    chance = random.Random(" ".join(names))
    for _ in range(TRIES):
        words = line_of(names, COMMANDS[names], chance, directories)
        result = CliRunner().invoke(cli, words, input="k:v\n\xff\n")
        assert result.exception is None or isinstance(result.exception, SystemExit), (
            f"{words}: {result.exc_info}"
        )
        assert result.exit_code in EXITS, (words, result.output)
        assert "Traceback" not in result.output, words
        assert not result.exit_code or result.output.strip(), f"{words} failed without a word"
