//! Parser of Gemini's `generateContent` requests.

use serde_json::{Value, json};

use super::{parts::REDACTED_PREFIX, schema};
use crate::{
    chat::request::{ChatRequest, Message, Part, Role, Source, Tool, ToolCall, ToolChoice},
    errors::RequestError,
    fields::{Fields, into_array, into_object, parse_body},
    reports::DroppedParams,
};

/// Parameters of `generationConfig` and their names in chat completions.
const GENERATION_PARAM_NAMES: &[(&str, &str)] = &[
    ("temperature", "temperature"),
    ("topP", "top_p"),
    ("topK", "top_k"),
    ("maxOutputTokens", "max_tokens"),
    ("candidateCount", "n"),
    ("stopSequences", "stop"),
    ("seed", "seed"),
    ("presencePenalty", "presence_penalty"),
    ("frequencyPenalty", "frequency_penalty"),
    ("responseLogprobs", "logprobs"),
    ("logprobs", "top_logprobs"),
];

/// Fields outside `generationConfig` that some providers have under another name.
const TOP_LEVEL_PARAM_NAMES: &[(&str, &str)] =
    &[("safetySettings", "safety_settings"), ("cachedContent", "cached_content"), ("labels", "labels")];

pub fn parse_request(json: &[u8], model: &str, stream: bool) -> Result<ChatRequest, RequestError> {
    let mut fields = parse_body(json)?;
    let mut request = ChatRequest { model: model.to_owned(), stream, ..ChatRequest::default() };
    // The model is taken from the URL path.
    fields.shift_remove("model");
    if let Some(system) = take_field(&mut fields, "systemInstruction") {
        let parts = ContentParser::default().parse_parts(system, "systemInstruction", &mut request.dropped_params)?;
        request.messages.push(Message { role: Role::System, parts });
    }
    let mut reading = ContentParser::default();
    let contents = match take_field(&mut fields, "contents") {
        Some(item @ Value::Object(_)) => vec![item],
        contents => into_array(contents, "contents")?,
    };
    for (at, content) in contents.into_iter().enumerate() {
        let message = reading.parse_content(content, &format!("contents[{at}]"), &mut request.dropped_params)?;
        request.messages.push(message);
    }
    for (at, tool) in into_array(take_field(&mut fields, "tools"), "tools")?.into_iter().enumerate() {
        parse_tool(into_object(tool, &format!("tools[{at}]"))?, at, &mut request)?;
    }
    let mut out = Fields::new();
    if let Some(config) = take_field(&mut fields, "toolConfig") {
        parse_tool_config(into_object(config, "toolConfig")?, &mut request)?;
    }
    if let Some(config) = take_field(&mut fields, "generationConfig") {
        parse_generation_config(into_object(config, "generationConfig")?, &mut out, &mut request.dropped_params)?;
    }
    for (key, name) in TOP_LEVEL_PARAM_NAMES {
        if let Some(value) = take_field(&mut fields, key) {
            out.insert((*name).to_owned(), value);
        }
    }
    // The remaining fields have no equivalent elsewhere and are passed on unchanged.
    out.extend(fields);
    request.fields = out;
    Ok(request)
}

/// Parses a request to count tokens, which may be wrapped in `generateContentRequest`.
pub fn parse_count_request(json: &[u8], model: &str) -> Result<ChatRequest, RequestError> {
    match take_field(&mut parse_body(json)?, "generateContentRequest") {
        Some(request) => parse_request(request.to_string().as_bytes(), model, false),
        None => parse_request(json, model, false),
    }
}

/// Removes a field and returns its value unless it is null. Accepts the key in camel case (JSON) and in snake case
/// (protobuf), as Google does.
pub(crate) fn take_field(fields: &mut Fields, key: &str) -> Option<Value> {
    let field = fields.shift_remove(key).or_else(|| fields.shift_remove(&to_snake_case(key)));
    field.filter(|value| !value.is_null())
}

