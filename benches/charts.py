"""Charts as SVG, made of plain elements: no library is needed, and nothing is fetched when one is looked at.

Dots    one row for each contestant, on an axis that shows ours, a peer a hundred times slower and the limit alike.
Bars    a few numbers that start at zero.
Growth  cost against size on two logarithmic axes, where a straight line is a power and its slope the exponent.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final
from xml.etree.ElementTree import Element, SubElement

from .document import LIMIT, OURS, PEER, number, times

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .document import Line, Side
    from .glance import Bar, Panel

INK: Final = "#22262e"
QUIET: Final = "#6b7280"
GRID: Final = "#e5e7eb"
COLORS: Final = {OURS: "#0b7a75", PEER: "#8b93a1", LIMIT: "#d19a1c"}
BAD: Final = "#c92a2a"
WIDTH: Final = 960
LABELS: Final = 250  # where rows begin
PLOT: Final = 430  # how wide their axis is
ROW: Final = 17
HEADING: Final = 24
MICROSECONDS_FROM: Final = 10_000.0  # nanoseconds
LINEAR_BELOW: Final = 4.0  # a range smaller than this needs no logarithm


def _named(attributes: dict[str, float | str]) -> dict[str, str]:
    """Attributes as SVG has them: ``stroke_width`` is stroke-width, and a tenth of a pixel is fine enough."""
    return {
        name.replace("_", "-"): value if isinstance(value, str) else f"{round(value, 1):g}"
        for name, value in attributes.items()
    }


def _add(parent: Element, tag: str, **attributes: float | str) -> Element:
    return SubElement(parent, tag, _named(attributes))


def _text(
    parent: Element, x: float, y: float, words: str, *, size: float = 11, anchor: str = "start",
    color: str = INK, weight: str = "normal",
) -> Element:  # fmt: skip
    made = _add(
        parent, "text", x=x, y=y, fill=color, font_size=size, text_anchor=anchor, font_weight=weight
    )
    made.text = words
    return made


def _rule(
    parent: Element, x1: float, y1: float, x2: float, y2: float, color: str, width: float = 1,
    dashes: str = "none",
) -> None:  # fmt: skip
    _add(
        parent, "line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=color, stroke_width=width,
        stroke_dasharray=dashes,
    )  # fmt: skip


def _canvas(width: float, height: float, name: str) -> Element:
    attributes: dict[str, float | str] = {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": f"0 0 {width:g} {height:g}",
        "width": width,
        "height": height,
        "role": "img",
        "aria_label": name,
        "font_family": "system-ui, 'DejaVu Sans', sans-serif",
    }
    made = Element("svg", _named(attributes))
    _add(made, "rect", width=width, height=height, fill="#ffffff")
    return made


# ---------------------------------------------------------------- axes


class Axis:
    """Numbers to pixels, straight from zero or by their logarithm, and where its marks are."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        low, high = min(values), max(values)
        self.start, self.end = start, end
        self.is_log = low > 0 and high / low >= LINEAR_BELOW
        if self.is_log:
            self.low, self.high = low / 1.3, high * 1.3
        else:
            self.low, self.high = 0.0, high * 1.05 or 1.0

    def at(self, value: float) -> float:
        if self.is_log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def marks(self) -> list[float]:
        """Round numbers: decades with 2 and 5 between where there is room, or a few even steps."""
        if not self.is_log:
            step = _round_step(self.high / 5)
            return [step * count for count in range(int(self.high / step + 1e-9) + 1)]
        decades = math.log10(self.high / self.low)
        steps = (1, 2, 5) if decades < 3 else (1,)
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        every = max(1, round(decades / 6))
        found = [
            digit * 10.0**power
            for power in range(first, last + 1, every if len(steps) == 1 else 1)
            for digit in steps
        ]
        return [mark for mark in found if self.low <= mark <= self.high]


def _round_step(step: float) -> float:
    scale = 10.0 ** math.floor(math.log10(step))
    return next(scale * digit for digit in (1, 2, 5, 10) if scale * digit >= step * 0.999)


def _short(value: float) -> str:
    """A mark's name: 20, 5k, 1M."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{suffix}"
    return f"{value:g}"


def seconds(value: float) -> str:
    """A time in the unit that suits it."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= size * 0.9999:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


# ---------------------------------------------------------------- dots


def _mark(parent: Element, role: str, x: float, y: float) -> None:
    """A disk for ours, a square for a peer, a diamond for a limit: told apart without colours, too."""
    color = COLORS[role]
    if role == OURS:
        _add(parent, "circle", cx=x, cy=y, r=5, fill=color)
    elif role == PEER:
        _add(parent, "rect", x=x - 4, y=y - 4, width=8, height=8, fill=color)
    else:
        points = " ".join(
            f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in ((-5, 0), (0, -5), (5, 0), (0, 5))
        )
        _add(parent, "polygon", points=points, fill=color)


