"""Curves as a picture: one small panel each, logarithmic axes, the expected slope as a dashed line.

Drawn from what the JSON holds, so that a report can be drawn long after its run.
"""

from __future__ import annotations

import io
import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OURS: Final = "#0b7a75"
WORSE: Final = "#c0392b"
EXPECTED: Final = "#8a93a3"
INK: Final = "#22262e"
QUIET: Final = "#6b7280"

COLUMNS: Final = 4
PANEL_INCHES: Final = (3.45, 3.0)  # with its title, label and caption
PLOT_INCHES: Final = (2.55, 1.5)
PLOT_AT_INCHES: Final = (0.72, 1.02)  # from the panel's lower left corner
HEAD_INCHES: Final = 0.7
FOOT_INCHES: Final = 0.45
CAPTION_COLUMNS: Final = 56
LEVEL: Final = 1.25  # a point that is not lower than this has its label above
DECADES_MIN: Final = 2.0  # of the axis of time: what is flat must look flat


def time_of(seconds: float) -> str:
    """Seconds for people, in three digits."""
    for factor, unit in ((1e9, "ns"), (1e6, "µs"), (1e3, "ms")):
        if seconds * factor < 999.5:
            value = seconds * factor
            return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"
    return f"{seconds:.2f} s"


def size_of(size: float) -> str:
    for factor, unit in ((10**6, "M"), (10**3, "k")):
        if size >= 10 * factor or (size >= factor and size % factor == 0):
            return f"{size / factor:.3g}{unit}"
    return f"{size:,.0f}"


def slope_text(curve: Mapping[str, Any]) -> str:
    return f"slope {curve['slope']:.2f}, at most {curve['expected'] + curve['margin']:.2f}"


def draw(
    target: Path | str | io.BytesIO | Sequence[Any],
    curves: Sequence[Mapping[str, Any]],
    about: Mapping[str, Any],
) -> None:
    """Draws ``Curve.as_json()`` of each curve into a file (its suffix says what kind), or into axes, one for each.

    ``about`` is what ``surroundings()`` says; axes of a caller's own do not show it. Raises ImportError without
    matplotlib, LookupError with nothing to draw.
    """
    if not curves:
        raise LookupError("no curve was measured")
    if not isinstance(target, str | Path | io.BytesIO):
        for axis, curve in zip(target, curves, strict=True):
            _panel(axis, curve)
        return
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    columns = min(COLUMNS, len(curves))
    rows = -(-len(curves) // columns)
    width = columns * PANEL_INCHES[0]
    height = rows * PANEL_INCHES[1] + HEAD_INCHES + FOOT_INCHES
    with mpl.rc_context({"font.family": "DejaVu Sans", "font.size": 8, "text.color": INK}):
        figure = plt.figure(figsize=(width, height), dpi=130)
        _head_and_foot(figure, width, height, about)
        for number, curve in enumerate(curves):
            row, column = divmod(number, columns)
            left = column * PANEL_INCHES[0] + PLOT_AT_INCHES[0]
            bottom = height - HEAD_INCHES - (row + 1) * PANEL_INCHES[1] + PLOT_AT_INCHES[1]
            box = (left / width, bottom / height, PLOT_INCHES[0] / width, PLOT_INCHES[1] / height)
            _panel(figure.add_axes(box), curve)
        if isinstance(target, str | Path):
            Path(target).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, facecolor="white")
        plt.close(figure)


def _head_and_foot(figure: Any, width: float, height: float, about: Mapping[str, Any]) -> None:
    machine, versions = about["machine"], about["versions"]
    title = "How costs grow"
    how = "Both axes logarithmic. Line: best round. Dashed: the slope expected; the band is what is allowed."
    left = 0.15 / width
    figure.text(left, 1 - 0.12 / height, title, fontsize=14, fontweight="bold", va="top")
    figure.text(left, 1 - 0.42 / height, textwrap.fill(how, int(width * 15)), fontsize=8.5,
                color=QUIET, va="top")  # fmt: skip
    foot = (
        f"{machine['cpu']}, {machine['cores']} cores, load {machine['load']:.1f}; Python "
        f"{versions['python']}, oncelog {versions.get('oncelog', '')}; seed {about['settings']['seed']}. "
        "CPU time, but for threads, whose time is the wall's. Warm cache. Run it yourself: python -m benches.growth"
    )
    foot = textwrap.fill(foot, int(width * 15))
    figure.text(left, 0.12 / height, foot, fontsize=7.5, color=QUIET, va="bottom")


