//! Lenient reading of responses: fields of an unexpected type do not lose content. What cannot be read ends in an error.

use penstock_llm::{
    catalog,
    operation::Operation,
    translation::Translation,
    translation_input::{RequestHints, TranslationInput},
};
use serde_json::{Value, json};

use crate::golden_cases::translated_cases;

#[test]
fn an_error_or_a_failed_generation_is_no_success() {
    let translated = |name: &str, body: Value| {
        let case = translated_cases().into_iter().find(|case| case.name() == name).unwrap();
        let (translation, _) = case.translate_request().unwrap();
        let (status, body) = translation.translate_response_or_failure(body.to_string().as_bytes()).unwrap();
        (status, serde_json::from_slice::<Value>(&body).unwrap()["error"]["message"].clone())
    };
    let overloaded = json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}});
    let limited = json!({"error": {"message": "slow down", "code": 429}});
    let malformed = json!({"candidates": [{"content": {}, "finishReason": "MALFORMED_FUNCTION_CALL",
        "finishMessage": "Malformed function call: print(x)"}]});
    for (name, body, status, message) in [
        ("anthropic/chatComplete/complete", &overloaded, 529, "anthropic error: Overloaded"),
        ("anthropic/createModelResponse/complete", &overloaded, 529, "anthropic error: Overloaded"),
        ("openai/messages/complete", &limited, 429, "openai error: slow down"),
        ("cohere/messages/complete", &limited, 429, "cohere error: slow down"),
        ("bedrock/chatComplete/complete", &limited, 429, "bedrock error: slow down"),
        ("google/messages/complete", &limited, 429, "google error: slow down"),
        ("google/chatComplete/complete", &malformed, 502, "google error: Malformed function call: print(x)"),
    ] {
        assert_eq!(translated(name, body.clone()), (status, message.into()), "{name}");
    }
}

fn translate(slug: &str, operation: Operation, model: &str, body: &Value) -> (Translation, Value) {
    let provider = catalog::find_provider(slug).unwrap();
    let bytes = body.to_string().into_bytes();
    let input = TranslationInput {
        operation,
        provider: provider.row(),
        body: &bytes,
        model,
        hints: RequestHints::default(),
        strict: true,
        now_ms: 1_700_000_000_000,
        nonce: 7,
    };
    let format = provider.provider_format(operation, model).unwrap();
    let (translation, sent) = Translation::translate_request(&input, format).unwrap();
    (translation, serde_json::from_slice(&sent).unwrap())
}

fn respond(translation: &Translation, body: &Value) -> (u16, Value) {
    let (status, body) = translation.translate_response_or_failure(body.to_string().as_bytes()).unwrap();
    (status, serde_json::from_slice(&body).unwrap())
}

const MESSAGES_REQUEST: &str = r#"{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"}]}"#;

fn openai_response(message: &Value, finish_reason: &str) -> Value {
    json!({"id": "c", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}]})
}

#[test]
fn numbers_of_any_length_keep_their_digits() {
    const NUMBERS: &str = r#"{"id":123456789012345678901234567890,"share":0.10000000000000000000001,"big":1e400}"#;
    let arguments: Value = serde_json::from_str(NUMBERS).unwrap();
    let messages: Value = serde_json::from_str(MESSAGES_REQUEST).unwrap();
    let contents = json!({"contents": [{"role": "user", "parts": [{"text": "x"}]}]});
    let converse = json!({"messages": [{"role": "user", "content": [{"text": "x"}]}]});
    let call =
        json!({"tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": NUMBERS}}]});
    for (operation, request, at) in [
        (Operation::Messages, &messages, "/content/0/input"),
        (Operation::GenerateContent, &contents, "/candidates/0/content/parts/0/functionCall/args"),
        (Operation::Converse, &converse, "/output/message/content/0/toolUse/input"),
    ] {
        let (translation, _) = translate("openai", operation, "m", request);
        let (status, response) = respond(&translation, &openai_response(&call, "tool_calls"));
        assert_eq!((status, response.pointer(at).unwrap().to_string()), (200, arguments.to_string()), "{operation:?}");
    }
    let schema = json!({"type": "object", "properties": {"id": {"enum": [arguments["id"]]}}});
    let history = json!({"model": "m", "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
        "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": call["tool_calls"]},
            {"role": "tool", "tool_call_id": "c", "content": "y"}]});
    for (slug, at) in [
        ("anthropic", "/messages/1/content/0/input"),
        ("google", "/contents/1/parts/0/functionCall/args"),
        ("bedrock", "/messages/1/content/0/toolUse/input"),
    ] {
        let (_, sent) = translate(slug, Operation::ChatComplete, "m", &history);
        assert_eq!(sent.pointer(at).unwrap().to_string(), arguments.to_string(), "{slug}");
        // For Gemini the number occurs only once, because enums in Gemini's schemas contain only strings.
        let count = sent.to_string().matches("123456789012345678901234567890").count();
        assert_eq!(count, if slug == "google" { 1 } else { 2 }, "{slug}: {sent}");
    }
}

