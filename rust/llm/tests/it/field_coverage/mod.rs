//! Field coverage of request translation. At every provider each documented field is sent, rejected or reported as
//! dropped; none is dropped silently.
#![allow(clippy::too_many_lines, clippy::needless_pass_by_value, reason = "tables")]

mod google_and_amazon;

use std::collections::BTreeSet;

use penstock_llm::{
    catalog::{self, Provider},
    operation::Operation,
    translation::{RequestError, Translation},
    translation_input::{RequestHints, TranslationInput},
};
use serde_json::{Value, json};

/// Models of different vendors. The vendor decides the provider format at some providers.
const VENDOR_MODELS: [&str; 11] = [
    "model-1",
    "gemini-3-pro",
    "claude-opus-4-5",
    "anthropic.claude-opus-4-5",
    "meta.llama-4",
    "mistralai.small",
    "endpoints.1",
    "cohere.command-r",
    "cohere.embed-v4",
    "amazon.titan-embed-text-v2:0",
    "ai21.jamba",
];

/// Providers whose format depends on the model.
const MODEL_DEPENDENT_PROVIDERS: [&str; 4] = ["azure-ai", "bedrock", "google", "vertex-ai"];

/// Fields that may be dropped silently: JSON pointer, provider (`None` for all), and the reason.
const EXEMPT_FIELDS: [(&str, Option<&str>, &str); 7] = [
    ("/response_format/json_schema/strict", None, "who takes a schema keeps to it"),
    ("/text/format/strict", None, "likewise"),
    ("/metadata", None, "nothing is kept: the answer repeats it"),
    ("/response_format", Some("siliconflow"), "addresses are what it gives"),
    ("/text/format/schema", Some("lemonfox-ai"), "the format is named as a whole"),
    ("/text/format/description", Some("lemonfox-ai"), "likewise"),
    ("/outputConfig/textFormat/structure/jsonSchema/description", Some("lemonfox-ai"), "likewise"),
];

/// JSON pointer of the field, and a request part that contains it.
type FieldCase = (&'static str, Value);

/// Returns a request without the field, and the same request with it.
fn request_pair((path, with): &FieldCase, base: &Value) -> (Value, Value) {
    let mut requested = base.clone();
    requested.as_object_mut().unwrap().extend(with.as_object().unwrap().clone());
    let mut without = requested.clone();
    let (parent, key) = path.rsplit_once('/').unwrap();
    match without.pointer_mut(parent).unwrap_or_else(|| panic!("{path} leads nowhere")) {
        Value::Object(fields) => assert!(fields.remove(key).is_some(), "{path} is not there"),
        Value::Array(items) => drop(items.remove(key.parse().unwrap())),
        _ => panic!("{path} leads nowhere"),
    }
    (without, requested)
}

/// Returns the sent bytes and the names of the dropped fields; an error if the request is rejected.
fn translate_body(
    provider: &'static dyn Provider,
    operation: Operation,
    body: &Value,
) -> Result<(Vec<u8>, String), RequestError> {
    let body = body.to_string();
    let model = serde_json::from_str::<Value>(&body).unwrap()["model"].as_str().unwrap_or_default().to_owned();
    let provider_format = provider.provider_format(operation, &model).unwrap();
    let hints = RequestHints::default();
    let input = TranslationInput {
        operation,
        provider: provider.row(),
        body: body.as_bytes(),
        model: &model,
        hints,
        strict: true,
        now_ms: 1_700_000_000_000,
        nonce: 7,
    };
    let (translation, sent) = Translation::translate_request(&input, provider_format)?;
    // Some fields are sent as headers.
    let fields =
        [&translation.anthropic_betas, &translation.anthropic_version].map(|field| field.clone().unwrap_or_default());
    let sent = [sent, fields.concat().into()].concat();
    Ok((sent, translation.response_context.report.header_value(&translation.dropped_params).unwrap_or_default()))
}

/// Translates a request for every provider with and without each field; panics if a field is dropped silently.
fn check_fields(operation: Operation, base: &Value, rows: &[FieldCase]) {
    let mut silent = BTreeSet::new();
    let mut unasked: BTreeSet<&str> = rows.iter().map(|(path, _)| *path).collect();
    for provider in catalog::all_providers() {
        let models =
            if MODEL_DEPENDENT_PROVIDERS.contains(&provider.slug()) { &VENDOR_MODELS[..] } else { &VENDOR_MODELS[..1] };
        for model in models.iter().filter(|model| provider.provider_format(operation, model).is_some()) {
            let mut base = base.clone();
            base["model"] = (*model).into();
            for row in rows {
                let (without, with) = request_pair(row, &base);
                // A request that is rejected without the field is also rejected with it.
                let Ok(without) = translate_body(provider, operation, &without) else { continue };
                unasked.remove(row.0);
                let is_named = without
                    .1
                    .split(", ")
                    .any(|lost| row.0.replace("cachePoint", "cache_control").contains(&format!("/{lost}/")));
                let is_exempt = EXEMPT_FIELDS
                    .iter()
                    .any(|(path, slug, _)| *path == row.0 && slug.is_none_or(|slug| slug == provider.slug()));
                if !is_named
                    && !is_exempt
                    && translate_body(provider, operation, &with).is_ok_and(|with| with == without)
                {
                    silent.insert(format!("{} {} {model}: {}", operation.id(), provider.slug(), row.0));
                }
            }
        }
    }
    let request_body = rows.len();
    assert!(silent.is_empty(), "dropped in silence: {silent:#?}");
    assert!(unasked.is_empty(), "{} of {request_body} rows were asked of nobody: {unasked:?}", unasked.len());
}

/// Adds one case for each top-level key.
fn add_key_cases(rows: &mut Vec<FieldCase>, base: &'static [(&'static str, &'static str)]) {
    for (path, json) in base {
        let key = path.trim_start_matches('/');
        rows.push((path, json!({ key: serde_json::from_str::<Value>(json).unwrap() })));
    }
}

fn user_message_with(part: &Value) -> Value {
    json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "What?"}, part]}]})
}

