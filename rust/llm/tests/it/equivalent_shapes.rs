//! Translation of requests and responses where two API formats express the same thing in different shapes.

use penstock_llm::{
    catalog,
    operation::Operation,
    translation::{RequestError, Translation},
    translation_input::{RequestHints, TranslationInput},
};
use serde_json::{Value, json};

const CHAT_OPERATION: Operation = Operation::ChatComplete;

/// Translates a request, and returns the body that the provider gets.
pub fn translate_request(slug: &str, operation: Operation, body: &Value) -> Result<(Translation, Value), RequestError> {
    let provider = catalog::find_provider(slug).unwrap();
    let model = body["model"].as_str().unwrap_or_default().to_owned();
    let body = body.to_string();
    let provider_format = provider.provider_format(operation, &model).unwrap();
    let (body, hints) = (body.as_bytes(), RequestHints::default());
    let input = TranslationInput {
        operation,
        provider: provider.row(),
        body,
        model: &model,
        hints,
        strict: true,
        now_ms: 1_700_000_000_000,
        nonce: 7,
    };
    let (translation, sent) = Translation::translate_request(&input, provider_format)?;
    Ok((translation, serde_json::from_slice(&sent).unwrap()))
}

/// Returns the upstream body and the names of the dropped fields.
fn sent_and_dropped(slug: &str, operation: Operation, body: &Value) -> (Value, String) {
    let (translation, sent) = translate_request(slug, operation, body).unwrap();
    (sent, translation.response_context.report.header_value(&translation.dropped_params).unwrap_or_default())
}

fn translation_error(slug: &str, operation: Operation, body: &Value) -> String {
    translate_request(slug, operation, body).err().unwrap_or_else(|| panic!("{slug} takes {body}")).to_string()
}

fn chat_body(model: &str, more: &Value) -> Value {
    let mut body = json!({"model": model, "messages": [{"role": "user", "content": "Hi"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn tool_with_parameters(parameters: &Value) -> Value {
    json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}]})
}

#[test]
fn groups_tool_results_even_if_they_contain_images() {
    let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "look", "arguments": "{}"});
    let content =
        json!([{"type": "input_text", "text": "here"}, {"type": "input_image", "image_url": "https://e.com/a.png"}]);
    let output = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": content});
    let body = json!({"model": "m", "input": [{"role": "user", "content": "Look."},
        {"type": "reasoning", "summary": []}, {"role": "assistant", "content": "I look."}, call("a"), call("b"), output("a"), output("b")]});
    let (sent, lost) = sent_and_dropped("deepseek", Operation::CreateModelResponse, &body);
    let roles: Vec<_> =
        sent["messages"].as_array().unwrap().iter().map(|item| item["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool", "user"], "{sent}");
    assert_eq!(sent["messages"][1]["content"], "I look.");
    assert_eq!(sent["messages"][1]["tool_calls"].as_array().unwrap().len(), 2);
    // Empty reasoning has no content to send back, so nothing is dropped.
    assert_eq!(lost, "");
}

#[test]
fn resolves_refs_and_all_of_in_gemini_tool_schemas() {
    let named_schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    for schema in [
        json!({"$defs": {"a": named_schema}, "$ref": "#/$defs/a"}),
        json!({"allOf": [named_schema]}),
        json!({"type": "object", "properties": {}, "allOf": [named_schema, {"required": ["city"]}]}),
        named_schema.clone(),
    ] {
        let (sent, lost) =
            sent_and_dropped("google", CHAT_OPERATION, &chat_body("gemini-2.5-pro", &tool_with_parameters(&schema)));
        assert_eq!(sent["tools"][0]["functionDeclarations"][0]["parameters"], named_schema, "{schema}");
        assert_eq!(lost, "", "{schema}");
    }
    let either = json!({"anyOf": [named_schema, {"type": "string"}]});
    let (sent, _) =
        sent_and_dropped("google", CHAT_OPERATION, &chat_body("gemini-2.5-pro", &tool_with_parameters(&either)));
    assert_eq!(sent["tools"][0]["functionDeclarations"][0]["parameters"], either);
    for (empty, dropped_names) in [
        (json!({"type": "object"}), ""),
        (json!({"type": "object", "properties": {}, "required": [], "additionalProperties": false}), ""),
        (json!({"type": "object", "additionalProperties": {"type": "string"}}), "additionalProperties"),
    ] {
        let (sent, lost) =
            sent_and_dropped("google", CHAT_OPERATION, &chat_body("gemini-2.0-flash", &tool_with_parameters(&empty)));
        assert_eq!(sent["tools"][0]["functionDeclarations"], json!([{"name": "f"}]), "{empty}");
        assert_eq!(lost, dropped_names);
    }
}

