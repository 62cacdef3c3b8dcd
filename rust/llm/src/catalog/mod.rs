//! The providers: what is the same for all of them as a trait's defaults, and the one list of who there is.

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
mod options;
mod oracle;
pub(crate) mod param_map;
pub(crate) mod path_info;
pub(crate) mod path_segment;
mod predibase;
pub(crate) mod prefill;
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
pub(crate) use vertex_ai::publisher_model_path as vertex_model;

use std::borrow::Cow;

use crate::{
    api_format::ApiFormat,
    chat::providers::{self, ProviderFormat},
    files::FileStore,
    operation::Operation,
    translation::{self},
};

/// How a credential is written into a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credential {
    /// `authorization: Bearer <key>`
    Bearer,
    /// The key as it is, in the header of this (lower-case) name.
    Header(&'static str),
    /// `authorization`, with another word before the key.
    Scheme(&'static str),
}

/// With what a request is signed, where no key is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SigningKeys<'o> {
    Amazon(AmazonKeys<'o>),
    Oracle(OracleKey<'o>),
}

/// With what a request to Amazon is signed (version 4).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AmazonKeys<'o> {
    pub service: &'static str,
    pub region: &'o str,
    pub access_key_id: &'o str,
    pub secret_access_key: &'o str,
    pub session_token: Option<&'o str>,
}

/// The key of one of Oracle's users, and where they pay.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OracleKey<'o> {
    pub tenancy: &'o str,
    pub user: &'o str,
    pub fingerprint: &'o str,
    pub compartment: Option<&'o str>,
    /// In PEM.
    pub private_key: &'o str,
}

/// Without what is secret.
impl std::fmt::Debug for AmazonKeys<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("AmazonKeys")
            .field("service", &self.service)
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

/// Likewise.
impl std::fmt::Debug for OracleKey<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("OracleKey").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

/// What a provider must be asked about before it is known how it is asked for anything else.
pub struct ModelLookup {
    /// Where that is asked, and the path behind it.
    pub base_url: String,
    pub path: String,
    /// The model that is behind it, out of the answer.
    pub parse_model: fn(&[u8]) -> Option<String>,
}

/// What was learned so; nobody else can say it.
pub const BACKING_MODEL: OptionField = options::gateway_option("model_behind", "");

/// Operations that providers offer together.
type OperationGroup = &'static [Operation];

const CHAT: OperationGroup = &[Operation::ChatComplete];
const COMPLETIONS: OperationGroup = &[Operation::Complete];
const EMBED: OperationGroup = &[Operation::Embed];
const MESSAGES: OperationGroup = &[Operation::Messages, Operation::MessagesCountTokens];
const IMAGE_GENERATION: OperationGroup = &[Operation::ImageGenerate];
const IMAGE_EDIT: OperationGroup = &[Operation::ImageEdit];
const SPEECH: OperationGroup = &[Operation::CreateSpeech];
const TRANSCRIPTION: OperationGroup = &[Operation::CreateTranscription, Operation::CreateTranslation];
const REALTIME: OperationGroup = &[Operation::Realtime];
const OCR: OperationGroup = &[Operation::Ocr];
const GEMINI: OperationGroup = &[Operation::GenerateContent, Operation::StreamGenerateContent];
const GEMINI_EMBED: OperationGroup = &[Operation::EmbedContent, Operation::BatchEmbedContents];
const GEMINI_COUNT: OperationGroup = &[Operation::CountTokens];
const BEDROCK: OperationGroup = &[
    Operation::Converse,
    Operation::ConverseStream,
    Operation::InvokeModel,
    Operation::InvokeModelStream,
    Operation::CountConverse,
];
const RERANK: OperationGroup = &[Operation::Rerank];
const CREATE_RESPONSE: OperationGroup = &[Operation::CreateModelResponse];
/// Of what was answered before and is kept.
const STORED_RESPONSES: OperationGroup = &[Operation::GetModelResponse, Operation::DeleteModelResponse];
const RESPONSES: OperationGroup = &[
    Operation::CreateModelResponse,
    Operation::GetModelResponse,
    Operation::DeleteModelResponse,
    Operation::ListResponseInputItems,
    Operation::CancelModelResponse,
];
const FILES: OperationGroup = &[
    Operation::ListFiles,
    Operation::UploadFile,
    Operation::RetrieveFile,
    Operation::DeleteFile,
    Operation::RetrieveFileContent,
];
const BATCHES: OperationGroup = &[
    Operation::ListBatches,
    Operation::CreateBatch,
    Operation::RetrieveBatch,
    Operation::GetBatchOutput,
    Operation::CancelBatch,
];
/// Batches in a provider's own words, and the objects that they read and write.
const NATIVE_BATCH_JOBS: OperationGroup = &[
    Operation::CreateBatchJob,
    Operation::RetrieveBatchJob,
    Operation::CancelBatchJob,
    Operation::PutBatchObject,
    Operation::GetBatchObject,
];
const FINE_TUNING: OperationGroup = &[
    Operation::ListFinetunes,
    Operation::CreateFinetune,
    Operation::RetrieveFinetune,
    Operation::CancelFinetune,
    Operation::ListFinetuneEvents,
    Operation::ListFinetuneCheckpoints,
];
/// Forwarded to whoever is named: most have them, and where they do not the provider says so.
const ALWAYS_FORWARDED: OperationGroup = &[Operation::Models, Operation::Moderate, Operation::Proxy];