fn request_with_tool(tool: &Value) -> Value {
    json!({"tools": [tool]})
}

/// Returns a chat completion request with a tool call and its result.
fn tool_call_history(more_of_call: Value, more_of_result: Value) -> Value {
    let mut call = json!({"role": "assistant", "content": "I see.", "tool_calls":
        [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]});
    let mut result = json!({"role": "tool", "tool_call_id": "c1", "content": "42"});
    call.as_object_mut().unwrap().extend(more_of_call.as_object().cloned().unwrap());
    result.as_object_mut().unwrap().extend(more_of_result.as_object().cloned().unwrap());
    json!({"messages": [{"role": "user", "content": "What?"}, call, result]})
}

#[test]
fn chat_completion_fields_are_sent_rejected_or_reported() {
    let base = json!({"messages": [{"role": "user", "content": "What?"}], "max_tokens": 4096});
    let mut rows = Vec::new();
    add_key_cases(
        &mut rows,
        &[
            ("/temperature", "0.3"),
            ("/top_p", "0.3"),
            ("/top_k", "7"),
            ("/n", "3"),
            ("/stop", "[\"END\"]"),
            ("/presence_penalty", "0.3"),
            ("/frequency_penalty", "0.3"),
            ("/logit_bias", "{\"50256\": -100}"),
            ("/user", "\"u-1\""),
            ("/seed", "7"),
            ("/response_format", "{\"type\": \"json_object\"}"),
            ("/logprobs", "true"),
            ("/service_tier", "\"flex\""),
            ("/store", "true"),
            ("/metadata", "{\"a\": \"b\"}"),
            ("/modalities", "[\"text\", \"audio\"]"),
            ("/audio", "{\"voice\": \"alloy\", \"format\": \"wav\"}"),
            ("/prediction", "{\"type\": \"content\", \"content\": \"x\"}"),
            ("/reasoning_effort", "\"low\""),
            ("/thinking", "{\"type\": \"enabled\", \"budget_tokens\": 2000}"),
            ("/web_search_options", "{\"search_context_size\": \"low\"}"),
            ("/prompt_cache_key", "\"k\""),
            ("/prompt_cache_retention", "\"24h\""),
            ("/safety_identifier", "\"s\""),
            ("/verbosity", "\"low\""),
            ("/max_completion_tokens", "777"),
            ("/functions", "[{\"name\": \"f\", \"parameters\": {\"type\": \"object\"}}]"),
            ("/function_call", "{\"name\": \"f\"}"),
            ("/safety_settings", "[{\"category\": \"c\", \"threshold\": \"t\"}]"),
            ("/anthropic_beta", "[\"b\"]"),
            ("/anthropic_version", "\"2023-01-01\""),
            ("/anything_new", "7"),
        ],
    );
    let picture = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "high"}});
    let distant = json!({"type": "image_url", "image_url": {"url": "https://a.example/b.png", "detail": "low"}});
    let file = json!({"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"}});
    let sound = json!({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}});
    let hinted = json!({"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "1h"}});
    let function = json!({"type": "function", "defer_loading": true, "allowed_callers": ["code"],
        "input_examples": [{"a": 1}], "cache_control": {"type": "ephemeral"},
        "function": {"name": "f", "description": "d", "strict": true,
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}});
    let more = [
        ("/top_logprobs", json!({"logprobs": true, "top_logprobs": 3})),
        ("/parallel_tool_calls", json!({"parallel_tool_calls": false, "tools": [function]})),
        (
            "/stream_options/include_obfuscation",
            json!({"stream": true, "stream_options": {"include_obfuscation": true}}),
        ),
        ("/messages/0/name", json!({"messages": [{"role": "user", "name": "ann", "content": "What?"}]})),
        ("/messages/0/anything", json!({"messages": [{"role": "user", "anything": 7, "content": "What?"}]})),
        (
            "/messages/0",
            json!({"messages": [{"role": "developer", "content": "Brief."}, {"role": "user", "content": "What?"}]}),
        ),
        ("/messages/0/content/1", user_message_with(&picture)),
        ("/messages/0/content/1/image_url/detail", user_message_with(&picture)),
        ("/messages/0/content/1/image_url/detail", user_message_with(&distant)),
        ("/messages/0/content/1", user_message_with(&file)),
        ("/messages/0/content/1/file/filename", user_message_with(&file)),
        ("/messages/0/content/1", user_message_with(&sound)),
        ("/messages/0/content/1/cache_control", user_message_with(&hinted)),
        ("/messages/0/content/1/cache_control/ttl", user_message_with(&hinted)),
        ("/tools/0", request_with_tool(&function)),
        ("/tools/0/defer_loading", request_with_tool(&function)),
        ("/tools/0/allowed_callers", request_with_tool(&function)),
        ("/tools/0/input_examples", request_with_tool(&function)),
        ("/tools/0/cache_control", request_with_tool(&function)),
        ("/tools/0/function/description", request_with_tool(&function)),
        ("/tools/0/function/strict", request_with_tool(&function)),
        ("/tools/0/function/parameters/required", request_with_tool(&function)),
        ("/tools/0", json!({"tools": [{"type": "custom", "custom": {"name": "x"}}]})),
        ("/tool_choice", json!({"tools": [function], "tool_choice": "required"})),
        ("/tool_choice", json!({"tools": [function], "tool_choice": "none"})),
        ("/tool_choice", json!({"tools": [function], "tool_choice": {"type": "function", "function": {"name": "f"}}})),
        (
            "/tool_choice",
            json!({"tools": [function], "tool_choice": {"type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]}}}),
        ),
        ("/response_format/json_schema/schema", json_schema_format(true)),
        ("/response_format/json_schema/strict", json_schema_format(true)),
        ("/response_format/json_schema/description", json_schema_format(true)),
        ("/messages/1/refusal", tool_call_history(json!({"refusal": "no"}), json!({}))),
        ("/messages/1/audio", tool_call_history(json!({"audio": {"id": "a"}}), json!({}))),
        (
            "/messages/1/function_call",
            tool_call_history(json!({"function_call": {"name": "f", "arguments": "{}"}}), json!({})),
        ),
        ("/messages/1/reasoning_content", tool_call_history(json!({"reasoning_content": "hm"}), json!({}))),
        ("/messages/1/anything", tool_call_history(json!({"anything": 7}), json!({}))),
        (
            "/messages/1/tool_calls",
            json!({"messages": tool_call_history(json!({}), json!({}))["messages"].as_array().unwrap()[..2]}),
        ),
        ("/messages/2/anything", tool_call_history(json!({}), json!({"anything": 7}))),
        ("/messages/2/is_error", tool_call_history(json!({}), json!({"is_error": true}))),
    ];
    rows.extend(more);
    check_fields(Operation::ChatComplete, &base, &rows);
}

fn json_schema_format(strict: bool) -> Value {
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "description": "d", "strict": strict,
        "schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
        "additionalProperties": false}}}})
}

