//! Providers that speak `OpenAI`'s API, one table row each.

use super::{
    BATCHES, CHAT, COMPLETIONS, CREATE_RESPONSE, Credential, EMBED, FILES, FINE_TUNING, IMAGE_EDIT, IMAGE_GENERATION,
    MESSAGES, OCR, OperationGroup, OptionField, Options, PathInfo, Provider, REALTIME, RERANK, RESPONSES, SPEECH,
    STORED_RESPONSES, TRANSCRIPTION, needs_openai_translation, openai_path,
    options::{forwarded_option, gateway_option},
    write_path,
};
use crate::catalog::{
    param_map::{
        self, CEREBRAS, DEEPSEEK, GROQ, IDENTITY, LEGACY_MAX_TOKENS, LEMONFOX, MISTRAL, MISTRAL_EMBEDDINGS, NSCALE,
        OLLAMA, OPENAI_COMPATIBLE, OPENAI_COMPLETIONS, OPENROUTER, PERPLEXITY, ParamRules, REPETITION_PENALTY,
        REPETITION_PENALTY_COMPLETIONS, SAMBANOVA, SINGLE_CHOICE, TEMPERATURE_UP_TO_ONE, VOYAGE_EMBEDDINGS,
    },
    path_segment,
};
use crate::{
    chat::providers::{ProviderFormat, openai_chat, triton},
    embeddings::embedding_formats,
    images::image_formats::{self, ImageFormat},
    operation::Operation,
    rerank::rerank_formats,
};

#[derive(Clone, Copy)]
pub(crate) struct OpenAiCompatible {
    slug: &'static str,
    base_url: &'static str,
    version: &'static str,
    offers: &'static [OperationGroup],
    options: &'static [OptionField],
    credential: Credential,
    /// Format and path of image requests, if they differ from `OpenAI`'s.
    image_api: Option<(&'static ImageFormat, &'static str)>,
    /// Parameter rules for chat, completions and embeddings, in this order.
    param_rules: [&'static ParamRules; 3],
}

impl Provider for OpenAiCompatible {
    fn slug(&self) -> &'static str {
        self.slug
    }

