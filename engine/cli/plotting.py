"""What all pictures share: matplotlib, if it is there, and the colours."""

from __future__ import annotations

from typing import Any, Final

from ..partition.timeline import Outcome
from .output import Misuse

BACKGROUND: Final = "#ffffff"
INK: Final = "#212529"
SOFT_INK: Final = "#868e96"
ACCENT: Final = "#1971c2"
# Told apart by people who see few colours, too: blue-green, red, amber, grey-blue.
COLOURS: Final = {
    Outcome.PLAIN: "#748ffc",
    Outcome.COMMITTED: "#2b8a3e",
    Outcome.ABORTED: "#e03131",
    Outcome.OPEN: "#f59f00",
}


def pyplot() -> Any:
    """matplotlib's pyplot, drawing into memory."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise Misuse(
            "Pictures are drawn by matplotlib, which is not installed: pip install 'oncelog[plot]'."
        ) from error
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    return plt
