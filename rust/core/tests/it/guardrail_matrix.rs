//! Every client format, whole and streamed: a canary in any text never reaches the other side, whether a guardrail
//! denies or redacts it. Combinations that a format cannot have are listed with the reason.

use std::fmt::Write;

use base64::{Engine, engine::general_purpose::STANDARD};
use penstock_llm::stream::aws_event_stream::encode_frame;
use serde_json::{Value, json};

use crate::harness::{TestResponse, golden_provider::GoldenProvider, post_with_config};

const CANARY: &str = "canary@mail.example";
/// Text with the canary in two halves, which a stream sends in two events.
const HALVES: [&str; 2] = ["write to cana", "ry@mail.example now"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Chat,
    Completions,
    Messages,
    Responses,
    Gemini,
    Converse,
    Invoke,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TextKind {
    Text,
    ToolArguments,
    ToolResult,
    SecondChoice,
    Refusal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Deny,
    DenyInPortions,
    Redact,
    RedactInPortions,
    Observe,
}

const FORMATS: [Format; 7] = [
    Format::Chat,
    Format::Completions,
    Format::Messages,
    Format::Responses,
    Format::Gemini,
    Format::Converse,
    Format::Invoke,
];
const TEXT_KINDS: [TextKind; 5] =
    [TextKind::Text, TextKind::ToolArguments, TextKind::ToolResult, TextKind::SecondChoice, TextKind::Refusal];
const ACTIONS: [Action; 5] =
    [Action::Deny, Action::DenyInPortions, Action::Redact, Action::RedactInPortions, Action::Observe];

/// Returns the reason why a format cannot have a text in this place; `None` if it can.
fn missing_reason(format: Format, place: TextKind, is_response: bool) -> Option<&'static str> {
    match (format, place) {
        (Format::Completions, TextKind::ToolArguments | TextKind::ToolResult | TextKind::Refusal) => {
            Some("completions are texts")
        }
        (Format::Messages | Format::Responses | Format::Converse | Format::Invoke, TextKind::SecondChoice)
            if is_response =>
        {
            Some("a response has one choice")
        }
        (_, TextKind::SecondChoice | TextKind::Refusal) if !is_response => Some("requests have no choices"),
        (Format::Chat | Format::Gemini | Format::Converse, TextKind::ToolResult) if is_response => {
            Some("the client runs all tools")
        }
        (Format::Messages | Format::Gemini | Format::Converse | Format::Invoke, TextKind::Refusal) => {
            Some("a refusal is a stop reason")
        }
        _ => None,
    }
}

