//! Tests of all rows of partners: the hosts that they call, and their required parameters. Integration tests send the
//! requests of the same cases to mock hosts.

use std::collections::BTreeSet;

use penstock_llm::operation::Operation;
use penstock_net::headers::Headers;
use serde::Deserialize;

use super::{super::compile_check, *};
use crate::guardrails::check::Change;
use crate::parse::document_reader::Strictness;

const TEXT: &str = "call ann@mail.example";

/// A function of a partner.
#[derive(Debug, Deserialize)]
struct CompiledCase {
    check: String,
    /// `input` or `output`.
    stage: String,
    parameters: Value,
    /// Expected URL of the call, if the parameters do not change it.
    url: String,
}

fn read_cases() -> Vec<CompiledCase> {
    serde_json::from_str(include_str!("../../../../tests/it/partner_checks.json")).unwrap()
}

#[test]
fn every_partner_has_a_case_and_its_public_host() {
    let cases = read_cases();
    let request = json!({"model": "m", "messages": [{"role": "user", "content": TEXT}]});
    let response = json!({"choices": [{"message": {"role": "assistant", "content": TEXT}}]});
    for case in &cases {
        let compiled = compile_check(&case.check, &case.parameters, "$", Strictness::StrictWithLints)
            .unwrap_or_else(|problems| panic!("{}: {problems:?}", case.check));
        let texts = request_texts(&request);
        let input = CheckInput {
            stage: if case.stage == "output" { Stage::Output } else { Stage::Input },
            operation: Operation::ChatComplete,
            provider: "openai",
            model: "m",
            is_streaming: false,
            metadata: &[],
            headers: &Headers::with_capacity(0),
            request: &request,
            response: &response,
            texts: &texts,
        };
        let call = compiled.check.external_call(&input).unwrap().unwrap();
        assert_eq!(call.url, case.url, "{}", case.check);
        let row = rows().find(|row| row.id == case.check).unwrap();
        let default = row.parameters()["properties"]["timeout"]["default"].as_u64();
        assert_eq!(u128::from(default.unwrap()), call.timeout.as_millis(), "{}", case.check);
        // A check holds a credential, which must not get into logs.
        assert!(!format!("{compiled:?}").contains("k-1"), "{compiled:?}");
    }
    let tested: BTreeSet<&str> = cases.iter().map(|case| case.check.as_str()).collect();
    let known: BTreeSet<&str> = rows().map(|row| row.id).collect();
    assert_eq!(tested, known);
}

