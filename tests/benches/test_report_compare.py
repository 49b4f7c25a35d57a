"""Two runs side by side: what changed beyond noise, what the machine did, which targets flipped."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from benches import compare
from benches.__main__ import main

from .results_files import a_run, case, contestant, document, promise, results, written

if TYPE_CHECKING:
    from pathlib import Path


def verdict(
    old: float, new: float, *, iqr: float = 0.0, limit: tuple[float, float] = (1.0, 1.0)
) -> str:
    """Of one case, given the best seconds of ours and of its limit before and after."""
    both = [
        document(
            results(
                case(
                    "a.b",
                    contestant("oncelog", "ours", ours, seconds_iqr=iqr * ours),
                    contestant("memcpy", "limit", floor),
                )
            )
        )
        for ours, floor in zip((old, new), limit, strict=True)
    ]
    (change,) = compare.compare(*both).changes
    return change.verdict


@pytest.mark.parametrize(
    ("old", "new", "iqr", "limit", "expected"),
    [
        (1.0, 1.04, 0.0, (1.0, 1.0), "same"),
        (1.0, 1.20, 0.0, (1.0, 1.0), "slower"),
        (1.0, 0.80, 0.0, (1.0, 1.0), "faster"),
        (1.0, 1.20, 0.3, (1.0, 1.0), "same"),  # the rounds vary by more than that
        (1.0, 1.50, 0.3, (1.0, 1.0), "slower"),
        (1.0, 1.20, 0.0, (1.0, 1.2), "same"),  # the whole machine was slower
        (1.0, 1.00, 0.0, (1.0, 0.7), "same"),  # the machine was faster, and ours took as long
        (1.0, 0.80, 0.0, (1.0, 0.8), "same"),
        (1.0, 1.60, 0.0, (1.0, 1.2), "slower"),
    ],
)
def test_a_change_counts_beyond_noise_and_beyond_the_machine(
    old: float, new: float, iqr: float, limit: tuple[float, float], expected: str
) -> None:
    assert verdict(old, new, iqr=iqr, limit=limit) == expected


def test_more_gigabytes_are_faster() -> None:
    """Goal: a unit of which more is better is not read backwards.
    Method: the same case takes half the time, so its rate doubles."""
    old, new = (
        document(
            results(case("crc.c", contestant("oncelog", "ours", took, value=1 / took), unit="GB/s"))
        )
        for took in (2.0, 1.0)
    )
    (change,) = compare.compare(old, new).changes
    assert (change.verdict, change.as_json()["new"]) == ("faster", 1.0)


def test_a_target_that_flips_is_named() -> None:
    def run(met: bool) -> Any:
        one = case(
            "a.b", contestant("oncelog", "ours", 1.0), targets=[promise("peer", 2, 1.5, met)]
        )
        return document(results(one))

    found = compare.compare(run(True), run(False))
    assert found.flipped == ("a.b: ≥ 2x peer was met, is missed by 25%",)
    assert compare.compare(run(True), run(True)).flipped == ()


def test_what_else_differs_is_said() -> None:
    old, new = a_run(), a_run()
    new["machine"]["cpu"] = "another"
    new["versions"]["numpy"] = "3.0"
    new["versions"]["oncelog"] = "0.2"  # that is what is compared
    new["settings"]["rounds"] = 3
    new["settings"]["quick"] = True
    new["machine"]["load"] = 9.0
    warnings = "\n".join(compare.compare(document(old), document(new)).warnings)
    for part in (
        "machine: cpu A & B <CPU> -> another", "versions: numpy 2.0 -> 3.0",
        "settings: rounds 25 -> 3", "the second is a quick run", "the second was measured on a busy",
    ):  # fmt: skip
        assert part in warnings, part
    assert "oncelog" not in warnings
    assert compare.compare(document(old), document(a_run())).warnings == ()


def test_cases_of_one_run_alone_are_named() -> None:
    first, second = (
        document(results(*(case(name, contestant("oncelog", "ours", 1.0)) for name in names)))
        for names in (("a.a", "a.b"), ("a.b", "a.c"))
    )
    found = compare.compare(first, second)
    assert (found.gone, found.added) == (("a.a",), ("a.c",))
    assert [change.new.case for change in found.changes] == ["a.b"]


def test_the_command_tells_it_as_table_and_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = written(tmp_path / "a", a_run(20e-9)), written(tmp_path / "b", a_run(30e-9))
    assert main(["compare", str(old), str(new)]) == 0
    shown = capsys.readouterr().out
    assert "+50.0%" in shown
    assert "0 faster, 2 slower, 3 the same within noise" in " ".join(shown.split())
    assert main(["compare", str(old), str(new), "--json", "--check"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["slower"], told["same"]) == (2, 3)
    assert main(["compare", str(new), str(old), "--check"]) == 0


def test_a_file_that_is_not_there_is_a_misuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "No such file" in capsys.readouterr().err
