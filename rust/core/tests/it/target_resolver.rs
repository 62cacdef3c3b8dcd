//! Provider selection for a request: by its config, its headers, or the prefix of its model.

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestGateway, TestRequest, chat_body, post_with_config, routing_headers, sha256_hex,
    wait_for_ledger_entries,
};
use bytes::Bytes;
use penstock_mock::Server;
use penstock_net::body::{Body, BodyEnd, feed_channel};
use serde_json::json;

fn apply_saved_providers(gateway: &TestGateway) {
    gateway.apply_snapshot(&json!({"epoch": "1", "providers": [{"slug": "mine", "provider": "mock"}, {"slug": "other", "provider": "mock"}]}));
}

fn request_for_model(path: &str, model: &str) -> TestRequest {
    TestRequest::new("POST", path).header("content-type", "application/json").body(chat_body(model, false))
}

#[tokio::test]
async fn model_prefix_selects_saved_provider() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    apply_saved_providers(&gateway);
    for (count, path) in [(1, CHAT_PATH), (2, MESSAGES_PATH), (3, "/v1/embeddings")] {
        let response = gateway.send(request_for_model(path, "@mine/mock?chunks=1")).await;
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(wait_for_ledger_entries(&provider, count).await[count - 1].model, "mock?chunks=1");
        assert_eq!(gateway.single_record()["ai_model"], "mock?chunks=1");
    }
    let response = gateway.send(request_for_model(CHAT_PATH, "@gone/mock")).await;
    assert_eq!((response.status, response.error_code().as_str()), (400, "not_found_in_workspace"));
    for model in ["mock", "@mine", ""] {
        let response = gateway.send(request_for_model(CHAT_PATH, model)).await;
        assert_eq!((response.status, response.error_code().as_str()), (400, "provider_required"), "{model}");
    }
}

#[tokio::test]
async fn explicit_provider_takes_precedence_over_model_prefix() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    apply_saved_providers(&gateway);
    for (model, sent) in [("@mine/m", "m"), ("@cf/meta/m", "@cf/meta/m")] {
        let response = gateway.send(request_for_model(CHAT_PATH, model).header("x-gateway-provider", "@other")).await;
        assert_eq!(
            (response.status, gateway.single_record()["ai_model"].as_str()),
            (200, Some(sent)),
            "{}",
            response.text()
        );
        let response =
            gateway.send(post_with_config(&json!({"provider": "mock"}), CHAT_PATH, chat_body(model, false))).await;
        assert_eq!((response.status, gateway.single_record()["ai_model"].as_str()), (200, Some(sent)));
    }
    let models: Vec<_> = wait_for_ledger_entries(&provider, 4).await.into_iter().map(|entry| entry.model).collect();
    assert_eq!(models, ["m", "m", "@cf/meta/m", "@cf/meta/m"]);
}

const FORM_CONTENT_TYPE: &str = "multipart/form-data; boundary=edge";

fn transcription_form(model: &str, size: usize, is_first: bool) -> String {
    let model = format!("--edge\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n");
    let head = "--edge\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.wav\"";
    let file = format!("{head}\r\n\r\n{}\r\n", "\r\n--edg\r\n".repeat(size / 9));
    (if is_first { model + &file } else { file + &model }) + "--edge--\r\n"
}

#[tokio::test]
async fn form_model_prefix_selects_saved_provider() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    apply_saved_providers(&gateway);
    let path = "/v1/audio/transcriptions";
    let mut checked = 0;
    for (model, sent) in [("@mine/whisper-1", "whisper-1"), ("@cf/whisper", "@cf/whisper")] {
        for (size, is_first) in [(900, true), (900, false), (900_000, true)] {
            for provider_name in [None, Some("@mine")] {
                if provider_name.is_none() && model == sent {
                    continue;
                }
                for declared in [true, false] {
                    let (requested, expected) =
                        (transcription_form(model, size, is_first), transcription_form(sent, size, is_first));
                    let request = TestRequest::new("POST", path).header("content-type", FORM_CONTENT_TYPE);
                    let request = if let Some(name) = provider_name {
                        request.header("x-gateway-provider", name)
                    } else {
                        request
                    };
                    let response = gateway.send(request.with_body(chunked_body(&requested, declared))).await.json();
                    let location = format!("{model} {size} {is_first} {provider_name:?} {declared}");
                    assert_eq!(
                        (&response["body_bytes"], &response["body_sha"]),
                        (&json!(expected.len()), &json!(sha256_hex(&expected))),
                        "{location}"
                    );
                    assert_eq!(gateway.single_record()["ai_model"], *sent, "{location}");
                    checked += 1;
                }
            }
        }
    }
    assert_eq!(wait_for_ledger_entries(&provider, checked).await.len(), 18);
    let request = TestRequest::new("POST", path).header("content-type", FORM_CONTENT_TYPE);
    let response = gateway.send(request.body(transcription_form("whisper-1", 900, true))).await;
    assert_eq!((response.status, response.error_code().as_str()), (400, "provider_required"));
}

