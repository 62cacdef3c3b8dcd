//! `WebSockets`: who asks for a session is led to a provider as with any request, or told why there is none.

use crate::harness::{
    Ask, Rig, pick,
    scripted::{Scripted, chunks, request, whole},
    settled, sha256,
    talk::{REALTIME, ask, connect, open, refused, status},
    tls::{acceptor, file},
};
use penstock_core::{endpoints::realtime::UpgradeOutcome, response::outgoing::ClientResponseBody};
use penstock_mock::Server;
use serde_json::{Value, json};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};

#[tokio::test]
async fn what_refuses_a_websocket_is_told_with_its_status_and_has_a_record() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for (ask, expected, code) in [
        (ask("/v1/realtime?model=m&mock-status=429"), 429, Value::Null),
        (Ask::new("GET", REALTIME), 400, json!("provider_needed")),
        (Ask::new("GET", REALTIME).header("x-gateway-provider", "groq"), 500, json!("unsupported_operation")),
        (
            Ask::new("GET", "/v1/responses").header("x-gateway-provider", "anthropic"),
            500,
            json!("unsupported_operation"),
        ),
        (ask(REALTIME).header("x-gateway-custom-host", "http://127.0.0.1:9/v1"), 400, json!("invalid_custom_host")),
    ] {
        let (status, _) = refused(&rig, ask).await;
        let record = rig.record();
        assert_eq!(pick(&record, ["response_status_code", "is_success"]), json!([expected, false]), "{record:#}");
        assert_eq!((status, &record["error"]), (expected, &code), "{record:#}");
    }
}

#[tokio::test]
async fn keys_among_the_protocols_open_the_gateway_and_go_no_further() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    rig.apply(&json!({"epoch": "1", "keys": [{"id": "k", "name": "k", "sha256": sha256("pk-1")}],
        "providers": [{"slug": "mine", "provider": "mock", "api_key": "sk-stored"}]}));
    let asked = |target: &str, key: &str| {
        let protocols = format!("realtime, openai-insecure-api-key.{key}, openai-beta.realtime-v1");
        Ask::new("GET", target).header("sec-websocket-protocol", &protocols)
    };
    let (status, _) = refused(&rig, asked("/v1/realtime?model=@mine/m", "pk-2")).await;
    assert_eq!((status, rig.record()["error"].as_str()), (401, Some("03")));
    let mut talk = open(&rig, asked("/v1/realtime?model=%40mine%2Fgpt-realtime", "pk-1")).await;
    assert_eq!(talk.protocol.as_deref(), Some("realtime"));
    assert_eq!(talk.event().await["session"]["model"], "gpt-realtime");
    talk.close(1000, "").await;
    let record = rig.record();
    assert_eq!(pick(&record, ["api_key_id", "ai_model"]), json!(["k", "gpt-realtime"]));
    assert!(!record.to_string().contains("pk-1"), "{record}");
    let sent = &settled(&provider, 1).await[0];
    let field = |wanted: &str| {
        sent.headers.iter().filter(|(name, _)| name == wanted).map(|(_, value)| value.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(field("authorization"), ["Bearer sk-stored"]);
    assert_eq!(field("sec-websocket-protocol"), ["realtime, openai-beta.realtime-v1"]);
    assert!(!format!("{:?}", sent.headers).contains("pk-1"));
}

#[tokio::test]
async fn a_key_among_the_protocols_is_the_providers_where_the_gateway_is_open() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let offered = ask(REALTIME).header("sec-websocket-protocol", "realtime, openai-insecure-api-key.sk-own");
    let talk = open(&rig, offered).await;
    talk.close(1000, "").await;
    let sent = &settled(&provider, 1).await[0];
    assert!(sent.headers.iter().any(|(name, value)| name == "authorization" && value == "Bearer sk-own"));
}

