//! Parameter mapping tables of the providers. Every row of every table is tested, and the tables match the
//! documentation of the providers.

use penstock_llm::{
    catalog::{self, ParamRules, Provider},
    operation::Operation,
};
use serde_json::{Value, json};

/// Iterates over the parameter rules of every provider and operation.
fn all_param_rules() -> impl Iterator<Item = (&'static dyn Provider, Operation, &'static ParamRules)> {
    catalog::all_providers().flat_map(|provider| {
        [Operation::ChatComplete, Operation::Complete, Operation::Embed]
            .map(|operation| (provider, operation, provider.row().param_rules(operation)))
    })
}

/// Returns the mapped body and the names of the dropped parameters; the same body if no rule applies.
fn apply_rules(rules: &ParamRules, body: &Value) -> (Value, String) {
    match rules.apply(body.to_string().as_bytes()) {
        Some((sent, lost)) => (serde_json::from_slice(&sent).unwrap(), lost.header_value()),
        None => (body.clone(), String::new()),
    }
}

fn body_with_field(key: &str, value: &Value) -> Value {
    let mut body = json!({"model": "m", "kept": 1, "stop": ["a"]});
    body[key] = value.clone();
    body
}

#[test]
fn renames_fields_and_accepts_the_providers_own_names() {
    let mut case_count = 0;
    for (provider, operation, rules) in all_param_rules() {
        for (from, to) in rules.renames {
            let name = format!("{} {operation:?} {from}", provider.slug());
            let value = json!("1.50");
            let (outer, expected) = match to.split_once('.') {
                Some((outer, inner)) => (outer, json!({inner: value})),
                None => (*to, value.clone()),
            };
            assert_eq!(
                apply_rules(rules, &body_with_field(from, &value)),
                (body_with_field(outer, &expected), String::new()),
                "{name}"
            );
            let own = body_with_field(outer, &expected);
            assert_eq!(apply_rules(rules, &own), (own, String::new()), "{name}");
            case_count += 1;
        }
    }
    assert!(case_count > 30, "{case_count}");
}

#[test]
fn maps_values_and_roles_to_those_of_the_provider() {
    for (provider, _, rules) in all_param_rules() {
        for (field, from, to) in rules.value_map {
            let [from, to] = [from, to].map(|word| serde_json::from_str(word).unwrap());
            assert_eq!(
                apply_rules(rules, &body_with_field(field, &from)).0,
                body_with_field(field, &to),
                "{} {field}",
                provider.slug()
            );
            assert_eq!(
                apply_rules(rules, &body_with_field(field, &to)).0,
                body_with_field(field, &to),
                "{} {field}",
                provider.slug()
            );
        }
        for (from, to) in rules.role_map {
            let messages = |role: &str| {
                let role: Value = serde_json::from_str(role).unwrap();
                body_with_field("messages", &json!([{"role": role, "content": role}, {"role": "user", "content": "x"}]))
            };
            let mut expected = messages(to);
            expected["messages"][0]["content"] = serde_json::from_str(from).unwrap();
            assert_eq!(apply_rules(rules, &messages(from)).0, expected, "{}", provider.slug());
            assert_eq!(apply_rules(rules, &messages(to)).0, messages(to), "{}", provider.slug());
        }
    }
}

#[test]
fn drops_and_reports_unsupported_fields() {
    for (provider, _, rules) in all_param_rules() {
        for name in rules.dropped_fields {
            let (sent, lost) = apply_rules(rules, &body_with_field(name, &json!(["x"])));
            assert!(sent.get(*name).is_none(), "{} {name}", provider.slug());
            assert_eq!((sent["stop"].clone(), lost.as_str()), (json!(["a"]), *name), "{}", provider.slug());
        }
    }
}

#[test]
fn drops_redundant_fields_without_a_report() {
    let mut case_count = 0;
    for (provider, _, rules) in all_param_rules() {
        for name in rules.ignored_fields {
            let (sent, lost) = apply_rules(rules, &body_with_field(name, &json!({"x": true})));
            assert_eq!((sent.get(*name), lost.as_str()), (None, ""), "{} {name}", provider.slug());
            case_count += 1;
        }
    }
    assert!(case_count > 0);
}

