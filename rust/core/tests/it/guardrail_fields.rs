//! Texts in fields beyond the usual ones: a canary in any of them never reaches the other side, whether a guardrail denies
//! or redacts it, whole and streamed. Each row was once a way around a guardrail.
#![allow(clippy::needless_pass_by_value, reason = "the tables pass literals")]
#![allow(clippy::too_many_lines, reason = "a table is one function")]

use serde_json::{Value, json};

use crate::harness::{TestResponse, golden_provider::GoldenProvider, post_with_config};

const CANARY: &str = "canary@mail.example";
/// The canary with an escape for its first letters, as the source of a JSON string.
const ESCAPED: &str = r"\u0063\u0061nary@mail.example";

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";
const GEMINI: &str = "/v1beta/models/m:generateContent";
const GEMINI_STREAM: &str = "/v1beta/models/m:streamGenerateContent?alt=sse";
const CONVERSE: &str = "/model/m.x/converse";
const INVOKE: &str = "/model/cohere.command/invoke";

/// Returns the provider of a path.
fn provider(path: &str) -> Value {
    match path {
        "/v1/rerank" => json!({"provider": "cohere", "api_key": "k"}),
        "/v1/ocr" => json!({"provider": "mistral-ai", "api_key": "k"}),
        path if path.starts_with("/model/") => json!({"provider": "bedrock", "aws_access_key_id": "a",
            "aws_secret_access_key": "s", "aws_region": "us-east-1"}),
        path if path.starts_with("/v1beta/") => json!({"provider": "google", "api_key": "k"}),
        path if path.starts_with(MESSAGES) => json!({"provider": "anthropic", "api_key": "k"}),
        _ => json!({"provider": "openai", "api_key": "k"}),
    }
}

fn guardrail(redacts: bool, stream: &str) -> Value {
    let mut guardrail = if redacts {
        json!({"gateway.pii": {"categories": ["EMAIL_ADDRESS"], "redact": true, "scope": "all"}})
    } else {
        json!({"contains": {"words": [CANARY], "operator": "none", "scope": "all"}})
    };
    guardrail["deny"] = json!(true);
    if !stream.is_empty() {
        guardrail["stream"] = json!(stream);
    }
    guardrail
}

/// Returns true if a reader finds the canary in a JSON value, also within strings that are JSON.
fn shows_canary(value: &Value) -> bool {
    match value {
        Value::String(text) => {
            text.contains(CANARY) || serde_json::from_str(text).is_ok_and(|inner: Value| shows_canary(&inner))
        }
        Value::Array(items) => items.iter().any(shows_canary),
        Value::Object(fields) => fields.iter().any(|(name, value)| name.contains(CANARY) || shows_canary(value)),
        _ => false,
    }
}

async fn send_with_hook(
    path: &str,
    request: &str,
    side: &str,
    hook: Value,
    kind: &str,
    body: Vec<u8>,
) -> (TestResponse, Vec<u8>) {
    answer(200, path, request, side, hook, kind, body).await
}

async fn answer(
    status: u16,
    path: &str,
    request: &str,
    side: &str,
    hook: Value,
    kind: &str,
    body: Vec<u8>,
) -> (TestResponse, Vec<u8>) {
    let provider_host = GoldenProvider::start(status, kind, body, 40).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let mut config = provider(path);
    config["custom_host"] = json!(provider_host.server.url());
    config[side] = json!([hook]);
    let response = gateway.send(post_with_config(&config, path, request.to_owned())).await;
    let sent = provider_host.last_request.lock().unwrap().clone();
    (response, sent)
}

fn chat(messages: Value) -> Value {
    json!({"model": "m", "messages": messages})
}

fn chat_with(name: &str, value: Value) -> Value {
    let mut body = chat(json!([{"role": "user", "content": "hi"}]));
    body[name] = value;
    body
}

fn assistant(name: &str, value: Value) -> Value {
    let mut message = json!({"role": "assistant", "content": "fine"});
    message[name] = value;
    chat(json!([message, {"role": "user", "content": "hi"}]))
}

fn call(arguments: &str) -> Value {
    json!([{"id": "t", "type": "function", "function": {"name": "f", "arguments": arguments}}])
}

fn items(item: Value) -> Value {
    json!({"model": "m", "input": [item, {"role": "user", "content": "hi"}]})
}

