//! What a caller is told where a request goes no further: in which order, in whose shape, and by which ids it can be spoken of.

use crate::harness::{
    Ask, CHAT, MESSAGES, Rig, chat, get, post,
    scripted::{Scripted, whole},
    sha256, stream, words,
};
use penstock_mock::Server;
use serde_json::json;

const KEY: &str = "pk-gateway-0123456789";

fn keyed(rig: &Rig) {
    rig.apply(&json!({"epoch": "1", "keys": [{"id": "k", "name": "k", "sha256": sha256(KEY)}]}));
}

#[tokio::test]
async fn who_is_calling_is_asked_before_anything_else() {
    let rig = Rig::with("", |settings| settings.block_inline_config = true);
    keyed(&rig);
    let wrong = [
        ("content-type", "text/plain"),
        ("x-gateway-provider", "nobody"),
        ("x-gateway-config", "{"),
        ("x-gateway-custom-host", "ftp://a"),
        ("x-gateway-metadata", "{"),
        ("x-gateway-forward-headers", "x-gateway-forward-headers"),
    ];
    let every = |mut ask: Ask| {
        for (name, value) in wrong {
            ask = ask.header(name, value);
        }
        ask
    };
    for path in [CHAT, "/v1/files", "/v1/proxy/x"] {
        let told = rig.send(every(Ask::new("POST", path)).body("{")).await;
        assert_eq!((told.status, told.code().as_str()), (401, "03"), "{path}");
        let told = rig.send(every(Ask::new("POST", path)).header("x-gateway-api-key", KEY).body("{")).await;
        assert_eq!((told.status, told.code().as_str()), (400, "inline_config_blocked"), "{path}");
    }
}

#[tokio::test]
async fn a_config_with_faults_is_told_each_of_them_with_its_path() {
    let rig = Rig::at("http://127.0.0.1:1");
    let config = r#"{"provider":3,"request_timeout":"soon"}"#;
    let told = rig.send(Ask::new("POST", CHAT).header("x-gateway-config", config)).await.json();
    assert_eq!(json!([told["status"], told["message"]]), json!(["failure", "invalid config"]));
    let errors: Vec<_> = told["errors"].as_array().unwrap().iter().map(|error| error.as_str().unwrap()).collect();
    assert_eq!(errors[0], "path: provider, message: must be a string, not a number");
    assert!(errors[1].starts_with("path: request_timeout, message: "), "{errors:?}");
    let told = rig.send(Ask::new("POST", CHAT).header("x-gateway-config", "{oops")).await.json();
    assert!(told["errors"][0].as_str().unwrap().contains("valid JSON"), "{told}");
}

#[tokio::test]
async fn anthropics_clients_are_told_in_their_own_shape() {
    let rig = Rig::at("http://127.0.0.1:1");
    for ask in [
        Ask::new("POST", MESSAGES).body(words("m", false)),
        Ask::new("POST", "/v1/messages/count_tokens").body("{}"),
        Ask::new("POST", "/v1/messages/batches"),
        Ask::new("GET", "/v1/proxy/messages/batches/b"),
        Ask::new("GET", "/v1/models/m").header("anthropic-version", "2023-06-01"),
    ] {
        let told = rig.send(ask).await;
        let record = rig.record();
        let body = told.json();
        assert_eq!(
            (told.status, json!([body["type"], body["error"]["type"], body["request_id"]])),
            (400, json!(["error", "invalid_request_error", record["id"]])),
            "{record:#}"
        );
        assert!(body["error"]["message"].as_str().unwrap().starts_with("no provider"));
        assert_eq!(told.header("request-id"), record["id"].as_str());
    }
    for ask in [Ask::new("POST", "/v1/messagesx"), Ask::new("GET", "/v1/files")] {
        assert_eq!(rig.send(ask).await.json()["status"], "failure");
    }
}

#[tokio::test]
async fn every_answer_has_ids_by_which_it_can_be_spoken_of() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for ask in [
        chat("mock"),
        stream(CHAT, "mock"),
        stream(MESSAGES, "mock"),
        get("/v1/files"),
        get("/v1/files?mock-fault=reset"),
        post(CHAT, "nonsense"),
        Ask::new("POST", CHAT),
    ] {
        let told = rig.send(ask).await;
        let record = rig.record();
        for name in ["x-request-id", "request-id"] {
            let values: Vec<_> = told.headers.iter().filter(|(field, _)| *field == name.as_bytes()).collect();
            assert_eq!(values.len(), 1, "{name}: {record:#}");
        }
        // The pretend provider says one of the two where it speaks a dialect; the other is ours.
        let ids = ["x-request-id", "request-id"].map(|name| told.header(name).unwrap());
        let ours = record["id"].as_str().unwrap();
        assert!(ids.contains(&ours) && ids.iter().all(|id| *id == ours || id.starts_with("req_0")), "{ids:?}");
    }
}

#[tokio::test]
async fn the_providers_own_ids_are_kept_and_what_it_runs_on_is_not_told() {
    let more = "x-request-id: theirs\r\nX-Powered-By: Express\r\nx-gateway-provider: forged\r\n\
                Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\n";
    let provider = Scripted::answering(whole("200 OK", more, "{}")).await;
    let rig = Rig::at(&provider.url());
    let told = rig.send(chat("m")).await;
    let record = rig.record();
    assert_eq!((told.header("x-request-id"), told.header("request-id")), (Some("theirs"), record["id"].as_str()));
    let said = ["x-powered-by", "x-hop", "x-gateway-provider"].map(|name| told.header(name));
    assert_eq!(said, [None, None, Some("mock")]);
    let provider = Scripted::answering(whole("200 OK", "Request-Id: req_1\r\n", "{}")).await;
    let told = Rig::at(&provider.url()).send(post(MESSAGES, words("m", false))).await;
    assert_eq!(told.header("request-id"), Some("req_1"));
}