fn to_snake_case(key: &str) -> String {
    let spelt = |character: char| {
        if character.is_ascii_uppercase() { vec!['_', character.to_ascii_lowercase()] } else { vec![character] }
    };
    key.chars().flat_map(spelt).collect()
}

fn take_string(fields: &mut Fields, key: &str) -> Option<String> {
    match take_field(fields, key)? {
        Value::String(text) => Some(text),
        _ => None,
    }
}

fn take_required_string(fields: &mut Fields, key: &str, path: &str) -> Result<String, RequestError> {
    take_string(fields, key).ok_or_else(|| RequestError::new(format!("{path}.{key}"), "must be a string"))
}

/// Parser of `contents`. Tool calls usually have no ids in this format, so it matches function responses to calls by
/// name.
#[derive(Default)]
struct ContentParser {
    /// Id and name of each call, and true if it has a response.
    tool_calls: Vec<(String, String, bool)>,
}

impl ContentParser {
    fn parse_content(
        &mut self,
        content: Value,
        path: &str,
        dropped: &mut DroppedParams,
    ) -> Result<Message, RequestError> {
        let mut fields = into_object(content, path)?;
        let role = match take_string(&mut fields, "role").as_deref() {
            None | Some("" | "user" | "function" | "tool") => Role::User,
            Some("model") => Role::Assistant,
            Some("system") => Role::System,
            Some(other) => {
                let message = format!("`{other}` is not supported; must be user or model");
                return Err(RequestError::new(format!("{path}.role"), message));
            }
        };
        let parts = self.parse_parts(take_field(&mut fields, "parts").unwrap_or_default(), path, dropped)?;
        dropped.add_remaining_fields("contents", &fields);
        Ok(Message { role, parts })
    }

    fn parse_parts(
        &mut self,
        content: Value,
        path: &str,
        dropped: &mut DroppedParams,
    ) -> Result<Vec<Part>, RequestError> {
        let items = match content {
            Value::String(text) => return Ok(vec![Part::text(text)]),
            Value::Object(mut fields) => take_field(&mut fields, "parts"),
            other => Some(other),
        };
        let path = format!("{path}.parts");
        let items = match items {
            Some(item @ Value::Object(_)) => vec![item],
            items => into_array(items, &path)?,
        };
        let mut parts: Vec<Part> = Vec::new();
        for (at, item) in items.into_iter().enumerate() {
            let seal = text_signature(&item);
            let part = self.parse_part(item, &format!("{path}[{at}]"), dropped)?;
            // The signature of a text may come in a part of its own, with an empty text. Skip that text.
            let is_silent = matches!(&part, Part::Text { text, .. } if text.is_empty());
            if seal.is_none() || !is_silent {
                append_part(&mut parts, part);
            }
            parts.extend(seal.map(Part::Signature));
        }
        Ok(parts)
    }

    fn parse_part(
        &mut self,
        value: Value,
        path: &str,
        dropped_params: &mut DroppedParams,
    ) -> Result<Part, RequestError> {
        let mut fields = into_object(value, path)?;
        let is_thought = take_field(&mut fields, "thought") == Some(Value::Bool(true));
        let signature = take_string(&mut fields, "thoughtSignature");
        for key in ["videoMetadata", "mediaResolution"] {
            if take_field(&mut fields, key).is_some() {
                dropped_params.add(key);
            }
        }
        let Some((kind, value)) = take_part_data(&mut fields) else {
            // A part may consist of a signature only.
            return Ok(build_thinking_part(String::new(), signature));
        };
        let inner = format!("{path}.{kind}");
        // Removes the signature of a text, which is already read, so that it is not reported as dropped.
        take_field(&mut fields, "thoughtSignature");
        dropped_params.add_remaining_fields("parts", &fields);
        match (kind, value) {
            ("text", Value::String(text)) if is_thought => Ok(build_thinking_part(text, signature)),
            ("text", Value::String(text)) => Ok(Part::text(text)),
            ("inlineData", value) => {
                let mut data = into_object(value, &inner)?;
                let mime = take_required_string(&mut data, "mimeType", &inner)?;
                Ok(build_media_part(
                    Source::Data { data: take_required_string(&mut data, "data", &inner)?, mime },
                    &mut data,
                    dropped_params,
                ))
            }
            ("fileData", value) => {
                let mut data = into_object(value, &inner)?;
                let mime = take_string(&mut data, "mimeType");
                Ok(build_media_part(
                    Source::Url { url: take_required_string(&mut data, "fileUri", &inner)?, mime },
                    &mut data,
                    dropped_params,
                ))
            }
            ("functionCall", value) => Ok(Part::ToolCall(self.parse_function_call(
                into_object(value, &inner)?,
                signature,
                &inner,
                dropped_params,
            )?)),
            ("functionResponse", value) => {
                self.parse_function_response(into_object(value, &inner)?, &inner, dropped_params)
            }
            (kind, _) => Err(RequestError::new(path, format!("`{kind}` is not supported by this provider"))),
        }
    }

