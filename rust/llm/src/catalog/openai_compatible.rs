//! Providers that speak `OpenAI`'s API, one table row each.

use crate::{
    catalog::{
        operation_groups::{
            BATCHES, CHAT, COMPLETIONS, CREATE_RESPONSE, EMBED, FILES, FINE_TUNING, IMAGE_EDIT, IMAGE_GENERATION,
            MESSAGES, OCR, OperationGroup, REALTIME, RERANK, RESPONSES, SPEECH, STORED_RESPONSES, TRANSCRIPTION,
            needs_openai_translation,
        },
        options::{OptionField, Options, forwarded_option, gateway_option},
        own_endpoint::{OwnEndpoint, find_endpoint, path_with_model, write_endpoint_path},
        param_map::{
            CEREBRAS, DEEPSEEK, GROQ, IDENTITY, LEGACY_MAX_TOKENS, LEMONFOX, MISTRAL, MISTRAL_EMBEDDINGS, NSCALE,
            OLLAMA, OPENAI_COMPATIBLE, OPENAI_COMPLETIONS, OPENROUTER, PERPLEXITY, ParamRules, REPETITION_PENALTY,
            REPETITION_PENALTY_COMPLETIONS, SAMBANOVA, SINGLE_CHOICE, TEMPERATURE_UP_TO_ONE, VOYAGE_EMBEDDINGS,
        },
        path_info::PathInfo,
        path_segment::openai_path,
        prefill::{self, PrefillMark, PrefillSupport},
        provider::{ProviderAddress, ProviderCredentials, ProviderFormats, ProviderModels, write_path},
        row::{Credential, ModelPathParser, OperationRules, PriceList, ProviderRow},
    },
    chat::providers::{openai_chat, triton},
    embeddings::embedding_formats,
    error_response::ErrorFallback,
    files::FileStore,
    images::image_formats,
    operation::Operation,
    provider_format::ProviderFormat,
    rerank::rerank_formats,
};

#[derive(Clone, Copy)]
pub(crate) struct OpenAiCompatible {
    row: ProviderRow,
    /// Format of translated requests; `None` selects it by the row's other properties.
    chat_format: Option<&'static ProviderFormat>,
    /// Endpoints whose path or format differs from `OpenAI`'s.
    endpoints: &'static [OwnEndpoint],
    /// Returns the path of an operation that is sent unchanged, if it differs from `OpenAI`'s.
    custom_path: fn(Operation) -> Option<&'static str>,
    /// URL and query of the model list, if it is not below the base URL.
    model_list: Option<(&'static str, &'static str)>,
}

impl ProviderFormats for OpenAiCompatible {
    fn row(&self) -> &ProviderRow {
        &self.row
    }

    fn provider_format(&self, operation: Operation, model: &str) -> Option<&'static ProviderFormat> {
        if let Some(endpoint) = find_endpoint(self.endpoints, operation, model) {
            return Some(endpoint.format);
        }
        let format = || self.chat_format.unwrap_or_else(|| select_chat_format(&self.row, model));
        needs_openai_translation(self.row.native_operations, operation).then(format)
    }

    fn provider_format_for_target(
        &self,
        operation: Operation,
        model: &str,
        options: &Options,
        _prefix: &str,
    ) -> Option<&'static ProviderFormat> {
        if uses_endpoint_completions(operation, options) { None } else { self.provider_format(operation, model) }
    }
}

impl ProviderAddress for OpenAiCompatible {
    fn resolve_base_url(&self, operation: Operation, options: &Options) -> Result<Option<String>, String> {
        if let (Operation::Models, Some((url, _))) = (operation, self.model_list) {
            return Ok(Some(url.to_owned()));
        }
        Ok(options.get(CUSTOM_ENDPOINT_OPTION.key).map(|url| url.trim_end_matches('/').to_owned()))
    }

