//! Conformance of all providers. The same request must lead to equivalent responses for the client.

use std::collections::BTreeSet;

use crate::golden_cases::{
    Case, UpstreamBody, all_cases, assemble_stream,
    required::{REQUIRED_CASES, file_store_for, needs_case, required_cases},
    translated_cases,
};
use penstock_llm::{
    api_format::ApiFormat,
    catalog::{self, Options, PathInfo, PathOptions, Provider},
    files::{FileStore, ObjectStore},
    operation::Operation,
    stream::meter::SseMeter,
    translation::Normaliser,
};
use serde_json::Value;

#[test]
fn every_operation_of_every_provider_has_golden_cases() {
    let case_names: BTreeSet<_> = all_cases().iter().map(Case::name).collect();
    let mut missing = Vec::new();
    for provider in catalog::all_providers() {
        let needed = required_cases(provider).into_iter();
        let names = needed.map(|(operation, case)| format!("{}/{}/{case}", provider.slug(), operation.id()));
        missing.extend(names.filter(|name| !case_names.contains(name)));
    }
    assert!(missing.is_empty(), "no golden cases: {missing:#?}");
}

/// A provider whose own chat format has tool calls needs golden cases for messages with tools. OpenAI-compatible
/// providers are tested here instead.
#[test]
fn chat_tools_also_work_for_anthropic_clients() {
    let case_names: BTreeSet<_> = all_cases().iter().map(Case::name).collect();
    let of =
        |label: &str| all_cases().into_iter().find(|case| case.name() == format!("openai/messages/{label}")).unwrap();
    let [whole, stream] = ["tools", "tools_stream"].map(of);
    let UpstreamBody::Stream(events) = stream.upstream_body() else { panic!("it is no stream") };
    let mut case_count = 0;
    for provider in catalog::all_providers() {
        let slug = provider.slug();
        let is_translated = provider.provider_format(Operation::Messages, &whole.model()).is_some();
        if !is_translated || case_names.contains(&format!("{slug}/messages/tools")) {
            continue;
        }
        let calls_tools = case_names.contains(&format!("{slug}/chatComplete/tools"));
        assert!(!calls_tools, "{slug} has no cases of messages with tools: tools, tools_stream");
        let [mut complete, mut stream] = [whole.clone(), stream.clone()];
        (complete.provider, stream.provider) = (slug.to_owned(), slug.to_owned());
        let (translation, sent) = complete.translate_request().unwrap();
        let sent: Value = serde_json::from_slice(&sent).unwrap();
        if provider.row().param_rules(Operation::ChatComplete).dropped_fields.contains(&"tools") {
            assert!(
                sent["tools"].is_null() && translation.dropped_params.header_value().contains("tools"),
                "{slug}: {sent}"
            );
            continue;
        }
        let messages = sent["messages"].as_array().unwrap();
        let calls = messages.iter().flat_map(|message| message["tool_calls"].as_array().into_iter().flatten());
        let results = messages.iter().filter(|message| message["role"] == "tool");
        let tool_name = &sent["tools"][0]["function"]["name"];
        assert_eq!((calls.count(), results.count(), tool_name.as_str()), (2, 2, Some("weather")), "{slug}: {sent}");
        let mut transcoder = stream.translate_request().unwrap().0.transcoder();
        let returned = [transcoder.push_chunk(events.clone()), transcoder.finish()].concat();
        let expected = summarize_case(&of("tools"));
        assert_eq!(
            (summarize_case(&complete), summarize_message(&assemble_stream("messages", &returned))),
            (expected.clone(), expected),
            "{slug}"
        );
        case_count += 1;
    }
    assert!(case_count > 40, "{case_count}");
}

/// Providers whose model lists are not translated. Each has its own shape, which is then normalised.
const MODEL_LIST_PROVIDERS: [&str; 13] = [
    "azure-openai",
    "bytez",
    "cerebras",
    "deepgram",
    "deepseek",
    "fireworks-ai",
    "groq",
    "mistral-ai",
    "moonshot",
    "openai",
    "openrouter",
    "replicate",
    "x-ai",
];

#[test]
fn model_lists_have_one_shape_for_every_provider() {
    for slug in MODEL_LIST_PROVIDERS {
        for label in ["complete", "error"] {
            let name = format!("{}{label}", case_prefix(slug, Operation::Models));
            let case =
                all_cases().into_iter().find(|case| case.name() == name).unwrap_or_else(|| panic!("{name} is missing"));
            let UpstreamBody::Complete(response) = case.upstream_body() else { continue };
            let (_, normaliser, _) = case.prepare_pass_through();
            let result: Value = serde_json::from_slice(&normaliser.normalise_body(response)).unwrap();
            let keys: Vec<_> = result["data"][0].as_object().unwrap().keys().map(String::as_str).collect();
            assert_eq!(
                (&result["provider"], &keys[..]),
                (&slug.into(), &["id", "object", "created", "owned_by", "type"][..])
            );
        }
    }
}

