"""How an administrator says where the offsets of groups are to go, and hands the plan back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ..base.errors import InvalidRequestError
from ..broker.offset_reset import (
    TO_CURRENT,
    TO_EARLIEST,
    TO_LATEST,
    ResetPlan,
    Target,
    by_duration,
    from_file,
    shift_by,
    to_datetime,
    to_offset,
)
from .admin_arguments import integer, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NAMED_TARGETS: Final = {"earliest": TO_EARLIEST, "latest": TO_LATEST, "current": TO_CURRENT}
TARGETS: Final[Mapping[str, Callable[[Any], Target]]] = {
    "to_offset": to_offset,
    "shift_by": shift_by,
    "to_datetime": to_datetime,
    "by_duration": by_duration,
}
INTEGERS: Final = ("to_offset", "shift_by")


def target_of(given: Mapping[str, Any], group_ids: Sequence[str], *, has_topics: bool) -> Target:
    """The one target that was named."""
    known = ("to", *TARGETS, "from_csv")
    unknown = [name for name in given if name not in known]
    if unknown or len(given) != 1:
        wrong = f"not {unknown[0]}" if unknown else f"not {len(given)} of them"
        raise InvalidRequestError(f"offsets go to one of {', '.join(known)}, {wrong}")
    ((name, value),) = given.items()
    if name == "to":
        if not isinstance(value, str) or value not in NAMED_TARGETS:
            raise InvalidRequestError(f"to is one of {', '.join(NAMED_TARGETS)}, not {value!r}")
        return NAMED_TARGETS[value]
    if name in INTEGERS:
        return TARGETS[name](integer(value, name))
    text = name_of(value, name)
    if name != "from_csv":
        return TARGETS[name](text)
    if has_topics:
        raise InvalidRequestError("the lines of from_csv name their topics: leave topics out")
    return from_file(text, group_ids)


def plans_of(given: ResetPlan | Mapping[str, ResetPlan]) -> Mapping[str, ResetPlan]:
    """Plans by group, of what ``plan_reset`` has answered."""
    if isinstance(given, ResetPlan):
        return {given.group_id: given}
    if not isinstance(given, Mapping) or not all(
        isinstance(plan, ResetPlan) for plan in given.values()
    ):
        raise InvalidRequestError(f"give what plan_reset has answered, not {given!r}")
    return given
