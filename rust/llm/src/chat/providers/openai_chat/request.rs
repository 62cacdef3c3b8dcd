//! Builds the request body of a chat completion.

use serde_json::{Value, json};

use super::ReasoningReplay;
use crate::{
    chat::{
        call_ids,
        providers::openai_chat::reasoning_details,
        request::{ChatRequest, Message, Part, Role, Source, Tool, ToolChoice, join_text},
        tool_names,
    },
    errors::RequestError,
    fields::{Fields, is_default_value},
};

/// Parameters that compatible providers accept under the same name and in the same form.
const COMMON_PARAMS: &[&str] = &[
    "temperature",
    "top_p",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "user",
    "seed",
    "response_format",
    "logprobs",
    "top_logprobs",
    "service_tier",
    "parallel_tool_calls",
    "store",
    "metadata",
    "modalities",
    "audio",
    "prediction",
    "reasoning_effort",
    "web_search_options",
    "prompt_cache_key",
    "safety_identifier",
    "verbosity",
];

/// Highest reasoning effort, which Claude supports. Most other models that have efforts reject it.
const MAX_EFFORT: &str = "max";

/// Builds the body. `thoughts` selects the form in which earlier reasoning is sent back to the model.
pub fn build_body(request: &mut ChatRequest, limit: &str, thoughts: ReasoningReplay) -> Result<Fields, RequestError> {
    // The translation of the response supports only one choice.
    request.reject_several_choices()?;
    request.normalise_tool_names(tool_names::OPENAI);
    drop_unsupported_sampling(request);
    let mut out = Fields::new();
    out.insert("model".into(), request.model.as_str().into());
    let mut messages = Vec::new();
    for (at, message) in merge_turns(std::mem::take(&mut request.messages)) {
        write_message(message, &format!("messages[{at}]"), request, thoughts, &mut messages)?;
    }
    if call_ids::for_chat_model(&request.model) == call_ids::MISTRAL {
        messages = insert_assistant_after_tools(messages, request);
    }
    out.insert("messages".into(), messages.into());
    request.drop_built_in_tools(|_, _| false);
    let tools = std::mem::take(&mut request.tools).into_iter();
    let tools: Vec<_> = tools.filter_map(|tool| build_function_tool(tool, request)).collect();
    if !tools.is_empty() {
        out.insert("tools".into(), tools.into());
    }
    let choice = match request.tool_choice.take() {
        None => None,
        Some(ToolChoice::Auto) => Some("auto".into()),
        Some(ToolChoice::None) => Some("none".into()),
        Some(ToolChoice::Any) => Some("required".into()),
        Some(ToolChoice::Tool(name)) => Some(json!({"type": "function", "function": {"name": name}})),
    };
    if let Some(choice) = choice {
        out.insert("tool_choice".into(), choice);
    }
    request.move_param("max_tokens", &mut out, limit);
    if let Some(budget) = thinking_budget(request).filter(|_| thoughts == ReasoningReplay::Details) {
        request.fields.shift_remove("thinking");
        out.insert("reasoning".into(), json!({"max_tokens": budget}));
    }
    if thoughts != ReasoningReplay::Text
        && request.fields.get("reasoning_effort").is_some_and(|effort| effort == MAX_EFFORT)
    {
        request.fields.insert("reasoning_effort".into(), "high".into());
        request.record_dropped("reasoning_effort");
    }
    request.shorten_user_id(MAX_USER_ID_CHARS);
    limit_stop_sequences(request);
    for key in COMMON_PARAMS {
        request.move_param(key, &mut out, key);
    }
    if request.stream {
        out.insert("stream".into(), true.into());
    }
    request.model.clear();
    Ok(out)
}

/// Maximum length of a user id at `OpenAI`, in characters.
const MAX_USER_ID_CHARS: usize = 64;
/// Removes the stop sequences beyond the maximum number. A single string stays as it is.
fn limit_stop_sequences(request: &mut ChatRequest) {
    let max_count = request.max_stop_sequences.unwrap_or(usize::MAX);
    if request.fields.get("stop").is_some_and(Value::is_array) {
        let mut stops = Fields::new();
        request.move_stop_sequences(&mut stops, "stop", max_count, |stop| !stop.is_empty());
        request.fields.extend(stops);
    }
}

/// Removes the sampling parameters that `OpenAI`'s reasoning models reject. Parameters with their default value are not
/// reported as dropped.
fn drop_unsupported_sampling(request: &mut ChatRequest) {
    const PARAMS: [(&str, f64); 7] = [
        ("temperature", 1.0),
        ("top_p", 1.0),
        ("presence_penalty", 0.0),
        ("frequency_penalty", 0.0),
        ("logit_bias", 0.0),
        ("top_logprobs", 0.0),
        ("logprobs", 0.0),
    ];
    let effort = request.fields.get("reasoning_effort").and_then(Value::as_str);
    if !rejects_sampling(&request.model, effort) {
        return;
    }
    for (key, usual) in PARAMS {
        let dropped = request.take_param(key).filter(|value| value.as_f64() != Some(usual) && *value != false);
        request.record_dropped_if_set(key, dropped.as_ref());
    }
    // Only the first generation accepts stop sequences.
    if !base_name(&request.model).starts_with("o1") {
        let dropped = request.take_param("stop").filter(|stop| !is_default_value(stop));
        request.record_dropped_if_set("stop", dropped.as_ref());
    }
}

