//! Client header fields that reach a provider: on operations, on pass-through and on the raw proxy, listed in a header
//! or a config.

use crate::harness::{CHAT_PATH, MESSAGES_PATH, TestGateway, TestRequest, chat_body, post_request, sha256_hex};
use penstock_mock::{Entry, Server};
use serde_json::json;

const ROUTES: [&str; 4] = [CHAT_PATH, MESSAGES_PATH, "/v1/assistants/a", "/v1/proxy/chat/completions"];
const GATEWAY_KEY: &str = "pk-gateway-0123456789";

/// Fields that must not be forwarded, with marker values to search for.
const UNFORWARDED_HEADERS: &[(&str, &str)] = &[
    ("x-gateway-api-key", GATEWAY_KEY),
    ("x-gateway-metadata", r#"{"a":"kept-1"}"#),
    ("x-portkey-package-version", "kept-2"),
    ("X-Gateway-Unheard-Of", "kept-3"),
    ("cookie", "kept-4"),
    ("proxy-authorization", "kept-5"),
    ("te", "kept-6"),
    ("trailer", "kept-7"),
    ("upgrade", "kept-8"),
    ("keep-alive", "kept-9"),
    ("connection", "close, X-Hop, anthropic-beta"),
    ("x-hop", "kept-10"),
    ("anthropic-beta", "kept-11"),
    ("expect", "kept-12"),
    ("host", "kept-13"),
    ("content-length", "9876543210"),
    ("x-api-key", "kept-14"),
    ("api-key", "kept-15"),
    ("x-goog-api-key", "kept-16"),
    ("authorization", "Basic kept-17"),
    ("sec-websocket-protocol", "kept-18"),
    ("sec-websocket-key", "kept-19"),
    ("tracestate", "kept-20=1"),
    ("traceparent", "kept-21"),
    ("x-also", GATEWAY_KEY),
    ("x-bearer", "Bearer pk-gateway-0123456789"),
];

/// Starts a gateway with a gateway key and a saved provider that has a stored credential.
async fn start_gateway_and_provider() -> (Server, TestGateway) {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    gateway
        .apply_snapshot(&json!({"epoch": "1", "keys": [{"id": "k", "name": "k", "sha256": sha256_hex(GATEWAY_KEY)}],
        "providers": [{"slug": "mine", "provider": "mock", "api_key": "sk-stored"}]}));
    (provider, gateway)
}

fn pop_ledger_entry(provider: &Server) -> Entry {
    let entry = provider.ledger_entries().pop().expect("it reached the provider");
    provider.clear_ledger();
    entry
}

fn with_headers(mut request: TestRequest, fields: &[(&str, &str)]) -> TestRequest {
    for (name, value) in fields {
        request = request.header(name, value);
    }
    request
}

fn request_to_path(path: &str) -> TestRequest {
    TestRequest::new("POST", path).header("content-type", "application/json").body(chat_body("mock", false))
}

#[tokio::test]
async fn never_forwards_gateway_hop_by_hop_or_secret_headers() {
    let (provider, gateway) = start_gateway_and_provider().await;
    let every: Vec<_> = UNFORWARDED_HEADERS.iter().map(|(name, _)| *name).collect();
    for path in ROUTES {
        for listed in [String::new(), every.join(", ")] {
            let fields = [("x-gateway-provider", "@mine"), ("x-gateway-forward-headers", listed.as_str())];
            let response = gateway
                .send(with_headers(
                    with_headers(request_to_path(&format!("{path}?a=1&key={GATEWAY_KEY}&b=2")), &fields),
                    UNFORWARDED_HEADERS,
                ))
                .await;
            assert_eq!(response.status, 200, "{path} {listed}: {}", response.text());
            let entry = pop_ledger_entry(&provider);
            let sent_headers = format!("{:?}", entry.headers);
            assert!(
                !sent_headers.contains("kept-")
                    && !sent_headers.contains(GATEWAY_KEY)
                    && !sent_headers.contains("9876543210"),
                "{path}: {sent_headers}"
            );
            assert!(
                !sent_headers.contains("x-gateway") && !sent_headers.contains("x-portkey"),
                "{path}: {sent_headers}"
            );
            assert!(entry.path.ends_with("?a=1&b=2"), "{}", entry.path);
            // Nothing replaces the provider's own credential, and it is sent exactly once.
            let credentials: Vec<_> = entry.headers.iter().filter(|(name, _)| name == "authorization").collect();
            assert_eq!(credentials, [&("authorization".to_owned(), "Bearer sk-stored".to_owned())], "{path}");
        }
    }
}

#[tokio::test]
async fn config_header_list_has_the_same_restrictions() {
    let (provider, gateway) = start_gateway_and_provider().await;
    let every: Vec<_> = UNFORWARDED_HEADERS.iter().map(|(name, _)| *name).collect();
    let config = json!({"provider": "@mine", "forward_headers": every}).to_string();
    for path in ROUTES {
        let response = gateway
            .send(with_headers(request_to_path(path).header("x-gateway-config", &config), UNFORWARDED_HEADERS))
            .await;
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        let received = format!("{:?}", pop_ledger_entry(&provider).headers);
        assert!(!received.contains("kept-") && !received.contains(GATEWAY_KEY), "{path}: {received}");
    }
}

#[tokio::test]
async fn rejects_listed_and_drops_sent_cloud_metadata_headers() {
    let (provider, gateway) = start_gateway_and_provider().await;
    for name in ["Metadata-Flavor", "X-aws-ec2-metadata-token", "metadata"] {
        let fields = [("x-gateway-api-key", GATEWAY_KEY), ("x-gateway-provider", "@mine"), (name, "Google")];
        for path in ROUTES {
            let response = gateway
                .send(with_headers(request_to_path(path), &fields).header("x-gateway-forward-headers", name))
                .await;
            assert_eq!(
                (response.status, response.text().contains(&name.to_ascii_lowercase())),
                (400, true),
                "{path} {name}"
            );
            assert_eq!(gateway.send(with_headers(request_to_path(path), &fields)).await.status, 200);
            assert_eq!(pop_ledger_entry(&provider).header(&name.to_ascii_lowercase()), None, "{path} {name}");
        }
    }
}

#[tokio::test]
async fn forward_list_must_not_contain_its_own_name() {
    let (provider, gateway) = start_gateway_and_provider().await;
    for name in ["x-gateway-forward-headers", "X-Portkey-Forward-Headers"] {
        let request =
            request_to_path(CHAT_PATH).header("x-gateway-api-key", GATEWAY_KEY).header("x-gateway-provider", "mock");
        let response = gateway.send(request.header("x-gateway-forward-headers", name)).await;
        assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_header"), "{name}");
    }
    assert!(provider.ledger_entries().is_empty());
}

#[tokio::test]
async fn forwards_provider_headers_under_any_gateway_prefix() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for name in ["openai-organization", "openai-project", "openai-beta", "anthropic-beta", "anthropic-version"] {
        for path in ROUTES {
            for prefix in ["x-gateway-", "x-portkey-", ""] {
                gateway
                    .send(post_request(path, chat_body("mock", false)).header(&format!("{prefix}{name}"), "sent-value"))
                    .await;
                let entry = pop_ledger_entry(&provider);
                let values: Vec<_> = entry.headers.iter().filter(|(field, _)| field == name).collect();
                assert_eq!(values, [&(name.to_owned(), "sent-value".to_owned())], "{path} {prefix}");
            }
            let both = post_request(path, chat_body("mock", false))
                .header(name, "bare")
                .header(&format!("x-gateway-{name}"), "sent-value");
            gateway.send(both).await;
            assert_eq!(pop_ledger_entry(&provider).header(name), Some("sent-value"), "{path}");
        }
    }
}

