"""Fenced examples of the documentation, and placeholders in them. Tests validate and run these examples."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.shape.repository import files_under, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable

DOCUMENTS = [path.as_posix() for path in files_under("docs", ".md")]
FENCE_PATTERN = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PLACEHOLDER = "…"
# Keys at the root of a JSON example that make it a config.
CONFIG_KEYS = {"provider", "targets"}


class Example(NamedTuple):
    """A fenced block: its language, its text and its number on the page."""

    language: str
    text: str
    number: int


class ExpectedResponse(NamedTuple):
    """Response that a page shows: status, headers, and the JSON body or `None`."""

    status: int
    headers: dict[str, str]
    body: Any


def page_examples(document: str, *languages: str) -> list[Example]:
    """Returns the blocks of a page in these languages, or all of them."""
    text = [
        Example(item[1], item[2], number) for number, item in enumerate(FENCE_PATTERN.finditer(read_text(document)))
    ]
    return [example for example in text if not languages or example.language in languages]


def pages_with(*languages: str) -> list[str]:
    """Returns the pages that have blocks in one of these languages."""
    return [document for document in DOCUMENTS if page_examples(document, *languages)]


def config_examples(document: str) -> list[str]:
    """Returns the JSON examples of a page that are configs."""
    blocks = [example.text for example in page_examples(document, "json")]
    parsed = [(block, json.loads(block)) for block in blocks]
    return [block for block, value in parsed if isinstance(value, dict) and CONFIG_KEYS & value.keys()]


def parse_response(text: str) -> ExpectedResponse:
    """Parses an example of a response: status line, headers, an empty line and a JSON body, the latter two optional."""
    head, _, body = text.partition("\n\n")
    status_line, *lines = head.strip().splitlines()
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return ExpectedResponse(int(status_line.split()[1]), headers, json.loads(body) if body.strip() else None)


def find_differences(displayed: object, actual: object, path: str = "$") -> Iterable[str]:
    """Yields the paths at which a response lacks what the page shows. The placeholder stands for any text or value."""
    if isinstance(displayed, dict):
        for name, value in displayed.items():
            if not isinstance(actual, dict) or name not in actual:
                yield f"{path}.{name} is missing"
            else:
                yield from find_differences(value, actual[name], f"{path}.{name}")
    elif isinstance(displayed, list):
        if not isinstance(actual, list) or len(actual) < len(displayed):
            yield f"{path} has fewer than {len(displayed)} items"
        else:
            for index, value in enumerate(displayed):
                yield from find_differences(value, actual[index], f"{path}[{index}]")
    elif isinstance(displayed, str) and PLACEHOLDER in displayed:
        pattern = ".*".join(re.escape(part) for part in displayed.split(PLACEHOLDER))
        if not re.fullmatch(pattern, str(actual), re.DOTALL):
            yield f"{path} is {actual!r} and not {displayed!r}"
    elif displayed != actual:
        yield f"{path} is {actual!r} and not {displayed!r}"


def value_at(body: object, path: str) -> str:
    """Returns the value at a path such as `data[0].slug` of a response."""
    value: Any = body
    for name, index in re.findall(r"([A-Za-z_]\w*)|\[(\d+)\]", path):
        value = value[name] if name else value[int(index)]
    return str(value)
