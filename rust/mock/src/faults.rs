//! Injectable faults by name. Each changes a correct response to imitate what providers were seen to do wrong.

use std::time::Duration;

use crate::behaviour::Behaviour;
use crate::gzip;
use crate::response::{Framing, ResponseHead, StreamScript, body_steps};
use crate::shapes::{ResponseContext, ResponseShape, filler_text};
use crate::steps::{ChunkSequence, Step, WriteBlock};

const HUGE_EVENT_BYTES: usize = 10 * 1024 * 1024;
/// Delay that lets earlier bytes reach the client before a reset. An RST discards unread bytes.
const RESET_DELAY: Duration = Duration::from_millis(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    TooManyRequests,
    Reset,
    Silence,
    SlowFirst,
    Cut,
    CutReset,
    CutEvent,
    Stall,
    MalformedChunk,
    BadFraming,
    NoDone,
    OverloadedFirst,
    ShortLength,
    LongLength,
    Gzip,
    GzipBomb,
    HugeEvent,
    RedirectMetadata,
    HalfClose,
    SlowBytes,
    HeadersFlood,
    Early1xx,
    Crlf,
    Cr,
    Bom,
    PingsOnly,
    ErrorEvent,
    InvalidUtf8,
    DoneThenData,
}

const FAULT_NAMES: [(Fault, &str); 29] = [
    (Fault::TooManyRequests, "429"),
    (Fault::Reset, "reset"),
    (Fault::Silence, "silence"),
    (Fault::SlowFirst, "slow_first"),
    (Fault::Cut, "cut"),
    (Fault::CutReset, "cut_reset"),
    (Fault::CutEvent, "cut_event"),
    (Fault::Stall, "stall"),
    (Fault::MalformedChunk, "malformed_chunk"),
    (Fault::BadFraming, "invalid_framing"),
    (Fault::NoDone, "no_done"),
    (Fault::OverloadedFirst, "overloaded_first"),
    (Fault::ShortLength, "short_length"),
    (Fault::LongLength, "long_length"),
    (Fault::Gzip, "gzip"),
    (Fault::GzipBomb, "gzip_bomb"),
    (Fault::HugeEvent, "huge_event"),
    (Fault::RedirectMetadata, "redirect_metadata"),
    (Fault::HalfClose, "half_close"),
    (Fault::SlowBytes, "drip"),
    (Fault::HeadersFlood, "headers_flood"),
    (Fault::Early1xx, "early_1xx"),
    (Fault::Crlf, "crlf"),
    (Fault::Cr, "cr"),
    (Fault::Bom, "bom"),
    (Fault::PingsOnly, "pings_only"),
    (Fault::ErrorEvent, "error_event"),
    (Fault::InvalidUtf8, "invalid_utf8"),
    (Fault::DoneThenData, "done_then_data"),
];

impl Fault {
    pub fn from_name(name: &str) -> Option<Self> {
        FAULT_NAMES.iter().find(|(_, fault_name)| *fault_name == name).map(|(fault, _)| *fault)
    }

