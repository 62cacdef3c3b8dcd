//! Single-pass JSON scanner without allocation of a tree. It yields the fields of one object as byte ranges; deeper
//! values are validated and skipped.

use std::{borrow::Cow, ops::Range, str::Utf8Error};

use memchr::{memchr, memchr2};

use super::{
    container_stack::ContainerStack,
    string_literal::{
        check_string_content, escape_len, has_control_character, is_escaped, special_byte_mask, unescape,
    },
};

/// Maximum nesting depth of values. The scanner's stack uses one bit per level.
pub const MAX_DEPTH: u32 = 128;

const TOO_DEEP_MESSAGE: &str = "nested too deeply";

/// Number of string bytes that are checked word by word before a vectorised search starts.
const WORDWISE_SCAN_BYTES: usize = 32;

/// Chunk size for bytes that are read more than once, so that they are still in the L1 cache.
const CACHE_CHUNK_BYTES: usize = 16 * 1024;

/// Offset that disables the incremental UTF-8 check.
const NO_UTF8_CHECK: usize = usize::MAX;

/// Position and reason of a JSON syntax error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanError {
    /// Offset of the first unexpected byte; the length of the input if it ends too early.
    pub offset: usize,
    pub message: &'static str,
}

impl std::fmt::Display for ScanError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at byte {}", self.message, self.offset)
    }
}

impl std::error::Error for ScanError {}

type ScanResult<T> = Result<T, ScanError>;

/// Calls `on_field` with each unescaped key and the byte range of its value. The object must be the whole input.
pub(crate) fn for_each_field(
    json: &[u8],
    on_field: impl FnMut(&[u8], Range<usize>) -> ScanResult<()>,
) -> ScanResult<()> {
    let end = for_each_field_from(json, 0, on_field)?;
    Scanner::new(json, end).expect_end()
}

/// Does the same as [`for_each_field`], and also rejects input that is not UTF-8.
pub(crate) fn for_each_field_utf8(
    json: &[u8],
    on_field: impl FnMut(&[u8], Range<usize>) -> ScanResult<()>,
) -> ScanResult<()> {
    let mut scanner = Scanner { json, position: 0, utf8_checked_to: 0, next_utf8_check: CACHE_CHUNK_BYTES };
    let read =
        scanner.scan_object(on_field).and_then(|()| scanner.expect_end()).and_then(|()| scanner.check_utf8(json.len()));
    // Invalid UTF-8 takes precedence over a syntax error.
    read.map_err(|error| std::str::from_utf8(json).err().map_or(error, invalid_utf8_error))
}

fn invalid_utf8_error(error: Utf8Error) -> ScanError {
    ScanError { offset: error.valid_up_to(), message: "invalid UTF-8" }
}

/// Calls `on_field` for the fields of an object that begins at or after `at`. Returns the offset where it ends.
pub(crate) fn for_each_field_from(
    json: &[u8],
    at: usize,
    on_field: impl FnMut(&[u8], Range<usize>) -> ScanResult<()>,
) -> ScanResult<usize> {
    let mut scanner = Scanner::new(json, at);
    scanner.scan_object(on_field)?;
    Ok(scanner.position)
}

/// Visitor that reads an object and some of its nested objects in one pass.
pub(crate) trait NestedReader {
    /// Identifies a nested object whose fields are visited.
    type NestedObject: Copy;

    /// Returns the nested object under this key, or `None` if its fields are not visited.
    fn nested_object(&mut self, key: &[u8]) -> Option<Self::NestedObject>;

    /// Visits a field of the outer object (`within` is `None`) or of a nested one.
    fn visit_field(&mut self, within: Option<Self::NestedObject>, key: &[u8], value: &[u8]);
}

/// Passes the fields of an object that begins at or after `at` to `reader`. Returns the offset where it ends.
pub(crate) fn read_nested_from(json: &[u8], at: usize, reader: &mut impl NestedReader) -> ScanResult<usize> {
    let mut scanner = Scanner::new(json, at);
    if scanner.open_object()? {
        scanner.scan_nested_members(reader)?;
    }
    Ok(scanner.position)
}

/// Calls `on_item` with the byte range of each item of an array that begins at or after `at`. Returns the offset where
/// it ends.
pub(crate) fn for_each_element_from(
    json: &[u8],
    at: usize,
    mut on_item: impl FnMut(Range<usize>) -> ScanResult<()>,
) -> ScanResult<usize> {
    let mut scanner = Scanner::new(json, at);
    scanner.expect_byte(b'[', "expected an array")?;
    if scanner.skip_whitespace() == Some(b']') {
        return Ok(scanner.position + 1);
    }
    loop {
        scanner.skip_whitespace();
        let start = scanner.position;
        scanner.skip_value()?;
        on_item(start..scanner.position)?;
        let more = scanner.skip_whitespace();
        scanner.position += 1;
        match more {
            Some(b',') => (),
            Some(b']') => return Ok(scanner.position),
            _ => return Err(scanner.error_here("expected ',' or ']'")),
        }
    }
}

