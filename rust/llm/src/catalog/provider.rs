//! Traits of a provider: what it does differently from `OpenAI`, in code. Differences that are data are fields of
//! `ProviderRow`.

use std::borrow::Cow;

use crate::{
    catalog::{
        batch_jobs,
        grant::Grant,
        operation_groups::{ALWAYS_FORWARDED, contains_operation, needs_openai_translation},
        options::{OptionField, Options},
        path_info::{PathInfo, PathOptions},
        path_segment::openai_path,
        row::{Credential, ProviderRow},
        signing_keys::SigningKeys,
    },
    chat::providers::openai_chat,
    operation::Operation,
    provider_format::ProviderFormat,
};

/// Row and API formats of a provider.
pub trait ProviderFormats: Sync {
    fn row(&self) -> &ProviderRow;

    /// Returns the format to translate an operation to; `None` if the provider supports it natively or not at all.
    fn provider_format(&self, operation: Operation, _model: &str) -> Option<&'static ProviderFormat> {
        needs_openai_translation(self.row().native_operations, operation).then_some(&openai_chat::OPENAI)
    }

    /// Same as `provider_format`, for providers where a model override or the path of the base URL also decides.
    fn provider_format_for_target(
        &self,
        operation: Operation,
        model: &str,
        options: &Options,
        _prefix: &str,
    ) -> Option<&'static ProviderFormat> {
        self.provider_format(operation, self.effective_model(options, model))
    }

    /// Returns the model that decides the provider format when a request names the model `requested`.
    fn effective_model<'o>(&self, _options: &'o Options, requested: &'o str) -> &'o str {
        requested
    }

    /// Returns true if streams of completions report their usage when `stream_options` requests it. Providers that
    /// reject `stream_options` report the usage always or never. `version` is the API version, if the request names
    /// one.
    fn accepts_stream_options(&self, _version: Option<&str>, _options: &Options) -> bool {
        self.row().accepts_stream_options()
    }
}

/// Addresses of a provider: hosts and paths.
pub trait ProviderAddress: ProviderFormats {
    /// Returns the base URL for these options; `None` if it does not depend on them. An error names the missing option.
    fn resolve_base_url(&self, _operation: Operation, _options: &Options) -> Result<Option<String>, String> {
        Ok(None)
    }

    /// Returns the path prefix for this model if it differs from the path of the base URL.
    fn path_prefix(&self, _operation: Operation, _model: &str, _prefix: &str) -> Option<&'static str> {
        None
    }

    /// Writes the part of the request target that follows the base URL, query included. An error names the missing
    /// value.
    fn write_request_target(
        &self,
        path_info: &PathInfo<'_>,
        _options: &Options,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        write_path(self, path_info, out);
        Ok(())
    }

    /// Returns the path of an operation; `None` if it is the client's path.
    fn operation_path(&self, operation: Operation) -> Option<&'static str> {
        self.provider_format(operation, "").map(|_| openai_path(operation))
    }

    /// Returns the service name to sign a request for, if the operation transfers objects. The bytes of objects are not
    /// part of the signature.
    fn object_storage_service(&self, _operation: Operation) -> Option<&'static str> {
        None
    }

    /// Returns the option that a forwarded path contains, with its value.
    fn option_in_path<'p>(&self, _path: &'p str) -> Option<(OptionField, &'p str)> {
        None
    }
}

/// Credentials of a provider.
pub trait ProviderCredentials: ProviderFormats {
    /// Returns how to send the credential; `prefix` is the path of the base URL.
    fn credential(&self, _key: &str, _prefix: &str) -> Credential {
        self.row().credential
    }

    /// Returns the keys that sign a request; `None` if the request carries an API key or a token.
    fn signing_keys<'o>(&self, _options: &'o Options) -> Result<Option<SigningKeys<'o>>, String> {
        Ok(None)
    }

    /// Returns the grant that fetches a credential, if the options require one.
    fn grant(&self, _options: &Options) -> Result<Option<Grant>, String> {
        Ok(None)
    }

    /// Returns the header that every request must have, with the value to send if the client sets none.
    fn required_header(&self, _prefix: &str) -> Option<(&'static str, &'static str)> {
        self.row().required_header
    }
}

/// Request that finds out which model is behind a name, needed before the actual request can be built.
pub struct ModelLookup {
    /// Base URL of the lookup, and the path after it.
    pub base_url: String,
    pub path: String,
    /// Reads the model from the response body.
    pub parse_model: fn(&[u8]) -> Option<String>,
}