def _panel(axis: Any, curve: Mapping[str, Any]) -> None:
    sizes = [size for size, _ in curve["points"]]
    seconds = [cost for _, cost in curve["points"]]
    color = WORSE if curve["met"] is False else OURS
    axis.set_xscale("log")
    axis.set_yscale("log")
    _expected(axis, curve)
    axis.plot(sizes, seconds, color=color, lw=1.8, marker="o", ms=4, zorder=3)
    low, high = _limits(seconds)
    axis.set_ylim(low, high)
    axis.set_xlim(sizes[0] / 1.5, sizes[-1] * 1.5)
    # A label lies where the line does not go: under its foot, or on its top.
    for at, other, align in ((0, 1, "left"), (-1, -2, "right")):
        is_above = seconds[at] * LEVEL > seconds[other]
        axis.annotate(
            time_of(seconds[at]), (sizes[at], seconds[at]), xytext=(0, 5 if is_above else -5),
            textcoords="offset points", ha=align, va="bottom" if is_above else "top", fontsize=7.5,
            fontweight="bold", color=color, zorder=4,
        )  # fmt: skip
    _axes(axis, curve, sizes)
    axis.set_title(curve["title"], loc="left", fontsize=9.5, fontweight="bold", color=INK, pad=16)
    verdict = {True: "met", False: "worse", None: "not judged"}[curve["met"]]
    axis.text(0, 1.03, f"{slope_text(curve)}: {verdict}", transform=axis.transAxes, fontsize=7.5,
              color=WORSE if curve["met"] is False else QUIET, va="bottom")  # fmt: skip
    caption = textwrap.fill(curve["caption"], CAPTION_COLUMNS)
    axis.annotate(caption, (0, 0), xycoords="axes fraction", xytext=(-34, -34),
                  textcoords="offset points", fontsize=7, color=QUIET, va="top")  # fmt: skip


def _expected(axis: Any, curve: Mapping[str, Any]) -> None:
    """The line that the slope is compared with, from the first point that was fitted on, and what is allowed."""
    fitted = curve["points"][-curve["fitted"] :]
    (start, cost), end = fitted[0], fitted[-1][0]
    expected = cost * (end / start) ** curve["expected"]
    allowed = cost * (end / start) ** (curve["expected"] + curve["margin"])
    axis.fill_between([start, end], [cost, expected], [cost, allowed], color=EXPECTED, alpha=0.18,
                      lw=0, zorder=1)  # fmt: skip
    axis.plot([start, end], [cost, expected], color=EXPECTED, lw=1.2, ls=(0, (4, 3)), zorder=2)


def _limits(seconds: Sequence[float]) -> tuple[float, float]:
    """Ends of the axis of time: room around the points, and never so close that noise looks steep."""
    low, high = math.log10(min(seconds)), math.log10(max(seconds))
    room = max(0.0, (DECADES_MIN - (high - low)) / 2)
    return 10 ** (low - max(room, 0.5)), 10 ** (high + max(room, 0.35))


def _axes(axis: Any, curve: Mapping[str, Any], sizes: Sequence[int]) -> None:
    from matplotlib import ticker

    axis.xaxis.set_major_locator(ticker.FixedLocator(list(sizes)))
    axis.xaxis.set_major_formatter(ticker.FuncFormatter(lambda size, _: size_of(size)))
    axis.xaxis.set_minor_locator(ticker.NullLocator())
    axis.yaxis.set_major_locator(ticker.LogLocator(base=10, numticks=6))
    axis.yaxis.set_major_formatter(ticker.FuncFormatter(_tick))
    axis.yaxis.set_minor_locator(ticker.NullLocator())
    per = curve["unit"].partition("/")[2]
    axis.set_xlabel(curve["x_label"], fontsize=8, color=INK, labelpad=2)
    axis.set_ylabel(f"time per {per}" if per else "time in all", fontsize=8, color=INK)
    axis.tick_params(labelsize=7.5, labelcolor=INK, color=EXPECTED, length=2.5)
    axis.grid(axis="y", color="#e6e8ec", lw=0.7, zorder=0)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axis.spines[side].set_color(EXPECTED)


def _tick(seconds: float, _: object) -> str:
    value, _, unit = time_of(seconds).partition(" ")
    return f"{float(value):g} {unit}"
