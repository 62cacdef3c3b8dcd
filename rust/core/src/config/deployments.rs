//! Deployments of a resource at Azure, by the models that they are asked for by.

use penstock_llm::catalog::{self, Options, Provider};
use serde_json::Value;

use super::Reading;

/// As many as a resource may have there, and some more.
const MOST: usize = 200;

#[derive(Debug, Clone, Default)]
pub struct Deployments(Vec<Deployment>);

#[derive(Debug, Clone, Default)]
struct Deployment {
    /// The model that requests name for it.
    alias: String,
    /// Its name and the version of its API.
    options: Options,
    is_default: bool,
}

impl Deployments {
    pub fn parse(value: &Value, reading: &mut Reading) -> Self {
        let all =
            reading.items(value, "an array of deployments", |reading, item| Some(Deployment::read(item, reading)));
        if all.len() > MOST {
            reading.refuse(format!("must hold at most {MOST} deployments"));
        }
        if all.iter().filter(|one| one.is_default).count() > 1 {
            reading.refuse("must hold at most one deployment that is the default");
        }
        Self(all)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds what a provider is told for this model: of its own deployment, or of the default one.
    pub fn told(&self, provider: &dyn Provider, model: &str, options: &mut Options) {
        let own = self.0.iter().find(|one| one.alias == model).or_else(|| self.0.iter().find(|one| one.is_default));
        if let Some(own) = own {
            own.options.told_to(provider, options);
        }
    }
}

impl Deployment {
    fn read(value: &Value, reading: &mut Reading) -> Self {
        let mut read = Self::default();
        reading.keys(value, |reading, key, value| {
            match (key, catalog::option(key)) {
                ("alias", _) => read.alias = reading.text(value).unwrap_or_default(),
                ("is_default", _) => read.is_default = reading.boolean(value).unwrap_or_default(),
                ("deployment_id" | "api_version", Some(option)) => {
                    reading.text(value).into_iter().for_each(|text| read.options.put(option, text));
                }
                _ => return false,
            }
            true
        });
        for key in ["deployment_id", "alias", "api_version"] {
            if value.is_object() && value.get(key).is_none() && value.get(in_camel_case(key)).is_none() {
                reading.refuse(format!("needs `{key}`"));
            }
        }
        read
    }
}

/// As some clients write it.
fn in_camel_case(key: &str) -> String {
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
    use crate::config::Unknown;

    fn parse(value: &Value) -> (Deployments, Vec<String>) {
        let mut reading = Reading::new(Unknown::Ignored);
        let read = Deployments::parse(value, &mut reading);
        let problems = reading.end().err().unwrap_or_default();
        (read, problems.into_iter().map(|problem| problem.message).collect())
    }

    #[test]
    fn a_model_has_its_own_deployment_or_the_default_one() {
        let list = json!([{"deployment_id": "d1", "alias": "gpt-4o", "api_version": "v1"},
            {"deploymentId": "d2", "alias": "o3", "apiVersion": "2024-10-21", "isDefault": true}]);
        let (deployments, problems) = parse(&list);
        assert!(problems.is_empty(), "{problems:?}");
        let azure = catalog::find("azure-openai").unwrap();
        let of = |model| {
            let mut told = Options::default();
            deployments.told(azure, model, &mut told);
            (told.get("deployment_id").map(ToOwned::to_owned), told.get("api_version").map(ToOwned::to_owned))
        };
        assert_eq!(of("gpt-4o"), (Some("d1".into()), Some("v1".into())));
        assert_eq!(of("other"), (Some("d2".into()), Some("2024-10-21".into())));
        let openai = catalog::find("openai").unwrap();
        let mut told = Options::default();
        deployments.told(openai, "gpt-4o", &mut told);
        assert_eq!(told.get("deployment_id"), None);
    }

    #[test]
    fn what_a_deployment_lacks_is_named() {
        let (_, problems) = parse(&json!([{"alias": "a"}]));
        assert!(problems.iter().any(|problem| problem.contains("deployment_id")), "{problems:?}");
        assert!(problems.iter().any(|problem| problem.contains("api_version")), "{problems:?}");
        let default = json!({"deployment_id": "d", "alias": "a", "api_version": "v", "is_default": true});
        assert!(parse(&json!([default, default])).1[0].contains("at most one"));
        assert!(!parse(&json!({})).1.is_empty());
    }
}