    pub fn name(self) -> &'static str {
        FAULT_NAMES.iter().find(|(fault, _)| *fault == self).map_or("", |(_, name)| name)
    }

    pub fn names() -> Vec<&'static str> {
        FAULT_NAMES.iter().map(|(_, name)| *name).collect()
    }

    /// Returns the steps that replace the complete response.
    pub fn replacement_steps(self, behaviour: &Behaviour) -> Option<Vec<Step>> {
        match self {
            Self::Reset => Some(vec![Step::Reset]),
            Self::Silence => Some(vec![Step::Hold]),
            Self::HeadersFlood => Some(headers_flood_steps(behaviour)),
            _ => None,
        }
    }

    /// Returns the steps that interrupt and end a response in its middle.
    pub fn interrupting_steps(self) -> Option<Vec<Step>> {
        match self {
            Self::Cut => Some(vec![Step::Close]),
            Self::CutEvent => {
                let half = r#"data: {"id":"the other half"#;
                let block = WriteBlock::without_placeholders(format!("{:x}\r\n{half}\r\n", half.len()));
                Some(vec![Step::Send(block), Step::Pause(RESET_DELAY), Step::Close])
            }
            Self::CutReset => Some(vec![Step::Pause(RESET_DELAY), Step::Reset]),
            Self::Stall => Some(vec![Step::Hold]),
            Self::HalfClose => Some(vec![Step::HalfClose, Step::Hold]),
            Self::BadFraming => {
                Some(vec![Step::Send(WriteBlock::without_placeholders("zz\r\nno size\r\n")), Step::Close])
            }
            _ => None,
        }
    }

    /// Returns the step that precedes the response head, if the fault has one.
    pub fn preceding_step(self, behaviour: &Behaviour) -> Option<Step> {
        let hint =
            WriteBlock::without_placeholders("HTTP/1.1 103 Early Hints\r\nlink: </style.css>; rel=preload\r\n\r\n");
        let count = behaviour.after.unwrap_or(3);
        (self == Self::Early1xx)
            .then(|| Step::Chunks(ChunkSequence { blocks: vec![hint], count, gap: behaviour.chunk_interval() }))
    }

    /// Applies the fault to the events of a stream.
    pub fn rewrite_stream(self, script: &mut StreamScript, shape: &dyn ResponseShape, context: &ResponseContext<'_>) {
        match self {
            Self::MalformedChunk => script.middle_event = shape.malformed_event().into(),
            Self::ErrorEvent => script.middle_event = shape.error_event().into(),
            Self::HugeEvent => script.middle_event = shape.chunk_event(context, &filler_text(HUGE_EVENT_BYTES)).into(),
            Self::InvalidUtf8 => script.middle_event = corrupt_utf8(shape.chunk_event(context, "~~~").into_bytes()),
            Self::NoDone => script.done_event.clear(),
            Self::DoneThenData => {
                script.done_event.extend_from_slice(shape.chunk_event(context, "too late").as_bytes());
            }
            Self::OverloadedFirst => *script = StreamScript::single_event(shape.error_event()),
            Self::PingsOnly => *script = ping_script(shape, context.behaviour),
            Self::Bom => script.opening.splice(0..0, *b"\xef\xbb\xbf").for_each(drop),
            Self::Crlf => script.map_parts(|text| replace_line_ends(text, b"\r\n")),
            Self::Cr => script.map_parts(|text| replace_line_ends(text, b"\r")),
            Self::Gzip => gzip_script(script),
            Self::GzipBomb => {
                *script = StreamScript::single_event(String::new());
                script.opening = gzip::bomb_member().to_vec();
            }
            _ => {}
        }
    }

    /// Applies the fault to a complete body.
    pub fn rewrite_body(self, body: Vec<u8>) -> Vec<u8> {
        match self {
            Self::MalformedChunk => body[..body.len() / 2].to_vec(),
            Self::InvalidUtf8 => corrupt_utf8([&body[..], b"~"].concat()),
            Self::Bom => [b"\xef\xbb\xbf", &body[..]].concat(),
            Self::Gzip => gzip::encode_member(&body),
            Self::GzipBomb => gzip::bomb_member().to_vec(),
            _ => body,
        }
    }

    /// Returns the wrong `content-length` for a body of `len` bytes, if the fault declares one.
    pub fn declared_length(self, len: u64) -> Option<u64> {
        match self {
            Self::ShortLength => Some(len.saturating_sub(10)),
            Self::LongLength => Some(len + 10),
            _ => None,
        }
    }

    pub fn response_headers(self) -> &'static str {
        match self {
            Self::Gzip | Self::GzipBomb => "content-encoding: gzip\r\n",
            Self::RedirectMetadata => "location: http://169.254.169.254/latest/meta-data/\r\n",
            _ => "",
        }
    }

    /// Returns the body size that a complete response needs for this fault.
    pub fn required_body_bytes(self) -> Option<usize> {
        (self == Self::HugeEvent).then_some(HUGE_EVENT_BYTES)
    }
}

/// Returns the steps of a stream with a wrong `content-length`: its events as one body.
pub fn wrong_length_steps(script: &StreamScript, mut head: ResponseHead, fault: Fault) -> Vec<Step> {
    let body = script.concat_events();
    head.framing = Framing::Length(fault.declared_length(body.len() as u64).unwrap_or(body.len() as u64));
    head.should_close |= fault == Fault::LongLength;
    body_steps(&head, &body)
}

fn headers_flood_steps(behaviour: &Behaviour) -> Vec<Step> {
    let lines = format!("x-flood: {}\r\n", "f".repeat(117)).repeat(128);
    let flood = ChunkSequence {
        blocks: vec![WriteBlock::without_placeholders(lines)],
        count: behaviour.after.unwrap_or(4096),
        gap: behaviour.chunk_interval(),
    };
    vec![Step::Send(WriteBlock::without_placeholders("HTTP/1.1 200 OK\r\n")), Step::Chunks(flood), Step::Close]
}

fn ping_script(shape: &dyn ResponseShape, behaviour: &Behaviour) -> StreamScript {
    let mut script = StreamScript::single_event(String::new());
    script.chunks = vec![shape.ping_event().into()];
    script.chunk_count = u32::MAX;
    script.chunks_before_middle = u32::MAX;
    script.chunk_interval = Duration::from_millis(behaviour.chunk_ms.unwrap_or(1000));
    script
}

fn corrupt_utf8(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.iter_mut().filter(|byte| **byte == b'~').for_each(|byte| *byte = 0xff);
    bytes
}

fn replace_line_ends(text: &[u8], end: &[u8]) -> Vec<u8> {
    text.split(|&byte| byte == b'\n').collect::<Vec<_>>().join(end)
}

fn gzip_script(script: &mut StreamScript) {
    let original = script.concat_events();
    script.map_parts(gzip::stored_blocks);
    script.opening.splice(0..0, gzip::member_header().iter().copied()).for_each(drop);
    script.done_event.extend_from_slice(&gzip::member_trailer(&original));
}
