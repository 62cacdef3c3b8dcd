//! Server-sent events: where they end in bytes that come in pieces of any size, and what they say (the WHATWG rules).

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use memchr::memchr2;

pub(crate) const BOM: &[u8] = b"\xEF\xBB\xBF";
const LF: u8 = b'\n';
const CR: u8 = b'\r';

/// The bytes from one blank line to the next. Comments alone are an event too, one without data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Exactly as it came, with the blank line that ends it.
    pub raw: Bytes,
    /// The stream began here with a byte order mark.
    bom: bool,
}

impl Event {
    /// The `data` lines joined with LF; `None` when there are none, and nothing is to be dispatched.
    pub fn data(&self) -> Option<Cow<'_, [u8]>> {
        data(self.body())
    }

    /// The last `event` field; `None` when there is none or it is empty: a plain message.
    pub fn name(&self) -> Option<&[u8]> {
        field(self.body(), b"event").filter(|name| !name.is_empty())
    }

    /// The last `id` field without a NUL in it.
    pub fn id(&self) -> Option<&[u8]> {
        values(self.body(), b"id").filter(|id| !id.contains(&0)).last()
    }

    fn body(&self) -> &[u8] {
        if self.bom { &self.raw[BOM.len()..] } else { &self.raw }
    }
}

/// An event is longer than the splitter may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventTooLong {
    pub limit: usize,
}

impl std::fmt::Display for EventTooLong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an event of the stream is longer than {} bytes", self.limit)
    }
}

impl std::error::Error for EventTooLong {}

/// Finds events in a stream of chunks. Those that lie within one chunk are slices of it, nothing is copied.
#[derive(Debug)]
pub struct Splitter {
    limit: usize,
    /// The beginning of an event whose end has not come yet.
    carry: BytesMut,
    /// Pushed and not looked at yet.
    rest: Bytes,
    edge: Edge,
    first: bool,
    failed: bool,
}

impl Splitter {
    pub fn new(max_event_bytes: usize) -> Self {
        Self {
            limit: max_event_bytes,
            carry: BytesMut::new(),
            rest: Bytes::new(),
            edge: Edge::at_start(),
            first: true,
            failed: false,
        }
    }

    /// Takes the next bytes; the iterator yields the events that are complete with them. After an error it yields nothing.
    pub fn push(&mut self, chunk: Bytes) -> Events<'_> {
        if self.failed {
            return Events { splitter: self };
        }
        if self.rest.is_empty() {
            self.rest = chunk;
        } else {
            self.rest = [&self.rest[..], &chunk[..]].concat().into();
        }
        Events { splitter: self }
    }

    /// What has come of an event that is not complete.
    pub fn pending(&self) -> &[u8] {
        &self.carry
    }

    /// The stream is over. An event whose blank line was a CR at the very end is complete now;
    /// anything else that is pending was cut and is never dispatched.
    pub fn finish(&mut self) -> Option<Event> {
        if !self.edge.finish() {
            return None;
        }
        let raw = self.carry.split().freeze();
        Some(self.event(raw))
    }

    fn event(&mut self, raw: Bytes) -> Event {
        let bom = self.first && raw.starts_with(BOM);
        self.first = false;
        Event { raw, bom }
    }

    fn next(&mut self) -> Option<Result<Event, EventTooLong>> {
        if self.rest.is_empty() || self.failed {
            return None;
        }
        let end = self.edge.find(&self.rest);
        let length = self.carry.len() + end.unwrap_or(self.rest.len());
        if length > self.limit {
            self.failed = true;
            self.rest.clear();
            self.carry = BytesMut::new();
            return Some(Err(EventTooLong { limit: self.limit }));
        }
        let Some(end) = end else {
            self.carry.extend_from_slice(&self.rest);
            self.rest.clear();
            return None;
        };
        let raw = self.take(end);
        Some(Ok(self.event(raw)))
    }

    /// What was carried together with the first `end` bytes of the rest.
    fn take(&mut self, end: usize) -> Bytes {
        let tail = if end == self.rest.len() { std::mem::take(&mut self.rest) } else { self.rest.split_to(end) };
        if self.carry.is_empty() {
            return tail;
        }
        self.carry.extend_from_slice(&tail);
        self.carry.split().freeze()
    }
}

/// The events that one chunk completed.
#[derive(Debug)]
pub struct Events<'a> {
    splitter: &'a mut Splitter,
}

impl Iterator for Events<'_> {
    type Item = Result<Event, EventTooLong>;

    fn next(&mut self) -> Option<Self::Item> {
        self.splitter.next()
    }
}

/// How the line before ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Lf,
    /// An LF that comes now belongs to it.
    Cr,
    /// A CR and nothing else, so a CR is no half of a CRLF in this stream.
    LoneCr,
    /// A CR that ended a blank line; if an LF follows it is part of the event.
    BlankCr,
}

