//! Builds the request body of Converse.

use serde_json::{Value, json};

use crate::{
    chat::{
        providers::{
            anthropic_messages::{self, thinking},
            bedrock_converse::{
                document_names,
                vendor_fields::{self, CachePointPosition, Vendor},
            },
        },
        request::{ChatRequest, Message, Part, Role, Source, Tool, ToolChoice},
        tool_names,
        tool_schema::object_schema,
    },
    citations,
    errors::RequestError,
    fields::Fields,
};

/// Fields of `inferenceConfig`, which apply to the models of all vendors.
const INFERENCE_PARAMS: &[(&str, &str)] =
    &[("max_tokens", "maxTokens"), ("temperature", "temperature"), ("top_p", "topP")];

/// Fields of Bedrock itself: the names that clients send, in camel case or snake case, and Bedrock's own names.
const BEDROCK_FIELDS: &[(&str, &str)] = &[
    ("guardrailConfig", "guardrailConfig"),
    ("guardrail_config", "guardrailConfig"),
    ("performance_config", "performanceConfig"),
    ("additionalModelResponseFieldPaths", "additionalModelResponseFieldPaths"),
    ("additional_model_response_field_paths", "additionalModelResponseFieldPaths"),
];

pub fn build_body(request: &mut ChatRequest) -> Result<Fields, RequestError> {
    request.reject_several_choices()?;
    request.normalise_tool_names(tool_names::OPENAI);
    let mut out = Fields::new();
    let may_think = vendor_fields::can_think(request);
    write_messages(request, &mut out)?;
    let native = write_tools(request, &mut out)?;
    let mut inference = Fields::new();
    for key in ["temperature", "top_p"] {
        request.clamp_param(key, &(0..=1));
    }
    vendor_fields::convert_thinking(request, may_think)?;
    for (key, name) in INFERENCE_PARAMS {
        request.move_param(key, &mut inference, name);
    }
    let rejects_blank = vendor_fields::may_be_claude(&request.model);
    request.move_stop_sequences(&mut inference, "stopSequences", usize::MAX, |stop| {
        !(stop.is_empty() || rejects_blank && stop.trim().is_empty())
    });
    if !inference.is_empty() {
        out.insert("inferenceConfig".into(), inference.into());
    }
    for (key, name) in BEDROCK_FIELDS {
        request.move_param(key, &mut out, name);
    }
    write_output_config(request, &mut out);
    vendor_fields::write_vendor_fields(request, native, &mut out);
    // The URL path contains the model and selects streaming.
    request.model.clear();
    request.stream = false;
    Ok(out)
}

/// Writes the JSON schema of the response as `outputConfig`.
fn write_output_config(request: &mut ChatRequest, out: &mut Fields) {
    let Some(format) = request.take_param("response_format") else { return };
    let json_schema = &format["json_schema"];
    if json_schema["schema"].is_object() {
        let mut structure = json!({"schema": json_schema["schema"].to_string()});
        for key in ["name", "description"] {
            if json_schema[key].is_string() {
                structure[key] = json_schema[key].clone();
            }
        }
        let format = json!({"type": "json_schema", "structure": {"jsonSchema": structure}});
        out.insert("outputConfig".into(), json!({"textFormat": format}));
    } else if format["type"] != "text" {
        request.fields.insert("response_format".into(), format);
    }
}

fn write_messages(request: &mut ChatRequest, out: &mut Fields) -> Result<(), RequestError> {
    let mut system = Vec::new();
    let mut turns: Vec<(Role, Vec<Value>)> = Vec::new();
    let were = request.messages.len();
    for (at, message) in std::mem::take(&mut request.messages).into_iter().enumerate() {
        let Message { role, parts } = message;
        let mut content = Vec::new();
        for part in parts {
            write_part(part, &format!("messages[{at}]"), request, &mut content)?;
        }
        match turns.last_mut() {
            _ if role == Role::System => system.extend(content),
            Some((last, turn)) if *last == role => turn.extend(content),
            _ => turns.push((role, content)),
        }
    }
    turns.retain(|(_, blocks)| !blocks.is_empty());
    ChatRequest::reject_empty_messages(were, turns.len())?;
    if vendor_fields::may_be_claude(&request.model) {
        anthropic_messages::trim_prefill(&mut turns);
    }
    document_names::assign_unique_names(system.iter_mut().chain(turns.iter_mut().flat_map(|(_, blocks)| blocks)));
    let turn =
        |(role, blocks)| json!({"role": if role == Role::User { "user" } else { "assistant" }, "content": blocks});
    out.insert("messages".into(), turns.into_iter().map(turn).collect());
    if !system.is_empty() {
        out.insert("system".into(), system.into());
    }
    Ok(())
}

