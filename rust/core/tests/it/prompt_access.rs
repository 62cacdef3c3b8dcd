//! What requests may do with prompts that another workspace shares, and with prompts whose text they may not see.

use serde_json::{Value, json};

use crate::{
    harness::{TestGateway, TestRequest, TestResponse, golden_provider::GoldenProvider},
    prompts::{CHAT_RESPONSE, greeting_prompts, snapshot_of, start_gateway},
};

#[tokio::test]
async fn another_workspace_uses_a_shared_prompt_with_the_rights_of_its_owner() {
    let provider = GoldenProvider::start(200, "application/json", CHAT_RESPONSE.into(), 4096).await;
    let gateway = start_gateway(&provider, &greeting_prompts());
    let call = async |name: &str, body: Value| {
        let path = format!("/v1/prompts/{name}/completions");
        let request = TestRequest::new("POST", &path).header("content-type", "application/json");
        gateway.send(request.header("x-gateway-api-key", "pk-there").body(body.to_string())).await
    };
    let response = call("greeting", json!({"variables": {"name": "Ann", "tone": "kind"}})).await;
    assert_eq!(response.status, 200, "{}", response.text());
    let (head, sent) = provider.parse_last_request();
    assert!(head.contains("Bearer sk-mine"), "{head}");
    assert_eq!(sent["messages"][0]["content"], "Be kind.");
    // The owner's provider serves only the unchanged prompt. If the caller uses a provider of its own, it may change
    // the prompt.
    for field in ["model", "messages", "prompt"] {
        let refused = call("greeting", json!({field: "x"})).await;
        assert_eq!((refused.status, refused.error_code()), (403, "prompt_field_not_allowed".into()), "{field}");
    }
    let own = call("greeting", json!({"model": "@theirs/gpt", "messages": []})).await;
    assert_eq!(own.status, 200, "{}", own.text());
    assert!(provider.parse_last_request().0.contains("Bearer sk-theirs"));
    let owners = call("greeting", json!({"model": "@mine/gpt"})).await;
    assert_eq!((owners.status, owners.error_code()), (400, "not_found_in_workspace".into()));
    // The caller can use neither other providers of the owner nor prompts that are not shared.
    let other = call("greeting", json!({"model": "@other/gpt"})).await;
    assert_eq!((other.status, other.error_code()), (400, "not_found_in_workspace".into()));
    let not_shared = call("story", json!({})).await;
    assert_eq!((not_shared.status, not_shared.error_code()), (404, "prompt_not_found".into()));
}

/// Sends a request with a key of the workspace that a prompt is shared with.
async fn call_shared(gateway: &TestGateway, name: &str, config: Option<&Value>, body: &Value) -> TestResponse {
    let path = format!("/v1/prompts/{name}/completions");
    let mut request = TestRequest::new("POST", &path).header("content-type", "application/json");
    if let Some(config) = config {
        request = request.header("x-gateway-config", &config.to_string());
    }
    gateway.send(request.header("x-gateway-api-key", "pk-there").body(body.to_string())).await
}

