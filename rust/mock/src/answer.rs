//! From an answer's parts to the steps that send it: the head, a whole body or a stream's events, and the fault among them.

use std::time::Duration;

use serde_json::Value;

use crate::behaviour::Behaviour;
use crate::faults::{self, Fault};
use crate::framing::{LAST_CHUNK, frame_chunk};
use crate::request::Marks;
use crate::shapes::objects::Contents;
use crate::shapes::{Ask, Family, Shape, filler, text, texts};
use crate::steps::{Block, Pieces, Step, burst, drip};

const SLOW_FIRST: u64 = 10_000;
const DRIP: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Length(u64),
    Chunked,
    UntilClose,
}

/// What goes before a body.
#[derive(Clone, Debug)]
pub struct Head {
    pub status: u32,
    pub family: Family,
    pub content_type: &'static str,
    pub extra: String,
    pub framing: Framing,
    pub close: bool,
}

impl Head {
    fn new(status: u32, family: Family, behaviour: &Behaviour, marks: Marks) -> Self {
        let mut extra = behaviour.fault.map_or("", Fault::headers).to_owned();
        if let Some(wait) = behaviour.retry_after.as_ref().filter(|_| status >= 400) {
            extra.extend(["retry-after: ", wait, "\r\n"]);
        }
        extra += family.error_headers(status);
        let close = marks.has(Marks::CLOSE);
        Self { status, family, content_type: "application/json", extra, framing: Framing::Length(0), close }
    }

    fn render(&self) -> Vec<u8> {
        let framing = match self.framing {
            Framing::Length(length) => format!("content-length: {length}\r\n"),
            Framing::Chunked => "transfer-encoding: chunked\r\n".to_owned(),
            Framing::UntilClose => String::new(),
        };
        let (status, reason, kind) = (self.status, reason(self.status), self.content_type);
        let close = if self.close { "connection: close\r\n" } else { "" };
        let (family, extra) = (self.family.headers(), &self.extra);
        format!("HTTP/1.1 {status} {reason}\r\ncontent-type: {kind}\r\n{family}{extra}{framing}{close}\r\n")
            .into_bytes()
    }

    /// Bytes of a body as this head's framing has them.
    fn frame(&self, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(data.len() + 16);
        if self.framing == Framing::Chunked {
            frame_chunk(&mut out, data);
        } else {
            out.extend_from_slice(data);
        }
        out
    }
}

fn reason(status: u32) -> &'static str {
    match status {
        200 => "OK",
        302 => "Found",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        _ => "As Asked",
    }
}

/// The events of a stream, each part ready to be sent but for the framing.
#[derive(Clone, Debug, Default)]
pub struct Script {
    pub opening: Vec<u8>,
    /// Sent in turn until there were `count`, a `gap` between two.
    pub pieces: Vec<Vec<u8>>,
    pub count: u32,
    pub gap: Duration,
    /// How many pieces come before the middle.
    pub split: u32,
    pub middle: Vec<u8>,
    pub closing: Vec<u8>,
    pub done: Vec<u8>,
}

impl Script {
    fn new(shape: &dyn Shape, ask: &Ask<'_>) -> Self {
        Self {
            opening: shape.opening(ask).into(),
            pieces: texts(ask.behaviour).iter().map(|text| shape.piece(ask, text).into()).collect(),
            count: ask.behaviour.chunks,
            gap: ask.behaviour.gap(),
            split: ask.behaviour.chunks_before_fault(),
            middle: Vec::new(),
            closing: shape.closing(ask).into(),
            done: shape.done(ask).into(),
        }
    }

    pub fn only(event: String) -> Self {
        Self { opening: event.into(), ..Self::default() }
    }

    pub fn map(&mut self, change: impl Fn(&[u8]) -> Vec<u8>) {
        let parts = [&mut self.opening, &mut self.middle, &mut self.closing, &mut self.done];
        for part in parts.into_iter().chain(self.pieces.iter_mut()) {
            *part = change(part);
        }
    }