/// What differs between providers; `OpenAI`'s behaviour is the default.
pub trait Provider: Sync {
    /// The name that `x-gateway-provider` and configs use.
    fn slug(&self) -> &'static str;

    /// Where its API starts, without a trailing slash. Empty where that takes options or a custom host.
    fn base_url(&self) -> &'static str;

    /// The operations it offers, by group.
    fn native_operations(&self) -> &'static [OperationGroup];

    /// What it may be told besides a credential.
    fn options(&self) -> &'static [OptionField] {
        &[]
    }

    /// Where its API starts for these options; `None` where that does not depend on them. An error says what is missing.
    fn resolve_base_url(&self, _operation: Operation, _options: &Options) -> Result<Option<String>, String> {
        Ok(None)
    }

    /// The path below which this model is asked, where that is another than its base URL's.
    fn path_prefix(&self, _operation: Operation, _model: &str, _prefix: &str) -> Option<&'static str> {
        None
    }

    /// The segment that stands between the base URL and the path of an operation.
    fn version_segment(&self) -> &'static str {
        ""
    }

    /// Writes what follows the base URL in the request line, query included. An error says what is missing.
    fn write_request_target(&self, asked: &PathInfo<'_>, _options: &Options, out: &mut Vec<u8>) -> Result<(), String> {
        write_path(self, asked, out);
        Ok(())
    }

    /// The path of an operation, where that is not the caller's.
    fn operation_path(&self, operation: Operation) -> Option<&'static str> {
        self.provider_format(operation, "").map(|_| openai_path(operation))
    }

    /// How it is asked for what it does not offer in the caller's own dialect; `None` where it cannot be.
    fn provider_format(&self, operation: Operation, _model: &str) -> Option<&'static dyn ProviderFormat> {
        needs_openai_translation(self.native_operations(), operation).then_some(&providers::openai_chat::OPENAI)
    }

    /// The same where more than the model's name says who is asked: a model that is pinned, or the path of the base URL.
    fn provider_format_for_target(
        &self,
        operation: Operation,
        model: &str,
        (options, _prefix): (&Options, &str),
    ) -> Option<&'static dyn ProviderFormat> {
        self.provider_format(operation, self.effective_model(options, model))
    }

    /// The model whose maker decides how it is asked, where a request names this one.
    fn effective_model<'o>(&self, _options: &'o Options, named: &'o str) -> &'o str {
        named
    }

    /// What is to be asked about the model that a request names, where neither that nor an option says whose it is.
    fn model_lookup(&self, _options: &Options, _named: &str) -> Option<ModelLookup> {
        None
    }

    /// Where a credential goes; `prefix` is the path of the base URL.
    fn credential(&self, _key: &str, _prefix: &str) -> Credential {
        Credential::Bearer
    }

    /// With what a request is signed, where no key is sent.
    fn signing_keys<'o>(&self, _options: &'o Options) -> Result<Option<SigningKeys<'o>>, String> {
        Ok(None)
    }

    /// The service that an operation is signed for where it moves objects, whose bytes are not part of the signature.
    fn object_storage_service(&self, _operation: Operation) -> Option<&'static str> {
        None
    }

    /// Whether batches may leave their output in a customer's own storage at Azure.
    fn can_write_azure_blobs(&self) -> bool {
        false
    }

    /// Who keeps its files, where they are asked for in another way than `OpenAI`'s.
    fn file_store(&self) -> Option<FileStore> {
        None
    }

    /// Of whom a credential is to be fetched, where the options say that it must be.
    fn grant(&self, _options: &Options) -> Result<Option<Grant>, String> {
        Ok(None)
    }

    /// Whether what is answered out of throughput that was paid for before costs nothing more.
    fn is_prepaid(&self, _options: &Options) -> bool {
        false
    }

    /// A bearer token among the options; it goes before every key.
    fn bearer_token<'o>(&self, _options: &'o Options) -> Option<&'o str> {
        None
    }

    /// What a path that is passed on says of where it goes: an option, and its value.
    fn option_in_path<'p>(&self, _path: &'p str) -> Option<(OptionField, &'p str)> {
        None
    }

    /// The model's own name, where requests call it by another.
    fn model_from_options<'o>(&self, _options: &'o Options) -> Option<&'o str> {
        None
    }

    /// The model or deployment that is asked, or that a file's lines are for, whatever these name.
    fn model_override<'o>(&self, _options: &'o Options, _stated: PathOptions<'o>) -> Option<&'o str> {
        None
    }

    /// What a request's body must name as its model, whatever it names, where nothing but the body says who is asked.
    fn body_model_override<'o>(
        &self,
        _operation: Operation,
        _options: &'o Options,
        _stated: PathOptions<'o>,
    ) -> Option<Cow<'o, str>> {
        None
    }

    /// A header that must be present, with the value to send when the caller set none.
    fn required_header(&self, _prefix: &str) -> Option<(&'static str, &'static str)> {
        None
    }

    /// The model or deployment that a path of its own names, which passes unread: percent-encoded as it came, perhaps with a verb.
    fn model_in_path<'p>(&self, path: &'p str) -> Option<&'p str> {
        path_segment::segment_after(path, path_segment::MODEL_PATH_MARKERS)
    }

    /// What callers may call the model that a job of batches names in the provider's own words; nothing where it names none.
    fn job_models(&self, job: &[u8]) -> Vec<String> {
        batch_jobs::read_model(job, "model").into_iter().collect()
    }

    /// Whether a stream of completions says what it cost when `stream_options` ask for it. Who refuses them says it unasked,
    /// or not at all. `version` is that of the API, where the request says one.
    fn accepts_stream_options(&self, _version: Option<&str>, _options: &Options) -> bool {
        true
    }

    /// Whether completions say in words of its own why they ended, and not in `OpenAI`'s alone.
    fn has_custom_finish_reasons(&self) -> bool {
        false
    }

    /// Whether each of its models counts the tokens of a request, where one is asked to.
    fn can_count_tokens_with_every_model(&self) -> bool {
        true
    }

    /// Whether it says which models it has; where it does not, the catalogue does.
    fn has_model_list(&self) -> bool {
        !model_lists::WITHOUT_MODEL_LIST.contains(&self.slug())
    }

    /// What a request to it for chats or completions calls otherwise than `OpenAI`, whoever's dialect that was said in.
    fn param_rules(&self, _operation: Operation) -> &'static ParamRules {
        &param_map::IDENTITY
    }

    /// Likewise of what passes to one of its models, where those of one maker take other words.
    fn param_rules_for_model(&self, operation: Operation, _model: &str) -> &'static ParamRules {
        self.param_rules(operation)
    }

    /// The dialect of its errors and of paths that several dialects have.
    fn api_format(&self) -> ApiFormat {
        ApiFormat::OpenAi
    }
}

