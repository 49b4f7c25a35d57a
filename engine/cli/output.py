"""What all commands share in how they speak: exit codes, errors, and bytes shown as text."""

from __future__ import annotations

import base64
import errno
import sys
from typing import IO, TYPE_CHECKING, Any, Final

import click

from ..base.errors import InvalidRequestError

if TYPE_CHECKING:
    from ..base.errors import OncelogError

EXIT_SOUND: Final = 0
EXIT_DAMAGED: Final = 1
EXIT_MISUSE: Final = 2

# Options of Kafka's tools that are something else here.
NAMED: Final = ("--topic", "--group", "--transactional-id", "--data")
KAFKA_OPTIONS: Final = {
    "--topic": "Topics are named without one, as in 'oncelog consume orders'.",
    "--group": "Groups are named without one, as in 'oncelog groups describe billing'.",
    "--transactional-id": "Ids are named without one, as in 'oncelog transactions describe loader'.",
    "--data": "The directory is named without one, as in 'oncelog verify data'.",
    "--bootstrap-server": "There is no server: --data DIR names the directory.",
    "--broker-list": "There is no server: --data DIR names the directory.",
    "--property": "Each property has an option of its own: --help lists them.",
    "--formatter": "--format chooses one, and the coordinators' topics get theirs by themselves.",
}
_ESCAPES: Final = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"})


class Failure(click.ClickException):
    """Ends a command with a sentence on stderr: data is damaged or unreadable."""

    exit_code = EXIT_DAMAGED

    def show(self, file: IO[Any] | None = None) -> None:
        error(self.message, file)


class Misuse(Failure):
    """Ends a command that was asked for what it cannot do."""

    exit_code = EXIT_MISUSE


class CommandGroup(click.Group):
    """Commands under one name; one that is not among them gets a suggestion."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        known = self.list_commands(ctx)
        if name in known or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        import difflib  # for those who need it

        alike = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(alike)}?" if alike else f"There are {', '.join(known)}."
        raise click.UsageError(f"No such command {name!r}. {hint}", ctx)


def sentence_of(error: OncelogError) -> str:
    """An error in full, with what to do about it, as one line that ends with a full stop."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE):
        return (
            f"{error.args[0].rstrip('.')}. Each partition that is written has up to four files open: raise the limit, as "
            "with 'ulimit -n 65536'; 'oncelog doctor' shows it."
        )
    # The general advice to change an argument says nothing to who has just typed it.
    text = error.args[0] if type(error) is InvalidRequestError and error.args else str(error)
    return f"{text.rstrip('.')}."


def explained(error: click.NoSuchOption) -> click.UsageError:
    """An option that Kafka's tools have and this command has not, with what stands for it here."""
    takes_names = error.ctx is not None and any(
        isinstance(parameter, click.Argument) for parameter in error.ctx.command.params
    )
    hint = KAFKA_OPTIONS.get(error.option_name)
    if hint is None or (error.option_name in NAMED and not takes_names):
        return error
    return click.UsageError(f"No such option {error.option_name!r}. {hint}", error.ctx)


def end_with(errors: list[OncelogError]) -> None:
    """Tells of each error and ends the command; of none nothing, and it goes on."""
    if not errors:
        return
    for found in errors:
        error(sentence_of(found))
    is_misuse = all(found.remedy.name == "FIX" for found in errors)
    click.get_current_context().exit(EXIT_MISUSE if is_misuse else EXIT_DAMAGED)


def talk(sentence: str) -> None:
    """A remark for the person at the terminal."""
    sys.stdout.flush()  # both may end on one screen: keep their order
    click.echo(sentence, err=True)


def error(sentence: str, file: IO[Any] | None = None) -> None:
    """What went wrong."""
    sys.stdout.flush()
    click.echo(
        f"{click.style('Error:', fg='red', bold=True)} {sentence}", file=file, err=file is None
    )


def plural(count: int, noun: str, many: str = "") -> str:
    """``1 batch``, ``1,000 batches``."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def quoted(data: bytes | None, width: int | None = None) -> str:
    """Bytes as a person reads them: ``"text"``, ``0x00ff``, ``null``; cut after ``width`` characters."""
    if data is None:
        return "null"
    head = data if width is None else data[: 4 * width]  # a character has up to four bytes
    text = _text(head, len(data) - len(head))
    shown, quote = (f"0x{head.hex()}", "") if text is None else (text, '"')
    if width is None or (len(shown) <= width and len(head) == len(data)):
        return f"{quote}{shown}{quote}"
    return f"{quote}{shown[:width]}{quote}… ({len(data):,} bytes)"


def _text(head: bytes, bytes_cut: int) -> str | None:
    """The bytes as printable text, if they are; a character that the cut has split is left out."""
    for missing in range(min(bytes_cut, 3) + 1):
        try:
            return printable(head[: len(head) - missing].decode())
        except UnicodeDecodeError:
            continue
    return None


def printable(text: str) -> str | None:
    """The text with line ends and tabs escaped; None where it holds what a terminal should not get."""
    bare = text.translate(_ESCAPES)
    return bare if bare.isprintable() else None


def json_bytes(name: str, data: bytes | None) -> dict[str, str | None]:
    """A field of a JSON object: ``name`` for text and null, ``nameBase64`` for what is not UTF-8."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(data).decode()}