#[tokio::test]
async fn a_config_cannot_use_the_provider_of_a_shared_prompt_for_anything_else() {
    let provider = GoldenProvider::start(200, "application/json", CHAT_RESPONSE.into(), 4096).await;
    let mut prompts = greeting_prompts();
    let no_model = json!({"string": "[{\"role\":\"user\",\"content\":\"hi {{name}}\"}]", "virtual_key": "mine"});
    prompts
        .as_array_mut()
        .unwrap()
        .push(json!({"id": "p5", "slug": "open", "workspace": "w", "default": 1, "latest": 1,
        "shared_with": "*", "versions": [{"number": 1, "id": "v5", "content": no_model}]}));
    let gateway = start_gateway(&provider, &prompts);
    let body = json!({"variables": {"name": "Ann", "tone": "kind"}});
    let calls = || provider.request_lines.lock().unwrap().len();
    // Settings that leave the prompt unchanged are allowed. The request uses the owner's provider, and the model
    // without its prefix.
    let retries = json!({"retry": {"attempts": 1}, "override_params": {"temperature": 1}});
    let allowed = call_shared(&gateway, "greeting", Some(&retries), &body).await;
    assert_eq!(allowed.status, 200, "{}", allowed.text());
    let (head, sent) = provider.parse_last_request();
    assert!(head.contains("Bearer sk-mine"), "{head}");
    assert_eq!((&sent["model"], &sent["temperature"]), (&json!("gpt-a"), &json!(1)));
    // A provider of the caller's own gets the model of the prompt, not the slug of the owner's provider.
    let own = call_shared(&gateway, "greeting", Some(&json!({"provider": "@theirs"})), &body).await;
    assert_eq!(own.status, 200, "{}", own.text());
    let (head, sent) = provider.parse_last_request();
    assert!(head.contains("Bearer sk-theirs"), "{head}");
    assert_eq!(sent["model"], "gpt-a");
    let before = calls();
    let inline = |id: &str, parameters: Value| json!({"input_guardrails": [{id: parameters}]});
    for (config, status, code) in [
        (json!({"override_params": {"model": "@mine/gpt-z"}}), 400, "not_found_in_workspace"),
        (json!({"override_params": {"messages": [{"role": "user", "content": "x"}]}}), 403, "prompt_field_not_allowed"),
        (json!({"drop_params": ["messages"]}), 403, "prompt_field_not_allowed"),
        (json!({"targets": [{"override_params": {"model": "gpt-z"}}]}), 400, "provider_required"),
        (json!({"provider": "@mine"}), 400, "not_found_in_workspace"),
        (json!({"virtual_key": "mine", "override_params": {"model": "gpt-z"}}), 400, "not_found_in_workspace"),
        (json!({"strategy": {"mode": "fallback"}, "targets": [{"provider": "@mine"}]}), 400, "not_found_in_workspace"),
        (inline("default.addPrefix", json!({"prefix": "ignore that. "})), 403, "prompt_field_not_allowed"),
        (inline("default.regexReplace", json!({"rule": ".+", "redactText": "x"})), 403, "prompt_field_not_allowed"),
    ] {
        let refused = call_shared(&gateway, "greeting", Some(&config), &body).await;
        assert_eq!((refused.status, refused.error_code().as_str()), (status, code), "{config}: {}", refused.text());
    }
    // This prompt names only a provider and no model. Callers may not add a model to it.
    let open = call_shared(&gateway, "open", Some(&json!({"override_params": {"model": "gpt-z"}})), &body).await;
    assert_eq!((open.status, open.error_code().as_str()), (403, "prompt_field_not_allowed"), "{}", open.text());
    for field in ["models", "system", "input", "fallbacks", "tools", "Model", "chat_template", "n", "response_format"] {
        let refused = call_shared(&gateway, "greeting", None, &json!({field: ["x"]})).await;
        assert_eq!((refused.status, refused.error_code().as_str()), (403, "prompt_field_not_allowed"), "{field}");
        let config = json!({"default_params": {field: "x"}});
        let refused = call_shared(&gateway, "greeting", Some(&config), &body).await;
        assert_eq!((refused.status, refused.error_code().as_str()), (403, "prompt_field_not_allowed"), "{config}");
    }
    // The prompt limits its output to 9 tokens; callers may only lower this limit.
    for (fields, status) in
        [(json!({"max_tokens": 8, "stop": "x", "user": "u"}), 200), (json!({"max_tokens": 10}), 403)]
    {
        let response = call_shared(&gateway, "greeting", None, &with_fields(&body, &fields)).await;
        assert_eq!(response.status, status, "{fields}: {}", response.text());
    }
    let config = json!({"override_params": {"max_tokens": 8}});
    assert_eq!(call_shared(&gateway, "greeting", Some(&config), &body).await.status, 403);
    assert_eq!(calls(), before + 1, "nothing else of this reaches a provider");
}

fn with_fields(body: &Value, fields: &Value) -> Value {
    let mut all = body.clone();
    all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    all
}

#[tokio::test]
async fn limits_of_a_provider_count_the_requests_of_other_workspaces() {
    let provider = GoldenProvider::start(200, "application/json", CHAT_RESPONSE.into(), 4096).await;
    let gateway = start_gateway(&provider, &greeting_prompts());
    let limit = json!({"id": "of-mine", "kind": "rate", "owner": {"kind": "provider", "id": "mine", "slug": "mine"},
        "type": "requests", "limit": 2, "window": {"unit": "day"}});
    let limits = json!({"name": "limits/00", "limits": [{"workspace": "w", "limits": [limit]}]});
    gateway.apply_snapshot(&add_part(&snapshot_of(&provider, &greeting_prompts()), limits));
    let body = json!({"variables": {"name": "Ann", "tone": "kind"}});
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(call_shared(&gateway, "greeting", None, &body).await.status);
    }
    assert_eq!(statuses, [200, 200, 429]);
    // A provider of the other workspace has the limits of that workspace.
    let own = call_shared(&gateway, "greeting", None, &with_fields(&body, &json!({"model": "@theirs/gpt"}))).await;
    assert_eq!(own.status, 200, "{}", own.text());
}

fn add_part(snapshot: &Value, part: Value) -> Value {
    let mut whole = snapshot.clone();
    whole["parts"].as_array_mut().unwrap().push(part);
    whole["epoch"] = json!("2");
    whole
}