    /// The whole stream without its framing.
    pub fn joined(&self) -> Vec<u8> {
        let mut pieces = self.pieces.iter().cycle();
        let mut out = self.opening.clone();
        pieces.by_ref().take(self.split as usize).for_each(|piece| out.extend_from_slice(piece));
        out.extend_from_slice(&self.middle);
        pieces.take((self.count - self.split) as usize).for_each(|piece| out.extend_from_slice(piece));
        out.extend_from_slice(&self.closing);
        out.extend_from_slice(&self.done);
        out
    }

    fn pieces(&self, head: &Head, from: u32, to: u32) -> Option<Step> {
        if from >= to || self.pieces.is_empty() {
            return None;
        }
        let mut blocks: Vec<Block> = self.pieces.iter().map(|piece| Block::marked(head.frame(piece))).collect();
        let turns = blocks.len();
        blocks.rotate_left(from as usize % turns);
        Some(Step::Pieces(Pieces { blocks, count: to - from, gap: self.gap }))
    }
}

/// A stream, or whatever the fault makes of it.
pub fn stream(shape: &dyn Shape, ask: &Ask<'_>, status: u32, marks: Marks) -> Vec<Step> {
    let mut script = Script::new(shape, ask);
    let fault = ask.behaviour.fault;
    if let Some(fault) = fault {
        fault.rewrite(&mut script, shape, ask);
    }
    script.map(|said| shape.frame(said));
    let mut head = Head::new(status, shape.family(), ask.behaviour, marks);
    head.extra += "cache-control: no-cache\r\n";
    head.content_type = shape.stream_kind();
    head.framing = if marks.has(Marks::HTTP_1_0) { Framing::UntilClose } else { Framing::Chunked };
    let steps = match fault {
        Some(fault) if fault.claims(0).is_some() => faults::mislabelled(&script, head, fault),
        _ => stream_steps(&head, &script, ask.behaviour),
    };
    finish(steps, ask.behaviour)
}

fn stream_steps(head: &Head, script: &Script, behaviour: &Behaviour) -> Vec<Step> {
    let mut steps = vec![Step::Send(Block::marked(head.render()))];
    if behaviour.fault == Some(Fault::SlowFirst) {
        steps.push(Step::Pause(Duration::from_millis(behaviour.first_ms.unwrap_or(SLOW_FIRST))));
        steps.push(Step::Send(Block::plain(head.frame(&script.opening))));
    } else if let Some(Step::Send(first)) = steps.first_mut() {
        first.bytes.extend_from_slice(&head.frame(&script.opening));
    }
    if let Some(end) = behaviour.fault.and_then(Fault::interrupts) {
        steps.extend(script.pieces(head, 0, script.split));
        steps.extend(end);
        return steps;
    }
    if script.middle.is_empty() {
        steps.extend(script.pieces(head, 0, script.count));
    } else {
        let pause = (!script.gap.is_zero()).then_some(Step::Pause(script.gap));
        steps.extend(script.pieces(head, 0, script.split).into_iter().chain(pause.clone()));
        steps.push(Step::Send(Block::plain(head.frame(&script.middle))));
        steps.extend(pause.into_iter().chain(script.pieces(head, script.split, script.count)));
    }
    let mut last = [head.frame(&script.closing), head.frame(&script.done)].concat();
    if head.framing == Framing::Chunked {
        last.extend_from_slice(LAST_CHUNK);
    }
    steps.push(Step::Send(Block::plain(last)));
    steps.extend(head.close.then_some(Step::Close));
    steps
}

