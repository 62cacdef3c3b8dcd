//! Comparison of two versions of a prompt: results, sums, failures of single runs, and errors.

use serde_json::{Value, json};

use crate::{
    harness::{TestGateway, TestRequest, TestResponse, golden_provider::GoldenProvider},
    prompts::{CHAT_RESPONSE, greeting_prompts, start_gateway},
};

async fn compare(gateway: &TestGateway, name: &str, body: &Value) -> TestResponse {
    let request = TestRequest::new("POST", &format!("/v1/prompts/{name}/compare"));
    let request = request.header("content-type", "application/json").header("idempotency-key", "once");
    gateway.send(request.header("x-gateway-api-key", "pk").body(body.to_string())).await
}

async fn start_comparison() -> (GoldenProvider, TestGateway) {
    let provider = GoldenProvider::start(200, "application/json", CHAT_RESPONSE.into(), 4096).await;
    let gateway = start_gateway(&provider, &greeting_prompts());
    (provider, gateway)
}

#[tokio::test]
async fn both_versions_run_with_each_set_of_variables() {
    let (provider, gateway) = start_comparison().await;
    let sets = json!([{"name": "Ann", "tone": "kind"}, {"name": "Bo"}]);
    let body = json!({"versions": ["production", "@latest"], "variables": sets,
        "hyperparameters": {"temperature": 1, "stream": true}});
    let response = compare(&gateway, "greeting", &body).await;
    assert_eq!(response.status, 200, "{}", response.text());
    let comparison = response.json();
    assert_eq!(
        (&comparison["object"], &comparison["prompt"]),
        (&json!("prompt_comparison"), &json!({"id": "p1", "slug": "greeting"}))
    );
    for (set, variables) in sets.as_array().unwrap().iter().enumerate() {
        let run = &comparison["runs"][set];
        assert_eq!(&run["variables"], variables);
        for (side, version) in [(0, 1), (1, 2)] {
            let result = &run["results"][side];
            assert_eq!(
                (&result["version"], &result["status"], &result["output"]),
                (&json!(version), &json!(200), &json!("Hi"))
            );
            assert_eq!((&result["input_tokens"], &result["output_tokens"]), (&json!(1), &json!(1)));
            assert!(result["time_ms"].as_f64().unwrap() >= 0.0 && result["error"].is_null());
            assert_eq!(result["response"]["id"], "c");
        }
    }
    assert_eq!(comparison["runs"][1]["results"][0]["missing_variables"], json!(["tone"]));
    for (side, selector) in [(0, "production"), (1, "latest")] {
        let totals = &comparison["versions"][side];
        assert_eq!((&totals["selector"], &totals["version"]), (&json!(selector), &json!(side + 1)));
        assert_eq!((&totals["failed"], &totals["input_tokens"]), (&json!(0), &json!(2)));
    }
    // Each run is a request with a record of its own, which names its version.
    let records = gateway.drain_records();
    let mut versions: Vec<_> = records.iter().map(|record| record["prompt_version"].as_u64().unwrap()).collect();
    versions.sort_unstable();
    assert_eq!(versions, [1, 1, 2, 2]);
    assert!(records.iter().all(|record| record["source"] == "comparison"));
    let ids: Vec<_> = records.iter().map(|record| record["id"].as_str().unwrap()).collect();
    assert!(ids.contains(&comparison["runs"][0]["results"][0]["log_id"].as_str().unwrap()));
    let (head, sent) = provider.parse_last_request();
    assert!(!head.contains("idempotency-key"), "{head}");
    assert!(sent.get("stream").is_none() && sent["temperature"] == 1, "{sent}");
}

#[tokio::test]
async fn a_failed_run_does_not_end_the_others() {
    let (_provider, gateway) = start_comparison().await;
    let mut prompts = greeting_prompts();
    prompts[0]["versions"][0]["content"]["string"] = json!("[{\"role\": \"user\", \"content\": \"{{>none}}\"}]");
    gateway.apply_snapshot(&json!({"epoch": "2", "since": "1", "parts": [{"name": "prompts/00", "prompts": prompts}],
        "workspaces": [{"id": "w", "slug": "here", "organisation_id": "o"}],
        "keys": [{"id": "k", "workspace": "w", "sha256": crate::harness::sha256_hex("pk")}]}));
    let comparison = compare(&gateway, "p1", &json!({"versions": [1, 2], "variables": [{}]})).await.json();
    let results = &comparison["runs"][0]["results"];
    assert_eq!((&results[0]["status"], &results[0]["error"]["code"]), (&json!(400), &json!("prompt_not_rendered")));
    assert!(results[0]["error"]["message"].as_str().unwrap().contains("the partial `none` does not exist"));
    assert_eq!(results[0]["version"], 1);
    // The provider is not in this snapshot, so version 2 fails for another reason.
    assert_eq!(results[1]["error"]["code"], "not_found_in_workspace", "{comparison}");
    assert_eq!((&comparison["versions"][0]["failed"], &comparison["versions"][1]["failed"]), (&json!(1), &json!(1)));
    assert_eq!(comparison["versions"][0]["cost"], Value::Null);
}

#[tokio::test]
async fn nothing_runs_if_the_request_is_not_valid() {
    let (provider, gateway) = start_comparison().await;
    let good = json!({"versions": [1, 2], "variables": [{}]});
    for (name, body, status, code) in [
        ("none", good.clone(), 404, "prompt_not_found"),
        ("greeting@1", good, 400, "invalid_prompt_request"),
        ("greeting", json!({"versions": [1, 9], "variables": [{}]}), 404, "prompt_version_not_found"),
        ("greeting", json!({"versions": [1, "x"], "variables": [{}]}), 404, "prompt_version_not_found"),
        ("greeting", json!({"versions": [1], "variables": [{}], "model": "m"}), 400, "invalid_prompt_request"),
    ] {
        let refused = compare(&gateway, name, &body).await;
        assert_eq!((refused.status, refused.error_code().as_str()), (status, code), "{name} {body}");
    }
    assert!(provider.request_lines.lock().unwrap().is_empty() && gateway.drain_records().is_empty());
    let unauthorised_request =
        TestRequest::new("POST", "/v1/prompts/greeting/compare").header("x-gateway-api-key", "no");
    assert_eq!(gateway.send(unauthorised_request.body("{}")).await.status, 401);
}
