//! Everything that providers have been seen to do wrong: by name, and as changes to an answer that would have been right.

use std::time::Duration;

use crate::answer::{Framing, Head, Script, body_steps};
use crate::behaviour::Behaviour;
use crate::gzip;
use crate::shapes::{Ask, Shape, filler};
use crate::steps::{Block, Pieces, Step};

const HUGE: usize = 10 * 1024 * 1024;
/// Lets the bytes before a reset reach the client: an RST throws away what was not yet read.
const BEFORE_RESET: Duration = Duration::from_millis(30);

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
    Drip,
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

const NAMES: [(Fault, &str); 29] = [
    (Fault::TooManyRequests, "429"),
    (Fault::Reset, "reset"),
    (Fault::Silence, "silence"),
    (Fault::SlowFirst, "slow_first"),
    (Fault::Cut, "cut"),
    (Fault::CutReset, "cut_reset"),
    (Fault::CutEvent, "cut_event"),
    (Fault::Stall, "stall"),
    (Fault::MalformedChunk, "malformed_chunk"),
    (Fault::BadFraming, "bad_framing"),
    (Fault::NoDone, "no_done"),
    (Fault::OverloadedFirst, "overloaded_first"),
    (Fault::ShortLength, "short_length"),
    (Fault::LongLength, "long_length"),
    (Fault::Gzip, "gzip"),
    (Fault::GzipBomb, "gzip_bomb"),
    (Fault::HugeEvent, "huge_event"),
    (Fault::RedirectMetadata, "redirect_metadata"),
    (Fault::HalfClose, "half_close"),
    (Fault::Drip, "drip"),
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
    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(_, known)| *known == name).map(|(fault, _)| *fault)
    }

    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(fault, _)| *fault == self).map_or("", |(_, name)| name)
    }

    pub fn names() -> Vec<&'static str> {
        NAMES.iter().map(|(_, name)| *name).collect()
    }

    /// What happens in the place of any answer.
    pub fn instead(self, behaviour: &Behaviour) -> Option<Vec<Step>> {
        match self {
            Self::Reset => Some(vec![Step::Reset]),
            Self::Silence => Some(vec![Step::Hold]),
            Self::HeadersFlood => Some(headers_flood(behaviour)),
            _ => None,
        }
    }

    /// What happens in the middle of an answer and ends it.
    pub fn interrupts(self) -> Option<Vec<Step>> {
        match self {
            Self::Cut => Some(vec![Step::Close]),
            Self::CutEvent => {
                let half = r#"data: {"id":"the other half"#;
                let piece = Block::plain(format!("{:x}\r\n{half}\r\n", half.len()));
                Some(vec![Step::Send(piece), Step::Pause(BEFORE_RESET), Step::Close])
            }
            Self::CutReset => Some(vec![Step::Pause(BEFORE_RESET), Step::Reset]),
            Self::Stall => Some(vec![Step::Hold]),
            Self::HalfClose => Some(vec![Step::HalfClose, Step::Hold]),
            Self::BadFraming => Some(vec![Step::Send(Block::plain("zz\r\nno size\r\n")), Step::Close]),
            _ => None,
        }
    }

    /// What is sent before the head of the answer.
    pub fn precedes(self, behaviour: &Behaviour) -> Option<Step> {
        let hint = Block::plain("HTTP/1.1 103 Early Hints\r\nlink: </style.css>; rel=preload\r\n\r\n");
        let count = behaviour.after.unwrap_or(3);
        (self == Self::Early1xx).then(|| Step::Pieces(Pieces { blocks: vec![hint], count, gap: behaviour.gap() }))
    }

    /// Changes the events of a stream.
    pub fn rewrite(self, script: &mut Script, shape: &dyn Shape, ask: &Ask<'_>) {
        match self {
            Self::MalformedChunk => script.middle = shape.malformed().into(),
            Self::ErrorEvent => script.middle = shape.error_event().into(),
            Self::HugeEvent => script.middle = shape.piece(ask, &filler(HUGE)).into(),
            Self::InvalidUtf8 => script.middle = spoil(shape.piece(ask, "~~~").into_bytes()),
            Self::NoDone => script.done.clear(),
            Self::DoneThenData => script.done.extend_from_slice(shape.piece(ask, "too late").as_bytes()),
            Self::OverloadedFirst => *script = Script::only(shape.error_event()),
            Self::PingsOnly => *script = pings(shape, ask.behaviour),
            Self::Bom => script.opening.splice(0..0, *b"\xef\xbb\xbf").for_each(drop),
            Self::Crlf => script.map(|text| line_ends(text, b"\r\n")),
            Self::Cr => script.map(|text| line_ends(text, b"\r")),
            Self::Gzip => zip(script),
            Self::GzipBomb => {
                *script = Script::only(String::new());
                script.opening = gzip::bomb().to_vec();
            }
            _ => {}
        }
    }

    /// Changes the body of a whole answer.
    pub fn rewrite_whole(self, body: Vec<u8>) -> Vec<u8> {
        match self {
            Self::MalformedChunk => body[..body.len() / 2].to_vec(),
            Self::InvalidUtf8 => spoil([&body[..], b"~"].concat()),
            Self::Bom => [b"\xef\xbb\xbf", &body[..]].concat(),
            Self::Gzip => gzip::member(&body),
            Self::GzipBomb => gzip::bomb().to_vec(),
            _ => body,
        }
    }

    /// What the head says of the length of a body of `len` bytes.
    pub fn claims(self, len: u64) -> Option<u64> {
        match self {
            Self::ShortLength => Some(len.saturating_sub(10)),
            Self::LongLength => Some(len + 10),
            _ => None,
        }
    }

    pub fn headers(self) -> &'static str {
        match self {
            Self::Gzip | Self::GzipBomb => "content-encoding: gzip\r\n",
            Self::RedirectMetadata => "location: http://169.254.169.254/latest/meta-data/\r\n",
            _ => "",
        }
    }

    /// The size that a whole answer must have for this fault.
    pub fn answer_bytes(self) -> Option<usize> {
        (self == Self::HugeEvent).then_some(HUGE)
    }
}