#[test]
fn content_of_another_type_is_delivered_or_an_error() {
    let messages: Value = serde_json::from_str(MESSAGES_REQUEST).unwrap();
    let (translation, _) = translate("openai", Operation::Messages, "m", &messages);
    for (content, text) in [
        (json!(12.5), Some("12.5")),
        (json!({"type": "text", "text": "a"}), Some("a")),
        (json!(["a", {"type": "output_text", "text": "b"}, {"text": {"value": "c"}}]), Some("abc")),
        (json!([{"type": "text", "text": [{"x": 1}]}]), None),
    ] {
        let (status, response) = respond(&translation, &openai_response(&json!({"content": content}), "stop"));
        match text {
            Some(text) => assert_eq!((status, &response["content"][0]["text"]), (200, &json!(text)), "{content}"),
            None => assert_eq!((status, &response["type"]), (502, &json!("error")), "{content}"),
        }
    }
    let reference = json!([{"type": "text", "text": "a"}, {"type": "reference", "reference_ids": [1]}]);
    assert_eq!(respond(&translation, &openai_response(&json!({"content": reference}), "stop")).0, 200);
    let dropped = translation.response_context.report.header_value(&translation.dropped_params);
    assert_eq!(dropped.as_deref(), Some("reference"));
    let (translation, _) = translate("cohere", Operation::Messages, "m", &messages);
    for (content, text) in [(json!("a"), "a"), (json!([{"type": "text", "text": 7}]), "7")] {
        let body = json!({"id": "c", "message": {"content": content}, "finish_reason": "COMPLETE"});
        assert_eq!(respond(&translation, &body).1["content"][0]["text"], text);
    }
    let (translation, _) = translate("bedrock", Operation::Messages, "amazon.nova-pro-v1:0", &messages);
    let thought = json!({"reasoningContent": {"reasoningText": {"text": "t", "signature": null}}});
    let cited = json!({"citationsContent": {"content": [{"text": null}, {"text": 5}], "citations": []}});
    let body = json!({"output": {"message": {"content": [thought, cited]}}, "stopReason": "end_turn"});
    let (status, response) = respond(&translation, &body);
    assert_eq!((status, &response["content"][1]["text"]), (200, &json!("5")), "{response}");
}

#[test]
fn a_failed_generation_is_an_error_and_its_usage_is_recorded() {
    let messages: Value = serde_json::from_str(MESSAGES_REQUEST).unwrap();
    let (translation, _) = translate("openai", Operation::Messages, "m", &messages);
    let mut failed = openai_response(&json!({"content": "partial"}), "error");
    failed["usage"] = json!({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7});
    let (status, response) = respond(&translation, &failed);
    assert_eq!(
        (status, &response["error"]["message"]),
        (502, &json!("openai error: the provider ended the response with the finish reason `error`"))
    );
    assert_eq!(translation.response_context.report.usage().unwrap().total(), 7);
    let (translation, _) = translate("cohere", Operation::Messages, "m", &messages);
    let body = json!({"message": {"content": [{"type": "text", "text": "a"}]}, "finish_reason": "ERROR"});
    assert_eq!(respond(&translation, &body).0, 502);
    // Agents would wait for a call if the finish reason were `tool_calls` without one.
    let (translation, _) = translate("openai", Operation::Messages, "m", &messages);
    let (_, response) = respond(&translation, &openai_response(&json!({"content": "a"}), "tool_calls"));
    assert_eq!(response["stop_reason"], "end_turn");
}