/// What follows the base URL where the operation has one path.
fn write_path<P: Provider + ?Sized>(provider: &P, asked: &PathInfo<'_>, out: &mut Vec<u8>) {
    let version = match asked.operation {
        Operation::Proxy => "",
        _ if asked.has_prefill => {
            prefill::find_prefill_support(provider.slug()).version_segment.unwrap_or(provider.version_segment())
        }
        _ => provider.version_segment(),
    };
    // Clients whose base URL lacks the version segment say it twice.
    let is_said = asked.prefix.ends_with("/v1");
    let path = provider.operation_path(asked.operation).unwrap_or(asked.path);
    let path = if is_said { path.strip_prefix("/v1").unwrap_or(path) } else { path };
    let version = if asked.prefix.ends_with(version) { "" } else { version };
    out.extend_from_slice(version.as_bytes());
    out.extend_from_slice(path.as_bytes());
    if !asked.query.is_empty() {
        out.push(b'?');
        out.extend_from_slice(asked.query.as_bytes());
    }
}

impl dyn Provider {
    /// Whether it offers an operation, in the caller's dialect or in its own.
    pub fn supports(&self, operation: Operation) -> bool {
        self.supports_natively(operation)
            || ALWAYS_FORWARDED.contains(&operation)
            || self.provider_format(operation, "").is_some()
    }

