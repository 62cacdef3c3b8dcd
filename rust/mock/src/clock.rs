//! Monotonic clock as a number that two processes of one machine can compare.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

static CLOCK_ORIGIN: LazyLock<ClockOrigin> = LazyLock::new(ClockOrigin::now);

/// One point in time on the monotonic clock and on the wall clock.
struct ClockOrigin {
    instant: Instant,
    monotonic_ns: u64,
    unix_ns: u64,
}

impl ClockOrigin {
    fn now() -> Self {
        let instant = Instant::now();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_ns = unix.as_nanos() as u64;
        Self { instant, monotonic_ns: parse_monotonic_ns(instant).unwrap_or(unix_ns), unix_ns }
    }
}

/// Returns `CLOCK_MONOTONIC` in nanoseconds.
pub fn now_ns() -> u64 {
    CLOCK_ORIGIN.monotonic_ns + CLOCK_ORIGIN.instant.elapsed().as_nanos() as u64
}

/// Converts a value of `now_ns` to wall-clock time in milliseconds since 1970.
pub fn unix_ms(monotonic_ns: u64) -> f64 {
    let ns = CLOCK_ORIGIN.unix_ns + monotonic_ns.saturating_sub(CLOCK_ORIGIN.monotonic_ns);
    (ns / 1000) as f64 / 1000.0
}

// Parses the `Debug` text of `Instant`, because the standard library shows the value of `CLOCK_MONOTONIC` nowhere else
// and `clock_gettime` would need unsafe code. If the format changes, both processes fall back to the wall clock.
fn parse_monotonic_ns(instant: Instant) -> Option<u64> {
    let text = format!("{instant:?}");
    let field = |name: &str| -> Option<u64> {
        let rest = text.split_once(name)?.1;
        rest.split(|c: char| !c.is_ascii_digit()).find(|part| !part.is_empty())?.parse().ok()
    };
    Some(field("tv_sec:")? * 1_000_000_000 + field("tv_nsec:")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_monotonic_clock() {
        let before = parse_monotonic_ns(Instant::now()).unwrap();
        let now = now_ns();
        assert!(now >= before.saturating_sub(1_000_000_000) && now < before + 1_000_000_000);
    }
}
