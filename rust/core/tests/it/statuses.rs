//! Upstream statuses and malformed responses. Provider errors pass through; invalid HTTP becomes a gateway error and
//! does not stop the worker.

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestGateway, chat_body, chat_request, fetch_directly, get_request, post_request,
    scripted_server::{ScriptedServer, json_response},
};
use penstock_mock::Server;
use serde_json::{Value, json};

#[tokio::test]
async fn an_invalid_http_status_becomes_502() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for status in [0, 1, 99, 1000, 65536, 4_294_967_295_u32] {
        for request in [
            chat_request(&format!("mock?status={status}")),
            crate::harness::stream_request(CHAT_PATH, &format!("mock?status={status}")),
        ] {
            let response = gateway.send(request).await;
            assert_eq!(
                (response.status, response.error_code().as_str()),
                (502, "upstream_disconnected"),
                "{status}: {}",
                response.text()
            );
        }
    }
    assert_eq!(gateway.send(chat_request("mock")).await.status, 200);
}

#[tokio::test]
async fn passes_unknown_three_digit_statuses() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for status in [203, 299, 418, 499, 529, 599, 600, 999] {
        assert_eq!(gateway.send(chat_request(&format!("mock?status={status}"))).await.status, status);
        assert_eq!(gateway.single_record()["response_status_code"], status);
    }
}

#[tokio::test]
async fn passes_provider_errors_and_adds_the_provider_name() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for path in [CHAT_PATH, MESSAGES_PATH] {
        for status in [400, 401, 403, 404, 413, 422, 429, 500, 502, 503, 504, 529] {
            for stream in [false, true] {
                let body = chat_body(&format!("mock?status={status}"), stream);
                let sent = fetch_directly(provider.addr, path, &body).await;
                let response = gateway.send(post_request(path, body)).await;
                let (mut response_json, mut reported) =
                    (serde_json::from_slice::<Value>(&sent).unwrap(), response.json());
                // The request id differs for each request.
                for body in [&mut response_json, &mut reported] {
                    body.as_object_mut().unwrap().remove("request_id");
                }
                if path == CHAT_PATH {
                    response_json["error"]["message"] =
                        format!("mock error: {}", response_json["error"]["message"].as_str().unwrap()).into();
                    response_json["provider"] = "mock".into();
                }
                assert_eq!((response.status, reported), (status, response_json), "{path}");
                let record = gateway.single_record();
                assert_eq!((&record["outcome"], &record["is_success"]), (&json!("complete"), &json!(false)));
            }
        }
    }
}

#[tokio::test]
async fn passes_retry_after_of_429_and_adds_none() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for (model, wait) in [
        ("mock?fault=429", None),
        ("mock?fault=429&retry_after=7", Some("7")),
        ("mock?fault=429&retry_after=Wed%2C+21+Oct+2026+07:28:00+GMT", Some("Wed, 21 Oct 2026 07:28:00 GMT")),
    ] {
        let response = gateway.send(chat_request(model)).await;
        assert_eq!((response.status, response.header("retry-after")), (429, wait), "{model}");
    }
}

#[tokio::test]
async fn skips_1xx_responses() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let response = gateway.send(chat_request("mock?fault=early_1xx&after=5")).await;
    assert_eq!((response.status, response.json()["object"].as_str()), (200, Some("chat.completion")));
    assert_eq!(response.header("link"), None);
}

#[tokio::test]
async fn rejects_an_endless_sequence_of_1xx_responses() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let response = gateway.send(chat_request("mock?fault=early_1xx&after=100000")).await;
    assert_eq!((response.status, response.error_code().as_str()), (502, "upstream_disconnected"));
}

#[tokio::test]
async fn rejects_too_many_or_too_long_header_fields() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let response = gateway.send(chat_request("mock?fault=headers_flood")).await;
    assert_eq!((response.status, response.error_code().as_str()), (502, "upstream_disconnected"));
    let long = json_response("200 OK", &format!("x-long: {}\r\n", "x".repeat(80_000)), "{}");
    let provider = ScriptedServer::start_responding(long).await;
    assert_eq!(TestGateway::for_url(&provider.url()).send(chat_request("m")).await.status, 502);
}

#[tokio::test]
async fn malformed_http_becomes_502_in_the_client_format() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let response = gateway.send(chat_request("mock?fault=reset")).await;
    assert_eq!((response.status, response.error_code().as_str()), (502, "upstream_disconnected"));
    let response = gateway.send(post_request(MESSAGES_PATH, chat_body("mock?fault=reset", false))).await;
    assert_eq!((response.status, &response.json()["type"]), (502, &json!("error")));
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
        let provider = ScriptedServer::start_closing_after_response(bytes).await;
        let response = TestGateway::for_url(&provider.url()).send(chat_request("m")).await;
        assert_eq!((response.status, response.error_code().as_str()), (502, "upstream_disconnected"), "{bytes:?}");
    }
}

#[tokio::test]
async fn truncated_non_streaming_response_becomes_502() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.idle_timeout_ms = 150);
    for fault in ["cut", "cut_reset", "long_length", "invalid_framing", "half_close"] {
        let response = gateway.send(chat_request(&format!("mock?fault={fault}"))).await;
        assert_eq!(
            (response.status, response.error_code().as_str()),
            (502, "upstream_disconnected"),
            "{fault}: {}",
            response.text()
        );
        let record = gateway.single_record();
        assert_eq!((&record["outcome"], &record["response_status_code"]), (&json!("failed"), &json!(502)), "{fault}");
    }
}

#[tokio::test]
async fn a_response_without_body_gets_no_content_length() {
    for (status, more, length) in
        [("204 No Content", "", None), ("304 Not Modified", "content-length: 12\r\n", Some("12"))]
    {
        let provider = ScriptedServer::start_responding(format!("HTTP/1.1 {status}\r\netag: x\r\n{more}\r\n")).await;
        let gateway = TestGateway::for_url(&provider.url());
        for _ in 0..2 {
            let response = gateway.send(get_request("/v1/files/f")).await;
            assert_eq!((response.status.to_string().as_str(), response.body.len()), (&status[..3], 0));
            assert_eq!((response.header("etag"), response.header("content-length")), (Some("x"), length), "{status}");
        }
        assert_eq!(provider.connection_count(), 1);
    }
}

#[tokio::test]
async fn passes_the_overloaded_error_of_the_provider() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let response = gateway.send(chat_request("mock?fault=overloaded_first")).await;
    assert_eq!((response.status, response.error_code().as_str()), (503, "overloaded"));
    assert_eq!(response.json()["error"]["type"], "overloaded_error");
    let response = gateway.send(post_request(MESSAGES_PATH, chat_body("mock?fault=overloaded_first", false))).await;
    assert_eq!((response.status, &response.json()["error"]["type"]), (529, &json!("overloaded_error")));
}
