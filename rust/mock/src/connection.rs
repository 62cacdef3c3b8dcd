//! Client connection. Reads requests, finds the response plan, plays its steps and records them in the ledger.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Buf;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::behaviour::Behaviour;
use crate::client_socket::{ClientDisconnected, ClientSocket, SendTracker};
use crate::clock;
use crate::framing::ChunkedDecoder;
use crate::ledger::{Ledger, Outcome, Progress, RequestStart};
use crate::plans::{PlanCache, RawRequest, ResponsePlan};
use crate::request::{BodyLength, RequestFlags, RequestHead};
use crate::session::{self, UpgradeRequest};
use crate::steps::{ChunkSequence, Step, WriteBlock};

const BODY_READ_BYTES: usize = 256 * 1024;
const CONTINUE_RESPONSE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
const BAD_REQUEST_RESPONSE: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
/// Number of writes without a pause after which the task yields to other connections.
const WRITES_PER_YIELD: u32 = 64;

/// State shared by all connections.
pub struct SharedState {
    pub ledger: Arc<Ledger>,
    pub plans: PlanCache,
}

/// State of the connection after a request.
#[derive(PartialEq, Eq)]
enum ConnectionState {
    Open,
    Closed,
}

struct ServerConnection {
    socket: ClientSocket,
    shared: Rc<SharedState>,
    /// Head of the current request if it has chunked transfer coding.
    chunked_head: Vec<u8>,
    /// Decoded body of the current request if it has chunked transfer coding.
    chunked_body: Vec<u8>,
    write_buffer: Vec<u8>,
}

/// Serves requests until one side ends the connection.
pub async fn serve_connection(stream: TcpStream, shared: Rc<SharedState>) {
    let socket = ClientSocket::new(stream);
    let mut connection = ServerConnection {
        socket,
        shared,
        chunked_head: Vec::new(),
        chunked_body: Vec::new(),
        write_buffer: Vec::new(),
    };
    while let Some(head) = connection.read_request().await {
        if let Some(upgrade) = connection.find_upgrade(&head) {
            return connection.serve_websocket(&head, upgrade).await;
        }
        if connection.serve_request(&head).await == ConnectionState::Closed {
            break;
        }
    }
}

impl ServerConnection {
    /// Reads one request. Returns `None` if the client disconnected or the request is invalid.
    async fn read_request(&mut self) -> Option<RequestHead> {
        let head = self.read_head().await?;
        let started_ns = clock::now_ns();
        if head.flags.has(RequestFlags::EXPECTS_CONTINUE) {
            self.send_unrecorded(CONTINUE_RESPONSE).await.ok()?;
        }
        let read = match head.body_length {
            BodyLength::ContentLength(length) => self.read_known_body(head.len + length).await,
            BodyLength::Chunked => self.read_chunked_body(&head).await,
        };
        if read.is_err() {
            self.record_abandoned(&head, started_ns);
            return None;
        }
        Some(head)
    }

    async fn read_head(&mut self) -> Option<RequestHead> {
        loop {
            if !self.socket.read_buffer.is_empty() {
                match RequestHead::parse(&self.socket.read_buffer) {
                    Ok(Some(head)) => return Some(head),
                    Ok(None) => {}
                    Err(_) => {
                        let _ = self.send_unrecorded(BAD_REQUEST_RESPONSE).await;
                        return None;
                    }
                }
            }
            self.socket.read_available(0).await.ok()?;
        }
    }

    async fn read_known_body(&mut self, length: usize) -> Result<(), ClientDisconnected> {
        while self.socket.read_buffer.len() < length {
            self.socket.read_available((length - self.socket.read_buffer.len()).min(BODY_READ_BYTES)).await?;
        }
        Ok(())
    }