#[test]
fn hosts_of_claude_report_dropped_thinking() {
    let body = json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": ""}, {"type": "text", "text": "y"}]},
        {"role": "user", "content": "z"}]});
    for (slug, model) in [("bedrock", "anthropic.claude-sonnet-4-5"), ("vertex-ai", "anthropic.claude-sonnet-4-5")] {
        for operation in [Operation::Messages, Operation::MessagesCountTokens] {
            let (translation, sent) = translate(slug, operation, model, &body);
            assert_eq!(translation.dropped_params.header_value(), "thinking", "{slug}");
            assert!(!sent.to_string().contains("signature"), "{slug}: {sent}");
        }
    }
    let azure = catalog::find_provider("azure-ai").unwrap().row();
    let bedrock = catalog::find_provider("bedrock").unwrap().row();
    let converse = json!({"messages": [{"role": "assistant", "content": [
        {"reasoningContent": {"reasoningText": {"text": "t"}}}, {"text": "y"}]}]});
    for (row, operation, model, body, is_dropped) in [
        (azure, Operation::Messages, "claude-opus-4-1", &body, true),
        (azure, Operation::MessagesCountTokens, "claude-opus-4-1", &body, true),
        (bedrock, Operation::Converse, "anthropic.claude-opus-4-1", &converse, true),
        (bedrock, Operation::Converse, "deepseek.r1-v1:0", &converse, false),
    ] {
        let changed = row.param_rules_for_model(operation, model).apply(body.to_string().as_bytes());
        assert_eq!(changed.is_some_and(|(_, dropped)| dropped.header_value() == "thinking"), is_dropped, "{model}");
    }
}

#[test]
fn limits_of_stop_sequences_and_user_ids_are_the_providers_own() {
    let stops = json!(["a", "b", "c", "d", "e", "f"]);
    let request = json!({"model": "m", "max_tokens": 9, "stop_sequences": stops, "metadata": {"user_id": "u".repeat(300)},
        "messages": [{"role": "user", "content": "x"}]});
    for (slug, model, at, count) in [
        ("openai", "gpt-4o", "stop", 4),
        ("openai", "o3", "stop", 0),
        ("openai", "gpt-5", "stop", 0),
        ("deepseek", "m", "stop", 6),
        ("cohere", "m", "stop_sequences", 5),
    ] {
        let mut request = request.clone();
        request["model"] = model.into();
        let (translation, sent) = translate(slug, Operation::Messages, model, &request);
        assert_eq!(sent[at].as_array().map_or(0, Vec::len), count, "{slug} {model}");
        assert_eq!(translation.dropped_params.header_value().contains("stop"), count < 6, "{slug} {model}");
    }
    let model = "anthropic.claude-opus-4-1";
    let request = json!({"model": model, "user": "u".repeat(300), "messages": [{"role": "user", "content": "x"}]});
    let (translation, sent) = translate("bedrock", Operation::ChatComplete, model, &request);
    let user = sent.pointer("/additionalModelRequestFields/metadata/user_id").unwrap().as_str().unwrap();
    assert_eq!((user.len(), translation.dropped_params.header_value()), (256, "user".into()));
}

#[test]
fn custom_tools_keep_signatures_and_cache_hints() {
    let request = json!({"model": "m", "max_tokens": 9, "tools": [
            {"type": "custom", "custom": {"name": "patch"}, "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom",
            "custom": {"name": "patch", "input": "i"}, "extra_content": {"google": {"thought_signature": "c2ln"}}}]},
            {"role": "tool", "tool_call_id": "c", "content": "y"}]});
    let (_, sent) = translate("anthropic", Operation::ChatComplete, "m", &request);
    assert_eq!(sent["tools"][0]["cache_control"], json!({"type": "ephemeral"}));
    let (_, sent) = translate("google", Operation::ChatComplete, "gemini-3-pro", &request);
    assert_eq!(sent["contents"][1]["parts"][0]["thoughtSignature"], "c2ln", "{sent}");
    let item = json!({"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "i",
        "extra_content": {"google": {"thought_signature": "c2ln"}}});
    let output = json!({"type": "custom_tool_call_output", "call_id": "c", "output": "y"});
    let request = json!({"model": "m", "tools": [{"type": "custom", "name": "patch"}],
        "input": [{"role": "user", "content": "x"}, item, output]});
    let (_, sent) = translate("google", Operation::CreateModelResponse, "gemini-3-pro", &request);
    assert_eq!(sent["contents"][1]["parts"][0]["thoughtSignature"], "c2ln", "{sent}");
}

#[test]
fn embeddings_of_perplexity_have_one_path_for_all_clients() {
    let perplexity = catalog::find_provider("perplexity-ai").unwrap();
    for operation in [Operation::Embed, Operation::EmbedContent, Operation::BatchEmbedContents] {
        assert_eq!(perplexity.operation_path(operation), Some("/v1/embeddings"), "{operation:?}");
    }
}

#[test]
fn server_tools_in_the_history_are_dropped_and_reported() {
    let request = json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"},
        {"role": "assistant", "content": [
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}, {"type": "text", "text": "y"}]},
        {"role": "user", "content": "z"}]});
    for slug in ["openai", "google", "bedrock", "cohere"] {
        let (translation, sent) = translate(slug, Operation::Messages, "m", &request);
        assert_eq!(translation.dropped_params.header_value(), "server_tool_use, web_search_tool_result", "{slug}");
        assert!(!sent.to_string().contains("web_search"), "{slug}: {sent}");
    }
}

