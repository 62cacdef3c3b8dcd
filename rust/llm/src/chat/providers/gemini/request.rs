//! Writer of Gemini `generateContent` request bodies.

use std::ops::RangeInclusive;

use serde_json::{Value, json};

use super::{
    schema::{self, WrittenSchema},
    thinking,
};
use crate::{
    chat::{
        file_types::mime_of_file,
        request::{
            ChatRequest, Message, Part, Role, Source, Tool, ToolCall, ToolChoice, has_date_suffix, join_text,
            response_schema,
        },
        tool_call_signatures::ScopedSignatures,
        tool_names,
    },
    errors::RequestError,
    fields::{Fields, into_array, into_object},
};

/// Names under which clients may pass Google's native tools as functions: Gemini's name and its `snake_case` form.
const NATIVE_TOOL_NAMES: &[(&str, &str)] = &[
    ("googleSearch", "google_search"),
    ("googleSearchRetrieval", "google_search_retrieval"),
    ("computerUse", "computer_use"),
    ("googleMaps", "google_maps"),
    ("codeExecution", "code_execution"),
    ("urlContext", "url_context"),
];

/// Part kinds that only Gemini has, named as clients see them.
pub(crate) const NATIVE_PART_KINDS: [&str; 2] = ["executableCode", "codeExecutionResult"];

/// Function name for a tool result whose tool call is missing from the request.
const UNKNOWN_FUNCTION_NAME: &str = "unknown_function";

/// Value that tells Gemini not to validate a missing thought signature.
const SKIP_SIGNATURE_VALIDATION: &str = "skip_thought_signature_validator";

/// Request parameters and their names in `generationConfig`.
const GENERATION_PARAMS: &[(&str, &str)] = &[
    ("temperature", "temperature"),
    ("top_p", "topP"),
    ("top_k", "topK"),
    ("max_tokens", "maxOutputTokens"),
    ("seed", "seed"),
    ("presence_penalty", "presencePenalty"),
    ("frequency_penalty", "frequencyPenalty"),
];

/// Maximum number of stop sequences that Gemini accepts.
const MAX_STOP_SEQUENCES: usize = 5;

/// Ranges that parameters are clamped to. Penalties are absent because the ends of their ranges are exclusive.
const PARAM_RANGES: &[(&str, RangeInclusive<i32>)] = &[("temperature", 0..=2), ("top_p", 0..=1)];

/// Writes the request body. `accepts_call_ids` is true for the Gemini API and false for Vertex AI, which rejects ids of
/// function calls. Even then, the ids are sent only to models that accept them.
pub fn write_body(request: &mut ChatRequest, accepts_call_ids: bool) -> Result<Fields, RequestError> {
    request.reject_several_choices()?;
    request.normalise_tool_names(tool_names::GEMINI);
    let mut out = Fields::new();
    let call_names = collect_call_names(&request.messages);
    let were = request.messages.len();
    let mut system = Vec::new();
    let mut turns: Vec<(Role, Vec<Value>)> = Vec::new();
    for (at, message) in std::mem::take(&mut request.messages).into_iter().enumerate() {
        let Message { role, parts } = message;
        let path = format!("messages[{at}]");
        let target = if role == Role::System { &mut system } else { parts_for_role(role, &mut turns) };
        for part in parts {
            write_part(part, &path, &call_names, request, target)?;
        }
    }
    if !system.is_empty() {
        out.insert("systemInstruction".into(), json!({"role": "system", "parts": system}));
    }
    turns.retain(|(_, parts)| !parts.is_empty());
    ChatRequest::reject_empty_messages(were, turns.len())?;
    sort_function_responses(&mut turns);
    let requires_signatures = thinking::requires_signatures(&request.model);
    if requires_signatures && fill_missing_signatures(&mut turns, request.tool_call_signatures.as_ref()) {
        request.dropped_params.add("thought_signature");
    }
    if !(accepts_call_ids && requires_signatures) {
        drop_call_ids(&mut turns);
    }
    let turn = |(role, parts)| json!({"role": if role == Role::Assistant { "model" } else { "user" }, "parts": parts});
    out.insert("contents".into(), turns.into_iter().map(turn).collect());
    write_tools(request, &mut out);
    write_generation_config(request, &mut out)?;
    for (key, name) in
        [("safety_settings", "safetySettings"), ("labels", "labels"), ("cached_content", "cachedContent")]
    {
        request.move_param(key, &mut out, name);
    }
    // The URL path contains the model and selects streaming.
    request.model.clear();
    request.stream = false;
    Ok(out)
}

