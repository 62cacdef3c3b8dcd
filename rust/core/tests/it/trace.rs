//! Traces that a caller began go on at the provider, and what a caller notes of a request is in its record.

use crate::harness::{CHAT, Rig, chat, get, pick, post};
use penstock_mock::Server;
use serde_json::json;

const TRACE: &str = "12345678901234567890123456789012";
const PARENT: &str = "00-12345678901234567890123456789012-1234567890123456-01";

#[tokio::test]
async fn a_trace_goes_on_below_a_span_of_the_gateways() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for ask in [chat("mock"), get("/v1/files"), get("/v1/proxy/files")] {
        let ask = ask.header("TraceParent", PARENT).header("tracestate", "foo=1, bar=2").header("tracestate", "baz=3");
        let told = rig.send(ask).await;
        let record = rig.record();
        let said = pick(&record, ["trace_id", "parent_span_id"]);
        assert_eq!(said, json!([TRACE, "1234567890123456"]));
        let path = record["request_url"].as_str().unwrap();
        assert!(record["span_name"].as_str().unwrap().ends_with(&format!(" {path}")), "{record:#}");
        assert_eq!(told.header("x-gateway-trace-id"), Some(TRACE));
        let entry = provider.ledger_entries().pop().unwrap();
        let span = record["span_id"].as_str().unwrap();
        assert_ne!(span, "1234567890123456");
        assert_eq!(entry.header("traceparent"), Some(format!("00-{TRACE}-{span}-01").as_str()));
        let states: Vec<_> = entry.headers.iter().filter(|(name, _)| name == "tracestate").collect();
        assert_eq!(states, [&("tracestate".to_owned(), "foo=1,bar=2,baz=3".to_owned())]);
    }
}

#[tokio::test]
async fn what_is_no_trace_is_as_if_it_were_not_there() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for fields in [
        &[("traceparent", "ff-12345678901234567890123456789012-1234567890123456-01")][..],
        &[("traceparent", "00-00000000000000000000000000000000-1234567890123456-01")],
        &[("traceparent", PARENT), ("traceparent", PARENT)],
        &[("trace-parent", PARENT)],
        &[("tracestate", "foo=1")],
        &[],
    ] {
        for mut ask in [chat("mock"), get("/v1/files")] {
            for (name, value) in fields {
                ask = ask.header(name, value);
            }
            let told = rig.send(ask.header("tracestate", "bar=2")).await;
            let record = rig.record();
            assert_eq!((told.status, told.header("x-gateway-trace-id")), (200, record["id"].as_str()), "{fields:?}");
            assert!(record["span_id"].is_null() && record["parent_span_id"].is_null(), "{fields:?}");
            let entry = provider.ledger_entries().pop().unwrap();
            assert_eq!((entry.header("traceparent"), entry.header("tracestate")), (None, None), "{fields:?}");
        }
    }
}

#[tokio::test]
async fn the_gateways_own_fields_win_over_those_of_the_w3c() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let ask = chat("mock")
        .header("traceparent", PARENT)
        .header("x-gateway-trace-id", "t-1")
        .header("x-gateway-span-name", "ask")
        .header("x-gateway-parent-span-id", "s-0");
    let told = rig.send(ask).await;
    let said = pick(&rig.record(), ["trace_id", "span_name", "parent_span_id"]);
    assert_eq!((said, told.header("x-gateway-trace-id")), (json!(["t-1", "ask", "s-0"]), Some("t-1")));
    assert!(provider.ledger_entries()[0].header("traceparent").unwrap().contains(TRACE));
}

#[tokio::test]
async fn metadata_comes_from_the_header_then_from_listed_fields_then_from_baggage_then_from_the_body() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| {
        settings.headers_to_metadata = vec!["X-Team".into(), "X-Hidden".into(), "Authorization".into()];
    });
    let body = r#"{"model":"mock","user":"body","messages":[{"role":"user","content":"hi"}]}"#;
    let ask = || {
        post(CHAT, body)
            .header("baggage", "_user=bag, x-team=blue, a=1")
            .header("x-team", "red")
            .header("x-hidden", "h")
            .header("authorization", "Bearer sk-1")
            .header("x-gateway-sensitive-headers", "x-hidden")
    };
    rig.send(ask().header("x-gateway-metadata", r#"{"a":"0","_user":"head"}"#)).await;
    assert_eq!(rig.record()["metadata"], json!({"key": ["a", "_user", "x-team"], "value": ["0", "head", "red"]}));
    rig.send(ask()).await;
    assert_eq!(rig.record()["metadata"], json!({"key": ["x-team", "_user", "a"], "value": ["red", "bag", "1"]}));
    rig.send(post(CHAT, body)).await;
    assert_eq!(rig.record()["metadata"], json!({"key": ["_user"], "value": ["body"]}));
    rig.send(chat("mock")).await;
    assert!(rig.record()["metadata"].is_null());
}

#[tokio::test]
async fn metadata_that_cannot_be_kept_is_refused_by_name_after_all_that_is_more_wrong() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let long = format!(r#"{{"fine":"1","team":"{}"}}"#, "x".repeat(129));
    for (metadata, named) in [(long.as_str(), "`team`"), (r#"{"n":1}"#, "`n`"), ("{not json", "JSON object")] {
        let told = rig.send(chat("mock").header("x-gateway-metadata", metadata)).await;
        assert_eq!((told.status, told.code().as_str()), (400, "invalid_header"));
        assert!(told.text().contains(named), "{}", told.text());
    }
    assert!(provider.ledger_entries().is_empty());
    rig.records();
    let ask = crate::harness::Ask::new("POST", CHAT).header("x-gateway-metadata", &long);
    assert_eq!(rig.send(ask).await.code(), "provider_needed");
    assert_eq!(rig.record()["metadata"], json!({"key": ["fine"], "value": ["1"]}));
}
