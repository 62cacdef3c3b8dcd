//! Parser of Converse requests.

use serde_json::{Value, json};

use crate::{
    chat::{
        clients::bedrock_converse::signature_blocks,
        request::{
            ChatRequest, Message, Part, Role, Source, Tool, ToolCall, ToolChoice, take_citations, take_document_extra,
        },
    },
    errors::RequestError,
    fields::{Fields, into_array, into_object, parse_body, take_required_string, take_string},
    reports::DroppedParams,
};

/// Fields of `inferenceConfig` and their names in chat completions.
const INFERENCE_PARAM_NAMES: &[(&str, &str)] =
    &[("maxTokens", "max_tokens"), ("temperature", "temperature"), ("topP", "top_p"), ("stopSequences", "stop")];

pub fn parse_request(json: &[u8], model: &str, stream: bool) -> Result<ChatRequest, RequestError> {
    let mut fields = parse_body(json)?;
    let mut request = ChatRequest { model: model.to_owned(), stream, ..ChatRequest::default() };
    // The model is taken from the URL path.
    fields.shift_remove("model");
    let system = parse_blocks(fields.shift_remove("system"), "system", &mut request.dropped_params)?;
    if !system.is_empty() {
        request.messages.push(Message { role: Role::System, parts: system });
    }
    for (at, value) in into_array(fields.shift_remove("messages"), "messages")?.into_iter().enumerate() {
        request.messages.push(parse_message(value, &format!("messages[{at}]"), &mut request.dropped_params)?);
    }
    if let Some(config) = take_field(&mut fields, "toolConfig") {
        parse_tool_config(into_object(config, "toolConfig")?, &mut request)?;
    }
    let mut out = Fields::new();
    if let Some(inference) = take_field(&mut fields, "inferenceConfig") {
        let mut inference = into_object(inference, "inferenceConfig")?;
        for (key, name) in INFERENCE_PARAM_NAMES {
            if let Some(value) = take_field(&mut inference, key) {
                out.insert((*name).to_owned(), value);
            }
        }
        request.record_dropped_fields("inferenceConfig", &inference);
    }
    if let Some(more) = take_field(&mut fields, "additionalModelRequestFields") {
        add_vendor_fields(into_object(more, "additionalModelRequestFields")?, &mut out);
    }
    if let Some(config) = take_field(&mut fields, "outputConfig") {
        parse_output_config(config, &mut out, &mut request.dropped_params)?;
    }
    if let Some(config) = take_field(&mut fields, "performanceConfig").filter(|config| config["latency"] != "standard")
    {
        out.insert("performance_config".into(), config);
    }
    // The remaining fields have no equivalent elsewhere and are passed on unchanged.
    out.extend(fields);
    request.fields = out;
    Ok(request)
}

fn take_field(fields: &mut Fields, key: &str) -> Option<Value> {
    fields.shift_remove(key).filter(|value| !value.is_null())
}

/// Adds the fields that are specific to one vendor's models. Renames those that chat completions have under another
/// name.
fn add_vendor_fields(more: Fields, out: &mut Fields) {
    for (key, value) in more {
        let key = match key.as_str() {
            "reasoning_config" => "thinking".to_owned(),
            _ => key,
        };
        out.entry(key).or_insert(value);
    }
}

fn parse_output_config(config: Value, out: &mut Fields, dropped: &mut DroppedParams) -> Result<(), RequestError> {
    let mut config = into_object(config, "outputConfig")?;
    if let Some(format) = take_field(&mut config, "textFormat") {
        let schema_spec = &format["structure"]["jsonSchema"];
        let schema = schema_spec["schema"].as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
        let path = "outputConfig.textFormat.structure.jsonSchema.schema";
        let schema = schema.ok_or_else(|| RequestError::new(path, "must be a JSON schema, as a string"))?;
        let name = schema_spec["name"].as_str().unwrap_or("answer");
        let mut json_schema = json!({"name": name, "schema": schema, "strict": true});
        if let Some(description) = schema_spec.get("description").filter(|text| text.is_string()) {
            json_schema["description"] = description.clone();
        }
        out.insert("response_format".into(), json!({"type": "json_schema", "json_schema": json_schema}));
    }
    dropped.add_remaining_fields("outputConfig", &config);
    Ok(())
}