    fn operation_path(&self, operation: Operation) -> Option<&'static str> {
        let is_translated = || needs_openai_translation(self.row.native_operations, operation);
        (self.custom_path)(operation).or_else(|| is_translated().then(|| openai_path(operation)))
    }

    fn write_request_target(
        &self,
        path_info: &PathInfo<'_>,
        options: &Options,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        if uses_endpoint_completions(path_info.operation, options) {
            let version = if path_info.prefix.ends_with("/v1") { "" } else { self.row.version_segment };
            out.extend_from_slice(format!("{version}/completions").as_bytes());
            return Ok(());
        }
        if write_endpoint_path(self.endpoints, path_info, out)? {
            return Ok(());
        }
        if path_info.operation == Operation::ChatComplete && options.get(FIM_OPTION.key) == Some("true") {
            out.extend_from_slice(FIM_PATH.as_bytes());
            return Ok(());
        }
        match self.model_list {
            Some((_, query)) if path_info.operation == Operation::Models && path_info.query.is_empty() => {
                write_path(self, &PathInfo { query, ..*path_info }, out);
            }
            _ => write_path(self, path_info, out),
        }
        Ok(())
    }
}

impl ProviderCredentials for OpenAiCompatible {}

impl ProviderModels for OpenAiCompatible {}

/// Selects the chat format of a provider whose row sets none. At hosts of many vendors, the model decides. Otherwise it
/// depends on whether streams report their usage on request.
pub(crate) fn select_chat_format(row: &ProviderRow, model: &str) -> &'static ProviderFormat {
    if row.hosts_many_vendors {
        openai_chat::format_for_model(model)
    } else if row.accepts_stream_options() {
        &openai_chat::COMPATIBLE
    } else {
        &openai_chat::USAGE_ALWAYS_STREAMED
    }
}

/// Builder methods for the properties in which a provider differs from most others.
impl OpenAiCompatible {
    pub(crate) const fn with_chat_rules(self, chat: &'static ParamRules) -> Self {
        self.with_rules(OperationRules { chat, ..self.row.param_rules })
    }

    pub(crate) const fn with_completion_rules(self, completions: &'static ParamRules) -> Self {
        self.with_rules(OperationRules { completions, ..self.row.param_rules })
    }

    const fn with_embedding_rules(self, embeddings: &'static ParamRules) -> Self {
        self.with_rules(OperationRules { embeddings, ..self.row.param_rules })
    }

    const fn with_rules(mut self, param_rules: OperationRules) -> Self {
        self.row.param_rules = param_rules;
        self
    }

    /// Returns the row of a provider that expects its API key elsewhere than in a bearer token.
    const fn with_credential(mut self, credential: Credential) -> Self {
        self.row.credential = credential;
        self
    }

    pub(crate) const fn with_options(mut self, options: &'static [OptionField]) -> Self {
        self.row.options = options;
        self
    }

    pub(crate) const fn with_file_store(mut self, store: FileStore) -> Self {
        self.row.file_store = Some(store);
        self
    }

    pub(crate) const fn with_endpoints(self, endpoints: &'static [OwnEndpoint]) -> Self {
        Self { endpoints, ..self }
    }

    const fn with_chat_format(self, format: &'static ProviderFormat) -> Self {
        Self { chat_format: Some(format), ..self }
    }

    const fn with_custom_paths(self, custom_path: fn(Operation) -> Option<&'static str>) -> Self {
        Self { custom_path, ..self }
    }

    const fn with_model_list_at(self, url: &'static str, query: &'static str) -> Self {
        Self { model_list: Some((url, query)), ..self }
    }

    const fn without_model_list(mut self) -> Self {
        self.row.has_model_list = false;
        self
    }

    const fn with_max_stop_sequences(mut self, max_count: Option<usize>) -> Self {
        self.row.max_stop_sequences = max_count;
        self
    }

    const fn with_prefill(mut self, prefill: PrefillSupport) -> Self {
        self.row.prefill = prefill;
        self
    }

    /// Returns the row for a provider that the public price list has under another name.
    pub(crate) const fn with_price_list(mut self, price_list: PriceList) -> Self {
        self.row.price_list = price_list;
        self
    }

    /// Returns the row for a provider whose streams always end with usage, so that requests need not ask for it.
    const fn with_usage_always_streamed(mut self) -> Self {
        self.row.always_streams_usage = true;
        self
    }

    /// Returns the row for a provider that returns only `OpenAI`'s finish reasons.
    const fn with_openai_finish_reasons(mut self) -> Self {
        self.row.has_custom_finish_reasons = false;
        self
    }

