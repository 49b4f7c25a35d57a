"""The run as one table and, for a README, as one picture."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.table import Table
from rich.text import Text

from .harness import MAIN, Role

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from .harness import Case, Contestant, Result, Verdict


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _times(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}x" if value >= 100 else f"{value:.1f}x" if value >= 10 else f"{value:.2f}x"


def _side(result: Result, role: Role) -> tuple[Text, Text]:
    """Names with values, and ratios, of all contestants of a role: one line each."""
    names, ratios = Text(), Text()
    chosen = [one for one in result.case.contestants if one.role is role]
    for index, one in enumerate(chosen):
        end = "\n" if index + 1 < len(chosen) else ""
        value = result.shown(one.name)
        if value is None:
            names.append(f"{one.name}: {one.missing}{end}", "dim")
        else:
            names.append(f"{one.name} {_number(value)}{end}")
        ratios.append(_times(result.ratio(one)) + end)
    return names, ratios


def _verdict(verdict: Verdict) -> tuple[str, str]:
    style = {True: "green", False: "bold red", None: "yellow"}[verdict.met]
    return str(verdict), style


def table(results: Sequence[Result]) -> Table:
    made = Table(
        box=box.SIMPLE_HEAD, title="oncelog benchmarks", title_justify="left", pad_edge=False
    )
    made.add_column("case", no_wrap=True)
    made.add_column("ours", justify="right", style="bold", no_wrap=True)
    made.add_column("peer", no_wrap=True)
    made.add_column("ratio", justify="right", no_wrap=True)
    made.add_column("limit", no_wrap=True)
    made.add_column("ours/limit", justify="right", no_wrap=True)
    made.add_column("target", no_wrap=True)
    made.add_column("", no_wrap=True)
    for index, result in enumerate(results):
        ours = result.shown(result.case.ours.name)
        targets, verdicts = Text(), Text()
        for number, verdict in enumerate(result.verdicts):
            end = "\n" if number + 1 < len(result.verdicts) else ""
            targets.append(str(verdict.target) + end)
            text, style = _verdict(verdict)
            verdicts.append(text + end, style)
        next_is_other = index + 1 == len(results) or group_of(results[index + 1].case) != group_of(
            result.case
        )
        made.add_row(
            result.case.title,
            f"{_number(ours)} {result.case.unit.value}" if ours is not None else "-",
            *_side(result, Role.PEER),
            *_side(result, Role.LIMIT),
            targets,
            verdicts,
            end_section=next_is_other,
        )
    return made


def group_of(case: Case) -> str:
    return case.name.rpartition(".")[0]


def notes(
    results: Sequence[Result], about: Mapping[str, Any], overhead_ns: float | None
) -> list[str]:
    """What must be known to read the table."""
    machine, versions = about["machine"], about["versions"]
    noise = sorted(result.noise for result in results)
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    where = (
        f"{machine['cpu']}, {machine['cores']} cores, load {machine['load']:.1f}; "
        f"CRC kernel {machine['crc32c_kernels'][0]}; {named}; seed {about['settings']['seed']}"
    )
    how = (
        "Best of interleaved rounds, warm cache. ratio: how many times faster ours is. "
        "ours/limit: how many times as long ours takes."
    )
    lines = [where, how]
    if noise:
        lines.append(
            f"Noise: ours' median lies {noise[len(noise) // 2]:.0%} above its best in the middle case, "
            f"{noise[-1]:.0%} in the worst."
        )
    if overhead_ns is not None:
        lines.append(
            f"The C floor is called through ctypes, {overhead_ns:.0f} ns a call, not subtracted."
        )
    verdicts = [verdict for result in results for verdict in result.verdicts]
    if verdicts:
        met = sum(verdict.met is True for verdict in verdicts)
        missed = sum(verdict.met is False for verdict in verdicts)
        unknown = len(verdicts) - met - missed
        lines.append(f"Targets: {met} met, {missed} missed, {unknown} not measured.")
    return lines


# ---------------------------------------------------------------- the picture

OURS_COLOR: Final = "#0b7a75"
PEER_COLOR: Final = "#b9bec7"
LIMIT_COLOR: Final = "#e3b23c"
INK: Final = "#22262e"
QUIET: Final = "#6b7280"
WIDTH_INCHES: Final = 9.0
BAR_INCHES: Final = 0.31
CAPTION_COLUMNS: Final = 160

# panel: (case, contestant or None for ours, label)
PANELS: Final = {
    "Encode": (
        (f"encode.arrow.{MAIN.name}", "C floor", "plain C, no checks"),
        (f"encode.arrow.{MAIN.name}", None, "oncelog, from Arrow"),
        (f"encode.python.{MAIN.name}", None, "oncelog, from Python bytes"),
        (f"encode.arrow.{MAIN.name}", "aiokafka", "aiokafka (Cython)"),
        (f"encode.arrow.{MAIN.name}", "kafka-python", "kafka-python"),
    ),
    "Decode": (
        (f"decode.views.{MAIN.name}", "C floor", "plain C, no checks, views"),
        (f"decode.views.{MAIN.name}", None, "oncelog, to Arrow views"),
        (f"decode.arrow.{MAIN.name}", "C floor", "plain C, no checks, columns"),
        (f"decode.arrow.{MAIN.name}", None, "oncelog, to Arrow columns"),
        (f"decode.records.{MAIN.name}", None, "oncelog, to Python records"),
        (f"decode.arrow.{MAIN.name}", "aiokafka", "aiokafka (Cython)"),
        (f"decode.arrow.{MAIN.name}", "kafka-python", "kafka-python"),
    ),
}


def _bars(
    found: Mapping[str, Result], rows: Sequence[tuple[str, str | None, str]]
) -> list[tuple[str, float, str]]:
    """(label, ns per record, colour) of what was measured."""
    bars = []
    for name, contestant, label in rows:
        if name not in found:
            continue
        result = found[name]
        one = _named(result.case, contestant)
        value = None if one is None else result.shown(one.name)
        if one is not None and value is not None:
            color = {Role.OURS: OURS_COLOR, Role.PEER: PEER_COLOR, Role.LIMIT: LIMIT_COLOR}[
                one.role
            ]
            version = f" {one.version}" if one.version else ""
            bars.append((label.replace(" (", f"{version} (") if "(" in label else label + version,
                         value, color))  # fmt: skip
    return bars


def _named(case: Case, name: str | None) -> Contestant | None:
    if name is None:
        return case.ours
    return next((one for one in case.contestants if one.name == name), None)


def draw(path: Path, results: Sequence[Result], about: Mapping[str, Any]) -> None:
    """Writes the chart; raises ImportError without matplotlib, LookupError with nothing to draw."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    found = {result.case.name: result for result in results}
    panels = {title: bars for title, rows in PANELS.items() if (bars := _bars(found, rows))}
    if not panels:
        raise LookupError("nothing was measured that the chart shows")
    caption = textwrap.fill(_caption(found, about), CAPTION_COLUMNS)
    bars_inches = [BAR_INCHES * len(bars) for bars in panels.values()]
    caption_inches = 0.2 + 0.15 * (caption.count("\n") + 1)
    height = 0.42 + sum(bars_inches) + 0.45 * len(panels) + caption_inches
    with mpl.rc_context({"font.family": "DejaVu Sans", "font.size": 10, "text.color": INK}):
        figure = plt.figure(figsize=(WIDTH_INCHES, height), dpi=160)
        title = "Kafka record batches: nanoseconds per record, less is better"
        figure.text(
            0.12 / WIDTH_INCHES, 1 - 0.16 / height, title, fontsize=13, fontweight="bold", va="top"
        )
        figure.text(0.12 / WIDTH_INCHES, 0.1 / height, caption, fontsize=7.5, color=QUIET)
        top = height - 0.42
        for (name, bars), inches in zip(panels.items(), bars_inches, strict=True):
            top -= 0.35
            box_ = (2.3 / WIDTH_INCHES, (top - inches) / height,
                    (WIDTH_INCHES - 2.4) / WIDTH_INCHES, inches / height)  # fmt: skip
            _panel(figure.add_axes(box_), name, bars)
            top -= inches + 0.1
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, facecolor="white")
        plt.close(figure)