fn write_part(part: Part, path: &str, request: &mut ChatRequest, out: &mut Vec<Value>) -> Result<(), RequestError> {
    let refused = |input_kind: &str| RequestError::new(path, format!("this provider does not accept {input_kind}"));
    let (block, cache) = match part {
        // Bedrock rejects text that is only whitespace.
        Part::Text { text, .. } if text.trim().is_empty() => return Ok(()),
        Part::Text { text, cache, citations } => (build_text_block(&text, citations.as_ref(), request), cache),
        Part::Image { source: Source::Data { mime, data }, cache, detail } => {
            request.record_dropped_if_set("image_url.detail", detail.as_ref());
            (build_media_block(&mime, &data).ok_or_else(|| refused(&mime))?, cache)
        }
        Part::Image { .. } => return Err(refused("images by URL; send their bytes")),
        Part::Document { source, name, cache, extra: more } => {
            let mut block = build_document(source, name).ok_or_else(|| refused("this document"))?;
            for (key, value) in *more {
                block["document"][key] = value;
            }
            (block, cache)
        }
        Part::Audio { .. } => return Err(refused("audio")),
        Part::Thinking { text, signature: Some(signature) } if thinking::is_claude_signature(&signature) => {
            (json!({"reasoningContent": {"reasoningText": {"text": text, "signature": signature}}}), None)
        }
        Part::Thinking { .. } => {
            request.record_dropped("reasoning_content");
            return Ok(());
        }
        Part::RedactedThinking { data } => (json!({"reasoningContent": {"redactedContent": data}}), None),
        Part::Signature(_) => {
            request.record_dropped("thought_signature");
            return Ok(());
        }
        Part::ProviderBlock { kind, .. } => {
            request.record_dropped(&kind);
            return Ok(());
        }
        Part::ToolCall(call) => {
            let input = call.parse_arguments(&mut request.dropped_params);
            let id = vendor_fields::call_id_format(&request.model).normalise_id(&call.id);
            (json!({"toolUse": {"toolUseId": id, "name": call.name, "input": input}}), call.cache)
        }
        Part::ToolResult { id, parts, is_error, cache } => {
            let (hints, within) = build_result_content(parts, path, request)?;
            let cache = cache.or(within);
            let mut result =
                json!({"toolUseId": vendor_fields::call_id_format(&request.model).normalise_id(&id), "content": hints});
            if is_error {
                result["status"] = "error".into();
            }
            (json!({"toolResult": result}), cache)
        }
    };
    out.push(block);
    write_cache_point(cache.as_ref(), CachePointPosition::Messages, request, out);
    Ok(())
}

fn build_text_block(text: &str, citations: Option<&Value>, request: &mut ChatRequest) -> Value {
    match citations.map(citations::to_converse_request) {
        Some(Some(converted)) => json!({"citationsContent": {"content": [{"text": text}], "citations": converted}}),
        unsupported => {
            request.record_dropped_if_set("citations", unsupported.as_ref());
            json!({"text": text})
        }
    }
}

/// Builds the content of a tool result. Also returns its last cache hint, because a cache point must follow the result,
/// not lie within it.
fn build_result_content(
    parts: Vec<Part>,
    path: &str,
    request: &mut ChatRequest,
) -> Result<(Vec<Value>, Option<Value>), RequestError> {
    let (mut inner, mut hints, mut hint) = (Vec::new(), Vec::new(), None);
    for mut part in parts {
        if let Part::Text { cache, .. } | Part::Image { cache, .. } | Part::Document { cache, .. } = &mut part {
            hint = cache.take().or(hint);
        }
        // A tool result cannot contain an image by URL, so the model gets the URL as text.
        match part {
            Part::Image { source: Source::Url { url, .. }, .. } => inner.push(json!({"text": url})),
            part => write_part(part, path, request, &mut hints)?,
        }
    }
    hints.append(&mut inner);
    Ok((hints, hint))
}

/// Writes a cache hint as a `cachePoint` block, if the model supports it.
fn write_cache_point(
    cache: Option<&Value>,
    position: CachePointPosition,
    request: &mut ChatRequest,
    out: &mut Vec<Value>,
) {
    let Some(cache) = cache else { return };
    if !vendor_fields::supports_caching(&request.model, position) {
        return request.record_dropped("cache_control");
    }
    let mut point = json!({"type": "default"});
    match cache.get("ttl") {
        Some(ttl) if vendor_fields::supports_cache_ttl(&request.model) => point["ttl"] = ttl.clone(),
        Some(ttl) if ttl != "5m" => request.record_dropped("cache_control.ttl"),
        _ => (),
    }
    out.push(json!({"cachePoint": point}));
}

/// Builds an image or video block by MIME type. An empty type counts as an image.
fn build_media_block(mime: &str, data: &str) -> Option<Value> {
    let (kind, format) = match mime {
        "" | "image/png" => ("image", "png"),
        "image/jpeg" | "image/jpg" => ("image", "jpeg"),
        "image/gif" => ("image", "gif"),
        "image/webp" => ("image", "webp"),
        "video/mp4" => ("video", "mp4"),
        "video/quicktime" => ("video", "mov"),
        "video/x-matroska" => ("video", "mkv"),
        "video/webm" => ("video", "webm"),
        "video/x-flv" => ("video", "flv"),
        "video/mpeg" => ("video", "mpeg"),
        "video/x-ms-wmv" => ("video", "wmv"),
        "video/3gpp" => ("video", "three_gp"),
        _ => return None,
    };
    let mut out = Fields::new();
    out.insert(kind.into(), json!({"format": format, "source": {"bytes": data}}));
    Some(out.into())
}