#[test]
fn drops_unsupported_message_fields_except_in_their_role() {
    for (provider, _, rules) in all_param_rules() {
        for (name, role) in rules.dropped_message_fields {
            let messages = json!([{"role": "user", *name: "x", "content": name}, {"role": "tool", *name: "y"}]);
            let mut expected = messages.clone();
            expected[0].as_object_mut().unwrap().shift_remove(*name);
            if role.is_empty() {
                expected[1].as_object_mut().unwrap().shift_remove(*name);
            }
            let (sent, lost) = apply_rules(rules, &body_with_field("messages", &messages));
            assert_eq!((&sent["messages"], lost), (&expected, format!("messages.{name}")), "{}", provider.slug());
            let (sent, lost) =
                apply_rules(rules, &body_with_field("messages", &json!([{*name: null, "role": "user"}])));
            assert_eq!((&sent["messages"], lost.as_str()), (&json!([{"role": "user"}]), ""), "{}", provider.slug());
        }
    }
}

#[test]
fn drops_and_reports_cache_hints_where_they_are_unsupported() {
    let hint = json!({"type": "ephemeral"});
    let request_with_hint = |hint: &Value| {
        json!({"model": "m", "tools": [{"type": "function", "function": {"name": "f"}, "cache_control": hint}],
            "messages": [{"role": "system", "content": "a cache_control", "cache_control": hint},
                {"role": "user", "content": [{"type": "text", "text": "b cache_control", "cache_control": hint}]}]})
    };
    let expected = json!({"model": "m", "tools": [{"type": "function", "function": {"name": "f"}}],
        "messages": [{"role": "system", "content": "a cache_control"},
            {"role": "user", "content": [{"type": "text", "text": "b cache_control"}]}]});
    for slug in ["mistral-ai", "groq", "cerebras"] {
        let rules = catalog::find_provider(slug).unwrap().row().param_rules(Operation::ChatComplete);
        assert_eq!(apply_rules(rules, &request_with_hint(&hint)), (expected.clone(), "cache_control".into()), "{slug}");
        assert_eq!(apply_rules(rules, &request_with_hint(&Value::Null)), (expected.clone(), String::new()), "{slug}");
        assert_eq!(apply_rules(rules, &expected), (expected.clone(), String::new()), "{slug}");
    }
    // Other providers receive the cache hints, because some of them host Claude.
    for slug in ["openai", "openrouter"] {
        let rules = catalog::find_provider(slug).unwrap().row().param_rules(Operation::ChatComplete);
        assert_eq!(apply_rules(rules, &request_with_hint(&hint)), (request_with_hint(&hint), String::new()), "{slug}");
    }
}

#[test]
fn clamps_and_reports_numbers_out_of_range() {
    for (provider, _, rules) in all_param_rules() {
        for (name, least, most) in rules.ranges {
            let [least, maximum]: [Value; 2] = [least, most].map(|end| serde_json::from_str(end).unwrap());
            for (result, expected, lost) in [
                (json!(-9), &least, *name),
                (json!(9999.5), &maximum, *name),
                (maximum.clone(), &maximum, ""),
                (json!(null), &json!(null), ""),
            ] {
                let expected = (body_with_field(name, expected), lost.to_owned());
                assert_eq!(
                    apply_rules(rules, &body_with_field(name, &result)),
                    expected,
                    "{} {result}",
                    provider.slug()
                );
            }
        }
    }
}

/// Documented ranges of chat parameters: provider, parameter, value that the client sends, and clamped value. `OpenAI`
/// enforces its own ranges.
const CLAMPED_PARAMS: [(&str, &str, f64, f64); 13] = [
    ("deepseek", "temperature", -0.5, 0.0),
    ("deepseek", "top_logprobs", 30.0, 20.0),
    ("together-ai", "temperature", 2.5, 2.0),
    ("groq", "top_p", 1.5, 1.0),
    ("ai21", "temperature", 1.5, 1.0),
    ("ollama", "frequency_penalty", -3.0, -2.0),
    ("fireworks-ai", "top_k", 500.0, 128.0),
    ("perplexity-ai", "top_k", -1.0, 0.0),
    ("azure-ai", "presence_penalty", 3.0, 2.0),
    ("deepinfra", "n", 2.0, 1.0),
    ("perplexity-ai", "n", 3.0, 1.0),
    ("predibase", "temperature", 1.5, 1.0),
    ("fireworks-ai", "n", 200.0, 128.0),
];

