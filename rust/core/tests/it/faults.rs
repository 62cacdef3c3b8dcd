//! Every provider fault, complete and streamed, in both API formats, with its expected outcome. No failed response may
//! look like a success.

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestGateway, TestResponse, chat_body, chat_body_with_usage, chat_request, fetch_directly,
    pick_fields, post_request,
};
use ExpectedEnd::{
    GatewayError, GatewayErrorEvent, MissingLastEvent, ProviderErrorEvent, ProviderStatus, TruncatedToLength, Unchanged,
};
use penstock_mock::{Fault, Server};
use serde_json::{Value, json};

/// How a response ends for the client and in the record.
#[derive(Clone, Copy, Debug)]
enum ExpectedEnd {
    /// Everything that the provider sent; recorded as a success.
    Unchanged,
    /// The provider's own error response with this status.
    ProviderStatus(u16),
    /// As many bytes as the provider's `content-length` announces.
    TruncatedToLength,
    /// Everything that the provider sent, including the provider's own error event.
    ProviderErrorEvent,
    /// The data received so far, then an error event in the client format. The record has this error code.
    GatewayErrorEvent(&'static str),
    /// The gateway's own error with this status and code, before anything was sent.
    GatewayError(u16, &'static str),
    /// A stream without its last event. A chat stream has already sent its finish reason and is complete; a messages
    /// stream is not.
    MissingLastEvent,
}

const DISCONNECT_ERROR: ExpectedEnd = GatewayError(502, "upstream_disconnected");
const DISCONNECT_EVENT: ExpectedEnd = GatewayErrorEvent("upstream_disconnected");
/// Nothing arrived within the idle timeout.
const IDLE_TIMEOUT_ERROR: ExpectedEnd = GatewayError(408, "idle_timeout");

/// Fault, expected end of a complete response, expected end of a stream.
const FAULT_CASES: &[(&str, ExpectedEnd, ExpectedEnd)] = &[
    ("429", ProviderStatus(429), ProviderStatus(429)),
    ("429&retry_after=7", ProviderStatus(429), ProviderStatus(429)),
    ("reset", DISCONNECT_ERROR, DISCONNECT_ERROR),
    ("silence", GatewayError(408, "timeout"), GatewayError(408, "timeout")),
    ("slow_first&first_ms=60", Unchanged, Unchanged),
    ("slow_first&first_ms=2000", IDLE_TIMEOUT_ERROR, IDLE_TIMEOUT_ERROR),
    ("cut", DISCONNECT_ERROR, DISCONNECT_EVENT),
    ("cut&after=0", DISCONNECT_ERROR, DISCONNECT_EVENT),
    ("cut_reset", DISCONNECT_ERROR, DISCONNECT_EVENT),
    ("cut_event", DISCONNECT_ERROR, DISCONNECT_EVENT),
    ("stall", IDLE_TIMEOUT_ERROR, GatewayErrorEvent("idle_timeout")),
    ("malformed_chunk", Unchanged, Unchanged),
    ("invalid_framing", DISCONNECT_ERROR, DISCONNECT_EVENT),
    ("no_done", Unchanged, MissingLastEvent),
    ("overloaded_first", ProviderStatus(0), ProviderErrorEvent),
    ("short_length", TruncatedToLength, DISCONNECT_EVENT),
    ("long_length", DISCONNECT_ERROR, Unchanged),
    ("gzip", Unchanged, Unchanged),
    ("gzip_bomb", Unchanged, Unchanged),
    ("gzip_bomb&status=400", ProviderStatus(400), ProviderStatus(400)),
    ("huge_event", Unchanged, Unchanged),
    ("redirect_metadata", ProviderStatus(302), ProviderStatus(302)),
    ("half_close", DISCONNECT_ERROR, DISCONNECT_EVENT),
    ("drip&chunk_ms=0&chunks=1", Unchanged, Unchanged),
    ("headers_flood", DISCONNECT_ERROR, DISCONNECT_ERROR),
    ("early_1xx", Unchanged, Unchanged),
    ("crlf", Unchanged, Unchanged),
    ("cr", Unchanged, Unchanged),
    ("bom", Unchanged, Unchanged),
    ("pings_only&chunk_ms=100", Unchanged, GatewayErrorEvent("timeout")),
    ("error_event", Unchanged, ProviderErrorEvent),
    ("invalid_utf8", Unchanged, Unchanged),
    ("done_then_data", Unchanged, Unchanged),
];

/// Faults that the tests' own client cannot read for comparison: a length that is never reached, and several response
/// heads.
const UNREADABLE_FAULTS: [&str; 2] = ["long_length", "early_1xx"];

#[tokio::test]
async fn every_fault_ends_as_expected_and_gateway_survives() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| {
        settings.idle_timeout_ms = 500;
        // A busy machine may need long for an event of 10 MB, which is not a fault of the provider.
        settings.request_timeout_ms = 3000;
        settings.stream_timeout_ms = 3500;
    });
    for &(fault, complete, streamed) in FAULT_CASES {
        for path in [CHAT_PATH, MESSAGES_PATH] {
            for (end, stream) in [(complete, false), (streamed, true)] {
                let end = match end {
                    MissingLastEvent if path == CHAT_PATH => Unchanged,
                    MissingLastEvent => DISCONNECT_EVENT,
                    end => end,
                };
                let case = format!("{fault} {path} stream: {stream}");
                let model = format!("mock?fault={fault}");
                let body = if stream { chat_body_with_usage(&model) } else { chat_body(&model, false) };
                let response = gateway.send(post_request(path, body.clone())).await;
                let record = gateway.single_record();
                assert_end(end, &response, &record, &case);
                if matches!(end, Unchanged | ProviderErrorEvent | TruncatedToLength)
                    && !UNREADABLE_FAULTS.contains(&fault)
                {
                    let sent = mask_digits(&fetch_directly(provider.addr, path, &body).await);
                    let got = mask_digits(&response.body);
                    assert!(
                        if matches!(end, TruncatedToLength) { sent.starts_with(&got) } else { sent == got },
                        "{case}"
                    );
                }
                assert_eq!(gateway.send(chat_request("mock")).await.status, 200, "after {case}");
                gateway.drain_records();
            }
        }
    }
}