fn build_document(source: Source, name: Option<String>) -> Option<Value> {
    let (format, source_json) = match source {
        Source::Data { mime, data } => (document_format(&mime)?, json!({"bytes": data})),
        Source::Text(text) => ("txt", json!({"text": text})),
        Source::Url { url, mime } if url.starts_with("s3://") => {
            (mime.as_deref().map_or(Some("pdf"), document_format)?, json!({"s3Location": {"uri": url}}))
        }
        _ => return None,
    };
    let name = name.unwrap_or_default();
    Some(json!({"document": {"format": format, "name": name, "source": source_json}}))
}

fn document_format(mime: &str) -> Option<&'static str> {
    Some(match mime {
        "application/pdf" => "pdf",
        "text/plain" => "txt",
        "text/markdown" => "md",
        "text/csv" => "csv",
        "text/html" => "html",
        "application/msword" => "doc",
        "application/vnd.ms-excel" => "xls",
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document" => "docx",
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet" => "xlsx",
        _ => return None,
    })
}

/// Declares the tools that were called earlier, if the client declares none. Converse rejects messages with tool calls
/// in a request without tools.
fn declare_called_tools(request: &mut ChatRequest, out: &mut Fields) {
    let mut names: Vec<&Value> = Vec::new();
    let messages = out.get("messages").and_then(Value::as_array).into_iter().flatten();
    for block in messages.flat_map(|message| message["content"].as_array().into_iter().flatten()) {
        let name = &block["toolUse"]["name"];
        if name.is_string() && !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() {
        return;
    }
    let schema = json!({"json": {"type": "object", "properties": {}}});
    let tools: Vec<_> = names.iter().map(|name| json!({"toolSpec": {"name": name, "inputSchema": schema}})).collect();
    // Reported as dropped, because the model may call these tools although the client did not declare them.
    request.record_dropped("tools");
    out.insert("toolConfig".into(), json!({"tools": tools}));
}

/// Writes function tools. Returns the server tools of Anthropic, which only its models support.
fn write_tools(request: &mut ChatRequest, out: &mut Fields) -> Result<Vec<Value>, RequestError> {
    let (mut tools, mut native) = (Vec::new(), Vec::new());
    if request.tool_choice == Some(ToolChoice::None) && !request.tools.is_empty() {
        // Converse has no such choice. Without tools the model cannot call any.
        request.tools.clear();
        request.tool_choice = None;
    }
    let is_anthropic = Vendor::from_model(&request.model) == Vendor::Anthropic;
    request.drop_built_in_tools(|kind, fields| is_anthropic && anthropic_messages::is_native_tool(kind, fields));
    for tool in std::mem::take(&mut request.tools) {
        let (name, description, schema, strict, cache, more) = match tool {
            Tool::Function { name, description, schema, strict, cache, extra: more } => {
                (name, description, schema, strict, cache, more)
            }
            Tool::BuiltIn { kind, fields } => {
                native.push(anthropic_messages::native_tool(&kind, fields));
                continue;
            }
        };
        request.record_dropped_fields("tools", &more);
        let (schema, is_merged) = object_schema(schema);
        request.record_dropped_if_set("inputSchema.anyOf", is_merged.then_some(&()));
        let mut spec = json!({"name": name});
        // Bedrock rejects an empty description.
        if let Some(description) = description.filter(|text| !text.is_empty()) {
            spec["description"] = description.into();
        }
        spec["inputSchema"] = json!({"json": schema});
        if strict == Some(Value::Bool(true)) {
            spec["strict"] = true.into();
        }
        tools.push(json!({"toolSpec": spec}));
        write_cache_point(cache.as_ref(), CachePointPosition::Tools, request, &mut tools);
    }
    if request.take_param("parallel_tool_calls") == Some(Value::Bool(false)) {
        request.record_dropped("parallel_tool_calls");
    }
    let choice = request.tool_choice.take();
    if tools.is_empty() {
        declare_called_tools(request, out);
        match choice {
            Some(ToolChoice::Any | ToolChoice::Tool(_)) if native.is_empty() => {
                return Err(RequestError::new("tool_choice", "there are no tools"));
            }
            // Converse's tool choice applies to functions only.
            Some(ToolChoice::Any | ToolChoice::Tool(_) | ToolChoice::None) if !native.is_empty() => {
                request.record_dropped("tool_choice");
            }
            _ => (),
        }
        return Ok(native);
    }
    let mut config = json!({"tools": tools});
    if let Some(choice) = choice {
        config["toolChoice"] = encode_tool_choice(choice);
    }
    out.insert("toolConfig".into(), config);
    Ok(native)
}

fn encode_tool_choice(choice: ToolChoice) -> Value {
    match choice {
        ToolChoice::Auto | ToolChoice::None => json!({"auto": {}}),
        ToolChoice::Any => json!({"any": {}}),
        ToolChoice::Tool(name) => json!({"tool": {"name": name}}),
    }
}
