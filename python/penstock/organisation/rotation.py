"""Rotation policy of API keys: when a key is replaced, and how long the old key stays valid."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.schemas import field_error, format_timestamp, next_period_start, now, to_milliseconds, utc_midnight

if TYPE_CHECKING:
    from collections.abc import Mapping

PERIOD_DAYS = {"weekly": 7, "monthly": 30}
DAY_MS = 24 * 3600 * 1000
# Minimum and maximum of the transition period in milliseconds. The maximum is also the longest rotation period.
SHORTEST_TRANSITION, LONGEST_TRANSITION = 30 * 60 * 1000, 365 * DAY_MS

TransitionMs = Annotated[
    int,
    Meta(
        ge=SHORTEST_TRANSITION,
        le=LONGEST_TRANSITION,
        description="milliseconds during which both the old and the new key are valid",
    ),
]
PERIOD_FIELDS = ("rotation_period", "rotation_period_days")


class RotationPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How often a key is rotated."""

    rotation_period: Annotated[
        Literal["weekly", "monthly"] | UnsetType | None,
        Meta(
            description="on Monday or on the first of a month, 00:00 UTC; if no period is sent, the previous one stays"
        ),
    ] = UNSET
    rotation_period_days: Annotated[
        Annotated[int, Meta(ge=1, le=365)] | UnsetType | None,
        Meta(description="days between rotations, instead of rotation_period"),
    ] = UNSET
    next_rotation_at: Annotated[
        datetime | None, Meta(description="time of the next rotation; rounded down to midnight in UTC")
    ] = None
    key_transition_period_ms: Annotated[
        TransitionMs | UnsetType,
        Meta(description="milliseconds during which both the old and the new key are valid; default: 30 minutes"),
    ] = UNSET
    status: Annotated[Literal["ACTIVE"], Meta(description="`ACTIVE`")] = "ACTIVE"


def build_policy(
    policy: RotationPolicy | None, enforced: int | None, before: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """Validates a rotation policy, also against the enforced period in days. Returns it with the time of the next
    rotation; `None` if there is no policy.
    """
    if policy is None and enforced is None:
        return None
    before = before or {}
    policy = _fill_omitted_fields(policy or RotationPolicy(), before, enforced)
    requested_at = (
        format_timestamp(to_milliseconds(utc_midnight(policy.next_rotation_at))) if policy.next_rotation_at else None
    )
    # A client that sends back the time that it read does not change it.
    is_new = requested_at is not None and requested_at != before.get("next_rotation_at")
    if enforced is not None:
        policy = _apply_enforced_period(policy, enforced, is_new=is_new)
    if policy.rotation_period and policy.rotation_period_days:
        raise field_error("rotation_policy", "takes either rotation_period or rotation_period_days")
    transition = policy.key_transition_period_ms or SHORTEST_TRANSITION
    check_transition_length("rotation_policy.key_transition_period_ms", transition, None, msgspec.to_builtins(policy))
    today = datetime.fromtimestamp(now() / 1000, UTC)
    if is_new and policy.next_rotation_at and utc_midnight(policy.next_rotation_at) <= today - timedelta(days=1):
        raise field_error("rotation_policy.next_rotation_at", "is in the past")
    written = msgspec.to_builtins(policy)
    # Sending the same period again does not postpone the next rotation.
    is_same = _period_days(written) == _period_days(before)
    due = (
        requested_at
        or (is_same and before.get("next_rotation_at"))
        or format_timestamp(to_milliseconds(next_rotation(written, today)))
    )
    return {**written, "next_rotation_at": due}


def check_transition_length(path: str, transition: int, cadence: int | None, policy: Mapping[str, Any] | None) -> None:
    """Rejects a transition period that is not shorter than the rotation period: the enforced one, `cadence` in days,
    and that of the key's `policy`.
    """
    policy = policy or {}
    if any(days * DAY_MS <= transition for days in (cadence, _period_days(policy)) if days is not None):
        raise field_error(path, "must be shorter than the period of the rotation")


def _fill_omitted_fields(policy: RotationPolicy, before: Mapping[str, Any], enforced: int | None) -> RotationPolicy:
    """Fills omitted fields from the previous policy. The previous period stays unless the client sends one or a
    different one is enforced.
    """
    if policy.key_transition_period_ms is UNSET:
        transition = before.get("key_transition_period_ms", SHORTEST_TRANSITION)
        policy = msgspec.structs.replace(policy, key_transition_period_ms=transition)
    given_periods = {name: period for name in PERIOD_FIELDS if (period := getattr(policy, name)) is not UNSET}
    periods = before if not given_periods and enforced in {None, _period_days(before)} else given_periods
    return msgspec.structs.replace(policy, **{name: periods.get(name) for name in PERIOD_FIELDS})


def _period_days(written: Mapping[str, Any]) -> int | None:
    return written.get("rotation_period_days") or PERIOD_DAYS.get(written.get("rotation_period") or "")


def next_rotation(written: Mapping[str, Any], today: datetime) -> datetime | None:
    """Returns the next rotation time after today, or `None` if the policy has no period."""
    period = written["rotation_period"] or written["rotation_period_days"]
    return next_period_start(period, today) if period else None


def _apply_enforced_period(policy: RotationPolicy, enforced: int, *, is_new: bool) -> RotationPolicy:
    """Returns the policy with the enforced period. Rejects a different period and a new `next_rotation_at`."""
    if is_new:
        raise field_error("rotation_policy.next_rotation_at", "cannot be set: the rotation period is enforced")
    period = policy.rotation_period_days or PERIOD_DAYS.get(policy.rotation_period or "")
    if period is None:
        return msgspec.structs.replace(policy, rotation_period_days=enforced)
    if period != enforced:
        raise field_error("rotation_policy", f"differs from the enforced period of {enforced} days")
    return policy
