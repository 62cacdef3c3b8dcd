//! Load client tests. Its counts must equal those of the mock provider's ledger.

use crate::http_client::start_server;
use penstock_mock::Server;
use penstock_mock::load::{LoadOptions, run};
use serde_json::{Value, json};

fn run_load(server: &Server, line: &str) -> Value {
    let (mode, rest) = line.split_once(' ').unwrap();
    let line = format!("{mode} --url {}/v1/chat/completions {rest}", server.url());
    run(&LoadOptions::parse(line.split(' ').map(str::to_owned)).unwrap()).unwrap()
}

#[test]
fn whole_mode_counts_the_served_requests() {
    let server = start_server();
    let report = run_load(&server, "whole --connections 3 --seconds 0.2");
    let entries = server.ledger_entries().len() as u64;
    assert_eq!((report["requests"].as_u64().unwrap().min(10_000), &report["errors"]), (entries, &json!(0)), "{report}");
    assert!(
        report["p50_us"].as_f64() <= report["p99_us"].as_f64()
            && report["p99_us"].as_f64() <= report["max_us"].as_f64()
    );
}

#[test]
fn rate_mode_measures_latency_from_the_scheduled_time() {
    let server = start_server();
    let report = run_load(&server, "rate --rate 200 --connections 2 --seconds 0.5");
    assert_eq!((&report["requests"], server.ledger_entries().len()), (&json!(100), 100), "{report}");
    // One connection cannot carry 100 requests a second at 20 ms each, so the backlog shows as latency.
    let late = run_load(&server, "rate --rate 100 --connections 1 --seconds 0.5 --model mock?first_ms=20");
    assert_eq!(late["requests"], 50);
    assert!(late["max_us"].as_f64().unwrap() > 400_000.0, "{late}");
}

#[test]
fn stream_mode_counts_every_chunk() {
    let server = start_server();
    let report = run_load(
        &server,
        "stream --streams 4 --rounds 2 --seconds 5 --model mock?chunks=10&stamp=on&chunk_ms=2 --expect-chunks 13",
    );
    assert_eq!(
        (&report["streams"], &report["chunks"], &report["incomplete"]),
        (&json!(8), &json!(104), &json!(0)),
        "{report}"
    );
    assert_eq!(report["errors"], 0);
    let late = report["late_p50_us"].as_f64().unwrap();
    assert!(late > 0.0 && late < 1_000_000.0, "{report}");
    let miscounted = run_load(&server, "stream --streams 2 --rounds 1 --seconds 5 --expect-chunks 12");
    assert_eq!((&miscounted["streams"], &miscounted["incomplete"]), (&json!(2), &json!(2)));
}

#[test]
fn hold_mode_counts_finished_and_failed_streams() {
    let server = start_server();
    let report = run_load(&server, "hold --streams 40 --seconds 1 --model mock?chunks=5&chunk_ms=20 --expect-chunks 8");
    assert_eq!(
        (&report["finished"], &report["failed"], &report["chunks"]),
        (&json!(40), &json!(0), &json!(320)),
        "{report}"
    );
    let cut = run_load(&server, "hold --streams 3 --seconds 1 --model mock?fault=cut");
    assert_eq!(
        (&cut["finished"], &cut["failed"], &cut["errors_by_class"]["short"]),
        (&json!(0), &json!(3), &json!(3)),
        "{cut}"
    );
}

#[test]
fn classifies_errors() {
    let server = start_server();
    let status = run_load(&server, "whole --connections 1 --seconds 0.1 --model mock?fault=429");
    assert_eq!((&status["requests"], &status["errors"]), (&json!(0), &status["statuses"]["429"]), "{status}");
    for fault in ["reset", "cut", "long_length", "invalid_framing"] {
        let report = run_load(&server, &format!("whole --connections 1 --seconds 0.1 --model mock?fault={fault}"));
        assert_eq!(
            (&report["requests"], &report["errors"]),
            (&json!(0), &report["errors_by_class"]["short"]),
            "{report}"
        );
        assert!(report["errors"].as_u64().unwrap() > 0);
    }
    let no_match = { crate::http_client::start_server().url() };
    let line = format!("rate --url {no_match}/ --rate 50 --seconds 0.1");
    let refused = run(&LoadOptions::parse(line.split(' ').map(str::to_owned)).unwrap()).unwrap();
    assert_eq!((&refused["errors_by_class"]["connect"], &refused["requests"]), (&json!(5), &json!(0)), "{refused}");
}

#[test]
fn stuck_clients_apply_backpressure_to_the_server() {
    let server = start_server();
    let report = run_load(&server, "stuck --clients 3 --seconds 0.3 --model mock?chunks=1000000");
    assert_eq!((&report["connected"], &report["failed"]), (&json!(3), &json!(0)), "{report}");
    let entry = crate::http_client::wait_for_last_entry(&server);
    assert_eq!(entry.outcome.to_string(), "client_closed");
    assert!(entry.bytes_sent < 10_000_000, "{entry:?}");
}