#[test]
fn responses_api_fields_are_sent_rejected_or_reported() {
    let base = json!({"input": "What?", "max_output_tokens": 4096});
    let mut rows = Vec::new();
    add_key_cases(
        &mut rows,
        &[
            ("/background", "true"),
            ("/conversation", "\"conv_1\""),
            ("/include", "[\"message.output_text.logprobs\"]"),
            ("/instructions", "\"Be brief.\""),
            ("/max_tool_calls", "3"),
            ("/metadata", "{\"a\": \"b\"}"),
            ("/previous_response_id", "\"resp_1\""),
            ("/prompt", "{\"id\": \"p\"}"),
            ("/prompt_cache_key", "\"k\""),
            ("/prompt_cache_retention", "\"24h\""),
            ("/safety_identifier", "\"s\""),
            ("/service_tier", "\"flex\""),
            ("/store", "true"),
            ("/temperature", "0.3"),
            ("/top_logprobs", "3"),
            ("/top_p", "0.3"),
            ("/truncation", "\"auto\""),
            ("/user", "\"u-1\""),
            ("/anything_new", "7"),
        ],
    );
    let function = json!({"type": "function", "name": "f", "description": "d", "strict": true, "defer_loading": true,
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}});
    let text = json!({"text": {"verbosity": "low", "format": {"type": "json_schema", "name": "n", "description": "d",
        "strict": true, "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}}});
    let build_value =
        |part: Value| json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}, part]}]});
    let picture = json!({"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "high"});
    let file = json!({"type": "input_file", "file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"});
    let request_with_call = json!({"input": [{"role": "user", "content": "What?"},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "one": 7},
        {"type": "function_call_output", "call_id": "c1", "output": "42", "two": 7},
        {"type": "message", "role": "assistant", "three": 7, "content": [{"type": "output_text", "text": "a",
            "annotations": [{"type": "url_citation", "url": "u"}]}]},
        {"role": "user", "content": "And?"}]});
    let more = [
        (
            "/stream_options/include_obfuscation",
            json!({"stream": true, "stream_options": {"include_obfuscation": true}}),
        ),
        ("/reasoning/effort", json!({"reasoning": {"effort": "low", "summary": "auto"}})),
        ("/reasoning/anything", json!({"reasoning": {"effort": "low", "anything": 7}})),
        ("/text/verbosity", text.clone()),
        ("/text/format", text.clone()),
        ("/text/format/schema", text.clone()),
        ("/text/format/strict", text.clone()),
        ("/text/format/description", text.clone()),
        ("/text/anything", json!({"text": {"anything": 7}})),
        ("/tools/0", request_with_tool(&function)),
        ("/tools/0/defer_loading", request_with_tool(&function)),
        ("/tools/0/description", request_with_tool(&function)),
        ("/tools/0/strict", request_with_tool(&function)),
        ("/tools/0", json!({"tools": [{"type": "web_search"}]})),
        ("/tool_choice", json!({"tools": [function], "tool_choice": "required"})),
        ("/parallel_tool_calls", json!({"tools": [function], "parallel_tool_calls": false})),
        ("/input/0/content/1", build_value(picture.clone())),
        ("/input/0/content/1/detail", build_value(picture)),
        ("/input/0/content/1", build_value(file.clone())),
        ("/input/0/content/1/filename", build_value(file)),
        ("/input/1/one", request_with_call.clone()),
        ("/input/2/two", request_with_call.clone()),
        ("/input/3/three", request_with_call.clone()),
        ("/input/3/content/0/annotations", request_with_call),
    ];
    rows.extend(more);
    check_fields(Operation::CreateModelResponse, &base, &rows);
}

