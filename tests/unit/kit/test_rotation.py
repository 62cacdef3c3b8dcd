"""Rotation policies."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from penstock.errors import InvalidError
from penstock.kit.rotation import RotationPolicy, policy


def test_without_a_policy_and_a_rule_there_is_none():
    assert policy(None, None) is None


@pytest.mark.parametrize(
    ("asked", "enforced", "days"),
    [
        (None, 9, 9),
        (RotationPolicy(key_transition_period_ms=3_600_000), 9, 9),
        (RotationPolicy(rotation_period="weekly"), 7, None),
        (RotationPolicy(rotation_period="monthly"), 30, None),
    ],
)
def test_the_words_agree_with_their_days(asked: RotationPolicy | None, enforced: int, days: int | None):
    written = policy(asked, enforced)
    assert written is not None
    assert (written["rotation_period_days"], written["status"]) == (days, "ACTIVE")


@pytest.mark.parametrize(
    ("asked", "enforced"),
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
def test_what_contradicts_is_refused(asked: RotationPolicy, enforced: int | None):
    with pytest.raises(InvalidError):
        policy(asked, enforced)


def test_a_moment_given_by_hand_wins_and_is_taken_back_to_midnight():
    asked = RotationPolicy(rotation_period_days=5, next_rotation_at=datetime(2099, 3, 4, 17, tzinfo=UTC))
    written = policy(asked, None)
    assert written is not None
    assert written["next_rotation_at"] == "2099-03-04T00:00:00.000Z"