    /// Returns the row for the mock provider, whose address comes from a setting.
    const fn with_mock_address(mut self) -> Self {
        self.row.has_mock_address = true;
        self
    }

    const fn with_many_vendors(mut self) -> Self {
        self.row.hosts_many_vendors = true;
        self
    }

    const fn with_required_header(mut self, name: &'static str, value: &'static str) -> Self {
        self.row.required_header = Some((name, value));
        self
    }

    const fn with_error_fallback(mut self, fallback: ErrorFallback) -> Self {
        self.row.error_fallback = fallback;
        self
    }

    const fn with_model_in_path(mut self, parser: ModelPathParser) -> Self {
        self.row.model_in_path = parser;
        self
    }
}

/// Option with the URL of a customer's dedicated endpoint.
const CUSTOM_ENDPOINT_OPTION: OptionField = gateway_option("huggingface_base_url", "huggingface-base-url");

/// Returns true if completions go to a dedicated endpoint; the provider's shared API supports chat only.
fn uses_endpoint_completions(operation: Operation, options: &Options) -> bool {
    operation == Operation::Complete && options.get(CUSTOM_ENDPOINT_OPTION.key).is_some()
}

/// Option that sends chat requests to the fill-in-the-middle endpoint.
const FIM_OPTION: OptionField = gateway_option("mistral_fim_completion", "mistral-fim-completion");
const FIM_PATH: &str = "/fim/completions";

/// Options that identify the client application, for providers that list applications.
const APP_OPTIONS: [OptionField; 2] =
    [forwarded_option("http_referer", "http-referer"), forwarded_option("x_title", "x-title")];

/// Endpoint of a model list that is a bare JSON array.
static MODEL_ARRAY_ENDPOINTS: [OwnEndpoint; 1] = [OwnEndpoint::for_model_list(&openai_chat::COMPATIBLE, None)];

static HYPERBOLIC_ENDPOINTS: [OwnEndpoint; 1] =
    [OwnEndpoint::for_images(&image_formats::HYPERBOLIC, |info| path_with_model(info, "/v1/image/generation"))];

static SILICONFLOW_ENDPOINTS: [OwnEndpoint; 1] =
    [OwnEndpoint::for_images(&image_formats::SILICONFLOW, |info| path_with_model(info, "/images/generations"))];

/// Endpoint of Triton's generate API, which completes texts.
static TRITON_ENDPOINTS: [OwnEndpoint; 1] = [OwnEndpoint {
    applies: |operation, _| operation == Operation::Complete,
    format: &triton::TRITON,
    path: Some(|info| Ok(if info.is_streaming { "/generate_stream" } else { "/generate" }.into())),
}];

/// Endpoints of Voyage: reranking in its own format, and its API for models that embed images.
static VOYAGE_ENDPOINTS: [OwnEndpoint; 2] = [
    OwnEndpoint { applies: |operation, _| operation == Operation::Rerank, format: &rerank_formats::VOYAGE, path: None },
    OwnEndpoint {
        applies: |operation, model| operation.is_embedding() && model.contains("multimodal"),
        format: &embedding_formats::VOYAGE_MULTIMODAL,
        path: Some(|_| Ok("/multimodalembeddings".into())),
    },
];

/// Returns the row of a provider. Most providers also return finish reasons that `OpenAI` does not define. These are
/// their own, such as `eos`, `end_turn` or `model_length`, or come from the inference servers that host their models.
pub(crate) const fn row(
    slug: &'static str,
    base_url: &'static str,
    version: &'static str,
    offers: &'static [OperationGroup],
) -> OpenAiCompatible {
    let row = ProviderRow {
        version_segment: version,
        param_rules: OperationRules {
            chat: &OPENAI_COMPATIBLE,
            completions: &OPENAI_COMPLETIONS,
            embeddings: &IDENTITY,
            messages: &IDENTITY,
        },
        has_custom_finish_reasons: true,
        ..ProviderRow::new(slug, base_url, offers)
    };
    OpenAiCompatible { row, chat_format: None, endpoints: &[], custom_path: |_| None, model_list: None }
}

