"""Response structs, timestamps and error helpers that the management API shares."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, cast

import msgspec
from msgspec import Meta

from penstock.errors import MAX_PROBLEMS, InvalidError, Problem, UnknownReferenceError, join_problems
from penstock.type_validation import find_problems

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EPOCH, MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)

Item = TypeVar("Item")
Struct = TypeVar("Struct", bound=msgspec.Struct)


class ListResponse(msgspec.Struct, Generic[Item], frozen=True):
    """One page of a list."""

    total: Annotated[int, Meta(description="number of items on all pages")]
    data: Annotated[list[Item], Meta(description="items of this page")]
    object: Annotated[str, Meta(description="`list`")] = "list"


class EmptyResponse(msgspec.Struct, frozen=True):
    """Empty body of a successful response."""


class Created(msgspec.Struct, frozen=True):
    """Response to a create or update request."""

    id: Annotated[str, Meta(description="its id")]
    slug: Annotated[str, Meta(description="its slug")]
    object: Annotated[str, Meta(description="type of the object")]


def now() -> int:
    """Returns the current Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


@lru_cache(4096)
def format_timestamp(milliseconds: int | None) -> str | None:
    """Formats Unix milliseconds as ISO 8601 in UTC with milliseconds; `None` stays `None`."""
    if milliseconds is None:
        return None
    written = datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    return written.replace("+00:00", "Z")


def format_required_timestamp(milliseconds: int) -> str:
    """Formats Unix milliseconds as `format_timestamp` does, for values that are never `None`."""
    return format_timestamp(milliseconds) or ""


def to_milliseconds(moment: datetime | None) -> int | None:
    """Converts a datetime to Unix milliseconds. A datetime without a time zone is read as UTC."""
    # Integer arithmetic, because a float of seconds would sometimes lose a millisecond.
    return None if moment is None else (to_utc(moment) - EPOCH) // MILLISECOND


def to_utc(moment: datetime) -> datetime:
    """Converts a datetime to UTC. One without a time zone is in UTC."""
    try:
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except OverflowError:
        # The offset moves the time before year 1 or after year 9999, which a datetime cannot represent. The offset is
        # ignored.
        return moment.replace(tzinfo=UTC)


def utc_midnight(moment: datetime) -> datetime:
    """Returns the midnight in UTC at which the day of a datetime starts."""
    return to_utc(moment).replace(hour=0, minute=0, second=0, microsecond=0)


def next_period_start(period: str | int, start: datetime) -> datetime:
    """Returns the next Monday (`weekly`), the first of the next month (`monthly`), or the midnight after `period` days,
    in UTC.
    """
    today = utc_midnight(start)
    if period == "weekly":
        return today + timedelta(days=7 - today.weekday())
    if period == "monthly":
        return (today.replace(day=1) + timedelta(days=32)).replace(day=1)
    return today + timedelta(days=int(period))


