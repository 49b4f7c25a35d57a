"""`pytest benches --benchmark-only`: each contestant of each case is one benchmark, grouped by case."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .harness import Settings

if TYPE_CHECKING:
    from .harness import Case, Contestant


_checked: set[int] = set()  # cases, which live as long as the session


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="benches: tiny data, to see that it runs")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "contestant" not in metafunc.fixturenames:
        return
    quick = metafunc.config.getoption("--quick")
    settings = Settings.tiny() if quick else Settings()
    pairs: list[tuple[Case, Contestant]] = [
        (case, one) for case in metafunc.module.cases(settings) for one in case.contestants
    ]
    metafunc.parametrize(
        ("case", "contestant"),
        pairs,
        ids=[f"{case.name}-{one.name.replace(' ', '_')}" for case, one in pairs],
    )


@pytest.fixture(autouse=True)
def _same_work(case: Case, contestant: Contestant, request: pytest.FixtureRequest) -> None:
    """Groups by case, and times nobody who is missing or does other work."""
    if contestant.call is None:
        pytest.skip(f"{contestant.name}: {contestant.missing}")
    if case.ours.call is None:
        pytest.skip(f"{case.name}: {case.ours.missing}")
    if case.unit.is_gauge:
        pytest.skip(f"{contestant.name}: counted, not timed, see python -m benches")
    if contestant.loops != case.ours.loops:
        pytest.skip(f"{contestant.name}: timed in a loop or a part, see python -m benches")
    if id(case) not in _checked:
        case.check()
        _checked.add(id(case))
    benchmark = request.getfixturevalue("benchmark")
    benchmark.group = case.name
    benchmark.extra_info["unit"] = case.unit.value
    benchmark.extra_info["work"] = case.work * contestant.loops