#[test]
fn a_count_ignores_a_tool_choice_without_tools() {
    let request =
        json!({"model": "m", "tool_choice": {"type": "auto"}, "messages": [{"role": "user", "content": "x"}]});
    let (_, sent) = translate("bedrock", Operation::MessagesCountTokens, "amazon.nova-pro-v1:0", &request);
    assert!(!sent.to_string().contains("toolChoice"), "{sent}");
    let request = json!({"contents": [{"role": "user", "parts": [{"text": "x"}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}}});
    let (_, sent) = translate("anthropic", Operation::CountTokens, "m", &request);
    assert_eq!(sent.get("tool_choice"), None, "{sent}");
}

#[test]
fn arguments_that_are_no_object_are_a_failure_unless_a_limit_cut_them_off() {
    let messages: Value = serde_json::from_str(MESSAGES_REQUEST).unwrap();
    let contents = json!({"contents": [{"role": "user", "parts": [{"text": "x"}]}]});
    let converse = json!({"messages": [{"role": "user", "content": [{"text": "x"}]}]});
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": "x"}]});
    for (slug, operation, request) in [
        ("openai", Operation::Messages, &messages),
        ("openai", Operation::GenerateContent, &contents),
        ("openai", Operation::Converse, &converse),
        ("mistral-ai", Operation::CreateModelResponse, &json!({"model": "m", "input": "x"})),
        ("cohere", Operation::ChatComplete, &chat),
    ] {
        let takes_text = matches!(operation, Operation::ChatComplete | Operation::CreateModelResponse);
        for (arguments, reason, is_failure) in [
            ("{\"a\":1}", "tool_calls", false),
            (" ", "tool_calls", false),
            ("{\"a\":", "tool_calls", true),
            ("{\"a\":", "stop", true),
            ("[1]", "tool_calls", true),
            ("{\"a\":", "length", false),
        ] {
            let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}});
            let response = match slug {
                "cohere" => json!({"message": {"tool_calls": [call]}, "finish_reason": reason}),
                _ => openai_response(&json!({"tool_calls": [call]}), reason),
            };
            let (translation, _) = translate(slug, operation, "m", request);
            let (status, response) = respond(&translation, &response);
            let expected = if is_failure && !takes_text { 502 } else { 200 };
            assert_eq!(status, expected, "{slug} {operation:?}: {arguments} {reason}: {response}");
        }
    }
}

#[test]
fn a_complete_response_with_an_unreadable_call_or_part_is_an_error() {
    let messages: Value = serde_json::from_str(MESSAGES_REQUEST).unwrap();
    let call = json!({"id": "c", "type": "function", "function": {"name": {"a": 1}, "arguments": "{}"}});
    let use_block = json!({"type": "tool_use", "id": "c", "name": ["f"], "input": {}});
    let function_call = json!({"functionCall": {"name": {"a": 1}, "args": {}}});
    let tool_use = json!({"toolUse": {"toolUseId": "c", "name": ["f"], "input": {}}});
    for (slug, model, operation, body) in [
        ("openai", "m", Operation::Messages, openai_response(&json!({"tool_calls": [call]}), "tool_calls")),
        ("openai", "m", Operation::Messages, openai_response(&json!({"content": {"q": "x"}}), "stop")),
        ("cohere", "m", Operation::Messages, json!({"message": {"tool_calls": [call]}, "finish_reason": "TOOL_CALL"})),
        (
            "cohere",
            "m",
            Operation::Messages,
            json!({"message": {"content": [{"q": "x"}]}, "finish_reason": "COMPLETE"}),
        ),
        ("google", "m", Operation::Messages, json!({"candidates": [{"content": {"parts": [function_call]}}]})),
        (
            "bedrock",
            "amazon.nova-pro-v1:0",
            Operation::Messages,
            json!({"output": {"message": {"content": [tool_use]}}, "stopReason": "tool_use"}),
        ),
        ("anthropic", "m", Operation::ChatComplete, json!({"content": [use_block], "stop_reason": "tool_use"})),
    ] {
        let (translation, _) = translate(slug, operation, model, &messages);
        let translated = translation.translate_response_or_failure(body.to_string().as_bytes());
        assert!(translated.is_err() || translated.is_ok_and(|(status, _)| status >= 400), "{slug}: {body}");
    }
}
