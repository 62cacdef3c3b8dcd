//! All providers are asked the same questions, and what comes back to the caller says the same, whoever answered.
#![allow(clippy::unwrap_used, clippy::panic)] // Clippy does not see that all of this is a test.

mod golden_cases;

use std::collections::BTreeSet;

use golden_cases::{Answered, Case, cases};
use penstock_llm::{
    dialect::Dialect,
    files::{Bucket, Keeper},
    operation::Operation,
    providers::{self, Asked, Options, Provider, Stated},
    translation,
};
use serde_json::Value;

/// What every provider has to show for an operation that reaches it in translation.
const NEEDED: [&str; 3] = ["whole", "stream", "error"];

#[test]
fn every_translated_operation_of_every_provider_has_its_cases() {
    let known: BTreeSet<_> = cases().iter().map(Case::name).collect();
    let mut missing = Vec::new();
    for provider in providers::all() {
        for operation in Operation::ALL.iter().filter(|one| provider.wire(**one, "").is_some() && !is_by_callers(**one))
        {
            // What does not talk does not stream.
            let needed = NEEDED.iter().filter(|case| **case != "stream" || translation::is_talk(*operation));
            let names = needed.map(|case| format!("{}/{}/{case}", provider.slug(), operation.id()));
            missing.extend(names.filter(|name| !known.contains(name)));
        }
    }
    assert!(missing.is_empty(), "no golden cases: {missing:#?}");
}

/// Clients of two vendors' own: `callers.rs` asks every provider in their name, and has the few files that show how it looks.
fn is_by_callers(operation: Operation) -> bool {
    matches!(operation.dialect(), Some(Dialect::Gemini | Dialect::Bedrock)) && operation != Operation::CountTokens
}

/// What providers are told besides a credential, for all of them.
const OPTIONS: [(&str, &str); 16] = [
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
fn every_provider_is_asked_for_each_of_its_operations_where_its_file_says() {
    let wrong: Vec<_> = providers::all()
        .filter_map(|provider| golden_cases::of_provider(provider.slug(), "targets.txt", &targets(provider)))
        .collect();
    assert!(wrong.is_empty(), "{}\nhint: UPDATE_GOLDEN=1 writes what is", wrong.join("\n"));
}

/// A line for each operation that somebody offers, in the caller's dialect or in its own, and one for what it is asked unread.
fn targets(provider: &'static dyn Provider) -> String {
    let mut options = Options::default();
    for option in provider.options() {
        let value = OPTIONS.iter().find(|(key, _)| *key == option.key);
        if let Some((_, value)) = value {
            options.put(*option, (*value).to_owned());
        }
    }
    let served = Operation::ALL.iter().filter(|operation| provider.serves(**operation));
    let lines = served.chain([&Operation::Proxy]).map(|operation| {
        let is_told = provider.wire(*operation, MODEL).is_some() || keeper(provider, *operation).is_some();
        let way = if is_told { "told" } else { "as it is" };
        let target = target(provider, *operation, &options).unwrap_or_else(|refusal| format!("({refusal})"));
        format!("{} {target}, {way}\n", operation.id())
    });
    lines.collect()
}

const MODEL: &str = "model-1";

/// Who is asked for an operation about files.
fn keeper(provider: &dyn Provider, operation: Operation) -> Option<Keeper> {
    provider.keeper().filter(|_| operation.is_of_files())
}

fn target(provider: &'static dyn Provider, operation: Operation, options: &Options) -> Result<String, String> {
    let (method, path) = operation.route().unwrap_or(("GET", "/v1/anything"));
    let file = |bucket: &Bucket| format!("{}%3A%2F%2Fbucket%2Fa.jsonl", bucket.scheme);
    let id = keeper(provider, operation).and_then(Keeper::bucket).map_or_else(|| "id-1".to_owned(), file);
    let path = path.replace(":id", &id).replace('*', MODEL);
    let base = provider.base(operation, options)?.unwrap_or_else(|| provider.base_url().to_owned());
    let prefix = base.split_once("://").and_then(|(_, rest)| rest.find('/').map(|at| &rest[at..])).unwrap_or_default();
    let stated = Stated::default();
    let asked = Asked {
        operation,
        path: &path,
        query: "",
        prefix,
        model: MODEL,
        user: "",
        streams: operation.streams(),
        begun: false,
        stated,
    };
    let mut target = Vec::new();
    provider.write_target(&asked, options, &mut target)?;
    Ok(format!("{method} {base}{}", String::from_utf8(target).unwrap()))
}

#[test]
fn no_case_is_of_a_provider_that_is_not_translated() {
    for case in cases() {
        let provider = providers::find(&case.provider).unwrap_or_else(|| panic!("{}", case.name()));
        assert!(provider.wire(case.operation(), &case.model()).is_some(), "{}", case.name());
    }
}

#[test]
fn everybody_is_asked_the_same_and_what_everybody_says_is_told_the_same() {
    for operation in ["chatComplete", "messages", "createModelResponse"] {
        for question in ["whole", "tools"] {
            let asked: Vec<Case> =
                cases().into_iter().filter(|case| case.operation == operation && case.label == question).collect();
            for pair in asked.windows(2) {
                assert_eq!(question_of(&pair[0]), question_of(&pair[1]), "{} {}", pair[0].name(), pair[1].name());
                assert_eq!(told(&pair[0]), told(&pair[1]), "{} {}", pair[0].name(), pair[1].name());
            }
        }
    }
}

/// The question without the model's name.
fn question_of(case: &Case) -> Value {
    let mut asked: Value = serde_json::from_slice(&case.asked()).unwrap();
    asked.as_object_mut().unwrap().remove("model");
    asked
}

/// The words of the answer, the tools it calls and how it ended: ids, models and thoughts are the provider's own.
fn told(case: &Case) -> Vec<String> {
    let (translation, _) = case.translation().unwrap();
    let Answered::Whole(bytes) = case.answered() else { panic!("{} is not whole", case.name()) };
    let told: Value = serde_json::from_slice(&translation.whole(&bytes).unwrap()).unwrap();
    match case.operation.as_str() {
        "messages" => message(&told),
        "createModelResponse" => response(&told),
        _ => completion(&told),
    }
}

fn completion(told: &Value) -> Vec<String> {
    let message = &told["choices"][0]["message"];
    let calls = message["tool_calls"].as_array().into_iter().flatten().map(|call| call["function"].to_string());
    let mut said = vec![message["content"].to_string()];
    said.extend(calls);
    said.push(told["choices"][0]["finish_reason"].to_string());
    said
}

fn response(told: &Value) -> Vec<String> {
    let items = told["output"].as_array().unwrap().iter().filter(|item| item["type"] != "reasoning");
    let told_of = |item: &Value| format!("{}{}{}", item["content"][0]["text"], item["name"], item["arguments"]);
    items.map(told_of).chain([told["status"].to_string()]).collect()
}

fn message(told: &Value) -> Vec<String> {
    let blocks = told["content"].as_array().unwrap().iter().filter(|block| block["type"] != "thinking");
    let told_of = |block: &Value| format!("{}{}{}", block["text"], block["name"], block["input"]);
    blocks.map(told_of).chain([told["stop_reason"].to_string()]).collect()
}