def next_reset(limit: Mapping[str, Any]) -> str | None:
    """Returns the next reset time of a usage limit, computed from its period and the stored time; `None` if it never
    resets.
    """
    due, period = limit.get("next_usage_reset_at"), limit.get("periodic_reset") or limit.get("periodic_reset_days")
    today = datetime.fromtimestamp(now() / 1000, UTC)
    if due is None or (first := datetime.fromisoformat(due)) > today:
        return due
    if isinstance(period, int):
        # The next reset is after all full periods since the stored time, plus one.
        first += timedelta(days=period * ((today - first).days // period + 1))
        return format_timestamp(to_milliseconds(first))
    return format_timestamp(to_milliseconds(next_period_start(period, today))) if period else None


def last_reset(limit: Mapping[str, Any], stored: int | None) -> int | None:
    """Returns when the usage of a limit was last reset, in milliseconds: at the end of a period, or at the time
    `stored` if that is later. `None` if it was never reset.
    """
    due, period = limit.get("next_usage_reset_at"), limit.get("periodic_reset") or limit.get("periodic_reset_days")
    today = datetime.fromtimestamp(now() / 1000, UTC)
    if due is None or (first := datetime.fromisoformat(due)) > today:
        return stored
    if isinstance(period, int):
        first += timedelta(days=period * ((today - first).days // period))
    elif period:
        # A period that began at a reset time set by the user may be shorter than the others.
        first = max(first, _period_start(period, today))
    passed = to_milliseconds(first) or 0
    return passed if stored is None else max(passed, stored)


def _period_start(period: str, moment: datetime) -> datetime:
    today = utc_midnight(moment)
    return today - timedelta(days=today.weekday()) if period == "weekly" else today.replace(day=1)


def with_next_reset(limits: Any) -> Any:  # noqa: ANN401 - one usage limit, several, or none
    """Returns the usage limits with `next_usage_reset_at` set to a time in the future, and whole amounts as
    integers.
    """
    if isinstance(limits, list):
        return [with_next_reset(limit) for limit in cast("list[dict[str, Any]]", limits)]
    if not limits:
        return limits
    # Converts whole numbers, because earlier releases stored `500` as `500.0`.
    amounts = {name: _whole_number(limits.get(name)) for name in ("credit_limit", "alert_threshold")}
    return {**limits, **amounts, "next_usage_reset_at": next_reset(limits)}


def _first_limit(limits: Any) -> Any:  # noqa: ANN401 - one usage limit, several, or none
    return next(iter(cast("list[Any]", limits)), None) if isinstance(limits, list) else limits


def _whole_number(value: Any) -> Any:  # noqa: ANN401 - a number or none
    return int(value) if isinstance(value, float) and value.is_integer() else value


def row_to_struct(struct_type: type[Struct], row: Mapping[str, Any], **more: object) -> Struct:
    """Builds a response struct from a row. Each field is the column of the same name, `*_at` columns become ISO
    timestamps, and `more` overrides fields.
    """
    # Copied to a dict, because each access to a column of a database row is slow.
    columns = row if isinstance(row, dict) else dict(row)
    written = {name: columns[name] for name in struct_type.__struct_fields__ if name in columns}
    for name in _timestamp_fields(struct_type):
        if name in written and name not in more:
            written[name] = format_timestamp(written[name])
    if "usage_limits" in written:
        limits = written["usage_limits"]
        written["usage_limits"] = with_next_reset(limits)
        if "last_reset_at" in written and "last_reset_at" not in more and (limit := _first_limit(limits)):
            written["last_reset_at"] = format_timestamp(last_reset(limit, columns["last_reset_at"]))
    return struct_type(**{**written, **more})


@cache
def _timestamp_fields(struct_type: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(name for name in struct_type.__struct_fields__ if name.endswith("_at"))


def effective_status(row: Mapping[str, Any], *, is_exhausted: bool = False) -> str:
    """Returns the row's status; `expired` if its `expires_at` has passed, or else `exhausted` if nothing is left of its
    usage limit.
    """
    if row["expires_at"] is not None and row["expires_at"] <= now():
        return "expired"
    return "exhausted" if is_exhausted and row["status"] == "active" else row["status"]


def sent_fields(change: msgspec.Struct) -> dict[str, Any]:
    """Returns the fields that the client sent. Omits fields that are UNSET."""
    names = change.__struct_fields__
    return {name: value for name in names if (value := getattr(change, name)) is not msgspec.UNSET}


def field_error(path: str, message: str) -> InvalidError:
    """Returns a validation error for one field."""
    return InvalidError(f"{path} {message}" if path else message, [Problem(path, message)])


def convert_value(path: str, kind: type[Struct], value: object) -> Struct:
    """Converts a JSON value to a struct. Raises `InvalidError` with all problems and their paths."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise invalid_error(find_problems(kind, value, path) or [Problem(path, str(error))]) from None


def invalid_error(problems: Sequence[Problem]) -> InvalidError:
    """Returns a validation error for several fields, at most `MAX_PROBLEMS`."""
    listed = problems[:MAX_PROBLEMS]
    rest = len(problems) - len(listed)
    return InvalidError(f"{join_problems(listed)}{f'; and {rest} more' if rest else ''}", listed)


def unknown_reference_error(path: str, message: str) -> UnknownReferenceError:
    """Returns an error for a field that refers to an object that does not exist."""
    return UnknownReferenceError(f"{path} {message}", [Problem(path, message)])
