//! One client connection: reads requests, looks up how to answer, plays the steps, keeps the ledger.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Buf;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::behaviour::Behaviour;
use crate::clock;
use crate::framing::Dechunker;
use crate::ledger::{Ledger, Opening, Outcome, Progress};
use crate::plans::{Plan, Plans, Question};
use crate::request::{BodyLength, Head, Marks};
use crate::session::{self, Upgrade};
use crate::steps::{Block, Pieces, Step};
use crate::wire::{Gone, Tally, Wire};

const BODY_STEP: usize = 256 * 1024;
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
const BAD_REQUEST: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
/// After so many writes without a pause, other connections have their turn.
const TURN: u32 = 64;

/// What all connections share.
pub struct Shared {
    pub ledger: Arc<Ledger>,
    pub plans: Plans,
}

/// Whether the connection lives on.
#[derive(PartialEq, Eq)]
enum Flow {
    Open,
    Ended,
}

struct Connection {
    wire: Wire,
    shared: Rc<Shared>,
    /// Head and body of a request whose body comes in chunks.
    head: Vec<u8>,
    body: Vec<u8>,
    out: Vec<u8>,
}

/// Answers requests until one side ends the connection.
pub async fn serve(stream: TcpStream, shared: Rc<Shared>) {
    let wire = Wire::new(stream);
    let mut connection = Connection { wire, shared, head: Vec::new(), body: Vec::new(), out: Vec::new() };
    while let Some(head) = connection.receive().await {
        if let Some(upgrade) = connection.upgrade(&head) {
            return connection.converse(&head, upgrade).await;
        }
        if connection.exchange(&head).await == Flow::Ended {
            break;
        }
    }
}

impl Connection {
    /// Reads one request; `None` when there is none to answer.
    async fn receive(&mut self) -> Option<Head> {
        let head = self.receive_head().await?;
        let started_ns = clock::now_ns();
        if head.marks.has(Marks::EXPECTS_CONTINUE) {
            self.interject(CONTINUE).await.ok()?;
        }
        let read = match head.body {
            BodyLength::Known(length) => self.receive_known(head.len + length).await,
            BodyLength::Chunked => self.receive_chunked(&head).await,
        };
        if read.is_err() {
            self.note_abandoned(&head, started_ns);
            return None;
        }
        Some(head)
    }

    async fn receive_head(&mut self) -> Option<Head> {
        loop {
            if !self.wire.inbox.is_empty() {
                match Head::parse(&self.wire.inbox) {
                    Ok(Some(head)) => return Some(head),
                    Ok(None) => {}
                    Err(_) => {
                        let _ = self.interject(BAD_REQUEST).await;
                        return None;
                    }
                }
            }
            self.wire.fill(0).await.ok()?;
        }
    }

    async fn receive_known(&mut self, length: usize) -> Result<(), Gone> {
        while self.wire.inbox.len() < length {
            self.wire.fill((length - self.wire.inbox.len()).min(BODY_STEP)).await?;
        }
        Ok(())
    }

    async fn receive_chunked(&mut self, head: &Head) -> Result<(), Gone> {
        self.head.clear();
        self.head.extend_from_slice(&self.wire.inbox[..head.len]);
        self.wire.inbox.advance(head.len);
        self.body.clear();
        let mut dechunker = Dechunker::default();
        loop {
            let used = dechunker.feed(&self.wire.inbox, |data| self.body.extend_from_slice(data)).map_err(|_| Gone)?;
            self.wire.inbox.advance(used);
            if dechunker.is_done() {
                return Ok(());
            }
            self.wire.fill(BODY_STEP / 4).await?;
        }
    }

    // Sent outside of any answer, so it is in no entry of the ledger.
    async fn interject(&mut self, bytes: &[u8]) -> Result<(), Gone> {
        let silent = Ledger::new(false);
        self.wire.send(bytes, &mut Tally { ledger: &silent, id: 0, progress: Progress::default() }).await
    }

    fn note_abandoned(&self, head: &Head, started_ns: u64) {
        let question = self.question(head);
        let opening = Opening { head: question.head, model: b"", body_bytes: question.body.len() as u64, started_ns };
        let id = self.shared.ledger.open(&opening);
        self.shared.ledger.close(id, Progress::default(), Outcome::ClientClosed);
    }

