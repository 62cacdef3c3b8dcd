//! Values that guardrails replaced in a request, by the names that stand for them.

/// Values of one request by the names that replaced them.
#[derive(Debug, Default)]
pub struct Restorations {
    values: Vec<(String, String)>,
}

impl Restorations {
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Adds values. A name that stands for another value already stays as it is.
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