#[test]
fn assigns_ids_to_tool_calls_without_ids_and_indexes() {
    let call = |name: &str, arguments: &str| json!({"function": {"name": name, "arguments": arguments}});
    let (translation, _) =
        translate_request("groq", Operation::Messages, &chat_body("m", &json!({"max_tokens": 9}))).unwrap();
    let response = json!({"id": "c1", "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant",
        "tool_calls": [call("f", "{\"a\":1}"), call("f", "{\"a\":2}"), call("g", "{}")]}}]});
    let result: Value =
        serde_json::from_slice(&translation.translate_response(response.to_string().as_bytes()).unwrap()).unwrap();
    let expected = json!([{"type": "tool_use", "id": "call_c1_0", "name": "f", "input": {"a": 1}},
        {"type": "tool_use", "id": "call_c1_1", "name": "f", "input": {"a": 2}},
        {"type": "tool_use", "id": "call_c1_2", "name": "g", "input": {}}]);
    assert_eq!(result["content"], expected);
    for number in [json!({}), json!({"index": 0})] {
        let numbered = |mut call: Value| {
            call.as_object_mut().unwrap().extend(number.as_object().unwrap().clone());
            call
        };
        let mut stream = translation.transcoder();
        let mut out = Vec::new();
        for part in [call("f", "{\"a\""), json!({"function": {"arguments": ":1}"}}), call("g", "{}")] {
            let chunk = json!({"id": "c1", "choices": [{"index": 0, "delta": {"tool_calls": [numbered(part)]}}]});
            out.extend(stream.push_chunk(format!("data: {chunk}\n\n").into()));
        }
        let out = String::from_utf8(out).unwrap();
        for expected in ["\"id\":\"call_c1_0\",\"name\":\"f\"", "\"id\":\"call_c1_1\",\"name\":\"g\""] {
            assert!(out.contains(expected), "{expected} is not in {out}");
        }
        assert_eq!(out.matches("content_block_start").count(), 4, "{out}");
    }
}

#[test]
fn document_names_are_valid_and_unique_for_bedrock() {
    let file = |name: Value| json!({"type": "file", "file": {"file_data": "data:application/pdf;base64,AA==", "filename": name}});
    let long = "a".repeat(300);
    let names = [
        json!("a.pdf"),
        json!("a_pdf"),
        json!("a  b\t(1) [2]"),
        json!("  "),
        json!(null),
        json!(null),
        json!(long),
        json!(long),
    ];
    let content: Vec<_> = names.into_iter().map(file).chain([json!({"type": "text", "text": "Read."})]).collect();
    let body = json!({"model": "amazon.nova-pro-v1:0", "messages": [{"role": "user", "content": content}]});
    let (sent, _) = sent_and_dropped("bedrock", CHAT_OPERATION, &body);
    let blocks = sent["messages"][0]["content"].as_array().unwrap().iter();
    let result: Vec<_> = blocks.filter_map(|block| block["document"]["name"].as_str()).collect();
    let (cut, second) = ("a".repeat(200), format!("{} 2", "a".repeat(198)));
    assert_eq!(result, ["a-pdf", "a-pdf 2", "a b (1) [2]", "document", "document 2", "document 3", &cut, &second]);
}

