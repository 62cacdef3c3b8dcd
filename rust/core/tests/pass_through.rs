//! What the gateway has no opinion on goes to the provider and back exactly as it was sent.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends where it fails")]

mod harness;

use harness::{
    Ask, CHAT, Rig, chat, direct, get, post,
    scripted::{Scripted, request, whole},
    settled, words,
};
use penstock_mock::Server;
use serde_json::json;
use tokio::{io::AsyncWriteExt, sync::mpsc};

fn ask(method: &str, target: &str) -> Ask {
    Ask::new(method, target).header("x-gateway-provider", "mock")
}

#[tokio::test]
async fn a_body_goes_out_and_an_answer_comes_back_exactly_as_sent() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let answer = "{ \"b\":1.0, \"a\" : \"\\u00e9\", \"b\":2 }\n";
    let provider = Scripted::start(move |mut io, _| {
        let tell = tell.clone();
        async move {
            tell.send(request(&mut io).await.unwrap()).unwrap();
            io.write_all(&whole("200 OK", "", answer)).await.unwrap();
        }
    })
    .await;
    let rig = Rig::at(&provider.url());
    // Odd spacing, doubled keys, escapes, numbers that a parser would change: nothing may be written anew.
    let body = "\n{\"model\" : \"m\",  \"messages\":[], \"n\":1.50, \"n\":1e400, \"s\":\"\\u00e9\\/\\ud83d\\ude00\"}  ";
    let got = rig.send(post(CHAT, body)).await;
    assert_eq!((got.status, got.text().as_str(), got.streamed), (200, answer, false));
    let sent = String::from_utf8(told.recv().await.unwrap()).unwrap();
    assert!(sent.ends_with(&format!("\r\n\r\n{body}")), "{sent}");
}

#[tokio::test]
async fn whole_answers_of_both_dialects_are_the_providers_bytes() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for path in [CHAT, harness::MESSAGES, "/v1/completions", "/v1/embeddings", "/v1/moderations"] {
        let body = words("mock", false);
        let sent = direct(provider.addr, path, &body).await;
        let told = rig.send(post(path, body)).await;
        assert_eq!((told.status, told.text()), (200, String::from_utf8(sent).unwrap()), "{path}");
        assert_eq!(told.header("content-length"), Some(told.body.len().to_string().as_str()), "{path}");
    }
}

#[tokio::test]
async fn any_method_on_any_path_reaches_the_provider() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
        let told = rig.send(ask(method, "/v1/files/f%2F1/part")).await;
        let echo = told.json();
        let seen = json!([echo["method"], echo["path"], told.status]);
        assert_eq!(seen, json!([method, "/v1/files/f%2F1/part", 200]));
    }
    let told = rig.send(ask("HEAD", "/v1/models")).await;
    assert_eq!((told.status, told.body.len()), (200, 0));
    assert!(told.header("content-length").unwrap().parse::<usize>().unwrap() > 0);
}

/// The answer to TRACE holds what was sent, a stored credential too.
#[tokio::test]
async fn a_method_that_is_none_of_the_data_plane_reaches_nobody() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for method in ["TRACE", "CONNECT", "TRACK", "get"] {
        for path in [CHAT, "/v1/proxy/x", "/v1/files"] {
            let told = rig.send(ask(method, path)).await;
            assert_eq!((told.status, told.code().as_str()), (405, "method_not_allowed"), "{method} {path}");
            assert_eq!(told.header("allow"), Some("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"));
            assert_eq!(rig.record()["error"], "method_not_allowed");
        }
    }
    assert!(provider.ledger().is_empty());
}