/// Returns the parts of the current turn. Consecutive messages of one role share a turn, because Gemini expects the
/// roles to alternate.
fn parts_for_role(role: Role, turns: &mut Vec<(Role, Vec<Value>)>) -> &mut Vec<Value> {
    if turns.last().is_none_or(|(last, _)| *last != role) {
        turns.push((role, Vec::new()));
    }
    let last = turns.len() - 1;
    &mut turns[last].1
}

/// Sorts function responses into the order of their calls. Other parts stay after the response that they follow.
fn sort_function_responses(turns: &mut [(Role, Vec<Value>)]) {
    let id =
        |part: &Value, kind: &str| part.get(kind).and_then(|payload| payload["id"].as_str().map(ToOwned::to_owned));
    for at in 1..turns.len() {
        let (before, after) = turns.split_at_mut(at);
        let calls: Vec<_> = before[at - 1].1.iter().filter_map(|part| id(part, "functionCall")).collect();
        let mut sort_key = 0;
        let mut placed: Vec<_> = std::mem::take(&mut after[0].1)
            .into_iter()
            .map(|part| {
                let response_id = id(&part, "functionResponse");
                let call_index = response_id.and_then(|wanted_id| calls.iter().position(|call| *call == wanted_id));
                sort_key = call_index.map_or(sort_key, |index| index + 1);
                (sort_key, part)
            })
            .collect();
        placed.sort_by_key(|(key, _)| *key);
        after[0].1 = placed.into_iter().map(|(_, part)| part).collect();
    }
}

/// Removes the ids of function calls and responses, for models that reject them. Such models match responses to calls
/// by order.
fn drop_call_ids(turns: &mut [(Role, Vec<Value>)]) {
    for part in turns.iter_mut().flat_map(|(_, parts)| parts) {
        for kind in ["functionCall", "functionResponse"] {
            part.get_mut(kind).and_then(Value::as_object_mut).map(|payload| payload.shift_remove("id"));
        }
    }
}

/// Adds a missing signature to the first function call of each step since the last user message, because Gemini rejects
/// a step without one. Uses the stored signature if there is one, otherwise a placeholder that disables the validation.
/// Returns true if a placeholder was needed: another model made the call, or its signature was not stored.
fn fill_missing_signatures(turns: &mut [(Role, Vec<Value>)], signatures: Option<&ScopedSignatures>) -> bool {
    let is_tool_result = |part: &Value| part.get("functionResponse").is_some();
    let starts_user_turn =
        |(role, parts): &(Role, Vec<Value>)| *role != Role::Assistant && !parts.iter().any(is_tool_result);
    let turn_start = turns.iter().rposition(starts_user_turn).map_or(0, |at| at + 1);
    let mut is_filled = false;
    for (_, parts) in turns[turn_start..].iter_mut().filter(|(role, _)| *role == Role::Assistant) {
        let first = parts.iter_mut().find(|part| part.get("functionCall").is_some());
        if let Some(first) = first.filter(|part| part.get("thoughtSignature").is_none()) {
            let cached = first["functionCall"]["id"].as_str().and_then(|id| signatures?.get(id));
            is_filled |= cached.is_none();
            first["thoughtSignature"] = cached.as_deref().unwrap_or(SKIP_SIGNATURE_VALIDATION).into();
        }
    }
    is_filled
}

/// Writes `responseModalities`. Rejects output kinds other than text and images, which client formats cannot represent.
fn write_modalities(request: &mut ChatRequest, config: &mut Fields) -> Result<(), RequestError> {
    let Some(kinds) = request.take_param("modalities") else { return Ok(()) };
    let kinds = into_array(Some(kinds), "modalities")?;
    let parsed = kinds.iter().map(|kind| match kind.as_str() {
        Some(kind @ ("text" | "image")) => Ok(kind.to_ascii_uppercase()),
        _ => Err(RequestError::new("modalities", "only text and image output is supported")),
    });
    let modalities = parsed.collect::<Result<Vec<_>, _>>()?;
    if modalities != ["TEXT"] {
        config.insert("responseModalities".into(), modalities.into());
    }
    Ok(())
}

