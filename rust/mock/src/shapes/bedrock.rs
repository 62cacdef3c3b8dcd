//! Bedrock response shapes: Converse and Claude messages, complete or as event-stream frames. Also errors and request
//! validation.

use serde_json::{Value, json};

use super::anthropic::{Messages, stop_reason};
use super::openai::encode_base64;
use super::{FaultEvents, ProviderFamily, ResponseContext, ResponseShape, StreamShape};

const INPUT_TOKENS: u32 = 12;

/// Fields that a Converse request may have.
const ALLOWED_FIELDS: [&str; 12] = [
    "messages",
    "system",
    "inferenceConfig",
    "toolConfig",
    "guardrailConfig",
    "additionalModelRequestFields",
    "additionalModelResponseFieldPaths",
    "promptVariables",
    "requestMetadata",
    "performanceConfig",
    "serviceTier",
    "outputConfig",
];

const STREAM_CONTENT_TYPE: &str = "application/vnd.amazon.eventstream";

pub struct Converse;

/// Represents each event as a line with its name and JSON payload. `encode_frames` encodes the lines as frames.
impl ResponseShape for Converse {
    fn family(&self) -> ProviderFamily {
        ProviderFamily::Bedrock
    }

    fn complete_body(&self, context: &ResponseContext<'_>, text: &str) -> Value {
        let mut blocks = vec![json!({"text": text})];
        if let Some((name, input)) = context.tool_call_with_input() {
            blocks.push(json!({"toolUse": {"toolUseId": "tooluse_mock", "name": name, "input": input}}));
        }
        let message = json!({"role": "assistant", "content": blocks});
        let mut response = json!({"output": {"message": message}, "stopReason": stop_reason(context)});
        if context.behaviour.usage != Some(false) {
            response["usage"] = usage_object(context);
        }
        response["metrics"] = json!({"latencyMs": 1});
        response
    }

    fn validation_error(&self, body: &Value) -> Option<String> {
        let fields = body.as_object()?;
        if let Some(unknown) = fields.keys().find(|key| !ALLOWED_FIELDS.contains(&key.as_str())) {
            return Some(format!(
                "The model returned the following errors: extraneous key [{unknown}] is not permitted"
            ));
        }
        let turns = body["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
        if turns.first().is_none_or(|turn| turn["role"] != "user") {
            return Some("A conversation must start with a user message.".into());
        }
        let mut open: Vec<&Value> = Vec::new();
        for (at, turn) in turns.iter().enumerate() {
            if turn["role"] != ["user", "assistant"][at % 2] {
                return Some("A conversation must alternate between user and assistant roles.".into());
            }
            let blocks = turn["content"].as_array().map(Vec::as_slice).unwrap_or_default();
            if blocks.iter().any(|block| block.as_object().is_none_or(|block| block.len() != 1)) {
                return Some(format!("messages.{at}.content: a block must have exactly one member."));
            }
            let ids = |kind: &str| -> Vec<&Value> {
                blocks.iter().filter_map(|block| block.get(kind)).map(|block| &block["toolUseId"]).collect()
            };
            if turn["role"] == "user" && ids("toolResult") != open {
                return Some(format!(
                    "Expected toolResult blocks at messages.{at}.content for the following Ids: {open:?}"
                ));
            }
            open = ids("toolUse");
        }
        None
    }
}

impl StreamShape for Converse {
    fn opening_events(&self, _context: &ResponseContext<'_>) -> String {
        event_line("messageStart", &json!({"role": "assistant"}))
    }

    fn chunk_event(&self, _context: &ResponseContext<'_>, text: &str) -> String {
        event_line("contentBlockDelta", &json!({"contentBlockIndex": 0, "delta": {"text": text}}))
    }

    fn closing_events(&self, context: &ResponseContext<'_>) -> String {
        let mut events = event_line("contentBlockStop", &json!({"contentBlockIndex": 0}));
        if let Some((name, arguments)) = context.tool_call() {
            let start = json!({"toolUse": {"toolUseId": "tooluse_mock", "name": name}});
            events += &event_line("contentBlockStart", &json!({"contentBlockIndex": 1, "start": start}));
            let delta = json!({"toolUse": {"input": arguments}});
            events += &event_line("contentBlockDelta", &json!({"contentBlockIndex": 1, "delta": delta}));
            events += &event_line("contentBlockStop", &json!({"contentBlockIndex": 1}));
        }
        events + &event_line("messageStop", &json!({"stopReason": stop_reason(context)}))
    }

    fn end_event(&self, context: &ResponseContext<'_>) -> String {
        if context.behaviour.usage == Some(false) {
            return String::new();
        }
        event_line("metadata", &json!({"usage": usage_object(context), "metrics": {"latencyMs": 1}}))
    }