/// Covers the providers without golden cases for these operations. A model list that passes through has `OpenAI`'s
/// shape, and errors have the common shape.
#[test]
fn normalises_model_lists_and_moderations_without_own_cases() {
    let list = br#"{"data":[{"id":"m","context_length":9,"pricing":{"prompt":"0"}}]}"#;
    let verdict = br#"{"id":"modr-1","model":"m","results":[{"flagged":false,"categories":{},"category_scores":{}}]}"#;
    let mut request = 0;
    for provider in catalog::all_providers() {
        for operation in [Operation::Models, Operation::Moderate]
            .into_iter()
            .filter(|operation| provider.provider_format(*operation, "").is_none())
        {
            let normaliser = Normaliser::new(provider.row(), operation, ApiFormat::OpenAi, true);
            let name = format!("{}/{}", provider.slug(), operation.id());
            if operation == Operation::Models {
                let result: Value = serde_json::from_slice(&normaliser.normalise_body(list.as_slice().into())).unwrap();
                let keys: Vec<_> = result["data"][0].as_object().unwrap().keys().map(String::as_str).collect();
                assert_eq!(
                    (&result["provider"], &keys[..]),
                    (&provider.slug().into(), &["id", "object", "created", "owned_by", "type"][..]),
                    "{name}"
                );
            } else {
                assert!(
                    !normaliser.changes_responses()
                        || normaliser.normalise_body(verdict.as_slice().into()) == verdict.as_slice(),
                    "{name}"
                );
            }
            for error in
                [r#"{"detail":"no"}"#, r#"{"message":"no"}"#, r#"{"error":"no"}"#, r#"{"error":{"message":"no"}}"#]
            {
                let result: Value =
                    serde_json::from_slice(&normaliser.normalise_error(404, error.as_bytes(), None).unwrap()).unwrap();
                let keys: Vec<_> = result["error"].as_object().unwrap().keys().map(String::as_str).collect();
                assert_eq!(keys, ["message", "type", "param", "code"], "{name} {error}");
                assert!(result["error"]["message"].as_str().unwrap().contains("no"), "{name} {error}: {result}");
            }
            request += 1;
        }
    }
    assert!(request > 130, "{request}");
}

/// Operations whose provider format depends on the model: one model of each family, and the golden case that covers it.
const MODEL_FAMILIES: [(&str, Operation, &str, &str); 16] = [
    ("azure-ai", Operation::ChatComplete, "claude-opus-4-5", "claude"),
    ("bedrock", Operation::Messages, "us.anthropic.claude-sonnet-4-5", "native_request"),
    ("bedrock", Operation::MessagesCountTokens, "anthropic.claude-sonnet-4-5", "claude"),
    ("bedrock", Operation::Embed, "cohere.embed-v4", "cohere"),
    ("bedrock", Operation::Rerank, "cohere.rerank-v3-5:0", "cohere"),
    ("bedrock", Operation::ImageGenerate, "stability.stable-image-core-v1:1", "stable_image"),
    ("bedrock", Operation::ImageGenerate, "stability.stable-diffusion-xl-v1", "artifacts"),
    ("google", Operation::ImageGenerate, "gemini-2.5-flash-image", "gemini"),
    ("stability-ai", Operation::ImageGenerate, "stable-diffusion-xl-1024-v1-0", "engine"),
    ("vertex-ai", Operation::ImageGenerate, "gemini-2.5-flash-image", "gemini"),
    ("vertex-ai", Operation::ChatComplete, "anthropic.claude-sonnet-4-5", "claude"),
    ("vertex-ai", Operation::ChatComplete, "meta.llama-4", "llama"),
    ("vertex-ai", Operation::Messages, "anthropic.claude-sonnet-4-5", "native_request"),
    ("vertex-ai", Operation::Messages, "meta.llama-4", "llama"),
    ("vertex-ai", Operation::MessagesCountTokens, "anthropic.claude-sonnet-4-5", "claude"),
    ("voyage", Operation::Embed, "voyage-multimodal-3", "images"),
];

#[test]
fn every_model_family_has_golden_cases() {
    let mut missing = Vec::new();
    for (slug, operation, model, label) in MODEL_FAMILIES {
        let provider = catalog::find_provider(slug).unwrap();
        let is = |model: &str| {
            provider
                .provider_format(operation, model)
                .map(|provider_format| std::ptr::from_ref(provider_format).cast::<u8>())
        };
        let name = format!("{slug}/{}/{label}", operation.id());
        let mut covered: Vec<_> = translated_cases()
            .into_iter()
            .filter(|case| case.name().starts_with(&case_prefix(slug, operation)))
            .collect();
        let case = covered.iter().find(|case| case.name() == name).unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!(is(&case.model()), is(model), "{name} is of another family");
        covered.retain(|case| is(&case.model()) == is(model) && !case.label.starts_with("refused"));
        for needed in REQUIRED_CASES.iter().filter(|needed| needs_case(operation, needed)) {
            if !covered.iter().any(|case| required_case(case) == *needed) {
                missing.push(format!("{name}: {needed}"));
            }
        }
    }
    assert!(missing.is_empty(), "no golden cases: {missing:#?}");
}

fn case_prefix(slug: &str, operation: Operation) -> String {
    format!("{slug}/{}/", operation.id())
}

/// Returns which of `REQUIRED_CASES` a case covers.
fn required_case(case: &Case) -> &'static str {
    match case.upstream_body() {
        UpstreamBody::Complete(_) => "complete",
        UpstreamBody::Stream(_) => "stream",
        UpstreamBody::Error(_) => "error",
    }
}