    fn base_url(&self) -> &'static str {
        self.base_url
    }

    fn version_segment(&self) -> &'static str {
        self.version
    }

    fn native_operations(&self) -> &'static [OperationGroup] {
        self.offers
    }

    fn options(&self) -> &'static [OptionField] {
        self.options
    }

    fn resolve_base_url(&self, operation: Operation, options: &Options) -> Result<Option<String>, String> {
        if operation == Operation::Models && self.slug == "bytez" {
            // The model list belongs to Bytez's own API, not to its OpenAI-compatible one.
            return Ok(Some("https://api.bytez.com/models/v2/list".to_owned()));
        }
        Ok(options.get(CUSTOM_ENDPOINT_OPTION.key).map(|url| url.trim_end_matches('/').to_owned()))
    }

    fn accepts_stream_options(&self, _version: Option<&str>, _options: &Options) -> bool {
        self.accepts_usage_options()
    }

    fn param_rules(&self, operation: Operation) -> &'static ParamRules {
        let [chat, complete, embed] = self.param_rules;
        match operation {
            Operation::Complete => complete,
            Operation::Embed => embed,
            _ => chat,
        }
    }

    fn param_rules_for_model(&self, operation: Operation, model: &str) -> &'static ParamRules {
        let usual = self.param_rules(operation);
        if self.slug == "github" { param_map::multi_vendor_rules(usual, operation, model) } else { usual }
    }

    fn has_custom_finish_reasons(&self) -> bool {
        !OPENAI_FINISH_REASONS_ONLY.contains(&self.slug)
    }

    fn operation_path(&self, operation: Operation) -> Option<&'static str> {
        let is_versioned = operation == Operation::CreateModelResponse && self.slug == "perplexity-ai";
        // Perplexity has a version segment for this operation only.
        let versioned_path = is_versioned.then_some("/v1/responses");
        versioned_path.or_else(|| needs_openai_translation(self.offers, operation).then(|| openai_path(operation)))
    }

    fn provider_format(&self, operation: Operation, model: &str) -> Option<&'static dyn ProviderFormat> {
        match self.image_api {
            _ if operation == Operation::Models && ARRAY_MODEL_LISTS.contains(&self.slug) => {
                Some(&openai_chat::COMPATIBLE)
            }
            _ if self.uses_triton_generate(operation) => Some(&triton::TritonFormat),
            _ if operation == Operation::Rerank && self.slug == "voyage" => Some(&rerank_formats::VOYAGE),
            _ if operation.is_embedding() && self.is_multimodal_embedding(model) => {
                Some(&embedding_formats::VOYAGE_MULTIMODAL)
            }
            Some((painting, _)) if operation == Operation::ImageGenerate => Some(painting),
            _ if self.slug == "github" => needs_openai_translation(self.offers, operation)
                .then(|| openai_chat::format_for_model(model) as &dyn ProviderFormat),
            _ if REQUIRES_REASONING_CONTENT.contains(&self.slug) => {
                needs_openai_translation(self.offers, operation).then_some(&openai_chat::REPLAYS_REASONING)
            }
            _ if self.slug == "openrouter" => {
                needs_openai_translation(self.offers, operation).then_some(&openai_chat::OPENROUTER)
            }
            _ if !self.accepts_usage_options() => {
                needs_openai_translation(self.offers, operation).then_some(&openai_chat::USAGE_ALWAYS_STREAMED)
            }
            _ => needs_openai_translation(self.offers, operation).then_some(&openai_chat::COMPATIBLE),
        }
    }

    fn provider_format_for_target(
        &self,
        operation: Operation,
        model: &str,
        (options, _prefix): (&Options, &str),
    ) -> Option<&'static dyn ProviderFormat> {
        if uses_endpoint_completions(operation, options) { None } else { self.provider_format(operation, model) }
    }

    fn write_request_target(
        &self,
        path_info: &PathInfo<'_>,
        options: &Options,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        match self.image_api {
            _ if uses_endpoint_completions(path_info.operation, options) => {
                let version = if path_info.prefix.ends_with("/v1") { "" } else { self.version };
                out.extend_from_slice(format!("{version}/completions").as_bytes());
            }
            Some((_, path)) if path_info.operation == Operation::ImageGenerate => {
                // Slashes in model names stay unescaped in this path.
                let model: Vec<_> =
                    path_info.model.split('/').map(path_segment::encode_model).collect::<Result<_, _>>()?;
                out.extend_from_slice(self.version.as_bytes());
                out.extend_from_slice(path.replace(MODEL_PLACEHOLDER, &model.join("/")).as_bytes());
            }
            _ if path_info.operation == Operation::Models && self.slug == "bytez" && path_info.query.is_empty() => {
                // The complete model list exceeds the body limit, so only models for chat are requested.
                write_path(self, &PathInfo { query: "task=chat", ..*path_info }, out);
            }
            _ if path_info.operation.is_embedding() && self.is_multimodal_embedding(path_info.model) => {
                let version = if path_info.prefix.ends_with("/v1") { "" } else { self.version };
                out.extend_from_slice(format!("{version}/multimodalembeddings").as_bytes());
            }
            _ if self.uses_triton_generate(path_info.operation) => {
                out.extend_from_slice(if path_info.is_streaming { b"/generate_stream" } else { b"/generate" });
            }
            _ if path_info.operation == Operation::ChatComplete && options.get(FIM_OPTION.key) == Some("true") => {
                out.extend_from_slice(FIM_PATH.as_bytes());
            }
            _ => write_path(self, path_info, out),
        }
        Ok(())
    }

    fn model_in_path<'p>(&self, path: &'p str) -> Option<&'p str> {
        match self.slug {
            // The whole path is the model name.
            "fal-ai" => path.strip_prefix('/'),
            _ => path_segment::segment_after(path, path_segment::MODEL_PATH_MARKERS),
        }
    }

    fn required_header(&self, _prefix: &str) -> Option<(&'static str, &'static str)> {
        // GitHub uses Azure's API: drops parameters that a model does not know instead of rejecting the request.
        (self.slug == "github").then_some(("extra-parameters", "drop"))
    }

    fn credential(&self, _key: &str, _prefix: &str) -> Credential {
        self.credential
    }
}

impl OpenAiCompatible {
    /// Returns this row with other parameter rules for chat.
    pub(crate) const fn with_chat_rules(self, chat: &'static ParamRules) -> Self {
        Self { param_rules: [chat, self.param_rules[1], self.param_rules[2]], ..self }
    }

    /// Returns this row with other parameter rules for completions.
    pub(crate) const fn with_completion_rules(self, rules: &'static ParamRules) -> Self {
        Self { param_rules: [self.param_rules[0], rules, self.param_rules[2]], ..self }
    }

