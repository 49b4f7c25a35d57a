"""oncelog: Kafka's transactional log as a Python library."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from .base import errors

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from typing import Literal

    from .client.client import Log
    from .client.directory import LogDirectory
    from .partition.salvage import Damage

__version__ = "0.1.0"

__all__ = ["Damage", "Log", "LogDirectory", "__version__", "errors", "open"]

# Classes of what open() and its methods give out, for those who name them in types. Nobody pays for their import
# who does not.
_CLASSES = {
    "Damage": ".partition.salvage",
    "Log": ".client.client",
    "LogDirectory": ".client.directory",
}


def __getattr__(name: str) -> type:
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    found: type = getattr(importlib.import_module(_CLASSES[name], __name__), name)
    return found


@overload
def open(path: str | os.PathLike[str], *, read_only: Literal[True]) -> LogDirectory: ...
@overload
def open(
    path: str | os.PathLike[str],
    *,
    read_only: Literal[False] = False,
    durability: Literal["os", "fsync"] = "os",
    adopt: bool = False,
    config: Mapping[str, object] | None = None,
    clock: Callable[[], int] | None = None,
) -> Log: ...
def open(
    path: str | os.PathLike[str],
    *,
    read_only: bool = False,
    durability: str = "os",
    adopt: bool = False,
    config: Mapping[str, object] | None = None,
    clock: Callable[[], int] | None = None,
) -> Log | LogDirectory:
    """A data directory as an embedded broker, made if it is not there; one process at a time may have it open so.

    ``durability``: what was acknowledged survives the process (``"os"``, as Kafka's default) or a loss of power
    (``"fsync"``). ``config`` takes Kafka's broker options. ``adopt=True`` takes over a directory that a Kafka broker
    wrote. ``clock`` gives the milliseconds since 1970, for tests.

    With ``read_only=True`` any number of processes may look at a directory, ours or a Kafka broker's; it is left as
    it is.

    >>> with oncelog.open("data") as log:  # doctest: +SKIP
    ...     log.create_topic("payments", partitions=3)
    ...     with log.producer() as producer:
    ...         producer.send("payments", key=b"k", value=b"v").result()
    """
    if read_only:
        from .client.directory import LogDirectory

        return LogDirectory(path)
    from .base.clock import now_ms
    from .client.client import Log

    return Log(path, durability=durability, adopt=adopt, config=config, clock=clock or now_ms)
