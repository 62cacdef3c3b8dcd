//! Provider registry. The `Provider` trait has the defaults that providers share, and `all_providers` is the only list
//! of providers.

mod anthropic;
mod aws;
pub(crate) mod aws_hosted;
mod azure_ai;
mod azure_openai;
pub(crate) mod batch_jobs;
mod bedrock;
mod cohere;
pub(crate) mod customer_hosts;
mod entra;
mod external_account;
mod fireworks;
mod google;
mod grant;
pub(crate) mod media_only;
pub(crate) mod model_lists;
mod openai;
pub(crate) mod openai_compatible;
mod operation_groups;
mod options;
mod oracle;
pub(crate) mod param_map;
pub(crate) mod path_info;
pub(crate) mod path_segment;
mod predibase;
pub(crate) mod prefill;
mod signing_keys;
pub(crate) mod templated;
mod vertex_ai;

pub use crate::catalog::customer_hosts::{is_azure_blob_host, is_cloud_host};
pub use crate::catalog::param_map::ParamRules;
pub use crate::catalog::path_info::{GooglePathOptions, PathInfo, PathOptions};
pub use crate::catalog::prefill::PrefillSupport;
pub(crate) use crate::catalog::prefill::claude_version;
pub use aws::{is_sts_url, sts_endpoint};
pub use grant::{
    AssumeRole, AwsCredentials, AwsMachineIdentity, ClientAssertion, ExternalAccount, FederatedApplication, Grant,
    SubjectTokenSource,
};
pub use options::{OptionField, Options, ValueFormat};
pub use signing_keys::{AmazonKeys, OracleKey, SigningKeys};
pub(crate) use vertex_ai::publisher_model_path as vertex_model;

use std::borrow::Cow;

use crate::{
    api_format::format::ApiFormat,
    chat::providers::{self, ProviderFormat},
    files::FileStore,
    operation::Operation,
    translation::{self},
};
use operation_groups::{
    ALWAYS_FORWARDED, BATCHES, BEDROCK, CHAT, COMPLETIONS, CREATE_RESPONSE, EMBED, FILES, FINE_TUNING, GEMINI,
    GEMINI_COUNT, GEMINI_EMBED, IMAGE_EDIT, IMAGE_GENERATION, MESSAGES, NATIVE_BATCH_JOBS, OCR, OperationGroup,
    REALTIME, RERANK, RESPONSES, SPEECH, STORED_RESPONSES, TRANSCRIPTION,
};

