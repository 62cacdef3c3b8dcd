//! Socket of one client. Counts the bytes that the kernel accepted, never buffers writes, and notices at once when the
//! client disconnects.

use std::future::pending;
use std::io::ErrorKind;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

use crate::clock;
use crate::ledger::{Ledger, Progress};
use crate::precise_timer::PreciseTimer;

/// Maximum number of bytes of further requests that are read ahead while a response is sent.
const MAX_READ_AHEAD_BYTES: usize = 256 * 1024;
const READ_CHUNK_BYTES: usize = 16 * 1024;

/// Maximum pause that uses an exact timer. Longer pauses use the runtime's timer, which costs no file descriptor.
const MAX_EXACT_PAUSE: Duration = Duration::from_millis(50);

/// The client closed or reset the connection.
#[derive(Debug, PartialEq, Eq)]
pub struct ClientDisconnected;

/// Progress of one response, and the ledger that records it.
pub struct SendTracker<'a> {
    pub ledger: &'a Ledger,
    pub entry_id: u64,
    pub progress: Progress,
}

impl SendTracker<'_> {
    fn add_sent_bytes(&mut self, bytes: usize) {
        if self.progress.bytes_sent == 0 {
            self.progress.first_byte_ns = clock::now_ns();
        }
        self.progress.bytes_sent += bytes as u64;
    }

    pub fn publish_progress(&self) {
        self.ledger.update_progress(self.entry_id, self.progress);
    }
}

pub struct ClientSocket {
    stream: TcpStream,
    pub read_buffer: BytesMut,
    /// Exact timer, created by the first short pause.
    timer: Option<PreciseTimer>,
}

impl ClientSocket {
    pub fn new(stream: TcpStream) -> Self {
        let _ = stream.set_nodelay(true);
        Self { stream, read_buffer: BytesMut::with_capacity(READ_CHUNK_BYTES), timer: None }
    }

    /// Reads the available bytes into the buffer. Before that, reserves space for `max_bytes`, the number of bytes that
    /// are still expected.
    pub async fn read_available(&mut self, max_bytes: usize) -> Result<(), ClientDisconnected> {
        self.read_buffer.reserve(max_bytes.max(READ_CHUNK_BYTES / 4));
        match self.stream.read_buf(&mut self.read_buffer).await {
            Ok(0) | Err(_) => Err(ClientDisconnected),
            Ok(_) => Ok(()),
        }
    }

    /// Writes all bytes. Returns when the socket has accepted them.
    pub async fn write_all(&mut self, bytes: &[u8], tally: &mut SendTracker<'_>) -> Result<(), ClientDisconnected> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.stream.try_write(rest) {
                Ok(accepted) => {
                    tally.add_sent_bytes(accepted);
                    rest = &rest[accepted..];
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    tally.publish_progress();
                    self.wait_until_writable().await?;
                }
                Err(_) => return Err(ClientDisconnected),
            }
        }
        Ok(())
    }

    /// Waits until `due`; fails if the client disconnects first.
    pub async fn wait_until(&mut self, due: Instant, tally: &SendTracker<'_>) -> Result<(), ClientDisconnected> {
        tally.publish_progress();
        let is_short = due < Instant::now() + MAX_EXACT_PAUSE;
        let timer = if is_short { self.timer.take().or_else(|| PreciseTimer::new().ok()) } else { None };
        let outcome = tokio::select! {
            biased;
            () = self.wait_for_disconnect() => Err(ClientDisconnected),
            () = wait_for_alarm(timer.as_ref(), due) => Ok(()),
        };
        self.timer = timer.or(self.timer.take());
        outcome
    }

    pub async fn pause(&mut self, time: Duration, tally: &SendTracker<'_>) -> Result<(), ClientDisconnected> {
        if time.is_zero() { Ok(()) } else { self.wait_until(Instant::now() + time, tally).await }
    }

    /// Returns when the client has closed or reset the connection.
    pub async fn wait_for_disconnect(&mut self) {
        loop {
            if self.read_buffer.len() >= MAX_READ_AHEAD_BYTES {
                return pending().await;
            }
            if self.stream.readable().await.is_err() || self.read_ahead().is_err() {
                return;
            }
        }
    }

    /// Returns the socket and the bytes already read from it, for use by another protocol.
    pub fn into_parts(self) -> (TcpStream, Vec<u8>) {
        (self.stream, self.read_buffer.to_vec())
    }

    pub async fn half_close(&mut self) {
        let _ = self.stream.shutdown().await;
    }

    /// Makes closing the socket send RST instead of FIN.
    pub fn reset_on_drop(&self) {
        let _ = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
    }

    async fn wait_until_writable(&mut self) -> Result<(), ClientDisconnected> {
        let watched = if self.read_buffer.len() < MAX_READ_AHEAD_BYTES {
            Interest::READABLE | Interest::WRITABLE
        } else {
            Interest::WRITABLE
        };
        let ready = self.stream.ready(watched).await.map_err(|_| ClientDisconnected)?;
        if ready.is_readable() { self.read_ahead() } else { Ok(()) }
    }

    fn read_ahead(&mut self) -> Result<(), ClientDisconnected> {
        self.read_buffer.reserve(READ_CHUNK_BYTES / 4);
        match self.stream.try_read_buf(&mut self.read_buffer) {
            Ok(0) => Err(ClientDisconnected),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(_) => Err(ClientDisconnected),
        }
    }
}

async fn wait_for_alarm(timer: Option<&PreciseTimer>, due: Instant) {
    match timer {
        Some(timer) if timer.wait_until(due).await.is_ok() => (),
        _ => sleep_until(due).await,
    }
}
