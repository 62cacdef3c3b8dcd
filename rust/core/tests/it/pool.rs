//! Connection pool under the faults of the mock provider. The tests of the crate `penstock-net` cover the rest.

use crate::harness::{CHAT_PATH, TestGateway, TestRequest, chat_request, into_stream, stream_request, with_timeout};
use penstock_mock::Server;

#[tokio::test]
async fn connection_is_not_reused_after_a_broken_response() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.idle_timeout_ms = 100);
    for fault in ["cut", "cut_reset", "invalid_framing", "stall", "half_close", "short_length", "long_length", "reset"]
    {
        for request in [chat_request as fn(&str) -> TestRequest, |model| stream_request(CHAT_PATH, model)] {
            gateway.send(request(&format!("mock?fault={fault}"))).await;
            assert_eq!(gateway.state.upstream.idle_connection_count(), 0, "{fault}");
            assert_eq!(gateway.send(chat_request("mock")).await.status, 200, "{fault}");
            // Closes the healthy connection, so that the next fault uses a new one.
            gateway.send(chat_request("mock?fault=reset")).await;
        }
    }
}

#[tokio::test]
async fn dropped_stream_closes_its_connection() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let mut response =
        into_stream(gateway.handle_request(stream_request(CHAT_PATH, "mock?chunks=50&chunk_ms=20")).await);
    with_timeout(response.next()).await.unwrap();
    drop(response);
    assert_eq!(gateway.state.upstream.idle_connection_count(), 0);
    assert_eq!(gateway.send(chat_request("mock")).await.json()["object"], "chat.completion");
}
