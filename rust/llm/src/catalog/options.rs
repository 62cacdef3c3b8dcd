//! What a provider is told besides a credential, by a request's headers or a config's keys.

use std::fmt;

use super::Provider;

/// An option that a provider knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionField {
    /// The key in a config.
    pub key: &'static str,
    /// The header's name after `x-gateway-`.
    pub header: &'static str,
    /// The (lower-case) header in which the provider itself takes it.
    pub forwarded_as: Option<&'static str>,
}

/// What an option's value is where it need not fit into a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueFormat {
    SingleLine,
    /// Of several lines, such as a key in PEM.
    MultiLine,
    /// An object of JSON, or that as a text.
    JsonObject,
    /// Yes or no, or that as a text.
    Boolean,
}

/// So end the names of those that are credentials, or parts of one.
const SECRET_SUFFIXES: [&str; 7] = [
    "-access-key-id",
    "-client-secret",
    "-passphrase",
    "-private-key",
    "-secret-access-key",
    "-service-account-json",
    "-token",
];

impl OptionField {
    pub fn is_secret(&self) -> bool {
        SECRET_SUFFIXES.iter().any(|end| self.header.ends_with(end))
    }

    /// What its value may be in a config.
    pub fn value_format(&self) -> ValueFormat {
        match self.header {
            name if name.ends_with("-json") => ValueFormat::JsonObject,
            name if name.ends_with("-private-key") => ValueFormat::MultiLine,
            name if name.ends_with("-cost-attribution") => ValueFormat::Boolean,
            _ => ValueFormat::SingleLine,
        }
    }

    /// Whether it is called this in a config: by its key, or as its header without hyphens.
    pub fn matches_config_name(&self, name: &str) -> bool {
        let plain = |byte: u8| if byte == b'-' { b'_' } else { byte };
        self.key == name || self.header.len() == name.len() && self.header.bytes().map(plain).eq(name.bytes())
    }
}

/// An option that decides the address or the credential.
pub(crate) const fn gateway_option(key: &'static str, header: &'static str) -> OptionField {
    OptionField { key, header, forwarded_as: None }
}

/// An option that the provider takes as a header.
pub(crate) const fn forwarded_option(key: &'static str, header: &'static str) -> OptionField {
    OptionField { key, header, forwarded_as: Some(header) }
}

/// The model that is meant where it stands neither in a path nor in a body, such as that of a file's lines.
pub(crate) const PROVIDER_MODEL: OptionField = gateway_option("provider_model", "provider-model");

/// The options of a family of providers, and those that one of them has besides.
pub(crate) const fn concat_options<const A: usize, const B: usize, const ALL: usize>(
    family: [OptionField; A],
    own: [OptionField; B],
) -> [OptionField; ALL] {
    assert!(ALL == A + B, "as many as both together");
    let mut all = [gateway_option("", ""); ALL];
    let mut at = 0;
    while at < ALL {
        all[at] = if at < A { family[at] } else { own[at - A] };
        at += 1;
    }
    all
}

/// Options and their values. Usually there are none, which costs nothing.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Options(Vec<(OptionField, String)>);

impl Options {
    /// The first value counts.
    pub fn insert_if_absent(&mut self, option: OptionField, value: String) {
        if self.get(option.key).is_none() {
            self.0.push((option, value));
        }
    }

    /// In the place of whatever was said.
    pub fn replace(&mut self, option: OptionField, value: String) {
        self.0.retain(|(other, _)| other.key != option.key);
        self.0.push((option, value));
    }

    /// Adds those of these that a provider knows, in the form in which it takes them.
    pub fn copy_accepted_by(&self, provider: &dyn Provider, options: &mut Self) {
        for (said, value) in &self.0 {
            if let Some(own) = provider.options().iter().find(|own| own.key == said.key) {
                options.insert_if_absent(*own, value.clone());
            }
        }
    }

