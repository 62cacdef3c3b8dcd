//! Anthropic provider: its own API format, the key in `x-api-key`, and a mandatory version header.

use super::{
    Credential, FILES, MESSAGES, OperationGroup, OptionField, Options, PathInfo, Provider, contains_operation,
    options::forwarded_option, write_path,
};
use crate::{
    api_format::format::ApiFormat,
    chat::providers::{ProviderFormat, anthropic_messages},
    operation::Operation,
    translation::{self},
};

pub(crate) struct Anthropic;

/// Prefix of OAuth access tokens. The API accepts these as bearer tokens only.
const OAUTH_TOKEN_PREFIX: &str = "sk-ant-oat";

const OPTIONS: &[OptionField] =
    &[forwarded_option("anthropic_version", "anthropic-version"), forwarded_option("anthropic_beta", "anthropic-beta")];

impl Provider for Anthropic {
    fn slug(&self) -> &'static str {
        "anthropic"
    }

    fn base_url(&self) -> &'static str {
        "https://api.anthropic.com/v1"
    }

    fn native_operations(&self) -> &'static [OperationGroup] {
        &[MESSAGES, FILES]
    }

    fn options(&self) -> &'static [OptionField] {
        OPTIONS
    }

    fn operation_path(&self, operation: Operation) -> Option<&'static str> {
        self.provider_format(operation, "").map(|_| translated_path(operation))
    }

    fn provider_format(&self, operation: Operation, _model: &str) -> Option<&'static dyn ProviderFormat> {
        is_translated_operation(operation).then_some(&anthropic_messages::ANTHROPIC)
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

    fn credential(&self, key: &str, _prefix: &str) -> Credential {
        if key.starts_with(OAUTH_TOKEN_PREFIX) {
            return Credential::Bearer;
        }
        Credential::Header("x-api-key")
    }

    fn required_header(&self, _prefix: &str) -> Option<(&'static str, &'static str)> {
        Some(("anthropic-version", "2023-06-01"))
    }

    fn api_format(&self) -> ApiFormat {
        ApiFormat::Anthropic
    }
}

/// Writes the request target. Requests the complete model list if the client sets no limit, because the default page is
/// short.
pub(crate) fn write_target_with_full_list(provider: &dyn Provider, path_info: &PathInfo<'_>, out: &mut Vec<u8>) {
    let is_whole = path_info.operation == Operation::Models && path_info.query.is_empty();
    let query = if is_whole { "limit=1000" } else { path_info.query };
    write_path(provider, &PathInfo { query, ..*path_info }, out);
}

/// Returns true for operations of other API formats that must be translated. Anthropic's own requests pass unchanged.
pub(crate) fn is_translated_operation(operation: Operation) -> bool {
    let is_asked =
        translation::is_chat_operation(operation) || operation.counts_tokens() || operation == Operation::Models;
    is_asked && !contains_operation(&[MESSAGES], operation)
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
