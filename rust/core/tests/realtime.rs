//! `WebSockets`: who asks is led to a provider as with any request, both talk, and one record says what it used.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends where it fails")]

mod harness;

use std::sync::Arc;

use harness::{
    Ask, Rig, in_time, pick,
    scripted::{Scripted, chunks, request, whole},
    settled, sha256,
    tls::{acceptor, file},
};
use penstock_core::{
    answer::{Answer, Contents},
    realtime::{self, CloseCode, CloseFrame, Connected, Message},
};
use penstock_mock::{Outcome, Server};
use serde_json::{Value, json};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::mpsc::{self, Receiver, Sender},
    task::JoinHandle,
};

const REALTIME: &str = "/v1/realtime?model=gpt-realtime";

/// The caller's side of a session.
struct Talk {
    protocol: Option<String>,
    says: Option<Sender<Message>>,
    hears: Receiver<Message>,
    relay: JoinHandle<()>,
}

fn ask(target: &str) -> Ask {
    Ask::new("GET", target).header("x-gateway-provider", "mock")
}

async fn connect(rig: &Rig, ask: Ask) -> Connected {
    Box::pin(in_time(realtime::connect(&rig.gateway, ask.request().head))).await
}

async fn open(rig: &Rig, ask: Ask) -> Talk {
    match connect(rig, ask).await {
        Connected::Open(session) => {
            let (says, from_caller) = mpsc::channel(2);
            let (to_caller, hears) = mpsc::channel(2);
            let (gateway, protocol) = (Arc::clone(&rig.gateway), session.protocol.clone());
            let relay = tokio::spawn(async move { session.relay(&gateway, from_caller, to_caller).await });
            Talk { protocol, says: Some(says), hears, relay }
        }
        Connected::Refused(answer) => match answer.body {
            Contents::Whole(body) => panic!("{}", String::from_utf8_lossy(&body)),
            Contents::Stream(_) => panic!("a stream"),
        },
    }
}

async fn refused(rig: &Rig, ask: Ask) -> (u16, Value) {
    match connect(rig, ask).await {
        Connected::Refused(answer) => {
            let Contents::Whole(body) = &answer.body else { panic!("a stream") };
            (status(&answer), serde_json::from_slice(body).unwrap_or_default())
        }
        Connected::Open(_) => panic!("it was opened"),
    }
}

fn status(answer: &Answer) -> u16 {
    answer.reply.status
}

impl Talk {
    async fn say(&self, event: Value) {
        self.send(Message::text(event.to_string())).await;
    }

    async fn send(&self, message: Message) {
        in_time(self.says.as_ref().unwrap().send(message)).await.unwrap();
    }

    async fn hear(&mut self) -> Message {
        in_time(self.hears.recv()).await.expect("nothing more is said")
    }

    async fn event(&mut self) -> Value {
        serde_json::from_str(self.hear().await.to_text().unwrap()).unwrap()
    }

    /// Hears until an event of this type.
    async fn until(&mut self, kind: &str) -> Value {
        for _ in 0..100 {
            let event = self.event().await;
            if event["type"] == kind {
                return event;
            }
        }
        panic!("no {kind}");
    }

    async fn close(mut self, code: u16, reason: &str) {
        let frame = CloseFrame { code: CloseCode::from(code), reason: reason.into() };
        self.send(Message::Close(Some(frame))).await;
        self.says = None;
        in_time(self.relay).await.unwrap();
    }

    async fn over(self) {
        in_time(self.relay).await.unwrap();
    }
}

fn closed(message: &Message) -> (u16, String) {
    let Message::Close(Some(frame)) = message else { panic!("{message:?}") };
    (frame.code.into(), frame.reason.to_string())
}

