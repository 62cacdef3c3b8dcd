//! Choice of deployment and model at a provider. Deployments and models from any source must be allowed ones.

use crate::harness::{CHAT_PATH, MESSAGES_PATH, TestRequest, chat_body, golden_provider::GoldenProvider};
use serde_json::{Value, json};

#[tokio::test]
async fn config_maps_models_to_deployments() {
    let deployments = json!([{"deployment_id": "d1", "alias": "gpt-4o", "api_version": "2024-10-21"},
        {"deployment_id": "d2", "alias": "o3", "api_version": "v1", "is_default": true}]);
    for (path, model, line, upstream_model) in [
        (CHAT_PATH, "gpt-4o", "POST /deployments/d1/chat/completions?api-version=2024-10-21 ", "gpt-4o"),
        // This path contains no deployment, so the body names it.
        (CHAT_PATH, "other", "POST /v1/chat/completions ", "d2"),
        (MESSAGES_PATH, "other", "POST /v1/chat/completions ", "d2"),
        ("/v1/responses", "gpt-4o", "POST /responses?api-version=2024-10-21 ", "d1"),
        ("/v1/responses", "other", "POST /v1/responses ", "d2"),
    ] {
        let golden_provider = GoldenProvider::start(200, "application/json", b"{}".to_vec(), 50).await;
        let config = json!({"provider": "azure-openai", "api_key": "k", "resource_name": "r",
            "custom_host": golden_provider.server.url(), "deployments": deployments});
        let request =
            TestRequest::new("POST", path).header("content-type", "application/json").body(chat_body(model, false));
        let response = GoldenProvider::gateway_trusting_loopback()
            .send(request.header("x-gateway-config", &config.to_string()))
            .await;
        let (head, body) = golden_provider.parse_last_request();
        assert!(head.starts_with(line), "{head} {}", response.text());
        assert_eq!(body["model"], upstream_model, "{path} {head}");
    }
}

#[tokio::test]
async fn model_override_must_be_allowed() {
    let golden_provider = GoldenProvider::start(200, "application/json", b"{}".to_vec(), 50).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let options = json!({"aws_region": "eu-west-1"});
    gateway.apply_snapshot(&json!({"epoch": "1",
        "providers": [{"slug": "br", "provider": "bedrock", "api_key": "k", "custom_host": golden_provider.server.url(),
            "models": "m", "options": options}],
        "models": [{"id": "m", "allow_all": false, "models": [{"slug": "good", "enabled": true}, {"slug": "fine", "enabled": true}]}]}));
    let build_request = |name: &str, model: &str| {
        let build_request = TestRequest::new("POST", CHAT_PATH)
            .header("x-gateway-provider", "@br")
            .header("content-type", "application/json");
        build_request.header(&format!("x-gateway-{name}"), model).body(chat_body("good", false))
    };
    for name in ["aws-bedrock-model", "provider-model"] {
        let response = gateway.send(build_request(name, "bad")).await;
        assert_eq!((response.status, response.error_code().as_str()), (403, "model_not_allowed"), "{name}");
    }
    assert_eq!(golden_provider.server.connection_count(), 0);
    gateway.send(build_request("provider-model", "fine")).await;
    assert!(
        golden_provider.parse_last_request().0.starts_with("POST /model/fine/converse "),
        "{}",
        golden_provider.parse_last_request().0
    );
}

