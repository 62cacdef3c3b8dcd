"""What there is to know of a provider that runs batches: what it needs, how lines are handed over, asked after and taken back."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from penstock.engine import EngineError, say_line, tell_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from penstock.batches.input import Fault, Input, Line
    from penstock.batches.providers.client import Talk

GOOD = 300


class Stated(NamedTuple):
    """What was said of a provider when the batch was made: in headers, where it was saved, and in `provider_options`."""

    headers: Mapping[str, str]
    configurations: Mapping[str, Any]
    options: Mapping[str, str]

    def find(self, key: str) -> str | None:
        """Give an option; what was saved with the credential goes before a header."""
        header = f"x-gateway-{key.replace('_', '-')}"
        return self.options.get(key) or self.configurations.get(key) or self.headers.get(header)


class Seen(NamedTuple):
    """How far a batch is at its provider."""

    status: str
    completed: int = 0
    failed: int = 0
    # Where its answers are, once it is over.
    paths: tuple[str, ...] = ()
    why: str = ""


class Told(NamedTuple):
    """How one line ended: what was answered, or an error."""

    response: dict[str, Any] | None
    error: dict[str, Any] | None

    @property
    def failed(self) -> bool:
        """Whether it was not answered well."""
        return self.response is None or not self.response.get("status_code", GOOD) < GOOD


class Named(msgspec.Struct):
    """What was made there."""

    id: str


class Numbered(msgspec.Struct):
    """A line of answers, as far as most have the same."""

    custom_id: str


class Way(Protocol):
    """How one provider runs batches."""

    # What a batch may say in `provider_options`.
    OPTIONS: frozenset[str] = frozenset()
    # Whether one that was handed over is known again: it is found, or the same question makes no second one.
    KNOWS_AGAIN = False
    _talk: Talk

    def __init__(self, talk: Talk) -> None:
        """Ask in this way."""
        self._talk = talk

    @classmethod
    def needs(cls, stated: Stated) -> dict[str, str]:  # noqa: ARG003 - others need it
        """Give what is needed besides lines, or refuse what is missing, before a batch is made."""
        return {}

    @classmethod
    def faults(cls, line: Line, first: Line) -> Iterator[Fault]:  # noqa: ARG003 - others need them
        """Say what is wrong with a line that this provider could not run; `first` is that of the file."""
        return iter(())

    async def submit(self, given: Input) -> str:
        """Hand all lines over, and give what the batch is called there."""
        ...

    async def found(self) -> str | None:
        """Give what the batch is called there, where an attempt whose end nobody knows made one; not everybody can tell."""
        return None

    async def look(self, name: str) -> Seen:
        """Say how far it is."""
        ...

    async def cancel(self, name: str) -> None:
        """Ask for its end."""
        ...

    def results(self, path: str) -> AsyncIterator[tuple[int, bytes]]:
        """Give the results at a path as they are, each with the number of its line."""
        return self._talk.results(path, self.number)

    def number(self, result: bytes) -> int | None:
        """Say which line a result is of."""
        return number_of(msgspec.json.decode(result, type=Numbered).custom_id)

    def told(self, line: Line, result: bytes) -> Told:
        """Read the result of one line."""
        ...


def name_of(number: int) -> str:
    """Name a line: callers name theirs as they like, and not every provider takes every name."""
    return f"line-{number}"


def number_of(name: str) -> int:
    """Give the number in such a name."""
    return int(name.removeprefix("line-"))


async def model_of(given: Input) -> str:
    """Say which model a batch is for: that of its first line, as of all others."""
    async with aclosing(given.requests()) as requests:
        async for _, line in requests:
            return str(line.body["model"])
    return ""


def said(provider: str, line: Line) -> tuple[msgspec.Raw, str]:
    """Say a line in the provider's words; and what of it cannot be told, with commas."""
    body, lost = say_line(provider, line.url, msgspec.json.encode(line.body))
    return msgspec.Raw(body), lost


def unsaid(provider: str, line: Line) -> Iterator[Fault]:
    """Say what of a line its provider could not be told."""
    try:
        said(provider, line)
    except EngineError as error:
        problem = error.problems[0]
        yield "untranslatable", f"it cannot be said to {provider}: {problem['message']}", problem["path"]


def another_model(line: Line, first: Line) -> Iterator[Fault]:
    """Refuse a line for another model, where a batch has one for all its lines."""
    wanted = first.body.get("model")
    if line.body.get("model") != wanted:
        message = f"body.model is {line.body.get('model')!r}: all lines of this provider's batches are for one model, here {wanted!r}"
        yield "mismatched_model", message, "body.model"


def told(provider: str, line: Line, status: int, answer: object, request_id: str = "") -> Told:
    """Tell an answer in the caller's words, with what of the request its provider could not be told."""
    try:
        answered = (status, msgspec.json.encode(answer))
        told = tell_line(provider, line.url, msgspec.json.encode(line.body), answered)
        _, lost = said(provider, line)
    except EngineError as error:
        return Told(None, {"code": "answer_unreadable", "message": str(error)})
    response = {"status_code": status, "request_id": request_id, "body": msgspec.json.decode(told)}
    # As a header names it where a request is one of its own.
    return Told({**response, **({"not_translated": lost} if lost else {})}, None)