/// Writes `imageConfig`. Accepts its fields in `snake_case` and camelCase.
fn write_image_config(request: &mut ChatRequest, config: &mut Fields) -> Result<(), RequestError> {
    let Some(requested) = request.take_param("image_config") else { return Ok(()) };
    let mut requested = into_object(requested, "image_config")?;
    let mut image_config = Fields::new();
    for (key, name) in [
        ("aspect_ratio", "aspectRatio"),
        ("aspectRatio", "aspectRatio"),
        ("image_size", "imageSize"),
        ("imageSize", "imageSize"),
    ] {
        if let Some(value) = requested.shift_remove(key) {
            image_config.insert(name.into(), value);
        }
    }
    requested.keys().for_each(|key| request.record_dropped(&format!("image_config.{key}")));
    config.insert("imageConfig".into(), image_config.into());
    Ok(())
}

/// Returns the id and the function name of each tool call, because Gemini identifies a function response by name.
fn collect_call_names(messages: &[Message]) -> Vec<(String, String)> {
    let calls = messages.iter().flat_map(|message| &message.parts).filter_map(|part| match part {
        Part::ToolCall(call) => Some((call.id.clone(), call.name.clone())),
        _ => None,
    });
    calls.collect()
}

fn write_part(
    part: Part,
    path: &str,
    call_names: &[(String, String)],
    request: &mut ChatRequest,
    out: &mut Vec<Value>,
) -> Result<(), RequestError> {
    out.push(match part {
        Part::Text { text, .. } if text.is_empty() => return Ok(()),
        Part::Text { text, cache, citations } => {
            drop_cache_hint(cache.as_ref(), request);
            request.record_dropped_if_set("citations", citations.as_ref());
            json!({"text": text})
        }
        Part::Image { source, detail, cache } => {
            drop_cache_hint(cache.as_ref(), request);
            request.record_dropped_if_set("image_url.detail", detail.as_ref());
            source_part(source, "image/jpeg", path)?
        }
        Part::Document { source, name, cache, extra: more } => {
            drop_cache_hint(cache.as_ref(), request);
            request.record_dropped_fields("document", &more);
            request.record_dropped_if_set("filename", name.as_ref());
            source_part(source, "application/pdf", path)?
        }
        Part::Audio { data, format } => json!({"inlineData": {"mimeType": format!("audio/{format}"), "data": data}}),
        // Gemini accepts only signatures that it issued itself, and those are on the function calls.
        Part::Thinking { .. } | Part::RedactedThinking { .. } => {
            request.record_dropped("thinking");
            return Ok(());
        }
        Part::Signature(signature) => {
            attach_signature(signature, out);
            return Ok(());
        }
        Part::ProviderBlock { kind, mut fields } => match fields.shift_remove(&kind) {
            Some(value) if NATIVE_PART_KINDS.contains(&kind.as_str()) => json!({kind: value}),
            _ => {
                request.record_dropped(&kind);
                return Ok(());
            }
        },
        Part::ToolCall(call) => function_call_part(call, request),
        Part::ToolResult { id, parts, is_error, cache } => {
            drop_cache_hint(cache.as_ref(), request);
            let name = call_names.iter().rev().find(|(call_id, _)| *call_id == id).map(|(_, name)| name.as_str());
            request.record_dropped_if_set("tool_call_id", name.is_none().then_some(&id));
            let is_known = name.is_some();
            let name = name.unwrap_or(UNKNOWN_FUNCTION_NAME);
            let key = if is_error { "error" } else { "output" };
            let (texts, others): (Vec<_>, Vec<_>) =
                parts.into_iter().partition(|item| matches!(item, Part::Text { .. }));
            let mut function_response = json!({"name": name, "response": {key: join_text(texts)}});
            if is_known && !id.is_empty() {
                function_response["id"] = id.into();
            }
            out.push(json!({"functionResponse": function_response}));
            // A function response contains only text; other parts follow it in the same turn.
            return others.into_iter().try_for_each(|other| write_part(other, path, call_names, request, out));
        }
    });
    Ok(())
}

