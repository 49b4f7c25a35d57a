"""A timeline as a picture in a file, drawn by matplotlib (``pip install 'oncelog[plot]'``)."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..partition.timeline import Outcome
from .plotting import BACKGROUND, COLOURS, INK, SOFT_INK, pyplot
from .timeline_cells import Scale, cells_of, lanes_of
from .timeline_text import summary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..partition.timeline import Timeline
    from .timeline_cells import Lanes

WIDTH: Final = 12.0  # inches
DOTS: Final = 150  # per inch
# More stretches than this are drawn as an image: nobody could tell them apart as bars.
BARS_MAX: Final = 4000
COLUMNS: Final = 1600
SHARES: Final = 32  # pixels into which a column of an image is divided
BAR_HEIGHT: Final = 0.62


def draw_png(
    timelines: Sequence[Timeline], names: Mapping[int, str], lanes_max: int, kind: str = "png"
) -> bytes:
    """One panel for each partition; the bytes of a PNG or SVG file."""
    plt = pyplot()
    all_lanes = [lanes_of(timeline, names, lanes_max) for timeline in timelines]
    heights = [1.3 + 0.32 * max(len(lanes.rows), 1) for lanes in all_lanes]
    figure, panels = plt.subplots(
        len(timelines),
        1,
        figsize=(WIDTH, sum(heights) + 0.5),
        squeeze=False,
        gridspec_kw={"height_ratios": heights},
        facecolor=BACKGROUND,
    )
    for timeline, lanes, panel in zip(timelines, all_lanes, panels[:, 0], strict=True):
        _draw(panel, timeline, lanes)
    _legend(plt, figure)
    figure.tight_layout(rect=(0, 0.4 / (sum(heights) + 0.5), 1, 1))
    out = io.BytesIO()
    # Without a date and with fixed names inside, the same timeline gives the same bytes.
    with plt.rc_context({"svg.hashsalt": "oncelog"}):
        stamp: dict[str, Any] = {"Date": None} if kind == "svg" else {}
        figure.savefig(out, format=kind, dpi=DOTS, facecolor=BACKGROUND, metadata=stamp)
    plt.close(figure)
    return out.getvalue()


def _draw(panel: Any, timeline: Timeline, lanes: Lanes) -> None:
    start, end = timeline.start_offset, max(timeline.end_offset, timeline.start_offset + 1)
    panel.set_xlim(start, end + (end - start) * 0.004)
    panel.set_ylim(len(lanes.rows) - 0.4, -0.6)
    panel.set_yticks(range(len(lanes.rows)), [lane.label for lane in lanes.rows])
    panel.set_facecolor(BACKGROUND)
    panel.tick_params(colors=INK, length=0, labelsize=9)
    panel.tick_params(axis="x", colors=SOFT_INK, labelsize=8)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    for side in ("top", "right", "left", "bottom"):
        panel.spines[side].set_visible(False)
    for number in range(len(lanes.rows)):
        panel.axhspan(
            number - 0.44, number + 0.44, color="#f1f3f5" if number % 2 else "#f8f9fa", lw=0
        )
    title, detail = summary(timeline).split("\n")
    panel.set_title(title, loc="left", fontsize=10.5, color=INK, fontweight="bold", pad=20)
    panel.text(0, 1.0, detail, transform=panel.transAxes, fontsize=8.5, color=SOFT_INK, va="bottom")
    if len(timeline.runs) <= BARS_MAX:
        _draw_bars(panel, timeline, lanes)
    else:
        _draw_image(panel, timeline, lanes, start, end)
    if start <= timeline.last_stable_offset < end:
        panel.axvspan(
            timeline.last_stable_offset, end, color=COLOURS[Outcome.OPEN], alpha=0.09, lw=0
        )
        _bound(panel, timeline.last_stable_offset, "last stable offset", "right")
    if timeline.high_watermark == end:
        _bound(panel, end, "high watermark", "right")


def _bound(panel: Any, offset: int, text: str, side: str) -> None:
    panel.axvline(offset, color=INK, lw=1.0, ls=(0, (3, 2)))
    panel.annotate(
        f"{text} {offset:,} ",
        (offset, 1.0),
        xycoords=("data", "axes fraction"),
        ha=side,
        va="bottom",
        fontsize=8,
        color=INK,
    )


def _draw_bars(panel: Any, timeline: Timeline, lanes: Lanes) -> None:
    """Each stretch as a bar, over a thin line from its transaction's first offset to its marker."""
    transactions, runs, markers = timeline.transactions, timeline.runs, timeline.markers
    for outcome in Outcome:
        own = transactions[transactions["outcome"] == outcome]
        at = lanes.of(own["producer_id"])
        panel.hlines(
            at, own["first_offset"], own["last_offset"] + 1, COLOURS[outcome], lw=1.6, alpha=0.55
        )
        rows = runs[runs["outcome"] == outcome]
        lane = lanes.of(rows["producer_id"])
        for number in np.unique(lane).tolist():
            bars = rows[lane == number]
            widths = bars["last_offset"] - bars["first_offset"] + 1
            spans = np.column_stack((bars["first_offset"], widths)).tolist()
            panel.broken_barh(
                spans,
                (number - BAR_HEIGHT / 2, BAR_HEIGHT),
                facecolors=COLOURS[outcome],
                edgecolors=BACKGROUND,
                linewidth=0.4,
            )
    for is_commit, shape in ((True, "v"), (False, "X")):
        some = markers[markers["is_commit"] == is_commit]
        panel.scatter(
            some["offset"] + 0.5,
            lanes.of(some["producer_id"]),
            s=26,
            marker=shape,
            color=COLOURS[Outcome.COMMITTED if is_commit else Outcome.ABORTED],
            edgecolors=BACKGROUND,
            linewidths=0.7,
            zorder=5,
            clip_on=False,
        )


