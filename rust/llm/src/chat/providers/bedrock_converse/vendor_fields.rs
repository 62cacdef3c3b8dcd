//! Model parameters that are specific to one vendor. Bedrock passes them to the model without validation.

use serde_json::{Value, json};

use crate::{
    chat::{
        call_ids,
        providers::anthropic_messages::{self, thinking},
        request::ChatRequest,
        thinking_param::DYNAMIC_BUDGET,
    },
    errors::RequestError,
    fields::Fields,
};

/// Vendor of a model, as far as the request depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vendor {
    Anthropic,
    Cohere,
    Ai21,
    Other,
}

impl Vendor {
    /// Detects the vendor by the model name, regardless of any prefix.
    pub fn from_model(model: &str) -> Self {
        let is = |vendor: &str| model.contains(vendor);
        match () {
            () if is("anthropic.") || is("claude") => Self::Anthropic,
            () if is("cohere.") => Self::Cohere,
            () if is("ai21.") => Self::Ai21,
            () => Self::Other,
        }
    }
}

/// Returns the tool call id format that the model accepts. Mistral's models are as strict here as in Mistral's own API.
pub fn call_id_format(model: &str) -> call_ids::CallIdFormat {
    if model.contains("mistral.") { call_ids::MISTRAL } else { call_ids::CLAUDE }
}

/// Vendors whose models take `OpenAI` parameters on Bedrock, with the parameters that Converse has no field for.
const OPENAI_STYLE_PARAMS: &[(&str, &[&str])] =
    &[("openai.", &["response_format", "reasoning_effort"]), ("qwen.", &["response_format"])];

/// Part of the request that a cache hint belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachePointPosition {
    /// After a tool.
    Tools,
    /// In a message or in the system prompt.
    Messages,
}

/// Vendors whose models reject cache points. A model name without a vendor may belong to a model that supports them.
const VENDORS_WITHOUT_CACHING: [&str; 14] = [
    "ai21.",
    "amazon.",
    "cohere.",
    "deepseek.",
    "google.",
    "luma.",
    "meta.",
    "mistral.",
    "nvidia.",
    "openai.",
    "qwen.",
    "stability.",
    "twelvelabs.",
    "writer.",
];
/// Part of the names of Amazon models that support cache points, but not after tools.
const NOVA_PREFIX: &str = "amazon.nova";

/// Returns true if the model accepts a cache point in this position.
pub fn supports_caching(model: &str, position: CachePointPosition) -> bool {
    match () {
        () if Vendor::from_model(model) == Vendor::Anthropic => true,
        () if model.contains(NOVA_PREFIX) => position == CachePointPosition::Messages,
        () => !VENDORS_WITHOUT_CACHING.iter().any(|maker| model.contains(maker)),
    }
}

/// Returns true if the model accepts a TTL for a cache point.
pub fn supports_cache_ttl(model: &str) -> bool {
    !model.contains(NOVA_PREFIX)
}

/// Returns true if Claude may think in this request. Must be called before the messages are written.
pub fn can_think(request: &ChatRequest) -> bool {
    thinking::can_think(request, &request.model)
}

/// Converts `reasoning_effort` to Claude's thinking parameters, and drops parameters that conflict with them.
pub fn convert_thinking(request: &mut ChatRequest, supports_thinking: bool) -> Result<(), RequestError> {
    if Vendor::from_model(&request.model) != Vendor::Anthropic {
        return Ok(());
    }
    let model = request.model.clone();
    thinking::drop_unsupported_sampling(request, &model);
    let mut converted = Fields::new();
    let max_tokens = request.fields.get("max_tokens").filter(|max_tokens| !max_tokens.is_null()).cloned();
    converted.insert(
        "max_tokens".into(),
        max_tokens.unwrap_or_else(|| anthropic_messages::max_output_tokens(&request.model).into()),
    );
    for key in ["temperature", "top_k"] {
        request.move_param(key, &mut converted, key);
    }
    thinking::write_config(request, &model, &mut converted, supports_thinking)?;
    converted.shift_remove("max_tokens");
    request.fields.extend(converted);
    Ok(())
}

