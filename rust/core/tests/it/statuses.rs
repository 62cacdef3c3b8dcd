//! Whatever a provider answers is its answer; what is no answer of HTTP is an error of ours, and the worker lives.

use crate::harness::{
    CHAT, MESSAGES, Rig, chat, direct, get, post,
    scripted::{Scripted, whole},
    words,
};
use penstock_mock::Server;
use serde_json::{Value, json};

#[tokio::test]
async fn a_status_that_is_none_of_http_is_a_bad_gateway_and_the_next_request_is_answered() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for status in [0, 1, 99, 1000, 65536, 4_294_967_295_u32] {
        for ask in
            [chat(&format!("mock?status={status}")), crate::harness::stream(CHAT, &format!("mock?status={status}"))]
        {
            let told = rig.send(ask).await;
            assert_eq!((told.status, told.code().as_str()), (502, "upstream_broke"), "{status}: {}", told.text());
        }
    }
    assert_eq!(rig.send(chat("mock")).await.status, 200);
}

#[tokio::test]
async fn an_unknown_status_of_three_digits_passes() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for status in [203, 299, 418, 499, 529, 599, 600, 999] {
        assert_eq!(rig.send(chat(&format!("mock?status={status}"))).await.status, status);
        assert_eq!(rig.record()["response_status_code"], status);
    }
}

#[tokio::test]
async fn errors_of_the_provider_pass_with_its_name() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for path in [CHAT, MESSAGES] {
        for status in [400, 401, 403, 404, 413, 422, 429, 500, 502, 503, 504, 529] {
            for stream in [false, true] {
                let body = words(&format!("mock?status={status}"), stream);
                let sent = direct(provider.addr, path, &body).await;
                let told = rig.send(post(path, body)).await;
                let (mut said, mut told_of) = (serde_json::from_slice::<Value>(&sent).unwrap(), told.json());
                // The name of a request is another each time.
                for body in [&mut said, &mut told_of] {
                    body.as_object_mut().unwrap().remove("request_id");
                }
                if path == CHAT {
                    said["error"]["message"] =
                        format!("mock error: {}", said["error"]["message"].as_str().unwrap()).into();
                    said["provider"] = "mock".into();
                }
                assert_eq!((told.status, told_of), (status, said), "{path}");
                let record = rig.record();
                assert_eq!((&record["outcome"], &record["is_success"]), (&json!("complete"), &json!(false)));
            }
        }
    }
}

#[tokio::test]
async fn too_many_requests_keeps_its_retry_after_and_gets_none_where_there_was_none() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for (model, wait) in [
        ("mock?fault=429", None),
        ("mock?fault=429&retry_after=7", Some("7")),
        ("mock?fault=429&retry_after=Wed%2C+21+Oct+2026+07:28:00+GMT", Some("Wed, 21 Oct 2026 07:28:00 GMT")),
    ] {
        let told = rig.send(chat(model)).await;
        assert_eq!((told.status, told.header("retry-after")), (429, wait), "{model}");
    }
}

#[tokio::test]
async fn answers_before_the_answer_are_skipped() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let told = rig.send(chat("mock?fault=early_1xx&after=5")).await;
    assert_eq!((told.status, told.json()["object"].as_str()), (200, Some("chat.completion")));
    assert_eq!(told.header("link"), None);
}

#[tokio::test]
async fn an_endless_row_of_early_answers_is_refused() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let told = rig.send(chat("mock?fault=early_1xx&after=100000")).await;
    assert_eq!((told.status, told.code().as_str()), (502, "upstream_broke"));
}

#[tokio::test]
async fn a_flood_of_header_fields_is_refused() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let told = rig.send(chat("mock?fault=headers_flood")).await;
    assert_eq!((told.status, told.code().as_str()), (502, "upstream_broke"));
    let long = whole("200 OK", &format!("x-long: {}\r\n", "x".repeat(80_000)), "{}");
    let provider = Scripted::answering(long).await;
    assert_eq!(Rig::at(&provider.url()).send(chat("m")).await.status, 502);
}

#[tokio::test]
async fn what_is_no_answer_is_a_bad_gateway_in_the_callers_dialect() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let told = rig.send(chat("mock?fault=reset")).await;
    assert_eq!((told.status, told.code().as_str()), (502, "upstream_broke"));
    let told = rig.send(post(MESSAGES, words("mock?fault=reset", false))).await;
    assert_eq!((told.status, &told.json()["type"]), (502, &json!("error")));
    for bytes in [
        "",
        "HTTP/1.1 200",
        "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999999\r\n\r\n",
        "SSH-2.0-OpenSSH_9.2\r\n\r\n",
        "\x16\x03\x01\x02",
    ] {
        let provider = Scripted::closing(bytes).await;
        let told = Rig::at(&provider.url()).send(chat("m")).await;
        assert_eq!((told.status, told.code().as_str()), (502, "upstream_broke"), "{bytes:?}");
    }
}

#[tokio::test]
async fn a_whole_answer_that_breaks_off_is_a_bad_gateway_not_half_an_answer() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.idle_timeout_ms = 150);
    for fault in ["cut", "cut_reset", "long_length", "bad_framing", "half_close"] {
        let told = rig.send(chat(&format!("mock?fault={fault}"))).await;
        assert_eq!((told.status, told.code().as_str()), (502, "upstream_broke"), "{fault}: {}", told.text());
        let record = rig.record();
        assert_eq!((&record["outcome"], &record["response_status_code"]), (&json!("refused"), &json!(502)), "{fault}");
    }
}

#[tokio::test]
async fn an_answer_without_a_body_has_none_and_no_length_of_our_own() {
    for (status, more, length) in
        [("204 No Content", "", None), ("304 Not Modified", "content-length: 12\r\n", Some("12"))]
    {
        let provider = Scripted::answering(format!("HTTP/1.1 {status}\r\netag: x\r\n{more}\r\n")).await;
        let rig = Rig::at(&provider.url());
        for _ in 0..2 {
            let told = rig.send(get("/v1/files/f")).await;
            assert_eq!((told.status.to_string().as_str(), told.body.len()), (&status[..3], 0));
            assert_eq!((told.header("etag"), told.header("content-length")), (Some("x"), length), "{status}");
        }
        assert_eq!(provider.connections(), 1);
    }
}

#[tokio::test]
async fn an_overloaded_provider_says_so_itself() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let told = rig.send(chat("mock?fault=overloaded_first")).await;
    assert_eq!((told.status, told.code().as_str()), (503, "overloaded"));
    assert_eq!(told.json()["error"]["type"], "overloaded_error");
    let told = rig.send(post(MESSAGES, words("mock?fault=overloaded_first", false))).await;
    assert_eq!((told.status, &told.json()["error"]["type"]), (529, &json!("overloaded_error")));
}
