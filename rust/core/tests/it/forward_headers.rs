//! What of a caller's header fields reaches a provider: on operations, on pass-through and on the raw proxy, whoever lists them.

use crate::harness::{Ask, CHAT, MESSAGES, Rig, post, sha256, words};
use penstock_mock::{Entry, Server};
use serde_json::json;

const SURFACES: [&str; 4] = [CHAT, MESSAGES, "/v1/assistants/a", "/v1/proxy/chat/completions"];
const KEY: &str = "pk-gateway-0123456789";

/// Everything that must stay here, and words to find it by.
const SECRET: &[(&str, &str)] = &[
    ("x-gateway-api-key", KEY),
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
    ("x-also", KEY),
    ("x-bearer", "Bearer pk-gateway-0123456789"),
];

/// A gateway that knows its key, and a provider whose own is stored.
async fn house() -> (Server, Rig) {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    rig.apply(&json!({"epoch": "1", "keys": [{"id": "k", "name": "k", "sha256": sha256(KEY)}],
        "providers": [{"slug": "mine", "provider": "mock", "api_key": "sk-stored"}]}));
    (provider, rig)
}

fn sent(provider: &Server) -> Entry {
    let entry = provider.ledger_entries().pop().expect("it reached the provider");
    provider.clear_ledger();
    entry
}

fn with(mut ask: Ask, fields: &[(&str, &str)]) -> Ask {
    for (name, value) in fields {
        ask = ask.header(name, value);
    }
    ask
}

fn ask(path: &str) -> Ask {
    Ask::new("POST", path).header("content-type", "application/json").body(words("mock", false))
}

#[tokio::test]
async fn what_is_the_gateways_the_connections_or_a_secret_stays_here_even_where_it_is_listed() {
    let (provider, rig) = house().await;
    let every: Vec<_> = SECRET.iter().map(|(name, _)| *name).collect();
    for path in SURFACES {
        for listed in [String::new(), every.join(", ")] {
            let fields = [("x-gateway-provider", "@mine"), ("x-gateway-forward-headers", listed.as_str())];
            let told = rig.send(with(with(ask(&format!("{path}?a=1&key={KEY}&b=2")), &fields), SECRET)).await;
            assert_eq!(told.status, 200, "{path} {listed}: {}", told.text());
            let entry = sent(&provider);
            let seen = format!("{:?}", entry.headers);
            assert!(!seen.contains("kept-") && !seen.contains(KEY) && !seen.contains("9876543210"), "{path}: {seen}");
            assert!(!seen.contains("x-gateway") && !seen.contains("x-portkey"), "{path}: {seen}");
            assert!(entry.path.ends_with("?a=1&b=2"), "{}", entry.path);
            // Nothing takes the place of the provider's own credential, and there is one of it.
            let credentials: Vec<_> = entry.headers.iter().filter(|(name, _)| name == "authorization").collect();
            assert_eq!(credentials, [&("authorization".to_owned(), "Bearer sk-stored".to_owned())], "{path}");
        }
    }
}

#[tokio::test]
async fn what_a_config_lists_is_held_to_the_same() {
    let (provider, rig) = house().await;
    let every: Vec<_> = SECRET.iter().map(|(name, _)| *name).collect();
    let config = json!({"provider": "@mine", "forward_headers": every}).to_string();
    for path in SURFACES {
        let told = rig.send(with(ask(path).header("x-gateway-config", &config), SECRET)).await;
        assert_eq!(told.status, 200, "{path}: {}", told.text());
        let seen = format!("{:?}", sent(&provider).headers);
        assert!(!seen.contains("kept-") && !seen.contains(KEY), "{path}: {seen}");
    }
}

#[tokio::test]
async fn what_opens_the_metadata_of_clouds_is_refused_where_listed_and_dropped_where_sent() {
    let (provider, rig) = house().await;
    for name in ["Metadata-Flavor", "X-aws-ec2-metadata-token", "metadata"] {
        let fields = [("x-gateway-api-key", KEY), ("x-gateway-provider", "@mine"), (name, "Google")];
        for path in SURFACES {
            let told = rig.send(with(ask(path), &fields).header("x-gateway-forward-headers", name)).await;
            assert_eq!((told.status, told.text().contains(&name.to_ascii_lowercase())), (400, true), "{path} {name}");
            assert_eq!(rig.send(with(ask(path), &fields)).await.status, 200);
            assert_eq!(sent(&provider).header(&name.to_ascii_lowercase()), None, "{path} {name}");
        }
    }
}

