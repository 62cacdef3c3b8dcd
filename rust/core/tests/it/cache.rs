//! An answer that was given serves again, to those alone for whom it was.

use crate::harness::{
    Ask, CHAT, MESSAGES, Rig, all_words, by_with, drain, pick,
    played::Played,
    scripted::{CHAT_EVENTS, Scripted, events},
    settled, sha256, stream_of, way, words,
};
use penstock_mock::Server;
use serde_json::{Value, json};

fn kept() -> Value {
    json!({"provider": "mock", "cache": {"mode": "simple", "max_age": 60}})
}

fn ask(path: &str, stream: bool) -> Ask {
    let model = "mock?chunks=3";
    by_with(&kept(), path, if stream { all_words(model) } else { words(model, false) })
}

#[tokio::test]
async fn a_second_asking_gets_the_same_bytes_and_no_provider_is_asked() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for (count, path) in [(1, CHAT), (2, MESSAGES), (3, "/v1/proxy/chat/completions"), (4, "/v1/embeddings")] {
        let (first, second) = (rig.send(ask(path, false)).await, rig.send(ask(path, false)).await);
        assert_eq!((way(&first)[2], way(&second)[2]), ("MISS", "HIT"), "{path}");
        assert_eq!((first.status, second.status), (200, 200), "{path}");
        assert_eq!((&first.body, first.header("content-type")), (&second.body, second.header("content-type")));
        settled(&provider, count).await;
    }
    let said = ["cache_status", "total_units", "is_success"];
    let records = rig.records();
    assert_eq!(
        (pick(&records[0], said), pick(&records[1], said)),
        (json!(["miss", 15, true]), json!(["hit", null, true]))
    );
}

#[tokio::test]
async fn on_a_path_that_is_passed_on_another_kind_of_answer_is_another_question() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let asked = |kind| ask("/v1/proxy/chat/completions", false).header("accept", kind);
    for (kind, status) in [("image/*", "MISS"), ("application/json", "MISS"), ("image/*", "HIT")] {
        assert_eq!(way(&rig.send(asked(kind)).await)[2], status, "{kind}");
    }
    // Where the operation is known its answer is always of the same kind.
    for (kind, status) in [("*/*", "MISS"), ("application/json", "HIT")] {
        assert_eq!(way(&rig.send(ask(CHAT, false).header("accept", kind)).await)[2], status, "{kind}");
    }
}

#[tokio::test]
async fn what_is_kept_for_longer_or_was_asked_for_in_another_language_does_not_serve() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let asked = |age: u64, language: &str| {
        let config = json!({"provider": "mock", "cache": {"mode": "simple", "max_age": age}, "forward_headers": ["accept-language"]});
        by_with(&config, CHAT, words("mock", false))
            .header("accept-language", language)
            .header("x-gateway-cache-namespace", "n")
    };
    let ways = [(600, "de", "MISS"), (600, "de", "HIT"), (60, "de", "MISS"), (600, "fr", "MISS"), (600, "de", "HIT")];
    for (age, language, status) in ways {
        assert_eq!(way(&rig.send(asked(age, language)).await)[2], status, "{age} {language}");
    }
}

#[tokio::test]
async fn a_stream_is_played_again() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for (count, path) in [(1, CHAT), (2, MESSAGES)] {
        let (first, second) = (rig.send(ask(path, true)).await, rig.send(ask(path, true)).await);
        assert_eq!((way(&second)[2], second.header("content-type")), ("HIT", first.header("content-type")));
        assert!(first.body == second.body && second.streamed && !second.cut);
        settled(&provider, count).await;
    }
    let records = rig.records();
    for record in &records {
        let is_counted = record["total_units"].is_u64();
        assert_eq!(is_counted, record["cache_status"] == "miss", "{record:#}");
    }
    assert_eq!(records.len(), 4);
}

#[tokio::test]
async fn a_stream_whose_last_event_has_no_blank_line_is_kept_whole() {
    let sent = CHAT_EVENTS.trim_end();
    let provider = Scripted::answering(events(sent.as_bytes(), 9)).await;
    let rig = Rig::at(&provider.url());
    let (first, second) = (rig.send(ask(CHAT, true)).await, rig.send(ask(CHAT, true)).await);
    assert_eq!((way(&second)[2], first.text(), second.text()), ("HIT", sent.to_owned(), sent.to_owned()));
}

