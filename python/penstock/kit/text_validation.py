"""Validation of request text before it reaches the database. Rejects NUL characters and invalid Unicode with the path
of the field, because databases do not accept them.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, cast

import msgspec
from litestar.enums import RequestEncodingType

from penstock.errors import InvalidError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from litestar import Request

NUL, SPELLED = "\0", b"\\u0000"
# Half of a surrogate pair. Invalid UTF-8 bytes that are decoded with `surrogateescape` become such halves too.
SURROGATE, ESCAPED_SURROGATE = re.compile("[\ud800-\udfff]"), re.compile(rb"\\u[dD][89a-fA-F]")
BODY_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
NUL_MESSAGE = "must not contain the character U+0000"
NOT_UNICODE_MESSAGE = "must be Unicode text: it contains invalid UTF-8 or half of a surrogate pair"
MAX_DEPTH = 128
TOO_DEEP_MESSAGE = "nests too deep: fewer than 1000 levels of lists and objects are allowed"


async def check_request_text(request: Request[Any, Any, Any]) -> None:
    """Checks the path, the query and the body of a request. Routes that read a form check its fields for NUL
    themselves.
    """
    problems = [Problem("path", NUL_MESSAGE)] if NUL in request.scope["path"] else []
    # Parses the query only if it may contain NUL, because this check is much cheaper.
    if b"%00" in request.scope["query_string"]:
        problems += [
            Problem(name.replace(NUL, ""), NUL_MESSAGE)
            for name, value in request.query_params.multi_items()
            if NUL in name + str(value)
        ]
    if request.method in BODY_METHODS:
        problems += await _body_problems(request)
    if problems:
        raise InvalidError(f"{problems[0].path or 'the body'} {problems[0].message}", problems)


async def _body_problems(request: Request[Any, Any, Any]) -> list[Problem]:
    """Checks the body in the format that the route reads, a form or JSON. The content type of the request does not
    matter.
    """
    used = request.scope["route_handler"].parsed_data_field
    if used is None:
        return []
    if getattr(used.kwarg_definition, "media_type", None) != RequestEncodingType.MULTI_PART:
        return json_body_problems(await request.body())
    try:
        # The framework caches the form, so the route does not parse it again.
        await request.form()
    except (UnicodeDecodeError, LookupError):
        return [Problem("", "must be a form whose fields are text in a known charset")]
    return []


def json_body_problems(body: bytes) -> list[Problem]:
    """Checks the text of a JSON body."""
    if _nests_too_deep(body):
        return [Problem("", TOO_DEEP_MESSAGE)]
    is_text = _is_utf8(body)
    # A match is only a hint: it may be an escaped backslash before four digits, or a complete surrogate pair.
    if is_text and SPELLED not in body and not ESCAPED_SURROGATE.search(body):
        return []
    try:
        problems = list(_value_problems(json.loads(body.decode(errors="surrogateescape"))))
    except (ValueError, RecursionError):
        # The route reports malformed JSON itself when it decodes the body.
        problems = []
    return problems or ([] if is_text else [Problem("", NOT_UNICODE_MESSAGE)])


def _nests_too_deep(body: bytes) -> bool:
    """Returns true if a JSON body cannot be decoded because of its depth. Brackets are counted first, which is cheap."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return False
    try:
        msgspec.json.decode(body)
    except RecursionError:
        return True
    except msgspec.DecodeError:
        # The route reports malformed JSON itself.
        return False
    return False


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _value_problems(value: object, path: str = "", depth: int = 0) -> Iterator[Problem]:
    if isinstance(value, str):
        yield from _text_problems(value, path)
    elif depth > MAX_DEPTH:
        return
    elif isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            item_path = SURROGATE.sub("\ufffd", f"{path}.{name}".lstrip(".").replace(NUL, ""))
            yield from _text_problems(name, item_path)
            yield from _value_problems(item, item_path, depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _value_problems(item, f"{path}[{index}]", depth + 1)


def _text_problems(text: str, path: str) -> Iterator[Problem]:
    if NUL in text:
        yield Problem(path, NUL_MESSAGE)
    if SURROGATE.search(text):
        yield Problem(path, NOT_UNICODE_MESSAGE)
