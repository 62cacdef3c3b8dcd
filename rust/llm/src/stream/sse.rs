//! Server-sent events (WHATWG rules): finds event boundaries in chunks of any size, and reads the fields of events.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use memchr::memchr2;

pub(crate) const BOM: &[u8] = b"\xEF\xBB\xBF";
const LF: u8 = b'\n';
const CR: u8 = b'\r';

/// Bytes from one blank line to the next. A block of comments alone is an event too, one without data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Bytes as received, with the blank line that ends the event.
    pub raw: Bytes,
    /// True if the stream starts here with a byte order mark.
    has_bom: bool,
}

impl Event {
    /// Returns the `data` lines joined with LF; `None` if there are none, in which case the event is not dispatched.
    pub fn data(&self) -> Option<Cow<'_, [u8]>> {
        event_data(self.bytes_without_bom())
    }

    /// Returns the last `event` field; `None` if it is missing or empty, which means a plain message.
    pub fn name(&self) -> Option<&[u8]> {
        last_field_value(self.bytes_without_bom(), b"event").filter(|name| !name.is_empty())
    }

    /// Returns the last `id` field that contains no NUL byte.
    pub fn id(&self) -> Option<&[u8]> {
        field_values(self.bytes_without_bom(), b"id").filter(|id| !id.contains(&0)).last()
    }

    fn bytes_without_bom(&self) -> &[u8] {
        if self.has_bom { &self.raw[BOM.len()..] } else { &self.raw }
    }
}

/// An event exceeds the splitter's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventTooLong {
    pub max_bytes: usize,
}

impl std::fmt::Display for EventTooLong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an event of the stream is longer than {} bytes", self.max_bytes)
    }
}

impl std::error::Error for EventTooLong {}

/// Splits a stream of chunks into events. An event that lies within one chunk is a slice of it, without a copy.
#[derive(Debug)]
pub struct Splitter {
    max_event_bytes: usize,
    /// Start of an event whose end has not arrived yet.
    carry: BytesMut,
    /// Bytes that were pushed but not scanned yet.
    unscanned: Bytes,
    boundary_scanner: BoundaryScanner,
    is_first_event: bool,
    has_failed: bool,
}

impl Splitter {
    pub fn new(max_event_bytes: usize) -> Self {
        Self {
            max_event_bytes,
            carry: BytesMut::new(),
            unscanned: Bytes::new(),
            boundary_scanner: BoundaryScanner::at_start(),
            is_first_event: true,
            has_failed: false,
        }
    }

    /// Adds the next bytes; the iterator yields the events that they complete. It yields nothing after an error.
    pub fn push(&mut self, chunk: Bytes) -> Events<'_> {
        if self.has_failed {
            return Events { splitter: self };
        }
        if self.unscanned.is_empty() {
            self.unscanned = chunk;
        } else {
            self.unscanned = [&self.unscanned[..], &chunk[..]].concat().into();
        }
        Events { splitter: self }
    }

    /// Returns the bytes of the event that is not complete yet.
    pub fn pending(&self) -> &[u8] {
        &self.carry
    }

    /// Ends the stream. Returns the last event if its blank line was a CR at the very end. Any other pending event is
    /// incomplete and is never dispatched.
    pub fn finish(&mut self) -> Option<Event> {
        if !self.boundary_scanner.finish() {
            return None;
        }
        let raw = self.carry.split().freeze();
        Some(self.build_event(raw))
    }

    fn build_event(&mut self, raw: Bytes) -> Event {
        let bom = self.is_first_event && raw.starts_with(BOM);
        self.is_first_event = false;
        Event { raw, has_bom: bom }
    }

    fn next_event(&mut self) -> Option<Result<Event, EventTooLong>> {
        if self.unscanned.is_empty() || self.has_failed {
            return None;
        }
        let end = self.boundary_scanner.find_event_end(&self.unscanned);
        let length = self.carry.len() + end.unwrap_or(self.unscanned.len());
        if length > self.max_event_bytes {
            self.has_failed = true;
            self.unscanned.clear();
            self.carry = BytesMut::new();
            return Some(Err(EventTooLong { max_bytes: self.max_event_bytes }));
        }
        let Some(end) = end else {
            self.carry.extend_from_slice(&self.unscanned);
            self.unscanned.clear();
            return None;
        };
        let raw = self.take_event_bytes(end);
        Some(Ok(self.build_event(raw)))
    }

    /// Takes the carried bytes and the first `end` unscanned bytes.
    fn take_event_bytes(&mut self, end: usize) -> Bytes {
        let tail = if end == self.unscanned.len() {
            std::mem::take(&mut self.unscanned)
        } else {
            self.unscanned.split_to(end)
        };
        if self.carry.is_empty() {
            return tail;
        }
        self.carry.extend_from_slice(&tail);
        self.carry.split().freeze()
    }
}

/// Iterator over the events that one chunk completed.
#[derive(Debug)]
pub struct Events<'a> {
    splitter: &'a mut Splitter,
}

impl Iterator for Events<'_> {
    type Item = Result<Event, EventTooLong>;

    fn next(&mut self) -> Option<Self::Item> {
        self.splitter.next_event()
    }
}

/// How the previous line ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineEnd {
    Lf,
    /// A CR; an LF that follows belongs to it.
    Cr,
    /// A CR that no LF followed. This stream uses lone CRs, so a CR is never half of a CRLF.
    LoneCr,
    /// A CR that ended a blank line; an LF that follows is part of the event.
    BlankCr,
}

