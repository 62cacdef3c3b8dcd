//! Gateway keys and provider credentials. A gateway key is never forwarded, and a provider's key is sent only to its
//! provider.

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestGateway, TestRequest, chat_body, request_without_provider,
    scripted_server::{ScriptedServer, json_response},
    sha256_hex, single_sent_request,
};
use penstock_mock::Server;
use serde_json::{Value, json};

const GATEWAY_KEY: &str = "pk-canary-0123456789";

fn snapshot_with_keys() -> Value {
    json!({"epoch": "1", "keys": [{"id": "k-1", "name": "dev", "sha256": sha256_hex(GATEWAY_KEY)},
        {"id": "k-old", "name": "old", "sha256": sha256_hex("pk-old"), "expires_at": 1}]})
}

#[tokio::test]
async fn accepts_provider_name_with_bearer_token() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for path in [CHAT_PATH, MESSAGES_PATH, "/v1/proxy/anything"] {
        let request = request_without_provider(path)
            .header("x-gateway-provider", "mock")
            .header("Authorization", "bearer sk-caller");
        assert_eq!(gateway.send(request).await.status, 200, "{path}");
        assert_eq!(single_sent_request(&provider).header("authorization"), Some("Bearer sk-caller"), "{path}");
    }
}

#[tokio::test]
async fn accepts_inline_config_with_one_provider() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let config = json!({"provider": "openai", "api_key": "sk-config", "custom_host": format!("{}/v1", provider.url())});
    let request = request_without_provider(CHAT_PATH)
        .header("x-gateway-config", &config.to_string())
        .header("authorization", "Bearer sk-caller");
    assert_eq!(gateway.send(request).await.status, 200);
    assert_eq!(single_sent_request(&provider).header("authorization"), Some("Bearer sk-config"));
}

#[tokio::test]
async fn uses_key_of_saved_provider_or_config() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    gateway.apply_snapshot(&json!({"epoch": "1",
        "providers": [{"slug": "mine", "provider": "openai", "api_key": "sk-saved", "custom_host": format!("{}/v1", provider.url())}],
        "configs": [{"slug": "pc-main", "config": {"provider": "@mine"}}]}));
    for (name, value) in
        [("x-gateway-provider", "@mine"), ("x-gateway-virtual-key", "mine"), ("x-gateway-config", "pc-main")]
    {
        let response = gateway.send(request_without_provider(CHAT_PATH).header(name, value)).await;
        assert_eq!(response.status, 200, "{name}: {}", response.text());
        assert_eq!(single_sent_request(&provider).header("authorization"), Some("Bearer sk-saved"), "{name}");
    }
}

#[tokio::test]
async fn does_not_send_saved_key_to_url_from_config_options() {
    let evil = Server::start().await;
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let url = evil.url().replace("http://", "https://");
    let config = json!({"provider": "@foundry", "azure_foundry_url": url});
    gateway.apply_snapshot(&json!({"epoch": "1",
        "providers": [{"slug": "foundry", "provider": "azure-ai", "api_key": "sk-saved"}],
        "configs": [{"slug": "pc-evil", "config": config}]}));
    for provider_name in [config.to_string().as_str(), "pc-evil"] {
        let response =
            gateway.send(request_without_provider(CHAT_PATH).header("x-gateway-config", provider_name)).await;
        assert!(
            response.status == 400 && response.text().contains("no foundry"),
            "{provider_name}: {}",
            response.text()
        );
    }
    assert!(evil.ledger_entries().is_empty());
}

#[tokio::test]
async fn client_headers_do_not_replace_saved_key() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let host = format!("{}/v1", provider.url());
    gateway.apply_snapshot(&json!({"epoch": "1", "providers": [
        {"slug": "open", "provider": "openai", "api_key": "sk-saved", "custom_host": host},
        {"slug": "anth", "provider": "anthropic", "api_key": "sk-saved", "custom_host": host}]}));
    for (slug, expected) in [("@open", [Some("Bearer sk-saved"), None]), ("@anth", [None, Some("sk-saved")])] {
        for path in ["/v1/assistants", "/v1/files", "/v1/proxy/messages"] {
            let mut request = request_without_provider(path).header("x-gateway-provider", slug);
            for name in ["authorization", "x-api-key", "X-API-Key", "api-key", "x-goog-api-key"] {
                request = request.header(name, "Bearer sk-caller");
            }
            let response =
                gateway.send(request.header("x-gateway-forward-headers", "authorization,x-api-key,api-key")).await;
            assert_eq!(response.status, 200, "{path}: {}", response.text());
            let entry = single_sent_request(&provider);
            assert_eq!(["authorization", "x-api-key"].map(|name| entry.header(name)), expected, "{path} {slug}");
            assert!(!format!("{entry:?}").contains("sk-caller"), "{path} {slug}");
        }
    }
}

