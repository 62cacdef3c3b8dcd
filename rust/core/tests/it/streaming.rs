//! Stream delivery. Streams reach the client byte for byte and without delay, and a truncated stream never appears
//! complete.

use std::{sync::Arc, time::Duration};

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestGateway, TestResponse, chat_body, chat_body_with_usage, fetch_directly, get_request,
    into_stream, pick_fields, post_request, post_with_config, read_stream,
    scripted_server::{
        CHAT_EVENTS, MESSAGE_EVENTS, SSE_RESPONSE_HEAD, ScriptedServer, encode_chunks, read_request, sse_response,
    },
    stream_request, wait_for_ledger_entries, with_timeout,
};
use penstock_mock::{Outcome, Server};
use serde_json::json;
use tokio::{io::AsyncWriteExt, sync::Notify};

const STREAM_CASES: [(&str, &str); 2] = [(CHAT_PATH, CHAT_EVENTS), (MESSAGES_PATH, MESSAGE_EVENTS)];

#[tokio::test]
async fn stream_passes_byte_for_byte_with_any_chunk_size() {
    for (path, sent) in STREAM_CASES {
        for size in [1, 2, 3, 7, 50, 333, usize::MAX >> 1] {
            let provider = ScriptedServer::start_responding(sse_response(sent.as_bytes(), size)).await;
            let gateway = TestGateway::for_url(&provider.url());
            let response = gateway.send(stream_request(path, "m")).await;
            assert_eq!((response.text().as_str(), response.is_truncated), (sent, false), "{path} in chunks of {size}");
            assert_eq!(gateway.single_record()["outcome"], "complete", "{path} in chunks of {size}");
            // With this header, a proxy in front of the gateway does not buffer the stream.
            assert_eq!(response.header("x-accel-buffering"), Some("no"));
        }
    }
}

#[tokio::test]
async fn stream_passes_byte_for_byte_with_any_packet_size() {
    for (path, sent) in STREAM_CASES {
        for step in [1, 4, 61] {
            let provider = ScriptedServer::start_dripping(sse_response(sent.as_bytes(), 40), step).await;
            let gateway = TestGateway::for_url(&provider.url());
            let response = gateway.send(stream_request(path, "m")).await;
            assert_eq!((response.text().as_str(), response.is_truncated), (sent, false), "{path} in packets of {step}");
            assert_eq!(gateway.single_record()["outcome"], "complete", "{path} in packets of {step}");
        }
    }
}

#[tokio::test]
async fn stream_passes_byte_for_byte_in_random_chunks_and_packets() {
    for seed in 0..24 {
        for (path, sent) in STREAM_CASES {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut rest, mut framed) = (sent.as_bytes(), SSE_RESPONSE_HEAD.as_bytes().to_vec());
            while !rest.is_empty() {
                let (chunk, after) = rest.split_at(random.usize(1..=rest.len().min(80)));
                framed.extend(encode_chunks(chunk, chunk.len()));
                rest = after;
            }
            framed.extend(b"0\r\n\r\n");
            let provider = ScriptedServer::start_dripping(framed, random.usize(1..200)).await;
            let gateway = TestGateway::for_url(&provider.url());
            let response = gateway.send(stream_request(path, "m")).await;
            assert_eq!((response.text().as_str(), response.is_truncated), (sent, false), "{path} with seed {seed}");
            assert_eq!(gateway.single_record()["units_estimated"], serde_json::Value::Null, "{path} with seed {seed}");
        }
    }
}

#[tokio::test]
async fn forwards_an_event_before_the_next_one_arrives() {
    let go = Arc::new(Notify::new());
    let wait = Arc::clone(&go);
    let provider = ScriptedServer::start(move |mut io, _| {
        let wait = Arc::clone(&wait);
        async move {
            read_request(&mut io).await.unwrap();
            io.write_all(SSE_RESPONSE_HEAD.as_bytes()).await.unwrap();
            for event in CHAT_EVENTS.split_inclusive("\n\n") {
                io.write_all(&encode_chunks(event.as_bytes(), usize::MAX >> 1)).await.unwrap();
                wait.notified().await;
            }
            io.write_all(b"0\r\n\r\n").await.unwrap();
        }
    })
    .await;
    let gateway = TestGateway::for_url(&provider.url());
    let mut response = into_stream(gateway.handle_request(stream_request(CHAT_PATH, "m")).await);
    for event in CHAT_EVENTS.split_inclusive("\n\n") {
        assert_eq!(with_timeout(response.next()).await.unwrap().unwrap(), event);
        go.notify_one();
    }
    assert_eq!(with_timeout(response.next()).await, Ok(None));
}

