//! Cohere's chat, version 2: chat completions with other names, answers of its own.

mod citations;
pub(crate) mod response;

use serde_json::{Value, json};

use super::{Broken, Found, Listener, Wire};
use crate::chat::providers::{
    anthropic_messages::thinking,
    openai_chat::{self, request},
};
use crate::{
    chat::{
        event::Taker,
        request::{Asked, Choice, Fields, Refusal, Source, Tool, answer_schema},
    },
    embeddings::request::{Item, Texts, Vectors},
    model_list::{self, Listed},
};

pub struct Cohere;

/// Its own names; what has none here cannot be said.
const NAMES: &[(&str, &str)] = &[
    ("model", "model"),
    ("messages", "messages"),
    ("tools", "tools"),
    ("tool_choice", "tool_choice"),
    ("max_tokens", "max_tokens"),
    ("stop", "stop_sequences"),
    ("temperature", "temperature"),
    ("top_p", "p"),
    ("seed", "seed"),
    ("presence_penalty", "presence_penalty"),
    ("frequency_penalty", "frequency_penalty"),
    ("response_format", "response_format"),
    ("logprobs", "logprobs"),
    ("stream", "stream"),
];

/// What only Cohere knows.
const OWN: &[(&str, &str)] = &[
    ("top_k", "k"),
    ("k", "k"),
    ("documents", "documents"),
    ("citation_options", "citation_options"),
    ("safety_mode", "safety_mode"),
    ("strict_tools", "strict_tools"),
];

impl Wire for Cohere {
    fn write(&self, asked: &mut Asked) -> Result<Vec<u8>, Refusal> {
        asked.refuse_several()?;
        for key in ["frequency_penalty", "presence_penalty"] {
            asked.bound(key, &(0..=1));
        }
        for key in ["top_k", "k"] {
            asked.bound(key, &(0..=500));
        }
        let choice = asked.choice.take();
        let is_strict = strict(asked);
        effort(asked)?;
        let chat = request::write(asked, "max_tokens", openai_chat::Thoughts::Stay)?;
        let mut out = Fields::new();
        for (key, value) in chat {
            match NAMES.iter().find(|(name, _)| *name == key) {
                Some((_, own)) => drop(out.insert((*own).to_owned(), value)),
                None if key == "stream_options" || value == Value::Bool(false) && key != "parallel_tool_calls" => (),
                None => asked.lose(&key),
            }
        }
        for (key, own) in OWN {
            asked.hand(key, &mut out, own);
        }
        if is_strict && out.contains_key("tools") {
            out.entry("strict_tools").or_insert(true.into());
        }
        if let Some(thinking) = asked.take("thinking") {
            out.insert("thinking".into(), think(&thinking));
        }
        choose(choice.as_ref(), &mut out)?;
        format(&mut out);
        if let Some(stop @ Value::String(_)) = out.get_mut("stop_sequences") {
            *stop = json!([stop.take()]);
        }
        Ok(Value::Object(out).to_string().into_bytes())
    }

    fn read(&self, answer: &[u8], taker: &mut dyn Taker) -> Result<(), Broken> {
        response::read(answer, taker)
    }

    fn listener(&self) -> Box<dyn Listener> {
        Box::new(response::Hearing::default())
    }

    fn sees(&self, _model: &str) -> bool {
        true
    }

    fn embed(&self, texts: &mut Texts) -> Result<Vec<u8>, Refusal> {
        let model = std::mem::take(&mut texts.model);
        let mut out = json!({"model": model});
        if let (Some(out), Value::Object(rest)) = (out.as_object_mut(), embed(texts)?) {
            out.extend(rest);
        }
        Ok(out.to_string().into_bytes())
    }

    fn embedded(&self, answer: &Value) -> Option<Vectors> {
        let vectors = answer.pointer("/embeddings/float")?.as_array()?.clone();
        let tokens =
            answer.pointer("/meta/tokens/input_tokens").or_else(|| answer.pointer("/meta/billed_units/input_tokens"));
        // As a batch tells them they have a point.
        #[allow(clippy::cast_sign_loss)] // The cast saturates: below zero is zero.
        let tokens = tokens.and_then(Value::as_f64).map(|tokens| tokens as u64);
        Some(Vectors { vectors, tokens, ..Vectors::default() })
    }

    fn listed(&self, answer: &Value) -> Option<Vec<Listed>> {
        model_list::found(answer, "/models", "name", "")
    }

    /// `{message}`, and nothing else.
    fn error(&self, answer: &[u8]) -> Found {
        openai_chat::error(answer)
    }
}