#[test]
fn parameters_of_partners_are_validated() {
    let problems = |check: &str, parameters: Value| -> Vec<String> {
        let problems = compile_check(check, &parameters, "$", Strictness::StrictWithLints).unwrap_err();
        assert!(problems.iter().all(|problem| !problem.message.contains("s-1")), "{problems:?}");
        problems.into_iter().map(|problem| problem.path).collect()
    };
    for case in read_cases().iter().filter(|case| !case.check.starts_with("promptfoo.")) {
        let mut parameters = case.parameters.clone();
        parameters.as_object_mut().unwrap().shift_remove("credentials");
        assert_eq!(problems(&case.check, parameters), ["$.parameters.credentials"], "{}", case.check);
    }
    let key = "$.parameters.credentials.apiKey";
    assert_eq!(problems("lakera.guard", json!({"credentials": {}})), [key]);
    assert_eq!(problems("lakera.guard", json!({"credentials": {"apiKey": "s-1\r\nx: y"}})), [key]);
    assert_eq!(problems("lakera.guard", json!({"credentials": {"apiKey": 5}})), [key]);
    assert_eq!(problems("acuvity.scan", json!({"credentials": {"apiKey": "s-1"}})), [key]);
    assert_eq!(
        problems("azure.pii", json!({"credentials": {"pii": {"apiKey": "s-1"}}})),
        ["$.parameters.credentials.pii.resourceName"]
    );
    let resource = |fields: Value| json!({"credentials": {"pii": fields}});
    let missing = |name: &str| vec![format!("$.parameters.credentials.pii.{name}")];
    assert_eq!(problems("azure.pii", resource(json!({"resourceName": "r"}))), missing("apiKey"));
    let application = json!({"resourceName": "r", "azureAuthMode": "entra", "apiKey": "s-1", "tenantId": "t"});
    assert_eq!(problems("azure.pii", resource(application)), missing("clientId"));
    let bad_host = json!({"resourceName": "r", "azureAuthMode": "entra", "tenantId": "t", "clientId": "c",
        "clientSecret": "s-1", "authorityHost": "https://169.254.169.254"});
    assert_eq!(problems("azure.pii", resource(bad_host)), missing("authorityHost"));
    let good = json!({"apiKey": "s-1"});
    for (parameters, path) in [
        (json!({"baseURL": "https://user@host.example"}), "baseURL"),
        (json!({"baseURL": "https://169.254.169.254"}), "baseURL"),
        (json!({"baseURL": "ftp://host.example"}), "baseURL"),
        (json!({"forwardHeaders": ["cookie"]}), "forwardHeaders"),
        (json!({"timeout": 0}), "timeout"),
        (json!({"unknown": 1}), ""),
    ] {
        let mut parameters = parameters;
        parameters["credentials"] = good.clone();
        let path = format!("$.parameters.{path}");
        assert_eq!(problems("lakera.guard", parameters), [path.trim_end_matches('.')]);
    }
    let domain = json!({"credentials": {"apiKey": "s-1", "domain": "x.example/a?"}});
    assert_eq!(problems("pangea.pii", domain), ["$.parameters.credentials.domain"]);
}

/// Returns the call of a check of a request; `None` if there is nothing to send to the partner.
fn ask(check: &str, parameters: &Value, request: &Value) -> Option<Result<ExternalCall, CheckError>> {
    let compiled = compile_check(check, parameters, "$", Strictness::StrictWithLints).unwrap();
    let is_embedding = request["input"].is_string();
    let texts = request_texts(request);
    let input = CheckInput {
        stage: Stage::Input,
        operation: if is_embedding { Operation::Embed } else { Operation::ChatComplete },
        provider: "openai",
        model: "m",
        is_streaming: false,
        metadata: &[],
        headers: &Headers::with_capacity(0),
        request,
        response: &Value::Null,
        texts: &texts,
    };
    let call = compiled.check.external_call(&input);
    if call.is_none() {
        assert!(compiled.check.run(&input).unwrap().verdict);
    }
    call
}

#[allow(clippy::needless_pass_by_value, reason = "the tests pass literals")]
fn read(call: &ExternalCall, reply: Value) -> CheckOutcome {
    (call.read)(200, reply.to_string().as_bytes()).unwrap()
}

fn two_texts() -> Value {
    let parts = json!([{"type": "text", "text": "ann is here"}, {"type": "text", "text": "call ann"}]);
    json!({"messages": [{"role": "user", "content": parts}]})
}

#[test]
fn a_partner_is_not_asked_without_texts() {
    let key = json!({"credentials": {"apiKey": "s-1"}});
    let empty = json!({"messages": [{"role": "user", "content": "  "}]});
    assert!(ask("lakera.guard", &key, &empty).is_none());
    // A search adds nothing to the input of embeddings.
    assert!(ask("exa.online", &key, &json!({"input": "text"})).is_none());
    let policy = json!({"credentials": {"apiKey": "s-1"}, "policies": ["p"], "policy_target": "output"});
    assert!(ask("qualifire.policy", &policy, &two_texts()).is_none());
    assert!(ask("qualifire.toolUseQuality", &key, &two_texts()).unwrap().is_err());
}