    async fn read_chunked_body(&mut self, head: &RequestHead) -> Result<(), ClientDisconnected> {
        self.chunked_head.clear();
        self.chunked_head.extend_from_slice(&self.socket.read_buffer[..head.len]);
        self.socket.read_buffer.advance(head.len);
        self.chunked_body.clear();
        let mut dechunker = ChunkedDecoder::default();
        loop {
            let used = dechunker
                .feed(&self.socket.read_buffer, |data| self.chunked_body.extend_from_slice(data))
                .map_err(|_| ClientDisconnected)?;
            self.socket.read_buffer.advance(used);
            if dechunker.is_done() {
                return Ok(());
            }
            self.socket.read_available(BODY_READ_BYTES / 4).await?;
        }
    }

    // Sends bytes that belong to no response and therefore to no ledger entry.
    async fn send_unrecorded(&mut self, bytes: &[u8]) -> Result<(), ClientDisconnected> {
        let silent = Ledger::new(false);
        self.socket
            .write_all(bytes, &mut SendTracker { ledger: &silent, entry_id: 0, progress: Progress::default() })
            .await
    }

    fn record_abandoned(&self, head: &RequestHead, started_ns: u64) {
        let request = self.current_request(head);
        let opening =
            RequestStart { head: request.head, model: b"", body_bytes: request.body.len() as u64, started_ns };
        let id = self.shared.ledger.open(&opening);
        self.shared.ledger.close(id, Progress::default(), Outcome::ClientClosed);
    }

