"""Growth is drawn and judged as it says. No promise here depends on how fast the machine is: clocks are moved by hand."""

from __future__ import annotations

import errno
import gc
import io
import itertools
import json
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from benches import growth, growth_curve
from benches.files import ROOT
from benches.growth_chart import draw, size_of, time_of
from benches.growth_costs import GROWTHS
from benches.growth_curve import FLAT, LINEAR, Curve, Growth, measure, slope_of
from benches.harness import Contestant, Role, Settings, surroundings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

EARNEST = Settings(rounds=4, round_seconds=0.004)
SIZES = (10, 40, 160, 640, 2560)
GROWING = {
    *("records", "record_size", "partitions", "producers", "aborted", "segments"),
    *("transactional_ids", "open_transactions", "threads"),
}


class Machine:
    """A clock that moves only by what is done, and operations that cost what they are told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls = 0

    def clock(self) -> float:
        return self.now

    def growth(self, cost: Callable[[int], float], expected: float, name: str = "n.do") -> Growth:
        def prepare(settings: Settings, size: int) -> Contestant:
            def call() -> None:
                self.calls += 1
                self.now += cost(size)

            return Contestant("oncelog", Role.OURS, call)

        return Growth(
            name, "do n things", "A clock is moved by hand.", "things", "s", SIZES, prepare,
            expected, clock=self.clock,
        )  # fmt: skip


def curve_of(cost: Callable[[int], float], expected: float) -> Curve:
    points = tuple((size, cost(size)) for size in SIZES)
    return Curve("n.do", "do n things", "A formula.", "things", "s", points, expected)


def test_every_curve_runs_and_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: no curve rots, and the picture and the JSON are made of them.
    Method: run all of them on tiny data, in this process."""
    words = ["--quick", "--json", str(tmp_path / "g.json"), "--png", str(tmp_path / "g.png")]
    assert growth.main([*words, "--check"]) == 0
    said = capsys.readouterr()
    report = json.loads((tmp_path / "g.json").read_text())
    assert {"machine", "versions", "commit", "settings", "curves"} <= report.keys()
    assert [curve["name"] for curve in report["curves"]] == [one.name for one in GROWTHS]
    assert {curve["name"].partition(".")[0] for curve in report["curves"]} == GROWING
    for curve in report["curves"]:
        assert curve["met"] is None, "a smoke run judged"
        assert all(seconds > 0 for _, seconds in curve["points"])
        assert curve["name"] in said.out
    drawn = (tmp_path / "g.png").exists()
    assert drawn or "matplotlib is not installed" in said.err
    gc.collect()
    mine = [path for path in (ROOT / "build/bench").glob("*") if f".{os.getpid()}." in path.name]
    assert not [path.name for path in mine if path.name.startswith("growth")]


@pytest.mark.parametrize("promise", GROWTHS, ids=lambda promise: promise.name)
def test_a_promise_says_what_is_measured_and_grows_in_even_steps(promise: Growth) -> None:
    assert promise.caption.endswith(".")
    assert promise.caption.count(". ") == 0, "one sentence"
    assert promise.x_label
    assert promise.unit.partition("/")[0] == "s"
    sizes = promise.sizes
    assert 4 <= len(sizes) <= 6
    assert {after / before for before, after in itertools.pairwise(sizes)} == {sizes[1] / sizes[0]}


@pytest.mark.parametrize(
    ("cost", "expected", "verdict"),
    [
        (lambda _: 1e-5, FLAT, "met"),
        (lambda size: 1e-5 * size, LINEAR, "met"),
        (lambda size: 1e-5 + 1e-6 * size, LINEAR, "met"),
        (lambda size: 1e-3 / size**0.5, -0.5, "met"),
        (lambda size: 1e-7 * size**2, LINEAR, "worse"),
        (lambda size: 1e-6 * size**1.5, LINEAR, "worse"),
        (lambda size: 1e-5 * size, FLAT, "worse"),
        (lambda size: 1e-3 + 1e-6 * size, FLAT, "worse"),  # hidden by a constant at all but the end
        (lambda _: 1e-5, -0.5, "worse"),
    ],
)
def test_a_cost_that_grows_faster_than_promised_is_worse(
    cost: Callable[[int], float], expected: float, verdict: str
) -> None:
    assert str(measure(Machine().growth(cost, expected), EARNEST)) == verdict