def _panel(axis: Any, title: str, bars: Sequence[tuple[str, float, str]]) -> None:
    """One set of bars; one that would flatten all others is broken, with its value beside it."""
    values = sorted(value for _, value, _ in bars)
    edge = values[-1]
    if len(values) > 2 and values[-1] > 4 * values[-2]:
        edge = values[-2] * 1.2
    for row, (_, value, color) in enumerate(bars):
        inside = min(value, edge)
        axis.barh(row, inside, color=color, height=0.7)
        if value > edge:  # two slanted cuts say that the bar is not to scale
            for at in (0.93, 0.945):
                axis.plot(
                    [edge * at, edge * (at + 0.008)],
                    [row + 0.45, row - 0.45],
                    color="white",
                    lw=2.5,
                )
        axis.text(inside + edge * 0.01, row, f"{_number(value)} ns", va="center", fontsize=9.5,
                  fontweight="bold" if color == OURS_COLOR else "normal")  # fmt: skip
    axis.set_yticks(range(len(bars)), [label for label, _, _ in bars])
    axis.set_ylim(len(bars) - 0.5, -0.5)
    axis.set_xlim(0, edge * 1.12)
    axis.set_xticks([])
    axis.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK, pad=5)
    axis.tick_params(axis="y", length=0, labelcolor=INK)
    for side in ("top", "right", "bottom", "left"):
        axis.spines[side].set_visible(False)


def _caption(found: Mapping[str, Result], about: Mapping[str, Any]) -> str:
    work = next((result.case.work for result in found.values()), 0)
    machine, versions = about["machine"], about["versions"]
    return (
        f"One batch of {work:,} records, {MAIN.key_bytes} B keys and {MAIN.value_bytes} B values, not "
        "compressed, checksum (CRC-32C) computed or verified, one thread, data in the cache; best of "
        f"{about['settings']['rounds']} interleaved rounds in one run. Decoding fills or touches offset, "
        "timestamp, key, value and headers of every record. “Plain C” trusts its input and writes into "
        "memory it was given. A cut bar is longer than drawn. "
        f"{machine['cpu']}, Python {versions['python']}, oncelog {versions.get('oncelog', '')}, pyarrow "
        f"{versions['pyarrow']}. Run it yourself: make bench."
    )