/// Scans the rest of an object from the end of a value that was found by a substring search. Fails unless that object
/// is the outermost one and ends the input.
pub(crate) fn scan_rest_of_object(
    json: &[u8],
    value_end: usize,
    member: impl FnMut(&[u8], Range<usize>) -> ScanResult<()>,
) -> ScanResult<()> {
    let mut scanner = Scanner::new(json, value_end);
    if scanner.skip_comma_or_brace()? {
        scanner.scan_members(member)?;
    }
    scanner.expect_end()
}

/// Returns true if the input is one complete value with nothing after it; false for a truncated value or for input that
/// is not JSON. In objects and arrays only strings and brackets are checked, since the client validates the rest.
pub fn is_complete_json(json: &[u8]) -> bool {
    let mut scanner = Scanner::new(json, 0);
    if !matches!(scanner.skip_whitespace(), Some(b'{' | b'[')) {
        return scanner.skip_value().is_ok() && scanner.expect_end().is_ok();
    }
    let mut depth = 0_usize;
    while let Some(byte) = scanner.current_byte() {
        scanner.position += 1;
        match byte {
            b'"' if scanner.skip_to_closing_quote(scanner.position).is_err() => return false,
            b'{' if !matches!(scanner.skip_whitespace(), Some(b'"' | b'}')) => return false,
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 1 => return scanner.expect_end().is_ok(),
            b'}' | b']' => depth -= 1,
            _ => (),
        }
    }
    false
}

/// Returns the string literal that begins at `at`, including its quotes; empty if it has no end.
pub(crate) fn string_literal_at(json: &[u8], at: usize) -> &[u8] {
    let mut scanner = Scanner::new(json, at + 1);
    scanner.skip_string().map_or(&[], |_| &json[at..scanner.position])
}

struct Scanner<'a> {
    json: &'a [u8],
    position: usize,
    /// End of the prefix that is verified to be UTF-8.
    utf8_checked_to: usize,
    /// Position from which the next UTF-8 check is due.
    next_utf8_check: usize,
}

impl<'a> Scanner<'a> {
    fn new(json: &'a [u8], position: usize) -> Self {
        Self { json, position, utf8_checked_to: 0, next_utf8_check: NO_UTF8_CHECK }
    }

    /// Verifies that the unchecked bytes before `to` are UTF-8.
    fn check_utf8(&mut self, to: usize) -> ScanResult<()> {
        // A multi-byte character may continue after `to`.
        let is_continuation = |at: &usize| self.json.get(*at).is_some_and(|byte| byte & 0xC0 == 0x80);
        let to =
            (to.saturating_sub(3)..=to).rev().find(|at| !is_continuation(at)).unwrap_or(to).max(self.utf8_checked_to);
        if simdutf8::basic::from_utf8(&self.json[self.utf8_checked_to..to]).is_err() {
            // The exact offset is computed in `for_each_field_utf8`.
            return Err(ScanError { offset: self.utf8_checked_to, message: "invalid UTF-8" });
        }
        (self.utf8_checked_to, self.next_utf8_check) = (to, to + CACHE_CHUNK_BYTES);
        Ok(())
    }

    fn error_here(&self, message: &'static str) -> ScanError {
        let at = self.position.min(self.json.len());
        let message = if at == self.json.len() { "unexpected end of JSON" } else { message };
        ScanError { offset: at, message }
    }

    #[inline]
    fn current_byte(&self) -> Option<u8> {
        self.json.get(self.position).copied()
    }

    #[inline]
    fn skip_whitespace(&mut self) -> Option<u8> {
        loop {
            match self.current_byte() {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.position += 1,
                byte => return byte,
            }
        }
    }

    #[inline]
    fn expect_byte(&mut self, expected: u8, message: &'static str) -> ScanResult<()> {
        if self.skip_whitespace() != Some(expected) {
            return Err(self.error_here(message));
        }
        self.position += 1;
        Ok(())
    }

    fn expect_end(&mut self) -> ScanResult<()> {
        match self.skip_whitespace() {
            None => Ok(()),
            Some(_) => Err(self.error_here("unexpected bytes after the object")),
        }
    }

    fn scan_object(&mut self, on_field: impl FnMut(&[u8], Range<usize>) -> ScanResult<()>) -> ScanResult<()> {
        if self.open_object()? { self.scan_members(on_field) } else { Ok(()) }
    }