/// Writes `additionalModelRequestFields`: the client's fields plus the vendor's parameters.
pub fn write_vendor_fields(request: &mut ChatRequest, tools: Vec<Value>, out: &mut Fields) {
    let fields = request
        .take_param("additionalModelRequestFields")
        .or_else(|| request.take_param("additional_model_request_fields"));
    let mut more = fields.and_then(|vendor_fields| vendor_fields.as_object().cloned()).unwrap_or_default();
    request.move_param("top_k", &mut more, "top_k");
    match Vendor::from_model(&request.model) {
        Vendor::Anthropic => write_claude_fields(request, &mut more),
        Vendor::Cohere => {
            for (key, name) in [
                ("presence_penalty", "presence_penalty"),
                ("frequency_penalty", "frequency_penalty"),
                ("logit_bias", "logit_bias"),
                ("logitBias", "logit_bias"),
            ] {
                request.move_param(key, &mut more, name);
            }
        }
        Vendor::Ai21 => {
            for (key, name) in [("presence_penalty", "presencePenalty"), ("frequency_penalty", "frequencyPenalty")] {
                if let Some(scale) = request.take_param(key) {
                    more.insert(name.into(), json!({"scale": scale}));
                }
            }
            request.move_param("countPenalty", &mut more, "countPenalty");
        }
        // Only Claude takes `thinking`, and the model behind this ARN may be Claude.
        Vendor::Other if is_opaque_arn(&request.model) => {
            // Claude accepts no negative budget. Its replacement would depend on the model, which the ARN does not
            // reveal.
            if request.fields.get("thinking").is_some_and(|thinking| thinking["budget_tokens"] == DYNAMIC_BUDGET) {
                request.fields.shift_remove("thinking");
                request.record_dropped("thinking");
            }
            request.move_param("thinking", &mut more, "thinking");
        }
        Vendor::Other => {
            let matched = OPENAI_STYLE_PARAMS.iter().find(|(maker, _)| request.model.contains(maker));
            for key in matched.map(|(_, keys)| *keys).unwrap_or_default() {
                request.move_param(key, &mut more, key);
            }
        }
    }
    if !tools.is_empty() {
        more.insert("tools".into(), tools.into());
    }
    if !more.is_empty() {
        out.insert("additionalModelRequestFields".into(), more.into());
    }
}

/// Returns true if the model is an ARN that does not reveal the vendor: an inference profile of the customer or
/// provisioned throughput.
fn is_opaque_arn(model: &str) -> bool {
    model.starts_with("arn:") && model.split_once('/').is_some_and(|(_, name)| !name.contains('.'))
}

/// Returns true if the model is Claude or the name does not rule it out.
pub fn may_be_claude(model: &str) -> bool {
    Vendor::from_model(model) == Vendor::Anthropic || is_opaque_arn(model)
}

fn write_claude_fields(request: &mut ChatRequest, more: &mut Fields) {
    for key in ["thinking", "anthropic_version"] {
        request.move_param(key, more, key);
    }
    // Merges these into the `output_config` that the client may have sent in `additionalModelRequestFields`.
    for (key, value) in
        request.take_param("output_config").and_then(|config| config.as_object().cloned()).into_iter().flatten()
    {
        thinking::set_output_config(more, &key, value);
    }
    request.shorten_user_id(anthropic_messages::MAX_USER_ID_CHARS);
    if let Some(user) = request.take_param("user") {
        more.insert("metadata".into(), json!({"user_id": user}));
    }
    match request.take_param("anthropic_beta") {
        Some(Value::String(betas)) => {
            let betas: Vec<Value> = betas.split(',').map(|name| name.trim().into()).collect();
            more.insert("anthropic_beta".into(), betas.into());
        }
        Some(betas) => drop(more.insert("anthropic_beta".into(), betas)),
        None => (),
    }
}