def _relation(side: Side, is_timed: bool) -> str:
    """Ours beside it, in words."""
    if side.ratio is None or side.role == OURS:
        return ""
    if side.role == PEER:
        better, worse = ("faster", "slower") if is_timed else ("less", "more")
        is_better = side.ratio >= 1
        ratio = side.ratio if is_better else 1 / side.ratio
        return f"ours {times(ratio)} {better if is_better else worse}"
    return f"ours takes {times(side.ratio)}"


class Scale:
    """The unit that a chart shows: that of its cases, or microseconds where nanoseconds would be many digits."""

    def __init__(self, lines: Sequence[Line]) -> None:
        unit = lines[0].unit
        ours = max(line.ours.value or 0.0 for line in lines)
        self.factor = 1e-3 if unit.startswith("ns/") and ours >= MICROSECONDS_FROM else 1.0
        self.unit = unit if self.factor == 1 else f"µs/{unit.removeprefix('ns/')}"
        self.is_timed = lines[0].is_timed
        self.better = "more is better" if lines[0].is_more_better else "less is better"

    def of(self, value: float) -> float:
        return value * self.factor

    @property
    def name(self) -> str:
        """The unit in words, and which way is better."""
        words = {"ns": "nanoseconds", "µs": "microseconds", "ms": "milliseconds"}
        size, _, what = self.unit.partition("/")
        named = {"GB/s": "gigabytes per second"}.get(self.unit)
        if named is None:
            named = f"{words[size]} per {what or 'call'}" if size in words else self.unit
        return f"{named}, {self.better}"


def _dot_row(parent: Element, side: Side, axis: Axis, scale: Scale, y: float) -> None:
    group = SubElement(parent, "g")
    weight = "bold" if side.role == OURS else "normal"
    _text(group, LABELS - 10, y + 4, side.label, anchor="end", weight=weight)
    if side.value is None:
        _text(group, LABELS + 6, y + 4, f"not measured: {side.missing}", color=QUIET, size=10)
        return
    shown = number(scale.of(side.value))
    best = axis.at(scale.of(side.value))
    _rule(group, LABELS, y, best, y, GRID)
    if side.median is not None:
        _rule(group, best, y, axis.at(scale.of(side.median)), y, COLORS[side.role], 2)
    _mark(group, side.role, best, y)
    _text(group, LABELS + PLOT + 75, y + 4, shown, anchor="end", weight=weight)
    _text(group, LABELS + PLOT + 85, y + 4, _relation(side, scale.is_timed), color=QUIET)
    if side.instructions is not None:
        counted = number(side.instructions)
        _text(group, WIDTH - 5, y + 4, counted, anchor="end", color=QUIET)
    told = SubElement(group, "title")
    told.text = (
        f"{side.label}: best {shown} {scale.unit}, middle half of {side.rounds} rounds within "
        f"{side.spread:.0%} of the median"
    )


def dots(lines: Sequence[Line]) -> Element:
    """Cases of one unit below each other, on one axis."""
    scale = Scale(lines)
    values = [
        scale.of(value)
        for line in lines
        for side in line.sides
        for value in (side.value, side.median)
        if value is not None
    ]
    axis = Axis(values, LABELS + 8, LABELS + PLOT)
    top = 34.0
    height = top + sum(HEADING + ROW * len(line.sides) for line in lines) + 40
    made = _canvas(WIDTH, height, ", ".join(line.title for line in lines))
    bottom = height - 36
    for mark in axis.marks():
        _rule(made, axis.at(mark), top - 8, axis.at(mark), bottom, GRID)
        _text(made, axis.at(mark), bottom + 14, _short(mark), anchor="middle", color=QUIET, size=10)
    way = ", logarithmic" if axis.is_log else ""
    _text(made, LABELS + PLOT / 2, height - 6, scale.name + way, anchor="middle",
          color=QUIET)  # fmt: skip
    _text(made, LABELS + PLOT + 75, 16, scale.unit, anchor="end", color=QUIET, size=10)
    if any(side.instructions is not None for line in lines for side in line.sides):
        _text(made, WIDTH - 5, 16, f"instructions/{'record' if lines[0].unit == 'ns/record' else 'call'}", anchor="end",
              color=QUIET, size=10)  # fmt: skip
    _legend(made, 10, 16)
    y = top
    for line in lines:
        _text(made, 10, y + 12, line.title, weight="bold", size=11.5)
        y += HEADING
        for side in line.sides:
            _dot_row(made, side, axis, scale, y)
            y += ROW
    return made


def _legend(parent: Element, x: float, y: float) -> None:
    for role, name, wide in ((OURS, "oncelog", 72), (PEER, "peer", 52), (LIMIT, "limit", 60)):
        _mark(parent, role, x + 5, y - 4)
        _text(parent, x + 15, y, name, size=10, color=QUIET)
        x += wide


# ---------------------------------------------------------------- bars


