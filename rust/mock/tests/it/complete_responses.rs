//! Buffered (non-streamed) responses. They have the format, size and errors of each provider.

use std::time::Duration;

use crate::http_client::{
    CHAT_PATH, COMPLETIONS_PATH, Client, MESSAGES_PATH, ReadEnd, get, request_chat, start_server, wait_for_last_entry,
};
use serde_json::json;

const READ_TIMEOUT: Duration = Duration::from_millis(400);

#[tokio::test]
async fn starts_in_an_async_test() {
    let server = penstock_mock::Server::start().await;
    let response =
        tokio::task::spawn_blocking(move || (request_chat(&server, CHAT_PATH, "mock", false), server)).await.unwrap();
    assert_eq!(response.0.status(), 200);
    let entries = response.1.wait_until_settled(1, READ_TIMEOUT).await;
    assert_eq!(entries[0].outcome.to_string(), "complete");
}

#[test]
fn returns_a_chat_completion() {
    let server = start_server();
    let response = request_chat(&server, CHAT_PATH, "gpt?chunks=3", false);
    let body = response.json();
    assert_eq!(response.header("content-type").as_deref(), Some("application/json"));
    assert_eq!((&body["object"], &body["model"]), (&json!("chat.completion"), &json!("gpt")));
    assert_eq!(body["choices"][0]["message"]["content"], "Hello from the ");
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    assert_eq!(body["usage"]["total_tokens"], 15);
}

#[test]
fn returns_a_message_and_a_text_completion() {
    let server = start_server();
    let message = request_chat(&server, MESSAGES_PATH, "mock", false).json();
    assert_eq!((&message["type"], &message["stop_reason"]), (&json!("message"), &json!("end_turn")));
    assert_eq!(message["content"][0]["text"], "Hello from the pretend provider: all is well. ");
    assert_eq!(message["usage"]["output_tokens"], 8);
    let completion = request_chat(&server, COMPLETIONS_PATH, "mock", false).json();
    assert_eq!(
        (&completion["object"], &completion["choices"][0]["finish_reason"]),
        (&json!("text_completion"), &json!("stop"))
    );
}

#[test]
fn response_has_the_requested_size() {
    let server = start_server();
    for (path, size) in [(CHAT_PATH, 1041), (CHAT_PATH, 100_000), (MESSAGES_PATH, 5000), (COMPLETIONS_PATH, 2_000_000)]
    {
        let response = request_chat(&server, path, &format!("mock?response_bytes={size}"), false);
        assert_eq!((response.body().len(), response.end), (size, ReadEnd::Complete));
        response.json();
    }
}

#[test]
fn usage_can_be_omitted() {
    let server = start_server();
    for path in [CHAT_PATH, MESSAGES_PATH, COMPLETIONS_PATH] {
        assert!(request_chat(&server, path, "mock?usage=off", false).json().get("usage").is_none());
    }
}

