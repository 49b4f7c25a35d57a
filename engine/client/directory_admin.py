"""The administrator of a directory that is only read: what there is of topics, options, offsets, groups, transactions
and producers, with the same answers as the administrator of an open log.

Any number of processes may ask, beside one that writes, and of a real Kafka broker's directory, too. What would change
the directory raises InvalidRequestError. Topics, groups and transactions are those of the moment: ask
``LogDirectory.admin()`` again to see what has happened since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..broker.observed import ObservedBroker
from .admin import Admin

if TYPE_CHECKING:
    from ..partition.data_directory import DataDirectory

__all__ = ["DirectoryAdmin"]


class DirectoryAdmin(Admin):
    """The administrator of a directory that is only read. It holds nothing and need not be closed."""

    def __init__(self, data: DataDirectory) -> None:
        super().__init__(ObservedBroker(data))

    def __repr__(self) -> str:
        return f"DirectoryAdmin({self._broker.path!r})"
