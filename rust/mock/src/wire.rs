//! The socket of one client: counts what it accepted, never buffers, and notices at once when the client goes away.

use std::future::pending;
use std::io::ErrorKind;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

use crate::alarm::Alarm;
use crate::clock;
use crate::ledger::{Ledger, Progress};

/// Bytes of further requests that are read ahead while an answer is under way.
const READ_AHEAD: usize = 256 * 1024;
const READ_STEP: usize = 16 * 1024;

/// Longer pauses need not be exact: what waits long costs no file.
const EXACT: Duration = Duration::from_millis(50);

/// The client closed or reset the connection.
#[derive(Debug, PartialEq, Eq)]
pub struct Gone;

/// What one answer has sent so far, and where to write that down.
pub struct Tally<'a> {
    pub ledger: &'a Ledger,
    pub id: u64,
    pub progress: Progress,
}

impl Tally<'_> {
    fn add(&mut self, bytes: usize) {
        if self.progress.bytes_sent == 0 {
            self.progress.first_byte_ns = clock::now_ns();
        }
        self.progress.bytes_sent += bytes as u64;
    }

    pub fn publish(&self) {
        self.ledger.note(self.id, self.progress);
    }
}

pub struct Wire {
    stream: TcpStream,
    pub inbox: BytesMut,
    /// There once a short pause was made.
    alarm: Option<Alarm>,
}

impl Wire {
    pub fn new(stream: TcpStream) -> Self {
        let _ = stream.set_nodelay(true);
        Self { stream, inbox: BytesMut::with_capacity(READ_STEP), alarm: None }
    }

    /// Reads what has come; `wanted` is how much more is expected.
    pub async fn fill(&mut self, wanted: usize) -> Result<(), Gone> {
        self.inbox.reserve(wanted.max(READ_STEP / 4));
        match self.stream.read_buf(&mut self.inbox).await {
            Ok(0) | Err(_) => Err(Gone),
            Ok(_) => Ok(()),
        }
    }

    /// Returns when the socket has accepted every byte.
    pub async fn send(&mut self, bytes: &[u8], tally: &mut Tally<'_>) -> Result<(), Gone> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.stream.try_write(rest) {
                Ok(accepted) => {
                    tally.add(accepted);
                    rest = &rest[accepted..];
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    tally.publish();
                    self.room().await?;
                }
                Err(_) => return Err(Gone),
            }
        }
        Ok(())
    }

    /// Waits until `due`, or until the client goes away.
    pub async fn wait(&mut self, due: Instant, tally: &Tally<'_>) -> Result<(), Gone> {
        tally.publish();
        let is_short = due < Instant::now() + EXACT;
        let alarm = if is_short { self.alarm.take().or_else(|| Alarm::new().ok()) } else { None };
        let outcome = tokio::select! {
            biased;
            () = self.gone() => Err(Gone),
            () = rung(alarm.as_ref(), due) => Ok(()),
        };
        self.alarm = alarm.or(self.alarm.take());
        outcome
    }

    pub async fn pause(&mut self, time: Duration, tally: &Tally<'_>) -> Result<(), Gone> {
        if time.is_zero() { Ok(()) } else { self.wait(Instant::now() + time, tally).await }
    }

    /// Returns when the client has closed or reset the connection.
    pub async fn gone(&mut self) {
        loop {
            if self.inbox.len() >= READ_AHEAD {
                return pending().await;
            }
            if self.stream.readable().await.is_err() || self.read_ahead().is_err() {
                return;
            }
        }
    }

    /// What is left for another protocol: the socket, and what was read of it already.
    pub fn into_parts(self) -> (TcpStream, Vec<u8>) {
        (self.stream, self.inbox.to_vec())
    }

    pub async fn half_close(&mut self) {
        let _ = self.stream.shutdown().await;
    }

    /// Closes with RST in the place of FIN.
    pub fn reset_on_drop(&self) {
        let _ = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
    }

    async fn room(&mut self) -> Result<(), Gone> {
        let watched =
            if self.inbox.len() < READ_AHEAD { Interest::READABLE | Interest::WRITABLE } else { Interest::WRITABLE };
        let ready = self.stream.ready(watched).await.map_err(|_| Gone)?;
        if ready.is_readable() { self.read_ahead() } else { Ok(()) }
    }

    fn read_ahead(&mut self) -> Result<(), Gone> {
        self.inbox.reserve(READ_STEP / 4);
        match self.stream.try_read_buf(&mut self.inbox) {
            Ok(0) => Err(Gone),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(_) => Err(Gone),
        }
    }
}

async fn rung(alarm: Option<&Alarm>, due: Instant) {
    match alarm {
        Some(alarm) if alarm.ring(due).await.is_ok() => (),
        _ => sleep_until(due).await,
    }
}
