//! A provider that returns 503 for the model `mock?ill` while a flag is set, and a load generator for it.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio::{
    io::AsyncWriteExt,
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use super::{
    TestGateway, TestResponse, chat_with_config,
    scripted_server::{self, ScriptedServer},
    with_timeout,
};

pub struct FailingProvider {
    pub server: ScriptedServer,
    pub is_failing: Arc<AtomicBool>,
    /// Arrival times of the requests for that model.
    request_times: Arc<Mutex<Vec<Instant>>>,
}

impl FailingProvider {
    pub async fn start() -> Self {
        let is_failing = Arc::new(AtomicBool::new(true));
        let requests = Arc::<Mutex<Vec<Instant>>>::default();
        let (failing_provider, received) = (Arc::clone(&is_failing), Arc::clone(&requests));
        let provider = ScriptedServer::start(move |mut stream, _| {
            let (failing_provider, requests) = (Arc::clone(&failing_provider), Arc::clone(&received));
            async move {
                while let Some(request) = scripted_server::read_request(&mut stream).await {
                    let is_meant = String::from_utf8_lossy(&request).contains("mock?ill");
                    if is_meant {
                        requests.lock().unwrap().push(Instant::now());
                    }
                    let fails = is_meant && failing_provider.load(Ordering::Relaxed);
                    let response = scripted_server::json_response(
                        if fails { "503 Service Unavailable" } else { "200 OK" },
                        "",
                        "{}",
                    );
                    if stream.write_all(&response).await.is_err() {
                        return;
                    }
                }
            }
        })
        .await;
        Self { server: provider, is_failing, request_times: requests }
    }

    pub fn request_times(&self) -> Vec<Instant> {
        self.request_times.lock().unwrap().clone()
    }
}

/// Sends `rate` requests a second without waiting for responses. Returns each response with its start time and
/// duration.
pub async fn send_at_rate(
    gateway: &TestGateway,
    config: &Value,
    rate: u32,
    count: usize,
) -> Vec<(Instant, Duration, TestResponse)> {
    let mut ticks = interval(Duration::from_secs(1) / rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut request_tasks = JoinSet::new();
    for _ in 0..count {
        ticks.tick().await;
        let (state, request) = (Arc::clone(&gateway.state), chat_with_config(config));
        request_tasks.spawn(async move {
            let began = Instant::now();
            let response =
                TestResponse::read(with_timeout(penstock_core::gateway::handle(&state, request.build())).await).await;
            (began, began.elapsed(), response)
        });
    }
    request_tasks.join_all().await
}

/// Returns the median duration.
pub fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
