"""Draws the pictures of the README and the guides with the tools they are about, into docs/images.

timeline.png   ``oncelog transactions timeline`` on a directory that a real Kafka broker wrote (tests/golden)
perf.png       ``oncelog perf transactions`` on this machine
bench.png is drawn by ``make bench``.
"""  # noqa: INP001

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
MIXED = ROOT / "tests" / "golden" / "txn-mixed" / "data"


def oncelog(*arguments: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "oncelog", *map(str, arguments)], check=True)


def draw_timeline(path: Path) -> None:
    """The same bytes each time, as long as the picture is the same: a test compares them."""
    oncelog("transactions", "timeline", "mixed", "--png", path, "--data", MIXED)


def draw_perf(path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="oncelog-perf-") as data:
        oncelog(
            "perf", "transactions", "--num-transactions", "20000", "--plot", path, "--data", data
        )


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    draw_timeline(IMAGES / "timeline.png")
    draw_perf(IMAGES / "perf.png")


if __name__ == "__main__":
    main()