/// How a request carries its credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credential {
    /// `authorization: Bearer <key>`
    Bearer,
    /// The plain key in the header with this lower-case name.
    Header(&'static str),
    /// `authorization` with this scheme instead of `Bearer`.
    Scheme(&'static str),
}

/// Request that finds out which model is behind a name, needed before the actual request can be built.
pub struct ModelLookup {
    /// Base URL of the lookup, and the path after it.
    pub base_url: String,
    pub path: String,
    /// Reads the model from the response body.
    pub parse_model: fn(&[u8]) -> Option<String>,
}

/// Option that holds the result of a `ModelLookup`. Neither a header nor a config can set it.
pub const BACKING_MODEL: OptionField = options::gateway_option("model_behind", "");

/// Differences between providers; the defaults are `OpenAI`'s behaviour.
pub trait Provider: Sync {
    /// Name of the provider in `x-gateway-provider` and in configs.
    fn slug(&self) -> &'static str;

    /// Base URL without a trailing slash; empty if it depends on options or a custom host.
    fn base_url(&self) -> &'static str;

    /// Operations that the provider supports natively, by group.
    fn native_operations(&self) -> &'static [OperationGroup];

    /// Options that the provider accepts besides a credential.
    fn options(&self) -> &'static [OptionField] {
        &[]
    }

    /// Returns the base URL for these options; `None` if it does not depend on them. An error names the missing option.
    fn resolve_base_url(&self, _operation: Operation, _options: &Options) -> Result<Option<String>, String> {
        Ok(None)
    }

    /// Returns the path prefix for this model if it differs from the path of the base URL.
    fn path_prefix(&self, _operation: Operation, _model: &str, _prefix: &str) -> Option<&'static str> {
        None
    }

    /// Version segment between the base URL and the path of an operation.
    fn version_segment(&self) -> &'static str {
        ""
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

    /// Returns the format to translate an operation to; `None` if the provider supports it natively or not at all.
    fn provider_format(&self, operation: Operation, _model: &str) -> Option<&'static dyn ProviderFormat> {
        needs_openai_translation(self.native_operations(), operation).then_some(&providers::openai_chat::OPENAI)
    }

    /// Same as `provider_format`, for providers where a model override or the path of the base URL also decides.
    fn provider_format_for_target(
        &self,
        operation: Operation,
        model: &str,
        (options, _prefix): (&Options, &str),
    ) -> Option<&'static dyn ProviderFormat> {
        self.provider_format(operation, self.effective_model(options, model))
    }

    /// Returns the model that decides the provider format when a request names this model.
    fn effective_model<'o>(&self, _options: &'o Options, requested: &'o str) -> &'o str {
        requested
    }

    /// Returns the lookup for the model behind a name, if neither the request nor an option tells the vendor.
    fn model_lookup(&self, _options: &Options, _named: &str) -> Option<ModelLookup> {
        None
    }

    /// Returns how to send the credential; `prefix` is the path of the base URL.
    fn credential(&self, _key: &str, _prefix: &str) -> Credential {
        Credential::Bearer
    }

    /// Returns the keys that sign a request; `None` if the request carries an API key or a token.
    fn signing_keys<'o>(&self, _options: &'o Options) -> Result<Option<SigningKeys<'o>>, String> {
        Ok(None)
    }

    /// Returns the service to sign for if the operation transfers objects. Their bytes are not part of the signature.
    fn object_storage_service(&self, _operation: Operation) -> Option<&'static str> {
        None
    }

    /// Returns true if batches can write their output to a customer's Azure Blob Storage.
    fn can_write_azure_blobs(&self) -> bool {
        false
    }

    /// Returns the store of the provider's files, if its file API differs from `OpenAI`'s.
    fn file_store(&self) -> Option<FileStore> {
        None
    }

    /// Returns the grant that fetches a credential, if the options require one.
    fn grant(&self, _options: &Options) -> Result<Option<Grant>, String> {
        Ok(None)
    }

    /// Returns true if responses use prepaid throughput and so cost nothing more.
    fn is_prepaid(&self, _options: &Options) -> bool {
        false
    }

    /// Returns the bearer token among the options; it takes precedence over every API key.
    fn bearer_token<'o>(&self, _options: &'o Options) -> Option<&'o str> {
        None
    }

    /// Returns the option that a forwarded path contains, with its value.
    fn option_in_path<'p>(&self, _path: &'p str) -> Option<(OptionField, &'p str)> {
        None
    }

    /// Returns the real model name from the options, if requests use another name such as a deployment.
    fn model_from_options<'o>(&self, _options: &'o Options) -> Option<&'o str> {
        None
    }

    /// Returns the model or deployment that is called, or that a batch file is for, whatever the request or the file
    /// names.
    fn model_override<'o>(&self, _options: &'o Options, _stated: PathOptions<'o>) -> Option<&'o str> {
        None
    }

    /// Returns the model that the body must name instead of its own, if only the body selects the model.
    fn body_model_override<'o>(
        &self,
        _operation: Operation,
        _options: &'o Options,
        _stated: PathOptions<'o>,
    ) -> Option<Cow<'o, str>> {
        None
    }

    /// Header that must be present, with the value to send if the client sets none.
    fn required_header(&self, _prefix: &str) -> Option<(&'static str, &'static str)> {
        None
    }

    /// Returns the model or deployment in a provider-specific path that is forwarded unparsed. It is percent-encoded as
    /// received and may end with a method such as `:predict`.
    fn model_in_path<'p>(&self, path: &'p str) -> Option<&'p str> {
        path_segment::segment_after(path, path_segment::MODEL_PATH_MARKERS)
    }

    /// Returns the names by which clients may call the model of a native batch job; empty if the job names none.
    fn job_models(&self, job: &[u8]) -> Vec<String> {
        batch_jobs::read_model(job, "model").into_iter().collect()
    }

    /// Returns true if streams of completions report their usage when `stream_options` asks for it. Providers that
    /// reject `stream_options` report it unasked or never. `version` is the API version, if the request names one.
    fn accepts_stream_options(&self, _version: Option<&str>, _options: &Options) -> bool {
        true
    }

    /// Returns true if completions may have finish reasons that `OpenAI` does not define.
    fn has_custom_finish_reasons(&self) -> bool {
        false
    }

    /// Returns true if every model of the provider can count the tokens of a request.
    fn can_count_tokens_with_every_model(&self) -> bool {
        true
    }

    /// Returns true if the provider has an endpoint that lists its models; otherwise the catalogue lists them.
    fn has_model_list(&self) -> bool {
        !model_lists::WITHOUT_MODEL_LIST.contains(&self.slug())
    }

    /// Returns the parameter mapping for chat and text completions sent to this provider, whatever the client format.
    fn param_rules(&self, _operation: Operation) -> &'static ParamRules {
        &param_map::IDENTITY
    }

    /// Same as `param_rules`, for providers where the models of one vendor need other rules.
    fn param_rules_for_model(&self, operation: Operation, _model: &str) -> &'static ParamRules {
        self.param_rules(operation)
    }

    /// API format of the provider's errors, and of paths that several formats share.
    fn api_format(&self) -> ApiFormat {
        ApiFormat::OpenAi
    }
}