#[tokio::test]
async fn the_next_target_is_asked_where_one_refuses() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let config = json!({"strategy": {"mode": "fallback"}, "targets": [
        {"provider": "openai", "api_key": "sk", "custom_host": "http://127.0.0.1:4009/v1"},
        {"provider": "mock", "override_params": {"model": "another one"}}]});
    let asked = Ask::new("GET", REALTIME).header("x-gateway-config", &config.to_string());
    let talk = open(&rig, asked).await;
    talk.close(1000, "").await;
    let told = pick(&rig.record(), ["ai_org", "last_used_option_index", "outcome", "ai_model"]);
    assert_eq!(told, json!(["mock", "config.targets[1]", "complete", "another one"]));
    let sent = &settled(&provider, 1).await[0];
    assert!(sent.path.contains("model=another+one"), "{}", sent.path);
}

/// A session by a config.
fn asked_by(config: &Value) -> Ask {
    Ask::new("GET", REALTIME).header("x-gateway-config", &config.to_string())
}

/// What became of it: status, option and steps.
fn told(rig: &Rig) -> (Value, Vec<Value>) {
    let record = rig.record();
    let steps = record["decisions"].as_array().unwrap().iter().map(|step| pick(step, ["step", "at", "status"]));
    (pick(&record, ["response_status_code", "last_used_option_index", "retry_success_count"]), steps.collect())
}

/// Refuses every session with this status.
async fn refusing(status: &str) -> (Scripted, Value) {
    let provider = Scripted::closing(whole(status, "connection: close\r\n", "{}")).await;
    let target = json!({"provider": "mock", "custom_host": format!("{}/v1", provider.url())});
    (provider, target)
}

fn house(provider: &Server) -> Rig {
    Rig::with(&provider.url(), |settings| {
        (settings.retry_backoff_ms, settings.trusted_custom_hosts) = (1, vec!["127.0.0.1".into()]);
    })
}

#[tokio::test]
async fn what_a_provider_says_instead_of_opening_one_is_told_also_where_it_comes_in_pieces() {
    let head =
        "HTTP/1.1 403 Forbidden\r\ncontent-type: text/plain\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    for (length, told) in [(9, 9), (65_536, 65_536), (300_000, 65_536)] {
        let said = "n".repeat(length);
        let body = [head.as_bytes(), &chunks(said.as_bytes(), 5000), b"0\r\n\r\n"].concat();
        let provider = Scripted::closing(body).await;
        let rig = Rig::at(&provider.url());
        let UpgradeOutcome::Rejected(answer) = connect(&rig, ask(REALTIME)).await else { panic!("it was opened") };
        let ClientResponseBody::Complete(body) = &answer.body else { panic!("a stream") };
        assert_eq!((status(&answer), body.len(), &body[..9]), (403, told, &said.as_bytes()[..9]));
        assert_eq!(answer.head.headers.get_str("content-length"), Some(told.to_string().as_str()));
    }
}

#[tokio::test]
async fn a_refused_handshake_is_explained_when_it_asks() {
    let (provider, (_kept, bad)) = (Server::start().await, refusing("503 Service Unavailable").await);
    let rig = house(&provider);
    let UpgradeOutcome::Rejected(answer) = connect(&rig, asked_by(&bad).header("x-gateway-explain", "true")).await
    else {
        panic!("a session")
    };
    let said: Value = serde_json::from_str(answer.head.headers.get_str("x-gateway-explanation").unwrap()).unwrap();
    assert_eq!(pick(&said["target"], ["provider", "model"]), json!(["mock", "gpt-realtime"]), "{said}");
    assert_eq!(pick(&said["decisions"][0], ["step", "status"]), json!(["tried", 503]), "{said}");
}

#[tokio::test]
async fn a_list_of_statuses_says_which_refusals_of_a_session_count() {
    let (provider, (_kept, bad)) = (Server::start().await, refusing("400 Bad Request").await);
    let rig = house(&provider);
    let by = |listed: Value| json!({"strategy": {"mode": "fallback", "on_status_codes": listed}, "targets": [bad, {"provider": "mock"}]});
    assert_eq!(refused(&rig, asked_by(&by(json!([429])))).await.0, 400);
    let tried = |at: &str, status: u16| json!(["tried", at, status]);
    assert_eq!(told(&rig), (json!([400, "config.targets[0]", 0]), vec![tried("config.targets[0]", 400)]));
    open(&rig, asked_by(&by(json!([400])))).await.close(1000, "").await;
    let steps = vec![tried("config.targets[0]", 400), tried("config.targets[1]", 101)];
    assert_eq!(told(&rig), (json!([101, "config.targets[1]", 0]), steps));
}