    /// Returns this row with other parameter rules for embeddings.
    const fn with_embedding_rules(self, rules: &'static ParamRules) -> Self {
        Self { param_rules: [self.param_rules[0], self.param_rules[1], rules], ..self }
    }

    /// Returns true if a stream reports its usage when `stream_options` ask for it.
    fn accepts_usage_options(&self) -> bool {
        !ALWAYS_REPORTS_USAGE.contains(&self.slug) && self.param_rules[0].accepts_field("stream_options")
    }

    /// Returns true if the model embeds images through Voyage's multimodal API.
    fn is_multimodal_embedding(&self, model: &str) -> bool {
        self.slug == "voyage" && model.contains("multimodal")
    }

    /// Returns true if completions use Triton's generate API.
    fn uses_triton_generate(&self, operation: Operation) -> bool {
        self.slug == "triton" && operation == Operation::Complete
    }
}

/// Providers whose model list is a bare JSON array.
const ARRAY_MODEL_LISTS: [&str; 2] = ["github", "together-ai"];

/// Providers whose streams always end with usage, so it is not requested. Mistral also rejects unknown parameters.
const ALWAYS_REPORTS_USAGE: [&str; 4] = ["cerebras", "mistral-ai", "perplexity-ai", "together-ai"];

/// Providers that expect `reasoning_content` of earlier turns to be sent back. They may reject a turn with tool calls
/// if it is missing.
const REQUIRES_REASONING_CONTENT: [&str; 3] = ["deepseek", "moonshot", "z-ai"];

/// Providers that return only `OpenAI`'s finish reasons. Others also return `insufficient_system_resource`,
/// `eos_token`, `model_length`, `error`, `eos`, `end_turn`, `sensitive`, `abort`, `load`, or values of the inference
/// servers that host their models.
const OPENAI_FINISH_REASONS_ONLY: [&str; 3] = ["cerebras", "groq", "mock"];

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

/// Placeholder for the model name in an image path.
const MODEL_PLACEHOLDER: &str = ":model";

/// Returns a row whose API key is sent in another way than as a bearer token.
const fn with_credential(row: OpenAiCompatible, credential: Credential) -> OpenAiCompatible {
    OpenAiCompatible { credential, ..row }
}

/// Returns a row with an image API of its own.
pub(crate) const fn with_image_api(
    row: OpenAiCompatible,
    painting: &'static ImageFormat,
    path: &'static str,
) -> OpenAiCompatible {
    OpenAiCompatible { image_api: Some((painting, path)), ..row }
}

pub(crate) const fn row(
    slug: &'static str,
    base_url: &'static str,
    version: &'static str,
    offers: &'static [OperationGroup],
) -> OpenAiCompatible {
    let (credential, wordings) = (Credential::Bearer, [&OPENAI_COMPATIBLE, &OPENAI_COMPLETIONS, &IDENTITY]);
    OpenAiCompatible {
        slug,
        base_url,
        version,
        offers,
        options: &[],
        credential,
        image_api: None,
        param_rules: wordings,
    }
}

