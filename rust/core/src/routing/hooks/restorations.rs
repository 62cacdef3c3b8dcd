//! Values that guardrails replaced in a request, each with the placeholder name that stands for it.

/// Values of one request, each with the placeholder name that replaced it.
#[derive(Debug, Default)]
pub struct Restorations {
    values: Vec<(String, String)>,
}

impl Restorations {
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Adds values. A name that already has a value keeps that value.
    pub fn extend(&mut self, values: Vec<(String, String)>) {
        for (name, value) in values {
            if !self.values.iter().any(|(known, _)| *known == name) {
                self.values.push((name, value));
            }
        }
    }

    pub fn values(&self) -> &[(String, String)] {
        &self.values
    }
}
