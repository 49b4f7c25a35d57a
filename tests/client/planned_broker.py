"""A real broker whose calls fail as planned, to see how a client reacts."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

from oncelog.broker.answers import Produced

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncelog._native.accumulator import RecordMetadata
    from oncelog.broker.broker import Broker


class PlannedBroker:
    """Passes every verb on to a broker, except where a failure is planned; notes each call."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self._plans: dict[str, deque[tuple[Exception | None, bool]]] = defaultdict(deque)
        self._provided: dict[str, Callable[..., Any]] = {}
        self.now_ms = broker.now_ms

    def fail(self, verb: str, *errors: Exception | None, lost: bool = False) -> None:
        """The next calls raise these errors (None: one that succeeds); ``lost``: after they were carried out."""
        self._plans[verb].extend((error, lost) for error in errors)

    def has_plans(self, verb: str) -> bool:
        return bool(self._plans[verb])

    def provide(self, verb: str, function: Callable[..., Any]) -> None:
        """Answers a verb in the broker's place."""
        self._provided[verb] = function

    def count(self, verb: str) -> int:
        return sum(name == verb for name, _, _ in self.calls)

    def forget(self) -> None:
        self.calls.clear()

    def __getattr__(self, name: str) -> Any:
        found = self._provided.get(name)
        if found is None:
            found = getattr(self.broker, name)
        if not callable(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            self.calls.append((name, args, options))
            plan = self._plans[name]
            error, lost = plan.popleft() if plan else (None, False)
            if error is not None and not lost:
                raise error
            answer = found(*args, **options)
            if error is not None:
                raise error
            return answer

        return call


class Heard:
    """An on_delivery callback that remembers."""

    def __init__(self) -> None:
        self.errors: list[Exception | None] = []
        self.offsets: list[int] = []
        self.called = threading.Event()

    def __call__(self, error: Exception | None, found: RecordMetadata | None) -> None:
        self.errors.append(error)
        if found is not None:
            self.offsets.append(found.offset)
        self.called.set()


class Pending:
    """An acknowledgement that comes when the test says so."""

    def __init__(self, error: Exception | None = None) -> None:
        self.released = threading.Event()
        self.asked = threading.Event()
        self.error = error

    def wait(self) -> None:
        self.asked.set()
        assert self.released.wait(30), "nobody released the acknowledgement"
        if self.error is not None:
            raise self.error

    def produce(self, *_args: Any, **_options: Any) -> Any:
        """A broker's answer that waits for this."""
        return Produced(0, 0, -1, False, self)  # type: ignore[arg-type]
