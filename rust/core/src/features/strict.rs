//! Whether answers keep strictly to the shapes of `OpenAI`. They do unless the header or the config says no.

use serde_json::Value;

use crate::config::Reading;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Strict(Option<bool>);

impl Strict {
    /// From a config: true or false.
    pub fn parse(value: &Value, reading: &mut Reading) -> Self {
        Self(reading.boolean(value))
    }

    pub fn inherit(&mut self, parent: &Self) {
        self.0 = self.0.or(parent.0);
    }

    /// What holds for one request.
    pub fn resolve(self, header: Option<&str>) -> bool {
        self.0 != Some(false) && header != Some("false")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_no_is_enough() {
        let (silent, yes, no) = (Strict(None), Strict(Some(true)), Strict(Some(false)));
        assert!(silent.resolve(None) && yes.resolve(Some("true")) && silent.resolve(Some("true")));
        assert!(!no.resolve(None) && !no.resolve(Some("true")) && !yes.resolve(Some("false")));
    }

    #[test]
    fn the_nearer_word_wins() {
        let mut own = Strict(Some(true));
        own.inherit(&Strict(Some(false)));
        assert_eq!(own, Strict(Some(true)));
    }
}
