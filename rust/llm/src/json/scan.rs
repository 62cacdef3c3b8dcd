//! One pass over JSON bytes that builds nothing: the fields of one object as ranges, everything deeper skipped and checked.

use std::{borrow::Cow, ops::Range, str::Utf8Error};

use memchr::{memchr, memchr2};

/// How deep values may be nested; one bit of the stack each.
pub const MAX_DEPTH: u32 = 128;

const TOO_DEEP: &str = "nested too deeply";

/// So many bytes of a string are looked at before a vector search starts.
const SHORT: usize = 32;

/// What is looked at more than once is looked at in parts of this size, while they are in the nearest cache.
const PART: usize = 16 * 1024;

/// Nothing is looked at again.
const NEVER: usize = usize::MAX;

/// Where JSON is not what it should be, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeekError {
    /// Offset of the byte that could not be accepted; the length of the input where it ends too soon.
    pub at: usize,
    pub message: &'static str,
}

impl std::fmt::Display for PeekError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at byte {}", self.message, self.at)
    }
}

impl std::error::Error for PeekError {}

type Scan<T> = Result<T, PeekError>;

/// Calls `on_field` with each key (unescaped) and the range of its value, for an object that is the whole input.
pub(crate) fn fields(json: &[u8], on_field: impl FnMut(&[u8], Range<usize>) -> Scan<()>) -> Scan<()> {
    let end = fields_from(json, 0, on_field)?;
    Scanner::new(json, end).end()
}

/// The same, for input that is refused as well where it is not UTF-8.
pub(crate) fn fields_of_text(json: &[u8], on_field: impl FnMut(&[u8], Range<usize>) -> Scan<()>) -> Scan<()> {
    let mut scanner = Scanner { json, at: 0, text_to: 0, text_due: PART };
    let read = scanner.object(on_field).and_then(|()| scanner.end()).and_then(|()| scanner.check_text(json.len()));
    // Of two faults the one is told that makes it no text at all.
    read.map_err(|error| std::str::from_utf8(json).err().map_or(error, no_text))
}

fn no_text(error: Utf8Error) -> PeekError {
    PeekError { at: error.valid_up_to(), message: "invalid UTF-8" }
}

/// The same for an object that begins at or after `at`. Returns where it ends.
pub(crate) fn fields_from(
    json: &[u8],
    at: usize,
    on_field: impl FnMut(&[u8], Range<usize>) -> Scan<()>,
) -> Scan<usize> {
    let mut scanner = Scanner::new(json, at);
    scanner.object(on_field)?;
    Ok(scanner.at)
}

/// Reads an object, and some of the objects among its fields, in one pass.
pub(crate) trait Nested {
    /// An object that is looked into.
    type Within: Copy;

    /// Which of them stands under this key, if it is one.
    fn within(&mut self, key: &[u8]) -> Option<Self::Within>;

    /// Takes a field of the outer object, or of one within.
    fn take(&mut self, within: Option<Self::Within>, key: &[u8], value: &[u8]);
}

/// Has an object read that begins at or after `at`. Returns where it ends.
pub(crate) fn nested_from(json: &[u8], at: usize, reader: &mut impl Nested) -> Scan<usize> {
    let mut scanner = Scanner::new(json, at);
    if scanner.opens_object()? {
        scanner.nested(reader)?;
    }
    Ok(scanner.at)
}

/// Calls `on_item` with the range of each item of an array that begins at or after `at`. Returns where it ends.
pub(crate) fn elements_from(json: &[u8], at: usize, mut on_item: impl FnMut(Range<usize>) -> Scan<()>) -> Scan<usize> {
    let mut scanner = Scanner::new(json, at);
    scanner.expect(b'[', "expected an array")?;
    if scanner.after_space() == Some(b']') {
        return Ok(scanner.at + 1);
    }
    loop {
        scanner.after_space();
        let start = scanner.at;
        scanner.skip_value()?;
        on_item(start..scanner.at)?;
        let more = scanner.after_space();
        scanner.at += 1;
        match more {
            Some(b',') => (),
            Some(b']') => return Ok(scanner.at),
            _ => return Err(scanner.error("expected ',' or ']'")),
        }
    }
}

