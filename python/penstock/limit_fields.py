"""Usage and rate limits of keys, providers and workspaces: their fields and validation."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.errors import ForbiddenError, Problem
from penstock.schemas import (
    field_error,
    format_timestamp,
    invalid_error,
    last_reset,
    next_period_start,
    next_reset,
    now,
    to_milliseconds,
    utc_midnight,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# A number that a client sends as an integer is returned as an integer: typed languages cannot read `500.0` as one.
Amount = Annotated[int, Meta(ge=1)] | Annotated[float, Meta(ge=1)]
ResetUsage = Annotated[bool | None, Meta(description="reset the usage count now")]
DEFAULT_USAGE_TYPE = "cost"


class UsageLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Maximum usage until the next reset."""

    credit_limit: Annotated[
        Amount | None, Meta(description="US dollars, tokens or requests; null: no limit, only an alert")
    ] = None
    type: Annotated[
        Literal["cost", "tokens", "requests"] | None, Meta(description="what is counted; default: cost")
    ] = None
    alert_threshold: Annotated[
        Amount | None,
        Meta(
            description="usage at which an alert is sent; less than credit_limit, except for a workspace's access to an integration, where a higher value never sends one"
        ),
    ] = None
    periodic_reset: Annotated[
        Literal["monthly", "weekly"] | None, Meta(description="on the first of a month or on Monday, 00:00 UTC")
    ] = None
    periodic_reset_days: Annotated[
        Annotated[int, Meta(ge=1, le=365)] | None, Meta(description="days between resets, instead of periodic_reset")
    ] = None
    next_usage_reset_at: Annotated[
        datetime | None, Meta(description="time of the next reset; rounded down to midnight UTC")
    ] = None


class RateLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Maximum number of requests or tokens per unit of time."""

    type: Annotated[Literal["requests", "tokens"], Meta(description="what is counted")]
    unit: Annotated[Literal["rps", "rpm", "rph", "rpd", "rpw"], Meta(description="per second, minute, hour, day, week")]
    value: Annotated[int, Meta(ge=0, description="how many")]


RateLimits = list[RateLimit] | RateLimit
OneOrManyUsageLimits = list[UsageLimits] | UsageLimits
UsageLimitsField = Annotated[UsageLimits | None, Meta(description="usage limits")]
UsageLimitListField = Annotated[list[UsageLimits] | None, Meta(description="usage limits, at most one")]
RateLimitListField = Annotated[list[RateLimit] | None, Meta(description="rate limits")]
CurrentUsageField = Annotated[
    int | float | None,
    Meta(
        description="usage in the current period of usage_limits: US dollars, tokens or requests; null without usage limits"
    ),
]
USAGE_FIELDS = UsageLimits.__struct_fields__
PERIOD_FIELDS = ("periodic_reset", "periodic_reset_days")
RATE_UNITS = ("rpm", "rph", "rpd", "rpw")
KEY_RATE_UNITS = ("rps", *RATE_UNITS)
# Maximum number of rate limits of a row: one for each type and unit.
MAX_RATE_LIMITS = 2 * len(KEY_RATE_UNITS)


class LimitFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits and expiry in a request body of a key or a provider."""

    usage_limits: Annotated[UsageLimits | UnsetType | None, Meta(description="usage limits; null removes them")] = UNSET
    rate_limits: Annotated[RateLimits | UnsetType | None, Meta(description="rate limits; null removes them")] = UNSET
    expires_at: Annotated[datetime | UnsetType | None, Meta(description="expiry; null: never")] = UNSET