#[tokio::test]
async fn forwards_a_burst_in_few_chunks() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let response = gateway.send(stream_request(CHAT_PATH, "mock?chunks=100&burst=on")).await;
    assert_eq!(response.text().matches("data: ").count(), 104);
    assert!(response.chunks.len() <= 4, "{} pieces", response.chunks.len());
}

#[tokio::test]
async fn passes_unusual_but_complete_streams_unchanged() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for path in [CHAT_PATH, MESSAGES_PATH] {
        for fault in ["bom", "crlf", "cr", "malformed_chunk", "invalid_utf8", "done_then_data", "gzip"] {
            let body = chat_body_with_usage(&format!("mock?fault={fault}"));
            let sent = fetch_directly(provider.addr, path, &body).await;
            let response = gateway.send(crate::harness::post_request(path, body)).await;
            assert!(response.body == sent, "{path} {fault}: {}", response.text());
            let record = gateway.single_record();
            assert_eq!((response.is_truncated, &record["outcome"]), (false, &"complete".into()), "{path} {fault}");
        }
    }
}

#[tokio::test]
async fn coalesces_events_that_arrive_in_quick_succession() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let response = gateway.send(stream_request(CHAT_PATH, "mock?chunks=400")).await;
    let events = response.text().matches("data: ").count();
    assert!(events > 400 && response.text().ends_with("data: [DONE]\n\n"), "{events} events");
    assert!(response.chunks.len() < 200, "{} pieces", response.chunks.len());
}

#[tokio::test]
async fn passes_an_event_of_ten_megabytes() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let response = gateway.send(stream_request(CHAT_PATH, "mock?fault=huge_event")).await;
    assert!(response.body.len() > 10 * 1024 * 1024 && response.body.ends_with(b"data: [DONE]\n\n"));
    let bytes = gateway.single_record()["bytes_out"].as_u64();
    assert_eq!(bytes, Some(response.body.len() as u64));
}

/// Asserts that the stream ends in an error event in the client format.
fn assert_ends_in_error_event(response: &TestResponse, path: &str, fault: &str) {
    assert_eq!((response.status, response.is_truncated), (200, false), "{path} {fault}");
    let (name, data) = response.last_event();
    let error = &data["error"];
    assert!(!error["message"].as_str().unwrap_or_default().is_empty(), "{path} {fault}: {}", response.text());
    if path == MESSAGES_PATH {
        assert_eq!((name.as_deref(), &data["type"]), (Some("error"), &"error".into()), "{fault}");
    } else {
        assert_eq!((name, &error["code"]), (None, &expected_error_code(fault).into()), "{fault}");
    }
}

fn expected_error_code(fault: &str) -> &'static str {
    if fault == "stall" { "idle_timeout" } else { "upstream_disconnected" }
}

#[tokio::test]
async fn a_stream_with_its_end_event_is_complete_despite_a_bad_close() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for (path, end) in [(CHAT_PATH, "data: [DONE]\n\n"), (MESSAGES_PATH, "data: {\"type\":\"message_stop\"}\n\n")] {
        let response = gateway.send(stream_request(path, "mock?fault=long_length")).await;
        assert!(!response.is_truncated && response.text().ends_with(end), "{path}: {}", response.text());
        assert_eq!(gateway.single_record()["outcome"], "complete", "{path}");
    }
}

#[tokio::test]
async fn a_cut_stream_ends_in_an_error_event() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.idle_timeout_ms = 150);
    for path in [CHAT_PATH, MESSAGES_PATH] {
        for fault in ["cut", "cut_reset", "cut_event", "half_close", "invalid_framing", "stall"] {
            let response = gateway.send(stream_request(path, &format!("mock?fault={fault}&after=3"))).await;
            assert_ends_in_error_event(&response, path, fault);
            let fields = pick_fields(&gateway.single_record(), ["outcome", "error", "is_success"]);
            assert_eq!(fields, json!(["cut", expected_error_code(fault), false]), "{path} {fault}");
        }
    }
}

#[tokio::test]
async fn chat_with_finish_reason_needs_no_done_but_messages_do() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let response = gateway.send(stream_request(CHAT_PATH, "mock?fault=no_done&usage=on")).await;
    assert!(
        !response.is_truncated && !response.text().contains("[DONE]") && !response.text().contains("\"error\""),
        "{}",
        response.text()
    );
    assert_eq!(
        pick_fields(&gateway.single_record(), ["outcome", "error", "is_success", "res_units"]),
        json!(["complete", null, true, 8])
    );
    assert_ends_in_error_event(
        &gateway.send(stream_request(MESSAGES_PATH, "mock?fault=no_done")).await,
        MESSAGES_PATH,
        "no_done",
    );
}

