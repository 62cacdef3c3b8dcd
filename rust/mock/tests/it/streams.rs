//! Streamed answers have the providers' events, in order, at their pace.

use std::time::Duration;

use crate::talk::{CHAT, COMPLETIONS, Client, End, MESSAGES, chat, server};
use serde_json::{Value, json};

const WAIT: Duration = Duration::from_millis(400);

fn parsed(data: &str) -> Value {
    serde_json::from_str(data).unwrap()
}

#[test]
fn a_chat_stream() {
    let server = server();
    let answer = chat(&server, CHAT, "gpt?chunks=3", true);
    assert_eq!(answer.header("content-type").as_deref(), Some("text/event-stream; charset=utf-8"));
    let events = answer.events();
    assert_eq!((events.len(), answer.end), (6, End::Complete));
    assert_eq!(
        parsed(&events[0].1)["choices"][0]["delta"],
        json!({"role": "assistant", "content": "", "refusal": null})
    );
    assert_eq!(answer.content(), "Hello from the ");
    let last = parsed(&events[4].1);
    assert_eq!((&last["choices"][0]["delta"], &last["choices"][0]["finish_reason"]), (&json!({}), &json!("stop")));
    assert_eq!(events[5].1, "[DONE]");
    assert!(events[..5].iter().all(|(_, data)| parsed(data).get("usage").is_none()));
}

#[test]
fn usage_comes_only_when_it_is_asked_for() {
    let server = server();
    let ask = |model: &str, options: &str| {
        let mut client = Client::connect(&server);
        client.ask("POST", CHAT, "", &format!(r#"{{"stream":true,{options}"model":"{model}"}}"#));
        let events = client.read(WAIT).events();
        let last = parsed(&events[events.len() - 2].1);
        (last["choices"].as_array().unwrap().is_empty(), last["usage"]["total_tokens"].as_u64())
    };
    assert_eq!(ask("m?chunks=3", ""), (false, None));
    assert_eq!(ask("m?chunks=3", r#""stream_options":{"include_usage": true},"#), (true, Some(15)));
    assert_eq!(ask("m?chunks=3", r#""stream_options":{"include_usage":false},"#), (false, None));
    assert_eq!(ask("m?chunks=3&usage=on", ""), (true, Some(15)));
    assert_eq!(ask("m?usage=off", r#""stream_options":{"include_usage":true},"#), (false, None));
}

#[test]
fn a_message_stream() {
    let server = server();
    let answer = chat(&server, MESSAGES, "claude?chunks=2", true);
    let names: Vec<String> = answer.events().into_iter().map(|(name, _)| name.unwrap()).collect();
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
    assert!(answer.events().iter().all(|(name, data)| parsed(data)["type"] == **name.as_ref().unwrap()));
    assert_eq!(parsed(&answer.events()[0].1)["message"]["model"], "claude");
    let end = parsed(&answer.events()[6].1);
    assert_eq!((&end["delta"]["stop_reason"], &end["usage"]["output_tokens"]), (&json!("end_turn"), &json!(2)));
    assert_eq!(answer.content(), "Hello from ");
}

#[test]
fn a_completion_stream() {
    let server = server();
    let answer = chat(&server, COMPLETIONS, "mock?chunks=2", true);
    assert_eq!((answer.events().len(), answer.content().as_str()), (4, "Hello from "));
    assert_eq!(parsed(&answer.events()[2].1)["choices"][0]["finish_reason"], "stop");
}

#[test]
fn chunks_have_their_number_size_and_pace() {
    let server = server();
    let answer = chat(&server, CHAT, "mock?chunks=5&chunk_bytes=300&chunk_ms=30", true);
    assert_eq!(answer.content().len(), 1500);
    assert!(
        answer.total >= Duration::from_millis(4 * 30) && answer.first_byte.unwrap() < Duration::from_millis(60),
        "{:?}",
        answer.total
    );
    let empty = chat(&server, CHAT, "mock?chunks=0", true);
    assert_eq!((empty.events().len(), empty.end), (3, End::Complete));
}

#[test]
fn a_burst_is_the_same_stream_in_one_write() {
    let server = server();
    for path in [CHAT, MESSAGES] {
        let paced = chat(&server, path, "mock?chunks=50&chunk_ms=1", true);
        let burst = chat(&server, path, "mock?chunks=50&chunk_ms=1&burst", true);
        assert_eq!(paced.events().len(), burst.events().len());
        assert_eq!(paced.content(), burst.content());
        assert!(burst.total < Duration::from_millis(40));
    }
}

#[test]
fn stamps_are_times_that_grow() {
    let server = server();
    let answer = chat(&server, CHAT, "mock?chunks=4&chunk_ms=5&stamp=on&chunk_bytes=40", true);
    let content = answer.content();
    let stamps: Vec<u64> = content.split('@').filter_map(|part| part.parse().ok()).collect();
    assert_eq!((stamps.len(), content.len()), (4, 160));
    assert!(stamps[0] > 0 && stamps.windows(2).all(|pair| pair[1] - pair[0] >= 4_000_000), "{stamps:?}");
}

#[test]
fn one_connection_carries_many_streams() {
    let server = server();
    let mut client = Client::connect(&server);
    for chunks in [1, 2, 3] {
        client.chat(CHAT, &format!("mock?chunks={chunks}"), true);
        assert_eq!(client.read(WAIT).events().len(), chunks + 3);
    }
}

#[test]
fn an_old_client_reads_until_the_end() {
    let server = server();
    let mut client = Client::connect(&server);
    let body = crate::talk::chat_body("mock?chunks=2", true);
    client.write(format!("POST {CHAT} HTTP/1.0\r\ncontent-length: {}\r\n\r\n{body}", body.len()).as_bytes());
    let answer = client.read_until(WAIT, |_| false);
    assert_eq!((answer.events().len(), answer.end), (5, End::Fin));
    assert_eq!(answer.header("transfer-encoding"), None);
}
