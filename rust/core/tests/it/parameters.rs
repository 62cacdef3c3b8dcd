//! What a config changes of a request reaches the provider, byte for byte, on every route that carries JSON.

use crate::harness::{
    Ask, CHAT, Rig, by_with, pick, plain,
    scripted::{self, Scripted, request},
};
use serde_json::json;
use tokio::{io::AsyncWriteExt, sync::mpsc};

/// A provider that hands over the bodies that it gets, and fails where they say so.
async fn listening() -> (Scripted, mpsc::UnboundedReceiver<String>) {
    let (tell, told) = mpsc::unbounded_channel();
    let provider = Scripted::start(move |mut io, _| {
        let tell = tell.clone();
        async move {
            while let Some(asked) = request(&mut io).await {
                let text = String::from_utf8(asked).unwrap();
                tell.send(text.split_once("\r\n\r\n").unwrap().1.to_owned()).unwrap();
                let status = if text.contains("fails") { "503 Service Unavailable" } else { "200 OK" };
                let _ = io.write_all(&scripted::whole(status, "", "{}")).await;
            }
        }
    })
    .await;
    (provider, told)
}

#[tokio::test]
async fn defaults_then_what_is_set_then_what_is_dropped_and_all_else_as_it_was_written() {
    let (provider, mut bodies) = listening().await;
    let rig = Rig::at(&provider.url());
    let config = json!({"provider": "mock", "default_params": {"temperature": 1, "top_p": 0.5},
        "override_params": {"model": "other"}, "drop_params": ["tools[*].strict", "user"]});
    let body =
        r#"{ "model" : "m",  "temperature":0.10, "tools":[ {"strict":true, "n":1e2} ], "user":"u", "x":"é\u0041" }"#;
    let expected = r#"{ "model" : "other",  "temperature":0.10, "tools":[ { "n":1e2} ], "x":"é\u0041","top_p":0.5 }"#;
    for path in [CHAT, "/v1/responses", "/v1/proxy/chat/completions", "/v1/some/inference"] {
        let told = rig.send(by_with(&config, path, body)).await;
        assert_eq!((told.status, bodies.recv().await.unwrap().as_str()), (200, expected), "{path}");
    }
    assert_eq!(rig.records()[0]["ai_model"], "other");
}

#[tokio::test]
async fn in_nitro_mode_a_request_goes_once_and_as_it_came() {
    let (provider, mut bodies) = listening().await;
    let rig = Rig::with(&provider.url(), |settings| settings.retry_backoff_ms = 1);
    let config = json!({"provider": "mock", "override_params": {"model": "other"}, "default_params": {"top_p": 1},
        "retry": {"attempts": 2}});
    let nitro = |config, body| by_with(config, CHAT, body).header("x-portkey-nitro-mode", "true");
    let body = r#"{"model":"fails", "stream": true}"#;
    let told = rig.send(nitro(&config, body)).await;
    assert_eq!((told.status, told.header("x-portkey-retry-attempt-count")), (503, Some("0")));
    assert_eq!((bodies.recv().await.unwrap().as_str(), bodies.try_recv().is_err()), (body, true));
    // With another value it is as it always is.
    rig.send(by_with(&config, CHAT, body).header("x-gateway-nitro-mode", "false")).await;
    assert!(bodies.recv().await.unwrap().contains("\"model\":\"other\""));
    // What its provider would have to be told in other words is told so, with or without a config.
    let plain = plain(CHAT).header("x-gateway-provider", "anthropic").header("authorization", "Bearer k").body(body);
    for ask in [by_with(&json!({"provider": "anthropic", "api_key": "k"}), CHAT, body), plain] {
        let told = rig.send(ask.header("x-gateway-nitro-mode", "true")).await;
        assert_eq!((told.status, told.code().as_str()), (500, "unsupported_operation"));
    }
}