    fn current_request(&self, head: &RequestHead) -> RawRequest<'_> {
        let (bytes, body) = match head.body_length {
            BodyLength::Chunked => (&self.chunked_head[..], &self.chunked_body[..]),
            BodyLength::ContentLength(length) => {
                let end = (head.len + length).min(self.socket.read_buffer.len());
                (&self.socket.read_buffer[..head.len], &self.socket.read_buffer[head.len..end])
            }
        };
        let (method, target) = (&bytes[head.method.clone()], &bytes[head.target.clone()]);
        let mut marks = head.flags;
        marks.set(RequestFlags::HEAD_METHOD, method == b"HEAD");
        RawRequest { method, target, head: bytes, body, flags: marks }
    }

    /// Returns the requested WebSocket upgrade, unless a fault or status is requested instead.
    fn find_upgrade(&self, head: &RequestHead) -> Option<UpgradeRequest> {
        if !head.flags.has(RequestFlags::WEBSOCKET_UPGRADE) {
            return None;
        }
        let request = self.current_request(head);
        let mut behaviour = Behaviour::default();
        behaviour.apply_query(&String::from_utf8_lossy(request.target)).ok()?;
        let is_plain = behaviour.fault.is_none() && behaviour.status.is_none();
        UpgradeRequest::parse(request.head, request.target).filter(|_| is_plain)
    }

    async fn serve_websocket(mut self, head: &RequestHead, upgrade: UpgradeRequest) {
        let request = self.current_request(head);
        let started_ns = clock::now_ns();
        let opening = RequestStart { head: request.head, model: upgrade.model().as_bytes(), body_bytes: 0, started_ns };
        let id = self.shared.ledger.open(&opening);
        self.consume_request(head);
        let shared = Rc::clone(&self.shared);
        let mut tally = SendTracker { ledger: &shared.ledger, entry_id: id, progress: Progress::default() };
        let mut is_good = self.socket.write_all(upgrade.handshake_response().as_bytes(), &mut tally).await.is_ok();
        let progress = tally.progress;
        if is_good {
            let (stream, read) = self.socket.into_parts();
            is_good = session::run_session(stream, read, upgrade).await;
        }
        let outcome = if is_good { Outcome::Complete } else { Outcome::ClientClosed };
        shared.ledger.close(id, progress, outcome);
    }

    async fn serve_request(&mut self, head: &RequestHead) -> ConnectionState {
        let started_ns = clock::now_ns();
        let request = self.current_request(head);
        if request.target.starts_with(b"/_ledger") {
            return self.serve_ledger(head).await;
        }
        let model = request.raw_model_name();
        let plan = self.shared.plans.get_or_build(request, model);
        let opening = RequestStart { head: request.head, model, body_bytes: request.body.len() as u64, started_ns };
        let id = self.shared.ledger.open(&opening);
        self.consume_request(head);
        let shared = Rc::clone(&self.shared);
        let mut tally = SendTracker { ledger: &shared.ledger, entry_id: id, progress: Progress::default() };
        let end = self.play_steps(&plan, &mut tally).await;
        let outcome = match (&end, plan.fault) {
            (Err(ClientDisconnected), _) => Outcome::ClientClosed,
            (Ok(_), Some(fault)) => Outcome::Fault(fault.name()),
            (Ok(_), None) => Outcome::Complete,
        };
        shared.ledger.close(id, tally.progress, outcome);
        end.unwrap_or(ConnectionState::Closed)
    }

    fn consume_request(&mut self, head: &RequestHead) {
        if let BodyLength::ContentLength(length) = head.body_length {
            self.socket.read_buffer.advance(head.len + length);
        }
    }

    async fn serve_ledger(&mut self, head: &RequestHead) -> ConnectionState {
        let request = self.current_request(head);
        let (ledger, close) = (&self.shared.ledger, request.flags.has(RequestFlags::CLOSE));
        let response = match request.method {
            b"GET" => ledger_response("200 OK", &serde_json::to_string(&ledger.entries()).unwrap_or_default()),
            b"DELETE" => {
                ledger.clear();
                ledger_response("200 OK", "[]")
            }
            _ => ledger_response("405 Method Not Allowed", "[]"),
        };
        self.consume_request(head);
        let sent = self.send_unrecorded(response.as_bytes()).await;
        if close || sent.is_err() { ConnectionState::Closed } else { ConnectionState::Open }
    }

    async fn play_steps(
        &mut self,
        plan: &ResponsePlan,
        tally: &mut SendTracker<'_>,
    ) -> Result<ConnectionState, ClientDisconnected> {
        for step in &plan.steps {
            match step {
                Step::Send(block) => self.send_block(block, tally).await?,
                Step::Chunks(sequence) => self.play_chunks(sequence, tally).await?,
                Step::Pause(time) => self.socket.pause(*time, tally).await?,
                Step::SlowBytes { bytes, gap } => {
                    for byte in bytes {
                        self.socket.write_all(std::slice::from_ref(byte), tally).await?;
                        self.socket.pause(*gap, tally).await?;
                    }
                }
                Step::HalfClose => self.socket.half_close().await,
                Step::Close => return Ok(ConnectionState::Closed),
                Step::Reset => {
                    self.socket.reset_on_drop();
                    return Ok(ConnectionState::Closed);
                }
                Step::Hold => {
                    tally.publish_progress();
                    self.socket.wait_for_disconnect().await;
                    return Err(ClientDisconnected);
                }
            }
        }
        Ok(ConnectionState::Open)
    }

    async fn send_block(&mut self, block: &WriteBlock, tally: &mut SendTracker<'_>) -> Result<(), ClientDisconnected> {
        let fixed = if block.is_fixed() {
            &block.bytes[..]
        } else {
            let filled = block.fill_into(&mut self.write_buffer, tally.entry_id, clock::now_ns());
            self.socket.write_all(&self.write_buffer, tally).await?;
            &block.bytes[filled..]
        };
        self.socket.write_all(fixed, tally).await
    }

    async fn play_chunks(
        &mut self,
        sequence: &ChunkSequence,
        tally: &mut SendTracker<'_>,
    ) -> Result<(), ClientDisconnected> {
        let mut due = Instant::now();
        for (block, at) in sequence.blocks.iter().cycle().zip(0..sequence.count) {
            if at > 0 && !sequence.gap.is_zero() {
                // After a delay by a slow client, the next chunks do not catch up in a burst.
                due = (due + sequence.gap).max(Instant::now());
                self.socket.wait_until(due, tally).await?;
            } else if at % WRITES_PER_YIELD == WRITES_PER_YIELD - 1 {
                tokio::task::yield_now().await;
            }
            self.send_block(block, tally).await?;
        }
        Ok(())
    }
}

fn ledger_response(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}
