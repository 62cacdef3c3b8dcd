//! Who calls whom with what: the gateway's key opens the gateway and goes no further, the provider's goes to its provider only.

use crate::harness::{
    Ask, CHAT, MESSAGES, Rig, plain,
    scripted::{Scripted, whole},
    sent, sha256, words,
};
use penstock_mock::Server;
use serde_json::{Value, json};

const KEY: &str = "pk-canary-0123456789";

fn keyed() -> Value {
    json!({"epoch": "1", "keys": [{"id": "k-1", "name": "dev", "sha256": sha256(KEY)},
        {"id": "k-old", "name": "old", "sha256": sha256("pk-old"), "expires_at": 1}]})
}

#[tokio::test]
async fn a_provider_name_and_a_bearer_token_are_enough() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for path in [CHAT, MESSAGES, "/v1/proxy/anything"] {
        let ask = plain(path).header("x-gateway-provider", "mock").header("Authorization", "bearer sk-caller");
        assert_eq!(rig.send(ask).await.status, 200, "{path}");
        assert_eq!(sent(&provider).header("authorization"), Some("Bearer sk-caller"), "{path}");
    }
}

#[tokio::test]
async fn an_inline_config_with_one_provider_is_enough() {
    let provider = Server::start().await;
    let rig = Rig::with("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let config = json!({"provider": "openai", "api_key": "sk-config", "custom_host": format!("{}/v1", provider.url())});
    let ask = plain(CHAT).header("x-gateway-config", &config.to_string()).header("authorization", "Bearer sk-caller");
    assert_eq!(rig.send(ask).await.status, 200);
    assert_eq!(sent(&provider).header("authorization"), Some("Bearer sk-config"));
}

#[tokio::test]
async fn saved_providers_and_configs_bring_their_own_key() {
    let provider = Server::start().await;
    let rig = Rig::with("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    rig.apply(&json!({"epoch": "1",
        "providers": [{"slug": "mine", "provider": "openai", "api_key": "sk-saved", "custom_host": format!("{}/v1", provider.url())}],
        "configs": [{"slug": "pc-main", "config": {"provider": "@mine"}}]}));
    for (name, value) in
        [("x-gateway-provider", "@mine"), ("x-gateway-virtual-key", "mine"), ("x-gateway-config", "pc-main")]
    {
        let told = rig.send(plain(CHAT).header(name, value)).await;
        assert_eq!(told.status, 200, "{name}: {}", told.text());
        assert_eq!(sent(&provider).header("authorization"), Some("Bearer sk-saved"), "{name}");
    }
}

