"""What there is to know of a provider that runs batches: what it needs, how lines are handed over, asked after and taken back."""

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
    """What was said of a provider when the batch was made: in headers, where it was saved, and in `provider_options`."""

    headers: Mapping[str, str]
    saved_options: Mapping[str, Any]
    options: Mapping[str, str]

    def find_option(self, key: str) -> str | None:
        """Give an option; what was saved with the credential goes before a header."""
        header = f"x-gateway-{key.replace('_', '-')}"
        return self.options.get(key) or self.saved_options.get(key) or self.headers.get(header)


class BatchStatus(NamedTuple):
    """How far a batch is at its provider."""

    status: str
    completed: int = 0
    failed: int = 0
    # Where its answers are, once it is over.
    result_paths: tuple[str, ...] = ()
    failure_reason: str = ""


class LineResult(NamedTuple):
    """How one line ended: what was answered, or an error."""

    response: dict[str, Any] | None
    error: dict[str, Any] | None

    @property
    def is_failed(self) -> bool:
        """Whether it was not answered well."""
        return self.response is None or not self.response.get("status_code", SUCCESS_STATUS_END) < SUCCESS_STATUS_END


class CreatedObject(msgspec.Struct):
    """What was made there."""

    id: str


class ResultId(msgspec.Struct):
    """A line of answers, as far as most have the same."""

    custom_id: str


class BatchProvider(Protocol):
    """How one provider runs batches."""

    # What a batch may say in `provider_options`.
    ALLOWED_OPTIONS: frozenset[str] = frozenset()
    # Whether one that was handed over is known again: it is found, or the same question makes no second one.
    CAN_RESUBMIT = False
    _client: BatchClient

    def __init__(self, talk: BatchClient) -> None:
        """Ask in this way."""
        self._client = talk

    @classmethod
    def required_options(cls, stated: ProviderSettings) -> dict[str, str]:  # noqa: ARG003 - others need it
        """Give what is needed besides lines, or refuse what is missing, before a batch is made."""
        return {}

    @classmethod
    def validate_line(cls, line: BatchLine, first: BatchLine) -> Iterator[LineFault]:  # noqa: ARG003 - others need them
        """Say what is wrong with a line that this provider could not run; `first` is that of the file."""
        return iter(())

    async def submit(self, given: BatchInput) -> str:
        """Hand all lines over, and give what the batch is called there."""
        ...

    async def find_submitted(self) -> str | None:
        """Give what the batch is called there, where an attempt whose end nobody knows made one; not everybody can tell."""
        return None

    async def fetch_status(self, name: str) -> BatchStatus:
        """Say how far it is."""
        ...

    async def cancel(self, name: str) -> None:
        """Ask for its end."""
        ...

    def fetch_results(self, path: str) -> AsyncIterator[tuple[int, bytes]]:
        """Give the results at a path as they are, each with the number of its line."""
        return self._client.download_results(path, self.line_number)

    def line_number(self, result: bytes) -> int | None:
        """Say which line a result is of."""
        return parse_line_number(msgspec.json.decode(result, type=ResultId).custom_id)

    def parse_result(self, line: BatchLine, result: bytes) -> LineResult:
        """Read the result of one line."""
        ...


def custom_id_of_line(number: int) -> str:
    """Name a line: callers name theirs as they like, and not every provider takes every name."""
    return f"line-{number}"


def parse_line_number(name: str) -> int:
    """Give the number in such a name."""
    return int(name.removeprefix("line-"))


async def model_of_batch(given: BatchInput) -> str:
    """Say which model a batch is for: that of its first line, as of all others."""
    async with aclosing(given.requests()) as requests:
        async for _, line in requests:
            return str(line.body["model"])
    return ""


def translate_line(provider: str, line: BatchLine) -> tuple[msgspec.Raw, str]:
    """Say a line in the provider's words; and what of it cannot be told, with commas."""
    body, lost = translate_batch_line(provider, line.url, msgspec.json.encode(line.body))
    return msgspec.Raw(body), lost


def check_translatable(provider: str, line: BatchLine) -> Iterator[LineFault]:
    """Say what of a line its provider could not be told."""
    try:
        translate_line(provider, line)
    except EngineError as error:
        problem = error.problems[0]
        yield "untranslatable", f"it cannot be said to {provider}: {problem['message']}", problem["path"]


def check_same_model(line: BatchLine, first: BatchLine) -> Iterator[LineFault]:
    """Refuse a line for another model, where a batch has one for all its lines."""
    wanted = first.body.get("model")
    if line.body.get("model") != wanted:
        message = f"body.model is {line.body.get('model')!r}: all lines of this provider's batches are for one model, here {wanted!r}"
        yield "mismatched_model", message, "body.model"


def translate_result(provider: str, line: BatchLine, status: int, answer: object, request_id: str = "") -> LineResult:
    """Tell an answer in the caller's words, with what of the request its provider could not be told."""
    try:
        answered = (status, msgspec.json.encode(answer))
        told = translate_batch_result(provider, line.url, msgspec.json.encode(line.body), answered)
        _, lost = translate_line(provider, line)
    except EngineError as error:
        return LineResult(None, {"code": "answer_unreadable", "message": str(error)})
    response = {"status_code": status, "request_id": request_id, "body": msgspec.json.decode(told)}
    # As a header names it where a request is one of its own.
    return LineResult({**response, **({"not_translated": lost} if lost else {})}, None)
