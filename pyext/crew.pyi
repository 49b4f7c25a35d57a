from collections.abc import Callable
from typing import Protocol, TypeVar, final

_Answer = TypeVar("_Answer")

class _Answered(Protocol):
    @property
    def is_answered(self) -> bool: ...
    def give_up(self) -> None: ...

_Call = TypeVar("_Call", bound=_Answered)

@final
class Crew:
    def __len__(self) -> int: ...
    def call(self, call: _Call, answer: Callable[[list[_Call]], None]) -> None: ...
    def rest(self, function: Callable[..., _Answer], *arguments: object) -> _Answer: ...