// Columns: slug, base URL, version segment before an operation's path, offered operations.
pub(crate) static ROWS: &[OpenAiCompatible] = &[
    row("302ai", "https://api.302.ai", "/v1", &[CHAT]).with_chat_rules(&LEGACY_MAX_TOKENS),
    row("aibadgr", "https://aibadgr.com/api/v1", "", &[CHAT]),
    row("ai21", "https://api.ai21.com/studio/v1", "", &[CHAT]).with_chat_rules(&TEMPERATURE_UP_TO_ONE),
    row("anyscale", "https://api.endpoints.anyscale.com/v1", "", &[CHAT, COMPLETIONS, EMBED])
        .with_chat_rules(&LEGACY_MAX_TOKENS),
    with_credential(row("bytez", "https://api.bytez.com/models/v2/openai/v1", "", &[CHAT]), Credential::Scheme("Key"))
        .with_chat_rules(&LEGACY_MAX_TOKENS),
    row("cerebras", "https://api.cerebras.ai/v1", "", &[CHAT]).with_chat_rules(&CEREBRAS),
    row("cometapi", "https://api.cometapi.com/v1", "", &[CHAT, EMBED]),
    row("dashscope", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "", &[CHAT, EMBED]),
    row("deepbricks", "https://api.deepbricks.ai/v1", "", &[CHAT, IMAGE_GENERATION])
        .with_chat_rules(&LEGACY_MAX_TOKENS),
    with_credential(row("deepgram", "https://api.deepgram.com/v1", "", &[]), Credential::Scheme("Token")),
    row("deepinfra", "https://api.deepinfra.com/v1/openai", "", &[CHAT]).with_chat_rules(&SINGLE_CHOICE),
    row("deepseek", "https://api.deepseek.com", "/v1", &[CHAT]).with_chat_rules(&DEEPSEEK),
    with_credential(row("fal-ai", "https://fal.run", "", &[]), Credential::Scheme("Key")),
    row("featherless-ai", "https://api.featherless.ai/v1", "", &[CHAT, COMPLETIONS]),
    row("github", "https://models.inference.ai.azure.com", "", &[CHAT, COMPLETIONS, EMBED]),
    row("groq", "https://api.groq.com/openai/v1", "", &[CHAT, CREATE_RESPONSE, SPEECH, TRANSCRIPTION])
        .with_chat_rules(&GROQ),
    OpenAiCompatible {
        options: &[CUSTOM_ENDPOINT_OPTION],
        ..row("huggingface", "https://router.huggingface.co", "/v1", &[CHAT]).with_chat_rules(&LEGACY_MAX_TOKENS)
    },
    with_image_api(
        row("hyperbolic", "https://api.hyperbolic.xyz", "/v1", &[CHAT]),
        &image_formats::HYPERBOLIC,
        "/image/generation",
    ),
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
    row("meshy", "https://api.meshy.ai/openapi/v1", "", &[]),
    row("milvus", "", "", &[]),
    row("minimax", "https://api.minimax.io/v1", "", &[CHAT]),
    OpenAiCompatible {
        options: &[FIM_OPTION],
        ..row("mistral-ai", "https://api.mistral.ai/v1", "", &[CHAT, EMBED, OCR])
            .with_chat_rules(&MISTRAL)
            .with_embedding_rules(&MISTRAL_EMBEDDINGS)
    },
    // The mock provider of this project. It supports both OpenAI's and Anthropic's API format; a setting holds its
    // address.
    OpenAiCompatible {
        options: MOCK_OPTIONS,
        ..row("mock", "", "", MOCK_OPERATIONS).with_chat_rules(&IDENTITY).with_completion_rules(&IDENTITY)
    },
    row("modal", "https://api.modal.com/v1", "", &[CHAT, COMPLETIONS]),
    row("monsterapi", "https://llm.monsterapi.ai/v1", "", &[CHAT]).with_chat_rules(&TEMPERATURE_UP_TO_ONE),
    row("moonshot", "https://api.moonshot.cn", "/v1", &[CHAT]).with_chat_rules(&LEGACY_MAX_TOKENS),
    row("ncompass", "https://api.ncompass.tech/v1", "", &[CHAT]).with_chat_rules(&SINGLE_CHOICE),
    row("nebius", "https://api.studio.nebius.ai/v1", "", &[CHAT, COMPLETIONS, EMBED]),
    row("nextbit", "https://api.nextbit256.com/v1", "", &[CHAT, COMPLETIONS]),
    row("novita-ai", "https://api.novita.ai/v3/openai", "/v1", &[CHAT, COMPLETIONS])
        .with_chat_rules(&LEGACY_MAX_TOKENS)
        .with_completion_rules(&REPETITION_PENALTY_COMPLETIONS),
    row("nscale", "https://inference.api.nscale.com/v1", "", &[CHAT, IMAGE_GENERATION]).with_chat_rules(&NSCALE),
    // Runs on the user's own machine; a custom host sets the address.
    row("ollama", "", "/v1", &[CHAT, EMBED]).with_chat_rules(&OLLAMA),
    OpenAiCompatible {
        options: &APP_OPTIONS,
        ..row("openrouter", "https://openrouter.ai/api", "/v1", &[CHAT, CREATE_RESPONSE]).with_chat_rules(&OPENROUTER)
    },
    row("ovhcloud", "https://oai.endpoints.kepler.ai.cloud.ovh.net/v1", "", &[CHAT]),
    // Its models are retired; the rest of its API is available as pass-through.
    with_credential(
        row("palm", "https://generativelanguage.googleapis.com/v1beta3", "", &[]),
        Credential::Header("x-goog-api-key"),
    ),
    row("perplexity-ai", "https://api.perplexity.ai", "", &[CHAT, CREATE_RESPONSE]).with_chat_rules(&PERPLEXITY),
    with_credential(row("qdrant", "", "", &[]), Credential::Header("api-key")),
    row("recraft-ai", "https://external.api.recraft.ai/v1", "", &[IMAGE_GENERATION]),
    with_credential(row("reka-ai", "https://api.reka.ai/v1", "", &[CHAT]), Credential::Header("x-api-key"))
        .with_chat_rules(&LEGACY_MAX_TOKENS),
    row("replicate", "https://api.replicate.com/v1", "", &[]),
    row("sambanova", "https://api.sambanova.ai", "/v1", &[CHAT]).with_chat_rules(&SAMBANOVA),
    with_credential(row("scenario-ai", "https://api.cloud.scenario.com/v1", "", &[]), Credential::Scheme("Basic")),
    with_image_api(
        row("siliconflow", "https://api.siliconflow.cn/v1", "", &[CHAT, EMBED, RERANK])
            .with_chat_rules(&LEGACY_MAX_TOKENS),
        &image_formats::SILICONFLOW,
        "/images/generations",
    ),
    row("together-ai", "https://api.together.xyz", "/v1", &[CHAT, COMPLETIONS, EMBED])
        .with_chat_rules(&REPETITION_PENALTY)
        .with_completion_rules(&REPETITION_PENALTY_COMPLETIONS),
    row("tripo3d", "https://api.tripo3d.ai/v2/openapi", "", &[]),
    // Each server and model has its own address, so there is no base URL.
    row("triton", "", "", &[]),
    row("upstage", "https://api.upstage.ai/v1/solar", "", &[CHAT, EMBED]),
    // Rerank is translated to Voyage's own format, so it is not listed here.
    row("voyage", "https://api.voyageai.com/v1", "", &[EMBED]).with_embedding_rules(&VOYAGE_EMBEDDINGS),
    row("x-ai", "https://api.x.ai/v1", "", &[CHAT, COMPLETIONS, EMBED, CREATE_RESPONSE, STORED_RESPONSES]),
    row("z-ai", "https://api.z.ai/api/paas/v4", "", &[CHAT]),
    row("zhipu", "https://open.bigmodel.cn/api/paas/v4", "", &[CHAT, EMBED]).with_chat_rules(&LEGACY_MAX_TOKENS),
];