#[tokio::test]
async fn chat_is_complete_when_every_choice_has_a_finish_reason() {
    let choice = |index: u8, reason: &str| {
        let choice = format!("{{\"index\":{index},\"delta\":{{\"content\":\"a\"}},\"finish_reason\":{reason}}}");
        format!("data: {{\"id\":\"c\",\"choices\":[{choice}]}}\n\n")
    };
    let began = choice(0, "null") + &choice(1, "null") + &choice(0, "\"stop\"");
    for (sent, is_complete) in [(began.clone(), false), (began + &choice(1, "\"stop\""), true)] {
        let provider = ScriptedServer::start_responding(sse_response(sent.as_bytes(), 50)).await;
        let gateway = TestGateway::for_url(&provider.url());
        let response = gateway.send(stream_request(CHAT_PATH, "m")).await;
        if is_complete {
            assert_eq!((response.text(), response.is_truncated), (sent, false));
        } else {
            assert_ends_in_error_event(&response, CHAT_PATH, "half the choices");
        }
        let record = gateway.single_record();
        assert_eq!(record["outcome"], if is_complete { "complete" } else { "cut" });
    }
}

#[tokio::test]
async fn content_type_ignores_case_and_parameters() {
    let half = CHAT_EVENTS.split_at(CHAT_EVENTS.rfind("data: [DONE]").unwrap()).0.replace("\"stop\"", "null");
    for (kind, is_events) in [
        ("text/event-stream", true),
        ("Text/Event-Stream; charset=UTF-8", true),
        ("text/event-stream ;x=y", true),
        ("text/event-streams", false),
    ] {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n");
        let reply = [head.as_bytes(), &encode_chunks(half.as_bytes(), 50), b"0\r\n\r\n"].concat();
        let response = TestGateway::for_url(&ScriptedServer::start_responding(reply).await.url())
            .send(stream_request(CHAT_PATH, "m"))
            .await;
        assert_eq!(response.text().contains("upstream_disconnected"), is_events, "{kind}: {}", response.text());
    }
    // Only single JSON documents are pretty-printed. A sequence of documents is not, even if it contains only one.
    for (kind, is_json) in [
        ("Application/JSON", true),
        ("application/json;charset=utf-8", true),
        ("application/problem+json", true),
        ("application/jsonl", false),
        ("application/json-seq", false),
        ("application/stream+json", false),
    ] {
        let reply = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: 7\r\n\r\n{{\"a\":1}}");
        let response = TestGateway::for_url(&ScriptedServer::start_responding(reply).await.url())
            .send(get_request("/v1/files/f?pretty=true"))
            .await;
        assert_eq!(response.text().contains('\n'), is_json, "{kind}: {}", response.text());
    }
}

#[tokio::test]
async fn a_stream_without_its_last_event_ends_in_an_error_event() {
    let delta =
        "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"hi\"}\n\n";
    for end in ["completed", "incomplete", "failed"] {
        let last =
            format!("event: response.{end}\ndata: {{\"type\":\"response.{end}\",\"response\":{{\"usage\":null}}}}\n\n");
        let sent = format!("{delta}{last}");
        let provider = ScriptedServer::start_responding(sse_response(sent.as_bytes(), 33)).await;
        let reply = TestGateway::for_url(&provider.url()).send(stream_request("/v1/responses", "m")).await;
        assert_eq!((reply.text(), reply.is_truncated), (sent, false), "{end}");
    }
    for path in ["/v1/responses", "/v1/completions", "/v1/proxy/chat/completions"] {
        let provider = ScriptedServer::start_responding(sse_response(delta.as_bytes(), 33)).await;
        let reply = TestGateway::for_url(&provider.url()).send(stream_request(path, "m")).await;
        assert_ends_in_error_event(&reply, CHAT_PATH, path);
    }
    for path in
        ["/v1/threads/t/runs", "/v1/threads/runs", "/v1/threads/t/runs/r/submit_tool_outputs", "/v1/fim/completions"]
    {
        let run = "event: thread.message.delta\ndata: {\"id\":\"msg_1\"}\n\n";
        let complete = format!("{run}event: done\ndata: [DONE]\n\n");
        for (sent, is_whole) in [(run, false), (&complete, true)] {
            let provider = ScriptedServer::start_responding(sse_response(sent.as_bytes(), 33)).await;
            let reply = TestGateway::for_url(&provider.url()).send(stream_request(path, "m")).await;
            assert_eq!(
                (reply.text() == sent, reply.text().contains("upstream_disconnected")),
                (is_whole, !is_whole),
                "{path}"
            );
        }
    }
    let half = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n";
    let provider = ScriptedServer::start_responding(sse_response(half.as_bytes(), 33)).await;
    let path = "/v1/projects/p/locations/l/publishers/anthropic/models/claude:streamRawPredict";
    assert_ends_in_error_event(
        &TestGateway::for_url(&provider.url()).send(stream_request(path, "m")).await,
        MESSAGES_PATH,
        path,
    );
    let provider = ScriptedServer::start_responding(sse_response(delta.as_bytes(), 33)).await;
    let reply = TestGateway::for_url(&provider.url()).send(get_request("/v1/responses/resp_1?stream=true")).await;
    assert!(reply.text().contains("upstream_disconnected"), "{}", reply.text());
    // Streams on unknown paths have no known end event and are not changed.
    let provider = ScriptedServer::start_responding(sse_response(delta.as_bytes(), 33)).await;
    let reply = TestGateway::for_url(&provider.url()).send(stream_request("/v1/anything", "m")).await;
    assert_eq!((reply.text().as_str(), reply.is_truncated), (delta, false));
}

#[tokio::test]
async fn drops_a_partial_event_before_the_error_event() {
    let half = CHAT_EVENTS.split_at(CHAT_EVENTS.len() / 2).0;
    let complete = half.rsplit_once("\n\n").unwrap().0.to_owned() + "\n\n";
    for body in [half.to_owned(), format!("{half}\n"), format!("{complete}d"), format!("{complete}data: [DO")] {
        for size in [1, 7, 64, 10_000] {
            let provider = ScriptedServer::start_closing_after_response(
                [SSE_RESPONSE_HEAD.as_bytes(), &encode_chunks(body.as_bytes(), size)].concat(),
            )
            .await;
            let response = TestGateway::for_url(&provider.url()).send(stream_request(CHAT_PATH, "m")).await;
            let text = response.text();
            let after = text.strip_prefix(&complete).unwrap();
            assert!(after.starts_with("data: {\"error\":"), "{after}");
            assert_ends_in_error_event(&response, CHAT_PATH, "cut");
        }
    }
}

#[tokio::test]
async fn passes_bytes_after_the_last_blank_line() {
    for end in ["data: [DONE]", "data: [DONE]\n", "data: [DONE]\n\n: a comm"] {
        let sent = CHAT_EVENTS.replace("data: [DONE]\n\n", end);
        let provider = ScriptedServer::start_responding(sse_response(sent.as_bytes(), 5)).await;
        let gateway = TestGateway::for_url(&provider.url());
        let response = gateway.send(stream_request(CHAT_PATH, "m")).await;
        assert_eq!((response.text().as_str(), response.is_truncated), (sent.as_str(), false));
        let record = gateway.single_record();
        assert_eq!((&record["outcome"], record["bytes_out"].as_u64()), (&"complete".into(), Some(sent.len() as u64)));
    }
}

#[tokio::test]
async fn a_stream_may_end_with_connection_close() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    let provider = ScriptedServer::start_closing_after_response([head, CHAT_EVENTS].concat()).await;
    let gateway = TestGateway::for_url(&provider.url());
    let response = gateway.send(stream_request(CHAT_PATH, "m")).await;
    assert_eq!((response.text().as_str(), response.is_truncated), (CHAT_EVENTS, false));
    assert_eq!(gateway.single_record()["outcome"], "complete");
}

