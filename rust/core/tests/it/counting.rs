//! Every answer's tokens are in its record: as the provider told them, else counted here and marked.

use crate::harness::{
    Ask, CHAT, MESSAGES, Rig, in_time, pick, post,
    scripted::{CHAT_EVENTS, EVENTS_HEAD, MESSAGE_EVENTS, Scripted, chunks, events, gzipped, packed, whole},
    stream_of,
};
use serde_json::{Value, json};

const RESPONSES: &str = "/v1/responses";
const COMPLETIONS: &str = "/v1/completions";

fn units(record: &Value) -> Value {
    pick(record, ["req_units", "res_units", "total_units", "units_estimated", "outcome"])
}

async fn counted(path: &str, question: &Value, answer: Vec<u8>) -> Value {
    let provider = Scripted::answering(answer).await;
    let rig = Rig::at(&provider.url());
    rig.send(post(path, question.to_string())).await;
    rig.record()
}

fn chat(stream: bool) -> Value {
    json!({"model": "gpt-4o", "stream": stream, "messages": [{"role": "user", "content": "hello world"}]})
}

/// Streams of all operations that have text, without usage: "hello world" in two deltas.
fn streams() -> [(&'static str, Value, String); 4] {
    let chat_event =
        |text: &str| format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n");
    let chat_events = [chat_event("hello"), chat_event(" world"), "data: [DONE]\n\n".into()].concat();
    let piece = |text: &str| format!("data: {{\"choices\":[{{\"text\":\"{text}\",\"index\":0}}]}}\n\n");
    let pieces = [piece("hello"), piece(" world"), "data: [DONE]\n\n".into()].concat();
    let delta = |text: &str| {
        format!(
            "event: response.output_text.delta\ndata: {{\"type\":\"response.output_text.delta\",\"delta\":\"{text}\"}}\n\n"
        )
    };
    let done = "data: {\"type\":\"response.output_text.done\",\"text\":\"hello world\"}\n\n";
    let end = "data: {\"type\":\"response.incomplete\",\"response\":{\"status\":\"incomplete\",\"usage\":null}}\n\n";
    let response = [delta("hello"), delta(" world"), done.into(), end.into()].concat();
    let block = |text: &str| {
        format!(
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{{\"type\":\"text_delta\",\"text\":\"{text}\"}}}}\n\n"
        )
    };
    let messages = [block("hello"), block(" world"), "data: {\"type\":\"message_stop\"}\n\n".into()].concat();
    [
        (CHAT, chat(true), chat_events),
        (COMPLETIONS, json!({"model": "gpt-4o", "stream": true, "prompt": "hello world"}), pieces),
        (RESPONSES, json!({"model": "gpt-4o", "stream": true, "input": "hello world"}), response),
        (MESSAGES, chat(true), messages),
    ]
}

fn asked(path: &str) -> u64 {
    if matches!(path, CHAT | MESSAGES) { 3 + 3 + 1 + 2 } else { 2 }
}

#[tokio::test]
async fn a_stream_without_usage_is_counted_however_it_is_cut() {
    for (path, question, sent) in streams() {
        for chunk in [1, 7, 100_000] {
            let record = counted(path, &question, events(sent.as_bytes(), chunk)).await;
            let asked = asked(path);
            let expected = json!([asked, 2, asked + 2, true, "complete"]);
            assert_eq!(units(&record), expected, "{path} in chunks of {chunk}");
            let raw = path.replacen("/v1", "/v1/proxy", 1);
            let record = counted(&raw, &question, events(sent.as_bytes(), chunk)).await;
            assert_eq!(units(&record), expected, "{raw} in chunks of {chunk}");
        }
    }
}

#[tokio::test]
async fn a_whole_answer_without_usage_is_counted() {
    let cases = [
        (
            CHAT,
            chat(false),
            json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": "hello world"}, "finish_reason": "stop"}]}),
            2,
        ),
        (
            COMPLETIONS,
            json!({"model": "gpt-4o", "prompt": "hello world"}),
            json!({"choices": [{"text": "hello world", "finish_reason": "stop"}]}),
            2,
        ),
        (
            RESPONSES,
            json!({"model": "gpt-4o", "input": "hello world"}),
            json!({"output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hello world"}]}]}),
            2,
        ),
        (
            MESSAGES,
            chat(false),
            json!({"content": [{"type": "text", "text": "hello world"}], "stop_reason": "end_turn"}),
            2,
        ),
        (
            "/v1/embeddings",
            json!({"model": "gpt-4o", "input": "hello world"}),
            json!({"data": [{"embedding": [0.5]}]}),
            0,
        ),
    ];
    for (path, question, answer, said) in cases {
        let record = counted(path, &question, whole("200 OK", "", &answer.to_string())).await;
        let asked = asked(path);
        assert_eq!(units(&record), json!([asked, said, asked + said, true, "complete"]), "{path}");
    }
}

