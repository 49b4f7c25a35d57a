"""What commands on a data directory share: their options, how it is opened, and why it cannot be.

Commands that only look open the directory read-only, beside whoever writes it. Commands that change something are its
one writer while they run. Every reason why a directory cannot be opened is one sentence that says what to do.
"""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ..base.errors import DirectoryLockedError, InvalidRequestError, OncelogError
from .output import Misuse, talk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from click.shell_completion import CompletionItem

    from ..client.client import Log
    from ..client.directory import LogDirectory

Decorated = TypeVar("Decorated", bound="Callable[..., Any]")

METADATA_FILE: Final = "oncelog.metadata"
SEGMENT: Final = f"{'[0-9]' * 20}.log"
KAFKA_FILES: Final = ("meta.properties", ".kafka_cleanshutdown")
# Properties that say how to reach a cluster, which a directory needs not; Kafka's tools take them in the same file.
CONNECTION: Final = ("bootstrap.", "security.", "sasl.", "ssl.", "client.dns.", "metadata.max.")


# ---------------------------------------------------------------- options


def data_option(command: Decorated) -> Decorated:
    """``--data DIR``: where the log is."""
    return click.option(
        "--data",
        type=click.Path(path_type=Path, readable=False),  # why it cannot be read is told below
        envvar="ONCELOG_DATA",
        show_envvar=True,
        required=True,
        metavar="DIR",
        help="The data directory, ours or a Kafka broker's.",
    )(command)


def json_option(command: Decorated) -> Decorated:
    """``--json``: for programs."""
    return click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")(command)


def adopt_option(command: Decorated) -> Decorated:
    """``--adopt``: of commands that write."""
    return click.option(
        "--adopt",
        is_flag=True,
        help="Take over a directory that a Kafka broker wrote and no longer uses.",
    )(command)


def command_config_option(command: Decorated) -> Decorated:
    """``--command-config FILE``: client options, in Kafka's form."""
    return click.option(
        "--command-config",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        metavar="FILE",
        help="Client options as name=value lines, as Kafka's tools take them.",
    )(command)


def read_command_config(path: Path | None) -> dict[str, str]:
    """The options of a properties file, without those that say how to reach a cluster."""
    if path is None:
        return {}
    from ..log.checkpoint import read_properties

    try:
        found = read_properties(str(path))
    except (OncelogError, UnicodeDecodeError) as error:
        raise Misuse(f"{click.format_filename(path)} is no properties file: {error}.") from error
    kept = {name: value for name, value in found.items() if not name.startswith(CONNECTION)}
    left_out = sorted(found.keys() - kept.keys())
    if left_out:
        talk(f"{', '.join(left_out)}: of no use for a directory, and left out.")
    return kept


def pairs_of(texts: tuple[str, ...], option: str) -> dict[str, str]:
    """``name=value`` of a repeated option."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{text!r} is not name=value.", param_hint=f"'{option}'")
        found[name.strip()] = value.strip()
    return found


def client_options(path: Path | None, properties: tuple[str, ...], option: str) -> dict[str, Any]:
    """What a client is told by a file and on the command line; the latter counts."""
    return {**read_command_config(path), **pairs_of(properties, option)}


class FiniteNumber(click.types.FloatParamType):
    """A number to reckon with: neither nan nor inf, which Python's float takes as well."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


class FileToWrite(click.Path):
    """A file that a command will write, refused before the work if the directory that it goes to is not there.

    What is written takes the place of what has the name: a device, which root could replace as well, is refused.
    """

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        if isinstance(path, Path) and not path.parent.is_dir():
            self.fail(f"there is no directory {click.format_filename(path.parent)}.", param, ctx)
        if isinstance(path, Path) and path.exists() and not path.is_file():
            self.fail(f"{click.format_filename(path)} is not a file to be replaced.", param, ctx)
        return path


# ---------------------------------------------------------------- opening


