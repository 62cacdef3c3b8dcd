//! Translation for Google and Amazon clients. Every provider's response reaches them with the same content, complete
//! and streamed.

use std::collections::BTreeSet;

use crate::golden_cases::{UpstreamBody, assemble_stream, translated_cases};
use penstock_llm::{
    api_format::ApiFormat,
    catalog::{self, Provider},
    operation::Operation,
    translation::Translation,
    translation_input::{RequestHints, TranslationInput},
};
use serde_json::{Value, json};

/// Each operation for complete responses with its streaming counterpart.
const OPERATION_PAIRS: [(Operation, Operation); 3] = [
    (Operation::GenerateContent, Operation::StreamGenerateContent),
    (Operation::Converse, Operation::ConverseStream),
    (Operation::InvokeModel, Operation::InvokeModelStream),
];

fn hello_request(operation: Operation) -> Value {
    match operation {
        Operation::GenerateContent | Operation::StreamGenerateContent => {
            json!({"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]})
        }
        Operation::Converse | Operation::ConverseStream => {
            json!({"messages": [{"role": "user", "content": [{"text": "Hello"}]}]})
        }
        _ => json!({"anthropic_version": "bedrock-2023-05-31", "max_tokens": 64,
            "messages": [{"role": "user", "content": "Hello"}]}),
    }
}

fn build_translation(provider: &'static dyn Provider, operation: Operation, model: &str) -> Option<Translation> {
    let provider_format = provider.provider_format(operation, model)?;
    let body = hello_request(operation).to_string().into_bytes();
    let input = TranslationInput {
        operation,
        provider: provider.row(),
        body: &body,
        model,
        hints: RequestHints::default(),
        strict: true,
        now_ms: 1_700_000_000_000,
        nonce: 7,
    };
    Some(Translation::translate_request(&input, provider_format).unwrap().0)
}

/// Summarises text, tool calls, finish reason and usage of a response in one shape for all client formats.
fn summarize_response(operation: Operation, result: &Value) -> Value {
    let (texts, calls, finish, cost) = match operation {
        Operation::GenerateContent | Operation::StreamGenerateContent => {
            let parts = result["candidates"][0]["content"]["parts"].as_array().unwrap();
            let calls = parts.iter().map(|part| &part["functionCall"]).filter(|call| call.is_object());
            let calls: Vec<_> = calls.map(|call| json!([call["name"], call["args"]])).collect();
            let usage = &result["usageMetadata"];
            let thoughts = usage["thoughtsTokenCount"].as_u64().unwrap_or_default();
            let out = usage["candidatesTokenCount"].as_u64().unwrap() + thoughts;
            let texts = parts.iter().filter(|part| part["thought"].is_null()).map(|part| part["text"].clone());
            (
                texts.collect(),
                calls,
                result["candidates"][0]["finishReason"].clone(),
                json!([usage["promptTokenCount"], out]),
            )
        }
        Operation::Converse | Operation::ConverseStream => {
            let blocks = result["output"]["message"]["content"].as_array().unwrap();
            let calls = blocks.iter().map(|block| &block["toolUse"]).filter(|call| call.is_object());
            let calls: Vec<_> = calls.map(|call| json!([call["name"], call["input"]])).collect();
            let usage = &result["usage"];
            let out = usage["outputTokens"].as_u64().unwrap();
            let texts: Vec<_> = blocks.iter().map(|block| block["text"].clone()).collect();
            (texts, calls, result["stopReason"].clone(), json!([usage["totalTokens"].as_u64().unwrap() - out, out]))
        }
        _ => {
            let blocks = result["content"].as_array().unwrap();
            let calls = blocks.iter().filter(|block| block["type"] == "tool_use");
            let calls: Vec<_> = calls.map(|call| json!([call["name"], call["input"]])).collect();
            let (usage, texts) = (&result["usage"], blocks.iter().map(|block| block["text"].clone()).collect());
            let counts = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];
            let prompt: u64 = counts.iter().filter_map(|key| usage[key].as_u64()).sum();
            (texts, calls, result["stop_reason"].clone(), json!([prompt, usage["output_tokens"]]))
        }
    };
    let text: String = texts.iter().filter_map(Value::as_str).collect();
    let finish = match finish.as_str().unwrap() {
        "STOP" if calls.is_empty() => "end_turn",
        "STOP" => "tool_use",
        "MAX_TOKENS" => "max_tokens",
        word => word,
    };
    json!({"text": text, "calls": calls, "finish": finish, "cost": cost})
}

#[test]
fn client_formats_agree_on_complete_and_streamed_content() {
    let mut tested_providers = BTreeSet::new();
    for case in translated_cases().into_iter().filter(|case| ["stream", "tools_stream"].contains(&case.label.as_str()))
    {
        let provider = catalog::find_provider(&case.provider).unwrap();
        let (Some(sibling), UpstreamBody::Stream(stream)) = (case.complete_counterpart(), case.upstream_body()) else {
            continue;
        };
        let UpstreamBody::Complete(whole) = sibling.upstream_body() else {
            panic!("{} is not complete", sibling.name())
        };
        if case.operation().api_format() == Some(ApiFormat::Bedrock) {
            continue;
        }
        let mut all = Vec::new();
        for (operation, streamed) in OPERATION_PAIRS {
            let Some(translation) = build_translation(provider, operation, "") else { continue };
            let result = serde_json::from_slice(&translation.translate_response(&whole).unwrap()).unwrap();
            let summary = summarize_response(operation, &result);
            let mut transcoder = self::build_translation(provider, streamed, "").unwrap().transcoder();
            let mut bytes = transcoder.push_chunk(stream.clone()).to_vec();
            bytes.extend_from_slice(&transcoder.finish());
            let again = assemble_stream(streamed.id(), &bytes);
            assert_eq!(summarize_response(streamed, &again), summary, "{} {}", case.name(), streamed.id());
            tested_providers.insert((case.provider.clone(), operation.id()));
            all.push(summary);
        }
        for pair in all.windows(2) {
            assert_eq!(pair[0], pair[1], "{}", case.name());
        }
        assert!(all.iter().all(|one| one["cost"][1] != 0), "{}: {all:?}", case.name());
    }
    // The mock provider is skipped: it needs no translation.
    for provider in catalog::all_providers().filter(|provider| provider.slug() != "mock") {
        for (operation, _) in
            OPERATION_PAIRS.iter().filter(|(operation, _)| provider.provider_format(*operation, "").is_some())
        {
            let pair = (provider.slug().to_owned(), operation.id());
            assert!(tested_providers.contains(&pair), "{pair:?} was never tested");
        }
    }
}

#[test]
fn translates_errors_of_every_provider() {
    for case in translated_cases().into_iter().filter(|case| case.label == "error") {
        let provider = catalog::find_provider(&case.provider).unwrap();
        let UpstreamBody::Error(bytes) = case.upstream_body() else { continue };
        for (operation, _) in OPERATION_PAIRS {
            let Some(translation) = build_translation(provider, operation, "") else { continue };
            let result: Value = serde_json::from_slice(&translation.translate_error(429, &bytes, None)).unwrap();
            let (message, word) = match operation {
                Operation::GenerateContent => (&result["error"]["message"], &result["error"]["status"]),
                _ => (&result["message"], &result["__type"]),
            };
            assert!(message.as_str().unwrap().starts_with(&format!("{} error: ", case.provider)), "{result}");
            assert!(["RESOURCE_EXHAUSTED", "ThrottlingException"].contains(&word.as_str().unwrap()), "{result}");
        }
    }
}

#[test]
fn google_clients_can_embed_at_every_embedding_provider() {
    let all = translated_cases();
    let own = |slug: &str| {
        all.iter().find(|case| case.provider == slug && case.operation == "embed" && case.label == "complete")
    };
    let openais = all.iter().find(|case| case.name() == "openai/embedContent/complete").unwrap();
    let mut embedded = Vec::new();
    for provider in catalog::all_providers().filter(|provider| provider.slug() != "mock") {
        // Providers with OpenAI's embeddings API return OpenAI's response.
        let case = own(provider.slug()).unwrap_or(openais);
        let (model, UpstreamBody::Complete(response)) = (case.model(), case.upstream_body()) else {
            panic!("{}", case.name())
        };
        let candidate = json!({"content": {"parts": [{"text": "Hi"}]}});
        let requests = [
            (Operation::EmbedContent, candidate.clone()),
            (Operation::BatchEmbedContents, json!({"requests": [candidate]})),
        ];
        for (operation, body) in requests {
            let Some(provider_format) = provider.provider_format(operation, &model) else { continue };
            let (body, hints) = (body.to_string(), RequestHints::default());
            let input = TranslationInput {
                operation,
                provider: provider.row(),
                body: body.as_bytes(),
                model: &model,
                hints,
                strict: true,
                now_ms: 0,
                nonce: 0,
            };
            let translation = Translation::translate_request(&input, provider_format).unwrap().0;
            let result: Value = serde_json::from_slice(&translation.translate_response(&response).unwrap()).unwrap();
            let values = result.pointer("/embedding/values").or_else(|| result.pointer("/embeddings/0/values"));
            let is_one = |values: &Value| {
                values.as_array().is_some_and(|values| values.iter().all(Value::is_number) && !values.is_empty())
            };
            assert!(values.is_some_and(is_one), "{} {}: {result}", provider.slug(), operation.id());
            let error: Value =
                serde_json::from_slice(&translation.translate_error(429, br#"{"error":{"message":"later"}}"#, None))
                    .unwrap();
            assert_eq!(error["error"]["status"], "RESOURCE_EXHAUSTED", "{}", provider.slug());
            embedded.push((provider.slug(), operation.id()));
        }
    }
    assert!(embedded.len() > 40, "{embedded:?}");
}
