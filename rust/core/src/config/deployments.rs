//! Azure deployments of a resource, selected by the model that a request names.

use penstock_llm::catalog::{self, Options, Provider};
use serde_json::Value;

use super::ConfigReader;

/// Maximum number of deployments: Azure's own limit per resource, plus some headroom.
const MAX_DEPLOYMENTS: usize = 200;

#[derive(Debug, Clone, Default)]
pub struct Deployments(Vec<Deployment>);

#[derive(Debug, Clone, Default)]
struct Deployment {
    /// Model name that requests use for this deployment.
    alias: String,
    /// Deployment name and API version.
    options: Options,
    is_default: bool,
}

impl Deployments {
    pub fn parse(value: &Value, reading: &mut ConfigReader) -> Self {
        let all = reading
            .read_items(value, "an array of deployments", |reading, item| Some(Deployment::parse(item, reading)));
        if all.len() > MAX_DEPLOYMENTS {
            reading.report_problem(format!("must hold at most {MAX_DEPLOYMENTS} deployments"));
        }
        if all.iter().filter(|deployment| deployment.is_default).count() > 1 {
            reading.report_problem("must hold at most one deployment that is the default");
        }
        Self(all)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the options of the deployment for this model, or of the default deployment.
    pub fn add_options(&self, provider: &dyn Provider, model: &str, options: &mut Options) {
        let deployment = self
            .0
            .iter()
            .find(|deployment| deployment.alias == model)
            .or_else(|| self.0.iter().find(|deployment| deployment.is_default));
        if let Some(deployment) = deployment {
            deployment.options.copy_accepted(provider.row().options, options);
        }
    }
}

impl Deployment {
    fn parse(value: &Value, reading: &mut ConfigReader) -> Self {
        let mut read = Self::default();
        reading.read_keys(value, |reading, key, value| {
            match (key, catalog::find_option(key)) {
                ("alias", _) => read.alias = reading.read_string(value).unwrap_or_default(),
                ("is_default", _) => read.is_default = reading.read_boolean(value).unwrap_or_default(),
                ("deployment_id" | "api_version", Some(option)) => {
                    reading.read_string(value).into_iter().for_each(|text| read.options.insert_if_absent(option, text));
                }
                _ => return false,
            }
            true
        });
        for key in ["deployment_id", "alias", "api_version"] {
            if value.is_object() && value.get(key).is_none() && value.get(to_camel_case(key)).is_none() {
                reading.report_problem(format!("needs `{key}`"));
            }
        }
        read
    }
}

/// Converts a key to camelCase, which some clients send.
fn to_camel_case(key: &str) -> String {
    let mut words = key.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |all, word| {
        let (head, rest) = word.split_at(1);
        all + &head.to_ascii_uppercase() + rest
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::Strictness;

    fn parse(value: &Value) -> (Deployments, Vec<String>) {
        let mut reading = ConfigReader::new(Strictness::Lenient);
        let read = Deployments::parse(value, &mut reading);
        let problems = reading.finish().err().unwrap_or_default();
        (read, problems.into_iter().map(|problem| problem.message).collect())
    }

    #[test]
    fn a_model_uses_its_own_deployment_or_the_default() {
        let list = json!([{"deployment_id": "d1", "alias": "gpt-4o", "api_version": "v1"},
            {"deploymentId": "d2", "alias": "o3", "apiVersion": "2024-10-21", "isDefault": true}]);
        let (deployments, problems) = parse(&list);
        assert!(problems.is_empty(), "{problems:?}");
        let azure = catalog::find_provider("azure-openai").unwrap();
        let options_for = |model| {
            let mut options = Options::default();
            deployments.add_options(azure, model, &mut options);
            (options.get("deployment_id").map(ToOwned::to_owned), options.get("api_version").map(ToOwned::to_owned))
        };
        assert_eq!(options_for("gpt-4o"), (Some("d1".into()), Some("v1".into())));
        assert_eq!(options_for("other"), (Some("d2".into()), Some("2024-10-21".into())));
        let openai = catalog::find_provider("openai").unwrap();
        let mut options = Options::default();
        deployments.add_options(openai, "gpt-4o", &mut options);
        assert_eq!(options.get("deployment_id"), None);
    }

    #[test]
    fn reports_missing_deployment_fields() {
        let (_, problems) = parse(&json!([{"alias": "a"}]));
        assert!(problems.iter().any(|problem| problem.contains("deployment_id")), "{problems:?}");
        assert!(problems.iter().any(|problem| problem.contains("api_version")), "{problems:?}");
        let default = json!({"deployment_id": "d", "alias": "a", "api_version": "v", "is_default": true});
        assert!(parse(&json!([default, default])).1[0].contains("at most one"));
        assert!(!parse(&json!({})).1.is_empty());
    }
}