/// `pk-1` and `pk-2` are both keys of the gateway's.
#[tokio::test]
async fn no_key_of_the_gateway_reaches_a_provider_wherever_it_stands() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let provider = Scripted::start(move |mut io, _| {
        let tell = tell.clone();
        async move {
            while let Some(sent) = request(&mut io).await {
                tell.send(String::from_utf8(sent).unwrap()).unwrap();
                io.write_all(&whole("200 OK", "", "{}")).await.unwrap();
            }
        }
    })
    .await;
    let rig = Rig::at(&provider.url());
    rig.apply(&json!({"epoch": "1", "keys": [
        {"id": "1", "name": "new", "sha256": "174ef0b606f67f2149d5b3793dec3b05b7dd4fc683e60e8666051506c0a0e03f"},
        {"id": "2", "name": "old", "sha256": "4b0df943bf9e7a9d79ebb17c074e13787f067d613402394f0738e78e593d76e9"}]}));
    let cases = [
        ("/v1/proxy/x", "authorization", "Bearer pk-2"),
        ("/v1/proxy/x", "api-key", "pk-2"),
        ("/v1/proxy/x", "authorization", "Basic OnBrLTE="),
        ("/v1/proxy/x", "authorization", "Basic cGstMjo="),
        ("/v1/proxy/x", "x-note", "pk-1;v=1"),
        ("/v1/proxy/x", "x-note", "(pk-1)"),
        ("/v1/proxy/x?a=1&token=pk-1%20&b=2", "x-note", "1"),
        ("/v1/proxy/x?a=1&pk-1&b=2", "x-note", "1"),
    ];
    for (path, name, value) in cases {
        let ask = ask("GET", path).header("x-gateway-api-key", "pk-1").header(name, value);
        assert_eq!(rig.send(ask).await.status, 200, "{name}: {value}");
        let sent = told.recv().await.unwrap();
        for absent in ["pk-1", "pk-2", "OnBrLTE=", "cGstMjo="] {
            assert!(!sent.contains(absent), "{path} {name}: {value}\n{sent}");
        }
        assert!(sent.contains("a=1&b=2") || !path.contains('?'), "{sent}");
    }
}

#[tokio::test]
async fn the_query_goes_along_as_it_is() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for query in ["a=1&a=2&b", "q=%7B%22x%22%3A1%7D+%20", "x=/../..&y=a?b"] {
        let told = rig.send(get(&format!("/v1/batches?{query}"))).await;
        assert_eq!(told.json()["query"], query);
    }
    rig.send(post(&format!("{CHAT}?api-version=2"), words("mock", false))).await;
    assert_eq!(provider.ledger().last().unwrap().path, format!("{CHAT}?api-version=2"));
}

#[tokio::test]
async fn the_proxy_prefix_is_taken_away() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for (asked, seen) in [
        ("/v1/proxy/assistants/a", "/v1/assistants/a"),
        // Clients that have the version in their own paths.
        ("/v1/proxy/v1/assistants/a", "/v1/assistants/a"),
        ("/v1/proxyish/a", "/v1/proxyish/a"),
    ] {
        assert_eq!(rig.send(get(asked)).await.json()["path"], seen, "{asked}");
    }
    let told = rig.send(post("/v1/proxy/chat/completions", words("mock", false))).await;
    assert_eq!(told.json()["object"], "chat.completion");
    assert_eq!(rig.records().pop().unwrap()["is_proxy_call"], true);
}

#[tokio::test]
async fn header_fields_of_a_pass_through_go_along_but_for_those_of_the_connection_and_the_gateway() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let told = rig
        .send(
            get("/v1/threads/t")
                .header("host", "gateway.example")
                .header("OpenAI-Beta", "assistants=v2")
                .header("X-Team", "red")
                .header("accept-encoding", "gzip")
                .header("connection", "keep-alive, X-Hop")
                .header("X-Hop", "1")
                .header("te", "trailers")
                .header("cookie", "session=1")
                .header("x-gateway-trace-id", "t-1")
                .header("x-portkey-metadata", "{}"),
        )
        .await;
    let seen = &told.json()["headers"];
    assert_eq!(
        json!([seen["openai-beta"], seen["x-team"], seen["accept-encoding"]]),
        json!(["assistants=v2", "red", "gzip"])
    );
    assert_eq!(seen["host"], provider.addr.to_string());
    for absent in
        ["x-hop", "connection", "te", "cookie", "x-gateway-trace-id", "x-gateway-provider", "x-portkey-metadata"]
    {
        assert!(seen[absent].is_null(), "{absent} in {seen}");
    }
}

#[tokio::test]
async fn headers_are_forwarded_where_the_request_or_its_config_lists_them() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    rig.send(chat("mock").header("x-team", "red").header("x-user", "ann")).await;
    rig.send(chat("mock").header("x-team", "red").header("x-gateway-forward-headers", "X-Team, x-absent")).await;
    let config = r#"{"provider":"mock","forward_headers":["x-user"]}"#;
    rig.send(chat("mock").header("x-team", "red").header("x-user", "ann").header("x-gateway-config", config)).await;
    let seen: Vec<_> = provider
        .ledger()
        .iter()
        .map(|entry| (entry.header("x-team").is_some(), entry.header("x-user").is_some()))
        .collect();
    assert_eq!(seen, [(false, false), (true, false), (false, true)]);
}