    /// Whether one of them has this value.
    pub fn has_value(&self, value: &str) -> bool {
        self.0.iter().any(|(_, held)| held == value)
    }

    /// All that they say, as one text: the same for the same values, whoever said them first. It may hold credentials.
    pub fn canonical_string(&self) -> String {
        let mut said: Vec<_> =
            self.0.iter().map(|(option, value)| format!("{}={}:{value}\n", option.key, value.len())).collect();
        said.sort_unstable();
        said.concat()
    }

    pub fn has_secret(&self) -> bool {
        self.0.iter().any(|(option, _)| option.is_secret())
    }

    /// Those of the given ones that are known, by their keys.
    #[cfg(test)]
    pub(crate) fn from_pairs(known: &[OptionField], given: &[(&str, &str)]) -> Self {
        let mut options = Self::default();
        for (key, value) in given {
            if let Some(option) = known.iter().find(|option| option.key == *key) {
                options.insert_if_absent(*option, (*value).to_owned());
            }
        }
        options
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(option, _)| option.key == key).map(|(_, value)| value.as_str())
    }

    /// Names and values of the headers in which the provider takes them; of two that are the same header, the first.
    pub fn forwarded_headers(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().enumerate().filter_map(|(at, (option, value))| {
            let name = option.forwarded_as?;
            let is_first = self.0[..at].iter().all(|(before, _)| before.forwarded_as != Some(name));
            is_first.then_some((name, value.as_str()))
        })
    }
}

/// Without the values: one of them may be a credential.
impl fmt::Debug for Options {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.0.iter().map(|(option, _)| option.key)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the gateway's reference names for each provider, as headers after their prefix.
    const DOCUMENTED_HEADERS: &[(&[&str], &[&str])] = &[
        (
            &["azure-openai"],
            &["azure-resource-name", "azure-deployment-id", "azure-api-version", "azure-model-name", "openai-beta"],
        ),
        (
            &["azure-openai", "azure-ai"],
            &[
                "azure-ad-token",
                "azure-auth-mode",
                "azure-managed-client-id",
                "azure-workload-client-id",
                "azure-entra-client-id",
                "azure-entra-client-secret",
                "azure-entra-tenant-id",
                "azure-entra-scope",
            ],
        ),
        (
            &["azure-ai"],
            &[
                "azure-foundry-url",
                "azure-endpoint-name",
                "azure-api-version",
                "azure-extra-params",
                "anthropic-version",
            ],
        ),
        (
            &["bedrock", "sagemaker", "bedrock-mantle", "claude-platform-aws"],
            &[
                "aws-access-key-id",
                "aws-secret-access-key",
                "aws-session-token",
                "aws-region",
                "aws-role-arn",
                "aws-auth-type",
                "aws-external-id",
            ],
        ),
        // Of objects and of Claude: SageMaker has neither.
        (
            &["bedrock"],
            &[
                "aws-s3-bucket",
                "aws-s3-object-key",
                "provider-file-name",
                "aws-bedrock-model",
                "provider-model",
                "amz-server-side-encryption",
                "amz-server-side-encryption-aws-kms-key-id",
                "aws-customization-role-arn",
                "anthropic-beta",
                "anthropic-version",
            ],
        ),
        (
            &["sagemaker"],
            &[
                "amzn-sagemaker-custom-attributes",
                "amzn-sagemaker-target-model",
                "amzn-sagemaker-target-variant",
                "amzn-sagemaker-target-container-hostname",
                "amzn-sagemaker-inference-id",
                "amzn-sagemaker-enable-explanations",
                "amzn-sagemaker-inference-component",
                "amzn-sagemaker-session-id",
                "amzn-sagemaker-model-name",
            ],
        ),
        (
            &["vertex-ai"],
            &[
                "vertex-project-id",
                "vertex-region",
                "vertex-service-account-json",
                "vertex-storage-bucket-name",
                "vertex-auth-type",
                "provider-file-name",
                "provider-model",
                "provider-batch-endpoint",
                "anthropic-beta",
                "anthropic-version",
            ],
        ),
        (&["openai"], &["openai-organization", "openai-project", "openai-beta"]),
        (&["anthropic", "claude-platform-aws"], &["anthropic-beta", "anthropic-version"]),
        (&["claude-platform-aws"], &["anthropic-aws-workspace-id"]),
        (&["workers-ai"], &["workers-ai-account-id"]),
        (&["huggingface"], &["huggingface-base-url"]),
        (&["fireworks-ai"], &["fireworks-account-id", "file-upload-size", "file-purpose"]),
        (&["stability-ai"], &["stability-client-id", "stability-client-user-id", "stability-client-version"]),
        (&["cortex"], &["snowflake-account"]),
        (
            &["oracle"],
            &[
                "oracle-api-version",
                "oracle-region",
                "oracle-compartment-id",
                "oracle-serving-mode",
                "oracle-tenancy",
                "oracle-user",
                "oracle-fingerprint",
                "oracle-private-key",
                "oracle-key-passphrase",
            ],
        ),
        (&["databricks"], &["databricks-workspace", "databricks-serving-endpoint-name"]),
        (&["byteplus"], &["byteplus-region"]),
        (&["mistral-ai"], &["mistral-fim-completion"]),
        (&["openrouter"], &["http-referer", "x-title"]),
    ];

