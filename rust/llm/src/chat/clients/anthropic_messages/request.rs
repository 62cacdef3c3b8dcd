//! Parser of Anthropic Messages requests.

use serde_json::{Value, json};

use crate::{
    chat::request::{
        ChatRequest, Message, Part, Role, Source, Tool, ToolCall, ToolChoice, is_server_tool_block, take_citations,
        take_document_extra,
    },
    errors::RequestError,
    fields::{
        Fields, into_array, into_object, parse_body, take_object, take_required_string, take_schema, take_string,
    },
    reports::DroppedParams,
};

/// Prefix of a text signature. The gateway sends such signatures as redacted thinking blocks, because clients return
/// these unchanged.
pub(crate) const TEXT_SIGNATURE_PREFIX: &str = "seal:";

pub fn parse_request(json: &[u8]) -> Result<ChatRequest, RequestError> {
    let mut fields = parse_body(json)?;
    let mut request = ChatRequest {
        model: take_string(&mut fields, "model").unwrap_or_default(),
        stream: fields.shift_remove("stream") == Some(Value::Bool(true)),
        ..ChatRequest::default()
    };
    let system = parse_parts(fields.shift_remove("system"), "system", &mut request.dropped_params)?;
    if !system.is_empty() {
        request.messages.push(Message { role: Role::System, parts: system });
    }
    for (at, value) in into_array(fields.shift_remove("messages"), "messages")?.into_iter().enumerate() {
        request.messages.push(parse_message(value, &format!("messages[{at}]"), &mut request.dropped_params)?);
    }
    for (at, value) in into_array(fields.shift_remove("tools"), "tools")?.into_iter().enumerate() {
        request.tools.push(parse_tool(value, &format!("tools[{at}]"))?);
    }
    if let Some(choice) = fields.shift_remove("tool_choice").filter(|choice| !choice.is_null()) {
        parse_tool_choice(choice, &mut request, &mut fields)?;
    }
    rename_params(&mut fields, &mut request.dropped_params);
    request.fields = fields;
    Ok(request)
}

/// Renames parameters to their names in chat completions.
fn rename_params(fields: &mut Fields, dropped: &mut DroppedParams) {
    if let Some(stop) = fields.shift_remove("stop_sequences") {
        fields.insert("stop".into(), stop);
    }
    if let Some(mut metadata) = take_object(fields, "metadata") {
        if let Some(user) = metadata.shift_remove("user_id").filter(|user| !user.is_null()) {
            fields.insert("user".into(), user);
        }
        dropped.add_remaining_fields("metadata", &metadata);
    }
    // `auto` can be omitted. Other tiers differ between providers and are reported as dropped.
    if fields.shift_remove("service_tier").is_some_and(|tier| tier != "auto") {
        dropped.add("service_tier");
    }
    let Some(mut config) = take_object(fields, "output_config") else { return };
    if let Some(effort) = config.shift_remove("effort") {
        fields.insert("reasoning_effort".into(), effort);
    }
    if config.get("format").is_some_and(|format| format["type"] == "json_schema")
        && let Some(mut format) = take_object(&mut config, "format")
    {
        let schema = format.shift_remove("schema").unwrap_or_default();
        let schema = json!({"name": "answer", "schema": schema, "strict": true});
        fields.insert("response_format".into(), json!({"type": "json_schema", "json_schema": schema}));
    }
    dropped.add_remaining_fields("output_config", &config);
}

fn parse_message(value: Value, path: &str, dropped: &mut DroppedParams) -> Result<Message, RequestError> {
    let mut fields = into_object(value, path)?;
    let role = match take_required_string(&mut fields, "role", path)?.as_str() {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "system" => Role::System,
        other => {
            let message = format!("`{other}` is not supported; must be user or assistant");
            return Err(RequestError::new(format!("{path}.role"), message));
        }
    };
    let parts = parse_parts(fields.shift_remove("content"), &format!("{path}.content"), dropped)?;
    dropped.add_remaining_fields("messages", &fields);
    Ok(Message { role, parts })
}

fn parse_parts(value: Option<Value>, path: &str, dropped: &mut DroppedParams) -> Result<Vec<Part>, RequestError> {
    match value {
        Some(Value::String(text)) => Ok(vec![Part::text(text)]),
        value => {
            let items = into_array(value, path)?.into_iter().enumerate();
            items.map(|(at, item)| parse_part(item, &format!("{path}[{at}]"), dropped)).collect()
        }
    }
}

