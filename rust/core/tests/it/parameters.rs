//! Parameter changes by a config: defaults, overrides and drops. They reach the provider byte for byte on every route
//! that carries JSON.

use crate::harness::{
    CHAT_PATH, TestGateway, TestRequest, pick_fields, post_with_config, request_without_provider,
    scripted_server::{self, ScriptedServer, read_request},
};
use serde_json::json;
use tokio::{io::AsyncWriteExt, sync::mpsc};

/// Starts a provider that sends the bodies it receives to a channel. It answers 503 if the request contains "fails".
async fn start_recording_provider() -> (ScriptedServer, mpsc::UnboundedReceiver<String>) {
    let (sender, response) = mpsc::unbounded_channel();
    let provider = ScriptedServer::start(move |mut io, _| {
        let sender = sender.clone();
        async move {
            while let Some(request) = read_request(&mut io).await {
                let text = String::from_utf8(request).unwrap();
                sender.send(text.split_once("\r\n\r\n").unwrap().1.to_owned()).unwrap();
                let status = if text.contains("fails") { "503 Service Unavailable" } else { "200 OK" };
                let _ = io.write_all(&scripted_server::json_response(status, "", "{}")).await;
            }
        }
    })
    .await;
    (provider, response)
}

#[tokio::test]
async fn defaults_overrides_and_drops_leave_other_bytes_unchanged() {
    let (provider, mut bodies) = start_recording_provider().await;
    let gateway = TestGateway::for_url(&provider.url());
    let config = json!({"provider": "mock", "default_params": {"temperature": 1, "top_p": 0.5},
        "override_params": {"model": "other"}, "drop_params": ["tools[*].strict", "user"]});
    let body =
        r#"{ "model" : "m",  "temperature":0.10, "tools":[ {"strict":true, "n":1e2} ], "user":"u", "x":"é\u0041" }"#;
    let expected = r#"{ "model" : "other",  "temperature":0.10, "tools":[ { "n":1e2} ], "x":"é\u0041","top_p":0.5 }"#;
    for path in [CHAT_PATH, "/v1/responses", "/v1/proxy/chat/completions", "/v1/some/inference"] {
        let response = gateway.send(post_with_config(&config, path, body)).await;
        assert_eq!((response.status, bodies.recv().await.unwrap().as_str()), (200, expected), "{path}");
    }
    assert_eq!(gateway.drain_records()[0]["ai_model"], "other");
}