def test_a_worse_slope_fails_the_bench_and_stands_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: the bench cannot flatter us.
    Method: plant an operation that is quadratic among one that is flat as promised."""
    machine = Machine()
    planted = (
        machine.growth(lambda _: 1e-4, FLAT, "flat.do"),
        machine.growth(lambda size: 1e-8 * size**2, LINEAR, "square.do"),
    )
    monkeypatch.setattr(growth, "GROWTHS", planted)
    path = tmp_path / "g.json"
    assert growth.main(["--rounds", "3", "--check", "--json", str(path)]) == 1
    assert "1 met, 1 worse" in capsys.readouterr().out
    flat, square = json.loads(path.read_text())["curves"]
    assert (flat["met"], square["met"]) == (True, False)
    assert square["slope"] == pytest.approx(2, abs=0.05)
    assert growth.main(["--rounds", "3"]) == 0, "who only looks is not failed"
    assert growth.main(["--rounds", "3", "--check", "--only", "flat.*"]) == 0


def test_a_busy_neighbour_fails_nothing() -> None:
    """Goal: noise is not growth.
    Method: the largest size is disturbed in the whole of the first measurement, and in every other round after it."""
    machine = Machine()
    first = (1 + EARNEST.rounds) * len(SIZES)  # calls: one to warm up, one in every round

    def cost(size: int) -> float:
        is_disturbed = machine.calls <= first or machine.calls % 2
        return 0.1 * (5 if size == SIZES[-1] and is_disturbed else 1)

    assert measure(machine.growth(cost, FLAT), EARNEST).met is True
    assert machine.calls > first, "it was measured again"


def test_sizes_take_turns() -> None:
    asked: list[int] = []
    machine = Machine()

    def cost(size: int) -> float:
        asked.append(size)
        return 1e-3

    measure(machine.growth(cost, FLAT), Settings(rounds=5, round_seconds=0.0))
    rounds = [asked[at : at + len(SIZES)] for at in range(len(SIZES), len(asked), len(SIZES))]
    assert [sorted(turn) for turn in rounds] == [list(SIZES)] * 5
    assert {turn[0] for turn in rounds} == set(SIZES), "the first turn goes round"


def test_the_slope_is_the_exponent_and_one_stray_point_does_not_turn_it() -> None:
    for exponent in (-0.5, 0.0, 1.0, 2.0):
        points = [(size, 3e-6 * size**exponent) for size in SIZES]
        assert slope_of(points) == pytest.approx(exponent)
        points[2] = (points[2][0], points[2][1] * 3)
        assert slope_of(points) == pytest.approx(exponent, abs=0.2)


def test_an_unknown_curve_is_a_misuse(capsys: pytest.CaptureFixture[str]) -> None:
    assert growth.main(["--only", "no.such"]) == 2
    said = capsys.readouterr().err
    assert "no.such" in said
    assert "records.send" in said


def test_a_curve_that_cannot_be_measured_is_said_and_the_rest_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(settings: Settings, size: int) -> Contestant:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    good = Machine().growth(lambda _: 1e-4, FLAT)
    monkeypatch.setattr(growth, "GROWTHS", (replace(good, name="disk.fill", prepare=full), good))
    assert growth.main(["--rounds", "3", "--check"]) == 0
    said = capsys.readouterr()
    assert "disk.fill: skipped, [Errno 28] No space left on device" in said.err
    assert "1 met" in said.out


def test_curves_are_drawn_from_what_the_json_holds(tmp_path: Path) -> None:
    """Goal: a report draws them again, into a file, a buffer or its own axes, without running anything.
    Method: through JSON and back, one of each verdict; look at what stands in the axes."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    found = [curve_of(lambda _: 1e-5, FLAT), curve_of(lambda size: 1e-7 * size**2, LINEAR)]
    curves: list[dict[str, Any]] = json.loads(json.dumps([curve.as_json() for curve in found]))
    about = json.loads(json.dumps(surroundings(Settings.tiny())))
    draw(tmp_path / "deep" / "g.png", curves, about)
    assert (tmp_path / "deep" / "g.png").read_bytes().startswith(b"\x89PNG")
    buffer = io.BytesIO()
    draw(buffer, curves, about)
    assert buffer.getvalue().startswith(b"\x89PNG")
    figure, axes = pyplot.subplots(1, 2)
    draw(axes, curves, about)
    for axis, curve, verdict in zip(axes, curves, ("met", "worse"), strict=True):
        words = " ".join(text.get_text() for text in axis.texts)
        assert verdict in words
        assert curve["caption"] in words
        assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
        assert axis.get_xlabel() == "things"
        assert axis.get_ylabel() == "time in all"
    pyplot.close(figure)
    with pytest.raises(LookupError):
        draw(tmp_path / "none.png", [], about)


def test_without_matplotlib_the_table_is_still_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(growth, "GROWTHS", (Machine().growth(lambda _: 1e-4, FLAT),))
    assert growth.main(["--quick", "--png", str(tmp_path / "g.png")]) == 0
    said = capsys.readouterr()
    assert "n.do" in said.out
    assert "matplotlib is not installed" in said.err


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (3.21e-8, "32.1 ns"),
        (9.996e-7, "1.00 µs"),
        (4.5e-5, "45.0 µs"),
        (0.25, "250 ms"),
        (2, "2.00 s"),
    ],
)
def test_times_have_three_digits_and_a_unit(seconds: float, shown: str) -> None:
    assert time_of(seconds) == shown


def test_sizes_are_short() -> None:
    assert [size_of(size) for size in (8, 800, 1000, 2048, 12_800, 256_000, 1_000_000)] == [
        *("8", "800", "1k", "2,048", "12.8k", "256k", "1M"),
    ]


def test_a_curve_is_measured_again_before_it_is_called_worse() -> None:
    machine = Machine()
    measure(machine.growth(lambda size: 1e-6 * size, FLAT), Settings(rounds=3, round_seconds=0.0))
    assert machine.calls == growth_curve.SECOND_OPINIONS * (1 + 3) * len(SIZES)