fn parse_part(value: Value, path: &str, dropped: &mut DroppedParams) -> Result<Part, RequestError> {
    let mut fields = into_object(value, path)?;
    let kind = take_required_string(&mut fields, "type", path)?;
    let cache = fields.shift_remove("cache_control").filter(|cache| !cache.is_null());
    let part = match kind.as_str() {
        "text" => Part::Text {
            text: take_required_string(&mut fields, "text", path)?,
            cache,
            citations: take_citations(&mut fields),
        },
        "image" => Part::Image { source: parse_source(&mut fields, path)?, detail: None, cache },
        "document" => {
            let name = take_string(&mut fields, "title");
            Part::Document {
                source: parse_source(&mut fields, path)?,
                name,
                cache,
                extra: take_document_extra(&mut fields).into(),
            }
        }
        "tool_use" => Part::ToolCall(ToolCall {
            id: take_required_string(&mut fields, "id", path)?,
            name: take_required_string(&mut fields, "name", path)?,
            arguments: fields.shift_remove("input").unwrap_or_else(|| json!({})).to_string(),
            signature: take_string(&mut fields, "thought_signature"),
            cache,
        }),
        "tool_result" => Part::ToolResult {
            id: take_required_string(&mut fields, "tool_use_id", path)?,
            is_error: fields.shift_remove("is_error") == Some(Value::Bool(true)),
            parts: parse_parts(fields.shift_remove("content"), &format!("{path}.content"), dropped)?,
            cache,
        },
        "thinking" => Part::Thinking {
            text: take_string(&mut fields, "thinking").unwrap_or_default(),
            signature: take_string(&mut fields, "signature").filter(|signature| !signature.is_empty()),
        },
        "redacted_thinking" => {
            let data = take_required_string(&mut fields, "data", path)?;
            match data.strip_prefix(TEXT_SIGNATURE_PREFIX) {
                Some(signature) => Part::Signature(signature.to_owned()),
                None => Part::RedactedThinking { data },
            }
        }
        // Earlier calls of server tools, with their results. The rest of the conversation makes sense without them.
        server_tool if is_server_tool_block(server_tool) => {
            return Ok(Part::ProviderBlock { kind, fields });
        }
        other => {
            return Err(RequestError::new(
                format!("{path}.type"),
                format!("`{other}` is not supported by this provider"),
            ));
        }
    };
    dropped.add_remaining_fields(&kind, &fields);
    Ok(part)
}

fn parse_source(fields: &mut Fields, path: &str) -> Result<Source, RequestError> {
    let path = format!("{path}.source");
    let mut source = into_object(fields.shift_remove("source").unwrap_or_default(), &path)?;
    let kind = take_required_string(&mut source, "type", &path)?;
    match kind.as_str() {
        "base64" => Ok(Source::Data {
            mime: take_required_string(&mut source, "media_type", &path)?,
            data: take_required_string(&mut source, "data", &path)?,
        }),
        "url" => Ok(Source::Url { url: take_required_string(&mut source, "url", &path)?, mime: None }),
        "text" => Ok(Source::Text(take_required_string(&mut source, "data", &path)?)),
        "file" => Ok(Source::File(take_required_string(&mut source, "file_id", &path)?)),
        other => Err(RequestError::new(format!("{path}.type"), format!("`{other}` is not supported by this provider"))),
    }
}

fn parse_tool(value: Value, path: &str) -> Result<Tool, RequestError> {
    let mut fields = into_object(value, path)?;
    if let Some(kind) = take_string(&mut fields, "type").filter(|kind| kind != "custom") {
        return Ok(Tool::BuiltIn { kind, fields });
    }
    Ok(Tool::Function {
        name: take_required_string(&mut fields, "name", path)?,
        description: take_string(&mut fields, "description"),
        schema: take_schema(&mut fields, "input_schema", path)?,
        strict: fields.shift_remove("strict").filter(|strict| !strict.is_null()),
        cache: fields.shift_remove("cache_control").filter(|cache| !cache.is_null()),
        extra: fields.into(),
    })
}

fn parse_tool_choice(value: Value, request: &mut ChatRequest, fields: &mut Fields) -> Result<(), RequestError> {
    let mut choice = into_object(value, "tool_choice")?;
    if let Some(Value::Bool(is_alone)) = choice.shift_remove("disable_parallel_tool_use") {
        fields.insert("parallel_tool_calls".into(), (!is_alone).into());
    }
    request.tool_choice = Some(match take_required_string(&mut choice, "type", "tool_choice")?.as_str() {
        "auto" => ToolChoice::Auto,
        "none" => ToolChoice::None,
        "any" => ToolChoice::Any,
        "tool" => ToolChoice::Tool(take_required_string(&mut choice, "name", "tool_choice")?),
        _ => return Err(RequestError::new("tool_choice.type", "must be auto, any, tool or none")),
    });
    request.record_dropped_fields("tool_choice", &choice);
    Ok(())
}
