//! Writer of Anthropic Messages request bodies.

use serde_json::{Value, json};

use super::thinking;
use crate::{
    chat::{
        call_ids,
        request::{
            ChatRequest, Message, Part, Role, Source, Tool, ToolChoice, decode_base64_text, has_date_suffix,
            is_server_tool_block, response_schema,
        },
        tool_names,
        tool_schema::object_schema,
    },
    citations,
    errors::RequestError,
    fields::Fields,
};

pub fn write_body(request: &mut ChatRequest) -> Result<Fields, RequestError> {
    request.reject_several_choices()?;
    request.normalise_tool_names(tool_names::CLAUDE);
    let mut out = Fields::new();
    let model = std::mem::take(&mut request.model);
    out.insert("model".into(), model.as_str().into());
    let max_tokens = request.take_param("max_tokens").unwrap_or_else(|| max_output_tokens(&model).into());
    out.insert("max_tokens".into(), max_tokens);
    let may_think = thinking::can_think(request, &model);
    write_messages(request, &mut out)?;
    write_tools(request, &mut out)?;
    write_sampling(request, &model, &mut out);
    thinking::write_config(request, &model, &mut out, may_think)?;
    write_output_format(request, &mut out);
    request.shorten_user_id(MAX_USER_ID_CHARS);
    if let Some(user) = request.take_param("user") {
        out.insert("metadata".into(), json!({"user_id": user}));
    }
    request.betas = request.take_param("anthropic_beta").map(join_betas);
    for key in ["container", "mcp_servers", "context_management"] {
        request.move_param(key, &mut out, key);
    }
    if request.stream {
        out.insert("stream".into(), true.into());
    }
    Ok(out)
}

/// Maximum length of `metadata.user_id` at Anthropic, in characters.
pub(crate) const MAX_USER_ID_CHARS: usize = 256;

/// Returns beta names separated by commas, from a list or a comma-separated string.
fn join_betas(betas: Value) -> String {
    match betas {
        Value::String(text) => text,
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        _ => String::new(),
    }
    .replace(|character: char| !character.is_ascii_graphic(), "")
}

/// Returns the maximum output of a model in tokens. Used as the default for `max_tokens`, which Anthropic requires and
/// rejects above this limit.
pub(crate) fn max_output_tokens(model: &str) -> u64 {
    let is_of = |family: &str| model.contains(family);
    match () {
        () if is_of("claude-3-7") || is_of("claude-3.7") => 64_000,
        () if is_of("claude-3-5") || is_of("claude-3.5") => 8_192,
        () if is_of("claude-3") || is_of("claude-2") || is_of("claude-instant") => 4_096,
        () => 32_000,
    }
}

fn write_messages(request: &mut ChatRequest, out: &mut Fields) -> Result<(), RequestError> {
    let mut system = Vec::new();
    let mut turns: Vec<(Role, Vec<Value>)> = Vec::new();
    let message_count = request.messages.len();
    for (at, message) in std::mem::take(&mut request.messages).into_iter().enumerate() {
        let path = format!("messages[{at}]");
        let Message { role, parts } = message;
        let blocks = parts.into_iter().filter_map(|part| content_block(part, &path, request).transpose());
        let blocks = blocks.collect::<Result<Vec<_>, _>>()?;
        match turns.last_mut() {
            _ if role == Role::System => system.extend(blocks),
            // Anthropic expects alternating roles, so consecutive messages of one role become one turn.
            Some((last, turn)) if *last == role => turn.extend(blocks),
            _ => turns.push((role, blocks)),
        }
    }
    if !system.is_empty() {
        out.insert("system".into(), system.into());
    }
    turns.retain(|(_, blocks)| !blocks.is_empty());
    ChatRequest::reject_empty_messages(message_count, turns.len())?;
    trim_prefill(&mut turns);
    let turn =
        |(role, blocks)| json!({"role": if role == Role::User { "user" } else { "assistant" }, "content": blocks});
    out.insert("messages".into(), turns.into_iter().map(turn).collect());
    Ok(())
}

/// Removes trailing whitespace from an assistant prefill, because Claude rejects it there.
pub(crate) fn trim_prefill(turns: &mut [(Role, Vec<Value>)]) {
    let Some((Role::Assistant, blocks)) = turns.last_mut() else { return };
    if let Some(Value::String(text)) = blocks.last_mut().and_then(|last| last.get_mut("text")) {
        text.truncate(text.trim_end().len());
    }
}