    fn parse_function_call(
        &mut self,
        mut fields: Fields,
        signature: Option<String>,
        path: &str,
        dropped: &mut DroppedParams,
    ) -> Result<ToolCall, RequestError> {
        let name = take_required_string(&mut fields, "name", path)?;
        let id = take_string(&mut fields, "id").filter(|id| !id.is_empty());
        let id = id.unwrap_or_else(|| format!("call_{}", self.tool_calls.len()));
        self.tool_calls.push((id.clone(), name.clone(), false));
        let arguments = take_field(&mut fields, "args").unwrap_or_else(|| json!({})).to_string();
        dropped.add_remaining_fields("functionCall", &fields);
        Ok(ToolCall { id, name, arguments, signature, cache: None })
    }

    fn parse_function_response(
        &mut self,
        mut fields: Fields,
        path: &str,
        dropped: &mut DroppedParams,
    ) -> Result<Part, RequestError> {
        let name = take_required_string(&mut fields, "name", path)?;
        let id = take_string(&mut fields, "id").filter(|id| !id.is_empty());
        let is_it = |(call_id, call_names, is_answered): &&mut (String, String, bool)| {
            id.as_ref().map_or(*call_names == name && !*is_answered, |id| id == call_id)
        };
        let call = self.tool_calls.iter_mut().find(is_it);
        let call = call
            .ok_or_else(|| RequestError::new(path, format!("no earlier call of `{name}` is waiting for a response")))?;
        call.2 = true;
        let id = call.0.clone();
        let response = take_field(&mut fields, "response").unwrap_or_else(|| json!({}));
        let (result, is_error) = match response.as_object().filter(|response| response.len() == 1) {
            Some(one) => match (one.get("output").or_else(|| one.get("result")), one.get("error")) {
                (Some(output), _) => (output.clone(), false),
                (_, Some(error)) => (error.clone(), true),
                _ => (response, false),
            },
            None => (response, false),
        };
        let mut parts = vec![Part::text(result.as_str().map_or_else(|| result.to_string(), ToOwned::to_owned))];
        if let Some(hints) = take_field(&mut fields, "parts") {
            parts.extend(self.parse_parts(hints, path, dropped)?);
        }
        dropped.add_remaining_fields("functionResponse", &fields);
        Ok(Part::ToolResult { id, parts, is_error, cache: None })
    }
}

/// Returns the signature of a text part that is not thinking.
fn text_signature(part: &Value) -> Option<String> {
    let is_thought = part["thought"] == true;
    let signature = part.get("thoughtSignature").or_else(|| part.get("thought_signature"))?.as_str()?;
    (!is_thought && part["text"].is_string()).then(|| signature.to_owned())
}

/// Removes and returns the field that determines the kind of a part.
fn take_part_data(fields: &mut Fields) -> Option<(&'static str, Value)> {
    const PART_KINDS: [&str; 7] =
        ["text", "inlineData", "fileData", "functionCall", "functionResponse", "executableCode", "codeExecutionResult"];
    PART_KINDS.into_iter().find_map(|kind| Some((kind, take_field(fields, kind)?)))
}