#[tokio::test]
async fn both_say_what_they_say_and_one_record_says_what_it_used() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let rates = json!({"input": [[0, 1_000_000]], "audio_in": [[0, 10_000_000]], "output": [[0, 2_000_000]]});
    let said = json!([{"provider": "mock", "model": "gpt-realtime", "prices": [{"version": "v1", "rates": rates}]}]);
    rig.apply(&json!({"epoch": "1", "prices": {"said": said}}));
    let mut talk = open(&rig, ask(REALTIME)).await;
    assert_eq!(talk.event().await["session"]["model"], "gpt-realtime");
    for _ in 0..2 {
        talk.say(json!({"type": "response.create"})).await;
        assert_eq!(talk.until("response.output_text.delta").await["delta"], "Hello");
        talk.until("response.done").await;
    }
    talk.send(Message::Binary(vec![0, 255, 7].into())).await;
    assert_eq!(talk.hear().await, Message::Binary(vec![0, 255, 7].into()));
    assert!(rig.records().is_empty(), "not before its end");
    talk.close(1000, "done").await;
    let record = rig.record();
    let told = pick(&record, ["operation", "ai_model", "outcome", "is_success", "response_status_code", "stream_mode"]);
    assert_eq!(told, json!(["realtime", "gpt-realtime", "complete", true, 101, true]));
    assert_eq!(pick(&record, ["req_units", "res_units", "total_units"]), json!([24, 16, 40]));
    assert_eq!(record["usage"], json!({"input": 14, "output": 16, "audio_in": 10}));
    // Twice seven of text, five of sound and eight of text answered.
    assert_eq!(pick(&record, ["cost_nanodollars", "price_version"]), json!([2 * (7_000 + 50_000 + 16_000), "v1"]));
    assert_eq!(settled(&provider, 1).await[0].outcome, Outcome::Complete);
    assert_eq!(rig.gateway.sink.metrics.in_flight(), 0);
}

#[tokio::test]
async fn what_another_model_writes_down_costs_what_that_model_costs() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let price = |model: &str, version: &str, audio: u64| {
        let rates = json!({"input": [[0, 1_000_000]], "audio_in": [[0, audio]], "output": [[0, 2_000_000]]});
        json!({"provider": "mock", "model": model, "prices": [{"version": version, "rates": rates}]})
    };
    let said = json!([price("gpt-realtime", "v1", 10_000_000), price("gpt-4o-transcribe", "w1", 3_000_000)]);
    rig.apply(&json!({"epoch": "1", "prices": {"said": said}}));
    // One that nobody knows the price of costs as much as the model that talks.
    for (writer, audio, version) in [("gpt-4o-transcribe", 36_000, "v1+w1"), ("unknown", 120_000, "v1")] {
        let mut talk = open(&rig, ask(REALTIME)).await;
        let input = json!({"input": {"transcription": {"model": writer}}});
        talk.say(json!({"type": "session.update", "session": {"audio": input}})).await;
        talk.say(json!({"type": "input_audio_buffer.commit"})).await;
        talk.say(json!({"type": "response.create"})).await;
        talk.until("response.done").await;
        talk.close(1000, "done").await;
        let record = rig.record();
        assert_eq!(record["usage"], json!({"input": 8, "output": 17, "audio_in": 17}));
        let cost = 7_000 + 50_000 + 16_000 + 1_000 + audio + 18_000;
        assert_eq!(pick(&record, ["cost_nanodollars", "price_version"]), json!([cost, version]), "{writer}");
    }
}

