//! Timestamps in the formats that providers and request records use.

use std::time::Duration;

/// Parses an RFC 3339 timestamp in UTC such as `2026-02-03T04:05:06.789Z` into Unix seconds. Returns `None` for other
/// time zones, which no provider sends.
pub fn parse_rfc3339(text: &str) -> Option<u64> {
    let (date, time) = text.split_once('T')?;
    let time = time.strip_suffix('Z').or_else(|| time.strip_suffix("+00:00"))?;
    let [year, month, day] = parse_three_numbers(date, '-')?;
    let [hour, minute, second] = parse_three_numbers(time.split('.').next()?, ':')?;
    let is_one = year >= 1970 && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !is_one || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    Some(((days_since_epoch(year, month, day) * 24 + hour) * 60 + minute) * 60 + second)
}

/// Parses an HTTP date such as `Sun, 06 Nov 1994 08:49:37 GMT` into Unix seconds.
pub fn parse_http_date(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (_, date) = text.split_once(", ")?;
    let mut parts = date.split(' ');
    let (day, month, year) = (parts.next()?, parts.next()?, parts.next()?);
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    parse_rfc3339(&format!("{year}-{month}-{day}T{}Z", parts.next()?))
}

/// Formats Unix seconds as `2026-02-03T04:05:06Z`.
pub fn format_rfc3339(seconds: u64) -> String {
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date_from_days(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", time / 3600, time / 60 % 60, time % 60)
}

/// Formats a time since the Unix epoch as `2026-02-03T04:05:06.789Z`, for years with four digits. Avoids an allocation,
/// because each request record has one.
pub fn format_rfc3339_millis(since_1970: Duration) -> [u8; 24] {
    let seconds = since_1970.as_secs();
    let (year, month, day) = date_from_days(seconds / 86_400);
    let mut text = *b"0000-00-00T00:00:00.000Z";
    let mut write_digits = |end: usize, digits: usize, mut number: u64| {
        for letter in text[end - digits..end].iter_mut().rev() {
            *letter = b'0' + (number % 10) as u8;
            number /= 10;
        }
    };
    write_digits(4, 4, year);
    write_digits(7, 2, month);
    write_digits(10, 2, day);
    write_digits(13, 2, seconds / 3600 % 24);
    write_digits(16, 2, seconds / 60 % 60);
    write_digits(19, 2, seconds % 60);
    write_digits(23, 3, u64::from(since_1970.subsec_millis()));
    text
}

/// Converts days since 1970 into year, month and day; the inverse of `days_since_epoch`.
fn date_from_days(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let year = era * 400 + year;
    let (year, of_year) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    (year, of_year, day - (153 * month + 2) / 5 + 1)
}

fn parse_three_numbers(text: &str, between: char) -> Option<[u64; 3]> {
    let mut parts = text.split(between).map(|part| part.parse().ok().filter(|number| *number < 10_000));
    let numbers = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(numbers)
}

/// Converts a date into days since 1970. Counts years from March, so that the leap day is the last day of a year.
fn days_since_epoch(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let of_years = year * 365 + year / 4 - year / 100 + year / 400;
    let of_months = (153 * month + 2) / 5;
    of_years + of_months + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_timestamps_and_rejects_invalid_ones() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2000-02-29T23:59:59Z", Some(951_868_799)),
            ("2023-11-14T22:13:20.123456Z", Some(1_700_000_000)),
            ("2024-03-01T00:00:00+00:00", Some(1_709_251_200)),
            ("2024-03-01T00:00:00+02:00", None),
            ("2024-13-01T00:00:00Z", None),
            ("1969-01-01T00:00:00Z", None),
            ("2024-03-01", None),
            ("", None),
        ] {
            assert_eq!(parse_rfc3339(text), expected, "{text}");
        }
        for (text, expected) in [
            ("Tue, 14 Nov 2023 22:13:20 GMT", Some(1_700_000_000)),
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Tue, 14 Foo 2023 22:13:20 GMT", None),
            ("2023-11-14T22:13:20Z", None),
            ("", None),
        ] {
            assert_eq!(parse_http_date(text), expected, "{text}");
        }
    }

    #[test]
    fn formatted_timestamps_parse_back_to_the_same_value() {
        for (at, written) in [(0, "1970-01-01T00:00:00Z"), (951_868_799, "2000-02-29T23:59:59Z")] {
            assert_eq!(format_rfc3339(at), written);
        }
        for at in (0..10_000_000_000).step_by(7_777_777) {
            let written = format_rfc3339(at);
            assert_eq!(parse_rfc3339(&written), Some(at));
            let milliseconds = format_rfc3339_millis(Duration::from_millis(at * 1000 + at % 1000));
            let expected = format!("{}.{:03}Z", written.trim_end_matches('Z'), at % 1000);
            assert_eq!(std::str::from_utf8(&milliseconds), Ok(expected.as_str()));
        }
    }
}