#[tokio::test]
async fn a_saved_key_goes_nowhere_that_a_configs_options_name() {
    let evil = Server::start().await;
    let rig = Rig::with("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let url = evil.url().replace("http://", "https://");
    let config = json!({"provider": "@foundry", "azure_foundry_url": url});
    rig.apply(&json!({"epoch": "1",
        "providers": [{"slug": "foundry", "provider": "azure-ai", "api_key": "sk-saved"}],
        "configs": [{"slug": "pc-evil", "config": config}]}));
    for named in [config.to_string().as_str(), "pc-evil"] {
        let told = rig.send(plain(CHAT).header("x-gateway-config", named)).await;
        assert!(told.status == 400 && told.text().contains("no foundry"), "{named}: {}", told.text());
    }
    assert!(evil.ledger_entries().is_empty());
}

#[tokio::test]
async fn a_saved_key_is_not_replaced_by_what_the_caller_sends_in_its_place() {
    let provider = Server::start().await;
    let rig = Rig::with("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let host = format!("{}/v1", provider.url());
    rig.apply(&json!({"epoch": "1", "providers": [
        {"slug": "open", "provider": "openai", "api_key": "sk-saved", "custom_host": host},
        {"slug": "anth", "provider": "anthropic", "api_key": "sk-saved", "custom_host": host}]}));
    for (slug, expected) in [("@open", [Some("Bearer sk-saved"), None]), ("@anth", [None, Some("sk-saved")])] {
        for path in ["/v1/assistants", "/v1/files", "/v1/proxy/messages"] {
            let mut ask = plain(path).header("x-gateway-provider", slug);
            for name in ["authorization", "x-api-key", "X-API-Key", "api-key", "x-goog-api-key"] {
                ask = ask.header(name, "Bearer sk-caller");
            }
            let told = rig.send(ask.header("x-gateway-forward-headers", "authorization,x-api-key,api-key")).await;
            assert_eq!(told.status, 200, "{path}: {}", told.text());
            let entry = sent(&provider);
            assert_eq!(["authorization", "x-api-key"].map(|name| entry.header(name)), expected, "{path} {slug}");
            assert!(!format!("{entry:?}").contains("sk-caller"), "{path} {slug}");
        }
    }
}

#[tokio::test]
async fn stored_header_fields_leave_open_of_whom_a_credential_is_fetched() {
    let issuer = Scripted::answering(whole("200 OK", "", r#"{"access_token":"t-1","expires_in":3600}"#)).await;
    let provider = Server::start().await;
    let rig = Rig::with("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let said = [
        ("azure-auth-mode", "entra"),
        ("azure-entra-tenant-id", "t"),
        ("azure-entra-client-id", "c"),
        ("azure-entra-client-secret", "s"),
        ("azure-authority-host", &issuer.url()),
    ];
    let mut config = json!({"provider": "@az"});
    for (name, value) in said {
        config[name.replace('-', "_")] = value.into();
    }
    rig.apply(&json!({"epoch": "1", "configs": [{"slug": "pc-entra", "config": config}], "providers": [{"slug": "az",
        "provider": "azure-openai", "custom_host": provider.url(), "headers": {"x-team": "red"},
        "options": {"resource_name": "res", "api_version": "2024-10-21"}}]}));
    let ask = Ask::new("POST", CHAT)
        .header("content-type", "application/json")
        .header("x-gateway-azure-deployment-id", "d")
        .body(words("gpt-4o", false));
    let by_fields = said.iter().fold(ask.header("x-gateway-provider", "@az"), |ask, (name, value)| {
        ask.header(&format!("x-gateway-{name}"), value)
    });
    let by_config = Ask::new("POST", CHAT)
        .header("content-type", "application/json")
        .header("x-gateway-azure-deployment-id", "d")
        .header("x-gateway-config", "pc-entra")
        .body(words("gpt-4o", false));
    for ask in [by_fields, by_config] {
        let told = rig.send(ask).await;
        let came = provider.ledger_entries();
        let entry = came.last().unwrap_or_else(|| panic!("{}", told.text()));
        let fields = ["authorization", "x-team"].map(|name| entry.header(name));
        assert_eq!(fields, [Some("Bearer t-1"), Some("red")], "{}", told.text());
    }
    assert_eq!(provider.ledger_entries().len(), 2);
}

#[tokio::test]
async fn an_oauth_token_of_claudes_stays_a_bearer_wherever_it_was_sent() {
    let provider = Server::start().await;
    let rig = Rig::with("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    rig.apply(&keyed());
    let host = format!("{}/v1", provider.url());
    let token = "sk-ant-oat01-0123456789";
    for path in [MESSAGES, "/v1/messages/batches", "/v1/proxy/messages"] {
        for (name, value) in [("authorization", format!("Bearer {token}")), ("x-api-key", token.to_owned())] {
            let ask = plain(path)
                .header("x-gateway-api-key", KEY)
                .header("x-gateway-provider", "anthropic")
                .header("x-gateway-custom-host", &host)
                .header("anthropic-beta", "oauth-2025-04-20")
                .header(name, &value);
            assert_eq!(rig.send(ask).await.status, 200, "{path} {name}");
            let entry = sent(&provider);
            let said = ["authorization", "x-api-key", "anthropic-beta"].map(|name| entry.header(name));
            assert_eq!(said, [Some("Bearer sk-ant-oat01-0123456789"), None, Some("oauth-2025-04-20")], "{path} {name}");
        }
    }
}

#[tokio::test]
async fn a_scheme_that_is_no_bearers_goes_on_as_it_is_where_it_is_not_the_gateways() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    rig.apply(&keyed());
    let signed =
        |id: &str| format!("AWS4-HMAC-SHA256 Credential={id}/20261121/eu-west-1/bedrock/aws4_request, Signature=0");
    for path in [CHAT, "/v1/files", "/v1/proxy/anything"] {
        for value in ["Basic dXNlcjpzZWNyZXQ=".to_owned(), signed("AKIDPROVIDER"), "sk-without-a-scheme".to_owned()] {
            let ask = plain(path).header("x-gateway-provider", "mock").header("authorization", &value);
            assert_eq!(rig.send(ask.header("x-gateway-api-key", KEY)).await.status, 200, "{path}");
            assert_eq!(sent(&provider).header("authorization"), Some(value.as_str()), "{path}");
        }
        for with_its_header in [false, true] {
            let mut ask = plain(path).header("x-gateway-provider", "mock").header("authorization", &signed(KEY));
            if with_its_header {
                ask = ask.header("x-gateway-api-key", KEY);
            }
            assert_eq!(rig.send(ask).await.status, 200, "{path}");
            assert_eq!(sent(&provider).header("authorization"), None, "{path}");
        }
    }
}

#[tokio::test]
async fn the_gateways_key_and_the_providers_stand_side_by_side_in_any_two_places() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    rig.apply(&keyed());
    let places = ["authorization", "x-api-key", "api-key", "x-goog-api-key"];
    let written =
        |place: &str, key: &str| if place == "authorization" { format!("Bearer {key}") } else { key.to_owned() };
    for path in [CHAT, "/v1/files", "/v1/proxy/anything"] {
        for ours in places.into_iter().chain(["x-gateway-api-key"]) {
            for theirs in places.into_iter().filter(|place| *place != ours) {
                let ask =
                    plain(path).header("x-gateway-provider", "mock").header(theirs, &written(theirs, "sk-theirs"));
                assert_eq!(rig.send(ask.header(ours, &written(ours, KEY))).await.status, 200, "{path} {ours} {theirs}");
                assert_eq!(sent(&provider).header("authorization"), Some("Bearer sk-theirs"), "{path} {ours} {theirs}");
                assert!(rig.records().iter().all(|record| record["api_key_id"] == "k-1"));
            }
        }
        // One client of Azure's writes what it has twice; it is the gateway's, or the provider's beside it.
        let twice = |key: &str| plain(path).header("api-key", key).header("authorization", &format!("Bearer {key}"));
        assert_eq!(rig.send(twice(KEY).header("x-gateway-provider", "mock")).await.status, 200, "{path}");
        assert_eq!(sent(&provider).header("authorization"), None, "{path}");
        let ask = twice("sk-theirs").header("x-gateway-provider", "mock").header("x-gateway-api-key", KEY);
        assert_eq!(rig.send(ask).await.status, 200, "{path}");
        assert_eq!(sent(&provider).header("authorization"), Some("Bearer sk-theirs"), "{path}");
    }
}

#[tokio::test]
async fn the_gateways_key_opens_in_its_header_and_in_authorization() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    rig.apply(&keyed());
    for path in [CHAT, MESSAGES, "/v1/proxy/anything"] {
        let ask = || plain(path).header("x-gateway-provider", "mock");
        let own = ask().header("x-gateway-api-key", KEY).header("authorization", "Bearer sk-caller");
        assert_eq!(rig.send(own).await.status, 200, "{path}");
        assert_eq!(sent(&provider).header("authorization"), Some("Bearer sk-caller"), "{path}");
        let alias = ask().header("x-portkey-api-key", KEY);
        assert_eq!(rig.send(alias).await.status, 200, "{path}");
        assert_eq!(sent(&provider).header("authorization"), None, "{path}");
        let bearer = ask().header("authorization", &format!("Bearer {KEY}"));
        assert_eq!(rig.send(bearer).await.status, 200, "{path}");
        assert_eq!(sent(&provider).header("authorization"), None, "{path}");
        assert!(rig.records().iter().all(|record| record["api_key_id"] == "k-1"));
    }
}

#[tokio::test]
async fn the_gateways_key_goes_no_further_even_where_it_is_sent_twice() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    rig.apply(&keyed());
    // SDKs insist on a key of their own; people give them the one they have.
    for (name, value) in
        [("authorization", format!("Bearer {KEY}")), ("x-api-key", KEY.into()), ("api-key", KEY.into())]
    {
        for path in [CHAT, MESSAGES, "/v1/proxy/anything"] {
            let ask = plain(path).header("x-gateway-provider", "mock").header("x-gateway-api-key", KEY);
            assert_eq!(rig.send(ask.header(name, &value)).await.status, 200, "{path} {name}");
            let entry = sent(&provider);
            let said = ["authorization", "x-api-key", "api-key"].map(|name| entry.header(name));
            assert_eq!(said, [None; 3], "{path} {name}");
        }
    }
}

#[tokio::test]
async fn without_a_valid_key_nothing_leaves() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    rig.apply(&keyed());
    let ask = |path| plain(path).header("x-gateway-provider", "mock");
    for (name, value, code) in [
        ("x-none", "", "03"),
        ("authorization", "Bearer sk-caller", "03"),
        ("authorization", "Basic cGs6cGs=", "03"),
        ("x-gateway-api-key", "pk-wrong", "03"),
        ("x-gateway-api-key", "pk-old", "03"),
        ("authorization", "Bearer pk-old", "03"),
    ] {
        let told = rig.send(ask(CHAT).header(name, value)).await;
        assert_eq!((told.status, told.code().as_str()), (401, code), "{name}: {value}");
        let told = rig.send(ask(MESSAGES).header(name, value)).await;
        assert_eq!(told.json()["error"]["type"], "authentication_error", "{name}: {value}");
    }
    assert!(provider.ledger_entries().is_empty());
}