#[tokio::test]
async fn does_not_duplicate_the_error_event_of_the_provider() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for path in [CHAT_PATH, MESSAGES_PATH] {
        let body = chat_body("mock?fault=overloaded_first", true);
        let sent = fetch_directly(provider.addr, path, &body).await;
        let response = gateway.send(crate::harness::post_request(path, body)).await;
        assert!(response.body == sent, "{path}: {}", response.text());
    }
}

#[tokio::test]
async fn pings_pass_and_do_not_end_the_stream() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let mut response =
        into_stream(gateway.handle_request(stream_request(MESSAGES_PATH, "mock?fault=pings_only&chunk_ms=5")).await);
    let mut received = Vec::new();
    while received.len() < 400 {
        received.extend_from_slice(&with_timeout(response.next()).await.unwrap().unwrap());
    }
    drop(response);
    assert!(String::from_utf8(received).unwrap().split_inclusive("\n\n").all(|event| event.contains("ping")));
    assert_eq!(wait_for_ledger_entries(&provider, 1).await[0].outcome, Outcome::ClientClosed);
}

#[tokio::test]
async fn a_cut_pass_through_stream_ends_in_an_error_event() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let response = gateway.send(stream_request("/v1/proxy/chat/completions", "mock?fault=cut")).await;
    assert_ends_in_error_event(&response, CHAT_PATH, "cut");
    let response = gateway.send(stream_request("/v1/proxy/messages", "mock?fault=cut")).await;
    assert_ends_in_error_event(&response, MESSAGES_PATH, "cut");
    // A client whose base URL already ends in `/v1` sends the prefix twice.
    for prefix in ["/v1/proxy", "/v1/proxy/v1", "/v1/v1"] {
        for (path, all) in STREAM_CASES {
            let provider_path = path.replacen("/v1", prefix, 1);
            let events_of_half: String = all.split_inclusive("\n\n").take(2).collect();
            let provider = ScriptedServer::start_responding(sse_response(events_of_half.as_bytes(), 4096)).await;
            assert_ends_in_error_event(
                &TestGateway::for_url(&provider.url()).send(stream_request(&provider_path, "m")).await,
                path,
                "cut",
            );
            let provider = ScriptedServer::start_responding(sse_response(all.as_bytes(), 4096)).await;
            let gateway = TestGateway::for_url(&provider.url());
            let response = gateway.send(stream_request(&provider_path, "m")).await;
            assert_eq!((response.text().as_str(), response.is_truncated), (all, false), "{provider_path}");
            assert_eq!(gateway.single_record()["outcome"], "complete", "{provider_path}");
        }
    }
}

