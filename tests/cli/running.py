"""Commands run as a person runs them, without a process of their own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

from oncelog.cli.main import cli

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


def run_command(*arguments: str | Path, stdin: str | bytes | None = None) -> Result:
    """What a command printed and how it ended; a traceback is a failure of the test."""
    result = CliRunner().invoke(cli, [*map(str, arguments)], input=stdin)
    known = result.exception is None or isinstance(result.exception, SystemExit)
    assert known, result.exception
    return result


def printed(*arguments: str | Path, stdin: str | bytes | None = None) -> str:
    """What a command that succeeds has printed."""
    result = run_command(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: str | Path, code: int = 2, stdin: str | bytes | None = None) -> str:
    """The sentence with which a command that fails ends; it prints no data."""
    result = run_command(*arguments, stdin=stdin)
    assert result.exit_code == code, result.output
    return result.stderr.rpartition("Error: ")[2].strip()


class Command:
    """One subcommand of oncelog."""

    def __init__(self, name: str) -> None:
        self._name = name

    def run(self, *arguments: str | Path) -> Result:
        """What it printed and how it ended."""
        return run_command(self._name, *arguments)

    def document(self, *arguments: str | Path, code: int = 0) -> dict[str, Any]:
        """The document it prints with --json."""
        result = self.run("--json", *arguments)
        assert result.exit_code == code, result.output
        found: dict[str, Any] = json.loads(result.stdout)
        return found