#[tokio::test]
async fn a_list_must_not_name_itself_under_any_prefix() {
    let (provider, rig) = house().await;
    for name in ["x-gateway-forward-headers", "X-Portkey-Forward-Headers"] {
        let ask = ask(CHAT).header("x-gateway-api-key", KEY).header("x-gateway-provider", "mock");
        let told = rig.send(ask.header("x-gateway-forward-headers", name)).await;
        assert_eq!((told.status, told.code().as_str()), (400, "invalid_header"), "{name}");
    }
    assert!(provider.ledger_entries().is_empty());
}

#[tokio::test]
async fn a_field_of_the_providers_own_may_come_under_any_prefix_of_ours() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for name in ["openai-organization", "openai-project", "openai-beta", "anthropic-beta", "anthropic-version"] {
        for path in SURFACES {
            for prefix in ["x-gateway-", "x-portkey-", ""] {
                rig.send(post(path, words("mock", false)).header(&format!("{prefix}{name}"), "said")).await;
                let entry = sent(&provider);
                let values: Vec<_> = entry.headers.iter().filter(|(field, _)| field == name).collect();
                assert_eq!(values, [&(name.to_owned(), "said".to_owned())], "{path} {prefix}");
            }
            let both =
                post(path, words("mock", false)).header(name, "bare").header(&format!("x-gateway-{name}"), "said");
            rig.send(both).await;
            assert_eq!(sent(&provider).header(name), Some("said"), "{path}");
        }
    }
}

#[tokio::test]
async fn with_the_alias_off_its_fields_mean_nothing_to_the_gateway() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.header_aliases.clear());
    let told = rig.send(ask(CHAT).header("x-portkey-provider", "mock")).await;
    assert_eq!((told.status, told.code().as_str()), (400, "provider_needed"));
    let told = rig.send(post(CHAT, words("mock", false)).header("x-portkey-trace-id", "t-1")).await;
    assert_eq!((told.header("x-portkey-trace-id"), told.header("x-gateway-trace-id") == Some("t-1")), (None, false));
}

#[tokio::test]
async fn every_control_field_is_read_under_the_alias_and_answered_under_it() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    rig.apply(&json!({"epoch": "1", "keys": [{"id": "k", "name": "k", "sha256": sha256(KEY)}],
        "providers": [{"slug": "mine", "provider": "mock", "api_key": "sk-stored"}],
        "configs": [{"slug": "pc-1", "config": {"provider": "@mine"}}]}));
    for (name, value) in [
        ("provider", "mock"),
        ("provider", "@mine"),
        ("virtual-key", "mine"),
        ("config", "pc-1"),
        ("config", r#"{"provider":"mock"}"#),
    ] {
        let named = format!("x-portkey-{name}");
        let fields = [
            ("x-portkey-api-key", KEY),
            (named.as_str(), value),
            ("x-portkey-trace-id", "t-1"),
            ("x-portkey-metadata", r#"{"_user":"ann"}"#),
            ("x-portkey-forward-headers", "x-team"),
            ("x-portkey-package-version", "portkey-2.3.4"),
            ("x-portkey-unheard-of", "1"),
            ("X-Team", "red"),
            ("authorization", "Bearer OPENAI_API_KEY"),
        ];
        let told = rig.send(with(ask(CHAT), &fields)).await;
        assert_eq!(told.status, 200, "{name}: {}", told.text());
        let own = ["trace-id", "provider", "last-used-option-index", "retry-attempt-count", "cache-status"];
        let said = own.map(|name| told.header(&format!("x-portkey-{name}")));
        assert_eq!(said, [Some("t-1"), Some("mock"), Some("config"), Some("0"), Some("DISABLED")]);
        assert!(!told.headers.iter().any(|(name, _)| name.starts_with(b"x-gateway-")));
        let entry = sent(&provider);
        assert_eq!((entry.header("x-team"), format!("{entry:?}").contains("OPENAI_API_KEY")), (Some("red"), false));
        assert_eq!(rig.record()["metadata"], json!({"key": ["_user"], "value": ["ann"]}));
    }
    let refused = rig.send(ask(CHAT).header("x-portkey-api-key", "wrong")).await;
    assert!(refused.status == 401 && refused.header("x-portkey-trace-id").is_some());
}