/// What is embedded, but for the model: somebody else's host has that in the path.
pub(crate) fn embed(texts: &mut Texts) -> Result<Value, Refusal> {
    let items = std::mem::take(&mut texts.items);
    let has_text = items.iter().any(|item| item.text.is_some());
    let mut items = items.into_iter().enumerate().peekable();
    let mut out = if items.peek().is_none() {
        json!({"texts": std::mem::take(&mut texts.inputs)})
    } else if has_text {
        // Texts and pictures together are what its newer models alone take.
        json!({"inputs": items.map(content).collect::<Result<Value, Refusal>>()?})
    } else {
        json!({"images": items.filter_map(picture).collect::<Result<Value, Refusal>>()?})
    };
    // It must be said; who does not say it keeps what it embeds.
    let kind = texts.fields.shift_remove("input_type").or_else(|| texts.purpose());
    let usual = if out.get("images").is_some() { "image" } else { "search_document" };
    out["input_type"] = kind.unwrap_or_else(|| usual.into());
    out["embedding_types"] = json!(["float"]);
    if let Some(dimensions) = texts.dimensions.take() {
        out["output_dimension"] = dimensions;
    }
    if let Some(truncate) = texts.fields.shift_remove("truncate") {
        out["truncate"] = truncate;
    }
    Ok(out)
}

fn content((at, item): (usize, Item)) -> Result<Value, Refusal> {
    let mut parts: Vec<_> = item.text.iter().map(|text| json!({"type": "text", "text": text})).collect();
    if let Some(url) = picture((at, item)).transpose()? {
        parts.push(json!({"type": "image_url", "image_url": {"url": url}}));
    }
    Ok(json!({"content": parts}))
}

fn picture((at, item): (usize, Item)) -> Option<Result<Value, Refusal>> {
    item.image.map(|image| match image {
        Source::Data { mime, data } => Ok(format!("data:{mime};base64,{data}").into()),
        _ => Err(Refusal::new(format!("input[{at}].image"), "must be sent as bytes")),
    })
}

/// Whether tools are to be called as they are described: all are, or none.
fn strict(asked: &mut Asked) -> bool {
    let mut is_strict =
        asked.fields.get("response_format").is_some_and(|format| format["json_schema"]["strict"] == true);
    for tool in &mut asked.tools {
        if let Tool::Function { strict, .. } = tool {
            is_strict |= strict.take() == Some(Value::Bool(true));
        }
    }
    is_strict
}

/// Says to models that think by how many tokens they may, where the caller has one word for it.
fn effort(asked: &mut Asked) -> Result<(), Refusal> {
    if !asked.model.contains("reasoning") || asked.fields.get("thinking").is_some_and(|own| !own.is_null()) {
        return Ok(());
    }
    if let Some((_, budget)) = thinking::effort(asked)? {
        let kind = if budget == 0 { "disabled" } else { "enabled" };
        let budget = (budget > 0).then_some(budget);
        asked.fields.insert("thinking".into(), json!({"type": kind, "budget_tokens": budget}));
    }
    Ok(())
}

fn think(thinking: &Value) -> Value {
    // It has these two words for it.
    let kind = if thinking["type"] == "disabled" { "disabled" } else { "enabled" };
    let mut told = json!({"type": kind});
    if let Some(budget) = thinking.get("budget_tokens").filter(|budget| !budget.is_null()) {
        told["token_budget"] = budget.clone();
    }
    told
}

fn choose(choice: Option<&Choice>, out: &mut Fields) -> Result<(), Refusal> {
    let word = match choice {
        None | Some(Choice::Auto) => return Ok(()),
        Some(Choice::None) => "NONE",
        Some(Choice::Any) => "REQUIRED",
        // It is not told which, so it is told of no other.
        Some(Choice::Tool(name)) => {
            leave(name, out)?;
            "REQUIRED"
        }
    };
    out.insert("tool_choice".into(), word.into());
    Ok(())
}

/// Leaves one of the tools.
fn leave(name: &str, out: &mut Fields) -> Result<(), Refusal> {
    let tools = out.get_mut("tools").and_then(Value::as_array_mut);
    let left = tools.map(|tools| {
        tools.retain(|tool| tool["function"]["name"] == name);
        tools.len()
    });
    if left.unwrap_or_default() > 0 {
        return Ok(());
    }
    Err(Refusal::new("tool_choice", format!("`{name}` is none of the tools")))
}

/// A schema stands beside the type here.
fn format(out: &mut Fields) {
    let Some(format) = out.get_mut("response_format") else { return };
    if let Some(schema) = answer_schema(format) {
        *format = json!({"type": "json_object", "json_schema": schema});
    }
}