fn block(block: Value) -> Value {
    json!({"model": "m", "max_tokens": 9, "messages": [{"role": "assistant", "content": [block]}, {"role": "user", "content": "hi"}]})
}

fn converse(block: Value) -> Value {
    json!({"messages": [{"role": "assistant", "content": [block]}, {"role": "user", "content": [{"text": "hi"}]}]})
}

/// Requests that have the canary in one field.
fn requests() -> Vec<(&'static str, Value)> {
    let escaped = format!(r#"{{"q":"{ESCAPED}"}}"#);
    let turn = json!({"contents": [{"role": "user", "parts": [{"text": CANARY}]}]});
    vec![
        // Requests whose tokens are counted.
        ("/v1/messages/count_tokens", block(json!({"type": "text", "text": CANARY}))),
        ("/v1beta/models/m:countTokens", turn.clone()),
        ("/v1beta/models/m:countTokens", json!({"generateContentRequest": turn})),
        (
            "/model/m.x/count-tokens",
            json!({"input": {"converse": {"messages": [{"role": "user", "content": [{"text": CANARY}]}]}}}),
        ),
        // JSON with escapes.
        (CHAT, assistant("tool_calls", call(&escaped))),
        (CHAT, chat(json!([{"role": "tool", "tool_call_id": "t", "content": escaped}]))),
        (CHAT, assistant("tool_calls", call(&format!("{{\"q\":\"line\\n{CANARY}\"}}")))),
        (RESPONSES, items(json!({"type": "function_call", "call_id": "t", "name": "f", "arguments": escaped}))),
        // Fields of Amazon.
        (
            CONVERSE,
            converse(json!({"citationsContent": {"content": [{"text": CANARY}], "citations": [{"title": "t"}]}})),
        ),
        (
            CONVERSE,
            converse(json!({"citationsContent": {"content": [{"text": "x"}], "citations": [{"title": CANARY}]}})),
        ),
        (CONVERSE, json!({"promptVariables": {"a": {"text": CANARY}}})),
        ("/model/m.x/converse", {
            let mut body = converse(json!({"text": "x"}));
            body["additionalModelRequestFields"] = json!({"prompt": CANARY});
            body
        }),
        // Reasoning.
        (CHAT, assistant("reasoning_details", json!([{"type": "reasoning.text", "text": CANARY}]))),
        (CHAT, assistant("thinking_blocks", json!([{"type": "thinking", "thinking": CANARY}]))),
        (CHAT, assistant("content_blocks", json!([{"type": "thinking", "thinking": CANARY}]))),
        // Bodies of models and searches.
        ("/v1/rerank", json!({"model": "m", "query": CANARY, "documents": ["a"]})),
        ("/v1/rerank", json!({"model": "m", "query": "a", "documents": ["a", {"text": CANARY}]})),
        (
            "/v1/ocr",
            json!({"model": "m", "document": {"type": "document_url", "document_url": "https://x.example/a.pdf"}, "document_annotation_prompt": CANARY}),
        ),
        (CHAT, chat_with("documents", json!([{"data": {"text": CANARY}}]))),
        (INVOKE, json!({"message": "x", "chat_history": [{"role": "USER", "message": CANARY}]})),
        (INVOKE, json!({"message": "x", "preamble": CANARY})),
        (INVOKE, json!({"message": "x", "documents": [{"data": CANARY}]})),
        (INVOKE, json!({"taskType": "SINGLE_EMBEDDING", "singleEmbeddingParams": {"text": {"value": CANARY}}})),
        ("/v1/embeddings", json!({"model": "m", "input": [{"text": CANARY}]})),
        // Results of tools, and items of unknown types.
        (
            RESPONSES,
            items(json!({"type": "shell_call_output", "call_id": "t", "output": [{"stdout": CANARY, "stderr": ""}]})),
        ),
        (
            RESPONSES,
            items(
                json!({"type": "mcp_approval_response", "approval_request_id": "t", "approve": true, "reason": CANARY}),
            ),
        ),
        (
            RESPONSES,
            items(
                json!({"type": "mcp_list_tools", "server_label": "s", "tools": [{"name": "f", "description": CANARY}]}),
            ),
        ),
        (RESPONSES, items(json!({"type": "invented", "field": CANARY}))),
        (
            MESSAGES,
            block(
                json!({"type": "bash_code_execution_tool_result", "tool_use_id": "t", "content": {"type": "bash_code_execution_result", "stdout": CANARY}}),
            ),
        ),
        (MESSAGES, block(json!({"type": "invented", "field": CANARY}))),
        // Names in another case.
        (CHAT, chat(json!([{"role": "user", "content": "hi", "Content": CANARY}]))),
        (CHAT, chat_with("Messages", json!([{"role": "user", "content": CANARY}]))),
        // Known fields of another form.
        (CHAT, json!({"model": "m", "messages": CANARY})),
        (CHAT, json!({"model": "m", "messages": {"role": "user", "content": CANARY}})),
        (CHAT, chat(json!([{"role": "user", "content": [[{"type": "text", "text": CANARY}]]}]))),
        (CHAT, chat(json!([{"role": "user", "content": [{"type": "text", "text": {"value": CANARY}}]}]))),
        ("/v1/completions", json!({"model": "m", "prompt": {"text": CANARY}})),
        ("/v1/completions", json!({"model": "m", "prompt": [[CANARY]]})),
        (RESPONSES, json!({"model": "m", "input": {"text": CANARY}})),
        // Threads.
        (
            "/v1/threads/runs",
            json!({"assistant_id": "a", "thread": {"messages": [{"role": "user", "content": CANARY}]}}),
        ),
        (
            "/v1/threads/t/runs",
            json!({"assistant_id": "a", "additional_messages": [{"role": "user", "content": CANARY}]}),
        ),
        // Texts outside of messages.
        (
            CHAT,
            chat_with(
                "tools",
                json!([{"type": "function", "function": {"name": "f", "description": CANARY, "parameters": {"type": "object"}}}]),
            ),
        ),
        (
            CHAT,
            chat_with(
                "tools",
                json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {CANARY: {"type": "string"}}}}}]),
            ),
        ),
        (
            CHAT,
            chat_with(
                "response_format",
                json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "description": CANARY}}}),
            ),
        ),
        (CHAT, chat_with("invented", json!({"prompt": [CANARY]}))),
        (
            CHAT,
            chat(
                json!([{"role": "user", "content": [{"type": "file", "file": {"file_data": format!("data:text/plain,{CANARY}")}}]}]),
            ),
        ),
        (
            RESPONSES,
            json!({"model": "m", "input": "hi", "text": {"format": {"type": "json_schema", "name": "x", "schema": {"description": CANARY}}}}),
        ),
    ]
}

