"""The command ``oncelog``: its subcommands, and how each of them ends.

Data goes to stdout, talk to stderr. The exit code is 0 for sound, 1 for damaged or unreadable data and 2
for misuse; an interrupt ends with 130 and a closed pipe with 141, as shells count signals.

A command's module is imported when the command is named, and none of them imports numpy, pyarrow or rich at its top:
a command fetches what it needs when it runs, so that a help or a list is there in a blink.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from ..base.errors import OncelogError, Remedy
from .output import CommandGroup, Failure, Misuse, explained, sentence_of

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141

# Where each command is, and what the list of commands says of it.
COMMANDS: Final = {
    "topics": ("topics:topics", "Make, list, describe, alter and delete topics."),
    "produce": ("produce:produce", "Write records: lines, JSON, CSV, Arrow or Parquet."),
    "consume": ("consume:consume", "Read records: as text, JSON, hex, Arrow or Parquet."),
    "offsets": ("offsets:offsets", "Show where partitions begin and end."),
    "groups": ("groups:groups", "List, describe, delete and reset consumer groups."),
    "transactions": ("transactions:transactions", "List, describe, draw and abort transactions."),
    "producers": ("producers:producers", "Describe the producers that partitions remember."),
    "inspect": ("inspect:inspect", "Show what is in Kafka's files, or a directory at a glance."),
    "verify": ("verify:verify", "Prove a directory of logs sound."),
    "compact": ("compact:compact", "Clean compacted topics now."),
    "repair": ("repair:repair", "Say what recovery would do, or do it."),
    "import": (
        "import_export:import_records",
        "Take records from Parquet, Arrow or a Kafka directory.",
    ),
    "export": (
        "import_export:export_records",
        "Give records to Parquet, Arrow or a Kafka directory.",
    ),
    "perf": ("perf:perf", "Measure producing, consuming, latency and transactions."),
    "bench": ("bench:bench", "Compare this machine's speed with other libraries and its limits."),
    "doctor": ("doctor:doctor", "Look at this machine: what is missing, slow or too low."),
}


class Commands(CommandGroup):
    """A group that ends every failure of its commands with a sentence instead of a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        place, _ = COMMANDS.get(cmd_name, ("", ""))
        if not place:
            return None
        module, _, attribute = place.partition(":")
        found: click.Command = getattr(
            importlib.import_module(f".{module}", __package__), attribute
        )
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, short) for name, (_, short) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            sys.stdout = (
                io.StringIO()
            )  # what is still buffered has nowhere to go: forget it quietly
            ctx.exit(EXIT_PIPE_CLOSED)
        except click.NoSuchOption as error:
            raise explained(error) from error
        except KeyboardInterrupt:
            ctx.exit(EXIT_INTERRUPTED)
        except OncelogError as error:
            ending = Misuse if error.remedy is Remedy.FIX else Failure
            raise ending(sentence_of(error)) from error
        except OSError as error:
            place = f"{click.format_filename(error.filename)}: " if error.filename else ""
            raise Misuse(f"{place}{error.strerror or error}.") from error
        return result


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="oncelog", message="%(prog)s %(version)s")
def cli() -> None:
    """Kafka's transactional log as a Python library: its tools.

    \b
    Examples
      oncelog topics create orders --partitions 3 --data data
      echo 'k1:v1' | oncelog produce orders --key-separator : --data data
      oncelog consume orders --from-beginning --data data
      oncelog inspect /var/lib/kafka/data

    \b
    Directory    --data DIR, or the variable ONCELOG_DATA
    Exit codes   0 sound, 1 damaged, 2 misuse
    Completion   eval "$(_ONCELOG_COMPLETE=bash_source oncelog)"
                 (zsh_source for zsh, fish_source for fish)
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point of the installed command."""
    if arguments is None:
        _collect_seldom()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets its escape, not a traceback.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    cli.main(arguments, prog_name="oncelog")


def _collect_seldom() -> None:
    """What a command loads stays until its end. Walking through it again and again to find garbage, and once more at the
    end, takes a twelfth of the instructions of a list."""
    gc.set_threshold(50_000, 20, 100)
    atexit.register(gc.freeze)
