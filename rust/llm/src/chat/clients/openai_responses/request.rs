//! Parser of Responses API requests.

use serde_json::{Value, json};

use crate::chat::clients::openai_responses::response::{REDACTED_PREFIX, TEXT_SIGNATURE_PREFIX};
use crate::{
    chat::request::{
        ChatRequest, Fields, Message, Part, RequestError, Role, Source, Tool, ToolCall, ToolChoice, into_array,
        into_object, parse_body, take_object, take_required_string, take_schema, take_string,
    },
    translation::dropped::DroppedParams,
};

/// Request fields that the response repeats.
const ECHOED_FIELDS: &[&str] = &[
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "reasoning",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_p",
    "user",
];

/// Fields that only work with a provider that stores responses.
const STATEFUL_FIELDS: &[&str] = &["previous_response_id", "conversation", "prompt", "background"];

/// Parses a request. Also returns the fields that its response repeats.
pub fn parse_request(json: &[u8]) -> Result<(ChatRequest, Fields), RequestError> {
    let mut fields = parse_body(json)?;
    for key in STATEFUL_FIELDS {
        if fields.shift_remove(*key).is_some_and(|value| !value.is_null() && value != false) {
            return Err(RequestError::new(*key, "this provider does not store responses; send the complete input"));
        }
    }
    let echo = ECHOED_FIELDS.iter().filter_map(|key| Some(((*key).to_owned(), fields.get(*key)?.clone()))).collect();
    let mut request = ChatRequest {
        model: take_string(&mut fields, "model").unwrap_or_default(),
        stream: fields.shift_remove("stream") == Some(Value::Bool(true)),
        ..ChatRequest::default()
    };
    if let Some(text) = take_string(&mut fields, "instructions") {
        request.messages.push(Message { role: Role::System, parts: vec![Part::text(text)] });
    }
    match fields.shift_remove("input") {
        Some(Value::String(text)) => request.messages.push(Message { role: Role::User, parts: vec![Part::text(text)] }),
        input => {
            for (at, value) in into_array(input, "input")?.into_iter().enumerate() {
                request.messages.push(parse_item(value, &format!("input[{at}]"), &mut request.dropped_params)?);
            }
        }
    }
    for (at, value) in into_array(fields.shift_remove("tools"), "tools")?.into_iter().enumerate() {
        request.tools.push(parse_tool(value, &format!("tools[{at}]"))?);
    }
    request.tool_choice = parse_tool_choice(fields.shift_remove("tool_choice"))?;
    rename_params(&mut fields, &mut request.dropped_params);
    request.fields = fields;
    Ok((request, echo))
}

/// Renames parameters to their names in chat completions.
fn rename_params(fields: &mut Fields, dropped: &mut DroppedParams) {
    // Responses are not stored here, so `metadata` is only repeated in the response.
    fields.shift_remove("metadata");
    if fields.shift_remove("store") == Some(Value::Bool(true)) {
        dropped.add("store");
    }
    if let Some(options) = take_object(fields, "stream_options") {
        dropped.add_remaining_fields("stream_options", &options);
    }
    if fields.get("truncation").is_some_and(|truncation| truncation == "disabled") {
        fields.shift_remove("truncation");
    }
    // Thinking is always returned if the client may see it, and encrypted if its provider encrypts it.
    if fields.get("include") == Some(&json!(["reasoning.encrypted_content"])) {
        fields.shift_remove("include");
    }
    if let Some(most) = fields.shift_remove("max_output_tokens").filter(|most| !most.is_null()) {
        fields.insert("max_tokens".into(), most);
    }
    if let Some(mut reasoning) = take_object(fields, "reasoning") {
        if let Some(effort) = reasoning.shift_remove("effort").filter(|effort| !effort.is_null()) {
            fields.insert("reasoning_effort".into(), effort);
        }
        // Thinking is returned whenever there is any.
        for key in ["summary", "generate_summary"] {
            reasoning.shift_remove(key);
        }
        dropped.add_remaining_fields("reasoning", &reasoning);
    }
    if let Some(mut text) = take_object(fields, "text") {
        if let Some(verbosity) = text.shift_remove("verbosity").filter(|level| !level.is_null()) {
            fields.insert("verbosity".into(), verbosity);
        }
        if let Some(format) = text.shift_remove("format").filter(|format| format["type"] != "text") {
            fields.insert("response_format".into(), to_chat_response_format(format));
        }
        dropped.add_remaining_fields("text", &text);
    }
}

/// Converts a response format to that of chat completions, where the schema is nested one level deeper.
fn to_chat_response_format(format: Value) -> Value {
    match format {
        Value::Object(mut schema) if schema.get("type") == Some(&json!("json_schema")) => {
            schema.shift_remove("type");
            json!({"type": "json_schema", "json_schema": schema})
        }
        other => other,
    }
}