/// Paths that reach Gemini's stream endpoint as pass-through requests.
const GEMINI_RAW_PATHS: [&str; 4] = [
    "/v1/proxy/v1beta/models/g:streamGenerateContent",
    "/v1/proxy/v1/models/g:streamGenerateContent",
    "/v1/proxy/v1beta1/projects/p/locations/l/publishers/google/models/g:streamGenerateContent",
    "/v1/projects/p/models/g:streamGenerateContent",
];
const GEMINI_LAST_ITEM: &str = r#"{"candidates":[{"content":{"parts":[{"text":"a"}]},"finishReason":"STOP"}]}"#;

#[tokio::test]
async fn forwards_gemini_array_items_at_once_on_every_path() {
    for path in GEMINI_RAW_PATHS {
        let more = Arc::new(Notify::new());
        let waited = Arc::clone(&more);
        let rest = format!(",{GEMINI_LAST_ITEM}]");
        let sent = rest.clone();
        let provider = ScriptedServer::start(move |mut stream, _| {
            let (more, sent) = (Arc::clone(&waited), sent.clone());
            async move {
                read_request(&mut stream).await;
                let head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
                stream.write_all(&[&head[..], &encode_chunks(b"[{}", 9)].concat()).await.unwrap();
                more.notified().await;
                stream.write_all(&[&encode_chunks(sent.as_bytes(), 4096)[..], b"0\r\n\r\n"].concat()).await.unwrap();
            }
        })
        .await;
        let gateway = TestGateway::for_url(&provider.url());
        let mut response = into_stream(gateway.handle_request(post_request(path, "{}")).await);
        assert_eq!(with_timeout(response.next()).await.unwrap().as_deref(), Some(&b"[{}"[..]), "{path}");
        more.notify_one();
        let (chunks, cut) = read_stream(response).await;
        assert_eq!((chunks.concat(), cut), (rest.into_bytes(), false), "{path}");
        assert_eq!(gateway.single_record()["outcome"], "complete", "{path}");
    }
}

