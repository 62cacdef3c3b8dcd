//! A private Redis server that a test can freeze and kill, and a relay that delays its traffic.

use std::{
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use penstock_core::process::secret::Secret;
use redis::aio::MultiplexedConnection;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::sleep,
};

use super::{CHAT_PATH, TestGateway, TestRequest, chat_body, post_with_config, tls, wait_until, with_timeout};

pub struct RedisServer {
    child: Child,
    port: u16,
    dir: PathBuf,
}

/// Returns a port below the system's ephemeral range.
fn tls_port(port: u16) -> u16 {
    20_000 + port % 12_000
}

impl RedisServer {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts a server with further options.
    pub async fn start_with(options: &[&str]) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = std::env::temp_dir().join(format!("penstock-redis-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let server = Self { child: Self::spawn_process(port, &folder, options), port, dir: folder };
        server.wait_until_ready().await;
        server
    }

    fn spawn_process(port: u16, folder: &PathBuf, options: &[&str]) -> Child {
        let mut command = Command::new("redis-server");
        command.args([
            "--port",
            &port.to_string(),
            "--tls-port",
            &tls_port(port).to_string(),
            "--tls-auth-clients",
            "no",
        ]);
        for (option, name) in [("--tls-cert-file", "certificate.pem"), ("--tls-key-file", "key.pem")] {
            command.arg(option).arg(tls::tls_file(name));
        }
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"]);
        command.arg(folder).args(options).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("redis-server; hint: make test")
    }

    async fn wait_until_ready(&self) {
        wait_until("Redis listens", || std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok()).await;
    }

    /// URL of the same server over TLS, under a certificate authority that only these tests trust.
    pub fn tls_url(&self) -> String {
        format!("rediss://localhost:{}/", tls_port(self.port))
    }

    pub fn addr(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Opens a separate connection for the test.
    pub async fn connect(&self) -> MultiplexedConnection {
        let client = redis::Client::open(self.url()).unwrap();
        with_timeout(client.get_multiplexed_async_connection()).await.unwrap()
    }

    /// Suspends the server process.
    pub fn suspend(&self) {
        self.send_signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.send_signal(Signal::CONT);
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts a new, empty server on the same port.
    pub async fn restart(&mut self) {
        self.child = Self::spawn_process(self.port, &self.dir, &[]);
        self.wait_until_ready().await;
    }

    fn send_signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        drop(std::fs::remove_dir_all(&self.dir));
    }
}

/// Forwards all data in both directions, each chunk after a delay.
pub struct DelayingRelay {
    pub addr: SocketAddr,
    delay_ms: Arc<AtomicU64>,
}

impl DelayingRelay {
    pub async fn start(server: &RedisServer) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (addr, port) = (listener.local_addr().unwrap(), server.port);
        let delay_ms = Arc::<AtomicU64>::default();
        let delay = Arc::clone(&delay_ms);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
                let ((from, to), (back, first_response)) = (client.into_split(), server.into_split());
                tokio::spawn(copy_with_delay(from, first_response, Arc::clone(&delay)));
                tokio::spawn(copy_with_delay(back, to, Arc::clone(&delay)));
            }
        });
        Self { addr, delay_ms }
    }

    pub fn set_delay(&self, delay: Duration) {
        self.delay_ms.store(delay.as_millis() as u64, Ordering::Relaxed);
    }
}

async fn copy_with_delay(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    delay: Arc<AtomicU64>,
) {
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        sleep(Duration::from_millis(delay.load(Ordering::Relaxed))).await;
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

/// Maximum time that a request waits for Redis.
pub const MAX_REDIS_WAIT: Duration = Duration::from_millis(50);

/// Starts one of several gateways that share a Redis server.
pub async fn start_node(provider_url: &str, redis_url: &str) -> TestGateway {
    start_node_that_waits(provider_url, redis_url, MAX_REDIS_WAIT).await
}

/// Starts a node that treats Redis as unavailable if it does not reply within `max_wait`.
pub async fn start_node_that_waits(provider_url: &str, redis_url: &str, max_wait: Duration) -> TestGateway {
    let gateway = TestGateway::with_settings(provider_url, |settings| {
        settings.redis_url = Some(Secret::new(redis_url));
        settings.redis_wait_ms = max_wait.as_millis() as u64;
    });
    let state = Arc::clone(&gateway.state);
    tokio::spawn(async move { state.shared.sync_with_redis().await });
    wait_until("Redis is there", || is_redis_available(&gateway)).await;
    gateway
}

pub fn is_redis_available(gateway: &TestGateway) -> bool {
    gateway.state.shared.redis.as_ref().unwrap().is_available()
}

pub fn timed_out_lookups(gateway: &TestGateway) -> u64 {
    gateway.state.shared.redis.as_ref().unwrap().metrics.timed_out_lookups.get()
}

pub fn cacheable_request(text: &str) -> TestRequest {
    let config = json!({"provider": "mock", "cache": {"mode": "simple", "max_age": 60}});
    post_with_config(&config, CHAT_PATH, chat_body("mock?chunks=1", false).replace("hi", text))
}

/// Sends ten new requests at once per round; returns the longest duration of a request.
pub async fn send_cacheable_requests(gateway: &TestGateway, name: &str, rounds: usize) -> Duration {
    let mut longest = Duration::ZERO;
    for round in 0..rounds {
        let mut waiting = tokio::task::JoinSet::new();
        for number in 0..10 {
            let state = Arc::clone(&gateway.state);
            let request = cacheable_request(&format!("{name} {round} {number}"));
            waiting.spawn(async move {
                let began = Instant::now();
                let response = with_timeout(penstock_core::gateway::handle(&state, request.build())).await;
                (response.head.status, began.elapsed())
            });
        }
        while let Some(done) = waiting.join_next().await {
            let (status, elapsed) = done.unwrap();
            assert_eq!(status, 200, "{name}");
            longest = longest.max(elapsed);
        }
    }
    longest
}
