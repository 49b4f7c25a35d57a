"""Commands run as a person runs them, without a process of their own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

from oncelog.cli.main import cli

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


class Command:
    """One subcommand of oncelog."""

    def __init__(self, name: str) -> None:
        self._name = name

    def run(self, *arguments: str | Path) -> Result:
        """What it printed and how it ended; a traceback is a failure of the test."""
        result = CliRunner().invoke(cli, [self._name, *map(str, arguments)])
        known = result.exception is None or isinstance(result.exception, SystemExit)
        assert known, result.exception
        return result

    def document(self, *arguments: str | Path, code: int = 0) -> dict[str, Any]:
        """The document it prints with --json."""
        result = self.run("--json", *arguments)
        assert result.exit_code == code, result.output
        found: dict[str, Any] = json.loads(result.stdout)
        return found
