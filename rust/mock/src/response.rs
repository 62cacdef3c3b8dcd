//! Response builder. Turns a response into the steps that send it: head, complete body or stream events, and the
//! injected fault.

use std::time::Duration;

use serde_json::Value;

use crate::behaviour::Behaviour;
use crate::faults::{self, Fault};
use crate::framing::{LAST_CHUNK, frame_chunk};
use crate::request::RequestFlags;
use crate::shapes::objects::ResponseContents;
use crate::shapes::{ProviderFamily, ResponseContext, ResponseShape, chunk_texts, complete_text, filler_text};
use crate::steps::{ChunkSequence, Step, WriteBlock, convert_to_drip, merge_writes};

const SLOW_FIRST_BYTE_MS: u64 = 10_000;
/// Headers of a complete chat response of `OpenAI`, with the same names and lengths but invented values.
const PROVIDER_HEADERS: &str = "date: Fri, 27 Nov 2026 10:00:00 GMT\r\n\
    openai-organization: org-mock\r\n\
    openai-project: proj_000000000000000000000000\r\n\
    openai-processing-ms: 412\r\n\
    openai-version: 2020-10-01\r\n\
    x-envoy-upstream-service-time: 418\r\n\
    x-ratelimit-limit-requests: 10000\r\n\
    x-ratelimit-limit-tokens: 2000000\r\n\
    x-ratelimit-remaining-requests: 9999\r\n\
    x-ratelimit-remaining-tokens: 1999981\r\n\
    x-ratelimit-reset-requests: 6ms\r\n\
    x-ratelimit-reset-tokens: 0s\r\n\
    cf-cache-status: DYNAMIC\r\n\
    strict-transport-security: max-age=31536000; includeSubDomains; preload\r\n\
    x-content-type-options: nosniff\r\n\
    set-cookie: mock-session=0000000000000000; path=/; HttpOnly\r\n\
    server: cloudflare\r\n\
    cf-ray: 0000000000000000-FRA\r\n\
    alt-svc: h3=\":443\"; ma=86400\r\n";
const DRIP_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Length(u64),
    Chunked,
    UntilClose,
}

/// Status line and header fields of a response.
#[derive(Clone, Debug)]
pub struct ResponseHead {
    pub status: u32,
    pub family: ProviderFamily,
    pub content_type: &'static str,
    pub extra_headers: String,
    pub framing: Framing,
    pub should_close: bool,
}

impl ResponseHead {
    fn new(status: u32, family: ProviderFamily, behaviour: &Behaviour, marks: RequestFlags) -> Self {
        let mut extra_headers = behaviour.fault.map_or("", Fault::response_headers).to_owned();
        if let Some(wait) = behaviour.retry_after.as_ref().filter(|_| status >= 400) {
            extra_headers.extend(["retry-after: ", wait, "\r\n"]);
        }
        extra_headers += family.error_headers(status);
        if behaviour.headers {
            extra_headers += PROVIDER_HEADERS;
        }
        let should_close = marks.has(RequestFlags::CLOSE);
        Self {
            status,
            family,
            content_type: "application/json",
            extra_headers,
            framing: Framing::Length(0),
            should_close,
        }
    }

    fn render(&self) -> Vec<u8> {
        let framing = match self.framing {
            Framing::Length(length) => format!("content-length: {length}\r\n"),
            Framing::Chunked => "transfer-encoding: chunked\r\n".to_owned(),
            Framing::UntilClose => String::new(),
        };
        let (status, reason, kind) = (self.status, reason_phrase(self.status), self.content_type);
        let close = if self.should_close { "connection: close\r\n" } else { "" };
        let (family, extra) = (self.family.response_headers(), &self.extra_headers);
        format!("HTTP/1.1 {status} {reason}\r\ncontent-type: {kind}\r\n{family}{extra}{framing}{close}\r\n")
            .into_bytes()
    }

    /// Encodes body bytes with the framing of this head.
    fn frame_body(&self, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(data.len() + 16);
        if self.framing == Framing::Chunked {
            frame_chunk(&mut out, data);
        } else {
            out.extend_from_slice(data);
        }
        out
    }
}

fn reason_phrase(status: u32) -> &'static str {
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

/// Events of a stream, encoded except for the HTTP framing.
#[derive(Clone, Debug, Default)]
pub struct StreamScript {
    pub opening: Vec<u8>,
    /// Chunks that are sent in rotation, `chunk_count` in all, with `chunk_interval` between two.
    pub chunks: Vec<Vec<u8>>,
    pub chunk_count: u32,
    pub chunk_interval: Duration,
    /// Number of chunks before `middle_event`.
    pub chunks_before_middle: u32,
    /// Event that a fault inserts between two chunks; empty without such a fault.
    pub middle_event: Vec<u8>,
    pub closing: Vec<u8>,
    pub done_event: Vec<u8>,
}

