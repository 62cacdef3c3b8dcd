//! What is known of a request after it was answered: a response in the background is paid for once, by who sees what it used, and
//! calls come back with their signatures; to whichever of those who share a Redis the caller comes.

use std::sync::{Arc, Mutex};

use crate::harness::{
    Ask, CHAT, Rig,
    redis_server::RedisServer,
    scripted::{Scripted, gzipped, packed, request},
    until,
};
use penstock_core::process::secret::Secret;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

const RESPONSES: &str = "/v1/responses";
const PATH: &str = "/v1/responses/resp_1";
/// Ten tokens of a thousand, two of two thousand.
const PAID: u64 = 14_000;

fn response(status: &str, usage: &Value) -> String {
    json!({"id": "resp_1", "object": "response", "status": status, "background": true, "model": "gpt-own-name",
        "output": [], "usage": usage})
    .to_string()
}

fn over() -> String {
    response("completed", &json!({"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}))
}

fn said(kind: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// Whoever makes a response hears that it has begun, and whoever looks for it or cancels it that it is over: plain or compressed.
async fn provider(is_packed: bool) -> Scripted {
    Scripted::start(move |mut stream, _| async move {
        while let Some(asked) = request(&mut stream).await {
            let asked = String::from_utf8_lossy(&asked).into_owned();
            let begins = asked.starts_with("POST /v1/responses ");
            let text = if begins { response("queued", &Value::Null) } else { over() };
            let answer = if asked.contains("stream=true") {
                let event = format!(
                    "event: response.completed\ndata: {{\"type\":\"response.completed\",\"response\":{text}}}\n\n"
                );
                said("text/event-stream", event.as_bytes())
            } else if is_packed {
                packed("application/json", &gzipped(&text))
            } else {
                said("application/json", text.as_bytes())
            };
            stream.write_all(&answer).await.unwrap();
        }
    })
    .await
}

fn priced(rig: &Rig) {
    let price = json!({"version": "v", "rates": {"input": [[0, 1_000_000]], "output": [[0, 2_000_000]]}});
    let said = json!([{"provider": "mock", "model": "asked-for", "prices": [price]}]);
    rig.apply(&json!({"epoch": "1", "prices": {"said": said}}));
}

fn ask(method: &str, path: &str) -> Ask {
    let body = json!({"model": "asked-for", "input": "a question of some length", "background": true}).to_string();
    let body = if path == RESPONSES { body } else { String::new() };
    Ask::new(method, path).header("content-type", "application/json").header("x-gateway-provider", "mock").body(body)
}

/// The only record since the last look. It may wait until others were asked who pays.
async fn record(rig: &Rig) -> Value {
    let mut records = Vec::new();
    until("a record", || {
        records.extend(rig.records());
        !records.is_empty()
    })
    .await;
    assert_eq!(records.len(), 1, "{records:#?}");
    records.remove(0)
}

/// What each of these requests cost, and by which model.
async fn costs(rig: &Rig, asks: &[(&str, &str)]) -> Vec<Value> {
    let mut costs = Vec::new();
    for (method, path) in asks {
        let told = rig.send(ask(method, path)).await;
        assert_eq!(told.status, 200, "{}", told.text());
        let record = record(rig).await;
        costs.push(json!([record.get("cost_nanodollars"), record.get("total_units"), record["ai_model"]]));
    }
    costs
}

#[tokio::test]
async fn a_response_in_the_background_is_paid_for_once_however_it_is_looked_at() {
    let (nothing, begun) = (json!([null, null, ""]), json!([null, null, "asked-for"]));
    let paid = json!([PAID, 12, "asked-for"]);
    for is_packed in [false, true] {
        let provider = provider(is_packed).await;
        let rig = Rig::at(&provider.url());
        priced(&rig);
        let streamed = format!("{PATH}?stream=true");
        let cancel = format!("{PATH}/cancel");
        let looks = [("GET", PATH), ("GET", &streamed), ("POST", &cancel)];
        // Nobody owes what nobody began.
        assert_eq!(costs(&rig, &looks).await, [nothing.clone(), nothing.clone(), nothing.clone()], "{is_packed}");
        for first in 0..looks.len() {
            let others = [looks[(first + 1) % 3], looks[(first + 2) % 3]];
            let asks = [("POST", RESPONSES), looks[first], others[0], others[1]];
            let expected = [begun.clone(), paid.clone(), nothing.clone(), nothing.clone()];
            assert_eq!(costs(&rig, &asks).await, expected, "{is_packed} {first}");
        }
    }
}

/// The rest of its stream is fetched by who lost it, and says what all of it cost.
#[tokio::test]
async fn a_response_in_the_background_whose_stream_was_left_is_paid_for_by_who_fetches_the_rest() {
    let provider = Scripted::start(move |mut stream, _| async move {
        while let Some(asked) = request(&mut stream).await {
            let begins = asked.starts_with(b"POST ");
            let event =
                |kind: &str, text: &str| format!("data: {{\"type\":\"response.{kind}\",\"response\":{text}}}\n\n");
            if begins {
                let begun = event("created", &response("in_progress", &Value::Null));
                let word = "data: {\"type\":\"response.output_text.delta\",\"delta\":\"a word\"}\n\n";
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 99999\r\n\r\n";
                stream.write_all([head, &begun, word].concat().as_bytes()).await.unwrap();
                return;
            }
            let answer = said("text/event-stream", event("completed", &over()).as_bytes());
            stream.write_all(&answer).await.unwrap();
        }
    })
    .await;
    let rig = Rig::at(&provider.url());
    priced(&rig);
    let body = json!({"model": "asked-for", "input": "hi", "background": true, "stream": true}).to_string();
    rig.send(ask("POST", RESPONSES).body(body)).await;
    let record = rig.record();
    assert_eq!((record.get("total_units"), &record["outcome"]), (None, &json!("cut")), "{record:#}");
    let streamed = format!("{PATH}?stream=true&starting_after=1");
    let expected = [json!([PAID, 12, "asked-for"]), json!([null, null, ""])];
    assert_eq!(costs(&rig, &[("GET", &streamed), ("GET", PATH)]).await, expected);
}

/// One of several gateways that share.
async fn node(provider_url: &str, redis: &RedisServer) -> Rig {
    let rig = Rig::with(provider_url, |settings| settings.redis_url = Some(Secret::new(redis.url())));
    let gateway = Arc::clone(&rig.gateway);
    tokio::spawn(async move { gateway.shared.sync_with_redis().await });
    until("Redis is there", || rig.gateway.shared.redis.as_ref().unwrap().is_available()).await;
    rig
}

/// Looks again until there are so many names like this.
async fn noted(redis: &RedisServer, pattern: &str, count: usize) {
    let mut connection = redis.connection().await;
    for _ in 0..2_000 {
        let names: Vec<String> = redis::cmd("KEYS").arg(pattern).query_async(&mut connection).await.unwrap();
        if names.len() == count {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    panic!("never {count} of {pattern}");
}

/// Looks again until it is said under a name.
async fn noted_as(redis: &RedisServer, name: &str, expected: &str) {
    let mut connection = redis.connection().await;
    for _ in 0..2_000 {
        let said: Option<String> = redis::cmd("GET").arg(name).query_async(&mut connection).await.unwrap();
        if said.as_deref() == Some(expected) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    panic!("{name} is never {expected:?}");
}

#[tokio::test]
async fn who_shares_a_redis_knows_of_responses_that_began_elsewhere() {
    let (provider, redis) = (provider(false).await, RedisServer::start().await);
    let (one, other) = (node(&provider.url(), &redis).await, node(&provider.url(), &redis).await);
    priced(&one);
    priced(&other);
    assert_eq!(costs(&one, &[("POST", RESPONSES)]).await, [json!([null, null, "asked-for"])]);
    noted(&redis, "penstock:due:*", 1).await;
    assert_eq!(costs(&other, &[("GET", PATH)]).await, [json!([PAID, 12, "asked-for"])]);
    noted_as(&redis, "penstock:due:mock/resp_1", "").await;
    // Nobody pays again, and least of all where it began.
    for node in [&other, &one] {
        assert_eq!(costs(node, &[("GET", PATH)]).await, [json!([null, null, ""])]);
    }
}

/// Plays Gemini, which signs its calls, and keeps what it is sent.
async fn gemini() -> (Scripted, Arc<Mutex<Vec<String>>>) {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hearing = Arc::clone(&heard);
    let provider = Scripted::start(move |mut stream, _| {
        let hearing = Arc::clone(&hearing);
        async move {
            while let Some(asked) = request(&mut stream).await {
                hearing.lock().unwrap().push(String::from_utf8_lossy(&asked).into_owned());
                let answer = json!({"responseId": "r", "candidates": [{"finishReason": "STOP", "content": {"parts": [
                    {"functionCall": {"name": "f", "args": {}}, "thoughtSignature": "c2lnbmVk"}]}}]});
                stream.write_all(&said("application/json", answer.to_string().as_bytes())).await.unwrap();
            }
        }
    })
    .await;
    (provider, heard)
}

#[tokio::test]
async fn who_shares_a_redis_finds_signatures_that_another_kept_and_only_for_the_same_caller() {
    let ((provider, heard), redis) = (gemini().await, RedisServer::start().await);
    let (one, other) = (node(&provider.url(), &redis).await, node(&provider.url(), &redis).await);
    let ask = |key: &str, turns: &Value| {
        let config = json!({"provider": "google", "custom_host": provider.url(), "api_key": key});
        let body = json!({"model": "gemini-3-flash", "messages": turns}).to_string();
        Ask::new("POST", CHAT)
            .header("content-type", "application/json")
            .header("x-gateway-config", &config.to_string())
            .body(body)
    };
    let question = json!({"role": "user", "content": "hi"});
    let told: Value = serde_json::from_slice(&one.send(ask("sk-1", &json!([question]))).await.body).unwrap();
    noted(&redis, "penstock:signature:*", 1).await;
    let call = &told["choices"][0]["message"]["tool_calls"][0];
    let calls = json!([{"id": call["id"], "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    let result = json!({"role": "tool", "tool_call_id": call["id"], "content": "r"});
    let turns = json!([question, {"role": "assistant", "tool_calls": calls}, result]);
    for (key, is_found) in [("sk-1", true), ("sk-2", false)] {
        let told = other.send(ask(key, &turns)).await;
        assert_eq!(told.header("x-gateway-not-translated"), (!is_found).then_some("thought_signature"), "{key}");
        let last = heard.lock().unwrap().last().unwrap().clone();
        assert_eq!(last.contains("c2lnbmVk"), is_found, "{last}");
    }
}