#[test]
fn returns_embeddings_as_numbers_and_as_base64() {
    let server = start_server();
    let send_request = |body: &str| {
        let mut client = Client::connect(&server);
        client.send_request("POST", "/v1/embeddings", "", body);
        client.read_response(READ_TIMEOUT).json()
    };
    let numbers = send_request(r#"{"model":"mock","input":["a","b"],"dimensions":3}"#);
    assert_eq!(numbers["data"][1]["embedding"], json!([-0.3125, -0.1875, -0.0625]));
    assert_eq!(numbers["data"].as_array().unwrap().len(), 2);
    let text = send_request(r#"{"model":"mock","input":"a","encoding_format":"base64"}"#);
    assert_eq!(text["data"][0]["embedding"].as_str().unwrap().len(), (8 * 4_usize).div_ceil(3) * 4);
}

#[test]
fn lists_models_in_both_formats_and_moderates() {
    let server = start_server();
    let openai = get(&server, "/v1/models", "").json();
    assert_eq!((&openai["object"], &openai["data"][0]["id"]), (&json!("list"), &json!("mock")));
    let anthropic = get(&server, "/v1/models", "anthropic-version: 2023-06-01\r\n").json();
    assert_eq!((&anthropic["has_more"], &anthropic["data"][0]["type"]), (&json!(false), &json!("model")));
    assert_eq!(get(&server, "/v1/models/some-id", "").json()["id"], "some-id");
    let mut client = Client::connect(&server);
    client.send_request("POST", "/v1/moderations", "", r#"{"input":["a","b"]}"#);
    let moderation = client.read_response(READ_TIMEOUT).json();
    assert_eq!(moderation["results"].as_array().unwrap().len(), 2);
    assert_eq!(moderation["results"][0]["categories"]["self-harm/intent"], false);
}

#[test]
fn echoes_other_paths_and_methods() {
    let server = start_server();
    let mut client = Client::connect(&server);
    client.send_request("PATCH", "/files/a%2Fb?x=1&y", "X-Tag: 1\r\nx-tag: 2\r\n", "hello");
    let echo = client.read_response(READ_TIMEOUT).json();
    assert_eq!(
        (&echo["method"], &echo["path"], &echo["query"]),
        (&json!("PATCH"), &json!("/files/a%2Fb"), &json!("x=1&y"))
    );
    assert_eq!((&echo["headers"]["x-tag"], &echo["body_bytes"]), (&json!("1, 2"), &json!(5)));
    assert_eq!(echo["body_sha"], "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
    client.send_request("HEAD", "/any", "", "");
    let head = client.read_until(READ_TIMEOUT, |response| response.raw.ends_with(b"\r\n\r\n"));
    assert!(head.body().is_empty() && head.header("content-length").unwrap() != "0");
}

#[test]
fn errors_have_the_api_format_of_the_path() {
    let server = start_server();
    let openai = request_chat(&server, CHAT_PATH, "mock?status=401", false);
    assert_eq!((openai.status(), &openai.json()["error"]["code"]), (401, &json!("invalid_api_key")));
    let anthropic = request_chat(&server, MESSAGES_PATH, "mock?status=529&retry_after=3", true);
    assert_eq!((anthropic.status(), anthropic.header("retry-after").as_deref()), (529, Some("3")));
    assert_eq!(anthropic.json()["error"]["type"], "overloaded_error");
    assert_eq!(anthropic.json()["request_id"], anthropic.header("request-id").unwrap());
}

#[test]
fn rejects_unknown_mock_keys() {
    let server = start_server();
    let response = request_chat(&server, CHAT_PATH, "mock?chunk=3", false);
    assert_eq!(response.status(), 400);
    assert!(response.json()["error"]["message"].as_str().unwrap().contains("unknown mock key \"chunk\""));
    assert_eq!(get(&server, "/v1/models?mock-fault=nonsense", "").status(), 400);
}

#[test]
fn reads_mock_keys_from_the_query_and_headers() {
    let server = start_server();
    assert_eq!(get(&server, "/v1/models?mock-status=503", "").status(), 503);
    assert_eq!(get(&server, "/v1/models?mock-status=503", "x-mock-status: 404\r\n").status(), 404);
    let mut client = Client::connect(&server);
    client.send_request(
        "POST",
        CHAT_PATH,
        "X-Mock-Chunks: 1\r\n",
        &crate::http_client::chat_body("mock?chunks=5", false),
    );
    assert_eq!(client.read_response(READ_TIMEOUT).json()["usage"]["completion_tokens"], 1);
}

#[test]
fn delays_the_first_byte() {
    let server = start_server();
    let response = request_chat(&server, CHAT_PATH, "mock?first_ms=120", false);
    assert!(response.time_to_first_byte.unwrap() >= Duration::from_millis(120), "{:?}", response.time_to_first_byte);
    let entry = wait_for_last_entry(&server);
    assert!(entry.first_byte_ms.unwrap() - entry.started_ms >= 119.0, "{entry:?}");
}

#[test]
fn accepts_pipelined_split_and_chunked_requests() {
    let server = start_server();
    let mut client = Client::connect(&server);
    let body = crate::http_client::chat_body("mock?chunks=1", false);
    let plain = format!("POST {CHAT_PATH} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let (first, second) = body.split_at(7);
    let chunked = format!(
        "POST {CHAT_PATH} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n",
        first.len(),
        second.len()
    );
    let requests = [plain.as_str(), &chunked, &plain].concat();
    client.write(&requests.as_bytes()[..20]);
    std::thread::sleep(Duration::from_millis(20));
    client.write(&requests.as_bytes()[20..]);
    let all = client
        .read_until(READ_TIMEOUT, |response| response.raw.windows(9).filter(|part| part == b"fp_mock\"}").count() == 3);
    assert_eq!(all.end, ReadEnd::Complete);
    let entries = server.ledger_entries();
    assert!(entries.iter().all(|entry| entry.body_bytes == body.len() as u64 && entry.model == "mock?chunks=1"));
}

#[test]
fn closes_connection_after_http_1_0_and_connection_close() {
    let server = start_server();
    for request in ["GET /a HTTP/1.0\r\n\r\n", "GET /a HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"] {
        let mut client = Client::connect(&server);
        client.write(request.as_bytes());
        let response = client.read_until(READ_TIMEOUT, |_| false);
        assert_eq!((response.status(), response.end), (200, ReadEnd::Fin));
    }
}

#[test]
fn sends_100_continue_to_a_waiting_client() {
    let server = start_server();
    let mut client = Client::connect(&server);
    client.write(b"POST /upload HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n");
    let go = client.read_until(READ_TIMEOUT, |response| response.raw.ends_with(b"\r\n\r\n"));
    assert_eq!(go.status(), 100);
    client.write(b"ok");
    assert_eq!(client.read_response(READ_TIMEOUT).json()["body_bytes"], 2);
}

#[test]
fn rejects_bytes_that_are_not_http() {
    let server = start_server();
    let mut client = Client::connect(&server);
    client.write(b"what is this\r\n\r\n");
    assert_eq!(client.read_response(READ_TIMEOUT).status(), 400);
}