fn build_thinking_part(text: String, signature: Option<String>) -> Part {
    match signature {
        Some(signature) => match signature.strip_prefix(REDACTED_PREFIX) {
            Some(data) => Part::RedactedThinking { data: data.to_owned() },
            None => Part::Thinking { text, signature: Some(signature) },
        },
        None => Part::Thinking { text, signature: None },
    }
}

/// Appends a part. Merges thinking into an unsigned thinking part before it, because providers send thinking in several
/// parts and the signature with the last one.
fn append_part(parts: &mut Vec<Part>, part: Part) {
    if let (Some(Part::Thinking { text, signature: open @ None }), Part::Thinking { text: more, signature }) =
        (parts.last_mut(), &part)
    {
        text.push_str(more);
        open.clone_from(signature);
        return;
    }
    parts.push(part);
}

fn build_media_part(source: Source, data: &mut Fields, dropped: &mut DroppedParams) -> Part {
    let name = take_string(data, "displayName");
    dropped.add_remaining_fields("data", data);
    let mime = match &source {
        Source::Data { mime, .. } | Source::Url { mime: Some(mime), .. } => mime.clone(),
        _ => String::new(),
    };
    let kind = mime.split_once('/').unwrap_or_default();
    if name.is_some() && matches!(kind.0, "audio" | "image") {
        dropped.add("displayName");
    }
    match (kind, source) {
        (("audio", format), Source::Data { data, .. }) => {
            let format = if format == "mpeg" { "mp3" } else { format.trim_start_matches("x-") };
            Part::Audio { format: format.to_owned(), data }
        }
        (("image", _), source) => Part::Image { source, detail: None, cache: None },
        (_, source) => Part::Document { source, name, cache: None, extra: Box::default() },
    }
}

fn parse_tool(mut fields: Fields, at: usize, request: &mut ChatRequest) -> Result<(), RequestError> {
    let path = format!("tools[{at}].functionDeclarations");
    for (at, declared) in into_array(take_field(&mut fields, "functionDeclarations"), &path)?.into_iter().enumerate() {
        let path = format!("{path}[{at}]");
        let mut declared = into_object(declared, &path)?;
        let parameters = take_field(&mut declared, "parameters").map(schema::to_json_schema);
        let schema = parameters.or_else(|| take_field(&mut declared, "parametersJsonSchema"));
        request.tools.push(Tool::Function {
            name: take_required_string(&mut declared, "name", &path)?,
            description: take_string(&mut declared, "description"),
            schema: schema.unwrap_or_else(|| json!({"type": "object", "properties": {}})),
            strict: None,
            cache: None,
            extra: Box::default(),
        });
        request.record_dropped_fields("functionDeclarations", &declared);
    }
    for (kind, value) in fields {
        request.tools.push(Tool::BuiltIn { kind, fields: value.as_object().cloned().unwrap_or_default() });
    }
    Ok(())
}

fn parse_tool_config(mut config: Fields, request: &mut ChatRequest) -> Result<(), RequestError> {
    let Some(calling) = take_field(&mut config, "functionCallingConfig") else { return Ok(()) };
    let path = "toolConfig.functionCallingConfig";
    let mut calling = into_object(calling, path)?;
    let names = into_array(take_field(&mut calling, "allowedFunctionNames"), "allowedFunctionNames")?;
    let only = if let [Value::String(name)] = names.as_slice() { Some(name.clone()) } else { None };
    request.tool_choice = match (take_string(&mut calling, "mode").as_deref(), only) {
        (None | Some("MODE_UNSPECIFIED"), _) => None,
        (Some("AUTO" | "VALIDATED"), _) => Some(ToolChoice::Auto),
        (Some("NONE"), _) => Some(ToolChoice::None),
        (Some("ANY"), Some(name)) => Some(ToolChoice::Tool(name)),
        (Some("ANY"), None) => Some(ToolChoice::Any),
        (Some(_), _) => return Err(RequestError::new(format!("{path}.mode"), "must be AUTO, ANY, VALIDATED or NONE")),
    };
    if names.len() > 1 && request.tool_choice == Some(ToolChoice::Any) {
        let names: Vec<_> = names.iter().filter_map(Value::as_str).map(ToOwned::to_owned).collect();
        request.retain_tools(&names)?;
    } else if !names.is_empty() && !matches!(request.tool_choice, Some(ToolChoice::Tool(_))) {
        request.dropped_params.add("allowedFunctionNames");
    }
    request.record_dropped_fields("functionCallingConfig", &calling);
    if !config.is_empty() {
        request.dropped_params.add("toolConfig");
    }
    Ok(())
}

