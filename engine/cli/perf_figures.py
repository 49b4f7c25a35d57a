"""What a measurement adds up to, and how it is told: Kafka's lines, JSON, a picture.

While it runs, a terminal sees a bar on stderr. In a pipe the lines that Kafka's producer prints every five seconds go
to stdout, as its own do; its consumer prints none, and neither does ours.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
from typing import TYPE_CHECKING, Any, Final

import click
import numpy as np

from ..base.clock import monotonic_s, now_ms
from .output import talk

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

WINDOW_S: Final = 5.0  # of the lines while it runs
STEP_S: Final = 0.05  # of the curve in a picture
MIB: Final = 1 << 20
PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9)


class Meter:
    """Counts records, keeps latencies and the curve of progress, and shows how far it is."""

    def __init__(
        self,
        what: str,
        total: int,
        record_size: int,
        *,
        is_quiet: bool = False,
        tells_windows: bool = False,
        noun: str = "records",
    ) -> None:
        self.what, self.total, self.noun = what, total, noun
        self.records = 0
        self.bytes = 0
        self.seconds = 0.0
        self.started_ms = 0
        self._record_size = record_size
        self._is_quiet = is_quiet
        self._tells_windows = tells_windows and not is_quiet
        self._latencies: list[float] = []
        self.latency = self._latencies.append  # seconds; a hot path, so no call of ours in between
        self.curve: list[tuple[float, int]] = [(0.0, 0)]
        self._progress: Any = None
        self._task: Any = None

    def __enter__(self) -> Meter:
        if sys.stderr.isatty() and not self._is_quiet:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn(self.what),
                BarColumn(),
                TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
            )
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._progress.add_task("", total=self.total, rate="")
            self._progress.start()
        self.started_ms = now_ms()
        self._began = self._window_began = monotonic_s()
        self._window_records = self._window_bytes = self._window_latencies = 0
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds = max(monotonic_s() - self._began, 1e-9)
        self.curve.append((self.seconds, self.records))
        if self._progress is not None:
            self._progress.stop()

    def advance(self, count: int, size: int | None = None) -> None:
        self.records += count
        self.bytes += count * self._record_size if size is None else size
        now = monotonic_s() - self._began
        if now - self.curve[-1][0] >= STEP_S:
            self.curve.append((now, self.records))
            if self._progress is not None:
                rate = f"{self.records / now:,.0f} {self.noun}/s"
                self._progress.update(self._task, completed=self.records, rate=rate)
            elif self._tells_windows and now - (self._window_began - self._began) >= WINDOW_S:
                self._tell_window(now)

    def _tell_window(self, now: float) -> None:
        """The line of the last five seconds, as Kafka's producer prints it."""
        seconds = now - (self._window_began - self._began)
        count = self.records - self._window_records
        latencies = np.array(self._latencies[self._window_latencies :]) * 1e3
        average, largest = (latencies.mean(), latencies.max()) if len(latencies) else (0.0, 0.0)
        size = self.bytes - self._window_bytes
        click.echo(
            f"{count} {self.noun} sent, {count / seconds:.1f} {self.noun}/sec "
            f"({size / seconds / MIB:.2f} MB/sec), "
            f"{average:.1f} ms avg latency, {largest:.1f} ms max latency."
        )
        self._window_began = self._began + now
        self._window_records, self._window_bytes = self.records, self.bytes
        self._window_latencies = len(self._latencies)

    # ------------------------------------------------------------ figures

    @property
    def rate(self) -> float:
        return self.records / self.seconds

    @property
    def latencies_ms(self) -> NDArray[np.float64]:
        return np.array(self._latencies or [0.0]) * 1e3

    def figures(self) -> dict[str, Any]:
        """All of it for programs."""
        latencies = self.latencies_ms
        percentiles = np.percentile(latencies, PERCENTILES)
        return {
            self.noun: self.records,
            "seconds": round(self.seconds, 6),
            f"{self.noun}PerSecond": round(self.rate, 1),
            "megabytesPerSecond": round(self.bytes / self.seconds / MIB, 3),
            "latencyMs": {
                "average": round(float(latencies.mean()), 4),
                "max": round(float(latencies.max()), 4),
                **{
                    f"p{name:g}": round(float(value), 4)
                    for name, value in zip(PERCENTILES, percentiles, strict=True)
                },
            },
        }


def _percentiles(meter: Meter) -> str:
    values = np.percentile(meter.latencies_ms, PERCENTILES)
    return ", ".join(
        f"{value:.3f} ms {name:g}th" for name, value in zip(PERCENTILES, values, strict=True)
    )


def _finish(meter: Meter, plot: Path | None, *, as_json: bool, **more: Any) -> bool:
    """What all endings share; whether the figures were told as JSON."""
    if plot is not None:
        _draw(meter, plot)
    if as_json:
        click.echo(json.dumps(meter.figures() | more))
    return as_json