/// Knows at any byte whether an event ends there; what it decides does not depend on how the bytes were cut.
#[derive(Debug)]
struct Edge {
    last: End,
    line_empty: bool,
    /// How much of a byte order mark was seen; its length once that is past.
    bom: usize,
}

impl Edge {
    fn at_start() -> Self {
        Self { last: End::Lf, line_empty: true, bom: 0 }
    }

    /// The end of the event in which `bytes` begin, blank line included.
    fn find(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = self.skip_bom(bytes);
        while let Some(&byte) = bytes.get(at) {
            match (self.last, byte) {
                (End::BlankCr, LF) => {
                    self.last = End::Lf;
                    return Some(at + 1);
                }
                (End::BlankCr, _) => {
                    self.last = End::LoneCr;
                    return Some(at);
                }
                (End::Cr, LF) => {
                    self.last = End::Lf;
                    at += 1;
                    continue;
                }
                (End::Cr, _) => self.last = End::LoneCr,
                _ => {}
            }
            if self.line_empty && (byte == LF || byte == CR) {
                at += 1;
                if self.ends_blank(byte) {
                    return Some(at);
                }
                continue;
            }
            let length = memchr2(LF, CR, &bytes[at..]);
            self.line_empty = length.is_some();
            at += length? + 1;
            self.last = if bytes[at - 1] == CR { End::Cr } else { End::Lf };
        }
        None
    }

    /// A blank line ends with this byte; false if the event may still have an LF to come.
    fn ends_blank(&mut self, byte: u8) -> bool {
        if byte == CR && self.last != End::LoneCr {
            self.last = End::BlankCr;
            return false;
        }
        // With CR alone nothing is waited for: a stray LF goes to the next event and is skipped there.
        self.last = if byte == CR { End::Cr } else { End::Lf };
        true
    }

    fn skip_bom(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while self.bom < BOM.len() && at < bytes.len() {
            if bytes[at] != BOM[self.bom] {
                self.line_empty &= self.bom == 0;
                self.bom = BOM.len();
                break;
            }
            self.bom += 1;
            at += 1;
        }
        at
    }

    /// True if the end of the stream completes an event.
    fn finish(&mut self) -> bool {
        std::mem::replace(&mut self.last, End::Lf) == End::BlankCr
    }
}

/// Whether these bytes end with a blank line.
pub(crate) fn ends_event(bytes: &[u8]) -> bool {
    bytes.ends_with(b"\n\n") || bytes.ends_with(b"\n\r\n") || bytes.ends_with(b"\r\r")
}

/// The end of the last blank line.
pub(crate) fn last_end(bytes: &[u8]) -> Option<usize> {
    let mut end = bytes.len();
    while let Some(at) = memchr::memrchr2(LF, CR, &bytes[..end]) {
        if ends_event(&bytes[..=at]) {
            return Some(at + 1);
        }
        end = at;
    }
    None
}

/// The events in bytes that hold whole ones; what is left behind the last blank line comes as one more.
pub fn split(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut bytes = bytes.strip_prefix(BOM).unwrap_or(bytes);
    let mut edge = Edge::at_start();
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let end = edge.find(bytes).unwrap_or(bytes.len());
        let (event, rest) = bytes.split_at(end);
        bytes = rest;
        Some(event)
    })
}

/// The `data` lines of an event joined with LF.
pub fn data(event: &[u8]) -> Option<Cow<'_, [u8]>> {
    let mut lines = values(event, b"data");
    let first = lines.next()?;
    let Some(second) = lines.next() else {
        return Some(Cow::Borrowed(first));
    };
    let mut joined = [first, b"\n", second].concat();
    for line in lines {
        joined.push(LF);
        joined.extend_from_slice(line);
    }
    Some(Cow::Owned(joined))
}

fn field<'a>(event: &'a [u8], name: &'static [u8]) -> Option<&'a [u8]> {
    values(event, name).last()
}

/// The values of one field, in order.
fn values<'a>(event: &'a [u8], name: &'static [u8]) -> impl Iterator<Item = &'a [u8]> {
    lines(event).filter_map(move |line| {
        let rest = line.strip_prefix(name)?;
        match rest.split_first() {
            None => Some(rest),
            Some((b':', value)) => Some(value.strip_prefix(b" ").unwrap_or(value)),
            Some(_) => None,
        }
    })
}

/// Lines without their ends; CR, LF and CRLF all end one.
fn lines(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let end = memchr2(LF, CR, bytes).unwrap_or(bytes.len());
        let line = &bytes[..end];
        let width = if bytes[end..].starts_with(b"\r\n") { 2 } else { 1 };
        bytes = bytes.get(end + width..).unwrap_or_default();
        Some(line)
    })
}
