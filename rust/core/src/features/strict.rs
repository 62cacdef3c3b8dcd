//! Strict compliance with `OpenAI`'s response shapes. On unless the header or the config turns it off.

use serde_json::Value;

use crate::parse::document_reader::ConfigReader;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StrictCompliance(Option<bool>);

impl StrictCompliance {
    /// Parses a boolean from a config.
    pub fn parse(value: &Value, reading: &mut ConfigReader) -> Self {
        Self(reading.read_boolean(value))
    }

    pub fn inherit(&mut self, parent: &Self) {
        self.0 = self.0.or(parent.0);
    }

    /// Returns true unless the config or the header turns it off for this request.
    pub fn resolve(self, header: Option<&str>) -> bool {
        self.0 != Some(false) && header != Some("false")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_or_config_can_turn_it_off() {
        let (silent, yes, no) = (StrictCompliance(None), StrictCompliance(Some(true)), StrictCompliance(Some(false)));
        assert!(silent.resolve(None) && yes.resolve(Some("true")) && silent.resolve(Some("true")));
        assert!(!no.resolve(None) && !no.resolve(Some("true")) && !yes.resolve(Some("false")));
    }

    #[test]
    fn nearer_setting_wins() {
        let mut compliance = StrictCompliance(Some(true));
        compliance.inherit(&StrictCompliance(Some(false)));
        assert_eq!(compliance, StrictCompliance(Some(true)));
    }
}