/// Attaches a thought signature to the preceding text part, or to an empty text part if there is none.
fn attach_signature(signature: String, out: &mut Vec<Value>) {
    match out.last_mut() {
        Some(last) if last.get("text").is_some() => last["thoughtSignature"] = signature.into(),
        _ => out.push(json!({"text": "", "thoughtSignature": signature})),
    }
}

fn function_call_part(call: ToolCall, request: &mut ChatRequest) -> Value {
    let args = call.parse_arguments(&mut request.dropped_params);
    let mut part = json!({"functionCall": {"name": call.name, "args": args}});
    if !call.id.is_empty() {
        part["functionCall"]["id"] = call.id.into();
    }
    if let Some(signature) = call.signature {
        part["thoughtSignature"] = signature.into();
    }
    part
}

fn source_part(source: Source, default: &str, path: &str) -> Result<Value, RequestError> {
    Ok(match source {
        Source::Data { mime, data } => json!({"inlineData": {"mimeType": mime, "data": data}}),
        // A value without a URL scheme is the base64 data itself.
        Source::Url { url, mime } if !url.contains(':') => {
            json!({"inlineData": {"mimeType": mime.as_deref().unwrap_or(default), "data": url}})
        }
        Source::Url { url, mime } => {
            let path = url.split(['?', '#']).next().unwrap_or_default();
            let mime = mime.unwrap_or_else(|| mime_of_file(path).unwrap_or(default).to_owned());
            json!({"fileData": {"mimeType": mime, "fileUri": url}})
        }
        Source::Text(text) => json!({"text": text}),
        Source::File(_) => {
            return Err(RequestError::new(path, "this provider accepts files by URL or as data, not by id"));
        }
    })
}

/// Reports a cache hint as dropped: Gemini's caches are created in advance, not by a hint in the request.
fn drop_cache_hint(cache: Option<&Value>, request: &mut ChatRequest) {
    if cache.is_some() {
        request.record_dropped("cache_control");
    }
}

fn write_tools(request: &mut ChatRequest, out: &mut Fields) {
    request.drop_built_in_tools(is_native_tool);
    let mut functions = Vec::new();
    let mut native = Vec::new();
    let mut retrieval = None;
    for tool in std::mem::take(&mut request.tools) {
        match tool {
            Tool::Function { name, schema, .. } if native_tool_name(&name).is_some() => {
                let native_name = native_tool_name(&name).unwrap_or_default();
                let inner = Value::Object(schema.as_object().cloned().unwrap_or_default());
                native.push(json!({native_name: extract_retrieval_config(native_name, inner, &mut retrieval)}));
            }
            Tool::Function { name, description, schema, strict, cache, extra: more } => {
                drop_cache_hint(cache.as_ref(), request);
                request.record_dropped_fields("tools", &more);
                if strict == Some(Value::Bool(true)) {
                    request.record_dropped("strict");
                }
                functions.push(function_declaration(&name, description, &schema, request));
            }
            Tool::BuiltIn { kind, mut fields } => {
                let inner = fields.shift_remove(&kind).unwrap_or_else(|| json!({}));
                let native_name = native_tool_name(&kind).unwrap_or(&kind);
                native.push(json!({native_name: extract_retrieval_config(native_name, inner, &mut retrieval)}));
            }
        }
    }
    let has_functions = !functions.is_empty();
    if has_functions {
        native.push(json!({"functionDeclarations": functions}));
    }
    if !native.is_empty() {
        out.insert("tools".into(), native.into());
    }
    if request.take_param("parallel_tool_calls") == Some(Value::Bool(false)) {
        request.record_dropped("parallel_tool_calls");
    }
    // Gemini rejects a configuration of function calls if there are no functions.
    let choice = request.tool_choice.take();
    let unsupported_choice = choice.as_ref().filter(|choice| !has_functions && **choice != ToolChoice::Auto);
    request.record_dropped_if_set("tool_choice", unsupported_choice);
    let calling = choice.filter(|_| has_functions).map(|choice| match choice {
        ToolChoice::Auto => json!({"mode": "AUTO"}),
        ToolChoice::None => json!({"mode": "NONE"}),
        ToolChoice::Any => json!({"mode": "ANY"}),
        ToolChoice::Tool(name) => json!({"mode": "ANY", "allowedFunctionNames": [name]}),
    });
    let entries = [("functionCallingConfig", calling), ("retrievalConfig", retrieval)];
    let config: Fields = entries.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
    if !config.is_empty() {
        out.insert("toolConfig".into(), config.into());
    }
}