/// Returns the name of a model without the vendor.
fn base_name(model: &str) -> &str {
    model.rsplit('/').next().unwrap_or_default()
}

/// Returns true if the model reasons, either always or with this effort. It then rejects sampling parameters.
fn rejects_sampling(model: &str, effort: Option<&str>) -> bool {
    let name = base_name(model);
    let is_digit = |character: char| character.is_ascii_digit();
    if name.strip_prefix('o').is_some_and(|rest| rest.starts_with(is_digit)) {
        return true;
    }
    let Some(rest) = name.strip_prefix("gpt-5") else { return false };
    // Since version 5.1, the default effort is `none`.
    let is_optional = rest.starts_with('.');
    !rest.contains("chat") && (!is_optional || effort.is_some_and(|effort| effort != "none"))
}

/// Returns the thinking budget in tokens, if the client set one.
fn thinking_budget(request: &ChatRequest) -> Option<Value> {
    let thinking = request.fields.get("thinking").filter(|thinking| thinking["type"] == "enabled")?;
    thinking.get("budget_tokens").filter(|budget| budget.is_u64()).cloned()
}

/// Merges consecutive messages of one role; each result has the index of its first message. The results of tool calls
/// must directly follow the message with the calls. So calls that were sent one by one become one message, and so do
/// their results.
fn merge_turns(messages: Vec<Message>) -> Vec<(usize, Message)> {
    let gives_back = |message: &Message| message.parts.iter().any(|part| matches!(part, Part::ToolResult { .. }));
    let mut turns: Vec<(usize, Message)> = Vec::new();
    for (at, message) in messages.into_iter().enumerate() {
        match turns.last_mut() {
            Some((_, last))
                if last.role == message.role
                    && (last.role == Role::Assistant || gives_back(last) && gives_back(&message)) =>
            {
                last.parts.extend(message.parts);
            }
            _ => turns.push((at, message)),
        }
    }
    turns
}

/// Inserts a short assistant message between a tool result and a user message. Mistral's models reject a user message
/// directly after a tool result.
fn insert_assistant_after_tools(messages: Vec<Value>, request: &mut ChatRequest) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::with_capacity(messages.len());
    for message in messages {
        if message["role"] == "user" && out.last().is_some_and(|last| last["role"] == "tool") {
            request.record_dropped("messages.assistant");
            out.push(json!({"role": "assistant", "content": "OK."}));
        }
        out.push(message);
    }
    out
}

fn write_message(
    message: Message,
    path: &str,
    request: &mut ChatRequest,
    thoughts: ReasoningReplay,
    out: &mut Vec<Value>,
) -> Result<(), RequestError> {
    let Message { role, parts } = message;
    if role == Role::Assistant {
        out.extend(build_assistant_message(parts, path, request, thoughts)?);
        return Ok(());
    }
    let mut user_parts = Vec::new();
    for part in parts {
        match part {
            // Tool results are separate messages, which precede the user's text.
            Part::ToolResult { id, parts, is_error, cache } => {
                drop_cache_hint(cache.as_ref(), request);
                if is_error {
                    request.record_dropped("is_error");
                }
                let (texts, others): (Vec<_>, Vec<_>) =
                    parts.into_iter().partition(|part| matches!(part, Part::Text { .. }));
                let content = build_content(texts, path, request)?;
                out.push(json!({"role": "tool", "tool_call_id": call_ids::for_chat_model(&request.model).normalise_id(&id), "content": content}));
                user_parts.extend(others);
            }
            Part::ProviderBlock { kind, .. } => request.record_dropped(&kind),
            other => user_parts.push(other),
        }
    }
    if !user_parts.is_empty() {
        let role = if role == Role::System { "system" } else { "user" };
        out.push(json!({"role": role, "content": build_content(user_parts, path, request)?}));
    }
    Ok(())
}