/// From behind a value that was found by other means: fails unless its object is the outermost and all ends with it.
pub(crate) fn closes_after(
    json: &[u8],
    value_end: usize,
    member: impl FnMut(&[u8], Range<usize>) -> Scan<()>,
) -> Scan<()> {
    let mut scanner = Scanner::new(json, value_end);
    if scanner.close_or_comma()? {
        scanner.members(member)?;
    }
    scanner.end()
}

/// Whether a value is closed and nothing stands behind it. Half of one never is, nor what is not meant to be JSON. Of an
/// object or an array only strings and brackets are looked at: what else may be wrong in it is for its reader to say.
pub fn is_closed(json: &[u8]) -> bool {
    let mut scanner = Scanner::new(json, 0);
    if !matches!(scanner.after_space(), Some(b'{' | b'[')) {
        return scanner.skip_value().is_ok() && scanner.end().is_ok();
    }
    let mut depth = 0_usize;
    while let Some(byte) = scanner.byte() {
        scanner.at += 1;
        match byte {
            b'"' if scanner.find_end(scanner.at).is_err() => return false,
            b'{' if !matches!(scanner.after_space(), Some(b'"' | b'}')) => return false,
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 1 => return scanner.end().is_ok(),
            b'}' | b']' => depth -= 1,
            _ => (),
        }
    }
    false
}

/// The string literal that begins at `at`, quotes included; empty where it does not end.
pub(crate) fn string_at(json: &[u8], at: usize) -> &[u8] {
    let mut scanner = Scanner::new(json, at + 1);
    scanner.skip_string().map_or(&[], |_| &json[at..scanner.at])
}

/// The text of a string literal, quotes included in what is given.
pub(crate) fn unescape(literal: &[u8]) -> Option<String> {
    serde_json::from_slice(literal).ok()
}

/// The same where it stands, as long as nothing in it is escaped.
pub(crate) fn text(literal: &[u8]) -> Option<Cow<'_, str>> {
    let plain = literal.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if memchr(b'\\', plain).is_some() {
        return unescape(literal).map(Cow::Owned);
    }
    std::str::from_utf8(plain).ok().map(Cow::Borrowed)
}

/// The high bit of each byte that is a quote; bits above the first one found may be wrong.
fn quotes_in(word: u64) -> u64 {
    const LOW: u64 = u64::from_le_bytes([1; 8]);
    const HIGH: u64 = u64::from_le_bytes([0x80; 8]);
    let zero_where_quote = word ^ u64::from_le_bytes([b'"'; 8]);
    zero_where_quote.wrapping_sub(LOW) & !zero_where_quote & HIGH
}

/// Whether what follows these bytes of a string is escaped: after an odd number of backslashes.
fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// The high bit of each byte that is a quote, a backslash or a control character; bits above the first one found may be wrong.
fn odd_in(word: u64) -> u64 {
    const LOW: u64 = u64::from_le_bytes([1; 8]);
    const HIGH: u64 = u64::from_le_bytes([0x80; 8]);
    let zero_where_backslash = word ^ u64::from_le_bytes([b'\\'; 8]);
    let backslashes = zero_where_backslash.wrapping_sub(LOW) & !zero_where_backslash;
    let controls = word.wrapping_sub(u64::from_le_bytes([b' '; 8])) & !word;
    (backslashes | controls) & HIGH | quotes_in(word)
}

/// Whether text holds a control character. Without an early end this is a loop over vectors.
fn has_control(text: &[u8]) -> bool {
    text.iter().fold(u8::MAX, |least, byte| least.min(*byte)) < b' '
}