#[tokio::test]
async fn what_is_saved_of_the_model_that_writes_decides_and_what_nobody_talked_costs_nothing() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let rates = json!({"input": [[0, 1_000_000]], "audio_in": [[0, 3_000_000]], "output": [[0, 2_000_000]]});
    let row = |slug: &str| json!({"slug": slug, "enabled": true, "prices": [{"version": slug, "rates": rates}]});
    rig.apply(&json!({"epoch": "1", "providers": [{"slug": "mine", "provider": "mock", "models": "m"}],
        "models": [{"id": "m", "allow_all": true, "models": [row("gpt-4o-transcribe")]}]}));
    let asked = Ask::new("GET", "/v1/realtime?intent=transcription").header("x-gateway-provider", "@mine");
    let mut talk = open(&rig, asked).await;
    let input = json!({"input": {"transcription": {"model": "gpt-4o-transcribe"}}});
    talk.say(json!({"type": "session.update", "session": {"audio": input}})).await;
    talk.say(json!({"type": "input_audio_buffer.commit"})).await;
    talk.until("conversation.item.input_audio_transcription.completed").await;
    talk.close(1000, "").await;
    let record = rig.record();
    let cost = 1_000 + 36_000 + 18_000;
    assert_eq!(pick(&record, ["cost_nanodollars", "price_version"]), json!([cost, "gpt-4o-transcribe"]), "{record}");
}

#[tokio::test]
async fn a_session_of_azures_foundry_is_asked_as_its_version_has_it() {
    let provider = Server::start().await;
    let rig = Rig::with("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let ask = Ask::new("GET", REALTIME)
        .header("x-gateway-provider", "azure-ai")
        .header("x-gateway-custom-host", &provider.url())
        .header("authorization", "Bearer sk-1");
    let mut talk = open(&rig, ask).await;
    assert_eq!(talk.until("session.created").await["session"]["model"], "gpt-realtime");
    talk.close(1000, "").await;
    let entry = settled(&provider, 1).await.remove(0);
    assert_eq!((entry.path.as_str(), entry.header("authorization")), (REALTIME, Some("Bearer sk-1")));
    assert_eq!(pick(&rig.record(), ["operation", "ai_org"]), json!(["realtime", "azure-ai"]));
}

#[tokio::test]
async fn a_session_is_held_with_no_model_that_may_not_be_used_however_it_is_named() {
    let provider = Server::start().await;
    let rig = Rig::with("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    rig.apply(&json!({"epoch": "1",
        "providers": [{"slug": "az", "provider": "azure-ai", "api_key": "k", "custom_host": provider.url(), "models": "m"}],
        "models": [{"id": "m", "allow_all": false, "models": [{"slug": "good", "enabled": true}]}]}));
    let ask = |query: &str| Ask::new("GET", &format!("/v1/realtime?{query}")).header("x-gateway-provider", "@az");
    for query in ["model=bad", "deployment=bad", "model=good&deployment=bad", "model=good&mod%65l=bad"] {
        let (status, told) = refused(&rig, ask(query)).await;
        assert_eq!((status, &told["error"]["code"]), (403, &json!("model_not_allowed")), "{query}: {told}");
    }
    assert!(provider.ledger().is_empty());
    open(&rig, ask("model=good")).await.close(1000, "").await;
}

#[tokio::test]
async fn responses_go_over_a_websocket_too() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let mut talk = open(&rig, ask("/v1/responses")).await;
    talk.say(json!({"type": "response.create", "model": "m", "input": "hi"})).await;
    assert_eq!(talk.until("response.completed").await["response"]["usage"]["total_tokens"], 20);
    talk.close(1000, "").await;
    let record = rig.record();
    let told = pick(&record, ["operation", "ai_model", "total_units", "outcome"]);
    assert_eq!(told, json!(["createModelResponse", "m", 20, "complete"]));
}