    fn encode_frames(&self, events: &[u8]) -> Vec<u8> {
        events.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).flat_map(encode_line).collect()
    }

    fn stream_content_type(&self) -> &'static str {
        STREAM_CONTENT_TYPE
    }
}

impl FaultEvents for Converse {
    fn ping_event(&self) -> &'static str {
        ""
    }

    fn error_event(&self) -> String {
        event_line("!serviceUnavailableException", &json!({"message": "Too many connections, please wait."}))
    }

    fn malformed_event(&self) -> &'static str {
        "contentBlockDelta {\"contentBlockIndex\":0,\"delta\":{\"te\n"
    }
}

/// Claude messages through `InvokeModel`: Anthropic's shapes, each event in a frame.
pub struct InvokeModel;

impl ResponseShape for InvokeModel {
    fn family(&self) -> ProviderFamily {
        ProviderFamily::Bedrock
    }

    fn complete_body(&self, context: &ResponseContext<'_>, text: &str) -> Value {
        Messages.complete_body(context, text)
    }

    fn validation_error(&self, body: &Value) -> Option<String> {
        let is_fine = body["anthropic_version"] == "bedrock-2023-05-31" && body.get("model").is_none();
        (!is_fine).then(|| "anthropic_version: Field required, and model: Extra inputs are not permitted".into())
    }
}

impl StreamShape for InvokeModel {
    fn opening_events(&self, context: &ResponseContext<'_>) -> String {
        Messages.opening_events(context)
    }

    fn chunk_event(&self, context: &ResponseContext<'_>, text: &str) -> String {
        Messages.chunk_event(context, text)
    }

    fn closing_events(&self, context: &ResponseContext<'_>) -> String {
        Messages.closing_events(context)
    }

    fn end_event(&self, context: &ResponseContext<'_>) -> String {
        Messages.end_event(context)
    }

    fn encode_frames(&self, events: &[u8]) -> Vec<u8> {
        let data = events.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"data: "));
        let chunk = |event: &[u8]| json!({"bytes": encode_base64(event)}).to_string();
        data.flat_map(|event| encode_frame("event", "chunk", chunk(event).as_bytes())).collect()
    }

    fn stream_content_type(&self) -> &'static str {
        STREAM_CONTENT_TYPE
    }
}

impl FaultEvents for InvokeModel {
    fn ping_event(&self) -> &'static str {
        Messages.ping_event()
    }

    fn error_event(&self) -> String {
        Messages.error_event()
    }

    fn malformed_event(&self) -> &'static str {
        Messages.malformed_event()
    }
}

pub fn token_count_response() -> Value {
    json!({"inputTokens": INPUT_TOKENS})
}

fn event_line(name: &str, payload: &Value) -> String {
    format!("{name} {payload}\n")
}

fn encode_line(line: &[u8]) -> Vec<u8> {
    let at = line.iter().position(|byte| *byte == b' ').unwrap_or(line.len());
    let (name, payload) = (String::from_utf8_lossy(&line[..at]), line.get(at + 1..).unwrap_or_default());
    match name.strip_prefix('!') {
        Some(name) => encode_frame("exception", name, payload),
        None => encode_frame("event", &name, payload),
    }
}

/// Encodes one event-stream frame with its lengths and checksums.
fn encode_frame(kind: &str, name: &str, payload: &[u8]) -> Vec<u8> {
    let type_header = if kind == "exception" { ":exception-type" } else { ":event-type" };
    let mut headers = Vec::new();
    for (key, value) in [(type_header, name), (":content-type", "application/json"), (":message-type", kind)] {
        headers.push(key.len() as u8);
        headers.extend_from_slice(key.as_bytes());
        headers.push(7);
        headers.extend_from_slice(&(value.len() as u16).to_be_bytes());
        headers.extend_from_slice(value.as_bytes());
    }
    let total = 16 + headers.len() + payload.len();
    let mut frame = [(total as u32).to_be_bytes(), (headers.len() as u32).to_be_bytes()].concat();
    frame.extend_from_slice(&crc32fast::hash(&frame).to_be_bytes());
    frame.extend_from_slice(&headers);
    frame.extend_from_slice(payload);
    frame.extend_from_slice(&crc32fast::hash(&frame).to_be_bytes());
    frame
}

fn usage_object(context: &ResponseContext<'_>) -> Value {
    let output = context.behaviour.chunks;
    json!({"inputTokens": INPUT_TOKENS, "outputTokens": output, "totalTokens": INPUT_TOKENS.saturating_add(output)})
}

pub fn error_body(message: &str) -> Value {
    json!({"message": message})
}