#[tokio::test]
async fn a_canary_in_any_field_of_a_request_never_reaches_the_provider() {
    let fine = || json!({"fine": true}).to_string().into_bytes();
    for (path, request) in requests() {
        let request = request.to_string();
        let send_with_hook = |redacts| {
            send_with_hook(path, &request, "input_guardrails", guardrail(redacts, ""), "application/json", fine())
        };
        let (response, sent) = send_with_hook(false).await;
        assert_eq!(response.status, 446, "{path} {request}: {}", response.text());
        assert!(sent.is_empty(), "{path} {request}");
        let (response, sent) = send_with_hook(true).await;
        let sent = String::from_utf8(sent).unwrap();
        let body = sent.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
        if body.is_empty() {
            // A translated request without its only text is invalid.
            assert_eq!(response.status, 400, "{path} {request}: {}", response.text());
            continue;
        }
        let body: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{path} {request}: {error} {body}"));
        assert!(!shows_canary(&body), "{path} {request}: {body}");
    }
}

#[tokio::test]
async fn changed_arguments_are_still_json() {
    let arguments = format!("{{\n \"q\": \"say \\\"a\\\"\\n{ESCAPED}\"}}");
    let request = assistant("tool_calls", call(&arguments)).to_string();
    let fine = json!({"fine": true}).to_string().into_bytes();
    let (_, sent) =
        send_with_hook(CHAT, &request, "input_guardrails", guardrail(true, ""), "application/json", fine).await;
    let sent = String::from_utf8(sent).unwrap();
    let body: Value = serde_json::from_str(sent.split_once("\r\n\r\n").unwrap().1).unwrap();
    let arguments = body["messages"][0]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    assert_eq!(arguments, json!({"q": "say \"a\"\n{{EMAIL_ADDRESS_1}}"}));
}

