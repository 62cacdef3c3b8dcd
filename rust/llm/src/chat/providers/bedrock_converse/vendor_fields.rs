//! What the models of one vendor take and Bedrock does not look at.

use serde_json::{Value, json};

use crate::chat::{
    call_ids,
    providers::anthropic_messages::{self, thinking},
    request::{Asked, Fields, Refusal},
};

/// Whose models they are, as far as it makes a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vendor {
    Anthropic,
    Cohere,
    Ai21,
    Other,
}

impl Vendor {
    /// By the name of a model, whatever stands before it.
    pub fn of(model: &str) -> Self {
        let is = |vendor: &str| model.contains(vendor);
        match () {
            () if is("anthropic.") || is("claude") => Self::Anthropic,
            () if is("cohere.") => Self::Cohere,
            () if is("ai21.") => Self::Ai21,
            () => Self::Other,
        }
    }
}

/// Which ids of calls a model takes: Mistral's are as strict here as with their maker.
pub fn ids(model: &str) -> call_ids::Form {
    if model.contains("mistral.") { call_ids::MISTRAL } else { call_ids::CLAUDE }
}

/// Makers whose models have bodies of `OpenAI`'s here, and what of those Converse itself has no word for.
const OPENAI_LIKE: &[(&str, &[&str])] =
    &[("openai.", &["response_format", "reasoning_effort"]), ("qwen.", &["response_format"])];

/// Where in a request a hint about caching stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Behind a tool.
    Tools,
    /// In messages, or in what the system says.
    Talk,
}

/// Makers of models that refuse hints about caching; whoever else is asked under a name that says no maker may take them.
const NEVER_CACHING: [&str; 14] = [
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
/// Amazon's models that take hints, but not about tools.
const NOVA: &str = "amazon.nova";

/// Whether a model takes a hint about caching there.
pub fn caches(model: &str, place: Place) -> bool {
    match () {
        () if Vendor::of(model) == Vendor::Anthropic => true,
        () if model.contains(NOVA) => place == Place::Talk,
        () => !NEVER_CACHING.iter().any(|maker| model.contains(maker)),
    }
}

/// Whether it can be told for how long.
pub fn caches_long(model: &str) -> bool {
    !model.contains(NOVA)
}

/// Whether Claude may think about this, before its messages are written.
pub fn may_think(asked: &Asked) -> bool {
    thinking::may(asked, &asked.model)
}

/// Says to Claude in its own words how much it is to think, where the caller has one word for all; and takes back what does not
/// go with that.
pub fn think(asked: &mut Asked, may: bool) -> Result<(), Refusal> {
    if Vendor::of(&asked.model) != Vendor::Anthropic {
        return Ok(());
    }
    let model = asked.model.clone();
    thinking::sample(asked, &model);
    let is_said = asked.fields.get("thinking").is_some_and(|own| !own.is_null());
    if is_said && !thinking::takes_efforts_only(&model) {
        return Ok(());
    }
    let mut said = Fields::new();
    let most = asked.fields.get("max_tokens").filter(|most| !most.is_null()).cloned();
    said.insert("max_tokens".into(), most.unwrap_or_else(|| anthropic_messages::most(&asked.model).into()));
    for key in ["temperature", "top_k"] {
        asked.hand(key, &mut said, key);
    }
    thinking::write(asked, &model, &mut said, may)?;
    said.shift_remove("max_tokens");
    asked.fields.extend(said);
    Ok(())
}

/// Adds to what the caller said in the vendor's own words.
pub fn write(asked: &mut Asked, tools: Vec<Value>, out: &mut Fields) {
    let given = asked.take("additionalModelRequestFields").or_else(|| asked.take("additional_model_request_fields"));
    let mut more = given.and_then(|given| given.as_object().cloned()).unwrap_or_default();
    asked.hand("top_k", &mut more, "top_k");
    match Vendor::of(&asked.model) {
        Vendor::Anthropic => claude(asked, &mut more),
        Vendor::Cohere => {
            for (key, name) in [
                ("presence_penalty", "presence_penalty"),
                ("frequency_penalty", "frequency_penalty"),
                ("logit_bias", "logit_bias"),
                ("logitBias", "logit_bias"),
            ] {
                asked.hand(key, &mut more, name);
            }
        }
        Vendor::Ai21 => {
            for (key, name) in [("presence_penalty", "presencePenalty"), ("frequency_penalty", "frequencyPenalty")] {
                if let Some(scale) = asked.take(key) {
                    more.insert(name.into(), json!({"scale": scale}));
                }
            }
            asked.hand("countPenalty", &mut more, "countPenalty");
        }
        // Nobody but Claude is told so how much to think.
        Vendor::Other if names_nobody(&asked.model) => asked.hand("thinking", &mut more, "thinking"),
        Vendor::Other => {
            let known = OPENAI_LIKE.iter().find(|(maker, _)| asked.model.contains(maker));
            for key in known.map(|(_, keys)| *keys).unwrap_or_default() {
                asked.hand(key, &mut more, key);
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

/// Whether a model is asked by an ARN that does not say whose it is: a profile of one's own, or throughput that was bought.
fn names_nobody(model: &str) -> bool {
    model.starts_with("arn:") && model.split_once('/').is_some_and(|(_, name)| !name.contains('.'))
}

/// Whether Claude is asked, or may be for all that the name says.
pub fn may_be_claude(model: &str) -> bool {
    Vendor::of(model) == Vendor::Anthropic || names_nobody(model)
}

fn claude(asked: &mut Asked, more: &mut Fields) {
    for key in ["thinking", "anthropic_version"] {
        asked.hand(key, more, key);
    }
    // Beside what the caller said there itself.
    for (key, value) in asked.take("output_config").and_then(|config| config.as_object().cloned()).into_iter().flatten()
    {
        thinking::configure(more, &key, value);
    }
    if let Some(user) = asked.take("user") {
        more.insert("metadata".into(), json!({"user_id": user}));
    }
    match asked.take("anthropic_beta") {
        Some(Value::String(betas)) => {
            let betas: Vec<Value> = betas.split(',').map(|one| one.trim().into()).collect();
            more.insert("anthropic_beta".into(), betas.into());
        }
        Some(betas) => drop(more.insert("anthropic_beta".into(), betas)),
        None => (),
    }
}
