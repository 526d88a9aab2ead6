"""The operator's errors, and what the queue does about each.

    OperatorError
    ├── ApiError                    a call to the API server failed
    │   ├── ApiConflict      409    somebody else changed it: read again, soon
    │   ├── ApiForbidden     403    RBAC: say so in the status, try again slowly
    │   ├── ApiNotFound      404    it went away meanwhile: read again, soon
    │   ├── ApiInvalid       422    the API server refuses the object: say so, try again slowly
    │   ├── ApiThrottled     429    wait as long as it says
    │   └── ApiUnavailable   5xx, timeouts, broken connections: the call may or may not have happened
    ├── NameTaken                   an object of that name exists and is not ours: say so, try again slowly
    └── LeadershipLost              another operator leads: stop at once

Every reconcile starts from what the cluster holds, so "try again" is the whole treatment; the classes differ in how
soon, and in whether a person must be told.
"""

from __future__ import annotations

from typing import ClassVar

from shoal.errors import ShoalError


class OperatorError(ShoalError):
    """Something that the operator cannot do now. `reason` is the CamelCase word of the condition that tells it."""

    reason: ClassVar[str] = "ReconcileFailed"
    for_people: ClassVar[bool] = False


class ApiError(OperatorError):
    """A call to the API server failed. `call` names verb and object."""

    reason = "ApiServerError"

    def __init__(self, call: str, message: str, *, status: int = 0, retry_after: float | None = None) -> None:
        self.call = call
        self.status = status
        self.retry_after = retry_after
        super().__init__(f"{call}: {message}")


class ApiConflict(ApiError):
    """409: the object changed, or another field manager holds a field."""

    reason = "Conflict"


class ApiForbidden(ApiError):
    """403: the operator's Role lacks a verb, or a quota or an admission policy refuses."""

    reason = "Forbidden"
    for_people = True


class ApiNotFound(ApiError):
    """404: the object, its namespace or its kind is not there."""

    reason = "NotFound"


class ApiInvalid(ApiError):
    """400 or 422: the object is refused as it is."""

    reason = "Refused"
    for_people = True


class ApiThrottled(ApiError):
    """429: the API server asks to wait."""

    reason = "Throttled"


class ApiUnavailable(ApiError):
    """5xx, a timeout or a broken connection: whether the call happened is not known."""

    reason = "ApiServerUnavailable"


class NameTaken(OperatorError):
    """An object of the wanted name exists and belongs to somebody else."""

    reason = "NameTaken"
    for_people = True


class LeadershipLost(OperatorError):
    """The Lease could not be renewed in time, or another operator holds it."""


def api_error(call: str, status: int, message: str, retry_after: float | None = None) -> ApiError:
    """The one table from HTTP status to error."""
    kinds: dict[int, type[ApiError]] = {
        400: ApiInvalid,
        403: ApiForbidden,
        404: ApiNotFound,
        409: ApiConflict,
        422: ApiInvalid,
        429: ApiThrottled,
    }
    kind = kinds.get(status, ApiUnavailable if status >= 500 or status == 0 else ApiError)
    return kind(call, message, status=status, retry_after=retry_after)