    #[test]
    fn every_documented_header_is_a_provider_option_and_a_config_key() {
        for (slugs, headers) in DOCUMENTED_HEADERS {
            for (slug, header) in slugs.iter().flat_map(|slug| headers.iter().map(move |header| (slug, header))) {
                let provider = crate::catalog::find_provider(slug).unwrap();
                let known = provider.options().iter().find(|option| option.header == *header);
                let known = known.unwrap_or_else(|| panic!("{slug} does not know {header}"));
                let in_config = crate::catalog::find_option(&header.replace('-', "_"));
                assert_eq!(in_config.map(|option| option.key), Some(known.key), "{slug} {header}");
            }
        }
    }

    #[test]
    fn options_with_the_same_key_have_the_same_header() {
        let all: Vec<_> = crate::catalog::all_providers().flat_map(crate::catalog::Provider::options).collect();
        for option in &all {
            assert!(all.iter().all(|other| (other.header == option.header) == (other.key == option.key)), "{option:?}");
        }
    }

    #[test]
    fn secret_options_are_recognised_by_their_suffix() {
        let all = crate::catalog::all_providers().flat_map(crate::catalog::Provider::options);
        let mut secret: Vec<_> = all.filter(|option| option.is_secret()).map(|option| option.key).collect();
        secret.sort_unstable();
        secret.dedup();
        let expected = [
            "aws_access_key_id",
            "aws_secret_access_key",
            "aws_session_token",
            "azure_ad_token",
            "azure_entra_client_secret",
            "oracle_key_passphrase",
            "oracle_private_key",
            "vertex_service_account_json",
        ];
        assert_eq!(secret, expected);
    }

    #[test]
    fn config_name_is_the_key_or_the_header_with_underscores() {
        let option = gateway_option("resource_name", "azure-resource-name");
        assert!(option.matches_config_name("resource_name") && option.matches_config_name("azure_resource_name"));
        assert!(!option.matches_config_name("azure-resource-name") && !option.matches_config_name("azure_resource"));
    }

    #[test]
    fn first_value_wins_and_debug_output_hides_values() {
        let mut options = Options::default();
        options.insert_if_absent(gateway_option("azure_ad_token", "azure-ad-token"), "secret".into());
        options.insert_if_absent(gateway_option("azure_ad_token", "azure-ad-token"), "other".into());
        assert_eq!(options.get("azure_ad_token"), Some("secret"));
        assert_eq!(format!("{options:?}"), r#"["azure_ad_token"]"#);
    }
}
