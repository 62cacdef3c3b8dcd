//! Parser of Responses API requests.

use serde_json::{Value, json};

use crate::{
    chat::{
        client_tools::{self, ClientTools},
        clients::{
            openai_chat,
            openai_responses::response::{REDACTED_PREFIX, TEXT_SIGNATURE_PREFIX},
        },
        request::{ChatRequest, Message, Part, Role, Source, Tool, ToolCall, ToolChoice},
    },
    errors::RequestError,
    fields::{
        Fields, into_array, into_object, parse_body, take_object, take_required_string, take_schema, take_string,
    },
    reports::DroppedParams,
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
    let echo = copy_echoed_fields(&fields);
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
                let message = parse_item(value, &format!("input[{at}]"), &mut request)?;
                request.messages.extend(message);
            }
        }
    }
    let tools = into_array(fields.shift_remove("tools"), "tools")?;
    let has_tools = !tools.is_empty();
    for (at, value) in tools.into_iter().enumerate() {
        parse_tool(value, &format!("tools[{at}]"), &mut request)?;
    }
    parse_tool_choice(fields.shift_remove("tool_choice"), has_tools, &mut request)?;
    rename_params(&mut fields, &mut request.dropped_params);
    request.fields = fields;
    Ok((request, echo))
}

/// Copies the fields that the response repeats. Like those of `OpenAI`, its tools lack the credentials of the request, so
/// that programs that store responses store no credentials.
fn copy_echoed_fields(fields: &Fields) -> Fields {
    let copy = |key: &&str| Some(((*key).to_owned(), fields.get(*key)?.clone()));
    let mut echo: Fields = ECHOED_FIELDS.iter().filter_map(copy).collect();
    let tools = echo.get_mut("tools").and_then(Value::as_array_mut);
    for tool in tools.into_iter().flatten().filter_map(Value::as_object_mut) {
        tool.shift_remove("authorization");
        tool.shift_remove("headers");
    }
    echo
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
    if let Some(max_tokens) = fields.shift_remove("max_output_tokens").filter(|max_tokens| !max_tokens.is_null()) {
        fields.insert("max_tokens".into(), max_tokens);
    }
    if let Some(mut reasoning) = take_object(fields, "reasoning") {
        if let Some(effort) = reasoning.shift_remove("effort").filter(|effort| !effort.is_null()) {
            fields.insert("reasoning_effort".into(), effort);
        }
        // Removed without a report, because thinking is returned whenever there is any.
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

/// Takes the name of a called tool out of an item, and returns the function that represents it.
fn take_function_name(fields: &mut Fields, path: &str, tools: &mut ClientTools) -> Result<String, RequestError> {
    let name = take_required_string(fields, "name", path)?;
    Ok(match take_string(fields, "namespace") {
        Some(namespace) => tools.add_namespaced(&namespace, &name),
        None => name,
    })
}

/// Takes the signature of a tool call out of its item.
fn take_call_signature(fields: &mut Fields) -> Option<String> {
    let hints = fields.shift_remove("extra_content")?;
    hints.pointer("/google/thought_signature").and_then(Value::as_str).map(ToOwned::to_owned)
}

fn parse_function_call(
    fields: &mut Fields,
    path: &str,
    cache: Option<Value>,
    tools: &mut ClientTools,
) -> Result<ToolCall, RequestError> {
    let signature = take_call_signature(fields);
    Ok(ToolCall {
        id: take_required_string(fields, "call_id", path)?,
        name: take_function_name(fields, path, tools)?,
        arguments: take_string(fields, "arguments").unwrap_or_default(),
        signature,
        cache,
    })
}

/// Parses a call of a custom tool, whose input is plain text.
fn parse_custom_call(
    fields: &mut Fields,
    path: &str,
    cache: Option<Value>,
    tools: &mut ClientTools,
) -> Result<ToolCall, RequestError> {
    let input = take_string(fields, "input").unwrap_or_default();
    let signature = take_call_signature(fields);
    let call = ToolCall {
        id: take_required_string(fields, "call_id", path)?,
        name: take_function_name(fields, path, tools)?,
        arguments: client_tools::custom_arguments(&input),
        signature,
        cache,
    };
    tools.add_custom(&call.name);
    Ok(call)
}

fn parse_reasoning(fields: &mut Fields, path: &str) -> Result<Part, RequestError> {
    let summary = into_array(fields.shift_remove("summary"), &format!("{path}.summary"))?;
    let text = summary.iter().filter_map(|part| part["text"].as_str()).collect();
    let signature = take_string(fields, "encrypted_content").filter(|sealed| !sealed.is_empty());
    let unsealed = |prefix| signature.as_deref().and_then(|sealed: &str| sealed.strip_prefix(prefix));
    Ok(match (unsealed(REDACTED_PREFIX), unsealed(TEXT_SIGNATURE_PREFIX)) {
        (Some(data), _) => Part::RedactedThinking { data: data.to_owned() },
        (None, Some(seal)) => Part::Signature(seal.to_owned()),
        (None, None) => Part::Thinking { text, signature },
    })
}

/// Parses an item of the input. Returns `None` for an item that no other provider has.
fn parse_item(value: Value, path: &str, request: &mut ChatRequest) -> Result<Option<Message>, RequestError> {
    let ChatRequest { dropped_params: dropped, client_tools, .. } = request;
    let mut fields = into_object(value, path)?;
    let kind = take_string(&mut fields, "type").unwrap_or_else(|| "message".into());
    let cache = openai_chat::take_cache_control(&mut fields);
    // The id and status of an item mean nothing to a provider that did not store it.
    for key in ["id", "status"] {
        fields.shift_remove(key);
    }
    let (role, parts) = match kind.as_str() {
        "message" => {
            let role = take_required_string(&mut fields, "role", path)?;
            (
                parse_role(&role, path)?,
                parse_content(fields.shift_remove("content"), &format!("{path}.content"), cache, dropped)?,
            )
        }
        "function_call" => {
            let call = parse_function_call(&mut fields, path, cache, client_tools)?;
            (Role::Assistant, vec![Part::ToolCall(call)])
        }
        "custom_tool_call" => {
            let call = parse_custom_call(&mut fields, path, cache, client_tools)?;
            (Role::Assistant, vec![Part::ToolCall(call)])
        }
        "function_call_output" | "custom_tool_call_output" => {
            let id = take_required_string(&mut fields, "call_id", path)?;
            let parts = parse_content(fields.shift_remove("output"), &format!("{path}.output"), None, dropped)?;
            (Role::User, vec![Part::ToolResult { id, parts, is_error: false, cache }])
        }
        "image_generation_call" => {
            let data = take_required_string(&mut fields, "result", path)?;
            let mime = format!("image/{}", take_string(&mut fields, "output_format").unwrap_or_else(|| "png".into()));
            let source = Source::Data { mime, data };
            (Role::Assistant, vec![Part::Image { source, detail: None, cache: None }])
        }
        "reasoning" => (Role::Assistant, vec![parse_reasoning(&mut fields, path)?]),
        // The reference points to an item that the provider stored. The gateway does not know the content of that item.
        stored @ "item_reference" => {
            return Err(RequestError::new(
                format!("{path}.type"),
                format!("`{stored}` is not supported by this provider; send the item itself"),
            ));
        }
        // Items of tools that `OpenAI` runs itself, and of its other server-side features. Other providers have no such
        // items, and the rest of the conversation makes sense without them.
        hosted => {
            dropped.add(&format!("input.{hosted}"));
            return Ok(None);
        }
    };
    dropped.add_remaining_fields("input", &fields);
    Ok(Some(Message { role, parts }))
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

/// Parses the content of an item. Applies the `cache_control` of the item to its last part.
fn parse_content(
    value: Option<Value>,
    path: &str,
    cache: Option<Value>,
    dropped: &mut DroppedParams,
) -> Result<Vec<Part>, RequestError> {
    let mut parts = match value {
        Some(Value::String(text)) => vec![Part::text(text)],
        value => {
            let items = into_array(value, path)?.into_iter().enumerate();
            items.map(|(at, value)| parse_part(value, &format!("{path}[{at}]"), dropped)).collect::<Result<_, _>>()?
        }
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

fn parse_part(value: Value, path: &str, dropped: &mut DroppedParams) -> Result<Part, RequestError> {
    let mut fields = into_object(value, path)?;
    let cache = openai_chat::take_cache_control(&mut fields);
    let part = match take_required_string(&mut fields, "type", path)?.as_str() {
        kind @ ("input_text" | "output_text" | "text" | "refusal") => {
            let key = if kind == "refusal" { kind } else { "text" };
            Part::Text { text: take_required_string(&mut fields, key, path)?, cache, citations: None }
        }
        "input_image" => {
            let detail = fields.shift_remove("detail").filter(|detail| detail != "auto" && !detail.is_null());
            let source = match take_string(&mut fields, "image_url") {
                Some(url) => Source::from_url(url, None),
                None => Source::File(take_required_string(&mut fields, "file_id", path)?),
            };
            Part::Image { source, detail, cache }
        }
        "input_file" => {
            let name = take_string(&mut fields, "filename");
            let source = match (take_string(&mut fields, "file_data"), take_string(&mut fields, "file_url")) {
                (Some(data), _) if data.starts_with("data:") => Source::from_url(data, None),
                (Some(data), _) => Source::Data { mime: String::new(), data },
                (None, Some(url)) => Source::Url { url, mime: None },
                (None, None) => Source::File(take_required_string(&mut fields, "file_id", path)?),
            };
            let source = source.with_type_of_file(name.as_deref());
            Part::Document { source, name, cache, extra: Box::default() }
        }
        "input_audio" => {
            let path = format!("{path}.input_audio");
            let mut audio = into_object(fields.shift_remove("input_audio").unwrap_or_default(), &path)?;
            let data = take_required_string(&mut audio, "data", &path)?;
            Part::Audio { data, format: take_required_string(&mut audio, "format", &path)? }
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

/// Parses a tool. Namespaces are flattened, and tools with free text become functions with one string. Drops a tool
/// that `OpenAI` runs itself: coding agents always send a fixed list of tools, and work without such tools.
fn parse_tool(value: Value, path: &str, request: &mut ChatRequest) -> Result<(), RequestError> {
    let mut fields = into_object(value, path)?;
    match take_required_string(&mut fields, "type", path)?.as_str() {
        kind @ ("function" | "custom") => {
            let tool = parse_client_tool(kind, fields, path, None, &mut request.client_tools)?;
            request.tools.push(tool);
        }
        "namespace" => {
            let namespace = take_required_string(&mut fields, "name", path)?;
            let tools = into_array(fields.shift_remove("tools"), &format!("{path}.tools"))?;
            for (at, value) in tools.into_iter().enumerate() {
                let path = format!("{path}.tools[{at}]");
                let mut fields = into_object(value, &path)?;
                let kind = take_required_string(&mut fields, "type", &path)?;
                if !matches!(kind.as_str(), "function" | "custom") {
                    request.record_dropped(&format!("tools.{kind}"));
                    continue;
                }
                let tool = parse_client_tool(&kind, fields, &path, Some(&namespace), &mut request.client_tools)?;
                request.tools.push(tool);
            }
            // Removed without a report: each function of the namespace has its own description.
            fields.shift_remove("description");
            request.record_dropped_fields("tools", &fields);
        }
        hosted => request.record_dropped(&format!("tools.{hosted}")),
    }
    Ok(())
}

/// Parses a tool that the client runs.
fn parse_client_tool(
    kind: &str,
    mut fields: Fields,
    path: &str,
    namespace: Option<&str>,
    client_tools: &mut ClientTools,
) -> Result<Tool, RequestError> {
    let mut tool = match kind {
        "function" => Tool::Function {
            name: take_required_string(&mut fields, "name", path)?,
            description: take_string(&mut fields, "description"),
            schema: take_schema(&mut fields, "parameters", path)?,
            strict: fields.shift_remove("strict").filter(|strict| !strict.is_null()),
            cache: openai_chat::take_cache_control(&mut fields),
            extra: fields.into(),
        },
        "custom" => openai_chat::custom_tool(fields, None, path)?,
        other => {
            let message = format!("`{other}` is not supported; must be function or custom");
            return Err(RequestError::new(format!("{path}.type"), message));
        }
    };
    if let Tool::Function { name, .. } = &mut tool {
        if let Some(namespace) = namespace {
            *name = client_tools.add_namespaced(namespace, name);
        }
        if kind == "custom" {
            client_tools.add_custom(name);
        }
    }
    Ok(tool)
}

/// Parses the tool choice. A choice that only dropped tools could fulfil is dropped, too.
fn parse_tool_choice(value: Option<Value>, has_tools: bool, request: &mut ChatRequest) -> Result<(), RequestError> {
    let wrong = || {
        let allowed = "must be auto, none, required, allowed_tools, or a function or custom tool with its name";
        RequestError::new("tool_choice", allowed)
    };
    request.tool_choice = match value {
        None | Some(Value::Null) => None,
        Some(Value::String(mode)) if mode == "auto" => Some(ToolChoice::Auto),
        Some(Value::String(mode)) if mode == "none" => Some(ToolChoice::None),
        Some(Value::String(mode)) if mode == "required" => Some(ToolChoice::Any),
        Some(choice @ Value::Object(_)) => match choice["type"].as_str() {
            Some("allowed_tools") => return openai_chat::apply_allowed_tools(&choice, request),
            Some("function" | "custom") => {
                let name = choice["name"].as_str().ok_or_else(wrong)?;
                let function = match choice["namespace"].as_str() {
                    Some(namespace) => request.client_tools.add_namespaced(namespace, name),
                    None => name.to_owned(),
                };
                Some(ToolChoice::Tool(function))
            }
            Some(_hosted) => {
                request.record_dropped("tool_choice");
                None
            }
            None => return Err(wrong()),
        },
        Some(_) => return Err(wrong()),
    };
    if request.tools.is_empty() && has_tools && request.tool_choice == Some(ToolChoice::Any) {
        request.tool_choice = None;
        request.record_dropped("tool_choice");
    }
    Ok(())
}