#[tokio::test]
async fn a_session_is_asked_for_again_and_a_target_that_fails_is_closed_off() {
    let (provider, (bad, mut target)) = (Server::start().await, refusing("503 Service Unavailable").await);
    let rig = house(&provider);
    target["retry"] = json!({"attempts": 2});
    target["cb_config"] = json!({"failure_threshold": 2, "cooldown_interval": 30_000});
    let config = json!({"strategy": {"mode": "fallback"}, "targets": [target, {"provider": "mock"}]});
    open(&rig, asked_by(&config)).await.close(1000, "").await;
    assert_eq!((bad.connections(), rig.gateway.record_sink.metrics.retries.get()), (3, 2));
    let names: Vec<_> = told(&rig).1.iter().map(|step| step[0].clone()).collect();
    assert_eq!(names, ["tried", "tried", "tried", "stopped", "tried"]);
    assert_eq!(rig.gateway.shared.breakers.open_count(), 1);
    open(&rig, asked_by(&config)).await.close(1000, "").await;
    assert_eq!((bad.connections(), told(&rig).1[0].clone()), (3, json!(["skipped", "config.targets[0]", null])));
}

#[tokio::test]
async fn a_session_that_is_not_agreed_to_in_the_callers_time_is_given_up() {
    let provider = Server::start().await;
    let silent = Scripted::start(|mut stream, _| async move { while request(&mut stream).await.is_some() {} }).await;
    let rig = house(&provider);
    let target = json!({"provider": "mock", "custom_host": format!("{}/v1", silent.url())});
    let two = json!({"strategy": {"mode": "fallback"}, "targets": [target, {"provider": "mock"}]});
    for config in [&target, &two] {
        let began = std::time::Instant::now();
        let (status, _) = refused(&rig, asked_by(config).header("x-stainless-timeout", "0.2")).await;
        assert_eq!(status, 408);
        assert!(began.elapsed() < std::time::Duration::from_secs(2));
    }
}

/// TLS in front of a provider, under the test authority.
async fn secured(provider: &Server) -> u16 {
    let (listener, to) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), provider.addr);
    let (port, acceptor) = (listener.local_addr().unwrap().port(), acceptor(&[b"h2", b"http/1.1"]));
    tokio::spawn(async move {
        while let Ok((io, _)) = listener.accept().await {
            let Ok(mut outside) = acceptor.accept(io).await else { continue };
            tokio::spawn(async move {
                let mut inside = TcpStream::connect(to).await.unwrap();
                let _ = copy_bidirectional(&mut outside, &mut inside).await;
            });
        }
    });
    port
}

#[tokio::test]
async fn a_session_goes_over_tls_to_whom_the_operators_authority_vouches_for_and_to_nobody_else() {
    let provider = Server::start().await;
    let port = secured(&provider).await;
    let rig = |trusts: bool| {
        Rig::with("", |settings| {
            settings.trusted_custom_hosts = vec!["localhost".into()];
            settings.tls_ca = trusts.then(|| file("authority.pem"));
        })
    };
    let ask = || ask(REALTIME).header("x-gateway-custom-host", &format!("https://localhost:{port}/v1"));
    let trusting = rig(true);
    let mut talk = open(&trusting, ask()).await;
    assert_eq!(talk.event().await["session"]["model"], "gpt-realtime");
    talk.say(json!({"type": "response.create"})).await;
    assert_eq!(talk.until("response.output_text.delta").await["delta"], "Hello");
    talk.until("response.done").await;
    talk.close(1000, "done").await;
    assert_eq!(pick(&trusting.record(), ["outcome", "total_units"]), json!(["complete", 20]));
    let (status, told) = refused(&rig(false), ask()).await;
    assert_eq!((status, &told["error"]["code"]), (502, &json!("upstream_connect_failed")), "{told}");
}