/// Selection of the model at a provider.
pub trait ProviderModels: ProviderFormats {
    /// Returns the lookup for the model behind a name, if neither the request nor an option reveals the vendor.
    fn model_lookup(&self, _options: &Options, _named: &str) -> Option<ModelLookup> {
        None
    }

    /// Returns the model or deployment that is called, even if the request or batch file names another one.
    fn model_override<'o>(&self, options: &'o Options, _path_options: PathOptions<'o>) -> Option<&'o str> {
        self.row().model_override(options)
    }

    /// Returns the model that the body must name instead of its own, if only the body selects the model.
    fn body_model_override<'o>(
        &self,
        _operation: Operation,
        _options: &'o Options,
        _path_options: PathOptions<'o>,
    ) -> Option<Cow<'o, str>> {
        None
    }

    /// Returns the names by which clients may call the model of a native batch job; empty if the job names none.
    fn job_models(&self, job: &[u8]) -> Vec<String> {
        batch_jobs::read_model(job, "model").into_iter().collect()
    }
}

/// Provider of the catalogue.
pub trait Provider: ProviderAddress + ProviderCredentials + ProviderModels {}

impl<P: ProviderAddress + ProviderCredentials + ProviderModels> Provider for P {}

impl dyn Provider + '_ {
    /// Name of the provider in `x-gateway-provider` and in configs.
    pub fn slug(&self) -> &'static str {
        self.row().slug
    }

    /// Returns true if the provider supports an operation, natively or through translation.
    pub fn supports(&self, operation: Operation) -> bool {
        self.supports_natively(operation)
            || ALWAYS_FORWARDED.contains(&operation)
            || self.provider_format(operation, "").is_some()
    }

    /// Returns true if the provider supports an operation in the client's format.
    pub fn supports_natively(&self, operation: Operation) -> bool {
        contains_operation(self.row().native_operations, operation)
    }
}

/// Returns the version segment to insert into a forwarded path; empty if none is missing. The
/// client's path contained the version, but the gateway removed it as its own `/v1`.
fn missing_version(row: &ProviderRow, path_info: &PathInfo<'_>) -> &'static str {
    let root = path_info.path.split('/').nth(1).unwrap_or_default();
    let base = path_info.prefix.rsplit('/').next().unwrap_or_default();
    let has_version = || is_version(root) || is_version(base) || row.unversioned_roots.contains(&root);
    if row.forwarded_version.is_empty() || has_version() { "" } else { row.forwarded_version }
}

/// Returns true if a path segment is a version, such as `v1` or `v1beta2`.
fn is_version(segment: &str) -> bool {
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let number = segment.strip_prefix('v').filter(|rest| rest.starts_with(|first: char| first.is_ascii_digit()));
    let rest = number.map(|number| number.trim_start_matches(|character: char| character.is_ascii_digit()));
    rest.is_some_and(|rest| {
        let stage = rest.strip_prefix("alpha").or_else(|| rest.strip_prefix("beta"));
        rest.is_empty() || stage.is_some_and(is_digits)
    })
}

/// Writes the part of the request target that follows the base URL, for operations with one fixed path.
pub(crate) fn write_path<P: ProviderAddress + ?Sized>(provider: &P, path_info: &PathInfo<'_>, out: &mut Vec<u8>) {
    let row = provider.row();
    let version = match path_info.operation {
        Operation::Proxy => missing_version(row, path_info),
        _ if path_info.has_prefill => row.prefill.version_segment.unwrap_or(row.version_segment),
        _ => row.version_segment,
    };
    let path = provider.operation_path(path_info.operation).unwrap_or(path_info.path);
    // Clients whose base URL has no version segment send the segment in the path.
    let base = path_info.prefix.rsplit('/').next().filter(|segment| is_version(segment));
    let after_version = base.and_then(|base| path.strip_prefix('/')?.strip_prefix(base));
    let path = after_version.filter(|rest| rest.starts_with('/')).unwrap_or(path);
    let version = if path_info.prefix.ends_with(version) { "" } else { version };
    out.extend_from_slice(version.as_bytes());
    out.extend_from_slice(path.as_bytes());
    if !path_info.query.is_empty() {
        out.push(b'?');
        out.extend_from_slice(path_info.query.as_bytes());
    }
}
