"""spec.placement.whenInUse and workingHours: what happens to stages on a PC that somebody uses."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from shoal.resource.bounds import Unique
from shoal.resource.rules import Object, rule


class WhenInUse(StrEnum):
    """What a stage does when somebody uses its PC."""

    IGNORE = "Ignore"
    YIELD = "Yield"


class Day(StrEnum):
    """Days of the week, in their order."""

    MON = "Mon"
    TUE = "Tue"
    WED = "Wed"
    THU = "Thu"
    FRI = "Fri"
    SAT = "Sat"
    SUN = "Sun"


WORKDAYS: Final = (Day.MON, Day.TUE, Day.WED, Day.THU, Day.FRI)

TimeOfDay = Annotated[str, StringConstraints(max_length=5, pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]
TimeZone = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z][A-Za-z0-9_+/-]*$")]


class WorkingHours(Object):
    """Hours in which every PC with an agent counts as in use, whoever sits at it just then."""

    days: Annotated[tuple[Day, ...], Field(min_length=1, max_length=7), Unique()] = WORKDAYS
    """Days on which they hold."""

    start: TimeOfDay = "08:00"
    """When they begin, such as `08:00`."""

    end: TimeOfDay = "18:00"
    """When they are over, such as `18:00`."""

    time_zone: TimeZone
    """Whose clock that is, such as `Europe/Berlin`."""

    @rule(cel="self.start < self.end", message="start must be before end, on the same day", field="end")
    def _in_order(self) -> bool:
        return self.start < self.end