/// A generated answer in one piece, or whatever the fault makes of it.
pub fn generated(shape: &dyn Shape, ask: &Ask<'_>, status: u32, marks: Marks) -> Vec<Step> {
    if ask.behaviour.fault == Some(Fault::OverloadedFirst) {
        let (status, body) = shape.family().overloaded();
        return whole(status, shape.family(), &body, ask.behaviour, marks);
    }
    let wanted = ask.behaviour.answer_bytes.or(ask.behaviour.fault.and_then(Fault::answer_bytes));
    let text = match wanted {
        Some(size) => filler(size.saturating_sub(shape.whole(ask, "").to_string().len())),
        None => text(ask.behaviour),
    };
    whole(status, shape.family(), &shape.whole(ask, &text), ask.behaviour, marks)
}

/// Any JSON as an answer, or whatever the fault makes of it.
pub fn whole(status: u32, family: Family, body: &Value, behaviour: &Behaviour, marks: Marks) -> Vec<Step> {
    let body = body.to_string().into_bytes();
    contents(status, Contents { family, kind: "application/json", extra: "", body }, behaviour, marks)
}

/// Anything as an answer, or whatever the fault makes of it.
pub fn contents(status: u32, contents: Contents, behaviour: &Behaviour, marks: Marks) -> Vec<Step> {
    let Contents { family, kind, extra, mut body } = contents;
    let mut head = Head::new(status, family, behaviour, marks);
    head.content_type = kind;
    head.extra += extra;
    if matches!(status, 204 | 304) {
        body.clear();
    } else if let (Some(size), false) = (behaviour.answer_bytes, kind == "application/json") {
        body = body.iter().copied().cycle().take(size).collect();
    }
    if let Some(fault) = behaviour.fault {
        body = fault.rewrite_whole(body);
    }
    if marks.has(Marks::HEAD) {
        head.framing = Framing::Length(body.len() as u64);
        return finish(vec![Step::Send(Block::marked(head.render()))], behaviour);
    }
    finish(whole_steps(head, &body, behaviour), behaviour)
}

fn whole_steps(mut head: Head, body: &[u8], behaviour: &Behaviour) -> Vec<Step> {
    let length = body.len() as u64;
    head.framing = Framing::Length(behaviour.fault.and_then(|fault| fault.claims(length)).unwrap_or(length));
    head.close |= behaviour.fault == Some(Fault::LongLength);
    if let Some(end) = behaviour.fault.and_then(Fault::interrupts) {
        if behaviour.fault == Some(Fault::BadFraming) {
            head.framing = Framing::Chunked;
        }
        let mut first = head.render();
        first.extend_from_slice(&head.frame(&body[..body.len() / 2]));
        let mut steps = vec![Step::Send(Block::marked(first))];
        steps.extend(end);
        return steps;
    }
    let mut steps = body_steps(&head, body);
    if behaviour.fault == Some(Fault::SlowFirst) {
        steps[0] = Step::Send(Block::marked(head.render()));
        steps.insert(1, Step::Pause(Duration::from_millis(behaviour.first_ms.unwrap_or(SLOW_FIRST))));
        steps.insert(2, Step::Send(Block::plain(body)));
    }
    steps
}

/// A head and its body in one write.
pub fn body_steps(head: &Head, body: &[u8]) -> Vec<Step> {
    let mut bytes = head.render();
    bytes.extend_from_slice(body);
    let mut steps = vec![Step::Send(Block::marked(bytes))];
    steps.extend(head.close.then_some(Step::Close));
    steps
}

/// What applies to every answer: the delay before it, bursts, the drip, and what precedes the head.
pub fn finish(mut steps: Vec<Step>, behaviour: &Behaviour) -> Vec<Step> {
    let fault = behaviour.fault;
    if let Some(step) = fault.and_then(|fault| fault.precedes(behaviour)) {
        steps.insert(0, step);
    }
    if behaviour.burst {
        steps = burst(steps);
    }
    if fault == Some(Fault::Drip) {
        steps = drip(steps, behaviour.chunk_ms.map_or(DRIP, Duration::from_millis));
    }
    if let Some(wait) = behaviour.first_ms.filter(|_| fault != Some(Fault::SlowFirst)) {
        steps.insert(0, Step::Pause(Duration::from_millis(wait)));
    }
    steps
}
