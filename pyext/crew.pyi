from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar, final

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")

class Waiting(Protocol):
    @property
    def is_answered(self) -> bool: ...
    def give_up(self) -> None: ...

Call = TypeVar("Call", bound=Waiting)

@final
class Crew:
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def call(self, call: Call, answer: Callable[[list[Call]], None]) -> None: ...
    def rest(
        self, function: Callable[Arguments, Answer], *arguments: Arguments.args, **_: Arguments.kwargs
    ) -> Answer: ...
