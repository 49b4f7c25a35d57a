"""kill -9 on members that copy in transactions: what comes out is what went in, once and in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sim.copy_soak import Plan, soak

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("seed", [2, 3], ids=["range", "cooperative"])
def test_every_message_is_copied_once_and_in_order_through_kills_and_restarts(
    tmp_path: Path, seed: int
) -> None:
    """Goal: aborts, rebalances, kill -9 and clean stops neither lose nor double a message, and a reader that looks on
    all the time never sees an aborted one.
    Method: copy_soak.py in small; `make soak` runs the long form."""
    kills, stops, looks = soak(str(tmp_path), Plan(8000, 25, 3, seed), timeout_s=120)
    assert (kills, stops) == (2, 1)
    assert looks > 3