#[tokio::test]
async fn what_is_not_complete_and_good_is_not_kept() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for failing in ["status=500", "fault=cut&after=2", "fault=error_event"] {
        for _ in 0..2 {
            let told = rig.send(by_with(&kept(), CHAT, words(&format!("mock?{failing}"), true))).await;
            assert_eq!(way(&told)[2], "MISS", "{failing}");
        }
    }
    let left = rig.open(ask(CHAT, true)).await;
    let mut stream = stream_of(left);
    stream.next().await.unwrap();
    drop(stream);
    let told = rig.open(ask(CHAT, true)).await;
    assert_eq!(told.head.headers.get_str("x-gateway-cache-status"), Some("MISS"));
    drain(stream_of(told)).await;
}

#[tokio::test]
async fn callers_get_nothing_of_each_other() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let key = |id: &str, workspace: &str| json!({"id": id, "name": id, "sha256": sha256(id), "workspace": workspace});
    rig.apply(&json!({"epoch": "1", "keys": [key("a", "one"), key("b", "one"), key("c", "two")]}));
    let from = |key: &str| ask(CHAT, false).header("x-gateway-api-key", key);
    for (caller, expected) in [("a", "MISS"), ("a", "HIT"), ("b", "MISS"), ("c", "MISS")] {
        assert_eq!(way(&rig.send(from(caller)).await)[2], expected, "{caller}");
    }
    let named = |key: &str| from(key).header("x-gateway-cache-namespace", "shared");
    for (caller, expected) in [("a", "MISS"), ("b", "HIT"), ("c", "MISS")] {
        assert_eq!(way(&rig.send(named(caller)).await)[2], expected, "{caller}");
    }
}

#[tokio::test]
async fn on_an_open_gateway_a_namespace_is_shared_by_those_with_the_same_credential() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let from = |token: &str| {
        ask(CHAT, false).header("x-gateway-cache-namespace", "n").header("authorization", &format!("Bearer {token}"))
    };
    for (token, expected) in [("x", "MISS"), ("x", "HIT"), ("y", "MISS")] {
        assert_eq!(way(&rig.send(from(token)).await)[2], expected);
    }
}

#[tokio::test]
async fn a_new_answer_can_be_asked_for_and_takes_the_place_of_the_old() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let refreshed = || ask(CHAT, false).header("x-gateway-cache-force-refresh", "true");
    let statuses = [rig.send(ask(CHAT, false)).await, rig.send(refreshed()).await, rig.send(ask(CHAT, false)).await];
    assert_eq!(statuses.map(|told| way(&told)[2].to_owned()), ["MISS", "REFRESH", "HIT"]);
    let kept = ask(CHAT, false).header("x-gateway-cache-force-refresh", "false");
    assert_eq!(way(&rig.send(kept).await)[2], "HIT");
    settled(&provider, 2).await;
}

#[tokio::test]
async fn what_a_config_changes_and_whom_it_asks_makes_another_question() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let config = |seed: u32| {
        json!({"strategy": {"mode": "single"}, "cache": "simple",
        "targets": [{"provider": "mock", "override_params": {"seed": seed}}]})
    };
    let ask = |seed| by_with(&config(seed), CHAT, words("mock", false)).header("x-gateway-cache-namespace", "n");
    for (seed, expected) in [(1, "MISS"), (1, "HIT"), (2, "MISS")] {
        assert_eq!(way(&rig.send(ask(seed)).await)[2], expected);
    }
}

#[tokio::test]
async fn what_makes_something_is_made_each_time() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let paths = ["/v1/threads", "/v1/threads/t/messages", "/v1/assistants", "/v1/vector_stores", "/v1/proxy/evals"];
    for (place, path) in paths.iter().enumerate() {
        for count in [1, 2] {
            assert_eq!(way(&rig.send(ask(path, false)).await)[2], "DISABLED", "{path}");
            settled(&provider, place * 2 + count).await;
        }
    }
}

#[tokio::test]
async fn an_answer_that_was_kept_says_nothing_of_the_targets_before_it() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.retry_backoff_ms = 1);
    let mut failing = crate::harness::target("status=503");
    failing["retry"] = json!({"attempts": 1, "on_status_codes": [503]});
    let config = json!({"strategy": {"mode": "fallback"}, "targets": [failing, kept()]});
    for expected in ["MISS", "HIT"] {
        let told = rig.send(by_with(&config, CHAT, words("mock?chunks=1", false))).await;
        assert_eq!(way(&told), ["config.targets[1]", "0", expected]);
    }
}

