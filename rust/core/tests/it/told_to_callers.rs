//! What a provider of another dialect answers comes back as if there were no difference.

use std::{fs, path::Path};

use crate::harness::{
    Ask, CHAT, MESSAGES, by_with, drain, pick,
    played::{Played, frames, golden, timeless, without_model},
    stream_of, way, words,
};
use penstock_llm::stream::aws_event_stream::FrameDecoder;
use serde_json::{Value, json};

const PAIRS: [(&str, &str, &str, &str); 8] = [
    ("anthropic", "chatComplete", "POST /messages HTTP/1.1", "x-api-key: sk-1"),
    ("openai", "messages", "POST /chat/completions HTTP/1.1", "authorization: Bearer sk-1"),
    ("groq", "messages", "POST /chat/completions HTTP/1.1", "authorization: Bearer sk-1"),
    ("google", "chatComplete", "POST /v1beta/models/gemini-2.5-flash:", "x-goog-api-key: sk-1"),
    ("google", "messages", "POST /v1beta/models/gemini-2.5-flash:", "x-goog-api-key: sk-1"),
    (
        "vertex-ai",
        "chatComplete",
        "POST /v1/projects/p/locations/europe-west4/publishers/google/models/gemini-2.5-flash:",
        "authorization: Bearer sk-1",
    ),
    ("bedrock", "messages", "POST /model/us.amazon.nova-pro-v1%3A0/converse", "authorization: Bearer sk-1"),
    ("cohere", "chatComplete", "POST /v2/chat HTTP/1.1", "authorization: Bearer sk-1"),
];

#[tokio::test]
async fn a_whole_answer_of_every_kind_of_provider_comes_back_in_the_callers_dialect() {
    for (provider, operation, line, key) in PAIRS {
        let case = golden(&format!("{provider}/{operation}/tools"));
        let read = |file: &str| fs::read(case.join(file)).unwrap();
        let played = Played::answering(200, "application/json", read("answered.json"), 50).await;
        let path = if operation == "messages" { MESSAGES } else { CHAT };
        let rig = Played::rig();
        let told = rig.send(played.ask(provider, path, read("asked.json"))).await;
        assert_eq!((told.status, told.header("content-type")), (200, Some("application/json")), "{}", told.text());
        let (head, body) = played.sent();
        assert!(head.starts_with(line) && head.contains(key), "{head}");
        assert_eq!(body, serde_json::from_slice::<Value>(&read("sent.json")).unwrap(), "{provider}");
        let mut expected: Value = serde_json::from_slice(&read("returned.json")).unwrap();
        let mut found = told.json();
        // Some ids are made of the time.
        for answer in [&mut expected, &mut found] {
            answer.as_object_mut().unwrap().retain(|key, _| key != "created" && key != "id");
        }
        assert_eq!(found, expected, "{provider}");
        let lost = fs::read_to_string(case.join("lost.txt")).ok();
        assert_eq!(told.header("x-gateway-not-translated"), lost.as_deref().map(str::trim_end), "{provider}");
        let record = rig.record();
        assert_eq!(
            pick(&record, ["req_units", "res_units", "estimated"]),
            json!([30, 20, null]),
            "{provider}: {record}"
        );
        assert_eq!(record["ai_org"], provider);
    }
}

#[tokio::test]
async fn a_stream_of_every_kind_of_provider_comes_back_in_the_callers_dialect_however_it_was_cut() {
    for (provider, operation, ..) in PAIRS {
        let case = golden(&format!("{provider}/{operation}/stream"));
        let read = |file: &str| fs::read(case.join(file)).unwrap();
        let (kind, answered) = match case.join("answered.hex") {
            path if path.exists() => ("application/vnd.amazon.eventstream", frames(&path)),
            _ => ("text/event-stream; charset=utf-8", read("answered.sse")),
        };
        for chunk in [7, 100_000] {
            let played = Played::answering(200, kind, answered.clone(), chunk).await;
            let rig = Played::rig();
            let path = if operation == "messages" { MESSAGES } else { CHAT };
            let told = rig.send(played.ask(provider, path, read("asked.json"))).await;
            assert_eq!((told.status, told.streamed, told.cut), (200, true, false), "{}", told.text());
            assert_eq!(told.header("content-type"), Some("text/event-stream"));
            let expected = String::from_utf8(read("returned.sse")).unwrap();
            assert_eq!(ageless(&told.text()), ageless(&expected), "{provider}");
            let record = rig.record();
            assert_eq!(record["outcome"], "complete", "{record}");
            assert_eq!(record["req_units"], 20, "{provider}: {record}");
        }
    }
}