/// Body that arrives in chunks, with or without a declared length.
fn chunked_body(text: &str, declared: bool) -> Body {
    let (feeder, reading) = feed_channel(|| ());
    for chunk in text.as_bytes().chunks(7_001) {
        feeder.push(Bytes::copy_from_slice(chunk));
    }
    feeder.finish(BodyEnd::Complete);
    Body::Streamed(reading, declared.then_some(text.len() as u64))
}

#[tokio::test]
async fn override_params_model_prefix_selects_saved_provider() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    apply_saved_providers(&gateway);
    let config = json!({"override_params": {"model": "@mine/mock?chunks=2"}});
    let response = gateway.send(post_with_config(&config, CHAT_PATH, chat_body("m", false))).await;
    assert_eq!(
        (response.status, wait_for_ledger_entries(&provider, 1).await[0].model.as_str()),
        (200, "mock?chunks=2")
    );
}

#[tokio::test]
async fn passthrough_target_uses_provider_of_the_request() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    apply_saved_providers(&gateway);
    let alone = json!({"passthrough": true});
    let among =
        json!({"strategy": {"mode": "fallback"}, "targets": [{"passthrough": true, "override_params": {"seed": 1}}]});
    for config in [alone, among] {
        let send_request = |model: &str| post_with_config(&config, CHAT_PATH, chat_body(model, false));
        assert_eq!(gateway.send(send_request("@mine/mock")).await.status, 200);
        assert_eq!(gateway.send(send_request("mock").header("x-gateway-provider", "@mine")).await.status, 200);
        for unresolved in [send_request("mock"), send_request("mock").header("x-gateway-provider", "mock")] {
            let response = gateway.send(unresolved).await;
            assert_eq!((response.status, response.error_code().as_str()), (400, "provider_unresolved"));
            assert!(response.text().contains("@slug/model"));
        }
    }
    wait_for_ledger_entries(&provider, 4).await;
}

#[tokio::test]
async fn does_not_send_client_credential_to_several_targets() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    apply_saved_providers(&gateway);
    let keyed = |key: &str| json!({"provider": "mock", "api_key": key});
    let config = json!({"strategy": {"mode": "fallback", "on_status_codes": [500]},
        "targets": [{"provider": "mock", "override_params": {"model": "mock?status=500"}}, keyed("sk-2")]});
    let response = gateway
        .send(post_with_config(&config, CHAT_PATH, chat_body("m", false)).header("authorization", "Bearer sk-caller"))
        .await;
    assert_eq!((response.status, routing_headers(&response)[0]), (200, "config.targets[1]"));
    let sent: Vec<_> = wait_for_ledger_entries(&provider, 2)
        .await
        .iter()
        .map(|entry| entry.header("authorization").map(ToOwned::to_owned))
        .collect();
    assert_eq!(sent.len(), 2);
    assert!(!json!(sent).to_string().contains("sk-caller"), "{sent:?}");
    let single = gateway
        .send(
            post_with_config(&json!({"provider": "mock", "retry": {"attempts": 1}}), CHAT_PATH, chat_body("m", false))
                .header("authorization", "Bearer sk-caller"),
        )
        .await;
    assert_eq!(single.status, 200);
    assert!(wait_for_ledger_entries(&provider, 3).await[2].header("authorization").is_some());
}

#[tokio::test]
async fn rejects_config_with_more_targets_than_allowed() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.max_root_targets = 2);
    let config = |count| json!({"strategy": {"mode": "fallback"}, "targets": vec![json!({"provider": "mock"}); count]});
    gateway.apply_snapshot(&json!({"epoch": "1", "configs": [{"slug": "pc-many", "config": config(3)}]}));
    assert_eq!(gateway.send(post_with_config(&config(2), CHAT_PATH, chat_body("m", false))).await.status, 200);
    let many = post_with_config(&config(3), CHAT_PATH, chat_body("m", false));
    for request in [many, request_for_model(CHAT_PATH, "m").header("x-gateway-config", "pc-many")] {
        let response = gateway.send(request).await;
        assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_config"));
        let expected = json!(["path: targets, message: must hold at most 2 targets, not 3"]);
        assert_eq!(response.json()["errors"], expected);
    }
}

#[tokio::test]
async fn limits_conditional_and_nested_targets_separately() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| {
        (settings.max_root_targets, settings.max_conditional_targets, settings.max_nested_targets) = (1, 3, 2);
    });
    let targets = |count| vec![json!({"provider": "mock", "name": "t"}); count];
    let conditional = |count| json!({"strategy": {"mode": "conditional", "conditions": [], "default": "t"}, "targets": targets(count)});
    let nested = |count| json!({"targets": [{"strategy": {"mode": "fallback"}, "targets": targets(count)}]});
    for (config, refused) in [
        (conditional(3), None),
        (conditional(4), Some("path: targets, message: must hold at most 3 targets, not 4")),
        (nested(2), None),
        (nested(3), Some("path: targets[0], message: must hold at most 2 targets below it, not 3")),
    ] {
        let response = gateway.send(post_with_config(&config, CHAT_PATH, chat_body("m", false))).await;
        match refused {
            None => assert_eq!(response.status, 200, "{}", response.text()),
            Some(message) => assert_eq!((response.status, &response.json()["errors"]), (400, &json!([message]))),
        }
    }
}