fn content_block(part: Part, path: &str, request: &mut ChatRequest) -> Result<Option<Value>, RequestError> {
    let (mut block, cache) = match part {
        // Anthropic rejects a text block that contains only whitespace.
        Part::Text { text, .. } if text.trim().is_empty() => return Ok(None),
        Part::Text { text, cache, citations } => (text_block(&text, citations.as_ref(), request), cache),
        Part::Image { source: Source::Data { mime, .. }, .. } if !mime.is_empty() && !mime.starts_with("image/") => {
            return Err(RequestError::new(path, format!("this provider does not accept {mime}")));
        }
        Part::Image { source, cache, detail } => {
            request.record_dropped_if_set("image_url.detail", detail.as_ref());
            (json!({"type": "image", "source": source_object(source)}), cache)
        }
        Part::Document { source, name, cache, extra: more } => {
            let title = name.map(|name| ("title".to_owned(), name.into()));
            let mut block =
                Fields::from_iter([("type".into(), "document".into()), ("source".into(), source_object(source))]);
            block.extend(title.into_iter().chain(*more));
            (block.into(), cache)
        }
        Part::Audio { .. } => return Err(RequestError::new(path, "this provider does not accept audio")),
        Part::Thinking { text, signature: Some(signature) } if thinking::is_claude_signature(&signature) => {
            (json!({"type": "thinking", "thinking": text, "signature": signature}), None)
        }
        Part::Thinking { .. } => {
            request.record_dropped("reasoning_content");
            return Ok(None);
        }
        Part::RedactedThinking { data } => (json!({"type": "redacted_thinking", "data": data}), None),
        Part::Signature(_) => {
            request.record_dropped("thought_signature");
            return Ok(None);
        }
        // Blocks of Anthropic's server tools.
        Part::ProviderBlock { kind, mut fields } if is_server_tool_block(&kind) => {
            fields.insert("type".into(), kind.into());
            (fields.into(), None)
        }
        Part::ProviderBlock { kind, .. } => {
            request.record_dropped(&kind);
            return Ok(None);
        }
        Part::ToolCall(call) => {
            let id = call_ids::CLAUDE.normalise_id(&call.id);
            let input = call.parse_arguments(&mut request.dropped_params);
            (json!({"type": "tool_use", "id": id, "name": call.name, "input": input}), call.cache)
        }
        Part::ToolResult { id, parts, is_error, cache } => {
            let content = parts.into_iter().filter_map(|part| content_block(part, path, request).transpose());
            (tool_result_block(&id, content.collect::<Result<_, _>>()?, is_error), cache)
        }
    };
    if let Some(cache) = cache {
        block["cache_control"] = cache;
    }
    Ok(Some(block))
}

fn tool_result_block(call_id: &str, content: Vec<Value>, is_error: bool) -> Value {
    let mut block = json!({"type": "tool_result", "tool_use_id": call_ids::CLAUDE.normalise_id(call_id)});
    if !content.is_empty() {
        block["content"] = content.into();
    }
    if is_error {
        block["is_error"] = true.into();
    }
    block
}

fn text_block(text: &str, citations: Option<&Value>, request: &mut ChatRequest) -> Value {
    let mut block = json!({"type": "text", "text": text});
    match citations.map(citations::to_anthropic_request) {
        Some(Some(converted)) => block["citations"] = converted.into(),
        unsupported => request.record_dropped_if_set("citations", unsupported.as_ref()),
    }
    block
}

fn source_object(source: Source) -> Value {
    match source {
        Source::Data { mime, data } if mime == "text/plain" => match decode_base64_text(&data) {
            Some(text) => json!({"type": "text", "media_type": "text/plain", "data": text}),
            None => json!({"type": "base64", "media_type": mime, "data": data}),
        },
        Source::Data { mime, data } => json!({"type": "base64", "media_type": mime, "data": data}),
        Source::Url { url, .. } => json!({"type": "url", "url": url}),
        Source::Text(text) => json!({"type": "text", "media_type": "text/plain", "data": text}),
        Source::File(id) => json!({"type": "file", "file_id": id}),
    }
}