#[tokio::test]
async fn a_gzipped_answer_stays_gzipped() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let body = words("mock?fault=gzip", false);
    let sent = direct(provider.addr, CHAT, &body).await;
    let told = rig.send(post(CHAT, body)).await;
    assert_eq!(told.header("content-encoding"), Some("gzip"));
    assert!(told.body == sent && told.body.starts_with(b"\x1f\x8b"));
}

#[tokio::test]
async fn a_redirect_is_passed_on_and_never_followed() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for ask in [chat("mock?fault=redirect_metadata"), get("/v1/files?mock-fault=redirect_metadata")] {
        let told = rig.send(ask).await;
        assert_eq!(
            (told.status, told.header("location")),
            (302, Some("http://169.254.169.254/latest/meta-data/")),
            "{}",
            told.text()
        );
    }
    settled(&provider, 2).await;
}

#[tokio::test]
async fn large_answers_pass_whole() {
    // Below, at and above what is read whole before it is passed on.
    for size in [1000, 256 * 1024 - 1, 256 * 1024, 256 * 1024 + 1, 5_000_000] {
        let body: String = ('a'..='w').cycle().take(size).collect();
        let provider = Scripted::answering(whole("200 OK", "", &body)).await;
        let told = Rig::at(&provider.url()).send(chat("m")).await;
        assert!(told.text() == body && !told.cut, "{size}: {}", told.body.len());
        assert_eq!(told.header("content-length"), Some(size.to_string().as_str()));
    }
}

#[tokio::test]
async fn a_large_answer_without_a_length_passes_whole() {
    let body = "x".repeat(3_000_000);
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let framed = [head.as_bytes(), &harness::scripted::chunks(body.as_bytes(), 100_000), b"0\r\n\r\n"].concat();
    let provider = Scripted::answering(framed).await;
    let told = Rig::at(&provider.url()).send(chat("m")).await;
    assert!(told.streamed && told.body == body.as_bytes() && told.header("content-length").is_none());
}

#[tokio::test]
async fn the_providers_header_fields_come_back_with_the_gateways_own() {
    let more = "X-Request-Id: r-1\r\nx-ratelimit-remaining-requests: 7\r\nset-cookie: a=1\r\nset-cookie: b=2\r\n\
                Connection: keep-alive\r\nkeep-alive: timeout=5\r\n";
    let provider = Scripted::answering(whole("200 OK", more, "{}")).await;
    let rig = Rig::at(&provider.url());
    let told = rig.send(chat("m").header("x-gateway-trace-id", "t-1")).await;
    assert_eq!((told.header("x-request-id"), told.header("x-ratelimit-remaining-requests")), (Some("r-1"), Some("7")));
    assert_eq!(told.headers.iter().filter(|(name, _)| *name == b"set-cookie").count(), 2);
    assert_eq!((told.header("connection"), told.header("keep-alive")), (None, None));
    let own = ["trace-id", "provider", "last-used-option-index", "retry-attempt-count", "cache-status"]
        .map(|name| told.header(&format!("x-gateway-{name}")));
    assert_eq!(own, [Some("t-1"), Some("mock"), Some("config"), Some("0"), Some("DISABLED")]);
}

#[tokio::test]
async fn a_caller_of_the_alias_is_answered_under_the_alias() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let ask = Ask::new("GET", "/v1/models").header("x-portkey-provider", "mock").header("x-portkey-trace-id", "t-1");
    let told = rig.send(ask).await;
    assert_eq!((told.status, told.header("x-portkey-trace-id")), (200, Some("t-1")));
    assert_eq!(told.header("x-gateway-trace-id"), None);
}

#[tokio::test]
async fn dot_segments_are_refused_in_any_spelling() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for path in [
        "/v1/../internal/records",
        "/v1/proxy/%2e%2e/admin",
        "/v1/files/.%2E/x",
        "/v1/./files",
        "/v1/proxy/..%2f..%2fadmin",
        "/v1/proxy/..%5cadmin",
        "/v1/proxy/..\\admin",
    ] {
        assert_eq!(rig.send(get(path)).await.status, 400, "{path}");
    }
    assert!(provider.ledger().is_empty());
    assert_eq!(rig.send(get("/v1/files/..a/b%2e.txt")).await.status, 200);
}

#[tokio::test]
async fn paths_outside_the_data_plane_are_not_found() {
    let rig = Rig::at("http://127.0.0.1:1");
    for path in ["/v2/chat/completions", "/chat/completions", "/v1", "/v1/", "/metrics"] {
        let told = rig.send(get(path)).await;
        assert_eq!((told.status, told.json()), (404, json!({"message": "Not Found", "ok": false})), "{path}");
    }
    assert_eq!(rig.send(get("/")).await.text(), "Penstock says hey!");
}