#[tokio::test]
async fn saved_headers_allow_credential_options_from_elsewhere() {
    let issuer =
        ScriptedServer::start_responding(json_response("200 OK", "", r#"{"access_token":"t-1","expires_in":3600}"#))
            .await;
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let content = [
        ("azure-auth-mode", "entra"),
        ("azure-entra-tenant-id", "t"),
        ("azure-entra-client-id", "c"),
        ("azure-entra-client-secret", "s"),
        ("azure-authority-host", &issuer.url()),
    ];
    let mut config = json!({"provider": "@az"});
    for (name, value) in content {
        config[name.replace('-', "_")] = value.into();
    }
    gateway.apply_snapshot(
        &json!({"epoch": "1", "configs": [{"slug": "pc-entra", "config": config}], "providers": [{"slug": "az",
        "provider": "azure-openai", "custom_host": provider.url(), "headers": {"x-team": "red"},
        "options": {"resource_name": "res", "api_version": "2024-10-21"}}]}),
    );
    let request = TestRequest::new("POST", CHAT_PATH)
        .header("content-type", "application/json")
        .header("x-gateway-azure-deployment-id", "d")
        .body(chat_body("gpt-4o", false));
    let by_fields = content.iter().fold(request.header("x-gateway-provider", "@az"), |request, (name, value)| {
        request.header(&format!("x-gateway-{name}"), value)
    });
    let by_config = TestRequest::new("POST", CHAT_PATH)
        .header("content-type", "application/json")
        .header("x-gateway-azure-deployment-id", "d")
        .header("x-gateway-config", "pc-entra")
        .body(chat_body("gpt-4o", false));
    for request in [by_fields, by_config] {
        let response = gateway.send(request).await;
        let received = provider.ledger_entries();
        let entry = received.last().unwrap_or_else(|| panic!("{}", response.text()));
        let fields = ["authorization", "x-team"].map(|name| entry.header(name));
        assert_eq!(fields, [Some("Bearer t-1"), Some("red")], "{}", response.text());
    }
    assert_eq!(provider.ledger_entries().len(), 2);
}

#[tokio::test]
async fn sends_anthropic_oauth_token_as_bearer_from_any_header() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    gateway.apply_snapshot(&snapshot_with_keys());
    let host = format!("{}/v1", provider.url());
    let token = "sk-ant-oat01-0123456789";
    for path in [MESSAGES_PATH, "/v1/messages/batches", "/v1/proxy/messages"] {
        for (name, value) in [("authorization", format!("Bearer {token}")), ("x-api-key", token.to_owned())] {
            let request = request_without_provider(path)
                .header("x-gateway-api-key", GATEWAY_KEY)
                .header("x-gateway-provider", "anthropic")
                .header("x-gateway-custom-host", &host)
                .header("anthropic-beta", "oauth-2025-04-20")
                .header(name, &value);
            assert_eq!(gateway.send(request).await.status, 200, "{path} {name}");
            let entry = single_sent_request(&provider);
            let headers = ["authorization", "x-api-key", "anthropic-beta"].map(|name| entry.header(name));
            assert_eq!(
                headers,
                [Some("Bearer sk-ant-oat01-0123456789"), None, Some("oauth-2025-04-20")],
                "{path} {name}"
            );
        }
    }
}

#[tokio::test]
async fn forwards_other_auth_schemes_except_the_gateway_key() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    gateway.apply_snapshot(&snapshot_with_keys());
    let signed =
        |id: &str| format!("AWS4-HMAC-SHA256 Credential={id}/20261121/eu-west-1/bedrock/aws4_request, Signature=0");
    for path in [CHAT_PATH, "/v1/files", "/v1/proxy/anything"] {
        for value in ["Basic dXNlcjpzZWNyZXQ=".to_owned(), signed("AKIDPROVIDER"), "sk-without-a-scheme".to_owned()] {
            let request =
                request_without_provider(path).header("x-gateway-provider", "mock").header("authorization", &value);
            assert_eq!(gateway.send(request.header("x-gateway-api-key", GATEWAY_KEY)).await.status, 200, "{path}");
            assert_eq!(single_sent_request(&provider).header("authorization"), Some(value.as_str()), "{path}");
        }
        for with_its_header in [false, true] {
            let mut request = request_without_provider(path)
                .header("x-gateway-provider", "mock")
                .header("authorization", &signed(GATEWAY_KEY));
            if with_its_header {
                request = request.header("x-gateway-api-key", GATEWAY_KEY);
            }
            assert_eq!(gateway.send(request).await.status, 200, "{path}");
            assert_eq!(single_sent_request(&provider).header("authorization"), None, "{path}");
        }
    }
}

