//! Tests of request records: masks, ends and amendments.

use std::{fs, path::Path};

use serde_json::Value;

use super::*;
use crate::{
    accounting::spool::frame::{FrameReader, read_segment_header},
    guardrails::{checks::Stage, results::HookResult},
};

fn test_sink() -> Arc<RecordSink> {
    Arc::new(RecordSink::new(&Settings {
        control_socket: Some("/nonexistent".into()),
        sensitive_headers: vec!["X-Team".into()],
        headers_to_metadata: vec!["Authorization".into(), "x-team".into(), "X-User".into()],
        ..Settings::default()
    }))
}

fn test_head() -> Arc<RequestHead> {
    let fields = [
        ("authorization", "Bearer sk-1"),
        ("x-team", "red"),
        ("x-user", "ann"),
        ("x-gateway-config", r#"{"api_key":"sk-2"}"#),
        ("accept", "*/*"),
    ];
    Arc::new(RequestHead {
        method: "POST".into(),
        path: "/v1/x".into(),
        query: "key=sk-3&page=2".into(),
        headers: fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect(),
        ..RequestHead::default()
    })
}

fn read_lines(sink: &RecordSink) -> Vec<Value> {
    let pending = sink.refused_outbox.take_pending().unwrap();
    pending
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect()
}

#[test]
fn masks_possible_secrets_and_listed_headers() {
    let sink = test_sink();
    let mut record = Record::open(test_head(), Arc::clone(&sink));
    record.log.admitted_workspace = Some(0);
    record.log.masked_headers = vec!["x-user".into()];
    record.close(Outcome::Complete);
    let text = String::from_utf8(sink.outbox.take_pending().unwrap()).unwrap();
    for secret in ["sk-1", "sk-2", "sk-3", "red", "ann"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    assert!(text.contains(r#""accept":"*/*""#) && text.contains("page=2"));
}

#[test]
fn dropped_request_writes_exactly_one_record() {
    let sink = test_sink();
    drop(Record::open(test_head(), Arc::clone(&sink)));
    let lines = read_lines(&sink);
    assert_eq!(lines.len(), 1);
    assert_eq!((lines[0]["outcome"].as_str(), lines[0]["response_status_code"].as_u64()), (Some("aborted"), Some(499)));
}

/// Returns the last frame of the only segment below a folder.
fn read_last_frame(folder: &Path) -> Value {
    let entries = |folder: &Path| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files = entries(folder).flat_map(|writer| entries(&writer).collect::<Vec<_>>());
    let data = fs::read(files.find(|path| path.extension().is_some_and(|kind| kind == "seg")).unwrap()).unwrap();
    let (_, start) = read_segment_header(&data).unwrap();
    serde_json::from_slice(FrameReader::new(&data, start).last().unwrap().payload).unwrap()
}

fn late_result() -> HookResult {
    HookResult {
        id: "late".into(),
        kind: "guardrail",
        skipped: None,
        verdict: true,
        is_async: true,
        denies: false,
        is_soft: false,
        is_transformed: false,
        would_deny: None,
        checks: Vec::new(),
        feedback: None,
        milliseconds: 0,
        created_at: String::new(),
    }
}

#[tokio::test]
async fn hook_that_ends_right_after_the_record_is_in_the_amendment() {
    let folder = std::env::temp_dir().join(format!("penstock-late-hook-{:016x}", fastrand::u64(..)));
    let path = Some(folder.to_str().unwrap().to_owned());
    let sink = Arc::new(RecordSink::new(&Settings { spool_path: path, ..Settings::default() }));
    let mut record = Record::open(test_head(), sink);
    record.log.admitted_workspace = Some(0);
    record.log.details.identity.organisation_id = Some("org".into());
    record.log.trace_id = Some("trace".into());
    let results = SharedHookResults::default();
    record.log.details.set_hook_results(results.clone());
    let group = results.begin_group();
    record.write_end_early(Outcome::Complete, None);
    results.lock().add(Stage::Input, vec![late_result()]);
    // No hook runs any more when the record is closed.
    drop(group);
    record.close(Outcome::Complete);
    let amended = read_last_frame(&folder);
    assert_eq!(amended["hook_results"]["before_request_hooks"][0]["id"], "late");
    for name in ["organisation_id", "trace_id", "created_at"] {
        assert!(amended[name].is_string(), "{name} in {amended}");
    }
    fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn early_end_has_the_usage_that_is_known() {
    let usage = Usage { input: 3, output: 4, ..Usage::default() };
    for (pending, expected) in [
        (Some(PendingUsage::Known(usage, None)), serde_json::json!({"total_units": 7})),
        (Some(PendingUsage::Uncounted), serde_json::json!({})),
        (None, Value::Null),
    ] {
        let folder = std::env::temp_dir().join(format!("penstock-early-end-{:016x}", fastrand::u64(..)));
        let path = Some(folder.to_str().unwrap().to_owned());
        let sink = Arc::new(RecordSink::new(&Settings { spool_path: path, ..Settings::default() }));
        let mut record = Record::open(test_head(), sink);
        record.log.admitted_workspace = Some(0);
        record.log.billing.usage = Some(usage);
        record.write_end_early(Outcome::Complete, pending);
        let end = read_last_frame(&folder);
        assert_eq!(end["pending_usage"].is_null(), expected.is_null());
        assert_eq!(end["pending_usage"]["total_units"], expected["total_units"]);
        assert!(end["total_units"].is_null());
        // The amendment is written even if the record turns out to have no usage.
        record.log.billing.usage = None;
        record.close(Outcome::Complete);
        let amended = read_last_frame(&folder);
        assert!(amended["outcome"].is_null() && amended["ai_model"].is_string());
        fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn ids_sort_by_time() {
    let (early, late) = (new_id(Duration::from_secs(1)), new_id(Duration::from_secs(2)));
    assert!(early < late);
    assert_eq!(early.get_version_num(), 7);
}

#[test]
fn headers_that_may_hold_secrets_never_become_metadata() {
    assert_eq!(test_sink().metadata_headers, ["x-user"]);
}