/// Builds an assistant message; `None` if no content is left.
fn build_assistant_message(
    parts: Vec<Part>,
    path: &str,
    request: &mut ChatRequest,
    reasoning_replay: ReasoningReplay,
) -> Result<Option<Value>, RequestError> {
    let mut thoughts = String::new();
    let mut details = Vec::new();
    let mut calls = Vec::new();
    let mut content_parts = Vec::new();
    let mut thought_signature = None;
    for part in parts {
        match part {
            Part::ToolCall(call) => {
                drop_cache_hint(call.cache.as_ref(), request);
                let mut call_json = json!({"id": call_ids::for_chat_model(&request.model).normalise_id(&call.id), "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments}});
                if let Some(signature) = call.signature {
                    call_json["extra_content"] = json!({"google": {"thought_signature": signature}});
                }
                calls.push(call_json);
            }
            Part::Thinking { text, .. } if reasoning_replay == ReasoningReplay::Text => thoughts.push_str(&text),
            Part::Thinking { signature, .. } => {
                let decoded = signature
                    .filter(|_| reasoning_replay == ReasoningReplay::Details)
                    .and_then(|sealed| reasoning_details::decode_signature(&sealed));
                request.record_dropped_if_set("thinking", decoded.is_none().then_some(&()));
                details.extend(decoded.unwrap_or_default());
            }
            Part::RedactedThinking { .. } => request.record_dropped("thinking"),
            Part::Signature(signature) => {
                if thought_signature.replace(signature).is_some() {
                    request.record_dropped("thought_signature");
                }
            }
            Part::Text { text, .. } if text.is_empty() => (),
            Part::ProviderBlock { kind, .. } => request.record_dropped(&kind),
            other => content_parts.push(other),
        }
    }
    if content_parts.is_empty() && calls.is_empty() {
        request.record_dropped_if_set("thought_signature", thought_signature.as_ref());
        request.record_dropped_if_set("thinking", (!thoughts.is_empty() || !details.is_empty()).then_some(&()));
        return Ok(None);
    }
    let content = if content_parts.is_empty() { Value::Null } else { build_content(content_parts, path, request)? };
    let mut message = json!({"role": "assistant", "content": content});
    if !thoughts.is_empty() {
        message["reasoning_content"] = thoughts.into();
    }
    if !details.is_empty() {
        message["reasoning_details"] = details.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    if let Some(signature) = thought_signature {
        message["extra_content"] = json!({"google": {"thought_signature": signature}});
    }
    Ok(Some(message))
}

/// Builds the message content. Text-only content becomes one string, because some providers do not accept parts.
fn build_content(parts: Vec<Part>, path: &str, request: &mut ChatRequest) -> Result<Value, RequestError> {
    if parts.iter().any(|part| matches!(part, Part::Text { citations: Some(_), .. })) {
        request.record_dropped("citations");
    }
    if parts.iter().all(|part| matches!(part, Part::Text { .. })) {
        if parts.iter().any(|part| matches!(part, Part::Text { cache: Some(_), .. })) {
            request.record_dropped("cache_control");
        }
        return Ok(join_text(parts).into());
    }
    parts.into_iter().map(|item| build_part(item, path, request)).collect()
}

fn build_part(part: Part, path: &str, request: &mut ChatRequest) -> Result<Value, RequestError> {
    let refused = |input_kind: &str| RequestError::new(path, format!("this provider does not accept {input_kind}"));
    match part {
        Part::Text { text, cache, .. } => {
            drop_cache_hint(cache.as_ref(), request);
            Ok(json!({"type": "text", "text": text}))
        }
        Part::Image { source, detail, cache } => {
            drop_cache_hint(cache.as_ref(), request);
            let mut image = json!({"url": source.to_url().ok_or_else(|| refused("images by id"))?});
            if let Some(detail) = detail {
                image["detail"] = detail;
            }
            Ok(json!({"type": "image_url", "image_url": image}))
        }
        Part::Document { source, name, cache, extra: more } => {
            drop_cache_hint(cache.as_ref(), request);
            request.record_dropped_fields("document", &more);
            if name.is_some() && !matches!(source, Source::Data { .. }) {
                request.record_dropped("filename");
            }
            build_document(source, name).ok_or_else(|| refused("documents by URL"))
        }
        Part::Audio { data, format } => {
            Ok(json!({"type": "input_audio", "input_audio": {"data": data, "format": format}}))
        }
        _ => Err(refused("this kind of message part")),
    }
}

fn build_document(source: Source, name: Option<String>) -> Option<Value> {
    let file = match source {
        Source::Text(text) => return Some(json!({"type": "text", "text": text})),
        Source::File(id) => json!({"file_id": id}),
        Source::Url { .. } => return None,
        Source::Data { .. } => {
            json!({"filename": name.unwrap_or_else(|| "document.pdf".into()), "file_data": source.to_url()})
        }
    };
    Some(json!({"type": "file", "file": file}))
}

/// Drops a cache hint. These providers cache without hints and do not accept any.
fn drop_cache_hint(cache: Option<&Value>, request: &mut ChatRequest) {
    if cache.is_some() {
        request.record_dropped("cache_control");
    }
}

fn build_function_tool(tool: Tool, request: &mut ChatRequest) -> Option<Value> {
    match tool {
        Tool::Function { name, description, schema, strict, cache, extra: more } => {
            drop_cache_hint(cache.as_ref(), request);
            request.record_dropped_fields("tools", &more);
            let mut function = json!({"name": name});
            let schema = Some(schema).filter(|schema| !schema.is_null());
            for (key, value) in
                [("description", description.map(Value::from)), ("parameters", schema), ("strict", strict)]
            {
                if let Some(value) = value {
                    function[key] = value;
                }
            }
            Some(json!({"type": "function", "function": function}))
        }
        Tool::BuiltIn { .. } => None,
    }
}