#[tokio::test]
async fn accepts_gateway_key_and_provider_key_in_any_two_headers() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    gateway.apply_snapshot(&snapshot_with_keys());
    let locations = ["authorization", "x-api-key", "api-key", "x-goog-api-key"];
    let written =
        |location: &str, key: &str| if location == "authorization" { format!("Bearer {key}") } else { key.to_owned() };
    for path in [CHAT_PATH, "/v1/files", "/v1/proxy/anything"] {
        for ours in locations.into_iter().chain(["x-gateway-api-key"]) {
            for theirs in locations.into_iter().filter(|location| *location != ours) {
                let request = request_without_provider(path)
                    .header("x-gateway-provider", "mock")
                    .header(theirs, &written(theirs, "sk-theirs"));
                assert_eq!(
                    gateway.send(request.header(ours, &written(ours, GATEWAY_KEY))).await.status,
                    200,
                    "{path} {ours} {theirs}"
                );
                assert_eq!(
                    single_sent_request(&provider).header("authorization"),
                    Some("Bearer sk-theirs"),
                    "{path} {ours} {theirs}"
                );
                assert!(gateway.drain_records().iter().all(|record| record["api_key_id"] == "k-1"));
            }
        }
        // One Azure client sends its key in both headers. It is the gateway key, or the provider's key next to
        // `x-gateway-api-key`.
        let with_two_keys = |key: &str| {
            request_without_provider(path).header("api-key", key).header("authorization", &format!("Bearer {key}"))
        };
        assert_eq!(
            gateway.send(with_two_keys(GATEWAY_KEY).header("x-gateway-provider", "mock")).await.status,
            200,
            "{path}"
        );
        assert_eq!(single_sent_request(&provider).header("authorization"), None, "{path}");
        let request =
            with_two_keys("sk-theirs").header("x-gateway-provider", "mock").header("x-gateway-api-key", GATEWAY_KEY);
        assert_eq!(gateway.send(request).await.status, 200, "{path}");
        assert_eq!(single_sent_request(&provider).header("authorization"), Some("Bearer sk-theirs"), "{path}");
    }
}

#[tokio::test]
async fn accepts_gateway_key_in_own_header_or_authorization() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    gateway.apply_snapshot(&snapshot_with_keys());
    for path in [CHAT_PATH, MESSAGES_PATH, "/v1/proxy/anything"] {
        let build_request = || request_without_provider(path).header("x-gateway-provider", "mock");
        let own = build_request().header("x-gateway-api-key", GATEWAY_KEY).header("authorization", "Bearer sk-caller");
        assert_eq!(gateway.send(own).await.status, 200, "{path}");
        assert_eq!(single_sent_request(&provider).header("authorization"), Some("Bearer sk-caller"), "{path}");
        let alias = build_request().header("x-portkey-api-key", GATEWAY_KEY);
        assert_eq!(gateway.send(alias).await.status, 200, "{path}");
        assert_eq!(single_sent_request(&provider).header("authorization"), None, "{path}");
        let bearer = build_request().header("authorization", &format!("Bearer {GATEWAY_KEY}"));
        assert_eq!(gateway.send(bearer).await.status, 200, "{path}");
        assert_eq!(single_sent_request(&provider).header("authorization"), None, "{path}");
        assert!(gateway.drain_records().iter().all(|record| record["api_key_id"] == "k-1"));
    }
}

