//! Counter of server-sent events. Also reads the time stamps in them; the input may be split anywhere.

use memchr::{memchr, memchr2};

const STAMP_DIGITS: u32 = 20;

/// Event counter of one stream.
#[derive(Debug, Default)]
pub struct EventCounter {
    /// Number of events that a blank line ended. Comments alone do not count.
    pub count: u64,
    line: Line,
    has_field: bool,
    after_cr: bool,
    stamp: StampParser,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Line {
    #[default]
    Empty,
    Comment,
    Field,
}

#[derive(Debug, Default)]
struct StampParser {
    is_open: bool,
    digits: u32,
    value: u64,
}

impl EventCounter {
    /// Processes bytes of the body. Calls `stamped` with each time stamp.
    pub fn feed(&mut self, bytes: &[u8], stamped: impl FnMut(u64)) {
        self.stamp.feed(bytes, stamped);
        let mut rest = bytes;
        while let Some(at) = memchr2(b'\r', b'\n', rest) {
            self.scan_line_part(&rest[..at]);
            self.end_line(rest[at]);
            rest = &rest[at + 1..];
        }
        self.scan_line_part(rest);
    }

    fn scan_line_part(&mut self, part: &[u8]) {
        if let Some(first) = part.first() {
            self.after_cr = false;
            if self.line == Line::Empty {
                self.line = if *first == b':' { Line::Comment } else { Line::Field };
            }
        }
    }

    fn end_line(&mut self, end: u8) {
        let second_half = end == b'\n' && self.after_cr;
        self.after_cr = end == b'\r';
        if second_half {
            return;
        }
        match std::mem::take(&mut self.line) {
            Line::Field => self.has_field = true,
            Line::Comment => {}
            Line::Empty => self.count += u64::from(std::mem::take(&mut self.has_field)),
        }
    }
}

impl StampParser {
    fn feed(&mut self, mut bytes: &[u8], mut stamped: impl FnMut(u64)) {
        loop {
            if !self.is_open {
                let Some(at) = memchr(b'@', bytes) else {
                    return;
                };
                *self = Self { is_open: true, digits: 0, value: 0 };
                bytes = &bytes[at + 1..];
            }
            let Some((&byte, rest)) = bytes.split_first() else {
                return;
            };
            if byte.is_ascii_digit() && self.digits < STAMP_DIGITS {
                self.value = self.value.wrapping_mul(10).wrapping_add(u64::from(byte - b'0'));
                self.digits += 1;
                bytes = rest;
            } else {
                if byte == b'@' && self.digits == STAMP_DIGITS {
                    stamped(self.value);
                    bytes = rest;
                }
                self.is_open = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count_events(text: &str, step: usize) -> (u64, Vec<u64>) {
        let (mut events, mut stamps) = (EventCounter::default(), Vec::new());
        for part in text.as_bytes().chunks(step) {
            events.feed(part, |stamp| stamps.push(stamp));
        }
        (events.count, stamps)
    }

    #[test]
    fn any_split_and_line_end_give_the_same_count() {
        let text = ": ping\n\nevent: a\ndata: 1\n\n\n\ndata: @00000000000000000123@ me@x @1@\n\n:c\ndata: [DONE]\n\ndata: open";
        for end in ["\n", "\r\n", "\r"] {
            let text = text.replace('\n', end);
            for step in 1..text.len() {
                assert_eq!(count_events(&text, step), (3, vec![123]), "{end:?} {step}");
            }
        }
    }
}
