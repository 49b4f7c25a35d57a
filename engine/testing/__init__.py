"""What tests of others need: a log that fails as planned, dies on command and lives by a clock moved by hand."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .faults import Faults
    from .manual_clock import ManualClock
    from .scratch_log import ScratchLog, open, open_temporary

__all__ = ["Faults", "ManualClock", "ScratchLog", "open", "open_temporary"]

# Loaded when they are asked for: pytest imports this package at its start, in every project that has it installed.
_HOMES: Final = {
    "Faults": "faults",
    "ManualClock": "manual_clock",
    "ScratchLog": "scratch_log",
    "open": "scratch_log",
    "open_temporary": "scratch_log",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{home}", __name__), name)
