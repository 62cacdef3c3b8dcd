//! Error bodies and error events in each API format.

use penstock_llm::api_format::{ApiFormat, Failure, anthropic_messages, error_body, error_event};

const FAILURE: Failure = Failure {
    status: 429,
    error_type: None,
    message: "too \"many\"\nrequests",
    code: Some("rate_limited"),
    request_id: Some("req-1"),
};

fn as_str(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn writes_an_error_body_in_each_api_format() {
    assert_eq!(
        as_str(&error_body(ApiFormat::OpenAi, &FAILURE)),
        r#"{"error":{"message":"too \"many\"\nrequests","type":"rate_limit_error","param":null,"code":"rate_limited"}}"#
    );
    assert_eq!(
        as_str(&error_body(ApiFormat::Anthropic, &FAILURE)),
        r#"{"type":"error","error":{"type":"rate_limit_error","message":"too \"many\"\nrequests"},"request_id":"req-1"}"#
    );
}

#[test]
fn writes_an_error_event_in_each_api_format() {
    let event = error_event(ApiFormat::OpenAi, &FAILURE);
    assert!(event.starts_with(b"data: {\"error\":") && event.ends_with(b"}\n\n"));
    let event = error_event(ApiFormat::Anthropic, &FAILURE);
    assert!(event.starts_with(b"event: error\ndata: {\"type\":\"error\"") && event.ends_with(b"}\n\n"));
}

#[test]
fn an_explicit_error_kind_wins_over_the_status() {
    let failure = Failure { error_type: Some("gateway_error"), ..FAILURE };
    for api_format in [ApiFormat::OpenAi, ApiFormat::Anthropic] {
        assert!(as_str(&error_body(api_format, &failure)).contains(r#""type":"gateway_error""#));
    }
}

#[test]
fn every_status_has_an_error_kind_of_its_api_format() {
    let kind = |api_format, status| {
        let body = error_body(api_format, &Failure { status, ..FAILURE });
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        body["error"]["type"].as_str().unwrap().to_owned()
    };
    assert_eq!(kind(ApiFormat::Anthropic, 529), "overloaded_error");
    assert_eq!(kind(ApiFormat::Anthropic, 413), "request_too_large");
    assert_eq!(kind(ApiFormat::Anthropic, 500), "api_error");
    assert_eq!(kind(ApiFormat::OpenAi, 400), "invalid_request_error");
    assert_eq!(kind(ApiFormat::OpenAi, 408), "timeout_error");
    assert_eq!(kind(ApiFormat::OpenAi, 502), "server_error");
}

#[test]
fn recognises_an_overloaded_error() {
    assert!(anthropic_messages::is_overloaded_error(
        br#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#
    ));
    assert!(!anthropic_messages::is_overloaded_error(
        br#"{"type":"error","error":{"type":"api_error","message":"overloaded_error"}}"#
    ));
    assert!(!anthropic_messages::is_overloaded_error(b"[DONE]"));
}
