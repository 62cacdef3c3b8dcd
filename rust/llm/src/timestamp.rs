//! Timestamps in the formats that providers and request records use. The crate `time` parses and formats them.

use std::{num::NonZeroU8, time::Duration};

use time::{
    OffsetDateTime,
    format_description::well_known::{
        Iso8601, Rfc2822, Rfc3339,
        iso8601::{Config, EncodedConfig, FormattedComponents, TimePrecision},
    },
    parsing::Parsable,
};

/// RFC 3339 with milliseconds. The format `Rfc3339` writes only as many digits as it needs.
const RFC3339_MILLIS: EncodedConfig = Config::DEFAULT
    .set_formatted_components(FormattedComponents::DateTimeOffset)
    .set_time_precision(TimePrecision::Second { decimal_digits: NonZeroU8::new(3) })
    .encode();
/// 9999-12-31T23:59:59Z. The formats have no later years.
const MAX_SECONDS: u64 = 253_402_300_799;

/// Parses an RFC 3339 timestamp such as `2026-02-03T04:05:06.789Z` into Unix seconds. Returns `None` for other text and
/// for times before 1970.
pub fn parse_rfc3339(text: &str) -> Option<u64> {
    parse_timestamp(text, &Rfc3339)
}

/// Parses an RFC 3339 timestamp into microseconds since 1970, rounding down. Times before 1970 are negative.
pub fn parse_rfc3339_micros(text: &str) -> Option<i64> {
    let nanoseconds = OffsetDateTime::parse(text, &Rfc3339).ok()?.unix_timestamp_nanos();
    nanoseconds.div_euclid(1000).try_into().ok()
}

/// Parses an HTTP date such as `Sun, 06 Nov 1994 08:49:37 GMT` into Unix seconds.
pub fn parse_http_date(text: &str) -> Option<u64> {
    parse_timestamp(text, &Rfc2822)
}

/// Formats Unix seconds as `2026-02-03T04:05:06Z`.
pub fn format_rfc3339(seconds: u64) -> String {
    since_epoch(Duration::from_secs(seconds)).format(&Rfc3339).unwrap_or_default()
}

/// Formats a time since the Unix epoch as `2026-02-03T04:05:06.789Z`. Avoids an allocation, because each request record
/// has one.
pub fn format_rfc3339_millis(since_1970: Duration) -> [u8; 24] {
    let mut text = *b"1970-01-01T00:00:00.000Z";
    // Cannot fail: years have four digits, so the text has this length.
    let _ = since_epoch(since_1970).format_into(&mut &mut text[..], &Iso8601::<RFC3339_MILLIS>);
    text
}

fn parse_timestamp(text: &str, format: &impl Parsable) -> Option<u64> {
    OffsetDateTime::parse(text, format).ok()?.unix_timestamp().try_into().ok()
}

fn since_epoch(time: Duration) -> OffsetDateTime {
    OffsetDateTime::UNIX_EPOCH + time.min(Duration::from_secs(MAX_SECONDS))
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
            ("2024-03-01T00:00:00+02:00", Some(1_709_244_000)),
            ("2024-13-01T00:00:00Z", None),
            ("2023-02-29T00:00:00Z", None),
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
    fn parses_microseconds_of_any_year_and_offset() {
        for (text, expected) in [
            ("1970-01-01T00:00:00.000001Z", Some(1)),
            ("1970-01-01T00:00:00.0000019Z", Some(1)),
            ("1969-12-31T23:59:59.9999999Z", Some(-1)),
            ("2023-11-14T22:13:20.789Z", Some(1_700_000_000_789_000)),
            ("2024-03-01T00:00:00.5+02:00", Some(1_709_244_000_500_000)),
            ("9999-12-31T23:59:59Z", Some(253_402_300_799_000_000)),
            ("2024-03-01T00:00:00", None),
            ("2024-02-30T00:00:00Z", None),
            ("", None),
        ] {
            assert_eq!(parse_rfc3339_micros(text), expected, "{text}");
        }
    }

    #[test]
    fn formatted_timestamps_parse_back_to_the_same_value() {
        for (at, written) in [(0, "1970-01-01T00:00:00Z"), (951_868_799, "2000-02-29T23:59:59Z")] {
            assert_eq!(format_rfc3339(at), written);
        }
        assert_eq!(format_rfc3339(u64::MAX), "9999-12-31T23:59:59Z");
        assert_eq!(&format_rfc3339_millis(Duration::MAX), b"9999-12-31T23:59:59.000Z");
        for at in (0..10_000_000_000).step_by(7_777_777) {
            let written = format_rfc3339(at);
            assert_eq!(parse_rfc3339(&written), Some(at));
            let milliseconds = format_rfc3339_millis(Duration::from_millis(at * 1000 + at % 1000));
            let expected = format!("{}.{:03}Z", written.trim_end_matches('Z'), at % 1000);
            assert_eq!(std::str::from_utf8(&milliseconds), Ok(expected.as_str()));
        }
    }
}
