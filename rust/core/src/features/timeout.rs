//! How long a target may take until the first byte of its answer. The header wins over the config, the config over the settings.

use std::time::Duration;

use serde_json::Value;

use crate::error::{Error, Result};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestTimeout(Option<Duration>);

impl RequestTimeout {
    /// From a config: whole milliseconds, at least 1.
    pub fn parse(value: &Value) -> std::result::Result<Self, String> {
        match value.as_u64() {
            Some(milliseconds) if milliseconds > 0 => Ok(Self(Some(Duration::from_millis(milliseconds)))),
            _ => Err("must be a whole number of milliseconds, at least 1".into()),
        }
    }

    /// What holds for one request.
    pub fn resolve(self, header: Option<&str>, settings: Duration) -> Result<Duration> {
        let Some(header) = header else { return Ok(self.0.unwrap_or(settings)) };
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
    use super::*;

    #[test]
    fn the_header_wins_over_the_config_and_the_config_over_the_settings() {
        let config = RequestTimeout::parse(&serde_json::json!(50)).unwrap();
        let settings = Duration::from_secs(1);
        assert_eq!(config.resolve(Some("7"), settings).unwrap(), Duration::from_millis(7));
        assert_eq!(config.resolve(None, settings).unwrap(), Duration::from_millis(50));
        assert_eq!(RequestTimeout::default().resolve(None, settings).unwrap(), settings);
    }

    #[test]
    fn refuses_what_is_no_time() {
        assert!(RequestTimeout::parse(&serde_json::json!(0)).is_err());
        assert!(RequestTimeout::default().resolve(Some("soon"), Duration::ZERO).is_err());
    }
}