#[tokio::test]
async fn deployment_override_must_be_allowed() {
    let golden_provider = GoldenProvider::start(200, "application/json", b"{}".to_vec(), 50).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let row = |slug: &str, provider: &str, options: Value| json!({"slug": slug, "provider": provider, "api_key": "k", "models": "m", "options": options, "custom_host": golden_provider.server.url()});
    let azure = json!({"resource_name": "res", "api_version": "2024-10-21"});
    let mut usual = azure.clone();
    usual["deployment_id"] = json!("usual");
    gateway.apply_snapshot(&json!({"epoch": "1",
        "providers": [row("az", "azure-openai", azure), row("usual", "azure-openai", usual),
            row("db", "databricks", json!({"databricks_workspace": "w"}))],
        "models": [{"id": "m", "allow_all": false, "models": [{"slug": "good", "enabled": true},
            {"slug": "own", "enabled": true, "options": {"deployment_id": "its-own"}}]}]}));
    let build_request = |provider: &str, path: &str, model: &str| {
        let build_request = TestRequest::new("POST", path).header("x-gateway-provider", provider);
        build_request.header("content-type", "application/json").body(chat_body(model, false))
    };
    let alias = json!({"provider": "@az", "deployments": [{"alias": "good", "deployment_id": "bad", "api_version": "2024-10-21"}]});
    for (at, request) in [
        build_request("@az", CHAT_PATH, "good").header("x-gateway-azure-deployment-id", "bad"),
        build_request("@az", "/v1/proxy/deployments/bad/chat/completions", "good"),
        build_request("@az", "/openai/deployments/bad/chat/completions", "good"),
        build_request("@az", CHAT_PATH, "good").header("x-gateway-config", &alias.to_string()),
        build_request("@db", CHAT_PATH, "good").header("x-gateway-databricks-serving-endpoint-name", "bad"),
    ]
    .into_iter()
    .enumerate()
    {
        let response = gateway.send(request).await;
        assert_eq!(
            (response.status, response.error_code().as_str()),
            (403, "model_not_allowed"),
            "{at}: {}",
            response.text()
        );
    }
    assert_eq!(golden_provider.server.connection_count(), 0);
    // Saved deployments are used; the model's own deployment precedes the provider's.
    for (provider, model, deployment) in
        [("@az", "good", "good"), ("@usual", "good", "usual"), ("@usual", "own", "its-own"), ("@az", "own", "its-own")]
    {
        gateway.send(build_request(provider, CHAT_PATH, model)).await;
        let line = golden_provider.parse_last_request().0;
        assert!(line.starts_with(&format!("POST /deployments/{deployment}/chat/completions?")), "{model}: {line}");
    }
}

