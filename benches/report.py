"""A run as one table for the terminal, and what must be known to read it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .document import LIMIT, PEER, missing_lines, number, times

if TYPE_CHECKING:
    from pathlib import Path

    from .document import Document, Line

STYLES = {True: "green", False: "bold red", None: "yellow"}


def _side(line: Line, role: str) -> tuple[Text, Text]:
    """Names with values, and ratios, of all contestants of a role: one line each."""
    names, ratios = Text(), Text()
    chosen = line.among(role)
    for index, one in enumerate(chosen):
        end = "\n" if index + 1 < len(chosen) else ""
        if one.value is None:
            names.append(f"{one.name}: {one.missing}{end}", "dim")
        else:
            names.append(f"{one.name} {number(one.value)}{end}")
        ratios.append(times(one.ratio) + end)
    return names, ratios


def _instructions(line: Line) -> Text:
    """Ours first, then those that were counted beside it."""
    counted = [side for side in line.sides if side.instructions is not None]
    return Text("\n".join(f"{side.name} {number(side.instructions or 0)}" for side in counted))


def table(document: Document) -> Table:
    """A row for each case that ran."""
    sides = (side for line in document.lines for side in line.sides)
    has_instructions = any(side.instructions is not None for side in sides)
    made = Table(
        box=box.SIMPLE_HEAD, title="oncelog benchmarks", title_justify="left", pad_edge=False
    )
    made.add_column("case", no_wrap=True)
    made.add_column("ours", justify="right", style="bold", no_wrap=True)
    made.add_column("median", justify="right", no_wrap=True)
    made.add_column("spread", justify="right", no_wrap=True)
    made.add_column("peer", no_wrap=True)
    made.add_column("ratio", justify="right", no_wrap=True)
    made.add_column("limit", no_wrap=True)
    made.add_column("ours/limit", justify="right", no_wrap=True)
    if has_instructions:
        made.add_column("instructions", no_wrap=True)
    made.add_column("target", no_wrap=True)
    made.add_column("", no_wrap=True)
    lines = [line for line in document.lines if line.ours.value is not None]
    for index, line in enumerate(lines):
        targets, verdicts = Text(), Text()
        for at, promise in enumerate(line.promises):
            end = "\n" if at + 1 < len(line.promises) else ""
            targets.append(str(promise) + end)
            verdicts.append(promise.verdict + end, STYLES[promise.met])
        is_last = index + 1 == len(lines) or lines[index + 1].family != line.family
        ours = line.ours
        assert ours.value is not None
        made.add_row(
            line.title,
            f"{number(ours.value)} {line.unit}",
            "-" if ours.median is None else number(ours.median),
            f"{ours.spread:.0%}",
            *_side(line, PEER),
            *_side(line, LIMIT),
            *([_instructions(line)] if has_instructions else []),
            targets,
            verdicts,
            end_section=is_last,
        )
    return made


def growth_table(document: Document) -> Table:
    """How steep each cost is, beside what was promised."""
    made = Table(box=box.SIMPLE_HEAD, title="How costs grow", title_justify="left", pad_edge=False)
    made.add_column("curve", no_wrap=True)
    made.add_column("from, to", no_wrap=True)
    for name in ("slope", "promised"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("", no_wrap=True)
    words = {True: "met", False: "worse", None: "not measured"}
    for curve in document.growth:
        sizes = [size for size, _ in curve["points"]]
        made.add_row(
            curve["title"],
            f"{min(sizes):,} to {max(sizes):,} {curve['x_label']}",
            f"{curve['slope']:.2f}",
            f"≤ {curve['expected'] + curve['margin']:g}",
            Text(words[curve["met"]], STYLES[curve["met"]]),
        )
    return made


def notes(document: Document) -> list[str]:
    """What must be known to read the table."""
    about = document.about
    machine, versions = about["machine"], about["versions"]
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    kernel = machine.get("crc32c_kernels", ["?"])[0]
    where = (
        f"{machine['cpu']}, {machine['cores']} cores, load {machine['load']:.1f}; "
        f"CRC kernel {kernel}; {named}; seed {about['settings']['seed']}"
    )
    how = (
        "Best of interleaved rounds, warm cache. ratio: how many times faster ours is. "
        "ours/limit: how many times as long ours takes. spread: of the middle half of ours' rounds."
    )
    lines = [where, how]
    noise = sorted(
        line.ours.middle / line.ours.best - 1
        for line in document.lines
        if line.ours.best and line.ours.middle is not None
    )
    if noise:
        lines.append(
            f"Noise: ours' median lies {noise[len(noise) // 2]:.0%} above its best in the middle case, "
            f"{noise[-1]:.0%} in the worst."
        )
    overhead = about.get("ctypes_call_ns")
    if overhead is not None:
        lines.append(
            f"The C floor is called through ctypes, {overhead:.0f} ns a call, not subtracted."
        )
    lines += missing_lines(document)
    if document.promises:
        lines.append(targets_in_one_line(document))
    if document.growth:
        worse = sum(curve["met"] is False for curve in document.growth)
        lines.append(f"Growth: {len(document.growth)} curves, {worse} steeper than promised.")
    return lines


def targets_in_one_line(document: Document) -> str:
    verdicts = [promise.met for _, promise in document.promises]
    met, missed = verdicts.count(True), verdicts.count(False)
    return f"Targets: {met} met, {missed} missed, {len(verdicts) - met - missed} not measured."


def show(document: Document, page: Console) -> None:
    """The table and the notes below it."""
    made = table(document)
    # A cut table is worth less than one that is too wide.
    page.width = max(page.width, Console(width=1000).measure(made).maximum)
    page.print(made)
    if document.growth:
        page.print(growth_table(document))
    for note in notes(document):
        page.print(note, highlight=False, markup=False)


def has_missed(document: Document) -> bool:
    """Whether a target is missed or a cost grows faster than promised."""
    verdicts = [promise.met for _, promise in document.promises]
    return False in verdicts or any(curve["met"] is False for curve in document.growth)


def unwritable(*paths: Path | None) -> str:
    """Why a file could not be written in the end; nothing if all can. To be asked before minutes are spent."""
    for path in paths:
        if path is None:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            return f"{path}: {error.strerror}"
        if path.is_dir():
            return f"{path}: is a directory"
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            return f"{path}: permission denied"
    return ""


def write_pages(document: Document, html: Path | None, png: Path | None, talk: Console) -> bool:
    """Draws what was asked for, and says where it is; whether all of it could be drawn."""
    drawn = True
    if html is not None:
        from . import html_report

        html_report.write(html, document)
        talk.print(f"report: {html}", highlight=False, soft_wrap=True)
    if png is not None:
        from . import picture

        try:
            picture.draw(png, document)
        except ImportError:
            talk.print(
                "no picture: matplotlib is not installed: pip install 'oncelog[plot]'", markup=False
            )
            drawn = False
        except LookupError as error:
            talk.print(f"no picture: {error.args[0]}", markup=False)
            drawn = False
        else:
            talk.print(f"picture: {png}", highlight=False, soft_wrap=True)
    return drawn
