//! Whole answers have the providers' shapes, sizes and errors.

use std::time::Duration;

use crate::talk::{CHAT, COMPLETIONS, Client, End, MESSAGES, chat, get, last_entry, server};
use serde_json::json;

const WAIT: Duration = Duration::from_millis(400);

#[tokio::test]
async fn starts_for_async_tests_too() {
    let server = penstock_mock::Server::start().await;
    let answer = tokio::task::spawn_blocking(move || (chat(&server, CHAT, "mock", false), server)).await.unwrap();
    assert_eq!(answer.0.status(), 200);
    let entries = answer.1.wait_until_settled(1, WAIT).await;
    assert_eq!(entries[0].outcome.to_string(), "complete");
}

#[test]
fn a_chat_completion() {
    let server = server();
    let answer = chat(&server, CHAT, "gpt?chunks=3", false);
    let body = answer.json();
    assert_eq!(answer.header("content-type").as_deref(), Some("application/json"));
    assert_eq!((&body["object"], &body["model"]), (&json!("chat.completion"), &json!("gpt")));
    assert_eq!(body["choices"][0]["message"]["content"], "Hello from the ");
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    assert_eq!(body["usage"]["total_tokens"], 15);
}

#[test]
fn a_message_and_a_completion() {
    let server = server();
    let message = chat(&server, MESSAGES, "mock", false).json();
    assert_eq!((&message["type"], &message["stop_reason"]), (&json!("message"), &json!("end_turn")));
    assert_eq!(message["content"][0]["text"], "Hello from the pretend provider: all is well. ");
    assert_eq!(message["usage"]["output_tokens"], 8);
    let completion = chat(&server, COMPLETIONS, "mock", false).json();
    assert_eq!(
        (&completion["object"], &completion["choices"][0]["finish_reason"]),
        (&json!("text_completion"), &json!("stop"))
    );
}

#[test]
fn an_answer_has_the_size_that_was_asked_for() {
    let server = server();
    for (path, size) in [(CHAT, 1041), (CHAT, 100_000), (MESSAGES, 5000), (COMPLETIONS, 2_000_000)] {
        let answer = chat(&server, path, &format!("mock?answer_bytes={size}"), false);
        assert_eq!((answer.body().len(), answer.end), (size, End::Complete));
        answer.json();
    }
}

#[test]
fn usage_can_be_left_out() {
    let server = server();
    for path in [CHAT, MESSAGES, COMPLETIONS] {
        assert!(chat(&server, path, "mock?usage=off", false).json().get("usage").is_none());
    }
}