#[tokio::test]
async fn a_model_that_is_set_to_stream_is_known_to_stream() {
    let (provider, mut bodies) = listening().await;
    let rig = Rig::at(&provider.url());
    let config = json!({"provider": "mock", "override_params": {"stream": true}});
    rig.send(by_with(&config, CHAT, r#"{"model":"m"}"#)).await;
    assert_eq!(bodies.recv().await.unwrap(), r#"{"stream_options":{"include_usage":true},"model":"m","stream":true}"#);
    assert_eq!(pick(&rig.record(), ["stream_mode", "ai_model"]), json!([true, "m"]));
}

#[tokio::test]
async fn what_is_no_json_stays_as_it_is() {
    let (provider, mut bodies) = listening().await;
    let rig = Rig::at(&provider.url());
    let config = json!({"provider": "mock", "override_params": {"a": 1}}).to_string();
    for (kind, body) in [("multipart/form-data; boundary=x", "--x--\r\n"), ("audio/mpeg", "abc")] {
        let ask = Ask::new("POST", "/v1/audio/transcriptions")
            .header("x-gateway-config", &config)
            .header("content-type", kind)
            .body(body);
        assert_eq!(rig.send(ask).await.status, 200);
        assert_eq!(bodies.recv().await.unwrap(), body);
    }
}

#[tokio::test]
async fn a_form_names_the_deployment_that_no_path_names() {
    let (provider, mut bodies) = listening().await;
    let form = |model: &str| {
        format!(
            "--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n--x\r\nContent-Disposition: form-data; \
             name=\"file\"; filename=\"a.wav\"\r\n\r\nsound\r\n--x--\r\n"
        )
    };
    for (version, expected) in [("v1", "heard"), ("2024-10-21", "whisper-1")] {
        let config = json!({"provider": "azure-openai", "api_key": "k", "resource_name": "r", "api_version": version,
            "deployment_id": "heard", "custom_host": provider.url()});
        let ask = Ask::new("POST", "/v1/audio/transcriptions")
            .header("x-gateway-config", &config.to_string())
            .header("content-type", "multipart/form-data; boundary=x")
            .body(form("whisper-1"));
        let told = Rig::at(&provider.url()).send(ask).await;
        assert_eq!((told.status, bodies.recv().await.unwrap()), (200, form(expected)), "{}", told.text());
    }
}

#[tokio::test]
async fn a_form_names_the_model_of_each_target() {
    let (provider, mut bodies) = listening().await;
    let rig = Rig::at(&provider.url());
    let config = json!({"strategy": {"mode": "fallback"}, "targets": [
    {"provider": "mock", "override_params": {"model": "it fails"}}, {"provider": "mock", "override_params": {"model": "second"}},
    ]});
    let form =
        |model: &str| format!("--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n--x--\r\n");
    let ask = Ask::new("POST", "/v1/audio/transcriptions")
        .header("x-gateway-config", &config.to_string())
        .header("content-type", "multipart/form-data; boundary=x")
        .body(form("whisper-1"));
    let told = rig.send(ask).await;
    assert_eq!(told.status, 200);
    assert_eq!(bodies.recv().await.unwrap(), form("it fails"));
    assert_eq!(bodies.recv().await.unwrap(), form("second"));
    assert_eq!(rig.record()["ai_model"], "second");
}

#[tokio::test]
async fn lists_pass_on_paths_without_an_operation_as_they_came() {
    let (provider, mut bodies) = listening().await;
    let config = json!({"provider": "mock", "override_params": {"a": 1}});
    assert_eq!(Rig::at(&provider.url()).send(by_with(&config, "/v1/other", "[1, 2]")).await.status, 200);
    assert_eq!(bodies.recv().await.unwrap(), "[1, 2]");
}

#[tokio::test]
async fn each_target_changes_the_request_as_it_came() {
    let (provider, mut bodies) = listening().await;
    let rig = Rig::at(&provider.url());
    let config = json!({"strategy": {"mode": "fallback"}, "override_params": {"far": 1, "both": 1}, "targets": [
        {"provider": "mock", "default_params": {"fails": true}, "override_params": {"both": 2}, "drop_params": ["user"]},
        {"provider": "mock", "default_params": {"seed": 3}}]});
    assert_eq!(rig.send(by_with(&config, CHAT, r#"{"model":"m","user":"u"}"#)).await.status, 200);
    assert_eq!(bodies.recv().await.unwrap(), r#"{"model":"m","fails":true,"both":2,"far":1}"#);
    assert_eq!(bodies.recv().await.unwrap(), r#"{"model":"m","user":"u","seed":3,"far":1,"both":1}"#);
}

#[tokio::test]
async fn a_large_body_is_changed_too() {
    let (provider, mut bodies) = listening().await;
    let rig = Rig::at(&provider.url());
    let config = json!({"provider": "mock", "drop_params": ["b"]});
    let text = "x".repeat(1_000_000);
    rig.send(by_with(&config, CHAT, format!(r#"{{"a":"{text}","b":1}}"#))).await;
    assert_eq!(bodies.recv().await.unwrap(), format!(r#"{{"a":"{text}"}}"#));
}