#[tokio::test]
async fn ignores_alias_headers_if_the_alias_is_disabled() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.header_aliases.clear());
    let response = gateway.send(request_to_path(CHAT_PATH).header("x-portkey-provider", "mock")).await;
    assert_eq!((response.status, response.error_code().as_str()), (400, "provider_required"));
    let response =
        gateway.send(post_request(CHAT_PATH, chat_body("mock", false)).header("x-portkey-trace-id", "t-1")).await;
    assert_eq!(
        (response.header("x-portkey-trace-id"), response.header("x-gateway-trace-id") == Some("t-1")),
        (None, false)
    );
}

#[tokio::test]
async fn reads_control_headers_by_alias_and_responds_with_it() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    gateway.apply_snapshot(
        &json!({"epoch": "1", "keys": [{"id": "k", "name": "k", "sha256": sha256_hex(GATEWAY_KEY)}],
        "providers": [{"slug": "mine", "provider": "mock", "api_key": "sk-stored"}],
        "configs": [{"slug": "pc-1", "config": {"provider": "@mine"}}]}),
    );
    for (name, value) in [
        ("provider", "mock"),
        ("provider", "@mine"),
        ("virtual-key", "mine"),
        ("config", "pc-1"),
        ("config", r#"{"provider":"mock"}"#),
    ] {
        let portkey_header = format!("x-portkey-{name}");
        let fields = [
            ("x-portkey-api-key", GATEWAY_KEY),
            (portkey_header.as_str(), value),
            ("x-portkey-trace-id", "t-1"),
            ("x-portkey-metadata", r#"{"_user":"ann"}"#),
            ("x-portkey-forward-headers", "x-team"),
            ("x-portkey-package-version", "portkey-2.3.4"),
            ("x-portkey-unheard-of", "1"),
            ("X-Team", "red"),
            ("authorization", "Bearer OPENAI_API_KEY"),
        ];
        let response = gateway.send(with_headers(request_to_path(CHAT_PATH), &fields)).await;
        assert_eq!(response.status, 200, "{name}: {}", response.text());
        let own = ["trace-id", "provider", "last-used-option-index", "retry-attempt-count", "cache-status"];
        let headers = own.map(|name| response.header(&format!("x-portkey-{name}")));
        assert_eq!(headers, [Some("t-1"), Some("mock"), Some("config"), Some("0"), Some("DISABLED")]);
        assert!(!response.headers.iter().any(|(name, _)| name.starts_with(b"x-gateway-")));
        let entry = pop_ledger_entry(&provider);
        assert_eq!((entry.header("x-team"), format!("{entry:?}").contains("OPENAI_API_KEY")), (Some("red"), false));
        assert_eq!(gateway.single_record()["metadata"], json!({"_user": "ann"}));
    }
    let refused = gateway.send(request_to_path(CHAT_PATH).header("x-portkey-api-key", "wrong")).await;
    assert!(refused.status == 401 && refused.header("x-portkey-trace-id").is_some());
}
