//! The wall: every fault of a provider, whole and streamed, in both dialects, and what becomes of it. None looks like success.

use crate::harness::{CHAT, MESSAGES, Rig, Told, all_words, chat, direct, pick, post, words};
use End::{Alike, Failed, Passed, Refused, Said, Shortened, Unmarked};
use penstock_mock::{Fault, Server};
use serde_json::{Value, json};

/// How an answer ends for the caller, and for the record.
#[derive(Clone, Copy, Debug)]
enum End {
    /// Everything that the provider sent, and it counts as good.
    Alike,
    /// The provider's own refusal with this status.
    Passed(u16),
    /// As much as the provider said there is.
    Shortened,
    /// Everything that the provider sent, an error of its own among it.
    Failed,
    /// What came before, then an error event in the caller's dialect, with its code in the record.
    Said(&'static str),
    /// An error of the gateway's, with its code, before anything was sent.
    Refused(u16, &'static str),
    /// A stream without its last event: of a chat it said before why it ended, of messages not.
    Unmarked,
}

const BROKE: End = Refused(502, "upstream_broke");
const SAID: End = Said("upstream_broke");
/// Nothing came for too long.
const SILENT: End = Refused(408, "idle_timeout");

/// The fault, how a whole answer with it ends, and how a stream does.
const WALL: &[(&str, End, End)] = &[
    ("429", Passed(429), Passed(429)),
    ("429&retry_after=7", Passed(429), Passed(429)),
    ("reset", BROKE, BROKE),
    ("silence", Refused(408, "timeout"), Refused(408, "timeout")),
    ("slow_first&first_ms=60", Alike, Alike),
    ("slow_first&first_ms=2000", SILENT, SILENT),
    ("cut", BROKE, SAID),
    ("cut&after=0", BROKE, SAID),
    ("cut_reset", BROKE, SAID),
    ("cut_event", BROKE, SAID),
    ("stall", SILENT, Said("idle_timeout")),
    ("malformed_chunk", Alike, Alike),
    ("bad_framing", BROKE, SAID),
    ("no_done", Alike, Unmarked),
    ("overloaded_first", Passed(0), Failed),
    ("short_length", Shortened, SAID),
    ("long_length", BROKE, Alike),
    ("gzip", Alike, Alike),
    ("gzip_bomb", Alike, Alike),
    ("gzip_bomb&status=400", Passed(400), Passed(400)),
    ("huge_event", Alike, Alike),
    ("redirect_metadata", Passed(302), Passed(302)),
    ("half_close", BROKE, SAID),
    ("drip&chunk_ms=0&chunks=1", Alike, Alike),
    ("headers_flood", BROKE, BROKE),
    ("early_1xx", Alike, Alike),
    ("crlf", Alike, Alike),
    ("cr", Alike, Alike),
    ("bom", Alike, Alike),
    ("pings_only&chunk_ms=100", Alike, Said("timeout")),
    ("error_event", Alike, Failed),
    ("invalid_utf8", Alike, Alike),
    ("done_then_data", Alike, Alike),
];

/// What the tests' own client cannot read to compare it: a length that is never reached, several heads.
const UNREADABLE: [&str; 2] = ["long_length", "early_1xx"];

#[tokio::test]
async fn every_fault_ends_as_it_must_and_the_gateway_lives_on() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| {
        settings.idle_timeout_ms = 500;
        // A busy machine takes its time for an event of 10 MB, which is no fault of the provider's.
        settings.request_timeout_ms = 3000;
        settings.stream_timeout_ms = 3500;
    });
    for &(fault, whole, streamed) in WALL {
        for path in [CHAT, MESSAGES] {
            for (end, stream) in [(whole, false), (streamed, true)] {
                let end = match end {
                    Unmarked if path == CHAT => Alike,
                    Unmarked => SAID,
                    end => end,
                };
                let case = format!("{fault} {path} stream: {stream}");
                let model = format!("mock?fault={fault}");
                let body = if stream { all_words(&model) } else { words(&model, false) };
                let told = rig.send(post(path, body.clone())).await;
                let record = rig.record();
                assert_end(end, &told, &record, &case);
                if matches!(end, Alike | Failed | Shortened) && !UNREADABLE.contains(&fault) {
                    let sent = without_numbers(&direct(provider.addr, path, &body).await);
                    let got = without_numbers(&told.body);
                    assert!(if matches!(end, Shortened) { sent.starts_with(&got) } else { sent == got }, "{case}");
                }
                assert_eq!(rig.send(chat("mock")).await.status, 200, "after {case}");
                rig.records();
            }
        }
    }
}

#[test]
fn the_wall_has_every_fault() {
    let walled = |name: &str| WALL.iter().any(|(fault, ..)| fault.split('&').next() == Some(name));
    let missing: Vec<_> = Fault::names().into_iter().filter(|name| !walled(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

fn assert_end(end: End, told: &Told, record: &Value, case: &str) {
    let (status, outcome, error) = match end {
        Alike | Shortened => (200, "complete", Value::Null),
        Passed(0) => (told.status, "complete", Value::Null),
        Passed(status) => (status, "complete", Value::Null),
        Failed => (200, "complete", "upstream_error_event".into()),
        Said(code) => (200, "cut", code.into()),
        Refused(status, code) => (status, "refused", code.into()),
        Unmarked => return,
    };
    assert_eq!((told.status, told.cut), (status, false), "{case}: {:.200}", told.text());
    let is_success = matches!(end, Alike | Shortened);
    let said = pick(record, ["response_status_code", "outcome", "error", "is_success"]);
    assert_eq!(said, json!([status, outcome, error, is_success]), "{case}");
    let is_messages = case.contains(MESSAGES);
    match end {
        Passed(status) => {
            assert!((400..600).contains(&told.status) || status == 302, "{case}: {}", told.status);
            // What would be too much to unpack is left as it is.
            assert_eq!(told.header("content-encoding"), case.contains("gzip").then_some("gzip"), "{case}");
            assert_eq!(told.header("retry-after"), case.contains("retry_after").then_some("7"), "{case}");
        }
        Refused(status, code) => {
            let body = told.json();
            assert_eq!(body["type"] == "error", is_messages, "{case}: {body}");
            // A timeout has a shape of its own, in which it has no code.
            assert!(body["error"]["message"].is_string(), "{case}: {body}");
            assert!(is_messages || status == 408 || body["error"]["code"] == code, "{case}: {body}");
        }
        Said(_) => {
            let (name, data) = told.last_event();
            assert_eq!(name.as_deref(), is_messages.then_some("error"), "{case}");
            assert!(data["error"]["message"].is_string(), "{case}: {}", told.text());
            assert!(!told.text().contains("[DONE]\n") && !told.text().contains("message_stop\"}"), "{case}");
        }
        _ => (),
    }
}

/// The provider numbers its answers and tells the time.
fn without_numbers(body: &[u8]) -> Vec<u8> {
    body.iter().map(|byte| if byte.is_ascii_digit() { b'0' } else { *byte }).collect()
}