    fn question(&self, head: &Head) -> Question<'_> {
        let (bytes, body) = match head.body {
            BodyLength::Chunked => (&self.head[..], &self.body[..]),
            BodyLength::Known(length) => {
                let end = (head.len + length).min(self.wire.inbox.len());
                (&self.wire.inbox[..head.len], &self.wire.inbox[head.len..end])
            }
        };
        let (method, target) = (&bytes[head.method.clone()], &bytes[head.target.clone()]);
        let mut marks = head.marks;
        marks.set(Marks::HEAD, method == b"HEAD");
        Question { method, target, head: bytes, body, marks }
    }

    /// The WebSocket that is asked for, unless a fault comes before it.
    fn upgrade(&self, head: &Head) -> Option<Upgrade> {
        if !head.marks.has(Marks::UPGRADES) {
            return None;
        }
        let question = self.question(head);
        let mut behaviour = Behaviour::default();
        behaviour.read_target(&String::from_utf8_lossy(question.target)).ok()?;
        let is_plain = behaviour.fault.is_none() && behaviour.status.is_none();
        Upgrade::of(question.head, question.target).filter(|_| is_plain)
    }

    async fn converse(mut self, head: &Head, upgrade: Upgrade) {
        let question = self.question(head);
        let started_ns = clock::now_ns();
        let opening = Opening { head: question.head, model: upgrade.model().as_bytes(), body_bytes: 0, started_ns };
        let id = self.shared.ledger.open(&opening);
        self.consume(head);
        let shared = Rc::clone(&self.shared);
        let mut tally = Tally { ledger: &shared.ledger, id, progress: Progress::default() };
        let mut is_good = self.wire.send(upgrade.accepted().as_bytes(), &mut tally).await.is_ok();
        let progress = tally.progress;
        if is_good {
            let (stream, read) = self.wire.into_parts();
            is_good = session::converse(stream, read, upgrade).await;
        }
        let outcome = if is_good { Outcome::Complete } else { Outcome::ClientClosed };
        shared.ledger.close(id, progress, outcome);
    }

    async fn exchange(&mut self, head: &Head) -> Flow {
        let started_ns = clock::now_ns();
        let question = self.question(head);
        if question.target.starts_with(b"/_ledger") {
            return self.show_ledger(head).await;
        }
        let model = question.model();
        let plan = self.shared.plans.find(question, model);
        let opening = Opening { head: question.head, model, body_bytes: question.body.len() as u64, started_ns };
        let id = self.shared.ledger.open(&opening);
        self.consume(head);
        let shared = Rc::clone(&self.shared);
        let mut tally = Tally { ledger: &shared.ledger, id, progress: Progress::default() };
        let end = self.play(&plan, &mut tally).await;
        let outcome = match (&end, plan.fault) {
            (Err(Gone), _) => Outcome::ClientClosed,
            (Ok(_), Some(fault)) => Outcome::Fault(fault.name()),
            (Ok(_), None) => Outcome::Complete,
        };
        shared.ledger.close(id, tally.progress, outcome);
        end.unwrap_or(Flow::Ended)
    }

    fn consume(&mut self, head: &Head) {
        if let BodyLength::Known(length) = head.body {
            self.wire.inbox.advance(head.len + length);
        }
    }

    async fn show_ledger(&mut self, head: &Head) -> Flow {
        let question = self.question(head);
        let (ledger, close) = (&self.shared.ledger, question.marks.has(Marks::CLOSE));
        let answer = match question.method {
            b"GET" => ledger_answer("200 OK", &serde_json::to_string(&ledger.entries()).unwrap_or_default()),
            b"DELETE" => {
                ledger.clear();
                ledger_answer("200 OK", "[]")
            }
            _ => ledger_answer("405 Method Not Allowed", "[]"),
        };
        self.consume(head);
        let sent = self.interject(answer.as_bytes()).await;
        if close || sent.is_err() { Flow::Ended } else { Flow::Open }
    }

    async fn play(&mut self, plan: &Plan, tally: &mut Tally<'_>) -> Result<Flow, Gone> {
        for step in &plan.steps {
            match step {
                Step::Send(block) => self.send(block, tally).await?,
                Step::Pieces(pieces) => self.play_pieces(pieces, tally).await?,
                Step::Pause(time) => self.wire.pause(*time, tally).await?,
                Step::Drip { bytes, gap } => {
                    for byte in bytes {
                        self.wire.send(std::slice::from_ref(byte), tally).await?;
                        self.wire.pause(*gap, tally).await?;
                    }
                }
                Step::HalfClose => self.wire.half_close().await,
                Step::Close => return Ok(Flow::Ended),
                Step::Reset => {
                    self.wire.reset_on_drop();
                    return Ok(Flow::Ended);
                }
                Step::Hold => {
                    tally.publish();
                    self.wire.gone().await;
                    return Err(Gone);
                }
            }
        }
        Ok(Flow::Open)
    }

    async fn send(&mut self, block: &Block, tally: &mut Tally<'_>) -> Result<(), Gone> {
        let fixed = if block.is_fixed() {
            &block.bytes[..]
        } else {
            let filled = block.fill(&mut self.out, tally.id, clock::now_ns());
            self.wire.send(&self.out, tally).await?;
            &block.bytes[filled..]
        };
        self.wire.send(fixed, tally).await
    }

    async fn play_pieces(&mut self, pieces: &Pieces, tally: &mut Tally<'_>) -> Result<(), Gone> {
        let mut due = Instant::now();
        for (block, at) in pieces.blocks.iter().cycle().zip(0..pieces.count) {
            if at > 0 && !pieces.gap.is_zero() {
                // A slow reader does not earn a burst afterwards.
                due = (due + pieces.gap).max(Instant::now());
                self.wire.wait(due, tally).await?;
            } else if at % TURN == TURN - 1 {
                tokio::task::yield_now().await;
            }
            self.send(block, tally).await?;
        }
        Ok(())
    }
}

fn ledger_answer(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}
