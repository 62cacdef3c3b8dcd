//! Custom hosts in place of a provider's address. A saved key is sent only to the host that it was saved with.

use crate::harness::{CHAT_PATH, MESSAGES_PATH, TestGateway, request_without_provider, single_sent_request};
use penstock_mock::Server;
use serde_json::json;

#[tokio::test]
async fn custom_host_replaces_provider_address() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let host = format!("{}/some/where/", provider.url());
    let to = |slug, path| {
        request_without_provider(path).header("x-gateway-provider", slug).header("x-gateway-custom-host", &host)
    };
    assert_eq!(gateway.send(to("openai", CHAT_PATH).header("authorization", "Bearer sk-caller")).await.status, 200);
    let entry = single_sent_request(&provider);
    assert_eq!(
        (entry.path.as_str(), entry.header("authorization"), entry.header("host")),
        ("/some/where/chat/completions", Some("Bearer sk-caller"), Some(provider.addr.to_string().as_str()))
    );
    // Anthropic's SDK sends its key in the `x-api-key` header.
    assert_eq!(gateway.send(to("anthropic", MESSAGES_PATH).header("x-api-key", "sk-ant")).await.status, 200);
    let entry = single_sent_request(&provider);
    let headers = ["x-api-key", "authorization", "anthropic-version"].map(|name| entry.header(name));
    assert_eq!(headers, [Some("sk-ant"), None, Some("2023-06-01")]);
}

#[tokio::test]
async fn does_not_send_saved_key_to_custom_host_of_request() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    gateway.apply_snapshot(
        &json!({"epoch": "1", "providers": [{"slug": "mine", "provider": "openai", "api_key": "sk-saved"}]}),
    );
    let request = request_without_provider(CHAT_PATH)
        .header("x-gateway-provider", "@mine")
        .header("x-gateway-custom-host", &provider.url());
    let response = gateway.send(request).await;
    assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_custom_host"));
    let config = json!({"provider": "@mine", "custom_host": provider.url()}).to_string();
    assert_eq!(gateway.send(request_without_provider(CHAT_PATH).header("x-gateway-config", &config)).await.status, 400);
    assert!(provider.ledger_entries().is_empty());
}

#[tokio::test]
async fn binds_saved_key_to_its_host_on_every_path_and_alias() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let bound = format!("{}/v1", provider.url());
    gateway.apply_snapshot(&json!({"epoch": "1",
        "providers": [{"slug": "mine", "provider": "openai", "api_key": "sk-saved"},
            {"slug": "fields", "provider": "openai", "headers": {"x-token": "sk-saved"}},
            {"slug": "models", "provider": "openai", "models": "m"}],
        "models": [{"id": "m", "allow_all": true, "models": [
            {"slug": "m", "enabled": true, "headers": {"x-token": "sk-saved"}}]}],
        "configs": [
            {"slug": "pc-mine", "config": {"provider": "@mine"}},
            {"slug": "pc-key", "config": {"provider": "openai", "api_key": "sk-saved"}},
            {"slug": "pc-loose", "config": {"api_key": "sk-saved"}},
            {"slug": "pc-host", "config": {"custom_host": bound}},
            {"slug": "pc-bound", "config": {"provider": "openai", "api_key": "sk-bound", "custom_host": bound}}]}));
    let host = provider.url();
    let inline = json!({"provider": "@mine", "custom_host": host}).to_string();
    let no_provider = json!({"custom_host": host}).to_string();
    let custom = ("x-gateway-custom-host", host.as_str());
    let alias = ("x-portkey-custom-host", host.as_str());
    for path in [CHAT_PATH, "/v1/files", "/v1/proxy/chat/completions"] {
        for fields in [
            [("x-gateway-provider", "@mine"), custom],
            [("x-gateway-provider", "@mine"), alias],
            [("x-gateway-provider", "@fields"), custom],
            [("x-gateway-provider", "@models"), custom],
            [("x-gateway-config", "pc-host"), ("x-gateway-provider", "@fields")],
            [("x-gateway-virtual-key", "mine"), custom],
            [("x-gateway-config", "pc-mine"), custom],
            [("x-gateway-config", "pc-key"), alias],
            [("x-gateway-config", "pc-bound"), custom],
            [("x-gateway-config", inline.as_str()), ("x-gateway-provider", "openai")],
            [("x-gateway-config", no_provider.as_str()), ("x-gateway-provider", "@mine")],
            [("x-gateway-config", no_provider.as_str()), ("x-portkey-virtual-key", "mine")],
            [("x-gateway-config", "pc-host"), ("x-gateway-provider", "@mine")],
            [("x-gateway-config", "pc-loose"), ("x-gateway-provider", "ollama")],
            [("x-gateway-config", "pc-loose"), custom],
        ] {
            let request = fields
                .iter()
                .fold(request_without_provider(path), |request, (name, value)| request.header(name, value));
            let response = gateway.send(request).await;
            let code = response.error_code();
            assert!(
                response.status == 400 && ["invalid_custom_host", "provider_required"].contains(&&*code),
                "{path} {fields:?}: {code}"
            );
        }
        assert!(provider.ledger_entries().is_empty(), "{path}");
        assert_eq!(
            gateway.send(request_without_provider(path).header("x-gateway-config", "pc-bound")).await.status,
            200,
            "{path}"
        );
        assert_eq!(single_sent_request(&provider).header("authorization"), Some("Bearer sk-bound"), "{path}");
    }
}