#[tokio::test]
async fn rejects_request_without_model_if_models_are_restricted() {
    let golden_provider = GoldenProvider::start(200, "application/json", b"{}".to_vec(), 50).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let row = |slug: &str, provider: &str, options: Value| json!({"slug": slug, "provider": provider, "api_key": "k", "models": slug, "options": options, "custom_host": golden_provider.server.url()});
    let usual = json!({"resource_name": "res", "api_version": "2024-10-21", "deployment_id": "usual"});
    let models = |id: &str, allow_all: bool, enabled: bool| json!({"id": id, "allow_all": allow_all, "models": [{"slug": "m", "enabled": enabled}]});
    gateway.apply_snapshot(&json!({"epoch": "1",
        "providers": [row("some", "openai", json!({})), row("most", "openai", json!({})), row("all", "openai", json!({})),
            row("az", "azure-openai", usual)],
        "models": [models("some", false, true), models("most", true, false), models("all", true, true), models("az", false, true)]}));
    let build_request = |at: &str, path: &str, body: &str| {
        let build_request = TestRequest::new("POST", path).header("x-gateway-provider", &format!("@{at}"));
        build_request.header("content-type", "application/json").body(body.to_owned())
    };
    let unnamed = [
        ("/v1/responses", r#"{"prompt":{"id":"pmpt_1"}}"#),
        ("/v1/images/generations", r#"{"prompt":"a cat"}"#),
        ("/v1/fine_tuning/jobs", r#"{"training_file":"file-1"}"#),
        (CHAT_PATH, r#"{"messages":[{"role":"user","content":"hi"}]}"#),
    ];
    let graded = r#"{"model":"m","training_file":"f","method":{"type":"reinforcement","reinforcement":{"grader":{"type":"score_model","model":"n"}}}}"#;
    let response = gateway.send(build_request("some", unnamed[2].0, graded)).await;
    assert_eq!((response.status, response.error_code().as_str()), (403, "model_not_allowed"), "{}", response.text());
    for (path, body) in unnamed {
        for at in ["some", "most"] {
            let response = gateway.send(build_request(at, path, body)).await;
            assert_eq!(
                (response.status, response.error_code().as_str()),
                (403, "model_not_allowed"),
                "{at} {path}: {}",
                response.text()
            );
        }
    }
    assert_eq!(golden_provider.server.connection_count(), 0);
    for (path, body) in unnamed {
        assert_eq!(gateway.send(build_request("all", path, body)).await.status, 200, "{path}");
    }
    assert_eq!(
        gateway
            .send(build_request("some", unnamed[2].0, &graded.replace(r#""model":"n""#, r#""model":"m""#)))
            .await
            .status,
        200
    );
    // A saved deployment is used even if the body names no model.
    assert_eq!(gateway.send(build_request("az", CHAT_PATH, unnamed[3].1)).await.status, 200);
    assert!(golden_provider.parse_last_request().0.starts_with("POST /deployments/usual/chat/completions?"));
}

#[tokio::test]
async fn secondary_models_must_be_allowed() {
    let golden_provider = GoldenProvider::start(200, "application/json", b"{}".to_vec(), 50).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let row = |slug: &str, provider: &str| json!({"slug": slug, "provider": provider, "api_key": "k", "models": slug, "custom_host": golden_provider.server.url()});
    let models = |id: &str, allow_all: bool, others: bool| {
        let rows: Vec<_> = ["n", "o"].iter().map(|slug| json!({"slug": slug, "enabled": others})).collect();
        let good = [json!({"slug": "m", "enabled": true}), json!({"slug": "p", "enabled": true})];
        json!({"id": id, "allow_all": allow_all, "models": good.into_iter().chain(rows).collect::<Vec<_>>()})
    };
    gateway.apply_snapshot(&json!({"epoch": "1",
        "providers": [row("some", "openai"), row("most", "openrouter"), row("all", "openai"), row("claude", "anthropic")],
        "models": [models("some", false, false), models("most", true, false), models("all", true, true),
            models("claude", false, false)]}));
    let build_request = |at: &str, path: &str, body: &str| {
        let build_request = TestRequest::new("POST", path).header("x-gateway-provider", &format!("@{at}"));
        build_request.header("content-type", "application/json").body(body.to_owned())
    };
    let (draws, instead) = (
        r#"{"model":"m","input":"a cat","tools":[{"type":"image_generation","model":"n"}]}"#,
        r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"models":["p","n"]}"#,
    );
    let advised = r#"{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"advisor","name":"a","model":"n"}]}"#;
    let together = format!(r#"{{"requests":[{{"custom_id":"a","params":{advised}}}]}}"#);
    let requested = [
        ("some", "/v1/responses", draws),
        ("some", "/v1/proxy/responses", draws),
        ("most", CHAT_PATH, instead),
        ("claude", MESSAGES_PATH, advised),
        ("claude", "/v1/messages/batches", &together),
    ];
    for (at, path, body) in requested {
        let response = gateway.send(build_request(at, path, body)).await;
        let is_named = response.text().contains("the model `n` may not be used here");
        assert!(response.status == 403 && is_named, "{at} {path}: {} {}", response.status, response.text());
    }
    assert_eq!(golden_provider.server.connection_count(), 0);
    for (at, path, body) in requested {
        let response = gateway.send(build_request(at, path, &body.replace(r#""n""#, r#""p""#))).await;
        assert_eq!(response.status, 200, "{at} {path}: {}", response.text());
    }
    assert_eq!(gateway.send(build_request("all", "/v1/responses", draws)).await.status, 200);
}
