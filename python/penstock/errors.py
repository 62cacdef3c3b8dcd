"""Exception hierarchy of the Python side and the JSON envelope of its error responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


# Maximum number of validation errors that one response lists.
MAX_PROBLEMS = 50
# Maximum number of characters of a client's value that a message repeats.
MAX_SHOWN_CHARS = 80


def shorten(text: str) -> str:
    """Cuts a client's text after `MAX_SHOWN_CHARS` characters, so that an error message can repeat it."""
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"


class Problem(msgspec.Struct, frozen=True):
    """One validation error: the path of a value and what is wrong with it."""

    path: str
    message: str

    def __str__(self) -> str:
        """Renders the error as one line for a terminal or a log."""
        return f"{self.path}: {self.message}" if self.path else self.message


def join_problems(problems: Sequence[Problem]) -> str:
    """Returns all validation errors in one line."""
    return "; also ".join(f"{problem.path} {problem.message}".strip() for problem in problems)


class PenstockError(Exception):
    """Base class of all exceptions: a status, an error code, and a message without secrets."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "AB04"

    def __init__(self, message: str, problems: Iterable[Problem] = ()) -> None:
        """Stores the message and the validation errors, if any."""
        super().__init__(message)
        self.message = message
        self.problems = tuple(problems)

    def __str__(self) -> str:
        """Renders the message, followed by one line per validation error."""
        return "\n  ".join([self.message, *map(str, self.problems)])


class InvalidError(PenstockError):
    """The request is not valid."""

    status = 400
    code = "AB01"


class UnauthorisedError(PenstockError):
    """The request has no key, or an invalid one."""

    status = 401
    code = "AB05"


class ForbiddenError(PenstockError):
    """The key is valid but may not do this."""

    status = 403
    code = "AB03"


class NotFoundError(PenstockError):
    """No object has this path or id."""

    status = 404
    code = "AB08"


class UnknownReferenceError(PenstockError):
    """The request refers to something that does not exist."""

    status = 404
    code = "AB02"


class ConflictError(PenstockError):
    """The object already exists, or another object depends on it."""

    status = 409
    code = "AB07"


class BodyTooLargeError(PenstockError):
    """The body is longer than this route accepts."""

    status = 413
    code = "AB01"


class UnsupportedMediaTypeError(PenstockError):
    """The route does not read this content type or content encoding."""

    status = 415
    code = "AB01"


class QueryTooLargeError(PenstockError):
    """The query needs more time or memory than one query may use."""

    status = 422
    code = "AB01"


class PreconditionFailedError(PenstockError):
    """Another request changed the object since it was read."""

    status = 412
    code = "AB01"


class BudgetSpentError(PenstockError):
    """Nothing is left of a budget that the new batch counts for, also of an API key."""

    status = 412
    code = "usage_limit_exceeded"


class UsageNotBoundedError(PenstockError):
    """The new batch counts for a hard budget or that of a token, and its highest usage is not known before."""

    status = 412
    code = "usage_not_bounded"


class RateLimitedError(PenstockError):
    """Too many requests of this kind in a short time."""

    status = 429
    code = "AB06"
    retry_after: ClassVar[int] = 60


STORE_UNAVAILABLE_MESSAGE = "the store does not answer; what the gateway serves goes on as it is"


class UnavailableError(PenstockError):
    """A required service is unavailable; a retry may succeed."""

    status = 503
    retry_after: ClassVar[int] = 1


class DecryptionError(UnavailableError):
    """A stored credential cannot be decrypted: its data key is lost, or it was modified, or it belongs to another row."""


class EdgeUnavailableError(PenstockError):
    """The edge is not running or is shutting down; the request was not processed."""


class IncompleteResponseError(PenstockError):
    """No complete response arrived."""


class ResultsNotFoundError(IncompleteResponseError):
    """The requested results do not exist, or not yet."""


class ReplayedResponse(Exception):  # noqa: N818 - it is no error
    """The request was processed before, under the same idempotency key; carries the stored response."""

    def __init__(self, body: bytes) -> None:
        """Stores the body of the first response."""
        super().__init__("done before")
        self.body = body


class SettingsError(PenstockError):
    """The settings, or a file with settings, cannot be used."""


class RemoteError(PenstockError):
    """A gateway rejected a request of a command, or could not be reached."""


class RejectedError(RemoteError):
    """A gateway rejected one request of a command because of its content; other requests may succeed."""


class StartupError(PenstockError):
    """The gateway cannot start in this environment."""


CODE_BY_STATUS = {400: "AB01", 401: "AB05", 402: "AB09", 403: "AB03", 404: "AB08", 409: "AB07", 429: "AB06"}


def error_code_for(status: int) -> str:
    """Returns the management error code for a status that does not come from a `PenstockError`."""
    return CODE_BY_STATUS.get(status, "AB01" if status < PenstockError.status else "AB04")


def error_envelope(message: str, code: str, problems: Iterable[Problem] = ()) -> dict[str, object]:
    """Builds the error body of the management API."""
    data: dict[str, object] = {"message": message, "errorCode": code}
    if listed := [msgspec.to_builtins(problem) for problem in problems]:
        data["errors"] = listed
    return {"success": False, "data": data}


def openai_error(message: str, status: int, problems: Iterable[Problem] = ()) -> dict[str, object]:
    """Builds an error object in OpenAI's format, which its SDKs read."""
    kind = "invalid_request_error" if status < PenstockError.status else "api_error"
    param = next((problem.path for problem in problems), None)
    return {"message": message, "type": kind, "param": param, "code": None}