/// Sends a request of a key that may run prompts, but not render them.
async fn call_hidden(gateway: &TestGateway, config: &Value, host: Option<&str>) -> TestResponse {
    let request = TestRequest::new("POST", "/v1/prompts/story/completions").header("x-gateway-api-key", "pk-runs");
    let mut request = request.header("x-gateway-config", &config.to_string());
    if let Some(host) = host {
        request = request.header("x-gateway-custom-host", host);
    }
    gateway.send(request.header("content-type", "application/json").body("{\"variables\": {\"when\": \"upon\"}}")).await
}

#[tokio::test]
async fn a_key_that_may_not_render_does_not_see_the_text_of_a_prompt() {
    let provider = GoldenProvider::start(200, "application/json", CHAT_RESPONSE.into(), 4096).await;
    let gateway = start_gateway(&provider, &greeting_prompts());
    let denied = call_hidden(&gateway, &json!({"input_guardrails": ["saved"]}), None).await;
    assert_eq!(denied.status, 446, "{}", denied.text());
    assert!(!denied.text().contains("upon") && denied.text().contains("\"verdict\":false"), "{}", denied.text());
    let inline = json!({"input_guardrails": [{"default.contains": {"words": ["Once"]}, "deny": false}]});
    let nested = json!({"strategy": {"mode": "fallback"}, "targets": [{"output_guardrails": [{"default.contains":
        {"words": ["Once"]}}]}]});
    let host = json!({"provider": "openai", "api_key": "k", "custom_host": provider.server.url()});
    for (config, header) in
        [(inline, None), (nested, None), (host, None), (json!({"retry": {"attempts": 1}}), Some("http://a"))]
    {
        let refused = call_hidden(&gateway, &config, header).await;
        assert_eq!((refused.status, refused.error_code().as_str()), (403, "prompt_text_not_allowed"), "{config}");
        assert!(refused.text().contains("prompts.render"), "{}", refused.text());
    }
    assert!(provider.request_lines.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_hidden_prompt_goes_only_to_what_the_workspace_has_saved() {
    let provider = GoldenProvider::start(200, "application/json", CHAT_RESPONSE.into(), 4096).await;
    let gateway = start_gateway(&provider, &greeting_prompts());
    let send = async |fields: &[(&str, &str)]| {
        let mut request = TestRequest::new("POST", "/v1/prompts/story/completions")
            .header("x-gateway-api-key", "pk-runs")
            .header("content-type", "application/json");
        for (name, value) in fields {
            request = request.header(name, value);
        }
        gateway.send(request.body("{\"variables\": {\"when\": \"upon\"}}")).await
    };
    let query = |field: &str| {
        let condition = json!({"query": {format!("params.{field}"): {"$regex": "^Once"}}, "then": "a"});
        json!({"strategy": {"mode": "conditional", "conditions": [condition], "default": "a"},
            "targets": [{"name": "a", "provider": "@mine"}]})
        .to_string()
    };
    let own = ("authorization", "Bearer sk-attacker");
    for fields in [
        &[("x-gateway-provider", "huggingface"), ("x-gateway-huggingface-base-url", "https://a.example"), own][..],
        &[("x-gateway-provider", "openai"), own],
        &[("x-gateway-config", r#"{"provider": "huggingface", "api_key": "x", "huggingface_base_url": "https://a"}"#)],
        &[("x-gateway-config", r#"{"provider": "azure-openai", "resource_name": "a"}"#), own],
        &[("x-gateway-config", r#"{"provider": "@mine", "api_key": "sk-attacker"}"#)],
        &[("x-gateway-config", r#"{"provider": "@mine", "resource_name": "a"}"#)],
        &[(
            "x-gateway-config",
            r#"{"strategy": {"mode": "fallback"}, "targets": [{"provider": "groq", "api_key": "x"}]}"#,
        )],
        &[("x-gateway-config", &query("prompt"))],
        &[("x-gateway-config", &query("messages.0.content"))],
    ] {
        let refused = send(fields).await;
        let denial = (refused.status, refused.error_code());
        assert_eq!(denial, (403, "prompt_text_not_allowed".into()), "{fields:?}: {}", refused.text());
    }
    assert!(provider.request_lines.lock().unwrap().is_empty());
    for fields in [&[][..], &[("x-gateway-provider", "@mine"), own], &[("x-gateway-config", &query("model"))]] {
        let allowed = send(fields).await;
        assert_eq!(allowed.status, 200, "{fields:?}: {}", allowed.text());
        assert!(provider.parse_last_request().0.contains("Bearer sk-mine"), "{fields:?}");
    }
}
