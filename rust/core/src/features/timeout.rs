//! Request timeout: maximum time until the first byte of a target's response. The header takes precedence over the
//! config, and the config over the settings.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::{
    error::{Error, Result},
    parse::document_reader::ConfigReader,
};

/// Fraction of the client's own timeout that is reserved for sending the response to it.
const DELIVERY_RESERVE_FRACTION: f64 = 0.05;

/// Returns the deadline for a client that announced how long it waits (`max_wait`). Returns `None` if the time
/// overflows.
pub fn client_deadline(max_wait: Duration) -> Option<Instant> {
    Instant::now().checked_add(max_wait.mul_f64(1.0 - DELIVERY_RESERVE_FRACTION))
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestTimeout(Option<Duration>);

impl RequestTimeout {
    /// Parses whole milliseconds, at least 1, from a config.
    pub fn parse(value: &Value, reading: &mut ConfigReader) -> Self {
        Self(reading.read_integer(value, &(1..=u64::MAX)).map(Duration::from_millis))
    }

    pub fn inherit(&mut self, parent: &Self) {
        self.0 = self.0.or(parent.0);
    }

    /// Returns the config's timeout, else the one from the settings. Used if the request sets none.
    pub fn or_setting(self, default_timeout: Duration) -> Duration {
        self.0.unwrap_or(default_timeout)
    }

    /// Returns the timeout of one request. Rejects an invalid header.
    pub fn resolve(self, header: Option<&str>, default_timeout: Duration) -> Result<Duration> {
        let Some(header) = header else { return Ok(self.or_setting(default_timeout)) };
        match header.parse() {
            Ok(milliseconds) if milliseconds > 0 => Ok(Duration::from_millis(milliseconds)),
            _ => Err(Error::HeaderInvalid {
                name: "x-gateway-request-timeout",
                message: "must be a whole number of milliseconds, at least 1".into(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::parse::document_reader::Strictness;

    #[test]
    fn header_overrides_config_and_config_overrides_settings() {
        let config = RequestTimeout::parse(&json!(50), &mut ConfigReader::new(Strictness::Strict));
        let default_timeout = Duration::from_secs(1);
        assert_eq!(config.resolve(Some("7"), default_timeout).unwrap(), Duration::from_millis(7));
        assert_eq!(config.resolve(None, default_timeout).unwrap(), Duration::from_millis(50));
        assert_eq!(RequestTimeout::default().resolve(None, default_timeout).unwrap(), default_timeout);
    }

    #[tokio::test(start_paused = true)]
    async fn deadline_reserves_time_for_the_delivery() {
        assert_eq!(client_deadline(Duration::from_millis(200)), Some(Instant::now() + Duration::from_millis(190)));
    }

    #[test]
    fn endless_client_timeout_has_no_deadline() {
        assert!(client_deadline(Duration::MAX).is_none() && client_deadline(Duration::from_secs(1)).is_some());
    }

    #[test]
    fn rejects_invalid_timeouts() {
        let mut reading = ConfigReader::new(Strictness::Strict);
        RequestTimeout::parse(&json!(0), &mut reading);
        assert!(reading.finish().is_err());
        assert!(RequestTimeout::default().resolve(Some("soon"), Duration::ZERO).is_err());
    }
}
