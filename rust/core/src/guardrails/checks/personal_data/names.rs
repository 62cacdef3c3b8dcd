//! Names and addresses of persons, which have no form of their own: a model of a saved provider finds them.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    super::model_questions::{DATA_ONLY, ask_for_json},
    forms::Category,
};
use crate::guardrails::{check::CheckError, host_access::HostAccess};

/// Maximum number of values in the response of a model. Further ones are ignored.
const MAX_VALUES: usize = 500;
/// Maximum number of characters of a value that a model finds. Longer values are ignored.
const MAX_VALUE_CHARS: usize = 300;

/// Model that finds names and addresses.
#[derive(Debug)]
pub struct NamingModel {
    pub model: String,
    pub categories: Vec<Category>,
    pub timeout: Duration,
}

/// A value that a model found.
#[derive(Debug, PartialEq, Eq)]
pub struct NamedValue {
    pub category: Category,
    pub value: String,
}

impl NamingModel {
    /// Returns the names and addresses in texts, longest first.
    ///
    /// # Errors
    /// If the model cannot be called, or returns no list of values.
    pub async fn find_values(
        &self,
        hosts: &dyn HostAccess,
        texts: &[(usize, String)],
    ) -> Result<Vec<NamedValue>, CheckError> {
        let texts: Vec<_> = texts.iter().map(|(_, text)| text).collect();
        let answer = ask_for_json(hosts, &self.model, self.instructions(), &json!(texts), self.timeout).await?;
        let unclear = || CheckError::new(format!("{} returned no list of values", self.model));
        let entities = answer["entities"].as_array().ok_or_else(unclear)?;
        let mut values: Vec<_> = entities.iter().take(MAX_VALUES).filter_map(|entity| self.read(entity)).collect();
        // A part of a value must not be replaced before the whole.
        values.sort_by_key(|value| usize::MAX - value.value.len());
        Ok(values)
    }

    fn instructions(&self) -> String {
        let categories = self.categories.iter().map(|category| match category {
            Category::Name => "NAME (names of natural persons, without titles)",
            _ => "LOCATION_ADDRESS (postal addresses, with their street, number, code and place)",
        });
        let categories: Vec<_> = categories.collect();
        format!(
            "You find personal data. List every occurrence of these categories in the texts, exactly as it is written: \
             {}. Format: {{\"entities\": [{{\"category\": \"NAME\", \"text\": \"…\"}}]}}\n{DATA_ONLY}",
            categories.join("; ")
        )
    }

    fn read(&self, entity: &Value) -> Option<NamedValue> {
        let category: Category = serde_json::from_value(entity["category"].clone()).ok()?;
        let value = entity["text"].as_str()?.trim();
        let is_wanted = self.categories.contains(&category) && value.chars().count() <= MAX_VALUE_CHARS;
        // One letter would be found everywhere.
        (is_wanted && value.chars().count() >= 2).then(|| NamedValue { category, value: value.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::super::model_questions::tests::run_with_model, *};
    use crate::guardrails::check::Change;

    #[tokio::test]
    async fn a_model_finds_names_and_addresses() {
        let parameters =
            json!({"categories": ["NAME", "LOCATION_ADDRESS", "EMAIL_ADDRESS"], "redact": true, "model": "@s/m"});
        let answer = r#"{"entities": [{"category": "NAME", "text": "Ann"}, {"category": "NAME", "text": "Ann Lee"},
            {"category": "LOCATION_ADDRESS", "text": "1 High St, Ely"}, {"category": "SSN", "text": "write"}]}"#;
        let text = "Ann Lee (ann@x.example) of 1 High St, Ely: write to Ann, not to Anna";
        let (result, _) = run_with_model("gateway.pii", &parameters, text, answer).await;
        let expected = "{{NAME_1}} ({{EMAIL_ADDRESS_1}}) of {{LOCATION_ADDRESS_1}}: write to {{NAME_2}}, not to Anna";
        assert_eq!(result.unwrap().change, Some(Change::Texts(vec![(0, expected.into())])));
        let (result, _) = run_with_model("gateway.pii", &parameters, text, "{}").await;
        assert!(result.is_err());
    }
}
