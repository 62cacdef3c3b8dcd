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

    /// Adds original values by the name of their placeholder. Stored placeholders are not overwritten.
    pub fn extend(&mut self, values: Vec<(String, String)>) {
        for (name, value) in values {
            if !self.values.iter().any(|(known, _)| *known == name) {
                self.values.push((name, value));
            }
        }
    }

    /// Adds the values of others. A name that already has a value keeps that value.
    pub fn merge(&mut self, others: Self) {
        self.extend(others.values);
    }

    pub fn values(&self) -> &[(String, String)] {
        &self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_values_keep_the_first_value_of_each_name() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut all = Restorations::default();
        all.extend(vec![pair("{{NAME_1}}", "Ann")]);
        let mut others = Restorations::default();
        others.extend(vec![pair("{{NAME_1}}", "Bob"), pair("{{NAME_2}}", "Cid")]);
        all.merge(others);
        assert_eq!(all.values(), [pair("{{NAME_1}}", "Ann"), pair("{{NAME_2}}", "Cid")]);
    }
}
