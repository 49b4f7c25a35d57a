"""Drivers that die, over and over: ``python -m tests.spark.sink_soak --kills 50``.

One stream into one log, from one checkpoint. Each driver is killed with -9 at a step drawn by chance, in a batch drawn
by chance, and after each death a reader must find whole batches, none of them twice. In the end one driver lives, and
the output must be the input.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from .kill_runs import KillRuns
from .killing import POINTS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    deaths = dict.fromkeys(POINTS, 0)
    with tempfile.TemporaryDirectory(prefix="oncelog-sink-soak-") as folder:
        runs = KillRuns(Path(folder) / "run", files=2 * arguments.kills + 4)
        for number in range(arguments.kills):
            # Every step has its turn before any has its second; which batch, chance decides.
            point = POINTS[number % len(POINTS)] if number < len(POINTS) else chance.choice(POINTS)
            done = runs.check()
            batch = done + chance.randrange(2)
            if runs.run(point, batch) != -9:
                print(f"the driver outlived {point} in batch {batch} (seed {arguments.seed})")
                return 1
            deaths[point] += 1
            print(f"{number + 1:3} {point:14} batch {batch:3}: {runs.check()} batches, all whole")
        if runs.run() != 0 or sorted(runs.committed()) != runs.expected:
            print(f"the output is not the input (seed {arguments.seed})")
            return 1
        print(
            f"{arguments.kills} deaths, {len(runs.expected)} records, each of them once; "
            + ", ".join(f"{point} {count}" for point, count in deaths.items() if count)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
