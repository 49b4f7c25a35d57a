"""How far long work is: a bar on a terminal's stderr. What is done in a moment shows none, nor does a pipe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from ..base.clock import monotonic_s

if TYPE_CHECKING:
    from types import TracebackType

PATIENCE_S: Final = 0.5  # before that nobody asks how far it is, and drawing would only cost time


class Progress:
    """Counts records, and draws a bar once the work has taken a while. Of a total that is not known it only pulses."""

    def __init__(self, what: str, total: int | None = None) -> None:
        self.what = what
        self.total = total
        self._count = 0
        self._is_shown = sys.stderr.isatty()
        self._began = monotonic_s()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def advance(self, count: int) -> None:
        """So many more are done."""
        self._count += count
        if not self._is_shown:
            return
        seconds = monotonic_s() - self._began
        if self._bar is None:
            if seconds < PATIENCE_S:
                return
            self._open()
        rate = f"{self._count:,} records, {self._count / seconds:,.0f}/s"
        self._bar.update(
            self._task, description=self.what, total=self.total, completed=self._count, rate=rate
        )

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
        )
        self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(self.what, total=self.total, rate="")
        self._bar.start()

    def close(self) -> None:
        """Takes the bar off the screen."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self._is_shown = False