#[test]
fn message_fields_are_sent_rejected_or_reported() {
    let base = json!({"messages": [{"role": "user", "content": "What?"}], "max_tokens": 4096});
    let mut rows = Vec::new();
    add_key_cases(
        &mut rows,
        &[
            ("/container", "\"c\""),
            ("/context_management", "{\"edits\": [{\"type\": \"clear_tool_uses_20250919\"}]}"),
            ("/inference_geo", "\"us\""),
            ("/mcp_servers", "[{\"type\": \"url\", \"url\": \"https://a.example\", \"name\": \"a\"}]"),
            ("/service_tier", "\"standard_only\""),
            ("/stop_sequences", "[\"END\"]"),
            ("/system", "\"Be brief.\""),
            ("/temperature", "0.3"),
            ("/thinking", "{\"type\": \"enabled\", \"budget_tokens\": 2000}"),
            ("/top_k", "7"),
            ("/top_p", "0.3"),
            ("/anthropic_beta", "[\"b\"]"),
            ("/anything_new", "7"),
        ],
    );
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let function = json!({"name": "f", "description": "d", "strict": true, "input_schema": schema, "defer_loading": true,
        "allowed_callers": ["code"], "input_examples": [{"a": 1}], "cache_control": {"type": "ephemeral"}});
    let document = json!({"type": "document", "title": "t", "context": "c", "citations": {"enabled": true},
        "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}});
    let plain =
        json!({"type": "document", "title": "t", "source": {"type": "text", "media_type": "text/plain", "data": "a"}});
    let picture = json!({"type": "image", "anything": 7, "cache_control": {"type": "ephemeral"},
        "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}});
    let hinted = json!({"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "1h"}});
    let search_result =
        json!({"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "a"}]});
    let request_with_call = json!({"messages": [{"role": "user", "content": "What?"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "a", "citations": [{"type": "char_location"}]},
            {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}, "anything": 7}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "is_error": true, "anything": 7,
            "content": [{"type": "text", "text": "42", "anything": 7}]}]}]});
    let format =
        json!({"output_config": {"effort": "low", "anything": 7, "format": {"type": "json_schema", "schema": schema}}});
    let choice =
        json!({"tools": [function], "tool_choice": {"type": "auto", "disable_parallel_tool_use": true, "anything": 7}});
    let more = [
        ("/metadata/user_id", json!({"metadata": {"user_id": "u-1"}})),
        ("/metadata/anything", json!({"metadata": {"anything": 7}})),
        ("/output_config/effort", format.clone()),
        ("/output_config/format", format.clone()),
        ("/output_config/anything", format),
        ("/tools/0", request_with_tool(&function)),
        ("/tools/0/strict", request_with_tool(&function)),
        ("/tools/0/description", request_with_tool(&function)),
        ("/tools/0/defer_loading", request_with_tool(&function)),
        ("/tools/0/allowed_callers", request_with_tool(&function)),
        ("/tools/0/input_examples", request_with_tool(&function)),
        ("/tools/0/cache_control", request_with_tool(&function)),
        ("/tools/0", json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]})),
        ("/tool_choice", json!({"tools": [function], "tool_choice": {"type": "any"}})),
        ("/tool_choice", json!({"tools": [function], "tool_choice": {"type": "none"}})),
        ("/tool_choice/disable_parallel_tool_use", choice.clone()),
        ("/tool_choice/anything", choice),
        ("/system/0/cache_control", json!({"system": [hinted]})),
        ("/messages/0/anything", json!({"messages": [{"role": "user", "anything": 7, "content": "What?"}]})),
        ("/messages/0/content/1", user_message_with(&document)),
        ("/messages/0/content/1/title", user_message_with(&document)),
        ("/messages/0/content/1/context", user_message_with(&document)),
        ("/messages/0/content/1/citations", user_message_with(&document)),
        ("/messages/0/content/1/title", user_message_with(&plain)),
        ("/messages/0/content/1", user_message_with(&picture)),
        ("/messages/0/content/1/cache_control", user_message_with(&picture)),
        ("/messages/0/content/1/anything", user_message_with(&picture)),
        ("/messages/0/content/1/cache_control/ttl", user_message_with(&hinted)),
        ("/messages/0/content/1", user_message_with(&search_result)),
        ("/messages/1/content/0", request_with_call.clone()),
        ("/messages/1/content/1/citations", request_with_call.clone()),
        ("/messages/1/content/2/anything", request_with_call.clone()),
        ("/messages/2/content/0/is_error", request_with_call.clone()),
        ("/messages/2/content/0/anything", request_with_call.clone()),
        ("/messages/2/content/0/content/0/anything", request_with_call),
    ];
    rows.extend(more);
    check_fields(Operation::Messages, &base, &rows);
}

#[test]
fn text_completion_fields_are_sent_rejected_or_reported() {
    let base = json!({"prompt": "What?", "max_tokens": 4096});
    let mut rows = Vec::new();
    add_key_cases(
        &mut rows,
        &[
            ("/best_of", "3"),
            ("/echo", "true"),
            ("/frequency_penalty", "0.3"),
            ("/logit_bias", "{\"50256\": -100}"),
            ("/logprobs", "3"),
            ("/n", "3"),
            ("/presence_penalty", "0.3"),
            ("/seed", "7"),
            ("/stop", "\"END\""),
            ("/suffix", "\"x\""),
            ("/temperature", "0.3"),
            ("/top_p", "0.3"),
            ("/user", "\"u-1\""),
            ("/anything_new", "7"),
        ],
    );
    check_fields(Operation::Complete, &base, &rows);
}

#[test]
fn rerank_fields_are_sent_rejected_or_reported() {
    let base = json!({"query": "What?", "documents": ["a", "b"]});
    let mut rows = Vec::new();
    add_key_cases(
        &mut rows,
        &[
            ("/top_n", "1"),
            ("/max_tokens_per_doc", "7"),
            ("/priority", "7"),
            ("/truncation", "false"),
            ("/anything_new", "7"),
        ],
    );
    rows.push(("/documents/0/title", json!({"documents": [{"text": "a", "title": "t"}]})));
    check_fields(Operation::Rerank, &base, &rows);
}

#[test]
fn token_counts_include_system_prompt_and_tools() {
    let base = json!({"messages": [{"role": "user", "content": "What?"}]});
    let rows = [
        ("/system", json!({"system": "Be brief."})),
        (
            "/tools",
            json!({"tools": [{"name": "f", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}]}),
        ),
        (
            "/messages/0",
            json!({"messages": [{"role": "user", "content": "What?"}, {"role": "user", "content": "And?"}]}),
        ),
    ];
    check_fields(Operation::MessagesCountTokens, &base, &rows);
}

#[test]
fn embedding_fields_are_sent_rejected_or_reported() {
    let base = json!({"input": ["a"]});
    let mut rows = Vec::new();
    add_key_cases(
        &mut rows,
        &[
            ("/dimensions", "256"),
            ("/user", "\"u-1\""),
            ("/input_type", "\"search_query\""),
            ("/task_type", "\"RETRIEVAL_QUERY\""),
            ("/truncate", "\"END\""),
            ("/title", "\"t\""),
            ("/normalize", "true"),
            ("/parameters", "{\"autoTruncate\": false}"),
            ("/anything_new", "7"),
        ],
    );
    check_fields(Operation::Embed, &base, &rows);
}

#[test]
fn image_generation_fields_are_sent_rejected_or_reported() {
    let base = json!({"prompt": "a boat"});
    let mut rows = Vec::new();
    add_key_cases(
        &mut rows,
        &[
            ("/n", "2"),
            ("/size", "\"1024x512\""),
            ("/quality", "\"hd\""),
            ("/style", "\"vivid\""),
            ("/response_format", "\"url\""),
            ("/user", "\"u-1\""),
            ("/background", "\"transparent\""),
            ("/moderation", "\"low\""),
            ("/output_compression", "50"),
            ("/output_format", "\"webp\""),
            ("/seed", "7"),
            ("/negative_prompt", "\"sea\""),
            ("/mimeType", "\"image/png\""),
            ("/anything_new", "7"),
        ],
    );
    check_fields(Operation::ImageGenerate, &base, &rows);
}