#[test]
fn maps_reasoning_budget_and_leaves_tokens_for_the_response() {
    let claude = "claude-sonnet-4-5";
    for (slug, model) in
        [("anthropic", claude), ("google", "gemini-2.5-pro"), ("bedrock", "anthropic.claude-sonnet-4-5")]
    {
        let body = chat_body(model, &json!({"reasoning_effort": "turbo"}));
        assert!(
            translation_error(slug, CHAT_OPERATION, &body).starts_with("reasoning_effort: `turbo` is not supported"),
            "{slug}"
        );
        let both = json!({"reasoning_effort": "low", "thinking": {"type": "enabled", "budget_tokens": 3000}, "max_tokens": 4000});
        let (sent, lost) = sent_and_dropped(slug, CHAT_OPERATION, &chat_body(model, &both));
        assert_eq!(lost, "reasoning_effort", "{slug}");
        assert!(sent.to_string().contains("3000"), "{slug}: {sent}");
    }
    for (more, budget, dropped_names) in [
        (json!({"reasoning_effort": "high", "max_tokens": 30_000}), json!(16_384), ""),
        (json!({"reasoning_effort": "high", "max_tokens": 8000}), json!(4000), "reasoning_effort"),
        (json!({"reasoning_effort": "medium", "max_tokens": 9000}), json!(8192), ""),
        (json!({"reasoning_effort": "low", "max_tokens": 1025}), json!(null), "reasoning_effort"),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 9000}, "max_tokens": 9000}), json!(4500), "thinking"),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 8999}, "max_tokens": 9000}), json!(8999), ""),
    ] {
        let (sent, lost) = sent_and_dropped("anthropic", CHAT_OPERATION, &chat_body(claude, &more));
        assert_eq!((&sent["thinking"]["budget_tokens"], lost.as_str()), (&budget, dropped_names), "{more}");
    }
    for (effort, model, result, dropped_names) in [
        ("high", "gemini-2.5-pro", json!({"thinkingBudget": 24_576}), ""),
        ("max", "gemini-2.5-pro", json!({"thinkingBudget": 24_576}), "reasoning_effort"),
        ("xhigh", "gemini-3-pro", json!({"thinkingLevel": "high"}), "reasoning_effort"),
    ] {
        let (sent, lost) =
            sent_and_dropped("google", CHAT_OPERATION, &chat_body(model, &json!({"reasoning_effort": effort})));
        assert_eq!((&sent["generationConfig"]["thinkingConfig"], lost.as_str()), (&result, dropped_names), "{effort}");
    }
}

#[test]
fn generates_one_id_for_a_response_without_an_id() {
    for (operation, id) in [
        (CHAT_OPERATION, "cohere-1700000000000-7"),
        (Operation::Complete, "cohere-1700000000000-7"),
        (Operation::Messages, "msg_1700000000000-7"),
        (Operation::CreateModelResponse, "resp_1700000000000-7"),
    ] {
        let body = match operation {
            Operation::Complete => json!({"model": "m", "prompt": "Hi"}),
            Operation::CreateModelResponse => json!({"model": "m", "input": "Hi"}),
            _ => chat_body("m", &json!({"max_tokens": 9})),
        };
        let (translation, _) = translate_request("cohere", operation, &body).unwrap();
        let response =
            json!({"message": {"content": [{"type": "text", "text": "Hello"}]}, "finish_reason": "COMPLETE"});
        let result: Value =
            serde_json::from_slice(&translation.translate_response(response.to_string().as_bytes()).unwrap()).unwrap();
        assert_eq!(result["id"], id, "{}", operation.id());
        let created = result.get("created").or_else(|| result.get("created_at"));
        assert!(created.is_none_or(|created| *created == 1_700_000_000), "{result}");
        let mut stream = translation.transcoder();
        let events = [
            json!({"type": "message-start"}),
            json!({"type": "content-delta", "delta": {"message": {"content": {"text": "Hello"}}}}),
            json!({"type": "message-end", "delta": {"finish_reason": "COMPLETE"}}),
        ];
        let events = events.iter().map(|event| format!("data: {event}\n\n")).collect::<Vec<_>>().concat();
        let out = [stream.push_chunk(events.into()), stream.finish()].concat();
        let out = String::from_utf8(out).unwrap();
        assert!(out.contains(&format!("\"id\":\"{id}\"")), "{out}");
        assert!(!out.contains("\"id\":\"\""), "{out}");
    }
}

#[test]
fn rejects_tool_choice_without_tools() {
    let body = chat_body("amazon.nova-pro-v1:0", &json!({"tool_choice": "required"}));
    assert_eq!(translation_error("bedrock", CHAT_OPERATION, &body), "tool_choice: there are no tools");
    let native = json!({"tools": [{"type": "web_search_20250305", "web_search_20250305": {"name": "web_search"}}], "tool_choice": "required"});
    let (_, lost) = sent_and_dropped("bedrock", CHAT_OPERATION, &chat_body("anthropic.claude-sonnet-4-5", &native));
    assert_eq!(lost, "tool_choice");
}

