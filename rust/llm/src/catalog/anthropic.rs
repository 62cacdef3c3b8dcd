//! Anthropic provider: its own API format, the key in `x-api-key`, and a mandatory version header.

use crate::{
    api_format::format::ApiFormat,
    catalog::{
        operation_groups::{FILES, MESSAGES, contains_operation},
        options::{OptionField, Options, forwarded_option},
        param_map::{CLAUDE_MESSAGES, IDENTITY},
        path_info::PathInfo,
        prefill::{self, PrefillMark, PrefillSupport},
        provider::{Provider, ProviderAddress, ProviderCredentials, ProviderFormats, ProviderModels, write_path},
        row::{Credential, OperationRules, ProviderRow},
    },
    chat::providers::anthropic_messages,
    operation::Operation,
    provider_format::ProviderFormat,
};

pub(crate) struct Anthropic;

/// Version header that the API requires, with the value to send if the client sets none.
pub(crate) const REQUIRED_VERSION: (&str, &str) = ("anthropic-version", "2023-06-01");

/// Prefix of OAuth access tokens. The API accepts these as bearer tokens only.
const OAUTH_TOKEN_PREFIX: &str = "sk-ant-oat";

const OPTIONS: &[OptionField] =
    &[forwarded_option("anthropic_version", "anthropic-version"), forwarded_option("anthropic_beta", "anthropic-beta")];

static ROW: ProviderRow = ProviderRow {
    options: OPTIONS,
    api_format: ApiFormat::Anthropic,
    required_header: Some(REQUIRED_VERSION),
    param_rules: OperationRules { messages: &CLAUDE_MESSAGES, ..OperationRules::uniform(&IDENTITY) },
    prefill: PrefillSupport::new(prefill::is_claude_up_to_4_5, PrefillMark::Implicit),
    ..ProviderRow::new("anthropic", "https://api.anthropic.com/v1", &[MESSAGES, FILES])
};

impl ProviderFormats for Anthropic {
    fn row(&self) -> &ProviderRow {
        &ROW
    }

    fn provider_format(&self, operation: Operation, _model: &str) -> Option<&'static ProviderFormat> {
        is_translated_operation(operation).then_some(&anthropic_messages::ANTHROPIC)
    }
}

impl ProviderAddress for Anthropic {
    fn operation_path(&self, operation: Operation) -> Option<&'static str> {
        self.provider_format(operation, "").map(|_| translated_path(operation))
    }

    fn write_request_target(
        &self,
        path_info: &PathInfo<'_>,
        _options: &Options,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        write_target_with_full_list(self, path_info, out);
        Ok(())
    }
}

impl ProviderCredentials for Anthropic {
    fn credential(&self, key: &str, _prefix: &str) -> Credential {
        if key.starts_with(OAUTH_TOKEN_PREFIX) {
            return Credential::Bearer;
        }
        Credential::Header("x-api-key")
    }
}

impl ProviderModels for Anthropic {}

/// Writes the request target. Requests the complete model list if the client sets no limit, because the default page is
/// short.
pub(crate) fn write_target_with_full_list(provider: &dyn Provider, path_info: &PathInfo<'_>, out: &mut Vec<u8>) {
    let is_whole = path_info.operation == Operation::Models && path_info.query.is_empty();
    let query = if is_whole { "limit=1000" } else { path_info.query };
    write_path(provider, &PathInfo { query, ..*path_info }, out);
}

/// Returns true for operations of other API formats that must be translated. Anthropic's own requests pass unchanged.
pub(crate) fn is_translated_operation(operation: Operation) -> bool {
    let is_supported = operation.is_chat() || operation.counts_tokens() || operation == Operation::Models;
    is_supported && !contains_operation(&[MESSAGES], operation)
}

/// Returns the Anthropic path of a translated operation.
pub(crate) fn translated_path(operation: Operation) -> &'static str {
    match operation {
        Operation::Models => "/models",
        counting if counting.counts_tokens() => "/messages/count_tokens",
        _ => "/messages",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_oauth_tokens_as_bearer() {
        assert_eq!(Anthropic.credential("sk-ant-oat01-abc", ""), Credential::Bearer);
        assert_eq!(Anthropic.credential("sk-ant-api03-abc", ""), Credential::Header("x-api-key"));
    }
}