impl StreamScript {
    fn new(shape: &dyn ResponseShape, context: &ResponseContext<'_>) -> Self {
        Self {
            opening: shape.opening_events(context).into(),
            chunks: chunk_texts(context.behaviour).iter().map(|text| shape.chunk_event(context, text).into()).collect(),
            chunk_count: context.behaviour.chunks,
            chunk_interval: context.behaviour.chunk_interval(),
            chunks_before_middle: context.behaviour.chunks_before_fault(),
            middle_event: Vec::new(),
            closing: shape.closing_events(context).into(),
            done_event: shape.end_event(context).into(),
        }
    }

    pub fn single_event(event: String) -> Self {
        Self { opening: event.into(), ..Self::default() }
    }

    pub fn map_parts(&mut self, change: impl Fn(&[u8]) -> Vec<u8>) {
        let parts = [&mut self.opening, &mut self.middle_event, &mut self.closing, &mut self.done_event];
        for part in parts.into_iter().chain(self.chunks.iter_mut()) {
            *part = change(part);
        }
    }

    /// Returns the complete stream without its framing.
    pub fn concat_events(&self) -> Vec<u8> {
        let mut chunks = self.chunks.iter().cycle();
        let mut out = self.opening.clone();
        chunks.by_ref().take(self.chunks_before_middle as usize).for_each(|chunk| out.extend_from_slice(chunk));
        out.extend_from_slice(&self.middle_event);
        chunks
            .take((self.chunk_count - self.chunks_before_middle) as usize)
            .for_each(|chunk| out.extend_from_slice(chunk));
        out.extend_from_slice(&self.closing);
        out.extend_from_slice(&self.done_event);
        out
    }

    fn chunk_step(&self, head: &ResponseHead, from: u32, to: u32) -> Option<Step> {
        if from >= to || self.chunks.is_empty() {
            return None;
        }
        let mut blocks: Vec<WriteBlock> =
            self.chunks.iter().map(|chunk| WriteBlock::with_placeholders(head.frame_body(chunk))).collect();
        let turns = blocks.len();
        blocks.rotate_left(from as usize % turns);
        Some(Step::Chunks(ChunkSequence { blocks, count: to - from, gap: self.chunk_interval }))
    }
}

/// Builds a streamed response, with the fault applied.
pub fn build_stream(
    shape: &dyn ResponseShape,
    context: &ResponseContext<'_>,
    status: u32,
    marks: RequestFlags,
) -> Vec<Step> {
    let mut script = StreamScript::new(shape, context);
    let fault = context.behaviour.fault;
    if let Some(fault) = fault {
        fault.rewrite_stream(&mut script, shape, context);
    }
    script.map_parts(|bytes| shape.encode_frames(bytes));
    let mut head = ResponseHead::new(status, shape.family(), context.behaviour, marks);
    head.extra_headers += "cache-control: no-cache\r\n";
    head.content_type = shape.stream_content_type();
    head.framing = if marks.has(RequestFlags::HTTP_1_0) { Framing::UntilClose } else { Framing::Chunked };
    let steps = match fault {
        Some(fault) if fault.declared_length(0).is_some() => faults::wrong_length_steps(&script, head, fault),
        _ => stream_steps(&head, &script, context.behaviour),
    };
    apply_timing(steps, context.behaviour)
}

fn stream_steps(head: &ResponseHead, script: &StreamScript, behaviour: &Behaviour) -> Vec<Step> {
    let mut steps = vec![Step::Send(WriteBlock::with_placeholders(head.render()))];
    if behaviour.fault == Some(Fault::SlowFirst) {
        steps.push(Step::Pause(Duration::from_millis(behaviour.first_ms.unwrap_or(SLOW_FIRST_BYTE_MS))));
        steps.push(Step::Send(WriteBlock::without_placeholders(head.frame_body(&script.opening))));
    } else if let Some(Step::Send(first)) = steps.first_mut() {
        first.bytes.extend_from_slice(&head.frame_body(&script.opening));
    }
    if let Some(end) = behaviour.fault.and_then(Fault::interrupting_steps) {
        steps.extend(script.chunk_step(head, 0, script.chunks_before_middle));
        steps.extend(end);
        return steps;
    }
    if script.middle_event.is_empty() {
        steps.extend(script.chunk_step(head, 0, script.chunk_count));
    } else {
        let pause = (!script.chunk_interval.is_zero()).then_some(Step::Pause(script.chunk_interval));
        steps.extend(script.chunk_step(head, 0, script.chunks_before_middle).into_iter().chain(pause.clone()));
        steps.push(Step::Send(WriteBlock::without_placeholders(head.frame_body(&script.middle_event))));
        steps.extend(pause.into_iter().chain(script.chunk_step(head, script.chunks_before_middle, script.chunk_count)));
    }
    let mut last = [head.frame_body(&script.closing), head.frame_body(&script.done_event)].concat();
    if head.framing == Framing::Chunked {
        last.extend_from_slice(LAST_CHUNK);
    }
    steps.push(Step::Send(WriteBlock::without_placeholders(last)));
    steps.extend(head.should_close.then_some(Step::Close));
    steps
}

