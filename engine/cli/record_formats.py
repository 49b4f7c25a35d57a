"""Where consumed records go: lines on stdout, or a file of Arrow or Parquet.

A sink is given what a read returns, and takes as many of its records as it is told. Lines are made of some thousand
records at a time, and joined; files are written from Arrow batches, without a Python object per record.
"""

from __future__ import annotations

import abc
import base64
import sys
from itertools import islice
from json.encoder import encode_basestring as _quoted
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import click

from ..base.errors import OncelogError
from .output import plural, talk
from .progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

    from .._native.records import Record

CHUNK: Final = 8192  # records that are joined at a time


class Records(Protocol):
    """What a read returns, and what was polled."""

    def __iter__(self) -> Iterator[Record]: ...
    def to_batches(self) -> Iterable[Any]: ...


class Layout(NamedTuple):
    """The parts of a line of text, in their order."""

    timestamp: bool = False
    partition: bool = False
    offset: bool = False
    headers: bool = False
    key: bool = False
    value: bool = True
    separator: bytes = b"\t"
    line_end: bytes = b"\n"
    null: bytes = b"null"


class Sink(abc.ABC):
    """Takes records and counts them."""

    wants_arrow = False

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Sink:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(is_whole=error is None)

    def expect(self, count: int) -> None:  # noqa: B027
        """About so many are to come, for who shows how far it is."""

    @abc.abstractmethod
    def take(self, found: Records, limit: int | None) -> int:
        """Writes up to ``limit`` records; returns how many they were."""

    def close(self, *, is_whole: bool) -> None:  # noqa: B027
        """No more come; if not all is there that was to come, nothing may look as if it were."""

    def tell(self) -> None:
        """Says how many there were, to a person."""
        if sys.stderr.isatty():
            talk(f"Processed a total of {plural(self.count, 'message')}.")


class LineSink(Sink):
    """Lines on stdout."""

    def __init__(self, line: Callable[[Sequence[Record]], bytes]) -> None:
        super().__init__()
        self._line = line
        self._out = sys.stdout.buffer

    def take(self, found: Records, limit: int | None) -> int:
        records = iter(found) if limit is None else islice(found, limit)
        taken = 0
        while chunk := list(islice(records, CHUNK)):
            self._out.write(self._line(chunk))
            taken += len(chunk)
        self._out.flush()
        self.count += taken
        return taken


class FileSink(Sink):
    """A file of Arrow or Parquet, which appears under its name when it is whole."""

    wants_arrow = True

    def __init__(self, form: str, path: Path) -> None:
        super().__init__()
        self._path = path
        self._partial = path.with_name(f"{path.name}.part")
        self._form = form
        self._writer: Any = None
        self._progress = Progress(click.format_filename(path.name))

    def expect(self, count: int) -> None:
        self._progress.total = count

    def take(self, found: Records, limit: int | None) -> int:
        taken = 0
        for batch in found.to_batches():
            rows = batch if limit is None else batch.slice(0, limit - taken)
            if not rows.num_rows:
                break
            self._open(rows.schema).write_batch(rows)
            taken += rows.num_rows
            self._progress.advance(rows.num_rows)
        self.count += taken
        return taken

    def _open(self, schema: Any) -> Any:
        if self._writer is None:
            from .record_files import open_writer

            self._writer = open_writer(self._form, self._partial, schema)
        return self._writer

    def close(self, *, is_whole: bool) -> None:
        self._progress.close()
        if is_whole:
            from ..client.arrow import full_schema

            self._open(full_schema())
        if self._writer is not None:
            self._writer.close()
            if is_whole:
                self._partial.replace(self._path)
            else:
                self._partial.unlink(missing_ok=True)

    def tell(self) -> None:
        talk(f"{plural(self.count, 'record')} in {click.format_filename(self._path)}.")


def file_sink(form: str, path: Path) -> Sink:
    """For ``--format arrow`` and ``parquet``."""
    return FileSink(form, path)