class LimitFieldsUpdate(LimitFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits and expiry in an update, which may also reset the usage."""

    reset_usage: ResetUsage = False


class WorkspaceLimitFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits in a request body of a workspace, or of its share of an integration."""

    usage_limits: Annotated[
        OneOrManyUsageLimits | UnsetType | None, Meta(description="usage limits, at most one; null removes them")
    ] = UNSET
    rate_limits: Annotated[RateLimits | UnsetType | None, Meta(description="rate limits; null removes them")] = UNSET


def check_workspace_limits(
    data: WorkspaceLimitFields,
    path: str = "",
    rates_at_most: int = MAX_RATE_LIMITS,
    before: Mapping[str, Any] | None = None,
    *,
    any_alert: bool = False,
) -> dict[str, Any]:
    """Validates the limits of a workspace and returns the columns to store. `before` is the stored row. With
    `any_alert`, the alert threshold may exceed the credit limit.
    """
    values: dict[str, Any] = {}
    if data.usage_limits is not UNSET:
        was = (before or {}).get("usage_limits")
        values["usage_limits"] = check_usage_limit_list(
            f"{path}usage_limits", data.usage_limits, was, any_alert=any_alert
        )
        values |= _passed_reset(before)
    if data.rate_limits is not UNSET:
        values["rate_limits"] = check_rate_limits(f"{path}rate_limits", data.rate_limits, most=rates_at_most) or None
    return values


def check_limits(
    data: LimitFields, units: Sequence[str] = RATE_UNITS, before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Validates limits and expiry and returns the columns to store. `before` is the stored row."""
    values: dict[str, Any] = {}
    if data.rate_limits is not UNSET:
        values["rate_limits"] = check_rate_limits("rate_limits", data.rate_limits, units=units)
    if data.usage_limits is not UNSET:
        values["usage_limits"] = check_usage_limits(
            "usage_limits", data.usage_limits, (before or {}).get("usage_limits")
        )
        values |= _passed_reset(before)
    if data.expires_at is not UNSET:
        end = to_milliseconds(data.expires_at)
        # Accepts an unchanged expiry that a client sends back, even if it has passed.
        if end is not None and end <= now() and end != (before or {}).get("expires_at"):
            raise field_error("expires_at", "is in the past")
        values["expires_at"] = end
    if isinstance(data, LimitFieldsUpdate) and data.reset_usage:
        values["last_reset_at"] = now()
    return values


def check_usage_limits(
    path: str, limits: UsageLimits | None, before: Mapping[str, Any] | None = None, *, any_alert: bool = False
) -> dict[str, Any] | None:
    """Validates usage limits and returns them as stored. A changed period takes effect at the next reset."""
    if limits is None:
        return None
    if problems := find_usage_limit_problems(f"{path}.", limits, before or {}, any_alert=any_alert):
        raise invalid_error(problems)
    return to_stored_usage_limits(limits, before or {})


def find_usage_limit_problems(
    prefix: str, limits: UsageLimits, before: Mapping[str, Any], *, any_alert: bool = False
) -> list[Problem]:
    """Returns all problems of usage limits. `prefix` is the beginning of their paths, `before` the stored limits."""
    problems: list[Problem] = []
    end, alert = limits.credit_limit, limits.alert_threshold
    if end is None and alert is None:
        problems.append(Problem(f"{prefix}credit_limit", "is needed, or alert_threshold"))
    if end is not None and alert is not None and alert >= end and not any_alert:
        reason = f"is {alert:g}; it must be less than credit_limit ({end:g})"
        problems.append(Problem(f"{prefix}alert_threshold", reason))
    if limits.periodic_reset and limits.periodic_reset_days:
        reason = f"{limits.periodic_reset_days} cannot be combined with periodic_reset; send either of them"
        problems.append(Problem(f"{prefix}periodic_reset_days", reason))
    requested = limits.next_usage_reset_at
    # Accepts an unchanged time that a client sends back, even if it has passed.
    is_new = requested is not None and _to_due(requested) not in {before.get("next_usage_reset_at"), next_reset(before)}
    if requested is not None and is_new and (to_milliseconds(requested) or 0) <= now():
        problems.append(Problem(f"{prefix}next_usage_reset_at", f"{_to_due(requested)} is in the past"))
    return problems


def to_stored_usage_limits(limits: UsageLimits, before: Mapping[str, Any]) -> dict[str, Any]:
    """Returns valid usage limits as they are stored, with the end of the current period. `before` is the stored form."""
    requested, period = limits.next_usage_reset_at, limits.periodic_reset or limits.periodic_reset_days
    due = None if requested is None else _to_due(requested)
    if due is None and period:
        # A new period length applies only after the current period, which ends at the time that responses already
        # contain.
        due = next_reset(before) or _to_due(next_period_start(period, datetime.fromtimestamp(now() / 1000, UTC)))
    return {**msgspec.to_builtins(limits), "next_usage_reset_at": due}


def _to_due(moment: datetime) -> str | None:
    return format_timestamp(to_milliseconds(utc_midnight(moment)))


def _passed_reset(before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the column `last_reset_at` if a period ended since it was stored, else nothing. Without this
    column, new limits would move the start of the current period, and so change which usage counts.
    """
    stored = (before or {}).get("last_reset_at")
    resets = [last_reset(limit, stored) for limit in list_limits((before or {}).get("usage_limits"))]
    return {"last_reset_at": resets[0]} if resets and resets[0] != stored else {}


def check_usage_limit_list(
    path: str,
    requested: OneOrManyUsageLimits | None,
    before: Sequence[Mapping[str, Any]] | None = None,
    *,
    any_alert: bool = False,
) -> list[dict[str, Any]] | None:
    """Validates usage limits that a client sends as one object, or as a list of at most one object."""
    listed = requested if isinstance(requested, list) else [requested] if requested else []
    if len(listed) > 1:
        raise field_error(path, "has more than one entry; at most one is allowed")
    was = before[0] if before else None
    checked = [
        check_usage_limits(f"{path}[{index}]", limit, was, any_alert=any_alert) for index, limit in enumerate(listed)
    ]
    return [limit for limit in checked if limit is not None] or None


def check_rate_limits(
    path: str, limits: RateLimits | None, *, units: Sequence[str] = RATE_UNITS, most: int = MAX_RATE_LIMITS
) -> list[Any] | None:
    """Validates rate limits and returns them as stored. Also accepts a single limit that is not in a list."""
    if limits is None:
        return None
    listed = limits if isinstance(limits, list) else [limits]
    if len(listed) > most:
        raise field_error(path, f"holds {len(listed)} limits: at most {most} are allowed")
    for index, limit in enumerate(listed):
        if limit.unit not in units:
            raise field_error(f"{path}[{index}].unit", f"{limit.unit!r} is not allowed: use one of {', '.join(units)}")
        if any((limit.type, limit.unit) == (other.type, other.unit) for other in listed[:index]):
            raise field_error(f"{path}[{index}]", f"is the second limit of {limit.type} in {limit.unit!r}")
    return [msgspec.to_builtins(limit) for limit in listed]


def first_limit(limits: Any) -> Any:  # noqa: ANN401 - a list of limits, or none
    """Returns the first limit, for clients that support only one."""
    return limits[0] if limits else None


def reject_exceeding_limits(holds: Mapping[str, Any], fields: Mapping[str, Any], reason: str) -> None:
    """Raises ForbiddenError if `fields` has limits or an expiry that allow more than those in `holds`. Skips names that
    `fields` does not contain.
    """
    for name, is_beyond in (
        ("usage_limits", _allows_more_usage),
        ("rate_limits", _allows_higher_rate),
        ("expires_at", _expires_later),
    ):
        if name in fields and is_beyond(holds.get(name), fields[name]):
            raise ForbiddenError(f"{name} {reason}", [Problem(name, reason)])


def limiting_field(holds: Mapping[str, Any]) -> str | None:
    """Returns the name of the field that limits usage or requests, or `None`."""
    if any(map(_has_limit, list_limits(holds["usage_limits"]))):
        return "usage_limits"
    return "rate_limits" if holds["rate_limits"] else None


def list_limits(limits: Any) -> list[Mapping[str, Any]]:  # noqa: ANN401 - one limit, several, or none
    """Returns stored limits as a list, whether they are one, several or none."""
    return cast("list[Mapping[str, Any]]", limits if isinstance(limits, list) else [limits] if limits else [])


def _allows_more_usage(holds: Any, requested: Any) -> bool:  # noqa: ANN401 - as above
    """Returns true if `requested` allows more usage than `holds`: a higher limit or none, another period, or an earlier
    reset.
    """
    return any(
        not any(_is_usage_within(limit, item) for item in list_limits(requested))
        for limit in list_limits(holds)
        if _has_limit(limit)
    )


def _has_limit(limit: Mapping[str, Any]) -> bool:
    return limit["credit_limit"] is not None


def _is_usage_within(limit: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    if (
        _usage_type(fields) != _usage_type(limit)
        or not _has_limit(fields)
        or fields["credit_limit"] > limit["credit_limit"]
    ):
        return False
    due, first = fields["next_usage_reset_at"], limit["next_usage_reset_at"]
    if due is None:
        return True
    same = all(fields[name] in {None, limit[name]} for name in PERIOD_FIELDS)
    # Timestamps have one fixed format, so comparing the strings compares the times.
    return same and first is not None and due >= first


def _usage_type(limit: Mapping[str, Any]) -> str:
    return limit.get("type") or DEFAULT_USAGE_TYPE


def _allows_higher_rate(holds: Any, requested: Any) -> bool:  # noqa: ANN401 - as above
    """Returns true if a rate limit in `holds` is higher in `requested`, or missing there."""
    given_rates = {(limit["type"], limit["unit"]): limit["value"] for limit in list_limits(requested)}
    return any(
        given_rates.get((rate_limit["type"], rate_limit["unit"]), rate_limit["value"] + 1) > rate_limit["value"]
        for rate_limit in list_limits(holds)
    )


def _expires_later(holds: int | None, requested: int | None) -> bool:
    return holds is not None and (requested is None or requested > holds)
