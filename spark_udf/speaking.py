"""Errors as people on the driver see them: Spark shows a Python traceback, so that what matters is put within sight."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from oncelog import errors

if TYPE_CHECKING:
    from collections.abc import Callable

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def plainly(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Errors that say what is wrong and what to do leave a function without the way they came: it only hides them."""

    @functools.wraps(function)
    def speak(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        try:
            return function(*args, **kwargs)
        except (errors.OncelogError, ValueError, OSError) as error:
            raise error.with_traceback(None) from None

    return speak
