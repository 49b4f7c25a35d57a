"""Runs of a streaming application that die at chosen steps, and what must hold after each of them."""

from __future__ import annotations

import collections
import os
import subprocess
import sys
from pathlib import Path

import oncelog

from .killing import BATCH, POINT

ROOT = Path(__file__).resolve().parents[2]
LINES = 40  # in a file, which is a batch


class KillRuns:
    """One stream, one checkpoint, many drivers one after another."""

    def __init__(self, folder: Path, files: int, partitions: int = 3) -> None:
        self.folder = folder
        self.expected = [f"{file:03}-{line:03}" for file in range(files) for line in range(LINES)]
        self._input = folder / "input"
        self._input.mkdir(parents=True)
        for file in range(files):
            lines = self.expected[file * LINES : (file + 1) * LINES]
            path = self._input / f"{file:03}.txt"
            path.write_text("\n".join(lines))
            os.utime(
                path, (1_700_000_000 + file, 1_700_000_000 + file)
            )  # Spark takes the oldest first
        with oncelog.open(folder / "log") as log:
            log.create_topic("out", partitions=partitions)

    def run(self, point: str | None = None, batch: int = 0) -> int:
        """One driver; returns its exit code, which is -9 if it was killed as planned."""
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        if point is not None:
            environment |= {POINT: point, BATCH: str(batch)}
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.sink_driver", str(self.folder)],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        if done.returncode not in (0, -9):
            raise AssertionError(done.stderr[-4000:])
        return done.returncode

    def committed(self) -> list[str]:
        """What a reader sees of the output, as it lies on disk at this moment."""
        with oncelog.open(self.folder / "log", read_only=True) as log:
            return [(record.value or b"").decode() for record in log.read("out")]

    def check(self) -> int:
        """No line twice, no batch in part; returns how many batches there are."""
        found = self.committed()
        assert len(set(found)) == len(found), "a line is there twice"
        batches = collections.Counter(line.partition("-")[0] for line in found)
        assert set(batches.values()) <= {LINES}, f"a batch is torn: {batches}"
        return len(batches)

    def leftovers(self) -> list[str]:
        """What is left in the staging folder."""
        return sorted(path.name for path in (self.folder / "log.staging").iterdir())