    /// Skips the opening brace, and the closing one if the object is empty. Returns true if members follow.
    fn open_object(&mut self) -> ScanResult<bool> {
        self.expect_byte(b'{', "expected an object")?;
        let is_empty = self.skip_whitespace() == Some(b'}');
        self.position += usize::from(is_empty);
        Ok(!is_empty)
    }

    /// Scans members like [`Self::scan_members`]. For each nested object that `reader.nested_object` selects, visits
    /// its fields instead of the object itself.
    fn scan_nested_members<R: NestedReader>(&mut self, reader: &mut R) -> ScanResult<()> {
        loop {
            let key = self.read_key()?;
            let is_object = self.skip_whitespace() == Some(b'{');
            if let Some(within) = is_object.then(|| reader.nested_object(&key)).flatten() {
                let json = self.json;
                self.scan_object(|key, at| {
                    reader.visit_field(Some(within), key, &json[at]);
                    Ok(())
                })?;
            } else {
                let start = self.position;
                self.skip_value()?;
                reader.visit_field(None, &key, &self.json[start..self.position]);
            }
            if !self.skip_comma_or_brace()? {
                return Ok(());
            }
        }
    }

    /// Scans members from the first key up to the closing brace.
    fn scan_members(&mut self, mut on_field: impl FnMut(&[u8], Range<usize>) -> ScanResult<()>) -> ScanResult<()> {
        loop {
            let key = self.read_key()?;
            self.skip_whitespace();
            let start = self.position;
            self.skip_value()?;
            on_field(&key, start..self.position)?;
            if !self.skip_comma_or_brace()? {
                return Ok(());
            }
        }
    }

    /// Skips a comma or the closing brace. Returns true after a comma.
    fn skip_comma_or_brace(&mut self) -> ScanResult<bool> {
        let more = match self.skip_whitespace() {
            Some(b',') => true,
            Some(b'}') => false,
            _ => return Err(self.error_here("expected ',' or '}'")),
        };
        self.position += 1;
        Ok(more)
    }

