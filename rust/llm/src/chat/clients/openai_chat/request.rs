//! Parser of chat completion requests (`OpenAI` client format).

use serde_json::{Value, json};

use crate::{
    chat::client_tools::{self, CUSTOM_INPUT},
    chat::request::{
        ChatRequest, Message, Part, Role, Source, Tool, ToolCall, ToolChoice, decode_base64_text, take_citations,
    },
    errors::RequestError,
    fields::{
        Fields, into_array, into_object, parse_body, take_object, take_required_string, take_schema, take_string,
    },
    reports::DroppedParams,
};

pub fn parse_request(json: &[u8]) -> Result<ChatRequest, RequestError> {
    let mut fields = parse_body(json)?;
    let mut dropped = DroppedParams::default();
    let messages = into_array(fields.shift_remove("messages"), "messages")?;
    let messages = messages.into_iter().enumerate();
    let messages = messages.map(|(at, value)| parse_message(value, &format!("messages[{at}]"), &mut dropped));
    let messages = messages.collect::<Result<_, _>>()?;
    let mut request = ChatRequest { messages, dropped_params: dropped, ..ChatRequest::default() };
    request.model = take_string(&mut fields, "model").unwrap_or_default();
    request.stream = fields.shift_remove("stream") == Some(Value::Bool(true));
    parse_tools(fields.shift_remove("tools"), &mut request)?;
    parse_tool_choice(fields.shift_remove("tool_choice"), &mut request)?;
    // Usage is always requested from the provider; `include_usage` only decides if the client sees it.
    if let Some(mut options) = take_object(&mut fields, "stream_options") {
        options.shift_remove("include_usage");
        request.dropped_params.add_remaining_fields("stream_options", &options);
    }
    if let Some(max_tokens) = fields.shift_remove("max_completion_tokens").filter(|value| !value.is_null()) {
        let other = fields.insert("max_tokens".into(), max_tokens).filter(|other| !other.is_null());
        request.record_dropped_if_set("max_tokens", other.filter(|other| *other != fields["max_tokens"]).as_ref());
    }
    for legacy in ["functions", "function_call"] {
        if fields.get(legacy).is_some_and(|value| !value.is_null()) {
            return Err(RequestError::new(legacy, "not supported by this provider; use `tools`"));
        }
    }
    request.fields = fields;
    Ok(request)
}

fn parse_message(value: Value, path: &str, dropped: &mut DroppedParams) -> Result<Message, RequestError> {
    let mut fields = into_object(value, path)?;
    let role = take_required_string(&mut fields, "role", path)?;
    let cache = take_cache_control(&mut fields);
    let (role, parts) = match role.as_str() {
        "system" | "developer" => (Role::System, parse_content(&mut fields, path, cache, dropped)?),
        "user" => (Role::User, parse_content(&mut fields, path, cache, dropped)?),
        "assistant" => (Role::Assistant, parse_assistant_parts(&mut fields, path, cache, dropped)?),
        "tool" => {
            let id = take_required_string(&mut fields, "tool_call_id", path)?;
            let is_error = fields.shift_remove("is_error") == Some(Value::Bool(true));
            let parts = parse_content(&mut fields, path, None, dropped)?;
            (Role::User, vec![Part::ToolResult { id, parts, is_error, cache }])
        }
        other => {
            return Err(RequestError::new(
                format!("{path}.role"),
                format!("`{other}` is not supported; must be system, developer, user, assistant or tool"),
            ));
        }
    };
    dropped.add_remaining_fields("messages", &fields);
    Ok(Message { role, parts })
}