#[tokio::test]
async fn without_a_config_nothing_is_kept() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for count in 1..3 {
        assert_eq!(way(&rig.send(crate::harness::chat("mock")).await)[2], "DISABLED");
        settled(&provider, count).await;
    }
}

#[tokio::test]
async fn options_that_choose_whom_is_asked_and_how_strict_a_caller_is_make_another_question() {
    let answer = br#"{"choices":[]}"#.to_vec();
    let played = Played::answering(200, "application/json", answer, 99).await;
    let rig = Played::rig();
    let ask = |deployment: &str, strict: bool| {
        let config = json!({"provider": "azure-openai", "custom_host": played.provider.url(), "api_key": "k",
            "cache": "simple", "api_version": "2025-01-01", "strict_open_ai_compliance": strict});
        by_with(&config, CHAT, words("m", false))
            .header("x-gateway-cache-namespace", "n")
            .header("x-gateway-azure-deployment-id", deployment)
    };
    for (deployment, strict, expected) in
        [("one", true, "MISS"), ("one", true, "HIT"), ("two", true, "MISS"), ("two", false, "MISS")]
    {
        assert_eq!(way(&rig.send(ask(deployment, strict)).await)[2], expected, "{deployment} {strict}");
    }
    let asked: Vec<_> = played.lines.lock().unwrap().clone();
    assert!(asked[0].contains("/deployments/one/") && asked[1].contains("/deployments/two/"), "{asked:?}");
}

#[tokio::test]
async fn what_clients_and_balancers_write_anew_each_time_makes_no_other_question() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for (count, name) in [
        "x-amz-date",
        "amz-sdk-invocation-id",
        "amz-sdk-request",
        "x-amzn-trace-id",
        "cf-ray",
        "x-cloud-trace-context",
        "x-client-request-id",
        "x-ms-client-request-id",
        "x-datadog-trace-id",
        "sentry-trace",
        "baggage",
        "x-request-id",
        "via",
        "forwarded",
        "x-forwarded-for",
        "x-stainless-retry-count",
    ]
    .into_iter()
    .enumerate()
    {
        let body = words("mock?chunks=3", false).replace("hi", name);
        let asked = |value: &str| by_with(&kept(), CHAT, body.clone()).header(name, value);
        let (first, second) = (rig.send(asked("one")).await, rig.send(asked("two")).await);
        assert_eq!((way(&first)[2], way(&second)[2]), ("MISS", "HIT"), "{name}");
        settled(&provider, count + 1).await;
    }
}

#[tokio::test]
async fn who_signs_requests_is_known_by_the_key_and_not_by_the_signature() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let key = |id: &str| json!({"id": id, "name": id, "sha256": sha256(id)});
    rig.apply(&json!({"epoch": "1", "keys": [key("a"), key("b")]}));
    let signed = |id: &str, signature: &str| {
        let value =
            format!("AWS4-HMAC-SHA256 Credential={id}/20261121/eu-west-1/bedrock/aws4_request, Signature={signature}");
        by_with(&kept(), "/model/mock%3Fchunks%3D1/converse", r#"{"messages":[]}"#).header("authorization", &value)
    };
    for (id, signature, expected) in [("a", "00", "MISS"), ("a", "11", "HIT"), ("b", "00", "MISS"), ("b", "22", "HIT")]
    {
        let told = rig.send(signed(id, signature)).await;
        assert_eq!((told.status, way(&told)[2]), (200, expected), "{id} {signature} {}", told.text());
    }
}

#[tokio::test]
async fn what_is_kept_does_not_come_compressed_and_all_else_may() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let path = "/v1/proxy/chat/completions";
    let packing =
        |config: &Value| by_with(config, path, words("mock?gzip=on", false)).header("accept-encoding", "gzip, deflate");
    let (first, second) = (rig.send(packing(&kept())).await, rig.send(packing(&kept())).await);
    assert_eq!((way(&first)[2], way(&second)[2]), ("MISS", "HIT"));
    assert!(first.json()["choices"].is_array() && first.body == second.body);
    let told = rig.send(packing(&json!({"provider": "mock"}))).await;
    assert_eq!(told.header("content-encoding"), Some("gzip"));
    // Nor is more read than what is kept: a list is nobody's question.
    let list = Ask::new("GET", "/v1/proxy/files").header("x-gateway-config", &kept().to_string());
    assert_eq!(rig.send(list.header("accept-encoding", "gzip")).await.status, 200);
    assert_eq!(provider.ledger_entries().last().unwrap().header("accept-encoding"), Some("gzip"));
}