    /// Reads a key without its quotes, and skips the colon after it.
    #[inline]
    fn read_key(&mut self) -> ScanResult<Cow<'a, [u8]>> {
        self.expect_byte(b'"', "expected a string as key")?;
        let start = self.position;
        let is_plain = self.skip_string()?;
        let (json, end) = (self.json, self.position);
        self.expect_byte(b':', "expected ':'")?;
        if is_plain {
            return Ok(Cow::Borrowed(&json[start..end - 1]));
        }
        let text = unescape(&json[start - 1..end]).ok_or(ScanError { offset: start - 1, message: "invalid string" })?;
        Ok(Cow::Owned(text.into_bytes()))
    }

    /// Skips a key and its colon.
    #[inline]
    fn skip_key(&mut self) -> ScanResult<()> {
        self.expect_byte(b'"', "expected a string as key")?;
        self.skip_string()?;
        self.expect_byte(b':', "expected ':'")
    }

    /// Skips the rest of a string after its opening quote, including the closing one. Returns true if nothing in it is
    /// escaped.
    #[inline]
    fn skip_string(&mut self) -> ScanResult<bool> {
        let start = self.position;
        let mut at = start;
        // Most strings are short. For them, reading eight bytes at a time is cheaper than a vectorised search.
        for _ in 0..WORDWISE_SCAN_BYTES / 8 {
            let Some(word) = self.json.get(at..).and_then(<[u8]>::first_chunk) else { break };
            let mask = special_byte_mask(u64::from_le_bytes(*word));
            if mask != 0 {
                at += mask.trailing_zeros() as usize / 8;
                if self.json[at] == b'"' {
                    self.position = at + 1;
                    return Ok(true);
                }
                break;
            }
            at += 8;
        }
        self.skip_rest_of_string(start, at)
    }

    /// Skips the rest of a string that begins at `start`. The bytes before `at` contain no special characters.
    fn skip_rest_of_string(&mut self, start: usize, mut at: usize) -> ScanResult<bool> {
        let json = self.json;
        let mut plain = at;
        let mut is_plain = true;
        loop {
            let end = json.len().min(at + CACHE_CHUNK_BYTES);
            while let Some(next) = memchr2(b'"', b'\\', json.get(at..end).unwrap_or_default()) {
                at += next;
                if json[at] == b'"' {
                    if has_control_character(&json[plain..at]) {
                        return self.reject_string(start);
                    }
                    self.position = at + 1;
                    return Ok(is_plain);
                }
                let Some(length) = escape_len(&json[at..]) else { return self.reject_string(start) };
                is_plain = false;
                at += length;
            }
            at = at.max(end);
            if at == json.len() || has_control_character(&json[plain..at]) {
                return self.reject_string(start);
            }
            plain = at;
            if at >= self.next_utf8_check {
                self.check_utf8(at)?;
            }
        }
    }

    /// Returns the error of an invalid string. A missing end takes precedence over errors in the content.
    #[cold]
    fn reject_string(&mut self, start: usize) -> ScanResult<bool> {
        self.position = start;
        self.skip_to_closing_quote(start)?;
        let text = &self.json[start..self.position - 1];
        check_string_content(text).map_err(|(at, message)| ScanError { offset: start + at, message })?;
        Ok(false)
    }

    /// Skips past the closing quote of a string that begins at `start`, without validating its content.
    fn skip_to_closing_quote(&mut self, start: usize) -> ScanResult<()> {
        while let Some(next) = self.json.get(self.position..).and_then(|rest| memchr(b'"', rest)) {
            let quote = self.position + next;
            self.position = quote + 1;
            if !is_escaped(&self.json[start..quote]) {
                return Ok(());
            }
        }
        self.position = self.json.len();
        Err(self.error_here("unexpected end of JSON"))
    }

    /// Skips one value with everything nested in it. The object around it counts as one level.
    fn skip_value(&mut self) -> ScanResult<()> {
        let mut open = ContainerStack::at_depth(1);
        loop {
            if self.position >= self.next_utf8_check {
                self.check_utf8(self.position)?;
            }
            match self.skip_whitespace() {
                Some(b'"') => {
                    self.position += 1;
                    self.skip_string()?;
                }
                Some(kind @ (b'{' | b'[')) => {
                    if self.enter_container(kind, &mut open)? {
                        continue;
                    }
                }
                Some(b'-' | b'0'..=b'9') => self.skip_number()?,
                _ => self.skip_literal()?,
            }
            if !self.leave_containers(&mut open)? {
                return Ok(());
            }
        }
    }

    /// Enters an object or array. Returns true if a value follows, false if it is empty.
    #[inline]
    fn enter_container(&mut self, kind: u8, open: &mut ContainerStack) -> ScanResult<bool> {
        if open.depth >= MAX_DEPTH {
            return Err(self.error_here(TOO_DEEP_MESSAGE));
        }
        self.position += 1;
        let object = kind == b'{';
        if self.skip_whitespace() == Some(if object { b'}' } else { b']' }) {
            self.position += 1;
            return Ok(false);
        }
        open.push(object);
        if object {
            self.skip_key()?;
        }
        Ok(true)
    }

    /// Skips the closing brackets and at most one comma after a value. Returns true if a value follows, false if all
    /// containers are closed.
    #[inline]
    fn leave_containers(&mut self, open: &mut ContainerStack) -> ScanResult<bool> {
        while open.depth > 1 {
            match (self.skip_whitespace(), open.in_object()) {
                (Some(b','), object) => {
                    self.position += 1;
                    if object {
                        self.skip_key()?;
                    }
                    return Ok(true);
                }
                (Some(b'}'), true) | (Some(b']'), false) => {
                    self.position += 1;
                    open.pop();
                }
                (_, true) => return Err(self.error_here("expected ',' or '}'")),
                (_, false) => return Err(self.error_here("expected ',' or ']'")),
            }
        }
        Ok(false)
    }

    fn skip_number(&mut self) -> ScanResult<()> {
        self.position += usize::from(self.current_byte() == Some(b'-'));
        if self.current_byte() == Some(b'0') {
            self.position += 1;
        } else {
            self.skip_digits()?;
        }
        if self.current_byte() == Some(b'.') {
            self.position += 1;
            self.skip_digits()?;
        }
        if matches!(self.current_byte(), Some(b'e' | b'E')) {
            self.position += 1;
            self.position += usize::from(matches!(self.current_byte(), Some(b'+' | b'-')));
            self.skip_digits()?;
        }
        Ok(())
    }

    fn skip_digits(&mut self) -> ScanResult<()> {
        let start = self.position;
        while matches!(self.current_byte(), Some(b'0'..=b'9')) {
            self.position += 1;
        }
        if self.position == start {
            return Err(self.error_here("expected a digit"));
        }
        Ok(())
    }

    fn skip_literal(&mut self) -> ScanResult<()> {
        let rest = self.json.get(self.position..).unwrap_or_default();
        for literal in [&b"true"[..], b"false", b"null"] {
            if rest.starts_with(literal) {
                self.position += literal.len();
                return Ok(());
            }
        }
        Err(self.error_here("expected a value"))
    }
}