// Columns: slug, base URL, version segment before an operation's path, offered operations.
// The version segment is "" if the base URL contains the version, or if the API has none. It is "/v1" if the version
// follows the base URL.
pub(crate) static ROWS: &[OpenAiCompatible] = &[
    row("302ai", "https://api.302.ai", "/v1", &[CHAT]).with_chat_rules(&LEGACY_MAX_TOKENS),
    row("aibadgr", "https://aibadgr.com/api/v1", "", &[CHAT]),
    row("ai21", "https://api.ai21.com/studio/v1", "", &[CHAT]).with_chat_rules(&TEMPERATURE_UP_TO_ONE),
    row("anyscale", "https://api.endpoints.anyscale.com/v1", "", &[CHAT, COMPLETIONS, EMBED])
        .with_chat_rules(&LEGACY_MAX_TOKENS),
    // The model list belongs to Bytez's own API. It exceeds the body limit, so only models for chat are requested.
    row("bytez", "https://api.bytez.com/models/v2/openai/v1", "", &[CHAT])
        .with_credential(Credential::Scheme("Key"))
        .with_chat_rules(&LEGACY_MAX_TOKENS)
        .with_error_fallback(ErrorFallback::StatusAsType)
        .with_model_list_at("https://api.bytez.com/models/v2/list", "task=chat"),
    row("cerebras", "https://api.cerebras.ai/v1", "", &[CHAT])
        .with_chat_rules(&CEREBRAS)
        .with_usage_always_streamed()
        .with_openai_finish_reasons(),
    row("cometapi", "https://api.cometapi.com/v1", "", &[CHAT, EMBED]),
    row("dashscope", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "", &[CHAT, EMBED])
        .with_prefill(PrefillSupport::new(prefill::is_non_thinking_qwen, PrefillMark::MessageField("partial"))),
    row("deepbricks", "https://api.deepbricks.ai/v1", "", &[CHAT, IMAGE_GENERATION])
        .with_chat_rules(&LEGACY_MAX_TOKENS),
    row("deepgram", "https://api.deepgram.com/v1", "", &[]).with_credential(Credential::Scheme("Token")),
    row("deepinfra", "https://api.deepinfra.com/v1/openai", "", &[CHAT]).with_chat_rules(&SINGLE_CHOICE),
    row("deepseek", "https://api.deepseek.com", "/v1", &[CHAT])
        .with_max_stop_sequences(Some(16))
        .with_chat_rules(&DEEPSEEK)
        .with_chat_format(&openai_chat::REPLAYS_REASONING)
        .with_prefill(PrefillSupport {
            version_segment: Some("/beta"),
            ..PrefillSupport::new(prefill::any_model, PrefillMark::MessageField("prefix"))
        }),
    // The whole path is the model name.
    row("fal-ai", "https://fal.run", "", &[])
        .with_credential(Credential::Scheme("Key"))
        .without_model_list()
        .with_model_in_path(|path| path.strip_prefix('/')),
    row("featherless-ai", "https://api.featherless.ai/v1", "", &[CHAT, COMPLETIONS]),
    // Azure's API: it drops parameters that a model does not know instead of rejecting the request.
    row("github", "https://models.inference.ai.azure.com", "", &[CHAT, COMPLETIONS, EMBED])
        .with_endpoints(&MODEL_ARRAY_ENDPOINTS)
        .with_many_vendors()
        .with_required_header("extra-parameters", "drop"),
    row("groq", "https://api.groq.com/openai/v1", "", &[CHAT, CREATE_RESPONSE, SPEECH, TRANSCRIPTION])
        .with_chat_rules(&GROQ)
        .with_openai_finish_reasons()
        .with_prefill(PrefillSupport::new(prefill::is_llama_chat_model, PrefillMark::Implicit)),
    row("huggingface", "https://router.huggingface.co", "/v1", &[CHAT])
        .with_chat_rules(&LEGACY_MAX_TOKENS)
        .with_options(&[CUSTOM_ENDPOINT_OPTION])
        .with_error_fallback(ErrorFallback::StatusAsCode),
    row("hyperbolic", "https://api.hyperbolic.xyz", "/v1", &[CHAT]).with_endpoints(&HYPERBOLIC_ENDPOINTS),
    row("inference-net", "https://api.inference.net/v1", "", &[CHAT]),
    row("iointelligence", "https://api.intelligence.io.solutions/api/v1", "", &[CHAT, EMBED, CREATE_RESPONSE]),
    row("jina", "https://api.jina.ai/v1", "", &[EMBED, RERANK]),
    row("kluster-ai", "https://api.kluster.ai/v1", "", &[CHAT, EMBED, FILES, BATCHES]),
    row("krutrim", "https://cloud.olakrutrim.com/v1", "", &[CHAT]),
    row("lambda", "https://api.lambdalabs.com/v1", "", &[CHAT, COMPLETIONS]),
    row("lemonfox-ai", "https://api.lemonfox.ai/v1", "", &[CHAT, IMAGE_GENERATION, TRANSCRIPTION])
        .with_chat_rules(&LEMONFOX),
    row("lepton", "https://api.lepton.ai", "/api/v1", &[CHAT, COMPLETIONS, TRANSCRIPTION])
        .with_chat_rules(&LEGACY_MAX_TOKENS),
    row("lightning-ai", "https://lightning.ai/api/v1", "", &[CHAT]),
    row("lingyi", "https://api.lingyiwanwu.com", "/v1", &[CHAT]).with_chat_rules(&LEGACY_MAX_TOKENS),
    row("matterai", "https://api.matterai.so/v1", "", &[CHAT]),
    row("meshy", "https://api.meshy.ai/openapi/v1", "", &[]).without_model_list(),
    row("milvus", "", "", &[]).without_model_list(),
    row("minimax", "https://api.minimax.io/v1", "", &[CHAT]),
    row("mistral-ai", "https://api.mistral.ai/v1", "", &[CHAT, EMBED, OCR, SPEECH, TRANSCRIPTION, FILES])
        .with_price_list(PriceList::named("mistral"))
        .with_max_stop_sequences(None)
        .with_chat_rules(&MISTRAL)
        .with_embedding_rules(&MISTRAL_EMBEDDINGS)
        .with_options(&[FIM_OPTION])
        .with_usage_always_streamed()
        .with_prefill(PrefillSupport {
            may_repeat_prefill: true,
            ..PrefillSupport::new(prefill::any_model, PrefillMark::MessageField("prefix"))
        }),
    // The mock provider of this project. It supports both OpenAI's and Anthropic's API format; a setting holds its
    // address.
    row("mock", "", "", MOCK_OPERATIONS)
        .with_chat_rules(&IDENTITY)
        .with_completion_rules(&IDENTITY)
        .with_options(MOCK_OPTIONS)
        .with_openai_finish_reasons()
        .with_mock_address()
        .with_prefill(MOCK_PREFILL),
    row("modal", "https://api.modal.com/v1", "", &[CHAT, COMPLETIONS]),
    row("monsterapi", "https://llm.monsterapi.ai/v1", "", &[CHAT]).with_chat_rules(&TEMPERATURE_UP_TO_ONE),
    row("moonshot", "https://api.moonshot.cn", "/v1", &[CHAT])
        .with_price_list(PriceList::named("moonshotai"))
        .with_chat_rules(&LEGACY_MAX_TOKENS)
        .with_chat_format(&openai_chat::REPLAYS_REASONING)
        .with_prefill(PrefillSupport::new(prefill::any_model, PrefillMark::MessageField("partial"))),
    row("ncompass", "https://api.ncompass.tech/v1", "", &[CHAT]).with_chat_rules(&SINGLE_CHOICE),
    row("nebius", "https://api.studio.nebius.ai/v1", "", &[CHAT, COMPLETIONS, EMBED]),
    row("nextbit", "https://api.nextbit256.com/v1", "", &[CHAT, COMPLETIONS]),
    row("novita-ai", "https://api.novita.ai/v3/openai", "/v1", &[CHAT, COMPLETIONS])
        .with_price_list(PriceList::named("novita"))
        .with_chat_rules(&LEGACY_MAX_TOKENS)
        .with_completion_rules(&REPETITION_PENALTY_COMPLETIONS),
    row("nscale", "https://inference.api.nscale.com/v1", "", &[CHAT, IMAGE_GENERATION]).with_chat_rules(&NSCALE),
    // Runs on the user's own machine; a custom host sets the address.
    row("ollama", "", "/v1", &[CHAT, EMBED]).with_chat_rules(&OLLAMA).with_max_stop_sequences(None),
    row(
        "openrouter",
        "https://openrouter.ai/api",
        "/v1",
        &[CHAT, CREATE_RESPONSE, EMBED, RERANK, SPEECH, TRANSCRIPTION],
    )
    .with_chat_rules(&OPENROUTER)
    .with_price_list(PriceList { has_variants: true, ..PriceList::BY_SLUG })
    .with_options(&APP_OPTIONS)
    .with_chat_format(&openai_chat::OPENROUTER)
    .with_prefill(PrefillSupport::new(prefill::is_claude_up_to_4_5, PrefillMark::Implicit)),
    row("ovhcloud", "https://oai.endpoints.kepler.ai.cloud.ovh.net/v1", "", &[CHAT]),
    // PaLM's models are retired; the rest of its API is available as pass-through.
    row("palm", "https://generativelanguage.googleapis.com/v1beta3", "", &[])
        .with_credential(Credential::Header("x-goog-api-key")),
    // Perplexity has a version segment for responses and embeddings only.
    row("perplexity-ai", "https://api.perplexity.ai", "", &[CHAT, CREATE_RESPONSE, EMBED])
        .with_price_list(PriceList::named("perplexity"))
        .with_chat_rules(&PERPLEXITY)
        .without_model_list()
        .with_usage_always_streamed()
        .with_custom_paths(|operation| match operation {
            Operation::CreateModelResponse => Some("/v1/responses"),
            operation if operation.is_embedding() => Some("/v1/embeddings"),
            _ => None,
        }),
    row("qdrant", "", "", &[]).with_credential(Credential::Header("api-key")).without_model_list(),
    row("recraft-ai", "https://external.api.recraft.ai/v1", "", &[IMAGE_GENERATION]).without_model_list(),
    row("reka-ai", "https://api.reka.ai/v1", "", &[CHAT])
        .with_credential(Credential::Header("x-api-key"))
        .with_chat_rules(&LEGACY_MAX_TOKENS),
    row("replicate", "https://api.replicate.com/v1", "", &[]),
    row("sambanova", "https://api.sambanova.ai", "/v1", &[CHAT]).with_chat_rules(&SAMBANOVA),
    row("scenario-ai", "https://api.cloud.scenario.com/v1", "", &[])
        .with_credential(Credential::Scheme("Basic"))
        .without_model_list(),
    row("siliconflow", "https://api.siliconflow.cn/v1", "", &[CHAT, EMBED, RERANK])
        .with_chat_rules(&LEGACY_MAX_TOKENS)
        .with_endpoints(&SILICONFLOW_ENDPOINTS)
        .with_prefill(PrefillSupport {
            may_repeat_prefill: true,
            ..PrefillSupport::new(prefill::is_non_reasoning_model, PrefillMark::RequestField("prefix"))
        }),
    row("together-ai", "https://api.together.xyz", "/v1", &[CHAT, COMPLETIONS, EMBED])
        .with_price_list(PriceList::named("together"))
        .with_chat_rules(&REPETITION_PENALTY)
        .with_completion_rules(&REPETITION_PENALTY_COMPLETIONS)
        .with_usage_always_streamed()
        .with_endpoints(&MODEL_ARRAY_ENDPOINTS),
    row("tripo3d", "https://api.tripo3d.ai/v2/openapi", "", &[]).without_model_list(),
    // Each server and model has its own address, so there is no base URL.
    row("triton", "", "", &[]).without_model_list().with_endpoints(&TRITON_ENDPOINTS),
    row("upstage", "https://api.upstage.ai/v1/solar", "", &[CHAT, EMBED]),
    // Rerank is translated to Voyage's own format, so it is not listed here.
    row("voyage", "https://api.voyageai.com/v1", "", &[EMBED])
        .with_embedding_rules(&VOYAGE_EMBEDDINGS)
        .without_model_list()
        .with_endpoints(&VOYAGE_ENDPOINTS),
    row(
        "x-ai",
        "https://api.x.ai/v1",
        "",
        &[CHAT, COMPLETIONS, EMBED, CREATE_RESPONSE, STORED_RESPONSES, IMAGE_GENERATION, IMAGE_EDIT, FILES, BATCHES],
    ),
    row("z-ai", "https://api.z.ai/api/paas/v4", "", &[CHAT]).with_chat_format(&openai_chat::REPLAYS_REASONING),
    row("zhipu", "https://open.bigmodel.cn/api/paas/v4", "", &[CHAT, EMBED])
        .with_price_list(PriceList::named("zhipuai"))
        .with_chat_rules(&LEGACY_MAX_TOKENS)
        .with_chat_format(&openai_chat::SWITCHES_THINKING),
];

