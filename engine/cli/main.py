"""The command ``oncelog``: its subcommands, and how each of them ends.

Data goes to stdout, talk to stderr. The exit code is 0 for sound, 1 for damaged or unreadable data and 2
for misuse; an interrupt ends with 130 and a closed pipe with 141, as shells count signals.

Every module of a subcommand is imported to print the help, so none of them imports numpy, pyarrow or rich
at its top: a command fetches what it needs when it runs.
"""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Any

import click

from ..base.errors import OncelogError, Remedy
from .inspect import inspect
from .output import Failure, Misuse
from .verify import verify

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141


class Commands(click.Group):
    """A group that ends every failure of its commands with a sentence instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            sys.stdout = (
                io.StringIO()
            )  # what is still buffered has nowhere to go: forget it quietly
            ctx.exit(EXIT_PIPE_CLOSED)
        except KeyboardInterrupt:
            ctx.exit(EXIT_INTERRUPTED)
        except OncelogError as error:
            ending = Misuse if error.remedy is Remedy.FIX else Failure
            raise ending(f"{error}.") from error
        except OSError as error:
            place = f"{click.format_filename(error.filename)}: " if error.filename else ""
            raise Misuse(f"{place}{error.strerror or error}.") from error
        return result


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="oncelog", message="%(prog)s %(version)s")
def cli() -> None:
    """Kafka's transactional log as a Python library: tools for its files.

    \b
    Exit codes   0 sound, 1 damaged, 2 misuse
    Completion   eval "$(_ONCELOG_COMPLETE=bash_source oncelog)"
                 (zsh_source for zsh, fish_source for fish)
    """


cli.add_command(inspect)
cli.add_command(verify)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point of the installed command."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets its escape, not a traceback.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    cli.main(arguments, prog_name="oncelog")
