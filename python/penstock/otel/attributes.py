"""Converts OTLP JSON attributes to plain values without credentials. Separates headers from other attributes, and masks
URLs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import msgspec

from penstock.engine import is_secret_field
from penstock.ids import MASK_TEXT
from penstock.log_api.custom_logs import mask_url

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_ATTRIBUTES, MAX_KEY_CHARS, MAX_METADATA_CHARS = 256, 128, 512
REQUEST_HEADER, RESPONSE_HEADER = "http.request.header.", "http.response.header."
# Attributes with URLs, whose credentials are masked.
URL_NAMES = frozenset({"url.full", "http.url", "http.target", "server.url"})
# Attributes that are dropped, because the parameters of a URL may be credentials.
HIDDEN_NAMES = frozenset({"url.query"})
STATUS_NAMES = ("http.response.status_code", "http.status_code")
USER_NAMES = ("user.id", "enduser.id")
SESSION_NAMES = ("gen_ai.conversation.id", "session.id")
# Attributes with contents of messages. They are in the bodies of a log, so its metadata omits them.
CONTENT_NAMES = frozenset({
    *("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions", "gen_ai.tool.definitions"),
    *("gen_ai.prompt", "gen_ai.completion", "input.value", "output.value"),
})  # fmt: skip
MIN_STATUS, MAX_STATUS = 100, 599
# Maximum number of digits, and maximum value, of an integer. OTLP integers have 64 bits.
MAX_DIGITS, MAX_INTEGER = 18, 2**63 - 1


class KeyValue(msgspec.Struct, frozen=True):
    """One attribute. The value is an object whose key is one of OTLP's type names."""

    key: str
    value: Any = None


class Attributes(msgspec.Struct):
    """Attributes of a span, log record or resource: `values` by name, and headers separately."""

    values: dict[str, Any] = {}
    request_headers: dict[str, str] = {}
    response_headers: dict[str, str] = {}

    @property
    def status_code(self) -> int | None:
        """HTTP status code; `None` if there is none."""
        status = self.first_integer(*STATUS_NAMES)
        return status if status is not None and MIN_STATUS <= status <= MAX_STATUS else None

    @property
    def metadata(self) -> dict[str, Any]:
        """Attributes with short values, with the user as `_user` and the conversation as `session_id`."""
        values: dict[str, Any] = {}
        if user := self.first_text(*USER_NAMES):
            values["_user"] = user
        if session := self.first_text(*SESSION_NAMES):
            values["session_id"] = session
        for name, value in self.values.items():
            is_short = isinstance(value, bool | int | float) or (
                isinstance(value, str) and len(value) <= MAX_METADATA_CHARS
            )
            if is_short and name not in CONTENT_NAMES:
                values[name] = str(value).lower() if isinstance(value, bool) else value
        return values

    def first(self, *names: str) -> Any:  # noqa: ANN401 - an attribute value
        """Returns the first of these attributes that exists and is not empty."""
        return next((self.values[name] for name in names if self.values.get(name) not in (None, "")), None)

    def first_text(self, *names: str) -> str:
        """Returns the first of these attributes as text; an empty string if there is none."""
        value = self.first(*names)
        return value if isinstance(value, str) else ""

    def first_integer(self, *names: str) -> int | None:
        """Returns the first of these attributes as an integer."""
        value = self.first(*names)
        if isinstance(value, str) and value.isdecimal() and len(value) <= MAX_DIGITS:
            return int(value)
        return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def split_attributes(pairs: Iterable[KeyValue] | None) -> Attributes:
    """Returns the attributes of a span, a log record or a resource."""
    attributes = Attributes({}, {}, {})
    for item in list(pairs or ())[:MAX_ATTRIBUTES]:
        name, value = item.key[:MAX_KEY_CHARS], to_plain(item.value)
        if name.startswith(REQUEST_HEADER):
            attributes.request_headers[name.removeprefix(REQUEST_HEADER)] = _join(value)
        elif name.startswith(RESPONSE_HEADER):
            attributes.response_headers[name.removeprefix(RESPONSE_HEADER)] = _join(value)
        elif name in URL_NAMES and isinstance(value, str):
            attributes.values[name] = mask_url(value)
        elif isinstance(value, str) and not value.isdecimal() and is_secret_field(name):
            attributes.values[name] = MASK_TEXT
        elif name and name not in HIDDEN_NAMES:
            attributes.values[name] = value
    return attributes


def to_plain(value: Any) -> Any:  # noqa: ANN401 - a value of OTLP, and JSON
    """Returns a value of OTLP JSON as a plain one; `None` if it has no known type."""
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    for name in ("stringValue", "boolValue", "bytesValue"):
        if isinstance(fields.get(name), str | bool):
            return fields[name]
    for name, kind in (("intValue", int), ("doubleValue", float)):
        if fields.get(name) is not None:
            return _read_number(fields[name], kind)
    if isinstance(items := _get_values(fields.get("arrayValue")), list):
        return [to_plain(item) for item in items]
    if isinstance(items := _get_values(fields.get("kvlistValue")), list):
        pairs = [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]
        return {str(pair.get("key")): to_plain(pair.get("value")) for pair in pairs}
    return None


def _get_values(holder: Any) -> list[Any] | None:  # noqa: ANN401 - JSON
    if not isinstance(holder, dict):
        return None
    values = cast("dict[str, Any]", holder).get("values", [])
    return cast("list[Any]", values) if isinstance(values, list) else None


def _read_number(value: Any, kind: type[int | float]) -> int | float | str | None:  # noqa: ANN401 - JSON
    """Returns a number, which may be written as text. Infinity and NaN, which JSON lacks, are returned as text."""
    try:
        converted = kind(value)
    except (TypeError, ValueError, OverflowError):
        return None
    if isinstance(converted, int):
        return converted if abs(converted) <= MAX_INTEGER else None
    return converted if math.isfinite(converted) else str(value)


def _join(value: Any) -> str:  # noqa: ANN401 - JSON
    return ", ".join(map(str, cast("list[Any]", value))) if isinstance(value, list) else str(value)
