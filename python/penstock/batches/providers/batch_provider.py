"""Interface of providers that run batches: required options, line validation, submission, status and results."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from penstock.engine import EngineError, translate_batch_line, translate_batch_result

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from penstock.batches.input import BatchInput, BatchLine, LineFault
    from penstock.batches.providers.client import BatchClient

SUCCESS_STATUS_END = 300


class ProviderSettings(NamedTuple):
    """Provider settings of a new batch: from request headers, from the saved provider, and from `provider_options`."""

    headers: Mapping[str, str]
    saved_options: Mapping[str, Any]
    options: Mapping[str, str]

    def find_option(self, key: str) -> str | None:
        """Returns an option, or `None`. `provider_options` precede the saved provider, which precedes the headers."""
        header = f"x-gateway-{key.replace('_', '-')}"
        return self.options.get(key) or self.saved_options.get(key) or self.headers.get(header)


class BatchStatus(NamedTuple):
    """Progress of a batch at its provider."""

    status: str
    completed: int = 0
    failed: int = 0
    # Paths of the results once the batch has ended.
    result_paths: tuple[str, ...] = ()
    failure_reason: str = ""


class LineResult(NamedTuple):
    """Result of one line: a response or an error."""

    response: dict[str, Any] | None
    error: dict[str, Any] | None

    @property
    def is_failed(self) -> bool:
        """True if the line has no response, or one with an error status."""
        return self.response is None or not self.response.get("status_code", SUCCESS_STATUS_END) < SUCCESS_STATUS_END


class CreatedObject(msgspec.Struct):
    """Response to the creation of an object at the provider."""

    id: str


class ResultId(msgspec.Struct):
    """Field of a result line that identifies the batch line. Most providers name it `custom_id`."""

    custom_id: str


class BatchProvider(Protocol):
    """Interface to run batches at one provider."""

    # Options that a batch may set in `provider_options`.
    ALLOWED_OPTIONS: frozenset[str] = frozenset()
    # True if a submission whose outcome is unknown can be repeated: `find_submitted` finds the first batch, or the
    # provider ignores the duplicate.
    CAN_RESUBMIT = False
    _client: BatchClient

    def __init__(self, client: BatchClient) -> None:
        """Takes the client of one batch."""
        self._client = client

    @classmethod
    def required_options(cls, stated: ProviderSettings) -> dict[str, str]:  # noqa: ARG003 - other providers need it
        """Returns the options that the batch needs besides its lines. Raises an error if one is missing, so that the
        batch is not created.
        """
        return {}

    @classmethod
    def validate_line(cls, line: BatchLine, first: BatchLine) -> Iterator[LineFault]:  # noqa: ARG003 - other providers need them
        """Yields the reasons why this provider cannot run a line; `first` is the first line of the file."""
        return iter(())

    async def submit(self, batch_input: BatchInput) -> str:
        """Submits all lines and returns the provider's batch id."""
        ...

    async def find_submitted(self) -> str | None:
        """Returns the batch id of an earlier submission whose outcome is unknown, or `None`. Not every provider
        supports this.
        """
        return None

    async def fetch_status(self, name: str) -> BatchStatus:
        """Fetches the current status of the batch."""
        ...

    async def cancel(self, name: str) -> None:
        """Requests cancellation of the batch."""
        ...

    def fetch_results(self, path: str) -> AsyncIterator[tuple[int, bytes]]:
        """Yields the raw results at a path, each with its line number."""
        return self._client.download_results(path, self.line_number)

    def line_number(self, result: bytes) -> int | None:
        """Returns the number of the line that a result belongs to."""
        return parse_line_number(msgspec.json.decode(result, type=ResultId).custom_id)

    def parse_result(self, line: BatchLine, result: bytes) -> LineResult:
        """Parses the result of one line."""
        ...


def custom_id_of_line(number: int) -> str:
    """Returns the custom id of a line at the provider. The client's own custom ids are not sent, because not every
    provider accepts them.
    """
    return f"line-{number}"


def parse_line_number(name: str) -> int:
    """Parses the line number from a custom id."""
    return int(name.removeprefix("line-"))


async def model_of_batch(batch_input: BatchInput) -> str:
    """Returns the model of a batch: the model of its first line, which all lines share."""
    async with aclosing(batch_input.requests()) as requests:
        async for _, line in requests:
            return str(line.body["model"])
    return ""


def translate_line(provider: str, line: BatchLine) -> tuple[msgspec.Raw, str]:
    """Translates a line to the provider's format. Returns the body and the dropped parameters, separated by commas."""
    body, dropped = translate_batch_line(provider, line.url, msgspec.json.encode(line.body))
    return msgspec.Raw(body), dropped


def check_translatable(provider: str, line: BatchLine) -> Iterator[LineFault]:
    """Yields an error if a line cannot be translated to the provider's format."""
    try:
        translate_line(provider, line)
    except EngineError as error:
        problem = error.problems[0]
        yield "untranslatable", f"it cannot be translated for {provider}: {problem['message']}", problem["path"]


def check_same_model(line: BatchLine, first: BatchLine) -> Iterator[LineFault]:
    """Yields an error if the line's model differs from that of the first line. For providers whose batches have only
    one model.
    """
    requested = first.body.get("model")
    if line.body.get("model") != requested:
        message = f"body.model is {line.body.get('model')!r}: all lines of this provider's batches must use one model, here {requested!r}"
        yield "mismatched_model", message, "body.model"


def translate_result(
    provider: str, line: BatchLine, status: int, provider_body: object, request_id: str = ""
) -> LineResult:
    """Translates a provider's response to the client format and adds the dropped parameters of the request.

    If the body is an error although the status is a success, the result has the status of the error.
    """
    try:
        body, response = msgspec.json.encode(line.body), msgspec.json.encode(provider_body)
        status, translated = translate_batch_result(provider, line.url, body, status, response)
        _, dropped = translate_line(provider, line)
    except EngineError as error:
        return LineResult(None, {"code": "answer_unreadable", "message": str(error)})
    result = {"status_code": status, "request_id": request_id, "body": msgspec.json.decode(translated)}
    # The result of a line has no headers. A single request reports dropped parameters in a header.
    return LineResult({**result, **({"not_translated": dropped} if dropped else {})}, None)