#[test]
fn prisma_airs_scans_the_chosen_messages() {
    let message = |role: &str, text: &str| json!({"role": role, "content": text});
    let request = json!({"messages": [message("system", "one"), message("user", "two"), message("user", "three"),
        message("assistant", "four")]});
    for (scope, expected) in [
        ("last_message", "four"),
        ("last_user_message", "three"),
        ("user_messages", "two\nthree"),
        ("all_messages", "one\ntwo\nthree\nfour"),
    ] {
        let airs = json!({"credentials": {"AIRS_API_KEY": "s-1"}, "scan_scope": scope});
        let call = ask("panw-prisma-airs.intercept", &airs, &request).unwrap().unwrap();
        let body: Value = serde_json::from_str(&call.body).unwrap();
        assert_eq!(body["contents"][0]["prompt"], expected, "{scope}");
    }
}

#[test]
fn what_cannot_be_replaced_fails() {
    let f5 = json!({"credentials": {"apiKey": "s-1"}, "projectId": "p", "redact": true});
    let call = ask("f5-guardrails.scan", &f5, &two_texts()).unwrap().unwrap();
    let outcome = read(&call, json!({"result": {"outcome": "redacted"}, "redactedInput": "*** is here\ncall ***"}));
    assert_eq!((outcome.verdict, outcome.change), (false, None));
    let aws = json!({"accessKeyId": "AKIA1", "accessKeySecret": "s-1", "region": "eu-west-1"});
    let guard = json!({"credentials": aws, "guardrailId": "g", "guardrailVersion": "1", "redact": true});
    let call = ask("bedrock.guard", &guard, &two_texts()).unwrap().unwrap();
    let reply = |match_text: &str| {
        let entity = json!({"action": "ANONYMIZED", "match": match_text, "type": "NAME"});
        let policy = json!({"piiEntities": [entity], "regexes": []});
        json!({"action": "GUARDRAIL_INTERVENED", "assessments": [{"sensitiveInformationPolicy": policy}]})
    };
    let texts = vec![(0, "{NAME} is here".to_owned()), (1, "call {NAME}".to_owned())];
    assert_eq!(read(&call, reply("ann")).change, Some(Change::Texts(texts)));
    assert!(!read(&call, reply("bob")).verdict && !read(&call, reply("")).verdict);
    // An intervention that no assessment explains is a denial.
    assert!(!read(&call, json!({"action": "GUARDRAIL_INTERVENED", "assessments": []})).verdict);
}

#[test]
fn results_of_tools_are_documents_of_prompt_shields() {
    let azure = json!({"credentials": {"contentSafety": {"apiKey": "s-1", "customHost": "https://shield.example/"}},
        "scope": "all"});
    let request = json!({"messages": [{"role": "user", "content": "read it"}, {"role": "tool", "tool_call_id": "1", "content": "page"}]});
    let call = ask("azure.shieldPrompt", &azure, &request).unwrap().unwrap();
    assert_eq!(call.url, "https://shield.example/contentsafety/text:shieldPrompt?api-version=2024-09-01");
    assert_eq!(call.body, r#"{"userPrompt":"read it","documents":["page"]}"#);
    let reply =
        json!({"userPromptAnalysis": {"attackDetected": false}, "documentsAnalysis": [{"attackDetected": true}]});
    assert!(!read(&call, reply).verdict);
}

#[test]
fn names_in_results_are_bounded() {
    let categories: Vec<Value> = (0..200).map(|number| json!(format!("{number}{}", "x".repeat(500)))).collect();
    let detectors: Map<String, Value> =
        categories.iter().map(|name| (name.as_str().unwrap().to_owned(), json!({"detected": true}))).collect();
    let pangea = json!({"credentials": {"apiKey": "s-1", "domain": "eu.example"}});
    let call = ask("pangea.textGuard", &pangea, &two_texts()).unwrap().unwrap();
    let outcome = read(&call, json!({"status": "Success", "result": {"detectors": detectors}}));
    let names = outcome.data["detected"].as_array().unwrap();
    assert_eq!((names.len(), names[0].as_str().unwrap().len()), (50, 80));
}
