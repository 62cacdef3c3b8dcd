//! Gemini, Bedrock and Cohere formats of the mock provider: responses, framing, errors, and validation of requests.

use std::time::Duration;

use crate::http_client::{CHAT_PATH, Client, Response, start_server};
use penstock_mock::Server;
use serde_json::{Value, json};

const READ_TIMEOUT: Duration = Duration::from_millis(400);
const EXPECTED_TEXT: &str = "Hello from the ";

fn post_json(server: &Server, path: &str, body: &Value) -> Response {
    let mut client = Client::connect(server);
    client.send_request("POST", path, "content-type: application/json\r\n", &body.to_string());
    client.read_response(READ_TIMEOUT)
}

fn gemini_request() -> Value {
    json!({"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]})
}

fn converse_request() -> Value {
    json!({"messages": [{"role": "user", "content": [{"text": "Hello"}]}]})
}

#[test]
fn gemini_responds_buffered_and_streamed() {
    let server = start_server();
    let complete = post_json(&server, "/v1beta/models/gemini%3Fchunks=3:generateContent", &gemini_request()).json();
    assert_eq!(complete["candidates"][0]["content"]["parts"], json!([{"text": EXPECTED_TEXT}]));
    assert_eq!(
        (&complete["modelVersion"], &complete["usageMetadata"]["totalTokenCount"]),
        (&json!("gemini"), &json!(15))
    );
    let events =
        post_json(&server, "/v1beta/models/gemini%3Fchunks=3:streamGenerateContent?alt=sse", &gemini_request())
            .events();
    let events: Vec<Value> = events.iter().map(|(_, data)| serde_json::from_str(data).unwrap()).collect();
    let content: String =
        events.iter().filter_map(|event| event["candidates"][0]["content"]["parts"][0]["text"].as_str()).collect();
    assert_eq!((content.as_str(), &events[3]["candidates"][0]["finishReason"]), (EXPECTED_TEXT, &json!("STOP")));
}

#[test]
fn converse_responds_buffered_and_in_frames() {
    let server = start_server();
    let complete = post_json(&server, "/model/nova%3Fchunks=3/converse", &converse_request()).json();
    assert_eq!(complete["output"]["message"]["content"], json!([{"text": EXPECTED_TEXT}]));
    assert_eq!((&complete["stopReason"], &complete["usage"]["totalTokens"]), (&json!("end_turn"), &json!(15)));
    let response = post_json(&server, "/model/nova%3Fchunks=3/converse-stream", &converse_request());
    assert_eq!(response.header("content-type").as_deref(), Some("application/vnd.amazon.eventstream"));
    let frames = decode_frames(&response.body());
    let names: Vec<_> = frames.iter().map(|(name, _)| name.as_str()).collect();
    let delta = "contentBlockDelta";
    assert_eq!(names, ["messageStart", delta, delta, delta, "contentBlockStop", "messageStop", "metadata"]);
    assert_eq!(frames[6].1["usage"]["outputTokens"], 3);
}

#[test]
fn cohere_responds_buffered_and_streamed_and_validates() {
    let server = start_server();
    let build_request = |model: &str, more: Value| {
        let mut body = json!({"model": model, "messages": [{"role": "user", "content": "Hello"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let complete = post_json(&server, "/v2/chat", &build_request("command?chunks=3", json!({}))).json();
    assert_eq!(
        (&complete["message"]["content"][0]["text"], &complete["finish_reason"]),
        (&json!(EXPECTED_TEXT), &json!("COMPLETE"))
    );
    assert_eq!(complete["usage"]["tokens"], json!({"input_tokens": 12, "output_tokens": 3}));
    let events = post_json(&server, "/v2/chat", &build_request("command?chunks=3", json!({"stream": true}))).events();
    let kinds: Vec<_> = events.iter().filter_map(|(kind, _)| kind.as_deref()).collect();
    let delta = "content-delta";
    assert_eq!(kinds, ["message-start", "content-start", delta, delta, delta, "content-end", "message-end"]);
    assert!(events[6].1.contains("\"output_tokens\":3"), "{}", events[6].1);
    let unknown = post_json(&server, "/v2/chat", &build_request("command", json!({"n": 2})));
    assert_eq!((unknown.status(), unknown.text().contains("'n' is not a valid field")), (400, true));
    let tool = json!({"messages": [{"role": "tool", "tool_call_id": "c1", "content": "x"}]});
    assert_eq!(post_json(&server, "/v2/chat", &build_request("command", tool)).status(), 400);
    let refused = post_json(&server, "/v2/chat", &build_request("command?status=429", json!({})));
    assert_eq!((refused.status(), refused.json()["message"].is_string()), (429, true));
    let vectors =
        post_json(&server, "/v2/embed", &json!({"model": "e", "texts": ["a", "b"], "output_dimension": 3})).json();
    assert_eq!(vectors["embeddings"]["float"].as_array().unwrap().len(), 2);
    let ranked = post_json(
        &server,
        "/v2/rerank",
        &json!({"model": "r", "query": "q", "documents": ["a", "b", "c"], "top_n": 2}),
    );
    assert_eq!(ranked.json()["results"][1]["index"], 1);
}

/// Returns the names and payloads of the frames. Panics if a length or checksum is wrong.
fn decode_frames(mut bytes: &[u8]) -> Vec<(String, Value)> {
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes[..4].try_into().unwrap());
    let mut items = Vec::new();
    while !bytes.is_empty() {
        let (total, headers) = (number(bytes) as usize, number(&bytes[4..]) as usize);
        let (frame, rest) = bytes.split_at(total);
        assert_eq!(crc32fast::hash(&frame[..8]), number(&frame[8..]));
        assert_eq!(crc32fast::hash(&frame[..total - 4]), number(&frame[total - 4..]));
        let text = String::from_utf8_lossy(&frame[12..12 + headers]).into_owned();
        let kinds = [":event-type\u{7}\0", ":exception-type\u{7}\0"];
        let name = kinds.iter().find_map(|kind| text.split_once(kind)).unwrap().1;
        let length = name.as_bytes()[0] as usize;
        let payload = serde_json::from_slice(&frame[12 + headers..total - 4]).unwrap();
        items.push((name[1..=length].to_owned(), payload));
        bytes = rest;
    }
    items
}

#[test]
fn rejects_invalid_requests_with_the_vendors_errors() {
    let server = start_server();
    let unknown = json!({"messages": []});
    let response = post_json(&server, "/v1/models/gemini:generateContent", &unknown);
    assert_eq!((response.status(), &response.json()["error"]["status"]), (400, &json!("INVALID_ARGUMENT")));
    let unanswered = json!({"contents": [{"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]},
        {"role": "user", "parts": [{"text": "and?"}]}]});
    assert!(
        post_json(&server, "/v1/models/gemini:generateContent", &unanswered).text().contains("function response parts")
    );
    for (body, words) in [
        (json!({"messages": [{"role": "assistant", "content": [{"text": "a"}]}]}), "start with a user message"),
        (json!({"messages": [{"role": "user", "content": [{"text": "a", "image": {}}]}]}), "exactly one member"),
        (
            json!({"messages": [{"role": "user", "content": [{"toolResult": {"toolUseId": "x"}}]}]}),
            "Expected toolResult",
        ),
        (json!({"messages": [], "model": "m"}), "extraneous key [model]"),
    ] {
        let response = post_json(&server, "/model/nova/converse", &body);
        assert_eq!(response.status(), 400);
        assert!(response.text().contains(words), "{}", response.text());
    }
    assert_eq!(post_json(&server, "/model/claude/invoke", &json!({"messages": []})).status(), 400);
}

#[test]
fn calls_a_tool_in_every_format_until_it_has_a_result() {
    let server = start_server();
    let call = "?call=weather&arguments=%7B%22city%22%3A%22Oslo%22%7D";
    let chat = json!({"model": format!("gpt{call}"), "messages": []});
    let tool_response = post_json(&server, CHAT_PATH, &chat).json();
    assert_eq!(tool_response["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], r#"{"city":"Oslo"}"#);
    assert_eq!(tool_response["choices"][0]["finish_reason"], "tool_calls");
    let result = json!({"model": format!("gpt{call}"), "messages": [{"role": "tool", "tool_call_id": "call_mock"}]});
    assert_eq!(post_json(&server, CHAT_PATH, &result).json()["choices"][0]["finish_reason"], "stop");
    let path = call.replace('?', "%3F").replace('%', "%25").replace("%253F", "%3F");
    let gemini = post_json(&server, &format!("/v1beta/models/g{path}:generateContent"), &gemini_request()).json();
    assert_eq!(gemini["candidates"][0]["content"]["parts"][1]["functionCall"]["args"]["city"], "Oslo");
    let converse = post_json(&server, &format!("/model/n{path}/converse"), &converse_request()).json();
    assert_eq!(converse["output"]["message"]["content"][1]["toolUse"]["input"]["city"], "Oslo");
    assert_eq!(converse["stopReason"], "tool_use");
}

#[test]
fn errors_and_faults_have_the_vendors_format() {
    let server = start_server();
    let gemini = post_json(&server, "/v1beta/models/g%3Fstatus=429:generateContent", &gemini_request());
    assert_eq!((gemini.status(), &gemini.json()["error"]["status"]), (429, &json!("RESOURCE_EXHAUSTED")));
    let bedrock = post_json(&server, "/model/n%3Fstatus=403/converse", &converse_request());
    assert_eq!((bedrock.status(), bedrock.json().as_object().unwrap().len()), (403, 1));
    assert_eq!(bedrock.header("x-amzn-errortype").as_deref(), Some("AccessDeniedException"));
    let failing = post_json(&server, "/model/n%3Ffault=error_event/converse-stream", &converse_request());
    assert!(decode_frames(&failing.body()).iter().any(|(name, _)| name == "serviceUnavailableException"));
}
