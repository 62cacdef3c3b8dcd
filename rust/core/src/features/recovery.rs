//! What becomes of a stream that breaks off: the caller is told, or it was held back and fails like any attempt, or another
//! target continues it. A target's own setting takes the place of the one around it.

use serde_json::Value;

use crate::config::Reading;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// The caller gets what came and an error event.
    #[default]
    Off,
    /// Nothing is passed on before all of it is there.
    Hold,
    /// A target that can go on from a given beginning does.
    Continue,
}

const MODES: &[(&str, Mode)] = &[("off", Mode::Off), ("hold", Mode::Hold), ("continue", Mode::Continue)];
const ALLOWED: &str = "`off`, `hold` or `continue`";

impl Mode {
    pub fn name(self) -> &'static str {
        MODES.iter().find(|(_, mode)| *mode == self).map_or("", |(name, _)| name)
    }

    fn parse(value: &Value, reading: &mut Reading) -> Option<Self> {
        let found = value.as_str().and_then(|text| MODES.iter().find(|(name, _)| *name == text));
        if found.is_none() {
            reading.expected(ALLOWED, value);
        }
        found.map(|(_, mode)| *mode)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Policy {
    mode: Mode,
    /// Whether its model goes on from the beginning of an answer, where the config says so.
    prefill: Option<bool>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovery(Option<Policy>);

impl Recovery {
    /// From a config: a mode, or an object with `mode`.
    pub fn parse(value: &Value, reading: &mut Reading) -> Self {
        if !value.is_object() {
            return Self(Mode::parse(value, reading).map(|mode| Policy { mode, prefill: None }));
        }
        let (mut mode, mut prefill) = (None, None);
        reading.keys(value, |reading, key, value| {
            match key {
                "mode" => mode = Mode::parse(value, reading).or(Some(Mode::Off)),
                "prefill" => prefill = reading.boolean(value),
                _ => return false,
            }
            true
        });
        if mode.is_none() {
            reading.refuse(format!("needs `mode`: {ALLOWED}"));
        }
        Self(mode.map(|mode| Policy { mode, prefill }))
    }

    pub fn inherit(&mut self, parent: &Self) {
        self.0 = self.0.or(parent.0);
    }

    pub fn mode(self) -> Mode {
        self.0.map_or(Mode::Off, |policy| policy.mode)
    }

    /// Why this target does not go on from the beginning of an answer, if so: what the config says, else what is known of the model.
    pub fn refusal(self, known: Option<&'static str>) -> Option<&'static str> {
        match self.0.and_then(|policy| policy.prefill) {
            Some(true) => None,
            Some(false) => Some("the config says that its model begins anew"),
            None => known,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::Unknown;

    fn read(value: &Value) -> Result<Recovery, usize> {
        let mut reading = Reading::new(Unknown::Refused);
        let recovery = Recovery::parse(value, &mut reading);
        reading.end().map(|_| recovery).map_err(|problems| problems.len())
    }

    #[test]
    fn a_mode_stands_alone_or_beside_what_is_known_of_the_target() {
        for (name, mode) in MODES {
            assert_eq!(read(&json!(name)), read(&json!({"mode": name})));
            assert_eq!(read(&json!(name)).unwrap().mode(), *mode);
        }
        assert_eq!(Recovery::default().mode(), Mode::Off);
    }

    #[test]
    fn what_a_config_says_of_prefill_wins() {
        let said = |prefill: bool| read(&json!({"mode": "continue", "prefill": prefill})).unwrap();
        let anew = Some("its model begins anew");
        assert_eq!((said(true).refusal(anew), said(true).refusal(None)), (None, None));
        assert!([anew, None].iter().all(|known| said(false).refusal(*known).unwrap().starts_with("the config says")));
        assert_eq!((Recovery::default().refusal(anew), Recovery::default().refusal(None)), (anew, None));
    }

    #[test]
    fn anything_else_is_refused() {
        for value in [json!("restart"), json!(true), json!({}), json!({"mode": "no"}), json!({"prefill": true})] {
            assert_eq!(read(&value), Err(1), "{value}");
        }
        assert_eq!(read(&json!({"mode": "hold", "prefill": 1, "x": 2})), Err(2));
    }

    #[test]
    fn a_nearer_setting_takes_the_place_of_the_whole_other() {
        let parent = read(&json!({"mode": "continue", "prefill": true})).unwrap();
        let mut child = read(&json!("hold")).unwrap();
        child.inherit(&parent);
        assert_eq!((child.mode(), child.refusal(Some("x"))), (Mode::Hold, Some("x")));
        let mut silent = Recovery::default();
        silent.inherit(&parent);
        assert_eq!(silent, parent);
    }
}