#[tokio::test]
async fn drops_the_prefix_of_a_model_and_leaves_other_bytes_unchanged() {
    let (provider, mut bodies) = start_recording_provider().await;
    let gateway = TestGateway::for_url(&provider.url());
    let target = json!({"provider": "mock", "drop_model_prefix": "vendor/"});
    let config = json!({"strategy": {"mode": "conditional", "default": "vendor",
        "conditions": [{"query": {"params.model": {"$regex": "^vendor/"}}, "then": "vendor"}]},
        "targets": [{"name": "vendor", "drop_model_prefix": "outer/", "targets": [target]}]});
    for (sent, expected) in [("vendor/m/x", "m/x"), ("m", "m"), ("vendor/", "vendor/"), ("outer/m", "outer/m")] {
        let body = |model: &str| format!(r#"{{ "x":"é\u0041", "model" : "{model}",  "temperature":0.10 }}"#);
        for path in [CHAT_PATH, "/v1/embeddings", "/v1/proxy/chat/completions"] {
            let response = gateway.send(post_with_config(&config, path, body(sent))).await;
            assert_eq!((response.status, bodies.recv().await.unwrap()), (200, body(expected)), "{path} {sent}");
        }
    }
    assert_eq!(gateway.drain_records()[0]["ai_model"], "m/x");
    let form =
        |model: &str| format!("--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n--x--\r\n");
    let upload = TestRequest::new("POST", "/v1/audio/transcriptions")
        .header("x-gateway-config", &config.to_string())
        .header("content-type", "multipart/form-data; boundary=x")
        .body(form("vendor/whisper-1"));
    assert_eq!((gateway.send(upload).await.status, bodies.recv().await.unwrap()), (200, form("whisper-1")));
    let nitro = post_with_config(&config, CHAT_PATH, r#"{"model":"vendor/m"}"#).header("x-gateway-nitro-mode", "true");
    gateway.send(nitro).await;
    assert_eq!(bodies.recv().await.unwrap(), r#"{"model":"vendor/m"}"#);
}

#[tokio::test]
async fn nitro_mode_sends_one_unchanged_request() {
    let (provider, mut bodies) = start_recording_provider().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.retry_backoff_ms = 1);
    let config = json!({"provider": "mock", "override_params": {"model": "other"}, "default_params": {"top_p": 1},
        "retry": {"attempts": 2}});
    let nitro = |config, body| post_with_config(config, CHAT_PATH, body).header("x-portkey-nitro-mode", "true");
    let body = r#"{"model":"fails", "stream": true}"#;
    let response = gateway.send(nitro(&config, body)).await;
    assert_eq!((response.status, response.header("x-portkey-retry-attempt-count")), (503, Some("0")));
    assert_eq!((bodies.recv().await.unwrap().as_str(), bodies.try_recv().is_err()), (body, true));
    // With any other header value, the config applies as usual.
    gateway.send(post_with_config(&config, CHAT_PATH, body).header("x-gateway-nitro-mode", "false")).await;
    assert!(bodies.recv().await.unwrap().contains("\"model\":\"other\""));
    // Nitro mode rejects a provider that needs translation, with or without a config.
    let plain = request_without_provider(CHAT_PATH)
        .header("x-gateway-provider", "anthropic")
        .header("authorization", "Bearer k")
        .body(body);
    for request in [post_with_config(&json!({"provider": "anthropic", "api_key": "k"}), CHAT_PATH, body), plain] {
        let response = gateway.send(request.header("x-gateway-nitro-mode", "true")).await;
        assert_eq!((response.status, response.error_code().as_str()), (500, "unsupported_operation"));
    }
}

#[tokio::test]
async fn overridden_stream_parameter_is_treated_as_streaming() {
    let (provider, mut bodies) = start_recording_provider().await;
    let gateway = TestGateway::for_url(&provider.url());
    let config = json!({"provider": "mock", "override_params": {"stream": true}});
    gateway.send(post_with_config(&config, CHAT_PATH, r#"{"model":"m"}"#)).await;
    assert_eq!(bodies.recv().await.unwrap(), r#"{"stream_options":{"include_usage":true},"model":"m","stream":true}"#);
    assert_eq!(pick_fields(&gateway.single_record(), ["stream_mode", "ai_model"]), json!([true, "m"]));
}

#[tokio::test]
async fn non_json_body_is_unchanged() {
    let (provider, mut bodies) = start_recording_provider().await;
    let gateway = TestGateway::for_url(&provider.url());
    let config = json!({"provider": "mock", "override_params": {"a": 1}}).to_string();
    for (kind, body) in [("multipart/form-data; boundary=x", "--x--\r\n"), ("audio/mpeg", "abc")] {
        let request = TestRequest::new("POST", "/v1/audio/transcriptions")
            .header("x-gateway-config", &config)
            .header("content-type", kind)
            .body(body);
        assert_eq!(gateway.send(request).await.status, 200);
        assert_eq!(bodies.recv().await.unwrap(), body);
    }
}

#[tokio::test]
async fn form_model_becomes_the_deployment_if_the_path_has_none() {
    let (provider, mut bodies) = start_recording_provider().await;
    let form = |model: &str| {
        format!(
            "--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n--x\r\nContent-Disposition: form-data; \
             name=\"file\"; filename=\"a.wav\"\r\n\r\nsound\r\n--x--\r\n"
        )
    };
    for (version, expected) in [("v1", "heard"), ("2024-10-21", "whisper-1")] {
        let config = json!({"provider": "azure-openai", "api_key": "k", "resource_name": "r", "api_version": version,
            "deployment_id": "heard", "custom_host": provider.url()});
        let request = TestRequest::new("POST", "/v1/audio/transcriptions")
            .header("x-gateway-config", &config.to_string())
            .header("content-type", "multipart/form-data; boundary=x")
            .body(form("whisper-1"));
        let response = TestGateway::for_url(&provider.url()).send(request).await;
        assert_eq!((response.status, bodies.recv().await.unwrap()), (200, form(expected)), "{}", response.text());
    }
}

#[tokio::test]
async fn form_model_is_overridden_for_each_target() {
    let (provider, mut bodies) = start_recording_provider().await;
    let gateway = TestGateway::for_url(&provider.url());
    let config = json!({"strategy": {"mode": "fallback"}, "targets": [
    {"provider": "mock", "override_params": {"model": "it fails"}}, {"provider": "mock", "override_params": {"model": "second"}},
    ]});
    let form =
        |model: &str| format!("--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n--x--\r\n");
    let request = TestRequest::new("POST", "/v1/audio/transcriptions")
        .header("x-gateway-config", &config.to_string())
        .header("content-type", "multipart/form-data; boundary=x")
        .body(form("whisper-1"));
    let response = gateway.send(request).await;
    assert_eq!(response.status, 200);
    assert_eq!(bodies.recv().await.unwrap(), form("it fails"));
    assert_eq!(bodies.recv().await.unwrap(), form("second"));
    assert_eq!(gateway.single_record()["ai_model"], "second");
}

#[tokio::test]
async fn json_array_passes_unchanged_on_unknown_path() {
    let (provider, mut bodies) = start_recording_provider().await;
    let config = json!({"provider": "mock", "override_params": {"a": 1}});
    assert_eq!(
        TestGateway::for_url(&provider.url()).send(post_with_config(&config, "/v1/other", "[1, 2]")).await.status,
        200
    );
    assert_eq!(bodies.recv().await.unwrap(), "[1, 2]");
}

#[tokio::test]
async fn each_target_changes_the_original_request() {
    let (provider, mut bodies) = start_recording_provider().await;
    let gateway = TestGateway::for_url(&provider.url());
    let config = json!({"strategy": {"mode": "fallback"}, "override_params": {"far": 1, "both": 1}, "targets": [
        {"provider": "mock", "default_params": {"fails": true}, "override_params": {"both": 2}, "drop_params": ["user"]},
        {"provider": "mock", "default_params": {"seed": 3}}]});
    assert_eq!(gateway.send(post_with_config(&config, CHAT_PATH, r#"{"model":"m","user":"u"}"#)).await.status, 200);
    assert_eq!(bodies.recv().await.unwrap(), r#"{"model":"m","fails":true,"both":2,"far":1}"#);
    assert_eq!(bodies.recv().await.unwrap(), r#"{"model":"m","user":"u","seed":3,"far":1,"both":1}"#);
}

#[tokio::test]
async fn drops_a_parameter_from_a_large_body() {
    let (provider, mut bodies) = start_recording_provider().await;
    let gateway = TestGateway::for_url(&provider.url());
    let config = json!({"provider": "mock", "drop_params": ["b"]});
    let text = "x".repeat(1_000_000);
    gateway.send(post_with_config(&config, CHAT_PATH, format!(r#"{{"a":"{text}","b":1}}"#))).await;
    assert_eq!(bodies.recv().await.unwrap(), format!(r#"{{"a":"{text}"}}"#));
}