fn chat_response(message: Value) -> Value {
    json!({"id": "c", "object": "chat.completion", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}})
}

fn with_field(name: &str, value: Value) -> Value {
    let mut message = json!({"role": "assistant", "content": "fine"});
    message[name] = value;
    chat_response(message)
}

fn output(item: Value) -> Value {
    json!({"id": "r", "object": "response", "status": "completed", "model": "m", "output": [item],
        "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}})
}

fn blocks(block: Value) -> Value {
    json!({"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [block], "stop_reason": "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 1}})
}

fn converse_response(block: Value) -> Value {
    json!({"output": {"message": {"role": "assistant", "content": [block]}}, "stopReason": "end_turn",
        "usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}})
}

fn request_for(path: &str, is_stream: bool) -> String {
    let mut body = match path {
        GEMINI | GEMINI_STREAM => json!({"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}),
        RESPONSES => json!({"model": "m", "input": "hi"}),
        CONVERSE => json!({"messages": [{"role": "user", "content": [{"text": "hi"}]}]}),
        INVOKE => json!({"message": "hi"}),
        "/v1/threads/t/runs" => json!({"assistant_id": "a"}),
        _ => json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}),
    };
    if is_stream && matches!(path, CHAT | RESPONSES | MESSAGES) {
        body["stream"] = json!(true);
    }
    body.to_string()
}

/// Responses that have the canary in one field.
fn responses() -> Vec<(&'static str, Value)> {
    let escaped = format!(r#"{{"q":"{ESCAPED}"}}"#);
    vec![
        (CHAT, with_field("tool_calls", call(&escaped))),
        (CHAT, with_field("reasoning_details", json!([{"type": "reasoning.text", "text": CANARY}]))),
        (CHAT, with_field("reasoning_details", json!([{"type": "reasoning.summary", "summary": CANARY}]))),
        (CHAT, with_field("thinking_blocks", json!([{"type": "thinking", "thinking": CANARY}]))),
        (CHAT, with_field("content_blocks", json!([{"type": "text", "text": CANARY}]))),
        (
            CHAT,
            with_field(
                "annotations",
                json!([{"type": "url_citation", "url_citation": {"title": CANARY, "url": "https://x"}}]),
            ),
        ),
        (CHAT, with_field("invented", json!(CANARY))),
        (RESPONSES, output(json!({"type": "shell_call_output", "call_id": "t", "output": [{"stdout": CANARY}]}))),
        (RESPONSES, output(json!({"type": "invented", "field": CANARY}))),
        (
            RESPONSES,
            output(
                json!({"type": "message", "content": [{"type": "output_text", "text": "x", "annotations": [{"type": "url_citation", "title": CANARY}]}]}),
            ),
        ),
        (
            MESSAGES,
            blocks(
                json!({"type": "code_execution_tool_result", "tool_use_id": "t", "content": {"type": "code_execution_result", "stdout": CANARY}}),
            ),
        ),
        (MESSAGES, blocks(json!({"type": "invented", "field": CANARY}))),
        (
            MESSAGES,
            blocks(
                json!({"type": "text", "text": "x", "citations": [{"type": "char_location", "cited_text": CANARY}]}),
            ),
        ),
        (
            GEMINI,
            json!({"candidates": [{"content": {"parts": [{"text": "x"}]}, "finishReason": "STOP", "groundingMetadata": {"webSearchQueries": [CANARY]}}]}),
        ),
        (CONVERSE, converse_response(json!({"citationsContent": {"content": [{"text": CANARY}], "citations": []}}))),
        (INVOKE, json!({"generations": [{"text": CANARY}]})),
        (INVOKE, json!({"completions": [{"data": {"text": CANARY}}]})),
        (INVOKE, json!({"invented": CANARY})),
        (
            "/v1/threads/t/runs",
            json!({"object": "thread.message", "content": [{"type": "text", "text": {"value": CANARY}}]}),
        ),
    ]
}

fn assert_denied(response: &TestResponse, row: &str) {
    let text = response.text().replace(&format!("\"foundWords\":[\"{CANARY}\"]"), "");
    assert!(response.status == 446 && !text.contains("nary@mail"), "{row}: {} {text}", response.status);
}

#[tokio::test]
async fn a_canary_in_any_field_of_a_response_never_reaches_the_client() {
    for (path, body) in responses() {
        let row = format!("{path} {body}");
        let send_with_hook = |redacts| {
            let bytes = body.to_string().into_bytes();
            async move {
                let hook = guardrail(redacts, "");
                send_with_hook(path, &request_for(path, false), "output_guardrails", hook, "application/json", bytes)
                    .await
                    .0
            }
        };
        assert_denied(&send_with_hook(false).await, &row);
        let response = send_with_hook(true).await;
        let answer: Value = serde_json::from_slice(&response.body).unwrap();
        assert!(response.status == 200 && !shows_canary(&answer), "{row}: {} {answer}", response.status);
        assert!(response.text().contains("EMAIL_ADDRESS_1"), "{row}: {answer}");
    }
}

#[tokio::test]
async fn responses_of_every_success_and_type_are_checked() {
    let body = chat_response(json!({"role": "assistant", "content": CANARY})).to_string();
    for status in [200, 201, 202, 203, 206, 226] {
        for kind in ["application/json", "text/plain", "text/html", "application/x-ndjson", "application/octet-stream"]
        {
            let (response, _) = answer(
                status,
                CHAT,
                &request_for(CHAT, false),
                "output_guardrails",
                guardrail(false, ""),
                kind,
                body.clone().into_bytes(),
            )
            .await;
            if (status, kind) == (200, "text/html") {
                // A page is no response of a provider, so the error repeats nothing of it.
                assert!(response.text().contains("hidden") && !response.text().contains(CANARY), "{}", response.text());
                continue;
            }
            assert_denied(&response, &format!("{status} {kind}"));
        }
    }
}

fn events(events: &[Value]) -> Vec<u8> {
    let lines = events.iter().map(|event| match event["type"].as_str() {
        Some(name) => format!("event: {name}\ndata: {event}\n\n"),
        None => format!("data: {event}\n\n"),
    });
    lines.collect::<String>().into_bytes()
}

/// A stream of chat chunks with these deltas.
fn chunks(deltas: impl IntoIterator<Item = Value>) -> Vec<u8> {
    let chunk = |delta: Value| json!({"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]});
    let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
    let mut stream = events(&deltas.into_iter().map(chunk).chain([end]).collect::<Vec<_>>());
    stream.extend_from_slice(b"data: [DONE]\n\n");
    stream
}

fn message_events(middle: Vec<Value>) -> Vec<u8> {
    let start = json!({"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "model": "m",
        "content": [], "usage": {"input_tokens": 1, "output_tokens": 1}}});
    let end = [
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}),
        json!({"type": "message_stop"}),
    ];
    events(&[start].into_iter().chain(middle).chain(end).collect::<Vec<_>>())
}

fn response_events(event: Value) -> Vec<u8> {
    let item =
        json!({"type": "message", "id": "i", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]});
    events(&[event, json!({"type": "response.completed", "response": output(item)})])
}

fn start_block(block: Value) -> Value {
    json!({"type": "content_block_start", "index": 0, "content_block": block})
}

fn block_delta(delta: Value) -> Value {
    json!({"type": "content_block_delta", "index": 0, "delta": delta})
}

/// Streams that have the canary in one field, in several events where the format allows it.
fn streams() -> Vec<(&'static str, Vec<u8>)> {
    let halves = ["write to cana", "ry@mail.example now"];
    let cut = [r#"{"q":"\u00"#, r"63\u0061nary@mail", r#".example"}"#];
    let call = |text: &str| json!({"tool_calls": [{"index": 0, "function": {"arguments": text}}]});
    let bom = [&b"\xEF\xBB\xBF"[..], &chunks([json!({"content": CANARY})])].concat();
    let both = |half: &str| json!({"reasoning": half, "reasoning_details": [{"type": "reasoning.text", "text": half}]});
    let partial = |text: &str| json!({"candidates": [{"content": {"parts": [{"functionCall": {"name": "f", "partialArgs": [{"jsonPath": "$.a", "stringValue": text}]}}]}}]});
    vec![
        (CHAT, chunks(cut.map(call))),
        (
            CHAT,
            chunks(
                halves.map(|half| json!({"reasoning_details": [{"type": "reasoning.text", "text": half, "index": 0}]})),
            ),
        ),
        (CHAT, chunks(halves.map(both))),
        (CHAT, chunks(halves.map(|half| json!({"thinking_blocks": [{"type": "thinking", "thinking": half}]})))),
        (CHAT, chunks(halves.map(|half| json!({"content_blocks": [{"index": 0, "delta": {"text": half}}]})))),
        (CHAT, chunks(halves.map(|half| json!({"invented": half})))),
        (
            CHAT,
            chunks([
                json!({"content": "x", "annotations": [{"type": "url_citation", "url_citation": {"title": CANARY}}]}),
            ]),
        ),
        (CHAT, bom),
        (
            MESSAGES,
            message_events(
                [
                    &[start_block(json!({"type": "tool_use", "id": "t", "name": "f", "input": {}}))][..],
                    &cut.map(|text| block_delta(json!({"type": "input_json_delta", "partial_json": text}))),
                ]
                .concat(),
            ),
        ),
        (
            MESSAGES,
            message_events(vec![start_block(
                json!({"type": "tool_use", "id": "t", "name": "f", "input": {"a": CANARY}}),
            )]),
        ),
        (
            MESSAGES,
            message_events(vec![start_block(
                json!({"type": "bash_code_execution_tool_result", "tool_use_id": "t", "content": {"stdout": CANARY}}),
            )]),
        ),
        (
            MESSAGES,
            message_events(vec![
                start_block(json!({"type": "text", "text": ""})),
                block_delta(
                    json!({"type": "citations_delta", "citation": {"type": "char_location", "cited_text": CANARY}}),
                ),
            ]),
        ),
        (
            MESSAGES,
            message_events(
                [
                    &[start_block(json!({"type": "text", "text": ""}))][..],
                    &halves.map(|half| block_delta(json!({"type": "invented_delta", "field": half}))),
                ]
                .concat(),
            ),
        ),
        (MESSAGES, message_events(vec![json!({"type": "ping", "field": CANARY})])),
        (
            RESPONSES,
            response_events(
                json!({"type": "response.content_part.added", "output_index": 0, "part": {"type": "output_text", "text": CANARY}}),
            ),
        ),
        (
            RESPONSES,
            response_events(
                json!({"type": "response.output_text.annotation.added", "output_index": 0, "annotation": {"title": CANARY}}),
            ),
        ),
        (
            RESPONSES,
            response_events(
                json!({"type": "response.output_item.done", "output_index": 0, "item": {"type": "invented", "field": CANARY}}),
            ),
        ),
        (
            RESPONSES,
            response_events(
                json!({"type": "response.function_call_arguments.done", "output_index": 0, "arguments": format!(r#"{{"q":"{ESCAPED}"}}"#)}),
            ),
        ),
        (
            GEMINI_STREAM,
            events(&[
                partial(halves[0]),
                partial(halves[1]),
                json!({"candidates": [{"index": 0, "finishReason": "STOP"}]}),
            ]),
        ),
    ]
}

#[tokio::test]
async fn a_canary_in_any_event_never_reaches_the_client() {
    for (path, body) in streams() {
        for (redacts, mode) in [(false, "hold"), (false, "window"), (true, "hold"), (true, "window")] {
            let row = format!("{path} redacts={redacts} {mode} {}", String::from_utf8_lossy(&body));
            let (request, hook) = (request_for(path, true), guardrail(redacts, mode));
            let (response, _) =
                send_with_hook(path, &request, "output_guardrails", hook, "text/event-stream", body.clone()).await;
            let answer = response.text().replace(&format!("\"foundWords\":[\"{CANARY}\"]"), "");
            let has_canary = answer.contains("nary@mail") || answer.contains("ry@mail");
            assert!(!has_canary, "{row}: {} {answer}", response.status);
            match (redacts, mode) {
                (false, "hold") => assert_eq!(response.status, 446, "{row}: {answer}"),
                (false, _) => {
                    assert!(answer.contains("hook") || answer.contains("FAILED_PRECONDITION"), "{row}: {answer}");
                }
                _ => assert!(
                    answer.contains("EMAIL_ADDRESS_1") && response.status == 200,
                    "{row}: {} {answer}",
                    response.status
                ),
            }
        }
    }
}
