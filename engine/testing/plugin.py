"""Fixtures for pytest, found by itself where oncelog is installed: ``oncelog`` and ``oncelog_clock``.

Nothing of the library is loaded before a test asks for a fixture, and pytest is no dependency of the library: this
module is imported by pytest alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .manual_clock import ManualClock
    from .scratch_log import ScratchLog

MARK = "oncelog(**options): options of oncelog.open for the fixture of that name"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARK)


@pytest.fixture
def oncelog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ScratchLog]:
    """A fresh log of the test's own, closed at its end.

    It takes options from ``@pytest.mark.oncelog(durability="fsync")``, and its time from ``oncelog_clock`` where the
    test, or one of its fixtures, asks for that too.
    """
    from .scratch_log import ScratchLog

    mark = request.node.get_closest_marker("oncelog")
    options = dict(mark.kwargs) if mark else {}
    if "oncelog_clock" in request.fixturenames:
        options["clock"] = request.getfixturevalue("oncelog_clock")
    with ScratchLog(tmp_path / "oncelog", **options) as log:
        yield log


@pytest.fixture
def oncelog_clock() -> ManualClock:
    """The clock of the test's log: time stands still until ``advance(ms)``."""
    from .manual_clock import ManualClock

    return ManualClock()