/// Options of `OpenAI` and Anthropic, which the mock provider accepts as well.
const MOCK_OPTIONS: &[OptionField] = &[
    forwarded_option("openai_organization", "openai-organization"),
    forwarded_option("openai_project", "openai-project"),
    forwarded_option("openai_beta", "openai-beta"),
    forwarded_option("anthropic_version", "anthropic-version"),
    forwarded_option("anthropic_beta", "anthropic-beta"),
];

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
        let row = ROWS.iter().find(|row| row.slug == "mistral-ai").unwrap();
        let target = |value, operation| {
            let stated = super::super::PathOptions::default();
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
                path_options: stated,
            };
            let mut out = Vec::new();
            let options = Options::from_pairs(row.options, &[("mistral_fim_completion", value)]);
            row.write_request_target(&path_info, &options, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(target("true", Operation::ChatComplete), "/fim/completions");
        assert_eq!(target("false", Operation::ChatComplete), "/chat/completions");
        assert_eq!(target("true", Operation::Messages), "/chat/completions");
    }

    #[test]
    fn custom_endpoint_replaces_the_base_url() {
        let row = ROWS.iter().find(|row| row.slug == "huggingface").unwrap();
        let base = |endpoint: Option<&str>| {
            let mut options = Options::default();
            if let Some(endpoint) = endpoint {
                options.insert_if_absent(CUSTOM_ENDPOINT_OPTION, endpoint.into());
            }
            row.resolve_base_url(Operation::ChatComplete, &options).unwrap()
        };
        assert_eq!(base(None), None);
        assert_eq!(base(Some("https://mine.example/")).as_deref(), Some("https://mine.example"));
        let completes = |given: &[(&str, &str)], prefix: &'static str| {
            let options = Options::from_pairs(row.options, given);
            let path_info = PathInfo { prefix, ..PathInfo::for_test(Operation::Complete, "/completions", "m") };
            let mut out = Vec::new();
            row.write_request_target(&path_info, &options, &mut out).unwrap();
            let is_told = row.provider_format_for_target(Operation::Complete, "m", (&options, "")).is_some();
            (String::from_utf8(out).unwrap(), is_told)
        };
        let endpoint_option = [("huggingface_base_url", "https://mine.example")];
        assert_eq!(completes(&endpoint_option, ""), ("/v1/completions".into(), false));
        assert_eq!(completes(&endpoint_option, "/v1"), ("/completions".into(), false));
        assert_eq!(completes(&[], ""), ("/v1/chat/completions".into(), true));
    }
}
