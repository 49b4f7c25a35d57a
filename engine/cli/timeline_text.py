"""A timeline on a terminal: one lane for each producer along the offsets."""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

import click
import numpy as np

from ..partition.timeline import Outcome
from .output import plural
from .timeline_cells import Scale, cells_of, lanes_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ..partition.timeline import Timeline
    from .timeline_cells import Cells

LABEL_WIDTH_MAX: Final = 28
COLUMNS_MIN: Final = 20
# A marker hides the records around it, so it is shown among records only where it hides none.
MARKER_OFFSETS_MAX: Final = 1


class Glyphs(NamedTuple):
    """How a cell looks; each kind has its own shape, so that a picture without colours is as clear."""

    plain: str
    committed: str
    aborted: str
    open: str
    mixed: str
    waits: str
    stable: str
    arrow: str


UNICODE: Final = Glyphs("▬", "█", "░", "▒", "▚", "─", "┊", "▼")
ASCII: Final = Glyphs("=", "#", "x", "o", "%", "-", ":", "v")
COLOURS: Final = {
    "plain": "cyan",
    "committed": "green",
    "aborted": "red",
    "open": "yellow",
    "mixed": "magenta",
    "waits": "bright_black",
    "stable": "bright_black",
}


def glyphs() -> Glyphs:
    """What the output can show."""
    try:
        "".join(UNICODE).encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def summary(timeline: Timeline) -> str:
    """What a timeline adds up to, in two lines."""
    outcomes = timeline.transactions["outcome"]
    counts = ", ".join(
        f"{int((outcomes == outcome).sum()):,} {outcome.label}"
        for outcome in (Outcome.COMMITTED, Outcome.ABORTED, Outcome.OPEN)
    )
    return (
        f"{timeline.key.directory}: offsets {timeline.start_offset:,} to {timeline.end_offset:,}, "
        f"last stable offset {timeline.last_stable_offset:,}, high watermark {timeline.high_watermark:,}\n"
        f"{plural(len(timeline.producers), 'producer')}, "
        f"{plural(len(timeline.transactions), 'transaction')}: {counts}"
    )


def write_text(timeline: Timeline, names: Mapping[int, str], *, width: int, lanes_max: int) -> None:
    """The picture on stdout, ``width`` characters wide."""
    click.echo(summary(timeline))
    lanes = lanes_of(timeline, names, lanes_max)
    if not lanes.rows or timeline.end_offset <= timeline.start_offset:
        click.echo("no batches")
        return
    look = glyphs()
    label_width = min(max(len(lane.label) for lane in lanes.rows), LABEL_WIDTH_MAX)
    columns = max(width - label_width - 2, COLUMNS_MIN)
    offsets = timeline.end_offset - timeline.start_offset
    if offsets < columns:  # a whole number of columns for each offset
        columns = columns // offsets * offsets
    scale = Scale(timeline.start_offset, timeline.end_offset, columns)
    cells = cells_of(timeline, lanes, scale)
    margin = " " * (label_width + 2)
    click.echo()
    for line in _ruler(timeline, scale, look):
        click.echo(margin + line)
    stable = scale.column_of(timeline.last_stable_offset)
    has_stable = scale.start <= timeline.last_stable_offset < scale.end
    for number, lane in enumerate(lanes.rows):
        kinds = _kinds(cells, number, scale)
        if has_stable and kinds[stable] == "":
            kinds[stable] = "stable"
        click.echo(f"{_cut(lane.label, label_width):{label_width}}  {_styled(kinds, look)}")
    click.echo()
    click.echo(_legend(scale, look))


def _cut(label: str, width: int) -> str:
    return label if len(label) <= width else f"{label[: width - 1]}…"


def _kinds(cells: Cells, lane: int, scale: Scale) -> list[str]:
    """What to show in each column of a lane; empty for nothing."""
    runs = cells.runs[:, lane] > 0
    commits, aborts = cells.commits[lane], cells.aborts[lane]
    has_records = runs.any(axis=0)
    shows_marker: NDArray[np.bool_] = (commits | aborts) & (
        ~has_records | (scale.offsets_per_column <= MARKER_OFFSETS_MAX)
    )
    kinds = np.select(
        [
            shows_marker & aborts,
            shows_marker & commits,
            runs[Outcome.OPEN],
            runs[Outcome.ABORTED] & runs[Outcome.COMMITTED],
            runs[Outcome.ABORTED],
            runs[Outcome.COMMITTED],
            runs[Outcome.PLAIN],
            cells.waits[lane],
        ],
        ["A", "C", "open", "mixed", "aborted", "committed", "plain", "waits"],
        "",
    )
    found: list[str] = kinds.tolist()
    return found


def _styled(kinds: list[str], look: Glyphs) -> str:
    """Characters with their colours, one escape for each stretch of the same kind."""
    parts = []
    for kind, group in itertools.groupby(kinds):
        count = len(list(group))
        if not kind:
            parts.append(" " * count)
        elif kind in ("A", "C"):
            parts.append(click.style(kind * count, fg="red" if kind == "A" else "green", bold=True))
        else:
            parts.append(click.style(getattr(look, kind) * count, fg=COLOURS[kind]))
    return "".join(parts).rstrip()


def round_step(distance: float, steps_max: int) -> int:
    """The smallest of 1, 2, 5, 10, 20, … that divides a distance into at most so many steps."""
    step = 1
    while distance / step > steps_max:
        leading = int(str(step)[0])
        step = step // leading * {1: 2, 2: 5, 5: 10}[leading]
    return step


def _ruler(timeline: Timeline, scale: Scale, look: Glyphs) -> list[str]:
    """Offsets, and below them where the last stable offset and the high watermark are."""
    ruler = [" "] * scale.columns
    label_room = len(f"{scale.end:,}") + 3
    step = round_step(scale.end - scale.start, max(scale.columns // label_room, 1))
    for offset in range(-(-scale.start // step) * step, scale.end, step):
        at, text = scale.column_of(offset), f"{offset:,}"
        if at + len(text) <= scale.columns:
            ruler[at : at + len(text)] = text
    lines = ["".join(ruler).rstrip()]
    stable, end = timeline.last_stable_offset, timeline.high_watermark
    if scale.start <= stable < scale.end:
        at = scale.column_of(stable)
        lines.append(_pointing("last stable offset", at, look))
    if scale.end == end:
        text = "high watermark" if stable < end else "high watermark, all stable"
        line = _pointing(text, scale.columns - 1, look)
        if len(lines) > 1 and len(lines[1]) < len(line) - len(text) - 2:
            lines[1] += line[len(lines[1]) :]  # both fit into one line
        else:
            lines.insert(1, line)
    return lines


def _pointing(text: str, column: int, look: Glyphs) -> str:
    """A text that points down at a column, from the left if there is room."""
    if column > len(text):
        return f"{text} {look.arrow}".rjust(column + 1)
    return " " * column + f"{look.arrow} {text}"


def _legend(scale: Scale, look: Glyphs) -> str:
    words = {
        "committed": "committed",
        "aborted": "aborted",
        "mixed": "both",
        "open": "open",
        "plain": "no transaction",
        "waits": "waits for its end",
    }
    parts = [
        f"{click.style(getattr(look, kind), fg=COLOURS[kind])} {text}"
        for kind, text in words.items()
    ]
    parts += [f"{click.style('C', fg='green')} {click.style('A', fg='red')} markers"]
    per = scale.offsets_per_column
    text = f"a column is {per:,.1f} offsets" if per > 1 else f"an offset is {1 / per:.0f} wide"
    return "  ".join([*parts, text])
