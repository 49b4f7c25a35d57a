"""The README's picture: records per second in and out of Python, through Spark, and the price of a commit."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

from .document import LIMIT, OURS, PEER, number
from .glance import WIDER, panels

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .document import Document
    from .glance import Bar, Panel

COLORS: Final = {OURS: "#0b7a75", PEER: "#b9bec7", LIMIT: "#e3b23c"}
NAMES: Final = {OURS: "oncelog", PEER: "others", LIMIT: "limit of the machine"}
INK: Final = "#22262e"
QUIET: Final = "#6b7280"
WIDTH: Final = 11.0  # inches
COLUMN: Final = WIDTH / 2
LABELS: Final = 2.5  # room for the names of the bars
BAR: Final = 0.29
HEAD: Final = 0.62
CAPTION_COLUMNS: Final = 190


def draw(path: Path, document: Document) -> None:
    """Writes the picture; raises ImportError without matplotlib, LookupError with nothing to draw."""
    import matplotlib as mpl

    found = panels(document)
    if not found:
        raise LookupError("nothing was measured that the picture shows")
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = [found[at : at + 2] for at in range(0, len(found), 2)]
    caption = textwrap.fill(_caption(document, found), CAPTION_COLUMNS)
    foot = 0.25 + 0.145 * (caption.count("\n") + 1)
    heights = [HEAD + BAR * max(len(bars) for _, bars in row) for row in rows]
    height = 0.5 + sum(heights) + foot
    with mpl.rc_context({"font.family": "DejaVu Sans", "font.size": 9.5, "text.color": INK}):
        figure = plt.figure(figsize=(WIDTH, height), dpi=150)
        _heading(figure, height)
        figure.text(0.15 / WIDTH, 0.12 / height, caption, fontsize=7.2, color=QUIET, va="bottom")
        top = height - 0.5
        for row, inches in zip(rows, heights, strict=True):
            for column, (panel, bars) in enumerate(row):
                tall = BAR * len(bars)
                left = column * COLUMN + LABELS
                place = (
                    left / WIDTH,
                    (top - 0.42 - tall) / height,
                    (COLUMN - LABELS - 0.75) / WIDTH,
                    tall / height,
                )
                _bars(figure.add_axes(place), panel, bars, column * COLUMN + 0.15)
            top -= inches
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, facecolor="white")
        plt.close(figure)


def _heading(figure: Any, height: float) -> None:
    title = "oncelog: Kafka's transactional log in a Python process"
    figure.text(
        0.15 / WIDTH, 1 - 0.16 / height, title, fontsize=13, fontweight="bold", va="top"
    )  # fmt: skip
    at = WIDTH - 0.15
    for role in (LIMIT, PEER, OURS):
        text = figure.text(at / WIDTH, 1 - 0.2 / height, NAMES[role], va="top", ha="right",
                           fontsize=9)  # fmt: skip
        wide = text.get_window_extent().width / figure.dpi
        figure.text((at - wide - 0.05) / WIDTH, 1 - 0.2 / height, "■", va="top", ha="right",
                    color=COLORS[role], fontsize=10)  # fmt: skip
        at -= wide + 0.45


def _bars(axis: Any, panel: Panel, bars: Sequence[Bar], left: float) -> None:
    edge = max(bar.value for bar in bars)
    for row, bar in enumerate(bars):
        axis.barh(row, bar.value, color=COLORS[bar.role], height=0.7)
        axis.text(bar.value + edge * 0.015, row, number(bar.value), va="center", fontsize=9,
                  fontweight="bold" if bar.role == OURS else "normal")  # fmt: skip
    axis.set_yticks(range(len(bars)), [bar.label for bar in bars])
    axis.set_ylim(len(bars) - 0.5, -0.5)
    axis.set_xlim(0, edge)
    axis.set_xticks([])
    axis.tick_params(axis="y", length=0, labelcolor=INK)
    for side in ("top", "right", "bottom"):
        axis.spines[side].set_visible(False)
    axis.spines["left"].set_color("#d0d5dc")
    figure = axis.figure
    above = axis.get_position().y1 + 0.09 / figure.get_size_inches()[1]
    better = "more is better" if panel.more_is_better else "less is better"
    title = figure.text(left / WIDTH, above, panel.title, fontsize=10.5, fontweight="bold")
    wide = title.get_window_extent().width / figure.dpi
    figure.text((left + wide + 0.1) / WIDTH, above, f"{panel.unit}, {better}", fontsize=8.5,
                color=QUIET)  # fmt: skip


def _caption(document: Document, found: Sequence[tuple[Panel, Sequence[Bar]]]) -> str:
    machine, versions = document.about["machine"], document.about["versions"]
    told = " ".join(f"{panel.title}: {panel.caption}" for panel, _ in found)
    if any(panel.is_wider(document) for panel, _ in found):
        told = f"{told} {WIDER}"
    smoke = "A SMOKE RUN ON TINY DATA: THESE ARE NO MEASUREMENTS. " if document.is_quick else ""
    return (
        f"{smoke}{told} Best of interleaved rounds in one run, warm cache. {machine['cpu']}, {machine['cores']} cores, "
        f"Python {versions['python']}, oncelog {versions.get('oncelog', '')}. Run it yourself: make bench."
    )