def bars(panel: Panel, shown: Sequence[Bar]) -> Element:
    """A few numbers from zero, with an axis."""
    top, tall = 30.0, 24
    height = top + tall * len(shown) + 42
    made = _canvas(WIDTH, height, panel.title)
    _text(made, 10, 18, panel.title, weight="bold", size=13)
    high = max(bar.value for bar in shown)
    axis = Axis([0.0, high], LABELS, WIDTH - 90)
    bottom = top + tall * len(shown) + 4
    for mark in axis.marks():
        _rule(made, axis.at(mark), top - 4, axis.at(mark), bottom, GRID)
        _text(made, axis.at(mark), bottom + 14, _short(mark), anchor="middle", color=QUIET, size=10)
    better = "more is better" if panel.more_is_better else "less is better"
    middle = (axis.start + axis.end) / 2
    _text(made, middle, height - 6, f"{panel.unit}, {better}", anchor="middle", color=QUIET)
    for index, bar in enumerate(shown):
        y = top + tall * index
        weight = "bold" if bar.role == OURS else "normal"
        _text(made, LABELS - 10, y + 15, bar.label, anchor="end", weight=weight)
        wide = max(axis.at(bar.value) - axis.start, 1)
        _add(
            made, "rect", x=axis.start, y=y + 3, width=wide, height=tall - 7, fill=COLORS[bar.role]
        )
        _text(made, axis.at(bar.value) + 6, y + 15, number(bar.value), weight=weight)
    return made


# ---------------------------------------------------------------- growth

GROWTH_WIDTH: Final = 470
GROWTH_HEIGHT: Final = 270


def growth(curve: Mapping[str, Any]) -> Element:
    """One curve, with the slope that was promised as a dashed line through its middle."""
    points = [(float(size), float(cost)) for size, cost in curve["points"]]
    made = _canvas(GROWTH_WIDTH, GROWTH_HEIGHT, curve["title"])
    left, right, top, bottom = 62.0, GROWTH_WIDTH - 16.0, 46.0, GROWTH_HEIGHT - 42.0
    across = _log_axis([size for size, _ in points], left, right)
    fitted = points[-int(curve.get("fitted") or len(points)) :]
    promised = _promised(fitted, float(curve["expected"]))
    costs = [cost for _, cost in (*points, *promised)]
    middle = math.sqrt(max(costs) * min(costs))
    # A flat curve fills no more of the chart than its noise deserves.
    upwards = _log_axis([*costs, middle * 2, middle / 2], bottom, top)
    _grid(made, across, upwards, (left, right, top, bottom))
    color = BAD if curve["met"] is False else COLORS[OURS]
    (x1, y1), (x2, y2) = ((across.at(size), upwards.at(cost)) for size, cost in promised)
    _rule(made, x1, y1, x2, y2, QUIET, 1.2, "5 4")
    path = " ".join(f"{across.at(size):.1f},{upwards.at(cost):.1f}" for size, cost in points)
    _add(made, "polyline", points=path, fill="none", stroke=color, stroke_width=2)
    for size, cost in points:
        dot = _add(made, "circle", cx=across.at(size), cy=upwards.at(cost), r=3.5, fill=color)
        SubElement(dot, "title").text = f"{size:,.0f}: {seconds(cost)}"
    _text(made, 8, 16, curve["title"], weight="bold", size=12)
    verdict = {True: "met", False: "WORSE THAN PROMISED", None: "a smoke run, not judged"}
    told = f"slope {curve['slope']:.2f}, promised {curve['expected']:g} + {curve['margin']:g}: {verdict[curve['met']]}"
    _text(made, 8, 32, told, size=10.5, color=color)
    _text(
        made, (left + right) / 2, GROWTH_HEIGHT - 6, curve["x_label"], anchor="middle", color=QUIET
    )
    per = curve["unit"].removeprefix("s/")
    name = _text(
        made, 0, 0, f"time per {per}" if per != "s" else "time", anchor="middle", color=QUIET
    )
    name.set("transform", f"translate(12 {(top + bottom) / 2:.0f}) rotate(-90)")
    return made


def _log_axis(values: Sequence[float], start: float, end: float) -> Axis:
    axis = Axis(values, start, end)
    axis.is_log = True
    axis.low, axis.high = min(values) / 1.2, max(values) * 1.2
    return axis


def _grid(
    parent: Element, across: Axis, upwards: Axis, box: tuple[float, float, float, float]
) -> None:
    left, right, top, bottom = box
    for mark in _sparse(across, 8):
        _rule(parent, across.at(mark), top, across.at(mark), bottom, GRID)
        _text(parent, across.at(mark), bottom + 14, _short(mark), anchor="middle", color=QUIET, size=9.5)  # fmt: skip
    for mark in _sparse(upwards, 6):
        _rule(parent, left, upwards.at(mark), right, upwards.at(mark), GRID)
        _text(parent, left - 5, upwards.at(mark) + 3.5, seconds(mark), anchor="end", color=QUIET, size=9.5)  # fmt: skip


def _sparse(axis: Axis, most: int) -> list[float]:
    """Its marks, or as few of them as fit beside each other."""
    marks = axis.marks()
    return marks if len(marks) <= most else marks[:: math.ceil(len(marks) / most)]


def _promised(
    fitted: Sequence[tuple[float, float]], exponent: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """The promised slope, from the first of the points that are judged to the size of the last."""
    (first, cost), (last, _) = fitted[0], fitted[-1]
    return (first, cost), (last, float(cost * (last / first) ** exponent))