/// Returns true for Google's own tools: the known ones, and newer ones with a name in camel case or with their options
/// under their name. Tools of other providers have names in lower case, with the options beside the name.
fn is_native_tool(kind: &str, fields: &Fields) -> bool {
    let has_own_options = || fields.get(kind).is_some_and(Value::is_object) && !has_date_suffix(kind);
    native_tool_name(kind).is_some() || kind.bytes().any(|byte| byte.is_ascii_uppercase()) || has_own_options()
}

/// Returns the options of a native tool. Moves the retrieval config of Google Maps to `retrieval`, because Gemini
/// expects it in `toolConfig`, where it applies to all tools.
fn extract_retrieval_config(tool_name: &str, mut inner: Value, retrieval: &mut Option<Value>) -> Value {
    let fields = inner.as_object_mut().filter(|_| tool_name == "googleMaps");
    let retrieval_config = fields
        .and_then(|fields| ["retrievalConfig", "retrieval_config"].iter().find_map(|key| fields.shift_remove(*key)));
    if retrieval_config.is_some() {
        *retrieval = retrieval_config;
    }
    inner
}

fn native_tool_name(name: &str) -> Option<&'static str> {
    NATIVE_TOOL_NAMES.iter().find(|(camel, snake)| *camel == name || *snake == name).map(|(camel, _)| *camel)
}

fn function_declaration(name: &str, description: Option<String>, schema: &Value, request: &mut ChatRequest) -> Value {
    let mut function = json!({"name": name});
    if let Some(description) = description {
        function["description"] = description.into();
    }
    // Gemini rejects an object schema without properties, but accepts a function without parameters.
    match schema::write_schema(schema, &request.model, &mut request.dropped_params) {
        WrittenSchema::Complete(parameters) => function["parametersJsonSchema"] = parameters,
        WrittenSchema::Subset(parameters) if schema::is_empty_object(&parameters) => (),
        WrittenSchema::Subset(parameters) => function["parameters"] = parameters,
    }
    function
}

fn write_generation_config(request: &mut ChatRequest, out: &mut Fields) -> Result<(), RequestError> {
    let mut config = Fields::new();
    for (key, scale) in PARAM_RANGES {
        request.clamp_param(key, scale);
    }
    for (key, name) in GENERATION_PARAMS {
        request.move_param(key, &mut config, name);
    }
    request.move_stop_sequences(&mut config, "stopSequences", MAX_STOP_SEQUENCES, |stop| !stop.is_empty());
    write_response_format(request, &mut config);
    write_modalities(request, &mut config)?;
    write_image_config(request, &mut config)?;
    if request.take_param("logprobs") == Some(Value::Bool(true)) {
        config.insert("responseLogprobs".into(), true.into());
        // The number of alternatives per token.
        request.move_param("top_logprobs", &mut config, "logprobs");
    }
    thinking::write_config(request, &mut config)?;
    if !config.is_empty() {
        out.insert("generationConfig".into(), config.into());
    }
    Ok(())
}

fn write_response_format(request: &mut ChatRequest, config: &mut Fields) {
    let Some(format) = request.take_param("response_format") else { return };
    if matches!(format["type"].as_str(), Some("json_object" | "json_schema")) {
        config.insert("responseMimeType".into(), "application/json".into());
    }
    if let Some(json_schema) = response_schema(&format) {
        let (name, written_schema) =
            match schema::write_schema(&json_schema, &request.model, &mut request.dropped_params) {
                WrittenSchema::Complete(schema) => ("responseJsonSchema", schema),
                WrittenSchema::Subset(schema) => ("responseSchema", schema),
            };
        config.insert(name.into(), written_schema);
    }
}