def tell_produced(meter: Meter, *, as_json: bool, plot: Path | None) -> None:
    if _finish(meter, plot, as_json=as_json):
        return
    latencies = meter.latencies_ms
    click.echo(
        f"{meter.records} records sent, {meter.rate:.1f} records/sec ({meter.bytes / meter.seconds / MIB:.2f} MB/sec), "
        f"{latencies.mean():.2f} ms avg latency, {latencies.max():.2f} ms max latency, {_percentiles(meter)}."
    )


def tell_consumed(meter: Meter, *, as_json: bool, plot: Path | None) -> None:
    if _finish(meter, plot, as_json=as_json):
        return

    def moment(milliseconds: float) -> str:
        at = dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)
        return f"{at:%Y-%m-%d %H:%M:%S}:{int(milliseconds) % 1000:03d}"

    size = meter.bytes / MIB
    took_ms = round(meter.seconds * 1000)
    click.echo(
        "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, "
        "fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
    )
    click.echo(
        f"{moment(meter.started_ms)}, {moment(meter.started_ms + took_ms)}, {size:.4f}, {size / meter.seconds:.4f}, "
        f"{meter.records}, {meter.rate:.4f}, 0, {took_ms}, {size / meter.seconds:.4f}, {meter.rate:.4f}"
    )
    click.echo(f"poll: {_percentiles(meter)}")


def tell_latency(meter: Meter, *, as_json: bool, plot: Path | None) -> None:
    if _finish(meter, plot, as_json=as_json):
        return
    values = np.percentile(meter.latencies_ms, PERCENTILES)
    texts = ", ".join(
        f"{name:g}th = {value:.3f}" for name, value in zip(PERCENTILES, values, strict=True)
    )
    click.echo(f"Avg latency: {meter.latencies_ms.mean():.4f} ms")
    click.echo(f"Percentiles: {texts}")


def tell_transactions(meter: Meter, record_count: int, *, as_json: bool, plot: Path | None) -> None:
    rate = record_count / meter.seconds
    if _finish(meter, plot, as_json=as_json, records=record_count, recordsPerSecond=round(rate, 1)):
        return
    latencies = meter.latencies_ms
    click.echo(
        f"{meter.records} transactions committed, {meter.rate:.1f} transactions/sec "
        f"({rate:.1f} records/sec, {meter.bytes / meter.seconds / MIB:.2f} MB/sec), "
        f"{latencies.mean():.3f} ms avg latency, {latencies.max():.2f} ms max latency, {_percentiles(meter)}."
    )


# ---------------------------------------------------------------- picture


def _draw(meter: Meter, path: Path) -> None:
    """Two panels: how many per second over time, and how long at which percentile."""
    import io

    from ..base.disk import Disk
    from .plotting import ACCENT, BACKGROUND, INK, SOFT_INK, pyplot

    plt = pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8), facecolor=BACKGROUND)
    times, counts = map(np.array, zip(*meter.curve, strict=True))
    steps = np.maximum(np.diff(times), 1e-9)
    left.stairs(np.diff(counts) / steps, times, color=ACCENT, fill=True, alpha=0.25)
    left.stairs(np.diff(counts) / steps, times, color=ACCENT, lw=1.4)
    left.axhline(meter.rate, color=INK, lw=1, ls=(0, (3, 2)))
    left.annotate(
        f" {meter.rate:,.0f} {meter.noun}/s", (0, meter.rate), va="bottom", fontsize=9, color=INK
    )
    left.set_xlim(0, meter.seconds)
    left.set_ylim(0)
    left.set_xlabel("seconds", color=SOFT_INK)
    left.set_title(
        f"{meter.noun} per second", loc="left", fontsize=10.5, fontweight="bold", color=INK
    )
    left.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    latencies = np.sort(meter.latencies_ms)
    # The tail is what matters: the axis gives each further nine the same room.
    rank = (np.arange(len(latencies)) + 0.5) / len(latencies)
    right.plot(-np.log10(1 - rank), latencies, color=ACCENT, lw=1.6)
    marks = [share for share in (0.5, 0.9, 0.99, 0.999, 0.9999) if share <= rank[-1]] or [0.5]
    right.set_xticks(
        [-np.log10(1 - share) for share in marks], [f"{share * 100:g}" for share in marks]
    )
    right.set_yscale("log")
    right.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    right.set_xlabel("percentile", color=SOFT_INK)
    right.set_title("latency, ms", loc="left", fontsize=10.5, fontweight="bold", color=INK)
    for panel in (left, right):
        panel.tick_params(which="both", colors=SOFT_INK, labelsize=8, length=0)
        panel.grid(color="#e9ecef", lw=0.8)
        panel.set_axisbelow(True)
        panel.set_facecolor(BACKGROUND)
        for side in panel.spines.values():
            side.set_visible(False)
    figure.tight_layout()
    out = io.BytesIO()
    kind = "svg" if path.suffix.lower() == ".svg" else "png"
    figure.savefig(out, format=kind, dpi=150, facecolor=BACKGROUND)
    plt.close(figure)
    Disk().replace(path, out.getvalue(), sync=False)
    talk(f"{click.format_filename(path)} is written.")