#[tokio::test]
async fn what_a_translated_stream_cost_is_known_of_all_and_shown_to_who_asks() {
    for provider in ["anthropic", "google", "vertex-ai", "bedrock", "cohere"] {
        let case = golden(&format!("{provider}/chatComplete/stream"));
        let (kind, answered) = match case.join("answered.hex") {
            path if path.exists() => ("application/vnd.amazon.eventstream", frames(&path)),
            _ => ("text/event-stream", fs::read(case.join("answered.sse")).unwrap()),
        };
        let mut asked: Value = serde_json::from_slice(&fs::read(case.join("asked.json")).unwrap()).unwrap();
        for (options, is_shown) in [
            (Value::Null, false),
            (json!({}), false),
            (json!({"include_usage": false}), false),
            (json!({"include_usage": true}), true),
        ] {
            asked["stream_options"] = options;
            let played = Played::answering(200, kind, answered.clone(), 13).await;
            let rig = Played::rig();
            let ask = played.ask(provider, CHAT, asked.to_string().into());
            let ask = ask.header("accept-encoding", "gzip").header("x-gateway-forward-headers", "accept-encoding");
            let told = rig.send(ask).await.text();
            assert_eq!(told.matches("\"usage\"").count(), usize::from(is_shown), "{provider}: {told}");
            assert_eq!(told.matches("\"choices\":[],\"usage\":{").count(), usize::from(is_shown), "{provider}: {told}");
            assert!(told.ends_with("data: [DONE]\n\n"), "{provider}: {told}");
            let said = pick(&rig.record(), ["outcome", "req_units", "units_estimated"]);
            assert_eq!(said, json!(["complete", 20, null]), "{provider}");
            // What comes compressed could be neither told nor hidden.
            let (head, _) = played.sent();
            assert!(head.contains("\r\naccept-encoding: identity") && !head.contains("gzip"), "{head}");
        }
    }
}

/// Ids that are made of the time, and of chance behind it, are of no age.
fn ageless(text: &str) -> String {
    let text = timeless(text);
    let digits = |one: char| one.is_ascii_digit();
    ["\"id\":\"bedrock-", "\"id\":\"msg_"].iter().fold(text, |text, mark| {
        let mut parts = text.split(mark);
        let first = parts.next().unwrap_or_default().to_owned();
        let own = |part: &str| match part.trim_start_matches(digits).split_once('"') {
            Some((chance, rest)) if chance.starts_with('-') => format!("\"{rest}"),
            _ => part.to_owned(),
        };
        parts.fold(first, |out, part| out + &own(part))
    })
}

#[tokio::test]
async fn an_error_keeps_the_providers_status_and_is_told_in_the_callers_dialect() {
    for (provider, operation, ..) in PAIRS {
        for status in [400, 429, 529] {
            let case = golden(&format!("{provider}/{operation}/error"));
            let read = |file: &str| fs::read(case.join(file)).unwrap();
            let played = Played::answering(status, "application/json", read("answered.json"), 50).await;
            let path = if operation == "messages" { MESSAGES } else { CHAT };
            let told = Played::rig().send(played.ask(provider, path, read("asked.json"))).await;
            assert_eq!(told.status, status, "{}", told.text());
            let expected: Value = serde_json::from_slice(&read("returned.json")).unwrap();
            assert_eq!(told.json()["error"]["message"], expected["error"]["message"], "{provider}");
            assert_eq!(told.header("x-request-id"), Some("up-1"));
        }
    }
}

#[tokio::test]
async fn an_error_that_is_no_json_is_told_all_the_same() {
    let played = Played::answering(502, "text/html", b"<h1>Bad Gateway</h1>".to_vec(), 50).await;
    let told = Played::rig().send(played.ask("anthropic", CHAT, words("claude-x", true).into())).await;
    assert_eq!((told.status, told.header("content-type")), (502, Some("application/json")));
    assert_eq!(told.json()["error"]["message"], "anthropic error: <h1>Bad Gateway</h1>");
}