fn parse_assistant_parts(
    fields: &mut Fields,
    path: &str,
    cache: Option<Value>,
    dropped: &mut DroppedParams,
) -> Result<Vec<Part>, RequestError> {
    if fields.get("function_call").is_some_and(|call| !call.is_null()) {
        return Err(RequestError::new(
            format!("{path}.function_call"),
            "not supported by this provider; use `tool_calls`",
        ));
    }
    let thought = take_string(fields, "reasoning_content").filter(|text| !text.is_empty());
    let blocks = fields.shift_remove("content_blocks").filter(|blocks| !blocks.is_null());
    let mut parts = if let Some(blocks) = blocks {
        let blocks = into_array(Some(blocks), &format!("{path}.content_blocks"))?;
        let path = |at| format!("{path}.content_blocks[{at}]");
        // `content_blocks` holds the complete text, so `content` is redundant.
        fields.shift_remove("content");
        if cache.is_some() {
            dropped.add("cache_control");
        }
        blocks
            .into_iter()
            .enumerate()
            .map(|(at, value)| parse_content_block(value, &path(at), dropped))
            .collect::<Result<_, _>>()?
    } else {
        let mut parts: Vec<_> = thought.map(|text| Part::Thinking { text, signature: None }).into_iter().collect();
        parts.extend(parse_content(fields, path, cache, dropped)?);
        parts
    };
    if let Some(text) = take_string(fields, "refusal") {
        parts.push(Part::text(text));
    }
    let hints = fields.shift_remove("extra_content").unwrap_or_default();
    if let Some(signature) = hints.pointer("/google/thought_signature").and_then(Value::as_str) {
        parts.push(Part::Signature(signature.to_owned()));
    }
    for (at, value) in
        into_array(fields.shift_remove("tool_calls"), &format!("{path}.tool_calls"))?.into_iter().enumerate()
    {
        parts.push(Part::ToolCall(parse_tool_call(value, &format!("{path}.tool_calls[{at}]"), dropped)?));
    }
    Ok(parts)
}

fn parse_tool_call(value: Value, path: &str, dropped: &mut DroppedParams) -> Result<ToolCall, RequestError> {
    let mut fields = into_object(value, path)?;
    let id = take_required_string(&mut fields, "id", path)?;
    let cache = take_cache_control(&mut fields);
    let hints = fields.shift_remove("extra_content");
    let signature = hints.and_then(|extra| extra.pointer("/google/thought_signature")?.as_str().map(ToOwned::to_owned));
    if let Some(mut custom) = take_object(&mut fields, "custom") {
        let input = take_string(&mut custom, "input").unwrap_or_default();
        let name = take_required_string(&mut custom, "name", &format!("{path}.custom"))?;
        return Ok(ToolCall { id, name, arguments: client_tools::custom_arguments(&input), signature, cache });
    }
    let inner = format!("{path}.function");
    let mut function = into_object(fields.shift_remove("function").unwrap_or_default(), &inner)?;
    let name = take_required_string(&mut function, "name", &inner)?;
    let arguments = take_string(&mut function, "arguments").unwrap_or_default();
    let signature = take_string(&mut function, "thought_signature").or(signature);
    // These fields only repeat the kind and the position of the call.
    for key in ["type", "index"] {
        fields.shift_remove(key);
    }
    dropped.add_remaining_fields("tool_calls", &fields);
    dropped.add_remaining_fields("tool_calls.function", &function);
    Ok(ToolCall { id, name, arguments, signature, cache })
}

/// Parses the content of a message. Applies the `cache_control` of the message to its last part.
fn parse_content(
    fields: &mut Fields,
    path: &str,
    cache: Option<Value>,
    dropped: &mut DroppedParams,
) -> Result<Vec<Part>, RequestError> {
    let path = format!("{path}.content");
    let mut parts = match fields.shift_remove("content") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) => vec![Part::text(text)],
        Some(Value::Array(items)) => {
            let items = items.into_iter().enumerate();
            items.map(|(at, item)| parse_part(item, &format!("{path}[{at}]"), dropped)).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(RequestError::new(path, "must be a string or an array of parts")),
    };
    match (cache, parts.last_mut()) {
        (
            Some(cache),
            Some(Part::Text { cache: slot, .. } | Part::Image { cache: slot, .. } | Part::Document { cache: slot, .. }),
        ) => *slot = Some(cache),
        (Some(_), _) => dropped.add("cache_control"),
        (None, _) => (),
    }
    Ok(parts)
}

/// Block types that are valid in a message regardless of the provider that produced it.
const PORTABLE_BLOCK_TYPES: [&str; 7] =
    ["text", "refusal", "image_url", "input_audio", "file", "thinking", "redacted_thinking"];

/// Parses a block of `content_blocks`. A block type that only one provider has is kept unchanged, so that it can be
/// sent back to that provider.
fn parse_content_block(value: Value, path: &str, dropped: &mut DroppedParams) -> Result<Part, RequestError> {
    match value.get("type").and_then(Value::as_str) {
        Some(kind) if !PORTABLE_BLOCK_TYPES.contains(&kind) => {
            let kind = kind.to_owned();
            let mut fields = into_object(value, path)?;
            fields.shift_remove("type");
            Ok(Part::ProviderBlock { kind, fields })
        }
        _ => parse_part(value, path, dropped),
    }
}