#[test]
fn rejects_a_request_without_content() {
    for (slug, model) in
        [("anthropic", "claude-sonnet-4-5"), ("google", "gemini-2.5-pro"), ("bedrock", "amazon.nova-pro-v1:0")]
    {
        let body = json!({"model": model, "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ""}]});
        assert!(translation_error(slug, CHAT_OPERATION, &body).starts_with("messages: "), "{slug}");
    }
    let image_request = chat_body("gemini-2.5-flash-image", &json!({"image_config": "16:9"}));
    assert_eq!(translation_error("google", CHAT_OPERATION, &image_request), "image_config: must be an object");
}

#[test]
fn truncates_a_long_list_of_dropped_names() {
    let more: Value = (0..40).map(|n| (format!("x{n:02}"), json!(1))).collect::<serde_json::Map<_, _>>().into();
    let (_, lost) = sent_and_dropped("anthropic", CHAT_OPERATION, &chat_body("claude-sonnet-4-5", &more));
    assert!(lost.ends_with("x14, x15, and 24 more"), "{lost}");
}

#[test]
fn sends_an_orphaned_tool_result_under_a_placeholder_name() {
    let body = json!({"model": "gemini-2.5-pro", "messages": [{"role": "user", "content": "Go on."},
        {"role": "tool", "tool_call_id": "gone", "content": "4 °C"}]});
    let (sent, lost) = sent_and_dropped("google", CHAT_OPERATION, &body);
    let expected = json!({"functionResponse": {"name": "unknown_function", "response": {"output": "4 °C"}}});
    assert_eq!(sent["contents"][0]["parts"][1], expected);
    assert_eq!(lost, "tool_call_id");
}

#[test]
fn reports_or_rejects_fields_of_the_wrong_type() {
    for (operation, more, dropped_names) in [
        (CHAT_OPERATION, json!({"stream_options": "all"}), "stream_options"),
        (CHAT_OPERATION, json!({"max_tokens": 5, "max_completion_tokens": 9}), "max_tokens"),
        (
            CHAT_OPERATION,
            json!({"messages": [{"role": "assistant", "content": "a", "refusal": 5}, {"role": "user", "content": "b"}]}),
            "messages.refusal",
        ),
        (Operation::Messages, json!({"metadata": "u-1"}), "metadata"),
        (Operation::Messages, json!({"output_config": "high"}), "output_config"),
        (
            Operation::Messages,
            json!({"output_config": {"format": {"type": "grammar", "grammar": "x"}}}),
            "output_config.format",
        ),
        (
            Operation::Messages,
            json!({"tools": [{"name": "f", "input_schema": {}, "description": 5}]}),
            "tools.description",
        ),
    ] {
        let (_, lost) = sent_and_dropped("cohere", operation, &chat_body("command-a", &more));
        assert_eq!(lost, dropped_names, "{} {more}", operation.id());
    }
    for (more, dropped_names) in [
        (json!({"reasoning": "high"}), "reasoning"),
        (json!({"text": "short", "stream_options": 1}), "text, stream_options"),
    ] {
        let mut body = json!({"model": "command-a", "input": "Hi"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        assert_eq!(sent_and_dropped("cohere", Operation::CreateModelResponse, &body).1, dropped_names);
    }
    for (config, dropped_names) in [
        (json!({"thinkingLevel": "THINKING_LEVEL_UNSPECIFIED"}), ""),
        (json!({"thinkingLevel": "LOW", "thinkingBudget": 2000}), "thinkingLevel"),
    ] {
        let body = json!({"model": "claude-sonnet-4-5", "contents": [{"parts": [{"text": "Hi"}]}], "generationConfig": {"thinkingConfig": config}});
        assert_eq!(sent_and_dropped("anthropic", Operation::GenerateContent, &body).1, dropped_names, "{body}");
    }
    let body = chat_body("claude-sonnet-4-5", &tool_with_parameters(&json!("none")));
    assert_eq!(
        translation_error("anthropic", CHAT_OPERATION, &body),
        "tools[0].function.parameters: must be an object"
    );
}

#[test]
fn maps_cache_hints_only_for_models_that_support_them() {
    let hint = json!({"type": "ephemeral", "ttl": "1h"});
    let tool = json!({"type": "function", "function": {"name": "f"}, "cache_control": hint});
    let body = |model: &str| {
        json!({"model": model, "tools": [tool], "messages": [{"role": "system", "content": [{"type": "text", "text": "a", "cache_control": hint}]},
            {"role": "user", "content": [{"type": "text", "text": "b", "cache_control": hint}]}]})
    };
    let long = json!({"cachePoint": {"type": "default", "ttl": "1h"}});
    let short = json!({"cachePoint": {"type": "default"}});
    for (model, in_tools, in_talk, expected) in [
        ("us.anthropic.claude-sonnet-4-5", &long, &long, ""),
        ("eu.amazon.nova-pro-v1:0", &Value::Null, &short, "cache_control.ttl, cache_control"),
        ("meta.llama3-1-70b-instruct-v1:0", &Value::Null, &Value::Null, "cache_control"),
        ("arn:aws:bedrock:eu-west-1:1:application-inference-profile/abc", &long, &long, ""),
    ] {
        let (sent, lost) = sent_and_dropped("bedrock", CHAT_OPERATION, &body(model));
        assert_eq!(&sent["toolConfig"]["tools"][1], in_tools, "{model}");
        assert_eq!((&sent["system"][1], &sent["messages"][0]["content"][1]), (in_talk, in_talk), "{model}");
        assert_eq!(lost, expected, "{model}");
    }
}

#[test]
fn sends_claude_fields_to_an_arn_of_an_unknown_model() {
    let thinking = json!({"type": "enabled", "budget_tokens": 2000});
    let body = |model: &str| chat_body(model, &json!({"max_tokens": 4000, "thinking": thinking}));
    let arn = |kind: &str| format!("arn:aws:bedrock:eu-west-1:1:{kind}");
    for (model, more, expected) in [
        (arn("application-inference-profile/a1b2"), json!({"thinking": thinking}), ""),
        (arn("provisioned-model/a1b2"), json!({"thinking": thinking}), ""),
        (arn("inference-profile/eu.amazon.nova-pro-v1:0"), Value::Null, "thinking"),
    ] {
        let (sent, lost) = sent_and_dropped("bedrock", Operation::Messages, &body(&model));
        assert_eq!((&sent["additionalModelRequestFields"], lost.as_str()), (&more, expected), "{model}");
    }
}

#[test]
fn accepts_provider_specific_parameter_names() {
    let (sent, lost) = sent_and_dropped("cohere", CHAT_OPERATION, &chat_body("command-a", &json!({"k": 600})));
    assert_eq!((&sent["k"], lost.as_str()), (&json!(500), "k"));
    let (sent, lost) =
        sent_and_dropped("predibase", CHAT_OPERATION, &chat_body("d:a", &json!({"top_k": 3, "best_of": 2})));
    assert_eq!((&sent["top_k"], &sent["best_of"], lost.as_str()), (&json!(3), &json!(2), ""));
    let (sent, lost) = sent_and_dropped(
        "bedrock",
        CHAT_OPERATION,
        &chat_body("cohere.command-r-v1:0", &json!({"logitBias": {"a": 1}})),
    );
    assert_eq!((&sent["additionalModelRequestFields"], lost.as_str()), (&json!({"logit_bias": {"a": 1}}), ""));
}

#[test]
fn sends_openai_fields_only_to_bedrock_models_that_accept_them() {
    let more = json!({"response_format": {"type": "json_object"}, "reasoning_effort": "low"});
    let result = |model: &str| {
        let (sent, lost) = sent_and_dropped("bedrock", CHAT_OPERATION, &chat_body(model, &more));
        (sent["additionalModelRequestFields"].clone(), lost)
    };
    assert_eq!(result("openai.gpt-oss-120b-1:0"), (more.clone(), String::new()));
    let format = json!({"response_format": {"type": "json_object"}});
    assert_eq!(result("qwen.qwen3-32b-v1:0"), (format, "reasoning_effort".into()));
    assert_eq!(result("us.meta.llama3-3-70b-instruct-v1:0"), (Value::Null, "reasoning_effort, response_format".into()));
}

#[test]
fn maps_effort_to_a_token_budget_for_cohere_reasoning_models() {
    for (model, effort, thinking, lost) in [
        ("command-a-reasoning-08-2025", "medium", json!({"type": "enabled", "token_budget": 8192}), ""),
        ("command-a-reasoning-08-2025", "none", json!({"type": "disabled"}), ""),
        ("command-a-03-2025", "medium", Value::Null, "reasoning_effort"),
    ] {
        let (sent, dropped_names) =
            sent_and_dropped("cohere", CHAT_OPERATION, &chat_body(model, &json!({"reasoning_effort": effort})));
        assert_eq!((&sent["thinking"], dropped_names.as_str()), (&thinking, lost), "{model} {effort}");
    }
    let own = json!({"reasoning_effort": "low", "thinking": {"type": "enabled", "budget_tokens": 99}});
    let (sent, lost) = sent_and_dropped("cohere", CHAT_OPERATION, &chat_body("command-a-reasoning-08-2025", &own));
    assert_eq!((&sent["thinking"]["token_budget"], lost.as_str()), (&json!(99), "reasoning_effort"));
}

#[test]
fn accepts_bare_base64_images_and_plain_text_files() {
    let convert_image = |url: &str| {
        let content = json!([{"type": "image_url", "image_url": {"url": url}}]);
        let (sent, _) = sent_and_dropped(
            "google",
            CHAT_OPERATION,
            &json!({"model": "m", "messages": [{"role": "user", "content": content}]}),
        );
        sent["contents"][0]["parts"][0].clone()
    };
    assert_eq!(
        convert_image("iVBORw0KGgo/AA=="),
        json!({"inlineData": {"mimeType": "image/jpeg", "data": "iVBORw0KGgo/AA=="}})
    );
    assert_eq!(
        convert_image("gs://b/a.png"),
        json!({"fileData": {"mimeType": "image/png", "fileUri": "gs://b/a.png"}})
    );
    let read = |data: &str| {
        let content = json!([{"type": "file", "file": {"file_data": data, "mime_type": "text/plain"}}]);
        let body = json!({"model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": content}]});
        sent_and_dropped("anthropic", CHAT_OPERATION, &body).0["messages"][0]["content"][0]["source"].clone()
    };
    for (data, text) in [("Hello, you.", "Hello, you."), ("aGk=", "hi"), ("test", "test")] {
        assert_eq!(read(data), json!({"type": "text", "media_type": "text/plain", "data": text}));
    }
}

#[test]
fn uses_the_anthropic_version_of_the_body_if_the_host_fits() {
    let result = |slug: &str, version: &str| {
        let body = chat_body("anthropic.claude-sonnet-4-5", &json!({"anthropic_version": version}));
        let (translation, sent) = translate_request(slug, CHAT_OPERATION, &body).unwrap();
        (
            translation.anthropic_version.clone(),
            sent["anthropic_version"].clone(),
            translation.dropped_params.header_value(),
        )
    };
    assert_eq!(result("anthropic", "2023-01-01"), (Some("2023-01-01".into()), Value::Null, String::new()));
    // Anthropic does not accept the version of a cloud host, and a cloud host does not accept Anthropic's.
    assert_eq!(result("anthropic", "bedrock-2023-05-31"), (None, Value::Null, "anthropic_version".into()));
    assert_eq!(result("vertex-ai", "vertex-2024-01-01"), (None, json!("vertex-2024-01-01"), String::new()));
    assert_eq!(result("vertex-ai", "2023-06-01"), (None, json!("vertex-2023-10-16"), "anthropic_version".into()));
}

#[test]
fn maps_maximum_effort_of_claude_to_the_highest_supported() {
    let body = chat_body("gpt-5", &json!({"max_tokens": 9, "output_config": {"effort": "max"}}));
    for (slug, effort, dropped_names) in [("openai", "high", "reasoning_effort"), ("deepseek", "max", "")] {
        let (sent, lost) = sent_and_dropped(slug, Operation::Messages, &body);
        assert_eq!((&sent["reasoning_effort"], lost.as_str()), (&json!(effort), dropped_names), "{slug}");
    }
}

#[test]
fn drops_anthropic_server_tools_at_google() {
    let with = |tool: Value| chat_body("gemini-2.5-flash", &json!({"max_tokens": 9, "tools": [tool]}));
    let (sent, lost) = sent_and_dropped(
        "google",
        Operation::Messages,
        &with(json!({"type": "web_search_20250305", "name": "web_search"})),
    );
    assert_eq!((sent.get("tools"), lost.as_str()), (None, "tools.web_search_20250305"));
    let (sent, _) = sent_and_dropped(
        "google",
        CHAT_OPERATION,
        &with(json!({"type": "file_search", "file_search": {"stores": ["s"]}})),
    );
    assert_eq!(sent["tools"], json!([{"file_search": {"stores": ["s"]}}]));
}