fn parse_item(value: Value, path: &str, dropped: &mut DroppedParams) -> Result<Message, RequestError> {
    let mut fields = into_object(value, path)?;
    let kind = take_string(&mut fields, "type").unwrap_or_else(|| "message".into());
    // The id and status of an item mean nothing to a provider that did not store it.
    for key in ["id", "status"] {
        fields.shift_remove(key);
    }
    let (role, parts) = match kind.as_str() {
        "message" => {
            let role = take_required_string(&mut fields, "role", path)?;
            (
                parse_role(&role, path)?,
                parse_content(fields.shift_remove("content"), &format!("{path}.content"), dropped)?,
            )
        }
        "function_call" => {
            let hints = fields.shift_remove("extra_content").unwrap_or_default();
            let signature = hints.pointer("/google/thought_signature").and_then(Value::as_str).map(ToOwned::to_owned);
            let call = ToolCall {
                id: take_required_string(&mut fields, "call_id", path)?,
                name: take_required_string(&mut fields, "name", path)?,
                arguments: take_string(&mut fields, "arguments").unwrap_or_default(),
                signature,
                cache: None,
            };
            (Role::Assistant, vec![Part::ToolCall(call)])
        }
        "function_call_output" => {
            let id = take_required_string(&mut fields, "call_id", path)?;
            let parts = parse_content(fields.shift_remove("output"), &format!("{path}.output"), dropped)?;
            (Role::User, vec![Part::ToolResult { id, parts, is_error: false, cache: None }])
        }
        "image_generation_call" => {
            let data = take_required_string(&mut fields, "result", path)?;
            let mime = format!("image/{}", take_string(&mut fields, "output_format").unwrap_or_else(|| "png".into()));
            let source = Source::Data { mime, data };
            (Role::Assistant, vec![Part::Image { source, detail: None, cache: None }])
        }
        "reasoning" => {
            let summary = into_array(fields.shift_remove("summary"), &format!("{path}.summary"))?;
            let text = summary.iter().filter_map(|part| part["text"].as_str()).collect();
            let signature = take_string(&mut fields, "encrypted_content").filter(|sealed| !sealed.is_empty());
            let unsealed = |prefix| signature.as_deref().and_then(|sealed: &str| sealed.strip_prefix(prefix));
            let part = match (unsealed(REDACTED_PREFIX), unsealed(TEXT_SIGNATURE_PREFIX)) {
                (Some(data), _) => Part::RedactedThinking { data: data.to_owned() },
                (None, Some(seal)) => Part::Signature(seal.to_owned()),
                (None, None) => Part::Thinking { text, signature },
            };
            (Role::Assistant, vec![part])
        }
        other => {
            return Err(RequestError::new(
                format!("{path}.type"),
                format!("`{other}` is not supported by this provider"),
            ));
        }
    };
    dropped.add_remaining_fields("input", &fields);
    Ok(Message { role, parts })
}

fn parse_role(role: &str, path: &str) -> Result<Role, RequestError> {
    match role {
        "user" => Ok(Role::User),
        "assistant" => Ok(Role::Assistant),
        "system" | "developer" => Ok(Role::System),
        other => Err(RequestError::new(
            format!("{path}.role"),
            format!("`{other}` is not supported; must be user, assistant, system or developer"),
        )),
    }
}

fn parse_content(value: Option<Value>, path: &str, dropped: &mut DroppedParams) -> Result<Vec<Part>, RequestError> {
    match value {
        Some(Value::String(text)) => Ok(vec![Part::text(text)]),
        value => {
            let items = into_array(value, path)?.into_iter().enumerate();
            items.map(|(at, value)| parse_part(value, &format!("{path}[{at}]"), dropped)).collect()
        }
    }
}

fn parse_part(value: Value, path: &str, dropped: &mut DroppedParams) -> Result<Part, RequestError> {
    let mut fields = into_object(value, path)?;
    let part = match take_required_string(&mut fields, "type", path)?.as_str() {
        "input_text" | "output_text" | "text" => Part::text(take_required_string(&mut fields, "text", path)?),
        "refusal" => Part::text(take_required_string(&mut fields, "refusal", path)?),
        "input_image" => {
            let detail = fields.shift_remove("detail").filter(|detail| detail != "auto" && !detail.is_null());
            let source = match take_string(&mut fields, "image_url") {
                Some(url) => Source::from_url(url, None),
                None => Source::File(take_required_string(&mut fields, "file_id", path)?),
            };
            Part::Image { source, detail, cache: None }
        }
        "input_file" => {
            let name = take_string(&mut fields, "filename");
            let source = match (take_string(&mut fields, "file_data"), take_string(&mut fields, "file_url")) {
                (Some(data), _) => Source::from_url(data, None),
                (None, Some(url)) => Source::Url { url, mime: None },
                (None, None) => Source::File(take_required_string(&mut fields, "file_id", path)?),
            };
            Part::Document { source, name, cache: None, extra: Box::default() }
        }
        other => {
            return Err(RequestError::new(
                format!("{path}.type"),
                format!("`{other}` is not supported by this provider"),
            ));
        }
    };
    dropped.add_remaining_fields("content", &fields);
    Ok(part)
}

fn parse_tool(value: Value, path: &str) -> Result<Tool, RequestError> {
    let mut fields = into_object(value, path)?;
    let kind = take_required_string(&mut fields, "type", path)?;
    if kind != "function" {
        // Built-in tools of one API differ from those of another, even if they have the same name.
        return Err(RequestError::new(format!("{path}.type"), format!("`{kind}` is not supported by this provider")));
    }
    Ok(Tool::Function {
        name: take_required_string(&mut fields, "name", path)?,
        description: take_string(&mut fields, "description"),
        schema: take_schema(&mut fields, "parameters", path)?,
        strict: fields.shift_remove("strict").filter(|strict| !strict.is_null()),
        cache: None,
        extra: fields.into(),
    })
}

fn parse_tool_choice(value: Option<Value>) -> Result<Option<ToolChoice>, RequestError> {
    let wrong = || RequestError::new("tool_choice", "must be auto, none, required or a named function");
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(mode)) if mode == "auto" => Ok(Some(ToolChoice::Auto)),
        Some(Value::String(mode)) if mode == "none" => Ok(Some(ToolChoice::None)),
        Some(Value::String(mode)) if mode == "required" => Ok(Some(ToolChoice::Any)),
        Some(Value::Object(choice)) if choice.get("type") == Some(&json!("function")) => {
            Ok(Some(ToolChoice::Tool(choice.get("name").and_then(Value::as_str).ok_or_else(wrong)?.to_owned())))
        }
        Some(_) => Err(wrong()),
    }
}