/// Options of `OpenAI` and Anthropic, which the mock provider accepts as well.
const MOCK_OPTIONS: &[OptionField] = &[
    forwarded_option("openai_organization", "openai-organization"),
    forwarded_option("openai_project", "openai-project"),
    forwarded_option("openai_beta", "openai-beta"),
    forwarded_option("anthropic_version", "anthropic-version"),
    forwarded_option("anthropic_beta", "anthropic-beta"),
];

/// The mock provider's behaviour depends on the model name.
const MOCK_PREFILL: PrefillSupport = PrefillSupport {
    supports_responses: true,
    ..PrefillSupport::new(|model| model.contains("prefix=on"), PrefillMark::Implicit)
};

const MOCK_OPERATIONS: &[OperationGroup] = &[
    CHAT,
    MESSAGES,
    RESPONSES,
    EMBED,
    COMPLETIONS,
    IMAGE_GENERATION,
    IMAGE_EDIT,
    SPEECH,
    TRANSCRIPTION,
    FILES,
    BATCHES,
    FINE_TUNING,
    OCR,
    RERANK,
    REALTIME,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_the_fim_endpoint_only_if_the_option_is_set() {
        let row = ROWS.iter().find(|row| row.row.slug == "mistral-ai").unwrap();
        let target = |value, operation| {
            let path_options = crate::catalog::path_info::PathOptions::default();
            let (path, query, prefix, model, user) = ("/chat/completions", "", "/v1", "codestral-latest", "");
            let path_info = PathInfo {
                operation,
                path,
                query,
                prefix,
                model,
                user,
                is_streaming: false,
                has_prefill: false,
                path_options,
            };
            let mut out = Vec::new();
            let options = Options::from_pairs(row.row.options, &[("mistral_fim_completion", value)]);
            row.write_request_target(&path_info, &options, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(target("true", Operation::ChatComplete), "/fim/completions");
        assert_eq!(target("false", Operation::ChatComplete), "/chat/completions");
        assert_eq!(target("true", Operation::Messages), "/chat/completions");
    }

    #[test]
    fn custom_endpoint_replaces_the_base_url() {
        let row = ROWS.iter().find(|row| row.row.slug == "huggingface").unwrap();
        let base = |endpoint: Option<&str>| {
            let mut options = Options::default();
            if let Some(endpoint) = endpoint {
                options.insert_if_absent(CUSTOM_ENDPOINT_OPTION, endpoint.into());
            }
            row.resolve_base_url(Operation::ChatComplete, &options).unwrap()
        };
        assert_eq!(base(None), None);
        assert_eq!(base(Some("https://mine.example/")).as_deref(), Some("https://mine.example"));
        let completes = |pairs: &[(&str, &str)], prefix: &'static str| {
            let options = Options::from_pairs(row.row.options, pairs);
            let path_info = PathInfo { prefix, ..PathInfo::for_test(Operation::Complete, "/completions", "m") };
            let mut out = Vec::new();
            row.write_request_target(&path_info, &options, &mut out).unwrap();
            let is_translated = row.provider_format_for_target(Operation::Complete, "m", &options, "").is_some();
            (String::from_utf8(out).unwrap(), is_translated)
        };
        let endpoint_option = [("huggingface_base_url", "https://mine.example")];
        assert_eq!(completes(&endpoint_option, ""), ("/v1/completions".into(), false));
        assert_eq!(completes(&endpoint_option, "/v1"), ("/completions".into(), false));
        assert_eq!(completes(&[], ""), ("/v1/chat/completions".into(), true));
    }
}
