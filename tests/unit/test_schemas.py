"""Timestamps in the format of the management API."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock.schemas import format_timestamp, next_period_start, to_milliseconds, utc_midnight


def test_timestamp_is_utc_with_milliseconds():
    assert format_timestamp(1_735_573_089_007) == "2024-12-30T15:38:09.007Z"
    assert format_timestamp(None) is None
    assert to_milliseconds(datetime.fromisoformat("2024-12-30T16:38:09.007+01:00")) == 1_735_573_089_007
    assert to_milliseconds(datetime.fromisoformat("2024-12-30T15:38:09.007")) == 1_735_573_089_007
    assert to_milliseconds(None) is None


def test_formatted_timestamp_parses_back_unchanged():
    # An earlier version lost a millisecond of the last two timestamps.
    for content in (1_735_573_089_007, 2_183_226_373_411, 1_079_337_347_472):
        assert to_milliseconds(datetime.fromisoformat(format_timestamp(content) or "")) == content


@pytest.mark.parametrize(
    ("period", "start", "end"),
    [
        ("weekly", "2026-11-18T10:00:00+00:00", "2026-11-23"),
        ("weekly", "2026-11-23T00:00:00+00:00", "2026-11-30"),
        ("monthly", "2026-01-31T23:00:00+00:00", "2026-02-01"),
        ("monthly", "2026-12-01T00:00:00+00:00", "2027-01-01"),
        (3, "2026-11-18T10:00:00+00:00", "2026-11-21"),
        (1, "2026-11-18T23:30:00-05:00", "2026-11-20"),
    ],
)
def test_period_ends_on_monday_first_of_month_or_utc_midnight(period: str | int, start: str, end: str):
    assert next_period_start(period, datetime.fromisoformat(start)) == datetime.fromisoformat(f"{end}T00:00:00+00:00")


def test_utc_midnight_is_the_start_of_the_utc_day():
    assert utc_midnight(datetime.fromisoformat("2026-11-18T23:30:00-05:00")) == datetime(2026, 11, 19, tzinfo=UTC)