/// How long the escape is with which this begins, if it is one.
fn escape(text: &[u8]) -> Option<usize> {
    match text.get(1)? {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(2),
        b'u' if text.get(2..6)?.iter().all(u8::is_ascii_hexdigit) => Some(6),
        _ => None,
    }
}

/// Where text holds what a string may not: a control character, or an escape that is none.
fn check_escapes(text: &[u8]) -> Result<(), (usize, &'static str)> {
    if let Some(at) = text.iter().position(|byte| *byte < b' ') {
        return Err((at, "control character in a string"));
    }
    let mut at = 0;
    while let Some(next) = memchr(b'\\', &text[at..]) {
        at += next;
        at += escape(&text[at..]).ok_or((at, "invalid escape"))?;
    }
    Ok(())
}

struct Scanner<'a> {
    json: &'a [u8],
    at: usize,
    /// As far as it is known to be UTF-8.
    text_to: usize,
    /// From where on it is time to see that what was passed is UTF-8.
    text_due: usize,
}

impl<'a> Scanner<'a> {
    fn new(json: &'a [u8], at: usize) -> Self {
        Self { json, at, text_to: 0, text_due: NEVER }
    }

    /// Sees that what stands before `to`, and was not looked at yet, is UTF-8.
    fn check_text(&mut self, to: usize) -> Scan<()> {
        // A character may go on behind it.
        let goes_on = |at: &usize| self.json.get(*at).is_some_and(|byte| byte & 0xC0 == 0x80);
        let to = (to.saturating_sub(3)..=to).rev().find(|at| !goes_on(at)).unwrap_or(to).max(self.text_to);
        if simdutf8::basic::from_utf8(&self.json[self.text_to..to]).is_err() {
            // Where, is looked up by who tells it.
            return Err(PeekError { at: self.text_to, message: "invalid UTF-8" });
        }
        (self.text_to, self.text_due) = (to, to + PART);
        Ok(())
    }

    fn error(&self, message: &'static str) -> PeekError {
        let at = self.at.min(self.json.len());
        let message = if at == self.json.len() { "unexpected end of JSON" } else { message };
        PeekError { at, message }
    }

    #[inline]
    fn byte(&self) -> Option<u8> {
        self.json.get(self.at).copied()
    }

    #[inline]
    fn after_space(&mut self) -> Option<u8> {
        loop {
            match self.byte() {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                byte => return byte,
            }
        }
    }

    #[inline]
    fn expect(&mut self, wanted: u8, message: &'static str) -> Scan<()> {
        if self.after_space() != Some(wanted) {
            return Err(self.error(message));
        }
        self.at += 1;
        Ok(())
    }

    fn end(&mut self) -> Scan<()> {
        match self.after_space() {
            None => Ok(()),
            Some(_) => Err(self.error("unexpected bytes after the object")),
        }
    }

    fn object(&mut self, on_field: impl FnMut(&[u8], Range<usize>) -> Scan<()>) -> Scan<()> {
        if self.opens_object()? { self.members(on_field) } else { Ok(()) }
    }

    /// Past the brace, or both of one without members: true where members follow.
    fn opens_object(&mut self) -> Scan<bool> {
        self.expect(b'{', "expected an object")?;
        let is_empty = self.after_space() == Some(b'}');
        self.at += usize::from(is_empty);
        Ok(!is_empty)
    }

    /// The same as [`Self::members`], looking into some of them.
    fn nested<R: Nested>(&mut self, reader: &mut R) -> Scan<()> {
        loop {
            let key = self.key()?;
            let is_object = self.after_space() == Some(b'{');
            if let Some(within) = is_object.then(|| reader.within(&key)).flatten() {
                let json = self.json;
                self.object(|key, at| {
                    reader.take(Some(within), key, &json[at]);
                    Ok(())
                })?;
            } else {
                let start = self.at;
                self.skip_value()?;
                reader.take(None, &key, &self.json[start..self.at]);
            }
            if !self.close_or_comma()? {
                return Ok(());
            }
        }
    }

