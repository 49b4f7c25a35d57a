"""Power failure: of what was not synced any part may be gone or torn; what a sync has promised is there."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.partition.logs import (
    KEY,
    TOPIC_ID,
    contents,
    open_directory,
    open_partition,
    options,
    read,
)
from tests.sim.history import SMALL, Teller
from tests.sim.sim_disk import CountingDisk, SimDisk

if TYPE_CHECKING:
    from pathlib import Path

# As "fsync" durability has it: files are longer than their logs while they are written.
SYNCED = options(
    segment_bytes=1200, index_bytes=96, interval=200, ahead=500, is_synced_on_roll=True
)
FAILURES_PER_SEED = 12
SEEDS = 20


@pytest.mark.parametrize("number", range(SEEDS))
def test_what_was_synced_survives_a_power_failure(tmp_path: Path, number: int) -> None:
    """Goal: "fsync" durability: nothing that was acknowledged after a sync is lost, whatever becomes of the rest:
    lost sizes, lost names, torn sectors; nothing aborted is seen.
    Method: tell a history over a disk that knows what was synced, and fail the power at random steps, keeping a
    random part of what was not."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    disk, teller = SimDisk(), Teller(4, syncs=True)
    path = tmp_path / "live"
    directory = open_directory(path, SYNCED, disk=disk)
    partition = directory.create(KEY, TOPIC_ID)
    steps = list(teller.steps(partition))
    failing = set(chance.sample(range(len(steps)), FAILURES_PER_SEED))
    for at, step in enumerate(steps):
        step()
        if chance.random() < 0.1:
            directory.checkpoint()
        if chance.random() < 0.1:
            partition.roll(0)
        if at in failing:
            check_after_failure(path, tmp_path / "failed", disk, teller, chance)
    directory.close()


def check_after_failure(
    path: Path, failed: Path, disk: SimDisk, teller: Teller, chance: random.Random
) -> None:
    disk.fail_power(path, failed, chance)
    before = contents(failed)
    directory, partition = open_partition(failed, SMALL, read_only=True)
    teller.ledger.check(partition)
    shown = read(partition)
    directory.close()
    assert contents(failed) == before
    directory, partition = open_partition(failed, SMALL, disk=CountingDisk())
    teller.ledger.check(partition)
    assert read(partition) == shown
    directory.close()
    shutil.rmtree(failed)