/// Decides for each byte if an event ends there. The result does not depend on how the bytes are split into chunks.
#[derive(Debug)]
struct BoundaryScanner {
    last_line_end: LineEnd,
    is_line_empty: bool,
    /// Number of byte order mark bytes seen; the length of the mark once the start of the stream has passed.
    bom_bytes_seen: usize,
}

impl BoundaryScanner {
    fn at_start() -> Self {
        Self { last_line_end: LineEnd::Lf, is_line_empty: true, bom_bytes_seen: 0 }
    }

    /// Returns the end of the event that contains the first of `bytes`, blank line included; `None` if it does not end
    /// in them.
    fn find_event_end(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = self.skip_bom(bytes);
        while let Some(&byte) = bytes.get(at) {
            match (self.last_line_end, byte) {
                (LineEnd::BlankCr, LF) => {
                    self.last_line_end = LineEnd::Lf;
                    return Some(at + 1);
                }
                (LineEnd::BlankCr, _) => {
                    self.last_line_end = LineEnd::LoneCr;
                    return Some(at);
                }
                (LineEnd::Cr, LF) => {
                    self.last_line_end = LineEnd::Lf;
                    at += 1;
                    continue;
                }
                (LineEnd::Cr, _) => self.last_line_end = LineEnd::LoneCr,
                _ => {}
            }
            if self.is_line_empty && (byte == LF || byte == CR) {
                at += 1;
                if self.end_blank_line(byte) {
                    return Some(at);
                }
                continue;
            }
            let length = memchr2(LF, CR, &bytes[at..]);
            self.is_line_empty = length.is_some();
            at += length? + 1;
            self.last_line_end = if bytes[at - 1] == CR { LineEnd::Cr } else { LineEnd::Lf };
        }
        None
    }

    /// Ends a blank line with this byte; returns false if an LF of the same event may follow.
    fn end_blank_line(&mut self, byte: u8) -> bool {
        if byte == CR && self.last_line_end != LineEnd::LoneCr {
            self.last_line_end = LineEnd::BlankCr;
            return false;
        }
        // A stream with lone CRs does not wait for an LF: a stray LF goes to the next event and is skipped there.
        self.last_line_end = if byte == CR { LineEnd::Cr } else { LineEnd::Lf };
        true
    }

    fn skip_bom(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while self.bom_bytes_seen < BOM.len() && at < bytes.len() {
            if bytes[at] != BOM[self.bom_bytes_seen] {
                self.is_line_empty &= self.bom_bytes_seen == 0;
                self.bom_bytes_seen = BOM.len();
                break;
            }
            self.bom_bytes_seen += 1;
            at += 1;
        }
        at
    }

    /// Returns true if the end of the stream completes an event.
    fn finish(&mut self) -> bool {
        std::mem::replace(&mut self.last_line_end, LineEnd::Lf) == LineEnd::BlankCr
    }
}

/// Returns true if these bytes end with a blank line.
pub(crate) fn ends_with_blank_line(bytes: &[u8]) -> bool {
    bytes.ends_with(b"\n\n") || bytes.ends_with(b"\n\r\n") || bytes.ends_with(b"\r\r")
}

/// Returns the end of the last blank line.
pub(crate) fn last_event_end(bytes: &[u8]) -> Option<usize> {
    let mut end = bytes.len();
    while let Some(at) = memchr::memrchr2(LF, CR, &bytes[..end]) {
        if ends_with_blank_line(&bytes[..=at]) {
            return Some(at + 1);
        }
        end = at;
    }
    None
}

/// Splits bytes that contain complete events. Bytes after the last blank line are returned as one more event.
pub fn split_events(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut bytes = bytes.strip_prefix(BOM).unwrap_or(bytes);
    let mut edge = BoundaryScanner::at_start();
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let end = edge.find_event_end(bytes).unwrap_or(bytes.len());
        let (event, rest) = bytes.split_at(end);
        bytes = rest;
        Some(event)
    })
}

/// Returns the name of an event; `None` if it has none.
pub(crate) fn event_name(event: &[u8]) -> Option<&[u8]> {
    let mut lines = event.split(|byte| matches!(byte, b'\n' | b'\r'));
    lines.find_map(|line| line.strip_prefix(b"event:")).map(<[u8]>::trim_ascii)
}

/// Returns the `data` lines of an event joined with LF; `None` if there are none.
pub fn event_data(event: &[u8]) -> Option<Cow<'_, [u8]>> {
    let mut lines = field_values(event, b"data");
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

fn last_field_value<'a>(event: &'a [u8], name: &'static [u8]) -> Option<&'a [u8]> {
    field_values(event, name).last()
}

/// Returns the values of one field, in order.
fn field_values<'a>(event: &'a [u8], name: &'static [u8]) -> impl Iterator<Item = &'a [u8]> {
    split_lines(event).filter_map(move |line| {
        let rest = line.strip_prefix(name)?;
        match rest.split_first() {
            None => Some(rest),
            Some((b':', value)) => Some(value.strip_prefix(b" ").unwrap_or(value)),
            Some(_) => None,
        }
    })
}

/// Splits bytes into lines without their ends. CR, LF and CRLF each end a line.
fn split_lines(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
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