fn parse_generation_config(
    mut config: Fields,
    out: &mut Fields,
    dropped: &mut DroppedParams,
) -> Result<(), RequestError> {
    for (key, name) in GENERATION_PARAM_NAMES {
        if let Some(value) = take_field(&mut config, key) {
            out.insert((*name).to_owned(), value);
        }
    }
    parse_response_format(&mut config, out);
    if let Some(kinds) = take_field(&mut config, "responseModalities") {
        let kinds = into_array(Some(kinds), "generationConfig.responseModalities")?;
        let kinds: Vec<_> = kinds.iter().filter_map(Value::as_str).map(str::to_ascii_lowercase).collect();
        if kinds != ["text"] {
            out.insert("modalities".into(), kinds.into());
        }
    }
    if let Some(thinking) = take_field(&mut config, "thinkingConfig") {
        parse_thinking_config(into_object(thinking, "generationConfig.thinkingConfig")?, out, dropped);
    }
    dropped.add_remaining_fields("generationConfig", &config);
    Ok(())
}

fn parse_response_format(config: &mut Fields, out: &mut Fields) {
    let kind = take_string(config, "responseMimeType");
    let schema = take_field(config, "responseSchema").map(schema::to_json_schema);
    let schema = schema.or_else(|| take_field(config, "responseJsonSchema"));
    let format = match (kind.as_deref(), schema) {
        (Some("application/json"), Some(schema)) => {
            json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}})
        }
        (Some("application/json"), None) => json!({"type": "json_object"}),
        (None | Some("text/plain"), None) => return,
        // No other provider can restrict the response to one value of an enum.
        (_, schema) => {
            out.insert("responseMimeType".into(), kind.into());
            out.insert("responseSchema".into(), schema.unwrap_or_default());
            return;
        }
    };
    out.insert("response_format".into(), format);
}

/// Parses `thinkingConfig`. Ignores `includeThoughts`, because a budget or level implies that the client wants to see
/// the thinking.
fn parse_thinking_config(mut config: Fields, out: &mut Fields, dropped: &mut DroppedParams) {
    let budget = take_field(&mut config, "thinkingBudget").filter(|budget| !budget.is_null());
    let level = take_string(&mut config, "thinkingLevel").map(|level| level.to_ascii_lowercase());
    let level = level.filter(|level| level != "thinking_level_unspecified");
    // A negative budget lets the model decide, which is the default.
    let is_dynamic = budget.as_ref().and_then(Value::as_i64).is_some_and(|budget| budget < 0);
    if level.is_some() && budget.is_some() && !is_dynamic {
        dropped.add("thinkingLevel");
    }
    match (budget.filter(|_| !is_dynamic), level) {
        (Some(budget), _) if budget == 0 => drop(out.insert("thinking".into(), json!({"type": "disabled"}))),
        (Some(budget), _) => {
            out.insert("thinking".into(), json!({"type": "enabled", "budget_tokens": budget}));
        }
        (None, Some(level)) => drop(out.insert("reasoning_effort".into(), level.into())),
        (None, None) => (),
    }
    take_field(&mut config, "includeThoughts");
    dropped.add_remaining_fields("thinkingConfig", &config);
}

/// Returns true if the client wants to receive the model's thinking.
pub fn should_show_thinking(request: &ChatRequest) -> bool {
    let is_enabled = |thinking: &Value| !thinking.is_null() && thinking["type"] != "disabled";
    request.fields.get("thinking").is_some_and(is_enabled) || request.fields.contains_key("reasoning_effort")
}