    /// Members up to the closing brace, beginning at the first key.
    fn members(&mut self, mut on_field: impl FnMut(&[u8], Range<usize>) -> Scan<()>) -> Scan<()> {
        loop {
            let key = self.key()?;
            self.after_space();
            let start = self.at;
            self.skip_value()?;
            on_field(&key, start..self.at)?;
            if !self.close_or_comma()? {
                return Ok(());
            }
        }
    }

    /// True after a comma, false after the brace that closes the object.
    fn close_or_comma(&mut self) -> Scan<bool> {
        let more = match self.after_space() {
            Some(b',') => true,
            Some(b'}') => false,
            _ => return Err(self.error("expected ',' or '}'")),
        };
        self.at += 1;
        Ok(more)
    }

    /// A key without its quotes, and the colon behind it.
    #[inline]
    fn key(&mut self) -> Scan<Cow<'a, [u8]>> {
        self.expect(b'"', "expected a string as key")?;
        let start = self.at;
        let is_plain = self.skip_string()?;
        let (json, end) = (self.json, self.at);
        self.expect(b':', "expected ':'")?;
        if is_plain {
            return Ok(Cow::Borrowed(&json[start..end - 1]));
        }
        let text = unescape(&json[start - 1..end]).ok_or(PeekError { at: start - 1, message: "invalid string" })?;
        Ok(Cow::Owned(text.into_bytes()))
    }

    /// Past a key and its colon.
    #[inline]
    fn skip_key(&mut self) -> Scan<()> {
        self.expect(b'"', "expected a string as key")?;
        self.skip_string()?;
        self.expect(b':', "expected ':'")
    }

    /// From after the opening quote to after the closing one: true where nothing in between is escaped.
    #[inline]
    fn skip_string(&mut self) -> Scan<bool> {
        let start = self.at;
        let mut at = start;
        // Most strings are keys and words: eight bytes at once here are cheaper than a vector search.
        for _ in 0..SHORT / 8 {
            let Some(word) = self.json.get(at..).and_then(<[u8]>::first_chunk) else { break };
            let odd = odd_in(u64::from_le_bytes(*word));
            if odd != 0 {
                at += odd.trailing_zeros() as usize / 8;
                if self.json[at] == b'"' {
                    self.at = at + 1;
                    return Ok(true);
                }
                break;
            }
            at += 8;
        }
        self.skip_rest_of_string(start, at)
    }

    /// The same for a string that begins at `start`, of which what stands before `at` is plain.
    fn skip_rest_of_string(&mut self, start: usize, mut at: usize) -> Scan<bool> {
        let json = self.json;
        let mut plain = at;
        let mut is_plain = true;
        loop {
            let end = json.len().min(at + PART);
            while let Some(next) = memchr2(b'"', b'\\', json.get(at..end).unwrap_or_default()) {
                at += next;
                if json[at] == b'"' {
                    if has_control(&json[plain..at]) {
                        return self.refuse_string(start);
                    }
                    self.at = at + 1;
                    return Ok(is_plain);
                }
                let Some(length) = escape(&json[at..]) else { return self.refuse_string(start) };
                is_plain = false;
                at += length;
            }
            at = at.max(end);
            if at == json.len() || has_control(&json[plain..at]) {
                return self.refuse_string(start);
            }
            plain = at;
            if at >= self.text_due {
                self.check_text(at)?;
            }
        }
    }

    /// What is wrong with a string: first that it has no end.
    #[cold]
    fn refuse_string(&mut self, start: usize) -> Scan<bool> {
        self.at = start;
        self.find_end(start)?;
        let text = &self.json[start..self.at - 1];
        check_escapes(text).map_err(|(at, message)| PeekError { at: start + at, message })?;
        Ok(false)
    }

    /// Past the quote that ends a string which begins at `start`, whatever else is in it.
    fn find_end(&mut self, start: usize) -> Scan<()> {
        while let Some(next) = self.json.get(self.at..).and_then(|rest| memchr(b'"', rest)) {
            let quote = self.at + next;
            self.at = quote + 1;
            if !is_escaped(&self.json[start..quote]) {
                return Ok(());
            }
        }
        self.at = self.json.len();
        Err(self.error("unexpected end of JSON"))
    }

    /// Any one value with all that is in it. The object around it counts as one level.
    fn skip_value(&mut self) -> Scan<()> {
        let mut open = Open { bits: 0, depth: 1 };
        loop {
            if self.at >= self.text_due {
                self.check_text(self.at)?;
            }
            match self.after_space() {
                Some(b'"') => {
                    self.at += 1;
                    self.skip_string()?;
                }
                Some(kind @ (b'{' | b'[')) => {
                    if self.descend(kind, &mut open)? {
                        continue;
                    }
                }
                Some(b'-' | b'0'..=b'9') => self.skip_number()?,
                _ => self.skip_word()?,
            }
            if !self.ascend(&mut open)? {
                return Ok(());
            }
        }
    }

    /// Into an object or array: true if a value follows, false if it was empty.
    #[inline]
    fn descend(&mut self, kind: u8, open: &mut Open) -> Scan<bool> {
        if open.depth >= MAX_DEPTH {
            return Err(self.error(TOO_DEEP));
        }
        self.at += 1;
        let object = kind == b'{';
        if self.after_space() == Some(if object { b'}' } else { b']' }) {
            self.at += 1;
            return Ok(false);
        }
        open.push(object);
        if object {
            self.skip_key()?;
        }
        Ok(true)
    }

    /// After a value: past closing brackets and one comma. True if a value follows, false when all is closed.
    #[inline]
    fn ascend(&mut self, open: &mut Open) -> Scan<bool> {
        while open.depth > 1 {
            match (self.after_space(), open.in_object()) {
                (Some(b','), object) => {
                    self.at += 1;
                    if object {
                        self.skip_key()?;
                    }
                    return Ok(true);
                }
                (Some(b'}'), true) | (Some(b']'), false) => {
                    self.at += 1;
                    open.pop();
                }
                (_, true) => return Err(self.error("expected ',' or '}'")),
                (_, false) => return Err(self.error("expected ',' or ']'")),
            }
        }
        Ok(false)
    }

    fn skip_number(&mut self) -> Scan<()> {
        self.at += usize::from(self.byte() == Some(b'-'));
        if self.byte() == Some(b'0') {
            self.at += 1;
        } else {
            self.skip_digits()?;
        }
        if self.byte() == Some(b'.') {
            self.at += 1;
            self.skip_digits()?;
        }
        if matches!(self.byte(), Some(b'e' | b'E')) {
            self.at += 1;
            self.at += usize::from(matches!(self.byte(), Some(b'+' | b'-')));
            self.skip_digits()?;
        }
        Ok(())
    }

    fn skip_digits(&mut self) -> Scan<()> {
        let start = self.at;
        while matches!(self.byte(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start {
            return Err(self.error("expected a digit"));
        }
        Ok(())
    }

    fn skip_word(&mut self) -> Scan<()> {
        let rest = self.json.get(self.at..).unwrap_or_default();
        for word in [&b"true"[..], b"false", b"null"] {
            if rest.starts_with(word) {
                self.at += word.len();
                return Ok(());
            }
        }
        Err(self.error("expected a value"))
    }
}

/// Which containers are open: a bit each, set for an object.
struct Open {
    bits: u128,
    depth: u32,
}

impl Open {
    #[inline]
    fn push(&mut self, object: bool) {
        self.bits = (self.bits << 1) | u128::from(object);
        self.depth += 1;
    }

    #[inline]
    fn pop(&mut self) {
        self.bits >>= 1;
        self.depth -= 1;
    }

    #[inline]
    fn in_object(&self) -> bool {
        self.bits & 1 == 1
    }
}
