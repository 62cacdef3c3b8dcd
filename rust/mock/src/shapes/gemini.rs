//! Gemini response shapes: content (complete or as events), embeddings and errors. Also request validation.

use serde_json::{Value, json};

use super::{FaultEvents, ProviderFamily, ResponseContext, ResponseShape, StreamShape, openai};

const PROMPT_TOKENS: u32 = 12;

/// Fields that a `generateContent` request may have.
const ALLOWED_FIELDS: [&str; 8] = [
    "contents",
    "systemInstruction",
    "tools",
    "toolConfig",
    "generationConfig",
    "safetySettings",
    "cachedContent",
    "labels",
];

pub struct GenerateContent;

impl ResponseShape for GenerateContent {
    fn family(&self) -> ProviderFamily {
        ProviderFamily::Gemini
    }

    fn complete_body(&self, context: &ResponseContext<'_>, text: &str) -> Value {
        let mut parts = vec![json!({"text": text})];
        parts.extend(function_call_part(context));
        content_response(context, &parts.into(), Some("STOP"))
    }

    fn validation_error(&self, body: &Value) -> Option<String> {
        let fields = body.as_object()?;
        if let Some(unknown) = fields.keys().find(|key| !ALLOWED_FIELDS.contains(&key.as_str())) {
            return Some(format!("Invalid JSON payload received. Unknown name \"{unknown}\": Cannot find field."));
        }
        let Some(turns) = body["contents"].as_array().filter(|turns| !turns.is_empty()) else {
            return Some("* GenerateContentRequest.contents: contents is not specified".into());
        };
        let mut open = 0;
        for turn in turns {
            if !matches!(turn["role"].as_str(), None | Some("user" | "model")) {
                return Some("Please use a valid role: user, model.".into());
            }
            let parts = turn["parts"].as_array().map(Vec::as_slice).unwrap_or_default();
            let count = |kind: &str| parts.iter().filter(|part| part[kind].is_object()).count();
            if parts.is_empty() {
                return Some("* GenerateContentRequest.contents: must include at least one parts field".into());
            }
            if turn["role"] != "model" && count("functionResponse") != open {
                let rule = "the number of function response parts is equal to the number of function call parts";
                return Some(format!("Please ensure that {rule} of the function call turn."));
            }
            open = if turn["role"] == "model" { count("functionCall") } else { 0 };
        }
        None
    }
}

impl StreamShape for GenerateContent {
    fn opening_events(&self, _context: &ResponseContext<'_>) -> String {
        String::new()
    }

    fn chunk_event(&self, context: &ResponseContext<'_>, text: &str) -> String {
        openai::format_event(&content_response(context, &json!([{"text": text}]), None))
    }

    fn closing_events(&self, context: &ResponseContext<'_>) -> String {
        function_call_part(context)
            .map_or_else(String::new, |call| openai::format_event(&content_response(context, &json!([call]), None)))
    }

    fn end_event(&self, context: &ResponseContext<'_>) -> String {
        openai::format_event(&content_response(context, &json!([{"text": ""}]), Some("STOP")))
    }
}

impl FaultEvents for GenerateContent {
    fn ping_event(&self) -> &'static str {
        ": ping\n\n"
    }

    fn error_event(&self) -> String {
        openai::format_event(&error_body(503, "The model is overloaded."))
    }

    fn malformed_event(&self) -> &'static str {
        "data: {\"candidates\":[{\"content\":{\"parts\":[{\"te\n\n"
    }
}

fn function_call_part(context: &ResponseContext<'_>) -> Option<Value> {
    let (name, args) = context.tool_call_with_input()?;
    Some(json!({"functionCall": {"name": name, "args": args}, "thoughtSignature": "bW9jaw=="}))
}

fn content_response(context: &ResponseContext<'_>, parts: &Value, finish: Option<&str>) -> Value {
    let mut candidate = json!({"content": {"parts": parts, "role": "model"}, "index": 0});
    if let Some(finish) = finish {
        candidate["finishReason"] = finish.into();
    }
    let mut response = json!({"candidates": [candidate]});
    if context.behaviour.usage != Some(false) {
        let output = context.behaviour.chunks;
        response["usageMetadata"] = json!({"promptTokenCount": PROMPT_TOKENS, "candidatesTokenCount": output,
            "totalTokenCount": PROMPT_TOKENS.saturating_add(output)});
    }
    response["modelVersion"] = context.model.into();
    response["responseId"] = "mock".into();
    response
}

/// Returns the vector of one content.
pub fn embedding_response(request: &Value) -> Value {
    json!({"embedding": embedding_vector(request)})
}

/// Returns one vector for each request of a batch.
pub fn batch_embedding_response(request: &Value) -> Value {
    let requests = request["requests"].as_array().map(Vec::as_slice).unwrap_or_default();
    json!({"embeddings": requests.iter().map(embedding_vector).collect::<Vec<_>>()})
}

fn embedding_vector(request: &Value) -> Value {
    let size = request["outputDimensionality"].as_u64().map_or(8, |size| size.clamp(1, 8192));
    json!({"values": (0..size).map(|at| (at % 8) as f32 / 8.0 - 0.4375).collect::<Vec<_>>()})
}

pub fn token_count_response() -> Value {
    json!({"totalTokens": PROMPT_TOKENS})
}

pub fn error_body(status: u32, message: &str) -> Value {
    let status_name = match status {
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        429 => "RESOURCE_EXHAUSTED",
        503 => "UNAVAILABLE",
        500.. => "INTERNAL",
        _ => "INVALID_ARGUMENT",
    };
    json!({"error": {"code": status, "message": message, "status": status_name}})
}