def refusal(path: Path) -> str | None:
    """Why a directory cannot be read as a log directory; None where it can."""
    name = click.format_filename(path)
    if not path.exists():
        return (
            f"There is no directory {name}. 'oncelog topics create' makes one with its first topic."
        )
    if not path.is_dir():
        return f"{name} is a file, not a data directory."
    if not os.access(path, os.R_OK | os.X_OK):
        return f"{name}: permission denied. Run as its owner, or ask for the right to read it."
    if any((path / file).exists() for file in (METADATA_FILE, *KAFKA_FILES)):
        return None
    if any(path.glob(SEGMENT)):
        return f"{name} is one partition's directory: name the data directory that it is in."
    if any(path.glob(f"*-*/{SEGMENT}")):
        return None
    return (
        f"{name} is not a log directory: there is neither {METADATA_FILE} nor a "
        "<topic>-<partition> with .log files in it."
    )


def _check_readable(path: Path) -> None:
    sentence = refusal(path)
    if sentence is not None:
        raise Misuse(sentence)


@contextlib.contextmanager
def opened_to_read(path: Path) -> Iterator[LogDirectory]:
    """The directory, to look at; any number of processes may, beside one that writes."""
    _check_readable(path)
    from ..client.directory import LogDirectory

    with _denied(path), LogDirectory(path) as log:
        yield log


@contextlib.contextmanager
def opened_to_write(
    path: Path,
    *,
    adopt: bool = False,
    create: bool = False,
    durability: str = "os",
    config: Mapping[str, object] | None = None,
) -> Iterator[Log]:
    """The directory, as its one writer; with ``create`` it is made if it is not there."""
    is_new = create and (not path.exists() or (path.is_dir() and not any(path.iterdir())))
    if not is_new:
        _check_readable(path)
    from ..client.client import Log

    with _denied(path):
        try:
            log = Log(path, adopt=adopt, durability=durability, config=config)
        except DirectoryLockedError as error:
            raise Misuse(_held(path, error)) from error
        except InvalidRequestError as error:
            if (path / METADATA_FILE).exists() or adopt:
                raise
            raise Misuse(
                f"{click.format_filename(path)} was written by a Kafka broker, which may go on with it. "
                "Commands that only look may be used on it as it is; --adopt takes it over for good."
            ) from error
    with log:
        yield log


def _held(path: Path, error: DirectoryLockedError) -> str:
    holder = error.args[0].rpartition(" is held by ")[2] if error.args else "another process"
    return (
        f"{click.format_filename(path)} is in use by {holder.replace('process ', 'pid ')}, and has one writer at a "
        "time. Stop that one first; commands that only look may be used meanwhile."
    )


@contextlib.contextmanager
def _denied(path: Path) -> Iterator[None]:
    """A right that is missing somewhere in the directory, as a sentence."""
    try:
        yield
    except PermissionError as error:
        place = click.format_filename(error.filename or path)
        raise Misuse(
            f"{place}: permission denied. Run as the owner of the directory, or ask for the right to use it."
        ) from error
    except OncelogError as error:
        if isinstance(error.__cause__, PermissionError):
            place = click.format_filename(error.__cause__.filename or path)
            raise Misuse(
                f"{place}: permission denied. Run as the owner of the directory, or ask for the right to write it."
            ) from error
        raise


# ---------------------------------------------------------------- completion


def complete_topic(
    ctx: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem | str]:
    """Topics of the directory that was named before, or by ONCELOG_DATA."""
    path = _named(ctx)
    if path is None or not path.is_dir():
        return []
    names = {
        directory.name.rpartition("-")[0]
        for directory in path.glob(f"{incomplete}*-*")
        if directory.name.rpartition("-")[2].isdigit()
    }
    return [name for name in sorted(names) if name.startswith(incomplete)]


def complete_group(
    ctx: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem | str]:
    """Groups of the directory that was named before, or by ONCELOG_DATA."""
    path = _named(ctx)
    if path is None or refusal(path) is not None:
        return []
    with contextlib.suppress(OncelogError, OSError), opened_to_read(path) as log:
        names = [group.group_id for group in log.admin().list_consumer_groups()]
        return [name for name in names if name.startswith(incomplete)]
    return []


def _named(ctx: click.Context) -> Path | None:
    given = ctx.params.get("data") or os.environ.get("ONCELOG_DATA")
    return Path(given) if given else None