fn parse_message(value: Value, path: &str, dropped: &mut DroppedParams) -> Result<Message, RequestError> {
    let mut fields = into_object(value, path)?;
    let role = match take_required_string(&mut fields, "role", path)?.as_str() {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        other => {
            let message = format!("`{other}` is not supported; must be user or assistant");
            return Err(RequestError::new(format!("{path}.role"), message));
        }
    };
    let parts = parse_blocks(fields.shift_remove("content"), &format!("{path}.content"), dropped)?;
    dropped.add_remaining_fields("messages", &fields);
    Ok(Message { role, parts: signature_blocks::restore_signatures(parts) })
}

fn parse_blocks(value: Option<Value>, path: &str, dropped: &mut DroppedParams) -> Result<Vec<Part>, RequestError> {
    let mut parts = Vec::new();
    for (at, item) in into_array(value, path)?.into_iter().enumerate() {
        let path = format!("{path}[{at}]");
        let (kind, value) = parse_single_field(item, &path)?;
        if kind == "cachePoint" {
            mark_cache_point(&mut parts, &value, dropped);
        } else {
            parts.push(parse_block(&kind, value, &path, dropped)?);
        }
    }
    Ok(parts)
}

/// Returns the only field of an object; its key is the kind of the block.
fn parse_single_field(item: Value, path: &str) -> Result<(String, Value), RequestError> {
    let mut fields = into_object(item, path)?.into_iter().filter(|(_, value)| !value.is_null());
    match (fields.next(), fields.next()) {
        (Some(part), None) => Ok(part),
        _ => Err(RequestError::new(path, "must have exactly one field, which names its kind")),
    }
}

/// Returns a `cache_control` hint for a cache point, with its TTL.
fn build_cache_control(point: &Value) -> Value {
    let mut hint = json!({"type": "ephemeral"});
    if let Some(ttl) = point.get("ttl").filter(|ttl| !ttl.is_null()) {
        hint["ttl"] = ttl.clone();
    }
    hint
}

/// Marks the part before a cache point as the end of the cached prefix.
fn mark_cache_point(parts: &mut [Part], point: &Value, dropped: &mut DroppedParams) {
    let hint = build_cache_control(point);
    match parts.last_mut() {
        Some(
            Part::Text { cache, .. }
            | Part::Image { cache, .. }
            | Part::Document { cache, .. }
            | Part::ToolResult { cache, .. }
            | Part::ToolCall(ToolCall { cache, .. }),
        ) => *cache = Some(hint),
        _ => dropped.add("cachePoint"),
    }
}

fn parse_block(kind: &str, value: Value, path: &str, dropped: &mut DroppedParams) -> Result<Part, RequestError> {
    let path = format!("{path}.{kind}");
    match (kind, value) {
        ("text", Value::String(text)) => Ok(Part::text(text)),
        ("json", value) => Ok(Part::text(value.to_string())),
        ("image", value) => parse_image(into_object(value, &path)?, &path, dropped),
        ("document", value) => parse_document(into_object(value, &path)?, &path, dropped),
        ("toolUse", value) => {
            let mut call = into_object(value, &path)?;
            let part = Part::ToolCall(ToolCall {
                id: take_required_string(&mut call, "toolUseId", &path)?,
                name: take_required_string(&mut call, "name", &path)?,
                arguments: call.shift_remove("input").unwrap_or_else(|| json!({})).to_string(),
                signature: None,
                cache: None,
            });
            dropped.add_remaining_fields(kind, &call);
            Ok(part)
        }
        ("toolResult", value) => {
            let mut result = into_object(value, &path)?;
            let id = take_required_string(&mut result, "toolUseId", &path)?;
            let is_error = take_string(&mut result, "status").is_some_and(|status| status == "error");
            let parts = parse_blocks(result.shift_remove("content"), &format!("{path}.content"), dropped)?;
            dropped.add_remaining_fields(kind, &result);
            Ok(Part::ToolResult { id, parts, is_error, cache: None })
        }
        ("citationsContent", value) => {
            let mut cited = into_object(value, &path)?;
            let text = into_array(cited.shift_remove("content"), &format!("{path}.content"))?;
            let text = text.iter().filter_map(|block| block["text"].as_str()).collect();
            let part = Part::Text { text, cache: None, citations: take_citations(&mut cited) };
            dropped.add_remaining_fields(kind, &cited);
            Ok(part)
        }
        ("reasoningContent", value) => parse_reasoning(into_object(value, &path)?, &path),
        _ => Err(RequestError::new(path, format!("`{kind}` is not supported by this provider"))),
    }
}