fn parse_part(value: Value, path: &str, dropped: &mut DroppedParams) -> Result<Part, RequestError> {
    let mut fields = into_object(value, path)?;
    let kind = take_required_string(&mut fields, "type", path)?;
    let cache = take_cache_control(&mut fields);
    let part = match kind.as_str() {
        "text" | "refusal" => Part::Text {
            text: take_required_string(&mut fields, &kind, path)?,
            cache,
            citations: take_citations(&mut fields),
        },
        "image_url" => parse_image(&mut fields, path, cache, dropped)?,
        "input_audio" => {
            let mut audio = into_object(fields.shift_remove("input_audio").unwrap_or_default(), path)?;
            let (data, format) =
                (take_required_string(&mut audio, "data", path)?, take_required_string(&mut audio, "format", path)?);
            dropped.add_remaining_fields(&kind, &audio);
            Part::Audio { data, format }
        }
        "file" => {
            parse_file(into_object(fields.shift_remove("file").unwrap_or_default(), path)?, path, cache, dropped)?
        }
        "thinking" => Part::Thinking {
            text: take_string(&mut fields, "thinking").unwrap_or_default(),
            signature: take_string(&mut fields, "signature"),
        },
        "redacted_thinking" => Part::RedactedThinking { data: take_required_string(&mut fields, "data", path)? },
        other => {
            return Err(RequestError::new(
                format!("{path}.type"),
                format!("`{other}` is not supported; must be text, image_url, input_audio, file or refusal"),
            ));
        }
    };
    dropped.add_remaining_fields("content", &fields);
    Ok(part)
}

fn parse_image(
    fields: &mut Fields,
    path: &str,
    cache: Option<Value>,
    dropped: &mut DroppedParams,
) -> Result<Part, RequestError> {
    let path = format!("{path}.image_url");
    let mut image = match fields.shift_remove("image_url") {
        Some(Value::String(url)) => Fields::from_iter([("url".to_owned(), Value::String(url))]),
        other => into_object(other.unwrap_or_default(), &path)?,
    };
    let mime = take_string(&mut image, "mime_type");
    let source = Source::from_url(take_required_string(&mut image, "url", &path)?, mime);
    let detail = image.shift_remove("detail").filter(|detail| detail != "auto" && !detail.is_null());
    dropped.add_remaining_fields("image_url", &image);
    // Clients may send a PDF as an image, but providers need it declared as a document.
    match &source {
        Source::Data { mime, .. } if mime == "application/pdf" => {
            if detail.is_some() {
                dropped.add("image_url.detail");
            }
            Ok(Part::Document { source, name: None, cache, extra: Box::default() })
        }
        _ => Ok(Part::Image { source, detail, cache }),
    }
}

fn parse_file(
    mut file: Fields,
    path: &str,
    cache: Option<Value>,
    dropped: &mut DroppedParams,
) -> Result<Part, RequestError> {
    let name = take_string(&mut file, "filename").or_else(|| take_string(&mut file, "file_name"));
    let mime = take_string(&mut file, "mime_type");
    let source = if let Some(data) = take_string(&mut file, "file_data") {
        let mime = mime.unwrap_or_default();
        match mime.as_str() {
            _ if data.starts_with("data:") => Source::from_url(data, None),
            // Some clients send plain text here instead of base64.
            "text/plain" if decode_base64_text(&data).is_none() => Source::Text(data),
            _ => Source::Data { mime, data },
        }
    } else if let Some(url) = take_string(&mut file, "file_url") {
        Source::from_url(url, mime)
    } else {
        Source::File(take_required_string(&mut file, "file_id", &format!("{path}.file"))?)
    };
    dropped.add_remaining_fields("file", &file);
    let source = source.with_type_of_file(name.as_deref());
    Ok(Part::Document { source, name, cache, extra: Box::default() })
}

pub(crate) fn take_cache_control(fields: &mut Fields) -> Option<Value> {
    fields.shift_remove("cache_control").filter(|cache| !cache.is_null())
}

fn parse_tools(value: Option<Value>, request: &mut ChatRequest) -> Result<(), RequestError> {
    for (at, value) in into_array(value, "tools")?.into_iter().enumerate() {
        let tool = parse_tool(value, &format!("tools[{at}]"), request)?;
        request.tools.push(tool);
    }
    Ok(())
}