#[test]
fn embeddings_as_numbers_and_as_base64() {
    let server = server();
    let ask = |body: &str| {
        let mut client = Client::connect(&server);
        client.ask("POST", "/v1/embeddings", "", body);
        client.read(WAIT).json()
    };
    let numbers = ask(r#"{"model":"mock","input":["a","b"],"dimensions":3}"#);
    assert_eq!(numbers["data"][1]["embedding"], json!([-0.3125, -0.1875, -0.0625]));
    assert_eq!(numbers["data"].as_array().unwrap().len(), 2);
    let text = ask(r#"{"model":"mock","input":"a","encoding_format":"base64"}"#);
    assert_eq!(text["data"][0]["embedding"].as_str().unwrap().len(), (8 * 4_usize).div_ceil(3) * 4);
}

#[test]
fn models_in_both_manners_and_moderations() {
    let server = server();
    let openai = get(&server, "/v1/models", "").json();
    assert_eq!((&openai["object"], &openai["data"][0]["id"]), (&json!("list"), &json!("mock")));
    let anthropic = get(&server, "/v1/models", "anthropic-version: 2023-06-01\r\n").json();
    assert_eq!((&anthropic["has_more"], &anthropic["data"][0]["type"]), (&json!(false), &json!("model")));
    assert_eq!(get(&server, "/v1/models/some-id", "").json()["id"], "some-id");
    let mut client = Client::connect(&server);
    client.ask("POST", "/v1/moderations", "", r#"{"input":["a","b"]}"#);
    let moderation = client.read(WAIT).json();
    assert_eq!(moderation["results"].as_array().unwrap().len(), 2);
    assert_eq!(moderation["results"][0]["categories"]["self-harm/intent"], false);
}

#[test]
fn other_paths_and_methods_are_echoed() {
    let server = server();
    let mut client = Client::connect(&server);
    client.ask("PATCH", "/files/a%2Fb?x=1&y", "X-Tag: 1\r\nx-tag: 2\r\n", "hello");
    let echo = client.read(WAIT).json();
    assert_eq!(
        (&echo["method"], &echo["path"], &echo["query"]),
        (&json!("PATCH"), &json!("/files/a%2Fb"), &json!("x=1&y"))
    );
    assert_eq!((&echo["headers"]["x-tag"], &echo["body_bytes"]), (&json!("1, 2"), &json!(5)));
    assert_eq!(echo["body_sha"], "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
    client.ask("HEAD", "/any", "", "");
    let head = client.read_until(WAIT, |answer| answer.raw.ends_with(b"\r\n\r\n"));
    assert!(head.body().is_empty() && head.header("content-length").unwrap() != "0");
}

#[test]
fn errors_have_the_manners_of_the_path() {
    let server = server();
    let openai = chat(&server, CHAT, "mock?status=401", false);
    assert_eq!((openai.status(), &openai.json()["error"]["code"]), (401, &json!("invalid_api_key")));
    let anthropic = chat(&server, MESSAGES, "mock?status=529&retry_after=3", true);
    assert_eq!((anthropic.status(), anthropic.header("retry-after").as_deref()), (529, Some("3")));
    assert_eq!(anthropic.json()["error"]["type"], "overloaded_error");
    assert_eq!(anthropic.json()["request_id"], anthropic.header("request-id").unwrap());
}

#[test]
fn a_mistake_in_the_keys_is_no_ordinary_answer() {
    let server = server();
    let answer = chat(&server, CHAT, "mock?chunk=3", false);
    assert_eq!(answer.status(), 400);
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("unknown mock key \"chunk\""));
    assert_eq!(get(&server, "/v1/models?mock-fault=nonsense", "").status(), 400);
}

#[test]
fn keys_come_from_the_query_and_the_headers_too() {
    let server = server();
    assert_eq!(get(&server, "/v1/models?mock-status=503", "").status(), 503);
    assert_eq!(get(&server, "/v1/models?mock-status=503", "x-mock-status: 404\r\n").status(), 404);
    let mut client = Client::connect(&server);
    client.ask("POST", CHAT, "X-Mock-Chunks: 1\r\n", &crate::talk::chat_body("mock?chunks=5", false));
    assert_eq!(client.read(WAIT).json()["usage"]["completion_tokens"], 1);
}

#[test]
fn the_first_byte_can_be_late() {
    let server = server();
    let answer = chat(&server, CHAT, "mock?first_ms=120", false);
    assert!(answer.first_byte.unwrap() >= Duration::from_millis(120), "{:?}", answer.first_byte);
    let entry = last_entry(&server);
    assert!(entry.first_byte_ms.unwrap() - entry.started_ms >= 119.0, "{entry:?}");
}

#[test]
fn requests_may_be_pipelined_split_and_chunked() {
    let server = server();
    let mut client = Client::connect(&server);
    let body = crate::talk::chat_body("mock?chunks=1", false);
    let plain = format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let (first, second) = body.split_at(7);
    let chunked = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n",
        first.len(),
        second.len()
    );
    let wire = [plain.as_str(), &chunked, &plain].concat();
    client.write(&wire.as_bytes()[..20]);
    std::thread::sleep(Duration::from_millis(20));
    client.write(&wire.as_bytes()[20..]);
    let all = client.read_until(WAIT, |answer| answer.raw.windows(9).filter(|part| part == b"fp_mock\"}").count() == 3);
    assert_eq!(all.end, End::Complete);
    let entries = server.ledger_entries();
    assert!(entries.iter().all(|entry| entry.body_bytes == body.len() as u64 && entry.model == "mock?chunks=1"));
}

#[test]
fn old_and_closing_clients_are_closed_after_the_answer() {
    let server = server();
    for request in ["GET /a HTTP/1.0\r\n\r\n", "GET /a HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"] {
        let mut client = Client::connect(&server);
        client.write(request.as_bytes());
        let answer = client.read_until(WAIT, |_| false);
        assert_eq!((answer.status(), answer.end), (200, End::Fin));
    }
}

#[test]
fn a_client_that_waits_is_told_to_continue() {
    let server = server();
    let mut client = Client::connect(&server);
    client.write(b"POST /upload HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n");
    let go = client.read_until(WAIT, |answer| answer.raw.ends_with(b"\r\n\r\n"));
    assert_eq!(go.status(), 100);
    client.write(b"ok");
    assert_eq!(client.read(WAIT).json()["body_bytes"], 2);
}

#[test]
fn what_is_no_http_is_refused() {
    let server = server();
    let mut client = Client::connect(&server);
    client.write(b"what is this\r\n\r\n");
    assert_eq!(client.read(WAIT).status(), 400);
}
