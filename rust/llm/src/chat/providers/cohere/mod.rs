//! Cohere's chat API, version 2. Requests are chat completions with other field names; responses have their own format.

mod citations;
pub(crate) mod response;

use serde_json::{Value, json};

use crate::{
    chat::{
        event::EventSink,
        providers::openai_chat::{self, request},
        request::{ChatRequest, Source, Tool, ToolChoice, response_schema},
        thinking_param::{DYNAMIC_BUDGET, parse_effort},
        tool_names,
    },
    embeddings::request::{EmbeddingInput, EmbeddingRequest, EmbeddingResponse},
    errors::{MalformedResponse, RequestError},
    fields::Fields,
    model_list::{self, ListedModel},
    provider_format::{ChatFormat, EmbeddingFormat, ModelListFormat, ProviderFormat, StreamDecoder},
};

struct CohereFormat;

pub static COHERE: ProviderFormat = ProviderFormat {
    chat: Some(&CohereFormat),
    embeddings: Some(&CohereFormat),
    model_list: Some(&CohereFormat),
    ..ProviderFormat::NONE
};

/// Cohere's field names by their `OpenAI` names. Fields that are not listed cannot be sent.
const FIELD_NAMES: &[(&str, &str)] = &[
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

/// Parameters that only Cohere has, with their field names.
const COHERE_PARAMS: &[(&str, &str)] = &[
    ("top_k", "k"),
    ("k", "k"),
    ("documents", "documents"),
    ("citation_options", "citation_options"),
    ("safety_mode", "safety_mode"),
    ("strict_tools", "strict_tools"),
];

impl ChatFormat for CohereFormat {
    fn write_request(&self, chat_request: &mut ChatRequest) -> Result<Vec<u8>, RequestError> {
        chat_request.reject_several_choices()?;
        chat_request.normalise_tool_names(tool_names::OPENAI);
        for key in ["frequency_penalty", "presence_penalty"] {
            chat_request.clamp_param(key, &(0..=1));
        }
        for key in ["top_k", "k"] {
            chat_request.clamp_param(key, &(0..=500));
        }
        chat_request.drop_built_in_tools(|_, _| false);
        let choice = chat_request.tool_choice.take();
        let is_strict = take_strict_flags(chat_request);
        convert_reasoning_effort(chat_request)?;
        let chat = request::build_body(chat_request, "max_tokens", openai_chat::ReasoningReplay::Dropped)?;
        let mut out = Fields::new();
        for (key, value) in chat {
            match FIELD_NAMES.iter().find(|(name, _)| *name == key) {
                Some((_, cohere_name)) => drop(out.insert((*cohere_name).to_owned(), value)),
                None if key == "stream_options" || value == Value::Bool(false) && key != "parallel_tool_calls" => (),
                None => chat_request.record_dropped(&key),
            }
        }
        for (key, cohere_name) in COHERE_PARAMS {
            chat_request.move_param(key, &mut out, cohere_name);
        }
        if is_strict && out.contains_key("tools") {
            out.entry("strict_tools").or_insert(true.into());
        }
        if let Some(thinking) = chat_request.take_param("thinking") {
            let is_dynamic = thinking["budget_tokens"] == DYNAMIC_BUDGET;
            chat_request.record_dropped_if_set("thinking.budget_tokens", is_dynamic.then_some(&()));
            out.insert("thinking".into(), build_thinking(&thinking));
        }
        write_tool_choice(choice.as_ref(), &mut out)?;
        rewrite_response_format(&mut out);
        if let Some(stop @ Value::String(_)) = out.get_mut("stop_sequences") {
            *stop = json!([stop.take()]);
        }
        Ok(Value::Object(out).to_string().into_bytes())
    }

    fn read_response(&self, body: &[u8], sink: &mut dyn EventSink) -> Result<(), MalformedResponse> {
        response::decode_response(body, sink)
    }

    fn stream_decoder(&self) -> Box<dyn StreamDecoder> {
        Box::new(response::CohereDecoder::default())
    }
}

impl EmbeddingFormat for CohereFormat {
    fn can_embed_images(&self, _model: &str) -> bool {
        true
    }

    fn write_embedding_request(&self, texts: &mut EmbeddingRequest) -> Result<Vec<u8>, RequestError> {
        let model = std::mem::take(&mut texts.model);
        let mut out = json!({"model": model});
        if let (Some(out), Value::Object(rest)) = (out.as_object_mut(), build_embed_body(texts)?) {
            out.extend(rest);
        }
        Ok(out.to_string().into_bytes())
    }

    fn read_embeddings(&self, response: &Value) -> Option<EmbeddingResponse> {
        let vectors = response.pointer("/embeddings/float")?.as_array()?.clone();
        let tokens = response
            .pointer("/meta/tokens/input_tokens")
            .or_else(|| response.pointer("/meta/billed_units/input_tokens"));
        // Batches report token counts as floating-point numbers.
        #[allow(clippy::cast_sign_loss)] // The cast saturates: negative values become zero.
        let tokens = tokens.and_then(Value::as_f64).map(|tokens| tokens as u64);
        Some(EmbeddingResponse { vectors, token_count: tokens, ..EmbeddingResponse::default() })
    }
}

impl ModelListFormat for CohereFormat {
    fn read_model_list(&self, response: &Value) -> Option<Vec<ListedModel>> {
        model_list::parse_models_at(response, "/models", "name", "")
    }
}

/// Builds the body of an embedding request without the model. Other hosts of Cohere's models name the model in the
/// path.
pub(crate) fn build_embed_body(texts: &mut EmbeddingRequest) -> Result<Value, RequestError> {
    let items = std::mem::take(&mut texts.multimodal_inputs);
    let has_text = items.iter().any(|item| item.text.is_some());
    let mut items = items.into_iter().enumerate().peekable();
    let mut out = if items.peek().is_none() {
        json!({"texts": std::mem::take(&mut texts.texts)})
    } else if has_text {
        // Only newer models accept texts and images together.
        json!({"inputs": items.map(|(at, item)| build_embed_input(at, item)).collect::<Result<Value, RequestError>>()?})
    } else {
        json!({"images": items.filter_map(|(at, item)| image_data_url(at, item)).collect::<Result<Value, RequestError>>()?})
    };
    // Cohere requires `input_type`. The default is `image` for images. Otherwise it is `search_document`, because
    // clients that do not set it usually store the embeddings.
    let kind = texts.fields.shift_remove("input_type").or_else(|| texts.take_task_type());
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

fn build_embed_input(at: usize, item: EmbeddingInput) -> Result<Value, RequestError> {
    let mut parts: Vec<_> = item.text.iter().map(|text| json!({"type": "text", "text": text})).collect();
    if let Some(url) = image_data_url(at, item).transpose()? {
        parts.push(json!({"type": "image_url", "image_url": {"url": url}}));
    }
    Ok(json!({"content": parts}))
}

fn image_data_url(at: usize, item: EmbeddingInput) -> Option<Result<Value, RequestError>> {
    item.image.map(|image| match image {
        Source::Data { mime, data } => Ok(format!("data:{mime};base64,{data}").into()),
        _ => Err(RequestError::new(format!("input[{at}].image"), "must be sent as bytes")),
    })
}

/// Removes the `strict` flags of the tools. Returns true if any tool or the response schema is strict, because Cohere
/// has one flag for all tools.
fn take_strict_flags(request: &mut ChatRequest) -> bool {
    let mut is_strict =
        request.fields.get("response_format").is_some_and(|format| format["json_schema"]["strict"] == true);
    for tool in &mut request.tools {
        if let Tool::Function { strict, .. } = tool {
            is_strict |= strict.take() == Some(Value::Bool(true));
        }
    }
    is_strict
}

/// Converts `reasoning_effort` to a thinking budget in tokens for reasoning models.
fn convert_reasoning_effort(request: &mut ChatRequest) -> Result<(), RequestError> {
    if !request.model.contains("reasoning") || request.fields.get("thinking").is_some_and(|value| !value.is_null()) {
        return Ok(());
    }
    if let Some((_, budget)) = parse_effort(request)? {
        let kind = if budget == 0 { "disabled" } else { "enabled" };
        let budget = (budget > 0).then_some(budget);
        request.fields.insert("thinking".into(), json!({"type": kind, "budget_tokens": budget}));
    }
    Ok(())
}

fn build_thinking(thinking: &Value) -> Value {
    // Cohere knows only these two types.
    let kind = if thinking["type"] == "disabled" { "disabled" } else { "enabled" };
    let mut config = json!({"type": kind});
    if let Some(budget) = thinking.get("budget_tokens").and_then(Value::as_u64) {
        config["token_budget"] = budget.into();
    }
    config
}

fn write_tool_choice(choice: Option<&ToolChoice>, out: &mut Fields) -> Result<(), RequestError> {
    let mode = match choice {
        None | Some(ToolChoice::Auto) => return Ok(()),
        Some(ToolChoice::None) => "NONE",
        Some(ToolChoice::Any) => "REQUIRED",
        // Cohere cannot require a specific tool, so only that tool is sent.
        Some(ToolChoice::Tool(name)) => {
            retain_tool(name, out)?;
            "REQUIRED"
        }
    };
    out.insert("tool_choice".into(), mode.into());
    Ok(())
}

/// Removes all tools but the named one; rejects a name that is not among them.
fn retain_tool(name: &str, out: &mut Fields) -> Result<(), RequestError> {
    let tools = out.get_mut("tools").and_then(Value::as_array_mut);
    let tool_count = tools.map(|tools| {
        tools.retain(|tool| tool["function"]["name"] == name);
        tools.len()
    });
    if tool_count.unwrap_or_default() > 0 {
        return Ok(());
    }
    Err(RequestError::new("tool_choice", format!("`{name}` is not among the tools")))
}

/// Moves the schema next to the type, where Cohere expects it.
fn rewrite_response_format(out: &mut Fields) {
    let Some(format) = out.get_mut("response_format") else { return };
    if let Some(schema) = response_schema(format) {
        *format = json!({"type": "json_object", "json_schema": schema});
    }
}
