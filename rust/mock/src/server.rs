//! Listener of the mock provider. Tests run it on its own thread; the binary runs it as the whole process.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::oneshot;
use tokio::task::spawn_local;

use crate::connection::{self, SharedState};
use crate::ledger::{Entry, Ledger, Outcome};
use crate::plans::PlanCache;

const BACKLOG: i32 = 4096;

/// Options of a mock provider: its address, its request ledger and its send buffers.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    pub address: SocketAddr,
    pub ledger_enabled: bool,
    /// Size of the sockets' send buffers in bytes. The kernel's default grows to megabytes.
    pub send_buffer_bytes: Option<usize>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self { address: SocketAddr::from(([127, 0, 0, 1], 0)), ledger_enabled: true, send_buffer_bytes: None }
    }
}

/// Mock provider on its own thread; it stops when this value is dropped.
pub struct Server {
    pub addr: SocketAddr,
    ledger: Arc<Ledger>,
    stop_sender: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a mock provider on any free port of 127.0.0.1.
    ///
    /// # Panics
    /// If no port is free.
    #[expect(clippy::expect_used, reason = "used in tests, which cannot run without a port")]
    #[expect(clippy::unused_async, reason = "async so that a later version can await without a change to its callers")]
    pub async fn start() -> Self {
        Self::start_with_options(&ServerOptions::default()).expect("a free port on 127.0.0.1")
    }

    pub fn start_with_options(options: &ServerOptions) -> io::Result<Self> {
        let listener = bind_listener(options)?;
        let addr = listener.local_addr()?;
        let ledger = Arc::new(Ledger::new(options.ledger_enabled));
        let (stop, stopped) = oneshot::channel();
        let server_ledger = Arc::clone(&ledger);
        let thread = std::thread::Builder::new().name("penstock-mock".to_owned()).spawn(move || {
            let _ = run_server(listener, server_ledger, stopped);
        })?;
        Ok(Self { addr, ledger, stop_sender: Some(stop), thread: Some(thread) })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Returns the recorded requests, oldest first.
    pub fn ledger_entries(&self) -> Vec<Entry> {
        self.ledger.entries()
    }

    pub fn clear_ledger(&self) {
        self.ledger.clear();
    }

    /// Waits until at least `count` requests were received and none is in progress, at most for `limit`. Then returns
    /// the recorded requests.
    pub async fn wait_until_settled(&self, count: usize, limit: Duration) -> Vec<Entry> {
        let deadline = tokio::time::Instant::now() + limit;
        loop {
            let entries = self.ledger_entries();
            let open = entries.iter().any(|entry| entry.outcome == Outcome::Open);
            if (entries.len() >= count && !open) || tokio::time::Instant::now() >= deadline {
                return entries;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop_sender.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Serves on this thread until the process ends; calls `ready` with the bound address.
pub fn serve(options: &ServerOptions, ready: impl FnOnce(SocketAddr) -> io::Result<()>) -> io::Result<()> {
    let listener = bind_listener(options)?;
    ready(listener.local_addr()?)?;
    let (_running, stopped) = oneshot::channel();
    run_server(listener, Arc::new(Ledger::new(options.ledger_enabled)), stopped)
}

fn bind_listener(options: &ServerOptions) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(options.address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    if let Some(size) = options.send_buffer_bytes {
        socket.set_send_buffer_size(size)?;
    }
    socket.bind(&options.address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn run_server(listener: TcpListener, ledger: Arc<Ledger>, stopped: oneshot::Receiver<()>) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let shared = Rc::new(SharedState { ledger, plans: PlanCache::default() });
        tokio::select! {
            () = accept_connections(listener, shared) => {}
            _ = stopped => {}
        }
        Ok(())
    })
}

async fn accept_connections(listener: tokio::net::TcpListener, shared: Rc<SharedState>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(spawn_local(connection::serve_connection(stream, Rc::clone(&shared)))),
            // Most likely the process is out of file descriptors; they become free as connections end.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}
