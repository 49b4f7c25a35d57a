"""Thousands of random steps against the model: ``python -m tests.sim.txn_soak --seed 7 --steps 5000``.

Everything follows from the seed, which is printed first; a failure prints the last actions, too.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.sim.txn_parts import KEYS
from tests.sim.txn_world import World

# How often each action happens, of all.
WEIGHTS = {
    "send": 30,
    "end": 16,
    "send_plain": 12,
    "resend": 5,
    "resend_plain": 5,
    "end_again": 4,
    "zombie": 6,
    "take_over": 4,
    "prepare": 2,
    "complete": 2,
    "let_time_pass": 5,
    "delete": 4,
    "compact": 2,
    "restart": 2,
    "crash": 2,
    "fail_power": 2,
    "go_offline": 1,
    "come_online": 2,
    "look_from_outside": 3,
    "commit_offset": 10,
    "send_offsets": 14,
    "zombie_offsets": 6,
    "join": 6,
    "leave": 2,
    "fall_silent": 2,
}
CRASHES = 0.12  # of all calls that write, cut off in their middle


def step(world: World, chance: random.Random) -> None:
    """One action, and a look at everything."""
    name = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    number, key = chance.randrange(len(world.holders)), chance.choice(KEYS)
    crash = chance.randrange(12) if chance.random() < CRASHES else None
    count, commits = chance.randint(1, 3), chance.random() < 0.6
    if name == "send":
        world.send(number, key, count, crash)
    elif name == "end":
        world.end(number, commits=commits, crash=crash)
    elif name == "send_plain":
        world.send_plain(number, key, count, waits=chance.random() < 0.7, crash=crash)
    elif name == "resend":
        world.resend(number, key)
    elif name == "resend_plain":
        world.resend_plain(number, key, chance.randrange(5))
    elif name == "end_again":
        world.end_again(number, commits=commits)
    elif name == "zombie":
        world.zombie(chance.randrange(6), key, chance.randrange(4))
    elif name == "take_over":
        world.take_over(number, crash, keeps=chance.random() < 0.5)
    elif name == "prepare":
        world.prepare(crash)
    elif name == "complete":
        world.complete(commits=commits, crash=crash)
    elif name == "let_time_pass":
        world.let_time_pass(chance.choice([100, 2_000, 6_000, 11_000]), crash)
    elif name == "delete":
        world.delete(key, chance.random(), crash)
    elif name == "compact":
        world.compact(crash)
    elif name == "restart":
        world.restart(crash)
    elif name == "crash":
        world.crash()
    elif name == "fail_power" and world.durability == "fsync":
        world.fail_power()
    elif name == "go_offline":
        world.go_offline(key)
    elif name == "come_online":
        world.come_online()
    elif name == "look_from_outside":
        world.look_from_outside()
    else:
        step_group(world, chance, name, crash)
    world.check()


def step_group(world: World, chance: random.Random, name: str, crash: int | None) -> None:
    """The same, of what is about groups."""
    number, member, key = (
        chance.randrange(len(world.holders)),
        chance.randrange(4),
        chance.choice(KEYS),
    )
    if name == "commit_offset":
        world.commit_offset(member, key, crash)
    elif name == "send_offsets":
        world.send_offsets(number, member, key, crash)
    elif name == "zombie_offsets":
        world.zombie_offsets(chance.randrange(6), key, chance.randrange(4))
    elif name == "join":
        world.join(member, chance.choice(["", "", "joining", "syncing"]))
    elif name == "leave":
        world.leave(member)
    elif name == "fall_silent":
        world.fall_silent(member)


def soak(path: Path, *, seed: int, steps: int, durability: str) -> World:
    """Goes through all steps; raises at the first that breaks a promise, after saying how it came to it."""
    print(f"seed {seed}, durability {durability}, {steps} steps", flush=True)
    chance = random.Random(seed)
    world = World(path, durability=durability, seed=seed)
    try:
        for _ in range(steps):
            step(world, chance)
    except BaseException:
        print(f"seed {seed}, durability {durability}: failed; the last actions were")
        print("\n".join(f"  {action}" for action in world.trace), flush=True)
        raise
    world.close()
    return world


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--durability", choices=("os", "fsync"), default=None)
    given = parser.parse_args()
    for durability in (given.durability,) if given.durability else ("os", "fsync"):
        with tempfile.TemporaryDirectory() as path:
            world = soak(Path(path), seed=given.seed, steps=given.steps, durability=durability)
            print(f"{world.checks} checks, {world.crashes} crashes: all promises hold")
    return 0


if __name__ == "__main__":
    sys.exit(main())