/// A stream with a wrong content-length: its events as one body.
pub fn mislabelled(script: &Script, mut head: Head, fault: Fault) -> Vec<Step> {
    let body = script.joined();
    head.framing = Framing::Length(fault.claims(body.len() as u64).unwrap_or(body.len() as u64));
    head.close |= fault == Fault::LongLength;
    body_steps(&head, &body)
}

fn headers_flood(behaviour: &Behaviour) -> Vec<Step> {
    let lines = format!("x-flood: {}\r\n", "f".repeat(117)).repeat(128);
    let flood =
        Pieces { blocks: vec![Block::plain(lines)], count: behaviour.after.unwrap_or(4096), gap: behaviour.gap() };
    vec![Step::Send(Block::plain("HTTP/1.1 200 OK\r\n")), Step::Pieces(flood), Step::Close]
}

fn pings(shape: &dyn Shape, behaviour: &Behaviour) -> Script {
    let mut script = Script::only(String::new());
    script.pieces = vec![shape.ping().into()];
    script.count = u32::MAX;
    script.split = u32::MAX;
    script.gap = Duration::from_millis(behaviour.chunk_ms.unwrap_or(1000));
    script
}

fn spoil(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.iter_mut().filter(|byte| **byte == b'~').for_each(|byte| *byte = 0xff);
    bytes
}

fn line_ends(text: &[u8], end: &[u8]) -> Vec<u8> {
    text.split(|&byte| byte == b'\n').collect::<Vec<_>>().join(end)
}

fn zip(script: &mut Script) {
    let whole = script.joined();
    script.map(gzip::blocks);
    script.opening.splice(0..0, gzip::opening().iter().copied()).for_each(drop);
    script.done.extend_from_slice(&gzip::closing(&whole));
}
