//! Round trip of opaque provider data: signatures, encrypted and redacted reasoning. In every client format it reaches
//! the client and returns unchanged, or it is reported as dropped.

use std::sync::Arc;

use crate::golden_cases::assemble_stream;
use bytes::Bytes;
use penstock_llm::{
    catalog,
    operation::Operation,
    stream::aws_event_stream,
    translation::{ScopedSignatures, SignatureCache, Translation},
    translation_input::{RequestHints, TranslationInput},
};
use serde_json::{Value, json};

/// Operations of the client formats: complete and streamed.
const CLIENT_OPERATIONS: [(Operation, Operation); 5] = [
    (Operation::ChatComplete, Operation::ChatComplete),
    (Operation::Messages, Operation::Messages),
    (Operation::CreateModelResponse, Operation::CreateModelResponse),
    (Operation::GenerateContent, Operation::StreamGenerateContent),
    (Operation::Converse, Operation::ConverseStream),
];

/// Provider with its response, complete and streamed, and functions that extract the opaque parts of an assistant turn.
struct ProviderCase {
    provider: &'static str,
    complete: fn() -> Value,
    stream: fn() -> Bytes,
    response_turn: fn(&Value) -> Value,
    sent_turns: fn(&Value) -> Vec<Value>,
    opaque_parts: fn(&[Value]) -> Value,
}

const PROVIDER_CASES: [ProviderCase; 6] = [
    ProviderCase {
        provider: "anthropic",
        complete: || {
            json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": claude_content(),
                "stop_reason": "tool_use", "stop_sequence": null, "usage": {"input_tokens": 9, "output_tokens": 9}})
        },
        stream: claude_stream,
        response_turn: |answer| answer["content"].clone(),
        sent_turns: |sent| parts_of_role(&sent["messages"], "assistant", "content"),
        opaque_parts: |parts| {
            parts.iter().filter(|part| part["type"].as_str().unwrap().ends_with("thinking")).cloned().collect()
        },
    },
    ProviderCase {
        provider: "google",
        complete: || json!({"candidates": [gemini_candidate(&gemini_parts())], "usageMetadata": {"promptTokenCount": 9, "totalTokenCount": 9}}),
        stream: || {
            let chunk = |part: &Value| encode_event(&json!({"candidates": [gemini_candidate(&json!([part]))]}));
            gemini_parts().as_array().unwrap().iter().flat_map(chunk).collect::<Vec<_>>().into()
        },
        response_turn: |answer| answer["candidates"][0]["content"]["parts"].clone(),
        sent_turns: |sent| parts_of_role(&sent["contents"], "model", "parts"),
        opaque_parts: |parts| {
            let signed = parts.iter().filter(|part| part["thoughtSignature"].is_string());
            signed.map(|part| json!([part["text"], part["functionCall"]["name"], part["thoughtSignature"]])).collect()
        },
    },
    ProviderCase {
        provider: "bedrock",
        complete: || {
            json!({"output": {"message": {"role": "assistant", "content": nova_content()}}, "stopReason": "tool_use",
                "usage": {"inputTokens": 9, "outputTokens": 9, "totalTokens": 18}})
        },
        stream: nova_stream,
        response_turn: |answer| answer["output"]["message"]["content"].clone(),
        sent_turns: |sent| parts_of_role(&sent["messages"], "assistant", "content"),
        opaque_parts: |parts| parts.iter().filter(|part| part["reasoningContent"].is_object()).cloned().collect(),
    },
    ProviderCase {
        provider: "openai",
        complete: || json!({"id": "c-1", "object": "chat.completion", "model": "m", "choices": [{"index": 0, "finish_reason": "tool_calls", "message": gpt_message()}]}),
        stream: || {
            let mut delta = gpt_message();
            delta["tool_calls"][0]["index"] = 0.into();
            let chunk = json!({"id": "c-1", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": "tool_calls"}]});
            format!("data: {chunk}\n\ndata: [DONE]\n\n").into()
        },
        response_turn: |answer| json!([answer["choices"][0]["message"]]),
        sent_turns: |sent| {
            sent["messages"].as_array().unwrap().iter().filter(|item| item["role"] == "assistant").cloned().collect()
        },
        opaque_parts: |turns| {
            let calls = turns.iter().flat_map(|turn| turn["tool_calls"].as_array().into_iter().flatten());
            let seals = turns.iter().map(|turn| &turn["extra_content"]).filter(|seal| seal.is_object());
            calls.map(|call| &call["extra_content"]).chain(seals).cloned().collect()
        },
    },
    ProviderCase {
        provider: "openrouter",
        complete: || json!({"id": "c-1", "object": "chat.completion", "model": "m", "choices": [{"index": 0, "finish_reason": "tool_calls", "message": openrouter_message()}]}),
        stream: openrouter_stream,
        response_turn: |answer| json!([answer["choices"][0]["message"]]),
        sent_turns: |sent| {
            sent["messages"].as_array().unwrap().iter().filter(|item| item["role"] == "assistant").cloned().collect()
        },
        opaque_parts: |turns| {
            turns.iter().flat_map(|turn| turn["reasoning_details"].as_array().into_iter().flatten()).cloned().collect()
        },
    },
    ProviderCase {
        provider: "cohere",
        complete: || json!({"id": "c-1", "finish_reason": "TOOL_CALL", "message": cohere_message(), "usage": {"tokens": {"input_tokens": 9, "output_tokens": 9}}}),
        stream: cohere_stream,
        response_turn: |answer| answer["message"]["content"].clone(),
        sent_turns: |sent| parts_of_role(&sent["messages"], "assistant", "content"),
        opaque_parts: |parts| parts.iter().filter(|part| part["type"] == "thinking").cloned().collect(),
    },
];

/// Providers whose reasoning has no signature. It is plain text and of no use to the provider, so it is dropped and
/// reported.
const PROVIDERS_WITHOUT_SIGNATURES: [&str; 1] = ["cohere"];

fn claude_content() -> Value {
    json!([{"type": "thinking", "thinking": "Rain is likely.", "signature": "c2lnbmVk+/=="},
        {"type": "redacted_thinking", "data": "cmVkYWN0ZWQ="},
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}])
}