#[test]
fn clamps_to_documented_ranges_but_not_for_openai() {
    for (slug, name, request, expected) in CLAMPED_PARAMS {
        let rules = catalog::find_provider(slug).unwrap().row().param_rules(Operation::ChatComplete);
        let (sent, lost) = apply_rules(rules, &body_with_field(name, &json!(request)));
        assert_eq!((sent[name].as_f64(), lost.as_str()), (Some(expected), name), "{slug} {name}");
    }
    for operation in [Operation::ChatComplete, Operation::Complete] {
        for slug in ["openai", "azure-openai", "mock"] {
            assert!(catalog::find_provider(slug).unwrap().row().param_rules(operation).ranges.is_empty(), "{slug}");
        }
    }
    for slug in ["anyscale", "fireworks-ai", "github", "lambda", "lepton", "nebius", "nextbit", "x-ai"] {
        let rules = catalog::find_provider(slug).unwrap().row().param_rules(Operation::Complete);
        let (sent, lost) = apply_rules(rules, &body_with_field("temperature", &json!(2.5)));
        assert_eq!((sent["temperature"].as_f64(), lost.as_str()), (Some(2.0), "temperature"), "{slug}");
    }
    let bounded =
        |operation: &&'static dyn Provider| !operation.row().param_rules(Operation::ChatComplete).ranges.is_empty();
    assert!(catalog::all_providers().filter(bounded).count() > 50);
}

#[test]
fn drops_zero_where_the_neutral_value_is_another_number() {
    let mut case_count = 0;
    for (provider, _, rules) in all_param_rules() {
        for name in rules.zero_is_default {
            let without = json!({"model": "m", "kept": 1, "stop": ["a"]});
            for zero in [json!(0), json!(0.0)] {
                assert_eq!(
                    apply_rules(rules, &body_with_field(name, &zero)),
                    (without.clone(), String::new()),
                    "{}",
                    provider.slug()
                );
            }
            case_count += 1;
        }
    }
    assert!(case_count > 2, "{case_count}");
}

/// Parameters that strict provider APIs reject, according to their documentation and their 400 and 422 responses.
const REJECTED_PARAMS: [(&str, &[&str]); 4] = [
    ("mistral-ai", &["user", "stream_options", "logit_bias", "logprobs", "store", "service_tier", "safety_identifier"]),
    ("groq", &["logit_bias", "logprobs", "prompt_cache_key", "store", "safety_identifier", "verbosity"]),
    ("cerebras", &["metadata", "prompt_cache_key", "store", "verbosity"]),
    ("fireworks-ai", &["store", "safety_identifier", "verbosity"]),
];

#[test]
fn does_not_send_rejected_parameters_to_strict_providers() {
    for (slug, fields) in REJECTED_PARAMS {
        let rules = catalog::find_provider(slug).unwrap().row().param_rules(Operation::ChatComplete);
        for name in fields {
            assert!(apply_rules(rules, &body_with_field(name, &json!("x"))).0.get(*name).is_none(), "{slug} {name}");
        }
    }
}

/// Chat parameters that providers rename: client name, provider name, and the providers.
const DOCUMENTED_RENAMES: [(&str, &str, &[&str]); 6] = [
    (
        "max_completion_tokens",
        "max_tokens",
        &[
            "anyscale",
            "deepbricks",
            "deepinfra",
            "deepseek",
            "fireworks-ai",
            "huggingface",
            "lingyi",
            "mistral-ai",
            "moonshot",
            "ncompass",
            "novita-ai",
            "ollama",
            "openrouter",
            "perplexity-ai",
            "together-ai",
            "workers-ai",
        ],
    ),
    ("seed", "random_seed", &["mistral-ai"]),
    ("safe_mode", "safe_prompt", &["mistral-ai"]),
    ("frequency_penalty", "repetition_penalty", &["perplexity-ai", "together-ai"]),
    ("thinking", "think", &["ollama"]),
    ("reasoning_effort", "reasoning.effort", &["openrouter"]),
];

#[test]
fn tables_contain_the_documented_renames() {
    let rules = |slug, operation| catalog::find_provider(slug).unwrap().row().param_rules(operation);
    for (from, to, slugs) in DOCUMENTED_RENAMES {
        for slug in slugs {
            assert!(rules(slug, Operation::ChatComplete).renames.contains(&(from, to)), "{slug} {from}");
        }
    }
    for slug in ["novita-ai", "together-ai"] {
        let renames = rules(slug, Operation::Complete).renames;
        assert_eq!(renames, [("frequency_penalty", "repetition_penalty")], "{slug}");
    }
    assert_eq!(rules("mistral-ai", Operation::ChatComplete).value_map, [("tool_choice", "\"required\"", "\"any\"")]);
    for slug in ["openai", "azure-openai", "mock"] {
        assert!(rules(slug, Operation::ChatComplete).is_identity(), "{slug}");
    }
}

#[test]
fn only_openai_keeps_the_developer_role() {
    for provider in catalog::all_providers().filter(|operation| operation.supports_natively(Operation::ChatComplete)) {
        let keeps = ["openai", "azure-openai", "bedrock-mantle", "mock"].contains(&provider.slug());
        let rules = provider.row().param_rules(Operation::ChatComplete);
        assert_eq!(rules.role_map.is_empty(), keeps, "{}", provider.slug());
    }
}
