"""Builds docs/reference/ from the code: the commands as click knows them, the errors as they are raised, the options.

Run it after a change of those; a test compares the files with what this would write.
"""  # noqa: INP001

from __future__ import annotations

import inspect
from pathlib import Path

import click

from oncelog.base import errors
from oncelog.base.config import LEFT_OUT, OWNERS, WITHOUT_EFFECT, Kind, Option
from oncelog.base.errors import OncelogError
from oncelog.cli.main import cli

REFERENCE = Path(__file__).resolve().parent / "reference"
WIDTH = 100
MADE = "Made by `python docs/build_reference.py`.\n"


def help_of(command: click.Command, name: str, parent: click.Context | None = None) -> list[str]:
    """The help of a command and of those below it, one section each."""
    context = click.Context(
        command,
        info_name=name,
        parent=parent,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        **command.context_settings,
    )
    parts = [f"## {context.command_path}", f"```text\n{command.get_help(context)}\n```"]
    if isinstance(command, click.Group):
        for child_name in command.list_commands(context):
            child = command.get_command(context, child_name)
            if child is not None:
                parts += help_of(child, child_name, context)
    return parts


def build_cli() -> str:
    """reference/cli.md"""
    sections = [MADE + CLI_NOTES.rstrip(), *help_of(cli, "oncelog"), INSPECT_JSON.strip()]
    return "\n\n".join(["# Commands", *sections]) + "\n"


CLI_NOTES = """
`python -m oncelog` is the same as `oncelog`. Data goes to stdout, remarks and errors go to stderr.

| exit code | means |
|---|---|
| 0 | all that was asked for is sound |
| 1 | damage was found, or a format that cannot be read; stderr tells file, position and what to do |
| 2 | the command was misused: unknown option, no such file, a file of another kind, no permission |
| 130, 141 | interrupted; the reader of the pipe went away |
"""

INSPECT_JSON = """
## The JSON of oncelog inspect

### Batches

One document for each file, written as the file is read, one batch a line:
`{"file", "size", "batches": [...], "summary": {...}, "damage": [...]}`. Several files give several documents, one
after another, as `jq` takes them. Names are those of Kafka's dump tool, but for four that it spells `CreateTime`,
`LogAppendTime`, `compresscodec` and `isvalid`.

| of a batch | |
|---|---|
| `baseOffset` `lastOffset` `count` | offsets, and how many records are left |
| `baseSequence` `lastSequence` `producerId` `producerEpoch` | -1 without idempotence |
| `partitionLeaderEpoch` `isTransactional` `isControl` | |
| `deleteHorizonMs` | null where compaction has set none |
| `position` `size` `magic` `compression` `crc` | where it lies and how it is stored |
| `createTime` or `logAppendTime` | milliseconds, the largest of the batch; the name tells whose clock |
| `isValid` | whether the checksum holds; null with `--no-crc` |
| `control` | of control batches that have a record: `type`, and of markers `coordinatorEpoch` |
| `records` | with `--records` |

| of a record | |
|---|---|
| `offset` `createTime` or `logAppendTime` `sequence` | |
| `keySize` `valueSize` | -1 for null |
| `headerKeys` | |
| `control` | in control batches |
| `key` `value` `headers` | with `--values`: text or null; bytes that are not UTF-8 stand under `keyBase64` and `valueBase64` |

`summary` covers all batches of the wanted offsets, shown or not: `batches` `records` `bytes` `firstOffset` `lastOffset`
`missingOffsets` (gaps, as compaction leaves them) `minTimestamp` `maxTimestamp` `codecs` `transactionalBatches`
`controlBatches` `crcChecked` `damaged`. `damage` holds up to ten of the damaged places: `error` `what` `position`
`baseOffset` `record` `advice`; null where unknown.

### Everything else

`{"file", "size", "kind", "entries": [...], "summary": {...}, "damage": [...]}`, one entry a line. `summary` has `entries`
(all of them, shown or not) and `damaged`; `damage` holds up to ten places: `what` `position` `advice`.

| kind | an entry has | the summary also has |
|---|---|---|
| `offset index` | `offset` `position` `isValid` | `zeroEntries` `checked` |
| `time index` | `timestamp` `offset` `isValid` | the same |
| `transaction index` | `version` `producerId` `firstOffset` `lastOffset` `lastStableOffset` `isValid` | the same |
| `producer snapshot` | `producerId` `producerEpoch` `coordinatorEpoch` `currentTxnFirstOffset` `lastTimestamp` `firstSequence` `lastSequence` `lastOffset` `offsetDelta` `timestamp`; null where there is none | |
| `recovery points` `high watermarks` `log starts` `cleaner offsets` | `topic` `partition` `offset` | |
| `leader epochs` | `epoch` `startOffset` | |
| `partition metadata` `directory properties` `clean shutdown marker` | `name` `value` | |
| `data directory` `partition` | `partition` `logStartOffset` `logEndOffset` `lastStableOffset` `segments` `bytes` `producers` `openTransactions` `abortedTransactions` `state` | `isClean` |

`isValid` says whether an entry agrees with the log beside it; null with `--no-check` or where there is no log.

## The JSON of oncelog verify

One document: `path` `isSound` `isClean` (null where no marker can say) `partitions` `segments` `batches` `records` `bytes`
`damaged` (how many faults) `damagedFiles`, and the lists `damage` and `notes` with `file` (from `path` on), `position` (in
the file), `offset`, `what` and `advice`; null where there is none. Of one file up to five faults are listed, all are
counted.
"""