impl Format {
    fn path(self, is_stream: bool) -> &'static str {
        match (self, is_stream) {
            (Self::Chat, _) => "/v1/chat/completions",
            (Self::Completions, _) => "/v1/completions",
            (Self::Messages, _) => "/v1/messages",
            (Self::Responses, _) => "/v1/responses",
            (Self::Gemini, false) => "/v1beta/models/m:generateContent",
            (Self::Gemini, true) => "/v1beta/models/m:streamGenerateContent?alt=sse",
            (Self::Converse, false) => "/model/m.x/converse",
            (Self::Converse, true) => "/model/m.x/converse-stream",
            (Self::Invoke, false) => "/model/anthropic.claude-3-haiku-20240307-v1:0/invoke",
            (Self::Invoke, true) => "/model/anthropic.claude-3-haiku-20240307-v1:0/invoke-with-response-stream",
        }
    }

    fn provider(self) -> Value {
        match self {
            Self::Chat | Self::Completions | Self::Responses => json!({"provider": "openai", "api_key": "k"}),
            Self::Messages => json!({"provider": "anthropic", "api_key": "k"}),
            Self::Gemini => json!({"provider": "google", "api_key": "k"}),
            Self::Converse | Self::Invoke => json!({"provider": "bedrock", "aws_access_key_id": "a",
                "aws_secret_access_key": "s", "aws_region": "us-east-1"}),
        }
    }

    /// Returns a request that has a text in one place, as its last message.
    fn request(self, place: TextKind, text: &str, is_stream: bool) -> Value {
        let args = json!({"to": text});
        let mut body = match self {
            Self::Chat => {
                let message = match place {
                    TextKind::ToolArguments => json!({"role": "assistant", "content": null, "tool_calls": [{"id": "t",
                        "type": "function", "function": {"name": "f", "arguments": args.to_string()}}]}),
                    TextKind::ToolResult => json!({"role": "tool", "tool_call_id": "t", "content": text}),
                    _ => json!({"role": "user", "content": text}),
                };
                json!({"model": "m", "messages": [message]})
            }
            Self::Completions => json!({"model": "m", "prompt": text}),
            Self::Messages | Self::Invoke => {
                let (role, part) = match place {
                    TextKind::ToolArguments => {
                        ("assistant", json!({"type": "tool_use", "id": "t", "name": "f", "input": args}))
                    }
                    TextKind::ToolResult => {
                        ("user", json!({"type": "tool_result", "tool_use_id": "t", "content": text}))
                    }
                    _ => ("user", json!({"type": "text", "text": text})),
                };
                json!({"model": "m", "max_tokens": 9, "messages": [{"role": role, "content": [part]}]})
            }
            Self::Responses => {
                let item = match place {
                    TextKind::ToolArguments => {
                        json!({"type": "function_call", "call_id": "t", "name": "f", "arguments": args.to_string()})
                    }
                    TextKind::ToolResult => json!({"type": "function_call_output", "call_id": "t", "output": text}),
                    _ => json!({"role": "user", "content": text}),
                };
                json!({"model": "m", "input": [item]})
            }
            Self::Gemini => {
                let part = match place {
                    TextKind::ToolArguments => json!({"functionCall": {"name": "f", "args": args}}),
                    TextKind::ToolResult => json!({"functionResponse": {"name": "f", "response": args}}),
                    _ => json!({"text": text}),
                };
                json!({"contents": [{"role": "user", "parts": [part]}]})
            }
            Self::Converse => {
                let part = match place {
                    TextKind::ToolArguments => json!({"toolUse": {"toolUseId": "t", "name": "f", "input": args}}),
                    TextKind::ToolResult => json!({"toolResult": {"toolUseId": "t", "content": [{"text": text}]}}),
                    _ => json!({"text": text}),
                };
                json!({"messages": [{"role": "user", "content": [part]}]})
            }
        };
        if is_stream && matches!(self, Self::Chat | Self::Completions | Self::Messages | Self::Responses) {
            body["stream"] = json!(true);
        }
        if self == Self::Invoke {
            body.as_object_mut().unwrap().shift_remove("model");
            body["anthropic_version"] = json!("bedrock-2023-05-31");
        }
        body
    }

    /// Returns a response that has a text in one place.
    fn response(self, place: TextKind, text: &str) -> Value {
        let args = json!({"to": text});
        match self {
            Self::Chat => {
                let good = json!({"role": "assistant", "content": "fine"});
                let message = match place {
                    TextKind::ToolArguments => json!({"role": "assistant", "content": null, "tool_calls": [{"id": "t",
                        "type": "function", "function": {"name": "f", "arguments": args.to_string()}}]}),
                    TextKind::Refusal => json!({"role": "assistant", "content": null, "refusal": text}),
                    _ => json!({"role": "assistant", "content": text}),
                };
                let messages = if place == TextKind::SecondChoice { vec![good, message] } else { vec![message] };
                let choices: Vec<_> = messages
                    .iter()
                    .enumerate()
                    .map(|(index, message)| json!({"index": index, "message": message, "finish_reason": "stop"}))
                    .collect();
                json!({"id": "c", "object": "chat.completion", "model": "m", "choices": choices, "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}})
            }
            Self::Completions => {
                let texts = if place == TextKind::SecondChoice { vec!["fine", text] } else { vec![text] };
                let choices: Vec<_> = texts
                    .iter()
                    .enumerate()
                    .map(|(index, text)| json!({"index": index, "text": text, "finish_reason": "stop"}))
                    .collect();
                json!({"id": "c", "object": "text_completion", "model": "m", "choices": choices, "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}})
            }
            Self::Messages | Self::Invoke => {
                let part = match place {
                    TextKind::ToolArguments => json!({"type": "tool_use", "id": "t", "name": "f", "input": args}),
                    TextKind::ToolResult => {
                        json!({"type": "code_execution_tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": text}]})
                    }
                    _ => json!({"type": "text", "text": text}),
                };
                json!({"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [part], "stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}})
            }
            Self::Responses => json!({"id": "r", "object": "response", "status": "completed", "model": "m",
                "output": [response_item(place, text)], "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}}),
            Self::Gemini => {
                let part = if place == TextKind::ToolArguments {
                    json!({"functionCall": {"name": "f", "args": args}})
                } else {
                    json!({"text": text})
                };
                let good = json!({"text": "fine"});
                let parts = if place == TextKind::SecondChoice { vec![good, part] } else { vec![part] };
                let candidates: Vec<_> = parts.iter().enumerate().map(|(index, part)| json!({"index": index, "content": {"role": "model", "parts": [part]}, "finishReason": "STOP"})).collect();
                json!({"candidates": candidates, "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}})
            }
            Self::Converse => {
                let part = if place == TextKind::ToolArguments {
                    json!({"toolUse": {"toolUseId": "t", "name": "f", "input": args}})
                } else {
                    json!({"text": text})
                };
                json!({"output": {"message": {"role": "assistant", "content": [part]}}, "stopReason": "end_turn", "usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}})
            }
        }
    }

    /// Returns a stream that has the canary in one place, in two events where the format allows it.
    fn stream(self, place: TextKind) -> Vec<u8> {
        match self {
            Self::Chat | Self::Completions => [&self.chunks(place)[..], b"data: [DONE]\n\n"].concat(),
            Self::Messages => write_events(&anthropic_events(place)),
            Self::Responses => write_events(&response_events(place)),
            Self::Invoke => {
                let wrap = |event: &Value| json!({"bytes": STANDARD.encode(event.to_string())}).to_string();
                let events = anthropic_events(place);
                events.iter().flat_map(|event| encode_frame("event", "chunk", wrap(event).as_bytes())).collect()
            }
            Self::Gemini => self.gemini_events(place),
            Self::Converse => converse_frames(place),
        }
    }

    fn chunks(self, place: TextKind) -> Vec<u8> {
        let index = usize::from(place == TextKind::SecondChoice);
        let chunk = |half: &str| match (self, place) {
            (Self::Completions, _) => json!({"choices": [{"index": index, "text": half}]}),
            (_, TextKind::ToolArguments) => {
                json!({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": half}}]}}]})
            }
            (_, TextKind::Refusal) => json!({"choices": [{"index": 0, "delta": {"refusal": half}}]}),
            _ => json!({"choices": [{"index": index, "delta": {"content": half}}]}),
        };
        let end = json!({"choices": [{"index": index, "delta": {}, "text": "", "finish_reason": "stop"}]});
        write_events(&[chunk(HALVES[0]), chunk(HALVES[1]), end])
    }

    fn gemini_events(self, place: TextKind) -> Vec<u8> {
        let complete = HALVES.concat();
        let texts = if place == TextKind::ToolArguments { vec![complete.as_str()] } else { HALVES.to_vec() };
        let mut events: Vec<_> = texts.into_iter().map(|text| self.response(place, text)).collect();
        for candidate in events.iter_mut().flat_map(|event| event["candidates"].as_array_mut().unwrap()) {
            candidate.as_object_mut().unwrap().shift_remove("finishReason");
        }
        events.push(json!({"candidates": [{"index": 0, "finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}}));
        write_events(&events)
    }
}

/// Writes events as SSE. The type of an event, if it has one, is also its name.
fn write_events(events: &[Value]) -> Vec<u8> {
    let mut stream = String::new();
    for event in events {
        if let Some(name) = event["type"].as_str() {
            writeln!(stream, "event: {name}").unwrap();
        }
        write!(stream, "data: {event}\n\n").unwrap();
    }
    stream.into_bytes()
}

fn converse_frames(place: TextKind) -> Vec<u8> {
    let delta = |half: &str| match place {
        TextKind::ToolArguments => json!({"contentBlockIndex": 0, "delta": {"toolUse": {"input": half}}}),
        _ => json!({"contentBlockIndex": 0, "delta": {"text": half}}),
    };
    let frames = [
        ("messageStart", json!({"role": "assistant"})),
        ("contentBlockDelta", delta(HALVES[0])),
        ("contentBlockDelta", delta(HALVES[1])),
        ("contentBlockStop", json!({"contentBlockIndex": 0})),
        ("messageStop", json!({"stopReason": "end_turn"})),
        ("metadata", json!({"usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}})),
    ];
    frames.iter().flat_map(|(name, payload)| encode_frame("event", name, payload.to_string().as_bytes())).collect()
}

fn response_item(place: TextKind, text: &str) -> Value {
    match place {
        TextKind::ToolArguments => {
            json!({"type": "function_call", "id": "i", "call_id": "t", "name": "f", "arguments": json!({"to": text}).to_string()})
        }
        TextKind::ToolResult => json!({"type": "mcp_call", "id": "i", "name": "f", "arguments": "{}", "output": text}),
        TextKind::Refusal => {
            json!({"type": "message", "id": "i", "role": "assistant", "content": [{"type": "refusal", "refusal": text}]})
        }
        _ => {
            json!({"type": "message", "id": "i", "role": "assistant", "content": [{"type": "output_text", "text": text, "annotations": []}]})
        }
    }
}

fn response_events(place: TextKind) -> Vec<Value> {
    let name = match place {
        TextKind::ToolArguments => "response.function_call_arguments.delta",
        TextKind::Refusal => "response.refusal.delta",
        _ => "response.output_text.delta",
    };
    let complete = HALVES.concat();
    let item = match place {
        // The deltas of these arguments are plain text, not JSON, so the item repeats that text unchanged.
        TextKind::ToolArguments => {
            json!({"type": "function_call", "id": "i", "call_id": "t", "name": "f", "arguments": complete})
        }
        place => response_item(place, &complete),
    };
    let mut events =
        vec![json!({"type": "response.created", "response": {"id": "r", "object": "response", "output": []}})];
    if place != TextKind::ToolResult {
        events.extend(
            HALVES.map(
                |half| json!({"type": name, "output_index": 0, "content_index": 0, "item_id": "i", "delta": half}),
            ),
        );
    }
    events.push(json!({"type": "response.output_item.done", "output_index": 0, "item": item}));
    events.push(json!({"type": "response.completed", "response": {"id": "r", "object": "response", "status": "completed", "output": [item], "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}}}));
    events
}

fn anthropic_events(place: TextKind) -> Vec<Value> {
    let mut events = vec![
        json!({"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": {"input_tokens": 1, "output_tokens": 1}}}),
    ];
    match place {
        TextKind::ToolResult => events.push(json!({"type": "content_block_start", "index": 0, "content_block": {"type": "code_execution_tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": HALVES.concat()}]}})),
        TextKind::ToolArguments => {
            events.push(json!({"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {}}}));
            events.extend(HALVES.map(|half| json!({"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": half}})));
        }
        _ => {
            events.push(json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}));
            events.extend(HALVES.map(|half| json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": half}})));
        }
    }
    events.push(json!({"type": "content_block_stop", "index": 0}));
    events.push(json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}));
    events.push(json!({"type": "message_stop"}));
    events
}

fn guardrail(action: Action) -> Value {
    let words = json!({"contains": {"words": [CANARY], "operator": "none"}});
    let pii = json!({"gateway.pii": {"categories": ["EMAIL_ADDRESS"], "redact": true}});
    let mut guardrail = match action {
        Action::Redact | Action::RedactInPortions => pii,
        _ => words,
    };
    guardrail["deny"] = json!(action != Action::Observe);
    if matches!(action, Action::DenyInPortions | Action::RedactInPortions) {
        guardrail["stream"] = json!("window");
    }
    guardrail
}

/// Returns all text of a body with its deltas joined, also text within the base64 of Bedrock's frames.
fn visible(body: &[u8]) -> String {
    let plain = String::from_utf8_lossy(body).into_owned();
    let encoded = plain.split("\"bytes\":\"").skip(1).filter_map(|rest| STANDARD.decode(rest.split('"').next()?).ok());
    let decoded: String = encoded.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect();
    // Removes the words that the results of a denial quote from the check itself. They are no text of the model.
    (plain + &decoded).replace(&format!("\"foundWords\":[\"{CANARY}\"]"), "")
}

async fn send_case(
    format: Format,
    request: &Value,
    side: &str,
    action: Action,
    body: Vec<u8>,
    is_stream: bool,
) -> (TestResponse, GoldenProvider) {
    let is_binary = matches!(format, Format::Converse | Format::Invoke);
    let kind = match (is_stream, is_binary) {
        (false, _) => "application/json",
        (true, false) => "text/event-stream",
        (true, true) => "application/vnd.amazon.eventstream",
    };
    let provider = GoldenProvider::start(200, kind, body, 100).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let mut config = format.provider();
    config["custom_host"] = json!(provider.server.url());
    config[side] = json!([guardrail(action)]);
    let response = gateway.send(post_with_config(&config, format.path(is_stream), request.to_string())).await;
    (response, provider)
}

#[tokio::test]
async fn a_canary_in_a_response_never_reaches_the_client() {
    let mut cells = 0;
    for format in FORMATS {
        for place in TEXT_KINDS.into_iter().filter(|place| missing_reason(format, *place, true).is_none()) {
            for (action, is_stream) in ACTIONS.into_iter().flat_map(|action| [(action, false), (action, true)]) {
                let text = HALVES.concat();
                let body = if is_stream {
                    format.stream(place)
                } else {
                    format.response(place, &text).to_string().into_bytes()
                };
                let request = format.request(TextKind::Text, "hi", is_stream);
                let (response, _provider) =
                    send_case(format, &request, "output_guardrails", action, body, is_stream).await;
                let (cell, answer) =
                    (format!("{format:?} {place:?} {action:?} stream={is_stream}"), visible(&response.body));
                let reaches = answer.contains("ry@mail");
                match action {
                    Action::Observe => {
                        assert!(
                            reaches && matches!(response.status, 200 | 246),
                            "{cell}: {} {answer}",
                            response.status
                        );
                    }
                    Action::Deny => assert!(!reaches && response.status == 446, "{cell}: {} {answer}", response.status),
                    Action::DenyInPortions => assert!(
                        !reaches
                            && (answer.contains("hooks_failed")
                                || answer.contains("hook_results")
                                || answer.contains("FAILED_PRECONDITION")),
                        "{cell}: {} {answer}",
                        response.status
                    ),
                    Action::Redact | Action::RedactInPortions => {
                        assert!(
                            !reaches && answer.contains("EMAIL_ADDRESS_1") && response.status == 200,
                            "{cell}: {} {answer}",
                            response.status
                        );
                    }
                }
                cells += 1;
            }
        }
    }
    assert_eq!(cells, FORMATS.len() * TEXT_KINDS.len() * 10 - 10 * count_missing(true));
}

#[tokio::test]
async fn a_canary_in_a_request_never_reaches_the_provider() {
    let mut cells = 0;
    for format in FORMATS {
        for place in TEXT_KINDS.into_iter().filter(|place| missing_reason(format, *place, false).is_none()) {
            for (action, is_stream) in [Action::Deny, Action::Redact, Action::Observe]
                .into_iter()
                .flat_map(|action| [(action, false), (action, true)])
            {
                let body = if is_stream {
                    format.stream(TextKind::Text)
                } else {
                    format.response(TextKind::Text, "fine").to_string().into_bytes()
                };
                let request = format.request(place, &HALVES.concat(), is_stream);
                let (response, provider) =
                    send_case(format, &request, "input_guardrails", action, body, is_stream).await;
                let cell = format!("{format:?} {place:?} {action:?} stream={is_stream}");
                let sent = String::from_utf8_lossy(&provider.last_request.lock().unwrap()).into_owned();
                let reaches = sent.contains("ry@mail");
                match action {
                    Action::Deny => {
                        assert!(sent.is_empty() && response.status == 446, "{cell}: {} {sent}", response.status);
                    }
                    Action::Redact => {
                        assert!(!reaches && sent.contains("EMAIL_ADDRESS_1"), "{cell}: {} {sent}", response.status);
                    }
                    _ => assert!(reaches && response.status == 246, "{cell}: {} {sent}", response.status),
                }
                cells += 1;
            }
        }
    }
    assert_eq!(cells, FORMATS.len() * TEXT_KINDS.len() * 6 - 6 * count_missing(false));
}

fn count_missing(is_response: bool) -> usize {
    let pairs = FORMATS.into_iter().flat_map(|format| TEXT_KINDS.map(|place| (format, place)));
    pairs.filter(|(format, place)| missing_reason(*format, *place, is_response).is_some()).count()
}