#[tokio::test]
async fn an_answer_that_is_none_of_the_providers_is_an_error_of_the_provider() {
    // Anthropic's is told in another dialect; of what together-ai says the end is told in OpenAI's words.
    for (provider, said) in [("anthropic", r#"{"content": 1}"#), ("anthropic", "{"), ("together-ai", r#"{"choices":["#)]
    {
        let played = Played::answering(200, "application/json", said.into(), 50).await;
        let rig = Played::rig();
        let told = rig.send(played.ask(provider, CHAT, words("claude-x", false).into())).await;
        let message = format!("{provider} returned an invalid response: {said}");
        let error = json!({"message": message, "type": null, "param": null, "code": null});
        let expected = json!({"error": error, "provider": provider});
        assert_eq!((told.status, told.json()), (200, expected));
        let record = rig.record();
        assert_eq!((&record["error"], &record["is_success"]), (&"invalid_response".into(), &false.into()), "{record}");
        // Another target is asked, whatever the status.
        let good = Played::answering(200, "application/json", br#"{"choices":[]}"#.to_vec(), 50).await;
        let at = |provider: &str, url: &str| json!({"provider": provider, "custom_host": url, "api_key": "k"});
        let config = json!({"strategy": {"mode": "fallback"},
            "targets": [at(provider, &played.provider.url()), at("openai", &good.provider.url())]});
        let told = rig.send(by_with(&config, CHAT, words("m", false).into_bytes())).await;
        assert_eq!((told.status, told.text().as_str()), (200, r#"{"choices":[]}"#), "{provider}");
    }
}

#[tokio::test]
async fn a_stream_that_is_cut_never_looks_complete() {
    for (provider, operation, ..) in PAIRS.into_iter().filter(|pair| pair.0 != "bedrock") {
        let case = golden(&format!("{provider}/{operation}/stream"));
        let answered = fs::read(case.join("answered.sse")).unwrap();
        let played = Played::answering(200, "text/event-stream", answered[..answered.len() / 2].to_vec(), 50).await;
        let rig = Played::rig();
        let path = if operation == "messages" { MESSAGES } else { CHAT };
        let told = rig.send(played.ask(provider, path, fs::read(case.join("asked.json")).unwrap())).await;
        assert_eq!(rig.record()["outcome"], "cut", "{provider}");
        let (_, last) = told.last_event();
        assert!(last["error"].is_object(), "{provider}: {}", told.text());
    }
}

/// What stands around the model in the paths of whole and streamed requests.
type Paths = [(&'static str, &'static str); 2];

/// Clients of Google and Amazon: provider, whole, streamed, and where.
const CLIENTS: [(&str, [&str; 2], Paths); 5] = [
    ("openai", ["generateContent", "streamGenerateContent"], GEMINI),
    ("anthropic", ["generateContent", "streamGenerateContent"], GEMINI),
    ("anthropic", ["converse", "converseStream"], CONVERSE),
    ("google", ["converse", "converseStream"], CONVERSE),
    ("openai", ["invokeModel", "invokeModelStream"], INVOKE),
];

const GEMINI: Paths = [("/v1beta/models/", ":generateContent"), ("/v1beta/models/", ":streamGenerateContent?alt=sse")];

const CONVERSE: Paths = [("/model/", "/converse"), ("/model/", "/converse-stream")];

const INVOKE: Paths = [("/model/", "/invoke"), ("/model/", "/invoke-with-response-stream")];

#[tokio::test]
async fn clients_of_google_and_amazon_reach_other_providers_whole() {
    for (provider, [operation, _], [(before, after), _]) in CLIENTS {
        let case = golden(&format!("{provider}/{operation}/tools"));
        let read = |file: &str| fs::read(case.join(file)).unwrap();
        let played = Played::answering(200, "application/json", read("answered.json"), 50).await;
        let (model, asked) = without_model(&read("asked.json"));
        let rig = Played::rig();
        let told = rig.send(played.ask(provider, &format!("{before}{model}{after}"), asked)).await;
        assert_eq!((told.status, told.header("content-type")), (200, Some("application/json")), "{}", told.text());
        assert_eq!(told.json(), serde_json::from_slice::<Value>(&read("returned.json")).unwrap(), "{provider}");
        assert_eq!(played.sent().1, serde_json::from_slice::<Value>(&read("sent.json")).unwrap(), "{provider}");
        let found = pick(&rig.record(), ["operation", "ai_model", "req_units", "res_units", "stream_mode"]);
        assert_eq!(found, json!([operation, model, 30, 20, false]), "{provider}");
    }
}

#[tokio::test]
async fn clients_of_google_and_amazon_get_streams_as_they_read_them() {
    for (provider, [_, operation], [_, (before, after)]) in CLIENTS {
        let case = golden(&format!("{provider}/{operation}/stream"));
        let read = |file: &str| fs::read(case.join(file)).unwrap();
        let (model, asked) = without_model(&read("asked.json"));
        let played = Played::answering(200, "text/event-stream", read("answered.sse"), 33).await;
        let rig = Played::rig();
        let told = rig.send(played.ask(provider, &format!("{before}{model}{after}"), asked)).await;
        assert_eq!((told.status, told.streamed, told.cut), (200, true, false), "{}", told.text());
        let kind = told.header("content-type").unwrap();
        if after.starts_with(':') {
            assert_eq!(kind, "text/event-stream");
            assert_eq!(told.text(), String::from_utf8(read("returned.sse")).unwrap(), "{provider}");
        } else {
            assert_eq!(kind, "application/vnd.amazon.eventstream");
            let returned = String::from_utf8(read("returned.txt")).unwrap();
            assert_eq!(
                names(&told.body),
                returned.lines().map(|line| line.split(' ').next().unwrap()).collect::<Vec<_>>()
            );
        }
        let found = pick(&rig.record(), ["operation", "outcome", "req_units", "stream_mode"]);
        assert_eq!(found, json!([operation, "complete", 20, true]), "{provider}");
    }
}

#[tokio::test]
async fn who_does_not_ask_for_events_gets_the_same_as_one_array_piece_by_piece() {
    for provider in ["openai", "anthropic"] {
        let case = golden(&format!("{provider}/streamGenerateContent/stream"));
        let read = |file: &str| fs::read(case.join(file)).unwrap();
        let (model, asked) = without_model(&read("asked.json"));
        let played = Played::answering(200, "text/event-stream", read("answered.sse"), 33).await;
        let rig = Played::rig();
        let path = format!("/v1beta/models/{model}:streamGenerateContent");
        let told = rig.send(played.ask(provider, &path, asked.clone())).await;
        assert_eq!((told.status, told.streamed, told.cut), (200, true, false), "{}", told.text());
        assert_eq!(told.header("content-type"), Some("application/json"));
        let events = String::from_utf8(read("returned.sse")).unwrap();
        let items: Vec<Value> = events
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .map(|item| serde_json::from_str(item).unwrap())
            .collect();
        assert_eq!(told.json(), json!(items), "{provider}");
        let found = pick(&rig.record(), ["operation", "outcome", "req_units", "stream_mode"]);
        assert_eq!(found, json!(["streamGenerateContent", "complete", 20, true]), "{provider}");
        let config = json!({"provider": provider, "api_key": "sk-1", "custom_host": played.provider.url(),
            "retry": {"attempts": 1}});
        for ask in [by_with(&config, &path, asked.clone()), played.ask(provider, &path, asked)] {
            let (pieces, _) = drain(stream_of(rig.open(ask).await)).await;
            assert!(pieces.len() > 1 && pieces[0].starts_with(b"[{") && !pieces[0].ends_with(b"]"), "{pieces:?}");
        }
        // An error is told as it is elsewhere.
        let played = Played::answering(429, "application/json", b"{}".to_vec(), 50).await;
        let told = rig.send(played.ask(provider, &path, without_model(&read("asked.json")).1)).await;
        assert_eq!((told.status, &told.json()["error"]["code"]), (429, &json!(429)));
    }
}

#[tokio::test]
async fn an_array_that_does_not_say_how_it_ended_is_cut_and_never_kept() {
    let case = golden("openai/streamGenerateContent/stream");
    let asked = without_model(&fs::read(case.join("asked.json")).unwrap()).1;
    let events = fs::read(case.join("answered.sse")).unwrap();
    let item = r#"{"candidates":[{"content":{"parts":[{"text":"Hi"}]}}]}"#;
    let items = |last: &str| format!("[{item},\n{last}]").into_bytes();
    let json = "application/json";
    for (provider, kind, answered, [outcome, error], is_kept) in [
        ("openai", "text/event-stream", events.clone(), ["complete", ""], true),
        ("openai", "text/event-stream", events[..events.len() / 2].to_vec(), ["cut", "upstream_broke"], false),
        ("google", json, items(r#"{"candidates":[{"finishReason":"STOP"}]}"#), ["complete", ""], true),
        ("google", json, items(item), ["cut", "upstream_broke"], false),
        ("google", json, items(r#"{"error":{"code":503}}"#), ["complete", "upstream_error_event"], false),
    ] {
        let played = Played::answering(200, kind, answered, 33).await;
        let rig = Played::rig();
        let config =
            json!({"provider": provider, "api_key": "k", "custom_host": played.provider.url(), "cache": "simple"});
        let ask = || by_with(&config, "/v1beta/models/m:streamGenerateContent", asked.clone());
        let (told, again) = (rig.send(ask()).await, rig.send(ask()).await);
        assert_eq!((told.status, told.cut), (200, outcome == "cut"), "{provider}: {}", told.text());
        assert_eq!(way(&again)[2], if is_kept { "HIT" } else { "MISS" }, "{provider}: {}", told.text());
        let record = &rig.records()[0];
        assert_eq!(record["outcome"], outcome, "{record}");
        assert_eq!(record["error"].as_str().unwrap_or_default(), error, "{record}");
    }
}

/// What the frames of a stream are called.
fn names(bytes: &[u8]) -> Vec<String> {
    let mut frames = FrameDecoder::new(1 << 20);
    frames.push_chunk(bytes);
    let names = std::iter::from_fn(|| frames.next_frame()).map(|frame| frame.unwrap().event_name).collect();
    assert!(!frames.has_partial_frame());
    names
}

#[tokio::test]
async fn clients_of_google_and_amazon_are_told_of_errors_in_their_own_words() {
    for (provider, [operation, _], [(before, after), _]) in CLIENTS {
        let case = golden(&format!("{provider}/{operation}/error"));
        let read = |file: &str| fs::read(case.join(file)).unwrap();
        let played = Played::answering(429, "application/json", read("answered.json"), 50).await;
        let (model, asked) = without_model(&read("asked.json"));
        let rig = Played::rig();
        let path = format!("{before}{model}{after}");
        let told = rig.send(played.ask(provider, &path, asked)).await;
        let refused = rig.send(Ask::new("POST", &path).header("content-type", "application/json").body("{}")).await;
        let word = |told: &crate::harness::Told| match told.json() {
            told if after.starts_with(':') => told["error"]["status"].as_str().unwrap().to_owned(),
            told => told["__type"].as_str().unwrap().to_owned(),
        };
        assert!(["RESOURCE_EXHAUSTED", "ThrottlingException"].contains(&word(&told).as_str()), "{}", told.text());
        assert!(["INVALID_ARGUMENT", "ValidationException"].contains(&word(&refused).as_str()), "{}", refused.text());
        assert_eq!((told.status, refused.status), (429, 400));
        // A stream that breaks off says so where it can.
        let answered = fs::read(golden(&format!("{provider}/{operation}Stream/stream/answered.sse")));
        let Ok(answered) = answered else { continue };
        let played = Played::answering(200, "text/event-stream", answered[..answered.len() / 2].to_vec(), 50).await;
        let cut =
            rig.send(played.ask(provider, &format!("{before}{model}{after}-stream"), b"{\"messages\":[]}".to_vec()));
        if after == "/converse" {
            assert_eq!(names(&cut.await.body).last().map(String::as_str), Some("serviceUnavailableException"));
        }
    }
}

#[tokio::test]
async fn an_overloaded_stream_is_a_529_here_too_where_that_is_asked_for() {
    let overloaded = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n";
    let played = Played::answering(200, "text/event-stream", overloaded.into(), 50).await;
    let config = json!({"provider": "anthropic", "anthropic_inspect_stream_for_overloaded_error": true,
        "custom_host": played.provider.url(), "api_key": "sk-1"});
    let ask = Ask::new("POST", CHAT)
        .header("x-gateway-config", &config.to_string())
        .header("content-type", "application/json")
        .body(words("claude-x", true));
    let told = Played::rig().send(ask).await;
    assert_eq!((told.status, told.streamed), (529, false), "{}", told.text());
    assert_eq!(told.json()["error"]["message"], "anthropic error: Overloaded");
    // Claude is hosted elsewhere too.
    let asked = Played::answering(200, "text/event-stream", overloaded.into(), 50).await;
    let config = json!({"provider": "vertex-ai", "anthropic_inspect_stream_for_overloaded_error": true,
        "vertex_project_id": "p", "vertex_region": "europe-west4", "custom_host": asked.provider.url(), "api_key": "sk-1"});
    for path in [CHAT, "/v1/messages"] {
        let ask = Ask::new("POST", path)
            .header("x-gateway-config", &config.to_string())
            .header("content-type", "application/json")
            .body(words("anthropic.claude-sonnet-4-5", true));
        assert_eq!(Played::rig().send(ask).await.status, 529, "{path}");
    }
}

#[tokio::test]
async fn what_of_an_answer_cannot_be_told_is_named_in_a_header_the_record_and_a_comment() {
    let case = golden("google/chatComplete/image");
    let read = |case: &Path, file: &str| fs::read(case.join(file)).unwrap();
    let played = Played::answering(200, "application/json", read(&case, "answered.json"), 50).await;
    let rig = Played::rig();
    let told = rig.send(played.ask("google", CHAT, read(&case, "asked.json"))).await;
    let named = "image, executableCode, codeExecutionResult, groundingMetadata";
    assert_eq!(told.header("x-gateway-not-translated"), Some(named));
    assert_eq!(rig.gateway.record_sink.metrics.partly_translated.get(), 1);
    let case = golden("google/chatComplete/image_stream");
    let played = Played::answering(200, "text/event-stream", read(&case, "answered.sse"), 9).await;
    let rig = Played::rig();
    let told = rig.send(played.ask("google", CHAT, read(&case, "asked.json"))).await;
    assert!(told.text().contains(": not translated: image\n\n") && !told.cut, "{}", told.text());
    assert_eq!(rig.record()["outcome"], "complete");
    assert_eq!(rig.gateway.record_sink.metrics.partly_translated.get(), 1);
}

#[tokio::test]
async fn a_record_has_the_buckets_that_the_callers_dialect_has_no_words_for() {
    let case = golden("google/messages/kinds_of_tokens");
    let read = |file: &str| fs::read(case.join(file)).unwrap();
    let played = Played::answering(200, "application/json", read("answered.json"), 50).await;
    let rig = Played::rig();
    let told = rig.send(played.ask("google", MESSAGES, read("asked.json"))).await;
    assert_eq!(told.json()["usage"]["input_tokens"], 200, "{}", told.text());
    let record = rig.record();
    let expected = json!({"input": 20, "output": 5, "cache_read": 40, "reasoning": 3, "audio_in": 100, "image_in": 80,
        "cache_read_audio": 80});
    let found = record["usage"].as_object().unwrap().iter().filter(|(_, tokens)| **tokens != 0);
    assert_eq!(found.map(|(key, tokens)| (key.clone(), tokens.clone())).collect::<Value>(), expected, "{record}");
}

#[tokio::test]
async fn an_image_that_comes_as_it_is_is_told_as_its_bytes_and_json_is_what_is_asked_for() {
    for (provider, case) in [("stability-ai", "whole"), ("workers-ai", "whole"), ("google", "whole")] {
        let asked = fs::read(golden(&format!("{provider}/imageGenerate/{case}")).join("asked.json")).unwrap();
        let played = Played::answering(200, "image/png", b"\x89PNG\r\n".to_vec(), 50).await;
        let ask = played.ask(provider, "/v1/images/generations", asked).header("accept", "*/*");
        let told = Played::rig().send(ask).await;
        assert_eq!((told.status, told.header("content-type")), (200, Some("application/json")), "{}", told.text());
        assert_eq!(told.json()["data"], json!([{"b64_json": "iVBORw0K"}]), "{provider}: {}", told.text());
        let bytes = played.sent.lock().unwrap().clone();
        let head = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
        assert!(head.contains("\r\naccept: application/json\r\n") && !head.contains("*/*"), "{head}");
    }
}

#[tokio::test]
async fn what_sends_elsewhere_is_told_without_the_place() {
    let kind = "application/json\r\nlocation: http://169.254.169.254/latest";
    let played = Played::answering(307, kind, b"{}".to_vec(), 9).await;
    let told = Played::rig().send(played.ask("google", CHAT, words("m", false).into_bytes())).await;
    assert_eq!((told.status, told.header("location")), (307, None), "{}", told.text());
}

#[tokio::test]
async fn of_an_error_that_says_too_much_to_be_told_its_status_is_told() {
    for (length, is_told) in [(200 * 1024, true), (260 * 1024, false)] {
        let said = json!({"error": {"code": 400, "message": "A".repeat(length)}}).to_string();
        let played = Played::answering(400, "application/json", said.into_bytes(), 64 * 1024).await;
        let told = Played::rig().send(played.ask("google", CHAT, words("m", false).into_bytes())).await;
        assert_eq!((told.status, told.text().contains("AAAA")), (400, is_told), "{length}");
    }
}