/// Audio and image operations. Providers with `OpenAI`'s own API stream them too.
const MEDIA_OPERATIONS: [Operation; 4] =
    [Operation::CreateSpeech, Operation::CreateTranscription, Operation::ImageGenerate, Operation::ImageEdit];

#[test]
fn media_streams_report_usage_and_a_terminal_event() {
    for slug in ["azure-ai", "azure-openai", "mock", "openai"] {
        for operation in MEDIA_OPERATIONS {
            let name = format!("{}stream", case_prefix(slug, operation));
            let case =
                all_cases().into_iter().find(|case| case.name() == name).unwrap_or_else(|| panic!("{name} is missing"));
            let UpstreamBody::Stream(bytes) = case.upstream_body() else { panic!("{name} is no stream") };
            let metered = |end: usize| {
                let mut meter = SseMeter::for_operation(ApiFormat::OpenAi, operation);
                bytes[..end].chunks(11).for_each(|chunk| meter.feed(chunk));
                meter.finish()
            };
            let complete = metered(bytes.len());
            assert!(
                complete.usage.is_some_and(|usage| usage.total() > 12) && complete.is_terminated,
                "{name}: {complete:?}"
            );
            let last = bytes.len() - bytes.rsplit(|byte| *byte == b'\n').nth(2).unwrap().len() - 2;
            assert!(!metered(last).is_terminated, "{name} is over before its last event");
        }
    }
}

/// Provider options other than the credential, for all providers.
const OPTION_VALUES: [(&str, &str); 16] = [
    ("api_version", "2025-01-01"),
    ("aws_region", "eu-west-1"),
    ("aws_s3_bucket", "bucket"),
    ("azure_foundry_url", "https://res.services.ai.azure.com"),
    ("byteplus_region", "ap-southeast"),
    ("databricks_workspace", "workspace"),
    ("deployment_id", "deployment"),
    ("fireworks_account_id", "account"),
    ("oracle_region", "eu-frankfurt-1"),
    ("predibase_tenant", "tenant"),
    ("resource_name", "res"),
    ("snowflake_account", "account"),
    ("vertex_project_id", "project"),
    ("vertex_region", "europe-west4"),
    ("vertex_storage_bucket_name", "bucket"),
    ("workers_ai_account_id", "account"),
];

#[test]
fn upstream_targets_match_the_golden_files() {
    let wrong: Vec<_> = catalog::all_providers()
        .filter_map(|provider| {
            crate::golden_cases::compare_provider_file(provider.slug(), "targets.txt", &list_targets(provider))
        })
        .collect();
    assert!(wrong.is_empty(), "{}\nhint: UPDATE_GOLDEN=1 writes what is", wrong.join("\n"));
}

/// Returns one line per operation that the provider serves, translated or passed through, and one for the proxy route.
fn list_targets(provider: &'static dyn Provider) -> String {
    let mut options = Options::default();
    for option in provider.row().options {
        let value = OPTION_VALUES.iter().find(|(key, _)| *key == option.key);
        if let Some((_, value)) = value {
            options.insert_if_absent(*option, (*value).to_owned());
        }
    }
    let operations = Operation::ALL.iter().filter(|operation| provider.supports(**operation));
    let lines = operations.chain([&Operation::Proxy]).map(|operation| {
        let is_translated = provider.provider_format(*operation, MODEL_NAME).is_some()
            || file_store_for(provider, *operation).is_some();
        let handling = if is_translated { "translated" } else { "forwarded" };
        let target = build_target(provider, *operation, &options).unwrap_or_else(|refusal| format!("({refusal})"));
        format!("{} {target}, {handling}\n", operation.id())
    });
    lines.collect()
}

