//! Recovery of a stream that breaks off: report the error, buffer the stream so that it can be retried, or let another
//! target continue it. A target's own setting replaces the inherited one.

use serde_json::Value;

use crate::parse::document_reader::ConfigReader;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// The client gets the chunks so far and an error event.
    #[default]
    Off,
    /// The response is buffered and sent only when it is complete.
    Hold,
    /// A target that supports prefill continues the partial response.
    Continue,
}

const MODE_NAMES: &[(&str, Mode)] = &[("off", Mode::Off), ("hold", Mode::Hold), ("continue", Mode::Continue)];
const ALLOWED: &str = "`off`, `hold` or `continue`";

impl Mode {
    pub fn name(self) -> &'static str {
        MODE_NAMES.iter().find(|(_, mode)| *mode == self).map_or("", |(name, _)| name)
    }

    fn parse(value: &Value, reading: &mut ConfigReader) -> Option<Self> {
        let mode = value.as_str().and_then(|text| MODE_NAMES.iter().find(|(name, _)| *name == text));
        if mode.is_none() {
            reading.report_expected(ALLOWED, value);
        }
        mode.map(|(_, mode)| *mode)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RecoveryPolicy {
    mode: Mode,
    /// True if the target's model can continue a partial response; `None` if the config does not define it.
    prefill: Option<bool>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovery(Option<RecoveryPolicy>);

impl Recovery {
    /// Parses a mode, or an object with `mode`, from a config.
    pub fn parse(value: &Value, reading: &mut ConfigReader) -> Self {
        if !value.is_object() {
            return Self(Mode::parse(value, reading).map(|mode| RecoveryPolicy { mode, prefill: None }));
        }
        let (mut mode, mut prefill) = (None, None);
        reading.read_keys(value, |reading, key, value| {
            match key {
                "mode" => mode = Mode::parse(value, reading).or(Some(Mode::Off)),
                "prefill" => prefill = reading.read_boolean(value),
                _ => return false,
            }
            true
        });
        if mode.is_none() {
            reading.report_problem(format!("needs `mode`: {ALLOWED}"));
        }
        Self(mode.map(|mode| RecoveryPolicy { mode, prefill }))
    }

    pub fn inherit(&mut self, parent: &Self) {
        self.0 = self.0.or(parent.0);
    }

    pub fn mode(self) -> Mode {
        self.0.map_or(Mode::Off, |policy| policy.mode)
    }

    /// Returns why this target cannot continue a partial response; `None` if it can. The config takes precedence over
    /// `model_refusal`, which comes from the model's data.
    pub fn prefill_refusal(self, model_refusal: Option<&'static str>) -> Option<&'static str> {
        match self.0.and_then(|policy| policy.prefill) {
            Some(true) => None,
            Some(false) => Some("the config says that its model does not continue a partial response"),
            None => model_refusal,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::parse::document_reader::Strictness;

    fn parse_recovery(value: &Value) -> Result<Recovery, usize> {
        let mut reading = ConfigReader::new(Strictness::Strict);
        let recovery = Recovery::parse(value, &mut reading);
        reading.finish().map(|_| recovery).map_err(|problems| problems.len())
    }

    #[test]
    fn parses_a_mode_alone_or_in_an_object() {
        for (name, mode) in MODE_NAMES {
            assert_eq!(parse_recovery(&json!(name)), parse_recovery(&json!({"mode": name})));
            assert_eq!(parse_recovery(&json!(name)).unwrap().mode(), *mode);
        }
        assert_eq!(Recovery::default().mode(), Mode::Off);
    }

    #[test]
    fn configured_prefill_overrides_model_data() {
        let recovery = |prefill: bool| parse_recovery(&json!({"mode": "continue", "prefill": prefill})).unwrap();
        let model_refusal = Some("its model does not continue a partial response");
        assert_eq!((recovery(true).prefill_refusal(model_refusal), recovery(true).prefill_refusal(None)), (None, None));
        assert!(
            [model_refusal, None]
                .iter()
                .all(|known| recovery(false).prefill_refusal(*known).unwrap().starts_with("the config says"))
        );
        assert_eq!(
            (Recovery::default().prefill_refusal(model_refusal), Recovery::default().prefill_refusal(None)),
            (model_refusal, None)
        );
    }

    #[test]
    fn rejects_invalid_values() {
        for value in [json!("restart"), json!(true), json!({}), json!({"mode": "no"}), json!({"prefill": true})] {
            assert_eq!(parse_recovery(&value), Err(1), "{value}");
        }
        assert_eq!(parse_recovery(&json!({"mode": "hold", "prefill": 1, "x": 2})), Err(2));
    }

    #[test]
    fn nearer_setting_replaces_the_inherited_one() {
        let parent = parse_recovery(&json!({"mode": "continue", "prefill": true})).unwrap();
        let mut child = parse_recovery(&json!("hold")).unwrap();
        child.inherit(&parent);
        assert_eq!((child.mode(), child.prefill_refusal(Some("x"))), (Mode::Hold, Some("x")));
        let mut silent = Recovery::default();
        silent.inherit(&parent);
        assert_eq!(silent, parent);
    }
}