    /// Whether it offers an operation in the caller's dialect.
    pub fn supports_natively(&self, operation: Operation) -> bool {
        contains_operation(self.native_operations(), operation)
    }
}

fn contains_operation(offers: &[OperationGroup], operation: Operation) -> bool {
    offers.iter().any(|group| group.contains(&operation))
}

/// Whether an operation reaches these offers as one of `OpenAI`'s alone.
fn needs_openai_translation(offers: &[OperationGroup], operation: Operation) -> bool {
    let said_as = match operation {
        _ if operation.is_embedding() => Operation::Embed,
        _ if translation::is_chat_operation(operation) => Operation::ChatComplete,
        _ => return false,
    };
    operation != said_as && !contains_operation(offers, operation) && contains_operation(offers, said_as)
}

/// The path of what such an operation is said as.
fn openai_path(operation: Operation) -> &'static str {
    if operation.is_embedding() { "/embeddings" } else { "/chat/completions" }
}

/// The id of a job in a path such as `/fine_tuning/jobs/:id/cancel`, as it came.
fn job_id_in_path(path: &str) -> Result<&str, String> {
    let below = path.strip_prefix("/fine_tuning/jobs/").or_else(|| path.strip_prefix("/batches/"));
    let id = below.and_then(|rest| rest.split('/').next()).unwrap_or_default();
    if matches!(id, "" | "." | "..") { Err("the path must name a job".into()) } else { Ok(id) }
}

/// Every provider, by slug.
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

/// The providers, as a JSON array of `{"slug", "base_url", "dialect", "offers", "options"}`.
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

/// The option that is called this, whoever knows it.
pub fn find_option(name: &str) -> Option<OptionField> {
    all_providers().flat_map(Provider::options).find(|option| option.matches_config_name(name)).copied()
}

/// The provider of this slug.
pub fn find_provider(slug: &str) -> Option<&'static dyn Provider> {
    all_providers().find(|provider| provider.slug() == slug)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request_target(slug: &str, prefix: &str, operation: Operation, path: &str) -> String {
        let asked = PathInfo { query: "a=1", prefix, ..PathInfo::for_test(operation, path, "") };
        let mut out = Vec::new();
        find_provider(slug).unwrap().write_request_target(&asked, &Options::default(), &mut out).unwrap();
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
        // What it has nobody to count is counted by the gateway, and what others are told in their own words it has none for.
        let is_own = |operation: &Operation| {
            ["BatchJob", "BatchObject", "BatchDataset"].iter().any(|what| operation.id().ends_with(what))
        };
        let mut others = Operation::ALL.iter().filter(|one| !is_own(one) && !one.counts_tokens());
        assert!(others.all(|operation| serves("mock", *operation)));
    }

    #[test]
    fn model_in_path_knows_the_paths_of_each_provider() {
        for (slug, path, named) in [
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
            assert_eq!(find_provider(slug).unwrap().model_in_path(path), named, "{slug} {path}");
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
        let begun = |slug, operation, path| {
            let asked = PathInfo { is_streaming: true, has_prefill: true, ..PathInfo::for_test(operation, path, "") };
            let mut out = Vec::new();
            find_provider(slug).unwrap().write_request_target(&asked, &Options::default(), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(begun("deepseek", Operation::ChatComplete, "/chat/completions"), "/beta/chat/completions");
        assert_eq!(begun("deepseek", Operation::Messages, "/messages"), "/beta/chat/completions");
        assert_eq!(begun("deepseek", Operation::Proxy, "/user/balance"), "/user/balance");
        assert_eq!(begun("moonshot", Operation::ChatComplete, "/chat/completions"), "/v1/chat/completions");
        let proxy = |slug, prefix, path| request_target(slug, prefix, Operation::Proxy, path);
        assert_eq!(proxy("anthropic", "/v1", "/v1/messages/batches"), "/messages/batches?a=1");
        assert_eq!(proxy("deepseek", "", "/user/balance"), "/user/balance?a=1");
        assert_eq!(proxy("deepseek", "", "/v1/models"), "/v1/models?a=1");
    }
}
