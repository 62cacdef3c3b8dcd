"""Key rotation policies."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from penstock.errors import InvalidError
from penstock.organisation.rotation import RotationPolicy, build_policy


def test_no_policy_without_request_or_enforced_period():
    assert build_policy(None, None) is None


@pytest.mark.parametrize(
    ("requested", "enforced", "days"),
    [
        (None, 9, 9),
        (RotationPolicy(key_transition_period_ms=3_600_000), 9, 9),
        (RotationPolicy(rotation_period="weekly"), 7, None),
        (RotationPolicy(rotation_period="monthly"), 30, None),
    ],
)
def test_period_names_match_their_days(requested: RotationPolicy | None, enforced: int, days: int | None):
    written = build_policy(requested, enforced)
    assert written is not None
    assert (written["rotation_period_days"], written["status"]) == (days, "ACTIVE")


@pytest.mark.parametrize(
    ("requested", "enforced"),
    [
        (RotationPolicy(rotation_period="weekly"), 8),
        (RotationPolicy(rotation_period_days=8), 7),
        (RotationPolicy(next_rotation_at=datetime(2099, 1, 1, tzinfo=UTC)), 7),
        (RotationPolicy(rotation_period="weekly", rotation_period_days=7), None),
        (RotationPolicy(rotation_period_days=1, key_transition_period_ms=86_400_000), None),
        (RotationPolicy(rotation_period="weekly", key_transition_period_ms=7 * 86_400_000), None),
        (RotationPolicy(next_rotation_at=datetime.now(UTC) - timedelta(days=3)), None),
    ],
)
def test_rejects_contradictory_policies(requested: RotationPolicy, enforced: int | None):
    with pytest.raises(InvalidError):
        build_policy(requested, enforced)


def test_explicit_rotation_date_is_rounded_down_to_midnight():
    requested = RotationPolicy(rotation_period_days=5, next_rotation_at=datetime(2099, 3, 4, 17, tzinfo=UTC))
    written = build_policy(requested, None)
    assert written is not None
    assert written["next_rotation_at"] == "2099-03-04T00:00:00.000Z"


@pytest.mark.parametrize("content", [RotationPolicy(rotation_period="weekly"), RotationPolicy(rotation_period_days=30)])
def test_omitted_period_stays_unchanged(content: RotationPolicy):
    before = build_policy(content, None)
    after = build_policy(RotationPolicy(key_transition_period_ms=3_600_000), None, before)
    assert (before, after) == (before, {**(before or {}), "key_transition_period_ms": 3_600_000})
    ended = build_policy(RotationPolicy(rotation_period=None), None, before)
    assert ended is not None
    assert (ended["rotation_period"], ended["rotation_period_days"], ended["next_rotation_at"]) == (None, None, None)
    # A period that is enforced later overrides the stored one.
    enforced = build_policy(RotationPolicy(key_transition_period_ms=3_600_000), 5, before)
    assert enforced is not None
    assert enforced["rotation_period_days"] == 5


@pytest.mark.parametrize("due", ["2020-01-01T00:00:00.000Z", "2099-01-01T00:00:00.000Z"])
@pytest.mark.parametrize(
    "requested",
    [
        None,
        RotationPolicy(),
        RotationPolicy(rotation_period_days=7),
        RotationPolicy(rotation_period="weekly"),
        RotationPolicy(key_transition_period_ms=3_600_000),
        "as it was shown",
    ],
)
@pytest.mark.parametrize("content", [RotationPolicy(rotation_period="weekly"), RotationPolicy(rotation_period_days=7)])
def test_unchanged_policy_does_not_postpone_the_rotation(
    requested: RotationPolicy | str | None, due: str, content: RotationPolicy
):
    before = build_policy(content, 7)
    assert before is not None
    before["next_rotation_at"] = due
    if isinstance(requested, str):
        requested = msgspec.convert(before, RotationPolicy)
    after = build_policy(requested, 7, before)
    assert after is not None
    assert after["next_rotation_at"] == due
    # Another period restarts the schedule.
    other = build_policy(RotationPolicy(rotation_period_days=8), None, before)
    assert other is not None
    assert other["next_rotation_at"] != due
