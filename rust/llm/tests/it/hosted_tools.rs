//! Tools and history items that only the client's own provider has: they are dropped and reported, and the rest of the
//! request is sent.

use penstock_llm::{
    catalog,
    operation::Operation,
    translation::Translation,
    translation_input::{RequestHints, TranslationInput},
};
use serde_json::{Value, json};

const PROVIDERS: [(&str, &str); 7] = [
    ("openai", "m"),
    ("anthropic", "claude-sonnet-4-5"),
    ("google", "gemini-2.5-pro"),
    ("bedrock", "amazon.nova-pro-v1:0"),
    ("bedrock", "anthropic.claude-sonnet-4-5-20250929-v1:0"),
    ("mistral-ai", "m"),
    ("cohere", "m"),
];

fn translate(slug: &str, model: &str, operation: Operation, body: &Value) -> Option<(Translation, Value)> {
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
    // `None` means that the provider has this API itself, so that nothing is translated.
    let format = provider.provider_format(operation, model)?;
    let (translation, sent) = Translation::translate_request(&input, format).unwrap();
    Some((translation, serde_json::from_slice(&sent).unwrap()))
}

/// Bodies of each client format with a function `f`, the tools, and the choice.
fn bodies(tool: &Value, is_chosen: bool) -> [(Operation, Value); 5] {
    let name = tool.get("name").or_else(|| tool.get("type")).cloned().unwrap_or_default();
    let turn = json!([{"role": "user", "content": "x"}]);
    let schema = json!({"type": "object"});
    let with_choice = |mut body: Value, key: &str, choice: Value| {
        if is_chosen {
            body[key] = choice;
        }
        body
    };
    let chat = json!({"model": "m", "messages": turn,
        "tools": [{"type": "function", "function": {"name": "f"}}, tool]});
    let messages = json!({"model": "m", "max_tokens": 9, "messages": turn,
        "tools": [{"name": "f", "input_schema": schema}, tool]});
    let responses = json!({"model": "m", "input": "x", "tools": [{"type": "function", "name": "f"}, tool]});
    let native = json!({name.as_str().unwrap_or("x"): {}});
    let contents = json!({"contents": [{"role": "user", "parts": [{"text": "x"}]}],
        "tools": [{"functionDeclarations": [{"name": "f"}]}, native]});
    let converse = json!({"messages": [{"role": "user", "content": [{"text": "x"}]}],
        "toolConfig": {"tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": schema}}}, native]}});
    [
        (Operation::ChatComplete, with_choice(chat, "tool_choice", json!({"function": {"name": name}}))),
        (Operation::Messages, with_choice(messages, "tool_choice", json!({"type": "tool", "name": name}))),
        (Operation::CreateModelResponse, with_choice(responses, "tool_choice", tool.clone())),
        (Operation::GenerateContent, contents),
        (Operation::Converse, converse),
    ]
}

#[test]
fn hosted_tools_of_other_providers_are_left_out_and_listed() {
    let mut checked = 0;
    for tool in [
        json!({"type": "web_search"}),
        json!({"type": "web_search_20250305", "name": "web_search"}),
        json!({"type": "bash_20250124", "name": "bash"}),
        json!({"type": "mcp", "server_label": "s", "server_url": "https://mcp.example"}),
        json!({"type": "googleSearch"}),
        json!({"type": "never_heard_of"}),
    ] {
        let kind = tool["type"].as_str().unwrap();
        let is_of = |slug: &str, model: &str| match slug {
            "google" => kind == "googleSearch" || kind == "web_search",
            "anthropic" => kind.ends_with("20250305") || kind.ends_with("20250124"),
            _ => model.starts_with("anthropic.") && kind.contains("2025"),
        };
        for (slug, model) in PROVIDERS {
            for is_chosen in [false, true] {
                for (operation, body) in bodies(&tool, is_chosen) {
                    let Some((translation, sent)) = translate(slug, model, operation, &body) else { continue };
                    let case = format!("{kind} for {slug} {model} {operation:?}: {sent}");
                    assert!(sent.to_string().contains("\"f\""), "{case}");
                    let dropped = translation.dropped_params.header_value();
                    // Hosts of Claude get Messages requests in their own format. In the formats of Gemini and Converse,
                    // tools have no type. Both are not checked.
                    let is_checked = match operation {
                        Operation::Messages => !model.contains("claude"),
                        operation => !matches!(operation, Operation::GenerateContent | Operation::Converse),
                    };
                    if !is_of(slug, model) && is_checked {
                        assert!(!sent.to_string().contains(kind), "{case}");
                        assert!(dropped.contains(&format!("tools.{kind}")), "{case} dropped {dropped}");
                        assert!(!is_chosen || dropped.contains("tool_choice"), "{case} dropped {dropped}");
                        checked += 1;
                    }
                }
            }
        }
    }
    assert!(checked > 100, "{checked}");
}

#[test]
fn a_forced_choice_without_a_tool_that_is_left_is_left_out() {
    let tools = json!([{"type": "web_search_20250305", "name": "web_search"}]);
    let body = json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}],
        "tools": tools, "tool_choice": {"type": "any"}});
    for (slug, model) in PROVIDERS.into_iter().filter(|(_, model)| !model.contains("claude")) {
        let Some((translation, sent)) = translate(slug, model, Operation::Messages, &body) else { continue };
        assert!(sent.get("tools").is_none() && sent.get("tool_choice").is_none(), "{slug}: {sent}");
        let dropped = translation.dropped_params.header_value();
        assert_eq!(dropped, "tools.web_search_20250305, tool_choice", "{slug}");
    }
}

#[test]
fn unknown_items_of_a_history_are_left_out_but_references_are_rejected() {
    let body = |item: Value| {
        json!({"model": "m", "input": [{"role": "user", "content": "x"}, item],
        "tools": [{"type": "namespace", "name": "n", "tools": [{"type": "web_search"}, {"type": "function", "name": "g"}]}]})
    };
    for (slug, model) in PROVIDERS {
        let item = json!({"type": "never_heard_of", "id": "x"});
        let Some((translation, sent)) = translate(slug, model, Operation::CreateModelResponse, &body(item)) else {
            continue;
        };
        assert!(sent.to_string().contains("n__g"), "{slug}: {sent}");
        let dropped = translation.dropped_params.header_value();
        assert!(dropped.contains("input.never_heard_of") && dropped.contains("tools.web_search"), "{slug}: {dropped}");
    }
    let reference = body(json!({"type": "item_reference", "id": "x"})).to_string().into_bytes();
    let provider = catalog::find_provider("anthropic").unwrap();
    let input = TranslationInput {
        operation: Operation::CreateModelResponse,
        provider: provider.row(),
        body: &reference,
        model: "m",
        hints: RequestHints::default(),
        strict: true,
        now_ms: 0,
        nonce: 7,
    };
    let format = provider.provider_format(Operation::CreateModelResponse, "m").unwrap();
    let error = Translation::translate_request(&input, format).err().unwrap();
    assert!(error.to_string().contains("send the item itself"), "{error}");
}
