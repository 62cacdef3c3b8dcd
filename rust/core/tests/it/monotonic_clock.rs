//! Clock jumps, as after a suspend. They expire cached responses and breaker cooldowns and have no other effect.

use std::time::Duration;

use crate::harness::{TestGateway, chat_with_config, mock_target, routing_headers};
use penstock_mock::Server;
use serde_json::json;

#[tokio::test]
async fn clock_jumps_expire_cache_and_cooldowns_without_errors() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.retry_backoff_ms = 0);
    let remaining = json!({"provider": "mock", "cache": {"mode": "simple", "max_age": 3600}});
    let guarded = json!({"strategy": {"mode": "fallback",
        "cb_config": {"failure_threshold": 1, "cooldown_interval": 60_000}},
        "retry": {"attempts": 1, "on_status_codes": [503]},
        "targets": [mock_target("status=503"), mock_target("chunks=1")]});
    let (hour, day) = (Duration::from_hours(1), Duration::from_hours(24));
    for (leap, expected) in [(Duration::ZERO, "MISS"), (hour / 2, "HIT"), (hour, "MISS"), (day, "MISS"), (day, "MISS")]
    {
        gateway.state.shared.clock.advance(leap);
        assert_eq!(routing_headers(&gateway.send(chat_with_config(&remaining)).await)[2], expected, "{leap:?}");
        for _ in 0..4 {
            let response = gateway.send(chat_with_config(&guarded)).await;
            assert_eq!((response.status, routing_headers(&response)[0]), (200, "config.targets[1]"), "{leap:?}");
        }
        assert_eq!(gateway.state.shared.breakers.open_count(), 1);
    }
    // The target fails once and again on its first retry. After each jump the half-open breaker allows one attempt.
    let metrics = &gateway.state.record_sink.metrics;
    assert_eq!((metrics.retries.get(), metrics.retries_denied.get()), (1, 0));
    assert_eq!(metrics.breakers_opened.get(), 5);
}
