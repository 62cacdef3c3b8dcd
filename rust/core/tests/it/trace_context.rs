//! Trace propagation and request metadata. Upstream requests continue the client's trace, and the record contains the
//! client's metadata.

use crate::harness::{CHAT_PATH, TestGateway, chat_request, get_request, pick_fields, post_request};
use penstock_mock::Server;
use serde_json::json;

const TRACE_ID: &str = "12345678901234567890123456789012";
const TRACEPARENT: &str = "00-12345678901234567890123456789012-1234567890123456-01";

#[tokio::test]
async fn continues_a_trace_below_a_gateway_span() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for request in [chat_request("mock"), get_request("/v1/files"), get_request("/v1/proxy/files")] {
        let request = request
            .header("TraceParent", TRACEPARENT)
            .header("tracestate", "foo=1, bar=2")
            .header("tracestate", "baz=3");
        let response = gateway.send(request).await;
        let record = gateway.single_record();
        let fields = pick_fields(&record, ["trace_id", "parent_span_id"]);
        assert_eq!(fields, json!([TRACE_ID, "1234567890123456"]));
        let path = record["request_url"].as_str().unwrap();
        assert!(record["span_name"].as_str().unwrap().ends_with(&format!(" {path}")), "{record:#}");
        assert_eq!(response.header("x-gateway-trace-id"), Some(TRACE_ID));
        let entry = provider.ledger_entries().pop().unwrap();
        let span = record["span_id"].as_str().unwrap();
        assert_ne!(span, "1234567890123456");
        assert_eq!(entry.header("traceparent"), Some(format!("00-{TRACE_ID}-{span}-01").as_str()));
        let states: Vec<_> = entry.headers.iter().filter(|(name, _)| name == "tracestate").collect();
        assert_eq!(states, [&("tracestate".to_owned(), "foo=1,bar=2,baz=3".to_owned())]);
    }
}

#[tokio::test]
async fn ignores_an_invalid_traceparent() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for fields in [
        &[("traceparent", "ff-12345678901234567890123456789012-1234567890123456-01")][..],
        &[("traceparent", "00-00000000000000000000000000000000-1234567890123456-01")],
        &[("traceparent", TRACEPARENT), ("traceparent", TRACEPARENT)],
        &[("trace-parent", TRACEPARENT)],
        &[("tracestate", "foo=1")],
        &[],
    ] {
        for mut request in [chat_request("mock"), get_request("/v1/files")] {
            for (name, value) in fields {
                request = request.header(name, value);
            }
            let response = gateway.send(request.header("tracestate", "bar=2")).await;
            let record = gateway.single_record();
            assert_eq!(
                (response.status, response.header("x-gateway-trace-id")),
                (200, record["id"].as_str()),
                "{fields:?}"
            );
            assert!(record["span_id"].is_null() && record["parent_span_id"].is_null(), "{fields:?}");
            let entry = provider.ledger_entries().pop().unwrap();
            assert_eq!((entry.header("traceparent"), entry.header("tracestate")), (None, None), "{fields:?}");
        }
    }
}

#[tokio::test]
async fn gateway_trace_headers_win_over_w3c_headers() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let request = chat_request("mock")
        .header("traceparent", TRACEPARENT)
        .header("x-gateway-trace-id", "t-1")
        .header("x-gateway-span-name", "ask")
        .header("x-gateway-parent-span-id", "s-0");
    let response = gateway.send(request).await;
    let fields = pick_fields(&gateway.single_record(), ["trace_id", "span_name", "parent_span_id"]);
    assert_eq!((fields, response.header("x-gateway-trace-id")), (json!(["t-1", "ask", "s-0"]), Some("t-1")));
    assert!(provider.ledger_entries()[0].header("traceparent").unwrap().contains(TRACE_ID));
}

#[tokio::test]
async fn merges_metadata_of_headers_baggage_and_body_in_order() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| {
        settings.headers_to_metadata = vec!["X-Team".into(), "X-Hidden".into(), "Authorization".into()];
    });
    let body = r#"{"model":"mock","user":"body","messages":[{"role":"user","content":"hi"}]}"#;
    let build_request = || {
        post_request(CHAT_PATH, body)
            .header("baggage", "_user=bag, x-team=blue, a=1")
            .header("x-team", "red")
            .header("x-hidden", "h")
            .header("authorization", "Bearer sk-1")
            .header("x-gateway-sensitive-headers", "x-hidden")
    };
    gateway.send(build_request().header("x-gateway-metadata", r#"{"a":"0","_user":"head"}"#)).await;
    assert_eq!(gateway.single_record()["metadata"], json!({"a": "0", "_user": "head", "x-team": "red"}));
    gateway.send(build_request()).await;
    assert_eq!(gateway.single_record()["metadata"], json!({"x-team": "red", "_user": "bag", "a": "1"}));
    gateway.send(post_request(CHAT_PATH, body)).await;
    assert_eq!(gateway.single_record()["metadata"], json!({"_user": "body"}));
    gateway.send(chat_request("mock")).await;
    assert!(gateway.single_record()["metadata"].is_null());
}

#[tokio::test]
async fn rejects_invalid_metadata_by_key_after_other_errors() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let long = format!(r#"{{"fine":"1","team":"{}"}}"#, "x".repeat(129));
    for (metadata, name) in [(long.as_str(), "`team`"), (r#"{"n":1}"#, "`n`"), ("{not json", "JSON object")] {
        let response = gateway.send(chat_request("mock").header("x-gateway-metadata", metadata)).await;
        assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_header"));
        assert!(response.text().contains(name), "{}", response.text());
    }
    assert!(provider.ledger_entries().is_empty());
    gateway.drain_records();
    let request = crate::harness::TestRequest::new("POST", CHAT_PATH).header("x-gateway-metadata", &long);
    assert_eq!(gateway.send(request).await.error_code(), "provider_required");
    assert_eq!(gateway.single_record()["metadata"], json!({"fine": "1"}));
}
