"""Time buckets of a graph. A query sets their width, or it follows from the time range. Days and weeks begin at
midnight of a time zone.
"""

from __future__ import annotations

import datetime as dt
import zoneinfo
from typing import TYPE_CHECKING

import msgspec

from penstock.logs.query import END_OF_TIME, EPOCH, MAX_RANGE_DAYS, LogFilterError, LogFilters

if TYPE_CHECKING:
    from penstock.logs.engines.sql import SqlFragments
    from penstock.logs.query import Rollup

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
WEEK_MS = 7 * DAY_MS
WIDTHS_MS: dict[Rollup, int] = {
    "1m": MINUTE_MS,
    "5m": 5 * MINUTE_MS,
    "15m": 15 * MINUTE_MS,
    "1h": HOUR_MS,
    "1d": DAY_MS,
    "1w": WEEK_MS,
}
# If the query sets no width, the narrowest one with at most this many buckets is used.
MAX_BUCKETS = 200
# Maximum number of buckets if the query sets the width: enough for a day of minutes, or two months of hours.
MAX_CHOSEN_BUCKETS = 1500
# Shifts the start of weeks from Thursday, the day of the epoch, to Monday.
MONDAY_SHIFT_MS = 3 * DAY_MS
ONE_MS = dt.timedelta(milliseconds=1)


def to_ms(moment: dt.datetime) -> int:
    """Returns the milliseconds since the epoch, rounded down."""
    return (moment - EPOCH) // ONE_MS


def format_ms(milliseconds: int | None) -> str | None:
    """Formats milliseconds since the epoch as RFC 3339 in UTC."""
    if milliseconds is None:
        return None
    return (EPOCH + dt.timedelta(milliseconds=milliseconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Buckets(msgspec.Struct, frozen=True):
    """Buckets of equal width in local time. `offsets` has pairs in milliseconds: the end of an offset's validity
    (`None` for the last one), and the offset from UTC.
    """

    width_ms: int
    zone: zoneinfo.ZoneInfo
    offsets: tuple[tuple[int | None, int], ...]
    first: int
    last: int

    def render_index(self, fragments: SqlFragments, timestamp: str) -> str:
        """Returns the SQL expression of a timestamp's bucket number."""
        ticks, per_ms = fragments.ticks(timestamp), fragments.ticks_per_ms
        *changes, (_, shift) = self.offsets
        offset = str(shift * per_ms)
        if changes:
            cases = [f"WHEN {ticks} < {(until or 0) * per_ms} THEN {before * per_ms}" for until, before in changes]
            offset = f"CASE {' '.join(cases)} ELSE {offset} END"
        return fragments.divide(f"{ticks} + {offset}", self.width_ms * per_ms)

    def timestamps(self) -> dict[int, str | None]:
        """Returns the start of each bucket by its number, including buckets without records."""
        return {number: format_ms(self._start_ms(number)) for number in range(self.first, self.last + 1)}

    def _start_ms(self, number: int) -> int:
        local = number * self.width_ms
        if self.width_ms < DAY_MS:
            return local - self.offsets[0][1]
        if self.width_ms == WEEK_MS:
            local -= MONDAY_SHIFT_MS
        midnight = (EPOCH + dt.timedelta(milliseconds=local)).replace(tzinfo=self.zone)
        return to_ms(midnight.astimezone(dt.UTC))


def choose_buckets(filters: LogFilters, time_zone: str, rollup: Rollup | None = None) -> Buckets:
    """Chooses the buckets of a range of time. Raises `LogFilterError` if the filters have no range, or a range with too
    many buckets.
    """
    start, end = filters.time_of_generation_min, filters.time_of_generation_max
    if start is None or end is None:
        message = "time_of_generation_min and time_of_generation_max are required"
        raise LogFilterError(message)
    if not EPOCH <= start <= end <= END_OF_TIME or end - start > dt.timedelta(days=MAX_RANGE_DAYS):
        message = (
            f"time_of_generation_max is {end.isoformat()}; it must be at most {MAX_RANGE_DAYS} days after "
            f"time_of_generation_min, which is {start.isoformat()}; both must be between 1970 and 2200"
        )
        raise LogFilterError(message)
    try:
        zone = zoneinfo.ZoneInfo(time_zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        message = f"time_zone is {time_zone[:64]!r}; it must be a name such as Europe/Berlin"
        raise LogFilterError(message) from None
    width = _choose_width(to_ms(end) - to_ms(start), rollup)
    offsets = _find_offsets(zone, start, end) if width >= DAY_MS else ((None, _offset_ms(zone, start)),)
    if width == WEEK_MS:
        offsets = tuple((until, offset + MONDAY_SHIFT_MS) for until, offset in offsets)
    first, last = (to_ms(start) + offsets[0][1]) // width, (to_ms(end) + offsets[-1][1]) // width
    return Buckets(width, zone, offsets, first, last)


def _choose_width(length_ms: int, rollup: Rollup | None) -> int:
    if rollup is None:
        return next((width for width in WIDTHS_MS.values() if length_ms <= width * MAX_BUCKETS), WEEK_MS)
    width = WIDTHS_MS[rollup]
    if length_ms > width * MAX_CHOSEN_BUCKETS:
        allowed = next((name for name, other in WIDTHS_MS.items() if length_ms <= other * MAX_CHOSEN_BUCKETS), "1w")
        message = (
            f"rollup is {rollup!r}, which divides this range into {-(-length_ms // width):,} buckets; "
            f"at most {MAX_CHOSEN_BUCKETS:,} are allowed: use {allowed!r}, or a shorter range"
        )
        raise LogFilterError(message)
    return width


def _offset_ms(zone: zoneinfo.ZoneInfo, moment: dt.datetime) -> int:
    offset = moment.astimezone(zone).utcoffset() or dt.timedelta()
    return offset // ONE_MS


def _find_offsets(zone: zoneinfo.ZoneInfo, start: dt.datetime, end: dt.datetime) -> tuple[tuple[int | None, int], ...]:
    """Returns the offsets of a time zone in a range, and the minutes at which they change. The format is that of
    `Buckets.offsets`.
    """
    offsets: list[tuple[int | None, int]] = []
    moment = start
    while moment < end:
        later = min(moment + dt.timedelta(days=1), end)
        if _offset_ms(zone, moment) != _offset_ms(zone, later):
            low, high = to_ms(moment) // MINUTE_MS, -(-to_ms(later) // MINUTE_MS)
            while high - low > 1:
                middle = (low + high) // 2
                same = _offset_ms(zone, EPOCH + dt.timedelta(minutes=middle)) == _offset_ms(zone, moment)
                low, high = (middle, high) if same else (low, middle)
            offsets.append((high * MINUTE_MS, _offset_ms(zone, moment)))
        moment = later
    return (*offsets, (None, _offset_ms(zone, end)))