#[tokio::test]
async fn each_response_of_a_session_costs_what_its_own_model_does() {
    let provider = Server::start().await;
    let rig = Rig::with("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let rates = |input: u64| json!({"input": [[0, input]], "audio_in": [[0, input]], "output": [[0, input]]});
    let row = |slug: &str, rate: u64| json!({"slug": slug, "enabled": true, "prices": [{"version": slug, "rates": rates(rate)}]});
    rig.apply(&json!({"epoch": "1",
        "providers": [{"slug": "mine", "provider": "mock", "api_key": "k", "custom_host": provider.url(), "models": "m"}],
        "models": [{"id": "m", "allow_all": true, "models": [row("small", 1_000), row("large", 10_000)]}]}));
    for (models, cost, version) in [
        (["small", "large", "small"], json!(2 * 20 + 200), json!("small+large")),
        (["large", "large", "small"], json!(2 * 200 + 20), json!("large+small")),
        // Not as cheap as the first, only because nobody knows its price.
        (["small", "unknown", "small"], json!(null), json!(null)),
    ] {
        let mut talk = open(&rig, Ask::new("GET", "/v1/responses").header("x-gateway-provider", "@mine")).await;
        for model in models {
            talk.say(json!({"type": "response.create", "model": model, "input": "hi"})).await;
            talk.until("response.completed").await;
        }
        talk.close(1000, "").await;
        let record = rig.record();
        let told = pick(&record, ["ai_model", "total_units", "cost_nanodollars", "price_version"]);
        assert_eq!(told, json!([models[0], 60, cost, version]), "{models:?}");
    }
}

#[tokio::test]
async fn a_message_that_names_a_model_that_may_not_be_used_ends_the_session() {
    let provider = Server::start().await;
    let rig = Rig::with("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    rig.apply(&json!({"epoch": "1",
        "providers": [{"slug": "az", "provider": "mock", "api_key": "k", "custom_host": provider.url(), "models": "m"}],
        "models": [{"id": "m", "allow_all": false, "models": [{"slug": "good", "enabled": true}]}]}));
    let ask = || Ask::new("GET", "/v1/responses").header("x-gateway-provider", "@az");
    let create = |more: &str| format!("{{\"type\":\"response.create\",\"input\":\"hi\",{more}}}");
    for more in [
        r#""model":"bad""#,
        r#""mod\u0065l":"bad""#,
        r#""model":"good","model":"bad""#,
        r#""model":"good","response":{"model":"bad"}"#,
    ] {
        let mut talk = open(&rig, ask()).await;
        talk.send(Message::text(create(more))).await;
        assert_eq!(closed(&talk.hear().await).0, 1008, "{more}");
        talk.over().await;
        assert_eq!(rig.record()["outcome"], "refused", "{more}");
    }
    let mut talk = open(&rig, ask()).await;
    talk.send(Message::text(create(r#""model":"good""#))).await;
    talk.until("response.completed").await;
    talk.close(1000, "").await;
}

#[tokio::test]
async fn the_providers_close_comes_to_the_caller_with_its_code_and_reason() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for (code, outcome, error) in [(1000, "complete", Value::Null), (4001, "cut", json!("upstream_broke"))] {
        let mut talk = open(&rig, ask(REALTIME)).await;
        talk.event().await;
        talk.say(json!({"type": "mock.close", "code": code, "reason": "enough"})).await;
        assert_eq!(closed(&talk.hear().await), (code, "enough".into()));
        talk.over().await;
        assert_eq!(pick(&rig.record(), ["outcome", "error"]), json!([outcome, error]));
    }
    let all = settled(&provider, 2).await;
    assert!(all.iter().all(|entry| entry.outcome == Outcome::Complete), "its goodbye was answered");
}

#[tokio::test]
async fn a_provider_that_breaks_off_is_told_as_an_error_and_what_was_used_is_kept() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let mut talk = open(&rig, ask(REALTIME)).await;
    talk.say(json!({"type": "response.create"})).await;
    talk.until("response.done").await;
    talk.say(json!({"type": "mock.drop"})).await;
    assert_eq!(closed(&talk.hear().await).0, 1011);
    talk.over().await;
    let told = pick(&rig.record(), ["outcome", "error", "is_success", "total_units"]);
    assert_eq!(told, json!(["cut", "upstream_broke", false, 20]));
}

#[tokio::test]
async fn a_caller_who_leaves_without_a_word_leaves_one_record_with_what_was_used() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let mut talk = open(&rig, ask(REALTIME)).await;
    talk.say(json!({"type": "response.create"})).await;
    talk.until("response.done").await;
    talk.says = None;
    talk.over().await;
    let told = pick(&rig.record(), ["outcome", "is_success", "total_units", "response_status_code"]);
    assert_eq!(told, json!(["aborted", false, 20, 101]));
    assert_eq!(settled(&provider, 1).await[0].outcome, Outcome::Complete, "the provider was told");
}

