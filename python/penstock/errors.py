"""The exceptions of the Python side as a tree, and the one envelope they are answered in."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong, and where."""

    path: str
    message: str

    def __str__(self) -> str:
        """Render as a line for a terminal or a log."""
        return f"{self.path}: {self.message}" if self.path else self.message


class PenstockError(Exception):
    """Root of the tree: a status, a code and a message that may be shown to anyone."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "AB04"

    def __init__(self, message: str, problems: Iterable[Problem] = ()) -> None:
        """Keep the message and what is known about where it went wrong."""
        super().__init__(message)
        self.message = message
        self.problems = tuple(problems)

    def __str__(self) -> str:
        """Render the message with one line for each problem."""
        return "\n  ".join([self.message, *map(str, self.problems)])


class InvalidError(PenstockError):
    """The caller sent something that cannot be accepted."""

    status = 400
    code = "AB01"


class UnauthorisedError(PenstockError):
    """No key, or one that is not valid."""

    status = 401
    code = "AB05"


class ForbiddenError(PenstockError):
    """The key is valid but may not do this."""

    status = 403
    code = "AB03"


class NotFoundError(PenstockError):
    """There is nothing at this path or under this id."""

    status = 404
    code = "AB08"


class UnknownReferenceError(PenstockError):
    """Something that the request refers to is not there."""

    status = 404
    code = "AB02"


class ConflictError(PenstockError):
    """It exists already, or something else depends on it."""

    status = 409
    code = "AB07"


class PreconditionFailedError(PenstockError):
    """Somebody else changed it since it was read."""

    status = 412
    code = "AB01"


class RateLimitedError(PenstockError):
    """Too many requests of this kind in a short time."""

    status = 429
    code = "AB06"
    retry_after: ClassVar[int] = 60


STORE_UNAVAILABLE_MESSAGE = "the store does not answer; what the gateway serves goes on as it is"


class UnavailableError(PenstockError):
    """Something this needs is down for now; asking again later may work."""

    status = 503
    retry_after: ClassVar[int] = 1


class DecryptionError(UnavailableError):
    """A credential that is kept cannot be opened: its data key is lost, or it was changed, or is another row's."""


class EdgeUnavailableError(PenstockError):
    """The edge is not there, or about to end: nothing was done."""


class IncompleteResponseError(PenstockError):
    """No whole answer came."""


class ResultsNotFoundError(IncompleteResponseError):
    """What was asked for is not there, or not yet."""


class ReplayedResponse(Exception):  # noqa: N818 - it is no fault
    """A request that was done before: here is what was answered then."""

    def __init__(self, body: bytes) -> None:
        """Keep the answer."""
        super().__init__("done before")
        self.body = body


class SettingsError(PenstockError):
    """The settings or the file that they came from cannot be used."""


class StartupError(PenstockError):
    """The gateway cannot start here and now."""


CODE_BY_STATUS = {400: "AB01", 401: "AB05", 402: "AB09", 403: "AB03", 404: "AB08", 409: "AB07", 429: "AB06"}


def error_code_for(status: int) -> str:
    """Give the management error code for a status that no class of ours set."""
    return CODE_BY_STATUS.get(status, "AB01" if status < PenstockError.status else "AB04")


def error_envelope(message: str, code: str, problems: Iterable[Problem] = ()) -> dict[str, object]:
    """Build the error body of the management API."""
    data: dict[str, object] = {"message": message, "errorCode": code}
    if listed := [msgspec.to_builtins(problem) for problem in problems]:
        data["errors"] = listed
    return {"success": False, "data": data}


def openai_error(message: str, status: int, problems: Iterable[Problem] = ()) -> dict[str, object]:
    """Build what OpenAI's SDKs read of an error."""
    kind = "invalid_request_error" if status < PenstockError.status else "api_error"
    param = next((problem.path for problem in problems), None)
    return {"message": message, "type": kind, "param": param, "code": None}