fn gemini_parts() -> Value {
    json!([{"text": "Let me look.", "thoughtSignature": "c2VhbGVk"},
        {"functionCall": {"name": "weather", "args": {"city": "Oslo"}}, "thoughtSignature": "c2lnbmVk+/=="}])
}

fn gemini_candidate(parts: &Value) -> Value {
    json!({"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0})
}

fn nova_content() -> Value {
    json!([{"reasoningContent": {"reasoningText": {"text": "Rain is likely.", "signature": "c2lnbmVk+/=="}}},
        {"reasoningContent": {"redactedContent": "cmVkYWN0ZWQ="}},
        {"toolUse": {"toolUseId": "t-1", "name": "weather", "input": {"city": "Oslo"}}}])
}

fn gpt_message() -> Value {
    json!({"role": "assistant", "content": "Let me look.", "extra_content": {"google": {"thought_signature": "c2VhbGVk"}},
        "tool_calls": [{"id": "call_1", "type": "function", "extra_content": {"google": {"thought_signature": "c2lnbmVk+/=="}},
            "function": {"name": "weather", "arguments": "{\"city\":\"Oslo\"}"}}]})
}

fn openrouter_message() -> Value {
    json!({"role": "assistant", "content": "Let me look.", "reasoning": "Rain is likely.", "reasoning_details": [
        {"type": "reasoning.text", "text": "Rain is likely.", "signature": "c2lnbmVk+/==", "id": null,
            "format": "anthropic-claude-v1", "index": 0},
        {"type": "reasoning.encrypted", "data": "cmVkYWN0ZWQ=", "id": "rs_1", "format": "openai-responses-v1", "index": 1}],
        "tool_calls": [{"id": "call_1", "type": "function",
            "function": {"name": "weather", "arguments": "{\"city\":\"Oslo\"}"}}]})
}

/// Returns a stream with reasoning in several chunks, then its signature, then encrypted reasoning next to the tool
/// call it belongs to.
fn openrouter_stream() -> Bytes {
    let mut call = openrouter_message()["tool_calls"][0].clone();
    call["index"] = 0.into();
    let sealed = openrouter_message()["reasoning_details"][1].clone();
    let worded = |words: &str| {
        json!({"reasoning": words, "reasoning_details":
            [{"type": "reasoning.text", "text": words, "id": null, "format": "anthropic-claude-v1", "index": 0}]})
    };
    let deltas = [
        json!({"role": "assistant", "content": ""}),
        worded("Rain is "),
        worded("likely."),
        json!({"content": "", "reasoning_details": [{"type": "reasoning.text", "signature": "c2lnbmVk+/==", "index": 0}]}),
        json!({"content": "Let me look."}),
        json!({"tool_calls": [call], "reasoning_details": [sealed]}),
    ];
    let chunk = |delta| {
        encode_event(
            &json!({"id": "c-1", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": null}]}),
        )
    };
    let mut result: Vec<u8> = deltas.into_iter().flat_map(chunk).collect();
    result.extend(encode_event(
        &json!({"id": "c-1", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
    ));
    result.extend_from_slice(b"data: [DONE]\n\n");
    result.into()
}

fn cohere_message() -> Value {
    json!({"role": "assistant", "content": [{"type": "thinking", "thinking": "Rain is likely."}], "tool_calls": [
        {"id": "w-1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\":\"Oslo\"}"}}]})
}

fn claude_stream() -> Bytes {
    let start =
        |index: u32, block: &Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let delta = |index: u32, delta: &Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let stop = |index: u32| json!({"type": "content_block_stop", "index": index});
    let body = claude_content();
    let events = [
        json!({"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "model": "m",
            "content": [], "stop_reason": null, "usage": {"input_tokens": 9, "output_tokens": 1}}}),
        start(0, &json!({"type": "thinking", "thinking": "", "signature": ""})),
        delta(0, &json!({"type": "thinking_delta", "thinking": body[0]["thinking"]})),
        delta(0, &json!({"type": "signature_delta", "signature": body[0]["signature"]})),
        stop(0),
        start(1, &body[1]),
        stop(1),
        start(2, &json!({"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}})),
        delta(2, &json!({"type": "input_json_delta", "partial_json": "{\"city\":\"Oslo\"}"})),
        stop(2),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}}),
        json!({"type": "message_stop"}),
    ];
    events.iter().flat_map(encode_event).collect::<Vec<_>>().into()
}

fn nova_stream() -> Bytes {
    let delta = |index: u32, delta: &Value| ("contentBlockDelta", json!({"contentBlockIndex": index, "delta": delta}));
    let stop = |index: u32| ("contentBlockStop", json!({"contentBlockIndex": index}));
    let frames = [
        ("messageStart", json!({"role": "assistant"})),
        delta(0, &json!({"reasoningContent": {"text": "Rain is likely."}})),
        delta(0, &json!({"reasoningContent": {"signature": "c2lnbmVk+/=="}})),
        stop(0),
        delta(1, &nova_content()[1]),
        stop(1),
        (
            "contentBlockStart",
            json!({"contentBlockIndex": 2, "start": {"toolUse": {"toolUseId": "t-1", "name": "weather"}}}),
        ),
        delta(2, &json!({"toolUse": {"input": "{\"city\":\"Oslo\"}"}})),
        stop(2),
        ("messageStop", json!({"stopReason": "tool_use"})),
        ("metadata", json!({"usage": {"inputTokens": 9, "outputTokens": 9, "totalTokens": 18}})),
    ];
    let result = frames
        .iter()
        .flat_map(|(name, content)| aws_event_stream::encode_frame("event", name, content.to_string().as_bytes()));
    result.collect::<Vec<_>>().into()
}

fn cohere_stream() -> Bytes {
    let call =
        json!({"id": "w-1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\":\"Oslo\"}"}});
    let events = [
        json!({"type": "message-start", "id": "c-1", "delta": {"message": {"role": "assistant"}}}),
        json!({"type": "content-start", "index": 0, "delta": {"message": {"content": {"type": "thinking", "thinking": ""}}}}),
        json!({"type": "content-delta", "index": 0, "delta": {"message": {"content": {"thinking": "Rain is likely."}}}}),
        json!({"type": "content-end", "index": 0}),
        json!({"type": "tool-call-start", "index": 0, "delta": {"message": {"tool_calls": call}}}),
        json!({"type": "tool-call-end", "index": 0}),
        json!({"type": "message-end", "delta": {"finish_reason": "TOOL_CALL",
            "usage": {"tokens": {"input_tokens": 9, "output_tokens": 9}}}}),
    ];
    events.iter().flat_map(encode_event).collect::<Vec<_>>().into()
}

fn encode_event(data: &Value) -> Vec<u8> {
    format!("data: {data}\n\n").into_bytes()
}

/// Returns the parts of all turns of a role.
fn parts_of_role(turns: &Value, role: &str, parts: &str) -> Vec<Value> {
    let turns = turns.as_array().unwrap().iter().filter(|turn| turn["role"] == role);
    turns.flat_map(|turn| turn[parts].as_array().cloned().unwrap_or_default()).collect()
}

/// Builds a request with reasoning and a tool in a client format. `result` is an earlier response that the client sends
/// back.
fn build_request(operation: Operation, stream: bool, result: Option<&Value>) -> Value {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let mut request = match operation {
        Operation::ChatComplete => json!({"model": "m", "messages": [{"role": "user", "content": "Rain?"}],
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "tools": [{"type": "function", "function": {"name": "weather", "parameters": schema}}]}),
        Operation::Messages => {
            json!({"model": "m", "max_tokens": 2048, "messages": [{"role": "user", "content": "Rain?"}],
            "thinking": {"type": "enabled", "budget_tokens": 1024}, "tools": [{"name": "weather", "input_schema": schema}]})
        }
        Operation::CreateModelResponse => json!({"model": "m", "input": [{"role": "user", "content": "Rain?"}],
            "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "low", "summary": "auto"},
            "tools": [{"type": "function", "name": "weather", "parameters": schema}]}),
        Operation::Converse | Operation::ConverseStream => json!({
            "messages": [{"role": "user", "content": [{"text": "Rain?"}]}],
            "additionalModelRequestFields": {"reasoning_config": {"type": "enabled", "budget_tokens": 1024}},
            "toolConfig": {"tools": [{"toolSpec": {"name": "weather", "inputSchema": {"json": schema}}}]}}),
        _ => json!({"contents": [{"role": "user", "parts": [{"text": "Rain?"}]}],
            "generationConfig": {"thinkingConfig": {"includeThoughts": true, "thinkingBudget": 1024}},
            "tools": [{"functionDeclarations": [{"name": "weather", "parametersJsonSchema": schema}]}]}),
    };
    if stream && request["model"].is_string() {
        request["stream"] = true.into();
    }
    if let Some(result) = result {
        append_turn_and_tool_result(operation, &mut request, result);
    }
    request
}

/// Appends the assistant turn of the response and the result of its tool call.
fn append_turn_and_tool_result(operation: Operation, request: &mut Value, earlier: &Value) {
    let mut add = |key: &str, more: Vec<Value>| request[key].as_array_mut().unwrap().extend(more);
    match operation {
        Operation::ChatComplete => {
            let message = earlier["choices"][0]["message"].clone();
            let result = json!({"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "rain"});
            add("messages", vec![message, result]);
        }
        Operation::Messages => {
            let call = earlier["content"].as_array().unwrap().iter().find(|block| block["type"] == "tool_use").unwrap();
            let result = json!({"type": "tool_result", "tool_use_id": call["id"], "content": "rain"});
            let turn = json!({"role": "assistant", "content": earlier["content"]});
            add("messages", vec![turn, json!({"role": "user", "content": [result]})]);
        }
        Operation::CreateModelResponse => {
            let mut items = earlier["output"].as_array().unwrap().clone();
            let call = items.iter().find(|item| item["type"] == "function_call").unwrap();
            items.push(json!({"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}));
            add("input", items);
        }
        Operation::Converse | Operation::ConverseStream => {
            let turn = earlier["output"]["message"].clone();
            let call = turn["content"].as_array().unwrap().iter().find(|block| block["toolUse"].is_object()).unwrap();
            let result = json!({"toolUseId": call["toolUse"]["toolUseId"], "content": [{"text": "rain"}]});
            add("messages", vec![turn, json!({"role": "user", "content": [{"toolResult": result}]})]);
        }
        _ => {
            let response = json!({"functionResponse": {"name": "weather", "response": {"output": "rain"}}});
            add(
                "contents",
                vec![earlier["candidates"][0]["content"].clone(), json!({"role": "user", "parts": [response]})],
            );
        }
    }
}

/// Translates a request for a provider; `None` if it passes through.
fn translate_request(operation: Operation, provider: &str, request: &Value) -> Option<(Translation, Vec<u8>)> {
    let provider = catalog::find_provider(provider).unwrap();
    let provider_format = provider.provider_format(operation, "m")?;
    let body = request.to_string().into_bytes();
    let hints = RequestHints::default();
    let input = TranslationInput {
        operation,
        provider: provider.row(),
        body: &body,
        model: "m",
        hints,
        strict: true,
        now_ms: 1_700_000_000_000,
        nonce: 7,
    };
    Some(Translation::translate_request(&input, provider_format).unwrap())
}

#[test]
fn opaque_data_makes_the_round_trip_or_is_reported() {
    let (mut arrived, mut dropped_count) = (0, 0);
    for answering in &PROVIDER_CASES {
        for (whole, streamed) in CLIENT_OPERATIONS {
            for (operation, is_stream) in [(whole, false), (streamed, true)] {
                let Some((translation, _)) =
                    translate_request(operation, answering.provider, &build_request(operation, is_stream, None))
                else {
                    continue;
                };
                let result = if is_stream {
                    let mut transcoder = translation.transcoder();
                    let mut bytes = transcoder.push_chunk((answering.stream)()).to_vec();
                    bytes.extend_from_slice(&transcoder.finish());
                    assemble_stream(operation.id(), &bytes)
                } else {
                    let response = (answering.complete)().to_string();
                    serde_json::from_slice(&translation.translate_response(response.as_bytes()).unwrap()).unwrap()
                };
                let resumed_request = build_request(operation, is_stream, Some(&result));
                let (second, sent) = translate_request(operation, answering.provider, &resumed_request).unwrap();
                let sent = (answering.sent_turns)(&serde_json::from_slice(&sent).unwrap());
                let original = (answering.response_turn)(&(answering.complete)());
                let (opaque_parts, expected) =
                    ((answering.opaque_parts)(&sent), (answering.opaque_parts)(original.as_array().unwrap()));
                assert_ne!(expected, json!([]), "{} answers with nothing to see", answering.provider);
                let lost = [&translation, &second].map(|current| {
                    current.response_context.report.header_value(&current.dropped_params).unwrap_or_default()
                });
                let pair = format!("{} by {} (stream: {is_stream}): {result}", answering.provider, operation.id());
                if PROVIDERS_WITHOUT_SIGNATURES.contains(&answering.provider) {
                    assert!(
                        lost.iter().any(|lost| lost.contains("thinking") || lost.contains("reasoning_content")),
                        "{pair}: {lost:?}"
                    );
                    dropped_count += 1;
                } else {
                    assert_eq!(opaque_parts, expected, "{pair}: {lost:?}");
                    arrived += 1;
                }
            }
        }
    }
    // Five providers with every client format other than their own, complete and streamed.
    assert_eq!((arrived, dropped_count), (36, 10));
}

/// Some clients do not send signatures back. The gateway adds the cached signature for the same caller only, for
/// complete and streamed responses.
#[test]
fn restores_a_missing_signature_for_the_same_caller() {
    let provider = catalog::find_provider("google").unwrap();
    let model = "gemini-3-flash";
    let provider_format = provider.provider_format(Operation::ChatComplete, model).unwrap();
    let signatures = Arc::new(SignatureCache::new(1 << 20));
    let shared = |owner| ScopedSignatures::new(Arc::clone(&signatures), owner, 1_700_000_000_000);
    let build_value = |owner, body: &Value| {
        let (shared, body) = (shared(owner), body.to_string().into_bytes());
        let hints = RequestHints { tool_call_signatures: Some(&shared), ..RequestHints::default() };
        let (operation, now) = (Operation::ChatComplete, 1_700_000_000_000);
        let input = TranslationInput {
            operation,
            provider: provider.row(),
            body: &body,
            model,
            hints,
            strict: true,
            now_ms: now,
            nonce: 7,
        };
        Translation::translate_request(&input, provider_format).unwrap()
    };
    let build_request = json!({"model": model, "messages": [{"role": "user", "content": "hi"}]});
    let response = |id: &str, signature: &str| {
        json!({"responseId": id, "candidates": [{"finishReason": "STOP", "content": {"parts": [
            {"functionCall": {"name": "f", "args": {}}, "thoughtSignature": signature}, {"functionCall": {"name": "g", "args": {}}}]}}]})
    };
    build_value(1, &build_request).0.translate_response(response("whole", "c2lnbmVk").to_string().as_bytes()).unwrap();
    let mut transcoder = build_value(1, &build_request).0.transcoder();
    drop(transcoder.push_chunk(format!("data: {}\n\n", response("stream", "c3RyZWFt")).into()));
    let call = |id: String| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
    for (owner, id, signature, lost) in [
        (1, "whole", "c2lnbmVk", ""),
        (1, "stream", "c3RyZWFt", ""),
        (2, "whole", "skip_thought_signature_validator", "thought_signature"),
        (1, "other", "skip_thought_signature_validator", "thought_signature"),
    ] {
        let calls = json!([call(format!("call_{id}_0")), call(format!("call_{id}_1"))]);
        let results =
            ["0", "1"].map(|at| json!({"role": "tool", "tool_call_id": format!("call_{id}_{at}"), "content": "r"}));
        let turn = json!({"model": model, "messages": [{"role": "user", "content": "hi"},
            {"role": "assistant", "tool_calls": calls}, results[0], results[1]]});
        let (translation, sent) = build_value(owner, &turn);
        let sent: Value = serde_json::from_slice(&sent).unwrap();
        let parts = &sent["contents"][1]["parts"];
        assert_eq!(
            (&parts[0]["thoughtSignature"], parts[1].get("thoughtSignature")),
            (&json!(signature), None),
            "{id}"
        );
        assert_eq!(translation.dropped_params.header_value(), lost, "{owner} {id}");
    }
}