def line_sink(topic: str, form: str | None, layout: Layout) -> Sink:
    """For everything that is printed."""
    from .state_formats import BY_TOPIC, FORMATS

    if form is None and topic in BY_TOPIC and layout == Layout():
        return LineSink(_state_lines(BY_TOPIC[topic]))
    if form in FORMATS:
        return LineSink(_state_lines(FORMATS[form]))
    if form == "json":
        return LineSink(json_lines)
    if form == "hex":
        return LineSink(hex_lines)
    return LineSink(text_lines(layout))


# ---------------------------------------------------------------- lines


def text_lines(layout: Layout) -> Callable[[Sequence[Record]], bytes]:
    """Lines as Kafka's console consumer prints them."""
    null, end = layout.null, layout.line_end

    def column(values: list[bytes | None]) -> list[bytes]:
        return [null if value is None else value for value in values]

    def lines(records: Sequence[Record]) -> bytes:
        parts: list[list[bytes]] = []
        if layout.timestamp:
            parts.append([_timestamp(record) for record in records])
        if layout.partition:
            parts.append([b"Partition:%d" % record.partition for record in records])
        if layout.offset:
            parts.append([b"Offset:%d" % record.offset for record in records])
        if layout.headers:
            parts.append([_headers(record, null) for record in records])
        if layout.key:
            parts.append(column([record.key for record in records]))
        if layout.value:
            parts.append(column([record.value for record in records]))
        if len(parts) == 1:
            return end.join(parts[0]) + end
        return end.join(map(layout.separator.join, zip(*parts, strict=True))) + end

    return lines


def _timestamp(record: Record) -> bytes:
    if record.timestamp < 0:
        return b"NO_TIMESTAMP"
    name = b"LogAppendTime" if record.timestamp_type else b"CreateTime"
    return b"%s:%d" % (name, record.timestamp)


def _headers(record: Record, null: bytes) -> bytes:
    if not record.headers:
        return b"NO_HEADERS"
    return b",".join(
        b"%s:%s" % (name.encode(), null if value is None else value)
        for name, value in record.headers
    )


def hex_lines(records: Sequence[Record]) -> bytes:
    """Partition, offset, key and value; for bytes that are no text."""
    rows = (
        f"{record.partition}\t{record.offset}"
        f"\t{'null' if record.key is None else record.key.hex()}"
        f"\t{'null' if record.value is None else record.value.hex()}\n"
        for record in records
    )
    return "".join(rows).encode()


def json_lines(records: Sequence[Record]) -> bytes:
    """One document a line; what is not UTF-8 is in base64, under a name that says so."""
    return "".join(map(_json_line, records)).encode()


def _json_line(record: Record) -> str:
    """The members are put together by hand: a dictionary and its encoder take five times as long."""
    kind = "LogAppendTime" if record.timestamp_type else "CreateTime"
    headers = ", ".join(
        f'{{"key": {_quoted(name)}, {_member("value", value)}}}' for name, value in record.headers
    )
    return (
        f'{{"topic": {_quoted(record.topic or "")}, "partition": {record.partition}, '
        f'"offset": {record.offset}, "timestamp": {record.timestamp}, "timestampType": "{kind}", '
        f'{_member("key", record.key)}, {_member("value", record.value)}, "headers": [{headers}]}}\n'
    )


def _member(name: str, data: bytes | None) -> str:
    if data is None:
        return f'"{name}": null'
    try:
        return f'"{name}": {_quoted(data.decode())}'
    except UnicodeDecodeError:
        return f'"{name}Base64": "{base64.b64encode(data).decode()}"'


def _state_lines(
    form: Callable[[bytes | None, bytes | None], str | None],
) -> Callable[[Sequence[Record]], bytes]:
    def shown(record: Record) -> str | None:
        try:
            return form(record.key, record.value)
        except OncelogError as error:
            talk(f"{record.topic}-{record.partition}, offset {record.offset}: {error}.")
            return None

    def lines(records: Sequence[Record]) -> bytes:
        return "".join(f"{line}\n" for record in records if (line := shown(record))).encode()

    return lines
