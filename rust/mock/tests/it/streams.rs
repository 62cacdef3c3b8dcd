//! Streamed responses. They have the events of each provider, in order and at the configured pace.

use std::time::Duration;

use crate::http_client::{CHAT_PATH, COMPLETIONS_PATH, Client, MESSAGES_PATH, ReadEnd, request_chat, start_server};
use serde_json::{Value, json};

const READ_TIMEOUT: Duration = Duration::from_millis(400);

fn parse_json(data: &str) -> Value {
    serde_json::from_str(data).unwrap()
}

#[test]
fn streams_a_chat_completion() {
    let server = start_server();
    let response = request_chat(&server, CHAT_PATH, "gpt?chunks=3", true);
    assert_eq!(response.header("content-type").as_deref(), Some("text/event-stream; charset=utf-8"));
    let events = response.events();
    assert_eq!((events.len(), response.end), (6, ReadEnd::Complete));
    assert_eq!(
        parse_json(&events[0].1)["choices"][0]["delta"],
        json!({"role": "assistant", "content": "", "refusal": null})
    );
    assert_eq!(response.content(), "Hello from the ");
    let last = parse_json(&events[4].1);
    assert_eq!((&last["choices"][0]["delta"], &last["choices"][0]["finish_reason"]), (&json!({}), &json!("stop")));
    assert_eq!(events[5].1, "[DONE]");
    assert!(events[..5].iter().all(|(_, data)| parse_json(data).get("usage").is_none()));
}

#[test]
fn sends_usage_only_if_requested() {
    let server = start_server();
    let send_request = |model: &str, options: &str| {
        let mut client = Client::connect(&server);
        client.send_request("POST", CHAT_PATH, "", &format!(r#"{{"stream":true,{options}"model":"{model}"}}"#));
        let events = client.read_response(READ_TIMEOUT).events();
        let last = parse_json(&events[events.len() - 2].1);
        (last["choices"].as_array().unwrap().is_empty(), last["usage"]["total_tokens"].as_u64())
    };
    assert_eq!(send_request("m?chunks=3", ""), (false, None));
    assert_eq!(send_request("m?chunks=3", r#""stream_options":{"include_usage": true},"#), (true, Some(15)));
    assert_eq!(send_request("m?chunks=3", r#""stream_options":{"include_usage":false},"#), (false, None));
    assert_eq!(send_request("m?chunks=3&usage=on", ""), (true, Some(15)));
    assert_eq!(send_request("m?usage=off", r#""stream_options":{"include_usage":true},"#), (false, None));
}

#[test]
fn streams_an_anthropic_message() {
    let server = start_server();
    let response = request_chat(&server, MESSAGES_PATH, "claude?chunks=2", true);
    let names: Vec<String> = response.events().into_iter().map(|(name, _)| name.unwrap()).collect();
    let delta = "content_block_delta";
    let expected = [
        "message_start",
        "content_block_start",
        "ping",
        delta,
        delta,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(names, expected);
    assert!(response.events().iter().all(|(name, data)| parse_json(data)["type"] == **name.as_ref().unwrap()));
    assert_eq!(parse_json(&response.events()[0].1)["message"]["model"], "claude");
    let end = parse_json(&response.events()[6].1);
    assert_eq!((&end["delta"]["stop_reason"], &end["usage"]["output_tokens"]), (&json!("end_turn"), &json!(2)));
    assert_eq!(response.content(), "Hello from ");
}

#[test]
fn streams_a_text_completion() {
    let server = start_server();
    let response = request_chat(&server, COMPLETIONS_PATH, "mock?chunks=2", true);
    assert_eq!((response.events().len(), response.content().as_str()), (4, "Hello from "));
    assert_eq!(parse_json(&response.events()[2].1)["choices"][0]["finish_reason"], "stop");
}

#[test]
fn chunks_have_the_requested_count_size_and_pace() {
    let server = start_server();
    let response = request_chat(&server, CHAT_PATH, "mock?chunks=5&chunk_bytes=300&chunk_ms=30", true);
    assert_eq!(response.content().len(), 1500);
    assert!(response.elapsed >= Duration::from_millis(4 * 30), "{:?}", response.elapsed);
    // The first chunk comes before the first pause.
    let mut client = Client::connect(&server);
    client.send_chat(CHAT_PATH, "mock?chunks=5&chunk_bytes=300&chunk_ms=60000", true);
    let first = client.read_until(Duration::from_secs(10), |response| response.content().len() >= 300);
    assert_eq!((first.content().len(), first.end), (300, ReadEnd::Complete));
    let empty = request_chat(&server, CHAT_PATH, "mock?chunks=0", true);
    assert_eq!((empty.events().len(), empty.end), (3, ReadEnd::Complete));
}

#[test]
fn burst_sends_the_same_stream_in_one_write() {
    let server = start_server();
    for path in [CHAT_PATH, MESSAGES_PATH] {
        let paced = request_chat(&server, path, "mock?chunks=50&chunk_ms=1", true);
        // Without the burst, the pauses would exceed the time limit of a response.
        let burst = request_chat(&server, path, "mock?chunks=50&chunk_ms=60000&burst", true);
        assert_eq!(paced.events().len(), burst.events().len());
        assert_eq!(paced.content(), burst.content());
    }
}

#[test]
fn timestamps_in_chunks_increase() {
    let server = start_server();
    let response = request_chat(&server, CHAT_PATH, "mock?chunks=4&chunk_ms=5&stamp=on&chunk_bytes=40", true);
    let content = response.content();
    let stamps: Vec<u64> = content.split('@').filter_map(|part| part.parse().ok()).collect();
    assert_eq!((stamps.len(), content.len()), (4, 160));
    // A chunk that is late on a busy machine shortens the pause after it.
    assert!(stamps[0] > 0 && stamps.windows(2).all(|pair| pair[1] > pair[0]), "{stamps:?}");
}

#[test]
fn one_connection_carries_many_streams() {
    let server = start_server();
    let mut client = Client::connect(&server);
    for chunks in [1, 2, 3] {
        client.send_chat(CHAT_PATH, &format!("mock?chunks={chunks}"), true);
        assert_eq!(client.read_response(READ_TIMEOUT).events().len(), chunks + 3);
    }
}

#[test]
fn http_1_0_client_reads_until_the_connection_closes() {
    let server = start_server();
    let mut client = Client::connect(&server);
    let body = crate::http_client::chat_body("mock?chunks=2", true);
    client.write(format!("POST {CHAT_PATH} HTTP/1.0\r\ncontent-length: {}\r\n\r\n{body}", body.len()).as_bytes());
    let response = client.read_until(READ_TIMEOUT, |_| false);
    assert_eq!((response.events().len(), response.end), (5, ReadEnd::Fin));
    assert_eq!(response.header("transfer-encoding"), None);
}
