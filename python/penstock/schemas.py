"""The shapes that answers share: moments, lists, what a create says."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, cast

import msgspec
from msgspec import Meta

from penstock.errors import InvalidError, Problem, UnknownReferenceError

if TYPE_CHECKING:
    from collections.abc import Mapping

EPOCH, MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)

Item = TypeVar("Item")
Struct = TypeVar("Struct", bound=msgspec.Struct)


class ListResponse(msgspec.Struct, Generic[Item], frozen=True):
    """One page of a list."""

    total: Annotated[int, Meta(description="how many there are on all pages")]
    data: Annotated[list[Item], Meta(description="those of this page")]
    object: Annotated[str, Meta(description="`list`")] = "list"


class EmptyResponse(msgspec.Struct, frozen=True):
    """It was done; there is nothing more to say."""


class Created(msgspec.Struct, frozen=True):
    """What was made."""

    id: Annotated[str, Meta(description="its id")]
    slug: Annotated[str, Meta(description="its slug")]
    object: Annotated[str, Meta(description="what it is")]


def now() -> int:
    """Give the moment, in milliseconds."""
    return time.time_ns() // 1_000_000


@lru_cache(4096)
def format_timestamp(milliseconds: int | None) -> str | None:
    """Write a moment as the wire has it: ISO 8601 in UTC with milliseconds."""
    if milliseconds is None:
        return None
    written = datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    return written.replace("+00:00", "Z")


def format_required_timestamp(milliseconds: int) -> str:
    """Write a moment that is always there."""
    return format_timestamp(milliseconds) or ""


def to_milliseconds(given: datetime | None) -> int | None:
    """Read a moment; one without a zone is in UTC."""
    # In whole numbers: seconds with a fraction are a millisecond less here and there.
    return None if given is None else (_to_utc(given) - EPOCH) // MILLISECOND


def _to_utc(given: datetime) -> datetime:
    try:
        return given.astimezone(UTC) if given.tzinfo else given.replace(tzinfo=UTC)
    except OverflowError:
        # Hours beyond the first or the last year that there is: such a moment could not be told any more.
        return given.replace(tzinfo=UTC)


def utc_midnight(given: datetime) -> datetime:
    """Give the midnight in UTC that begins the day of a moment."""
    return _to_utc(given).replace(hour=0, minute=0, second=0, microsecond=0)


def next_period_start(period: str | int, start: datetime) -> datetime:
    """Give the next Monday, first of a month, or midnight after so many days, in UTC."""
    today = utc_midnight(start)
    if period == "weekly":
        return today + timedelta(days=7 - today.weekday())
    if period == "monthly":
        return (today.replace(day=1) + timedelta(days=32)).replace(day=1)
    return today + timedelta(days=int(period))


def next_reset(limit: Mapping[str, Any]) -> str | None:
    """Say when counting begins anew next, whatever was so when the usage limit was written; null where it does not."""
    due, period = limit.get("next_usage_reset_at"), limit.get("periodic_reset") or limit.get("periodic_reset_days")
    today = datetime.fromtimestamp(now() / 1000, UTC)
    if due is None or (first := datetime.fromisoformat(due)) > today:
        return due
    if isinstance(period, int):
        # Whole periods since then, and one more.
        first += timedelta(days=period * ((today - first).days // period + 1))
        return format_timestamp(to_milliseconds(first))
    return format_timestamp(to_milliseconds(next_period_start(period, today))) if period else None


def with_next_reset(limits: Any) -> Any:  # noqa: ANN401 - one usage limit, several, or none
    """Show usage limits with the reset that is to come."""
    if isinstance(limits, list):
        return [with_next_reset(limit) for limit in cast("list[dict[str, Any]]", limits)]
    return {**limits, "next_usage_reset_at": next_reset(limits)} if limits else limits


def row_to_struct(shown: type[Struct], row: Mapping[str, Any], **more: object) -> Struct:
    """Write a row down: each field is the column of its name, moments as the wire has them, unless more is said."""
    # A row of the database looks each name up anew, and slowly.
    known = row if isinstance(row, dict) else dict(row)
    written = {name: known[name] for name in shown.__struct_fields__ if name in known}
    for name in _timestamp_fields(shown):
        if name in written and name not in more:
            written[name] = format_timestamp(written[name])
    if "usage_limits" in written:
        written["usage_limits"] = with_next_reset(written["usage_limits"])
    return shown(**{**written, **more})


@cache
def _timestamp_fields(shown: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(name for name in shown.__struct_fields__ if name.endswith("_at"))


def effective_status(row: Mapping[str, Any]) -> str:
    """Say how something is that may end by itself."""
    return "expired" if row["expires_at"] is not None and row["expires_at"] <= now() else row["status"]


def sent_fields(change: msgspec.Struct) -> dict[str, Any]:
    """Give the fields of a change that were sent; what is UNSET was not."""
    names = change.__struct_fields__
    return {name: value for name in names if (value := getattr(change, name)) is not msgspec.UNSET}


def field_error(path: str, message: str) -> InvalidError:
    """Make the error for one field."""
    return InvalidError(f"{path} {message}" if path else message, [Problem(path, message)])


def schema_error(path: str, error: msgspec.ValidationError) -> InvalidError:
    """Make the error for a table that does not fit its form, with the place in it."""
    message, _, where = str(error).partition(" - at ")
    place = re.search(r"\$([^`]*)`$", where)
    return field_error(path + (place[1].replace("[...]", "") if place else ""), message[:1].lower() + message[1:])


def unknown_reference_error(path: str, message: str) -> UnknownReferenceError:
    """Make the error for one field that refers to nothing."""
    return UnknownReferenceError(f"{path} {message}", [Problem(path, message)])