const MODEL_NAME: &str = "model-1";

fn build_target(provider: &'static dyn Provider, operation: Operation, options: &Options) -> Result<String, String> {
    let (method, path) = operation.route().unwrap_or(("GET", "/v1/anything"));
    let file = |bucket: &ObjectStore| format!("{}%3A%2F%2Fbucket%2Fa.jsonl", bucket.scheme);
    let id =
        file_store_for(provider, operation).and_then(FileStore::object_store).map_or_else(|| "id-1".to_owned(), file);
    let path = path.replace(":id", &id).replace('*', MODEL_NAME);
    let base = provider.resolve_base_url(operation, options)?.unwrap_or_else(|| provider.row().base_url.to_owned());
    let prefix = base.split_once("://").and_then(|(_, rest)| rest.find('/').map(|at| &rest[at..])).unwrap_or_default();
    let stated = PathOptions::default();
    let request = PathInfo {
        operation,
        path: &path,
        query: "",
        prefix,
        model: MODEL_NAME,
        user: "",
        is_streaming: operation.is_always_streaming(),
        has_prefill: false,
        path_options: stated,
    };
    let mut target = Vec::new();
    provider.write_request_target(&request, options, &mut target)?;
    Ok(format!("{method} {base}{}", String::from_utf8(target).unwrap()))
}

#[test]
fn no_case_covers_an_unsupported_operation() {
    for case in all_cases() {
        let (provider, operation) = (case.provider(), case.operation());
        let has = provider.supports(operation) || provider.provider_format(operation, &case.model()).is_some();
        assert!(has, "{}", case.name());
    }
}

#[test]
fn equal_requests_lead_to_equal_responses_at_every_provider() {
    for operation in ["chatComplete", "messages", "createModelResponse"] {
        for case_label in ["complete", "tools"] {
            let requested: Vec<Case> = all_cases()
                .into_iter()
                .filter(|case| case.operation == operation && case.label == case_label)
                .collect();
            for pair in requested.windows(2) {
                assert_eq!(
                    request_without_model(&pair[0]),
                    request_without_model(&pair[1]),
                    "{} {}",
                    pair[0].name(),
                    pair[1].name()
                );
                assert_eq!(summarize_case(&pair[0]), summarize_case(&pair[1]), "{} {}", pair[0].name(), pair[1].name());
            }
        }
    }
}

/// Returns the client request without the model name.
fn request_without_model(case: &Case) -> Value {
    let mut request: Value = serde_json::from_slice(&case.client_request()).unwrap();
    request.as_object_mut().unwrap().remove("model");
    request
}

/// Returns the text, tool calls and finish reason of a response. IDs, models and reasoning differ between providers.
fn summarize_case(case: &Case) -> Vec<String> {
    let UpstreamBody::Complete(bytes) = case.upstream_body() else { panic!("{} is not complete", case.name()) };
    let is_translated = case.provider().provider_format(case.operation(), &case.model()).is_some();
    let result = if is_translated {
        case.translate_request().unwrap().0.translate_response(&bytes).unwrap()
    } else {
        bytes.to_vec()
    };
    let result: Value = serde_json::from_slice(&result).unwrap();
    match case.operation.as_str() {
        "messages" => summarize_message(&result),
        "createModelResponse" => summarize_responses_object(&result),
        _ => summarize_chat_completion(&result),
    }
}

fn summarize_chat_completion(result: &Value) -> Vec<String> {
    let message = &result["choices"][0]["message"];
    let calls = message["tool_calls"].as_array().into_iter().flatten().map(|call| call["function"].to_string());
    let mut content = vec![message["content"].to_string()];
    content.extend(calls);
    content.push(result["choices"][0]["finish_reason"].to_string());
    content
}

fn summarize_responses_object(result: &Value) -> Vec<String> {
    let items = result["output"].as_array().unwrap().iter().filter(|item| item["type"] != "reasoning");
    let describe_item = |item: &Value| format!("{}{}{}", item["content"][0]["text"], item["name"], item["arguments"]);
    items.map(describe_item).chain([result["status"].to_string()]).collect()
}

fn summarize_message(result: &Value) -> Vec<String> {
    let blocks = result["content"].as_array().unwrap().iter().filter(|block| block["type"] != "thinking");
    let describe_item = |block: &Value| format!("{}{}{}", block["text"], block["name"], block["input"]);
    blocks.map(describe_item).chain([result["stop_reason"].to_string()]).collect()
}