/// Writes the part of the request target that follows the base URL, for operations with one fixed path.
fn write_path<P: Provider + ?Sized>(provider: &P, path_info: &PathInfo<'_>, out: &mut Vec<u8>) {
    let version = match path_info.operation {
        Operation::Proxy => "",
        _ if path_info.has_prefill => {
            prefill::find_prefill_support(provider.slug()).version_segment.unwrap_or(provider.version_segment())
        }
        _ => provider.version_segment(),
    };
    // Clients whose base URL has no version segment send the segment in the path.
    let is_said = path_info.prefix.ends_with("/v1");
    let path = provider.operation_path(path_info.operation).unwrap_or(path_info.path);
    let path = if is_said { path.strip_prefix("/v1").unwrap_or(path) } else { path };
    let version = if path_info.prefix.ends_with(version) { "" } else { version };
    out.extend_from_slice(version.as_bytes());
    out.extend_from_slice(path.as_bytes());
    if !path_info.query.is_empty() {
        out.push(b'?');
        out.extend_from_slice(path_info.query.as_bytes());
    }
}

impl dyn Provider {
    /// Returns true if the provider supports an operation, natively or through translation.
    pub fn supports(&self, operation: Operation) -> bool {
        self.supports_natively(operation)
            || ALWAYS_FORWARDED.contains(&operation)
            || self.provider_format(operation, "").is_some()
    }

    /// Returns true if the provider supports an operation in the client's format.
    pub fn supports_natively(&self, operation: Operation) -> bool {
        contains_operation(self.native_operations(), operation)
    }
}

fn contains_operation(offers: &[OperationGroup], operation: Operation) -> bool {
    offers.iter().any(|group| group.contains(&operation))
}

/// Returns true if the operation reaches a provider with these groups only after translation to `OpenAI`'s chat
/// completions or embeddings.
fn needs_openai_translation(offers: &[OperationGroup], operation: Operation) -> bool {
    let said_as = match operation {
        _ if operation.is_embedding() => Operation::Embed,
        _ if translation::is_chat_operation(operation) => Operation::ChatComplete,
        _ => return false,
    };
    operation != said_as && !contains_operation(offers, operation) && contains_operation(offers, said_as)
}

/// Returns the path of the `OpenAI` operation that such a request is translated to.
fn openai_path(operation: Operation) -> &'static str {
    if operation.is_embedding() { "/embeddings" } else { "/chat/completions" }
}

/// Returns the job id in a path such as `/fine_tuning/jobs/:id/cancel`, encoded as received.
fn job_id_in_path(path: &str) -> Result<&str, String> {
    let below = path.strip_prefix("/fine_tuning/jobs/").or_else(|| path.strip_prefix("/batches/"));
    let id = below.and_then(|rest| rest.split('/').next()).unwrap_or_default();
    if matches!(id, "" | "." | "..") { Err("the path must name a job".into()) } else { Ok(id) }
}