fn parse_tool(value: Value, path: &str, request: &mut ChatRequest) -> Result<Tool, RequestError> {
    let ChatRequest { dropped_params: dropped, client_tools, .. } = request;
    let mut fields = into_object(value, path)?;
    let kind = take_required_string(&mut fields, "type", path)?;
    let cache = take_cache_control(&mut fields);
    if kind == "custom" {
        let custom = into_object(fields.shift_remove("custom").unwrap_or_default(), &format!("{path}.custom"))?;
        let tool = custom_tool(custom, cache, &format!("{path}.custom"))?;
        if let Tool::Function { name, .. } = &tool {
            client_tools.add_custom(name);
        }
        return Ok(tool);
    }
    if kind != "function" {
        if let Some(cache) = cache {
            fields.insert("cache_control".into(), cache);
        }
        return Ok(Tool::BuiltIn { kind, fields });
    }
    let path = format!("{path}.function");
    let mut function = into_object(fields.shift_remove("function").unwrap_or_default(), &path)?;
    let tool = Tool::Function {
        name: take_required_string(&mut function, "name", &path)?,
        description: take_string(&mut function, "description"),
        schema: take_schema(&mut function, "parameters", &path)?,
        strict: function.shift_remove("strict").filter(|strict| !strict.is_null()),
        cache: cache.or_else(|| take_cache_control(&mut function)),
        extra: fields.into(),
    };
    dropped.add_remaining_fields("tools.function", &function);
    Ok(tool)
}

fn parse_tool_choice(value: Option<Value>, request: &mut ChatRequest) -> Result<(), RequestError> {
    let wrong = || {
        let allowed = "must be auto, none, required, allowed_tools, or a function or custom tool with its name";
        RequestError::new("tool_choice", allowed)
    };
    request.tool_choice = match value {
        None | Some(Value::Null) => None,
        Some(Value::String(mode)) => match mode.as_str() {
            "auto" => Some(ToolChoice::Auto),
            "none" => Some(ToolChoice::None),
            // `any` is Mistral's name for `required`.
            "required" | "any" => Some(ToolChoice::Any),
            _ => return Err(wrong()),
        },
        Some(choice @ Value::Object(_)) if choice["type"] == "allowed_tools" => {
            return apply_allowed_tools(&choice["allowed_tools"], request);
        }
        Some(choice @ Value::Object(_)) => {
            let name = ["/function/name", "/custom/name"].iter().find_map(|at| choice.pointer(at)?.as_str());
            Some(ToolChoice::Tool(name.ok_or_else(wrong)?.to_owned()))
        }
        Some(_) => return Err(wrong()),
    };
    Ok(())
}

/// Returns the function that represents a custom tool. Its schema is one string; its description contains the grammar.
/// `cache` is the cache hint beside the tool's fields.
pub(crate) fn custom_tool(mut fields: Fields, cache: Option<Value>, path: &str) -> Result<Tool, RequestError> {
    let cache = cache.or_else(|| take_cache_control(&mut fields));
    let name = take_required_string(&mut fields, "name", path)?;
    let mut description = take_string(&mut fields, "description").unwrap_or_default();
    let format = fields.shift_remove("format").unwrap_or_default();
    let grammar = if format["grammar"].is_object() { &format["grammar"] } else { &format };
    if let Some(definition) = grammar["definition"].as_str() {
        let syntax = grammar["syntax"].as_str().unwrap_or("given");
        let gap = if description.is_empty() { "" } else { "\n\n" };
        description = format!("{description}{gap}`{CUSTOM_INPUT}` must match this {syntax} grammar:\n{definition}");
    }
    Ok(Tool::Function {
        name,
        description: Some(description).filter(|text| !text.is_empty()),
        schema: json!({"type": "object", "properties": {CUSTOM_INPUT: {"type": "string"}}, "required": [CUSTOM_INPUT],
            "additionalProperties": false}),
        strict: None,
        cache,
        extra: fields.into(),
    })
}

/// Applies a choice of `allowed_tools`: removes the other tools, so that the model cannot call them.
pub(crate) fn apply_allowed_tools(choice: &Value, request: &mut ChatRequest) -> Result<(), RequestError> {
    let name = |tool: &Value| {
        let name = ["/name", "/function/name", "/custom/name"].iter().find_map(|at| tool.pointer(at)?.as_str())?;
        Some(match tool["namespace"].as_str() {
            Some(namespace) => format!("{namespace}__{name}"),
            None => name.to_owned(),
        })
    };
    let names: Vec<_> = choice["tools"].as_array().into_iter().flatten().filter_map(name).collect();
    request.retain_tools(&names)?;
    request.tool_choice = match choice["mode"].as_str() {
        None | Some("auto") => Some(ToolChoice::Auto),
        Some("required") => Some(ToolChoice::Any),
        Some(mode) => {
            let message = format!("`{mode}` is not supported; must be auto or required");
            return Err(RequestError::new("tool_choice.mode", message));
        }
    };
    Ok(())
}