#[tokio::test]
async fn does_not_forward_gateway_key_that_is_sent_twice() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    gateway.apply_snapshot(&snapshot_with_keys());
    // SDKs require a provider key, and users often set the gateway key there too.
    for (name, value) in [
        ("authorization", format!("Bearer {GATEWAY_KEY}")),
        ("x-api-key", GATEWAY_KEY.into()),
        ("api-key", GATEWAY_KEY.into()),
    ] {
        for path in [CHAT_PATH, MESSAGES_PATH, "/v1/proxy/anything"] {
            let request = request_without_provider(path)
                .header("x-gateway-provider", "mock")
                .header("x-gateway-api-key", GATEWAY_KEY);
            assert_eq!(gateway.send(request.header(name, &value)).await.status, 200, "{path} {name}");
            let entry = single_sent_request(&provider);
            let headers = ["authorization", "x-api-key", "api-key"].map(|name| entry.header(name));
            assert_eq!(headers, [None; 3], "{path} {name}");
        }
    }
}

#[tokio::test]
async fn rejects_missing_or_invalid_key() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    gateway.apply_snapshot(&snapshot_with_keys());
    let build_request = |path| request_without_provider(path).header("x-gateway-provider", "mock");
    for (name, value, code) in [
        ("x-none", "", "03"),
        ("authorization", "Bearer sk-caller", "03"),
        ("authorization", "Basic cGs6cGs=", "03"),
        ("x-gateway-api-key", "pk-wrong", "03"),
        ("x-gateway-api-key", "pk-old", "03"),
        ("authorization", "Bearer pk-old", "03"),
    ] {
        let response = gateway.send(build_request(CHAT_PATH).header(name, value)).await;
        assert_eq!((response.status, response.error_code().as_str()), (401, code), "{name}: {value}");
        let response = gateway.send(build_request(MESSAGES_PATH).header(name, value)).await;
        assert_eq!(response.json()["error"]["type"], "authentication_error", "{name}: {value}");
    }
    assert!(provider.ledger_entries().is_empty());
}

#[tokio::test]
async fn can_require_a_key_before_any_is_configured() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.require_key = true);
    assert_eq!(
        gateway.send(request_without_provider(CHAT_PATH).header("x-gateway-provider", "mock")).await.status,
        401
    );
    assert!(provider.ledger_entries().is_empty());
}

#[tokio::test]
async fn rejects_missing_or_unknown_provider() {
    let gateway = TestGateway::for_url("http://127.0.0.1:1");
    for (name, value, code) in [
        ("x-none", "", "provider_required"),
        ("x-gateway-provider", "nobody", "invalid_provider"),
        ("x-gateway-provider", "@nobody", "not_found_in_workspace"),
        ("x-gateway-config", "pc-nobody", "not_found_in_workspace"),
        ("x-gateway-config", "{}", "provider_required"),
        ("x-gateway-config", "{", "invalid_config"),
        ("x-gateway-config", r#"{"provider":"mock","retry":{"attempts":9}}"#, "invalid_config"),
        ("x-gateway-provider", "ollama", "invalid_custom_host"),
    ] {
        let response = gateway.send(request_without_provider(CHAT_PATH).header(name, value)).await;
        assert_eq!((response.status, response.error_code().as_str()), (400, code), "{name}: {value}");
    }
}

#[tokio::test]
async fn errors_do_not_contain_credentials() {
    let gateway = TestGateway::for_url("http://127.0.0.1:1");
    gateway.apply_snapshot(&snapshot_with_keys());
    let config = r#"{"provider":"nobody","api_key":"sk-canary"}"#;
    for request in [
        request_without_provider(CHAT_PATH).header("x-gateway-api-key", "pk-canary-wrong"),
        request_without_provider(CHAT_PATH).header("x-gateway-api-key", GATEWAY_KEY).header("x-gateway-config", config),
        request_without_provider(CHAT_PATH)
            .header("x-gateway-api-key", GATEWAY_KEY)
            .header("x-gateway-provider", "mock"),
        request_without_provider(MESSAGES_PATH).header("authorization", "Bearer sk-canary"),
    ] {
        let response = gateway.send(request).await;
        assert!(response.status >= 400 && !response.text().contains("canary"), "{}", response.text());
    }
}