#[test]
fn fault_cases_cover_every_fault() {
    let walled = |name: &str| FAULT_CASES.iter().any(|(fault, ..)| fault.split('&').next() == Some(name));
    let missing: Vec<_> = Fault::names().into_iter().filter(|name| !walled(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

fn assert_end(end: ExpectedEnd, response: &TestResponse, record: &Value, case: &str) {
    let (status, outcome, error) = match end {
        Unchanged | TruncatedToLength => (200, "complete", Value::Null),
        ProviderStatus(0) => (response.status, "complete", Value::Null),
        ProviderStatus(status) => (status, "complete", Value::Null),
        ProviderErrorEvent => (200, "complete", "upstream_error_event".into()),
        GatewayErrorEvent(code) => (200, "cut", code.into()),
        GatewayError(status, code) => (status, "failed", code.into()),
        MissingLastEvent => return,
    };
    assert_eq!((response.status, response.is_truncated), (status, false), "{case}: {:.200}", response.text());
    let is_success = matches!(end, Unchanged | TruncatedToLength);
    let fields = pick_fields(record, ["response_status_code", "outcome", "error", "is_success"]);
    assert_eq!(fields, json!([status, outcome, error, is_success]), "{case}");
    let is_messages = case.contains(MESSAGES_PATH);
    match end {
        ProviderStatus(status) => {
            assert!((400..600).contains(&response.status) || status == 302, "{case}: {}", response.status);
            // A body that would expand too much is forwarded compressed.
            assert_eq!(response.header("content-encoding"), case.contains("gzip").then_some("gzip"), "{case}");
            assert_eq!(response.header("retry-after"), case.contains("retry_after").then_some("7"), "{case}");
        }
        GatewayError(status, code) => {
            let body = response.json();
            assert_eq!(body["type"] == "error", is_messages, "{case}: {body}");
            // A timeout error has its own format, which has no code.
            assert!(body["error"]["message"].is_string(), "{case}: {body}");
            assert!(is_messages || status == 408 || body["error"]["code"] == code, "{case}: {body}");
        }
        GatewayErrorEvent(_) => {
            let (name, data) = response.last_event();
            assert_eq!(name.as_deref(), is_messages.then_some("error"), "{case}");
            assert!(data["error"]["message"].is_string(), "{case}: {}", response.text());
            assert!(!response.text().contains("[DONE]\n") && !response.text().contains("message_stop\"}"), "{case}");
        }
        _ => (),
    }
}

/// Masks digits, because the provider numbers its responses and includes the time.
fn mask_digits(body: &[u8]) -> Vec<u8> {
    body.iter().map(|byte| if byte.is_ascii_digit() { b'0' } else { *byte }).collect()
}
