//! What the models of one vendor take and Bedrock does not look at.

use serde_json::{Value, json};

use crate::translation::asked::{Asked, Fields};

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
        Vendor::Other => (),
    }
    if !tools.is_empty() {
        more.insert("tools".into(), tools.into());
    }
    if !more.is_empty() {
        out.insert("additionalModelRequestFields".into(), more.into());
    }
}

fn claude(asked: &mut Asked, more: &mut Fields) {
    for key in ["thinking", "anthropic_version"] {
        asked.hand(key, more, key);
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