def _draw_image(panel: Any, timeline: Timeline, lanes: Lanes, start: int, end: int) -> None:
    """Columns of pixels, each divided by the shares of what lies in it."""
    from matplotlib.colors import to_rgba

    cells = cells_of(timeline, lanes, Scale(start, end, min(COLUMNS, end - start)))
    colours = np.array([to_rgba(COLOURS[outcome]) for outcome in Outcome])
    total = cells.runs.sum(axis=0)
    tops = cells.runs.cumsum(axis=0) / np.maximum(total, 1)  # outcome, lane, column
    levels = (np.arange(SHARES) + 0.5) / SHARES
    for number in range(len(lanes.rows)):
        outcome = (levels[:, None, None] > tops[None, :, number]).sum(axis=1)
        image = colours[np.minimum(outcome, len(Outcome) - 1)]
        image[:, total[number] == 0] = to_rgba(SOFT_INK, 0.0)
        image[SHARES // 2, (total[number] == 0) & cells.waits[number]] = to_rgba(SOFT_INK, 0.5)
        panel.imshow(
            image,
            extent=(start, end, number + BAR_HEIGHT / 2, number - BAR_HEIGHT / 2),
            aspect="auto",
            interpolation="nearest",
            zorder=2,  # above the bands
        )
    panel.set_ylim(len(lanes.rows) - 0.4, -0.6)
    panel.set_xlim(start, end + (end - start) * 0.004)


def _legend(plt: Any, figure: Any) -> None:
    from matplotlib.lines import Line2D

    words = {
        Outcome.COMMITTED: "committed",
        Outcome.ABORTED: "aborted",
        Outcome.OPEN: "open",
        Outcome.PLAIN: "no transaction",
    }
    handles: list[Any] = [
        plt.Rectangle((0, 0), 1, 1, color=COLOURS[outcome], label=text)
        for outcome, text in words.items()
    ]
    for text, shape, outcome in (
        ("COMMIT marker", "v", Outcome.COMMITTED),
        ("ABORT marker", "X", Outcome.ABORTED),
    ):
        handles.append(
            Line2D([], [], color=COLOURS[outcome], marker=shape, lw=0, markersize=6, label=text)
        )
    figure.legend(
        handles=handles,
        loc="lower center",
        ncols=len(handles),
        frameon=False,
        fontsize=8.5,
        labelcolor=INK,
        handlelength=1.2,
    )