/// Builds a generated response with a complete body, with the fault applied.
pub fn build_generated(
    shape: &dyn ResponseShape,
    context: &ResponseContext<'_>,
    status: u32,
    marks: RequestFlags,
) -> Vec<Step> {
    if context.behaviour.fault == Some(Fault::OverloadedFirst) {
        let (status, body) = shape.family().overloaded_error();
        return build_json(status, shape.family(), &body, context.behaviour, marks);
    }
    let min_bytes = context.behaviour.response_bytes.or(context.behaviour.fault.and_then(Fault::required_body_bytes));
    let text = match min_bytes {
        Some(size) => filler_text(size.saturating_sub(shape.complete_body(context, "").to_string().len())),
        None => complete_text(context.behaviour),
    };
    build_json(status, shape.family(), &shape.complete_body(context, &text), context.behaviour, marks)
}

/// Builds a JSON response, with the fault applied.
pub fn build_json(
    status: u32,
    family: ProviderFamily,
    body: &Value,
    behaviour: &Behaviour,
    marks: RequestFlags,
) -> Vec<Step> {
    let body = body.to_string().into_bytes();
    build_contents(
        status,
        ResponseContents { family, content_type: "application/json", extra_headers: "", body },
        behaviour,
        marks,
    )
}

/// Builds a response of any content type, with the fault applied.
pub fn build_contents(
    status: u32,
    contents: ResponseContents,
    behaviour: &Behaviour,
    marks: RequestFlags,
) -> Vec<Step> {
    let ResponseContents { family, content_type: kind, extra_headers: extra, mut body } = contents;
    let mut head = ResponseHead::new(status, family, behaviour, marks);
    head.content_type = kind;
    head.extra_headers += extra;
    if matches!(status, 204 | 304) {
        body.clear();
    } else if let (Some(size), false) = (behaviour.response_bytes, kind == "application/json") {
        body = body.iter().copied().cycle().take(size).collect();
    }
    if let Some(fault) = behaviour.fault {
        body = fault.rewrite_body(body);
    }
    if marks.has(RequestFlags::HEAD_METHOD) {
        head.framing = Framing::Length(body.len() as u64);
        return apply_timing(vec![Step::Send(WriteBlock::with_placeholders(head.render()))], behaviour);
    }
    apply_timing(complete_body_steps(head, &body, behaviour), behaviour)
}

fn complete_body_steps(mut head: ResponseHead, body: &[u8], behaviour: &Behaviour) -> Vec<Step> {
    let length = body.len() as u64;
    head.framing = Framing::Length(behaviour.fault.and_then(|fault| fault.declared_length(length)).unwrap_or(length));
    head.should_close |= behaviour.fault == Some(Fault::LongLength);
    if let Some(end) = behaviour.fault.and_then(Fault::interrupting_steps) {
        if behaviour.fault == Some(Fault::BadFraming) {
            head.framing = Framing::Chunked;
        }
        let mut first = head.render();
        first.extend_from_slice(&head.frame_body(&body[..body.len() / 2]));
        let mut steps = vec![Step::Send(WriteBlock::with_placeholders(first))];
        steps.extend(end);
        return steps;
    }
    let mut steps = body_steps(&head, body);
    if behaviour.fault == Some(Fault::SlowFirst) {
        steps[0] = Step::Send(WriteBlock::with_placeholders(head.render()));
        steps.insert(1, Step::Pause(Duration::from_millis(behaviour.first_ms.unwrap_or(SLOW_FIRST_BYTE_MS))));
        steps.insert(2, Step::Send(WriteBlock::without_placeholders(body)));
    }
    steps
}

/// Returns the steps that send a head and its body in one write.
pub fn body_steps(head: &ResponseHead, body: &[u8]) -> Vec<Step> {
    let mut bytes = head.render();
    bytes.extend_from_slice(body);
    let mut steps = vec![Step::Send(WriteBlock::with_placeholders(bytes))];
    steps.extend(head.should_close.then_some(Step::Close));
    steps
}

/// Applies the options of every response: delay before it, burst, drip, and bytes before the head.
pub fn apply_timing(mut steps: Vec<Step>, behaviour: &Behaviour) -> Vec<Step> {
    let fault = behaviour.fault;
    if let Some(step) = fault.and_then(|fault| fault.preceding_step(behaviour)) {
        steps.insert(0, step);
    }
    if behaviour.burst {
        steps = merge_writes(steps);
    }
    if fault == Some(Fault::SlowBytes) {
        steps = convert_to_drip(steps, behaviour.chunk_ms.map_or(DRIP_INTERVAL, Duration::from_millis));
    }
    if let Some(wait) = behaviour.first_ms.filter(|_| fault != Some(Fault::SlowFirst)) {
        steps.insert(0, Step::Pause(Duration::from_millis(wait)));
    }
    steps
}