ERRORS_NOTES = """
All derive from `oncelog.base.errors.OncelogError`. `code` is Kafka's; `remedy` tells what to do next, and
the flags that Kafka's clients know derive from it: `retriable` (call again), `txn_requires_abort` (abort
the transaction), `fatal` (open a new producer, or stop and verify the log). Errors about a batch carry
`file`, `position`, `base_offset` and `record`, which are empty or -1 where unknown.
"""


def build_errors() -> str:
    """reference/errors.md"""
    members = [
        member
        for _, member in inspect.getmembers(errors, inspect.isclass)
        if issubclass(member, OncelogError)
    ]
    rows = [
        f"| `{member.__name__}` | {member.code} | {member.remedy.value} "
        f"| {(inspect.getdoc(member) or '').partition(chr(10))[0]} "
        f"| {member.advice + '.' if member.advice else ''} |"
        for member in sorted(members, key=lambda member: (member.code, len(member.__mro__)))
    ]
    head = "| error | code | remedy | means | advice |\n|---|---|---|---|---|"
    return "\n".join(["# Errors", "", MADE + ERRORS_NOTES, head, *rows, ""])


OPTIONS_NOTES = """
Names, types, defaults and limits are those of Apache Kafka 4.3; a test compares them with Kafka's own. Two defaults
are ours: a consumer's `isolation.level`, and `node.id`, which Kafka has none for. An option is given by its
name with dots (`{"segment.bytes": 1 << 20}`) or as a keyword argument (`segment_bytes=1 << 20`), its value as Python's or
as Kafka's text (`"true"`, `"delete,compact"`). An unknown name or a value outside the limits raises `InvalidConfigError`.
"""
TITLES = {
    "topic": "Topics",
    "broker": "Brokers",
    "producer": "Producers",
    "consumer": "Consumers",
}


def default_of(option: Option) -> str:
    """A default as a table shows it; the largest numbers mean that there is no limit."""
    if option.default is None:
        return "none"
    if option.kind is Kind.DOUBLE and option.default > 1:
        return "no limit"
    if option.kind in (Kind.INT, Kind.LONG) and option.default in (2**31 - 1, 2**63 - 1):
        return "no limit"
    text = option.text(option.default)
    return f"`{text}`" if text else "empty"


def limits_of(option: Option) -> str:
    """The limits, without those that the type has by itself."""
    if option.kind not in (Kind.SHORT, Kind.INT, Kind.LONG):
        return option.limits
    low = "" if option.minimum is None else f"from {option.minimum}"
    high = "" if option.maximum in (None, 2**31 - 1) else f"to {option.maximum}"
    also = ", ".join(f"or {value}" for value in option.also)
    return " ".join(part for part in (low, high, also) if part)


def build_options() -> str:
    """reference/options.md"""
    parts = ["# Options", MADE + OPTIONS_NOTES.rstrip()]
    for owner, table in OWNERS.items():
        rows = [
            f"| `{option.name}` | {option.kind.value} | {default_of(option)} | {limits_of(option)} | {option.doc} |"
            for option in sorted(table.values(), key=lambda option: option.name)
        ]
        head = "| option | type | default | allowed | means |\n|---|---|---|---|---|"
        parts += [f"## {TITLES[owner]}", "\n".join([head, *rows])]
    reasons = [
        f"| `{name}` | {owner} | {reason} |"
        for owner, names in WITHOUT_EFFECT.items()
        for name, reason in sorted(names.items())
    ]
    head = "| option | of a | accepted, no effect here because |\n|---|---|---|"
    parts += ["## Without effect", "\n".join([head, *reasons])]
    reasons = [f"| `{name}` | {reason} |" for name, reason in sorted(LEFT_OUT.items())]
    head = "| option of Kafka | why it is refused |\n|---|---|"
    parts += ["## Without a meaning here", "\n".join([head, *reasons])]
    return "\n\n".join(parts) + "\n"


DOCUMENTS = {"cli.md": build_cli, "errors.md": build_errors, "options.md": build_options}

if __name__ == "__main__":
    for name, build in DOCUMENTS.items():
        (REFERENCE / name).write_text(build())