#[tokio::test]
async fn raw_stream_format_follows_the_path_not_the_provider() {
    let google = format!("data: {{}}\n\ndata: {GEMINI_LAST_ITEM}\n\n");
    let vertex = json!({"provider": "vertex-ai", "api_key": "k", "vertex_project_id": "p", "vertex_region": "l"});
    let claude = json!({"provider": "anthropic", "api_key": "k"});
    let mock = json!({"provider": "openai", "api_key": "k"});
    let mut requested = vec![
        ("/v1/proxy/v1/messages".to_owned(), MESSAGE_EVENTS, &mock),
        ("/v1/proxy/v1/chat/completions".to_owned(), CHAT_EVENTS, &claude),
    ];
    requested.extend(GEMINI_RAW_PATHS.map(|path| (format!("{path}?alt=sse"), google.as_str(), &vertex)));
    for (path, all, config) in requested {
        for hold in [false, true] {
            let provider = ScriptedServer::start_responding(sse_response(all.as_bytes(), 4096)).await;
            let gateway =
                TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
            let mut config = config.clone();
            config["custom_host"] = provider.url().into();
            if hold {
                config["recovery"] = json!("hold");
            }
            let response = gateway.send(post_with_config(&config, &path, chat_body("m", true))).await;
            assert_eq!((response.text().as_str(), response.is_truncated), (all, false), "{path} {hold}");
            assert_eq!(gateway.single_record()["outcome"], "complete", "{path} {hold}");
        }
    }
}

#[tokio::test]
async fn a_cut_body_that_is_not_sse_gets_no_error_event() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n";
    let provider = ScriptedServer::start_closing_after_response(head).await;
    let gateway = TestGateway::for_url(&provider.url());
    let response = gateway.send(get_request("/v1/files/f/content")).await;
    assert_eq!((response.text().as_str(), response.is_truncated), ("abcde", true));
    assert_eq!(gateway.single_record()["outcome"], "cut");
}

#[tokio::test]
async fn a_stream_stopped_by_the_drain_ends_in_an_error_event() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let mut response =
        into_stream(gateway.handle_request(stream_request(CHAT_PATH, "mock?chunks=100&chunk_ms=50")).await);
    with_timeout(response.next()).await.unwrap().unwrap();
    let last = response.stop_for_drain().unwrap().unwrap();
    assert!(String::from_utf8_lossy(&last).contains("\"draining\""));
    assert_eq!(response.next().await, Ok(None));
    drop(response);
    assert_eq!(gateway.single_record()["error"], "draining");
    assert_eq!(wait_for_ledger_entries(&provider, 1).await[0].outcome, Outcome::ClientClosed);
}

#[tokio::test]
async fn a_paused_reader_applies_backpressure_to_the_provider() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let response = gateway.handle_request(stream_request(CHAT_PATH, "mock?chunks=20000&chunk_bytes=5000")).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let sent = provider.ledger_entries()[0].bytes_sent;
    assert!(sent < 20_000_000, "{sent} of 100,000,000 bytes left the provider");
    drop(response);
    assert_eq!(wait_for_ledger_entries(&provider, 1).await[0].outcome, Outcome::ClientClosed);
}

#[tokio::test]
async fn image_and_audio_streams_need_their_last_event() {
    let large = "A".repeat(300_000);
    let part = |kind: &str| format!("data: {{\"type\":\"{kind}\",\"b64_json\":\"{large}\"}}\n\n");
    let images = part("image_generation.partial_image");
    let text = r#"data: {"type":"transcript.text.delta","delta":"a"}"#.to_owned() + "\n\n";
    for (path, sent, is_whole) in [
        ("/v1/images/generations", images.clone(), false),
        ("/v1/images/generations", images.clone() + &part("image_generation.completed"), true),
        ("/v1/images/generations", images.clone() + "data: [DONE]\n\n", true),
        ("/v1/images/edits", part("image_edit.completed"), true),
        ("/v1/audio/transcriptions", text.clone(), false),
        (
            "/v1/audio/transcriptions",
            text.clone() + "data: {\"type\":\"transcript.text.done\",\"text\":\"a\"}\n\n",
            true,
        ),
        ("/v1/audio/speech", part("speech.audio.delta"), false),
        (
            "/v1/audio/speech",
            part("speech.audio.delta") + "data: {\"type\":\"speech.audio.done\",\"usage\":{}}\n\n",
            true,
        ),
        ("/v1/proxy/images/generations", images, false),
        ("/v1/proxy/images/generations", part("image_generation.completed"), true),
    ] {
        let provider = ScriptedServer::start_responding(sse_response(sent.as_bytes(), 10_000)).await;
        let gateway = TestGateway::for_url(&provider.url());
        let response = gateway.send(post_request(path, chat_body("m", true))).await;
        assert!(response.text().starts_with(&sent), "{path}");
        let rest = &response.text()[sent.len()..];
        assert_eq!(rest.contains("upstream_disconnected"), !is_whole, "{path}: {rest}");
        assert_eq!(gateway.single_record()["outcome"], if is_whole { "complete" } else { "cut" }, "{path}");
    }
}
