"""Time buckets: their width, where they begin in a time zone, and invalid ranges."""

from __future__ import annotations

import datetime as dt

import pytest

from penstock.logs.engines.buckets import WIDTHS_MS, Buckets, choose_buckets
from penstock.logs.query import LogFilterError, LogFilters, Rollup


def choose(start: str, end: str, zone: str = "UTC", rollup: Rollup | None = None) -> Buckets:
    ends = (dt.datetime.fromisoformat(start), dt.datetime.fromisoformat(end))
    filters = LogFilters(organisation_id="org", time_of_generation_min=ends[0], time_of_generation_max=ends[1])
    return choose_buckets(filters, zone, rollup)


@pytest.mark.parametrize(
    ("end", "minutes", "count"),
    [
        ("2026-11-02T00:00:00Z", 1, 1),
        ("2026-11-02T01:00:00Z", 1, 61),
        ("2026-11-02T06:00:00Z", 5, 73),
        ("2026-11-03T00:00:00Z", 15, 97),
        ("2026-11-09T00:00:00Z", 60, 169),
        ("2026-12-02T00:00:00Z", 24 * 60, 31),
        ("2027-11-02T00:00:00Z", 7 * 24 * 60, 53),
        ("2036-11-02T00:00:00Z", 7 * 24 * 60, 522),
    ],
)
def test_width_follows_from_the_range(end: str, minutes: int, count: int):
    buckets = choose("2026-11-02T00:00:00Z", end)
    assert buckets.width_ms == minutes * 60_000
    assert len(buckets.timestamps()) == count


@pytest.mark.parametrize(
    ("rollup", "end", "count"),
    [
        ("1m", "2026-11-03T00:00:00Z", 24 * 60 + 1),
        ("1h", "2026-11-03T00:00:00Z", 25),
        ("1d", "2026-11-02T01:00:00Z", 1),
        ("1h", "2027-01-01T00:00:00Z", 60 * 24 + 1),
        ("1w", "2027-11-02T00:00:00Z", 53),
    ],
)
def test_width_can_be_chosen(rollup: Rollup, end: str, count: int):
    buckets = choose("2026-11-02T00:00:00Z", end, rollup=rollup)
    assert (buckets.width_ms, len(buckets.timestamps())) == (WIDTHS_MS[rollup], count)


def test_rejects_a_width_that_is_too_narrow_for_the_range():
    with pytest.raises(LogFilterError, match=r"into 10,080 buckets; at most 1,500 are allowed: use '15m'"):
        choose("2026-11-02T00:00:00Z", "2026-11-09T00:00:00Z", rollup="1m")
    # The last bucket is not complete.
    with pytest.raises(LogFilterError, match="into 1,501 buckets; at most 1,500 are allowed"):
        choose("2026-11-02T00:00:00Z", "2026-11-03T01:00:30Z", rollup="1m")


def test_days_follow_the_clock_changes_of_a_zone():
    starts = list(choose("2026-10-20T00:00:00Z", "2026-11-05T00:00:00Z", "Europe/Berlin").timestamps().values())
    assert starts[0] == "2026-10-19T22:00:00.000Z"
    assert [start for start in starts if start.endswith("T22:00:00.000Z")][-1] == "2026-10-24T22:00:00.000Z"
    assert next(start for start in starts if start.endswith("T23:00:00.000Z")) == "2026-10-25T23:00:00.000Z"


def test_offsets_change_at_the_minute_of_the_clock_change():
    buckets = choose("2026-10-01T00:00:00Z", "2026-11-05T00:00:00Z", "Europe/Berlin")
    change = dt.datetime(2026, 10, 25, 1, tzinfo=dt.UTC)
    assert buckets.offsets == ((int(change.timestamp() * 1000), 7_200_000), (None, 3_600_000))


def test_weeks_begin_on_monday():
    for start in choose("2026-01-01T00:00:00Z", "2026-12-31T00:00:00Z", "Asia/Kolkata").timestamps().values():
        local = dt.datetime.fromisoformat(str(start)) + dt.timedelta(hours=5, minutes=30)
        assert (local.weekday(), local.hour, local.minute) == (0, 0, 0)


def test_hours_begin_at_the_full_hour_of_the_zone():
    starts = choose("2026-11-02T00:00:00Z", "2026-11-07T00:00:00Z", "Asia/Kolkata").timestamps().values()
    assert {str(start)[14:16] for start in starts} == {"30"}


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("2026-11-02T00:00:00Z", "2026-11-01T00:00:00Z"),
        ("2026-11-02T00:00:00Z", "2037-11-02T00:00:00Z"),
        ("1960-11-02T00:00:00Z", "1970-11-02T00:00:00Z"),
        ("9999-11-02T00:00:00Z", "9999-12-31T00:00:00Z"),
    ],
)
def test_rejects_ranges_that_are_reversed_or_too_long(start: str, end: str):
    with pytest.raises(LogFilterError, match="at most 3660 days"):
        choose(start, end)


def test_rejects_a_missing_range():
    with pytest.raises(LogFilterError, match="are required"):
        choose_buckets(LogFilters(organisation_id="org"), "UTC")


@pytest.mark.parametrize("zone", ["", "Mars/Base", "../../etc/passwd", "a" * 1000, "\0"])
def test_rejects_an_unknown_time_zone(zone: str):
    with pytest.raises(LogFilterError, match="Europe/Berlin"):
        choose("2026-11-02T00:00:00Z", "2026-11-03T00:00:00Z", zone)
