"""``oncelog repair``: what recovery would cut and make anew, and doing it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .data import json_option
from .output import EXIT_DAMAGED, Failure, Misuse, plural, talk

if TYPE_CHECKING:
    from ..partition.repair import Repair


@click.command(short_help="Say what recovery would do, or do it.")
@click.argument("path", type=click.Path(path_type=Path), metavar="DIR")
@click.option(
    "--dry-run", "dry_run", is_flag=True, help="Only say what would be done; the default."
)
@click.option("--execute", is_flag=True, help="Do it.")
@click.option(
    "--lose-batches", is_flag=True, help="Cut a log even where sound batches lie behind the damage."
)
@json_option
def repair(path: Path, *, dry_run: bool, execute: bool, lose_batches: bool, as_json: bool) -> None:
    """Repair DIR, a data directory of ours or of a stopped Kafka broker, as recovery after a crash does.

    \b
    Examples
      oncelog repair data
      oncelog repair data --execute

    No checkpoint is believed: every batch is proven. A log ends before its first bad batch; indexes, transaction
    indexes and producer snapshots that are wrong or missing are made anew. What lies behind a bad batch goes, too:
    if there are sound batches among it, --execute refuses unless --lose-batches is given. Read them first with
    'oncelog consume', or keep a copy of the files.

    Exit code 0: sound, or repaired; 1: --dry-run found something to repair; 2: it cannot be done.
    """
    from ..partition.verify import verify
    from .verify import refusal

    if dry_run and execute:
        raise click.UsageError("Either --dry-run or --execute.")
    sentence = refusal(path)
    if sentence is not None:
        raise Misuse(sentence)
    if not path.is_dir():
        raise Misuse(
            f"{click.format_filename(path)} is a file: name the data directory that it is in."
        )
    _check_unused(path)
    damaged = frozenset(verify(str(path)).damaged_files)
    plan = _repaired(path, damaged, is_real=False)
    lost = sum(one.cut.sound_batches for one in plan if one.cut is not None)
    if execute and lost and not lose_batches:
        _tell(path, plan, "would be", as_json=False)
        raise Misuse(
            f"{plural(lost, 'sound batch', 'sound batches')} would be lost: --lose-batches allows it."
        )
    needed = any(one.is_needed for one in plan)
    if not execute or not needed:  # what is sound stays as it is, to the byte
        _tell(path, plan, "would be", as_json=as_json)
        if needed and not as_json:
            talk("Nothing was changed: --execute does it.")
        click.get_current_context().exit(EXIT_DAMAGED if needed else 0)
    done = _repaired(path, damaged, is_real=True)
    _tell(path, done, "was", as_json=as_json)
    left = verify(str(path))
    if not left.is_sound:
        first = left.damage[0]
        raise Failure(f"It is still not sound: {first.file}: {first.what}. {first.advice}.")


def _check_unused(path: Path) -> None:
    """What is being written looks torn: only a directory that nobody holds can be judged."""
    from ..partition.published import find_published

    live = find_published(str(path))
    if live is not None and live.is_live:
        raise Misuse(
            f"{click.format_filename(path)} is in use by another process: stop that one first."
        )


def _repaired(path: Path, damaged: frozenset[str], *, is_real: bool) -> list[Repair]:
    from ..base.clock import now_ms
    from ..base.disk import Disk
    from ..base.errors import DirectoryLockedError
    from ..partition.repair import repair as recover

    try:
        return list(recover(str(path), Disk() if is_real else None, now_ms=now_ms, damaged=damaged))
    except DirectoryLockedError as error:
        raise Misuse(f"{error}.") from error


def _tell(path: Path, found: list[Repair], verb: str, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"path": str(path), "partitions": [_fields(one) for one in found]}))
        return
    needed = [one for one in found if one.is_needed]
    for one in needed:
        if one.cut is not None:
            click.echo(
                f"{one.key.directory}: {verb} cut to end before offset {one.log_end_offset:,}"
            )
            click.echo(f"  {one.cut.file} at {one.cut.position}: {one.cut.why}")
            rest = f", {plural(one.cut.sound_batches, 'sound batch', 'sound batches')} among them"
            click.echo(
                f"  {plural(one.cut.bytes, 'byte')} {'go' if verb != 'was' else 'went'}"
                f"{rest if one.cut.sound_batches else ', no sound batch among them'}"
            )
        for file in one.rebuilt:
            click.echo(f"{one.key.directory}: {file} {verb} made anew")
    noun = plural(len(found), "partition")
    click.echo(
        f"{noun}: {plural(len(needed), 'one', 'of them') if needed else 'nothing'} to repair"
        if verb != "was"
        else f"{noun}: {len(needed)} repaired"
    )


def _fields(one: Repair) -> dict[str, Any]:
    return {
        "topic": one.key.topic,
        "partition": one.key.partition,
        "logEndOffset": one.log_end_offset,
        "cut": None if one.cut is None else one.cut._asdict(),
        "rebuilt": list(one.rebuilt),
    }