fn parse_reasoning(mut fields: Fields, path: &str) -> Result<Part, RequestError> {
    if let Some(data) = take_string(&mut fields, "redactedContent") {
        return Ok(Part::RedactedThinking { data });
    }
    let path = format!("{path}.reasoningText");
    let mut thought = into_object(fields.shift_remove("reasoningText").unwrap_or_default(), &path)?;
    Ok(Part::Thinking {
        text: take_required_string(&mut thought, "text", &path)?,
        signature: take_string(&mut thought, "signature"),
    })
}

fn parse_image(mut fields: Fields, path: &str, dropped: &mut DroppedParams) -> Result<Part, RequestError> {
    let mime = format!("image/{}", take_required_string(&mut fields, "format", path)?);
    let source = parse_source(&mut fields, mime, path)?;
    dropped.add_remaining_fields("image", &fields);
    Ok(Part::Image { source, detail: None, cache: None })
}

fn parse_document(mut fields: Fields, path: &str, dropped: &mut DroppedParams) -> Result<Part, RequestError> {
    let name = take_string(&mut fields, "name");
    let mime = mime_type_of_format(&take_string(&mut fields, "format").unwrap_or_else(|| "txt".into())).to_owned();
    let (source, more) = (parse_source(&mut fields, mime, path)?, take_document_extra(&mut fields));
    dropped.add_remaining_fields("document", &fields);
    Ok(Part::Document { source, name, cache: None, extra: more.into() })
}

fn parse_source(fields: &mut Fields, mime: String, path: &str) -> Result<Source, RequestError> {
    let path = format!("{path}.source");
    let (kind, value) = parse_single_field(fields.shift_remove("source").unwrap_or_default(), &path)?;
    match (kind.as_str(), value) {
        ("bytes", Value::String(data)) => Ok(Source::Data { mime, data }),
        ("text", Value::String(text)) => Ok(Source::Text(text)),
        ("s3Location", value) => {
            let mut location = into_object(value, &path)?;
            Ok(Source::Url { url: take_required_string(&mut location, "uri", &path)?, mime: Some(mime) })
        }
        _ => Err(RequestError::new(path, "must be bytes, text or an S3 location")),
    }
}

fn mime_type_of_format(format: &str) -> &str {
    match format {
        "pdf" => "application/pdf",
        "csv" => "text/csv",
        "html" => "text/html",
        "md" => "text/markdown",
        "doc" => "application/msword",
        "docx" => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "xls" => "application/vnd.ms-excel",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        _ => "text/plain",
    }
}

fn parse_tool_config(mut config: Fields, request: &mut ChatRequest) -> Result<(), RequestError> {
    for (at, item) in into_array(config.shift_remove("tools"), "toolConfig.tools")?.into_iter().enumerate() {
        let path = format!("toolConfig.tools[{at}]");
        let (kind, value) = parse_single_field(item, &path)?;
        match kind.as_str() {
            "toolSpec" => request.tools.push(parse_tool_spec(into_object(value, &path)?, &path)?),
            "cachePoint" => match request.tools.last_mut() {
                Some(Tool::Function { cache, .. }) => *cache = Some(build_cache_control(&value)),
                _ => request.dropped_params.add("cachePoint"),
            },
            _ => request.tools.push(Tool::BuiltIn { kind, fields: value.as_object().cloned().unwrap_or_default() }),
        }
    }
    let choice = take_field(&mut config, "toolChoice");
    request.record_dropped_fields("toolConfig", &config);
    let Some(choice) = choice else { return Ok(()) };
    let (kind, mut value) = parse_single_field(choice, "toolConfig.toolChoice")?;
    request.tool_choice = Some(match (kind.as_str(), value.get_mut("name").map(Value::take).unwrap_or_default()) {
        ("auto", _) => ToolChoice::Auto,
        ("any", _) => ToolChoice::Any,
        ("tool", Value::String(name)) => ToolChoice::Tool(name),
        _ => return Err(RequestError::new("toolConfig.toolChoice", "must be auto, any or a named tool")),
    });
    Ok(())
}

fn parse_tool_spec(mut spec: Fields, path: &str) -> Result<Tool, RequestError> {
    let mut schema = spec.shift_remove("inputSchema").unwrap_or_default();
    Ok(Tool::Function {
        name: take_required_string(&mut spec, "name", path)?,
        description: take_string(&mut spec, "description"),
        schema: schema.get_mut("json").map(Value::take).unwrap_or_default(),
        strict: spec.shift_remove("strict").filter(|strict| !strict.is_null()),
        cache: None,
        extra: spec.into(),
    })
}
