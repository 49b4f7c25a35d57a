"""Failures that are planned: between the clients of a log and its broker stands one who answers in its place.

Nothing is patched. Producers and consumers take any object with a broker's verbs, and get this one.
"""

from __future__ import annotations

import copy
import difflib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..base.errors import ClosedError
from ..broker.broker import Broker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..broker.waiting import Watch
    from ..partition.partition import Partition
    from ..segment.names import TopicPartition

# What a broker does by itself, or for the coordinators inside it: no client calls these, so no failure could come.
_NOT_ASKED: Final = {
    *("abandon", "apply_retention", "check_open", "checkpoint", "close", "compact", "existing"),
    *("opened", "sync", "tick", "write_marker"),
}
VERBS: Final = frozenset(
    name
    for name in dir(Broker)
    if not name.startswith("_") and callable(getattr(Broker, name)) and name not in _NOT_ASKED
)


@dataclass
class _Plan:
    """A failure that waits for its call."""

    error: Exception
    left: int
    when: Callable[..., bool] | None
    is_after: bool


class Faults:
    """What shall go wrong in the calls of one log's clients. Any thread may plan."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plans: dict[str, list[_Plan]] = {}
        self.happened: list[tuple[str, Exception]] = []

    def __repr__(self) -> str:
        return f"Faults({self.planned})"

    def next(
        self,
        verb: str,
        error: Exception | type[Exception],
        *,
        times: int = 1,
        when: Callable[..., bool] | None = None,
        after: bool = False,
    ) -> None:
        """The next call of a verb fails with ``error``, or the next ``times`` calls.

        ``verb`` is a request of Kafka's as the broker has it: ``produce``, ``end_txn``, ``init_producer_id``; a
        consumer's look into a log counts as ``fetch``. With ``when`` only those calls count for which it is true; it
        gets their arguments. With ``after`` the call is carried out and its answer lost: for those who must not do a
        thing twice. Several plans for one verb wait in line.
        """
        if verb not in VERBS:
            near = difflib.get_close_matches(verb, VERBS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{verb!r} is nothing that a client asks of a broker{hint}")
        if times < 1:
            raise ValueError(f"a failure happens once or more often, not {times} times")
        if isinstance(error, type):
            error = error(f"planned by a test: {verb} fails")
        with self._lock:
            self._plans.setdefault(verb, []).append(_Plan(error, times, when, after))

    @property
    def planned(self) -> dict[str, int]:
        """How many failures still wait for their call, by verb."""
        with self._lock:
            return {
                verb: sum(plan.left for plan in plans)
                for verb, plans in self._plans.items()
                if plans
            }

    def clear(self) -> None:
        """Nothing is planned any more."""
        with self._lock:
            self._plans.clear()

    def call(
        self, verb: str, function: Callable[..., Any], args: Iterable[Any], options: dict[str, Any]
    ) -> Any:
        """The answer of a call, or what was planned for it."""
        args = tuple(args)
        plan = self._taken(verb, args, options) if self._plans.get(verb) else None
        if plan is None:
            return function(*args, **options)
        if plan.is_after:
            function(*args, **options)
        # A new one each time: an exception that is raised twice would collect tracebacks.
        error = copy.copy(plan.error).with_traceback(None)
        self.happened.append((verb, error))
        raise error

    def _taken(self, verb: str, args: tuple[Any, ...], options: dict[str, Any]) -> _Plan | None:
        """The first plan for such a call."""
        with self._lock:
            plans = self._plans.get(verb, [])
            for plan in plans:
                if plan.when is None or plan.when(*args, **options):
                    plan.left -= 1
                    if not plan.left:
                        plans.remove(plan)
                    return plan
            return None


class FaultyBroker:
    """A broker in front of which failures happen. What is no verb is passed on as it is."""

    def __init__(self, broker: Broker, faults: Faults) -> None:
        self._broker = broker
        self._faults = faults
        self._is_dead = False

    def die(self) -> None:
        """From now on every verb answers that the log is gone."""
        self._is_dead = True

    def _check_alive(self) -> None:
        if self._is_dead:
            raise ClosedError(f"{self._broker.path} was killed")

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._broker, name)
        if name not in VERBS:
            return found

        def call(*args: Any, **options: Any) -> Any:
            self._check_alive()
            return self._faults.call(name, found, args, options)

        setattr(self, name, call)  # the next look finds it without us
        return call


class FetchingBroker(FaultyBroker):
    """The same for the consumers of a log, which read from the logs themselves: each look into one is a fetch.

    So is the look with which a second consumer is assigned what another one reads already.
    """

    def __init__(self, broker: Broker, faults: Faults) -> None:
        super().__init__(broker, faults)
        self._watched: set[TopicPartition] = set()

    def watch(self, keys: Iterable[TopicPartition], wake: Callable[[], None]) -> Watch:
        self._check_alive()
        keys = tuple(keys)
        found: Watch = self._faults.call("watch", self._broker.watch, (keys, wake), {})
        self._watched.update(keys)
        return found

    def partition(self, key: TopicPartition) -> Partition:
        self._check_alive()
        # Before it is watched it is only being assigned.
        verb = "fetch" if key in self._watched else "partition"
        found: Partition = self._faults.call(verb, self._broker.partition, (key,), {})
        return found
