"""One curve: how the cost of an operation grows with one number, and whether that is what was promised.

The slope in a picture with two logarithmic axes is the exponent: 0 is flat, 1 is linear, 2 is quadratic.

Fair    all sizes are alive at once and take turns, round by round, so that noise hits all; the best round counts.
Honest  a constant hides growth where there is little of it, so the slope is fitted where there is much.
Calm    a curve that looks worse than promised is measured again, and again, before it is called so: the best of more
        rounds can only fall, and what a neighbour did to one of them is forgotten.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import resource
import statistics
import time
import timeit
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .harness import calls_per_round

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .harness import Contestant, Settings

Point = tuple[int, float]  # size, seconds of the best round

FLAT: Final = 0.0
LINEAR: Final = 1.0
# What grows in steps of four costs 1.4 times too much a step before the margin is used up: a cache that is left behind
# does not fail a curve, and another factor of n or even of its root does.
MARGIN: Final = 0.25
FITTED_MIN: Final = 3  # points
TINY: Final = (2, 8)  # the sizes of a smoke run
SECOND_OPINIONS: Final = 3
FILES: Final = 8192


@dataclass(frozen=True)
class Growth:
    """A promise: what is measured, at which sizes, and how steep its cost may be."""

    name: str  # stable: what grows, then what is done
    title: str
    caption: str  # one sentence: what was measured, and what was not
    x_label: str
    unit: str  # what the seconds are for, such as "s/commit"
    sizes: Sequence[int]
    prepare: Callable[[Settings, int], Contestant]  # ``loops`` of it: units in one call
    expected: float = FLAT
    margin: float = MARGIN
    # The time of the calling thread, which no neighbour prolongs; where other threads work too, that of the process;
    # where waiting is what counts, the clock on the wall.
    clock: Callable[[], float] = time.thread_time


@dataclass(frozen=True)
class Curve:
    """A promise, measured."""

    name: str
    title: str
    caption: str
    x_label: str
    unit: str
    points: tuple[Point, ...]
    expected: float
    margin: float = MARGIN
    counts: bool = True  # a smoke run says nothing

    @property
    def fitted(self) -> tuple[Point, ...]:
        """The points that the slope is taken from: the larger half, or all where the cost must fall."""
        if self.expected < 0:
            return self.points
        return self.points[-max(FITTED_MIN, len(self.points) // 2 + 1) :]

    @property
    def slope(self) -> float:
        return slope_of(self.fitted)

    @property
    def is_steep(self) -> bool:
        return self.slope > self.expected + self.margin

    @property
    def met(self) -> bool | None:
        return not self.is_steep if self.counts else None

    def __str__(self) -> str:
        return {True: "met", False: "worse", None: "not measured"}[self.met]

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "title": self.title,
            "caption": self.caption,
            "x_label": self.x_label,
            "unit": self.unit,
            "points": [list(point) for point in self.points],
            "fitted": len(self.fitted),
            "slope": self.slope,
            "expected": self.expected,
            "margin": self.margin,
            "met": self.met,
        }


def slope_of(points: Sequence[Point]) -> float:
    """The middle one of the slopes between any two points: one point that lies astray does not turn it."""
    logs = [(math.log(size), math.log(seconds)) for size, seconds in points]
    return statistics.median(
        (after[1] - before[1]) / (after[0] - before[0])
        for before, after in itertools.combinations(logs, 2)
    )


def _best(
    contestants: Sequence[Contestant], clock: Callable[[], float], settings: Settings
) -> list[float]:
    """Seconds that one unit takes in the best round, for each size."""
    lanes = []
    for one in contestants:
        assert one.call is not None
        timer = timeit.Timer(one.call, one.setup or "pass", clock, globals=dict(one.names))
        # What is prepared for every round can be used up by one call.
        if one.setup is not None or not settings.round_seconds:
            calls, each = 1, timer.timeit(1)
        else:
            calls, each = calls_per_round(timer, settings.round_seconds)
        rounds = settings.rounds
        if each > 10 * settings.round_seconds:
            rounds = min(rounds, max(settings.slow_rounds, int(settings.slow_seconds / each)))
        lanes.append((timer, calls, rounds, one.loops))
    best = [math.inf] * len(lanes)
    for turn in range(settings.rounds):
        for number in range(len(lanes)):
            at = (turn + number) % len(lanes)  # the order turns, too
            timer, calls, rounds, loops = lanes[at]
            if turn < rounds:
                best[at] = min(best[at], timer.timeit(calls) / calls / loops)
    return best


@contextlib.contextmanager
def _many_files() -> Iterator[None]:
    """Hundreds of partitions are open at once, with three files each: more than many shells allow, unless asked."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        yield
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def measure(growth: Growth, settings: Settings) -> Curve:
    """One curve; its files and logs are gone when it is drawn."""
    with _many_files():
        curve = _measure(growth, settings)
        gc.collect()  # logs and their clients refer to each other; the next curve wants their memory and files
    return curve


def _measure(growth: Growth, settings: Settings) -> Curve:
    sizes = TINY if settings.quick else growth.sizes
    contestants = [growth.prepare(settings, size) for size in sizes]
    best = [math.inf] * len(sizes)
    for _ in range(SECOND_OPINIONS):
        found = _best(contestants, growth.clock, settings)
        # A clock that stood still during a tiny call has no logarithm.
        best = [max(min(pair), 1e-9) for pair in zip(best, found, strict=True)]
        curve = Curve(
            growth.name, growth.title, growth.caption, growth.x_label, growth.unit,
            tuple(zip(sizes, best, strict=True)), growth.expected, growth.margin,
            counts=not settings.quick,
        )  # fmt: skip
        if settings.quick or not curve.is_steep:
            break
    return curve