#[tokio::test]
async fn a_caller_who_reads_slowly_slows_the_provider() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let mut talk = open(&rig, ask(REALTIME)).await;
    talk.event().await;
    talk.say(json!({"type": "mock.flood", "count": 400, "bytes": 100_000})).await;
    // Forty megabytes: far more than sockets and channels hold.
    for at in 0..5 {
        assert_eq!(talk.event().await["at"], at);
    }
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    let passed = rig.gateway.sink.metrics.read()["pieces"].as_u64().unwrap();
    assert!(passed < 12, "{passed} messages went on to a caller who took six");
    for at in 5..400 {
        assert_eq!(talk.event().await["at"], at);
    }
    talk.close(1000, "").await;
}

#[tokio::test]
async fn a_message_that_is_too_large_ends_the_session() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let mut talk = open(&rig, ask(REALTIME)).await;
    talk.event().await;
    talk.send(Message::Binary(vec![0; 16 * 1024 * 1024 + 1].into())).await;
    assert_eq!(closed(&talk.hear().await).0, 1009);
    talk.over().await;
    assert_eq!(pick(&rig.record(), ["outcome", "error"]), json!(["refused", "body_too_large"]));
}

#[tokio::test]
async fn a_quiet_session_lives_by_pings_and_a_provider_that_is_gone_is_noticed() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| {
        settings.heartbeat_ms = 20;
        settings.idle_timeout_ms = 200;
    });
    let mut talk = open(&rig, ask(REALTIME)).await;
    talk.event().await;
    tokio::time::sleep(std::time::Duration::from_millis(400)).await;
    talk.say(json!({"type": "mock.pings"})).await;
    assert!(talk.event().await["count"].as_u64().unwrap() > 3);
    talk.say(json!({"type": "mock.silence"})).await;
    assert_eq!(closed(&talk.hear().await).0, 1011);
    talk.over().await;
    assert_eq!(pick(&rig.record(), ["outcome", "error"]), json!(["cut", "idle_timeout"]));
}

#[tokio::test]
async fn a_session_ends_where_the_gateway_does() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let mut talk = open(&rig, ask(REALTIME)).await;
    talk.event().await;
    rig.gateway.drain();
    assert_eq!(closed(&talk.hear().await).0, 1012);
    talk.over().await;
    assert_eq!(pick(&rig.record(), ["outcome", "error"]), json!(["cut", "draining"]));
}

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
        let Connected::Refused(answer) = connect(&rig, ask(REALTIME)).await else { panic!("it was opened") };
        let Contents::Whole(body) = &answer.body else { panic!("a stream") };
        assert_eq!((status(&answer), body.len(), &body[..9]), (403, told, &said.as_bytes()[..9]));
        assert_eq!(answer.reply.headers.text("content-length"), Some(told.to_string().as_str()));
    }
}

#[tokio::test]
async fn a_refused_handshake_is_explained_when_it_asks() {
    let (provider, (_kept, bad)) = (Server::start().await, refusing("503 Service Unavailable").await);
    let rig = house(&provider);
    let Connected::Refused(answer) = connect(&rig, asked_by(&bad).header("x-gateway-explain", "true")).await else {
        panic!("a session")
    };
    let said: Value = serde_json::from_str(answer.reply.headers.text("x-gateway-explanation").unwrap()).unwrap();
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
    assert_eq!((bad.connections(), rig.gateway.sink.metrics.retries.get()), (3, 2));
    let names: Vec<_> = told(&rig).1.iter().map(|step| step[0].clone()).collect();
    assert_eq!(names, ["tried", "tried", "tried", "stopped", "tried"]);
    assert_eq!(rig.gateway.shared.breakers.open_now(), 1);
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