#[tokio::test]
async fn a_key_can_be_required_before_any_is_configured() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.require_key = true);
    assert_eq!(rig.send(plain(CHAT).header("x-gateway-provider", "mock")).await.status, 401);
    assert!(provider.ledger_entries().is_empty());
}

#[tokio::test]
async fn what_names_no_provider_or_an_unknown_one_is_refused() {
    let rig = Rig::at("http://127.0.0.1:1");
    for (name, value, code) in [
        ("x-none", "", "provider_needed"),
        ("x-gateway-provider", "nobody", "invalid_provider"),
        ("x-gateway-provider", "@nobody", "not_found_in_workspace"),
        ("x-gateway-config", "pc-nobody", "not_found_in_workspace"),
        ("x-gateway-config", "{}", "provider_needed"),
        ("x-gateway-config", "{", "invalid_config"),
        ("x-gateway-config", r#"{"provider":"mock","retry":{"attempts":9}}"#, "invalid_config"),
        ("x-gateway-provider", "ollama", "invalid_custom_host"),
    ] {
        let told = rig.send(plain(CHAT).header(name, value)).await;
        assert_eq!((told.status, told.code().as_str()), (400, code), "{name}: {value}");
    }
}

#[tokio::test]
async fn no_error_repeats_a_credential() {
    let rig = Rig::at("http://127.0.0.1:1");
    rig.apply(&keyed());
    let config = r#"{"provider":"nobody","api_key":"sk-canary"}"#;
    for ask in [
        plain(CHAT).header("x-gateway-api-key", "pk-canary-wrong"),
        plain(CHAT).header("x-gateway-api-key", KEY).header("x-gateway-config", config),
        plain(CHAT).header("x-gateway-api-key", KEY).header("x-gateway-provider", "mock"),
        plain(MESSAGES).header("authorization", "Bearer sk-canary"),
    ] {
        let told = rig.send(ask).await;
        assert!(told.status >= 400 && !told.text().contains("canary"), "{}", told.text());
    }
}