#[tokio::test]
async fn what_the_provider_told_is_not_counted() {
    // Where Anthropic's SDK asks Vertex AI.
    let at_vertex = "/v1/projects/p/locations/l/publishers/anthropic/models/claude:streamRawPredict";
    for (path, sent, told) in [
        (CHAT, CHAT_EVENTS, [9, 12, 21]),
        (MESSAGES, MESSAGE_EVENTS, [25, 15, 40]),
        (at_vertex, MESSAGE_EVENTS, [25, 15, 40]),
    ] {
        let record = counted(path, &chat(true), events(sent.as_bytes(), 50)).await;
        assert_eq!(units(&record), json!([told[0], told[1], told[2], null, "complete"]), "{path}");
    }
}

#[tokio::test]
async fn usage_is_read_from_either_end_of_a_large_answer() {
    let filler = "x".repeat(400_000);
    let usage = r#""usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}"#;
    let choices = format!(r#""choices":[{{"message":{{"content":"{filler}"}}}}]"#);
    let meta =
        r#""meta":{"api_version":{"version":"2"},"billed_units":{"search_units":1},"tokens":{"input_tokens":12}}"#;
    let cases = [
        (CHAT, format!("{{{choices},{usage}}}"), json!([5, 7, 12, null, "complete"])),
        (CHAT, format!("{{{usage},{choices}}}"), json!([5, 7, 12, null, "complete"])),
        ("/v1/rerank", format!("{{\"results\":[\"{filler}\"],{meta}}}"), json!([12, 0, 12, null, "complete"])),
        (
            "/v1/rerank",
            format!("{{\"usage\":{{\"total_tokens\":15}},\"results\":[\"{filler}\"]}}"),
            json!([15, 0, 15, null, "complete"]),
        ),
        (
            "/v1/images/generations",
            format!(
                "{{\"data\":[{{\"b64_json\":\"{filler}\"}}],\"usage\":{{\"input_tokens\":3,\"output_tokens\":9,\"total_tokens\":12,\"input_tokens_details\":{{\"text_tokens\":3}}}}}}"
            ),
            json!([3, 9, 12, null, "complete"]),
        ),
        ("/v1/proxy/chat/completions", format!("{{{choices},{usage}}}"), json!([5, 7, 12, null, "complete"])),
    ];
    for (path, answer, expected) in cases {
        let record = counted(path, &chat(false), whole("200 OK", "", &answer)).await;
        assert_eq!(units(&record), expected, "{path} {}", &answer[..40]);
    }
}

#[tokio::test]
async fn an_answer_too_large_to_keep_is_guessed_by_its_length() {
    let answer = format!(r#"{{"choices":[{{"message":{{"content":"{}"}}}}]}}"#, "x".repeat(400_000));
    let record = counted(CHAT, &chat(false), whole("200 OK", "", &answer)).await;
    let said = answer.len() as u64 / 4;
    assert_eq!(units(&record), json!([9, said, 9 + said, true, "complete"]));
}

#[tokio::test]
async fn errors_and_what_is_no_text_are_not_counted() {
    let error = counted(CHAT, &chat(false), whole("500 Oops", "", r#"{"error":{"message":"hello"}}"#)).await;
    let zipped = counted(CHAT, &chat(false), whole("200 OK", "content-encoding: gzip\r\n", "xxxx")).await;
    let fetched = counted_get("/v1/responses/r").await;
    let failed = "data: {\"error\":{\"message\":\"x\",\"type\":\"overloaded_error\"}}\n\ndata: [DONE]\n\n";
    let failed = counted(CHAT, &chat(true), events(failed.as_bytes(), 9)).await;
    for record in [error, zipped, fetched, failed] {
        assert_eq!(pick(&record, ["req_units", "res_units"]), json!([null, null]), "{record}");
    }
}

async fn counted_get(path: &str) -> Value {
    let answer = json!({"usage": {"input_tokens": 3, "output_tokens": 4}}).to_string();
    let provider = Scripted::answering(whole("200 OK", "", &answer)).await;
    let rig = Rig::at(&provider.url());
    rig.send(crate::harness::get(path)).await;
    rig.record()
}

#[tokio::test]
async fn what_was_said_before_a_cut_or_before_the_caller_left_is_counted_once() {
    for (path, question, sent) in streams() {
        let half = sent.rsplit_once("\n\n").unwrap().0.rsplit_once("\n\n").unwrap().0.to_owned() + "\n\n";
        let provider = Scripted::closing([EVENTS_HEAD.as_bytes(), &chunks(half.as_bytes(), 50)].concat()).await;
        let rig = Rig::at(&provider.url());
        rig.send(post(path, question.to_string())).await;
        let asked = asked(path);
        assert_eq!(units(&rig.record()), json!([asked, 2, asked + 2, true, "cut"]), "{path}");
        let mut answer = stream_of(rig.open(post(path, question.to_string())).await);
        let mut seen = 0;
        while seen < half.len() {
            seen += in_time(answer.next()).await.unwrap().unwrap().len();
        }
        drop(answer);
        assert_eq!(units(&rig.record()), json!([asked, 2, asked + 2, true, "aborted"]), "{path}");
        assert_eq!(rig.gateway.record_sink.metrics.tokens_estimated.get(), 2 * (asked + 2), "{path}");
    }
}

#[tokio::test]
async fn tools_reasoning_and_escapes_are_counted_as_they_read() {
    let deltas = [
        r#"{"reasoning_content":"hello"}"#,
        r#"{"content":null,"tool_calls":[{"index":0,"id":"call_1","function":{"name":"f","arguments":" world"}}]}"#,
        r#"{"content": "\n\n\"\u00e9\ud83d\ude42"}"#,
    ];
    let sent: String = deltas.map(|delta| format!("data: {{\"choices\":[{{\"delta\":{delta}}}]}}\n\n")).concat();
    let record = counted(CHAT, &chat(true), events(format!("{sent}data: [DONE]\n\n").as_bytes(), 11)).await;
    let text = penstock_llm::tokens::count_text(penstock_llm::tokens::Encoding::O200K_BASE, "hello world\n\n\"é🙂");
    assert_eq!(record["res_units"], text);
}

#[tokio::test]
async fn a_question_that_is_kept_no_longer_is_guessed_by_its_length() {
    let provider = Scripted::answering(whole("200 OK", "", r#"{"choices":[]}"#)).await;
    let rig = Rig::at(&provider.url());
    let long = json!({"model": "gpt-4o", "messages": [{"role": "user", "content": "x".repeat(33 << 20)}]}).to_string();
    let length = long.len() as u64;
    rig.send(Ask::new("POST", CHAT).header("x-gateway-provider", "mock").body(long)).await;
    assert_eq!(rig.record()["req_units"], length / 4);
}

#[tokio::test]
async fn what_a_compressed_answer_cost_is_read_and_its_bytes_pass_untouched() {
    let usage = r#""usage":{"prompt_tokens":70,"completion_tokens":5,"total_tokens":75}"#;
    let answer = format!(r#"{{"choices":[{{"message":{{"content":"hello world"}}}}],{usage}}}"#);
    let events = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"hi\"}}}}],{usage}}}\n\ndata: [DONE]\n\n");
    for (kind, text, is_stream) in [
        ("application/json", &answer, false),
        ("application/json; charset=utf-8", &answer, false),
        ("text/event-stream", &events, true),
    ] {
        let sent = gzipped(text);
        let provider = Scripted::answering(packed(kind, &sent)).await;
        let rig = Rig::at(&provider.url());
        let told = rig.send(post(CHAT, chat(is_stream).to_string())).await;
        assert!(told.body == sent && !told.cut, "{kind}");
        assert_eq!(units(&rig.record()), json!([70, 5, 75, null, "complete"]), "{kind}");
    }
}

#[tokio::test]
async fn a_compressed_answer_without_usage_is_counted() {
    let answer = r#"{"choices":[{"message":{"content":"hello world"}}]}"#;
    let record = counted(CHAT, &chat(false), packed("application/json", &gzipped(answer))).await;
    assert_eq!(units(&record), json!([9, 2, 11, true, "complete"]));
    for (path, question, sent) in streams() {
        let record = counted(path, &question, packed("text/event-stream", &gzipped(&sent))).await;
        let asked = asked(path);
        assert_eq!(units(&record), json!([asked, 2, asked + 2, true, "complete"]), "{path}");
    }
}

#[tokio::test]
async fn a_compressed_answer_that_is_none_or_swells_is_passed_on_and_does_no_harm() {
    let swelling = format!(r#"{{"choices":[{{"message":{{"content":"{}"}}}}]}}"#, " ".repeat(30_000_000));
    for body in [b"not gzip at all".to_vec(), gzipped(&swelling), gzipped("{").split_at(12).0.to_vec()] {
        let provider = Scripted::answering(packed("application/json", &body)).await;
        let rig = Rig::at(&provider.url());
        let told = rig.send(post(CHAT, chat(false).to_string())).await;
        assert!(told.body == body);
        assert_eq!(rig.record()["outcome"], "complete");
    }
}
