"""oncelog: Kafka's transactional log as a Python library."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from typing import Literal

    from .client.directory import LogDirectory

__version__ = "0.1.0"

__all__ = ["__version__", "open"]


def open(path: str | os.PathLike[str], *, read_only: Literal[True]) -> LogDirectory:
    """A data directory to read: one of ours, or one that a Kafka broker wrote. It is left as it is.

    >>> with oncelog.open("kafka-data", read_only=True) as log:  # doctest: +SKIP
    ...     table = pyarrow.table(log.read("payments"))
    """
    from .client.directory import LogDirectory

    if not read_only:
        raise ValueError("this version opens directories for reading: pass read_only=True")
    return LogDirectory(path)
