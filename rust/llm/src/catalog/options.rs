//! Provider options: settings besides the credential, from request headers or config keys.

use std::fmt;

/// Definition of an option that a provider accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionField {
    /// Key in a config.
    pub key: &'static str,
    /// Header name after `x-gateway-`.
    pub header: &'static str,
    /// Lower-case header that carries the option to the provider; `None` if the option is not forwarded.
    pub forwarded_as: Option<&'static str>,
}

/// Format of an option's value in a config, where it need not fit into a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueFormat {
    SingleLine,
    /// Text of several lines, such as a PEM key.
    MultiLine,
    /// JSON object, or a string that contains one.
    JsonObject,
    /// Boolean, or a string that contains one.
    Boolean,
}

/// Suffixes of the headers that hold a credential or a part of one.
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

    /// Returns the format of the option's value in a config.
    pub fn value_format(&self) -> ValueFormat {
        match self.header {
            name if name.ends_with("-json") => ValueFormat::JsonObject,
            name if name.ends_with("-private-key") => ValueFormat::MultiLine,
            name if name.ends_with("-cost-attribution") => ValueFormat::Boolean,
            _ => ValueFormat::SingleLine,
        }
    }

    /// Returns true if a config may use this name: the key, or the header with underscores instead of hyphens.
    pub fn matches_config_name(&self, name: &str) -> bool {
        let plain = |byte: u8| if byte == b'-' { b'_' } else { byte };
        self.key == name || self.header.len() == name.len() && self.header.bytes().map(plain).eq(name.bytes())
    }
}

/// Defines an option that only the gateway reads, for the address or the credential.
pub(crate) const fn gateway_option(key: &'static str, header: &'static str) -> OptionField {
    OptionField { key, header, forwarded_as: None }
}

/// Defines an option that the gateway forwards as a header of the same name.
pub(crate) const fn forwarded_option(key: &'static str, header: &'static str) -> OptionField {
    OptionField { key, header, forwarded_as: Some(header) }
}

/// Option that holds the result of a `ModelLookup`. Neither a header nor a config can set it.
pub const BACKING_MODEL: OptionField = gateway_option("model_behind", "");

/// Model to use where neither the path nor the body names one, such as for the lines of a batch file.
pub(crate) const PROVIDER_MODEL: OptionField = gateway_option("provider_model", "provider-model");

/// Concatenates the options of a provider family with the options of one provider.
pub(crate) const fn concat_options<const A: usize, const B: usize, const ALL: usize>(
    family: [OptionField; A],
    specific: [OptionField; B],
) -> [OptionField; ALL] {
    assert!(ALL == A + B, "`ALL` must equal `A + B`");
    let mut all = [gateway_option("", ""); ALL];
    let mut at = 0;
    while at < ALL {
        all[at] = if at < A { family[at] } else { specific[at - A] };
        at += 1;
    }
    all
}

/// Options with their values. Usually empty, and then without an allocation.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Options(Vec<(OptionField, String)>);

impl Options {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds an option unless it already has a value: the first value wins.
    pub fn insert_if_absent(&mut self, option: OptionField, value: String) {
        if self.get(option.key).is_none() {
            self.0.push((option, value));
        }
    }

    /// Sets an option and replaces an earlier value.
    pub fn replace(&mut self, option: OptionField, value: String) {
        self.0.retain(|(other, _)| other.key != option.key);
        self.0.push((option, value));
    }

    /// Copies the options that a provider accepts to `options`, with the provider's own definitions.
    pub fn copy_accepted(&self, accepted: &[OptionField], options: &mut Self) {
        for (option, value) in &self.0 {
            if let Some(definition) = accepted.iter().find(|definition| definition.key == option.key) {
                options.insert_if_absent(*definition, value.clone());
            }
        }
    }

    /// Returns true if any option has this value.
    pub fn has_value(&self, value: &str) -> bool {
        self.0.iter().any(|(_, existing)| existing == value)
    }

    /// Returns all options as one string that does not depend on their order. It may contain credentials.
    pub fn canonical_string(&self) -> String {
        let mut entries: Vec<_> =
            self.0.iter().map(|(option, value)| format!("{}={}:{value}\n", option.key, value.len())).collect();
        entries.sort_unstable();
        entries.concat()
    }

    pub fn has_secret(&self) -> bool {
        self.secrets().next().is_some()
    }

    /// Returns the values of the secret options.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|(option, _)| option.is_secret()).map(|(_, value)| value.as_str())
    }

    /// Builds options from keys and values; ignores keys that are not in `definitions`.
    #[cfg(test)]
    pub(crate) fn from_pairs(definitions: &[OptionField], pairs: &[(&str, &str)]) -> Self {
        let mut options = Self::default();
        for (key, value) in pairs {
            if let Some(option) = definitions.iter().find(|option| option.key == *key) {
                options.insert_if_absent(*option, (*value).to_owned());
            }
        }
        options
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(option, _)| option.key == key).map(|(_, value)| value.as_str())
    }

    /// Returns the names and values of the headers to forward; if two options share a header, the first wins.
    pub fn forwarded_headers(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().enumerate().filter_map(|(at, (option, value))| {
            let name = option.forwarded_as?;
            let is_first = self.0[..at].iter().all(|(before, _)| before.forwarded_as != Some(name));
            is_first.then_some((name, value.as_str()))
        })
    }
}

/// Prints the keys only, because a value may be a credential.
impl fmt::Debug for Options {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.0.iter().map(|(option, _)| option.key)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Documented option headers of each provider, without the `x-gateway-` prefix.
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
        // Options that `SageMaker` does not have: those for objects and for Claude.
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
                let matched = provider.row().options.iter().find(|option| option.header == *header);
                let matched = matched.unwrap_or_else(|| panic!("{slug} does not support {header}"));
                let in_config = crate::catalog::find_option(&header.replace('-', "_"));
                assert_eq!(in_config.map(|option| option.key), Some(matched.key), "{slug} {header}");
            }
        }
    }

    #[test]
    fn options_with_the_same_key_have_the_same_header() {
        let all: Vec<_> = crate::catalog::all_providers().flat_map(|provider| provider.row().options).collect();
        for option in &all {
            assert!(all.iter().all(|other| (other.header == option.header) == (other.key == option.key)), "{option:?}");
        }
    }

    #[test]
    fn secret_options_are_recognised_by_their_suffix() {
        let all = crate::catalog::all_providers().flat_map(|provider| provider.row().options);
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