/// Iterates over all providers.
pub fn all_providers() -> impl Iterator<Item = &'static dyn Provider> {
    let modules: [&'static dyn Provider; 13] = [
        &anthropic::Anthropic,
        &azure_ai::AzureAi,
        &azure_openai::AzureOpenAi,
        &bedrock::Bedrock,
        &cohere::Cohere,
        &fireworks::Fireworks,
        &google::Google,
        &aws_hosted::ClaudePlatform,
        &aws_hosted::Mantle,
        &aws_hosted::SageMaker,
        &openai::OpenAi,
        &predibase::Predibase,
        &vertex_ai::VertexAi,
    ];
    let rows = openai_compatible::ROWS.iter().map(|row| row as &'static dyn Provider);
    let placed = templated::TEMPLATED_PROVIDERS.iter().map(|row| row as &'static dyn Provider);
    let drawing = media_only::ROWS.iter().map(|row| row as &'static dyn Provider);
    modules.into_iter().chain(rows).chain(placed).chain(drawing)
}

/// Returns the providers as a JSON array of `{"slug", "base_url", "dialect", "offers", "options"}`.
pub fn providers_json() -> serde_json::Value {
    let row = |provider: &'static dyn Provider| {
        let dialect = match provider.api_format() {
            ApiFormat::OpenAi => "openai",
            ApiFormat::Anthropic => "anthropic",
            ApiFormat::Gemini => "gemini",
            ApiFormat::Bedrock => "bedrock",
        };
        let offers: Vec<_> = Operation::ALL.iter().filter(|one| provider.supports(**one)).map(|one| one.id()).collect();
        let options: Vec<_> = provider.options().iter().map(|option| (option.key, option.header)).collect();
        serde_json::json!({
            "slug": provider.slug(), "base_url": provider.base_url(), "dialect": dialect,
            "offers": offers, "options": options,
        })
    };
    all_providers().map(row).collect()
}

/// Finds an option by its name in any provider.
pub fn find_option(name: &str) -> Option<OptionField> {
    all_providers().flat_map(Provider::options).find(|option| option.matches_config_name(name)).copied()
}

/// Finds the provider with this slug.
pub fn find_provider(slug: &str) -> Option<&'static dyn Provider> {
    all_providers().find(|provider| provider.slug() == slug)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request_target(slug: &str, prefix: &str, operation: Operation, path: &str) -> String {
        let path_info = PathInfo { query: "a=1", prefix, ..PathInfo::for_test(operation, path, "") };
        let mut out = Vec::new();
        find_provider(slug).unwrap().write_request_target(&path_info, &Options::default(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn slugs_are_unique_and_lower_case() {
        let mut slugs: Vec<_> = all_providers().map(Provider::slug).collect();
        let count = slugs.len();
        slugs.sort_unstable();
        slugs.dedup();
        assert_eq!(slugs.len(), count);
        assert!(
            slugs.iter().all(|slug| slug.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'))
        );
    }

    #[test]
    fn base_urls_are_https_and_have_no_trailing_slash() {
        for provider in all_providers().filter(|provider| !provider.base_url().is_empty()) {
            let local = provider.base_url().starts_with("http://localhost");
            assert!(provider.base_url().starts_with("https://") || local, "{}", provider.slug());
            assert!(!provider.base_url().ends_with('/'), "{}", provider.slug());
        }
    }

    #[test]
    fn only_forwarded_operations_are_supported_by_default() {
        let serves = |slug: &str, operation| find_provider(slug).unwrap().supports(operation);
        assert!(serves("groq", Operation::ChatComplete) && !serves("groq", Operation::Embed));
        assert!(serves("anthropic", Operation::Messages) && !serves("anthropic", Operation::Embed));
        assert!(!serves("openai", Operation::MessagesCountTokens) && serves("mistral-ai", Operation::Ocr));
        for provider in all_providers() {
            assert!(
                provider.supports(Operation::Proxy) && provider.supports(Operation::Moderate),
                "{}",
                provider.slug()
            );
        }
        // The mock provider leaves token counting to the gateway and has no native batch jobs.
        let is_own = |operation: &Operation| {
            ["BatchJob", "BatchObject", "BatchDataset"].iter().any(|suffix| operation.id().ends_with(suffix))
        };
        let mut others = Operation::ALL.iter().filter(|one| !is_own(one) && !one.counts_tokens());
        assert!(others.all(|operation| serves("mock", *operation)));
    }

    #[test]
    fn model_in_path_knows_the_paths_of_each_provider() {
        for (slug, path, expected) in [
            ("azure-openai", "/openai/deployments/d%201/chat/completions", Some("d%201")),
            ("bedrock", "/model/amazon.nova-lite-v1%3A0/converse", Some("amazon.nova-lite-v1%3A0")),
            ("google", "/v1beta/tunedModels/mine:generateContent", Some("mine:generateContent")),
            ("vertex-ai", "/v1/projects/p/locations/l/endpoints/7:predict", Some("7:predict")),
            ("sagemaker", "/endpoints/e/invocations", Some("e")),
            ("databricks", "/my-endpoint/invocations", Some("my-endpoint")),
            ("databricks", "/api/2.0/serving-endpoints/mine/config", Some("mine")),
            ("workers-ai", "/run/@cf/meta/llama", Some("@cf/meta/llama")),
            ("predibase", "/acme/deployments/v2/llms/llama-3/generate", Some("llama-3")),
            ("stability-ai", "/v1/generation/sdxl/image-to-image", Some("sdxl")),
            ("segmind", "/sdxl1.0-txt2img", Some("sdxl1.0-txt2img")),
            ("fal-ai", "/fal-ai/flux/dev", Some("fal-ai/flux/dev")),
            ("openai", "/models/gpt-5", Some("gpt-5")),
            ("openai", "/chat/completions", None),
            ("databricks", "/chat/completions", None),
        ] {
            assert_eq!(find_provider(slug).unwrap().model_in_path(path), expected, "{slug} {path}");
        }
    }

    #[test]
    fn translated_operations_have_a_provider_format_and_native_ones_have_none() {
        let wire = |slug: &str, operation| find_provider(slug).unwrap().provider_format(operation, "m").is_some();
        assert!(wire("anthropic", Operation::ChatComplete) && wire("openai", Operation::Messages));
        assert!(wire("groq", Operation::Messages) && !wire("mock", Operation::Messages));
        for provider in all_providers() {
            for operation in
                Operation::ALL.iter().filter(|operation| contains_operation(provider.native_operations(), **operation))
            {
                assert!(provider.provider_format(*operation, "m").is_none(), "{} {operation:?}", provider.slug());
            }
        }
    }

    #[test]
    fn translated_operations_use_the_provider_path() {
        assert_eq!(request_target("anthropic", "/v1", Operation::ChatComplete, "/chat/completions"), "/messages?a=1");
        assert_eq!(request_target("deepseek", "", Operation::Messages, "/messages"), "/v1/chat/completions?a=1");
    }

    #[test]
    fn version_segment_is_not_duplicated() {
        let chat = |slug, prefix| request_target(slug, prefix, Operation::ChatComplete, "/chat/completions");
        assert_eq!(chat("openai", "/v1"), "/chat/completions?a=1");
        assert_eq!(chat("deepseek", ""), "/v1/chat/completions?a=1");
        assert_eq!(chat("ollama", "/v1"), "/chat/completions?a=1");
        let prefill_target = |slug, operation, path| {
            let path_info =
                PathInfo { is_streaming: true, has_prefill: true, ..PathInfo::for_test(operation, path, "") };
            let mut out = Vec::new();
            find_provider(slug).unwrap().write_request_target(&path_info, &Options::default(), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(prefill_target("deepseek", Operation::ChatComplete, "/chat/completions"), "/beta/chat/completions");
        assert_eq!(prefill_target("deepseek", Operation::Messages, "/messages"), "/beta/chat/completions");
        assert_eq!(prefill_target("deepseek", Operation::Proxy, "/user/balance"), "/user/balance");
        assert_eq!(prefill_target("moonshot", Operation::ChatComplete, "/chat/completions"), "/v1/chat/completions");
        let proxy = |slug, prefix, path| request_target(slug, prefix, Operation::Proxy, path);
        assert_eq!(proxy("anthropic", "/v1", "/v1/messages/batches"), "/messages/batches?a=1");
        assert_eq!(proxy("deepseek", "", "/user/balance"), "/user/balance?a=1");
        assert_eq!(proxy("deepseek", "", "/v1/models"), "/v1/models?a=1");
    }
}