fn write_tools(request: &mut ChatRequest, out: &mut Fields) -> Result<(), RequestError> {
    request.drop_built_in_tools(is_native_tool);
    let tools: Vec<_> =
        std::mem::take(&mut request.tools).into_iter().map(|item| tool_definition(item, request)).collect();
    if !tools.is_empty() {
        out.insert("tools".into(), tools.into());
    }
    let parallel = request.take_param("parallel_tool_calls");
    let mut choice = match request.tool_choice.clone() {
        None if parallel == Some(Value::Bool(false)) && out.contains_key("tools") => json!({"type": "auto"}),
        None => return Ok(()),
        Some(_) if !out.contains_key("tools") => return Err(RequestError::new("tool_choice", "there are no tools")),
        Some(ToolChoice::Auto) => json!({"type": "auto"}),
        Some(ToolChoice::None) => json!({"type": "none"}),
        Some(ToolChoice::Any) => json!({"type": "any"}),
        Some(ToolChoice::Tool(name)) => json!({"type": "tool", "name": name}),
    };
    if parallel == Some(Value::Bool(false)) && choice["type"] != "none" {
        choice["disable_parallel_tool_use"] = true.into();
    }
    out.insert("tool_choice".into(), choice);
    Ok(())
}

/// Fields of client-defined tools that only Anthropic supports.
const ANTHROPIC_TOOL_FIELDS: [&str; 3] = ["defer_loading", "allowed_callers", "input_examples"];

fn tool_definition(tool: Tool, request: &mut ChatRequest) -> Value {
    match tool {
        Tool::Function { name, description, schema, strict, cache, extra: mut more } => {
            let mut tool = json!({"name": name, "description": description.unwrap_or_default()});
            let (schema, is_merged) = object_schema(schema);
            request.record_dropped_if_set("input_schema.anyOf", is_merged.then_some(&()));
            tool["input_schema"] = schema;
            let native_fields = ANTHROPIC_TOOL_FIELDS.into_iter().map(|key| (key, more.shift_remove(key)));
            for (key, value) in [("strict", strict), ("cache_control", cache)].into_iter().chain(native_fields) {
                if let Some(value) = value.filter(|value| !value.is_null()) {
                    tool[key] = value;
                }
            }
            request.record_dropped_fields("tools", &more);
            tool
        }
        Tool::BuiltIn { kind, fields } => native_tool(&kind, fields),
    }
}

/// Returns true for Anthropic's own tools. Their kinds end with a date, except for the set of an MCP server. In chat
/// completions, the kind may be the name in the tool's options.
pub fn is_native_tool(kind: &str, fields: &Fields) -> bool {
    let named_kind = fields.get(kind).and_then(|options| options["name"].as_str());
    kind == "mcp_toolset" || has_date_suffix(kind) || named_kind.is_some_and(has_date_suffix)
}

/// Flattens a native tool from its chat completions form, `{"type": T, T: {"name": …}}`.
pub fn native_tool(kind: &str, mut fields: Fields) -> Value {
    let inner = fields.shift_remove(kind).unwrap_or_default();
    let mut tool = json!({"type": kind});
    if let (Some(name), Some(tool)) = (inner.get("name").cloned(), tool.as_object_mut()) {
        let native_kind = std::mem::replace(&mut tool["type"], name);
        tool.insert("name".into(), native_kind);
    }
    if let Some(tool) = tool.as_object_mut() {
        let inner = inner.as_object().cloned().unwrap_or_default();
        tool.extend(inner.into_iter().filter(|(key, _)| key != "name").chain(fields));
    }
    tool
}

fn write_sampling(request: &mut ChatRequest, model: &str, out: &mut Fields) {
    thinking::drop_unsupported_sampling(request, model);
    // Anthropic's maximum for both is 1.
    for key in ["temperature", "top_p"] {
        request.clamp_param(key, &(0..=1));
    }
    for key in ["temperature", "top_p", "top_k"] {
        request.move_param(key, out, key);
    }
    // Anthropic rejects a stop sequence that is only whitespace.
    request.move_stop_sequences(out, "stop_sequences", usize::MAX, |stop| !stop.trim().is_empty());
}

fn write_output_format(request: &mut ChatRequest, out: &mut Fields) {
    let Some(format) = request.take_param("response_format") else { return };
    match (format["type"].as_str(), response_schema(&format)) {
        (Some("json_schema"), Some(schema)) => {
            let format = json!({"type": "json_schema", "schema": schema});
            thinking::set_output_config(out, "format", format);
        }
        (Some("text"), _) => (),
        _ => request.record_dropped("response_format"),
    }
}
