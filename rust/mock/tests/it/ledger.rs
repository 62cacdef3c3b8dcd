//! Ledger of the mock provider. It reports what was received, what was sent, and when the client disconnected, in every
//! phase of a request.

use std::time::{Duration, Instant};

use crate::http_client::{CHAT_PATH, Client, MESSAGES_PATH, get, request_chat, start_server, wait_for_last_entry};
use penstock_mock::{Server, ServerOptions};
use serde_json::json;

#[test]
fn serves_one_json_entry_per_request() {
    let server = start_server();
    let response = request_chat(&server, MESSAGES_PATH, "mock?chunks=2", true);
    get(&server, "/v1/models?x=1", "x-tag: 5\r\n");
    let entries = get(&server, "/_ledger", "").json();
    let [first, second] = entries.as_array().unwrap().as_slice() else { panic!("{entries}") };
    assert_eq!(
        (&first["method"], &first["path"], &first["model"]),
        (&json!("POST"), &json!(MESSAGES_PATH), &json!("mock?chunks=2"))
    );
    assert_eq!((&first["outcome"], &first["bytes_sent"]), (&json!("complete"), &json!(response.raw.len())));
    assert_eq!(response.header("request-id").unwrap(), format!("req_{:016}", first["id"].as_u64().unwrap()));
    assert_eq!((&second["path"], &second["headers"]["x-tag"]), (&json!("/v1/models?x=1"), &json!("5")));
    assert!(first["started_ms"].as_f64() <= first["first_byte_ms"].as_f64());
    assert!(first["first_byte_ms"].as_f64() <= first["finished_ms"].as_f64());
}

#[test]
fn ledger_can_be_cleared_and_disabled() {
    let server = start_server();
    request_chat(&server, CHAT_PATH, "mock", false);
    let mut client = Client::connect(&server);
    client.send_request("DELETE", "/_ledger", "", "");
    assert_eq!(client.read_response(Duration::from_millis(400)).status(), 200);
    assert!(server.ledger_entries().is_empty());
    let quiet =
        Server::start_with_options(&ServerOptions { ledger_enabled: false, ..ServerOptions::default() }).unwrap();
    assert_eq!(request_chat(&quiet, CHAT_PATH, "mock", false).status(), 200);
    assert_eq!(get(&quiet, "/_ledger", "").json(), json!([]));
}

fn wait_for_entry(server: &Server) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while server.ledger_entries().is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the request is in progress, disconnects, and returns the outcome.
fn find_disconnect_outcome(server: &Server, model: &str, stream: bool, rst: bool) -> String {
    server.clear_ledger();
    let mut client = Client::connect(server);
    client.send_chat(CHAT_PATH, model, stream);
    wait_for_entry(server);
    std::thread::sleep(Duration::from_millis(20));
    if rst {
        socket2::SockRef::from(&client.stream).set_linger(Some(Duration::ZERO)).unwrap();
    }
    drop(client);
    wait_for_last_entry(server).outcome.to_string()
}

#[test]
fn notices_client_disconnect_in_every_phase() {
    let server = start_server();
    // The pauses are longer than the wait for the ledger, so the server must notice while it pauses.
    let phases = [
        ("mock?first_ms=60000", false),
        ("mock?first_ms=60000", true),
        ("mock?chunk_ms=60000", true),
        ("mock?fault=silence", true),
        ("mock?fault=stall", true),
        ("mock?fault=stall", false),
        ("mock?fault=slow_first", true),
        ("mock?fault=drip", false),
        ("mock?fault=half_close", true),
        ("mock?fault=pings_only&chunk_ms=60000", true),
        ("mock?chunks=4000000000", true),
        ("mock?response_bytes=15000000", false),
    ];
    for (model, stream) in phases {
        for rst in [false, true] {
            let outcome = find_disconnect_outcome(&server, model, stream, rst);
            assert_eq!(outcome, "client_closed", "{model} {rst}");
        }
    }
}

#[test]
fn records_client_that_disconnects_while_sending() {
    let server = start_server();
    let mut client = Client::connect(&server);
    client.write(b"POST /v1/messages HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nonly this");
    std::thread::sleep(Duration::from_millis(20));
    client.close();
    let entry = wait_for_last_entry(&server);
    assert_eq!(
        (entry.outcome.to_string().as_str(), entry.body_bytes, entry.path.as_str()),
        ("client_closed", 9, MESSAGES_PATH)
    );
}

#[test]
fn client_that_does_not_read_blocks_the_write() {
    let server = start_server();
    for model in ["mock?chunks=100000&chunk_bytes=1000", "mock?response_bytes=25000000", "mock?fault=headers_flood"] {
        server.clear_ledger();
        let mut client = Client::connect(&server);
        client.send_chat(CHAT_PATH, model, model.contains("chunks"));
        wait_for_entry(&server);
        let sent = |after: u64| {
            std::thread::sleep(Duration::from_millis(after));
            server.ledger_entries()[0].bytes_sent
        };
        let (early, late) = (sent(400), sent(200));
        assert_eq!(early, late, "{model}");
        assert!(early > 10_000 && early < 15_000_000, "{model}: {early}");
        // Once the client reads, the server can send about as much again.
        let read = client.read_until(Duration::from_millis(200), |response| response.raw.len() > 8_000_000);
        assert!(sent(300) > early && sent(0) < early + read.raw.len() as u64 + 15_000_000, "{model}");
        assert_eq!(server.ledger_entries()[0].outcome.to_string(), "open");
    }
}

#[test]
fn small_send_buffer_bounds_unread_bytes() {
    let options = ServerOptions { send_buffer_bytes: Some(32 * 1024), ..ServerOptions::default() };
    let server = Server::start_with_options(&options).unwrap();
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(32 * 1024).unwrap();
    socket.connect(&server.addr.into()).unwrap();
    let mut client = Client::from_stream(socket.into());
    client.send_chat(CHAT_PATH, "mock?chunks=100000", true);
    wait_for_entry(&server);
    std::thread::sleep(Duration::from_millis(200));
    let sent = server.ledger_entries()[0].bytes_sent;
    assert!(sent > 20_000 && sent < 400_000, "{sent}");
}
